/* SPDX-License-Identifier: MIT */
/* test_session_failover.c - every state in which a failover is asked for.  Two sessions over tcp with a sim each (support/pair.h). */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "session_help.h"

Test(failover, from_a_live_primary_by_force_only_and_it_is_fenced)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	uint64_t epoch;
	struct pair p;

	open_pair(&p, "on-loss=hold", NULL);
	pair_wait_protected(&p);
	failover(&p, 0, FT_FAILOVER_PEER_ALIVE, -EBUSY, "alive");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	failover(&p, 0, FT_FAILOVER_ALREADY, 0, NULL);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_ALREADY, 0, NULL);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	ft_session_status(p.primary, &st);
	cr_assert(strstr(st.reason, "promoted") && !st.is_protected && st.guest_paused, "%s", st.reason);
	fails(ft_session_checkpoint(p.primary, 100, &epoch, &err), &err, -ENOTCONN, "fenced");
	fails(ft_session_pause_guest(p.primary, 100, &err), &err, -ENOTCONN, "fenced");
	fails(ft_session_resume_guest(p.primary, 100, &err), &err, -EPERM, "the other side runs the machine");
	ft_session_status(p.secondary, &st);
	cr_assert_eq(st.generation, 2);
	ft_session_stop(p.primary); /* and stays what it is: nobody may think that it runs */
	cr_assert_eq(state_of(p.primary), FT_STATE_FENCED);
	cr_assert(sim_is_paused(p.primary_sim));
	cr_assert_eq(sim_check_promise(sim_get_client(p.primary_sim), p.secondary_sim, &err), 0, "%s", err.msg);
	pair_close(&p);
}

/* The standby says that it is being promoted, and takes longer over it than "suspect": the primary waits for what comes of it. */
Test(failover, that_takes_long_is_waited_for)
{
	struct ft_error err = { 0 };
	struct pair p;

	open_pair(&p, "suspect=20", NULL);
	pair_wait_protected(&p);
	sim_delay_op(p.secondary_sim, SIM_OP_LOAD_STATE, 700);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	cr_assert_eq(pair_wait(p.primary, STATE(FENCED) | STATE(ALONE)), FT_STATE_FENCED);
	pair_check_stopped(&p);
	cr_assert_eq(sim_check_promise(sim_get_client(p.primary_sim), p.secondary_sim, &err), 0, "%s", err.msg);
	pair_close(&p);
}

Test(failover, without_an_image)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	failover(&p, 0, FT_FAILOVER_NO_IMAGE, -ENODATA, "waiting");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_NO_IMAGE, -ENODATA, "waiting");
	proxy_set_rate(p.proxy, 100000); /* the full sync takes 8 s */
	pair_start_primary(&p, p.address);
	pair_wait(p.secondary, STATE(STANDBY_SYNCING));
	failover(&p, 0, FT_FAILOVER_NO_IMAGE, -ENODATA, "standby-syncing");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_NO_IMAGE, -ENODATA, "standby-syncing");
	pair_close(&p);
}

Test(failover, from_a_stale_image_by_force_only)
{
	struct pair p;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	ft_session_stop(p.primary);
	pair_wait(p.secondary, STATE(WAITING));
	failover(&p, 0, FT_FAILOVER_NO_IMAGE, -ENODATA, "old image");
	sim_stop(p.primary_sim);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	failover(&p, 0, FT_FAILOVER_ALREADY, 0, NULL);
	pair_close(&p);
}

Test(failover, of_a_stopped_secondary)
{
	struct pair p;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	ft_session_stop(p.secondary);
	cr_assert_eq(state_of(p.secondary), FT_STATE_IDLE);
	failover(&p, 0, FT_FAILOVER_NO_IMAGE, -ENODATA, "old image");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	pair_close(&p);
}

static void load_or_start_fails(enum sim_op op, const char *part)
{
	struct pair p;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	sim_fail_op(p.secondary_sim, op, 1, 1);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_FAILED, -EIO, part);
	cr_assert_eq(state_of(p.secondary), FT_STATE_REFUSED);
	failover(&p, 0, FT_FAILOVER_FAILED, -EIO, "a failover failed before");
	pair_wait(p.primary, STATE(ALONE)); /* the secondary refuses it, and does not run the machine */
	pair_check_unprotected(&p, "cannot be used any more");
	pair_check_runs(&p, SOON_MS);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL); /* it may be the only copy */
	pair_close(&p);
}

Test(failover, state_that_is_not_loaded)
{
	load_or_start_fails(SIM_OP_LOAD_STATE, "loading the device state");
}

Test(failover, guest_that_does_not_start)
{
	load_or_start_fails(SIM_OP_ACTIVATE, "starting the guest");
}

/* A full sync is not to be asked for by a primary that has nothing to send: the standby would give up its image for it. */
Test(failover, of_a_machine_that_ended_at_the_primary)
{
	struct ft_status st;
	struct pair p;

	open_pair(&p, "on-loss=hold", NULL);
	pair_wait_protected(&p);
	sim_fail_op(p.primary_sim, SIM_OP_READY, 1, UINT64_MAX);
	sim_fail_op(p.primary_sim, SIM_OP_PAUSE, 1, UINT64_MAX);
	pair_wait(p.primary, STATE(SUSPECT));
	pair_check_unprotected(&p, "ready was made to fail");
	sleep_ms(300);
	ft_session_status(p.secondary, &st);
	cr_assert_eq(st.state, FT_STATE_STANDBY_SUSPECT, "%s: %s", ft_state_name(st.state), st.reason);
	sim_stop(p.primary_sim);
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	pair_close(&p);
}

static void *force(void *pair)
{
	struct pair *p = pair;
	struct ft_failover_result res;
	struct ft_error err = { 0 };

	return (void *)(intptr_t)ft_session_failover(p->secondary, FT_FAILOVER_FORCE, &res, &err);
}

Test(failover, two_at_a_time)
{
	struct pair p;
	pthread_t t;
	void *r;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	sim_delay_op(p.secondary_sim, SIM_OP_LOAD_STATE, 1500);
	cr_assert_eq(pthread_create(&t, NULL, force, &p), 0);
	pair_wait(p.secondary, STATE(PROMOTING));
	failover(&p, 0, FT_FAILOVER_BUSY, -EBUSY, "under way");
	pthread_join(t, &r);
	cr_assert_null(r);
	failover(&p, 0, FT_FAILOVER_ALREADY, 0, NULL);
	pair_close(&p);
}
