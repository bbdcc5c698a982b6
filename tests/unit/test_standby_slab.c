/* SPDX-License-Identifier: MIT */
/* test_standby_slab.c - slab placement in checkpoint/standby.c and ring.c, against a model: a sender that keeps to docs/protocol.md, with one queue a
 * lane, and a receiver whose steps come in any order: a message of any lane, a part of the ring moved, an apply.  A page of the model is one number,
 * which fills it.  After each apply every octet of the standby image is compared with what the sender had at that epoch's commit. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "copy.h"
#include "digest.h"
#include "rng.h"
#include "standby.h"

#define PAGE FT_PAGE_SIZE
#define LANES 3u
#define WINDOW 3u
#define RAM_PAGES 1500u /* region 0; the page space has a gap behind it */
#define VGA_PAGES 100u
#define SPACE 1664u
#define VGA_FIRST 1536u
#define SLOTS ((uint64_t)FTW_RING_SLOTS_MIN)
#define TOLD_MAX 40u /* pages of a message */
#define QUEUE 4096u
#define STATE_MAX 64u

struct message {
	size_t len;
	uint64_t position; /* of its pages in the ring */
	uint32_t nr;
	uint64_t tag[TOLD_MAX];
	uint8_t octets[2048];
};

struct rig {
	struct rng rng;
	struct region_table *regions;
	uint8_t *memory[2];
	struct copier copier; /* of the apply */
	struct standby *standby;
	uint8_t *ring;
	/* sender */
	uint64_t page[SPACE];          /* the number that fills it now */
	uint64_t at_commit[16][SPACE]; /* by epoch */
	uint64_t epoch, position, freed, applied, acked;
	uint64_t end[16]; /* of the ring, by epoch */
	uint32_t left;    /* messages until its commit */
	uint32_t seq[LANES + 1];
	struct commit commit;
	struct {
		struct message *message;
		uint32_t first, end;
	} lane[LANES + 1];
	/* receiver */
	uint64_t moved, applies, in_flight_max;
	struct ft_error err;
};

static void fill(uint8_t *at, uint64_t tag)
{
	for (unsigned i = 0; i < PAGE / 8; i++)
		memcpy(at + i * 8, &tag, 8);
}

static void rig_open_with(struct rig *r, uint64_t seed, unsigned threads)
{
	struct standby_options opt = { .lanes = LANES,
				       .state_max = STATE_MAX,
				       .epochs = WINDOW,
				       .ring_bytes = SLOTS * PAGE,
				       .copier = &r->copier };
	static const uint64_t pages[2] = { RAM_PAGES, VGA_PAGES };
	static const char *const names[2] = { "ram", "vga" };
	uint64_t len;

	memset(r, 0, sizeof(*r));
	r->rng = (struct rng){ seed * 2 + 1 };
	cr_assert_eq(copier_create(&r->copier, threads, "test-apply", &r->err), 0, "%s", r->err.msg);
	r->regions = region_table_empty();
	for (unsigned i = 0; i < 2; i++) {
		struct region_table *more;

		r->memory[i] = aligned_alloc(PAGE, pages[i] * PAGE);
		memset(r->memory[i], 0xaa, pages[i] * PAGE);
		more = region_table_add(r->regions, names[i], r->memory[i], pages[i] * PAGE, &r->err);
		cr_assert(more, "%s", r->err.msg);
		region_table_free(r->regions);
		r->regions = more;
	}
	cr_assert_eq(r->regions->nr_pages, SPACE);
	cr_assert_eq(r->regions->region[1].first_page, VGA_FIRST);
	cr_assert_eq(standby_create(&r->standby, r->regions, &opt, &r->err), 0, "%s", r->err.msg);
	r->ring = standby_ring(r->standby, &len);
	cr_assert_eq(len, SLOTS * PAGE);
	for (unsigned i = 0; i <= LANES; i++)
		r->lane[i].message = calloc(QUEUE, sizeof(struct message));
}

static void rig_open(struct rig *r, uint64_t seed)
{
	rig_open_with(r, seed, 1);
}

static void rig_close(struct rig *r)
{
	standby_destroy(r->standby);
	copier_destroy(&r->copier);
	region_table_free(r->regions);
	free(r->memory[0]);
	free(r->memory[1]);
	for (unsigned i = 0; i <= LANES; i++)
		free(r->lane[i].message);
}

/* ---- sender ---- */

static void begin_epoch(struct rig *r)
{
	r->epoch++;
	r->left = (uint32_t)rng_range(&r->rng, 0,
				      rng_range(&r->rng, 0, 9) ? 12 : 60); /* now and then longer than the ring */
	r->commit = (struct commit){ .lanes = LANES, .digest = digest_state(NULL, 0) };
}

static void connect_anew(struct rig *r)
{
	standby_connect(r->standby, LANES, WINDOW);
	standby_restart(r->standby);
	memset(r->seq, 0, sizeof(r->seq));
	r->epoch = r->position = r->freed = r->applied = r->acked = 0;
	memset(r->page, 0, sizeof(r->page)); /* the first epoch is the whole machine: what it does not tell is zeros */
	for (unsigned i = 0; i <= LANES; i++)
		r->lane[i].first = r->lane[i].end = 0;
	begin_epoch(r);
}

static struct message *queue_message(struct rig *r, uint32_t lane)
{
	struct message *m = &r->lane[lane].message[r->lane[lane].end++ % QUEUE];

	cr_assert_leq(r->lane[lane].end - r->lane[lane].first, QUEUE);
	m->nr = 0;
	return m;
}

/* Up to TOLD_MAX pages of a stripe of 64: a page keeps to its lane. */
static uint32_t draw_runs(struct rig *r, struct page_run *run, uint32_t *nr_pages, uint32_t *lane)
{
	uint64_t stripe = rng_range(&r->rng, 0, SPACE / 64 - 1), at = stripe * 64 + rng_range(&r->rng, 0, 20);
	uint64_t end = stripe * 64 + 64;
	uint32_t n = 0;

	*nr_pages = 0;
	*lane = 1 + (uint32_t)(stripe % LANES);
	if (end > RAM_PAGES && at < VGA_FIRST)
		end = RAM_PAGES;
	if (end > VGA_FIRST + VGA_PAGES)
		end = VGA_FIRST + VGA_PAGES;
	for (uint64_t nr; at < end && *nr_pages < TOLD_MAX; at += nr + rng_range(&r->rng, 1, 4)) {
		nr = rng_range(&r->rng, 1, 12);
		nr = nr < end - at ? nr : end - at;
		nr = nr < TOLD_MAX - *nr_pages ? nr : TOLD_MAX - *nr_pages;
		run[n++] = (struct page_run){ at, nr };
		*nr_pages += (uint32_t)nr;
	}
	return n;
}

/* False: there is no room for it yet. */
static bool send_pages(struct rig *r)
{
	struct page_run run[TOLD_MAX];
	static uint8_t page[PAGE];
	bool zero = rng_range(&r->rng, 0, 5) == 0;
	uint32_t nr, lane, count = draw_runs(r, run, &nr, &lane);
	uint64_t digest = 0;
	struct message *m;

	if (!count)
		return true;
	if (!zero && r->position + nr > r->freed + SLOTS)
		return false;
	m = queue_message(r, lane);
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t p = run[i].first; p < run[i].first + run[i].nr; p++) {
			r->page[p] = zero ? 0 : rng_next(&r->rng) | 1;
			fill(page, r->page[p]);
			digest += zero ? digest_zero(p) : digest_page(page, p);
			if (!zero)
				m->tag[m->nr++] = r->page[p];
		}
	m->position = r->position;
	m->len = zero ? create_runs(m->octets, FTW_ZERO_PAGES, r->epoch, ++r->seq[lane], run, count, digest)
		      : create_slab_runs(m->octets, r->epoch, ++r->seq[lane], r->position, run, count, digest);
	r->position += m->nr;
	*(zero ? &r->commit.nr_zero_pages : &r->commit.nr_data_pages) += nr;
	r->commit.digest += digest;
	return true;
}

static void send_commit(struct rig *r)
{
	struct message *m = queue_message(r, 0);

	for (uint32_t i = 0; i < LANES; i++)
		r->commit.seq[i] = r->seq[i + 1];
	m->len = create_commit(m->octets, r->epoch, ++r->seq[0], &r->commit);
	memcpy(r->at_commit[r->epoch % 16], r->page, sizeof(r->page));
	r->end[r->epoch % 16] = r->position;
	begin_epoch(r);
}

static void step_sender(struct rig *r)
{
	if (r->epoch > r->applied + WINDOW)
		return;
	if (r->left && send_pages(r))
		r->left--;
	else if (!r->left)
		send_commit(r);
}

/* ---- receiver ---- */

static int put_and_consume(struct rig *r, uint32_t lane, const struct message *m, enum standby_event *event)
{
	for (uint32_t i = 0; i < m->nr; i++)
		fill(r->ring + (m->position + i) % SLOTS * PAGE, m->tag[i]);
	return standby_consume(r->standby, lane, m->octets, m->len, event, &r->err);
}

static void step_lane(struct rig *r, uint32_t lane)
{
	enum standby_event event;

	if (r->lane[lane].first == r->lane[lane].end)
		return;
	cr_assert_eq(put_and_consume(r, lane, &r->lane[lane].message[r->lane[lane].first++ % QUEUE], &event), 0, "%s",
		     r->err.msg);
	for (; event & STANDBY_WHOLE; r->acked++)
		cr_assert_eq(standby_commit(r->standby, &event, &r->err), 0, "%s", r->err.msg);
	if (r->acked - r->applied > r->in_flight_max)
		r->in_flight_max = r->acked - r->applied;
}

static bool filled(const uint8_t *at, uint64_t tag)
{
	for (unsigned i = 0; i < PAGE / 8; i++)
		if (memcmp(at + i * 8, &tag, 8) != 0)
			return false;
	return true;
}

static void check_image(struct rig *r, const uint64_t *model)
{
	for (uint64_t i = 0; i < RAM_PAGES; i++)
		cr_assert(filled(r->memory[0] + i * PAGE, model[i]), "epoch %" PRIu64 ": page %" PRIu64, r->applied, i);
	for (uint64_t i = 0; i < VGA_PAGES; i++)
		cr_assert(filled(r->memory[1] + i * PAGE, model[VGA_FIRST + i]), "epoch %" PRIu64 ": page %" PRIu64,
			  r->applied, VGA_FIRST + i);
}

static void step_apply(struct rig *r)
{
	if (!standby_apply_pending(r->standby))
		return;
	standby_begin_apply(r->standby);
	standby_apply_run(r->standby);
	if (r->applied && rng_range(&r->rng, 0, 3) == 0) /* may be repeated */
		standby_apply_run(r->standby);
	standby_end_apply(r->standby);
	r->applied++;
	r->applies++;
	if (r->end[r->applied % 16] > r->freed)
		r->freed = r->end[r->applied % 16];
	check_image(r, r->at_commit[r->applied % 16]);
}

static void step_room(struct rig *r)
{
	uint64_t before = r->freed;
	struct room room;

	if (!standby_make_room(r->standby, rng_range(&r->rng, 1, 300), &room))
		return;
	cr_assert_eq(room.slots, SLOTS);
	cr_assert_gt(room.freed, before);
	r->moved += room.freed - before;
	r->freed = room.freed;
}

static void step(struct rig *r)
{
	uint64_t which = rng_range(&r->rng, 0, 9);

	if (which < 3)
		step_sender(r);
	else if (which < 8)
		step_lane(r, (uint32_t)rng_range(&r->rng, 0, LANES));
	else if (which == 8)
		step_apply(r);
	else
		step_room(r);
}

/* A lost connection: what is committed is applied, the rest comes again, as a whole machine. */
static void lose(struct rig *r)
{
	while (standby_apply_pending(r->standby))
		step_apply(r);
	connect_anew(r);
}

/* Unless a peer waits for room that never comes, or a page is lost, thousands of epochs in any order are what the sender had. */
static void run_model(uint64_t seed, bool losses, unsigned threads)
{
	struct rig *r = calloc(1, sizeof(*r));

	rig_open_with(r, seed, threads);
	connect_anew(r);
	for (uint64_t i = 0, last = 0, since = 0; r->applies < 400; i++) {
		step(r);
		since = r->applies == last ? since + 1 : 0;
		last = r->applies;
		cr_assert_lt(since, 100000, "nothing goes on");
		if (losses && rng_range(&r->rng, 0, 3000) == 0)
			lose(r);
	}
	cr_assert_gt(r->moved, 1000, "%" PRIu64 " pages were moved to make room", r->moved);
	cr_assert_eq(r->in_flight_max, WINDOW);
	rig_close(r);
	free(r);
}

/* FT_TEST_SEEDS=N: fewer of them, where all is slow. */
static uint64_t seeds(void)
{
	const char *text = getenv("FT_TEST_SEEDS");

	return text ? strtoull(text, NULL, 10) : 3;
}

Test(standby_slab, epochs_in_any_order, .timeout = 240)
{
	for (uint64_t seed = 1; seed <= seeds(); seed++)
		run_model(seed, false, 1);
}

/* Pages are told again all the time: in the order of the positions, whoever copies them. */
Test(standby_slab, applied_by_several_threads, .timeout = 240)
{
	for (unsigned threads = 2; threads < 2 + seeds(); threads++)
		run_model(threads, threads == 3, threads);
}

Test(standby_slab, connections_are_lost, .timeout = 240)
{
	for (uint64_t seed = 11; seed < 11 + seeds(); seed++)
		run_model(seed, true, 1);
}

/* ---- memory ---- */

static void deliver_all(struct rig *r)
{
	for (unsigned lane = 1; lane <= LANES; lane++)
		while (r->lane[lane].first != r->lane[lane].end)
			step_lane(r, lane);
	while (r->lane[0].first != r->lane[0].end)
		step_lane(r, 0);
}

/* Epochs that fit into half of the ring need nothing but the ring; a longer one takes the image for a while. */
Test(standby_slab, memory_is_the_ring_alone, .timeout = 60)
{
	struct rig *r = calloc(1, sizeof(*r));
	uint64_t most = 0;

	rig_open(r, 5);
	connect_anew(r);
	for (unsigned epoch = 1; epoch < 30; epoch++) {
		bool long_one = epoch == 20;

		for (r->left = long_one ? 40 : 5; r->left;) {
			step_sender(r);
			for (unsigned lane = 1; lane <= LANES; lane++)
				step_lane(r, lane);
			step_room(r);
			if (standby_memory_bytes(r->standby) > most)
				most = standby_memory_bytes(r->standby);
		}
		if (epoch < 20)
			cr_assert_leq(most, SLOTS * PAGE);
		send_commit(r);
		deliver_all(r);
		step_apply(r);
		cr_assert_eq(r->applied, epoch);
		cr_assert_leq(standby_memory_bytes(r->standby), SLOTS * PAGE);
	}
	cr_assert_gt(most, SLOTS * PAGE, "the long epoch was not longer than the ring");
	rig_close(r);
	free(r);
}

/* A connection that ends in the middle of a long epoch leaves nothing of it. */
Test(standby_slab, what_was_moved_is_given_back_when_the_connection_ends, .timeout = 60)
{
	struct rig *r = calloc(1, sizeof(*r));

	rig_open(r, 15);
	connect_anew(r);
	r->left = 4;
	while (r->epoch == 1)
		step_sender(r);
	deliver_all(r);
	step_apply(r);
	for (r->left = 90; r->moved < 2 * SLOTS;) {
		step_sender(r);
		for (unsigned lane = 1; lane <= LANES; lane++)
			step_lane(r, lane);
		step_room(r);
	}
	cr_assert_gt(standby_memory_bytes(r->standby), SLOTS * PAGE);
	connect_anew(r);
	cr_assert_leq(standby_memory_bytes(r->standby), SLOTS * PAGE);
	rig_close(r);
	free(r);
}

/* Before there is any image, pages of a long epoch go where they belong; there is nothing that could be lost. */
Test(standby_slab, first_epoch_needs_no_second_image, .timeout = 60)
{
	struct rig *r = calloc(1, sizeof(*r));

	rig_open(r, 6);
	connect_anew(r);
	for (r->left = 90; r->left;) {
		step_sender(r);
		for (unsigned lane = 1; lane <= LANES; lane++)
			step_lane(r, lane);
		step_room(r);
		cr_assert_leq(standby_memory_bytes(r->standby), SLOTS * PAGE);
	}
	cr_assert_gt(r->moved, SLOTS);
	send_commit(r);
	deliver_all(r);
	step_apply(r);
	cr_assert_eq(r->applied, 1);
	rig_close(r);
	free(r);
}

/* ---- what is refused ---- */

static void refused_on(struct rig *r, uint32_t lane, const struct message *m, int code, const char *text)
{
	enum standby_event event;
	int rc;

	memset(&r->err, 0, sizeof(r->err));
	rc = put_and_consume(r, lane, m, &event);
	cr_expect_eq(rc, code, "%d instead of %d for \"%s\": %s", rc, code, text, r->err.msg);
	cr_expect(strstr(r->err.msg, text), "\"%s\" is not in \"%s\"", text, r->err.msg);
	connect_anew(r);
}

static void refused(struct rig *r, const struct message *m, int code, const char *text)
{
	refused_on(r, 1, m, code, text);
}

static struct message one_page(struct rig *r, uint64_t epoch, uint32_t seq, uint64_t position)
{
	static uint8_t page[PAGE];
	struct message m = { .position = position, .nr = 1, .tag = { 77 } };
	struct page_run run = { 3, 1 };

	(void)r;
	fill(page, 77);
	m.len = create_slab_runs(m.octets, epoch, seq, position, &run, 1, digest_page(page, 3));
	return m;
}

static void taken_on(struct rig *r, uint32_t lane, const struct message *m)
{
	enum standby_event event;

	cr_assert_eq(put_and_consume(r, lane, m, &event), 0, "%s", r->err.msg);
}

static void taken(struct rig *r, const struct message *m)
{
	taken_on(r, 1, m);
}

Test(standby_slab, positions_that_are_refused)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct message m;

	rig_open(r, 7);
	connect_anew(r);
	m = one_page(r, 1, 1, SLOTS);
	refused(r, &m, -EPROTO, "outside of the ring");
	m = one_page(r, 1, 1, UINT64_MAX - 1);
	refused(r, &m, -EPROTO, "outside of the ring");
	m = one_page(r, 1, 1, 9);
	taken(r, &m);
	m = one_page(r, 1, 2, 9);
	refused(r, &m, -EPROTO, "told before");
	m = one_page(r, 2, 1, 9);
	taken(r, &m);
	m = one_page(r, 1, 1, 9 + 1);
	refused_on(r, 2, &m, -EPROTO, "among those of epoch 2");
	m = one_page(r, 1, 1, 9);
	taken(r, &m);
	m = one_page(r, 2, 2, 8);
	refused(r, &m, -EPROTO, "among those of epoch 1");
	m = one_page(r, 1, 1, 9);
	taken(r, &m);
	m = one_page(r, 1, 2, 8);
	refused(r, &m, -EPROTO, "on lane 1, which was at 10 already");
	m = one_page(r, WINDOW + 1, 1, 0);
	refused(r, &m, -EPROTO, "was expected");
	m = one_page(r, 1, 1, 0);
	m.tag[0] = 78;
	refused(r, &m, -EBADMSG, "digest");
	rig_close(r);
	free(r);
}

/* A commit of @epoch, of one data page, whose last record on lane 1 is @seq. */
static struct message commit_of(uint64_t epoch, uint32_t number, uint32_t seq)
{
	static uint8_t page[PAGE];
	struct commit c = { .nr_data_pages = 1, .lanes = LANES, .seq = { seq } };
	struct message m = { .nr = 0 };

	fill(page, 77);
	c.digest = digest_page(page, 3) + digest_state(NULL, 0);
	m.len = create_commit(m.octets, epoch, number, &c);
	return m;
}

/* Each lane has all of an epoch before all of the next one, and lane 0 their commits in order. */
Test(standby_slab, epochs_keep_their_order)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct message m;

	rig_open(r, 12);
	connect_anew(r);
	m = commit_of(2, 1, 0);
	refused_on(r, 0, &m, -EPROTO, "commit of epoch 2: the commit of epoch 1 was expected");
	m = commit_of(1, 1, 1);
	taken_on(r, 0, &m);
	m = commit_of(3, 2, 1);
	refused_on(r, 0, &m, -EPROTO, "commit of epoch 3: the commit of epoch 2 was expected");

	m = commit_of(1, 1, 2);
	taken_on(r, 0, &m);
	m = commit_of(2, 2, 1);
	refused_on(r, 0, &m, -EPROTO, "lane 1 ends with record 1, in the epoch before it ended with 2");

	m = one_page(r, 2, 1, 9);
	taken(r, &m);
	m = one_page(r, 1, 2, 1);
	refused(r, &m, -EPROTO, "notify-slab of epoch 1: it stands behind a record of epoch 2 on lane 1");

	m = one_page(r, 1, 1, 0);
	taken(r, &m);
	m = one_page(r, 2, 2, 1);
	taken(r, &m);
	m = commit_of(1, 1, 2);
	refused_on(r, 0, &m, -EPROTO, "commit of epoch 1: lane 1 ends with record 2, and record 2 is of epoch 2");

	m = commit_of(1, 1, 2);
	taken_on(r, 0, &m);
	m = one_page(r, 1, 1, 0);
	taken(r, &m);
	m = one_page(r, 2, 2, 1);
	refused(r, &m, -EPROTO, "record 2 on lane 1, which the commit of epoch 1 names as its own");
	rig_close(r);
	free(r);
}

/* The record of one placement is refused with the other. */
Test(standby_slab, placements_do_not_mix)
{
	struct page_run run = { 3, 1 };
	struct rig *r = calloc(1, sizeof(*r));
	struct message m = { .nr = 0 };

	rig_open(r, 8);
	connect_anew(r);
	m.len = create_runs(m.octets, FTW_NOTIFY_WRITE, 1, 1, &run, 1, 0);
	refused(r, &m, -EPROTO, "placement is slab");
	standby_connect(r->standby, LANES, 0);
	m = one_page(r, 1, 1, 0);
	refused(r, &m, -EPROTO, "placement is mirror");
	rig_close(r);
	free(r);
}

/* Octets of the side stream go to the machine at once, so those of an epoch come when the one before is committed. */
Test(standby_slab, side_stream_waits_for_the_commit_before)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct message m = { .nr = 0 };

	rig_open(r, 9);
	connect_anew(r);
	m.len = create_side_data(m.octets, 2, 1, 0, 8);
	refused(r, &m, -ESTALE, "epoch 1 is not committed yet");
	rig_close(r);
	free(r);
}

/* ---- records that are damaged: an epoch of which one is, is not committed, and the image stays what it is ---- */

#define SMALL 5u

struct small {
	struct message message[SMALL];
	uint32_t lane[SMALL];
};

static void tell_small(struct small *s, unsigned i, uint32_t lane, uint32_t seq, uint64_t position,
		       const struct page_run *run, uint32_t count, struct commit *c)
{
	struct message *m = &s->message[i];
	static uint8_t page[PAGE];
	uint64_t digest = 0;

	*m = (struct message){ .position = position };
	for (uint32_t n = 0; n < count; n++)
		for (uint64_t p = run[n].first; p < run[n].first + run[n].nr; p++) {
			m->tag[m->nr++] = p * 1000 + position;
			fill(page, p * 1000 + position);
			digest += digest_page(page, p);
		}
	m->len = create_slab_runs(m->octets, 1, seq, position, run, count, digest);
	s->lane[i] = lane;
	c->nr_data_pages += m->nr;
	c->digest += digest;
}

/* Epoch 1 of a connection: two records of data, one of zeros, a device state, the commit. */
static void make_small(struct small *s)
{
	const struct page_run first[] = { { 2, 1 }, { 9, 2 }, { 70, 1 } }, second = { 9, 1 }, zero = { 20, 2 };
	struct commit c = { .lanes = LANES, .nr_zero_pages = 2, .state_bytes = 3, .seq = { 3, 1 } };

	tell_small(s, 0, 1, 1, 0, first, 3, &c);
	tell_small(s, 1, 1, 2, 4, &second, 1, &c);
	s->message[2].nr = s->message[3].nr = s->message[4].nr = 0;
	s->message[2].len =
		create_runs(s->message[2].octets, FTW_ZERO_PAGES, 1, 1, &zero, 1, digest_zero(20) + digest_zero(21));
	s->lane[2] = 2;
	s->message[3].len = create_device_state(s->message[3].octets, 1, 3, 3, 0, "abc", 3);
	s->lane[3] = 1;
	c.digest += digest_zero(20) + digest_zero(21) + digest_state("abc", 3);
	s->message[4].len = create_commit(s->message[4].octets, 1, 1, &c);
	s->lane[4] = 0;
}

/* True if it was whole, and was committed. */
static bool deliver_small(struct rig *r, const struct small *s)
{
	enum standby_event event = STANDBY_NOTHING;
	int rc = 0;

	for (unsigned i = 0; !rc && !(event & STANDBY_WHOLE) && i < SMALL; i++)
		rc = put_and_consume(r, s->lane[i], &s->message[i], &event);
	return !rc && event & STANDBY_WHOLE && standby_commit(r->standby, &event, &r->err) == 0;
}

/* With an image that an epoch before has left. */
static void open_small(struct rig *r, uint64_t seed)
{
	rig_open(r, seed);
	connect_anew(r);
	r->left = 4;
	while (r->epoch == 1)
		step_sender(r);
	deliver_all(r);
	step_apply(r);
	cr_assert_eq(r->applied, 1);
}

/* Nothing has touched it, and a good one is taken now. */
static void close_small(struct rig *r)
{
	static struct small s;

	check_image(r, r->at_commit[1]);
	connect_anew(r);
	make_small(&s);
	cr_assert(deliver_small(r, &s), "%s", r->err.msg);
	rig_close(r);
	free(r);
}

Test(standby_slab, every_truncation, .timeout = 60)
{
	struct rig *r = calloc(1, sizeof(*r));
	static struct small s;
	unsigned tried = 0;

	open_small(r, 13);
	for (unsigned i = 0; i < SMALL; i++)
		for (size_t len = 0;; len++, tried++) {
			connect_anew(r);
			make_small(&s);
			if (len >= s.message[i].len)
				break;
			s.message[i].len = len;
			cr_assert_not(deliver_small(r, &s), "message %u cut at %zu is taken", i, len);
		}
	cr_assert_gt(tried, 300);
	close_small(r);
}

Test(standby_slab, every_bit, .timeout = 60)
{
	struct rig *r = calloc(1, sizeof(*r));
	static struct small s;
	unsigned tried = 0;

	open_small(r, 14);
	for (unsigned i = 0; i < SMALL; i++)
		for (size_t bit = 0;; bit++, tried++) {
			connect_anew(r);
			make_small(&s);
			if (bit >= 8 * s.message[i].len)
				break;
			if (i == 4 && bit / 32 == 4)
				continue; /* its number on lane 0, which is the caller's */
			s.message[i].octets[bit / 8] ^= (uint8_t)(1u << bit % 8);
			cr_assert_not(deliver_small(r, &s), "message %u with bit %zu turned is committed", i, bit);
		}
	cr_assert_gt(tried, 2400);
	close_small(r);
}
