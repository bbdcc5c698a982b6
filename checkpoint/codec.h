/* SPDX-License-Identifier: MIT */
/* codec.h - one record to octets and back: a create/consume pair per message.
 *
 * create_X fills @buf (FTW_RECORD_MAX octets), padding included, and returns the length of the record.  Its caller
 * gives what fits: the arguments are ours, so misfits are asserted.
 * consume_X reads a whole message as it came from the peer: decode order is length, type, counts, each entry, exact
 * total; only then is anything stored in @out.  0 or -EPROTO with a sentence that names the record and what was
 * wrong.  Nothing is allocated.  Pointers in @out point into the message.  Pure functions: any thread. */
#ifndef FT_CODEC_H
#define FT_CODEC_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/error.h>
#include "bitmap.h"
#include "record.h"

/* -- bounded cursor -- */
struct cursor {
	const uint8_t *at, *end;
	bool failed; /* something was read beyond the end; checked once, at the end */
	uint32_t type; /* record that it is the body of, for sentences; consume_head() sets it */
};
uint16_t rd_u16(struct cursor *c);
uint32_t rd_u32(struct cursor *c);
uint64_t rd_u64(struct cursor *c);
const uint8_t *rd_bytes(struct cursor *c, uint64_t n); /* NULL and failed if there are fewer */
bool rd_done(const struct cursor *c); /* nothing failed, nothing left */

struct record_head {
	uint32_t type, len_bytes, seq;
	uint64_t epoch;
};

/* consume_head - check the head against the message's length (padding must be zeros) and set @body to the body. */
int consume_head(const void *msg, size_t len, struct record_head *head, struct cursor *body, struct ft_error *err);

/* What is fixed about a type; body lengths are checked by consume_head(). */
struct record_type {
	uint32_t type;
	const char *name;
	uint32_t body_min, body_max; /* octets, padding not counted */
	enum { RECORD_EPOCH_NONE, RECORD_EPOCH_ANY, RECORD_EPOCH_MUST } epoch; /* always 0, either, never 0 */
	const char *from, *lane; /* who sends it and where, for people */
};
const struct record_type *record_types(size_t *n);
const struct record_type *record_type_find(uint32_t type); /* NULL: unknown */

/* record_name - "notify-write" ...; "record 0x77" style for unknown ones into @buf. */
const char *record_name(uint32_t type, char buf[24]);
const char *record_code_name(uint32_t code);

struct hello {
	uint16_t version_min, version_max, placement, mode;
	uint64_t capabilities_needed, capabilities_offered;
	uint8_t session[16];
	uint64_t generation, epoch_committed, nr_pages, state_max;
	uint32_t page_bytes, chunk_bytes, lanes, heartbeat_ms, heartbeat_misses;
	const char *identity; /* not terminated on the consume side */
	uint32_t identity_bytes;
	const char *name;
	uint32_t name_bytes;
};
struct hello_ack {
	uint16_t version, placement;
	uint32_t epoch_credits;
	uint64_t capabilities, generation, epoch_committed;
	uint32_t heartbeat_ms, heartbeat_misses;
};
struct base {
	uint64_t connection, base_connection, base_epoch;
};
struct region_entry {
	uint64_t first_page, len_bytes;
	uint32_t flags, name_bytes;
	const char *name;
};
struct runs {
	uint32_t count, nr_pages;
	uint64_t digest;
	const struct ftw_run *run; /* checked: in range of nr_pages_space, ascending, not touching, sum right */
};
struct slab_runs {
	struct runs runs;
	uint64_t position; /* in the ring; position + runs.nr_pages does not overflow */
};
struct deltas {
	uint32_t count;
	uint64_t digest;
	const uint8_t *octets; /* checked: so many deltas, each with its page number in front; in range of nr_pages_space, ascending */
	uint32_t octets_bytes;
};
struct page_checks {
	uint32_t count;
	const uint8_t *octets; /* 4 for each page, see page_check() */
};
struct room {
	uint64_t slots, freed;
};
struct device_state {
	uint64_t total_bytes, offset;
	const uint8_t *data;
	uint32_t data_bytes;
};
struct side_data {
	uint64_t offset;
	const uint8_t *data;
	uint32_t data_bytes;
};
struct commit {
	uint64_t nr_data_pages, nr_zero_pages, state_bytes, side_bytes, digest;
	uint32_t lanes, seq[FTW_LANES_MAX];
};
struct reason {
	uint32_t code, reason_bytes;
	const char *text; /* not terminated; printable: other octets are refused */
};
struct heartbeat {
	uint64_t time_ns, echo_ns;
};
struct sync_progress {
	uint32_t round;
	uint64_t pages_done, pages_total;
};

/* text_printable - only octets 0x20 to 0x7e: what names and reasons may hold. */
bool text_printable(const void *text, size_t n);
bool identity_printable(const void *text, size_t n); /* also tabs and newlines */

size_t create_hello(void *buf, uint32_t seq, const struct hello *h);
int consume_hello(struct cursor *body, struct hello *out, struct ft_error *err);
size_t create_hello_ack(void *buf, uint32_t seq, const struct hello_ack *h);
int consume_hello_ack(struct cursor *body, struct hello_ack *out, struct ft_error *err);
/* create_regions - 0: the entries do not fit into one record (regions and their names are the embedder's). */
size_t create_regions(void *buf, uint32_t seq, const struct region_entry *e, uint32_t count);
/* @out: room for @max entries; *@count gets their number. */
int consume_regions(struct cursor *body, struct region_entry *out, uint32_t max, uint32_t *count, struct ft_error *err);
size_t create_base(void *buf, uint32_t seq, const struct base *b);
int consume_base(struct cursor *body, struct base *out, struct ft_error *err);
size_t create_base_ack(void *buf, uint32_t seq, uint64_t epoch);
int consume_base_ack(struct cursor *body, uint64_t *epoch, struct ft_error *err);
/* @type: FTW_NOTIFY_WRITE or FTW_ZERO_PAGES. */
size_t create_runs(void *buf, uint32_t type, uint64_t epoch, uint32_t seq, const struct page_run *run, uint32_t count, uint64_t digest);
int consume_runs(struct cursor *body, uint64_t nr_pages_space, struct runs *out, struct ft_error *err);
size_t create_slab_runs(void *buf, uint64_t epoch, uint32_t seq, uint64_t position, const struct page_run *run, uint32_t count, uint64_t digest);
int consume_slab_runs(struct cursor *body, uint64_t nr_pages_space, struct slab_runs *out, struct ft_error *err);
/* @octets: deltas, each with its page number of 8 octets in network order in front. */
size_t create_deltas(void *buf, uint64_t epoch, uint32_t seq, const void *octets, uint32_t len, uint32_t count, uint64_t digest);
int consume_deltas(struct cursor *body, uint64_t nr_pages_space, struct deltas *out, struct ft_error *err);
/* deltas_next - the next one of a record that was consumed, from @*at on, which is 0 at first.  Returns the delta, NULL: there are no more. */
const uint8_t *deltas_next(const struct deltas *d, uint32_t *at, uint64_t *page);
/* create_page_checks - of each digest its low 32 bits. */
size_t create_page_checks(void *buf, uint64_t epoch, uint32_t seq, const uint64_t *digest, uint32_t count);
int consume_page_checks(struct cursor *body, struct page_checks *out, struct ft_error *err);
uint32_t page_check(const struct page_checks *c, uint32_t i);
size_t create_device_state(void *buf, uint64_t epoch, uint32_t seq, uint64_t total, uint64_t offset, const void *data, uint32_t len);
int consume_device_state(struct cursor *body, struct device_state *out, struct ft_error *err);
/* side_data_octets - where create_side_data() finds its octets: room for FTW_SIDE_PIECE_MAX of them, to be filled before the call. */
uint8_t *side_data_octets(void *buf);
size_t create_side_data(void *buf, uint64_t epoch, uint32_t seq, uint64_t offset, uint32_t len);
int consume_side_data(struct cursor *body, struct side_data *out, struct ft_error *err);
size_t create_commit(void *buf, uint64_t epoch, uint32_t seq, const struct commit *c);
int consume_commit(struct cursor *body, struct commit *out, struct ft_error *err);
/* @type: FTW_ACK, FTW_APPLIED or FTW_WORKING; no body. */
size_t create_epoch_mark(void *buf, uint32_t type, uint64_t epoch, uint32_t seq);
int consume_epoch_mark(struct cursor *body, struct ft_error *err);
/* @type: FTW_REFUSE, FTW_BYE, FTW_ERROR.  @text is cut at FTW_REASON_MAX; octets that are not printable become '?'. */
size_t create_reason(void *buf, uint32_t type, uint64_t epoch, uint32_t seq, uint32_t code, const char *text);
int consume_reason(struct cursor *body, struct reason *out, struct ft_error *err);
size_t create_room(void *buf, uint32_t seq, const struct room *r);
int consume_room(struct cursor *body, struct room *out, struct ft_error *err);
size_t create_heartbeat(void *buf, uint32_t seq, const struct heartbeat *h);
int consume_heartbeat(struct cursor *body, struct heartbeat *out, struct ft_error *err);
size_t create_sync_progress(void *buf, uint64_t epoch, uint32_t seq, const struct sync_progress *p);
int consume_sync_progress(struct cursor *body, struct sync_progress *out, struct ft_error *err);

#endif
