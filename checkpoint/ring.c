/* SPDX-License-Identifier: MIT */
/* ring.c - see ring.h. */
#include "ring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <ft/ft.h>
#include "faultpoint.h"

#define NOTHING UINT64_MAX

int ring_create(struct ring *r, uint8_t *memory, uint64_t slots)
{
	*r = (struct ring){ .memory = memory, .slots = slots };
	r->page = FT_FAULT("ring/create") ? NULL : malloc(slots * sizeof(*r->page));
	if (!r->page)
		return -ENOMEM;
	for (uint64_t i = 0; i < slots; i++)
		r->page[i] = NOTHING;
	return 0;
}

void ring_destroy(struct ring *r)
{
	free(r->page);
	r->page = NULL;
}

void ring_reset(struct ring *r)
{
	ring_free(r, r->told_end);
	r->freed = r->told_end = 0;
}

uint8_t *ring_at(const struct ring *r, uint64_t position)
{
	return r->memory + position % r->slots * FT_PAGE_SIZE;
}

bool ring_may_tell(const struct ring *r, uint64_t position, uint64_t nr)
{
	if (position < r->freed || nr > r->slots || position - r->freed > r->slots - nr)
		return false;
	for (uint64_t i = 0; i < nr; i++)
		if (r->page[(position + i) % r->slots] != NOTHING)
			return false;
	return true;
}

void ring_tell(struct ring *r, uint64_t position, uint64_t page)
{
	r->page[position % r->slots] = page;
	if (position >= r->told_end)
		r->told_end = position + 1;
	if (r->told_end > r->touched)
		r->touched = r->told_end < r->slots ? r->told_end : r->slots;
}

void ring_free(struct ring *r, uint64_t end)
{
	assert(end <= r->told_end || end == r->freed);
	for (; r->freed < end; r->freed++)
		r->page[r->freed % r->slots] = NOTHING;
}

uint64_t ring_used(const struct ring *r)
{
	return r->told_end - r->freed;
}

bool ring_span(const struct ring *r, uint64_t *from, uint64_t end, uint64_t max, struct ring_span *out)
{
	uint64_t at = *from, slot;

	while (at < end && r->page[at % r->slots] == NOTHING)
		at++;
	*from = at;
	if (at >= end)
		return false;
	slot = at % r->slots;
	*out = (struct ring_span){ .position = at, .page = r->page[slot], .nr = 1, .at = ring_at(r, at) };
	while (out->nr < max && at + out->nr < end && slot + out->nr < r->slots &&
	       r->page[slot + out->nr] == out->page + out->nr)
		out->nr++;
	*from = at + out->nr;
	return true;
}
