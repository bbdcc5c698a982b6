/* SPDX-License-Identifier: MIT */
/* words.c - the bodies of records, decoded by the library's own codec; one printing function each. */
#include "words.h"

#include <inttypes.h>
#include <stdio.h>

static const char *placement_name(uint16_t placement)
{
	return placement == FTW_PLACEMENT_MIRROR ? "mirror" : "slab";
}

static void hello(struct line *l, const struct hello *h)
{
	char session[33];

	for (int i = 0; i < 16; i++)
		snprintf(session + 2 * i, 3, "%02x", h->session[i]);
	line_u64(l, "version-min", h->version_min);
	line_u64(l, "version-max", h->version_max);
	line_string(l, "placement", placement_name(h->placement));
	line_string(l, "mode", h->mode == FTW_MODE_CHECKPOINT ? "checkpoint" : "colo");
	line_hex(l, "needed", h->capabilities_needed);
	line_hex(l, "offered", h->capabilities_offered);
	line_string(l, "session", session);
	line_u64(l, "generation", h->generation);
	line_u64(l, "committed", h->epoch_committed);
	line_u64(l, "pages", h->nr_pages);
	line_u64(l, "state-max", h->state_max);
	line_u64(l, "page-bytes", h->page_bytes);
	line_u64(l, "chunk-bytes", h->chunk_bytes);
	line_u64(l, "lanes", h->lanes);
	line_u64(l, "heartbeat-ms", h->heartbeat_ms);
	line_u64(l, "heartbeat-misses", h->heartbeat_misses);
	line_octets(l, "identity", h->identity, h->identity_bytes);
	line_octets(l, "machine", h->name, h->name_bytes);
}

static void hello_ack(struct line *l, const struct hello_ack *h)
{
	line_u64(l, "version", h->version);
	line_string(l, "placement", placement_name(h->placement));
	line_u64(l, "credits", h->epoch_credits);
	line_hex(l, "capabilities", h->capabilities);
	line_u64(l, "generation", h->generation);
	line_u64(l, "committed", h->epoch_committed);
	line_u64(l, "heartbeat-ms", h->heartbeat_ms);
	line_u64(l, "heartbeat-misses", h->heartbeat_misses);
}

static void regions(struct line *l, const struct region_entry *e, uint32_t count)
{
	char name[32];

	line_u64(l, "count", count);
	for (uint32_t i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "region%" PRIu32, i);
		line_octets(l, name, e[i].name, e[i].name_bytes);
		snprintf(name, sizeof(name), "first%" PRIu32, i);
		line_u64(l, name, e[i].first_page);
		snprintf(name, sizeof(name), "bytes%" PRIu32, i);
		line_u64(l, name, e[i].len_bytes);
	}
}

static void runs(struct line *l, const struct runs *r, bool list)
{
	line_u64(l, "pages", r->nr_pages);
	line_hex(l, "digest", r->digest);
	if (!list)
		return;
	line_pages_begin(l);
	for (uint32_t i = 0; i < r->count; i++)
		line_pages(l, from_be64(r->run[i].first_page), from_be32(r->run[i].nr_pages));
	line_pages_end(l);
}

static void slab_runs(struct line *l, const struct slab_runs *r, bool list)
{
	line_u64(l, "position", r->position);
	runs(l, &r->runs, list);
}

static void deltas(struct line *l, const struct deltas *d, bool list)
{
	uint32_t at = 0;
	uint64_t page;

	line_u64(l, "pages", d->count);
	line_u64(l, "bytes", d->octets_bytes);
	line_hex(l, "digest", d->digest);
	if (!list)
		return;
	line_pages_begin(l);
	while (deltas_next(d, &at, &page))
		line_pages(l, page, 1);
	line_pages_end(l);
}

static void base(struct line *l, const struct base *b)
{
	line_u64(l, "connection", b->connection);
	line_u64(l, "base", b->base_connection);
	line_u64(l, "base-epoch", b->base_epoch);
}

static void page_checks(struct line *l, const struct page_checks *c)
{
	line_u64(l, "pages", c->count);
	line_hex(l, "first", page_check(c, 0));
}

static void device_state(struct line *l, const struct device_state *d)
{
	line_u64(l, "offset", d->offset);
	line_u64(l, "bytes", d->data_bytes);
	line_u64(l, "total", d->total_bytes);
}

static void side_data(struct line *l, const struct side_data *d)
{
	line_u64(l, "offset", d->offset);
	line_u64(l, "bytes", d->data_bytes);
}

static void commit(struct line *l, const struct commit *c)
{
	char name[16];

	line_u64(l, "data-pages", c->nr_data_pages);
	line_u64(l, "zero-pages", c->nr_zero_pages);
	line_u64(l, "state-bytes", c->state_bytes);
	line_u64(l, "side-bytes", c->side_bytes);
	line_hex(l, "digest", c->digest);
	for (uint32_t i = 0; i < c->lanes; i++) {
		snprintf(name, sizeof(name), "lane%" PRIu32, i + 1);
		line_u64(l, name, c->seq[i]);
	}
}

static void reason(struct line *l, const struct reason *r)
{
	line_string(l, "code", record_code_name(r->code));
	line_only_json(l, "code-number", r->code);
	line_octets(l, "reason", r->text, r->reason_bytes);
}

static void room(struct line *l, const struct room *r)
{
	line_u64(l, "slots", r->slots);
	line_u64(l, "freed", r->freed);
}

static void heartbeat(struct line *l, const struct heartbeat *h)
{
	line_u64(l, "sent-ns", h->time_ns);
	line_u64(l, "echo-ns", h->echo_ns);
}

static void sync_progress(struct line *l, const struct sync_progress *p)
{
	line_u64(l, "round", p->round);
	line_u64(l, "done", p->pages_done);
	line_u64(l, "total", p->pages_total);
}

int record_decode(const void *msg, size_t len, uint64_t nr_pages, struct record *out, struct ft_error *err)
{
	struct cursor body;
	int rc = consume_head(msg, len, &out->head, &body, err);

	if (rc)
		return rc;
	switch (out->head.type) {
	case FTW_HELLO:
		return consume_hello(&body, &out->hello, err);
	case FTW_HELLO_ACK:
		return consume_hello_ack(&body, &out->hello_ack, err);
	case FTW_REGIONS:
		return consume_regions(&body, out->regions.entry, FTW_REGIONS_MAX, &out->regions.count, err);
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
		return consume_runs(&body, nr_pages, &out->runs, err);
	case FTW_NOTIFY_SLAB:
		return consume_slab_runs(&body, nr_pages, &out->slab_runs, err);
	case FTW_NOTIFY_DELTA:
		return consume_deltas(&body, nr_pages, &out->deltas, err);
	case FTW_PAGE_CHECKS:
		return consume_page_checks(&body, &out->checks, err);
	case FTW_BASE:
		return consume_base(&body, &out->base, err);
	case FTW_BASE_ACK:
		return consume_base_ack(&body, &out->base_epoch, err);
	case FTW_DEVICE_STATE:
		return consume_device_state(&body, &out->state, err);
	case FTW_SIDE_DATA:
		return consume_side_data(&body, &out->side, err);
	case FTW_COMMIT:
		return consume_commit(&body, &out->commit, err);
	case FTW_ACK:
	case FTW_APPLIED:
	case FTW_WORKING:
		return consume_epoch_mark(&body, err);
	case FTW_REFUSE:
	case FTW_BYE:
	case FTW_ERROR:
		return consume_reason(&body, &out->reason, err);
	case FTW_HEARTBEAT:
		return consume_heartbeat(&body, &out->heartbeat, err);
	case FTW_ROOM:
		return consume_room(&body, &out->room, err);
	case FTW_SYNC_PROGRESS:
		return consume_sync_progress(&body, &out->progress, err);
	}
	return 0;
}

void record_fields(struct line *l, const struct record *r, bool list)
{
	switch (r->head.type) {
	case FTW_HELLO:
		return hello(l, &r->hello);
	case FTW_HELLO_ACK:
		return hello_ack(l, &r->hello_ack);
	case FTW_REGIONS:
		return regions(l, r->regions.entry, r->regions.count);
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
		return runs(l, &r->runs, list);
	case FTW_NOTIFY_SLAB:
		return slab_runs(l, &r->slab_runs, list);
	case FTW_NOTIFY_DELTA:
		return deltas(l, &r->deltas, list);
	case FTW_PAGE_CHECKS:
		return page_checks(l, &r->checks);
	case FTW_BASE:
		return base(l, &r->base);
	case FTW_BASE_ACK:
		return line_u64(l, "base-epoch", r->base_epoch);
	case FTW_DEVICE_STATE:
		return device_state(l, &r->state);
	case FTW_SIDE_DATA:
		return side_data(l, &r->side);
	case FTW_COMMIT:
		return commit(l, &r->commit);
	case FTW_REFUSE:
	case FTW_BYE:
	case FTW_ERROR:
		return reason(l, &r->reason);
	case FTW_HEARTBEAT:
		return heartbeat(l, &r->heartbeat);
	case FTW_ROOM:
		return room(l, &r->room);
	case FTW_SYNC_PROGRESS:
		return sync_progress(l, &r->progress);
	}
	if (r->head.len_bytes) /* of a later version: the head is all that can be told */
		line_u64(l, "octets", r->head.len_bytes);
}
