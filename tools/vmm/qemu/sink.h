/* SPDX-License-Identifier: MIT */
/* sink.h - where the output of one guest console goes and its input comes from: the terminal, a file, a pseudo
 * terminal, a Unix or TCP socket (server or client).  As with QEMU, output that nobody is connected to take is lost.
 * Never blocks.  sink_write() may be called from any thread beside the others; the rest by one thread. */
#ifndef FT_QEMU_SINK_H
#define FT_QEMU_SINK_H

#include <poll.h>
#include <stdbool.h>
#include "util.h"

struct sink;

/* sink_open - @destination as cmdline_console.c wrote it ("file,path=log").  @keep: an existing file goes on and is not
 * begun anew.  @said: gets what the user has to know ("pty /dev/pts/3"), or "". */
int sink_open(struct sink **out, const char *destination, bool keep, char *said, size_t size, struct ft_error *err);
void sink_close(struct sink *s); /* a terminal gets its settings back */
void sink_restore(const struct sink *s); /* only that */

/* sink_write - returns how many octets were taken; less than @len: sink_poll() will say when there is room. */
size_t sink_write(struct sink *s, const void *buf, size_t len);
/* sink_poll - add what to wait for at @p (room for 2); returns how many were added.  @input: input is wanted. */
int sink_poll(struct sink *s, struct pollfd *p, bool input);
/* sink_handle - after poll(): accepts, notices closed clients.  Returns octets of input put into @buf; *@writable: there is
 * room again (or nobody is there any more). */
size_t sink_handle(struct sink *s, const struct pollfd *p, int n, void *buf, size_t size, bool *writable);

#endif
