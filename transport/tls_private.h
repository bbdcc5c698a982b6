/* SPDX-License-Identifier: MIT */
/* tls_private.h - TLS over a socket, as tls.c (octets), tls_creds.c (folders) and tls_peer.c (who the peer is, and what went wrong) see it.
 * Nobody else includes it. */
#ifndef FT_TRANSPORT_TLS_PRIVATE_H
#define FT_TRANSPORT_TLS_PRIVATE_H

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include "address.h"
#include "tls.h"

#define TLS_RECORD 16384u /* octets that one record carries at most */
#define TLS_HEAD 5u	  /* octets in front of each record */
#define TLS_FILES 4u

/* A file in memory of its own, which no core dump has and which is wiped at the end. */
struct secret {
	char *text; /* NULL: none */
	size_t len, room;
};

struct tls_file {
	const char *name;
	struct stat seen; /* st_ino 0: it was not there */
};

struct tls_creds {
	_Atomic unsigned refs;
	enum tp_tls mode;
	bool listener;
	const char *dir, *psk_user, *peer; /* "" where not set */
	struct tls_file file[TLS_FILES];
	unsigned nr_files;
	gnutls_certificate_credentials_t x509;
	gnutls_psk_server_credentials_t psk_listener;
	gnutls_psk_client_credentials_t psk_dialler;
	struct secret keys; /* listener: keys.psk */
};

struct tls {
	gnutls_session_t session;
	struct tls_creds *creds;
	int fd;
	char host[HOST_MAX]; /* dialler */

	/* A session may be used by a sender and a receiver at once, GnuTLS says, but not where it changes its keys, which it does by itself after 2^24
	 * records: so one at a time.  Innermost; held for one record, and no wait in there. */
	pthread_mutex_t lock;
	int push_errno, pull_errno; /* guarded by lock: why the socket failed */
	uint8_t first[TLS_HEAD];    /* what the peer began with */
	unsigned nr_first;
	uint8_t head[TLS_HEAD]; /* guarded by lock: read behind a record: the begin of the next */
	unsigned nr_head;

	/* the sender's */
	size_t unsent; /* octets of the record that GnuTLS has encrypted and not got rid of */
	uint8_t gather[TLS_RECORD];

	/* the receiver's */
	gnutls_packet_t packet;
	const uint8_t *at; /* in there */
	size_t left;
	int ended; /* GnuTLS' code of the end; 0: it goes on */
	bool eof;

	/* of the handshake */
	gnutls_alert_description_t alert; /* to be sent, with why */
	struct ft_error why;		  /* code 0: GnuTLS' own error says it */
	bool known;			  /* the peer has proved who it is */
	char user[64];			  /* psk, listener: whom the peer says it is */
	bool user_unknown;
	char about[256];
};

/* -- tls_creds.c -- */

/* tls_file_path - of a file in the folder, for sentences. */
const char *tls_file_path(const struct tls_creds *c, const char *name, char *buf, size_t size);
/* tls_own_name - of our certificate's file. */
const char *tls_own_name(const struct tls_creds *c);
/* tls_find_key - the hexadecimal digits of a user's key; false: it has none. */
bool tls_find_key(const struct secret *keys, const char *user, size_t len, gnutls_datum_t *hex);

/* -- tls_peer.c -- */

/* tls_peer_watch - from now on the handshake of @t asks who the peer is. */
void tls_peer_watch(struct tls *t);
/* tls_peer_known - after a handshake that GnuTLS is content with: is it? */
int tls_peer_known(struct tls *t);
/* tls_psk_key - GnuTLS asks for the key of a user. */
int tls_psk_key(gnutls_session_t session, const gnutls_datum_t *user, gnutls_datum_t *key);
/* tls_status_text - what is wrong with a certificate, in words; *@alert is what the one who showed it is told. */
const char *tls_status_text(unsigned status, gnutls_alert_description_t *alert);
/* tls_explain - a sentence and a negative errno for what GnuTLS calls @code. */
int tls_explain(struct tls *t, int code, struct ft_error *err);

#endif
