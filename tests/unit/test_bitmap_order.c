/* SPDX-License-Identifier: MIT */
/* test_bitmap_order.c - bitmap.c under schedules that threads would meet once in a month.
 * The source is included with a switch point before each atomic operation.  Three or four coroutines (setters, and a taker
 * or a clearer) run on one thread, and at each switch point a seeded draw says who goes on.  A run is a few operations on
 * pages that share words, lines and summary words; there are many thousands of runs, the same on every machine and under any
 * load.  Weak memory is not modelled: for that see tests/stress/stress_bitmap.c and the argument in bitmap.c.
 *
 * Shown to bite, by breaking bitmap.c.  set: summary before leaf, levels from the root down, stop at the first summary bit
 * that is set, stop when the page was set already; take: line below before its summary word; clear_run: no second look in
 * retract().  Each is found, most of them within 200 runs. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <ucontext.h>

static void switch_point(void);
#undef atomic_load
#undef atomic_fetch_or
#undef atomic_fetch_and
#undef atomic_exchange
#define atomic_load(p) (switch_point(), atomic_load_explicit(p, memory_order_seq_cst))
#define atomic_fetch_or(p, v) (switch_point(), atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define atomic_fetch_and(p, v) (switch_point(), atomic_fetch_and_explicit(p, v, memory_order_seq_cst))
#define atomic_exchange(p, v) (switch_point(), atomic_exchange_explicit(p, v, memory_order_seq_cst))
#include "../../bitmap/bitmap.c"

#define NR_PAGES (UINT64_C(512) * 512 * 3) /* leaf lines, three lines of summary, one above */
#define NR_SETTERS 3
#define NR_SETS 4 /* by each setter */
#define STACK_BYTES (128 * 1024)
#define NR_RUNS 20000

/* Neighbours in a word, a line, a summary word, a summary line, and far apart. */
static const uint64_t pages[] = { 0, 1, 64, 511, 512, 64 * 512, 512 * 512, 512 * 512 * 2 + 7 };
#define NR_PLACES (sizeof(pages) / sizeof(pages[0]))

struct coroutine {
	ucontext_t context;
	void (*body)(unsigned id);
	unsigned id;
	bool over;
};

static struct coroutine co[NR_SETTERS + 1];
static ucontext_t outside;
static unsigned current;
static bool scheduled; /* false: everything runs straight through */
static uint64_t seed;
static uint8_t stacks[NR_SETTERS + 1][STACK_BYTES];
static struct bitmap *set, *to;

/* What the setters have done: versions as in stress_bitmap.c. */
static unsigned version[NR_SETTERS][NR_PLACES], finished[NR_SETTERS][NR_PLACES], seen[NR_SETTERS][NR_PLACES];
static uint64_t nr_fresh, nr_taken;

static uint64_t draw(uint64_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (seed >> 33) % n;
}

static void go_on_with(unsigned next, ucontext_t *from)
{
	current = next;
	swapcontext(from, &co[next].context);
}

static void switch_point(void)
{
	unsigned me = current, next;

	if (!scheduled || draw(3))
		return;
	do
		next = (unsigned)draw(NR_SETTERS + 1);
	while (co[next].over);
	if (next != me)
		go_on_with(next, &co[me].context);
}

static void start(void)
{
	unsigned me = current;

	co[me].body(me);
	co[me].over = true;
	for (unsigned i = 0; i <= NR_SETTERS; i++)
		if (!co[i].over)
			go_on_with(i, &co[me].context);
	setcontext(&outside);
}

static void set_some(unsigned id)
{
	unsigned nr_places = 1 + (unsigned)draw(NR_PLACES), at;

	for (unsigned i = 0; i < NR_SETS; i++) {
		at = (unsigned)draw(nr_places);
		version[id][at]++;
		nr_fresh += draw(4) ? bitmap_set(set, pages[at]) : bitmap_set_run(set, pages[at], 1);
		finished[id][at] = version[id][at];
	}
}

static void take(void)
{
	unsigned before[NR_SETTERS][NR_PLACES];

	memcpy(before, finished, sizeof(before));
	nr_taken += bitmap_take(to, set);
	for (unsigned at = 0; at < NR_PLACES; at++)
		for (unsigned id = 0; id < NR_SETTERS; id++) {
			if (bitmap_test(to, pages[at]))
				seen[id][at] = version[id][at];
			cr_assert_geq(seen[id][at], before[id][at], "page %lu: set before the take, not taken",
				      pages[at]);
		}
	bitmap_clear(to);
}

static void take_some(unsigned id)
{
	(void)id;
	for (int i = 0; i < 3; i++)
		take();
}

static void clear_some(unsigned id)
{
	(void)id;
	for (int i = 0; i < 3; i++)
		bitmap_clear_run(set, pages[draw(NR_PLACES)] & ~UINT64_C(511), 512);
}

static void run(uint64_t nr, void (*last)(unsigned id))
{
	seed = nr * UINT64_C(0x9e3779b97f4a7c15);
	memset(version, 0, sizeof(version));
	memset(finished, 0, sizeof(finished));
	memset(seen, 0, sizeof(seen));
	nr_fresh = nr_taken = 0;
	for (unsigned i = 0; i <= NR_SETTERS; i++) {
		co[i].body = i < NR_SETTERS ? set_some : last;
		co[i].over = false;
		getcontext(&co[i].context);
		co[i].context.uc_stack.ss_sp = stacks[i];
		co[i].context.uc_stack.ss_size = STACK_BYTES;
		makecontext(&co[i].context, start, 0);
	}
	scheduled = true;
	go_on_with((unsigned)draw(NR_SETTERS + 1), &outside);
	scheduled = false;
}

Test(bitmap_order, every_set_is_taken_once_and_in_time, .timeout = 280)
{
	cr_assert_eq(bitmap_create(&set, NR_PAGES), 0);
	cr_assert_eq(bitmap_create(&to, NR_PAGES), 0);
	for (uint64_t nr = 0; nr < NR_RUNS; nr++) {
		run(nr, take_some);
		take();
		cr_assert_eq(nr_taken, nr_fresh, "run %lu: %lu bits set, %lu taken", nr, nr_fresh, nr_taken);
		cr_assert(bitmap_empty(set));
	}
	bitmap_destroy(set);
	bitmap_destroy(to);
}

/* clear_run drops summary bits; a set that comes by must find its way down all the same. */
Test(bitmap_order, a_set_beside_clear_run_stays_findable, .timeout = 280)
{
	uint64_t left;

	cr_assert_eq(bitmap_create(&set, NR_PAGES), 0);
	cr_assert_eq(bitmap_create(&to, NR_PAGES), 0);
	for (uint64_t nr = 0; nr < NR_RUNS; nr++) {
		run(nr, clear_some);
		left = 0;
		for (unsigned at = 0; at < NR_PLACES; at++)
			left += bitmap_test(set, pages[at]);
		cr_assert_eq(bitmap_count(set), left, "run %lu", nr);
		cr_assert_eq(bitmap_take(to, set), left, "run %lu", nr);
		bitmap_clear(to);
	}
	bitmap_destroy(set);
	bitmap_destroy(to);
}
