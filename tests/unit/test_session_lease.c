/* SPDX-License-Identifier: MIT */
/* test_session_lease.c - sessions with a witness: what is let out, who is promoted, who is stopped.  The witness and the clock that leases go by are made
 * up (support/fake_witness.h); the clock stands still unless a test moves it, so that nothing is late or over by accident.
 * Wrapped: witness_open boot_now_ns */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include "clock.h"
#include "fake_witness.h"
#include "session_help.h"

FAKE_WITNESS_WRAPS

#define LEASE_MS 600u
#define DRIFT_MS 50u
#define SETTINGS "lease=600,lease-drift=50,"
#define LATE_MS (LEASE_MS - DRIFT_MS)
#define TAKEN_MS (LEASE_MS + DRIFT_MS)

enum { SECONDARY = 0, PRIMARY = 1 }; /* in the order in which pair.c opens them */

static void open_leased(struct pair *p, const char *primary, const char *secondary)
{
	struct pair_options opt;

	fake_witness_reset();
	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 300 * PAGE;
	opt.sim.prefill_pages = 60;
	opt.sim.rate = 10000;
	opt.sim.output_every = 10;
	opt.use_proxy = true;
	opt.witness = "file:made-up";
	opt.primary = primary ? primary : SETTINGS "suspect=300";
	opt.secondary = secondary ? secondary : SETTINGS "heartbeat=50";
	pair_open(p, &opt);
	pair_wait_protected(p);
}

static uint64_t delivered(struct pair *p)
{
	struct sim_client_stats st;

	sim_client_stats(sim_get_client(p->primary_sim), &st);
	return st.delivered;
}

static void wait_delivered(struct pair *p, uint64_t more)
{
	uint64_t target = delivered(p) + more, deadline = deadline_in_ms(WAIT_MS);

	while (delivered(p) < target) {
		cr_assert(now_ns() < deadline, "nothing is let out");
		sleep_ms(1);
	}
}

static void wait_acked(struct pair *p, uint64_t more)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS), target;
	struct ft_status st;

	ft_session_status(p->primary, &st);
	for (target = st.epoch_acked + more; st.epoch_acked < target; ft_session_status(p->primary, &st)) {
		cr_assert(now_ns() < deadline, "nothing is acknowledged: %s, %s", ft_state_name(st.state), st.reason);
		sleep_ms(1);
	}
}

static void wait_asked(unsigned side, enum witness_what what, unsigned n)
{
	uint64_t target = fake_witness_asked(side, what) + n, deadline = deadline_in_ms(WAIT_MS);

	while (fake_witness_asked(side, what) < target) {
		cr_assert(now_ns() < deadline, "side %u does not ask", side);
		sleep_ms(1);
	}
}

static void check_lease(struct ft_session *s, const char *lease)
{
	struct ft_status st;

	ft_session_status(s, &st);
	cr_assert_str_eq(st.lease, lease, "%s, %s", st.lease, st.witness_trouble);
}

static void cut(struct pair *p)
{
	proxy_set_mode(p->proxy, PROXY_REFUSE);
	pair_wait(p->secondary, STATE(STANDBY_SUSPECT));
	pair_wait(p->primary, STATE(SUSPECT) | STATE(ALONE));
}

/* The primary is not heard of any more, and its lease runs out. */
static void silence(void)
{
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	wait_asked(SECONDARY, WITNESS_LOOK, 2); /* the last renewal was seen */
	fake_clock_advance(TAKEN_MS);
}

/* Nothing that the guest sent left since there were @count messages; it was given time to. */
static void check_held(struct pair *p, uint64_t count)
{
	sleep_ms(100);
	cr_assert_eq(delivered(p), count, "%" PRIu64 " messages were let out", delivered(p) - count);
}

Test(lease, output_waits_for_a_late_renewal, .timeout = 120)
{
	struct ft_status st;
	struct pair p;
	uint64_t before;

	open_leased(&p, NULL, NULL);
	wait_delivered(&p, 10);
	check_lease(p.primary, "held");
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	fake_clock_advance(LATE_MS);
	check_lease(p.primary, "late");
	wait_acked(&p, 2); /* one ack may have been on its way past the look */
	before = delivered(&p);
	wait_acked(&p, 20);
	check_held(&p, before);
	pair_check_runs(&p, SOON_MS);
	ft_session_status(p.primary, &st);
	cr_assert_eq(st.state, FT_STATE_PROTECTED);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	wait_delivered(&p, 10);
	check_lease(p.primary, "held");
	pair_close(&p);
	cr_assert_str_eq(fake_witness_record().holder, "");
}

/* As a process that was stopped: the clock has gone on when it looks next, and another has the lease. */
Test(lease, of_a_stopped_primary_lets_nothing_out, .timeout = 120)
{
	struct ft_status st;
	struct pair p;
	uint64_t before;

	open_leased(&p, NULL, NULL);
	wait_delivered(&p, 10);
	silence();
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	before = delivered(&p);
	ft_session_status(p.secondary, &st);
	cr_assert_eq(st.generation, 2);
	cr_assert_str_eq(st.lease_holder, fake_witness_name(SECONDARY));
	check_held(&p, before);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	check_held(&p, before);
	ft_session_status(p.primary, &st);
	cr_assert(strstr(st.reason, "holds the lease, of generation 2"), "%s", st.reason);
	cr_assert_str_eq(st.lease, "lost");
	pair_close(&p);
}

/* The same with the connection alive: an ack is no leave to let out. */
Test(lease, that_is_anothers_stops_a_connected_primary, .timeout = 120)
{
	struct witness_record other = { .holder = "somebody", .generation = 9, .counter = 1000 };
	struct pair p;
	uint64_t before;

	open_leased(&p, NULL, NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	fake_clock_advance(LATE_MS);
	wait_acked(&p, 2);
	before = delivered(&p);
	fake_witness_set(&other);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	check_held(&p, before);
	pair_close(&p);
	cr_assert_str_eq(fake_witness_record().holder, "somebody");
}

Test(lease, of_a_primary_that_lives_is_not_taken, .timeout = 120)
{
	struct pair p;

	open_leased(&p, SETTINGS "on-loss=hold", NULL);
	cut(&p);
	failover(&p, 0, FT_FAILOVER_NOT_GRANTED, -EBUSY, "holds the lease (generation 1)");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_NOT_GRANTED, -EBUSY, "holds the lease (generation 1)");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY_SUSPECT);
	silence();
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	failover(&p, 0, FT_FAILOVER_ALREADY, 0, NULL);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(FENCED));
	pair_close(&p);
}

/* A refusal leaves all as it is, the connection too. */
Test(lease, refused_failover_of_a_connected_secondary_changes_nothing, .timeout = 120)
{
	struct pair p;

	open_leased(&p, NULL, NULL);
	failover(&p, 0, FT_FAILOVER_PEER_ALIVE, -EBUSY, "alive");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_NOT_GRANTED, -EBUSY, "holds the lease");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY);
	cr_assert_eq(state_of(p.primary), FT_STATE_PROTECTED);
	wait_acked(&p, 5);
	wait_delivered(&p, 5);
	cr_assert_eq(atomic_load(&p.losses), 0);
	pair_close(&p);
}

Test(lease, without_a_witness_to_ask_needs_force, .timeout = 120)
{
	struct pair p;

	open_leased(&p, SETTINGS "on-loss=hold", NULL);
	fake_witness_mode(SECONDARY, FAKE_SILENT);
	cut(&p);
	failover(&p, 0, FT_FAILOVER_NOT_GRANTED, -ETIMEDOUT, "does not answer");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY_SUSPECT);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait(p.primary, STATE(FENCED)); /* told by the other side */
	pair_close(&p);
}

/* Before output is free the witness knows it; then nobody goes on from what the standby has, but by force. */
Test(lease, going_on_alone_is_written_down, .timeout = 120)
{
	struct ft_status st;
	struct pair p;
	uint64_t before;

	open_leased(&p, SETTINGS "suspect=20", NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	cut(&p);
	before = delivered(&p);
	wait_asked(PRIMARY, WITNESS_RAISE, 2);
	cr_assert_eq(state_of(p.primary), FT_STATE_SUSPECT);
	check_held(&p, before);
	pair_check_unprotected(&p, "does not answer");
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(ALONE));
	wait_delivered(&p, 5);
	cr_assert_eq(fake_witness_record().generation, 2);
	ft_session_status(p.primary, &st);
	cr_assert_eq(st.generation, 2);
	silence();
	failover(&p, 0, FT_FAILOVER_NOT_GRANTED, -ESTALE, "generation 2 and not 1");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY_SUSPECT);
	/* a new image is of the new generation */
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait_protected(&p);
	cr_assert_eq(ft_session_set(p.primary, "on-loss", "hold", NULL), 0);
	cut(&p);
	silence();
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	cr_assert_eq(fake_witness_record().generation, 3);
	pair_close(&p);
}

/* What going on alone frees waits for the lease, too. */
Test(lease, output_of_one_alone_waits_for_it, .timeout = 120)
{
	struct pair p;
	uint64_t before;

	open_leased(&p, SETTINGS "suspect=20", NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	cut(&p);
	before = delivered(&p);
	fake_witness_takes(PRIMARY, LATE_MS); /* whatever is granted is late already when it comes */
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(ALONE));
	check_held(&p, before);
	fake_witness_takes(PRIMARY, 0);
	wait_delivered(&p, 5);
	pair_close(&p);
}

Test(lease, that_is_over_stops_the_guest, .timeout = 120)
{
	struct ft_status st;
	struct pair p;
	uint64_t before;

	open_leased(&p, NULL, NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	fake_clock_advance(LATE_MS);
	wait_acked(&p, 2);
	before = delivered(&p);
	fake_clock_advance(LEASE_MS);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	ft_session_status(p.primary, &st);
	cr_assert(strstr(st.reason, "could not be renewed"), "%s", st.reason);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS); /* too late */
	check_held(&p, before);
	cr_assert_eq(state_of(p.primary), FT_STATE_FENCED);
	pair_close(&p);
}

Test(lease, that_is_over_does_not_stop_an_available_guest, .timeout = 120)
{
	struct witness_record other = { .holder = "somebody", .generation = 9, .counter = 1000 };
	struct pair p;
	uint64_t before;

	open_leased(&p, SETTINGS "witness-loss=available,suspect=20", NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	fake_clock_advance(LATE_MS + LEASE_MS);
	wait_asked(PRIMARY, WITNESS_RENEW, 2);
	check_lease(p.primary, "over");
	wait_delivered(&p, 10);
	cr_assert_eq(state_of(p.primary), FT_STATE_PROTECTED);
	cut(&p); /* alone it does not go on without the witness */
	before = delivered(&p);
	wait_asked(PRIMARY, WITNESS_RAISE, 2);
	cr_assert_eq(state_of(p.primary), FT_STATE_SUSPECT);
	check_held(&p, before);
	fake_witness_set(&other);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait(p.primary, STATE(FENCED));
	check_held(&p, before);
	pair_close(&p);
}

Test(lease, of_another_keeps_a_primary_from_starting, .timeout = 120)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;
	struct pair p;

	open_leased(&p, NULL, NULL);
	pair_settings(&cfg, SETTINGS "suspect=300");
	cfg.witness = "file:made-up";
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, &cfg, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_add_region(s, "ram", ram(10), 10 * PAGE, &err), 0);
	fails(ft_session_start(s, &err), &err, -EBUSY, "holds the lease");
	ft_session_close(s);
	cr_assert_str_eq(fake_witness_record().holder, fake_witness_name(PRIMARY));
	pair_close(&p);
}

/* The machine that was promoted is protected by another session of the same process: with the lease that it has. */
Test(lease, goes_over_to_the_session_that_protects_a_promoted_machine, .timeout = 120)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_error err = { 0 };
	struct ft_session *s;
	struct pair p;

	open_leased(&p, SETTINGS "on-loss=hold", NULL);
	cut(&p);
	silence();
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	pair_settings(&cfg, SETTINGS "suspect=300");
	cfg.witness = "file:made-up";
	cr_assert_eq(ft_session_open(&s, &cfg, sim_ops_of(p.secondary_sim), p.secondary_sim, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_add_region(s, "ram", ram(10), 10 * PAGE, &err), 0);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	cr_assert_eq(fake_witness_record().generation, 2);
	check_lease(s, "held");
	check_lease(p.secondary, "held");
	ft_session_close(s);
	pair_close(&p);
}

static _Atomic unsigned nr_suspect,
	nr_alone; /* times that a protection was dropped, and output stayed held, or went free */

static void hear_drops(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user, (void)level, (void)module;
	if (strstr(msg, "protected --peer-lost-held--> suspect: secondary lost: protection dropped"))
		atomic_fetch_add(&nr_suspect, 1);
	if (strstr(msg, "protected --dropped--> alone"))
		atomic_fetch_add(&nr_alone, 1);
}

/* The link carries a sixteenth of what the guest writes, until @count has risen. */
static void drop(struct pair *p, _Atomic unsigned *count)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	unsigned before = atomic_load(count);

	sim_continue(p->primary_sim);
	proxy_set_rate(p->proxy, 10000000);
	while (atomic_load(count) == before) {
		cr_assert(now_ns() < deadline, "nothing is dropped, or not so");
		sleep_ms(1);
	}
	proxy_set_rate(p->proxy, 0);
	sim_stop(p->primary_sim); /* else the full sync is dropped too, on a busy machine */
}

/* Dropped at the cap: what was told to the secondary may have been lost on the way.  The witness must know. */
Test(lease, drop_is_written_down_before_output_is_free, .timeout = 120)
{
	struct pair_options opt;
	struct pair p;

	fake_witness_reset();
	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 48u << 20;
	opt.sim.pattern = SIM_UNIFORM;
	opt.sim.rate = 40000;
	opt.witness = "file:made-up";
	opt.use_proxy = true;
	opt.primary = SETTINGS "at-cap=drop,staging-bytes=16M,pause-max=20000,interval=20,reconnect=200,on-loss=hold";
	opt.secondary = SETTINGS "heartbeat=50";
	pair_open(&p, &opt);
	sim_stop(p.primary_sim);
	ft_log_set(hear_drops, NULL, FT_LOG_INFO);
	pair_wait_protected(&p);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	drop(&p, &nr_suspect);
	cr_assert_eq(atomic_load(&nr_alone), 0);
	cr_assert_eq(fake_witness_record().generation, 1);
	fake_witness_mode(PRIMARY, FAKE_ANSWERS);
	pair_wait_protected(&p);
	drop(&p, &nr_alone);
	cr_assert_geq(fake_witness_record().generation, 2);
	pair_close(&p);
}

static void promotion_fails(enum sim_op op)
{
	struct pair p;

	open_leased(&p, SETTINGS "on-loss=hold", NULL);
	cut(&p);
	silence();
	sim_fail_op(p.secondary_sim, op, 1, 1);
	failover(&p, 0, FT_FAILOVER_FAILED, -EIO, "was made to fail");
	cr_assert_str_eq(fake_witness_record().holder, "", "the lease was not given back");
	check_lease(p.secondary, "none");
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	cr_assert_str_eq(fake_witness_record().holder, fake_witness_name(SECONDARY));
	pair_close(&p);
}

Test(lease, of_a_promotion_that_fails_is_given_back, .timeout = 120)
{
	promotion_fails(SIM_OP_LOAD_STATE);
	promotion_fails(SIM_OP_ACTIVATE);
}

Test(lease, stop_is_written_down_before_output_is_free, .timeout = 120)
{
	struct pair p;

	open_leased(&p, NULL, NULL);
	ft_session_stop(p.primary);
	cr_assert_eq(state_of(p.primary), FT_STATE_IDLE);
	cr_assert_eq(fake_witness_record().generation, 2);
	wait_delivered(&p, 5);
	check_lease(p.primary, "held"); /* the guest runs */
	pair_close(&p);
}

Test(lease, stop_without_a_witness_to_tell_stops_the_guest, .timeout = 120)
{
	struct pair p;
	uint64_t before;

	open_leased(&p, SETTINGS "on-loss=hold", NULL);
	cut(&p);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	before = delivered(&p);
	ft_session_stop(p.primary);
	cr_assert_eq(state_of(p.primary), FT_STATE_FENCED);
	pair_check_stopped(&p);
	check_held(&p, before);
	pair_close(&p);
}

Test(lease, stop_without_a_witness_to_tell_lets_an_available_guest_run, .timeout = 120)
{
	struct pair p;

	open_leased(&p, SETTINGS "witness-loss=available", NULL);
	fake_witness_mode(PRIMARY, FAKE_SILENT);
	ft_session_stop(p.primary);
	cr_assert_eq(state_of(p.primary), FT_STATE_IDLE);
	wait_delivered(&p, 5);
	pair_close(&p);
}
