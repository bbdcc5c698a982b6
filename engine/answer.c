/* SPDX-License-Identifier: MIT */
/* answer.c - ft-answer, one of the primary's two threads of a connection (ship.c is the other one), receives acks and lets output out, sends
 * heartbeats, and notices when the secondary is silent or late.  It does not touch the guest.
 *
 * Must hold
 *   - output of n is let out only by ack(n) (promise 1), and only while the lease is held, if there is a witness (primary_lease.c);
 *   - the secondary is believed only what it may say: in order, and of what was sent. */
#include "primary.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "clock.h"
#include "err.h"
#include "log.h"

/* Added to commit-timeout for applied: a page fault costs 12 to 17 us on nested machines. */
#define APPLY_NS_PER_PAGE 50000

static struct epoch_job *job_of_locked(struct primary *p, uint64_t epoch)
{
	for (unsigned i = 0; i < p->nr_jobs; i++)
		if (p->job[i].busy && p->job[i].epoch == epoch)
			return &p->job[i];
	return NULL;
}

/* Most answers are waited for by nobody: an idle guest's epochs need not wake ft-epoch three times each. */
static void answered_locked(struct primary *p)
{
	if (p->awaiting)
		pthread_cond_broadcast(&p->s->cond);
}

static int on_ack(struct primary *p, uint64_t epoch, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t now = now_ns(), cut_ns, sent_ns, acked;
	struct epoch_job *job;
	bool out;

	pthread_mutex_lock(&s->lock);
	acked = p->acked;
	job = epoch == acked + 1 && epoch <= p->sent ? job_of_locked(p, epoch) : NULL;
	pthread_mutex_unlock(&s->lock);
	if (!job)
		return epoch == acked + 1
			       ? err_set(err, -EPROTO, "ack of epoch %" PRIu64 ", which was not committed", epoch)
			       : err_set(err, -EPROTO, "ack of epoch %" PRIu64 ", expected %" PRIu64, epoch, acked + 1);
	/* before anybody is told: a checkpoint that is over has let its output out, but for one whose lease is late */
	out = release_acked(p, epoch);
	pthread_mutex_lock(&s->lock);
	cut_ns = job->cut_ns;
	sent_ns = job->sent_ns;
	job->busy = false;
	p->acked = epoch;
	p->acked_ns = now;
	p->acked_pages = job->apply_pages;
	p->cost.link_pages = job->nr_pages;
	p->cost.sent_pages = job->sent_pages;
	p->cost.link_ns = job->ship_ns + (now - sent_ns);
	atomic_store(&s->epoch_acked, epoch);
	answered_locked(p);
	pthread_mutex_unlock(&s->lock);
	stats_count(&s->stats, FT_COUNTER_EPOCHS, 1);
	stats_add(&s->stats, FT_METRIC_ACK, now - sent_ns);
	stats_phase(&s->stats, PHASE_ACK, now - sent_ns);
	if (out)
		stats_add(&s->stats, FT_METRIC_OUTPUT_DELAY, now_ns() - cut_ns);
	session_tell(s, FT_EVENT_EPOCH, epoch);
	return 0;
}

static void raise_freed_locked(struct primary *p, uint64_t freed)
{
	if (freed > p->room.freed)
		p->room.freed = freed;
}

/* Behind the last position that the secondary may free before it has applied one epoch more. */
static uint64_t may_free_locked(const struct primary *p)
{
	return p->applied < p->sent ? p->ring_end[(p->applied + 1) % FTW_EPOCH_CREDITS_MAX]
				    : atomic_load(&p->ring_told);
}

static int check_room_locked(const struct primary *p, const struct room *room, struct ft_error *err)
{
	uint64_t slots = p->room.slots, most = slots ? may_free_locked(p) : 0;

	if (!p->uses_ring)
		return err_set(err, -EPROTO, "room in a ring, but the placement is mirror");
	if (slots && slots != room->slots)
		return err_set(err, -EPROTO, "room of %" PRIu64 " slots, %" PRIu64 " were expected", room->slots,
			       slots);
	if (room->freed > most)
		return err_set(err, -EPROTO, "room up to position %" PRIu64 ", it was told up to %" PRIu64, room->freed,
			       most);
	return 0;
}

/* A room that says less than we know was on its way when an epoch was applied. */
static int on_room(struct primary *p, struct cursor *body, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct room room;
	int r = consume_room(body, &room, err);

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	r = check_room_locked(p, &room, err);
	if (!r) {
		if (!p->room.slots) /* ft-ship reads it without the lock from then on */
			p->room.slots = room.slots;
		raise_freed_locked(p, room.freed);
		answered_locked(p);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int on_applied(struct primary *p, uint64_t epoch, struct ft_error *err)
{
	struct ft_session *s = p->s;
	uint64_t applied, acked, took;

	pthread_mutex_lock(&s->lock);
	applied = p->applied;
	acked = p->acked;
	took = now_ns() - p->acked_ns;
	if (epoch == applied + 1 && epoch <= acked) {
		p->applied = epoch;
		raise_freed_locked(p, p->ring_end[epoch % FTW_EPOCH_CREDITS_MAX]);
		p->cost.apply_ns = took;
		atomic_store(&s->epoch_applied, epoch);
		answered_locked(p);
	}
	pthread_mutex_unlock(&s->lock);
	if (epoch != applied + 1)
		return err_set(err, -EPROTO, "applied of epoch %" PRIu64 ", expected %" PRIu64, epoch, applied + 1);
	if (epoch > acked)
		return err_set(err, -EPROTO, "applied of epoch %" PRIu64 ", which was not acknowledged", epoch);
	stats_add(&s->stats, FT_METRIC_APPLIED, took);
	stats_phase(&s->stats, PHASE_APPLY, took);
	return 0;
}

/* What it may say resync_agree() knows, which waits for it. */
static int on_base_ack(struct primary *p, struct cursor *body, struct ft_error *err)
{
	uint64_t epoch;
	int r = consume_base_ack(body, &epoch, err);

	if (r)
		return r;
	if (!p->resync.in_use)
		return err_set(err, -EPROTO, "base-ack, and no base was named");
	resync_answered(p, epoch);
	return 0;
}

struct answers {
	uint64_t heard_ns, beat_ns; /* last record that came, last heartbeat sent */
	uint64_t working; /* epoch over whose side stream the secondary takes long: it has no credits for heartbeats */
	uint64_t echo_ns;
	uint64_t pause_told_ns; /* the pause that was complained of */
};

/* A secondary that is being promoted says so with its bye: what comes of it is told when it is asked again (protect.c). */
static int on_goodbye(struct primary *p, const struct record_head *head, struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	p->peer_promotes = head->type == FTW_BYE && why.code == FTW_CODE_ACTIVE;
	return err_set(err, -ECONNRESET, "secondary %s: %.*s", head->type == FTW_BYE ? "ended" : "gave up",
		       (int)why.reason_bytes, why.text);
}

static int on_record(struct primary *p, struct answers *a, uint32_t lane, const struct record_head *head,
		     struct cursor *body, struct ft_error *err)
{
	struct heartbeat beat;
	char name[24];
	int r;

	if (lane != 0)
		return err_set(err, -EPROTO, "%s on data lane %u", record_name(head->type, name), lane);
	switch (head->type) {
	case FTW_ACK:
		r = consume_epoch_mark(body, err);
		return r ? r : on_ack(p, head->epoch, err);
	case FTW_APPLIED:
		r = consume_epoch_mark(body, err);
		return r ? r : on_applied(p, head->epoch, err);
	case FTW_ROOM:
		return on_room(p, body, err);
	case FTW_BASE_ACK:
		return on_base_ack(p, body, err);
	case FTW_WORKING:
		a->working = head->epoch;
		return consume_epoch_mark(body, err);
	case FTW_HEARTBEAT:
		r = consume_heartbeat(body, &beat, err);
		a->echo_ns = beat.time_ns;
		return r;
	case FTW_BYE:
	case FTW_ERROR:
		return on_goodbye(p, head, body, err);
	default:
		if ((head->type & FTW_OPTIONAL) && !record_type_find(head->type))
			return 0;
		return err_set(err, -EPROTO, "unexpected %s from the secondary", record_name(head->type, name));
	}
}

/* The engine cannot cut a VMM's callback short, but it says so: no epoch comes, output is held, and the guest may be standing. */
static void watch_pause(struct primary *p, struct answers *a, uint64_t now)
{
	struct ft_session *s = p->s;
	uint64_t since = atomic_load(&p->pausing_ns);
	char text[FT_ERROR_MAX];
	struct ft_config cfg;

	if (a->pause_told_ns && since != a->pause_told_ns) {
		a->pause_told_ns = 0;
		session_reason(s, "");
	}
	session_config(s, &cfg);
	if (!since || now < since + cfg.pause_max_ms * NS_PER_MS || since == a->pause_told_ns)
		return;
	a->pause_told_ns = since;
	snprintf(text, sizeof(text),
		 "the VMM has not come back from a pause within %u ms (pause-max): no epoch is taken",
		 cfg.pause_max_ms);
	log_warn("primary", "%s: %s", s->name, text);
	session_reason(s, text);
}

static bool at_work(const struct primary *p, const struct answers *a)
{
	return a->working == atomic_load(&p->s->epoch_acked) + 1;
}

static uint64_t silence_max_ns(const struct primary *p, const struct answers *a)
{
	uint64_t ms = (uint64_t)p->heartbeat_ms * p->heartbeat_misses;
	struct ft_config cfg;

	if (at_work(p, a)) {
		session_config(p->s, &cfg);
		ms = cfg.commit_timeout_ms > ms ? cfg.commit_timeout_ms : ms;
	}
	return ms * NS_PER_MS;
}

/* A secondary that answers heartbeats but does not get on with its work is lost too. */
static int check_late(struct primary *p, uint64_t now, struct ft_error *err)
{
	struct ft_session *s = p->s;
	const struct epoch_job *job;
	const char *what = "acknowledge";
	uint64_t since = 0, pages = 0, limit;

	pthread_mutex_lock(&s->lock);
	limit = s->cfg.commit_timeout_ms * NS_PER_MS;
	job = p->acked < p->sent ? job_of_locked(p, p->acked + 1) : NULL;
	if (p->applied < p->acked) {
		what = "apply";
		since = p->acked_ns;
		pages = p->acked_pages;
	} else if (job) {
		since = job->sent_ns;
	}
	pthread_mutex_unlock(&s->lock);
	limit += pages * APPLY_NS_PER_PAGE;
	if (!since || now < since + limit)
		return 0;
	return err_set(err, -ETIMEDOUT,
		       "the secondary is alive but did not %s an epoch within %llu ms (commit-timeout)", what,
		       (unsigned long long)(limit / NS_PER_MS));
}

static int silent(const struct primary *p, const struct answers *a, uint64_t ns, struct ft_error *err)
{
	if (at_work(p, a))
		return err_set(
			err, -ETIMEDOUT,
			"no word from the secondary for %llu ms (commit-timeout): its machine was at work on the "
			"side stream",
			(unsigned long long)(ns / NS_PER_MS));
	return err_set(err, -ETIMEDOUT, "no word from the secondary for %llu ms (%u heartbeats of %u ms)",
		       (unsigned long long)(ns / NS_PER_MS), p->heartbeat_misses, p->heartbeat_ms);
}

/* A heartbeat that was left out is not missed: either something else is on its way, or the secondary does not read. */
static int keep_time(struct primary *p, struct answers *a, bool quiet, struct ft_error *err)
{
	uint64_t now = now_ns(), limit = silence_max_ns(p, a), beat = p->heartbeat_ms * NS_PER_MS;

	if (now >= a->beat_ns + beat) {
		uint64_t deadline = a->heard_ns + limit > now + beat ? a->heard_ns + limit : now + beat;
		int r = link_send_heartbeat(p->link, a->echo_ns, deadline, err);

		if (r && r != -EAGAIN && !link_hear_first(p->link, r))
			return r == -ETIMEDOUT ? silent(p, a, now_ns() - a->heard_ns, err) : r;
		a->beat_ns = now;
		link_count(p->link, &p->s->stats);
		watch_pause(p, a, now);
	}
	/* judged only when nothing was waiting to be read: a machine that was stopped itself first reads what came meanwhile */
	if (quiet && now - a->heard_ns > limit)
		return silent(p, a, now - a->heard_ns, err);
	return check_late(p, now, err);
}

/* When to look at the clock: at the next heartbeat, and at least a few times within commit-timeout. */
static uint64_t next_look(const struct primary *p, const struct answers *a)
{
	uint64_t beat = a->beat_ns + p->heartbeat_ms * NS_PER_MS, look;
	struct ft_config cfg;

	session_config(p->s, &cfg);
	look = deadline_in_ms(cfg.commit_timeout_ms / 4);
	return look < beat ? look : beat;
}

void *answer_main(void *arg)
{
	struct primary *p = arg;
	struct answers a = { .heard_ns = now_ns() };
	struct ft_error err = { 0 };
	uint32_t code = FTW_CODE_NONE;
	int r = 0;

	while (!r) {
		struct record_head head;
		struct cursor body;
		const void *msg;
		uint32_t lane;
		size_t len;

		r = link_receive(p->link, &lane, &head, &body, &msg, &len, next_look(p, &a), &err);
		if (r == 0) {
			a.heard_ns = now_ns();
			r = on_record(p, &a, lane, &head, &body, &err);
			code = r == -EPROTO ? FTW_CODE_PROTOCOL : FTW_CODE_NONE;
			if (!r)
				r = keep_time(p, &a, false, &err);
		} else if (r == -ETIMEDOUT) {
			err_clear(&err);
			r = keep_time(p, &a, true, &err);
		} else {
			code = r == -EPROTO ? FTW_CODE_PROTOCOL : FTW_CODE_NONE;
			err_prefix(&err, "connection to the secondary");
		}
	}
	primary_lose(p, code, &err);
	return NULL;
}
