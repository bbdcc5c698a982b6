/* SPDX-License-Identifier: MIT */
/* test_session_pace.c - the interval that is found (interval-mode), in sessions: what status tells, rest and waking, settings changed under way.
 * What the controller does with figures is in test_controller.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "clock.h"
#include "session_help.h"

static void open_guest(struct pair *p, const char *settings, uint64_t rate)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 16u << 20;
	opt.sim.rate = rate;
	opt.sim.nr_cpus = 1;
	opt.primary = settings;
	pair_open(p, &opt);
	pair_wait_protected(p);
}

/* Until status says @reason (and @end, if not NULL). */
static struct ft_status wait_reason(struct pair *p, const char *reason, const char *end)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (;; sleep_ms(2)) {
		ft_session_status(p->primary, &st);
		if (strcmp(st.interval_reason, reason) == 0 && (!end || strcmp(st.epoch_end, end) == 0))
			return st;
		cr_assert(now_ns() < deadline, "%s, ended by %s, %" PRIu64 " ns instead of %s", st.interval_reason,
			  st.epoch_end, st.interval_now_ns, reason);
	}
}

static void set(struct pair *p, const char *name, const char *value)
{
	struct ft_error err = { 0 };

	cr_assert_eq(ft_session_set(p->primary, name, value, &err), 0, "%s", err.msg);
}

Test(pace, fixed_tells_the_setting, .timeout = 120)
{
	struct ft_status st;
	struct pair p;

	open_guest(&p, "interval=7", 1000);
	st = wait_reason(&p, "fixed", "interval");
	cr_expect_eq(st.interval_now_ns, 7 * NS_PER_MS);
	cr_expect_str_eq(st.interval_mode, "fixed");
	cr_expect_eq(st.watermark_pages, 0);
	ft_session_status(p.secondary, &st);
	cr_expect_str_eq(st.interval_mode, "");
	pair_close(&p);
}

/* Each epoch of an idle guest is twice as long: until one is longer than anybody waits.  The last epoch that was acknowledged. */
static uint64_t wait_deep_rest(struct pair *p)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (;; sleep_ms(5)) {
		st = wait_reason(p, "idle", NULL);
		if (st.interval_now_ns > 2000 * NS_PER_MS)
			return st.epoch_acked;
		cr_assert(now_ns() < deadline);
	}
}

/* It takes some seconds to come to the deep rest again, so this is not missed. */
static void wait_awake(struct pair *p)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	do {
		cr_assert(now_ns() < deadline, "still at rest");
		ft_session_status(p->primary, &st);
	} while (st.interval_now_ns > 2000 * NS_PER_MS);
}

/* An idle guest: epochs of an hour, were it not for output and for dirty pages. */
Test(pace, an_idle_guest_rests_until_it_sends_or_writes, .timeout = 120)
{
	struct ft_status st;
	struct pair p;
	uint64_t deadline, epoch, cuts;

	open_guest(&p, "interval-mode=slowdown,interval=5,interval-max=3600000", 0);
	wait_reason(&p, "slowdown", NULL);
	sim_stop(p.primary_sim);
	epoch = wait_deep_rest(&p);
	cuts = counted(p.primary, FT_COUNTER_OUTPUT_CUTS);
	ft_session_output(p.primary);
	st.epoch_acked = epoch;
	for (deadline = deadline_in_ms(1500); st.epoch_acked == epoch; ft_session_status(p.primary, &st))
		cr_assert(now_ns() < deadline, "the output waits for the end of the interval");
	cr_expect_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), cuts + 1);
	wait_awake(&p);
	/* and again, but this time it writes */
	epoch = wait_deep_rest(&p);
	sim_continue(p.primary_sim);
	st.epoch_acked = epoch;
	for (deadline = deadline_in_ms(1500); st.epoch_acked == epoch; ft_session_status(p.primary, &st))
		cr_assert(now_ns() < deadline, "its pages wait for the end of the interval");
	pair_close(&p);
}

Test(pace, targets_and_bounds_are_changed_under_way, .timeout = 120)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	struct pair p;

	open_guest(&p, "interval-mode=slowdown,interval=20,target-slowdown=1,interval-max=40,interval-min=3", 0);
	st = wait_reason(&p, "max", NULL);
	cr_expect_eq(st.interval_now_ns, 40 * NS_PER_MS);
	fails(ft_session_set(p.primary, "interval-max", "2", &err), &err, -EINVAL, "interval-min");
	set(&p, "interval-min", "15");
	set(&p, "interval-max", "15");
	do
		ft_session_status(p.primary, &st);
	while (st.interval_now_ns != 15 * NS_PER_MS); /* .timeout */
	set(&p, "interval-mode", "output-delay");
	set(&p, "target-output-delay", "1");
	st = wait_reason(&p, "min", NULL);
	cr_expect_str_eq(st.interval_mode, "output-delay");
	set(&p, "interval-mode", "fixed");
	st = wait_reason(&p, "fixed", NULL);
	cr_expect_eq(st.interval_now_ns, 20 * NS_PER_MS);
	pair_close(&p);
}

static void wait_epochs(struct pair *p, unsigned more)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS), from;
	struct ft_status st;

	ft_session_status(p->primary, &st);
	for (from = st.epoch_acked; st.epoch_acked < from + more; ft_session_status(p->primary, &st)) {
		cr_assert(now_ns() < deadline, "no epoch after %" PRIu64, st.epoch_acked);
		sleep_ms(2);
	}
}

/* Epochs of a second would be right for the interval's bounds, but not for what their pages cost.  With output-delay the interval comes down to
 * interval-min within a few epochs, and nothing ends one sooner than that: each change of the mode begins at a second again. */
Test(pace, the_watermark_ends_epochs, .timeout = 120)
{
	struct pair p;
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	open_guest(&p,
		   "interval-mode=slowdown,target-output-delay=5,interval-min=100,interval=1000,output-gap=0,"
		   "staging-bytes=256M",
		   0);
	while (counted(p.primary, FT_COUNTER_WATERMARK_CUTS) < 3) {
		cr_assert(now_ns() < deadline, "no epoch ended for its dirty pages");
		set(&p, "interval-mode", "slowdown");
		wait_epochs(&p, 2);
		set(&p, "interval-mode", "output-delay");
		wait_epochs(&p, 2);
	}
	pair_close(&p);
}

/* Not at the end of an interval that is an hour long. */
Test(pace, a_shorter_interval_holds_at_once, .timeout = 120)
{
	struct pair p;

	open_guest(&p, "interval=3600000", 1000);
	set(&p, "interval", "5");
	pair_wait_applied(&p, 5);
	pair_close(&p);
}
