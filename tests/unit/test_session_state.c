/* SPDX-License-Identifier: MIT */
/* test_session_state.c - sessions with state files: who may run after what, generations, the old primary that comes back; and what is written when.
 * Pairs (support/pair.h) with a file on each side. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clock.h"
#include "faultpoint.h"
#include "session_help.h"
#include "statefile.h"

static char dir[64], away[72], file[2][96];

static void make_folder(void)
{
	snprintf(dir, sizeof(dir), "/tmp/ft-session-state-XXXXXX");
	cr_assert(mkdtemp(dir));
	snprintf(away, sizeof(away), "%s.away", dir);
	for (unsigned i = 0; i < 2; i++)
		snprintf(file[i], sizeof(file[i]), "%s/%u.state", dir, i);
}

static void remove_folder(void)
{
	unlink(file[0]);
	unlink(file[1]);
	rmdir(dir);
}

TestSuite(written, .init = make_folder, .fini = remove_folder);

static struct statefile says(const char *path)
{
	struct ft_error err = { 0 };
	struct statefile f;

	cr_assert_eq(statefile_read(path, &f, &err), 0, "%s", err.msg);
	return f;
}

static void expect_says(const char *path, enum statefile_word word, uint64_t generation)
{
	struct statefile f = says(path);

	cr_assert(f.word == word && f.generation == generation, "%s: %s of generation %" PRIu64 ", not %s of %" PRIu64,
		  path, statefile_word_name(f.word), f.generation, statefile_word_name(word), generation);
}

static void put(const char *path, enum statefile_word word, uint64_t generation)
{
	struct statefile f = { .word = word, .role = FT_ROLE_PRIMARY, .generation = generation, .name = "vm" };
	struct ft_error err = { 0 };

	cr_assert_eq(statefile_write(path, &f, &err), 0, "%s", err.msg);
}

static void open_files(struct pair *p, const char *primary, const char *secondary, bool proxied)
{
	struct pair_options opt;

	small_options(&opt);
	opt.primary = "on-loss=hold";
	opt.primary_state = primary;
	opt.secondary_state = secondary;
	opt.use_proxy = proxied;
	opt.use_loopback = !proxied;
	pair_open(p, &opt);
}

static uint64_t generation_of(struct ft_session *s)
{
	struct ft_status st;

	ft_session_status(s, &st);
	return st.generation;
}

/* A session that is not started yet, with a small memory. */
static struct ft_session *open_one(enum ft_role role, const char *path, const char *where, const char *settings)
{
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;

	pair_settings(&cfg, settings);
	cfg.state_file = path;
	if (where)
		cfg.peer = where;
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_add_region(s, "ram", ram(64), 64 * PAGE, &err), 0, "%s", err.msg);
	return s;
}

/* It is not started: @code, and @part is the reason. */
static void refused(enum ft_role role, const char *path, const char *where, const char *settings, int code,
		    const char *part)
{
	struct ft_session *s = open_one(role, path, where, settings);
	struct ft_error err = { 0 };

	fails(ft_session_start(s, &err), &err, code, part);
	cr_assert_eq(state_of(s), FT_STATE_IDLE);
	ft_session_close(s);
}

static void starts(enum ft_role role, const char *path, const char *where, const char *settings)
{
	struct ft_session *s = open_one(role, path, where, settings);
	struct ft_error err = { 0 };

	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	ft_session_close(s);
}

/* ---- one after the other ---- */

/* The promoted side still listens.  Whenever the old primary had crashed, it does not start; and not either when the other side is gone. */
static void old_primary_returns(struct pair *p, const char *path, uint64_t generation)
{
	struct ft_session *s;

	expect_says(path, SAYS_FENCED, generation);
	refused(FT_ROLE_PRIMARY, path, p->address, NULL, -EOWNERDEAD, "says 'fenced'");
	put(path, SAYS_PROTECTED, generation);
	refused(FT_ROLE_PRIMARY, path, p->address, NULL, -EOWNERDEAD, "was promoted and runs the machine");
	expect_says(path, SAYS_FENCED, generation);
	put(path, SAYS_STOPPED, generation);
	refused(FT_ROLE_PRIMARY, path, p->address, NULL, -EOWNERDEAD, "was promoted and runs the machine");
	put(path, SAYS_RUNNING, generation); /* that it was protected could not be written */
	refused(FT_ROLE_PRIMARY, path, p->address, NULL, -EOWNERDEAD, "was promoted and runs the machine");
	put(path, SAYS_PROTECTED, generation - 1); /* attached to: it finds out when it is greeted */
	s = open_one(FT_ROLE_PRIMARY, path, p->address, NULL);
	cr_assert_eq(ft_session_claim(s, FT_CLAIM_RUNNING, NULL), 0);
	cr_assert_eq(ft_session_start(s, NULL), 0);
	pair_wait(s, STATE(FENCED));
	ft_session_close(s);
	expect_says(path, SAYS_FENCED, generation);
	refused(FT_ROLE_PRIMARY, path, "127.0.0.1:1", NULL, -EOWNERDEAD, "the other side took it over");
}

Test(written, ten_failovers_back_and_forth, .timeout = 120)
{
	uint64_t generation = 0;
	struct pair p;

	for (unsigned round = 0; round < 10; round++) {
		const char *runs = file[round % 2], *other = file[1 - round % 2];

		open_files(&p, runs, other, false);
		pair_wait_protected(&p);
		cr_assert_gt(generation_of(p.primary), generation, "round %u: it has not risen", round);
		generation = generation_of(p.primary);
		cr_assert_eq(generation_of(p.secondary), generation);
		expect_says(runs, SAYS_PROTECTED, generation);
		expect_says(other, SAYS_STANDBY, generation);
		cr_assert_eq(memcmp(says(runs).session, says(other).session, 16), 0);
		failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
		expect_says(other, SAYS_RUNNING, generation + 1);
		pair_wait(p.primary, STATE(FENCED));
		pair_check_stopped(&p);
		old_primary_returns(&p, runs, generation);
		generation++;
		pair_close(&p);
	}
	cr_assert_eq(generation, 20);
}

Test(written, a_stop_in_order_and_the_next_start)
{
	struct ft_status st;
	struct statefile f;
	struct pair p;

	open_files(&p, file[0], file[1], false);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	ft_session_stop(p.primary);
	f = says(file[0]);
	ft_session_status(p.primary, &st);
	cr_assert_eq(f.word, SAYS_STOPPED);
	cr_assert(f.epoch == st.epoch_acked && f.epoch >= 5 && statefile_epoch_exact(f.word),
		  "epoch %" PRIu64 ", acknowledged %" PRIu64, f.epoch, st.epoch_acked);
	cr_assert_str_eq(st.state_file_says, "stopped");
	pair_wait(p.secondary, STATE(WAITING));
	starts(FT_ROLE_PRIMARY, file[0], p.address, NULL);
	expect_says(file[0], SAYS_STOPPED, 2);
	refused(FT_ROLE_PRIMARY, file[1], "127.0.0.1:1", NULL, -EOWNERDEAD, "says 'standby', generation 1");
	pair_close(&p);
}

/* The secondary may be promoted, and the next start must ask. */
Test(written, a_stop_of_which_the_secondary_does_not_hear_is_no_end)
{
	struct pair p;

	open_files(&p, file[0], file[1], true);
	pair_wait_protected(&p);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_wait(p.primary, STATE(SUSPECT));
	ft_session_stop(p.primary);
	expect_says(file[0], SAYS_PROTECTED, 1);
	pair_close(&p);
}

/* ---- a crash: the other side has something to go on from ---- */

Test(written, a_primary_that_crashed_does_not_begin_anew_over_the_checkpoint)
{
	char address[128];
	struct pair p;

	open_files(&p, file[0], file[1], true);
	pair_wait_protected(&p);
	cr_assert_eq(ft_session_address(p.secondary, address, sizeof(address)), 0);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	refused(FT_ROLE_PRIMARY, file[0], address, NULL, -EBUSY, "to go on from: run the machine there");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY_SUSPECT, "the question has changed something");
	expect_says(file[0], SAYS_PROTECTED, 1);
	sim_stop(p.primary_sim);
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	refused(FT_ROLE_PRIMARY, file[0], address, NULL, -EOWNERDEAD,
		"was promoted and runs the machine (generation 2)");
	expect_says(file[0], SAYS_FENCED, 1);
	pair_close(&p);
}

Test(written, a_primary_that_another_one_has_replaced_is_busy)
{
	struct pair p;

	put(file[0], SAYS_PROTECTED, 1);
	open_files(&p, NULL, NULL, false);
	pair_wait_protected(&p);
	refused(FT_ROLE_PRIMARY, file[0], p.address, "suspect=50", -EBUSY, "another primary is connected");
	expect_says(file[0], SAYS_PROTECTED, 1);
	pair_close(&p);
}

Test(written, a_secondary_that_cannot_be_asked)
{
	struct ft_error err = { 0 };
	struct ft_session *s;

	put(file[0], SAYS_PROTECTED, 4);
	refused(FT_ROLE_PRIMARY, file[0], NULL, "on-loss=hold,suspect=50", -EHOSTUNREACH, "on-loss is hold");
	expect_says(file[0], SAYS_PROTECTED, 4);
	starts(FT_ROLE_PRIMARY, file[0], NULL, "on-loss=continue,suspect=50"); /* the guest goes first */
	expect_says(file[0], SAYS_STOPPED, 5);
	starts(FT_ROLE_PRIMARY, file[0], NULL, "on-loss=hold,suspect=50"); /* it was stopped in order */
	put(file[0], SAYS_PROTECTED, 8);
	s = open_one(FT_ROLE_PRIMARY, file[0], NULL, "on-loss=hold");
	cr_assert_eq(ft_session_claim(s, FT_CLAIM_RUNNING, &err), 0, "%s", err.msg); /* attached to: it runs */
	expect_says(file[0], SAYS_RUNNING, 9);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	cr_assert_eq(generation_of(s), 9);
	ft_session_close(s);
	s = open_one(FT_ROLE_SECONDARY, NULL, NULL, NULL);
	fails(ft_session_claim(s, 0, &err), &err, -EINVAL, "before it is promoted");
	ft_session_close(s);
}

static void *force(void *pair)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };

	return (void *)(intptr_t)ft_session_failover(((struct pair *)pair)->secondary, FT_FAILOVER_FORCE, &res, &err);
}

/* Who asks in the middle of one learns what came of it. */
Test(written, a_question_waits_for_a_promotion)
{
	char path[96];
	struct pair p;
	pthread_t t;

	snprintf(path, sizeof(path), "%s/old", dir);
	put(path, SAYS_PROTECTED, 1);
	open_files(&p, NULL, NULL, false);
	pair_wait_protected(&p);
	sim_delay_op(p.secondary_sim, SIM_OP_LOAD_STATE, 700);
	cr_assert_eq(pthread_create(&t, NULL, force, &p), 0);
	pair_wait(p.secondary, STATE(PROMOTING));
	refused(FT_ROLE_PRIMARY, path, p.address, "suspect=0", -EOWNERDEAD,
		"was promoted and runs the machine (generation 2)");
	pthread_join(t, NULL);
	unlink(path);
	pair_close(&p);
}

/* ---- generations ---- */

Test(written, an_older_generation_is_refused_and_fenced)
{
	struct ft_status st;
	struct pair p;

	put(file[1], SAYS_STANDBY, 5);
	open_files(&p, file[0], file[1], false);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	ft_session_status(p.primary, &st);
	cr_assert(strstr(st.reason, "knows generation 5 of the machine, the primary's is 1"), "%s", st.reason);
	cr_assert_eq(state_of(p.secondary), FT_STATE_WAITING);
	expect_says(file[0], SAYS_FENCED, 1);
	expect_says(file[1], SAYS_STANDBY, 5);
	pair_close(&p);
}

Test(written, the_same_generation_is_taken)
{
	struct pair p;

	put(file[0], SAYS_RUNNING, 4);
	put(file[1], SAYS_STANDBY, 5);
	open_files(&p, file[0], file[1], false);
	pair_wait_protected(&p);
	pair_close(&p);
}

/* ---- becoming a secondary ---- */

Test(written, a_secondary_gives_up_what_ran_here_only_when_told)
{
	static const enum statefile_word here[] = { SAYS_RUNNING, SAYS_PROTECTED, SAYS_STOPPED, SAYS_PROMOTING };

	for (unsigned i = 0; i < 4; i++) {
		put(file[1], here[i], 3);
		refused(FT_ROLE_SECONDARY, file[1], NULL, NULL, -EPERM, "gives up its memory and disks");
		expect_says(file[1], here[i], 3);
		starts(FT_ROLE_SECONDARY, file[1], NULL, "join=on");
		expect_says(file[1], SAYS_JOINED, 3);
		starts(FT_ROLE_SECONDARY, file[1], NULL, NULL);
		refused(FT_ROLE_PRIMARY, file[1], NULL, NULL, -EOWNERDEAD, "says 'joined', generation 3");
	}
	put(file[1], SAYS_FENCED, 3);
	starts(FT_ROLE_SECONDARY, file[1], NULL, NULL);
	put(file[1], SAYS_REFUSED, 3);
	starts(FT_ROLE_SECONDARY, file[1], NULL, NULL);
	refused(FT_ROLE_PRIMARY, file[1], NULL, NULL, -EOWNERDEAD, "says 'refused'");
	put(file[1], SAYS_PROMOTING, 3); /* it may have run here, and nowhere else */
	starts(FT_ROLE_PRIMARY, file[1], NULL, NULL);
	expect_says(file[1], SAYS_STOPPED, 4);
}

/* ---- files that are not what they should be ---- */

Test(written, a_file_that_is_not_to_be_believed)
{
	FILE *f = fopen(file[0], "w");
	struct statefile other = { .word = SAYS_RUNNING, .role = FT_ROLE_PRIMARY, .generation = 1, .name = "web2" };

	cr_assert(f && fputs("ft-state=1\n", f) > 0 && fclose(f) == 0);
	refused(FT_ROLE_PRIMARY, file[0], NULL, NULL, -EBADMSG, "damaged");
	refused(FT_ROLE_SECONDARY, file[0], NULL, "join=on", -EBADMSG, "damaged");
	cr_assert_eq(statefile_write(file[0], &other, NULL), 0);
	refused(FT_ROLE_PRIMARY, file[0], NULL, NULL, -EBADMSG, "of the machine 'web2', this one is 'vm'");
	refused(FT_ROLE_SECONDARY, file[0], NULL, "join=on", -EBADMSG, "of the machine 'web2'");
}

Test(written, where_nothing_can_be_written_no_guest_starts)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/none/state", dir);
	refused(FT_ROLE_PRIMARY, path, NULL, NULL, -ENOENT, "its folder cannot be opened");
	starts(FT_ROLE_SECONDARY, path, NULL, NULL); /* it has nothing to write yet */
}

/* ---- a write that fails while it runs ---- */

static void lose_folder(void)
{
	cr_assert_eq(rename(dir, away), 0);
}

static void find_folder(void)
{
	cr_assert_eq(rename(away, dir), 0);
}

static void expect_error(struct ft_session *s, const char *part)
{
	struct ft_status st;

	ft_session_status(s, &st);
	if (part)
		cr_assert(strstr(st.state_file_error, part), "'%s'", st.state_file_error);
	else
		cr_assert_str_eq(st.state_file_error, "");
}

Test(written, protection_goes_on_where_it_cannot_be_written)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.primary_state = file[0];
	opt.secondary_state = file[1];
	opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_start_primary(&p, p.address);
	expect_error(p.primary, NULL);
	lose_folder();
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	expect_error(p.primary, "its folder cannot be opened");
	expect_error(p.secondary, "its folder cannot be opened");
	find_folder();
	expect_says(file[0], SAYS_RUNNING, 1);
	cr_assert_eq(says(file[1]).word, SAYS_NOTHING);
	pair_close(&p);
	expect_says(file[0], SAYS_STOPPED, 1);
}

static void lose_primary(struct pair *p)
{
	open_files(p, file[0], file[1], true);
	pair_wait_protected(p);
	proxy_set_mode(p->proxy, PROXY_REFUSE);
	pair_wait(p->secondary, STATE(STANDBY_SUSPECT));
	sim_stop(p->primary_sim);
	lose_folder();
}

Test(written, a_promotion_that_cannot_be_written_is_put_off)
{
	struct pair p;

	lose_primary(&p);
	failover(&p, 0, FT_FAILOVER_FAILED, -ENOENT, "not promoted, as that cannot be written down");
	cr_assert_eq(state_of(p.secondary), FT_STATE_STANDBY_SUSPECT);
	cr_assert_eq(sim_op_calls(p.secondary_sim, SIM_OP_LOAD_STATE), 0);
	expect_error(p.secondary, "its folder cannot be opened");
	failover(&p, 0, FT_FAILOVER_FAILED, -ENOENT, "--force does it all the same");
	find_folder();
	expect_says(file[1], SAYS_STANDBY, 1);
	failover(&p, 0, FT_FAILOVER_DONE, 0, NULL);
	expect_says(file[1], SAYS_RUNNING, 2);
	expect_error(p.secondary, NULL);
	pair_close(&p);
}

#ifdef FT_FAULT_POINTS
/* The new file had its name, and the folder could not be made stable: the next occasion sets it right. */
Test(written, a_promotion_that_was_put_off_when_it_was_half_written)
{
	struct pair p;

	open_files(&p, file[0], file[1], true);
	pair_wait_protected(&p);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	faultpoint_arm(2, false, "statefile/fsync");
	failover(&p, 0, FT_FAILOVER_FAILED, -EIO, "not promoted");
	faultpoint_disarm();
	expect_says(file[1], SAYS_PROMOTING, 2);
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait_protected(&p);
	expect_says(file[1], SAYS_STANDBY, 1);
	expect_error(p.secondary, NULL);
	pair_close(&p);
}
#endif

Test(written, a_promotion_that_cannot_be_written_may_be_forced)
{
	struct pair p;

	lose_primary(&p);
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	expect_error(p.secondary, "its folder cannot be opened");
	find_folder();
	pair_close(&p);
}

Test(written, a_promotion_before_it_is_done_and_when_it_fails)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct pair p;
	pthread_t t;
	void *r;

	open_files(&p, file[0], file[1], true);
	pair_wait_protected(&p);
	sim_delay_op(p.secondary_sim, SIM_OP_LOAD_STATE, 1000);
	sim_fail_op(p.secondary_sim, SIM_OP_ACTIVATE, 1, 1);
	cr_assert_eq(pthread_create(&t, NULL, force, &p), 0);
	while (sim_op_calls(p.secondary_sim, SIM_OP_LOAD_STATE) == 0) {
		cr_assert_lt(now_ns(), deadline);
		sleep_ms(1);
	}
	expect_says(file[1], SAYS_PROMOTING, 2);
	pthread_join(t, &r);
	cr_assert_eq((intptr_t)r, -EIO);
	expect_says(file[1], SAYS_REFUSED, 1); /* the primary goes on, and has generation 1 */
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
	expect_says(file[1], SAYS_RUNNING, 2);
	pair_close(&p);
}
