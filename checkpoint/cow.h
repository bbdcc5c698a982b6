/* SPDX-License-Identifier: MIT */
/* cow.h - capture by copy on write: at the pause the set of dirty pages changes hands and nothing is copied; afterwards each page is copied
 * once, by the thread that goes through the set or by the writer that comes to it first.
 *
 *   off ---begin---> idle ---arm (guest paused)---> armed ---disarm---> idle ... ---end---> off
 *
 * Threads: cow_write() is called by the guest's writers, any number; all else by one thread, the owner's.  While the guest is paused no
 * writer is inside of cow_write() or between it and its write: that is what makes cow_arm() an exchange of two pointers.
 * Nothing but cow_begin() allocates. */
#ifndef FT_COW_H
#define FT_COW_H

#include "capture.h"
#include "hist.h"

struct cow;

/* cow_create - @paid (NULL: nobody wants to know) gets the time of each write that met a page to be copied: until the writer had copied it, or
 * had waited until it was.  -ENOMEM. */
int cow_create(struct cow **out, struct hist *paid);
void cow_destroy(struct cow *c);  /* NULL is harmless; off */

/* cow_begin - of a machine with these regions, which stay until cow_end().  Nothing counts as written.  -ENOMEM. */
int cow_begin(struct cow *c, const struct region_table *regions);
/* cow_on - from now on writers mark what they write; guest paused. */
void cow_on(struct cow *c);
/* cow_off - disarmed, guest running: writers mark nothing any more, what they marked is forgotten, and cow_on() may come again. */
void cow_off(struct cow *c);
/* cow_end - when it returns no writer uses the regions any more; those that waited are let go.  Harmless when it is off. */
void cow_end(struct cow *c);

/* cow_write - pages [@first, @first + @nr) of @region will be written: marks them, and copies those that are still to be copied into
 * the writers' slab; waits if it is full or missing, until the owner gives another or disarms. */
void cow_write(struct cow *c, uint32_t region, uint64_t first, uint64_t nr);
uint64_t cow_written(const struct cow *c); /* pages marked since the last arm */

/* cow_arm - guest paused: what was written is to be copied, and nothing counts as written. */
void cow_arm(struct cow *c);
/* cow_copy - look at up to @max pages to be copied, from page *@at on, and append those that no writer has copied to @s.  False: at the end. */
bool cow_copy(struct cow *c, struct slab *s, uint64_t *at, uint32_t max);
/* cow_starved - the writers' slab is full, or there is none. */
bool cow_starved(struct cow *c);
/* cow_exchange - give the writers @fresh (or NULL), and get what they had (or NULL): sorted by cow_sort() it can be told. */
struct slab *cow_exchange(struct cow *c, struct slab *fresh);
void cow_sort(struct cow *c, struct slab *s);
/* cow_disarm - all is copied, or nobody wants it any more.  Waiting writers go on. */
void cow_disarm(struct cow *c);
/* cow_paid - since the last arm: pages copied by writers, and the time that went to *@paid; and about what all other writes took to be told, from
 * every COW_SAMPLE-th of each thread. */
#define COW_SAMPLE 64u
struct cow_paid {
	uint64_t faults, ns, told_ns;
};
struct cow_paid cow_paid(struct cow *c);

#endif
