/* SPDX-License-Identifier: MIT */
/* test_transport.c - the contract of transport.h over each transport, and what is special to tcp and fault.
 * Where a test needs two sides it plays both, with a thread for the side that waits.  Deadlines are generous: a loaded machine must not
 * fail a test; where something has to end at once, the test only fails if it did not end long before its deadline. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "tcp.h"
#include "transport.h"
#include "transport_ops.h"

#define LONG_MS 30000u
#define LANES 3u
#define WINDOW_BYTES (8u << 20)

struct kind {
	char wrap[48]; /* "fault(...)/" or "" */
	char listen[32];
};
static struct kind kinds[] = {
	{ "", "127.0.0.1:0" },
	{ "", "tcp:[::1]:0" },
	{ "", "loopback:unit" },
	{ "fault(seed=7,delay=1)/", "127.0.0.1:0" },
	{ "fault(seed=9,reorder=1)/", "[::1]:0" },
	{ "fault(seed=11)/", "loopback:unit" },
};
#define NR_KINDS (sizeof(kinds) / sizeof(kinds[0]))
#define EACH_KIND(suite, name)                                                 \
	ParameterizedTestParameters(suite, name)                               \
	{                                                                      \
		return cr_make_param_array(struct kind, kinds, NR_KINDS);      \
	}                                                                      \
	ParameterizedTest(struct kind *k, suite, name, .timeout = 120)

static uint64_t soon(void)
{
	return deadline_in_ms(LONG_MS);
}

/* -- a connection with both ends -- */

struct duo {
	struct tp_listener *l;
	struct tp_conn *a, *b; /* connected, accepted */
	pthread_t t;
	struct tp_params pa;
	char uri[160];
	struct ft_error err;
	uint8_t *window; /* window 0 of b */
};

static void *connect_thread(void *arg)
{
	struct duo *d = arg;

	tp_connect(&d->a, d->uri, &d->pa, soon(), -1, &d->err);
	return NULL;
}

static void duo_listen(struct duo *d, const struct kind *k, struct tp_params p)
{
	char uri[96];

	memset(d, 0, sizeof(*d));
	d->pa = p;
	snprintf(uri, sizeof(uri), "%s%s", k->wrap, k->listen);
	cr_assert_eq(tp_listen(&d->l, uri, &p, &d->err), 0, "%s", d->err.msg);
	snprintf(d->uri, sizeof(d->uri), "%s%s", k->wrap, tp_listener_address(d->l));
}

static void duo_join(struct duo *d)
{
	pthread_create(&d->t, NULL, connect_thread, d);
	cr_assert_eq(tp_accept(d->l, &d->b, soon(), -1, &d->err), 0, "%s", d->err.msg);
	pthread_join(d->t, NULL);
	cr_assert(d->a, "%s", d->err.msg);
}

static void duo_open(struct duo *d, const struct kind *k)
{
	duo_listen(d, k, (struct tp_params){ .lanes = LANES });
	duo_join(d);
	d->window = calloc(1, WINDOW_BYTES);
	cr_assert_eq(tp_window_open(d->b, 0, d->window, WINDOW_BYTES, &d->err), 0);
}

static void duo_close(struct duo *d)
{
	tp_close(d->a);
	tp_close(d->b);
	tp_listener_close(d->l);
	free(d->window);
}

static int send_text(struct tp_conn *c, uint32_t lane, const char *text, uint64_t deadline, struct ft_error *err)
{
	struct iovec v = { (void *)text, strlen(text) };

	return tp_send(c, lane, &v, 1, deadline, err);
}

static char buf[TP_MESSAGE_MAX];

static int recv_text(struct tp_conn *c, uint64_t deadline, struct ft_error *err)
{
	uint32_t lane;
	size_t len;
	int r = tp_recv(c, buf, sizeof(buf), &lane, &len, deadline, err);

	if (r == 0 && len < sizeof(buf))
		buf[len] = '\0';
	return r;
}

static uint64_t mix(uint64_t *s)
{
	uint64_t x = *s += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	return x ^ (x >> 29);
}

static uint64_t hash(const uint8_t *p, size_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * UINT64_C(0x100000001b3);
	return h;
}

/* -- order: a message stands for the writes before it -- */

#define AREA 65536u
#define ROUNDS 60u

struct writer {
	struct tp_conn *c;
	uint32_t lane;
	int result;
	struct ft_error err;
};

#define ARENA (1u << 20)

/* Writes random octets in random pieces, then the hash of the whole area as the receiver must find it.  Memory of a write is used again as
 * soon as the write is completed, so one that is told too early spoils the content. */
static void *write_rounds(void *arg)
{
	struct writer *w = arg;
	uint64_t seed = w->lane, ticket = 0;
	uint8_t *area = calloc(1, AREA), *arena = malloc(ARENA);
	size_t used = 0;

	for (unsigned round = 0; round < ROUNDS && w->result == 0; round++) {
		for (unsigned n = (unsigned)(mix(&seed) % 90); n > 0 && w->result == 0; n--) {
			size_t len = 1 + mix(&seed) % (mix(&seed) % 8 ? 300 : AREA), at = mix(&seed) % (AREA - len + 1);
			size_t first = mix(&seed) % (len + 1);
			struct iovec v[2] = { { NULL, first }, { NULL, len - first } };

			if (used + len > ARENA) {
				if (round % 2)
					w->result = tp_wait_completed(w->c, w->lane, ticket, soon(), &w->err);
				while (round % 2 == 0 && tp_completed(w->c, w->lane) < ticket)
					usleep(100);
				used = 0;
			}
			v[0].iov_base = arena + used;
			v[1].iov_base = arena + used + first;
			for (size_t i = 0; i < len; i++)
				arena[used++] = area[at + i] = (uint8_t)mix(&seed);
			if (w->result == 0)
				w->result = tp_write(w->c, w->lane, 0, w->lane * AREA + at, v, 2, &ticket, soon(), &w->err);
		}
		if (w->result == 0) {
			uint64_t h = hash(area, AREA);
			struct iovec v = { &h, sizeof(h) };

			w->result = tp_send(w->c, w->lane, &v, 1, soon(), &w->err);
		}
	}
	if (w->result == 0)
		w->result = tp_wait_completed(w->c, w->lane, ticket, soon(), &w->err);
	free(area);
	free(arena);
	return NULL;
}

EACH_KIND(transport, writes_are_in_place_when_the_message_comes)
{
	struct writer w[LANES] = { 0 };
	pthread_t t[LANES];
	unsigned seen[LANES] = { 0 };
	struct duo d;

	duo_open(&d, k);
	for (uint32_t i = 0; i < LANES; i++) {
		w[i] = (struct writer){ .c = d.a, .lane = i };
		pthread_create(&t[i], NULL, write_rounds, &w[i]);
	}
	for (unsigned n = 0; n < LANES * ROUNDS; n++) {
		uint32_t lane;
		uint64_t h;
		size_t len;

		cr_assert_eq(tp_recv(d.b, buf, sizeof(buf), &lane, &len, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert(lane < LANES && len == sizeof(h));
		memcpy(&h, buf, sizeof(h));
		seen[lane]++;
		cr_assert_eq(h, hash(d.window + lane * AREA, AREA), "lane %u, message %u", lane, seen[lane]);
	}
	for (uint32_t i = 0; i < LANES; i++) {
		pthread_join(t[i], NULL);
		cr_assert_eq(w[i].result, 0, "%s", w[i].err.msg);
		cr_assert_eq(seen[i], ROUNDS);
	}
	duo_close(&d);
}

/* -- messages -- */

EACH_KIND(transport, messages_of_all_sizes)
{
	static const size_t sizes[] = { 0, 1, 15, 16, 17, 1023, 1024, 1025, 1039, 1040, 1041, 4096, 65535, 65536 };
	static uint8_t out[TP_MESSAGE_MAX + 1];
	struct duo d;

	duo_open(&d, k);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7 + (i >> 8));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct iovec v[3] = { { out, sizes[i] / 3 }, { out, 0 }, { out + sizes[i] / 3, sizes[i] - sizes[i] / 3 } };
		uint32_t lane;
		size_t len;

		cr_assert_eq(tp_send(d.a, 1, v, 3, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert_eq(tp_recv(d.b, buf, sizeof(buf), &lane, &len, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert(lane == 1 && len == sizes[i], "%zu for %zu", len, sizes[i]);
		cr_assert_arr_eq(buf, out, len);
	}
	cr_assert_eq(tp_send(d.a, 1, &(struct iovec){ out, sizeof(out) }, 1, soon(), &d.err), -EMSGSIZE);
	cr_assert_eq(tp_send(d.a, LANES, &(struct iovec){ out, 1 }, 1, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, NULL, 0, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, TP_WINDOWS_MAX, 0, &(struct iovec){ out, 1 }, 1, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, 0, UINT64_MAX, &(struct iovec){ out, 1 }, 1, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_wait_completed(d.a, 1, 1000, soon(), &d.err), -EINVAL);
	cr_assert_eq(send_text(d.a, 0, "still fine", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_str_eq(buf, "still fine");
	duo_close(&d);
}

EACH_KIND(transport, credits_run_out_and_come_back)
{
	struct duo d;
	unsigned n = 0;
	int r;

	duo_listen(&d, k, (struct tp_params){ .lanes = LANES, .credits = 5 });
	duo_join(&d);
	cr_assert_eq(tp_credits(d.a, 1), 5);
	while ((r = send_text(d.a, 1, "x", deadline_in_ms(200), &d.err)) == 0)
		n++;
	cr_assert_eq(r, -ETIMEDOUT, "%s", d.err.msg);
	/* the pump of reorder takes one that waits for its credit */
	cr_assert(n == 5 || (strstr(k->wrap, "reorder") && n == 6), "%u messages", n);
	cr_assert_eq(tp_credits(d.a, 1), 0);
	cr_assert_eq(send_text(d.a, 2, "y", soon(), &d.err), 0, "another lane has credits of its own: %s", d.err.msg);
	for (unsigned i = 0; i < n + 1; i++)
		cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	/* nobody is in tp_recv() on our side: the sender finds its credits itself */
	for (unsigned i = 0; i < 40; i++) {
		cr_assert_eq(send_text(d.a, 1, "z", soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	}
	duo_close(&d);
}

EACH_KIND(transport, poll_fd_tells)
{
	struct duo d;
	struct pollfd p;

	duo_open(&d, k);
	p = (struct pollfd){ .fd = tp_poll_fd(d.b), .events = POLLIN };
	cr_assert_eq(recv_text(d.b, now_ns(), &d.err), -ETIMEDOUT);
	cr_assert_eq(poll(&p, 1, 0), 0, "readable before anything was sent");
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(send_text(d.a, 1, "12345678", soon(), &d.err), 0);
	/* several small messages may be read at once: each must still be told */
	for (unsigned i = 0; i < 5; i++) {
		cr_assert_eq(poll(&p, 1, (int)LONG_MS), 1);
		cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	}
	cr_assert_eq(recv_text(d.b, now_ns(), &d.err), -ETIMEDOUT);
	cr_assert_eq(poll(&p, 1, 0), 0);
	tp_close(d.a);
	d.a = NULL;
	cr_assert_eq(poll(&p, 1, (int)LONG_MS), 1);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA, "%s", d.err.msg);
	cr_assert_eq(poll(&p, 1, 0), 1, "an end is told as long as it lasts");
	duo_close(&d);
}

EACH_KIND(transport, fewer_lanes_if_the_listener_wants_fewer)
{
	struct duo d;

	duo_listen(&d, k, (struct tp_params){ .lanes = 2 });
	d.pa.lanes = 5;
	duo_join(&d);
	cr_assert_eq(tp_lanes(d.a), 2);
	cr_assert_eq(tp_lanes(d.b), 2);
	cr_assert_eq(send_text(d.a, 1, "hello", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(send_text(d.b, 0, "back", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "back");
	duo_close(&d);
}

EACH_KIND(transport, statistics)
{
	struct tp_stats sa, sb;
	struct duo d;

	duo_open(&d, k);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(tp_write(d.a, 1, 0, i, &(struct iovec){ "abc", 3 }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 1, "m", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	tp_stats(d.a, &sa);
	tp_stats(d.b, &sb);
	cr_assert(sa.writes == 3 && sa.messages_sent == 1 && sa.bytes_sent >= 10);
	cr_assert(sb.messages_received == 1 && sb.bytes_received == sa.bytes_sent);
	cr_assert_arr_eq(d.window, "aaabc", 5);
	duo_close(&d);
}

/* -- windows -- */

static void refused(const struct kind *k, uint32_t window, uint64_t offset, size_t len, bool close_first)
{
	static uint8_t octets[4096];
	struct ft_error again;
	struct duo d;
	int r;

	duo_open(&d, k);
	cr_assert_eq(tp_window_open(d.b, 0, d.window, 1, &d.err), -EBUSY);
	if (close_first)
		tp_window_close(d.b, 0);
	cr_assert_eq(tp_write(d.a, 1, window, offset, &(struct iovec){ octets, len }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 1, "after", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -EPROTO, "window %u offset %llu", window, (unsigned long long)offset);
	cr_assert(strstr(d.err.msg, "broke the protocol"), "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &again), -EPROTO);
	cr_assert_eq(send_text(d.b, 0, "x", soon(), &again), strstr(k->wrap, "reorder") ? 0 : -EPROTO, "%s", again.msg);
	tp_close(d.b);
	d.b = NULL;
	r = recv_text(d.a, soon(), &d.err);
	cr_assert(r == -ECONNRESET || r == -EPIPE, "the other side learns that it is over: %d %s", r, d.err.msg);
	duo_close(&d);
}

EACH_KIND(transport, writes_outside_of_windows_are_a_breach)
{
	refused(k, 1, 0, 1, false);
	refused(k, 0, WINDOW_BYTES, 1, false);
	refused(k, 0, WINDOW_BYTES - 1, 2, false);
	refused(k, 0, UINT64_MAX - 1, 1, false);
	refused(k, 0, WINDOW_BYTES - 4095, 4096, false);
	refused(k, 0, 0, 1, true);
}

EACH_KIND(transport, the_last_octets_of_a_window_can_be_written)
{
	struct duo d;

	duo_open(&d, k);
	cr_assert_eq(tp_window_open(d.b, TP_WINDOWS_MAX, d.window, 1, &d.err), -EINVAL);
	cr_assert_eq(tp_window_open(d.b, 15, d.window, 4, &d.err), 0);
	cr_assert_eq(tp_write(d.a, 2, 0, WINDOW_BYTES - 4, &(struct iovec){ "last", 4 }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(tp_write(d.a, 2, 15, 0, &(struct iovec){ "four", 4 }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 2, "x", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_arr_eq(d.window + WINDOW_BYTES - 4, "last", 4);
	cr_assert_arr_eq(d.window, "four", 4);
	duo_close(&d);
}

/* -- waits -- */

enum wait { WAIT_RECV, WAIT_CREDIT, WAIT_ROOM, WAIT_COMPLETED, NR_WAITS };

struct waiter {
	struct tp_conn *c;
	enum wait wait;
	uint64_t deadline;
	int result;
	_Atomic bool begun;
	struct ft_error err;
};

static uint8_t big[TP_WRITE_MAX]; /* never changes */

/* Fill what there is until it blocks for good. */
static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct iovec v = { big, sizeof(big) };
	uint32_t lane;
	size_t len;
	uint64_t ticket = 0;

	w->begun = true;
	switch (w->wait) {
	case WAIT_RECV:
		w->result = tp_recv(w->c, buf, sizeof(buf), &lane, &len, w->deadline, &w->err);
		break;
	case WAIT_CREDIT:
		while ((w->result = send_text(w->c, 1, "x", w->deadline, &w->err)) == 0)
			;
		break;
	case WAIT_ROOM:
		while ((w->result = tp_write(w->c, 1, 0, 0, &v, 1, NULL, w->deadline, &w->err)) == 0)
			;
		break;
	case WAIT_COMPLETED:
		while ((w->result = tp_write(w->c, 2, 0, 0, &v, 1, &ticket, w->deadline, &w->err)) == 0 &&
		       (w->result = tp_wait_completed(w->c, 2, ticket, w->deadline, &w->err)) == 0)
			;
		break;
	case NR_WAITS:
		break;
	}
	return NULL;
}

static void waiters_start(struct waiter *w, pthread_t *t, struct tp_conn *c, uint64_t deadline)
{
	for (int i = 0; i < NR_WAITS; i++) {
		w[i] = (struct waiter){ .c = c, .wait = (enum wait)i, .deadline = deadline };
		pthread_create(&t[i], NULL, wait_thread, &w[i]);
	}
	usleep(300000); /* all of them have come to where they wait; if not, the test is only weaker */
}

static void waiters_join(struct waiter *w, pthread_t *t)
{
	for (int i = 0; i < NR_WAITS; i++)
		pthread_join(t[i], NULL);
	(void)w;
}

EACH_KIND(waits, end_at_their_deadline)
{
	uint64_t deadline = deadline_in_ms(600), late;
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	struct duo d;

	duo_open(&d, k);
	waiters_start(w, t, d.a, deadline);
	waiters_join(w, t);
	late = now_ns() - deadline;
	cr_assert(now_ns() >= deadline && late < LONG_MS / 2 * NS_PER_MS);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ETIMEDOUT, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	/* and the connection is fine: what was queued arrives, and so does what follows */
	for (bool end = false; !end;) {
		int r = recv_text(d.b, deadline_in_ms(300), &d.err);

		end = r == -ETIMEDOUT;
		cr_assert(r == 0 || end, "%s", d.err.msg);
	}
	cr_assert_eq(send_text(d.a, 0, "fine", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "fine");
	duo_close(&d);
}

EACH_KIND(waits, end_at_once_when_cancelled)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	waiters_start(w, t, d.a, DEADLINE_NEVER);
	before = now_ns();
	tp_cancel(d.a);
	waiters_join(w, t);
	cr_assert(now_ns() - before < 5 * NS_PER_S);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ECANCELED, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECANCELED);
	cr_assert_eq(send_text(d.a, 0, "x", soon(), &d.err), -ECANCELED);
	cr_assert_eq(tp_write(d.a, 0, 0, 0, &(struct iovec){ big, 1 }, 1, NULL, soon(), &d.err), -ECANCELED);
	cr_assert_eq(tp_wait_completed(d.a, 1, 1, soon(), &d.err), -ECANCELED);
	duo_close(&d);
}

EACH_KIND(waits, end_when_the_connection_is_closed_under_them)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	waiters_start(w, t, d.a, DEADLINE_NEVER);
	before = now_ns();
	tp_close(d.a); /* frees: under ASan a thread that is still inside would be found */
	d.a = NULL;
	cr_assert(now_ns() - before < 5 * NS_PER_S);
	waiters_join(w, t);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ECANCELED, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	duo_close(&d);
}

EACH_KIND(waits, end_when_the_peer_dies)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	waiters_start(w, t, d.a, DEADLINE_NEVER);
	before = now_ns();
	d.b->ops->sever(d.b);
	waiters_join(w, t);
	cr_assert(now_ns() - before < LONG_MS * NS_PER_MS / 2);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert(w[i].result == -ECONNRESET || w[i].result == -EPIPE, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	cr_assert_eq(w[WAIT_RECV].result, -ECONNRESET, "%s", w[WAIT_RECV].err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	duo_close(&d);
}

/* Each wait alone: nobody in tp_recv() helps the others. */
EACH_KIND(waits, each_alone_ends_when_the_peer_dies)
{
	for (int i = 0; i < NR_WAITS; i++) {
		struct waiter w = { .wait = (enum wait)i, .deadline = deadline_in_ms(LONG_MS) };
		struct duo d;
		pthread_t t;

		duo_open(&d, k);
		w.c = d.a;
		pthread_create(&t, NULL, wait_thread, &w);
		usleep(150000);
		d.b->ops->sever(d.b);
		pthread_join(t, NULL);
		cr_assert(w.result == -ECONNRESET || w.result == -EPIPE, "wait %d: %d %s", i, w.result, w.err.msg);
		duo_close(&d);
	}
}

EACH_KIND(waits, accept_and_connect_end)
{
	int cancel = eventfd(0, EFD_CLOEXEC);
	struct tp_params p = { .lanes = 2 };
	struct tp_conn *c = (void *)1;
	uint64_t before = now_ns();
	struct duo d;

	duo_listen(&d, k, p);
	cr_assert_eq(tp_accept(d.l, &c, deadline_in_ms(100), -1, &d.err), -ETIMEDOUT, "%s", d.err.msg);
	cr_assert_null(c);
	cr_assert_eq(tp_connect(&c, d.uri, &p, deadline_in_ms(100), -1, &d.err), -ETIMEDOUT, "%s", d.err.msg);
	cr_assert_null(c);
	event_raise(cancel);
	cr_assert_eq(tp_accept(d.l, &c, DEADLINE_NEVER, cancel, &d.err), -ECANCELED, "%s", d.err.msg);
	cr_assert_eq(tp_connect(&c, d.uri, &p, DEADLINE_NEVER, cancel, &d.err), -ECANCELED, "%s", d.err.msg);
	cr_assert_null(c);
	cr_assert(now_ns() - before < LONG_MS * NS_PER_MS);
	/* those that gave up leave nothing behind that could be taken for a connection */
	duo_join(&d);
	cr_assert_eq(send_text(d.a, 0, "fresh", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "fresh");
	close(cancel);
	duo_close(&d);
}

EACH_KIND(waits, nobody_listens)
{
	struct tp_params p = { .lanes = 2 };
	struct tp_conn *c;
	struct duo d;

	duo_listen(&d, k, p);
	tp_listener_close(d.l);
	cr_assert_eq(tp_connect(&c, d.uri, &p, soon(), -1, &d.err), -ECONNREFUSED, "%s", d.err.msg);
}

/* -- the end -- */

EACH_KIND(end, last_words_are_heard)
{
	struct duo d;

	duo_open(&d, k);
	/* unread octets at the closing side must not cost the last words of the other */
	cr_assert_eq(send_text(d.b, 1, "unread", soon(), &d.err), 0);
	cr_assert_eq(tp_write(d.a, 1, 0, 5, &(struct iovec){ big, 100 }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 0, "refused, because", soon(), &d.err), 0);
	tp_close(d.a);
	d.a = NULL;
	usleep(20000);
	send_text(d.b, 1, "into the void", soon(), &d.err); /* may fail */
	send_text(d.b, 1, "into the void", soon(), &d.err);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "refused, because");
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA);
	while (send_text(d.b, 0, "x", soon(), &d.err) == 0)
		usleep(1000); /* a pump needs a moment to find out; else it fails at once */
	cr_assert_neq(d.err.code, -ETIMEDOUT, "%s", d.err.msg);
	duo_close(&d);
}

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

EACH_KIND(end, no_descriptor_is_left_after_200_connections)
{
	unsigned before, rounds = strstr(k->wrap, "reorder") ? 40 : 200;
	struct duo d;

	duo_listen(&d, k, (struct tp_params){ .lanes = LANES });
	before = open_fds();
	for (unsigned i = 0; i < rounds; i++) {
		duo_join(&d);
		cr_assert_eq(send_text(d.a, 1, "x", soon(), &d.err), 0, "%s", d.err.msg);
		if (i % 2)
			cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
		tp_close(i % 3 ? d.a : d.b);
		tp_close(i % 3 ? d.b : d.a);
	}
	cr_assert_eq(open_fds(), before);
	d.a = d.b = NULL;
	duo_close(&d);
}
