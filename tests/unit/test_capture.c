/* SPDX-License-Identifier: MIT */
/* test_capture.c - checkpoint/capture.c and copy.c against a naive model: which pages, in which slots, with which
 * octets. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "capture.h"
#include "copy.h"
#include "digest.h"

#define PAGE FT_PAGE_SIZE
#define REGIONS 3u

static const uint64_t sizes[REGIONS] = { 3000, 64, 700 }; /* gaps behind the first and the last */

struct rig {
	uint8_t *staging;
	struct slab *slab;
	struct slab_plan *plan;
	struct region_table *regions;
	uint8_t *memory[REGIONS];
	struct bitmap *dirty;
	unsigned threads; /* 0: capture_fill() */
	struct copier copier;
	uint64_t random;
};

static uint64_t rnd(struct rig *r, uint64_t below)
{
	r->random ^= r->random << 13;
	r->random ^= r->random >> 7;
	r->random ^= r->random << 17;
	return r->random % below;
}

static void rig_open(struct rig *r)
{
	struct ft_error err;

	memset(r, 0, sizeof(*r));
	r->random = 42;
	r->staging = aligned_alloc(SLAB_ALIGN, SLAB_BYTES);
	cr_assert_eq(slab_create(&r->slab, r->staging), 0);
	cr_assert_eq(r->slab->memory, r->staging);
	r->plan = calloc(1, sizeof(*r->plan));
	r->regions = region_table_empty();
	for (unsigned i = 0; i < REGIONS; i++) {
		struct region_table *more;

		r->memory[i] = aligned_alloc(PAGE, sizes[i] * PAGE);
		for (uint64_t at = 0; at < sizes[i] * PAGE; at += 8)
			*(uint64_t *)(void *)(r->memory[i] + at) = rnd(r, UINT64_MAX);
		for (uint64_t p = 0; p < sizes[i]; p++)
			if (rnd(r, 4) == 0)
				memset(r->memory[i] + p * PAGE, 0, PAGE);
		more = region_table_add(r->regions, (const char[]){ (char)('a' + i), 0 }, r->memory[i], sizes[i] * PAGE,
					&err);
		cr_assert(more, "%s", err.msg);
		region_table_free(r->regions);
		r->regions = more;
	}
	cr_assert_eq(bitmap_create(&r->dirty, r->regions->nr_pages), 0);
}

static void rig_close(struct rig *r)
{
	bitmap_destroy(r->dirty);
	region_table_free(r->regions);
	for (unsigned i = 0; i < REGIONS; i++)
		free(r->memory[i]);
	free(r->plan);
	slab_destroy(r->slab);
	free(r->staging);
}

/* A plan says exactly what the slab holds: each slot in one run, in order, the runs as long as can be. */
static void check_plan(const struct slab *s, const struct slab_plan *p)
{
	uint64_t data_digest = 0, zero_digest = 0;
	uint32_t slot = 0, d = 0, z = 0, nr_data = 0, nr_zero = 0;

	while (slot < s->nr) {
		bool zero = z < p->nr_zero_runs && p->zero[z].first == s->page[slot];
		struct page_run run = zero ? p->zero[z++] : p->data[d++];

		cr_assert_eq(run.first, s->page[slot]);
		cr_assert_gt(run.nr, 0);
		if (!zero)
			cr_assert_eq(p->data_slot[d - 1], slot);
		for (uint64_t i = 0; i < run.nr; i++, slot++) {
			const uint8_t *page = s->memory + slot * PAGE;

			cr_assert_eq(s->page[slot], run.first + i);
			cr_assert_eq(page_is_zero(page) != 0, zero);
			data_digest += zero ? 0 : digest_page(page, run.first + i);
			zero_digest += zero ? digest_zero(run.first + i) : 0;
		}
		*(zero ? &nr_zero : &nr_data) += (uint32_t)run.nr;
		if (slot < s->nr && s->page[slot] == run.first + run.nr)
			cr_assert_neq(page_is_zero(s->memory + slot * PAGE) != 0, zero,
				      "runs that touch are not merged");
	}
	cr_assert_eq(d, p->nr_data_runs);
	cr_assert_eq(z, p->nr_zero_runs);
	cr_assert_eq(nr_data, p->nr_data);
	cr_assert_eq(nr_zero, p->nr_zero);
	cr_assert_eq(data_digest, p->data_digest);
	cr_assert_eq(zero_digest, p->zero_digest);
}

static uint32_t fill(struct rig *r, uint64_t *at)
{
	uint32_t n;

	if (!r->threads)
		return capture_fill(r->slab, r->regions, r->dirty, at);
	n = capture_add(&r->copier, r->slab, r->regions, r->dirty, at);
	copier_end(&r->copier);
	return n;
}

/* Capture all of the dirty set and compare with a walk over it, page by page. */
static void check_capture(struct rig *r)
{
	uint64_t at = 0, page = 0;
	uint32_t n;

	do {
		memset(r->slab->memory, 0xee, SLAB_PAGES * PAGE);
		n = fill(r, &at);
		cr_assert_eq(n, r->slab->nr);
		for (uint32_t slot = 0; slot < n; slot++, page++) {
			while (!bitmap_test(r->dirty, page) || !region_of_page(r->regions, page))
				page++;
			cr_assert_eq(r->slab->page[slot], page);
			cr_assert_eq(memcmp(r->slab->memory + slot * PAGE, region_page_address(r->regions, page, NULL),
					    PAGE),
				     0);
		}
		for (uint64_t i = n * (uint64_t)PAGE; i < SLAB_PAGES * PAGE; i++)
			cr_assert_eq(r->slab->memory[i], 0xee);
		slab_plan(r->slab, 0, r->slab->nr, NULL, NULL, r->plan);
		check_plan(r->slab, r->plan);
	} while (n == SLAB_PAGES);
	for (; page < r->regions->nr_pages; page++)
		cr_assert_not(bitmap_test(r->dirty, page) && region_of_page(r->regions, page), "page %lu is forgotten",
			      (unsigned long)page);
	cr_assert_eq(capture_fill(r->slab, r->regions, r->dirty, &at), 0);
}

static void random_sets(unsigned threads)
{
	static struct rig r;

	rig_open(&r);
	r.threads = threads;
	if (threads)
		cr_assert_eq(copier_create(&r.copier, threads, "test-copier", NULL), 0);
	check_capture(&r); /* nothing */
	for (unsigned round = 0; round < 60; round++) {
		uint64_t longest = 1 + rnd(&r, round % 2 ? 4 : 300);

		bitmap_clear(r.dirty);
		for (uint64_t n = rnd(&r, 200); n; n--) {
			uint64_t first = rnd(&r, r.regions->nr_pages), nr = 1 + rnd(&r, longest);

			bitmap_set_run(r.dirty, first,
				       nr > r.regions->nr_pages - first ? r.regions->nr_pages - first
									: nr); /* gaps too */
		}
		check_capture(&r);
	}
	bitmap_set_run(r.dirty, 0, r.regions->nr_pages); /* all: regions that touch, a slab filled to its end */
	check_capture(&r);
	copier_destroy(&r.copier);
	rig_close(&r);
}

Test(capture, random_sets, .timeout = 120)
{
	random_sets(0);
}

Test(capture, random_sets_by_a_copier, .timeout = 240)
{
	for (unsigned threads = 1; threads < 5; threads += 2)
		random_sets(threads);
}

#define COPIED 20000u /* more than a copier has jobs for */
#define SOURCES 512u

/* Spans of all lengths, from the end to the beginning; waited for now and then. */
static void copy_all(struct rig *r, uint8_t *to, const uint8_t *from, uint16_t *source)
{
	for (uint32_t left = COPIED; left;) {
		uint32_t nr = 1 + (uint32_t)rnd(r, rnd(r, 9) ? 3 : 300), first;

		nr = nr < left ? nr : left;
		first = (uint32_t)rnd(r, SOURCES - nr);
		left -= nr;
		copier_add(&r->copier, to + (size_t)left * PAGE, from + (size_t)first * PAGE, nr);
		for (uint32_t i = 0; i < nr; i++)
			source[left + i] = (uint16_t)(first + i);
		if (rnd(r, 3000) == 0)
			copier_wait(&r->copier);
		if (rnd(r, 3000) == 0)
			copier_end(&r->copier);
	}
	copier_end(&r->copier);
}

Test(capture, copier, .timeout = 120)
{
	static struct rig r = { .random = 5 };
	static uint16_t source[COPIED];
	uint8_t *to = aligned_alloc(PAGE, COPIED * (size_t)PAGE), *from = aligned_alloc(PAGE, SOURCES * (size_t)PAGE);

	for (size_t i = 0; i < SOURCES * (size_t)PAGE; i++)
		from[i] = (uint8_t)rnd(&r, 256);
	for (unsigned threads = 1; threads < 5; threads += 2) {
		cr_assert_eq(copier_create(&r.copier, threads, "test-copier", NULL), 0);
		copier_end(&r.copier); /* of nothing */
		memset(to, 0xee, COPIED * (size_t)PAGE);
		copy_all(&r, to, from, source);
		for (uint32_t i = 0; i < COPIED; i++)
			cr_assert_eq(memcmp(to + (size_t)i * PAGE, from + (size_t)source[i] * PAGE, PAGE), 0,
				     "%u threads: page %u", threads, i);
		copier_destroy(&r.copier);
	}
	free(to);
	free(from);
}

Test(capture, removed_region_is_passed_over)
{
	static struct rig r;
	struct region_table *t;

	rig_open(&r);
	t = region_table_without(r.regions, 1, NULL);
	region_table_free(r.regions);
	r.regions = t;
	bitmap_set_run(r.dirty, 0, t->nr_pages);
	check_capture(&r);
	rig_close(&r);
}

Test(capture, exactly_full)
{
	static struct rig r;
	uint64_t at = 0;

	rig_open(&r);
	bitmap_set_run(r.dirty, 100, SLAB_PAGES);
	cr_assert_eq(capture_fill(r.slab, r.regions, r.dirty, &at), SLAB_PAGES);
	cr_assert_eq(at, 100 + SLAB_PAGES);
	cr_assert_eq(capture_fill(r.slab, r.regions, r.dirty, &at), 0);
	cr_assert_eq(r.slab->nr, 0);
	rig_close(&r);
}

/* pages_clear: on pages of zeros, used ones, and every mixture of both. */
Test(capture, clear)
{
	uint8_t *at = aligned_alloc(PAGE, 5000 * PAGE);
	uint64_t used = 0;

	memset(at, 1, 5000 * PAGE);
	for (uint64_t p = 10; p < 4990; p++)
		if (p * 2654435761u % 7 < 3)
			memset(at + p * PAGE, 0, PAGE);
		else
			used++;
	cr_assert_eq(pages_clear(at + 10 * PAGE, 4980), used);
	for (uint64_t p = 0; p < 5000; p++)
		cr_assert_eq(page_is_zero(at + p * PAGE) != 0, p >= 10 && p < 4990, "page %lu", (unsigned long)p);
	cr_assert_eq(pages_clear(at + 10 * PAGE, 4980), 0);
	free(at);
}

/* A private mapping of a file that is not in memory: to drop it would bring the file's octets back. */
Test(capture, clear_private_file)
{
	char name[] = "clear-XXXXXX";
	int fd = mkstemp(name);
	static uint8_t page[PAGE];
	uint8_t *at;

	cr_assert_geq(fd, 0);
	unlink(name);
	memset(page, 5, PAGE);
	for (unsigned i = 0; i < 64; i++)
		cr_assert_eq(write(fd, page, PAGE), PAGE);
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* on a tmpfs nothing happens, and nothing is shown */
	at = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	cr_assert_neq(at, MAP_FAILED);
	cr_assert_eq(pages_clear(at, 64), 64);
	for (uint64_t p = 0; p < 64; p++)
		cr_assert(page_is_zero(at + p * PAGE));
	munmap(at, 64 * PAGE);
	close(fd);
}
