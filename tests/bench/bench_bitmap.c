/* SPDX-License-Identifier: MIT */
/* bench_bitmap.c - what it costs to fetch, clear and walk the dirty pages of a 64 GiB guest (16 Mi pages).
 * Beside each other in every repetition, on the same pages:
 *	summary	bitmap_take() into a second bitmap, then bitmap_next_run() over that one
 *	flat	one pass over a plain array of words, eight looked at at a time, each non-zero one exchanged with 0, its
 *		runs joined across words: the best that can be done without summary levels, when the set itself is not kept
 *	flat2	the same job as summary, by flat passes: into a second array, then the runs of that one
 * All end with the same runs (checked by a digest).  "cold": 32 MiB of other memory were read before, as a guest does
 * between two checkpoints; "warm": nothing was.  "clear": bitmap_clear() of the second bitmap, later and not
 * in the pause.  Ratios are within one repetition; the figures printed are medians, with the first and third quartile.  Nothing is asserted about times. */
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bitmap.h"
#include "clock.h"

#define RUN_MAX 2048 /* pages; a notify-write holds no more */
#define EVICT_BYTES (32u << 20)
#define REPS_MAX 1001

struct setting {
	uint64_t nr_pages;
	unsigned reps;
	bool json;
};

struct sample {
	double q1, median, q3;
};

struct result {
	const char *name;
	uint64_t nr_dirty;
	bool cold;
	struct sample summary_us, clear_us, flat_us, flat2_us, flat_ratio, flat2_ratio;
};

struct walk {
	uint64_t nr_runs, nr_pages, digest;
	struct page_run run; /* not yet told */
};

static struct bitmap *dirty, *taken;
static _Atomic uint64_t *flat, *flat_taken;
static uint8_t *other; /* EVICT_BYTES */
static volatile uint64_t sink;

static void tell(struct walk *w, struct page_run r)
{
	w->nr_runs++;
	w->nr_pages += r.nr;
	w->digest = (w->digest ^ r.first ^ r.nr << 40) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct walk walk_summary(void)
{
	struct walk w = { 0 };

	bitmap_take(taken, dirty);
	for (struct page_run r = { 0 }; bitmap_next_run(taken, r.first + r.nr, RUN_MAX, &r);)
		tell(&w, r);
	return w;
}

/* One more run of the flat pass: joined to the one before if they touch, told when it is full. */
static void join(struct walk *w, uint64_t first, uint64_t nr)
{
	if (w->run.nr && w->run.first + w->run.nr == first) {
		w->run.nr += nr;
	} else {
		if (w->run.nr)
			tell(w, w->run);
		w->run = (struct page_run){ first, nr };
	}
	while (w->run.nr >= RUN_MAX) {
		tell(w, (struct page_run){ w->run.first, RUN_MAX });
		w->run = (struct page_run){ w->run.first + RUN_MAX, w->run.nr - RUN_MAX };
	}
}

/* Fetch and clear; plain stores will do where nobody else sets bits. */
static uint64_t grab(_Atomic uint64_t *word, bool alone)
{
	uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);

	if (!bits)
		return 0;
	if (!alone)
		return atomic_exchange(word, 0);
	atomic_store_explicit(word, 0, memory_order_relaxed);
	return bits;
}

static void join_word(struct walk *w, uint64_t page, uint64_t bits)
{
	uint64_t skip, nr;

	if (bits == UINT64_MAX) {
		join(w, page, 64);
		return;
	}
	while (bits) {
		skip = (uint64_t)__builtin_ctzll(bits);
		bits >>= skip;
		page += skip;
		nr = (uint64_t)__builtin_ctzll(~bits);
		join(w, page, nr);
		bits >>= nr;
		page += nr;
	}
}

static bool any_of_eight(const _Atomic uint64_t *words)
{
	uint64_t any = 0;

	for (unsigned i = 0; i < 8; i++)
		any |= atomic_load_explicit(&words[i], memory_order_relaxed);
	return any;
}

static struct walk walk_flat(_Atomic uint64_t *words, uint64_t nr_words, bool alone)
{
	struct walk w = { 0 };

	for (uint64_t at = 0; at < nr_words; at += 8)
		for (unsigned i = 0; i < 8 && (i || any_of_eight(&words[at])); i++)
			join_word(&w, (at + i) << 6, grab(&words[at + i], alone));
	if (w.run.nr)
		tell(&w, w.run);
	return w;
}

static struct walk walk_flat2(uint64_t nr_words)
{
	uint64_t bits;

	for (uint64_t at = 0; at < nr_words; at += 8)
		for (unsigned i = 0; i < 8 && (i || any_of_eight(&flat[at])); i++) {
			bits = grab(&flat[at + i], false);
			if (bits)
				atomic_store_explicit(&flat_taken[at + i], bits, memory_order_relaxed);
		}
	return walk_flat(flat_taken, nr_words, true);
}

static void fill_flat(uint64_t nr_pages, uint64_t nr, bool also_summary)
{
	uint64_t seed = 1, page;

	for (uint64_t i = 0; i < nr; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		page = i * (nr_pages / nr) + (seed >> 33) % (nr_pages / nr);
		flat[page >> 6] |= UINT64_C(1) << (page & 63);
		if (also_summary)
			bitmap_set(dirty, page);
	}
}

/* @nr pages, spread over all with some jitter. */
static void fill(uint64_t nr_pages, uint64_t nr, bool also_summary)
{
	if (nr < nr_pages) {
		fill_flat(nr_pages, nr, also_summary);
		return;
	}
	memset((void *)flat, 0xff, nr_pages / 8);
	if (also_summary)
		bitmap_set_run(dirty, 0, nr);
}

static void evict(bool cold)
{
	for (size_t i = 0; cold && i < EVICT_BYTES; i += 64)
		sink += other[i];
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct sample quartiles(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_value);
	return (struct sample){ v[n / 4], v[n / 2], v[n - 1 - n / 4] };
}

static double us_since(uint64_t start)
{
	return (double)(now_ns() - start) / 1e3;
}

static void expect_same(const struct result *r, struct walk a, struct walk b)
{
	if (a.digest == b.digest && a.nr_runs == b.nr_runs && a.nr_pages == r->nr_dirty && b.nr_pages == r->nr_dirty)
		return;
	fprintf(stderr, "bench_bitmap: %s: the walks differ\n", r->name);
	exit(1);
}

static void measure(const struct setting *s, struct result *r)
{
	static double summary[REPS_MAX], clear[REPS_MAX], plain[REPS_MAX], plain2[REPS_MAX], ratio[REPS_MAX],
		ratio2[REPS_MAX];
	struct walk a, b;
	uint64_t t;

	for (unsigned i = 0; i < s->reps; i++) {
		fill(s->nr_pages, r->nr_dirty, true);
		evict(r->cold);
		t = now_ns();
		a = walk_summary();
		summary[i] = us_since(t);
		t = now_ns();
		bitmap_clear(taken);
		clear[i] = us_since(t);
		evict(r->cold);
		t = now_ns();
		b = walk_flat(flat, s->nr_pages / 64, false);
		plain[i] = us_since(t);
		expect_same(r, a, b);
		fill(s->nr_pages, r->nr_dirty, false);
		evict(r->cold);
		t = now_ns();
		b = walk_flat2(s->nr_pages / 64);
		plain2[i] = us_since(t);
		expect_same(r, a, b);
		ratio[i] = plain[i] / summary[i];
		ratio2[i] = plain2[i] / summary[i];
	}
	r->summary_us = quartiles(summary, s->reps);
	r->clear_us = quartiles(clear, s->reps);
	r->flat_us = quartiles(plain, s->reps);
	r->flat2_us = quartiles(plain2, s->reps);
	r->flat_ratio = quartiles(ratio, s->reps);
	r->flat2_ratio = quartiles(ratio2, s->reps);
}

static void put_json(const char *name, struct sample v)
{
	printf(", \"%s\": {\"q1\": %.3f, \"median\": %.3f, \"q3\": %.3f}", name, v.q1, v.median, v.q3);
}

static void put_column(struct sample v)
{
	char spread[48];

	snprintf(spread, sizeof(spread), "(%.2f-%.2f)", v.q1, v.q3);
	printf(" %8.2f %-19s", v.median, spread);
}

static void print(const struct setting *s, const struct result *r, bool first)
{
	static const char *const names[] = { "summary_us", "clear_us",     "flat_us",
					     "flat2_us",   "flat/summary", "flat2/summary" };
	const struct sample v[] = {
		r->summary_us, r->clear_us, r->flat_us, r->flat2_us, r->flat_ratio, r->flat2_ratio
	};

	if (first && !s->json) {
		printf("%-6s %-5s", "dirty", "cache");
		for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
			printf(" %-28s", names[i]);
		printf("\n");
	}
	if (s->json)
		printf("%s\n  {\"dirty\": \"%s\", \"nr_dirty\": %" PRIu64 ", \"cache\": \"%s\"", first ? "" : ",",
		       r->name, r->nr_dirty, r->cold ? "cold" : "warm");
	else
		printf("%-6s %-5s", r->name, r->cold ? "cold" : "warm");
	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		s->json ? put_json(names[i], v[i]) : put_column(v[i]);
	printf(s->json ? "}" : "\n");
}

static void run(const struct setting *s)
{
	struct result results[] = {
		{ .name = "0" },
		{ .name = "0", .cold = true },
		{ .name = "5000", .nr_dirty = 5000 },
		{ .name = "5000", .nr_dirty = 5000, .cold = true },
		{ .name = "all", .nr_dirty = s->nr_pages },
		{ .name = "all", .nr_dirty = s->nr_pages, .cold = true },
	};

	if (s->json)
		printf("{\"bench\": \"bitmap\", \"nr_pages\": %" PRIu64 ", \"reps\": %u, \"results\": [", s->nr_pages,
		       s->reps);
	else
		printf("%" PRIu64 " pages (%" PRIu64 " GiB), %u repetitions; median (quartiles)\n", s->nr_pages,
		       s->nr_pages >> 18, s->reps);
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		measure(s, &results[i]);
		print(s, &results[i], i == 0);
	}
	if (s->json)
		printf("\n]}\n");
}

static const char usage[] =
	"usage: bench_bitmap [--quick] [--json] [--reps N] [--gib N]\n"
	"Fetch, clear and walk the dirty pages of a 64 GiB guest: summary bitmap beside a flat scan.\n"
	"  --quick   few repetitions, for ctest\n"
	"  --json    machine-readable\n"
	"  --reps N  repetitions, 1 to 1001 (default 101)\n"
	"  --gib N   guest size (default 64)\n";

static void *map(size_t len)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

/* All memory is touched before anything is measured, as that of a running session has been. */
static bool prepare(uint64_t nr_pages)
{
	flat = map(nr_pages / 8);
	flat_taken = map(nr_pages / 8);
	other = map(EVICT_BYTES);
	if (flat == MAP_FAILED || flat_taken == MAP_FAILED || other == MAP_FAILED)
		return false;
	if (bitmap_create(&dirty, nr_pages) || bitmap_create(&taken, nr_pages))
		return false;
	bitmap_set_run(dirty, 0, nr_pages);
	bitmap_take(taken, dirty);
	bitmap_clear(taken);
	return true;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "quick", no_argument, NULL, 'q' },      { "json", no_argument, NULL, 'j' },
		{ "reps", required_argument, NULL, 'r' }, { "gib", required_argument, NULL, 'g' },
		{ "help", no_argument, NULL, 'h' },       { 0 },
	};
	struct setting s = { .nr_pages = UINT64_C(16) << 20, .reps = 101 };

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (c) {
		case 'q':
			s.reps = 5;
			break;
		case 'j':
			s.json = true;
			break;
		case 'r':
			s.reps = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'g':
			s.nr_pages = strtoul(optarg, NULL, 10) << 18;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (s.reps < 1 || s.reps > REPS_MAX || s.nr_pages == 0 || s.nr_pages > UINT64_C(1) << 32 || optind < argc) {
		fputs(usage, stderr);
		return 2;
	}
	if (!prepare(s.nr_pages)) {
		fprintf(stderr, "bench_bitmap: no memory for %" PRIu64 " pages\n", s.nr_pages);
		return 1;
	}
	run(&s);
	munmap((void *)flat, s.nr_pages / 8);
	munmap((void *)flat_taken, s.nr_pages / 8);
	munmap(other, EVICT_BYTES);
	bitmap_destroy(dirty);
	bitmap_destroy(taken);
	return 0;
}
