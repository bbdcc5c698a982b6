/* SPDX-License-Identifier: MIT */
/* rdma_wait.c - waiting, and how a connection ends.
 * There is no thread of the transport's own: of the threads that wait one is the poller, which sleeps on all descriptors and
 * dispatches what comes; the others sleep on the condition variable and look at what they wait for whenever the poller, or anybody,
 * has changed something.  A poller that has what it wants leaves, and wakes the others, of whom one takes its place.  So a process with one
 * thread in tp_recv() pays no hand-over, and nothing is ever received by a thread that does not know what to do with it: receive
 * completions are dispatched by kind, whoever polls.
 *
 * Must hold: no completion is lost between arming a queue and sleeping (arm, then drain, then sleep); the poller drains under the lock. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "rdma_private.h"
#include "thread.h"

#define DEAF_MS 1 /* how often a device that refused a post is asked again */

/* Without an event no queue is armed a second time, so there is one at most: to ask for more would cost a system call for each. */
static void take_cq_event(struct rdma *s, struct ibv_comp_channel *channel, struct ibv_cq *cq, struct cq_events *e)
{
	struct ibv_cq *from;
	void *context;

	if (s->fabric->get_cq_event(channel, &from, &context))
		return;
	e->armed = false;
	if (++e->taken > 1000) { /* they are counted in 32 bits */
		s->fabric->ack_cq_events(cq, e->taken);
		e->taken = 0;
	}
}

static void drain(struct rdma *s)
{
	s->starved = false;
	rdma_drain_recv(s);
	rdma_drain_send(s);
	rdma_pump_all(s);
	rdma_control(s);
}

/* A queue that is armed already, or whose event nobody has taken yet, will make its descriptor readable: nothing to do. */
static void arm(struct rdma *s, struct ibv_cq *cq, struct cq_events *e)
{
	if (e->armed)
		return;
	if (s->fabric->req_notify_cq(cq, 0))
		rdma_deaf(s);
	else
		e->armed = true;
}

void rdma_kick(struct rdma *s)
{
	if (s->polling && !pthread_equal(s->poller, pthread_self())) /* it may be asleep */
		event_raise(s->wake_fd);
}

void rdma_deaf(struct rdma *s)
{
	s->deaf = true;
	rdma_kick(s);
	if (s->polled)
		event_raise(s->ready_fd);
}

void rdma_starve(struct rdma *s)
{
	if (s->starved)
		return;
	s->starved = true;
	arm(s, s->send_cq, &s->send_events);
	rdma_drain_send(s);
}

static void begin_polling(struct rdma *s)
{
	s->polling = true;
	s->poller = pthread_self();
}

static void end_polling(struct rdma *s)
{
	s->polling = false;
	pthread_cond_broadcast(&s->cond);
}

void rdma_progress(struct rdma *s)
{
	if (s->polling) {
		rdma_drain_send(s);
		return;
	}
	begin_polling(s);
	drain(s);
	end_polling(s);
}

void rdma_rearm(struct rdma *s)
{
	event_clear(s->ready_fd);
	arm(s, s->recv_cq, &s->recv_events);
	rdma_progress(s);
	if (s->more || s->deaf)
		event_raise(s->ready_fd);
}

/* A kick is over when the poller has woken; the fate of the connection stays: who sets it does so before he raises the descriptor.  After a
 * failure there is one more wait, for what is still to be told: not a busy one. */
static void heed_kick(struct rdma *s)
{
	bool last_wait = s->failed && !s->over;

	event_clear(s->wake_fd);
	if ((conn_fate_tx(&s->conn, NULL) && !last_wait) || conn_fate_rx(&s->conn, NULL))
		event_raise(s->wake_fd);
}

static void sleep_on_all(struct rdma *s, uint64_t deadline)
{
	struct pollfd p[] = {
		{ .fd = s->recv_channel->fd, .events = POLLIN },
		{ .fd = s->send_channel->fd, .events = POLLIN },
		{ .fd = s->events->fd, .events = POLLIN },
		{ .fd = s->wake_fd, .events = POLLIN },
	};
	uint64_t until = s->deaf ? deadline_in_ms(DEAF_MS) : DEADLINE_NEVER;

	pthread_mutex_unlock(&s->lock);
	if (poll(p, 4, deadline_poll_ms(until < deadline ? until : deadline)) < 0)
		p[0].revents = p[1].revents = p[2].revents = p[3].revents = 0; /* a signal: look again */
	pthread_mutex_lock(&s->lock);
	if (p[0].revents) {
		take_cq_event(s, s->recv_channel, s->recv_cq, &s->recv_events);
		if (s->polled) /* it is not armed any more */
			event_raise(s->ready_fd);
	}
	if (p[1].revents)
		take_cq_event(s, s->send_channel, s->send_cq, &s->send_events);
	if (p[2].revents)
		rdma_conn_events(s);
	if (p[3].revents)
		heed_kick(s);
}

static uint64_t marks(const struct rdma *s)
{
	uint64_t n = s->arrival_end + s->over + s->registers_out + s->unregisters_out;

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		const struct lane *l = &s->lane[i];

		n += l->sq_done + l->sq_posted + l->returned + l->control_received + l->control_returned;
	}
	return n;
}

/* A peer that never stops must not keep the lock from those who have something else to do. */
static void let_others(struct rdma *s)
{
	pthread_mutex_unlock(&s->lock);
	sched_yield();
	pthread_mutex_lock(&s->lock);
}

static void poll_once(struct rdma *s, bool for_send, uint64_t deadline)
{
	uint64_t before = marks(s);

	arm(s, s->recv_cq, &s->recv_events);
	drain(s);
	if (for_send || s->send_waiters || s->starved) {
		arm(s, s->send_cq, &s->send_events);
		drain(s);
	}
	if (s->more)
		return let_others(s);
	if (marks(s) != before)
		return;
	sleep_on_all(s, deadline);
	s->deaf = false;
	drain(s);
}

static void follow(struct rdma *s, bool for_send, uint64_t deadline)
{
	uint64_t before = marks(s);

	if (for_send)
		s->send_waiters++;
	if (for_send || s->starved) {
		arm(s, s->send_cq, &s->send_events);
		rdma_drain_send(s);
	}
	if (marks(s) == before)
		cond_wait_until(&s->cond, &s->lock, deadline);
	if (for_send)
		s->send_waiters--;
}

/* Time that is up is up, also while the peer goes on and on. */
int rdma_wait(struct rdma *s, bool for_send, uint64_t deadline)
{
	if (s->polling) {
		follow(s, for_send, deadline);
	} else {
		begin_polling(s);
		poll_once(s, for_send, deadline);
		end_polling(s);
	}
	return now_ns() >= deadline ? -ETIMEDOUT : 0;
}

/* -- the end of a connection -- */

static void sentence(struct ft_error *out, int code, const char *fmt, va_list ap)
{
	char text[FT_ERROR_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	err_set(out, code, "%s", text);
}

void rdma_break(struct rdma *s, int code, const char *fmt, ...)
{
	struct ft_error why;
	va_list ap;

	va_start(ap, fmt);
	sentence(&why, code, fmt, ap);
	va_end(ap);
	conn_break(&s->conn, &why, NULL);
}

static void lose(struct rdma *s, int code, const char *fmt, va_list ap)
{
	struct ft_error why;

	sentence(&s->lost, code, fmt, ap);
	why = s->lost;
	if (code == -ENODATA)
		err_set(&why, -EPIPE, "the peer has closed");
	conn_break_tx(&s->conn, &why, NULL);
}

void rdma_last_word(struct rdma *s, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (!s->over)
		lose(s, code, fmt, ap);
	va_end(ap);
	s->over = true;
}

void rdma_lane_silent(struct rdma *s, struct lane *l)
{
	l->silent = true;
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (!s->lane[i].closed && !s->lane[i].silent)
			return;
	if (s->failed)
		s->over = true;
}

/* The peer's last words may have come before, and not be told yet: a device owes no order between its queues, nor between them and the
 * connection manager.  But the receives of one queue pair come back in their order: so all of them are put into error, and when each
 * has given back a receive unused, all that came was dispatched. */
void rdma_fail(struct rdma *s, int code, const char *fmt, ...)
{
	va_list ap;

	if (s->over || s->failed)
		return;
	va_start(ap, fmt);
	lose(s, code, fmt, ap);
	va_end(ap);
	s->failed = true;
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (s->fabric->disconnect(s->lane[i].id) || s->lane[i].closed)
			rdma_lane_silent(s, &s->lane[i]); /* it gives back nothing, or nothing that counts */
}

void rdma_breach(struct rdma *s, const char *fmt, ...)
{
	struct ft_error why;
	va_list ap;

	va_start(ap, fmt);
	sentence(&why, -EPROTO, fmt, ap);
	va_end(ap);
	if (conn_fate_tx(&s->conn, NULL) == 0)
		s->breached = rdma_say(s, &s->lane[0], RDMA_BREACH, 0, why.msg, strlen(why.msg));
	conn_break(&s->conn, &why, NULL);
}
