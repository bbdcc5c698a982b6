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

static uint64_t capabilities(const struct primary *p, const struct ft_config *cfg)
{
	return (p->s->ops.side_read ? FTW_CAP_SIDE_STREAM : 0) | (cfg->delta ? FTW_CAP_DELTA : 0) |
	       (cfg->page_checks ? FTW_CAP_PAGE_CHECKS : 0);
}

static uint64_t offered(const struct primary *p, const struct ft_config *cfg)
{
	return resync_wanted(p, cfg) ? FTW_CAP_RESYNC : 0;
}

static uint16_t wire_placement(const struct ft_config *cfg)
{
	return cfg->placement == FT_PLACEMENT_SLAB ? FTW_PLACEMENT_SLAB : FTW_PLACEMENT_MIRROR;
}

static struct hello make_hello(struct primary *p, struct link *l, const struct ft_config *cfg)
{
	struct ft_session *s = p->s;
	struct hello h = {
		.version_min = FTW_VERSION_MIN,
		.version_max = FTW_VERSION_MAX,
		.placement = wire_placement(cfg),
		.mode = FTW_MODE_CHECKPOINT,
		.capabilities_needed = capabilities(p, cfg),
		.capabilities_offered = offered(p, cfg),
		.generation = session_generation(s),
		.epoch_committed = atomic_load(&s->epoch_acked),
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

	memcpy(h.session, p->session_id, sizeof(h.session));
	return h;
}

static int send_hello(struct link *l, const struct hello *h, uint64_t deadline, struct ft_error *err)
{
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);

	return link_end(l, 0, create_hello(buf, seq, h), deadline, err);
}

/* It is of no generation, and of a machine of any size. */
int send_question(struct primary *p, struct link *l, const struct ft_config *cfg, uint64_t deadline,
		  struct ft_error *err)
{
	struct hello h = make_hello(p, l, cfg);

	h.generation = 0;
	h.nr_pages = FTW_REGION_ALIGN;
	return send_hello(l, &h, deadline, err);
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

/* What the secondary answers instead of hello-ack.  -EOWNERDEAD: it runs the machine itself, or knows a later generation of it. */
static int refused(struct primary *p, struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	p->peer_promotes = false;
	r = why.code == FTW_CODE_ACTIVE || why.code == FTW_CODE_STALE ? -EOWNERDEAD : -ECONNREFUSED;
	return err_set(err, r, "secondary refused: %.*s", (int)why.reason_bytes, why.text);
}

static int receive_ack(struct primary *p, struct link *l, const struct ft_config *cfg, uint64_t deadline,
		       struct ft_error *err)
{
	struct record_head head;
	struct hello_ack ack;
	struct cursor body;
	uint32_t lane;
	bool slab = cfg->placement == FT_PLACEMENT_SLAB;
	char name[24];
	int r = link_receive_greeting(l, p->s->stop_fd, &lane, &head, &body, deadline, err);

	if (r == -ETIMEDOUT)
		return err_set(err, r, "no answer to hello");
	if (r)
		return r;
	if (head.type == FTW_REFUSE && lane == 0)
		return refused(p, &body, err);
	if (head.type != FTW_HELLO_ACK || lane != 0)
		return err_set(err, -EPROTO, "%s on lane %u instead of an answer to hello",
			       record_name(head.type, name), lane);
	r = consume_hello_ack(&body, &ack, err);
	if (r)
		return r;
	if (ack.version < FTW_VERSION_MIN || ack.version > FTW_VERSION_MAX || ack.placement != wire_placement(cfg) ||
	    (ack.capabilities & ~offered(p, cfg)) != capabilities(p, cfg) || (!slab && ack.epoch_credits != 1))
		return err_set(err, -EPROTO,
			       "hello-ack chose what was not offered (version %u, placement %u, credits %u, "
			       "capabilities 0x%llx)",
			       ack.version, ack.placement, ack.epoch_credits, (unsigned long long)ack.capabilities);
	if (ack.heartbeat_ms < cfg->heartbeat_ms || ack.heartbeat_misses < cfg->heartbeat_misses)
		return err_set(err, -EPROTO,
			       "hello-ack: %u heartbeats of %u ms are less than the %u of %u ms that were asked for",
			       ack.heartbeat_misses, ack.heartbeat_ms, cfg->heartbeat_misses, cfg->heartbeat_ms);
	p->epoch_credits = ack.epoch_credits < cfg->epochs_in_flight ? ack.epoch_credits : cfg->epochs_in_flight;
	p->uses_ring = slab;
	p->page_checks = cfg->page_checks;
	p->resync.in_use = ack.capabilities & FTW_CAP_RESYNC;
	p->resync.answered = false;
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

	skip_end(p);
	pthread_mutex_lock(&s->lock);
	p->regions = NULL;
	p->regions_used = 0;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

/* From here on primary_regions_changed() finds the connection; what it did before is seen here. */
static int publish_link(struct primary *p, struct link *l, struct ft_error *err)
{
	struct ft_session *s = p->s;
	bool current;

	pthread_mutex_lock(&s->lock);
	current = p->regions_used == p->regions_wanted;
	if (current) {
		p->link = l;
		p->lost = false;
		err_clear(&p->loss_error);
		snprintf(s->peer, sizeof(s->peer), "%s", tp_peer(l->conn));
	}
	pthread_mutex_unlock(&s->lock);
	return current ? 0 : err_set(err, -ESTALE, "the machine's regions changed during the greeting");
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

/* Which secondary; transports mostly say it themselves. */
static int name_secondary(const char *uri, struct ft_error *err)
{
	const char *address = strstr(uri, ")/"); /* of a fault wrapper */

	address = address ? address + 2 : uri;
	if (strncmp(address, "tcp:", 4) == 0)
		address += 4;
	else if (strncmp(address, "rdma:", 5) == 0)
		address += 5;
	return strstr(err->msg, address) ? err_prefix(err, "secondary") : err_prefix(err, "secondary %s", uri);
}

/* One attempt: connect, hello, regions, answer. On success p->link is set and the regions are in use. */
int handshake(struct primary *p, uint64_t deadline, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct tp_params params;
	struct tp_conn *conn;
	struct ft_config cfg;
	struct link *l = NULL;
	struct hello h;
	int r;

	session_config(s, &cfg);
	params = link_params(&cfg, cfg.lanes + 1);
	r = tp_connect(&conn, s->peer_uri, &params, deadline, s->stop_fd, err);
	if (r)
		return name_secondary(s->peer_uri, err);
	use_regions(p);
	r = link_create(&l, conn, s->recording, err);
	if (!r)
		r = fit_dirty(p, err);
	if (!r)
		r = ahead_begin(p, &cfg, err);
	if (!r)
		r = resync_begin(p, &cfg, err);
	if (!r)
		r = skip_begin(p, &cfg, err);
	if (!r) {
		h = make_hello(p, l, &cfg);
		h.nr_pages = p->regions->nr_pages;
		r = send_hello(l, &h, deadline, err);
	}
	if (!r)
		r = send_regions(p, l, deadline, err);
	if (!r)
		r = receive_ack(p, l, &cfg, deadline, err);
	if (!r)
		r = publish_link(p, l, err);
	if (r) {
		link_destroy(l);
		leave_regions(p);
		name_secondary(s->peer_uri, err);
		return r;
	}
	return 0;
}
