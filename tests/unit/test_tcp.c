/* SPDX-License-Identifier: MIT */
/* test_tcp.c - what is special to the transport tcp: docs/protocol-tcp.md with the other side played by hand, octet by octet, the right way
 * and each wrong one; addresses; what a socket's end does to what was sent.  The contract of transport.h over tcp is in test_transport.c. */
#include <criterion/criterion.h>

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "duo.h"
#include "tcp.h"

/* -- tcp: the other side played by hand -- */

static struct kind v4 = { "", "127.0.0.1:0", NO_RDMA, TP_TLS_OFF };

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
	duo_open_window(&r->d, 100);
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
	struct iovec v = { duo_octets, sizeof(duo_octets) };
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
	cr_assert_str_eq(duo_buf, "ok");
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
	struct iovec v = { duo_octets, 500000 };
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
	cr_assert_str_eq(duo_buf, "behind 500,000 octets");
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
