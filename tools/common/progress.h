/* SPDX-License-Identifier: MIT */
/* progress.h - how far a long step is: a bar that moves on a terminal, a line for each tenth in a pipe or a log, nothing
 * with --quiet.  One thread at a time. */
#ifndef FT_TOOLS_PROGRESS_H
#define FT_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	/* the caller sets these */
	int fd;		   /* where it goes; usually STDERR_FILENO */
	bool quiet;
	const char *what;  /* "full copy" */
	const char *unit;  /* "pages"; NULL: octets, written as KiB, MiB ... */
	/* ours */
	bool is_terminal, is_shown;
	uint64_t began_ns, shown_ns;
	int tenth;
};

/* progress_begin - with fd, quiet, what and unit set. */
void progress_begin(struct progress *p);

/* progress_step - @done of @total; @total may grow.  Draws at most ten times a second. */
void progress_step(struct progress *p, uint64_t done, uint64_t total);

/* progress_end - a last line with @verdict: "done", "failed: ..."; takes the bar away. */
void progress_end(struct progress *p, const char *verdict);

#endif
