/* SPDX-License-Identifier: MIT */
/* cli.h - command lines of all programs: a table of options per command drives getopt_long(), --help, the config file,
 * completion and the check of the manual pages.  docs/man/ says the rest to users.
 *
 *	struct args { const char *socket; bool json; struct ft_config cfg; };
 *	static const struct cli_option options[] = {
 *		CLI_STRING(struct args, socket, "socket", 's', "PATH", "control socket"),
 *		CLI_FLAG(struct args, json, "json", 'j', "print JSON"),
 *		CLI_END
 *	};
 *	static const struct cli_command commands[] = {
 *		{ .name = "status", .help = "what the machine is doing", .options = options, .run = run_status },
 *		{ 0 }
 *	};
 *	static const struct cli_program program = { .name = "ftctl", .help = "...", .commands = commands };
 *	int main(int argc, char **argv) { struct args args = { 0 }; return cli_main(&program, argc, argv, &args); }
 *
 * One call per process, main thread.  What the user typed wrong is told on stderr and is exit status 2. */
#ifndef FT_TOOLS_CLI_H
#define FT_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ft/ft.h>

#define CLI_USAGE 2 /* exit status of a usage error, of every program */

/* An option.  @set gets the program's struct, and NULL as @value of a flag; 0 or a negative errno with a sentence that
 * says what would be right (the option's name is put in front).  Values live as long as the process. */
struct cli_option {
	const char *name;  /* without "--"; NULL ends a table */
	const char *arg;   /* what the value is called: "HOST:PORT"; NULL: a flag */
	const char *help;  /* half a sentence; NULL: hidden */
	const char *group; /* heading in --help that begins here; NULL: the same as before */
	size_t offset;	   /* for the setters below: of the member in the program's struct */
	int (*set)(void *user, const struct cli_option *opt, const char *value, struct ft_error *err);
	int letter; /* 's' for -s, or 0 */
};

int cli_set_flag(void *user, const struct cli_option *opt, const char *value, struct ft_error *err);   /* bool */
int cli_set_string(void *user, const struct cli_option *opt, const char *value, struct ft_error *err); /* const char * */
int cli_set_u32(void *user, const struct cli_option *opt, const char *value, struct ft_error *err);    /* uint32_t */
int cli_set_u64(void *user, const struct cli_option *opt, const char *value, struct ft_error *err);    /* uint64_t */
int cli_set_size(void *user, const struct cli_option *opt, const char *value, struct ft_error *err);   /* uint64_t, K M G T */

#define CLI_OPT(type, member, name_, letter_, arg_, help_, set_)                                                       \
	{ .name = name_, .arg = arg_, .help = help_, .offset = offsetof(type, member), .set = set_, .letter = letter_ }
#define CLI_FLAG(type, member, name, letter, help) CLI_OPT(type, member, name, letter, NULL, help, cli_set_flag)
#define CLI_STRING(type, member, name, letter, arg, help) CLI_OPT(type, member, name, letter, arg, help, cli_set_string)
#define CLI_U32(type, member, name, letter, arg, help) CLI_OPT(type, member, name, letter, arg, help, cli_set_u32)
#define CLI_U64(type, member, name, letter, arg, help) CLI_OPT(type, member, name, letter, arg, help, cli_set_u64)
#define CLI_SIZE(type, member, name, letter, arg, help) CLI_OPT(type, member, name, letter, arg, help, cli_set_size)
#define CLI_END { .name = NULL }

enum {
	CLI_REST = 1,	/* operands begin at the first word that is no option; what follows is not looked at */
	CLI_CONFIG = 2, /* --config FILE: options from an INI file, sections [defaults] and [NAME]; needs @settings */
};

struct cli_command {
	const char *name;		   /* NULL: the program has no subcommands, this is all of it */
	const char *args;		   /* operands, as in "NAME VALUE"; NULL: none */
	const char *help;		   /* one line */
	const char *more;		   /* paragraphs at the end of --help; NULL: none */
	const struct cli_option *options;  /* NULL: none of its own */
	unsigned flags;
	unsigned settings; /* FT_OPT_PRIMARY and/or FT_OPT_SECONDARY: every setting of ft_options() for that role is an option
			    * --NAME VALUE, unless a table has that name already */
	size_t config;	   /* with @settings: offset of the struct ft_config; cli_main() does ft_config_init() for the role
			    * (primary, if both) and then the config file, then the command line */
	int min_args, max_args; /* operands; max -1: any number */
	int (*run)(void *user, int argc, char **argv); /* operands only; returns the exit status */
};

struct cli_program {
	const char *name, *help, *more;
	const struct cli_option *options;   /* taken before and after the subcommand; NULL: none */
	const struct cli_command *commands; /* ended by a command without @run */
	const struct cli_command *other;    /* runs for a command that is none of them, with that word as its first
					     * operand; NULL: such a word is a usage error */
};

/* cli_main - parse, then run.  Knows --help (-h), --version and the hidden --help-options by itself.
 * Returns the exit status: that of the command, 0, or CLI_USAGE. */
int cli_main(const struct cli_program *program, int argc, char **argv, void *user);

/* cli_error - "PROGRAM: sentence" on stderr.  After cli_main() has begun.  cli_errno: with ": strerror(-code)" behind. */
void cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_errno(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* cli_width - columns of the terminal that @fd is; $COLUMNS, else 80, if it is none. */
int cli_width(int fd);

/* cli_print_options - what --help-options prints: a line each, fields divided by tabs:
 *	command NAME OPERANDS HELP
 *	option COMMAND NAME LETTER ARG GROUP HELP	(COMMAND "-": of the program; empty fields are "-") */
void cli_print_options(const struct cli_program *program);

#endif
