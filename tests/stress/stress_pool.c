/* SPDX-License-Identifier: MIT */
/* stress_pool.c - threads take memory from one small pool, write it full, leave it for any other thread to check and free,
 * while a reader watches the cap.  Usage: stress_pool [seconds], 2 by default.  Exit status 0 is a pass. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "pool.h"

#define NR_THREADS 4
#define NR_PLACES 32
#define CAP_BYTES (UINT64_C(16) << 20)

struct piece {
	size_t len;
	uint8_t *mem;
	uint8_t fill;
};

static struct pool *pool;
static _Atomic(struct piece *) places[NR_PLACES]; /* exchange; seq_cst on both sides */
static atomic_bool stop;
static _Atomic uint64_t nr_pieces, nr_refused;

static void fail(const char *what, uint64_t got, uint64_t limit)
{
	printf("FAIL: %s: %" PRIu64 ", limit %" PRIu64 "\n", what, got, limit);
	exit(1);
}

static void drop(struct piece *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->len; i += 509)
		if (p->mem[i] != p->fill)
			fail("piece overwritten, at", i, p->len);
	pool_free(pool, p->mem, p->len);
	free(p);
}

/* Mostly small, sometimes a size class, sometimes an odd length with an extent of its own. */
static size_t draw_len(unsigned *seed)
{
	switch (rand_r(seed) % 16) {
	case 0:
		return (size_t)2 << 20;
	case 1:
		return (size_t)(3 << 20) + 5000 + (size_t)rand_r(seed) % 5000;
	default:
		return 1 + (size_t)rand_r(seed) % 60000;
	}
}

static void *churn(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	struct piece *p;

	while (!atomic_load(&stop)) {
		p = malloc(sizeof(*p));
		if (!p)
			exit(1);
		*p = (struct piece){ .len = draw_len(&seed), .fill = (uint8_t)rand_r(&seed) };
		p->mem = pool_alloc(pool, p->len, 64);
		if (!p->mem) {
			atomic_fetch_add(&nr_refused, 1);
			free(p);
			p = NULL;
		} else {
			atomic_fetch_add(&nr_pieces, 1);
			memset(p->mem, p->fill, p->len);
		}
		drop(atomic_exchange(&places[rand_r(&seed) % NR_PLACES], p));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct pool_options opt = { .cap_bytes = CAP_BYTES, .huge_pages = true };
	uint64_t end = deadline_in_ms(1000 * (argc > 1 ? strtoul(argv[1], NULL, 10) : 2));
	pthread_t threads[NR_THREADS];
	struct pool_stats s;

	if (pool_create(&pool, &opt, NULL))
		return 1;
	for (uintptr_t i = 0; i < NR_THREADS; i++)
		if (pthread_create(&threads[i], NULL, churn, (void *)(i + 1)))
			return 1;
	while (now_ns() < end) {
		pool_stats(pool, &s);
		if (s.mapped_bytes > CAP_BYTES || s.peak_bytes > CAP_BYTES)
			fail("mapped", s.mapped_bytes, CAP_BYTES);
		sched_yield();
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < NR_THREADS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < NR_PLACES; i++)
		drop(atomic_exchange(&places[i], NULL));
	pool_stats(pool, &s);
	if (s.used_bytes != 0 || nr_pieces == 0)
		fail("left in use", s.used_bytes, 0);
	pool_destroy(pool);
	printf("%" PRIu64 " pieces, %" PRIu64 " refused at the cap, peak %" PRIu64 " of %" PRIu64 " bytes\n", nr_pieces,
	       nr_refused, s.peak_bytes, CAP_BYTES);
	return 0;
}
