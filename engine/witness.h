/* SPDX-License-Identifier: MIT */
/* witness.h - who of two sides may run, kept where both can ask: one interface, several stores.  docs/decisions/021 is the plan, 022 what there is.
 *
 * A store keeps one record: who holds the lease, a generation that rises whenever somebody takes it or goes on alone, and a counter that rises with every
 * change.  A question is asked and, if the answer is yes, the record changed, in one step: no other question comes between.
 *
 * Must hold
 *   - nobody's clock is compared with another's: who wants to take a lease that somebody holds has seen the counter stand still for the holder's lease
 *     and the drift bound, by its own clock, counted from after it read the counter for the first time;
 *   - an answer comes until the deadline.  "Not known" is an answer: what was asked may have happened, and may happen still;
 *   - what is not a record is never written over.
 *
 * One question at a time for each struct witness: who asks sees to it (lease.c).  Any thread. */
#ifndef FT_WITNESS_H
#define FT_WITNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/error.h>

#define WITNESS_NAME_MAX 64u /* longest name of a holder, with its terminator */

enum witness_answer {
	WITNESS_YES = 0,
	WITNESS_NO,	 /* the store was asked, and it is not so: the error says why, the view who holds it */
	WITNESS_UNKNOWN, /* the store could not be asked in time, or what is there is not a record */
};

struct witness_record {
	char holder[WITNESS_NAME_MAX]; /* "": nobody, or it was given back */
	uint64_t generation;
	uint64_t counter;
	uint32_t lease_ms; /* the holder's */
};

enum witness_what {
	WITNESS_LOOK = 0,
	WITNESS_TAKE,	   /* -ESTALE: another generation than was expected; -EBUSY: held, and the holder was heard of lately */
	WITNESS_RENEW,	   /* the lease is ours still (else -EOWNERDEAD), and heard of */
	WITNESS_RAISE,	   /* likewise, and of the next generation from now on */
	WITNESS_GIVE_BACK, /* nobody's from now on; -EOWNERDEAD: it was not ours */
};

struct witness_question {
	enum witness_what what;
	uint64_t generation; /* WITNESS_TAKE: what is expected; 0: any */
};

/* What the store has, after the answer. */
struct witness_view {
	struct witness_record record;
	uint64_t silent_ns; /* for how long the counter was seen to stand still */
};

struct witness;

struct witness_ops {
	/* ask - @view is filled but for WITNESS_UNKNOWN; @err is, but for WITNESS_YES. */
	enum witness_answer (*ask)(struct witness *w, const struct witness_question *q, uint64_t deadline, struct witness_view *view,
				   struct ft_error *err);
	void (*close)(struct witness *w);
};

struct witness_self {
	char name[WITNESS_NAME_MAX]; /* of nobody else, ever */
	uint32_t lease_ms, drift_ms;
};

/* What every store begins with. */
struct witness {
	const struct witness_ops *ops;
	struct witness_self self;
	/* of who judges */
	struct witness_record seen; /* last */
	uint64_t seen_ns;	    /* when its counter was seen first, by boot_now_ns(); 0: never */
};

/* witness_check - is @text "none" or a store that there is?  -EINVAL. */
int witness_check(const char *text, struct ft_error *err);
/* witness_is_none - nobody is asked. */
bool witness_is_none(const char *text);
/* witness_open - of a @text that was checked and is not none.  The store itself is not asked yet, but the file must be there or be made. */
int witness_open(struct witness **out, const char *text, const struct witness_self *self, struct ft_error *err);
void witness_close(struct witness *w); /* gives nothing back; NULL is harmless */

static inline enum witness_answer witness_ask(struct witness *w, const struct witness_question *q, uint64_t deadline, struct witness_view *view,
					      struct ft_error *err)
{
	return w->ops->ask(w, q, deadline, view, err);
}

/* -- for stores -- */

/* witness_judge - the answer to @q where @record is what the store has now, read since it was asked; nobody may change it meanwhile.  With
 * WITNESS_YES to another question than WITNESS_LOOK @record is what is to be written.  @view gets what holds then. */
enum witness_answer witness_judge(struct witness *w, const struct witness_question *q, struct witness_record *record, struct witness_view *view,
				  struct ft_error *err);
/* witness_wait_ns - how long the holder of @record must be silent before another may take it. */
uint64_t witness_wait_ns(const struct witness_self *self, const struct witness_record *record);

int witness_file_open(struct witness **out, const char *path, const struct witness_self *self, struct ft_error *err);

#endif
