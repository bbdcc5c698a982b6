/* SPDX-License-Identifier: MIT */
/* tcp.c - a connection of several TCP sockets, one a lane.  docs/protocol-tcp.md has the frames.
 * This file owns its life: descriptors and memory from tcp_conn_create() to the close, the wake of those who wait, and the table of ops.
 * tcp_send.c writes and sends, tcp_recv.c receives, tcp_private.h is what the three share.
 * Creation runs on the thread that connects or accepts; wake, sever and stats on any thread; destroy on the closer's, when no other is
 * inside.
 *
 * Must hold: the sockets stay the caller's until tcp_conn_create() has succeeded; a close in peace says goodbye on each lane that is not
 * torn.  T1 and T3 are in tcp_send.c, T2 is in tcp_recv.c. */
#include "tcp_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faultpoint.h"

#define LINGER_BYTES                                                                                                   \
	(16u << 20) /* unread octets that are thrown away at close, so that no reset overtakes our last words */

static int tcp_poll_fd(struct tp_conn *c)
{
	return tcp_of(c)->epoll_fd;
}

static void tcp_stats(struct tp_conn *c, struct tp_stats *out)
{
	struct tcp *s = tcp_of(c);

	out->bytes_sent = atomic_load_explicit(&s->bytes_sent, memory_order_relaxed);
	out->bytes_received = atomic_load_explicit(&s->bytes_received, memory_order_relaxed);
	out->writes = atomic_load_explicit(&s->writes, memory_order_relaxed);
	out->messages_sent = atomic_load_explicit(&s->messages_sent, memory_order_relaxed);
	out->messages_received = atomic_load_explicit(&s->messages_received, memory_order_relaxed);
}

static void tcp_wake(struct tp_conn *c)
{
	struct tcp *s = tcp_of(c);

	if (conn_fate_rx(c, NULL) != 0)
		event_raise(s->halt_rx_fd);
	if (conn_fate_tx(c, NULL) == 0)
		return;
	event_raise(s->halt_tx_fd);
	for (uint32_t i = 0; i < c->lanes; i++) {
		tcp_turn_kick(&s->lane[i].sending);
		tcp_turn_kick(&s->lane[i].tx);
	}
}

static void tcp_sever(struct tp_conn *c)
{
	struct tcp *s = tcp_of(c);

	for (uint32_t i = 0; i < c->lanes; i++)
		shutdown(s->lane[i].fd, SHUT_RDWR);
}

/* Unread octets at close() make the kernel send a reset, which overtakes what we sent.  MSG_TRUNC drops them uncopied. */
static void drop_unread(struct lane *l)
{
	size_t left = LINGER_BYTES;

	while (left > 0) {
		ssize_t n = recv(l->fd, NULL, left, MSG_TRUNC | MSG_DONTWAIT);

		if (n <= 0)
			return;
		left -= (size_t)n < left ? (size_t)n : left;
	}
}

static void lane_fini(struct lane *l)
{
	tls_close(l->tls);
	if (l->fd >= 0)
		close(l->fd);
	if (l->credit_fd >= 0)
		close(l->credit_fd);
	free(l->message);
	tcp_turn_fini(&l->sending);
	tcp_turn_fini(&l->tx);
}

static void tcp_free(struct tcp *s)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		lane_fini(&s->lane[i]);
	for (int *fd = (int[]){ s->halt_tx_fd, s->halt_rx_fd, s->epoll_fd, s->ready_fd, -2 }; *fd != -2; fd++) {
		if (*fd >= 0)
			close(*fd);
	}
	pthread_mutex_destroy(&s->rx_lock);
	conn_fini(&s->conn);
	free(s);
}

static void tcp_destroy(struct tp_conn *c)
{
	struct tcp *s = tcp_of(c);
	int code = atomic_load(&c->code_rx);
	bool in_peace = code == 0 || code == -ENODATA;

	for (uint32_t i = 0; i < c->lanes; i++) {
		if (in_peace)
			tcp_say_goodbye(s, &s->lane[i]);
		shutdown(s->lane[i].fd, SHUT_WR);
	}
	for (uint32_t i = 0; i < c->lanes; i++)
		drop_unread(&s->lane[i]);
	tcp_free(s);
}

static const struct tp_conn_ops ops = {
	.write = tcp_write,
	.completed = tcp_completed,
	.wait_completed = tcp_wait_completed,
	.send = tcp_send,
	.credits = tcp_credits,
	.recv = tcp_recv,
	.poll_fd = tcp_poll_fd,
	.stats = tcp_stats,
	.wake = tcp_wake,
	.sever = tcp_sever,
	.destroy = tcp_destroy,
};

static int lane_init(struct tcp *s, struct lane *l)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = l->index };

	l->credit_fd =
		FT_FAULT("tcp/credit-eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	l->message = FT_FAULT("tcp/message") ? NULL : malloc(TP_MESSAGE_MAX);
	if (!l->message)
		return -ENOMEM;
	if (l->credit_fd < 0 || (FT_FAULT("tcp/lane-epoll") && faultpoint_errno(ENOSPC)) ||
	    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) != 0)
		return -errno;
	return 0;
}

static int watch_event(struct tcp *s, int fd, uint32_t mark)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = mark };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

static int open_fds(struct tcp *s)
{
	int r;

	s->epoll_fd = FT_FAULT("tcp/epoll") ? faultpoint_errno(EMFILE) : epoll_create1(EPOLL_CLOEXEC);
	s->halt_tx_fd =
		FT_FAULT("tcp/halt-eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->halt_rx_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->ready_fd = FT_FAULT("tcp/ready-eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->epoll_fd < 0 || s->halt_tx_fd < 0 || s->halt_rx_fd < 0 || s->ready_fd < 0)
		return -errno;
	r = watch_event(s, s->halt_rx_fd, EV_HALT);
	return r != 0 ? r : watch_event(s, s->ready_fd, EV_READY);
}

int tcp_conn_create(struct tp_conn **out, const int *fds, struct tls *const *tls, const struct tcp_limits *limits,
		    const char *peer, struct ft_error *err)
{
	struct tcp *s = FT_FAULT("tcp/create") ? NULL : calloc(1, sizeof(*s) + limits->lanes * sizeof(s->lane[0]));
	int r;

	*out = NULL;
	if (!s)
		return err_set(err, -ENOMEM, "no memory for a connection");
	conn_init(&s->conn, &ops, limits->lanes, tls ? "tls" : "tcp", peer);
	s->limits = *limits;
	pthread_mutex_init(&s->rx_lock, NULL);
	for (uint32_t i = 0; i < limits->lanes; i++) {
		struct lane *l = &s->lane[i];

		l->fd = l->credit_fd = -1;
		l->index = i;
		tcp_turn_init(&l->sending);
		tcp_turn_init(&l->tx);
	}
	r = open_fds(s);
	for (uint32_t i = 0; i < limits->lanes && r == 0; i++) {
		s->lane[i].fd = fds[i];
		s->lane[i].tls = tls ? tls[i] : NULL;
		s->lane[i].ready = tls && tls_pending(tls[i]);
		r = lane_init(s, &s->lane[i]);
	}
	if (r != 0) {
		for (uint32_t i = 0; i < limits->lanes; i++) { /* still the caller's */
			s->lane[i].fd = -1;
			s->lane[i].tls = NULL;
		}
		tcp_free(s);
		return err_sys(err, r, "cannot set up a connection");
	}
	*out = &s->conn;
	return 0;
}
