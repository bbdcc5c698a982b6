/* SPDX-License-Identifier: MIT */
/* log.c - see log.h.  The sink is replaced as one pointer, so a reader sees the old or the new one whole;
 * old sinks are never freed (they are a few octets and are set once or twice in a process). */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "faultpoint.h"
struct sink {
	void (*fn)(void *user, enum ft_log_level level, const char *module, const char *msg);
	void *user;
	enum ft_log_level level;
	struct sink *older; /* keeps it reachable for leak checkers */
};

static _Atomic(struct sink *) current; /* release here pairs with the acquire in log_line() */

void ft_log_set(void (*fn)(void *user, enum ft_log_level level, const char *module, const char *msg), void *user,
		enum ft_log_level level)
{
	struct sink *s = FT_FAULT("log/sink") ? NULL : malloc(sizeof(*s));

	if (!s)
		return;
	*s = (struct sink){ .fn = fn, .user = user, .level = level, .older = atomic_load(&current) };
	atomic_store_explicit(&current, s, memory_order_release);
}

void log_line(enum ft_log_level level, const char *module, const char *fmt, ...)
{
	const struct sink *s = atomic_load_explicit(&current, memory_order_acquire);
	char msg[1024];
	va_list ap;

	if (!s || !s->fn || level > s->level)
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	s->fn(s->user, level, module, msg);
}
