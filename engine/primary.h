/* SPDX-License-Identifier: MIT */
/* primary.h - what primary.c (connections), epoch.c (one epoch), behind.c (its pages copied behind the guest), pace.c (when it is due),
 * ship.c (sending) and answer.c (answers) share.  Private.
 *
 * Threads
 *   ft-epoch  lives with the session: connects, syncs, runs epochs, handles losses; the only one that calls the VMM
 *             (but for output_release) and the only one that changes the state
 *   ft-ship   lives with a connection: takes slabs and commits from the queue and sends them
 *   ft-answer lives with a connection: receives acks, sends heartbeats, watches the clock
 *   ft-capture, none or several: live with the session, and copy pages in the pause for ft-epoch
 *
 * A slab is at any time in exactly one place: the free queue, the hands of ft-epoch (and of those who copy for it), the ship queue, the hands of ft-ship. */
#ifndef FT_PRIMARY_H
#define FT_PRIMARY_H

#include "benefit.h"
#include "bitmap.h"
#include "capture.h"
#include "choice.h"
#include "controller.h"
#include "cow.h"
#include "delta.h"
#include "lease.h"
#include "link.h"
#include "pool.h"
#include "queue.h"
#include "same.h"
#include "session.h"

#define EPOCH_JOBS FTW_EPOCH_CREDITS_MAX
#define EPOCH_JOBS_MIN 2u /* epochs captured and not yet acknowledged: one on its way, one waiting for credit */

struct work {
	struct cds_wfcq_node node; /* first: a queue item is the work */
	enum work_kind { WORK_SLAB, WORK_SIDE, WORK_COMMIT } kind; /* side: the side stream of a round of the full sync */
	struct slab *slab;	   /* WORK_SLAB */
	struct epoch_job *job;	   /* WORK_COMMIT */
	uint64_t side_bytes;	   /* WORK_SIDE: how much of it the round has */
};

struct epoch_job {
	struct work work;
	struct ft_state_sink state; /* device state; reserved once, made real as it is used */
	struct bitmap *pages;	    /* of the last epoch that it was used for; NULL: not kept.  Epoch thread */
	uint64_t epoch;
	uint64_t cut_ns;	    /* when the guest was paused for it */
	uint64_t nr_pages;	    /* captured, zero pages included */
	uint64_t sent_ns;	    /* commit sent */
	uint64_t round;		    /* of its pause */
	uint64_t ship_ns;	    /* from its first page to that, not counting those that were sent ahead */
	uint64_t sent_pages;	    /* told as data, each time counted */
	uint64_t apply_pages;	    /* how much the secondary has to apply, see apply_pages() in ship.c */
	bool busy;		    /* guarded by session lock: captured, not acknowledged */
};

/* What a secondary that comes back lacks, see resync.c; epoch thread only, but for the last two. */
struct resync {
	bool in_use;		/* in this connection, both want it */
	bool going_on;		/* its first epoch is what was owed, not the whole machine */
	struct bitmap *owed;	/* written since the base's last acknowledged epoch; with a base only */
	uint64_t connection;	/* number of this one in the session */
	uint64_t base;		/* of the one that the secondary's image is of; 0: none */
	uint64_t base_epoch, base_sent; /* in the base: the last one acknowledged; the last one whose commit was sent */
	uint64_t regions;	/* of which table of them */
	bool answered;		/* guarded by s->lock: base-ack came, and says */
	uint64_t held;		/* that the secondary has this epoch of the base; 0: it has none */
};

/* Pages sent while their epoch runs, see ahead.c; epoch thread only. */
struct ahead {
	uint32_t times, done;	    /* in each epoch; 0: never.  So many in the one that runs */
	uint32_t epochs;
	struct bitmap *sent;	    /* in the epoch that runs */
	struct bitmap *missed, *missed_before; /* written again after they were sent: in this epoch, in the one before */
	struct bitmap *hot;	    /* in two epochs in a row: not worth it */
	struct bitmap *now;
};

/* What of the output may leave; with a witness only, see primary_lease.c. */
struct release {
	pthread_mutex_t lock; /* the VMM is told with it held */
	uint64_t acked, out;  /* epochs of this connection: that may leave, of which the VMM was told */
	bool all;	      /* everything may, and the VMM was not told */
	bool ended;	      /* nothing may any more: FENCED */
};

struct primary {
	struct ft_session *s;
	pthread_t thread;
	bool thread_made;
	uint8_t session_id[16];

	/* made at start */
	struct pool *pool;
	uint8_t *staging; /* memory of all slabs, in one piece */
	uint64_t staging_bytes;
	struct slab **slab;
	struct work *slab_work;
	uint32_t nr_slabs;
	struct stage_queue free_slabs; /* ft-ship and ft-epoch put, ft-epoch gets */
	struct stage_queue to_ship;    /* ft-epoch puts, ft-ship gets (ft-epoch once ft-ship has ended) */
	struct epoch_job job[EPOCH_JOBS];
	uint32_t nr_jobs; /* those in use */
	struct work side_work;
	enum ft_capture capture; /* as set */
	enum ft_witness_loss witness_loss; /* as set */
	struct release release;
	struct cow *cow;	 /* NULL: pages are always copied in the pause */
	struct copier copier;	 /* of the pause; epoch thread only */

	/* epoch thread only */
	const struct region_table *regions; /* of this connection */
	struct bitmap *dirty;		    /* pages to send that are not captured yet */
	struct ahead ahead;
	struct resync resync;
	struct choice choice; /* "capture" auto */
	bool want_cow;	      /* the next epochs' pages are to be copied behind the guest */
	uint64_t next_epoch;
	uint64_t round; /* passes over the dirty set in this connection: one each round of the full sync, one each epoch */
	uint64_t resumed_ns, paused_ns; /* of the last epoch */
	struct controller controller;
	bool last_output;    /* the guest had sent something in the last epoch */
	uint64_t look_ns;    /* when its dirty pages are looked at next */
	uint64_t output_cut_ns;		/* when the guest went on after the last epoch that output has ended; 0: none */
	enum epoch_end { END_INTERVAL = 0, END_OUTPUT, END_WATERMARK, END_BUSY, END_CAP, END_OPERATOR, END_COUNT } end; /* of the epoch under way */
	bool output_held;		/* output_cut was called and not everything was let out since */
	bool tracking;
	bool drop;	  /* staging memory was used up and the policy says to end the protection */
	bool dropped;	  /* so it was done, and the secondary was told */
	bool goodbye;	  /* the session ends, and the secondary was told */
	uint64_t protected_ns; /* since when this connection protects; 0: not yet */
	uint64_t drop_ms; /* the last wait after that; 0: none */
	uint64_t suspect_until_ns;
	bool peer_promotes; /* it ended the connection to be promoted, and has not said since what came of it; set by ft-answer at its end */
	uint64_t connected_ns; /* the last hello that was answered */
	uint64_t pace_ms;      /* the last wait after a connection that did not live long; 0: it did */
	char loss[FT_ERROR_MAX]; /* why the last connection ended */
	char attempt_error[FT_ERROR_MAX]; /* why the last attempt failed, "" if it did not */

	_Atomic enum skip_look { LOOK_AT_NONE = 0, LOOK_AT_SAMPLE, LOOK_AT_ALL } looking; /* whether the secondary has a page; figure for status */
	atomic_bool captured_cow;    /* so it was with the last epoch; figure for status */
	_Atomic uint64_t pausing_ns; /* since when the VMM has been asked to pause, 0: it is not; figure for ft-answer */

	/* one connection */
	struct link *link;
	pthread_t ship_thread, answer_thread;
	uint32_t epoch_credits; /* from hello-ack */
	uint32_t heartbeat_ms, heartbeat_misses;
	struct slab_plan *plan; /* ship thread only */
	struct same same;	/* ship thread only while there is one, then the epoch thread's; see skip.c */
	struct benefit benefit; /* so is this */
	struct past past;	/* and this */
	enum ft_skip_same skip_same; /* as set */
	bool page_checks;	/* each record that tells pages has page-checks in front */
	bool uses_ring;		/* placement slab: pages go into the ring of the secondary */
	uint64_t ring_position; /* ship thread only: of the next page */
	_Atomic uint64_t ring_told; /* behind what the secondary may know of */
	bool one_lane;		/* pages are sent ahead in this connection, see lane_of() */
	bool by_chunks;		/* ship thread only: the transport asks for keys chunk by chunk, see tp_prepare() */

	/* guarded by s->lock */
	unsigned link_users;	    /* threads inside of the link that do not live with it: they are waited for before it is freed */
	bool lost;		    /* the connection is over */
	struct ft_error loss_error; /* its first cause */
	uint64_t acked, applied, sent; /* epochs of this connection */
	uint32_t awaiting; /* threads that wait for an ack, an applied, or a room: answers wake nobody else */
	bool side_due;	    /* ft-ship has the side stream of this round still to read */
	struct room room;   /* of the ring; no slots: not told yet */
	uint64_t ring_end[FTW_EPOCH_CREDITS_MAX]; /* by epoch, of those sent and not applied: behind its last position */
	uint64_t acked_ns, acked_pages; /* of the last ack: when, and how much there is to apply */
	uint64_t regions_wanted, regions_used; /* counters of the table's changes; used 0: none in use */
	_Atomic uint64_t output_ns; /* when the running epoch's first output was held; 0: there is none */
	bool cut_now;		    /* ft_session_cut, ft_session_checkpoint */
	bool want_hold;		    /* the operator wants the guest stopped */
	bool held;		    /* and so it is */
	bool poked;		    /* want_hold changed: look at once */
	int hold_result;
	struct {
		uint64_t link_ns, link_pages, sent_pages, apply_ns; /* of the last epoch that was acknowledged, applied; 0: none */
	} cost;
	struct controller_plan plan_now; /* of the epoch under way */
	enum epoch_end plan_end;	 /* of the one before */
	bool planned;			 /* there is one */
};

/* -- hello.c: epoch thread -- */
/* handshake - one attempt.  On success p->link is set and the region table is in use until leave_regions().  -EOWNERDEAD: the other
 * side runs the machine. */
int handshake(struct primary *p, uint64_t deadline, struct ft_error *err);
/* send_question - a hello that asks only, see ask.c. */
int send_question(struct primary *p, struct link *l, const struct ft_config *cfg, uint64_t deadline, struct ft_error *err);
void leave_regions(struct primary *p);

/* -- ask.c: before there is an epoch thread -- */
/* ask_other_side - 0: it neither runs the machine nor has what it is to go on from, or could not be asked and the policy is to go on. */
int ask_other_side(struct primary *p, struct ft_error *err);

/* -- protect.c -- */
void *epoch_main(void *primary);
/* primary_lose - the connection is over, for this reason (the first one counts).  @code other than FTW_CODE_NONE is told to the peer.
 * Any thread that holds no lock. */
void primary_lose(struct primary *p, uint32_t code, const struct ft_error *why);
/* primary_drop - the same by the operator's policy: the secondary is told that the protection has ended.  Epoch thread. */
void primary_drop(struct primary *p, const struct ft_error *why);
bool primary_lost(struct primary *p);
/* primary_wait - with s->lock held: like cond_wait_until, but -ENOTCONN when the connection is lost, -ECANCELED when stopping. */
int primary_wait_locked(struct primary *p, uint64_t deadline);

/* -- primary_lease.c -- */
/* primary_raise - epoch thread: the witness knows that what the secondary has is an old image from now on.  WITNESS_YES also without a witness. */
enum witness_answer primary_raise(struct primary *p, struct ft_error *err);
/* primary_lease_ended - the guest may not run here any more, and why. */
bool primary_lease_ended(struct primary *p, struct ft_error *why);
/* release_acked - answer thread: output up to @epoch may leave.  False: it does when the lease is renewed.
 * release_all - epoch thread: all of it may.  release_begin - of a connection: its epochs count from 1.
 * release_end - epoch thread: nothing may any more.
 * release_settle - epoch thread, before output is cut for the first time in a connection: all that was to leave has left.  As primary_wait_locked(). */
bool release_acked(struct primary *p, uint64_t epoch);
void release_all(struct primary *p);
void release_begin(struct primary *p);
void release_end(struct primary *p);
int release_settle(struct primary *p);

/* -- epoch.c: epoch thread -- */
/* sync_run - full sync up to and including the first epoch's capture.  0 or negative (the connection is lost). */
int sync_run(struct primary *p);
int epoch_run(struct primary *p);
/* slab_take - a free slab, or NULL at @deadline or when the connection is lost. */
struct work *slab_take(struct primary *p, uint64_t deadline);
/* epoch_stalled - the error: @what could not be finished, for want of slabs or in time. */
int epoch_stalled(struct primary *p, const struct ft_config *cfg, const char *what, struct ft_error *err);

/* -- behind.c: epoch thread -- */
/* behind_begin - of a connection, before its full sync.  -ENOMEM. */
int behind_begin(struct primary *p, struct ft_error *err);
bool behind_hooked(const struct primary *p); /* the VMM tells its writes: what is marked is what is dirty */
/* hook_begin - from the guest's next step on the VMM tells its writes, if pages are to be captured by copy on write; guest paused. */
int hook_begin(struct primary *p, struct ft_error *err);
/* hook_end - the VMM need not tell its writes any more.  Guest running, or held. */
void hook_end(struct primary *p);
/* behind_arm - guest paused: what was written is to be copied for @job.  behind_finish - the guest runs: copy it.  behind_after - an epoch was
 * taken, copied behind the guest or (not @armed) in the pause, which had @ns for it: how is the next to be? */
void behind_arm(struct primary *p, struct epoch_job *job);
int behind_finish(struct primary *p, struct epoch_job *job, const struct ft_config *cfg, uint64_t resumed_ns, struct ft_error *err);
void behind_after(struct primary *p, bool armed, uint64_t pages, uint64_t ns);

/* -- ahead.c: epoch thread -- */
/* ahead_begin - of a connection.  ahead_send - what is dirty now; an error has ended the connection.  ahead_learn - of a slab that was
 * filled in the pause.  ahead_epoch_over - the next one runs. */
int ahead_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err);
void ahead_destroy(struct primary *p);
int ahead_send(struct primary *p);
void ahead_learn(struct primary *p, const struct slab *slab);
void ahead_epoch_over(struct primary *p);

/* -- resync.c -- */
bool resync_wanted(const struct primary *p, const struct ft_config *cfg);
/* resync_begin - of a connection, before hello.  -ENOMEM.  resync_agree - behind hello-ack: whether the first epoch is the whole machine (p->resync.going_on). */
int resync_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err);
int resync_agree(struct primary *p, struct ft_error *err);
void resync_answered(struct primary *p, uint64_t epoch); /* ft-answer: base-ack came */
/* resync_note - p->dirty was sent in a round, and is about to be emptied.  resync_captured - it was captured for @job: empty it.  resync_epoch_over - that epoch is over, and what was
 * sent ahead in it is part of it.  resync_protected - the first epoch was acknowledged. */
void resync_note(struct primary *p);
void resync_captured(struct primary *p, struct epoch_job *job);
void resync_epoch_over(struct primary *p, struct epoch_job *job);
void resync_protected(struct primary *p);
void resync_after_loss(struct primary *p);
bool resync_has_base(const struct primary *p); /* what is written must go on being tracked */
void resync_forget(struct primary *p);
void resync_destroy(struct primary *p);

/* -- skip.c -- */
/* skip_begin - of a connection, epoch thread, before there is a ship thread.  skip_end - behind it.  -ENOMEM. */
int skip_begin(struct primary *p, const struct ft_config *cfg, struct ft_error *err);
void skip_end(struct primary *p);
/* skip_table - ship thread: what the secondary has, NULL: it is not kept.  skip_after - epoch @epoch is sent: how is the next to be looked at? */
struct same *skip_table(struct primary *p);
/* skip_past - ship thread: what it has by content, for pages of @epoch; NULL: it is not kept. */
struct past *skip_past(struct primary *p, uint64_t epoch);
void skip_after(struct primary *p, uint64_t epoch);

/* -- pace.c: epoch thread -- */
/* pace_begin - of a connection, before its first epoch.  pace_after - of an epoch that was taken. */
void pace_begin(struct primary *p);
void pace_after(struct primary *p, uint64_t paused_ns, uint64_t resumed_ns, uint64_t pages);
/* epoch_wait - until the next epoch is to be cut: interval, output, cap, operator; and a job is free.  *@cut: false if the operator only
 * wants his stopped guest back. */
int epoch_wait(struct primary *p, bool *cut);

/* -- ship.c, answer.c -- */
void *ship_main(void *primary);
void *answer_main(void *primary);

#endif
