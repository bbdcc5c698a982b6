/* SPDX-License-Identifier: MIT */
/* stats.c - see stats.h. */
#include "stats.h"

#include <string.h>

static const struct {
	const char *name, *unit;
} metrics[FT_METRIC_COUNT] = {
	[FT_METRIC_PAUSE] = { "pause", "ns" },
	[FT_METRIC_STOP] = { "stop", "ns" },
	[FT_METRIC_COLLECT] = { "collect", "ns" },
	[FT_METRIC_CAPTURE] = { "capture", "ns" },
	[FT_METRIC_SAVE] = { "save", "ns" },
	[FT_METRIC_RESUME] = { "resume", "ns" },
	[FT_METRIC_SHIP] = { "ship", "ns" },
	[FT_METRIC_ACK] = { "ack", "ns" },
	[FT_METRIC_APPLIED] = { "applied", "ns" },
	[FT_METRIC_EPOCH] = { "epoch", "ns" },
	[FT_METRIC_OUTPUT_DELAY] = { "output-delay", "ns" },
	[FT_METRIC_DIRTY_PAGES] = { "dirty-pages", "pages" },
	[FT_METRIC_ZERO_PAGES] = { "zero-pages", "pages" },
	[FT_METRIC_STATE_BYTES] = { "state-bytes", "bytes" },
	[FT_METRIC_BYTES] = { "bytes", "bytes" },
	[FT_METRIC_RECEIVE] = { "receive", "ns" },
	[FT_METRIC_APPLY] = { "apply", "ns" },
	[FT_METRIC_APPLY_PAGES] = { "apply-pages", "pages" },
	[FT_METRIC_WRITE_FAULT] = { "write-fault", "ns" },
};

static const char *const counters[FT_COUNTER_COUNT] = {
	[FT_COUNTER_EPOCHS] = "epochs",
	[FT_COUNTER_BYTES_SENT] = "bytes-sent",
	[FT_COUNTER_BYTES_RECEIVED] = "bytes-received",
	[FT_COUNTER_PAGES] = "pages",
	[FT_COUNTER_ZERO_PAGES] = "zero-pages",
	[FT_COUNTER_CAP_CUTS] = "cap-cuts",
	[FT_COUNTER_CAP_STALLS] = "cap-stalls",
	[FT_COUNTER_EARLY_CUTS] = "early-cuts",
	[FT_COUNTER_OUTPUT_CUTS] = "output-cuts",
	[FT_COUNTER_RECONNECTS] = "reconnects",
	[FT_COUNTER_LOSSES] = "losses",
	[FT_COUNTER_DUPLICATES] = "duplicates",
	[FT_COUNTER_REFUSALS] = "refusals",
	[FT_COUNTER_SIDE_BYTES] = "side-bytes",
	[FT_COUNTER_WATERMARK_CUTS] = "watermark-cuts",
	[FT_COUNTER_CAP_DROPS] = "cap-drops",
	[FT_COUNTER_COW_FAULTS] = "cow-faults",
	[FT_COUNTER_AHEAD_PAGES] = "ahead-pages",
	[FT_COUNTER_AHEAD_AGAIN] = "ahead-again",
	[FT_COUNTER_CAPTURE_SWITCHES] = "capture-switches",
	[FT_COUNTER_SAME_PAGES] = "same-pages",
	[FT_COUNTER_SKIP_SWITCHES] = "skip-switches",
	[FT_COUNTER_DELTA_PAGES] = "delta-pages",
	[FT_COUNTER_DELTA_BYTES] = "delta-bytes",
	[FT_COUNTER_RESYNCS] = "resyncs",
};

static const char *const phases[PHASE_COUNT] = {
	[PHASE_INTERVAL] = "interval", [PHASE_CAPTURE] = "capture", [PHASE_SHIP] = "ship",
	[PHASE_ACK] = "ack",           [PHASE_APPLY] = "apply",     [PHASE_RECEIVE] = "receive",
};

const char *ft_metric_name(enum ft_metric m)
{
	return m < FT_METRIC_COUNT ? metrics[m].name : "?";
}

const char *ft_metric_unit(enum ft_metric m)
{
	return m < FT_METRIC_COUNT ? metrics[m].unit : "?";
}

const char *ft_counter_name(enum ft_counter c)
{
	return c < FT_COUNTER_COUNT ? counters[c] : "?";
}

void stats_init(struct stats *s)
{
	memset(s, 0, sizeof(*s));
	for (unsigned i = 0; i < FT_METRIC_COUNT; i++)
		hist_init(&s->metric[i]);
}

void stats_add(struct stats *s, enum ft_metric m, uint64_t value)
{
	hist_add(&s->metric[m], value);
}

void stats_count(struct stats *s, enum ft_counter c, uint64_t add)
{
	atomic_fetch_add_explicit(&s->counter[c], add, memory_order_relaxed);
}

void stats_phase(struct stats *s, enum stats_phase phase, uint64_t ns)
{
	uint64_t old = atomic_load_explicit(&s->phase_ns[phase], memory_order_relaxed);

	atomic_store_explicit(&s->phase_ns[phase], old ? old - old / 8 + ns / 8 : ns, memory_order_relaxed);
}

const char *stats_bottleneck(const struct stats *s)
{
	const char *name = "";
	uint64_t longest = 0;

	for (unsigned i = 0; i < PHASE_COUNT; i++) {
		uint64_t ns = atomic_load_explicit(&s->phase_ns[i], memory_order_relaxed);

		if (ns > longest) {
			longest = ns;
			name = phases[i];
		}
	}
	return name;
}

void stats_read(const struct stats *s, struct ft_stats *out)
{
	for (unsigned i = 0; i < FT_METRIC_COUNT; i++)
		hist_read(&s->metric[i], &out->dist[i]);
	for (unsigned i = 0; i < FT_COUNTER_COUNT; i++)
		out->counter[i] = atomic_load_explicit(&s->counter[i], memory_order_relaxed);
}
