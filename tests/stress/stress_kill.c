/* SPDX-License-Identifier: MIT */
/* stress_kill.c - either side dies at every record of a protection's life, and at octets spread over it.
 *
 * The connection is broken for good at one place: before the N-th record that a side sends, for all N of a full sync and a few
 * epochs (transport/fault.c), and after every so many octets of the stream, each way (support/proxy.c).  For the secondary that is what
 * the primary's death is, and the other way round.  Then, each time:
 *  - the primary's guest runs, was never paused for long, and the status says that it is unprotected, and why;
 *  - the secondary has nothing complete and says so, or is promoted, and goes on from exactly one committed epoch;
 *  - nothing has reached the client that the promoted machine does not know.
 *
 * stress_kill [--records N] [--octets N] [--every N]     how many places of each kind, 0: none; each N-th of them
 *             [--slab]     with slab placement: three epochs in flight, and a full sync and some epochs that are longer than the ring */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "check.h"
#include "clock.h"
#include "pair.h"

#define PAUSE_BOUND_MS 5000u /* far above any pause of these small guests, below what a stuck one takes */
#define OCTETS_FIRST 40.0
#define OCTETS_LAST_PRIMARY 8e6 /* the full sync of these guests is 400 KB, an epoch about 400 KB */
#define OCTETS_LAST_SLAB 2.5e7  /* and there 4 MB, with more rounds where it is slow */
#define OCTETS_LAST_SECONDARY 3e3

static bool slab;

struct tally {
	uint64_t no_image, promoted, epochs;
};

static void draw_options(struct pair_options *opt)
{
	pair_options_init(opt);
	opt->sim.region_bytes[0] = 300 * FT_PAGE_SIZE;
	opt->sim.prefill_pages = 100;
	opt->sim.rate = 20000;
	opt->sim.output_every = 10;
	opt->sim.state_bytes = 3000;
	opt->sim.side_max_bytes = 50000; /* one more record of the full sync */
	opt->compare = true;
	opt->use_proxy = true;
	/* output stays held until the test has looked; then it is told to go on alone */
	opt->primary = "interval=5,heartbeat=20,heartbeat-misses=100,on-loss=hold,reconnect=60000,lanes=2,"
		       "placement=mirror";
	opt->secondary = "heartbeat=20,heartbeat-misses=100,lanes=2";
	if (!slab)
		return;
	opt->sim.region_bytes[0] = 1500 * FT_PAGE_SIZE;
	opt->sim.prefill_pages = 900;
	opt->sim.side_max_bytes = 0; /* with a side stream epochs go one by one */
	opt->primary = "interval=5,heartbeat=20,heartbeat-misses=100,on-loss=hold,reconnect=60000,lanes=2,"
		       "placement=slab,epochs-in-flight=3";
	opt->secondary = "heartbeat=20,heartbeat-misses=100,lanes=2,credits=16,epochs-in-flight=3,ring-bytes=2M";
}

/* The connection breaks, and the other side stays dead. */
static void wait_for_death(struct pair *p)
{
	proxy_wait_cut(p->proxy);
	pair_wait(p->primary, STATE(SUSPECT) | STATE(CONNECTING));
	pair_wait(p->secondary, STATE(WAITING) | STATE(STANDBY_SUSPECT));
}

static void look_at_secondary(struct pair *p, struct tally *t)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	int r = ft_session_failover(p->secondary, 0, &res, &err);

	pair_check_compared(p);
	if (r < 0) {
		CHECK(res.outcome == FT_FAILOVER_NO_IMAGE, "failover: outcome %d: %s", (int)res.outcome, err.msg);
		CHECK(atomic_load(&p->applied) == 0, "epochs were applied, but there is no image: %s", err.msg);
		t->no_image++;
		return;
	}
	pair_check_promoted(p, &res);
	t->promoted++;
	t->epochs += res.epoch;
}

static void look_at_primary(struct pair *p)
{
	struct ft_error err = { 0 };

	pair_check_unprotected(p, NULL);
	pair_check_runs(p, PAUSE_BOUND_MS);
	CHECK_OK(ft_session_set(p->primary, "on-loss", "continue", &err), err);
	pair_wait(p->primary, STATE(ALONE) | STATE(CONNECTING));
	pair_check_unprotected(p, NULL);
	pair_check_runs(p, PAUSE_BOUND_MS);
	CHECK_OK(sim_verify(p->primary_sim, NULL, NULL, &err), err);
}

static void examine(struct pair *p, struct tally *t)
{
	look_at_secondary(p, t);
	look_at_primary(p);
	pair_close(p);
}

/* A connection that the wrapper has broken is not made again: the proxy refuses from the first loss on. */
static void kill_at_record(unsigned n, bool by_primary, struct tally *t)
{
	struct pair_options opt;
	struct pair p;
	char spec[32];

	draw_options(&opt);
	snprintf(spec, sizeof(spec), "cutmsg=%u", n);
	if (by_primary)
		opt.fault = spec;
	else
		opt.listen_fault = spec;
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_set_once(p.proxy);
	pair_start_primary(&p, p.address);
	wait_for_death(&p);
	examine(&p, t);
}

static void kill_at_octet(uint64_t octets, enum proxy_way way, struct tally *t)
{
	struct pair_options opt;
	struct pair p;

	draw_options(&opt);
	pair_open_sims(&p, &opt);
	pair_start_secondary(&p);
	proxy_cut_after(p.proxy, way, octets, PROXY_REFUSE);
	pair_start_primary(&p, p.address);
	wait_for_death(&p);
	examine(&p, t);
}

static void report(const char *what, const struct tally *t)
{
	printf("%s: %" PRIu64 " places: %" PRIu64 " without an image yet, %" PRIu64 " promoted (last epochs %" PRIu64
	       " in all)\n",
	       what, t->no_image + t->promoted, t->no_image, t->promoted, t->epochs);
	CHECK(t->no_image == 0 || t->promoted > 0, "%s: no place was late enough for a complete image: try more", what);
}

static void records(unsigned places, unsigned every, bool by_primary)
{
	struct tally t = { 0 };

	for (unsigned n = 1; n <= places; n += every)
		kill_at_record(n, by_primary, &t);
	report(by_primary ? "records of the primary" : "records of the secondary", &t);
}

/* In a geometric row: hello and the first records are short. */
static void octets(unsigned places, unsigned every, enum proxy_way way)
{
	double primary = slab ? OCTETS_LAST_SLAB : OCTETS_LAST_PRIMARY;
	double last = way == PROXY_TO_TARGET ? primary : OCTETS_LAST_SECONDARY;
	double ratio = pow(last / OCTETS_FIRST, 1.0 / (places > 1 ? places - 1 : 1)), at = OCTETS_FIRST;
	struct tally t = { 0 };

	for (unsigned n = 0; n < places; n++, at *= ratio)
		if (n % every == 0)
			kill_at_octet((uint64_t)at, way, &t);
	report(way == PROXY_TO_TARGET ? "octets of the primary" : "octets of the secondary", &t);
}

int main(int argc, char **argv)
{
	unsigned nr_records = 30, nr_octets = 20, every = 1;

	for (int i = 1; i < argc; i += 2) {
		if (strcmp(argv[i], "--slab") == 0)
			slab = true, i--;
		else if (i + 1 == argc)
			DIE("what is %s?", argv[i]);
		else if (strcmp(argv[i], "--records") == 0)
			nr_records = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--octets") == 0)
			nr_octets = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--every") == 0)
			every = (unsigned)atoi(argv[i + 1]);
	}
	CHECK(every > 0, "--every 0");
	setvbuf(stdout, NULL, _IOLBF, 0);
	records(nr_records, every, true);
	records(nr_records, every, false);
	octets(nr_octets, every, PROXY_TO_TARGET);
	octets(nr_octets, every, PROXY_FROM_TARGET);
	return 0;
}
