/* SPDX-License-Identifier: MIT */
/* sim.c - the guest's threads and the ops by which libft reaches it (sim.h has the whole idea).
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
#include <unistd.h>
#include "guest.h"
#include "say.h"
#include "sim_private.h"

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define TICK_NS NS_PER_MS	  /* of a vCPU with a rate, or one that waits for the output queue */
#define CATCH_UP_NS (20 * NS_PER_MS) /* a vCPU that was held up makes up for that much at most */
#define STATE_MAGIC UINT64_C(0x73696d2d73746174)
#define FILL_STEP UINT64_C(0x9e3779b97f4a7c15)

struct state_head {
	uint64_t magic, total_bytes, serial, seed, nr_cpus;
	uint64_t has_checksum, checksum; /* of the memory */
	uint64_t sum;			 /* of this struct with sum 0, and of the vCPUs' registers behind it */
};

uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* ---- names ---- */

static const char *const pattern_names[SIM_PATTERN_COUNT] = {
	[SIM_UNIFORM] = "uniform", [SIM_HOT] = "hot",	      [SIM_SEQUENTIAL] = "sequential", [SIM_SPARSE] = "sparse",
	[SIM_ZERO] = "zero",	   [SIM_REWRITE] = "rewrite", [SIM_SCATTER] = "scatter",       [SIM_MIXED] = "mixed",
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
	[SIM_OP_TRACK_START] = "track-start",	[SIM_OP_COLLECT_PRESENT] = "collect-present",
	[SIM_OP_COLLECT_DIRTY] = "collect-dirty", [SIM_OP_PAUSE] = "pause",
	[SIM_OP_SAVE_STATE] = "save-state",	[SIM_OP_RESUME] = "resume",
	[SIM_OP_LOAD_STATE] = "load-state",	[SIM_OP_ACTIVATE] = "activate",
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

/* Steps until @nr are done, the guest is to halt, or the output is full.  Without the lock. */
static uint64_t run_burst(struct sim *s, struct runner *r, uint64_t nr, bool *blocked)
{
	uint64_t done = 0;

	while (done < nr && !atomic_load_explicit(&s->halt, memory_order_acquire)) {
		if (!send_due(s, r))
			break;
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
	if (s->cfg.pages_per_epoch)
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
	bool ticking = s->started && !s->paused && !s->stopped && (r->blocked || (s->cfg.rate && !s->cfg.pages_per_epoch));
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
		if (s->cfg.pages_per_epoch)
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
	if (!s->cfg.pages_per_epoch || !s->started || s->stopped)
		return true;
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		if (s->runner[i].budget && !s->runner[i].blocked)
			return false;
	return true;
}

static void give_budget_locked(struct sim *s)
{
	uint64_t n = s->cfg.pages_per_epoch, cpus = s->cfg.nr_cpus;

	for (uint32_t i = 0; i < cpus; i++)
		s->runner[i].budget = n * (i + 1) / cpus - n * i / cpus;
}

/* ---- pause and resume by the engine ---- */

static void pause_guest(struct sim *s)
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

static void resume_guest(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->paused) {
		uint64_t ns = clock_ns() - s->paused_at_ns;

		if (ns > s->longest_pause_ns)
			s->longest_pause_ns = ns;
		s->paused = false;
		give_budget_locked(s);
	}
	set_halt_locked(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- ops ---- */

/* op_enter - count the call, take the time that it is to take, say whether it is to fail. */
static int op_enter(struct sim *s, enum sim_op op, struct ft_error *err)
{
	uint64_t call, delay_ns;
	bool fail;

	pthread_mutex_lock(&s->lock);
	call = ++s->fault[op].calls;
	delay_ns = s->fault[op].delay_ns;
	fail = s->fault[op].times && call >= s->fault[op].at;
	if (fail && s->fault[op].times != UINT64_MAX)
		s->fault[op].times--;
	pthread_mutex_unlock(&s->lock);
	if (delay_ns)
		sleep_ns(delay_ns);
	return fail ? say(err, -EIO, "sim: %s was made to fail at call %llu", sim_op_name(op), (unsigned long long)call) : 0;
}

static int drop_run(void *user, uint64_t first, uint64_t nr)
{
	(void)user, (void)first, (void)nr;
	return 0;
}

static int op_track_start(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = op_enter(s, SIM_OP_TRACK_START, err);

	return ret ? ret : track_take(s->dirty, drop_run, NULL);
}

static void op_track_stop(void *user)
{
	(void)user; /* marking is always on: it is cheap, and the next track_start drops what came meanwhile */
}

struct report {
	struct sim *sim;
	struct ft_dirty *dirty;
	uint64_t lose_every;
};

static int report_pages(struct report *rep, uint32_t region, uint64_t first, uint64_t nr)
{
	struct sim *s = rep->sim;

	if (!rep->lose_every)
		return ft_dirty_add(rep->dirty, region, first, nr);
	for (uint64_t i = 0; i < nr; i++) {
		int ret = 0;

		if (++s->reported % rep->lose_every == 0)
			atomic_fetch_add(&s->lost, 1);
		else
			ret = ft_dirty_add(rep->dirty, region, first + i, 1);
		if (ret)
			return ret;
	}
	return 0;
}

/* A run of the tracking's page space may go over the border of two regions. */
static int report_run(void *user, uint64_t first, uint64_t nr)
{
	struct report *rep = user;
	struct sim *s = rep->sim;

	while (nr) {
		uint32_t r = s->cfg.nr_regions - 1;
		uint64_t n;
		int ret;

		while (first < s->track_first[r])
			r--;
		n = s->track_first[r + 1] - first;
		if (n > nr)
			n = nr;
		ret = report_pages(rep, r, first - s->track_first[r], n);
		if (ret)
			return ret;
		first += n;
		nr -= n;
	}
	return 0;
}

static int op_collect_present(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct sim *s = user;
	struct report rep = { .sim = s, .dirty = dirty };
	int ret = op_enter(s, SIM_OP_COLLECT_PRESENT, err);

	if (ret)
		return ret;
	for (uint32_t r = 0; r < s->cfg.nr_regions && s->present_all; r++) {
		ret = ft_dirty_add(dirty, r, 0, s->cfg.region_bytes[r] / FT_PAGE_SIZE);
		if (ret)
			return say(err, ret, "sim: region %u was not taken: %s", r, strerror(-ret));
	}
	ret = s->present_all ? 0 : track_each(s->present, report_run, &rep);
	return ret ? say(err, ret, "sim: present pages were not taken: %s", strerror(-ret)) : 0;
}

static int op_collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct sim *s = user;
	struct report rep = { .sim = s, .dirty = dirty, .lose_every = atomic_load(&s->lose_every) };
	int ret = op_enter(s, SIM_OP_COLLECT_DIRTY, err);

	if (ret)
		return ret;
	ret = track_take(s->dirty, report_run, &rep);
	return ret ? say(err, ret, "sim: dirty pages were not taken: %s", strerror(-ret)) : 0;
}

static uint64_t op_estimate_dirty(void *user)
{
	struct sim *s = user;

	return track_count(s->dirty);
}

static int op_pause(void *user, struct ft_error *err)
{
	struct sim *s = user;

	pause_guest(s);
	return op_enter(s, SIM_OP_PAUSE, err);
}

static int op_resume(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = op_enter(s, SIM_OP_RESUME, err);

	resume_guest(s);
	return ret;
}

/* ---- device state: head, registers, then a filler that depends on the epoch and is checked as well ---- */

static uint64_t sum_words(const void *buf, size_t len)
{
	const uint64_t *w = buf;
	uint64_t sum = len;

	for (size_t i = 0; i < len / 8; i++)
		sum = mix64(sum ^ w[i]);
	return sum;
}

struct state_front {
	struct state_head head;
	struct guest_regs regs[SIM_CPUS_MAX];
};

static size_t front_bytes(const struct sim *s)
{
	return sizeof(struct state_head) + s->cfg.nr_cpus * sizeof(struct guest_regs);
}

static void make_front(struct sim *s, struct state_front *f)
{
	uint64_t want = atomic_load(&s->state_bytes) / 8 * 8;

	memset(f, 0, sizeof(*f));
	f->head.magic = STATE_MAGIC;
	f->head.total_bytes = want > front_bytes(s) ? want : front_bytes(s);
	f->head.serial = s->serial;
	f->head.seed = s->cfg.seed;
	f->head.nr_cpus = s->cfg.nr_cpus;
	f->head.has_checksum = s->cfg.checksum;
	f->head.checksum = s->cfg.checksum ? guest_checksum(s->guest) : 0;
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		f->regs[i] = s->guest->cpu[i].regs;
	f->head.sum = sum_words(f, front_bytes(s));
}

static int op_save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	struct sim *s = user;
	struct state_front f;
	uint64_t left, word;
	int ret = op_enter(s, SIM_OP_SAVE_STATE, err);

	if (ret)
		return ret;
	make_front(s, &f);
	ret = ft_state_write(sink, &f, front_bytes(s));
	if (ret)
		return say(err, ret, "sim: device state: %s", strerror(-ret));
	word = mix64(f.head.serial);
	for (left = f.head.total_bytes - front_bytes(s); left;) {
		size_t cap = 0, want = left < 65536 ? left : 65536;
		uint8_t *buf = ft_state_buffer(sink, want, &cap);

		if (!buf)
			return say(err, -EFBIG, "sim: device state of %llu octets is not taken",
				   (unsigned long long)f.head.total_bytes);
		for (size_t i = 0; i < want; i += 8, word += FILL_STEP)
			memcpy(buf + i, &word, 8);
		ft_state_advance(sink, want);
		left -= want;
	}
	return 0;
}

static int check_front(struct sim *s, struct state_front *f, const void *buf, size_t len, struct ft_error *err)
{
	uint64_t sum;

	if (len < front_bytes(s))
		return say(err, -EBADMSG, "sim: device state of %zu octets is too short", len);
	memcpy(f, buf, front_bytes(s));
	sum = f->head.sum;
	f->head.sum = 0;
	if (f->head.magic != STATE_MAGIC || f->head.seed != s->cfg.seed || f->head.nr_cpus != s->cfg.nr_cpus)
		return say(err, -EBADMSG, "sim: device state is not of this guest");
	if (f->head.total_bytes != len)
		return say(err, -EBADMSG, "sim: device state has %zu octets and says %llu", len,
			   (unsigned long long)f->head.total_bytes);
	if (sum_words(f, front_bytes(s)) != sum)
		return say(err, -EBADMSG, "sim: device state is damaged");
	return 0;
}

static int check_filler(const struct state_front *f, const uint8_t *at, size_t len, struct ft_error *err)
{
	uint64_t word = mix64(f->head.serial);

	for (size_t i = 0; i < len; i += 8, word += FILL_STEP)
		if (memcmp(at + i, &word, 8))
			return say(err, -EBADMSG, "sim: device state is damaged %zu octets behind its head", i);
	return 0;
}

static int op_load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct sim *s = user;
	struct state_front f = { 0 };
	int ret = op_enter(s, SIM_OP_LOAD_STATE, err);

	if (!ret)
		ret = check_front(s, &f, buf, len, err);
	if (!ret)
		ret = check_filler(&f, (const uint8_t *)buf + front_bytes(s), len - front_bytes(s), err);
	if (ret)
		return ret;
	if (f.head.has_checksum && guest_checksum(s->guest) != f.head.checksum)
		return say(err, -EBADMSG, "sim: the memory is not that of its device state: checksums differ");
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++) {
		s->guest->cpu[i].regs = s->loaded[i] = f.regs[i];
		atomic_store(&s->runner[i].steps, f.regs[i].steps);
	}
	s->serial = s->loaded_serial = f.head.serial;
	s->has_loaded = s->present_all = true;
	return 0;
}

static int op_activate(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = op_enter(s, SIM_OP_ACTIVATE, err);

	return ret ? ret : sim_start(s, err);
}

/* ---- output ---- */

static size_t emit(void *user, const void *buf, size_t len)
{
	struct sim *s = user;
	ssize_t n = (ssize_t)len;

	if (atomic_load(&s->client_blocked))
		return 0;
	if (s->cfg.client_fd >= 0)
		n = write(s->cfg.client_fd, buf, len);
	if (n <= 0)
		return 0;
	sim_client_feed(s->client, buf, (size_t)n);
	return (size_t)n;
}

static void op_output_cut(void *user, uint64_t epoch)
{
	struct sim *s = user;
	struct cut *c;

	pthread_mutex_lock(&s->lock);
	c = &s->cut[++s->serial % SIM_CUTS];
	c->serial = s->serial;
	c->epoch = epoch;
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		c->regs[i] = s->guest->cpu[i].regs;
	pthread_mutex_unlock(&s->lock);
	if (s->output)
		ft_output_cut(s->output, epoch);
}

static void op_output_release(void *user, uint64_t epoch)
{
	struct sim *s = user;

	if (!s->output)
		return;
	ft_output_release(s->output, epoch);
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->work); /* who waits for room */
	pthread_mutex_unlock(&s->lock);
}

static void op_output_drop(void *user)
{
	struct sim *s = user;

	if (s->output)
		ft_output_drop(s->output);
}

static void op_on_event(void *user, const struct ft_event *event)
{
	struct sim *s = user;

	if (s->cfg.on_event)
		s->cfg.on_event(s->cfg.on_event_user, event);
}

static const struct ft_vmm_ops ops = {
	.struct_size = sizeof(ops),
	.track_start = op_track_start,
	.track_stop = op_track_stop,
	.collect_present = op_collect_present,
	.collect_dirty = op_collect_dirty,
	.estimate_dirty = op_estimate_dirty,
	.pause = op_pause,
	.save_state = op_save_state,
	.resume = op_resume,
	.output_cut = op_output_cut,
	.output_release = op_output_release,
	.output_drop = op_output_drop,
	.load_state = op_load_state,
	.activate = op_activate,
	.on_event = op_on_event,
};

const struct ft_vmm_ops *sim_ops(void)
{
	return &ops;
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
	size_t n = (size_t)snprintf(s->identity, sizeof(s->identity), "sim pattern=%s cpus=%u seed=%llu set=%llu prefill=%llu every=%llu",
				    sim_pattern_name(s->cfg.pattern), s->cfg.nr_cpus, (unsigned long long)s->cfg.seed,
				    (unsigned long long)s->cfg.working_set_pages, (unsigned long long)s->cfg.prefill_pages,
				    (unsigned long long)s->cfg.output_every);

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
	s->cut = calloc(SIM_CUTS, sizeof(*s->cut));
	if (!s->cut || make_tracking(s) || sim_client_create(&s->client))
		return say(err, -ENOMEM, "no memory");
	if (s->cfg.output_every) {
		ret = ft_output_open(&s->output, s->cfg.output_cap_bytes, emit, s);
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

uint64_t sim_lost_dirty(struct sim *s)
{
	return atomic_load(&s->lost);
}
