/* SPDX-License-Identifier: MIT */
/* rdma_keys.c - the writing side's knowledge of memory: the peer's windows and the keys of their chunks, the local memory that writes
 * come from, and which chunks to unpin when the budget is used up.  Runs under the lock, on callers and on the poller.
 *
 * Unpinning is asynchronous, and this side's to start: a chunk is marked (DRAINING; new writes to it wait, others go on), its writes
 * complete, its local memory is deregistered, the peer is told (TOLD), deregisters and answers, the mark is cleared (NONE), and writes that
 * wait have it registered again.
 *
 * Must hold
 *   - pinned_remote never exceeds the budget: it counts a chunk from before it is asked for until the peer has answered that it let go;
 *   - a chunk with writes queued is not chosen for unpinning, so each write that got its key is posted; but if all keys are held by writes
 *     that stand behind a message, and that behind a write that waits for a key, one is taken from them;
 *   - a chunk is on at most one list, that of its state. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultpoint.h"
#include "rdma_private.h"

/* -- lists -- */

static void list_add(struct chunk **first, struct chunk **last, struct chunk *c)
{
	c->next = NULL;
	c->prev = *last;
	if (*last)
		(*last)->next = c;
	else
		*first = c;
	*last = c;
}

static void list_remove(struct chunk **first, struct chunk **last, struct chunk *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		*first = c->next;
	if (c->next)
		c->next->prev = c->prev;
	else
		*last = c->prev;
	c->prev = c->next = NULL;
}

static void want_add(struct rdma *s, struct chunk *c)
{
	c->state = CHUNK_WANTED;
	list_add(&s->want_first, &s->want_last, c);
}

static void touch(struct rdma *s, struct chunk *c)
{
	if (c == s->lru_last)
		return;
	list_remove(&s->lru_first, &s->lru_last, c);
	list_add(&s->lru_first, &s->lru_last, c);
}

/* -- chunks -- */

static uint64_t index_of(const struct rdma *s, const struct chunk *c)
{
	return (uint64_t)(c - s->remote[c->window].chunk);
}

static uint64_t size_of(const struct rdma *s, const struct chunk *c)
{
	return chunk_bytes(index_of(s, c), s->remote[c->window].len, s->limits.chunk_shift);
}

/* With the chunk's writes complete. */
static void drained(struct rdma *s, struct chunk *c)
{
	rdma_dereg(s, c->mr);
	c->mr = NULL;
	list_add(&s->unpin_first, &s->unpin_last, c);
}

static void unpin(struct rdma *s, struct chunk *c)
{
	list_remove(&s->lru_first, &s->lru_last, c);
	c->state = CHUNK_DRAINING;
	s->unpinning += size_of(s, c);
	s->unpins++;
	if (!c->on_wire)
		drained(s, c);
}

static bool over_budget(const struct rdma *s, uint64_t more)
{
	return s->key_budget && s->pinned_remote && s->pinned_remote + more > s->key_budget;
}

/* Unpin the least recently used until @more octets fit, and a sixteenth of the budget besides, so that the next ones need not wait and
 * many go in one message; of these only such as need not be waited for.  @soon: for a chunk that is not written yet, leave those alone
 * that were asked for in the same way. */
static void make_room(struct rdma *s, uint64_t more, bool soon)
{
	uint64_t spare = s->key_budget / 16;
	struct chunk *c = s->lru_first, *next;

	for (; c && s->pinned_remote - s->unpinning + more + spare > s->key_budget; c = next) {
		bool needed = s->pinned_remote - s->unpinning + more > s->key_budget;

		next = c->next;
		if (c->queued || (soon && c->fresh) || (!needed && (c->on_wire || c->fresh)))
			continue;
		unpin(s, c);
	}
}

void rdma_key_want(struct rdma *s, uint32_t window, struct chunk *c, bool soon)
{
	c->window = window;
	s->remote[window].touched = true;
	if (!soon) {
		c->queued++;
		c->fresh = false;
	}
	if (c->state == CHUNK_NONE) {
		c->fresh = soon;
		want_add(s, c);
	} else if (c->state == CHUNK_READY) {
		touch(s, c);
	}
}

void rdma_key_unwant(struct rdma *s, struct chunk *c)
{
	(void)s;
	if (c)
		c->queued--;
}

void rdma_key_posted(struct rdma *s, struct chunk *c)
{
	(void)s;
	c->queued--;
	c->on_wire++;
}

void rdma_key_done(struct rdma *s, struct chunk *c)
{
	c->on_wire--;
	if (c->state == CHUNK_DRAINING && !c->on_wire)
		drained(s, c);
}

/* -- requests -- */

static struct rdma_chunk_entry entry_of(const struct rdma *s, const struct chunk *c)
{
	return (struct rdma_chunk_entry){ .window = to_be32(c->window),
					  .generation = to_be32(s->remote[c->window].generation),
					  .chunk = to_be64(index_of(s, c)) };
}

/* The first that is wanted, if the budget has room for it now. */
static struct chunk *grantable(struct rdma *s)
{
	struct chunk *c = s->want_first;

	while (c && over_budget(s, size_of(s, c))) {
		make_room(s, size_of(s, c), !c->queued);
		if (c->queued) { /* until those being unpinned are gone */
			s->pressed = s->pinned_remote - s->unpinning + size_of(s, c) > s->key_budget;
			return NULL;
		}
		/* only asked for ahead: it is not worth waiting for */
		list_remove(&s->want_first, &s->want_last, c);
		c->state = CHUNK_NONE;
		c = s->want_first;
	}
	return c;
}

static void ask_for_keys(struct rdma *s)
{
	struct rdma_chunk_entry entry[RDMA_BATCH_MAX];
	struct chunk *c;
	uint32_t n = 0;

	if (!s->want_first || s->registers_out >= RDMA_REQUESTS || !rdma_may_say(s, &s->lane[0], RDMA_REGISTER))
		return;
	while (n < RDMA_BATCH_MAX && (c = grantable(s))) {
		list_remove(&s->want_first, &s->want_last, c);
		c->state = CHUNK_ASKED;
		s->pinned_remote += size_of(s, c);
		entry[n++] = entry_of(s, c);
	}
	if (n && rdma_say(s, &s->lane[0], RDMA_REGISTER, n, entry, n * sizeof(entry[0])))
		s->register_count[s->registers_out++] = n;
}

static void tell_unpinned(struct rdma *s)
{
	struct rdma_chunk_entry entry[RDMA_BATCH_MAX];
	uint32_t n = 0;

	if (!s->unpin_first || s->unregisters_out >= RDMA_REQUESTS || !rdma_may_say(s, &s->lane[0], RDMA_UNREGISTER))
		return;
	while (n < RDMA_BATCH_MAX && s->unpin_first) {
		struct chunk *c = s->unpin_first;

		list_remove(&s->unpin_first, &s->unpin_last, c);
		c->state = CHUNK_TOLD;
		entry[n++] = entry_of(s, c);
	}
	if (rdma_say(s, &s->lane[0], RDMA_UNREGISTER, n, entry, n * sizeof(entry[0])))
		s->unregister_count[s->unregisters_out++] = n;
}

/* Nothing will come free by itself: all keys are held by writes that cannot be posted, although the device has room. */
static bool is_locked(const struct rdma *s)
{
	if (s->unpinning || s->registers_out || s->starved || s->deaf)
		return false;
	for (const struct chunk *c = s->lru_first; c; c = c->next)
		if (c->on_wire || !c->queued)
			return false;
	return s->lru_first;
}

/* Keys are wanted, and writes hold them all.  Those that are only gathered go at once. */
static void relieve(struct rdma *s)
{
	s->pressed = false;
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		s->lane[i].stuck = s->lane[i].nr_queued;
	rdma_pump_all(s);
	if (is_locked(s))
		unpin(s, s->lru_first);
}

void rdma_keys_control(struct rdma *s)
{
	ask_for_keys(s);
	if (s->pressed)
		relieve(s);
	tell_unpinned(s);
}

/* -- answers -- */

/* The chunk that an entry names; NULL: of an earlier opening of the window (@old), or nonsense, which is told to the peer. */
static struct chunk *named(struct rdma *s, const struct rdma_chunk_entry *e, enum chunk_state state, bool *old)
{
	uint32_t window = from_be32(e->window), generation = from_be32(e->generation);
	uint64_t chunk = from_be64(e->chunk);
	struct remote_window *w = window < TP_WINDOWS_MAX ? &s->remote[window] : NULL;

	*old = w && w->open && (int32_t)(generation - w->generation) < 0;
	if (*old)
		return NULL;
	if (!w || !w->open || generation != w->generation || chunk >= w->nr_chunks || w->chunk[chunk].state != state) {
		rdma_breach(s, "an answer for chunk %llu of window %u that was not asked for",
			    (unsigned long long)chunk, window);
		return NULL;
	}
	return &w->chunk[chunk];
}

/* The memory that the chunk mirrors, as far as it reaches. */
static int register_source(struct rdma *s, struct chunk *c, struct ft_error *err)
{
	const struct remote_window *w = &s->remote[c->window];
	uint64_t offset = chunk_offset(index_of(s, c), s->limits.chunk_shift), len = size_of(s, c);

	if (!w->source || offset >= w->source_len)
		return 0;
	if (len > w->source_len - offset)
		len = w->source_len - offset;
	return rdma_reg(s, w->source + offset, len, 0, "mirrored memory", &c->mr, err);
}

/* A chunk that the peer, or this side, could not register: with one less pinned it may work, if there is one. */
static void failed(struct rdma *s, struct chunk *c, const struct ft_error *why)
{
	uint64_t size = size_of(s, c);

	if (s->pinned_remote <= size) { /* it was the only one */
		rdma_break(s, why->code, "%s", why->msg);
		return;
	}
	s->key_budget = s->pinned_remote - size; /* what was possible */
	make_room(s, size, false);
}

static void refused(struct rdma *s, struct chunk *c, const struct rdma_key_entry *e)
{
	int error = (int)from_be32(e->error);
	struct ft_error why;

	if (from_be32(e->status) == RDMA_KEY_BUDGET)
		err_set(&why, -ENOMEM, "the peer's pin budget has no room for one chunk of %llu octets",
			(unsigned long long)size_of(s, c));
	else
		err_set(&why, -ENOMEM, "the peer cannot register memory: %s (its RLIMIT_MEMLOCK or device limit)",
			error > 0 && error < 4096 ? strerror(error) : "no reason given");
	failed(s, c, &why);
	s->pinned_remote -= size_of(s, c);
	c->state = CHUNK_NONE;
	if (c->queued)
		want_add(s, c);
}

static void granted(struct rdma *s, struct chunk *c, uint32_t rkey)
{
	struct ft_error why;

	c->rkey = rkey;
	c->state = CHUNK_READY;
	list_add(&s->lru_first, &s->lru_last, c);
	if (register_source(s, c, &why) == 0)
		return;
	failed(s, c, &why);
	unpin(s, c); /* comes back when the peer has let go, if it is still wanted */
}

/* Answers come in the order of the questions, and leave nothing out: what is left out would wait for ever. */
static bool answers(struct rdma *s, const char *what, unsigned *out, uint32_t *asked, uint32_t count)
{
	if (!*out || count != asked[0]) {
		rdma_breach(s, "an answer for %u %s, %u were asked for", count, what, *out ? asked[0] : 0);
		return false;
	}
	memmove(asked, asked + 1, --*out * sizeof(*asked));
	return true;
}

void rdma_keys_on_registered(struct rdma *s, const struct rdma_key_entry *e, uint32_t count)
{
	if (!answers(s, "keys", &s->registers_out, s->register_count, count))
		return;
	for (uint32_t i = 0; i < count; i++, e++) {
		bool old;
		struct chunk *c = named(s, &e->chunk, CHUNK_ASKED, &old);

		if (old)
			continue;
		if (!c)
			return;
		if (from_be32(e->status) == RDMA_KEY_OK)
			granted(s, c, from_be32(e->rkey));
		else
			refused(s, c, e);
	}
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		rdma_pump(s, &s->lane[i], s->lane[i].stuck);
}

void rdma_keys_on_unregistered(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count)
{
	if (!answers(s, "unpinned chunks", &s->unregisters_out, s->unregister_count, count))
		return;
	for (uint32_t i = 0; i < count; i++, e++) {
		bool old;
		struct chunk *c = named(s, e, CHUNK_TOLD, &old);

		if (old)
			continue;
		if (!c)
			return;
		s->pinned_remote -= size_of(s, c);
		s->unpinning -= size_of(s, c);
		c->state = CHUNK_NONE;
		if (c->queued)
			want_add(s, c);
	}
}

/* -- windows -- */

/* All chunks of a window that the peer has closed.  False: writes to it are under way. */
static bool forget(struct rdma *s, struct remote_window *w)
{
	uint32_t nr = w->touched ? w->nr_chunks : 0;

	for (uint32_t i = 0; i < nr; i++)
		if (w->chunk[i].queued || w->chunk[i].on_wire)
			return false;
	for (uint32_t i = 0; i < nr; i++) {
		struct chunk *c = &w->chunk[i];

		switch (c->state) {
		case CHUNK_NONE:
			continue;
		case CHUNK_WANTED:
			list_remove(&s->want_first, &s->want_last, c);
			continue;
		case CHUNK_ASKED:
			break;
		case CHUNK_READY:
			list_remove(&s->lru_first, &s->lru_last, c);
			break;
		case CHUNK_DRAINING:
			list_remove(&s->unpin_first, &s->unpin_last, c);
			s->unpinning -= size_of(s, c);
			break;
		case CHUNK_TOLD:
			s->unpinning -= size_of(s, c);
			break;
		}
		s->pinned_remote -= size_of(s, c);
		rdma_dereg(s, c->mr);
	}
	free(w->chunk);
	w->chunk = NULL;
	w->nr_chunks = 0;
	w->open = w->touched = false;
	return true;
}

static void open_window(struct rdma *s, uint32_t id, const struct rdma_window_entry *e)
{
	struct remote_window *w = &s->remote[id];
	uint64_t len = from_be64(e->len), n = chunk_count(len, s->limits.chunk_shift);

	if (s->limits.capabilities & RDMA_CAP_CHUNKS && !(s->limits.capabilities & RDMA_CAP_ODP)) {
		if (n > RDMA_CHUNKS_MAX)
			return rdma_breach(s, "window %u has %llu chunks, %u are the most", id, (unsigned long long)n,
					   RDMA_CHUNKS_MAX);
		w->chunk = FT_FAULT("rdma/chunks") ? NULL : calloc(n, sizeof(*w->chunk));
		if (!w->chunk)
			return rdma_break(s, -ENOMEM, "no memory for the %llu chunks of window %u",
					  (unsigned long long)n, id);
		w->nr_chunks = (uint32_t)n;
	}
	w->rkey = from_be32(e->rkey);
	w->address = from_be64(e->address);
	w->len = len;
	w->generation = from_be32(e->generation);
	w->open = true;
}

void rdma_keys_on_window(struct rdma *s, const struct rdma_window_entry *e, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++, e++) {
		uint32_t id = from_be32(e->window);
		uint64_t address = from_be64(e->address), len = from_be64(e->len);

		if (id >= TP_WINDOWS_MAX || !len || address > UINT64_MAX - len)
			return rdma_breach(s, "window %u of %llu octets", id, (unsigned long long)len);
		if (s->remote[id].open && !forget(s, &s->remote[id]))
			return rdma_breach(s, "window %u was opened anew while it is written", id);
		open_window(s, id, e);
	}
}

void rdma_keys_fini(struct rdma *s)
{
	for (uint32_t id = 0; id < TP_WINDOWS_MAX; id++) {
		struct remote_window *w = &s->remote[id];

		for (uint32_t i = 0; w->touched && i < w->nr_chunks; i++)
			rdma_dereg(s, w->chunk[i].mr);
		free(w->chunk);
	}
}

/* -- local memory -- */

bool rdma_local_key(const struct rdma *s, const void *at, uint64_t len, uint32_t *lkey)
{
	const uint8_t *p = at;

	for (unsigned i = 0; i < s->nr_local; i++) {
		const struct local_range *r = &s->local[i];

		if (p >= r->base && len <= r->len && p - r->base <= (ptrdiff_t)(r->len - len)) {
			*lkey = r->mr->lkey;
			return true;
		}
	}
	return false;
}

int rdma_op_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct ibv_mr *mr = NULL;
	int r = rdma_check_memlock(s, len, "memory that pages are sent from", err);

	if (!r)
		r = rdma_reg(s, base, len, 0, "memory that pages are sent from", &mr, err);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	if (s->nr_local < RDMA_LOCAL_MAX)
		s->local[s->nr_local++] = (struct local_range){ .base = base, .len = len, .mr = mr };
	else
		r = err_set(err, -ENOSPC, "more than %u ranges of memory to send from", RDMA_LOCAL_MAX);
	pthread_mutex_unlock(&s->lock);
	if (r)
		rdma_dereg(s, mr);
	return r;
}

int rdma_op_mirror(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct remote_window *w = &s->remote[window];
	uint64_t ours = s->limits.pin_budget_ours;
	int r;

	if (s->limits.capabilities & RDMA_CAP_ODP)
		return rdma_op_memory(c, base, len, err);
	if (!(s->limits.capabilities & RDMA_CAP_CHUNKS)) { /* one key there, one here */
		r = rdma_check_budget(s, len, "mirrored memory", err);
		return r ? r : rdma_op_memory(c, base, len, err);
	}
	r = rdma_check_memlock(s, ours && ours < len ? ours : len, "mirrored memory", err);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	if (w->source) {
		r = err_set(err, -EBUSY, "window %u has a mirror already", window);
	} else {
		w->source = base;
		w->source_len = len;
		if (ours && (!s->key_budget || ours < s->key_budget))
			s->key_budget = ours;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

void rdma_op_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len)
{
	struct rdma *s = rdma_of(c);
	const struct remote_window *w = &s->remote[window];

	pthread_mutex_lock(&s->lock);
	if (w->chunk && offset < w->len && len <= w->len - offset) {
		uint64_t last = chunk_of(offset + len - 1, s->limits.chunk_shift);

		for (uint64_t i = chunk_of(offset, s->limits.chunk_shift); i <= last; i++)
			rdma_key_want(s, window, &w->chunk[i], true);
	}
	pthread_mutex_unlock(&s->lock);
}
