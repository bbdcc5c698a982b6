/* SPDX-License-Identifier: MIT */
/* copy.h - moving guest pages: the walk over a set of pages as spans of host memory, the copy, by one thread or several, the clearing.
 * Shared by capture.c (guest to slab, inside the pause) and apply.c (receive image or ring to standby image).
 * Nothing here but copier_create() allocates or fails.  Any thread, on memory that is the caller's. */
#ifndef FT_COPY_H
#define FT_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/error.h>
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

/* A copier is told what is to be copied, in the order in which it is found, and copies it as it goes: alone, or with a crew (crew.h), which begins while the
 * owner still looks for more.  One thread's at a time. */
struct copier {
	struct copy_span {
		uint8_t *to;
		const uint8_t *from;
		uint64_t nr;
	} held; /* alone: told last; copied when the next one is known */
	/* with others: */
	struct crew *crew; /* NULL: alone */
	struct copy_job *job;
	uint32_t nr_jobs;  /* filled since the last wait, the one that is being filled not counted */
	bool running;	   /* the crew is awake, and has been offered them */
};
#define COPIER_ALONE ((struct copier){ .crew = NULL })

/* copier_create - by @threads, the owner's counted; 1: alone, and no thread is made.  Errors: as crew_create(). */
int copier_create(struct copier *out, unsigned threads, const char *name, struct ft_error *err);
void copier_destroy(struct copier *c); /* afterwards it is alone; harmless when it is */

/* copier_add - @nr pages, page aligned.  They are copied at any time until copier_wait(), if there is a crew in any order: so nothing of @to may be told
 * again before that. */
void copier_add(struct copier *c, void *to, const void *from, uint64_t nr);
/* copier_wait - all that was told is in place, for every thread to see.  copier_end - the same, and the crew sleeps. */
void copier_wait(struct copier *c);
void copier_end(struct copier *c);

/* pages_clear - @nr pages become zeros; a hole stays a hole.  Returns how many were not zeros. */
uint64_t pages_clear(void *at, uint64_t nr);

#endif
