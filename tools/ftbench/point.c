/* SPDX-License-Identifier: MIT */
/* point.c - one measured point, of a simulated guest unless the point says what measures it (guest.c, peers.c).
 *
 *   the user's process          only waits: one thread, poll
 *     +- worker                 the guest and the primary; measures, and writes the result into a pipe
 *          +- secondary         the standby, so that memory and processor time of the sides can be told apart
 *
 * The worker and the secondary are forked before either has a second thread.  They talk over a socket pair: one octet asks, one reply
 * answers.  With loopback, which lives in one process, the secondary is in the worker, and its memory is not told apart.
 * A child ends with its parent (PR_SET_PDEATHSIG), so nothing is left behind when the user interrupts. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "say.h"
#include "sim.h"

#define SAMPLES_MAX 65536u
#define WAIT_MS 120000u
#define SETTLE_EPOCHS 4u
#define GIVE_UP_S 300.0
#define GUEST_S 10.0 /* a real one boots, and is copied */

struct sample {
	uint64_t epoch, begun_ns, cut_ns, resumed_ns, acked_ns, released_ns;
};

struct side { /* what the secondary answers */
	char address[128];
	uint16_t limit_port;
	struct usage usage;
	struct ft_stats stats;
	struct ft_failover_result failover;
	int ret;
	struct ft_error err;
};

struct bench { /* of the worker */
	const struct point *p;
	struct sim_config cfg;
	struct sim *sim, *standby_sim;
	struct ft_session *primary, *standby; /* standby: loopback only */
	int peer;
	struct result *out;
	/* epoch thread, but for acked_ns, released_ns and nr */
	struct sample now, *sample;
	atomic_uint nr;
	double memcpy_page_ns;
	uint64_t resident_before; /* the session began */
};

/* ---- the sides' sessions ---- */

static void slow_apply(void *user, const struct ft_event *ev)
{
	const struct point *p = user;

	if (ev->type == FT_EVENT_EPOCH && p->slow_us)
		usleep(p->slow_us);
}

static int apply_set(struct ft_config *cfg, const struct point *p, unsigned role, struct ft_error *err)
{
	static char copy[SET_TEXT]; /* string settings are kept by pointer */
	size_t n;
	const struct ft_option *o = ft_options(&n);
	char *rest, *item;
	int ret = 0;

	snprintf(copy, sizeof(copy), "%s", p->set);
	for (item = strtok_r(copy, " ", &rest); item && !ret; item = strtok_r(NULL, " ", &rest)) {
		char *value = strchr(item, '=');

		*value++ = '\0';
		for (size_t i = 0; i < n; i++)
			if (strcmp(o[i].name, item) == 0 && (o[i].flags & role))
				ret = ft_config_set(cfg, item, value, err);
	}
	return ret;
}

int point_check_set(const char *name, const char *value, struct ft_error *err)
{
	static const char *const ours[] = { "interval", "peer", "listen", "identity", "name" };
	struct ft_config cfg;

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (strcmp(name, ours[i]) == 0)
			return say(err, -EINVAL, "%s is ftbench's own%s", name, i ? "" : ": use --interval");
	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	return ft_config_set(&cfg, name, value, err);
}

static void with_fault(const struct point *p, bool is_primary, const char *where, char *buf, size_t size)
{
	char spec[96] = "";
	size_t n = 0;

	if (p->link_limit && is_primary)
		n += (size_t)snprintf(spec, sizeof(spec), "slow=%llu", (unsigned long long)p->link_limit);
	if (p->link_delay_ms)
		snprintf(spec + n, sizeof(spec) - n, "%sdelay=%u", n ? "," : "", p->link_delay_ms);
	snprintf(buf, size, spec[0] ? "fault(%s)/%s" : "%s%s", spec, where);
}

static int open_standby(const struct point *p, const struct sim_config *base, struct sim **sim, struct ft_session **s,
			struct side *side, struct ft_error *err)
{
	static char where[120], uri[320];
	struct sim_config sc = *base;
	struct ft_config cfg;
	int ret;

	sc.on_event = slow_apply;
	sc.on_event_user = (void *)(uintptr_t)p;
	if (!strcmp(p->transport, "loopback"))
		snprintf(where, sizeof(where), "loopback:ftbench");
	else
		snprintf(where, sizeof(where), "%s%s:0", strcmp(p->transport, "rdma") ? "" : "rdma:", p->address);
	with_fault(p, false, where, uri, sizeof(uri));
	snprintf(side->address, sizeof(side->address), "%s", where);
	ret = sim_create(sim, &sc, true, err);
	if (ret)
		return ret;
	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	cfg.heartbeat_misses = 100;
	ret = apply_set(&cfg, p, FT_OPT_SECONDARY, err);
	cfg.listen = uri;
	cfg.identity = sim_identity(*sim);
	if (!ret)
		ret = ft_session_open(s, &cfg, sim_ops_of(*sim), *sim, err);
	if (!ret)
		ret = sim_attach(*sim, *s, err);
	if (!ret)
		ret = ft_session_start(*s, err);
	if (!ret && strncmp(where, "loopback", 8))
		ret = ft_session_address(*s, side->address, sizeof(side->address));
	return ret;
}

static void failover(struct sim *sim, struct ft_session *s, struct side *side)
{
	side->ret = ft_session_failover(s, FT_FAILOVER_FORCE, &side->failover, &side->err);
	if (!side->ret)
		side->ret = sim_verify(sim, NULL, NULL, &side->err);
}

/* ---- the secondary's process ---- */

static void answer(int fd, const struct side *side)
{
	if (write(fd, side, sizeof(*side)) != (ssize_t)sizeof(*side))
		_exit(1);
}

static void secondary_main(const struct point *p, const struct sim_config *sc, int fd)
{
	struct side *side = calloc(1, sizeof(*side));
	struct ft_session *s = NULL;
	struct sim *sim = NULL;
	int listener;
	char ask;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!side)
		_exit(1);
	listener = limit_tcp_listen(&side->limit_port);
	answer(fd, side);
	if (listener >= 0) {
		limit_tcp_serve(listener);
		close(listener);
	}
	while (read(fd, &ask, 1) == 1) {
		if (ask == 'o')
			side->ret = open_standby(p, sc, &sim, &s, side, &side->err);
		if (ask == 'u') {
			usage_read(&side->usage);
			ft_session_stats(s, &side->stats);
		}
		if (ask == 'f')
			failover(sim, s, side);
		answer(fd, side);
	}
	_exit(0);
}

static int hear(struct bench *b, struct side *side, struct ft_error *err)
{
	uint8_t *to = (uint8_t *)side;

	for (size_t at = 0; at < sizeof(*side);) {
		ssize_t n = read(b->peer, to + at, sizeof(*side) - at);

		if (n <= 0)
			return say(err, -EIO, "the secondary's process has ended");
		at += (size_t)n;
	}
	if (side->ret)
		*err = side->err;
	return side->ret;
}

/* Ask the secondary, wherever it is: 'o'pen, 'u'sage, 'f'ailover. */
static int ask_side(struct bench *b, char what, struct side *side, struct ft_error *err)
{
	if (b->peer >= 0)
		return write(b->peer, &what, 1) == 1 ? hear(b, side, err)
						     : say(err, -EIO, "the secondary's process has ended");
	if (what == 'o')
		return open_standby(b->p, &b->cfg, &b->standby_sim, &b->standby, side, err);
	if (what == 'u') {
		usage_read(&side->usage);
		ft_session_stats(b->standby, &side->stats);
		return 0;
	}
	failover(b->standby_sim, b->standby, side);
	if (side->ret)
		*err = side->err;
	return side->ret;
}

/* ---- what is seen of each epoch ---- */

static struct bench *the_bench; /* the ops get the sim as their user */

static int see_pause(void *user, struct ft_error *err)
{
	the_bench->now = (struct sample){ .begun_ns = mono_ns() };
	return sim_ops()->pause(user, err);
}

static void see_cut(void *user, uint64_t epoch)
{
	the_bench->now.epoch = epoch;
	the_bench->now.cut_ns = mono_ns();
	sim_ops()->output_cut(user, epoch);
}

static int see_resume(void *user, struct ft_error *err)
{
	unsigned nr = atomic_load(&the_bench->nr);
	int r = sim_ops()->resume(user, err);

	the_bench->now.resumed_ns = sim_resumed_ns(the_bench->sim);
	if (the_bench->now.epoch && nr < SAMPLES_MAX) {
		the_bench->sample[nr] = the_bench->now;
		atomic_store(&the_bench->nr, nr + 1);
	}
	return r;
}

static void see_release(void *user, uint64_t epoch)
{
	unsigned nr = atomic_load(&the_bench->nr);
	uint64_t now = mono_ns();

	for (unsigned i = nr; epoch != UINT64_MAX && i-- > 0 && nr - i < 64;) {
		struct sample *s = &the_bench->sample[i];

		if (s->epoch <= epoch && !s->released_ns)
			s->released_ns = now;
	}
	sim_ops()->output_release(user, epoch);
}

/* Acks come in order, some epochs behind: looked for from the end. */
static void see_event(void *user, const struct ft_event *ev)
{
	struct bench *b = user;
	unsigned nr = atomic_load(&b->nr);

	if (ev->type != FT_EVENT_EPOCH)
		return;
	for (unsigned i = nr; i-- > 0 && nr - i < 64;)
		if (b->sample[i].epoch == ev->epoch && !b->sample[i].acked_ns) {
			b->sample[i].acked_ns = mono_ns();
			return;
		}
}

static int open_primary(struct bench *b, const struct side *side, struct ft_error *err)
{
	static struct ft_vmm_ops ops;
	static char uri[320];
	struct ft_config cfg;
	int ret;

	ops = *sim_ops_of(b->sim);
	ops.pause = see_pause;
	ops.output_cut = see_cut;
	ops.output_release = see_release;
	ops.resume = see_resume;
	with_fault(b->p, true, side->address, uri, sizeof(uri));
	b->resident_before = usage_resident();
	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.heartbeat_misses = 100;
	cfg.output_cut = 0; /* an interval's figures are those of the interval; --set output-cut=on */
	ret = apply_set(&cfg, b->p, FT_OPT_PRIMARY, err);
	cfg.peer = uri;
	cfg.interval_ms = b->p->interval_ms;
	cfg.identity = sim_identity(b->sim);
	if (!ret)
		ret = ft_session_open(&b->primary, &cfg, &ops, b->sim, err);
	if (!ret)
		ret = sim_attach(b->sim, b->primary, err);
	return ret ? ret : ft_session_start(b->primary, err);
}

/* ---- measuring ---- */

static int take_look(struct bench *b, struct look *l, struct ft_error *err)
{
	static struct side side;
	int ret = ask_side(b, 'u', &side, err);

	l->side_usage = side.usage;
	l->side_stats = side.stats;
	usage_read(&l->usage);
	ft_session_stats(b->primary, &l->stats);
	l->ns = mono_ns();
	l->steps = sim_steps(b->sim);
	return ret;
}

static void most_seen(double *at, double v)
{
	*at = isnan(*at) ? v : fmax(*at, v);
}

/* Asked all the time that the guest writes. */
static void note_memory(struct bench *b, struct ft_status *st)
{
	double mib;

	ft_session_status(b->primary, st);
	mib = (double)st->memory_bytes / 1048576;
	most_seen(&b->out->v[FIG_ENGINE], mib);
	b->out->v[FIG_CAP] = (double)st->memory_cap_bytes / 1048576;
	if (b->peer >= 0) /* else the standby is in it */
		most_seen(&b->out->v[FIG_GROWN], ((double)usage_resident() - (double)b->resident_before) / 1048576);
}

static int still_protected(struct bench *b, struct ft_error *err)
{
	struct ft_status st;

	note_memory(b, &st);
	return st.state == FT_STATE_PROTECTED ? 0 : say(err, -EIO, "not protected any more: %s", st.reason);
}

static int settle(struct bench *b, struct ft_error *err)
{
	uint64_t end = mono_ns() + (uint64_t)WAIT_MS * 1000000, quiet = mono_ns();
	struct ft_status st;

	if (ft_session_wait(b->primary, 1u << FT_STATE_PROTECTED, WAIT_MS) < 0) {
		ft_session_status(b->primary, &st);
		return say(err, -ETIMEDOUT, "not protected: %s", st.reason);
	}
	quiet = mono_ns() + 200000000u;
	do {
		int ret = still_protected(b, err);

		if (ret || mono_ns() > end)
			return ret ? ret : say(err, -ETIMEDOUT, "no epoch is applied");
		sleep_ms(5);
		ft_session_status(b->primary, &st);
	} while (st.epoch_applied < SETTLE_EPOCHS || mono_ns() < quiet);
	return 0;
}

static void time_figures(struct bench *b, unsigned from, unsigned to)
{
	double *pause = calloc(to - from + 1, sizeof(double)), *safe = calloc(to - from + 1, sizeof(double));
	double *held = calloc(to - from + 1, sizeof(double));
	unsigned n = 0, k = 0, h = 0;

	for (unsigned i = from; pause && safe && held && i < to; i++) {
		const struct sample *s = &b->sample[i];

		pause[n++] = (double)(s->resumed_ns - s->begun_ns) / 1e3;
		if (s->acked_ns)
			safe[k++] = s->acked_ns > s->resumed_ns ? (double)(s->acked_ns - s->resumed_ns) / 1e3 : 0;
		if (s->released_ns)
			held[h++] = (double)(s->released_ns - s->cut_ns) / 1e6;
	}
	b->out->v[FIG_PAUSE_P50] = quantile(pause, n, 0.5);
	b->out->v[FIG_PAUSE_P99] = quantile(pause, n, 0.99);
	b->out->v[FIG_PAUSE_MAX] = quantile(pause, n, 1);
	b->out->v[FIG_SAFE_P50] = quantile(safe, k, 0.5);
	b->out->v[FIG_SAFE_P99] = quantile(safe, k, 0.99);
	b->out->v[FIG_HELD_P50] = quantile(held, h, 0.5);
	b->out->v[FIG_HELD_P99] = quantile(held, h, 0.99);
	free(pause);
	free(safe);
	free(held);
}

static void delay_figures(struct bench *b, const struct look *a, const struct look *z)
{
	struct sim_delivery *log = calloc(SAMPLES_MAX, sizeof(*log));
	double *ms = calloc(SAMPLES_MAX, sizeof(*ms));
	size_t n = log && ms ? sim_client_log(sim_get_client(b->sim), log, SAMPLES_MAX) : 0;
	unsigned k = 0;

	for (size_t i = 0; i < n; i++)
		if (log[i].message.sent_ns >= a->ns && log[i].time_ns <= z->ns)
			ms[k++] = (double)(log[i].time_ns - log[i].message.sent_ns) / 1e6;
	b->out->v[FIG_DELAY_P50] = quantile(ms, k, 0.5);
	b->out->v[FIG_DELAY_P99] = quantile(ms, k, 0.99);
	free(log);
	free(ms);
}

/* Of pages as the guest's are spread. */
static double sim_memcpy_ns(struct sim *s, uint64_t pages)
{
	const struct sim_config *c = sim_get_config(s);
	uint64_t all = c->region_bytes[0] / FT_PAGE_SIZE, set = c->working_set_pages ? c->working_set_pages : all;

	return limit_memcpy_ns(sim_memory(s, 0), set, all / set ? all / set : 1, pages);
}

static int measure_limits(struct bench *b, struct ft_error *err)
{
	uint64_t pages = b->p->is_idle || b->p->is_flood ? 1000 : b->p->pages, bytes = pages * FT_PAGE_SIZE;
	double *v = b->out->v;
	struct side side;
	int ret;

	if (bytes < 8u << 20)
		bytes = 8u << 20;
	b->memcpy_page_ns = b->p->is_idle ? NAN : sim_memcpy_ns(b->sim, pages) / (double)pages;
	if (b->peer < 0) {
		v[FIG_LINK] = limit_stream(bytes) / 1e6;
		return 0;
	}
	ret = hear(b, &side, err);
	if (!ret)
		ret = limit_tcp(side.limit_port, bytes, &v[FIG_LINK], &v[FIG_RTT]);
	if (ret)
		return say(err, ret, "plain TCP over 127.0.0.1: %s", strerror(-ret));
	v[FIG_LINK] /= 1e6;
	v[FIG_RTT] /= 1e3;
	if (b->p->link_limit)
		v[FIG_LINK] = fmin(v[FIG_LINK], (double)b->p->link_limit / 1e6);
	v[FIG_RTT] += b->p->link_delay_ms * 1e3; /* half of the most, in each direction */
	if (!strcmp(b->p->transport, "rdma"))
		v[FIG_LINK] = v[FIG_RTT] = NAN; /* plain TCP is not its limit */
	return 0;
}

/* Steps a second of the guest alone. */
static int measure_alone(struct bench *b, double *rate, struct ft_error *err)
{
	uint64_t steps, ns;
	int ret = sim_start(b->sim, err);

	if (ret)
		return ret;
	sleep_ms(100);
	steps = sim_steps(b->sim);
	ns = mono_ns();
	sleep_ms((unsigned)(fmax(b->p->seconds / 2, 0.3) * 1000));
	*rate = (double)(sim_steps(b->sim) - steps) * 1e9 / (double)(mono_ns() - ns);
	return 0;
}

static int end_with_failover(struct bench *b, struct side *side, struct ft_error *err)
{
	int ret = ask_side(b, 'f', side, err);

	look_failover(b->out->v, &side->failover);
	return ret;
}

static void cost_figures(struct bench *b, const struct look *a, const struct look *z)
{
	look_costs(b->out->v, a, z);
	b->out->v[FIG_GUEST] = (double)b->cfg.prefill_pages * FT_PAGE_SIZE / 1048576;
	if (b->peer >= 0)
		look_side_memory(b->out->v, z);
}

/* Nothing is asked of epochs, which there may be none of: for how long there is protection, and what memory is used. */
static int measure_dropping(struct bench *b, struct ft_error *err)
{
	static struct look a, z;
	static struct side side;
	unsigned looks = 0, protected = 0;
	struct ft_status st;
	double alone = 0;
	int ret = measure_limits(b, err);

	ret = ret ? ret : measure_alone(b, &alone, err);
	ret = ret ? ret : ask_side(b, 'o', &side, err);
	ret = ret ? ret : open_primary(b, &side, err);
	ret = ret ? ret : take_look(b, &a, err);
	for (uint64_t end = mono_ns() + (uint64_t)(b->p->seconds * 1e9); !ret && mono_ns() < end; sleep_ms(5)) {
		note_memory(b, &st);
		looks++;
		protected += st.state == FT_STATE_PROTECTED;
	}
	ret = ret ? ret : take_look(b, &z, err);
	if (ret)
		return ret;
	cost_figures(b, &a, &z);
	b->out->v[FIG_PROTECTED] = 100.0 * protected / (looks ? looks : 1);
	look_work(b->out->v, &a, &z, alone);
	return 0;
}

static int measure(struct bench *b, struct ft_error *err)
{
	static struct look a, z;
	static struct side side;
	double alone = 0;
	unsigned from, to;
	int ret = measure_limits(b, err);

	if (!ret && !b->p->is_idle)
		ret = measure_alone(b, &alone, err);
	if (!ret)
		ret = ask_side(b, 'o', &side, err);
	if (!ret)
		ret = open_primary(b, &side, err);
	if (!ret)
		ret = settle(b, err);
	if (!ret)
		ret = take_look(b, &a, err);
	from = atomic_load(&b->nr);
	for (uint64_t end = a.ns + (uint64_t)(b->p->seconds * 1e9); !ret && mono_ns() < end; sleep_ms(20))
		ret = still_protected(b, err);
	to = atomic_load(&b->nr);
	if (!ret)
		ret = take_look(b, &z, err);
	if (ret)
		return ret;
	if (to == from)
		return say(err, -ENODATA, "no epoch of %u ms ended in %.1f s: give it more --seconds",
			   b->p->interval_ms, b->p->seconds);
	time_figures(b, from, to);
	look_phases(b->out->v, &a, &z);
	look_limits(b->out->v, b->memcpy_page_ns);
	delay_figures(b, &a, &z);
	b->out->v[FIG_PROTECTED] = 100; /* else it has failed */
	cost_figures(b, &a, &z);
	if (!b->p->is_idle)
		look_work(b->out->v, &a, &z, alone);
	return b->p->no_failover ? 0 : end_with_failover(b, &side, err);
}

/* The guest writes `pages` in the time of an interval and computes in between, as fast as its processors go. */
static void configure_guest(struct sim_config *c, const struct point *p)
{
	uint64_t all = p->guest_bytes / FT_PAGE_SIZE;
	double rate = (double)p->pages * 1000 / p->interval_ms, step_s = p->cpus / fmax(rate, 1) - 0.6e-6;

	sim_config_init(c);
	c->region_bytes[0] = p->guest_bytes;
	c->nr_cpus = p->cpus;
	c->rate = 0;
	c->output_cap_bytes = 16u << 20;
	c->output_every = (uint64_t)fmax(rate / 500, 1);
	if (sim_pattern_of(p->pattern, &c->pattern))
		c->pattern = SIM_UNIFORM;
	if (p->is_idle) {
		c->output_every = 0;
		return;
	}
	c->working_set_pages = p->is_flood || 4 * p->pages > all ? all : 4 * p->pages;
	c->prefill_pages = c->working_set_pages;
	if (p->is_flood)
		c->output_every = 10000;
	else if (step_s > 0)
		c->work_per_step = (uint64_t)(step_s * (double)sim_work_rate());
}

struct reply { /* of the worker */
	int ret;
	struct ft_error err;
	struct result r;
};

static void measure_sim(const struct point *p, struct reply *reply)
{
	struct bench *b = calloc(1, sizeof(*b));
	int pair[2] = { -1, -1 };

	if (!b || !(b->sample = calloc(SAMPLES_MAX, sizeof(*b->sample))))
		_exit(1);
	b->p = p;
	b->out = &reply->r;
	b->peer = -1;
	configure_guest(&b->cfg, p);
	if (strcmp(p->transport, "loopback")) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			_exit(1);
		if (fork() == 0) {
			close(pair[0]);
			secondary_main(p, &b->cfg, pair[1]);
		}
		close(pair[1]);
		b->peer = pair[0];
	}
	the_bench = b;
	b->cfg.on_event = see_event;
	b->cfg.on_event_user = b;
	reply->ret = sim_create(&b->sim, &b->cfg, false, &reply->err);
	b->cfg.on_event = NULL;
	if (!reply->ret)
		reply->ret = p->may_drop ? measure_dropping(b, &reply->err) : measure(b, &reply->err);
}

static void worker_main(const struct point *p, int out)
{
	struct reply reply = { 0 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < FIG_COUNT; i++)
		reply.r.v[i] = NAN;
	if (p->measure)
		reply.ret = p->measure(p, reply.r.v, &reply.err);
	else
		measure_sim(p, &reply);
	if (write(out, &reply, sizeof(reply)) < 0)
		_exit(1);
	_exit(0); /* the sessions' threads end with the process; the secondary too */
}

double point_expected_s(const struct point *p)
{
	if (p->measure)
		return p->seconds * 1.5 + GUEST_S;
	return p->seconds * 1.5 + 1.5 + (SETTLE_EPOCHS * p->interval_ms) / 1000.0;
}

int point_run(const struct point *p, struct result *out, void (*tick)(void *user, double s), void *user,
	      struct ft_error *err)
{
	struct reply reply;
	uint64_t begun = mono_ns();
	int fd[2], status, ret;
	ssize_t n = 0;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return say(err, -errno, "pipe: %s", strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(fd[0]);
		worker_main(p, fd[1]);
	}
	close(fd[1]);
	do {
		struct pollfd pf = { .fd = fd[0], .events = POLLIN };
		double s = (double)(mono_ns() - begun) / 1e9;

		ret = poll(&pf, 1, 200);
		if (tick)
			tick(user, s);
		if (s > GIVE_UP_S + 3 * p->seconds)
			break;
	} while (ret == 0 || (ret < 0 && errno == EINTR));
	if (ret > 0)
		n = read(fd[0], &reply, sizeof(reply));
	close(fd[0]);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	if (n != (ssize_t)sizeof(reply))
		return say(err, -EIO, "the process that measures has ended, or hangs");
	*err = reply.err;
	*out = reply.r;
	return reply.ret;
}
