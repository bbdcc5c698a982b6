/* SPDX-License-Identifier: MIT */
/* bench_pause.c - what protection costs the guest, beside the limits, all in one run: a primary and a secondary with a sim each, over
 * tcp on the loopback interface.
 *
 *   pause   of epochs with so many dirty pages, and its phases, as the VMM sees them; beside one plain memcpy() of the same scattered
 *           pages, made in every other epoch, in the pause, before the engine touches them
 *   ship    from the guest's resumption to the acknowledgement, beside a plain TCP copy of the same octets with an acknowledgement;
 *           the guest stands still meanwhile, so that both have the two ends of a connection and nothing else to run
 *   size    the pause of a guest of 1, 4 and 16 GiB with the same dirty set, beside that of the smallest; and with the set spread over
 *           all of it, where each page has its own part of the page tables, beside memcpy()
 *   memory  what both sides use for it, beside their caps
 *   threads pause, its capture, and the secondary's apply with capture-threads and apply-threads, beside those of one; sessions in turns
 *
 * A pair of epochs gives one ratio; medians and quartiles are printed.  Samples in which the guest had not finished writing before its
 * pause are left out.
 *
 *   --quick   few and small ones     --json   one object a line     --help
 *   --only pause, ship, size or threads     --threads N   2     --pages N   of `threads`: only that many
 *   --primary, --secondary NAME=VALUE,...   settings of that side */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include "bitmap.h"
#include "check.h"
#include "clock.h"
#include "pair.h"
#include "region.h"
#include "session.h"
#include "sim.h"

#define SAMPLES_MAX 256u
#define PIECE (256u << 10) /* of the plain TCP copy */
#define WAIT_MS 60000u
#define WARM_UP_EPOCHS 8u

static bool json, quick;
static const char *only, *primary_settings, *secondary_settings;
static uint64_t only_pages;
static unsigned many_threads = 2, copy_threads = 1; /* for `threads`; in use now */

/* ---- what the VMM sees of an epoch ---- */

enum phase { STOP, COLLECT, CAPTURE, SAVE, RESUME, NR_PHASES };
static const char *const phase_name[NR_PHASES] = { "stop", "collect", "capture", "save", "resume" };

struct sample {
	uint64_t pages;
	uint64_t phase_ns[NR_PHASES], pause_ns;
	uint64_t plain_ns; /* not 0: an epoch in which the plain copy was made; its capture does not count */
	uint64_t ship_ns;  /* resumed to acknowledged */
};

/* Epoch thread, but for `recording` and `nr`. */
static struct probe {
	struct sim *sim;
	atomic_bool recording;
	bool hold_guest; /* still until the acknowledgement */
	bool is_late, is_plain;
	atomic_bool held; /* hold_guest: and it is */
	uint8_t *to;      /* of the plain copy */
	uint64_t mark, begun;
	struct sample now, sample[SAMPLES_MAX];
	atomic_uint nr;
	_Atomic uint64_t resumed_ns, acked_ns;
} probe;

static void lap(enum phase ph)
{
	uint64_t t = now_ns();

	probe.now.phase_ns[ph] = t - probe.mark;
	probe.mark = t;
}

static int probe_pause(void *user, struct ft_error *err)
{
	uint64_t steps = sim_steps(probe.sim);
	int r;

	probe.now = (struct sample){ 0 };
	probe.begun = probe.mark = now_ns();
	r = sim_ops()->pause(user, err);
	lap(STOP);
	probe.is_late = sim_steps(probe.sim) != steps;
	return r;
}

/* The limit: the same pages, one memcpy() each, in the same pause. */
static void plain_copy(const struct ft_dirty *dirty)
{
	uint64_t n = 0, t = now_ns();

	for (struct page_run r = { 0 }; bitmap_next_run(dirty->set, r.first + r.nr, UINT64_MAX, &r);) {
		const uint8_t *from = region_page_address(dirty->regions, r.first, NULL);

		for (uint64_t i = 0; i < r.nr; i++)
			memcpy(probe.to + n++ * FT_PAGE_SIZE, from + i * FT_PAGE_SIZE, FT_PAGE_SIZE);
	}
	probe.now.plain_ns = now_ns() - t;
}

static int probe_collect(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	int r;

	probe.mark = now_ns();
	r = sim_ops()->collect_dirty(user, dirty, err);
	lap(COLLECT);
	probe.now.pages = bitmap_count(dirty->set);
	probe.is_plain = !probe.is_plain;
	if (atomic_load(&probe.recording) && probe.to && probe.is_plain)
		plain_copy(dirty);
	probe.mark = now_ns();
	return r;
}

static void probe_cut(void *user, uint64_t epoch)
{
	lap(CAPTURE);
	sim_ops()->output_cut(user, epoch);
}

static int probe_save(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	int r;

	probe.mark = now_ns();
	r = sim_ops()->save_state(user, sink, err);
	lap(SAVE);
	return r;
}

static int probe_resume(void *user, struct ft_error *err)
{
	unsigned nr = atomic_load(&probe.nr);
	bool counts = atomic_load(&probe.recording) && !probe.is_late && nr < SAMPLES_MAX;
	int r;

	if (probe.hold_guest && counts && !atomic_exchange(&probe.held, true))
		sim_stop(probe.sim);
	r = sim_ops()->resume(user, err);
	/* not until resume returns: on two processors the guest that was let go may take this one's at once */
	probe.now.phase_ns[RESUME] = sim_resumed_ns(probe.sim) - probe.mark;
	probe.now.pause_ns = sim_resumed_ns(probe.sim) - probe.begun;
	if (counts) {
		probe.sample[nr] = probe.now;
		atomic_store(&probe.resumed_ns, now_ns());
		atomic_store(&probe.nr, nr + 1);
	} else {
		atomic_store(&probe.resumed_ns, 0);
	}
	return r;
}

/* On ft-answer: the acknowledgement. */
static void probe_event(void *user, const struct ft_event *ev)
{
	uint64_t resumed = atomic_load(&probe.resumed_ns);

	(void)user;
	if (ev->type != FT_EVENT_EPOCH)
		return;
	if (resumed && probe.hold_guest) {
		probe.sample[atomic_load(&probe.nr) - 1].ship_ns = now_ns() - resumed;
		if (atomic_exchange(&probe.held, false))
			sim_continue(probe.sim);
	}
}

static struct ft_vmm_ops probe_ops(void)
{
	struct ft_vmm_ops ops = *sim_ops();

	ops.pause = probe_pause;
	ops.collect_dirty = probe_collect;
	ops.output_cut = probe_cut;
	ops.save_state = probe_save;
	ops.resume = probe_resume;
	return ops;
}

/* ---- a protection ---- */

struct rig {
	struct sim *primary_sim, *secondary_sim;
	struct ft_session *primary, *secondary;
};

/* Time to write the pages, ship them and apply them, so that a pause has the machine for itself. */
static unsigned interval_of(uint64_t pages)
{
	return (unsigned)(10 + pages / 120);
}

static void set(struct ft_config *cfg, const char *name, uint64_t value)
{
	struct ft_error err = { 0 };
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	CHECK_OK(ft_config_set(cfg, name, text, &err), err);
}

static void open_secondary(struct rig *g, const struct sim_config *sim, char *address, size_t size)
{
	struct ft_error err = { 0 };
	struct ft_config cfg;

	CHECK_OK(sim_create(&g->secondary_sim, sim, true, &err), err);
	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	cfg.listen = "127.0.0.1:0";
	cfg.identity = sim_identity(g->secondary_sim);
	set(&cfg, "heartbeat-misses", 100);
	set(&cfg, "apply-threads", copy_threads);
	pair_settings(&cfg, secondary_settings);
	CHECK_OK(ft_session_open(&g->secondary, &cfg, sim_ops(), g->secondary_sim, &err), err);
	CHECK_OK(sim_attach(g->secondary_sim, g->secondary, &err), err);
	CHECK_OK(ft_session_start(g->secondary, &err), err);
	CHECK_OK(ft_session_address(g->secondary, address, size), err);
}

static void open_primary(struct rig *g, const struct sim_config *sim, uint64_t pages, const char *address)
{
	struct ft_vmm_ops ops = probe_ops();
	uint64_t staging = 3 * pages * FT_PAGE_SIZE;
	struct ft_error err = { 0 };
	struct ft_config cfg;

	CHECK_OK(sim_create(&g->primary_sim, sim, false, &err), err);
	probe.sim = g->primary_sim;
	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.peer = address;
	cfg.identity = sim_identity(g->primary_sim);
	set(&cfg, "heartbeat-misses", 100);
	set(&cfg, "interval", interval_of(pages));
	set(&cfg, "capture-threads", copy_threads);
	set(&cfg, "staging-bytes", staging > 64u << 20 ? staging : 64u << 20);
	pair_settings(&cfg, primary_settings);
	CHECK_OK(ft_session_open(&g->primary, &cfg, &ops, g->primary_sim, &err), err);
	CHECK_OK(sim_attach(g->primary_sim, g->primary, &err), err);
	CHECK_OK(sim_start(g->primary_sim, &err), err);
	CHECK_OK(ft_session_start(g->primary, &err), err);
	CHECK(ft_session_wait(g->primary, 1u << FT_STATE_PROTECTED, WAIT_MS) >= 0, "not protected");
}

/* Where the pages are that an epoch writes. */
enum layout {
	SPREAD, /* one here, one there, over the whole guest */
	GIB,    /* the same over the first GiB, however large the guest is */
	RUN,    /* one behind the other */
};

static void rig_open(struct rig *g, uint64_t guest_bytes, uint64_t pages, enum layout layout)
{
	struct sim_config sim;
	char address[128];

	memset(g, 0, sizeof(*g));
	sim_config_init(&sim);
	sim.region_bytes[0] = guest_bytes;
	sim.nr_cpus = 1;
	sim.pattern = layout == RUN ? SIM_SEQUENTIAL : SIM_SCATTER;
	sim.pages_per_epoch = pages;
	sim.working_set_pages = sim.prefill_pages = 3 * pages;
	sim.span_pages = layout == RUN ? 3 * pages : layout == GIB ? (UINT64_C(1) << 30) / FT_PAGE_SIZE : 0;
	sim.output_every = 0;
	sim.on_event = probe_event;
	open_secondary(g, &sim, address, sizeof(address));
	open_primary(g, &sim, pages, address);
}

/* The working set is three epochs large: until each page was sent and applied once, the secondary's memory is touched for the first
 * time, which costs more than the copy (12 to 17 us a page on a nested machine). */
static void warm_up(struct rig *g)
{
	const struct timespec tick = { .tv_nsec = 5000000 };
	uint64_t deadline = deadline_in_ms(WAIT_MS * 5);
	struct ft_status st;

	do {
		nanosleep(&tick, NULL);
		ft_session_status(g->primary, &st);
		CHECK(st.state == FT_STATE_PROTECTED && now_ns() < deadline, "not protected any more: %s", st.reason);
	} while (st.epoch_applied < WARM_UP_EPOCHS);
}

static void rig_record(struct rig *g, unsigned samples)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS * 5);
	const struct timespec tick = { .tv_nsec = 2000000 };

	warm_up(g);
	atomic_store(&probe.nr, 0);
	atomic_store(&probe.recording, true);
	while (atomic_load(&probe.nr) < samples) {
		struct ft_status st;

		ft_session_status(g->primary, &st);
		CHECK(st.state == FT_STATE_PROTECTED, "not protected any more: %s", st.reason);
		CHECK(now_ns() < deadline, "too few samples: the guest does not finish writing before its pauses");
		nanosleep(&tick, NULL);
	}
	atomic_store(&probe.recording, false);
}

static void rig_close(struct rig *g)
{
	struct ft_error err = { 0 };

	CHECK_OK(sim_attach(g->primary_sim, NULL, &err), err);
	CHECK_OK(sim_attach(g->secondary_sim, NULL, &err), err);
	ft_session_close(g->primary);
	ft_session_close(g->secondary);
	sim_destroy(g->primary_sim);
	sim_destroy(g->secondary_sim);
}

/* ---- figures ---- */

struct series {
	double v[SAMPLES_MAX * 4];
	unsigned n;
};

static void put(struct series *s, double v)
{
	if (s->n < sizeof(s->v) / sizeof(s->v[0]))
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double at_share(struct series *s, double share)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(s->v[0]), by_value);
	return s->v[(unsigned)((double)(s->n - 1) * share)];
}

static void print_ratio(const char *name, struct series *s)
{
	if (json)
		printf(", \"%s\": %.3f, \"%s_p25\": %.3f, \"%s_p75\": %.3f", name, at_share(s, 0.5), name,
		       at_share(s, 0.25), name, at_share(s, 0.75));
	else
		printf("  %s %.2f (%.2f to %.2f)", name, at_share(s, 0.5), at_share(s, 0.25), at_share(s, 0.75));
}

static void print_us(const char *name, struct series *s)
{
	printf(json ? ", \"%s_us\": %.1f" : "  %s %.0f us", name, at_share(s, 0.5) / 1000);
}

/* ---- pause ---- */

struct pause_figures {
	struct series pause, plain, phase[NR_PHASES], capture_ratio, pause_ratio;
};

/* Neighbouring epochs make a pair: one with the plain copy, one without. */
static void take_pairs(struct pause_figures *f)
{
	unsigned nr = atomic_load(&probe.nr);

	for (unsigned i = 0; i + 1 < nr; i++) {
		const struct sample *a = &probe.sample[i], *b = &probe.sample[i + 1];
		const struct sample *plain = a->plain_ns ? a : b, *ours = a->plain_ns ? b : a;

		if (!plain->plain_ns || ours->plain_ns)
			continue;
		put(&f->pause, (double)ours->pause_ns);
		put(&f->plain, (double)plain->plain_ns);
		for (int ph = 0; ph < NR_PHASES; ph++)
			put(&f->phase[ph], (double)ours->phase_ns[ph]);
		put(&f->capture_ratio, (double)ours->phase_ns[CAPTURE] / (double)plain->plain_ns);
		put(&f->pause_ratio, (double)(ours->pause_ns - ours->phase_ns[SAVE]) / (double)plain->plain_ns);
		i++;
	}
}

/* As the staging memory: huge pages, used before. */
static void plain_begin(uint64_t pages)
{
	probe.to = mmap(NULL, pages * FT_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(probe.to != MAP_FAILED, "no memory");
	madvise(probe.to, pages * FT_PAGE_SIZE, MADV_HUGEPAGE);
	memset(probe.to, 1, pages * FT_PAGE_SIZE);
}

static void plain_end(uint64_t pages)
{
	munmap(probe.to, pages * FT_PAGE_SIZE);
	probe.to = NULL;
}

static void bench_pause(uint64_t pages, unsigned sessions, unsigned samples)
{
	static struct pause_figures f;
	struct rig g;

	memset(&f, 0, sizeof(f));
	plain_begin(pages);
	for (unsigned s = 0; s < sessions; s++) {
		rig_open(&g, UINT64_C(1) << 30, pages, SPREAD);
		rig_record(&g, samples);
		take_pairs(&f);
		rig_close(&g);
	}
	plain_end(pages);
	printf(json ? "{\"what\": \"pause\", \"pages\": %" PRIu64 ", \"samples\": %u"
		    : "pause %6" PRIu64 " pages (%u):",
	       pages, f.pause.n);
	print_us("pause", &f.pause);
	for (int ph = 0; ph < NR_PHASES; ph++)
		print_us(phase_name[ph], &f.phase[ph]);
	print_us("memcpy", &f.plain);
	print_ratio(json ? "capture_to_memcpy" : "capture/memcpy", &f.capture_ratio);
	print_ratio(json ? "pause_to_memcpy" : "(pause-save)/memcpy", &f.pause_ratio);
	printf(json ? "}\n" : "\n");
}

/* ---- ship ---- */

struct plain_tcp {
	int listener;
	struct sockaddr_in address;
	uint64_t bytes;
	uint8_t *to;
	unsigned times;
};

static void tcp_options(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void *plain_receiver(void *arg)
{
	struct plain_tcp *t = arg;
	int fd = accept(t->listener, NULL, NULL);

	tcp_options(fd);
	for (unsigned i = 0; i < t->times; i++) {
		for (uint64_t at = 0; at < t->bytes;) {
			ssize_t n = recv(fd, t->to + at, t->bytes - at, 0);

			CHECK(n > 0, "plain copy: %s", strerror(errno));
			at += (uint64_t)n;
		}
		CHECK(send(fd, "k", 1, MSG_NOSIGNAL) == 1, "plain copy: %s", strerror(errno));
	}
	close(fd);
	return NULL;
}

static uint64_t plain_send(int fd, const uint8_t *from, uint64_t bytes)
{
	uint64_t begun = now_ns();
	char ack;

	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = send(fd, from + at, bytes - at < PIECE ? bytes - at : PIECE, MSG_NOSIGNAL);

		CHECK(n > 0, "plain copy: %s", strerror(errno));
		at += (uint64_t)n;
	}
	CHECK(recv(fd, &ack, 1, 0) == 1, "plain copy: %s", strerror(errno));
	return now_ns() - begun;
}

/* One connection, both ends with memory that has been used before. */
static void plain_tcp(uint64_t bytes, unsigned times, struct series *out)
{
	struct plain_tcp t = { .bytes = bytes, .times = times + 1 };
	uint8_t *from = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	socklen_t len = sizeof(t.address);
	pthread_t receiver;
	int fd;

	CHECK(from != MAP_FAILED, "no memory");
	memset(from, 1, 2 * bytes);
	t.to = from + bytes;
	t.address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	t.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(t.listener, (struct sockaddr *)&t.address, len) == 0 && listen(t.listener, 1) == 0 &&
		      getsockname(t.listener, (struct sockaddr *)&t.address, &len) == 0 &&
		      connect(fd, (struct sockaddr *)&t.address, len) == 0,
	      "plain copy: %s", strerror(errno));
	tcp_options(fd);
	CHECK(pthread_create(&receiver, NULL, plain_receiver, &t) == 0, "no thread");
	plain_send(fd, from, bytes); /* windows open, pages are there */
	for (unsigned i = 0; i < times; i++)
		put(out, (double)plain_send(fd, from, bytes));
	pthread_join(receiver, NULL);
	close(fd);
	close(t.listener);
	munmap(from, 2 * bytes);
}

static void bench_ship(uint64_t pages, enum layout layout, unsigned sessions, unsigned samples)
{
	const char *where = layout == RUN ? "in one run" : "scattered";
	static struct series ship, plain, ratio;
	double bytes = (double)pages * FT_PAGE_SIZE;
	struct rig g;

	ship.n = plain.n = ratio.n = 0;
	probe.hold_guest = true;
	for (unsigned s = 0; s < sessions; s++) {
		unsigned from = plain.n, nr = 0;

		plain_tcp(pages * FT_PAGE_SIZE, samples, &plain);
		rig_open(&g, UINT64_C(1) << 30, pages, layout);
		rig_record(&g, samples);
		rig_close(&g);
		for (unsigned i = 0; i < samples; i++) {
			if (!probe.sample[i].ship_ns || probe.sample[i].pages != pages)
				continue;
			put(&ship, (double)probe.sample[i].ship_ns);
			put(&ratio, plain.v[from + nr++] / (double)probe.sample[i].ship_ns);
		}
	}
	probe.hold_guest = false;
	printf(json ? "{\"what\": \"ship\", \"pages\": %" PRIu64 ", \"layout\": \"%s\", \"samples\": %u"
		    : "ship  %6" PRIu64 " pages %s (%u):",
	       pages, where, ship.n);
	printf(json ? ", \"ship_gb_s\": %.3f, \"tcp_gb_s\": %.3f" : "  %.2f GB/s, plain TCP %.2f GB/s",
	       bytes / at_share(&ship, 0.5), bytes / at_share(&plain, 0.5));
	print_ratio(json ? "ship_to_tcp" : "ship/TCP", &ratio);
	printf(json ? "}\n" : "\n");
}

/* ---- size and memory ---- */

static uint64_t rss_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long size = 0, resident = 0;

	CHECK(f && fscanf(f, "%lu %lu", &size, &resident) == 2, "statm");
	fclose(f);
	return (uint64_t)resident * FT_PAGE_SIZE;
}

static void print_memory(uint64_t guest_bytes, uint64_t pages, const struct rig *g, uint64_t rss)
{
	struct ft_status p, s;
	double mib = 1 << 20;

	ft_session_status(g->primary, &p);
	ft_session_status(g->secondary, &s);
	CHECK(p.memory_bytes <= p.memory_cap_bytes && s.memory_bytes <= s.memory_cap_bytes,
	      "more memory in use than the cap allows");
	printf(json ? "{\"what\": \"memory\", \"guest_mib\": %.0f, \"pages\": %" PRIu64
		      ", \"primary_mib\": %.1f, \"primary_cap_mib\": %.1f, \"secondary_mib\": %.1f, "
		      "\"secondary_cap_mib\": %.1f, "
		      "\"rss_mib\": %.1f}\n"
		    : "memory, guest %.0f MiB, %" PRIu64
		      " pages an epoch: primary %.1f of %.1f MiB, secondary %.1f of %.1f MiB; both and "
		      "their guests %.1f MiB resident\n",
	       (double)guest_bytes / mib, pages, (double)p.memory_bytes / mib, (double)p.memory_cap_bytes / mib,
	       (double)s.memory_bytes / mib, (double)s.memory_cap_bytes / mib, (double)rss / mib);
}

/* Medians of one session. */
static void measure_size(uint64_t guest_bytes, uint64_t pages, enum layout layout, unsigned samples, bool tell_memory,
			 double *pause, double *to_memcpy)
{
	static struct pause_figures f;
	uint64_t before = rss_bytes();
	struct rig g;

	memset(&f, 0, sizeof(f));
	rig_open(&g, guest_bytes, pages, layout);
	rig_record(&g, samples);
	take_pairs(&f);
	if (tell_memory)
		print_memory(guest_bytes, pages, &g, rss_bytes() - before);
	rig_close(&g);
	*pause = at_share(&f.pause, 0.5);
	*to_memcpy = at_share(&f.pause_ratio, 0.5);
}

static void bench_size(const uint64_t *gib, unsigned n, uint64_t pages, enum layout layout, unsigned sessions,
		       unsigned samples)
{
	const char *where = layout == GIB ? "in the first GiB" : "spread over all";
	static struct series us[3], ratio[3], plain[3];

	memset(us, 0, sizeof(us));
	memset(ratio, 0, sizeof(ratio));
	memset(plain, 0, sizeof(plain));
	plain_begin(pages);
	for (unsigned s = 0; s < sessions; s++) {
		double first = 0, ns, to_memcpy;

		for (unsigned i = 0; i < n; i++) {
			measure_size(gib[i] << 30, pages, layout, samples, layout == GIB && s == 0, &ns, &to_memcpy);
			first = i ? first : ns;
			put(&us[i], ns);
			put(&ratio[i], ns / first);
			put(&plain[i], to_memcpy);
		}
	}
	plain_end(pages);
	for (unsigned i = 0; i < n; i++) {
		printf(json ? "{\"what\": \"size\", \"guest_gib\": %" PRIu64 ", \"pages\": %" PRIu64
			      ", \"layout\": \"%s\", \"sessions\": %u"
			    : "size  %3" PRIu64 " GiB, %" PRIu64 " pages %s (%u):",
		       gib[i], pages, where, us[i].n);
		print_us("pause", &us[i]);
		print_ratio(json ? "to_smallest" : "to the smallest", &ratio[i]);
		print_ratio(json ? "pause_to_memcpy" : "(pause-save)/memcpy", &plain[i]);
		printf(json ? "}\n" : "\n");
	}
}

/* ---- several threads ---- */

struct thread_figures {
	struct series pause, capture, apply;
};

static void measure_threads(uint64_t pages, unsigned threads, unsigned samples, struct thread_figures *f)
{
	static struct ft_stats stats;
	struct rig g;

	copy_threads = threads;
	rig_open(&g, UINT64_C(1) << 30, pages, SPREAD);
	rig_record(&g, samples);
	ft_session_stats(g.secondary, &stats);
	rig_close(&g);
	copy_threads = 1;
	f->pause.n = f->capture.n = 0;
	for (unsigned i = 0; i < atomic_load(&probe.nr); i++) {
		put(&f->pause, (double)probe.sample[i].pause_ns);
		put(&f->capture, (double)probe.sample[i].phase_ns[CAPTURE]);
	}
	put(&f->apply, (double)stats.dist[FT_METRIC_APPLY].p50);
}

/* A pair of sessions gives one ratio of medians. */
static void bench_threads(uint64_t pages, unsigned sessions, unsigned samples)
{
	static struct thread_figures one, many;
	static struct series pause[2], capture[2], apply[2], by_pause, by_capture, by_apply;
	struct series *all[] = { &pause[0], &pause[1], &capture[0], &capture[1], &apply[0],
				 &apply[1], &by_pause, &by_capture, &by_apply };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		all[i]->n = 0;
	for (unsigned s = 0; s < sessions; s++) {
		one.apply.n = many.apply.n = 0;
		for (unsigned k = 0; k < 2; k++)
			measure_threads(pages, (s + k) % 2 ? many_threads : 1, samples, (s + k) % 2 ? &many : &one);
		for (unsigned k = 0; k < 2; k++) {
			struct thread_figures *f = k ? &many : &one;

			put(&pause[k], at_share(&f->pause, 0.5));
			put(&capture[k], at_share(&f->capture, 0.5));
			put(&apply[k], at_share(&f->apply, 0.5));
		}
		put(&by_pause, at_share(&many.pause, 0.5) / at_share(&one.pause, 0.5));
		put(&by_capture, at_share(&many.capture, 0.5) / at_share(&one.capture, 0.5));
		put(&by_apply, at_share(&many.apply, 0.5) / at_share(&one.apply, 0.5));
	}
	for (unsigned k = 0; k < 2; k++) {
		printf(json ? "{\"what\": \"threads\", \"pages\": %" PRIu64 ", \"threads\": %u, \"sessions\": %u"
			    : "threads %6" PRIu64 " pages, %u threads (%u):",
		       pages, k ? many_threads : 1, pause[k].n);
		print_us("pause", &pause[k]);
		print_us("capture", &capture[k]);
		print_us("apply", &apply[k]);
		if (k) {
			print_ratio(json ? "pause_to_one" : "pause/one", &by_pause);
			print_ratio(json ? "capture_to_one" : "capture/one", &by_capture);
			print_ratio(json ? "apply_to_one" : "apply/one", &by_apply);
		}
		printf(json ? "}\n" : "\n");
	}
}

/* ---- */

static bool is_wanted(const char *part)
{
	return !only || strcmp(only, part) == 0;
}

static void arguments(int argc, char **argv)
{
	static const struct option options[] = { { "quick", no_argument, NULL, 'q' },
						 { "json", no_argument, NULL, 'j' },
						 { "primary", required_argument, NULL, 'p' },
						 { "secondary", required_argument, NULL, 's' },
						 { "threads", required_argument, NULL, 't' },
						 { "only", required_argument, NULL, 'o' },
						 { "pages", required_argument, NULL, 'n' },
						 { "help", no_argument, NULL, 'h' },
						 { 0 } };
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		quick |= c == 'q';
		json |= c == 'j';
		many_threads = c == 't' ? (unsigned)atoi(optarg) : many_threads;
		only_pages = c == 'n' ? strtoull(optarg, NULL, 10) : only_pages;
		only = c == 'o' ? optarg : only;
		if (c == 'p')
			primary_settings = optarg;
		if (c == 's')
			secondary_settings = optarg;
		if (c == 'h' || c == '?') {
			fprintf(c == 'h' ? stdout : stderr,
				"usage: bench_pause [--quick] [--json] [--only PART] [--threads N] [--pages "
				"N] "
				"[--primary NAME=VALUE,...] [--secondary NAME=VALUE,...]\n");
			exit(c != 'h');
		}
	}
}

int main(int argc, char **argv)
{
	static const uint64_t pages[] = { 100, 1000, 2000, 10000, 50000 }, gib[] = { 1, 4, 16 };

	arguments(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned i = 0; i < (quick ? 3u : 5u) && is_wanted("pause"); i++)
		bench_pause(pages[i], quick ? 1 : 3, quick ? 10 : pages[i] < 10000 ? 40 : 24);
	for (unsigned i = 2; i < (quick ? 3u : 5u) && is_wanted("ship"); i++)
		for (int layout = SPREAD; layout <= RUN; layout += RUN - SPREAD)
			bench_ship(pages[i], (enum layout)layout, quick ? 1 : 3, quick ? 5 : 15);
	for (int layout = GIB; layout >= SPREAD && is_wanted("size"); layout--)
		bench_size(gib, quick ? 2 : 3, 2000, (enum layout)layout, quick ? 1 : 5, quick ? 8 : 30);
	for (unsigned i = 1; i < (quick ? 2u : 5u) && is_wanted("threads"); i++)
		if (!only_pages || only_pages == pages[i])
			bench_threads(pages[i],
				      quick              ? 1
				      : pages[i] < 10000 ? 6
							 : 3,
				      quick              ? 8
				      : pages[i] < 10000 ? 40
							 : 16);
	return 0;
}
