/* SPDX-License-Identifier: MIT */
/* greet.c - ft-accept: who may be our primary.  A peer is examined step by step, each refusal with its reason (docs/protocol.md
 * "Hello"); one that passes is answered and handed to ft-receive. */
#include "secondary.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "log.h"
#include "thread.h"

#define HELLO_MS 3000 /* a peer that says nothing is sent away after that */
#define ACCEPT_RETRY_MS 100

/* ---- hello ---- */

struct greeting {
	struct link *link;
	int stop_fd; /* the session's */
	struct hello hello;
	char identity[FT_IDENTITY_MAX];
	uint32_t nr_regions;
	uint32_t code; /* of a refusal */
	struct region_entry regions[FT_REGIONS_MAX];
};

int greeting_create(struct secondary *c, struct ft_error *err)
{
	c->greeting = FT_FAULT("greeting/create") ? NULL : calloc(1, sizeof(*c->greeting));
	return c->greeting ? 0 : err_set(err, -ENOMEM, "no memory for a session");
}

void greeting_destroy(struct secondary *c)
{
	free(c->greeting);
}

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

static int receive_typed(struct greeting *g, uint32_t type, struct cursor *body, uint64_t deadline,
			 struct ft_error *err)
{
	struct record_head head;
	uint32_t lane;
	char got[24], want[24];
	int r = link_receive_greeting(g->link, g->stop_fd, &lane, &head, body, deadline, err);

	if (r)
		return r == -ETIMEDOUT ? err_set(err, r, "no %s came within %u ms", record_name(type, want), HELLO_MS)
				       : r;
	if (head.type != type || lane != 0)
		return refuse(g, FTW_CODE_PROTOCOL, err, "%s on lane %u instead of %s", record_name(head.type, got),
			      lane, record_name(type, want));
	return 0;
}

static int check_version(struct greeting *g, struct ft_error *err)
{
	const struct hello *h = &g->hello;

	if (h->version_max < FTW_VERSION_MIN || h->version_min > FTW_VERSION_MAX)
		return refuse(g, FTW_CODE_VERSION, err, "hello: version %u to %u, we speak %u to %u", h->version_min,
			      h->version_max, FTW_VERSION_MIN, FTW_VERSION_MAX);
	return 0;
}

static int check_capabilities(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	uint64_t needed = g->hello.capabilities_needed,
		 unknown = needed & ~(FTW_CAP_SIDE_STREAM | FTW_CAP_DELTA | FTW_CAP_PAGE_CHECKS);

	if (unknown)
		return refuse(g, FTW_CODE_CAPABILITY, err, "hello: needs capabilities 0x%llx, which we do not have",
			      (unsigned long long)unknown);
	if (needed & FTW_CAP_SIDE_STREAM && !c->s->ops.side_commit)
		return refuse(
			g, FTW_CODE_CAPABILITY, err,
			"hello: the primary's machine has a side stream (its disks are replicated), and the one here "
			"takes none");
	if (!(needed & FTW_CAP_SIDE_STREAM) && c->s->ops.side_commit)
		return refuse(g, FTW_CODE_CAPABILITY, err,
			      "hello: the machine here takes a side stream (its disks are replicated), and the "
			      "primary's has none: "
			      "the disks here would become old");
	return 0;
}

static int check_placement(struct greeting *g, struct ft_error *err)
{
	const struct hello *h = &g->hello;

	if (h->mode != FTW_MODE_CHECKPOINT || h->page_bytes != FT_PAGE_SIZE) /* the codec knows no third placement */
		return refuse(g, FTW_CODE_LAYOUT, err, "hello: mode %u, page size %u; we have mode 1, page size %u",
			      h->mode, h->page_bytes, FT_PAGE_SIZE);
	return 0;
}

static int check_limits(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_config cfg;

	session_config(c->s, &cfg);
	if (g->hello.state_max > cfg.state_max)
		return refuse(g, FTW_CODE_LIMIT, err,
			      "hello: device state of up to %llu octets, state-max here is %llu",
			      (unsigned long long)g->hello.state_max, (unsigned long long)cfg.state_max);
	if (g->hello.lanes != g->link->lanes - 1)
		return refuse(g, FTW_CODE_PROTOCOL, err, "hello: %u data lanes, the connection has %u", g->hello.lanes,
			      g->link->lanes - 1);
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
		return refuse(g, FTW_CODE_IDENTITY, err,
			      "identity: the primary's machine is \"%.100s\", ours is \"%.100s\"", g->identity,
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
		return refuse(g, FTW_CODE_LIMIT, err, "hello: identity of %u octets, at most %zu are taken",
			      g->hello.identity_bytes, sizeof(g->identity) - 1);
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
		r = check_capabilities(c, g, err);
	if (!r)
		r = check_placement(g, err);
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

static bool is_slab(const struct greeting *g)
{
	return g->hello.placement == FTW_PLACEMENT_SLAB;
}

/* Memory that cannot be had is told, and what we hold is not given up for a primary that could not be served. */
static int offer_window(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	int r = secondary_open_window(c, g->link, is_slab(g), err);

	if (r)
		g->code = FTW_CODE_LIMIT;
	return r;
}

/* From here on the image we hold is an old one: the hello-ack that follows tells a primary in SUSPECT that nobody took over, and it lets its
 * output out.  So the state changes first.  A failover that was quicker decides: its outcome is the answer. */
static int take_primary(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	int r;

	if (session_event(s, EV_HELLO_OK, NULL) < 0) {
		r = check_role(c, g, err);
		return r ? r : err_set(err, -ECANCELED, "the secondary is %s", ft_state_name(session_state(s)));
	}
	atomic_store(&s->epoch_acked, 0);
	atomic_store(&s->epoch_applied, 0);
	atomic_store(&s->epoch_running, 1);
	return 0;
}

/* A machine with a side stream may take long over each epoch, and ft-apply tells the primary so; it cannot while it applies (watch_work()).
 * Each epoch needs room for an ack and an applied in the half of the credits of lane 0 that heartbeats leave. */
static uint32_t slab_epochs(const struct greeting *g, const struct ft_config *cfg)
{
	uint32_t most = tp_credits(g->link->conn, 0) / 4;

	if (!is_slab(g))
		return 0;
	if (most < 1 || g->hello.capabilities_needed & FTW_CAP_SIDE_STREAM)
		most = 1;
	return most < cfg->epochs_in_flight ? most : cfg->epochs_in_flight;
}

static int answer_hello(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	struct ft_config cfg;
	struct hello_ack ack = { .version = FTW_VERSION_MAX, .placement = g->hello.placement };
	struct room room;
	uint32_t seq;
	void *buf;
	int r;

	session_config(s, &cfg);
	c->slab_epochs = slab_epochs(g, &cfg);
	ack.epoch_credits = c->slab_epochs ? c->slab_epochs : 1;
	c->heartbeat_ms = ack.heartbeat_ms = larger(cfg.heartbeat_ms, g->hello.heartbeat_ms);
	c->heartbeat_misses = ack.heartbeat_misses = larger(cfg.heartbeat_misses, g->hello.heartbeat_misses);
	ack.capabilities = c->capabilities =
		g->hello.capabilities_needed | (g->hello.capabilities_offered & FTW_CAP_RESYNC);
	c->connection = 0;
	memcpy(c->session_id, g->hello.session, sizeof(c->session_id));
	pthread_mutex_lock(&s->lock);
	ack.generation = s->generation;
	c->generation = g->hello.generation;
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&c->standby_lock);
	ack.epoch_committed = standby_epoch_committed(c->standby);
	standby_connect(c->standby, g->hello.lanes, c->slab_epochs);
	standby_restart(c->standby);
	room = standby_room(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	buf = link_begin(g->link, 0, &seq);
	r = link_end(g->link, 0, create_hello_ack(buf, seq, &ack), deadline_in_ms(SEND_MS), err);
	if (!r && c->slab_epochs)
		r = link_send_first_room(g->link, &room, deadline_in_ms(SEND_MS), err);
	return r;
}

/* A forced failover may have come since: then nothing of this primary may be taken, its records would land in a machine that runs. */
static int claim(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	enum ft_state state;

	pthread_mutex_lock(&s->lock);
	state = s->state;
	if (state == FT_STATE_STANDBY_SYNCING) {
		c->link = g->link;
		c->bye = false;
		c->receiving = c->receive_made = true;
		snprintf(s->peer, sizeof(s->peer), "%s", tp_peer(g->link->conn));
	}
	pthread_mutex_unlock(&s->lock);
	return state == FT_STATE_STANDBY_SYNCING
		       ? 0
		       : err_set(err, -ECANCELED, "the secondary is %s", ft_state_name(state));
}

static int begin_receiving(struct secondary *c, struct greeting *g, struct ft_error *err)
{
	struct ft_session *s = c->s;
	int r = claim(c, g, err);

	if (r)
		return r;
	r = thread_start(&c->receive_thread, "ft-receive", receive_main, c);
	if (!r)
		return 0;
	pthread_mutex_lock(&s->lock);
	c->receiving = c->receive_made = false;
	while (c->link_users)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	c->link = NULL;
	s->peer[0] = '\0';
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return err_sys(err, r, "cannot start a thread");
}

static void turn_away(struct secondary *c, struct greeting *g, int r, struct ft_error *err)
{
	uint32_t code = g->code;

	if (code == FTW_CODE_NONE && r == -EPROTO)
		code = FTW_CODE_PROTOCOL;
	stats_count(&c->s->stats, FT_COUNTER_REFUSALS, 1);
	if (strcmp(err->msg, c->refusal) != 0) { /* a primary that tries again every second is told of once */
		memcpy(c->refusal, err->msg, sizeof(c->refusal));
		log_warn("secondary", "%s: refused %s: %s", c->s->name, tp_peer(g->link->conn), err->msg);
	}
	if (code != FTW_CODE_NONE)
		link_send_reason(g->link, FTW_REFUSE, code, err->msg, deadline_in_ms(SEND_MS));
	link_destroy(g->link);
}

static void greet(struct secondary *c, struct greeting *g)
{
	struct ft_error err = { 0 };
	bool taken = false;
	int r = examine(c, g, &err);

	if (!r) {
		/* the same primary again, before we noticed that its old connection is gone; and the last apply must be done */
		secondary_end_connection(c, FTW_CODE_STOPPED, "the same primary connected again");
		secondary_wait_applied(c);
		r = offer_window(c, g, &err);
	}
	if (!r) {
		r = take_primary(c, g, &err);
		taken = !r;
	}
	if (!r)
		r = answer_hello(c, g, &err);
	if (!r)
		r = begin_receiving(c, g, &err);
	if (taken && r)
		session_event_from(c->s, FT_STATE_STANDBY_SYNCING, EV_PEER_LOST, err.msg);
	if (r)
		turn_away(c, g, r, &err);
}

/* ---- ft-accept ---- */

void *accept_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;
	struct greeting *g = c->greeting;

	while (!session_stopping(s)) {
		struct ft_error err = { 0 };
		struct tp_conn *conn;
		int r = tp_accept(c->listener, &conn, DEADLINE_NEVER, s->stop_fd, &err);

		memset(g, 0, sizeof(*g));
		g->stop_fd = s->stop_fd;
		if (!r)
			r = link_create(&g->link, conn, s->recording, &err);
		if (!r) {
			greet(c, g);
		} else if (r != -ECANCELED) {
			log_warn("secondary", "%s: accept: %s", s->name, err.msg);
			session_sleep(s, deadline_in_ms(ACCEPT_RETRY_MS), NULL);
		}
	}
	return NULL;
}
