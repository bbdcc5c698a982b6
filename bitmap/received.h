/* SPDX-License-Identifier: MIT */
/* received.h - which pages of one epoch have arrived (docs/protocol.md "Notify-write").
 * One epoch at a time: pages of any other epoch are refused.  A page that is told twice counts once.
 * Owned by the receive thread; no locking. */
#ifndef FT_BITMAP_RECEIVED_H
#define FT_BITMAP_RECEIVED_H

#include "bitmap.h"

struct received;

int received_create(struct received **out, uint64_t nr_pages);
void received_destroy(struct received *r);

/* received_begin - start epoch @epoch with nothing received; it must be larger than the one before (-ESTALE). */
int received_begin(struct received *r, uint64_t epoch);
uint64_t received_epoch(const struct received *r); /* 0 before the first begin */
/* received_reset - as new: nothing received, any epoch may begin.  For a partial epoch that will come again. */
void received_reset(struct received *r);

/* received_data, received_zero - pages came as data, or as zero pages; the later word wins.
 * -ESTALE: of an epoch that is over; -EILSEQ: of one that has not begun; -ERANGE: outside. Nothing is set then. */
int received_data(struct received *r, uint64_t epoch, uint64_t first, uint64_t nr);
int received_zero(struct received *r, uint64_t epoch, uint64_t first, uint64_t nr);

/* Unique pages so far. */
uint64_t received_nr_data(const struct received *r);
uint64_t received_nr_zero(const struct received *r);
uint64_t received_duplicates(const struct received *r); /* pages told more than once in this epoch */

/* The two sets, disjoint; valid until the next begin. */
const struct bitmap *received_data_set(const struct received *r);
const struct bitmap *received_zero_set(const struct received *r);

#endif
