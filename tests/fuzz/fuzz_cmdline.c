/* SPDX-License-Identifier: MIT */
/* fuzz_cmdline.c - QEMU command lines, a word on each line: whatever stands there is refused with a sentence, or becomes a command line
 * that keeps the promises of cmdline.h, and that is accepted again as the one of a QEMU that runs. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cmdline.h"
#include "opts.h"

#define WORDS_MAX 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
	if (!holds)
		__builtin_trap();
}

static bool has(const struct cmdline *c, const char *word)
{
	for (size_t i = 1; i < c->argv.n; i++)
		if (!strcmp(c->argv.v[i], word))
			return true;
	return false;
}

static void check_consoles(const struct cmdline *c)
{
	must(c->nr_consoles <= CMDLINE_CONSOLES_MAX);
	for (unsigned i = 0; i < c->nr_consoles; i++) {
		char *again = NULL;

		must(!strncmp(c->console[i].socket, "/run/ft/vm/con-", 15) && !strchr(c->console[i].socket + 15, '/'));
		must(!cmdline_destination(c->console[i].destination, &again, NULL));
		must(again && !strcmp(again, c->console[i].destination));
		free(again);
	}
}

static void check_running(struct cmdline_request *req, const struct cmdline *first)
{
	struct cmdline again;
	struct ft_error err = { 0 };

	req->running = true;
	req->argv = first->argv.v;
	/* what passed only because of the flag needs it again */
	must(cmdline_rewrite(&again, req, &err) == 0);
	must(again.argv.n == first->argv.n && again.bare_stream);
	cmdline_free(&again);
}

static void try(char *const *argv, unsigned bits)
{
	static const char machines[] =
		"Supported machines are:\npc  x (alias of pc-i440fx-7.2)\npc-i440fx-7.2 x (default)\n";
	struct cmdline_request req = { .argv = argv,
				       .machines = bits & 1 ? machines : NULL,
				       .run_dir = "/run/ft/vm",
				       .shim = "/ft-shim.so",
				       .has_plugins = bits & 2,
				       .ram_fd = 5,
				       .is_secondary = bits & 4,
				       .unsafe_output = bits & 8 };
	struct ft_error err = { 0 };
	struct cmdline c;
	int rc = cmdline_rewrite(&c, &req, &err);
	char *line;

	must(rc == err.code && (rc ? rc < 0 && err.msg[0] : c.ram_bytes > 0 && c.ram_bytes % 4096 == 0));
	if (!rc) {
		must(has(&c, "-S") && has(&c, "-only-migratable") && (has(&c, "-display") || c.has_picture));
		must(has(&c, "-incoming") >= req.is_secondary);
		must(req.unsafe_output || c.unheld.n == 0);
		check_consoles(&c);
		line = cmdline_shell(c.argv.v);
		must(line && strlen(line) > 100);
		free(line);
		check_running(&req, &c);
	}
	cmdline_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text, *argv[WORDS_MAX + 1], *at;
	int n = 0;

	if (size < 1)
		return 0;
	text = malloc(size);
	if (!text)
		return 0;
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	for (at = text; n < WORDS_MAX && (argv[n] = strsep(&at, "\n")); n++)
		;
	argv[n] = NULL;
	try(argv, data[0]);
	free(text);
	return 0;
}
