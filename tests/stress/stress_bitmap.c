/* SPDX-License-Identifier: MIT */
/* stress_bitmap.c - many writers, one collector with bitmap_take: no set is lost, late, or handed over without its page.
 * Usage: stress_bitmap [seconds], 4 by default.  Exit status 0 is a pass.
 *
 * Four kinds of pages lie interleaved, so that writers share words on all levels:
 *   repeated	owned by one writer, which bumps the page's version and sets the bit, again and again.  The collector reads
 *		the version of each page it takes.  Before each take it reads how far each writer has come; after it,
 *		each set up to there must have been seen with its version or a later one: never lost, never late.
 *   shared	the same, but all writers set the same page, and each has a version of its own for it: whoever finds the bit
 *		set already must be able to rely on it all the same.
 *   handed	owned by one writer, which writes a plain (not atomic) word and then sets the bit; the collector takes the
 *		bit, reads the word and hands the page back.  ThreadSanitizer thus checks that take acquires what set
 *		released, and the word must be the one expected.
 *   runs	set by all with bitmap_set_run, across word borders.
 * And for all: bits that went from 0 to 1 (by the return values of the writers) and bits taken must be equal in number.
 *
 * Shown to bite, by breaking bitmap.c (gcc -O2, 2 x86 cores; how soon depends on what else runs there):
 *	set: summary before leaf; levels from the root down; leaf by load and store	in 0.5 s
 *	take: line below before its summary word; load and store instead of exchange	in 0.1 s
 *	set: stop when the page was set already						just after half time
 *	set or take: relaxed instead of seq_cst						ThreadSanitizer: data race on plain[]
 * Not seen here, so left to test_bitmap_order.c (all orders but those of weak memory) and the argument in bitmap.c:
 *	set: stop at the first summary bit that is set; look at the leaf bit before the fetch_or */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* The source itself, with a window behind each atomic operation: in the second half of the run the thread may lose the
 * processor there.  Some orders only go wrong when three threads meet within a few instructions. */
static void window(void);
#undef atomic_load
#undef atomic_fetch_or
#undef atomic_exchange
#define with_window(op)                                                                                                \
	({                                                                                                             \
		__auto_type result_ = (op);                                                                            \
		window();                                                                                              \
		result_;                                                                                               \
	})
#define atomic_load(p) with_window(atomic_load_explicit(p, memory_order_seq_cst))
#define atomic_fetch_or(p, v) with_window(atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define atomic_exchange(p, v) with_window(atomic_exchange_explicit(p, v, memory_order_seq_cst))
#include "../../bitmap/bitmap.c"
#undef atomic_load
#define atomic_load(p) atomic_load_explicit(p, memory_order_seq_cst)
#include "clock.h"

#define NR_WRITERS 4
#define NR_PAGES (64 * 64 * 64 * 2) /* leaf lines, two of summary, and one above */
#define SLOTS 24                    /* words in use by each kind; few, so that they meet */
#define SPREAD 21577                /* pages from one of them to the next */
#define RUN_MAX 130

enum kind { REPEATED, HANDED, SHARED };

struct writer {
	unsigned id;
	pthread_t thread;
	_Atomic uint64_t done; /* steps; release after the set, pairs with the acquire in collect() */
	uint64_t fresh;        /* bits that this writer made 1; read after join */
	uint64_t checked;      /* collector only */
};

static struct bitmap *dirty, *taken;
static struct writer writers[NR_WRITERS];
static atomic_bool stop;
static _Atomic uint64_t version[NR_PAGES]; /* relaxed: ordered by the bitmap, that is what is tested */
static uint64_t seen[NR_PAGES];            /* collector only */
static uint64_t plain[NR_PAGES];           /* handed pages; ordered by the bitmap one way, by away[] the other */
static _Atomic bool away[NR_PAGES];
static uint64_t nr_taken, nr_takes, nr_handed;

static atomic_bool windows;

static void window(void)
{
	static _Thread_local uint32_t n = 1;

	n = n * 1664525 + 1013904223;
	if (n >> 26 == 0 && atomic_load_explicit(&windows, memory_order_relaxed))
		sched_yield();
}

static uint64_t mix(uint64_t z)
{
	z += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* First page of a slot. */
static uint64_t slot(uint64_t r)
{
	return r % SLOTS * SPREAD & ~UINT64_C(63);
}

/* The page of kind @kind that writer @id touches in step @n.  Kinds and writers have their own bits in shared words; of
 * the kind SHARED this is where the writer's version is, and the page is that of writer 0. */
static uint64_t page_of(enum kind kind, unsigned id, uint64_t n)
{
	uint64_t r = mix(n * NR_WRITERS + id);

	return slot(r) + kind * NR_WRITERS + id;
}

static void fail(const char *what, uint64_t page, uint64_t got, uint64_t want)
{
	printf("FAIL: %s: page %" PRIu64 ": %" PRIu64 ", expected %" PRIu64 " (take %" PRIu64 ")\n", what, page, got,
	       want, nr_takes);
	exit(1);
}

/* A handed page goes out only when it is at home, so its bit is set once per trip. */
static void hand(struct writer *w, uint64_t n)
{
	uint64_t page = page_of(HANDED, w->id, n);

	if (atomic_load_explicit(&away[page], memory_order_acquire)) /* pairs with the release in take_page() */
		return;
	plain[page] = n ^ page;
	atomic_store_explicit(&version[page], n, memory_order_relaxed);
	atomic_store_explicit(&away[page], true, memory_order_relaxed);
	w->fresh += bitmap_set(dirty, page);
}

/* Now and then nothing at all is set for a while: a mistake shows only if no other set happens to repair it. */
static void rest(uint64_t r)
{
	if (r % 1024 == 0)
		sched_yield();
	for (uint64_t i = r % 4 ? 0 : r / 1024 % 256; i > 0; i--)
		atomic_signal_fence(memory_order_seq_cst);
}

static void *write_pages(void *arg)
{
	struct writer *w = arg;
	uint64_t page, r;

	for (uint64_t n = 1; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
		page = page_of(n % 2 ? REPEATED : SHARED, w->id, n);
		atomic_store_explicit(&version[page], n, memory_order_relaxed);
		w->fresh += bitmap_set(dirty, n % 2 ? page : page - w->id);
		atomic_store_explicit(&w->done, n, memory_order_release);
		hand(w, n);
		r = mix(n ^ (uint64_t)w->id << 60);
		if (r % 16 == 0) /* in lines of their own, between the slots */
			w->fresh +=
				bitmap_set_run(dirty, slot(r / 16) + 1024 + r / 1024 % 8192, 1 + (r >> 40) % RUN_MAX);
		rest(r >> 32);
	}
	return NULL;
}

static void take_page(uint64_t page)
{
	uint64_t kind = page % 64 / NR_WRITERS;

	for (unsigned i = 0; i < (kind == SHARED ? NR_WRITERS : 1); i++)
		seen[page + i] = atomic_load_explicit(&version[page + i], memory_order_relaxed);
	if (kind != HANDED || seen[page] == 0)
		return; /* version 0: a page of a run, at this place of its word */
	if (plain[page] != (seen[page] ^ page))
		fail("handed over with old content", page, plain[page], seen[page] ^ page);
	nr_handed++;
	atomic_store_explicit(&away[page], false, memory_order_release); /* pairs with the acquire in hand() */
}

static void collect(void)
{
	uint64_t reached[NR_WRITERS], n, counted = 0, page;

	for (unsigned i = 0; i < NR_WRITERS; i++)
		reached[i] = atomic_load_explicit(&writers[i].done, memory_order_acquire);
	n = bitmap_take(taken, dirty);
	nr_takes++;
	nr_taken += n;
	for (struct page_run r = { 0 }; bitmap_next_run(taken, r.first + r.nr, UINT64_MAX, &r); counted += r.nr)
		for (uint64_t p = r.first; p < r.first + r.nr; p++)
			take_page(p);
	if (counted != n)
		fail("take told another number than there are bits", 0, n, counted);
	for (unsigned i = 0; i < NR_WRITERS; i++) {
		for (n = writers[i].checked + 1; n <= reached[i]; n++) {
			page = page_of(n % 2 ? REPEATED : SHARED, i, n);
			if (seen[page] < n)
				fail("set before the take, not taken", page, seen[page], n);
		}
		writers[i].checked = reached[i];
	}
	bitmap_clear(taken);
}

int main(int argc, char **argv)
{
	uint64_t half_ms = 500 * (argc > 1 ? strtoul(argv[1], NULL, 10) : 4), fresh = 0, steps = 0, end;

	if (bitmap_create(&dirty, NR_PAGES) || bitmap_create(&taken, NR_PAGES))
		return 1;
	for (unsigned i = 0; i < NR_WRITERS; i++) {
		writers[i].id = i;
		if (pthread_create(&writers[i].thread, NULL, write_pages, &writers[i]))
			return 1;
	}
	for (int half = 0; half < 2; half++) {
		atomic_store(&windows, half);
		for (end = deadline_in_ms(half_ms); now_ns() < end;)
			collect();
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < NR_WRITERS; i++) {
		pthread_join(writers[i].thread, NULL);
		fresh += writers[i].fresh;
		steps += atomic_load(&writers[i].done);
	}
	collect();
	if (fresh != nr_taken)
		fail("bits taken", 0, nr_taken, fresh);
	if (!bitmap_empty(dirty) || nr_handed == 0)
		fail("bits left, or nothing handed over", 0, bitmap_count(dirty), 0);
	printf("%" PRIu64 " steps, %" PRIu64 " takes, %" PRIu64 " bits set and taken, %" PRIu64 " pages handed over\n",
	       steps, nr_takes, nr_taken, nr_handed);
	bitmap_destroy(dirty);
	bitmap_destroy(taken);
	return 0;
}
