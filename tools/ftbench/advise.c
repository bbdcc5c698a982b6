/* SPDX-License-Identifier: MIT */
/* advise.c - an interval for a target.  Two short points give what a pause and a way to the secondary cost here, fixed and for a page;
 * advise_decide(), which is pure, tries the intervals with that.
 *
 * With D pages dirtied in an interval I:  pause = p0 + D p,  safe = s0 + D s;
 *   slow-down = pause / (I + pause)
 *   output delay, at most = I + pause + safe           (sent right behind a checkpoint)
 *   an interval can be sustained if safe and pause together are no longer than it: else epochs queue up. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench.h"
#include "cli.h"
#include "human.h"

static const uint32_t intervals[] = { 1,  2,  3,  4,   5,   6,   8,   10,  12,  15,  20,  25,  30,  40,
				      50, 60, 80, 100, 125, 150, 200, 250, 300, 400, 500, 700, 1000 };
#define NR_INTERVALS (sizeof(intervals) / sizeof(intervals[0]))

bool advise_predict(const struct host_model *m, double pages_per_second, uint32_t interval_ms, double *delay_ms,
		    double *slowdown_pct)
{
	double pages = pages_per_second * interval_ms / 1e3;
	double pause_ms = (m->pause0_ns + pages * m->pause_page_ns) / 1e6,
	       safe_ms = (m->safe0_ns + pages * m->safe_page_ns) / 1e6;

	*delay_ms = interval_ms + pause_ms + safe_ms;
	*slowdown_pct = pause_ms / (interval_ms + pause_ms) * 100;
	return pause_ms + safe_ms <= interval_ms;
}

static uint64_t staging_for(double pages)
{
	uint64_t bytes = UINT64_C(256) << 20; /* the default */

	while ((double)bytes < 4 * pages * FT_PAGE_SIZE)
		bytes *= 2;
	return bytes;
}

static void say_why(struct advice *a, const struct target *t)
{
	bool none = !a->best_delay_interval_ms;
	char delay[96] = "", slow[96] = "";

	if (!isnan(t->max_delay_ms))
		snprintf(delay, sizeof(delay), "an output delay of at most %.3g ms", t->max_delay_ms);
	if (!isnan(t->max_slowdown_pct))
		snprintf(slow, sizeof(slow), "a slow-down of at most %.3g %%", t->max_slowdown_pct);
	if (none)
		snprintf(a->why, sizeof(a->why),
			 "%.0f pages a second are more than this host and link carry at any interval up to %u ms: the "
			 "guest would be slowed to their pace.",
			 t->pages_per_second, intervals[NR_INTERVALS - 1]);
	else if (!a->is_met)
		snprintf(a->why, sizeof(a->why),
			 "%s%s%s cannot be had here with %.0f pages a second.  What could be: a delay of at most %.3g "
			 "ms, at %u ms; or a slow-down of %.2g %%, at %u ms.",
			 delay, delay[0] && slow[0] ? " together with " : "", slow, t->pages_per_second,
			 a->best_delay_ms, a->best_delay_interval_ms, a->best_slowdown_pct,
			 a->best_slowdown_interval_ms);
	else
		snprintf(a->why, sizeof(a->why),
			 "%u ms is the %s interval with %s%s%s: some %.0f pages are dirty in it, output waits %.3g ms "
			 "at most, and the guest loses %.2g %% to pauses.",
			 a->interval_ms, delay[0] ? "longest" : "shortest", delay, delay[0] && slow[0] ? " and " : "",
			 slow, a->pages, a->delay_ms, a->slowdown_pct);
}

/* The longest interval that keeps the delay, as it costs least; the shortest one if only the slow-down is bounded. */
struct advice advise_decide(const struct host_model *m, const struct target *t)
{
	struct advice a = { .best_delay_ms = INFINITY, .best_slowdown_pct = INFINITY };

	for (size_t i = 0; i < NR_INTERVALS; i++) {
		double delay, slow;

		if (!advise_predict(m, t->pages_per_second, intervals[i], &delay, &slow))
			continue;
		if (delay < a.best_delay_ms) {
			a.best_delay_ms = delay;
			a.best_delay_interval_ms = intervals[i];
		}
		if (slow < a.best_slowdown_pct) {
			a.best_slowdown_pct = slow;
			a.best_slowdown_interval_ms = intervals[i];
		}
		if (delay > t->max_delay_ms || slow > t->max_slowdown_pct || (a.is_met && isnan(t->max_delay_ms)))
			continue;
		a.is_met = true;
		a.interval_ms = intervals[i];
		a.delay_ms = delay;
		a.slowdown_pct = slow;
		a.pages = t->pages_per_second * intervals[i] / 1e3;
		a.staging_bytes = staging_for(a.pages);
	}
	say_why(&a, t);
	return a;
}

/* A line through two points, neither of its parts below 0. */
static void fit(const struct run *r, enum figure f, double *fixed_ns, double *page_ns)
{
	double x0 = entry_spread(&r->entry[0], FIG_DIRTY).median, x1 = entry_spread(&r->entry[1], FIG_DIRTY).median;
	double y0 = entry_spread(&r->entry[0], f).median * 1e3, y1 = entry_spread(&r->entry[1], f).median * 1e3;

	*page_ns = fmax((y1 - y0) / fmax(x1 - x0, 1), 0);
	*fixed_ns = fmax(y0 - *page_ns * x0, 0);
}

static json_t *advice_to_json(const struct advice *a, const struct host_model *m)
{
	json_t *j = json_pack("{s:b,s:s,s:{s:f,s:f,s:f,s:f}}", "met", a->is_met, "why", a->why, "host", "pause-ns",
			      m->pause0_ns, "pause-page-ns", m->pause_page_ns, "safe-ns", m->safe0_ns, "safe-page-ns",
			      m->safe_page_ns);

	if (a->is_met)
		json_object_set_new(j, "settings",
				    json_pack("{s:I,s:I}", "interval", (json_int_t)a->interval_ms, "staging-bytes",
					      (json_int_t)a->staging_bytes));
	return j;
}

static void print_advice(const struct advice *a, const struct host_model *m)
{
	char p0[HUMAN_MAX], p[HUMAN_MAX], s0[HUMAN_MAX], s[HUMAN_MAX];

	printf("measured here: a pause takes %s and %s a page, safe on the secondary after %s and %s a page\n%s\n",
	       human_ns(p0, (uint64_t)m->pause0_ns), human_ns(p, (uint64_t)m->pause_page_ns),
	       human_ns(s0, (uint64_t)m->safe0_ns), human_ns(s, (uint64_t)m->safe_page_ns), a->why);
	if (a->is_met)
		printf("\n    --interval %u --staging-bytes %lluM\n\nWith output-cut on (the default) an idle guest's "
		       "answers wait less, for more checkpoints.\n",
		       a->interval_ms, (unsigned long long)(a->staging_bytes >> 20));
}

int run_advise(void *user, int argc, char **argv)
{
	const struct args *args = user;
	struct target t = { .max_delay_ms = args->max_delay_ms ? (double)args->max_delay_ms : (double)NAN,
			    .max_slowdown_pct = args->max_slowdown_pct ? (double)args->max_slowdown_pct : (double)NAN,
			    .pages_per_second = (double)args->pages_per_second };
	struct host_model m;
	struct advice a;
	struct point p[2];
	struct run r = { 0 };
	int ret = args_check(args);

	(void)argc, (void)argv;
	if (!ret && !args->max_delay_ms && !args->max_slowdown_pct) {
		cli_error("advise needs a target: --max-output-delay MS, --max-slowdown PCT, or both");
		return CLI_USAGE;
	}
	if (ret)
		return ret;
	for (int i = 0; i < 2; i++) {
		point_of_args(&p[i], args);
		p[i].no_failover = true;
		p[i].interval_ms = 25;
		p[i].pages = i ? 4000 : 100;
	}
	ret = measure_points(args, p, 2, &r);
	if (ret) {
		run_free(&r);
		return ret;
	}
	fit(&r, FIG_PAUSE_P50, &m.pause0_ns, &m.pause_page_ns);
	fit(&r, FIG_SAFE_P50, &m.safe0_ns, &m.safe_page_ns);
	run_free(&r);
	a = advise_decide(&m, &t);
	if (args->json) {
		json_t *j = advice_to_json(&a, &m);
		bool bad = strcmp(args->json, "-") ? json_dump_file(j, args->json, JSON_INDENT(1))
						   : json_dumpf(j, stdout, JSON_INDENT(1));

		json_decref(j);
		if (bad) {
			cli_error("%s: cannot be written", args->json);
			return BENCH_FAILED;
		}
	}
	if (!args->quiet && !(args->json && !strcmp(args->json, "-")))
		print_advice(&a, &m);
	return a.is_met ? BENCH_OK : BENCH_WORSE;
}
