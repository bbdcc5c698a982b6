/* SPDX-License-Identifier: MIT */
/* tls_peer.c - who the other side of a TLS handshake is, and what is said when it is not who it must be: to the peer an alert, which is a
 * number, to our own side a sentence.  Runs on the thread that does the handshake; tls_explain() also on those that send and receive.
 *
 * Must hold: a handshake ends well only if the peer has proved that it has a key, and for certificates, also that the authority of our folder
 * signed it, for its role, for a name that we take.  What the peer says of itself is printed only as far as it is printable. */
#include "tls_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define RANDOM_KEY 32u /* octets, for a user that we do not know */

static void printable(char *out, size_t size, const unsigned char *text, size_t len)
{
	size_t n = 0;

	for (; n < len && n + 1 < size; n++)
		out[n] = text[n] >= ' ' && text[n] < 0x7f ? (char)text[n] : '?';
	out[n] = '\0';
}

/* -- names in a certificate -- */

/* The name of number @i among the certificate's other names; 0: a name, 1: of another kind, -1: there is none. */
static int san_at(gnutls_x509_crt_t crt, unsigned i, char *out, size_t size)
{
	unsigned char raw[256];
	size_t len = sizeof(raw);
	int kind = gnutls_x509_crt_get_subject_alt_name(crt, i, raw, &len, NULL);

	if (kind == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
		return -1;
	if (kind == GNUTLS_SAN_DNSNAME)
		printable(out, size, raw, len);
	else if (kind == GNUTLS_SAN_IPADDRESS && (len == 4 || len == 16))
		inet_ntop(len == 4 ? AF_INET : AF_INET6, raw, out, (socklen_t)size);
	else
		return 1;
	return 0;
}

static void common_name(gnutls_x509_crt_t crt, char *out, size_t size)
{
	unsigned char raw[256];
	size_t len = sizeof(raw) - 1;

	if (gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, raw, &len) < 0)
		len = 0;
	printable(out, size, raw, len);
}

/* All of them, for a sentence; the common name counts where there is no other. */
static void names_of(gnutls_x509_crt_t crt, char *out, size_t size)
{
	size_t at = 0;
	char name[128];
	int kind;

	out[0] = '\0';
	for (unsigned i = 0; (kind = san_at(crt, i, name, sizeof(name))) >= 0 && at < size; i++) {
		if (kind == 0)
			at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", name);
	}
	if (at == 0)
		common_name(crt, out, size);
}

static bool is_for(gnutls_x509_crt_t crt, const char *name)
{
	char other[256];

	/* no patterns: a certificate for all hosts of a domain would make each of them the standby */
	if (gnutls_x509_crt_check_hostname2(crt, name, GNUTLS_VERIFY_DO_NOT_ALLOW_WILDCARDS))
		return true;
	if (san_at(crt, 0, other, sizeof(other)) >= 0)
		return false;
	common_name(crt, other, sizeof(other));
	return other[0] && strcasecmp(other, name) == 0;
}

static bool is_for_one_of(gnutls_x509_crt_t crt, const char *names)
{
	char name[HOST_MAX];

	for (names += strspn(names, ", "); *names; names += strspn(names, ", ")) {
		size_t len = strcspn(names, ", ");

		snprintf(name, sizeof(name), "%.*s", (int)len, names);
		if (len < sizeof(name) && is_for(crt, name))
			return true;
		names += len;
	}
	return false;
}

/* -- certificates -- */

const char *tls_status_text(unsigned status, gnutls_alert_description_t *alert)
{
	static const struct {
		unsigned bit;
		gnutls_alert_description_t alert;
		const char *text;
	} known[] = {
		{ GNUTLS_CERT_REVOKED, GNUTLS_A_CERTIFICATE_REVOKED, "is revoked (ca-crl.pem)" },
		{ GNUTLS_CERT_SIGNER_NOT_FOUND, GNUTLS_A_UNKNOWN_CA, "is not signed by the authority in ca-cert.pem" },
		{ GNUTLS_CERT_SIGNER_NOT_CA, GNUTLS_A_UNKNOWN_CA, "is signed by something that is no authority" },
		{ GNUTLS_CERT_EXPIRED, GNUTLS_A_CERTIFICATE_EXPIRED,
		  "has expired, or its authority has: make a new one" },
		{ GNUTLS_CERT_NOT_ACTIVATED, GNUTLS_A_CERTIFICATE_EXPIRED,
		  "is not valid yet: are the clocks of both hosts right?" },
		{ GNUTLS_CERT_PURPOSE_MISMATCH, GNUTLS_A_UNSUPPORTED_CERTIFICATE, "is for another purpose" },
		{ GNUTLS_CERT_INSECURE_ALGORITHM, GNUTLS_A_BAD_CERTIFICATE,
		  "is signed in a way that is not safe any more" },
	};

	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (status & known[i].bit) {
			*alert = known[i].alert;
			return known[i].text;
		}
	*alert = GNUTLS_A_BAD_CERTIFICATE;
	return "is not in order";
}

static int refuse_peer(struct tls *t, gnutls_alert_description_t alert)
{
	t->alert = alert;
	return GNUTLS_E_CERTIFICATE_ERROR;
}

static int check_name(struct tls *t, gnutls_x509_crt_t crt)
{
	const char *wanted = t->creds->peer[0] ? t->creds->peer : t->host;
	char names[160];

	names_of(crt, names, sizeof(names));
	snprintf(t->about, sizeof(t->about), "%s", names);
	if (!wanted[0] || is_for_one_of(crt, wanted))
		return 0;
	err_set(&t->why, -EACCES, "the peer's certificate is for '%s', not for '%.128s' (%s)", names, wanted,
		t->creds->peer[0] ? "tls-peer" : "the address; tls-peer may say another name");
	return refuse_peer(t, GNUTLS_A_ACCESS_DENIED);
}

static int check_certificate(struct tls *t, const gnutls_datum_t *first)
{
	const char *purpose = t->creds->listener ? GNUTLS_KP_TLS_WWW_CLIENT : GNUTLS_KP_TLS_WWW_SERVER;
	gnutls_typed_vdata_st data = { .type = GNUTLS_DT_KEY_PURPOSE_OID, .data = (unsigned char *)(uintptr_t)purpose };
	gnutls_alert_description_t alert;
	gnutls_x509_crt_t crt;
	unsigned status = 0;
	char names[160];
	int r;

	if (gnutls_x509_crt_init(&crt) < 0)
		return GNUTLS_E_MEMORY_ERROR;
	r = gnutls_x509_crt_import(crt, first, GNUTLS_X509_FMT_DER);
	if (r == 0)
		r = gnutls_certificate_verify_peers(t->session, &data, 1, &status);
	if (r == 0 && status != 0) {
		const char *text = tls_status_text(status, &alert);

		names_of(crt, names, sizeof(names));
		err_set(&t->why, -EACCES, "the peer's certificate, for '%s', %s%s", names, text,
			status & GNUTLS_CERT_PURPOSE_MISMATCH ? (t->creds->listener ? ": it must be for a TLS client"
										    : ": it must be for a TLS server")
							      : "");
		r = refuse_peer(t, alert);
	}
	if (r == 0)
		r = check_name(t, crt);
	gnutls_x509_crt_deinit(crt);
	return r;
}

static int verify(gnutls_session_t session)
{
	struct tls *t = gnutls_session_get_ptr(session);
	const gnutls_datum_t *chain;
	unsigned n = 0;
	int r;

	chain = gnutls_certificate_get_peers(session, &n);
	if (!chain || n == 0)
		return GNUTLS_E_NO_CERTIFICATE_FOUND;
	r = check_certificate(t, &chain[0]);
	t->known = r == 0;
	return r;
}

/* -- keys that both sides have -- */

int tls_psk_key(gnutls_session_t session, const gnutls_datum_t *user, gnutls_datum_t *key)
{
	struct tls *t = gnutls_session_get_ptr(session);
	const char *only = t->creds->psk_user;
	gnutls_datum_t hex;
	bool taken = !only[0] || (user->size == strlen(only) && memcmp(user->data, only, user->size) == 0);

	printable(t->user, sizeof(t->user), user->data, user->size);
	taken = taken && tls_find_key(&t->creds->keys, (char *)user->data, user->size, &hex);
	t->user_unknown = !taken;
	if (taken && gnutls_hex_decode2(&hex, key) == 0)
		return 0;
	/* A key that nobody has: the stranger hears what one with a wrong key hears, and learns no names. */
	key->data = gnutls_malloc(RANDOM_KEY);
	key->size = RANDOM_KEY;
	if (!key->data)
		return -1;
	return gnutls_rnd(GNUTLS_RND_KEY, key->data, RANDOM_KEY);
}

void tls_peer_watch(struct tls *t)
{
	gnutls_session_set_ptr(t->session, t);
	if (t->creds->mode == TP_TLS_X509)
		gnutls_session_set_verify_function(t->session, verify);
}

int tls_peer_known(struct tls *t)
{
	gnutls_kx_algorithm_t kx = gnutls_kx_get(t->session);

	if (t->creds->mode == TP_TLS_PSK) {
		t->known = (kx == GNUTLS_KX_ECDHE_PSK || kx == GNUTLS_KX_DHE_PSK) && !t->user_unknown;
		if (t->creds->listener)
			snprintf(t->about, sizeof(t->about), "%s", t->user);
	}
	return t->known ? 0 : GNUTLS_E_NO_CERTIFICATE_FOUND;
}

/* -- sentences -- */

static int explain_psk_alert(struct tls *t, gnutls_alert_description_t alert, struct ft_error *err)
{
	char path[4096];

	if (alert != GNUTLS_A_ILLEGAL_PARAMETER && alert != GNUTLS_A_UNKNOWN_PSK_IDENTITY &&
	    alert != GNUTLS_A_DECRYPT_ERROR)
		return 0;
	return err_set(
		err, -EACCES,
		"the peer does not take the key of user '%.64s' in %.128s: it has another, or does not know the user",
		t->creds->psk_user, tls_file_path(t->creds, "keys.psk", path, sizeof(path)));
}

/* What the peer told us by an alert. */
static int explain_alert(struct tls *t, struct ft_error *err)
{
	static const struct {
		gnutls_alert_description_t alert;
		const char *text; /* behind "the peer " */
	} known[] = {
		{ GNUTLS_A_CERTIFICATE_REQUIRED, "wants a certificate, and got none" },
		{ GNUTLS_A_UNKNOWN_CA,
		  "does not know the authority that signed our certificate: its ca-cert.pem is another" },
		{ GNUTLS_A_CERTIFICATE_EXPIRED,
		  "says that our certificate is not valid now: expired, or a clock is wrong" },
		{ GNUTLS_A_CERTIFICATE_REVOKED, "says that our certificate is revoked" },
		{ GNUTLS_A_UNSUPPORTED_CERTIFICATE, "says that our certificate is for another purpose" },
		{ GNUTLS_A_ACCESS_DENIED,
		  "takes other names than that of our certificate (its tls-peer, or the address it dials)" },
		{ GNUTLS_A_BAD_CERTIFICATE, "does not take our certificate; its log says why" },
		{ GNUTLS_A_PROTOCOL_VERSION, "speaks another version of TLS; this side speaks 1.3" },
	};
	gnutls_alert_description_t alert = gnutls_alert_get(t->session);
	char path[4096];
	int r = 0;

	if (t->creds->mode == TP_TLS_PSK)
		r = explain_psk_alert(t, alert, err);
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]) && r == 0; i++)
		if (known[i].alert == alert)
			r = err_set(err, -EACCES, "the peer %s; ours is %.200s", known[i].text,
				    tls_file_path(t->creds, tls_own_name(t->creds), path, sizeof(path)));
	if (r == 0)
		r = err_set(err, -EACCES, "the peer refuses: %s; is the setting tls the same on both sides (here %s)?",
			    gnutls_alert_get_name(alert), t->creds->mode == TP_TLS_PSK ? "psk" : "x509");
	return r;
}

static int explain_user(struct tls *t, struct ft_error *err)
{
	char path[4096];

	tls_file_path(t->creds, "keys.psk", path, sizeof(path));
	if (!t->user_unknown)
		return err_set(err, -EACCES, "the peer's key of user '%s' is not the one in %.200s", t->user, path);
	if (t->creds->psk_user[0])
		return err_set(err, -EACCES, "the peer is user '%s', only '%.64s' is taken (tls-psk-user)", t->user,
			       t->creds->psk_user);
	return err_set(err, -EACCES, "the peer is user '%s', of whom %.200s has no key", t->user, path);
}

static int explain_socket(struct tls *t, struct ft_error *err)
{
	int e = t->pull_errno ? t->pull_errno : t->push_errno;

	if (e == 0)
		return err_set(err, -ECONNRESET, "the peer closed in the middle of TLS");
	/* the kernel's ETIMEDOUT is a peer that does not answer; ours means that all is well */
	return err_sys(err, e == ETIMEDOUT ? -ECONNRESET : -e, "the socket%s",
		       e == ETIMEDOUT ? ", the peer does not answer" : "");
}

int tls_explain(struct tls *t, int code, struct ft_error *err)
{
	if (t->why.code != 0) {
		if (err)
			*err = t->why;
		return t->why.code;
	}
	if (tls_plain_peer(t))
		return err_set(err, -EPROTO,
			       "the peer speaks without TLS (its setting tls is off), this side with (%s)",
			       t->creds->mode == TP_TLS_PSK ? "psk" : "x509");
	if (code == GNUTLS_E_FATAL_ALERT_RECEIVED)
		return explain_alert(t, err);
	if (code == GNUTLS_E_PREMATURE_TERMINATION || code == GNUTLS_E_PULL_ERROR || code == GNUTLS_E_PUSH_ERROR)
		return explain_socket(t, err);
	if (code == GNUTLS_E_CERTIFICATE_REQUIRED || code == GNUTLS_E_NO_CERTIFICATE_FOUND)
		return err_set(err, -EACCES, "the peer shows no certificate, and no key");
	if (t->user[0] && !t->known)
		return explain_user(t, err);
	if (t->known && code == GNUTLS_E_DECRYPTION_FAILED)
		return err_set(err, -EPROTO, "what came was changed on the way: it cannot be decrypted");
	return err_set(err, -EPROTO, "TLS: %s%s%s", gnutls_strerror(code),
		       t->known ? "" : "; is the setting tls the same on both sides? Here it is ",
		       t->known                       ? ""
		       : t->creds->mode == TP_TLS_PSK ? "psk"
						      : "x509");
}
