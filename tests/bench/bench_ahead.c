/* SPDX-License-Identifier: MIT */
/* bench_ahead.c - what "send-ahead" does to the pause, over tcp on the loopback interface: a guest that writes all the time, in no order, so that a fifth
 * of its writes in an epoch go to pages that it wrote in the same epoch before.
 * What must hold: pauses with it are at most 0.4 of those without.  Others use this machine too and can only make a pause longer, so of several
 * rounds, taken in turns, the shortest median of each counts.
 *
 *   --quick   fewer epochs     --json   one object a line */
#include <inttypes.h>
#include <string.h>
#include "check.h"
#include "pair.h"

#define ROUNDS 3u
#define RATIO_MAX 0.4
#define INTERVAL_MS 100u
#define WRITES 2000u /* in an interval */
/* W pages, n writes: W (1 - e^(-n/W)) different ones, 0.8 n at W = 2.2 n. */
#define WORKING_SET (WRITES * 22 / 10)

static bool json;

struct point {
	double pause_us;
	uint64_t writes, dirty, paused,
		again; /* in an epoch: writes, different pages; copied in the pause, also of those sent before */
};

static struct point measure(unsigned times, uint64_t epochs)
{
	static struct ft_stats stats;
	struct pair_options opt;
	char settings[128];
	struct pair p;
	struct point at;
	uint64_t steps, before, acked;

	snprintf(settings, sizeof(settings), "interval=%u,output-cut=off,send-ahead=%u", INTERVAL_MS, times);
	pair_options_init(&opt);
	opt.primary = settings;
	opt.sim.region_bytes[0] = UINT64_C(256) << 20;
	opt.sim.pattern = SIM_UNIFORM;
	opt.sim.working_set_pages = WORKING_SET;
	opt.sim.rate = WRITES * 1000 / INTERVAL_MS;
	opt.sim.output_every = 0;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	ft_session_stats(p.primary, &stats);
	acked = stats.counter[FT_COUNTER_EPOCHS];
	before = stats.counter[FT_COUNTER_AHEAD_PAGES] - stats.counter[FT_COUNTER_AHEAD_AGAIN];
	steps = sim_steps(p.primary_sim);
	pair_wait_applied(&p, epochs);
	steps = sim_steps(p.primary_sim) - steps;
	ft_session_stats(p.primary, &stats);
	acked = stats.counter[FT_COUNTER_EPOCHS] - acked;
	pair_close(&p);
	at = (struct point){ .pause_us = (double)stats.dist[FT_METRIC_PAUSE].p50 / 1000,
			     .writes = steps / acked,
			     .paused = stats.dist[FT_METRIC_DIRTY_PAGES].p50,
			     .again = stats.counter[FT_COUNTER_AHEAD_AGAIN] / stats.counter[FT_COUNTER_EPOCHS] };
	at.dirty = at.paused +
		   (stats.counter[FT_COUNTER_AHEAD_PAGES] - stats.counter[FT_COUNTER_AHEAD_AGAIN] - before) / acked;
	return at;
}

static double run(unsigned times, uint64_t epochs, double least)
{
	struct point at = measure(times, epochs);

	printf(json ? "{\"bench\":\"ahead\",\"times\":%u,\"pause_us\":%.1f,\"writes\":%" PRIu64 ",\"dirty\":%" PRIu64
		      ",\"paused\":%" PRIu64 ",\"again\":%" PRIu64 "}\n"
		    : "send-ahead %2u: pause %8.1f us; %5" PRIu64 " writes to %5" PRIu64
		      " pages sent in an epoch, %5" PRIu64 " of them in the pause, %4" PRIu64 " once more\n",
	       times, at.pause_us, at.writes, at.dirty, at.paused, at.again);
	if (!times)
		CHECK(at.dirty * 10 < at.writes * 9 && at.dirty * 10 > at.writes * 7,
		      "not a fifth of %" PRIu64 " writes went to pages written before: %" PRIu64 " different ones",
		      at.writes, at.dirty);
	return least == 0 || at.pause_us < least ? at.pause_us : least;
}

int main(int argc, char **argv)
{
	double without = 0, with = 0;
	uint64_t epochs = 40;

	for (int i = 1; i < argc; i++) {
		json |= strcmp(argv[i], "--json") == 0;
		epochs = strcmp(argv[i], "--quick") == 0 ? 15 : epochs;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		without = run(0, epochs, without);
		run(3, epochs, 0);
		with = run(15, epochs, with);
	}
	printf(json ? "{\"bench\":\"ahead\",\"ratio\":%.2f}\n" : "pause with pages sent ahead: %.2f of that without\n",
	       with / without);
	CHECK(with <= RATIO_MAX * without, "with pages sent ahead pauses are %.1f us, without %.1f us", with, without);
	return 0;
}
