/* SPDX-License-Identifier: MIT */
/* lease.h - the lease of one side: kept up by ft-lease, looked at in front of everything that only its holder may do.
 *
 * A renewal is good until the time at which it was *asked for* + the lease's time - the drift bound, by this host's clock that does not stand still while
 * the host sleeps.  A machine that was stopped finds its lease over by that clock before it does anything else.
 *
 *     asked, granted                                        held until             over, if no answer came
 *          |--- a third ---|--- a third ---|--- a third - drift -|--------- lease ---------|
 *          |       asked again     asked again                   |         late            |
 *
 * late: it may be somebody else's, or ours still: the witness knows.  over: the witness could not be asked for so long that nobody waits for it any more.
 * lost: the witness says that it is somebody else's.
 *
 * Must hold
 *   - lease_held() takes no lock and waits for nobody;
 *   - it is true only if at that moment nobody else can have taken the lease, as long as clocks differ by no more than the bound over a lease's time;
 *   - one question at a time is asked of the witness. */
#ifndef FT_LEASE_H
#define FT_LEASE_H

#include <ft/ft.h>
#include "witness.h"

struct lease;

enum lease_state {
	LEASE_NONE = 0, /* somebody else's, or nobody's: we look who has it */
	LEASE_HELD,
	LEASE_LATE,
	LEASE_OVER,
	LEASE_LOST,
};
const char *lease_state_name(enum lease_state state);

struct lease_options {
	const char *witness; /* as witness_check() takes it, not none */
	struct witness_self self;
	/* [ft-lease] A renewal was granted.  -- The lease is over, or lost: told once, and granted() may still follow if it was only over.  Both may look at
	 * the lease, and ask nothing; either may be NULL. */
	void (*granted)(void *user, uint64_t generation);
	void (*ended)(void *user, const struct ft_error *why);
	void *user;
};

/* lease_open - begins to look who has it. */
int lease_open(struct lease **out, const struct lease_options *opt, struct ft_error *err);
/* lease_close - gives back what is held.  NULL is harmless. */
void lease_close(struct lease *l);

/* lease_take - from now on it is ours, and kept up.  Waits, for the lease's time and the drift bound at most, until a holder was silent for so long; one that
 * is heard of meanwhile ends the wait.  @generation: what the witness must have, 0: any.  *@now: what it has since then.
 * WITNESS_NO: -EBUSY somebody lives, -ESTALE another generation. */
enum witness_answer lease_take(struct lease *l, uint64_t generation, uint64_t *now, struct ft_error *err);
/* lease_raise - it is ours still, and of another generation from now on, which *@now gets. */
enum witness_answer lease_raise(struct lease *l, uint64_t *now, struct ft_error *err);
/* lease_give_back - it is not ours any more, and another may take it at once if the witness can be told. */
void lease_give_back(struct lease *l);

bool lease_held(const struct lease *l);
enum lease_state lease_state(const struct lease *l);
/* lease_why - it is over, or lost, for this reason. */
void lease_why(struct lease *l, struct ft_error *why);

struct lease_status {
	enum lease_state state;
	uint64_t left_ns; /* until it is late */
	struct witness_view view; /* as of the last answer */
	char trouble[FT_ERROR_MAX]; /* why the last question had no answer; "": it had */
};
void lease_status(struct lease *l, struct lease_status *out);

/* lease_until - when a renewal that was granted is late: of when it was asked for. */
static inline uint64_t lease_until(const struct witness_self *self, uint64_t asked_ns)
{
	return asked_ns + (self->lease_ms - self->drift_ms) * UINT64_C(1000000);
}

#endif
