/* SPDX-License-Identifier: MIT */
/* pace.c - when the next epoch of the primary is due: the interval, output that waits, the cap of the staging memory, the operator.
 * Runs on ft-epoch, between two epochs, with the guest running.
 *
 * Must hold
 *   - the guest runs for at least a quarter of the interval, but for output that waits and for the operator;
 *   - an epoch is not begun before there is a job for it: an acknowledgement frees one. */
#include "primary.h"

#include <errno.h>

#include "clock.h"

#define CAP_PERCENT 80 /* of the free staging: an estimate above cuts the epoch */

/* Is the epoch about to outgrow the staging memory? */
static bool near_cap(struct primary *p)
{
	uint64_t room = (uint64_t)queue_length(&p->free_slabs) * SLAB_PAGES;

	uint64_t pages = p->s->ops.estimate_dirty(p->s->user);

	return pages && pages >= room * CAP_PERCENT / 100;
}

/* The guest runs at least until then: a cut at the cap is no reason to let it stand all the time. */
static uint64_t least_run(const struct primary *p, const struct ft_config *cfg)
{
	return p->resumed_ns + cfg->interval_ms * NS_PER_MS / 4;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* With output held its wait ends the epoch, but for "output-gap" since the last end of that kind: a guest that was quiet need not wait for it. */
static uint64_t due_for_output(const struct primary *p, const struct ft_config *cfg)
{
	uint64_t since = atomic_load(&p->output_ns);

	if (!cfg->output_cut || !since)
		return DEADLINE_NEVER;
	return later(since + cfg->output_wait_ms * NS_PER_MS,
		     p->output_cut_ns ? p->output_cut_ns + cfg->output_gap_ms * NS_PER_MS : 0);
}

/* @for_output: not for the interval. */
static uint64_t due(const struct primary *p, const struct ft_config *cfg, bool *for_output)
{
	uint64_t at = later(p->paused_ns + cfg->interval_ms * NS_PER_MS, least_run(p, cfg));
	uint64_t output = due_for_output(p, cfg);

	*for_output = output < at;
	return *for_output ? output : at;
}

static bool job_free_locked(const struct primary *p)
{
	for (unsigned i = 0; i < EPOCH_JOBS; i++)
		if (!p->job[i].busy)
			return true;
	return false;
}

static bool wanted_locked(const struct primary *p)
{
	return p->cut_now || p->want_hold != p->held;
}

int epoch_wait(struct primary *p, bool *cut)
{
	struct ft_session *s = p->s;
	struct ft_config cfg;
	bool early = false, for_output = false;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		uint64_t until;

		cfg = s->cfg;
		for_output = false;
		until = p->held ? DEADLINE_NEVER : due(p, &cfg, &for_output);
		if (p->lost || s->stopping) {
			r = -ENOTCONN;
			break;
		}
		if ((wanted_locked(p) || now_ns() >= until) && job_free_locked(p)) {
			early = p->cut_now;
			for_output &= !wanted_locked(p);
			break;
		}
		if (cfg.at_cap == FT_AT_CAP_CUT && s->ops.estimate_dirty && !p->held && job_free_locked(p)) {
			uint64_t now = now_ns(), look = now + cfg.interval_ms * NS_PER_MS / 8;
			bool near = false;

			if (now < least_run(p, &cfg)) {
				look = least_run(p, &cfg);
			} else {
				pthread_mutex_unlock(&s->lock);
				near = near_cap(p);
				pthread_mutex_lock(&s->lock);
			}
			if (near) {
				stats_count(&s->stats, FT_COUNTER_CAP_CUTS, 1);
				for_output = false;
				break;
			}
			until = look < until ? look : until;
		} else if (!job_free_locked(p)) {
			until = DEADLINE_NEVER; /* an ack frees one; the answer thread sees to it that one comes */
		}
		r = primary_wait_locked(p, until);
		if (r && r != -ETIMEDOUT)
			break;
		r = 0;
	}
	*cut = p->cut_now || !p->held;
	p->cut_for_output = for_output && !r;
	p->cut_now = false;
	pthread_mutex_unlock(&s->lock);
	if (early)
		stats_count(&s->stats, FT_COUNTER_EARLY_CUTS, 1);
	if (p->cut_for_output)
		stats_count(&s->stats, FT_COUNTER_OUTPUT_CUTS, 1);
	return r;
}
