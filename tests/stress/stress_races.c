/* SPDX-License-Identifier: MIT */
/* stress_races.c - things that meet at a bad moment: a failover and a primary that comes back, a stop and a peer that says nothing, a
 * change of regions and a greeting, a peer that was stopped for a while and the heartbeats meant for it.  One side is a session,
 * the other one raw records (support/raw.h), so that the moment can be chosen.
 * Wrapped: tp_send */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "err.h"
#include "pair.h"
#include "proc.h"
#include "raw.h"

#ifdef FT_TSAN
#define ROUNDS 40u
#define LANES_STEP 3u
#define PAGES_PER_S 10000u
#else
#define ROUNDS 300u
#define LANES_STEP 1u
#define PAGES_PER_S 50000u
#endif

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

/* ---- failover and a primary that comes back ---- */

static void standby_suspect(struct raw_vm *vm, struct raw *r)
{
	raw_vm_secondary(vm, NULL);
	raw_connect(r, vm->address, 1);
	raw_greet(r, 1);
	raw_epoch(r, 1, 0x11);
	raw_close(r);
	pair_wait(vm->session, STATE(STANDBY_SUSPECT));
}

/* hello-ack tells a primary in SUSPECT that nobody took over: it lets its output out.  From then on the image is an old one, and only a
 * forced failover may take it. */
static void failover_behind_hello_ack(void)
{
	for (int i = 0; i < (int)ROUNDS; i++) {
		struct ft_failover_result res;
		struct raw_vm vm;
		struct raw r;

		standby_suspect(&vm, &r);
		raw_connect(&r, vm.address, 1);
		raw_greet(&r, 1);
		CHECK(ft_session_failover(vm.session, 0, &res, NULL) < 0 && res.outcome == FT_FAILOVER_NO_IMAGE,
		      "round %d: outcome %d: promoted behind the primary's back", i, (int)res.outcome);
		raw_close(&r);
		raw_vm_close(&vm);
	}
}

struct promoter {
	struct raw_vm *vm;
	unsigned flags, delay_us;
	struct ft_failover_result res;
	uint8_t seen; /* in the machine's memory when it began to run */
};

static void *promote(void *arg)
{
	struct promoter *p = arg;
	struct timespec t = timespec_of_ns(p->delay_us * 1000u);

	nanosleep(&t, NULL);
	(void)!ft_session_failover(p->vm->session, p->flags, &p->res, NULL);
	p->seen = p->vm->memory[FT_PAGE_SIZE];
	return NULL;
}

/* Either the primary is accepted or the standby is promoted, never both.  A forced failover may come after the hello-ack, but then
 * nothing of this primary reaches the machine that runs now.  However long a greeting takes here, they meet: who won comes later. */
static void failover_beside_greeting(unsigned flags)
{
	unsigned promoted = 0, accepted = 0;

	for (unsigned i = 0, delay_us = 100; i < ROUNDS; i++) {
		struct promoter p = { .flags = flags, .delay_us = delay_us };
		struct record_head head = { 0 };
		struct raw_vm vm;
		struct raw r;
		pthread_t t;
		bool ack;

		standby_suspect(&vm, &r);
		p.vm = &vm;
		CHECK(pthread_create(&t, NULL, promote, &p) == 0, "no thread");
		raw_connect(&r, vm.address, 1);
		ack = raw_hello(&r, 1, 50, 100) && raw_regions(&r) && raw_receive(&r, &head, NULL, WAIT_MS) &&
		      head.type == FTW_HELLO_ACK;
		if (ack)
			ack = raw_pages(&r, 1, 1, 1, 1, 0x22) && raw_commit(&r, 1) && raw_receive(&r, &head, NULL, 500);
		pthread_join(t, NULL);
		promoted += p.res.outcome == FT_FAILOVER_DONE;
		accepted += ack && head.type == FTW_ACK;
		if (p.res.outcome == FT_FAILOVER_DONE) {
			sleep_ms(2);
			CHECK(vm.memory[FT_PAGE_SIZE] == p.seen,
			      "round %u: a primary wrote into the machine that was promoted", i);
		}
		CHECK(flags || !(p.res.outcome == FT_FAILOVER_DONE && head.type == FTW_HELLO_ACK),
		      "round %u: the primary was accepted, and the standby promoted", i);
		delay_us = ack && head.type == FTW_ACK ? delay_us - delay_us / 8 : delay_us + delay_us / 4 + 1;
		raw_close(&r);
		raw_vm_close(&vm);
	}
	CHECK(promoted > 0 && accepted > 0, "%u promoted, %u accepted: they did not meet", promoted, accepted);
}

static void failover_or_greeting(void)
{
	failover_beside_greeting(0);
}

static void forced_failover_or_greeting(void)
{
	failover_beside_greeting(FT_FAILOVER_FORCE);
}

/* ---- a peer that was stopped for a while ---- */

static uint64_t losses(struct ft_session *s)
{
	struct ft_stats st;

	ft_session_stats(s, &st);
	return st.counter[FT_COUNTER_LOSSES];
}

static void serve_as_secondary(struct raw *r, unsigned ms)
{
	for (uint64_t end = deadline_in_ms(ms), beat = 0; now_ns() < end;) {
		struct record_head head;

		if (now_ns() >= beat) {
			CHECK(link_send_heartbeat(r->link, 0, deadline_in_ms(100), NULL) != -EPIPE,
			      "the primary has gone");
			beat = deadline_in_ms(20);
		}
		if (!raw_receive(r, &head, NULL, 20))
			continue;
		if (head.type == FTW_COMMIT)
			CHECK(raw_mark(r, FTW_ACK, head.epoch) && raw_mark(r, FTW_APPLIED, head.epoch),
			      "the primary has gone");
	}
}

/* More heartbeats than a lane has credits are due while the secondary is stopped; it goes on in time, and all is well. */
static void secondary_rests(void)
{
	struct tp_listener *l;
	struct raw_vm vm;
	struct raw r;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri, "interval=10,heartbeat=20,heartbeat-misses=100,commit-timeout=10s,suspect=10s");
	raw_accept(&r, l);
	raw_expect_hello(&r);
	raw_hello_ack_with(&r, 20, 100);
	serve_as_secondary(&r, 300);
	for (int i = 0; i < 2; i++) {
		sleep_ms(1000);
		serve_as_secondary(&r, 2200);
		CHECK(losses(vm.session) == 0,
		      "a secondary that rested for half of the time it may was taken for lost");
	}
	raw_close(&r);
	raw_vm_close(&vm);
	tp_listener_close(l);
}

static void primary_rests(void)
{
	struct raw_vm vm;
	struct raw r;
	uint64_t epoch = 1;

	raw_vm_secondary(&vm, "heartbeat=20,heartbeat-misses=100");
	raw_connect(&r, vm.address, 1);
	CHECK(raw_hello(&r, 1, 20, 100) && raw_regions(&r), "hello cannot be sent");
	raw_expect(&r, FTW_HELLO_ACK, 0);
	for (int i = 0; i < 3; i++) {
		raw_epoch(&r, epoch++, 0x11);
		sleep_ms(1000);
		/* it goes on with a commit and a heartbeat before it reads, as two threads do */
		CHECK(raw_pages(&r, 1, epoch, 1, 1, 0x22) && raw_commit(&r, epoch), "the secondary has gone");
		link_send_heartbeat(r.link, 0, deadline_in_ms(100), NULL);
		raw_expect(&r, FTW_ACK, epoch);
		raw_expect(&r, FTW_APPLIED, epoch++);
		CHECK(losses(vm.session) == 0, "a primary that rested for half of the time it may was taken for lost");
	}
	raw_close(&r);
	raw_vm_close(&vm);
}

/* The first apply is of the whole machine, and may take as long as that does. */
static void first_apply_is_long(void)
{
	struct tp_listener *l;
	struct raw_vm vm;
	struct raw r;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri, "interval=10,commit-timeout=100,suspect=10s");
	raw_accept(&r, l);
	raw_expect_hello(&r);
	raw_hello_ack(&r, NULL);
	CHECK(raw_await_commit(&r) == 1 && raw_mark(&r, FTW_ACK, 1), "the primary has gone");
	sleep_ms(350); /* 8,192 pages at 50 us are 410 ms */
	CHECK(raw_mark(&r, FTW_APPLIED, 1), "the primary has gone");
	CHECK(raw_await_commit(&r) == 2 && raw_mark(&r, FTW_ACK, 2), "the primary has gone");
	CHECK(losses(vm.session) == 0, "the secondary was given up in its first apply");
	pair_wait(vm.session, STATE(SUSPECT)); /* one page is not given that long */
	raw_close(&r);
	raw_vm_close(&vm);
	tp_listener_close(l);
}

/* An ack that does not come is noticed in time, also where heartbeats are rare. */
static void late_ack_is_noticed(void)
{
	struct tp_listener *l;
	uint64_t begun;
	struct raw_vm vm;
	struct raw r;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri, "interval=10,commit-timeout=200,suspect=10s,heartbeat=20s");
	raw_accept(&r, l);
	raw_expect_hello(&r);
	raw_hello_ack_with(&r, 20000, 100);
	CHECK(raw_await_commit(&r) == 1, "the primary has gone");
	begun = now_ns();
	pair_wait(vm.session, STATE(SUSPECT));
	CHECK(now_ns() - begun < 5 * NS_PER_S, "after %" PRIu64 " ms, commit-timeout is 200",
	      (now_ns() - begun) / NS_PER_MS);
	raw_close(&r);
	raw_vm_close(&vm);
	tp_listener_close(l);
}

/* ---- a primary that was stopped while it suspected ---- */

static void child_is(struct proc *child, struct sim_client *client, const char *state)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	char answer[512];

	for (;; sleep_ms(2)) {
		proc_ask(child, "status", "status", answer, sizeof(answer));
		proc_drain(child, client);
		if (strncmp(answer, state, strlen(state)) == 0)
			return;
		CHECK(now_ns() < deadline && strncmp(answer, "alone", 5) != 0, "waited for %s, it is %s", state,
		      answer);
	}
}

/* It wakes when its time is over.  The standby was promoted meanwhile: it must ask before it goes on alone. */
static void stopped_in_suspect(void)
{
	struct sim_client *client;
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	struct pair_options opt;
	struct proc child;
	struct pair p;
	char rest[64];

	pair_options_init(&opt);
	opt.use_proxy = true;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	CHECK(sim_client_create(&client) == 0, "no memory");
	proc_start(&child, "primary", p.address, "suspect=700,connect-timeout=500");
	proc_expect(&child, "ready", rest, sizeof(rest));
	pair_wait(p.secondary, STATE(STANDBY));
	sleep_ms(100);
	proxy_set_mode(p.proxy, PROXY_REFUSE);
	child_is(&child, client, "suspect");
	proc_signal(&child, SIGSTOP);
	proxy_set_mode(p.proxy, PROXY_PASS);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	CHECK_OK(ft_session_failover(p.secondary, 0, &res, &err), err);
	sleep_ms(1500);
	proc_signal(&child, SIGCONT);
	child_is(&child, client, "fenced");
	proc_drain(&child, client);
	CHECK_OK(sim_check_promise(client, p.secondary_sim, &err), err);
	proc_end(&child);
	pair_close(&p);
	sim_client_destroy(client);
}

/* ---- lanes ---- */

static void many_lanes(void)
{
	for (unsigned lanes = 2; lanes <= 8; lanes += LANES_STEP) {
		struct pair_options opt;
		char settings[64];
		struct pair p;

		snprintf(settings, sizeof(settings), "lanes=%u", lanes);
		pair_options_init(&opt);
		opt.primary = settings;
		opt.compare = true;
		opt.sim.region_bytes[0] = 32u << 20; /* several slabs, so several lanes, in the page space */
		opt.sim.rate = PAGES_PER_S;
		pair_open(&p, &opt);
		pair_wait_protected(&p);
		pair_wait_applied(&p, 8);
		pair_check_compared(&p);
		pair_close(&p);
	}
}

/* ---- regions ---- */

static void *change_regions(void *arg)
{
	struct raw_vm *vm = arg;
	struct ft_error err = { 0 };
	static uint8_t more[FT_PAGE_SIZE] __attribute__((aligned(4096)));
	int index = ft_session_add_region(vm->session, "more", more, sizeof(more), &err);

	CHECK_OK(index, err);
	CHECK_OK(ft_session_remove_region(vm->session, (uint32_t)index, &err), err);
	return NULL;
}

/* The table changes between hello and its answer. */
static void regions_in_greeting(void)
{
	struct raw_vm primary, secondary;
	struct timespec end;
	pthread_t t;

	raw_vm_secondary(&secondary, NULL);
	atomic_store(&secondary.identity_delay_ms, 300);
	raw_vm_primary(&primary, secondary.address, "reconnect=50");
	while (atomic_load(&secondary.identity_checks) == 0)
		sleep_ms(1);
	CHECK(pthread_create(&t, NULL, change_regions, &primary) == 0, "no thread");
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	CHECK(pthread_timedjoin_np(t, NULL, &end) == 0, "a region cannot be removed while the connection lasts");
	raw_vm_close(&primary);
	raw_vm_close(&secondary);
}

/* ---- stop ---- */

#define STOP_BOUND_MS 1500u /* less than the 3 s of a greeting, and of connect-timeout */

static void check_stop(struct ft_session *s, const char *when)
{
	uint64_t begun = now_ns();

	ft_session_stop(s);
	CHECK(now_ns() - begun < STOP_BOUND_MS * NS_PER_MS, "%s: the stop took %" PRIu64 " ms", when,
	      (now_ns() - begun) / NS_PER_MS);
}

static void stop_beside_mute(void)
{
	struct tp_listener *l;
	struct raw_vm vm;
	struct raw r;
	char uri[128];

	raw_vm_secondary(&vm, NULL);
	raw_connect(&r, vm.address, 1);
	sleep_ms(200);
	check_stop(vm.session, "a primary that says nothing");
	raw_close(&r);
	raw_vm_close(&vm);

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri, "connect-timeout=20s");
	raw_accept(&r, l);
	raw_expect_hello(&r);
	check_stop(vm.session, "a secondary that does not answer hello");
	raw_close(&r);
	raw_vm_close(&vm);
	tp_listener_close(l);
}

static void *connect_aside(void *uri)
{
	static struct raw r;

	raw_connect(&r, uri, 1);
	return &r;
}

/* Nothing goes behind a last word on lane 0, whichever thread is late. */
static void bye_is_last(void)
{
	static const uint32_t last[] = { FTW_REFUSE, FTW_BYE, FTW_ERROR };
	struct tp_listener *l;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	for (unsigned i = 0; i < 3; i++) {
		struct record_head head;
		struct raw a, b;
		pthread_t t;
		void *made;

		CHECK(pthread_create(&t, NULL, connect_aside, uri) == 0, "no thread");
		raw_accept(&b, l);
		pthread_join(t, &made);
		a = *(struct raw *)made;
		CHECK(link_send_heartbeat(a.link, 0, deadline_in_ms(WAIT_MS), NULL) == 0, "no heartbeat can be sent");
		CHECK(link_send_reason(a.link, last[i], FTW_CODE_STOPPED, "the end", deadline_in_ms(WAIT_MS)) == 0,
		      "no bye can be sent");
		CHECK(link_send_heartbeat(a.link, 0, deadline_in_ms(WAIT_MS), NULL) < 0,
		      "a heartbeat behind a last word");
		CHECK(link_send_mark(a.link, FTW_ACK, 1, deadline_in_ms(WAIT_MS), NULL) == -ESHUTDOWN,
		      "an ack behind a last word");
		CHECK(link_send_reason(a.link, FTW_BYE, 0, "again", deadline_in_ms(WAIT_MS)) == -ESHUTDOWN,
		      "two last words");
		raw_expect(&b, last[i], 0);
		CHECK(!raw_receive(&b, &head, NULL, 50), "record 0x%x behind the last one", head.type);
		raw_close(&a);
		raw_close(&b);
	}
	tp_listener_close(l);
}

/* ---- a peer that takes nothing any more, and has said why ---- */

static _Atomic(struct tp_conn *) sends_alone; /* everybody else's sends fail; NULL: nobody's */

int __real_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err);
int __wrap_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err);

int __wrap_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err)
{
	struct tp_conn *alone = atomic_load(&sends_alone);

	if (alone && c != alone)
		return err_set(err, -EPIPE, "the peer has closed");
	return __real_tp_send(c, lane, iov, nr_iov, deadline, err);
}

static void check_reason(struct ft_session *s, const char *text)
{
	struct ft_status st;

	ft_session_status(s, &st);
	CHECK(strstr(st.reason, text), "the reason is '%s', and not '%s'", st.reason, text);
}

static void protected_by(struct raw *r, struct tp_listener *l)
{
	raw_accept(r, l);
	raw_expect_hello(r);
	raw_hello_ack_with(r, 100, 1000);
	CHECK(raw_await_commit(r) == 1 && raw_mark(r, FTW_ACK, 1) && raw_mark(r, FTW_APPLIED, 1),
	      "the primary has gone");
}

/* From now on the sends of both threads of a protected primary fail. */
static void cut_off_primary(struct raw_vm *vm, struct raw *r, const char *settings)
{
	struct tp_listener *l;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(vm, uri, settings);
	protected_by(r, l);
	atomic_store(&sends_alone, r->link->conn);
	tp_listener_close(l);
}

/* The same of a standby, which has an epoch to acknowledge. */
static void cut_off_secondary(struct raw_vm *vm, struct raw *r, const char *settings)
{
	raw_vm_secondary(vm, settings);
	raw_connect(r, vm->address, 1);
	raw_greet(r, 1);
	raw_epoch(r, 1, 0x11);
	atomic_store(&sends_alone, r->link->conn);
	CHECK(raw_pages(r, 1, 2, 1, 1, 0x22) && raw_commit(r, 2), "the secondary has gone");
}

static void say_goodbye_late(struct raw *r, const char *text)
{
	sleep_ms(100);
	link_send_reason(r->link, FTW_BYE, FTW_CODE_STOPPED, text, deadline_in_ms(WAIT_MS));
}

static void end_both(struct raw_vm *vm, struct raw *r)
{
	atomic_store(&sends_alone, NULL);
	raw_close(r);
	raw_vm_close(vm);
}

static void goodbye_is_heard(void)
{
	struct raw_vm vm;
	struct raw r;

	cut_off_primary(&vm, &r, "interval=10,heartbeat=20,suspect=10s");
	say_goodbye_late(&r, "the host is shut down");
	pair_wait(vm.session, STATE(SUSPECT));
	check_reason(vm.session, "the host is shut down");
	end_both(&vm, &r);

	cut_off_secondary(&vm, &r, "heartbeat=20");
	say_goodbye_late(&r, "the end");
	pair_wait(vm.session, STATE(WAITING)); /* and not STANDBY_SUSPECT */
	end_both(&vm, &r);
}

/* The peer takes nothing, says no last word, and silence would not be noticed for long: that is the end as well. */
static void no_goodbye_comes(void)
{
	struct raw_vm vm;
	struct raw r;

	cut_off_primary(&vm, &r, "interval=10,heartbeat=50,heartbeat-misses=1000,commit-timeout=100s,suspect=100s");
	pair_wait(vm.session, STATE(SUSPECT));
	check_reason(vm.session, "the peer has closed");
	end_both(&vm, &r);

	cut_off_secondary(&vm, &r, "heartbeat=50,heartbeat-misses=1000");
	pair_wait(vm.session, STATE(STANDBY_SUSPECT));
	check_reason(vm.session, "the peer has closed");
	end_both(&vm, &r);
}

/* ---- the operator ---- */

static void checkpoint_while_held(void)
{
	struct raw_vm primary, secondary;
	struct ft_error err = { 0 };
	uint64_t epoch;

	raw_vm_secondary(&secondary, NULL);
	raw_vm_primary(&primary, secondary.address, "reconnect=50");
	pair_wait(primary.session, STATE(PROTECTED));
	CHECK_OK(ft_session_pause_guest(primary.session, WAIT_MS, &err), err);
	CHECK_OK(ft_session_checkpoint(primary.session, 10000, &epoch, &err), err);
	CHECK(atomic_load(&primary.paused) == 1, "the guest runs, though the operator stopped it");
	CHECK_OK(ft_session_resume_guest(primary.session, WAIT_MS, &err), err);
	CHECK_OK(ft_session_checkpoint(primary.session, 10000, &epoch, &err), err);
	raw_vm_close(&primary);
	raw_vm_close(&secondary);
}

/* A guest that is always near the cap runs for a quarter of the interval all the same. */
static void near_cap_the_guest_runs(void)
{
	struct raw_vm primary, secondary;
	unsigned pauses;

	raw_vm_secondary(&secondary, NULL);
	raw_vm_primary(&primary, secondary.address, "interval=200");
	pair_wait(primary.session, STATE(PROTECTED));
	atomic_store(&primary.estimate, UINT32_MAX);
	sleep_ms(100);
	pauses = atomic_load(&primary.pauses);
	sleep_ms(1000);
	pauses = atomic_load(&primary.pauses) - pauses;
	CHECK(pauses >= 8 && pauses <= 30,
	      "%u pauses in 1 s, at an interval of 200 ms of which the guest has at least 50", pauses);
	raw_vm_close(&primary);
	raw_vm_close(&secondary);
}

static void octets_are_counted(void)
{
	struct raw_vm primary, secondary;
	struct ft_stats st;
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	raw_vm_secondary(&secondary, NULL);
	raw_vm_primary(&primary, secondary.address, NULL);
	pair_wait(primary.session, STATE(PROTECTED));
	do {
		CHECK(now_ns() < deadline, "octets on the wire are not counted while the connection lasts");
		sleep_ms(20);
		ft_session_stats(primary.session, &st);
	} while (!st.counter[FT_COUNTER_BYTES_SENT] || !st.counter[FT_COUNTER_BYTES_RECEIVED]);
	ft_session_stop(primary.session);
	pair_wait(secondary.session, STATE(WAITING));
	ft_session_stop(secondary.session);
	ft_session_stats(primary.session, &st);
	CHECK(st.counter[FT_COUNTER_BYTES_SENT] > st.counter[FT_COUNTER_PAGES] * FT_PAGE_SIZE,
	      "%" PRIu64 " octets sent for %" PRIu64 " pages", st.counter[FT_COUNTER_BYTES_SENT],
	      st.counter[FT_COUNTER_PAGES]);
	ft_session_stats(secondary.session, &st);
	CHECK(st.counter[FT_COUNTER_BYTES_SENT] && st.counter[FT_COUNTER_BYTES_RECEIVED],
	      "the secondary counts no octets");
	raw_vm_close(&primary);
	raw_vm_close(&secondary);
}

/* ---- all of them ---- */

static const struct scenario {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "failover-behind-hello-ack", failover_behind_hello_ack },
	{ "failover-or-greeting", failover_or_greeting },
	{ "forced-failover-or-greeting", forced_failover_or_greeting },
	{ "secondary-rests", secondary_rests },
	{ "primary-rests", primary_rests },
	{ "first-apply-is-long", first_apply_is_long },
	{ "late-ack-is-noticed", late_ack_is_noticed },
	{ "stopped-in-suspect", stopped_in_suspect },
	{ "many-lanes", many_lanes },
	{ "regions-in-greeting", regions_in_greeting },
	{ "stop-beside-mute", stop_beside_mute },
	{ "bye-is-last", bye_is_last },
	{ "goodbye-is-heard", goodbye_is_heard },
	{ "no-goodbye-comes", no_goodbye_comes },
	{ "checkpoint-while-held", checkpoint_while_held },
	{ "near-cap-the-guest-runs", near_cap_the_guest_runs },
	{ "octets-are-counted", octets_are_counted },
};

static bool is_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return true;
	return argc < 2;
}

int main(int argc, char **argv)
{
	unsigned ran = 0;
	int status;

	if (proc_main(argc, argv, &status))
		return status;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		uint64_t begun = now_ns();

		if (!is_wanted(scenarios[i].name, argc, argv))
			continue;
		printf("%-28s", scenarios[i].name);
		fflush(stdout);
		scenarios[i].run();
		printf("ok, %" PRIu64 " ms\n", (now_ns() - begun) / NS_PER_MS);
		ran++;
	}
	CHECK(ran > 0, "there is no such scenario");
	return 0;
}
