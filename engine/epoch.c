/* SPDX-License-Identifier: MIT */
/* epoch.c - one epoch of the primary: pause, collect, capture, save, resume; and the full sync that comes before the
 * first.  Runs on ft-epoch.  The guest runs again before anything of the epoch is sent.
 *
 *   guest runs epoch n ------------------> pause  collect  capture  output_cut  save  resume -----> guest runs epoch n+1
 *   (full sync only: pages go out in rounds)                                            |
 *                                                                  slabs, then the commit, to ft-ship
 *
 * Must hold
 *   - after epoch_run() the guest runs, whatever it returned;
 *   - nothing between pause and resume allocates or waits for the network, but for want of staging memory: then captured
 *     slabs are shipped during the pause, and the pause is bounded by "pause-max" (then the protection ends, not the guest). */
#include "primary.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "err.h"

#define STALL_SLICE_MS 5       /* how often a wait for staging memory looks whether the connection is still there */
#define SYNC_PAGES_PER_MS 1000 /* a page is captured in about 1 us (docs/design: 0.6 to 1.2 us, scattered) */
#define PROGRESS_MS 100

/* ---- VMM calls ---- */

/* Without guest_hold a guest that the operator holds is paused already, and stays so. */
static bool held_by_pause(const struct primary *p)
{
	return p->held && !p->s->ops.guest_hold;
}

static int pause_guest(struct primary *p, struct ft_error *err)
{
	if (held_by_pause(p))
		return 0;
	return p->s->ops.pause(p->s->user, err);
}

static int resume_guest(struct primary *p, struct ft_error *err)
{
	if (held_by_pause(p))
		return 0;
	return p->s->ops.resume(p->s->user, err);
}

static int collect(struct primary *p, int (*op)(void *user, struct ft_dirty *dirty, struct ft_error *err),
		   struct ft_error *err)
{
	struct ft_dirty dirty = { .regions = p->regions, .set = p->dirty };

	return op(p->s->user, &dirty, err);
}

/* ---- slabs ---- */

struct work *slab_take(struct primary *p, uint64_t deadline)
{
	for (;;) {
		uint64_t slice = deadline_in_ms(STALL_SLICE_MS);
		struct cds_wfcq_node *node = queue_get(&p->free_slabs, slice < deadline ? slice : deadline);

		if (node)
			return (struct work *)node;
		if (primary_lost(p) || session_stopping(p->s) || now_ns() >= deadline)
			return NULL;
	}
}

/* Slabs captured in this pause, kept back so that ft-ship does not take the processor from the guest's pause. */
struct batch {
	struct work *first, **end;
};

static void batch_ship(struct primary *p, struct batch *b)
{
	while (b->first) {
		struct work *w = b->first;

		b->first = w->slab->owner_link;
		ahead_learn(p, w->slab);
		queue_put(&p->to_ship, &w->node);
	}
	b->end = &b->first;
}

static void batch_add(struct batch *b, struct work *w)
{
	w->slab->owner_link = NULL;
	*b->end = w;
	b->end = (struct work **)&w->slab->owner_link;
}

/* Why there was no slab: the connection is lost, or nobody wants to protect any more. */
static int ended(struct primary *p, const char *during, struct ft_error *err)
{
	if (primary_lost(p))
		return err_set(err, -ENOTCONN, "the connection ended during %s", during);
	return err_set(err, -ECANCELED, "stopped during %s", during);
}

/* A stop is no loss: the peer is told goodbye by who serves the connection. */
static void give_up(struct primary *p, int r, const struct ft_error *err)
{
	if (p->drop)
		primary_drop(p, err);
	else if (r != -ECANCELED || !session_stopping(p->s))
		primary_lose(p, r == -ENOTCONN ? FTW_CODE_NONE : FTW_CODE_UNUSABLE, err);
}

int epoch_stalled(struct primary *p, const struct ft_config *cfg, const char *what, struct ft_error *err)
{
	if (primary_lost(p) || session_stopping(p->s))
		return ended(p, what, err);
	p->drop = cfg->at_cap == FT_AT_CAP_DROP;
	if (p->drop)
		return err_set(
			err, -ENOBUFS,
			"protection dropped (at-cap): staging-bytes are used up and the secondary does not keep up");
	return err_set(
		err, -ETIMEDOUT,
		"%s would have lasted longer than %u ms (pause-max): staging-bytes are used up and the secondary "
		"does not keep up",
		what, cfg->pause_max_ms);
}

/* A slab, in the pause.  Without one the captured slabs are shipped, if the policy is to wait for that. */
static struct work *paused_slab(struct primary *p, struct batch *batch, const struct ft_config *cfg, uint64_t deadline)
{
	struct work *w = slab_take(p, now_ns());

	if (w || cfg->at_cap == FT_AT_CAP_DROP)
		return w;
	copier_end(&p->copier);
	batch_ship(p, batch);
	stats_count(&p->s->stats, FT_COUNTER_CAP_STALLS, 1);
	return slab_take(p, deadline);
}

/* Into slabs, which are whole after copier_end(). */
static int fill_slabs(struct primary *p, struct epoch_job *job, struct batch *batch, const struct ft_config *cfg,
		      uint64_t paused_ns, struct ft_error *err)
{
	uint64_t deadline = paused_ns + cfg->pause_max_ms * NS_PER_MS, at = 0;

	for (;;) {
		struct work *w = paused_slab(p, batch, cfg, deadline);

		if (!w)
			return epoch_stalled(p, cfg, "a pause", err);
		w->slab->epoch = job->epoch;
		w->slab->round = p->round;
		if (capture_add(&p->copier, w->slab, p->regions, p->dirty, &at) == 0) {
			queue_put(&p->free_slabs, &w->node);
			return 0;
		}
		job->nr_pages += w->slab->nr;
		batch_add(batch, w);
	}
}

/* Copy what is dirty into slabs.  The set is empty afterwards. */
static int capture(struct primary *p, struct epoch_job *job, struct batch *batch, const struct ft_config *cfg,
		   uint64_t paused_ns, struct ft_error *err)
{
	int r;

	job->nr_pages = 0;
	p->round++;
	r = fill_slabs(p, job, batch, cfg, paused_ns, err);
	copier_end(&p->copier);
	if (!r)
		resync_captured(p, job);
	return r;
}

/* ---- one epoch ---- */

struct times {
	uint64_t start, stopped, collected, captured, saved, resumed;
};

static void account(struct primary *p, const struct times *t, const struct epoch_job *job)
{
	struct stats *st = &p->s->stats;

	stats_add(st, FT_METRIC_PAUSE, t->resumed - t->start);
	stats_add(st, FT_METRIC_STOP, t->stopped - t->start);
	stats_add(st, FT_METRIC_COLLECT, t->collected - t->stopped);
	stats_add(st, FT_METRIC_CAPTURE, t->captured - t->collected);
	stats_add(st, FT_METRIC_SAVE, t->saved - t->captured);
	stats_add(st, FT_METRIC_RESUME, t->resumed - t->saved);
	stats_add(st, FT_METRIC_EPOCH, t->resumed - p->resumed_ns);
	stats_add(st, FT_METRIC_DIRTY_PAGES, job->nr_pages);
	stats_add(st, FT_METRIC_STATE_BYTES, job->state.len);
	stats_phase(st, PHASE_INTERVAL, t->start - p->resumed_ns);
	stats_phase(st, PHASE_CAPTURE, t->resumed - t->start);
}

/* A job that no unacknowledged epoch uses; epoch_wait() saw to it that there is one. */
static struct epoch_job *free_job(struct primary *p)
{
	struct epoch_job *job = NULL;

	pthread_mutex_lock(&p->s->lock);
	for (unsigned i = 0; i < p->nr_jobs; i++)
		if (!p->job[i].busy)
			job = &p->job[i];
	pthread_mutex_unlock(&p->s->lock);
	return job;
}

/* The hook's last epoch: from here on the VMM's own tracking counts, and all that it has was told. */
static int arm(struct primary *p, struct epoch_job *job, struct ft_error *err)
{
	int r = p->want_cow ? 0 : collect(p, p->s->ops.collect_dirty, err);

	bitmap_clear(p->dirty);
	behind_arm(p, job);
	return r ? err_prefix(err, "collect") : 0;
}

static int freeze(struct primary *p, struct epoch_job *job, struct batch *batch, const struct ft_config *cfg,
		  struct times *t, bool *armed, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = pause_guest(p, err);

	t->stopped = now_ns();
	if (r)
		return err_prefix(err, "pause");
	*armed = behind_hooked(p);
	r = *armed ? 0 : collect(p, s->ops.collect_dirty, err);
	t->collected = now_ns();
	if (r)
		return err_prefix(err, "collect");
	if (*armed)
		r = arm(p, job, err);
	else
		r = capture(p, job, batch, cfg, t->start, err);
	if (!r)
		r = hook_begin(p, err);
	t->captured = now_ns();
	if (r)
		return r;
	/* before the guest runs again: a checkpoint that is asked for from now on is of the next epoch */
	atomic_store(&s->epoch_running, job->epoch + 1);
	if (s->ops.output_cut)
		s->ops.output_cut(s->user, job->epoch);
	p->last_output = atomic_load(&p->output_ns) != 0;
	atomic_store(&p->output_ns, 0); /* of this epoch; a word that comes too late costs one epoch more */
	p->output_held = true;
	job->state.len = 0;
	r = s->ops.save_state(s->user, &job->state, err);
	t->saved = now_ns();
	return r ? err_prefix(err, "device state") : 0;
}

static void mark_busy(struct primary *p, struct epoch_job *job)
{
	pthread_mutex_lock(&p->s->lock);
	job->busy = true;
	pthread_mutex_unlock(&p->s->lock);
}

int epoch_run(struct primary *p)
{
	struct epoch_job *job = free_job(p);
	struct batch batch = { .end = &batch.first };
	struct ft_error err = { 0 }, resume_err = { 0 };
	struct times t = { .start = now_ns() };
	struct ft_config cfg;
	bool armed = false;
	int r, resumed;

	session_config(p->s, &cfg);
	job->epoch = p->next_epoch;
	job->cut_ns = t.start;
	atomic_store(&p->pausing_ns, t.start);
	r = freeze(p, job, &batch, &cfg, &t, &armed, &err);
	atomic_store(&p->s->epoch_running,
		     job->epoch + 1); /* before the guest runs: a checkpoint asked for from now on means the next */
	resumed = resume_guest(p, &resume_err);
	t.resumed = now_ns();
	atomic_store(&p->pausing_ns, 0);
	job->round = p->round;
	batch_ship(p, &batch);
	resync_epoch_over(p, job);
	ahead_epoch_over(p);
	if (!r && resumed) {
		r = resumed;
		err = resume_err;
		err_prefix(&err, "resume");
	}
	if (armed && r)
		cow_disarm(p->cow);
	else if (armed)
		r = behind_finish(p, job, &cfg, t.resumed, &err);
	if (r) {
		give_up(p, r, &err);
		return r;
	}
	account(p, &t, job);
	behind_after(p, armed, job->nr_pages, t.captured - t.stopped);
	mark_busy(p, job);
	queue_put(&p->to_ship, &job->work.node);
	pace_after(p, t.start, t.resumed, job->nr_pages);
	p->next_epoch++;
	return 0;
}

/* ---- full sync ---- */

#define SYNC_EPOCH 1 /* also when its last pause is over and the next epoch runs */

static void send_progress(struct primary *p)
{
	struct ft_session *s = p->s;
	struct sync_progress sp = {
		.round = atomic_load(&s->sync_round),
		.pages_done = atomic_load(&s->sync_done),
		.pages_total = atomic_load(&s->sync_total),
	};

	/* informational: a failure shows itself in what follows */
	(void)!link_send_progress(p->link, SYNC_EPOCH, &sp, deadline_in_ms(1000), NULL);
	session_tell(s, FT_EVENT_SYNC, SYNC_EPOCH);
}

/* The side stream of a round is read and sent by ft-ship: @bytes, as much as there was when the round began, or all that there is if it is less.
 * A guest that writes faster than the connection carries would never see the end of a round else. */
static int sync_side(struct primary *p, uint64_t bytes, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = 0;

	if (!bytes)
		return 0;
	p->side_work.side_bytes = bytes;
	pthread_mutex_lock(&s->lock);
	p->side_due = true;
	pthread_mutex_unlock(&s->lock);
	queue_put(&p->to_ship, &p->side_work.node);
	pthread_mutex_lock(&s->lock);
	while (p->side_due && (!r || r == -ETIMEDOUT)) {
		r = primary_wait_locked(p, deadline_in_ms(PROGRESS_MS));
		if (r == -ETIMEDOUT) {
			pthread_mutex_unlock(&s->lock);
			send_progress(p);
			pthread_mutex_lock(&s->lock);
		}
	}
	r = p->side_due ? r : 0;
	pthread_mutex_unlock(&s->lock);
	return r ? ended(p, "the full sync", err) : 0;
}

/* Send all of the dirty set while the guest runs; a page that changes meanwhile is dirty again. */
static int sync_round(struct primary *p, struct ft_error *err)
{
	uint64_t at = 0, next_progress = 0;

	p->round++;
	for (;;) {
		struct work *w = slab_take(p, DEADLINE_NEVER);

		if (!w)
			return ended(p, "the full sync", err);
		w->slab->epoch = p->next_epoch;
		w->slab->round = p->round;
		if (capture_fill(w->slab, p->regions, p->dirty, &at) == 0) {
			queue_put(&p->free_slabs, &w->node);
			break;
		}
		atomic_fetch_add(&p->s->sync_done, w->slab->nr);
		queue_put(&p->to_ship, &w->node);
		if (now_ns() >= next_progress) {
			send_progress(p);
			next_progress = deadline_in_ms(PROGRESS_MS);
		}
	}
	resync_note(p);
	bitmap_clear(p->dirty);
	return 0;
}

static int sync_begin(struct primary *p, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = resync_agree(p, err);

	if (!r)
		r = behind_begin(p, err);
	if (r)
		return r;
	bitmap_clear(p->dirty);
	if (p->resync.going_on) { /* what was written since has gone on being tracked, and comes with the next rounds */
		bitmap_or(p->dirty, p->resync.owed);
		return 0;
	}
	r = s->ops.track_start(s->user, err);
	if (r)
		return err_prefix(err, "dirty tracking");
	p->tracking = true;
	if (s->ops.collect_present) {
		r = collect(p, s->ops.collect_present, err);
		return r ? err_prefix(err, "present pages") : 0;
	}
	for (uint32_t i = 0; i < p->regions->count; i++)
		if (p->regions->region[i].base)
			bitmap_set_run(p->dirty, p->regions->region[i].first_page, p->regions->region[i].nr_pages);
	return 0;
}

static uint64_t side_left(struct primary *p)
{
	return p->s->ops.side_left ? p->s->ops.side_left(p->s->user) : 0;
}

/* What a last pause now would leave to be sent, in pages: those that are dirty, and the side stream in pieces of that size. */
static uint64_t sync_left(const struct primary *p, uint64_t side)
{
	return bitmap_count(p->dirty) + side / FT_PAGE_SIZE + (side % FT_PAGE_SIZE != 0);
}

/* Rounds until what is left fits into a pause of about "sync-pause", or two rounds in a row brought it down by less than a tenth.  What is
 * left of the side stream then is read as part of the first epoch, with the guest running: it makes the epoch longer, not the pause. */
static int sync_rounds(struct primary *p, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t side = side_left(p), left = sync_left(p, side), before;
	unsigned no_gain = 0;
	struct ft_config cfg;

	atomic_store(&s->sync_done, 0);
	atomic_store(&s->sync_total, left);
	for (uint32_t round = 1;; round++) {
		int r;

		session_config(s, &cfg);
		atomic_store(&s->sync_round, round);
		r = sync_round(p, err);
		if (!r)
			r = sync_side(p, side, err);
		if (!r)
			r = collect(p, s->ops.collect_dirty, err);
		if (r)
			return r;
		before = left;
		side = side_left(p);
		left = sync_left(p, side);
		atomic_store(&s->sync_total, atomic_load(&s->sync_done) + left);
		no_gain = left >= before - before / 10 ? no_gain + 1 : 0;
		if (left <= (uint64_t)cfg.sync_pause_ms * SYNC_PAGES_PER_MS || no_gain >= 2 ||
		    round >= cfg.sync_rounds_max)
			return 0;
	}
}

int sync_run(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	int r = sync_begin(p, &err);

	if (!r)
		r = sync_rounds(p, &err);
	if (!r && release_settle(p))
		r = ended(p, "the full sync", &err);
	if (r) {
		give_up(p, r, &err);
		return r;
	}
	r = epoch_run(p);
	if (!r) {
		atomic_store(&s->sync_done, atomic_load(&s->sync_total));
		send_progress(p);
	}
	return r;
}
