/* SPDX-License-Identifier: MIT */
/* choice.c - see choice.h.  Pure; the caller's thread.
 *
 *   copy --wait epochs--> cow, on trial --a fifth cheaper--> cow, kept --no cheaper than copy was--> copy
 *     ^---------------------- else: twice the wait ---------'
 *
 * What copy on write costs is only known by trying: it depends on how soon the guest writes its pages again, and how often.  What copying costs was
 * measured before.  A page's cost is compared, not an epoch's, as the number of pages goes up and down by itself.
 *
 * Must hold
 *   - no flapping: it takes more to be kept than to be left, and each lost trial doubles the wait for the next;
 *   - a guest that has become another is not judged by what it was: fourfold or a quarter of the pages, and the wait is short again. */
#include "choice.h"

#include <string.h>

#define UNIT_PAGES 64u /* an epoch with fewer does not tell what a page costs */
#define START_EPOCHS 8u
#define TRIAL_EPOCHS 8u
#define WAIT_MAX 4096u
#define KEEP_PERCENT 80u /* of copying's cost: what it may cost at most to be kept */
#define CHANGE_FACTOR 4u /* in pages: another guest */
#define SPIKE_FACTOR                                                                                                   \
	2u /* times the average: what one epoch may count for, as a thread may lose its processor in the middle of it */
#define MOST_NS UINT64_C(1000000000000)

void choice_init(struct choice *c)
{
	memset(c, 0, sizeof(*c));
	c->wait = START_EPOCHS;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Never 0 afterwards. */
static void average(uint64_t *avg, uint64_t v)
{
	if (*avg)
		v = *avg - *avg / 4 + least(v, *avg * SPIKE_FACTOR) / 4;
	*avg = v ? v : 1;
}

static uint64_t page_ps(const struct choice_epoch *e)
{
	return (least(e->pause_ns, MOST_NS) + least(e->writers_ns, MOST_NS)) * 1000 / e->pages;
}

static bool is_another(const struct choice *c)
{
	return c->refused_pages &&
	       (c->pages / CHANGE_FACTOR >= c->refused_pages || c->refused_pages / CHANGE_FACTOR >= c->pages);
}

static void turn(struct choice *c, bool cow)
{
	c->cow = cow;
	c->kept = false;
	c->epochs = 0;
}

static void step_copy(struct choice *c)
{
	if (is_another(c)) {
		c->refused_pages = 0;
		c->wait = START_EPOCHS;
	}
	if (c->epochs >= c->wait) {
		turn(c, true);
		c->cow_ps = 0;
	}
}

static void step_cow(struct choice *c)
{
	bool was_kept = c->kept;

	if (c->epochs < TRIAL_EPOCHS)
		return;
	c->kept = c->cow_ps <= (was_kept ? c->copy_ps : c->copy_ps * KEEP_PERCENT / 100);
	if (c->kept)
		return;
	c->wait = was_kept ? START_EPOCHS : (uint32_t)least(2 * c->wait, WAIT_MAX);
	c->refused_pages = c->pages;
	turn(c, false);
}

bool choice_step(struct choice *c, const struct choice_epoch *e)
{
	/* one that was begun before the last change tells of neither */
	if (e->cow != c->cow || e->pages < UNIT_PAGES)
		return c->cow;
	c->epochs++;
	average(&c->pages, least(e->pages, MOST_NS));
	average(e->cow ? &c->cow_ps : &c->copy_ps, page_ps(e));
	if (c->cow)
		step_cow(c);
	else
		step_copy(c);
	return c->cow;
}
