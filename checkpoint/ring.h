/* SPDX-License-Identifier: MIT */
/* ring.h - the ring of slab placement (docs/protocol.md "The link"): where the primary's pages land, and which page each slot holds.
 * A position counts the pages of a connection from 0; it has the slot position mod slots.  Positions below `freed` may be written again;
 * those from there on, slots of them, are the peer's to write and to tell, each once.
 * Tells and frees under the owner's lock; ring_span() may run beside them on positions that were told and are not freed meanwhile. */
#ifndef FT_RING_H
#define FT_RING_H

#include <stdbool.h>
#include <stdint.h>

struct ring {
	uint8_t *memory;   /* the owner's; slots pages */
	uint64_t slots;
	uint64_t *page;	   /* of each slot: the page that was told there, or none */
	uint64_t freed;
	uint64_t told_end; /* behind the last position that was told, and not below freed */
	uint64_t touched;  /* slots that were ever told */
};

/* ring_create - -ENOMEM.  @memory stays the caller's. */
int ring_create(struct ring *r, uint8_t *memory, uint64_t slots);
void ring_destroy(struct ring *r); /* harmless on zeros */
/* ring_reset - as new: for a new connection. */
void ring_reset(struct ring *r);

uint8_t *ring_at(const struct ring *r, uint64_t position);
/* ring_may_tell - are @nr positions from @position on within the ring, and none of them told? */
bool ring_may_tell(const struct ring *r, uint64_t position, uint64_t nr);
void ring_tell(struct ring *r, uint64_t position, uint64_t page);
/* ring_free - everything below @end. */
void ring_free(struct ring *r, uint64_t end);
uint64_t ring_used(const struct ring *r); /* positions from freed to the last one that was told */

/* Neighbouring slots that hold neighbouring pages. */
struct ring_span {
	uint64_t position, page, nr;
	uint8_t *at;
};

/* ring_span - the next one at or behind *@from and before @end, at most @max pages; *@from moves behind it.  Positions that were not told
 * are passed over.  False: no more. */
bool ring_span(const struct ring *r, uint64_t *from, uint64_t end, uint64_t max, struct ring_span *out);

#endif
