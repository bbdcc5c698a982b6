/* SPDX-License-Identifier: MIT */
/* proc.h - one side of a protection in a process of its own, to be stopped and killed.
 * The child is this same program, started again with "--role NAME": main() must begin with proc_main().  It talks in lines: commands
 * on its standard input, answers on its standard output; what its guest sends goes to descriptor 3. */
#ifndef TEST_PROC_H
#define TEST_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "sim.h"

struct proc {
	pid_t pid;
	int in, out, output; /* write commands; read answers; read what the guest sends */
	char buf[4096];	     /* of `out`, not yet a line */
	size_t len;
};

/* proc_main - true if this is a child: then its exit status is in *@status.  Roles: "primary URI", "secondary [URI]". */
bool proc_main(int argc, char **argv, int *status);

/* proc_start - start the child.  @cfg of its sim travels with it; @where: the URI of a primary's peer, or where a secondary
 * listens, NULL: a port of 127.0.0.1. */
void proc_start(struct proc *p, const char *role, const char *where, const char *settings);
/* proc_line - its next line, without the newline; false after @timeout_ms or at its end. */
bool proc_line(struct proc *p, char *line, size_t size, unsigned timeout_ms);
/* proc_expect - read lines until one begins with @start; what follows is put into @rest.  Ends the test if none comes. */
void proc_expect(struct proc *p, const char *start, char *rest, size_t size);
/* proc_ask - send a command, expect the answer that begins with @start. */
void proc_ask(struct proc *p, const char *command, const char *start, char *rest, size_t size);
void proc_signal(struct proc *p, int sig);
/* proc_drain - hand all that the guest sent so far to @client. */
void proc_drain(struct proc *p, struct sim_client *client);
void proc_end(struct proc *p); /* SIGKILL, if it still lives, and wait */

#endif
