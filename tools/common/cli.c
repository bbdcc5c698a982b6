/* SPDX-License-Identifier: MIT */
/* cli.c - see cli.h.  What was typed is first collected, then the config file is read, then what was typed is set: so the
 * command line wins whatever the order.  Main thread; the tables are the program's and constant. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "config.h"
#include "human.h"

#define OPTIONS_MAX 128 /* of one command, all sources together */
#define GIVEN_MAX 512   /* on one command line */
#define LONG_BASE 256   /* getopt's value of option i is LONG_BASE + i: never a letter */

static const char *program_name = "ft";

struct given {
	const struct cli_option *opt;
	const char *value;
};

/* Everything one command takes.  @setting holds the options made from ft_options(). */
struct parser {
	const struct cli_program *program;
	const struct cli_command *command; /* NULL while looking for it */
	const struct cli_option *option[OPTIONS_MAX];
	size_t nr_options, nr_own; /* nr_own: of the command; behind them the program's and the built-in ones */
	struct cli_option setting[OPTIONS_MAX];
	char *setting_help[OPTIONS_MAX]; /* owned */
	size_t nr_settings;
	struct given given[GIVEN_MAX];
	size_t nr_given;
	void *user;
};

/* ---- messages ----------------------------------------------------------------------------------- */

void cli_error(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "%s: ", program_name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

void cli_errno(int code, const char *fmt, ...)
{
	char text[FT_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	cli_error("%s: %s", text, strerror(-code));
}

int cli_width(int fd)
{
	struct winsize ws;
	const char *columns = getenv("COLUMNS");
	int width = 0;

	if (ioctl(fd, TIOCGWINSZ, &ws) == 0)
		width = ws.ws_col;
	else if (columns)
		width = atoi(columns);
	return width > 0 ? width : 80;
}

static int usage_hint(const struct parser *p)
{
	const char *command = p->command && p->command->name ? p->command->name : NULL;

	fprintf(stderr, "Try '%s%s%s --help'.\n", program_name, command ? " " : "", command ? command : "");
	return CLI_USAGE;
}

/* How far @a is from @b: letters put in, left out, changed, or swapped with the next (optimal string alignment). */
static unsigned distance(const char *a, const char *b)
{
	enum { MAX = 40 };
	unsigned d[MAX + 1][MAX + 1];
	size_t n = strlen(a), m = strlen(b);

	if (n > MAX || m > MAX)
		return MAX;
	for (size_t i = 0; i <= n; i++) {
		for (size_t j = 0; j <= m; j++) {
			unsigned best;

			if (!i || !j) {
				d[i][j] = (unsigned)(i + j);
				continue;
			}
			best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
			if (d[i - 1][j] + 1 < best)
				best = d[i - 1][j] + 1;
			if (d[i][j - 1] + 1 < best)
				best = d[i][j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    d[i - 2][j - 2] + 1 < best)
				best = d[i - 2][j - 2] + 1;
			d[i][j] = best;
		}
	}
	return d[n][m];
}

/* Keeps the nearer of *@best and @candidate; too far away is no help. */
static void consider(const char *typed, const char *candidate, const char **best, unsigned *best_distance)
{
	unsigned far = distance(typed, candidate), limit = (unsigned)strlen(typed) / 3 + 1;

	if (far <= limit && far < *best_distance) {
		*best = candidate;
		*best_distance = far;
	}
}

static const char *suggest_command(const struct cli_program *program, const char *typed)
{
	const char *best = NULL;
	unsigned far = OPTIONS_MAX;

	for (const struct cli_command *c = program->commands; c->run; c++)
		if (c->name)
			consider(typed, c->name, &best, &far);
	return best;
}

static int unknown_option(const struct parser *p, const char *word)
{
	char typed[64];
	const char *best = NULL;
	unsigned far = OPTIONS_MAX;

	if (word[0] != '-' || word[1] != '-') {
		cli_error("unknown option -%c", optopt);
		return usage_hint(p);
	}
	snprintf(typed, sizeof(typed), "%.*s", (int)strcspn(word + 2, "="), word + 2);
	for (size_t i = 0; i < p->nr_options; i++)
		if (p->option[i]->help)
			consider(typed, p->option[i]->name, &best, &far);
	if (best)
		cli_error("unknown option --%s (did you mean --%s?)", typed, best);
	else
		cli_error("unknown option --%s", typed);
	return usage_hint(p);
}

static int ambiguous_option(const struct parser *p, const char *typed)
{
	char list[256] = "";
	size_t used = 0, len = strcspn(typed, "=");

	for (size_t i = 0; i < p->nr_options && used < sizeof(list); i++)
		if (p->option[i]->help && strncmp(p->option[i]->name, typed, len) == 0)
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s--%s", used ? ", " : "",
						 p->option[i]->name);
	cli_error("option --%.*s may be any of %s", (int)len, typed, list);
	return usage_hint(p);
}

/* ---- the options of a command ------------------------------------------------------------------- */

static const struct cli_option builtin[] = {
	{ .name = "help", .letter = 'h', .help = "print this help" },
	{ .name = "version", .help = "print the version" },
	{ .name = "help-options" },
	CLI_END,
};
enum { BUILTIN_HELP, BUILTIN_VERSION, BUILTIN_LIST };

static const struct cli_option config_option = {
	.name = "config",
	.letter = 'c',
	.arg = "FILE",
	.help = "options from FILE, sections [defaults] and [NAME]",
};

static bool is_taken(const struct parser *p, const char *name)
{
	for (size_t i = 0; i < p->nr_options; i++)
		if (strcmp(p->option[i]->name, name) == 0)
			return true;
	return false;
}

static void add(struct parser *p, const struct cli_option *opt)
{
	if (p->nr_options < OPTIONS_MAX && !is_taken(p, opt->name))
		p->option[p->nr_options++] = opt;
}

static void add_table(struct parser *p, const struct cli_option *table)
{
	for (; table && table->name; table++)
		add(p, table);
}

static int set_setting(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	return ft_config_set((struct ft_config *)((char *)user + opt->offset), opt->name, value, err);
}

static const char *setting_arg(const struct ft_option *s)
{
	switch (s->type) {
	case FT_OPT_STRING:
		return "TEXT";
	case FT_OPT_UINT:
		return strcmp(s->unit, "ms") == 0 ? "MS" : "N";
	case FT_OPT_SIZE:
		return "BYTES";
	case FT_OPT_BOOL:
		return "on|off";
	case FT_OPT_CHOICE:
		return s->choices;
	}
	return "VALUE";
}

static void add_setting(struct parser *p, const struct ft_option *s, bool first)
{
	struct cli_option *o;
	char *help = NULL;

	if (p->nr_settings == OPTIONS_MAX || is_taken(p, s->name))
		return;
	if (asprintf(&help, s->value[0] ? "%s [%s]" : "%s", s->help, s->value) < 0)
		help = NULL;
	p->setting_help[p->nr_settings] = help;
	o = &p->setting[p->nr_settings++];
	*o = (struct cli_option){ .name = s->name,
				  .arg = setting_arg(s),
				  .help = help ? help : s->help,
				  .group = first ? "Settings" : NULL,
				  .offset = p->command->config,
				  .set = set_setting };
	add(p, o);
}

static void add_settings(struct parser *p)
{
	size_t n, before = p->nr_settings;
	const struct ft_option *s = ft_options(&n);

	for (size_t i = 0; i < n; i++)
		if (s[i].flags & p->command->settings)
			add_setting(p, &s[i], p->nr_settings == before);
}

static void parser_init(struct parser *p, const struct cli_program *program, const struct cli_command *command,
			void *user)
{
	memset(p, 0, sizeof(*p));
	p->program = program;
	p->command = command;
	p->user = user;
	if (command) {
		add_table(p, command->options);
		if (command->flags & CLI_CONFIG)
			add(p, &config_option);
		if (command->settings)
			add_settings(p);
	}
	p->nr_own = p->nr_options;
	add_table(p, program->options);
	add_table(p, builtin);
}

static void parser_free(struct parser *p)
{
	for (size_t i = 0; i < p->nr_settings; i++)
		free(p->setting_help[i]);
}

/* ---- help --------------------------------------------------------------------------------------- */

/* Words of @text from column @at on, wrapped before @width, following lines at column @indent. */
static void print_wrapped(const char *text, int at, int indent, int width)
{
	while (*text) {
		int len = (int)strcspn(text, " \n");

		if (at > indent && at + 1 + len > width) {
			printf("\n%*s", indent, "");
			at = indent;
		} else if (at > indent) {
			putchar(' ');
			at++;
		}
		printf("%.*s", len, text);
		at += len;
		text += len;
		if (*text == '\n') {
			printf("\n%*s", text[1] == '\n' ? 0 : indent, "");
			at = indent;
		}
		text += *text != '\0';
	}
	putchar('\n');
}

static void print_entry(const char *left, const char *help, int width)
{
	enum { HELP_AT = 30 };
	int at = printf("  %s", left);

	if (at + 2 > HELP_AT) {
		putchar('\n');
		at = 0;
	}
	printf("%*s", HELP_AT - at, "");
	print_wrapped(help, HELP_AT, HELP_AT, width);
}

static void print_option(const struct cli_option *o, int width)
{
	char left[96], letter[8] = "    ";

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
	print_entry(left, o->help, width);
}

/* The heading that option @i stands under, @group being that of the one before it. */
static const char *heading(const struct parser *p, size_t i, const char *group)
{
	if (p->option[i]->group)
		return p->option[i]->group;
	if (i == p->nr_own)
		return "General";
	return group ? group : "Options";
}

static void print_options(const struct parser *p, int width)
{
	const char *group = NULL, *printed = NULL;

	for (size_t i = 0; i < p->nr_options; i++) {
		const struct cli_option *o = p->option[i];

		if (!o->help)
			continue;
		group = heading(p, i, group);
		if (group != printed)
			printf("\n%s:\n", group);
		printed = group;
		print_option(o, width);
	}
}

static bool has_commands(const struct cli_program *program)
{
	return program->commands->name;
}

static int print_help(const struct parser *p)
{
	const struct cli_program *program = p->program;
	const struct cli_command *c = p->command;
	const char *more = c ? c->more : program->more;
	int width = cli_width(STDOUT_FILENO);

	if (width > 110)
		width = 110;
	if (c)
		printf("Usage: %s%s%s [OPTION]...%s%s\n", program->name, c->name ? " " : "", c->name ? c->name : "",
		       c->args ? " " : "", c->args ? c->args : "");
	else
		printf("Usage: %s [OPTION]... COMMAND [OPERAND]...\n", program->name);
	print_wrapped(c && c->name ? c->help : program->help, 0, 0, width);
	if (!c) {
		printf("\nCommands ('%s COMMAND --help' tells their options):\n", program->name);
		for (c = program->commands; c->run; c++)
			if (c->help)
				print_entry(c->name, c->help, width);
	}
	print_options(p, width);
	if (more) {
		putchar('\n');
		print_wrapped(more, 0, 0, width);
	}
	return 0;
}

static const char *or_dash(const char *text)
{
	return text && *text ? text : "-";
}

static void list_options(const struct parser *p, const char *command, size_t from, size_t to)
{
	const char *group = NULL;

	for (size_t i = from; i < to; i++) {
		const struct cli_option *o = p->option[i];
		char letter[2] = { o->letter ? (char)o->letter : '-', '\0' };

		group = heading(p, i, group);
		if (o->help)
			printf("option\t%s\t%s\t%s\t%s\t%s\t%s\n", command, o->name, letter, or_dash(o->arg), group,
			       o->help);
	}
}

void cli_print_options(const struct cli_program *program)
{
	struct parser p;

	for (const struct cli_command *c = program->commands; c->run; c++) {
		if (c->name && c->help)
			printf("command\t%s\t%s\t%s\n", c->name, or_dash(c->args), c->help);
		parser_init(&p, program, c, NULL);
		list_options(&p, or_dash(c->name), 0, p.nr_own);
		parser_free(&p);
	}
	parser_init(&p, program, NULL, NULL);
	list_options(&p, "-", 0, p.nr_options);
	parser_free(&p);
}

/* ---- parsing ------------------------------------------------------------------------------------ */

enum { GO_ON = -1 }; /* else an exit status */

static int remember(struct parser *p, const struct cli_option *opt, const char *value)
{
	if (opt == &builtin[BUILTIN_HELP])
		return print_help(p);
	if (opt == &builtin[BUILTIN_VERSION])
		return printf("%s %s\n", program_name, ft_version()) < 0;
	if (opt == &builtin[BUILTIN_LIST]) {
		cli_print_options(p->program);
		return 0;
	}
	if (p->nr_given == GIVEN_MAX) {
		cli_error("more than %d options", GIVEN_MAX);
		return CLI_USAGE;
	}
	p->given[p->nr_given++] = (struct given){ .opt = opt, .value = value };
	return GO_ON;
}

static const struct cli_option *option_of(const struct parser *p, int value)
{
	if (value >= LONG_BASE)
		return p->option[value - LONG_BASE];
	for (size_t i = 0; i < p->nr_options; i++)
		if (p->option[i]->letter == value)
			return p->option[i];
	return NULL;
}

/* getopt said that something is wrong with @word. */
static int refuse(const struct parser *p, int what, const char *word)
{
	const struct cli_option *o = optopt ? option_of(p, optopt) : NULL;
	size_t len = strcspn(word, "=");

	if (o && what == ':') {
		cli_error("option --%s needs a value: %s", o->name, o->arg);
		return usage_hint(p);
	}
	if (o) {
		cli_error("option --%s takes no value", o->name);
		return usage_hint(p);
	}
	if (strncmp(word, "--", 2) == 0)
		for (size_t i = 0; i < p->nr_options; i++)
			if (p->option[i]->help && strncmp(p->option[i]->name, word + 2, len - 2) == 0)
				return ambiguous_option(p, word + 2);
	return unknown_option(p, word);
}

/* Collects the options of argv[1..]; *@first gets the index of the first operand. */
static int collect(struct parser *p, int argc, char **argv, bool stop_at_operand, int *first)
{
	struct option table[OPTIONS_MAX + 1] = { { 0 } };
	char letters[2 * OPTIONS_MAX + 4] = "";
	size_t used = 0;
	int v, r;

	if (stop_at_operand)
		letters[used++] = '+';
	letters[used++] = ':';
	for (size_t i = 0; i < p->nr_options; i++) {
		const struct cli_option *o = p->option[i];

		table[i] =
			(struct option){ o->name, o->arg ? required_argument : no_argument, NULL, LONG_BASE + (int)i };
		if (o->letter)
			letters[used++] = (char)o->letter;
		if (o->letter && o->arg)
			letters[used++] = ':';
	}
	opterr = 0;
	optind = 0; /* glibc: begin anew */
	while ((v = getopt_long(argc, argv, letters, table, NULL)) != -1) {
		if (v == '?' || v == ':')
			return refuse(p, v, argv[optind - 1]);
		r = remember(p, option_of(p, v), optarg);
		if (r != GO_ON)
			return r;
	}
	*first = optind;
	return GO_ON;
}

/* ---- the config file ---------------------------------------------------------------------------- */

static const char *last_given(const struct parser *p, const char *name)
{
	for (size_t i = p->nr_given; i-- > 0;)
		if (strcmp(p->given[i].opt->name, name) == 0)
			return p->given[i].value;
	return NULL;
}

/* A key that is only a setting of the other role is checked and not used: one file may serve both hosts. */
static int set_foreign(const char *key, const char *value, struct ft_error *err)
{
	struct ft_config other;

	ft_config_init(&other, FT_ROLE_PRIMARY);
	return ft_config_set(&other, key, value, err);
}

static int set_flag_from_file(void *user, const struct cli_option *o, const char *value, struct ft_error *err)
{
	if (strcmp(value, "off") == 0)
		return 0;
	if (strcmp(value, "on") == 0)
		return o->set(user, o, NULL, err);
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg), "%s: '%.64s' is neither on nor off", o->name, value);
	return err->code;
}

static int set_from_file(void *user, const char *key, const char *value, struct ft_error *err)
{
	const struct parser *p = user;
	unsigned far = OPTIONS_MAX;
	const char *best = NULL;
	int r;

	for (size_t i = 0; i < p->nr_options; i++) {
		const struct cli_option *o = p->option[i];

		if (!o->set)
			continue;
		if (strcmp(o->name, key) == 0)
			return o->arg ? o->set(p->user, o, value, err) : set_flag_from_file(p->user, o, value, err);
		if (o->help)
			consider(key, o->name, &best, &far);
	}
	r = set_foreign(key, value, err);
	if (r == -ENOENT && best)
		snprintf(err->msg, sizeof(err->msg), "there is no option '%.64s'; did you mean '%s'?", key, best);
	return r;
}

static int read_config(struct parser *p, const char *path)
{
	struct ft_config *cfg = (struct ft_config *)((char *)p->user + p->command->config);
	struct ft_error err = { 0 };
	const char *section = last_given(p, "name");

	if (config_read(path, section, set_from_file, p, &section, &err) == 0) {
		if (section)
			cfg->name = section;
		return GO_ON;
	}
	cli_error("%s", err.msg);
	return CLI_USAGE;
}

/* ---- set and run -------------------------------------------------------------------------------- */

static int apply(struct parser *p)
{
	const struct cli_command *c = p->command;
	const char *path = last_given(p, "config");
	struct ft_error err = { 0 };
	int r;

	if (c->settings)
		ft_config_init((struct ft_config *)((char *)p->user + c->config),
			       c->settings & FT_OPT_PRIMARY ? FT_ROLE_PRIMARY : FT_ROLE_SECONDARY);
	if ((c->flags & CLI_CONFIG) && path) {
		r = read_config(p, path);
		if (r != GO_ON)
			return r;
	}
	for (size_t i = 0; i < p->nr_given; i++) {
		const struct given *g = &p->given[i];

		if (g->opt->set && g->opt->set(p->user, g->opt, g->value, &err) < 0) {
			cli_error("option --%s", err.msg);
			return usage_hint(p);
		}
	}
	return GO_ON;
}

static int check_operands(const struct parser *p, int n, char **operand)
{
	const struct cli_command *c = p->command;
	const char *args = c->args ? c->args : "nothing";

	if (n < c->min_args)
		cli_error("%s%sneeds %s", c->name ? c->name : "", c->name ? ": " : "", args);
	else if (c->max_args >= 0 && n > c->max_args)
		cli_error("%s%s'%s' is too much", c->name ? c->name : "", c->name ? ": " : "", operand[c->max_args]);
	else
		return GO_ON;
	return usage_hint(p);
}

/* @globals: what was given before the subcommand; its options are the program's, so they mean the same here. */
static int run_command(const struct cli_program *program, const struct cli_command *c, const struct parser *globals,
		       int argc, char **argv, void *user)
{
	struct parser p;
	int first, r;

	parser_init(&p, program, c, user);
	memcpy(p.given, globals->given, sizeof(p.given));
	p.nr_given = globals->nr_given;
	r = collect(&p, argc, argv, c->flags & CLI_REST, &first);
	if (r == GO_ON)
		r = check_operands(&p, argc - first, argv + first);
	if (r == GO_ON)
		r = apply(&p);
	parser_free(&p);
	return r == GO_ON ? c->run(user, argc - first, argv + first) : r;
}

static int unknown_command(const struct parser *p, const char *typed)
{
	const char *best = suggest_command(p->program, typed);

	if (best)
		cli_error("unknown command '%s' (did you mean '%s'?)", typed, best);
	else
		cli_error("unknown command '%s'", typed);
	return usage_hint(p);
}

int cli_main(const struct cli_program *program, int argc, char **argv, void *user)
{
	struct parser p;
	int first, r;

	program_name = program->name;
	parser_init(&p, program, NULL, user);
	if (!has_commands(program))
		return run_command(program, program->commands, &p, argc, argv, user);
	r = collect(&p, argc, argv, true, &first);
	if (r != GO_ON)
		return r;
	if (first == argc) {
		cli_error("a command is missing");
		return usage_hint(&p);
	}
	for (const struct cli_command *c = program->commands; c->run; c++)
		if (c->name && strcmp(c->name, argv[first]) == 0)
			return run_command(program, c, &p, argc - first, argv + first, user);
	if (program->other) /* its operands begin with the command itself */
		return run_command(program, program->other, &p, argc - first + 1, argv + first - 1, user);
	return unknown_command(&p, argv[first]);
}

/* ---- setters ------------------------------------------------------------------------------------ */

static void *member(void *user, const struct cli_option *opt)
{
	return (char *)user + opt->offset;
}

static int bad(struct ft_error *err, const struct cli_option *opt, const char *value, const char *right)
{
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg), "%s: '%.64s' is not %s", opt->name, value, right);
	return err->code;
}

int cli_set_flag(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	(void)value;
	(void)err;
	*(bool *)member(user, opt) = true;
	return 0;
}

int cli_set_string(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	(void)err;
	*(const char **)member(user, opt) = value;
	return 0;
}

int cli_set_u64(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	return human_parse_u64(value, member(user, opt)) ? bad(err, opt, value, "a number") : 0;
}

int cli_set_u32(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	uint64_t v;

	if (human_parse_u64(value, &v) || v > UINT32_MAX)
		return bad(err, opt, value, "a number of at most 4294967295");
	*(uint32_t *)member(user, opt) = (uint32_t)v;
	return 0;
}

int cli_set_size(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	return human_parse_size(value, member(user, opt)) ? bad(err, opt, value, "a size such as 64K, 256M or 1G") : 0;
}
