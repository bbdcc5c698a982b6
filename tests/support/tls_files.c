/* SPDX-License-Identifier: MIT */
/* tls_files.c - see tls_files.h. */
#include "tls_files.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ft/ft.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"

#define DAY (24 * 3600)
#define GNUTLS(call)                                                                                                   \
	do {                                                                                                           \
		int gnutls_ret_ = (call);                                                                              \
		if (gnutls_ret_ < 0)                                                                                   \
			DIE("%s: %s", #call, gnutls_strerror(gnutls_ret_));                                            \
	} while (0)

/* -- files -- */

const char *tls_folder(char *buf, size_t size)
{
	snprintf(buf, size, "/tmp/ft-tls-XXXXXX");
	CHECK(mkdtemp(buf), "no folder in /tmp");
	return buf;
}

void tls_folder_remove(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			tls_remove(dir, e->d_name);
	if (d)
		closedir(d);
	rmdir(dir);
}

void tls_write(const char *dir, const char *name, const void *text, size_t len, unsigned mode)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path); /* another file, also where time has not moved on */
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, text, len) == (ssize_t)len && fchmod(fd, mode) == 0, "cannot write %s", path);
	close(fd);
}

void tls_remove(const char *dir, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	CHECK(unlink(path) == 0, "cannot remove %s", path);
}

/* -- certificates -- */

static gnutls_x509_privkey_t new_key(void)
{
	gnutls_x509_privkey_t key;

	GNUTLS(gnutls_x509_privkey_init(&key));
	GNUTLS(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
	return key;
}

static gnutls_x509_crt_t new_crt(const char *name, gnutls_x509_privkey_t key, unsigned serial, int from, int to)
{
	unsigned char number[4] = { (unsigned char)(serial >> 24 & 0x7f), (unsigned char)(serial >> 16),
				    (unsigned char)(serial >> 8), (unsigned char)serial };
	gnutls_x509_crt_t crt;

	GNUTLS(gnutls_x509_crt_init(&crt));
	GNUTLS(gnutls_x509_crt_set_version(crt, 3));
	GNUTLS(gnutls_x509_crt_set_key(crt, key));
	GNUTLS(gnutls_x509_crt_set_serial(crt, number, sizeof(number)));
	GNUTLS(gnutls_x509_crt_set_activation_time(crt, time(NULL) + from * DAY));
	GNUTLS(gnutls_x509_crt_set_expiration_time(crt, time(NULL) + to * DAY));
	if (name)
		GNUTLS(gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name,
						     (unsigned)strlen(name)));
	return crt;
}

void authority_make(struct authority *a, const char *name)
{
	a->key = new_key();
	a->crt = new_crt(name, a->key, 1, -900, 900);
	GNUTLS(gnutls_x509_crt_set_basic_constraints(a->crt, 1, -1));
	GNUTLS(gnutls_x509_crt_set_key_usage(a->crt, GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN));
	GNUTLS(gnutls_x509_crt_sign2(a->crt, a->crt, a->key, GNUTLS_DIG_SHA256, 0));
}

void authority_free(struct authority *a)
{
	gnutls_x509_crt_deinit(a->crt);
	gnutls_x509_privkey_deinit(a->key);
}

static void write_crt(const char *dir, const char *name, gnutls_x509_crt_t crt)
{
	gnutls_datum_t pem;

	GNUTLS(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem));
	tls_write(dir, name, pem.data, pem.size, 0644);
	gnutls_free(pem.data);
}

void tls_trust(const char *dir, const struct authority *a)
{
	write_crt(dir, "ca-cert.pem", a->crt);
}

static void set_names(gnutls_x509_crt_t crt, const struct certificate *c)
{
	unsigned char raw[16];
	bool v6 = c->address && strchr(c->address, ':');

	if (c->host)
		GNUTLS(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, c->host, (unsigned)strlen(c->host),
							    0));
	if (c->address) {
		CHECK(inet_pton(v6 ? AF_INET6 : AF_INET, c->address, raw) == 1, "'%s'", c->address);
		GNUTLS(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, raw, v6 ? 16 : 4,
							    GNUTLS_FSAN_APPEND));
	}
	if (c->address && strcmp(c->address, "127.0.0.1") == 0) {
		raw[15] = 1;
		memset(raw, 0, 15);
		GNUTLS(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, raw, 16, GNUTLS_FSAN_APPEND));
	}
}

static void set_purpose(gnutls_x509_crt_t crt, unsigned purpose)
{
	if (purpose & FOR_SERVERS)
		GNUTLS(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0));
	if (purpose & FOR_CLIENTS)
		GNUTLS(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0));
	if (purpose & FOR_CODE)
		GNUTLS(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_CODE_SIGNING, 0));
}

void tls_issue(const char *dir, const char *role, const struct authority *a, const struct certificate *c)
{
	gnutls_x509_privkey_t key = new_key();
	bool now = c->from_days == 0 && c->to_days == 0;
	gnutls_x509_crt_t crt =
		new_crt(c->common_name, key, c->serial ? c->serial : 7, now ? -1 : c->from_days, now ? 1 : c->to_days);
	gnutls_datum_t pem;
	char name[64];

	set_names(crt, c);
	set_purpose(crt, c->purpose);
	GNUTLS(gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_DIGITAL_SIGNATURE));
	GNUTLS(gnutls_x509_crt_sign2(crt, a->crt, a->key, GNUTLS_DIG_SHA256, 0));
	snprintf(name, sizeof(name), "%s-cert.pem", role);
	write_crt(dir, name, crt);
	GNUTLS(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem));
	snprintf(name, sizeof(name), "%s-key.pem", role);
	tls_write(dir, name, pem.data, pem.size, 0600);
	gnutls_free(pem.data);
	gnutls_x509_crt_deinit(crt);
	gnutls_x509_privkey_deinit(key);
}

void tls_revoke(const char *dir, const struct authority *a, unsigned serial)
{
	unsigned char number[4] = { 0, 0, (unsigned char)(serial >> 8), (unsigned char)serial };
	gnutls_x509_crl_t crl;
	gnutls_datum_t pem;

	GNUTLS(gnutls_x509_crl_init(&crl));
	GNUTLS(gnutls_x509_crl_set_version(crl, 2));
	GNUTLS(gnutls_x509_crl_set_this_update(crl, time(NULL) - DAY));
	GNUTLS(gnutls_x509_crl_set_next_update(crl, time(NULL) + 30 * DAY));
	GNUTLS(gnutls_x509_crl_set_crt_serial(crl, number, sizeof(number), time(NULL) - DAY));
	GNUTLS(gnutls_x509_crl_set_number(crl, "\001", 1));
	GNUTLS(gnutls_x509_crl_sign2(crl, a->crt, a->key, GNUTLS_DIG_SHA256, 0));
	GNUTLS(gnutls_x509_crl_export2(crl, GNUTLS_X509_FMT_PEM, &pem));
	tls_write(dir, "ca-crl.pem", pem.data, pem.size, 0644);
	gnutls_free(pem.data);
	gnutls_x509_crl_deinit(crl);
}

void tls_good_folder(const char *dir)
{
	struct certificate c = { "standby", "standby.test", "127.0.0.1", FOR_SERVERS | FOR_CLIENTS, .serial = 2 };
	static const char keys[] = "other:00112233445566778899aabbccddeeff\n" TLS_TEST_USER ":" TLS_TEST_KEY "\n";
	struct authority a;

	authority_make(&a, "tests");
	tls_trust(dir, &a);
	tls_issue(dir, "server", &a, &c);
	c.common_name = "primary";
	c.host = "primary.test";
	c.serial = 3;
	tls_issue(dir, "client", &a, &c);
	tls_write(dir, "keys.psk", keys, sizeof(keys) - 1, 0600);
	authority_free(&a);
}

const char *tls_settings(enum tp_tls mode, const char *dir, char *buf, size_t size)
{
	snprintf(buf, size, "tls=%s,tls-dir=%s%s", mode == TP_TLS_PSK ? "psk" : "x509", dir,
		 mode == TP_TLS_PSK ? ",tls-psk-user=" TLS_TEST_USER : "");
	return buf;
}

void tls_params(struct tp_params *p, enum tp_tls mode, const char *dir)
{
	p->tls = mode;
	p->tls_dir = dir;
	p->tls_psk_user = mode == TP_TLS_PSK ? TLS_TEST_USER : "";
	p->tls_peer = "";
}

/* -- the log -- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char heard[65536];

static void hear(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	size_t at;

	(void)user, (void)level, (void)module;
	pthread_mutex_lock(&lock);
	CHECK(!strcasestr(msg, TLS_TEST_KEY), "a key is in the log: %s", msg);
	at = strlen(heard);
	snprintf(heard + at, sizeof(heard) - at, "%s\n", msg);
	pthread_mutex_unlock(&lock);
}

void tls_hear(void)
{
	pthread_mutex_lock(&lock);
	heard[0] = '\0';
	pthread_mutex_unlock(&lock);
	ft_log_set(hear, NULL, FT_LOG_DEBUG);
}

bool tls_heard(const char *part)
{
	uint64_t deadline = deadline_in_ms(10000);
	bool yes;

	for (;;) {
		pthread_mutex_lock(&lock);
		yes = strstr(heard, part) != NULL;
		pthread_mutex_unlock(&lock);
		if (yes || now_ns() >= deadline)
			return yes;
		usleep(1000);
	}
}

const char *tls_all_heard(void)
{
	return heard;
}
