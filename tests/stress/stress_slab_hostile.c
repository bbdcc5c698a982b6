/* SPDX-License-Identifier: MIT */
/* stress_slab_hostile.c - peers that break a rule of slab placement, each in one way: the connection ends with the sentence that says what was
 * wrong, here and there, and the standby stays at its last commit, the guest of a primary runs.  stress_hostile has what is wrong by its type, lane
 * or epoch alone.
 *
 *   primaries    against a secondary: positions outside of the ring, told twice, among those of another epoch, descending; pages of no region or of
 *                another digest; epochs and commits out of order; more epochs than were granted; what does not belong to the placement
 *   secondaries  against a primary: rooms of another ring, of what was not told, for a mirror, none at all, no more; acks and applieds out of order
 *                or of what was not sent; a hello-ack that does not fit
 *   patience     what is no breach: rooms that say nothing new; epochs that are acknowledged and not applied: no more of them than were granted */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "pair.h"
#include "raw.h"

#define LANES 2u
#define GRANTED 2u
#define GOOD 0x11
#define BAD 0x44

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

/* The peer ends the connection and says @part. */
static void expect_reason(struct raw *r, const char *what, const char *part)
{
	char text[FTW_REASON_MAX + 1] = "";
	struct record_head head = { 0 };

	while (head.type != FTW_ERROR && raw_receive(r, &head, text, WAIT_MS))
		;
	CHECK(head.type == FTW_ERROR && strstr(text, part), "%s: '%s' is not in '%s'", what, part, text);
}

static void expect_status(struct ft_session *s, const char *what, const char *part)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (ft_session_status(s, &st); !strstr(st.reason, part); ft_session_status(s, &st)) {
		CHECK(now_ns() < deadline, "%s: '%s' is not in the reason '%s' (%s)", what, part, st.reason,
		      ft_state_name(st.state));
		sleep_ms(1);
	}
}

/* ---- primaries ---- */

/* Each on a new connection; @r->room is that of the secondary.  Lanes have no order between them, so what is said on two has two sentences. */

static void beyond_room(struct raw *r)
{
	raw_slab(r, 1, 1, r->room.slots, 5, 1, BAD);
}

static void over_the_end(struct raw *r)
{
	raw_slab(r, 1, 1, r->room.slots - 1, 5, 2, BAD);
}

static void told_twice(struct raw *r)
{
	raw_slab(r, 1, 1, 7, 5, 1, BAD);
	raw_slab(r, 2, 1, 7, 900, 1, BAD);
}

static void descending(struct raw *r)
{
	raw_slab(r, 1, 1, 7, 5, 1, BAD);
	raw_slab(r, 1, 1, 6, 9, 1, BAD);
}

static void among_the_next(struct raw *r)
{
	raw_slab(r, 1, 2, 7, 5, 1, BAD);
	raw_slab(r, 2, 1, 8, 900, 1, BAD);
}

static void among_those_before(struct raw *r)
{
	raw_slab(r, 1, 1, 7, 5, 1, BAD);
	raw_slab(r, 2, 2, 6, 900, 1, BAD);
}

static void of_no_region(struct raw *r)
{
	raw_slab(r, 1, 1, 0, RAW_PAGES - 1, 2, BAD);
}

/* What is told is not what was written. */
static void another_digest(struct raw *r)
{
	raw_slab(r, 1, 1, 0, 5, 1, BAD);
	r->room.slots = 0; /* nothing more is written */
	raw_slab(r, 1, 1, 1, 6, 1, BAD + 1);
}

static void notify_write(struct raw *r)
{
	const struct page_run run = { 5, 1 };
	uint32_t seq;
	void *buf = link_begin(r->link, 1, &seq);

	raw_send(r, 1, create_runs(buf, FTW_NOTIFY_WRITE, 1, seq, &run, 1, 0));
}

/* The receive image is not open. */
static void into_the_image(struct raw *r)
{
	r->slab = false;
	raw_pages(r, 1, 1, 5, 1, BAD);
}

static void more_pages_than_told(struct raw *r)
{
	raw_pages(r, 1, 1, 5, 1, BAD);
	r->nr_data++;
	raw_commit(r, 1);
}

static void more_zeros_than_told(struct raw *r)
{
	raw_pages(r, 2, 1, 5, 1, 0);
	r->nr_zero++;
	raw_commit(r, 1);
}

static void commit_of_another_digest(struct raw *r)
{
	raw_pages(r, 1, 1, 5, 1, BAD);
	r->digest++;
	raw_commit(r, 1);
}

static void second_commit_first(struct raw *r)
{
	raw_pages(r, 1, 1, 5, 1, BAD);
	raw_commit(r, 2);
}

static void one_epoch_too_many(struct raw *r)
{
	for (uint64_t epoch = 1; epoch <= GRANTED + 1; epoch++)
		raw_pages(r, 1, epoch, epoch, 1, BAD);
}

static void behind_the_next(struct raw *r)
{
	raw_pages(r, 1, 2, 5, 1, BAD);
	raw_pages(r, 1, 1, 6, 1, 0);
}

/* The commit counts a record of the next epoch as its own. */
static void commit_of_two(struct raw *r)
{
	raw_pages(r, 1, 1, 5, 1, BAD);
	raw_pages(r, 1, 2, 6, 1, BAD);
	raw_commit(r, 1);
}

static void no_commit_between(struct raw *r)
{
	raw_pages(r, 1, 1, 5, 1, BAD);
	raw_pages(r, 1, 1, 6, 1, BAD);
	r->nr_data = 1;
	raw_commit(r, 1);
}

static void room_to_a_secondary(struct raw *r)
{
	raw_room(r, RAW_SLOTS, 0);
}

static void slab_to_a_mirror(struct raw *r)
{
	raw_slab(r, 1, 1, 0, 5, 1, BAD);
}

static const struct breach {
	const char *name, *sentence;
	void (*say)(struct raw *r);
	bool mirror; /* the greeting's placement */
	bool untold; /* not to us: the transport ends with it */
} breaches[] = {
	{ "beyond room", "outside of the ring", beyond_room, false, false },
	{ "over the end of the ring", "outside of the ring", over_the_end, false, false },
	{ "told twice", "told before", told_twice, false, false },
	{ "descending", "which was at 8 already", descending, false, false },
	{ "among the next epoch's", "is among those of epoch", among_the_next, false, false },
	{ "among those of the epoch before", "is among those of epoch", among_those_before, false, false },
	{ "pages of no region", "page 8191 and 1 more are outside of 8192 pages", of_no_region, false, false },
	{ "another digest", "digest of 1 pages is", another_digest, false, false },
	{ "notify-write", "the placement is slab", notify_write, false, false },
	{ "into the image", "of window 0, not open", into_the_image, false, true },
	{ "more pages than told", "1 data pages told, 2 announced", more_pages_than_told, false, false },
	{ "more zeros than told", "1 zero pages told, 2 announced", more_zeros_than_told, false, false },
	{ "commit of another digest", "commit of epoch 1: digest is", commit_of_another_digest, false, false },
	{ "second commit first", "the commit of epoch 1 was expected", second_commit_first, false, false },
	{ "one epoch too many", "epoch 3: epoch 1 is not committed yet", one_epoch_too_many, false, false },
	{ "behind the next epoch", "stands behind a record of epoch 2", behind_the_next, false, false },
	{ "commit of two", "record 2", commit_of_two, false, false },
	{ "no commit between", "2 data pages told, 1 announced", no_commit_between, false, false },
	{ "room to a secondary", "room", room_to_a_secondary, false, false },
	{ "slab to a mirror", "the placement is mirror", slab_to_a_mirror, true, false },
};

static void check_standby(const struct raw_vm *vm, const char *what)
{
	for (uint64_t i = 0; i < RAW_PAGES; i++) {
		const uint8_t *page = vm->memory + i * FT_PAGE_SIZE, filled = i == 1 ? GOOD : 0;

		CHECK(page[0] == filled && memcmp(page, page + 1, FT_PAGE_SIZE - 1) == 0,
		      "%s: page %" PRIu64 " begins with 0x%02x", what, i, page[0]);
	}
}

static void primaries(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct raw_vm vm;
	struct raw r;

	raw_vm_secondary(&vm, "ring-bytes=2M,epochs-in-flight=2");
	for (size_t i = 0; i < sizeof(breaches) / sizeof(breaches[0]); i++) {
		const struct breach *b = &breaches[i];

		raw_connect(&r, vm.address, LANES);
		r.slab = true;
		raw_greet(&r, 1);
		CHECK(r.room.slots == FTW_RING_SLOTS_MIN && r.room.freed == 0, "the first room is another one");
		raw_epoch(&r, 1, GOOD);
		raw_close(&r);
		pair_wait(vm.session, STATE(STANDBY_SUSPECT));

		raw_connect(&r, vm.address, LANES);
		r.slab = !b->mirror;
		raw_greet(&r, 1);
		b->say(&r);
		if (!b->untold)
			expect_reason(&r, b->name, b->sentence);
		expect_status(vm.session, b->name, b->sentence);
		raw_close(&r);
		pair_wait(vm.session, STATE(WAITING) | STATE(STANDBY_SUSPECT));
		check_standby(&vm, b->name);
	}
	CHECK_OK(ft_session_failover(vm.session, FT_FAILOVER_FORCE, &res, &err), err);
	CHECK(res.outcome == FT_FAILOVER_DONE && res.epoch == 1, "failover: outcome %d, epoch %" PRIu64,
	      (int)res.outcome, res.epoch);
	raw_vm_close(&vm);
}

/* ---- secondaries ---- */

static void another_ring(struct raw *r)
{
	raw_hello_ack(r, NULL);
	raw_room(r, RAW_SLOTS * 2, 0);
}

static void free_and_untold(struct raw *r)
{
	raw_hello_ack(r, NULL);
	raw_room(r, RAW_SLOTS, 1);
}

/* A hello-ack that fits, and nothing behind it. */
static void ack_alone(struct raw *r, uint32_t placement, uint32_t credits)
{
	raw_hello_ack(r, &(struct hello_ack){ .version = 1,
					      .placement = (uint16_t)placement,
					      .epoch_credits = credits,
					      .heartbeat_ms = 100,
					      .heartbeat_misses = 100 });
}

static void free_at_first(struct raw *r)
{
	ack_alone(r, FTW_PLACEMENT_SLAB, GRANTED);
	raw_room(r, RAW_SLOTS, 5);
}

static void no_room(struct raw *r)
{
	ack_alone(r, FTW_PLACEMENT_SLAB, GRANTED);
}

static void no_more_room(struct raw *r)
{
	raw_hello_ack(r, NULL);
}

static void room_for_a_mirror(struct raw *r)
{
	raw_hello_ack(r, NULL);
	raw_room(r, RAW_SLOTS, 0);
}

static void another_placement(struct raw *r)
{
	ack_alone(r, FTW_PLACEMENT_MIRROR, 1);
}

static void await_commit(struct raw *r, uint64_t epoch)
{
	CHECK(raw_await_commit(r) == epoch, "commit of another epoch than %" PRIu64, epoch);
}

static void second_ack_first(struct raw *r)
{
	raw_hello_ack(r, NULL);
	await_commit(r, 1);
	raw_mark(r, FTW_ACK, 2);
}

static void ack_of_nothing(struct raw *r)
{
	raw_hello_ack(r, NULL);
	await_commit(r, 1);
	raw_mark(r, FTW_ACK, 1);
	raw_mark(r, FTW_APPLIED, 1);
	raw_mark(r, FTW_ACK, 2);
}

static void applied_before_ack(struct raw *r)
{
	raw_hello_ack(r, NULL);
	await_commit(r, 1);
	raw_mark(r, FTW_APPLIED, 1);
}

static void second_applied_first(struct raw *r)
{
	raw_hello_ack(r, NULL);
	for (uint64_t epoch = 1; epoch <= 2; epoch++) {
		await_commit(r, epoch);
		raw_mark(r, FTW_ACK, epoch);
	}
	raw_mark(r, FTW_APPLIED, 2);
}

#define QUICK "interval=5,suspect=10s,lanes=2,epochs-in-flight=2,commit-timeout=10s,placement="
#define RARE "interval=10000,suspect=10s,lanes=2,epochs-in-flight=2,commit-timeout=10s,placement=slab"
#define IMPATIENT "interval=5,suspect=10s,lanes=2,epochs-in-flight=2,commit-timeout=300,placement=slab"

static const struct trap {
	const char *name, *settings, *sentence;
	void (*say)(struct raw *r);
	bool told; /* to us too: a breach of a connection that was greeted.  One that is late, or turns out to be of no use, is left */
	uint8_t fill; /* the machine's memory */
} traps[] = {
	{ "another ring", QUICK "slab", "room of 1024 slots, 512 were expected", another_ring, true, 0 },
	{ "free and untold", QUICK "slab", "room up to position 1, it was told up to 0", free_and_untold, true, 0 },
	{ "free at first", QUICK "slab", "room up to position 5, it was told up to 0", free_at_first, true, 7 },
	{ "room for a mirror", QUICK "mirror", "room in a ring, but the placement is mirror", room_for_a_mirror, true,
	  0 },
	{ "no room", IMPATIENT, "has made no room in its ring", no_room, false, 7 },
	{ "no more room", IMPATIENT, "has made no room in its ring", no_more_room, false, 7 },
	{ "second ack first", QUICK "slab", "ack of epoch 2, expected 1", second_ack_first, true, 0 },
	{ "ack of nothing", RARE, "ack of epoch 2, which was not committed", ack_of_nothing, true, 0 },
	{ "applied before ack", QUICK "slab", "applied of epoch 1, which was not acknowledged", applied_before_ack,
	  true, 0 },
	{ "second applied first", QUICK "slab", "applied of epoch 2, expected 1", second_applied_first, true, 0 },
	{ "another placement", QUICK "slab", "hello-ack chose what was not offered", another_placement, false, 0 },
};

static void check_guest_runs(struct raw_vm *vm, const char *what)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (ft_session_status(vm->session, &st); st.is_protected || atomic_load(&vm->paused);
	     ft_session_status(vm->session, &st)) {
		CHECK(now_ns() < deadline, "%s: %s, paused %d", what, ft_state_name(st.state),
		      atomic_load(&vm->paused));
		sleep_ms(1);
	}
}

static void begin_secondary(struct raw *r, struct raw_vm *vm, struct tp_listener **l, const char *settings,
			    uint8_t fill)
{
	char uri[128];

	*l = raw_listen(uri, sizeof(uri));
	raw_vm_primary_filled(vm, uri, settings, fill);
	raw_accept(r, *l);
	r->slab = !strstr(settings, "mirror");
	raw_expect_hello(r);
}

static void end_secondary(struct raw *r, struct raw_vm *vm, struct tp_listener *l)
{
	raw_close(r);
	tp_listener_close(l);
	raw_vm_close(vm);
}

static void secondaries(void)
{
	for (size_t i = 0; i < sizeof(traps) / sizeof(traps[0]); i++) {
		const struct trap *t = &traps[i];
		struct tp_listener *l;
		struct raw_vm vm;
		struct raw r;

		begin_secondary(&r, &vm, &l, t->settings, t->fill);
		t->say(&r);
		if (t->told)
			expect_reason(&r, t->name, t->sentence);
		expect_status(vm.session, t->name, t->sentence);
		check_guest_runs(&vm, t->name);
		end_secondary(&r, &vm, l);
	}
}

/* ---- patience ---- */

#define PIECE 256u /* pages that the primary tells at a time */

/* Nothing of an epoch from @epoch on, and no position from @end on, comes for a while. */
static void expect_nothing_of(struct raw *r, uint64_t epoch, uint64_t end)
{
	struct record_head head;

	while (raw_receive(r, &head, NULL, 200)) {
		CHECK(head.epoch < epoch, "a record of epoch %" PRIu64 " comes too early", head.epoch);
		CHECK(r->told_end <= end, "position %" PRIu64 " is written, there is room for %" PRIu64,
		      r->told_end - 1, end);
	}
}

static void no_more_epochs_than_granted(void)
{
	struct tp_listener *l;
	struct raw_vm vm;
	struct raw r;

	begin_secondary(&r, &vm, &l, QUICK "slab", 0);
	raw_hello_ack(&r, NULL);
	for (uint64_t epoch = 1; epoch <= GRANTED; epoch++) {
		await_commit(&r, epoch);
		raw_mark(&r, FTW_ACK, epoch);
	}
	for (uint64_t applied = 1; applied < 10; applied++) {
		raw_room(&r, RAW_SLOTS, 0); /* which was on its way for long */
		if (applied < 3)
			expect_nothing_of(&r, applied + GRANTED, UINT64_MAX);
		raw_mark(&r, FTW_APPLIED, applied);
		await_commit(&r, applied + GRANTED);
		raw_mark(&r, FTW_ACK, applied + GRANTED);
	}
	end_secondary(&r, &vm, l);
}

static void nothing_where_there_is_no_room(void)
{
	struct tp_listener *l;
	struct record_head head;
	bool committed = false;
	uint64_t freed;
	struct raw_vm vm;
	struct raw r;

	begin_secondary(&r, &vm, &l, QUICK "slab", 7);
	raw_hello_ack(&r, NULL);
	expect_nothing_of(&r, 2, RAW_SLOTS);
	for (freed = PIECE - 1; freed <= 2 * PIECE;
	     freed += freed % 2 ? 1 : PIECE - 1) { /* one page short of what is next */
		raw_room(&r, RAW_SLOTS, freed);
		raw_room(&r, RAW_SLOTS, freed / 2);
		expect_nothing_of(&r, 2, freed + RAW_SLOTS);
		CHECK(r.told_end == freed / PIECE * PIECE + RAW_SLOTS, "free up to %" PRIu64 ", told up to %" PRIu64,
		      freed, r.told_end);
	}
	while (!committed || r.told_end < RAW_PAGES) { /* the whole machine, in rooms */
		if (r.told_end > freed + RAW_SLOTS / 2) {
			freed = r.told_end;
			raw_room(&r, RAW_SLOTS, freed);
		}
		CHECK(raw_receive(&r, &head, NULL, WAIT_MS), "the primary does not go on");
		CHECK(r.told_end <= freed + RAW_SLOTS, "position %" PRIu64 " is written", r.told_end - 1);
		committed |= head.type == FTW_COMMIT && head.epoch == 1;
	}
	end_secondary(&r, &vm, l);
}

int main(void)
{
	primaries();
	secondaries();
	no_more_epochs_than_granted();
	nothing_where_there_is_no_room();
	printf("%zu breaches of primaries, %zu of secondaries\n", sizeof(breaches) / sizeof(breaches[0]),
	       sizeof(traps) / sizeof(traps[0]));
	return 0;
}
