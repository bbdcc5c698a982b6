/* SPDX-License-Identifier: MIT */
/* standby.h - the secondary's side of an epoch: records come in, are checked and collected; a whole epoch is committed
 * and then applied to the standby image.  Knows no sockets and no threads: engine/secondary.c moves the octets.
 *
 * Must hold (standby_check() restates it):
 *  S1  The standby image is changed only by standby_apply_run(), and only with pages of an epoch whose commit verified, and that was
 *      committed: between the two the caller may still say no.  While there is no image at all, standby_make_room() changes it, too.
 *  S2  Between commit and the end of apply, pages, sets and device state of that epoch are kept, so that the
 *      apply can be finished or repeated; the repetition is harmless.
 *  S3  The device state handed to failover belongs to the same epoch as the image.
 *  S4  No record is accepted of an epoch beyond the window: with mirror placement none of n+1 before n is applied.
 * All of it is called by one thread at a time (the caller's lock), but for standby_apply_run(), which may run beside
 * standby_consume(), standby_connect() and the functions that only look.
 *
 * Epochs come one after the other: the next one is standby_epoch_committed() + 1.  The first one (after create or restart) is the
 * whole machine: pages that it does not tell are zeros after its apply, whatever was in the regions before.
 * Within an epoch a page may be told again, and the later word wins; "later" has a meaning only on one lane, so the
 * sender tells a page on the same lane each time, and writes it again only when its notify-write is behind. */
#ifndef FT_STANDBY_H
#define FT_STANDBY_H

#include <stdint.h>
#include "codec.h"
#include "pool.h"
#include "received.h"
#include "region.h"

struct copier;
struct standby;

struct standby_options {
	uint32_t lanes;	     /* data lanes of this connection */
	uint64_t state_max;
	uint32_t epochs;     /* that may be under way at a time, 1 to FTW_EPOCH_CREDITS_MAX */
	uint64_t ring_bytes; /* whole pages, FTW_RING_SLOTS_MIN at least */
	struct copier *copier; /* the caller's: of the apply; NULL: the thread that calls it copies alone */
	bool lock_memory;    /* the receive image as it is touched, the rest at once; the limit is checked by standby_create() */
};

/* standby_create - for the layout of @regions (kept by the caller until destroy).  A receive image as large as the page space, a ring and epochs + 1
 * device states of state_max octets come from pools of their own, capped at just that: what never arrives costs nothing, and
 * no number that the peer sends allocates anything.  -EINVAL, -ENOMEM. */
int standby_create(struct standby **out, const struct region_table *regions, const struct standby_options *opt, struct ft_error *err);
void standby_destroy(struct standby *s);

/* Memory that the peer writes into: the image with mirror placement, the ring with slab. */
void *standby_image(struct standby *s, uint64_t *len);
void *standby_ring(struct standby *s, uint64_t *len);
/* In use for receiving: pages that ever came and are held apart from the standby image, states; and the most it can be. */
uint64_t standby_memory_bytes(struct standby *s);
uint64_t standby_memory_cap(const struct standby *s);

/* standby_connect - a new connection begins: partial epochs are dropped, record counters start at 0.  @lanes as in options.
 * @slab_epochs: 0: mirror placement, one epoch at a time.  Else slab placement, with so many epochs at a time, at most those of the options.
 * Mirror: a committed epoch that is not applied yet stays, and must be applied before the peer may write into the image.  Slab: there must be none. */
void standby_connect(struct standby *s, uint32_t lanes, uint32_t slab_epochs);

enum standby_event { /* bits: a record may be both, and then is the one before the other */
	STANDBY_NOTHING = 0,
	STANDBY_SIDE = 1,  /* octets of the side stream, in standby_side() */
	STANDBY_WHOLE = 2, /* the epoch is complete and verified: standby_commit(), ack, apply; or standby_connect(), which drops it */
};

/* standby_consume - one message of @lane: notify-write, notify-slab, zero-pages, device-state, side-data or commit; also a record of a data lane that is unknown
 * and optional, which only counts there (others: -EINVAL, and nothing happens).
 * Sequence numbers are checked per lane: a repeated record is dropped and counted, a gap is -EPROTO; the numbers wrap.  Lane 0 carries other
 * records too, so gaps there are the caller's to find.
 * A commit may come before its lanes are complete: it is kept, and *@event is STANDBY_WHOLE for the record that completes them.
 * Its digest is the sum of those of the epoch's records, plus digest_state() also of a state of 0 octets.
 * -EPROTO, -EBADMSG (digest), -E2BIG (state), -ESTALE (epoch): the standby image is untouched; the connection must be ended with @err's
 * sentence, and until standby_connect() every further record is -EPROTO. */
int standby_consume(struct standby *s, uint32_t lane, const void *msg, size_t len, enum standby_event *event, struct ft_error *err);

/* standby_side - the octets of the record that was STANDBY_SIDE.  They are not kept: valid as long as the message. */
struct side_data standby_side(const struct standby *s);
/* standby_commit - after STANDBY_WHOLE, before the next record: from here on the epoch is the one that a failover finds.  *@event is
 * STANDBY_WHOLE again if the one behind it is whole too.  Errors, of that one: as standby_consume(). */
int standby_commit(struct standby *s, enum standby_event *event, struct ft_error *err);

/* -- apply: begin, run (long, no lock), end -- */
bool standby_apply_pending(const struct standby *s);
void standby_begin_apply(struct standby *s);
/* standby_apply_run - copy received data pages in runs, clear zero pages (a hole stays a hole).  Returns pages written.  Repeatable:
 * what was interrupted, or scribbled on, is right after the next run that completes. */
uint64_t standby_apply_run(struct standby *s);
void standby_end_apply(struct standby *s);

/* -- slab placement: room for an epoch that is longer than the ring --
 * standby_needs_room - more than half of the ring is used, and the oldest epoch, which is not whole, may be moved.  To be asked when a record was
 * taken, and when an apply has ended: a peer that waits for room sends nothing.
 * standby_make_room - move up to @most of its pages elsewhere: to the receive image, or, when there is no image that could be lost, right to the
 * standby image.  True: @room is new, tell the peer, and call again. */
bool standby_needs_room(const struct standby *s);
bool standby_make_room(struct standby *s, uint64_t most, struct room *room);
struct room standby_room(const struct standby *s);

uint64_t standby_epoch_committed(const struct standby *s); /* verified; 0: none */
uint64_t standby_epoch_applied(const struct standby *s);
uint64_t standby_epoch_image(const struct standby *s); /* of the image and state we hold, maybe from before a restart; 0: none */
uint64_t standby_epoch_receiving(const struct standby *s); /* the oldest that is not committed; 0: none begun */
uint64_t standby_duplicates(const struct standby *s);	   /* repeated records */
/* standby_state - device state of the applied epoch; NULL before the first one.  Valid until the next standby_end_apply(). */
const void *standby_state(const struct standby *s, uint64_t *len);
/* standby_restart - epochs count from 1 again, and the next one is the whole machine.  The image and state that are there stay, and
 * can be promoted, until that epoch is applied.  No apply may be pending; between standby_connect() and the first record. */
void standby_restart(struct standby *s);
/* standby_keep_image - behind standby_restart(), before the first record: the next epoch is not the whole machine, but what changes the image that is there.  There must be one. */
void standby_keep_image(struct standby *s);

#endif
