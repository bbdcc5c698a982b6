/* SPDX-License-Identifier: MIT */
/* figure.c - the list of all that is measured.  ftbench(1) explains each. */
#include <string.h>
#include "bench.h"

const struct figure_info figure_info[FIG_COUNT] = {
	[FIG_PAUSE_P50] = { "pause-p50", "us", -1, 20, "pause of the guest, median" },
	[FIG_PAUSE_P99] = { "pause-p99", "us", -1, 50, "99th percentile" },
	[FIG_PAUSE_MAX] = { "pause-max", "us", 0, 0, "the longest" },
	[FIG_PAUSE_MEAN] = { "pause-mean", "us", 0, 0, "mean, the sum of its phases and what lies between them" },
	[FIG_STOP] = { "pause-stop", "us", 0, 0, "mean of the phase" },
	[FIG_COLLECT] = { "pause-collect", "us", 0, 0, "mean of the phase" },
	[FIG_CAPTURE] = { "pause-capture", "us", -1, 20, "mean of the phase" },
	[FIG_SAVE] = { "pause-save", "us", 0, 0, "mean of the phase" },
	[FIG_RESUME] = { "pause-resume", "us", 0, 0, "mean of the phase" },
	[FIG_MEMCPY] = { "limit-memcpy", "us", 0, 0, "plain copy of as many scattered pages" },
	[FIG_PAUSE_RATIO] = { "pause-to-memcpy", "", -1, 0.05, "pause-p50 by limit-memcpy" },
	[FIG_EPOCH] = { "epoch", "ms", 0, 0, "length of an epoch reached, mean, pause included" },
	[FIG_DIRTY] = { "dirty", "pages", 0, 0, "of an epoch, mean" },
	[FIG_EPOCHS] = { "epochs", "1/s", 0, 0, "checkpoints a second" },
	[FIG_WRITTEN] = { "written", "1/s", 0, 0, "pages that the guest wrote, some of them twice in an epoch" },
	[FIG_SLOWDOWN] = { "slowdown", "%", -1, 2, "work that the guest did not do, of what it did unprotected" },
	[FIG_PROTECTED] = { "protected", "%", 1, 1, "of the time" },
	[FIG_SHIP] = { "ship", "us", -1, 50, "first write to commit sent, mean" },
	[FIG_ACK] = { "ack", "us", -1, 50, "commit sent to acknowledged, mean" },
	[FIG_APPLIED] = { "applied", "us", 0, 0, "acknowledged to applied, mean" },
	[FIG_APPLY] = { "apply", "us", -1, 50, "copy into the standby image, mean" },
	[FIG_SAFE_P50] = { "safe-p50", "us", -1, 50, "resumption to acknowledged, median" },
	[FIG_SAFE_P99] = { "safe-p99", "us", -1, 200, "99th percentile" },
	[FIG_LINK] = { "limit-link", "MB/s", 0, 0, "plain copy over the link" },
	[FIG_RTT] = { "limit-rtt", "us", 0, 0, "plain round trip of the link" },
	[FIG_SAFE_RATIO] = { "safe-to-link", "", -1, 0.05,
			     "safe-p50 by the time that link and round trip take for the pages" },
	[FIG_DELAY_P50] = { "delay-p50", "ms", -1, 0.1, "of output as the client sees it, median" },
	[FIG_DELAY_P99] = { "delay-p99", "ms", -1, 0.5, "99th percentile" },
	[FIG_HELD_P50] = { "held-p50", "ms", -1, 0.1,
			   "cut of an epoch to its release: the least that output waits, median" },
	[FIG_HELD_P99] = { "held-p99", "ms", -1, 0.5, "99th percentile" },
	[FIG_BYTES] = { "bytes-per-byte", "", -1, 0.01, "octets sent for each dirty octet" },
	[FIG_CPU_PRIMARY] = { "cpu-primary", "s/GB", -1, 0.05, "processor time of the engine for a GB of dirty pages" },
	[FIG_CPU_SECONDARY] = { "cpu-secondary", "s/GB", -1, 0.05, "the same of the secondary" },
	[FIG_BUSY] = { "cpu-share", "%", -1, 0.3, "of one core, the engine's threads of both sides" },
	[FIG_ENGINE] = { "staging", "MiB", -1, 1, "engine memory of the primary, the most that was seen" },
	[FIG_CAP] = { "staging-cap", "MiB", 0, 0, "its cap" },
	[FIG_MET] = { "cap-met", "1/s", 0, 0, "epochs cut, pauses prolonged and protections ended at the cap" },
	[FIG_GROWN] = { "grown-primary", "MiB", -1, 4,
			"the most that the process had resident more than before its session began" },
	[FIG_RSS_PRIMARY] = { "resident-primary", "MiB", -1, 4, "process, the guest's memory included" },
	[FIG_RSS_SECONDARY] = { "resident-secondary", "MiB", -1, 4, "process, the standby's memory included" },
	[FIG_PINNED_PRIMARY] = { "pinned-primary", "MiB", -1, 1, "locked and pinned" },
	[FIG_PINNED_SECONDARY] = { "pinned-secondary", "MiB", -1, 1, "locked and pinned" },
	[FIG_GUEST] = { "guest-touched", "MiB", 0, 0, "memory of the guest that is not all zero" },
	[FIG_FAIL_STOP] = { "failover-stop", "ms", 0, 0, "phase of a failover at the end" },
	[FIG_FAIL_APPLY] = { "failover-apply", "ms", 0, 0, "phase" },
	[FIG_FAIL_LOAD] = { "failover-load", "ms", 0, 0, "phase" },
	[FIG_FAIL_START] = { "failover-start", "ms", 0, 0, "phase" },
	[FIG_FAILOVER] = { "failover", "ms", -1, 2, "the whole of it" },
	[FIG_TRANSFER] = { "transfer", "MB/s", 0, 0, "of a peer that only copies" },
	[FIG_HUNG] = { "hung", "", 0, 0, "times that a peer hung or ended, and was begun anew" },
};

int figure_named(const char *name)
{
	for (int i = 0; i < FIG_COUNT; i++)
		if (strcmp(figure_info[i].name, name) == 0)
			return i;
	return -1;
}
