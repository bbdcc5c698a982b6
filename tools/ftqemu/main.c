/* SPDX-License-Identifier: MIT */
/* main.c - ftqemu: protects an unmodified QEMU by embedding libft beside it.  Tables of options, and `show`.
 * See ftqemu(1). */
#include "ftqemu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"
#include "runtime.h"

#define HOLD_BYTES "4M"
#define NET_HOLD_BYTES "16M"
#define DISK_HOLD_BYTES "64M"
#define NET_HOLD_MIN UINT64_C(131072) /* a frame of the largest size and more */

static int set_method(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	struct args *args = user;

	if (devstate_method_parse(value, &args->state_method) == 0)
		return 0;
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg), "%s: '%.40s' is none of auto, pipe, stopcont, migrate", opt->name, value);
	return err->code;
}

static int set_net_hold(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	const struct args *args = user;
	int rc = cli_set_size(user, opt, value, err);

	if (rc || args->net_hold_bytes >= NET_HOLD_MIN)
		return rc;
	err->code = -ERANGE;
	snprintf(err->msg, sizeof(err->msg), "%s: %.40s is less than a large frame needs: at least %" PRIu64 "K",
		 opt->name, value, NET_HOLD_MIN >> 10);
	return err->code;
}

static int set_net_at_cap(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	static const char *const names[] = { [NICS_CUT] = "cut", [NICS_DROP] = "drop" };
	struct args *args = user;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], value) == 0) {
			args->net_at_cap = (enum nics_at_cap)i;
			return 0;
		}
	}
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg), "%s: '%.40s' is neither cut nor drop", opt->name, value);
	return err->code;
}

static int refuse_shared_disk(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	(void)user;
	(void)value;
	err->code = -ENOTSUP;
	snprintf(err->msg, sizeof(err->msg),
		 "%s: a disk that both hosts see has writes of the primary that no epoch was committed for, and the "
		 "standby would go on with "
		 "them; give each side an image of its own",
		 opt->name);
	return err->code;
}

static int refuse_identity(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	(void)user;
	(void)value;
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg), "%s: QEMU itself is asked", opt->name);
	return err->code;
}

#define COMMON_OPTIONS                                                                                                 \
	{ .name = "name",                                                                                              \
	  .arg = "NAME",                                                                                               \
	  .help = "name of the machine (that of -name, or vm)",                                                        \
	  .group = "Machine",                                                                                          \
	  .offset = offsetof(struct args, name),                                                                       \
	  .set = cli_set_string },                                                                                     \
		CLI_STRING(struct args, control, "control", 0, "PATH", "control socket for ftctl(1)"),                 \
		CLI_STRING(struct args, console, "console", 0, "DEST",                                                 \
			   "where the first serial console goes, in the syntax of QEMU's -serial; instead of what "    \
			   "QEMU's options say"),                                                                      \
		{ .name = "state-method",                                                                              \
		  .arg = "auto|pipe|stopcont|migrate",                                                                 \
		  .help = "how device state is taken (auto)",                                                          \
		  .set = set_method },                                                                                 \
		CLI_SIZE(struct args, hold_bytes, "hold-bytes", 0, "SIZE",                                             \
			 "most output held for each console (" HOLD_BYTES ")"),                                        \
		CLI_OPT(struct args, net_hold_bytes, "net-hold-bytes", 0, "SIZE",                                      \
			"most output held for each network card (" NET_HOLD_BYTES ")", set_net_hold),                  \
		{ .name = "net-at-cap",                                                                                \
		  .arg = "cut|drop",                                                                                   \
		  .help = "when half of that is used: end the epoch, or nothing; what finds no room is lost (cut)",    \
		  .set = set_net_at_cap },                                                                             \
		CLI_SIZE(struct args, disk_hold_bytes, "disk-hold-bytes", 0, "SIZE",                                   \
			 "most octets held of what the guest writes to its disks (" DISK_HOLD_BYTES ")"),              \
		CLI_STRING(struct args, disk_journal, "disk-journal", 0, "FILE",                                       \
			   "where a secondary keeps writes until its images have them (IMAGE.ft-journal beside the "   \
			   "first)"),                                                                                  \
		CLI_FLAG(struct args, disk_durability, "disk-durability", 0,                                           \
			 "a secondary acknowledges an epoch when its writes are on stable storage"),                   \
		{ .name = "shared-disk",                                                                               \
		  .help = "refused: each side needs an image of its own",                                              \
		  .set = refuse_shared_disk },                                                                         \
		CLI_FLAG(struct args, unsafe_output, "unsafe-output", 0,                                               \
			 "allow disks, network cards and pictures whose output is not held"),                          \
		CLI_STRING(struct args, shim, "shim", 0, "PATH", "the shim, if it is not where it was installed"),     \
		CLI_STRING(struct args, qemu_log, "qemu-log", 0, "FILE",                                               \
			   "what QEMU says (qemu.log in the run directory)"),                                          \
		CLI_STRING(struct args, log, "log", 0, "FILE", "what ftqemu says, instead of stderr"),                 \
		CLI_FLAG(struct args, verbose, "verbose", 'v', "say more, also what is added to QEMU's command line"), \
	{                                                                                                              \
		.name = "identity", .arg = "TEXT", .set = refuse_identity                                              \
	}

static const struct cli_option primary_options[] = {
	CLI_STRING(struct args, cfg.peer, "secondary", 0, "HOST:PORT",
		   "where the secondary listens (or --peer); rdma:HOST:PORT over RDMA"),
	COMMON_OPTIONS,
	CLI_END,
};

static const struct cli_option secondary_options[] = {
	CLI_STRING(struct args, then_secondary, "then-secondary", 0, "HOST:PORT",
		   "after a failover protect the machine with that secondary; rdma:HOST:PORT over RDMA"),
	COMMON_OPTIONS,
	CLI_END,
};

static const struct cli_option attach_options[] = {
	CLI_STRING(struct args, qmp, "qmp", 0, "PATH", "QMP socket of the running QEMU"),
	CLI_U64(struct args, pid, "pid", 0, "PID", "its process, if the socket does not tell"),
	CLI_STRING(struct args, cfg.peer, "secondary", 0, "HOST:PORT",
		   "where the secondary listens (or --peer); rdma:HOST:PORT over RDMA"),
	COMMON_OPTIONS,
	CLI_END,
};

static const struct cli_option show_options[] = {
	CLI_STRING(struct args, name, "name", 0, "NAME", "name of the machine (that of -name, or vm)"),
	CLI_FLAG(struct args, unsafe_output, "unsafe-output", 0,
		 "allow disks, network cards and pictures whose output is not held"),
	CLI_STRING(struct args, shim, "shim", 0, "PATH", "the shim, if it is not where it was installed"),
	CLI_END,
};

static void finish(struct args *args)
{
	if (!args->hold_bytes)
		args->hold_bytes = UINT64_C(4) << 20;
	if (!args->net_hold_bytes)
		args->net_hold_bytes = UINT64_C(16) << 20;
	if (!args->disk_hold_bytes)
		args->disk_hold_bytes = UINT64_C(64) << 20;
	/* a section of the config file names the machine too */
	if (!args->name && args->cfg.name && strcmp(args->cfg.name, "vm") != 0)
		args->name = args->cfg.name;
}

static int need(const char *value, const char *option)
{
	if (value && *value)
		return 0;
	cli_error("--%s is needed", option);
	return CLI_USAGE;
}

static int run_primary(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	finish(args);
	return need(args->cfg.peer, "secondary") ? CLI_USAGE : run_machine(args, ROLE_PRIMARY, argv);
}

static int run_secondary(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	finish(args);
	return need(args->cfg.listen, "listen") ? CLI_USAGE : run_machine(args, ROLE_SECONDARY, argv);
}

static int run_attach(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	(void)argv;
	finish(args);
	if (need(args->qmp, "qmp") || need(args->cfg.peer, "secondary"))
		return CLI_USAGE;
	return run_machine(args, ROLE_ATTACH, NULL);
}

static int show_role(const struct args *args, char **qemu, bool is_secondary)
{
	struct machine_config config = { .name = args->name,
					 .qemu = qemu,
					 .shim = args->shim,
					 .is_secondary = is_secondary,
					 .unsafe_output = args->unsafe_output };
	char name[FT_NAME_MAX], dir[256], run_dir[400], *line;
	struct ft_error err = { 0 };
	struct cmdline c;
	size_t i;
	int rc = runtime_directory(dir, sizeof(dir), &err);

	machine_decide_name(&config, name, sizeof(name));
	snprintf(run_dir, sizeof(run_dir), "%s/%s", dir, name);
	if (!rc)
		rc = machine_command(&c, &config, run_dir, 3, &err);
	else
		c = (struct cmdline){ 0 };
	if (rc) {
		cli_error("%s", err.msg);
	} else {
		line = cmdline_shell(c.argv.v);
		printf("%s:\n%s\n", is_secondary ? "secondary" : "primary", line ? line : "");
		free(line);
		for (i = 0; i < c.notes.n; i++)
			printf("  %s\n", c.notes.v[i]);
		for (i = 0; i < c.unheld.n; i++)
			printf("  not held: %s\n", c.unheld.v[i]);
	}
	cmdline_free(&c);
	return rc ? EXIT_REFUSED : 0;
}

static int run_show(void *user, int argc, char **argv)
{
	int rc = show_role(user, argv, false);

	(void)argc;
	return rc ? rc : show_role(user, argv, true);
}

static const struct cli_command commands[] = {
	{ .name = "primary",
	  .args = "-- QEMU [QEMU-OPTION]...",
	  .help = "start a guest and protect it",
	  .options = primary_options,
	  .flags = CLI_REST | CLI_CONFIG,
	  .settings = FT_OPT_PRIMARY,
	  .config = offsetof(struct args, cfg),
	  .min_args = 1,
	  .max_args = -1,
	  .run = run_primary,
	  .more = "The guest starts at once and is protected as soon as the secondary is there.  ^C ends the guest; a "
		  "second one at once.  "
		  "If ftqemu is killed the guest runs on, and 'ftqemu attach' protects it again." },
	{ .name = "secondary",
	  .args = "-- QEMU [QEMU-OPTION]...",
	  .help = "keep a standby ready",
	  .options = secondary_options,
	  .flags = CLI_REST | CLI_CONFIG,
	  .settings = FT_OPT_PRIMARY | FT_OPT_SECONDARY,
	  .config = offsetof(struct args, cfg),
	  .min_args = 1,
	  .max_args = -1,
	  .run = run_secondary,
	  .more = "Give it the QEMU options of the primary.  'ftctl failover' makes it run; then it may become a "
		  "primary itself "
		  "(--then-secondary)." },
	{ .name = "attach",
	  .help = "protect a QEMU that is running",
	  .options = attach_options,
	  .flags = CLI_CONFIG,
	  .settings = FT_OPT_PRIMARY,
	  .config = offsetof(struct args, cfg),
	  .run = run_attach,
	  .more = "Its memory has to be shared (memory-backend-memfd, or memory-backend-file with share=on).  ^C ends "
		  "the protection, "
		  "not the guest." },
	{ .name = "show",
	  .args = "-- QEMU [QEMU-OPTION]...",
	  .help = "print the command lines that QEMU gets, and run nothing",
	  .options = show_options,
	  .flags = CLI_REST,
	  .min_args = 1,
	  .max_args = -1,
	  .run = run_show },
	{ 0 },
};

static const struct cli_program program = {
	.name = "ftqemu",
	.help = "Protects an unmodified QEMU guest: a standby on another host is kept some milliseconds behind it and "
		"goes on when it dies.",
	.commands = commands,
};

int main(int argc, char **argv)
{
	struct args args = { 0 };

	return cli_main(&program, argc, argv, &args);
}
