/* SPDX-License-Identifier: MIT */
/* console.h - the guest's character devices (serial ports, virtio consoles, monitors) on their way through us: what the
 * guest sends is held by epoch (ft_output_* of ft.h), what is typed goes to it at once.
 *
 * One thread moves octets; consoles_cut(), consoles_drop() are called on the session's epoch thread and consoles_release()
 * on any of its threads.  When a queue is full the guest's device is not read any more, so the guest waits, and an
 * early end of the epoch is asked for. */
#ifndef FT_QEMU_CONSOLE_H
#define FT_QEMU_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>
#include "cmdline.h"
#include "util.h"

struct consoles;

struct consoles_config {
	const struct cmdline_route *console;
	unsigned nr;
	bool keep;	   /* files go on, see sink_open() */
	uint64_t hold_bytes; /* what each may hold */
	/* [console thread] Output waits; an epoch should end because there is no more room.  May be NULL. */
	void (*has_output)(void *user);
	void (*want_cut)(void *user);
	/* [caller] What the user has to know. */
	void (*say)(void *user, const char *text);
	void *user;
};

/* consoles_open - connect to QEMU's sockets, open the destinations, start the thread. */
int consoles_open(struct consoles **out, const struct consoles_config *config, struct ft_error *err);
/* consoles_close - what may leave is given @grace_ms to do so. */
void consoles_close(struct consoles *c, unsigned grace_ms);

/* consoles_abandon - the process ends at once and nothing that is held may leave: only terminals are put right. */
void consoles_abandon(struct consoles *c);

void consoles_cut(struct consoles *c, uint64_t epoch);
void consoles_release(struct consoles *c, uint64_t epoch);
void consoles_drop(struct consoles *c);
uint64_t consoles_held(struct consoles *c);

#endif
