/* SPDX-License-Identifier: MIT */
/* hist.h - a distribution of 64-bit values in fixed memory: 64 linear steps per power of two, so a
 * percentile is right to within 1/64.  One writer; any number of readers at the same time, which see
 * each added value or do not (relaxed atomics: no reader acts on the figures). */
#ifndef FT_BASE_HIST_H
#define FT_BASE_HIST_H

#include <stdatomic.h>
#include <stdint.h>
#include <ft/ft.h>

#define HIST_SUB_BITS 6
#define HIST_BUCKETS ((64 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
	_Atomic uint64_t count, sum, min, max;
	_Atomic uint32_t bucket[HIST_BUCKETS];
};

void hist_init(struct hist *h);
void hist_add(struct hist *h, uint64_t value);
void hist_read(const struct hist *h, struct ft_dist *out);

#endif
