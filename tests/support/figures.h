/* SPDX-License-Identifier: MIT */
/* figures.h - what benchmarks tell of repeated measurements: the median, and the quartiles as its spread. */
#ifndef TEST_FIGURES_H
#define TEST_FIGURES_H

#include <stdio.h>

struct figure {
	double q1, median, q3;
};

/* figure_of - of @n (> 0) values, which are put in order. */
struct figure figure_of(double *v, unsigned n);
/* figure_share - the value below which @share (0 to 1) of them are; @v in order, as figure_of() leaves it. */
double figure_share(const double *v, unsigned n, double share);
/* figure_json - "NAME": {"q1": .., "median": .., "q3": ..} */
void figure_json(FILE *out, const char *name, struct figure f);

#endif
