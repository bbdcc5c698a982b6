/* SPDX-License-Identifier: MIT */
/* delta.h - a page as the difference to another one (docs/protocol.md "notify-delta"), and the contents that the primary keeps to make it.
 *
 * A delta is a bit for each line of 64 octets, bit 0 the first, 8 octets in network order; then for each line whose bit is set a bit for each of its 16 words of 4
 * octets that differ, 2 octets in network order, never 0; and these words as they are now.
 * Real machines' pages differ in few places: that takes 14 to 20 % of the octets, and a quarter of the time of lz4 on the difference (docs/decisions/020).
 *
 * struct past is what the secondary will have of some pages, by content: must hold as in same.h, and by the same means.  One slot for each page number, by
 * which several share one; the last one has it.  One thread at a time; nothing is allocated after past_open(). */
#ifndef FT_DELTA_H
#define FT_DELTA_H

#include <stdbool.h>
#include <stdint.h>

#define DELTA_MIN 8u
#define DELTA_MAX (8u + 64u * 66u) /* where every word differs */
#define DELTA_WORTH 2048u	   /* a longer one is not: the page itself is sent */

/* delta_pack - what makes @old (a page) into @now, at @out, which has room for DELTA_MAX.  Returns its length; 0: it would be longer than @most. */
uint32_t delta_pack(uint8_t *out, const uint8_t *old, const uint8_t *now, uint32_t most);
/* delta_length - of the one that begins at @in, where there are @left octets; 0: there is none. */
uint32_t delta_length(const uint8_t *in, uint64_t left);
/* delta_unpack - make @page into what it is a delta to; @in is well-formed. */
void delta_unpack(uint8_t *page, const uint8_t *in);

struct past {
	uint64_t *number; /* of slots: page + 1, 0: none.  NULL: closed */
	uint8_t *memory;  /* their contents */
	uint64_t slots;
	bool all;	  /* there is one for each page */
	bool usable;	  /* deltas may be made */
};

/* past_open - of the @nr_pages of a page space, but at most @most, less than 2^32; made real as they are used, in huge pages where there are some.  -ENOMEM: it is closed. */
int past_open(struct past *p, uint64_t most, uint64_t nr_pages);
void past_close(struct past *p); /* also of one that is closed */
const uint8_t *past_of(const struct past *p, uint64_t number); /* NULL: not known */
void past_note(struct past *p, uint64_t number, const uint8_t *page); /* it is sent now.  NULL: sent, but not to be kept */

#endif
