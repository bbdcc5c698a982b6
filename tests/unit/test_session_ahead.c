/* SPDX-License-Identifier: MIT */
/* test_session_ahead.c - pages that are sent while their epoch runs (send-ahead): each epoch is still what the oracle says, and pages that are
 * written all the time are left for the pause. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "clock.h"
#include "session_help.h"

#define TIMES 4u

static void open_guest(struct pair *p, enum sim_pattern pattern, uint64_t working_set, uint64_t rate,
		       const char *settings)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.primary = settings;
	opt.compare = true;
	opt.sim.region_bytes[0] = UINT64_C(16) << 20;
	opt.sim.nr_cpus = 1;
	opt.sim.pattern = pattern;
	opt.sim.working_set_pages = working_set;
	opt.sim.rate = rate;
	opt.sim.output_every = 0;
	pair_open(p, &opt);
	pair_wait_protected(p);
}

/* Pages that are written once in an epoch leave before its pause, which has the rest; on several lanes too. */
Test(ahead, pages_leave_before_the_pause, .timeout = 120)
{
	struct ft_stats st;
	struct pair p;

	open_guest(&p, SIM_SEQUENTIAL, 0, 10000, "interval=100,output-cut=off,lanes=3,send-ahead=4");
	pair_wait_applied(&p, 20);
	pair_check_compared(&p);
	ft_session_stats(p.primary, &st);
	cr_expect_gt(
		st.counter[FT_COUNTER_AHEAD_PAGES], st.counter[FT_COUNTER_EPOCHS] * st.dist[FT_METRIC_DIRTY_PAGES].p50,
		"%" PRIu64 " pages were sent ahead in %" PRIu64 " epochs, %" PRIu64 " in a pause",
		st.counter[FT_COUNTER_AHEAD_PAGES], st.counter[FT_COUNTER_EPOCHS], st.dist[FT_METRIC_DIRTY_PAGES].p50);
	pair_close(&p);
}

/* 32 pages that are written all the time would be sent TIMES times in each epoch for nothing. */
Test(ahead, hot_pages_are_left_for_the_pause, .timeout = 120)
{
	struct ft_stats before, after;
	uint64_t pages, epochs;
	struct pair p;

	open_guest(&p, SIM_UNIFORM, 32, 30000, "interval=100,output-cut=off,send-ahead=4");
	ft_session_stats(p.primary, &before);
	pair_wait_applied(&p, 32);
	pair_check_compared(&p);
	ft_session_stats(p.primary, &after);
	pages = after.counter[FT_COUNTER_AHEAD_PAGES] - before.counter[FT_COUNTER_AHEAD_PAGES];
	epochs = after.counter[FT_COUNTER_EPOCHS] - before.counter[FT_COUNTER_EPOCHS];
	cr_expect_gt(pages, 0);
	cr_expect_lt(pages, epochs * TIMES * 32 / 2, "%" PRIu64 " pages in %" PRIu64 " epochs", pages, epochs);
	cr_expect_gt(after.counter[FT_COUNTER_AHEAD_AGAIN], 0);
	pair_close(&p);
}

#define FEW 3600u /* more than 80 % of what staging memory of 16 MiB holds */

static int always_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	(void)user;
	(void)err;
	return ft_dirty_add(dirty, 0, 0, FEW);
}

static uint64_t none_known(void *user)
{
	(void)user;
	return 0;
}

/* What was fetched and is left for the pause fills staging memory too, though the VMM does not know of it any more: the epoch ends early. */
Test(ahead, pages_left_for_the_pause_count_for_the_cap, .timeout = 120)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s, *standby = plain_open(FT_ROLE_SECONDARY);
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	char address[64];
	uint8_t *memory = ram(FEW);

	ops.collect_dirty = always_dirty;
	ops.estimate_dirty = none_known;
	memset(memory, 7, FEW * PAGE);
	cr_assert_geq(ft_session_add_region(standby, "ram", ram(FEW), FEW * PAGE, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_start(standby, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_address(standby, address, sizeof(address)), 0);
	cfg.peer = address;
	pair_settings(&cfg, "send-ahead=3,interval=800,output-cut=off,staging-bytes=16M");
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	cr_assert_geq(ft_session_add_region(s, "ram", memory, FEW * PAGE, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	while (counted(s, FT_COUNTER_CAP_CUTS) == 0) {
		cr_assert(now_ns() < deadline, "no epoch was cut at the cap, %" PRIu64 " ended",
			  counted(s, FT_COUNTER_EPOCHS));
		cr_assert(counted(s, FT_COUNTER_EPOCHS) < 10, "no epoch was cut at the cap");
		sleep_ms(5);
	}
	cr_expect_gt(counted(s, FT_COUNTER_AHEAD_PAGES), 0);
	ft_session_close(s);
	ft_session_close(standby);
}

/* Off, nothing is looked at before its time. */
Test(ahead, off_by_default, .timeout = 120)
{
	struct pair p;
	uint64_t calls, epochs;

	open_guest(&p, SIM_SEQUENTIAL, 0, 10000, "interval=100,output-cut=off");
	calls = sim_op_calls(p.primary_sim, SIM_OP_COLLECT_DIRTY);
	epochs = sim_op_calls(p.primary_sim, SIM_OP_PAUSE);
	pair_wait_applied(&p, 5);
	calls = sim_op_calls(p.primary_sim, SIM_OP_COLLECT_DIRTY) - calls;
	epochs = sim_op_calls(p.primary_sim, SIM_OP_PAUSE) - epochs;
	cr_expect_leq(calls, epochs + 1);
	cr_expect_eq(counted(p.primary, FT_COUNTER_AHEAD_PAGES), 0);
	pair_close(&p);
}

/* A look that fails ends the connection with its reason; the guest runs, and is protected again. */
Test(ahead, a_look_that_fails_is_a_loss, .timeout = 120)
{
	struct pair p;

	open_guest(&p, SIM_SEQUENTIAL, 0, 10000, "interval=3600000,output-cut=off,send-ahead=64");
	cr_assert_eq(ft_session_set(p.primary, "interval", "1000", NULL), 0);
	sim_fail_op(p.primary_sim, SIM_OP_COLLECT_DIRTY, 3, 1);
	while (counted(p.primary, FT_COUNTER_LOSSES) == 0)
		sleep_ms(5);
	pair_wait_protected(&p);
	pair_check_runs(&p, 60000);
	pair_close(&p);
}

Test(ahead, not_with_copy_on_write)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_vmm_ops ops = *sim_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;

	cfg.send_ahead = 1;
	cfg.capture = FT_CAPTURE_COW;
	fails(ft_session_open(&s, &cfg, &ops, NULL, &err), &err, -EINVAL, "send-ahead");
	cfg.capture = FT_CAPTURE_AUTO;
	fails(ft_session_open(&s, &cfg, &ops, NULL, &err), &err, -EINVAL, "send-ahead");
}
