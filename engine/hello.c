/* SPDX-License-Identifier: MIT */
/* hello.c - the primary's side of a new connection: connect, hello, regions, and the answer (docs/protocol.md "Hello").
 * Runs on ft-epoch. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"

static int send_hello(struct primary *p, struct link *l, const struct ft_config *cfg, uint64_t deadline, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct hello h = {
		.version_min = FTW_VERSION_MIN,
		.version_max = FTW_VERSION_MAX,
		.placement = FTW_PLACEMENT_MIRROR,
		.mode = FTW_MODE_CHECKPOINT,
		.generation = s->generation,
		.epoch_committed = atomic_load(&s->epoch_acked),
		.nr_pages = p->regions->nr_pages,
		.state_max = cfg->state_max,
		.page_bytes = FT_PAGE_SIZE,
		.chunk_bytes = 1u << 20,
		.lanes = l->lanes - 1,
		.heartbeat_ms = cfg->heartbeat_ms,
		.heartbeat_misses = cfg->heartbeat_misses,
		.identity = s->identity,
		.identity_bytes = (uint32_t)strlen(s->identity),
		.name = s->name,
		.name_bytes = (uint32_t)strlen(s->name),
	};
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);

	memcpy(h.session, p->session_id, sizeof(h.session));
	return link_end(l, 0, create_hello(buf, seq, &h), deadline, err);
}

static int send_regions(struct primary *p, struct link *l, uint64_t deadline, struct ft_error *err)
{
	struct region_entry *e = FT_FAULT("hello/regions") ? NULL : calloc(p->regions->count, sizeof(*e));
	uint32_t count, seq;
	void *buf;

	if (!e)
		return err_set(err, -ENOMEM, "no memory for the region table");
	count = region_entries(p->regions, e);
	buf = link_begin(l, 0, &seq);
	seq = (uint32_t)create_regions(buf, seq, e, count);
	free(e);
	return link_end(l, 0, seq, deadline, err);
}

/* What the secondary answers instead of hello-ack.  -EOWNERDEAD: it runs the machine itself. */
static int refused(struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	r = why.code == FTW_CODE_ACTIVE ? -EOWNERDEAD : -ECONNREFUSED;
	return err_set(err, r, "secondary refused: %.*s", (int)why.reason_bytes, why.text);
}

static int receive_ack(struct primary *p, struct link *l, uint64_t deadline, struct ft_error *err)
{
	struct record_head head;
	struct hello_ack ack;
	struct cursor body;
	const void *msg;
	uint32_t lane;
	size_t len;
	char name[24];
	int r = link_receive(l, &lane, &head, &body, &msg, &len, deadline, err);

	if (r == -ETIMEDOUT)
		return err_set(err, r, "no answer to hello");
	if (r)
		return r;
	if (head.type == FTW_REFUSE)
		return refused(&body, err);
	if (head.type != FTW_HELLO_ACK || lane != 0)
		return err_set(err, -EPROTO, "%s instead of an answer to hello", record_name(head.type, name));
	r = consume_hello_ack(&body, &ack, err);
	if (r)
		return r;
	if (ack.version < FTW_VERSION_MIN || ack.version > FTW_VERSION_MAX || ack.placement != FTW_PLACEMENT_MIRROR ||
	    ack.capabilities != 0 || ack.epoch_credits == 0)
		return err_set(err, -EPROTO, "hello-ack chose what was not offered (version %u, placement %u, credits %u)",
			       ack.version, ack.placement, ack.epoch_credits);
	p->epoch_credits = ack.epoch_credits;
	p->heartbeat_ms = ack.heartbeat_ms;
	p->heartbeat_misses = ack.heartbeat_misses;
	return 0;
}

static void use_regions(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->regions = s->regions;
	p->regions_used = p->regions_wanted;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

void leave_regions(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->regions = NULL;
	p->regions_used = 0;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static int fit_dirty(struct primary *p, struct ft_error *err)
{
	if (!p->regions->nr_pages)
		return err_set(err, -EINVAL, "the machine has no memory: a region is needed");
	if (p->dirty && bitmap_pages(p->dirty) == p->regions->nr_pages)
		return 0;
	bitmap_destroy(p->dirty);
	p->dirty = NULL;
	if (bitmap_create(&p->dirty, p->regions->nr_pages))
		return err_set(err, -ENOMEM, "no memory for the dirty bitmap");
	return 0;
}

/* From here on stop and primary_regions_changed() end the attempt. */
static int show_link(struct primary *p, struct link *l, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->hello = l;
	if (s->stopping)
		r = err_set(err, -ECANCELED, "stopped");
	pthread_mutex_unlock(&s->lock);
	return r;
}

static void hide_link(struct primary *p)
{
	pthread_mutex_lock(&p->s->lock);
	p->hello = NULL;
	pthread_mutex_unlock(&p->s->lock);
}

/* From here on primary_regions_changed() ends the connection.  A change before that is seen here: the hello told the old table. */
static int take_link(struct primary *p, struct link *l, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	p->hello = NULL;
	if (p->regions_used != p->regions_wanted) {
		r = err_set(err, -ESTALE, "the machine's regions changed during hello");
	} else {
		p->lost = false;
		err_clear(&p->loss_error);
		p->link = l;
		snprintf(s->peer, sizeof(s->peer), "%s", tp_peer(l->conn));
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* One attempt: connect, hello, regions, answer. On success p->link is set and the regions are in use. */
int handshake(struct primary *p, uint64_t deadline, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct tp_params params = { 0 };
	struct tp_conn *conn;
	struct ft_config cfg;
	struct link *l = NULL;
	int r;

	session_config(s, &cfg);
	params.lanes = cfg.lanes + 1;
	r = tp_connect(&conn, s->peer_uri, &params, deadline, s->stop_fd, err);
	if (r)
		return err_prefix(err, "secondary %s", s->peer_uri);
	use_regions(p);
	r = link_create(&l, conn, s->recording, err);
	if (!r)
		r = show_link(p, l, err);
	if (!r)
		r = fit_dirty(p, err);
	if (!r)
		r = send_hello(p, l, &cfg, deadline, err);
	if (!r)
		r = send_regions(p, l, deadline, err);
	if (!r)
		r = receive_ack(p, l, deadline, err);
	if (!r)
		r = take_link(p, l, err);
	if (r) {
		hide_link(p);
		link_destroy(l);
		leave_regions(p);
		err_prefix(err, "secondary %s", s->peer_uri);
		return r;
	}
	return 0;
}
