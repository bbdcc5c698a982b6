/* SPDX-License-Identifier: MIT */
/* say.h - filling struct ft_error: the sim sees ft/ft.h only, so it has its own. */
#ifndef SIM_SAY_H
#define SIM_SAY_H

#include <stdarg.h>
#include <stdio.h>
#include <ft/error.h>

__attribute__((format(printf, 3, 4))) static inline int say(struct ft_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	return code;
}

#endif
