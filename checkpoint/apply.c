/* SPDX-License-Identifier: MIT */
/* apply.c - a committed epoch goes into the standby image, and room is made in the ring for an epoch that is longer.  See standby.h, whose
 * threads and rules hold here. */
#include <assert.h>

#include "copy.h"
#include "standby_private.h"

/* -- apply -- */

bool standby_apply_pending(const struct standby *s)
{
	return standby_pending(s);
}

void standby_begin_apply(struct standby *s)
{
	assert(standby_pending(s));
	s->applying = true;
	standby_check(s);
}

/* As capture_add(): one span is looked up ahead.  0.62 to 0.77 of the time of memcpy() page by page
 * (tests/bench/bench_capture.c); to fetch the next destination too, for its TLB entry, gained nothing. */
static uint64_t apply_image(const struct standby *s, const struct bitmap *set)
{
	struct span span;
	uint64_t from = 0, written = 0;

	while (span_next(s->regions, set, &from, UINT64_MAX, &span)) {
		copier_add(s->copier, span.at, s->image + span.page * FT_PAGE_SIZE, span.nr);
		written += span.nr;
	}
	copier_end(s->copier);
	return written;
}

/* A span of the ring may go over the end of a region, where another one begins. */
static void add_span(const struct standby *s, struct copier *c, const struct ring_span *span)
{
	uint64_t nr;

	for (uint64_t done = 0; done < span->nr; done += nr) {
		uint8_t *to = region_page_address(s->regions, span->page + done, &nr);

		nr = nr < span->nr - done ? nr : span->nr - done;
		copier_add(c, to, span->at + done * FT_PAGE_SIZE, nr);
	}
}

/* Several threads copy in no order: a page that is told again waits until what was told of it before is in place.  Rounds that are sent ahead hold a
 * page once, so that is about once a round. */
static void keep_order(const struct standby *s, const struct ring_span *span)
{
	if (bitmap_set_run(s->under_way, span->page, span->nr) == span->nr)
		return;
	copier_wait(s->copier);
	bitmap_clear(s->under_way);
	bitmap_set_run(s->under_way, span->page, span->nr);
}

/* The later word about a page wins. */
static uint64_t apply_ring(const struct standby *s, const struct incoming *in)
{
	bool again = s->under_way && received_duplicates(in->received) > 0;
	uint64_t from = in->ring_begin, written = 0;
	struct ring_span span;

	while (ring_span(&s->ring, &from, in->ring_end, UINT64_MAX, &span)) {
		if (again)
			keep_order(s, &span);
		add_span(s, s->copier, &span);
		written += span.nr;
	}
	copier_end(s->copier);
	if (again)
		bitmap_clear(s->under_way);
	return written;
}

static uint64_t apply_zero(const struct standby *s, const struct incoming *in)
{
	const struct bitmap *set = received_zero_set(in->received);
	uint64_t from = 0, written = 0;
	struct span span;

	while (span_next(s->regions, set, &from, UINT64_MAX, &span))
		written += pages_clear(span.at, span.nr);
	return written;
}

/* The first epoch is the whole machine: a page that was not told is zeros there (holes need not be reported), whatever
 * an earlier primary, or the VMM while it started, has left in it here. */
static uint64_t apply_rest_zero(const struct incoming *in, const struct region *r)
{
	const struct bitmap *set = received_data_set(in->received);
	uint64_t at = r->first_page, end = r->first_page + r->nr_pages, written = 0;
	struct page_run run;

	while (at < end) {
		if (!bitmap_next_run(set, at, UINT64_MAX, &run) || run.first > end)
			run = (struct page_run){ end, 0 };
		if (run.first > at)
			written += pages_clear(r->base + (at - r->first_page) * FT_PAGE_SIZE, run.first - at);
		at = run.first + run.nr;
	}
	return written;
}

/* What was moved out of the ring is older than what is left there. */
static uint64_t apply_data(struct standby *s, const struct incoming *in)
{
	uint64_t written;

	if (!s->slab)
		return apply_image(s, received_data_set(in->received));
	written = s->nr_landed ? apply_image(s, s->landed) : 0;
	if (in->in_ring)
		written += apply_ring(s, in);
	return written;
}

uint64_t standby_apply_run(struct standby *s)
{
	const struct incoming *in = standby_box(s, s->applied + 1);
	uint64_t written;

	assert(s->applying);
	written = apply_data(s, in);
	if (s->applied || !s->is_whole)
		return written + apply_zero(s, in);
	for (uint32_t i = 0; i < s->regions->count; i++)
		if (s->regions->region[i].base)
			written += apply_rest_zero(in, &s->regions->region[i]);
	return written;
}

void standby_end_apply(struct standby *s)
{
	struct incoming *in = standby_box(s, s->applied + 1);
	struct device *kept = in->device;

	assert(s->applying);
	s->applying = false;
	s->applied = s->image_epoch = in->epoch;
	if (s->slab) {
		if (in->in_ring)
			ring_free(&s->ring, in->ring_end);
		standby_trim(s);
	}
	in->device = s->kept;
	s->kept = kept;
	standby_empty(in);
	standby_check(s);
}

/* -- room in the ring, for an epoch that is longer -- */

/* Half of the ring is left to what comes while its other half is moved, and an epoch of up to half of it is never moved. */
static bool is_short(const struct ring *r, uint64_t used_max)
{
	return ring_used(r) > used_max;
}

/* Before the first epoch of all nothing here is worth keeping: its pages may go where they belong, at once. */
static bool may_go_home(const struct standby *s)
{
	return !s->image_epoch;
}

static void move_span(struct standby *s, struct copier *c, const struct ring_span *span)
{
	if (may_go_home(s)) {
		add_span(s, c, span);
		return;
	}
	copier_add(c, s->image + span->page * FT_PAGE_SIZE, span->at, span->nr);
	s->nr_landed += bitmap_set_run(s->landed, span->page, span->nr);
}

/* What was told without a gap from the first position on, at most @most pages.  Returns behind which position it ends. */
static uint64_t move(struct standby *s, const struct incoming *in, uint64_t most)
{
	uint64_t at = s->ring.freed, end = at, from = at;
	struct copier alone = COPIER_ALONE;
	struct ring_span span;

	while (end - at < most && ring_span(&s->ring, &from, in->ring_end, most - (end - at), &span) &&
	       span.position == end) {
		move_span(s, &alone, &span);
		end += span.nr;
	}
	copier_end(&alone);
	return end;
}

/* One that is committed will soon be applied, and one behind it cannot be moved before. */
static bool may_move(const struct standby *s)
{
	const struct incoming *in = &s->box[(s->applied + 1) % s->nr_boxes];

	return s->slab && !standby_pending(s) && in->epoch == s->applied + 1 && in->in_ring && !in->whole;
}

bool standby_needs_room(const struct standby *s)
{
	return may_move(s) && is_short(&s->ring, s->ring.slots / 2);
}

bool standby_make_room(struct standby *s, uint64_t most, struct room *room)
{
	struct incoming *in = standby_box(s, s->applied + 1);
	uint64_t end;

	if (!may_move(s) || !is_short(&s->ring, s->making_room ? s->ring.slots * 3 / 8 : s->ring.slots / 2)) {
		s->making_room = false;
		return false;
	}
	end = move(s, in, most);
	s->making_room = end != s->ring.freed;
	if (!s->making_room)
		return false;
	ring_free(&s->ring, end);
	if (in->ring_begin < end)
		in->ring_begin = end;
	*room = standby_room(s);
	return true;
}

struct room standby_room(const struct standby *s)
{
	return (struct room){ .slots = s->ring.slots, .freed = s->ring.freed };
}
