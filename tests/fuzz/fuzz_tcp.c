/* SPDX-License-Identifier: MIT */
/* fuzz_tcp.c - what a peer may send to the tcp transport: preambles to a listener, frames to a connection.
 * Input: one octet, even for frames, odd for preambles; then pieces: two octets, big-endian, of which the first bit chooses the socket (0, 1)
 * and the others say how many octets follow for it.  Frames go over socket pairs to a connection of two lanes that has one window of 4,096
 * octets; memory around it is watched.  Preambles go over TCP to a listener that waits for nobody.
 * Must hold: no crash, nothing outside of the window is written, and receiving comes to an end when the octets have. */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "tcp.h"

#define WINDOW 4096u
#define GUARD 4096u
#define PIECE_MAX 32767u
#define TOTAL_MAX 60000u /* fits into a socket's buffer, so that nobody waits */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
	if (!holds)
		abort();
}

static void feed(const uint8_t *p, size_t left, const int *fd)
{
	size_t total = 0;

	while (left > 2 && total < TOTAL_MAX) {
		unsigned which = p[0] >> 7;
		size_t n = (size_t)((p[0] & 0x7f) << 8 | p[1]);

		p += 2;
		left -= 2;
		n = n < left ? n : left;
		if (send(fd[which], p, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			return; /* the other side has had enough */
		p += n;
		left -= n;
		total += n;
	}
}

static void frames(const uint8_t *data, size_t size)
{
	static uint8_t memory[GUARD + WINDOW + GUARD], zero[GUARD];
	static uint8_t message[TP_MESSAGE_MAX];
	struct tcp_limits limits = { .lanes = 2, .credits_ours = 4, .credits_peers = 4 };
	int pair[2][2], theirs[2], ours[2], r;
	struct tp_conn *c;
	uint32_t lane;
	size_t len;

	for (int i = 0; i < 2; i++) {
		check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair[i]) == 0);
		ours[i] = pair[i][0];
		theirs[i] = pair[i][1];
	}
	check(tcp_conn_create(&c, ours, NULL, &limits, "fuzz", NULL) == 0);
	check(tp_window_open(c, 0, memory + GUARD, WINDOW, NULL) == 0);
	feed(data, size, theirs);
	shutdown(theirs[0], SHUT_WR);
	shutdown(theirs[1], SHUT_WR);
	do {
		r = tp_recv(c, message, sizeof(message), &lane, &len, deadline_in_ms(20000), NULL);
		check(r != 0 || (lane < 2 && len <= sizeof(message)));
		check(r != -ETIMEDOUT);
	} while (r == 0);
	tp_close(c);
	check(memcmp(memory, zero, GUARD) == 0 && memcmp(memory + GUARD + WINDOW, zero, GUARD) == 0);
	close(theirs[0]);
	close(theirs[1]);
}

static int dial(const struct tp_listener *l, uint32_t host)
{
	struct linger at_once = { .l_onoff = 1 };
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)atoi(strrchr(tp_listener_address(l), ':') + 1)),
				  .sin_addr.s_addr = htonl(host) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	check(fd >= 0);
	while (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0)
		check(errno == EINTR); /* the fuzzer's own clock ticks; called once more, connect() goes on waiting */
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)); /* leaves no TIME-WAIT behind */
	return fd;
}

static void preambles(const uint8_t *data, size_t size)
{
	/* closed connections keep their ports for a minute: each turn has an address of its own */
	static uint32_t turn;
	uint32_t host = 0x7f010000 | (turn++ & 0x7fff) << 1 | 1;
	struct tp_params p = { .lanes = 3 };
	char at[32];
	struct tp_listener *l;
	struct tp_conn *c;
	int fd[2];

	snprintf(at, sizeof(at), "127.1.%u.%u:0", host >> 8 & 0xff, host & 0xff);
	check(tp_listen(&l, at, &p, NULL) == 0);
	fd[0] = dial(l, host);
	fd[1] = dial(l, host);
	feed(data, size, fd);
	tp_accept(l, &c, now_ns(), -1, NULL);
	tp_close(c);
	close(fd[0]);
	close(fd[1]);
	tp_accept(l, &c, now_ns(), -1, NULL);
	tp_close(c);
	tp_listener_close(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 0 && data[0] % 2 == 0)
		frames(data + 1, size - 1);
	else if (size > 0)
		preambles(data + 1, size - 1);
	return 0;
}
