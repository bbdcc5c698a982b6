/* SPDX-License-Identifier: MIT */
/* err.c - see err.h. */
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* By way of a second buffer: err->msg may be among the arguments. */
static void put(struct ft_error *err, int code, const char *fmt, va_list ap)
{
	char text[FT_ERROR_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	strcpy(err->msg, text);
	err->code = code;
}

int err_set(struct ft_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	put(err, code, fmt, ap);
	va_end(ap);
	return code;
}

int err_sys(struct ft_error *err, int code, const char *fmt, ...)
{
	const char *text = strerrordesc_np(-code); /* unlike strerror() the same in every locale */
	va_list ap;
	size_t used;

	if (!err)
		return code;
	va_start(ap, fmt);
	put(err, code, fmt, ap);
	va_end(ap);
	used = strlen(err->msg);
	snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", text ? text : "unknown error");
	return code;
}

int err_prefix(struct ft_error *err, const char *fmt, ...)
{
	char old[FT_ERROR_MAX];
	va_list ap;
	size_t used;

	if (!err)
		return 0;
	memcpy(old, err->msg, sizeof(old));
	va_start(ap, fmt);
	put(err, err->code, fmt, ap);
	va_end(ap);
	used = strlen(err->msg);
	snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", old);
	return err->code;
}

void err_clear(struct ft_error *err)
{
	if (!err)
		return;
	err->code = 0;
	err->msg[0] = '\0';
}
