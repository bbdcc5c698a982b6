/* SPDX-License-Identifier: MIT */
/* tls_files.h - folders of certificates and keys for tests of TLS, right ones and each kind of wrong one, made in a moment.  With what is said to
 * the log meanwhile.  What fails in here that a test did not ask for ends the program.  Main thread only, but for the log. */
#ifndef TEST_TLS_FILES_H
#define TEST_TLS_FILES_H

#include <gnutls/x509.h>
#include <stdbool.h>
#include "transport.h"

#define TLS_TEST_USER "guest7"
/* What must never be seen in a sentence. */
#define TLS_TEST_KEY "c0ffee0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"

struct authority {
	gnutls_x509_crt_t crt;
	gnutls_x509_privkey_t key;
};
void authority_make(struct authority *a, const char *name);
void authority_free(struct authority *a);

enum { FOR_SERVERS = 1, FOR_CLIENTS = 2, FOR_CODE = 4 };

struct certificate {
	const char *common_name, *host, *address; /* NULL: none; host and address are alternative names */
	unsigned purpose;			  /* FOR_*; 0: any */
	int from_days, to_days;			  /* valid from and to, from now; both 0: for a day to each side */
	unsigned serial;
};

/* tls_folder - new and empty; tls_folder_remove takes all that is in it. */
const char *tls_folder(char *buf, size_t size);
void tls_folder_remove(const char *dir);
void tls_write(const char *dir, const char *name, const void *text, size_t len, unsigned mode);
void tls_remove(const char *dir, const char *name);
/* tls_trust - ca-cert.pem.  tls_issue - ROLE-cert.pem and ROLE-key.pem; @role: "server", "client".  tls_revoke - ca-crl.pem with that serial. */
void tls_trust(const char *dir, const struct authority *a);
void tls_issue(const char *dir, const char *role, const struct authority *a, const struct certificate *c);
void tls_revoke(const char *dir, const struct authority *a, unsigned serial);

/* tls_good_folder - all that both sides need: certificates for 127.0.0.1 and ::1 by an authority of its own, and a key of TLS_TEST_USER. */
void tls_good_folder(const char *dir);
/* tls_settings - the same as settings of a session, "tls=...,tls-dir=..."; the secondary's user is the primary's. */
const char *tls_settings(enum tp_tls mode, const char *dir, char *buf, size_t size);
/* tls_params - @p with @mode and the rest of it. */
void tls_params(struct tp_params *p, enum tp_tls mode, const char *dir);

/* tls_hear - from now on lines of the log are kept; none may have the key in it.  tls_heard - one of them has @part, or will soon. */
void tls_hear(void);
bool tls_heard(const char *part);
const char *tls_all_heard(void);

#endif
