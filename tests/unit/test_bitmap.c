/* SPDX-License-Identifier: MIT */
/* test_bitmap.c - bitmap.h against a naive model: an octet per page, no levels, nothing clever.
 * Random programs run on both, and after every few steps everything that can be asked is compared.  One test spoils the
 * model on purpose, to prove that the comparison would notice. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bitmap.h"
#include "faultpoint.h"

struct model {
	uint64_t nr_pages;
	uint8_t *set;
};

/* splitmix64: same programs on every machine */
static uint64_t draw(uint64_t *seed)
{
	uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static struct bitmap *create(uint64_t nr_pages)
{
	struct bitmap *b;

	cr_assert_eq(bitmap_create(&b, nr_pages), 0);
	cr_assert_not_null(b);
	return b;
}

static struct model model_create(uint64_t nr_pages)
{
	struct model m = { nr_pages, calloc(nr_pages, 1) };

	cr_assert_not_null(m.set);
	return m;
}

static uint64_t model_weight(const struct model *m, uint64_t first, uint64_t nr)
{
	uint64_t n = 0;

	for (uint64_t p = first; p < first + nr; p++)
		n += m->set[p];
	return n;
}

/* The longest run from the first set page at or behind @from; false if there is none. */
static bool model_next_run(const struct model *m, uint64_t from, uint64_t max, struct page_run *run)
{
	while (from < m->nr_pages && !m->set[from])
		from++;
	*run = (struct page_run){ .first = from };
	while (run->nr < max && from + run->nr < m->nr_pages && m->set[from + run->nr])
		run->nr++;
	return run->nr > 0;
}

static bool same_runs(const struct bitmap *b, const struct model *m, uint64_t max)
{
	struct page_run got = { 0 }, want = { 0 };
	bool more, want_more;

	do {
		want_more = model_next_run(m, want.first + want.nr, max, &want);
		more = bitmap_next_run(b, got.first + got.nr, max, &got);
		if (more != want_more || (more && (got.first != want.first || got.nr != want.nr)))
			return false;
	} while (more);
	return true;
}

static bool same(const struct bitmap *b, const struct model *m, uint64_t *seed)
{
	uint64_t n = model_weight(m, 0, m->nr_pages), first, nr;

	if (bitmap_count(b) != n || bitmap_empty(b) != (n == 0) || bitmap_pages(b) != m->nr_pages)
		return false;
	for (uint64_t p = 0; p < m->nr_pages; p++)
		if (bitmap_test(b, p) != m->set[p])
			return false;
	for (int i = 0; i < 20; i++) {
		first = draw(seed) % m->nr_pages;
		nr = draw(seed) % (m->nr_pages - first + 1);
		if (bitmap_test_any(b, first, nr) != (model_weight(m, first, nr) > 0))
			return false;
	}
	return same_runs(b, m, UINT64_MAX) && same_runs(b, m, 1 + draw(seed) % 200);
}

/* Mostly short ranges, sometimes long ones, often touching the borders of words. */
static struct page_run draw_range(uint64_t *seed, uint64_t nr_pages)
{
	uint64_t first = draw(seed) % nr_pages, nr, left;

	if (draw(seed) % 3 == 0)
		first &= ~UINT64_C(63);
	left = nr_pages - first;
	nr = draw(seed) % 4 ? draw(seed) % 200 : draw(seed) % (left + 1);
	return (struct page_run){ first, nr < left ? nr : left };
}

static void step(struct bitmap *b[2], struct model m[2], uint64_t *seed)
{
	unsigned i = draw(seed) & 1;
	struct page_run r = draw_range(seed, m[i].nr_pages);
	uint64_t n;

	switch (draw(seed) % 9) {
	case 0:
	case 1:
	case 2:
		cr_assert_eq(bitmap_set(b[i], r.first), !m[i].set[r.first]);
		m[i].set[r.first] = 1;
		break;
	case 3:
	case 4:
		n = r.nr - model_weight(&m[i], r.first, r.nr);
		cr_assert_eq(bitmap_set_run(b[i], r.first, r.nr), n);
		memset(m[i].set + r.first, 1, r.nr);
		break;
	case 5:
	case 6:
		bitmap_clear_run(b[i], r.first, r.nr);
		memset(m[i].set + r.first, 0, r.nr);
		break;
	case 7:
		if (draw(seed) % 4 == 0) {
			n = model_weight(&m[i], 0, m[i].nr_pages);
			cr_assert_eq(bitmap_take(b[!i], b[i]), n);
		} else {
			bitmap_or(b[!i], b[i]);
			n = UINT64_MAX;
		}
		for (uint64_t p = 0; p < m[i].nr_pages; p++)
			m[!i].set[p] |= m[i].set[p];
		if (n != UINT64_MAX)
			memset(m[i].set, 0, m[i].nr_pages);
		break;
	default:
		if (draw(seed) % 8 == 0) {
			bitmap_clear(b[i]);
			memset(m[i].set, 0, m[i].nr_pages);
		}
	}
}

static void run_program(uint64_t nr_pages, unsigned nr_steps, uint64_t seed)
{
	struct bitmap *b[2] = { create(nr_pages), create(nr_pages) };
	struct model m[2] = { model_create(nr_pages), model_create(nr_pages) };

	for (unsigned i = 0; i < nr_steps; i++) {
		step(b, m, &seed);
		if (nr_pages > 1000 && i % 16)
			continue;
		cr_assert(same(b[0], &m[0], &seed), "%lu pages, step %u, first set", nr_pages, i);
		cr_assert(same(b[1], &m[1], &seed), "%lu pages, step %u, second set", nr_pages, i);
	}
	for (unsigned i = 0; i < 2; i++) {
		bitmap_destroy(b[i]);
		free(m[i].set);
	}
}

/* Around each border of a word, of a summary word, and of the summary above (262144 = 64^3). */
static const uint64_t sizes[] = { 1, 2, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 8192, 20000 };

Test(bitmap, random_programs_match_the_model, .timeout = 280)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (uint64_t seed = 1; seed <= 4; seed++)
			run_program(sizes[i], 400, seed * 1000 + sizes[i]);
}

Test(bitmap, random_programs_over_four_levels, .timeout = 280)
{
	run_program(262143, 64, 7);
	run_program(262145, 64, 8);
	run_program(300001, 64, 9);
}

Test(bitmap, the_comparison_notices_one_wrong_page)
{
	uint64_t seed = 42, page;

	for (int i = 0; i < 50; i++) {
		uint64_t nr_pages = sizes[draw(&seed) % (sizeof(sizes) / sizeof(sizes[0]))];
		struct bitmap *b[2] = { create(nr_pages), create(nr_pages) };
		struct model m[2] = { model_create(nr_pages), model_create(nr_pages) };

		for (int k = 0; k < 30; k++)
			step(b, m, &seed);
		cr_assert(same(b[0], &m[0], &seed));
		page = draw(&seed) % nr_pages;
		m[0].set[page] ^= 1;
		cr_assert_not(same(b[0], &m[0], &seed), "page %lu of %lu", page, nr_pages);
		cr_assert_not(same_runs(b[0], &m[0], UINT64_MAX));
		m[0].set[page] ^= 1;
		cr_assert(same(b[0], &m[0], &seed));
		for (unsigned k = 0; k < 2; k++) {
			bitmap_destroy(b[k]);
			free(m[k].set);
		}
	}
}

Test(bitmap, create_refuses_sizes_without_sense)
{
	struct bitmap *b = (struct bitmap *)8;

	cr_assert_eq(bitmap_create(&b, 0), -EINVAL);
	cr_assert_null(b);
	b = (struct bitmap *)8;
	cr_assert_eq(bitmap_create(&b, (UINT64_C(1) << 52) + 1), -EINVAL);
	cr_assert_null(b);
	bitmap_destroy(NULL);
}

/* More than any address space here can hold: refused, not crashed. */
Test(bitmap, create_says_when_there_is_no_room)
{
	struct bitmap *b = (struct bitmap *)8;

	cr_assert_eq(bitmap_create(&b, UINT64_C(1) << 52), -ENOMEM);
	cr_assert_null(b);
}

Test(bitmap, each_border_page_alone)
{
	static const uint64_t at[] = {
		0, 1, 62, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262143, 262144, 262145, 299999
	};
	struct bitmap *b = create(300000);
	struct page_run r;

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		cr_assert(bitmap_set(b, at[i]));
		cr_assert_not(bitmap_set(b, at[i]));
		cr_assert(bitmap_test(b, at[i]));
		cr_assert_eq(bitmap_count(b), 1);
		cr_assert(bitmap_test_any(b, 0, 300000));
		cr_assert_not(bitmap_test_any(b, at[i], 0));
		cr_assert_not(bitmap_test_any(b, 0, at[i]));
		cr_assert_not(bitmap_test_any(b, at[i] + 1, 299999 - at[i]));
		for (uint64_t from = at[i] > 70 ? at[i] - 70 : 0; from <= at[i]; from++) {
			cr_assert(bitmap_next_run(b, from, 100, &r));
			cr_assert(r.first == at[i] && r.nr == 1);
		}
		cr_assert_not(bitmap_next_run(b, at[i] + 1, 100, &r));
		bitmap_clear_run(b, at[i], 1);
		cr_assert(bitmap_empty(b));
	}
	cr_assert_not(bitmap_next_run(b, 300000, 1, &r));
	cr_assert_not(bitmap_next_run(b, UINT64_MAX - 1, 1, &r));
	bitmap_destroy(b);
}

Test(bitmap, runs_cross_words_and_are_cut_at_the_maximum)
{
	struct bitmap *b = create(20000);
	struct page_run r = { 0 };

	cr_assert_eq(bitmap_set_run(b, 60, 5000), 5000);
	cr_assert(bitmap_next_run(b, 0, UINT64_MAX, &r));
	cr_assert(r.first == 60 && r.nr == 5000);
	cr_assert(bitmap_next_run(b, 0, 2048, &r));
	cr_assert(r.first == 60 && r.nr == 2048);
	cr_assert(bitmap_next_run(b, r.first + r.nr, 2048, &r));
	cr_assert(r.first == 2108 && r.nr == 2048);
	cr_assert(bitmap_next_run(b, r.first + r.nr, 2048, &r));
	cr_assert(r.first == 4156 && r.nr == 904);
	cr_assert_not(bitmap_next_run(b, r.first + r.nr, 2048, &r));
	cr_assert_eq(bitmap_set_run(b, 0, 20000), 15000);
	cr_assert(bitmap_next_run(b, 19999, 5, &r));
	cr_assert(r.first == 19999 && r.nr == 1);
	bitmap_destroy(b);
}

Test(bitmap, take_moves_and_adds)
{
	struct bitmap *from = create(300000), *to = create(300000);

	bitmap_set_run(from, 100, 5000);
	bitmap_set(from, 299999);
	bitmap_set_run(to, 5000, 200);
	cr_assert_eq(bitmap_take(to, from), 5001);
	cr_assert(bitmap_empty(from));
	cr_assert_eq(bitmap_count(to), 5101);
	cr_assert_eq(bitmap_take(to, from), 0);
	cr_assert_eq(bitmap_count(to), 5101);
	bitmap_destroy(from);
	bitmap_destroy(to);
}

static uint64_t resident_bytes(void)
{
	unsigned long size, resident;
	FILE *f = fopen("/proc/self/statm", "r");

	cr_assert_not_null(f);
	cr_assert_eq(fscanf(f, "%lu %lu", &size, &resident), 2);
	fclose(f);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 2^38 pages are a petabyte of guest and 32 GiB of leaf words: reserved, and only what is used is touched. */
Test(bitmap, pages_beyond_2_to_the_32)
{
	const uint64_t nr = UINT64_C(1) << 38, far = (UINT64_C(1) << 32) + 5;
	uint64_t before = resident_bytes();
	struct bitmap *b = create(nr), *to = create(nr);
	struct page_run r = { 0 };

	cr_assert(bitmap_empty(b));
	cr_assert(bitmap_set(b, 5));
	cr_assert(bitmap_set(b, far));
	cr_assert(bitmap_set(b, nr - 1));
	cr_assert_eq(bitmap_set_run(b, nr - 1000, 500), 500);
	cr_assert_not(bitmap_test(b, far - (UINT64_C(1) << 32) + 1));
	cr_assert_eq(bitmap_take(to, b), 503);
	cr_assert(bitmap_empty(b));
	cr_assert(bitmap_next_run(to, 0, 4096, &r) && r.first == 5 && r.nr == 1);
	cr_assert(bitmap_next_run(to, 6, 4096, &r) && r.first == far && r.nr == 1);
	cr_assert(bitmap_next_run(to, far + 1, 4096, &r) && r.first == nr - 1000 && r.nr == 500);
	cr_assert(bitmap_next_run(to, r.first + r.nr, 4096, &r) && r.first == nr - 1 && r.nr == 1);
	cr_assert_not(bitmap_next_run(to, nr, 4096, &r));
	bitmap_clear_run(to, 6, nr - 7);
	cr_assert_eq(bitmap_count(to), 2);
	cr_assert_lt(resident_bytes() - before, 8 << 20);
	bitmap_destroy(b);
	bitmap_destroy(to);
}

#ifdef FT_FAULT_POINTS
Test(bitmap, the_fault_point_makes_one_creation_fail)
{
	struct bitmap *b = (struct bitmap *)8;

	faultpoint_arm(1, false, "bitmap/create");
	cr_assert_eq(bitmap_create(&b, 100), -ENOMEM);
	cr_assert_null(b);
	cr_assert_str_eq(faultpoint_failed(), "bitmap/create");
	faultpoint_disarm();
	b = create(100);
	bitmap_destroy(b);
}
#endif
