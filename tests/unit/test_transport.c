/* SPDX-License-Identifier: MIT */
/* test_transport.c - the contract of transport.h over each transport, and what is special to tcp and fault; what is special to rdma is in
 * test_rdma.c.  rdma runs over the made-up fabric of support/fabric_fake.h: at once, and by lot.
 * Where a test needs two sides it plays both, with a thread for the side that waits.  Deadlines are generous: a loaded machine must not
 * fail a test; where something has to end at once, the test only fails if it did not end long before its deadline. */
#include <criterion/criterion.h>

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
#include "fabric_fake.h"
#include "tcp.h"
#include "transport.h"
#include "transport_ops.h"

#define LONG_MS 30000u
#define LANES 3u
#define WINDOW_BYTES (8u << 20)

struct kind {
	char wrap[48]; /* "fault(...)/" or "" */
	char listen[32];
	enum { NO_RDMA, AT_ONCE, BY_LOT } rdma;
};
static const struct kind kinds[] = {
	{ "", "127.0.0.1:0", NO_RDMA },
	{ "", "tcp:[::1]:0", NO_RDMA },
	{ "", "loopback:unit", NO_RDMA },
	{ "fault(seed=7,delay=1)/", "127.0.0.1:0", NO_RDMA },
	{ "fault(seed=9,reorder=1)/", "[::1]:0", NO_RDMA },
	{ "fault(seed=11)/", "loopback:unit", NO_RDMA },
	{ "", "rdma:10.9.0.1:0", AT_ONCE },
	{ "", "rdma:[fd09::1]:0", BY_LOT },
	{ "fault(seed=13,delay=1)/", "rdma:10.9.0.1:0", AT_ONCE },
	{ "fault(seed=15,reorder=1)/", "rdma:10.9.0.1:0", BY_LOT },
};
/* The same test over each; plain tests, since criterion leaks its arrays of parameters. */
#define ONE_KIND(suite, name, i, label)                                                                                \
	Test(suite, name##_over_##label, .timeout = 120)                                                               \
	{                                                                                                              \
		suite##_##name(&kinds[i]);                                                                             \
	}
#define EACH_KIND(suite, name)                                                                                         \
	static void suite##_##name(const struct kind *k);                                                              \
	ONE_KIND(suite, name, 0, tcp4)                                                                                 \
	ONE_KIND(suite, name, 1, tcp6)                                                                                 \
	ONE_KIND(suite, name, 2, loopback)                                                                             \
	ONE_KIND(suite, name, 3, fault_delay)                                                                          \
	ONE_KIND(suite, name, 4, fault_reorder)                                                                        \
	ONE_KIND(suite, name, 5, fault_loopback)                                                                       \
	ONE_KIND(suite, name, 6, rdma4)                                                                                \
	ONE_KIND(suite, name, 7, rdma6_by_lot)                                                                         \
	ONE_KIND(suite, name, 8, fault_rdma)                                                                           \
	ONE_KIND(suite, name, 9, fault_reorder_rdma)                                                                   \
	static void suite##_##name(const struct kind *k)

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
	struct kind k;
	uint8_t *window; /* window 0 of b */
};

static void fabric_begin(const struct kind *k)
{
	static uint64_t seed = 1;

	if (k->rdma == NO_RDMA)
		return;
	fabric_start(NULL);
	if (k->rdma == BY_LOT)
		fabric_random(seed++, 200);
}

/* Nothing is left of what has been closed, and no rule of verbs was broken on the way. */
static void fabric_end(const struct kind *k)
{
	const char *text;

	if (k->rdma == NO_RDMA)
		return;
	cr_assert_eq(fabric_violations(&text), 0, "%s", text);
	cr_assert(fabric_all_gone(), "%s", fabric_live_text());
	fabric_stop();
}

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
	d->k = *k;
	fabric_begin(k);
	snprintf(uri, sizeof(uri), "%s%s", k->wrap, k->listen);
	cr_assert_eq(tp_listen(&d->l, uri, &p, &d->err), 0, "%s", d->err.msg);
	snprintf(d->uri, sizeof(d->uri), "%s%s%s", k->wrap, k->rdma ? "rdma:" : "", tp_listener_address(d->l));
}

static void duo_join(struct duo *d)
{
	pthread_create(&d->t, NULL, connect_thread, d);
	cr_assert_eq(tp_accept(d->l, &d->b, soon(), -1, &d->err), 0, "%s", d->err.msg);
	pthread_join(d->t, NULL);
	cr_assert(d->a, "%s", d->err.msg);
}

static void duo_open_registered(struct duo *d, const struct kind *k, enum tp_registration registration)
{
	duo_listen(d, k, (struct tp_params){ .lanes = LANES, .registration = registration });
	duo_join(d);
	d->window = calloc(1, WINDOW_BYTES);
	cr_assert_eq(tp_window_open(d->b, 0, d->window, WINDOW_BYTES, &d->err), 0);
}

/* As a whole: with chunks a write needs the other side in tp_recv(), and here one thread often plays both. */
static void duo_open(struct duo *d, const struct kind *k)
{
	duo_open_registered(d, k, TP_REGISTER_WHOLE);
}

static void duo_close(struct duo *d)
{
	tp_close(d->a);
	tp_close(d->b);
	tp_listener_close(d->l);
	free(d->window);
	fabric_end(&d->k);
}

static int send_text(struct tp_conn *c, uint32_t lane, const char *text, uint64_t deadline, struct ft_error *err)
{
	struct iovec v = { (void *)text, strlen(text) };

	return tp_send(c, lane, &v, 1, deadline, err);
}

static char buf[TP_MESSAGE_MAX];
static uint8_t big[TP_WRITE_MAX]; /* never changes */

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
static _Atomic unsigned writing; /* threads that are not done */

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
				w->result =
					tp_write(w->c, w->lane, 0, w->lane * AREA + at, v, 2, &ticket, soon(), &w->err);
		}
		if (w->result == 0) {
			uint64_t h = hash(area, AREA);
			struct iovec v = { &h, sizeof(h) };

			w->result = tp_send(w->c, w->lane, &v, 1, soon(), &w->err);
			if (w->result == 0) /* the hash is of what is there until then */
				w->result = tp_settle(w->c, w->lane, soon(), &w->err);
		}
	}
	if (w->result == 0)
		w->result = tp_wait_completed(w->c, w->lane, ticket, soon(), &w->err);
	free(area);
	free(arena);
	writing--;
	return NULL;
}

EACH_KIND(transport, writes_are_in_place_when_the_message_comes)
{
	struct writer w[LANES] = { 0 };
	pthread_t t[LANES];
	unsigned seen[LANES] = { 0 };
	struct duo d;

	duo_open_registered(&d, k, k->rdma == BY_LOT ? TP_REGISTER_CHUNKS : TP_REGISTER_WHOLE);
	for (uint32_t i = 0; i < LANES; i++) {
		w[i] = (struct writer){ .c = d.a, .lane = i };
		writing++;
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
	while (writing > 0) /* they wait until we are done with the last one, and ask */
		cr_assert_eq(recv_text(d.b, deadline_in_ms(5), &d.err), -ETIMEDOUT, "%s", d.err.msg);
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
	static const size_t sizes[] = { 0,    1,    15,   16,   17,   1023, 1024, 1025,  1039, 1040,
					1041, 4095, 4096, 4097, 4111, 4112, 4113, 65535, 65536 };
	static uint8_t out[TP_MESSAGE_MAX + 1];
	struct duo d;

	duo_open(&d, k);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7 + (i >> 8));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct iovec v[3] = { { out, sizes[i] / 3 },
				      { out, 0 },
				      { out + sizes[i] / 3, sizes[i] - sizes[i] / 3 } };
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
	do /* with a pump what arrived may not be counted yet */
		tp_stats(d.a, &sa);
	while (sa.messages_sent == 0 && usleep(1000) == 0);
	tp_stats(d.b, &sb);
	cr_assert(sa.writes == 3 && sa.messages_sent == 1 && sa.bytes_sent >= 10);
	cr_assert_eq(sb.messages_received, 1);
	if (k->rdma ==
	    NO_RDMA) /* there the writes come by themselves, and messages of the transport's own are counted */
		cr_assert_eq(sb.bytes_received, sa.bytes_sent);
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
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -EPROTO, "window %u offset %llu", window,
		     (unsigned long long)offset);
	cr_assert(strstr(d.err.msg, "broke the protocol"), "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &again), -EPROTO);
	cr_assert_eq(send_text(d.b, 0, "x", soon(), &again), strstr(k->wrap, "reorder") ? 0 : -EPROTO, "%s", again.msg);
	tp_close(d.b);
	d.b = NULL;
	r = recv_text(d.a, soon(), &d.err);
	cr_assert(r == -ECONNRESET || r == -EPIPE, "the other side learns that it is over: %d %s", r, d.err.msg);
	duo_close(&d);
}

/* Over rdma the sender knows the windows, and does not take such a write; nothing is broken.  A closed window stays as it is. */
static void not_taken(const struct kind *k, uint32_t window, uint64_t offset, size_t len, int expected)
{
	static uint8_t octets[4096];
	struct duo d;

	duo_open(&d, k);
	cr_assert_eq(tp_window_open(d.b, 0, d.window, 1, &d.err), -EBUSY);
	while (tp_write(d.a, 1, 0, 0, &(struct iovec){ "x", 1 }, 1, NULL, soon(), &d.err) != 0)
		cr_assert_eq(d.err.code, -ETIMEDOUT); /* the window is known now */
	cr_assert_eq(
		tp_write(d.a, 1, window, offset, &(struct iovec){ octets, len }, 1, NULL, deadline_in_ms(50), &d.err),
		expected, "window %u offset %llu: %s", window, (unsigned long long)offset, d.err.msg);
	cr_assert_eq(send_text(d.a, 1, "after", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	duo_close(&d);
}

/* The pump of reorder is the sender: what it is refused ends the connection. */
static void not_taken_by_the_pump(const struct kind *k)
{
	struct duo d;

	duo_open(&d, k);
	cr_assert_eq(tp_write(d.a, 1, 0, WINDOW_BYTES, &(struct iovec){ big, 1 }, 1, NULL, soon(), &d.err), 0);
	while (send_text(d.a, 1, "x", soon(), &d.err) == 0)
		usleep(1000);
	cr_assert_eq(d.err.code, -EINVAL, "%s", d.err.msg);
	duo_close(&d);
}

static void outside_over_rdma(const struct kind *k)
{
	if (strstr(k->wrap, "reorder")) {
		not_taken_by_the_pump(k);
		return;
	}
	not_taken(k, 1, 0, 1, -ETIMEDOUT);
	not_taken(k, 0, WINDOW_BYTES, 1, -EINVAL);
	not_taken(k, 0, WINDOW_BYTES - 1, 2, -EINVAL);
	not_taken(k, 0, UINT64_MAX - 1, 1, -EINVAL);
	not_taken(k, 0, WINDOW_BYTES - 4095, 4096, -EINVAL);
}

EACH_KIND(transport, writes_outside_of_windows_are_a_breach)
{
	if (k->rdma != NO_RDMA) {
		outside_over_rdma(k);
		return;
	}
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
	tp_window_close(d.b, 15);
	tp_window_close(d.b, TP_WINDOWS_MAX);
	cr_assert_eq(tp_window_open(d.b, 15, d.window, 4, &d.err), 0, "a number can be used again: %s", d.err.msg);
	duo_close(&d);
}

/* -- waits -- */

enum wait { WAIT_RECV, WAIT_CREDIT, WAIT_ROOM, WAIT_COMPLETED, NR_WAITS };

struct waiter {
	struct tp_conn *c;
	enum wait wait;
	size_t bytes;
	uint64_t deadline;
	int result;
	_Atomic bool begun;
	struct ft_error err;
};

/* rdma writes need nobody at the other side, and there is always room: unless the wire takes nothing. */
static void still(const struct kind *k, bool on)
{
	if (k->rdma != NO_RDMA)
		fabric_link(on ? FABRIC_SILENT : FABRIC_UP);
}

static size_t much(const struct kind *k)
{
	return k->rdma == NO_RDMA ? sizeof(big) : 4096; /* a queue has 1024 places */
}

/* Fill what there is until it blocks for good. */
static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct iovec v = { big, w->bytes };
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

static void waiters_start(struct waiter *w, pthread_t *t, const struct duo *d, uint64_t deadline)
{
	for (int i = 0; i < NR_WAITS; i++) {
		w[i] = (struct waiter){ .c = d->a, .wait = (enum wait)i, .bytes = much(&d->k), .deadline = deadline };
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
	still(k, true);
	waiters_start(w, t, &d, deadline);
	waiters_join(w, t);
	still(k, false);
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
	still(k, true);
	waiters_start(w, t, &d, DEADLINE_NEVER);
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
	still(k, true);
	waiters_start(w, t, &d, DEADLINE_NEVER);
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
	waiters_start(w, t, &d, DEADLINE_NEVER);
	before = now_ns();
	d.b->ops->sever(d.b);
	waiters_join(w, t);
	cr_assert(now_ns() - before < LONG_MS * NS_PER_MS / 2);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert(w[i].result == -ECONNRESET || w[i].result == -EPIPE, "wait %d: %d %s", i, w[i].result,
			  w[i].err.msg);
	cr_assert_eq(w[WAIT_RECV].result, -ECONNRESET, "%s", w[WAIT_RECV].err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	duo_close(&d);
}

/* Each wait alone: nobody in tp_recv() helps the others. */
EACH_KIND(waits, each_alone_ends_when_the_peer_dies)
{
	for (int i = 0; i < NR_WAITS; i++) {
		struct waiter w = { .wait = (enum wait)i, .bytes = much(k), .deadline = deadline_in_ms(LONG_MS) };
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
	fabric_end(k);
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
	unsigned before, rounds = strstr(k->wrap, "reorder") || k->rdma == BY_LOT ? 40 : 200;
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

/* -- tcp: the other side played by hand -- */

static struct kind v4 = { "", "127.0.0.1:0", NO_RDMA };

static struct tcp_preamble good_preamble(uint32_t lane)
{
	struct tcp_preamble p = { .magic = to_be64(TCP_MAGIC),
				  .version = to_be16(TCP_VERSION),
				  .lane = to_be16((uint16_t)lane),
				  .lanes = to_be16(2),
				  .token = "fifteen octets.",
				  .credits = to_be32(4) };

	return p;
}

static int raw_connect(const struct tp_listener *l)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval limit = { .tv_sec = LONG_MS / 1000 };
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)atoi(strrchr(tp_listener_address(l), ':') + 1)),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	cr_assert_eq(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

static void raw_send(int fd, const void *p, size_t n)
{
	cr_assert_eq(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* A real client still gets in, whatever else hangs on the listener. */
static void still_accepts(struct duo *d)
{
	uint64_t before = now_ns();

	duo_join(d);
	cr_assert(now_ns() - before < 4 * NS_PER_S, "held up");
	cr_assert_eq(send_text(d->a, 0, "in", soon(), &d->err), 0);
	cr_assert_eq(recv_text(d->b, soon(), &d->err), 0);
	tp_close(d->a);
	tp_close(d->b);
	d->a = d->b = NULL;
}

Test(tcp, stalled_peers_hold_up_nobody, .timeout = 120)
{
	struct tcp_preamble half = good_preamble(0);
	int fd[150];
	struct duo d;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES });
	for (unsigned i = 0; i < 150; i++) {
		/* silent ones, ones in the middle of a preamble, whole ones whose set never becomes whole; more than are kept.
		 * The listener's queue in the kernel is short, so it is emptied in between. */
		fd[i] = raw_connect(d.l);
		half.token[15] = (uint8_t)i;
		if (i % 3)
			raw_send(fd[i], &half, i % 3 == 1 ? 1 + i % 39 : sizeof(half));
		if (i % 30 == 29)
			still_accepts(&d);
	}
	still_accepts(&d);
	for (unsigned i = 0; i < 150; i++)
		close(fd[i]);
	still_accepts(&d);
	duo_close(&d);
}

Test(tcp, half_open_ones_are_dropped_after_five_seconds, .timeout = 60)
{
	struct tp_conn *c;
	char octet;
	struct duo d;
	int fd;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES });
	fd = raw_connect(d.l);
	cr_assert_eq(tp_accept(d.l, &c, deadline_in_ms(6000), -1, &d.err), -ETIMEDOUT);
	cr_assert_eq(recv(fd, &octet, 1, MSG_DONTWAIT), 0, "it was not dropped");
	close(fd);
	duo_close(&d);
}

/* What the listener makes of a preamble that is wrong in one field: no connection, and the socket closed, after the answer @status if one is
 * due. */
static void bad_preamble(struct duo *d, const struct tcp_preamble *p, int status)
{
	struct tcp_preamble answer;
	struct tp_conn *c;
	int fd = raw_connect(d->l), other = raw_connect(d->l);
	struct tcp_preamble second = good_preamble(1);
	ssize_t n;

	raw_send(fd, p, sizeof(*p));
	raw_send(other, &second, sizeof(second));
	cr_assert_eq(tp_accept(d->l, &c, deadline_in_ms(100), -1, &d->err), -ETIMEDOUT, "it was accepted");
	n = recv(fd, &answer, sizeof(answer), MSG_WAITALL);
	if (status > 0) {
		cr_assert_eq(n, (ssize_t)sizeof(answer));
		cr_assert_eq(from_be16(answer.status), status);
		n = recv(fd, &answer, 1, 0);
	}
	cr_assert(n == 0 || (n < 0 && errno == ECONNRESET), "the socket is still open");
	close(fd);
	close(other);
}

Test(tcp, preambles_with_one_wrong_field_are_refused, .timeout = 60)
{
	struct tcp_preamble p;
	struct duo d;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES });
	for (unsigned bit = 0; bit < 64; bit += 7) {
		p = good_preamble(0);
		p.magic = to_be64(TCP_MAGIC ^ UINT64_C(1) << bit);
		bad_preamble(&d, &p, 0);
	}
	p = good_preamble(0);
	p.version = to_be16(TCP_VERSION + 1);
	bad_preamble(&d, &p, TCP_REFUSE_VERSION);
	p = good_preamble(2);
	bad_preamble(&d, &p, TCP_REFUSE_LANES);
	p = good_preamble(0);
	p.lanes = to_be16(1);
	bad_preamble(&d, &p, TCP_REFUSE_LANES);
	p.lanes = to_be16(TP_LANES_MAX + 1);
	bad_preamble(&d, &p, TCP_REFUSE_LANES);
	p = good_preamble(0);
	p.status = to_be16(1);
	bad_preamble(&d, &p, 0);
	p = good_preamble(0);
	p.credits = to_be32(0);
	bad_preamble(&d, &p, 0);
	p.credits = to_be32(TP_CREDITS_MAX + 1);
	bad_preamble(&d, &p, 0);
	p = good_preamble(0);
	p.reserved = to_be32(1);
	bad_preamble(&d, &p, 0);
	still_accepts(&d);
	duo_close(&d);
}

Test(tcp, sets_that_do_not_fit_together_are_not_joined, .timeout = 60)
{
	struct tcp_preamble p[2];
	struct tp_conn *c;
	struct duo d;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES });
	for (int variant = 0; variant < 5; variant++) {
		int fd[2] = { raw_connect(d.l), raw_connect(d.l) };

		p[0] = good_preamble(0);
		p[1] = good_preamble(1);
		p[0].token[0] = p[1].token[0] = (uint8_t)variant;
		if (variant == 0)
			p[1].token[15] = 1;
		if (variant == 1)
			p[1].lane = to_be16(0);
		if (variant == 2)
			p[1].lanes = to_be16(3);
		if (variant == 3)
			p[1].credits = to_be32(5);
		for (int i = 0; i < 2; i++)
			raw_send(fd[i], &p[i], sizeof(p[i]));
		/* variant 4 is in order, or the others would show nothing */
		cr_assert_eq(tp_accept(d.l, &c, deadline_in_ms(variant == 4 ? LONG_MS : 100), -1, &d.err),
			     variant == 4 ? 0 : -ETIMEDOUT);
		tp_close(c);
		close(fd[0]);
		close(fd[1]);
	}
	duo_close(&d);
}

Test(tcp, preambles_truncated_at_each_octet, .timeout = 60)
{
	struct tcp_preamble p = good_preamble(0);
	struct tp_conn *c;
	struct duo d;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES });
	for (size_t n = 0; n < sizeof(p); n++) {
		int fd = raw_connect(d.l);

		raw_send(fd, &p, n);
		close(fd);
	}
	cr_assert_eq(tp_accept(d.l, &c, deadline_in_ms(200), -1, &d.err), -ETIMEDOUT);
	still_accepts(&d);
	duo_close(&d);
}

/* A connection whose other side we write octet by octet. */
struct raw {
	struct duo d;
	int fd[2];
};

static void raw_open(struct raw *r)
{
	struct tcp_preamble answer;

	duo_listen(&r->d, &v4, (struct tp_params){ .lanes = LANES, .credits = 3 });
	for (uint32_t i = 0; i < 2; i++) {
		struct tcp_preamble p = good_preamble(i);

		r->fd[i] = raw_connect(r->d.l);
		raw_send(r->fd[i], &p, sizeof(p));
	}
	cr_assert_eq(tp_accept(r->d.l, &r->d.b, soon(), -1, &r->d.err), 0, "%s", r->d.err.msg);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert_eq(recv(r->fd[i], &answer, sizeof(answer), MSG_WAITALL), (ssize_t)sizeof(answer));
		cr_assert(from_be16(answer.lane) == i && from_be16(answer.lanes) == 2 &&
			  from_be16(answer.status) == TCP_OK);
		cr_assert_eq(from_be32(answer.credits), 3);
		cr_assert_eq(memcmp(answer.token, "fifteen octets.", 16), 0);
	}
	r->d.window = calloc(1, WINDOW_BYTES);
	cr_assert_eq(tp_window_open(r->d.b, 0, r->d.window, 100, &r->d.err), 0);
}

static void raw_close(struct raw *r)
{
	close(r->fd[0]);
	close(r->fd[1]);
	duo_close(&r->d);
}

static struct tcp_frame frame(unsigned kind, unsigned count, uint32_t len, uint64_t number)
{
	return (struct tcp_frame){ to_be16((uint16_t)kind), to_be16((uint16_t)count), to_be32(len), to_be64(number) };
}

struct write_frame {
	struct tcp_frame frame;
	struct tcp_extent extent[2];
	char octets[8];
};

/* Two writes of 5 and 3 octets, numbers 1 and 2. */
static struct write_frame good_write(void)
{
	return (struct write_frame){ .frame = frame(FRAME_WRITE, 2, 2 * sizeof(struct tcp_extent) + 8, 1),
				     .extent = { { to_be32(0), to_be32(5), to_be64(95) },
						 { to_be32(0), to_be32(3), to_be64(0) } },
				     .octets = "lasthead" };
}

static void breach(const void *octets, size_t n, const char *what)
{
	struct raw r;
	int code;

	raw_open(&r);
	raw_send(r.fd[1], octets, n);
	code = recv_text(r.d.b, soon(), &r.d.err);
	cr_assert_eq(code, -EPROTO, "%s: %d %s", what, code, r.d.err.msg);
	cr_assert(strstr(r.d.err.msg, "lane 1: the peer broke the protocol"), "%s", r.d.err.msg);
	raw_close(&r);
}

Test(tcp, frames_with_one_wrong_field_are_a_breach, .timeout = 60)
{
	struct write_frame w;
	struct tcp_frame f;

#define BREACH_FRAME(kind, count, len, number)                                                                         \
	(f = frame(kind, count, len, number), breach(&f, sizeof(f), #kind #count #len #number))
	BREACH_FRAME(0, 0, 0, 1);
	BREACH_FRAME(5, 0, 0, 1);
	BREACH_FRAME(0xffff, 0, 0, 1);
	BREACH_FRAME(FRAME_MESSAGE, 1, 8, 1);
	BREACH_FRAME(FRAME_MESSAGE, 0, TP_MESSAGE_MAX + 1, 1);
	BREACH_FRAME(FRAME_MESSAGE, 0, UINT32_MAX, 1);
	BREACH_FRAME(FRAME_MESSAGE, 0, 8, 0);
	BREACH_FRAME(FRAME_MESSAGE, 0, 8, 2);
	BREACH_FRAME(FRAME_CREDIT, 1, 0, 1);
	BREACH_FRAME(FRAME_CREDIT, 0, 1, 1);
	BREACH_FRAME(FRAME_CREDIT, 0, 0, 0);
	BREACH_FRAME(FRAME_CREDIT, 0, 0, 1); /* for a message that was never sent */
	BREACH_FRAME(FRAME_CLOSE, 1, 0, 0);
	BREACH_FRAME(FRAME_CLOSE, 0, 1, 0);
	BREACH_FRAME(FRAME_CLOSE, 0, 0, 1);
	BREACH_FRAME(FRAME_WRITE, 0, 8, 1);
	BREACH_FRAME(FRAME_WRITE, TCP_EXTENTS_MAX + 1, 8192, 1);
	BREACH_FRAME(FRAME_WRITE, 2, 32, 1);
	BREACH_FRAME(FRAME_WRITE, 2, TCP_FRAME_BYTES_MAX + 1, 1);
	BREACH_FRAME(FRAME_WRITE, 2, 40, 2);
#define BREACH_WRITE(field, value) (w = good_write(), w.field = value, breach(&w, sizeof(w), #field #value))
	BREACH_WRITE(extent[0].len, to_be32(0));
	BREACH_WRITE(extent[0].len, to_be32(4));
	BREACH_WRITE(extent[0].len, to_be32(6));
	BREACH_WRITE(extent[1].len, to_be32(4));
	BREACH_WRITE(extent[1].len, to_be32(TP_WRITE_MAX + 1));
	BREACH_WRITE(extent[0].window, to_be32(1));
	BREACH_WRITE(extent[0].window, to_be32(UINT32_MAX));
	BREACH_WRITE(extent[0].offset, to_be64(96));
	BREACH_WRITE(extent[1].offset, to_be64(98));
	BREACH_WRITE(extent[1].offset, to_be64(UINT64_MAX));
	BREACH_WRITE(frame.len, to_be32(39));
	BREACH_WRITE(frame.len, to_be32(41));
}

Test(tcp, credits_are_given_back_by_halves_of_the_window, .timeout = 60)
{
	struct tcp_frame f;
	struct raw r;

	raw_open(&r);
	for (uint64_t i = 1; i <= 3; i++) {
		f = frame(FRAME_MESSAGE, 0, 0, i);
		raw_send(r.fd[1], &f, sizeof(f));
	}
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "%s", r.d.err.msg);
	cr_assert_lt(recv(r.fd[1], &f, sizeof(f), MSG_DONTWAIT), 0, "one of three is no reason yet");
	for (int i = 0; i < 2; i++)
		cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "%s", r.d.err.msg);
	cr_assert_eq(recv(r.fd[1], &f, sizeof(f), MSG_WAITALL), (ssize_t)sizeof(f));
	cr_assert(from_be16(f.kind) == FRAME_CREDIT && from_be64(f.number) == 2,
		  "half the window is given back at once");
	raw_close(&r);
}

/* Credits that we could not give, because our side is blocked in sending, may not be used. */
Test(tcp, messages_without_a_credit_are_a_breach, .timeout = 60)
{
	struct iovec v = { big, sizeof(big) };
	struct raw r;

	raw_open(&r);
	for (uint64_t i = 1; i <= 4; i++) {
		struct tcp_frame f = frame(FRAME_MESSAGE, 0, 0, i);

		raw_send(r.fd[1], &f, sizeof(f));
	}
	/* the kernel's buffers may grow for a while: full is what is full three times in a row */
	for (unsigned full = 0; full < 3;)
		full = tp_write(r.d.b, 1, 0, 0, &v, 1, NULL, deadline_in_ms(50), &r.d.err) == 0 ? 0 : full + 1;
	cr_assert_eq(r.d.err.code, -ETIMEDOUT);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "%s", r.d.err.msg);
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), -EPROTO, "%s", r.d.err.msg);
	cr_assert(strstr(r.d.err.msg, "without a credit"), "%s", r.d.err.msg);
	raw_close(&r);
}

/* All frames in one stream; cut at each octet, the connection is lost, not broken by the peer, and nothing of a message that is not whole comes out. */
Test(tcp, a_stream_truncated_at_each_octet, .timeout = 120)
{
	struct {
		struct tcp_frame head;
		char text[8];
		struct write_frame write;
		struct tcp_frame empty;
		struct tcp_frame close;
	} stream = { .head = frame(FRAME_MESSAGE, 0, 8, 1),
		     .text = "message",
		     .write = good_write(),
		     .empty = frame(FRAME_MESSAGE, 0, 0, 2),
		     .close = frame(FRAME_CLOSE, 0, 0, 2) };
	struct tcp_frame bye = frame(FRAME_CLOSE, 0, 0, 0);

	for (size_t n = 0; n <= sizeof(stream); n++) {
		bool whole = n == sizeof(stream);
		unsigned messages = (n >= 24) + (n >= sizeof(stream) - sizeof(bye)), got = 0;
		struct raw r;
		int code;

		raw_open(&r);
		raw_send(r.fd[0], &bye, sizeof(bye) - (n % 2)); /* lane 0 decides what it is called when all is over */
		raw_send(r.fd[1], &stream, n);
		shutdown(r.fd[0], SHUT_WR);
		shutdown(r.fd[1], SHUT_WR);
		while ((code = recv_text(r.d.b, soon(), &r.d.err)) == 0)
			got++;
		cr_assert_eq(got, messages, "%u messages of the first %zu octets", got, n);
		cr_assert_eq(code, n % 2 == 0 ? -ENODATA : -ECONNRESET, "%zu octets: %d %s", n, code, r.d.err.msg);
		if (whole)
			cr_assert_arr_eq(r.d.window + 95, "last", 4);
		raw_close(&r);
	}
}

/* One lane dies; what the others brought is handed out first. */
Test(tcp, an_end_is_told_last, .timeout = 60)
{
	struct tcp_frame f[3] = { frame(FRAME_MESSAGE, 0, 0, 1), frame(FRAME_MESSAGE, 0, 0, 2),
				  frame(FRAME_MESSAGE, 0, 0, 3) };
	struct raw r;

	raw_open(&r);
	raw_send(r.fd[0], f, sizeof(f));
	usleep(20000);
	shutdown(r.fd[1], SHUT_WR);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "message %d: %s", i + 1, r.d.err.msg);
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), -ECONNRESET, "%s", r.d.err.msg);
	cr_assert(strstr(r.d.err.msg, "lane 1"), "%s", r.d.err.msg);
	raw_close(&r);
}

Test(tcp, octet_by_octet, .timeout = 60)
{
	struct write_frame w = good_write();
	struct tcp_frame f = frame(FRAME_MESSAGE, 0, 2, 1);
	struct raw r;

	raw_open(&r);
	for (size_t i = 0; i < sizeof(w); i++) {
		raw_send(r.fd[1], (char *)&w + i, 1);
		cr_assert_eq(recv_text(r.d.b, deadline_in_ms(1), &r.d.err), -ETIMEDOUT, "%s", r.d.err.msg);
	}
	cr_assert_arr_eq(r.d.window, "ead", 3);
	cr_assert_arr_eq(r.d.window + 95, "lasth", 5);
	for (size_t i = 0; i < sizeof(f); i++)
		raw_send(r.fd[1], (char *)&f + i, 1);
	raw_send(r.fd[1], "o", 1);
	cr_assert_eq(recv_text(r.d.b, deadline_in_ms(1), &r.d.err), -ETIMEDOUT, "%s", r.d.err.msg);
	raw_send(r.fd[1], "k", 1);
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "%s", r.d.err.msg);
	cr_assert_str_eq(buf, "ok");
	raw_close(&r);
}

/* A window that closes while a write to it is on its way. */
Test(tcp, a_window_closed_in_the_middle_of_a_write, .timeout = 60)
{
	struct write_frame w = good_write();
	struct raw r;

	raw_open(&r);
	raw_send(r.fd[1], &w, sizeof(w) - 5);
	cr_assert_eq(recv_text(r.d.b, deadline_in_ms(20), &r.d.err), -ETIMEDOUT);
	tp_window_close(r.d.b, 0);
	memset(r.d.window, 0, 100);
	raw_send(r.fd[1], (char *)&w + sizeof(w) - 5, 5);
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), -EPROTO, "%s", r.d.err.msg);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(r.d.window[i], 0);
	raw_close(&r);
}

/* Time runs out in the middle of a message: that cannot be continued, and it is said. */
Test(tcp, a_message_that_is_cut_by_its_deadline_breaks_the_connection, .timeout = 60)
{
	static uint8_t octets[TP_MESSAGE_MAX];
	struct iovec v = { octets, sizeof(octets) };
	struct duo d;
	int r;

	duo_listen(&d, &v4, (struct tp_params){ .lanes = LANES, .credits = TP_CREDITS_MAX });
	duo_join(&d);
	while ((r = tp_send(d.a, 1, &v, 1, deadline_in_ms(50), &d.err)) == 0)
		;
	cr_assert(r == -EPIPE || r == -ETIMEDOUT, "%d %s", r, d.err.msg);
	if (r == -EPIPE) {
		cr_assert(strstr(d.err.msg, "in the middle of a message"), "%s", d.err.msg);
		cr_assert_eq(recv_text(d.a, soon(), &d.err), -EPIPE);
		tp_close(d.a);
		d.a = NULL;
		while ((r = recv_text(d.b, soon(), &d.err)) == 0)
			;
		cr_assert_eq(r, -ECONNRESET, "no orderly end after that: %d %s", r, d.err.msg);
	}
	duo_close(&d);
}

/* -- tcp: addresses -- */

Test(tcp, addresses, .timeout = 60)
{
	static const char *const bad[] = {
		"",      "host",   "1.2.3.4:",  "1.2.3.4:x", "1.2.3.4:70000", "1.2.3.4:-1",
		"::1:7", "[::1:7", "[::1]7000", "tcp:",      "127.0.0.1:0",   "127.0.0.1:1x"
	};
	struct tp_params p = { .lanes = 2 };
	struct ft_error err;
	struct tp_conn *c;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(tp_connect(&c, bad[i], &p, soon(), -1, &err), -EINVAL, "'%s': %s", bad[i], err.msg);
	cr_assert_eq(tp_connect(&c, "no-such-name.invalid:7", &p, deadline_in_ms(5000), -1, &err) >= 0, 0);
	cr_assert(err.code == -EADDRNOTAVAIL || err.code == -ETIMEDOUT, "%s", err.msg);
	p.lanes = 1;
	cr_assert_eq(tp_connect(&c, "127.0.0.1:7", &p, soon(), -1, &err), -EINVAL);
	p.lanes = TP_LANES_MAX + 1;
	cr_assert_eq(tp_connect(&c, "127.0.0.1:7", &p, soon(), -1, &err), -EINVAL);
	p = (struct tp_params){ .lanes = 2, .credits = TP_CREDITS_MAX + 1 };
	cr_assert_eq(tp_connect(&c, "127.0.0.1:7", &p, soon(), -1, &err), -EINVAL);
}

Test(tcp, listens_on_all_addresses_and_names, .timeout = 60)
{
	static const char *const uris[] = { ":0", "*:0", "tcp:*:0", "localhost:0" };
	static const char *const from[] = { "127.0.0.1", "[::1]", "localhost" };

	for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
		for (size_t j = 0; j < sizeof(from) / sizeof(from[0]); j++) {
			struct kind k = { .wrap = "" };
			struct duo d;

			if (i == 3 && j < 2)
				continue; /* which of the two localhost is, the machine decides */
			snprintf(k.listen, sizeof(k.listen), "%s", uris[i]);
			duo_listen(&d, &k, (struct tp_params){ .lanes = 2 });
			snprintf(d.uri, sizeof(d.uri), "%s%s", from[j], strrchr(tp_listener_address(d.l), ':'));
			duo_join(&d);
			duo_close(&d);
		}
	}
}

Test(tcp, a_port_can_be_used_again_at_once, .timeout = 60)
{
	struct tp_params p = { .lanes = 2 };
	struct tp_listener *other;
	char address[64], octets[64];
	struct raw r;

	raw_open(&r);
	cr_assert_eq(tp_listen(&other, tp_listener_address(r.d.l), &p, &r.d.err), -EADDRINUSE);
	snprintf(address, sizeof(address), "%s", tp_listener_address(r.d.l));
	/* the side that closes first keeps the port in TIME-WAIT, if the other one ends quietly */
	tp_close(r.d.b);
	r.d.b = NULL;
	tp_listener_close(r.d.l);
	for (int i = 0; i < 2; i++) {
		while (recv(r.fd[i], octets, sizeof(octets), 0) > 0)
			;
		shutdown(r.fd[i], SHUT_WR);
	}
	usleep(20000);
	cr_assert_eq(tp_listen(&r.d.l, address, &p, &r.d.err), 0, "%s", r.d.err.msg);
	raw_close(&r);
}

/* Octets that the closing side has not read must not turn its end into a reset, which would take along what is still in its send buffer. */
Test(tcp, what_was_sent_survives_a_close_with_unread_octets, .timeout = 60)
{
	struct iovec v = { big, 500000 };
	struct duo d;

	duo_open(&d, &v4);
	cr_assert_eq(send_text(d.b, 1, "unread", soon(), &d.err), 0);
	usleep(20000);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, &v, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 1, "behind 500,000 octets", soon(), &d.err), 0, "%s", d.err.msg);
	tp_close(d.a);
	d.a = NULL;
	usleep(20000);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "behind 500,000 octets");
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA, "%s", d.err.msg);
	duo_close(&d);
}

/* A sender that waits for a credit reads its lane, but windows change in tp_recv() only. */
Test(tcp, a_wait_for_a_credit_writes_into_no_window, .timeout = 60)
{
	struct write_frame w = good_write();
	struct tcp_frame f = frame(FRAME_MESSAGE, 0, 0, 1), c = frame(FRAME_CREDIT, 0, 0, 2);
	struct raw r;

	raw_open(&r);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(send_text(r.d.b, 1, "x", soon(), &r.d.err), 0);
	raw_send(r.fd[1], &c, sizeof(c));
	cr_assert_eq(send_text(r.d.b, 1, "x", soon(), &r.d.err), 0, "a credit is found: %s", r.d.err.msg);
	cr_assert_eq(send_text(r.d.b, 1, "x", soon(), &r.d.err), 0, "two: %s", r.d.err.msg);
	raw_send(r.fd[1], &w, sizeof(w));
	raw_send(r.fd[1], &f, sizeof(f));
	cr_assert_eq(send_text(r.d.b, 1, "x", deadline_in_ms(100), &r.d.err), -ETIMEDOUT);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(r.d.window[i], 0);
	cr_assert_eq(recv_text(r.d.b, soon(), &r.d.err), 0, "%s", r.d.err.msg);
	cr_assert_arr_eq(r.d.window, "ead", 3);
	cr_assert_arr_eq(r.d.window + 95, "lasth", 5);
	raw_close(&r);
}

/* -- fault: each key does what it says -- */

static void fault_open(struct duo *d, const char *wrap)
{
	struct kind k = { .listen = "127.0.0.1:0" };

	duo_listen(d, &k, (struct tp_params){ .lanes = LANES });
	snprintf(d->uri, sizeof(d->uri), "fault(%s)/%s", wrap, tp_listener_address(d->l));
	duo_join(d);
	d->window = calloc(1, WINDOW_BYTES);
	cr_assert_eq(tp_window_open(d->b, 0, d->window, WINDOW_BYTES, &d->err), 0);
	cr_assert_str_eq(tp_name(d->a), "fault/tcp");
}

static int put(struct duo *d, uint64_t at, const char *text)
{
	return tp_write(d->a, 1, 0, at, &(struct iovec){ (void *)text, strlen(text) }, 1, NULL, soon(), &d->err);
}

Test(fault, cut_in_the_middle_of_a_write, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "cut=13");
	cr_assert_eq(put(&d, 0, "12345"), 0);
	cr_assert_eq(send_text(d.a, 1, "abc", soon(), &d.err), 0);
	cr_assert_eq(put(&d, 5, "67890xyz"), -ECONNRESET, "%s", d.err.msg);
	cr_assert_eq(send_text(d.a, 1, "abc", soon(), &d.err), -ECONNRESET);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert(strstr(d.err.msg, "cut after 13 octets"), "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert_arr_eq(d.window, "1234567890\0\0\0", 13);
	duo_close(&d);
}

Test(fault, cut_before_a_message, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "cutmsg=3");
	cr_assert_eq(send_text(d.a, 0, "1", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 1, "2", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 2, "3", soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ECONNRESET);
	duo_close(&d);
}

Test(fault, oneway_swallows_what_is_sent, .timeout = 60)
{
	uint64_t ticket;
	struct duo d;

	fault_open(&d, "oneway=1");
	cr_assert_eq(put(&d, 0, "kept"), 0);
	cr_assert_eq(send_text(d.a, 0, "heard", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	for (int i = 0; i < 50; i++)
		cr_assert_eq(send_text(d.a, 0, "unheard", soon(), &d.err), 0, "takes no credit: %s", d.err.msg);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, &(struct iovec){ "lost", 4 }, 1, &ticket, soon(), &d.err), 0);
	cr_assert_eq(ticket, 2);
	cr_assert_eq(tp_wait_completed(d.a, 1, ticket, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(tp_completed(d.a, 1), 2);
	cr_assert_eq(recv_text(d.b, deadline_in_ms(100), &d.err), -ETIMEDOUT);
	cr_assert_arr_eq(d.window, "kept", 4);
	cr_assert_eq(send_text(d.b, 0, "other way", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), 0);
	cr_assert_str_eq(buf, "other way");
	duo_close(&d);
}

Test(fault, stall_holds_both_directions, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "stall=1:400");
	cr_assert_eq(send_text(d.a, 0, "last", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.b, 0, "held", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 0, "late", deadline_in_ms(50), &d.err), -ETIMEDOUT);
	cr_assert_eq(recv_text(d.a, deadline_in_ms(50), &d.err), -ETIMEDOUT);
	cr_assert_eq(send_text(d.a, 0, "late", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(buf, "held");
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_str_eq(buf, "late");
	duo_close(&d);
	fault_open(&d, "stall=0:0");
	cr_assert_eq(send_text(d.a, 0, "never", deadline_in_ms(100), &d.err), -ETIMEDOUT);
	cr_assert_eq(recv_text(d.b, deadline_in_ms(100), &d.err), -ETIMEDOUT);
	duo_close(&d);
}

Test(fault, dup_and_corrupt, .timeout = 60)
{
	unsigned differ = 0;
	struct duo d;

	fault_open(&d, "dup=100,corrupt=2,seed=5");
	cr_assert_eq(put(&d, 0, "aaaaaaaa"), 0);
	cr_assert_eq(put(&d, 8, "aaaaaaaa"), 0);
	cr_assert_eq(put(&d, 16, "aaaaaaaa"), 0);
	cr_assert_eq(send_text(d.a, 1, "twice", soon(), &d.err), 0);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert_str_eq(buf, "twice");
	}
	for (int i = 0; i < 24; i++) {
		differ += (unsigned)__builtin_popcount(d.window[i] ^ 'a');
		cr_assert(d.window[i] == 'a' || (i >= 8 && i < 16));
	}
	cr_assert_eq(differ, 1);
	duo_close(&d);
}

Test(fault, slow_and_delay_take_their_time, .timeout = 60)
{
	uint64_t before;
	struct duo d;

	fault_open(&d, "slow=100000,delay=1");
	before = now_ns();
	for (int i = 0; i < 6; i++)
		cr_assert_eq(tp_write(d.a, 1, 0, 0, &(struct iovec){ big, 10000 }, 1, NULL, soon(), &d.err), 0);
	cr_assert(now_ns() - before >= 500 * NS_PER_MS, "60,000 octets at 100,000 a second");
	duo_close(&d);
}

/* The same messages on two lanes: with reorder one lane overtakes the other, though never itself. */
Test(fault, reorder_lets_lanes_overtake, .timeout = 60)
{
	unsigned next[LANES] = { 0 }, overtaken = 0;
	struct duo d;

	fault_open(&d, "reorder=1,seed=3");
	for (unsigned i = 0; i < 100; i++) {
		for (uint32_t lane = 1; lane < LANES; lane++)
			cr_assert_eq(tp_send(d.a, lane, &(struct iovec){ &i, sizeof(i) }, 1, soon(), &d.err), 0, "%s",
				     d.err.msg);
		/* one round behind, no more: this thread is sender and receiver, and a lane that is far behind would use up its credits */
		for (uint32_t got = 0; i >= 1 && got < LANES - 1; got++) {
			uint32_t lane;
			unsigned number;
			size_t len;

			cr_assert_eq(tp_recv(d.b, buf, sizeof(buf), &lane, &len, soon(), &d.err), 0);
			memcpy(&number, buf, sizeof(number));
			cr_assert_eq(number, next[lane], "lane %u", lane);
			next[lane]++;
			overtaken += next[1] != next[2] && next[1] != next[2] + 1;
		}
	}
	cr_assert(overtaken > 0);
	duo_close(&d);
}

Test(fault, specifications_that_make_no_sense_are_refused, .timeout = 60)
{
	static const char *const bad[] = { "fault(",
					   "fault(x",
					   "fault(seed)/loopback:x",
					   "fault(seed=)/loopback:x",
					   "fault(seed=1/loopback:x",
					   "fault(seed=1)loopback:x",
					   "fault(nothing=1)/loopback:x",
					   "fault(stall=3)/loopback:x",
					   "fault(seed=-1)/loopback:x",
					   "fault(averyveryverylongkey=1)/loopback:x" };
	struct tp_params p = { .lanes = 2 };
	struct tp_listener *l;
	struct ft_error err;
	struct tp_conn *c;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(tp_connect(&c, bad[i], &p, soon(), -1, &err), -EINVAL, "%s: %s", bad[i], err.msg);
		cr_assert_eq(tp_listen(&l, bad[i], &p, &err), -EINVAL, "%s: %s", bad[i], err.msg);
	}
	cr_assert_eq(tp_connect(&c, "fault()/loopback:nobody", &p, soon(), -1, &err), -ECONNREFUSED);
}
