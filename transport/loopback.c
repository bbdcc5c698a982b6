/* SPDX-License-Identifier: MIT */
/* loopback.c - a connection inside one process, for tests: what tcp promises, without a kernel in between.
 * Both ends share a struct pair.  Each end has, for each lane, a queue of what was sent to it: a write points to the sender's memory, and is
 * carried out and completed when the receiver takes it from the queue in tp_recv(), not before; a message is copied.  Queues are
 * bounded, so a sender waits for a receiver as with a full socket.
 *
 * One mutex per pair guards everything in it, memory copies included: simple, and fast enough for tests.  Must hold: an item that points
 * to a sender's memory is gone, or has its own copy, before the sender's tp_close() returns.
 * Names of listeners are in one list of the process.  Waits for accept and connect are on eventfds, since they also watch a cancel_fd. */
#include "transport_ops.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"

#define QUEUE_ITEMS 64u
#define QUEUE_BYTES (8u << 20) /* and at least one write */

struct item {
	struct item *next;
	bool message;
	uint32_t window;
	uint64_t offset, ticket;
	size_t len;
	unsigned nr_iov;
	struct iovec iov[TP_IOV_MAX]; /* of a write: the sender's memory, or one part, in copy */
	uint8_t *copy;
};

struct lane { /* of the receiving end */
	struct item *first, **last;
	unsigned nr_items;
	size_t bytes;
	uint64_t posted, completed;
	uint32_t credits; /* that the sender has left */
};

struct loopback {
	struct tp_conn conn;
	struct pair *pair;
	struct loopback *other;
	int news_fd; /* what tp_poll_fd() gives: readable while there is something in a queue, or an end to tell */
	bool closed, severed;         /* tp_close() was called here; cut by sever() */
	uint32_t next;                /* lane to look at first */
	struct lane in[TP_LANES_MAX]; /* what the other side sent */
	struct tp_stats stats;
};

struct pair {
	pthread_mutex_t lock;
	pthread_cond_t cond; /* anything has changed: few threads, so one condition for all */
	struct loopback end[2];
	unsigned refs; /* ends that are not destroyed */
};

static struct loopback *of(struct tp_conn *c)
{
	return (struct loopback *)c;
}

/* -- queues: pair->lock is held -- */

static void changed(struct loopback *s)
{
	pthread_cond_broadcast(&s->pair->cond);
}

static void item_free(struct item *it)
{
	free(it->copy);
	free(it);
}

static void queue_put(struct loopback *to, struct lane *q, struct item *it)
{
	*q->last = it;
	q->last = &it->next;
	q->nr_items++;
	q->bytes += it->len;
	event_raise(to->news_fd);
	changed(to);
}

static struct item *queue_get(struct lane *q)
{
	struct item *it = q->first;

	if (!it)
		return NULL;
	q->first = it->next;
	if (!q->first)
		q->last = &q->first;
	q->nr_items--;
	q->bytes -= it->len;
	return it;
}

static bool has_room(const struct lane *q, size_t len)
{
	return q->nr_items < QUEUE_ITEMS && (q->nr_items == 0 || q->bytes + len <= QUEUE_BYTES);
}

/* look - sending is possible: the fate here, and the other end is there. */
static int look_tx(struct loopback *s, struct ft_error *err)
{
	int r = conn_fate_tx(&s->conn, err);

	if (r != 0)
		return r;
	if (s->severed || s->other->severed)
		return err_set(err, -ECONNRESET, "%s: the connection was cut", s->conn.name);
	if (s->other->closed)
		return err_set(err, -EPIPE, "%s: the peer closed the connection", s->conn.name);
	return 0;
}

/* await - until the pair changes; -ETIMEDOUT at the deadline. */
static int await(struct loopback *s, uint64_t deadline, const char *what, struct ft_error *err)
{
	if (now_ns() >= deadline)
		return err_set(err, -ETIMEDOUT, "%s: %s", s->conn.name, what);
	cond_wait_until(&s->pair->cond, &s->pair->lock, deadline);
	return 0;
}

static struct item *item_create(const struct iovec *iov, unsigned nr_iov, struct ft_error *err)
{
	struct item *it = FT_FAULT("loopback/item") ? NULL : calloc(1, sizeof(*it));

	if (!it) {
		err_set(err, -ENOMEM, "no memory for an item of a queue");
		return NULL;
	}
	it->nr_iov = nr_iov;
	for (unsigned i = 0; i < nr_iov; i++) {
		it->iov[i] = iov[i];
		it->len += iov[i].iov_len;
	}
	return it;
}

/* item_own - replace the sender's memory with a copy. */
static int item_own(struct item *it)
{
	size_t at = 0;

	it->copy = FT_FAULT("loopback/copy") ? NULL : malloc(it->len ? it->len : 1);
	if (!it->copy)
		return -ENOMEM;
	for (unsigned i = 0; i < it->nr_iov; i++) {
		memcpy(it->copy + at, it->iov[i].iov_base, it->iov[i].iov_len);
		at += it->iov[i].iov_len;
	}
	it->iov[0] = (struct iovec){ it->copy, it->len };
	it->nr_iov = 1;
	return 0;
}

/* -- sending -- */

static int loopback_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
			  unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct loopback *s = of(c);
	struct lane *q = &s->other->in[lane];
	struct item *it = item_create(iov, nr_iov, err);
	int r;

	if (!it)
		return -ENOMEM;
	it->window = window;
	it->offset = offset;
	pthread_mutex_lock(&s->pair->lock);
	while ((r = look_tx(s, err)) == 0 && !has_room(q, it->len)) {
		r = await(s, deadline, "no room", err);
		if (r != 0)
			break;
	}
	if (r == 0) {
		*ticket = it->ticket = ++q->posted;
		s->stats.writes++;
		s->stats.bytes_sent += it->len;
		queue_put(s->other, q, it);
		it = NULL;
	}
	pthread_mutex_unlock(&s->pair->lock);
	if (it)
		item_free(it);
	return r;
}

static uint64_t loopback_completed(struct tp_conn *c, uint32_t lane)
{
	struct loopback *s = of(c);
	uint64_t ticket;

	pthread_mutex_lock(&s->pair->lock);
	ticket = s->other->in[lane].completed;
	pthread_mutex_unlock(&s->pair->lock);
	return ticket;
}

static int loopback_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline,
				   struct ft_error *err)
{
	struct loopback *s = of(c);
	struct lane *q = &s->other->in[lane];
	int r = 0;

	pthread_mutex_lock(&s->pair->lock);
	if (ticket > q->posted)
		r = err_set(err, -EINVAL, "ticket %llu of %llu", (unsigned long long)ticket,
			    (unsigned long long)q->posted);
	while (r == 0 && q->completed < ticket) {
		r = look_tx(s, err);
		if (r == 0)
			r = await(s, deadline, "not completed", err);
	}
	pthread_mutex_unlock(&s->pair->lock);
	return r;
}

static int loopback_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
			 struct ft_error *err)
{
	struct loopback *s = of(c);
	struct lane *q = &s->other->in[lane];
	struct item *it = item_create(iov, nr_iov, err);
	int r;

	if (!it)
		return -ENOMEM;
	it->message = true;
	if (item_own(it) != 0) {
		item_free(it);
		return err_set(err, -ENOMEM, "no memory for a message");
	}
	pthread_mutex_lock(&s->pair->lock);
	while ((r = look_tx(s, err)) == 0 && (q->credits == 0 || !has_room(q, it->len))) {
		r = await(s, deadline, q->credits ? "no room" : "no credit", err);
		if (r != 0)
			break;
	}
	if (r == 0) {
		q->credits--;
		s->stats.messages_sent++;
		s->stats.bytes_sent += it->len;
		queue_put(s->other, q, it);
		it = NULL;
	}
	pthread_mutex_unlock(&s->pair->lock);
	if (it)
		item_free(it);
	return r;
}

static uint32_t loopback_credits(struct tp_conn *c, uint32_t lane)
{
	struct loopback *s = of(c);
	uint32_t n;

	pthread_mutex_lock(&s->pair->lock);
	n = s->other->in[lane].credits;
	pthread_mutex_unlock(&s->pair->lock);
	return n;
}

/* -- receiving -- */

static int place(struct loopback *s, uint32_t lane, const struct item *it, struct ft_error *why)
{
	struct tp_windows *w = s->conn.windows;
	uint8_t *at;

	pthread_mutex_lock(&w->lock);
	at = windows_at(w, it->window, it->offset, it->len);
	for (unsigned i = 0; at && i < it->nr_iov; i++) {
		memcpy(at, it->iov[i].iov_base, it->iov[i].iov_len);
		at += it->iov[i].iov_len;
	}
	pthread_mutex_unlock(&w->lock);
	if (at)
		return 0;
	return err_set(
		why, -EPROTO,
		"lane %u: the peer broke the protocol: write of %zu octets at %llu of window %u, not open or too small",
		lane, it->len, (unsigned long long)it->offset, it->window);
}

/* take_lane - writes up to the next message.  1: a message was handed out; 0: the queue is empty. */
static int take_lane(struct loopback *s, uint32_t lane, void *buf, size_t *len, struct ft_error *why)
{
	struct lane *q = &s->in[lane];
	struct item *it;
	int r = 0;

	while (r == 0 && (it = queue_get(q))) {
		s->stats.bytes_received += it->len;
		if (it->message) {
			memcpy(buf, it->copy, it->len);
			*len = it->len;
			q->credits++;
			s->stats.messages_received++;
			r = 1;
		} else {
			r = place(s, lane, it, why);
			if (r == 0)
				q->completed = it->ticket;
		}
		item_free(it);
		changed(s);
	}
	return r;
}

static int take_any(struct loopback *s, void *buf, uint32_t *lane, size_t *len, struct ft_error *why)
{
	int r = 0;

	for (uint32_t i = 0; i < s->conn.lanes && r == 0; i++) {
		*lane = (s->next + i) % s->conn.lanes;
		r = take_lane(s, *lane, buf, len, why);
	}
	if (r == 1)
		s->next = (*lane + 1) % s->conn.lanes;
	return r;
}

/* With the lock held; a break is told to all after it was given back (it calls wake, which takes it). */
static int recv_locked(struct loopback *s, void *buf, uint32_t *lane, size_t *len, uint64_t deadline,
		       struct ft_error *why, struct ft_error *err)
{
	for (;;) {
		int r = conn_fate_rx(&s->conn, err);

		if (r != 0)
			return r;
		event_clear(s->news_fd);
		r = s->severed ? err_set(why, -ECONNRESET, "the connection was cut") : take_any(s, buf, lane, len, why);
		if (r == 0 && s->other->severed)
			r = err_set(why, -ECONNRESET, "the connection was cut");
		else if (r == 0 && s->other->closed)
			r = err_set(why, -ENODATA, "the peer closed the connection");
		if (r != 0) {
			event_raise(s->news_fd);
			return r;
		}
		r = await(s, deadline, "nothing came", err);
		if (r != 0)
			return r;
	}
}

static int loopback_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline,
			 struct ft_error *err)
{
	struct ft_error why = { .code = 0 };
	struct loopback *s = of(c);
	int r;

	pthread_mutex_lock(&s->pair->lock);
	r = recv_locked(s, buf, lane, len, deadline, &why, err);
	pthread_mutex_unlock(&s->pair->lock);
	if (r > 0)
		return 0;
	return why.code != 0 ? conn_break(c, &why, err) : r;
}

static int loopback_poll_fd(struct tp_conn *c)
{
	return of(c)->news_fd;
}

/* -- the rest -- */

static void loopback_stats(struct tp_conn *c, struct tp_stats *out)
{
	struct loopback *s = of(c);

	pthread_mutex_lock(&s->pair->lock);
	*out = s->stats;
	pthread_mutex_unlock(&s->pair->lock);
}

static void loopback_wake(struct tp_conn *c)
{
	struct loopback *s = of(c);

	pthread_mutex_lock(&s->pair->lock);
	event_raise(s->news_fd);
	changed(s);
	pthread_mutex_unlock(&s->pair->lock);
}

static void loopback_sever(struct tp_conn *c)
{
	struct loopback *s = of(c);

	pthread_mutex_lock(&s->pair->lock);
	s->severed = true;
	event_raise(s->news_fd);
	event_raise(s->other->news_fd);
	changed(s);
	pthread_mutex_unlock(&s->pair->lock);
}

static void queue_clear(struct lane *q)
{
	struct item *it;

	while ((it = queue_get(q)))
		item_free(it);
}

/* What the peer has not taken yet gets memory of its own; where there is none, the rest of that lane is lost and the end is a cut. */
static void leave_behind(struct loopback *s)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		for (struct item *it = s->other->in[i].first; it; it = it->next) {
			if (it->message || item_own(it) == 0)
				continue;
			s->severed = true;
			queue_clear(&s->other->in[i]);
			break;
		}
	}
}

static void pair_free(struct pair *p)
{
	for (unsigned i = 0; i < 2; i++) {
		for (uint32_t lane = 0; lane < p->end[i].conn.lanes; lane++)
			queue_clear(&p->end[i].in[lane]);
		if (p->end[i].news_fd >= 0)
			close(p->end[i].news_fd);
		conn_fini(&p->end[i].conn);
	}
	pthread_cond_destroy(&p->cond);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static void loopback_destroy(struct tp_conn *c)
{
	struct loopback *s = of(c);
	struct pair *p = s->pair;
	int code = atomic_load(&c->code_rx);
	unsigned refs;

	pthread_mutex_lock(&p->lock);
	s->closed = true;
	if (code != 0 && code != -ENODATA)
		s->severed = true; /* no orderly end after a break, as with tcp */
	leave_behind(s);
	for (uint32_t i = 0; i < c->lanes; i++)
		queue_clear(&s->in[i]);
	event_raise(s->other->news_fd);
	changed(s);
	refs = --p->refs;
	pthread_mutex_unlock(&p->lock);
	if (refs == 0)
		pair_free(p);
}

static const struct tp_conn_ops ops = {
	.write = loopback_write,
	.completed = loopback_completed,
	.wait_completed = loopback_wait_completed,
	.send = loopback_send,
	.credits = loopback_credits,
	.recv = loopback_recv,
	.poll_fd = loopback_poll_fd,
	.stats = loopback_stats,
	.wake = loopback_wake,
	.sever = loopback_sever,
	.destroy = loopback_destroy,
};

/* -- connect and accept -- */

struct request {
	struct request *next;
	struct tp_params params;
	int answer_fd;        /* readable when it is answered */
	struct tp_conn *conn; /* the answer; NULL: the listener is gone */
};

struct loopback_listener {
	struct tp_listener base;
	struct loopback_listener *next;
	char name[64];
	int news_fd; /* readable while there are requests */
	struct request *first;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loopback_listener *registry; /* guarded by registry_lock, and the requests too */

static struct loopback_listener *find(const char *name)
{
	struct loopback_listener *l = registry;

	while (l && strcmp(l->name, name) != 0)
		l = l->next;
	return l;
}

static void end_init(struct pair *p, unsigned i, uint32_t lanes, uint32_t credits_peer_gives, const char *peer)
{
	struct loopback *s = &p->end[i];

	conn_init(&s->conn, &ops, lanes, "loopback", peer);
	s->pair = p;
	s->other = &p->end[1 - i];
	s->news_fd = FT_FAULT("loopback/eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	for (uint32_t lane = 0; lane < lanes; lane++) {
		s->other->in[lane].last = &s->other->in[lane].first;
		s->other->in[lane].credits = credits_peer_gives;
	}
}

/* pair_create - end 0 is the one that connects. */
static struct pair *pair_create(const struct tp_params *from, const struct tp_params *at, const char *name)
{
	uint32_t lanes = from->lanes < at->lanes ? from->lanes : at->lanes;
	struct pair *p = FT_FAULT("loopback/pair") ? NULL : calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	pthread_mutex_init(&p->lock, NULL);
	cond_init(&p->cond);
	end_init(p, 0, lanes, at->credits, name);
	end_init(p, 1, lanes, from->credits, name);
	p->refs = 2;
	if (p->end[0].news_fd >= 0 && p->end[1].news_fd >= 0)
		return p;
	pair_free(p);
	return NULL;
}

/* withdraw - take a request that nobody answered out of its listener's list; false if it has been answered. */
static bool withdraw(const char *name, struct request *req)
{
	struct loopback_listener *l;
	struct request **at;

	pthread_mutex_lock(&registry_lock);
	l = find(name);
	at = l ? &l->first : NULL;
	while (at && *at && *at != req)
		at = &(*at)->next;
	if (at && *at)
		*at = req->next;
	else
		at = NULL;
	pthread_mutex_unlock(&registry_lock);
	return at != NULL;
}

static int await_answer(const char *name, struct request *req, struct tp_conn **out, uint64_t deadline, int cancel_fd,
			struct ft_error *err)
{
	int r = wait_fd(req->answer_fd, POLLIN, cancel_fd, deadline);

	if (r != 0 && withdraw(name, req))
		return err_set(err, r, "loopback:%s: %s", name, r == -ECANCELED ? "cancelled" : "nobody accepts");
	/* answered, perhaps at the last moment: under the lock the answer is complete */
	pthread_mutex_lock(&registry_lock);
	*out = req->conn;
	pthread_mutex_unlock(&registry_lock);
	return *out ? 0 : err_set(err, -ECONNRESET, "loopback:%s: the listener was closed", name);
}

int loopback_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline,
		     int cancel_fd, struct ft_error *err)
{
	struct request req = { .params = *p,
			       .answer_fd = FT_FAULT("loopback/connect") ? faultpoint_errno(EMFILE)
									 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	struct loopback_listener *l;
	int r;

	if (req.answer_fd < 0)
		return err_sys(err, -errno, "eventfd");
	pthread_mutex_lock(&registry_lock);
	l = find(rest);
	if (l) {
		struct request **at = &l->first;

		while (*at)
			at = &(*at)->next;
		*at = &req;
		event_raise(l->news_fd);
	}
	pthread_mutex_unlock(&registry_lock);
	if (l)
		r = await_answer(rest, &req, out, deadline, cancel_fd, err);
	else
		r = err_set(err, -ECONNREFUSED, "loopback:%s: nobody listens", rest);
	close(req.answer_fd);
	return r;
}

/* -- listen -- */

/* answer - the oldest request, if any; 0 with *@out NULL if there is none. */
static int answer(struct loopback_listener *l, struct tp_conn **out, struct ft_error *err)
{
	struct request *req;
	struct pair *p = NULL;
	int r = 0;

	pthread_mutex_lock(&registry_lock);
	req = l->first;
	event_clear(l->news_fd);
	if (req) {
		p = pair_create(&req->params, &l->base.params, l->name);
		if (!p)
			r = err_set(err, -ENOMEM, "no memory or descriptors for a connection");
		l->first = req->next;
		req->conn = p ? &p->end[0].conn : NULL;
		event_raise(req->answer_fd); /* @req is gone once the lock is given back */
	}
	if (l->first)
		event_raise(l->news_fd);
	pthread_mutex_unlock(&registry_lock);
	*out = p ? &p->end[1].conn : NULL;
	return r;
}

static int loopback_accept(struct tp_listener *base, struct tp_conn **out, uint64_t deadline, int cancel_fd,
			   struct ft_error *err)
{
	struct loopback_listener *l = (struct loopback_listener *)base;

	for (;;) {
		int r = answer(l, out, err);

		if (r != 0 || *out)
			return r;
		r = wait_fd(l->news_fd, POLLIN, cancel_fd, deadline);
		if (r != 0)
			return err_set(err, r, "%s: %s", base->address,
				       r == -ECANCELED ? "cancelled" : "nobody connected");
	}
}

static void loopback_listener_close(struct tp_listener *base)
{
	struct loopback_listener *l = (struct loopback_listener *)base, **at = &registry;

	pthread_mutex_lock(&registry_lock);
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	for (struct request *req = l->first, *next; req; req = next) {
		next = req->next;
		event_raise(req->answer_fd);
	}
	pthread_mutex_unlock(&registry_lock);
	close(l->news_fd);
	free(l);
}

static const struct tp_listener_ops listener_ops = { .accept = loopback_accept, .close = loopback_listener_close };

int loopback_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	struct loopback_listener *l = FT_FAULT("loopback/listener") ? NULL : calloc(1, sizeof(*l));
	int r = 0;

	if (!l)
		return err_set(err, -ENOMEM, "no memory");
	l->base.ops = &listener_ops;
	l->base.params = *p;
	l->news_fd =
		FT_FAULT("loopback/listen-eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	strncpy(l->name, rest, sizeof(l->name) - 1);
	snprintf(l->base.address, sizeof(l->base.address), "loopback:%s", l->name);
	pthread_mutex_lock(&registry_lock);
	if (l->news_fd < 0)
		r = err_sys(err, -errno, "eventfd");
	else if (strlen(rest) >= sizeof(l->name) || find(rest))
		r = err_set(err, -EADDRINUSE, "loopback:%s: in use, or too long", rest);
	if (r == 0) {
		l->next = registry;
		registry = l;
	}
	pthread_mutex_unlock(&registry_lock);
	if (r == 0) {
		*out = &l->base;
		return 0;
	}
	if (l->news_fd >= 0)
		close(l->news_fd);
	free(l);
	return r;
}
