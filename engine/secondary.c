/* SPDX-License-Identifier: MIT */
/* secondary.c - a secondary: greets primaries, receives, acknowledges, applies, and is promoted.
 *
 * Threads
 *   ft-accept  lives with the session: accepts connections, answers hello or refuses with the reason
 *   ft-receive lives with a connection: feeds records to the standby (checkpoint/standby.c), acks, heartbeats
 *   ft-apply   lives with the session: copies committed epochs into the standby image, answers applied
 * Failover runs on its caller's thread, after receiving has ended and the last apply is done.
 *
 * Must hold
 *   - ack(n) is sent only after the standby holds all of n and the state says STANDBY: what was acknowledged can be promoted;
 *   - the window of the receive image is open only while the peer may write: from hello or applied(n) to commit(n+1);
 *   - an apply that was begun is finished, also when the connection ends, before failover loads or a new session begins. */
#include "session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "link.h"
#include "log.h"
#include "standby.h"
#include "thread.h"

#define HELLO_MS 3000	  /* a peer that says nothing is sent away after that */
#define BYE_MS 200	  /* an orderly end does not wait longer for room in the socket */
#define SEND_MS 1000	  /* for the small records of lane 0 */
#define ACCEPT_RETRY_MS 100

struct secondary {
	struct ft_session *s;
	struct tp_listener *listener;
	pthread_t accept_thread, apply_thread;
	bool accept_made, apply_made;

	pthread_mutex_t standby_lock; /* rank: below the session's lock is never taken with it held */
	struct standby *standby;      /* guarded by standby_lock, but for standby_apply_run() */

	/* of the connection; set by ft-accept before ft-receive exists */
	struct link *link;
	pthread_t receive_thread;
	uint8_t session_id[16];
	uint32_t heartbeat_ms, heartbeat_misses;
	uint64_t generation;

	/* guarded by s->lock */
	bool receiving;	     /* ft-receive runs */
	unsigned link_users; /* other threads inside of the link; ft-receive waits for them before it frees it */
	bool receive_made;   /* ... and is to be joined */
	bool apply_wanted;   /* an epoch is committed and not applied */
	bool applying;
	bool bye;	     /* the primary ended the protection */
	bool quit;	     /* ft-apply is to end */
	bool complete;	     /* an epoch of some session was committed since the start */
};

/* ---- the link, used by another thread than ft-receive ---- */

static bool link_get(struct secondary *c)
{
	bool there;

	pthread_mutex_lock(&c->s->lock);
	there = c->receiving;
	c->link_users += there;
	pthread_mutex_unlock(&c->s->lock);
	return there;
}

static void link_put(struct secondary *c)
{
	pthread_mutex_lock(&c->s->lock);
	c->link_users--;
	pthread_cond_broadcast(&c->s->cond);
	pthread_mutex_unlock(&c->s->lock);
}

/* ---- the end of a connection ---- */

static void wait_received(struct secondary *c)
{
	struct ft_session *s = c->s;
	bool join;

	pthread_mutex_lock(&s->lock);
	while (c->receiving)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	join = c->receive_made;
	c->receive_made = false;
	pthread_mutex_unlock(&s->lock);
	if (join)
		pthread_join(c->receive_thread, NULL);
}

static void end_connection(struct secondary *c, const char *why)
{
	if (link_get(c)) {
		link_send_reason(c->link, FTW_BYE, FTW_CODE_STOPPED, why, deadline_in_ms(BYE_MS));
		tp_cancel(c->link->conn);
		link_put(c);
	}
	wait_received(c);
}

static void wait_applied(struct secondary *c)
{
	struct ft_session *s = c->s;

	pthread_mutex_lock(&s->lock);
	while (c->apply_wanted || c->applying)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->lock);
}

/* ---- ft-apply ---- */

static int open_image(struct secondary *c, struct link *l, struct ft_error *err)
{
	uint64_t len;
	void *image = standby_image(c->standby, &len); /* before the call: the order in which arguments are computed is free */

	return tp_window_open(l->conn, FTW_WINDOW_IMAGE, image, len, err);
}

/* The image may be written again: say so, if the primary is still there. */
static void answer_applied(struct secondary *c, uint64_t epoch)
{
	struct ft_session *s = c->s;
	struct ft_error err = { 0 };
	int r;

	if (!link_get(c))
		return;
	r = open_image(c, c->link, &err);
	if (!r)
		r = link_send_mark(c->link, FTW_APPLIED, epoch, deadline_in_ms(SEND_MS), &err);
	if (r) {
		log_warn("secondary", "%s: applied of epoch %llu: %s", s->name, (unsigned long long)epoch, err.msg);
		tp_cancel(c->link->conn);
	}
	link_put(c);
}

static void apply(struct secondary *c)
{
	struct ft_session *s = c->s;
	uint64_t begun = now_ns(), pages, epoch, took;

	pthread_mutex_lock(&c->standby_lock);
	standby_begin_apply(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	pages = standby_apply_run(c->standby);
	pthread_mutex_lock(&c->standby_lock);
	standby_end_apply(c->standby);
	epoch = standby_epoch_applied(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	took = now_ns() - begun;
	stats_add(&s->stats, FT_METRIC_APPLY, took);
	stats_add(&s->stats, FT_METRIC_APPLY_PAGES, pages);
	stats_phase(&s->stats, PHASE_APPLY, took);
	atomic_store(&s->epoch_applied, epoch);
	session_tell(s, FT_EVENT_EPOCH, epoch);
	answer_applied(c, epoch);
}

static void *apply_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!c->apply_wanted && !c->quit)
			cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
		if (!c->apply_wanted)
			break;
		c->applying = true;
		c->apply_wanted = false;
		pthread_mutex_unlock(&s->lock);
		apply(c);
		pthread_mutex_lock(&s->lock);
		c->applying = false;
		pthread_cond_broadcast(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- ft-receive ---- */

struct reception {
	uint64_t heard_ns, beat_ns, echo_ns;
	uint64_t epoch_ns; /* first record of the epoch under way, 0 none */
};

static int committed(struct secondary *c, struct reception *rx, struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint64_t epoch;
	int r;

	tp_window_close(c->link->conn, FTW_WINDOW_IMAGE);
	pthread_mutex_lock(&c->standby_lock);
	epoch = standby_epoch_committed(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	pthread_mutex_lock(&s->lock);
	c->complete = true;
	s->image_stale = false;
	pthread_mutex_unlock(&s->lock);
	atomic_store(&s->epoch_acked, epoch);
	atomic_store(&s->epoch_running, epoch + 1);
	session_event_from(s, FT_STATE_STANDBY_SYNCING, EV_FIRST_COMMIT, NULL);
	stats_count(&s->stats, FT_COUNTER_EPOCHS, 1);
	stats_add(&s->stats, FT_METRIC_RECEIVE, now_ns() - rx->epoch_ns);
	stats_phase(&s->stats, PHASE_RECEIVE, now_ns() - rx->epoch_ns);
	rx->epoch_ns = 0;
	r = link_send_mark(c->link, FTW_ACK, epoch, deadline_in_ms(SEND_MS), err);
	/* applied also when the ack cannot be sent: the epoch is committed */
	pthread_mutex_lock(&s->lock);
	c->apply_wanted = true;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int on_page_record(struct secondary *c, struct reception *rx, uint32_t lane, const void *msg, size_t len,
			  struct ft_error *err)
{
	enum standby_event event = STANDBY_NOTHING;
	int r;

	if (!rx->epoch_ns)
		rx->epoch_ns = now_ns();
	pthread_mutex_lock(&c->standby_lock);
	r = standby_consume(c->standby, lane, msg, len, &event, err);
	pthread_mutex_unlock(&c->standby_lock);
	if (r)
		return r;
	return event == STANDBY_COMMITTED ? committed(c, rx, err) : 0;
}

static int on_sync_progress(struct secondary *c, const struct record_head *head, struct cursor *body, struct ft_error *err)
{
	struct ft_session *s = c->s;
	struct sync_progress sp;
	int r = consume_sync_progress(body, &sp, err);

	if (r)
		return r;
	atomic_store(&s->sync_round, sp.round);
	atomic_store(&s->sync_done, sp.pages_done);
	atomic_store(&s->sync_total, sp.pages_total);
	session_tell(s, FT_EVENT_SYNC, head->epoch);
	return 0;
}

static int on_goodbye(struct secondary *c, const struct record_head *head, struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	if (head->type == FTW_BYE) {
		pthread_mutex_lock(&c->s->lock);
		c->bye = true;
		pthread_mutex_unlock(&c->s->lock);
	}
	return err_set(err, -ECONNRESET, "primary %s: %.*s", head->type == FTW_BYE ? "ended" : "gave up", (int)why.reason_bytes,
		       why.text);
}

static int on_record(struct secondary *c, struct reception *rx, uint32_t lane, const struct record_head *head, struct cursor *body,
		     const void *msg, size_t len, struct ft_error *err)
{
	struct heartbeat beat;
	char name[24];
	int r;

	switch (head->type) {
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
	case FTW_DEVICE_STATE:
	case FTW_COMMIT:
		return on_page_record(c, rx, lane, msg, len, err);
	case FTW_HEARTBEAT:
		r = consume_heartbeat(body, &beat, err);
		rx->echo_ns = beat.time_ns;
		return r;
	case FTW_SYNC_PROGRESS:
		return on_sync_progress(c, head, body, err);
	case FTW_BYE:
	case FTW_ERROR:
		return on_goodbye(c, head, body, err);
	default:
		if (head->type & FTW_OPTIONAL)
			return 0;
		return err_set(err, -EPROTO, "unexpected %s from the primary", record_name(head->type, name));
	}
}

static int keep_time(struct secondary *c, struct reception *rx, bool quiet, struct ft_error *err)
{
	uint64_t now = now_ns(), limit = (uint64_t)c->heartbeat_ms * c->heartbeat_misses * NS_PER_MS;

	if (now >= rx->beat_ns + c->heartbeat_ms * NS_PER_MS) {
		int r = link_send_heartbeat(c->link, rx->echo_ns, now + limit, err);

		if (r)
			return r;
		rx->beat_ns = now;
	}
	if (quiet && now - rx->heard_ns > limit)
		return err_set(err, -ETIMEDOUT, "no word from the primary for %llu ms (%u heartbeats of %u ms)",
			       (unsigned long long)((now - rx->heard_ns) / NS_PER_MS), c->heartbeat_misses, c->heartbeat_ms);
	return 0;
}

static uint32_t code_of(int r)
{
	switch (r) {
	case -EPROTO:
	case -ESTALE:
		return FTW_CODE_PROTOCOL;
	case -EBADMSG:
		return FTW_CODE_DIGEST;
	case -E2BIG:
		return FTW_CODE_LIMIT;
	default:
		return FTW_CODE_NONE;
	}
}

/* Long writes come in without a message for a while: octets that arrive are a word too. */
static bool octets_came(struct secondary *c, uint64_t *seen)
{
	struct tp_stats st;
	bool more;

	tp_stats(c->link->conn, &st);
	more = st.bytes_received != *seen;
	*seen = st.bytes_received;
	return more;
}

static int receive_until_lost(struct secondary *c, struct ft_error *err)
{
	struct reception rx = { .heard_ns = now_ns() };
	uint64_t seen = 0;
	int r = 0;

	while (!r) {
		struct record_head head;
		struct cursor body;
		const void *msg;
		uint32_t lane;
		size_t len;

		r = link_receive(c->link, &lane, &head, &body, &msg, &len, rx.beat_ns + c->heartbeat_ms * NS_PER_MS, err);
		if (r == 0) {
			rx.heard_ns = now_ns();
			r = on_record(c, &rx, lane, &head, &body, msg, len, err);
			if (!r)
				r = keep_time(c, &rx, false, err);
		} else if (r == -ETIMEDOUT) {
			err_clear(err);
			if (octets_came(c, &seen))
				rx.heard_ns = now_ns();
			r = keep_time(c, &rx, true, err);
		}
	}
	return r;
}

static void lost(struct secondary *c, int r, struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint32_t code = code_of(r);
	bool bye;

	pthread_mutex_lock(&s->lock);
	bye = c->bye;
	pthread_mutex_unlock(&s->lock);
	if (code != FTW_CODE_NONE) {
		stats_count(&s->stats, FT_COUNTER_REFUSALS, 1);
		link_send_reason(c->link, FTW_ERROR, code, err->msg, deadline_in_ms(SEND_MS));
	}
	stats_count(&s->stats, FT_COUNTER_LOSSES, 1);
	stats_count(&s->stats, FT_COUNTER_DUPLICATES, atomic_load(&c->link->duplicates));
	log_warn("secondary", "%s: %s", s->name, err->msg);
	if (session_event_from(s, FT_STATE_STANDBY, bye ? EV_PEER_BYE : EV_PEER_LOST_HELD, err->msg) < 0)
		session_event_from(s, FT_STATE_STANDBY_SYNCING, bye ? EV_PEER_BYE : EV_PEER_LOST, err->msg);
}

static void *receive_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;
	struct ft_error err = { 0 };
	struct link *link;
	int r = receive_until_lost(c, &err);

	lost(c, r, &err);
	tp_cancel(c->link->conn);
	pthread_mutex_lock(&s->lock);
	while (c->link_users)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	link = c->link;
	c->link = NULL;
	c->receiving = false;
	s->peer[0] = '\0';
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	link_destroy(link);
	return NULL;
}

/* ---- hello ---- */

struct greeting {
	struct link *link;
	struct hello hello;
	char identity[FT_IDENTITY_MAX];
	struct region_entry *regions;
	uint32_t nr_regions;
	uint32_t code; /* of a refusal */
};

static int refuse(struct greeting *g, uint32_t code, struct ft_error *err, const char *fmt, ...) FT_PRINTF(4, 5);
static int refuse(struct greeting *g, uint32_t code, struct ft_error *err, const char *fmt, ...)
{
	char text[FT_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	g->code = code;
	return err_set(err, -ECONNREFUSED, "%s", text);
}

static int receive_typed(struct greeting *g, uint32_t type, struct cursor *body, uint64_t deadline, struct ft_error *err)
{
	struct record_head head;
	const void *msg;
	uint32_t lane;
	size_t len;
	char got[24], want[24];
	int r = link_receive(g->link, &lane, &head, body, &msg, &len, deadline, err);

	if (r)
		return r == -ETIMEDOUT ? err_set(err, r, "no %s came within %u ms", record_name(type, want), HELLO_MS) : r;
	if (head.type != type || lane != 0)
		return refuse(g, FTW_CODE_PROTOCOL, err, "%s on lane %u instead of %s", record_name(head.type, got), lane,
			      record_name(type, want));
	return 0;
}

static int check_version(struct greeting *g, struct ft_error *err)
{
	const struct hello *h = &g->hello;

	if (h->version_max < FTW_VERSION_MIN || h->version_min > FTW_VERSION_MAX)
		return refuse(g, FTW_CODE_VERSION, err, "hello: version %u to %u, we speak %u to %u", h->version_min, h->version_max,
			      FTW_VERSION_MIN, FTW_VERSION_MAX);
	if (h->capabilities_needed)
		return refuse(g, FTW_CODE_CAPABILITY, err, "hello: needs capabilities 0x%llx, which we do not have",
			      (unsigned long long)h->capabilities_needed);
	if (h->placement != FTW_PLACEMENT_MIRROR || h->mode != FTW_MODE_CHECKPOINT || h->page_bytes != FT_PAGE_SIZE)
		return refuse(g, FTW_CODE_LAYOUT, err, "hello: placement %u, mode %u, page size %u; we have placement 1, mode 1, page size %u",
			      h->placement, h->mode, h->page_bytes, FT_PAGE_SIZE);
	return 0;
}

static int check_limits(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_config cfg;

	session_config(c->s, &cfg);
	if (g->hello.state_max > cfg.state_max)
		return refuse(g, FTW_CODE_LIMIT, err, "hello: device state of up to %llu octets, state-max here is %llu",
			      (unsigned long long)g->hello.state_max, (unsigned long long)cfg.state_max);
	if (g->hello.lanes != g->link->lanes - 1)
		return refuse(g, FTW_CODE_PROTOCOL, err, "hello: %u data lanes, the connection has %u", g->hello.lanes, g->link->lanes - 1);
	return 0;
}

static int check_identity(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	int r;

	if (s->ops.check_identity) {
		r = s->ops.check_identity(s->user, g->identity, err);
		if (r)
			g->code = FTW_CODE_IDENTITY;
		return r;
	}
	if (strcmp(g->identity, s->identity) != 0)
		return refuse(g, FTW_CODE_IDENTITY, err, "identity: the primary's machine is \"%.100s\", ours is \"%.100s\"", g->identity,
			      s->identity);
	return 0;
}

static int check_layout(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	const struct region_table *t = c->s->regions; /* constant on a secondary that was started */
	int r = region_table_matches(t, g->regions, g->nr_regions, err);

	if (r) {
		g->code = FTW_CODE_LAYOUT;
		return err_prefix(err, "memory layout");
	}
	if (g->hello.nr_pages != t->nr_pages)
		return refuse(g, FTW_CODE_LAYOUT, err, "memory layout: page space of %llu pages, ours has %llu",
			      (unsigned long long)g->hello.nr_pages, (unsigned long long)t->nr_pages);
	return 0;
}

/* May this primary have us?  While a promotion is under way its outcome is awaited: it decides who runs. */
static int check_role(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	char reason[FT_ERROR_MAX];
	enum ft_state state;
	uint64_t generation;
	bool connected;

	pthread_mutex_lock(&s->lock);
	while (s->state == FT_STATE_PROMOTING && !s->stopping)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	state = s->state;
	generation = s->generation;
	connected = c->receiving;
	memcpy(reason, s->reason, sizeof(reason));
	pthread_mutex_unlock(&s->lock);
	if (state == FT_STATE_ACTIVE)
		return refuse(g, FTW_CODE_ACTIVE, err, "this side was promoted and runs the machine (generation %llu)",
			      (unsigned long long)generation);
	if (state == FT_STATE_REFUSED)
		return refuse(g, FTW_CODE_UNUSABLE, err, "this standby cannot be used any more: %.200s", reason);
	if (connected && memcmp(g->hello.session, c->session_id, sizeof(c->session_id)) != 0)
		return refuse(g, FTW_CODE_BUSY, err, "another primary is connected");
	return 0;
}

/* Strings and entries of a record live in the link's buffer until the next one comes, so the identity is copied. */
static int receive_hello(struct greeting *g, uint64_t deadline, struct ft_error *err)
{
	struct cursor body;
	int r = receive_typed(g, FTW_HELLO, &body, deadline, err);

	if (!r)
		r = consume_hello(&body, &g->hello, err);
	if (r)
		return r;
	if (g->hello.identity_bytes >= sizeof(g->identity))
		return refuse(g, FTW_CODE_LIMIT, err, "hello: identity of %u octets, at most %zu are taken", g->hello.identity_bytes,
			      sizeof(g->identity) - 1);
	memcpy(g->identity, g->hello.identity, g->hello.identity_bytes);
	g->identity[g->hello.identity_bytes] = '\0';
	return 0;
}

static int receive_regions(struct greeting *g, uint64_t deadline, struct ft_error *err)
{
	struct cursor body;
	int r = receive_typed(g, FTW_REGIONS, &body, deadline, err);

	return r ? r : consume_regions(&body, g->regions, FT_REGIONS_MAX, &g->nr_regions, err);
}

static int examine(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	uint64_t deadline = deadline_in_ms(HELLO_MS);
	int r = receive_hello(g, deadline, err);

	if (!r)
		r = check_version(g, err);
	if (!r)
		r = check_role(c, g, err);
	if (!r)
		r = check_limits(c, g, err);
	if (!r)
		r = check_identity(c, g, err);
	if (!r)
		r = receive_regions(g, deadline, err);
	if (!r)
		r = check_layout(c, g, err);
	return r;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static int answer_hello(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	struct ft_config cfg;
	struct hello_ack ack = { .version = FTW_VERSION_MAX, .placement = FTW_PLACEMENT_MIRROR, .epoch_credits = 1 };
	uint32_t seq;
	void *buf;
	int r;

	session_config(s, &cfg);
	c->heartbeat_ms = ack.heartbeat_ms = larger(cfg.heartbeat_ms, g->hello.heartbeat_ms);
	c->heartbeat_misses = ack.heartbeat_misses = larger(cfg.heartbeat_misses, g->hello.heartbeat_misses);
	ack.generation = s->generation;
	ack.epoch_committed = standby_epoch_committed(c->standby);
	memcpy(c->session_id, g->hello.session, sizeof(c->session_id));
	c->generation = g->hello.generation;
	pthread_mutex_lock(&c->standby_lock);
	standby_connect(c->standby, g->hello.lanes);
	standby_restart(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	r = open_image(c, g->link, err);
	if (r)
		return r;
	buf = link_begin(g->link, 0, &seq);
	return link_end(g->link, 0, create_hello_ack(buf, seq, &ack), deadline_in_ms(SEND_MS), err);
}

static int begin_receiving(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	int r;

	atomic_store(&s->epoch_acked, 0);
	atomic_store(&s->epoch_applied, 0);
	atomic_store(&s->epoch_running, 1);
	session_event(s, EV_HELLO_OK, NULL);
	if (session_state(s) != FT_STATE_STANDBY_SYNCING) /* stopped or promoted in between */
		return err_set(err, -ECANCELED, "the secondary is %s", ft_state_name(session_state(s)));
	pthread_mutex_lock(&s->lock);
	c->link = g->link;
	c->bye = false;
	c->receiving = c->receive_made = true;
	snprintf(s->peer, sizeof(s->peer), "%s", tp_peer(g->link->conn));
	pthread_mutex_unlock(&s->lock);
	r = thread_start(&c->receive_thread, "ft-receive", receive_main, c);
	if (!r)
		return 0;
	pthread_mutex_lock(&s->lock);
	c->receiving = c->receive_made = false;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	session_event_from(s, FT_STATE_STANDBY_SYNCING, EV_PEER_LOST, "cannot start a thread");
	return err_sys(err, r, "cannot start a thread");
}

static void turn_away(struct secondary *c, struct greeting *g, int r, struct ft_error *err)
{
	uint32_t code = g->code;

	if (code == FTW_CODE_NONE && r == -EPROTO)
		code = FTW_CODE_PROTOCOL;
	stats_count(&c->s->stats, FT_COUNTER_REFUSALS, 1);
	log_warn("secondary", "%s: refused %s: %s", c->s->name, tp_peer(g->link->conn), err->msg);
	if (code != FTW_CODE_NONE)
		link_send_reason(g->link, FTW_REFUSE, code, err->msg, deadline_in_ms(SEND_MS));
	link_destroy(g->link);
}

static void greet(struct secondary *c, struct greeting *g)
{
	struct ft_error err = { 0 };
	int r = examine(c, g, &err);

	if (!r) {
		/* the same primary again, before we noticed that its old connection is gone; and the last apply must be done */
		end_connection(c, "the same primary connected again");
		wait_applied(c);
		r = answer_hello(c, g, &err);
	}
	if (!r)
		r = begin_receiving(c, g, &err);
	if (r)
		turn_away(c, g, r, &err);
}

/* ---- ft-accept ---- */

static void *accept_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;
	struct greeting *g = calloc(1, sizeof(*g));
	struct region_entry *entries = calloc(FT_REGIONS_MAX, sizeof(*entries));

	while (g && entries && !session_stopping(s)) {
		struct ft_error err = { 0 };
		struct tp_conn *conn;
		int r = tp_accept(c->listener, &conn, DEADLINE_NEVER, s->stop_fd, &err);

		memset(g, 0, sizeof(*g));
		g->regions = entries;
		if (!r)
			r = link_create(&g->link, conn, s->recording, &err);
		if (!r) {
			greet(c, g);
		} else if (r != -ECANCELED) {
			log_warn("secondary", "%s: accept: %s", s->name, err.msg);
			session_sleep(s, deadline_in_ms(ACCEPT_RETRY_MS), NULL);
		}
	}
	free(entries);
	free(g);
	return NULL;
}

/* ---- life ---- */

int secondary_create(struct ft_session *s, struct ft_error *err)
{
	struct secondary *c = calloc(1, sizeof(*c));

	if (!c)
		return err_set(err, -ENOMEM, "no memory for a session");
	c->s = s;
	pthread_mutex_init(&c->standby_lock, NULL);
	s->secondary = c;
	return 0;
}

int secondary_start(struct ft_session *s, struct ft_error *err)
{
	struct secondary *c = s->secondary;
	struct tp_params params = { .lanes = TP_LANES_MAX };
	struct standby_options opt = { .lanes = s->cfg.lanes, .state_max = s->cfg.state_max };
	int r = standby_create(&c->standby, s->regions, &opt, err);

	if (!r)
		r = tp_listen(&c->listener, s->listen_uri, &params, err);
	if (r)
		return r;
	session_event(s, EV_START, NULL);
	r = thread_start(&c->apply_thread, "ft-apply", apply_main, c);
	c->apply_made = r == 0;
	if (!r)
		r = thread_start(&c->accept_thread, "ft-accept", accept_main, c);
	c->accept_made = r == 0;
	if (r) {
		secondary_join(s);
		return err_sys(err, r, "cannot start a thread");
	}
	return 0;
}

void secondary_join(struct ft_session *s)
{
	struct secondary *c = s->secondary;

	if (c->accept_made)
		pthread_join(c->accept_thread, NULL);
	end_connection(c, "the secondary was stopped");
	wait_applied(c);
	pthread_mutex_lock(&s->lock);
	c->quit = true;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	if (c->apply_made)
		pthread_join(c->apply_thread, NULL);
	c->accept_made = c->apply_made = false;
	tp_listener_close(c->listener);
	c->listener = NULL;
	session_event(s, EV_STOP, "stopped");
}

void secondary_destroy(struct ft_session *s)
{
	struct secondary *c = s->secondary;

	if (!c)
		return;
	tp_listener_close(c->listener);
	standby_destroy(c->standby);
	pthread_mutex_destroy(&c->standby_lock);
	free(c);
	s->secondary = NULL;
}

void secondary_memory(struct ft_session *s, uint64_t *used, uint64_t *cap)
{
	struct secondary *c = s->secondary;

	*used = *cap = 0;
	if (!c->standby)
		return;
	pthread_mutex_lock(&c->standby_lock);
	*used = standby_memory_bytes(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	*cap = s->regions->nr_pages * FT_PAGE_SIZE + 2 * s->cfg.state_max;
}

const char *secondary_address(struct ft_session *s)
{
	struct secondary *c = s->secondary;

	return c->listener ? tp_listener_address(c->listener) : NULL;
}

/* ---- failover ---- */

/* What a failover would do in the present state. */
static enum ft_failover_outcome may_promote(struct secondary *c, unsigned flags, enum ft_state *state, struct ft_error *err)
{
	struct ft_session *s = c->s;
	bool force = flags & FT_FAILOVER_FORCE, stale;
	char reason[FT_ERROR_MAX];

	pthread_mutex_lock(&s->lock);
	*state = s->state;
	stale = s->image_stale && c->complete;
	memcpy(reason, s->reason, sizeof(reason));
	pthread_mutex_unlock(&s->lock);
	switch (*state) {
	case FT_STATE_ACTIVE:
		return FT_FAILOVER_ALREADY;
	case FT_STATE_PROMOTING:
		err_set(err, -EBUSY, "a failover is under way");
		return FT_FAILOVER_BUSY;
	case FT_STATE_REFUSED:
		err_set(err, -EIO, "this standby cannot be used any more: %.300s", reason);
		return FT_FAILOVER_FAILED;
	case FT_STATE_STANDBY:
		if (force)
			return FT_FAILOVER_DONE;
		err_set(err, -EBUSY, "the primary is connected and alive; --force takes over all the same, and then both may run");
		return FT_FAILOVER_PEER_ALIVE;
	case FT_STATE_STANDBY_SUSPECT:
		return FT_FAILOVER_DONE;
	case FT_STATE_IDLE:
	case FT_STATE_WAITING:
	case FT_STATE_STANDBY_SYNCING:
		if (stale && force)
			return FT_FAILOVER_DONE;
		if (stale)
			err_set(err, -ENODATA, "there is only an old image: the primary went on without it; --force takes it and loses what came since");
		else
			err_set(err, -ENODATA, "there is no complete image to go on from (state %s)", ft_state_name(*state));
		return FT_FAILOVER_NO_IMAGE;
	case FT_STATE_CONNECTING:
	case FT_STATE_SYNCING:
	case FT_STATE_PROTECTED:
	case FT_STATE_SUSPECT:
	case FT_STATE_ALONE:
	case FT_STATE_FENCED:
	case FT_STATE_COUNT:
		break;
	}
	err_set(err, -EINVAL, "this side is not a secondary (state %s)", ft_state_name(*state));
	return FT_FAILOVER_NOT_SECONDARY;
}

static uint64_t lap(uint64_t *mark)
{
	uint64_t now = now_ns(), took = now - *mark;

	*mark = now;
	return took;
}

static int promote(struct secondary *c, struct ft_failover_result *res, struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint64_t begun = now_ns(), mark = begun, len;
	const void *state;
	int r;

	end_connection(c, "the secondary is taking over");
	res->stop_ns = lap(&mark);
	wait_applied(c);
	res->apply_ns = lap(&mark);
	state = standby_state(c->standby, &len);
	res->epoch = standby_epoch_image(c->standby);
	r = s->ops.load_state(s->user, state, len, err);
	res->load_ns = lap(&mark);
	if (r) {
		err_prefix(err, "loading the device state");
	} else {
		r = s->ops.activate(s->user, err);
		res->activate_ns = lap(&mark);
		if (r)
			err_prefix(err, "starting the guest");
	}
	res->total_ns = mark - begun;
	if (r) {
		res->outcome = FT_FAILOVER_FAILED;
		session_event(s, EV_UNUSABLE, err->msg);
		return r;
	}
	pthread_mutex_lock(&s->lock);
	s->generation = (c->generation > s->generation ? c->generation : s->generation) + 1;
	pthread_mutex_unlock(&s->lock);
	session_event(s, EV_PROMOTED, NULL);
	return 0;
}

int secondary_failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err)
{
	struct secondary *c = s->secondary;
	struct ft_error scratch = { 0 };
	enum ft_state state;

	if (!err)
		err = &scratch;
	do {
		res->outcome = may_promote(c, flags, &state, err);
		if (res->outcome == FT_FAILOVER_ALREADY) {
			res->epoch = standby_epoch_image(c->standby);
			return 0;
		}
		if (res->outcome != FT_FAILOVER_DONE)
			return err->code;
	} while (session_event_from(s, state, EV_FAILOVER, NULL) < 0);
	err_clear(err);
	return promote(c, res, err);
}
