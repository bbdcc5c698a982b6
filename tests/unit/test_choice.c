/* SPDX-License-Identifier: MIT */
/* test_choice.c - copy or copy on write, for made-up guests: the cheaper one is found, and kept; being wrong is rare and ever rarer; a guest that
 * becomes another is judged anew; nothing flaps. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "choice.h"
#include "rng.h"

/* What such a guest costs, for each page of an epoch. */
struct guest {
	uint64_t pages;
	uint64_t copy_ns, writers_ns;
	uint64_t noise_percent; /* each figure is off by up to so much */
	uint64_t spike_every;   /* so often one is 50 times as much; 0: never */
};

struct world {
	struct choice choice;
	struct rng rng;
	bool hooked; /* the way of the epoch under way: changes reach it one epoch late */
	uint64_t switches, by_cow, epochs;
};

static void make(struct world *w)
{
	*w = (struct world){ .rng.state = 5 };
	choice_init(&w->choice);
}

static uint64_t noisy(struct world *w, const struct guest *g, uint64_t ns)
{
	if (g->spike_every && rng_next(&w->rng) % g->spike_every == 0)
		return ns * 50;
	return ns * rng_range(&w->rng, 100 - g->noise_percent, 100 + g->noise_percent) / 100;
}

static void run(struct world *w, const struct guest *g, unsigned epochs)
{
	for (unsigned i = 0; i < epochs; i++) {
		struct choice_epoch e = { .cow = w->hooked, .pages = noisy(w, g, g->pages) };
		bool before = w->choice.cow;

		e.pause_ns = 5000 + (e.cow ? 0 : noisy(w, g, e.pages * g->copy_ns));
		e.writers_ns = e.cow ? noisy(w, g, e.pages * g->writers_ns) : 0;
		w->hooked = before;
		w->switches += choice_step(&w->choice, &e) != before;
		w->by_cow += e.cow;
		w->epochs++;
	}
}

#define CHEAP                                                                                                          \
	{                                                                                                              \
		.pages = 5000, .copy_ns = 700, .writers_ns = 150, .noise_percent = 20                                  \
	}
#define DEAR                                                                                                           \
	{                                                                                                              \
		.pages = 5000, .copy_ns = 700, .writers_ns = 1500, .noise_percent = 20                                 \
	}

Test(choice, begins_with_copying)
{
	const struct guest g = CHEAP;
	struct world w;

	make(&w);
	cr_expect_not(w.choice.cow);
	run(&w, &g, 3);
	cr_expect_not(w.choice.cow, "nothing is measured yet");
}

Test(choice, the_cheaper_one_is_kept)
{
	const struct guest g = CHEAP;
	struct world w;

	make(&w);
	run(&w, &g, 5000);
	cr_expect(w.choice.cow);
	cr_expect_eq(w.switches, 1);
	cr_expect_geq(w.by_cow, 4900);
}

Test(choice, the_dearer_one_is_tried_ever_more_rarely)
{
	const struct guest g = DEAR;
	struct world w;
	uint64_t first;

	make(&w);
	run(&w, &g, 2000);
	first = w.by_cow;
	cr_expect_geq(first, 8, "it was never tried");
	cr_expect_leq(first, 2000 / 10);
	run(&w, &g, 20000);
	cr_expect_leq((w.by_cow - first) * 100, 20000, "%lu of 20,000 epochs by what is dearer",
		      (unsigned long)(w.by_cow - first));
	cr_expect_gt(w.by_cow, first, "it is never tried again");
}

/* A page costs the same, whether an epoch has few of them or many: no reason to change. */
Test(choice, more_pages_of_the_same_guest_change_nothing)
{
	struct guest g = CHEAP;
	struct world w;

	make(&w);
	run(&w, &g, 100);
	for (g.pages = 100; g.pages < 1000000; g.pages *= 3)
		run(&w, &g, 100);
	cr_expect(w.choice.cow);
	cr_expect_eq(w.switches, 1);
}

Test(choice, a_guest_that_becomes_dear_is_copied_soon)
{
	const struct guest cheap = CHEAP, dear = DEAR;
	struct world w;

	make(&w);
	run(&w, &cheap, 300);
	cr_assert(w.choice.cow);
	run(&w, &dear, 12);
	cr_expect_not(w.choice.cow);
}

/* Turned down again and again, it would not be tried for 4096 epochs; but the guest has become another. */
Test(choice, a_guest_that_becomes_another_is_tried_soon)
{
	struct guest g = DEAR;
	struct world w;

	make(&w);
	run(&w, &g, 20000);
	for (unsigned i = 0; w.choice.cow && i < 100; i++) /* a trial is over soon */
		run(&w, &g, 1);
	cr_assert_not(w.choice.cow);
	g.writers_ns = 150;
	run(&w, &g, 50);
	cr_assert_not(w.choice.cow, "nobody told");
	g.pages /= 8;
	run(&w, &g, 50);
	cr_expect(w.choice.cow);
}

/* Between what is kept and what is left nothing is decided; and single epochs that are far off decide nothing. */
Test(choice, nothing_flaps)
{
	for (uint64_t writers = 300; writers <= 1000; writers += 50) {
		const struct guest g = { 3000, 700, writers, 30, 40 };
		struct world w;

		make(&w);
		run(&w, &g, 10000);
		cr_expect_leq(w.switches, 40, "%lu ns a page: %lu switches", (unsigned long)writers,
			      (unsigned long)w.switches);
	}
}

Test(choice, one_epoch_decides_nothing)
{
	const struct guest cheap = CHEAP;
	struct choice_epoch bad = { true, 5000, 5000, UINT64_C(5000) * 700 * 3 };
	struct world w;

	make(&w);
	run(&w, &cheap, 300);
	cr_assert(w.choice.cow);
	bad.writers_ns = UINT64_MAX;
	cr_expect(choice_step(&w.choice, &bad));
}

/* Once it had won, and lost then: it is tried again soon, whatever it had lost before. */
Test(choice, what_had_won_is_tried_again_soon)
{
	const struct guest cheap = CHEAP, dear = DEAR;
	struct world w;

	make(&w);
	run(&w, &dear, 2000);
	for (unsigned i = 0; !w.choice.kept && i < 10000; i++)
		run(&w, &cheap, 1);
	cr_assert(w.choice.kept);
	for (unsigned i = 0; w.choice.cow && i < 100; i++)
		run(&w, &dear, 1);
	cr_assert_not(w.choice.cow);
	run(&w, &cheap, 40);
	cr_expect(w.choice.cow);
}

Test(choice, small_epochs_and_those_of_the_way_before_do_not_count)
{
	const struct guest g = DEAR;
	struct guest small = DEAR;
	struct world w;

	small.pages = 20;
	make(&w);
	run(&w, &small, 1000);
	cr_expect_eq(w.switches, 0);
	run(&w, &g, 8);
	cr_assert(w.choice.cow);
	for (unsigned i = 0; i < 100; i++) {
		const struct choice_epoch old = { .pages = 5000, .pause_ns = 5000 * 700 };

		cr_expect(choice_step(&w.choice, &old), "judged by epochs that were copied in the pause");
	}
}

Test(choice, any_figures)
{
	struct choice c;
	struct rng r = { .state = 9 };

	choice_init(&c);
	for (unsigned i = 0; i < 100000; i++) {
		const struct choice_epoch e = { .cow = rng_next(&r) % 8 ? c.cow : !c.cow,
						.pages = rng_next(&r) >> rng_next(&r) % 64,
						.pause_ns = rng_next(&r) >> rng_next(&r) % 64,
						.writers_ns = rng_next(&r) >> rng_next(&r) % 64 };

		choice_step(&c, &e);
		cr_assert_leq(c.wait, 4096);
		cr_assert_geq(c.wait, 8);
	}
}
