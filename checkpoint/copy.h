/* SPDX-License-Identifier: MIT */
/* copy.h - moving guest pages: the walk over a set of pages as spans of host memory, the copy, the clearing.
 * Shared by capture.c (guest to slab, inside the pause) and standby.c (receive image to standby image).
 * Nothing here allocates or fails.  Any thread, on memory that is the caller's. */
#ifndef FT_COPY_H
#define FT_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include "bitmap.h"
#include "region.h"

/* Neighbouring pages of one region. */
struct span {
	uint64_t page, nr;
	uint8_t *at;
};

/* span_next - the next span of @set at or behind page *@from, at most @max pages; *@from moves behind it.
 * Pages that no region holds are passed over.  False: no more. */
bool span_next(const struct region_table *regions, const struct bitmap *set, uint64_t *from, uint64_t max, struct span *out);

/* pages_copy - @nr pages, both page aligned.  @next: where the next call will read, or NULL; its first page is fetched
 * meanwhile.  What was written may be read by others only after pages_copied(). */
void pages_copy(void *to, const void *from, uint64_t nr, const void *next);
void pages_copied(void);

/* pages_clear - @nr pages become zeros; a hole stays a hole.  Returns how many were not zeros. */
uint64_t pages_clear(void *at, uint64_t nr);

#endif
