/* SPDX-License-Identifier: MIT */
/* main.c - ftbench: what protection costs, beside what the machine could do (docs/man/ftbench.1.scd). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "cli.h"
#include "say.h"

static int set_seconds(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	char *end;
	double v = strtod(value, &end);

	if (end == value || *end || isnan(v))
		return say(err, -EINVAL, "%s: '%.64s' is not a number of seconds such as 2 or 0.5", opt->name, value);
	((struct args *)user)->seconds = v;
	return 0;
}

static int add_set(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	struct args *a = user;

	if (a->nr_sets == SETS_MAX)
		return say(err, -E2BIG, "%s: more than %u of them", opt->name, SETS_MAX);
	a->set[a->nr_sets++] = value;
	return 0;
}

#define SECONDS(help_)                                                                                                 \
	{                                                                                                              \
		.name = "seconds", .arg = "S", .help = help_, .set = set_seconds                                       \
	}

/* clang-format off */
#define WHERE                                                                                                          \
	{ .name = "transport", .arg = "NAME", .help = "tcp, loopback (one process) or rdma [tcp]", .group = "Connection", \
	  .offset = offsetof(struct args, transport), .set = cli_set_string },                                           \
	CLI_STRING(struct args, address, "address", 0, "ADDRESS", "of this host, where the secondary listens [127.0.0.1]"), \
	CLI_SIZE(struct args, link_limit, "link-limit", 0, "SIZE", "octets a second that the primary may send"),          \
	CLI_U32(struct args, link_delay_ms, "link-delay", 0, "MS", "each message waits a random time up to that, in both directions")
#define OUT_JSON                                                                                                       \
	{ .name = "json", .arg = "FILE", .help = "all values, as JSON; -: standard output, and nothing else there", .group = "Output", \
	  .offset = offsetof(struct args, json), .set = cli_set_string, .letter = 'j' },                                 \
	CLI_FLAG(struct args, quiet, "quiet", 'q', "no progress, and no words or table")
#define OUT                                                                                                            \
	OUT_JSON,                                                                                                      \
	CLI_STRING(struct args, csv, "csv", 0, "FILE", "a line for each repeat of each point")
#define HOW(seconds_, repeat_)                                                                                         \
	SECONDS("time that counts of a point [" seconds_ "]"),                                                          \
	CLI_U32(struct args, repeat, "repeat", 'r', "N", "times that each point is measured, in turns [" repeat_ "]")

#define REAL                                                                                                           \
	CLI_STRING(struct args, images, "images", 0, "DIR", "of a real guest: vmlinuz and initrd.gz [build/guest]")

static const struct cli_option sweep_options[] = {
	CLI_STRING(struct args, intervals, "interval", 'i', "MS,...", "checkpoint intervals [1,5,10,25,100,500]"),
	CLI_STRING(struct args, pages, "pages", 0, "N,...", "pages that the guest writes in an interval, unprotected [100,1000,10000]"),
	CLI_STRING(struct args, patterns, "pattern", 0, "NAME,...", "uniform, hot, sequential, sparse, zero, rewrite, scatter, flip, mixed [uniform]"),
	CLI_STRING(struct args, guest, "guest", 'g', "KIND", "sim, simulated; or qemu, the Linux of tools/guest under ftqemu [sim]"),
	REAL,
	CLI_SIZE(struct args, guest_bytes, "guest-size", 0, "SIZE", "memory of the guest [1G; of qemu 256M]"),
	CLI_U32(struct args, cpus, "cpus", 0, "N", "processors of the guest, each a thread [1]"),
	{ .name = "set", .arg = "NAME=VALUE,...", .help = "a setting of ft-settings(7); several values: each in turn", .set = add_set, .letter = 's' },
	CLI_U32(struct args, slow_us, "secondary-slow", 0, "US", "each apply of an epoch takes that much longer"),
	HOW("2", "3"), WHERE, OUT,
	CLI_STRING(struct args, plot, "plot", 0, "DIR", "pictures by gnuplot, as SVG and PNG, and the scripts for them"),
	CLI_END,
};

static const struct cli_option plot_options[] = {
	CLI_FLAG(struct args, quiet, "quiet", 'q', "do not say that gnuplot is missing"),
	CLI_END,
};

static const struct cli_option advise_options[] = {
	CLI_U32(struct args, max_delay_ms, "max-output-delay", 0, "MS", "output may wait that long at most"),
	CLI_U32(struct args, max_slowdown_pct, "max-slowdown", 0, "PERCENT", "work that the guest may lose"),
	CLI_U64(struct args, pages_per_second, "pages-per-second", 0, "N", "that the guest dirties [10000]"),
	HOW("2", "3"), WHERE, OUT_JSON,
	CLI_END,
};

static const struct cli_option idle_options[] = {
	CLI_SIZE(struct args, guest_bytes, "guest-size", 0, "SIZE", "memory of the guest [1G]"),
	HOW("2", "3"), WHERE, OUT,
	CLI_END,
};

static const struct cli_option memory_options[] = {
	CLI_SIZE(struct args, guest_bytes, "guest-size", 0, "SIZE", "memory of the guest, all of it written [1G]"),
	CLI_U32(struct args, cpus, "cpus", 0, "N", "processors of the guest, each a thread [1]"),
	HOW("2", "3"), WHERE, OUT,
	CLI_END,
};

static const struct cli_option peers_options[] = {
	CLI_STRING(struct args, intervals, "interval", 'i', "MS,...", "checkpoint intervals [1,5,10,25,100,500]"),
	CLI_STRING(struct args, rates, "pages-per-second", 0, "N,...", "that the guest writes [1000,10000]"),
	CLI_SIZE(struct args, guest_bytes, "guest-size", 0, "SIZE", "memory of the guest [256M]"),
	REAL,
	CLI_STRING(struct args, preload, "colo-preload", 0, "FILE", "library made of tests/e2e/colofix.c, without which COLO hangs with TCG"),
	HOW("2", "3"),
	{ .name = "transport", .arg = "NAME", .help = "of ft: tcp or rdma [tcp]", .group = "Connection",
	  .offset = offsetof(struct args, transport), .set = cli_set_string },
	CLI_STRING(struct args, address, "address", 0, "ADDRESS", "of this host, where the secondary listens [127.0.0.1]"),
	OUT,
	CLI_END,
};

static const struct cli_option techniques_options[] = {
	CLI_SIZE(struct args, guest_bytes, "guest-size", 0, "SIZE", "memory of the guest [1G]"),
	CLI_U32(struct args, cpus, "cpus", 0, "N", "processors of the guest, each a thread [1]"),
	HOW("2", "3"), WHERE, OUT,
	CLI_END,
};

static const struct cli_option compare_options[] = {
	CLI_U32(struct args, threshold, "threshold", 't', "PERCENT", "a smaller difference of medians is none [5]"),
	CLI_FLAG(struct args, all, "all", 'a', "print the figures that are the same, too"),
	CLI_END,
};

static const struct cli_command commands[] = {
	{ .name = "sweep", .help = "measure intervals, dirty pages, patterns and settings (without a command: this)", .options = sweep_options, .run = run_sweep },
	{ .name = "compare", .args = "A.json B.json", .help = "what is better or worse in B, beyond the noise", .options = compare_options,
	  .min_args = 2, .max_args = 2, .run = run_compare },
	{ .name = "plot", .args = "A.json DIR", .help = "pictures of a run that was kept", .options = plot_options, .min_args = 2, .max_args = 2, .run = run_plot },
	{ .name = "advise", .help = "measure this host shortly, and recommend an interval for a target", .options = advise_options, .run = run_advise },
	{ .name = "idle", .help = "processor time for a guest that writes nothing", .options = idle_options, .run = run_idle },
	{ .name = "peers", .help = "a real guest under ft, under QEMU's COLO, and migrated, in turns; and the plain link", .options = peers_options, .run = run_peers },
	{ .name = "techniques", .help = "each technique off and on, and what it gains", .options = techniques_options, .run = run_techniques },
	{ .name = "memory", .help = "memory of both sides under a guest that writes as fast as it can", .options = memory_options, .run = run_memory },
	{ 0 },
};
/* clang-format on */

static const struct cli_program program = {
	.name = "ftbench",
	.help = "Measures what protecting a guest costs on this host, beside what the host could do at best.",
	.more = "Exit status: 0 done, of compare: nothing worse; 1 of compare: something worse, of advise: the target "
		"cannot be met; 2 usage; 3 a "
		"measurement failed.",
	.commands = commands,
};

/* Without a command, its options are those of the sweep. */
static bool means_sweep(int argc, char **argv)
{
	static const char *const general[] = { "--help", "-h", "--version", "--help-options" };

	if (argc < 2)
		return true;
	for (size_t i = 0; i < sizeof(general) / sizeof(general[0]); i++)
		if (!strcmp(argv[1], general[i]))
			return false;
	return argv[1][0] == '-';
}

int main(int argc, char **argv)
{
	struct args args = {
		.transport = "tcp",
		.intervals = "1,5,10,25,100,500",
		.pages = "100,1000,10000",
		.patterns = "uniform",
		.guest = "sim",
		.images = "build/guest",
		.rates = "1000,10000",
		.cpus = 1,
		.repeat = 3,
		.seconds = 2,
		.threshold = 5,
		.pages_per_second = 10000,
	};
	char **words = calloc((size_t)argc + 2, sizeof(*words));
	int n = 0;

	if (!words)
		return BENCH_FAILED;
	words[n++] = argv[0];
	if (means_sweep(argc, argv))
		words[n++] = (char *)(uintptr_t) "sweep";
	for (int i = 1; i < argc; i++)
		words[n++] = argv[i];
	n = cli_main(&program, n, words, &args);
	free(words);
	return n;
}
