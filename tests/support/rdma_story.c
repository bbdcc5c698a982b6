/* SPDX-License-Identifier: MIT */
/* rdma_story.c - see rdma_story.h.  The writer and the reader have a thread each. */
#include "rdma_story.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "rng.h"
#include "transport_ops.h"

#define PIECES_MAX 32u
#define PARTS_MAX 4u
#define ARENA_BYTES (4u << 20)
#define UNKNOWN_MAX 8u

enum { WORD_PIECES = 1, WORD_COMMIT, WORD_ANSWER, WORD_CHAT };

struct word {
	uint32_t kind, round, number, nr_pieces;
	struct {
		uint64_t offset, len;
	} piece[PIECES_MAX];
};

struct tale {
	struct rdma_story *s;
	struct tp_listener *l;
	struct tp_conn *w, *r;
	uint32_t lanes;
	uint8_t *
		meant; /* what the window is to be: written by the writer before it tells, read by the reader until it settles */
	uint8_t *window;         /* the reader's */
	uint8_t *mirror, *arena; /* the writer's */
	size_t arena_used;
	void *unknown[UNKNOWN_MAX];
	unsigned nr_unknown;
	int give_up[2]; /* raised by the writer's side, by the reader's */
	pthread_mutex_t wrong_lock;
	struct rng rng;
	uint32_t chat_sent[TP_LANES_MAX], chat_got[TP_LANES_MAX];
	char uri[160];
};

static void wrong(struct tale *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void wrong(struct tale *t, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&t->wrong_lock);
	va_start(ap, fmt);
	if (!t->s->wrong[0])
		vsnprintf(t->s->wrong, sizeof(t->s->wrong), fmt, ap);
	va_end(ap);
	pthread_mutex_unlock(&t->wrong_lock);
}

static uint64_t soon(const struct tale *t)
{
	return deadline_in_ms(t->s->deadline_ms);
}

/* -- writer -- */

static uint64_t random_len(struct tale *t, uint64_t most)
{
	uint64_t len;

	switch (rng_next(&t->rng) % 8) {
	case 0:
		len = rng_range(&t->rng, 1, t->s->long_bytes);
		break;
	case 1:
		len = 4096;
		break;
	default:
		len = rng_range(&t->rng, 1, 9000);
		break;
	}
	return len < most ? len : most;
}

static void draw_octets(struct tale *t, uint8_t *to, uint64_t len)
{
	uint64_t x = rng_next(&t->rng);

	for (uint64_t i = 0; i < len; i++) {
		if (i % 8 == 0)
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
		to[i] = (uint8_t)(x >> (i % 8 * 8));
	}
}

/* Memory for @len octets of the kind; NULL: this kind has no room now. */
static uint8_t *memory(struct tale *t, unsigned kind, uint64_t offset, uint64_t len)
{
	uint8_t *at = NULL;

	if (kind == 0 && t->arena_used + len <= ARENA_BYTES) {
		at = t->arena + t->arena_used;
		t->arena_used += len;
	} else if (kind == 1) {
		at = t->mirror + offset;
	} else if (kind == 2 && t->nr_unknown < UNKNOWN_MAX) {
		at = t->unknown[t->nr_unknown++] = malloc(len);
		CHECK(at, "no memory");
	}
	return at;
}

static unsigned cut(struct tale *t, uint8_t *at, uint64_t len, struct iovec *iov)
{
	unsigned n = 0, parts = (unsigned)rng_range(&t->rng, 1, PARTS_MAX);

	while (n + 1 < parts && len > 1) {
		uint64_t part = rng_range(&t->rng, 1, len - 1);

		iov[n++] = (struct iovec){ at, part };
		at += part;
		len -= part;
	}
	iov[n++] = (struct iovec){ at, len };
	return n;
}

/* One piece somewhere in the lane's share of the window. */
static int write_piece(struct tale *t, uint32_t lane, struct word *word, uint64_t *ticket)
{
	uint64_t share = t->s->window_bytes / t->lanes, first = lane * share;
	uint64_t offset = rng_range(&t->rng, 0, share - 1), len = random_len(t, share - offset);
	unsigned kind = (unsigned)(rng_next(&t->rng) % t->s->plain), n;
	struct iovec iov[PARTS_MAX];
	uint8_t *at;

	offset += first;
	if (rng_next(&t->rng) % 2)
		tp_prepare(t->w, 0, offset, len);
	at = memory(t, kind, offset, len);
	if (!at)
		return 0;
	/* the mirror's memory may be under way already in this round: then it has what it has */
	for (unsigned i = 0; kind == 1 && i < word->nr_pieces; i++)
		if (offset < word->piece[i].offset + word->piece[i].len && word->piece[i].offset < offset + len)
			return 0;
	draw_octets(t, at, len);
	memcpy(t->meant + offset, at, len);
	word->piece[word->nr_pieces].offset = offset;
	word->piece[word->nr_pieces++].len = len;
	n = cut(t, at, len, iov);
	return tp_write(t->w, lane, 0, offset, iov, n, ticket, soon(t), &t->s->ew);
}

static int say(struct tale *t, struct tp_conn *c, uint32_t lane, const struct word *word, struct ft_error *err)
{
	struct iovec v = { (void *)word, sizeof(*word) };

	return tp_send(c, lane, &v, 1, soon(t), err);
}

static int tell_lane(struct tale *t, uint32_t lane, unsigned round, uint64_t *ticket)
{
	unsigned n = (unsigned)rng_range(&t->rng, 0, t->s->pieces);
	struct word word = { .kind = WORD_PIECES, .round = round };
	int r = 0;

	while (n-- > 0 && r == 0)
		r = write_piece(t, lane, &word, ticket);
	return r == 0 ? say(t, t->w, lane, &word, &t->s->ew) : r;
}

/* The writes of a lane: done with their memory.  Asked for in both ways. */
static int complete(struct tale *t, uint32_t lane, uint64_t ticket, unsigned round)
{
	uint64_t until = soon(t);

	if (round % 2)
		return tp_wait_completed(t->w, lane, ticket, until, &t->s->ew);
	while (tp_completed(t->w, lane) < ticket) {
		int r = conn_fate_tx(t->w, &t->s->ew);

		if (r)
			return r;
		if (now_ns() >= until)
			return err_set(&t->s->ew, -ETIMEDOUT, "lane %u: completed %llu of %llu", lane,
				       (unsigned long long)tp_completed(t->w, lane), (unsigned long long)ticket);
		usleep(50);
	}
	return 0;
}

static void spoil(struct tale *t)
{
	memset(t->arena, 0xdd, t->arena_used);
	t->arena_used = 0;
	while (t->nr_unknown > 0)
		free(t->unknown[--t->nr_unknown]);
}

/* Up to the answer, and then what is there besides: with that the credit of the answer goes back, which may be the only one. */
static int hear_answer(struct tale *t, unsigned round)
{
	static _Thread_local uint8_t buf[TP_MESSAGE_MAX];
	const struct word *word = (const struct word *)buf;
	bool answered = false;
	uint32_t lane;
	size_t len;
	int r;

	for (;;) {
		r = tp_recv(t->w, buf, sizeof(buf), &lane, &len, answered ? now_ns() : soon(t), &t->s->ew);
		if (r == -ETIMEDOUT && answered)
			return 0;
		if (r)
			return r;
		if (len != sizeof(*word) || (word->kind != WORD_CHAT && word->kind != WORD_ANSWER))
			wrong(t, "the writer heard %zu octets of kind %u", len, word->kind);
		else if (word->kind == WORD_CHAT && word->number != t->chat_got[lane]++)
			wrong(t, "chat %u on lane %u, expected %u", word->number, lane, t->chat_got[lane] - 1);
		else if (word->kind == WORD_ANSWER && (word->round != round || lane != 0))
			wrong(t, "an answer to round %u on lane %u, expected %u on 0", word->round, lane, round);
		answered = answered || word->kind == WORD_ANSWER;
	}
}

static int tell_round(struct tale *t, unsigned round)
{
	struct word commit = { .kind = WORD_COMMIT, .round = round };
	uint64_t ticket[TP_LANES_MAX] = { 0 };
	int r = 0;

	for (uint32_t i = t->lanes; i-- > 0 && r == 0;)
		r = tell_lane(t, i, round, &ticket[i]);
	for (uint32_t i = 0; i < t->lanes && r == 0; i++)
		if (ticket[i])
			r = complete(t, i, ticket[i], round);
	if (r == 0)
		spoil(t);
	if (r == 0)
		r = say(t, t->w, 0, &commit, &t->s->ew);
	for (uint32_t i = 0; i < t->lanes && r == 0; i++)
		r = tp_settle(t->w, i, soon(t), &t->s->ew);
	return r == 0 ? hear_answer(t, round) : r;
}

static void *writer(void *arg)
{
	struct tale *t = arg;
	struct rdma_story *s = t->s;
	int r = tp_memory(t->w, t->arena, ARENA_BYTES, &s->ew);

	if (r == 0)
		r = tp_mirror(t->w, 0, t->mirror, s->window_bytes, &s->ew);
	for (unsigned i = 0; i < s->rounds && r == 0; i++) {
		r = tell_round(t, i);
		if (r == 0)
			s->rounds_done++;
		if (r == 0 && s->told)
			s->told(s->user, i);
	}
	tp_info(t->w, &s->iw);
	tp_close(t->w);
	spoil(t);
	s->rw = r;
	return NULL;
}

/* -- reader -- */

static void compare(struct tale *t, const struct word *word, uint32_t lane)
{
	for (uint32_t i = 0; i < word->nr_pieces && i < PIECES_MAX; i++) {
		uint64_t offset = word->piece[i].offset, len = word->piece[i].len;

		if (memcmp(t->window + offset, t->meant + offset, len) != 0)
			wrong(t, "round %u, lane %u: piece %u of %u, %llu octets at %llu, is not in place", word->round,
			      lane, i, word->nr_pieces, (unsigned long long)len, (unsigned long long)offset);
	}
}

static int chat(struct tale *t, struct rng *rng)
{
	struct word word = { .kind = WORD_CHAT };
	struct iovec v = { &word, sizeof(word) };
	uint32_t lane = (uint32_t)(rng_next(rng) % t->lanes);
	int r;

	word.number = t->chat_sent[lane];
	if (tp_credits(t->r, lane) < 2) /* the last one is for the answer */
		return 0;
	r = tp_send(t->r, lane, &v, 1, now_ns(), &t->s->er);
	if (r == 0)
		t->chat_sent[lane]++;
	return r == -ETIMEDOUT ? 0 : r;
}

static int hear(struct tale *t, const struct word *word, uint32_t lane, struct rng *rng)
{
	int r = 0;

	if (word->kind == WORD_PIECES) {
		compare(t, word, lane);
		return 0;
	}
	if (word->kind != WORD_COMMIT || lane != 0) {
		wrong(t, "the reader heard kind %u on lane %u", word->kind, lane);
		return 0;
	}
	if (memcmp(t->window, t->meant, t->s->window_bytes) != 0)
		wrong(t, "round %u: the window is not what was committed", word->round);
	for (unsigned n = (unsigned)(rng_next(rng) % 4); n > 0 && r == 0; n--)
		r = chat(t, rng);
	if (r == 0)
		r = say(t, t->r, 0, &(struct word){ .kind = WORD_ANSWER, .round = word->round }, &t->s->er);
	return r;
}

static void *reader(void *arg)
{
	static _Thread_local uint8_t buf[TP_MESSAGE_MAX];
	struct tale *t = arg;
	struct rdma_story *s = t->s;
	struct rng rng = { s->seed ^ 0x5eed };
	uint32_t lane;
	size_t len;
	int r = tp_window_open(t->r, 0, t->window, s->window_bytes, &s->er);

	while (r == 0) {
		r = tp_recv(t->r, buf, sizeof(buf), &lane, &len, soon(t), &s->er);
		if (r == 0 && len != sizeof(struct word))
			wrong(t, "the reader heard %zu octets", len);
		else if (r == 0)
			r = hear(t, (const struct word *)buf, lane, &rng);
	}
	tp_info(t->r, &s->ir);
	tp_close(t->r);
	s->rr = r;
	return NULL;
}

/* -- the beginning -- */

static void *connecter(void *arg)
{
	struct tale *t = arg;

	t->s->rw = tp_connect(&t->w, t->uri, &t->s->writer, soon(t), t->give_up[1], &t->s->ew);
	if (t->s->rw)
		event_raise(t->give_up[0]);
	return NULL;
}

static void meet(struct tale *t)
{
	struct rdma_story *s = t->s;
	pthread_t th;

	s->rr = tp_listen(&t->l, s->listen, &s->reader, &s->er);
	if (s->rr)
		return;
	snprintf(t->uri, sizeof(t->uri), "rdma:%s", tp_listener_address(t->l));
	pthread_create(&th, NULL, connecter, t);
	s->rr = tp_accept(t->l, &t->r, soon(t), t->give_up[0], &s->er);
	if (s->rr)
		event_raise(t->give_up[1]);
	pthread_join(th, NULL);
	s->stood = t->w && t->r;
}

static void tell(struct tale *t)
{
	pthread_t a, b;

	t->lanes = tp_lanes(t->w);
	if (t->s->connected)
		t->s->connected(t->s->user);
	pthread_create(&a, NULL, writer, t);
	pthread_create(&b, NULL, reader, t);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void *pages(uint64_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED, "no memory");
	return p;
}

static void fill_in(struct rdma_story *s)
{
	s->writer.lanes = s->writer.lanes ? s->writer.lanes : 3;
	s->reader.lanes = s->reader.lanes ? s->reader.lanes : 3;
	s->listen = s->listen ? s->listen : "rdma:10.9.0.1:0";
	s->rounds = s->rounds ? s->rounds : 3;
	s->window_bytes = s->window_bytes ? s->window_bytes : (6u << 20) + 4096;
	s->pieces = s->pieces ? s->pieces : 4;
	s->long_bytes = s->long_bytes ? s->long_bytes : 1258291;
	s->deadline_ms = s->deadline_ms ? s->deadline_ms : 20000;
	s->plain = s->plain ? s->plain : 3;
	CHECK(s->pieces <= PIECES_MAX && s->window_bytes >= TP_LANES_MAX, "a story that cannot be told");
	s->rw = s->rr = 0;
	s->stood = false;
	s->rounds_done = 0;
	s->wrong[0] = s->ew.msg[0] = s->er.msg[0] = '\0';
}

void rdma_story(struct rdma_story *s)
{
	struct tale t = { .s = s, .rng = { s->seed } };

	fill_in(s);
	pthread_mutex_init(&t.wrong_lock, NULL);
	for (unsigned i = 0; i < 2; i++)
		CHECK((t.give_up[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0, "eventfd");
	t.meant = pages(s->window_bytes);
	t.window = pages(s->window_bytes);
	t.mirror = pages(s->window_bytes);
	t.arena = pages(ARENA_BYTES);
	meet(&t);
	if (s->stood) {
		tell(&t);
	} else {
		tp_close(t.w);
		tp_close(t.r);
	}
	tp_listener_close(t.l);
	munmap(t.meant, s->window_bytes);
	munmap(t.window, s->window_bytes);
	munmap(t.mirror, s->window_bytes);
	munmap(t.arena, ARENA_BYTES);
	close(t.give_up[0]);
	close(t.give_up[1]);
	pthread_mutex_destroy(&t.wrong_lock);
}

bool rdma_story_whole(const struct rdma_story *s)
{
	return s->stood && s->rw == 0 && s->rr == -ENODATA && s->rounds_done == s->rounds && !s->wrong[0];
}

const char *rdma_story_text(const struct rdma_story *s)
{
	static _Thread_local char text[1400];

	snprintf(text, sizeof(text), "seed %llu, %s, %u of %u rounds; writer %d %s; reader %d %s; %s",
		 (unsigned long long)s->seed, s->stood ? "stood" : "did not stand", s->rounds_done, s->rounds, s->rw,
		 s->ew.msg, s->rr, s->er.msg, s->wrong[0] ? s->wrong : "nothing wrong");
	return text;
}
