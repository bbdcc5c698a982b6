/* SPDX-License-Identifier: MIT */
/* behind.c - an epoch's pages copied behind the guest ("capture" cow): the VMM's write hook, and what ft-epoch does between the resume and the
 * commit; and whether it is to be so ("capture" auto, choice.c).  checkpoint/cow.c has the sets and the writers' side.  Runs on ft-epoch.
 *
 *   pause  arm  resume ------> guest runs; its writers copy what they come to first
 *                       ft-epoch: own slab, writers' slab, ... to ft-ship as they fill; then the commit
 *
 * From copy to cow: in a pause the hook is set, and the next pause arms what it told.  Back: in a pause that arms, what the VMM's own tracking has is
 * fetched and forgotten, since all of it was told; behind it the hook is taken away, and the next pause asks the tracking.
 *
 * Must hold
 *   - when behind_finish() returns nothing is armed, whatever came of it: no writer waits for a protection that ends;
 *   - a writer that needs a slab gets the next one that is free, before ft-epoch takes one for itself. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>

#include "clock.h"
#include "err.h"
#include "log.h"

#define COW_STEP 64 /* pages copied between two looks at what writers wait for */

/* ---- the hook ---- */

int behind_begin(struct primary *p, struct ft_error *err)
{
	choice_init(&p->choice);
	p->want_cow = p->capture == FT_CAPTURE_COW;
	atomic_store(&p->captured_cow, false);
	if (p->cow && cow_begin(p->cow, p->regions))
		return err_set(err, -ENOMEM, "no memory for capture by copy on write");
	return 0;
}

bool behind_hooked(const struct primary *p)
{
	return p->cow && atomic_load(&p->s->write_hooked);
}

int hook_begin(struct primary *p, struct ft_error *err)
{
	struct ft_session *s = p->s;

	if (!p->want_cow || behind_hooked(p))
		return 0;
	cow_on(p->cow);
	atomic_store(&s->write_hooked, true);
	return s->ops.write_hook(s->user, true, err);
}

static void unhook(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };

	if (atomic_exchange(&s->write_hooked, false) && s->ops.write_hook(s->user, false, &err))
		log_warn("primary", "%s: write hook: %s", s->name, err.msg);
}

void hook_end(struct primary *p)
{
	if (!p->cow)
		return;
	unhook(p);
	cow_end(p->cow);
}

/* ---- copying ---- */

void behind_arm(struct primary *p, struct epoch_job *job)
{
	job->nr_pages = 0;
	p->round++;
	cow_arm(p->cow);
}

static struct work *work_of(struct primary *p, const struct slab *slab)
{
	return &p->slab_work[(size_t)(slab->memory - p->staging) / SLAB_BYTES];
}

/* A slab with something in it is told, an empty one is free again. */
static void pass_on(struct primary *p, struct epoch_job *job, struct slab *slab)
{
	slab->epoch = job->epoch;
	slab->round = p->round;
	job->nr_pages += slab->nr;
	queue_put(slab->nr ? &p->to_ship : &p->free_slabs, &work_of(p, slab)->node);
}

/* What writers have filled goes on its way, and they get a free slab, if there is one. */
static void serve_writers(struct primary *p, struct epoch_job *job)
{
	struct work *w = cow_starved(p->cow) ? slab_take(p, now_ns()) : NULL;
	struct slab *full = w ? cow_exchange(p->cow, w->slab) : NULL;

	if (!full)
		return;
	cow_sort(p->cow, full);
	pass_on(p, job, full);
}

/* All that is armed, while the guest runs; slabs go on their way as they fill. */
static int copy_behind(struct primary *p, struct epoch_job *job, const struct ft_config *cfg, struct slab **own,
		       uint64_t deadline)
{
	uint64_t at = 0;
	bool more = true;

	while (more) {
		if (primary_lost(p) || session_stopping(p->s) || now_ns() >= deadline)
			return -ETIMEDOUT;
		serve_writers(p, job);
		if (!*own) {
			struct work *w = slab_take(p, cfg->at_cap == FT_AT_CAP_DROP ? now_ns() : deadline);

			if (!w)
				return -ETIMEDOUT;
			*own = w->slab;
			w->slab->nr = 0;
		}
		more = cow_copy(p->cow, *own, &at, COW_STEP);
		if ((*own)->nr == SLAB_PAGES) {
			pass_on(p, job, *own);
			*own = NULL;
		}
	}
	return 0;
}

int behind_finish(struct primary *p, struct epoch_job *job, const struct ft_config *cfg, uint64_t resumed_ns,
		  struct ft_error *err)
{
	struct slab *own = NULL, *theirs;
	int r = copy_behind(p, job, cfg, &own, resumed_ns + cfg->pause_max_ms * NS_PER_MS);

	cow_disarm(p->cow);
	theirs = cow_exchange(p->cow, NULL);
	if (theirs) {
		cow_sort(p->cow, theirs);
		pass_on(p, job, theirs);
	}
	if (own)
		pass_on(p, job, own);
	stats_count(&p->s->stats, FT_COUNTER_COW_FAULTS, cow_paid(p->cow).faults);
	if (!r && !p->want_cow) {
		unhook(p);
		cow_off(p->cow);
	}
	return r ? epoch_stalled(p, cfg, "copying behind the guest", err) : 0;
}

/* ---- the choice ---- */

void behind_after(struct primary *p, bool armed, uint64_t pages, uint64_t ns)
{
	struct choice_epoch e = { .cow = armed, .pages = pages, .pause_ns = ns };
	bool before = p->want_cow;

	atomic_store(&p->captured_cow, armed);
	if (!p->cow || p->capture != FT_CAPTURE_AUTO)
		return;
	if (armed) {
		struct cow_paid paid = cow_paid(p->cow);

		e.writers_ns = paid.ns + paid.told_ns;
	}
	p->want_cow = choice_step(&p->choice, &e);
	if (p->want_cow != before)
		stats_count(&p->s->stats, FT_COUNTER_CAPTURE_SWITCHES, 1);
}

void primary_capture_status(struct ft_session *s, struct ft_status *out)
{
	snprintf(out->capture, sizeof(out->capture), "%s", atomic_load(&s->primary->captured_cow) ? "cow" : "copy");
}
