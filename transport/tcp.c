/* SPDX-License-Identifier: MIT */
/* tcp.c - a connection of several TCP sockets, one a lane.  docs/protocol-tcp.md has the frames.
 *
 * Sending.  Writes are gathered into a batch (up to 256 extents, 1 MiB and a bit), which costs one frame and one sendmsg: pages
 * of 4 KiB sent one by one cost a system call each on both sides.  Sealing makes a train of what is owed: a credit frame, the batch,
 * a message.  A train is handed to the kernel in as many steps as it takes; only one exists on a lane, and only the holder of the
 * lane's tx turn touches it.  A batch leaves when it is full, when a message follows, and when somebody waits for its completion.
 * A write that is queued needs no deadline: the next call goes on where the kernel stopped.  A message points to its sender's
 * memory, so it goes out whole before tp_send() returns, or is taken back if not an octet of it has gone, or breaks the connection.
 *
 * Receiving.  One reader at a time: tp_recv(), or a tp_send() that waits for a credit while nobody is in tp_recv().  Payload goes from
 * the socket to its place; the same readv picks up the head and the table of the frame behind it, at most 4,112 octets, so that a
 * stream of full batches costs one readv a batch.
 *
 * Credits.  tp_recv() counts the messages it hands out, and tells the peer when half the window is used.  It never waits for that: if the
 * lane's turn is taken, the holder sends the credit when it leaves (lane_leave); if the socket is full, the lane is watched for room in
 * tp_recv()'s epoll set.  So a side that is blocked in sending still receives, and credits flow as long as each side has a thread in
 * tp_recv() - or in tp_send() waiting for a credit.
 *
 * Must hold:
 *  T1  completed <= posted, and a ticket counts as completed only when its last octet is in the kernel.
 *  T2  octets reach a window only under windows->lock and after the check of the extent under that same lock.
 *  T3  after a frame went out in part and cannot be continued, the lane is torn and nothing more is sent on it.
 * Order of locks: sending turn, tx turn.  Who holds rx_lock only tries the tx turn; who holds the tx turn never asks for rx_lock.
 * windows->lock, conn.lock and turn.lock are innermost. */
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"

#define PARTS_MAX                                                                                                      \
	(TCP_EXTENTS_MAX - 1 + TP_IOV_MAX)     /* a batch with 256 parts is full, the last write may bring 64 to 255 */
#define TRAIN_MAX (3 + PARTS_MAX + TP_IOV_MAX) /* credit, batch head, message head, and their parts */
#define AHEAD_MAX (sizeof(struct tcp_frame) + TCP_EXTENTS_MAX * sizeof(struct tcp_extent))
#define READ_BUDGET (1u << 20) /* octets from one lane before the next one has its turn */
#define EV_HALT UINT32_MAX     /* marks in the epoll set; others are lanes */
#define EV_READY (UINT32_MAX - 1)
#define LINGER_BYTES                                                                                                   \
	(16u << 20) /* unread octets that are thrown away at close, so that no reset overtakes our last words */

/* A lock whose waiters have a deadline and can be cancelled: 0 free, 1 taken, 2 taken and somebody may wait. */
struct turn {
	_Atomic int state;
	pthread_mutex_t lock;
	pthread_cond_t cond;
};

enum phase { RX_FRAME, RX_TABLE, RX_PAYLOAD, RX_MESSAGE, RX_OVER };

struct extent {
	uint32_t window, len;
	uint64_t offset;
};

struct lane {
	int fd;
	uint32_t index;

	struct turn sending; /* one tp_send() at a time; outside of tx */
	struct turn tx;      /* guards this group */
	struct {
		struct tcp_frame frame;
		struct tcp_extent extent[TCP_EXTENTS_MAX];
	} batch;
	unsigned nr_extents, nr_parts;
	uint32_t batch_bytes;
	struct iovec part[PARTS_MAX];
	struct iovec train[TRAIN_MAX];
	unsigned train_at, nr_train, train_message; /* train_message: index of the message's head */
	uint64_t train_ticket;                      /* completed with the train */
	bool train_batch, train_credit, torn, watched;
	uint64_t seen_posted; /* at the last tp_completed() */
	struct tcp_frame credit_frame, message_frame;
	uint64_t posted;

	_Atomic uint64_t completed;
	_Atomic uint64_t taken;    /* credits used: number of the last message; written under the sending turn */
	_Atomic uint64_t returned; /* messages that the peer has consumed; reader */
	_Atomic uint64_t consumed; /* messages handed out here; tp_recv */
	_Atomic uint64_t told;     /* the last credit sent; written under the tx turn */
	_Atomic bool waiting;      /* tp_send waits on credit_fd */
	int credit_fd;

	/* guarded by rx_lock */
	enum phase phase;
	bool ready; /* may have something without epoll saying so */
	bool whole; /* message is complete and waits for tp_recv */
	uint8_t ahead[AHEAD_MAX];
	unsigned ahead_at, ahead_end;
	unsigned count, at; /* extents of the frame, the one being filled */
	uint32_t len, got;  /* frame, or message so far */
	struct extent extent[TCP_EXTENTS_MAX];
	uint8_t *message; /* TP_MESSAGE_MAX */
	uint64_t messages_in, writes_in;
};

struct tcp {
	struct tp_conn conn;
	struct tcp_limits limits;
	int halt_tx_fd, halt_rx_fd; /* readable once that direction is over */
	int epoll_fd, ready_fd;
	pthread_mutex_t rx_lock;
	/* guarded by rx_lock */
	unsigned next, nr_over; /* lane to look at first; lanes that will bring nothing more */
	bool ready_raised, closed_by_peer;
	struct ft_error lost; /* why the first lane died; told when the others are empty */

	_Atomic uint64_t bytes_sent, bytes_received, writes, messages_sent, messages_received;
	struct lane lane[]; /* conn.lanes */
};

static struct tcp *of(struct tp_conn *c)
{
	return (struct tcp *)c;
}

/* -- turns -- */

static void turn_init(struct turn *t)
{
	pthread_mutex_init(&t->lock, NULL);
	cond_init(&t->cond);
}

static void turn_fini(struct turn *t)
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

static void turn_kick(struct turn *t)
{
	pthread_mutex_lock(&t->lock);
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

static void turn_give(struct turn *t)
{
	if (atomic_exchange(&t->state, 0) == 2)
		turn_kick(t);
}

/* -- the train -- */

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void watch(struct tcp *s, struct lane *l, bool for_room)
{
	struct epoll_event ev = { .events = EPOLLIN | (for_room ? (uint32_t)EPOLLOUT : 0), .data.u32 = l->index };

	if (l->watched == for_room)
		return;
	l->watched = for_room;
	/* fails after tp_recv() took a dead lane out of the set; then there is nothing to send either */
	epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, l->fd, &ev);
}

static bool credit_owed(const struct tcp *s, struct lane *l)
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
	if (credit_owed(s, l))
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

/* train_push - as much as the kernel takes now.  0: all of it; -EAGAIN: the socket is full; else the lane is torn and the
 * direction over. */
static int train_push(struct tcp *s, struct lane *l, struct ft_error *err)
{
	struct ft_error why;

	while (l->train_at < l->nr_train) {
		struct msghdr m = { .msg_iov = l->train + l->train_at, .msg_iovlen = l->nr_train - l->train_at };
		ssize_t n = FT_FAULT("tcp/send") ? faultpoint_errno(EPIPE)
						 : sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n >= 0) {
			add(&s->bytes_sent, (uint64_t)n);
			train_advance(l, (size_t)n);
		} else if (errno == EAGAIN) {
			return -EAGAIN;
		} else if (errno != EINTR) {
			l->torn = true;
			/* the kernel's ETIMEDOUT is a peer that does not answer; ours means that all is well */
			err_sys(&why, errno == ETIMEDOUT ? -ECONNRESET : -errno, "lane %u: cannot send%s", l->index,
				errno == ETIMEDOUT ? ", the peer does not answer" : "");
			return conn_break_tx(&s->conn, &why, err);
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
		if (l->nr_train > 0 && (l->train_credit || credit_owed(s, l)))
			watch(s, l, true);
		turn_give(&l->tx);
		if (r != 0 || !credit_owed(s, l) || !turn_try(&l->tx))
			return;
		if (!l->torn && l->nr_train == 0)
			seal(s, l);
		r = l->torn ? -EPIPE : train_push(s, l, NULL);
	}
}

/* lane_push_credit - by the reader: what is due goes now, or with whoever has the turn, or when there is room. */
static void lane_push_credit(struct tcp *s, struct lane *l)
{
	int r;

	if (!turn_try(&l->tx))
		return;
	watch(s, l, false);
	r = l->torn ? -EPIPE : train_push(s, l, NULL);
	if (r == 0 && credit_owed(s, l)) {
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

static int tcp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
		     unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct tcp *s = of(c);
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
	add(&s->writes, 1);
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
static uint64_t tcp_completed(struct tp_conn *c, uint32_t lane)
{
	struct tcp *s = of(c);
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

static int tcp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline,
			      struct ft_error *err)
{
	struct tcp *s = of(c);
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

static int read_lane(struct tcp *s, struct lane *l, bool place, struct ft_error *why);
static bool in_write(const struct lane *l);
static void lane_lost(struct tcp *s, struct lane *l, const struct ft_error *why);
static void show_news(struct tcp *s);

static uint32_t tcp_credits(struct tp_conn *c, uint32_t lane)
{
	struct tcp *s = of(c);
	struct lane *l = &s->lane[lane];
	/* returned before taken: in the other order a message could go and come back in between, and the difference be negative */
	uint64_t returned = atomic_load(&l->returned);
	uint64_t used = atomic_load(&l->taken) - returned;

	return used < s->limits.credits_peers ? s->limits.credits_peers - (uint32_t)used : 0;
}

/* read_for_credit - in tp_recv()'s place, if nobody is there; up to the next message or write: between two tp_recv() windows do not change.
 * True: the socket is to be watched for more. */
static bool read_for_credit(struct tcp *s, struct lane *l)
{
	struct ft_error why;
	bool more = false;
	int r;

	if (pthread_mutex_trylock(&s->rx_lock) != 0)
		return false;
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
	return more;
}

/* take_credit - with the sending turn.  Waits until the peer has room for one more message. */
static int take_credit(struct tcp *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	while (tcp_credits(&s->conn, l->index) == 0) {
		struct pollfd p[3] = { { .fd = l->credit_fd, .events = POLLIN },
				       { .fd = s->halt_tx_fd, .events = POLLIN } };

		atomic_store(&l->waiting, true); /* before trylock: see the end of tcp_recv() */
		p[2] = (struct pollfd){ .fd = read_for_credit(s, l) ? l->fd : -1, .events = POLLIN };
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
	bool begun = l->train_at > l->train_message ||
		     (l->train_at == l->train_message && l->train[l->train_at].iov_base != &l->message_frame);

	if (!begun) {
		l->nr_train = l->train_message;
		if (l->train_at == l->nr_train)
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
	add(&s->messages_sent, 1);
	return 0;
}

static int tcp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		    struct ft_error *err)
{
	struct tcp *s = of(c);
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
		do
			n = FT_FAULT("tcp/receive") ? faultpoint_errno(ECONNRESET) : readv(l->fd, iov, (int)nr);
		while (n < 0 && errno == EINTR);
		r = n < 0 ? -errno : 0;
	}
	pthread_mutex_unlock(&s->conn.windows->lock);
	if (r == -EPROTO)
		return r;
	*empty = true;
	if (r == -EAGAIN)
		return 0;
	if (r == -ETIMEDOUT)
		return err_set(why, -ECONNRESET, "lane %u: the peer does not answer", l->index);
	if (r != 0)
		return err_sys(why, r, "lane %u: cannot receive", l->index);
	if (n == 0)
		return err_set(why, -ECONNRESET, "lane %u: the peer is gone, it ended the stream without a close%s",
			       l->index, l->phase == RX_FRAME && l->ahead_end == 0 ? "" : ", in the middle of a frame");
	for (unsigned i = 0; i < nr; i++)
		wanted += iov[i].iov_len;
	*empty = (size_t)n < wanted;
	fill_done(l, (size_t)n);
	add(&s->bytes_received, (uint64_t)n);
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
		if (empty || budget == 0)
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

/* gather_events - marks lanes ready; waits only if there is nothing to do. */
static int gather_events(struct tcp *s, uint64_t deadline, struct ft_error *err)
{
	struct epoll_event ev[TP_LANES_MAX + 2];
	int n;

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		if (credit_owed(s, &s->lane[i]))
			lane_push_credit(s, &s->lane[i]);
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
			lane_push_credit(s, l);
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
	l->ready = l->ahead_at < l->ahead_end; /* what is in the socket epoll tells again */
	s->next = (l->index + 1) % s->conn.lanes;
	add(&s->messages_received, 1);
	atomic_fetch_add(&l->consumed, 1);
	/* Credits wait for the answer that the message may bring, and go with it, or with the next tp_recv(): a frame of its own for each half
	 * window made round trips a third slower.  A peer that has none left does not wait. */
	if (atomic_load(&l->consumed) - atomic_load(&l->told) >= s->limits.credits_ours)
		lane_push_credit(s, l);
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

static int tcp_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct tcp *s = of(c);
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

static int tcp_poll_fd(struct tp_conn *c)
{
	return of(c)->epoll_fd;
}

/* -- the rest -- */

static void tcp_stats(struct tp_conn *c, struct tp_stats *out)
{
	struct tcp *s = of(c);

	out->bytes_sent = atomic_load_explicit(&s->bytes_sent, memory_order_relaxed);
	out->bytes_received = atomic_load_explicit(&s->bytes_received, memory_order_relaxed);
	out->writes = atomic_load_explicit(&s->writes, memory_order_relaxed);
	out->messages_sent = atomic_load_explicit(&s->messages_sent, memory_order_relaxed);
	out->messages_received = atomic_load_explicit(&s->messages_received, memory_order_relaxed);
}

static void tcp_wake(struct tp_conn *c)
{
	struct tcp *s = of(c);

	if (conn_fate_rx(c, NULL) != 0)
		event_raise(s->halt_rx_fd);
	if (conn_fate_tx(c, NULL) == 0)
		return;
	event_raise(s->halt_tx_fd);
	for (uint32_t i = 0; i < c->lanes; i++) {
		turn_kick(&s->lane[i].sending);
		turn_kick(&s->lane[i].tx);
	}
}

static void tcp_sever(struct tp_conn *c)
{
	struct tcp *s = of(c);

	for (uint32_t i = 0; i < c->lanes; i++)
		shutdown(s->lane[i].fd, SHUT_RDWR);
}

/* The last words of a lane, as far as they go without waiting. */
static void say_goodbye(struct tcp *s, struct lane *l)
{
	struct tcp_frame bye = frame(FRAME_CLOSE, 0, 0, atomic_load(&l->taken));

	if (l->torn || train_push(s, l, NULL) != 0)
		return;
	seal(s, l);
	train_add(l, &bye, sizeof(bye));
	train_push(s, l, NULL);
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
	if (l->fd >= 0)
		close(l->fd);
	if (l->credit_fd >= 0)
		close(l->credit_fd);
	free(l->message);
	turn_fini(&l->sending);
	turn_fini(&l->tx);
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
	struct tcp *s = of(c);
	int code = atomic_load(&c->code_rx);
	bool in_peace = code == 0 || code == -ENODATA;

	for (uint32_t i = 0; i < c->lanes; i++) {
		if (in_peace)
			say_goodbye(s, &s->lane[i]);
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

int tcp_conn_create(struct tp_conn **out, const int *fds, const struct tcp_limits *limits, const char *peer,
		    struct ft_error *err)
{
	struct tcp *s = FT_FAULT("tcp/create") ? NULL : calloc(1, sizeof(*s) + limits->lanes * sizeof(s->lane[0]));
	int r;

	*out = NULL;
	if (!s)
		return err_set(err, -ENOMEM, "no memory for a connection");
	conn_init(&s->conn, &ops, limits->lanes, "tcp", peer);
	s->limits = *limits;
	pthread_mutex_init(&s->rx_lock, NULL);
	for (uint32_t i = 0; i < limits->lanes; i++) {
		struct lane *l = &s->lane[i];

		l->fd = l->credit_fd = -1;
		l->index = i;
		turn_init(&l->sending);
		turn_init(&l->tx);
	}
	r = open_fds(s);
	for (uint32_t i = 0; i < limits->lanes && r == 0; i++) {
		s->lane[i].fd = fds[i];
		r = lane_init(s, &s->lane[i]);
	}
	if (r != 0) {
		for (uint32_t i = 0; i < limits->lanes; i++)
			s->lane[i].fd = -1; /* still the caller's */
		tcp_free(s);
		return err_sys(err, r, "cannot set up a connection");
	}
	*out = &s->conn;
	return 0;
}
