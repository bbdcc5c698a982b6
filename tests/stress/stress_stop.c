/* SPDX-License-Identifier: MIT */
/* stress_stop.c - whatever the other side does, the primary's guest runs on and the status says what is wrong; and whatever
 * the state, a failover is done or refused for the right reason.  Each scenario is a function; all run unless names are given.
 *
 *   process of its own   stopped (SIGSTOP), killed (SIGKILL) and ended in order: secondary and primary
 *   link                 stalls at places spread over the stream; crawls
 *   peer                 absent; half-open (accepts and says nothing)
 *   VMM                  each op fails for a while; a device state that is too large; a standby that does not load it
 *   failover             during the full sync, in the middle of an apply, with a live primary, twice
 *
 * stress_stop [--listen URI] [--silence MS] [NAME]...     those with a process of its own: over another transport (rdma:ADDRESS:0);
 *                                                         what counts as silence there (400) */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "pair.h"
#include "proc.h"
#include "rng.h"

#define PAUSE_MAX_MS 1000u
#define PAUSE_BOUND_MS 4000u /* pause-max, and as much again for a busy machine */
#define ALONE_BOUND_MS 8000u /* and four times the silence; suspect is 300 ms */
#define PRIMARY_SILENT "suspect=300,pause-max=1000"

/* By the command line: where a secondary listens, and after how much silence a peer of another process is lost. */
static const char *listen_at;
static unsigned silence_ms = 400;

/* The settings for that, with @more behind them. */
static const char *silent(const char *more)
{
	static char text[2][160];
	static unsigned n;
	char *buf = text[n++ % 2];

	snprintf(buf, sizeof(text[0]), "heartbeat=%u,heartbeat-misses=8,connect-timeout=%u%s%s", silence_ms / 8,
		 silence_ms + 100, *more ? "," : "", more);
	return buf;
}

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

static void check_alone_in_time(struct pair *p, const char *reason)
{
	uint64_t begun = now_ns(), took;

	pair_wait(p->primary, STATE(ALONE));
	took = (now_ns() - begun) / NS_PER_MS;
	CHECK(took <= ALONE_BOUND_MS + 4 * silence_ms, "it took %" PRIu64 " ms until the guest went on alone", took);
	pair_check_unprotected(p, reason);
	pair_check_runs(p, PAUSE_BOUND_MS);
}

/* ---- a secondary in a process of its own ---- */

static void open_beside(struct pair *p, struct proc *child)
{
	struct pair_options opt;
	char uri[160];

	proc_start(child, "secondary", listen_at, silent(""));
	proc_expect(child, "ready", uri, sizeof(uri));
	pair_options_init(&opt);
	opt.primary = silent(PRIMARY_SILENT);
	pair_open_sims(p, &opt);
	pair_start_primary(p, uri);
	pair_wait(p->primary, STATE(PROTECTED));
}

static void secondary_stopped(void)
{
	struct ft_error err = { 0 };
	struct proc child;
	char answer[512];
	struct pair p;

	open_beside(&p, &child);
	for (int round = 0; round < 2; round++) {
		proc_signal(&child, SIGSTOP);
		check_alone_in_time(&p, "no word");
		proc_signal(&child, SIGCONT);
		pair_wait(p.primary, STATE(PROTECTED));
	}
	proc_ask(&child, "status", "status", answer, sizeof(answer));
	CHECK(strncmp(answer, "standby ", 8) == 0, "after a stop the secondary is: %s", answer);
	pair_check_runs(&p, PAUSE_BOUND_MS);
	CHECK_OK(sim_verify(p.primary_sim, NULL, NULL, &err), err);
	pair_close(&p);
	proc_end(&child);
}

static void secondary_killed(void)
{
	struct proc child;
	struct pair p;

	open_beside(&p, &child);
	proc_signal(&child, SIGKILL);
	check_alone_in_time(&p, NULL);
	pair_close(&p);
	proc_end(&child);
}

static void secondary_ends(void)
{
	struct proc child;
	char rest[64];
	struct pair p;

	open_beside(&p, &child);
	proc_ask(&child, "quit", "bye", rest, sizeof(rest));
	check_alone_in_time(&p, NULL);
	pair_close(&p);
	proc_end(&child);
}

/* ---- a primary in a process of its own ---- */

struct beside { /* a secondary here, a primary there */
	struct pair pair;
	struct proc child;
	struct sim_client *client;
};

static void open_secondary_here(struct beside *b)
{
	struct pair_options opt;
	char rest[64];

	pair_options_init(&opt);
	opt.secondary = silent("");
	opt.listen = listen_at;
	pair_open_sims(&b->pair, &opt);
	pair_start_secondary(&b->pair);
	CHECK(sim_client_create(&b->client) == 0, "no memory");
	/* time enough to hear from us again: who goes on alone earlier than that makes no promise */
	proc_start(&b->child, "primary", b->pair.address, silent("suspect=20000,pause-max=1000"));
	proc_expect(&b->child, "ready", rest, sizeof(rest));
	pair_wait(b->pair.secondary, STATE(STANDBY));
}

static void drain_for(struct beside *b, unsigned ms)
{
	for (uint64_t end = deadline_in_ms(ms); now_ns() < end; sleep_ms(5))
		proc_drain(&b->child, b->client);
}

static void take_over(struct beside *b)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };

	pair_wait(b->pair.secondary, STATE(STANDBY_SUSPECT));
	CHECK_OK(ft_session_failover(b->pair.secondary, 0, &res, &err), err);
	CHECK(res.outcome == FT_FAILOVER_DONE, "failover: outcome %d", (int)res.outcome);
	CHECK_OK(sim_verify(b->pair.secondary_sim, NULL, NULL, &err), err);
	proc_drain(&b->child, b->client);
	CHECK_OK(sim_check_promise(b->client, b->pair.secondary_sim, &err), err);
}

static void close_beside(struct beside *b)
{
	struct sim_client_stats st;

	sim_client_stats(b->client, &st);
	CHECK(st.delivered > 0, "the client got nothing, so the promise was not tried");
	proc_end(&b->child);
	pair_close(&b->pair);
	sim_client_destroy(b->client);
}

static void primary_killed(void)
{
	struct rng r = { 7 };

	for (int round = 0; round < 5; round++) {
		struct beside b;

		open_secondary_here(&b);
		drain_for(&b, (unsigned)rng_range(&r, 50, 300));
		proc_signal(&b.child, SIGKILL);
		take_over(&b);
		close_beside(&b);
	}
}

/* Stopped past its time and woken again, the old primary must find out before anything more leaves it. */
static void primary_stopped(void)
{
	uint64_t deadline;
	struct beside b;
	struct ft_error err = { 0 };
	char answer[512];

	open_secondary_here(&b);
	drain_for(&b, 200);
	proc_signal(&b.child, SIGSTOP);
	take_over(&b);
	proc_signal(&b.child, SIGCONT);
	deadline = deadline_in_ms(WAIT_MS);
	do {
		proc_ask(&b.child, "status", "status", answer, sizeof(answer));
		CHECK(now_ns() < deadline, "the old primary is not stopped: %s", answer);
		drain_for(&b, 20);
	} while (strncmp(answer, "fenced ", 7) != 0 || !strstr(answer, "paused=1"));
	drain_for(&b, 300);
	CHECK_OK(sim_check_promise(b.client, b.pair.secondary_sim, &err), err);
	close_beside(&b);
}

/* Who ends in order goes on without a standby: what we hold is old, and only the operator may run it. */
static void primary_ends(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct ft_status st;
	struct beside b;
	char rest[64];
	int r;

	open_secondary_here(&b);
	drain_for(&b, 200);
	proc_ask(&b.child, "quit", "bye", rest, sizeof(rest));
	pair_wait(b.pair.secondary, STATE(WAITING));
	ft_session_status(b.pair.secondary, &st);
	CHECK(strstr(st.reason, "primary ended"), "the secondary says '%s'", st.reason);
	r = ft_session_failover(b.pair.secondary, 0, &res, &err);
	CHECK(r < 0 && res.outcome != FT_FAILOVER_DONE, "failover: %d, outcome %d", r, (int)res.outcome);
	proc_drain(&b.child, b.client);
	close_beside(&b);
}

/* ---- links ---- */

static void stall_at(uint64_t octets, enum proxy_way way)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.primary = silent(PRIMARY_SILENT);
	opt.secondary = silent("");
	opt.compare = opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_cut_after(p.proxy, way, octets, PROXY_STALL);
	pair_start_primary(&p, p.address);
	proxy_wait_cut(p.proxy);
	pair_wait(p.primary, STATE(CONNECTING) | STATE(ALONE));
	pair_check_unprotected(&p, NULL);
	pair_check_runs(&p, PAUSE_BOUND_MS);
	pair_wait(p.secondary, STATE(WAITING) | STATE(STANDBY_SUSPECT));
	proxy_set_mode(p.proxy, PROXY_REFUSE); /* what hangs is gone; the next attempt gets through */
	sleep_ms(20);
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	pair_check_compared(&p);
	pair_close(&p);
}

static void link_stalled(void)
{
	double at = 40, back = 40;

	for (int i = 0; i < 7; i++, at *= 5.2, back *= 1.9) {
		stall_at((uint64_t)at, PROXY_TO_TARGET);
		stall_at((uint64_t)back, PROXY_FROM_TARGET);
	}
}

static void wait_stalled(struct ft_session *s)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_stats stats;

	do {
		CHECK(now_ns() < deadline, "no pause has to wait for staging memory");
		sleep_ms(5);
		ft_session_stats(s, &stats);
	} while (!stats.counter[FT_COUNTER_CAP_STALLS]);
}

static void link_slow(void)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.primary = "pause-max=1000,commit-timeout=2000,staging-bytes=16M,suspect=300";
	opt.compare = opt.use_proxy = true;
	opt.sim.region_bytes[0] = 64u << 20;
	opt.sim.rate = 30000;
	opt.sim.pattern = SIM_UNIFORM;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_rate(p.proxy, 1000000);
	pair_start_primary(&p, p.address);
	for (int i = 0; i < 20; i++) {
		sleep_ms(200);
		pair_check_runs(&p, PAUSE_BOUND_MS);
	}
	proxy_set_rate(p.proxy, 0);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	pair_check_compared(&p);
	pair_check_runs(&p, PAUSE_BOUND_MS);
	pair_close(&p);
}

/* In the middle of a pause that waits for staging memory, and of a full copy: the secondary is told all the same. */
static void primary_ends_while_the_link_is_slow(void)
{
	for (int synced = 0; synced < 2; synced++) {
		struct pair_options opt;
		struct ft_status st;
		struct pair p;

		pair_options_init(&opt);
		opt.primary = "interval=500,pause-max=60000,commit-timeout=60000,staging-bytes=16M,at-cap=slow";
		opt.use_proxy = true;
		opt.sim.region_bytes[0] = 64u << 20;
		opt.sim.rate = 30000;
		opt.sim.pattern = SIM_UNIFORM;
		pair_open_sims(&p, &opt);
		pair_start_secondary(&p);
		if (!synced)
			proxy_set_rate(p.proxy, 4000000);
		pair_start_primary(&p, p.address);
		if (synced) {
			pair_wait_protected(&p);
			proxy_set_rate(p.proxy, 4000000);
			wait_stalled(p.primary);
		} else {
			pair_wait(p.primary, STATE(SYNCING));
			sleep_ms(200);
		}
		ft_session_stop(p.primary);
		pair_wait(p.secondary, STATE(WAITING));
		ft_session_status(p.secondary, &st);
		CHECK(strstr(st.reason, "primary ended"), "%s: the secondary says '%s'", synced ? "pause" : "sync",
		      st.reason);
		pair_close(&p);
	}
}

static void open_alone(struct pair *p, const char *uri)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.primary = silent(PRIMARY_SILENT);
	pair_open_sims(p, &opt);
	pair_start_primary(p, uri);
}

static int listen_deaf(char *uri, size_t size)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 128) == 0 &&
		      getsockname(fd, (struct sockaddr *)&a, &len) == 0,
	      "socket: %s", strerror(errno));
	snprintf(uri, size, "127.0.0.1:%u", ntohs(a.sin_port));
	return fd;
}

static void secondary_absent(void)
{
	char uri[64];
	struct pair p;
	int fd = listen_deaf(uri, sizeof(uri));

	close(fd); /* a port where nobody listens */
	open_alone(&p, uri);
	pair_check_unprotected(&p, "refused");
	pair_check_runs(&p, 1);
	CHECK(ft_session_wait(p.primary, STATE(CONNECTING), 0) == FT_STATE_CONNECTING, "not connecting");
	pair_close(&p);
}

static void secondary_half_open(void)
{
	char uri[64];
	struct pair p;
	int fd = listen_deaf(uri, sizeof(uri));

	open_alone(&p, uri);
	sleep_ms(1200); /* more than two attempts */
	pair_check_unprotected(&p, uri);
	pair_check_runs(&p, 1);
	CHECK(ft_session_wait(p.primary, STATE(CONNECTING), 0) == FT_STATE_CONNECTING, "not connecting");
	pair_close(&p);
	close(fd);
}

/* ---- the VMM fails ---- */

static void wait_calls(struct pair *p, enum sim_op op, uint64_t more)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS), target = sim_op_calls(p->primary_sim, op) + more;

	while (sim_op_calls(p->primary_sim, op) < target) {
		CHECK(now_ns() < deadline, "%s is not called any more", sim_op_name(op));
		sleep_ms(2);
	}
}

/* It fails again and again: no protection comes about, and the guest runs all the same.  Then it works, and all is well. */
static void op_fails(enum sim_op op)
{
	bool of_full_sync = op == SIM_OP_TRACK_START || op == SIM_OP_COLLECT_PRESENT;
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.primary = of_full_sync ? "suspect=100,resync=off" : "suspect=100";
	opt.compare = true;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	sim_fail_op(p.primary_sim, op, 1, UINT64_MAX);
	if (of_full_sync)
		sim_fail_op(p.primary_sim, SIM_OP_PAUSE, 1, 1);
	for (int i = 0; i < 3; i++) {
		wait_calls(&p, op, 1);
		pair_check_unprotected(&p, sim_op_name(op));
		pair_check_runs(&p, PAUSE_BOUND_MS);
	}
	CHECK(atomic_load(&p.losses) > 0, "%s failed and nobody noticed", sim_op_name(op));
	sim_fail_op(p.primary_sim, op, 1, 0);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	pair_check_compared(&p);
	pair_check_runs(&p, PAUSE_BOUND_MS);
	pair_close(&p);
}

static void vmm_fails(void)
{
	op_fails(SIM_OP_TRACK_START);
	op_fails(SIM_OP_COLLECT_PRESENT);
	op_fails(SIM_OP_COLLECT_DIRTY);
	op_fails(SIM_OP_PAUSE);
	op_fails(SIM_OP_SAVE_STATE);
	op_fails(SIM_OP_RESUME);
}

static void state_too_large(void)
{
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.primary = "suspect=100";
	opt.compare = true;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	sim_set_state_bytes(p.primary_sim, 3u << 20); /* state-max is 1M */
	pair_check_unprotected(&p, "state");
	pair_check_runs(&p, PAUSE_BOUND_MS);
	sim_set_state_bytes(p.primary_sim, 16384);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	pair_check_compared(&p);
	pair_close(&p);
}

static void standby_does_not_load(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	struct ft_status st;
	struct pair p;
	int r;

	pair_options_init(&opt);
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	sim_fail_op(p.secondary_sim, SIM_OP_LOAD_STATE, 1, UINT64_MAX);
	r = ft_session_failover(p.secondary, FT_FAILOVER_FORCE, &res, &err);
	CHECK(r < 0 && res.outcome == FT_FAILOVER_FAILED, "failover: %d, outcome %d", r, (int)res.outcome);
	ft_session_status(p.secondary, &st);
	CHECK(st.state == FT_STATE_REFUSED && strstr(st.reason, "load-state"), "%s: %s", ft_state_name(st.state),
	      st.reason);
	pair_wait(p.primary, STATE(ALONE)); /* nobody took over: it goes on */
	pair_check_unprotected(&p, "load-state");
	pair_check_runs(&p, PAUSE_BOUND_MS);
	pair_close(&p);
}

/* ---- failover ---- */

static void failover_in_sync(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	struct pair p;

	pair_options_init(&opt);
	opt.sim.region_bytes[0] = 16u << 20;
	opt.sim.prefill_pages = 4096;
	opt.sim.rate = 100;
	opt.compare = opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_rate(p.proxy, 3000000); /* 5 s for the whole */
	pair_start_primary(&p, p.address);
	pair_wait(p.secondary, STATE(STANDBY_SYNCING));
	for (unsigned flags = 0; flags < 2; flags++) {
		int r = ft_session_failover(p.secondary, flags, &res, &err);

		CHECK(r < 0 && res.outcome == FT_FAILOVER_NO_IMAGE, "flags %u: %d, outcome %d", flags, r,
		      (int)res.outcome);
		CHECK(err.msg[0], "a refusal without a reason");
	}
	proxy_set_rate(p.proxy, 0);
	pair_wait_protected(&p); /* the refusal did no harm */
	pair_wait_applied(&p, 3);
	pair_check_compared(&p);
	pair_close(&p);
}

static uint64_t failover_after_ack(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	struct ft_status st;
	struct pair p;
	uint64_t acked;

	pair_options_init(&opt);
	opt.primary = "interval=40,staging-bytes=128M";
	opt.sim.region_bytes[0] = 64u << 20;
	opt.sim.pages_per_epoch = 12000;
	opt.sim.pattern = SIM_SCATTER;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	ft_session_status(p.primary, &st);
	acked = st.epoch_acked;
	while (st.epoch_acked < acked + 2) {
		sleep_ms(0);
		ft_session_status(p.primary, &st);
	}
	CHECK_OK(ft_session_failover(p.secondary, FT_FAILOVER_FORCE, &res, &err), err);
	CHECK(res.epoch >= acked + 2, "epoch %" PRIu64 " was acknowledged, and the failover went on from %" PRIu64,
	      acked + 2, res.epoch);
	pair_check_promoted(&p, &res);
	pair_close(&p);
	return res.apply_ns;
}

/* The acknowledgement comes before the apply: called at once after it, a failover finds 12,000 pages being copied. */
static void failover_in_apply(void)
{
	unsigned in_apply = 0;

	for (int i = 0; i < 5; i++)
		in_apply += failover_after_ack() > NS_PER_MS / 2;
	CHECK(in_apply > 0, "no failover had to finish an apply");
}

static void failover_peer_alive(void)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	struct pair p;
	int r;

	pair_options_init(&opt);
	opt.compare = true;
	opt.sim.output_every = 2; /* so that something is held whenever the end comes */
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	r = ft_session_failover(p.secondary, 0, &res, &err);
	CHECK(r < 0 && res.outcome == FT_FAILOVER_PEER_ALIVE, "%d, outcome %d", r, (int)res.outcome);
	pair_wait_applied(&p, 3); /* the protection goes on */
	pair_check_compared(&p);
	r = ft_session_failover(p.primary, 0, &res, &err);
	CHECK(r < 0 && res.outcome == FT_FAILOVER_NOT_SECONDARY, "%d, outcome %d", r, (int)res.outcome);
	CHECK_OK(ft_session_failover(p.secondary, FT_FAILOVER_FORCE, &res, &err), err);
	pair_check_promoted(&p, &res);
	r = ft_session_failover(p.secondary, 0, &res, &err);
	CHECK(r == 0 && res.outcome == FT_FAILOVER_ALREADY, "%d, outcome %d", r, (int)res.outcome);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	for (uint64_t deadline = deadline_in_ms(WAIT_MS); sim_output_held(p.primary_sim); sleep_ms(1))
		CHECK(now_ns() < deadline, "a fenced primary keeps what it held");
	pair_close(&p);
}

/* ---- all of them ---- */

static const struct scenario {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "secondary-stopped", secondary_stopped },
	{ "secondary-killed", secondary_killed },
	{ "secondary-ends", secondary_ends },
	{ "primary-killed", primary_killed },
	{ "primary-stopped", primary_stopped },
	{ "primary-ends", primary_ends },
	{ "primary-ends-slow-link", primary_ends_while_the_link_is_slow },
	{ "link-stalled", link_stalled },
	{ "link-slow", link_slow },
	{ "secondary-absent", secondary_absent },
	{ "secondary-half-open", secondary_half_open },
	{ "vmm-fails", vmm_fails },
	{ "state-too-large", state_too_large },
	{ "standby-does-not-load", standby_does_not_load },
	{ "failover-in-sync", failover_in_sync },
	{ "failover-in-apply", failover_in_apply },
	{ "failover-peer-alive", failover_peer_alive },
};

static bool is_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return true;
	return argc < 2;
}

static void take_options(int *argc, char ***argv)
{
	while (*argc > 2 && strncmp((*argv)[1], "--", 2) == 0) {
		if (strcmp((*argv)[1], "--listen") == 0)
			listen_at = (*argv)[2];
		else if (strcmp((*argv)[1], "--silence") == 0)
			silence_ms = (unsigned)atoi((*argv)[2]);
		else
			DIE("what is %s?", (*argv)[1]);
		*argc -= 2;
		*argv += 2;
	}
}

int main(int argc, char **argv)
{
	unsigned ran = 0;
	int status;

	if (proc_main(argc, argv, &status))
		return status;
	setvbuf(stdout, NULL, _IOLBF, 0);
	take_options(&argc, &argv);
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		uint64_t begun = now_ns();

		if (!is_wanted(scenarios[i].name, argc, argv))
			continue;
		printf("%-24s", scenarios[i].name);
		fflush(stdout);
		scenarios[i].run();
		printf("ok, %" PRIu64 " ms\n", (now_ns() - begun) / NS_PER_MS);
		ran++;
	}
	CHECK(ran > 0, "there is no such scenario");
	return 0;
}
