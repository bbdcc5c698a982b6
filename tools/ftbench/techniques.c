/* SPDX-License-Identifier: MIT */
/* techniques.c - what each technique gains: the same guest without it and with it, in turns, side by side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "cli.h"

/* A pattern that it is made for; for most of them any would do.  Each alone: what is not named is off. */
static const struct technique {
	const char *name, *pattern, *without, *with;
} techniques[] = {
	{ "slab placement", "uniform", "placement=mirror", "placement=slab" },
	{ "two epochs in flight", "uniform", "epochs-in-flight=1", "epochs-in-flight=2" },
	{ "pages sent ahead", "scatter", "send-ahead=0", "send-ahead=3" },
	{ "copy on write", "uniform", "capture=copy", "capture=cow" },
	{ "two threads copy", "uniform", "capture-threads=1 apply-threads=1", "capture-threads=2 apply-threads=2" },
	{ "skip-same, never", "uniform", "skip-same=off", "skip-same=on" },
	{ "skip-same, always", "rewrite", "skip-same=off", "skip-same=on" },
	{ "differences, small", "sparse", "placement=mirror delta=off", "placement=mirror delta=on" },
	{ "differences, large", "uniform", "placement=mirror delta=off", "placement=mirror delta=on" },
	{ "a check of each page", "uniform", "page-checks=off", "page-checks=on" },
};
#define NR_TECHNIQUES (sizeof(techniques) / sizeof(techniques[0]))

static const struct {
	const char *head;
	enum figure f;
} columns[] = {
	{ "pause p50, us", FIG_PAUSE_P50 }, { "safe p50, us", FIG_SAFE_P50 },
	{ "delay p50, ms", FIG_DELAY_P50 }, { "octets/octet", FIG_BYTES },
	{ "CPU 1, s/GB", FIG_CPU_PRIMARY }, { "CPU 2, s/GB", FIG_CPU_SECONDARY },
	{ "apply, us", FIG_APPLY },         { "secondary, MiB", FIG_RSS_SECONDARY },
};
#define NR_COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void point_of(struct point *p, const struct args *a, const struct technique *t, const char *set)
{
	bool says_same = strstr(set, "skip-same");

	point_of_args(p, a);
	p->interval_ms = 25;
	p->pages = 2000;
	p->pattern = t->pattern;
	p->no_failover = true;
	snprintf(p->set, sizeof(p->set), "%s%s", set, says_same ? "" : " skip-same=off");
}

static void print_cell(const struct entry *off, const struct entry *on, enum figure f)
{
	struct spread a = entry_spread(off, f), b = entry_spread(on, f);

	if (!a.n || !b.n)
		printf("  %8s %8s %5s", "-", "-", "");
	else if (a.median > 0 && b.median >= 0)
		printf("  %8.4g %8.4g %5.2f", a.median, b.median, b.median / a.median);
	else
		printf("  %8.4g %8.4g %5s", a.median, b.median, "");
}

static void print_table(const struct run *r)
{
	printf("%-22s %-9s", "", "");
	for (unsigned i = 0; i < NR_COLUMNS; i++)
		printf("  %23s", columns[i].head);
	printf("\n%-22s %-9s", "technique", "pattern");
	for (unsigned i = 0; i < NR_COLUMNS; i++)
		printf("  %8s %8s %5s", "without", "with", "ratio");
	putchar('\n');
	for (unsigned t = 0; t < NR_TECHNIQUES; t++) {
		printf("%-22s %-9s", techniques[t].name, techniques[t].pattern);
		for (unsigned i = 0; i < NR_COLUMNS; i++)
			print_cell(&r->entry[2 * t], &r->entry[2 * t + 1], columns[i].f);
		putchar('\n');
	}
}

int run_techniques(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct point p[2 * NR_TECHNIQUES];
	struct run r = { 0 };
	int ret = args_check(a);

	(void)argc, (void)argv;
	for (unsigned t = 0; t < NR_TECHNIQUES; t++) {
		point_of(&p[2 * t], a, &techniques[t], techniques[t].without);
		point_of(&p[2 * t + 1], a, &techniques[t], techniques[t].with);
	}
	if (!ret)
		ret = measure_points(a, p, 2 * NR_TECHNIQUES, &r);
	if (!ret && wants_table(a))
		print_table(&r);
	ret = ret ? ret : save_run(a, &r);
	run_free(&r);
	return ret;
}
