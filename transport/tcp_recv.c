/* SPDX-License-Identifier: MIT */
/* tcp_recv.c - the receiving half of a tcp connection.  Owns what rx_lock guards: of each lane the frame that is being read, what was read
 * ahead, and the message that waits; of the connection how its lanes ended.  Runs on the thread in tp_recv(), or on one in tp_send().
 *
 * One reader at a time: tp_recv(), or a tp_send() that waits for a credit while nobody is in tp_recv().  Payload goes from
 * the socket to its place; the same readv picks up the head and the table of the frame behind it, at most 4,112 octets, so that a
 * stream of full batches costs one readv a batch.
 *
 * Credits.  tp_recv() counts the messages it hands out, and tells the peer when half the window is used.  It never waits for that
 * (tcp_send.c).  So a side that is blocked in sending still receives, and credits flow as long as each side has a thread in
 * tp_recv() - or in tp_send() waiting for a credit.
 *
 * Must hold:
 *  T2  octets reach a window only under windows->lock and after the check of the extent under that same lock.
 * Order of locks: tcp_private.h. */
#include "tcp_private.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"

#define READ_BUDGET (1u << 20) /* octets from one lane before the next one has its turn */

/* -- reading a lane: rx_lock is held -- */

/* Nothing more comes, so nobody listens either: sending ends at once, receiving when the other lanes are empty. */
static void lane_over(struct tcp *s, struct lane *l, const struct ft_error *why)
{
	l->phase = RX_OVER;
	l->ready = false;
	s->nr_over++;
	epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
	conn_break_tx(&s->conn, why, NULL);
}

static void lane_lost(struct tcp *s, struct lane *l, const struct ft_error *why)
{
	lane_over(s, l, why);
	if (s->lost.code == 0)
		s->lost = *why;
}

static int breach(struct ft_error *why, const struct lane *l, const char *what, uint64_t got, uint64_t expected)
{
	return err_set(why, -EPROTO, "lane %u: the peer broke the protocol: %s %llu, expected %llu", l->index, what,
		       (unsigned long long)got, (unsigned long long)expected);
}

static int take_message(struct tcp *s, struct lane *l, uint64_t number, struct ft_error *why)
{
	uint64_t allowed = atomic_load(&l->told) + s->limits.credits_ours;

	if (l->count != 0)
		return breach(why, l, "message with a count of", l->count, 0);
	if (l->len > TP_MESSAGE_MAX)
		return breach(why, l, "message length", l->len, TP_MESSAGE_MAX);
	if (number != l->messages_in + 1)
		return breach(why, l, "message number", number, l->messages_in + 1);
	if (number > allowed)
		return breach(why, l, "message without a credit: number", number, allowed);
	l->messages_in++;
	l->got = 0;
	l->phase = RX_MESSAGE;
	return 0;
}

static int take_write(struct lane *l, uint64_t number, struct ft_error *why)
{
	if (l->count == 0 || l->count > TCP_EXTENTS_MAX)
		return breach(why, l, "write with a number of extents of", l->count, TCP_EXTENTS_MAX);
	if (l->len <= l->count * sizeof(struct tcp_extent) || l->len > TCP_FRAME_BYTES_MAX)
		return breach(why, l, "length of a write", l->len, TCP_FRAME_BYTES_MAX);
	if (number != l->writes_in + 1)
		return breach(why, l, "write number", number, l->writes_in + 1);
	l->writes_in += l->count;
	l->phase = RX_TABLE;
	return 0;
}

static int take_credit_frame(struct lane *l, uint64_t number, struct ft_error *why)
{
	uint64_t returned = atomic_load(&l->returned), taken = atomic_load(&l->taken);

	if (l->count != 0 || l->len != 0)
		return breach(why, l, "credit frame with a length of", l->len, 0);
	if (number <= returned || number > taken)
		return breach(why, l, "credit number", number, taken);
	atomic_store(&l->returned, number);
	if (atomic_load(&l->waiting))
		event_raise(l->credit_fd);
	return 0;
}

static int take_close(struct tcp *s, struct lane *l, uint64_t number, struct ft_error *why)
{
	if (l->count != 0 || l->len != 0)
		return breach(why, l, "close frame with a length of", l->len, 0);
	if (number != l->messages_in)
		return breach(why, l, "close frame with a number of messages of", number, l->messages_in);
	if (l->index == 0)
		s->closed_by_peer = true;
	err_set(why, -EPIPE, "the peer closed the connection");
	lane_over(s, l, why);
	return 0;
}

static int take_frame(struct tcp *s, struct lane *l, struct ft_error *why)
{
	struct tcp_frame f;
	unsigned kind;

	memcpy(&f, l->ahead + l->ahead_at, sizeof(f));
	l->ahead_at += (unsigned)sizeof(f);
	kind = from_be16(f.kind);
	l->count = from_be16(f.count);
	l->len = from_be32(f.len);
	switch (kind) {
	case FRAME_MESSAGE:
		return take_message(s, l, from_be64(f.number), why);
	case FRAME_WRITE:
		return take_write(l, from_be64(f.number), why);
	case FRAME_CREDIT:
		return take_credit_frame(l, from_be64(f.number), why);
	case FRAME_CLOSE:
		return take_close(s, l, from_be64(f.number), why);
	}
	return breach(why, l, "frame of kind", kind, FRAME_WRITE);
}

static int take_table(struct lane *l, struct ft_error *why)
{
	uint64_t payload = l->len - l->count * sizeof(struct tcp_extent), sum = 0;

	for (unsigned i = 0; i < l->count; i++) {
		struct tcp_extent x;

		memcpy(&x, l->ahead + l->ahead_at, sizeof(x));
		l->ahead_at += (unsigned)sizeof(x);
		l->extent[i] = (struct extent){ from_be32(x.window), from_be32(x.len), from_be64(x.offset) };
		if (l->extent[i].len == 0 || l->extent[i].len > TP_WRITE_MAX)
			return breach(why, l, "extent length", l->extent[i].len, TP_WRITE_MAX);
		sum += l->extent[i].len;
	}
	if (sum != payload)
		return breach(why, l, "sum of the extents", sum, payload);
	l->at = 0;
	l->phase = RX_PAYLOAD;
	return 0;
}

/* where - the rest of extent @i; windows->lock held. */
static int where(struct tcp *s, const struct lane *l, unsigned i, void **at, struct ft_error *why)
{
	const struct extent *x = &l->extent[i];

	*at = windows_at(s->conn.windows, x->window, x->offset, x->len);
	if (*at)
		return 0;
	return err_set(
		why, -EPROTO,
		"lane %u: the peer broke the protocol: write of %u octets at %llu of window %u, not open or too small",
		l->index, x->len, (unsigned long long)x->offset, x->window);
}

static void payload_advance(struct lane *l, uint64_t n)
{
	while (n > 0) {
		struct extent *x = &l->extent[l->at];
		uint32_t step = n < x->len ? (uint32_t)n : x->len;

		x->len -= step;
		x->offset += step;
		n -= step;
		if (x->len == 0)
			l->at++;
	}
	if (l->at == l->count)
		l->phase = RX_FRAME;
}

static int take_payload(struct tcp *s, struct lane *l, struct ft_error *why)
{
	uint32_t n = l->ahead_end - l->ahead_at;
	void *at;
	int r;

	if (n > l->extent[l->at].len)
		n = l->extent[l->at].len;
	pthread_mutex_lock(&s->conn.windows->lock);
	r = where(s, l, l->at, &at, why);
	if (r == 0)
		memcpy(at, l->ahead + l->ahead_at, n);
	pthread_mutex_unlock(&s->conn.windows->lock);
	if (r != 0)
		return r;
	l->ahead_at += n;
	payload_advance(l, n);
	return 0;
}

static void message_advance(struct lane *l, uint32_t n)
{
	l->got += n;
	if (l->got < l->len)
		return;
	l->whole = true;
	l->phase = RX_FRAME;
}

static void take_message_octets(struct lane *l)
{
	uint32_t n = l->ahead_end - l->ahead_at;

	if (n > l->len - l->got)
		n = l->len - l->got;
	memcpy(l->message + l->got, l->ahead + l->ahead_at, n);
	l->ahead_at += n;
	message_advance(l, n);
}

static bool in_write(const struct lane *l)
{
	return l->phase == RX_TABLE || l->phase == RX_PAYLOAD;
}

/* parse - what was read ahead, until more is needed or a message is whole; without @place, until a write begins. */
static int parse(struct tcp *s, struct lane *l, bool place, struct ft_error *why)
{
	int r = 0;

	while (r == 0 && !l->whole && (place || !in_write(l))) {
		unsigned have = l->ahead_end - l->ahead_at;

		switch (l->phase) {
		case RX_FRAME:
			if (have < sizeof(struct tcp_frame))
				return 0;
			r = take_frame(s, l, why);
			break;
		case RX_TABLE:
			if (have < l->count * sizeof(struct tcp_extent))
				return 0;
			r = take_table(l, why);
			break;
		case RX_PAYLOAD:
			if (have == 0)
				return 0;
			r = take_payload(s, l, why);
			break;
		case RX_MESSAGE:
			if (have == 0 && l->len > 0)
				return 0;
			take_message_octets(l);
			break;
		case RX_OVER:
			return 0;
		}
	}
	return r;
}

/* fill_plan - where the next octets belong: the rest of the payload or the message, and behind it room to read ahead. */
static int fill_plan(struct tcp *s, struct lane *l, struct iovec *iov, unsigned *nr, struct ft_error *why)
{
	*nr = 0;
	if (l->phase == RX_PAYLOAD) {
		for (unsigned i = l->at; i < l->count; i++) {
			int r = where(s, l, i, &iov[*nr].iov_base, why);

			if (r != 0)
				return r;
			iov[(*nr)++].iov_len = l->extent[i].len;
		}
	} else if (l->phase == RX_MESSAGE) {
		iov[(*nr)++] = (struct iovec){ l->message + l->got, l->len - l->got };
	}
	memmove(l->ahead, l->ahead + l->ahead_at, l->ahead_end - l->ahead_at);
	l->ahead_end -= l->ahead_at;
	l->ahead_at = 0;
	iov[(*nr)++] = (struct iovec){ l->ahead + l->ahead_end, AHEAD_MAX - l->ahead_end };
	return 0;
}

static void fill_done(struct lane *l, size_t n)
{
	uint64_t direct = 0;

	if (l->phase == RX_PAYLOAD) {
		for (unsigned i = l->at; i < l->count; i++)
			direct += l->extent[i].len;
		direct = n < direct ? n : direct;
		payload_advance(l, direct);
	} else if (l->phase == RX_MESSAGE) {
		direct = n < l->len - l->got ? n : l->len - l->got;
		message_advance(l, (uint32_t)direct);
	}
	l->ahead_end += (unsigned)(n - direct);
}

/* Octets, 0 at the end, or a negative errno, which TLS may tell more of in @why. */
static ssize_t read_some(struct lane *l, const struct iovec *iov, unsigned nr, struct ft_error *why)
{
	ssize_t n;

	why->code = 0;
	if (FT_FAULT("tcp/receive"))
		return -ECONNRESET;
	if (l->tls)
		return tls_receive(l->tls, iov, nr, why);
	do
		n = readv(l->fd, iov, (int)nr);
	while (n < 0 && errno == EINTR);
	return n >= 0 ? n : -errno;
}

/* Decrypted octets, of which epoll knows nothing. */
static bool has_more(const struct lane *l)
{
	return l->tls && tls_pending(l->tls);
}

/* fill - one readv.  Octets read, 0 when there were none, or an error.  *@empty: the socket has no more. */
static ssize_t fill(struct tcp *s, struct lane *l, bool *empty, struct ft_error *why)
{
	struct iovec iov[TCP_EXTENTS_MAX + 1];
	size_t wanted = 0;
	unsigned nr;
	ssize_t n = 0;
	int r;

	pthread_mutex_lock(&s->conn.windows->lock);
	r = fill_plan(s, l, iov, &nr, why);
	if (r == 0) {
		n = read_some(l, iov, nr, why);
		r = n < 0 ? (int)n : 0;
	}
	pthread_mutex_unlock(&s->conn.windows->lock);
	if (r == -EPROTO)
		return r;
	*empty = true;
	if (r == -EAGAIN)
		return 0;
	if (r == -ETIMEDOUT)
		return err_set(why, -ECONNRESET, "lane %u: the peer does not answer", l->index);
	if (r != 0 && why->code != 0)
		return err_prefix(why, "lane %u: cannot receive", l->index);
	if (r != 0)
		return err_sys(why, r, "lane %u: cannot receive", l->index);
	if (n == 0)
		return err_set(why, -ECONNRESET, "lane %u: the peer is gone, it ended the stream without a close%s",
			       l->index, l->phase == RX_FRAME && l->ahead_end == 0 ? "" : ", in the middle of a frame");
	for (unsigned i = 0; i < nr; i++)
		wanted += iov[i].iov_len;
	*empty = (size_t)n < wanted && !has_more(l);
	fill_done(l, (size_t)n);
	tcp_add(&s->bytes_received, (uint64_t)n);
	return n;
}

/* read_lane - until a message is whole, the socket is empty (ready becomes false), or the budget is used; without @place, until a write
 * begins.
 * -EPROTO: a breach; another error: the lane is lost. */
static int read_lane(struct tcp *s, struct lane *l, bool place, struct ft_error *why)
{
	size_t budget = READ_BUDGET;
	bool empty = false;

	l->ready = true;
	for (;;) {
		ssize_t n;
		int r = parse(s, l, place, why);

		if (r != 0 || l->whole || l->phase == RX_OVER || (!place && in_write(l)))
			return r;
		if (empty)
			l->ready = false; /* epoll tells when there is more */
		if (empty || (budget == 0 &&
			      (place || !has_more(l)))) /* else the socket is watched, which knows nothing of it */
			return 0;
		n = fill(s, l, &empty, why);
		if (n < 0)
			return (int)n;
		budget = (size_t)n < budget ? budget - (size_t)n : 0;
	}
}

/* -- recv -- */

static bool any_ready(const struct tcp *s)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		if (s->lane[i].ready)
			return true;
	}
	return false;
}

/* has_news - tp_recv() has something to do that epoll does not see: octets read ahead, or an end to tell. */
static bool has_news(const struct tcp *s)
{
	return any_ready(s) || s->lost.code != 0 || s->nr_over == s->conn.lanes;
}

/* show_news - for who polls.  A system call only when it changes, and it seldom does: little is read ahead behind a message. */
static void show_news(struct tcp *s)
{
	bool ready = has_news(s);

	if (s->ready_raised == ready)
		return;
	s->ready_raised = ready;
	if (ready)
		event_raise(s->ready_fd);
	else
		event_clear(s->ready_fd);
}

/* tcp_read_for_credit - in tp_recv()'s place, if nobody is there; up to the next message or write: between two tp_recv() windows do not
 * change.  True: the socket is to be watched for more. */
bool tcp_read_for_credit(struct tcp *s, struct lane *l)
{
	struct ft_error why;
	bool more = false;
	int r;

	/* set before the trylock: whoever holds the lock now sees it when he has left, and wakes us */
	atomic_store(&l->missed, true);
	if (pthread_mutex_trylock(&s->rx_lock) != 0)
		return false;
	atomic_store(&l->missed, false);
	if (conn_fate_rx(&s->conn, NULL) == 0 && l->phase != RX_OVER) {
		r = read_lane(s, l, false, &why);
		if (r == -EPROTO)
			conn_break(&s->conn, &why, NULL);
		else if (r < 0)
			lane_lost(s, l, &why);
		more = l->phase != RX_OVER && !l->whole && !in_write(l);
		show_news(s);
	}
	pthread_mutex_unlock(&s->rx_lock);
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (atomic_exchange(&s->lane[i].missed, false))
			event_raise(s->lane[i].credit_fd);
	return more;
}

/* gather_events - marks lanes ready; waits only if there is nothing to do. */
static int gather_events(struct tcp *s, uint64_t deadline, struct ft_error *err)
{
	struct epoll_event ev[TP_LANES_MAX + 2];
	int n;

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		if (tcp_credit_owed(s, &s->lane[i]))
			tcp_push_credit(s, &s->lane[i]);
	}
	show_news(s); /* else the level would end our own wait */
	n = FT_FAULT("tcp/epoll-wait")
		    ? faultpoint_errno(EINVAL)
		    : epoll_wait(s->epoll_fd, ev, TP_LANES_MAX + 2, has_news(s) ? 0 : deadline_poll_ms(deadline));
	if (n < 0)
		return errno == EINTR ? 0 : err_sys(err, -errno, "epoll_wait");
	for (int i = 0; i < n; i++) {
		struct lane *l;

		if (ev[i].data.u32 == EV_HALT || ev[i].data.u32 == EV_READY)
			continue;
		l = &s->lane[ev[i].data.u32];
		if (ev[i].events & EPOLLOUT)
			tcp_push_credit(s, l);
		if ((ev[i].events & ~(uint32_t)EPOLLOUT) && l->phase != RX_OVER)
			l->ready = true;
	}
	return 0;
}

static void hand_out(struct tcp *s, struct lane *l, void *buf, uint32_t *lane, size_t *len)
{
	memcpy(buf, l->message, l->len);
	*lane = l->index;
	*len = l->len;
	l->whole = false;
	l->ready = l->ahead_at < l->ahead_end || has_more(l); /* what is in the socket epoll tells again */
	s->next = (l->index + 1) % s->conn.lanes;
	tcp_add(&s->messages_received, 1);
	atomic_fetch_add(&l->consumed, 1);
	/* Credits wait for the answer that the message may bring, and go with it, or with the next tp_recv(): a frame of its own for each half
	 * window made round trips a third slower.  A peer that has none left does not wait. */
	if (atomic_load(&l->consumed) - atomic_load(&l->told) >= s->limits.credits_ours)
		tcp_push_credit(s, l);
}

/* look_around - each lane that is ready, once, in turn.  1: a message was handed out. */
static int look_around(struct tcp *s, void *buf, uint32_t *lane, size_t *len, struct ft_error *err)
{
	uint32_t first = s->next;

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		struct lane *l = &s->lane[(first + i) % s->conn.lanes];
		struct ft_error why;
		int r = 0;

		if (!l->whole && l->ready && l->phase != RX_OVER)
			r = read_lane(s, l, true, &why);
		if (r == -EPROTO)
			return conn_break(&s->conn, &why, err);
		if (r < 0)
			lane_lost(s, l, &why);
		if (l->whole) {
			hand_out(s, l, buf, lane, len);
			return 1;
		}
	}
	return 0;
}

/* The end of a connection is told after all that came before it: a peer that closes resets lanes on which it had octets unread. */
static int look_for_end(struct tcp *s, struct ft_error *err)
{
	struct ft_error why;

	if (s->nr_over < s->conn.lanes && (s->lost.code == 0 || any_ready(s)))
		return 0;
	if (s->lost.code == 0 || s->closed_by_peer)
		err_set(&why, -ENODATA, "the peer closed the connection");
	else
		why = s->lost;
	return conn_break(&s->conn, &why, err);
}

int tcp_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct tcp *s = tcp_of(c);
	int r;

	pthread_mutex_lock(&s->rx_lock);
	do {
		r = gather_events(s, deadline, err);
		if (r == 0)
			r = conn_fate_rx(c, err);
		if (r == 0)
			r = look_around(s, buf, lane, len, err);
		if (r == 0)
			r = look_for_end(s, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: nothing came", c->name, c->peer);
	} while (r == 0);
	show_news(s);
	pthread_mutex_unlock(&s->rx_lock);
	/* A tp_send() that found us here now has to read for itself.  It set waiting before it tried rx_lock, so either it got the
	 * lock or we see it. */
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < c->lanes; i++) {
		if (atomic_load(&s->lane[i].waiting))
			event_raise(s->lane[i].credit_fd);
	}
	return r > 0 ? 0 : r;
}
