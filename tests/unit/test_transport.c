/* SPDX-License-Identifier: MIT */
/* test_transport.c - the contract of transport.h over each transport: writes, messages, credits, windows.  Waits and the end of a connection are in
 * test_transport_end.c, what is special to one transport in test_tcp.c, test_fault.c and test_rdma.c.  Both ends are those of support/duo.h. */
#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "duo.h"

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

		cr_assert_eq(tp_recv(d.b, duo_buf, sizeof(duo_buf), &lane, &len, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert(lane < LANES && len == sizeof(h));
		memcpy(&h, duo_buf, sizeof(h));
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
		cr_assert_eq(tp_recv(d.b, duo_buf, sizeof(duo_buf), &lane, &len, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert(lane == 1 && len == sizes[i], "%zu for %zu", len, sizes[i]);
		cr_assert_arr_eq(duo_buf, out, len);
	}
	cr_assert_eq(tp_send(d.a, 1, &(struct iovec){ out, sizeof(out) }, 1, soon(), &d.err), -EMSGSIZE);
	cr_assert_eq(tp_send(d.a, LANES, &(struct iovec){ out, 1 }, 1, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, NULL, 0, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, TP_WINDOWS_MAX, 0, &(struct iovec){ out, 1 }, 1, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_write(d.a, 1, 0, UINT64_MAX, &(struct iovec){ out, 1 }, 1, NULL, soon(), &d.err), -EINVAL);
	cr_assert_eq(tp_wait_completed(d.a, 1, 1000, soon(), &d.err), -EINVAL);
	cr_assert_eq(send_text(d.a, 0, "still fine", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_str_eq(duo_buf, "still fine");
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
	cr_assert_str_eq(duo_buf, "back");
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
	cr_assert_eq(tp_write(d.a, 1, 0, WINDOW_BYTES, &(struct iovec){ duo_octets, 1 }, 1, NULL, soon(), &d.err), 0);
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
