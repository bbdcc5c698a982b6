/* SPDX-License-Identifier: MIT */
/* nbd_server.h - the NBD end that QEMU's mirror of one disk writes to: fixed newstyle, simple replies, one client and that only
 * once, writes only.  A request is answered when its callback has returned, so a callback that waits lets the guest's write
 * wait.  One that breaks the protocol, or reads (there is nothing to read: a mirror with sync=none never does), loses
 * the connection.
 *
 * One thread of its own; nbd_server_open(), nbd_server_close(): any thread, one at a time. */
#ifndef FT_QEMU_NBD_SERVER_H
#define FT_QEMU_NBD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include "util.h"

#define NBD_PAYLOAD_MAX (UINT32_C(32) << 20) /* of one write; told to the client */

struct nbd_export {
	const char *name; /* the client has to ask for this one */
	uint64_t size;
	/* [server's thread] [@offset, @offset + @len) lies within the size, @len > 0.  Negative errno: the client is told EIO. */
	int (*write)(void *user, uint64_t offset, const void *buf, uint32_t len);
	int (*zero)(void *user, uint64_t offset, uint32_t len); /* of a trim too */
	/* [server's thread] The client has left, or was thrown out: once, also for one that never came; not because of nbd_server_close(). */
	void (*gone)(void *user, const char *why);
	void *user;
};

/* nbd_serve - one client from handshake to end, octets from @in, answers to @out.  *@why: what ended it; 0 after an orderly
 * goodbye.  For the server's thread, and for tests. */
int nbd_serve(int in, int out, const struct nbd_export *export, struct ft_error *why);

struct nbd_server;

/* nbd_server_open - listen at @path.  Copies what it needs of @export. */
int nbd_server_open(struct nbd_server **out, const char *path, const struct nbd_export *export, struct ft_error *err);
/* nbd_server_close - end the connection and the thread; callbacks must be able to return.  NULL is harmless. */
void nbd_server_close(struct nbd_server *s);

#endif
