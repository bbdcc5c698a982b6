/* SPDX-License-Identifier: MIT */
/* tls.h - TLS 1.3 over one socket that does not block.  Private to this folder; GnuTLS is known to tls*.c alone.
 * docs/security.md has what it is worth and what the folder holds, docs/decisions/024 why it is made so.
 *
 * Threads: one sends, one receives, at the same time; the handshake is done by one before.  No call waits. */
#ifndef FT_TRANSPORT_TLS_H
#define FT_TRANSPORT_TLS_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "err.h"
#include "transport.h"

struct tls_creds; /* what was read from a folder, for one role; counted */
struct tls;

/* tls_creds_load - read the folder, and check all that can be checked on this side: what is missing, expired, signed by another authority, for
 * another purpose, or a key that everybody may read, is refused with a sentence that names the file.  The strings of @p stay the caller's, and
 * must live as long. */
int tls_creds_load(struct tls_creds **out, const struct tp_params *p, bool listener, struct ft_error *err);
struct tls_creds *tls_creds_get(struct tls_creds *c);
void tls_creds_put(struct tls_creds *c); /* NULL is harmless */
/* tls_creds_changed - a file of the folder is not the one that was read. */
bool tls_creds_changed(const struct tls_creds *c);

/* tls_open - over @fd, which stays the caller's.  @host: whom a dialler dials, by name or address; NULL: a listener. */
int tls_open(struct tls **out, struct tls_creds *c, int fd, const char *host, struct ft_error *err);
void tls_close(struct tls *t); /* frees, says nothing; NULL is harmless */

/* tls_handshake - a step.  0: it is done and the peer is who it must be; -EAGAIN: again when the socket is ready for *@events (of poll());
 * else the peer was told, and the sentence says what is wrong and where. */
int tls_handshake(struct tls *t, short *events, struct ft_error *err);
/* tls_plain_peer - after a handshake that failed: the peer began with a preamble of its own, without TLS. */
bool tls_plain_peer(const struct tls *t);
/* tls_about - after the handshake: version, cipher, and who the peer is. */
const char *tls_about(const struct tls *t);

/* tls_send - octets of @iov that were encrypted, at most one record of them.  Their memory may be used again, but they are with the kernel only
 * when tls_unsent() is false: until then call it again, with no parts (0) or with what follows.  -EAGAIN: the socket is full, nothing was
 * taken; another error has its sentence in @why. */
ssize_t tls_send(struct tls *t, const struct iovec *iov, unsigned nr, struct ft_error *why);
bool tls_unsent(const struct tls *t);
/* tls_room - the socket takes at least the beginning of a record. */
bool tls_room(const struct tls *t);
/* tls_bye - nothing more will be sent.  As far as it goes. */
void tls_bye(struct tls *t);

/* tls_receive - as readv(): octets, 0 at the end of the stream, -EAGAIN, or another error with its sentence in @why. */
ssize_t tls_receive(struct tls *t, const struct iovec *iov, unsigned nr, struct ft_error *why);
/* tls_pending - tls_receive() has something that the socket does not tell of. */
bool tls_pending(const struct tls *t);

#endif
