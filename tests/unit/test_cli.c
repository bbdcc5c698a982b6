/* SPDX-License-Identifier: MIT */
/* test_cli.c - command lines: what is parsed, what is said, and the exit status.  Each test runs cli_main() with its
 * output in a file. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

struct args {
	const char *socket;
	bool json;
	uint32_t count;
	uint64_t size;
	struct ft_config cfg;
	int argc; /* of the command that ran; -1: none did */
	char operand[256];
	char ran[16];
};

static char out[65536], err[4096], config[64];
static struct args args;

static int note(void *user, int argc, char **argv, const char *name)
{
	struct args *a = user;

	a->argc = argc;
	snprintf(a->ran, sizeof(a->ran), "%s", name);
	for (int i = 0; i < argc; i++)
		snprintf(a->operand + strlen(a->operand), sizeof(a->operand) - strlen(a->operand), "%s ", argv[i]);
	return 40;
}

static int run_status(void *user, int argc, char **argv)
{
	return note(user, argc, argv, "status");
}

static int run_primary(void *user, int argc, char **argv)
{
	return note(user, argc, argv, "primary");
}

static int run_other(void *user, int argc, char **argv)
{
	return note(user, argc, argv, "other");
}

static const struct cli_option common[] = {
	CLI_STRING(struct args, socket, "socket", 's', "PATH", "where it is"),
	CLI_FLAG(struct args, json, "json", 'j', "print JSON"),
	CLI_END,
};
static const struct cli_option own[] = {
	CLI_SIZE(struct args, size, "size", 0, "BYTES", "how large"),
	CLI_U32(struct args, count, "count", 'c', "N", "count them"),
	{ .name = "secret", .set = cli_set_flag, .offset = offsetof(struct args, json) },
	CLI_END,
};
static const struct cli_command commands[] = {
	{ .name = "status", .help = "what it does", .run = run_status },
	{ .name = "primary",
	  .args = "-- PROGRAM...",
	  .help = "protect",
	  .options = own,
	  .flags = CLI_CONFIG,
	  .settings = FT_OPT_PRIMARY,
	  .config = offsetof(struct args, cfg),
	  .min_args = 1,
	  .max_args = -1,
	  .run = run_primary },
	{ .name = "two", .args = "A B", .help = "two operands", .min_args = 2, .max_args = 2, .run = run_status },
	{ 0 },
};
static const struct cli_program program = {
	.name = "prog", .help = "tests this", .options = common, .commands = commands
};

static void slurp(FILE *f, char *buf, size_t size)
{
	size_t n;

	rewind(f);
	n = fread(buf, 1, size - 1, f);
	buf[n] = '\0';
	fclose(f);
}

/* Runs "prog @line", split at blanks. */
static int run_program(const struct cli_program *p, const char *line)
{
	static char copy[512]; /* the values that were set point into it until the next run */
	char *argv[64] = { "prog" }, *save = NULL;
	int argc = 1, status, old_out = dup(1), old_err = dup(2);
	FILE *o = tmpfile(), *e = tmpfile();

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	memset(&args, 0, sizeof(args));
	args.argc = -1;
	fflush(NULL);
	dup2(fileno(o), 1);
	dup2(fileno(e), 2);
	status = cli_main(p, argc, argv, &args);
	fflush(NULL);
	dup2(old_out, 1);
	dup2(old_err, 2);
	close(old_out);
	close(old_err);
	slurp(o, out, sizeof(out));
	slurp(e, err, sizeof(err));
	return status;
}

static int run(const char *line)
{
	return run_program(&program, line);
}

/* Usage error that says @part, and no command ran. */
static void refused(const char *line, const char *part)
{
	cr_expect_eq(run(line), CLI_USAGE, "%s", line);
	cr_expect(strstr(err, part), "'%s' says: %s", line, err);
	cr_expect_eq(args.argc, -1, "%s ran", line);
	cr_expect_str_empty(out);
}

static void write_config(const char *text)
{
	FILE *f;

	snprintf(config, sizeof(config), "/tmp/ft-test-cli-%d.conf", (int)getpid());
	f = fopen(config, "w");
	cr_assert(f);
	fputs(text, f);
	fclose(f);
}

static int run_with_config(const char *text, const char *more)
{
	char line[256];
	int status;

	write_config(text);
	snprintf(line, sizeof(line), "primary --config %s %s", config, more);
	status = run(line);
	unlink(config);
	return status;
}

Test(cli, options_before_and_after_the_command)
{
	cr_expect_eq(run("-s here status --json"), 40);
	cr_expect_str_eq(args.socket, "here");
	cr_expect(args.json);
	cr_expect_eq(run("status"), 40);
	cr_expect_null(args.socket);
	cr_expect(!args.json);
	cr_expect_eq(run("primary --size=3M -c 7 -j -- x --size=1 -z"), 40);
	cr_expect_eq(args.size, 3 << 20);
	cr_expect_eq(args.count, 7);
	cr_expect(args.json);
	cr_expect_str_eq(args.operand, "x --size=1 -z ");
}

Test(cli, every_setting_of_the_role_is_an_option)
{
	cr_expect_eq(run("primary --interval 25 --on-loss=hold --peer h:1 --staging-bytes 1G x"), 40);
	cr_expect_eq(args.cfg.interval_ms, 25);
	cr_expect_eq(args.cfg.on_loss, FT_ON_LOSS_HOLD);
	cr_expect_eq(args.cfg.staging_bytes, UINT64_C(1) << 30);
	cr_expect_str_eq(args.cfg.peer, "h:1");
	cr_expect_eq(args.cfg.role, FT_ROLE_PRIMARY);
	cr_expect_eq(args.cfg.heartbeat_ms, 100);
	refused("primary --listen :1 x", "unknown option --listen");
	refused("primary --interval 0 x", "option --interval: 0 ms is outside of 1 to 3600000 ms");
	refused("primary --interval soon x", "option --interval: 'soon' is not a time");
}

Test(cli, mistakes_are_named)
{
	refused("", "a command is missing");
	refused("stauts", "unknown command 'stauts' (did you mean 'status'?)");
	refused("xyzzyxyzzy", "unknown command 'xyzzyxyzzy'\n");
	refused("primary --intervall 5 x", "unknown option --intervall (did you mean --interval?)");
	refused("primary --itnerval=5 x", "unknown option --itnerval (did you mean --interval?)");
	refused("primary --qqqqqqqqqqqq x", "unknown option --qqqqqqqqqqqq\n");
	refused("primary -z x", "unknown option -z");
	refused("primary --sync 5 x", "--sync may be any of --sync-rounds, --sync-pause");
	refused("primary --interval", "option --interval needs a value: MS");
	refused("primary -c", "option --count needs a value: N");
	refused("primary --json=1 x", "option --json takes no value");
	refused("primary --count -1 x", "option --count: '-1' is not a number");
	refused("primary --count 4294967296 x", "option --count: '4294967296' is not a number of at most");
	refused("primary --size 1Q x", "option --size: '1Q' is not a size");
	refused("two a", "two: needs A B");
	refused("two a b c", "two: 'c' is too much");
	refused("status x", "status: 'x' is too much");
	refused("primary", "primary: needs -- PROGRAM...");
	refused("status --secre", "unknown option --secre\n"); /* hidden options are not suggested */
}

Test(cli, unknown_commands_may_be_passed_on)
{
	static const struct cli_command other = { .max_args = -1, .run = run_other };
	struct cli_program open = program;

	open.other = &other;
	cr_expect_eq(run_program(&open, "-s p frobnicate a=1 -j b"), 40);
	cr_expect_str_eq(args.ran, "other");
	cr_expect_str_eq(args.operand, "frobnicate a=1 b ");
	cr_expect(args.json);
	cr_expect_str_eq(args.socket, "p");
	cr_expect_eq(run_program(&open, "status"), 40);
	cr_expect_str_eq(args.ran, "status");
}

Test(cli, program_without_commands)
{
	static const struct cli_command only[] = {
		{ .args = "FILE", .options = own, .flags = CLI_REST, .min_args = 1, .max_args = -1, .run = run_other },
		{ 0 }
	};
	struct cli_program single = { .name = "prog", .help = "tests this", .commands = only };

	cr_expect_eq(run_program(&single, "-c 3 file -c 4"), 40);
	cr_expect_eq(args.count, 3);
	cr_expect_str_eq(args.operand, "file -c 4 ");
	cr_expect_eq(run_program(&single, "--help"), 0);
	cr_expect(strstr(out, "Usage: prog [OPTION]... FILE\n"), "%s", out);
	cr_expect_eq(run_program(&single, ""), CLI_USAGE);
	cr_expect(strstr(err, "prog: needs FILE\nTry 'prog --help'."), "%s", err);
}

Test(cli, help_and_version)
{
	char version[64];

	cr_expect_eq(run("--help"), 0);
	cr_expect(strstr(out, "Usage: prog [OPTION]... COMMAND"), "%s", out);
	cr_expect(strstr(out, "\n  primary                     protect\n"), "%s", out);
	cr_expect(strstr(out, "-s, --socket PATH"), "%s", out);
	cr_expect_str_empty(err);
	cr_expect_eq(run("primary --help"), 0);
	cr_expect(strstr(out, "Usage: prog primary [OPTION]... -- PROGRAM..."), "%s", out);
	cr_expect(strstr(out, "--interval MS"), "%s", out);
	cr_expect(strstr(out, "-c, --count N"), "%s", out);
	cr_expect(strstr(out, "--json"), "%s", out);
	cr_expect_null(strstr(out, "secret"), "hidden");
	cr_expect_null(strstr(out, "help-options"), "hidden");
	cr_expect_eq(run("--version"), 0);
	snprintf(version, sizeof(version), "prog %s\n", ft_version());
	cr_expect_str_eq(out, version);
}

Test(cli, help_keeps_to_the_width)
{
	setenv("COLUMNS", "60", 1);
	cr_expect_eq(run("primary --help"), 0);
	for (char *line = out, *end; (end = strchr(line, '\n')); line = end + 1)
		cr_expect_leq(end - line, 60, "%.*s", (int)(end - line), line);
}

Test(cli, listing_for_scripts)
{
	cr_expect_eq(run("--help-options"), 0);
	cr_expect(strstr(out, "command\tprimary\t-- PROGRAM...\tprotect\n"), "%s", out);
	cr_expect(strstr(out, "option\tprimary\tcount\tc\tN\tOptions\tcount them\n"), "%s", out);
	cr_expect(strstr(out, "option\tprimary\tinterval\t-\tMS\tSettings\t"), "%s", out);
	cr_expect(strstr(out, "option\t-\tjson\tj\t-\tGeneral\tprint JSON\n"), "%s", out);
	cr_expect_null(strstr(out, "option\tstatus\tjson"), "the program's options are listed once");
	cr_expect_null(strstr(out, "secret"));
}

Test(cli, config_file_and_command_line)
{
	static const char text[] =
		"[defaults]\ninterval = 25\nlisten = :7000\n[web1]\npeer = h:1\njson = on\nsize = 2M\n";

	cr_expect_eq(run_with_config(text, "x"), 40, "%s", err);
	cr_expect_eq(args.cfg.interval_ms, 25);
	cr_expect_str_eq(args.cfg.peer, "h:1");
	cr_expect_str_eq(args.cfg.name, "web1");
	cr_expect_null(args.cfg.listen, "a setting of the other role is not used");
	cr_expect(args.json);
	cr_expect_eq(args.size, 2 << 20);
	/* the command line wins, whatever the order */
	write_config(text);
	cr_expect_eq(run_with_config(text, "--interval 30 --peer i:2 x"), 40);
	cr_expect_eq(args.cfg.interval_ms, 30);
	cr_expect_str_eq(args.cfg.peer, "i:2");
	cr_expect_eq(run_with_config("[defaults]\ninterval = 25\n", "--name n x"), 40);
	cr_expect_str_eq(args.cfg.name, "n");
}

static void config_refused(const char *text, const char *part)
{
	cr_expect_eq(run_with_config(text, "x"), CLI_USAGE);
	cr_expect(strstr(err, part), "says: %s", err);
	cr_expect_eq(args.argc, -1);
}

Test(cli, config_mistakes_are_named)
{
	config_refused("[a]\npeer = h:1\nintervall = 5\n",
		       ".conf:3: there is no option 'intervall'; did you mean 'interval'?");
	config_refused("[a]\ninterval = soon\n", ".conf:2: interval: 'soon' is not a time");
	config_refused("[a]\njson = 1\n", ".conf:2: json: '1' is neither on nor off");
	config_refused("[a]\nheartbeat = 1\n", ".conf:2: heartbeat: 1 ms is outside of 5 to 60000 ms");
	config_refused("[a]\nhelp = on\n", ".conf:2: there is no");
	cr_expect_eq(run("primary --config /nonexistent x"), CLI_USAGE);
	cr_expect(strstr(err, "/nonexistent: No such file"), "%s", err);
}
