/* SPDX-License-Identifier: MIT */
/* pace.c - when the next epoch of the primary is due: the interval (fixed, or as controller.c finds it), output that waits, dirty pages, the
 * cap of the staging memory, the operator.  Runs on ft-epoch, between two epochs, with the guest running.
 *
 * Must hold
 *   - the guest runs for a while between two pauses (least_run), but for output that waits and for the operator;
 *   - an epoch is not begun before there is a job for it: an acknowledgement frees one;
 *   - nothing wakes this thread that cannot end the epoch: an idle guest costs close to nothing. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>

#include "clock.h"

#define CAP_PERCENT 80 /* of the free staging: an estimate above cuts the epoch */
#define FAST_PAGE_NS                                                                                                   \
	400 /* no guest dirties a page in less, nearly: as long as that for each page to go, nobody need look */
#define LOOK_MIN_NS NS_PER_MS

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- the controller ---- */

static struct controller_goal goal_of(const struct ft_config *cfg)
{
	return (struct controller_goal){ .mode = cfg->interval_mode,
					 .fixed_ns = cfg->interval_ms * NS_PER_MS,
					 .min_ns = cfg->interval_min_ms * NS_PER_MS,
					 .max_ns = cfg->interval_max_ms * NS_PER_MS,
					 .delay_ns = cfg->target_output_delay_ms * NS_PER_MS,
					 .slowdown_permille = cfg->target_slowdown,
					 .output_cuts = cfg->output_cut,
					 .output_wait_ns = later(cfg->output_wait_ms, cfg->output_gap_ms) * NS_PER_MS };
}

void pace_begin(struct primary *p)
{
	p->paused_ns = p->resumed_ns = now_ns();
	p->output_cut_ns = 0;
	p->end = END_INTERVAL;
	controller_init(&p->controller);
	pthread_mutex_lock(&p->s->lock);
	p->cost.link_ns = p->cost.apply_ns = 0;
	p->planned = false;
	pthread_mutex_unlock(&p->s->lock);
}

/* The first epoch is the whole machine: what that cost says nothing of the next. */
static struct controller_plan plan_locked(struct primary *p, const struct controller_goal *goal,
					  struct controller_epoch *e)
{
	if (p->next_epoch == 1) {
		p->cost.link_ns = p->cost.apply_ns = 0;
		return controller_plan(&p->controller, goal);
	}
	e->link_ns = p->acked > 1 ? p->cost.link_ns : 0;
	e->link_pages = p->cost.link_pages;
	e->apply_ns = p->applied > 1 ? p->cost.apply_ns : 0;
	return controller_step(&p->controller, goal, e);
}

void pace_after(struct primary *p, uint64_t paused_ns, uint64_t resumed_ns, uint64_t pages)
{
	struct ft_session *s = p->s;
	struct controller_epoch e = { .length_ns = resumed_ns - p->resumed_ns,
				      .pause_ns = resumed_ns - paused_ns,
				      .pages = pages,
				      .early = p->end != END_INTERVAL && p->end != END_WATERMARK,
				      .output = p->last_output };
	struct controller_goal goal;

	pthread_mutex_lock(&s->lock);
	goal = goal_of(&s->cfg);
	p->plan_now = plan_locked(p, &goal, &e);
	p->plan_end = p->end;
	p->planned = true;
	pthread_mutex_unlock(&s->lock);
	p->paused_ns = paused_ns;
	p->resumed_ns = resumed_ns;
	if (p->end == END_OUTPUT)
		p->output_cut_ns = resumed_ns;
}

void primary_pace_status(struct ft_session *s, struct ft_status *out)
{
	static const char *const modes[] = { "fixed", "output-delay", "slowdown" };
	static const char *const ends[END_COUNT] = { "interval", "output", "watermark", "busy", "cap", "operator" };
	const struct primary *p = s->primary;

	pthread_mutex_lock(&s->lock);
	snprintf(out->interval_mode, sizeof(out->interval_mode), "%s", modes[s->cfg.interval_mode]);
	if (p->planned) {
		out->interval_now_ns = p->plan_now.interval_ns;
		out->watermark_pages =
			p->plan_now.watermark_pages == CONTROLLER_NO_LIMIT ? 0 : p->plan_now.watermark_pages;
		snprintf(out->interval_reason, sizeof(out->interval_reason), "%s",
			 controller_reason_name(p->plan_now.reason));
		snprintf(out->epoch_end, sizeof(out->epoch_end), "%s", ends[p->plan_end]);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- times ---- */

/* The guest runs at least until then: a cut for its dirty pages is no reason to let it stand all the time. */
static uint64_t least_run(const struct primary *p, const struct ft_config *cfg)
{
	if (cfg->interval_mode == FT_INTERVAL_FIXED)
		return p->resumed_ns + cfg->interval_ms * NS_PER_MS / 4;
	return p->resumed_ns + later(cfg->interval_min_ms * NS_PER_MS, p->resumed_ns - p->paused_ns);
}

/* With output held its wait ends the epoch, but for "output-gap" since the last end of that kind: a guest that was quiet need not wait for it.
 * Where pauses have a share of the guest's time, ends of that kind are an interval apart, or they would take more. */
static uint64_t due_for_output(const struct primary *p, const struct ft_config *cfg)
{
	uint64_t since = atomic_load(&p->output_ns), gap = cfg->output_gap_ms * NS_PER_MS;

	if (!cfg->output_cut || !since)
		return DEADLINE_NEVER;
	if (cfg->interval_mode == FT_INTERVAL_SLOWDOWN && p->plan_now.reason != CONTROLLER_IDLE)
		gap = later(gap, p->plan_now.interval_ns);
	return later(since + cfg->output_wait_ms * NS_PER_MS, p->output_cut_ns ? p->output_cut_ns + gap : 0);
}

static uint64_t due(const struct primary *p, const struct ft_config *cfg, enum epoch_end *end)
{
	uint64_t at = later(p->paused_ns + p->plan_now.interval_ns, least_run(p, cfg));
	uint64_t output = due_for_output(p, cfg);

	*end = output < at ? END_OUTPUT : END_INTERVAL;
	return sooner(output, at);
}

/* ---- dirty pages ---- */

struct limit {
	uint64_t pages;
	enum epoch_end end;
};

static void tighten(struct limit *l, uint64_t pages, enum epoch_end end)
{
	if (pages < l->pages)
		*l = (struct limit){ pages, end };
}

/* How many pages may be dirty before the epoch ends for them. */
static struct limit dirty_limit(struct primary *p, const struct ft_config *cfg)
{
	struct limit l = { CONTROLLER_NO_LIMIT, END_CAP };

	if (!p->s->ops.estimate_dirty && !behind_hooked(p))
		return l;
	if (cfg->at_cap != FT_AT_CAP_SLOW)
		tighten(&l, (uint64_t)queue_length(&p->free_slabs) * SLAB_PAGES * CAP_PERCENT / 100, END_CAP);
	tighten(&l, p->plan_now.watermark_pages, END_WATERMARK);
	tighten(&l, p->plan_now.wake_pages, END_BUSY);
	return l;
}

/* How many pages a pause now would have to make safe; what was fetched and not sent ahead is not among those that the VMM knows. */
static uint64_t estimate(struct primary *p)
{
	if (behind_hooked(p))
		return cow_written(p->cow);
	return p->s->ops.estimate_dirty(p->s->user) + (p->ahead.times ? bitmap_count(p->dirty) : 0);
}

/* @dirty pages of @limit: when to look again.  A free slab may be needed by then that is still on its way: what is free now is not counted on. */
static uint64_t next_look(const struct primary *p, uint64_t now, uint64_t dirty, uint64_t limit)
{
	uint64_t fast = (limit - dirty) * FAST_PAGE_NS;

	return now + later(later(p->plan_now.look_ns, fast), LOOK_MIN_NS);
}

/* ---- pages sent ahead ---- */

/* When the next are sent; DEADLINE_NEVER: no more in this epoch. */
static uint64_t ahead_due(const struct primary *p)
{
	const struct ahead *a = &p->ahead;

	if (a->done >= a->times)
		return DEADLINE_NEVER;
	return p->resumed_ns + p->plan_now.interval_ns * (a->done + 1) / (a->times + 1);
}

/* Sends them if it is time.  Gives the lock back for a while then; else *@until may come sooner.  True: look again. */
static bool sent_ahead_locked(struct primary *p, uint64_t *until, int *result)
{
	uint64_t at = ahead_due(p);

	if (now_ns() < at) {
		*until = sooner(*until, at);
		return false;
	}
	pthread_mutex_unlock(&p->s->lock);
	*result = ahead_send(p);
	pthread_mutex_lock(&p->s->lock);
	return true;
}

/* ---- the wait ---- */

static bool job_free_locked(const struct primary *p)
{
	for (unsigned i = 0; i < p->nr_jobs; i++)
		if (!p->job[i].busy)
			return true;
	return false;
}

static bool wanted_locked(const struct primary *p)
{
	return p->cut_now || p->want_hold != p->held;
}

/* True: the epoch ends for its dirty pages.  Else *@until may come sooner: to look again.  Gives the lock back for a moment. */
static bool outgrown_locked(struct primary *p, const struct ft_config *cfg, uint64_t *until)
{
	struct limit limit = dirty_limit(p, cfg);
	uint64_t now = now_ns(), run = least_run(p, cfg), dirty;

	if (limit.pages == CONTROLLER_NO_LIMIT)
		return false;
	if (now < later(run, p->look_ns)) {
		*until = sooner(*until, later(run, p->look_ns));
		return false;
	}
	pthread_mutex_unlock(&p->s->lock);
	dirty = estimate(p);
	pthread_mutex_lock(&p->s->lock);
	if (dirty && dirty >= limit.pages) {
		p->end = limit.end;
		return true;
	}
	p->look_ns = next_look(p, now, dirty, limit.pages);
	*until = sooner(*until, p->look_ns);
	return false;
}

static void count_end(struct primary *p, bool early)
{
	static const enum ft_counter counter[END_COUNT] = { [END_OUTPUT] = FT_COUNTER_OUTPUT_CUTS,
							    [END_WATERMARK] = FT_COUNTER_WATERMARK_CUTS,
							    [END_CAP] = FT_COUNTER_CAP_CUTS };

	if (early)
		stats_count(&p->s->stats, FT_COUNTER_EARLY_CUTS, 1);
	if (counter[p->end])
		stats_count(&p->s->stats, counter[p->end], 1);
}

/* A setting may have changed since the plan was made. */
static void renew_plan_locked(struct primary *p, const struct ft_config *cfg)
{
	struct controller_goal goal = goal_of(cfg);

	p->plan_now = controller_plan(&p->controller, &goal);
}

int epoch_wait(struct primary *p, bool *cut)
{
	struct ft_session *s = p->s;
	struct ft_config cfg;
	bool early = false;
	int r = 0;

	p->look_ns = 0;
	pthread_mutex_lock(&s->lock);
	for (;;) {
		bool full = !job_free_locked(p);
		uint64_t until;

		cfg = s->cfg;
		renew_plan_locked(p, &cfg);
		until = p->held ? DEADLINE_NEVER : due(p, &cfg, &p->end);
		if (p->lost || s->stopping) {
			r = -ENOTCONN;
			break;
		}
		if ((wanted_locked(p) || now_ns() >= until) && !full) {
			early = p->cut_now;
			if (wanted_locked(p))
				p->end = END_OPERATOR;
			break;
		}
		if (full)
			until = DEADLINE_NEVER; /* an ack frees one; the answer thread sees to it that one comes */
		else if (!p->held && outgrown_locked(p, &cfg, &until))
			break;
		else if (!p->held && sent_ahead_locked(p, &until, &r)) {
			if (r)
				break;
			continue;
		}
		p->awaiting += full;
		r = primary_wait_locked(p, until);
		p->awaiting -= full;
		if (r && r != -ETIMEDOUT)
			break;
		r = 0;
	}
	*cut = p->cut_now || !p->held;
	p->cut_now = false;
	pthread_mutex_unlock(&s->lock);
	if (!r)
		count_end(p, early);
	return r;
}
