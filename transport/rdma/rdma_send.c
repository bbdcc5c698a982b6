/* SPDX-License-Identifier: MIT */
/* rdma_send.c - what goes out on a lane: writes and messages wait in the lane's queue, are posted in chains, and complete.
 * Runs on the threads of the callers and on the poller, under the lock.
 *
 * Must hold
 *   - a message is posted behind all writes and messages that were queued before it, and nothing queued behind it goes before it, but for
 *     the transport's own words, which wait for nothing: writes may be waiting for them;
 *     writes to different chunks may overtake one another, those to one chunk never do;
 *   - each chain ends with a signaled work request, and one of at most signal_every is signaled: every completion becomes known;
 *   - an entry's memory is not touched by us from when it was queued to when it is done; done are those work requests up to the last
 *     that was reported without an error, and no others. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "clock.h"
#include "rdma_private.h"

#define CHAIN_MAX RDMA_POST_WRITES
#define DEAF_NS (100 * NS_PER_MS) /* the last words are spared if the device has completed nothing for so long */

#define WR_LANE_SHIFT 56
#define WR_NUMBER ((UINT64_C(1) << WR_LANE_SHIFT) - 1)

static bool is_control(enum rdma_kind kind)
{
	return kind >= RDMA_WINDOW && kind <= RDMA_UNREGISTERED;
}

static struct entry *entry_at(struct lane *l, uint64_t i)
{
	return &l->entry[i % RDMA_QUEUE];
}

/* -- completions -- */

static void retire(struct rdma *s, struct lane *l, struct entry *e)
{
	e->state = ENTRY_DONE;
	if (e->chunk)
		rdma_key_done(s, e->chunk);
	if (e->once) {
		rdma_dereg(s, e->once);
		e->once = NULL;
	}
	if (e->kind)
		l->slot[e->slot].busy = false;
}

/* What is done at the old end of the queue leaves it; tickets complete in order. */
static void advance(struct lane *l)
{
	while (l->first < l->end && entry_at(l, l->first)->state == ENTRY_DONE) {
		struct entry *e = entry_at(l, l->first);

		if (e->ticket)
			l->completed = e->ticket;
		e->state = ENTRY_FREE;
		l->first++;
	}
	if (l->next_post < l->first)
		l->next_post = l->first;
}

static void on_send_completion(struct rdma *s, const struct ibv_wc *wc)
{
	uint64_t lane = wc->wr_id >> WR_LANE_SHIFT, number = wc->wr_id & WR_NUMBER;
	struct lane *l;

	if (lane >= s->conn.lanes)
		return rdma_break(s, -EIO, "the device reported a work request %#llx that nobody posted",
				  (unsigned long long)wc->wr_id);
	l = &s->lane[lane];
	if (number > l->sq_posted)
		return rdma_break(s, -EIO, "the device reported work request %llu of %llu on lane %u",
				  (unsigned long long)number, (unsigned long long)l->sq_posted, l->index);
	if (wc->status == IBV_WC_WR_FLUSH_ERR) {
		l->flushed = true;
		return;
	}
	if (wc->status != IBV_WC_SUCCESS)
		return rdma_fail(s, -ECONNRESET, "work request on lane %u failed: %s (status %d, vendor %#x)", l->index,
				 ibv_wc_status_str(wc->status), wc->status, wc->vendor_err);
	l->moved_ns = now_ns();
	while (l->sq_done < number) {
		l->sq_done++;
		retire(s, l, entry_at(l, l->sq[l->sq_done % s->limits.sq_depth]));
	}
	advance(l);
}

/* What was flushed says that a lane is lost, and not why: a failure, also of another lane, says more. */
static void heed_flushed(struct rdma *s)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (s->lane[i].flushed)
			rdma_fail(s, -ECONNRESET, "lane %u was shut down with work on its way", i);
}

void rdma_drain_send(struct rdma *s)
{
	struct ibv_wc wc[16];
	int n;

	while ((n = s->fabric->poll_cq(s->send_cq, 16, wc)) > 0)
		for (int i = 0; i < n; i++)
			on_send_completion(s, &wc[i]);
	heed_flushed(s);
	if (n < 0)
		rdma_break(s, -EIO, "the send completion queue cannot be read (%d)", n);
}

/* -- posting -- */

struct chain {
	struct ibv_send_wr wr[CHAIN_MAX];
	uint64_t entry[CHAIN_MAX];
	unsigned n;
};

static unsigned sq_room(const struct rdma *s, const struct lane *l, unsigned taken)
{
	return s->limits.sq_depth - (unsigned)(l->sq_posted - l->sq_done) - taken;
}

/* Credits as of the moment of posting: they say all that earlier ones said. */
static void stamp(struct lane *l, const struct entry *e)
{
	struct rdma_head *head = (struct rdma_head *)l->slot[e->slot].memory;

	head->taken = to_be64(l->taken);
	head->control_taken = to_be64(l->control_received);
}

static void stamped(struct lane *l)
{
	l->told = l->taken;
	l->control_told = l->control_received;
	if (l->answer_at && l->taken >= l->answer_at)
		l->answer_at = 0;
}

static void chain_add(struct rdma *s, struct lane *l, struct chain *ch, uint64_t at)
{
	struct entry *e = entry_at(l, at);
	struct ibv_send_wr *wr = &ch->wr[ch->n];
	const struct remote_window *w = &s->remote[e->window];

	memset(wr, 0, sizeof(*wr));
	wr->wr_id = (uint64_t)l->index << WR_LANE_SHIFT | (l->sq_posted + ch->n + 1);
	wr->sg_list = e->sge;
	wr->num_sge = (int)e->nr_sge;
	wr->opcode = e->kind ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
	if (e->kind) {
		stamp(l, e);
	} else {
		wr->wr.rdma.remote_addr = w->address + e->offset;
		wr->wr.rdma.rkey = e->chunk ? e->chunk->rkey : w->rkey;
		for (unsigned i = 0; e->mirror && i < e->nr_sge; i++)
			e->sge[i].lkey = e->chunk->mr->lkey;
	}
	if (l->sq_posted + ch->n + 1 - l->sq_signaled >= s->limits.signal_every)
		wr->send_flags = IBV_SEND_SIGNALED;
	if (ch->n)
		ch->wr[ch->n - 1].next = wr;
	ch->entry[ch->n++] = at;
}

static void on_posted(struct rdma *s, struct lane *l, uint64_t at, bool signaled)
{
	struct entry *e = entry_at(l, at);

	if (l->sq_posted == l->sq_done)
		l->moved_ns = now_ns();
	l->sq_posted++;
	l->sq[l->sq_posted % s->limits.sq_depth] = (uint32_t)(at % RDMA_QUEUE);
	if (signaled)
		l->sq_signaled = l->sq_posted;
	e->state = ENTRY_POSTED;
	l->nr_queued--;
	if (e->chunk)
		rdma_key_posted(s, e->chunk);
	if (e->kind)
		stamped(l);
	else
		rdma_count(&s->writes, 1);
	if (e->kind == RDMA_MESSAGE) {
		l->sent_posted++;
		rdma_count(&s->messages_sent, 1);
	}
	if (is_control(e->kind))
		l->control_posted++;
	rdma_count(&s->bytes_sent, e->len);
}

/* ENOMEM is no error: the device's queue is fuller than we think.  A completion will make room, or, where none is due, time. */
static int chain_post(struct rdma *s, struct lane *l, struct chain *ch)
{
	struct ibv_send_wr *bad = NULL;
	unsigned posted = ch->n;
	int r;

	if (!ch->n)
		return 0;
	ch->wr[ch->n - 1].send_flags |= IBV_SEND_SIGNALED;
	r = s->fabric->post_send(l->id->qp, ch->wr, &bad);
	if (r)
		posted = bad ? (unsigned)(bad - ch->wr) : 0;
	for (unsigned i = 0; i < posted; i++)
		on_posted(s, l, ch->entry[i], ch->wr[i].send_flags & IBV_SEND_SIGNALED);
	ch->n = 0;
	if (r == -ENOMEM) {
		if (l->sq_signaled > l->sq_done)
			rdma_starve(s);
		if (l->sq_signaled == l->sq_done)
			rdma_deaf(s);
	} else if (r) {
		rdma_break(s, r, "posting on lane %u: %s", l->index, strerror(-r));
	}
	return r;
}

static bool postable(const struct entry *e)
{
	return !e->chunk || e->chunk->state == CHUNK_READY;
}

/* Keys, and credits for control messages, must get past the writes that wait for keys.  A question is about the messages before it. */
static bool overtakes(const struct lane *l, const struct entry *e)
{
	const struct rdma_head *head = (const struct rdma_head *)l->slot[e->slot].memory;

	return is_control(e->kind) || (e->kind == RDMA_CREDIT && !head->count.be) || e->kind == RDMA_BREACH;
}

static void post_queued(struct rdma *s, struct lane *l)
{
	struct chain ch = { .n = 0 };
	bool blocked = false, message_blocked = false;
	int r = 0;

	l->gathered = 0;
	l->gathered_bytes = 0;
	for (uint64_t at = l->next_post; at < l->end && !r; at++) {
		struct entry *e = entry_at(l, at);

		if (e->state != ENTRY_QUEUED)
			continue;
		if ((e->kind ? blocked : message_blocked) && !overtakes(l, e)) {
			message_blocked = true;
			continue;
		}
		if (!postable(e)) {
			blocked = true;
			continue;
		}
		if (ch.n == CHAIN_MAX)
			r = chain_post(s, l, &ch);
		if (!r && !sq_room(s, l, ch.n)) {
			r = chain_post(s, l, &ch);
			rdma_drain_send(s);
			if (!r && !sq_room(s, l, 0))
				rdma_starve(s);
			if (!r && !sq_room(s, l, 0))
				r = -EAGAIN;
		}
		if (!r && e->state == ENTRY_QUEUED)
			chain_add(s, l, &ch, at);
	}
	if (!r || r == -EAGAIN)
		chain_post(s, l, &ch);
	while (l->next_post < l->end && entry_at(l, l->next_post)->state != ENTRY_QUEUED)
		l->next_post++;
	if (!l->nr_queued)
		l->stuck = false;
}

void rdma_pump(struct rdma *s, struct lane *l, bool flush)
{
	if (conn_fate_tx(&s->conn, NULL))
		return;
	if (!l->nr_queued) { /* the end of a chain that was not taken is gone: who tells of the rest? */
		if (flush && l->sq_posted > l->sq_signaled)
			rdma_say(s, l, RDMA_CREDIT, 0, NULL, 0);
		return;
	}
	if (flush || l->gathered >= RDMA_POST_WRITES || l->gathered_bytes >= RDMA_POST_BYTES)
		post_queued(s, l);
}

void rdma_pump_all(struct rdma *s)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (s->lane[i].nr_queued && (s->lane[i].stuck || s->lane[i].nr_queued >= RDMA_POST_WRITES))
			rdma_pump(s, &s->lane[i], true);
}

/* -- queueing -- */

static bool room(const struct lane *l, unsigned n)
{
	return l->end - l->first + n <= RDMA_QUEUE;
}

static struct entry *append(struct lane *l)
{
	struct entry *e = entry_at(l, l->end++);

	memset(e, 0, offsetof(struct entry, sge));
	e->state = ENTRY_QUEUED;
	l->nr_queued++;
	l->gathered++;
	return e;
}

static struct send_slot *free_slot(struct lane *l)
{
	for (unsigned i = 0; i < l->nr_slots; i++)
		if (!l->slot[i].busy)
			return &l->slot[i];
	return NULL;
}

/* In a slot whose memory behind the head is filled in. */
static void queue_message(struct rdma *s, struct lane *l, struct send_slot *slot, enum rdma_kind kind, uint32_t count,
			  uint64_t number, size_t len)
{
	struct rdma_head *head = (struct rdma_head *)slot->memory;
	struct entry *e = append(l);

	*head = (struct rdma_head){
		.kind = to_be16((uint16_t)kind),
		.count = to_be16((uint16_t)count),
		.len = to_be32((uint32_t)len),
		.number = to_be64(number),
	};
	slot->busy = true;
	e->kind = kind;
	e->slot = (uint32_t)(slot - l->slot);
	e->len = sizeof(*head) + len;
	e->nr_sge = 1;
	e->sge[0] = (struct ibv_sge){ .addr = (uintptr_t)slot->memory,
				      .length = (uint32_t)e->len,
				      .lkey = s->slots_mr->lkey };
	l->gathered_bytes += e->len;
	l->stuck = true; /* goes as soon as it can */
}

bool rdma_may_say(struct rdma *s, struct lane *l, enum rdma_kind kind)
{
	if (is_control(kind) && l->control_sent - l->control_returned >= RDMA_CONTROL_CREDITS)
		return false; /* the peer's next word tells */
	if (!room(l, 1) || !free_slot(l))
		rdma_starve(s);
	return room(l, 1) && free_slot(l);
}

bool rdma_say(struct rdma *s, struct lane *l, enum rdma_kind kind, uint32_t count, const void *body, size_t len)
{
	struct send_slot *slot;
	uint64_t number = 0;

	if (!rdma_may_say(s, l, kind))
		return false;
	slot = free_slot(l);
	if (len)
		memcpy(slot->memory + sizeof(struct rdma_head), body, len);
	if (is_control(kind))
		number = ++l->control_sent;
	else if (kind == RDMA_CLOSE)
		number = l->sent;
	queue_message(s, l, slot, kind, count, number, len);
	rdma_pump(s, l, true);
	return true;
}

/* -- writes -- */

/* What one call asks for, cut into pieces of one chunk each. */
struct want {
	uint32_t window;
	uint64_t offset;
	const struct iovec *iov;
	unsigned nr_iov;
};

static struct chunk *chunk_at(struct rdma *s, uint32_t window, uint64_t offset)
{
	struct remote_window *w = &s->remote[window];

	return w->chunk ? &w->chunk[chunk_of(offset, s->limits.chunk_shift)] : NULL;
}

static bool in_mirror(const struct remote_window *w, const uint8_t *at, uint64_t len, uint64_t offset)
{
	return w->chunk && w->source && offset + len <= w->source_len && at == w->source + offset;
}

/* Memory that a piece is read from, by what its key comes from. */
struct source {
	uint32_t lkey;
	bool known, mirror;
};

static struct source source_of(const struct rdma *s, uint32_t window, const uint8_t *at, uint64_t len, uint64_t offset,
			       const struct chunk *chunk)
{
	struct source src = { 0 };

	src.known = rdma_local_key(s, at, len, &src.lkey);
	if (!src.known) /* a chunk that got its key before the mirror was told has none of its memory */
		src.mirror =
			in_mirror(&s->remote[window], at, len, offset) && (chunk->state != CHUNK_READY || chunk->mr);
	return src;
}

static bool extend(struct rdma *s, struct lane *l, struct entry *e, uint32_t window, uint64_t offset, const uint8_t *at,
		   uint64_t len, const struct source *src, const struct chunk *chunk)
{
	struct ibv_sge *last = &e->sge[e->nr_sge - 1];

	if (e->state != ENTRY_QUEUED || e->kind || e->once || e->window != window || e->offset + e->len != offset ||
	    e->chunk != chunk || e->len + len > RDMA_MERGE_MAX || e->mirror != src->mirror ||
	    (!src->known && !src->mirror))
		return false;
	if (last->addr + last->length == (uintptr_t)at && last->lkey == src->lkey)
		last->length += (uint32_t)len;
	else if (e->nr_sge < s->max_sge)
		e->sge[e->nr_sge++] =
			(struct ibv_sge){ .addr = (uintptr_t)at, .length = (uint32_t)len, .lkey = src->lkey };
	else
		return false;
	e->len += len;
	l->gathered_bytes += len;
	return true;
}

/* Memory that nobody announced is registered for this write alone. */
static int register_once(struct rdma *s, struct entry *e, const uint8_t *at, uint64_t len, struct ft_error *err)
{
	uintptr_t from = (uintptr_t)at & ~(uintptr_t)4095, to = ((uintptr_t)at + len + 4095) & ~(uintptr_t)4095;
	const struct rdma_use use = { "memory of a write that was not announced", "smaller writes" };
	int r = rdma_reg(s, (void *)from, to - from, 0, use, &e->once, err);

	if (!r)
		e->sge[0].lkey = e->once->lkey;
	return r;
}

static int queue_piece(struct rdma *s, struct lane *l, uint32_t window, uint64_t offset, const uint8_t *at,
		       uint64_t len, struct ft_error *err)
{
	struct chunk *chunk = chunk_at(s, window, offset);
	struct source src = source_of(s, window, at, len, offset, chunk);
	struct entry *e;
	int r;

	if (l->end > l->first && extend(s, l, entry_at(l, l->end - 1), window, offset, at, len, &src, chunk))
		return 0;
	e = append(l);
	e->window = window;
	e->offset = offset;
	e->len = len;
	e->mirror = src.mirror;
	e->nr_sge = 1;
	e->sge[0] = (struct ibv_sge){ .addr = (uintptr_t)at, .length = (uint32_t)len, .lkey = src.lkey };
	if (!src.known && !src.mirror) {
		r = register_once(s, e, at, len, err);
		if (r) {
			l->end--;
			l->nr_queued--;
			e->state = ENTRY_FREE;
			return r;
		}
	}
	l->gathered_bytes += len;
	e->chunk = chunk;
	if (chunk) {
		rdma_key_want(s, window, chunk, false);
		if (!postable(e))
			l->stuck = true; /* to be posted when the key is there, whoever sees it come */
	}
	return 0;
}

static uint64_t max_piece(const struct rdma *s, const struct want *w, uint64_t offset, uint64_t left)
{
	const struct remote_window *r = &s->remote[w->window];
	uint64_t most = r->chunk ? chunk_left(offset, r->len, s->limits.chunk_shift) : left;

	return most < left ? most : left;
}

static unsigned nr_pieces(const struct rdma *s, const struct want *w)
{
	uint64_t offset = w->offset;
	unsigned n = 0;

	for (unsigned i = 0; i < w->nr_iov; i++) {
		for (uint64_t done = 0; done < w->iov[i].iov_len; n++) {
			uint64_t piece = max_piece(s, w, offset, w->iov[i].iov_len - done);

			done += piece;
			offset += piece;
		}
	}
	return n;
}

static int queue_write(struct rdma *s, struct lane *l, const struct want *w, struct ft_error *err)
{
	uint64_t offset = w->offset;
	int r = 0;

	for (unsigned i = 0; i < w->nr_iov && !r; i++) {
		const uint8_t *at = w->iov[i].iov_base;

		for (uint64_t done = 0; done < w->iov[i].iov_len && !r;) {
			uint64_t piece = max_piece(s, w, offset, w->iov[i].iov_len - done);

			r = queue_piece(s, l, w->window, offset, at + done, piece, err);
			done += piece;
			offset += piece;
		}
	}
	return r;
}

/* Half a write cannot be taken back. */
static int queue_all(struct rdma *s, struct lane *l, const struct want *w, struct ft_error *err)
{
	struct ft_error why = { 0 };

	if (queue_write(s, l, w, &why) == 0)
		return 0;
	rdma_break(s, why.code, "%s", why.msg);
	return conn_fate_tx(&s->conn, err);
}

static uint64_t bytes_of(const struct want *w)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < w->nr_iov; i++)
		n += w->iov[i].iov_len;
	return n;
}

/* Until the window is known and the queue has room for all pieces. */
static int await_room(struct rdma *s, struct lane *l, const struct want *w, uint64_t deadline, struct ft_error *err)
{
	const struct remote_window *r = &s->remote[w->window];

	for (bool late = false;;) {
		int fate = conn_fate_tx(&s->conn, err);

		if (fate)
			return fate;
		if (r->open && (w->offset > r->len || bytes_of(w) > r->len - w->offset))
			return err_set(err, -EINVAL, "write of %llu octets at %llu: the peer's window %u has %llu",
				       (unsigned long long)bytes_of(w), (unsigned long long)w->offset, w->window,
				       (unsigned long long)r->len);
		if (r->open && room(l, nr_pieces(s, w)))
			return 0;
		if (late)
			return r->open ? err_set(err, -ETIMEDOUT, "%s %s: no room for a write on lane %u", s->conn.name,
						 s->conn.peer, l->index)
				       : err_set(err, -ETIMEDOUT, "%s %s: the peer has not opened window %u",
						 s->conn.name, s->conn.peer, w->window);
		if (r->open)
			rdma_pump(s, l, true);
		late = rdma_wait(s, r->open, deadline) == -ETIMEDOUT;
	}
}

int rdma_op_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
		  unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	struct want w = { .window = window, .offset = offset, .iov = iov, .nr_iov = nr_iov };
	int r;

	pthread_mutex_lock(&s->lock);
	r = await_room(s, l, &w, deadline, err);
	if (!r)
		r = queue_all(s, l, &w, err);
	if (!r) {
		*ticket = ++l->tickets;
		entry_at(l, l->end - 1)->ticket = l->tickets;
		rdma_keys_control(s);
		rdma_pump(s, l, false);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

uint64_t rdma_op_completed(struct tp_conn *c, uint32_t lane)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	uint64_t ticket;

	pthread_mutex_lock(&s->lock);
	rdma_drain_send(s);
	if (l->seen_tickets == l->tickets)
		rdma_pump(s, l, true);
	l->seen_tickets = l->tickets;
	ticket = l->completed;
	pthread_mutex_unlock(&s->lock);
	return ticket;
}

int rdma_op_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	int r = 0;

	pthread_mutex_lock(&s->lock);
	if (ticket > l->tickets)
		r = err_set(err, -EINVAL, "ticket %llu of %llu", (unsigned long long)ticket,
			    (unsigned long long)l->tickets);
	rdma_pump(s, l, true);
	rdma_drain_send(s);
	while (!r && l->completed < ticket) {
		l->stuck = true;
		r = conn_fate_tx(c, err);
		if (!r && rdma_wait(s, true, deadline) == -ETIMEDOUT && l->completed < ticket)
			r = err_set(err, -ETIMEDOUT, "%s %s: write %llu of lane %u is not completed", c->name, c->peer,
				    (unsigned long long)ticket, lane);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* -- messages -- */

static uint32_t window_of_credits(const struct rdma *s)
{
	return s->limits.credits_peers;
}

static int take_turn(struct rdma *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	while (l->sending) {
		int r = conn_fate_tx(&s->conn, err);

		if (r)
			return r;
		l->turn_waiters++;
		r = rdma_wait(s, false, deadline);
		l->turn_waiters--;
		if (r == -ETIMEDOUT && l->sending)
			return err_set(err, -ETIMEDOUT, "%s %s: lane %u is taken by another message", s->conn.name,
				       s->conn.peer, l->index);
	}
	l->sending = true;
	return 0;
}

/* Who waits for it may be the poller. */
static void give_turn(struct rdma *s, struct lane *l)
{
	l->sending = false;
	pthread_cond_broadcast(&s->cond);
	if (l->turn_waiters)
		rdma_kick(s);
}

static bool has_credit(const struct rdma *s, const struct lane *l)
{
	return l->sent - l->returned < window_of_credits(s);
}

static bool may_send(struct rdma *s, struct lane *l)
{
	return has_credit(s, l) && room(l, 1) && free_slot(l);
}

static int await_credit(struct rdma *s, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	for (int tries = 0; !may_send(s, l); tries++) {
		int r = conn_fate_tx(&s->conn, err);

		if (r)
			return r;
		rdma_pump(s, l, true);
		if (tries == 0) {
			rdma_progress(s);
			continue;
		}
		/* a credit is received; only for room it is worth to be woken by each chain that is sent */
		if (rdma_wait(s, has_credit(s, l), deadline) == -ETIMEDOUT && !may_send(s, l))
			return err_set(err, -ETIMEDOUT, "%s %s: no credit on lane %u", s->conn.name, s->conn.peer,
				       l->index);
	}
	return 0;
}

static void fill(uint8_t *to, const struct iovec *iov, unsigned nr_iov, size_t *len)
{
	*len = 0;
	for (unsigned i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len)
			memcpy(to + *len, iov[i].iov_base, iov[i].iov_len);
		*len += iov[i].iov_len;
	}
}

/* A queued message that is not to go after all; the lane's turn is ours, so it is the newest. */
static void unqueue_message(struct lane *l, struct entry *e)
{
	e->state = ENTRY_DONE;
	l->slot[e->slot].busy = false;
	l->nr_queued--;
	l->sent--;
	advance(l);
}

static int await_posted(struct rdma *s, struct lane *l, uint64_t at, uint64_t deadline, struct ft_error *err)
{
	struct entry *e = entry_at(l, at);

	rdma_pump(s, l, true);
	while (l->first <= at && e->state == ENTRY_QUEUED) {
		int r = conn_fate_tx(&s->conn, err);

		if (r) { /* else the goodbye would send it, without the writes that it drops */
			unqueue_message(l, e);
			return r;
		}
		if (rdma_wait(s, true, deadline) == -ETIMEDOUT && l->first <= at && e->state == ENTRY_QUEUED) {
			unqueue_message(l, e);
			return err_set(err, -ETIMEDOUT, "%s %s: no room for a message on lane %u", s->conn.name,
				       s->conn.peer, l->index);
		}
	}
	return 0;
}

int rdma_op_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		 struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	struct send_slot *slot;
	size_t len;
	int r;

	pthread_mutex_lock(&s->lock);
	r = take_turn(s, l, deadline, err);
	if (r) {
		pthread_mutex_unlock(&s->lock);
		return r;
	}
	r = await_credit(s, l, deadline, err);
	if (!r) {
		slot = free_slot(l);
		fill(slot->memory + sizeof(struct rdma_head), iov, nr_iov, &len);
		queue_message(s, l, slot, RDMA_MESSAGE, 0, ++l->sent, len);
		r = await_posted(s, l, l->end - 1, deadline, err);
	}
	give_turn(s, l);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int rdma_op_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	uint64_t sent;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	sent = l->sent;
	if (l->returned < sent && l->asked < sent) {
		l->asked = sent;
		l->ask = true;
	}
	while (!r && l->returned < sent) {
		rdma_pump(s, l, true);
		rdma_control(s);
		r = conn_fate_tx(c, err);
		if (!r && rdma_wait(s, true, deadline) == -ETIMEDOUT && l->returned < sent)
			r = err_set(err, -ETIMEDOUT, "%s %s: the peer is not done with message %llu of lane %u",
				    c->name, c->peer, (unsigned long long)sent, lane);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

uint32_t rdma_op_credits(struct tp_conn *c, uint32_t lane)
{
	struct rdma *s = rdma_of(c);
	struct lane *l = &s->lane[lane];
	uint32_t n;

	pthread_mutex_lock(&s->lock);
	n = window_of_credits(s) - (uint32_t)(l->sent - l->returned);
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* -- the end -- */

/* Writes that wait for a key would hold up the last words. */
static void drop_blocked(struct rdma *s, struct lane *l)
{
	for (uint64_t at = l->next_post; at < l->end; at++) {
		struct entry *e = entry_at(l, at);

		if (e->state != ENTRY_QUEUED || e->kind || postable(e))
			continue;
		e->state = ENTRY_DONE;
		l->nr_queued--;
		rdma_key_unwant(s, e->chunk);
		rdma_dereg(s, e->once);
		e->once = NULL;
	}
}

/* The peer's device does not answer: last words would not be heard, and a failover may be waiting for our end. */
static bool is_deaf(const struct rdma *s)
{
	uint64_t now = now_ns();

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		const struct lane *l = &s->lane[i];

		if (l->sq_done < l->sq_posted && now - l->moved_ns > DEAF_NS)
			return true;
	}
	return false;
}

/* The last word of each lane, as far as there is room for it. */
static bool say_close(struct rdma *s)
{
	bool all = true;

	for (uint32_t i = 0; i < s->conn.lanes; i++) {
		struct lane *l = &s->lane[i];

		if (!l->said_close) {
			drop_blocked(s, l);
			l->said_close = rdma_say(s, l, RDMA_CLOSE, 0, NULL, 0);
		}
		rdma_pump(s, l, true);
		all = all && l->said_close && !l->nr_queued && l->sq_done == l->sq_posted;
	}
	return all;
}

/* That the peer has broken the rules was said before, and nothing more is. */
static bool say_breach(struct rdma *s)
{
	struct lane *l = &s->lane[0];

	if (l->nr_queued)
		post_queued(s, l);
	return l->sq_done == l->sq_posted;
}

/* The last words, and some time for the device to bring them over.  No thread is inside any more, and the fate of the connection is
 * "cancelled": posting goes on all the same. */
void rdma_goodbye(struct rdma *s)
{
	uint64_t until = deadline_in_ms(rdma_linger_ms);
	struct pollfd p = { .fd = s->send_channel->fd, .events = POLLIN };
	bool deaf;

	pthread_mutex_lock(&s->lock);
	rdma_conn_events(s);
	rdma_drain_recv(s);
	rdma_drain_send(s);
	deaf = is_deaf(s);
	atomic_store(&s->conn.cancelled, false);
	while (!deaf && !s->failed && (s->breached || atomic_load(&s->conn.code_tx) == 0)) {
		struct ibv_cq *cq;
		void *context;

		s->fabric->req_notify_cq(s->send_cq, 0);
		rdma_drain_send(s);
		if ((s->breached ? say_breach(s) : say_close(s)) || now_ns() >= until)
			break;
		poll(&p, 1, 2);
		while (s->fabric->get_cq_event(s->send_channel, &cq, &context) == 0)
			s->send_events.taken++;
	}
	atomic_store(&s->conn.cancelled, true);
	pthread_mutex_unlock(&s->lock);
}
