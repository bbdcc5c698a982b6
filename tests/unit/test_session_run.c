/* SPDX-License-Identifier: MIT */
/* test_session_run.c - a running primary: what it is asked for, how it stops, what it tells, and regions that come and go. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "clock.h"
#include "faultpoint.h"
#include "session_help.h"
#include "tls_files.h"

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

/* Protected and promoted over TLS; tests/stress has the octets. */
Test(status, a_session_over_tls)
{
	struct pair_options opt;
	char dir[32], settings[160];
	struct pair p;

	tls_good_folder(tls_folder(dir, sizeof(dir)));
	for (int i = 0; i < 2; i++) {
		pair_options_init(&opt);
		opt.primary = opt.secondary =
			tls_settings(i ? TP_TLS_PSK : TP_TLS_X509, dir, settings, sizeof(settings));
		pair_open(&p, &opt);
		pair_wait_protected(&p);
		transport_is(p.primary, "tls");
		transport_is(p.secondary, "tls");
		failover(&p, FT_FAILOVER_FORCE, FT_FAILOVER_DONE, 0, NULL);
		pair_close(&p);
	}
	tls_folder_remove(dir);
}

static void start_refused(enum ft_role role, const char *settings, const char *uri, const char *part)
{
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;
	void *mem = ram(16);

	pair_settings(&cfg, settings);
	cfg.peer = cfg.listen = uri;
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_add_region(s, "ram", mem, 16 * PAGE, &err), 0, "%s", err.msg);
	cr_assert_lt(ft_session_start(s, &err), 0, "%s", part);
	cr_assert(strstr(err.msg, part), "%s", err.msg);
	ft_session_close(s);
	munmap(mem, 16 * PAGE);
}

/* Before the guest runs, not by attempts that all fail. */
Test(status, tls_that_cannot_be_is_refused_at_the_start)
{
	char dir[32], settings[160];

	tls_folder(dir, sizeof(dir));
	tls_settings(TP_TLS_X509, dir, settings, sizeof(settings));
	start_refused(FT_ROLE_PRIMARY, settings, "127.0.0.1:1", "/ca-cert.pem: No such file");
	start_refused(FT_ROLE_SECONDARY, settings, "127.0.0.1:0", "/ca-cert.pem: No such file");
	start_refused(FT_ROLE_PRIMARY, settings, "rdma:10.9.0.1:1", "with 'rdma:' nothing would be encrypted");
	start_refused(FT_ROLE_SECONDARY, settings, "rdma:10.9.0.1:0", "with 'rdma:' nothing would be encrypted");
	tls_folder_remove(dir);
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

static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;

struct heard {
	enum ft_state state[64];
	unsigned nr_states, nr_sync, nr_epochs;
	uint64_t epoch;
	const char *wrong;
};

static void note(void *user, const struct ft_event *ev)
{
	struct heard *h = user;

	pthread_mutex_lock(&heard_lock);
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
	pthread_mutex_unlock(&heard_lock);
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

static unsigned count_named(const char *name)
{
	char path[300], line[32];
	DIR *d = opendir("/proc/self/task");
	unsigned n = 0;

	cr_assert(d);
	for (struct dirent *e; (e = readdir(d));) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		n += f && fgets(line, sizeof(line), f) && strncmp(line, name, strlen(name)) == 0 &&
		     line[strlen(name)] == '\n';
		if (f)
			fclose(f);
	}
	closedir(d);
	return n;
}

/* A thread is in /proc a little longer than it can be joined. */
static void wait_named(const char *name, unsigned nr)
{
	for (uint64_t end = deadline_in_ms(SOON_MS); count_named(name) != nr && now_ns() < end;)
		sleep_ms(1);
	cr_assert_eq(count_named(name), nr, "%u threads %s", count_named(name), name);
}

/* From the start to the stop, as many as were asked for. */
Test(running, threads_that_copy)
{
	struct pair p;

	open_pair(&p, NULL, NULL);
	pair_wait_protected(&p);
	cr_assert_eq(count_named("ft-capture") + count_named("ft-apply-crew"), 0);
	pair_close(&p);
	open_pair(&p, "capture-threads=3", "apply-threads=2");
	wait_named("ft-capture", 2);
	wait_named("ft-apply-crew", 1);
	pair_wait_protected(&p);
	ft_session_stop(p.primary);
	wait_named("ft-capture", 0);
	ft_session_stop(p.secondary);
	wait_named("ft-apply-crew", 0);
	pair_close(&p);
}

#ifdef FT_FAULT_POINTS
static void fails_to_start(enum ft_role role, const char *setting, const char *part)
{
	struct ft_session *s;
	struct ft_error err = { 0 };
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();

	pair_settings(&cfg, setting);
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	cr_assert_geq(ft_session_add_region(s, "ram", ram(4), 4 * PAGE, &err), 0, "%s", err.msg);
	faultpoint_arm(2, false, "thread/start");
	fails(ft_session_start(s, &err), &err, -EAGAIN, part);
	faultpoint_disarm();
	ft_session_close(s);
}

Test(running, a_thread_that_copies_cannot_be_made)
{
	fails_to_start(FT_ROLE_PRIMARY, "capture-threads=4", "cannot start 3 threads (ft-capture)");
	fails_to_start(FT_ROLE_SECONDARY, "apply-threads=4", "cannot start 3 threads (ft-apply-crew)");
}
#endif
