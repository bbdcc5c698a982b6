/* SPDX-License-Identifier: MIT */
/* test_standby.c - checkpoint/standby.c against an oracle that knows every octet.
 * A rig is a standby with its regions, and beside it two models of the whole page space: `model` is what the standby
 * image must be now, `next` what it must be once the epoch under way is applied.  Messages carry the pages they
 * tell; to deliver one is to put its pages into the receive image (as the transport does) and to hand it to
 * standby_consume(). */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "delta.h"
#include "digest.h"
#include "standby.h"

#define PAGE FT_PAGE_SIZE
#define STATE_MAX 70000u
#define LANES 3u
#define RING_BYTES ((uint64_t)FTW_RING_SLOTS_MIN * PAGE)
#define PAGES_TOLD 16u
#define MESSAGES 24u

/* Region 1 ends where region 2 begins; behind region 0 and region 2 are gaps. */
static const struct {
	const char *name;
	uint64_t nr_pages;
} layout[] = { { "ram", 50 }, { "rom", 64 }, { "vga", 13 } };
#define REGIONS 3u
#define SPACE 192u /* pages */

struct message {
	uint32_t lane;
	size_t len;
	uint8_t octets[FTW_RECORD_MAX];
	uint32_t nr_runs, nr_pages;
	bool zero;
	struct page_run run[PAGES_TOLD];
	uint8_t pages[PAGES_TOLD * PAGE];
};

struct rig {
	uint64_t random;
	struct region_table *regions;
	uint8_t *memory[REGIONS];
	struct standby *standby;
	uint8_t *image;
	uint8_t *model, *next;
	uint8_t state[2][STATE_MAX]; /* that belong to model and next */
	uint64_t state_bytes[2];
	/* the sender */
	uint64_t epoch;
	uint32_t seq[LANES + 1];
	struct commit commit;
	struct message *message;
	uint32_t nr_messages;
	/* the last result */
	enum standby_event event;
	struct ft_error err;
};

static uint64_t rnd(struct rig *r, uint64_t below)
{
	r->random ^= r->random << 13;
	r->random ^= r->random >> 7;
	r->random ^= r->random << 17;
	return r->random % below;
}

static void fill(struct rig *r, void *at, size_t len)
{
	uint64_t *w = at;

	for (size_t i = 0; i < len / 8; i++)
		w[i] = rnd(r, UINT64_MAX);
}

/* -- rig -- */

static void rig_open(struct rig *r, uint64_t seed)
{
	struct standby_options opt = { .lanes = LANES, .state_max = STATE_MAX, .epochs = 2, .ring_bytes = RING_BYTES };
	uint64_t len;

	memset(r, 0, sizeof(*r));
	r->random = seed * 2 + 1;
	r->regions = region_table_empty();
	for (unsigned i = 0; i < REGIONS; i++) {
		struct region_table *more;

		r->memory[i] = aligned_alloc(PAGE, layout[i].nr_pages * PAGE);
		fill(r, r->memory[i], layout[i].nr_pages * PAGE); /* left there by somebody: it must not survive */
		more = region_table_add(r->regions, layout[i].name, r->memory[i], layout[i].nr_pages * PAGE, &r->err);
		cr_assert(more, "%s", r->err.msg);
		region_table_free(r->regions);
		r->regions = more;
	}
	cr_assert_eq(r->regions->nr_pages, SPACE);
	cr_assert_eq(standby_create(&r->standby, r->regions, &opt, &r->err), 0, "%s", r->err.msg);
	r->image = standby_image(r->standby, &len);
	cr_assert_eq(len, SPACE * PAGE);
	r->model = calloc(SPACE, PAGE);
	r->next = calloc(SPACE, PAGE);
	r->message = calloc(MESSAGES, sizeof(struct message));
}

static void rig_close(struct rig *r)
{
	standby_destroy(r->standby);
	region_table_free(r->regions);
	for (unsigned i = 0; i < REGIONS; i++)
		free(r->memory[i]);
	free(r->model);
	free(r->next);
	free(r->message);
}

/* Is the standby image @model?  Both as bytes. */
static bool image_is(const struct rig *r, const uint8_t *model)
{
	for (unsigned i = 0; i < REGIONS; i++)
		if (memcmp(r->memory[i], model + r->regions->region[i].first_page * PAGE, layout[i].nr_pages * PAGE) !=
		    0)
			return false;
	return true;
}

/* -- sender -- */

static void epoch_begin(struct rig *r, uint64_t epoch)
{
	r->epoch = epoch;
	r->nr_messages = 0;
	memset(&r->commit, 0, sizeof(r->commit));
	r->commit.lanes = LANES;
	if (epoch == 1)
		memset(r->next, 0, SPACE * PAGE); /* the whole machine: what is not told is zeros */
	else
		memcpy(r->next, r->model, SPACE * PAGE);
	r->state_bytes[1] = 0;
}

static struct message *message_add(struct rig *r, uint32_t lane)
{
	struct message *m = &r->message[r->nr_messages++];

	cr_assert_leq(r->nr_messages, MESSAGES);
	memset(m, 0, offsetof(struct message, octets));
	m->nr_runs = m->nr_pages = 0;
	m->zero = false;
	m->lane = lane;
	return m;
}

static struct message *tell(struct rig *r, uint32_t lane, bool zero, const struct page_run *run, uint32_t nr_runs)
{
	struct message *m = message_add(r, lane);
	uint64_t digest = 0;

	m->zero = zero;
	m->nr_runs = nr_runs;
	memcpy(m->run, run, nr_runs * sizeof(*run));
	for (uint32_t i = 0; i < nr_runs; i++)
		for (uint64_t p = run[i].first; p < run[i].first + run[i].nr; p++, m->nr_pages++) {
			uint8_t *page = m->pages + m->nr_pages * PAGE;

			if (!zero)
				fill(r, page, PAGE);
			digest += zero ? digest_zero(p) : digest_page(page, p);
		}
	m->len = create_runs(m->octets, zero ? FTW_ZERO_PAGES : FTW_NOTIFY_WRITE, r->epoch, ++r->seq[lane], run,
			     nr_runs, digest);
	*(zero ? &r->commit.nr_zero_pages : &r->commit.nr_data_pages) += m->nr_pages;
	r->commit.digest += digest;
	return m;
}

static struct message *tell_pages(struct rig *r, uint32_t lane, bool zero, uint64_t first, uint64_t nr)
{
	return tell(r, lane, zero, &(struct page_run){ first, nr }, 1);
}

/* Random runs inside regions, ascending, not touching. */
static void tell_random(struct rig *r)
{
	struct page_run run[PAGES_TOLD];
	uint32_t n = 0, told = 0;
	uint64_t at = rnd(r, 60), nr;

	for (; n < PAGES_TOLD && told < PAGES_TOLD && at < 128 + layout[2].nr_pages; at += nr + 1 + rnd(r, 20)) {
		uint64_t end = at < 50 ? 50 : 128 + layout[2].nr_pages; /* of the regions without a gap between */

		nr = 1 + rnd(r, 5);
		if (at >= 50 && at < 64)
			at = 64;
		if (nr > end - at)
			nr = end - at;
		if (nr > PAGES_TOLD - told)
			nr = PAGES_TOLD - told;
		run[n++] = (struct page_run){ at, nr };
		told += (uint32_t)nr;
	}
	tell(r, 1 + (uint32_t)rnd(r, LANES), rnd(r, 4) == 0, run, n);
}

static struct message *state_piece(struct rig *r, uint64_t total, uint64_t offset, uint32_t len)
{
	struct message *m = message_add(r, 1);

	m->len = create_device_state(m->octets, r->epoch, ++r->seq[1], total, offset, r->state[1] + offset, len);
	return m;
}

static void state_make(struct rig *r, uint64_t len)
{
	fill(r, r->state[1], (len + 7) & ~UINT64_C(7));
	r->state_bytes[1] = len;
	r->commit.state_bytes = len;
	r->commit.digest += digest_state(r->state[1], len);
}

static void state_tell(struct rig *r, uint64_t len, uint32_t piece)
{
	state_make(r, len);
	for (uint64_t at = 0; at < len; at += piece)
		state_piece(r, len, at, len - at < piece ? (uint32_t)(len - at) : piece);
}

/* @len octets of the side stream at @offset; the commit will announce them. */
static struct message *side_add(struct rig *r, uint64_t offset, uint32_t len)
{
	struct message *m = message_add(r, 1);
	uint8_t *octets = side_data_octets(m->octets);

	fill(r, octets, (len + 7) & ~UINT32_C(7));
	r->commit.side_bytes += len;
	r->commit.digest += digest_side(octets, len, offset);
	m->len = create_side_data(m->octets, r->epoch, ++r->seq[1], offset, len);
	return m;
}

static struct message *commit_add(struct rig *r)
{
	struct message *m = message_add(r, 0);

	for (uint32_t i = 0; i < LANES; i++)
		r->commit.seq[i] = r->seq[i + 1];
	m->len = create_commit(m->octets, r->epoch, ++r->seq[0], &r->commit);
	return m;
}

/* Put the pages into the receive image; @model gets what they mean. */
static void place(struct rig *r, const struct message *m, uint8_t *model)
{
	const uint8_t *page = m->pages;

	for (uint32_t i = 0; i < m->nr_runs; i++)
		for (uint64_t p = m->run[i].first; p < m->run[i].first + m->run[i].nr; p++, page += PAGE) {
			if (!m->zero)
				memcpy(r->image + p * PAGE, page, PAGE);
			if (m->zero)
				memset(model + p * PAGE, 0, PAGE);
			else
				memcpy(model + p * PAGE, page, PAGE);
		}
}

static int deliver(struct rig *r, const struct message *m)
{
	int rc;

	place(r, m, r->next);
	rc = standby_consume(r->standby, m->lane, m->octets, m->len, &r->event, &r->err);
	if (rc == 0 && r->event & STANDBY_WHOLE) {
		enum standby_event next;

		cr_assert_eq(standby_commit(r->standby, &next, &r->err), 0);
		cr_assert_eq(next, STANDBY_NOTHING);
	}
	return rc;
}

/* All messages in the order they were made: 0 and *@committed, or the first error. */
static int deliver_all(struct rig *r, bool *committed)
{
	int rc;

	*committed = false;
	for (uint32_t i = 0; i < r->nr_messages; i++) {
		rc = deliver(r, &r->message[i]);
		if (rc)
			return rc;
		*committed |= r->event == STANDBY_WHOLE;
	}
	return 0;
}

static void model_advance(struct rig *r)
{
	memcpy(r->model, r->next, SPACE * PAGE);
	memcpy(r->state[0], r->state[1], r->state_bytes[1]);
	r->state_bytes[0] = r->state_bytes[1];
}

static void check_state(const struct rig *r)
{
	uint64_t len;
	const void *state = standby_state(r->standby, &len);

	cr_assert_eq(len, r->state_bytes[0]);
	cr_assert_eq(memcmp(state, r->state[0], len), 0);
}

static void apply(struct rig *r)
{
	cr_assert(standby_apply_pending(r->standby));
	standby_begin_apply(r->standby);
	standby_apply_run(r->standby);
	standby_end_apply(r->standby);
	model_advance(r);
	cr_assert(image_is(r, r->model), "epoch %lu: the image is not what was told", (unsigned long)r->epoch);
	cr_assert_eq(standby_epoch_applied(r->standby), r->epoch);
	check_state(r);
}

static void reconnect(struct rig *r)
{
	standby_connect(r->standby, LANES, 0);
	memset(r->seq, 0, sizeof(r->seq));
}

/* One plain epoch, delivered, committed and applied. */
static void good_epoch(struct rig *r, uint64_t epoch)
{
	bool committed;

	epoch_begin(r, epoch);
	tell_pages(r, 1, false, 3, 4);
	tell_pages(r, 2, true, 60 + 4, 3);
	tell_pages(r, 3, false, 126, 5);
	state_tell(r, 1000 + epoch % 7, 400);
	commit_add(r);
	cr_assert_eq(deliver_all(r, &committed), 0, "%s", r->err.msg);
	cr_assert(committed);
	apply(r);
}

/* The rig as most tests want it: epoch 1 is applied, epoch 2 may be made. */
static void rig_open_applied(struct rig *r, uint64_t seed)
{
	rig_open(r, seed);
	good_epoch(r, 1);
	epoch_begin(r, 2);
}

/* After a refusal: sentence, image as it was, no more records, and after a new connection all goes on. */
static void check_refused(struct rig *r, int rc, int want, const char *sentence)
{
	struct message *m;

	cr_assert_eq(rc, want, "%d and not %d: %s", rc, want, r->err.msg);
	cr_assert(strstr(r->err.msg, sentence), "'%s' is not in '%s'", sentence, r->err.msg);
	cr_assert_eq(r->event, STANDBY_NOTHING);
	cr_assert(image_is(r, r->model));
	check_state(r);
	m = tell_pages(r, 1, false, 0, 1);
	cr_assert_eq(deliver(r, m), -EPROTO);
	reconnect(r);
	cr_assert(image_is(r, r->model));
	good_epoch(r, standby_epoch_committed(r->standby) + 1);
}

/* -- what must work -- */

Test(standby, first_epoch_is_the_whole_machine)
{
	static struct rig r;

	rig_open(&r, 1);
	cr_assert_eq(standby_epoch_committed(r.standby), 0);
	cr_assert_null(standby_state(r.standby, &(uint64_t){ 0 }));
	good_epoch(&r, 1);
	cr_assert_eq(r.memory[0][0], 0, "what was in the region before is gone");
	good_epoch(&r, 2);
	rig_close(&r);
}

/* Deliver the epoch's messages, each lane in order and the lanes mixed, with repeats; true when it is committed. */
static bool deliver_mixed(struct rig *r)
{
	uint32_t at[LANES + 1] = { 0 }, left = r->nr_messages;
	uint64_t repeats = standby_duplicates(r->standby);
	bool committed = false;

	while (left) {
		uint32_t lane = (uint32_t)rnd(r, LANES + 1), i = at[lane];

		while (i < r->nr_messages && r->message[i].lane != lane)
			i++;
		at[lane] = i + 1;
		if (i >= r->nr_messages)
			continue;
		left--;
		cr_assert_eq(deliver(r, &r->message[i]), 0, "%s", r->err.msg);
		cr_assert_eq(r->event == STANDBY_WHOLE, left == 0, "committed with %u messages to come", left);
		committed |= r->event == STANDBY_WHOLE;
		if (rnd(r, 8) == 0) {
			cr_assert_eq(standby_consume(r->standby, lane, r->message[i].octets, r->message[i].len,
						     &r->event, &r->err),
				     0);
			cr_assert_eq(r->event, STANDBY_NOTHING);
			cr_assert_eq(standby_duplicates(r->standby), ++repeats);
		}
	}
	return committed;
}

static void make_random(struct rig *r, uint64_t epoch)
{
	uint64_t state = rnd(r, 3) ? rnd(r, 3000) : 0;

	epoch_begin(r, epoch);
	for (uint64_t n = rnd(r, 9); n; n--)
		tell_random(r);
	state_tell(r, state, 700);
	for (uint64_t n = rnd(r, 5); n; n--)
		tell_random(r);
	commit_add(r);
}

/* An apply that stops anywhere leaves some pages new, some old, one torn. */
static void apply_interrupted(struct rig *r)
{
	standby_begin_apply(r->standby);
	standby_apply_run(r->standby);
	cr_assert(image_is(r, r->next));
	for (unsigned i = 0; i < REGIONS; i++)
		for (uint64_t p = 0; p < layout[i].nr_pages; p++)
			if (rnd(r, 2))
				memcpy(r->memory[i] + p * PAGE,
				       r->model + (r->regions->region[i].first_page + p) * PAGE, rnd(r, PAGE + 1));
}

Test(standby, random_epochs_byte_for_byte, .timeout = 240)
{
	static struct rig r;
	uint64_t lost = 0, cut = 0, restarts = 0, epoch = 1;

	rig_open(&r, 0x5eed);
	good_epoch(&r, 1);
	for (unsigned round = 0; round < 4000; round++) {
		epoch++;
		if (rnd(&r, 50) ==
		    0) { /* a new primary: the image is that of the old one until its epoch 1 is applied */
			reconnect(&r);
			standby_restart(r.standby);
			epoch = 1;
			restarts++;
		}
		if (rnd(&r, 10) == 0) { /* part of an epoch, then the connection is lost: it is as if it had not been */
			make_random(&r, epoch);
			for (uint32_t i = 0; i + 1 < r.nr_messages; i++)
				cr_assert_eq(deliver(&r, &r.message[i]), 0, "%s", r.err.msg);
			reconnect(&r);
			lost++;
		}
		make_random(&r, epoch);
		cr_assert(deliver_mixed(&r));
		cr_assert_eq(standby_epoch_committed(r.standby), epoch);
		cr_assert(image_is(&r, r.model), "commit alone has changed the image");
		check_state(&r);
		if (rnd(&r, 10) == 0)
			reconnect(&r); /* committed: it survives */
		if (rnd(&r, 10) == 0) {
			apply_interrupted(&r);
			cut++;
		}
		apply(&r);
	}
	cr_assert(lost && cut && restarts);
	rig_close(&r);
}

Test(standby, later_word_wins)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 2);
	tell_pages(&r, 1, false, 10, 4);
	tell_pages(&r, 1, true, 11, 2); /* zero after data */
	tell_pages(&r, 1, true, 70, 4);
	tell_pages(&r, 1, false, 71, 2); /* data after zero */
	tell_pages(&r, 1, false, 71, 1); /* data after data */
	state_tell(&r, 8, 8);
	commit_add(&r);
	cr_assert_eq(r.commit.nr_data_pages, 7);
	cr_assert_eq(deliver_all(&r, &committed), 0, "%s", r.err.msg);
	cr_assert(committed);
	apply(&r);
	rig_close(&r);
}

Test(standby, commit_before_its_lanes)
{
	static struct rig r;

	rig_open_applied(&r, 3);
	tell_pages(&r, 1, false, 10, 4);
	tell_pages(&r, 2, false, 20, 4);
	tell_pages(&r, 2, false, 30, 4);
	state_tell(&r, 100, 100);
	commit_add(&r);
	cr_assert_eq(deliver(&r, &r.message[4]), 0);
	for (unsigned i = 0; i < 4; i++) {
		cr_assert_eq(r.event, STANDBY_NOTHING);
		cr_assert_eq(standby_epoch_receiving(r.standby), 2);
		cr_assert_not(standby_apply_pending(r.standby));
		cr_assert_eq(deliver(&r, &r.message[i]), 0, "%s", r.err.msg);
	}
	cr_assert_eq(r.event, STANDBY_WHOLE);
	apply(&r);
	rig_close(&r);
}

Test(standby, commit_of_state_alone_and_of_nothing)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 4);
	state_tell(&r, STATE_MAX, FTW_STATE_PIECE_MAX);
	commit_add(&r);
	cr_assert_eq(deliver_all(&r, &committed), 0, "%s", r.err.msg);
	cr_assert(committed);
	apply(&r);
	epoch_begin(&r, 3);
	state_make(&r, 0);
	commit_add(&r);
	cr_assert_eq(deliver_all(&r, &committed), 0, "%s", r.err.msg);
	cr_assert(committed);
	apply(&r);
	rig_close(&r);
}

Test(standby, state_of_the_applied_epoch_stays_until_the_next_is_applied)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 5);
	state_tell(&r, 5000, 1000);
	cr_assert_eq(deliver_all(&r, &committed), 0);
	check_state(&r);
	commit_add(&r);
	cr_assert_eq(deliver(&r, &r.message[r.nr_messages - 1]), 0, "%s", r.err.msg);
	cr_assert_eq(r.event, STANDBY_WHOLE);
	check_state(&r);
	standby_begin_apply(r.standby);
	standby_apply_run(r.standby);
	check_state(&r);
	standby_end_apply(r.standby);
	model_advance(&r);
	check_state(&r);
	rig_close(&r);
}

Test(standby, failover_in_the_middle_of_an_apply)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 6);
	tell_pages(&r, 1, false, 0, 16);
	tell_pages(&r, 2, true, 64, 16);
	state_tell(&r, 10, 10);
	commit_add(&r);
	cr_assert_eq(deliver_all(&r, &committed), 0);
	apply_interrupted(&r);
	cr_assert_not(image_is(&r, r.next));
	reconnect(&r); /* the primary is gone, and somebody knocks */
	apply_interrupted(&r);
	apply(&r);
	rig_close(&r);
}

Test(standby, numbers_wrap)
{
	static struct rig r;

	rig_open_applied(&r, 9);
	for (uint64_t epoch = 2; epoch < 9; epoch++) {
		r.seq[0] += 0x70000000;
		good_epoch(&r, epoch);
	}
	rig_close(&r);
}

Test(standby, restart_keeps_the_image_until_the_new_machine_is_applied)
{
	static struct rig r;

	rig_open_applied(&r, 7);
	cr_assert_geq(standby_memory_bytes(r.standby), 9 * PAGE + 1001);
	reconnect(&r);
	standby_restart(r.standby);
	cr_assert_eq(standby_epoch_committed(r.standby), 0);
	cr_assert_eq(standby_epoch_applied(r.standby), 0);
	epoch_begin(&r, 2);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, false, 1, 1)), -EPROTO,
		      "epoch 1 was expected"); /* applies epoch 1 */
	standby_restart(r.standby);
	reconnect(&r);
	epoch_begin(&r, 1);
	tell_pages(&r, 1, false, 90, 3);
	state_tell(&r, 50, 50);
	cr_assert_eq(deliver(&r, &r.message[0]), 0);
	cr_assert_eq(deliver(&r, &r.message[1]), 0);
	cr_assert_eq(standby_epoch_image(r.standby), 1);
	cr_assert(image_is(&r, r.model));
	check_state(&r);
	reconnect(&r);
	standby_restart(r.standby);
	cr_assert(image_is(&r, r.model));
	good_epoch(&r, 1);
	cr_assert_eq(standby_epoch_image(r.standby), 1);
	good_epoch(&r, 2);
	cr_assert_eq(standby_epoch_image(r.standby), 2);
	rig_close(&r);
}

Test(standby, other_records_are_not_its_business)
{
	static struct rig r;
	uint8_t buf[FTW_RECORD_MAX];
	size_t len = create_heartbeat(buf, 9, &(struct heartbeat){ 1, 2 });

	rig_open_applied(&r, 8);
	cr_assert_eq(standby_consume(r.standby, 0, buf, len, &r.event, &r.err), -EINVAL);
	good_epoch(&r, 2); /* nothing has happened */
	rig_close(&r);
}

/* -- what must be refused -- */

Test(standby, wrong_epochs)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 20);
	epoch_begin(&r, 3);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, false, 1, 1)), -EPROTO,
		      "notify-write of epoch 3: epoch 2 was expected");
	epoch_begin(&r, 1);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, true, 1, 1)), -ESTALE,
		      "zero-pages of epoch 1: epoch 2 is committed already");
	epoch_begin(&r, 4);
	cr_assert_eq(deliver(&r, tell_pages(&r, 1, false, 1, 1)), 0);
	epoch_begin(&r, 5);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, false, 1, 1)), -ESTALE,
		      "notify-write of epoch 5: epoch 4 is not committed yet");
	/* committed and not applied: nothing of the next epoch, and it is applied as if nothing had come */
	epoch_begin(&r, 5);
	tell_pages(&r, 1, false, 7, 2);
	state_tell(&r, 30, 30);
	commit_add(&r);
	cr_assert_eq(deliver_all(&r, &committed), 0, "%s", r.err.msg);
	cr_assert(committed);
	r.epoch = 6;
	standby_begin_apply(r.standby);
	cr_assert_eq(standby_consume(r.standby, 2, r.message->octets,
				     create_runs(r.message->octets, FTW_NOTIFY_WRITE, 6, r.seq[2] + 1,
						 &(struct page_run){ 1, 1 }, 1, 0),
				     &r.event, &r.err),
		     -ESTALE);
	cr_assert(strstr(r.err.msg, "notify-write of epoch 6: epoch 5 is not applied yet"), "%s", r.err.msg);
	reconnect(&r);
	r.epoch = 5;
	apply(&r);
	good_epoch(&r, 6);
	rig_close(&r);
}

Test(standby, sequence_numbers)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 21);
	r.seq[2] += 1;
	check_refused(&r, deliver(&r, tell_pages(&r, 2, false, 1, 1)), -EPROTO,
		      "notify-write of epoch 2: record 3 on lane 2, 2 was expected");
	epoch_begin(&r, 3);
	m = tell_pages(&r, 2, false, 1, 1);
	cr_assert_eq(deliver(&r, m), 0);
	cr_assert_eq(deliver(&r, m), 0);
	cr_assert_eq(standby_duplicates(r.standby), 1);
	m->lane = 0;
	check_refused(&r, deliver(&r, m), -EPROTO, "notify-write of epoch 3: it does not belong on lane 0");
	epoch_begin(&r, 4);
	m = tell_pages(&r, 2, false, 1, 1);
	m->lane = LANES + 1;
	check_refused(&r, deliver(&r, m), -EPROTO, "does not belong on lane 4");
	epoch_begin(&r, 5);
	state_make(&r, 8);
	m = state_piece(&r, 8, 0, 8);
	m->lane = 2;
	check_refused(&r, deliver(&r, m), -EPROTO, "device-state of epoch 5: it does not belong on lane 2");
	epoch_begin(&r, 6);
	m = commit_add(&r);
	m->lane = 1;
	check_refused(&r, deliver(&r, m), -EPROTO, "commit of epoch 6: it does not belong on lane 1");
	rig_close(&r);
}

Test(standby, pages_outside_of_regions)
{
	static struct rig r;

	rig_open_applied(&r, 22);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, false, 48, 5)), -EPROTO,
		      "notify-write of epoch 2: no region holds page 50");
	epoch_begin(&r, 3);
	check_refused(&r, deliver(&r, tell_pages(&r, 1, true, 190, 1)), -EPROTO,
		      "zero-pages of epoch 3: no region holds page 190");
	rig_close(&r);
}

Test(standby, page_damaged_on_the_way)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 23);
	m = tell_pages(&r, 1, false, 8, 3);
	m->pages[2 * PAGE + 77] ^= 0x10;
	check_refused(&r, deliver(&r, m), -EBADMSG, "notify-write of epoch 2: digest of 3 pages is ");
	rig_close(&r);
}

Test(standby, device_state)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 24);
	m = message_add(&r, 1);
	m->len = create_device_state(m->octets, 2, ++r.seq[1], STATE_MAX + 1, 0, r.state[1], 8);
	check_refused(&r, deliver(&r, m), -E2BIG,
		      "device-state of epoch 2: 70001 octets, at most 70000 are taken here");
	epoch_begin(&r, 3);
	check_refused(&r, deliver(&r, state_piece(&r, 100, 10, 20)), -EPROTO,
		      "device-state of epoch 3: piece at offset 10, 0 was expected");
	epoch_begin(&r, 4);
	cr_assert_eq(deliver(&r, state_piece(&r, 100, 0, 20)), 0);
	check_refused(&r, deliver(&r, state_piece(&r, 101, 20, 20)), -EPROTO,
		      "101 octets in all, 100 were announced before");
	epoch_begin(&r, 5);
	state_make(&r, 100);
	cr_assert_eq(deliver(&r, state_piece(&r, 100, 0, 99)), 0);
	check_refused(&r, deliver(&r, commit_add(&r)), -EPROTO,
		      "commit of epoch 5: 99 octets of device state came, 100 announced");
	epoch_begin(&r, 6);
	state_tell(&r, 100, 100);
	cr_assert_eq(deliver(&r, &r.message[0]), 0);
	check_refused(&r, deliver(&r, state_piece(&r, 100, 0, 100)), -EPROTO, "piece at offset 0, 100 was expected");
	rig_close(&r);
}

/* Make epoch 2 with one thing wrong in its commit. */
static int wrong_commit(struct rig *r, uint64_t *field, uint64_t add)
{
	bool committed;
	int rc;

	tell_pages(r, 1, false, 2, 5);
	tell_pages(r, 2, true, 20, 3);
	state_tell(r, 64, 64);
	*field += add;
	commit_add(r);
	rc = deliver_all(r, &committed);
	cr_assert_not(committed);
	cr_assert_eq(standby_epoch_committed(r->standby), 1);
	return rc;
}

Test(standby, counts_and_digest)
{
	static struct rig r;
	const struct {
		size_t field;
		uint64_t add;
		int code;
		const char *sentence;
	} cases[] = {
		{ offsetof(struct commit, nr_data_pages), 1, -EPROTO,
		  "commit of epoch 2: 5 data pages told, 6 announced" },
		{ offsetof(struct commit, nr_data_pages), UINT64_MAX, -EPROTO,
		  "commit of epoch 2: 5 data pages told, 4 announced" },
		{ offsetof(struct commit, nr_zero_pages), 1, -EPROTO,
		  "commit of epoch 2: 3 zero pages told, 4 announced" },
		{ offsetof(struct commit, nr_zero_pages), UINT64_MAX, -EPROTO, "3 zero pages told, 2 announced" },
		{ offsetof(struct commit, state_bytes), 1, -EPROTO, "64 octets of device state came, 65 announced" },
		{ offsetof(struct commit, digest), 1, -EBADMSG, "commit of epoch 2: digest is " },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		rig_open_applied(&r, 30 + i);
		check_refused(&r,
			      wrong_commit(&r, (uint64_t *)(void *)((char *)&r.commit + cases[i].field), cases[i].add),
			      cases[i].code, cases[i].sentence);
		rig_close(&r);
	}
}

Test(standby, commit_and_lanes)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 40);
	tell_pages(&r, 2, false, 2, 1);
	tell_pages(&r, 2, false, 4, 1);
	cr_assert_eq(deliver(&r, &r.message[0]), 0);
	cr_assert_eq(deliver(&r, &r.message[1]), 0);
	r.seq[2]--;
	check_refused(&r, deliver(&r, commit_add(&r)), -EPROTO,
		      "commit of epoch 2: lane 2 ends with record 2, record 3 came already");

	epoch_begin(&r, 3);
	m = tell_pages(&r, 2, false, 2, 1);
	cr_assert_eq(deliver(&r, m), 0);
	r.seq[1]++; /* a record that is still to come */
	cr_assert_eq(deliver(&r, commit_add(&r)), 0);
	check_refused(&r, deliver(&r, tell_pages(&r, 2, false, 4, 1)), -EPROTO, "is behind the commit, which says 2");

	epoch_begin(&r, 4);
	r.seq[1]++;
	cr_assert_eq(deliver(&r, commit_add(&r)), 0);
	check_refused(&r, deliver(&r, commit_add(&r)), -EPROTO, "commit of epoch 4: it came before");

	epoch_begin(&r, 5);
	r.commit.lanes = LANES - 1;
	m = message_add(&r, 0);
	m->len = create_commit(m->octets, 5, ++r.seq[0], &r.commit);
	check_refused(&r, deliver(&r, m), -EPROTO, "commit of epoch 5: 2 data lanes, 3 were agreed");

	/* the next epoch is told before the lanes of this one are complete */
	epoch_begin(&r, 6);
	r.seq[1]++;
	cr_assert_eq(deliver(&r, commit_add(&r)), 0);
	epoch_begin(&r, 7);
	check_refused(&r, deliver(&r, tell_pages(&r, 2, false, 4, 1)), -ESTALE,
		      "notify-write of epoch 7: epoch 6 is not committed yet");
	rig_close(&r);
}

static void make_small(struct rig *r)
{
	const struct page_run runs[] = { { 2, 1 }, { 9, 2 }, { 70, 1 } };

	epoch_begin(r, 2);
	tell(r, 1, false, runs, 3);
	tell_pages(r, 2, true, 20, 3);
	state_tell(r, 21, 21);
	commit_add(r);
}

Test(standby, every_truncation, .timeout = 120)
{
	static struct rig r;
	bool committed;

	rig_open_applied(&r, 50);
	for (uint32_t i = 0; i < 4; i++)
		for (size_t len = 0; len < 400; len++) {
			reconnect(&r);
			make_small(&r);
			if (len >= r.message[i].len)
				break;
			r.message[i].len = len;
			cr_assert_lt(deliver_all(&r, &committed), 0, "message %u cut at %zu is taken", i, len);
			cr_assert_not(committed);
			cr_assert(image_is(&r, r.model));
		}
	reconnect(&r);
	good_epoch(&r, 2);
	rig_close(&r);
}

/* No bit of a record may differ, and none of a page (a few of those). */
Test(standby, every_bit, .timeout = 120)
{
	static struct rig r;
	uint64_t tried = 0;
	bool committed;

	rig_open_applied(&r, 51);
	for (uint32_t i = 0; i < 4; i++)
		for (size_t bit = 0; bit < 8 * 400; bit++, tried++) {
			reconnect(&r);
			make_small(&r);
			if (bit >= 8 * r.message[i].len)
				break;
			if (i == 3 && bit / 32 == 4)
				continue; /* its number on lane 0, which is the caller's */
			r.message[i].octets[bit / 8] ^= (uint8_t)(1u << bit % 8);
			deliver_all(&r, &committed);
			cr_assert_not(committed, "message %u with bit %zu turned is committed", i, bit);
			cr_assert(image_is(&r, r.model));
		}
	cr_assert_gt(tried, 2000);
	for (size_t bit = 5; bit < 8ul * 4 * PAGE; bit += 997) {
		reconnect(&r);
		make_small(&r);
		r.message[0].pages[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_eq(deliver_all(&r, &committed), -EBADMSG);
	}
	reconnect(&r);
	good_epoch(&r, 2);
	rig_close(&r);
}

/* A record left out: the epoch is never committed; two of different lanes swapped make no difference
 * (random_epochs). */
Test(standby, every_record_missing)
{
	static struct rig r;
	int rc;

	rig_open_applied(&r, 52);
	for (uint32_t missing = 0; missing < 4; missing++) {
		reconnect(&r);
		make_small(&r);
		for (uint32_t i = 0; i < r.nr_messages; i++) {
			if (i == missing)
				continue;
			rc = deliver(&r, &r.message[i]);
			cr_assert_eq(r.event, STANDBY_NOTHING);
			if (rc)
				break;
		}
		cr_assert(image_is(&r, r.model));
	}
	rig_close(&r);
}

Test(standby, bad_options)
{
	struct region_table *t = region_table_empty();
	struct standby_options opt = { .lanes = 1, .state_max = 1, .epochs = 2, .ring_bytes = RING_BYTES };
	struct standby *s = (void *)1;
	struct ft_error err;

	cr_assert_eq(standby_create(&s, t, &opt, &err), -EINVAL);
	cr_assert_null(s);
	region_table_free(t);
	standby_destroy(NULL);
}

/* -- holes -- */

#define HOLES 4096u

/* Zero pages, and all that the first epoch does not tell, on memory that was never touched. */
static void holes(void *memory, uint64_t (*used)(void *memory, int fd), int fd)
{
	struct standby_options opt = { .lanes = 1, .state_max = 64, .epochs = 2, .ring_bytes = RING_BYTES };
	struct region_table *none = region_table_empty(),
			    *t = region_table_add(none, "ram", memory, HOLES * PAGE, NULL);
	static uint8_t buf[FTW_RECORD_MAX], page[PAGE];
	struct commit c = { .lanes = 1 };
	enum standby_event event;
	struct standby *s;
	struct ft_error err;
	uint8_t *image;
	uint64_t len;

	cr_assert_eq(standby_create(&s, t, &opt, &err), 0);
	image = standby_image(s, &len);
	memset(page, 7, PAGE);
	memset((uint8_t *)memory + 9 * PAGE, 1, PAGE); /* not a hole: must be cleared */
	for (uint64_t epoch = 1; epoch < 3; epoch++) {
		struct page_run data = { 40 + epoch, 1 }, zero = { 1000, 1500 };

		memcpy(image + data.first * PAGE, page, PAGE);
		c = (struct commit){
			.lanes = 1, .nr_data_pages = 1, .nr_zero_pages = 1500, .seq = { (uint32_t)epoch * 2 }
		};
		for (uint64_t p = 1000; p < 2500; p++)
			c.digest += digest_zero(p);
		cr_assert_eq(standby_consume(s, 1, buf,
					     create_runs(buf, FTW_ZERO_PAGES, epoch, c.seq[0] - 1, &zero, 1, c.digest),
					     &event, &err),
			     0);
		cr_assert_eq(standby_consume(s, 1, buf,
					     create_runs(buf, FTW_NOTIFY_WRITE, epoch, c.seq[0], &data, 1,
							 digest_page(page, data.first)),
					     &event, &err),
			     0, "%s", err.msg);
		c.digest += digest_page(page, data.first) + digest_state(NULL, 0);
		cr_assert_eq(standby_consume(s, 0, buf, create_commit(buf, epoch, (uint32_t)epoch, &c), &event, &err),
			     0, "%s", err.msg);
		cr_assert_eq(event, STANDBY_WHOLE);
		cr_assert_eq(standby_commit(s, &event, &err), 0);
		standby_begin_apply(s);
		cr_assert_eq(standby_apply_run(s), epoch == 1 ? 2 : 1);
		standby_end_apply(s);
	}
	cr_assert_leq(used(memory, fd), 3, "%lu pages are in memory, 3 are used", (unsigned long)used(memory, fd));
	for (uint64_t p = 0; p < HOLES; p++)
		cr_assert_eq(page_is_zero((uint8_t *)memory + p * PAGE), p != 41 && p != 42, "page %lu",
			     (unsigned long)p);
	standby_destroy(s);
	region_table_free(t);
	region_table_free(none);
}

static uint64_t used_of_file(void *memory, int fd)
{
	struct stat st;

	(void)memory;
	cr_assert_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512 / PAGE;
}

static uint64_t used_of_memory(void *memory, int fd)
{
	static unsigned char in[HOLES];
	uint64_t n = 0;

	(void)fd;
	cr_assert_eq(mincore(memory, HOLES * PAGE, in), 0);
	for (unsigned i = 0; i < HOLES; i++)
		n += in[i] & 1;
	return n;
}

Test(standby, holes_stay_holes_in_a_memfd)
{
	int fd = memfd_create("holes", MFD_CLOEXEC);
	void *memory;

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, HOLES * PAGE), 0);
	memory = mmap(NULL, HOLES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(memory, MAP_FAILED);
	holes(memory, used_of_file, fd);
	munmap(memory, HOLES * PAGE);
	close(fd);
}

Test(standby, holes_stay_holes_in_private_memory)
{
	void *memory = mmap(NULL, HOLES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(memory, MAP_FAILED);
	holes(memory, used_of_memory, -1);
	munmap(memory, HOLES * PAGE);
}

/* -- side stream -- */

Test(standby, side_stream_is_handed_on_piece_by_piece_and_counted)
{
	static struct rig r;
	struct message *m;
	struct side_data d;

	rig_open_applied(&r, 61);
	for (uint64_t offset = 0; offset < 3000; offset += 1000) {
		m = side_add(&r, offset, 1000);
		cr_assert_eq(deliver(&r, m), 0, "%s", r.err.msg);
		cr_assert_eq(r.event, STANDBY_SIDE);
		d = standby_side(r.standby);
		cr_assert(d.offset == offset && d.data_bytes == 1000 && d.data == side_data_octets(m->octets));
		cr_assert_eq(deliver(&r, m), 0);
		cr_assert_eq(r.event, STANDBY_NOTHING, "a repeated record was handed on");
	}
	state_make(&r, 0);
	m = side_add(&r, 3000, 1);
	cr_assert_eq(deliver(&r, commit_add(&r)), 0, "%s", r.err.msg);
	cr_assert_eq(r.event, STANDBY_NOTHING);
	cr_assert_eq(deliver(&r, m), 0, "%s", r.err.msg);
	cr_assert_eq(r.event, STANDBY_SIDE | STANDBY_WHOLE, "the last piece came behind the commit");
	apply(&r);
	rig_close(&r);
}

Test(standby, side_stream_that_is_not_whole_is_refused)
{
	static const struct {
		uint64_t more, less_digest;
		int code;
		const char *sentence;
	} wrong[] = {
		{ 1, 0, -EPROTO, "1000 octets of the side stream came, 1001 announced" },
		{ UINT64_MAX, 0, -EPROTO, "1000 octets of the side stream came, 999 announced" },
		{ 0, 1, -EBADMSG, "digest is " },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		static struct rig r;

		rig_open_applied(&r, 62 + i);
		cr_assert_eq(deliver(&r, side_add(&r, 0, 1000)), 0, "%s", r.err.msg);
		state_make(&r, 0);
		r.commit.side_bytes += wrong[i].more;
		r.commit.digest -= wrong[i].less_digest;
		check_refused(&r, deliver(&r, commit_add(&r)), wrong[i].code, wrong[i].sentence);
		rig_close(&r);
	}
}

/* The commit is there already, and the last piece makes the epoch whole, but wrong. */
Test(standby, last_piece_of_a_wrong_side_stream_is_not_handed_on)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 65);
	m = side_add(&r, 0, 1000);
	state_make(&r, 0);
	r.commit.side_bytes++;
	cr_assert_eq(deliver(&r, commit_add(&r)), 0, "%s", r.err.msg);
	check_refused(&r, deliver(&r, m), -EPROTO, "1000 octets of the side stream came, 1001 announced");
	rig_close(&r);
}

Test(standby, side_stream_has_no_gaps)
{
	static struct rig r;

	rig_open_applied(&r, 66);
	cr_assert_eq(deliver(&r, side_add(&r, 0, 10)), 0, "%s", r.err.msg);
	check_refused(&r, deliver(&r, side_add(&r, 11, 10)), -EPROTO,
		      "side-data of epoch 2: piece at offset 11, 10 was expected");
	rig_close(&r);
}

/* The caller may refuse an epoch that is whole: it is gone with the connection, and the one before is what there is. */
Test(standby, whole_epoch_that_is_not_committed_leaves_no_trace)
{
	static struct rig r;
	struct message *m;

	rig_open_applied(&r, 67);
	cr_assert_eq(deliver(&r, side_add(&r, 0, 10)), 0, "%s", r.err.msg);
	state_tell(&r, 100, 100);
	cr_assert_eq(deliver(&r, &r.message[r.nr_messages - 1]), 0, "%s", r.err.msg);
	m = commit_add(&r);
	cr_assert_eq(standby_consume(r.standby, 0, m->octets, m->len, &r.event, &r.err), 0, "%s", r.err.msg);
	cr_assert_eq(r.event, STANDBY_WHOLE);
	cr_assert_eq(standby_epoch_committed(r.standby), 1);
	standby_connect(r.standby, LANES, 0);
	cr_assert_not(standby_apply_pending(r.standby));
	cr_assert_eq(standby_epoch_committed(r.standby), 1);
	cr_assert_eq(standby_epoch_image(r.standby), 1);
	check_state(&r);
	rig_close(&r);
}

/* -- pages by their difference -- */

/* @nr pages from @first on, each with some words other than `next` has them; @off: what the announced digest is off by. */
static int deliver_delta(struct rig *r, uint32_t lane, uint64_t first, uint32_t nr, uint64_t off)
{
	static uint8_t packed[FTW_DELTA_BYTES_MAX], pages[PAGES_TOLD * PAGE];
	struct message *m = message_add(r, lane);
	uint64_t digest = 0;
	uint32_t len = 0;
	int rc;

	for (uint32_t i = 0; i < nr; i++) {
		uint8_t *page = pages + i * PAGE;
		const ft_be64 number = to_be64(first + i);

		memcpy(page, r->next + (first + i) * PAGE, PAGE);
		for (uint64_t n = rnd(r, 30); n; n--)
			page[rnd(r, PAGE)] ^= (uint8_t)rnd(r, 256);
		memcpy(packed + len, &number, sizeof(number));
		len += (uint32_t)sizeof(number);
		len += delta_pack(packed + len, r->next + (first + i) * PAGE, page, DELTA_MAX);
		digest += digest_page(page, first + i);
	}
	m->len = create_deltas(m->octets, r->epoch, ++r->seq[lane], packed, len, nr, digest + off);
	r->commit.nr_data_pages += nr;
	r->commit.digest += digest;
	rc = deliver(r, m);
	if (!rc)
		memcpy(r->next + first * PAGE, pages, nr * PAGE);
	return rc;
}

/* -- page-checks -- */

/* Of a notify-write that was made, put in front of it; that of page @bad of it is wrong (-1: none). */
static int deliver_checks(struct rig *r, struct message *of, int bad)
{
	static struct message m;
	uint64_t digest[PAGES_TOLD];
	struct record_head head;
	struct ftw_record *wire = (struct ftw_record *)(void *)of->octets;
	struct cursor body;

	cr_assert_eq(consume_head(of->octets, of->len, &head, &body, &r->err), 0);
	for (uint32_t i = 0; i < of->nr_pages; i++)
		digest[i] = digest_page(of->pages + i * PAGE, of->run[0].first + i) + (bad == (int)i);
	m.lane = of->lane;
	m.len = create_page_checks(m.octets, r->epoch, head.seq, digest, of->nr_pages);
	wire->seq = to_be32(head.seq + 1);
	r->seq[of->lane]++;
	return standby_consume(r->standby, m.lane, m.octets, m.len, &r->event, &r->err);
}

Test(standby, page_checks_name_the_page)
{
	static struct rig r;
	struct message *m;

	rig_open(&r, 50);
	for (uint64_t epoch = 1; epoch < 4; epoch++) { /* all as it should be */
		epoch_begin(&r, epoch);
		m = tell_pages(&r, 1, false, 3, 4);
		cr_assert_eq(deliver_checks(&r, m, -1), 0, "%s", r.err.msg);
		cr_assert_eq(deliver(&r, m), 0, "%s", r.err.msg);
		cr_assert_eq(deliver(&r, tell_pages(&r, 1, false, 9, 2)), 0, "%s", r.err.msg); /* none came of these */
		state_make(&r, 0);
		cr_assert_eq(deliver(&r, commit_add(&r)), 0, "%s", r.err.msg);
		apply(&r);
	}
	epoch_begin(&r, 4);
	m = tell_pages(&r, 2, false, 64 + 1, 4);
	cr_assert_eq(deliver_checks(&r, m, -1), 0);
	m->pages[2 * PAGE + 17] ^= 1; /* on the way */
	m->pages[3 * PAGE] ^= 0x80;
	check_refused(&r, deliver(&r, m), -EBADMSG,
		      "notify-write of epoch 4: page 67 (rom, octet 12288) is not what was sent; of 4 pages 2 are not");
	epoch_begin(&r, 5);
	m = tell_pages(&r, 1, false, 3, 4);
	cr_assert_eq(deliver_checks(&r, m, 1), 0); /* the digest of all is right */
	check_refused(&r, deliver(&r, m), -EBADMSG,
		      "notify-write of epoch 5: page 4 (ram, octet 16384) is not what was sent");
	rig_close(&r);
}

/* What does not go with page-checks; and none are left from the connection before. */
Test(standby, page_checks_out_of_place)
{
	static struct rig r;
	struct message *m;

	rig_open(&r, 51);
	good_epoch(&r, 1);
	epoch_begin(&r, 2);
	m = tell_pages(&r, 1, false, 3, 4);
	cr_assert_eq(deliver_checks(&r, m, -1), 0);
	r.seq[1]--; /* what they are of does not come */
	check_refused(
		&r, deliver(&r, tell_pages(&r, 1, false, 3, 3)), -EPROTO,
		"notify-write of epoch 2: it tells 3 pages, the page-checks in front of it were of 4 pages of epoch 2");
	epoch_begin(&r, 3);
	m = tell_pages(&r, 1, false, 3, 4);
	cr_assert_eq(deliver_checks(&r, m, -1), 0);
	r.seq[1]--; /* what they are of does not come */
	check_refused(&r, deliver(&r, tell_pages(&r, 1, true, 3, 4)), -EPROTO,
		      "zero-pages of epoch 3: it stands behind page-checks of 4 pages on lane 1, which nothing told");
	epoch_begin(&r, 4);
	m = tell_pages(&r, 1, false, 3, 4);
	cr_assert_eq(deliver_checks(&r, m, -1), 0);
	r.seq[1]--;
	memset(&r.commit, 0, sizeof(r.commit));
	r.commit.lanes = LANES;
	state_make(&r, 0);
	check_refused(&r, deliver(&r, commit_add(&r)), -EPROTO,
		      "commit of epoch 4: it stands behind page-checks of 4 pages on lane 1");
	rig_close(&r);
}

/* One that keeps to the rules: a page to its lane. */
static void tell_something(struct rig *r)
{
	uint32_t lane = 1 + (uint32_t)rnd(r, LANES), nr = 1 + (uint32_t)rnd(r, 5);
	uint64_t first = (lane - 1) * 16 + rnd(r, 11), draw = rnd(r, 5);

	if (draw < 2)
		cr_assert_eq(deliver(r, tell_pages(r, lane, draw == 0, first, nr)), 0, "%s", r->err.msg);
	else
		cr_assert_eq(deliver_delta(r, lane, first, nr, 0), 0, "%s", r->err.msg);
}

/* Differences to the epoch before, to what this one told as data, as zeros, and by a difference; byte for byte. */
Test(standby, differences_byte_for_byte, .timeout = 120)
{
	static struct rig r;

	rig_open(&r, 40);
	good_epoch(&r, 1);
	for (uint64_t epoch = 2; epoch < 200; epoch++) {
		epoch_begin(&r, epoch);
		for (unsigned n = 0; n < 16; n++)
			tell_something(&r);
		if (epoch % 7 == 0) { /* all of it was in vain */
			reconnect(&r);
			cr_assert(image_is(&r, r.model));
			epoch_begin(&r, epoch);
			tell_something(&r);
		}
		cr_assert(image_is(&r, r.model), "it was changed before the commit");
		state_make(&r, 0);
		cr_assert_eq(deliver(&r, commit_add(&r)), 0, "%s", r.err.msg);
		cr_assert_eq(r.event, STANDBY_WHOLE);
		apply(&r);
	}
	rig_close(&r);
}

Test(standby, differences_that_are_refused)
{
	static struct rig r;

	rig_open(&r, 41);
	epoch_begin(&r, 1);
	cr_assert_eq(deliver_delta(&r, 1, 3, 1, 0), -EPROTO);
	cr_assert(strstr(r.err.msg, "notify-delta of epoch 1: there is nothing here yet"), "%s", r.err.msg);
	reconnect(&r);
	good_epoch(&r, 1);
	epoch_begin(&r, 2);
	cr_assert_eq(deliver(&r, tell_pages(&r, 1, false, 3, 2)), 0);
	check_refused(&r, deliver_delta(&r, 1, 2, 4, 1), -EBADMSG, "notify-delta of epoch 2: digest of 4 pages is ");
	epoch_begin(&r, 3);
	check_refused(&r, deliver_delta(&r, 1, 49, 2, 0), -EPROTO, "notify-delta of epoch 3: no region holds page 50");
	epoch_begin(&r, 4);
	cr_assert_eq(deliver_delta(&r, 0, 1, 1, 0), -EPROTO);
	cr_assert(strstr(r.err.msg, "does not belong on lane 0"), "%s", r.err.msg);
	standby_connect(r.standby, LANES, 2);
	memset(r.seq, 0, sizeof(r.seq));
	epoch_begin(&r, 4);
	cr_assert_eq(deliver_delta(&r, 1, 1, 1, 0), -EPROTO);
	cr_assert(strstr(r.err.msg, "notify-delta of epoch 4: the placement is slab"), "%s", r.err.msg);
	rig_close(&r);
}
