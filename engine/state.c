/* SPDX-License-Identifier: MIT */
/* state.c - the states of a session (state.h).  ft_session_* and the threads act; this file only knows.
 *
 * Primary
 *   IDLE --start--> CONNECTING --hello-ok--> SYNCING --first-commit--> PROTECTED
 *                       ^  ^                    |                          | peer-lost-held
 *                       |  +------peer-lost-----+                          v
 *                       |                       +---peer-lost-held---> SUSPECT --suspect-over--> ALONE
 *                       |                                                 | hello-ok               | hello-ok
 *                       |                                                 +-----> SYNCING <--------+
 *   CONNECTING, SUSPECT, ALONE --peer-active--> FENCED       any but FENCED --stop--> IDLE       SYNCING, PROTECTED --dropped--> ALONE
 *   any of these --lease-over--> FENCED (with a witness)
 *
 * Secondary
 *   IDLE --start--> WAITING --hello-ok--> STANDBY_SYNCING --first-commit--> STANDBY --peer-lost-held--> STANDBY_SUSPECT
 *                      ^  ^                     |                              |                            |
 *                      |  +------peer-lost------+                              |                            |
 *                      +-------------bye (image stale)-------------------------+      hello-ok: STANDBY_SYNCING (image stale)
 *   WAITING, STANDBY_SYNCING (stale image, forced), STANDBY (forced), STANDBY_SUSPECT --failover--> PROMOTING --promoted--> ACTIVE
 *   PROMOTING --put-off--> STANDBY_SUSPECT (it came from there: nothing was done)
 *   PROMOTING --unusable--> REFUSED --failover (forced)--> PROMOTING               inactive --stop--> IDLE
 *
 * PROTECTED: output of epochs <= acked is out, later output is held.  SUSPECT: nothing is let out, because we do not know whether
 * the standby runs.  ALONE: we are sure enough (policy; with a witness: it was told) that it does not; output is free.  FENCED: it does, or
 * may; the guest is stopped. */
#include "state.h"

#include <stddef.h>

struct row {
	enum ft_role role; /* of the session; 0: the state tells */
	enum ft_state state;
	enum state_event event;
	struct state_change change;
};

static const struct row table[] = {
	{ FT_ROLE_PRIMARY, FT_STATE_IDLE, EV_START, { FT_STATE_CONNECTING, ACT_NONE, "looking for the secondary" } },
	{ FT_ROLE_SECONDARY, FT_STATE_IDLE, EV_START, { FT_STATE_WAITING, ACT_NONE, "waiting for a primary" } },
	{ FT_ROLE_SECONDARY,
	  FT_STATE_IDLE,
	  EV_FAILOVER,
	  { FT_STATE_PROMOTING, ACT_NONE, "forced failover from a stale image" } },
	/* primary */
	{ 0, FT_STATE_CONNECTING, EV_HELLO_OK, { FT_STATE_SYNCING, ACT_NONE, "full sync" } },
	{ 0,
	  FT_STATE_CONNECTING,
	  EV_PEER_ACTIVE,
	  { FT_STATE_FENCED, ACT_STOP_GUEST, "the other side runs the machine" } },
	{ 0, FT_STATE_SYNCING, EV_FIRST_COMMIT, { FT_STATE_PROTECTED, ACT_NONE, "first epoch acknowledged" } },
	{ 0,
	  FT_STATE_SYNCING,
	  EV_PEER_LOST,
	  { FT_STATE_CONNECTING, ACT_RELEASE_OUTPUT, "secondary lost during the full sync" } },
	{ 0,
	  FT_STATE_SYNCING,
	  EV_PEER_LOST_HELD,
	  { FT_STATE_SUSPECT, ACT_NONE, "secondary lost at the end of the full sync" } },
	{ 0, FT_STATE_PROTECTED, EV_PEER_LOST_HELD, { FT_STATE_SUSPECT, ACT_NONE, "secondary lost" } },
	{ 0, FT_STATE_SYNCING, EV_DROPPED, { FT_STATE_ALONE, ACT_RELEASE_OUTPUT, "protection dropped" } },
	{ 0, FT_STATE_PROTECTED, EV_DROPPED, { FT_STATE_ALONE, ACT_RELEASE_OUTPUT, "protection dropped" } },
	{ 0,
	  FT_STATE_SUSPECT,
	  EV_SUSPECT_OVER,
	  { FT_STATE_ALONE, ACT_RELEASE_OUTPUT, "going on without the secondary" } },
	{ 0, FT_STATE_SUSPECT, EV_HELLO_OK, { FT_STATE_SYNCING, ACT_RELEASE_OUTPUT, "secondary is back" } },
	{ 0, FT_STATE_SUSPECT, EV_PEER_ACTIVE, { FT_STATE_FENCED, ACT_STOP_GUEST, "the secondary took over" } },
	{ 0, FT_STATE_ALONE, EV_HELLO_OK, { FT_STATE_SYNCING, ACT_NONE, "secondary is back" } },
	{ 0, FT_STATE_ALONE, EV_PEER_ACTIVE, { FT_STATE_FENCED, ACT_STOP_GUEST, "the secondary took over" } },
	{ 0, FT_STATE_CONNECTING, EV_LEASE_OVER, { FT_STATE_FENCED, ACT_STOP_GUEST, "no lease" } },
	{ 0, FT_STATE_SYNCING, EV_LEASE_OVER, { FT_STATE_FENCED, ACT_STOP_GUEST, "no lease" } },
	{ 0, FT_STATE_PROTECTED, EV_LEASE_OVER, { FT_STATE_FENCED, ACT_STOP_GUEST, "no lease" } },
	{ 0, FT_STATE_SUSPECT, EV_LEASE_OVER, { FT_STATE_FENCED, ACT_STOP_GUEST, "no lease" } },
	{ 0, FT_STATE_ALONE, EV_LEASE_OVER, { FT_STATE_FENCED, ACT_STOP_GUEST, "no lease" } },
	{ 0, FT_STATE_CONNECTING, EV_STOP, { FT_STATE_IDLE, ACT_RELEASE_OUTPUT, "stopped" } },
	{ 0, FT_STATE_SYNCING, EV_STOP, { FT_STATE_IDLE, ACT_RELEASE_OUTPUT, "stopped" } },
	{ 0, FT_STATE_PROTECTED, EV_STOP, { FT_STATE_IDLE, ACT_RELEASE_OUTPUT, "stopped" } },
	{ 0, FT_STATE_SUSPECT, EV_STOP, { FT_STATE_IDLE, ACT_RELEASE_OUTPUT, "stopped" } },
	{ 0, FT_STATE_ALONE, EV_STOP, { FT_STATE_IDLE, ACT_RELEASE_OUTPUT, "stopped" } },
	/* secondary */
	{ 0, FT_STATE_WAITING, EV_HELLO_OK, { FT_STATE_STANDBY_SYNCING, ACT_NONE, "full sync" } },
	{ 0, FT_STATE_WAITING, EV_FAILOVER, { FT_STATE_PROMOTING, ACT_NONE, "forced failover from a stale image" } },
	{ 0, FT_STATE_WAITING, EV_STOP, { FT_STATE_IDLE, ACT_NONE, "stopped" } },
	{ 0, FT_STATE_STANDBY_SYNCING, EV_FIRST_COMMIT, { FT_STATE_STANDBY, ACT_NONE, "first epoch committed" } },
	{ 0,
	  FT_STATE_STANDBY_SYNCING,
	  EV_PEER_LOST,
	  { FT_STATE_WAITING, ACT_NONE, "primary lost during the full sync" } },
	{ 0, FT_STATE_STANDBY_SYNCING, EV_PEER_BYE, { FT_STATE_WAITING, ACT_NONE, "primary ended the protection" } },
	{ 0,
	  FT_STATE_STANDBY_SYNCING,
	  EV_FAILOVER,
	  { FT_STATE_PROMOTING, ACT_NONE, "forced failover from a stale image" } },
	{ 0, FT_STATE_STANDBY_SYNCING, EV_STOP, { FT_STATE_IDLE, ACT_NONE, "stopped" } },
	{ 0, FT_STATE_STANDBY, EV_PEER_LOST_HELD, { FT_STATE_STANDBY_SUSPECT, ACT_NONE, "primary lost" } },
	{ 0, FT_STATE_STANDBY, EV_PEER_BYE, { FT_STATE_WAITING, ACT_MARK_STALE, "primary ended the protection" } },
	{ 0, FT_STATE_STANDBY, EV_HELLO_OK, { FT_STATE_STANDBY_SYNCING, ACT_MARK_STALE, "primary connected anew" } },
	{ 0, FT_STATE_STANDBY, EV_FAILOVER, { FT_STATE_PROMOTING, ACT_NONE, "forced failover" } },
	{ 0, FT_STATE_STANDBY, EV_STOP, { FT_STATE_IDLE, ACT_MARK_STALE, "stopped" } },
	{ 0, FT_STATE_STANDBY_SUSPECT, EV_HELLO_OK, { FT_STATE_STANDBY_SYNCING, ACT_MARK_STALE, "primary is back" } },
	{ 0, FT_STATE_STANDBY_SUSPECT, EV_FAILOVER, { FT_STATE_PROMOTING, ACT_NONE, "failover" } },
	{ 0, FT_STATE_STANDBY_SUSPECT, EV_STOP, { FT_STATE_IDLE, ACT_MARK_STALE, "stopped" } },
	{ 0, FT_STATE_PROMOTING, EV_PROMOTED, { FT_STATE_ACTIVE, ACT_NONE, "promoted" } },
	{ 0, FT_STATE_REFUSED, EV_FAILOVER, { FT_STATE_PROMOTING, ACT_NONE, "forced failover, tried again" } },
	{ 0, FT_STATE_PROMOTING, EV_UNUSABLE, { FT_STATE_REFUSED, ACT_NONE, "promotion failed" } },
	{ 0, FT_STATE_PROMOTING, EV_PUT_OFF, { FT_STATE_STANDBY_SUSPECT, ACT_NONE, "promotion put off" } },
};

static const struct state_facts facts[FT_STATE_COUNT] = {
	/*			      role		 held   runs   conn   image */
	[FT_STATE_IDLE] = { 0, false, true, false, false },
	[FT_STATE_CONNECTING] = { FT_ROLE_PRIMARY, false, true, false, false },
	[FT_STATE_SYNCING] = { FT_ROLE_PRIMARY, false, true, true, false },
	[FT_STATE_PROTECTED] = { FT_ROLE_PRIMARY, true, true, true, false },
	[FT_STATE_SUSPECT] = { FT_ROLE_PRIMARY, true, true, false, false },
	[FT_STATE_ALONE] = { FT_ROLE_PRIMARY, false, true, false, false },
	[FT_STATE_FENCED] = { FT_ROLE_PRIMARY, true, false, false, false },
	[FT_STATE_WAITING] = { FT_ROLE_SECONDARY, false, false, false, false },
	[FT_STATE_STANDBY_SYNCING] = { FT_ROLE_SECONDARY, false, false, true, false },
	[FT_STATE_STANDBY] = { FT_ROLE_SECONDARY, false, false, true, true },
	[FT_STATE_STANDBY_SUSPECT] = { FT_ROLE_SECONDARY, false, false, false, true },
	[FT_STATE_PROMOTING] = { FT_ROLE_SECONDARY, false, false, false, true },
	[FT_STATE_ACTIVE] = { FT_ROLE_SECONDARY, false, true, false, false },
	[FT_STATE_REFUSED] = { FT_ROLE_SECONDARY, false, false, false, false },
};

static const char *const state_names[FT_STATE_COUNT] = {
	[FT_STATE_IDLE] = "idle",
	[FT_STATE_CONNECTING] = "connecting",
	[FT_STATE_SYNCING] = "syncing",
	[FT_STATE_PROTECTED] = "protected",
	[FT_STATE_SUSPECT] = "suspect",
	[FT_STATE_ALONE] = "alone",
	[FT_STATE_FENCED] = "fenced",
	[FT_STATE_WAITING] = "waiting",
	[FT_STATE_STANDBY_SYNCING] = "standby-syncing",
	[FT_STATE_STANDBY] = "standby",
	[FT_STATE_STANDBY_SUSPECT] = "standby-suspect",
	[FT_STATE_PROMOTING] = "promoting",
	[FT_STATE_ACTIVE] = "active",
	[FT_STATE_REFUSED] = "refused",
};

static const char *const event_names[EV_COUNT] = {
	[EV_START] = "start",
	[EV_HELLO_OK] = "hello-ok",
	[EV_FIRST_COMMIT] = "first-commit",
	[EV_PEER_LOST] = "peer-lost",
	[EV_PEER_LOST_HELD] = "peer-lost-held",
	[EV_PEER_BYE] = "peer-bye",
	[EV_DROPPED] = "dropped",
	[EV_SUSPECT_OVER] = "suspect-over",
	[EV_PEER_ACTIVE] = "peer-active",
	[EV_LEASE_OVER] = "lease-over",
	[EV_FAILOVER] = "failover",
	[EV_PROMOTED] = "promoted",
	[EV_UNUSABLE] = "unusable",
	[EV_PUT_OFF] = "put-off",
	[EV_STOP] = "stop",
};

const struct state_change *state_next(enum ft_role role, enum ft_state state, enum state_event event)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct row *r = &table[i];

		if (r->state == state && r->event == event && (!r->role || r->role == role))
			return &r->change;
	}
	return NULL;
}

const struct state_facts *state_facts(enum ft_state state)
{
	return &facts[state];
}

const char *state_event_name(enum state_event event)
{
	return event < EV_COUNT ? event_names[event] : "?";
}

const char *ft_state_name(enum ft_state state)
{
	return state < FT_STATE_COUNT ? state_names[state] : "?";
}
