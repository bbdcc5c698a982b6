/* SPDX-License-Identifier: MIT */
/* controller.h - how long the next epoch is to be, from what the last ones cost: a pure function and its small state.
 * No clock, no lock, no session: pace.c asks it after each epoch, tests/unit/test_controller.c with made-up guests.
 * docs/decisions/014-adaptive-interval.md has the reasons. */
#ifndef FT_CONTROLLER_H
#define FT_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/ft.h>

/* What is wanted; may be another one at each step. */
struct controller_goal {
	enum ft_interval_mode mode;
	uint64_t fixed_ns;	   /* setting "interval": of mode fixed, and where the others begin */
	uint64_t min_ns, max_ns;   /* bounds of the others */
	uint64_t delay_ns;	   /* output-delay: the longest that output should wait */
	uint32_t slowdown_permille; /* slowdown: the most of the guest's time that pauses should take */
	bool output_cuts;	   /* output that waits ends an epoch ... */
	uint64_t output_wait_ns;   /* ... after this at the latest */
};

/* What the last epoch cost. */
struct controller_epoch {
	uint64_t length_ns; /* pause to pause */
	uint64_t pause_ns;
	uint64_t pages;
	uint64_t link_ns;  /* first page sent to acknowledged, of the last epoch for which that is known; 0: of none */
	uint64_t link_pages; /* which it had; 0: not known */
	uint64_t apply_ns; /* and applied by the secondary; 0: not known */
	bool early;	   /* something else than the interval or the watermark has ended it */
	bool output;	   /* the guest sent something in it */
};

enum controller_reason {
	CONTROLLER_FIXED = 0, /* mode fixed */
	CONTROLLER_START,     /* nothing measured yet */
	CONTROLLER_SLOWDOWN,  /* what the target allows */
	CONTROLLER_DELAY,
	CONTROLLER_LINK,  /* as long as an epoch is on its way */
	CONTROLLER_APPLY, /* as long as the secondary applies one */
	CONTROLLER_IDLE,  /* the guest does next to nothing */
	CONTROLLER_MIN,	  /* a bound: the target asks for less */
	CONTROLLER_MAX,	  /* for more */
	CONTROLLER_REASON_COUNT
};
const char *controller_reason_name(enum controller_reason r); /* "fixed", "link" ...; "?" */

struct controller {
	enum ft_interval_mode mode; /* that the rest was measured for */
	uint64_t target_ns;	    /* what the target allows; 0: nothing measured yet */
	uint64_t stretched_ns;	    /* idle: the interval instead; 0: not idle */
	uint32_t idle;		    /* epochs of that kind in a row */
	uint64_t pause_ns;	    /* moving averages */
	uint64_t link_ns, apply_ns;
	uint64_t rest_ppm;	    /* pause and way of an epoch, for each million of its length */
	uint64_t page_ps;	    /* and for each of its pages, in ps */
};

#define CONTROLLER_NO_LIMIT UINT64_MAX

struct controller_plan {
	uint64_t interval_ns;	  /* pause to pause */
	uint64_t watermark_pages; /* that many dirty: the epoch ends now, or the next delay is too long */
	uint64_t wake_pages;	  /* that many dirty: the guest is idle no more */
	uint64_t look_ns;	  /* how often to look for one of the two */
	enum controller_reason reason;
};

void controller_init(struct controller *c);
/* controller_plan - without a new epoch: at the start, and when the goal has changed. */
struct controller_plan controller_plan(struct controller *c, const struct controller_goal *goal);
/* controller_step - after an epoch. */
struct controller_plan controller_step(struct controller *c, const struct controller_goal *goal, const struct controller_epoch *e);

#endif
