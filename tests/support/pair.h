/* SPDX-License-Identifier: MIT */
/* pair.h - a primary and a secondary in one process, each with a sim, connected over a URI.
 * Whatever goes wrong in here ends the test program with a sentence.  Main thread only, but for what says otherwise. */
#ifndef TEST_PAIR_H
#define TEST_PAIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <ft/ft.h>
#include "proxy.h"
#include "sim.h"

#define STATE(name) (1u << FT_STATE_##name)
#define WAIT_MS 60000u /* no wait of a test is longer: something is stuck */

struct pair_options {
	struct sim_config sim;
	const char *primary, *secondary; /* settings "interval=5,suspect=200" on top of the quick ones of pair.c; NULL: none */
	const char *primary_state, *secondary_state; /* state files; NULL: none */
	const char *fault;		 /* SPEC of fault(SPEC)/ around the primary's connections; NULL: none */
	const char *listen_fault;	 /* the same around the secondary's */
	const char *witness;		 /* of both sides; NULL: none */
	bool use_proxy;			 /* connect through pair->proxy */
	bool use_loopback;		 /* in-process transport */
	const char *listen;		 /* where the secondary listens: "rdma:ADDRESS:0"; NULL: a port of 127.0.0.1 */
	bool compare;			 /* every applied epoch is compared with the oracle */
};

struct pair {
	struct pair_options opt;
	struct sim *primary_sim, *secondary_sim;
	struct ft_session *primary, *secondary;
	struct sim_oracle *oracle;
	struct proxy *proxy;
	char address[160]; /* where the primary connects to, with fault */

	/* from the sessions' threads */
	atomic_uint_fast64_t applied;  /* epochs applied by the secondary */
	atomic_uint_fast64_t compared; /* ... and found to be what the oracle says */
	atomic_bool differs;	       /* one was not; the sentence is in `difference` */
	struct ft_error difference;
	atomic_uint_fast64_t losses; /* of the primary's connection */
	atomic_uint promoted_from;   /* state of the secondary when its promotion began */
};

void pair_options_init(struct pair_options *opt);

/* pair_open - both sims, both sessions, both started, the guest runs; does not wait for the protection. */
void pair_open(struct pair *p, const struct pair_options *opt);
/* The same in steps, for tests that want only one side at first.  pair_start_primary connects to @uri. */
void pair_open_sims(struct pair *p, const struct pair_options *opt);
void pair_start_secondary(struct pair *p);
void pair_start_primary(struct pair *p, const char *uri);
void pair_close(struct pair *p);

/* pair_wait - until @s is in one of the states @mask. */
enum ft_state pair_wait(struct ft_session *s, uint32_t mask);
void pair_wait_protected(struct pair *p);
/* pair_wait_applied - until @n more epochs have been applied (and compared, if that was asked for). */
void pair_wait_applied(struct pair *p, uint64_t n);
void pair_check_compared(struct pair *p); /* no difference so far */

/* pair_check_runs - the primary's guest goes on now, and no pause lasted longer than @bound_ms. */
void pair_check_runs(struct pair *p, uint32_t bound_ms);
/* pair_check_stopped - the primary's guest is stopped, now or very soon (the state changes before the guest is stopped). */
void pair_check_stopped(struct pair *p);
/* pair_check_unprotected - status of the primary says so soon, and why (@part is in the reason; NULL: any). */
void pair_check_unprotected(struct pair *p, const char *part);

/* pair_check_promoted - after a failover that gave @res: the standby went on from exactly the epoch it says, its memory is what its steps
 * say, and nothing reached the primary's client that it does not know.  (But for a stale image that was forced: there the promise
 * is not made.) */
void pair_check_promoted(struct pair *p, const struct ft_failover_result *res);

/* pair_settings - apply "name=value,name=value" to @cfg; the strings live as long as the process. */
void pair_settings(struct ft_config *cfg, const char *settings);
/* pair_common_settings - of all sessions of a test, under those that it makes itself: of the environment's FT_TEST_SETTINGS.  May be NULL. */
const char *pair_common_settings(void);
/* pair_log_line - a sink for ft_log_set(): to standard error, if the environment has FT_TEST_LOG. */
void pair_log_line(void *user, enum ft_log_level level, const char *module, const char *msg);
const char *pair_status_text(struct ft_session *s, char *buf, size_t size);

#endif
