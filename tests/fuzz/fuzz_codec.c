/* SPDX-License-Identifier: MIT */
/* fuzz_codec.c - any octets as a message: through consume_head() and the consume function of its type.
 * What is taken is used as the engine would use it, so that a length or pointer that lies shows. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "codec.h"
#include "delta.h"

#define SPACE (UINT64_C(1) << 36)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch(const void *p, uint64_t n)
{
	const uint8_t *octets = p;

	for (uint64_t i = 0; i < n; i++)
		sink ^= octets[i];
}

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void use_hello(struct cursor *body, struct ft_error *err)
{
	struct hello h;

	if (consume_hello(body, &h, err))
		return;
	check(h.identity_bytes <= FTW_IDENTITY_MAX && h.name_bytes <= FTW_NAME_MAX && h.lanes &&
	      h.lanes <= FTW_LANES_MAX);
	touch(h.identity, h.identity_bytes);
	touch(h.name, h.name_bytes);
}

static void use_regions(struct cursor *body, struct ft_error *err)
{
	static struct region_entry e[FTW_REGIONS_MAX];
	uint64_t end = 0;
	uint32_t count;

	if (consume_regions(body, e, FTW_REGIONS_MAX, &count, err))
		return;
	check(count && count <= FTW_REGIONS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		check(e[i].first_page >= end && e[i].len_bytes && e[i].name_bytes <= FTW_NAME_MAX);
		end = e[i].first_page + e[i].len_bytes / FTW_PAGE_BYTES;
		check(end > e[i].first_page);
		touch(e[i].name, e[i].name_bytes);
	}
}

static void check_runs(const struct runs *r)
{
	uint64_t sum = 0, end = 0;

	check(r->count && r->count <= FTW_RUNS_MAX);
	for (uint32_t i = 0; i < r->count; i++) {
		const uint64_t first = from_be64(r->run[i].first_page), nr = from_be32(r->run[i].nr_pages);

		check(nr && (!i || first > end) && first + nr <= SPACE);
		end = first + nr;
		sum += nr;
	}
	check(sum == r->nr_pages && sum <= FTW_NOTIFY_PAGES_MAX);
}

static void use_runs(struct cursor *body, struct ft_error *err)
{
	struct runs r;

	if (consume_runs(body, SPACE, &r, err) == 0)
		check_runs(&r);
}

static void use_slab_runs(struct cursor *body, struct ft_error *err)
{
	struct slab_runs r;

	if (consume_slab_runs(body, SPACE, &r, err))
		return;
	check_runs(&r.runs);
	check(r.position + r.runs.nr_pages > r.position);
}

static void use_deltas(struct cursor *body, struct ft_error *err)
{
	static uint8_t memory[FTW_PAGE_BYTES];
	const uint8_t *delta;
	uint32_t at = 0, n = 0;
	uint64_t page, behind = 0;
	struct deltas d;

	if (consume_deltas(body, SPACE, &d, err))
		return;
	for (; (delta = deltas_next(&d, &at, &page)); n++, behind = page + 1) {
		check(page >= behind && page < SPACE);
		delta_unpack(memory, delta);
	}
	check(n == d.count && at == d.octets_bytes);
}

static void use_room(struct cursor *body, struct ft_error *err)
{
	struct room r;

	if (consume_room(body, &r, err))
		return;
	check(r.slots >= FTW_RING_SLOTS_MIN && r.slots <= FTW_PAGES_MAX && r.freed + r.slots > r.freed);
}

static void use_hello_ack(struct cursor *body, struct ft_error *err)
{
	struct hello_ack h;

	if (consume_hello_ack(body, &h, err) == 0)
		check(h.epoch_credits && h.epoch_credits <= FTW_EPOCH_CREDITS_MAX);
}

static void use_device_state(struct cursor *body, struct ft_error *err)
{
	struct device_state d;

	if (consume_device_state(body, &d, err))
		return;
	check(d.offset <= d.total_bytes && d.data_bytes <= d.total_bytes - d.offset);
	touch(d.data, d.data_bytes);
}

static void use_side_data(struct cursor *body, struct ft_error *err)
{
	struct side_data d;

	if (consume_side_data(body, &d, err))
		return;
	check(d.data_bytes && d.data_bytes <= FTW_SIDE_PIECE_MAX && d.offset + d.data_bytes <= INT64_MAX);
	touch(d.data, d.data_bytes);
}

static void use_reason(struct cursor *body, struct ft_error *err)
{
	struct reason r;

	if (consume_reason(body, &r, err))
		return;
	check(r.reason_bytes <= FTW_REASON_MAX && text_printable(r.text, r.reason_bytes));
	check(record_code_name(r.code) != NULL);
}

static void use_page_checks(struct cursor *body, struct ft_error *err)
{
	struct page_checks c;
	uint32_t sum = 0;

	if (consume_page_checks(body, &c, err))
		return;
	check(c.count && c.count <= FTW_NOTIFY_PAGES_MAX);
	for (uint32_t i = 0; i < c.count; i++)
		sum += page_check(&c, i); /* all of them lie in the record: the sanitizer looks */
	check(sum || c.count);
}

static void use_rest(uint32_t type, struct cursor *body, struct ft_error *err)
{
	struct commit commit;
	struct heartbeat beat;
	struct sync_progress progress;
	struct base base;
	uint64_t epoch;

	if (type == FTW_BASE && consume_base(body, &base, err) == 0)
		check(base.base_connection < base.connection && !base.base_connection == !base.base_epoch);
	else if (type == FTW_BASE_ACK)
		consume_base_ack(body, &epoch, err);
	else if (type == FTW_HELLO_ACK)
		use_hello_ack(body, err);
	else if (type == FTW_ROOM)
		use_room(body, err);
	else if (type == FTW_COMMIT && consume_commit(body, &commit, err) == 0)
		check(commit.lanes && commit.lanes <= FTW_LANES_MAX);
	else if (type == FTW_ACK || type == FTW_APPLIED || type == FTW_WORKING)
		consume_epoch_mark(body, err);
	else if (type == FTW_HEARTBEAT)
		consume_heartbeat(body, &beat, err);
	else if (type == FTW_SYNC_PROGRESS)
		consume_sync_progress(body, &progress, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ft_error err = { 0 };
	struct record_head head;
	struct cursor body;
	char name[24];

	if (consume_head(data, size, &head, &body, &err)) {
		check(err.msg[0]);
		return 0;
	}
	check(strlen(record_name(head.type, name)) > 0);
	switch (head.type) {
	case FTW_HELLO:
		use_hello(&body, &err);
		break;
	case FTW_REGIONS:
		use_regions(&body, &err);
		break;
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
		use_runs(&body, &err);
		break;
	case FTW_NOTIFY_SLAB:
		use_slab_runs(&body, &err);
		break;
	case FTW_NOTIFY_DELTA:
		use_deltas(&body, &err);
		break;
	case FTW_PAGE_CHECKS:
		use_page_checks(&body, &err);
		break;
	case FTW_SIDE_DATA:
		use_side_data(&body, &err);
		break;
	case FTW_DEVICE_STATE:
		use_device_state(&body, &err);
		break;
	case FTW_REFUSE:
	case FTW_BYE:
	case FTW_ERROR:
		use_reason(&body, &err);
		break;
	default:
		use_rest(head.type, &body, &err);
	}
	return 0;
}
