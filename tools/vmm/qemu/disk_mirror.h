/* SPDX-License-Identifier: MIT */
/* disk_mirror.h - the primary's disks: QEMU's mirrors towards us, our tap of what they write, QEMU's export that the copy reads.
 *
 * The mirrors outlive connections and sessions of a machine: alone, they keep the bitmap.  When one fails, or QEMU's connection is lost, the tap is broken
 * and the next mirrors_begin() makes all anew.  Of us dead QEMU keeps nothing that harms: a mirror fails at its next write, which the guest does not see.
 *
 * mirrors_begin(): the session's epoch thread; mirrors_stop(): main thread without a session, or any with QEMU gone;
 * mirrors_event(): where QMP events are delivered; mirrors_tap(): see disk_tap.h. */
#ifndef FT_QEMU_DISK_MIRROR_H
#define FT_QEMU_DISK_MIRROR_H

#include "disk_list.h"
#include "disk_tap.h"

struct mirrors;

struct mirrors_config {
	const struct disk_list *list; /* must stay */
	struct qmp *qmp;
	const char *run_dir; /* for the sockets */
	uint64_t hold_bytes;
	void (*want_cut)(void *user);
	void *user;
};

/* mirrors_clean - what an ftqemu that died left in QEMU: before the disks are listed. */
int mirrors_clean(struct qmp *qmp, struct ft_error *err);

int mirrors_open(struct mirrors **out, const struct mirrors_config *config, struct ft_error *err);
void mirrors_close(struct mirrors *m); /* mirrors_stop() was called, or QEMU is gone */

/* mirrors_begin - a full sync begins: from when this returns every write of the guest is seen. */
int mirrors_begin(struct mirrors *m, struct ft_error *err);
void mirrors_stop(struct mirrors *m);
void mirrors_event(struct mirrors *m, const char *name, const json_t *data);
struct tap *mirrors_tap(struct mirrors *m);

#endif
