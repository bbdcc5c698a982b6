/* SPDX-License-Identifier: MIT */
/* statistic.c - medians, spreads and verdicts.  Pure functions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double quantile(double *v, unsigned n, double share)
{
	if (!n)
		return NAN;
	qsort(v, n, sizeof(*v), by_value);
	return v[(unsigned)((double)(n - 1) * share + 0.5)];
}

static double between(const double *v, unsigned n, double share)
{
	double at = (double)(n - 1) * share;
	unsigned i = (unsigned)at;

	return i + 1 < n ? v[i] + (v[i + 1] - v[i]) * (at - i) : v[i];
}

double dist_between(const struct ft_dist *a, const struct ft_dist *z)
{
	double n = (double)z->count - (double)a->count;

	return n > 0 ? (z->mean * (double)z->count - a->mean * (double)a->count) / n : NAN;
}

struct spread spread_of(const double *v, unsigned n)
{
	double s[REPEATS_MAX];
	struct spread out = { .median = NAN, .low = NAN, .high = NAN };

	for (unsigned i = 0; i < n && i < REPEATS_MAX; i++)
		if (!isnan(v[i]))
			s[out.n++] = v[i];
	if (!out.n)
		return out;
	qsort(s, out.n, sizeof(*s), by_value);
	out.median = between(s, out.n, 0.5);
	out.low = out.n < 4 ? s[0] : between(s, out.n, 0.25);
	out.high = out.n < 4 ? s[out.n - 1] : between(s, out.n, 0.75);
	return out;
}

enum verdict verdict_of(const struct figure_info *f, struct spread a, struct spread b, double percent)
{
	double change = b.median - a.median;

	if (!f->better || !a.n || !b.n)
		return VERDICT_NONE;
	if (a.n == 1 || b.n == 1)
		percent *= 5;
	if (fabs(change) <= f->floor || fabs(change) <= fabs(a.median) * percent / 100)
		return VERDICT_SAME;
	if (a.low <= b.high && b.low <= a.high)
		return VERDICT_SAME;
	return (change > 0) == (f->better > 0) ? VERDICT_BETTER : VERDICT_WORSE;
}
