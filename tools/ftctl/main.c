/* SPDX-License-Identifier: MIT */
/* main.c - ftctl: what an operator types (docs/man/ftctl.1.scd).  Each command is one question on the control socket
 * of a process that protects a machine or keeps a standby; commands that are none of ours are passed on to it. */
#include "ftctl.h"

#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "human.h"

#define LONG_MS 600000u /* failover and stop end by themselves; this only ends a wait for a process that hangs */

/* ---- asking ------------------------------------------------------------------------------------- */

/* Asks, prints what is common to all commands; the data of a reply that was granted (the caller's), or NULL. */
static json_t *ask(const struct args *args, json_t *request, uint32_t timeout_ms, int *status)
{
	json_t *reply = client_command(args, request, timeout_ms, status), *data = NULL;

	if (!reply)
		return NULL;
	if (*status == EXIT_OK)
		data = json_incref(json_object_get(reply, "data"));
	else
		cli_error("%s", field_text(reply, "error"));
	if (args->json) {
		json_dumpf(*status == EXIT_OK ? data : reply, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(reply);
	return data;
}

/* For commands whose success needs no more than a sentence. */
static int ask_and_say(const struct args *args, json_t *request, uint32_t timeout_ms, const char *sentence)
{
	int status;
	json_t *data = ask(args, request, timeout_ms, &status);

	if (data && !args->json && !args->quiet)
		printf("%s\n", sentence);
	json_decref(data);
	return status;
}

static json_t *request(const char *cmd)
{
	return json_pack("{s:s}", "cmd", cmd);
}

static json_t *request_timed(const char *cmd, const struct args *args)
{
	return json_pack("{s:s,s:i}", "cmd", cmd, "timeout_ms", (int)args->timeout_ms);
}

/* ---- commands ----------------------------------------------------------------------------------- */

/* Network cards and disks, where the process has such: not every program that protects a machine knows the command. */
static void show_machine(const struct args *args)
{
	int status;
	json_t *reply = client_command(args, request("machine"), 0, &status);

	if (reply && status == EXIT_OK)
		report_machine(stdout, json_object_get(reply, "data"));
	json_decref(reply);
}

static int run_status(void *user, int argc, char **argv)
{
	struct args *args = user, silent = *args;
	int status;
	json_t *s = ask(args, request("status"), 0, &status), *stats = NULL;

	(void)argc;
	(void)argv;
	silent.json = false;
	if (s && !args->json) {
		stats = ask(&silent, request("stats"), 0, &status);
		report_status(stdout, s, stats);
		show_machine(args);
	}
	json_decref(stats);
	json_decref(s);
	return status;
}

static int run_stats(void *user, int argc, char **argv)
{
	struct args *args = user;
	int status;
	json_t *stats = ask(args, request("stats"), 0, &status);

	(void)argc;
	(void)argv;
	if (stats && !args->json)
		report_stats(stdout, stats);
	json_decref(stats);
	return status;
}

static int run_top(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	(void)argv;
	if (args->delay_ms < 100) {
		cli_error("option --delay: at least 100 ms");
		return EXIT_USAGE;
	}
	return top_run(args);
}

static void say_failover(const json_t *data)
{
	static const char *const phase[][2] = {
		{ "stop_ns", "replication stopped" },
		{ "apply_ns", "last epoch finished" },
		{ "load_ns", "device state loaded" },
		{ "activate_ns", "started" },
	};
	char t[HUMAN_MAX];

	if (strcmp(field_text(data, "outcome"), "already") == 0) {
		printf("already done: the machine runs here since epoch %" PRIu64 "\n", field_u64(data, "epoch"));
		return;
	}
	printf("done: the machine runs here from epoch %" PRIu64 ", after %s\n", field_u64(data, "epoch"),
	       human_ns(t, field_u64(data, "total_ns")));
	for (size_t i = 0; i < sizeof(phase) / sizeof(phase[0]); i++)
		if (field_u64(data, phase[i][0]))
			printf("  %-20s %10s\n", phase[i][1], human_ns(t, field_u64(data, phase[i][0])));
}

static int run_failover(void *user, int argc, char **argv)
{
	struct args *args = user;
	int status;
	json_t *data = ask(args, json_pack("{s:s,s:b}", "cmd", "failover", "force", args->force), LONG_MS, &status);

	(void)argc;
	(void)argv;
	if (data && !args->json && !args->quiet)
		say_failover(data);
	json_decref(data);
	return status;
}

static int run_checkpoint(void *user, int argc, char **argv)
{
	struct args *args = user;
	int status;
	json_t *data = ask(args, request_timed("checkpoint", args), args->timeout_ms, &status);

	(void)argc;
	(void)argv;
	if (data && !args->json && !args->quiet)
		printf("epoch %" PRIu64 " is safe on the secondary\n", field_u64(data, "epoch"));
	json_decref(data);
	return status;
}

static void print_settings(const json_t *data)
{
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)data, name, value)
	{
		printf("%-18s %s\n", name, json_string_value(value));
	}
}

static int run_set(void *user, int argc, char **argv)
{
	struct args *args = user;
	int status;
	json_t *data =
		ask(args, json_pack("{s:s,s:s,s:s}", "cmd", "set", "name", argv[0], "value", argv[1]), 0, &status);

	(void)argc;
	if (data && !args->json && !args->quiet)
		print_settings(data);
	json_decref(data);
	return status;
}

static int run_get(void *user, int argc, char **argv)
{
	struct args *args = user;
	json_t *rq = request("get"), *data;
	int status;

	if (argc)
		json_object_set_new(rq, "name", json_string(argv[0]));
	data = ask(args, rq, 0, &status);
	if (data && !args->json && argc) /* for scripts: the value alone */
		printf("%s\n", field_text(data, argv[0]));
	else if (data && !args->json)
		print_settings(data);
	json_decref(data);
	return status;
}

/* As the `options` command of ft-control(7) tells them. */
static json_t *describe_option(const struct ft_option *o)
{
	static const char *const type[] = { "string", "number", "size", "bool", "choice" };
	json_t *j = json_pack("{s:s,s:s,s:b,s:b,s:b}", "name", o->name, "type", type[o->type], "primary",
			      o->flags & FT_OPT_PRIMARY, "secondary", o->flags & FT_OPT_SECONDARY, "live",
			      o->flags & FT_OPT_LIVE);

	if (o->type == FT_OPT_UINT || o->type == FT_OPT_SIZE) {
		json_object_set_new(j, "min", json_integer((json_int_t)o->min));
		json_object_set_new(j, "max", json_integer((json_int_t)o->max));
	}
	if (o->choices)
		json_object_set_new(j, "choices", json_string(o->choices));
	json_object_set_new(j, "unit", json_string(o->unit));
	json_object_set_new(j, "default", json_string(o->value));
	json_object_set_new(j, "help", json_string(o->help));
	return j;
}

/* No process is asked: the library is the same. */
static int run_options(void *user, int argc, char **argv)
{
	struct args *args = user;
	json_t *list = json_array(), *all;
	size_t n;
	const struct ft_option *o = ft_options(&n);

	(void)argc;
	(void)argv;
	for (size_t i = 0; i < n; i++) {
		json_array_append_new(list, describe_option(&o[i]));
		if (!args->json)
			printf("%-18s %-9s %s%s\n", o[i].name, o[i].value, o[i].help,
			       o[i].flags & FT_OPT_LIVE ? " (live)" : "");
	}
	all = json_pack("{s:o}", "options", list);
	if (args->json) {
		json_dumpf(all, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(all);
	return EXIT_OK;
}

static int run_pause(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	(void)argv;
	return ask_and_say(args, request_timed("pause", args), args->timeout_ms, "the guest is paused");
}

static int run_resume(void *user, int argc, char **argv)
{
	struct args *args = user;

	(void)argc;
	(void)argv;
	return ask_and_say(args, request_timed("resume", args), args->timeout_ms, "the guest runs");
}

static int run_stop(void *user, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return ask_and_say(user, request("stop"), LONG_MS, "replication has ended; the guest runs on unprotected");
}

static int run_protect(void *user, int argc, char **argv)
{
	json_t *rq = request("protect");

	if (argc)
		json_object_set_new(rq, "peer", json_string(argv[0]));
	return ask_and_say(user, rq, LONG_MS, "protection begins");
}

static int run_wait(void *user, int argc, char **argv)
{
	struct args *args = user;
	json_t *rq = request_timed("wait", args), *states = json_array(), *data;
	int status;

	for (int i = 0; i < argc; i++)
		json_array_append_new(states, json_string(argv[i]));
	json_object_set_new(rq, "states", states);
	data = ask(args, rq, args->timeout_ms, &status);
	if (data && !args->json && !args->quiet)
		printf("%s\n", field_text(data, "state"));
	json_decref(data);
	return status;
}

/* `ftctl COMMAND [KEY=VALUE]...`: the process may know more commands than we do. */
static int run_other(void *user, int argc, char **argv)
{
	struct args *args = user;
	json_t *rq = request(argv[0]), *data;
	int status;

	for (int i = 1; i < argc; i++) {
		char *equals = strchr(argv[i], '=');

		if (!equals) {
			cli_error("%s: '%s' is not KEY=VALUE", argv[0], argv[i]);
			json_decref(rq);
			return EXIT_USAGE;
		}
		*equals = '\0';
		json_object_set_new(rq, argv[i], json_string(equals + 1));
	}
	data = ask(args, rq, LONG_MS, &status);
	if (data && !args->json && json_object_size(data)) {
		json_dumpf(data, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(data);
	return status;
}

/* ---- the table ---------------------------------------------------------------------------------- */

static const struct cli_option common[] = {
	CLI_STRING(struct args, name, "name", 'n', "NAME", "the machine's name"),
	CLI_STRING(struct args, socket, "socket", 's', "PATH", "control socket, if it is not where the name says"),
	CLI_FLAG(struct args, json, "json", 'j', "print JSON"),
	CLI_FLAG(struct args, quiet, "quiet", 'q', "print nothing when all is well"),
	CLI_END,
};

static const struct cli_option timed[] = {
	CLI_U32(struct args, timeout_ms, "timeout", 't', "MS", "give up after that long [10000]"),
	CLI_END,
};

static const struct cli_option failover_options[] = {
	CLI_FLAG(struct args, force, "force", 'f', "even though the primary seems alive: both may run then"),
	CLI_END,
};

static const struct cli_option top_options[] = {
	CLI_U32(struct args, delay_ms, "delay", 'd', "MS", "time between two looks [1000]"),
	CLI_U32(struct args, count, "count", 'c', "N", "end after N looks [never]"),
	CLI_END,
};

/* clang-format off */
static const struct cli_command commands[] = {
	{ .name = "status", .help = "what the machine is doing, and how well", .run = run_status },
	{ .name = "top", .help = "the same, refreshed; a line each time in a pipe", .options = top_options, .run = run_top },
	{ .name = "stats", .help = "all that was measured", .run = run_stats },
	{ .name = "failover", .help = "run the machine here, on the secondary", .options = failover_options,
	  .run = run_failover },
	{ .name = "checkpoint", .help = "cut the running epoch and wait until it is safe", .options = timed,
	  .run = run_checkpoint },
	{ .name = "set", .args = "NAME VALUE", .help = "change a setting while running", .min_args = 2, .max_args = 2,
	  .run = run_set },
	{ .name = "get", .args = "[NAME]", .help = "a setting, or all of them", .max_args = 1, .run = run_get },
	{ .name = "options", .help = "the settings there are", .run = run_options },
	{ .name = "pause", .help = "stop the guest at the end of an epoch, protected", .options = timed, .run = run_pause },
	{ .name = "resume", .help = "let it run again", .options = timed, .run = run_resume },
	{ .name = "stop", .help = "end replication; the guest runs on", .run = run_stop },
	{ .name = "protect", .args = "[HOST:PORT]", .help = "protect a machine that runs here after a failover",
	  .max_args = 1, .run = run_protect },
	{ .name = "wait", .args = "STATE...", .help = "until the state is one of these", .options = timed, .min_args = 1,
	  .max_args = -1, .run = run_wait },
	{ 0 },
};
/* clang-format on */

static const struct cli_command other = { .args = "[KEY=VALUE]...", .max_args = -1, .run = run_other };

static const struct cli_program program = {
	.name = "ftctl",
	.help = "Looks after a machine that ft protects: asks the process that protects it, or that keeps its standby.",
	.more = "A command that is none of these is passed on to the process, with KEY=VALUE operands.\n\n"
		"Exit status: 0 done, 1 failed, 2 usage, 3 refused: the primary lives, 4 refused: no complete image, 5 "
		"not a "
		"secondary, 6 not protected, 7 no process, 8 timed out, 9 busy, 10 refused: by the witness.",
	.options = common,
	.commands = commands,
	.other = &other,
};

int main(int argc, char **argv)
{
	struct args args = { .timeout_ms = 10000, .delay_ms = 1000 };

	return cli_main(&program, argc, argv, &args);
}
