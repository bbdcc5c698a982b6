/* SPDX-License-Identifier: MIT */
/* hist.c - see hist.h. */
#include "hist.h"

#include <string.h>

#define SUB (1u << HIST_SUB_BITS)

static unsigned bucket_of(uint64_t v)
{
	unsigned shift;

	if (v < SUB)
		return (unsigned)v;
	shift = 63u - (unsigned)__builtin_clzll(v) - HIST_SUB_BITS;
	return ((shift + 1) << HIST_SUB_BITS) + (unsigned)(v >> shift) - SUB;
}

/* The largest value of a bucket, so that a percentile is never told too small. */
static uint64_t bucket_top(unsigned b)
{
	unsigned shift;

	if (b < SUB)
		return b;
	shift = (b >> HIST_SUB_BITS) - 1;
	return (((uint64_t)(b & (SUB - 1)) + SUB + 1) << shift) - 1;
}

void hist_init(struct hist *h)
{
	memset(h, 0, sizeof(*h));
	atomic_store_explicit(&h->min, UINT64_MAX, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static void set(_Atomic uint64_t *p, uint64_t v)
{
	atomic_store_explicit(p, v, memory_order_relaxed);
}

void hist_add(struct hist *h, uint64_t value)
{
	_Atomic uint32_t *b = &h->bucket[bucket_of(value)];

	if (value < get(&h->min))
		set(&h->min, value);
	if (value > get(&h->max))
		set(&h->max, value);
	set(&h->sum, get(&h->sum) + value);
	set(&h->count, get(&h->count) + 1);
	/* last, and release, with the acquire in hist_read(): who counts a value knows its min and max */
	atomic_store_explicit(b, atomic_load_explicit(b, memory_order_relaxed) + 1, memory_order_release);
}

/* The top of the bucket that holds the value of rank @rank (from 1). */
static uint64_t value_at(const uint32_t *bucket, uint64_t rank)
{
	uint64_t seen = 0;
	unsigned i = 0;

	while ((seen += bucket[i]) < rank)
		i++;
	return bucket_top(i);
}

static uint64_t min_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void hist_read(const struct hist *h, struct ft_dist *out)
{
	uint32_t bucket[HIST_BUCKETS]; /* one look at each, so that ranks and total agree */
	uint64_t total = 0;

	memset(out, 0, sizeof(*out));
	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		bucket[i] = atomic_load_explicit(&h->bucket[i], memory_order_acquire);
		total += bucket[i];
	}
	if (!total)
		return;
	out->count = total;
	out->min = get(&h->min);
	out->max = get(&h->max);
	out->mean = (double)get(&h->sum) / (double)total;
	out->p50 = min_of(value_at(bucket, (total + 1) / 2), out->max);
	out->p99 = min_of(value_at(bucket, total - total / 100), out->max);
}
