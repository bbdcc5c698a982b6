/* SPDX-License-Identifier: MIT */
/* sweep.c - many points in turns: the default command, and idle and memory, which are points of their own kind. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench.h"
#include "cli.h"
#include "human.h"
#include "progress.h"
#include "sim.h"

#define LIST_MAX 64u

struct list { /* "1,5,10" */
	char *item[LIST_MAX];
	unsigned n;
};

/* A copy that lives as long as the process, as the texts of all options do. */
static char *keep(const char *text)
{
	static struct kept {
		struct kept *next;
		char text[];
	} * all;
	struct kept *k = malloc(sizeof(*k) + strlen(text) + 1);

	if (!k)
		return NULL;
	k->next = all;
	all = k;
	return strcpy(k->text, text);
}

static int split(struct list *l, const char *what, const char *text)
{
	char *copy = keep(text), *rest = copy, *item;

	l->n = 0;
	while (copy && (item = strsep(&rest, ","))) {
		if (!*item) {
			cli_error("option --%s: '%s' has an empty entry", what, text);
			return CLI_USAGE;
		}
		if (l->n == LIST_MAX) {
			cli_error("option --%s: more than %u entries", what, LIST_MAX);
			return CLI_USAGE;
		}
		l->item[l->n++] = item;
	}
	return copy ? 0 : BENCH_FAILED;
}

static int number(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	if (human_parse_u64(text, out) == 0 && *out >= min && *out <= max)
		return 0;
	cli_error("option --%s: '%s' is not a number of %llu to %llu", what, text, (unsigned long long)min,
		  (unsigned long long)max);
	return CLI_USAGE;
}

/* Now, not when all has been measured. */
static bool can_write(const char *path)
{
	FILE *f = path && strcmp(path, "-") ? fopen(path, "ae") : NULL;

	if (!path || !strcmp(path, "-"))
		return true;
	if (f)
		fclose(f);
	else
		cli_errno(-errno, "%s", path);
	return f;
}

int args_check(const struct args *a)
{
	if (strcmp(a->transport, "tcp") && strcmp(a->transport, "loopback") && strcmp(a->transport, "rdma")) {
		cli_error("option --transport: '%s' is not one of tcp, loopback, rdma", a->transport);
		return CLI_USAGE;
	}
	if (!strcmp(a->transport, "rdma") && access("/sys/class/infiniband", F_OK)) {
		cli_error(
			"option --transport: rdma: this host has no RDMA device (/sys/class/infiniband is not there)");
		return CLI_USAGE;
	}
	if (!strcmp(a->transport, "rdma") && !a->address) {
		cli_error("option --transport: rdma needs --address, that of the device: 127.0.0.1 does not reach it");
		return CLI_USAGE;
	}
	if (a->guest_bytes && (a->guest_bytes < 1u << 20 || a->guest_bytes % FT_PAGE_SIZE)) {
		cli_error("option --guest-size: at least 1M, and a multiple of 4K");
		return CLI_USAGE;
	}
	if (a->cpus < 1 || a->cpus > SIM_CPUS_MAX) {
		cli_error("option --cpus: %u is outside of 1 to %u", a->cpus, SIM_CPUS_MAX);
		return CLI_USAGE;
	}
	if (a->repeat < 1 || a->repeat > REPEATS_MAX) {
		cli_error("option --repeat: %u is outside of 1 to %u", a->repeat, REPEATS_MAX);
		return CLI_USAGE;
	}
	if (!(a->seconds >= 0.1 && a->seconds <= 3600)) {
		cli_error("option --seconds: at least 0.1, at most 3600");
		return CLI_USAGE;
	}
	return can_write(a->json) && can_write(a->csv) ? 0 : BENCH_FAILED;
}

void point_of_args(struct point *p, const struct args *a)
{
	*p = (struct point){
		.transport = a->transport,
		.address = a->address ? a->address : "127.0.0.1",
		.interval_ms = 50,
		.pages = 1000,
		.pattern = "uniform",
		.cpus = a->cpus,
		.guest_bytes = a->guest_bytes ? a->guest_bytes : UINT64_C(1) << 30,
		.images = a->images,
		.preload = a->preload,
		.slow_us = a->slow_us,
		.link_limit = a->link_limit,
		.link_delay_ms = a->link_delay_ms,
		.seconds = a->seconds,
	};
}

/* ---- measuring with progress ---- */

struct meter {
	struct progress bar;
	double done_s, all_s, expected_s;
};

static void tick(void *user, double s)
{
	struct meter *m = user;
	double now = m->done_s + (s < m->expected_s ? s : m->expected_s), left = m->all_s - now;
	static char unit[64]; /* of the bar; one thread */
	char t[HUMAN_MAX];

	snprintf(unit, sizeof(unit), "s, %s left", human_ns(t, (uint64_t)((left > 1 ? floor(left) : 1) * 1e9)));
	m->bar.unit = unit;
	progress_step(&m->bar, (uint64_t)now, (uint64_t)ceil(m->all_s));
}

int measure_points(const struct args *a, const struct point *p, unsigned n, struct run *r)
{
	struct meter m = { .bar = { .fd = STDERR_FILENO, .quiet = a->quiet, .what = "ftbench" } };
	struct ft_error err = { 0 };

	m.bar.quiet |= !isatty(STDERR_FILENO);
	for (unsigned i = 0; i < n; i++) {
		if (!run_add(r, &p[i])) {
			cli_error("no memory");
			return BENCH_FAILED;
		}
		m.all_s += point_expected_s(&p[i]) * a->repeat;
	}
	progress_begin(&m.bar);
	for (unsigned k = 0; k < a->repeat; k++)
		for (unsigned i = 0; i < n; i++) {
			struct entry *e = &r->entry[i];
			struct result res;
			char name[512];

			m.expected_s = point_expected_s(&p[i]);
			if (point_run(&p[i], &res, tick, &m, &err)) {
				entry_name(e, name, sizeof(name));
				progress_end(&m.bar, "failed");
				cli_error("%s: %s", name, err.msg);
				return BENCH_FAILED;
			}
			for (int f = 0; f < FIG_COUNT; f++)
				e->v[f][e->n] = res.v[f];
			e->n++;
			m.done_s += m.expected_s;
		}
	progress_end(&m.bar, "done");
	return BENCH_OK;
}

int save_run(const struct args *a, const struct run *r)
{
	struct ft_error err = { 0 };

	if ((a->json && run_save_json(r, a->json, &err)) || (a->csv && run_save_csv(r, a->csv, &err)) ||
	    (a->plot && plot_run(r, a->plot, a->quiet, &err))) {
		cli_error("%s", err.msg);
		return BENCH_FAILED;
	}
	return BENCH_OK;
}

bool wants_table(const struct args *a)
{
	return !a->quiet && !(a->json && !strcmp(a->json, "-")) && !(a->csv && !strcmp(a->csv, "-"));
}

/* ---- the points of a sweep ---- */

struct sets { /* one list of values for each --set */
	const char *name[SETS_MAX];
	struct list value[SETS_MAX];
	unsigned n;
};

static int read_sets(const struct args *a, struct sets *s)
{
	for (unsigned i = 0; i < a->nr_sets; i++) {
		struct ft_error err = { 0 };
		char *copy = keep(a->set[i]), *value = copy ? strchr(copy, '=') : NULL;

		if (!value || value == copy) {
			cli_error("option --set: '%s' is not NAME=VALUE", a->set[i]);
			return CLI_USAGE;
		}
		*value++ = '\0';
		s->name[s->n] = copy;
		if (split(&s->value[s->n], "set", value))
			return CLI_USAGE;
		for (unsigned k = 0; k < s->value[s->n].n; k++)
			if (point_check_set(copy, s->value[s->n].item[k], &err)) {
				cli_error("option --set: %s", err.msg);
				return CLI_USAGE;
			}
		s->n++;
	}
	return 0;
}

/* Combination number @at of all values, as "A=1 B=2"; false: there are no more. */
static bool combination(const struct sets *s, unsigned at, char *buf, size_t size)
{
	size_t used = 0;

	buf[0] = '\0';
	for (unsigned i = 0; i < s->n; i++) {
		used += (size_t)snprintf(buf + used, size - used, "%s%s=%s", i ? " " : "", s->name[i],
					 s->value[i].item[at % s->value[i].n]);
		at /= s->value[i].n;
		if (used >= size)
			return false;
	}
	return at == 0;
}

/* A point under QEMU, with a smaller guest unless another is wanted. */
static void make_real(struct point *p, const struct args *a)
{
	p->measure = guest_measure;
	p->pattern = "qemu";
	p->guest_bytes = a->guest_bytes ? a->guest_bytes : UINT64_C(256) << 20;
}

/* What a real guest cannot be given. */
static int check_guest(const struct args *a)
{
	struct point p = { .images = a->images };
	const char *why;

	if (!strcmp(a->guest, "sim"))
		return 0;
	if (strcmp(a->guest, "qemu")) {
		cli_error("option --guest: '%s' is not one of sim, qemu", a->guest);
		return CLI_USAGE;
	}
	if (!strcmp(a->transport, "loopback") || a->link_limit || a->link_delay_ms || a->slow_us || a->cpus > 1 ||
	    strcmp(a->patterns, "uniform")) {
		cli_error("option --guest: qemu goes with tcp and rdma, one processor and pattern uniform, and without "
			  "--link-limit, --link-delay and --secondary-slow");
		return CLI_USAGE;
	}
	why = guest_missing(&p);
	if (why)
		cli_error("option --guest: qemu: %s", why);
	return why ? BENCH_FAILED : 0;
}

int points_of_rates(const struct args *a, struct point *p, unsigned max, unsigned *n)
{
	struct list interval, rate;
	int ret = split(&interval, "interval", a->intervals);

	ret = ret ? ret : split(&rate, "pages-per-second", a->rates);
	for (unsigned r = 0; !ret && r < rate.n; r++)
		for (unsigned i = 0; !ret && i < interval.n; i++) {
			struct point *one = &p[*n];
			uint64_t ms, per_s;

			point_of_args(one, a);
			make_real(one, a);
			ret = number("interval", interval.item[i], 1, 60000, &ms);
			ret = ret ? ret : number("pages-per-second", rate.item[r], 1000, 1000000, &per_s);
			if (ret)
				break;
			one->interval_ms = (uint32_t)ms;
			one->pages = per_s * ms / 1000;
			if (++*n == max) {
				cli_error("more than %u points", max);
				ret = CLI_USAGE;
			}
		}
	return ret;
}

static int make_points(const struct args *a, struct point *p, unsigned *n)
{
	struct list interval, pages, pattern;
	struct sets sets = { 0 };
	int ret = split(&interval, "interval", a->intervals);

	ret = ret ? ret : split(&pages, "pages", a->pages);
	ret = ret ? ret : split(&pattern, "pattern", a->patterns);
	ret = ret ? ret : read_sets(a, &sets);
	for (unsigned t = 0; !ret && t < pattern.n; t++)
		for (unsigned g = 0; !ret && g < pages.n; g++)
			for (unsigned i = 0; !ret && i < interval.n; i++) {
				struct point one;
				enum sim_pattern known;
				uint64_t ms;

				point_of_args(&one, a);
				one.pattern = pattern.item[t];
				if (sim_pattern_of(one.pattern, &known)) {
					cli_error("option --pattern: '%s' is not one of uniform, hot, sequential, "
						  "sparse, zero, rewrite, scatter, flip, mixed",
						  one.pattern);
					return CLI_USAGE;
				}
				if (!strcmp(a->guest, "qemu"))
					make_real(&one, a);
				ret = number("pages", pages.item[g], 1, one.guest_bytes / FT_PAGE_SIZE, &one.pages);
				ret = ret ? ret : number("interval", interval.item[i], 1, 3600000, &ms);
				one.interval_ms = ret ? 0 : (uint32_t)ms;
				for (unsigned c = 0; !ret && combination(&sets, c, one.set, sizeof(one.set)); c++) {
					if (*n == POINTS_MAX) {
						cli_error("more than %u points", POINTS_MAX);
						return CLI_USAGE;
					}
					p[(*n)++] = one;
					if (!sets.n)
						break;
				}
			}
	return ret;
}

int run_sweep(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct point *p = calloc(POINTS_MAX, sizeof(*p));
	struct run r = { 0 };
	unsigned n = 0;
	int ret = args_check(a);

	(void)argc, (void)argv;
	ret = ret ? ret : check_guest(a);
	if (!ret)
		ret = p ? make_points(a, p, &n) : BENCH_FAILED;
	if (!ret)
		ret = measure_points(a, p, n, &r);
	if (!ret && wants_table(a))
		run_print(&r, stdout);
	if (!ret)
		ret = save_run(a, &r);
	run_free(&r);
	free(p);
	return ret;
}

/* ---- idle and memory ---- */

int run_idle(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct run r = { 0 };
	struct point p;
	int ret = args_check(a);

	(void)argc, (void)argv;
	if (ret)
		return ret;
	point_of_args(&p, a);
	p.is_idle = p.no_failover = true;
	p.pattern = "idle";
	p.pages = 0;
	ret = measure_points(a, &p, 1, &r);
	if (!ret && wants_table(a)) {
		struct spread s = entry_spread(&r.entry[0], FIG_BUSY);
		char t[HUMAN_MAX];

		printf("an idle guest of %s, every %u ms: both sides take %.2f %% of one core (%.2f to %.2f), %.0f "
		       "checkpoints a second\n",
		       human_bytes(t, p.guest_bytes), p.interval_ms, s.median, s.low, s.high,
		       entry_spread(&r.entry[0], FIG_EPOCHS).median);
	}
	ret = ret ? ret : save_run(a, &r);
	run_free(&r);
	return ret;
}

/* "-" for what was not measured: a protection that was dropped has no epochs. */
static void print_number(const struct entry *e, enum figure f, double scale, int width)
{
	struct spread s = entry_spread(e, f);

	if (s.n)
		printf(" %*.1f", width, s.median * scale);
	else
		printf(" %*s", width, "-");
}

static void print_memory(const struct run *r)
{
	printf("%-45s %12s %11s %6s %9s %13s %13s %9s %15s %12s %11s %9s %9s\n", "policy", "written MB/s",
	       "staging MiB", "cap", "met, 1/s", "primary +MiB", "secondary MiB", "guest MiB", "secondary/guest",
	       "pause p99 ms", "protected %", "epoch ms", "slower %");
	for (unsigned i = 0; i < r->n; i++) {
		const struct entry *e = &r->entry[i];

		printf("%-45s", e->set);
		print_number(e, FIG_WRITTEN, FT_PAGE_SIZE / 1e6, 12);
		print_number(e, FIG_ENGINE, 1, 11);
		print_number(e, FIG_CAP, 1, 6);
		print_number(e, FIG_MET, 1, 9);
		print_number(e, FIG_GROWN, 1, 13);
		print_number(e, FIG_RSS_SECONDARY, 1, 13);
		print_number(e, FIG_GUEST, 1, 9);
		print_number(e, FIG_RSS_SECONDARY, 1 / entry_spread(e, FIG_GUEST).median, 15);
		print_number(e, FIG_PAUSE_P99, 1e-3, 12);
		print_number(e, FIG_PROTECTED, 1, 11);
		print_number(e, FIG_EPOCH, 1, 9);
		print_number(e, FIG_SLOWDOWN, 1, 9);
		putchar('\n');
	}
}

/* A point for each policy at the cap that the library has.  A pause may last: on a busy machine protection would end for that, and not for the memory. */
int run_memory(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct point p[LIST_MAX];
	struct list policy = { .n = 0 };
	struct run r = { 0 };
	size_t n;
	const struct ft_option *o = ft_options(&n);
	int ret = args_check(a);

	(void)argc, (void)argv;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(o[i].name, "at-cap")) {
			char *copy = keep(o[i].choices), *rest = copy, *item;

			while (copy && (item = strsep(&rest, "|")) && policy.n < LIST_MAX)
				policy.item[policy.n++] = item;
		}
	for (unsigned i = 0; i < policy.n; i++) {
		point_of_args(&p[i], a);
		p[i].is_flood = p[i].no_failover = true;
		p[i].may_drop = !strcmp(policy.item[i], "drop");
		p[i].pages = p[i].guest_bytes / FT_PAGE_SIZE;
		snprintf(p[i].set, sizeof(p[i].set), "at-cap=%s staging-bytes=64M pause-max=10000", policy.item[i]);
	}
	if (!ret)
		ret = measure_points(a, p, policy.n, &r);
	if (!ret && wants_table(a))
		print_memory(&r);
	ret = ret ? ret : save_run(a, &r);
	run_free(&r);
	return ret;
}
