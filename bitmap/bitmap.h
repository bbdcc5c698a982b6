/* SPDX-License-Identifier: MIT */
/* bitmap.h - a set of pages with summary levels.
 * A leaf line is 512 pages, one cache line; a summary bit above says "this line may be non-zero", 512 of those make a line
 * again, and so on up to one line.  The cost of iterating, clearing and moving follows the number of set bits, not the
 * number of pages: 64 GiB of guest is 16 Mi pages, 2 MiB of leaf words, 4 KiB and 64 octets of summary.
 *
 * May run together on one bitmap, any number of threads:
 *			set, set_run	test, test_any	take from it	all else (as @dst of take, too)
 *	set, set_run	yes		yes		yes		clear_run and or (as @dst): yes; other: no
 *	test, test_any	yes		yes		yes		yes
 *	take from it	yes		yes		no		no
 *	all else	(above)		yes		no		no
 * Order: a bit set before take() began (in the sense of the C11 happens-before) is taken by it; one set while it runs is
 * taken by it or by the next one, never lost.  What a thread wrote before a set is seen by who took the bit. */
#ifndef FT_BITMAP_H
#define FT_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

struct bitmap;

struct page_run {
	uint64_t first; /* page */
	uint64_t nr;	/* pages */
};

/* bitmap_create - for pages [0, @nr_pages), all clear; memory is reserved but not touched until it is used.
 * 0, -ENOMEM, -EINVAL (0 pages, or more than 2^52). */
int bitmap_create(struct bitmap **out, uint64_t nr_pages);
void bitmap_destroy(struct bitmap *b); /* NULL is harmless */
uint64_t bitmap_pages(const struct bitmap *b);

/* Out of range pages are our own mistake (assert). */
bool bitmap_set(struct bitmap *b, uint64_t page); /* true if it was clear */
uint64_t bitmap_set_run(struct bitmap *b, uint64_t first, uint64_t nr); /* how many were clear */
bool bitmap_test(const struct bitmap *b, uint64_t page);
bool bitmap_test_any(const struct bitmap *b, uint64_t first, uint64_t nr);

/* bitmap_take - move: dst |= src, src = 0; returns the number of bits that src had.  Same nr_pages.  The caller is alone
 * with @dst: plain stores there halve the cost of a full set (docs/decisions/003-summary-bitmap.md). */
uint64_t bitmap_take(struct bitmap *dst, struct bitmap *src);
void bitmap_or(struct bitmap *dst, const struct bitmap *src);
uint64_t bitmap_count(const struct bitmap *b);
bool bitmap_empty(const struct bitmap *b);
void bitmap_clear(struct bitmap *b);
void bitmap_clear_run(struct bitmap *b, uint64_t first, uint64_t nr);

/* bitmap_next_run - the next run at or behind page @from, cut at @max_pages (> 0).  False: no more.
 * for (struct page_run r = {0}; bitmap_next_run(b, r.first + r.nr, max, &r);) ... */
bool bitmap_next_run(const struct bitmap *b, uint64_t from, uint64_t max_pages, struct page_run *run);

#endif
