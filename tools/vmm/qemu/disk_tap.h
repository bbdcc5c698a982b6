/* SPDX-License-Identifier: MIT */
/* disk_tap.h - the primary's side of its disks: which blocks the secondary does not have, and the writes of the epochs that it is to get.
 *
 * Writes come in from the mirrors (tap_write(), tap_zero(): done on the guest's own disk already), octets of disk_stream.h go out
 * (tap_read()).  Off, only a bitmap of blocks of 64 KiB is kept.  On, a full sync copies the dirty blocks, each read from the disk itself; a write
 * to a dirty block only keeps it dirty, one to a clean block is queued with its octets; what is queued belongs to an epoch and counts as
 * dirty again unless that epoch is acknowledged.
 *
 * The order that makes this right: bits are cleared before their blocks are read; if a write to one of them comes in before the read is done they are
 * set again and what was read of it, or behind it, is not used; else what was read goes to the end of the queue, so older writes are before it and later ones
 * behind.  A read that is done before the cut of an epoch has no later write in it, since a pause waits for the writes under way.
 *
 * All functions: any thread, one lock inside; tap_read() on one thread at a time. */
#ifndef FT_QEMU_DISK_TAP_H
#define FT_QEMU_DISK_TAP_H

#include <stdbool.h>
#include <stdint.h>
#include "disk_stream.h"
#include "util.h"

#define TAP_BLOCK (UINT64_C(64) << 10)
#define TAP_READ_MAX (UINT32_C(1) << 20) /* of one read of the disk */

struct tap;

struct tap_config {
	const uint64_t *size; /* of each disk */
	unsigned nr;
	uint64_t hold_bytes; /* half full an end of the epoch is asked for; full the guest's writes wait; in a full sync they are slowed when it gets
			      * through and more is left than this */
	/* [thread of tap_read() or tap_settle(), no lock held] What is at [@offset, @offset + *@len) of @disk, which lies within it: *@len may be made
	 * shorter, to a multiple of TAP_BLOCK; *@zero: it is all zeros.  Else at most TAP_READ_MAX octets are put into @buf. */
	int (*read)(void *user, unsigned disk, uint64_t offset, uint32_t *len, void *buf, bool *zero, struct ft_error *err);
	/* [thread of tap_write(), lock held: must not call tap_] An epoch should end.  May be NULL. */
	void (*want_cut)(void *user);
	void *user;
};

int tap_open(struct tap **out, const struct tap_config *config, struct ft_error *err);
void tap_close(struct tap *t);

/* ---- from the mirrors ---- */
int tap_write(struct tap *t, unsigned disk, uint64_t offset, const void *buf, uint32_t len);
int tap_zero(struct tap *t, unsigned disk, uint64_t offset, uint32_t len);
/* tap_broken - writes of a disk are missed from now on: what is copied must be copied anew.  @why is said by the next tap_read(). */
void tap_broken(struct tap *t, const char *why);

/* ---- from the session ---- */

/* tap_begin - a full sync begins; the mirrors are in place.  Only what changed is sent if the secondary can have the rest: it
 * acknowledged an epoch of this copy, and tap_lost_base() was not called. */
int tap_begin(struct tap *t, struct ft_error *err);
/* tap_off - nothing is held or sent any more, the bitmap is kept.  Unless tap_broken() was called, tap_begin() may go on from it. */
void tap_off(struct tap *t);
/* tap_lost_base - the secondary does not have the copy (it is another process): everything has to be sent. */
void tap_lost_base(struct tap *t);
/* tap_pausing - between true and false the guest stands still or is about to: its writes never wait, and the disk is not read. */
void tap_pausing(struct tap *t, bool pausing);
/* tap_settle - before the last pause of a full sync: read what is dirty yet, the guest's writes wait meanwhile.  -ETIMEDOUT. */
int tap_settle(struct tap *t, uint64_t deadline, struct ft_error *err);
void tap_cut(struct tap *t, uint64_t epoch);
void tap_acked(struct tap *t, uint64_t epoch);
int64_t tap_read(struct tap *t, uint64_t epoch, void *buf, size_t cap, struct ft_error *err);
uint64_t tap_left(struct tap *t);

struct tap_figures {
	uint64_t dirty_bytes; /* of this disk */
	uint64_t held_bytes;  /* of all */
};
void tap_figures(struct tap *t, unsigned disk, struct tap_figures *out);

#endif
