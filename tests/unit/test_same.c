/* SPDX-License-Identifier: MIT */
/* test_same.c - checkpoint/same.c and slab_plan() against a naive model: what is not told is what the other side has, whatever was written, sent twice, and
 * looked at before; and what it has is not told again, where it is looked at. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "capture.h"
#include "digest.h"
#include "rng.h"

#define PAGE FT_PAGE_SIZE
#define PAGES 700u

struct world {
	struct same same;
	struct slab *slab;
	struct slab_plan *plan;
	uint8_t *staging, *here, *there; /* memory of both sides */
	bool known[PAGES];               /* the other side's page was looked at when it was sent, and not forgotten */
	struct rng rng;
	uint64_t told, passed;
};

static uint8_t *page_of(uint8_t *memory, uint64_t page)
{
	return memory + page * PAGE;
}

static void world_open(struct world *w, uint64_t seed)
{
	memset(w, 0, sizeof(*w));
	w->rng.state = seed;
	w->staging = aligned_alloc(SLAB_ALIGN, SLAB_BYTES);
	w->here = calloc(PAGES, PAGE);
	w->there = calloc(PAGES, PAGE);
	w->plan = calloc(1, sizeof(*w->plan));
	cr_assert_eq(slab_create(&w->slab, w->staging), 0);
	cr_assert_eq(same_open(&w->same, PAGES), 0);
}

static void world_close(struct world *w)
{
	same_close(&w->same);
	same_close(&w->same); /* harmless */
	slab_destroy(w->slab);
	free(w->plan);
	free(w->there);
	free(w->here);
	free(w->staging);
}

/* Zeros, one of two contents of the page's own, or such a one but for one octet. */
static void write_page(struct world *w, uint64_t page)
{
	uint8_t *at = page_of(w->here, page);
	uint64_t draw = rng_next(&w->rng);

	memset(at, 0, PAGE);
	if (draw % 4)
		memset(at, (int)(1 + (page + draw % 2) % 255), PAGE);
	if (draw % 4 == 3)
		at[draw / 4 % PAGE] ^= (uint8_t)(1u << draw / 4 / PAGE % 8);
}

static void fill(struct world *w, unsigned share)
{
	w->slab->nr = 0;
	for (uint64_t page = 0; page < PAGES; page++) {
		if (rng_next(&w->rng) % 100 >= share)
			continue;
		memcpy(page_of(w->slab->memory, w->slab->nr), page_of(w->here, page), PAGE);
		w->slab->page[w->slab->nr++] = page;
	}
}

/* Is page @page told in @runs? */
static bool take(const struct page_run *runs, uint32_t nr, uint64_t page)
{
	for (uint32_t i = 0; i < nr; i++)
		if (page >= runs[i].first && page < runs[i].first + runs[i].nr)
			return true;
	return false;
}

static void check_counts(const struct world *w, uint32_t nr)
{
	uint64_t digest = 0, pages = 0;

	for (uint32_t i = 0; i < w->plan->nr_data_runs; i++)
		for (uint64_t k = 0; k < w->plan->data[i].nr; k++, pages++) {
			const uint8_t *at = page_of(w->slab->memory, w->plan->data_slot[i] + k);

			cr_assert_eq(w->slab->page[w->plan->data_slot[i] + k], w->plan->data[i].first + k);
			digest += digest_page(at, w->plan->data[i].first + k);
		}
	cr_assert_eq(pages, w->plan->nr_data);
	cr_assert_eq(digest, w->plan->data_digest);
	cr_assert_eq(w->plan->nr_data + w->plan->nr_zero + w->plan->nr_same, nr);
}

/* Sends slots [@first, @first + @nr): what the plan says arrives, and each page is judged by what is there. */
static void send_part(struct world *w, uint32_t first, uint32_t nr)
{
	slab_plan(w->slab, first, nr, &w->same, NULL, w->plan);
	check_counts(w, nr);
	for (uint32_t slot = first; slot < first + nr; slot++) {
		uint64_t page = w->slab->page[slot];
		uint8_t *now = page_of(w->slab->memory, slot), *there = page_of(w->there, page);
		bool data = take(w->plan->data, w->plan->nr_data_runs, page);
		bool zero = take(w->plan->zero, w->plan->nr_zero_runs, page);
		bool equal = memcmp(now, there, PAGE) == 0;

		cr_assert(!data || !zero);
		cr_assert(data || zero || equal, "page %lu is not told, and is not the same", (unsigned long)page);
		cr_assert(!w->known[page] || !equal || (!data && !zero), "page %lu is told again", (unsigned long)page);
		memcpy(there, now, PAGE);
		w->known[page] = w->known[page] || w->same.all;
		w->told += data || zero;
		w->passed += !data && !zero;
	}
}

static void send_all(struct world *w)
{
	for (uint32_t at = 0; at < w->slab->nr; at += 256)
		send_part(w, at, w->slab->nr - at < 256 ? w->slab->nr - at : 256);
}

/* Both memories are compared after each epoch; within one some pages are sent, written, and sent again. */
static void epoch(struct world *w)
{
	for (unsigned n = 0; n < 400; n++)
		write_page(w, rng_next(&w->rng) % PAGES);
	fill(w, 30);
	send_all(w);
	for (unsigned n = 0; n < 100; n++)
		write_page(w, rng_next(&w->rng) % PAGES);
	fill(w, 100);
	send_all(w);
	cr_assert_eq(memcmp(w->here, w->there, (size_t)PAGES * PAGE), 0);
}

Test(same, what_is_not_told_is_there, .timeout = 120)
{
	static struct world w;

	world_open(&w, 7);
	for (unsigned i = 0; i < 120; i++) {
		if (i % 10 == 0) {
			bool all = rng_next(&w.rng) % 3 != 0;

			if (w.same.all && !all)
				memset(w.known, 0, sizeof(w.known));
			same_look_at(&w.same, all);
		}
		epoch(&w);
	}
	cr_expect_gt(w.passed, w.told / 4);
	cr_expect_gt(w.told, w.passed / 4);
	world_close(&w);
}

/* The other side is a new one: nothing that was told to the one before counts. */
Test(same, a_new_table_knows_nothing)
{
	static struct world w;
	struct digest128 before;

	world_open(&w, 8);
	same_look_at(&w.same, true);
	epoch(&w);
	before = w.same.zero;
	same_close(&w.same);
	cr_assert_eq(same_open(&w.same, PAGES), 0);
	cr_expect_not(w.same.all);
	cr_expect(before.low != w.same.zero.low && before.high != w.same.zero.high, "the secret is the old one");
	same_look_at(&w.same, true);
	memset(w.there, 0xee, (size_t)PAGES * PAGE);
	fill(&w, 100);
	send_all(&w);
	cr_assert_eq(memcmp(w.here, w.there, (size_t)PAGES * PAGE), 0);
	world_close(&w);
}

/* Also of memory that is locked, which cannot be given back. */
Test(same, what_is_forgotten_is_forgotten)
{
	static struct world w;

	for (unsigned locked = 0; locked < 2; locked++) {
		world_open(&w, 9);
		if (locked && mlock(w.same.page, PAGES * sizeof(*w.same.page)))
			cr_assert(0, "the table cannot be locked");
		same_look_at(&w.same, true);
		epoch(&w);
		same_look_at(&w.same, true);
		cr_expect(w.same.page[3].low | w.same.page[3].high);
		same_look_at(&w.same, false);
		for (unsigned i = 0; i < PAGES; i++)
			cr_assert_not(w.same.page[i].low | w.same.page[i].high, "page %u", i);
		world_close(&w);
	}
}

static uint8_t used[PAGE], other[PAGE], zeros[PAGE];

/* A thirty-second of the pages, also where their numbers have a divisor in common. */
Test(same, the_sample_is_spread)
{
	struct same s;
	const uint64_t number = 3200;

	memset(used, 1, PAGE);
	cr_assert_eq(same_open(&s, number * 4096), 0);
	for (uint64_t stride = 1; stride <= 4096; stride *= 2) {
		s.looked = 0;
		for (uint64_t i = 0; i < number; i++)
			same_is(&s, i * stride, used, false);
		cr_expect(s.looked > 50 && s.looked < 200, "stride %lu: %lu of %lu", (unsigned long)stride,
			  (unsigned long)s.looked, (unsigned long)number);
	}
	same_close(&s);
}

/* The same pages are the sample when all are looked at; zeros are looked at, but no reason to look. */
Test(same, only_the_sample_is_counted, .timeout = 60)
{
	struct same s;
	uint64_t looked;

	memset(used, 1, PAGE);
	memset(other, 2, PAGE);
	cr_assert_eq(same_open(&s, 10000), 0);
	for (uint64_t i = 0; i < 10000; i++)
		same_is(&s, i, used, false);
	looked = s.looked;
	cr_expect_eq(s.found, 0);
	same_look_at(&s, true);
	for (uint64_t i = 0; i < 10000; i++)
		same_is(&s, i, used, false);
	cr_expect_eq(s.looked, 2 * looked);
	cr_expect_eq(s.found, looked, "the sample was forgotten when all became of interest");
	for (uint64_t i = 0; i < 10000; i++)
		cr_assert_not(same_is(&s, i, other, false));
	cr_expect_eq(s.looked, 3 * looked);
	cr_expect_eq(s.found, looked);
	for (unsigned round = 0; round < 2; round++)
		for (uint64_t i = 0; i < 10000; i++)
			cr_assert_eq(same_is(&s, i, zeros, true), round == 1);
	cr_expect_eq(s.looked, 3 * looked);
	cr_expect_not(same_is(&s, 5, other, false), "it became zeros meanwhile");
	same_close(&s);
}

/* A digest that says "none" is one page in 2^128; no page can be made to have it here, so the entry is made. */
Test(same, none_is_never_the_same)
{
	struct same s;

	cr_assert_eq(same_open(&s, 10), 0);
	same_look_at(&s, true);
	s.zero = (struct digest128){ 0 };
	cr_expect_not(same_is(&s, 1, zeros, true));
	cr_expect_not(same_is(&s, 1, zeros, true));
	same_close(&s);
}

Test(same, every_bit_of_a_page_counts)
{
	struct same s;

	memset(used, 5, PAGE);
	cr_assert_eq(same_open(&s, 10), 0);
	same_look_at(&s, true);
	same_is(&s, 9, used, false);
	cr_assert(same_is(&s, 9, used, false));
	for (unsigned bit = 0; bit < 8 * PAGE; bit++) {
		used[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_not(same_is(&s, 9, used, false), "bit %u", bit);
		used[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_not(same_is(&s, 9, used, false), "bit %u, back", bit);
	}
	cr_expect_gt(same_cost_ps(&s, used, 1), 1000);
	same_close(&s);
}
