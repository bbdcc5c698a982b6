/* SPDX-License-Identifier: MIT */
/* nics.h - the guest's network cards on their way through us: frames that the guest sends are held by epoch (ft_output_* of ft.h), frames to
 * the guest pass at once.
 *
 * One thread moves frames; nics_cut(), nics_drop() are called on the session's epoch thread and nics_release() on any of its threads.
 * A card is deaf and mute to the outside until nics_plug(): a standby's, and a fenced machine's. */
#ifndef FT_QEMU_NICS_H
#define FT_QEMU_NICS_H

#include <stdbool.h>
#include <stdint.h>
#include "cmdline.h"
#include "util.h"

struct nics;

/* What happens to a frame of the guest for which a card's queue has no room. */
enum nics_at_cap {
	NICS_CUT,   /* the epoch is to end, and the guest's card waits */
	NICS_DROP,  /* it is lost, as in the queue of a network that is too slow */
	NICS_BLOCK, /* the guest's card waits for the epoch's end */
};

struct nics_config {
	const struct cmdline_route *nic;
	unsigned nr;
	uint64_t hold_bytes; /* what each may hold */
	enum nics_at_cap at_cap;
	/* [thread of the nics] Output waits; an epoch should end because there is no more room.  May be NULL. */
	void (*has_output)(void *user);
	void (*want_cut)(void *user);
	/* [caller] What the user has to know. */
	void (*say)(void *user, const char *text);
	void *user;
};

/* nics_open - connect to QEMU's sockets, open the outside ends, start the thread. */
int nics_open(struct nics **out, const struct nics_config *config, struct ft_error *err);
void nics_close(struct nics *n);

void nics_plug(struct nics *n, bool in);
void nics_cut(struct nics *n, uint64_t epoch);
void nics_release(struct nics *n, uint64_t epoch);
void nics_drop(struct nics *n);
uint64_t nics_held(struct nics *n);    /* octets */
uint64_t nics_dropped(struct nics *n); /* frames of the guest: no room, or nobody outside to take them */

#endif
