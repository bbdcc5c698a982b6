/* SPDX-License-Identifier: MIT */
/* test_tls.c - TLS of the transport tcp: who gets in and who does not, and what both sides are told, with certificates and keys that are wrong in
 * one way each, with peers that are GnuTLS alone, and with strangers who say nothing or anything.  The contract of transport.h over TLS is in
 * test_transport.c and test_transport_end.c.  No sentence of any of these tests may have a key in it (tls_files.c looks). */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "duo.h"
#include "rng.h"
#include "tcp_private.h"
#include "tls_files.h"
#include "tls_private.h"

#define OTHER_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Two hosts, each with its folder, both by the same authority, and what each says. */
struct hosts {
	struct authority ca, stranger;
	char dir[2][32]; /* dialler, listener */
	struct tp_params p[2];
	const char *dial; /* NULL: as the listener says */
	struct tp_listener *l;
	struct tp_conn *a, *b;
	struct ft_error dialler, listener; /* of tp_connect(), tp_listen() */
};

static const struct certificate good_listener = { "standby", "standby.test", "127.0.0.1", FOR_SERVERS, .serial = 2 };
static const struct certificate good_dialler = { "primary", "primary.test", NULL, FOR_CLIENTS, .serial = 3 };

static void keys_are(const char *dir, const char *text)
{
	tls_write(dir, "keys.psk", text, strlen(text), 0600);
}

static void hosts_make(struct hosts *h, enum tp_tls mode)
{
	memset(h, 0, sizeof(*h));
	tls_hear();
	authority_make(&h->ca, "ours");
	authority_make(&h->stranger, "somebody");
	for (int i = 0; i < 2; i++) {
		tls_folder(h->dir[i], sizeof(h->dir[i]));
		tls_trust(h->dir[i], &h->ca);
		keys_are(h->dir[i], TLS_TEST_USER ":" TLS_TEST_KEY "\n");
		h->p[i] = (struct tp_params){ .lanes = 2 };
		tls_params(&h->p[i], mode, h->dir[i]);
	}
	h->p[0].tls_psk_user = TLS_TEST_USER;
	h->p[1].tls_psk_user = "";
	tls_issue(h->dir[0], "client", &h->ca, &good_dialler);
	tls_issue(h->dir[1], "server", &h->ca, &good_listener);
}

static void hosts_free(struct hosts *h)
{
	tp_close(h->a);
	tp_close(h->b);
	tp_listener_close(h->l);
	cr_assert_null(strcasestr(h->dialler.msg, TLS_TEST_KEY));
	cr_assert_null(strcasestr(h->listener.msg, TLS_TEST_KEY));
	for (int i = 0; i < 2; i++)
		tls_folder_remove(h->dir[i]);
	authority_free(&h->ca);
	authority_free(&h->stranger);
}

static void *dial(void *arg)
{
	struct hosts *h = arg;
	char uri[128];

	snprintf(uri, sizeof(uri), "%s%s", h->dial ? h->dial : "127.0.0.1", strrchr(tp_listener_address(h->l), ':'));
	tp_connect(&h->a, uri, &h->p[0], soon(), -1, &h->dialler);
	return NULL;
}

/* One attempt; the listener looks for as long as the dialler tries. */
static void hosts_meet(struct hosts *h)
{
	struct ft_error err;
	pthread_t t;

	if (!h->l)
		cr_assert_eq(tp_listen(&h->l, "127.0.0.1:0", &h->p[1], &h->listener), 0, "%s", h->listener.msg);
	memset(&h->dialler, 0, sizeof(h->dialler));
	pthread_create(&t, NULL, dial, h);
	do
		tp_accept(h->l, &h->b, deadline_in_ms(20), -1, &err);
	while (!h->b && pthread_tryjoin_np(t, NULL) != 0);
	if (h->b)
		pthread_join(t, NULL);
}

static void hosts_connected(struct hosts *h)
{
	struct ft_error err;

	hosts_meet(h);
	cr_assert(h->a && h->b, "%s; %s", h->dialler.msg, tls_all_heard());
	cr_assert_str_eq(tp_name(h->a), "tls");
	cr_assert_eq(send_text(h->a, 1, "over", soon(), &err), 0, "%s", err.msg);
	cr_assert_eq(recv_text(h->b, soon(), &err), 0, "%s", err.msg);
	cr_assert_str_eq(duo_buf, "over");
	tp_close(h->a);
	tp_close(h->b);
	h->a = h->b = NULL;
}

/* Nobody got in; the dialler says @dialler, and the listener's log @listener, the address of the peer in front. */
static void hosts_refused(struct hosts *h, const char *dialler, const char *listener)
{
	hosts_meet(h);
	cr_assert(!h->a && !h->b, "they are connected");
	cr_assert(strstr(h->dialler.msg, dialler), "the dialler says: %s", h->dialler.msg);
	cr_assert(strncmp(h->dialler.msg, "127.0.0.1:", 10) == 0, "%s", h->dialler.msg);
	cr_assert(tls_heard(listener), "expected '%s' in:\n%s", listener, tls_all_heard());
	cr_assert(tls_heard("127.0.0.1:"));
}

/* -- who gets in -- */

Test(tls, certificates, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	hosts_connected(&h);
	cr_assert(tls_heard("TLS1.3, AES-128-GCM"), "%s", tls_all_heard());
	cr_assert(tls_heard("the peer is 'primary.test'"), "%s", tls_all_heard());
	cr_assert(tls_heard("the peer is 'standby.test, 127.0.0.1, ::1'"), "%s", tls_all_heard());
	hosts_free(&h);
}

Test(tls, keys, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	hosts_connected(&h);
	cr_assert(tls_heard("TLS1.3, AES-128-GCM, the peer is '" TLS_TEST_USER "'"), "%s", tls_all_heard());
	hosts_free(&h);
}

Test(tls, names_that_are_taken, .timeout = 60)
{
	struct certificate no_names = { "only-a-common-name", NULL, NULL, FOR_CLIENTS, .serial = 5 };
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	h.p[0].tls_peer = "elsewhere.test standby.test";
	h.p[1].tls_peer = "elsewhere.test,primary.test";
	hosts_connected(&h);
	tp_listener_close(h.l);
	h.l = NULL;
	h.p[0].tls_peer = "";
	h.p[1].tls_peer = "Only-A-Common-Name";
	tls_issue(h.dir[0], "client", &h.ca, &no_names);
	hosts_connected(&h);
	hosts_free(&h);
}

Test(tls, a_dialled_name_must_be_in_the_certificate, .timeout = 60)
{
	struct certificate c = { "standby", "localhost", NULL, FOR_SERVERS, .serial = 2 };
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	tls_issue(h.dir[1], "server", &h.ca, &c);
	hosts_refused(&h,
		      "the peer's certificate is for 'localhost', not for '127.0.0.1' (the address; tls-peer may say",
		      "takes other names than that of our certificate");
	h.dial = "localhost";
	hosts_connected(&h);
	hosts_free(&h);
}

Test(tls, a_pattern_is_no_name, .timeout = 60)
{
	struct certificate c = { "*.test", "*.test", NULL, FOR_CLIENTS, .serial = 5 };
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	tls_issue(h.dir[0], "client", &h.ca, &c);
	h.p[1].tls_peer = "primary.test";
	hosts_refused(&h, "takes other names", "is for '*.test', not for 'primary.test' (tls-peer)");
	hosts_free(&h);
}

Test(tls, names_that_are_not_taken, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	h.p[1].tls_peer = "other.test, primary.tes";
	hosts_refused(&h, "the peer takes other names than that of our certificate",
		      "the peer's certificate is for 'primary.test', not for 'other.test, primary.tes' (tls-peer)");
	tp_listener_close(h.l);
	h.l = NULL;
	h.p[1].tls_peer = "";
	h.p[0].tls_peer = "other.test";
	hosts_refused(&h,
		      "the peer's certificate is for 'standby.test, 127.0.0.1, ::1', not for 'other.test' (tls-peer)",
		      "the peer takes other names than that of our certificate");
	hosts_free(&h);
}

Test(tls, another_authority, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	/* each side's own certificate is in order with its own folder */
	tls_trust(h.dir[0], &h.stranger);
	tls_issue(h.dir[0], "client", &h.stranger, &good_dialler);
	hosts_refused(&h,
		      "the peer's certificate, for 'standby.test, 127.0.0.1, ::1', is not signed by the authority in "
		      "ca-cert.pem",
		      "the peer does not know the authority that signed our certificate: its ca-cert.pem is another; "
		      "ours is ");
	hosts_free(&h);
}

Test(tls, a_revoked_certificate, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	tls_revoke(h.dir[1], &h.ca, 99);
	hosts_connected(&h);
	tls_revoke(h.dir[1], &h.ca, good_dialler.serial);
	hosts_refused(&h, "the peer says that our certificate is revoked; ours is ",
		      "the peer's certificate, for 'primary.test', is revoked (ca-crl.pem)");
	hosts_free(&h);
}

/* -- keys -- */

Test(tls, another_key, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	keys_are(h.dir[0], TLS_TEST_USER ":" OTHER_KEY "\n");
	hosts_refused(&h, "the peer does not take the key of user '" TLS_TEST_USER "'",
		      "the peer's key of user '" TLS_TEST_USER "' is not the one in ");
	hosts_free(&h);
}

Test(tls, a_user_who_is_not_known, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	keys_are(h.dir[1], "somebody:" TLS_TEST_KEY "\n");
	hosts_refused(&h, "it has another, or does not know the user",
		      "the peer is user '" TLS_TEST_USER "', of whom ");
	hosts_free(&h);
}

Test(tls, a_user_who_is_known_and_not_taken, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	keys_are(h.dir[1], "somebody:" OTHER_KEY "\r\n" TLS_TEST_USER ":" TLS_TEST_KEY "\r\n");
	h.p[1].tls_psk_user = "somebody";
	hosts_refused(&h, "it has another, or does not know the user",
		      "the peer is user '" TLS_TEST_USER "', only 'somebody' is taken (tls-psk-user)");
	tp_listener_close(h.l);
	h.l = NULL;
	h.p[1].tls_psk_user = TLS_TEST_USER;
	hosts_connected(&h);
	hosts_free(&h);
}

/* -- sides that do not go together -- */

Test(tls, a_dialler_without_tls, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	h.p[0].tls = TP_TLS_OFF;
	hosts_refused(&h, "the peer wants TLS (its setting tls), and here it is off",
		      "the peer speaks without TLS (its setting tls is off), this side with (x509)");
	hosts_free(&h);
}

Test(tls, a_listener_without_tls, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	h.p[1].tls = TP_TLS_OFF;
	hosts_refused(&h, "the peer speaks without TLS (its setting tls is off), this side with (psk)",
		      "the peer speaks TLS, and here it is off (setting tls)");
	hosts_free(&h);
}

Test(tls, a_key_here_and_a_certificate_there, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	h.p[0].tls = TP_TLS_PSK;
	hosts_refused(&h, "is the setting tls the same on both sides? Here it is psk",
		      "is the setting tls the same on both sides (here x509)?");
	tp_listener_close(h.l);
	h.l = NULL;
	h.p[0].tls = TP_TLS_X509;
	h.p[1].tls = TP_TLS_PSK;
	hosts_refused(&h, "is the setting tls the same on both sides (here x509)?",
		      "is the setting tls the same on both sides? Here it is psk");
	hosts_free(&h);
}

Test(tls, not_over_what_cannot_have_it, .timeout = 60)
{
	static const char *const uris[] = { "rdma:10.9.0.1:7", "loopback:x", "fault(seed=1)/rdma:10.9.0.1:7" };
	struct tp_listener *l;
	struct tp_conn *c;
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(tp_connect(&c, uris[i], &h.p[0], soon(), -1, &h.dialler), -EINVAL);
		cr_assert(strstr(h.dialler.msg, "nothing would be encrypted"), "%s", h.dialler.msg);
		cr_assert_eq(tp_listen(&l, uris[i], &h.p[1], &h.listener), -EINVAL);
		cr_assert(strstr(h.listener.msg, "nothing would be encrypted"), "%s", h.listener.msg);
		cr_assert_eq(tp_check(uris[i], &h.p[0], false, &h.dialler), -EINVAL);
	}
	hosts_free(&h);
}

/* -- folders -- */

static void folder_refused(struct hosts *h, int side, const char *part)
{
	struct ft_error err = { 0 };
	struct tp_listener *l = NULL;
	struct tp_conn *c = NULL;

	cr_assert_lt(tp_check("127.0.0.1:7", &h->p[side], side == 1, &err), 0, "not refused: %s", part);
	cr_assert(strstr(err.msg, part), "expected '%s': %s", part, err.msg);
	cr_assert(strstr(err.msg, h->dir[side]), "no folder in: %s", err.msg);
	cr_assert_null(strcasestr(err.msg, TLS_TEST_KEY), "%s", err.msg);
	if (side == 0)
		cr_assert_lt(tp_connect(&c, "127.0.0.1:7", &h->p[0], soon(), -1, &err), 0);
	else
		cr_assert_lt(tp_listen(&l, "127.0.0.1:0", &h->p[1], &err), 0);
	cr_assert(strstr(err.msg, part), "expected '%s': %s", part, err.msg);
}

static void folder_fine(struct hosts *h)
{
	struct ft_error err;

	for (int side = 0; side < 2; side++)
		cr_assert_eq(tp_check("127.0.0.1:7", &h->p[side], side == 1, &err), 0, "%s", err.msg);
}

Test(tls, files_that_are_missing, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	folder_fine(&h);
	tls_remove(h.dir[0], "client-key.pem");
	folder_refused(&h, 0, "/client-key.pem: No such file");
	tls_remove(h.dir[0], "client-cert.pem");
	folder_refused(&h, 0, "/client-cert.pem: No such file");
	tls_remove(h.dir[1], "server-key.pem");
	folder_refused(&h, 1, "/server-key.pem: No such file");
	tls_remove(h.dir[1], "server-cert.pem");
	folder_refused(&h, 1, "/server-cert.pem: No such file");
	tls_remove(h.dir[1], "ca-cert.pem");
	folder_refused(&h, 1, "/ca-cert.pem: No such file");
	h.p[0].tls = TP_TLS_PSK;
	folder_fine(&(struct hosts){ .p = { h.p[0], h.p[0] } });
	tls_remove(h.dir[0], "keys.psk");
	folder_refused(&h, 0, "/keys.psk: No such file");
	hosts_free(&h);
}

Test(tls, files_that_are_wrong, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	tls_write(h.dir[0], "client-cert.pem", "hello", 5, 0644);
	folder_refused(&h, 0, "/client-cert.pem: ");
	tls_issue(h.dir[0], "client", &h.ca, &good_dialler);
	tls_write(h.dir[0], "client-key.pem", "hello", 5, 0600);
	folder_refused(&h, 0, "/client-key.pem: ");
	tls_issue(h.dir[1], "client", &h.ca, &good_dialler); /* another key */
	tls_issue(h.dir[0], "client", &h.ca, &good_dialler);
	tls_write(h.dir[0], "ca-cert.pem", "hello", 5, 0644);
	folder_refused(&h, 0, "/ca-cert.pem: ");
	tls_write(h.dir[0], "ca-cert.pem", "", 0, 0644);
	folder_refused(&h, 0, "/ca-cert.pem: ");
	tls_trust(h.dir[0], &h.ca);
	tls_write(h.dir[0], "ca-crl.pem", "hello", 5, 0644);
	folder_refused(&h, 0, "/ca-crl.pem: ");
	hosts_free(&h);
}

Test(tls, a_key_of_another_certificate, .timeout = 60)
{
	struct hosts h;
	char path[2][64];

	hosts_make(&h, TP_TLS_X509);
	tls_issue(h.dir[0], "other", &h.ca, &good_dialler);
	snprintf(path[0], sizeof(path[0]), "%s/other-key.pem", h.dir[0]);
	snprintf(path[1], sizeof(path[1]), "%s/client-key.pem", h.dir[0]);
	cr_assert_eq(rename(path[0], path[1]), 0);
	folder_refused(&h, 0, "/client-key.pem is the key of another certificate than client-cert.pem");
	hosts_free(&h);
}

Test(tls, keys_that_everybody_can_read, .timeout = 60)
{
	struct hosts h;
	char path[64];

	hosts_make(&h, TP_TLS_X509);
	snprintf(path, sizeof(path), "%s/client-key.pem", h.dir[0]);
	chmod(path, 0640);
	folder_fine(&h);
	chmod(path, 0604);
	folder_refused(&h, 0, "/client-key.pem can be read or written by everybody on this host: chmod o= ");
	h.p[0].tls = TP_TLS_PSK;
	snprintf(path, sizeof(path), "%s/keys.psk", h.dir[0]);
	chmod(path, 0602);
	folder_refused(&h, 0, "/keys.psk can be read or written by everybody on this host: chmod o= ");
	hosts_free(&h);
}

static void own(struct hosts *h, const struct certificate *c, const struct authority *a, const char *part)
{
	tls_issue(h->dir[1], "server", a, c);
	folder_refused(h, 1, part);
}

Test(tls, certificates_of_our_own_that_nobody_would_take, .timeout = 60)
{
	struct certificate c = good_listener;
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	c.from_days = -20;
	c.to_days = -10;
	own(&h, &c, &h.ca, "/server-cert.pem has expired");
	c.from_days = 10;
	c.to_days = 20;
	own(&h, &c, &h.ca, "/server-cert.pem is not valid yet: are the clocks");
	c = good_listener;
	own(&h, &c, &h.stranger, "/server-cert.pem is not signed by the authority in ca-cert.pem");
	c.purpose = FOR_CLIENTS;
	own(&h, &c, &h.ca, "/server-cert.pem is not for a TLS server (its key purpose)");
	c.purpose = FOR_CODE;
	own(&h, &c, &h.ca, "/server-cert.pem is not for a TLS server (its key purpose)");
	c.purpose = 0;
	tls_issue(h.dir[1], "server", &h.ca, &c);
	tls_revoke(h.dir[1], &h.ca, c.serial);
	folder_refused(&h, 1, "/server-cert.pem is revoked (ca-crl.pem)");
	hosts_free(&h);
}

Test(tls, key_files_that_are_wrong, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_PSK);
	keys_are(h.dir[0], "guest:" TLS_TEST_KEY "\n" TLS_TEST_USER "8:" TLS_TEST_KEY "\n");
	folder_refused(&h, 0, "/keys.psk has no key of '" TLS_TEST_USER "' (tls-psk-user)");
	keys_are(h.dir[0], TLS_TEST_USER ":0123456789abcdef0123456789abcde");
	folder_refused(&h, 0, "is not of at least 16 pairs of hexadecimal digits");
	keys_are(h.dir[0], TLS_TEST_USER ":0123456789abcdef0123456789abcdeg");
	folder_refused(&h, 0, "is not of at least 16 pairs of hexadecimal digits");
	keys_are(h.dir[0], TLS_TEST_USER ":\n");
	folder_refused(&h, 0, "is not of at least 16 pairs of hexadecimal digits");
	keys_are(h.dir[1], "nothing\n");
	folder_refused(&h, 1, "/keys.psk has no key: lines of NAME:DIGITS");
	keys_are(h.dir[1], "");
	folder_refused(&h, 1, "/keys.psk has no key: lines of NAME:DIGITS");
	h.p[1].tls_psk_user = "me";
	keys_are(h.dir[1], "you:" TLS_TEST_KEY);
	folder_refused(&h, 1, "/keys.psk has no key of 'me' (tls-psk-user)");
	keys_are(h.dir[1], "you:" TLS_TEST_KEY "\nme:0123456789abcdef0123456789abcdef");
	keys_are(h.dir[0], TLS_TEST_USER ":0123456789ABCDEF0123456789abcdef");
	folder_fine(&h);
	hosts_free(&h);
}

/* A new certificate counts for the next connection; one that is no good does not end what works. */
Test(tls, files_are_renewed_under_a_listener, .timeout = 60)
{
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	hosts_connected(&h);
	tls_trust(h.dir[0], &h.stranger);
	tls_issue(h.dir[0], "client", &h.stranger, &good_dialler);
	tls_trust(h.dir[1], &h.stranger); /* half of it */
	hosts_refused(&h, "is not signed by the authority",
		      "server-cert.pem is not signed by the authority in ca-cert.pem");
	tls_issue(h.dir[1], "server", &h.stranger, &good_listener);
	hosts_connected(&h);
	hosts_free(&h);
}

/* -- peers that are GnuTLS alone, since ours refuses its own wrong certificates before it connects -- */

struct plain_tls {
	gnutls_session_t session;
	gnutls_certificate_credentials_t creds;
	const char *dir, *role, *priority; /* dir NULL: no certificate */
	int fd, listening;                 /* listening: where fd comes from, or 0 */
	_Atomic int alert;                 /* what it was told; -1: nothing */
	_Atomic bool done;
};

static int raw_connect(const struct tp_listener *l)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval limit = { .tv_sec = 20 };
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)atoi(strrchr(tp_listener_address(l), ':') + 1)),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	cr_assert_eq(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

static void plain_set_up(struct plain_tls *x, unsigned flags)
{
	char cert[64], key[64];

	gnutls_certificate_allocate_credentials(&x->creds);
	if (x->dir) {
		snprintf(cert, sizeof(cert), "%s/%s-cert.pem", x->dir, x->role);
		snprintf(key, sizeof(key), "%s/%s-key.pem", x->dir, x->role);
		cr_assert_eq(gnutls_certificate_set_x509_key_file(x->creds, cert, key, GNUTLS_X509_FMT_PEM), 0);
	}
	gnutls_init(&x->session, flags | GNUTLS_NO_SIGNAL);
	gnutls_priority_set_direct(x->session, x->priority ? x->priority : "NORMAL", NULL);
	gnutls_credentials_set(x->session, GNUTLS_CRD_CERTIFICATE, x->creds);
}

/* Handshake, then what comes: an alert, or the end. */
static void *plain_run(void *arg)
{
	struct plain_tls *x = arg;
	char octets[100];
	ssize_t r;

	x->alert = -1;
	if (x->listening)
		x->fd = accept(x->listening, NULL, NULL);
	gnutls_transport_set_int(x->session, x->fd);
	do
		r = gnutls_handshake(x->session);
	while (r < 0 && !gnutls_error_is_fatal((int)r));
	while (r >= 0 && (r = gnutls_record_recv(x->session, octets, sizeof(octets))) > 0)
		;
	if (r == GNUTLS_E_FATAL_ALERT_RECEIVED)
		x->alert = gnutls_alert_get(x->session);
	x->done = true;
	return NULL;
}

static void plain_free(struct plain_tls *x)
{
	gnutls_deinit(x->session);
	gnutls_certificate_free_credentials(x->creds);
	close(x->fd);
}

/* A dialler is refused with @alert, and the listener's log says @part. */
static void dialler_refused(struct hosts *h, struct plain_tls x, int alert, const char *part)
{
	struct ft_error err;
	pthread_t t;

	x.role = "client";
	plain_set_up(&x, GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT);
	x.fd = raw_connect(h->l);
	pthread_create(&t, NULL, plain_run, &x);
	while (!x.done)
		cr_assert_eq(tp_accept(h->l, &h->b, deadline_in_ms(10), -1, &err), -ETIMEDOUT, "%s: it got in", part);
	pthread_join(t, NULL);
	cr_assert_eq(x.alert, alert, "%s: alert %d instead of %d; %s", part, x.alert, alert, tls_all_heard());
	cr_assert(tls_heard(part), "expected '%s' in:\n%s", part, tls_all_heard());
	plain_free(&x);
}

Test(tls, a_listener_refuses, .timeout = 60)
{
	struct certificate c = good_dialler;
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	cr_assert_eq(tp_listen(&h.l, "127.0.0.1:0", &h.p[1], &h.listener), 0, "%s", h.listener.msg);
	dialler_refused(&h, (struct plain_tls){ 0 }, GNUTLS_A_CERTIFICATE_REQUIRED, "the peer shows no certificate");
	tls_issue(h.dir[0], "client", &h.stranger, &c);
	dialler_refused(&h, (struct plain_tls){ .dir = h.dir[0] }, GNUTLS_A_UNKNOWN_CA,
			"the peer's certificate, for 'primary.test', is not signed by the authority in ca-cert.pem");
	c.from_days = -20;
	c.to_days = -10;
	tls_issue(h.dir[0], "client", &h.ca, &c);
	dialler_refused(&h, (struct plain_tls){ .dir = h.dir[0] }, GNUTLS_A_CERTIFICATE_EXPIRED,
			"the peer's certificate, for 'primary.test', has expired");
	c = good_dialler;
	c.purpose = FOR_SERVERS;
	tls_issue(h.dir[0], "client", &h.ca, &c);
	dialler_refused(
		&h, (struct plain_tls){ .dir = h.dir[0] }, GNUTLS_A_UNSUPPORTED_CERTIFICATE,
		"the peer's certificate, for 'primary.test', is for another purpose: it must be for a TLS client");
	tls_issue(h.dir[0], "client", &h.ca, &good_dialler);
	dialler_refused(&h, (struct plain_tls){ .dir = h.dir[0], .priority = "NORMAL:-VERS-ALL:+VERS-TLS1.2" },
			GNUTLS_A_HANDSHAKE_FAILURE, "refused: TLS: ");
	hosts_free(&h);
}

/* A listener that is wrong: the dialler says @part, and tells it @alert. */
static void listener_refused(struct hosts *h, struct plain_tls x, int alert, const char *part)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	struct tp_conn *c;
	char uri[32];
	pthread_t t;

	x.listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert(bind(x.listening, (struct sockaddr *)&sa, len) == 0 && listen(x.listening, 1) == 0 &&
		  getsockname(x.listening, (struct sockaddr *)&sa, &len) == 0);
	x.role = "server";
	plain_set_up(&x, GNUTLS_SERVER);
	snprintf(uri, sizeof(uri), "127.0.0.1:%u", ntohs(sa.sin_port));
	pthread_create(&t, NULL, plain_run, &x);
	cr_assert_lt(tp_connect(&c, uri, &h->p[0], soon(), -1, &h->dialler), 0, "%s: it connected", part);
	pthread_join(t, NULL);
	cr_assert(strstr(h->dialler.msg, part), "expected '%s': %s", part, h->dialler.msg);
	cr_assert_eq(x.alert, alert, "%s: alert %d instead of %d", part, x.alert, alert);
	close(x.listening);
	plain_free(&x);
}

Test(tls, a_dialler_refuses, .timeout = 60)
{
	struct certificate c = good_listener;
	struct hosts h;

	hosts_make(&h, TP_TLS_X509);
	c.from_days = -20;
	c.to_days = -10;
	tls_issue(h.dir[1], "server", &h.ca, &c);
	listener_refused(&h, (struct plain_tls){ .dir = h.dir[1] }, GNUTLS_A_CERTIFICATE_EXPIRED, "has expired");
	c = good_listener;
	c.purpose = FOR_CLIENTS;
	tls_issue(h.dir[1], "server", &h.ca, &c);
	listener_refused(&h, (struct plain_tls){ .dir = h.dir[1] }, GNUTLS_A_UNSUPPORTED_CERTIFICATE,
			 "is for another purpose: it must be for a TLS server");
	tls_issue(h.dir[1], "server", &h.stranger, &good_listener);
	listener_refused(&h, (struct plain_tls){ .dir = h.dir[1] }, GNUTLS_A_UNKNOWN_CA,
			 "is not signed by the authority in ca-cert.pem");
	hosts_free(&h);
}

/* -- strangers -- */

static int listen_silently(char *uri, size_t size)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(sa);

	cr_assert(bind(l, (struct sockaddr *)&sa, len) == 0 && listen(l, 1) == 0 &&
		  getsockname(l, (struct sockaddr *)&sa, &len) == 0);
	snprintf(uri, size, "127.0.0.1:%u", ntohs(sa.sin_port));
	return l;
}

Test(tls, a_silent_listener_costs_a_dialler_its_deadline, .timeout = 60)
{
	uint64_t deadline = deadline_in_ms(300);
	struct tp_conn *c;
	struct hosts h;
	char uri[32];
	int l;

	hosts_make(&h, TP_TLS_PSK);
	l = listen_silently(uri, sizeof(uri));
	cr_assert_eq(tp_connect(&c, uri, &h.p[0], deadline, -1, &h.dialler), -ETIMEDOUT, "%s", h.dialler.msg);
	cr_assert(strstr(h.dialler.msg, "connected, but nobody answers the TLS handshake"), "%s", h.dialler.msg);
	cr_assert(now_ns() >= deadline && now_ns() - deadline < 5 * NS_PER_S);
	close(l);
	hosts_free(&h);
}

/* The octets that a dialler begins with. */
static size_t client_hello(struct hosts *h, uint8_t *out, size_t size)
{
	struct tp_conn *c;
	char uri[32];
	int l = listen_silently(uri, sizeof(uri)), fd;
	ssize_t n;

	cr_assert_eq(tp_connect(&c, uri, &h->p[0], deadline_in_ms(200), -1, &h->dialler), -ETIMEDOUT);
	fd = accept(l, NULL, NULL);
	n = recv(fd, out, size, 0);
	cr_assert(n > 100 && out[0] == 0x16, "%zd octets", n);
	close(fd);
	close(l);
	return (size_t)n;
}

Test(tls, stalled_strangers_hold_up_nobody, .timeout = 120)
{
	uint8_t hello[2048];
	struct hosts h;
	uint64_t before;
	int fd[150];
	size_t n;

	hosts_make(&h, TP_TLS_PSK);
	n = client_hello(&h, hello, sizeof(hello));
	cr_assert_eq(tp_listen(&h.l, "127.0.0.1:0", &h.p[1], &h.listener), 0, "%s", h.listener.msg);
	for (unsigned i = 0; i < 150; i++) {
		/* silent ones, ones in the middle of a hello, and such as never answer the listener's */
		fd[i] = raw_connect(h.l);
		if (i % 3)
			cr_assert_gt(send(fd[i], hello, i % 3 == 1 ? 1 + i % (n - 1) : n, MSG_NOSIGNAL), 0);
		if (i % 30 == 29) {
			before = now_ns();
			hosts_connected(&h);
			cr_assert(now_ns() - before < 4 * NS_PER_S, "held up");
		}
	}
	for (unsigned i = 0; i < 150; i++)
		close(fd[i]);
	hosts_connected(&h);
	hosts_free(&h);
}

Test(tls, a_stranger_is_dropped_after_five_seconds, .timeout = 60)
{
	struct ft_error err;
	struct hosts h;
	char octets[64];
	ssize_t n;
	int fd;

	hosts_make(&h, TP_TLS_X509);
	cr_assert_eq(tp_listen(&h.l, "127.0.0.1:0", &h.p[1], &h.listener), 0, "%s", h.listener.msg);
	fd = raw_connect(h.l);
	cr_assert_eq(tp_accept(h.l, &h.b, deadline_in_ms(6000), -1, &err), -ETIMEDOUT);
	while ((n = recv(fd, octets, sizeof(octets), MSG_DONTWAIT)) > 0)
		;
	cr_assert(n == 0 || errno == ECONNRESET, "it was not dropped");
	close(fd);
	hosts_free(&h);
}

/* Thousands of hellos with octets changed, cut, doubled or made up: the listener neither falls nor hangs, and takes the next good one. */
Test(tls, garbage, .timeout = 300)
{
	uint8_t hello[2048], octets[4096];
	struct ft_error err;
	struct rng r = { .state = 4242 };
	struct hosts h;
	size_t n;

	hosts_make(&h, TP_TLS_PSK);
	n = client_hello(&h, hello, sizeof(hello));
	cr_assert_eq(tp_listen(&h.l, "127.0.0.1:0", &h.p[1], &h.listener), 0, "%s", h.listener.msg);
	for (unsigned i = 0; i < 3000; i++) {
		size_t len = n;
		int fd = raw_connect(h.l);

		memcpy(octets, hello, n);
		for (uint64_t k = rng_range(&r, 1, 6); k > 0; k--)
			octets[rng_range(&r, 0, n - 1)] = (uint8_t)rng_next(&r);
		if (i % 4 == 1)
			len = (size_t)rng_range(&r, 1, n);
		if (i % 4 == 2)
			len = n + (size_t)rng_range(&r, 1, sizeof(octets) - n);
		if (i % 4 == 3)
			for (size_t k = i % 8 == 3 ? 0 : 5; k < n; k++)
				octets[k] = (uint8_t)rng_next(&r);
		send(fd, octets, len, MSG_NOSIGNAL);
		if (i % 2)
			shutdown(fd, SHUT_WR);
		cr_assert_eq(tp_accept(h.l, &h.b, now_ns(), -1, &err), -ETIMEDOUT);
		close(fd);
		if (i % 500 == 499)
			hosts_connected(&h);
	}
	hosts_free(&h);
}

/* -- on the way -- */

static void hosts_join(struct hosts *h, enum tp_tls mode)
{
	hosts_make(h, mode);
	hosts_meet(h);
	cr_assert(h->a && h->b, "%s", h->dialler.msg);
}

/* Somebody on the way puts in a record of his own, or octets that are none. */
Test(tls, octets_that_are_put_in_are_found_out, .timeout = 60)
{
	static const uint8_t record[] = { 0x17, 0x03, 0x03, 0, 24, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1,
					  2,    3,    4,    5, 6,  7, 8, 9, 1, 2, 3, 4, 5, 6 };
	static const uint8_t message[] = { 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 };
	struct ft_error err;
	struct hosts h;
	int r;

	for (unsigned i = 0; i < 2; i++) {
		hosts_join(&h, TP_TLS_X509);
		cr_assert_gt(send(tcp_of(h.a)->lane[1].fd, i ? message : record, i ? sizeof(message) : sizeof(record),
				  MSG_NOSIGNAL),
			     0);
		r = recv_text(h.b, soon(), &err);
		cr_assert(r == -EPROTO, "%d %s", r, err.msg);
		cr_assert(strstr(err.msg, i ? "TLS: " : "what came was changed on the way: it cannot be decrypted"),
			  "%s", err.msg);
		cr_assert_eq(recv_text(h.b, soon(), &err), -EPROTO, "%s", err.msg);
		hosts_free(&h);
	}
}

/* What cannot be decrypted ends it also where what came before it is half a frame. */
Test(tls, an_end_behind_half_a_frame_is_seen, .timeout = 60)
{
	static const uint8_t half[8] = { 0, FRAME_MESSAGE }, record[] = { 0x17, 0x03, 0x03, 0, 3, 1, 2, 3 };
	struct iovec v = { (void *)(uintptr_t)half, sizeof(half) };
	struct ft_error err;
	struct hosts h;

	hosts_join(&h, TP_TLS_PSK);
	cr_assert_eq(tls_send(tcp_of(h.a)->lane[1].tls, &v, 1, &err), sizeof(half));
	cr_assert_gt(send(tcp_of(h.a)->lane[1].fd, record, sizeof(record), MSG_NOSIGNAL), 0);
	cr_assert_eq(recv_text(h.b, deadline_in_ms(10000), &err), -EPROTO, "%s", err.msg);
	hosts_free(&h);
}

/* Where records begin means nothing: three messages in one, of which the first is just what is read ahead. */
Test(tls, messages_that_share_a_record, .timeout = 60)
{
	static uint8_t octets[3][AHEAD_MAX];
	struct iovec v = { octets, sizeof(octets) };
	struct ft_error err;
	struct hosts h;

	hosts_join(&h, TP_TLS_PSK);
	for (unsigned i = 0; i < 3; i++) {
		struct tcp_frame f = { to_be16(FRAME_MESSAGE), to_be16(0), to_be32(AHEAD_MAX - sizeof(f)),
				       to_be64(i + 1) };

		memcpy(octets[i], &f, sizeof(f));
		octets[i][AHEAD_MAX - 1] = (uint8_t)i;
	}
	cr_assert_eq(tls_send(tcp_of(h.a)->lane[1].tls, &v, 1, &err), sizeof(octets));
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(recv_text(h.b, deadline_in_ms(10000), &err), 0, "message %u: %s", i, err.msg);
		cr_assert_eq(duo_buf[AHEAD_MAX - sizeof(struct tcp_frame) - 1], (char)i);
	}
	hosts_free(&h);
}

/* A message that is sent is with the kernel; one that there is no room for is not begun, so the connection is fine.  Each is one record. */
Test(tls, a_full_socket, .timeout = 60)
{
	static uint8_t octets[16000];
	struct iovec v = { octets, sizeof(octets) };
	struct ft_error err;
	unsigned sent = 0;
	struct hosts h;
	int r;

	hosts_make(&h, TP_TLS_PSK);
	h.p[0].credits = h.p[1].credits = TP_CREDITS_MAX;
	hosts_meet(&h);
	cr_assert(h.a && h.b, "%s", h.dialler.msg);
	while ((r = tp_send(h.a, 1, &v, 1, deadline_in_ms(300), &err)) == 0) {
		sent++;
		cr_assert(!tls_unsent(tcp_of(h.a)->lane[1].tls), "message %u is not all with the kernel", sent);
	}
	cr_assert_eq(r, -ETIMEDOUT, "%s", err.msg);
	cr_assert(strstr(err.msg, "no room"), "it was not the room: %s", err.msg);
	for (; sent > 0; sent--)
		cr_assert_eq(recv_text(h.b, soon(), &err), 0, "%s", err.msg);
	cr_assert_eq(recv_text(h.b, deadline_in_ms(20), &err), -ETIMEDOUT, "%s", err.msg);
	cr_assert_eq(send_text(h.a, 1, "fine", soon(), &err), 0, "%s", err.msg);
	cr_assert_eq(recv_text(h.b, soon(), &err), 0, "%s", err.msg);
	cr_assert_str_eq(duo_buf, "fine");
	hosts_free(&h);
}

/* A socket that takes less than a record at a time: what tp_send() and tp_wait_completed() say is done is with the kernel all the same. */
Test(tls, a_narrow_socket, .timeout = 60)
{
	static uint8_t octets[16000], memory[sizeof(octets)];
	struct iovec v = { octets, sizeof(octets) };
	int narrow = 4096;
	struct ft_error err;
	struct hosts h;
	uint64_t ticket;

	hosts_make(&h, TP_TLS_PSK);
	h.p[0].credits = h.p[1].credits = 100;
	hosts_meet(&h);
	cr_assert(h.a && h.b, "%s", h.dialler.msg);
	cr_assert_eq(setsockopt(tcp_of(h.a)->lane[1].fd, SOL_SOCKET, SO_SNDBUF, &narrow, sizeof(narrow)), 0);
	cr_assert_eq(tp_window_open(h.b, 0, memory, sizeof(memory), &err), 0);
	for (unsigned i = 0; i < 40; i++) {
		cr_assert_eq(tp_send(h.a, 1, &v, 1, soon(), &err), 0, "%s", err.msg);
		cr_assert(!tls_unsent(tcp_of(h.a)->lane[1].tls), "message %u is not all with the kernel", i);
		cr_assert_eq(tp_write(h.a, 1, 0, 0, &v, 1, &ticket, soon(), &err), 0, "%s", err.msg);
		cr_assert_eq(tp_wait_completed(h.a, 1, ticket, soon(), &err), 0, "%s", err.msg);
		cr_assert(!tls_unsent(tcp_of(h.a)->lane[1].tls), "write %u is not all with the kernel", i);
		cr_assert_eq(recv_text(h.b, soon(), &err), 0, "%s", err.msg);
	}
	hosts_free(&h);
}

/* What GnuTLS does by itself after 2^24 records. */
Test(tls, keys_are_changed_under_way, .timeout = 60)
{
	struct ft_error err;
	struct hosts h;

	hosts_join(&h, TP_TLS_PSK);
	for (int i = 0; i < 3; i++) {
		struct tls *t[2] = { tcp_of(h.a)->lane[1].tls, tcp_of(h.b)->lane[1].tls };

		for (int k = 0; k < 2; k++) {
			pthread_mutex_lock(&t[k]->lock);
			cr_assert_eq(gnutls_session_key_update(t[k]->session, 0), 0);
			pthread_mutex_unlock(&t[k]->lock);
			cr_assert_eq(send_text(k ? h.b : h.a, 1, "new key", soon(), &err), 0, "%s", err.msg);
			cr_assert_eq(recv_text(k ? h.a : h.b, soon(), &err), 0, "%s", err.msg);
			cr_assert_str_eq(duo_buf, "new key");
			usleep(1100000); /* GnuTLS takes one change a second */
		}
	}
	hosts_free(&h);
}

/* -- secrets -- */

#define LOOK (1u << 20)
#define MAPPING_MAX (256u << 20) /* what is larger is a sanitizer's */

static char *hidden(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert(p != MAP_FAILED && madvise(p, len, MADV_DONTDUMP) == 0);
	return p;
}

/* How often [@from, @to) of this process has @text; read through a file, since no sanitizer has to know of it. */
static unsigned times_in(unsigned long from, unsigned long to, const char *text, size_t len)
{
	int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	char *buf = hidden(LOOK);
	unsigned found = 0;
	ssize_t n;

	for (unsigned long at = from; at < to; at += LOOK - len) {
		size_t want = to - at < LOOK ? to - at : LOOK;
		const char *p = buf;

		n = pread(fd, buf, want, (off_t)at);
		while (n > 0 && (p = memmem(p, (size_t)(buf + n - p), text, len))) {
			found++;
			p++;
		}
	}
	explicit_bzero(buf, LOOK);
	munmap(buf, LOOK);
	close(fd);
	return found;
}

/* Each mapping that has @text in it must be one that core dumps leave out; how often it is there. */
static unsigned check_dumps(const char *text, size_t len)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	unsigned found = 0, here = 0;
	unsigned long from, to;
	char line[512], mode[8];

	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3) {
			here = mode[0] == 'r' && to - from <= MAPPING_MAX ? times_in(from, to, text, len) : 0;
			found += here;
		} else if (here > 0 && strncmp(line, "VmFlags:", 8) == 0) {
			cr_assert(strstr(line, " dd"), "a key is where core dumps have it");
		}
	}
	fclose(maps);
	return found;
}

Test(tls, what_is_kept_of_a_key_is_in_no_core_dump_and_wiped, .timeout = 60)
{
	struct ft_error err;
	struct hosts h;
	char *text = hidden(4096), line[80];
	size_t len;

	hosts_make(&h, TP_TLS_PSK);
	for (len = 0; len < 48; len++) /* in no other memory of this test */
		text[len] = "0123456789abcdef"[(len * 7 + 3) % 16];
	snprintf(line, sizeof(line), "%s:%.48s\n", TLS_TEST_USER, text);
	keys_are(h.dir[1], line);
	explicit_bzero(line, sizeof(line));
	cr_assert_eq(check_dumps(text, len), 1, "there is text, and no other");
	cr_assert_eq(tp_listen(&h.l, "127.0.0.1:0", &h.p[1], &err), 0, "%s", err.msg);
	cr_assert_eq(check_dumps(text, len), 2);
	tp_listener_close(h.l);
	h.l = NULL;
	cr_assert_eq(check_dumps(text, len), 1, "it is still there");
	munmap(text, 4096);
	hosts_free(&h);
}
