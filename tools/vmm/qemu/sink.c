/* SPDX-License-Identifier: MIT */
/* sink.c - see sink.h.
 * One descriptor to write to, one to read from (the same for sockets and pseudo terminals), perhaps one to accept on.
 * Only the thread that polls changes them, under `lock`; sink_write(), on a session's thread, reads them under it. */
#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include "opts.h"

#define CONNECT_MS 3000

struct sink {
	pthread_mutex_t lock;
	int out, in, listener; /* -1: none */
	bool is_socket;        /* out is a socket: no SIGPIPE, and its end is noticed by reading */
	bool is_pty, is_stdio;
	bool waits;    /* the last write was short */
	bool broken;   /* a write failed: to be closed by the thread that owns the descriptors */
	uint64_t lost; /* octets that a full disk did not take */
	bool has_termios;
	struct termios termios; /* as it was */
	char *path;             /* of a listening Unix socket, to be removed */
};

/* ---- the terminal ------------------------------------------------------------------------------- */

/* As QEMU sets it: single keys, no echo; ^C goes to the guest only where the user shares the terminal with a monitor. */
static void set_raw(struct sink *s, bool signals)
{
	struct termios t;

	if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &t))
		return;
	s->termios = t;
	s->has_termios = true;
	t.c_iflag &= ~(tcflag_t)(IGNBRK | BRKINT | PARMRK | ISTRIP | INLCR | IGNCR | ICRNL | IXON);
	t.c_oflag |= OPOST;
	t.c_lflag &= ~(tcflag_t)(ECHO | ECHONL | ICANON | IEXTEN);
	if (!signals)
		t.c_lflag &= ~(tcflag_t)ISIG;
	t.c_cc[VMIN] = 1;
	t.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSANOW, &t);
}

/* A description of our own that does not block: setting O_NONBLOCK on the one we share with the shell would break the
 * shell.  A regular file never blocks, and a new description would begin at its start. */
static int open_stdout(struct sink *s)
{
	struct stat st;
	int fd;

	if (fstat(STDOUT_FILENO, &st))
		return -errno;
	s->is_socket = S_ISSOCK(st.st_mode);
	if (!s->is_socket && !S_ISREG(st.st_mode)) {
		fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
		if (fd >= 0)
			return fd;
	}
	fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	return fd < 0 ? -errno : fd;
}

static int open_stdio(struct sink *s, const struct opts *o, struct ft_error *err)
{
	s->is_stdio = true;
	s->out = open_stdout(s);
	if (s->out < 0)
		return fail_sys(err, s->out, "stdout");
	/* in the background reading the terminal would stop us */
	if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) == getpgrp())
		s->in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	set_raw(s, opts_is_on(o, "signal", true));
	return 0;
}

/* ---- the others --------------------------------------------------------------------------------- */

static int open_file(struct sink *s, const struct opts *o, bool keep, struct ft_error *err)
{
	const char *path = opts_get(o, "path");

	keep |= opts_is_on(o, "append", false);
	s->out = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (keep ? 0 : O_TRUNC), 0666);
	return s->out < 0 ? fail_sys(err, -errno, "%s", path) : 0;
}

static int open_pty(struct sink *s, char *said, size_t size, struct ft_error *err)
{
	char name[64];
	int slave;

	s->is_pty = true;
	s->out = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (s->out < 0 || grantpt(s->out) || unlockpt(s->out) || ptsname_r(s->out, name, sizeof(name)) ||
	    fd_set_nonblock(s->out))
		return fail_sys(err, -errno, "pseudo terminal");
	/* opened and closed once, so that it says "hung up" from now on while nobody has it open */
	slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	fd_close(&slave);
	s->in = s->out;
	snprintf(said, size, "pty %s", name);
	return 0;
}

static int resolve(const struct opts *o, bool passive, struct addrinfo **list, struct ft_error *err)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0 };
	const char *host = opts_get(o, "host");
	int rc = getaddrinfo(*host ? host : NULL, opts_get(o, "port"), &hints, list);

	return rc ? fail(err, -EINVAL, "%s:%s: %s", host, opts_get(o, "port"), gai_strerror(rc)) : 0;
}

static int tcp_listen(const struct opts *o, struct ft_error *err)
{
	struct addrinfo *list, *a;
	int fd = -1, on = 1, rc;

	rc = resolve(o, true, &list, err);
	if (rc)
		return rc;
	for (a = list; a; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
		    !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1))
			break;
		rc = -errno;
		fd_close(&fd);
	}
	freeaddrinfo(list);
	return fd >= 0 ? fd : fail_sys(err, rc, "%s:%s", opts_get(o, "host"), opts_get(o, "port"));
}

static int tcp_connect(const struct opts *o, struct ft_error *err)
{
	struct pollfd p = { .events = POLLOUT };
	struct addrinfo *list, *a;
	socklen_t len = sizeof(int);
	int fd = -1, rc, so_error;

	rc = resolve(o, false, &list, err);
	if (rc)
		return rc;
	for (a = list; a; a = a->ai_next) {
		so_error = ETIMEDOUT;
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd >= 0 && (!connect(fd, a->ai_addr, a->ai_addrlen) || errno == EINPROGRESS)) {
			p.fd = fd;
			if (poll(&p, 1, CONNECT_MS) > 0 && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &so_error, &len) &&
			    !so_error)
				break;
		} else {
			so_error = errno;
		}
		rc = -so_error;
		fd_close(&fd);
	}
	freeaddrinfo(list);
	return fd >= 0 ? fd : fail_sys(err, rc, "%s:%s", opts_get(o, "host"), opts_get(o, "port"));
}

static int open_socket(struct sink *s, const struct opts *o, struct ft_error *err)
{
	const char *path = opts_get(o, "path");
	int fd;

	s->is_socket = true;
	if (opts_is_on(o, "server", false)) {
		s->listener = path ? unix_listen(path, err) : tcp_listen(o, err);
		if (s->listener >= 0 && path)
			s->path = strdup(path);
		return s->listener < 0 ? s->listener : 0;
	}
	fd = path ? unix_connect(path, util_deadline_ms(CONNECT_MS), err) : tcp_connect(o, err);
	if (fd < 0)
		return fd;
	fd_set_nonblock(fd);
	s->out = s->in = fd;
	return 0;
}

int sink_open(struct sink **out, const char *destination, bool keep, char *said, size_t size, struct ft_error *err)
{
	const char *backend;
	struct opts o;
	struct sink *s;
	int rc;

	*out = NULL;
	said[0] = '\0';
	rc = opts_parse(&o, destination, "backend", err);
	if (rc)
		return rc;
	s = calloc(1, sizeof(*s));
	if (!s) {
		opts_free(&o);
		return fail(err, -ENOMEM, "no memory");
	}
	pthread_mutex_init(&s->lock, NULL);
	s->out = s->in = s->listener = -1;
	backend = opts_get(&o, "backend");
	if (!backend)
		rc = fail(err, -EINVAL, "no destination");
	else if (!strcmp(backend, "stdio"))
		rc = open_stdio(s, &o, err);
	else if (!strcmp(backend, "file") && opts_get(&o, "path"))
		rc = open_file(s, &o, keep, err);
	else if (!strcmp(backend, "pty"))
		rc = open_pty(s, said, size, err);
	else if (!strcmp(backend, "socket") && (opts_get(&o, "path") || (opts_get(&o, "host") && opts_get(&o, "port"))))
		rc = open_socket(s, &o, err);
	else if (strcmp(backend, "null") != 0)
		rc = fail(err, -EINVAL, "%.100s: no destination for a console", destination);
	opts_free(&o);
	if (rc) {
		sink_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void sink_restore(const struct sink *s)
{
	if (s->has_termios)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &s->termios);
}

void sink_close(struct sink *s)
{
	if (!s)
		return;
	sink_restore(s);
	if (s->in != s->out)
		fd_close(&s->in);
	fd_close(&s->out);
	fd_close(&s->listener);
	if (s->path)
		unlink(s->path);
	free(s->path);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* ---- octets ------------------------------------------------------------------------------------- */

static bool pty_is_open(const struct sink *s)
{
	struct pollfd p = { .fd = s->out, .events = POLLOUT };

	return poll(&p, 1, 0) >= 0 && !(p.revents & POLLHUP);
}

static void lose_client_locked(struct sink *s)
{
	if (s->in != s->out)
		fd_close(&s->in);
	fd_close(&s->out);
	s->in = -1;
	s->waits = s->broken = false;
}

/* Into a file that was full and has room again. */
static void mark_gap_locked(struct sink *s)
{
	char text[80];
	int len;

	if (!s->lost)
		return;
	len = snprintf(text, sizeof(text), "\n[ft: %llu octets are missing here: no space left]\n",
		       (unsigned long long)s->lost);
	if (write(s->out, text, (size_t)len) == len)
		s->lost = 0;
}

size_t sink_write(struct sink *s, const void *buf, size_t len)
{
	ssize_t n = 0;

	pthread_mutex_lock(&s->lock);
	s->waits = false;
	if (s->out < 0 || s->broken || (s->is_pty && !pty_is_open(s))) {
		n = (ssize_t)len; /* nobody is there */
	} else {
		mark_gap_locked(s);
		n = s->is_socket ? send(s->out, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT) : write(s->out, buf, len);
		if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			n = 0;
		} else if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
			s->lost +=
				len; /* the guest must not stand still for a full disk; the gap is marked when there is room */
			n = (ssize_t)len;
		} else if (n < 0) {
			s->broken = true;
			n = (ssize_t)len;
		}
		s->waits = (size_t)n < len;
	}
	pthread_mutex_unlock(&s->lock);
	return (size_t)n;
}

int sink_poll(struct sink *s, struct pollfd *p, bool input)
{
	int n = 0;

	pthread_mutex_lock(&s->lock);
	if (s->broken)
		lose_client_locked(s);
	if (s->out >= 0 && s->in == s->out) {
		/* a pty without a reader would report its hang-up without end */
		if (!s->is_pty || pty_is_open(s))
			p[n++] = (struct pollfd){ .fd = s->out,
						  .events = (short)((input ? POLLIN : 0) | (s->waits ? POLLOUT : 0)) };
	} else {
		if (s->in >= 0 && input)
			p[n++] = (struct pollfd){ .fd = s->in, .events = POLLIN };
		if (s->out >= 0 && s->waits)
			p[n++] = (struct pollfd){ .fd = s->out, .events = POLLOUT };
	}
	if (s->listener >= 0 && s->out < 0)
		p[n++] = (struct pollfd){ .fd = s->listener, .events = POLLIN };
	pthread_mutex_unlock(&s->lock);
	return n;
}

static void accept_client(struct sink *s)
{
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	pthread_mutex_lock(&s->lock);
	s->out = s->in = fd;
	pthread_mutex_unlock(&s->lock);
}

static size_t read_input(struct sink *s, void *buf, size_t size, bool *writable)
{
	ssize_t n = read(s->in, buf, size);

	if (n > 0)
		return (size_t)n;
	if (n < 0 && (errno == EAGAIN || errno == EINTR || (s->is_pty && errno == EIO)))
		return 0;
	pthread_mutex_lock(&s->lock);
	if (s->in == s->out) {
		lose_client_locked(s);
		*writable = true;
	} else {
		fd_close(&s->in); /* stdin has ended: the guest has no more input */
	}
	pthread_mutex_unlock(&s->lock);
	return 0;
}

size_t sink_handle(struct sink *s, const struct pollfd *p, int n, void *buf, size_t size, bool *writable)
{
	size_t got = 0;
	int i;

	*writable = false;
	for (i = 0; i < n; i++) {
		if (!p[i].revents)
			continue;
		if (p[i].fd == s->listener) {
			accept_client(s);
			continue;
		}
		if (p[i].revents & (POLLOUT | POLLERR))
			*writable = true;
		if (p[i].fd == s->in && p[i].revents & (POLLIN | POLLHUP | POLLERR))
			got = read_input(s, buf, size, writable);
	}
	return got;
}
