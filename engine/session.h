/* SPDX-License-Identifier: MIT */
/* session.h - what the files of the engine share about one session.  Private.
 *
 * Locks, outermost first (docs/locking.md): control > event_lock > lock.  Neither is held while a VMM callback but on_event runs,
 * nor while waiting for the network. */
#ifndef FT_SESSION_H
#define FT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <ft/ft.h>
#include "recording.h"
#include "region.h"
#include "state.h"
#include "stats.h"
#include "written.h"

struct primary;
struct secondary;

struct ft_session {
	/* set before start, then constant */
	enum ft_role role;
	struct ft_vmm_ops ops;
	void *user;
	char *name, *peer_uri, *listen_uri, *identity, *record_path, *state_path, *tls_dir, *tls_psk_user, *tls_peer, *witness;
	struct recording *recording; /* NULL: none */
	int stop_fd;		     /* eventfd: readable once the session is to end */
	struct lease *lease;	     /* made by the start, under lock; NULL: there is no witness */

	struct region_table *regions; /* RCU: readers rcu_dereference, writers hold lock and then synchronize_rcu */

	pthread_mutex_t event_lock; /* one state change with its callback at a time */
	pthread_mutex_t lock;
	pthread_cond_t cond; /* with lock: anything below, and the progress of primary and secondary, has changed */
	/* guarded by lock */
	struct ft_config cfg; /* its strings point to the copies above */
	enum ft_state state;
	uint64_t state_since_ns;
	char reason[FT_ERROR_MAX];
	char peer[128];
	uint64_t generation;
	bool starting, started, stopping, stopped;
	bool image_stale; /* secondary: ACT_MARK_STALE */
	struct written written;

	/* written by one thread each, read by any (relaxed: figures for status) */
	_Atomic uint64_t epoch_running, epoch_sent, epoch_acked, epoch_applied;
	_Atomic uint32_t sync_round;
	_Atomic uint64_t sync_done, sync_total;
	atomic_bool guest_paused;
	atomic_bool write_hooked; /* the VMM has been told to call ft_session_write_begin() */
	struct stats stats;

	struct primary *primary; /* by role */
	struct secondary *secondary;
};

/* session_event - the one place where the state is set: looks up the change, logs it, publishes it, tells on_event.
 * Returns the actions the caller has to do; -1 if the event has no place in the present state.  @reason: a sentence, or NULL for none. */
int session_event(struct ft_session *s, enum state_event event, const char *reason);
/* session_event_from - the same, but only if the state still is @from; -1 otherwise. */
int session_event_from(struct ft_session *s, enum ft_state from, enum state_event event, const char *reason);
enum ft_state session_state(struct ft_session *s);
void session_reason(struct ft_session *s, const char *reason); /* same state, newer reason */
bool session_stopping(struct ft_session *s);
void session_config(struct ft_session *s, struct ft_config *out); /* the live settings as of now */
void session_tell(struct ft_session *s, enum ft_event_type type, uint64_t epoch);

/* session_sleep - until @deadline or the session is to stop or *@wake (guarded by lock; may be NULL) becomes true. */
void session_sleep(struct ft_session *s, uint64_t deadline, const bool *wake);

struct ft_dirty {
	const struct region_table *regions;
	struct bitmap *set;
};

struct ft_state_sink {
	uint8_t *buf; /* cap octets reserved, made real as they are used */
	size_t len, cap;
};

/* session_lease.c */
struct lease_options;
/* session_lease_open - s->lease, if there is a witness; @opt has the callbacks. */
int session_lease_open(struct ft_session *s, const struct lease_options *opt, struct ft_error *err);
void session_lease_status(struct ft_session *s, struct ft_status *out);
uint64_t session_generation(struct ft_session *s);
void session_set_generation(struct ft_session *s, uint64_t generation);

/* primary.c */
int primary_create(struct ft_session *s, struct ft_error *err);
int primary_claim(struct ft_session *s, unsigned flags, struct ft_error *err);
int primary_start(struct ft_session *s, struct ft_error *err);
int primary_acquire(struct ft_session *s, struct ft_error *err); /* the lease, if there is a witness; again: is it ours still? */
void primary_join(struct ft_session *s);
void primary_destroy(struct ft_session *s);
void primary_wake(struct ft_session *s);
void primary_memory(struct ft_session *s, uint64_t *used, uint64_t *cap);
void primary_link_status(struct ft_session *s, struct ft_status *out); /* of the connection, if there is one */
void primary_pace_status(struct ft_session *s, struct ft_status *out); /* the interval in use, and why */
void primary_capture_status(struct ft_session *s, struct ft_status *out); /* how the last epoch was captured */
void primary_skip_status(struct ft_session *s, struct ft_status *out); /* are pages looked at, whether the secondary has them */
void primary_regions_changed(struct ft_session *s); /* ends the connection; a new sync uses the new table */
void primary_wait_regions(struct ft_session *s);    /* until no thread uses an older table */

/* secondary.c */
int secondary_create(struct ft_session *s, struct ft_error *err);
int secondary_start(struct ft_session *s, struct ft_error *err);
void secondary_join(struct ft_session *s);
void secondary_destroy(struct ft_session *s);
void secondary_memory(struct ft_session *s, uint64_t *used, uint64_t *cap);
void secondary_link_status(struct ft_session *s, struct ft_status *out);
const char *secondary_address(struct ft_session *s);
int secondary_failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err);

#endif
