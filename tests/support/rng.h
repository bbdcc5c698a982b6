/* SPDX-License-Identifier: MIT */
/* rng.h - a small seeded generator for tests: same seed, same test. */
#ifndef TEST_RNG_H
#define TEST_RNG_H

#include <stdint.h>

struct rng {
	uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
	uint64_t x = r->state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* In [@min, @max]. */
static inline uint64_t rng_range(struct rng *r, uint64_t min, uint64_t max)
{
	return min + rng_next(r) % (max - min + 1);
}

#endif
