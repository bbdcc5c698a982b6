/* SPDX-License-Identifier: MIT */
/* tcp_setup.c - how the sockets of a tcp connection come about: connect, listen, accept.  Runs on the caller's thread.
 *
 * A connect sends a preamble on each socket and waits for an answer on each; the listener answers when the set is complete.  Until then its
 * sockets are half-open: at most HALF_OPEN_MAX, each for HALF_OPEN_NS at most.  When one more comes the oldest goes, so that
 * peers that stall cannot keep others out.  All reads are non-blocking: nobody waits for a certain peer.  docs/protocol-tcp.md. */
#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"
#include "clock.h"
#include "faultpoint.h"
#include "log.h"
#include "tls.h"

#define HALF_OPEN_MAX 64u
#define HALF_OPEN_NS (5 * NS_PER_S)
#define KEEPALIVE_DEFAULT_MS 10000u

/* -- sockets -- */

static void set_int(int fd, int level, int name, int value)
{
	/* tuning: a kernel that does not know one of them works all the same */
	setsockopt(fd, level, name, &value, sizeof(value));
}

static void tune(int fd, uint32_t keepalive_ms)
{
	int idle_s = (int)((keepalive_ms ? keepalive_ms : KEEPALIVE_DEFAULT_MS) + 999) / 1000;
	int interval_s = (idle_s + 4) / 5, probes = 5;

	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
	set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (idle_s + probes * interval_s) * 1000);
}

static void preamble_fill(struct tcp_preamble *p, uint32_t lane, uint32_t lanes, enum tcp_status status,
			  const uint8_t *token, uint32_t credits)
{
	memset(p, 0, sizeof(*p));
	p->magic = to_be64(TCP_MAGIC);
	p->version = to_be16(TCP_VERSION);
	p->lane = to_be16((uint16_t)lane);
	p->lanes = to_be16((uint16_t)lanes);
	p->status = to_be16((uint16_t)status);
	memcpy(p->token, token, sizeof(p->token));
	p->credits = to_be32(credits);
}

/* 40 octets into the empty buffer of a new socket: all of them, or it is broken. */
static int preamble_send(int fd, struct tls *tls, const struct tcp_preamble *p)
{
	struct iovec v = { (void *)(uintptr_t)p, sizeof(*p) };
	ssize_t n;

	if (FT_FAULT("tcp/preamble"))
		return -EPIPE;
	if (tls) {
		n = tls_send(tls, &v, 1, NULL);
		return n == (ssize_t)sizeof(*p) && !tls_unsent(tls) ? 0 : n < 0 && n != -EAGAIN ? (int)n : -EPIPE;
	}
	n = send(fd, p, sizeof(*p), MSG_NOSIGNAL | MSG_DONTWAIT);
	return n == (ssize_t)sizeof(*p) ? 0 : n < 0 ? -errno : -EPIPE;
}

/* What has come of a preamble: octets, 0 at the end, or a negative errno, which TLS may tell more of in @why. */
static ssize_t preamble_receive(int fd, struct tls *tls, void *to, size_t n, struct ft_error *why)
{
	struct iovec v = { to, n };
	ssize_t got;

	why->code = 0;
	if (tls)
		return tls_receive(tls, &v, 1, why);
	got = recv(fd, to, n, MSG_DONTWAIT);
	return got >= 0 ? got : -errno;
}

/* -- connect -- */

struct attempt {
	int fd[TP_LANES_MAX];
	struct tls *tls[TP_LANES_MAX]; /* NULL: none */
	struct tls_creds *creds;       /* likewise */
	uint32_t lanes;
	uint8_t token[16];
	struct tcp_limits limits;
	char peer[TP_PEER_MAX];
};

static int connect_lane(int *out, const struct addrinfo *ai, const struct tp_params *p, uint64_t deadline,
			int cancel_fd)
{
	int fd = FT_FAULT("tcp/socket") ? faultpoint_errno(EMFILE)
					: socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int r = 0;
	socklen_t len = sizeof(r);

	if (fd < 0)
		return -errno;
	*out = fd;
	tune(fd, p->keepalive_ms);
	if ((FT_FAULT("tcp/connect") ? faultpoint_errno(ENETUNREACH) : connect(fd, ai->ai_addr, ai->ai_addrlen)) == 0)
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	r = wait_fd(fd, POLLOUT, cancel_fd, deadline);
	if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len) == 0)
		r = -r;
	return r;
}

static int check_answer(struct attempt *a, uint32_t lane, const struct tcp_preamble *p, struct ft_error *err)
{
	uint32_t lanes = from_be16(p->lanes), credits = from_be32(p->credits);

	if (from_be64(p->magic) != TCP_MAGIC)
		return err_set(err, -EPROTO, "what answers there is not ft");
	if (from_be16(p->status) == TCP_REFUSE_PLAIN)
		return err_set(err, -EACCES, "the peer wants TLS (its setting tls), and here it is off");
	if (from_be16(p->status) == TCP_REFUSE_VERSION || from_be16(p->version) != TCP_VERSION)
		return err_set(err, -EPROTONOSUPPORT, "the peer speaks version %u of the transport, we speak %u",
			       from_be16(p->version), TCP_VERSION);
	if (from_be16(p->status) != TCP_OK)
		return err_set(err, -EPROTO, "the peer refuses the connection, status %u", from_be16(p->status));
	if (from_be16(p->lane) != lane || memcmp(p->token, a->token, sizeof(a->token)) != 0 || lanes < 2 ||
	    lanes > a->lanes || credits == 0 || credits > TP_CREDITS_MAX || from_be32(p->reserved) != 0)
		return err_set(err, -EPROTO, "the answer to the preamble of lane %u is not in order", lane);
	if (lane > 0 && (lanes != a->limits.lanes || credits != a->limits.credits_peers))
		return err_set(err, -EPROTO, "the answers of lane 0 and lane %u differ", lane);
	a->limits.lanes = lanes;
	a->limits.credits_peers = credits;
	return 0;
}

static int await_answer(struct attempt *a, uint32_t lane, uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	struct tcp_preamble p;
	size_t got = 0;

	while (got < sizeof(p)) {
		struct ft_error why = { 0 };
		ssize_t n = FT_FAULT("tcp/answer") ? -ECONNRESET
						   : preamble_receive(a->fd[lane], a->tls[lane], (uint8_t *)&p + got,
								      sizeof(p) - got, &why);
		int r;

		if (n > 0) {
			got += (size_t)n;
			continue;
		}
		if (n == 0)
			return err_set(err, -ECONNRESET, "the peer closed lane %u before it answered", lane);
		if (n == -EINTR)
			continue;
		if (n != -EAGAIN && why.code != 0)
			return err_set(err, why.code, "%s", why.msg);
		if (n != -EAGAIN)
			return err_sys(err, n == -ETIMEDOUT ? -ECONNRESET : (int)n, "lane %u", lane);
		r = wait_fd(a->fd[lane], POLLIN, cancel_fd, deadline);
		if (r != 0)
			return err_set(err, r, r == -ECANCELED ? "cancelled" : "connected, but nobody accepts");
	}
	return check_answer(a, lane, &p, err);
}

/* The TLS handshake of a lane, if there is one. */
static int secure_lane(struct attempt *a, uint32_t lane, const char *host, uint64_t deadline, int cancel_fd,
		       struct ft_error *err)
{
	short events = 0;
	int r;

	if (!a->creds)
		return 0;
	r = tls_open(&a->tls[lane], a->creds, a->fd[lane], host, err);
	if (r != 0)
		return r;
	while ((r = tls_handshake(a->tls[lane], &events, err)) == -EAGAIN) {
		r = wait_fd(a->fd[lane], events, cancel_fd, deadline);
		if (r != 0)
			return err_set(err, r,
				       r == -ECANCELED ? "cancelled"
						       : "connected, but nobody answers the TLS handshake");
	}
	if (r == 0 && lane == 0)
		log_info("tcp", "%s: %s", a->peer, tls_about(a->tls[lane]));
	return r;
}

static int open_lanes(struct attempt *a, const struct addrinfo *ai, const char *host, const struct tp_params *p,
		      uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	struct tcp_preamble pre;
	int r = 0;

	for (uint32_t i = 0; i < a->lanes && r == 0; i++) {
		r = connect_lane(&a->fd[i], ai, p, deadline, cancel_fd);
		if (r != 0)
			return err_sys(err, r, "lane %u: cannot connect", i);
		r = secure_lane(a, i, host, deadline, cancel_fd, err);
		if (r != 0)
			return r;
		preamble_fill(&pre, i, a->lanes, TCP_OK, a->token, p->credits);
		r = preamble_send(a->fd[i], a->tls[i], &pre);
		if (r != 0)
			return err_sys(err, r, "lane %u: cannot connect", i);
	}
	a->limits.lanes = a->lanes;
	for (uint32_t i = 0; i < a->limits.lanes && r == 0; i++)
		r = await_answer(a, i, deadline, cancel_fd, err);
	return r;
}

static void close_from(struct attempt *a, uint32_t first)
{
	for (uint32_t i = first; i < a->lanes; i++) {
		tls_close(a->tls[i]);
		if (a->fd[i] >= 0)
			close(a->fd[i]);
		a->tls[i] = NULL;
		a->fd[i] = -1;
	}
}

static int try_address(struct tp_conn **out, const struct addrinfo *ai, const char *host, struct tls_creds *creds,
		       const struct tp_params *p, uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	struct attempt a = { .creds = creds, .lanes = p->lanes, .limits = { .credits_ours = p->credits } };
	int r;

	for (uint32_t i = 0; i < TP_LANES_MAX; i++)
		a.fd[i] = -1;
	address_print(a.peer, sizeof(a.peer), ai->ai_addr, ai->ai_addrlen);
	if (FT_FAULT("tcp/token") || getrandom(a.token, sizeof(a.token), 0) != (ssize_t)sizeof(a.token))
		return err_set(err, -EIO, "the kernel gave no random number for a connection");
	r = open_lanes(&a, ai, host, p, deadline, cancel_fd, err);
	if (r == 0) {
		close_from(&a, a.limits.lanes);
		r = tcp_conn_create(out, a.fd, creds ? a.tls : NULL, &a.limits, a.peer, err);
	}
	if (r != 0) {
		close_from(&a, 0);
		err_prefix(err, "%s", a.peer);
	}
	return r;
}

int tcp_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		struct ft_error *err)
{
	struct tls_creds *creds = NULL;
	struct addrinfo *list = NULL;
	struct host_port name;
	unsigned left = 0;
	int r;

	r = address_parse(&name, rest, err);
	if (r == 0 && strcmp(name.port, "0") == 0)
		r = err_set(err, -EINVAL, "'%s': port 0 cannot be connected to", rest);
	if (r == 0 && p->tls != TP_TLS_OFF) /* each time: what was renewed is used without a new start */
		r = tls_creds_load(&creds, p, false, err);
	if (r == 0)
		r = address_resolve(&list, &name, 0, deadline, cancel_fd, err);
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
		left++;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next, left--) {
		r = try_address(out, ai, name.host, creds, p, address_share(deadline, left), cancel_fd, err);
		if (r == 0 || r == -ECANCELED || now_ns() >= deadline)
			break;
	}
	if (list)
		freeaddrinfo(list);
	tls_creds_put(creds);
	return r;
}

/* -- listen -- */

struct half {
	struct half *next; /* oldest first */
	int fd;
	struct tls *tls; /* NULL: none */
	bool secured;    /* its handshake is done */
	bool leaving;    /* it was refused, and is given the time to hear why */
	uint64_t since_ns;
	size_t got;
	struct tcp_preamble pre;
	char peer[TP_PEER_MAX];
};

struct tcp_listener {
	struct tp_listener base;
	int fd, epoll_fd;
	struct half *first;
	unsigned nr_half;
	struct tls_creds *creds; /* NULL: none */
	uint64_t told_ns;        /* when a warning was written last */
};

static int bind_one(int *out, const struct addrinfo *ai)
{
	int fd = FT_FAULT("tcp/listen-socket") ? faultpoint_errno(EMFILE)
					       : socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (ai->ai_family == AF_INET6)
		set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	if (!(FT_FAULT("tcp/bind") && faultpoint_errno(EADDRINUSE)) && bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
	    listen(fd, HALF_OPEN_MAX) == 0) {
		*out = fd;
		return 0;
	}
	r = -errno;
	close(fd);
	return r;
}

/* All addresses: one IPv6 socket takes IPv4 too; where there is no IPv6, an IPv4 one.  A name: its first address that can be had. */
static int bind_any(int *out, const struct addrinfo *list, bool all)
{
	int r = -EADDRNOTAVAIL;

	for (int pass = 0; pass < 2; pass++) {
		for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) {
			if (all && (ai->ai_family == AF_INET6) != (pass == 0))
				continue;
			r = bind_one(out, ai);
			if (r == 0 || (all && r == -EADDRINUSE))
				return r;
		}
		if (!all)
			break;
	}
	return r;
}

static const struct tp_listener_ops listener_ops;

static int listener_create(struct tp_listener **out, int fd, struct tls_creds *creds, const struct tp_params *p,
			   struct ft_error *err)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = NULL };
	struct tcp_listener *l = FT_FAULT("tcp/listener") ? NULL : calloc(1, sizeof(*l));
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	int r;

	if (!l)
		return err_set(err, -ENOMEM, "no memory");
	l->base.ops = &listener_ops;
	l->base.params = *p;
	l->fd = fd;
	l->epoll_fd = FT_FAULT("tcp/listener-epoll") ? faultpoint_errno(EMFILE) : epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0 ||
	    getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
		r = -errno;
		if (l->epoll_fd >= 0)
			close(l->epoll_fd);
		free(l);
		return err_sys(err, r, "cannot set up a listener");
	}
	address_print(l->base.address, sizeof(l->base.address), (struct sockaddr *)&sa, len);
	l->creds = creds;
	*out = &l->base;
	return 0;
}

int tcp_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	struct tls_creds *creds = NULL;
	struct addrinfo *list = NULL;
	struct host_port name;
	int fd = -1, r;

	r = address_parse(&name, rest, err);
	if (r == 0)
		r = address_resolve(&list, &name, AI_PASSIVE, deadline_in_ms(20000), -1, err);
	if (r != 0)
		return r;
	r = bind_any(&fd, list, name.host[0] == '\0');
	freeaddrinfo(list);
	if (r != 0)
		return err_sys(err, r, "cannot listen on %s", rest);
	if (p->tls != TP_TLS_OFF)
		r = tls_creds_load(&creds, p, true, err);
	if (r == 0)
		r = listener_create(out, fd, creds, p, err);
	if (r != 0) {
		tls_creds_put(creds);
		close(fd);
	}
	return r;
}

/* -- half-open sockets -- */

static void half_drop(struct tcp_listener *l, struct half *h, const char *why)
{
	struct half **at = &l->first;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	l->nr_half--;
	tls_close(h->tls);
	if (h->fd >= 0)
		close(h->fd); /* leaves the epoll set */
	if (why)
		log_debug("tcp", "%s: half-open connection dropped: %s", h->peer, why);
	free(h);
}

/* Strangers must not fill the log: one warning a second. */
static void warn(struct tcp_listener *l, const char *peer, const char *why)
{
	uint64_t now = now_ns();

	if (l->told_ns != 0 && now - l->told_ns < NS_PER_S) {
		log_debug("tcp", "%s: refused: %s", peer, why);
		return;
	}
	l->told_ns = now;
	log_warn("tcp", "%s: refused: %s", peer, why);
}

/* The peer has been told.  Closed now, with octets of it that nobody has read, the kernel would send a reset, which may overtake our word. */
static void half_refuse(struct tcp_listener *l, struct half *h, const char *why)
{
	warn(l, h->peer, why);
	tls_close(h->tls);
	h->tls = NULL;
	h->leaving = true;
	h->got = 0;
	shutdown(h->fd, SHUT_WR);
}

/* What was renewed in the folder is used without a new start; what is wrong there is not. */
static struct tls_creds *creds_now(struct tcp_listener *l)
{
	struct tls_creds *fresh;
	struct ft_error err;

	if (!l->creds || !tls_creds_changed(l->creds))
		return l->creds;
	if (tls_creds_load(&fresh, &l->base.params, true, &err) != 0) {
		warn(l, l->base.address, err.msg);
		return l->creds;
	}
	tls_creds_put(l->creds);
	l->creds = fresh;
	return fresh;
}

static void half_add(struct tcp_listener *l, int fd, const struct sockaddr *sa, socklen_t len)
{
	struct half *h = FT_FAULT("tcp/half") ? NULL : calloc(1, sizeof(*h)), **at = &l->first;
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = h };
	struct tls_creds *creds = creds_now(l);

	if (!h || (creds && tls_open(&h->tls, creds, fd, NULL, NULL) != 0) ||
	    epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
		tls_close(h ? h->tls : NULL);
		free(h);
		close(fd);
		return;
	}
	h->fd = fd;
	h->since_ns = now_ns();
	address_print(h->peer, sizeof(h->peer), sa, len);
	tune(fd, l->base.params.keepalive_ms);
	while (*at)
		at = &(*at)->next;
	*at = h;
	l->nr_half++;
}

/* The kernel's queue, as long as there is something; at most one full set of half-open ones at a time, so that those that are in get
 * their turn. */
static int take_new(struct tcp_listener *l, struct ft_error *err)
{
	for (unsigned i = 0; i < HALF_OPEN_MAX; i++) {
		struct sockaddr_storage sa;
		socklen_t len = sizeof(sa);
		int fd = FT_FAULT("tcp/accept")
				 ? faultpoint_errno(EMFILE)
				 : accept4(l->fd, (struct sockaddr *)&sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE) && l->first) {
			half_drop(l, l->first, "no file descriptors are left");
			continue;
		}
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
			return err_sys(err, -errno, "cannot accept");
		if (fd < 0)
			return 0; /* nothing there, or one that has gone again */
		if (l->nr_half == HALF_OPEN_MAX)
			half_drop(l, l->first, "too many are half-open");
		half_add(l, fd, (struct sockaddr *)&sa, len);
	}
	return 0;
}

static const struct half *same_lane(const struct tcp_listener *l, const struct half *h)
{
	for (const struct half *o = l->first; o; o = o->next) {
		if (o != h && o->got == sizeof(o->pre) && o->pre.lane.be == h->pre.lane.be &&
		    memcmp(o->pre.token, h->pre.token, sizeof(o->pre.token)) == 0)
			return o;
	}
	return NULL;
}

/* NULL if the preamble is in order, else what is wrong. */
static const char *check_preamble(struct tcp_listener *l, struct half *h)
{
	uint32_t lanes = from_be16(h->pre.lanes), credits = from_be32(h->pre.credits);
	struct tcp_preamble answer;

	if (from_be64(h->pre.magic) != TCP_MAGIC)
		return "the preamble is not ours";
	if (from_be16(h->pre.version) != TCP_VERSION) {
		preamble_fill(&answer, from_be16(h->pre.lane), lanes, TCP_REFUSE_VERSION, h->pre.token,
			      l->base.params.credits);
		preamble_send(h->fd, h->tls, &answer);
		return "another version";
	}
	if (lanes < 2 || lanes > TP_LANES_MAX || from_be16(h->pre.lane) >= lanes) {
		preamble_fill(&answer, from_be16(h->pre.lane), TP_LANES_MAX, TCP_REFUSE_LANES, h->pre.token,
			      l->base.params.credits);
		preamble_send(h->fd, h->tls, &answer);
		return "lane or number of lanes out of range";
	}
	if (credits == 0 || credits > TP_CREDITS_MAX || from_be16(h->pre.status) != 0 ||
	    from_be32(h->pre.reserved) != 0)
		return "credits, status or reserved field out of range";
	return same_lane(l, h) ? "its lane is there already" : NULL;
}

/* A listener with TLS and a peer without, or the other way round: said in plain, which both read. */
static void half_refuse_plainly(struct tcp_listener *l, struct half *h, enum tcp_status status, const char *why)
{
	static const uint8_t no_token[16];
	struct tcp_preamble answer;

	preamble_fill(&answer, 0, 0, status, no_token, l->base.params.credits);
	preamble_send(h->fd, NULL, &answer);
	half_refuse(l, h, why);
}

static void half_watch(struct tcp_listener *l, struct half *h, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = h };

	epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, h->fd, &ev);
}

/* half_secure - true when its handshake is done. */
static bool half_secure(struct tcp_listener *l, struct half *h)
{
	struct ft_error why;
	short events = 0;
	int r = tls_handshake(h->tls, &events, &why);

	h->secured = r == 0;
	if (r == 0 || r == -EAGAIN)
		half_watch(l, h, events & POLLOUT ? EPOLLOUT : EPOLLIN);
	else if (tls_plain_peer(h->tls))
		half_refuse_plainly(l, h, TCP_REFUSE_PLAIN, why.msg);
	else if (r == -ECONNRESET)
		half_drop(l, h, "it left in the middle of the TLS handshake");
	else
		half_refuse(l, h, why.msg);
	return r == 0;
}

/* What a refused one still sends is thrown away, until it closes or its time is over. */
static void half_drain(struct tcp_listener *l, struct half *h)
{
	ssize_t n = recv(h->fd, NULL, 1u << 20, MSG_TRUNC | MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		half_drop(l, h, NULL);
}

static bool begins_tls(const struct half *h)
{
	const uint8_t *first = (const uint8_t *)&h->pre;

	return first[0] == 0x16 && first[1] == 0x03; /* a record of the handshake, version 3.x */
}

static void half_bad(struct tcp_listener *l, struct half *h, const char *why)
{
	if (!h->tls && begins_tls(h))
		half_refuse_plainly(l, h, TCP_REFUSE_TLS, "the peer speaks TLS, and here it is off (setting tls)");
	else
		half_drop(l, h, why);
}

/* half_read - true when its preamble is whole and in order; a bad one is dropped. */
static bool half_read(struct tcp_listener *l, struct half *h)
{
	const char *why = NULL;
	struct ft_error said;
	ssize_t n;

	if (h->leaving) {
		half_drain(l, h);
		return false;
	}
	if (h->got == sizeof(h->pre)) { /* EPOLLRDHUP while the others of its set are awaited */
		half_drop(l, h, "it left");
		return false;
	}
	if (h->tls && !h->secured && !half_secure(l, h))
		return false;
	n = FT_FAULT("tcp/half-receive")
		    ? -ECONNRESET
		    : preamble_receive(h->fd, h->tls, (uint8_t *)&h->pre + h->got, sizeof(h->pre) - h->got, &said);
	if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR)) {
		half_drop(l, h, "it left");
		return false;
	}
	h->got += n > 0 ? (size_t)n : 0;
	if (h->got < sizeof(h->pre))
		return false;
	why = check_preamble(l, h);
	if (why) {
		half_bad(l, h, why);
		return false;
	}
	half_watch(l, h, EPOLLRDHUP);
	return true;
}

/* Is that peer still there?  Its set may have waited in the kernel's queue for longer than it had patience. */
static bool has_left(const struct half *h)
{
	char c;
	ssize_t n = recv(h->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN);
}

/* collect - the set that @h belongs to, in order of lanes: true if it is whole. */
static bool collect(struct tcp_listener *l, const struct half *h, struct half *set[TP_LANES_MAX])
{
	uint32_t lanes = from_be16(h->pre.lanes), found = 0;

	for (struct half *o = l->first; o; o = o->next) {
		if (o->got == sizeof(o->pre) && o->pre.lanes.be == h->pre.lanes.be &&
		    o->pre.credits.be == h->pre.credits.be &&
		    memcmp(o->pre.token, h->pre.token, sizeof(o->pre.token)) == 0) {
			set[from_be16(o->pre.lane)] = o;
			found++;
		}
	}
	return found == lanes;
}

static int answer_set(struct tcp_listener *l, struct half *const *set, const struct tcp_limits *limits)
{
	int r = 0;

	for (uint32_t i = 0; i < limits->lanes && r == 0; i++) {
		struct tcp_preamble p;

		preamble_fill(&p, i, limits->lanes, TCP_OK, set[i]->pre.token, l->base.params.credits);
		r = has_left(set[i]) ? -EPIPE : preamble_send(set[i]->fd, set[i]->tls, &p);
	}
	return r;
}

/* make_conn - answer all, and the sockets become a connection.  *@out stays NULL if the peer is not there any more. */
static int make_conn(struct tcp_listener *l, struct half *const *set, struct tp_conn **out, struct ft_error *err)
{
	uint32_t asked = from_be16(set[0]->pre.lanes), max = l->base.params.lanes;
	struct tcp_limits limits = { .lanes = asked < max ? asked : max,
				     .credits_ours = l->base.params.credits,
				     .credits_peers = from_be32(set[0]->pre.credits) };
	struct tls *tls[TP_LANES_MAX];
	int fds[TP_LANES_MAX], r = 0;

	if (answer_set(l, set, &limits) == 0) {
		if (set[0]->tls)
			log_info("tcp", "%s: %s", set[0]->peer, tls_about(set[0]->tls));
		for (uint32_t i = 0; i < limits.lanes; i++) {
			fds[i] = set[i]->fd;
			tls[i] = set[i]->tls;
			epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fds[i], NULL);
		}
		r = tcp_conn_create(out, fds, l->creds ? tls : NULL, &limits, set[0]->peer, err);
		for (uint32_t i = 0; i < limits.lanes && r == 0; i++) {
			set[i]->fd = -1;
			set[i]->tls = NULL;
		}
	}
	for (uint32_t i = 0; i < asked; i++)
		half_drop(l, set[i], NULL);
	return r;
}

/* drop_old - returns when the next one is due. */
static uint64_t drop_old(struct tcp_listener *l)
{
	uint64_t now = now_ns();

	while (l->first && now - l->first->since_ns >= HALF_OPEN_NS)
		half_drop(l, l->first, "its set did not become whole in time");
	return l->first ? l->first->since_ns + HALF_OPEN_NS : DEADLINE_NEVER;
}

/* look_around - one round of events; *@out is set when a set became whole. */
static int look_around(struct tcp_listener *l, struct tp_conn **out, struct ft_error *err)
{
	struct half *set[TP_LANES_MAX] = { NULL };
	struct epoll_event ev;
	int r = 0;

	/* one event at a time: what is done for one may free another */
	for (unsigned i = 0; i < 2 * HALF_OPEN_MAX && r == 0 && !*out && epoll_wait(l->epoll_fd, &ev, 1, 0) == 1; i++) {
		if (!ev.data.ptr)
			r = take_new(l, err);
		else if (half_read(l, ev.data.ptr) && collect(l, ev.data.ptr, set))
			r = make_conn(l, set, out, err);
	}
	return r;
}

static int tcp_accept(struct tp_listener *base, struct tp_conn **out, uint64_t deadline, int cancel_fd,
		      struct ft_error *err)
{
	struct tcp_listener *l = (struct tcp_listener *)base;

	for (;;) {
		uint64_t due;
		int r = look_around(l, out, err);

		if (r != 0 || *out)
			return r;
		due = drop_old(l);
		r = wait_fd(l->epoll_fd, POLLIN, cancel_fd, due < deadline ? due : deadline);
		if (r == -ECANCELED)
			return err_set(err, r, "%s: cancelled", base->address);
		if (r != 0 && r != -ETIMEDOUT)
			return err_sys(err, r, "poll");
		if (r == -ETIMEDOUT && now_ns() >= deadline)
			return err_set(err, r, "%s: nobody connected", base->address);
	}
}

static void tcp_listener_close(struct tp_listener *base)
{
	struct tcp_listener *l = (struct tcp_listener *)base;

	while (l->first)
		half_drop(l, l->first, NULL);
	tls_creds_put(l->creds);
	close(l->epoll_fd);
	close(l->fd);
	free(l);
}

static const struct tp_listener_ops listener_ops = { .accept = tcp_accept, .close = tcp_listener_close };
