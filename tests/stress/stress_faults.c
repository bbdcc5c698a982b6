/* SPDX-License-Identifier: MIT */
/* stress_faults.c - every fault point of the library is made to fail, at its 1st, 2nd, 3rd ... hit, once and for good.
 *
 * A run is the life of a protection, told below in the functions called step_*: an operator who opens, starts, waits, asks,
 * pauses, loses the primary and fails over, and tries again, for a while, what did not work.  Each run is a process of its own (so
 * that a crash or a leak is that run's) in which one fault is armed; this program picks the faults and watches the clock.  After every run:
 *  - at most one machine runs with its output free, and nothing reached a client that the promoted machine does not know;
 *  - every applied image, and the promoted machine, is exactly one committed epoch;
 *  - the primary's guest runs, but for FENCED; a fault that happened once did not keep the protection from coming about;
 *  - every call came back within its bound, with a sentence if it failed; threads, descriptors and memory are all given back.
 *
 * stress_faults                  a choice of faults, for ctest: each point once in each way that comes to it, and in one of them also at
 *                                later hits and for good
 * stress_faults --all            more than a thousand runs: the first 8 hits of each name, then ever larger steps, until a run meets no fault
 * stress_faults --way WAY [--only NAME] --nth N [--persistent]    one run, as a failing one is told
 * stress_faults --way WAY --op OP --nth N [--persistent]          one run in which the VMM fails
 *
 * Ways: "tcp" is killed and fails over; "loopback", and "rdma" over the made-up fabric (tests/support/fabric_fake.h), which also must be left
 * empty, are stopped in an orderly way, and the old image is forced to run.  These two have slab placement. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "err.h"
#include "fabric_fake.h"
#include "faultpoint.h"
#include "pair.h"
#include "proxy.h"

#define TRIES 5u
#ifdef FT_TSAN /* ten times as slow: each point in one way, once or for good */
#define ONE_WAY true
#define SLOWER 2u
#else
#define ONE_WAY false
#define SLOWER 1u
#endif
#define CALL_MS (5000u * SLOWER)              /* what returns at once; far above, the machine is shared */
#define WAIT_LONG_MS 20000u                   /* for what must come: also when one attempt was lost */
#define WAIT_SHORT_MS (ONE_WAY ? 800u : 400u) /* the operator's patience with what may never come */
#define GUEST_MS (5000u * SLOWER)             /* longest pause of a guest that nobody wants paused */
#define RUN_S 90u                             /* a run is stuck */
#define JOBS (ONE_WAY ? 4u : 8u)              /* runs at a time: they wait for most of theirs */

#ifdef FT_FAULT_POINTS
#define HAVE_POINTS true
#else
#define HAVE_POINTS false /* release: the VMM fails, the library cannot be made to */
#endif

enum way { WAY_TCP, WAY_LOOPBACK, WAY_RDMA, WAY_COUNT };
static const char *const way_names[WAY_COUNT] = { "tcp", "loopback", "rdma" };
static const char *const way_listen[WAY_COUNT] = { "127.0.0.1:0", "fault(seed=1)/loopback:faults",
						   "rdma:10.9.0.1:7777" };

/* The fault of one run. */
struct fault {
	enum way way;
	const char *only; /* name of a point; NULL: any */
	uint64_t nth;     /* 0: none */
	bool persistent;
	bool in_hold;   /* op: armed when the operator pauses the guest, else from the beginning */
	enum sim_op op; /* SIM_OP_COUNT: a fault point */
};

/* What a run tells the program; in shared memory. */
struct report {
	uint64_t hits[128]; /* by index in faultpoint_names() */
	uint64_t all_hits;
	bool injected, protected, promoted;
};

struct world {
	const struct fault *fault;
	struct report *report;
	struct sim *primary_sim, *secondary_sim;
	struct sim_oracle *oracle;
	struct ft_session *primary, *secondary;
	struct ft_control *control;
	struct proxy *proxy;
	char dir[64], socket[80], recording[2][80], state[2][80], where[160];
	unsigned nr_fds;
	/* from the sessions' threads */
	atomic_bool differs;
	struct ft_error difference;
};

/* ---- calls: their bound and their sentence ---- */

static int judge(const char *what, int r, uint64_t begun_ns, uint32_t bound_ms, const struct ft_error *err)
{
	uint64_t took = (now_ns() - begun_ns) / NS_PER_MS;

	CHECK(took <= bound_ms, "%s took %" PRIu64 " ms, its bound is %u ms", what, took, bound_ms);
	if (r < 0) {
		CHECK(err->msg[0], "%s: %d, and not a word why", what, r);
		CHECK(err->code == r, "%s: %d, but the error says %d: %s", what, r, err->code, err->msg);
	}
	return r;
}

#define CALL(bound_ms, err, call)                                                                                      \
	({                                                                                                             \
		uint64_t begun_ = now_ns();                                                                            \
                                                                                                                       \
		err_clear(err);                                                                                        \
		judge(#call, call, begun_, bound_ms, err);                                                             \
	})

#define CALL_VOID(bound_ms, call)                                                                                      \
	do {                                                                                                           \
		uint64_t begun_ = now_ns();                                                                            \
                                                                                                                       \
		call;                                                                                                  \
		judge(#call, 0, begun_, bound_ms, NULL);                                                               \
	} while (0)

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

/* A fault that happened once is made up for; one that stays may keep what is asked for away for ever. */
static uint32_t patience(const struct world *w)
{
	return w->fault->persistent ? WAIT_SHORT_MS : WAIT_LONG_MS;
}

static void arm(const struct world *w)
{
	const struct fault *f = w->fault;

	if (f->op == SIM_OP_COUNT)
		faultpoint_arm(f->nth, f->persistent, f->only);
	else
		faultpoint_arm(0, false, NULL);
}

static void arm_op(struct world *w, bool in_hold)
{
	const struct fault *f = w->fault;
	bool standby = f->op == SIM_OP_LOAD_STATE || f->op == SIM_OP_ACTIVATE;

	if (f->op != SIM_OP_COUNT && f->in_hold == in_hold)
		sim_fail_op(standby ? w->secondary_sim : w->primary_sim, f->op, f->nth, f->persistent ? UINT64_MAX : 1);
}

static void disarm(struct world *w)
{
	faultpoint_disarm();
	if (w->fault->op == SIM_OP_COUNT)
		return;
	sim_fail_op(w->primary_sim, w->fault->op, 0, 0);
	sim_fail_op(w->secondary_sim, w->fault->op, 0, 0);
}

/* ---- the two machines ---- */

static void on_event(void *user, const struct ft_event *ev)
{
	struct world *w = user;
	struct ft_error err = { 0 };

	if (ev->type != FT_EVENT_EPOCH || atomic_load(&w->differs))
		return;
	if (sim_oracle_compare(w->oracle, ev->epoch, w->secondary_sim, &err)) {
		w->difference = err;
		atomic_store(&w->differs, true);
	}
}

static unsigned count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	CHECK(d, "/proc/self/fd: %s", strerror(errno));
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void make_machines(struct world *w)
{
	struct sim_config cfg;
	struct ft_error err = { 0 };

	w->nr_fds = count_fds();
	sim_config_init(&cfg);
	cfg.region_bytes[0] = 300 * FT_PAGE_SIZE;
	cfg.side_max_bytes = w->fault->way == WAY_RDMA ? 0 : 200000; /* with a side stream epochs go one by one */
	cfg.prefill_pages = 60;
	cfg.rate = 3000;
	cfg.output_every = 10;
	cfg.state_bytes = 3000;
	CHECK_OK(sim_create(&w->primary_sim, &cfg, false, &err), err);
	cfg.on_event = on_event;
	cfg.on_event_user = w;
	CHECK_OK(sim_create(&w->secondary_sim, &cfg, true, &err), err);
	CHECK_OK(sim_oracle_create(&w->oracle, w->primary_sim, &err), err);
	CHECK_OK(sim_start(w->primary_sim, &err), err);
	snprintf(w->dir, sizeof(w->dir), "/tmp/stress-faults-XXXXXX");
	CHECK(mkdtemp(w->dir), "%s: %s", w->dir, strerror(errno));
	snprintf(w->socket, sizeof(w->socket), "%s/control", w->dir);
	snprintf(w->recording[0], sizeof(w->recording[0]), "%s/primary", w->dir);
	snprintf(w->recording[1], sizeof(w->recording[1]), "%s/secondary", w->dir);
	snprintf(w->state[0], sizeof(w->state[0]), "%s/primary.state", w->dir);
	snprintf(w->state[1], sizeof(w->state[1]), "%s/secondary.state", w->dir);
}

static void drop_machines(struct world *w)
{
	uint64_t deadline = deadline_in_ms(CALL_MS);

	proxy_close(w->proxy);
	sim_oracle_destroy(w->oracle);
	sim_destroy(w->primary_sim);
	sim_destroy(w->secondary_sim);
	unlink(w->recording[0]);
	unlink(w->recording[1]);
	unlink(w->state[0]);
	unlink(w->state[1]);
	CHECK(rmdir(w->dir) == 0, "%s: %s", w->dir, strerror(errno));
	while (count_fds() != w->nr_fds) { /* a look-up of a name may still be on its way */
		CHECK(now_ns() < deadline, "%u descriptors were open at the beginning, %u are at the end", w->nr_fds,
		      count_fds());
		sleep_ms(5);
	}
}

/* ---- sessions ---- */

/* One attempt to have a session that runs. */
static struct ft_session *try_session(struct world *w, const struct ft_config *cfg, struct sim *sim)
{
	struct ft_error err = { 0 };
	struct ft_session *s;
	struct ft_status st;
	int r = CALL(CALL_MS, &err, ft_session_open(&s, cfg, sim_ops_of(sim), sim, &err));

	CHECK(r == 0 || !s, "ft_session_open failed, and gave a session");
	if (r)
		return NULL;
	r = CALL(CALL_MS, &err, sim_attach(sim, s, &err));
	if (!r)
		r = CALL(CALL_MS, &err, ft_session_start(s, &err));
	if (!r)
		return s;
	ft_session_status(s, &st);
	CHECK(st.state == FT_STATE_IDLE && !st.is_protected, "after a start that failed (%s) the state is %s", err.msg,
	      ft_state_name(st.state));
	CHECK(cfg->role == FT_ROLE_SECONDARY || !sim_is_paused(w->primary_sim),
	      "the guest is paused by a start that failed");
	CHECK_OK(sim_attach(sim, NULL, &err), err);
	CALL_VOID(CALL_MS, ft_session_close(s));
	return NULL;
}

static struct ft_session *make_session(struct world *w, const struct ft_config *cfg, struct sim *sim)
{
	struct ft_session *s = NULL;

	for (unsigned i = 0; i < TRIES && !s; i++)
		s = try_session(w, cfg, sim);
	CHECK(s || w->fault->persistent, "a fault that happened once keeps a %s from starting",
	      cfg->role == FT_ROLE_PRIMARY ? "primary" : "secondary");
	return s;
}

static void step_secondary(struct world *w)
{
	const bool tcp = w->fault->way == WAY_TCP;
	char address[128] = "127.0.0.1:1"; /* nobody is there */
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	pair_settings(&cfg, "heartbeat=20,heartbeat-misses=100,lanes=2,state-max=1M,apply-threads=2");
	cfg.identity = sim_identity(w->secondary_sim);
	cfg.listen = way_listen[w->fault->way];
	cfg.record = w->recording[1];
	cfg.state_file = w->state[1];
	w->secondary = make_session(w, &cfg, w->secondary_sim);
	if (!tcp) {
		snprintf(w->where, sizeof(w->where), "%s",
			 w->fault->way == WAY_RDMA ? way_listen[WAY_RDMA] : "fault(reorder=2)/loopback:faults");
		return;
	}
	if (w->secondary)
		CHECK(ft_session_address(w->secondary, address, sizeof(address)) == 0, "no address");
	w->proxy = proxy_open(address);
	snprintf(w->where, sizeof(w->where), "localhost:%s",
		 strrchr(proxy_address(w->proxy), ':') + 1); /* a name: it is looked up */
}

static void step_primary(struct world *w)
{
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	/* output stays held after a loss until the standby is back or the operator says otherwise: so at most one is free at any time */
	pair_settings(&cfg, "interval=4,heartbeat=20,heartbeat-misses=100,lanes=2,state-max=1M,staging-bytes=16M,"
			    "capture-threads=2,suspect=300,"
			    "reconnect=10,connect-timeout=500,commit-timeout=2000");
	cfg.on_loss = FT_ON_LOSS_HOLD;
	cfg.capture = w->fault->way == WAY_LOOPBACK ? FT_CAPTURE_COW : FT_CAPTURE_COPY;
	cfg.placement = w->fault->way == WAY_TCP ? FT_PLACEMENT_MIRROR : FT_PLACEMENT_SLAB;
	cfg.delta = w->fault->way == WAY_TCP;
	cfg.identity = sim_identity(w->primary_sim);
	cfg.peer = w->where;
	cfg.record = w->recording[0];
	cfg.state_file = w->state[0];
	w->primary = make_session(w, &cfg, w->primary_sim);
}

static void step_control(struct world *w)
{
	struct ft_error err = { 0 };
	int r = -1;

	for (unsigned i = 0; i < TRIES && r; i++) {
		r = CALL(CALL_MS, &err, ft_control_open(&w->control, w->socket, NULL, NULL, &err));
		CHECK(r == 0 || !w->control, "ft_control_open failed, and gave a control socket");
	}
	CHECK(r == 0 || w->fault->persistent, "a fault that happened once keeps the control socket from opening: %s",
	      err.msg);
	if (!r)
		ft_control_set_session(w->control, w->primary);
}

/* An output queue that was not to be had leaves nothing behind. */
static size_t emit(void *user, const void *buf, size_t len)
{
	(void)user, (void)buf;
	return len;
}

static void step_output(struct world *w)
{
	struct ft_output *o;
	int r = -1;

	for (unsigned i = 0; i < TRIES && r; i++) {
		r = ft_output_open(&o, 4096, emit, NULL);
		CHECK(r == 0 ? o != NULL : r == -ENOMEM && !o, "ft_output_open: %d", r);
		if (r == 0)
			ft_output_close(o);
	}
	CHECK(r == 0 || w->fault->persistent, "a fault that happened once keeps an output queue from opening");
}

/* ---- what the operator does ---- */

static enum ft_state state_of(struct ft_session *s)
{
	struct ft_status st;

	ft_session_status(s, &st);
	return st.state;
}

static bool wait_state(struct ft_session *s, uint32_t mask, uint32_t timeout_ms)
{
	uint64_t begun = now_ns();
	int r = ft_session_wait(s, mask, timeout_ms);

	judge("ft_session_wait", 0, begun, timeout_ms + CALL_MS, NULL);
	CHECK(r == -ETIMEDOUT || (r >= 0 && (mask & 1u << r)), "ft_session_wait gave %d for mask 0x%x", r, mask);
	return r >= 0;
}

/* Protected, and @epochs more acknowledged on one connection. */
static bool reach(struct world *w, uint64_t epochs)
{
	uint64_t deadline = deadline_in_ms(patience(w)), from = 0;

	while (now_ns() < deadline) {
		struct ft_status st;

		ft_session_status(w->primary, &st);
		if (st.state != FT_STATE_PROTECTED || st.epoch_acked < from)
			from = 0;
		else if (!from)
			from = st.epoch_acked;
		else if (st.epoch_acked >= from + epochs && state_of(w->secondary) == FT_STATE_STANDBY)
			return true;
		sleep_ms(1);
	}
	return false;
}

static void step_protect(struct world *w)
{
	char primary[1024], secondary[1024];

	if (w->secondary && reach(w, 5)) {
		w->report->protected = true;
		return;
	}
	CHECK(w->fault->persistent,
	      "a fault that happened once keeps the machine from being protected: primary %s; secondary %s",
	      pair_status_text(w->primary, primary, sizeof(primary)),
	      pair_status_text(w->secondary, secondary, sizeof(secondary)));
}

static void step_checkpoint(struct world *w)
{
	struct ft_error err = { 0 };
	uint64_t epoch;
	int r = -1;

	for (unsigned i = 0; i < TRIES && r; i++) {
		r = CALL(CALL_MS + patience(w), &err, ft_session_checkpoint(w->primary, patience(w), &epoch, &err));
		if (r)
			reach(w, 1);
	}
	CHECK(r == 0 || w->fault->persistent || !w->report->protected, "no checkpoint in %u tries: %s", TRIES, err.msg);
}

static void step_settings(struct world *w)
{
	struct ft_error err = { 0 };
	struct ft_stats *stats = calloc(1, sizeof(*stats));
	char text[64];

	CHECK(CALL(CALL_MS, &err, ft_session_set(w->primary, "interval", "3", &err)) == 0, "set: %s", err.msg);
	CHECK(ft_session_get(w->primary, "interval", text, sizeof(text)) == 0 && strcmp(text, "3") == 0,
	      "interval is %s", text);
	CHECK(stats, "no memory");
	CALL_VOID(CALL_MS, ft_session_stats(w->primary, stats));
	free(stats);
}

/* @line over the control socket: a whole answer, or the end of the connection. */
static bool ask(struct world *w, const char *line)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	uint64_t deadline = deadline_in_ms(w->fault->persistent ? WAIT_SHORT_MS : CALL_MS);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char buf[65536];
	size_t len = 0;
	ssize_t n = 1;

	memcpy(to.sun_path, w->socket, strlen(w->socket) + 1);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0, "control socket: %s", strerror(errno));
	if (send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
		n = 0;
	while (n > 0 && len < sizeof(buf) - 1 && !memchr(buf, '\n', len)) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (poll(&p, 1, deadline_poll_ms(deadline)) == 1) {
			n = recv(fd, buf + len, sizeof(buf) - 1 - len, 0);
			len += n > 0 ? (size_t)n : 0;
		} else {
			CHECK(w->fault->persistent, "the control socket neither answers nor closes: %s", line);
			n = 0; /* connected in the kernel, and never accepted */
		}
	}
	close(fd);
	buf[len] = '\0';
	if (!memchr(buf, '\n', len))
		return false;
	CHECK(strstr(buf, "\"ok\":true") || strstr(buf, "\"error\":\""), "an answer without a result or a sentence: %s",
	      buf);
	return strstr(buf, "\"ok\":true") != NULL;
}

static void step_ask(struct world *w)
{
	static const char *const lines[] = {
		"{\"v\":1,\"cmd\":\"status\"}\n", "{\"v\":1,\"cmd\":\"stats\"}\n",
		"{\"v\":1,\"cmd\":\"get\",\"name\":\"interval\"}\n",
		"{\"v\":1,\"cmd\":\"wait\",\"states\":[\"protected\"],\"timeout_ms\":100}\n"
	};

	for (size_t i = 0; w->control && i < sizeof(lines) / sizeof(lines[0]); i++) {
		bool ok = false;

		for (unsigned n = 0; n < TRIES && !ok; n++) {
			ok = ask(w, lines[i]);
			if (!ok && n + 1 < TRIES && i == 3)
				break; /* not protected within its time is an answer as well */
			if (!ok && w->fault->persistent)
				break;
		}
		CHECK(ok || i == 3 || w->fault->persistent,
		      "a fault that happened once keeps the control socket from answering: %s", lines[i]);
	}
}

static void check_guest_runs(struct world *w, const char *when)
{
	CHECK(sim_wait_steps(w->primary_sim, 1, GUEST_MS) == 0, "the primary's guest does not run %s (state %s)", when,
	      w->primary ? ft_state_name(state_of(w->primary)) : "none");
}

static void step_hold(struct world *w)
{
	struct ft_error err = { 0 };
	uint64_t steps;
	int r;

	CHECK(sim_longest_pause_ns(w->primary_sim) < GUEST_MS * NS_PER_MS, "the guest was paused for %" PRIu64 " ms",
	      sim_longest_pause_ns(w->primary_sim) / NS_PER_MS);
	arm_op(w, true);
	r = CALL(CALL_MS + WAIT_SHORT_MS, &err, ft_session_pause_guest(w->primary, WAIT_SHORT_MS, &err));
	if (r == 0) {
		CHECK(sim_is_paused(w->primary_sim), "the operator paused the guest, but it runs");
		steps = sim_steps(w->primary_sim);
		sleep_ms(20);
		CHECK(sim_steps(w->primary_sim) == steps, "the operator paused the guest, but it goes on");
	}
	if (w->fault->in_hold && w->fault->op == SIM_OP_RESUME && w->fault->persistent)
		disarm(w); /* else he cannot have it back */
	r = CALL(CALL_MS + WAIT_LONG_MS, &err, ft_session_resume_guest(w->primary, WAIT_LONG_MS, &err));
	if (r) /* the VMM refused once */
		r = CALL(CALL_MS + WAIT_LONG_MS, &err, ft_session_resume_guest(w->primary, WAIT_LONG_MS, &err));
	CHECK(r == 0, "the guest cannot be had back: %s", err.msg);
	check_guest_runs(w, "after it was paused and resumed");
	sim_forget_pauses(w->primary_sim);
}

/* ---- the end: the primary is lost ---- */

static bool output_free(enum ft_state state)
{
	return state == FT_STATE_IDLE || state == FT_STATE_CONNECTING || state == FT_STATE_SYNCING ||
	       state == FT_STATE_ALONE;
}

static void check_one_runner(struct world *w)
{
	enum ft_state a = state_of(w->primary), b = state_of(w->secondary);

	CHECK(!(output_free(a) && b == FT_STATE_ACTIVE),
	      "two run with their output free: the primary is %s, the secondary %s", ft_state_name(a),
	      ft_state_name(b));
}

static void check_promoted(struct world *w, const struct ft_failover_result *res)
{
	struct ft_error err = { 0 };
	uint64_t epoch;

	CHECK_OK(sim_same_state(w->primary_sim, w->secondary_sim, &epoch, &err), err);
	CHECK(epoch == res->epoch, "failover says epoch %" PRIu64 ", the device state is of epoch %" PRIu64, res->epoch,
	      epoch);
	CHECK_OK(sim_verify(w->secondary_sim, NULL, NULL, &err), err);
	CHECK(sim_wait_steps(w->secondary_sim, 1, GUEST_MS) == 0, "the promoted guest does not run");
}

/* The standby will not do it: the operator lets the primary go on. */
static void go_on_alone(struct world *w)
{
	struct ft_error err = { 0 };

	CHECK_OK(ft_session_set(w->primary, "on-loss", "continue", &err), err);
	CHECK(wait_state(w->primary, STATE(ALONE) | STATE(CONNECTING) | STATE(SYNCING) | STATE(PROTECTED),
			 WAIT_LONG_MS),
	      "the operator wants the primary to go on alone, but it stays %s", ft_state_name(state_of(w->primary)));
	check_guest_runs(w, "though there is no other");
	CHECK_OK(sim_verify(w->primary_sim, NULL, NULL, &err), err);
}

static void fence(struct world *w)
{
	uint64_t deadline = deadline_in_ms(WAIT_LONG_MS);

	proxy_set_mode(w->proxy, PROXY_PASS);
	if (!wait_state(w->primary, STATE(FENCED), patience(w))) {
		CHECK(w->fault->persistent, "the other side runs, but the primary stays %s",
		      ft_state_name(state_of(w->primary)));
		check_one_runner(w);
		disarm(w);
		CHECK(wait_state(w->primary, STATE(FENCED), WAIT_LONG_MS),
		      "the other side runs, but the primary stays %s", ft_state_name(state_of(w->primary)));
	}
	while (!sim_is_paused(w->primary_sim)) {
		CHECK(now_ns() < deadline, "fenced, but the guest runs");
		sleep_ms(1);
	}
}

static void step_kill(struct world *w)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	int r;

	proxy_set_mode(w->proxy, PROXY_REFUSE);
	CHECK(wait_state(w->primary, STATE(SUSPECT) | STATE(CONNECTING), WAIT_LONG_MS),
	      "the link is cut, but the primary stays %s", ft_state_name(state_of(w->primary)));
	CHECK(wait_state(w->secondary, STATE(STANDBY_SUSPECT) | STATE(WAITING), WAIT_LONG_MS),
	      "the link is cut, but the secondary stays %s", ft_state_name(state_of(w->secondary)));
	check_guest_runs(w, "after the link was cut");
	r = CALL(CALL_MS, &err, ft_session_failover(w->secondary, 0, &res, &err));
	CHECK((r == 0) == (res.outcome == FT_FAILOVER_DONE), "failover: %d, outcome %d", r, (int)res.outcome);
	check_one_runner(w);
	if (r) {
		CHECK(res.outcome == FT_FAILOVER_NO_IMAGE || res.outcome == FT_FAILOVER_FAILED,
		      "failover: outcome %d: %s", (int)res.outcome, err.msg);
		go_on_alone(w);
		return;
	}
	w->report->promoted = true;
	check_promoted(w, &res);
	fence(w);
	check_one_runner(w);
	CHECK_OK(sim_check_promise(sim_get_client(w->primary_sim), w->secondary_sim, &err), err);
}

/* ---- the other end: protection is stopped, and then the primary dies ---- */

static void step_stop(struct world *w)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	bool complete = w->report->protected && state_of(w->secondary) == FT_STATE_STANDBY;
	int r;

	CALL_VOID(CALL_MS, ft_session_stop(w->primary));
	CHECK(state_of(w->primary) == FT_STATE_IDLE, "stopped, but %s", ft_state_name(state_of(w->primary)));
	check_guest_runs(w, "after the protection was stopped");
	CHECK(sim_output_held(w->primary_sim) == 0, "protection was stopped, but output is held");
	CHECK(wait_state(w->secondary, STATE(WAITING) | STATE(STANDBY_SUSPECT), WAIT_LONG_MS),
	      "the primary left, but the secondary stays %s", ft_state_name(state_of(w->secondary)));
	sim_stop(w->primary_sim);
	r = CALL(CALL_MS, &err, ft_session_failover(w->secondary, FT_FAILOVER_FORCE, &res, &err));
	if (r == 0) {
		w->report->promoted = true;
		check_promoted(w, &res);
	}
	CHECK(r == 0 || !complete || res.outcome == FT_FAILOVER_FAILED,
	      "there was a complete image, but a forced failover says: %s", err.msg);
}

/* ---- one run ---- */

static void close_all(struct world *w)
{
	struct ft_error err = { 0 };

	CHECK_OK(sim_attach(w->primary_sim, NULL, &err), err);
	CHECK_OK(sim_attach(w->secondary_sim, NULL, &err), err);
	if (w->control)
		ft_control_set_session(w->control, NULL);
	CALL_VOID(CALL_MS, ft_control_close(w->control));
	CALL_VOID(CALL_MS, ft_session_close(w->primary));
	CALL_VOID(CALL_MS, ft_session_close(w->secondary));
}

static void tell(struct world *w)
{
	const char *const *names = faultpoint_names();

	for (size_t i = 0; names[i]; i++)
		w->report->hits[i] = faultpoint_hits_of(names[i]);
	w->report->all_hits = faultpoint_hits();
	w->report->injected = faultpoint_failed() != NULL;
}

static void life(struct world *w)
{
	step_output(w);
	step_secondary(w);
	step_primary(w);
	step_control(w);
	if (w->primary && w->secondary) {
		step_protect(w);
		step_checkpoint(w);
		step_settings(w);
		step_ask(w);
		step_hold(w);
		if (w->fault->way == WAY_TCP)
			step_kill(w);
		else
			step_stop(w);
	} else if (w->primary) {
		check_guest_runs(w, "though the secondary is away");
	}
	CHECK(!atomic_load(&w->differs), "an applied image differs from the oracle: %s", w->difference.msg);
}

static void no_log(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user, (void)level, (void)module, (void)msg;
}

static void log_to_stderr(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	uint64_t us = now_ns() / 1000;

	(void)user, (void)level;
	fprintf(stderr, "%" PRIu64 ".%06" PRIu64 " %s: %s\n", us / 1000000 % 1000, us % 1000000, module, msg);
}

static void check_fabric(void)
{
	const char *text;

	CHECK(fabric_violations(&text) == 0, "a rule of verbs was broken: %s", text);
	CHECK(fabric_all_gone(), "left in the fabric: %s", fabric_live_text());
	fabric_stop();
}

static void run(const struct fault *f, struct report *report, bool verbose)
{
	struct world w = { .fault = f, .report = report };

	make_machines(&w);
	if (f->way == WAY_RDMA) {
		fabric_start(NULL);
		fabric_random(f->nth + 1, 5);
	}
	arm(&w);
	arm_op(&w, false);
	ft_log_set(verbose ? log_to_stderr : no_log, NULL, FT_LOG_DEBUG);
	life(&w);
	tell(&w);
	disarm(&w);
	close_all(&w);
	if (f->way == WAY_RDMA)
		check_fabric();
	if (!w.report->promoted || f->way != WAY_TCP)
		CHECK(!sim_is_paused(w.primary_sim), "the guest is left paused at the end");
	drop_machines(&w);
}

/* ---- many runs ---- */

struct job {
	struct fault fault;
	pid_t pid; /* 0: free */
	uint64_t deadline_ns;
	struct report *report; /* shared */
};

static struct {
	struct job job[JOBS];
	unsigned nr_runs, nr_failed, nr_injected, nr_once, nr_promoted;
	bool last_injected;
} board;

static void print_fault(const struct fault *f)
{
	printf("--way %s", way_names[f->way]);
	if (f->op != SIM_OP_COUNT)
		printf(" --op %s%s", f->in_hold ? "hold:" : "", sim_op_name(f->op));
	if (f->only)
		printf(" --only %s", f->only);
	printf(" --nth %" PRIu64 "%s\n", f->nth, f->persistent ? " --persistent" : "");
}

static void ended(struct job *j, int status, bool stuck)
{
	bool bad = stuck || !WIFEXITED(status) || WEXITSTATUS(status) != 0;

	board.nr_runs++;
	board.nr_injected += j->report->injected;
	board.last_injected = j->report->injected;
	if (j->fault.nth && !j->fault.persistent && j->fault.way == WAY_TCP && j->fault.op == SIM_OP_COUNT && !bad) {
		board.nr_once++;
		board.nr_promoted += j->report->promoted;
	}
	if (bad) {
		board.nr_failed++;
		printf("FAILED (%s %d), repeat with: stress_faults ",
		       stuck                 ? "stuck, killed with"
		       : WIFSIGNALED(status) ? "signal"
					     : "exit status",
		       stuck                 ? SIGABRT
		       : WIFSIGNALED(status) ? WTERMSIG(status)
					     : WEXITSTATUS(status));
		print_fault(&j->fault);
		if (stuck)
			printf("  where it is stuck: repeat it, then gdb -p PID -batch -ex 'thread apply all bt'\n");
	}
	j->pid = 0;
}

static void look_at(struct job *j, bool may_kill)
{
	int status = 0;
	pid_t r = j->pid ? waitpid(j->pid, &status, WNOHANG) : 0;

	if (r == j->pid && j->pid) {
		ended(j, status, false);
	} else if (j->pid && may_kill && now_ns() > j->deadline_ns) {
		kill(j->pid, SIGABRT);
		waitpid(j->pid, &status, 0);
		ended(j, status, true);
	}
}

static struct job *free_job(void)
{
	for (;;) {
		for (unsigned i = 0; i < JOBS; i++) {
			look_at(&board.job[i], true);
			if (!board.job[i].pid)
				return &board.job[i];
		}
		sleep_ms(2);
	}
}

static void wait_all(void)
{
	for (unsigned i = 0; i < JOBS; i++) {
		while (board.job[i].pid) {
			look_at(&board.job[i], true);
			sleep_ms(1);
		}
	}
}

static struct job *begin(const struct fault *f)
{
	struct job *j = free_job();

	j->fault = *f;
	memset(j->report, 0, sizeof(*j->report));
	j->deadline_ns = deadline_in_ms(RUN_S * 1000);
	fflush(stdout);
	j->pid = fork();
	CHECK(j->pid >= 0, "fork: %s", strerror(errno));
	if (j->pid == 0) {
		run(f, j->report, false);
		exit(0); /* leaks are looked for here */
	}
	return j;
}

static void open_board(void)
{
	for (unsigned i = 0; i < JOBS; i++) {
		board.job[i].report =
			mmap(NULL, sizeof(struct report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(board.job[i].report != MAP_FAILED, "mmap: %s", strerror(errno));
	}
}

/* Nothing fails: how often is each point hit?  Each of the list must be, in one of the ways. */
static void count(struct report out[WAY_COUNT])
{
	const char *const *names = faultpoint_names();

	for (unsigned way = 0; way < WAY_COUNT; way++) {
		struct fault f = { .way = way, .op = SIM_OP_COUNT };
		struct job *j = begin(&f);

		wait_all();
		out[way] = *j->report;
		CHECK(board.nr_failed == 0 && out[way].promoted, "the scenario fails without a fault");
	}
	for (size_t i = 0; names[i] && HAVE_POINTS; i++)
		CHECK(out[WAY_TCP].hits[i] + out[WAY_LOOPBACK].hits[i] + out[WAY_RDMA].hits[i] > 0,
		      "fault point %s is never hit", names[i]);
}

/* All of the first, then ever larger steps: what is hit hundreds of times is the same place in the loop of the epochs. */
static uint64_t next_hit(uint64_t nth, bool persistent, bool all)
{
	if (!all)
		return nth * (persistent ? 32 : 8);
	return nth + nth / (persistent ? 2 : 8) + 1;
}

/* The hits of one name, as many as there are; with @all also beyond, until nothing failed. */
static void one_name(enum way way, const char *name, uint64_t hits, bool persistent, bool all)
{
	struct fault f = { .way = way, .only = name, .op = SIM_OP_COUNT, .persistent = persistent };

	for (f.nth = 1; f.nth <= hits; f.nth = next_hit(f.nth, persistent, all))
		begin(&f);
	if (!all)
		return;
	do { /* the order of things differs from run to run: until one meets no fault */
		begin(&f);
		wait_all();
		f.nth = next_hit(f.nth, persistent, all);
	} while (board.last_injected);
}

/* The ways that come to point @i take turns at what not each of them does. */
static bool is_turn(const struct report counted[WAY_COUNT], unsigned way, size_t i)
{
	unsigned turn = (unsigned)(i / 2) % WAY_COUNT;

	for (unsigned n = 0; n < WAY_COUNT && !counted[turn].hits[i]; n++)
		turn = (turn + 1) % WAY_COUNT;
	return way == turn;
}

static void points(const struct report counted[WAY_COUNT], bool all)
{
	const char *const *names = faultpoint_names();

	for (unsigned way = 0; way < WAY_COUNT; way++) {
		struct fault f = { .way = way, .op = SIM_OP_COUNT, .persistent = true };
		uint64_t step = counted[way].all_hits / (all ? 60 : ONE_WAY ? 2 : 6) + 1;

		for (size_t i = 0; names[i]; i++) {
			bool turn = is_turn(counted, way, i);
			uint64_t hits = counted[way].hits[i], first = hits > 0;

			if (!ONE_WAY || (turn && i % 2 == 0))
				one_name(way, names[i], turn || all ? hits : first, false, all);
			if (all || (turn && (!ONE_WAY || i % 2 == 1)))
				one_name(way, names[i], hits, true, all);
		}
		for (f.nth = 1; f.nth <= counted[way].all_hits; f.nth += step) /* everything fails from there on */
			begin(&f);
	}
}

static void ops(bool all)
{
	for (enum sim_op op = 0; op < SIM_OP_COUNT; op++) {
		struct fault f = { .way = WAY_TCP, .op = op };

		for (f.nth = 1; f.nth <= (all ? 8 : 2 - ONE_WAY); f.nth++) {
			f.persistent = false;
			if (!ONE_WAY || op % 2 == 0)
				begin(&f);
			f.persistent = true;
			if (!ONE_WAY || op % 2 == 1)
				begin(&f);
		}
	}
	for (unsigned i = 0; i < (ONE_WAY ? 4 : 12); i++) {
		struct fault f = { .way = WAY_TCP,
				   .op = i % 2 ? SIM_OP_RESUME : SIM_OP_PAUSE,
				   .in_hold = true,
				   .nth = 1 + i / 4,
				   .persistent = i / 2 % 2 };

		begin(&f);
	}
}

static int many(bool all)
{
	static struct report counted[WAY_COUNT];
	uint64_t begun = now_ns();

	open_board();
	count(counted);
	ops(all);
	if (HAVE_POINTS)
		points(counted, all);
	wait_all();
	printf("%u runs in %" PRIu64
	       " s, %u of them with a fault, %u failed; %u of %u with one fault went on to a failover that was done\n",
	       board.nr_runs, (now_ns() - begun) / NS_PER_S, board.nr_injected, board.nr_failed, board.nr_promoted,
	       board.nr_once);
	CHECK(!HAVE_POINTS || board.nr_injected > 100, "hardly anything failed");
	CHECK(!HAVE_POINTS || board.nr_failed || board.nr_promoted * 2 > board.nr_once,
	      "too few runs came as far as a failover");
	return board.nr_failed ? 1 : 0;
}

/* ---- command line ---- */

static const char *known_name(const char *name)
{
	const char *const *names = faultpoint_names();

	for (size_t i = 0; names[i]; i++)
		if (strcmp(names[i], name) == 0)
			return names[i];
	DIE("there is no fault point %s", name);
}

static enum way known_way(const char *name)
{
	for (unsigned way = 0; way < WAY_COUNT; way++)
		if (strcmp(way_names[way], name) == 0)
			return way;
	DIE("there is no way %s", name);
}

static void parse_op(struct fault *f, const char *name)
{
	f->in_hold = strncmp(name, "hold:", 5) == 0;
	name += f->in_hold ? 5 : 0;
	for (f->op = 0; f->op < SIM_OP_COUNT; f->op++)
		if (strcmp(sim_op_name(f->op), name) == 0)
			return;
	DIE("there is no op %s", name);
}

int main(int argc, char **argv)
{
	struct fault f = { .op = SIM_OP_COUNT };
	struct report report = { 0 };
	bool all = false, single = false;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

		single |= strcmp(arg, "--all") != 0;
		if (strcmp(arg, "--all") == 0)
			all = true;
		else if (strcmp(arg, "--persistent") == 0)
			f.persistent = true;
		else if (strcmp(arg, "--nth") == 0)
			f.nth = strtoull(argv[++i], NULL, 10);
		else if (strcmp(arg, "--only") == 0)
			f.only = known_name(argv[++i]);
		else if (strcmp(arg, "--op") == 0)
			parse_op(&f, argv[++i]);
		else if (strcmp(arg, "--way") == 0)
			f.way = known_way(value), i++;
		else
			DIE("what is %s?  The head of stress_faults.c tells", arg);
	}
	if (!single)
		return many(all);
	run(&f, &report, true);
	printf("injected %d, protected %d, promoted %d\n", report.injected, report.protected, report.promoted);
	return 0;
}
