/* SPDX-License-Identifier: MIT */
/* controller.c - see controller.h.  Pure; the caller's thread.
 *
 * Each rule says which interval it wants from what was measured at the present one, so that it is right where it says what is there already:
 *   slowdown      pause / target: a pause that does not depend on the interval gives it in one step, one that grows with it in several
 *   output-delay  the length at which waiting + pause + way are the target; what pause and way have for each ms of an epoch is kept the same
 *   link, apply   never less than an epoch is on its way, or is applied: else they would queue up, and bring nothing
 *
 * Must hold
 *   - no oscillation: a wanted interval rises with the present one and, in the long run, by less (why the slow-down averages a time and the
 *     delay a ratio: docs/decisions/014); steps are at most twofold, and those below a sixteenth are not made;
 *   - whatever was measured, the plan keeps the bounds. */
#include "controller.h"

#include <string.h>

#define AIM_PERCENT 90   /* of a target: the rest is for noise */
#define WAY_PERCENT 110  /* of the time that an epoch is on its way */
#define IDLE_PAGES 32u   /* an epoch with no more is nearly empty ... */
#define IDLE_EPOCHS 4u   /* ... and a guest idle that had so many in a row */
#define STAY_FACTOR 2u   /* it stays idle at up to that many times as many for the same time: hysteresis */
#define REST_PAGES 1024u /* but never with more: a pause of about a ms */
#define EARLY_LOOKS 8u   /* looks at the dirty pages in one epoch */
#define UNIT_PAGES 256u  /* an epoch with fewer does not tell what a page costs */
#define PPM UINT64_C(1000000)
#define LONGEST_NS                                                                                                     \
	(UINT64_C(7200) *                                                                                              \
	 1000000000) /* nothing that is measured counts for more: the products below fit into 64 bits */

const char *controller_reason_name(enum controller_reason r)
{
	static const char *const names[CONTROLLER_REASON_COUNT] = {
		[CONTROLLER_FIXED] = "fixed",        [CONTROLLER_START] = "start", [CONTROLLER_SLOWDOWN] = "slowdown",
		[CONTROLLER_DELAY] = "output-delay", [CONTROLLER_LINK] = "link",   [CONTROLLER_APPLY] = "apply",
		[CONTROLLER_IDLE] = "idle",          [CONTROLLER_MIN] = "min",     [CONTROLLER_MAX] = "max",
	};

	return r < CONTROLLER_REASON_COUNT ? names[r] : "?";
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t within(uint64_t v, const struct controller_goal *goal)
{
	return most(least(v, goal->max_ns), goal->min_ns);
}

/* @a * @b / @c, at most UINT64_MAX. */
static uint64_t scaled(uint64_t a, uint64_t b, uint64_t c)
{
	unsigned __int128 v = (unsigned __int128)a * b / (c ? c : 1);

	return v > UINT64_MAX ? UINT64_MAX : (uint64_t)v;
}

/* A rise is believed sooner than a fall: a target is missed by the one only. */
static void average(uint64_t *avg, uint64_t v)
{
	if (!*avg)
		*avg = v;
	else if (v > *avg)
		*avg += (v - *avg) / 2;
	else
		*avg -= (*avg - v) / 4;
}

void controller_init(struct controller *c)
{
	memset(c, 0, sizeof(*c));
}

/* ---- what was measured ---- */

/* How many pages an idle guest may dirty in an epoch of that length. */
static uint64_t rest_pages(const struct controller *c, uint64_t length_ns)
{
	return least(scaled(STAY_FACTOR * IDLE_PAGES, most(length_ns, c->target_ns), c->target_ns), REST_PAGES);
}

static bool is_idle(const struct controller *c, const struct controller_epoch *e)
{
	return !e->output && e->pages <= (c->stretched_ns ? rest_pages(c, e->length_ns) : IDLE_PAGES);
}

static void learn(struct controller *c, const struct controller_epoch *e)
{
	uint64_t rest = e->pause_ns + e->link_ns;

	average(&c->pause_ns, e->pause_ns);
	if (e->link_ns)
		average(&c->link_ns, e->link_ns);
	if (e->apply_ns)
		average(&c->apply_ns, e->apply_ns);
	if (!e->early)
		average(&c->rest_ppm, most(scaled(rest, PPM, e->length_ns), 1));
	if (e->pages >= UNIT_PAGES && e->link_pages >= UNIT_PAGES)
		average(&c->page_ps, most(least(scaled(e->pause_ns, 1000, e->pages), LONGEST_NS) +
						  least(scaled(e->link_ns, 1000, e->link_pages), LONGEST_NS),
					  1));
}

/* ---- what is wanted ---- */

static uint64_t aim_ns(const struct controller_goal *goal)
{
	return goal->delay_ns * AIM_PERCENT / 100;
}

static uint64_t for_slowdown(const struct controller *c, const struct controller_goal *goal)
{
	return scaled(c->pause_ns, 1000 * 100, (uint64_t)goal->slowdown_permille * AIM_PERCENT);
}

/* Output waits for the end of its epoch, unless it ends it; then for pause and way. */
static uint64_t for_delay(const struct controller *c, const struct controller_goal *goal)
{
	uint64_t aim = aim_ns(goal), whole = scaled(aim, PPM, PPM + c->rest_ppm);

	if (!goal->output_cuts || whole <= goal->output_wait_ns || goal->output_wait_ns >= aim)
		return whole;
	return scaled(aim - goal->output_wait_ns, PPM, c->rest_ppm);
}

/* The next target: at most twice or half of the present one, and the present one if the difference is not worth it. */
static uint64_t approach(uint64_t now, uint64_t want, const struct controller_goal *goal)
{
	want = within(want, goal);
	if (want != goal->min_ns && want != goal->max_ns && want + now / 16 >= now && want <= now + now / 16)
		return within(now, goal);
	want = most(least(want, 2 * now), now / 2);
	return within(want, goal);
}

static uint64_t wanted(const struct controller *c, const struct controller_goal *goal)
{
	return goal->mode == FT_INTERVAL_SLOWDOWN ? for_slowdown(c, goal) : for_delay(c, goal);
}

/* With what is learned from the whole way: longer than the target allows, if the epochs would queue up else. */
static uint64_t floor_ns(const struct controller *c, enum controller_reason *why)
{
	uint64_t way = scaled(c->link_ns, WAY_PERCENT, 100), apply = scaled(c->apply_ns, WAY_PERCENT, 100);

	*why = apply > way ? CONTROLLER_APPLY : CONTROLLER_LINK;
	return most(way, apply);
}

/* An idle guest may have a longer interval only where its first word would not wait for the end of it. */
static bool may_stretch(const struct controller_goal *goal)
{
	return goal->mode == FT_INTERVAL_SLOWDOWN || goal->output_cuts;
}

static void follow_idle(struct controller *c, const struct controller_goal *goal, const struct controller_epoch *e)
{
	if (!is_idle(c, e)) {
		c->idle = 0;
		c->stretched_ns = 0;
		return;
	}
	if (c->idle < IDLE_EPOCHS)
		c->idle++;
	/* not so far that the guest would wake up for no other reason */
	if (c->idle == IDLE_EPOCHS && may_stretch(goal) && (!c->stretched_ns || e->pages <= REST_PAGES / 4))
		c->stretched_ns = least(2 * most(c->stretched_ns, c->target_ns), goal->max_ns);
}

/* ---- the plan ---- */

/* Where pages are what output waits for, they are looked at a few times in the time that it may wait. */
static uint64_t look_ns(const struct controller *c, const struct controller_goal *goal, bool idle)
{
	uint64_t look = idle ? c->target_ns : c->target_ns / EARLY_LOOKS;

	return goal->mode == FT_INTERVAL_OUTPUT_DELAY ? least(look, aim_ns(goal) / EARLY_LOOKS) : look;
}

static uint64_t watermark(const struct controller *c, const struct controller_goal *goal, uint64_t interval_ns)
{
	uint64_t aim = aim_ns(goal), waits = goal->output_cuts ? least(goal->output_wait_ns, interval_ns) : interval_ns;

	if (goal->mode != FT_INTERVAL_OUTPUT_DELAY || !c->page_ps)
		return CONTROLLER_NO_LIMIT;
	/* nothing is gained by ever smaller epochs where the target cannot be met */
	return most(scaled(aim > waits ? aim - waits : 0, 1000, c->page_ps), UNIT_PAGES);
}

static struct controller_plan fixed_plan(const struct controller_goal *goal)
{
	return (struct controller_plan){ .interval_ns = goal->fixed_ns,
					 .watermark_pages = CONTROLLER_NO_LIMIT,
					 .wake_pages = CONTROLLER_NO_LIMIT,
					 .look_ns = goal->fixed_ns / EARLY_LOOKS,
					 .reason = CONTROLLER_FIXED };
}

static enum controller_reason reason_of(const struct controller *c, const struct controller_goal *goal,
					uint64_t interval)
{
	uint64_t want;

	if (!c->pause_ns)
		return CONTROLLER_START;
	want = wanted(c, goal);
	if (interval == goal->min_ns && want < interval)
		return CONTROLLER_MIN;
	if (interval == goal->max_ns && want > interval)
		return CONTROLLER_MAX;
	return goal->mode == FT_INTERVAL_SLOWDOWN ? CONTROLLER_SLOWDOWN : CONTROLLER_DELAY;
}

static struct controller_plan adaptive_plan(const struct controller *c, const struct controller_goal *goal)
{
	enum controller_reason why;
	uint64_t floor = floor_ns(c, &why);
	struct controller_plan plan = {
		.interval_ns = c->target_ns,
		.wake_pages = CONTROLLER_NO_LIMIT,
		.look_ns = look_ns(c, goal, false),
		.reason = reason_of(c, goal, c->target_ns),
	};

	if (floor > plan.interval_ns) {
		plan.interval_ns = within(floor, goal);
		plan.reason = why;
	}
	if (c->stretched_ns > plan.interval_ns) {
		plan.interval_ns = c->stretched_ns;
		plan.wake_pages = rest_pages(c, plan.interval_ns);
		plan.look_ns = look_ns(c, goal, true);
		plan.reason = CONTROLLER_IDLE;
	}
	plan.watermark_pages = watermark(c, goal, plan.interval_ns);
	return plan;
}

struct controller_plan controller_plan(struct controller *c, const struct controller_goal *goal)
{
	if (goal->mode == FT_INTERVAL_FIXED) {
		controller_init(c);
		return fixed_plan(goal);
	}
	if (c->mode != goal->mode || !c->target_ns) {
		c->mode = goal->mode;
		c->target_ns = goal->fixed_ns;
		c->stretched_ns = 0;
		c->idle = 0;
	}
	c->target_ns = within(c->target_ns, goal);
	c->stretched_ns = may_stretch(goal) ? least(c->stretched_ns, goal->max_ns) : 0;
	return adaptive_plan(c, goal);
}

struct controller_plan controller_step(struct controller *c, const struct controller_goal *goal,
				       const struct controller_epoch *measured)
{
	struct controller_epoch e = *measured;

	controller_plan(c, goal);
	if (goal->mode == FT_INTERVAL_FIXED)
		return fixed_plan(goal);
	e.length_ns = most(least(e.length_ns, LONGEST_NS), 1);
	e.pause_ns = most(least(e.pause_ns, LONGEST_NS), 1);
	e.link_ns = least(e.link_ns, LONGEST_NS);
	e.apply_ns = least(e.apply_ns, LONGEST_NS);
	follow_idle(c, goal, &e);
	if (!c->idle) { /* an empty epoch says nothing of those to come: what was right before the rest is so behind it */
		learn(c, &e);
		if (!e.early)
			c->target_ns = approach(c->target_ns, wanted(c, goal), goal);
	}
	return adaptive_plan(c, goal);
}
