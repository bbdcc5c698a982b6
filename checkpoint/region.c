/* SPDX-License-Identifier: MIT */
/* region.c - see region.h.
 * A table is made whole and never changed, so its functions are pure and any thread may call them.  What must hold:
 * regions ascend by first_page, each starts on a multiple of 64, none reaches into the next, and an index once
 * given stays what it was.  The page space has no holes but for the rounding: where a region lies depends on those that are
 * there, not on those that were, or no standby made afresh would ever match a machine that lost one. */
#include "region.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "faultpoint.h"

#define PAGES_MAX (UINT64_C(1) << 52) /* what a bitmap can hold */

static uint64_t round_up_64(uint64_t n)
{
	return (n + 63) & ~UINT64_C(63);
}

static struct region_table *table_alloc(uint32_t count)
{
	return FT_FAULT("region/table") ? NULL : calloc(1, sizeof(struct region_table) + count * sizeof(struct region));
}

struct region_table *region_table_empty(void)
{
	return table_alloc(0);
}

void region_table_free(struct region_table *t)
{
	free(t);
}

/* A copy with room for @more regions behind the old ones; count stays. */
static struct region_table *table_copy(const struct region_table *old, uint32_t more, struct ft_error *err)
{
	struct region_table *t = table_alloc(old->count + more);

	if (!t) {
		err_set(err, -ENOMEM, "no memory for a table of %u regions", old->count + more);
		return NULL;
	}
	memcpy(t, old, sizeof(*old) + old->count * sizeof(struct region));
	return t;
}

static bool overlaps(const struct region *r, uintptr_t base, uint64_t len)
{
	uintptr_t theirs = (uintptr_t)r->base;

	return r->base && base < theirs + r->len_bytes && theirs < base + len;
}

static uint64_t wire_entry_bytes(const char *name)
{
	return sizeof(struct ftw_region) + ((strlen(name) + 7) & ~(size_t)7);
}

static uint64_t wire_bytes(const struct region_table *t)
{
	uint64_t bytes = sizeof(struct ftw_record) + sizeof(struct ftw_regions);

	for (uint32_t i = 0; i < t->count; i++)
		if (t->region[i].base)
			bytes += wire_entry_bytes(t->region[i].name);
	return bytes;
}

static int check_new(const struct region_table *t, const char *name, uintptr_t base, uint64_t len, struct ft_error *err)
{
	if (!*name || strlen(name) >= FT_NAME_MAX)
		return err_set(err, -EINVAL, "a region's name has 1 to %u characters", FT_NAME_MAX - 1);
	if (!text_printable(name, strlen(name)))
		return err_set(err, -EINVAL, "a region's name holds an octet that is not printable ASCII");
	if (!base || base % FT_PAGE_SIZE)
		return err_set(err, -EINVAL, "region %s: its address is not a multiple of %u", name, FT_PAGE_SIZE);
	if (!len || len % FT_PAGE_SIZE)
		return err_set(err, -EINVAL, "region %s: %llu octets is not a multiple of %u above 0", name,
			       (unsigned long long)len, FT_PAGE_SIZE);
	if (len > UINTPTR_MAX - base || t->nr_pages + round_up_64(len / FT_PAGE_SIZE) > PAGES_MAX)
		return err_set(err, -EINVAL, "region %s: %llu octets do not fit", name, (unsigned long long)len);
	if (t->count >= FT_REGIONS_MAX)
		return err_set(err, -ENOSPC, "region %s: there are %u regions already", name, t->count);
	if (wire_bytes(t) + wire_entry_bytes(name) > FTW_RECORD_MAX)
		return err_set(err, -ENOSPC,
			       "region %s: the table does not fit into one record any more; use shorter names", name);
	for (uint32_t i = 0; i < t->count; i++) {
		const struct region *r = &t->region[i];

		if (r->base && strcmp(r->name, name) == 0)
			return err_set(err, -EEXIST, "region %s is there already", name);
		if (overlaps(r, base, len))
			return err_set(err, -EINVAL, "region %s overlaps region %s in memory", name, r->name);
	}
	return 0;
}

/* End to end, as a machine that never had the removed regions would have them: so a new secondary fits.  A removed one takes no room, and
 * stands before the region that begins at the same page. */
static void lay_out(struct region_table *t)
{
	t->nr_pages = 0;
	for (uint32_t i = 0; i < t->count; i++) {
		t->region[i].first_page = t->nr_pages;
		t->nr_pages += round_up_64(t->region[i].nr_pages);
	}
}

struct region_table *region_table_add(const struct region_table *old, const char *name, void *base, uint64_t len,
				      struct ft_error *err)
{
	struct region_table *t;
	struct region *r;

	if (check_new(old, name, (uintptr_t)base, len, err))
		return NULL;
	t = table_copy(old, 1, err);
	if (!t)
		return NULL;
	r = &t->region[t->count++];
	strcpy(r->name, name);
	r->base = base;
	r->len_bytes = len;
	r->nr_pages = len / FT_PAGE_SIZE;
	lay_out(t);
	t->total_bytes += len;
	return t;
}

struct region_table *region_table_without(const struct region_table *old, uint32_t index, struct ft_error *err)
{
	struct region_table *t;

	if (index >= old->count || !old->region[index].base) {
		err_set(err, -EINVAL, "there is no region %u", index);
		return NULL;
	}
	t = table_copy(old, 0, err);
	if (!t)
		return NULL;
	t->region[index].base = NULL;
	t->total_bytes -= t->region[index].len_bytes;
	t->region[index].nr_pages = t->region[index].len_bytes = 0;
	lay_out(t);
	return t;
}

const struct region *region_of_page(const struct region_table *t, uint64_t page)
{
	uint32_t low = 0, high = t->count; /* the last region that starts at or before @page is in [low - 1, high) */

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (t->region[middle].first_page <= page)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return NULL;
	if (!t->region[low - 1].base || page - t->region[low - 1].first_page >= t->region[low - 1].nr_pages)
		return NULL;
	return &t->region[low - 1];
}

uint8_t *region_page_address(const struct region_table *t, uint64_t page, uint64_t *nr_pages)
{
	const struct region *r = region_of_page(t, page);

	if (nr_pages)
		*nr_pages = r ? r->nr_pages - (page - r->first_page) : 0;
	return r ? r->base + (page - r->first_page) * FT_PAGE_SIZE : NULL;
}

uint32_t region_entries(const struct region_table *t, struct region_entry *out)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->count; i++) {
		const struct region *r = &t->region[i];

		if (r->base)
			out[n++] = (struct region_entry){ .first_page = r->first_page,
							  .len_bytes = r->len_bytes,
							  .name_bytes = (uint32_t)strlen(r->name),
							  .name = r->name };
	}
	return n;
}

/* The peer's name for our sentence: cut, terminated, nothing in it that a terminal would obey. */
static const char *printable(const struct region_entry *e, char out[FT_NAME_MAX])
{
	uint32_t n = e->name_bytes < FT_NAME_MAX - 1 ? e->name_bytes : FT_NAME_MAX - 1;

	for (uint32_t i = 0; i < n; i++)
		out[i] = e->name[i] >= ' ' && e->name[i] <= '~' ? e->name[i] : '?';
	out[n] = '\0';
	return out;
}

static int check_same(const struct region *r, const struct region_entry *e, uint32_t index, struct ft_error *err)
{
	char name[FT_NAME_MAX];

	printable(e, name);
	if (e->name_bytes != strlen(r->name) || memcmp(e->name, r->name, e->name_bytes) != 0)
		return err_set(err, -EINVAL, "region %u is %s there and %s here", index, name, r->name);
	if (e->len_bytes != r->len_bytes)
		return err_set(err, -EINVAL, "region %s has %llu octets there and %llu here", r->name,
			       (unsigned long long)e->len_bytes, (unsigned long long)r->len_bytes);
	if (e->first_page != r->first_page)
		return err_set(err, -EINVAL, "region %s starts at page %llu there and %llu here", r->name,
			       (unsigned long long)e->first_page, (unsigned long long)r->first_page);
	if (e->flags)
		return err_set(err, -EINVAL, "region %s has flags %#x, which are unknown here", r->name, e->flags);
	return 0;
}

int region_table_matches(const struct region_table *t, const struct region_entry *e, uint32_t count,
			 struct ft_error *err)
{
	char name[FT_NAME_MAX];
	uint32_t n = 0;
	int rc;

	for (uint32_t i = 0; i < t->count; i++) {
		if (!t->region[i].base)
			continue;
		if (n == count)
			return err_set(err, -EINVAL, "region %s is missing there", t->region[i].name);
		rc = check_same(&t->region[i], &e[n], n, err);
		if (rc)
			return rc;
		n++;
	}
	if (n < count)
		return err_set(err, -EINVAL, "region %s is missing here", printable(&e[n], name));
	return 0;
}
