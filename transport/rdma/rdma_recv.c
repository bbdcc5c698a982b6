/* SPDX-License-Identifier: MIT */
/* rdma_recv.c - what comes in: every receive completion is dispatched by its work-request id and by the kind in its head, whoever polls and
 * whatever he waits for.  A message waits in its receive slot for tp_recv(); all else is dealt with at once and its slot posted again.
 * Also here: what is due to be told to the peer (rdma_control).
 *
 * Must hold
 *   - a receive is posted again as soon as its slot is free, so that who has a credit never meets an empty receive queue;
 *   - the completion of a send may come after the answer to it: nothing here looks at send completions;
 *   - numbers rise by one, credits never go back: what breaks that is a breach. */
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "rdma_private.h"

#define WR_LANE_SHIFT 56
#define WR_SLOT ((UINT64_C(1) << WR_LANE_SHIFT) - 1)

/* -- receives -- */

static uint8_t *slot_memory(const struct lane *l, unsigned slot)
{
	return l->rx_memory + slot * RDMA_SLOT_BYTES;
}

int rdma_post_receive(struct rdma *s, struct lane *l, unsigned slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)slot_memory(l, slot),
			       .length = (uint32_t)RDMA_SLOT_BYTES,
			       .lkey = s->slots_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)l->index << WR_LANE_SHIFT | slot, .sg_list = &sge, .num_sge = 1 },
			   *bad;

	return s->fabric->post_recv(l->id->qp, &wr, &bad);
}

static void post_again(struct rdma *s, struct lane *l, unsigned slot)
{
	int r;

	if (s->over || s->failed)
		return;
	r = rdma_post_receive(s, l, slot);
	if (r)
		rdma_break(s, r, "posting a receive on lane %u: %s", l->index, strerror(-r));
}

/* -- messages by kind -- */

static bool body_is(struct rdma *s, const char *what, uint32_t count, uint32_t len, size_t entry, uint32_t max)
{
	if (count >= 1 && count <= max && len == count * entry)
		return true;
	rdma_breach(s, "%s of %u entries has %u octets", what, count, len);
	return false;
}

static void on_close(struct rdma *s, struct lane *l, uint64_t number)
{
	bool all = true;

	if (number != l->received)
		return rdma_breach(s, "lane %u was closed behind message %llu, %llu have come", l->index,
				   (unsigned long long)number, (unsigned long long)l->received);
	l->closed = true;
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		all = all && s->lane[i].closed;
	if (all)
		rdma_last_word(s, -ENODATA, "the peer has closed");
	else
		rdma_lane_silent(s, l);
}

static void on_breach(struct rdma *s, const uint8_t *body, uint32_t len)
{
	char text[FT_ERROR_MAX];
	size_t n = len < sizeof(text) - 1 ? len : sizeof(text) - 1;

	for (size_t i = 0; i < n; i++)
		text[i] = body[i] >= ' ' && body[i] <= '~' ? (char)body[i] : '?';
	text[n] = '\0';
	rdma_last_word(s, -ECONNRESET, "the peer gave up: %s", text);
}

static void on_control(struct rdma *s, enum rdma_kind kind, uint32_t count, uint32_t len, const void *body)
{
	switch (kind) {
	case RDMA_WINDOW:
		if (body_is(s, "window", count, len, sizeof(struct rdma_window_entry), TP_WINDOWS_MAX))
			rdma_keys_on_window(s, body, count);
		break;
	case RDMA_REGISTER:
		if (body_is(s, "register", count, len, sizeof(struct rdma_chunk_entry), RDMA_BATCH_MAX))
			rdma_window_on_register(s, body, count);
		break;
	case RDMA_REGISTERED:
		if (body_is(s, "registered", count, len, sizeof(struct rdma_key_entry), RDMA_BATCH_MAX))
			rdma_keys_on_registered(s, body, count);
		break;
	case RDMA_UNREGISTER:
		if (body_is(s, "unregister", count, len, sizeof(struct rdma_chunk_entry), RDMA_BATCH_MAX))
			rdma_window_on_unregister(s, body, count);
		break;
	case RDMA_UNREGISTERED:
		if (body_is(s, "unregistered", count, len, sizeof(struct rdma_chunk_entry), RDMA_BATCH_MAX))
			rdma_keys_on_unregistered(s, body, count);
		break;
	case RDMA_MESSAGE:
	case RDMA_CREDIT:
	case RDMA_CLOSE:
	case RDMA_BREACH:
		break; /* not here */
	}
}

/* Credits that came with the head.  False: a breach. */
static bool take_credits(struct rdma *s, struct lane *l, const struct rdma_head *head)
{
	uint64_t taken = from_be64(head->taken), control = from_be64(head->control_taken);

	if (taken < l->returned || taken > l->sent_posted || control < l->control_returned ||
	    control > l->control_posted) {
		rdma_breach(s,
			    "credits of lane %u say %llu of %llu messages (were %llu) and %llu of %llu control "
			    "messages (were %llu)",
			    l->index, (unsigned long long)taken, (unsigned long long)l->sent_posted,
			    (unsigned long long)l->returned, (unsigned long long)control,
			    (unsigned long long)l->control_posted, (unsigned long long)l->control_returned);
		return false;
	}
	l->returned = taken;
	l->control_returned = control;
	return true;
}

static bool number_is(struct rdma *s, const struct lane *l, const char *what, uint64_t number, uint64_t last)
{
	if (number == last + 1)
		return true;
	rdma_breach(s, "%s %llu on lane %u, expected %llu", what, (unsigned long long)number, l->index,
		    (unsigned long long)last + 1);
	return false;
}

static void arrived(struct rdma *s, struct lane *l, unsigned slot, uint32_t len)
{
	s->arrival[s->arrival_end++ % s->nr_arrivals] = (struct arrival){ .lane = l->index, .slot = slot, .len = len };
	if (s->polled)
		event_raise(s->ready_fd);
}

/* Who sends without a credit uses up receives that are there for other words. */
static bool has_credit(struct rdma *s, const struct lane *l, const char *what, uint64_t out, uint64_t credits)
{
	if (out < credits)
		return true;
	rdma_breach(s, "%s on lane %u without a credit: %llu are on their way", what, l->index,
		    (unsigned long long)out + 1);
	return false;
}

static void on_message(struct rdma *s, struct lane *l, unsigned slot, uint32_t byte_len)
{
	const struct rdma_head *head = (const struct rdma_head *)slot_memory(l, slot);
	const void *body = head + 1;
	uint32_t kind, count, len;
	uint64_t number;

	if (byte_len < sizeof(*head))
		return rdma_breach(s, "a message of %u octets on lane %u", byte_len, l->index);
	kind = from_be16(head->kind);
	count = from_be16(head->count);
	len = from_be32(head->len);
	number = from_be64(head->number);
	if (len != byte_len - sizeof(*head))
		return rdma_breach(s, "a message of %u octets on lane %u says it has %u", byte_len, l->index, len);
	if (l->closed)
		return rdma_breach(s, "a message on lane %u behind its end", l->index);
	if (!take_credits(s, l, head))
		return;
	rdma_count(&s->bytes_received, byte_len);
	if (kind == RDMA_MESSAGE) {
		if (!number_is(s, l, "message", number, l->received) ||
		    !has_credit(s, l, "message", l->received - l->taken, s->limits.credits_ours))
			return;
		l->received++;
		return arrived(s, l, slot, len);
	}
	if (kind == RDMA_CREDIT) {
		if (count)
			l->answer_at = l->received;
	} else if (kind == RDMA_CLOSE) {
		on_close(s, l, number);
	} else if (kind == RDMA_BREACH) {
		on_breach(s, body, len);
	} else if (kind < RDMA_WINDOW || kind > RDMA_UNREGISTERED || l->index != 0) {
		return rdma_breach(s, "a message of kind %u on lane %u", kind, l->index);
	} else if (number_is(s, l, "control message", number, l->control_received) &&
		   has_credit(s, l, "control message", l->control_received - l->control_told, RDMA_CONTROL_CREDITS)) {
		on_control(s, (enum rdma_kind)kind, count, len, body);
		l->control_received++; /* dealt with */
	}
	post_again(s, l, slot);
}

/* Nothing more comes on this lane.  That it was flushed says nothing of the reason: that may lie in the other queue. */
static void on_failed_receive(struct rdma *s, struct lane *l, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_WR_FLUSH_ERR) {
		rdma_fail(s, -ECONNRESET, "receiving on lane %u failed: %s (status %d, vendor %#x)", l->index,
			  ibv_wc_status_str(wc->status), wc->status, wc->vendor_err);
	} else if (!l->closed && !s->failed) {
		rdma_drain_send(s);
		rdma_fail(s, -ECONNRESET, "lane %u was shut down", l->index);
	}
	rdma_lane_silent(s, l);
}

static void on_receive_completion(struct rdma *s, const struct ibv_wc *wc)
{
	uint64_t lane = wc->wr_id >> WR_LANE_SHIFT, slot = wc->wr_id & WR_SLOT;

	if (lane >= s->conn.lanes && lane < s->made)
		return; /* flushed with a lane that the peer did not want */
	if (lane >= s->conn.lanes || slot >= s->lane[lane].nr_receives)
		return rdma_break(s, -EIO, "the device reported a receive %#llx that nobody posted",
				  (unsigned long long)wc->wr_id);
	if (wc->status != IBV_WC_SUCCESS)
		return on_failed_receive(s, &s->lane[lane], wc);
	if (wc->opcode != IBV_WC_RECV)
		return rdma_breach(s, "the peer used operation %d on lane %u", wc->opcode, (unsigned)lane);
	if (atomic_load(&s->conn.code_rx) == 0) /* after a breach nothing is believed any more */
		on_message(s, &s->lane[lane], (unsigned)slot, wc->byte_len);
}

void rdma_drain_recv(struct rdma *s)
{
	struct ibv_wc wc[16];
	unsigned taken = 0;
	int n = 0;

	while (taken < s->nr_arrivals && (n = s->fabric->poll_cq(s->recv_cq, 16, wc)) > 0) {
		for (int i = 0; i < n; i++)
			on_receive_completion(s, &wc[i]);
		taken += (unsigned)n;
	}
	s->more = n > 0;
	if (n < 0)
		rdma_break(s, -EIO, "the receive completion queue cannot be read (%d)", n);
}

/* -- what is due -- */

static uint64_t half(uint64_t window)
{
	return window > 1 ? window / 2 : 1;
}

static bool credit_due(const struct rdma *s, const struct lane *l)
{
	if (l->answer_at && l->taken >= l->answer_at)
		return true;
	if (l->taken - l->told >= half(s->limits.credits_ours))
		return true;
	return l->control_received - l->control_told >= half(RDMA_CONTROL_CREDITS);
}

static void say_credit(struct rdma *s, struct lane *l)
{
	bool ask = l->ask;

	if (!ask && !credit_due(s, l))
		return;
	if (rdma_say(s, l, RDMA_CREDIT, ask, NULL, 0) && ask)
		l->ask = false;
}

static void say_replies(struct rdma *s)
{
	while (s->nr_replies && !s->answering) {
		struct reply *first = &s->reply[0];

		if (!rdma_say(s, &s->lane[0], first->kind, first->count, first->entry,
			      first->count * first->entry_bytes))
			return;
		s->nr_replies--;
		memmove(first, first + 1, s->nr_replies * sizeof(*first));
	}
}

void rdma_control(struct rdma *s)
{
	if (!s->stands || conn_fate_tx(&s->conn, NULL))
		return;
	rdma_windows_control(s);
	if (!s->announce) /* an answer about a window that is no more comes behind the news of the one that is */
		say_replies(s);
	rdma_keys_control(s);
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		say_credit(s, &s->lane[i]);
}

/* -- tp_recv -- */

static void done_with_last(struct rdma *s)
{
	if (s->given < 0)
		return;
	s->lane[s->given].taken++;
	s->given = -1;
	rdma_control(s);
}

/* The message stays where it is until it is copied: its slot is ours. */
static void hand_out(struct rdma *s, void *buf, uint32_t *lane, size_t *len)
{
	struct arrival a = s->arrival[s->arrival_first++ % s->nr_arrivals];
	struct lane *l = &s->lane[a.lane];

	pthread_mutex_unlock(&s->lock);
	memcpy(buf, slot_memory(l, a.slot) + sizeof(struct rdma_head), a.len);
	pthread_mutex_lock(&s->lock);
	post_again(s, l, a.slot);
	rdma_count(&s->messages_received, 1);
	s->given = (int)a.lane;
	*lane = a.lane;
	*len = a.len;
}

static int await_arrival(struct rdma *s, uint64_t deadline, struct ft_error *err)
{
	for (int tries = 0; s->arrival_first == s->arrival_end; tries++) {
		int r = conn_fate_rx(&s->conn, err);

		if (r)
			return r;
		if (s->over)
			return conn_break(&s->conn, &s->lost, err);
		if (tries == 0)
			rdma_progress(s);
		else if (rdma_wait(s, false, deadline) == -ETIMEDOUT && s->arrival_first == s->arrival_end && !s->over)
			return err_set(err, -ETIMEDOUT, "%s %s: no message", s->conn.name, s->conn.peer);
	}
	return 0;
}

int rdma_op_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	int r;

	pthread_mutex_lock(&s->lock);
	done_with_last(s);
	if (s->polled)
		event_clear(s->ready_fd);
	r = await_arrival(s, deadline, err);
	if (r == -ETIMEDOUT && s->polled) {
		rdma_rearm(s);
		r = s->arrival_first == s->arrival_end ? r : 0;
	}
	if (r == 0) {
		hand_out(s, buf, lane, len);
		if (s->polled)
			event_raise(s->ready_fd); /* nobody has armed the queue since */
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}
