/* SPDX-License-Identifier: MIT */
/* stress_oracle.c - the standby image is what the primary was at the border of the epoch it was told, octet by octet.
 *
 *   bite    a guest whose dirty tracking loses pages, or with capture=cow does not tell each write, must be found out: else the comparison
 *           proves nothing
 *   plain   epochs of guests drawn by the seed (pattern, sizes, regions, vCPUs, state, lanes) over tcp; every applied epoch is
 *           compared; each guest ends in a failover, from which it goes on exactly
 *   faults  the same over a transport that misbehaves, with its reconnects
 *
 * stress_oracle [--epochs N] [--seed S]     N: compared in the plain part; each fault kind gets a twentieth of it
 *   --each N                epochs of each guest of the plain part (100)
 *   --part NAME             this part only
 *   --listen URI            another transport or address: rdma:ADDRESS:0
 *   --settings A=B,C=D      of both sides, over those that are drawn
 *   --secondary A=B,C=D     of the secondary alone
 *   --memory MIB            about so much in each guest of the plain part, all of it written
 *   --pattern NAME          each guest writes so
 *   --delta                 pages must have gone as differences, and each to the right page: else the connection is lost
 *   --same                  pages that the secondary had must have been passed over
 *   --fabric US             over the made-up RDMA fabric, in random order, with pauses of up to so many us (implies --listen)
 *   --tls x509|psk          over TLS, with certificates or keys that are made for it
 *   --switches              the guests of a part must make the engine change its way of capturing, there and back
 *   --unpins                each guest must make the transport give back pinned memory while it runs */
#include <inttypes.h>
#include <string.h>
#include "check.h"
#include "clock.h"
#include "fabric_fake.h"
#include "pair.h"
#include "rng.h"
#include "tls_files.h"

static struct {
	uint64_t epochs, each, seed, memory_mib, fabric_us;
	const char *part, *listen, *settings, *secondary, *pattern, *tls;
	bool unpins, switches, same, delta;
	uint64_t switched, passed_over, deltas; /* so far */
} args = { .epochs = 1500, .each = 100, .seed = 1, .fabric_us = UINT64_MAX };

/* What the wrapper does (transport/fault*.c), and what must have come of it before the part is over. */
static const struct fault_kind {
	const char *spec;
	bool loses;              /* connections */
	enum ft_counter counter; /* on the secondary is not 0; FT_COUNTER_COUNT: none */
} fault_kinds[] = {
	{ "delay=3", false, FT_COUNTER_COUNT },       { "reorder=1,delay=2", false, FT_COUNTER_COUNT },
	{ "dup=30", false, FT_COUNTER_DUPLICATES },   { "slow=20000000", false, FT_COUNTER_COUNT },
	{ "stall=150:200", false, FT_COUNTER_COUNT }, { "cut=2000000", true, FT_COUNTER_COUNT },
	{ "cutmsg=150", true, FT_COUNTER_COUNT },     { "oneway=150", true, FT_COUNTER_COUNT },
	{ "stall=150:0", true, FT_COUNTER_COUNT },    { "corrupt=60", true, FT_COUNTER_REFUSALS },
};
#define LOSSES 4u

static void draw_memory(struct rng *r, struct sim_config *c)
{
	uint64_t most = args.memory_mib << 8; /* pages */

	c->nr_regions = (uint32_t)rng_range(r, 1, 3);
	for (uint32_t i = 0; i < c->nr_regions; i++)
		c->region_bytes[i] =
			(most ? most / c->nr_regions - rng_range(r, 0, 99) : rng_range(r, 17, 700)) * FT_PAGE_SIZE;
	c->prefill_pages = rng_range(r, 0, 400);
	c->working_set_pages = most || rng_next(r) & 1 ? 0 : rng_range(r, 20, 600);
}

static void draw_guest(struct rng *r, struct sim_config *c)
{
	sim_config_init(c);
	draw_memory(r, c);
	c->seed = rng_next(r);
	c->nr_cpus = (uint32_t)rng_range(r, 1, 4);
	c->pattern = (enum sim_pattern)rng_range(r, 0, SIM_PATTERN_COUNT - 1);
	CHECK(!args.pattern || !sim_pattern_of(args.pattern, &c->pattern), "there is no pattern %s", args.pattern);
	c->rate = rng_range(r, 1, 60) * 2000;
	c->pages_per_epoch = rng_next(r) % 4 ? 0 : rng_range(r, 1, 1000);
	c->state_bytes = rng_range(r, 256, 200000);
	c->output_every = rng_range(r, 2, 200);
	c->side_max_bytes = rng_next(r) & 1 ? 0 : rng_range(r, 1, 3000000);
}

static const char *draw_settings(struct rng *r, char *buf, size_t size)
{
	unsigned lanes = (unsigned)rng_range(r, 1, 4), interval = (unsigned)rng_range(r, 1, 3);

	snprintf(buf, size, "lanes=%u,interval=%u,suspect=20000,pause-max=10000%s%s", lanes, interval,
		 args.settings ? "," : "", args.settings ? args.settings : "");
	return buf;
}

/* What is the same for all guests. */
static void options_of_args(struct pair_options *opt)
{
	static char secondary[512];

	snprintf(secondary, sizeof(secondary), "%s%s%s", args.settings ? args.settings : "",
		 args.settings && args.secondary ? "," : "", args.secondary ? args.secondary : "");
	pair_options_init(opt);
	opt->compare = true;
	opt->listen = args.listen;
	opt->secondary = secondary;
}

/* Takes over whatever the secondary is doing, and checks what goes on there. */
static void end_in_failover(struct pair *p)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };

	CHECK_OK(ft_session_failover(p->secondary, FT_FAILOVER_FORCE, &res, &err), err);
	pair_check_promoted(p, &res);
}

static bool by_cow(void)
{
	return args.settings && strstr(args.settings, "capture=cow");
}

static void must_bite(void)
{
	struct pair_options opt;
	struct pair p;

	options_of_args(&opt);
	opt.primary = args.settings;
	opt.sim.pattern = SIM_UNIFORM;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 5);
	pair_check_compared(&p);
	if (by_cow()) /* its dirty pages are those that were told before they were written */
		sim_skip_hook(p.primary_sim, 20);
	else
		sim_lose_dirty(p.primary_sim, 20);
	pair_wait_applied(&p, 200);
	CHECK(by_cow() || sim_lost_dirty(p.primary_sim) > 0, "no dirty page was lost, so nothing was tried");
	CHECK(atomic_load(&p.differs), "the oracle did not notice %" PRIu64 " lost dirty pages",
	      sim_lost_dirty(p.primary_sim));
	printf("bite: noticed: %s\n", p.difference.msg);
	pair_close(&p);
}

/* Of the connection that is there now. */
static uint64_t unpins_of(struct pair *p)
{
	struct ft_status st;

	ft_session_status(p->primary, &st);
	CHECK(st.rdma_unpins > 0, "no pinned memory was given back: %s", st.transport);
	CHECK(!st.rdma_peer_pin_budget || st.rdma_peer_pinned_bytes <= st.rdma_peer_pin_budget,
	      "%" PRIu64 " octets are pinned at the peer, its budget is %" PRIu64, st.rdma_peer_pinned_bytes,
	      st.rdma_peer_pin_budget);
	return st.rdma_unpins;
}

/* One that changed twice went back under way. */
static void count(struct pair *p)
{
	static struct ft_stats stats;

	ft_session_stats(p->primary, &stats);
	args.switched += stats.counter[FT_COUNTER_CAPTURE_SWITCHES] / 2;
	args.passed_over += stats.counter[FT_COUNTER_SAME_PAGES];
	args.deltas += stats.counter[FT_COUNTER_DELTA_PAGES];
}

static uint64_t run_guest(struct rng *r, uint64_t epochs, uint64_t *unpins)
{
	struct pair_options opt;
	char settings[512];
	struct pair p;
	uint64_t compared;

	options_of_args(&opt);
	opt.primary = draw_settings(r, settings, sizeof(settings));
	draw_guest(r, &opt.sim);
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, epochs);
	pair_check_compared(&p);
	if (args.unpins)
		*unpins += unpins_of(&p);
	count(&p);
	CHECK(!args.delta || !atomic_load(&p.losses), "connections were lost: %s",
	      pair_status_text(p.primary, settings, sizeof(settings)));
	end_in_failover(&p);
	pair_wait(p.primary, STATE(FENCED));
	pair_check_stopped(&p);
	compared = atomic_load(&p.compared);
	pair_check_compared(&p);
	pair_close(&p);
	return compared;
}

static void run_plain(struct rng *r, uint64_t epochs)
{
	uint64_t compared = 0, guests = 0, unpins = 0;

	while (compared < epochs) {
		compared += run_guest(r, args.each, &unpins);
		guests++;
	}
	printf("plain: %" PRIu64 " epochs of %" PRIu64 " guests are what the oracle says", compared, guests);
	if (args.unpins)
		printf("; %" PRIu64 " chunks were given back", unpins);
	printf("\n");
}

static void open_faulty(struct pair *p, struct rng *r, const struct fault_kind *kind)
{
	char settings[512], drawn[400], spec[96], secondary[600];
	struct pair_options opt;

	options_of_args(&opt);
	/* what says nothing any more is to be noticed in time */
	snprintf(settings, sizeof(settings), "heartbeat-misses=10,commit-timeout=1000,%s",
		 draw_settings(r, drawn, sizeof(drawn)));
	opt.primary = settings;
	snprintf(secondary, sizeof(secondary), "heartbeat-misses=10%s%s", *opt.secondary ? "," : "", opt.secondary);
	opt.secondary = secondary;
	snprintf(spec, sizeof(spec), "%s,seed=%" PRIu64, kind->spec, rng_next(r) % 100000);
	opt.fault = spec;
	draw_guest(r, &opt.sim);
	opt.sim.nr_regions = 1; /* a full sync must fit into what the wrapper lets through */
	opt.sim.region_bytes[0] = 150 * FT_PAGE_SIZE;
	opt.sim.pages_per_epoch = 0;
	opt.sim.rate = 5000;
	opt.sim.state_bytes = 5000;
	opt.sim.side_max_bytes /= 30;
	pair_open(p, &opt);
}

/* A wrapper that breaks a connection does so again and again: the primary comes back each time and starts with a full sync. */
static void run_fault(struct rng *r, const struct fault_kind *kind, uint64_t epochs)
{
	static struct ft_stats stats;
	uint64_t losses;
	struct pair p;

	open_faulty(&p, r, kind);
	do {
		pair_wait_applied(&p, epochs);
		pair_check_compared(&p);
	} while (kind->loses && atomic_load(&p.losses) < LOSSES);
	losses = atomic_load(&p.losses);
	count(&p);
	pair_wait(p.secondary, STATE(STANDBY) | STATE(STANDBY_SUSPECT));
	end_in_failover(&p);
	pair_check_compared(&p);
	ft_session_stats(p.secondary, &stats); /* a connection's duplicates are counted at its end */
	printf("%s: %" PRIu64 " epochs are what the oracle says, %" PRIu64 " losses\n", kind->spec,
	       (uint64_t)atomic_load(&p.compared), losses);
	CHECK(kind->counter == FT_COUNTER_COUNT || stats.counter[kind->counter] > 0,
	      "%s: %s is 0: the fault did not happen", kind->spec, ft_counter_name(kind->counter));
	CHECK(kind->loses || !losses, "%s: %" PRIu64 " connections were lost", kind->spec, losses);
	pair_close(&p);
}

static void parse_args(int argc, char **argv)
{
	const struct {
		const char *name, **text;
		uint64_t *number;
	} options[] = {
		{ "--epochs", NULL, &args.epochs },     { "--each", NULL, &args.each },
		{ "--seed", NULL, &args.seed },         { "--memory", NULL, &args.memory_mib },
		{ "--part", &args.part, NULL },         { "--listen", &args.listen, NULL },
		{ "--settings", &args.settings, NULL }, { "--secondary", &args.secondary, NULL },
		{ "--fabric", NULL, &args.fabric_us },  { "--pattern", &args.pattern, NULL },
		{ "--tls", &args.tls, NULL },
	};
	const size_t n = sizeof(options) / sizeof(options[0]);

	for (int i = 1; i < argc; i++) {
		size_t o = 0;

		if (strcmp(argv[i], "--unpins") == 0) {
			args.unpins = true;
			continue;
		}
		if (strcmp(argv[i], "--delta") == 0) {
			args.delta = true;
			continue;
		}
		if (strcmp(argv[i], "--same") == 0) {
			args.same = true;
			continue;
		}
		if (strcmp(argv[i], "--switches") == 0) {
			args.switches = true;
			continue;
		}
		while (o < n && strcmp(argv[i], options[o].name) != 0)
			o++;
		CHECK(o < n && i + 1 < argc, "what is %s?", argv[i]);
		i++;
		if (options[o].text)
			*options[o].text = argv[i];
		else
			*options[o].number = strtoull(argv[i], NULL, 10);
	}
}

static void begin_fabric(void)
{
	if (args.fabric_us == UINT64_MAX)
		return;
	fabric_start(NULL);
	fabric_random(args.seed, (unsigned)args.fabric_us);
	if (!args.listen)
		args.listen = "rdma:10.9.0.1:0";
}

/* Nothing is left in the fabric, and no rule of verbs was broken. */
static void end_fabric(void)
{
	const char *text;

	if (args.fabric_us == UINT64_MAX)
		return;
	CHECK(fabric_violations(&text) == 0, "verbs: %s", text);
	CHECK(fabric_all_gone(), "left in the fabric: %s", fabric_live_text());
	printf("fabric: %" PRIu64 " registrations, all given back, no rule broken\n", fabric_registered());
	fabric_stop();
}

/* A folder for both sides, and the settings for it in front of those of the arguments. */
static void begin_tls(char *dir, size_t size)
{
	static char settings[512];
	size_t n;

	if (!args.tls)
		return;
	tls_good_folder(tls_folder(dir, size));
	tls_settings(strcmp(args.tls, "psk") == 0 ? TP_TLS_PSK : TP_TLS_X509, dir, settings, sizeof(settings));
	n = strlen(settings);
	snprintf(settings + n, sizeof(settings) - n, "%s%s", args.settings ? "," : "",
		 args.settings ? args.settings : "");
	args.settings = settings;
}

static bool is_wanted(const char *part)
{
	return !args.part || strcmp(args.part, part) == 0;
}

int main(int argc, char **argv)
{
	char folder[32];
	struct rng r;

	parse_args(argc, argv);
	CHECK(is_wanted("bite") || is_wanted("plain") || is_wanted("faults"), "there is no part %s", args.part);
	setvbuf(stdout, NULL, _IOLBF, 0);
	r.state = args.seed;
	begin_fabric();
	begin_tls(folder, sizeof(folder));
	printf("seed %" PRIu64 "\n", args.seed);
	if (is_wanted("bite"))
		must_bite();
	if (is_wanted("plain"))
		run_plain(&r, args.epochs);
	for (size_t i = 0; i < sizeof(fault_kinds) / sizeof(fault_kinds[0]) && is_wanted("faults"); i++)
		run_fault(&r, &fault_kinds[i], args.epochs / 20 + 10);
	end_fabric();
	if (args.tls)
		tls_folder_remove(folder);
	printf("capture: %" PRIu64 " times there and back\n", args.switched);
	printf("same: %" PRIu64 " pages were passed over\n", args.passed_over);
	printf("delta: %" PRIu64 " pages were told by their difference\n", args.deltas);
	CHECK(!args.delta || args.deltas > 0, "no page went as a difference: nothing was tried");
	CHECK(!args.same || args.passed_over > 0, "no page was passed over: nothing was tried");
	CHECK(!args.switches || args.switched > 0, "the way of capturing never changed back: nothing was tried");
	return 0;
}
