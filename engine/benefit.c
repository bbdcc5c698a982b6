/* SPDX-License-Identifier: MIT */
/* benefit.c - see benefit.h.  Pure; the caller's thread.
 *
 *   sample --share that is the same x cost of a page > 2 looks--> all pages --< 1 look--> sample
 *
 * The sample is looked at in both states, so what it says does not depend on the state, nor on how long that lasts.
 *
 * Must hold: no flapping: what turns it on is twice what keeps it on, and some thousand pages of the sample say so. */
#include "benefit.h"

#include <string.h>

#define LOOKED_MIN 256u  /* pages of the sample before anything is decided */
#define LOOKED_MAX 4096u /* then both counts are halved */
#define LINK_PAGES 256u  /* an epoch that sent fewer tells of the round trip, not of what a page costs */
#define ON_FACTOR 2u
#define SPIKE_FACTOR 2u /* times the average: what one epoch may count for, as the link may have stood meanwhile */
#define MOST UINT64_C(1000000000000)

void benefit_init(struct benefit *b, uint64_t look_ps)
{
	memset(b, 0, sizeof(*b));
	b->look_ps = look_ps;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void learn_link(struct benefit *b, const struct benefit_epoch *e)
{
	uint64_t ps;

	if (e->link_pages < LINK_PAGES)
		return;
	ps = least(e->link_ns, MOST) * 1000 / e->link_pages;
	if (b->page_ps)
		ps = b->page_ps - b->page_ps / 4 + least(ps, b->page_ps * SPIKE_FACTOR) / 4;
	b->page_ps = ps ? ps : 1;
}

static void learn_sample(struct benefit *b, const struct benefit_epoch *e)
{
	b->looked += least(e->looked, MOST);
	b->found += least(least(e->found, e->looked), MOST);
	while (b->looked >= LOOKED_MAX) {
		b->looked /= 2;
		b->found /= 2;
	}
}

bool benefit_step(struct benefit *b, const struct benefit_epoch *e)
{
	learn_link(b, e);
	learn_sample(b, e);
	if (b->looked < LOOKED_MIN || !b->page_ps)
		return b->on;
	b->on = b->found * b->page_ps >= b->looked * b->look_ps * (b->on ? 1 : ON_FACTOR);
	return b->on;
}
