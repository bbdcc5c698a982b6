/* SPDX-License-Identifier: MIT */
/* resync.c - "resync": after a lost connection only what was written since then is sent, to a secondary that still has what was acknowledged in it.
 *
 * The *base* is the last connection of this session in which an epoch was acknowledged.  From its first ack on each epoch's pages are kept by their numbers until their job is
 * used again, and after a loss all that the secondary may lack is *owed*: what the last epochs had, what was sent ahead, what was not captured.  The VMM's tracking goes on, also in
 * ALONE.  Next time both sides name the base, and if they agree the first epoch is what is owed and what was written meanwhile, instead of the whole machine.
 * Runs on ft-epoch, but for resync_answered().
 *
 * Must hold
 *   - whatever was written since the last epoch that was acknowledged in the base is in `owed`, in p->dirty, in a job's pages, or in the VMM's tracking;
 *   - `owed` is emptied only when an epoch of a new base is acknowledged, and given up with the base: when tracking ends, the regions change, or the
 *     secondary does not have it. */
#include "primary.h"

#include <errno.h>
#include <inttypes.h>

#include "clock.h"
#include "err.h"
#include "log.h"

/* Disks have no base: what their side stream owes is the VMM's to know.  With a write hook what is written is told elsewhere. */
bool resync_wanted(const struct primary *p, const struct ft_config *cfg)
{
	return cfg->resync && !p->s->ops.side_read && !p->cow;
}

static int fit(struct bitmap **b, uint64_t nr_pages)
{
	if (*b && bitmap_pages(*b) == nr_pages)
		return 0;
	bitmap_destroy(*b);
	*b = NULL;
	return bitmap_create(b, nr_pages);
}

int resync_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	struct resync *rs = &p->resync;
	uint64_t n = p->regions->nr_pages;
	int r = 0;

	rs->going_on = false;
	if (!resync_wanted(p, cfg) || rs->regions != p->regions_used)
		resync_forget(p);
	if (!resync_wanted(p, cfg))
		return 0;
	rs->regions = p->regions_used;
	r = fit(&rs->owed, n);
	for (unsigned i = 0; !r && i < p->nr_jobs; i++)
		r = fit(&p->job[i].pages, n);
	return r ? err_set(err, -ENOMEM, "no memory for the pages that are owed (resync)") : 0;
}

void resync_forget(struct primary *p)
{
	p->resync.base = p->resync.base_epoch = p->resync.base_sent = 0;
	if (p->resync.owed)
		bitmap_clear(p->resync.owed);
}

void resync_destroy(struct primary *p)
{
	bitmap_destroy(p->resync.owed);
	for (unsigned i = 0; i < EPOCH_JOBS; i++)
		bitmap_destroy(p->job[i].pages);
}

bool resync_has_base(const struct primary *p)
{
	return p->resync.base != 0;
}

/* ---- the two words about it ---- */

static int send_base(struct primary *p, struct ft_error *err)
{
	struct resync *rs = &p->resync;
	struct base base = { .connection = ++rs->connection,
			     .base_connection = rs->base,
			     .base_epoch = rs->base_epoch };
	struct ft_config cfg;
	uint32_t seq;
	void *buf;

	session_config(p->s, &cfg);
	buf = link_begin(p->link, 0, &seq);
	return link_end(p->link, 0, create_base(buf, seq, &base), deadline_in_ms(cfg.commit_timeout_ms), err);
}

void resync_answered(struct primary *p, uint64_t epoch)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->resync.answered = true;
	p->resync.held = epoch;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static int wait_answer(struct primary *p, uint64_t *epoch, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t deadline;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	deadline = deadline_in_ms(s->cfg.commit_timeout_ms);
	while (!r && !p->resync.answered)
		r = primary_wait_locked(p, deadline);
	*epoch = p->resync.held;
	pthread_mutex_unlock(&s->lock);
	return r ? err_set(err, r, "no word from the secondary about what it has (resync)") : 0;
}

int resync_agree(struct primary *p, struct ft_error *err)
{
	struct resync *rs = &p->resync;
	uint64_t epoch = 0;
	int r;

	if (!rs->in_use) {
		resync_forget(p);
		return 0;
	}
	r = send_base(p, err);
	if (!r)
		r = wait_answer(p, &epoch, err);
	if (r)
		return r;
	if (epoch && (!rs->base || epoch < rs->base_epoch || epoch > rs->base_sent))
		return err_set(err, -EPROTO,
			       "base-ack: epoch %" PRIu64 ", of those that were sent it can have %" PRIu64
			       " to %" PRIu64,
			       epoch, rs->base_epoch, rs->base_sent);
	rs->going_on = epoch != 0;
	if (!rs->going_on)
		resync_forget(p);
	else
		stats_count(&p->s->stats, FT_COUNTER_RESYNCS, 1);
	return 0;
}

/* ---- what is owed ---- */

void resync_note(struct primary *p)
{
	if (resync_has_base(p))
		bitmap_or(p->resync.owed, p->dirty);
}

void resync_captured(struct primary *p, struct epoch_job *job)
{
	struct bitmap *set = p->dirty;

	if (!p->resync.in_use) {
		bitmap_clear(set);
		return;
	}
	bitmap_clear(job->pages);
	p->dirty = job->pages;
	job->pages = set;
}

void resync_epoch_over(struct primary *p, struct epoch_job *job)
{
	if (p->resync.in_use && p->ahead.times)
		bitmap_or(job->pages, p->ahead.sent);
}

void resync_protected(struct primary *p)
{
	struct resync *rs = &p->resync;

	if (!rs->in_use)
		return;
	bitmap_clear(rs->owed);
	rs->base = rs->connection;
}

/* ft-ship and ft-answer have ended.  All jobs: some of their epochs were acknowledged, and their pages are sent once more. */
void resync_after_loss(struct primary *p)
{
	struct resync *rs = &p->resync;

	if (!rs->in_use || !rs->base)
		return;
	if (rs->base == rs->connection) {
		rs->base_epoch = p->acked;
		rs->base_sent = p->sent;
	}
	bitmap_or(rs->owed, p->dirty);
	for (unsigned i = 0; i < p->nr_jobs; i++)
		bitmap_or(rs->owed, p->job[i].pages);
	if (p->ahead.times)
		bitmap_or(rs->owed, p->ahead.sent);
}
