/* SPDX-License-Identifier: MIT */
/* test_ftbench.c - the pure parts of ftbench: statistics, verdicts, JSON there and back, comparing. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "bench.h"

static struct point a_point(uint32_t interval_ms)
{
	return (struct point){ .transport = "tcp", .pattern = "uniform", .interval_ms = interval_ms, .pages = 1000 };
}

static void fill(struct entry *e, enum figure f, const double *v, unsigned n)
{
	for (int i = 0; i < FIG_COUNT && !e->n; i++)
		for (unsigned k = 0; k < REPEATS_MAX; k++)
			e->v[i][k] = NAN;
	memcpy(e->v[f], v, n * sizeof(*v));
	e->n = n;
}

static struct run a_run(const double *pause, unsigned n)
{
	struct point p = a_point(10);
	struct run r = { 0 };

	fill(run_add(&r, &p), FIG_PAUSE_P50, pause, n);
	return r;
}

static int compare(const struct run *a, const struct run *b, char *text, size_t size)
{
	FILE *f = fmemopen(text, size, "w");
	int ret = compare_runs(a, b, 5, false, f);

	fclose(f);
	return ret;
}

Test(ftbench, every_figure_has_a_name_of_its_own)
{
	for (int i = 0; i < FIG_COUNT; i++) {
		cr_assert_not_null(figure_info[i].name, "figure %d", i);
		cr_assert_eq(figure_named(figure_info[i].name), i, "%s stands twice", figure_info[i].name);
	}
	cr_assert_eq(figure_named("pause"), -1);
}

Test(ftbench, spread)
{
	double three[] = { 3, 1, 2 }, five[] = { 50, 10, 40, 20, 30 }, holes[] = { NAN, 7, NAN };
	struct spread s = spread_of(three, 3);

	cr_assert(s.n == 3 && s.median == 2 && s.low == 1 && s.high == 3);
	s = spread_of(five, 5);
	cr_assert(s.median == 30 && s.low == 20 && s.high == 40);
	s = spread_of(holes, 3);
	cr_assert(s.n == 1 && s.median == 7 && s.low == 7 && s.high == 7);
	s = spread_of(holes, 1);
	cr_assert(s.n == 0 && isnan(s.median));
	cr_assert_eq(quantile(five, 5, 1), 50);
	cr_assert(isnan(quantile(five, 0, 0.5)));
}

Test(ftbench, what_came_between_two_readings)
{
	struct ft_dist a = { .count = 10, .mean = 100 }, z = { .count = 30, .mean = 60 }, none = { 0 };

	cr_assert_float_eq(dist_between(&a, &z), 40, 1e-9);
	cr_assert_float_eq(dist_between(&none, &z), 60, 1e-9);
	cr_assert(isnan(dist_between(&z, &z)));
	cr_assert(isnan(dist_between(&none, &none)));
}

static void metric(struct look *l, enum ft_metric m, uint64_t count, double mean)
{
	l->stats.dist[m] = (struct ft_dist){ .count = count, .mean = mean };
}

/* Of what was before the first look nothing comes into the figures. */
Test(ftbench, figures_are_of_what_came_between_two_looks)
{
	static struct look a, z;
	double v[FIG_COUNT];

	for (int i = 0; i < FIG_COUNT; i++)
		v[i] = NAN;
	metric(&a, FT_METRIC_SHIP, 100, 9e6);
	metric(&z, FT_METRIC_SHIP, 200, 5e6);
	metric(&a, FT_METRIC_DIRTY_PAGES, 100, 5000);
	metric(&z, FT_METRIC_DIRTY_PAGES, 200, 3000);
	a.side_stats.dist[FT_METRIC_APPLY] = (struct ft_dist){ .count = 10, .mean = 4e6 };
	z.side_stats.dist[FT_METRIC_APPLY] = (struct ft_dist){ .count = 20, .mean = 3e6 };
	a.stats.counter[FT_COUNTER_EPOCHS] = 100;
	z.stats.counter[FT_COUNTER_EPOCHS] = 200;
	a.stats.counter[FT_COUNTER_BYTES_SENT] = 1u << 30;
	z.stats.counter[FT_COUNTER_BYTES_SENT] = (1u << 30) + 2 * 140000 * FT_PAGE_SIZE;
	z.stats.counter[FT_COUNTER_AHEAD_PAGES] = 60000; /* besides the 100,000 of the pauses, */
	z.stats.counter[FT_COUNTER_AHEAD_AGAIN] = 20000; /* among which these are once more */
	a.stats.counter[FT_COUNTER_CAP_STALLS] = 5;
	z.stats.counter[FT_COUNTER_CAP_STALLS] = 25;
	z.stats.counter[FT_COUNTER_CAP_DROPS] = 10;
	a.ns = 5000000000;
	z.ns = 15000000000;
	a.steps = 1000;
	z.steps = 10000;
	a.usage.cpu_primary_ns = 7000000000;
	z.usage.cpu_primary_ns = 7573440000;
	look_phases(v, &a, &z);
	look_costs(v, &a, &z);
	look_work(v, &a, &z, 1000);
	cr_assert_float_eq(v[FIG_SHIP], 1000, 1e-6);
	cr_assert_float_eq(v[FIG_APPLY], 2000, 1e-6);
	cr_assert_float_eq(v[FIG_DIRTY], 1000, 1e-6);
	cr_assert_float_eq(v[FIG_EPOCHS], 10, 1e-9);
	cr_assert_float_eq(v[FIG_BYTES], 2, 1e-9);
	cr_assert_float_eq(v[FIG_CPU_PRIMARY], 1, 1e-9);
	cr_assert_float_eq(v[FIG_MET], 3, 1e-9);
	cr_assert_float_eq(v[FIG_WRITTEN], 900, 1e-9);
	cr_assert_float_eq(v[FIG_SLOWDOWN], 10, 1e-9);
	cr_assert(isnan(v[FIG_ACK]), "nothing was acknowledged");
	v[FIG_PAUSE_P50] = 500;
	v[FIG_SAFE_P50] = 9192;
	v[FIG_LINK] = 1000;
	v[FIG_RTT] = 500;
	look_limits(v, 250);
	cr_assert_float_eq(v[FIG_PAUSE_RATIO], 2, 1e-9);
	cr_assert_float_eq(v[FIG_SAFE_RATIO], 2, 1e-9);
}

static enum verdict pauses(double a, double a_half, double b, double b_half)
{
	double x[] = { a - a_half, a, a + a_half }, y[] = { b - b_half, b, b + b_half };

	return verdict_of(&figure_info[FIG_PAUSE_P50], spread_of(x, 3), spread_of(y, 3), 5);
}

Test(ftbench, verdict)
{
	double one[] = { 1000 }, two[] = { 1200 }, twice[] = { 2000 };

	cr_assert_eq(pauses(1000, 10, 1200, 10), VERDICT_WORSE);
	cr_assert_eq(pauses(1200, 10, 1000, 10), VERDICT_BETTER);
	cr_assert_eq(pauses(1000, 150, 1200, 150), VERDICT_SAME, "the spreads overlap");
	cr_assert_eq(pauses(1000, 1, 1040, 1), VERDICT_SAME, "below the threshold");
	cr_assert_eq(pauses(10, 0, 25, 0), VERDICT_SAME, "below the floor of the figure");
	cr_assert_eq(verdict_of(&figure_info[FIG_PAUSE_P50], spread_of(one, 1), spread_of(two, 1), 5), VERDICT_SAME,
		     "one value says nothing of the noise");
	cr_assert_eq(verdict_of(&figure_info[FIG_PAUSE_P50], spread_of(one, 1), spread_of(twice, 1), 5), VERDICT_WORSE);
	cr_assert_eq(verdict_of(&figure_info[FIG_EPOCH], spread_of(one, 1), spread_of(twice, 1), 5), VERDICT_NONE);
	cr_assert_eq(verdict_of(&figure_info[FIG_PAUSE_P50], spread_of(one, 0), spread_of(twice, 1), 5), VERDICT_NONE);
}

Test(ftbench, json_there_and_back)
{
	double pause[] = { 100.5, NAN, 99.25 };
	struct run r = a_run(pause, 3), back;
	struct ft_error err = { 0 };
	json_t *j;

	snprintf(r.entry[0].set, sizeof(r.entry[0].set), "lanes=2 huge-pages=off");
	j = run_to_json(&r);
	cr_assert_eq(run_from_json(&back, j, &err), 0, "%s", err.msg);
	cr_assert_eq(back.n, 1);
	cr_assert_eq(back.entry[0].n, 3);
	cr_assert_str_eq(back.entry[0].set, r.entry[0].set);
	cr_assert_str_eq(back.entry[0].pattern, "uniform");
	cr_assert_eq(back.entry[0].interval_ms, 10);
	cr_assert_eq(back.entry[0].pages, 1000);
	cr_assert(back.entry[0].v[FIG_PAUSE_P50][0] == 100.5 && back.entry[0].v[FIG_PAUSE_P50][2] == 99.25);
	cr_assert(isnan(back.entry[0].v[FIG_PAUSE_P50][1]));
	cr_assert_eq(entry_spread(&back.entry[0], FIG_FAILOVER).n, 0);
	json_decref(j);
	run_free(&r);
	run_free(&back);
}

static void refused(const char *text, const char *part)
{
	json_t *j = json_loads(text, 0, NULL);
	struct ft_error err = { 0 };
	struct run r;

	cr_assert_lt(run_from_json(&r, j, &err), 0, "taken: %s", text);
	cr_assert(strstr(err.msg, part), "'%s' has no '%s'", err.msg, part);
	json_decref(j);
}

#define POINT "\"transport\":\"tcp\",\"pattern\":\"hot\",\"pages\":1,\"interval-ms\":1,\"set\":\"\""

Test(ftbench, json_that_is_none_of_ours)
{
	refused("{}", "no output of ftbench");
	refused("{\"ftbench\":2,\"points\":[]}", "no output of ftbench");
	refused("{\"ftbench\":1,\"points\":[{}]}", "point 1 lacks");
	refused("{\"ftbench\":1,\"points\":[{" POINT ",\"figures\":{\"pause-p50\":{}}}]}", "pause-p50");
	refused("{\"ftbench\":1,\"points\":[{" POINT ",\"figures\":{\"pause-p50\":{\"values\":[\"x\"]}}}]}",
		"no number");
}

Test(ftbench, csv_has_a_line_for_each_repeat)
{
	double pause[] = { 100.5, NAN };
	struct run r = a_run(pause, 2);
	char path[] = "/tmp/ftbench-XXXXXX", line[4096];
	struct ft_error err = { 0 };
	int fd = mkstemp(path);
	unsigned commas = 0;
	FILE *f;

	cr_assert_geq(fd, 0);
	cr_assert_eq(run_save_csv(&r, path, &err), 0, "%s", err.msg);
	f = fdopen(fd, "r");
	for (int i = 0; i < 3; i++) {
		unsigned n = 0;

		cr_assert_not_null(fgets(line, sizeof(line), f));
		for (char *c = line; *c; c++)
			n += *c == ',';
		cr_assert(!i || n == commas, "line %d has %u commas, the head %u", i, n, commas);
		commas = n;
		cr_assert(i != 1 || strstr(line, "tcp,uniform,1000,10,,1,100.5,"), "%s", line);
		cr_assert(i != 2 || strstr(line, "tcp,uniform,1000,10,,2,,"), "%s", line);
	}
	cr_assert_null(fgets(line, sizeof(line), f));
	fclose(f);
	unlink(path);
	run_free(&r);
}

Test(ftbench, compare)
{
	double old[] = { 1000, 1010, 990 }, slow[] = { 1500, 1490, 1510 };
	struct run a = a_run(old, 3), b = a_run(slow, 3);
	char text[4096] = "";

	cr_assert_eq(compare(&a, &a, text, sizeof(text)), BENCH_OK);
	cr_assert(strstr(text, "0 figures better, 0 worse, 1 the same"), "%s", text);
	cr_assert_eq(compare(&a, &b, text, sizeof(text)), BENCH_WORSE);
	cr_assert(strstr(text, "WORSE  pause-p50"), "%s", text);
	cr_assert_eq(compare(&b, &a, text, sizeof(text)), BENCH_OK);
	cr_assert(strstr(text, "better pause-p50"), "%s", text);
	b.entry[0].interval_ms = 25;
	cr_assert_lt(compare(&a, &b, text, sizeof(text)), 0, "they share no point");
	run_free(&a);
	run_free(&b);
}

/* A host where each step can be reckoned by hand: pause 0.1 ms and 1 us a page, safe after 0.4 ms and 4 us a page. */
static const struct host_model host = { .pause0_ns = 1e5, .pause_page_ns = 1e3, .safe0_ns = 4e5, .safe_page_ns = 4e3 };

Test(ftbench, advise_predicts)
{
	double delay, slow;

	cr_assert(advise_predict(&host, 10000, 10, &delay, &slow)); /* 100 pages: pause 0.2, safe 0.8 */
	cr_assert_float_eq(delay, 11, 1e-9);
	cr_assert_float_eq(slow, 100 * 0.2 / 10.2, 1e-9);
	cr_assert_not(advise_predict(&host, 200000, 10, &delay, &slow), "2000 pages take 10.5 ms");
}

Test(ftbench, advise_takes_the_longest_interval_within_a_delay)
{
	struct target t = { .max_delay_ms = 20, .max_slowdown_pct = NAN, .pages_per_second = 10000 };
	struct advice a = advise_decide(&host, &t);

	cr_assert(a.is_met && a.interval_ms == 15, "%u", a.interval_ms); /* 16.25 ms; 20 would be 21.5 */
	cr_assert(a.delay_ms <= 20 && strstr(a.why, "longest interval"), "%s", a.why);
	t.max_delay_ms = NAN;
	t.max_slowdown_pct = 2;
	a = advise_decide(&host, &t);
	cr_assert(a.is_met && a.interval_ms == 10, "%u", a.interval_ms); /* 1.96 %; 8 would be 2.2 */
	cr_assert(strstr(a.why, "shortest interval"), "%s", a.why);
	cr_assert_geq(a.staging_bytes, 4 * 100 * FT_PAGE_SIZE);
	t.max_delay_ms = 20;
	a = advise_decide(&host, &t);
	cr_assert(a.is_met && a.interval_ms == 15, "%u", a.interval_ms);
}

Test(ftbench, advise_says_what_could_be)
{
	struct target t = { .max_delay_ms = 5, .max_slowdown_pct = 0.5, .pages_per_second = 10000 };
	struct advice a = advise_decide(&host, &t);

	cr_assert_not(a.is_met);
	cr_assert(strstr(a.why, "together with") && strstr(a.why, "cannot be had") && strstr(a.why, "at 1 ms"), "%s",
		  a.why);
	cr_assert_eq(a.best_delay_interval_ms, 1);
	cr_assert_eq(a.best_slowdown_interval_ms, 1000);
	t.pages_per_second = 1e6; /* 5 us a page: five times what goes through */
	a = advise_decide(&host, &t);
	cr_assert(!a.is_met && !a.best_delay_interval_ms && strstr(a.why, "at any interval"), "%s", a.why);
}
