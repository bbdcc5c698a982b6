/* SPDX-License-Identifier: MIT */
/* peers.c - what others reach with the same guest on the same machine, in turns with ft, so that ratios of one run can be told:
 *
 *   ft       ftqemu over TCP (guest.c)
 *   colo     QEMU's own COLO: x-checkpoint-delay is the interval; no network proxy, so checkpoints are taken by time only; over a Unix
 *            socket, where it is at its best.  With TCG, QEMU 7.2 hangs at a checkpoint without tests/e2e/colofix.c (--colo-preload);
 *            a run that hangs or ends all the same is begun anew and counted.
 *   migrate  one plain live migration over TCP: throughput, and its downtime as pause
 *   iperf3, ib_write_bw    the link alone
 *
 * What cannot be measured here is named, with the reason.  COLO's pause is from STOP to RESUME of the primary's QEMU: with sending, loading
 * the state and the acknowledgement.  One thread. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench.h"
#include "cli.h"
#include "say.h"

#define SETTLE_MS 2000
#define ATTEMPTS 4u
#define START_NS UINT64_C(30000000000)
#define BANDWIDTH (INT64_C(1) << 40)

struct qemus { /* a source and a destination */
	const struct point *p;
	struct host host;
	struct talk *from, *to;
};

static int start_qemu(struct qemus *q, const char *name, bool is_incoming, struct talk **t, struct ft_error *err)
{
	struct words w = { .n = 0 };
	char path[128];
	pid_t pid;

	guest_words(&w, q->p, q->host.dir, name);
	if (is_incoming) {
		words_add(&w, "-incoming");
		words_add(&w, "defer");
	}
	pid = host_start(&q->host, name, &w, q->p->preload, err);
	snprintf(path, sizeof(path), "%s/%s.qmp", q->host.dir, name);
	return pid < 0 ? pid : talk_open(t, path, true, mono_ns() + START_NS, err);
}

/* Both run, the guest in the first. */
static int qemus_open(struct qemus *q, const struct point *p, struct ft_error *err)
{
	struct counts c;
	int r;

	*q = (struct qemus){ .p = p };
	r = host_open(&q->host, err);
	r = r ? r : start_qemu(q, "from", false, &q->from, err);
	r = r ? r : guest_counts(&q->host, "from", &c, err);
	return r ? r : start_qemu(q, "to", true, &q->to, err);
}

static void qemus_close(struct qemus *q)
{
	talk_close(q->from);
	talk_close(q->to);
	host_close(&q->host);
}

/* Until the source's migration is in state @want. */
static int await_migration(struct qemus *q, const char *want, struct ft_error *err)
{
	uint64_t end = mono_ns() + START_NS;

	while (strcmp(q->from->migration, want)) {
		int r = talk_ask(q->from, qmp_request("query-status", NULL), NULL, err);

		if (r)
			return r;
		if (!strcmp(q->from->migration, "failed") || mono_ns() > end)
			return say(err, -EIO, "QEMU's migration is %s, not %s", q->from->migration, want);
		sleep_ms(20);
	}
	return 0;
}

static int migrate(struct qemus *q, const char *uri, bool is_colo, struct ft_error *err)
{
	struct talk *side[] = { q->from, q->to };
	int r = 0;

	for (int i = 0; i < 2; i++) {
		json_t *caps = json_pack("[{s:s,s:b}]", "capability", "events", "state", 1);

		if (is_colo)
			json_array_append_new(caps, json_pack("{s:s,s:b}", "capability", "x-colo", "state", 1));
		r = r ? r
		      : talk_ask(side[i],
				 qmp_request("migrate-set-capabilities", json_pack("{s:O}", "capabilities", caps)),
				 NULL, err);
		json_decref(caps);
		r = r ? r
		      : talk_ask(side[i],
				 qmp_request("migrate-set-parameters",
					     json_pack("{s:I,s:I}", "max-bandwidth", (json_int_t)BANDWIDTH,
						       "x-checkpoint-delay", (json_int_t)q->p->interval_ms)),
				 NULL, err);
	}
	r = r ? r : talk_ask(q->to, qmp_request("migrate-incoming", json_pack("{s:s}", "uri", uri)), NULL, err);
	return r ? r : talk_ask(q->from, qmp_request("migrate", json_pack("{s:s}", "uri", uri)), NULL, err);
}

/* ---- COLO ---- */

static int colo_once(const struct point *p, double *v, struct ft_error *err)
{
	static struct look a, z;
	struct counts c, d;
	struct qemus q;
	char uri[128];
	int r = qemus_open(&q, p, err);

	snprintf(uri, sizeof(uri), "unix:%s/colo", q.host.dir);
	r = r ? r : migrate(&q, uri, true, err);
	r = r ? r : await_migration(&q, "colo", err);
	sleep_ms(r ? 0 : SETTLE_MS);
	r = r ? r : guest_counts(&q.host, "from", &c, err);
	r = r ? r : talk_ask(q.from, qmp_request("query-status", NULL), NULL, err);
	if (!r)
		talk_forget_pauses(q.from);
	a.ns = mono_ns();
	sleep_ms(r ? 0 : (unsigned)(p->seconds * 1000));
	r = r ? r : talk_ask(q.from, qmp_request("query-status", NULL), NULL, err);
	z.ns = mono_ns();
	r = r ? r : guest_counts(&q.host, "from", &d, err);
	if (!r && q.from->nr_pauses < 2)
		r = say(err, -ENODATA, "COLO took %u checkpoints", q.from->nr_pauses);
	if (!r) {
		v[FIG_EPOCHS] = q.from->nr_pauses * 1e9 / (double)(z.ns - a.ns);
		a.steps = c.steps;
		z.steps = d.steps;
		a.ns = c.ns;
		z.ns = d.ns;
		look_work(v, &a, &z, 0);
		talk_pauses(q.from, v);
	}
	qemus_close(&q);
	return r;
}

static int colo_measure(const struct point *p, double *v, struct ft_error *err)
{
	int r = 0;

	for (unsigned i = 0; i < ATTEMPTS; i++) {
		r = colo_once(p, v, err);
		v[FIG_HUNG] = i;
		if (!r)
			break;
	}
	return r;
}

/* ---- a plain migration, and links ---- */

static int migrate_measure(const struct point *p, double *v, struct ft_error *err)
{
	json_t *m = NULL;
	struct qemus q;
	char uri[64];
	int r = qemus_open(&q, p, err);

	snprintf(uri, sizeof(uri), "tcp:%s:%u", p->address, host_free_port());
	r = r ? r : migrate(&q, uri, false, err);
	r = r ? r : await_migration(&q, "completed", err);
	r = r ? r : talk_ask(q.from, qmp_request("query-migrate", NULL), &m, err);
	if (!r) {
		double ms = (double)json_integer_value(json_object_get(m, "total-time")) -
			    (double)json_integer_value(json_object_get(m, "setup-time"));

		v[FIG_TRANSFER] =
			(double)json_integer_value(json_object_get(json_object_get(m, "ram"), "transferred")) /
			fmax(ms, 1) / 1e3;
		v[FIG_PAUSE_P50] = (double)json_integer_value(json_object_get(m, "downtime")) * 1e3;
	}
	json_decref(m);
	qemus_close(&q);
	return r;
}

/* A server and a client of the same program; what the client prints is in DIR/client.out. */
static int run_link(struct host *h, const struct words *server, const struct words *client, struct ft_error *err)
{
	uint64_t end = mono_ns() + START_NS;
	char said[200];
	pid_t pid = host_start(h, "server", server, NULL, err);
	int status = -1;

	while (pid >= 0 && status && mono_ns() < end) { /* until the server listens */
		sleep_ms(200);
		pid = host_start(h, "client", client, NULL, err);
		status = pid < 0 ? 0 : host_wait(h, pid, end);
	}
	if (pid < 0)
		return pid;
	return status ? say(err, -EIO, "%s: %s", client->w[0], host_said(h, "client", said, sizeof(said))) : 0;
}

static int iperf3_measure(const struct point *p, double *v, struct ft_error *err)
{
	struct words server = { .n = 0 }, client = { .n = 0 };
	unsigned port = host_free_port();
	char path[128];
	struct host h;
	json_t *j;
	int r = host_open(&h, err);

	words_add(&server, "iperf3");
	words_add(&server, "-s");
	words_add(&server, "-p%u", port);
	words_add(&client, "iperf3");
	words_add(&client, "-Jc%s", p->address);
	words_add(&client, "-p%u", port);
	words_add(&client, "-t%.0f", ceil(p->seconds));
	r = r ? r : run_link(&h, &server, &client, err);
	snprintf(path, sizeof(path), "%s/client.out", h.dir);
	j = r ? NULL : json_load_file(path, 0, NULL);
	v[FIG_TRANSFER] = json_number_value(json_object_get(json_object_get(json_object_get(j, "end"), "sum_received"),
							    "bits_per_second")) /
			  8e6;
	json_decref(j);
	host_close(&h);
	return r;
}

/* The table's line is "#bytes #iterations peak average rate". */
static double read_perftest(const char *path)
{
	double size, count, peak, average = NAN;
	FILE *f = fopen(path, "re");
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " %lf %lf %lf %lf", &size, &count, &peak, &average) == 4)
			break;
	if (f)
		fclose(f);
	return average * 1.048576; /* its MB are MiB */
}

static int perftest_measure(const struct point *p, double *v, struct ft_error *err)
{
	struct words side[2] = { { .n = 0 }, { .n = 0 } };
	char path[128];
	struct host h;
	int r = host_open(&h, err);

	for (int i = 0; i < 2; i++) {
		words_add(&side[i], "ib_write_bw");
		words_add(&side[i], "-RFs65536");
		words_add(&side[i], "-n2000");
		if (i)
			words_add(&side[i], "%s", p->address);
	}
	r = r ? r : run_link(&h, &side[0], &side[1], err);
	snprintf(path, sizeof(path), "%s/client.out", h.dir);
	v[FIG_TRANSFER] = r ? NAN : read_perftest(path);
	if (!r && isnan(v[FIG_TRANSFER]))
		r = say(err, -EPROTO, "ib_write_bw printed no table");
	host_close(&h);
	return r;
}

/* ---- which of them there are ---- */

static const char *colo_missing(const struct point *p)
{
	const char *why = guest_missing(p);

	if (why)
		return why;
	return p->preload ? NULL : "with TCG it hangs without tests/e2e/colofix.c, given as --colo-preload FILE";
}

static const char *iperf3_missing(const struct point *p)
{
	(void)p;
	return host_has("iperf3") ? NULL : "it is not installed";
}

static const char *perftest_missing(const struct point *p)
{
	if (strcmp(p->transport, "rdma"))
		return "it needs --transport rdma and --address";
	return host_has("ib_write_bw") ? NULL : "it is not installed (perftest)";
}

static const struct peer {
	const char *name; /* NULL: the transport's, ft itself */
	int (*measure)(const struct point *p, double *v, struct ft_error *err);
	const char *(*missing)(const struct point *p);
	bool has_interval, has_rate;
} peers[] = {
	{ NULL, guest_measure, guest_missing, true, true },
	{ "colo", colo_measure, colo_missing, true, true },
	{ "migrate", migrate_measure, guest_missing, false, true },
	{ "iperf3", iperf3_measure, iperf3_missing, false, false },
	{ "ib_write_bw", perftest_measure, perftest_missing, false, false },
};
#define NR_PEERS (sizeof(peers) / sizeof(peers[0]))

static void note_missing(struct run *r, const char *name, const char *why)
{
	snprintf(r->missing[r->nr_missing++], sizeof(r->missing[0]), "%s: %s", name ? name : "ft", why);
}

/* The points of one peer at the places of ft's: @at are interval and rate. */
static void add_points(const struct peer *e, const struct point *at, unsigned n, struct point *out, unsigned *nr)
{
	for (unsigned i = 0; i < n; i++) {
		struct point *p = &out[*nr];
		bool first_of_rate = i == 0 || at[i].pages * 1000 / at[i].interval_ms !=
						       at[i - 1].pages * 1000 / at[i - 1].interval_ms;

		if ((!e->has_interval && !first_of_rate) || (!e->has_rate && i))
			continue;
		*p = at[i];
		p->measure = e->measure;
		p->no_failover = true;
		p->transport = e->name ? e->name : p->transport;
		if (!e->has_rate)
			p->pattern = "none";
		(*nr)++;
	}
}

/* ---- the table ---- */

static void print_cell(const struct entry *e, enum figure f, double scale, int digits)
{
	struct spread s = entry_spread(e, f);
	char text[64] = "-";

	if (s.n > 1)
		snprintf(text, sizeof(text), "%.*f (%.*f to %.*f)", digits, s.median * scale, digits, s.low * scale,
			 digits, s.high * scale);
	else if (s.n)
		snprintf(text, sizeof(text), "%.*f", digits, s.median * scale);
	printf("  %-24s", text);
}

static void print_peers(const struct run *r)
{
	printf("%-12s %8s %6s  %-24s  %-24s  %-24s  %-24s  %-24s  %s\n", "", "pages/s", "ms", "checkpoints/s",
	       "pause p50, ms", "pause p99, ms", "pages/s written", "MB/s", "hung");
	for (unsigned i = 0; i < r->n; i++) {
		const struct entry *e = &r->entry[i];
		char rate[24] = "-", interval[12] = "-";

		if (strcmp(e->pattern, "none"))
			snprintf(rate, sizeof(rate), "%llu", (unsigned long long)(e->pages * 1000 / e->interval_ms));
		if (entry_spread(e, FIG_EPOCHS).n)
			snprintf(interval, sizeof(interval), "%u", e->interval_ms);
		printf("%-12s %8s %6s", e->transport, rate, interval);
		print_cell(e, FIG_EPOCHS, 1, 1);
		print_cell(e, FIG_PAUSE_P50, 1e-3, 2);
		print_cell(e, FIG_PAUSE_P99, 1e-3, 2);
		print_cell(e, FIG_WRITTEN, 1, 0);
		print_cell(e, FIG_TRANSFER, 1, 0);
		print_cell(e, FIG_HUNG, 1, 0);
		putchar('\n');
	}
	for (unsigned i = 0; i < r->nr_missing; i++)
		printf("missing: %s\n", r->missing[i]);
}

/* Of each place, and against the best that COLO has anywhere. */
static void print_ratios(const struct run *r)
{
	double best_pause = INFINITY, best_rate = 0;

	for (unsigned i = 0; i < r->n; i++)
		if (!strcmp(r->entry[i].transport, "colo")) {
			best_pause = fmin(best_pause, entry_spread(&r->entry[i], FIG_PAUSE_P50).median);
			best_rate = fmax(best_rate, entry_spread(&r->entry[i], FIG_EPOCHS).median);
		}
	for (unsigned i = 0; i < r->n; i++)
		for (unsigned k = 0; k < r->n; k++) {
			const struct entry *f = &r->entry[i], *c = &r->entry[k];
			double pause = entry_spread(f, FIG_PAUSE_P50).median, rate = entry_spread(f, FIG_EPOCHS).median;

			if (strcmp(c->transport, "colo") || f->interval_ms != c->interval_ms || f->pages != c->pages ||
			    (strcmp(f->transport, "tcp") && strcmp(f->transport, "rdma")))
				continue;
			printf("%llu pages/s, %u ms: COLO's pause is %.2f times ft's, ft takes %.2f times as many "
			       "checkpoints; "
			       "COLO's best anywhere: %.2f, %.2f\n",
			       (unsigned long long)(f->pages * 1000 / f->interval_ms), f->interval_ms,
			       entry_spread(c, FIG_PAUSE_P50).median / pause, rate / entry_spread(c, FIG_EPOCHS).median,
			       best_pause / pause, rate / best_rate);
		}
}

int run_peers(void *user, int argc, char **argv)
{
	const struct args *a = user;
	struct point *at = calloc(POINTS_MAX, sizeof(*at)), *p = calloc(POINTS_MAX, sizeof(*p));
	struct run r = { 0 };
	unsigned n = 0, nr = 0;
	int ret = args_check(a);

	(void)argc, (void)argv;
	if (!at || !p)
		return BENCH_FAILED;
	ret = ret ? ret : points_of_rates(a, at, POINTS_MAX / NR_PEERS, &n);
	for (size_t i = 0; !ret && i < NR_PEERS; i++) {
		const char *why = peers[i].missing(&at[0]);

		if (why)
			note_missing(&r, peers[i].name, why);
		else
			add_points(&peers[i], at, n, p, &nr);
	}
	for (unsigned i = 0; !nr && i < r.nr_missing; i++)
		cli_error("missing: %s", r.missing[i]);
	ret = ret ? ret : nr ? measure_points(a, p, nr, &r) : BENCH_FAILED;
	if (!ret && wants_table(a)) {
		print_peers(&r);
		print_ratios(&r);
	}
	ret = ret ? ret : save_run(a, &r);
	run_free(&r);
	free(at);
	free(p);
	return ret;
}
