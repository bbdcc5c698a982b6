/* SPDX-License-Identifier: MIT */
/* fake_session.h - what the control socket sees of a session, without one: a status, settings, and commands whose outcome
 * and duration the test sets.  Any thread.  A use after fake_retire() is counted: nobody may touch a session then. */
#ifndef FT_TESTS_FAKE_SESSION_H
#define FT_TESTS_FAKE_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <ft/ft.h>
#include "control.h"

struct fake_session {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* guarded by lock */
	struct ft_status status;
	struct ft_stats stats;
	struct ft_config cfg;
	enum ft_failover_outcome outcome;
	bool hold_checkpoint; /* ft_session_checkpoint() waits while it is set */
	unsigned in_checkpoint;
	bool is_paused, is_stopped, was_forced;
	atomic_bool retired;
	atomic_uint late_uses;
};

extern const struct control_ops fake_ops;

void fake_init(struct fake_session *f, enum ft_role role, enum ft_state state);
void fake_destroy(struct fake_session *f);
void fake_state(struct fake_session *f, enum ft_state state);
void fake_hold_checkpoint(struct fake_session *f, bool hold);
/* fake_await_checkpoint - until somebody waits in it; false after 10 s. */
bool fake_await_checkpoint(struct fake_session *f);
void fake_retire(struct fake_session *f);

static inline struct ft_session *fake_handle(struct fake_session *f)
{
	return (struct ft_session *)f;
}

#endif
