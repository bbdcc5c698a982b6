/* SPDX-License-Identifier: MIT */
/* secondary.c - a secondary's life, its apply thread, and the orderly end of its connection.  See secondary.h. */
#include "secondary.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "lease.h"
#include "log.h"
#include "thread.h"

#define ROOM_PAGES 1024u /* moved at a time, with the standby locked: 4 MiB */
#define ROOM_RETRY_NS NS_PER_MS
#define BYE_MS 1000 /* an orderly end does not wait longer for room in the socket */

/* ---- the link, used by another thread than ft-receive ---- */

static bool link_get(struct secondary *c)
{
	bool there;

	pthread_mutex_lock(&c->s->lock);
	there = c->receiving && c->link;
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

void secondary_end_connection(struct secondary *c, enum ftw_code code, const char *why)
{
	if (link_get(c)) {
		link_send_reason(c->link, FTW_BYE, code, why, deadline_in_ms(BYE_MS));
		tp_cancel(c->link->conn);
		link_put(c);
	}
	wait_received(c);
}

void secondary_wait_applied(struct secondary *c)
{
	struct ft_session *s = c->s;

	pthread_mutex_lock(&s->lock);
	while (c->apply_wanted || c->applying)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->lock);
}

/* ---- ft-apply ---- */

int secondary_open_window(struct secondary *c, struct link *l, bool slab, struct ft_error *err)
{
	uint64_t len; /* known before the call: the order in which arguments are computed is free */
	void *memory = slab ? standby_ring(c->standby, &len) : standby_image(c->standby, &len);

	return tp_window_open(l->conn, slab ? FTW_WINDOW_RING : FTW_WINDOW_IMAGE, memory, len, err);
}

/* The image may be written again: say so, if the primary is still there. */
static void answer_applied(struct secondary *c, uint64_t epoch)
{
	struct ft_session *s = c->s;
	struct ft_error err = { 0 };
	int r;

	if (!link_get(c))
		return;
	r = c->slab_epochs ? 0 : secondary_open_window(c, c->link, false, &err);
	if (!r)
		r = link_send_mark(c->link, FTW_APPLIED, epoch, deadline_in_ms(SEND_MS), &err);
	if (r && !link_hear_first(c->link, r)) {
		log_warn("secondary", "%s: applied of epoch %llu: %s", s->name, (unsigned long long)epoch, err.msg);
		tp_cancel(c->link->conn);
	}
	link_put(c);
}

/* Says what room there is, once the primary has read enough of what was said before.  It is told of the latest: rooms add up. */
static void tell_room(struct secondary *c, const struct room *room)
{
	uint64_t deadline = deadline_in_ms(SEND_MS);
	struct ft_error err = { 0 };
	int r = -EAGAIN;

	while (r == -EAGAIN && now_ns() < deadline && link_get(c)) {
		r = link_send_room(c->link, room, deadline, &err);
		if (r && r != -EAGAIN && !link_hear_first(c->link, r)) {
			log_warn("secondary", "%s: room: %s", c->s->name, err.msg);
			tp_cancel(c->link->conn);
		}
		link_put(c);
		if (r == -EAGAIN)
			session_sleep(c->s, now_ns() + ROOM_RETRY_NS, NULL);
	}
}

static void make_room(struct secondary *c)
{
	struct room room;
	bool more = true;

	while (more) {
		pthread_mutex_lock(&c->standby_lock);
		more = standby_make_room(c->standby, ROOM_PAGES, &room);
		pthread_mutex_unlock(&c->standby_lock);
		if (more)
			tell_room(c, &room);
	}
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

/* ft-receive may be in the VMM for as long as a disk takes.  It reads no credits then, so heartbeats would soon have to be left out: the
 * primary is told, once an epoch.  While an epoch is received there is nothing to apply.  Returns when to look again. */
static uint64_t watch_work(struct secondary *c)
{
	struct ft_session *s = c->s;
	uint64_t since = atomic_load(&c->working_ns), epoch = atomic_load(&s->epoch_running), half;
	struct ft_config cfg;

	session_config(s, &cfg);
	half = cfg.heartbeat_ms * NS_PER_MS / 2;
	if (since && now_ns() >= since + half / 2 && epoch != atomic_load(&c->working_told) && link_get(c)) {
		if (link_send_working(c->link, epoch, now_ns() + half, NULL) == 0)
			atomic_store(&c->working_told, epoch);
		link_put(c);
	}
	return now_ns() + half;
}

static void *apply_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;
	uint64_t look = s->ops.side_commit ? now_ns() : DEADLINE_NEVER;
	void (*work)(struct secondary *);

	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!c->apply_wanted && !c->room_wanted && !c->quit) {
			if (cond_wait_until(&s->cond, &s->lock, look) != -ETIMEDOUT)
				continue;
			pthread_mutex_unlock(&s->lock);
			look = watch_work(c);
			pthread_mutex_lock(&s->lock);
		}
		if (!c->apply_wanted && !c->room_wanted)
			break;
		work = c->apply_wanted ? apply : make_room;
		if (c->apply_wanted)
			c->apply_wanted--;
		/* behind an apply too: records of the next epoch may have come meanwhile, and the primary waits */
		c->room_wanted = work == apply && c->slab_epochs;
		c->applying = true;
		pthread_mutex_unlock(&s->lock);
		work(c);
		pthread_mutex_lock(&s->lock);
		c->applying = false;
		pthread_cond_broadcast(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- life ---- */

int secondary_create(struct ft_session *s, struct ft_error *err)
{
	struct secondary *c = FT_FAULT("secondary/create") ? NULL : calloc(1, sizeof(*c));

	if (!c)
		return err_set(err, -ENOMEM, "no memory for a session");
	c->s = s;
	pthread_mutex_init(&c->standby_lock, NULL);
	s->secondary = c;
	return greeting_create(c, err);
}

/* An epoch is hardly longer than the machine, and one of up to half of the ring is never moved. */
static uint64_t ring_bytes(const struct ft_session *s)
{
	uint64_t most = 2 * s->regions->total_bytes, least = (uint64_t)FTW_RING_SLOTS_MIN * FT_PAGE_SIZE;

	most = most > least ? most : least;
	return s->cfg.ring_bytes < most ? s->cfg.ring_bytes : most;
}

int secondary_start(struct ft_session *s, struct ft_error *err)
{
	struct secondary *c = s->secondary;
	struct tp_params params = link_params(&s->cfg, TP_LANES_MAX);
	struct standby_options opt = {
		.lanes = s->cfg.lanes,
		.state_max = s->cfg.state_max,
		.epochs = s->cfg.epochs_in_flight,
		.ring_bytes = ring_bytes(s),
		.copier = &c->copier,
		.lock_memory = s->cfg.lock_memory,
	};
	int r = copier_create(&c->copier, s->cfg.apply_threads, "ft-apply-crew", err);

	if (!r)
		r = standby_create(&c->standby, s->regions, &opt, err);
	if (!r)
		r = session_lease_open(s, &(struct lease_options){ 0 }, err);
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
	secondary_end_connection(c, FTW_CODE_STOPPED, "the secondary was stopped");
	secondary_wait_applied(c);
	pthread_mutex_lock(&s->lock);
	c->quit = true;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	if (c->apply_made)
		pthread_join(c->apply_thread, NULL);
	copier_destroy(&c->copier);
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
	copier_destroy(&c->copier);
	greeting_destroy(c);
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
	*cap = standby_memory_cap(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
}

void secondary_link_status(struct ft_session *s, struct ft_status *out)
{
	struct secondary *c = s->secondary;

	if (!link_get(c))
		return;
	link_status(c->link, out);
	link_put(c);
}

const char *secondary_address(struct ft_session *s)
{
	struct secondary *c = s->secondary;

	return c->listener ? tp_listener_address(c->listener) : NULL;
}
