/* SPDX-License-Identifier: MIT */
/* fault_pump.c - reorder: each lane has a queue, and a thread ("pump") that carries on what is in it after random pauses.
 * Owns the queues and the pumps.  Callers queue on their own threads; a pump runs from fault_start_pumps() until its connection is over or
 * fault_stop_pumps(), which waits up to 1 s for what is queued.
 *
 * Must hold: the order on one lane is kept; only the pump takes an item off, and only after the inner connection has it; queued
 * messages are copies, queued writes point to the caller's memory until done counts them. */
#include "fault_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultpoint.h"
#include "thread.h"

#define QUEUE_ITEMS 16u
#define DRAIN_NS NS_PER_S
#define PAUSE_DEFAULT_MS 2u

static bool may_queue(struct fault *f, const struct lane *l, bool message)
{
	if (l->nr_items >= QUEUE_ITEMS)
		return false;
	/* one message may wait for a credit in the pump: when it gets one, we are told */
	return !message || l->nr_messages == 0 || l->nr_messages < tp_credits(f->inner, l->index);
}

static int queue_put(struct fault *f, struct lane *l, struct item *it, uint64_t *ticket, uint64_t deadline,
		     struct ft_error *err)
{
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (r == 0 && !may_queue(f, l, it->message)) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: the fault wrapper's queue is full", f->conn.name,
				    f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0) {
		*l->last = it;
		l->last = &it->next;
		l->nr_items++;
		l->nr_messages += it->message;
		if (!it->message)
			*ticket = ++l->posted;
		pthread_cond_broadcast(&f->cond);
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

int fault_queue(struct fault *f, struct lane *l, const struct item *from, uint64_t *ticket, uint64_t deadline,
		struct ft_error *err)
{
	struct item *it = FT_FAULT("fault/queue") ? NULL : malloc(sizeof(*it) + (from->message ? from->len : 0));
	size_t at = 0;
	int r;

	if (!it)
		return err_set(err, -ENOMEM, "no memory for a queue");
	*it = *from;
	for (unsigned i = 0; from->message && i < from->nr_iov; i++) {
		memcpy(it->octets + at, from->iov[i].iov_base, from->iov[i].iov_len);
		at += from->iov[i].iov_len;
	}
	if (from->message) {
		it->iov[0] = (struct iovec){ it->octets, it->len };
		it->nr_iov = 1;
	}
	r = queue_put(f, l, it, ticket, deadline, err);
	if (r != 0)
		free(it);
	return r;
}

static int carry(struct fault *f, struct lane *l, const struct item *it, struct ft_error *err)
{
	int r;

	if (it->message)
		return fault_pass_message(f, l, it, DEADLINE_NEVER, err);
	r = fault_pass_write(f, l, it, DEADLINE_NEVER, err);
	if (r == 0 && l->inner_posted > 0)
		r = tp_wait_completed(f->inner, l->index, l->inner_posted, DEADLINE_NEVER, err);
	return r;
}

static struct item *queue_wait(struct fault *f, struct lane *l)
{
	struct item *it = NULL;

	pthread_mutex_lock(&f->lock);
	while (!l->first && !f->stopping)
		pthread_cond_wait(&f->cond, &f->lock);
	if (!f->stopping) {
		it = l->first;
		fault_sleep_random(f, f->spec.delay_ms ? f->spec.delay_ms : PAUSE_DEFAULT_MS, DEADLINE_NEVER, NULL);
	}
	pthread_mutex_unlock(&f->lock);
	return it;
}

static void queue_pop(struct fault *f, struct lane *l)
{
	struct item *it = l->first;

	pthread_mutex_lock(&f->lock);
	l->first = it->next;
	if (!l->first)
		l->last = &l->first;
	l->nr_items--;
	l->nr_messages -= it->message;
	l->done += !it->message;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	free(it);
}

static void *pump(void *arg)
{
	struct lane *l = arg;
	struct fault *f = l->owner;
	struct ft_error why;
	struct item *it;
	int r = 0;

	while (r == 0 && (it = queue_wait(f, l))) {
		r = carry(f, l, it, &why);
		if (r == 0)
			queue_pop(f, l);
	}
	if (r != 0 && r != -ECANCELED && conn_fate_tx(&f->conn, NULL) == 0)
		conn_break_tx(&f->conn, &why, NULL);
	pthread_mutex_lock(&f->lock);
	l->pumping = false;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* With the lock held: until the pump has done it. */
int fault_await_pump(struct fault *f, struct lane *l, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	int r = ticket > l->posted ? err_set(err, -EINVAL, "ticket %llu of %llu", (unsigned long long)ticket,
					     (unsigned long long)l->posted)
				   : 0;

	while (r == 0 && l->done < ticket) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: not completed", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0 && l->told < ticket)
		l->told = ticket;
	return r;
}

int fault_await_idle(struct fault *f, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	while (r == 0 && l->nr_items > 0) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: not carried on", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	return r;
}

int fault_start_pumps(struct fault *f)
{
	int r = 0;

	for (uint32_t i = 0; i < f->conn.lanes && r == 0; i++) {
		f->lane[i].pumping = true;
		r = thread_start(&f->lane[i].pump, "ft-fault", pump, &f->lane[i]);
		if (r != 0) {
			f->lane[i].pumping = false;
			f->lane[i].pump = 0;
		}
	}
	return r;
}

/* fault_stop_pumps - after they have carried on what is queued, if that takes no longer than DRAIN_NS. */
void fault_stop_pumps(struct fault *f)
{
	uint64_t until = now_ns() + DRAIN_NS;

	pthread_mutex_lock(&f->lock);
	if (fault_stalled(f))
		until = 0;
	for (uint32_t i = 0; i < f->conn.lanes; i++) {
		while (f->lane[i].first && f->lane[i].pumping && now_ns() < until)
			cond_wait_until(&f->cond, &f->lock, until);
	}
	f->stopping = true;
	f->stall_until = 0;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	tp_cancel(f->inner);
}

void fault_queue_fini(struct lane *l)
{
	while (l->first) {
		struct item *it = l->first;

		l->first = it->next;
		free(it);
	}
}
