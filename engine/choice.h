/* SPDX-License-Identifier: MIT */
/* choice.h - "capture" auto: are pages copied in the pause, or behind the guest?  From what the last epochs cost the guest: a pure function and its
 * small state.  No clock, no lock, no session: behind.c asks it after each epoch, tests/unit/test_choice.c with made-up guests.
 * docs/decisions/017-capture-auto.md has the reasons. */
#ifndef FT_CHOICE_H
#define FT_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* What an epoch cost. */
struct choice_epoch {
	bool cow;	     /* copied behind the guest; else in the pause */
	uint64_t pages;
	uint64_t pause_ns;   /* of its pause: fetching the set of dirty pages, and copying or noting them */
	uint64_t writers_ns; /* cow: what the guest's writers paid for telling their writes, and for copying */
};

struct choice {
	bool cow;	     /* what is wanted */
	bool kept;	     /* it has won its trial */
	uint32_t epochs;     /* that counted since it is */
	uint32_t wait;	     /* epochs of copying in the pause until the other is tried */
	uint64_t pages;	     /* moving averages: of an epoch */
	uint64_t copy_ps, cow_ps; /* what a page costs, in ps; 0: not known */
	uint64_t refused_pages;	  /* as pages was when copy on write lost; 0: it never did */
};

void choice_init(struct choice *c);
/* choice_step - after an epoch: is the next to be copied behind the guest? */
bool choice_step(struct choice *c, const struct choice_epoch *e);

#endif
