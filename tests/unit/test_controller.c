/* SPDX-License-Identifier: MIT */
/* test_controller.c - the interval that the controller finds, for made-up guests on a made-up clock.
 * A guest dirties pages of its working set at a rate, each pause and each way over the link costs a constant and something a page.  What is asked:
 * the target is met in the end, how soon, how far beyond it on the way, and that the interval does not swing. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "clock.h"
#include "controller.h"

#define MS NS_PER_MS

struct guest {
	double pages_per_ms, working_set;
	double pause_ms, pause_us_page; /* constant, and for each page */
	double link_ms, link_us_page, apply_us_page;
	bool output;      /* it sends all the time */
	bool no_estimate; /* its VMM does not tell how many pages are dirty */
};

struct world {
	struct controller c;
	struct controller_goal goal;
	struct controller_plan plan;
	struct controller_epoch last;
	double link_ms; /* of the epoch before: known when the next one ends */
	uint64_t link_pages;
	double apply_ms;
	uint64_t moves; /* how often the interval changed */
	uint64_t seed;  /* of noise; 0: none */
	uint64_t turns; /* how often the interval changed its direction */
	int direction;
};

static const struct guest steady = { .pages_per_ms = 20,
				     .working_set = 20000,
				     .pause_ms = 0.2,
				     .pause_us_page = 0.6,
				     .link_ms = 0.3,
				     .link_us_page = 2,
				     .apply_us_page = 1 };
static const struct guest idle = { .pages_per_ms = 0.1,
				   .working_set = 500,
				   .pause_ms = 0.06,
				   .pause_us_page = 0.6,
				   .link_ms = 0.1,
				   .link_us_page = 2 };

static struct controller_goal goal_of(enum ft_interval_mode mode)
{
	return (struct controller_goal){ .mode = mode,
					 .fixed_ns = 50 * MS,
					 .min_ns = 5 * MS,
					 .max_ns = 1000 * MS,
					 .delay_ns = 50 * MS,
					 .slowdown_permille = 50,
					 .output_cuts = false,
					 .output_wait_ns = 20 * MS };
}

static void world_init(struct world *w, enum ft_interval_mode mode)
{
	memset(w, 0, sizeof(*w));
	controller_init(&w->c);
	w->goal = goal_of(mode);
	w->plan = controller_plan(&w->c, &w->goal);
}

static double pages_after(const struct guest *g, double ms)
{
	return g->working_set * (1 - exp(-g->pages_per_ms * ms / g->working_set));
}

static void check_bounds(const struct world *w)
{
	cr_assert(w->plan.interval_ns >= w->goal.min_ns && w->plan.interval_ns <= w->goal.max_ns, "%" PRIu64 " ns",
		  w->plan.interval_ns);
	cr_assert_gt(w->plan.look_ns, 0);
}

/* The guest runs from one look to the next, until the interval is over or pages end it. */
static double run_ms(struct world *w, const struct guest *g, bool *early)
{
	double end = (double)w->plan.interval_ns / MS, look = (double)w->plan.look_ns / MS;
	double limit =
		(double)(w->plan.watermark_pages < w->plan.wake_pages ? w->plan.watermark_pages : w->plan.wake_pages);

	*early = false;
	for (double t = look; t < end && !g->no_estimate; t += look)
		if (pages_after(g, t) >= limit) {
			*early = w->plan.wake_pages <
				 w->plan.watermark_pages; /* else the epoch is as long as it may be */
			return t;
		}
	return end;
}

static void note_direction(struct world *w, uint64_t before)
{
	int d = w->plan.interval_ns > before ? 1 : w->plan.interval_ns < before ? -1 : 0;

	w->moves += d != 0;
	w->turns += d && w->direction && d != w->direction;
	w->direction = d ? d : w->direction;
}

/* Between 0.85 and 1.15. */
static double noise(struct world *w)
{
	if (!w->seed)
		return 1;
	w->seed = w->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return 0.85 + 0.3 * (double)(w->seed >> 40) / (double)(1 << 24);
}

static void check_step(const struct world *w, uint64_t before)
{
	uint64_t now = w->c.target_ns;

	cr_assert((now <= 2 * before && now >= before / 2) || now == w->goal.min_ns || now == w->goal.max_ns,
		  "a step from %" PRIu64 " to %" PRIu64, before, now);
}

static void epoch(struct world *w, const struct guest *g)
{
	struct controller_epoch e = { .output = g->output };
	uint64_t before = w->plan.interval_ns, target = w->c.target_ns;
	enum ft_interval_mode mode = w->c.mode;
	double ms = run_ms(w, g, &e.early), pages = pages_after(g, ms);
	double pause = (g->pause_ms + g->pause_us_page * pages / 1000) * noise(w);

	if (ms < w->link_ms) /* it waits for the one before it */
		ms = w->link_ms;
	e.pages = (uint64_t)pages;
	e.pause_ns = (uint64_t)(pause * MS);
	e.length_ns = (uint64_t)((ms + pause) * MS);
	e.link_ns = (uint64_t)(w->link_ms * MS);
	e.link_pages = w->link_pages;
	e.apply_ns = (uint64_t)(w->apply_ms * MS);
	w->link_ms = g->link_ms + g->link_us_page * pages / 1000;
	w->apply_ms = g->apply_us_page * pages / 1000;
	w->link_pages = e.pages;
	w->last = e;
	w->plan = controller_step(&w->c, &w->goal, &e);
	note_direction(w, before);
	if (target && mode == w->c.mode)
		check_step(w, target);
	check_bounds(w);
}

static void epochs(struct world *w, const struct guest *g, unsigned n)
{
	while (n--)
		epoch(w, g);
}

static double slowdown(const struct world *w)
{
	return 1000.0 * (double)w->last.pause_ns / (double)w->last.length_ns;
}

/* The longest that output waited: all of the epoch, unless it ends it. */
static double delay_ms(const struct world *w)
{
	double waits = (double)(w->last.length_ns - w->last.pause_ns) / MS;

	if (w->goal.output_cuts && waits > (double)w->goal.output_wait_ns / MS)
		waits = (double)w->goal.output_wait_ns / MS;
	return waits + (double)w->last.pause_ns / MS + w->link_ms;
}

Test(controller, fixed_is_fixed)
{
	struct world w;

	world_init(&w, FT_INTERVAL_FIXED);
	w.goal.fixed_ns = 7000 * MS; /* also beyond the bounds of the others */
	w.goal.max_ns = 10000 * MS;
	epochs(&w, &steady, 20);
	cr_expect_eq(w.plan.interval_ns, 7000 * MS);
	cr_expect_eq(w.plan.watermark_pages, CONTROLLER_NO_LIMIT);
	cr_expect_eq(w.plan.reason, CONTROLLER_FIXED);
}

Test(controller, slowdown_is_below_its_target_and_not_far_below)
{
	static const double rates[] = { 2, 20, 40 };

	for (unsigned i = 0; i < 3; i++)
		for (uint64_t from = 5; from <= 800; from *= 4) {
			struct guest g = steady;
			struct world w;

			g.pages_per_ms = rates[i];
			world_init(&w, FT_INTERVAL_SLOWDOWN);
			w.goal.fixed_ns = from * MS;
			w.c.target_ns = 0;
			epochs(&w, &g, 30);
			w.turns = 0;
			for (unsigned n = 0; n < 50; n++) {
				epoch(&w, &g);
				cr_assert_leq(slowdown(&w), 50, "%.0f pages/ms from %" PRIu64 " ms: %.1f", rates[i],
					      from, slowdown(&w));
			}
			cr_expect_leq(w.turns, 1, "%.0f pages/ms: it swings, %" PRIu64 " turns", rates[i], w.turns);
			if (w.plan.reason == CONTROLLER_SLOWDOWN)
				cr_expect_geq(slowdown(&w), 35, "%.0f pages/ms from %" PRIu64 " ms: only %.1f",
					      rates[i], from, slowdown(&w));
		}
}

Test(controller, output_delay_is_below_its_target_and_not_far_below)
{
	static const double rates[] = { 2, 20, 100 };

	for (unsigned i = 0; i < 6; i++) {
		struct guest g = steady;
		struct world w;
		double highest = 0;

		g.pages_per_ms = rates[i / 2];
		g.no_estimate = true;
		world_init(&w, FT_INTERVAL_OUTPUT_DELAY);
		w.goal.output_cuts = i % 2;
		epochs(&w, &g, 30);
		w.turns = 0;
		for (unsigned n = 0; n < 50; n++) {
			epoch(&w, &g);
			highest = fmax(highest, delay_ms(&w));
		}
		cr_expect_leq(highest, 50.5, "%.0f pages/ms, cuts %u: %.1f ms", g.pages_per_ms, i % 2, highest);
		cr_expect_leq(w.turns, 1, "%.0f pages/ms, cuts %u: it swings, %" PRIu64 " turns", g.pages_per_ms, i % 2,
			      w.turns);
		if (w.plan.reason == CONTROLLER_DELAY)
			cr_expect_geq(highest, 35, "%.0f pages/ms, cuts %u: only %.1f ms", g.pages_per_ms, i % 2,
				      highest);
	}
}

/* From the shortest to what the target allows: at most a few epochs more than twofold steps need, and no more than a fifth beyond. */
Test(controller, finds_it_soon_and_without_overshoot)
{
	struct guest g = steady;
	struct world w;
	uint64_t highest = 0, final;

	g.pages_per_ms = 10;
	world_init(&w, FT_INTERVAL_SLOWDOWN);
	w.goal.slowdown_permille = 10;
	w.goal.fixed_ns = 5 * MS;
	w.c.target_ns = 0;
	for (unsigned n = 0; n < 20; n++) {
		epoch(&w, &g);
		highest = w.plan.interval_ns > highest ? w.plan.interval_ns : highest;
	}
	final = w.plan.interval_ns;
	epochs(&w, &g, 200);
	cr_expect(w.plan.interval_ns * 4 <= final * 5 && w.plan.interval_ns * 5 >= final * 4,
		  "%" PRIu64 " then %" PRIu64, final, w.plan.interval_ns);
	cr_expect_leq(highest, w.plan.interval_ns * 6 / 5);
}

Test(controller, busy_and_calm_in_turns_keep_the_target)
{
	struct guest busy = steady, calm = steady;
	struct world w;

	busy.pages_per_ms = 60;
	calm.pages_per_ms = 3;
	world_init(&w, FT_INTERVAL_OUTPUT_DELAY);
	epochs(&w, &calm, 30);
	for (unsigned phase = 0; phase < 10; phase++) {
		const struct guest *g = phase % 2 ? &calm : &busy;

		for (unsigned n = 0; n < 40; n++) {
			epoch(&w, g);
			/* the watermark is there from the first epoch of a phase on, up to a look */
			cr_assert_leq(delay_ms(&w), n < 8 ? 75 : 50.5, "phase %u, epoch %u: %.1f ms", phase, n,
				      delay_ms(&w));
		}
	}
}

/* Costs that are never the same twice: the interval stays where it is most of the time, and near what is right. */
Test(controller, noise_is_not_followed)
{
	for (enum ft_interval_mode mode = FT_INTERVAL_OUTPUT_DELAY; mode <= FT_INTERVAL_SLOWDOWN; mode++) {
		uint64_t lowest = UINT64_MAX, highest = 0;
		struct world w;

		world_init(&w, mode);
		w.seed = 1;
		epochs(&w, &steady, 60);
		w.moves = 0;
		for (unsigned n = 0; n < 300; n++) {
			epoch(&w, &steady);
			lowest = w.c.target_ns < lowest ? w.c.target_ns : lowest;
			highest = w.c.target_ns > highest ? w.c.target_ns : highest;
		}
		cr_expect_leq(w.moves, 100, "mode %d: %" PRIu64 " moves in 300 epochs", (int)mode, w.moves);
		cr_expect_leq(highest, lowest * 2, "mode %d: from %" PRIu64 " to %" PRIu64, (int)mode, lowest, highest);
	}
}

/* A burst every now and then, as that of a garbage collection. */
Test(controller, single_bursts_do_not_drive_it_to_a_bound)
{
	struct guest burst = steady;
	uint64_t before, lowest = UINT64_MAX, highest = 0;
	struct world w;

	burst.pages_per_ms = 200;
	world_init(&w, FT_INTERVAL_SLOWDOWN);
	epochs(&w, &steady, 100);
	before = w.plan.interval_ns;
	for (unsigned n = 0; n < 300; n++) {
		epoch(&w, n % 30 == 29 ? &burst : &steady);
		lowest = w.plan.interval_ns < lowest ? w.plan.interval_ns : lowest;
		highest = w.plan.interval_ns > highest ? w.plan.interval_ns : highest;
	}
	cr_expect_geq(lowest, before / 2, "%" PRIu64 " of %" PRIu64, lowest, before);
	cr_expect_leq(highest, before * 4, "%" PRIu64 " of %" PRIu64, highest, before);
}

Test(controller, a_slow_link_lengthens_epochs_until_it_keeps_up)
{
	struct guest slow = steady;
	struct world w;

	slow.link_us_page = 100;
	slow.working_set = 2000;
	world_init(&w, FT_INTERVAL_SLOWDOWN);
	epochs(&w, &steady, 40);
	cr_expect_neq(w.plan.reason, CONTROLLER_LINK);
	epochs(&w, &slow, 60);
	cr_expect_eq(w.plan.reason, CONTROLLER_LINK, "%s", controller_reason_name(w.plan.reason));
	cr_expect_geq((double)w.plan.interval_ns / MS, w.link_ms, "%.1f ms on the way", w.link_ms);
	cr_expect_leq((double)w.plan.interval_ns / MS, 1.3 * w.link_ms);
	epochs(&w, &steady, 60);
	cr_expect_neq(w.plan.reason, CONTROLLER_LINK);
}

Test(controller, a_slow_secondary_lengthens_epochs_too)
{
	struct guest slow = steady;
	struct world w;

	slow.apply_us_page = 100;
	slow.working_set = 2000;
	world_init(&w, FT_INTERVAL_SLOWDOWN);
	epochs(&w, &slow, 60);
	cr_expect_eq(w.plan.reason, CONTROLLER_APPLY, "%s", controller_reason_name(w.plan.reason));
	cr_expect_geq((double)w.plan.interval_ns / MS, w.apply_ms);
}

Test(controller, an_idle_guest_gets_the_longest_interval_and_wakes_at_once)
{
	uint64_t busy_ns;
	struct world w;

	world_init(&w, FT_INTERVAL_SLOWDOWN);
	w.goal.max_ns = 2000 * MS;
	epochs(&w, &steady, 40);
	busy_ns = w.c.target_ns;
	epochs(&w, &idle, 20);
	cr_expect_eq(w.plan.interval_ns, w.goal.max_ns);
	cr_expect(w.plan.reason == CONTROLLER_IDLE, "%s", controller_reason_name(w.plan.reason));
	w.turns = 0;
	epochs(&w, &idle, 50);
	cr_expect_eq(w.turns, 0);
	/* pages end it at one of the looks, and the next epoch is what it was before the rest */
	epoch(&w, &steady);
	cr_expect_leq(w.last.length_ns, w.goal.max_ns / 20);
	cr_expect_leq(w.plan.interval_ns, busy_ns * 5 / 4);
	cr_expect_neq(w.plan.reason, CONTROLLER_IDLE);
}

/* Where output ends the epoch, only its pages make it wait: the interval may be long, and the watermark keeps the target. */
Test(controller, the_watermark_keeps_the_delay_of_a_guest_that_wakes)
{
	struct guest burst = steady;
	struct world w;

	burst.pages_per_ms = 200;
	burst.working_set = 200000;
	world_init(&w, FT_INTERVAL_OUTPUT_DELAY);
	w.goal.output_cuts = true;
	w.goal.output_wait_ns = 0;
	epochs(&w, &steady, 40);
	epochs(&w, &idle, 40);
	cr_expect_eq(w.plan.interval_ns, w.goal.max_ns);
	for (unsigned n = 0; n < 50; n++) {
		epoch(&w, &burst);
		cr_expect_leq(delay_ms(&w), 55, "epoch %u: %.1f ms", n, delay_ms(&w));
	}
}

/* What it dirties in a long epoch is no reason to take it for busy: it would rest and wake for ever. */
Test(controller, a_guest_that_does_little_rests_without_end)
{
	for (double rate = 0.1; rate < 1.2; rate += 0.1) {
		struct guest little = idle;
		unsigned woken = 0;
		struct world w;

		little.pages_per_ms = rate;
		little.working_set = 100000;
		world_init(&w, FT_INTERVAL_SLOWDOWN);
		w.goal.max_ns = 2000 * MS;
		w.goal.fixed_ns = 25 * MS;
		w.c.target_ns = 0;
		epochs(&w, &little, 30);
		for (unsigned n = 0; n < 100; n++) {
			epoch(&w, &little);
			woken += w.plan.reason != CONTROLLER_IDLE;
		}
		cr_expect_eq(woken, 0, "%.1f pages/ms: awake in %u of 100 epochs", rate, woken);
	}
}

Test(controller, a_request_ends_the_rest)
{
	struct controller_epoch answered = {
		.length_ns = 3 * MS, .pause_ns = MS / 10, .pages = 5, .early = true, .output = true
	};
	struct world w;

	world_init(&w, FT_INTERVAL_SLOWDOWN);
	w.goal.output_cuts = true;
	epochs(&w, &idle, 30);
	cr_assert_eq(w.plan.reason, CONTROLLER_IDLE);
	w.plan = controller_step(&w.c, &w.goal, &answered);
	cr_expect_neq(w.plan.reason, CONTROLLER_IDLE);
	cr_expect_leq(w.plan.interval_ns, 50 * MS);
}

/* Its first word would wait for the end of the interval. */
Test(controller, no_rest_where_output_does_not_end_an_epoch)
{
	struct world w;

	world_init(&w, FT_INTERVAL_OUTPUT_DELAY);
	epochs(&w, &idle, 100);
	cr_expect_leq(w.plan.interval_ns, w.goal.delay_ns);
}

Test(controller, targets_and_bounds_change_under_way)
{
	struct world w;

	world_init(&w, FT_INTERVAL_SLOWDOWN);
	epochs(&w, &steady, 60);
	w.goal.slowdown_permille = 20;
	epochs(&w, &steady, 60);
	cr_expect(slowdown(&w) <= 20 && slowdown(&w) > 12, "%.1f", slowdown(&w));
	w.goal.max_ns = 20 * MS;
	w.plan = controller_plan(&w.c, &w.goal);
	cr_expect_eq(w.plan.interval_ns, 20 * MS);
	cr_expect_eq(w.plan.reason, CONTROLLER_MAX, "%s", controller_reason_name(w.plan.reason));
	w.goal.max_ns = 1000 * MS;
	w.goal.mode = FT_INTERVAL_OUTPUT_DELAY;
	epochs(&w, &steady, 60);
	cr_expect(delay_ms(&w) <= 50 && delay_ms(&w) > 35, "%.1f", delay_ms(&w));
	w.goal.delay_ns = 1 * MS;
	epochs(&w, &steady, 60);
	cr_expect_eq(w.plan.interval_ns, w.goal.min_ns);
	cr_expect_eq(w.plan.reason, CONTROLLER_MIN, "%s", controller_reason_name(w.plan.reason));
}

/* Whatever is measured: no division by nothing, and the bounds. */
Test(controller, takes_any_figures)
{
	static const uint64_t odd[] = { 0, 1, 31, 257, 1000000, UINT32_MAX, UINT64_MAX / 3, UINT64_MAX };
	uint64_t seed = 1;

	for (unsigned n = 0; n < 200000; n++) {
		static struct world w;
		struct controller_epoch e;
		uint64_t v[6];

		if (n % 50 == 0)
			world_init(&w, n / 50 % 2 ? FT_INTERVAL_SLOWDOWN : FT_INTERVAL_OUTPUT_DELAY);
		for (unsigned i = 0; i < 6; i++) {
			seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
			v[i] = odd[seed >> 61];
		}
		e = (struct controller_epoch){ v[0], v[1], v[2], v[3], v[4], v[5], seed >> 33 & 1, seed >> 34 & 1 };
		w.goal.output_cuts = seed >> 35 & 1;
		w.plan = controller_step(&w.c, &w.goal, &e);
		check_bounds(&w);
		cr_assert_geq(w.plan.watermark_pages, 1);
	}
}

Test(controller, reasons_have_names)
{
	for (enum controller_reason r = 0; r < CONTROLLER_REASON_COUNT; r++)
		cr_expect(controller_reason_name(r) && strlen(controller_reason_name(r)) < 16);
	cr_expect_str_eq(controller_reason_name(CONTROLLER_REASON_COUNT), "?");
}
