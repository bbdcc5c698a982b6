/* SPDX-License-Identifier: MIT */
/* test_delta.c - checkpoint/delta.c: what is packed is unpacked to the same page, whatever differs; nothing else is taken for a delta; contents that are
 * kept are those that were noted last; and slab_plan() makes deltas only of what is worth it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "capture.h"
#include "codec.h"
#include "delta.h"
#include "digest.h"
#include "rng.h"

#define PAGE FT_PAGE_SIZE

static uint8_t old[PAGE], now[PAGE], back[PAGE], packed[DELTA_MAX];

static void fill(struct rng *r, uint8_t *page)
{
	for (unsigned i = 0; i < PAGE; i++)
		page[i] = (uint8_t)rng_next(r);
}

static uint32_t words_that_differ(void)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < PAGE; i += 4)
		n += memcmp(old + i, now + i, 4) != 0;
	return n;
}

static uint32_t lines_that_differ(void)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < PAGE; i += 64)
		n += memcmp(old + i, now + i, 64) != 0;
	return n;
}

static void check_round(void)
{
	uint32_t len = delta_pack(packed, old, now, DELTA_MAX);

	cr_assert_eq(len, 8 + 2 * lines_that_differ() + 4 * words_that_differ());
	cr_assert_eq(delta_length(packed, DELTA_MAX), len);
	cr_assert_eq(delta_length(packed, len), len);
	for (uint32_t less = 0; less < len; less += 1 + less / 20)
		cr_assert_eq(delta_length(packed, less), 0, "cut at %u of %u", less, len);
	memcpy(back, old, PAGE);
	delta_unpack(back, packed);
	cr_assert_eq(memcmp(back, now, PAGE), 0);
	cr_assert_eq(delta_pack(packed, old, now, len), len);
	cr_assert_eq(len > 8 ? delta_pack(packed, old, now, len - 1) : 0, 0);
}

Test(delta, any_difference, .timeout = 60)
{
	struct rng r = { .state = 3 };

	for (unsigned round = 0; round < 3000; round++) {
		uint64_t n = rng_next(&r) % 4 ? rng_next(&r) % 40 : rng_next(&r) % 3000;

		fill(&r, old);
		memcpy(now, old, PAGE);
		for (; n; n--)
			now[rng_next(&r) % PAGE] = (uint8_t)rng_next(&r);
		check_round();
	}
}

Test(delta, nothing_all_and_every_octet)
{
	struct rng r = { .state = 4 };

	memset(old, 7, PAGE);
	memset(now, 7, PAGE);
	cr_expect_eq(delta_pack(packed, old, now, DELTA_MAX), DELTA_MIN);
	check_round();
	memset(now, 8, PAGE);
	cr_expect_eq(delta_pack(packed, old, now, DELTA_MAX), DELTA_MAX);
	check_round();
	for (unsigned i = 0; i < PAGE; i++) {
		fill(&r, old);
		memcpy(now, old, PAGE);
		now[i] ^= 0x80;
		check_round();
	}
}

/* The octets of docs/protocol.md: they must never change. */
Test(delta, known_octets)
{
	static const uint8_t want[] = { 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 9, 1, 0, 0, 0, 2, 0, 0, 0, 0x80, 0, 0, 0, 0, 3 };

	memset(old, 0, PAGE);
	memset(now, 0, PAGE);
	now[64] = 1;      /* line 1, word 0 */
	now[64 + 12] = 2; /* word 3 */
	now[PAGE - 1] = 3;
	cr_assert_eq(delta_pack(packed, old, now, DELTA_MAX), sizeof(want));
	cr_expect_eq(memcmp(packed, want, sizeof(want)), 0);
}

Test(delta, a_line_without_words_is_none)
{
	memset(packed, 0, sizeof(packed));
	packed[7] = 1;
	cr_expect_eq(delta_length(packed, sizeof(packed)), 0);
	packed[9] = 1;
	cr_expect_eq(delta_length(packed, sizeof(packed)), 14);
}

Test(delta, contents_are_those_noted_last, .timeout = 60)
{
	struct rng r = { .state = 5 };
	static uint64_t noted[300]; /* what was noted of the page; 0: nothing */
	struct past p;
	uint64_t hits = 0;

	cr_assert_eq(past_open(&p, 64, 300), 0);
	for (uint64_t i = 1; i < 20000; i++) {
		uint64_t page = rng_next(&r) % 300;
		const uint8_t *kept = past_of(&p, page);

		memset(now, (int)(noted[page] % 251), PAGE);
		cr_assert(!kept || (noted[page] && memcmp(kept, now, PAGE) == 0), "page %lu", (unsigned long)page);
		hits += kept != NULL;
		if (rng_next(&r) % 8 == 0) {
			past_note(&p, page, NULL);
			cr_assert_null(past_of(&p, page));
			noted[page] = 0;
			continue;
		}
		noted[page] = i;
		memset(now, (int)(i % 251), PAGE);
		past_note(&p, page, now);
		cr_assert_eq(memcmp(past_of(&p, page), now, PAGE), 0);
	}
	cr_expect_gt(hits, 1000);
	past_close(&p);
	past_close(&p);
}

/* As many as half of the slots: as good as by chance, in whatever steps they come. */
Test(delta, contents_are_spread)
{
	struct past p;

	for (uint64_t stride = 1; stride <= 4096; stride *= 2) {
		uint64_t kept = 0;

		cr_assert_eq(past_open(&p, 2048, UINT64_C(1) << 30), 0);
		for (uint64_t i = 0; i < 1024; i++)
			past_note(&p, i * stride, now);
		for (uint64_t i = 0; i < 1024; i++)
			kept += past_of(&p, i * stride) != NULL;
		cr_expect_geq(kept, 1024 * 3 / 4, "stride %lu: %lu", (unsigned long)stride, (unsigned long)kept);
		past_close(&p);
	}
}

/* A slab of pages against what was noted of them: packed are those that differ little, and they are in the order of their numbers. */
Test(delta, a_plan_has_what_is_worth_it)
{
	uint8_t *memory = aligned_alloc(SLAB_ALIGN, SLAB_BYTES);
	struct slab_plan *plan = calloc(1, sizeof(*plan));
	struct rng r = { .state = 6 };
	struct slab *slab;
	struct past past;
	uint32_t at = 0, n = 0;
	const uint8_t *delta;
	uint64_t page, digest = 0;
	struct deltas d;

	cr_assert_eq(slab_create(&slab, memory), 0);
	cr_assert_eq(past_open(&past, 1000, 600), 0);
	for (uint32_t i = 0; i < 200; i++) {
		fill(&r, memory + i * PAGE);
		slab->page[i] = 3 * (uint64_t)i;
	}
	slab->nr = 200;
	past.usable = false;
	slab_plan(slab, 0, 200, NULL, &past, plan);
	cr_expect(plan->nr_data == 200 && plan->nr_delta == 0, "%u and %u", plan->nr_data, plan->nr_delta);
	for (uint32_t i = 0; i < 200; i++) /* one half of the octets of each other page: not worth it */
		memset(memory + i * PAGE, 1, i % 2 ? PAGE / 2 : 100);
	memset(memory + 50 * PAGE, 0, PAGE);
	past.usable = true;
	slab_plan(slab, 0, 200, NULL, &past, plan);
	cr_expect_eq(plan->nr_delta, 99);
	cr_expect_eq(plan->nr_data, 100);
	cr_expect_eq(plan->nr_zero, 1);
	d = (struct deltas){ .octets = plan->packed, .octets_bytes = plan->packed_bytes };
	for (; (delta = deltas_next(&d, &at, &page)); n++) {
		cr_assert_eq(page, 3 * (2 * n + (n >= 25) * 2));
		cr_assert_eq(plan->packed_digest[n], digest_page(memory + page / 3 * PAGE, page));
		cr_assert_eq(plan->packed_len[n], 8 + delta_length(delta, DELTA_MAX));
		digest += plan->packed_digest[n];
	}
	cr_expect_eq(n, 99);
	cr_expect_eq(digest, plan->delta_digest);
	cr_expect_null(past_of(&past, 150), "a page of zeros is kept");
	memset(memory + 50 * PAGE, 1, 8); /* the other side has zeros there, which are not kept */
	slab_plan(slab, 0, 200, NULL, &past, plan);
	cr_expect_eq(plan->nr_delta, 199, "%u", plan->nr_delta);
	cr_expect_eq(plan->nr_data, 1);
	cr_expect_eq(plan->packed_bytes, 199 * 16, "each is as it was");
	past_close(&past);
	slab_destroy(slab);
	free(plan);
	free(memory);
}
