/* SPDX-License-Identifier: MIT */
/* test_received.c - received.h: epochs, ranges, duplicates, and random words of a peer against a naive model. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultpoint.h"
#include "received.h"

#define PAGES 1000

static struct received *create(void)
{
	struct received *r;

	cr_assert_eq(received_create(&r, PAGES), 0);
	return r;
}

static void expect(const struct received *r, uint64_t data, uint64_t zero, uint64_t duplicates)
{
	cr_assert_eq(received_nr_data(r), data);
	cr_assert_eq(received_nr_zero(r), zero);
	cr_assert_eq(received_duplicates(r), duplicates);
	cr_assert_eq(bitmap_count(received_data_set(r)), data);
	cr_assert_eq(bitmap_count(received_zero_set(r)), zero);
}

Test(received, create_and_destroy)
{
	struct received *r = (struct received *)8;

	cr_assert_eq(received_create(&r, 0), -EINVAL);
	cr_assert_null(r);
	received_destroy(NULL);
}

Test(received, other_epochs_are_refused_and_leave_no_trace)
{
	struct received *r = create();

	cr_assert_eq(received_epoch(r), 0);
	cr_assert_eq(received_data(r, 0, 0, 1), -ESTALE);
	cr_assert_eq(received_data(r, 1, 0, 1), -EILSEQ);
	cr_assert_eq(received_begin(r, 0), -ESTALE);
	cr_assert_eq(received_begin(r, 5), 0);
	cr_assert_eq(received_epoch(r), 5);
	cr_assert_eq(received_data(r, 5, 10, 2), 0);
	cr_assert_eq(received_data(r, 4, 0, 1), -ESTALE);
	cr_assert_eq(received_zero(r, 4, 10, 1), -ESTALE);
	cr_assert_eq(received_data(r, 6, 0, 1), -EILSEQ);
	cr_assert_eq(received_zero(r, UINT64_MAX, 10, 1), -EILSEQ);
	cr_assert_eq(received_begin(r, 5), -ESTALE);
	cr_assert_eq(received_begin(r, 4), -ESTALE);
	expect(r, 2, 0, 0);
	cr_assert_eq(received_begin(r, 9), 0);
	expect(r, 0, 0, 0);
	received_destroy(r);
}

Test(received, ranges_outside_are_refused_whole)
{
	static const struct page_run bad[] = {
		{ PAGES, 1 },      { PAGES - 1, 2 },  { 0, PAGES + 1 },           { 0, 0 },
		{ UINT64_MAX, 1 }, { 1, UINT64_MAX }, { UINT64_MAX, UINT64_MAX },
	};
	struct received *r = create();

	cr_assert_eq(received_begin(r, 1), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(received_data(r, 1, bad[i].first, bad[i].nr), -ERANGE);
		cr_assert_eq(received_zero(r, 1, bad[i].first, bad[i].nr), -ERANGE);
	}
	expect(r, 0, 0, 0);
	cr_assert_eq(received_data(r, 1, PAGES - 1, 1), 0);
	cr_assert_eq(received_zero(r, 1, 0, PAGES - 1), 0);
	expect(r, 1, PAGES - 1, 0);
	received_destroy(r);
}

Test(received, told_twice_counts_once_and_the_later_word_wins)
{
	struct received *r = create();

	cr_assert_eq(received_begin(r, 1), 0);
	cr_assert_eq(received_data(r, 1, 100, 100), 0);
	cr_assert_eq(received_data(r, 1, 150, 100), 0);
	expect(r, 150, 0, 50);
	cr_assert_eq(received_zero(r, 1, 90, 20), 0);
	expect(r, 140, 20, 60);
	cr_assert_not(bitmap_test(received_data_set(r), 109));
	cr_assert(bitmap_test(received_zero_set(r), 109));
	cr_assert_eq(received_data(r, 1, 109, 1), 0);
	expect(r, 141, 19, 61);
	received_destroy(r);
}

/* The model: per page nothing, data or zero, and a count. */
Test(received, random_words_match_the_model)
{
	struct received *r = create();
	uint8_t model[PAGES];
	uint64_t data, zero, duplicates, first, nr;

	srand(3);
	for (uint64_t epoch = 1; epoch <= 40; epoch++) {
		cr_assert_eq(received_begin(r, epoch), 0);
		memset(model, 0, sizeof(model));
		data = zero = duplicates = 0;
		for (int i = 0; i < 60; i++) {
			uint8_t kind = (uint8_t)(1 + rand() % 2);

			first = (uint64_t)rand() % PAGES;
			nr = 1 + (uint64_t)rand() % (PAGES - first);
			nr = rand() % 8 ? 1 + nr % 40 : nr;
			nr = nr > PAGES - first ? PAGES - first : nr;
			cr_assert_eq((kind == 1 ? received_data : received_zero)(r, epoch, first, nr), 0);
			for (uint64_t p = first; p < first + nr; p++) {
				duplicates += model[p] != 0;
				model[p] = kind;
			}
		}
		for (uint64_t p = 0; p < PAGES; p++) {
			data += model[p] == 1;
			zero += model[p] == 2;
			cr_assert_eq(bitmap_test(received_data_set(r), p), model[p] == 1);
			cr_assert_eq(bitmap_test(received_zero_set(r), p), model[p] == 2);
		}
		expect(r, data, zero, duplicates);
	}
	received_destroy(r);
}

Test(received, reset_is_as_new)
{
	struct received *r = create();

	cr_assert_eq(received_begin(r, 7), 0);
	cr_assert_eq(received_data(r, 7, 3, 5), 0);
	cr_assert_eq(received_zero(r, 7, 4, 1), 0);
	received_reset(r);
	cr_assert_eq(received_epoch(r), 0);
	expect(r, 0, 0, 0);
	cr_assert(bitmap_empty(received_data_set(r)) && bitmap_empty(received_zero_set(r)));
	cr_assert_eq(received_data(r, 7, 3, 5), -EILSEQ);
	cr_assert_eq(received_begin(r, 7), 0);
	received_destroy(r);
}

#ifdef FT_FAULT_POINTS
/* The first bitmap is there when the second fails: it must not leak. */
Test(received, half_built_is_taken_down)
{
	struct received *r = (struct received *)8;

	for (uint64_t nth = 1; nth <= 2; nth++) {
		faultpoint_arm(nth, false, "bitmap/create");
		cr_assert_eq(received_create(&r, PAGES), -ENOMEM);
		cr_assert_null(r);
	}
	faultpoint_disarm();
}
#endif
