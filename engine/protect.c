/* SPDX-License-Identifier: MIT */
/* protect.c - what ft-epoch does: connect, serve, loss, suspicion, going on alone, connecting again.
 *
 * Must hold
 *   - whatever happens to the connection, the guest runs, but in FENCED or when the operator stopped it (promise 8);
 *   - output that no ack covers is let out only by ALONE, IDLE or a new session that the standby accepted: see state.c; with a witness it knows before
 *     of the first two (may_go_alone()), and nothing leaves without the lease (primary_lease.c). */
#include "primary.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "log.h"
#include "thread.h"

#define SUSPECT_RETRY_MS 50 /* a secondary that is still there is found again before output was held for long */
#define LAST_ASK_MS 100     /* before output goes free */
#define OVERSLEPT_MS                                                                                                   \
	250 /* an attempt ends in time, and SUSPECT_RETRY_MS lie between two: later than that is a process that was stopped */
#define DROP_WAIT_MAX_MS 60000
#define DROP_LIVED 4 /* times the last wait: a protection that lived longer was worth its full sync */
#define PACE_MS 50   /* first wait before a full sync after one that was lost at its end */
/* How long what is told last may wait for room in the socket: a reason, while the guest's output waits; and that the end is an orderly one,
 * without which the other side takes it for a loss. */
#define REASON_MS 200
#define BYE_MS 1000

/* ---- the end of a connection ---- */

/* True for the first cause; the others follow from it. */
static bool mark_lost(struct primary *p, const struct ft_error *why)
{
	struct ft_session *s = p->s;
	bool first;

	pthread_mutex_lock(&s->lock);
	first = !p->lost;
	p->lost = true;
	if (first)
		p->loss_error = *why;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	queue_wake(&p->to_ship);
	return first;
}

void primary_lose(struct primary *p, uint32_t code, const struct ft_error *why)
{
	if (!mark_lost(p, why))
		return;
	log_warn("primary", "%s: %s", p->s->name, why->msg);
	if (code != FTW_CODE_NONE)
		link_send_reason(p->link, FTW_ERROR, code, why->msg, deadline_in_ms(REASON_MS));
	tp_cancel(p->link->conn);
}

/* Once the secondary was told, its image is stale there, as after a stop: output need not be held until it is found again. */
void primary_drop(struct primary *p, const struct ft_error *why)
{
	p->drop = false;
	if (!mark_lost(p, why))
		return;
	log_warn("primary", "%s: %s", p->s->name, why->msg);
	stats_count(&p->s->stats, FT_COUNTER_CAP_DROPS, 1);
	p->dropped = link_send_reason(p->link, FTW_BYE, FTW_CODE_STOPPED, why->msg, deadline_in_ms(BYE_MS)) == 0;
	tp_cancel(p->link->conn);
}

static void say_goodbye(struct primary *p)
{
	struct ft_error why = { 0 };

	err_set(&why, -ECANCELED, "stopped");
	if (!mark_lost(p, &why))
		return;
	p->goodbye = link_send_reason(p->link, FTW_BYE, FTW_CODE_STOPPED, "protection was stopped on the primary",
				      deadline_in_ms(BYE_MS)) == 0;
	tp_cancel(p->link->conn);
}

bool primary_lost(struct primary *p)
{
	bool lost;

	pthread_mutex_lock(&p->s->lock);
	lost = p->lost;
	pthread_mutex_unlock(&p->s->lock);
	return lost;
}

int primary_wait_locked(struct primary *p, uint64_t deadline)
{
	struct ft_session *s = p->s;

	if (p->lost)
		return -ENOTCONN;
	if (s->stopping)
		return -ECANCELED;
	if (cond_wait_until(&s->cond, &s->lock, deadline) == -ETIMEDOUT)
		return -ETIMEDOUT;
	return p->lost ? -ENOTCONN : s->stopping ? -ECANCELED : 0;
}

/* ---- output ---- */

static void stop_guest(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };

	/* for good: a pause may be one that ends with our process */
	if (s->ops.guest_hold ? s->ops.guest_hold(s->user, true, &err) : s->ops.pause(s->user, &err))
		log_error("primary", "%s: fenced, but the guest does not stop: %s", s->name, err.msg);
	atomic_store(&s->guest_paused, true);
	if (s->ops.output_drop)
		s->ops.output_drop(s->user);
}

static void change(struct primary *p, enum state_event event, const char *reason)
{
	int actions = session_event(p->s, event, reason);

	if (actions < 0)
		return;
	if (actions & ACT_RELEASE_OUTPUT)
		release_all(p);
}

/* ---- who may run ---- */

static void note(struct primary *p, enum statefile_word word)
{
	struct ft_session *s = p->s;

	written_note(s, word, session_generation(s), p->session_id, atomic_load(&s->epoch_acked));
}

static void fence(struct primary *p, enum state_event event, const char *why)
{
	release_end(p);
	stop_guest(p); /* before it is told: who reads FENCED relies on it */
	if (event == EV_PEER_ACTIVE)
		note(p, SAYS_FENCED);
	change(p, event, why);
	if (p->s->lease)
		lease_give_back(p->s->lease);
}

/* True: the guest was stopped, as it may not run here any more. */
static bool stood_down(struct primary *p)
{
	struct ft_error why = { 0 };

	if (!primary_lease_ended(p, &why))
		return false;
	fence(p, EV_LEASE_OVER, why.msg);
	return true;
}

/* Output goes free when the witness knows that the standby has an old image, and not before.  If it cannot be asked, it stays held. */
static bool may_go_alone(struct primary *p)
{
	struct ft_error err = { 0 };
	enum witness_answer answer = primary_raise(p, &err);

	if (answer != WITNESS_YES)
		session_reason(p->s, err.msg);
	return answer == WITNESS_YES;
}

/* Protection is stopped while output is held: the guest goes on, and what it sends, if the witness knows it, or is not needed. */
static void leave(struct primary *p)
{
	struct ft_error err = { 0 };
	enum witness_answer answer;

	if (!p->output_held || session_state(p->s) == FT_STATE_FENCED)
		return;
	answer = primary_raise(p, &err);
	if (answer == WITNESS_NO || (answer == WITNESS_UNKNOWN && p->witness_loss == FT_WITNESS_SAFE))
		fence(p, EV_LEASE_OVER, err.msg);
}

/* ---- one connection ---- */

static void reset_connection(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->acked = p->applied = p->sent = 0;
	p->room = (struct room){ 0 };
	p->ring_position = 0;
	atomic_store(&p->ring_told, 0);
	p->cut_now = p->side_due = false;
	for (unsigned i = 0; i < p->nr_jobs; i++)
		p->job[i].busy = false;
	pthread_mutex_unlock(&s->lock);
	p->next_epoch = 1;
	p->round = 0;
	p->peer_promotes = false;
	release_begin(p);
	pace_begin(p);
	atomic_store(&s->epoch_running, 1);
	atomic_store(&s->epoch_sent, 0);
	atomic_store(&s->epoch_acked, 0);
	atomic_store(&s->epoch_applied, 0);
}

static int wait_first_ack(struct primary *p)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->awaiting++;
	while (p->acked < 1 && !r)
		r = primary_wait_locked(p, DEADLINE_NEVER);
	p->awaiting--;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* After a pause that failed half-way: the guest is not left stopped (promise 8). */
static void let_run(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	int r = s->ops.guest_hold ? s->ops.guest_hold(s->user, false, &err) : s->ops.resume(s->user, &err);

	if (r)
		log_error("primary", "%s: the guest does not go on: %s", s->name, err.msg);
}

/* The operator's pause: an epoch is cut, then the guest stays where it is. */
static int hold_guest(struct primary *p, bool hold, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r;

	if (s->ops.guest_hold)
		r = s->ops.guest_hold(s->user, hold, err);
	else
		r = hold ? s->ops.pause(s->user, err) : s->ops.resume(s->user, err);
	if (!r)
		atomic_store(&s->guest_paused, hold);
	else if (hold)
		let_run(p);
	return r;
}

static void serve_hold(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	bool want, held;
	int r;

	pthread_mutex_lock(&s->lock);
	want = p->want_hold;
	held = p->held;
	p->poked = false;
	pthread_mutex_unlock(&s->lock);
	if (want == held)
		return;
	r = hold_guest(p, want, &err);
	if (r)
		log_error("primary", "%s: %s", s->name, err.msg);
	pthread_mutex_lock(&s->lock);
	p->hold_result = r;
	if (r)
		p->want_hold = held;
	else
		p->held = want;
	if (!r && want)
		p->cut_now =
			true; /* what the guest did between the border and its stop is committed too, and let out */
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

/* Nobody could give the guest back once the session is over. */
static void end_hold(struct primary *p)
{
	struct ft_session *s = p->s;
	bool held;

	pthread_mutex_lock(&s->lock);
	held = p->held;
	p->want_hold = p->held = false;
	pthread_mutex_unlock(&s->lock);
	if (!held)
		return;
	let_run(p);
	atomic_store(&s->guest_paused, false);
}

static void epochs(struct primary *p)
{
	bool cut;

	note(p, SAYS_PROTECTED); /* from its first epoch on the secondary has an image */
	if (sync_run(p) || wait_first_ack(p))
		return;
	p->protected_ns = now_ns();
	resync_protected(p);
	change(p, EV_FIRST_COMMIT, NULL);
	while (epoch_wait(p, &cut) == 0) {
		if (cut && epoch_run(p))
			return;
		serve_hold(p);
	}
}

/* What was not sent goes back to the free slabs; ft-ship has ended. */
static void reclaim(struct primary *p)
{
	struct cds_wfcq_node *node;

	while ((node = queue_drain(&p->to_ship))) {
		struct work *w = (struct work *)node;

		if (w->kind == WORK_SLAB)
			queue_put(&p->free_slabs, &w->node);
	}
}

static void serve(struct primary *p)
{
	struct ft_session *s = p->s;
	struct link *link = p->link;
	struct ft_error err = { 0 };
	bool shipping, answering;
	int r;

	r = thread_start(&p->ship_thread, "ft-ship", ship_main, p);
	shipping = r == 0;
	if (!r)
		r = thread_start(&p->answer_thread, "ft-answer", answer_main, p);
	answering = r == 0;
	if (r) {
		err_sys(&err, r, "cannot start a thread");
		primary_lose(p, FTW_CODE_MEMORY, &err);
	} else {
		epochs(p);
	}
	hook_end(p);
	if (session_stopping(s))
		say_goodbye(p);
	if (shipping)
		pthread_join(p->ship_thread, NULL);
	if (answering)
		pthread_join(p->answer_thread, NULL);
	reclaim(p);
	link_count(link, &s->stats);
	pthread_mutex_lock(&s->lock);
	p->link = NULL;
	while (p->link_users)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	memcpy(p->loss, p->loss_error.msg, sizeof(p->loss));
	s->peer[0] = '\0';
	pthread_mutex_unlock(&s->lock);
	link_destroy(link);
	leave_regions(p);
}

static void stop_tracking(struct primary *p)
{
	resync_forget(p);
	if (p->tracking && p->s->ops.track_stop)
		p->s->ops.track_stop(p->s->user);
	p->tracking = false;
}

/* Nothing to do until @deadline but what the operator wants. */
static void idle(struct primary *p, uint64_t deadline)
{
	session_sleep(p->s, deadline, &p->poked);
	serve_hold(p);
}

/* But a connection that is lost right after its full sync, again and again, must not become a loop of full syncs: each time that one
 * did not live longer than the last wait, the next one waits twice as long, up to "reconnect". */
static void pace(struct primary *p, const struct ft_config *cfg)
{
	uint64_t lived_ms = (now_ns() - p->connected_ns) / NS_PER_MS;

	if (lived_ms > PACE_MS + p->pace_ms) {
		p->pace_ms = 0;
		return;
	}
	p->pace_ms = p->pace_ms ? 2 * p->pace_ms : PACE_MS;
	if (p->pace_ms > cfg->reconnect_ms && cfg->reconnect_ms)
		p->pace_ms = cfg->reconnect_ms;
	idle(p, deadline_in_ms(p->pace_ms));
}

/* How long nothing is let out after a loss.  A standby that is being promoted has "commit-timeout" to tell what came of it: it runs, most likely. */
static uint64_t suspect_deadline(const struct primary *p, const struct ft_config *cfg)
{
	bool longer = p->peer_promotes && cfg->commit_timeout_ms > cfg->suspect_ms;

	return deadline_in_ms(longer ? cfg->commit_timeout_ms : cfg->suspect_ms);
}

/* A guest that writes too much now will most likely do so in a moment: the next full sync comes later each time that the last one did not
 * buy a few such waits of protection, but not later than DROP_WAIT_MAX_MS. */
static void wait_after_drop(struct primary *p, const struct ft_config *cfg)
{
	uint64_t lived_ms = p->protected_ns ? (now_ns() - p->protected_ns) / NS_PER_MS : 0, most = DROP_WAIT_MAX_MS;

	if (most < cfg->reconnect_ms)
		most = cfg->reconnect_ms;
	p->drop_ms = p->drop_ms && lived_ms < DROP_LIVED * p->drop_ms ? 2 * p->drop_ms : cfg->reconnect_ms;
	if (p->drop_ms > most)
		p->drop_ms = most;
	idle(p, p->drop_ms ? deadline_in_ms(p->drop_ms) : DEADLINE_NEVER);
}

static void after_loss(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_config cfg;

	stats_count(&s->stats, FT_COUNTER_LOSSES, 1);
	resync_after_loss(p);
	session_config(s, &cfg);
	p->suspect_until_ns = suspect_deadline(p, &cfg);
	if (p->dropped && (!p->output_held || may_go_alone(p))) {
		p->dropped = false;
		change(p, EV_DROPPED, p->loss);
		stop_tracking(p);
		wait_after_drop(p, &cfg);
		return;
	}
	p->dropped = false;
	if (p->output_held) {
		/* ask the secondary again at once: nothing leaves until we know */
		change(p, EV_PEER_LOST_HELD, p->loss);
		pace(p, &cfg);
		return;
	}
	change(p, EV_PEER_LOST, p->loss);
	if (!resync_has_base(p))
		stop_tracking(p);
	idle(p, cfg.reconnect_ms ? deadline_in_ms(cfg.reconnect_ms) : DEADLINE_NEVER);
}

/* ---- between connections ---- */

/* How long an attempt may take: in SUSPECT no longer than until output is let go. */
static uint64_t attempt_deadline(struct primary *p, const struct ft_config *cfg)
{
	uint64_t deadline = deadline_in_ms(cfg->connect_timeout_ms);

	if (session_state(p->s) == FT_STATE_SUSPECT && cfg->on_loss == FT_ON_LOSS_CONTINUE &&
	    p->suspect_until_ns < deadline)
		return p->suspect_until_ns;
	return deadline;
}

/* Is it time to go on alone?  One who comes much too late to this question was stopped himself, and the standby may have been promoted
 * meanwhile: he gets the time once more, to ask. */
static bool suspect_over(struct primary *p, const struct ft_config *cfg)
{
	uint64_t now = now_ns();

	if (cfg->on_loss != FT_ON_LOSS_CONTINUE || now < p->suspect_until_ns)
		return false;
	if (now < p->suspect_until_ns + OVERSLEPT_MS * NS_PER_MS)
		return true;
	p->suspect_until_ns = suspect_deadline(p, cfg);
	return false;
}

static void wait_for_next_attempt(struct primary *p, const struct ft_error *why)
{
	struct ft_session *s = p->s;
	char reason[2 * FT_ERROR_MAX + 16];
	struct ft_config cfg;
	uint64_t until;

	session_config(s, &cfg);
	if (strcmp(why->msg, p->attempt_error) != 0) { /* told once, not each time */
		memcpy(p->attempt_error, why->msg, sizeof(p->attempt_error));
		log_warn("primary", "%s: %s", s->name, why->msg);
	}
	snprintf(reason, sizeof(reason), "%s%s%s", p->loss, *p->loss ? "; tried again: " : "", why->msg);
	reason[FT_ERROR_MAX - 1] = '\0';
	if (session_state(s) == FT_STATE_SUSPECT) {
		if (!suspect_over(p, &cfg)) {
			session_reason(s, reason);
		} else if (may_go_alone(p)) {
			change(p, EV_SUSPECT_OVER, reason);
			if (!resync_has_base(p))
				stop_tracking(p);
		}
		until = deadline_in_ms(SUSPECT_RETRY_MS);
	} else {
		session_reason(s, reason);
		until = cfg.reconnect_ms ? deadline_in_ms(cfg.reconnect_ms) : DEADLINE_NEVER;
	}
	idle(p, until);
}

/* In SUSPECT the secondary has the checkpoint to go on from, and would give it up for the full sync of a primary that is back: one whose machine
 * has ended must not ask for that.  But before output goes free the secondary is asked in any case whether it runs the machine. */
static int ready(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	struct ft_session *s = p->s;

	if (!s->ops.ready || session_state(s) != FT_STATE_SUSPECT)
		return 0;
	if (cfg->on_loss == FT_ON_LOSS_CONTINUE && now_ns() + LAST_ASK_MS * NS_PER_MS >= p->suspect_until_ns)
		return 0;
	return s->ops.ready(s->user, err);
}

/* An end of which the secondary knows nothing is not written down: then it may be promoted, and the next start must ask. */
static void note_end(struct primary *p)
{
	if (p->goodbye || p->s->written.now.word == SAYS_RUNNING)
		note(p, SAYS_STOPPED);
}

static void attempt(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	struct ft_config cfg;
	bool promoting;
	int r;

	session_config(s, &cfg);
	promoting = p->peer_promotes;
	r = ready(p, &cfg, &err);
	if (!r)
		r = handshake(p, attempt_deadline(p, &cfg), &err);
	if (promoting && !p->peer_promotes)
		p->suspect_until_ns = suspect_deadline(p, &cfg);
	if (r == -EOWNERDEAD) {
		fence(p, EV_PEER_ACTIVE, err.msg);
		return;
	}
	if (r) {
		wait_for_next_attempt(p, &err);
		return;
	}
	if (*p->loss)
		stats_count(&s->stats, FT_COUNTER_RECONNECTS, 1);
	reset_connection(p);
	p->connected_ns = now_ns();
	p->protected_ns = 0;
	p->attempt_error[0] = '\0';
	change(p, EV_HELLO_OK, NULL);
	serve(p);
	if (!session_stopping(s))
		after_loss(p);
}

void *epoch_main(void *arg)
{
	struct primary *p = arg;
	struct ft_session *s = p->s;

	while (!session_stopping(s) && session_state(s) != FT_STATE_FENCED)
		if (!stood_down(p))
			attempt(p);
	stop_tracking(p);
	leave(p);
	if (session_state(s) != FT_STATE_FENCED) {
		end_hold(p);
		note_end(p);
	}
	session_sleep(s, DEADLINE_NEVER, NULL); /* FENCED: until the end */
	change(p, EV_STOP, "stopped");
	return NULL;
}
