/* SPDX-License-Identifier: MIT */
/* figures.c - see figures.h.  No state. */
#include "figures.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

struct figure figure_of(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), compare);
	return (struct figure){ .q1 = v[n / 4], .median = v[n / 2], .q3 = v[n - 1 - n / 4] };
}

double figure_share(const double *v, unsigned n, double share)
{
	unsigned at = (unsigned)(share * n);

	return v[at < n ? at : n - 1];
}

void figure_json(FILE *out, const char *name, struct figure f)
{
	fprintf(out, "\"%s\": {\"q1\": %.3f, \"median\": %.3f, \"q3\": %.3f}", name, f.q1, f.median, f.q3);
}
