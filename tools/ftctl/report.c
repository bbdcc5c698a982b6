/* SPDX-License-Identifier: MIT */
/* report.c - status and statistics in words. */
#include "ftctl.h"

#include <inttypes.h>
#include <string.h>

#include "human.h"

static const char *value_text(char buf[static HUMAN_MAX], const char *unit, uint64_t v)
{
	if (strcmp(unit, "ns") == 0)
		return human_ns(buf, v);
	if (strcmp(unit, "bytes") == 0)
		return human_bytes(buf, v);
	return human_count(buf, v);
}

static const json_t *dist_of(const json_t *stats, const char *metric)
{
	return json_object_get(json_object_get(stats, "dist"), metric);
}

static uint64_t counter_of(const json_t *stats, const char *name)
{
	return field_u64(json_object_get(stats, "counter"), name);
}

/* "pause  p50 2.10 ms, p99 3.40 ms, max 9.8 ms"; nothing if nothing was measured. */
static void line_dist(FILE *out, const char *label, const json_t *stats, const char *metric)
{
	const json_t *d = dist_of(stats, metric);
	const char *unit = field_text(d, "unit");
	char a[HUMAN_MAX], b[HUMAN_MAX], c[HUMAN_MAX];

	if (field_u64(d, "count"))
		fprintf(out, "  %-12s p50 %s, p99 %s, max %s\n", label, value_text(a, unit, field_u64(d, "p50")),
			value_text(b, unit, field_u64(d, "p99")), value_text(c, unit, field_u64(d, "max")));
}

static void line_sync(FILE *out, const json_t *s)
{
	uint64_t done = field_u64(s, "sync_pages_done"), total = field_u64(s, "sync_pages_total");
	char a[HUMAN_MAX], b[HUMAN_MAX];

	if (!strstr(field_text(s, "state"), "syncing"))
		return;
	fprintf(out, "  %-12s round %" PRIu64 ", %s of %s pages", "full copy", field_u64(s, "sync_round"),
		human_count(a, done), human_count(b, total));
	if (total)
		fprintf(out, " (%" PRIu64 "%%)", (uint64_t)((double)done * 100 / (double)total));
	fputc('\n', out);
}

static void line_epochs(FILE *out, const json_t *s, bool is_primary)
{
	char a[HUMAN_MAX], b[HUMAN_MAX], c[HUMAN_MAX], d[HUMAN_MAX];

	human_count(d, field_u64(s, "epoch_applied"));
	human_count(c, field_u64(s, "epoch_acked"));
	if (is_primary)
		fprintf(out, "  %-12s %s running, %s sent, %s acked, %s applied\n", "epoch",
			human_count(a, field_u64(s, "epoch_running")), human_count(b, field_u64(s, "epoch_sent")), c,
			d);
	else
		fprintf(out, "  %-12s %s acked, %s applied\n", "epoch", c, d);
}

static void line_traffic(FILE *out, const json_t *stats, bool is_primary)
{
	char a[HUMAN_MAX], b[HUMAN_MAX], c[HUMAN_MAX], d[HUMAN_MAX];

	if (!stats)
		return;
	if (is_primary)
		fprintf(out, "  %-12s %s in %s pages, and %s zero pages; %s pages were there already\n", "sent",
			human_bytes(a, counter_of(stats, "bytes-sent")), human_count(b, counter_of(stats, "pages")),
			human_count(c, counter_of(stats, "zero-pages")),
			human_count(d, counter_of(stats, "same-pages")));
	else
		fprintf(out, "  %-12s %s\n", "received", human_bytes(a, counter_of(stats, "bytes-received")));
}

/* "12.0 MiB of 64.0 MiB here"; a budget of 0 is none. */
static void put_pinned(FILE *out, const json_t *rdma, const char *pinned, const char *budget, const char *where)
{
	uint64_t most = field_u64(rdma, budget);
	char a[HUMAN_MAX], b[HUMAN_MAX];

	fprintf(out, "%s%s%s %s", human_bytes(a, field_u64(rdma, pinned)), most ? " of " : "",
		most ? human_bytes(b, most) : "", where);
}

/* The transport's name, and of rdma what its tuning needs. */
static void line_transport(FILE *out, const json_t *s)
{
	const json_t *r = json_object_get(s, "rdma");
	uint64_t lanes = field_u64(r, "lanes");
	char a[HUMAN_MAX], b[HUMAN_MAX], c[HUMAN_MAX];

	if (!*field_text(s, "transport"))
		return; /* a process of an older version */
	fprintf(out, "  %-12s %s", "transport", field_text(s, "transport"));
	if (!r) {
		fputc('\n', out);
		return;
	}
	fprintf(out, ", device %s port %" PRIu64 ", GID %s, MTU %" PRIu64 "; %" PRIu64 " lane%s, %" PRIu64 " credits\n",
		field_text(r, "device"), field_u64(r, "port"), field_text(r, "gid"), field_u64(r, "mtu"), lanes,
		lanes == 1 ? "" : "s", field_u64(r, "credits"));
	fprintf(out, "  %-12s ", "pinned");
	put_pinned(out, r, "pinned_bytes", "pin_budget", "here, ");
	put_pinned(out, r, "peer_pinned_bytes", "peer_pin_budget", "at the peer; ");
	if (strcmp(field_text(r, "registration"), "chunks") == 0)
		fprintf(out, "chunks of %s\n", human_bytes(a, field_u64(r, "chunk_bytes")));
	else
		fprintf(out, "%s\n", field_text(r, "registration"));
	fprintf(out, "  %-12s %s, %s ended, %s of these to keep within a budget\n", "registered",
		human_count(a, field_u64(r, "registrations")), human_count(b, field_u64(r, "deregistrations")),
		human_count(c, field_u64(r, "unpins")));
}

/* "50 ms", or what was found instead and why. */
static void line_interval(FILE *out, const json_t *s)
{
	const char *mode = field_text(s, "interval_mode"), *end = field_text(s, "epoch_end");
	uint64_t watermark = field_u64(s, "watermark_pages");
	char a[HUMAN_MAX];

	if (!*mode || strcmp(mode, "fixed") == 0 || !field_u64(s, "interval_now_ns"))
		fprintf(out, "  %-12s %" PRIu64 " ms", "interval", field_u64(s, "interval_ms"));
	else
		fprintf(out, "  %-12s %s, found for %s (%s)", "interval", human_ns(a, field_u64(s, "interval_now_ns")),
			mode, field_text(s, "interval_reason"));
	if (watermark)
		fprintf(out, ", at most %s dirty pages", human_count(a, watermark));
	if (*end)
		fprintf(out, "; last ended by %s", end);
	fputc('\n', out);
}

static void line_skip(FILE *out, const json_t *s)
{
	const char *word = field_text(s, "skip_same");

	if (*word)
		fprintf(out, "  %-12s %s\n", "skip same",
			strcmp(word, "on") == 0 ? "all pages are looked at (on)"
			: strcmp(word, "off") == 0
				? "no (off)"
				: "a sample is looked at, to find out whether it is worth it (sample)");
}

static void line_state_file(FILE *out, const json_t *s)
{
	const char *error = field_text(s, "state_file_error");

	if (!*field_text(s, "state_file"))
		return;
	fprintf(out, "  %-12s %s: %s\n", "state file", field_text(s, "state_file"), field_text(s, "state_file_says"));
	if (*error)
		fprintf(out, "  %-12s NO: %s\n", "written", error);
}

static void line_witness(FILE *out, const json_t *s)
{
	const json_t *w = json_object_get(s, "witness");
	const char *holder = field_text(w, "holder"), *lease = field_text(w, "lease");
	char a[HUMAN_MAX];

	if (!w)
		return;
	fprintf(out, "  %-12s %s", "lease", strcmp(lease, "none") == 0 ? "not ours" : lease);
	if (field_u64(w, "left_ns"))
		fprintf(out, " for %s", human_ns(a, field_u64(w, "left_ns")));
	fprintf(out, "; %s has generation %" PRIu64 " of %s\n", field_text(w, "witness"), field_u64(w, "generation"),
		*holder ? holder : "nobody");
	if (*field_text(w, "trouble"))
		fprintf(out, "  %-12s NO ANSWER: %s\n", "witness", field_text(w, "trouble"));
}

void report_status(FILE *out, const json_t *s, const json_t *stats)
{
	bool is_primary = strcmp(field_text(s, "role"), "primary") == 0;
	char a[HUMAN_MAX], b[HUMAN_MAX];
	const char *reason = field_text(s, "reason");

	fprintf(out, "%s: %s, %s for %s%s%s\n", field_text(s, "name"), field_text(s, "role"), field_text(s, "state"),
		human_ns(a, field_u64(s, "state_age_ns")), *reason ? ": " : "", reason);
	fprintf(out, "  %-12s %s\n", "protected", json_is_true(json_object_get(s, "protected")) ? "yes" : "NO");
	if (*field_text(s, "peer"))
		fprintf(out, "  %-12s %s\n", "peer", field_text(s, "peer"));
	line_transport(out, s);
	line_sync(out, s);
	line_epochs(out, s, is_primary);
	if (is_primary) {
		line_interval(out, s);
		if (*field_text(s, "capture"))
			fprintf(out, "  %-12s %s\n", "capture",
				strcmp(field_text(s, "capture"), "cow") == 0 ? "copy on write (cow)"
									     : "in the pause (copy)");
		line_skip(out, s);
		line_dist(out, "pause", stats, "pause");
		line_dist(out, "output delay", stats, "output-delay");
	} else {
		line_dist(out, "apply", stats, "apply");
	}
	line_traffic(out, stats, is_primary);
	fprintf(out, "  %-12s %s of %s\n", "memory", human_bytes(a, field_u64(s, "memory_bytes")),
		human_bytes(b, field_u64(s, "memory_cap_bytes")));
	fprintf(out, "  %-12s %s in %" PRIu64 " region%s%s\n", "guest", human_bytes(a, field_u64(s, "guest_bytes")),
		field_u64(s, "regions"), field_u64(s, "regions") == 1 ? "" : "s",
		json_is_true(json_object_get(s, "guest_paused")) ? ", PAUSED" : "");
	fprintf(out, "  %-12s %" PRIu64 "\n", "generation", field_u64(s, "generation"));
	line_state_file(out, s);
	line_witness(out, s);
	if (*field_text(s, "bottleneck"))
		fprintf(out, "  %-12s %s\n", "bottleneck", field_text(s, "bottleneck"));
}

static void line_nic(FILE *out, const json_t *nic)
{
	uint64_t dropped = field_u64(nic, "dropped-frames");
	char a[HUMAN_MAX], b[HUMAN_MAX];

	fprintf(out, "  %-12s %s: %s held", "network", field_text(nic, "name"),
		human_bytes(a, field_u64(nic, "held-bytes")));
	if (dropped)
		fprintf(out, ", %s frame%s DROPPED", human_count(b, dropped), dropped == 1 ? "" : "s");
	fputc('\n', out);
}

static void line_disk(FILE *out, const json_t *disk)
{
	char a[HUMAN_MAX], b[HUMAN_MAX];

	fprintf(out, "  %-12s %s: %s, ", "disk", field_text(disk, "name"), human_bytes(a, field_u64(disk, "size")));
	if (json_object_get(disk, "journal-bytes"))
		fprintf(out, "%s in the journal\n", human_bytes(b, field_u64(disk, "journal-bytes")));
	else
		fprintf(out, "%" PRIu64 "%% at the secondary, %s still to be sent\n", field_u64(disk, "copied-percent"),
			human_bytes(b, field_u64(disk, "dirty-bytes")));
}

void report_machine(FILE *out, const json_t *machine)
{
	json_t *one;
	size_t i;

	json_array_foreach(json_object_get(machine, "nics"), i, one)
	{
		line_nic(out, one);
	}
	json_array_foreach(json_object_get(machine, "disks"), i, one)
	{
		line_disk(out, one);
	}
}

void report_stats(FILE *out, const json_t *stats)
{
	const char *name, *unit;
	json_t *d, *n;
	char t[5][HUMAN_MAX];

	fprintf(out, "%-14s %12s %12s %12s %12s %12s %12s\n", "", "count", "min", "mean", "p50", "p99", "max");
	json_object_foreach(json_object_get(stats, "dist"), name, d)
	{
		double mean = json_number_value(json_object_get(d, "mean"));
		uint64_t count = field_u64(d, "count");

		if (!count)
			continue;
		unit = field_text(d, "unit");
		fprintf(out, "%-14s %12" PRIu64 " %12s %12s %12s %12s %12s\n", name, count,
			value_text(t[0], unit, field_u64(d, "min")),
			value_text(t[1], unit, mean > 0 ? (uint64_t)mean : 0),
			value_text(t[2], unit, field_u64(d, "p50")), value_text(t[3], unit, field_u64(d, "p99")),
			value_text(t[4], unit, field_u64(d, "max")));
	}
	fputc('\n', out);
	json_object_foreach(json_object_get(stats, "counter"), name, n)
		fprintf(out, "%-14s %12s\n", name, human_count(t[0], (uint64_t)json_integer_value(n)));
}
