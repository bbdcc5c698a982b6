/* SPDX-License-Identifier: MIT */
/* test_codec.c - records of checkpoint/codec.h: what is created is consumed again, and whatever is not exactly what
 * could have been created is refused with the record's name, and nothing is stored.
 * Each message is given to the codec in memory of exactly its length, so that AddressSanitizer sees a read beyond it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "codec.h"
#include "delta.h"

#define SPACE (UINT64_C(1) << 40) /* pages; more than 32 bits of them */
#define HEAD sizeof(struct ftw_record)
#define ROUNDS 100

static uint64_t seed = 1;

static uint64_t any(void)
{
	uint64_t z = (seed += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t between(uint64_t low, uint64_t high) /* both included */
{
	return low + any() % (high - low + 1);
}

static char *any_text(char *buf, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		buf[i] = (char)between(0x20, 0x7e);
	buf[len] = '\0';
	return buf;
}

/* -- one decoder for all -- */

union any_body {
	struct hello hello;
	struct hello_ack hello_ack;
	struct {
		struct region_entry entry[64];
		uint32_t count;
	} regions;
	struct runs runs;
	struct slab_runs slab_runs;
	struct deltas deltas;
	struct page_checks checks;
	struct base base;
	uint64_t base_epoch;
	struct room room;
	struct device_state state;
	struct side_data side;
	struct commit commit;
	struct reason reason;
	struct heartbeat heartbeat;
	struct sync_progress progress;
};

static int consume_body(uint32_t type, struct cursor *body, union any_body *out, struct ft_error *err)
{
	switch (type) {
	case FTW_HELLO:
		return consume_hello(body, &out->hello, err);
	case FTW_HELLO_ACK:
		return consume_hello_ack(body, &out->hello_ack, err);
	case FTW_REGIONS:
		return consume_regions(body, out->regions.entry, 64, &out->regions.count, err);
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
		return consume_runs(body, SPACE, &out->runs, err);
	case FTW_NOTIFY_SLAB:
		return consume_slab_runs(body, SPACE, &out->slab_runs, err);
	case FTW_NOTIFY_DELTA:
		return consume_deltas(body, SPACE, &out->deltas, err);
	case FTW_PAGE_CHECKS:
		return consume_page_checks(body, &out->checks, err);
	case FTW_BASE:
		return consume_base(body, &out->base, err);
	case FTW_BASE_ACK:
		return consume_base_ack(body, &out->base_epoch, err);
	case FTW_ROOM:
		return consume_room(body, &out->room, err);
	case FTW_DEVICE_STATE:
		return consume_device_state(body, &out->state, err);
	case FTW_SIDE_DATA:
		return consume_side_data(body, &out->side, err);
	case FTW_COMMIT:
		return consume_commit(body, &out->commit, err);
	case FTW_ACK:
	case FTW_APPLIED:
	case FTW_WORKING:
		return consume_epoch_mark(body, err);
	case FTW_REFUSE:
	case FTW_BYE:
	case FTW_ERROR:
		return consume_reason(body, &out->reason, err);
	case FTW_HEARTBEAT:
		return consume_heartbeat(body, &out->heartbeat, err);
	case FTW_SYNC_PROGRESS:
		return consume_sync_progress(body, &out->progress, err);
	}
	abort(); /* a type without a decoder here */
}

/* must_refuse - @msg is no record of @type: -EPROTO, its name in the sentence, nothing stored. */
static void must_refuse(const uint8_t *msg, size_t len, uint32_t type, const char *what, size_t at)
{
	uint8_t *exact = malloc(len ? len : 1);
	union any_body out, before;
	struct record_head head = { 0 };
	struct ft_error err = { 0 };
	struct cursor body;
	char buf[24];
	const char *name = record_name(type, buf);
	int rc;

	memcpy(exact, msg, len);
	memset(&out, 0xa5, sizeof(out));
	memset(&before, 0xa5, sizeof(before));
	rc = consume_head(exact, len, &head, &body, &err);
	if (rc == 0)
		rc = consume_body(type, &body, &out, &err);
	else
		cr_assert(head.type == 0 && head.len_bytes == 0, "%s: %s %zu: head stored", name, what, at);
	cr_assert_eq(rc, -EPROTO, "%s: %s %zu: taken", name, what, at);
	cr_assert_eq(err.code, -EPROTO);
	cr_assert(strncmp(err.msg, len < HEAD ? "record" : name, strlen(len < HEAD ? "record" : name)) == 0,
		  "%s: %s %zu: says \"%s\"", name, what, at, err.msg);
	cr_assert(memcmp(&out, &before, sizeof(out)) == 0, "%s: %s %zu: stored something", name, what, at);
	free(exact);
}

static void must_take(const uint8_t *msg, size_t len, uint32_t type, union any_body *out)
{
	struct record_head head;
	struct ft_error err = { 0 };
	struct cursor body;

	cr_assert_eq(consume_head(msg, len, &head, &body, &err), 0, "%s", err.msg);
	cr_assert_eq(head.type, type);
	cr_assert_eq(consume_body(type, &body, out, &err), 0, "%s", err.msg);
}

/* -- samples: each fills @buf with a record of random contents and checks that it comes back -- */

static uint8_t buf[FTW_RECORD_MAX + 1] __attribute__((aligned(8)));

static struct hello any_hello(void)
{
	static char identity[FTW_IDENTITY_MAX + 1], name[FTW_NAME_MAX + 1];
	struct hello h = { .version_min = 1,
			   .version_max = (uint16_t)between(1, 65535),
			   .placement = (uint16_t)between(1, 2),
			   .mode = (uint16_t)between(1, 2),
			   .capabilities_needed = any(),
			   .capabilities_offered = any(),
			   .generation = any(),
			   .epoch_committed = any(),
			   .nr_pages = 64 * between(1, FTW_PAGES_MAX / 64),
			   .state_max = any(),
			   .page_bytes = 4096,
			   .chunk_bytes = 4096u << between(0, 19),
			   .lanes = (uint32_t)between(1, 8),
			   .heartbeat_ms = (uint32_t)between(1, FTW_HEARTBEAT_MS_MAX),
			   .heartbeat_misses = (uint32_t)between(1, FTW_HEARTBEAT_MISSES_MAX),
			   .identity_bytes = (uint32_t)between(0, any() % 20 ? 40 : FTW_IDENTITY_MAX),
			   .name_bytes = (uint32_t)between(0, FTW_NAME_MAX) };

	for (int i = 0; i < 16; i++)
		h.session[i] = (uint8_t)any();
	h.identity = any_text(identity, h.identity_bytes);
	h.name = any_text(name, h.name_bytes);
	if (h.identity_bytes > 2)
		identity[1] = '\n';
	return h;
}

static size_t sample_hello(void)
{
	const struct hello h = any_hello();
	size_t len = create_hello(buf, 7, &h);
	union any_body out;

	must_take(buf, len, FTW_HELLO, &out);
	cr_assert(memcmp(out.hello.identity, h.identity, h.identity_bytes) == 0);
	cr_assert(memcmp(out.hello.name, h.name, h.name_bytes) == 0);
	cr_assert(memcmp(out.hello.session, h.session, 16) == 0);
	out.hello.identity = h.identity;
	out.hello.name = h.name;
	cr_assert(out.hello.version_min == h.version_min && out.hello.version_max == h.version_max &&
		  out.hello.placement == h.placement && out.hello.mode == h.mode &&
		  out.hello.capabilities_needed == h.capabilities_needed &&
		  out.hello.capabilities_offered == h.capabilities_offered && out.hello.generation == h.generation &&
		  out.hello.epoch_committed == h.epoch_committed && out.hello.nr_pages == h.nr_pages &&
		  out.hello.state_max == h.state_max);
	cr_assert(out.hello.page_bytes == h.page_bytes && out.hello.chunk_bytes == h.chunk_bytes &&
		  out.hello.lanes == h.lanes && out.hello.heartbeat_ms == h.heartbeat_ms &&
		  out.hello.heartbeat_misses == h.heartbeat_misses && out.hello.identity_bytes == h.identity_bytes &&
		  out.hello.name_bytes == h.name_bytes);
	return len;
}

static size_t sample_hello_ack(void)
{
	const struct hello_ack h = { .version = (uint16_t)between(1, 65535),
				     .placement = (uint16_t)between(1, 2),
				     .epoch_credits = (uint32_t)between(1, FTW_EPOCH_CREDITS_MAX),
				     .capabilities = any(),
				     .generation = any(),
				     .epoch_committed = any(),
				     .heartbeat_ms = (uint32_t)between(1, FTW_HEARTBEAT_MS_MAX),
				     .heartbeat_misses = (uint32_t)between(1, FTW_HEARTBEAT_MISSES_MAX) };
	size_t len = create_hello_ack(buf, 1, &h);
	union any_body out;

	must_take(buf, len, FTW_HELLO_ACK, &out);
	cr_assert(out.hello_ack.version == h.version && out.hello_ack.placement == h.placement &&
		  out.hello_ack.epoch_credits == h.epoch_credits && out.hello_ack.capabilities == h.capabilities &&
		  out.hello_ack.generation == h.generation && out.hello_ack.epoch_committed == h.epoch_committed &&
		  out.hello_ack.heartbeat_ms == h.heartbeat_ms && out.hello_ack.heartbeat_misses == h.heartbeat_misses);
	return len;
}

static size_t sample_regions(void)
{
	static char name[64][FTW_NAME_MAX + 1];
	struct region_entry e[64];
	const uint32_t count = (uint32_t)between(1, any() % 4 ? 3 : 64);
	uint64_t at = 0;
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < count; i++) {
		e[i] = (struct region_entry){ .first_page = at,
					      .len_bytes = 4096 * between(1, 1u << 20),
					      .name_bytes = (uint32_t)between(1, FTW_NAME_MAX) };
		e[i].name = any_text(name[i], e[i].name_bytes);
		at = ((at + e[i].len_bytes / 4096 + 63) & ~UINT64_C(63)) + 64 * between(0, 5);
	}
	len = create_regions(buf, 2, e, count);
	must_take(buf, len, FTW_REGIONS, &out);
	cr_assert_eq(out.regions.count, count);
	for (uint32_t i = 0; i < count; i++) {
		const struct region_entry *o = &out.regions.entry[i];

		cr_assert(o->first_page == e[i].first_page && o->len_bytes == e[i].len_bytes && o->flags == 0 &&
			  o->name_bytes == e[i].name_bytes && memcmp(o->name, e[i].name, e[i].name_bytes) == 0);
	}
	return len;
}

/* any_runs - up to FTW_RUNS_MAX of them into @run; their number, and that of their pages. */
static uint32_t any_runs(struct page_run *run, uint32_t *nr_pages)
{
	const uint32_t count = (uint32_t)between(1, any() % 4 ? 5 : FTW_RUNS_MAX);
	uint64_t at = any() % SPACE / 2, left = FTW_NOTIFY_PAGES_MAX - count;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t more = between(0, left / 2);

		run[i] = (struct page_run){ at, 1 + more };
		left -= more;
		at += run[i].nr + between(1, 1000);
	}
	*nr_pages = (uint32_t)(FTW_NOTIFY_PAGES_MAX - left);
	return count;
}

static void must_be_runs(const struct runs *r, const struct page_run *run, uint32_t count, uint32_t nr_pages,
			 uint64_t digest)
{
	cr_assert(r->count == count && r->digest == digest && r->nr_pages == nr_pages);
	for (uint32_t i = 0; i < count; i++)
		cr_assert(from_be64(r->run[i].first_page) == run[i].first &&
			  from_be32(r->run[i].nr_pages) == run[i].nr);
}

static void must_be_head(size_t len, uint64_t epoch, uint32_t seq)
{
	struct record_head head;
	struct cursor body;

	cr_assert_eq(consume_head(buf, len, &head, &body, NULL), 0);
	cr_assert(head.epoch == epoch && head.seq == seq);
}

static size_t sample_runs(uint32_t type)
{
	static struct page_run run[FTW_RUNS_MAX];
	const uint64_t digest = any(), epoch = between(1, UINT64_MAX);
	uint32_t nr_pages, count = any_runs(run, &nr_pages);
	size_t len = create_runs(buf, type, epoch, 99, run, count, digest);
	union any_body out;

	must_take(buf, len, type, &out);
	must_be_head(len, epoch, 99);
	must_be_runs(&out.runs, run, count, nr_pages, digest);
	return len;
}

static size_t sample_notify_write(void)
{
	return sample_runs(FTW_NOTIFY_WRITE);
}

static size_t sample_zero_pages(void)
{
	return sample_runs(FTW_ZERO_PAGES);
}

static size_t sample_notify_slab(void)
{
	static struct page_run run[FTW_RUNS_MAX];
	const uint64_t digest = any(), epoch = between(1, UINT64_MAX);
	uint32_t nr_pages, count = any_runs(run, &nr_pages);
	const uint64_t last = UINT64_MAX - nr_pages, position = any() % 10 ? any() % last : last;
	size_t len = create_slab_runs(buf, epoch, 99, position, run, count, digest);
	union any_body out;

	must_take(buf, len, FTW_NOTIFY_SLAB, &out);
	must_be_head(len, epoch, 99);
	must_be_runs(&out.slab_runs.runs, run, count, nr_pages, digest);
	cr_assert_eq(out.slab_runs.position, position);
	return len;
}

/* Some random pages with random lines and words. */
static size_t sample_notify_delta(void)
{
	static uint8_t octets[FTW_DELTA_BYTES_MAX];
	const uint64_t digest = any(), epoch = between(1, UINT64_MAX);
	uint32_t len = 0, count = 0, at = 0;
	uint64_t page = any() % 1000, told = 0, first = page;
	union any_body out;
	size_t n;

	do {
		uint64_t lines = any() & any() & any();
		const ft_be64 number = to_be64(page), bits = to_be64(lines);

		memcpy(octets + len, &number, 8);
		memcpy(octets + len + 8, &bits, 8);
		len += 16;
		for (; lines; lines &= lines - 1) {
			uint16_t words = (uint16_t)(1 + any() % 0xffff);
			const ft_be16 mask = to_be16(words);

			memcpy(octets + len, &mask, 2);
			len += 2 + 4 * (uint32_t)__builtin_popcount(words);
		}
		count++;
		page += between(1, 100);
	} while (any() % 3 && len < FTW_DELTA_BYTES_MAX - DELTA_MAX);
	n = create_deltas(buf, epoch, 99, octets, len, count, digest);
	must_take(buf, n, FTW_NOTIFY_DELTA, &out);
	must_be_head(n, epoch, 99);
	cr_assert(out.deltas.count == count && out.deltas.digest == digest && out.deltas.octets_bytes == len);
	while (deltas_next(&out.deltas, &at, &page)) {
		cr_assert(told ? page > first : page == first);
		first = page;
		told++;
	}
	cr_assert_eq(told, count);
	return n;
}

static size_t sample_base(void)
{
	const uint64_t connection = between(2, UINT64_MAX);
	const bool none = any() % 4 == 0;
	const struct base b = { .connection = connection,
				.base_connection = none ? 0 : between(1, connection - 1),
				.base_epoch = none ? 0 : between(1, UINT64_MAX) };
	size_t len = create_base(buf, 99, &b);
	union any_body out;

	must_take(buf, len, FTW_BASE, &out);
	must_be_head(len, 0, 99);
	cr_assert(out.base.connection == b.connection && out.base.base_connection == b.base_connection &&
		  out.base.base_epoch == b.base_epoch);
	return len;
}

static size_t sample_base_ack(void)
{
	const uint64_t epoch = any();
	size_t len = create_base_ack(buf, 99, epoch);
	union any_body out;

	must_take(buf, len, FTW_BASE_ACK, &out);
	must_be_head(len, 0, 99);
	cr_assert_eq(out.base_epoch, epoch);
	return len;
}

static size_t sample_page_checks(void)
{
	static uint64_t digest[FTW_NOTIFY_PAGES_MAX];
	const uint32_t count = any() % 10 ? 1 + (uint32_t)(any() % 50) : FTW_NOTIFY_PAGES_MAX;
	const uint64_t epoch = between(1, UINT64_MAX);
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < count; i++)
		digest[i] = any();
	len = create_page_checks(buf, epoch, 99, digest, count);
	must_take(buf, len, FTW_PAGE_CHECKS, &out);
	must_be_head(len, epoch, 99);
	cr_assert_eq(out.checks.count, count);
	for (uint32_t i = 0; i < count; i++)
		cr_assert_eq(page_check(&out.checks, i), (uint32_t)digest[i]);
	return len;
}

static size_t sample_room(void)
{
	const uint64_t slots = between(FTW_RING_SLOTS_MIN, FTW_PAGES_MAX), last = UINT64_MAX - slots;
	const struct room r = { .slots = slots, .freed = any() % 10 ? any() % last : last };
	size_t len = create_room(buf, 99, &r);
	union any_body out;

	must_take(buf, len, FTW_ROOM, &out);
	must_be_head(len, 0, 99);
	cr_assert(out.room.slots == r.slots && out.room.freed == r.freed);
	return len;
}

static size_t sample_device_state(void)
{
	static uint8_t data[FTW_STATE_PIECE_MAX];
	const uint32_t n = (uint32_t)between(1, any() % 10 ? 50 : FTW_STATE_PIECE_MAX);
	const uint64_t offset = any() >> 8, total = offset + n;
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < n; i++)
		data[i] = (uint8_t)any();
	len = create_device_state(buf, 3, 4, total, offset, data, n);
	must_take(buf, len, FTW_DEVICE_STATE, &out);
	cr_assert(out.state.total_bytes == total && out.state.offset == offset && out.state.data_bytes == n &&
		  memcmp(out.state.data, data, n) == 0);
	return len;
}

static size_t sample_side_data(void)
{
	static uint8_t data[FTW_SIDE_PIECE_MAX];
	const uint32_t n = (uint32_t)between(1, any() % 10 ? 50 : FTW_SIDE_PIECE_MAX);
	const uint64_t offset = any() % 10 ? any() >> 2 : (uint64_t)INT64_MAX - n;
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < n; i++)
		data[i] = (uint8_t)any();
	memcpy(side_data_octets(buf), data, n);
	len = create_side_data(buf, 3, 4, offset, n);
	must_take(buf, len, FTW_SIDE_DATA, &out);
	cr_assert(out.side.offset == offset && out.side.data_bytes == n && memcmp(out.side.data, data, n) == 0);
	return len;
}

static size_t sample_commit(void)
{
	struct commit c = { .nr_data_pages = any(),
			    .nr_zero_pages = any(),
			    .state_bytes = any(),
			    .side_bytes = any(),
			    .digest = any(),
			    .lanes = (uint32_t)between(1, 7) };
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < c.lanes; i++)
		c.seq[i] = (uint32_t)any();
	len = create_commit(buf, 3, 4, &c);
	memset(&out, 0, sizeof(out));
	must_take(buf, len, FTW_COMMIT, &out);
	cr_assert(out.commit.nr_data_pages == c.nr_data_pages && out.commit.nr_zero_pages == c.nr_zero_pages &&
		  out.commit.state_bytes == c.state_bytes && out.commit.side_bytes == c.side_bytes &&
		  out.commit.digest == c.digest && out.commit.lanes == c.lanes &&
		  memcmp(out.commit.seq, c.seq, sizeof(c.seq)) == 0);
	return len;
}

static size_t sample_ack(void)
{
	union any_body out;
	size_t len = create_epoch_mark(buf, FTW_ACK, between(1, UINT64_MAX), (uint32_t)any());

	must_take(buf, len, FTW_ACK, &out);
	return len;
}

static size_t sample_working(void)
{
	return create_epoch_mark(buf, FTW_WORKING, 3, 4);
}

static size_t sample_applied(void)
{
	union any_body out;
	size_t len = create_epoch_mark(buf, FTW_APPLIED, between(1, UINT64_MAX), (uint32_t)any());

	must_take(buf, len, FTW_APPLIED, &out);
	return len;
}

static size_t sample_reason(uint32_t type)
{
	char text[FTW_REASON_MAX + 1];
	const uint32_t n = (uint32_t)between(0, FTW_REASON_MAX), code = (uint32_t)any();
	union any_body out;
	size_t len;

	any_text(text, n);
	len = create_reason(buf, type, any(), 5, code, text);
	must_take(buf, len, type, &out);
	cr_assert(out.reason.code == code && out.reason.reason_bytes == n && memcmp(out.reason.text, text, n) == 0);
	return len;
}

static size_t sample_refuse(void)
{
	return sample_reason(FTW_REFUSE);
}

static size_t sample_bye(void)
{
	return sample_reason(FTW_BYE);
}

static size_t sample_error(void)
{
	return sample_reason(FTW_ERROR);
}

static size_t sample_heartbeat(void)
{
	const struct heartbeat h = { any(), any() };
	size_t len = create_heartbeat(buf, 3, &h);
	union any_body out;

	must_take(buf, len, FTW_HEARTBEAT, &out);
	cr_assert(out.heartbeat.time_ns == h.time_ns && out.heartbeat.echo_ns == h.echo_ns);
	return len;
}

static size_t sample_sync_progress(void)
{
	const struct sync_progress p = { (uint32_t)any(), any(), any() };
	size_t len = create_sync_progress(buf, 1, 3, &p);
	union any_body out;

	must_take(buf, len, FTW_SYNC_PROGRESS, &out);
	cr_assert(out.progress.round == p.round && out.progress.pages_done == p.pages_done &&
		  out.progress.pages_total == p.pages_total);
	return len;
}

static const struct sample {
	uint32_t type;
	size_t (*make)(void);
} samples[] = {
	{ FTW_HELLO, sample_hello },
	{ FTW_HELLO_ACK, sample_hello_ack },
	{ FTW_REFUSE, sample_refuse },
	{ FTW_REGIONS, sample_regions },
	{ FTW_BASE, sample_base },
	{ FTW_BASE_ACK, sample_base_ack },
	{ FTW_NOTIFY_WRITE, sample_notify_write },
	{ FTW_ZERO_PAGES, sample_zero_pages },
	{ FTW_DEVICE_STATE, sample_device_state },
	{ FTW_COMMIT, sample_commit },
	{ FTW_SIDE_DATA, sample_side_data },
	{ FTW_NOTIFY_SLAB, sample_notify_slab },
	{ FTW_NOTIFY_DELTA, sample_notify_delta },
	{ FTW_PAGE_CHECKS, sample_page_checks },
	{ FTW_ACK, sample_ack },
	{ FTW_APPLIED, sample_applied },
	{ FTW_WORKING, sample_working },
	{ FTW_ROOM, sample_room },
	{ FTW_HEARTBEAT, sample_heartbeat },
	{ FTW_BYE, sample_bye },
	{ FTW_ERROR, sample_error },
	{ FTW_SYNC_PROGRESS, sample_sync_progress },
};
#define NR_SAMPLES (sizeof(samples) / sizeof(samples[0]))

Test(codec, each_type_has_a_sample)
{
	size_t n;
	const struct record_type *t = record_types(&n);

	cr_assert_eq(n, NR_SAMPLES);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(t[i].type, samples[i].type);
}

Test(codec, round_trip)
{
	for (size_t i = 0; i < NR_SAMPLES; i++)
		for (int k = 0; k < ROUNDS; k++)
			cr_assert_eq(samples[i].make() % 8, 0);
}

Test(codec, works_at_any_address)
{
	for (size_t i = 0; i < NR_SAMPLES; i++) {
		size_t len = samples[i].make();
		union any_body out;

		memmove(buf + 1, buf, len);
		must_take(buf + 1, len, samples[i].type, &out);
	}
}

/* small - a record that is short enough to be cut at each octet, and has padding if its type can. */
static size_t small(const struct sample *s)
{
	size_t len;

	do
		len = s->make();
	while (len > 600);
	return len;
}

Test(codec, cut_at_each_octet)
{
	for (size_t i = 0; i < NR_SAMPLES; i++)
		for (int k = 0; k < 3; k++) {
			size_t len = small(&samples[i]);

			for (size_t cut = 0; cut < len; cut++)
				must_refuse(buf, cut, samples[i].type, "cut at", cut);
			buf[len] = 0;
			must_refuse(buf, len + 1, samples[i].type, "longer by", 1);
			memset(buf + len, 0, 8);
			must_refuse(buf, len + 8, samples[i].type, "longer by", 8);
		}
}

static void set_u32(size_t at, uint32_t v)
{
	ft_be32 w = to_be32(v);

	memcpy(buf + at, &w, sizeof(w));
}

static uint32_t get_u32(size_t at)
{
	ft_be32 w;

	memcpy(&w, buf + at, sizeof(w));
	return from_be32(w);
}

static void set_u64(size_t at, uint64_t v)
{
	ft_be64 w = to_be64(v);

	memcpy(buf + at, &w, sizeof(w));
}

/* The body is cut and the head says so: only the body's own counts can find it. */
Test(codec, body_cut_at_each_octet)
{
	static uint8_t copy[1024];

	for (size_t i = 0; i < NR_SAMPLES; i++) {
		size_t len = small(&samples[i]);
		const uint32_t body = get_u32(4);

		memcpy(copy, buf, len);
		for (uint32_t cut = 0; cut < body; cut++) {
			size_t cut_len = (HEAD + cut + 7) & ~(size_t)7;

			if ((samples[i].type == FTW_DEVICE_STATE && cut > 16) ||
			    (samples[i].type == FTW_SIDE_DATA && cut > 8))
				break; /* a shorter piece is a piece too */
			memcpy(buf, copy, HEAD + cut);
			memset(buf + HEAD + cut, 0, cut_len - HEAD - cut);
			set_u32(4, cut);
			must_refuse(buf, cut_len, samples[i].type, "body cut at", cut);
		}
	}
}

/* -- fields -- */

#define AT(s, f) (HEAD + offsetof(struct s, f))
#define SLAB_RUN (HEAD + sizeof(struct ftw_runs) + sizeof(struct ftw_slab)) /* the first run of a notify-slab */

/* Every length and count: one more and one less is refused. */
static const struct {
	uint32_t type;
	size_t at;
} lengths[] = {
	{ FTW_HELLO, AT(ftw_hello, identity_bytes) },
	{ FTW_HELLO, AT(ftw_hello, name_bytes) },
	{ FTW_REGIONS, AT(ftw_regions, count) },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, name_bytes) },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, count) },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, nr_pages) },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, nr_pages) },
	{ FTW_ZERO_PAGES, AT(ftw_runs, count) },
	{ FTW_ZERO_PAGES, AT(ftw_runs, nr_pages) },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, count) },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, nr_pages) },
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, nr_pages) },
	{ FTW_NOTIFY_DELTA, AT(ftw_deltas, count) },
	{ FTW_PAGE_CHECKS, AT(ftw_page_checks, count) },
	{ FTW_DEVICE_STATE, AT(ftw_device_state, total_bytes) + 4 },
	{ FTW_REFUSE, AT(ftw_reason, reason_bytes) },
	{ FTW_BYE, AT(ftw_reason, reason_bytes) },
	{ FTW_ERROR, AT(ftw_reason, reason_bytes) },
};

static size_t make(uint32_t type)
{
	for (size_t i = 0; i < NR_SAMPLES; i++)
		if (samples[i].type == type)
			return small(&samples[i]);
	abort(); /* no sample */
}

Test(codec, lengths_off_by_one)
{
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		for (int by = -1; by <= 1; by += 2) {
			size_t len = make(lengths[i].type);

			if (lengths[i].type == FTW_DEVICE_STATE && by > 0)
				continue; /* a piece in the middle */
			set_u32(lengths[i].at, get_u32(lengths[i].at) + (uint32_t)by);
			must_refuse(buf, len, lengths[i].type, "length field", lengths[i].at);
		}
	for (size_t i = 0; i < NR_SAMPLES;
	     i++) /* the length in the head: padding may hide one octet, but then the body does not fit */
		for (int by = -1; by <= 1; by += 2) {
			size_t len = small(&samples[i]);

			if (samples[i].type == FTW_DEVICE_STATE && get_u32(4) % 8 > 1)
				continue;
			if (samples[i].type == FTW_SIDE_DATA)
				continue; /* of any length: the commit says how many octets there are in all */
			set_u32(4, get_u32(4) + (uint32_t)by);
			must_refuse(buf, len, samples[i].type, "length of the body by", (size_t)by);
		}
}

/* Values that no sender may give. */
static const struct {
	uint32_t type;
	size_t at;
	int width;
	uint64_t value;
} wrong[] = {
	{ FTW_HELLO, 8, 8, 1 }, /* epoch where there is none */
	{ FTW_HELLO_ACK, 8, 8, 1 },
	{ FTW_REGIONS, 8, 8, 1 },
	{ FTW_BASE, 8, 8, 1 },
	{ FTW_BASE_ACK, 8, 8, 1 },
	{ FTW_BASE, AT(ftw_base, connection), 8, 0 },
	{ FTW_BASE, AT(ftw_base, base_connection), 8, UINT64_MAX },
	{ FTW_HEARTBEAT, 8, 8, 1 },
	{ FTW_ROOM, 8, 8, 1 },
	{ FTW_NOTIFY_WRITE, 8, 8, 0 }, /* no epoch where there must be one */
	{ FTW_ZERO_PAGES, 8, 8, 0 },
	{ FTW_NOTIFY_SLAB, 8, 8, 0 },
	{ FTW_DEVICE_STATE, 8, 8, 0 },
	{ FTW_NOTIFY_DELTA, 8, 8, 0 },
	{ FTW_PAGE_CHECKS, 8, 8, 0 },
	{ FTW_SIDE_DATA, 8, 8, 0 },
	{ FTW_COMMIT, 8, 8, 0 },
	{ FTW_ACK, 8, 8, 0 },
	{ FTW_APPLIED, 8, 8, 0 },
	{ FTW_HELLO, AT(ftw_hello, magic), 8, FTW_MAGIC + 1 },
	{ FTW_HELLO, AT(ftw_hello, version_min), 2, 0 },
	{ FTW_HELLO, AT(ftw_hello, version_max), 2, 0 },
	{ FTW_HELLO, AT(ftw_hello, placement), 2, 0 },
	{ FTW_HELLO, AT(ftw_hello, placement), 2, 3 },
	{ FTW_HELLO, AT(ftw_hello, mode), 2, 0 },
	{ FTW_HELLO, AT(ftw_hello, mode), 2, 3 },
	{ FTW_HELLO, AT(ftw_hello, nr_pages), 8, 0 },
	{ FTW_HELLO, AT(ftw_hello, nr_pages), 8, 65 },
	{ FTW_HELLO, AT(ftw_hello, nr_pages), 8, FTW_PAGES_MAX + 64 },
	{ FTW_HELLO, AT(ftw_hello, nr_pages), 8, UINT64_MAX },
	{ FTW_HELLO, AT(ftw_hello, page_bytes), 4, 0 },
	{ FTW_HELLO, AT(ftw_hello, page_bytes), 4, 8192 },
	{ FTW_HELLO, AT(ftw_hello, chunk_bytes), 4, 0 },
	{ FTW_HELLO, AT(ftw_hello, chunk_bytes), 4, 2048 },
	{ FTW_HELLO, AT(ftw_hello, chunk_bytes), 4, 12288 },
	{ FTW_HELLO, AT(ftw_hello, lanes), 4, 0 },
	{ FTW_HELLO, AT(ftw_hello, lanes), 4, FTW_LANES_MAX + 1 },
	{ FTW_HELLO, AT(ftw_hello, heartbeat_ms), 4, 0 },
	{ FTW_HELLO, AT(ftw_hello, heartbeat_ms), 4, FTW_HEARTBEAT_MS_MAX + 1 },
	{ FTW_HELLO, AT(ftw_hello, heartbeat_misses), 4, 0 },
	{ FTW_HELLO, AT(ftw_hello, heartbeat_misses), 4, FTW_HEARTBEAT_MISSES_MAX + 1 },
	{ FTW_HELLO, AT(ftw_hello, identity_bytes), 4, FTW_IDENTITY_MAX + 1 },
	{ FTW_HELLO, AT(ftw_hello, identity_bytes), 4, UINT32_MAX },
	{ FTW_HELLO, AT(ftw_hello, name_bytes), 4, FTW_NAME_MAX + 1 },
	{ FTW_HELLO, AT(ftw_hello, name_bytes), 4, UINT32_MAX },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, version), 2, 0 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, placement), 2, 0 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, placement), 2, 3 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, epoch_credits), 4, 0 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, epoch_credits), 4, FTW_EPOCH_CREDITS_MAX + 1 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, epoch_credits), 4, UINT32_MAX },
	{ FTW_ROOM, AT(ftw_room, slots), 8, 0 },
	{ FTW_ROOM, AT(ftw_room, slots), 8, FTW_RING_SLOTS_MIN - 1 },
	{ FTW_ROOM, AT(ftw_room, slots), 8, FTW_PAGES_MAX + 1 },
	{ FTW_ROOM, AT(ftw_room, slots), 8, UINT64_MAX },
	{ FTW_ROOM, AT(ftw_room, freed), 8, UINT64_MAX },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, heartbeat_ms), 4, 0 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, heartbeat_ms), 4, FTW_HEARTBEAT_MS_MAX + 1 },
	{ FTW_HELLO_ACK, AT(ftw_hello_ack, heartbeat_misses), 4, 0 },
	{ FTW_REGIONS, AT(ftw_regions, count), 4, 0 },
	{ FTW_REGIONS, AT(ftw_regions, count), 4, 65 }, /* more than the caller has room for */
	{ FTW_REGIONS, AT(ftw_regions, count), 4, UINT32_MAX },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, first_page), 8, 1 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, first_page), 8, FTW_PAGES_MAX },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, first_page), 8, UINT64_MAX - 63 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, len_bytes), 8, 0 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, len_bytes), 8, 4097 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, len_bytes), 8, UINT64_MAX - 4095 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, flags), 4, 1 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, name_bytes), 4, 0 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, name_bytes), 4, FTW_NAME_MAX + 1 },
	{ FTW_REGIONS, HEAD + 8 + offsetof(struct ftw_region, name_bytes), 4, UINT32_MAX },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, count), 4, 0 },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, count), 4, FTW_RUNS_MAX + 1 },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, count), 4, 0x10000001 }, /* times 16 is 16 in 32 bits */
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, nr_pages), 4, 0 },
	{ FTW_NOTIFY_WRITE, AT(ftw_runs, nr_pages), 4, FTW_NOTIFY_PAGES_MAX + 1 },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, first_page), 8, SPACE },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, first_page), 8, UINT64_MAX },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, nr_pages), 4, 0 },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, nr_pages), 4, UINT32_MAX },
	{ FTW_ZERO_PAGES, HEAD + 16 + offsetof(struct ftw_run, first_page), 8, SPACE },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, count), 4, 0 },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, count), 4, FTW_RUNS_MAX + 1 },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, count), 4, 0x10000001 }, /* times 16 is 16 in 32 bits */
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, nr_pages), 4, 0 },
	{ FTW_NOTIFY_SLAB, AT(ftw_runs, nr_pages), 4, FTW_NOTIFY_PAGES_MAX + 1 },
	{ FTW_NOTIFY_SLAB, HEAD + sizeof(struct ftw_runs), 8, UINT64_MAX }, /* position */
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, first_page), 8, SPACE },
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, first_page), 8, UINT64_MAX },
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, nr_pages), 4, 0 },
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, nr_pages), 4, UINT32_MAX },
	{ FTW_NOTIFY_DELTA, AT(ftw_deltas, count), 4, 0 },
	{ FTW_NOTIFY_DELTA, AT(ftw_deltas, count), 4, FTW_NOTIFY_PAGES_MAX + 1 },
	{ FTW_NOTIFY_DELTA, AT(ftw_deltas, count), 4, UINT32_MAX },
	{ FTW_NOTIFY_DELTA, HEAD + sizeof(struct ftw_deltas), 8, SPACE },
	{ FTW_NOTIFY_DELTA, HEAD + sizeof(struct ftw_deltas), 8, UINT64_MAX },
	{ FTW_PAGE_CHECKS, AT(ftw_page_checks, count), 4, 0 },
	{ FTW_PAGE_CHECKS, AT(ftw_page_checks, count), 4, FTW_NOTIFY_PAGES_MAX + 1 },
	{ FTW_PAGE_CHECKS, AT(ftw_page_checks, count), 4, 0x40000001 }, /* times 4 is 4 in 32 bits */
	{ FTW_DEVICE_STATE, AT(ftw_device_state, total_bytes), 8, 0 },
	{ FTW_DEVICE_STATE, AT(ftw_device_state, offset), 8, UINT64_MAX },
	{ FTW_SIDE_DATA, AT(ftw_side_data, offset), 8, INT64_MAX },
	{ FTW_SIDE_DATA, AT(ftw_side_data, offset), 8, UINT64_MAX },
	{ FTW_COMMIT, AT(ftw_commit, lanes), 4, 0 },
	{ FTW_COMMIT, AT(ftw_commit, lanes), 4, FTW_LANES_MAX + 1 },
	{ FTW_COMMIT, AT(ftw_commit, seq[7]), 4, 1 }, /* samples have seven lanes at most */
	{ FTW_REFUSE, AT(ftw_reason, reason_bytes), 4, FTW_REASON_MAX + 1 },
	{ FTW_ERROR, AT(ftw_reason, reason_bytes), 4, UINT32_MAX },
	/* reserved */
	{ FTW_HELLO, AT(ftw_hello, reserved), 4, 1 },
	{ FTW_REGIONS, AT(ftw_regions, reserved), 4, 1 },
	{ FTW_NOTIFY_WRITE, HEAD + 16 + offsetof(struct ftw_run, reserved), 4, 1 },
	{ FTW_NOTIFY_SLAB, SLAB_RUN + offsetof(struct ftw_run, reserved), 4, 1 },
	{ FTW_NOTIFY_DELTA, AT(ftw_deltas, reserved), 4, 1 },
	{ FTW_PAGE_CHECKS, AT(ftw_page_checks, reserved), 4, 1 },
	{ FTW_COMMIT, AT(ftw_commit, reserved), 4, 1 },
	{ FTW_SYNC_PROGRESS, AT(ftw_sync_progress, reserved), 4, 1 },
};

Test(codec, values_out_of_range)
{
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		size_t len = make(wrong[i].type);
		const ft_be16 v = to_be16((uint16_t)wrong[i].value);

		if (wrong[i].width == 2)
			memcpy(buf + wrong[i].at, &v, sizeof(v));
		else if (wrong[i].width == 4)
			set_u32(wrong[i].at, (uint32_t)wrong[i].value);
		else
			set_u64(wrong[i].at, wrong[i].value);
		must_refuse(buf, len, wrong[i].type, "row", i);
	}
}

Test(codec, head_reserved_and_body_length)
{
	for (size_t i = 0; i < NR_SAMPLES; i++) {
		size_t len = small(&samples[i]);

		set_u32(offsetof(struct ftw_record, reserved), 1);
		must_refuse(buf, len, samples[i].type, "reserved", 0);
		set_u32(offsetof(struct ftw_record, reserved), 0);
		set_u32(4, UINT32_MAX); /* + 24 + 7 is small in 32 bits */
		must_refuse(buf, len, samples[i].type, "length", UINT32_MAX);
	}
}

Test(codec, padding)
{
	size_t seen = 0;

	for (size_t i = 0; i < NR_SAMPLES; i++)
		for (int k = 0; k < 8; k++) {
			size_t len = small(&samples[i]), used = HEAD + get_u32(4);

			for (size_t at = used; at < len; at++, seen++) {
				buf[at] = 1;
				must_refuse(buf, len, samples[i].type, "padding at", at);
				buf[at] = 0;
			}
		}
	cr_assert_gt(seen, 50);
}

Test(codec, padding_of_region_names)
{
	const struct region_entry e = { .len_bytes = 4096, .name = "ram", .name_bytes = 3 };

	for (size_t at = 0; at < 5; at++) {
		size_t len = create_regions(buf, 1, &e, 1);

		buf[HEAD + 8 + 24 + 3 + at] = ' ';
		must_refuse(buf, len, FTW_REGIONS, "padding", at);
	}
}

Test(codec, text_that_is_not_printable)
{
	static const uint8_t octets[] = { 0, 1, '\n', 0x1b, 0x7f, 0x80, 0xff };
	const struct region_entry e = { .len_bytes = 4096, .name = "pc.ram", .name_bytes = 6 };

	for (size_t i = 0; i < sizeof(octets); i++) {
		size_t len = create_regions(buf, 1, &e, 1);

		buf[HEAD + 8 + 24 + 2] = octets[i];
		must_refuse(buf, len, FTW_REGIONS, "octet", octets[i]);
		len = create_reason(buf, FTW_ERROR, 0, 1, 1, "because");
		buf[HEAD + 8] = octets[i];
		must_refuse(buf, len, FTW_ERROR, "octet", octets[i]);
		do
			len = make(FTW_HELLO);
		while (get_u32(AT(ftw_hello, identity_bytes)) < 1 || get_u32(AT(ftw_hello, name_bytes)) < 1);
		buf[HEAD + get_u32(4) - 1] = octets[i];
		must_refuse(buf, len, FTW_HELLO, "octet of the name", octets[i]);
		buf[HEAD + get_u32(4) - 1] = 'x';
		if (octets[i] == '\n')
			continue;
		buf[HEAD + sizeof(struct ftw_hello)] = octets[i];
		must_refuse(buf, len, FTW_HELLO, "octet of the identity", octets[i]);
	}
}

/* -- runs and regions in relation to each other -- */

static size_t two_runs(uint64_t first, uint64_t nr, uint64_t second, uint64_t second_nr)
{
	const struct page_run r[] = { { 0, nr }, { nr + 1, second_nr } };
	size_t len = create_runs(buf, FTW_NOTIFY_WRITE, 1, 1, r, 2, 0);

	set_u64(HEAD + 16, first);
	set_u64(HEAD + 32, second);
	return len;
}

Test(codec, runs_ascend_with_gaps)
{
	union any_body out;

	must_take(buf, two_runs(10, 5, 16, 3), FTW_NOTIFY_WRITE, &out);
	must_refuse(buf, two_runs(10, 5, 15, 3), FTW_NOTIFY_WRITE, "touching", 15);
	must_refuse(buf, two_runs(10, 5, 14, 3), FTW_NOTIFY_WRITE, "overlapping", 14);
	must_refuse(buf, two_runs(10, 5, 10, 3), FTW_NOTIFY_WRITE, "the same", 10);
	must_refuse(buf, two_runs(10, 5, 2, 3), FTW_NOTIFY_WRITE, "descending", 2);
	must_take(buf, two_runs(10, 5, SPACE - 3, 3), FTW_NOTIFY_WRITE, &out);
	must_refuse(buf, two_runs(10, 5, SPACE - 2, 3), FTW_NOTIFY_WRITE, "over the end", 0);
	must_refuse(buf, two_runs(10, 5, UINT64_MAX - 1, 3), FTW_NOTIFY_WRITE, "around the end", 0);
}

/* The last position that is taken, and the first that is not; likewise of room. */
Test(codec, positions_do_not_go_round)
{
	const struct page_run run = { 10, 5 };
	const uint64_t slots[] = { FTW_RING_SLOTS_MIN, FTW_PAGES_MAX };
	size_t len = create_slab_runs(buf, 1, 1, UINT64_MAX - 5, &run, 1, 0);
	union any_body out;

	must_take(buf, len, FTW_NOTIFY_SLAB, &out);
	cr_assert_eq(out.slab_runs.position, UINT64_MAX - 5);
	set_u64(HEAD + sizeof(struct ftw_runs), UINT64_MAX - 4);
	must_refuse(buf, len, FTW_NOTIFY_SLAB, "around the end", 0);
	for (size_t i = 0; i < 2; i++) {
		const struct room r = { .slots = slots[i], .freed = UINT64_MAX - slots[i] };

		len = create_room(buf, 1, &r);
		must_take(buf, len, FTW_ROOM, &out);
		cr_assert(out.room.slots == r.slots && out.room.freed == r.freed);
		set_u64(AT(ftw_room, freed), r.freed + 1);
		must_refuse(buf, len, FTW_ROOM, "around the end", i);
	}
}

/* The runs of a notify-slab are those of a notify-write, and keep to its rules. */
Test(codec, runs_of_slab_ascend_with_gaps)
{
	const struct page_run run[] = { { 10, 5 }, { 16, 3 } };
	const size_t second = SLAB_RUN + sizeof(struct ftw_run);
	size_t len = create_slab_runs(buf, 1, 1, 77, run, 2, 0);
	union any_body out;

	must_take(buf, len, FTW_NOTIFY_SLAB, &out);
	for (uint64_t first = 10; first < 16; first++) {
		set_u64(second, first);
		must_refuse(buf, len, FTW_NOTIFY_SLAB, "second run at", first);
	}
	set_u64(second, SPACE - 3);
	must_take(buf, len, FTW_NOTIFY_SLAB, &out);
	set_u64(second, SPACE - 2);
	must_refuse(buf, len, FTW_NOTIFY_SLAB, "over the end", 0);
}

Test(codec, as_many_runs_as_may_be)
{
	static struct page_run run[FTW_RUNS_MAX];
	union any_body out;

	for (uint32_t i = 0; i < FTW_RUNS_MAX; i++)
		run[i] = (struct page_run){ 2 * i, 1 };
	must_take(buf, create_runs(buf, FTW_NOTIFY_WRITE, 1, 1, run, FTW_RUNS_MAX, 0), FTW_NOTIFY_WRITE, &out);
	must_be_runs(&out.runs, run, FTW_RUNS_MAX, FTW_NOTIFY_PAGES_MAX, 0);
	must_take(buf, create_runs(buf, FTW_ZERO_PAGES, 1, 1, run, FTW_RUNS_MAX, 0), FTW_ZERO_PAGES, &out);
	must_be_runs(&out.runs, run, FTW_RUNS_MAX, FTW_NOTIFY_PAGES_MAX, 0);
	must_take(buf, create_slab_runs(buf, 1, 1, 7, run, FTW_RUNS_MAX, 0), FTW_NOTIFY_SLAB, &out);
	must_be_runs(&out.slab_runs.runs, run, FTW_RUNS_MAX, FTW_NOTIFY_PAGES_MAX, 0);
}

Test(codec, regions_ascend)
{
	const struct region_entry e[] = { { .len_bytes = 65 * 4096, .name = "a", .name_bytes = 1 },
					  { .first_page = 128, .len_bytes = 4096, .name = "b", .name_bytes = 1 } };
	size_t len = create_regions(buf, 1, e, 2), second = HEAD + 8 + 24 + 8;
	union any_body out;

	must_take(buf, len, FTW_REGIONS, &out);
	set_u64(second, 64);
	must_refuse(buf, len, FTW_REGIONS, "overlap", 64);
	set_u64(second, 0);
	must_refuse(buf, len, FTW_REGIONS, "overlap", 0);
}

Test(codec, regions_that_do_not_fit_a_record)
{
	static struct region_entry e[FTW_REGIONS_MAX];
	static const char name[] = "a-name-of-forty-octets-0123456789abcdef-";

	for (uint32_t i = 0; i < FTW_REGIONS_MAX; i++)
		e[i] = (struct region_entry){ .first_page = 64 * i, .len_bytes = 4096, .name = name, .name_bytes = 40 };
	cr_assert_eq(create_regions(buf, 1, e, FTW_REGIONS_MAX), 0);
	cr_assert_gt(create_regions(buf, 1, e, 1000), 0);
}

/* -- records whose lengths all agree, so that only the limit itself can refuse them -- */

static size_t head_for(uint32_t type, uint64_t epoch, size_t body)
{
	memset(buf, 0, HEAD + body + 8);
	set_u32(0, type);
	set_u32(4, (uint32_t)body);
	set_u64(8, epoch);
	return (HEAD + body + 7) & ~(size_t)7;
}

Test(codec, limits_alone)
{
	size_t len = make(FTW_HELLO), more;
	uint8_t start[sizeof(struct ftw_hello)];

	memcpy(start, buf + HEAD, sizeof(start));
	more = head_for(FTW_HELLO, 0, sizeof(start) + FTW_IDENTITY_MAX + 1);
	memcpy(buf + HEAD, start, sizeof(start));
	memset(buf + HEAD + sizeof(start), 'x', FTW_IDENTITY_MAX + 1);
	set_u32(AT(ftw_hello, identity_bytes), FTW_IDENTITY_MAX + 1);
	set_u32(AT(ftw_hello, name_bytes), 0);
	must_refuse(buf, more, FTW_HELLO, "identity", FTW_IDENTITY_MAX + 1);
	set_u32(AT(ftw_hello, identity_bytes), FTW_IDENTITY_MAX - FTW_NAME_MAX);
	set_u32(AT(ftw_hello, name_bytes), FTW_NAME_MAX + 1);
	must_refuse(buf, more, FTW_HELLO, "name", FTW_NAME_MAX + 1);

	len = head_for(FTW_REGIONS, 0, 8 + 24 + 24 + 8);
	set_u32(AT(ftw_regions, count), 2);
	set_u64(HEAD + 8 + 8, 4096);
	set_u64(HEAD + 8 + 24, 64);
	set_u64(HEAD + 8 + 24 + 8, 4096);
	set_u32(HEAD + 8 + 24 + 20, 1);
	buf[HEAD + 8 + 24 + 24] = 'x';
	must_refuse(buf, len, FTW_REGIONS, "name", 0);
	len = head_for(FTW_REGIONS, 0, 8 + 24 + FTW_NAME_MAX + 1);
	set_u32(AT(ftw_regions, count), 1);
	set_u64(HEAD + 8 + 8, 4096);
	set_u32(HEAD + 8 + 20, FTW_NAME_MAX + 1);
	memset(buf + HEAD + 32, 'x', FTW_NAME_MAX + 1);
	must_refuse(buf, len, FTW_REGIONS, "name", FTW_NAME_MAX + 1);
}

Test(codec, more_regions_than_room)
{
	struct region_entry e[65];
	union any_body out;
	size_t len;

	for (uint32_t i = 0; i < 65; i++)
		e[i] = (struct region_entry){ .first_page = 64 * i, .len_bytes = 4096, .name = "r", .name_bytes = 1 };
	len = create_regions(buf, 1, e, 64);
	must_take(buf, len, FTW_REGIONS, &out);
	len = create_regions(buf, 1, e, 65);
	must_refuse(buf, len, FTW_REGIONS, "regions", 65);
}

Test(codec, empty_run_and_no_lanes)
{
	const struct page_run r[] = { { 0, 1 }, { 10, 1 } };
	const struct commit c = { .lanes = 1 };
	size_t len = create_runs(buf, FTW_ZERO_PAGES, 1, 1, r, 2, 0);

	set_u32(HEAD + 16 + 16 + 8, 0);
	set_u32(AT(ftw_runs, nr_pages), 1);
	must_refuse(buf, len, FTW_ZERO_PAGES, "empty run", 1);
	len = create_runs(buf, FTW_ZERO_PAGES, 1, 1, r, 2, 0);
	set_u32(HEAD + 16 + 8, FTW_NOTIFY_PAGES_MAX);
	set_u64(HEAD + 32, 5000);
	set_u32(AT(ftw_runs, nr_pages), FTW_NOTIFY_PAGES_MAX + 1);
	must_refuse(buf, len, FTW_ZERO_PAGES, "pages", FTW_NOTIFY_PAGES_MAX + 1);
	len = create_commit(buf, 1, 1, &c);
	set_u32(AT(ftw_commit, lanes), 0);
	must_refuse(buf, len, FTW_COMMIT, "lanes", 0);
}

/* -- other -- */

Test(codec, unknown_types_have_a_head)
{
	struct record_head head;
	struct cursor body;
	size_t len = make(FTW_HEARTBEAT);
	char name[24];

	set_u32(0, 0x80000077);
	cr_assert_eq(consume_head(buf, len, &head, &body, NULL), 0);
	cr_assert(head.type == 0x80000077 && head.len_bytes == 16);
	cr_assert_str_eq(record_name(head.type, name), "record 0x80000077");
	cr_assert_str_eq(record_name(FTW_COMMIT, name), "commit");
	cr_assert_str_eq(record_code_name(FTW_CODE_ACTIVE), "active");
	cr_assert_str_eq(record_code_name(FTW_CODE_UNUSABLE), "unusable");
	cr_assert_str_eq(record_code_name(13), "unknown");
	cr_assert_str_eq(record_code_name(UINT32_MAX), "unknown");
}

Test(codec, reasons_are_cut_and_made_printable)
{
	char text[FTW_REASON_MAX + 100];
	union any_body out;

	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	text[0] = '\n';
	text[1] = (char)0xc3;
	must_take(buf, create_reason(buf, FTW_BYE, 0, 1, FTW_CODE_STOPPED, text), FTW_BYE, &out);
	cr_assert_eq(out.reason.reason_bytes, FTW_REASON_MAX);
	cr_assert(memcmp(out.reason.text, "??xx", 4) == 0);
	must_take(buf, create_reason(buf, FTW_BYE, 0, 1, FTW_CODE_STOPPED, NULL), FTW_BYE, &out);
	cr_assert_eq(out.reason.reason_bytes, 0);
}

Test(codec, cursor_fails_and_stays_failed)
{
	static const uint8_t octets[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	struct cursor c = { .at = octets, .end = octets + sizeof(octets) };

	cr_assert_eq(rd_u16(&c), 0x0102);
	cr_assert_eq(rd_u32(&c), 0x03040506);
	cr_assert(!rd_done(&c));
	cr_assert_eq(rd_u64(&c), 0);
	cr_assert(c.failed);
	cr_assert_null(rd_bytes(&c, 1));
	cr_assert_null(rd_bytes(&c, UINT64_MAX));
	cr_assert(!rd_done(&c));
	c = (struct cursor){ .at = octets, .end = octets + sizeof(octets) };
	cr_assert_eq(rd_bytes(&c, 9), octets);
	cr_assert(rd_done(&c));
}
