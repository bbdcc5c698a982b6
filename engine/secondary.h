/* SPDX-License-Identifier: MIT */
/* secondary.h - what secondary.c (life, apply), greet.c (hello), receive.c (records) and failover.c share.  Private.
 *
 * Threads
 *   ft-accept  lives with the session: accepts connections, answers hello or refuses with the reason (greet.c)
 *   ft-receive lives with a connection: feeds records to the standby (checkpoint/standby.c), acks, heartbeats (receive.c)
 *   ft-apply   lives with the session: copies committed epochs into the standby image, answers applied; says to the primary that ft-receive
 *              is at work in the VMM when that takes long (secondary.c)
 *   ft-apply-crew, none or several: live with the session, and copy pages for ft-apply
 * Failover runs on its caller's thread, after receiving has ended and the last apply is done (failover.c).
 *
 * Must hold
 *   - hello-ack is sent only in STANDBY_SYNCING: a primary that was accepted lets its output out, so what we held is an old image then;
 *   - records are taken only while the state says that a primary is connected: none reaches a machine that runs;
 *   - ack(n) is sent only after the standby holds all of n and the state says STANDBY: what was acknowledged can be promoted;
 *   - the ring's window is open as long as the connection;
 *   - the window of the receive image is open only while the peer may write: from hello or applied(n) to commit(n+1); a peer that keeps to
 *     the protocol does not write between.  One that does not: tcp ends the connection, over rdma its device may do so all the same, until
 *     tp_close() has returned (transport.h, tp_window_close());
 *   - so nothing else is done with the receive image, no new connection and no end of its memory, before that;
 *   - an apply that was begun is finished, also when the connection ends, before failover loads or a new session begins. */
#ifndef FT_SECONDARY_H
#define FT_SECONDARY_H

#include "copy.h"
#include "link.h"
#include "session.h"
#include "standby.h"

#define SEND_MS 1000 /* for the small records of lane 0 */

struct secondary {
	struct ft_session *s;
	struct tp_listener *listener;
	pthread_t accept_thread, apply_thread;
	bool accept_made, apply_made;

	pthread_mutex_t standby_lock; /* rank: below the session's lock is never taken with it held */
	struct standby *standby;      /* guarded by standby_lock, but for standby_apply_run() */
	struct copier copier;	      /* standby_apply_run()'s: ft-apply's */

	/* of the connection; set by ft-accept before ft-receive exists */
	struct greeting *greeting; /* ft-accept's */
	char refusal[FT_ERROR_MAX]; /* ft-accept's: the last one that was logged */
	struct link *link;
	pthread_t receive_thread;
	uint8_t session_id[16]; /* set with s->lock held, for who promotes */
	uint32_t heartbeat_ms, heartbeat_misses;
	uint64_t capabilities; /* in use */
	uint64_t connection;   /* ft-receive's: its number, as base said; 0: none said */
	struct {	       /* ft-receive's, kept over connections: whose epoch the image is; connection 0: not known */
		uint8_t session_id[16];
		uint64_t connection;
	} image;
	uint32_t slab_epochs;  /* as standby_connect() has it; 0: mirror placement */

	_Atomic uint64_t working_told; /* last epoch of this connection of which the primary was told that it takes long */
	_Atomic uint64_t working_ns; /* since when ft-receive has been in the VMM, 0: it is not; for ft-apply */

	/* guarded by s->lock */
	uint64_t generation; /* of the primary */
	bool receiving;	     /* ft-receive runs; false again only when its connection is closed */
	unsigned link_users; /* other threads inside of the link; ft-receive waits for them before it frees it */
	bool receive_made;   /* ... and is to be joined */
	unsigned apply_wanted; /* epochs that are committed, answered, and not applied */
	bool room_wanted;    /* the ring is short, or may be */
	bool applying;
	bool bye;	     /* the primary ended the protection */
	bool quit;	     /* ft-apply is to end */
	bool complete;	     /* an epoch of some session was committed since the start */
	bool asking;	     /* a failover waits for the witness */
};

/* -- secondary.c -- */
/* secondary_end_connection - tell the peer with a bye, cut, wait until ft-receive has ended.  Any other thread of this side. */
void secondary_end_connection(struct secondary *c, enum ftw_code code, const char *why);
/* secondary_wait_applied - until no epoch is committed and not applied. */
void secondary_wait_applied(struct secondary *c);
/* secondary_open_window - let the peer write into the receive image, or into the ring. */
int secondary_open_window(struct secondary *c, struct link *l, bool slab, struct ft_error *err);

/* -- greet.c, receive.c -- */
int greeting_create(struct secondary *c, struct ft_error *err); /* what ft-accept needs: not to be had later, it would wait for nobody */
void greeting_destroy(struct secondary *c);
void *accept_main(void *secondary);
void *receive_main(void *secondary);

#endif
