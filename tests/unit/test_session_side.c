/* SPDX-License-Identifier: MIT */
/* test_session_side.c - the side stream.  The sims check each octet as it comes, and at load_state that just those of the
 * committed epochs are there. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>
#include "clock.h"
#include "fabric_fake.h"
#include "session_help.h"

static void side_options(struct pair_options *opt)
{
	pair_options_init(opt);
	opt->sim.rate = 5000;
	opt->sim.side_max_bytes = 4u << 20;
	opt->compare = true;
}

static uint64_t side_bytes(struct ft_session *s)
{
	return counted(s, FT_COUNTER_SIDE_BYTES);
}

static void each_epoch_has_its_octets(const char *listen)
{
	struct pair_options opt;
	struct ft_status st;
	struct pair p;

	side_options(&opt);
	opt.listen = listen;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	ft_session_status(p.primary, &st);
	cr_assert_geq(st.sync_pages_total, opt.sim.side_max_bytes / PAGE, "the side stream is not in the sync's pages");
	cr_assert_eq(st.sync_pages_done, st.sync_pages_total);
	pair_wait_applied(&p, 60);
	pair_check_compared(&p);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	pair_wait(p.primary, STATE(FENCED)); /* the connection has ended on both sides: nothing is counted any more */
	cr_assert_geq(side_bytes(p.secondary), opt.sim.side_max_bytes);
	cr_assert_geq(side_bytes(p.primary), side_bytes(p.secondary));
	pair_close(&p);
}

Test(side, each_epoch_has_its_octets_over_tcp, .timeout = 120)
{
	each_epoch_has_its_octets(NULL);
}

Test(side, each_epoch_has_its_octets_over_rdma, .timeout = 120)
{
	fabric_start(NULL);
	each_epoch_has_its_octets("rdma:10.9.0.1:0");
	cr_expect(fabric_all_gone(), "%s", fabric_live_text());
	fabric_stop();
}

Test(side, lost_connections_begin_it_again, .timeout = 120)
{
	struct pair_options opt;
	struct pair p;

	side_options(&opt);
	opt.sim.side_max_bytes = 1u << 20;
	opt.fault = "cutmsg=80,seed=3";
	opt.primary = "suspect=20000";
	pair_open(&p, &opt);
	while (atomic_load(&p.losses) < 5)
		pair_wait_applied(&p, 1);
	pair_check_compared(&p);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	pair_close(&p);
}

Test(side, a_failover_at_any_moment_finds_the_committed_epochs, .timeout = 240)
{
	for (unsigned i = 0; i < 25; i++) {
		struct pair_options opt;
		struct pair p;

		side_options(&opt);
		opt.primary = "on-loss=hold";
		pair_open(&p, &opt);
		pair_wait_protected(&p);
		sleep_ms(i * 7 % 40);
		failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
		pair_check_compared(&p);
		pair_close(&p);
	}
}

/* @op of the secondary fails once, some epochs later: both sides say why, and a failover finds what was committed. */
static void secondary_fails(enum sim_op op, const char *part)
{
	struct pair_options opt;
	struct pair p;

	side_options(&opt);
	opt.use_proxy = true;
	opt.primary = "on-loss=hold,reconnect=60000";
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_once(p.proxy);
	pair_start_primary(&p, p.address);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	sim_fail_op(p.secondary_sim, op, sim_op_calls(p.secondary_sim, op) + 1, UINT64_MAX);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	pair_check_unprotected(&p, part);
	pair_check_runs(&p, WAIT_MS);
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	pair_check_compared(&p);
	pair_close(&p);
}

Test(side, a_write_that_fails, .timeout = 120)
{
	secondary_fails(SIM_OP_SIDE_WRITE, "side stream: sim: side-write was made to fail");
}

Test(side, a_commit_that_fails, .timeout = 120)
{
	secondary_fails(SIM_OP_SIDE_COMMIT, "side stream: sim: side-commit was made to fail");
}

Test(side, a_beginning_or_a_read_that_fails_is_told_and_tried_again, .timeout = 120)
{
	struct pair_options opt;
	struct ft_status st;
	struct pair p;
	uint64_t deadline;

	side_options(&opt);
	pair_open_sims(&p, &opt);
	sim_fail_op(p.secondary_sim, SIM_OP_SIDE_BEGIN, 1, UINT64_MAX);
	pair_start_secondary(&p);
	pair_start_primary(&p, p.address);
	pair_check_unprotected(&p, "secondary gave up: side stream: sim: side-begin was made to fail");
	sim_fail_op(p.secondary_sim, SIM_OP_SIDE_BEGIN, 0, 0);
	pair_wait_protected(&p);
	sim_fail_op(p.primary_sim, SIM_OP_SIDE_READ, sim_op_calls(p.primary_sim, SIM_OP_SIDE_READ) + 1, UINT64_MAX);
	pair_check_unprotected(&p, "side stream: sim: side-read was made to fail");
	for (deadline = deadline_in_ms(WAIT_MS), st.reason[0] = '\0'; !strstr(st.reason, "side-read was made to fail");
	     ft_session_status(p.secondary, &st))
		cr_assert(now_ns() < deadline, "the secondary was not told: '%s'", st.reason);
	pair_check_runs(&p, WAIT_MS);
	sim_fail_op(p.primary_sim, SIM_OP_SIDE_READ, 0, 0);
	pair_wait_protected(&p);
	pair_check_compared(&p);
	pair_close(&p);
}

/* A disk may be slower than any heartbeat: the primary is told that its silence is work. */
static void slow_disk(enum sim_op op)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.sim.rate = 5000;
	opt.sim.side_max_bytes = 150000;
	opt.primary =
		"heartbeat=50,heartbeat-misses=12,commit-timeout=30000"; /* 600 ms: a busy machine keeps to that */
	opt.secondary = "heartbeat=50,heartbeat-misses=12";
	opt.compare = true;
	pair_open_sims(&p, &opt);
	sim_delay_op(p.secondary_sim, op, 2500);
	pair_start_secondary(&p);
	pair_start_primary(&p, p.address);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 1);
	cr_assert_eq(atomic_load(&p.losses), 0);
	cr_assert_gt(sim_op_calls(p.secondary_sim, op), 0);
	pair_check_compared(&p);
	pair_close(&p);
}

Test(side, a_commit_that_takes_long_is_no_loss, .timeout = 120)
{
	slow_disk(SIM_OP_SIDE_COMMIT);
}

Test(side, a_write_that_takes_long_is_no_loss, .timeout = 120)
{
	slow_disk(SIM_OP_SIDE_WRITE);
}

Test(side, a_beginning_that_takes_long_is_no_loss, .timeout = 120)
{
	slow_disk(SIM_OP_SIDE_BEGIN);
}

/* The guest writes @chase octets for each 100 that a full sync reads.  The pause is to be made with 1,000 pages to come. */
static void open_with_writer(struct pair *p, uint64_t chase)
{
	struct pair_options opt;

	side_options(&opt);
	opt.sim.side_max_bytes = 16u << 20;
	opt.sim.side_chase = chase;
	opt.primary = "sync-pause=1,suspect=20000";
	pair_open(p, &opt);
	pair_wait_protected(p);
}

static void check_writer(struct pair *p)
{
	pair_wait_applied(p, 3);
	cr_assert_eq(atomic_load(&p->losses), 0);
	pair_check_compared(p);
	failover(p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	pair_close(p);
}

/* A round is of what was there when it began; what never gets less ends the rounds all the same, and the first epoch has the rest. */
Test(side, a_writer_that_never_rests_does_not_hold_up_a_round, .timeout = 240)
{
	for (uint64_t chase = 100; chase <= 200; chase += 50) {
		struct ft_status st;
		struct pair p;

		open_with_writer(&p, chase);
		ft_session_status(p.primary, &st);
		cr_assert_geq(st.sync_round, 2);
		cr_assert_gt(sim_side_backlog(p.primary_sim), 1000 * PAGE, "%" PRIu64, sim_side_backlog(p.primary_sim));
		cr_assert_geq(side_bytes(p.primary), st.sync_round * p.opt.sim.side_max_bytes);
		check_writer(&p);
	}
}

/* As long as a round brings it down there is another one, until what is left fits into the pause. */
Test(side, a_writer_that_is_slower_than_the_link_has_rounds_until_it_fits, .timeout = 240)
{
	struct ft_status st;
	struct pair p;

	open_with_writer(&p, 50);
	ft_session_status(p.primary, &st);
	cr_assert_geq(st.sync_round, 3);
	cr_assert_leq(sim_side_backlog(p.primary_sim), 1000 * PAGE, "%" PRIu64, sim_side_backlog(p.primary_sim));
	check_writer(&p);
}
