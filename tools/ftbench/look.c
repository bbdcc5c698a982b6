/* SPDX-License-Identifier: MIT */
/* look.c - figures from two looks at both sides, one at the beginning and one at the end of the time that counts.  Pure functions, for
 * simulated and real guests alike. */
#include <math.h>
#include "bench.h"

static double counted(const struct look *a, const struct look *z, enum ft_counter c)
{
	return (double)(z->stats.counter[c] - a->stats.counter[c]);
}

/* That were dirty: those of the pauses, and those that were sent ahead of one and not again. */
static double pages_between(const struct look *a, const struct look *z)
{
	const struct ft_dist *x = &a->stats.dist[FT_METRIC_DIRTY_PAGES], *y = &z->stats.dist[FT_METRIC_DIRTY_PAGES];

	return y->mean * (double)y->count - x->mean * (double)x->count + counted(a, z, FT_COUNTER_AHEAD_PAGES) -
	       counted(a, z, FT_COUNTER_AHEAD_AGAIN);
}

void look_phases(double *v, const struct look *a, const struct look *z)
{
	static const struct {
		enum figure f;
		enum ft_metric m;
	} mean[] = { { FIG_PAUSE_MEAN, FT_METRIC_PAUSE }, { FIG_STOP, FT_METRIC_STOP },
		     { FIG_COLLECT, FT_METRIC_COLLECT },  { FIG_CAPTURE, FT_METRIC_CAPTURE },
		     { FIG_SAVE, FT_METRIC_SAVE },        { FIG_RESUME, FT_METRIC_RESUME },
		     { FIG_SHIP, FT_METRIC_SHIP },        { FIG_ACK, FT_METRIC_ACK },
		     { FIG_APPLIED, FT_METRIC_APPLIED } };

	for (size_t i = 0; i < sizeof(mean) / sizeof(mean[0]); i++)
		v[mean[i].f] = dist_between(&a->stats.dist[mean[i].m], &z->stats.dist[mean[i].m]) / 1e3;
	v[FIG_APPLY] = dist_between(&a->side_stats.dist[FT_METRIC_APPLY], &z->side_stats.dist[FT_METRIC_APPLY]) / 1e3;
	v[FIG_DIRTY] = dist_between(&a->stats.dist[FT_METRIC_DIRTY_PAGES], &z->stats.dist[FT_METRIC_DIRTY_PAGES]);
	v[FIG_EPOCH] = dist_between(&a->stats.dist[FT_METRIC_EPOCH], &z->stats.dist[FT_METRIC_EPOCH]) / 1e6;
	v[FIG_EPOCHS] = counted(a, z, FT_COUNTER_EPOCHS) * 1e9 / (double)(z->ns - a->ns);
}

void look_costs(double *v, const struct look *a, const struct look *z)
{
	double gb = pages_between(a, z) * FT_PAGE_SIZE / 1e9, wall = (double)(z->ns - a->ns);
	double cpu_p = (double)(z->usage.cpu_primary_ns - a->usage.cpu_primary_ns);
	double cpu_s = (double)(z->side_usage.cpu_secondary_ns - a->side_usage.cpu_secondary_ns);

	v[FIG_BUSY] = (cpu_p + cpu_s) / wall * 100;
	v[FIG_MET] = (counted(a, z, FT_COUNTER_CAP_CUTS) + counted(a, z, FT_COUNTER_CAP_STALLS) +
		      counted(a, z, FT_COUNTER_CAP_DROPS)) *
		     1e9 / wall;
	if (gb > 0) {
		v[FIG_BYTES] = counted(a, z, FT_COUNTER_BYTES_SENT) / gb / 1e9;
		v[FIG_CPU_PRIMARY] = cpu_p / 1e9 / gb;
		v[FIG_CPU_SECONDARY] = cpu_s / 1e9 / gb;
	}
	v[FIG_RSS_PRIMARY] = (double)z->usage.rss_bytes / 1048576;
	v[FIG_PINNED_PRIMARY] = (double)z->usage.pinned_bytes / 1048576;
}

void look_side_memory(double *v, const struct look *z)
{
	v[FIG_RSS_SECONDARY] = (double)z->side_usage.rss_bytes / 1048576;
	v[FIG_PINNED_SECONDARY] = (double)z->side_usage.pinned_bytes / 1048576;
}

void look_work(double *v, const struct look *a, const struct look *z, double alone)
{
	v[FIG_WRITTEN] = (double)(z->steps - a->steps) * 1e9 / (double)(z->ns - a->ns);
	if (alone > 0)
		v[FIG_SLOWDOWN] = (1 - v[FIG_WRITTEN] / alone) * 100;
}

void look_limits(double *v, double memcpy_page_ns)
{
	double limit_us = v[FIG_DIRTY] * FT_PAGE_SIZE / v[FIG_LINK] + (isnan(v[FIG_RTT]) ? 0 : v[FIG_RTT]);

	v[FIG_MEMCPY] = memcpy_page_ns * v[FIG_DIRTY] / 1e3;
	if (v[FIG_DIRTY] >= 1)
		v[FIG_PAUSE_RATIO] = v[FIG_PAUSE_P50] / v[FIG_MEMCPY];
	v[FIG_SAFE_RATIO] = v[FIG_SAFE_P50] / limit_us;
}

void look_failover(double *v, const struct ft_failover_result *r)
{
	v[FIG_FAIL_STOP] = (double)r->stop_ns / 1e6;
	v[FIG_FAIL_APPLY] = (double)r->apply_ns / 1e6;
	v[FIG_FAIL_LOAD] = (double)r->load_ns / 1e6;
	v[FIG_FAIL_START] = (double)r->activate_ns / 1e6;
	v[FIG_FAILOVER] = (double)r->total_ns / 1e6;
}
