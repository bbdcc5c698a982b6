/* SPDX-License-Identifier: MIT */
/* rdma_window.c - the receiving side's windows: the memory that the peer's device writes, registered whole when it is opened, or chunk by chunk
 * when the peer asks.  tp_window_* run on any thread, answers to the peer are made by the poller.
 *
 * Must hold
 *   - own[] and the registrations in it are guarded by own_lock, because registering memory takes long (page faults: 4 to 17 us a page on
 *     nested machines) and the connection must not stand still meanwhile; own_lock is taken before lock, never under it;
 *   - the peer gets keys for what it asked for and nothing else, and no more octets than the budget. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultpoint.h"
#include "rdma_private.h"

#define WINDOW_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static bool by_chunks(const struct rdma *s)
{
	return (s->limits.capabilities & RDMA_CAP_CHUNKS) && !(s->limits.capabilities & RDMA_CAP_ODP);
}

static int whole_access(const struct rdma *s)
{
	return WINDOW_ACCESS | (s->limits.capabilities & RDMA_CAP_ODP ? IBV_ACCESS_ON_DEMAND : 0);
}

/* -- opening -- */

static void give_back(struct rdma *s, struct own_window *w)
{
	if (w->mr && !(whole_access(s) & IBV_ACCESS_ON_DEMAND))
		s->own_pinned -= w->mr->length;
	rdma_dereg_access(s, w->mr, whole_access(s));
	for (uint32_t i = 0; i < w->nr_chunks; i++) {
		if (w->chunk[i])
			s->own_pinned -= w->chunk[i]->length;
		rdma_dereg(s, w->chunk[i]);
	}
	free(w->chunk);
	*w = (struct own_window){ .generation = w->generation };
}

/* Memory is pinned as a whole if either side wants it so. */
int rdma_check_budget(struct rdma *s, uint64_t bytes, const char *what, struct ft_error *err)
{
	if (!s->limits.pin_budget_ours || bytes <= s->limits.pin_budget_ours)
		return 0;
	return err_set(err, -ENOMEM,
		       "%s is registered as a whole, %llu octets, and rdma-pin-budget is %llu: choose "
		       "rdma-registration chunks "
		       "on both sides, or no budget",
		       what, (unsigned long long)bytes, (unsigned long long)s->limits.pin_budget_ours);
}

static int open_whole(struct rdma *s, struct own_window *w, struct ft_error *err)
{
	const struct rdma_use use = { "receive memory registered as a whole",
				      "rdma-registration chunks and an rdma-pin-budget" };
	int access = whole_access(s), r = 0;

	if (w->len > s->device.orig_attr.max_mr_size)
		return err_set(err, -E2BIG,
			       "the device %s registers at most %llu octets at once, the window has %llu: choose "
			       "rdma-registration chunks",
			       s->info.device, (unsigned long long)s->device.orig_attr.max_mr_size,
			       (unsigned long long)w->len);
	if (!(access & IBV_ACCESS_ON_DEMAND)) {
		r = rdma_check_budget(s, s->own_pinned + w->len, "receive memory", err);
		if (!r)
			r = rdma_check_memlock(s, w->len, use, err);
	}
	if (!r)
		r = rdma_reg(s, w->base, w->len, access, use, &w->mr, err);
	if (!r && !(access & IBV_ACCESS_ON_DEMAND))
		s->own_pinned += w->len;
	return r;
}

static const struct rdma_use by_chunk = { "receive memory, registered by chunks,", "a smaller rdma-pin-budget" };

/* Nothing is registered yet, but whether it will be possible is known. */
static int open_chunks(struct rdma *s, struct own_window *w, struct ft_error *err)
{
	uint64_t n = chunk_count(w->len, s->limits.chunk_shift), budget = s->limits.pin_budget_ours;
	uint64_t most = budget && budget < w->len ? budget : w->len;
	uint64_t at_once = chunk_count(most, s->limits.chunk_shift);
	int r;

	if (n > RDMA_CHUNKS_MAX)
		return err_set(err, -E2BIG,
			       "%llu octets are %llu chunks, at most %u can be had: choose a larger rdma-chunk",
			       (unsigned long long)w->len, (unsigned long long)n, RDMA_CHUNKS_MAX);
	if (s->device.orig_attr.max_mr > 0 && at_once > (uint64_t)s->device.orig_attr.max_mr)
		return err_set(
			err, -E2BIG,
			"%llu chunks may be registered at once, the device %s has %d memory regions: choose a larger "
			"rdma-chunk or a smaller rdma-pin-budget",
			(unsigned long long)at_once, s->info.device, s->device.orig_attr.max_mr);
	r = rdma_check_memlock(s, most, by_chunk, err);
	if (r)
		return r;
	w->chunk = FT_FAULT("rdma/own-chunks") ? NULL : calloc(n, sizeof(*w->chunk));
	if (!w->chunk)
		return err_set(err, -ENOMEM, "no memory for %llu chunks", (unsigned long long)n);
	w->nr_chunks = (uint32_t)n;
	return 0;
}

static void announce(struct rdma *s, uint32_t id, struct own_window *w)
{
	pthread_mutex_lock(&s->lock);
	s->announcement[id] = (struct rdma_window_entry){
		.window = to_be32(id),
		.rkey = to_be32(w->mr ? w->mr->rkey : 0),
		.address = to_be64((uintptr_t)w->base),
		.len = to_be64(w->len),
		.generation = to_be32(w->generation),
	};
	s->announce |= 1u << id;
	rdma_control(s);
	pthread_mutex_unlock(&s->lock);
}

int rdma_op_window(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err)
{
	struct rdma *s = rdma_of(c);
	struct own_window *w = &s->own[id];
	int r = 0;

	if (!base)
		return 0; /* see tp_window_close() */
	pthread_mutex_lock(&s->own_lock);
	if (w->base != base || w->len != len) {
		give_back(s, w);
		w->base = base;
		w->len = len;
		w->generation++;
		r = by_chunks(s) ? open_chunks(s, w, err) : open_whole(s, w, err);
		if (r)
			give_back(s, w);
		else
			announce(s, id, w);
	}
	pthread_mutex_unlock(&s->own_lock);
	return r;
}

void rdma_windows_control(struct rdma *s)
{
	struct rdma_window_entry entry[TP_WINDOWS_MAX];
	uint32_t n = 0;

	if (!s->announce || !rdma_may_say(s, &s->lane[0], RDMA_WINDOW))
		return;
	for (uint32_t id = 0; id < TP_WINDOWS_MAX; id++)
		if (s->announce & (1u << id))
			entry[n++] = s->announcement[id];
	if (rdma_say(s, &s->lane[0], RDMA_WINDOW, n, entry, n * sizeof(entry[0])))
		s->announce = 0;
}

/* -- what the peer asks -- */

/* The window that an entry is about, if it is still the one; own_lock held. */
static struct own_window *asked(struct rdma *s, const struct rdma_chunk_entry *e, uint64_t *chunk, bool *old)
{
	uint32_t id = from_be32(e->window), generation = from_be32(e->generation);
	struct own_window *w = id < TP_WINDOWS_MAX ? &s->own[id] : NULL;

	*chunk = from_be64(e->chunk);
	*old = w && generation != w->generation && (int32_t)(generation - w->generation) < 0;
	if (*old)
		return NULL;
	return w && w->chunk && generation == w->generation && *chunk < w->nr_chunks ? w : NULL;
}

static int register_chunk(struct rdma *s, struct own_window *w, uint64_t chunk)
{
	uint64_t len = chunk_bytes(chunk, w->len, s->limits.chunk_shift);
	struct ft_error err;
	int r;

	if (s->limits.pin_budget_ours && s->own_pinned + len > s->limits.pin_budget_ours)
		return -EDQUOT;
	r = rdma_reg(s, (uint8_t *)w->base + chunk_offset(chunk, s->limits.chunk_shift), len, WINDOW_ACCESS, by_chunk,
		     &w->chunk[chunk], &err);
	if (!r)
		s->own_pinned += len;
	return r;
}

/* False: nonsense.  own_lock held. */
static bool answer_register(struct rdma *s, const struct rdma_chunk_entry *e, struct rdma_key_entry *out)
{
	uint64_t chunk;
	bool old;
	struct own_window *w = asked(s, e, &chunk, &old);
	int r = -ESTALE;

	if (!old) {
		if (!w || w->chunk[chunk])
			return false;
		r = register_chunk(s, w, chunk);
	}
	*out = (struct rdma_key_entry){
		.chunk = *e,
		.rkey = to_be32(r == 0 ? w->chunk[chunk]->rkey : 0),
		.status = to_be32(r == 0         ? RDMA_KEY_OK
				  : r == -EDQUOT ? RDMA_KEY_BUDGET
						 : RDMA_KEY_FAILED),
		.error = to_be32(r == 0 ? 0 : (uint32_t)-r),
	};
	return true;
}

static struct reply *new_reply(struct rdma *s, enum rdma_kind kind, uint32_t count, uint32_t entry_bytes)
{
	struct reply *rp;

	if (s->nr_replies == RDMA_REPLIES) {
		rdma_breach(s, "more than %u requests before an answer", RDMA_REPLIES);
		return NULL;
	}
	rp = &s->reply[s->nr_replies];
	rp->kind = kind;
	rp->count = count;
	rp->entry_bytes = entry_bytes;
	return rp;
}

void rdma_window_on_register(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count)
{
	struct reply *rp = new_reply(s, RDMA_REGISTERED, count, sizeof(struct rdma_key_entry));
	bool sane = true;
	uint32_t i = 0;

	if (!rp)
		return;
	s->answering = true;
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&s->own_lock);
	for (; i < count && sane; i++)
		sane = answer_register(s, &e[i], &rp->entry[i]);
	pthread_mutex_unlock(&s->own_lock);
	pthread_mutex_lock(&s->lock);
	s->answering = false;
	if (sane)
		s->nr_replies++;
	else
		rdma_breach(s, "a key was asked for chunk %llu of window %u, which is not to be had",
			    (unsigned long long)from_be64(e[i - 1].chunk), from_be32(e[i - 1].window));
}

/* own_lock held */
static bool let_go(struct rdma *s, const struct rdma_chunk_entry *e)
{
	uint64_t chunk;
	bool old;
	struct own_window *w = asked(s, e, &chunk, &old);

	if (old)
		return true; /* it went with the window */
	if (!w || !w->chunk[chunk])
		return false;
	s->own_pinned -= w->chunk[chunk]->length;
	rdma_dereg(s, w->chunk[chunk]);
	w->chunk[chunk] = NULL;
	return true;
}

void rdma_window_on_unregister(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count)
{
	struct reply *rp = new_reply(s, RDMA_UNREGISTERED, count, sizeof(struct rdma_chunk_entry));
	bool sane = true;
	uint32_t i = 0;

	if (!rp)
		return;
	memcpy(rp->entry, e, count * sizeof(*e));
	s->answering = true;
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&s->own_lock);
	for (; i < count && sane; i++)
		sane = let_go(s, &e[i]);
	pthread_mutex_unlock(&s->own_lock);
	pthread_mutex_lock(&s->lock);
	s->answering = false;
	if (sane)
		s->nr_replies++;
	else
		rdma_breach(s, "chunk %llu of window %u was given back, but has no key",
			    (unsigned long long)from_be64(e[i - 1].chunk), from_be32(e[i - 1].window));
}

void rdma_windows_fini(struct rdma *s)
{
	for (uint32_t id = 0; id < TP_WINDOWS_MAX; id++)
		give_back(s, &s->own[id]);
}
