/* SPDX-License-Identifier: MIT */
/* fuzz_rdma.c - what a peer may send to the rdma transport, over the made-up fabric in immediate mode, all in one thread.
 * Input: one octet says what the rest is:
 *   0  private data of two requests to a listener: one octet how many for each
 *   1  private data of an acceptance, then of a refusal
 *   else  settings of a connection (SETTING_*), then steps: one octet, the lower half what is done (enum step), the upper half the lane and
 *      more, and behind it what that step needs.
 * Must hold: no crash, no wait, no rule of verbs broken by our side, nothing written outside of the windows, nothing
 * left over. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fabric_fake.h"
#include "rdma_hello.h"
#include "rdma_raw.h"

#define LANES 2u
#define MIB (1u << 20)
#define GUARD 4096u
#define WINDOW (5 * MIB + 512u)
#define BUDGET (4 * (uint64_t)MIB)
#define STEPS_MAX 250u
#define FAILURES_MAX 8u

#define SETTING_WHOLE 4u
#define SETTING_ODP 8u
#define SETTING_BUDGET 16u
#define SETTING_PEERS_BUDGET 32u
#define SETTING_SMALL 64u /* queue */

enum step {
	OCTETS, /* a message: how many octets, and these */
	BODY,   /* a message with a right head: kind, count, how many octets of body, and these */
	ENTRIES, /* the same of entries that may make sense: kind, count, and for each window, generation and status, chunk */
	HEAD, /* a message of which one field of the head is changed: kind, octet, value */
	OUR_RECV,
	OUR_WRITE, /* window, offset, length */
	OUR_SEND,
	OUR_PREPARE, /* window, offset, length */
	OUR_WINDOW,  /* number */
	OUR_LOOK,    /* at completions; upper half: wait, settle */
	SERVE,       /* the peer takes what came, and answers as it should */
	TAKE,        /* the peer takes what came */
	REMOTE,      /* the peer's device writes: chunk, where in it */
	OUR_MEMORY,  /* to write from, or to mirror */
	FAIL,        /* a call of the device */
	LEAVE,       /* one lane */
};

struct input {
	const uint8_t *p;
	size_t left;
};

static struct tp_conn *c;
static struct rdma_raw raw;
static uint8_t memory[GUARD + WINDOW + GUARD], source[MIB];
static unsigned nr_failures;
static uint32_t keys[8]; /* of our window's chunks, as the peer was told */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
	if (!holds)
		abort();
}

static uint8_t take(struct input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->p++;
}

static size_t take_octets(struct input *in, const uint8_t **at)
{
	size_t n = take(in);

	n = n < in->left ? n : in->left;
	*at = in->p;
	in->p += n;
	in->left -= n;
	return n;
}

/* ---- the peer ---- */

static void body(struct input *in, uint32_t lane)
{
	uint32_t kind = take(in), count = take(in);
	const uint8_t *at;
	size_t n = take_octets(in, &at);

	rdma_raw_tell(&raw, lane, kind, count, at, n);
}

/* In the layout that goes with @kind. */
static void entries(struct input *in, uint32_t lane)
{
	uint32_t kind = take(in) % 12, count = take(in) % 9;
	struct rdma_key_entry e[8];
	uint8_t octets[sizeof(e)] = { 0 };
	size_t size = kind == RDMA_WINDOW || kind == RDMA_REGISTERED ? sizeof(e[0]) : sizeof(e[0].chunk);

	for (uint32_t i = 0; i < count && i < 8; i++) {
		uint8_t window = take(in), both = take(in), generation = both & 15, number = take(in);
		struct rdma_window_entry w = { .window = to_be32(window),
					       .address = to_be64((uintptr_t)raw.scratch),
					       .len = to_be64((uint64_t)number << 18),
					       .generation = to_be32(generation) };

		e[i] = (struct rdma_key_entry){ .chunk = { to_be32(window), to_be32(generation), to_be64(number) },
						.rkey = to_be32(raw.mr->rkey),
						.status = to_be32(both >> 4) };
		memcpy(octets + i * size, kind == RDMA_WINDOW ? (void *)&w : (void *)&e[i], size);
	}
	rdma_raw_tell(&raw, lane, kind, count, octets, (count < 8 ? count : 8) * size);
}

static void head(struct input *in, uint32_t lane)
{
	struct rdma_head h = rdma_raw_head(&raw, lane, take(in) % 12, 0, 0);
	size_t at = take(in) % sizeof(h);

	((uint8_t *)&h)[at] = take(in);
	rdma_raw_post(&raw, lane, &h, sizeof(h));
}

static void grant(void)
{
	const struct rdma_chunk_entry *asked = (const void *)raw.body;
	uint32_t n = from_be16(raw.head.count);
	struct rdma_key_entry e[RDMA_BATCH_MAX];

	for (uint32_t i = 0; i < n; i++)
		e[i] = (struct rdma_key_entry){ .chunk = asked[i], .rkey = to_be32(raw.mr->rkey) };
	rdma_raw_tell(&raw, 0, RDMA_REGISTERED, n, e, n * sizeof(e[0]));
}

static void keep_keys(void)
{
	const struct rdma_key_entry *e = (const void *)raw.body;

	for (uint32_t i = 0; i < from_be16(raw.head.count); i++)
		if (from_be64(e[i].chunk.chunk) < 8)
			keys[from_be64(e[i].chunk.chunk)] = from_be32(e[i].rkey);
}

static void serve(bool well)
{
	while (rdma_raw_next(&raw)) {
		if (from_be16(raw.head.kind) == RDMA_REGISTERED)
			keep_keys();
		if (well && from_be16(raw.head.kind) == RDMA_REGISTER)
			grant();
		if (well && from_be16(raw.head.kind) == RDMA_UNREGISTER)
			rdma_raw_tell(&raw, 0, RDMA_UNREGISTERED, from_be16(raw.head.count), raw.body, raw.len);
	}
	for (uint32_t lane = 0; lane < LANES && well; lane++)
		rdma_raw_tell(&raw, lane, RDMA_CREDIT, 0, NULL, 0);
}

static void remote(struct input *in, uint32_t lane)
{
	uint32_t chunk = take(in) % 8;
	uint64_t at = (uintptr_t)memory + GUARD + (uint64_t)chunk * MIB;

	rdma_raw_write(&raw, lane, at + ((uint64_t)take(in) << 12) - 8, keys[chunk], 16);
}

/* ---- our side ---- */

static void our_recv(void)
{
	static uint8_t message[TP_MESSAGE_MAX];
	uint32_t lane;
	size_t len;
	int r;

	for (unsigned i = 0; i < 64; i++) {
		r = tp_recv(c, message, sizeof(message), &lane, &len, now_ns(), NULL);
		check(r != 0 || (lane < LANES && len <= sizeof(message)));
		if (r)
			break;
	}
}

static void our_write(struct input *in, uint32_t lane)
{
	uint32_t window = take(in) % TP_WINDOWS_MAX;
	uint64_t offset = (uint64_t)take(in) << 15;
	struct iovec v = { source, (take(in) + 1u) << 9 };

	tp_write(c, lane, window, offset, &v, 1, NULL, now_ns(), NULL);
}

static void our_look(uint32_t lane, unsigned how)
{
	uint64_t ticket = tp_completed(c, lane) + 1;

	if (how % 4 == 1)
		tp_wait_completed(c, lane, ticket, now_ns(), NULL);
	else if (how % 4 == 2)
		tp_settle(c, lane, now_ns(), NULL);
	else if (how % 4 == 3)
		tp_poll_fd(c);
	check(tp_credits(c, lane) <= TP_CREDITS_MAX);
}

static void our_memory(unsigned how)
{
	if (how % 2)
		tp_mirror(c, how / 2 % TP_WINDOWS_MAX, source, sizeof(source), NULL);
	else
		tp_memory(c, source, sizeof(source) / 2, NULL);
}

/* Two windows on the same memory, opened again and again. */
static void our_window(uint32_t id)
{
	if (tp_window_open(c, id % 4, memory + GUARD, id % 2 ? WINDOW / 2 : WINDOW, NULL) == -EBUSY)
		tp_window_close(c, id % 4);
}

static void fail_call(unsigned how)
{
	static const enum fabric_call calls[] = { FABRIC_REG_MR, FABRIC_POST_SEND, FABRIC_REQ_NOTIFY_CQ };

	if (nr_failures++ < FAILURES_MAX)
		fabric_fail(calls[how % 3], 1 + how / 3, ENOMEM, 1);
}

static void leave(uint32_t lane)
{
	if (raw.lane[lane].id->qp)
		raw.f->disconnect(raw.lane[lane].id);
}

/* ---- a connection ---- */

static void do_step(struct input *in)
{
	uint8_t op = take(in);
	uint32_t lane = op >> 4 & 1;
	const uint8_t *at;
	size_t n;

	switch ((enum step)(op & 15)) {
	case OCTETS:
		n = take_octets(in, &at);
		rdma_raw_post(&raw, lane, at, n);
		break;
	case BODY:
		body(in, lane);
		break;
	case ENTRIES:
		entries(in, lane);
		break;
	case HEAD:
		head(in, lane);
		break;
	case OUR_RECV:
		our_recv();
		break;
	case OUR_WRITE:
		our_write(in, lane);
		break;
	case OUR_SEND:
		tp_send(c, lane, &(struct iovec){ source, op >> 5 }, 1, now_ns(), NULL);
		break;
	case OUR_PREPARE:
		n = take(in);
		tp_prepare(c, op >> 4, (uint64_t)n << 17, (uint64_t)take(in) << 15);
		break;
	case OUR_WINDOW:
		our_window(take(in));
		break;
	case OUR_LOOK:
		our_look(lane, op >> 5);
		break;
	case SERVE:
		serve(true);
		break;
	case TAKE:
		serve(false);
		break;
	case REMOTE:
		remote(in, lane);
		break;
	case OUR_MEMORY:
		our_memory(op >> 4);
		break;
	case FAIL:
		fail_call(op >> 4);
		break;
	case LEAVE:
		leave(lane);
		break;
	}
}

static void check_side(void)
{
	static const uint8_t zero[GUARD];
	struct tp_info info;

	tp_info(c, &info);
	check(info.deregistrations <= info.registrations);
	check(memcmp(memory, zero, GUARD) == 0 && memcmp(memory + GUARD + WINDOW, zero, GUARD) == 0);
}

static uint32_t capabilities_of(unsigned settings)
{
	if (settings & SETTING_ODP)
		return RDMA_CAPS_KNOWN;
	return settings & SETTING_WHOLE ? 0 : RDMA_CAP_CHUNKS;
}

static void meet(struct tp_listener *l, unsigned settings)
{
	struct rdma_hello h;

	rdma_raw_find(&raw, tp_listener_address(l), LANES);
	for (uint32_t i = 0; i < LANES; i++) {
		rdma_raw_hello(&h, i, LANES);
		h.capabilities = to_be32(capabilities_of(settings));
		h.credits = to_be16(2);
		h.pin_budget = to_be64(settings & SETTING_PEERS_BUDGET ? BUDGET : 0);
		rdma_raw_ask(&raw, i, &h, sizeof(h));
	}
	for (unsigned i = 0; i < 4 && !c; i++) {
		tp_accept(l, &c, now_ns(), -1, NULL);
		rdma_raw_events(&raw);
	}
	check(c != NULL && rdma_raw_all(&raw, RAW_UP));
}

static struct tp_listener *open_listener(unsigned settings)
{
	struct tp_params p = { .lanes = LANES,
			       .credits = 2,
			       .sq_depth = settings & SETTING_SMALL ? 4 : 0,
			       .pin_budget = settings & SETTING_BUDGET ? BUDGET : 0,
			       .registration = settings & SETTING_ODP ? TP_REGISTER_ODP : TP_REGISTER_CHUNKS };
	struct tp_listener *l;

	check(tp_listen(&l, "rdma:10.9.0.1:0", &p, NULL) == 0);
	return l;
}

static void connection(struct input *in, unsigned settings)
{
	struct tp_listener *l = open_listener(settings);

	memset(keys, 0, sizeof(keys));
	nr_failures = 0;
	meet(l, settings);
	for (unsigned i = 0; i < STEPS_MAX && in->left; i++) {
		do_step(in);
		check_side();
	}
	tp_close(c);
	c = NULL;
	rdma_raw_close(&raw);
	tp_listener_close(l);
}

/* ---- private data ---- */

static void requests(struct input *in)
{
	struct tp_listener *l = open_listener(0);
	const uint8_t *at;
	size_t n;

	rdma_raw_find(&raw, tp_listener_address(l), LANES);
	for (uint32_t i = 0; i < LANES; i++) {
		n = take_octets(in, &at);
		rdma_raw_ask(&raw, i, at, n < 56 ? n : 56);
	}
	for (unsigned i = 0; i < 3 && !c; i++) {
		tp_accept(l, &c, now_ns(), -1, NULL);
		rdma_raw_events(&raw);
	}
	tp_close(c);
	c = NULL;
	rdma_raw_close(&raw);
	tp_accept(l, &c, now_ns(), -1, NULL);
	check(!c);
	tp_listener_close(l);
}

static void answers(struct input *in)
{
	struct tp_params p = { .lanes = LANES, .credits = 8, .chunk_bytes = MIB, .registration = TP_REGISTER_ODP };
	struct rdma_limits asked = rdma_limits_of(&p), l = asked;
	static const uint8_t token[16] = "raw";
	struct ft_error err;
	const uint8_t *at;
	size_t n = take_octets(in, &at);

	if (rdma_acceptance_take(&l, &asked, token, 0, true, at, n, &err) == 0) {
		check(l.lanes == LANES && l.credits_peers > 0 && l.credits_peers <= TP_CREDITS_MAX);
		check(l.chunk_shift == 20 && (l.capabilities & ~RDMA_CAPS_KNOWN) == 0);
	}
	n = take_octets(in, &at);
	if (rdma_refusal_read(at, n, &err) != RDMA_OK)
		for (const char *t = err.msg; *t; t++)
			check(*t >= ' ' && *t <= '~');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct fabric_config cfg;
	unsigned first = take(&in);
	const char *text;

	fabric_defaults(&cfg);
	cfg.rnr_is_fine = true; /* the peer's fault */
	cfg.odp = true;
	rdma_linger_ms = 0;
	fabric_start(&cfg);
	if (first == 0)
		requests(&in);
	else if (first == 1)
		answers(&in);
	else
		connection(&in, first);
	check(fabric_violations(&text) == 0);
	check(fabric_all_gone());
	fabric_stop();
	return 0;
}
