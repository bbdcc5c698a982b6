/* SPDX-License-Identifier: MIT */
/* uplink.c - see uplink.h.
 * One descriptor that carries frames (`fd`; -1: nobody is there), perhaps one that listens.  Under `lock`; only the thread that polls gives `fd`
 * another value, but for uplink_plug(), which may take it away: then what poll() said of it finds another number.
 *
 * Must hold: a frame is sent whole or not at all, whatever becomes of the other side. */
#include "uplink.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
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
#define RETRY_MS 1      /* a datagram that found the receiver's queue full: poll() tells of our own queue only */
#define RETRIES 50      /* then it is lost */
#define SCRIPT_MS 30000 /* for the script of a tap device */
#define DEFAULT_SCRIPT "/etc/qemu-ifup"

enum kind { TAP, DGRAM, STREAM };

struct uplink {
	pthread_mutex_t lock;
	enum kind kind;
	int fd, listener;
	bool plugged; /* else nobody is connected to, and nobody is taken */
	bool waits;   /* a frame was refused or went in part: room is waited for */
	bool gone;    /* the tap device was deleted, and nobody was told yet */
	uint64_t lost;
	struct frames_in in;
	struct frames_out out;
	/* a socket */
	bool server, bound; /* bound: the Unix socket at `local` is ours to remove */
	unsigned tries;     /* of one datagram */
	uint64_t retry_ns;
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

static const char *unix_path(const struct uplink *u)
{
	return u->local_len && u->local.ss_family == AF_UNIX ? ((const struct sockaddr_un *)&u->local)->sun_path : NULL;
}

/* A Unix socket that an earlier one has left, and nobody listens to, makes way. */
static void remove_dead(const struct uplink *u, int type)
{
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)&u->local, u->local_len) && errno == ECONNREFUSED)
		unlink(unix_path(u));
	fd_close(&fd);
}

/* A socket on the local address, if there is one. */
static int bound_socket(struct uplink *u, int type, struct ft_error *err)
{
	int family = u->local_len ? u->local.ss_family : u->remote.ss_family, one = 1;
	int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return fail_sys(err, -errno, "socket");
	if (unix_path(u))
		remove_dead(u, type);
	else
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (u->local_len && bind(fd, (struct sockaddr *)&u->local, u->local_len)) {
		int rc = fail_sys(err, -errno, "local address");

		close(fd);
		return rc;
	}
	u->bound = unix_path(u) != NULL;
	return fd;
}

/* Small frames are not to wait for more of them. */
static void no_delay(int fd, int family)
{
	int one = 1;

	if (family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- opening ------------------------------------------------------------------------------------ */

static int run_script(const char *script, const char *ifname, struct ft_error *err)
{
	char *argv[] = { (char *)(uintptr_t)script, (char *)(uintptr_t)ifname, NULL };
	uint64_t deadline = util_deadline_ms(SCRIPT_MS);
	posix_spawnattr_t attr;
	sigset_t none;
	int status, rc;
	pid_t pid, ended;

	sigemptyset(&none); /* ours blocks what is taken by a descriptor */
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	rc = -posix_spawn(&pid, script, NULL, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	if (rc)
		return fail_sys(err, rc, "%s", script);
	while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && util_now_ns() < deadline)
		util_sleep_ms(2);
	if (ended == 0) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		return fail(err, -ETIMEDOUT, "%s %s: not ended after %d s", script, ifname, SCRIPT_MS / 1000);
	}
	if (ended < 0)
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
	if (u->bound)
		unlink(unix_path(u));
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

	if (u->kind != STREAM || u->server || !u->plugged || u->fd >= 0 || util_now_ns() < u->connect_ns)
		return;
	fd = bound_socket(u, SOCK_STREAM, &ignored);
	if (fd < 0)
		return;
	if (connect(fd, (struct sockaddr *)&u->remote, u->remote_len) && errno != EINPROGRESS) {
		close(fd);
		u->connect_ns = util_now_ns() + CONNECT_EVERY_MS * UTIL_NS_PER_MS;
		return;
	}
	no_delay(fd, u->remote.ss_family);
	u->fd = fd;
}

static void accept_locked(struct uplink *u)
{
	int fd = accept4(u->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0) { /* out of descriptors: not at once again */
		u->connect_ns = util_now_ns() + CONNECT_EVERY_MS * UTIL_NS_PER_MS;
		return;
	}
	no_delay(fd, u->local.ss_family);
	if (u->fd >= 0)
		hang_up_locked(u); /* the newest one counts: the old one may be dead without a word */
	u->fd = fd;
}

/* ---- frames ------------------------------------------------------------------------------------- */

/* A datagram's receiver has no room. */
static int refused_locked(struct uplink *u)
{
	if (u->kind == DGRAM && ++u->tries > RETRIES) {
		u->tries = 0;
		return -ENOBUFS;
	}
	u->retry_ns = util_now_ns() + RETRY_MS * UTIL_NS_PER_MS;
	return 0;
}

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
	if (n < 0 && (errno == EAGAIN || errno == ENOBUFS))
		return refused_locked(u);
	u->tries = 0;
	return n < 0 ? -errno : 1;
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

static void lower(int *timeout_ms, int ms)
{
	if (*timeout_ms < 0 || ms < *timeout_ms)
		*timeout_ms = ms;
}

int uplink_poll(struct uplink *u, struct pollfd *p, bool input, int *timeout_ms)
{
	bool by_time;
	int n = 0;

	pthread_mutex_lock(&u->lock);
	connect_locked(u);
	by_time = u->kind == DGRAM && u->waits;
	if (by_time)
		lower(timeout_ms, RETRY_MS);
	if (u->listener >= 0 && u->plugged && util_now_ns() >= u->connect_ns)
		p[n++] = (struct pollfd){ .fd = u->listener, .events = POLLIN };
	if (u->fd >= 0 && (input || (u->waits && !by_time)))
		p[n++] = (struct pollfd){
			.fd = u->fd, .events = (short)((input ? POLLIN : 0) | (u->waits && !by_time ? POLLOUT : 0))
		};
	pthread_mutex_unlock(&u->lock);
	return n;
}

/* Sends the rest of a frame; whether there is room behind it. */
static bool flushed_locked(struct uplink *u)
{
	int r = frames_flush(&u->out, u->fd);

	if (r < 0)
		hang_up_locked(u);
	return r != 0;
}

bool uplink_handle(struct uplink *u, const struct pollfd *p, int n)
{
	bool room;

	pthread_mutex_lock(&u->lock);
	room = u->kind == DGRAM && u->waits && util_now_ns() >= u->retry_ns;
	for (int i = 0; i < n; i++) {
		if (p[i].fd == u->listener && p[i].revents)
			accept_locked(u);
		else if (p[i].fd == u->fd && p[i].revents & (POLLOUT | POLLERR | POLLHUP))
			room |= u->waits;
	}
	if (room && u->kind == STREAM && u->fd >= 0)
		room = flushed_locked(u);
	if (room)
		u->waits = false;
	pthread_mutex_unlock(&u->lock);
	return room;
}

static ssize_t receive_locked(struct uplink *u, void *buf)
{
	const uint8_t *frame;
	ssize_t n;

	if (u->kind == STREAM) {
		n = frames_read(&u->in, u->fd, &frame);
		if (n > 0)
			memcpy(buf, frame, (size_t)n);
		else if (n < 0)
			hang_up_locked(u);
	} else if (u->kind == TAP) {
		n = read(u->fd, buf, UPLINK_FRAME_MAX);
		if (n < 0 && errno == EBADFD) { /* the device was deleted */
			fd_close(&u->fd);
			u->waits = false;
			u->gone = true;
		}
	} else {
		n = recv(u->fd, buf, UPLINK_FRAME_MAX, MSG_DONTWAIT);
	}
	return n;
}

size_t uplink_receive(struct uplink *u, void *buf)
{
	ssize_t n = 0;

	pthread_mutex_lock(&u->lock);
	if (u->fd >= 0)
		n = receive_locked(u, buf);
	pthread_mutex_unlock(&u->lock);
	return n > 0 ? (size_t)n : 0;
}

void uplink_plug(struct uplink *u, bool in)
{
	pthread_mutex_lock(&u->lock);
	u->plugged = in;
	u->connect_ns = 0;
	if (!in && u->kind == STREAM && u->fd >= 0)
		hang_up_locked(u);
	pthread_mutex_unlock(&u->lock);
}

bool uplink_gone(struct uplink *u)
{
	bool gone;

	pthread_mutex_lock(&u->lock);
	gone = u->gone;
	u->gone = false;
	pthread_mutex_unlock(&u->lock);
	return gone;
}

uint64_t uplink_lost(struct uplink *u)
{
	uint64_t lost;

	pthread_mutex_lock(&u->lock);
	lost = u->lost;
	pthread_mutex_unlock(&u->lock);
	return lost;
}
