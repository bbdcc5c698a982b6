/* SPDX-License-Identifier: MIT */
/* util.c - see util.h. */
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void put(struct ft_error *err, int code, const char *fmt, va_list ap)
{
	err->code = code;
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
}

int fail(struct ft_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	put(err, code, fmt, ap);
	va_end(ap);
	return code;
}

int fail_sys(struct ft_error *err, int code, const char *fmt, ...)
{
	char text[128];
	va_list ap;
	size_t used;

	if (!err)
		return code;
	va_start(ap, fmt);
	put(err, code, fmt, ap);
	va_end(ap);
	used = strlen(err->msg);
	snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", strerror_r(-code, text, sizeof(text)));
	return code;
}

int fail_in(struct ft_error *err, const char *fmt, ...)
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

uint64_t util_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t util_deadline_ms(uint64_t ms)
{
	return util_now_ns() + ms * UTIL_NS_PER_MS;
}

int util_left_ms(uint64_t deadline)
{
	uint64_t now = util_now_ns(), ms;

	if (now >= deadline)
		return 0;
	ms = (deadline - now + UTIL_NS_PER_MS - 1) / UTIL_NS_PER_MS;
	return ms > 3600000 ? 3600000 : (int)ms;
}

void util_sleep_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Takes @str, which is freed with the list (or at once when there is no memory). */
static void take(struct strv *s, char *str)
{
	char **grown;

	if (!str) {
		s->oom = true;
		return;
	}
	if (s->n + 2 > s->room) {
		grown = realloc(s->v, (s->room * 2 + 16) * sizeof(*grown));
		if (!grown) {
			s->oom = true;
			free(str);
			return;
		}
		s->v = grown;
		s->room = s->room * 2 + 16;
	}
	s->v[s->n++] = str;
	s->v[s->n] = NULL;
}

void strv_add(struct strv *s, const char *str)
{
	take(s, strdup(str));
}

void strv_addf(struct strv *s, const char *fmt, ...)
{
	char *str = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&str, fmt, ap) < 0)
		str = NULL;
	va_end(ap);
	take(s, str);
}

void strv_free(struct strv *s)
{
	size_t i;

	for (i = 0; i < s->n; i++)
		free(s->v[i]);
	free(s->v);
	*s = (struct strv){ 0 };
}

void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int fd_set_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

static int unix_address(struct sockaddr_un *a, const char *path, struct ft_error *err)
{
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(a->sun_path))
		return fail(err, -ENAMETOOLONG, "socket %s: the path is longer than %zu characters", path,
			    sizeof(a->sun_path) - 1);
	memcpy(a->sun_path, path, strlen(path) + 1);
	return 0;
}

int unix_connect(const char *path, uint64_t deadline, struct ft_error *err)
{
	struct sockaddr_un a;
	int fd, rc;

	rc = unix_address(&a, path, err);
	if (rc)
		return rc;
	for (;;) {
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return fail_sys(err, -errno, "socket");
		if (!connect(fd, (struct sockaddr *)&a, sizeof(a)))
			return fd;
		rc = -errno;
		close(fd);
		if ((rc != -ENOENT && rc != -ECONNREFUSED && rc != -EAGAIN) || util_now_ns() >= deadline)
			return fail_sys(err, rc, "socket %s", path);
		util_sleep_ms(5);
	}
}

int unix_listen(const char *path, struct ft_error *err)
{
	struct sockaddr_un a;
	int fd, rc;

	rc = unix_address(&a, path, err);
	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail_sys(err, -errno, "socket");
	unlink(path);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 4)) {
		rc = fail_sys(err, -errno, "socket %s", path);
		close(fd);
		return rc;
	}
	return fd;
}

int fd_send(int sock, int fd, const void *buf, size_t len)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;
	ssize_t n;

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

int fd_receive(int sock, uint64_t deadline)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char octet;
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	struct pollfd p = { .fd = sock, .events = POLLIN };
	struct cmsghdr *c;
	ssize_t n;
	int fd;

	do
		n = poll(&p, 1, util_left_ms(deadline));
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? -errno : -ETIMEDOUT;
	n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n <= 0)
		return n ? -errno : -EPIPE;
	c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EBADMSG;
	memcpy(&fd, CMSG_DATA(c), sizeof(int));
	return fd;
}
