/* SPDX-License-Identifier: MIT */
/* frames.h - frames on a stream socket, each behind its length (four octets, most significant first), as QEMU's -netdev stream has them.
 * Nothing blocks.  One thread at a time for each direction; the owner's lock where there are two. */
#ifndef FT_QEMU_FRAMES_H
#define FT_QEMU_FRAMES_H

#include <stdbool.h>
#include <stdint.h>
#include "uplink.h"

struct frames_in {
	size_t have;
	uint8_t buf[4 + UPLINK_FRAME_MAX];
};

struct frames_out {
	size_t at, len; /* what is left of a frame that went in part */
	uint8_t buf[4 + UPLINK_FRAME_MAX];
};

/* frames_read - the next whole frame: its length, and *@frame points to it until the next call.  0: not yet.  -EPIPE: the end;
 * -EPROTO: a length that cannot be. */
int frames_read(struct frames_in *in, int fd, const uint8_t **frame);
/* frames_write - one frame: 1 when it is taken (at least in part; the rest goes with frames_flush()), 0 when there is no room. -EPIPE: the end. */
int frames_write(struct frames_out *out, int fd, const void *frame, size_t len);
/* frames_flush - 1: nothing is left over; 0: something is; -EPIPE. */
int frames_flush(struct frames_out *out, int fd);

#endif
