/* SPDX-License-Identifier: MIT */
/* test_lease.c - a lease over a made-up witness, by a made-up clock that stands still unless a test moves it.  ft-lease itself asks in real time, every third
 * of LEASE_MS.
 * Wrapped: witness_open boot_now_ns */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "clock.h"
#include "fake_witness.h"
#include "lease.h"
#include "session_help.h"

FAKE_WITNESS_WRAPS

#define LEASE_MS 300u
#define DRIFT_MS 40u
#define LONG_LEASE_MS 6000u

struct side {
	struct lease *lease;
	_Atomic unsigned granted, ended;
	struct ft_error why;
	_Atomic uint64_t generation; /* as granted() had it last */
};

static void granted(void *user, uint64_t generation)
{
	struct side *s = user;

	atomic_store(&s->generation, generation);
	atomic_fetch_add(&s->granted, 1);
}

static void ended(void *user, const struct ft_error *why)
{
	struct side *s = user;

	s->why = *why;
	atomic_fetch_add(&s->ended, 1);
}

static void open_side(struct side *s, const char *name, uint32_t lease_ms)
{
	struct lease_options opt = { .witness = "file:made-up",
				     .self = { .lease_ms = lease_ms, .drift_ms = DRIFT_MS },
				     .granted = granted,
				     .ended = ended,
				     .user = s };
	struct ft_error err = { 0 };

	memset(s, 0, sizeof(*s));
	snprintf(opt.self.name, sizeof(opt.self.name), "%s", name);
	cr_assert_eq(lease_open(&s->lease, &opt, &err), 0, "%s", err.msg);
}

/* Until the counter has risen by @n. */
static void wait_for(_Atomic unsigned *count, unsigned n)
{
	unsigned target = atomic_load(count) + n;
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	while (atomic_load(count) < target) {
		cr_assert(now_ns() < deadline, "ft-lease does nothing");
		sleep_ms(1);
	}
}

/* Until side @side has asked so @n times more. */
static void wait_asked(unsigned side, enum witness_what what, unsigned n)
{
	uint64_t target = fake_witness_asked(side, what) + n, deadline = deadline_in_ms(WAIT_MS);

	while (fake_witness_asked(side, what) < target) {
		cr_assert(now_ns() < deadline, "side %u does not ask", side);
		sleep_ms(1);
	}
}

static void take(struct side *s, uint64_t generation, uint64_t want)
{
	struct ft_error err = { 0 };
	uint64_t now;

	cr_assert_eq(lease_take(s->lease, generation, &now, &err), WITNESS_YES, "%s", err.msg);
	cr_assert_eq(now, want);
}

static enum lease_state state(const struct side *s)
{
	return lease_state(s->lease);
}

/* It is good from the time it was asked for, for the lease's time but for the drift bound, and not a moment longer. */
Test(lease, is_held_for_its_time)
{
	struct lease_status st;
	struct side s;

	fake_witness_reset();
	open_side(&s, "a", LONG_LEASE_MS); /* ft-lease does not ask while we look */
	cr_assert_eq(state(&s), LEASE_NONE);
	cr_assert_not(lease_held(s.lease));
	wait_asked(0, WITNESS_LOOK, 1);
	fake_witness_takes(0, 30);
	take(&s, 0, 1);
	fake_witness_takes(0, 0);
	fake_witness_mode(0, FAKE_SILENT);
	cr_assert_eq(state(&s), LEASE_HELD);
	lease_status(s.lease, &st);
	cr_assert_eq(st.left_ns, (LONG_LEASE_MS - DRIFT_MS - 30) * NS_PER_MS);
	cr_assert_str_eq(st.view.record.holder, "a");
	fake_clock_advance(LONG_LEASE_MS - DRIFT_MS - 30 - 1);
	cr_assert(lease_held(s.lease));
	fake_clock_advance(1);
	cr_assert_not(lease_held(s.lease));
	cr_assert_eq(state(&s), LEASE_LATE);
	lease_close(s.lease);
}

Test(lease, is_kept_up_and_given_back)
{
	struct side s;

	fake_witness_reset();
	open_side(&s, "a", LEASE_MS);
	take(&s, 0, 1);
	for (unsigned i = 0; i < 5; i++) {
		fake_clock_advance(LEASE_MS - DRIFT_MS - 1);
		wait_for(&s.granted, 2);
		cr_assert(lease_held(s.lease));
	}
	cr_assert_eq(atomic_load(&s.generation), 1);
	lease_close(s.lease);
	cr_assert_str_eq(fake_witness_record().holder, "");
	cr_assert_eq(fake_witness_record().generation, 1);
}

/* Late, then over, told once; and still it is ours if the witness says so in the end. */
Test(lease, without_an_answer_is_late_and_then_over)
{
	struct lease_status st;
	struct side s;

	fake_witness_reset();
	open_side(&s, "a", LEASE_MS);
	take(&s, 0, 1);
	fake_witness_mode(0, FAKE_SILENT);
	fake_clock_advance(LEASE_MS - DRIFT_MS + LEASE_MS - 1);
	wait_asked(0, WITNESS_RENEW, 2);
	cr_assert_eq(state(&s), LEASE_LATE);
	cr_assert_eq(atomic_load(&s.ended), 0);
	fake_clock_advance(1);
	wait_for(&s.ended, 1);
	cr_assert_eq(state(&s), LEASE_OVER);
	cr_assert(strstr(s.why.msg, "could not be renewed: the made-up witness does not answer"), "%s", s.why.msg);
	lease_status(s.lease, &st);
	cr_assert(strstr(st.trouble, "does not answer"), "%s", st.trouble);
	wait_asked(0, WITNESS_RENEW, 2);
	cr_assert_eq(atomic_load(&s.ended), 1);
	fake_witness_mode(0, FAKE_ANSWERS);
	wait_for(&s.granted, 1);
	cr_assert_eq(state(&s), LEASE_HELD);
	lease_status(s.lease, &st);
	cr_assert_str_eq(st.trouble, "");
	lease_close(s.lease);
}

Test(lease, of_another_is_lost_at_once)
{
	struct witness_record other = { .holder = "b", .generation = 2, .counter = 100 };
	struct side s;

	fake_witness_reset();
	open_side(&s, "a", LEASE_MS);
	take(&s, 0, 1);
	fake_witness_set(&other);
	wait_for(&s.ended, 1);
	cr_assert_eq(state(&s), LEASE_LOST);
	cr_assert_not(lease_held(s.lease));
	cr_assert_eq(s.why.code, -EOWNERDEAD);
	cr_assert(strstr(s.why.msg, "b holds the lease, of generation 2"), "%s", s.why.msg);
	lease_close(s.lease);
	cr_assert_str_eq(fake_witness_record().holder, "b", "what is another's was given back");
}

Test(lease, is_raised_by_its_holder_only)
{
	struct witness_record other = { .holder = "b", .generation = 7, .counter = 100 };
	struct ft_error err = { 0 };
	struct side s;
	uint64_t now;

	fake_witness_reset();
	open_side(&s, "a", LEASE_MS);
	take(&s, 0, 1);
	cr_assert_eq(lease_raise(s.lease, &now, &err), WITNESS_YES, "%s", err.msg);
	cr_assert_eq(now, 2);
	/* one whose answer is lost has happened: a renewal tells */
	fake_witness_mode(0, FAKE_MUTE);
	cr_assert_eq(lease_raise(s.lease, &now, &err), WITNESS_UNKNOWN);
	fake_witness_mode(0, FAKE_ANSWERS);
	wait_for(&s.granted, 1);
	cr_assert_eq(atomic_load(&s.generation), 3);
	fake_witness_set(&other);
	cr_assert_eq(lease_raise(s.lease, &now, &err), WITNESS_NO);
	cr_assert_eq(err.code, -EOWNERDEAD);
	cr_assert_eq(state(&s), LEASE_LOST);
	cr_assert_eq(fake_witness_record().generation, 7);
	lease_close(s.lease);
}

/* ---- of another ---- */

struct taking {
	struct side *side;
	uint64_t generation, now;
	enum witness_answer answer;
	struct ft_error err;
	atomic_bool done;
};

static void *take_main(void *arg)
{
	struct taking *t = arg;

	t->answer = lease_take(t->side->lease, t->generation, &t->now, &t->err);
	atomic_store(&t->done, true);
	return NULL;
}

Test(lease, is_taken_from_a_silent_holder_after_its_time_and_not_before)
{
	struct taking t = { 0 };
	struct side a, b;
	pthread_t thread;

	fake_witness_reset();
	open_side(&a, "a", 2 * LEASE_MS); /* the holder's lease counts, if it is longer */
	open_side(&b, "b", LEASE_MS);
	take(&a, 0, 1);
	wait_asked(1, WITNESS_LOOK, 1);
	fake_witness_mode(0, FAKE_SILENT);
	t.side = &b;
	t.generation = 1;
	cr_assert_eq(pthread_create(&thread, NULL, take_main, &t), 0);
	wait_asked(1, WITNESS_TAKE, 3);
	cr_assert_not(atomic_load(&t.done));
	fake_clock_advance(2 * LEASE_MS + DRIFT_MS - 1);
	wait_asked(1, WITNESS_TAKE, 3);
	cr_assert_not(atomic_load(&t.done));
	cr_assert_not(lease_held(a.lease), "two may run");
	fake_clock_advance(1);
	pthread_join(thread, NULL);
	cr_assert_eq(t.answer, WITNESS_YES, "%s", t.err.msg);
	cr_assert_eq(t.now, 2);
	cr_assert(lease_held(b.lease));
	fake_witness_mode(0, FAKE_ANSWERS);
	wait_for(&a.ended, 1);
	cr_assert_eq(state(&a), LEASE_LOST);
	/* and back: given back, it is taken at once */
	lease_give_back(b.lease);
	cr_assert_eq(state(&b), LEASE_NONE);
	take(&a, 2, 3);
	cr_assert_eq(state(&a), LEASE_HELD);
	lease_close(a.lease);
	lease_close(b.lease);
}

Test(lease, of_a_holder_that_lives_is_not_taken)
{
	struct ft_error err = { 0 };
	struct side a, b;
	uint64_t now;

	fake_witness_reset();
	open_side(&a, "a", LEASE_MS);
	open_side(&b, "b", LEASE_MS);
	take(&a, 0, 1);
	cr_assert_eq(lease_take(b.lease, 0, &now, &err), WITNESS_NO);
	cr_assert_eq(err.code, -EBUSY);
	cr_assert(strstr(err.msg, "a holds the lease (generation 1)"), "%s", err.msg);
	cr_assert_eq(now, 1);
	cr_assert_eq(state(&b), LEASE_NONE);
	cr_assert_eq(state(&a), LEASE_HELD);
	lease_close(a.lease);
	lease_close(b.lease);
}

/* Of another generation it is not even waited for. */
Test(lease, of_another_generation_is_not_taken)
{
	struct ft_error err = { 0 };
	struct side a, b;
	uint64_t now;

	fake_witness_reset();
	open_side(&a, "a", LEASE_MS);
	open_side(&b, "b", LEASE_MS);
	take(&a, 0, 1);
	cr_assert_eq(lease_raise(a.lease, &now, &err), WITNESS_YES);
	lease_close(a.lease);
	cr_assert_eq(lease_take(b.lease, 1, &now, &err), WITNESS_NO);
	cr_assert_eq(err.code, -ESTALE);
	cr_assert(strstr(err.msg, "generation 2 and not 1"), "%s", err.msg);
	cr_assert_eq(fake_witness_asked(1, WITNESS_TAKE), 1);
	fake_witness_mode(1, FAKE_SILENT);
	cr_assert_eq(lease_take(b.lease, 0, &now, &err), WITNESS_UNKNOWN);
	fake_witness_mode(1, FAKE_ANSWERS);
	take(&b, 0, 3);
	lease_close(b.lease);
}

/* Taken, and the answer was lost: who asks again has it. */
Test(lease, is_taken_again_when_the_answer_was_lost)
{
	struct ft_error err = { 0 };
	struct side a;
	uint64_t now;

	fake_witness_reset();
	open_side(&a, "a", LEASE_MS);
	fake_witness_mode(0, FAKE_MUTE);
	cr_assert_eq(lease_take(a.lease, 0, &now, &err), WITNESS_UNKNOWN);
	cr_assert_not(lease_held(a.lease));
	fake_witness_mode(0, FAKE_ANSWERS);
	take(&a, 0, 1);
	lease_close(a.lease);
}
