/* SPDX-License-Identifier: MIT */
/* sim.c - the guest's threads, its life, and what tests look at (sim.h has the whole idea; ops.c is what libft calls).
 *
 * One thread a vCPU.  It takes the lock only between bursts of steps; a vCPU that waits (for its rate, for room in the output
 * queue, for the guest to be resumed) counts as parked, so a pause waits only for those in a burst, which look at `halt` after
 * each step.
 * Lock order: sim->lock, then the output queue's own, then the client's.  session_lock nests in nothing. */
#include "sim.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "guest.h"
#include "say.h"
#include "sim_private.h"

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define TICK_NS NS_PER_MS            /* of a vCPU with a rate, or one that waits for the output queue */
#define CATCH_UP_NS (20 * NS_PER_MS) /* a vCPU that was held up makes up for that much at most */

uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

void sleep_ns(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* ---- names ---- */

static const char *const pattern_names[SIM_PATTERN_COUNT] = {
	[SIM_UNIFORM] = "uniform", [SIM_HOT] = "hot",   [SIM_SEQUENTIAL] = "sequential",
	[SIM_SPARSE] = "sparse",   [SIM_ZERO] = "zero", [SIM_REWRITE] = "rewrite",
	[SIM_SCATTER] = "scatter", [SIM_FLIP] = "flip", [SIM_MIXED] = "mixed",
};

const char *sim_pattern_name(enum sim_pattern p)
{
	return (unsigned)p < SIM_PATTERN_COUNT ? pattern_names[p] : "?";
}

int sim_pattern_of(const char *name, enum sim_pattern *out)
{
	for (unsigned i = 0; i < SIM_PATTERN_COUNT; i++) {
		if (strcmp(name, pattern_names[i]) == 0) {
			*out = (enum sim_pattern)i;
			return 0;
		}
	}
	return -EINVAL;
}

static const char *const op_names[SIM_OP_COUNT] = {
	[SIM_OP_TRACK_START] = "track-start",
	[SIM_OP_COLLECT_PRESENT] = "collect-present",
	[SIM_OP_COLLECT_DIRTY] = "collect-dirty",
	[SIM_OP_PAUSE] = "pause",
	[SIM_OP_SAVE_STATE] = "save-state",
	[SIM_OP_RESUME] = "resume",
	[SIM_OP_LOAD_STATE] = "load-state",
	[SIM_OP_ACTIVATE] = "activate",
	[SIM_OP_SIDE_READ] = "side-read",
	[SIM_OP_SIDE_BEGIN] = "side-begin",
	[SIM_OP_SIDE_WRITE] = "side-write",
	[SIM_OP_SIDE_COMMIT] = "side-commit",
	[SIM_OP_READY] = "ready",
};

const char *sim_op_name(enum sim_op op)
{
	return (unsigned)op < SIM_OP_COUNT ? op_names[op] : "?";
}

/* ---- vCPUs ---- */

static void mark(struct sim *s, struct guest_page p)
{
	uint64_t page = s->track_first[p.region] + p.index;

	/* present before dirty: whoever misses the first collects the second (op_track_start, op_collect_present) */
	if (!track_test(s->present, page))
		track_mark(s->present, page);
	track_mark(s->dirty, page);
}

/* The write hook, on the vCPU's thread. */
static void before_write(void *user, uint32_t region, uint64_t index)
{
	struct sim *s = user;
	struct ft_session *session = atomic_load_explicit(&s->hook, memory_order_acquire);
	uint64_t every = atomic_load_explicit(&s->skip_every, memory_order_relaxed);

	if (!session || (every && atomic_fetch_add(&s->writes_told, 1) % every == 0))
		return;
	ft_session_write_begin(session, region, index, 1);
}

static void want_cut(struct sim *s)
{
	pthread_mutex_lock(&s->session_lock);
	if (s->session)
		ft_session_cut(s->session);
	pthread_mutex_unlock(&s->session_lock);
}

/* False: the output queue is full, the vCPU cannot go on. */
static bool send_due(struct sim *s, struct runner *r)
{
	while (guest_message_due(s->guest, r->cpu)) {
		struct sim_message m = guest_message(s->guest, r->cpu);

		m.sent_ns = clock_ns();
		if (ft_output_write(s->output, &m, sizeof(m)))
			return false;
		guest_message_sent(r->cpu, &m);
	}
	return true;
}

/* A turn of computation that the compiler can neither leave out nor make shorter. */
static uint64_t work_turns(uint64_t x, uint64_t turns)
{
	for (uint64_t i = 0; i < turns; i++)
		x = mix64(x + i);
	return x;
}

uint64_t sim_work_rate(void)
{
	uint64_t x = clock_ns(), best = UINT64_MAX;
	const uint64_t turns = 100000;

	for (unsigned i = 0; i < 50; i++) {
		uint64_t t = clock_ns();

		x = work_turns(x, turns);
		t = clock_ns() - t;
		best = t < best ? t : best;
	}
	return (uint64_t)((double)turns * (double)NS_PER_S / (double)(best | (x == 0)));
}

/* What is left of the work behind the last step; false: the guest is to halt, the rest is done later. */
static bool do_work(struct sim *s, struct runner *r)
{
	while (r->work_left) {
		uint64_t n = r->work_left < 256 ? r->work_left : 256;

		if (atomic_load_explicit(&s->halt, memory_order_acquire))
			return false;
		r->work = work_turns(r->work, n);
		r->work_left -= n;
	}
	return true;
}

/* Steps until @nr are done, the guest is to halt, or the output is full.  Without the lock. */
static uint64_t run_burst(struct sim *s, struct runner *r, uint64_t nr, bool *blocked)
{
	uint64_t done = 0;

	while (done < nr && !atomic_load_explicit(&s->halt, memory_order_acquire)) {
		if (!do_work(s, r) || !send_due(s, r))
			break;
		r->work_left = s->cfg.work_per_step;
		mark(s, guest_step(s->guest, r->cpu));
		done++;
		atomic_store_explicit(&r->steps, r->cpu->regs.steps, memory_order_relaxed);
	}
	*blocked = !send_due(s, r);
	if (*blocked)
		want_cut(s);
	return done;
}

/* How many steps the vCPU may make now; with the lock held. */
static uint64_t allowance(struct sim *s, struct runner *r)
{
	double per_ns, most;
	uint64_t now;

	if (!s->started || s->paused || s->stopped)
		return 0;
	if (r->blocked && ft_output_room(s->output) < sizeof(struct sim_message))
		return 0;
	if (s->pages_per_epoch)
		return r->budget;
	if (!s->cfg.rate)
		return UINT64_MAX;
	per_ns = (double)s->cfg.rate / s->cfg.nr_cpus / (double)NS_PER_S;
	now = clock_ns();
	most = per_ns * (double)CATCH_UP_NS + 1;
	r->tokens += per_ns * (double)(now - r->token_ns);
	r->token_ns = now;
	if (r->tokens > most)
		r->tokens = most;
	return (uint64_t)r->tokens;
}

static void wait_for_work(struct sim *s, struct runner *r)
{
	bool ticking = s->started && !s->paused && !s->stopped && (r->blocked || (s->cfg.rate && !s->pages_per_epoch));
	uint64_t at = clock_ns() + TICK_NS;
	struct timespec t = { .tv_sec = (time_t)(at / NS_PER_S), .tv_nsec = (long)(at % NS_PER_S) };

	if (ticking)
		pthread_cond_timedwait(&s->work, &s->lock, &t);
	else
		pthread_cond_wait(&s->work, &s->lock);
}

static void *cpu_main(void *arg)
{
	struct runner *r = arg;
	struct sim *s = r->sim;
	uint64_t nr, done;
	bool blocked;

	pthread_mutex_lock(&s->lock);
	while (!s->quit) {
		nr = allowance(s, r);
		if (!nr) {
			wait_for_work(s, r);
			continue;
		}
		s->nr_running++;
		pthread_mutex_unlock(&s->lock);
		done = run_burst(s, r, nr, &blocked);
		pthread_mutex_lock(&s->lock);
		s->nr_running--;
		r->blocked = blocked;
		if (s->pages_per_epoch)
			r->budget -= done;
		else if (s->cfg.rate)
			r->tokens -= (double)done;
		pthread_cond_broadcast(&s->parked);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void set_halt_locked(struct sim *s)
{
	atomic_store_explicit(&s->halt, s->paused || s->stopped || s->quit, memory_order_release);
	pthread_cond_broadcast(&s->work);
}

static void wait_parked_locked(struct sim *s)
{
	while (s->nr_running)
		pthread_cond_wait(&s->parked, &s->lock);
}

/* The guest's epoch is over when each vCPU has made its share; one that waits for the output queue cannot. */
static bool budget_spent_locked(const struct sim *s)
{
	if (!s->pages_per_epoch || !s->started || s->stopped)
		return true;
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		if (s->runner[i].budget && !s->runner[i].blocked)
			return false;
	return true;
}

static void give_budget_locked(struct sim *s)
{
	uint64_t n = s->pages_per_epoch, cpus = s->cfg.nr_cpus;

	for (uint32_t i = 0; i < cpus; i++)
		s->runner[i].budget = n * (i + 1) / cpus - n * i / cpus;
}

/* ---- pause and resume by the engine ---- */

void cpus_pause(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	while (!budget_spent_locked(s))
		pthread_cond_wait(&s->parked, &s->lock);
	if (!s->paused) {
		s->paused = true;
		s->paused_at_ns = clock_ns();
	}
	set_halt_locked(s);
	wait_parked_locked(s);
	pthread_mutex_unlock(&s->lock);
}

void cpus_resume(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->paused) {
		uint64_t ns;

		s->resumed_ns = clock_ns();
		ns = s->resumed_ns - s->paused_at_ns;
		if (ns > s->longest_pause_ns)
			s->longest_pause_ns = ns;
		s->paused = false;
		give_budget_locked(s);
	}
	set_halt_locked(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- life ---- */

void sim_config_init(struct sim_config *cfg)
{
	*cfg = (struct sim_config){
		.region_bytes = { 16u << 20 },
		.nr_regions = 1,
		.nr_cpus = 2,
		.pattern = SIM_MIXED,
		.seed = 1,
		.rate = 20000,
		.state_bytes = 16384,
		.output_every = 100,
		.output_cap_bytes = 1u << 20,
		.client_fd = -1,
	};
}

static void make_identity(struct sim *s)
{
	size_t n = (size_t)snprintf(s->identity, sizeof(s->identity),
				    "sim pattern=%s cpus=%u seed=%llu set=%llu span=%llu prefill=%llu every=%llu",
				    sim_pattern_name(s->cfg.pattern), s->cfg.nr_cpus, (unsigned long long)s->cfg.seed,
				    (unsigned long long)s->cfg.working_set_pages, (unsigned long long)s->cfg.span_pages,
				    (unsigned long long)s->cfg.prefill_pages, (unsigned long long)s->cfg.output_every);

	for (uint32_t r = 0; r < s->cfg.nr_regions && n < sizeof(s->identity); r++)
		n += (size_t)snprintf(s->identity + n, sizeof(s->identity) - n, " region=%llu",
				      (unsigned long long)s->cfg.region_bytes[r]);
}

static int make_tracking(struct sim *s)
{
	uint64_t first = 0;
	int ret;

	for (uint32_t r = 0; r < s->cfg.nr_regions; r++) {
		s->track_first[r] = first;
		first += (s->cfg.region_bytes[r] / FT_PAGE_SIZE + 63) / 64 * 64;
		s->track_first[r + 1] = first;
	}
	ret = track_create(&s->dirty, first);
	return ret ? ret : track_create(&s->present, first);
}

static void init_locks(struct sim *s)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->session_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->work, &attr);
	pthread_cond_init(&s->parked, &attr);
	pthread_condattr_destroy(&attr);
}

static int make_parts(struct sim *s, bool standby, struct ft_error *err)
{
	struct guest_page page;
	int ret = guest_create(&s->guest, &s->cfg, err);

	if (ret)
		return ret;
	s->guest->before_write = before_write;
	s->guest->user = s;
	s->cut = calloc(SIM_CUTS, sizeof(*s->cut));
	if (!s->cut || make_tracking(s) || sim_client_create(&s->client))
		return say(err, -ENOMEM, "no memory");
	if (s->cfg.output_every) {
		ret = ft_output_open(&s->output, s->cfg.output_cap_bytes, sim_emit, s);
		if (ret)
			return say(err, ret, "output queue: %s", strerror(-ret));
	}
	for (uint64_t i = 0; !standby && guest_prefill(s->guest, i, &page); i++)
		track_mark(s->present, s->track_first[page.region] + page.index);
	return 0;
}

int sim_create(struct sim **out, const struct sim_config *cfg, bool standby, struct ft_error *err)
{
	struct sim *s = calloc(1, sizeof(*s));
	int ret;

	*out = NULL;
	if (!s)
		return say(err, -ENOMEM, "no memory");
	s->cfg = *cfg;
	s->pages_per_epoch = cfg->pages_per_epoch;
	init_locks(s);
	make_identity(s);
	atomic_store(&s->state_bytes, cfg->state_bytes);
	ret = make_parts(s, standby, err);
	if (ret) {
		sim_destroy(s);
		return ret;
	}
	for (uint32_t i = 0; i < cfg->nr_cpus; i++) {
		s->runner[i].sim = s;
		s->runner[i].cpu = &s->guest->cpu[i];
	}
	*out = s;
	return 0;
}

static void join_cpus(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	s->quit = true;
	set_halt_locked(s);
	pthread_mutex_unlock(&s->lock);
	for (uint32_t i = 0; i < s->nr_threads; i++)
		pthread_join(s->runner[i].thread, NULL);
}

void sim_destroy(struct sim *s)
{
	if (!s)
		return;
	join_cpus(s);
	ft_output_close(s->output);
	sim_client_destroy(s->client);
	track_destroy(s->dirty);
	track_destroy(s->present);
	free(s->cut);
	guest_destroy(s->guest);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->parked);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->session_lock);
	free(s);
}

int sim_attach(struct sim *s, struct ft_session *session, struct ft_error *err)
{
	char name[16];
	int ret = 0;

	for (uint32_t r = 0; session && r < s->cfg.nr_regions && ret >= 0; r++) {
		snprintf(name, sizeof(name), "ram%u", r);
		ret = ft_session_add_region(session, name, s->guest->region[r], s->cfg.region_bytes[r], err);
		if (ret >= 0 && (uint32_t)ret != r)
			ret = say(err, -EINVAL, "region %u became number %d", r, ret);
	}
	if (ret < 0)
		return ret;
	pthread_mutex_lock(&s->session_lock);
	s->session = session;
	pthread_mutex_unlock(&s->session_lock);
	return 0;
}

int sim_start(struct sim *s, struct ft_error *err)
{
	sigset_t all, old;
	int ret = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	pthread_mutex_lock(&s->lock);
	while (s->nr_threads < s->cfg.nr_cpus && !ret) {
		struct runner *r = &s->runner[s->nr_threads];

		r->token_ns = clock_ns();
		ret = -pthread_create(&r->thread, NULL, cpu_main, r);
		if (!ret)
			s->nr_threads++;
	}
	if (!ret && !s->started) {
		s->started = true;
		give_budget_locked(s);
		set_halt_locked(s);
	}
	pthread_mutex_unlock(&s->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ret ? say(err, ret, "thread of a vCPU: %s", strerror(-ret)) : 0;
}

void sim_stop(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	s->stopped++;
	set_halt_locked(s);
	wait_parked_locked(s);
	pthread_cond_broadcast(&s->parked); /* a pause that waits for the budget does not wait for a stopped guest */
	pthread_mutex_unlock(&s->lock);
}

void sim_continue(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	s->stopped--;
	set_halt_locked(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- looking ---- */

const char *sim_identity(const struct sim *s)
{
	return s->identity;
}

const struct sim_config *sim_get_config(const struct sim *s)
{
	return &s->cfg;
}

bool sim_is_paused(struct sim *s)
{
	bool paused;

	pthread_mutex_lock(&s->lock);
	paused = s->paused;
	pthread_mutex_unlock(&s->lock);
	return paused;
}

uint64_t sim_steps(struct sim *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		sum += atomic_load_explicit(&s->runner[i].steps, memory_order_relaxed);
	return sum;
}

int sim_wait_steps(struct sim *s, uint64_t more, uint32_t timeout_ms)
{
	uint64_t end = clock_ns() + timeout_ms * NS_PER_MS, target = sim_steps(s) + more;

	while (sim_steps(s) < target) {
		if (clock_ns() > end)
			return -ETIMEDOUT;
		sleep_ns(NS_PER_MS / 2);
	}
	return 0;
}

uint64_t sim_longest_pause_ns(struct sim *s)
{
	uint64_t longest;

	pthread_mutex_lock(&s->lock);
	longest = s->longest_pause_ns;
	if (s->paused && clock_ns() - s->paused_at_ns > longest)
		longest = clock_ns() - s->paused_at_ns;
	pthread_mutex_unlock(&s->lock);
	return longest;
}

void sim_forget_pauses(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	s->longest_pause_ns = 0;
	pthread_mutex_unlock(&s->lock);
}

uint64_t sim_resumed_ns(struct sim *s)
{
	uint64_t ns;

	pthread_mutex_lock(&s->lock);
	ns = s->resumed_ns;
	pthread_mutex_unlock(&s->lock);
	return ns;
}

uint64_t sim_pages(const struct sim *s)
{
	return guest_pages(s->guest);
}

void *sim_memory(const struct sim *s, uint32_t region)
{
	return s->guest->region[region];
}

struct sim_client *sim_get_client(struct sim *s)
{
	return s->client;
}

uint64_t sim_output_held(struct sim *s)
{
	return s->output ? ft_output_held(s->output) : 0;
}

void sim_client_block(struct sim *s, bool blocked)
{
	atomic_store(&s->client_blocked, blocked);
	if (!blocked && s->output)
		ft_output_kick(s->output);
}

/* ---- faults ---- */

uint64_t sim_op_calls(struct sim *s, enum sim_op op)
{
	uint64_t calls;

	pthread_mutex_lock(&s->lock);
	calls = s->fault[op].calls;
	pthread_mutex_unlock(&s->lock);
	return calls;
}

void sim_fail_op(struct sim *s, enum sim_op op, uint64_t nth, uint64_t times)
{
	pthread_mutex_lock(&s->lock);
	s->fault[op].at = s->fault[op].calls + nth;
	s->fault[op].times = times;
	pthread_mutex_unlock(&s->lock);
}

void sim_delay_op(struct sim *s, enum sim_op op, uint32_t ms)
{
	pthread_mutex_lock(&s->lock);
	s->fault[op].delay_ns = ms * NS_PER_MS;
	pthread_mutex_unlock(&s->lock);
}

void sim_set_state_bytes(struct sim *s, uint64_t bytes)
{
	atomic_store(&s->state_bytes, bytes);
}

void sim_lose_dirty(struct sim *s, uint64_t every)
{
	atomic_store(&s->lose_every, every);
}

void sim_skip_hook(struct sim *s, uint64_t every)
{
	atomic_store(&s->skip_every, every);
}

uint64_t sim_lost_dirty(struct sim *s)
{
	return atomic_load(&s->lost);
}
