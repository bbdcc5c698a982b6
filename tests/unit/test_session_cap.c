/* SPDX-License-Identifier: MIT */
/* test_session_cap.c - a guest that writes at memory speed, more than staging memory holds, over a slow link: for each policy of "at-cap" the memory
 * stays below its cap, the pause below "pause-max", and the end is the one that ft-settings(7) says. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "clock.h"
#include "session_help.h"

#define CAP (UINT64_C(16) << 20)
#define PAUSE_MAX_MS 20000u

static void open_writer(struct pair *p, const char *policy, const char *fault, unsigned reconnect_ms)
{
	static char settings[3][128];
	static unsigned used;
	char *text = settings[used++ % 3];
	struct pair_options opt;

	snprintf(text, sizeof(settings[0]), "at-cap=%s,staging-bytes=16M,pause-max=%u,interval=20,reconnect=%u", policy,
		 PAUSE_MAX_MS, reconnect_ms);
	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 48u << 20;
	opt.sim.pattern = SIM_UNIFORM;
	opt.sim.rate = 0;
	opt.sim.output_every = 1000;
	opt.primary = text;
	opt.fault = fault;
	pair_open(p, &opt);
}

/* For a while, and until the guest has gone on: memory. */
static void watch(struct pair *p, unsigned ms)
{
	uint64_t end = deadline_in_ms(ms), steps = sim_steps(p->primary_sim), given_up = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (; now_ns() < end || sim_steps(p->primary_sim) == steps; sleep_ms(2)) {
		cr_assert(now_ns() < given_up, "the guest does not go on");
		ft_session_status(p->primary, &st);
		cr_assert_leq(st.memory_bytes, CAP);
		cr_assert_eq(st.memory_cap_bytes, CAP);
	}
}

static void wait_counted(struct pair *p, enum ft_counter which, uint64_t n)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	while (counted(p->primary, which) < n) {
		cr_assert(now_ns() < deadline, "%s stays below %" PRIu64, ft_counter_name(which), n);
		sleep_ms(2);
	}
}

/* Output is let out a moment after the state is told. */
static void wait_free(struct pair *p)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	while (sim_output_held(p->primary_sim)) {
		cr_assert(now_ns() < deadline, "output is held without protection");
		sleep_ms(1);
	}
}

static void slows_down(const char *policy)
{
	struct pair p;

	open_writer(&p, policy, "slow=60000000", 50);
	pair_wait_protected(&p);
	wait_counted(&p, FT_COUNTER_CAP_STALLS, 3);
	watch(&p, 500);
	cr_expect_eq(state_of(p.primary), FT_STATE_PROTECTED);
	cr_expect_eq(counted(p.primary, FT_COUNTER_LOSSES), 0);
	cr_expect_eq(counted(p.primary, FT_COUNTER_CAP_DROPS), 0);
	cr_expect_leq(sim_longest_pause_ns(p.primary_sim), PAUSE_MAX_MS * NS_PER_MS);
	pair_close(&p);
}

Test(cap, slow_stays_protected_and_pauses_longer, .timeout = 120)
{
	slows_down("slow");
}

/* The cut comes early, and where that is late the guest is slowed. */
Test(cap, cut_stays_protected_and_cuts_early, .timeout = 120)
{
	struct pair p;

	slows_down("cut");
	open_writer(&p, "cut", NULL, 50);
	pair_wait_protected(&p);
	wait_counted(&p, FT_COUNTER_CAP_CUTS, 1);
	pair_close(&p);
}

/* The guest is not slowed: it runs on unprotected, with its output free, and is protected again once it writes less. */
Test(cap, drop_ends_the_protection_and_takes_it_up_again, .timeout = 120)
{
	struct ft_status st;
	struct pair p;

	open_writer(&p, "drop", "slow=60000000", 50);
	wait_counted(&p, FT_COUNTER_CAP_DROPS, 2);
	watch(&p, 300);
	sim_stop(p.primary_sim);
	pair_wait_protected(&p);
	cr_expect_eq(counted(p.primary, FT_COUNTER_CAP_STALLS), 0);
	sim_continue(p.primary_sim);
	wait_counted(&p, FT_COUNTER_CAP_DROPS, counted(p.primary, FT_COUNTER_CAP_DROPS) + 1);
	cr_assert_eq(pair_wait(p.primary, STATE(ALONE)), FT_STATE_ALONE);
	ft_session_status(p.primary, &st);
	cr_expect(strstr(st.reason, "at-cap") || st.state != FT_STATE_ALONE, "%s", st.reason);
	cr_expect_not(st.is_protected);
	wait_free(&p);
	/* the secondary was told: it has nothing that could be promoted without force */
	cr_expect_neq(pair_wait(p.secondary, STATE(WAITING) | STATE(STANDBY_SYNCING) | STATE(STANDBY_SUSPECT)),
		      FT_STATE_STANDBY_SUSPECT);
	cr_expect_leq(sim_longest_pause_ns(p.primary_sim), PAUSE_MAX_MS * NS_PER_MS);
	pair_close(&p);
}

/* Full syncs come ever more rarely: waits of 200, 400, 800 and 1600 ms, and the time of a full sync each. */
Test(cap, drops_come_with_growing_waits, .timeout = 120)
{
	struct ft_error err = { 0 };
	uint64_t at[5];
	struct pair p;

	open_writer(&p, "drop", "slow=60000000", 200);
	for (unsigned i = 0; i < 5; i++) {
		wait_counted(&p, FT_COUNTER_CAP_DROPS, i + 1);
		at[i] = now_ns();
	}
	cr_expect_geq(at[4] - at[3], 1600 * NS_PER_MS, "first %" PRIu64 ", fourth %" PRIu64 " ns", at[1] - at[0],
		      at[4] - at[3]);
	cr_expect_eq(ft_session_set(p.primary, "at-cap", "slow", &err), 0, "%s", err.msg); /* live */
	pair_wait_protected(&p);
	pair_close(&p);
}
