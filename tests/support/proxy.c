/* SPDX-License-Identifier: MIT */
/* proxy.c - see proxy.h.  One poll loop over all connections; a buffer for each way of each of them. */
#include "proxy.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
#include "clock.h"

#define RELAYS_MAX 64
#define BUFFER 65536u

struct way {
	uint8_t buf[BUFFER];
	uint32_t at, len;
	bool ended; /* the sender has shut down, and that was passed on */
};

struct relay {
	int fd[2]; /* client, target; -1: the slot is free */
	struct way way[2];
};

struct proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	char address[32];
	struct sockaddr_in target;
	int listener, wake;
	/* guarded by lock */
	bool quit, once, has_cut;
	enum proxy_mode mode, cut_mode[2];
	uint64_t cut_at[2], octets[2], rate;
	/* proxy's thread */
	uint64_t rate_ns, allowed[2];
	struct relay relay[RELAYS_MAX];
};

/* Reset, not shut down in order: what is on its way is lost, as when a host dies. */
static void reset_fd(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(fd);
}

static void drop_relay(struct relay *r)
{
	if (r->fd[0] >= 0)
		reset_fd(r->fd[0]);
	if (r->fd[1] >= 0)
		reset_fd(r->fd[1]);
	r->fd[0] = r->fd[1] = -1;
}

static void drop_all(struct proxy *p)
{
	for (int i = 0; i < RELAYS_MAX; i++)
		drop_relay(&p->relay[i]);
}

static void set_nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void accept_one(struct proxy *p, bool refuse)
{
	int client = accept(p->listener, NULL, NULL), target;
	struct relay *r = NULL;

	if (client < 0)
		return;
	for (int i = 0; i < RELAYS_MAX && !r; i++)
		if (p->relay[i].fd[0] < 0)
			r = &p->relay[i];
	target = refuse || !r ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (target < 0 || connect(target, (struct sockaddr *)&p->target, sizeof(p->target))) {
		reset_fd(client);
		if (target >= 0)
			close(target);
		return;
	}
	set_nodelay(client);
	set_nodelay(target);
	memset(r->way, 0, sizeof(r->way));
	r->fd[0] = client;
	r->fd[1] = target;
}

/* Octets that may be read that way now: up to the cut, the rate and the buffer. */
static size_t readable_now(struct proxy *p, const struct way *w, int dir)
{
	size_t n = BUFFER - w->len;

	pthread_mutex_lock(&p->lock);
	if (p->cut_at[dir] && p->octets[dir] + n > p->cut_at[dir])
		n = p->octets[dir] < p->cut_at[dir] ? p->cut_at[dir] - p->octets[dir] : 0;
	if (p->rate && n > p->allowed[dir])
		n = p->allowed[dir];
	pthread_mutex_unlock(&p->lock);
	return n;
}

static void count(struct proxy *p, int dir, size_t n)
{
	pthread_mutex_lock(&p->lock);
	p->octets[dir] += n;
	if (p->rate)
		p->allowed[dir] -= n;
	pthread_mutex_unlock(&p->lock);
}

/* After what was read before the cut has been handed on. */
static void cut_if_due(struct proxy *p, int dir)
{
	pthread_mutex_lock(&p->lock);
	if (p->cut_at[dir] && p->octets[dir] >= p->cut_at[dir]) {
		p->mode = p->cut_mode[dir];
		p->cut_at[dir] = 0;
		p->has_cut = true;
	}
	pthread_mutex_unlock(&p->lock);
}

static void connection_ended(struct proxy *p)
{
	pthread_mutex_lock(&p->lock);
	if (p->once) {
		p->mode = PROXY_REFUSE;
		p->has_cut = true;
	}
	pthread_mutex_unlock(&p->lock);
}

/* False: the relay is over. */
static bool fill(struct proxy *p, struct relay *r, int dir)
{
	struct way *w = &r->way[dir];
	size_t room = w->len ? 0 : readable_now(p, w, dir);
	ssize_t n;

	if (!room || w->ended)
		return true;
	n = recv(r->fd[dir], w->buf, room, 0);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0) {
		connection_ended(p);
		w->ended = true;
		shutdown(r->fd[!dir], SHUT_WR);
		return !r->way[!dir].ended;
	}
	w->at = 0;
	w->len = (uint32_t)n;
	count(p, dir, (size_t)n);
	return true;
}

static bool flush_way(struct proxy *p, struct relay *r, int dir)
{
	struct way *w = &r->way[dir];

	while (w->len) {
		ssize_t n = send(r->fd[!dir], w->buf + w->at, w->len, MSG_NOSIGNAL);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		w->at += (uint32_t)n;
		w->len -= (uint32_t)n;
	}
	cut_if_due(p, dir);
	return true;
}

static void serve_relay(struct proxy *p, struct relay *r)
{
	for (int dir = 0; dir < 2; dir++) {
		if (!flush_way(p, r, dir) || !fill(p, r, dir) || !flush_way(p, r, dir)) {
			connection_ended(p);
			drop_relay(r);
			return;
		}
	}
}

static void refill_rate(struct proxy *p)
{
	uint64_t now = now_ns();

	pthread_mutex_lock(&p->lock);
	for (int dir = 0; dir < 2 && p->rate; dir++) {
		p->allowed[dir] += (now - p->rate_ns) * p->rate / NS_PER_S;
		if (p->allowed[dir] > p->rate / 50 + 1)
			p->allowed[dir] = p->rate / 50 + 1;
	}
	pthread_mutex_unlock(&p->lock);
	p->rate_ns = now;
}

static int poll_set(struct proxy *p, struct pollfd *set, enum proxy_mode mode)
{
	int n = 0;

	set[n++] = (struct pollfd){ .fd = p->wake, .events = POLLIN };
	set[n++] = (struct pollfd){ .fd = p->listener, .events = POLLIN };
	for (int i = 0; i < RELAYS_MAX && mode == PROXY_PASS; i++) {
		struct relay *r = &p->relay[i];

		for (int dir = 0; dir < 2 && r->fd[0] >= 0; dir++) {
			short events = 0;

			if (!r->way[dir].len && !r->way[dir].ended && readable_now(p, &r->way[dir], dir))
				events |= POLLIN;
			if (r->way[!dir].len)
				events |= POLLOUT;
			set[n++] = (struct pollfd){ .fd = events ? r->fd[dir] : -1, .events = events };
		}
	}
	return n;
}

static void *proxy_main(void *arg)
{
	struct proxy *p = arg;

	for (;;) {
		struct pollfd set[2 + 2 * RELAYS_MAX];
		enum proxy_mode mode;
		eventfd_t drain;
		bool quit, slow;
		int n;

		pthread_mutex_lock(&p->lock);
		mode = p->mode;
		quit = p->quit;
		slow = p->rate != 0;
		pthread_mutex_unlock(&p->lock);
		if (quit)
			break;
		if (mode == PROXY_REFUSE)
			drop_all(p);
		n = poll_set(p, set, mode);
		poll(set, (nfds_t)n, slow ? 2 : 1000);
		if (slow)
			refill_rate(p);
		if (set[0].revents)
			eventfd_read(p->wake, &drain);
		if (set[1].revents)
			accept_one(p, mode == PROXY_REFUSE);
		for (int i = 0; i < RELAYS_MAX && mode == PROXY_PASS; i++)
			if (p->relay[i].fd[0] >= 0)
				serve_relay(p, &p->relay[i]);
	}
	drop_all(p);
	return NULL;
}

static void parse_target(struct proxy *p, const char *target)
{
	const char *colon = strrchr(target, ':');
	char host[64];

	CHECK(colon && (size_t)(colon - target) < sizeof(host), "proxy: '%s' is not HOST:PORT", target);
	memcpy(host, target, (size_t)(colon - target));
	host[colon - target] = '\0';
	p->target.sin_family = AF_INET;
	p->target.sin_port = htons((uint16_t)atoi(colon + 1));
	CHECK(inet_pton(AF_INET, host, &p->target.sin_addr) == 1, "proxy: '%s' is not numeric", host);
}

struct proxy *proxy_open(const char *target)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct proxy *p = calloc(1, sizeof(*p));
	socklen_t len = sizeof(a);

	CHECK(p, "proxy: no memory");
	parse_target(p, target);
	for (int i = 0; i < RELAYS_MAX; i++)
		p->relay[i].fd[0] = p->relay[i].fd[1] = -1;
	pthread_mutex_init(&p->lock, NULL);
	p->rate_ns = now_ns();
	p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	CHECK(p->wake >= 0 && p->listener >= 0, "proxy: %s", strerror(errno));
	CHECK(bind(p->listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(p->listener, 64) == 0 &&
		      getsockname(p->listener, (struct sockaddr *)&a, &len) == 0,
	      "proxy: %s", strerror(errno));
	snprintf(p->address, sizeof(p->address), "127.0.0.1:%u", ntohs(a.sin_port));
	CHECK(pthread_create(&p->thread, NULL, proxy_main, p) == 0, "proxy: no thread");
	return p;
}

static void unlock_and_wake(struct proxy *p)
{
	pthread_mutex_unlock(&p->lock);
	eventfd_write(p->wake, 1);
}

void proxy_close(struct proxy *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->quit = true;
	unlock_and_wake(p);
	pthread_join(p->thread, NULL);
	close(p->listener);
	close(p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

const char *proxy_address(const struct proxy *p)
{
	return p->address;
}

void proxy_set_mode(struct proxy *p, enum proxy_mode mode)
{
	pthread_mutex_lock(&p->lock);
	p->mode = mode;
	unlock_and_wake(p);
}

void proxy_cut_after(struct proxy *p, enum proxy_way way, uint64_t octets, enum proxy_mode mode)
{
	pthread_mutex_lock(&p->lock);
	p->cut_at[way] = octets;
	p->cut_mode[way] = mode;
	unlock_and_wake(p);
}

void proxy_set_rate(struct proxy *p, uint64_t octets_per_s)
{
	pthread_mutex_lock(&p->lock);
	p->rate = octets_per_s;
	p->allowed[0] = p->allowed[1] = 0;
	unlock_and_wake(p);
}

uint64_t proxy_octets(struct proxy *p, enum proxy_way way)
{
	uint64_t n;

	pthread_mutex_lock(&p->lock);
	n = p->octets[way];
	pthread_mutex_unlock(&p->lock);
	return n;
}

void proxy_set_once(struct proxy *p)
{
	pthread_mutex_lock(&p->lock);
	p->once = true;
	pthread_mutex_unlock(&p->lock);
}

void proxy_wait_cut(struct proxy *p)
{
	const struct timespec tick = { .tv_nsec = 1000000 };
	uint64_t deadline = deadline_in_ms(60000);
	bool cut = false;

	while (!cut) {
		CHECK(now_ns() < deadline, "proxy: the connection was not cut");
		nanosleep(&tick, NULL);
		pthread_mutex_lock(&p->lock);
		cut = p->has_cut;
		pthread_mutex_unlock(&p->lock);
	}
}
