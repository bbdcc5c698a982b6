/* SPDX-License-Identifier: MIT */
/* region.h - the regions of a machine laid end to end in one page space, each starting on a multiple of 64 pages.
 * A table is immutable: to change it a new one is made and published (engine/session.c, by RCU), so readers never wait. */
#ifndef FT_REGION_H
#define FT_REGION_H

#include <stdint.h>
#include <ft/ft.h>
#include "codec.h"

struct region {
	char name[FT_NAME_MAX];
	uint8_t *base;	     /* host address; NULL: removed (its index stays taken) */
	uint64_t len_bytes;
	uint64_t first_page; /* multiple of 64 */
	uint64_t nr_pages;
};

struct region_table {
	uint32_t count;
	uint64_t nr_pages;    /* of the page space, gaps included; a multiple of 64 */
	uint64_t total_bytes; /* sum of the regions that are there */
	struct region region[]; /* ascending by first_page */
};

struct region_table *region_table_empty(void); /* NULL: no memory */
/* region_table_add - a new table that is @old and one more; the index of the new one is old->count.
 * NULL with the sentence: name taken or too long, unaligned, empty, overlap in memory, too many. */
struct region_table *region_table_add(const struct region_table *old, const char *name, void *base, uint64_t len, struct ft_error *err);
/* region_table_without - a new table in which @index is removed; those behind it move up in the page space. */
struct region_table *region_table_without(const struct region_table *old, uint32_t index, struct ft_error *err);
void region_table_free(struct region_table *t);

/* region_of_page - the region that holds @page, or NULL (a gap, a removed region, out of range).  Binary search. */
const struct region *region_of_page(const struct region_table *t, uint64_t page);
/* region_page_address - host address of @page; *@nr_pages, if asked for, how many pages follow in that region (this one included). */
uint8_t *region_page_address(const struct region_table *t, uint64_t page, uint64_t *nr_pages);

/* region_entries - for the wire: fills @out (room for t->count) and returns the number of entries (removed regions are left out). */
uint32_t region_entries(const struct region_table *t, struct region_entry *out);
/* region_table_matches - do the peer's entries describe the same layout?  -EINVAL with a sentence that names the first difference. */
int region_table_matches(const struct region_table *t, const struct region_entry *e, uint32_t count, struct ft_error *err);

#endif
