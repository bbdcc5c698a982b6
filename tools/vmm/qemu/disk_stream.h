/* SPDX-License-Identifier: MIT */
/* disk_stream.h - what ftqemu puts into libft's side stream, and into the journal of the secondary: the writes of a machine's disks.
 *
 * Records of a head of 16 octets, least significant octet first, and for some a payload:
 *
 *	 0  1  kind
 *	 1  1  disk       index; the disks are named in the identity, in this order
 *	 2  2  0
 *	 4  4  length     octets of the disk (at most DISK_RECORD_MAX, more than 0), or of the payload
 *	 8  8  offset     in the disk
 *
 *	kind 1 DATA     `length` octets follow, they are to be at `offset`
 *	kind 2 ZERO     `length` zeros are to be at `offset`; nothing follows
 *	kind 3 BASE     the first record of a full sync: 16 octets follow, the name of the copy.  offset 0: everything comes, and the copy
 *	                gets that name.  offset 1: only what changed in the copy of that name comes.
 *	kind 4 COMMIT   in the journal only: 24 octets follow: the octets since the last COMMIT, their XXH3 digest (64 bit), epoch
 *
 * A record belongs to one epoch whole.  This is between two ftqemu, no part of libft's protocol. */
#ifndef FT_QEMU_DISK_STREAM_H
#define FT_QEMU_DISK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "util.h"

#define DISK_HEAD 16u
#define DISK_RECORD_MAX (UINT32_C(1) << 30)
#define DISK_NAME 16u	/* octets of the name of a copy */
#define DISK_COMMIT 24u /* octets of a commit's payload */
#define DISKS_MAX 16u

enum disk_kind { DISK_DATA = 1, DISK_ZERO = 2, DISK_BASE = 3, DISK_COMMIT_MARK = 4 };

void disk_head(uint8_t head[DISK_HEAD], enum disk_kind kind, unsigned disk, uint32_t length, uint64_t offset);
void disk_put64(uint8_t *to, uint64_t v);
uint64_t disk_get64(const uint8_t *from);

/* The reader takes octets in pieces of any size.  What a callback returns other than 0 ends disk_stream_read(), and the
 * reader with it. */
struct disk_stream_ops {
	int (*data)(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *err); /* a piece */
	int (*zero)(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *err);
	int (*base)(void *user, const uint8_t name[DISK_NAME], bool changes_only, struct ft_error *err);
	/* NULL: commits are refused. */
	int (*commit)(void *user, const uint8_t payload[DISK_COMMIT], struct ft_error *err);
};

struct disk_stream {
	const struct disk_stream_ops *ops;
	void *user;
	const uint64_t *size; /* of each disk */
	unsigned nr;
	/* the record under way */
	uint8_t head[DISK_HEAD], small[DISK_COMMIT];
	size_t have;
	uint64_t left, offset; /* of its payload */
	unsigned disk;
	enum disk_kind kind;
};

void disk_stream_init(struct disk_stream *s, const struct disk_stream_ops *ops, void *user, const uint64_t *size, unsigned nr);
/* -EPROTO: not what a sound ftqemu writes. */
int disk_stream_read(struct disk_stream *s, const void *buf, size_t len, struct ft_error *err);
bool disk_stream_is_between(const struct disk_stream *s); /* no record is half here */

#endif
