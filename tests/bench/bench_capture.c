/* SPDX-License-Identifier: MIT */
/* bench_capture.c - what the copy in the guest's pause costs, beside the limit: a plain memcpy() of the same scattered
 * pages into the same memory, page by page.  Also apply beside memcpy, and what follows the pause: slab_plan; and what that takes with a table of what the
 * secondary has ("skip-same"), where nothing is the same (other) and where all is (same), beside what it takes without.
 * And both by several threads beside one, and the copy into huge pages beside small ones.
 * Each round makes a new random set of dirty pages for each measurement, and writes to each page first, as a guest
 * does; which goes first alternates.  A round gives a ratio; median and quartiles of the ratios are printed.
 *
 *   --quick   fewer rounds, up to 10,000 pages of 256 MiB     --json   machine-readable     --help
 *   --threads N   2     --only capture, same, apply, threads or huge     --pages N   only that many */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "capture.h"
#include "copy.h"
#include "clock.h"
#include "digest.h"
#include "pool.h"
#include "standby.h"

#define PAGE FT_PAGE_SIZE
#define ROUNDS_MAX 41
#define SLABS 32u

static uint64_t guest_pages = 1 << 18; /* 1 GiB */
static unsigned rounds = 41, threads = 2;
static uint64_t only_pages;
static const char *only;
static bool json, quick;

struct machine {
	uint8_t *guest;
	struct region_table *regions;
	struct bitmap *dirty;
	uint64_t *page;     /* the same set as a list */
	struct slab **slab; /* those in use: of one of the stagings */
	struct slab_plan *plan;
	struct staging {
		struct pool *pool;
		uint8_t *memory;
		struct slab *slab[SLABS];
	} small, huge;
	struct copier alone, crew;
	struct copier *copier; /* that in use */
	struct copier of_apply;
	struct same same;
	struct standby *standby;
	uint8_t *image;
	uint64_t epoch;
	uint32_t seq;
	uint64_t random;
};

static void fail(const char *what, const struct ft_error *err)
{
	fprintf(stderr, "bench_capture: %s: %s\n", what, err ? err->msg : "failed");
	exit(1);
}

static uint64_t rnd(struct machine *m)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return m->random;
}

static void staging_open(struct staging *s, bool huge)
{
	struct pool_options opt = { .cap_bytes = 512u << 20, .huge_pages = huge };
	struct ft_error err = { 0 };

	if (pool_create(&s->pool, &opt, &err))
		fail("staging", &err);
	s->memory = pool_alloc(s->pool, SLABS * SLAB_BYTES, SLAB_ALIGN);
	for (unsigned i = 0; i < SLABS; i++)
		if (!s->memory || slab_create(&s->slab[i], s->memory + i * SLAB_BYTES))
			fail("slabs", NULL);
}

static void staging_close(struct staging *s)
{
	for (unsigned i = 0; i < SLABS; i++)
		slab_destroy(s->slab[i]);
	pool_free(s->pool, s->memory, SLABS * SLAB_BYTES);
	pool_destroy(s->pool);
}

static void machine_open(struct machine *m)
{
	struct standby_options sopt = {
		.lanes = 1, .state_max = 4096, .epochs = 1, .ring_bytes = 2u << 20, .copier = &m->of_apply
	};
	struct region_table *none = region_table_empty();
	struct ft_error err = { 0 };
	uint64_t len;

	m->random = 1;
	m->guest = mmap(NULL, guest_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			-1, 0);
	if (m->guest == MAP_FAILED)
		fail("guest memory", NULL);
	m->regions = region_table_add(none, "ram", m->guest, guest_pages * PAGE, &err);
	region_table_free(none);
	m->page = malloc(guest_pages * sizeof(*m->page));
	m->plan = malloc(sizeof(*m->plan));
	if (!m->regions || !m->page || !m->plan || bitmap_create(&m->dirty, guest_pages))
		fail("set-up", &err);
	staging_open(&m->small, false);
	staging_open(&m->huge, true);
	m->slab = m->huge.slab;
	m->copier = &m->alone;
	if (copier_create(&m->crew, threads, "bench-crew", &err))
		fail("threads", &err);
	if (same_open(&m->same, guest_pages))
		fail("table", NULL);
	same_look_at(&m->same, true);
	if (standby_create(&m->standby, m->regions, &sopt, &err))
		fail("standby", &err);
	m->image = standby_image(m->standby, &len);
	memset(m->image, 1, guest_pages * PAGE);
}

static void machine_close(struct machine *m)
{
	standby_destroy(m->standby);
	same_close(&m->same);
	copier_destroy(&m->crew);
	staging_close(&m->small);
	staging_close(&m->huge);
	bitmap_destroy(m->dirty);
	region_table_free(m->regions);
	free(m->page);
	free(m->plan);
	munmap(m->guest, guest_pages * PAGE);
}

/* @nr pages, in runs of @run, at random; each is written to in @memory. */
static void make_dirty(struct machine *m, uint64_t nr, uint64_t run, uint8_t *memory)
{
	uint64_t n = 0;

	bitmap_clear(m->dirty);
	while (n < nr)
		n += bitmap_set_run(m->dirty, rnd(m) % (guest_pages / run) * run, nr - n < run ? nr - n : run);
	n = 0;
	for (struct page_run r = { 0 }; bitmap_next_run(m->dirty, r.first + r.nr, UINT64_MAX, &r);)
		for (uint64_t i = 0; i < r.nr; i++) {
			memory[(r.first + i) * PAGE + rnd(m) % PAGE] ^= 0x55;
			m->page[n++] = r.first + i;
		}
}

static double per_page(uint64_t since, uint64_t nr)
{
	return (double)(now_ns() - since) / (double)nr;
}

static double time_memcpy(struct machine *m, uint64_t nr)
{
	uint64_t t = now_ns();

	for (uint64_t i = 0; i < nr; i++)
		memcpy(m->slab[i / SLAB_PAGES]->memory + i % SLAB_PAGES * PAGE, m->guest + m->page[i] * PAGE, PAGE);
	return per_page(t, nr);
}

static double time_capture(struct machine *m, uint64_t nr)
{
	uint64_t t = now_ns(), at = 0, n = 0;
	unsigned i = 0;

	while (n < nr)
		n += capture_add(m->copier, m->slab[i++], m->regions, m->dirty, &at);
	copier_end(m->copier);
	return per_page(t, nr);
}

static double time_plan(struct machine *m, uint64_t nr, struct same *same)
{
	uint64_t t = now_ns();

	for (unsigned i = 0; i * UINT64_C(2048) < nr; i++)
		slab_plan(m->slab[i], 0, m->slab[i]->nr, same, NULL, m->plan);
	return per_page(t, nr);
}

static double time_apply_memcpy(struct machine *m, uint64_t nr)
{
	uint64_t t = now_ns();

	for (uint64_t i = 0; i < nr; i++)
		memcpy(m->guest + m->page[i] * PAGE, m->image + m->page[i] * PAGE, PAGE);
	return per_page(t, nr);
}

static void consume(struct machine *m, uint32_t lane, const void *msg, size_t len)
{
	enum standby_event event = STANDBY_NOTHING;
	struct ft_error err;

	if (standby_consume(m->standby, lane, msg, len, &event, &err))
		fail("standby", &err);
	if (event & STANDBY_WHOLE && standby_commit(m->standby, &event, &err))
		fail("commit", &err);
}

/* Tell the dirty pages to the standby, one run a record, and commit. */
static void tell(struct machine *m, uint64_t nr)
{
	static uint8_t buf[FTW_RECORD_MAX];
	struct commit c = { .lanes = 1, .nr_data_pages = nr, .digest = digest_state(NULL, 0) };

	m->epoch++;
	for (struct page_run r = { 0 }; bitmap_next_run(m->dirty, r.first + r.nr, FTW_NOTIFY_PAGES_MAX, &r);) {
		uint64_t digest = 0;

		for (uint64_t p = r.first; p < r.first + r.nr; p++)
			digest += digest_page(m->image + p * PAGE, p);
		c.digest += digest;
		consume(m, 1, buf, create_runs(buf, FTW_NOTIFY_WRITE, m->epoch, ++m->seq, &r, 1, digest));
	}
	c.seq[0] = m->seq;
	consume(m, 0, buf, create_commit(buf, m->epoch, (uint32_t)m->epoch, &c));
}

static double time_apply(struct machine *m, uint64_t nr)
{
	uint64_t t;
	double ns;

	standby_begin_apply(m->standby);
	t = now_ns();
	standby_apply_run(m->standby);
	ns = per_page(t, nr);
	standby_end_apply(m->standby);
	return ns;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double at_share(double *v, double share)
{
	qsort(v, rounds, sizeof(*v), by_value);
	return v[(unsigned)((double)(rounds - 1) * share)];
}

static void report(const char *what, const char *beside, uint64_t nr, uint64_t run, double *ours, double *plain,
		   double *ratio)
{
	const char *table =
		"%-8s %6lu pages in runs of %-3lu %7.0f ns a page, %s %7.0f; ratio %.2f (quartiles %.2f to %.2f)\n";
	const char *object =
		"{\"what\": \"%s\", \"pages\": %lu, \"run\": %lu, \"ns_per_page\": %.1f, \"%s_ns_per_page\": %.1f, "
		"\"ratio\": %.3f, \"ratio_p25\": %.3f, \"ratio_p75\": %.3f}\n";

	printf(json ? object : table, what, (unsigned long)nr, (unsigned long)run, at_share(ours, 0.5), beside,
	       at_share(plain, 0.5), at_share(ratio, 0.5), at_share(ratio, 0.25), at_share(ratio, 0.75));
}

static void bench_capture(struct machine *m, uint64_t nr, uint64_t run)
{
	double ours[ROUNDS_MAX], plain[ROUNDS_MAX], ratio[ROUNDS_MAX], plan[ROUNDS_MAX], share[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 2; k++) {
			make_dirty(m, nr, run, m->guest);
			if ((i + k) % 2) {
				plain[i] = time_memcpy(m, nr);
			} else {
				ours[i] = time_capture(m, nr);
				plan[i] = time_plan(m, nr, NULL);
			}
		}
		ratio[i] = ours[i] / plain[i];
		share[i] = plan[i] / plain[i];
	}
	report("capture", "memcpy", nr, run, ours, plain, ratio);
	report("plan", "memcpy", nr, run, plan, plain, share);
}

/* Of pages that were copied just now, past the cache. */
static double time_fresh_plan(struct machine *m, uint64_t nr, struct same *same)
{
	time_capture(m, nr);
	return time_plan(m, nr, same);
}

static void bench_same(struct machine *m, uint64_t nr, uint64_t run)
{
	double none[ROUNDS_MAX], other[ROUNDS_MAX], same[ROUNDS_MAX], ratio[ROUNDS_MAX], share[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		make_dirty(m, nr, run, m->guest);
		none[i] = time_fresh_plan(m, nr, NULL);
		make_dirty(m, nr, run, m->guest);
		other[i] = time_fresh_plan(m, nr, &m->same);
		same[i] = time_fresh_plan(m, nr, &m->same);
		ratio[i] = other[i] / none[i];
		share[i] = same[i] / none[i];
	}
	report("other", "without", nr, run, other, none, ratio);
	report("same", "without", nr, run, same, none, share);
}

static void bench_apply(struct machine *m, uint64_t nr, uint64_t run)
{
	double ours[ROUNDS_MAX], plain[ROUNDS_MAX], ratio[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 2; k++) {
			make_dirty(m, nr, run, m->image);
			tell(m, nr);
			if ((i + k) % 2) {
				plain[i] = time_apply_memcpy(m, nr);
				time_apply(m, nr); /* to be ready for the next epoch */
			} else {
				ours[i] = time_apply(m, nr);
			}
		}
		ratio[i] = ours[i] / plain[i];
	}
	report("apply", "memcpy", nr, run, ours, plain, ratio);
}

/* Several threads beside one. */
static void bench_threads(struct machine *m, uint64_t nr, uint64_t run)
{
	double two[ROUNDS_MAX], one[ROUNDS_MAX], ratio[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 2; k++) {
			make_dirty(m, nr, run, m->guest);
			m->copier = (i + k) % 2 ? &m->alone : &m->crew;
			*((i + k) % 2 ? &one[i] : &two[i]) = time_capture(m, nr);
		}
		ratio[i] = two[i] / one[i];
	}
	m->copier = &m->alone;
	report("threads", "one", nr, run, two, one, ratio);
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 2; k++) {
			make_dirty(m, nr, run, m->image);
			tell(m, nr);
			m->of_apply = (i + k) % 2 ? m->alone : m->crew;
			*((i + k) % 2 ? &one[i] : &two[i]) = time_apply(m, nr);
			if (!((i + k) % 2))
				m->crew = m->of_apply;
		}
		ratio[i] = two[i] / one[i];
	}
	m->of_apply = m->alone;
	report("applied", "one", nr, run, two, one, ratio);
}

static void bench_huge(struct machine *m, uint64_t nr, uint64_t run)
{
	double huge[ROUNDS_MAX], small[ROUNDS_MAX], ratio[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 2; k++) {
			make_dirty(m, nr, run, m->guest);
			m->slab = (i + k) % 2 ? m->small.slab : m->huge.slab;
			*((i + k) % 2 ? &small[i] : &huge[i]) = time_capture(m, nr);
		}
		ratio[i] = huge[i] / small[i];
	}
	m->slab = m->huge.slab;
	report("huge", "small", nr, run, huge, small, ratio);
}

static void arguments(int argc, char **argv)
{
	static const struct option options[] = { { "quick", no_argument, NULL, 'q' },
						 { "json", no_argument, NULL, 'j' },
						 { "help", no_argument, NULL, 'h' },
						 { "threads", required_argument, NULL, 't' },
						 { "only", required_argument, NULL, 'o' },
						 { "pages", required_argument, NULL, 'p' },
						 { 0 } };
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		quick |= c == 'q';
		json |= c == 'j';
		threads = c == 't' ? (unsigned)atoi(optarg) : threads;
		only = c == 'o' ? optarg : only;
		only_pages = c == 'p' ? strtoull(optarg, NULL, 10) : only_pages;
		if (c == 'h' || c == '?') {
			fprintf(c == 'h' ? stdout : stderr,
				"usage: bench_capture [--quick] [--json] [--threads N] [--only PART] [--pages N]\n");
			exit(c != 'h');
		}
	}
	if (quick) {
		rounds = 5;
		guest_pages = 1 << 16;
	}
}

static bool is_wanted(const char *part, uint64_t pages)
{
	return (!only || strcmp(only, part) == 0) && (!only_pages || only_pages == pages);
}

int main(int argc, char **argv)
{
	static const uint64_t counts[] = { 100, 1000, 2000, 10000, 50000 };
	static const struct {
		const char *name;
		void (*run)(struct machine *m, uint64_t nr, uint64_t run);
	} parts[] = {
		{ "capture", bench_capture }, { "same", bench_same }, { "apply", bench_apply },
		{ "threads", bench_threads }, { "huge", bench_huge },
	};
	static struct machine m;

	arguments(argc, argv);
	machine_open(&m);
	make_dirty(&m, 1, 1, m.image);
	tell(&m, 1);
	time_apply(&m, 1); /* the first epoch clears the rest */
	memset(m.guest, 1, guest_pages * PAGE);
	for (unsigned i = 0; i < (quick ? 4u : 5u); i++)
		for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++)
			for (uint64_t run = 1; run <= 8 && is_wanted(parts[p].name, counts[i]); run += 7)
				parts[p].run(&m, counts[i], run);
	machine_close(&m);
	return 0;
}
