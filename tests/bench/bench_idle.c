/* SPDX-License-Identifier: MIT */
/* bench_idle.c - what the protection of an idle guest costs: processor time of both sides, in one process over tcp on the loopback interface, by
 * thread, for guests of 1, 16 and 64 GiB whose memory is mostly untouched.  The guest's vCPUs do nothing and are not counted.
 *
 * Processor time and not time on the clock: what else the machine does hardly changes it.  Checked are that a guest of 64 GiB costs about what one
 * of 1 GiB does, and (without --quick's short times only) that the defaults stay far below a core.
 *
 *   --quick   short     --json   one object a line     --settings NAME=VALUE,...   of the primary     --help */
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "pair.h"

#define THREADS_MAX 64u
#define RATIO_MAX 3.0 /* 64 GiB to 1 GiB; a scan of the guest would be 64 */
#define PERCENT_MAX                                                                                                    \
	3.0 /* of one core, three times what is promised: CPU time of a busy machine is not that of a quiet one */

struct usage {
	unsigned nr;
	struct {
		char name[16];
		int tid;
		uint64_t ns;
	} thread[THREADS_MAX];
};

static bool quick, json;

/* Both sides have the same processor clock: schedstat's first number is what a thread has run, in ns. */
static void usage_read(struct usage *u)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	CHECK(d, "no /proc");
	u->nr = 0;
	while ((e = readdir(d)) && u->nr < THREADS_MAX) {
		char path[64];
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/schedstat", e->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		u->thread[u->nr].tid = atoi(e->d_name);
		CHECK(fscanf(f, "%" SCNu64, &u->thread[u->nr].ns) == 1, "schedstat is empty");
		fclose(f);
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", e->d_name);
		f = fopen(path, "r");
		CHECK(f && fscanf(f, "%15s", u->thread[u->nr].name) == 1, "a thread without a name");
		fclose(f);
		u->nr++;
	}
	closedir(d);
}

static uint64_t used_before(const struct usage *u, int tid)
{
	for (unsigned i = 0; i < u->nr; i++)
		if (u->thread[i].tid == tid)
			return u->thread[i].ns;
	return 0;
}

/* Percent of one core that the library's threads took, all and each. */
static double report(const struct usage *from, const struct usage *to, uint64_t took_ns, const char *what, unsigned gib,
		     double epochs)
{
	double sum = 0;

	for (unsigned i = 0; i < to->nr; i++)
		if (strncmp(to->thread[i].name, "ft-", 3) == 0)
			sum += 100.0 * (double)(to->thread[i].ns - used_before(from, to->thread[i].tid)) /
			       (double)took_ns;
	if (json)
		printf("{\"settings\": \"%s\", \"gib\": %u, \"percent\": %.3f, \"epochs_per_s\": %.1f}\n", what, gib,
		       sum, epochs);
	else
		printf("%-72s %3u GiB: %6.2f %% of a core, %6.1f epochs/s, %5.0f us an epoch;", what, gib, sum, epochs,
		       epochs > 0 ? sum * 1e4 / epochs : 0);
	for (unsigned i = 0; i < to->nr && !json; i++)
		if (strncmp(to->thread[i].name, "ft-", 3) == 0)
			printf(" %s %.2f", to->thread[i].name,
			       100.0 * (double)(to->thread[i].ns - used_before(from, to->thread[i].tid)) /
				       (double)took_ns);
	if (!json)
		printf("\n");
	fflush(stdout);
	return sum;
}

static uint64_t acked(struct pair *p)
{
	struct ft_status st;

	ft_session_status(p->primary, &st);
	return st.epoch_acked;
}

static void rest(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

static double measure(const char *settings, unsigned gib)
{
	struct pair_options opt;
	struct usage from, to;
	uint64_t begin, took, epochs;
	struct pair p;
	double percent;

	pair_options_init(&opt);
	opt.sim.region_bytes[0] = (uint64_t)gib << 30;
	opt.sim.prefill_pages = 256;
	opt.sim.working_set_pages = 256;
	opt.sim.nr_cpus = 1;
	opt.sim.pages_per_epoch = 0;
	opt.sim.rate = 1;
	opt.primary = settings;
	opt.secondary = "heartbeat=100,heartbeat-misses=40";
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	rest(quick ? 1500 : 4000); /* the controller has seen what kind of guest it is */
	usage_read(&from);
	begin = now_ns();
	epochs = acked(&p);
	rest(quick ? 2000 : 10000);
	usage_read(&to);
	took = now_ns() - begin;
	epochs = acked(&p) - epochs;
	percent = report(&from, &to, took, settings, gib, (double)epochs * 1e9 / (double)took);
	pair_close(&p);
	return percent;
}

static void sizes(const char *settings, bool absolute)
{
	double small = measure(settings, 1), large;

	if (!quick)
		measure(settings, 16);
	large = measure(settings, 64);
	CHECK(large <= RATIO_MAX * small + 0.2, "64 GiB cost %.2f %%, 1 GiB %.2f %%", large, small);
	CHECK(!absolute || large <= PERCENT_MAX, "an idle guest of 64 GiB costs %.2f %% of a core", large);
}

static int usage(void)
{
	puts("bench_idle [--quick] [--json] [--settings NAME=VALUE,...]: processor time for an idle guest, both sides "
	     "together");
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "quick", no_argument, NULL, 'q' },
						 { "json", no_argument, NULL, 'j' },
						 { "settings", required_argument, NULL, 's' },
						 { "help", no_argument, NULL, 'h' },
						 { NULL, 0, NULL, 0 } };
	static const char *const plain[] = {
		"interval=25,heartbeat=100,staging-bytes=256M", "interval=50,heartbeat=100,staging-bytes=256M",
		"interval-mode=slowdown,interval=25,heartbeat=100,staging-bytes=256M",
		"interval-mode=output-delay,interval=25,heartbeat=100,staging-bytes=256M"
	};
	const char *given = NULL;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		quick |= c == 'q';
		json |= c == 'j';
		given = c == 's' ? optarg : given;
		if (c == 'h' || c == '?')
			return usage() + (c == '?');
	}
	if (given) {
		sizes(given, false);
		return 0;
	}
	for (unsigned i = 0; i < (quick ? 1 : 4); i++)
		sizes(plain[quick ? 2 : i], !quick && i >= 2);
	return 0;
}
