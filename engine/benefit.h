/* SPDX-License-Identifier: MIT */
/* benefit.h - "skip-same" auto: is it worth looking at each page whether the secondary has it as it is?  From how often a sample was the same, what a look
 * costs, and what a page costs on its way: a pure function and its small state.  No clock, no lock, no session: skip.c asks it after each epoch,
 * tests/unit/test_benefit.c with made-up guests.  docs/decisions/019-pages-that-are-the-same.md has the reasons. */
#ifndef FT_BENEFIT_H
#define FT_BENEFIT_H

#include <stdbool.h>
#include <stdint.h>

/* What an epoch has told. */
struct benefit_epoch {
	uint64_t looked, found;	      /* pages of the sample: looked at, and the same */
	uint64_t link_ns, link_pages; /* of the last epoch that was acknowledged: on its way, and how many pages were sent; 0: not known */
};

struct benefit {
	bool on;		/* all pages are to be looked at */
	uint64_t look_ps;	/* what a look costs */
	uint64_t page_ps;	/* moving average: what a page costs on its way; 0: not known */
	uint64_t looked, found; /* of the sample, older ones count less */
};

void benefit_init(struct benefit *b, uint64_t look_ps);
/* benefit_step - after an epoch: are all pages of the next to be looked at? */
bool benefit_step(struct benefit *b, const struct benefit_epoch *e);

#endif
