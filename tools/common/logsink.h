/* SPDX-License-Identifier: MIT */
/* logsink.h - where a program's log lines, and libft's, go: stderr with time and level; stderr with <N> in front of each
 * line where that is the journal; or a file.  Any thread; each line is one write(). */
#ifndef FT_TOOLS_LOGSINK_H
#define FT_TOOLS_LOGSINK_H

#include <ft/ft.h>

/* logsink_open - take over libft's log lines of at most @level.  @path: file to append to, or NULL for stderr. */
int logsink_open(const char *path, enum ft_log_level level, struct ft_error *err);

/* logsink_line - a line of the program's own. */
void logsink_line(enum ft_log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* logsink_level - "error", "warn", "info", "debug"; -EINVAL. */
int logsink_level(const char *text, enum ft_log_level *out);

/* logsink_reopen - after the file was moved away (SIGHUP); nothing without a file. */
int logsink_reopen(struct ft_error *err);

/* logsink_close - libft's lines go nowhere again.  Afterwards logsink_line() writes to stderr. */
void logsink_close(void);

#endif
