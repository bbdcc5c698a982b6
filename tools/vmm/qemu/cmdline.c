/* SPDX-License-Identifier: MIT */
/* cmdline.c - see cmdline.h: the walk over the words, and what callers see.
 * struct walk is the state of one pass over the words; handlers append to the new command line.  One pre-pass finds what
 * later words say about earlier ones (-nodefaults, -nographic, QMP chardevs).  What is done with an option says the table
 * in cmdline_refuse.c; cmdline_rewrite.c adds what is ours.
 * Pure functions of one thread; the caller owns what comes out. */
#include "cmdline_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

/* ---- the passes --------------------------------------------------------------------------------- */

/* What -mon says about chardevs: those in control mode are somebody's QMP and stay as they are. */
static void note_monitor(struct walk *w, const char *arg)
{
	struct opts o;
	const char *mode, *id;

	w->has_monitor = true;
	if (opts_parse(&o, arg, "chardev", NULL))
		return;
	mode = opts_get(&o, "mode");
	id = opts_get(&o, "chardev");
	if (mode && id && !strcmp(mode, "control"))
		strv_add(&w->control, id);
	opts_free(&o);
}

static bool names_type(const char *arg)
{
	struct opts o;
	bool named;

	if (opts_parse(&o, arg, "type", NULL))
		return false;
	named = opts_get(&o, "type");
	opts_free(&o);
	return named;
}

static void note_word(struct walk *w, const char *name, const char *arg)
{
	if (!strcmp(name, "nodefaults"))
		w->nodefaults = true;
	else if (!strcmp(name, "nographic"))
		w->nographic = true;
	else if (!strcmp(name, "serial") || (!strcmp(name, "device") && !strncmp(arg, "isa-serial", 10)))
		w->has_serial = true;
	else if (!strcmp(name, "monitor") || !strcmp(name, "qmp") || !strcmp(name, "qmp-pretty"))
		w->has_monitor = true;
	else if (!strcmp(name, "net") || !strcmp(name, "nic") || !strcmp(name, "netdev"))
		w->has_net = true;
	else if (!strcmp(name, "vnc"))
		w->has_display |= strcmp(arg, "none") != 0; /* without a server QEMU opens a window */
	else if (!strcmp(name, "display") || !strcmp(name, "spice") || !strcmp(name, "curses") || !strcmp(name, "sdl"))
		w->has_display = true;
	else if (!strcmp(name, "m"))
		w->has_m = true;
	else if (!strcmp(name, "no-user-config"))
		w->has_user_config = true;
	else if (!strcmp(name, "only-migratable"))
		w->has_only_migratable = true;
	else if (!strcmp(name, "mon"))
		note_monitor(w, arg);
	else if (!strcmp(name, "machine") || !strcmp(name, "M"))
		w->has_machine_type |= names_type(arg);
}

/* Calls @each for every option; words are checked for being options that we know. */
static int for_each(struct walk *w, int (*each)(struct walk *w, const struct rule *rule, const char *arg))
{
	char *const *argv = w->req->argv;
	const struct rule *rule;
	const char *arg;
	int rc = 0, i;

	for (i = 1; !rc && argv[i]; i++) {
		rule = cmdline_find_rule(argv[i]);
		if (!rule && argv[i][0] != '-')
			return fail(w->err, -ENOTSUP,
				    "%.120s: a disk given without an option is of a format that QEMU guesses; use "
				    "-drive file=...,format=...",
				    argv[i]);
		if (!rule)
			return fail(
				w->err, -ENOTSUP,
				"%.120s: ftqemu does not know this option and cannot tell what it does to protection",
				argv[i]);
		arg = NULL;
		if (rule->has_arg) {
			arg = argv[i + 1];
			if (!arg)
				return fail(w->err, -EINVAL, "-%s: wants an argument", rule->name);
			i++;
		}
		rc = each(w, rule, arg);
	}
	return rc;
}

static int pre_pass(struct walk *w, const struct rule *rule, const char *arg)
{
	note_word(w, rule->name, arg);
	return 0;
}

static int main_pass(struct walk *w, const struct rule *rule, const char *arg)
{
	if (w->req->running && rule->ok_running)
		return cmdline_pass(w, rule->name, arg, NULL);
	return rule->handle(w, rule->name, arg, rule->why);
}

static void free_route(struct cmdline_route *r)
{
	free(r->id);
	free(r->socket);
	free(r->destination);
}

int cmdline_rewrite(struct cmdline *out, const struct cmdline_request *req, struct ft_error *err)
{
	struct walk w = { .req = req, .out = out, .err = err };
	int rc;

	*out = (struct cmdline){ 0 };
	if (!req->argv[0])
		return fail(err, -EINVAL, "no QEMU command line; give it behind --");
	strv_add(&out->argv, req->argv[0]);
	rc = for_each(&w, pre_pass);
	if (!rc)
		rc = cmdline_check_defaults(&w);
	if (!rc)
		rc = for_each(&w, main_pass);
	if (!rc && !req->running)
		rc = cmdline_add(&w);
	if (!rc && (out->argv.oom || out->notes.oom || out->unheld.oom || w.control.oom || w.disk_files.oom))
		rc = cmdline_no_memory(&w);
	strv_free(&w.control);
	strv_free(&w.disk_files);
	return rc;
}

int cmdline_add_route(struct cmdline_route *list, unsigned *nr, unsigned max, const char *id, const char *socket,
		      const char *destination)
{
	struct cmdline_route *r = &list[*nr];

	if (*nr == max)
		return -E2BIG;
	*r = (struct cmdline_route){ strdup(id), strdup(socket), strdup(destination) };
	if (!r->id || !r->socket || !r->destination) {
		free_route(r);
		return -ENOMEM;
	}
	++*nr;
	return 0;
}

void cmdline_free(struct cmdline *c)
{
	unsigned i;

	strv_free(&c->argv);
	strv_free(&c->notes);
	strv_free(&c->unheld);
	for (i = 0; i < c->nr_consoles; i++)
		free_route(&c->console[i]);
	for (i = 0; i < c->nr_nics; i++)
		free_route(&c->nic[i]);
	free(c->name);
	*c = (struct cmdline){ 0 };
}

/* In single quotes where a shell would see anything but letters. */
static size_t quote(char *to, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=@+%";
	char *start = to;

	if (*word && strspn(word, plain) == strlen(word))
		return (size_t)(stpcpy(to, word) - start);
	*to++ = '\'';
	for (; *word; word++) {
		if (*word == '\'')
			to = stpcpy(to, "'\\''");
		else
			*to++ = *word;
	}
	*to++ = '\'';
	*to = '\0';
	return (size_t)(to - start);
}

char *cmdline_shell(char *const *argv)
{
	size_t size = 1, i;
	char *out, *to;

	for (i = 0; argv[i]; i++)
		size += strlen(argv[i]) * 4 + 3;
	out = malloc(size);
	if (!out)
		return NULL;
	to = out;
	*to = '\0';
	for (i = 0; argv[i]; i++) {
		if (i)
			*to++ = ' ';
		to += quote(to, argv[i]);
	}
	return out;
}
