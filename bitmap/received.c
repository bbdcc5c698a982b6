/* SPDX-License-Identifier: MIT */
/* received.c - see received.h.  Two disjoint bitmaps, what came as data and what came as zero, and their counts.
 * Owns both.  Receive thread only. */
#include "received.h"

#include <errno.h>
#include <stdlib.h>

#include "faultpoint.h"
struct received {
	uint64_t epoch;
	struct bitmap *data, *zero;
	uint64_t nr_data, nr_zero; /* bits in each */
	uint64_t duplicates;
};

int received_create(struct received **out, uint64_t nr_pages)
{
	struct received *r = FT_FAULT("received/create") ? NULL : calloc(1, sizeof(*r));
	int ret;

	*out = NULL;
	if (!r)
		return -ENOMEM;
	ret = bitmap_create(&r->data, nr_pages);
	if (ret == 0)
		ret = bitmap_create(&r->zero, nr_pages);
	if (ret) {
		received_destroy(r);
		return ret;
	}
	*out = r;
	return 0;
}

void received_destroy(struct received *r)
{
	if (!r)
		return;
	bitmap_destroy(r->data);
	bitmap_destroy(r->zero);
	free(r);
}

int received_begin(struct received *r, uint64_t epoch)
{
	if (epoch <= r->epoch)
		return -ESTALE;
	bitmap_clear(r->data);
	bitmap_clear(r->zero);
	r->nr_data = r->nr_zero = r->duplicates = 0;
	r->epoch = epoch;
	return 0;
}

/* All that can be wrong with a word of the peer, before anything is touched. */
static int check(const struct received *r, uint64_t epoch, uint64_t first, uint64_t nr)
{
	uint64_t pages = bitmap_pages(r->data);

	if (epoch > r->epoch)
		return -EILSEQ;
	if (epoch < r->epoch || epoch == 0)
		return -ESTALE;
	if (nr == 0 || first >= pages || nr > pages - first)
		return -ERANGE;
	return 0;
}

/* Take the pages of a range out of a set; returns how many there were.  Nearly always none. */
static uint64_t withdraw(struct bitmap *b, struct page_run range)
{
	uint64_t end = range.first + range.nr, n = 0;
	struct page_run run = { .first = range.first };

	while (bitmap_next_run(b, run.first + run.nr, range.nr, &run) && run.first < end)
		n += run.first + run.nr > end ? end - run.first : run.nr;
	if (n)
		bitmap_clear_run(b, range.first, range.nr);
	return n;
}

/* The pages go to @to and leave @from; each page that was in one of them before is a duplicate. */
static void note(struct received *r, struct bitmap *to, uint64_t *nr_to, struct bitmap *from, uint64_t *nr_from,
		 struct page_run run)
{
	uint64_t added = bitmap_set_run(to, run.first, run.nr);
	uint64_t moved = withdraw(from, run);

	*nr_to += added;
	*nr_from -= moved;
	r->duplicates += run.nr - added + moved;
}

int received_data(struct received *r, uint64_t epoch, uint64_t first, uint64_t nr)
{
	int ret = check(r, epoch, first, nr);

	if (ret == 0)
		note(r, r->data, &r->nr_data, r->zero, &r->nr_zero, (struct page_run){ first, nr });
	return ret;
}

int received_zero(struct received *r, uint64_t epoch, uint64_t first, uint64_t nr)
{
	int ret = check(r, epoch, first, nr);

	if (ret == 0)
		note(r, r->zero, &r->nr_zero, r->data, &r->nr_data, (struct page_run){ first, nr });
	return ret;
}

uint64_t received_epoch(const struct received *r)
{
	return r->epoch;
}

uint64_t received_nr_data(const struct received *r)
{
	return r->nr_data;
}

uint64_t received_nr_zero(const struct received *r)
{
	return r->nr_zero;
}

uint64_t received_duplicates(const struct received *r)
{
	return r->duplicates;
}

const struct bitmap *received_data_set(const struct received *r)
{
	return r->data;
}

const struct bitmap *received_zero_set(const struct received *r)
{
	return r->zero;
}

void received_reset(struct received *r)
{
	bitmap_clear(r->data);
	bitmap_clear(r->zero);
	r->nr_data = r->nr_zero = r->duplicates = r->epoch = 0;
}
