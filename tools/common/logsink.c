/* SPDX-License-Identifier: MIT */
/* logsink.c - see logsink.h.  The descriptor is replaced with dup3(), so a writer on another thread finds it open at every
 * instant; a line that races with a reopen goes to the old or the new file, whole. */
#include "logsink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_fd = STDERR_FILENO;
static atomic_int log_level = FT_LOG_INFO;
static atomic_bool is_journal;
static char *file; /* main thread only */

static const char *const level_name[] = { "error", "warn", "info", "debug" };

/* systemd sets JOURNAL_STREAM to device and inode of what it connected: is stderr still that? */
static bool stderr_is_journal(void)
{
	const char *text = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return text && sscanf(text, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

static size_t put_time(char *buf, size_t size)
{
	struct timespec now;
	struct tm tm;
	size_t used;

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	used = strftime(buf, size, "%Y-%m-%d %H:%M:%S", &tm);
	return used + (size_t)snprintf(buf + used, size - used, ".%03ld ", now.tv_nsec / 1000000);
}

static size_t put_head(char *buf, size_t size, enum ft_log_level level, const char *module)
{
	static const int syslog_level[] = { 3, 4, 6, 7 };
	size_t used;

	if (atomic_load(&is_journal))
		return (size_t)snprintf(buf, size, "<%d>%s: ", syslog_level[level], module);
	used = put_time(buf, size);
	return used + (size_t)snprintf(buf + used, size - used, "%-5s %s: ", level_name[level], module);
}

/* Also the callback of ft_log_set(). */
static void write_line(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	char line[1280];
	size_t used;
	ssize_t r;

	(void)user;
	if ((int)level > atomic_load(&log_level) || level > FT_LOG_DEBUG)
		return;
	used = put_head(line, 128, level, module);
	used += (size_t)snprintf(line + used, sizeof(line) - used - 1, "%s", msg);
	if (used > sizeof(line) - 2)
		used = sizeof(line) - 2; /* was cut */
	for (size_t i = 0; i < used; i++)
		if ((unsigned char)line[i] < ' ')
			line[i] = ' '; /* a peer's text may not forge lines */
	line[used++] = '\n';
	r = write(atomic_load(&log_fd), line, used);
	(void)r; /* a full disk must not stop the machine */
}

void logsink_line(enum ft_log_level level, const char *module, const char *fmt, ...)
{
	char msg[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	write_line(NULL, level, module, msg);
}

int logsink_level(const char *text, enum ft_log_level *out)
{
	for (enum ft_log_level l = FT_LOG_ERROR; l <= FT_LOG_DEBUG; l++)
		if (strcmp(text, level_name[l]) == 0) {
			*out = l;
			return 0;
		}
	return -EINVAL;
}

int logsink_reopen(struct ft_error *err)
{
	int fd, now = atomic_load(&log_fd);

	if (!file)
		return 0;
	fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0) {
		err->code = -errno;
		snprintf(err->msg, sizeof(err->msg), "log file %.300s: %s", file, strerror(errno));
		return err->code;
	}
	if (now == STDERR_FILENO) {
		atomic_store(&log_fd, fd);
	} else {
		dup3(fd, now, O_CLOEXEC);
		close(fd);
	}
	return 0;
}

int logsink_open(const char *path, enum ft_log_level level, struct ft_error *err)
{
	int r = 0;

	atomic_store(&log_level, (int)level);
	atomic_store(&is_journal, !path && stderr_is_journal());
	if (path) {
		free(file);
		file = strdup(path);
		r = file ? logsink_reopen(err) : -ENOMEM;
	}
	if (!r)
		ft_log_set(write_line, NULL, level);
	return r;
}

void logsink_close(void)
{
	int fd = atomic_exchange(&log_fd, STDERR_FILENO);

	ft_log_set(NULL, NULL, FT_LOG_ERROR);
	if (fd != STDERR_FILENO)
		close(fd);
	free(file);
	file = NULL;
}
