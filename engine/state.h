/* SPDX-License-Identifier: MIT */
/* state.h - the states of a session as a table and a pure function.  No thread, no socket: a test visits every pair. */
#ifndef FT_STATE_H
#define FT_STATE_H

#include <stdbool.h>
#include <ft/ft.h>

enum state_event {
	EV_START = 0,	 /* ft_session_start */
	EV_HELLO_OK,	 /* both sides agreed; a full sync begins */
	EV_FIRST_COMMIT, /* the first epoch of this connection is whole on the secondary (primary: acknowledged) */
	EV_PEER_LOST,	 /* connection gone, nothing held: before the first commit was sent */
	EV_PEER_LOST_HELD, /* connection gone while output is held: the standby may have been promoted */
	EV_PEER_BYE,	 /* secondary: the primary ended the protection and goes on without us */
	EV_DROPPED,	 /* primary: the policy at the cap ended the protection, and the secondary was told */
	EV_SUSPECT_OVER, /* primary: the policy lets it go on alone */
	EV_PEER_ACTIVE,	 /* primary: the other side says that it runs the machine */
	EV_LEASE_OVER,	 /* primary: the witness says that it is not ours to run, or could not be asked for too long */
	EV_FAILOVER,	 /* secondary: promotion begins */
	EV_PROMOTED,	 /* secondary: the machine runs here */
	EV_UNUSABLE,	 /* secondary: the promotion failed */
	EV_PUT_OFF,	 /* secondary: it may not be done now, and nothing has been done yet */
	EV_STOP,	 /* ft_session_stop */
	EV_COUNT
};

/* What goes with a transition besides setting the state; the caller's work. */
enum state_action {
	ACT_NONE = 0,
	ACT_RELEASE_OUTPUT = 1, /* let out all that is held, hold no more */
	ACT_STOP_GUEST = 2,	/* the guest is stopped and what is held is dropped, before the change is told */
	ACT_MARK_STALE = 4,	/* the image is complete but the primary went on without it: only a forced failover takes it */
};

struct state_change {
	enum ft_state next;
	unsigned actions; /* enum state_action */
	const char *what; /* a few words for the log */
};

/* state_next - the change that @event makes in @state of a session of @role, or NULL if the event has no place there
 * (nothing happens). */
const struct state_change *state_next(enum ft_role role, enum ft_state state, enum state_event event);
const char *state_event_name(enum state_event event);

/* What holds in a state; session.c checks itself against it and the tests read it. */
struct state_facts {
	enum ft_role role;   /* 0: both */
	bool output_held;    /* primary: output that is not acknowledged stays in */
	bool guest_runs;     /* on this side */
	bool connected;	     /* there is an accepted connection */
	bool complete_image; /* secondary: a failover without force finds something to run */
};
const struct state_facts *state_facts(enum ft_state state);

#endif
