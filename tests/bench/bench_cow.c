/* SPDX-License-Identifier: MIT */
/* bench_cow.c - the pause of epochs with 1,000 to 50,000 dirty pages, copied in the pause and copied on write, all in one run over tcp on the
 * loopback interface.  The guest has done its writes of an epoch long before it is paused; medians of the pause as the engine measures it.
 * What must hold: by copy on write 50,000 pages pause for at most twice as long as 1,000.  Others use this machine too and can only make a
 * pause longer, so of several rounds the shortest median of each point counts, also of the smaller one.
 *
 *   --quick   fewer epochs     --json   one object a line */
#include <inttypes.h>
#include <string.h>
#include "check.h"
#include "pair.h"

#define ROUNDS 3u
#define RATIO_MAX 2.0

static bool json;

struct point {
	double pause_us;
	uint64_t pages, faults;
};

static struct point measure(const char *capture, uint64_t pages, uint64_t epochs)
{
	static struct ft_stats stats;
	struct pair_options opt;
	char settings[160];
	struct pair p;

	snprintf(settings, sizeof(settings),
		 "capture=%s,interval=150,output-cut=off,pause-max=10000,staging-bytes=512M", capture);
	pair_options_init(&opt);
	opt.primary = settings;
	opt.sim.region_bytes[0] = UINT64_C(256) << 20;
	opt.sim.pattern = SIM_SCATTER;
	opt.sim.prefill_pages = UINT64_MAX; /* so that each page is there, with both */
	opt.sim.pages_per_epoch = pages;
	opt.sim.output_every = 0;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, epochs);
	ft_session_stats(p.primary, &stats);
	pair_close(&p);
	return (struct point){ (double)stats.dist[FT_METRIC_PAUSE].p50 / 1000, stats.dist[FT_METRIC_DIRTY_PAGES].p50,
			       stats.counter[FT_COUNTER_COW_FAULTS] };
}

static const uint64_t dirty[] = { 1000, 10000, 50000 };

#define POINTS (sizeof(dirty) / sizeof(dirty[0]))

static void print(const char *capture, const struct point *at, double first_us)
{
	printf(json ? "{\"bench\":\"cow\",\"capture\":\"%s\",\"pages\":%" PRIu64
		      ",\"pause_us\":%.1f,\"ratio\":%.2f,\"faults\":%" PRIu64 "}\n"
		    : "%-5s %6" PRIu64 " pages: pause %9.1f us, %6.2f of 1000 pages; %" PRIu64
		      " pages copied by writers\n",
	       capture, at->pages, at->pause_us, at->pause_us / first_us, at->faults);
}

/* All points once, after one another; *@least: the shortest pause of each so far. */
static void run(const char *capture, uint64_t epochs, double least[POINTS])
{
	double first = 0;

	for (unsigned i = 0; i < POINTS; i++) {
		struct point at = measure(capture, dirty[i], epochs);

		CHECK(at.pages * 10 > dirty[i] * 9, "%s: %" PRIu64 " pages were dirty, not %" PRIu64, capture, at.pages,
		      dirty[i]);
		first = i ? first : at.pause_us;
		if (least[i] == 0 || at.pause_us < least[i])
			least[i] = at.pause_us;
		print(capture, &at, first);
	}
}

int main(int argc, char **argv)
{
	double least[POINTS] = { 0 }, copied[POINTS] = { 0 };
	uint64_t epochs = 20;

	for (int i = 1; i < argc; i++) {
		json |= strcmp(argv[i], "--json") == 0;
		epochs = strcmp(argv[i], "--quick") == 0 ? 9 : epochs;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	run("copy", epochs, copied);
	for (unsigned i = 0; i < ROUNDS; i++)
		run("cow", epochs, least);
	CHECK(copied[POINTS - 1] > RATIO_MAX * copied[0],
	      "copied in the pause, the number of pages makes no difference: "
	      "this bench shows nothing");
	CHECK(least[POINTS - 1] <= RATIO_MAX * least[0],
	      "with copy on write 50,000 pages pause for %.1f us, 1,000 for %.1f us", least[POINTS - 1], least[0]);
	return 0;
}
