/* SPDX-License-Identifier: MIT */
/* codec.c - see codec.h.
 * The create and consume function of a message stand next to each other and read like its section of docs/protocol.md.
 * Structs of the wire are copied in and out as a whole, so a message may lie at any address; a consume function
 * decodes into locals and stores in @out only when nothing was left to find fault with. */
#include "codec.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "delta.h"
#include "err.h"

#define HEAD sizeof(struct ftw_record)
#define BODY_MAX (FTW_RECORD_MAX - (uint32_t)HEAD)

/* -- types -- */

static const struct record_type types[] = {
	{ FTW_HELLO, "hello", 112, 112 + FTW_IDENTITY_MAX + FTW_NAME_MAX, RECORD_EPOCH_NONE, "primary", "0" },
	{ FTW_HELLO_ACK, "hello-ack", 40, 40, RECORD_EPOCH_NONE, "secondary", "0" },
	{ FTW_REFUSE, "refuse", 8, 8 + FTW_REASON_MAX, RECORD_EPOCH_ANY, "secondary", "0" },
	{ FTW_REGIONS, "regions", 40, BODY_MAX, RECORD_EPOCH_NONE, "primary", "0" },
	{ FTW_BASE, "base", 24, 24, RECORD_EPOCH_NONE, "primary", "0" },
	{ FTW_BASE_ACK, "base-ack", 8, 8, RECORD_EPOCH_NONE, "secondary", "0" },
	{ FTW_NOTIFY_WRITE, "notify-write", 32, 16 + 16 * FTW_RUNS_MAX, RECORD_EPOCH_MUST, "primary", "data" },
	{ FTW_ZERO_PAGES, "zero-pages", 32, 16 + 16 * FTW_RUNS_MAX, RECORD_EPOCH_MUST, "primary", "data" },
	{ FTW_DEVICE_STATE, "device-state", 17, 16 + FTW_STATE_PIECE_MAX, RECORD_EPOCH_MUST, "primary", "1" },
	{ FTW_COMMIT, "commit", 80, 80, RECORD_EPOCH_MUST, "primary", "0" },
	{ FTW_SIDE_DATA, "side-data", 9, 8 + FTW_SIDE_PIECE_MAX, RECORD_EPOCH_MUST, "primary", "1" },
	{ FTW_NOTIFY_SLAB, "notify-slab", 40, 24 + 16 * FTW_RUNS_MAX, RECORD_EPOCH_MUST, "primary", "data" },
	{ FTW_NOTIFY_DELTA, "notify-delta", 32, 16 + FTW_DELTA_BYTES_MAX, RECORD_EPOCH_MUST, "primary", "data" },
	{ FTW_PAGE_CHECKS, "page-checks", 12, 8 + 4 * FTW_NOTIFY_PAGES_MAX, RECORD_EPOCH_MUST, "primary", "data" },
	{ FTW_ACK, "ack", 0, 0, RECORD_EPOCH_MUST, "secondary", "0" },
	{ FTW_APPLIED, "applied", 0, 0, RECORD_EPOCH_MUST, "secondary", "0" },
	{ FTW_WORKING, "working", 0, 0, RECORD_EPOCH_MUST, "secondary", "0" },
	{ FTW_ROOM, "room", 16, 16, RECORD_EPOCH_NONE, "secondary", "0" },
	{ FTW_HEARTBEAT, "heartbeat", 16, 16, RECORD_EPOCH_NONE, "both", "0" },
	{ FTW_BYE, "bye", 8, 8 + FTW_REASON_MAX, RECORD_EPOCH_ANY, "both", "0" },
	{ FTW_ERROR, "error", 8, 8 + FTW_REASON_MAX, RECORD_EPOCH_ANY, "both", "0" },
	{ FTW_SYNC_PROGRESS, "sync-progress", 24, 24, RECORD_EPOCH_ANY, "primary", "0" },
};

static const char *const code_names[] = {
	[FTW_CODE_NONE] = "none",         [FTW_CODE_VERSION] = "version",   [FTW_CODE_CAPABILITY] = "capability",
	[FTW_CODE_LAYOUT] = "layout",     [FTW_CODE_IDENTITY] = "identity", [FTW_CODE_BUSY] = "busy",
	[FTW_CODE_ACTIVE] = "active",     [FTW_CODE_LIMIT] = "limit",       [FTW_CODE_PROTOCOL] = "protocol",
	[FTW_CODE_DIGEST] = "digest",     [FTW_CODE_MEMORY] = "memory",     [FTW_CODE_STOPPED] = "stopped",
	[FTW_CODE_UNUSABLE] = "unusable",
};

const struct record_type *record_types(size_t *n)
{
	*n = sizeof(types) / sizeof(types[0]);
	return types;
}

const struct record_type *record_type_find(uint32_t type)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

const char *record_name(uint32_t type, char buf[24])
{
	const struct record_type *t = record_type_find(type);

	if (t)
		return t->name;
	snprintf(buf, 24, "record 0x%" PRIx32, type);
	return buf;
}

const char *record_code_name(uint32_t code)
{
	return code < sizeof(code_names) / sizeof(code_names[0]) ? code_names[code] : "unknown";
}

bool text_printable(const void *text, size_t n)
{
	const uint8_t *t = text;

	for (size_t i = 0; i < n; i++)
		if (t[i] < 0x20 || t[i] > 0x7e)
			return false;
	return true;
}

bool identity_printable(const void *text, size_t n)
{
	const uint8_t *t = text;

	for (size_t i = 0; i < n; i++)
		if ((t[i] < 0x20 && t[i] != '\n' && t[i] != '\t') || t[i] > 0x7e)
			return false;
	return true;
}

/* -- reading -- */

const uint8_t *rd_bytes(struct cursor *c, uint64_t n)
{
	const uint8_t *at = c->at;

	if (c->failed || n > (uint64_t)(c->end - c->at)) {
		c->failed = true;
		return NULL;
	}
	c->at += n;
	return at;
}

static bool rd_copy(struct cursor *c, void *out, size_t n)
{
	const uint8_t *at = rd_bytes(c, n);

	if (!at)
		return false;
	memcpy(out, at, n);
	return true;
}

uint16_t rd_u16(struct cursor *c)
{
	ft_be16 v = { 0 };

	rd_copy(c, &v, sizeof(v));
	return from_be16(v);
}

uint32_t rd_u32(struct cursor *c)
{
	ft_be32 v = { 0 };

	rd_copy(c, &v, sizeof(v));
	return from_be32(v);
}

uint64_t rd_u64(struct cursor *c)
{
	ft_be64 v = { 0 };

	rd_copy(c, &v, sizeof(v));
	return from_be64(v);
}

bool rd_done(const struct cursor *c)
{
	return !c->failed && c->at == c->end;
}

/* bad - the refusal of a record, with its name in front. */
static int FT_PRINTF(3, 4) bad(struct ft_error *err, uint32_t type, const char *fmt, ...)
{
	char what[256], name[24];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(err, -EPROTO, "%s: %s", record_name(type, name), what);
}

static int bad_length(struct ft_error *err, const struct cursor *body)
{
	return bad(err, body->type, "its length and its counts do not agree");
}

static bool all_zero(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

static int check_head(const struct record_head *h, struct ft_error *err)
{
	const struct record_type *t = record_type_find(h->type);

	if (!t)
		return 0; /* the receiver refuses or skips it */
	if (h->len_bytes < t->body_min || h->len_bytes > t->body_max)
		return bad(err, h->type, "body of %" PRIu32 " octets, it has %" PRIu32 " to %" PRIu32, h->len_bytes,
			   t->body_min, t->body_max);
	if (t->epoch == RECORD_EPOCH_NONE && h->epoch)
		return bad(err, h->type, "epoch %" PRIu64 " in a record that has none", h->epoch);
	if (t->epoch == RECORD_EPOCH_MUST && !h->epoch)
		return bad(err, h->type, "no epoch");
	return 0;
}

int consume_head(const void *msg, size_t len, struct record_head *head, struct cursor *body, struct ft_error *err)
{
	const uint8_t *octets = msg;
	struct record_head h;
	struct ftw_record w;
	size_t used;
	int rc;

	if (len < HEAD || len > FTW_RECORD_MAX)
		return err_set(err, -EPROTO, "record: message of %zu octets, it must be %zu to %u", len, HEAD,
			       FTW_RECORD_MAX);
	memcpy(&w, octets, sizeof(w));
	h = (struct record_head){ .type = from_be32(w.type),
				  .len_bytes = from_be32(w.len_bytes),
				  .seq = from_be32(w.seq),
				  .epoch = from_be64(w.epoch) };
	if (h.len_bytes > BODY_MAX || len != ((HEAD + h.len_bytes + 7) & ~(size_t)7))
		return bad(err, h.type, "body of %" PRIu32 " octets in a message of %zu", h.len_bytes,
			   len); /* also: not a multiple of 8 */
	if (from_be32(w.reserved))
		return bad(err, h.type, "reserved field of the head is not 0");
	used = HEAD + h.len_bytes;
	if (!all_zero(octets + used, len - used))
		return bad(err, h.type, "padding is not zeros");
	rc = check_head(&h, err);
	if (rc)
		return rc;
	*head = h;
	*body = (struct cursor){ .at = octets + HEAD, .end = octets + used, .type = h.type };
	return 0;
}

/* -- writing -- */

struct writer {
	uint8_t *start, *at;
	uint32_t type, seq;
	uint64_t epoch;
};

static struct writer begin(void *buf, uint32_t type, uint64_t epoch, uint32_t seq)
{
	return (struct writer){ .start = buf, .at = (uint8_t *)buf + HEAD, .type = type, .seq = seq, .epoch = epoch };
}

static void put(struct writer *w, const void *from, size_t n)
{
	assert(n <= FTW_RECORD_MAX - (size_t)(w->at - w->start));
	if (n)
		memcpy(w->at, from, n);
	w->at += n;
}

static void put_padding(struct writer *w)
{
	static const uint8_t zeros[8];

	put(w, zeros, -(size_t)(w->at - w->start) & 7);
}

static size_t finish(struct writer *w)
{
	const size_t len = (size_t)(w->at - w->start) - HEAD;
	const struct ftw_record head = { .type = to_be32(w->type),
					 .len_bytes = to_be32((uint32_t)len),
					 .epoch = to_be64(w->epoch),
					 .seq = to_be32(w->seq) };
	const struct record_type *t = record_type_find(w->type);

	assert(t && len >= t->body_min && len <= t->body_max);
	assert(t->epoch == RECORD_EPOCH_ANY || (t->epoch == RECORD_EPOCH_NONE) == (w->epoch == 0));
	memcpy(w->start, &head, sizeof(head));
	put_padding(w);
	return (size_t)(w->at - w->start);
}

/* -- hello -- */

static int check_heartbeat_terms(uint32_t type, uint32_t ms, uint32_t misses, struct ft_error *err)
{
	if (!ms || ms > FTW_HEARTBEAT_MS_MAX)
		return bad(err, type, "heartbeat every %" PRIu32 " ms, it must be 1 to %u", ms, FTW_HEARTBEAT_MS_MAX);
	if (!misses || misses > FTW_HEARTBEAT_MISSES_MAX)
		return bad(err, type, "%" PRIu32 " missed heartbeats, it must be 1 to %u", misses,
			   FTW_HEARTBEAT_MISSES_MAX);
	return 0;
}

static int check_placement(uint32_t type, uint16_t placement, struct ft_error *err)
{
	if (placement != FTW_PLACEMENT_MIRROR && placement != FTW_PLACEMENT_SLAB)
		return bad(err, type, "placement %u is unknown", placement);
	return 0;
}

/* check_hello - what holds for every hello, whoever reads it; whether the two sides suit each other is the engine's to say. */
static int check_hello(const struct hello *h, struct ft_error *err)
{
	if (!h->version_min || h->version_min > h->version_max)
		return bad(err, FTW_HELLO, "versions %u to %u are no range", h->version_min, h->version_max);
	if (check_placement(FTW_HELLO, h->placement, err))
		return -EPROTO;
	if (h->mode != FTW_MODE_CHECKPOINT && h->mode != FTW_MODE_COLO)
		return bad(err, FTW_HELLO, "mode %u is unknown", h->mode);
	if (!h->nr_pages || h->nr_pages % FTW_REGION_ALIGN || h->nr_pages > FTW_PAGES_MAX)
		return bad(err, FTW_HELLO, "page space of %" PRIu64 " pages, it must be a multiple of %u up to 2^51",
			   h->nr_pages, FTW_REGION_ALIGN);
	if (h->page_bytes != FTW_PAGE_BYTES)
		return bad(err, FTW_HELLO, "pages of %" PRIu32 " octets, it must be %u", h->page_bytes, FTW_PAGE_BYTES);
	if (h->chunk_bytes < h->page_bytes || (h->chunk_bytes & (h->chunk_bytes - 1)))
		return bad(err, FTW_HELLO,
			   "chunks of %" PRIu32 " octets, it must be a power of two and at least a page",
			   h->chunk_bytes);
	if (!h->lanes || h->lanes > FTW_LANES_MAX)
		return bad(err, FTW_HELLO, "%" PRIu32 " data lanes, it must be 1 to %u", h->lanes, FTW_LANES_MAX);
	if (h->identity_bytes > FTW_IDENTITY_MAX || h->name_bytes > FTW_NAME_MAX)
		return bad(err, FTW_HELLO, "identity of %" PRIu32 " and name of %" PRIu32 " octets, at most %u and %u",
			   h->identity_bytes, h->name_bytes, FTW_IDENTITY_MAX, FTW_NAME_MAX);
	return check_heartbeat_terms(FTW_HELLO, h->heartbeat_ms, h->heartbeat_misses, err);
}

size_t create_hello(void *buf, uint32_t seq, const struct hello *h)
{
	struct writer w = begin(buf, FTW_HELLO, 0, seq);
	struct ftw_hello b = {
		.magic = to_be64(FTW_MAGIC),
		.version_min = to_be16(h->version_min),
		.version_max = to_be16(h->version_max),
		.placement = to_be16(h->placement),
		.mode = to_be16(h->mode),
		.capabilities_needed = to_be64(h->capabilities_needed),
		.capabilities_offered = to_be64(h->capabilities_offered),
		.generation = to_be64(h->generation),
		.epoch_committed = to_be64(h->epoch_committed),
		.nr_pages = to_be64(h->nr_pages),
		.state_max = to_be64(h->state_max),
		.page_bytes = to_be32(h->page_bytes),
		.chunk_bytes = to_be32(h->chunk_bytes),
		.lanes = to_be32(h->lanes),
		.heartbeat_ms = to_be32(h->heartbeat_ms),
		.heartbeat_misses = to_be32(h->heartbeat_misses),
		.identity_bytes = to_be32(h->identity_bytes),
		.name_bytes = to_be32(h->name_bytes),
	};

	assert(check_hello(h, NULL) == 0);
	assert(identity_printable(h->identity, h->identity_bytes) && text_printable(h->name, h->name_bytes));
	memcpy(b.session, h->session, sizeof(b.session));
	put(&w, &b, sizeof(b));
	put(&w, h->identity, h->identity_bytes);
	put(&w, h->name, h->name_bytes);
	return finish(&w);
}

static struct hello hello_of_wire(const struct ftw_hello *w)
{
	struct hello h = {
		.version_min = from_be16(w->version_min),
		.version_max = from_be16(w->version_max),
		.placement = from_be16(w->placement),
		.mode = from_be16(w->mode),
		.capabilities_needed = from_be64(w->capabilities_needed),
		.capabilities_offered = from_be64(w->capabilities_offered),
		.generation = from_be64(w->generation),
		.epoch_committed = from_be64(w->epoch_committed),
		.nr_pages = from_be64(w->nr_pages),
		.state_max = from_be64(w->state_max),
		.page_bytes = from_be32(w->page_bytes),
		.chunk_bytes = from_be32(w->chunk_bytes),
		.lanes = from_be32(w->lanes),
		.heartbeat_ms = from_be32(w->heartbeat_ms),
		.heartbeat_misses = from_be32(w->heartbeat_misses),
		.identity_bytes = from_be32(w->identity_bytes),
		.name_bytes = from_be32(w->name_bytes),
	};

	memcpy(h.session, w->session, sizeof(h.session));
	return h;
}

int consume_hello(struct cursor *body, struct hello *out, struct ft_error *err)
{
	struct ftw_hello w;
	struct hello h;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	if (from_be64(w.magic) != FTW_MAGIC)
		return bad(err, FTW_HELLO, "no magic number: this is another protocol");
	h = hello_of_wire(&w);
	if (check_hello(&h, err))
		return -EPROTO;
	if (from_be32(w.reserved))
		return bad(err, FTW_HELLO, "reserved field is not 0");
	h.identity = (const char *)rd_bytes(body, h.identity_bytes);
	h.name = (const char *)rd_bytes(body, h.name_bytes);
	if (!rd_done(body))
		return bad_length(err, body);
	if (!identity_printable(h.identity, h.identity_bytes) || !text_printable(h.name, h.name_bytes))
		return bad(err, FTW_HELLO, "identity or name is not printable");
	*out = h;
	return 0;
}

/* -- hello-ack -- */

static int check_hello_ack(const struct hello_ack *h, struct ft_error *err)
{
	if (!h->version)
		return bad(err, FTW_HELLO_ACK, "version 0");
	if (check_placement(FTW_HELLO_ACK, h->placement, err))
		return -EPROTO;
	if (!h->epoch_credits || h->epoch_credits > FTW_EPOCH_CREDITS_MAX)
		return bad(err, FTW_HELLO_ACK, "%" PRIu32 " epoch credits, it must be 1 to %u", h->epoch_credits,
			   FTW_EPOCH_CREDITS_MAX);
	return check_heartbeat_terms(FTW_HELLO_ACK, h->heartbeat_ms, h->heartbeat_misses, err);
}

size_t create_hello_ack(void *buf, uint32_t seq, const struct hello_ack *h)
{
	struct writer w = begin(buf, FTW_HELLO_ACK, 0, seq);
	const struct ftw_hello_ack b = {
		.version = to_be16(h->version),
		.placement = to_be16(h->placement),
		.epoch_credits = to_be32(h->epoch_credits),
		.capabilities = to_be64(h->capabilities),
		.generation = to_be64(h->generation),
		.epoch_committed = to_be64(h->epoch_committed),
		.heartbeat_ms = to_be32(h->heartbeat_ms),
		.heartbeat_misses = to_be32(h->heartbeat_misses),
	};

	assert(check_hello_ack(h, NULL) == 0);
	put(&w, &b, sizeof(b));
	return finish(&w);
}

int consume_hello_ack(struct cursor *body, struct hello_ack *out, struct ft_error *err)
{
	struct ftw_hello_ack w;
	struct hello_ack h;

	if (!rd_copy(body, &w, sizeof(w)) || !rd_done(body))
		return bad_length(err, body);
	h = (struct hello_ack){
		.version = from_be16(w.version),
		.placement = from_be16(w.placement),
		.epoch_credits = from_be32(w.epoch_credits),
		.capabilities = from_be64(w.capabilities),
		.generation = from_be64(w.generation),
		.epoch_committed = from_be64(w.epoch_committed),
		.heartbeat_ms = from_be32(w.heartbeat_ms),
		.heartbeat_misses = from_be32(w.heartbeat_misses),
	};
	if (check_hello_ack(&h, err))
		return -EPROTO;
	*out = h;
	return 0;
}

/* -- regions -- */

static uint32_t padded(uint32_t n)
{
	return (n + 7) & ~UINT32_C(7);
}

size_t create_regions(void *buf, uint32_t seq, const struct region_entry *e, uint32_t count)
{
	struct writer w = begin(buf, FTW_REGIONS, 0, seq);
	const struct ftw_regions b = { .count = to_be32(count) };
	size_t len = sizeof(b);

	assert(count && count <= FTW_REGIONS_MAX);
	for (uint32_t i = 0; i < count; i++)
		len += sizeof(struct ftw_region) + padded(e[i].name_bytes);
	if (len > BODY_MAX)
		return 0;
	put(&w, &b, sizeof(b));
	for (uint32_t i = 0; i < count; i++) {
		const struct ftw_region r = { .first_page = to_be64(e[i].first_page),
					      .len_bytes = to_be64(e[i].len_bytes),
					      .flags = to_be32(e[i].flags),
					      .name_bytes = to_be32(e[i].name_bytes) };

		assert(e[i].name_bytes && e[i].name_bytes <= FTW_NAME_MAX &&
		       text_printable(e[i].name, e[i].name_bytes));
		put(&w, &r, sizeof(r));
		put(&w, e[i].name, e[i].name_bytes);
		put_padding(&w);
	}
	return finish(&w);
}

/* next_region - one entry; *@end is the page behind the entry before and behind this one. */
static int next_region(struct cursor *body, uint32_t i, uint64_t *end, struct region_entry *out, struct ft_error *err)
{
	struct ftw_region w;
	const uint8_t *padding;
	struct region_entry e;
	uint64_t nr_pages;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	e = (struct region_entry){ .first_page = from_be64(w.first_page),
				   .len_bytes = from_be64(w.len_bytes),
				   .flags = from_be32(w.flags),
				   .name_bytes = from_be32(w.name_bytes) };
	nr_pages = e.len_bytes / FTW_PAGE_BYTES;
	if (!nr_pages || e.len_bytes % FTW_PAGE_BYTES || e.first_page % FTW_REGION_ALIGN || e.first_page < *end ||
	    e.first_page >= FTW_PAGES_MAX || nr_pages > FTW_PAGES_MAX - e.first_page)
		return bad(err, FTW_REGIONS,
			   "region %" PRIu32 ": page %" PRIu64 ", %" PRIu64
			   " octets: unaligned, empty, overlapping or too large",
			   i, e.first_page, e.len_bytes);
	if (e.flags)
		return bad(err, FTW_REGIONS, "region %" PRIu32 ": flags are not 0", i);
	if (!e.name_bytes || e.name_bytes > FTW_NAME_MAX)
		return bad(err, FTW_REGIONS, "region %" PRIu32 ": name of %" PRIu32 " octets, it must be 1 to %u", i,
			   e.name_bytes, FTW_NAME_MAX);
	e.name = (const char *)rd_bytes(body, e.name_bytes);
	padding = rd_bytes(body, padded(e.name_bytes) - e.name_bytes);
	if (!e.name || !padding)
		return bad_length(err, body);
	if (!text_printable(e.name, e.name_bytes) || !all_zero(padding, padded(e.name_bytes) - e.name_bytes))
		return bad(err, FTW_REGIONS, "region %" PRIu32 ": name is not printable or its padding not zeros", i);
	*end = e.first_page + nr_pages;
	*out = e;
	return 0;
}

int consume_regions(struct cursor *body, struct region_entry *out, uint32_t max, uint32_t *count, struct ft_error *err)
{
	struct region_entry scratch;
	struct cursor again;
	struct ftw_regions w;
	uint64_t end = 0;
	uint32_t n;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	n = from_be32(w.count);
	if (!n || n > FTW_REGIONS_MAX || n > max)
		return bad(err, FTW_REGIONS, "%" PRIu32 " regions, it must be 1 to %" PRIu32, n, max);
	if (from_be32(w.reserved))
		return bad(err, FTW_REGIONS, "reserved field is not 0");
	again = *body;
	for (uint32_t i = 0; i < n; i++)
		if (next_region(body, i, &end, &scratch, err))
			return -EPROTO;
	if (!rd_done(body))
		return bad_length(err, body);
	end = 0;
	for (uint32_t i = 0; i < n;
	     i++) /* cannot fail: the same octets, looked at a second time so that @out is untouched by a refusal */
		next_region(&again, i, &end, &out[i], NULL);
	*count = n;
	return 0;
}

/* -- notify-write, zero-pages, notify-slab -- */

static struct ftw_runs runs_head(const struct page_run *run, uint32_t count, uint64_t digest)
{
	struct ftw_runs b = { .count = to_be32(count), .digest = to_be64(digest) };
	uint64_t nr_pages = 0;

	assert(count && count <= FTW_RUNS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		assert(run[i].nr && run[i].nr <= FTW_NOTIFY_PAGES_MAX);
		assert(i == 0 || run[i].first > run[i - 1].first + run[i - 1].nr);
		nr_pages += run[i].nr;
	}
	assert(nr_pages <= FTW_NOTIFY_PAGES_MAX);
	b.nr_pages = to_be32((uint32_t)nr_pages);
	return b;
}

static void put_runs(struct writer *w, const struct page_run *run, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct ftw_run r = { .first_page = to_be64(run[i].first),
					   .nr_pages = to_be32((uint32_t)run[i].nr) };

		put(w, &r, sizeof(r));
	}
}

size_t create_runs(void *buf, uint32_t type, uint64_t epoch, uint32_t seq, const struct page_run *run, uint32_t count,
		   uint64_t digest)
{
	struct writer w = begin(buf, type, epoch, seq);
	const struct ftw_runs b = runs_head(run, count, digest);

	assert(type == FTW_NOTIFY_WRITE || type == FTW_ZERO_PAGES);
	put(&w, &b, sizeof(b));
	put_runs(&w, run, count);
	return finish(&w);
}

size_t create_slab_runs(void *buf, uint64_t epoch, uint32_t seq, uint64_t position, const struct page_run *run,
			uint32_t count, uint64_t digest)
{
	struct writer w = begin(buf, FTW_NOTIFY_SLAB, epoch, seq);
	const struct ftw_runs b = runs_head(run, count, digest);
	const struct ftw_slab slab = { .position = to_be64(position) };

	put(&w, &b, sizeof(b));
	put(&w, &slab, sizeof(slab));
	put_runs(&w, run, count);
	return finish(&w);
}

/* check_runs - each run inside of the page space and behind the one before, with a gap (else it would be one run); the sum. */
static int check_runs(uint32_t type, const struct runs *r, uint64_t nr_pages_space, struct ft_error *err)
{
	uint64_t end = 0, sum = 0;

	for (uint32_t i = 0; i < r->count; i++) {
		const uint64_t first = from_be64(r->run[i].first_page);
		const uint32_t nr = from_be32(r->run[i].nr_pages);

		if (from_be32(r->run[i].reserved))
			return bad(err, type, "run %" PRIu32 ": reserved field is not 0", i);
		if (!nr || nr > FTW_NOTIFY_PAGES_MAX)
			return bad(err, type, "run %" PRIu32 ": %" PRIu32 " pages, it must be 1 to %u", i, nr,
				   FTW_NOTIFY_PAGES_MAX);
		if (first >= nr_pages_space || nr > nr_pages_space - first)
			return bad(err, type,
				   "run %" PRIu32 ": page %" PRIu64 " and %" PRIu32 " more are outside of %" PRIu64
				   " pages",
				   i, first, nr - 1, nr_pages_space);
		if (i && first <= end)
			return bad(err, type,
				   "run %" PRIu32 ": page %" PRIu64 " is not behind the run before and a gap", i,
				   first);
		end = first + nr;
		sum += nr;
	}
	if (sum != r->nr_pages)
		return bad(err, type, "%" PRIu32 " pages announced, its runs have %" PRIu64, r->nr_pages, sum);
	return 0;
}

/* @slab: what notify-slab has between head and runs, else NULL. */
static int consume_any_runs(struct cursor *body, uint64_t nr_pages_space, struct ftw_slab *slab, struct runs *out,
			    struct ft_error *err)
{
	struct ftw_runs w;
	struct runs r;

	if (!rd_copy(body, &w, sizeof(w)) || (slab && !rd_copy(body, slab, sizeof(*slab))))
		return bad_length(err, body);
	r = (struct runs){ .count = from_be32(w.count),
			   .nr_pages = from_be32(w.nr_pages),
			   .digest = from_be64(w.digest) };
	if (!r.count || r.count > FTW_RUNS_MAX)
		return bad(err, body->type, "%" PRIu32 " runs, it must be 1 to %u", r.count, FTW_RUNS_MAX);
	if (!r.nr_pages || r.nr_pages > FTW_NOTIFY_PAGES_MAX)
		return bad(err, body->type, "%" PRIu32 " pages, it must be 1 to %u", r.nr_pages, FTW_NOTIFY_PAGES_MAX);
	r.run = (const struct ftw_run *)rd_bytes(body, (uint64_t)r.count * sizeof(*r.run));
	if (!rd_done(body))
		return bad_length(err, body);
	if (check_runs(body->type, &r, nr_pages_space, err))
		return -EPROTO;
	*out = r;
	return 0;
}

int consume_runs(struct cursor *body, uint64_t nr_pages_space, struct runs *out, struct ft_error *err)
{
	return consume_any_runs(body, nr_pages_space, NULL, out, err);
}

int consume_slab_runs(struct cursor *body, uint64_t nr_pages_space, struct slab_runs *out, struct ft_error *err)
{
	struct ftw_slab slab = { 0 };
	struct runs r;
	uint64_t position;
	int rc = consume_any_runs(body, nr_pages_space, &slab, &r, err);

	if (rc)
		return rc;
	position = from_be64(slab.position);
	if (position > UINT64_MAX - r.nr_pages)
		return bad(err, body->type, "%" PRIu32 " pages at position %" PRIu64, r.nr_pages, position);
	*out = (struct slab_runs){ .runs = r, .position = position };
	return 0;
}

/* -- notify-delta -- */

size_t create_deltas(void *buf, uint64_t epoch, uint32_t seq, const void *octets, uint32_t len, uint32_t count,
		     uint64_t digest)
{
	struct writer w = begin(buf, FTW_NOTIFY_DELTA, epoch, seq);
	const struct ftw_deltas b = { .count = to_be32(count), .digest = to_be64(digest) };

	assert(count && count <= FTW_NOTIFY_PAGES_MAX && len <= FTW_DELTA_BYTES_MAX);
	put(&w, &b, sizeof(b));
	put(&w, octets, len);
	return finish(&w);
}

static int check_delta(struct cursor *body, uint32_t i, uint64_t nr_pages_space, uint64_t *behind, struct ft_error *err)
{
	uint64_t page = rd_u64(body);
	uint32_t len = body->failed ? 0 : delta_length(body->at, (uint64_t)(body->end - body->at));

	if (!len)
		return bad(err, FTW_NOTIFY_DELTA, "page %" PRIu32 ": no delta, or one that is cut off", i);
	if (page < *behind || page >= nr_pages_space)
		return bad(err, FTW_NOTIFY_DELTA,
			   "page %" PRIu64 " is not behind the one before, or outside of %" PRIu64 " pages", page,
			   nr_pages_space);
	*behind = page + 1;
	rd_bytes(body, len);
	return 0;
}

int consume_deltas(struct cursor *body, uint64_t nr_pages_space, struct deltas *out, struct ft_error *err)
{
	uint64_t behind = 0;
	struct ftw_deltas w;
	struct deltas d;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	d = (struct deltas){ .count = from_be32(w.count),
			     .digest = from_be64(w.digest),
			     .octets = body->at,
			     .octets_bytes = (uint32_t)(body->end - body->at) };
	if (!d.count || d.count > FTW_NOTIFY_PAGES_MAX)
		return bad(err, FTW_NOTIFY_DELTA, "%" PRIu32 " pages, it must be 1 to %u", d.count,
			   FTW_NOTIFY_PAGES_MAX);
	if (from_be32(w.reserved))
		return bad(err, FTW_NOTIFY_DELTA, "reserved field is not 0");
	for (uint32_t i = 0; i < d.count; i++)
		if (check_delta(body, i, nr_pages_space, &behind, err))
			return -EPROTO;
	if (!rd_done(body))
		return bad_length(err, body);
	*out = d;
	return 0;
}

const uint8_t *deltas_next(const struct deltas *d, uint32_t *at, uint64_t *page)
{
	const uint8_t *delta = d->octets + *at + sizeof(ft_be64);
	ft_be64 wire;

	if (*at == d->octets_bytes)
		return NULL;
	memcpy(&wire, d->octets + *at, sizeof(wire));
	*page = from_be64(wire);
	*at += (uint32_t)sizeof(wire) + delta_length(delta, d->octets_bytes);
	return delta;
}

/* -- base, base-ack -- */

size_t create_base(void *buf, uint32_t seq, const struct base *b)
{
	struct writer w = begin(buf, FTW_BASE, 0, seq);
	const struct ftw_base wire = { .connection = to_be64(b->connection),
				       .base_connection = to_be64(b->base_connection),
				       .base_epoch = to_be64(b->base_epoch) };

	put(&w, &wire, sizeof(wire));
	return finish(&w);
}

int consume_base(struct cursor *body, struct base *out, struct ft_error *err)
{
	struct ftw_base w;
	struct base b;

	if (!rd_copy(body, &w, sizeof(w)) || !rd_done(body))
		return bad_length(err, body);
	b = (struct base){ .connection = from_be64(w.connection),
			   .base_connection = from_be64(w.base_connection),
			   .base_epoch = from_be64(w.base_epoch) };
	if (b.base_connection >= b.connection)
		return bad(err, FTW_BASE, "connection %" PRIu64 " goes on from connection %" PRIu64, b.connection,
			   b.base_connection);
	if (!b.base_connection != !b.base_epoch)
		return bad(err, FTW_BASE, "epoch %" PRIu64 " of connection %" PRIu64, b.base_epoch, b.base_connection);
	*out = b;
	return 0;
}

size_t create_base_ack(void *buf, uint32_t seq, uint64_t epoch)
{
	struct writer w = begin(buf, FTW_BASE_ACK, 0, seq);
	const struct ftw_base_ack wire = { .epoch = to_be64(epoch) };

	put(&w, &wire, sizeof(wire));
	return finish(&w);
}

int consume_base_ack(struct cursor *body, uint64_t *epoch, struct ft_error *err)
{
	struct ftw_base_ack w;

	if (!rd_copy(body, &w, sizeof(w)) || !rd_done(body))
		return bad_length(err, body);
	*epoch = from_be64(w.epoch);
	return 0;
}

/* -- page-checks -- */

size_t create_page_checks(void *buf, uint64_t epoch, uint32_t seq, const uint64_t *digest, uint32_t count)
{
	struct writer w = begin(buf, FTW_PAGE_CHECKS, epoch, seq);
	const struct ftw_page_checks b = { .count = to_be32(count) };

	assert(count && count <= FTW_NOTIFY_PAGES_MAX);
	put(&w, &b, sizeof(b));
	for (uint32_t i = 0; i < count; i++) {
		const ft_be32 check = to_be32((uint32_t)digest[i]);

		put(&w, &check, sizeof(check));
	}
	return finish(&w);
}

int consume_page_checks(struct cursor *body, struct page_checks *out, struct ft_error *err)
{
	struct ftw_page_checks w;
	struct page_checks c;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	c.count = from_be32(w.count);
	if (!c.count || c.count > FTW_NOTIFY_PAGES_MAX)
		return bad(err, FTW_PAGE_CHECKS, "%" PRIu32 " pages, it must be 1 to %u", c.count,
			   FTW_NOTIFY_PAGES_MAX);
	if (from_be32(w.reserved))
		return bad(err, FTW_PAGE_CHECKS, "reserved field is not 0");
	c.octets = rd_bytes(body, (uint64_t)c.count * sizeof(ft_be32));
	if (!rd_done(body))
		return bad_length(err, body);
	*out = c;
	return 0;
}

uint32_t page_check(const struct page_checks *c, uint32_t i)
{
	ft_be32 wire;

	memcpy(&wire, c->octets + (size_t)i * sizeof(wire), sizeof(wire));
	return from_be32(wire);
}

/* -- device-state -- */

size_t create_device_state(void *buf, uint64_t epoch, uint32_t seq, uint64_t total, uint64_t offset, const void *data,
			   uint32_t len)
{
	struct writer w = begin(buf, FTW_DEVICE_STATE, epoch, seq);
	const struct ftw_device_state b = { .total_bytes = to_be64(total), .offset = to_be64(offset) };

	assert(len && offset <= total && len <= total - offset);
	put(&w, &b, sizeof(b));
	put(&w, data, len);
	return finish(&w);
}

int consume_device_state(struct cursor *body, struct device_state *out, struct ft_error *err)
{
	struct ftw_device_state w;
	struct device_state d;

	if (!rd_copy(body, &w, sizeof(w)))
		return bad_length(err, body);
	d = (struct device_state){ .total_bytes = from_be64(w.total_bytes),
				   .offset = from_be64(w.offset),
				   .data_bytes = (uint32_t)(body->end - body->at) };
	if (!d.data_bytes || d.data_bytes > FTW_STATE_PIECE_MAX)
		return bad(err, FTW_DEVICE_STATE, "piece of %" PRIu32 " octets, it must be 1 to %u", d.data_bytes,
			   FTW_STATE_PIECE_MAX);
	if (d.offset > d.total_bytes || d.data_bytes > d.total_bytes - d.offset)
		return bad(err, FTW_DEVICE_STATE,
			   "%" PRIu32 " octets at %" PRIu64 " are outside of a state of %" PRIu64, d.data_bytes,
			   d.offset, d.total_bytes);
	d.data = rd_bytes(body, d.data_bytes);
	*out = d;
	return 0;
}

/* -- side-data -- */

uint8_t *side_data_octets(void *buf)
{
	return (uint8_t *)buf + HEAD + sizeof(struct ftw_side_data);
}

size_t create_side_data(void *buf, uint64_t epoch, uint32_t seq, uint64_t offset, uint32_t len)
{
	struct writer w = begin(buf, FTW_SIDE_DATA, epoch, seq);
	const struct ftw_side_data b = { .offset = to_be64(offset) };

	assert(len && len <= FTW_SIDE_PIECE_MAX && offset <= (uint64_t)INT64_MAX - len);
	put(&w, &b, sizeof(b));
	w.at += len; /* they are there */
	return finish(&w);
}

int consume_side_data(struct cursor *body, struct side_data *out, struct ft_error *err)
{
	struct side_data d = { .offset = rd_u64(body) };

	d.data_bytes = (uint32_t)(body->end - body->at);
	if (body->failed || !d.data_bytes || d.data_bytes > FTW_SIDE_PIECE_MAX)
		return bad(err, FTW_SIDE_DATA, "piece of %" PRIu32 " octets, it must be 1 to %u", d.data_bytes,
			   FTW_SIDE_PIECE_MAX);
	if (d.offset > (uint64_t)INT64_MAX - d.data_bytes)
		return bad(err, FTW_SIDE_DATA, "%" PRIu32 " octets at %" PRIu64 " end behind 2^63", d.data_bytes,
			   d.offset);
	d.data = rd_bytes(body, d.data_bytes);
	*out = d;
	return 0;
}

/* -- commit -- */

size_t create_commit(void *buf, uint64_t epoch, uint32_t seq, const struct commit *c)
{
	struct writer w = begin(buf, FTW_COMMIT, epoch, seq);
	struct ftw_commit b = { .nr_data_pages = to_be64(c->nr_data_pages),
				.nr_zero_pages = to_be64(c->nr_zero_pages),
				.state_bytes = to_be64(c->state_bytes),
				.side_bytes = to_be64(c->side_bytes),
				.digest = to_be64(c->digest),
				.lanes = to_be32(c->lanes) };

	assert(c->lanes && c->lanes <= FTW_LANES_MAX);
	for (uint32_t i = 0; i < c->lanes; i++)
		b.seq[i] = to_be32(c->seq[i]);
	put(&w, &b, sizeof(b));
	return finish(&w);
}

int consume_commit(struct cursor *body, struct commit *out, struct ft_error *err)
{
	struct ftw_commit w;
	struct commit c;

	if (!rd_copy(body, &w, sizeof(w)) || !rd_done(body))
		return bad_length(err, body);
	c = (struct commit){ .nr_data_pages = from_be64(w.nr_data_pages),
			     .nr_zero_pages = from_be64(w.nr_zero_pages),
			     .state_bytes = from_be64(w.state_bytes),
			     .side_bytes = from_be64(w.side_bytes),
			     .digest = from_be64(w.digest),
			     .lanes = from_be32(w.lanes) };
	if (!c.lanes || c.lanes > FTW_LANES_MAX)
		return bad(err, FTW_COMMIT, "%" PRIu32 " data lanes, it must be 1 to %u", c.lanes, FTW_LANES_MAX);
	if (from_be32(w.reserved))
		return bad(err, FTW_COMMIT, "reserved field is not 0");
	for (uint32_t i = 0; i < FTW_LANES_MAX; i++) {
		c.seq[i] = from_be32(w.seq[i]);
		if (i >= c.lanes && c.seq[i])
			return bad(err, FTW_COMMIT, "sequence number of unused lane %" PRIu32 " is not 0", i + 1);
	}
	*out = c;
	return 0;
}

/* -- ack, applied, working -- */

size_t create_epoch_mark(void *buf, uint32_t type, uint64_t epoch, uint32_t seq)
{
	struct writer w = begin(buf, type, epoch, seq);

	assert(type == FTW_ACK || type == FTW_APPLIED || type == FTW_WORKING);
	return finish(&w);
}

int consume_epoch_mark(struct cursor *body, struct ft_error *err)
{
	return rd_done(body) ? 0 : bad(err, body->type, "it has no body");
}

/* -- refuse, bye, error -- */

size_t create_reason(void *buf, uint32_t type, uint64_t epoch, uint32_t seq, uint32_t code, const char *text)
{
	struct writer w = begin(buf, type, epoch, seq);
	const size_t len = text ? strnlen(text, FTW_REASON_MAX) : 0;
	const struct ftw_reason b = { .code = to_be32(code), .reason_bytes = to_be32((uint32_t)len) };

	assert(type == FTW_REFUSE || type == FTW_BYE || type == FTW_ERROR);
	put(&w, &b, sizeof(b));
	for (size_t i = 0; i < len; i++)
		put(&w, text_printable(text + i, 1) ? text + i : "?", 1);
	return finish(&w);
}

int consume_reason(struct cursor *body, struct reason *out, struct ft_error *err)
{
	struct reason r = { 0 };

	r.code = rd_u32(body);
	r.reason_bytes = rd_u32(body);
	if (r.reason_bytes > FTW_REASON_MAX)
		return bad(err, body->type, "reason of %" PRIu32 " octets, at most %u", r.reason_bytes, FTW_REASON_MAX);
	r.text = (const char *)rd_bytes(body, r.reason_bytes);
	if (!rd_done(body))
		return bad_length(err, body);
	if (!text_printable(r.text, r.reason_bytes))
		return bad(err, body->type, "reason is not printable");
	*out = r;
	return 0;
}

/* -- room -- */

size_t create_room(void *buf, uint32_t seq, const struct room *r)
{
	struct writer w = begin(buf, FTW_ROOM, 0, seq);
	const struct ftw_room b = { .slots = to_be64(r->slots), .freed = to_be64(r->freed) };

	put(&w, &b, sizeof(b));
	return finish(&w);
}

int consume_room(struct cursor *body, struct room *out, struct ft_error *err)
{
	struct room r = { .slots = rd_u64(body) };

	r.freed = rd_u64(body);
	if (!rd_done(body))
		return bad_length(err, body);
	if (r.slots < FTW_RING_SLOTS_MIN || r.slots > FTW_PAGES_MAX || r.freed > UINT64_MAX - r.slots)
		return bad(err, FTW_ROOM, "%" PRIu64 " slots from position %" PRIu64, r.slots, r.freed);
	*out = r;
	return 0;
}

/* -- heartbeat -- */

size_t create_heartbeat(void *buf, uint32_t seq, const struct heartbeat *h)
{
	struct writer w = begin(buf, FTW_HEARTBEAT, 0, seq);
	const struct ftw_heartbeat b = { .time_ns = to_be64(h->time_ns), .echo_ns = to_be64(h->echo_ns) };

	put(&w, &b, sizeof(b));
	return finish(&w);
}

int consume_heartbeat(struct cursor *body, struct heartbeat *out, struct ft_error *err)
{
	struct heartbeat h = { .time_ns = rd_u64(body) };

	h.echo_ns = rd_u64(body);
	if (!rd_done(body))
		return bad_length(err, body);
	*out = h;
	return 0;
}

/* -- sync-progress -- */

size_t create_sync_progress(void *buf, uint64_t epoch, uint32_t seq, const struct sync_progress *p)
{
	struct writer w = begin(buf, FTW_SYNC_PROGRESS, epoch, seq);
	const struct ftw_sync_progress b = { .round = to_be32(p->round),
					     .pages_done = to_be64(p->pages_done),
					     .pages_total = to_be64(p->pages_total) };

	put(&w, &b, sizeof(b));
	return finish(&w);
}

int consume_sync_progress(struct cursor *body, struct sync_progress *out, struct ft_error *err)
{
	struct ftw_sync_progress w;

	if (!rd_copy(body, &w, sizeof(w)) || !rd_done(body))
		return bad_length(err, body);
	if (from_be32(w.reserved))
		return bad(err, FTW_SYNC_PROGRESS, "reserved field is not 0");
	*out = (struct sync_progress){ .round = from_be32(w.round),
				       .pages_done = from_be64(w.pages_done),
				       .pages_total = from_be64(w.pages_total) };
	return 0;
}
