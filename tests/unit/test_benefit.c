/* SPDX-License-Identifier: MIT */
/* test_benefit.c - is it worth looking at each page, for made-up guests and links: what pays is found soon, what does not is left; nothing flaps; what tells
 * nothing decides nothing. */
#include <criterion/criterion.h>

#include "benefit.h"
#include "rng.h"

#define LOOK_NS 100u

struct guest {
	uint64_t pages;    /* dirty in an epoch */
	double share;      /* of them that is the same */
	uint64_t page_ns;  /* on its way */
	uint64_t fixed_ns; /* an epoch, with no page at all */
	unsigned noise_percent;
};

struct world {
	struct benefit b;
	struct rng rng;
	uint64_t switches, on, epochs;
};

static void make(struct world *w)
{
	*w = (struct world){ .rng.state = 11 };
	benefit_init(&w->b, LOOK_NS * 1000);
}

static bool by_chance(struct world *w, double share)
{
	return (double)(rng_next(&w->rng) >> 11) < share * (double)(UINT64_C(1) << 53);
}

static void run(struct world *w, const struct guest *g, unsigned epochs)
{
	for (unsigned i = 0; i < epochs; i++) {
		struct benefit_epoch e = { .looked = g->pages / 32 };
		bool before = w->b.on;
		uint64_t percent = rng_range(&w->rng, 100 - g->noise_percent, 100 + g->noise_percent);

		for (uint64_t k = 0; k < e.looked; k++)
			e.found += by_chance(w, g->share);
		e.link_pages = before ? (uint64_t)((double)g->pages * (1 - g->share)) : g->pages;
		e.link_ns = (g->fixed_ns + e.link_pages * g->page_ns) * percent / 100;
		w->switches += benefit_step(&w->b, &e) != before;
		w->on += before;
		w->epochs++;
	}
}

Test(benefit, what_pays_is_found_and_kept)
{
	const struct guest g = { 2000, 0.9, 1000, 50000, 20 };
	struct world w;

	make(&w);
	cr_expect_not(w.b.on);
	run(&w, &g, 20);
	cr_expect(w.b.on, "40,000 pages, nine of ten the same");
	run(&w, &g, 2000);
	cr_expect(w.b.on);
	cr_expect_eq(w.switches, 1);
}

Test(benefit, what_is_never_the_same_is_never_looked_at)
{
	const struct guest g = { 2000, 0, 30000, 50000, 20 };
	struct world w;

	make(&w);
	run(&w, &g, 5000);
	cr_expect_eq(w.on, 0);
}

/* One page in twenty: not on a link that takes 1 us for a page, where a look takes a tenth of it; well on one that takes 34 us. */
Test(benefit, it_depends_on_the_link)
{
	struct guest g = { 2000, 0.05, 1000, 50000, 20 };
	struct world w;

	make(&w);
	run(&w, &g, 2000);
	cr_expect_eq(w.on, 0);
	g.page_ns = 34000;
	run(&w, &g, 100);
	cr_expect(w.b.on);
	g.page_ns = 1000;
	run(&w, &g, 100);
	cr_expect_not(w.b.on);
}

Test(benefit, a_guest_that_becomes_another_is_noticed)
{
	struct guest g = { 2000, 0.9, 1000, 50000, 20 };
	struct world w;

	make(&w);
	run(&w, &g, 500);
	cr_assert(w.b.on);
	g.share = 0;
	run(&w, &g, 200);
	cr_expect_not(w.b.on, "looked at in vain");
	g.share = 0.9;
	run(&w, &g, 200);
	cr_expect(w.b.on);
	cr_expect_eq(w.switches, 3);
}

/* All of it the same: next to nothing is sent, so nothing new is known of the link, and that is no reason to stop. */
Test(benefit, a_link_that_carries_nothing_says_nothing)
{
	struct guest g = { 3000, 1, 1000, 50000, 20 };
	struct world w;

	make(&w);
	run(&w, &g, 100);
	cr_assert(w.b.on);
	run(&w, &g, 5000);
	cr_expect(w.b.on);
	cr_expect_eq(w.switches, 1);
}

/* Small epochs wait for the round trip, not for their pages. */
Test(benefit, a_round_trip_is_not_the_price_of_a_page)
{
	const struct guest g = { 200, 0.02, 500, 10000000, 20 };
	struct world w;

	make(&w);
	run(&w, &g, 5000);
	cr_expect_eq(w.on, 0);
	cr_expect_eq(w.b.page_ps, 0);
}

Test(benefit, a_few_pages_decide_nothing)
{
	const struct benefit_epoch e = { 200, 200, 1000000, 1000 };
	struct world w;

	make(&w);
	cr_expect_not(benefit_step(&w.b, &e));
	cr_expect(benefit_step(&w.b, &e));
}

Test(benefit, nothing_flaps)
{
	for (double share = 0.02; share < 0.4; share += 0.01) {
		const struct guest g = { 1000, share, 1000, 20000, 30 };
		struct world w;

		make(&w);
		run(&w, &g, 10000);
		cr_expect_leq(w.switches, 4, "%.2f the same: %lu switches", share, (unsigned long)w.switches);
	}
}

/* Once in a while the link stands: that is no price. */
Test(benefit, one_epoch_decides_nothing)
{
	const struct guest g = { 2000, 0.05, 1000, 50000, 10 };
	const struct benefit_epoch bad = { .link_ns = UINT64_C(3600000000000), .link_pages = 2000 };
	struct world w;

	make(&w);
	run(&w, &g, 300);
	cr_assert_not(w.b.on);
	cr_expect_not(benefit_step(&w.b, &bad));
	run(&w, &g, 300);
	cr_expect_eq(w.on, 0);
}

Test(benefit, any_figures)
{
	struct benefit b;
	struct rng r = { .state = 3 };

	benefit_init(&b, 100000);
	for (unsigned i = 0; i < 100000; i++) {
		const struct benefit_epoch e = { rng_next(&r) >> rng_next(&r) % 64, rng_next(&r) >> rng_next(&r) % 64,
						 rng_next(&r) >> rng_next(&r) % 64, rng_next(&r) >> rng_next(&r) % 64 };

		benefit_step(&b, &e);
		cr_assert_lt(b.looked, 4096);
		cr_assert_leq(b.found, b.looked);
	}
}
