/* SPDX-License-Identifier: MIT */
/* skip.c - "skip-same", "delta": the tables of what the secondary has, as digests (same.h) and as contents (delta.h), for a connection, and whether all pages are
 * looked up in the first.  They are opened and closed by ft-epoch while there is no ft-ship, and ft-ship's in between: it looks while it makes a slab ready to be sent, outside of
 * the pause.
 *
 * Must hold: each connection has tables of its own.  What was told in the one before may never have arrived. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>

#include "err.h"

#define COST_PAGES                                                                                                     \
	16u /* to find out what a look costs: they fit into the cache, as the pages of a slab that is sent do */

static void look_at(struct primary *p, bool all)
{
	same_look_at(&p->same, all);
	atomic_store(&p->looking, all ? LOOK_AT_ALL : LOOK_AT_SAMPLE);
}

static int same_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	int r;

	p->skip_same = cfg->skip_same;
	if (cfg->skip_same == FT_SKIP_SAME_OFF)
		return 0;
	r = same_open(&p->same, p->regions->nr_pages);
	if (r)
		return err_set(err, r, "no %s to know pages again by (skip-same)",
			       r == -ENOMEM ? "memory" : "random number");
	benefit_init(&p->benefit, same_cost_ps(&p->same, p->staging, COST_PAGES));
	look_at(p, cfg->skip_same == FT_SKIP_SAME_ON);
	return 0;
}

int skip_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	skip_end(p);
	if (cfg->delta && past_open(&p->past, cfg->delta_cache_bytes / FT_PAGE_SIZE, p->regions->nr_pages))
		return err_set(err, -ENOMEM, "no memory for the contents of pages (delta-cache)");
	return same_begin(p, cfg, err);
}

void skip_end(struct primary *p)
{
	past_close(&p->past);
	same_close(&p->same);
	atomic_store(&p->looking, LOOK_AT_NONE);
}

struct same *skip_table(struct primary *p)
{
	return p->same.page ? &p->same : NULL;
}

/* In the first epoch there is nothing on the other side that a page could differ from. */
struct past *skip_past(struct primary *p, uint64_t epoch)
{
	p->past.usable = epoch > 1;
	return p->past.number ? &p->past : NULL;
}

/* The first epoch is the full copy, whose pages are all new, and whose way took as long as all of its rounds. */
static struct benefit_epoch measure(struct primary *p, uint64_t epoch)
{
	struct benefit_epoch e = { .looked = p->same.looked, .found = p->same.found };

	p->same.looked = p->same.found = 0;
	if (epoch == 1)
		return (struct benefit_epoch){ 0 };
	pthread_mutex_lock(&p->s->lock);
	e.link_ns = p->cost.link_ns;
	e.link_pages = p->acked > 1 ? p->cost.sent_pages : 0;
	pthread_mutex_unlock(&p->s->lock);
	return e;
}

void skip_after(struct primary *p, uint64_t epoch)
{
	struct benefit_epoch e;
	bool all;

	if (p->skip_same != FT_SKIP_SAME_AUTO)
		return;
	e = measure(p, epoch);
	all = benefit_step(&p->benefit, &e);
	if (all == p->same.all)
		return;
	look_at(p, all);
	stats_count(&p->s->stats, FT_COUNTER_SKIP_SWITCHES, 1);
}

void primary_skip_status(struct ft_session *s, struct ft_status *out)
{
	static const char *const words[] = {
		[LOOK_AT_NONE] = "off",
		[LOOK_AT_SAMPLE] = "sample",
		[LOOK_AT_ALL] = "on",
	};

	snprintf(out->skip_same, sizeof(out->skip_same), "%s", words[atomic_load(&s->primary->looking)]);
}
