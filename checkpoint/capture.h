/* SPDX-License-Identifier: MIT */
/* capture.h - the primary's side of one epoch in memory: dirty pages copied into slabs.
 * A slab is 2048 pages of staging (8 MiB) and the numbers of its pages; one slab is told by one notify-write.  All slabs
 * are made when the session starts and go round between the epoch thread (fills) and the ship thread (sends, gives back).
 * Nothing here allocates, blocks or knows of sockets. */
#ifndef FT_CAPTURE_H
#define FT_CAPTURE_H

#include <stdint.h>
#include "bitmap.h"
#include "copy.h"
#include "delta.h"
#include "record.h"
#include "region.h"
#include "same.h"

#define SLAB_PAGES FTW_NOTIFY_PAGES_MAX

#define SLAB_BYTES ((size_t)SLAB_PAGES * FTW_PAGE_BYTES)
#define SLAB_ALIGN ((size_t)2 << 20) /* so that it can be huge pages */

struct slab {
	uint8_t *memory;	    /* SLAB_PAGES pages */
	uint32_t nr;		    /* pages in it */
	uint64_t page[SLAB_PAGES];  /* their numbers, ascending */
	uint64_t epoch;
	uint64_t round;		    /* the owner's: slabs of one round hold a page only once */
	void *owner_link;	    /* the owner's queue node; not touched here */
};

/* slab_create - in @memory, SLAB_BYTES of the caller's, which is touched, so that no page fault is left for the pause.  -ENOMEM. */
int slab_create(struct slab **out, void *memory);
void slab_destroy(struct slab *s); /* NULL is harmless; the memory stays */

/* capture_fill - copy pages of @dirty from @*at on into @s, from its first slot, until it is full or the set is at its end; *@at moves on.
 * Pages that no region holds are skipped.  Returns the number of pages copied.  Non-temporal copies where they win
 * (measured: tests/bench/bench_capture.c). */
uint32_t capture_fill(struct slab *s, const struct region_table *regions, const struct bitmap *dirty, uint64_t *at);
/* capture_add - the same, but the pages are in @s only after copier_end(): maybe several threads copy them, also beside those of the next slab. */
uint32_t capture_add(struct copier *c, struct slab *s, const struct region_table *regions, const struct bitmap *dirty, uint64_t *at);

/* What is to be sent of a part of a slab: runs of data pages and runs of zero pages, and deltas; of pages that are the same there, nothing. */
struct slab_plan {
	uint32_t nr_data, nr_zero, nr_same, nr_delta; /* pages */
	uint32_t nr_data_runs, nr_zero_runs;
	struct page_run data[SLAB_PAGES];    /* neighbouring page numbers; also neighbours in the slab's memory */
	uint32_t data_slot[SLAB_PAGES];	     /* slab slot of a data run's first page */
	uint64_t page_digest[SLAB_PAGES];    /* of each data page */
	struct page_run zero[SLAB_PAGES];
	uint64_t data_digest, zero_digest, delta_digest;
	uint32_t packed_len[SLAB_PAGES];     /* of each delta, with its page number in front */
	uint64_t packed_digest[SLAB_PAGES];  /* of its page */
	uint32_t packed_bytes;
	uint8_t packed[SLAB_PAGES * (size_t)(8 + DELTA_WORTH) + DELTA_MAX]; /* as they go into records (codec.h), one behind the other */
};
/* slab_plan - of slots [@first, @first + @nr): find zero pages and those that @same has as they are, pack those that differ little from what @past has, make runs, compute
 * digests.  Outside the pause.  What is in a run, or packed, is in @same and @past from then on: it must be sent, or they be forgotten.  @same, @past NULL: there are
 * none. */
void slab_plan(const struct slab *s, uint32_t first, uint32_t nr, struct same *same, struct past *past, struct slab_plan *out);

#endif
