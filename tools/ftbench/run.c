/* SPDX-License-Identifier: MIT */
/* run.c - points with their repeats: as a table, as JSON and back, as CSV. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "bench.h"
#include "say.h"

#define FORMAT 1

struct entry *run_add(struct run *r, const struct point *p)
{
	struct entry *grown = realloc(r->entry, (r->n + 1) * sizeof(*grown)), *e;

	if (!grown)
		return NULL;
	r->entry = grown;
	e = &grown[r->n++];
	memset(e, 0, sizeof(*e));
	snprintf(e->transport, sizeof(e->transport), "%s", p->transport);
	snprintf(e->pattern, sizeof(e->pattern), "%s", p->pattern);
	snprintf(e->set, sizeof(e->set), "%s", p->set);
	e->interval_ms = p->interval_ms;
	e->pages = p->pages;
	return e;
}

void run_free(struct run *r)
{
	free(r->entry);
	*r = (struct run){ 0 };
}

struct spread entry_spread(const struct entry *e, enum figure f)
{
	return spread_of(e->v[f], e->n);
}

void entry_name(const struct entry *e, char *buf, size_t size)
{
	snprintf(buf, size, "%s %s %" PRIu64 " pages %u ms%s%s", e->transport, e->pattern, e->pages, e->interval_ms,
		 e->set[0] ? " " : "", e->set);
}

/* ---- JSON ---- */

static json_t *figures_to_json(const struct entry *e)
{
	json_t *all = json_object();

	for (int f = 0; f < FIG_COUNT; f++) {
		struct spread s = entry_spread(e, (enum figure)f);
		json_t *values;

		if (!s.n)
			continue;
		values = json_array();
		for (unsigned i = 0; i < e->n; i++)
			json_array_append_new(values, isnan(e->v[f][i]) ? json_null() : json_real(e->v[f][i]));
		json_object_set_new(all, figure_info[f].name,
				    json_pack("{s:s,s:f,s:f,s:f,s:o}", "unit", figure_info[f].unit, "median", s.median,
					      "low", s.low, "high", s.high, "values", values));
	}
	return all;
}

json_t *run_to_json(const struct run *r)
{
	json_t *points = json_array(), *missing = json_array();
	struct utsname u;

	uname(&u);
	for (unsigned i = 0; i < r->n; i++) {
		const struct entry *e = &r->entry[i];

		json_array_append_new(points,
				      json_pack("{s:s,s:s,s:I,s:i,s:s,s:o}", "transport", e->transport, "pattern",
						e->pattern, "pages", (json_int_t)e->pages, "interval-ms",
						(int)e->interval_ms, "set", e->set, "figures", figures_to_json(e)));
	}
	for (unsigned i = 0; i < r->nr_missing; i++)
		json_array_append_new(missing, json_string(r->missing[i]));
	return json_pack("{s:i,s:s,s:{s:s,s:s,s:i},s:o,s:o}", "ftbench", FORMAT, "version", ft_version(), "host",
			 "kernel", u.release, "machine", u.machine, "processors", (int)sysconf(_SC_NPROCESSORS_ONLN),
			 "points", points, "missing", missing);
}

static int figures_from_json(struct entry *e, const json_t *figures, struct ft_error *err)
{
	const char *name;
	json_t *fig;

	for (int f = 0; f < FIG_COUNT; f++)
		for (unsigned i = 0; i < REPEATS_MAX; i++)
			e->v[f][i] = NAN;
	json_object_foreach((json_t *)(uintptr_t)figures, name, fig)
	{
		const json_t *values = json_object_get(fig, "values");
		int f = figure_named(name);

		if (f < 0)
			continue; /* of a later version */
		if (!json_is_array(values) || json_array_size(values) > REPEATS_MAX)
			return say(err, -EINVAL, "figure %s has no list of at most %u values", name, REPEATS_MAX);
		for (unsigned i = 0; i < json_array_size(values); i++) {
			const json_t *v = json_array_get(values, i);

			if (!json_is_number(v) && !json_is_null(v))
				return say(err, -EINVAL, "figure %s has a value that is no number", name);
			e->v[f][i] = json_is_null(v) ? NAN : json_number_value(v);
		}
		if (json_array_size(values) > e->n)
			e->n = (unsigned)json_array_size(values);
	}
	return 0;
}

int run_from_json(struct run *r, const json_t *j, struct ft_error *err)
{
	json_t *points = json_object_get(j, "points");
	int ret = 0;

	*r = (struct run){ 0 };
	if (json_integer_value(json_object_get(j, "ftbench")) != FORMAT || !json_is_array(points))
		return say(err, -EINVAL, "this is no output of ftbench --json");
	for (size_t i = 0; i < json_array_size(points) && !ret; i++) {
		const char *transport, *pattern, *set;
		json_int_t pages;
		json_t *figures;
		int interval;
		struct point p = { 0 };
		struct entry *e;

		if (json_unpack(json_array_get(points, i), "{s:s,s:s,s:I,s:i,s:s,s:o}", "transport", &transport,
				"pattern", &pattern, "pages", &pages, "interval-ms", &interval, "set", &set, "figures",
				&figures)) {
			ret = say(err, -EINVAL,
				  "point %zu lacks transport, pattern, pages, interval-ms, set or figures", i + 1);
			break;
		}
		p.transport = transport;
		p.pattern = pattern;
		p.pages = (uint64_t)pages;
		p.interval_ms = (uint32_t)interval;
		snprintf(p.set, sizeof(p.set), "%s", set);
		e = run_add(r, &p);
		ret = e ? figures_from_json(e, figures, err) : say(err, -ENOMEM, "no memory");
	}
	if (ret)
		run_free(r);
	return ret;
}

int run_load(struct run *r, const char *path, struct ft_error *err)
{
	struct ft_error why = { 0 };
	json_error_t je;
	json_t *j = json_load_file(path, 0, &je);
	int ret;

	*r = (struct run){ 0 };
	if (!j)
		return say(err, -EINVAL, "%s: line %d: %s", path, je.line, je.text);
	ret = run_from_json(r, j, &why);
	json_decref(j);
	return ret ? say(err, ret, "%s: %s", path, why.msg) : 0;
}

static FILE *open_out(const char *path, struct ft_error *err)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "we") : stdout;

	if (!f)
		say(err, -errno, "%s: %s", path, strerror(errno));
	return f;
}

static int close_out(FILE *f, const char *path, struct ft_error *err)
{
	bool bad = fflush(f) || ferror(f);

	if (f != stdout && fclose(f))
		bad = true;
	return bad ? say(err, -EIO, "%s: cannot be written", path) : 0;
}

int run_save_json(const struct run *r, const char *path, struct ft_error *err)
{
	FILE *f = open_out(path, err);
	json_t *j;

	if (!f)
		return err->code;
	j = run_to_json(r);
	json_dumpf(j, f, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
	fputc('\n', f);
	json_decref(j);
	return close_out(f, path, err);
}

/* A line for each repeat of each point; what was not measured is empty. */
int run_save_csv(const struct run *r, const char *path, struct ft_error *err)
{
	FILE *f = open_out(path, err);

	if (!f)
		return err->code;
	fprintf(f, "transport,pattern,pages,interval-ms,set,repeat");
	for (int i = 0; i < FIG_COUNT; i++)
		fprintf(f, ",%s", figure_info[i].name);
	fputc('\n', f);
	for (unsigned p = 0; p < r->n; p++)
		for (unsigned k = 0; k < r->entry[p].n; k++) {
			const struct entry *e = &r->entry[p];

			fprintf(f, "%s,%s,%" PRIu64 ",%u,%s,%u", e->transport, e->pattern, e->pages, e->interval_ms,
				e->set, k + 1);
			for (int i = 0; i < FIG_COUNT; i++)
				fprintf(f, isnan(e->v[i][k]) ? "," : ",%.8g", e->v[i][k]);
			fputc('\n', f);
		}
	return close_out(f, path, err);
}

/* ---- the table ---- */

static const struct {
	const char *head;
	enum figure f;
	double scale;
	int digits;
} columns[] = {
	{ "dirty", FIG_DIRTY, 1, 0 },           { "epoch ms", FIG_EPOCH, 1, 1 },
	{ "pause us", FIG_PAUSE_P50, 1, 0 },    { "p99", FIG_PAUSE_P99, 1, 0 },
	{ "max", FIG_PAUSE_MAX, 1, 0 },         { "x memcpy", FIG_PAUSE_RATIO, 1, 2 },
	{ "slower %", FIG_SLOWDOWN, 1, 1 },     { "safe us", FIG_SAFE_P50, 1, 0 },
	{ "x link", FIG_SAFE_RATIO, 1, 2 },     { "delay ms", FIG_DELAY_P50, 1, 2 },
	{ "p99", FIG_DELAY_P99, 1, 2 },         { "B/B", FIG_BYTES, 1, 3 },
	{ "cpu1 s/GB", FIG_CPU_PRIMARY, 1, 2 }, { "cpu2", FIG_CPU_SECONDARY, 1, 2 },
	{ "failover ms", FIG_FAILOVER, 1, 1 },
};
#define NR_COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void print_cell(FILE *f, unsigned i, double v)
{
	int width = (int)strlen(columns[i].head) < 7 ? 7 : (int)strlen(columns[i].head);

	if (isnan(v))
		fprintf(f, "  %*s", width, "-");
	else
		fprintf(f, "  %*.*f", width, columns[i].digits, v);
}

void run_print(const struct run *r, FILE *f)
{
	int width = 5;

	for (unsigned p = 0; p < r->n; p++) {
		char name[512];

		entry_name(&r->entry[p], name, sizeof(name));
		if ((int)strlen(name) > width)
			width = (int)strlen(name);
	}
	fprintf(f, "%-*s", width, "point");
	for (unsigned i = 0; i < NR_COLUMNS; i++)
		fprintf(f, "  %*s", (int)strlen(columns[i].head) < 7 ? 7 : (int)strlen(columns[i].head),
			columns[i].head);
	fputc('\n', f);
	for (unsigned p = 0; p < r->n; p++) {
		char name[512];

		entry_name(&r->entry[p], name, sizeof(name));
		fprintf(f, "%-*s", width, name);
		for (unsigned i = 0; i < NR_COLUMNS; i++)
			print_cell(f, i, entry_spread(&r->entry[p], columns[i].f).median);
		fputc('\n', f);
	}
}
