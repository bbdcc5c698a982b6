/* SPDX-License-Identifier: MIT */
/* transport.c - what is the same for every transport: the URI, the checks of arguments, who is inside, fate, windows.
 * Runs on the callers' threads.  Must hold: an op is called only with checked arguments, on a connection that lives, and
 * never after tp_close() has begun to free. */
#include "transport.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"
#include "tls.h"
#include "transport_ops.h"

#define INSIDE_CLOSING 0x80000000u

/* -- small helpers -- */

int wait_fd(int fd, short events, int stop_fd, uint64_t deadline)
{
	struct pollfd p[2] = { { .fd = fd, .events = events }, { .fd = stop_fd, .events = POLLIN } };
	int n;

	do {
		n = FT_FAULT("transport/poll") ? faultpoint_errno(ENOMEM) : poll(p, 2, deadline_poll_ms(deadline));
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0 && p[1].revents)
			return -ECANCELED;
		if (n > 0)
			return 0;
	} while (now_ns() < deadline);
	return -ETIMEDOUT;
}

void event_raise(int fd)
{
	uint64_t one = 1;

	/* fails only when the counter is full, and then it is readable */
	if (write(fd, &one, sizeof(one)) < 0)
		return;
}

void event_clear(int fd)
{
	uint64_t n;

	if (read(fd, &n, sizeof(n)) < 0)
		return; /* it was not raised */
}

/* -- fate -- */

static int fate(struct tp_conn *c, _Atomic int *code, const struct ft_error *why, struct ft_error *err)
{
	int r;

	if (atomic_load_explicit(&c->cancelled, memory_order_acquire))
		return err_set(err, -ECANCELED, "%s %s: cancelled", c->name, c->peer);
	/* acquire; pairs with the release in set_fate(): the sentence is complete */
	r = atomic_load_explicit(code, memory_order_acquire);
	if (r != 0 && err)
		*err = *why;
	return r;
}

int conn_fate_tx(struct tp_conn *c, struct ft_error *err)
{
	return fate(c, &c->code_tx, &c->why_tx, err);
}

int conn_fate_rx(struct tp_conn *c, struct ft_error *err)
{
	return fate(c, &c->code_rx, &c->why_rx, err);
}

static void set_fate(struct tp_conn *c, _Atomic int *code, struct ft_error *slot, const struct ft_error *why)
{
	pthread_mutex_lock(&c->lock);
	if (atomic_load_explicit(code, memory_order_relaxed) == 0) {
		*slot = *why;
		err_prefix(slot, "%s %s", c->name, c->peer);
		atomic_store_explicit(code, slot->code, memory_order_release);
	}
	pthread_mutex_unlock(&c->lock);
}

int conn_break(struct tp_conn *c, const struct ft_error *why, struct ft_error *err)
{
	set_fate(c, &c->code_tx, &c->why_tx, why);
	set_fate(c, &c->code_rx, &c->why_rx, why);
	c->ops->wake(c);
	return conn_fate_rx(c, err);
}

int conn_break_tx(struct tp_conn *c, const struct ft_error *why, struct ft_error *err)
{
	set_fate(c, &c->code_tx, &c->why_tx, why);
	c->ops->wake(c);
	return conn_fate_tx(c, err);
}

/* -- the shared part of a connection -- */

void conn_init(struct tp_conn *c, const struct tp_conn_ops *ops, uint32_t lanes, const char *name, const char *peer)
{
	c->ops = ops;
	c->lanes = lanes;
	strncpy(c->name, name, sizeof(c->name) - 1);
	strncpy(c->peer, peer, sizeof(c->peer) - 1);
	c->windows = &c->own_windows;
	pthread_mutex_init(&c->own_windows.lock, NULL);
	pthread_mutex_init(&c->lock, NULL);
	cond_init(&c->drained_cond);
}

void conn_fini(struct tp_conn *c)
{
	pthread_cond_destroy(&c->drained_cond);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->own_windows.lock);
}

static void enter(struct tp_conn *c)
{
	atomic_fetch_add(&c->inside, 1);
}

/* The last one out of a connection that is being closed tells tp_close(), which frees only after that word: nobody
 * touches @c after its own decrement unless tp_close() is waiting for it. */
static void leave(struct tp_conn *c)
{
	if (atomic_fetch_sub(&c->inside, 1) != (INSIDE_CLOSING | 1))
		return;
	pthread_mutex_lock(&c->lock);
	c->drained = true;
	pthread_cond_signal(&c->drained_cond);
	pthread_mutex_unlock(&c->lock);
}

void tp_cancel(struct tp_conn *c)
{
	enter(c);
	atomic_store_explicit(&c->cancelled, true, memory_order_release); /* pairs with the acquire in fate() */
	c->ops->wake(c);
	leave(c);
}

void tp_close(struct tp_conn *c)
{
	if (!c)
		return;
	tp_cancel(c);
	if (atomic_fetch_or(&c->inside, INSIDE_CLOSING) != 0) {
		pthread_mutex_lock(&c->lock);
		while (!c->drained)
			pthread_cond_wait(&c->drained_cond, &c->lock);
		pthread_mutex_unlock(&c->lock);
	}
	c->ops->destroy(c);
}

const char *tp_name(const struct tp_conn *c)
{
	return c->name;
}

const char *tp_peer(const struct tp_conn *c)
{
	return c->peer;
}

uint32_t tp_lanes(const struct tp_conn *c)
{
	return c->lanes;
}

/* -- windows -- */

void *windows_at(const struct tp_windows *w, uint32_t id, uint64_t offset, uint64_t len)
{
	if (id >= TP_WINDOWS_MAX || !w->slot[id].base)
		return NULL;
	if (offset > w->slot[id].len || len > w->slot[id].len - offset)
		return NULL;
	return (uint8_t *)w->slot[id].base + offset;
}

static void window_clear(struct tp_windows *w, uint32_t id)
{
	pthread_mutex_lock(&w->lock);
	w->slot[id].base = NULL;
	w->slot[id].len = 0;
	pthread_mutex_unlock(&w->lock);
}

int tp_window_open(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err)
{
	struct tp_windows *w = c->windows;
	int r = 0;

	if (id >= TP_WINDOWS_MAX || !base || len == 0)
		return err_set(err, -EINVAL, "window %u: number, address or length out of range", id);
	pthread_mutex_lock(&w->lock);
	if (w->slot[id].base) {
		r = err_set(err, -EBUSY, "window %u is open already", id);
	} else {
		w->slot[id].base = base;
		w->slot[id].len = len;
	}
	pthread_mutex_unlock(&w->lock);
	if (r == 0 && c->ops->window) {
		enter(c);
		r = c->ops->window(c, id, base, len, err);
		leave(c);
		if (r != 0)
			window_clear(w, id);
	}
	return r;
}

void tp_window_close(struct tp_conn *c, uint32_t id)
{
	if (id >= TP_WINDOWS_MAX)
		return;
	window_clear(c->windows, id);
	if (c->ops->window) {
		enter(c);
		c->ops->window(c, id, NULL, 0, NULL);
		leave(c);
	}
}

/* -- what only some transports care for -- */

static int check_memory(const void *base, uint64_t len, struct ft_error *err)
{
	return base && len ? 0 : err_set(err, -EINVAL, "memory of %llu octets at %p", (unsigned long long)len, base);
}

int tp_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err)
{
	int r = check_memory(base, len, err);

	if (r != 0 || !c->ops->memory)
		return r;
	enter(c);
	r = conn_fate_tx(c, err);
	if (r == 0)
		r = c->ops->memory(c, base, len, err);
	leave(c);
	return r;
}

int tp_mirror(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err)
{
	int r = check_memory(base, len, err);

	if (r == 0 && window >= TP_WINDOWS_MAX)
		r = err_set(err, -EINVAL, "window %u of %u", window, TP_WINDOWS_MAX);
	if (r != 0 || !c->ops->mirror)
		return r;
	enter(c);
	r = conn_fate_tx(c, err);
	if (r == 0)
		r = c->ops->mirror(c, window, base, len, err);
	leave(c);
	return r;
}

void tp_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len)
{
	if (!c->ops->prepare || window >= TP_WINDOWS_MAX || len == 0 || offset > UINT64_MAX - len)
		return;
	enter(c);
	if (conn_fate_tx(c, NULL) == 0)
		c->ops->prepare(c, window, offset, len);
	leave(c);
}

void tp_info(struct tp_conn *c, struct tp_info *out)
{
	memset(out, 0, sizeof(*out));
	if (!c->ops->info)
		return;
	enter(c);
	c->ops->info(c, out);
	leave(c);
}

/* -- calls on a connection -- */

static int check_parts(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t max,
		       uint64_t *total, struct ft_error *err)
{
	*total = 0;
	if (lane >= c->lanes)
		return err_set(err, -EINVAL, "lane %u of %u", lane, c->lanes);
	if (nr_iov > TP_IOV_MAX)
		return err_set(err, -EINVAL, "%u parts, at most %u are taken", nr_iov, TP_IOV_MAX);
	for (unsigned i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len > max - *total)
			return err_set(err, -EMSGSIZE, "more than %llu octets", (unsigned long long)max);
		*total += iov[i].iov_len;
	}
	return 0;
}

int tp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
	     unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	uint64_t total, number = 0;
	int r;

	if (ticket)
		*ticket = 0;
	enter(c);
	r = check_parts(c, lane, iov, nr_iov, TP_WRITE_MAX, &total, err);
	if (r == 0 && (window >= TP_WINDOWS_MAX || total == 0 || offset > UINT64_MAX - total))
		r = err_set(err, -EINVAL, "write of %llu octets to window %u: nothing to write, or out of range",
			    (unsigned long long)total, window);
	if (r == 0)
		r = conn_fate_tx(c, err);
	if (r == 0)
		r = c->ops->write(c, lane, window, offset, iov, nr_iov, &number, deadline, err);
	if (r == 0 && ticket)
		*ticket = number;
	leave(c);
	return r;
}

uint64_t tp_completed(struct tp_conn *c, uint32_t lane)
{
	uint64_t ticket = 0;

	enter(c);
	if (lane < c->lanes)
		ticket = c->ops->completed(c, lane);
	leave(c);
	return ticket;
}

int tp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	enter(c);
	if (lane >= c->lanes)
		r = err_set(err, -EINVAL, "lane %u of %u", lane, c->lanes);
	if (r == 0)
		r = conn_fate_tx(c, err);
	if (r == 0)
		r = c->ops->wait_completed(c, lane, ticket, deadline, err);
	leave(c);
	return r;
}

int tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
	    struct ft_error *err)
{
	uint64_t total;
	int r;

	enter(c);
	r = check_parts(c, lane, iov, nr_iov, TP_MESSAGE_MAX, &total, err);
	if (r == 0)
		r = conn_fate_tx(c, err);
	if (r == 0)
		r = c->ops->send(c, lane, iov, nr_iov, deadline, err);
	leave(c);
	return r;
}

int tp_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	enter(c);
	if (lane >= c->lanes)
		r = err_set(err, -EINVAL, "lane %u of %u", lane, c->lanes);
	if (r == 0)
		r = conn_fate_tx(c, err);
	if (r == 0 && c->ops->settle)
		r = c->ops->settle(c, lane, deadline, err);
	leave(c);
	return r;
}

uint32_t tp_credits(struct tp_conn *c, uint32_t lane)
{
	uint32_t n = 0;

	enter(c);
	if (lane < c->lanes)
		n = c->ops->credits(c, lane);
	leave(c);
	return n;
}

int tp_recv(struct tp_conn *c, void *buf, size_t cap, uint32_t *lane, size_t *len, uint64_t deadline,
	    struct ft_error *err)
{
	uint32_t from = 0;
	size_t n = 0;
	int r;

	enter(c);
	if (cap < TP_MESSAGE_MAX)
		r = err_set(err, -EINVAL, "a buffer of %zu octets, a message may have %u", cap, TP_MESSAGE_MAX);
	else
		r = conn_fate_rx(c, err);
	if (r == 0)
		r = c->ops->recv(c, buf, &from, &n, deadline, err);
	if (lane)
		*lane = from;
	*len = n;
	leave(c);
	return r;
}

int tp_poll_fd(struct tp_conn *c)
{
	int fd;

	enter(c);
	fd = c->ops->poll_fd(c);
	leave(c);
	return fd;
}

void tp_stats(struct tp_conn *c, struct tp_stats *out)
{
	enter(c);
	memset(out, 0, sizeof(*out));
	c->ops->stats(c, out);
	leave(c);
}

/* -- making connections -- */

static uint32_t or_default(uint32_t given, uint32_t value)
{
	return given ? given : value;
}

static int check_rdma_params(struct tp_params *p, struct ft_error *err)
{
	p->chunk_bytes = or_default(p->chunk_bytes, 1u << 20);
	p->signal_every = or_default(p->signal_every, 64);
	p->sq_depth = or_default(p->sq_depth, 256);
	p->ack_timeout = or_default(p->ack_timeout, 17);
	p->retry_count = or_default(p->retry_count, 6);
	if ((p->chunk_bytes & (p->chunk_bytes - 1)) || p->chunk_bytes < 1u << 20 || p->chunk_bytes > 1u << 28)
		return err_set(err, -EINVAL, "chunks of %u octets: a power of two, 1 MiB to 256 MiB, can be had",
			       p->chunk_bytes);
	if (p->pin_budget && p->pin_budget < 4 * (uint64_t)p->chunk_bytes)
		return err_set(err, -EINVAL, "a pin budget of %llu octets: 4 chunks of %u octets are the least",
			       (unsigned long long)p->pin_budget, p->chunk_bytes);
	if (p->sq_depth < 4 || p->sq_depth > 8192)
		return err_set(err, -EINVAL, "%u work requests a lane: 4 to 8192 can be had", p->sq_depth);
	if (p->ack_timeout > 31 || p->retry_count > 6)
		return err_set(err, -EINVAL, "ack timeout %u, %u retries: 1 to 31 and 1 to 6 can be had",
			       p->ack_timeout, p->retry_count);
	return 0;
}

static int check_params(struct tp_params *p, const struct tp_params *given, struct ft_error *err)
{
	*p = *given;
	if (p->credits == 0)
		p->credits = TP_CREDITS_DEFAULT;
	if (p->lanes < 2 || p->lanes > TP_LANES_MAX)
		return err_set(err, -EINVAL, "%u lanes, 2 to %u can be had", p->lanes, TP_LANES_MAX);
	if (p->credits > TP_CREDITS_MAX)
		return err_set(err, -EINVAL, "%u credits, at most %u can be had", p->credits, TP_CREDITS_MAX);
	return check_rdma_params(p, err);
}

static bool scheme(const char *uri, const char *prefix, const char **rest)
{
	size_t n = strlen(prefix);

	*rest = uri + n;
	return strncmp(uri, prefix, n) == 0;
}

/* Over rdma the device reads and writes memory by itself: what it carries cannot be encrypted here.  Within a process there is nobody to hide from. */
static int check_scheme(const char *uri, const struct tp_params *p, struct ft_error *err)
{
	const char *rest, *inner = scheme(uri, "fault(", &rest) ? strstr(rest, ")/") : NULL;

	uri = inner ? inner + 2 : uri;
	if (p->tls == TP_TLS_OFF || (!scheme(uri, "rdma:", &rest) && !scheme(uri, "loopback:", &rest)))
		return 0;
	return err_set(err, -EINVAL,
		       "tls: is for tcp alone; with '%.*s' nothing would be encrypted, neither pages nor records",
		       (int)strcspn(uri, ":") + 1, uri);
}

int tp_check(const char *uri, const struct tp_params *p, bool listener, struct ft_error *err)
{
	struct tls_creds *creds = NULL;
	struct tp_params full;
	int r = check_params(&full, p, err);

	if (r == 0)
		r = check_scheme(uri, &full, err);
	if (r == 0 && full.tls != TP_TLS_OFF)
		r = tls_creds_load(&creds, &full, listener, err);
	tls_creds_put(creds);
	return r;
}

int tp_connect(struct tp_conn **out, const char *uri, const struct tp_params *p, uint64_t deadline, int cancel_fd,
	       struct ft_error *err)
{
	struct tp_params full;
	const char *rest;
	int r;

	*out = NULL;
	r = check_params(&full, p, err);
	if (r == 0)
		r = check_scheme(uri, &full, err);
	if (r != 0)
		return r;
	if (scheme(uri, "fault(", &rest))
		return fault_connect(out, rest, &full, deadline, cancel_fd, err);
	if (scheme(uri, "loopback:", &rest))
		return loopback_connect(out, rest, &full, deadline, cancel_fd, err);
	if (scheme(uri, "rdma:", &rest))
		return rdma_connect_uri(out, rest, &full, deadline, cancel_fd, err);
	if (!scheme(uri, "tcp:", &rest))
		rest = uri;
	return tcp_connect(out, rest, &full, deadline, cancel_fd, err);
}

int tp_listen(struct tp_listener **out, const char *uri, const struct tp_params *p, struct ft_error *err)
{
	struct tp_params full;
	const char *rest;
	int r;

	*out = NULL;
	r = check_params(&full, p, err);
	if (r == 0)
		r = check_scheme(uri, &full, err);
	if (r != 0)
		return r;
	if (scheme(uri, "fault(", &rest))
		return fault_listen(out, rest, &full, err);
	if (scheme(uri, "loopback:", &rest))
		return loopback_listen(out, rest, &full, err);
	if (scheme(uri, "rdma:", &rest))
		return rdma_listen_uri(out, rest, &full, err);
	if (!scheme(uri, "tcp:", &rest))
		rest = uri;
	return tcp_listen(out, rest, &full, err);
}

int tp_accept(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	*out = NULL;
	return l->ops->accept(l, out, deadline, cancel_fd, err);
}

const char *tp_listener_address(const struct tp_listener *l)
{
	return l->address;
}

void tp_listener_close(struct tp_listener *l)
{
	if (l)
		l->ops->close(l);
}
