/* SPDX-License-Identifier: MIT */
/* tcp_send.c - the sending half of a tcp connection.  Owns the turns, and of each lane the batch, the train, and what is known of the
 * peer's credits.  Runs on the threads that write, send and ask for completion, and on that of tp_recv(), which sends credits.
 *
 * Writes are gathered into a batch (up to 256 extents, 1 MiB and a bit), which costs one frame and one sendmsg: pages
 * of 4 KiB sent one by one cost a system call each on both sides.  Sealing makes a train of what is owed: a credit frame, the batch,
 * a message.  A train is handed to the kernel in as many steps as it takes; only one exists on a lane, and only the holder of the
 * lane's tx turn touches it.  A batch leaves when it is full, when a message follows, and when somebody waits for its completion.
 * A write that is queued needs no deadline: the next call goes on where the kernel stopped.  A message points to its sender's
 * memory, so it goes out whole before tp_send() returns, or is taken back if not an octet of it has gone, or breaks the connection.
 *
 * Sending a credit never makes the reader wait: if the lane's turn is taken, the holder sends the credit when it leaves (lane_leave);
 * if the socket is full, the lane is watched for room in tp_recv()'s epoll set.
 *
 * Must hold:
 *  T1  completed <= posted, and a ticket counts as completed only when its last octet is in the kernel; with TLS, all of its last record.
 *  T3  after a frame went out in part and cannot be continued, the lane is torn and nothing more is sent on it.
 * Order of locks: tcp_private.h. */
#include "tcp_private.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"

/* -- turns -- */

void tcp_turn_init(struct turn *t)
{
	pthread_mutex_init(&t->lock, NULL);
	cond_init(&t->cond);
}

void tcp_turn_fini(struct turn *t)
{
	pthread_cond_destroy(&t->cond);
	pthread_mutex_destroy(&t->lock);
}

static bool turn_try(struct turn *t)
{
	int free = 0;

	return atomic_compare_exchange_strong(&t->state, &free, 1);
}

static int turn_take(struct tcp *s, struct turn *t, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	if (turn_try(t))
		return 0;
	pthread_mutex_lock(&t->lock);
	while (atomic_exchange(&t->state, 2) != 0) {
		r = conn_fate_tx(&s->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: other threads use the lane", s->conn.name, s->conn.peer);
		if (r != 0)
			break;
		cond_wait_until(&t->cond, &t->lock, deadline);
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

void tcp_turn_kick(struct turn *t)
{
	pthread_mutex_lock(&t->lock);
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

static void turn_give(struct turn *t)
{
	if (atomic_exchange(&t->state, 0) == 2)
		tcp_turn_kick(t);
}

/* -- the train -- */

static void watch(struct tcp *s, struct lane *l, bool for_room)
{
	struct epoll_event ev = { .events = EPOLLIN | (for_room ? (uint32_t)EPOLLOUT : 0), .data.u32 = l->index };

	if (l->watched == for_room)
		return;
	l->watched = for_room;
	/* fails after tp_recv() took a dead lane out of the set; then there is nothing to send either */
	epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, l->fd, &ev);
}

bool tcp_credit_owed(const struct tcp *s, struct lane *l)
{
	uint64_t half = (s->limits.credits_ours + 1) / 2;

	return atomic_load(&l->consumed) - atomic_load(&l->told) >= half;
}

static void train_add(struct lane *l, void *base, size_t len)
{
	if (len > 0) /* train_push() counts on it: sending nothing would be no progress */
		l->train[l->nr_train++] = (struct iovec){ .iov_base = base, .iov_len = len };
}

static struct tcp_frame frame(enum tcp_kind kind, unsigned nr, uint32_t len, uint64_t number)
{
	return (struct tcp_frame){ to_be16((uint16_t)kind), to_be16((uint16_t)nr), to_be32(len), to_be64(number) };
}

static void seal_credit(struct lane *l)
{
	uint64_t consumed = atomic_load(&l->consumed);

	atomic_store(&l->told, consumed);
	l->credit_frame = frame(FRAME_CREDIT, 0, 0, consumed);
	l->train_credit = true;
	train_add(l, &l->credit_frame, sizeof(l->credit_frame));
}

static void seal_batch(struct lane *l)
{
	uint32_t table = l->nr_extents * (uint32_t)sizeof(struct tcp_extent);

	l->batch.frame = frame(FRAME_WRITE, l->nr_extents, table + l->batch_bytes, l->posted - l->nr_extents + 1);
	l->train_ticket = l->posted;
	l->train_batch = true;
	train_add(l, &l->batch, sizeof(l->batch.frame) + table);
	memcpy(&l->train[l->nr_train], l->part, l->nr_parts * sizeof(l->part[0]));
	l->nr_train += l->nr_parts;
}

/* All that is to go out, as one train.  There is none yet. */
static void seal(struct tcp *s, struct lane *l)
{
	l->train_at = l->nr_train = 0;
	l->train_batch = l->train_credit = false;
	if (tcp_credit_owed(s, l))
		seal_credit(l);
	if (l->nr_extents > 0)
		seal_batch(l);
	l->train_message = l->nr_train;
}

static void train_arrived(struct lane *l)
{
	l->train_at = l->nr_train = 0;
	if (!l->train_batch)
		return;
	l->train_batch = false;
	l->nr_extents = l->nr_parts = 0;
	l->batch_bytes = 0;
	/* release; pairs with the acquire in completed(): the buffer is no longer read here */
	atomic_store_explicit(&l->completed, l->train_ticket, memory_order_release);
}

static void train_advance(struct lane *l, size_t n)
{
	while (n > 0) {
		struct iovec *v = &l->train[l->train_at];

		if (n < v->iov_len) {
			v->iov_base = (uint8_t *)v->iov_base + n;
			v->iov_len -= n;
			return;
		}
		n -= v->iov_len;
		l->train_at++;
	}
}

/* Has any of the message at the end of the train gone? */
static bool message_begun(const struct lane *l)
{
	return l->train_at > l->train_message ||
	       (l->train_at == l->train_message && l->train[l->train_at].iov_base != &l->message_frame);
}

/* The next octets of the train through TLS.  A record has none of what stands before a message and of the message, and is not begun for a message
 * that the socket has no room for: encrypted it cannot be taken back.  What is on its way already goes first. */
static ssize_t send_tls(struct lane *l, struct ft_error *why)
{
	unsigned end = l->train_at < l->train_message ? l->train_message : l->nr_train;

	if (l->train_at == l->train_message && !message_begun(l)) {
		if (tls_unsent(l->tls))
			return tls_send(l->tls, NULL, 0, why);
		if (!tls_room(l->tls))
			return -EAGAIN;
	}
	return tls_send(l->tls, l->train + l->train_at, end - l->train_at, why);
}

/* Octets that went, or a negative errno, which TLS may tell more of in @why. */
static ssize_t send_some(struct lane *l, struct ft_error *why)
{
	struct msghdr m = { .msg_iov = l->train + l->train_at, .msg_iovlen = l->nr_train - l->train_at };
	ssize_t n;

	why->code = 0;
	if (FT_FAULT("tcp/send"))
		return -EPIPE;
	if (l->tls)
		return send_tls(l, why);
	n = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	return n >= 0 ? n : -errno;
}

static bool train_left(const struct lane *l)
{
	return l->train_at < l->nr_train || (l->tls && tls_unsent(l->tls));
}

/* The lane is torn: why is in @why if there is a sentence yet, else @r says it. */
static int tear(struct tcp *s, struct lane *l, int r, struct ft_error *why, struct ft_error *err)
{
	l->torn = true;
	/* the kernel's ETIMEDOUT is a peer that does not answer; ours means that all is well */
	if (why->code == 0)
		err_sys(why, r == -ETIMEDOUT ? -ECONNRESET : r, "lane %u: cannot send%s", l->index,
			r == -ETIMEDOUT ? ", the peer does not answer" : "");
	else
		err_prefix(why, "lane %u: cannot send", l->index);
	return conn_break_tx(&s->conn, why, err);
}

/* train_push - as much as the kernel takes now.  0: all of it; -EAGAIN: the socket is full; else the lane is torn and the
 * direction over. */
static int train_push(struct tcp *s, struct lane *l, struct ft_error *err)
{
	struct ft_error why;

	while (train_left(l)) {
		ssize_t n = send_some(l, &why);

		if (n >= 0) {
			tcp_add(&s->bytes_sent, (uint64_t)n);
			train_advance(l, (size_t)n);
		} else if (n == -EAGAIN) {
			return -EAGAIN;
		} else if (n != -EINTR) {
			return tear(s, l, (int)n, &why, err);
		}
	}
	train_arrived(l);
	return 0;
}

/* await_room - 0: there may be room; -ETIMEDOUT; or the end of this direction.  The end of the peer's stream is one too: nobody half
 * closes, so its process is gone or has closed, and perhaps with so much unread that no room will ever be. */
static int await_room(struct tcp *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	struct pollfd p[2] = { { .fd = l->fd, .events = POLLOUT | POLLRDHUP },
			       { .fd = s->halt_tx_fd, .events = POLLIN } };
	struct ft_error why;
	int n = poll(p, 2, deadline_poll_ms(deadline));

	if (n < 0 && errno != EINTR)
		return err_sys(err, -errno, "poll");
	if (n > 0 && p[1].revents)
		return conn_fate_tx(&s->conn, err);
	if (n > 0 && (p[0].revents & POLLRDHUP) && !(p[0].revents & (POLLERR | POLLHUP))) {
		l->torn = true;
		err_set(&why, -EPIPE, "lane %u: cannot send, the peer has ended the stream", l->index);
		return conn_break_tx(&s->conn, &why, err);
	}
	if (n <= 0 && now_ns() >= deadline)
		return err_set(err, -ETIMEDOUT, "%s %s: lane %u: no room", s->conn.name, s->conn.peer, l->index);
	return 0;
}

/* train_finish - all of it, until @deadline.  -ETIMEDOUT and -ECANCELED: the rest can still go. */
static int train_finish(struct tcp *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r;

	while ((r = train_push(s, l, err)) == -EAGAIN) {
		r = await_room(s, l, deadline, err);
		if (r != 0)
			break;
	}
	return r;
}

static int lane_enter(struct tcp *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = turn_take(s, &l->tx, deadline, err);

	if (r != 0)
		return r;
	r = conn_fate_tx(&s->conn, err);
	if (r != 0)
		turn_give(&l->tx);
	else
		watch(s, l, false); /* whoever is in sends on; tp_recv need not */
	return r;
}

/* lane_leave - give the tx turn back, and see to the credits that became due while it was taken: tp_recv() raises consumed,
 * then tries the turn; we free the turn, then look at consumed.  One of the two sees the other (all seq_cst). */
static void lane_leave(struct tcp *s, struct lane *l)
{
	int r = 0;

	for (;;) {
		if (l->nr_train > 0 && (l->train_credit || tcp_credit_owed(s, l)))
			watch(s, l, true);
		turn_give(&l->tx);
		if (r != 0 || !tcp_credit_owed(s, l) || !turn_try(&l->tx))
			return;
		if (!l->torn && l->nr_train == 0)
			seal(s, l);
		r = l->torn ? -EPIPE : train_push(s, l, NULL);
	}
}

/* tcp_push_credit - by the reader: what is due goes now, or with whoever has the turn, or when there is room. */
void tcp_push_credit(struct tcp *s, struct lane *l)
{
	int r;

	if (!turn_try(&l->tx))
		return;
	watch(s, l, false);
	r = l->torn ? -EPIPE : train_push(s, l, NULL);
	if (r == 0 && tcp_credit_owed(s, l)) {
		seal(s, l);
		r = train_push(s, l, NULL);
	}
	if (r == -EAGAIN)
		watch(s, l, true);
	turn_give(&l->tx);
}

/* -- write -- */

static void batch_add(struct lane *l, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov)
{
	uint32_t len = 0;

	for (unsigned i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len == 0)
			continue;
		l->part[l->nr_parts++] = iov[i];
		len += (uint32_t)iov[i].iov_len;
	}
	l->batch.extent[l->nr_extents++] = (struct tcp_extent){ to_be32(window), to_be32(len), to_be64(offset) };
	l->batch_bytes += len;
	l->posted++;
}

static bool batch_full(const struct lane *l)
{
	return l->nr_extents == TCP_EXTENTS_MAX || l->nr_parts >= TCP_EXTENTS_MAX || l->batch_bytes >= TCP_BATCH_BYTES;
}

int tcp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
	      unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct tcp *s = tcp_of(c);
	struct lane *l = &s->lane[lane];
	int r;

	r = lane_enter(s, l, deadline, err);
	if (r != 0)
		return r;
	r = train_finish(s, l, deadline, err); /* a batch that is on its way must be gone before the next one gathers */
	if (r != 0)
		goto out;
	batch_add(l, window, offset, iov, nr_iov);
	*ticket = l->posted;
	tcp_add(&s->writes, 1);
	if (batch_full(l)) {
		seal(s, l);
		r = train_push(s, l, err);
		if (r == -EAGAIN)
			r = 0;
	}
out:
	lane_leave(s, l);
	return r;
}

/* A caller that asks twice without writing in between waits for what is gathered: it goes. */
uint64_t tcp_completed(struct tp_conn *c, uint32_t lane)
{
	struct tcp *s = tcp_of(c);
	struct lane *l = &s->lane[lane];

	if (turn_try(&l->tx)) {
		if (!l->torn && conn_fate_tx(c, NULL) == 0) {
			if (l->nr_train == 0 && l->seen_posted == l->posted)
				seal(s, l);
			train_push(s, l, NULL);
		}
		l->seen_posted = l->posted;
		lane_leave(s, l);
	}
	return atomic_load_explicit(&l->completed, memory_order_acquire);
}

int tcp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	struct tcp *s = tcp_of(c);
	struct lane *l = &s->lane[lane];
	int r;

	if (ticket <= atomic_load_explicit(&l->completed, memory_order_acquire))
		return 0;
	r = lane_enter(s, l, deadline, err);
	if (r != 0)
		return r;
	if (ticket > l->posted)
		r = err_set(err, -EINVAL, "ticket %llu of %llu", (unsigned long long)ticket,
			    (unsigned long long)l->posted);
	if (r == 0)
		r = train_finish(s, l, deadline, err);
	if (r == 0 && ticket > atomic_load(&l->completed)) {
		seal(s, l);
		r = train_finish(s, l, deadline, err);
	}
	lane_leave(s, l);
	return r;
}

/* -- send -- */

uint32_t tcp_credits(struct tp_conn *c, uint32_t lane)
{
	struct tcp *s = tcp_of(c);
	struct lane *l = &s->lane[lane];
	/* returned before taken: in the other order a message could go and come back in between, and the difference be negative */
	uint64_t returned = atomic_load(&l->returned);
	uint64_t used = atomic_load(&l->taken) - returned;

	return used < s->limits.credits_peers ? s->limits.credits_peers - (uint32_t)used : 0;
}

/* take_credit - with the sending turn.  Waits until the peer has room for one more message. */
static int take_credit(struct tcp *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	while (tcp_credits(&s->conn, l->index) == 0) {
		struct pollfd p[3] = { { .fd = l->credit_fd, .events = POLLIN },
				       { .fd = s->halt_tx_fd, .events = POLLIN } };

		atomic_store(&l->waiting, true); /* before trylock: see the end of tcp_recv() */
		p[2] = (struct pollfd){ .fd = tcp_read_for_credit(s, l) ? l->fd : -1, .events = POLLIN };
		if (tcp_credits(&s->conn, l->index) > 0)
			break;
		r = conn_fate_tx(&s->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: lane %u: no credit", s->conn.name, s->conn.peer, l->index);
		if (r != 0)
			break;
		poll(p, 3, deadline_poll_ms(deadline));
		event_clear(l->credit_fd);
	}
	atomic_store(&l->waiting, false);
	if (r == 0)
		atomic_fetch_add(&l->taken, 1);
	return r;
}

/* The message could not be sent whole.  If nothing of it has gone it is taken back; else the stream is torn. */
static int unsend(struct tcp *s, struct lane *l, int r, struct ft_error *err)
{
	struct ft_error why;

	if (!message_begun(l)) {
		l->nr_train = l->train_message;
		if (!train_left(l))
			train_arrived(l);
		atomic_fetch_sub(&l->taken, 1);
		return r;
	}
	l->torn = true;
	if (r != -ETIMEDOUT)
		return r;
	err_set(&why, -EPIPE, "lane %u: no time was left in the middle of a message, the connection is broken",
		l->index);
	return conn_break(&s->conn, &why, err);
}

static int send_message(struct tcp *s, struct lane *l, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
			struct ft_error *err)
{
	uint32_t len = 0;
	int r;

	r = train_finish(s, l, deadline, err);
	if (r != 0) {
		atomic_fetch_sub(&l->taken, 1);
		return r;
	}
	seal(s, l);
	train_add(l, &l->message_frame, sizeof(l->message_frame));
	for (unsigned i = 0; i < nr_iov; i++) {
		train_add(l, iov[i].iov_base, iov[i].iov_len);
		len += (uint32_t)iov[i].iov_len;
	}
	l->message_frame = frame(FRAME_MESSAGE, 0, len, atomic_load(&l->taken));
	r = train_finish(s, l, deadline, err);
	if (r != 0)
		return unsend(s, l, r, err);
	tcp_add(&s->messages_sent, 1);
	return 0;
}

int tcp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
	     struct ft_error *err)
{
	struct tcp *s = tcp_of(c);
	struct lane *l = &s->lane[lane];
	int r;

	r = turn_take(s, &l->sending, deadline, err);
	if (r != 0)
		return r;
	r = take_credit(s, l, deadline, err);
	if (r == 0) {
		r = lane_enter(s, l, deadline, err);
		if (r != 0) {
			atomic_fetch_sub(&l->taken, 1);
		} else {
			r = send_message(s, l, iov, nr_iov, deadline, err);
			lane_leave(s, l);
		}
	}
	turn_give(&l->sending);
	return r;
}

/* The last words of a lane, as far as they go without waiting. */
void tcp_say_goodbye(struct tcp *s, struct lane *l)
{
	struct tcp_frame bye = frame(FRAME_CLOSE, 0, 0, atomic_load(&l->taken));

	if (l->torn || train_push(s, l, NULL) != 0)
		return;
	seal(s, l);
	train_add(l, &bye, sizeof(bye));
	if (train_push(s, l, NULL) == 0 && l->tls)
		tls_bye(l->tls);
}
