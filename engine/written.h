/* SPDX-License-Identifier: MIT */
/* written.h - what this side of the machine has written down in its state file (statefile.h), and what it may do by it.  Private.
 * docs/failover.md has the table, docs/decisions/023 the reasons.
 *
 * One writer at a time: who claims or starts the session; then ft-epoch of a primary, of a secondary ft-receive and, when that has ended, who promotes.
 * Readers: any thread, under the session's lock.  Without a state file nothing is read, written or refused. */
#ifndef FT_WRITTEN_H
#define FT_WRITTEN_H

#include "statefile.h"

struct ft_session;

struct written {
	const char *path;   /* NULL: there is no state file; set before start, then constant */
	bool claimed;	    /* guarded by lock, as what follows: ft_session_claim() was successful */
	struct statefile now; /* as it was read or written last */
	char error[FT_ERROR_MAX]; /* of the last write, "" if it did not fail */
};

/* written_begin_primary - may the guest run here, as far as the file knows?  *@ask: the other side is to be asked first. */
int written_begin_primary(struct ft_session *s, bool *ask, struct ft_error *err);
/* written_begin_secondary - may it be a secondary?  Gives up what was here, if "join" says so. */
int written_begin_secondary(struct ft_session *s, struct ft_error *err);

/* written_set - write it down; 0 also if there is no state file.  An error is logged, and in status until a write succeeds. */
int written_set(struct ft_session *s, enum statefile_word word, uint64_t generation, const uint8_t session[16], uint64_t epoch,
		struct ft_error *err);
/* written_note - the same where nothing depends on it: only if the file may say something else than @word of that generation and session. */
void written_note(struct ft_session *s, enum statefile_word word, uint64_t generation, const uint8_t session[16], uint64_t epoch);

void written_status(struct ft_session *s, struct ft_status *out); /* with the session's lock held */

#endif
