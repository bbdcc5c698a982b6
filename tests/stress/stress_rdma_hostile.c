/* SPDX-License-Identifier: MIT */
/* stress_rdma_hostile.c - peers of the rdma transport that say what they must not: every kind of message and every field of its head and body
 * wrong, cut and stretched at each octet, on each lane, at each stage of a connection; every field of a request, of an acceptance and of a
 * refusal; keys used for what they are not for.  What is wrong ends the connection with a sentence on both sides, and nothing else: nothing
 * outside of what was opened is written, nothing is left over, no rule of verbs is broken, nobody waits for ever, and the listener serves the
 * next peer.  At the end the same with threads, over a fabric that takes its steps in random order.
 *
 * stress_rdma_hostile [--seed S] [--rounds N] [--part hellos|messages|writes|answers|random] */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "clock.h"
#include "fabric_fake.h"
#include "rdma_hello.h"
#include "rdma_raw.h"
#include "rng.h"

#define LANES 2u
#define MIB (1u << 20)
#define GUARD 4096u
#define WINDOW (3 * MIB + 4096u) /* the last chunk is a short one */
#define WAIT_MS 60000u
#define NOBODY UINT32_MAX

enum verdict { LIVES, BREACH, ENDS, ANYTHING };

struct world {
	struct tp_listener *listener;
	struct fabric_live before; /* with the listener alone */
	struct tp_conn *c;
	struct rdma_raw raw;
	uint8_t *memory;  /* guard, window, guard */
	uint32_t keys[4]; /* of chunks of our window, as the raw peer got them */
	unsigned cases, served;
};

static struct world w;
static uint8_t buf[TP_MESSAGE_MAX];
static char what[200]; /* for messages */

/* ---- both ends ---- */

static void open_world(void)
{
	struct tp_params p = { .lanes = LANES };
	struct ft_error err;

	CHECK_OK(tp_listen(&w.listener, "rdma:10.9.0.1:0", &p, &err), err);
	fabric_live(&w.before);
	w.memory = mmap(NULL, GUARD + WINDOW + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(w.memory != MAP_FAILED, "no memory");
	memset(w.memory, 0x5a, GUARD);
	memset(w.memory + GUARD + WINDOW, 0x5a, GUARD);
}

static bool is_all(const uint8_t *p, size_t n, uint8_t value)
{
	return p[0] == value && memcmp(p, p + 1, n - 1) == 0;
}

static void check_guards(void)
{
	CHECK(is_all(w.memory, GUARD, 0x5a) && is_all(w.memory + GUARD + WINDOW, GUARD, 0x5a),
	      "%s: something was written beside the window", what);
}

static void check_rules(void)
{
	const char *text;

	CHECK(fabric_violations(&text) == 0, "%s: %s", what, text);
}

static void check_nothing_left(void)
{
	struct fabric_live now;

	fabric_live(&now);
	CHECK(memcmp(&now, &w.before, sizeof(now)) == 0, "%s: something is left: %s", what, fabric_live_text());
}

static void close_world(void)
{
	tp_listener_close(w.listener);
	CHECK(fabric_all_gone(), "left at the end: %s", fabric_live_text());
	munmap(w.memory, GUARD + WINDOW + GUARD);
}

/* The peer has asked; does our side accept? */
static bool meet(struct tp_conn **c, struct rdma_raw *raw)
{
	struct ft_error err;

	*c = NULL;
	for (unsigned i = 0; i < 4 && !*c; i++) {
		tp_accept(w.listener, c, now_ns(), -1, &err);
		rdma_raw_events(raw);
	}
	return *c;
}

/* With a budget that four chunks fill. */
static void ask_well(struct rdma_raw *raw)
{
	struct rdma_hello h;

	rdma_raw_find(raw, tp_listener_address(w.listener), LANES);
	for (uint32_t i = 0; i < LANES; i++) {
		rdma_raw_hello(&h, i, LANES);
		h.pin_budget = to_be64(4 * MIB);
		rdma_raw_ask(raw, i, &h, sizeof(h));
	}
}

static void open_connection(void)
{
	ask_well(&w.raw);
	CHECK(meet(&w.c, &w.raw) && rdma_raw_all(&w.raw, RAW_UP), "%s: a good peer is not served", what);
}

static void close_connection(void)
{
	tp_close(w.c);
	w.c = NULL;
	rdma_raw_close(&w.raw);
	check_guards();
	check_rules();
	check_nothing_left();
}

static int receive(struct ft_error *err)
{
	uint32_t lane;
	size_t len;

	return tp_recv(w.c, buf, sizeof(buf), &lane, &len, now_ns(), err);
}

/* Deal with what has come: how that ended, -ETIMEDOUT if it did not. */
static int receive_all(struct ft_error *err)
{
	int r;

	do
		r = receive(err);
	while (r == 0);
	return r;
}

static void goes_on(void)
{
	struct ft_error err;
	int r = receive_all(&err);

	CHECK(r == -ETIMEDOUT, "%s: %d %s", what, r, err.msg);
}

static void say(uint32_t lane)
{
	struct iovec one = { "x", 1 };
	struct ft_error err;

	CHECK_OK(tp_send(w.c, lane, &one, 1, now_ns(), &err), err);
}

static void raw_says(uint32_t lane, enum rdma_kind kind, uint32_t count, const void *body, size_t len)
{
	CHECK(rdma_raw_tell(&w.raw, lane, kind, count, body, len), "%s: cannot send", what);
}

static bool raw_gets(enum rdma_kind kind)
{
	while (rdma_raw_next(&w.raw))
		if (from_be16(w.raw.head.kind) == kind)
			return true;
	return false;
}

static void good_peer(void)
{
	struct ft_error err;
	int r;

	open_connection();
	raw_says(1, RDMA_MESSAGE, 0, "hello", 5);
	r = receive(&err);
	CHECK(r == 0 && memcmp(buf, "hello", 5) == 0, "%s: the next peer is not heard: %s", what, err.msg);
	say(1);
	CHECK(raw_gets(RDMA_MESSAGE), "%s: the next peer hears nothing", what);
	close_connection();
	w.served++;
}

static void count_case(void)
{
	w.cases++;
	if (w.cases % 64 == 0)
		good_peer();
}

/* ---- stages of a connection ---- */

enum stage { FRESH, SPOKEN, WAITING, KEYED, ASKED, WRITTEN, TOLD, CLOSED, STAGES };
static const char *const stage_names[] = { "at the beginning",          "behind messages",
					   "while a message waits",     "with keys",
					   "while keys are asked for",  "behind writes",
					   "while chunks are unpinned", "with one lane closed" };

static struct rdma_chunk_entry entry(uint32_t window, uint64_t chunk)
{
	return (struct rdma_chunk_entry){ .window = to_be32(window),
					  .generation = to_be32(1),
					  .chunk = to_be64(chunk) };
}

static struct rdma_window_entry window_entry(uint32_t window, uint64_t len)
{
	return (struct rdma_window_entry){ .window = to_be32(window),
					   .address = to_be64((uintptr_t)w.raw.scratch),
					   .len = to_be64(len),
					   .generation = to_be32(1) };
}

static void speak(void)
{
	for (uint32_t lane = 0; lane < LANES; lane++) {
		raw_says(lane, RDMA_MESSAGE, 0, "x", 1);
		say(lane);
	}
	goes_on();
	while (rdma_raw_next(&w.raw))
		;
	for (uint32_t lane = 0; lane < LANES; lane++)
		raw_says(lane, RDMA_CREDIT, 0, NULL, 0);
	goes_on();
}

static void get_keys(void)
{
	const struct rdma_chunk_entry e[2] = { entry(0, 0), entry(0, 3) };
	const struct rdma_key_entry *got = (const void *)w.raw.body;
	struct ft_error err;

	CHECK_OK(tp_window_open(w.c, 0, w.memory + GUARD, WINDOW, &err), err);
	raw_says(0, RDMA_REGISTER, 2, e, sizeof(e));
	goes_on();
	CHECK(raw_gets(RDMA_REGISTERED) && from_be16(w.raw.head.count) == 2, "no keys");
	w.keys[0] = from_be32(got[0].rkey);
	w.keys[3] = from_be32(got[1].rkey);
	CHECK(w.keys[0] && w.keys[3], "keys are refused");
}

static void put(uint64_t chunk)
{
	static uint8_t source[64];
	struct iovec v = { source, sizeof(source) };
	struct ft_error err;

	CHECK_OK(tp_write(w.c, 1, 1, chunk * MIB, &v, 1, NULL, now_ns(), &err), err);
}

static void be_asked(void)
{
	const struct rdma_window_entry e = window_entry(1, 8 * MIB);

	raw_says(0, RDMA_WINDOW, 1, &e, sizeof(e));
	goes_on();
	tp_prepare(w.c, 1, MIB, MIB);
	put(0);
	goes_on();
	CHECK(raw_gets(RDMA_REGISTER) && from_be16(w.raw.head.count) == 2, "no keys are asked for");
}

/* The answer to the request that has just come. */
static uint32_t keys_for(const struct rdma_raw *raw, struct rdma_key_entry *e)
{
	const struct rdma_chunk_entry *asked = (const void *)raw->body;
	uint32_t n = from_be16(raw->head.count);

	for (uint32_t i = 0; i < n; i++)
		e[i] = (struct rdma_key_entry){ .chunk = asked[i], .rkey = to_be32(raw->mr->rkey) };
	return n;
}

static void grant(struct rdma_raw *raw)
{
	struct rdma_key_entry e[RDMA_BATCH_MAX];
	uint32_t n = keys_for(raw, e);

	rdma_raw_tell(raw, 0, RDMA_REGISTERED, n, e, n * sizeof(e[0]));
}

static void be_answered(void)
{
	grant(&w.raw);
	goes_on();
	tp_completed(w.c, 1);
	CHECK(tp_completed(w.c, 1) >= 1, "the write is not completed");
}

static void be_told(void)
{
	bool told = false;

	for (uint64_t chunk = 2; chunk < 6 && !told; chunk++) {
		put(chunk);
		for (unsigned i = 0; i < 4 && !told; i++) {
			goes_on();
			while (!told && rdma_raw_next(&w.raw)) {
				told = from_be16(w.raw.head.kind) == RDMA_UNREGISTER;
				if (from_be16(w.raw.head.kind) == RDMA_REGISTER)
					grant(&w.raw);
			}
		}
	}
	CHECK(told, "nothing was unpinned");
}

static void go_to(enum stage stage)
{
	if (stage >= SPOKEN)
		speak();
	if (stage == WAITING)
		raw_says(1, RDMA_MESSAGE, 0, "x", 1);
	if (stage >= KEYED)
		get_keys();
	if (stage >= ASKED && stage <= TOLD)
		be_asked();
	if (stage >= WRITTEN && stage <= TOLD)
		be_answered();
	if (stage == TOLD)
		be_told();
	if (stage == CLOSED) {
		raw_says(1, RDMA_CLOSE, 0, NULL, 0);
		goes_on();
	}
}

/* ---- messages that are well made ---- */

struct message {
	uint32_t lane;
	enum rdma_kind kind;
	uint32_t count, len;
	uint8_t body[RDMA_BATCH_MAX * sizeof(struct rdma_key_entry)];
	enum verdict verdict;
};

struct list {
	unsigned n;
	struct message message[32];
};

static void add(struct list *l, uint32_t lane, enum rdma_kind kind, uint32_t count, const void *body, size_t len,
		enum verdict verdict)
{
	struct message *m = &l->message[l->n++];

	*m = (struct message){ .lane = lane, .kind = kind, .count = count, .len = (uint32_t)len, .verdict = verdict };
	if (len)
		memcpy(m->body, body, len);
}

/* Of each kind one that may be sent now. */
static void right_ones(enum stage stage, struct list *l)
{
	const struct rdma_window_entry window = window_entry(2, MIB);
	const struct rdma_chunk_entry fresh = entry(0, 2), held = entry(0, 3);
	struct rdma_key_entry keys[RDMA_BATCH_MAX];
	uint32_t n = from_be16(w.raw.head.count);

	l->n = 0;
	for (uint32_t lane = 0; lane < LANES - (stage == CLOSED); lane++) {
		add(l, lane, RDMA_MESSAGE, 0, "0123456789", 10, LIVES);
		add(l, lane, RDMA_CREDIT, 0, NULL, 0, LIVES);
		add(l, lane, RDMA_CREDIT, 1, NULL, 0, LIVES);
		add(l, lane, RDMA_CLOSE, 0, NULL, 0, stage == CLOSED ? ENDS : LIVES);
		add(l, lane, RDMA_BREACH, 0, "so it is", 8, ENDS);
	}
	add(l, 0, RDMA_WINDOW, 1, &window, sizeof(window), LIVES);
	if (stage >= KEYED) {
		add(l, 0, RDMA_REGISTER, 1, &fresh, sizeof(fresh), LIVES);
		add(l, 0, RDMA_UNREGISTER, 1, &held, sizeof(held), LIVES);
	}
	if (stage == ASKED)
		add(l, 0, RDMA_REGISTERED, keys_for(&w.raw, keys), keys, n * sizeof(keys[0]), LIVES);
	if (stage == TOLD)
		add(l, 0, RDMA_UNREGISTERED, n, w.raw.body, n * sizeof(fresh), LIVES);
}

/* Of kinds that have no place there. */
static void misplaced_ones(enum stage stage, struct list *l)
{
	const struct rdma_chunk_entry e = entry(0, 1);
	const struct rdma_window_entry window = window_entry(2, MIB);
	const struct rdma_key_entry key = { .chunk = entry(1, 7) };

	l->n = 0;
	if (stage < KEYED)
		add(l, 0, RDMA_REGISTER, 1, &e, sizeof(e), BREACH);
	add(l, 0, RDMA_UNREGISTER, 1, &e, sizeof(e), BREACH);
	add(l, 0, RDMA_REGISTERED, 1, &key, sizeof(key), BREACH);
	add(l, 0, RDMA_UNREGISTERED, 1, &e, sizeof(e), BREACH);
	add(l, 1, RDMA_WINDOW, 1, &window, sizeof(window), BREACH);
	add(l, 1, RDMA_REGISTER, 1, &e, sizeof(e), BREACH);
	add(l, 1, RDMA_REGISTERED, 1, &key, sizeof(key), BREACH);
	add(l, 1, RDMA_UNREGISTER, 1, &e, sizeof(e), BREACH);
	add(l, 1, RDMA_UNREGISTERED, 1, &e, sizeof(e), BREACH);
	if (stage == CLOSED) {
		add(l, 1, RDMA_MESSAGE, 0, "x", 1, BREACH);
		add(l, 1, RDMA_CREDIT, 0, NULL, 0, BREACH);
		add(l, 1, RDMA_CLOSE, 0, NULL, 0, BREACH);
	}
}

/* ---- and what is done to them ---- */

/* One thing that is changed before it is sent. */
struct change {
	size_t at;      /* octet of head and body */
	unsigned width; /* 0: nothing is changed */
	uint64_t value;
	size_t cut;    /* so many octets are sent; 0: all, SIZE_MAX: none */
	unsigned more; /* octets behind the end */
	enum verdict verdict;
};

#define CHANGES_MAX 400
static struct change changes[CHANGES_MAX];
static unsigned nr_changes;

static void change(size_t at, unsigned width, uint64_t value, enum verdict verdict)
{
	CHECK(nr_changes < CHANGES_MAX, "too many changes");
	changes[nr_changes++] = (struct change){ .at = at, .width = width, .value = value, .verdict = verdict };
}

static void put_be(uint8_t *at, unsigned width, uint64_t value)
{
	for (unsigned i = 0; i < width; i++)
		at[width - 1 - i] = (uint8_t)(i < 8 ? value >> 8 * i : 0);
}

static bool is_control(enum rdma_kind kind)
{
	return kind >= RDMA_WINDOW && kind <= RDMA_UNREGISTERED;
}

#define HEAD(field) offsetof(struct rdma_head, field), sizeof(((struct rdma_head *)0)->field)

static void change_head(const struct message *m)
{
	const struct rdma_head h = rdma_raw_head(&w.raw, m->lane, m->kind, m->count, m->len);
	uint64_t number = from_be64(h.number), taken = from_be64(h.taken), control = from_be64(h.control_taken);

	for (uint64_t kind = 10; kind < 0x10000; kind = kind * 2 - 3)
		change(HEAD(kind), kind, BREACH);
	change(HEAD(kind), 0, BREACH);
	change(HEAD(kind), 0xffff, BREACH);
	change(HEAD(kind), 0x8000u | m->kind, BREACH);
	change(HEAD(len), m->len + 1, BREACH);
	change(HEAD(len), m->len - 1, BREACH);
	change(HEAD(len), UINT32_MAX, BREACH);
	change(HEAD(len), 0x80000000u | m->len, BREACH);
	change(HEAD(taken), taken + 1, BREACH);
	change(HEAD(taken), UINT64_MAX, BREACH);
	if (taken)
		change(HEAD(taken), taken - 1, BREACH);
	change(HEAD(control_taken), control + 1, BREACH);
	change(HEAD(control_taken), UINT64_MAX, BREACH);
	if (m->kind == RDMA_MESSAGE || m->kind == RDMA_CLOSE || is_control(m->kind)) {
		change(HEAD(number), number + 1, BREACH);
		change(HEAD(number), number - 1, BREACH);
		change(HEAD(number), UINT64_MAX - 1, BREACH);
		change(HEAD(number), number | UINT64_C(1) << 32, BREACH);
	}
	if (is_control(m->kind)) {
		change(HEAD(count), 0, BREACH);
		change(HEAD(count), m->count + 1, BREACH);
		change(HEAD(count), 0xffff, BREACH);
	}
}

static void change_length(const struct message *m, bool each_octet)
{
	size_t head = sizeof(struct rdma_head), all = head + m->len;

	for (size_t cut = 0; cut < all; cut++) {
		if (!each_octet && cut != 0 && cut != head - 1 && cut != head && cut != all - 1)
			continue;
		CHECK(nr_changes < CHANGES_MAX, "too many changes");
		changes[nr_changes++] = (struct change){ .cut = cut ? cut : SIZE_MAX, .verdict = BREACH };
	}
	changes[nr_changes++] = (struct change){ .more = 1, .verdict = BREACH };
	changes[nr_changes++] = (struct change){ .more = 32, .verdict = BREACH };
}

#define BODY(type, field) sizeof(struct rdma_head) + offsetof(type, field), sizeof(((type *)0)->field)

static void change_chunk(uint64_t last, enum verdict older)
{
	change(BODY(struct rdma_chunk_entry, window), TP_WINDOWS_MAX - 1, BREACH);
	change(BODY(struct rdma_chunk_entry, window), TP_WINDOWS_MAX, BREACH);
	change(BODY(struct rdma_chunk_entry, window), UINT32_MAX, BREACH);
	change(BODY(struct rdma_chunk_entry, generation), 2, BREACH);
	change(BODY(struct rdma_chunk_entry, generation), 0x80000000u, BREACH);
	change(BODY(struct rdma_chunk_entry, generation), 0, older);
	change(BODY(struct rdma_chunk_entry, generation), UINT32_MAX, older);
	change(BODY(struct rdma_chunk_entry, chunk), last + 1, BREACH);
	change(BODY(struct rdma_chunk_entry, chunk), UINT64_MAX, BREACH);
	change(BODY(struct rdma_chunk_entry, chunk), UINT64_C(1) << 44, BREACH);
}

static void change_window(void)
{
	change(BODY(struct rdma_window_entry, window), TP_WINDOWS_MAX, BREACH);
	change(BODY(struct rdma_window_entry, window), UINT32_MAX, BREACH);
	change(BODY(struct rdma_window_entry, window), 0, LIVES);
	change(BODY(struct rdma_window_entry, len), 0, BREACH);
	change(BODY(struct rdma_window_entry, len), UINT64_MAX, BREACH);
	change(BODY(struct rdma_window_entry, len), (UINT64_C(1) << 40) + 1, BREACH);
	change(BODY(struct rdma_window_entry, len), 1, LIVES);
	change(BODY(struct rdma_window_entry, address), UINT64_MAX, BREACH);
	change(BODY(struct rdma_window_entry, address), UINT64_MAX - MIB + 1, BREACH);
	change(BODY(struct rdma_window_entry, generation), UINT32_MAX, LIVES);
}

static void change_key(void)
{
	change_chunk(7, ANYTHING);
	change(BODY(struct rdma_chunk_entry, chunk), 5, BREACH);
	for (uint64_t v = 0; v < 4; v++) {
		change(BODY(struct rdma_key_entry, rkey), v, ANYTHING);
		change(BODY(struct rdma_key_entry, status), v, ANYTHING);
	}
	change(BODY(struct rdma_key_entry, status), UINT32_MAX, ANYTHING);
	change(BODY(struct rdma_key_entry, error), UINT32_MAX, ANYTHING);
}

static void change_body(const struct message *m)
{
	switch (m->kind) {
	case RDMA_WINDOW:
		change_window();
		break;
	case RDMA_REGISTER:
		change_chunk(3, LIVES);                                  /* an older one was on its way */
		change(BODY(struct rdma_chunk_entry, chunk), 0, BREACH); /* has a key */
		break;
	case RDMA_UNREGISTER:
		change_chunk(3, LIVES);
		change(BODY(struct rdma_chunk_entry, chunk), 1, BREACH); /* has none */
		break;
	case RDMA_REGISTERED:
		change_key();
		break;
	case RDMA_UNREGISTERED:
		change_chunk(7, ANYTHING);
		change(BODY(struct rdma_chunk_entry, chunk), 7, BREACH);
		break;
	case RDMA_MESSAGE:
	case RDMA_CREDIT:
	case RDMA_CLOSE:
	case RDMA_BREACH:
		break;
	}
}

static void send_changed(const struct message *m, const struct change *ch)
{
	struct rdma_head head = rdma_raw_head(&w.raw, m->lane, m->kind, m->count, m->len);
	uint8_t octets[sizeof(head) + sizeof(m->body) + 64] = { 0 };
	size_t n = sizeof(head) + m->len;

	memcpy(octets, &head, sizeof(head));
	memcpy(octets + sizeof(head), m->body, m->len);
	if (ch->width)
		put_be(octets + ch->at, ch->width, ch->value);
	if (ch->cut)
		n = ch->cut == SIZE_MAX ? 0 : ch->cut;
	CHECK(rdma_raw_post(&w.raw, m->lane, octets, n + ch->more), "%s: cannot send", what);
}

/* ---- how it ends ---- */

static bool is_an_end(int r)
{
	return r == -EPROTO || r == -ECONNRESET || r == -ENODATA || r == -ENOMEM;
}

static void expect_breach(int r, const struct ft_error *err)
{
	struct iovec one = { "x", 1 };
	struct ft_error why;

	CHECK(r == -EPROTO && strlen(err->msg) > 20, "%s: %d %s", what, r, r == -ETIMEDOUT ? "it is taken" : err->msg);
	CHECK(tp_send(w.c, 0, &one, 1, now_ns(), &why) == -EPROTO, "%s: sending goes on", what);
	CHECK(raw_gets(RDMA_BREACH) && strlen(w.raw.breach) > 10, "%s: the peer is not told why", what);
	for (const char *p = w.raw.breach; *p; p++)
		CHECK(*p >= ' ' && *p <= '~', "%s: it is told in unprintable words", what);
}

static void expect(enum verdict verdict)
{
	struct ft_error err = { 0 };
	int r = receive_all(&err);

	switch (verdict) {
	case BREACH:
		expect_breach(r, &err);
		break;
	case ENDS:
		CHECK(is_an_end(r) && r != -EPROTO, "%s: %d %s", what, r, err.msg);
		break;
	case LIVES:
		CHECK(r == -ETIMEDOUT, "%s: %d %s", what, r, err.msg);
		say(0);
		CHECK(raw_gets(RDMA_MESSAGE) && w.raw.breach[0] == '\0', "%s: nothing comes any more", what);
		break;
	case ANYTHING:
		CHECK(r == -ETIMEDOUT || is_an_end(r), "%s: %d %s", what, r, err.msg);
		break;
	}
}

/* ---- messages ---- */

static void name_case(enum stage stage, const struct message *m, const struct change *ch)
{
	snprintf(what, sizeof(what), "%s: kind %u on lane %u, octets at %zu (%u) are %#llx, cut %zd, more %u",
		 stage_names[stage], m->kind, m->lane, ch->at, ch->width, (unsigned long long)ch->value,
		 (ssize_t)ch->cut, ch->more);
}

static const struct message *pick(enum stage stage, unsigned which, bool misplaced)
{
	static struct list l;

	snprintf(what, sizeof(what), "%s: going there", stage_names[stage]);
	open_connection();
	go_to(stage);
	if (misplaced)
		misplaced_ones(stage, &l);
	else
		right_ones(stage, &l);
	return which < l.n ? &l.message[which] : NULL;
}

/* false: there are not so many messages. */
static bool try_change(enum stage stage, unsigned which, bool misplaced, const struct change *ch)
{
	const struct message *m = pick(stage, which, misplaced);

	if (m) {
		name_case(stage, m, ch);
		send_changed(m, ch);
		expect(ch->width || ch->cut || ch->more ? ch->verdict : m->verdict);
	}
	close_connection();
	if (m)
		count_case();
	return m;
}

/* What may be changed of a message there: asked of a connection that is thrown away. */
static void list_changes(enum stage stage, unsigned which)
{
	const struct message *m = pick(stage, which, false);

	nr_changes = 0;
	if (m) {
		change(0, 0, 0, LIVES);
		change_head(m);
		change_length(m, stage == KEYED || stage == ASKED || stage == TOLD);
		change_body(m);
	}
	close_connection();
}

static void messages(void)
{
	const struct change none = { .width = 0 };

	open_world();
	for (enum stage stage = FRESH; stage < STAGES; stage++) {
		for (unsigned which = 0; list_changes(stage, which), nr_changes > 0; which++)
			for (unsigned i = 0; i < nr_changes; i++)
				try_change(stage, which, false, &changes[i]);
		for (unsigned which = 0; try_change(stage, which, true, &none); which++)
			;
	}
	close_world();
}

/* ---- messages that are too many, too soon, twice ---- */

static void window_again(void)
{
	struct rdma_window_entry e = window_entry(1, MIB);

	e.generation = to_be32(2);
	raw_says(0, RDMA_WINDOW, 1, &e, sizeof(e));
}

static void too_many_entries(void)
{
	static struct rdma_chunk_entry e[RDMA_BATCH_MAX + 1];

	for (uint32_t i = 0; i <= RDMA_BATCH_MAX; i++)
		e[i] = entry(0, 1);
	raw_says(0, RDMA_REGISTER, RDMA_BATCH_MAX + 1, e, sizeof(e));
}

static void one_chunk_twice(void)
{
	const struct rdma_chunk_entry e[2] = { entry(0, 1), entry(0, 1) };

	raw_says(0, RDMA_REGISTER, 2, e, sizeof(e));
}

static void no_credit(void)
{
	for (unsigned i = 0; i < 9; i++)
		raw_says(1, RDMA_MESSAGE, 0, "x", 1);
}

static void no_control_credit(void)
{
	const struct rdma_window_entry e = window_entry(2, MIB);

	for (unsigned i = 0; i < RDMA_CONTROL_CREDITS + 1; i++)
		raw_says(0, RDMA_WINDOW, 1, &e, sizeof(e));
}

/* Asked, given back, and asked again, before an answer could be said. */
static void requests_before_answers(void)
{
	const struct rdma_chunk_entry e = entry(0, 1);

	for (unsigned i = 0; i < 5; i++)
		raw_says(0, i % 2 ? RDMA_UNREGISTER : RDMA_REGISTER, 1, &e, sizeof(e));
}

static void breach_without_a_word(void)
{
	raw_says(0, RDMA_BREACH, 0, NULL, 0);
}

static void short_answer(void)
{
	struct rdma_key_entry e[RDMA_BATCH_MAX];

	keys_for(&w.raw, e);
	raw_says(0, RDMA_REGISTERED, 1, e, sizeof(e[0]));
}

static void sequences(void)
{
	static const struct {
		const char *name;
		void (*send)(void);
		enum stage stage;
		enum verdict verdict;
	} one[] = {
		{ "a window opened anew while it is written", window_again, ASKED, BREACH },
		{ "a window opened anew while it is not written", window_again, WRITTEN, LIVES },
		{ "a window opened anew while chunks are unpinned", window_again, TOLD, ANYTHING },
		{ "more entries than fit", too_many_entries, KEYED, BREACH },
		{ "one chunk twice", one_chunk_twice, KEYED, BREACH },
		{ "messages without a credit", no_credit, FRESH, BREACH },
		{ "messages without a credit while one waits", no_credit, WAITING, BREACH },
		{ "control messages without a credit", no_control_credit, FRESH, BREACH },
		{ "requests before answers", requests_before_answers, KEYED, BREACH },
		{ "a breach without a word", breach_without_a_word, TOLD, ENDS },
		{ "an answer that leaves something out", short_answer, ASKED, BREACH },
	};

	open_world();
	for (unsigned i = 0; i < sizeof(one) / sizeof(one[0]); i++) {
		snprintf(what, sizeof(what), "%s", one[i].name);
		open_connection();
		go_to(one[i].stage);
		one[i].send();
		expect(one[i].verdict);
		close_connection();
		good_peer();
		w.cases++;
	}
	close_world();
}

/* ---- writes with keys that are not for it ---- */

static void try_write(uint32_t key, uint64_t remote, uint32_t len, bool allowed)
{
	uint8_t *at = (uint8_t *)(uintptr_t)remote;
	struct ft_error err = { 0 };
	int r;

	snprintf(what, sizeof(what), "write of %u octets at %lld with key %#x", len,
		 (long long)(remote - (uintptr_t)(w.memory + GUARD)), key);
	memset(w.raw.scratch, 0x77, len);
	rdma_raw_write(&w.raw, 1, remote, key, len);
	r = receive_all(&err);
	if (allowed) {
		CHECK(r == -ETIMEDOUT && is_all(at, len, 0x77), "%s: is not in place: %d %s", what, r, err.msg);
		memset(at, 0, len);
	} else {
		CHECK(r == -ECONNRESET, "%s: %d %s", what, r, err.msg);
	}
	CHECK(is_all(w.memory + GUARD, WINDOW, 0), "%s: something else was written", what);
}

static void write_case(unsigned i)
{
	uint64_t base = (uintptr_t)(w.memory + GUARD), last = base + 3 * MIB;
	uint32_t rest = WINDOW - 3 * MIB;
	const struct rdma_chunk_entry e = entry(0, 3);
	const struct {
		uint32_t key;
		uint64_t at;
		uint32_t len;
		bool allowed;
	} one[] = {
		{ w.keys[0], base, MIB, true },         { w.keys[3], last, rest, true },
		{ w.keys[3], last, rest + 1, false },   { w.keys[3], last - 1, 1, false },
		{ w.keys[0], base - 1, 2, false },      { w.keys[0], base + MIB - 1, 2, false },
		{ w.keys[0], last, 1, false },          { 0, base, 1, false },
		{ w.keys[0] + 1, base, 1, false },      { w.keys[0], UINT64_MAX, 1, false },
		{ w.raw.mr->rkey + 8, base, 1, false }, { w.keys[3], last, 1, false },
	};

	if (i == 11) { /* the last is given back before */
		raw_says(0, RDMA_UNREGISTER, 1, &e, sizeof(e));
		goes_on();
	}
	try_write(one[i].key, one[i].at, one[i].len, one[i].allowed);
}

static void writes(void)
{
	open_world();
	for (unsigned i = 0; i < 12; i++) {
		open_connection();
		go_to(KEYED);
		write_case(i);
		close_connection();
		good_peer();
		w.cases++;
	}
	close_world();
}

/* ---- requests ---- */

/* Asks with @len octets for lane 1, and well for lane 0; is the set accepted? */
static bool request(const void *data, size_t len)
{
	static struct rdma_raw raw;
	struct ft_error why = { 0 };
	struct rdma_hello h;
	struct tp_conn *c;
	bool accepted;

	rdma_raw_find(&raw, tp_listener_address(w.listener), LANES);
	rdma_raw_hello(&h, 0, LANES);
	rdma_raw_ask(&raw, 0, &h, sizeof(h));
	rdma_raw_ask(&raw, 1, data, len);
	accepted = meet(&c, &raw);
	if (raw.lane[1].state == RAW_REFUSED)
		CHECK(rdma_refusal_read(raw.lane[1].answer, raw.lane[1].answer_len, &why) != RDMA_OK &&
			      strlen(why.msg) > 40,
		      "%s: refused without a reason: %s", what, why.msg);
	CHECK(accepted == rdma_raw_all(&raw, RAW_UP), "%s: some lanes are accepted", what);
	tp_close(c);
	rdma_raw_close(&raw);
	tp_accept(w.listener, &c, now_ns(), -1, NULL); /* sees that its halves have left */
	CHECK(!c, "%s: another one was accepted", what);
	check_rules();
	check_nothing_left();
	count_case();
	return accepted;
}

#define HELLO(field) offsetof(struct rdma_hello, field), sizeof(((struct rdma_hello *)0)->field)

static void refused_request(size_t at, unsigned width, uint64_t value)
{
	uint8_t octets[sizeof(struct rdma_hello)];
	struct rdma_hello h;

	rdma_raw_hello(&h, 1, LANES);
	memcpy(octets, &h, sizeof(h));
	put_be(octets + at, width, value);
	snprintf(what, sizeof(what), "request, octets at %zu are %#llx", at, (unsigned long long)value);
	CHECK(!request(octets, sizeof(octets)), "%s: accepted", what);
}

static void cut_requests(bool iwarp)
{
	struct rdma_hello h;

	rdma_raw_hello(&h, 1, LANES);
	for (size_t len = 0; len <= sizeof(h); len++) {
		/* on InfiniBand zeros are put behind it, and pin_budget is 0 */
		bool whole = len == sizeof(h) || (!iwarp && len > offsetof(struct rdma_hello, chunk_shift));

		snprintf(what, sizeof(what), "request of %zu octets", len);
		CHECK(request(&h, len) == whole, "%s: %s", what, whole ? "refused" : "accepted");
	}
}

static void requests(void)
{
	for (unsigned bit = 0; bit < 64; bit++)
		refused_request(HELLO(magic), RDMA_MAGIC ^ UINT64_C(1) << bit);
	for (unsigned bit = 0; bit < 32; bit++) /* without its own it is another wish than that of lane 0 */
		refused_request(HELLO(capabilities), RDMA_CAP_CHUNKS ^ UINT32_C(1) << bit);
	for (uint64_t lanes = 0; lanes < 0x10000; lanes = lanes * 2 + 1)
		refused_request(HELLO(lanes), lanes);
	refused_request(HELLO(lanes), 10);
	refused_request(HELLO(version), 0);
	refused_request(HELLO(version), 2);
	refused_request(HELLO(version), 0xffff);
	refused_request(HELLO(lane), 0);
	refused_request(HELLO(lane), 2);
	refused_request(HELLO(lane), 0xffff);
	refused_request(HELLO(status), 1);
	refused_request(HELLO(reserved), 1);
	refused_request(HELLO(credits), 0);
	refused_request(HELLO(credits), TP_CREDITS_MAX + 1);
	refused_request(HELLO(credits), 7); /* the other lane says 8 */
	refused_request(HELLO(chunk_shift), 19);
	refused_request(HELLO(chunk_shift), 21);
	refused_request(HELLO(chunk_shift), 29);
	refused_request(HELLO(chunk_shift), 255);
	refused_request(HELLO(pin_budget), 1);
	refused_request(HELLO(token), 1);
}

static void check_served(void)
{
	struct ft_error err;

	ask_well(&w.raw);
	CHECK(meet(&w.c, &w.raw), "%s: nobody else is served", what);
	raw_says(1, RDMA_MESSAGE, 0, "x", 1);
	CHECK(receive(&err) == 0, "%s: the next peer is not heard: %s", what, err.msg);
	tp_close(w.c);
	rdma_raw_close(&w.raw);
}

/* Sets of which @asked of two lanes are asked for, and that say nothing more: more of them than the listener keeps. */
static void crowd(const char *name, unsigned nr, uint32_t asked)
{
	static struct rdma_raw raw[70];
	struct rdma_hello h;
	struct tp_conn *c;

	snprintf(what, sizeof(what), "%s", name);
	for (unsigned i = 0; i < nr; i++) {
		rdma_raw_find(&raw[i], tp_listener_address(w.listener), asked);
		for (uint32_t lane = 0; lane < asked; lane++) {
			rdma_raw_hello(&h, lane, LANES);
			h.token[15] = (uint8_t)(i + 1);
			rdma_raw_ask(&raw[i], lane, &h, sizeof(h));
		}
		if (i % 16 == 0 || asked == LANES)
			tp_accept(w.listener, &c, now_ns(), -1, NULL);
	}
	check_served();
	for (unsigned i = 0; i < nr; i++)
		rdma_raw_close(&raw[i]);
	tp_accept(w.listener, &c, now_ns(), -1, NULL);
	check_rules();
	check_nothing_left();
	w.cases++;
}

static void hellos(bool iwarp)
{
	struct fabric_config cfg;

	fabric_defaults(&cfg);
	cfg.iwarp = iwarp;
	fabric_reset(&cfg);
	open_world();
	cut_requests(iwarp);
	if (!iwarp)
		requests();
	crowd("a crowd of halves", 70, 1);
	crowd("a crowd of silent ones", 12, LANES);
	close_world();
	fabric_reset(NULL);
}

/* ---- answers to our own requests ---- */

struct asking {
	char uri[64];
	struct tp_conn *c;
	int r;
	_Atomic bool done;
	struct ft_error err;
	uint32_t ms;
};

static void *ask(void *arg)
{
	struct asking *a = arg;
	struct tp_params p = { .lanes = LANES };

	a->r = tp_connect(&a->c, a->uri, &p, deadline_in_ms(a->ms), -1, &a->err);
	a->done = true;
	return NULL;
}

struct answer {
	uint32_t lane; /* whose answer is changed; NOBODY: none comes at all */
	size_t at;
	unsigned width;
	uint64_t value;
	size_t len; /* 0: all, SIZE_MAX: none */
	bool refuse, leave;
};

static void answer_lane(struct rdma_raw *raw, uint32_t lane, const struct answer *a)
{
	const struct rdma_refusal r = { .magic = to_be64(RDMA_MAGIC),
					.version = to_be16(RDMA_VERSION),
					.status = to_be16(RDMA_REFUSE_OTHER),
					.len = 9,
					.text = "I do not\x1b" };
	bool changed = lane == a->lane, refuse = changed && a->refuse;
	size_t len = refuse ? sizeof(r) : sizeof(struct rdma_hello);
	uint8_t octets[sizeof(r)] = { 0 };

	if (refuse)
		memcpy(octets, &r, sizeof(r));
	else
		memcpy(octets, raw->lane[lane].answer, len); /* the wish is granted */
	if (changed)
		put_be(octets + a->at, a->width, a->value);
	if (changed && a->len)
		len = a->len == SIZE_MAX ? 0 : a->len;
	if (refuse)
		rdma_raw_reject(raw, lane, octets, len);
	else
		rdma_raw_accept(raw, lane, octets, len);
}

/* How our tp_connect() ends when the peer answers so. */
static int answered(const struct answer *a, uint32_t ms, struct ft_error *err)
{
	static struct asking as;
	static struct rdma_raw raw;
	uint64_t until = deadline_in_ms(WAIT_MS);
	pthread_t t;

	as = (struct asking){ .ms = ms };
	rdma_raw_listen(&raw, as.uri, sizeof(as.uri));
	CHECK(pthread_create(&t, NULL, ask, &as) == 0, "no thread");
	while (!as.done && !(raw.lane[0].id && raw.lane[1].id)) {
		rdma_raw_events(&raw);
		usleep(200);
		CHECK(now_ns() < until, "%s: nothing is asked", what);
	}
	for (uint32_t lane = 0; lane < LANES && !as.done && a->lane != NOBODY; lane++)
		answer_lane(&raw, lane, a);
	if (a->leave)
		rdma_raw_close(&raw);
	pthread_join(t, NULL);
	tp_close(as.c);
	if (!a->leave)
		rdma_raw_close(&raw);
	CHECK(fabric_all_gone(), "%s: something is left: %s", what, fabric_live_text());
	check_rules();
	w.cases++;
	*err = as.err;
	return as.r;
}

static void changed_answer(uint32_t lane, size_t at, unsigned width, uint64_t value, int expected)
{
	const struct answer a = { .lane = lane, .at = at, .width = width, .value = value };
	struct ft_error err;
	int r;

	snprintf(what, sizeof(what), "acceptance of lane %u, octets at %zu are %#llx", lane, at,
		 (unsigned long long)value);
	r = answered(&a, WAIT_MS, &err);
	CHECK(r == expected && (r == 0 || strlen(err.msg) > 30), "%s: %d %s", what, r, err.msg);
}

static void changed_refusal(size_t at, unsigned width, uint64_t value, const char *part)
{
	const struct answer a = { .lane = 1, .at = at, .width = width, .value = value, .refuse = true };
	struct ft_error err;
	int r;

	snprintf(what, sizeof(what), "refusal, octets at %zu are %#llx", at, (unsigned long long)value);
	r = answered(&a, WAIT_MS, &err);
	CHECK((r == -EPROTO || r == -EPROTONOSUPPORT || r == -ENOBUFS || r == -ECONNREFUSED) && strstr(err.msg, part),
	      "%s: %d %s", what, r, err.msg);
	for (const char *p = err.msg; *p; p++)
		CHECK(*p >= ' ' && *p <= '~', "%s: unprintable", what);
}

static void acceptances(uint32_t lane)
{
	struct ft_error err;

	changed_answer(lane, HELLO(magic), 0, -EPROTO);
	changed_answer(lane, HELLO(version), 2, -EPROTONOSUPPORT);
	changed_answer(lane, HELLO(lane), 1 - lane, -EPROTO);
	changed_answer(lane, HELLO(lane), 0xffff, -EPROTO);
	changed_answer(lane, HELLO(lanes), 0, -EPROTO);
	changed_answer(lane, HELLO(lanes), 1, -EPROTO);
	changed_answer(lane, HELLO(lanes), LANES + 1, -EPROTO);
	changed_answer(lane, HELLO(lanes), 0xffff, -EPROTO);
	changed_answer(lane, HELLO(status), 1, -EPROTO);
	changed_answer(lane, HELLO(token), 0, -EPROTO);
	changed_answer(lane, HELLO(capabilities), RDMA_CAP_ODP, -EPROTO);
	changed_answer(lane, HELLO(capabilities), RDMA_CAPS_KNOWN, -EPROTO);
	changed_answer(lane, HELLO(capabilities), 0x80000001u, -EPROTO);
	changed_answer(lane, HELLO(capabilities), 0, -EPROTO); /* the other lane says chunks */
	changed_answer(lane, HELLO(credits), 0, -EPROTO);
	changed_answer(lane, HELLO(credits), 0xffff, -EPROTO);
	changed_answer(lane, HELLO(credits), 3, -EPROTO);
	changed_answer(lane, HELLO(chunk_shift), 19, -EPROTO);
	changed_answer(lane, HELLO(chunk_shift), 21, -EPROTO);
	changed_answer(lane, HELLO(reserved), 1, -EPROTO);
	changed_answer(lane, HELLO(pin_budget), 1, -EPROTO);
	for (size_t len = 0; len < offsetof(struct rdma_hello, chunk_shift); len += 5) {
		const struct answer a = { .lane = lane, .len = len ? len : SIZE_MAX };

		snprintf(what, sizeof(what), "acceptance of lane %u of %zu octets", lane, len);
		CHECK(answered(&a, WAIT_MS, &err) < 0 && strlen(err.msg) > 30, "%s: %s", what, err.msg);
	}
}

#define REFUSAL(field) offsetof(struct rdma_refusal, field), sizeof(((struct rdma_refusal *)0)->field)

static void answers(void)
{
	const struct answer silent = { .lane = NOBODY }, left = { .lane = NOBODY, .leave = true },
			    left_later = { .lane = LANES, .leave = true };
	struct ft_error err;

	fabric_reset(NULL);
	changed_answer(LANES, 0, 0, 0, 0); /* a good one */
	for (uint32_t lane = 0; lane < LANES; lane++)
		acceptances(lane);
	for (uint64_t status = 0; status < 9; status++)
		changed_refusal(REFUSAL(status), status, status == RDMA_REFUSE_SURPLUS ? "" : "I do not?");
	changed_refusal(REFUSAL(status), 0xffff, "I do not?");
	changed_refusal(REFUSAL(version), 7, "version 7");
	changed_refusal(REFUSAL(len), 0, "no reason");
	changed_refusal(REFUSAL(len), 255, "I do not?");
	changed_refusal(REFUSAL(magic), 0, "without a reason");
	snprintf(what, sizeof(what), "no answer");
	CHECK(answered(&silent, 300, &err) == -ETIMEDOUT, "%s: %s", what, err.msg);
	snprintf(what, sizeof(what), "left without an answer");
	CHECK(answered(&left, WAIT_MS, &err) < 0, "%s: connected", what);
	snprintf(what, sizeof(what), "left behind the answer");
	answered(&left_later, WAIT_MS, &err);
}

/* ---- threads, and a fabric that takes its time ---- */

static bool may_end_so(int r)
{
	return is_an_end(r) || r == -EPIPE || r == -ECANCELED;
}

static void *our_receiver(void *arg)
{
	static uint8_t mine[TP_MESSAGE_MAX];
	struct ft_error err;
	uint32_t lane;
	size_t len;
	int r;

	(void)arg;
	while ((r = tp_recv(w.c, mine, sizeof(mine), &lane, &len, deadline_in_ms(WAIT_MS), &err)) == 0)
		;
	CHECK(may_end_so(r), "%s: receiving ends with %d %s", what, r, err.msg);
	return NULL;
}

static void *our_sender(void *arg)
{
	static uint8_t source[64 * 1024];
	uint32_t lane = *(const uint32_t *)arg;
	struct iovec one = { "x", 1 }, v = { source, sizeof(source) };
	struct rng rng = { lane };
	struct ft_error err;
	int r = 0;

	while (r == 0) {
		uint64_t at = rng_next(&rng) % (8 * MIB - sizeof(source));

		r = tp_write(w.c, lane, 1, at, &v, 1, NULL, deadline_in_ms(WAIT_MS), &err);
		if (r == 0 && rng_next(&rng) % 4 == 0)
			r = tp_send(w.c, lane, &one, 1, deadline_in_ms(WAIT_MS), &err);
	}
	CHECK(may_end_so(r), "%s: sending ends with %d %s", what, r, err.msg);
	return NULL;
}

/* As a good peer would, for a while. */
static void serve(struct rdma_raw *raw, unsigned times)
{
	for (unsigned i = 0; i < times && !raw->lost; i++) {
		bool came = false;

		while (rdma_raw_next(raw)) {
			came = true;
			if (from_be16(raw->head.kind) == RDMA_REGISTER)
				grant(raw);
			else if (from_be16(raw->head.kind) == RDMA_UNREGISTER)
				rdma_raw_tell(raw, 0, RDMA_UNREGISTERED, from_be16(raw->head.count), raw->body,
					      raw->len);
		}
		for (uint32_t lane = 0; lane < LANES && came; lane++)
			rdma_raw_tell(raw, lane, RDMA_CREDIT, 0, NULL, 0);
		usleep(300);
	}
}

static void be_wrong(struct rdma_raw *raw, struct rng *rng)
{
	uint32_t lane = (uint32_t)(rng_next(rng) % LANES), kind = (uint32_t)(rng_next(rng) % 11);
	uint8_t body[128];
	size_t len = rng_next(rng) % sizeof(body);
	struct rdma_head head = rdma_raw_head(raw, lane, kind, (uint32_t)(rng_next(rng) % 5), (uint32_t)len);

	for (size_t i = 0; i < sizeof(body); i++)
		body[i] = (uint8_t)(rng_next(rng) % 3 ? 0 : rng_next(rng));
	if (rng_next(rng) % 2)
		((uint8_t *)&head)[rng_next(rng) % sizeof(head)] ^= (uint8_t)(1 + rng_next(rng) % 255);
	rdma_raw_say(raw, lane, &head, body, len);
	if (rng_next(rng) % 2)
		rdma_raw_write(raw, lane, (uintptr_t)w.memory + rng_next(rng) % 8192, (uint32_t)rng_next(rng), 64);
}

static void meet_at_random(void)
{
	struct ft_error err = { 0 };
	uint64_t until = deadline_in_ms(WAIT_MS);

	ask_well(&w.raw);
	w.c = NULL;
	while (!w.c || !rdma_raw_all(&w.raw, RAW_UP)) {
		if (!w.c)
			tp_accept(w.listener, &w.c, deadline_in_ms(1), -1, &err);
		rdma_raw_events(&w.raw);
		CHECK(now_ns() < until, "%s: %s", what, err.msg);
	}
}

static void random_round(struct rng *rng)
{
	static uint32_t lanes[] = { 0, 1 };
	struct rdma_chunk_entry chunk = entry(0, rng_next(rng) % 4);
	struct rdma_window_entry e;
	struct ft_error err;
	pthread_t t[3];

	fabric_random(rng_next(rng), 200);
	meet_at_random();
	e = window_entry(1, 8 * MIB);
	raw_says(0, RDMA_WINDOW, 1, &e, sizeof(e));
	CHECK_OK(tp_window_open(w.c, 0, w.memory + GUARD, WINDOW, &err), err);
	CHECK(pthread_create(&t[0], NULL, our_receiver, NULL) == 0, "no thread");
	for (unsigned i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i + 1], NULL, our_sender, &lanes[i]) == 0, "no thread");
	raw_says(0, RDMA_REGISTER, 1, &chunk, sizeof(chunk));
	serve(&w.raw, (unsigned)(rng_next(rng) % 60));
	for (unsigned i = 0; i < 3; i++)
		be_wrong(&w.raw, rng);
	serve(&w.raw, 20);
	if (rng_next(rng) % 4 == 0)
		tp_cancel(w.c);
	rdma_raw_close(&w.raw);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	tp_close(w.c);
	w.c = NULL;
	check_guards();
	check_rules();
	w.cases++;
}

static void at_random(uint64_t seed, unsigned rounds)
{
	struct fabric_config cfg;
	struct rng rng = { seed };

	fabric_defaults(&cfg);
	cfg.rnr_is_fine = true; /* the raw peer sends more than it may */
	fabric_reset(&cfg);
	open_world();
	for (unsigned i = 0; i < rounds; i++) {
		snprintf(what, sizeof(what), "seed %llu, round %u", (unsigned long long)seed, i);
		random_round(&rng);
	}
	fabric_immediate();
	check_nothing_left();
	good_peer();
	close_world();
}

/* ---- */

static bool wanted(const char *part, const char *name)
{
	return !*part || strcmp(part, name) == 0;
}

static void told(const char *name)
{
	printf("%s: %u cases so far, %u good peers in between\n", name, w.cases, w.served);
	fflush(stdout);
}

static void run(const char *part, uint64_t seed, unsigned rounds)
{
	if (wanted(part, "hellos")) {
		hellos(false);
		hellos(true);
		told("hellos");
	}
	if (wanted(part, "messages")) {
		messages();
		sequences();
		told("messages");
	}
	if (wanted(part, "writes")) {
		writes();
		told("writes");
	}
	if (wanted(part, "answers")) {
		answers();
		told("answers");
	}
	if (wanted(part, "random")) {
		at_random(seed, rounds);
		told("random");
	}
}

int main(int argc, char **argv)
{
	const char *part = "";
	unsigned rounds = 40;
	uint64_t seed = 1;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--rounds") == 0)
			rounds = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--part") == 0)
			part = argv[i + 1];
		else
			DIE("unknown option %s", argv[i]);
	}
	rdma_linger_ms = 20;
	fabric_start(NULL);
	run(part, seed, rounds);
	CHECK(w.cases > 0, "nothing was tried");
	fabric_stop();
	return 0;
}
