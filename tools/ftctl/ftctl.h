/* SPDX-License-Identifier: MIT */
/* ftctl.h - the parts of ftctl: client.c asks, report.c puts answers into words, top.c refreshes, main.c has the table. */
#ifndef FT_FTCTL_H
#define FT_FTCTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit status, documented in ftctl(1). */
enum {
	EXIT_OK = 0,
	EXIT_ERROR = 1,
	EXIT_USAGE = 2,
	EXIT_PEER_ALIVE = 3,
	EXIT_NO_IMAGE = 4,
	EXIT_NOT_SECONDARY = 5,
	EXIT_NOT_PROTECTED = 6,
	EXIT_NO_PROCESS = 7,
	EXIT_TIMEOUT = 8,
	EXIT_BUSY = 9,
	EXIT_NOT_GRANTED = 10,
};

struct args {
	const char *socket, *name;
	bool json, quiet, force;
	uint32_t timeout_ms; /* of checkpoint, pause, resume, wait */
	uint32_t delay_ms, count; /* of top */
};

/* client_socket - the path that -s, -n, $FT_SOCKET or the only socket there is says; false: told on stderr, *@status set. */
bool client_socket(const struct args *args, char *path, size_t size, int *status);

/* client_open - connect; the descriptor, or -1 with a sentence in @why. */
int client_open(const char *path, char *why, size_t size);

/* client_ask - send @request (stolen) and read the reply within @timeout_ms.  NULL: the line is dead, see @why. */
json_t *client_ask(int fd, json_t *request, uint32_t timeout_ms, char *why, size_t size);

/* client_command - connect and ask; a lost connection is told on stderr.  *@status gets the exit status that the reply
 * means; the caller owns the reply (NULL: none). */
json_t *client_command(const struct args *args, json_t *request, uint32_t timeout_ms, int *status);

/* report_status - what `status` prints; @stats may be NULL. */
void report_status(FILE *out, const json_t *status, const json_t *stats);
/* report_machine - what hangs on the machine, of the reply to `machine` (ftqemu(1)): network cards and disks. */
void report_machine(FILE *out, const json_t *machine);
/* report_stats - the metrics that this side has, and all counters. */
void report_stats(FILE *out, const json_t *stats);

/* Fields of a data object; 0 or "" if they are not there. */
uint64_t field_u64(const json_t *object, const char *key);
const char *field_text(const json_t *object, const char *key);

int top_run(const struct args *args);

#endif
