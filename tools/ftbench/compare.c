/* SPDX-License-Identifier: MIT */
/* compare.c - two runs beside each other: what got better or worse beyond the noise. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench.h"
#include "cli.h"

static const struct entry *same_point(const struct run *r, const struct entry *e)
{
	for (unsigned i = 0; i < r->n; i++) {
		const struct entry *o = &r->entry[i];

		if (!strcmp(o->transport, e->transport) && !strcmp(o->pattern, e->pattern) && !strcmp(o->set, e->set) &&
		    o->pages == e->pages && o->interval_ms == e->interval_ms)
			return o;
	}
	return NULL;
}

static const char *const words[] = {
	[VERDICT_SAME] = "same", [VERDICT_BETTER] = "better", [VERDICT_WORSE] = "WORSE", [VERDICT_NONE] = "-"
};

static bool compare_point(const struct entry *a, const struct entry *b, double percent, bool all, FILE *f,
			  unsigned count[])
{
	char name[512];
	bool headed = false;

	entry_name(a, name, sizeof(name));
	for (int i = 0; i < FIG_COUNT; i++) {
		struct spread x = entry_spread(a, (enum figure)i), y = entry_spread(b, (enum figure)i);
		enum verdict v = verdict_of(&figure_info[i], x, y, percent);

		count[v]++;
		if (v == VERDICT_NONE || (v == VERDICT_SAME && !all))
			continue;
		if (!headed)
			fprintf(f, "%s\n", name);
		headed = true;
		fprintf(f, "  %-6s %-18s %10.4g -> %-10.4g %-6s %+6.1f %%   (%.4g to %.4g -> %.4g to %.4g)\n", words[v],
			figure_info[i].name, x.median, y.median, figure_info[i].unit,
			x.median != 0 ? (y.median - x.median) * 100 / fabs(x.median) : 0, x.low, x.high, y.low, y.high);
	}
	return headed;
}

int compare_runs(const struct run *a, const struct run *b, double percent, bool all, FILE *f)
{
	unsigned count[VERDICT_NONE + 1] = { 0 }, shared = 0;

	for (unsigned i = 0; i < a->n; i++) {
		const struct entry *o = same_point(b, &a->entry[i]);

		if (!o)
			continue;
		shared++;
		compare_point(&a->entry[i], o, percent, all, f, count);
	}
	if (!shared)
		return -ENOENT;
	fprintf(f, "%u points in both (%u and %u): %u figures better, %u worse, %u the same within the noise\n", shared,
		a->n, b->n, count[VERDICT_BETTER], count[VERDICT_WORSE], count[VERDICT_SAME]);
	return count[VERDICT_WORSE] ? BENCH_WORSE : BENCH_OK;
}

int run_compare(void *user, int argc, char **argv)
{
	const struct args *args = user;
	struct run r[2] = { 0 };
	struct ft_error err = { 0 };
	int ret = 0;

	(void)argc;
	for (int i = 0; i < 2 && !ret; i++)
		ret = run_load(&r[i], argv[i], &err);
	if (ret) {
		cli_error("%s", err.msg);
		run_free(&r[0]);
		return CLI_USAGE;
	}
	ret = compare_runs(&r[0], &r[1], args->threshold, args->all, stdout);
	if (ret < 0)
		cli_error("%s and %s have no point in common", argv[0], argv[1]);
	run_free(&r[0]);
	run_free(&r[1]);
	return ret < 0 ? CLI_USAGE : ret;
}
