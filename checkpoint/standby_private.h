/* SPDX-License-Identifier: MIT */
/* standby_private.h - what standby.c (records, commit) and apply.c (apply, making room) share.  Private.
 *
 * Several epochs may be in here at a time, each in a box of its own (struct incoming): applied + 1 .. applied + window.  An epoch is received
 * (records told, pages in the image or the ring, its device state filled), then its commit is pending until every lane has come as far as the commit
 * says, then it is whole, then committed, then applied, which empties its box.  Committed they are one after the other. */
#ifndef FT_STANDBY_PRIVATE_H
#define FT_STANDBY_PRIVATE_H

#include "copy.h"
#include "ring.h"
#include "standby.h"

struct device {
	uint8_t *memory;                 /* state_max octets */
	uint64_t len_bytes, total_bytes; /* that came, that were announced */
	uint64_t peak_bytes;
};

/* What has come of an epoch. */
struct incoming {
	uint64_t epoch; /* 0: the box is empty */
	struct received *received;
	uint64_t nr_data, nr_zero; /* pages told, repeats counted */
	uint64_t digest;           /* sum of the records' */
	struct device *device;
	uint32_t lanes;		    /* bits: a record came on it; the numbers of its first and last: */
	uint32_t first[FTW_LANES_MAX + 1], last[FTW_LANES_MAX + 1];
	uint64_t side_bytes; /* of the side stream that came; its octets are not kept */
	bool commit_pending, whole;
	struct commit commit;
	bool in_ring;		   /* a page was told in the ring: */
	uint64_t ring_begin, ring_end; /* its first position, and behind its last */
};

/* What page-checks said of the pages that the next record of its lane tells. */
struct checks {
	uint64_t epoch;
	uint32_t nr; /* 0: nothing */
	uint32_t check[FTW_NOTIFY_PAGES_MAX];
};

struct standby {
	/* set by create, then constant */
	const struct region_table *regions;
	uint64_t state_max;
	uint8_t *image;
	uint64_t image_bytes;
	uint8_t *states;   /* memory of all devices */
	struct pool *pool; /* of the states and the ring */
	struct pool *image_pool;
	uint32_t nr_boxes;
	struct copier *copier;	  /* standby_apply_run()'s */
	struct copier alone;	  /* the same, if the owner has none */
	struct bitmap *under_way; /* standby_apply_run()'s; NULL: alone.  Pages that the copier was told of since it was waited for, see keep_order() */

	/* of the connection */
	uint32_t lanes;
	bool slab;
	uint32_t window;                 /* epochs that may be under way beyond the last applied one */
	uint32_t seq[FTW_LANES_MAX + 1]; /* last record of each lane */
	uint32_t ended[FTW_LANES_MAX + 1]; /* what the last commit says of each lane */
	uint64_t lane_end[FTW_LANES_MAX + 1]; /* behind the last position told on it */
	struct checks checks[FTW_LANES_MAX + 1];
	bool broken;                     /* a record was refused */

	/* epochs; see the head comment */
	uint64_t committed, applied; /* since the last restart */
	bool is_whole;	      /* the first epoch after the last restart is the whole machine */
	uint64_t image_epoch; /* of the image and state we hold, maybe from before the last restart; 0: none */
	struct incoming box[FTW_EPOCH_CREDITS_MAX];
	struct device device[FTW_EPOCH_CREDITS_MAX + 1];
	struct device *kept;   /* the applied epoch's */
	uint32_t lane;         /* of the record in hand */
	struct side_data side; /* of the last record, see standby_side() */
	bool applying;
	struct ring ring;
	bool making_room; /* more than half of it was used, and more than 3/8 is */

	uint64_t duplicates;
	/* Pages of the image.  mirror: that were ever told.  slab: of the oldest epoch, that were moved there from the ring (later ones have none). */
	struct bitmap *landed;
	uint64_t nr_landed;
};

static inline struct incoming *standby_box(struct standby *s, uint64_t epoch)
{
	return &s->box[epoch % s->nr_boxes];
}

static inline bool standby_pending(const struct standby *s)
{
	return s->committed != s->applied;
}

/* standby_empty - the box holds nothing.  standby_trim - the image holds nothing, and takes no memory. */
void standby_empty(struct incoming *in);
void standby_trim(struct standby *s);
void standby_check(struct standby *s);

#endif
