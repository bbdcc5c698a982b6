/* SPDX-License-Identifier: MIT */
/* test_digest.c - checkpoint/digest.c: whatever version of XXH3 the CPU gets computes what the scalar code does. */
#define XXH_INLINE_ALL
#define XXH_VECTOR 0 /* scalar: the oracle */
#include <xxhash.h>

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "digest.h"
#include <ft/ft.h>

static uint8_t page[FT_PAGE_SIZE] __attribute__((aligned(FT_PAGE_SIZE)));

static void fill(uint64_t seed)
{
	for (unsigned i = 0; i < sizeof(page); i++)
		page[i] = (uint8_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 56);
}

Test(digest, pages_as_the_scalar_code)
{
	for (uint64_t n = 0; n < 1000; n++) {
		uint64_t number = n % 3 ? n : n << 40 | 1;

		fill(n);
		cr_assert_eq(digest_page(page, number), XXH3_64bits_withSeed(page, sizeof(page), number));
		cr_assert_neq(digest_page(page, number), digest_page(page, number + 1));
	}
}

Test(digest, every_bit_of_a_page_counts)
{
	uint64_t was;

	fill(1);
	was = digest_page(page, 7);
	for (unsigned bit = 0; bit < 8 * sizeof(page); bit++) {
		page[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_neq(digest_page(page, 7), was, "bit %u", bit);
		page[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	cr_assert_eq(digest_page(page, 7), was);
}

Test(digest, zero_pages_and_state)
{
	const uint8_t number[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	cr_assert_eq(digest_zero(0x0102030405060708), XXH3_64bits_withSeed(number, 8, 0));
	fill(2);
	for (size_t len = 0; len <= sizeof(page); len = len * 5 / 4 + 1)
		cr_assert_eq(digest_state(page, len), XXH3_64bits_withSeed(page, len, len));
	cr_assert_eq(digest_state(NULL, 0), digest_state(page, 0));
}

/* Fixed by docs/protocol.md: these must never change. */
Test(digest, known_values)
{
	memset(page, 0, sizeof(page));
	cr_assert_eq(digest_page(page, 0), 0x93d76fe148c689baull, "%#llx", (unsigned long long)digest_page(page, 0));
	cr_assert_eq(digest_zero(1), 0xf36b4a1a44f78bf3ull, "%#llx", (unsigned long long)digest_zero(1));
	cr_assert_eq(digest_state("state", 5), 0xfb9019b652d276caull, "%#llx",
		     (unsigned long long)digest_state("state", 5));
}

Test(digest, zero_page)
{
	memset(page, 0, sizeof(page));
	cr_assert(page_is_zero(page));
	for (unsigned bit = 0; bit < 8 * sizeof(page); bit++) {
		page[bit / 8] = (uint8_t)(1u << bit % 8);
		cr_assert_not(page_is_zero(page), "bit %u", bit);
		page[bit / 8] = 0;
	}
	cr_assert(page_is_zero(page));
}
