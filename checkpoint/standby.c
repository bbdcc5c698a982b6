/* SPDX-License-Identifier: MIT */
/* standby.c - see standby.h.  Life, records, commit; apply.c has the rest.
 *
 *   empty --first record--> received --commit, lanes complete, verified--> whole --standby_commit()--> committed --end_apply--> empty
 *     ^------ connect (an epoch that is not committed is dropped) ---|-------|                      (kept over connect)
 *
 * After a record that was refused nothing more is taken until standby_connect(): what is left of the epoch could not
 * verify.  The memory is all made by standby_create(): no number of the peer allocates anything. */
#include "standby_private.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "delta.h"
#include "digest.h"
#include "err.h"
#include "faultpoint.h"

/* How far record @a is ahead of record @b: the numbers wrap, after 50 days at 1,000 records a second. */
static int32_t ahead(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b);
}

static void check_box(struct standby *s, uint64_t epoch)
{
	const struct incoming *in = standby_box(s, epoch);

	if (!in->epoch) {
		assert(!in->commit_pending && !in->nr_data && !in->nr_zero && !in->device->len_bytes && !in->in_ring);
		return;
	}
	assert(in->epoch == epoch && received_epoch(in->received) == epoch);
	assert(received_nr_data(in->received) + received_nr_zero(in->received) <= in->nr_data + in->nr_zero);
	assert(in->device->len_bytes <= in->device->total_bytes && in->device->total_bytes <= s->state_max);
	assert(!in->whole || in->commit_pending);
}

void standby_check(struct standby *s)
{
	/* S1: an apply is of a committed epoch */
	assert(!s->applying || standby_pending(s));
	/* S2: what is committed and not applied is here, whole */
	for (uint64_t epoch = s->applied + 1; epoch <= s->committed; epoch++)
		assert(standby_box(s, epoch)->epoch == epoch && standby_box(s, epoch)->whole);
	/* S3: the kept state is whole, and there is none before the first apply */
	assert(s->kept->len_bytes == s->kept->total_bytes && (s->image_epoch || !s->kept->len_bytes));
	/* S4: each box has its epoch, or none */
	for (uint64_t epoch = s->applied + 1; epoch <= s->applied + s->nr_boxes; epoch++)
		check_box(s, epoch);
}

/* -- life -- */

#define POOL_SLACK (UINT64_C(1) << 20) /* what the arena may round two lengths up by */

static uint64_t states_bytes(const struct standby *s)
{
	return (s->nr_boxes + 1) * s->state_max;
}

static uint8_t *reserve(struct pool **pool, uint64_t len, uint64_t more, bool lock, bool on_fault, struct ft_error *err)
{
	struct pool_options opt = {
		.cap_bytes = len + more + POOL_SLACK, .sparse = true, .lock = lock, .lock_on_fault = on_fault
	};

	return pool_create(pool, &opt, err) ? NULL : pool_alloc(*pool, len, FT_PAGE_SIZE);
}

/* All that receiving may ever take, under caps; nothing of it is touched before it is needed.  No huge pages: pages land
 * where the guest writes, and 6,000 scattered ones would make a GiB real (measured: 1.1 GiB against 135 MiB).  Of the image a slab
 * placement uses next to nothing: locked is what was touched. */
static int reserve_all(struct standby *s, const struct standby_options *opt, struct ft_error *err)
{
	uint64_t states = states_bytes(s);
	uint8_t *ring;
	int rc = 0;

	s->image = reserve(&s->image_pool, s->image_bytes, 0, opt->lock_memory, true, err);
	if (s->image)
		s->states = reserve(&s->pool, states, opt->ring_bytes, opt->lock_memory, false, err);
	ring = s->states ? pool_alloc(s->pool, opt->ring_bytes, FT_PAGE_SIZE) : NULL;
	if (!ring)
		return err && err->msg[0]
			       ? -ENOMEM
			       : err_set(err, -ENOMEM,
					 "standby: no %" PRIu64 " octets of address space for a receive image, a ring "
					 "and device states",
					 s->image_bytes + opt->ring_bytes + states);
	for (uint32_t i = 0; i <= s->nr_boxes; i++)
		s->device[i].memory = s->states + i * s->state_max;
	s->kept = &s->device[s->nr_boxes];
	rc = ring_create(&s->ring, ring, opt->ring_bytes / FT_PAGE_SIZE);
	for (uint32_t i = 0; !rc && i < s->nr_boxes; i++) {
		s->box[i].device = &s->device[i];
		rc = received_create(&s->box[i].received, s->regions->nr_pages);
	}
	if (!rc)
		rc = bitmap_create(&s->landed, s->regions->nr_pages);
	if (!rc && s->copier->crew)
		rc = bitmap_create(&s->under_way, s->regions->nr_pages);
	if (rc)
		return err_sys(err, rc, "standby: notes on %" PRIu64 " pages", s->regions->nr_pages);
	return 0;
}

int standby_create(struct standby **out, const struct region_table *regions, const struct standby_options *opt,
		   struct ft_error *err)
{
	struct standby *s;
	int rc;

	*out = NULL;
	if (!regions->nr_pages)
		return err_set(err, -EINVAL, "standby: there are no regions");
	if (!opt->lanes || opt->lanes > FTW_LANES_MAX || !opt->state_max || opt->state_max > INT64_MAX / 2)
		return err_set(err, -EINVAL, "standby: %u lanes, device state of at most %" PRIu64 " octets",
			       opt->lanes, opt->state_max);
	if (!opt->epochs || opt->epochs > FTW_EPOCH_CREDITS_MAX || opt->ring_bytes % FT_PAGE_SIZE ||
	    opt->ring_bytes / FT_PAGE_SIZE < FTW_RING_SLOTS_MIN || opt->ring_bytes > INT64_MAX / 2)
		return err_set(err, -EINVAL, "standby: %u epochs, a ring of %" PRIu64 " octets", opt->epochs,
			       opt->ring_bytes);
	s = FT_FAULT("standby/create") ? NULL : calloc(1, sizeof(*s));
	if (!s)
		return err_sys(err, -ENOMEM, "standby");
	s->regions = regions;
	s->state_max = opt->state_max;
	s->image_bytes = regions->nr_pages * FT_PAGE_SIZE;
	s->lanes = opt->lanes;
	s->nr_boxes = opt->epochs;
	s->copier = opt->copier ? opt->copier : &s->alone;
	s->window = 1;
	s->is_whole = true;
	rc = reserve_all(s, opt, err);
	if (rc) {
		standby_destroy(s);
		return rc;
	}
	*out = s;
	return 0;
}

void standby_destroy(struct standby *s)
{
	if (!s)
		return;
	bitmap_destroy(s->landed);
	bitmap_destroy(s->under_way);
	for (uint32_t i = 0; i < s->nr_boxes; i++)
		received_destroy(s->box[i].received);
	if (s->ring.memory)
		pool_free(s->pool, s->ring.memory, s->ring.slots * FT_PAGE_SIZE);
	ring_destroy(&s->ring);
	if (s->states)
		pool_free(s->pool, s->states, states_bytes(s));
	if (s->image)
		pool_free(s->image_pool, s->image, s->image_bytes);
	pool_destroy(s->pool);
	pool_destroy(s->image_pool);
	free(s);
}

void standby_empty(struct incoming *in)
{
	received_reset(in->received);
	in->epoch = in->nr_data = in->nr_zero = in->digest = in->side_bytes = 0;
	in->commit_pending = in->whole = in->in_ring = false;
	in->ring_begin = in->ring_end = 0;
	in->lanes = 0;
	in->device->len_bytes = in->device->total_bytes = 0;
}

void standby_trim(struct standby *s)
{
	if (!s->nr_landed)
		return;
	pool_trim(s->image_pool, s->image, s->image_bytes);
	bitmap_clear(s->landed);
	s->nr_landed = 0;
}

/* Forget what has come of epochs that are not committed.  Their pages stay in image and ring and mean nothing. */
static void drop_partial(struct standby *s)
{
	for (uint64_t epoch = s->committed + 1; epoch <= s->applied + s->nr_boxes; epoch++)
		standby_empty(standby_box(s, epoch));
}

void standby_connect(struct standby *s, uint32_t lanes, uint32_t slab_epochs)
{
	assert(lanes && lanes <= FTW_LANES_MAX && slab_epochs <= s->nr_boxes);
	assert(!standby_pending(s) || (!s->slab && !slab_epochs));
	drop_partial(s);
	s->lanes = lanes;
	if (!standby_pending(s))
		s->slab = slab_epochs; /* else an apply may be reading it, and it stays as it is */
	s->window = slab_epochs ? slab_epochs : 1;
	if (s->slab) {
		standby_trim(s);
		ring_reset(&s->ring);
	}
	memset(s->seq, 0, sizeof(s->seq));
	memset(s->ended, 0, sizeof(s->ended));
	memset(s->lane_end, 0, sizeof(s->lane_end));
	for (uint32_t lane = 0; lane <= FTW_LANES_MAX; lane++)
		s->checks[lane].nr = 0;
	s->broken = s->making_room = false;
	standby_check(s);
}

void standby_restart(struct standby *s)
{
	assert(!standby_pending(s) && !s->applying);
	drop_partial(s);
	s->committed = s->applied = 0;
	s->is_whole = true;
	standby_check(s);
}

void standby_keep_image(struct standby *s)
{
	assert(s->image_epoch && !s->committed && !standby_box(s, 1)->epoch);
	s->is_whole = false;
}

/* -- records: each function takes one, or leaves all as it was -- */

/* refuse - "notify-write of epoch 7: ..." */
static int refuse(struct ft_error *err, int code, const struct record_head *head, const char *fmt, ...) FT_PRINTF(4, 5);
static int refuse(struct ft_error *err, int code, const struct record_head *head, const char *fmt, ...)
{
	char text[FT_ERROR_MAX / 2], name[24];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(err, code, "%s of epoch %" PRIu64 ": %s", record_name(head->type, name), head->epoch, text);
}

static struct page_run run_at(const struct runs *r, uint32_t i)
{
	struct ftw_run w;

	memcpy(&w, &r->run[i], sizeof(w)); /* a message may lie at any address */
	return (struct page_run){ from_be64(w.first_page), from_be32(w.nr_pages) };
}

/* The page space has gaps behind regions; a run may cover several regions where there is none. */
static int check_held(const struct standby *s, const struct record_head *head, struct page_run run,
		      struct ft_error *err)
{
	uint64_t held;

	for (uint64_t page = run.first; page < run.first + run.nr; page += held)
		if (!region_page_address(s->regions, page, &held))
			return refuse(err, -EPROTO, head, "no region holds page %" PRIu64, page);
	return 0;
}

/* The pages of a record, one by one: their digest, and which are not what page-checks said. */
struct tally {
	uint64_t digest;
	uint32_t nr;
	const struct checks *checks; /* NULL: none came */
	uint32_t nr_bad;
	uint64_t first_bad;
};

static int tally_begin(const struct standby *s, const struct record_head *head, uint32_t nr_pages, struct tally *t,
		       struct ft_error *err)
{
	const struct checks *c = &s->checks[s->lane];

	*t = (struct tally){ .checks = c->nr ? c : NULL };
	if (c->nr && (c->epoch != head->epoch || c->nr != nr_pages))
		return refuse(err, -EPROTO, head,
			      "it tells %u pages, the page-checks in front of it were of %u pages of epoch %" PRIu64,
			      nr_pages, c->nr, c->epoch);
	return 0;
}

static void tally_page(struct tally *t, const uint8_t *at, uint64_t page)
{
	uint64_t digest = digest_page(at, page);

	t->digest += digest;
	if (t->checks && t->checks->check[t->nr] != (uint32_t)digest && !t->nr_bad++)
		t->first_bad = page;
	t->nr++;
}

/* Of pages that lie one behind the other at @at. */
static void tally_run(struct tally *t, struct page_run run, const uint8_t *at)
{
	for (uint64_t i = 0; i < run.nr; i++)
		tally_page(t, at + i * FT_PAGE_SIZE, run.first + i);
}

static uint64_t digest_zeros(struct page_run run)
{
	uint64_t sum = 0;

	for (uint64_t page = run.first; page < run.first + run.nr; page++)
		sum += digest_zero(page);
	return sum;
}

static void tally_ring_run(struct tally *t, const struct ring *ring, uint64_t position, struct page_run run)
{
	for (uint64_t i = 0; i < run.nr; i++)
		tally_page(t, ring_at(ring, position + i), run.first + i);
}

static void note_run(struct incoming *in, struct page_run run, bool zero)
{
	int rc = zero ? received_zero(in->received, in->epoch, run.first, run.nr)
		      : received_data(in->received, in->epoch, run.first, run.nr);

	assert(rc == 0); /* epoch and range are checked */
	if (zero)
		in->nr_zero += run.nr;
	else
		in->nr_data += run.nr;
}

static int check_runs(struct standby *s, const struct record_head *head, const struct runs *r, struct ft_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < r->count; i++)
		rc = check_held(s, head, run_at(r, i), err);
	return rc;
}

static int check_digest(const struct record_head *head, uint32_t nr_pages, uint64_t announced, uint64_t digest,
			struct ft_error *err)
{
	if (digest == announced)
		return 0;
	return refuse(err, -EBADMSG, head, "digest of %u pages is %016" PRIx64 ", %016" PRIx64 " was announced",
		      nr_pages, digest, announced);
}

static int check_tally(const struct standby *s, const struct record_head *head, const struct tally *t, uint64_t digest,
		       struct ft_error *err)
{
	const struct region *region = region_of_page(s->regions, t->first_bad);

	if (t->nr_bad && region)
		return refuse(err, -EBADMSG, head,
			      "page %" PRIu64 " (%s, octet %" PRIu64 ") is not what was sent; of %u pages %u are not",
			      t->first_bad, region->name, (t->first_bad - region->first_page) * FT_PAGE_SIZE, t->nr,
			      t->nr_bad);
	return check_digest(head, t->nr, digest, t->digest, err);
}

/* The digest is taken at once: the pages have just been put into the image and are hot. */
static int take_write(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		      struct ft_error *err)
{
	struct tally t;
	struct runs r;
	int rc = consume_runs(body, s->regions->nr_pages, &r, err);

	if (!rc && s->slab)
		rc = refuse(err, -EPROTO, head, "the placement is slab");
	if (!rc)
		rc = check_runs(s, head, &r, err);
	if (!rc)
		rc = tally_begin(s, head, r.nr_pages, &t, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < r.count; i++)
		tally_run(&t, run_at(&r, i), s->image + run_at(&r, i).first * FT_PAGE_SIZE);
	rc = check_tally(s, head, &t, r.digest, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < r.count; i++) {
		struct page_run run = run_at(&r, i);

		note_run(in, run, false);
		s->nr_landed += bitmap_set_run(s->landed, run.first, run.nr);
	}
	in->digest += t.digest;
	return 0;
}

/* What the page is before the record: as this epoch told it, or as the epoch before left it. */
static uint8_t *base_of_delta(struct standby *s, const struct incoming *in, uint64_t page)
{
	uint8_t *at = s->image + page * FT_PAGE_SIZE;

	if (bitmap_test(received_data_set(in->received), page))
		return at;
	if (bitmap_test(received_zero_set(in->received), page))
		memset(at, 0, FT_PAGE_SIZE);
	else
		memcpy(at, region_page_address(s->regions, page, NULL), FT_PAGE_SIZE);
	return at;
}

static int check_deltas(const struct standby *s, const struct record_head *head, const struct deltas *d,
			struct ft_error *err)
{
	uint32_t at = 0;
	uint64_t page;
	int rc = 0;

	if (s->slab)
		return refuse(err, -EPROTO, head, "the placement is slab");
	if (!s->applied)
		return refuse(err, -EPROTO, head, "there is nothing here yet that a page could differ from");
	while (!rc && deltas_next(d, &at, &page))
		rc = check_held(s, head, (struct page_run){ page, 1 }, err);
	return rc;
}

/* Its pages are made in the receive image, and are told by it as by a notify-write.  The standby image rests: the epoch before is applied (S4). */
static int take_delta(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		      struct ft_error *err)
{
	const uint8_t *delta;
	struct deltas d;
	struct tally t;
	uint32_t at = 0;
	uint64_t page;
	int rc = consume_deltas(body, s->regions->nr_pages, &d, err);

	if (!rc)
		rc = check_deltas(s, head, &d, err);
	if (!rc)
		rc = tally_begin(s, head, d.count, &t, err);
	if (rc)
		return rc;
	while ((delta = deltas_next(&d, &at, &page))) {
		uint8_t *to = base_of_delta(s, in, page);

		delta_unpack(to, delta);
		tally_page(&t, to, page);
	}
	rc = check_tally(s, head, &t, d.digest, err);
	if (rc)
		return rc;
	for (at = 0; deltas_next(&d, &at, &page);) {
		note_run(in, (struct page_run){ page, 1 }, false);
		s->nr_landed += bitmap_set_run(s->landed, page, 1);
	}
	in->digest += t.digest;
	return 0;
}

static int take_zero(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		     struct ft_error *err)
{
	uint64_t digest = 0;
	struct runs r;
	int rc = consume_runs(body, s->regions->nr_pages, &r, err);

	if (!rc)
		rc = check_runs(s, head, &r, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < r.count; i++)
		digest += digest_zeros(run_at(&r, i));
	rc = check_digest(head, r.nr_pages, r.digest, digest, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < r.count; i++)
		note_run(in, run_at(&r, i), true);
	in->digest += digest;
	return 0;
}

/* applied(n) frees all up to the last position of n: those of the next epochs lie behind it.  And a page's last word, which its lane has in the
 * order of the records, is the one at its highest position: apply goes by that. */
static int check_position(struct standby *s, const struct record_head *head, uint64_t position, uint64_t nr,
			  struct ft_error *err)
{
	uint64_t behind = s->lane_end[s->lane];

	if (!ring_may_tell(&s->ring, position, nr))
		return refuse(err, -EPROTO, head,
			      "%" PRIu64 " pages at position %" PRIu64
			      ": told before, or outside of the ring, which has %" PRIu64 " from %" PRIu64,
			      nr, position, s->ring.slots, s->ring.freed);
	for (uint64_t epoch = s->applied + 1; epoch <= s->applied + s->window; epoch++) {
		const struct incoming *other = standby_box(s, epoch);

		if (!other->in_ring || epoch == head->epoch)
			continue;
		if (epoch < head->epoch ? position < other->ring_end : position + nr > other->ring_begin)
			return refuse(err, -EPROTO, head, "position %" PRIu64 " is among those of epoch %" PRIu64,
				      position, epoch);
	}
	if (position < behind)
		return refuse(err, -EPROTO, head, "position %" PRIu64 " on lane %u, which was at %" PRIu64 " already",
			      position, s->lane, behind);
	return 0;
}

static void tell_ring(struct standby *s, struct incoming *in, const struct slab_runs *r)
{
	uint64_t position = r->position;

	for (uint32_t i = 0; i < r->runs.count; i++) {
		struct page_run run = run_at(&r->runs, i);

		note_run(in, run, false);
		for (uint64_t page = run.first; page < run.first + run.nr; page++)
			ring_tell(&s->ring, position++, page);
	}
	if (!in->in_ring || r->position < in->ring_begin)
		in->ring_begin = r->position;
	if (position > in->ring_end)
		in->ring_end = position;
	s->lane_end[s->lane] = position;
	in->in_ring = true;
}

static int take_slab(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		     struct ft_error *err)
{
	struct slab_runs r;
	uint64_t position;
	struct tally t;
	int rc = consume_slab_runs(body, s->regions->nr_pages, &r, err);

	if (!rc && !s->slab)
		rc = refuse(err, -EPROTO, head, "the placement is mirror");
	if (!rc)
		rc = check_runs(s, head, &r.runs, err);
	if (!rc)
		rc = check_position(s, head, r.position, r.runs.nr_pages, err);
	if (!rc)
		rc = tally_begin(s, head, r.runs.nr_pages, &t, err);
	if (rc)
		return rc;
	position = r.position;
	for (uint32_t i = 0; i < r.runs.count; position += run_at(&r.runs, i).nr, i++)
		tally_ring_run(&t, &s->ring, position, run_at(&r.runs, i));
	rc = check_tally(s, head, &t, r.runs.digest, err);
	if (rc)
		return rc;
	tell_ring(s, in, &r);
	in->digest += t.digest;
	return 0;
}

/* Kept for the record that tells these pages. */
static int take_checks(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		       struct ft_error *err)
{
	struct checks *kept = &s->checks[s->lane];
	struct page_checks c;
	int rc = consume_page_checks(body, &c, err);

	(void)in;
	if (rc)
		return rc;
	kept->epoch = head->epoch;
	kept->nr = c.count;
	for (uint32_t i = 0; i < c.count; i++)
		kept->check[i] = page_check(&c, i);
	return 0;
}

static int take_state(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		      struct ft_error *err)
{
	struct device *d = in->device;
	struct device_state piece;
	int rc = consume_device_state(body, &piece, err);

	if (rc)
		return rc;
	if (piece.total_bytes > s->state_max)
		return refuse(err, -E2BIG, head, "%" PRIu64 " octets, at most %" PRIu64 " are taken here",
			      piece.total_bytes, s->state_max);
	if (piece.offset != d->len_bytes)
		return refuse(err, -EPROTO, head, "piece at offset %" PRIu64 ", %" PRIu64 " was expected", piece.offset,
			      d->len_bytes);
	if (d->len_bytes && piece.total_bytes != d->total_bytes)
		return refuse(err, -EPROTO, head, "%" PRIu64 " octets in all, %" PRIu64 " were announced before",
			      piece.total_bytes, d->total_bytes);
	memcpy(d->memory + d->len_bytes, piece.data, piece.data_bytes);
	d->total_bytes = piece.total_bytes;
	d->len_bytes += piece.data_bytes;
	if (d->len_bytes > d->peak_bytes)
		d->peak_bytes = d->len_bytes;
	return 0;
}

static int take_side(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		     struct ft_error *err)
{
	struct side_data piece;
	int rc = consume_side_data(body, &piece, err);

	if (rc)
		return rc;
	if (head->epoch != s->committed + 1)
		return refuse(err, -ESTALE, head, "epoch %" PRIu64 " is not committed yet", s->committed + 1);
	if (piece.offset != in->side_bytes)
		return refuse(err, -EPROTO, head, "piece at offset %" PRIu64 ", %" PRIu64 " was expected", piece.offset,
			      in->side_bytes);
	s->side = piece;
	in->side_bytes += piece.data_bytes;
	in->digest += digest_side(piece.data, piece.data_bytes, piece.offset);
	return 0;
}

/* On each lane all of an epoch stands before all of the next one: no record that @c names may be of an epoch behind it. */
static int check_later(struct standby *s, const struct record_head *head, const struct commit *c, struct ft_error *err)
{
	for (uint64_t epoch = head->epoch + 1; epoch <= s->applied + s->window; epoch++) {
		const struct incoming *later = standby_box(s, epoch);

		for (uint32_t lane = 1; lane <= c->lanes; lane++)
			if (later->lanes >> lane & 1 && ahead(later->first[lane], c->seq[lane - 1]) <= 0)
				return refuse(err, -EPROTO, head,
					      "lane %u ends with record %u, and record %u is of epoch %" PRIu64, lane,
					      c->seq[lane - 1], later->first[lane], epoch);
	}
	return 0;
}

static int take_commit(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
		       struct ft_error *err)
{
	struct commit c;
	int rc = consume_commit(body, &c, err);

	if (rc)
		return rc;
	if (in->commit_pending)
		return refuse(err, -EPROTO, head, "it came before");
	if (c.lanes != s->lanes)
		return refuse(err, -EPROTO, head, "%u data lanes, %u were agreed", c.lanes, s->lanes);
	if (head->epoch > s->committed + 1 && !standby_box(s, head->epoch - 1)->commit_pending)
		return refuse(err, -EPROTO, head, "the commit of epoch %" PRIu64 " was expected", head->epoch - 1);
	for (uint32_t lane = 1; lane <= c.lanes; lane++) {
		if (in->lanes >> lane & 1 && ahead(in->last[lane], c.seq[lane - 1]) > 0)
			return refuse(err, -EPROTO, head, "lane %u ends with record %u, record %u came already", lane,
				      c.seq[lane - 1], in->last[lane]);
		if (ahead(s->ended[lane], c.seq[lane - 1]) > 0)
			return refuse(err, -EPROTO, head,
				      "lane %u ends with record %u, in the epoch before it ended with %u", lane,
				      c.seq[lane - 1], s->ended[lane]);
	}
	rc = check_later(s, head, &c, err);
	if (rc)
		return rc;
	memcpy(&s->ended[1], c.seq, c.lanes * sizeof(c.seq[0]));
	in->commit = c;
	in->commit_pending = true;
	return 0;
}

/* -- commit -- */

static bool tells_pages(uint32_t type)
{
	return type == FTW_NOTIFY_WRITE || type == FTW_NOTIFY_SLAB || type == FTW_NOTIFY_DELTA;
}

/* Behind page-checks comes what they are of. */
static int check_checks(struct standby *s, uint32_t lane, const struct record_head *head, struct ft_error *err)
{
	if (!s->checks[lane].nr || tells_pages(head->type))
		return 0;
	return refuse(err, -EPROTO, head, "it stands behind page-checks of %u pages on lane %u, which nothing told",
		      s->checks[lane].nr, lane);
}

static int verify(const struct incoming *in, struct ft_error *err)
{
	const struct record_head head = { .type = FTW_COMMIT, .epoch = in->epoch };
	const struct device *d = in->device;
	uint64_t digest = in->digest;

	if (in->nr_data != in->commit.nr_data_pages)
		return refuse(err, -EPROTO, &head, "%" PRIu64 " data pages told, %" PRIu64 " announced", in->nr_data,
			      in->commit.nr_data_pages);
	if (in->nr_zero != in->commit.nr_zero_pages)
		return refuse(err, -EPROTO, &head, "%" PRIu64 " zero pages told, %" PRIu64 " announced", in->nr_zero,
			      in->commit.nr_zero_pages);
	if (d->len_bytes != in->commit.state_bytes || d->len_bytes != d->total_bytes)
		return refuse(err, -EPROTO, &head, "%" PRIu64 " octets of device state came, %" PRIu64 " announced",
			      d->len_bytes, in->commit.state_bytes);
	if (in->side_bytes != in->commit.side_bytes)
		return refuse(err, -EPROTO, &head, "%" PRIu64 " octets of the side stream came, %" PRIu64 " announced",
			      in->side_bytes, in->commit.side_bytes);
	digest += digest_state(d->memory, d->len_bytes);
	if (digest != in->commit.digest)
		return refuse(err, -EBADMSG, &head, "digest is %016" PRIx64 ", %016" PRIx64 " was announced", digest,
			      in->commit.digest);
	return 0;
}

/* Is the oldest epoch that is not committed whole now?  Its commit may have come before the lanes were at its end, so this is tried after each
 * record. */
static int settle(struct standby *s, enum standby_event *event, struct ft_error *err)
{
	struct incoming *in = standby_box(s, s->committed + 1);
	const struct record_head end = { .type = FTW_COMMIT, .epoch = in->epoch };
	int rc;

	if (s->committed + 1 > s->applied + s->window || !in->commit_pending)
		return 0;
	for (uint32_t lane = 1; lane <= s->lanes; lane++)
		if (ahead(s->seq[lane], in->commit.seq[lane - 1]) < 0)
			return 0;
	rc = verify(in, err);
	for (uint32_t lane = 1; !rc && lane <= s->lanes; lane++)
		if (s->checks[lane].epoch == in->epoch)
			rc = check_checks(s, lane, &end, err);
	if (rc)
		return rc;
	in->whole = true;
	*event |= STANDBY_WHOLE;
	return 0;
}

static bool next_is_whole(struct standby *s)
{
	const struct incoming *in = standby_box(s, s->committed + 1);

	return in->epoch == s->committed + 1 && in->whole;
}

int standby_commit(struct standby *s, enum standby_event *event, struct ft_error *err)
{
	int rc;

	assert(next_is_whole(s) && !s->broken);
	s->committed++;
	*event = STANDBY_NOTHING;
	rc = settle(s, event, err);
	s->broken = rc != 0;
	standby_check(s);
	return rc;
}

/* -- one message -- */

typedef int take_record(struct standby *s, struct incoming *in, const struct record_head *head, struct cursor *body,
			struct ft_error *err);

static const struct kind {
	uint32_t type;
	uint32_t lane_min, lane_max;
	take_record *take;
	enum standby_event event;
} kinds[] = {
	{ FTW_NOTIFY_WRITE, 1, FTW_LANES_MAX, take_write, STANDBY_NOTHING },
	{ FTW_NOTIFY_SLAB, 1, FTW_LANES_MAX, take_slab, STANDBY_NOTHING },
	{ FTW_NOTIFY_DELTA, 1, FTW_LANES_MAX, take_delta, STANDBY_NOTHING },
	{ FTW_PAGE_CHECKS, 1, FTW_LANES_MAX, take_checks, STANDBY_NOTHING },
	{ FTW_ZERO_PAGES, 1, FTW_LANES_MAX, take_zero, STANDBY_NOTHING },
	{ FTW_DEVICE_STATE, 1, 1, take_state, STANDBY_NOTHING },
	{ FTW_SIDE_DATA, 1, 1, take_side, STANDBY_SIDE },
	{ FTW_COMMIT, 0, 0, take_commit, STANDBY_NOTHING },
};

/* One that we do not know and need not: it has a number on its lane, which the commit counts, and no effect. */
static const struct kind skipped = { 0, 1, FTW_LANES_MAX, NULL, STANDBY_NOTHING };

static const struct kind *kind_of(uint32_t type)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].type == type)
			return &kinds[i];
	return (type & FTW_OPTIONAL) && !record_type_find(type) ? &skipped : NULL;
}

static int check_lane(const struct standby *s, const struct kind *kind, uint32_t lane, const struct record_head *head,
		      struct ft_error *err)
{
	if (lane > s->lanes || lane < kind->lane_min || lane > kind->lane_max)
		return refuse(err, -EPROTO, head, "it does not belong on lane %u", lane);
	if (lane && ahead(head->seq, s->seq[lane]) > 1)
		return refuse(err, -EPROTO, head, "record %u on lane %u, %u was expected", head->seq, lane,
			      s->seq[lane] + 1);
	return 0;
}

/* The other epochs under way: their records do not stand behind one of this epoch, nor before. */
static int check_order(struct standby *s, uint32_t lane, const struct record_head *head, struct ft_error *err)
{
	for (uint64_t epoch = s->committed + 1; epoch <= s->applied + s->window; epoch++) {
		const struct incoming *other = standby_box(s, epoch);

		if (epoch < head->epoch && other->commit_pending && ahead(head->seq, other->commit.seq[lane - 1]) <= 0)
			return refuse(err, -EPROTO, head,
				      "record %u on lane %u, which the commit of epoch %" PRIu64 " names as its own",
				      head->seq, lane, epoch);
		if (epoch > head->epoch && other->lanes >> lane & 1)
			return refuse(err, -EPROTO, head, "it stands behind a record of epoch %" PRIu64 " on lane %u",
				      epoch, lane);
	}
	return 0;
}

/* S4, that an epoch ends with its commit, and the order of epochs on a lane. */
static int check_epoch(struct standby *s, uint32_t lane, const struct record_head *head, struct ft_error *err)
{
	uint64_t next = s->committed + 1;
	const struct incoming *in;

	if (head->epoch <= s->committed)
		return refuse(err, -ESTALE, head, "epoch %" PRIu64 " is committed already", s->committed);
	if (head->epoch > s->applied + s->window) {
		if (standby_pending(s))
			return refuse(err, -ESTALE, head, "epoch %" PRIu64 " is not applied yet", s->applied + 1);
		if (standby_box(s, next)->epoch)
			return refuse(err, -ESTALE, head, "epoch %" PRIu64 " is not committed yet", next);
		return refuse(err, -EPROTO, head, "epoch %" PRIu64 " was expected", next);
	}
	in = standby_box(s, head->epoch);
	if (in->commit_pending && lane && ahead(head->seq, in->commit.seq[lane - 1]) > 0)
		return refuse(err, -EPROTO, head, "record %u on lane %u is behind the commit, which says %u", head->seq,
			      lane, in->commit.seq[lane - 1]);
	return lane ? check_order(s, lane, head, err) : 0;
}

static struct incoming *begin_epoch(struct standby *s, uint64_t epoch)
{
	struct incoming *in = standby_box(s, epoch);
	int rc;

	if (in->epoch)
		return in;
	rc = received_begin(in->received, epoch);
	assert(rc == 0);
	in->epoch = epoch;
	return in;
}

static int take(struct standby *s, const struct kind *kind, uint32_t lane, const struct record_head *head,
		struct cursor *body, enum standby_event *event, struct ft_error *err)
{
	struct incoming *in = NULL;
	int rc = check_lane(s, kind, lane, head, err);

	if (rc)
		return rc;
	if (ahead(head->seq, s->seq[lane]) <= 0) {
		s->duplicates++;
		return 0;
	}
	if (kind->take) {
		rc = check_epoch(s, lane, head, err);
		if (!rc)
			rc = check_checks(s, lane, head, err);
		if (rc)
			return rc;
		in = begin_epoch(s, head->epoch);
		s->lane = lane;
		rc = kind->take(s, in, head, body, err);
		if (tells_pages(head->type))
			s->checks[lane].nr = 0;
	}
	if (rc)
		return rc;
	s->seq[lane] = head->seq;
	if (in) {
		if (!(in->lanes >> lane & 1))
			in->first[lane] = head->seq;
		in->last[lane] = head->seq;
		in->lanes |= 1u << lane;
	}
	*event |= kind->event;
	return settle(s, event, err);
}

int standby_consume(struct standby *s, uint32_t lane, const void *msg, size_t len, enum standby_event *event,
		    struct ft_error *err)
{
	const struct kind *kind;
	struct record_head head;
	struct cursor body;
	char name[24];
	int rc;

	assert(!next_is_whole(s));
	*event = STANDBY_NOTHING;
	if (s->broken)
		return err_set(err, -EPROTO, "a record of this connection was refused before");
	rc = consume_head(msg, len, &head, &body, err);
	if (!rc) {
		kind = kind_of(head.type);
		if (!kind)
			return err_set(err, -EINVAL, "%s does not belong to an epoch", record_name(head.type, name));
		rc = take(s, kind, lane, &head, &body, event, err);
	}
	if (rc)
		*event = STANDBY_NOTHING;
	s->broken = rc != 0;
	standby_check(s);
	return rc;
}

/* -- to look at -- */

struct side_data standby_side(const struct standby *s)
{
	return s->side;
}

void *standby_image(struct standby *s, uint64_t *len)
{
	*len = s->image_bytes;
	return s->image;
}

void *standby_ring(struct standby *s, uint64_t *len)
{
	*len = s->ring.slots * FT_PAGE_SIZE;
	return s->ring.memory;
}

uint64_t standby_memory_bytes(struct standby *s)
{
	uint64_t sum = (s->nr_landed + s->ring.touched) * FT_PAGE_SIZE;

	for (uint32_t i = 0; i <= s->nr_boxes; i++)
		sum += s->device[i].peak_bytes;
	return sum;
}

uint64_t standby_memory_cap(const struct standby *s)
{
	return s->image_bytes + s->ring.slots * FT_PAGE_SIZE + states_bytes(s);
}

uint64_t standby_epoch_committed(const struct standby *s)
{
	return s->committed;
}

uint64_t standby_epoch_applied(const struct standby *s)
{
	return s->applied;
}

uint64_t standby_epoch_image(const struct standby *s)
{
	return s->image_epoch;
}

uint64_t standby_epoch_receiving(const struct standby *s)
{
	uint64_t next = s->committed + 1;

	return s->box[next % s->nr_boxes].epoch == next ? next : 0;
}

uint64_t standby_duplicates(const struct standby *s)
{
	return s->duplicates;
}

const void *standby_state(const struct standby *s, uint64_t *len)
{
	*len = s->kept->len_bytes;
	return s->image_epoch ? s->kept->memory : NULL;
}
