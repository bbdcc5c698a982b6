/* SPDX-License-Identifier: MIT */
/* tls.c - octets through TLS: sessions of GnuTLS over sockets that do not block, with the waits left to the caller.
 *
 * Records carry up to 16 KiB.  Parts shorter than that are copied together first: a record for each page of 4 KiB cost a third of the throughput.
 * GnuTLS allocates each record's memory itself; docs/decisions/024.
 *
 * Must hold:
 *  L1  what tls_send() has taken is encrypted, and goes out before anything else; it is lost only with the connection.
 *  L2  no octet is given out of a record whose seal is broken, and none after the first error.
 *  L3  nothing in here waits.
 * Threads: tls.h. */
#include "tls_private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tcp.h"

/* TLS 1.2 and older are nowhere needed: both ends are ft.  A key alone is no forward secrecy, so it goes with a key exchange.  The order of ciphers is
 * ours: GnuTLS' own puts ChaCha20 in front of AES-128, and has AES-256 not with keys; here ChaCha20 is an eighth as fast (gnutls-cli
 * --benchmark-ciphers). */
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305"
#define PRIORITY_PSK PRIORITY ":-KX-ALL:+ECDHE-PSK:+DHE-PSK"

/* -- the socket: called by GnuTLS, with the lock -- */

static ssize_t push(gnutls_transport_ptr_t p, const giovec_t *iov, int nr)
{
	struct tls *t = p;
	struct msghdr m = { .msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)nr };
	ssize_t n = sendmsg(t->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		t->push_errno = errno;
	return n;
}

static void note_first(struct tls *t, const uint8_t *p, size_t n)
{
	while (n-- > 0 && t->nr_first < sizeof(t->first))
		t->first[t->nr_first++] = *p++;
}

/* GnuTLS asks for a record's head, then for the record: with the latter comes the head of the next one, in the same call. */
static ssize_t pull(gnutls_transport_ptr_t p, void *buf, size_t size)
{
	struct tls *t = p;
	struct iovec v[2] = { { buf, size }, { t->head, sizeof(t->head) } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = size > TLS_HEAD ? 2 : 1 };
	ssize_t n;

	if (t->nr_head > 0) {
		n = (ssize_t)(size < t->nr_head ? size : t->nr_head);
		memcpy(buf, t->head, (size_t)n);
		t->nr_head -= (unsigned)n;
		memmove(t->head, t->head + n, t->nr_head);
		return n;
	}
	n = recvmsg(t->fd, &m, MSG_DONTWAIT);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		t->pull_errno = errno;
	if (n > 0 && t->nr_first < sizeof(t->first))
		note_first(t, buf, (size_t)n < size ? (size_t)n : size);
	if (n > (ssize_t)size) {
		t->nr_head = (unsigned)((size_t)n - size);
		n = (ssize_t)size;
	}
	return n;
}

/* -- life -- */

static int set_credentials(struct tls *t)
{
	struct tls_creds *c = t->creds;

	if (c->mode == TP_TLS_X509)
		return gnutls_credentials_set(t->session, GNUTLS_CRD_CERTIFICATE, c->x509);
	return gnutls_credentials_set(t->session, GNUTLS_CRD_PSK,
				      c->listener ? (void *)c->psk_listener : (void *)c->psk_dialler);
}

int tls_open(struct tls **out, struct tls_creds *c, int fd, const char *host, struct ft_error *err)
{
	unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;
	struct tls *t = calloc(1, sizeof(*t));
	int r;

	*out = NULL;
	if (!t)
		return err_set(err, -ENOMEM, "no memory for TLS");
	pthread_mutex_init(&t->lock, NULL);
	t->creds = tls_creds_get(c);
	t->fd = fd;
	/* an address's scope is of this host, and in no certificate */
	snprintf(t->host, sizeof(t->host), "%.*s", host ? (int)strcspn(host, "%") : 0, host ? host : "");
	r = gnutls_init(&t->session, flags | (host ? GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT : GNUTLS_SERVER));
	if (r == 0)
		r = gnutls_priority_set_direct(t->session, c->mode == TP_TLS_X509 ? PRIORITY : PRIORITY_PSK, NULL);
	if (r == 0)
		r = set_credentials(t);
	if (r != 0) {
		tls_close(t);
		return err_set(err, -ENOMEM, "cannot set up TLS: %s", gnutls_strerror(r));
	}
	if (!host && c->mode == TP_TLS_X509)
		gnutls_certificate_server_set_request(t->session, GNUTLS_CERT_REQUIRE);
	gnutls_transport_set_ptr(t->session, t);
	gnutls_transport_set_vec_push_function(t->session, push);
	gnutls_transport_set_pull_function(t->session, pull);
	tls_peer_watch(t);
	*out = t;
	return 0;
}

void tls_close(struct tls *t)
{
	if (!t)
		return;
	if (t->packet)
		gnutls_packet_deinit(t->packet);
	if (t->session)
		gnutls_deinit(t->session);
	tls_creds_put(t->creds);
	pthread_mutex_destroy(&t->lock);
	explicit_bzero(t->gather, sizeof(t->gather));
	free(t);
}

/* -- the handshake -- */

static void describe(struct tls *t)
{
	char who[160];

	snprintf(who, sizeof(who), "%.150s", t->about);
	snprintf(t->about, sizeof(t->about), "%s, %s%s%s%s",
		 gnutls_protocol_get_name(gnutls_protocol_get_version(t->session)),
		 gnutls_cipher_get_name(gnutls_cipher_get(t->session)), who[0] ? ", the peer is '" : "", who,
		 who[0] ? "'" : "");
}

static void tell_peer(struct tls *t, int code)
{
	int level = GNUTLS_AL_FATAL, alert = t->alert;

	if (tls_plain_peer(t) || code == GNUTLS_E_FATAL_ALERT_RECEIVED)
		return;
	if (alert == 0)
		alert = gnutls_error_to_alert(code, &level);
	gnutls_alert_send(t->session, GNUTLS_AL_FATAL, (gnutls_alert_description_t)alert);
}

int tls_handshake(struct tls *t, short *events, struct ft_error *err)
{
	int r;

	do
		r = gnutls_handshake(t->session);
	while (r != 0 && r != GNUTLS_E_AGAIN && !gnutls_error_is_fatal(r));
	if (r == GNUTLS_E_AGAIN) {
		*events = gnutls_record_get_direction(t->session) ? POLLOUT : POLLIN;
		return -EAGAIN;
	}
	if (r == 0)
		r = tls_peer_known(t);
	if (r == 0) {
		describe(t);
		return 0;
	}
	tell_peer(t, r);
	return tls_explain(t, r, err);
}

bool tls_plain_peer(const struct tls *t)
{
	ft_be64 magic = to_be64(TCP_MAGIC);

	return t->nr_first == sizeof(t->first) && memcmp(t->first, &magic, sizeof(t->first)) == 0;
}

const char *tls_about(const struct tls *t)
{
	return t->about;
}

/* -- sending -- */

bool tls_unsent(const struct tls *t)
{
	return t->unsent > 0;
}

bool tls_room(const struct tls *t)
{
	struct pollfd p = { .fd = t->fd, .events = POLLOUT };

	return poll(&p, 1, 0) > 0;
}

/* 0: it is with the kernel; -EAGAIN: GnuTLS has it encrypted. */
static int give(struct tls *t, const void *data, size_t len, struct ft_error *why)
{
	ssize_t n;

	pthread_mutex_lock(&t->lock);
	do
		n = gnutls_record_send(t->session, data, len);
	while (n == GNUTLS_E_INTERRUPTED);
	pthread_mutex_unlock(&t->lock);
	if (n == GNUTLS_E_AGAIN)
		return -EAGAIN;
	return n < 0 ? tls_explain(t, (int)n, why) : 0;
}

/* The next record: the first part as it is if that is enough, else parts copied together. */
static const void *next_record(struct tls *t, const struct iovec *iov, unsigned nr, size_t *len)
{
	*len = 0;
	if (nr == 1 || iov[0].iov_len >= TLS_RECORD) {
		*len = iov[0].iov_len < TLS_RECORD ? iov[0].iov_len : TLS_RECORD;
		return iov[0].iov_base;
	}
	for (unsigned i = 0; i < nr && *len < TLS_RECORD; i++) {
		size_t n = iov[i].iov_len < TLS_RECORD - *len ? iov[i].iov_len : TLS_RECORD - *len;

		memcpy(t->gather + *len, iov[i].iov_base, n);
		*len += n;
	}
	return t->gather;
}

ssize_t tls_send(struct tls *t, const struct iovec *iov, unsigned nr, struct ft_error *why)
{
	const void *data;
	size_t len;
	int r;

	if (t->unsent > 0) {
		r = give(t, NULL, 0, why);
		if (r != 0)
			return r;
		t->unsent = 0;
	}
	if (nr == 0)
		return 0;
	data = next_record(t, iov, nr, &len);
	r = give(t, data, len, why);
	if (r == -EAGAIN)
		t->unsent = len;
	return r == 0 || r == -EAGAIN ? (ssize_t)len : r;
}

void tls_bye(struct tls *t)
{
	pthread_mutex_lock(&t->lock);
	gnutls_bye(t->session, GNUTLS_SHUT_WR);
	pthread_mutex_unlock(&t->lock);
}

/* -- receiving -- */

/* As readv() for the next record: > 0, 0 at the end, or GnuTLS' code. */
static ssize_t next_packet(struct tls *t)
{
	gnutls_datum_t d;
	ssize_t n;

	if (t->packet)
		gnutls_packet_deinit(t->packet);
	t->packet = NULL;
	pthread_mutex_lock(&t->lock);
	do
		n = gnutls_record_recv_packet(t->session, &t->packet);
	while (n < 0 && n != GNUTLS_E_AGAIN && !gnutls_error_is_fatal((int)n));
	pthread_mutex_unlock(&t->lock);
	if (n <= 0)
		return n;
	gnutls_packet_get(t->packet, &d, NULL);
	t->at = d.data;
	t->left = d.size;
	return n;
}

/* What is left of a record, else the next one; false: there is none now, or never again (t->eof, t->ended). */
static bool have_octets(struct tls *t)
{
	ssize_t n;

	if (t->left > 0)
		return true;
	if (t->eof || t->ended != 0)
		return false;
	n = next_packet(t);
	t->eof = n == 0;
	t->ended = n < 0 && n != GNUTLS_E_AGAIN ? (int)n : 0;
	return n > 0;
}

static size_t take(struct tls *t, void *to, size_t want)
{
	size_t got = 0;

	while (got < want && have_octets(t)) {
		size_t n = want - got < t->left ? want - got : t->left;

		memcpy((uint8_t *)to + got, t->at, n);
		t->at += n;
		t->left -= n;
		got += n;
	}
	return got;
}

static ssize_t why_nothing(struct tls *t, struct ft_error *why)
{
	if (t->eof)
		return 0;
	if (t->ended == 0)
		return -EAGAIN;
	/* an end without a word, by a peer whose process has died or whose host has */
	if (t->ended == GNUTLS_E_PREMATURE_TERMINATION && t->pull_errno == 0)
		return 0;
	return tls_explain(t, t->ended, why);
}

ssize_t tls_receive(struct tls *t, const struct iovec *iov, unsigned nr, struct ft_error *why)
{
	size_t got = 0;

	for (unsigned i = 0; i < nr; i++) {
		size_t n = take(t, iov[i].iov_base, iov[i].iov_len);

		got += n;
		if (n < iov[i].iov_len)
			break;
	}
	return got > 0 ? (ssize_t)got : why_nothing(t, why);
}

bool tls_pending(const struct tls *t)
{
	return t->left > 0 || t->eof || t->ended != 0;
}
