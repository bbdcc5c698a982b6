/* SPDX-License-Identifier: MIT */
/* ship.c - ft-ship, one of the primary's two threads of a connection, sends: slabs as writes and the records that tell them, then side stream, device
 * state and commit.  answer.c is the other one.  It does not touch the guest.
 *
 * Must hold
 *   - nothing of epoch n+1 is written before the secondary has applied n - credits + 1 (mirror: n): the receive image is still in use;
 *   - nothing is written to the ring (slab placement) where the secondary has not made room;
 *   - within an epoch a page is written again only in a later round, and only when the secondary has done with what told it before: a
 *     transport may put writes in place at any time (transport.h, tp_settle());
 *   - a page that the secondary has as it is, is told nowhere; what is looked up in the table of these (same.h) is looked up in the order in which it is sent,
 *     and sent, or the connection is lost;
 *   - commit(n) is sent after everything of n was sent, with the last number of each lane. */
#include "primary.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "clock.h"
#include "digest.h"
#include "err.h"
#include "thread.h"

#define WRITE_PAGES_MAX (TP_WRITE_MAX / FT_PAGE_SIZE)
/* Pages of one notify-write: 1 MiB stays in the processor's cache from digest to send, and on the other side from receive to digest.
 * bench_pause, ship/TCP: 0.38 to 0.47 with 2048 pages, 0.48 to 0.58 with 256, no better with 128. */
#define PIECE_PAGES 256u
/* Chunks of a window that are registered by themselves are multiples of that many pages. */
#define CHUNK_PAGES ((1u << 20) / FT_PAGE_SIZE)

/* What ft-ship has sent of the epoch under way. */
struct shipment {
	uint64_t epoch;                                /* 0: none */
	uint64_t round;                                /* of the last slab, 0: none yet */
	uint64_t nr_data, nr_zero, side_bytes, digest; /* told */
	uint64_t first_ns, bytes;
};

/* Slabs whose writes the transport may still read: the next records need not wait for that. */
#define FLIGHTS_MAX 4u

struct flights {
	unsigned nr;
	struct flight {
		struct work *w;
		uint32_t lane;
		uint64_t ticket; /* of its last write; 0: none */
	} flight[FLIGHTS_MAX];   /* oldest first */
};

static uint64_t send_deadline(const struct primary *p)
{
	struct ft_config cfg;

	session_config(p->s, &cfg);
	return deadline_in_ms(cfg.commit_timeout_ms);
}

static int wait_credit(struct primary *p, uint64_t epoch)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->awaiting++;
	while (!r && epoch > p->applied + p->epoch_credits)
		r = p->lost ? -ENOTCONN : cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	p->awaiting--;
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int begin_epoch(struct primary *p, struct shipment *sh, uint64_t epoch)
{
	if (sh->epoch == epoch)
		return 0;
	*sh = (struct shipment){ .epoch = epoch };
	if (wait_credit(p, epoch))
		return -ENOTCONN;
	sh->first_ns = now_ns();
	return 0;
}

/* Once, with the heartbeats of ft-answer beside it: to register much memory takes a while. */
static int announce_staging(struct primary *p, struct ft_error *err)
{
	struct tp_info info;
	int r = tp_memory(p->link->conn, p->staging, p->staging_bytes, err);

	tp_info(p->link->conn, &info);
	p->by_chunks = strcmp(info.registration, "chunks") == 0;
	return r ? err_prefix(err, "staging memory") : 0;
}

static void prepare_chunks(struct primary *p, uint64_t first, uint64_t end)
{
	uint64_t page = first * CHUNK_PAGES, behind = end * CHUNK_PAGES;

	if (behind > p->regions->nr_pages)
		behind = p->regions->nr_pages;
	if (first < end)
		tp_prepare(p->link->conn, FTW_WINDOW_IMAGE, page * FT_PAGE_SIZE, (behind - page) * FT_PAGE_SIZE);
}

/* The ring from where ft-ship is, and on from its begin: the slab in hand and the next one. */
static void prepare_ring(struct primary *p)
{
	uint64_t slots, from, nr, left;

	pthread_mutex_lock(&p->s->lock);
	slots = p->room.slots;
	pthread_mutex_unlock(&p->s->lock);
	if (!slots)
		return;
	from = p->ring_position % slots;
	nr = 2 * SLAB_PAGES < slots ? 2 * SLAB_PAGES : slots;
	left = nr < slots - from ? nr : slots - from;
	tp_prepare(p->link->conn, FTW_WINDOW_RING, from * FT_PAGE_SIZE, left * FT_PAGE_SIZE);
	if (left < nr)
		tp_prepare(p->link->conn, FTW_WINDOW_RING, 0, (nr - left) * FT_PAGE_SIZE);
}

/* Where the slab's pages will go, chunk by chunk; zero pages go nowhere, and must not make the secondary's memory real. */
static void prepare_slab(struct primary *p, const struct slab *slab)
{
	uint64_t first = 0, end = 0; /* chunks */

	if (!p->by_chunks)
		return;
	if (p->uses_ring) {
		prepare_ring(p);
		return;
	}
	for (uint32_t i = 0; i < slab->nr; i++) {
		uint64_t chunk = slab->page[i] / CHUNK_PAGES;

		if (chunk < end || page_is_zero(slab->memory + (size_t)i * FT_PAGE_SIZE))
			continue;
		if (chunk != end || !end) {
			prepare_chunks(p, first, end);
			first = chunk;
		}
		end = chunk + 1;
	}
	prepare_chunks(p, first, end);
}

/* The lane of a slab.  During the full sync, and where pages are sent ahead, a page may be sent again while an older copy is still on its
 * way: one lane keeps them in order.  Else a page is sent once an epoch, and epochs are kept apart by the credit. */
static uint32_t lane_of(const struct primary *p, const struct slab *slab)
{
	uint32_t data_lanes = p->link->lanes - 1;

	return slab->epoch == 1 || p->one_lane ? 1 : 1 + (uint32_t)((slab->page[0] / SLAB_PAGES) % data_lanes);
}

static int write_runs(struct primary *p, const struct slab *slab, uint32_t lane, uint64_t *ticket, struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	uint64_t deadline = send_deadline(p);

	for (uint32_t i = 0; i < plan->nr_data_runs; i++) {
		const struct page_run *run = &plan->data[i];

		for (uint64_t done = 0; done < run->nr; done += WRITE_PAGES_MAX) {
			uint64_t nr = run->nr - done < WRITE_PAGES_MAX ? run->nr - done : WRITE_PAGES_MAX;
			struct iovec iov = {
				.iov_base = slab->memory + (plan->data_slot[i] + done) * FT_PAGE_SIZE,
				.iov_len = nr * FT_PAGE_SIZE,
			};
			int r = link_write(p->link, lane, FTW_WINDOW_IMAGE, (run->first + done) * FT_PAGE_SIZE, &iov, 1,
					   ticket, deadline, err);

			if (r)
				return r;
		}
	}
	return 0;
}

/* -- slab placement: one position behind the other -- */

/* Until the pages of a piece fit.  A secondary that has acknowledged more than it has applied is at work on that, and check_late() watches it. */
static int wait_room(struct primary *p, uint32_t nr, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t deadline = send_deadline(p);
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->awaiting++;
	while (!p->lost && p->ring_position + nr > p->room.freed + p->room.slots && r == 0) {
		r = cond_wait_until(&s->cond, &s->lock, deadline);
		if (r == -ETIMEDOUT && p->applied < p->acked) {
			deadline = deadline_in_ms(s->cfg.commit_timeout_ms);
			r = 0;
		}
	}
	p->awaiting--;
	if (p->lost)
		r = -ENOTCONN;
	pthread_mutex_unlock(&s->lock);
	if (r == -ETIMEDOUT)
		err_set(err, r, "the secondary has made no room in its ring for %u pages (commit-timeout)", nr);
	return r;
}

/* A write under way: neighbouring slots. */
struct gathered {
	struct iovec iov[TP_IOV_MAX];
	unsigned nr;
	uint64_t nr_pages;
};

static int write_gathered(struct primary *p, struct gathered *g, uint32_t lane, uint64_t *ticket, struct ft_error *err)
{
	uint64_t offset = p->ring_position % p->room.slots * FT_PAGE_SIZE;
	int r = 0;

	if (g->nr)
		r = link_write(p->link, lane, FTW_WINDOW_RING, offset, g->iov, g->nr, ticket, send_deadline(p), err);
	p->ring_position += g->nr_pages;
	g->nr = 0;
	g->nr_pages = 0;
	return r;
}

/* @nr pages at @memory; a write does not go over the end of the ring. */
static int gather(struct primary *p, struct gathered *g, uint8_t *memory, uint64_t nr, uint32_t lane, uint64_t *ticket,
		  struct ft_error *err)
{
	struct iovec *last = g->nr ? &g->iov[g->nr - 1] : NULL;
	uint64_t left = p->room.slots - (p->ring_position + g->nr_pages) % p->room.slots, now = nr < left ? nr : left;
	int r = 0;

	if (last && (uint8_t *)last->iov_base + last->iov_len == memory)
		last->iov_len += now * FT_PAGE_SIZE;
	else
		g->iov[g->nr++] = (struct iovec){ .iov_base = memory, .iov_len = now * FT_PAGE_SIZE };
	g->nr_pages += now;
	if (now == left || g->nr == TP_IOV_MAX)
		r = write_gathered(p, g, lane, ticket, err);
	return r || now == nr ? r : gather(p, g, memory + now * FT_PAGE_SIZE, nr - now, lane, ticket, err);
}

static int write_ring(struct primary *p, const struct slab *slab, uint32_t lane, uint64_t *ticket, struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	struct gathered g = { .nr = 0 };
	int r = wait_room(p, plan->nr_data, err);

	for (uint32_t i = 0; !r && i < plan->nr_data_runs; i++)
		r = gather(p, &g, slab->memory + (size_t)plan->data_slot[i] * FT_PAGE_SIZE, plan->data[i].nr, lane,
			   ticket, err);
	return r ? r : write_gathered(p, &g, lane, ticket, err);
}

/* In front of the record that tells these pages; with it, or a page that is not what was sent can be named. */
static int tell_checks(struct primary *p, uint32_t lane, uint64_t epoch, const uint64_t *digest, uint32_t nr,
		       struct ft_error *err)
{
	uint32_t seq;
	void *buf;

	if (!p->page_checks || !nr)
		return 0;
	buf = link_begin(p->link, lane, &seq);
	return link_end(p->link, lane, create_page_checks(buf, epoch, seq, digest, nr), send_deadline(p), err);
}

static int tell_ring(struct primary *p, uint32_t lane, uint64_t epoch, uint64_t position, struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	int r = tell_checks(p, lane, epoch, plan->page_digest, plan->nr_data, err);
	uint32_t seq;
	void *buf;

	if (r)
		return r;
	buf = link_begin(p->link, lane, &seq);
	return link_end(p->link, lane,
			create_slab_runs(buf, epoch, seq, position, plan->data, plan->nr_data_runs, plan->data_digest),
			send_deadline(p), err);
}

static int ship_ring(struct primary *p, const struct slab *slab, uint32_t lane, uint64_t *ticket, struct ft_error *err)
{
	uint64_t position = p->ring_position;
	int r = 0;

	if (!p->plan->nr_data)
		return 0;
	r = write_ring(p, slab, lane, ticket, err);
	atomic_store(&p->ring_told, p->ring_position);
	return r ? r : tell_ring(p, lane, slab->epoch, position, err);
}

static int tell_runs(struct primary *p, uint32_t type, uint32_t lane, uint64_t epoch, const struct page_run *run,
		     uint32_t count, uint64_t digest, struct ft_error *err)
{
	uint32_t seq;
	void *buf;

	if (!count)
		return 0;
	buf = link_begin(p->link, lane, &seq);
	return link_end(p->link, lane, create_runs(buf, type, epoch, seq, run, count, digest), send_deadline(p), err);
}

static int ship_mirror(struct primary *p, const struct slab *slab, uint32_t lane, uint64_t *ticket,
		       struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	int r = write_runs(p, slab, lane, ticket, err);

	if (!r)
		r = tell_checks(p, lane, slab->epoch, plan->page_digest, plan->nr_data, err);
	return r ? r
		 : tell_runs(p, FTW_NOTIFY_WRITE, lane, slab->epoch, plan->data, plan->nr_data_runs, plan->data_digest,
			     err);
}

static void count_plan(struct primary *p, struct shipment *sh)
{
	const struct slab_plan *plan = p->plan;

	sh->nr_data += plan->nr_data + plan->nr_delta;
	sh->nr_zero += plan->nr_zero;
	sh->digest += plan->data_digest + plan->zero_digest + plan->delta_digest;
	sh->bytes += (uint64_t)plan->nr_data * FT_PAGE_SIZE + plan->packed_bytes;
	stats_count(&p->s->stats, FT_COUNTER_PAGES, plan->nr_data);
	stats_count(&p->s->stats, FT_COUNTER_ZERO_PAGES, plan->nr_zero);
	stats_count(&p->s->stats, FT_COUNTER_SAME_PAGES, plan->nr_same);
	stats_count(&p->s->stats, FT_COUNTER_DELTA_PAGES, plan->nr_delta);
	stats_count(&p->s->stats, FT_COUNTER_DELTA_BYTES, plan->packed_bytes);
}

/* As many records as it takes: one has room for FTW_DELTA_BYTES_MAX octets of deltas. */
static int tell_deltas(struct primary *p, uint32_t lane, uint64_t epoch, struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	uint32_t from = 0;
	int r = 0;

	for (uint32_t i = 0; !r && i < plan->nr_delta;) {
		uint32_t seq, len = 0, first = i;
		uint64_t digest = 0;
		void *buf;

		for (; i < plan->nr_delta && len + plan->packed_len[i] <= FTW_DELTA_BYTES_MAX; i++) {
			len += plan->packed_len[i];
			digest += plan->packed_digest[i];
		}
		r = tell_checks(p, lane, epoch, plan->packed_digest + first, i - first, err);
		if (r)
			return r;
		buf = link_begin(p->link, lane, &seq);
		r = link_end(p->link, lane, create_deltas(buf, epoch, seq, plan->packed + from, len, i - first, digest),
			     send_deadline(p), err);
		from += len;
	}
	return r;
}

/* Slots [@first, @first + @nr): digested, sent and told while they are in the processor's cache; so are they on the other side. */
static int ship_piece(struct primary *p, struct shipment *sh, const struct slab *slab, uint32_t first, uint32_t nr,
		      uint32_t lane, uint64_t *ticket, struct ft_error *err)
{
	const struct slab_plan *plan = p->plan;
	int r;

	slab_plan(slab, first, nr, skip_table(p), skip_past(p, slab->epoch), p->plan);
	r = p->uses_ring ? ship_ring(p, slab, lane, ticket, err) : ship_mirror(p, slab, lane, ticket, err);
	if (!r)
		r = tell_runs(p, FTW_ZERO_PAGES, lane, slab->epoch, plan->zero, plan->nr_zero_runs, plan->zero_digest,
			      err);
	if (!r)
		r = tell_deltas(p, lane, slab->epoch, err);
	if (!r)
		count_plan(p, sh);
	return r;
}

/* What was sent ahead is not what the end of an epoch waits for. */
static void enter_round(struct shipment *sh, uint64_t round)
{
	if (sh->round != round && sh->epoch > 1)
		sh->first_ns = now_ns();
	sh->round = round;
}

/* A round of the full sync may hold pages of the one before: those are not touched while the secondary may still read them.  In the ring they
 * have another position. */
static int begin_round(struct primary *p, struct shipment *sh, const struct slab *slab, uint32_t lane,
		       struct ft_error *err)
{
	int r = !p->uses_ring && sh->round && sh->round != slab->round
			? tp_settle(p->link->conn, lane, send_deadline(p), err)
			: 0;

	enter_round(sh, slab->round);
	return r;
}

static int ship_slab(struct primary *p, struct shipment *sh, const struct slab *slab, uint64_t *ticket,
		     struct ft_error *err)
{
	uint32_t lane = lane_of(p, slab);
	int r = begin_epoch(p, sh, slab->epoch);

	if (!r)
		r = begin_round(p, sh, slab, lane, err);
	for (uint32_t at = 0; !r && at < slab->nr; at += PIECE_PAGES)
		r = ship_piece(p, sh, slab, at, slab->nr - at < PIECE_PAGES ? slab->nr - at : PIECE_PAGES, lane, ticket,
			       err);
	return r;
}

/* -- side stream -- */

/* The VMM's next octets, read into the message that tells them.  Returns how many, 0: there are no more, or negative. */
static int64_t ship_side_piece(struct primary *p, struct shipment *sh, uint64_t epoch, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint32_t seq;
	void *buf = link_begin(p->link, 1, &seq);
	uint8_t *octets = side_data_octets(buf);
	int64_t n = s->ops.side_read(s->user, epoch, octets, FTW_SIDE_PIECE_MAX, err);
	size_t len;
	int r;

	if (n > FTW_SIDE_PIECE_MAX)
		n = err_set(err, -EOVERFLOW, "%lld octets for a room of %u", (long long)n, FTW_SIDE_PIECE_MAX);
	if (n <= 0) {
		link_drop(p->link, 1);
		if (n == 0)
			return 0;
		err_prefix(err, "side stream");
		primary_lose(p, FTW_CODE_UNUSABLE, err);
		return -ENOTCONN;
	}
	sh->digest += digest_side(octets, (size_t)n, sh->side_bytes);
	len = create_side_data(buf, sh->epoch, seq, sh->side_bytes, (uint32_t)n);
	r = link_end(p->link, 1, len, send_deadline(p), err);
	if (r)
		return r;
	sh->side_bytes += (uint64_t)n;
	sh->bytes += (uint64_t)n;
	stats_count(&s->stats, FT_COUNTER_SIDE_BYTES, (uint64_t)n);
	return n;
}

/* The machine there may have to take the octets of the epoch before for good first. */
static int wait_acked(struct primary *p, uint64_t epoch)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->awaiting++;
	while (!r && p->acked < epoch)
		r = p->lost ? -ENOTCONN : cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	p->awaiting--;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* @epoch: as side_read() has it.  All that there is of it, or until @most octets were sent. */
static int ship_side(struct primary *p, struct shipment *sh, uint64_t epoch, uint64_t most, struct ft_error *err)
{
	uint64_t begun = sh->side_bytes;
	int64_t n;

	if (!p->s->ops.side_read)
		return 0;
	if (wait_acked(p, sh->epoch - 1))
		return -ENOTCONN;
	do {
		uint64_t before = sh->side_bytes / FT_PAGE_SIZE;

		n = primary_lost(p) ? -ENOTCONN : ship_side_piece(p, sh, epoch, err);
		if (epoch == 0)
			atomic_fetch_add(&p->s->sync_done, sh->side_bytes / FT_PAGE_SIZE - before);
	} while (n > 0 && sh->side_bytes - begun < most);
	return n < 0 ? (int)n : 0;
}

/* A round's part of the full sync: octets of its epoch, the first. */
static int ship_sync_side(struct primary *p, struct shipment *sh, uint64_t most, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = begin_epoch(p, sh, 1);

	if (!r)
		r = ship_side(p, sh, 0, most, err);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	p->side_due = false;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* -- device state, commit -- */

static int ship_state(struct primary *p, const struct epoch_job *job, struct ft_error *err)
{
	uint64_t total = job->state.len, at = 0;

	while (at < total) {
		uint32_t len = (uint32_t)(total - at < FTW_STATE_PIECE_MAX ? total - at : FTW_STATE_PIECE_MAX), seq;
		void *buf = link_begin(p->link, 1, &seq);
		size_t n = create_device_state(buf, job->epoch, seq, total, at, job->state.buf + at, len);
		int r = link_end(p->link, 1, n, send_deadline(p), err);

		if (r)
			return r;
		at += len;
	}
	return 0;
}

static int send_commit(struct primary *p, const struct shipment *sh, const struct epoch_job *job, struct ft_error *err)
{
	struct commit c = {
		.nr_data_pages = sh->nr_data,
		.nr_zero_pages = sh->nr_zero,
		.state_bytes = job->state.len,
		.side_bytes = sh->side_bytes,
		.digest = sh->digest + digest_state(job->state.buf, job->state.len),
		.lanes = p->link->lanes - 1,
	};
	uint32_t seq;
	void *buf;

	for (uint32_t i = 0; i < c.lanes; i++)
		c.seq[i] = link_sent(p->link, i + 1);
	buf = link_begin(p->link, 0, &seq);
	return link_end(p->link, 0, create_commit(buf, job->epoch, seq, &c), send_deadline(p), err);
}

/* What there is to apply, in pages that cost APPLY_NS_PER_PAGE (answer.c).  The first epoch is the whole machine: all rounds of the full sync, and what
 * is not told is looked at, and cleared where something is left (about 1 us a page). */
static uint64_t apply_pages(const struct primary *p, const struct shipment *sh)
{
	return sh->nr_data + sh->nr_zero + (sh->epoch == 1 ? p->regions->nr_pages / 16 : 0);
}

static int ship_commit(struct primary *p, struct shipment *sh, struct epoch_job *job, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t now;
	int r = begin_epoch(p, sh, job->epoch);

	enter_round(sh, job->round);
	if (!r)
		r = ship_side(p, sh, job->epoch, UINT64_MAX, err);
	if (!r)
		r = ship_state(p, job, err);
	if (r)
		return r;
	/* before the commit can be answered: ft-answer takes the time of the ack from it */
	now = now_ns();
	pthread_mutex_lock(&s->lock);
	job->sent_ns = now;
	job->ship_ns = now - sh->first_ns;
	job->sent_pages = sh->nr_data;
	job->apply_pages = apply_pages(p, sh);
	p->sent = job->epoch;
	p->ring_end[job->epoch % FTW_EPOCH_CREDITS_MAX] = p->ring_position;
	pthread_mutex_unlock(&s->lock);
	atomic_store(&s->epoch_sent, job->epoch);
	sh->bytes += job->state.len;
	r = send_commit(p, sh, job, err); /* from here on the job may be acknowledged and filled again */
	if (r)
		return r;
	stats_add(&s->stats, FT_METRIC_SHIP, now - sh->first_ns);
	stats_phase(&s->stats, PHASE_SHIP, now - sh->first_ns);
	stats_add(&s->stats, FT_METRIC_ZERO_PAGES, sh->nr_zero);
	stats_add(&s->stats, FT_METRIC_BYTES, sh->bytes);
	skip_after(p, sh->epoch);
	return 0;
}

/* What is to be sent next, NULL if nothing was there before @deadline. */
static struct work *take_work(struct primary *p, uint64_t deadline)
{
	struct work *w = (struct work *)queue_get(&p->to_ship, deadline);

	if (w && w->kind == WORK_SLAB)
		prepare_slab(p, w->slab);
	return w;
}

/* Wait until no more than @left slabs are in the transport's hands; the others are free. */
static int land(struct primary *p, struct flights *f, unsigned left, struct ft_error *err)
{
	while (f->nr > left) {
		struct flight *oldest = &f->flight[0];
		int r = oldest->ticket
				? tp_wait_completed(p->link->conn, oldest->lane, oldest->ticket, send_deadline(p), err)
				: 0;

		if (r)
			return r;
		queue_put(&p->free_slabs, &oldest->w->node);
		f->nr--;
		memmove(oldest, oldest + 1, f->nr * sizeof(*oldest));
	}
	return 0;
}

static int ship(struct primary *p, struct shipment *sh, struct flights *f, struct work *w, struct ft_error *err)
{
	struct flight *new = &f->flight[f->nr];

	if (w->kind == WORK_COMMIT)
		return ship_commit(p, sh, w->job, err);
	if (w->kind == WORK_SIDE)
		return ship_sync_side(p, sh, w->side_bytes, err);
	f->nr++;
	*new = (struct flight){ .w = w, .lane = lane_of(p, w->slab) };
	return ship_slab(p, sh, w->slab, &new->ticket, err);
}

/* What is in hand is sent, and one more slab is taken ahead: its keys are on their way meanwhile.  With nothing in hand there is time to
 * wait for what is in flight, and a guest that waits for a free slab gets it. */
static int ship_on(struct primary *p, struct shipment *sh, struct flights *f, struct work **next, struct ft_error *err)
{
	struct work *now = *next ? *next : take_work(p, now_ns());
	int r = land(p, f, now ? FLIGHTS_MAX - 1 : 0, err);

	*next = now;
	if (r)
		return r;
	if (!now && !primary_lost(p)) /* after the look: its wake may be what ended the wait above */
		now = take_work(p, DEADLINE_NEVER);
	*next = now && p->by_chunks ? take_work(p, now_ns()) : NULL;
	return now ? ship(p, sh, f, now, err) : 0;
}

static void await_loss(struct primary *p, uint64_t deadline)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	while (!p->lost && cond_wait_until(&s->cond, &s->lock, deadline) == 0)
		;
	pthread_mutex_unlock(&s->lock);
}

void *ship_main(void *arg)
{
	struct primary *p = arg;
	struct shipment sh = { 0 };
	struct flights flights = { 0 };
	struct work *next = NULL;
	struct ft_error err = { 0 };
	int r = announce_staging(p, &err);

	if (r)
		primary_lose(p, FTW_CODE_MEMORY, &err);
	while (!primary_lost(p)) {
		r = ship_on(p, &sh, &flights, &next, &err);
		if (r) {
			err_prefix(&err, "sending epoch %llu to the secondary", (unsigned long long)sh.epoch);
			if (link_hear_first(p->link, r))
				await_loss(p, deadline_in_ms(LINK_HEAR_MS)); /* ft-answer knows better why */
			primary_lose(p, FTW_CODE_NONE, &err);
		}
	}
	/* reclaim() has them */
	if (next)
		queue_put(&p->to_ship, &next->node);
	for (unsigned i = 0; i < flights.nr; i++)
		queue_put(&p->to_ship, &flights.flight[i].w->node);
	return NULL;
}
