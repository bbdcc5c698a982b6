/* SPDX-License-Identifier: MIT */
/* ahead.c - pages of an epoch that are sent while it runs, so that the pause has fewer to copy.  ft-epoch's, guest running.
 *
 * A few times in an epoch ("send-ahead") the dirty pages are fetched and cleared, as in a round of the full sync, copied and sent as pages of
 * that epoch.  One that is written again is dirty again, and goes once more in the pause: the secondary takes the later.  If that happens to it in two
 * epochs in a row it is *hot*, and not sent ahead for some epochs, as that would only cost.
 *
 * Must hold
 *   - a page leaves the dirty set only when it is in a slab on its way: what finds no slab, or is hot, stays for the pause;
 *   - half of the slabs are left for the pause. */
#include "primary.h"

#include <errno.h>

#include "err.h"

/* Then all are tried again.  Hot pages cost two copies too many in so many epochs; where a fifth of all writes go to pages that were written
 * before, in no order, no more than about a twelfth of them are taken for hot (bench_ahead). */
#define HOT_EPOCHS 8u

static void destroy(struct ahead *a)
{
	bitmap_destroy(a->sent);
	bitmap_destroy(a->missed);
	bitmap_destroy(a->missed_before);
	bitmap_destroy(a->hot);
	bitmap_destroy(a->now);
	*a = (struct ahead){ 0 };
}

void ahead_destroy(struct primary *p)
{
	destroy(&p->ahead);
}

int ahead_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	uint64_t n = p->regions->nr_pages;
	struct ahead *a = &p->ahead;

	destroy(a);
	p->one_lane = cfg->send_ahead != 0; /* before ft-ship is there */
	if (!cfg->send_ahead)
		return 0;
	if (bitmap_create(&a->sent, n) || bitmap_create(&a->missed, n) || bitmap_create(&a->missed_before, n) ||
	    bitmap_create(&a->hot, n) || bitmap_create(&a->now, n))
		return err_set(err, -ENOMEM, "no memory for the pages that are sent ahead");
	a->times = cfg->send_ahead;
	return 0;
}

/* What is dirty and not hot. */
static void choose(struct primary *p)
{
	struct ahead *a = &p->ahead;
	struct page_run run = { 0 };

	bitmap_clear(a->now);
	bitmap_or(a->now, p->dirty);
	while (bitmap_next_run(a->hot, run.first + run.nr, UINT64_MAX, &run))
		bitmap_clear_run(a->now, run.first, run.nr);
}

static void note_sent(struct primary *p, const struct slab *slab)
{
	for (uint32_t i = 0; i < slab->nr; i++) {
		bitmap_clear_run(p->dirty, slab->page[i], 1);
		bitmap_set(p->ahead.sent, slab->page[i]);
	}
	stats_count(&p->s->stats, FT_COUNTER_AHEAD_PAGES, slab->nr);
}

static void send_chosen(struct primary *p)
{
	uint64_t at = 0;

	p->round++;
	while ((uint32_t)queue_length(&p->free_slabs) > p->nr_slabs / 2) {
		struct work *w = (struct work *)queue_get(&p->free_slabs, 0);

		if (!w)
			return;
		w->slab->epoch = p->next_epoch;
		w->slab->round = p->round;
		if (capture_fill(w->slab, p->regions, p->ahead.now, &at) == 0) {
			queue_put(&p->free_slabs, &w->node);
			return;
		}
		note_sent(p, w->slab);
		queue_put(&p->to_ship, &w->node);
	}
}

int ahead_send(struct primary *p)
{
	struct ft_dirty dirty = { .regions = p->regions, .set = p->dirty };
	struct ft_error err = { 0 };
	int r = p->s->ops.collect_dirty(p->s->user, &dirty, &err);

	p->ahead.done++;
	if (r) {
		err_prefix(&err, "collect");
		primary_lose(p, FTW_CODE_UNUSABLE, &err);
		return r;
	}
	choose(p);
	if (!bitmap_empty(p->ahead.now))
		send_chosen(p);
	return 0;
}

void ahead_learn(struct primary *p, const struct slab *slab)
{
	struct ahead *a = &p->ahead;
	uint64_t again = 0;

	for (uint32_t i = 0; a->times && i < slab->nr; i++) {
		if (!bitmap_test(a->sent, slab->page[i]))
			continue;
		again++;
		bitmap_set(a->missed, slab->page[i]);
		if (bitmap_test(a->missed_before, slab->page[i]))
			bitmap_set(a->hot, slab->page[i]);
	}
	stats_count(&p->s->stats, FT_COUNTER_AHEAD_AGAIN, again);
}

void ahead_epoch_over(struct primary *p)
{
	struct ahead *a = &p->ahead;
	struct bitmap *before = a->missed_before;

	if (!a->times)
		return;
	a->done = 0;
	a->missed_before = a->missed;
	a->missed = before;
	bitmap_clear(a->missed);
	bitmap_clear(a->sent);
	if (++a->epochs % HOT_EPOCHS == 0)
		bitmap_clear(a->hot);
}
