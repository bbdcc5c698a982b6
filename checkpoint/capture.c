/* SPDX-License-Identifier: MIT */
/* capture.c - see capture.h.  A slab belongs to one thread at a time, which its owner's queues see to. */
#include "capture.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <ft/ft.h>
#include "copy.h"
#include "digest.h"
#include "faultpoint.h"
#include "wire.h"

int slab_create(struct slab **out, void *memory)
{
	struct slab *s = FT_FAULT("slab/create") ? NULL : calloc(1, sizeof(*s));

	*out = s;
	if (!s)
		return -ENOMEM;
	s->memory = memory;
	memset(s->memory, 0, SLAB_BYTES); /* its page faults now, not in the guest's pause */
	return 0;
}

void slab_destroy(struct slab *s)
{
	free(s);
}

/* One span is looked up ahead, so that its first page can be fetched while the one before is copied.  All of it
 * against memcpy() page by page of a list that is known already (tests/bench/bench_capture.c, median, single pages /
 * runs of 8): 100 pages 0.87 / 0.95, 1,000 0.73 / 0.76, 2,000 0.72 / 0.79, 10,000 0.67 / 0.70, 50,000 0.63 / 0.71.
 * The price is paid outside of the pause: slab_plan() finds the pages in memory, not in L3, 157 ns a page. */
uint32_t capture_add(struct copier *c, struct slab *s, const struct region_table *regions, const struct bitmap *dirty,
		     uint64_t *at)
{
	struct span span;

	s->nr = 0;
	while (s->nr < SLAB_PAGES && span_next(regions, dirty, at, SLAB_PAGES - s->nr, &span)) {
		copier_add(c, s->memory + (size_t)s->nr * FT_PAGE_SIZE, span.at, span.nr);
		for (uint64_t i = 0; i < span.nr; i++)
			s->page[s->nr++] = span.page + i;
	}
	return s->nr;
}

uint32_t capture_fill(struct slab *s, const struct region_table *regions, const struct bitmap *dirty, uint64_t *at)
{
	struct copier alone = COPIER_ALONE;
	uint32_t nr = capture_add(&alone, s, regions, dirty, at);

	copier_end(&alone);
	return nr;
}

/* Add @page to the last run if it follows, else begin one; true if it began one. */
static bool extend(struct page_run *runs, uint32_t *nr_runs, uint64_t page)
{
	struct page_run *last = *nr_runs ? &runs[*nr_runs - 1] : NULL;

	if (last && last->first + last->nr == page) {
		last->nr++;
		return false;
	}
	runs[(*nr_runs)++] = (struct page_run){ page, 1 };
	return true;
}

/* False: it goes as it is. */
static bool plan_delta(struct slab_plan *out, const struct past *past, uint64_t number, const uint8_t *page)
{
	const uint8_t *before = past->usable ? past_of(past, number) : NULL;
	uint8_t *at = out->packed + out->packed_bytes;
	const ft_be64 wire = to_be64(number);
	uint32_t len = before ? delta_pack(at + sizeof(wire), before, page, DELTA_WORTH) : 0;

	if (!len)
		return false;
	memcpy(at, &wire, sizeof(wire));
	out->packed_len[out->nr_delta] = len + (uint32_t)sizeof(wire);
	out->packed_digest[out->nr_delta] = digest_page(page, number);
	out->packed_bytes += out->packed_len[out->nr_delta];
	out->delta_digest += out->packed_digest[out->nr_delta++];
	return true;
}

static void plan_zero(struct slab_plan *out, uint64_t number)
{
	out->nr_zero++;
	out->zero_digest += digest_zero(number);
	extend(out->zero, &out->nr_zero_runs, number);
}

static void plan_data(struct slab_plan *out, uint64_t number, const uint8_t *page, uint32_t slot)
{
	out->page_digest[out->nr_data] = digest_page(page, number);
	out->data_digest += out->page_digest[out->nr_data++];
	if (extend(out->data, &out->nr_data_runs, number))
		out->data_slot[out->nr_data_runs - 1] = slot;
}

void slab_plan(const struct slab *s, uint32_t first, uint32_t nr, struct same *same, struct past *past,
	       struct slab_plan *out)
{
	assert(first + nr <= s->nr);
	out->nr_data = out->nr_zero = out->nr_same = out->nr_delta = out->nr_data_runs = out->nr_zero_runs = 0;
	out->data_digest = out->zero_digest = out->delta_digest = 0;
	out->packed_bytes = 0;
	for (uint32_t slot = first; slot < first + nr; slot++) {
		const uint8_t *page = s->memory + (size_t)slot * FT_PAGE_SIZE;
		bool zero = page_is_zero(page);

		assert(slot == 0 || s->page[slot] > s->page[slot - 1]);
		if (same && slot + SAME_AHEAD < first + nr)
			same_prefetch(same, s->page[slot + SAME_AHEAD]);
		if (same && same_is(same, s->page[slot], page, zero)) {
			out->nr_same++;
			continue;
		}
		if (zero)
			plan_zero(out, s->page[slot]);
		else if (!past || !plan_delta(out, past, s->page[slot], page))
			plan_data(out, s->page[slot], page, slot);
		if (past)
			past_note(past, s->page[slot], zero ? NULL : page);
	}
}
