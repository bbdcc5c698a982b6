/* SPDX-License-Identifier: MIT */
/* plot.c - three pictures of a run, as gnuplot scripts with their data in them, drawn as SVG and PNG where gnuplot is installed:
 *   slowdown   interval against slow-down            a line for each number of pages, pattern and setting
 *   delay      interval against output delay         the same, with the interval's own half as the line that nothing is below
 *   pause      dirty pages against pause             a line for each pattern and setting at the middle interval, with the plain copy */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "cli.h"
#include "say.h"

#define LINES_MAX 12u /* more cannot be told apart */

enum picture { SLOWDOWN, DELAY, PAUSE, NR_PICTURES };

static const struct {
	const char *name, *title, *x, *y, *more;
	enum figure f;
} pictures[NR_PICTURES] = {
	[SLOWDOWN] = { "slowdown", "Slow-down of the guest", "checkpoint interval, ms",
		       "work not done, % of the guest alone", "set yrange [*<0:1<*]", FIG_SLOWDOWN },
	[DELAY] = { "delay", "Output delay (median)", "checkpoint interval, ms",
		    "sent by the guest to seen by the client, ms", "set logscale y", FIG_DELAY_P50 },
	[PAUSE] = { "pause", "Pause (median)", "dirty pages of an epoch", "us", "set logscale y", FIG_PAUSE_P50 },
};

static double x_of(enum picture k, const struct entry *e)
{
	return k == PAUSE ? entry_spread(e, FIG_DIRTY).median : e->interval_ms;
}

static bool same_line(enum picture k, const struct entry *a, const struct entry *b)
{
	return !strcmp(a->pattern, b->pattern) && !strcmp(a->set, b->set) &&
	       (k == PAUSE ? a->interval_ms == b->interval_ms : a->pages == b->pages);
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t middle_interval(const struct run *r)
{
	uint32_t *ms = calloc(r->n, sizeof(*ms)), middle;

	if (!ms)
		return r->entry[0].interval_ms;
	for (unsigned i = 0; i < r->n; i++)
		ms[i] = r->entry[i].interval_ms;
	qsort(ms, r->n, sizeof(*ms), by_number);
	middle = ms[r->n / 2];
	free(ms);
	return middle;
}

static int by_x(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (x[0] > y[0]) - (x[0] < y[0]);
}

static void title_of(enum picture k, const struct entry *e, char *buf, size_t size)
{
	if (k == PAUSE)
		snprintf(buf, size, "%s%s%s", e->pattern, e->set[0] ? ", " : "", e->set);
	else
		snprintf(buf, size, "%" PRIu64 " pages an interval, %s%s%s", e->pages, e->pattern,
			 e->set[0] ? ", " : "", e->set);
}

/* The points of the line that @e begins, by x: x, median, low, high. */
static void write_block(FILE *f, enum picture k, const struct run *r, const struct entry *e, enum figure fig,
			unsigned number)
{
	double(*row)[4] = calloc(r->n, sizeof(*row));
	unsigned n = 0;

	for (unsigned i = 0; row && i < r->n; i++) {
		struct spread s = entry_spread(&r->entry[i], fig);

		if (!same_line(k, e, &r->entry[i]) || !s.n)
			continue;
		row[n][0] = x_of(k, &r->entry[i]);
		row[n][1] = s.median;
		row[n][2] = s.low;
		row[n++][3] = s.high;
	}
	if (n)
		qsort(row, n, sizeof(*row), by_x);
	fprintf(f, "$line%u << END\n", number);
	for (unsigned i = 0; i < n; i++)
		fprintf(f, "%g %g %g %g\n", row[i][0], row[i][1], row[i][2], row[i][3]);
	fprintf(f, "END\n");
	free(row);
}

static bool begins_line(enum picture k, const struct run *r, unsigned i, uint32_t middle)
{
	if (k == PAUSE && r->entry[i].interval_ms != middle)
		return false;
	for (unsigned j = 0; j < i; j++)
		if (same_line(k, &r->entry[j], &r->entry[i]))
			return false;
	return entry_spread(&r->entry[i], pictures[k].f).n;
}

/* No further than there are points; intervals are marked where they were measured. */
static void write_x_axis(FILE *f, enum picture k, const struct run *r)
{
	double low = INFINITY, high = 0;

	for (unsigned i = 0; i < r->n; i++) {
		double x = x_of(k, &r->entry[i]);

		if (x > 0 && (k != PAUSE || r->entry[i].interval_ms == middle_interval(r))) {
			low = fmin(low, x);
			high = fmax(high, x);
		}
	}
	if (low > high)
		return;
	fprintf(f, "set xrange [%g:%g]\n", low * 0.8, high * 1.25);
	for (unsigned i = 0; k != PAUSE && i < r->n; i++)
		fprintf(f, "set xtics %s (%u)\n", i ? "add" : "", r->entry[i].interval_ms);
}

static void write_script(FILE *f, enum picture k, const struct run *r)
{
	uint32_t middle = middle_interval(r);
	const struct entry *line[LINES_MAX];
	unsigned n = 0;
	char title[512];

	for (unsigned i = 0; i < r->n && n < LINES_MAX; i++)
		if (begins_line(k, r, i, middle))
			line[n++] = &r->entry[i];
	fprintf(f, "# gnuplot THIS draws %s.svg and %s.png.  Median, with the spread of the repeats.\n",
		pictures[k].name, pictures[k].name);
	for (unsigned i = 0; i < n; i++)
		write_block(f, k, r, line[i], pictures[k].f, i);
	if (k == PAUSE && n)
		write_block(f, k, r, line[0], FIG_MEMCPY, n);
	fprintf(f,
		"set title '%s, %s'\nset xlabel '%s'\nset ylabel '%s'\nset logscale x\n%s\nset key above Left reverse\n"
		"set grid xtics ytics lt 1 lw 1 lc rgb '#dddddd'\nset border 3\nset tics nomirror\n",
		pictures[k].title, r->entry[0].transport, pictures[k].x, pictures[k].y, pictures[k].more);
	write_x_axis(f, k, r);
	if (k == PAUSE)
		fprintf(f, "set title '%s at %u ms, %s'\n", pictures[k].title, middle, r->entry[0].transport);
	for (int png = 0; png < 2; png++) {
		fprintf(f, "set terminal %s\nset output '%s.%s'\nplot ",
			png ? "pngcairo size 900,560 font 'sans,11'" : "svg size 900,560 dynamic font 'sans,12'",
			pictures[k].name, png ? "png" : "svg");
		for (unsigned i = 0; i < n; i++) {
			title_of(k, line[i], title, sizeof(title));
			fprintf(f, "%s$line%u using 1:2:3:4 with yerrorlines lw 2 pt 7 ps 0.7 lc %u title '%s'",
				i ? ", " : "", i, i + 1, title);
		}
		if (k == DELAY)
			fprintf(f, ", x/2 with lines dt 2 lc rgb '#888888' title 'half of the interval'");
		if (k == PAUSE)
			fprintf(f,
				", $line%u using 1:2 with lines dt 2 lw 2 lc rgb '#888888' title 'plain copy of the "
				"pages'",
				n);
		fputc('\n', f);
	}
}

/* 0, or the exit status; 127: there is no gnuplot. */
static int run_gnuplot(const char *dir, const char *script)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		if (chdir(dir) == 0)
			execlp("gnuplot", "gnuplot", script, (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int plot_run(const struct run *r, const char *dir, bool quiet, struct ft_error *err)
{
	if (mkdir(dir, 0777) && errno != EEXIST)
		return say(err, -errno, "%s: %s", dir, strerror(errno));
	for (int k = 0; k < NR_PICTURES && r->n; k++) {
		char path[512], script[32];
		int ret;
		FILE *f;

		snprintf(script, sizeof(script), "%s.gp", pictures[k].name);
		snprintf(path, sizeof(path), "%s/%s", dir, script);
		f = fopen(path, "we");
		if (!f)
			return say(err, -errno, "%s: %s", path, strerror(errno));
		write_script(f, (enum picture)k, r);
		if (fclose(f))
			return say(err, -EIO, "%s: cannot be written", path);
		ret = run_gnuplot(dir, script);
		if (ret == 127) {
			if (!quiet && k == NR_PICTURES - 1)
				fprintf(stderr,
					"ftbench: gnuplot is not installed: %s has the scripts, and no pictures\n",
					dir);
		} else if (ret) {
			return say(err, -EIO, "gnuplot could not draw %s", path);
		}
	}
	return 0;
}

int run_plot(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct ft_error err = { 0 };
	struct run r;
	int ret;

	(void)argc;
	if (run_load(&r, argv[0], &err)) {
		cli_error("%s", err.msg);
		return CLI_USAGE;
	}
	ret = plot_run(&r, argv[1], a->quiet, &err);
	if (ret)
		cli_error("%s", err.msg);
	run_free(&r);
	return ret ? BENCH_FAILED : BENCH_OK;
}
