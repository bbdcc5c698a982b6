/* SPDX-License-Identifier: MIT */
/* fault.c - a wrapper that makes any transport misbehave, by a seed: "fault(KEY=VALUE,...)/URI".  For tests and drills.
 * fault_spec.c lists the keys.  This file owns the life of the wrapper and of its listener, its calls, and what is held back in receiving;
 * fault_pass.c does the faults of sending, fault_pump.c the threads of reorder, fault_private.h is what the four share.
 *
 * All faults are on the side that has the wrapper, and on what it sends, but for stall.  Without reorder a fault happens on the caller's
 * thread, inside its call; with it, on the lane's thread ("pump"), and tp_close() waits up to 1 s for what is queued.  While it stalls,
 * tp_poll_fd() may stay readable.
 *
 * Must hold: one thread at a time per lane is between the count of a write and the inner call (lane.busy), so tickets of both
 * connections run alike, those that disappear at the end. */
#include "fault_private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "faultpoint.h"
#include "thread.h"

/* -- lanes -- */

static int lane_take(struct fault *f, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (l->busy && r == 0) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: other threads use the lane", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0)
		l->busy = true;
	pthread_mutex_unlock(&f->lock);
	return r;
}

static void lane_give(struct fault *f, struct lane *l)
{
	pthread_mutex_lock(&f->lock);
	l->busy = false;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

/* -- ops -- */

static struct item item_of(bool message, const struct iovec *iov, unsigned nr_iov)
{
	struct item it = { .message = message, .nr_iov = nr_iov };

	for (unsigned i = 0; i < nr_iov; i++) {
		it.iov[i] = iov[i];
		it.len += iov[i].iov_len;
	}
	return it;
}

static int fault_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
		       unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct item it = item_of(false, iov, nr_iov);
	struct fault *f = fault_of(c);
	struct lane *l = &f->lane[lane];
	int r;

	it.window = window;
	it.offset = offset;
	if (f->spec.reorder)
		return fault_queue(f, l, &it, ticket, deadline, err);
	r = lane_take(f, l, deadline, err);
	if (r != 0)
		return r;
	r = fault_pass_write(f, l, &it, deadline, err);
	*ticket = l->inner_posted + l->dropped;
	lane_give(f, l);
	return r;
}

static int fault_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		      struct ft_error *err)
{
	struct item it = item_of(true, iov, nr_iov);
	struct fault *f = fault_of(c);
	struct lane *l = &f->lane[lane];
	int r;

	if (f->spec.reorder)
		return fault_queue(f, l, &it, NULL, deadline, err);
	r = lane_take(f, l, deadline, err);
	if (r != 0)
		return r;
	r = fault_pass_message(f, l, &it, deadline, err);
	lane_give(f, l);
	return r;
}

static uint64_t fault_completed(struct tp_conn *c, uint32_t lane)
{
	struct fault *f = fault_of(c);
	struct lane *l = &f->lane[lane];
	uint64_t inner = f->spec.reorder ? 0 : tp_completed(f->inner, lane), ticket;

	pthread_mutex_lock(&f->lock);
	if (f->spec.reorder)
		ticket = l->told += l->done > l->told ? fault_draw(f) % (l->done - l->told + 1) : 0;
	else if (fault_stalled(f))
		ticket = l->told;
	else
		ticket = l->told = inner < l->inner_posted ? inner : l->inner_posted + l->dropped;
	pthread_mutex_unlock(&f->lock);
	return ticket;
}

static int fault_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline,
				struct ft_error *err)
{
	struct fault *f = fault_of(c);
	struct lane *l = &f->lane[lane];
	uint64_t inner = 0;
	int r;

	pthread_mutex_lock(&f->lock);
	if (f->spec.reorder) {
		r = fault_await_pump(f, l, ticket, deadline, err);
	} else {
		r = fault_sleep_until(f, f->stall_until, deadline, err);
		inner = ticket <= l->inner_posted || ticket > l->inner_posted + l->dropped ? ticket : l->inner_posted;
	}
	pthread_mutex_unlock(&f->lock);
	if (r == 0 && inner > 0)
		r = tp_wait_completed(f->inner, lane, inner, deadline, err);
	return r == 0 || r == -ETIMEDOUT || r == -EINVAL ? r : fault_inner_failed(f, r, err);
}

static uint32_t fault_credits(struct tp_conn *c, uint32_t lane)
{
	struct fault *f = fault_of(c);
	uint32_t n = tp_credits(f->inner, lane), queued;

	pthread_mutex_lock(&f->lock);
	queued = f->lane[lane].nr_messages;
	pthread_mutex_unlock(&f->lock);
	return n > queued ? n - queued : 0;
}

/* hold - a message that came while all stands still waits here. */
static void hold(struct fault *f, const void *buf, uint32_t lane, size_t len)
{
	memcpy(f->held_octets, buf, len);
	f->held_lane = lane;
	f->held_len = len;
	f->held = true;
}

/* With the lock held.  1: *buf has a message; 0: look at the inner connection. */
static int take_held(struct fault *f, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	while (fault_stalled(f)) {
		int r = conn_fate_rx(&f->conn, err);

		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: nothing came", f->conn.name, f->conn.peer);
		if (r != 0)
			return r;
		cond_wait_until(&f->cond, &f->lock, f->stall_until < deadline ? f->stall_until : deadline);
	}
	if (!f->held)
		return 0;
	memcpy(buf, f->held_octets, f->held_len);
	*lane = f->held_lane;
	*len = f->held_len;
	f->held = false;
	return 1;
}

static int recv_inner(struct fault *f, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct ft_error why;
	int r = tp_recv(f->inner, buf, TP_MESSAGE_MAX, lane, len, 0, &why);

	if (r == -ETIMEDOUT) {
		r = wait_fd(tp_poll_fd(f->inner), POLLIN, f->halt_fd, deadline);
		if (r == -ETIMEDOUT)
			return err_set(err, r, "%s %s: nothing came", f->conn.name, f->conn.peer);
		if (r != 0 && conn_fate_rx(&f->conn, NULL) == 0)
			return err_sys(err, r, "poll");
		return conn_fate_rx(&f->conn, err);
	}
	if (r == 0)
		return 1;
	r = conn_fate_rx(&f->conn, err);
	if (r == 0) { /* the sentence of the inner connection is the reason */
		if (err)
			*err = why;
		r = why.code;
	}
	return r;
}

static int fault_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline,
		      struct ft_error *err)
{
	struct fault *f = fault_of(c);
	int r;

	do {
		pthread_mutex_lock(&f->lock);
		r = take_held(f, buf, lane, len, deadline, err);
		pthread_mutex_unlock(&f->lock);
		if (r != 0)
			break;
		r = recv_inner(f, buf, lane, len, deadline, err);
		if (r <= 0)
			continue;
		pthread_mutex_lock(&f->lock);
		if (fault_stalled(f)) {
			hold(f, buf, *lane, *len);
			r = 0;
		}
		pthread_mutex_unlock(&f->lock);
	} while (r == 0);
	return r > 0 ? 0 : r;
}

static int fault_poll_fd(struct tp_conn *c)
{
	return tp_poll_fd(fault_of(c)->inner);
}

static void fault_stats(struct tp_conn *c, struct tp_stats *out)
{
	tp_stats(fault_of(c)->inner, out);
}

/* Calls wait in the inner connection too, so it is cancelled; with reorder only the pumps wait there, and they are to carry on what was
 * sent before a tp_close(). */
static void fault_wake(struct tp_conn *c)
{
	struct fault *f = fault_of(c);

	if (conn_fate_rx(c, NULL) != 0)
		event_raise(f->halt_fd);
	if (!f->spec.reorder || atomic_load(&c->code_rx) != 0)
		tp_cancel(f->inner);
	pthread_mutex_lock(&f->lock);
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

static void fault_sever(struct tp_conn *c)
{
	struct fault *f = fault_of(c);

	f->inner->ops->sever(f->inner);
}

static void fault_destroy(struct tp_conn *c)
{
	struct fault *f = fault_of(c);

	if (f->spec.reorder)
		fault_stop_pumps(f);
	for (uint32_t i = 0; i < c->lanes; i++) {
		if (f->lane[i].pump)
			pthread_join(f->lane[i].pump, NULL);
		fault_queue_fini(&f->lane[i]);
	}
	tp_close(f->inner);
	close(f->halt_fd);
	free(f->corrupted);
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
	conn_fini(c);
	free(f);
}

/* The rest is the inner connection's business. */

static int fault_window(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err)
{
	struct tp_conn *inner = fault_of(c)->inner;

	return inner->ops->window ? inner->ops->window(inner, id, base, len, err) : 0;
}

static int fault_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err)
{
	return tp_memory(fault_of(c)->inner, base, len, err);
}

static int fault_mirror(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err)
{
	return tp_mirror(fault_of(c)->inner, window, base, len, err);
}

static void fault_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len)
{
	tp_prepare(fault_of(c)->inner, window, offset, len);
}

static int fault_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err)
{
	struct fault *f = fault_of(c);
	int r = 0;

	pthread_mutex_lock(&f->lock);
	if (f->spec.reorder)
		r = fault_await_idle(f, &f->lane[lane], deadline,
				     err); /* the messages that are to settle are in there */
	pthread_mutex_unlock(&f->lock);
	return r == 0 ? tp_settle(f->inner, lane, deadline, err) : r;
}

static void fault_info(struct tp_conn *c, struct tp_info *out)
{
	tp_info(fault_of(c)->inner, out);
}

static const struct tp_conn_ops ops = {
	.write = fault_write,
	.completed = fault_completed,
	.wait_completed = fault_wait_completed,
	.send = fault_send,
	.credits = fault_credits,
	.recv = fault_recv,
	.poll_fd = fault_poll_fd,
	.stats = fault_stats,
	.window = fault_window,
	.memory = fault_memory,
	.mirror = fault_mirror,
	.prepare = fault_prepare,
	.settle = fault_settle,
	.info = fault_info,
	.wake = fault_wake,
	.sever = fault_sever,
	.destroy = fault_destroy,
};

/* -- making connections -- */

/* wrap - takes @inner over in any case. */
static int wrap(struct tp_conn **out, struct tp_conn *inner, const struct fault_spec *spec, uint64_t seed,
		struct ft_error *err)
{
	struct fault *f = FT_FAULT("fault/create") ? NULL : calloc(1, sizeof(*f));
	char name[TP_NAME_MAX];
	int r = 0;

	if (!f) {
		tp_close(inner);
		return err_set(err, -ENOMEM, "no memory");
	}
	snprintf(name, sizeof(name), "fault/%.20s", tp_name(inner));
	conn_init(&f->conn, &ops, tp_lanes(inner), name, tp_peer(inner));
	f->conn.windows = inner->windows;
	f->inner = inner;
	f->spec = *spec;
	f->random = seed;
	f->halt_fd = FT_FAULT("fault/eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&f->lock, NULL);
	cond_init(&f->cond);
	if (spec->has_stall && spec->stall_after == 0)
		f->stall_until = spec->stall_ms ? now_ns() + spec->stall_ms * NS_PER_MS : DEADLINE_NEVER;
	for (uint32_t i = 0; i < f->conn.lanes; i++) {
		f->lane[i].owner = f;
		f->lane[i].index = i;
		f->lane[i].last = &f->lane[i].first;
	}
	if (f->halt_fd < 0)
		r = -errno;
	if (r == 0 && spec->reorder)
		r = fault_start_pumps(f);
	if (r != 0) {
		fault_destroy(&f->conn);
		return err_sys(err, r, "cannot set up the fault wrapper");
	}
	*out = &f->conn;
	return 0;
}

int fault_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		  struct ft_error *err)
{
	struct tp_conn *inner;
	struct fault_spec spec;
	const char *uri;
	int r;

	r = fault_parse(&spec, rest, &uri, err);
	if (r == 0)
		r = tp_connect(&inner, uri, p, deadline, cancel_fd, err);
	return r != 0 ? r : wrap(out, inner, &spec, spec.seed, err);
}

struct fault_listener {
	struct tp_listener base;
	struct tp_listener *inner;
	struct fault_spec spec;
	uint64_t accepted;
};

static int fault_accept(struct tp_listener *base, struct tp_conn **out, uint64_t deadline, int cancel_fd,
			struct ft_error *err)
{
	struct fault_listener *l = (struct fault_listener *)base;
	struct tp_conn *inner;
	int r = tp_accept(l->inner, &inner, deadline, cancel_fd, err);

	return r != 0 ? r : wrap(out, inner, &l->spec, l->spec.seed + l->accepted++, err);
}

static void fault_listener_close(struct tp_listener *base)
{
	struct fault_listener *l = (struct fault_listener *)base;

	tp_listener_close(l->inner);
	free(l);
}

static const struct tp_listener_ops listener_ops = { .accept = fault_accept, .close = fault_listener_close };

int fault_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	struct fault_listener *l = FT_FAULT("fault/listener") ? NULL : calloc(1, sizeof(*l));
	const char *uri;
	int r;

	if (!l)
		return err_set(err, -ENOMEM, "no memory");
	l->base.ops = &listener_ops;
	r = fault_parse(&l->spec, rest, &uri, err);
	if (r == 0)
		r = tp_listen(&l->inner, uri, p, err);
	if (r != 0) {
		free(l);
		return r;
	}
	strncpy(l->base.address, tp_listener_address(l->inner), sizeof(l->base.address) - 1);
	*out = &l->base;
	return 0;
}
