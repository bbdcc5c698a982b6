/* SPDX-License-Identifier: MIT */
/* runtime.c - see runtime.h. */
#include "runtime.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int fail(struct ft_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct ft_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	return code;
}

int runtime_directory(char *path, size_t size, struct ft_error *err)
{
	const char *given = getenv("FT_RUNTIME_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
	int len;

	if (given && *given)
		len = snprintf(path, size, "%s", given);
	else if (geteuid() == 0)
		len = snprintf(path, size, "/run/ft");
	else if (xdg && *xdg)
		len = snprintf(path, size, "%s/ft", xdg);
	else
		len = snprintf(path, size, "/tmp/ft-%u", (unsigned)geteuid());
	return (size_t)len < size ? 0 : fail(err, -ENAMETOOLONG, "FT_RUNTIME_DIR, XDG_RUNTIME_DIR: too long a path");
}

int runtime_socket(char *path, size_t size, const char *name, struct ft_error *err)
{
	int r = runtime_directory(path, size, err);
	size_t used;

	if (r)
		return r;
	used = strlen(path);
	if ((size_t)snprintf(path + used, size - used, "/%s.sock", name) >= size - used)
		return fail(err, -ENAMETOOLONG, "no room for the socket of '%.64s'", name);
	return 0;
}

int runtime_make_directory(struct ft_error *err)
{
	char path[256];
	struct stat st;
	int r = runtime_directory(path, sizeof(path), err);

	if (r)
		return r;
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return fail(err, -errno, "%s: %s", path, strerror(errno));
	if (lstat(path, &st) < 0)
		return fail(err, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
		return fail(err, -EPERM, "%s: must be a folder of user %u that nobody else can write to", path,
			    (unsigned)geteuid());
	return 0;
}
