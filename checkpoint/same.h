/* SPDX-License-Identifier: MIT */
/* same.h - by which the primary knows that the secondary has a page already: a digest of 16 octets for each page, of what was last sent in it.
 *
 * Must hold: an entry is that of the last page that was told in this connection, or there is none.  So it is looked at, and set, in the order in which
 * pages are sent, all of what is not the same is sent, and the end of a connection is the end of the table (docs/decisions/019).
 * A secret of the table's own goes into the digests: who writes the guest's pages does not know which of them would be taken for another.
 *
 * Looking costs a digest for each page, so it may be done for a sample only, a thirty-second of the pages, scattered: that tells what looking at all would bring.
 * One thread at a time.  Memory is made real as pages are looked at; nothing is allocated after same_open(). */
#ifndef FT_SAME_H
#define FT_SAME_H

#include <stdbool.h>
#include <stdint.h>
#include "digest.h"

#define SAME_AHEAD 8u /* how many pages before it is looked at an entry is fetched into the cache */

struct same {
	struct digest128 *page; /* by number; all 0: none.  NULL: the table is closed */
	uint64_t nr_pages;
	struct digest128 zero;  /* of a page of zeros */
	uint8_t secret[DIGEST_SECRET_BYTES];
	bool all;		/* else the sample */
	uint64_t looked, found; /* of the sample, without pages of zeros: looked at, and the same */
};

/* same_open - for pages [0, @nr_pages); the sample is looked at.  -ENOMEM, -EIO (no random number); the table is closed then. */
int same_open(struct same *s, uint64_t nr_pages);
void same_close(struct same *s); /* also of one that is closed */

/* same_look_at - @all pages, or the sample: then all that is known is forgotten. */
void same_look_at(struct same *s, bool all);

/* same_is - does the secondary have page @number as it is in @page (@zero: of zeros)?  If not, it must be sent now. */
bool same_is(struct same *s, uint64_t number, const uint8_t *page, bool zero);

static inline void same_prefetch(const struct same *s, uint64_t number)
{
	__builtin_prefetch(&s->page[number], 1);
}

/* same_cost_ps - what a look takes on this machine, in ps, by digests of @pages pages at @memory. */
uint64_t same_cost_ps(const struct same *s, const uint8_t *memory, uint32_t pages);

#endif
