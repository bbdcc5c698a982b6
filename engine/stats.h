/* SPDX-License-Identifier: MIT */
/* stats.h - what is measured (enum ft_metric, enum ft_counter of ft.h).
 * Each metric has one writing thread, or a lock of its writers (write-fault); readers never wait and never make a writer wait. */
#ifndef FT_STATS_H
#define FT_STATS_H

#include <stdatomic.h>
#include <ft/ft.h>
#include "hist.h"

/* The phases among which the bottleneck is looked for: a moving average of each, weight 1/8 for the newest. */
enum stats_phase { PHASE_INTERVAL = 0, PHASE_CAPTURE, PHASE_SHIP, PHASE_ACK, PHASE_APPLY, PHASE_RECEIVE, PHASE_COUNT };

struct stats {
	struct hist metric[FT_METRIC_COUNT];
	_Atomic uint64_t counter[FT_COUNTER_COUNT];
	_Atomic uint64_t phase_ns[PHASE_COUNT];
};

void stats_init(struct stats *s);
void stats_add(struct stats *s, enum ft_metric m, uint64_t value);
void stats_count(struct stats *s, enum ft_counter c, uint64_t add);
void stats_phase(struct stats *s, enum stats_phase phase, uint64_t ns);
const char *stats_bottleneck(const struct stats *s); /* "" before the first epoch */
void stats_read(const struct stats *s, struct ft_stats *out);

#endif
