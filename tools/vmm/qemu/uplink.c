/* SPDX-License-Identifier: MIT */
/* uplink.c - see uplink.h.
 * One descriptor that carries frames (`fd`; -1: nobody is there), perhaps one that listens.  Only the thread that polls changes them, under
 * `lock`; uplink_send(), on a session's thread, uses them under it.
 *
 * Must hold: a frame is sent whole or not at all, whatever becomes of the other side. */
#include "uplink.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "frames.h"
#include "opts.h"

#define CONNECT_EVERY_MS 200
#define DEFAULT_SCRIPT "/etc/qemu-ifup"

enum kind { TAP, DGRAM, STREAM };

struct uplink {
	pthread_mutex_t lock;
	enum kind kind;
	int fd, listener;
	bool waits; /* a frame was refused or went in part: room is waited for */
	uint64_t lost;
	struct frames_in in;
	struct frames_out out;
	/* a socket */
	bool server;
	struct sockaddr_storage local, remote; /* remote: of dgram and of a stream that connects */
	socklen_t local_len, remote_len;
	uint64_t connect_ns; /* not before then */
	/* a tap device */
	char ifname[IFNAMSIZ], *down;
};

/* ---- addresses ---------------------------------------------------------------------------------- */

static int unix_address(const char *path, struct sockaddr_storage *to, socklen_t *len, struct ft_error *err)
{
	struct sockaddr_un *un = (struct sockaddr_un *)to;

	if (!path || strlen(path) >= sizeof(un->sun_path))
		return fail(err, -EINVAL, "a Unix address wants a path of at most %zu octets",
			    sizeof(un->sun_path) - 1);
	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	strcpy(un->sun_path, path);
	*len = sizeof(*un);
	return 0;
}

static int inet_address(const char *host, const char *port, int type, struct sockaddr_storage *to, socklen_t *len,
			struct ft_error *err)
{
	struct addrinfo hints = { .ai_socktype = type, .ai_flags = AI_PASSIVE }, *list;
	int rc;

	if (!host || !port)
		return fail(err, -EINVAL, "an inet address wants host and port");
	rc = getaddrinfo(*host ? host : NULL, port, &hints, &list);
	if (rc)
		return fail(err, -EINVAL, "%.60s:%.20s: %s", host, port, gai_strerror(rc));
	memcpy(to, list->ai_addr, list->ai_addrlen);
	*len = list->ai_addrlen;
	freeaddrinfo(list);
	return 0;
}

/* The address whose keys begin with @prefix; *@len 0: it is not given. */
static int parse_address(const struct opts *o, const char *prefix, int type, struct sockaddr_storage *to,
			 socklen_t *len, struct ft_error *err)
{
	const char *value[4];
	static const char *const keys[4] = { "type", "path", "host", "port" };
	char key[32];

	for (int i = 0; i < 4; i++) {
		snprintf(key, sizeof(key), "%s.%s", prefix, keys[i]);
		value[i] = opts_get(o, key);
	}
	*len = 0;
	if (!value[0])
		return 0;
	if (!strcmp(value[0], "unix"))
		return unix_address(value[1], to, len, err);
	if (!strcmp(value[0], "inet"))
		return inet_address(value[2], value[3], type, to, len, err);
	return fail(err, -ENOTSUP, "%s.type=%.20s: unix or inet", prefix, value[0]);
}

/* A socket on the local address, if there is one; a Unix socket that an earlier one has left is replaced. */
static int bound_socket(struct uplink *u, int type, struct ft_error *err)
{
	int family = u->local_len ? u->local.ss_family : u->remote.ss_family, one = 1;
	int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return fail_sys(err, -errno, "socket");
	if (family == AF_UNIX && u->local_len)
		unlink(((struct sockaddr_un *)&u->local)->sun_path);
	else
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (u->local_len && bind(fd, (struct sockaddr *)&u->local, u->local_len)) {
		int rc = fail_sys(err, -errno, "local address");

		close(fd);
		return rc;
	}
	return fd;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static int run_script(const char *script, const char *ifname, struct ft_error *err)
{
	char *argv[] = { (char *)(uintptr_t)script, (char *)(uintptr_t)ifname, NULL };
	int status, rc;
	pid_t pid;

	rc = -posix_spawn(&pid, script, NULL, NULL, argv, environ);
	if (rc)
		return fail_sys(err, rc, "%s", script);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return fail_sys(err, -errno, "%s", script);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	return fail(err, -EIO, "%s %s: %s %d", script, ifname, WIFEXITED(status) ? "exit status" : "signal",
		    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int open_tap(struct uplink *u, const struct opts *o, struct ft_error *err)
{
	const char *ifname = opts_get(o, "ifname"), *up = opts_get(o, "script"), *down = opts_get(o, "downscript");
	struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI };

	if (ifname && strlen(ifname) >= IFNAMSIZ)
		return fail(err, -EINVAL, "ifname=%.60s: too long", ifname);
	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", ifname ? ifname : "tap%d");
	u->fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (u->fd < 0)
		return fail_sys(err, -errno, "/dev/net/tun");
	if (ioctl(u->fd, TUNSETIFF, &req))
		return fail_sys(err, -errno, "tap device %s", req.ifr_name);
	snprintf(u->ifname, sizeof(u->ifname), "%s", req.ifr_name);
	if (!up && access(DEFAULT_SCRIPT, X_OK) == 0)
		up = DEFAULT_SCRIPT;
	if (down && strcmp(down, "no")) {
		u->down = strdup(down);
		if (!u->down)
			return fail(err, -ENOMEM, "no memory");
	}
	return up && strcmp(up, "no") ? run_script(up, u->ifname, err) : 0;
}

static int open_dgram(struct uplink *u, const struct opts *o, struct ft_error *err)
{
	int rc = parse_address(o, "local", SOCK_DGRAM, &u->local, &u->local_len, err);

	if (!rc)
		rc = parse_address(o, "remote", SOCK_DGRAM, &u->remote, &u->remote_len, err);
	if (rc)
		return rc;
	if (!u->local_len || !u->remote_len)
		return fail(err, -EINVAL, "dgram: wants local.type= and remote.type=");
	u->fd = bound_socket(u, SOCK_DGRAM, err);
	return u->fd < 0 ? u->fd : 0;
}

static int open_stream(struct uplink *u, const struct opts *o, struct ft_error *err)
{
	int rc;

	u->server = opts_is_on(o, "server", false);
	rc = parse_address(o, "addr", SOCK_STREAM, u->server ? &u->local : &u->remote,
			   u->server ? &u->local_len : &u->remote_len, err);
	if (rc)
		return rc;
	if (!u->local_len && !u->remote_len)
		return fail(err, -EINVAL, "stream: wants addr.type=");
	if (!u->server)
		return 0; /* uplink_poll() connects */
	u->listener = bound_socket(u, SOCK_STREAM, err);
	if (u->listener < 0)
		return u->listener;
	return listen(u->listener, 1) ? fail_sys(err, -errno, "stream") : 0;
}

int uplink_open(struct uplink **out, const char *destination, char *said, size_t size, struct ft_error *err)
{
	struct uplink *u = calloc(1, sizeof(*u));
	struct opts o = { 0 };
	const char *type;
	int rc;

	*out = NULL;
	said[0] = '\0';
	if (!u)
		return fail(err, -ENOMEM, "no memory");
	pthread_mutex_init(&u->lock, NULL);
	u->fd = u->listener = -1;
	rc = opts_parse(&o, destination, "type", err);
	type = rc ? NULL : opts_get(&o, "type");
	if (rc) {
	} else if (!strcmp(type, "tap")) {
		u->kind = TAP;
		rc = open_tap(u, &o, err);
		if (!opts_get(&o, "ifname"))
			snprintf(said, size, "%s", u->ifname);
	} else if (!strcmp(type, "dgram")) {
		u->kind = DGRAM;
		rc = open_dgram(u, &o, err);
	} else {
		u->kind = STREAM;
		rc = open_stream(u, &o, err);
	}
	opts_free(&o);
	if (rc) {
		uplink_close(u);
		return rc;
	}
	*out = u;
	return 0;
}

void uplink_close(struct uplink *u)
{
	struct ft_error ignored;

	if (!u)
		return;
	if (u->down)
		(void)!run_script(u->down, u->ifname, &ignored);
	fd_close(&u->fd);
	fd_close(&u->listener);
	if (u->local_len && u->local.ss_family == AF_UNIX)
		unlink(((struct sockaddr_un *)&u->local)->sun_path);
	free(u->down);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

/* ---- a stream comes and goes -------------------------------------------------------------------- */

static void hang_up_locked(struct uplink *u)
{
	fd_close(&u->fd);
	u->in.have = 0;
	u->out.at = u->out.len = 0;
	u->waits = false;
	u->connect_ns = util_now_ns() + CONNECT_EVERY_MS * UTIL_NS_PER_MS;
}

static void connect_locked(struct uplink *u)
{
	struct ft_error ignored;
	int fd;

	if (u->kind != STREAM || u->server || u->fd >= 0 || util_now_ns() < u->connect_ns)
		return;
	fd = bound_socket(u, SOCK_STREAM, &ignored);
	if (fd < 0)
		return;
	if (connect(fd, (struct sockaddr *)&u->remote, u->remote_len) && errno != EINPROGRESS) {
		close(fd);
		u->connect_ns = util_now_ns() + CONNECT_EVERY_MS * UTIL_NS_PER_MS;
		return;
	}
	u->fd = fd;
}

static void accept_locked(struct uplink *u)
{
	int fd = accept4(u->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	if (u->fd >= 0)
		hang_up_locked(u); /* the newest one counts: the old one may be dead without a word */
	u->fd = fd;
}

/* ---- frames ------------------------------------------------------------------------------------- */

/* 1: taken; 0: no room; else nobody is there. */
static int send_locked(struct uplink *u, const void *frame, size_t len)
{
	ssize_t n;

	if (u->fd < 0)
		return -ENOTCONN;
	if (u->kind == STREAM)
		return frames_write(&u->out, u->fd, frame, len);
	n = u->kind == TAP ? write(u->fd, frame, len)
			   : sendto(u->fd, frame, len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&u->remote,
				    u->remote_len);
	if (n >= 0)
		return 1;
	return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
}

bool uplink_send(struct uplink *u, const void *frame, size_t len)
{
	int r;

	pthread_mutex_lock(&u->lock);
	r = send_locked(u, frame, len);
	u->lost += r < 0;
	u->waits = r == 0 || u->out.len > 0;
	pthread_mutex_unlock(&u->lock);
	return r != 0;
}

int uplink_poll(struct uplink *u, struct pollfd *p, bool input)
{
	int n = 0;

	pthread_mutex_lock(&u->lock);
	connect_locked(u);
	if (u->listener >= 0)
		p[n++] = (struct pollfd){ .fd = u->listener, .events = POLLIN };
	if (u->fd >= 0 && (input || u->waits))
		p[n++] = (struct pollfd){ .fd = u->fd,
					  .events = (short)((input ? POLLIN : 0) | (u->waits ? POLLOUT : 0)) };
	pthread_mutex_unlock(&u->lock);
	return n;
}

bool uplink_handle(struct uplink *u, const struct pollfd *p, int n)
{
	bool room = false;

	pthread_mutex_lock(&u->lock);
	for (int i = 0; i < n; i++) {
		if (p[i].fd == u->listener && p[i].revents)
			accept_locked(u);
		else if (p[i].fd == u->fd && p[i].revents & (POLLOUT | POLLERR | POLLHUP))
			room = u->waits;
	}
	if (room && u->kind == STREAM && u->fd >= 0) {
		int r = frames_flush(&u->out, u->fd);

		if (r < 0)
			hang_up_locked(u);
		room = r != 0;
	}
	if (room)
		u->waits = false;
	pthread_mutex_unlock(&u->lock);
	return room;
}

size_t uplink_receive(struct uplink *u, void *buf)
{
	const uint8_t *frame;
	ssize_t n = 0;

	pthread_mutex_lock(&u->lock);
	if (u->fd >= 0 && u->kind == STREAM) {
		n = frames_read(&u->in, u->fd, &frame);
		if (n > 0)
			memcpy(buf, frame, (size_t)n);
		else if (n < 0)
			hang_up_locked(u);
	} else if (u->fd >= 0) {
		n = u->kind == TAP ? read(u->fd, buf, UPLINK_FRAME_MAX)
				   : recv(u->fd, buf, UPLINK_FRAME_MAX, MSG_DONTWAIT);
	}
	pthread_mutex_unlock(&u->lock);
	return n > 0 ? (size_t)n : 0;
}

uint64_t uplink_lost(struct uplink *u)
{
	uint64_t lost;

	pthread_mutex_lock(&u->lock);
	lost = u->lost;
	pthread_mutex_unlock(&u->lock);
	return lost;
}
