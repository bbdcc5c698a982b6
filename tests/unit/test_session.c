/* SPDX-License-Identifier: MIT */
/* test_session.c - the edges of the public API: wrong order, wrong arguments, every state in which a failover is asked for, what is
 * refused and with which words on both sides.  Two sessions over tcp with a sim each (support/pair.h). */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "clock.h"
#include "fabric_fake.h"
#include "pair.h"
#include "proxy.h"

#define PAGE ((uint64_t)FT_PAGE_SIZE)
#define SOON_MS 4000u /* what needs no waiting at all comes within; ten times what a busy machine takes */

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

static enum ft_state state_of(struct ft_session *s)
{
	struct ft_status st;

	ft_session_status(s, &st);
	return st.state;
}

/* fails - @call gives @code, and @err a sentence with @part. */
static void fails(int r, const struct ft_error *err, int code, const char *part)
{
	cr_assert_eq(r, code, "%d instead of %d: %s", r, code, err->msg);
	cr_assert_eq(err->code, code, "the error says %d", err->code);
	cr_assert(strstr(err->msg, part), "'%s' is not in '%s'", part, err->msg);
}

/* ---- sessions that are never connected ---- */

static int nothing(void *user, struct ft_error *err)
{
	(void)user, (void)err;
	return 0;
}

static int no_pages(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	(void)user, (void)dirty, (void)err;
	return 0;
}

static int no_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	(void)user, (void)sink, (void)err;
	return 0;
}

static uint64_t nothing_left(void *user)
{
	(void)user;
	return 0;
}

static int no_write(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err)
{
	(void)user, (void)epoch, (void)buf, (void)len, (void)err;
	return 0;
}

static int any_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	(void)user, (void)buf, (void)len, (void)err;
	return 0;
}

static struct ft_vmm_ops plain_ops(void)
{
	return (struct ft_vmm_ops){ .struct_size = sizeof(struct ft_vmm_ops),
				    .track_start = nothing,
				    .collect_dirty = no_pages,
				    .pause = nothing,
				    .save_state = no_state,
				    .resume = nothing,
				    .load_state = any_state,
				    .activate = nothing };
}

static struct ft_config plain_config(enum ft_role role)
{
	struct ft_config cfg;

	ft_config_init(&cfg, role);
	pair_settings(&cfg, role == FT_ROLE_PRIMARY ? "staging-bytes=16M,state-max=1M,reconnect=20" : "state-max=1M");
	cfg.peer = "127.0.0.1:1";
	cfg.listen = "127.0.0.1:0";
	return cfg;
}

static struct ft_session *plain_open(enum ft_role role)
{
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;

	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	return s;
}

static void *ram(uint64_t pages)
{
	void *mem = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(mem, MAP_FAILED);
	return mem;
}

static void not_opened(const struct ft_config *cfg, const struct ft_vmm_ops *ops, const char *part)
{
	struct ft_session *s = (struct ft_session *)1;
	struct ft_error err = { 0 };

	fails(ft_session_open(&s, cfg, ops, NULL, &err), &err, -EINVAL, part);
	cr_assert_null(s);
	cr_assert_eq(ft_session_open(&s, cfg, ops, NULL, NULL), -EINVAL);
}

Test(session, open_refuses_what_cannot_work)
{
	struct ft_config good = plain_config(FT_ROLE_PRIMARY), cfg = good, standby = plain_config(FT_ROLE_SECONDARY);
	struct ft_vmm_ops all = plain_ops(), ops = all;
	char name[FT_NAME_MAX + 1];
	struct ft_session *s;
	struct ft_error err = { 0 };

	not_opened(NULL, &all, "configuration");
	not_opened(&good, NULL, "ops");
	cfg.struct_size = 0;
	not_opened(&cfg, &all, "struct_size");
	cfg = good;
	cfg.role = 0;
	not_opened(&cfg, &all, "role");
	cfg = good;
	cfg.peer = NULL;
	not_opened(&cfg, &all, "peer");
	standby.listen = "";
	not_opened(&standby, &all, "listen");
	cfg = good;
	memset(name, 'n', FT_NAME_MAX);
	name[FT_NAME_MAX] = '\0';
	cfg.name = name;
	not_opened(&cfg, &all, "name");
	cfg = good;
	cfg.lanes = 9;
	fails(ft_session_open(&s, &cfg, &all, NULL, &err), &err, -ERANGE, "lanes");
	cr_assert_null(s);
	ops.struct_size = 8;
	not_opened(&good, &ops, "struct_size");
	ops = all;
	ops.pause = NULL;
	not_opened(&good, &ops, "a primary needs");
	ops = all;
	ops.load_state = NULL;
	standby.listen = "127.0.0.1:0";
	not_opened(&standby, &ops, "a secondary needs");
	ops = all;
	ops.side_write = no_write;
	not_opened(&standby, &ops, "a secondary's side stream needs");
	ops = all;
	ops.side_left = nothing_left;
	not_opened(&good, &ops, "a primary's side stream needs");
	ops = all;
	ops.struct_size = offsetof(struct ft_vmm_ops, guest_hold); /* an older embedder */
	cr_assert_eq(ft_session_open(&s, &good, &ops, NULL, &err), 0, "%s", err.msg);
	ft_session_close(s);
	cfg = good; /* and an older struct of settings: what it lacks has its default */
	cfg.struct_size = offsetof(struct ft_config, rdma_chunk);
	cfg.credits = cfg.rdma_retries = 0;
	cr_assert_eq(ft_session_open(&s, &cfg, &all, NULL, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_get(s, "credits", name, sizeof(name)), 0);
	cr_assert_str_eq(name, "8");
	ft_session_close(s);
	ft_session_close(NULL);
}

Test(session, calls_before_the_start)
{
	struct ft_session *a = plain_open(FT_ROLE_PRIMARY), *b = plain_open(FT_ROLE_SECONDARY);
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	uint64_t epoch = 7;
	char text[64];

	cr_assert_eq(state_of(a), FT_STATE_IDLE);
	cr_assert_eq(ft_session_address(b, text, sizeof(text)), -ENOTCONN);
	cr_assert_eq(ft_session_wait(a, STATE(IDLE), 0), FT_STATE_IDLE);
	cr_assert_eq(ft_session_wait(a, STATE(PROTECTED), 20), -ETIMEDOUT);
	fails(ft_session_checkpoint(a, 100, &epoch, &err), &err, -ENOTCONN, "not protected");
	cr_assert_eq(epoch, 0);
	fails(ft_session_checkpoint(b, 100, &epoch, &err), &err, -EINVAL, "primary");
	fails(ft_session_pause_guest(a, 100, &err), &err, -ENOTCONN, "not protected");
	fails(ft_session_pause_guest(b, 100, &err), &err, -EINVAL, "secondary");
	cr_assert_eq(ft_session_resume_guest(a, 100, &err), 0);
	ft_session_cut(a);
	ft_session_cut(b);
	fails(ft_session_failover(a, 0, &res, &err), &err, -EINVAL, "primary");
	cr_assert_eq(res.outcome, FT_FAILOVER_NOT_SECONDARY);
	fails(ft_session_failover(b, FT_FAILOVER_FORCE, &res, &err), &err, -ENODATA, "no complete image");
	cr_assert_eq(res.outcome, FT_FAILOVER_NO_IMAGE);
	cr_assert_eq(ft_session_failover(b, 0, &res, NULL), -ENODATA);
	fails(ft_session_start(a, &err), &err, -EINVAL, "no memory");
	fails(ft_session_start(a, &err), &err, -EALREADY, "before");
	ft_session_stop(b);
	ft_session_stop(b);
	fails(ft_session_start(b, &err), &err, -EALREADY, "before");
	ft_session_close(a);
	ft_session_close(b);
}

Test(session, regions_are_checked)
{
	struct ft_session *s = plain_open(FT_ROLE_SECONDARY);
	uint8_t *mem = ram(FT_REGIONS_MAX + 8);
	struct ft_error err = { 0 };
	char name[FT_NAME_MAX + 1];
	struct ft_status st;

	memset(name, 'r', FT_NAME_MAX);
	name[FT_NAME_MAX] = '\0';
	cr_assert_eq(ft_session_add_region(s, "ram", mem, 4 * PAGE, &err), 0);
	fails(ft_session_add_region(s, "ram", mem + 4 * PAGE, PAGE, &err), &err, -EEXIST, "ram");
	fails(ft_session_add_region(s, "x", mem + 3 * PAGE, PAGE, &err), &err, -EINVAL, "overlaps");
	fails(ft_session_add_region(s, "x", mem + 4 * PAGE + 8, PAGE, &err), &err, -EINVAL, "address");
	fails(ft_session_add_region(s, "x", mem + 4 * PAGE, PAGE - 1, &err), &err, -EINVAL, "octets");
	fails(ft_session_add_region(s, "x", NULL, PAGE, &err), &err, -EINVAL, "address");
	fails(ft_session_add_region(s, "", mem + 4 * PAGE, PAGE, &err), &err, -EINVAL, "name");
	fails(ft_session_add_region(s, name, mem + 4 * PAGE, PAGE, &err), &err, -EINVAL, "name");
	cr_assert_eq(ft_session_add_region(s, "ram", mem + 4 * PAGE, PAGE, NULL), -EEXIST,
		     "the code needs no sentence");
	fails(ft_session_remove_region(s, 1, &err), &err, -EINVAL, "no region 1");
	for (unsigned i = 1; i < FT_REGIONS_MAX; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		cr_assert_eq(ft_session_add_region(s, name, mem + (3 + i) * PAGE, PAGE, &err), (int)i, "%s", err.msg);
	}
	fails(ft_session_add_region(s, "x", mem + (FT_REGIONS_MAX + 4) * PAGE, PAGE, &err), &err, -ENOSPC, "1024");
	cr_assert_eq(ft_session_remove_region(s, 5, &err), 0);
	fails(ft_session_remove_region(s, 5, &err), &err, -EINVAL, "no region 5");
	ft_session_status(s, &st);
	cr_assert_eq(st.regions, FT_REGIONS_MAX - 1);
	cr_assert_eq(st.guest_bytes, (FT_REGIONS_MAX + 2) * PAGE);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	fails(ft_session_remove_region(s, 0, &err), &err, -EBUSY, "secondary");
	fails(ft_session_add_region(s, "y", mem + (FT_REGIONS_MAX + 4) * PAGE, PAGE, &err), &err, -EBUSY, "secondary");
	ft_session_close(s);
	munmap(mem, (FT_REGIONS_MAX + 8) * PAGE);
}

Test(session, live_settings_change_and_others_do_not)
{
	struct ft_session *both[2] = { plain_open(FT_ROLE_PRIMARY), plain_open(FT_ROLE_SECONDARY) };
	unsigned nr_live = 0, nr_fixed = 0;
	size_t n;
	const struct ft_option *o = ft_options(&n);
	struct ft_error err = { 0 };
	char text[256], again[256];

	for (size_t i = 0; i < 2 * n; i++) {
		const struct ft_option *opt = &o[i / 2];
		struct ft_session *s = both[i % 2];
		bool is_live = opt->flags & FT_OPT_LIVE && opt->flags & (i % 2 ? FT_OPT_SECONDARY : FT_OPT_PRIMARY);
		const char *choice = opt->choices ? strchr(opt->choices, '|') + 1 : NULL;
		char value[32];

		if (opt->type == FT_OPT_BOOL)
			snprintf(value, sizeof(value), "%s", strcmp(opt->value, "on") ? "on" : "off");
		else
			snprintf(value, sizeof(value), "%" PRIu64, opt->min + 300);
		cr_assert_eq(ft_session_get(s, opt->name, text, sizeof(text)), 0);
		if (is_live) {
			cr_assert_eq(ft_session_set(s, opt->name, choice ? choice : value, &err), 0, "%s: %s",
				     opt->name, err.msg);
			cr_assert_eq(ft_session_get(s, opt->name, again, sizeof(again)), 0);
			cr_assert_str_eq(again, choice ? choice : value);
			cr_assert_neq(ft_session_set(s, opt->name, "nonsense", &err), 0);
			cr_assert(strstr(err.msg, opt->name), "%s: %s", opt->name, err.msg);
			nr_live++;
		} else {
			fails(ft_session_set(s, opt->name, value, &err), &err, -EPERM, opt->name);
			cr_assert_eq(ft_session_get(s, opt->name, again, sizeof(again)), 0);
			cr_assert_str_eq(again, text);
			nr_fixed++;
		}
	}
	cr_assert(nr_live >= 9 && nr_fixed > nr_live, "%u live, %u not", nr_live, nr_fixed);
	fails(ft_session_set(both[0], "colour", "red", &err), &err, -ENOENT, "colour");
	cr_assert_eq(ft_session_get(both[0], "colour", text, sizeof(text)), -ENOENT);
	fails(ft_session_set(both[0], "interval", "0", &err), &err, -ERANGE, "interval");
	ft_session_close(both[0]);
	ft_session_close(both[1]);
}

static unsigned nr_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	cr_assert(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#ifdef FT_ASAN
#define SLACK_KIB (512u << 10) /* it keeps what is freed for a while, and finds leaks by itself */
#else
#define SLACK_KIB 4096u
#endif

static unsigned long data_kib(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[128];

	cr_assert(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmData: %lu", &kib) == 1)
			break;
	fclose(f);
	return kib;
}

Test(session, two_hundred_lives_leave_nothing, .timeout = 300)
{
	uint8_t *mem = ram(2);
	unsigned long kib[2] = { 0 };
	unsigned fds = 0;

	for (unsigned i = 0; i < 200; i++) {
		struct ft_session *a = plain_open(FT_ROLE_PRIMARY), *b = plain_open(FT_ROLE_SECONDARY);
		struct ft_error err = { 0 };

		cr_assert_eq(ft_session_add_region(a, "ram", mem, PAGE, &err), 0);
		cr_assert_eq(ft_session_add_region(b, "ram", mem + PAGE, PAGE, &err), 0);
		cr_assert_eq(ft_session_start(a, &err), 0, "%s", err.msg);
		cr_assert_eq(ft_session_start(b, &err), 0, "%s", err.msg);
		if (i % 2)
			ft_session_stop(a);
		ft_session_close(a);
		ft_session_close(b);
		if (i == 40) { /* what libc keeps for itself, it has by now */
			fds = nr_fds();
			kib[0] = data_kib();
		}
	}
	cr_assert_eq(nr_fds(), fds);
	kib[1] = data_kib();
	cr_assert_lt(kib[1], kib[0] + SLACK_KIB, "%lu KiB of data after 40 lives, %lu after 200", kib[0], kib[1]);
	munmap(mem, 2 * PAGE);
}

/* ---- pairs ---- */

static void open_pair(struct pair *p, const char *primary, const char *secondary)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 300 * PAGE;
	opt.sim.prefill_pages = 60;
	opt.sim.rate = 10000;
	opt.sim.output_every = 10;
	opt.primary = primary;
	opt.secondary = secondary;
	pair_open(p, &opt);
}

static void failover(struct pair *p, unsigned flags, enum ft_failover_outcome outcome, int code, const char *part)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	int r = ft_session_failover(p->secondary, flags, &res, &err);

	cr_assert_eq(res.outcome, outcome, "outcome %d: %s", (int)res.outcome, err.msg);
	if (code)
		fails(r, &err, code, part);
	else
		cr_assert_eq(r, 0, "%s", err.msg);
	cr_assert(outcome != FT_FAILOVER_DONE || (res.epoch > 0 && res.total_ns > 0));
	if (outcome == FT_FAILOVER_DONE)
		pair_check_promoted(p, &res);
}

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

/* ---- output that waits ---- */

static uint64_t counted(struct ft_session *s, enum ft_counter which)
{
	struct ft_stats *st = calloc(1, sizeof(*st));
	uint64_t n;

	cr_assert(st);
	ft_session_stats(s, st);
	n = st->counter[which];
	free(st);
	return n;
}

static void wait_acked(struct ft_session *s, uint64_t epoch)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	do {
		sleep_ms(1);
		ft_session_status(s, &st);
		cr_assert(now_ns() < deadline, "epoch %" PRIu64 " is not acknowledged", epoch);
	} while (st.epoch_acked < epoch);
}

/* With an interval of an hour, only output ends an epoch. */
Test(output, ends_the_epoch, .timeout = 120)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	struct pair p;

	open_pair(&p, "interval=3600000", NULL);
	pair_wait_protected(&p);
	ft_session_status(p.primary, &st);
	for (uint64_t n = 1; n <= 10; n++) {
		ft_session_output(p.primary);
		wait_acked(p.primary, st.epoch_acked + n);
	}
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 10);
	cr_assert_eq(ft_session_set(p.primary, "output-cut", "off", &err), 0);
	ft_session_output(p.primary);
	sleep_ms(200);
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 10);
	ft_session_output(p.secondary); /* harmless */
	pair_close(&p);
}

/* However much output there is, the guest has its least run, and output is let wait for more of it; a slower machine cuts less. */
Test(output, lets_the_guest_run, .timeout = 120)
{
	static const char *const settings[] = { "interval=3600000,output-gap=100",
						"interval=3600000,output-gap=0,output-wait=100" };

	for (unsigned i = 0; i < 2; i++) {
		uint64_t end, cuts;
		struct pair p;

		open_pair(&p, settings[i], NULL);
		pair_wait_protected(&p);
		for (end = deadline_in_ms(1000); now_ns() < end; sleep_ms(1))
			ft_session_output(p.primary);
		cuts = counted(p.primary, FT_COUNTER_OUTPUT_CUTS);
		cr_assert(cuts >= 1 && cuts <= 11, "%s: %" PRIu64 " in a second", settings[i], cuts);
		pair_close(&p);
	}
}

/* ---- who is refused, and what both sides say ---- */

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[4096]; /* refusals in the log of this process: the secondary's */

static void hear(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user, (void)level;
	pthread_mutex_lock(&said_lock);
	if (strcmp(module, "secondary") == 0 && strstr(msg, "refused"))
		snprintf(said, sizeof(said), "%s", msg);
	pthread_mutex_unlock(&said_lock);
}

static void check_refused(struct pair *p, struct ft_session *primary, const char *part)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_stats *stats = calloc(1, sizeof(*stats));
	struct ft_status st;

	cr_assert(stats);
	do {
		sleep_ms(5);
		ft_session_status(primary, &st);
		cr_assert(now_ns() < deadline, "the primary says '%s', expected '%s'", st.reason, part);
	} while (!strstr(st.reason, part));
	cr_assert_eq(st.state, FT_STATE_CONNECTING);
	pthread_mutex_lock(&said_lock);
	cr_assert(strstr(said, part), "the secondary says '%s', expected '%s'", said, part);
	pthread_mutex_unlock(&said_lock);
	ft_session_stats(p->secondary, stats);
	cr_assert_gt(stats->counter[FT_COUNTER_REFUSALS], 0);
	free(stats);
}

static void refused_pair(const char *primary, const char *secondary, const struct sim_config *other,
			 const char *identity, const char *part)
{
	struct pair_options opt;
	struct ft_config cfg;
	struct ft_error err = { 0 };
	struct sim *sim;
	struct pair p;

	ft_log_set(hear, NULL, FT_LOG_WARN);
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
	ft_log_set(hear, NULL, FT_LOG_WARN);
	pair_options_init(&opt);
	opt.listen = "rdma:10.9.0.1:0";
	opt.primary = opt.secondary = "rdma-registration=whole";
	pair_open(&p, &opt);
	check_refused(&p, p.primary, "receive memory registered as a whole (4194304 octets, ");
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

	ft_log_set(hear, NULL, FT_LOG_WARN);
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

/* ---- a running primary ---- */

Test(running, checkpoint_and_wait_keep_their_time)
{
	struct ft_error err = { 0 };
	struct pair_options opt;
	uint64_t epoch, begun;
	struct ft_status st;
	struct pair p;

	pair_options_init(&opt);
	opt.use_proxy = true;
	opt.primary = "interval=3600000,heartbeat-misses=1000";
	opt.secondary = "heartbeat-misses=1000";
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	cr_assert_eq(ft_session_checkpoint(p.primary, WAIT_MS, &epoch, &err), 0, "%s", err.msg);
	ft_session_status(p.primary, &st);
	cr_assert(st.epoch_acked >= epoch && epoch > 1, "epoch %" PRIu64 ", acknowledged %" PRIu64, epoch,
		  st.epoch_acked);
	proxy_set_mode(p.proxy, PROXY_STALL);
	begun = now_ns();
	fails(ft_session_checkpoint(p.primary, 100, &epoch, &err), &err, -ETIMEDOUT, "not acknowledged within 100 ms");
	cr_assert_eq(ft_session_wait(p.primary, STATE(FENCED), 100), -ETIMEDOUT);
	cr_assert(now_ns() - begun >= 200 * NS_PER_MS && now_ns() - begun < SOON_MS * NS_PER_MS);
	proxy_set_mode(p.proxy, PROXY_PASS);
	cr_assert_eq(ft_session_checkpoint(p.primary, WAIT_MS, &epoch, &err), 0, "%s", err.msg);
	pair_close(&p);
}

Test(running, guest_is_held_and_given_back)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	uint64_t steps, epoch;
	struct pair p;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(ft_session_pause_guest(p.primary, WAIT_MS, &err), 0, "%s", err.msg);
		cr_assert_eq(ft_session_pause_guest(p.primary, WAIT_MS, &err), 0, "%s", err.msg);
		steps = sim_steps(p.primary_sim);
		cr_assert_eq(ft_session_checkpoint(p.primary, WAIT_MS, &epoch, &err), 0, "while it is held: %s",
			     err.msg);
		cr_assert_eq(sim_output_held(p.primary_sim), 0, "all that it sent is committed");
		ft_session_status(p.primary, &st);
		cr_assert(st.guest_paused && st.is_protected && sim_is_paused(p.primary_sim));
		cr_assert_eq(sim_steps(p.primary_sim), steps);
		cr_assert_eq(ft_session_resume_guest(p.primary, WAIT_MS, &err), 0, "%s", err.msg);
		cr_assert_eq(sim_wait_steps(p.primary_sim, 1, SOON_MS), 0);
	}
	cr_assert_eq(ft_session_pause_guest(p.primary, WAIT_MS, &err), 0);
	ft_session_stop(p.primary);
	cr_assert_eq(state_of(p.primary), FT_STATE_IDLE);
	cr_assert_eq(sim_wait_steps(p.primary_sim, 1, SOON_MS), 0, "nobody could give it back");
	fails(ft_session_pause_guest(p.primary, 100, &err), &err, -ENOTCONN, "not protected");
	pair_close(&p);
}

/* The connection is lost, and made anew, while the operator holds the guest. */
Test(running, guest_stays_held_over_a_loss)
{
	struct ft_error err = { 0 };
	struct pair_options opt;
	uint64_t steps, losses;
	struct pair p;

	pair_options_init(&opt);
	opt.use_proxy = true;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	cr_assert_eq(ft_session_pause_guest(p.primary, WAIT_MS, &err), 0, "%s", err.msg);
	steps = sim_steps(p.primary_sim);
	losses = atomic_load(&p.losses);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	pair_wait(p.primary, STATE(SUSPECT) | STATE(ALONE));
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait(p.primary, STATE(PROTECTED));
	cr_assert_gt(atomic_load(&p.losses), losses);
	cr_assert(sim_is_paused(p.primary_sim));
	cr_assert_eq(sim_steps(p.primary_sim), steps);
	cr_assert_eq(ft_session_resume_guest(p.primary, WAIT_MS, &err), 0, "%s", err.msg);
	cr_assert_eq(sim_wait_steps(p.primary_sim, 1, SOON_MS), 0);
	pair_close(&p);
}

static void stop_in_time(struct pair *p)
{
	uint64_t begun = now_ns();

	ft_session_stop(p->primary);
	cr_assert_lt(now_ns() - begun, 4000 * NS_PER_MS); /* pause-max and 2 s */
	ft_session_stop(p->primary);
	cr_assert_eq(state_of(p->primary), FT_STATE_IDLE);
	cr_assert_eq(sim_wait_steps(p->primary_sim, 1, SOON_MS), 0, "the guest runs");
	cr_assert_eq(sim_output_held(p->primary_sim), 0);
}

Test(stop, while_connecting)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	pair_start_primary(&p, "127.0.0.1:1");
	stop_in_time(&p);
	pair_close(&p);
}

static void transport_is(struct ft_session *s, const char *name)
{
	struct ft_status st;

	ft_session_status(s, &st);
	cr_assert_str_eq(st.transport, name);
	cr_assert_str_eq(st.rdma_device, "");
}

Test(status, tells_the_transport_and_names_the_secondary_once)
{
	struct pair_options opt;
	struct ft_status st = { 0 };
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;
	const char *at;
	struct pair p;

	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	transport_is(p.secondary, "tcp");
	pair_start_primary(&p, "127.0.0.1:1");
	for (uint64_t deadline = deadline_in_ms(WAIT_MS); !*st.reason && now_ns() < deadline; sleep_ms(5))
		ft_session_status(p.primary, &st);
	at = strstr(st.reason, "127.0.0.1:1");
	cr_assert(at, "%s", st.reason);
	cr_assert_null(strstr(at + 1, "127.0.0.1:1"), "%s", st.reason);
	cr_assert(strstr(st.reason, "secondary"), "%s", st.reason);
	transport_is(p.primary, "tcp");
	pair_close(&p);
	cfg.peer = "fault(dup=3)/rdma:192.0.2.1:7000";
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	transport_is(s, "rdma");
	ft_session_close(s);
	opt.use_loopback = true;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	transport_is(p.primary, "loopback");
	transport_is(p.secondary, "loopback");
	pair_close(&p);
}

/* A peer that takes connections, says @octets, and nothing more. */
static void stop_in_hello(uint64_t octets)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.use_proxy = true;
	opt.primary = "connect-timeout=60000";
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_cut_after(p.proxy, PROXY_FROM_TARGET, octets, PROXY_STALL);
	pair_start_primary(&p, p.address);
	proxy_wait_cut(p.proxy);
	sleep_ms(50);
	cr_assert_eq(state_of(p.primary), FT_STATE_CONNECTING);
	stop_in_time(&p);
	pair_close(&p);
}

Test(stop, while_the_transport_connects)
{
	stop_in_hello(10);
}

Test(stop, while_the_answer_to_hello_is_awaited)
{
	stop_in_hello(2 * 40 + 20); /* the preambles of two lanes, and a part of hello-ack */
}

Test(stop, while_syncing)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_rate(p.proxy, 100000);
	pair_start_primary(&p, p.address);
	pair_wait(p.primary, STATE(SYNCING));
	stop_in_time(&p);
	pair_close(&p);
}

/* ---- events ---- */

struct heard {
	enum ft_state state[64];
	unsigned nr_states, nr_sync, nr_epochs;
	uint64_t epoch;
	const char *wrong;
};

static void note(void *user, const struct ft_event *ev)
{
	struct heard *h = user;

	pthread_mutex_lock(&said_lock);
	switch (ev->type) {
	case FT_EVENT_STATE:
		if (h->nr_states && h->state[h->nr_states - 1] != ev->old_state)
			h->wrong = "a state was left that was not told";
		if (!ev->reason)
			h->wrong = "no reason";
		h->state[h->nr_states++ % 64] = ev->state;
		break;
	case FT_EVENT_SYNC:
		if (ev->sync_pages_done > ev->sync_pages_total)
			h->wrong = "more pages done than there are";
		h->nr_sync++;
		break;
	case FT_EVENT_EPOCH:
		if (ev->epoch != h->epoch + 1)
			h->wrong = "an epoch was passed over";
		h->epoch = ev->epoch;
		h->nr_epochs++;
		break;
	default:
		h->wrong = "unknown type";
	}
	pthread_mutex_unlock(&said_lock);
}

Test(events, come_in_order)
{
	static const enum ft_state expected[] = { FT_STATE_CONNECTING, FT_STATE_SYNCING, FT_STATE_PROTECTED,
						  FT_STATE_IDLE };
	struct heard heard = { 0 };
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	sim_destroy(p.primary_sim);
	opt.sim.on_event = note;
	opt.sim.on_event_user = &heard;
	cr_assert_eq(sim_create(&p.primary_sim, &opt.sim, false, NULL), 0);
	pair_start_primary(&p, p.address);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	ft_session_stop(p.primary);
	cr_assert_null(heard.wrong, "%s", heard.wrong);
	cr_assert_eq(heard.nr_states, sizeof(expected) / sizeof(expected[0]));
	cr_assert_arr_eq(heard.state, expected, sizeof(expected));
	cr_assert(heard.nr_sync >= 1 && heard.nr_epochs >= 5, "%u of sync, %u of epochs", heard.nr_sync,
		  heard.nr_epochs);
	pair_close(&p);
}

/* ---- regions that come and go ---- */

static uint8_t *extra; /* a second region of the primary; always dirty */
static _Atomic int extra_index = -1;

static int report_extra(struct ft_dirty *dirty, int r)
{
	int at = extra_index;

	if (!r && at >= 0)
		ft_dirty_add(dirty, (uint32_t)at, 0,
			     16); /* -ERANGE from a connection that began before the region was there */
	return r;
}

static int present_with_extra(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	return report_extra(dirty, sim_ops()->collect_present(user, dirty, err));
}

static int dirty_with_extra(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	return report_extra(dirty, sim_ops()->collect_dirty(user, dirty, err));
}

/* A secondary for the machine as it is now, where the last one was. */
static void renew_secondary(struct pair *p, const char *address, uint8_t *second)
{
	struct pair_options opt = p->opt;
	struct ft_config cfg = plain_config(FT_ROLE_SECONDARY);
	struct ft_error err = { 0 };

	cr_assert_eq(sim_attach(p->secondary_sim, NULL, &err), 0);
	ft_session_close(p->secondary);
	sim_destroy(p->secondary_sim);
	cr_assert_eq(sim_create(&p->secondary_sim, &opt.sim, true, &err), 0);
	cfg.listen = address;
	cfg.identity = sim_identity(p->secondary_sim);
	cr_assert_eq(ft_session_open(&p->secondary, &cfg, sim_ops(), p->secondary_sim, &err), 0, "%s", err.msg);
	cr_assert_eq(sim_attach(p->secondary_sim, p->secondary, &err), 0);
	if (second)
		cr_assert_geq(ft_session_add_region(p->secondary, "extra", second, 16 * PAGE, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_start(p->secondary, &err), 0, "%s", err.msg);
}

Test(regions, come_and_go_under_way, .timeout = 120)
{
	struct ft_vmm_ops ops = *sim_ops();
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_error err = { 0 };
	struct pair_options opt;
	uint8_t *second = ram(16);
	uint64_t epoch;
	char address[sizeof(((struct pair *)0)->address)];
	struct pair p;

	ops.collect_present = present_with_extra;
	ops.collect_dirty = dirty_with_extra;
	ft_log_set(hear, NULL, FT_LOG_WARN);
	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	snprintf(address, sizeof(address), "%s", p.address);
	cfg.peer = address;
	cfg.identity = sim_identity(p.primary_sim);
	cfg.interval_ms = 2;
	cr_assert_eq(sim_start(p.primary_sim, &err), 0);
	cr_assert_eq(ft_session_open(&p.primary, &cfg, &ops, p.primary_sim, &err), 0, "%s", err.msg);
	cr_assert_eq(sim_attach(p.primary_sim, p.primary, &err), 0);
	cr_assert_eq(ft_session_start(p.primary, &err), 0, "%s", err.msg);
	pair_wait_protected(&p);

	extra = ram(16);
	memset(extra, 0xe1, 16 * PAGE);
	extra_index = ft_session_add_region(p.primary, "extra", extra, 16 * PAGE, &err);
	cr_assert_geq(extra_index, 1, "%s", err.msg);
	pair_check_unprotected(&p,
			       "region extra is missing here"); /* said by the secondary, which has no such region */
	renew_secondary(&p, address, second);
	pair_wait(p.primary, STATE(PROTECTED));
	memset(extra, 0xe2, 16 * PAGE);
	for (unsigned i = 0; i < 2;
	     i++) /* twice: we are not the guest, and do not stop for an epoch that is being cut just now */
		cr_assert_eq(ft_session_checkpoint(p.primary, WAIT_MS, &epoch, &err), 0, "%s", err.msg);
	ft_session_stop(p.primary);
	pair_wait(p.secondary, STATE(WAITING));
	ft_session_stop(p.secondary);
	cr_assert_eq(memcmp(second, extra, 16 * PAGE), 0, "the standby has not what the new region holds");
	pair_close(&p);
	munmap(extra, 16 * PAGE);
	munmap(second, 16 * PAGE);
}

/* When remove_region is back, the memory may go; and a standby for the rest fits. */
Test(regions, memory_of_a_removed_one_is_not_touched, .timeout = 120)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	char address[sizeof(((struct pair *)0)->address)];
	struct pair p;
	int index;

	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	snprintf(address, sizeof(address), "%s", p.address);
	pair_start_primary(&p, address);
	pair_wait_protected(&p);
	for (unsigned i = 0; i < 10; i++) {
		uint8_t *mem = ram(16);

		index = ft_session_add_region(p.primary, "extra", mem, 16 * PAGE, &err);
		cr_assert_geq(index, 1, "%s", err.msg);
		if (i % 2)
			sleep_ms(3 * i); /* now and then in the middle of a hello */
		cr_assert_eq(ft_session_remove_region(p.primary, (uint32_t)index, &err), 0, "%s", err.msg);
		munmap(mem, 16 * PAGE);
	}
	pair_wait(p.primary, STATE(PROTECTED)); /* the same layout as at first: no new standby is needed */
	renew_secondary(&p, address, NULL);
	pair_wait(p.primary, STATE(PROTECTED));
	pair_wait(p.secondary, STATE(STANDBY));
	cr_assert_eq(ft_session_failover(p.secondary, FT_FAILOVER_FORCE, &res, &err), 0, "%s", err.msg);
	pair_check_promoted(&p, &res);
	pair_close(&p);
}

static bool reason_has(struct ft_session *s, const char *part)
{
	struct ft_status st;

	for (unsigned i = 0; i < 500; i++) {
		ft_session_status(s, &st);
		if (part ? strstr(st.reason, part) != NULL : !st.reason[0])
			return true;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return false;
}

Test(primary, a_vmm_that_does_not_come_back_from_a_pause_is_told_of)
{
	struct pair p;

	open_pair(&p, "pause-max=100,sync-pause=10", NULL);
	pair_wait_protected(&p);
	sim_delay_op(p.primary_sim, SIM_OP_PAUSE, 1500);
	cr_assert(reason_has(p.primary, "pause-max"));
	sim_delay_op(p.primary_sim, SIM_OP_PAUSE, 0);
	cr_assert(reason_has(p.primary, NULL));
	cr_assert_eq(state_of(p.primary), FT_STATE_PROTECTED);
	pair_close(&p);
}

/* ---- side stream: the sims check each octet as it comes, and at load_state that just those of the committed epochs are there ---- */

static void side_options(struct pair_options *opt)
{
	pair_options_init(opt);
	opt->sim.rate = 5000;
	opt->sim.side_max_bytes = 4u << 20;
	opt->compare = true;
}

static uint64_t side_bytes(struct ft_session *s)
{
	struct ft_stats *stats = malloc(sizeof(*stats));
	uint64_t n;

	cr_assert(stats);
	ft_session_stats(s, stats);
	n = stats->counter[FT_COUNTER_SIDE_BYTES];
	free(stats);
	return n;
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
	cr_assert_geq(side_bytes(p.secondary), opt.sim.side_max_bytes);
	cr_assert_geq(side_bytes(p.primary), side_bytes(p.secondary));
	failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
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

Test(side, a_machine_without_one_is_taken_by_a_standby_with_one, .timeout = 120)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	pair_open_sims(&p, &opt);
	sim_destroy(p.secondary_sim);
	opt.sim.side_max_bytes = 1000;
	cr_assert_eq(sim_create(&p.secondary_sim, &opt.sim, true, NULL), 0);
	pair_start_secondary(&p);
	pair_start_primary(&p, p.address);
	pair_wait_protected(&p);
	cr_assert_eq(sim_op_calls(p.secondary_sim, SIM_OP_SIDE_BEGIN), 1);
	cr_assert_gt(sim_op_calls(p.secondary_sim, SIM_OP_SIDE_COMMIT), 0);
	cr_assert_eq(sim_op_calls(p.secondary_sim, SIM_OP_SIDE_WRITE), 0);
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
