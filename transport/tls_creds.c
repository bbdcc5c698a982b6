/* SPDX-License-Identifier: MIT */
/* tls_creds.c - what is in a folder of certificates and keys, named as QEMU and libvirt name it: ca-cert.pem, ca-crl.pem (may be missing),
 * server-cert.pem and server-key.pem of a listener, client-cert.pem and client-key.pem of a dialler, keys.psk.
 * Runs on the thread that connects, listens or accepts.
 *
 * Must hold: what is kept of a key is in memory that no core dump has and that is wiped (struct secret); what GnuTLS makes of it, it wipes
 * itself.  No octet of a key gets into a sentence. */
#include "tls_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_MAX (1u << 20)
#define KEY_DIGITS_MIN 32u /* 16 octets */
#define CA_CERT "ca-cert.pem"
#define CA_CRL "ca-crl.pem"
#define PSK_KEYS "keys.psk"

static const char *or_empty(const char *text)
{
	return text ? text : "";
}

const char *tls_file_path(const struct tls_creds *c, const char *name, char *buf, size_t size)
{
	snprintf(buf, size, "%s/%s", c->dir, name);
	return buf;
}

const char *tls_own_name(const struct tls_creds *c)
{
	return c->listener ? "server-cert.pem" : "client-cert.pem";
}

/* -- files -- */

static void secret_free(struct secret *s)
{
	if (!s->text)
		return;
	explicit_bzero(s->text, s->room);
	munmap(s->text, s->room);
	s->text = NULL;
}

static int secret_room(struct secret *s, size_t len)
{
	void *p = mmap(NULL, len + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	*s = (struct secret){ .text = p, .room = len + 1 };
	return madvise(p, s->room, MADV_DONTDUMP) == 0 ? 0 : -errno;
}

static int check_mode(const char *path, const struct stat *st, bool private, struct ft_error *err)
{
	if (!S_ISREG(st->st_mode))
		return err_set(err, -EINVAL, "%s is not a file", path);
	if (st->st_size > FILE_MAX)
		return err_set(err, -EFBIG, "%s is larger than %u octets", path, FILE_MAX);
	if (private && st->st_mode & S_IRWXO)
		return err_set(err, -EACCES, "%s can be read or written by everybody on this host: chmod o= %s", path,
			       path);
	return 0;
}

static int read_all(int fd, struct secret *s)
{
	ssize_t n;

	while (s->len < s->room - 1) {
		n = read(fd, s->text + s->len, s->room - 1 - s->len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			break;
		s->len += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* read_file - @private: it holds a key.  -ENOENT without a sentence if it may be missing. */
static int read_file(struct tls_creds *c, const char *name, bool private, struct secret *out, struct ft_error *err)
{
	struct tls_file *f = &c->file[c->nr_files++];
	char path[4096];
	int fd, r;

	f->name = name;
	fd = open(tls_file_path(c, name, path, sizeof(path)), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return err_sys(err, -errno, "cannot read %s", path);
	r = fstat(fd, &f->seen) == 0 ? 0 : err_sys(err, -errno, "%s", path);
	if (r == 0)
		r = check_mode(path, &f->seen, private, err);
	if (r == 0) {
		r = secret_room(out, (size_t)f->seen.st_size);
		r = r != 0 ? r : read_all(fd, out);
		if (r != 0)
			err_sys(err, r, "cannot read %s", path);
	}
	close(fd);
	return r;
}

bool tls_creds_changed(const struct tls_creds *c)
{
	for (unsigned i = 0; i < c->nr_files; i++) {
		const struct stat *was = &c->file[i].seen;
		char path[4096];
		struct stat is;

		if (stat(tls_file_path(c, c->file[i].name, path, sizeof(path)), &is) != 0)
			is.st_ino = 0;
		if (is.st_ino != was->st_ino)
			return true;
		if (is.st_ino != 0 && (is.st_dev != was->st_dev || is.st_size != was->st_size ||
				       memcmp(&is.st_mtim, &was->st_mtim, sizeof(is.st_mtim)) != 0))
			return true;
	}
	return false;
}

/* -- certificates -- */

static gnutls_datum_t datum(const struct secret *s)
{
	return (gnutls_datum_t){ .data = (unsigned char *)s->text, .size = (unsigned)s->len };
}

static int refuse(struct tls_creds *c, const char *name, int code, struct ft_error *err)
{
	char path[4096];

	return err_set(err, -EINVAL, "%s: %s", tls_file_path(c, name, path, sizeof(path)), gnutls_strerror(code));
}

static int trust(struct tls_creds *c, gnutls_x509_trust_list_t list, struct ft_error *err)
{
	struct secret ca = { 0 }, crl = { 0 };
	gnutls_datum_t d;
	int n, r;

	r = read_file(c, CA_CERT, false, &ca, err);
	if (r == 0) {
		d = datum(&ca);
		n = gnutls_x509_trust_list_add_trust_mem(list, &d, NULL, GNUTLS_X509_FMT_PEM, 0, 0);
		if (n <= 0)
			r = refuse(c, CA_CERT, n < 0 ? n : GNUTLS_E_NO_CERTIFICATE_FOUND, err);
	}
	if (r == 0) {
		r = read_file(c, CA_CRL, false, &crl, err);
		d = datum(&crl);
		if (r == -ENOENT)
			r = 0;
		else if (r == 0 && (n = gnutls_x509_trust_list_add_trust_mem(list, NULL, &d, GNUTLS_X509_FMT_PEM,
									     GNUTLS_TL_VERIFY_CRL, 0)) <= 0)
			r = refuse(c, CA_CRL, n < 0 ? n : GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE, err);
	}
	secret_free(&ca);
	secret_free(&crl);
	return r;
}

/* What the peer would say of it; better said here, before anybody waits. */
static int check_own(struct tls_creds *c, gnutls_x509_trust_list_t list, const gnutls_datum_t *cert,
		     struct ft_error *err)
{
	const char *purpose = c->listener ? GNUTLS_KP_TLS_WWW_SERVER : GNUTLS_KP_TLS_WWW_CLIENT;
	gnutls_typed_vdata_st data = { .type = GNUTLS_DT_KEY_PURPOSE_OID, .data = (unsigned char *)(uintptr_t)purpose };
	gnutls_alert_description_t alert;
	gnutls_x509_crt_t *chain = NULL;
	unsigned n = 0, status = 0;
	char path[4096];
	int r;

	r = gnutls_x509_crt_list_import2(&chain, &n, cert, GNUTLS_X509_FMT_PEM, 0);
	if (r >= 0)
		r = gnutls_x509_trust_list_verify_crt2(list, chain, n, &data, 1, 0, &status, NULL);
	for (unsigned i = 0; i < n; i++)
		gnutls_x509_crt_deinit(chain[i]);
	gnutls_free(chain);
	if (r < 0)
		return refuse(c, tls_own_name(c), r, err);
	if (status == 0)
		return 0;
	tls_file_path(c, tls_own_name(c), path, sizeof(path));
	if (status & GNUTLS_CERT_PURPOSE_MISMATCH)
		return err_set(err, -EINVAL, "%s is not for a TLS %s (its key purpose)", path,
			       c->listener ? "server" : "client");
	return err_set(err, -EINVAL, "%s %s", path, tls_status_text(status, &alert));
}

static int load_pair(struct tls_creds *c, gnutls_x509_trust_list_t list, struct ft_error *err)
{
	const char *key_name = c->listener ? "server-key.pem" : "client-key.pem";
	struct secret cert = { 0 }, key = { 0 };
	gnutls_datum_t dc, dk;
	char path[4096];
	int r;

	r = read_file(c, tls_own_name(c), false, &cert, err);
	if (r == 0)
		r = read_file(c, key_name, true, &key, err);
	dc = datum(&cert);
	dk = datum(&key);
	if (r == 0)
		r = check_own(c, list, &dc, err);
	if (r == 0) {
		r = gnutls_certificate_set_x509_key_mem2(c->x509, &dc, &dk, GNUTLS_X509_FMT_PEM, NULL, 0);
		if (r == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
			r = err_set(err, -EINVAL, "%s is the key of another certificate than %s",
				    tls_file_path(c, key_name, path, sizeof(path)), tls_own_name(c));
		else
			r = r < 0 ? refuse(c, key_name, r, err) : 0;
	}
	secret_free(&cert);
	secret_free(&key);
	return r;
}

static int load_x509(struct tls_creds *c, struct ft_error *err)
{
	gnutls_x509_trust_list_t list;
	int r;

	if (gnutls_certificate_allocate_credentials(&c->x509) < 0)
		return err_set(err, -ENOMEM, "no memory for certificates");
	if (gnutls_x509_trust_list_init(&list, 0) < 0)
		return err_set(err, -ENOMEM, "no memory for certificates");
	gnutls_certificate_set_trust_list(c->x509, list, 0); /* it is theirs now */
	r = trust(c, list, err);
	return r != 0 ? r : load_pair(c, list, err);
}

/* -- keys that both sides have -- */

static bool is_digit(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool tls_find_key(const struct secret *keys, const char *user, size_t len, gnutls_datum_t *hex)
{
	const char *end = keys->text + keys->len;

	for (const char *line = keys->text, *next; line < end; line = next) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));

		next = stop ? stop + 1 : end;
		stop = stop ? stop : end;
		if ((size_t)(stop - line) <= len || memcmp(line, user, len) != 0 || line[len] != ':')
			continue;
		line += len + 1;
		while (stop > line && (stop[-1] == '\r' || stop[-1] == ' '))
			stop--;
		*hex = (gnutls_datum_t){ .data = (unsigned char *)(uintptr_t)line, .size = (unsigned)(stop - line) };
		return true;
	}
	return false;
}

static int check_key(struct tls_creds *c, const struct secret *keys, const char *user, gnutls_datum_t *hex,
		     struct ft_error *err)
{
	char path[4096];
	bool good;

	tls_file_path(c, PSK_KEYS, path, sizeof(path));
	if (!tls_find_key(keys, user, strlen(user), hex))
		return err_set(err, -ENOKEY, "%s has no key of '%.64s' (tls-psk-user)", path, user);
	good = hex->size >= KEY_DIGITS_MIN && hex->size % 2 == 0;
	for (unsigned i = 0; i < hex->size && good; i++)
		good = is_digit((char)hex->data[i]);
	if (!good)
		return err_set(err, -EINVAL, "%s: the key of '%.64s' is not of at least %u pairs of hexadecimal digits",
			       path, user, KEY_DIGITS_MIN / 2);
	return 0;
}

static int load_psk_listener(struct tls_creds *c, struct ft_error *err)
{
	gnutls_datum_t hex;
	char path[4096];

	if (!memchr(c->keys.text, ':', c->keys.len))
		return err_set(err, -EINVAL, "%s has no key: lines of NAME:DIGITS are expected",
			       tls_file_path(c, PSK_KEYS, path, sizeof(path)));
	if (gnutls_psk_allocate_server_credentials(&c->psk_listener) < 0)
		return err_set(err, -ENOMEM, "no memory for keys");
	gnutls_psk_set_server_credentials_function2(c->psk_listener, tls_psk_key);
	return c->psk_user[0] ? check_key(c, &c->keys, c->psk_user, &hex, err) : 0;
}

static int load_psk_dialler(struct tls_creds *c, struct ft_error *err)
{
	gnutls_datum_t hex;
	int r = check_key(c, &c->keys, c->psk_user, &hex, err);

	if (r == 0 && (gnutls_psk_allocate_client_credentials(&c->psk_dialler) < 0 ||
		       gnutls_psk_set_client_credentials(c->psk_dialler, c->psk_user, &hex, GNUTLS_PSK_KEY_HEX) < 0))
		r = err_set(err, -ENOMEM, "no memory for keys");
	secret_free(&c->keys);
	return r;
}

static int load_psk(struct tls_creds *c, struct ft_error *err)
{
	int r = read_file(c, PSK_KEYS, true, &c->keys, err);

	if (r != 0)
		return r;
	return c->listener ? load_psk_listener(c, err) : load_psk_dialler(c, err);
}

/* -- life -- */

int tls_creds_load(struct tls_creds **out, const struct tp_params *p, bool listener, struct ft_error *err)
{
	struct tls_creds *c = calloc(1, sizeof(*c));
	int r;

	*out = NULL;
	if (!c)
		return err_set(err, -ENOMEM, "no memory for keys");
	atomic_init(&c->refs, 1);
	c->mode = p->tls;
	c->listener = listener;
	c->dir = or_empty(p->tls_dir);
	c->psk_user = or_empty(p->tls_psk_user);
	c->peer = or_empty(p->tls_peer);
	r = c->mode == TP_TLS_X509 ? load_x509(c, err) : load_psk(c, err);
	if (r != 0) {
		tls_creds_put(c);
		err_prefix(err, "tls-dir");
		return r;
	}
	*out = c;
	return 0;
}

struct tls_creds *tls_creds_get(struct tls_creds *c)
{
	atomic_fetch_add(&c->refs, 1);
	return c;
}

void tls_creds_put(struct tls_creds *c)
{
	if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	if (c->x509)
		gnutls_certificate_free_credentials(c->x509);
	if (c->psk_listener)
		gnutls_psk_free_server_credentials(c->psk_listener);
	if (c->psk_dialler)
		gnutls_psk_free_client_credentials(c->psk_dialler);
	secret_free(&c->keys);
	free(c);
}
