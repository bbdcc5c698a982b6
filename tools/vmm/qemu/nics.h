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

/* What is done about a card that sends more in an epoch than its queue can hold.  What finds no room is lost, as in a network that is too slow. */
enum nics_at_cap {
	NICS_CUT,  /* the epoch is to end when it has filled half of the queue */
	NICS_DROP, /* nothing */
};

struct nics_config {
	const struct cmdline_route *nic;
	unsigned nr;
	uint64_t hold_bytes; /* what each may hold; a frame of the largest size at least */
	enum nics_at_cap at_cap;
	/* [thread of the nics] Output waits; an epoch should end because there is no more room.  May be NULL. */
	void (*has_output)(void *user);
	void (*want_cut)(void *user);
	/* [caller of nics_open(), thread of the nics] What the user has to know. */
	void (*say)(void *user, const char *text);
	void *user;
};

/* nics_open - connect to QEMU's sockets, open the outside ends, start the thread.  What @config->nic points at must outlive it. */
int nics_open(struct nics **out, const struct nics_config *config, struct ft_error *err);
void nics_close(struct nics *n);

void nics_plug(struct nics *n, bool in);
void nics_cut(struct nics *n, uint64_t epoch);
void nics_release(struct nics *n, uint64_t epoch);
void nics_drop(struct nics *n);
uint64_t nics_held(struct nics *n);    /* octets */
uint64_t nics_dropped(struct nics *n); /* frames of the guest: no room, or nobody outside to take them */


struct nics_figures {
	const char *name;
	uint64_t held_bytes, dropped_frames;
};
/* nics_figures - of the card @i; false: there are no more.  Any thread. */
bool nics_figures(struct nics *n, unsigned i, struct nics_figures *out);

#endif
