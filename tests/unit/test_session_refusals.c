/* SPDX-License-Identifier: MIT */
/* test_session_refusals.c - who is refused, and that both sides say why in the same words. */
#include <criterion/criterion.h>
#include <string.h>
#include "fabric_fake.h"
#include "session_help.h"

static void refused_pair(const char *primary, const char *secondary, const struct sim_config *other,
			 const char *identity, const char *part)
{
	struct pair_options opt;
	struct ft_config cfg;
	struct ft_error err = { 0 };
	struct sim *sim;
	struct pair p;

	hear_refusals();
	pair_options_init(&opt);
	opt.secondary = secondary;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	cr_assert_eq(sim_create(&sim, other ? other : &opt.sim, false, &err), 0, "%s", err.msg);
	cfg = plain_config(FT_ROLE_PRIMARY);
	pair_settings(&cfg, primary);
	cfg.peer = p.address;
	cfg.identity = identity ? identity : sim_identity(p.secondary_sim);
	cr_assert_eq(ft_session_open(&p.primary, &cfg, sim_ops_of(sim), sim, &err), 0, "%s", err.msg);
	cr_assert_eq(sim_attach(sim, p.primary, &err), 0);
	cr_assert_eq(ft_session_start(p.primary, &err), 0, "%s", err.msg);
	check_refused(&p, p.primary, part);
	cr_assert_eq(state_of(p.secondary), FT_STATE_WAITING);
	cr_assert_eq(sim_attach(sim, NULL, &err), 0);
	pair_close(&p);
	sim_destroy(sim);
}

Test(refusal, another_identity)
{
	refused_pair(NULL, NULL, NULL, "a toaster", "identity: the primary's machine is \"a toaster\"");
}

Test(refusal, another_layout)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.sim.region_bytes[0] /= 2;
	refused_pair(NULL, NULL, &opt.sim, NULL, "memory layout: region ");
}

Test(refusal, a_side_stream_that_nobody_here_takes)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.sim.side_max_bytes = 1000;
	refused_pair(NULL, NULL, &opt.sim, NULL, "has a side stream (its disks are replicated)");
}

/* Its disks would be old when it is promoted. */
Test(refusal, a_machine_without_a_side_stream_where_one_is_taken)
{
	struct pair_options opt;
	struct pair p;

	hear_refusals();
	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	sim_destroy(p.secondary_sim);
	opt.sim.side_max_bytes = 1000;
	cr_assert_eq(sim_create(&p.secondary_sim, &opt.sim, true, NULL), 0);
	pair_start_secondary(&p);
	pair_start_primary(&p, p.address);
	check_refused(&p, p.primary,
		      "the machine here takes a side stream (its disks are replicated), and the primary's has none");
	cr_assert_eq(state_of(p.secondary), FT_STATE_WAITING);
	cr_assert_eq(sim_op_calls(p.secondary_sim, SIM_OP_SIDE_BEGIN), 0);
	pair_close(&p);
}

Test(refusal, a_larger_state)
{
	refused_pair("state-max=2M", "state-max=1M", NULL, NULL, "state-max here is 1048576");
}

/* There is room for the messages of both sides, and not for the receive memory of 4 MiB.  The secondary never says that it is taken. */
Test(refusal, memory_that_cannot_be_pinned)
{
	struct fabric_config fabric;
	struct pair_options opt;
	struct pair p;

	fabric_defaults(&fabric);
	fabric.max_pinned = 12u << 20;
	fabric_start(&fabric);
	hear_refusals();
	pair_options_init(&opt);
	opt.listen = "rdma:10.9.0.1:0";
	opt.primary = opt.secondary = "rdma-registration=whole";
	pair_open(&p, &opt);
	check_refused(&p, p.primary, "receive memory registered as a whole (8388608 octets, "); /* the ring */
	cr_expect_eq(state_of(p.secondary), FT_STATE_WAITING);
	cr_expect_eq(ft_session_wait(p.secondary, STATE(STANDBY_SYNCING), 200), -ETIMEDOUT,
		     "it was taken all the same");
	pair_close(&p);
	cr_expect(fabric_all_gone(), "%s", fabric_live_text());
	fabric_stop();
}

Test(refusal, a_second_primary)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_error err = { 0 };
	struct ft_session *s;
	struct sim *sim;
	struct pair p;

	hear_refusals();
	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	cr_assert_eq(sim_create(&sim, sim_get_config(p.primary_sim), false, &err), 0, "%s", err.msg);
	cfg.peer = p.address;
	cfg.identity = sim_identity(sim);
	cr_assert_eq(ft_session_open(&s, &cfg, sim_ops(), sim, &err), 0, "%s", err.msg);
	cr_assert_eq(sim_attach(sim, s, &err), 0);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	check_refused(&p, s, "another primary is connected");
	pair_wait_applied(&p, 3); /* the first one did not notice */
	cr_assert_eq(state_of(p.primary), FT_STATE_PROTECTED);
	cr_assert_eq(sim_attach(sim, NULL, &err), 0);
	ft_session_close(s);
	sim_destroy(sim);
	pair_close(&p);
}
