/* SPDX-License-Identifier: MIT */
/* bench_transport.c - what the tcp transport costs beside a plain TCP socket on the same loopback, in the same run.
 *
 * copy     64 MiB go from one memory to another: by tp_write() in runs of 4 KiB (pages in order, and in random order), 64 KiB or 4 MiB, and a
 *          message; beside
 *          send() and recv() of 256 KiB pieces in order, which is the best that a plain socket does.  Time ends when the other side has said
 *          that all is in place.  Ratio: throughput of ours to plain.
 *          One row has plain sockets send the same random pages, 64 in one call: what scattering costs anybody.
 * tls      the same runs with TLS on ours, each repetition beside one of ours without: what TLS costs.  Ratio: throughput with TLS to without.
 * message  round trips of 64 octets; ratio: time of plain to ours (1 is as fast).
 * Repetitions of both alternate; the ratio is taken pair by pair, and its median and quartiles are told. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "figures.h"
#include "tls_files.h"
#include "transport.h"

#define MEMORY (64u << 20)
#define PIECE (256u << 10)
#define PING 64u
#define REPS_MAX 64

static uint8_t *source, *target, message[TP_MESSAGE_MAX];
static uint32_t *order; /* of pages, random */
static bool scattered, plain_scattered;
static unsigned reps = 15, pings = 4000;

static void die(const char *what, const struct ft_error *err)
{
	fprintf(stderr, "bench_transport: %s: %s\n", what, err ? err->msg : strerror(errno));
	exit(1);
}

static uint8_t *map(size_t n)
{
	uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap", NULL);
	memset(p, 1, n);
	return p;
}

/* -- plain socket -- */

static int plain[2];

static void plain_open(void)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	plain[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&sa, len) || listen(l, 1) || getsockname(l, (struct sockaddr *)&sa, &len) ||
	    connect(plain[0], (struct sockaddr *)&sa, len))
		die("plain socket", NULL);
	plain[1] = accept(l, NULL, NULL);
	for (int i = 0; i < 2; i++)
		setsockopt(plain[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(l);
}

static void plain_send(int fd, const uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t r = send(fd, p, n, MSG_NOSIGNAL);

		if (r <= 0)
			die("send", NULL);
		p += r;
		n -= (size_t)r;
	}
}

static void plain_recv(int fd, uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t r = recv(fd, p, n < PIECE ? n : PIECE, 0);

		if (r <= 0)
			die("recv", NULL);
		p += r;
		n -= (size_t)r;
	}
}

/* The same pages in the same random order, 64 in one call: what scattering costs anybody. */
static void plain_pages(int fd, uint8_t *base, bool out)
{
	for (uint32_t first = 0; first < MEMORY / 4096; first += 64) {
		struct iovec v[64];
		struct msghdr m = { .msg_iov = v, .msg_iovlen = 64 };

		for (uint32_t i = 0; i < 64; i++)
			v[i] = (struct iovec){ base + (size_t)order[first + i] * 4096, 4096 };
		while (m.msg_iovlen > 0) {
			ssize_t n = out ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, 0);

			if (n <= 0)
				die("plain pages", NULL);
			for (; m.msg_iovlen > 0 && (size_t)n >= m.msg_iov->iov_len; m.msg_iov++, m.msg_iovlen--)
				n -= (ssize_t)m.msg_iov->iov_len;
			if (m.msg_iovlen > 0) {
				m.msg_iov->iov_base = (uint8_t *)m.msg_iov->iov_base + n;
				m.msg_iov->iov_len -= (size_t)n;
			}
		}
	}
}

static void *plain_receiver(void *arg)
{
	const unsigned *nr_pings = arg;
	uint8_t ping[PING];

	if (*nr_pings == 0) {
		if (plain_scattered)
			plain_pages(plain[1], target, false);
		else
			plain_recv(plain[1], target, MEMORY);
		plain_send(plain[1], ping, 1);
	}
	for (unsigned i = 0; i < *nr_pings; i++) {
		plain_recv(plain[1], ping, PING);
		plain_send(plain[1], ping, PING);
	}
	return NULL;
}

static double plain_run(unsigned nr_pings)
{
	uint64_t before = now_ns();
	uint8_t ping[PING] = { 0 };
	pthread_t t;

	pthread_create(&t, NULL, plain_receiver, &nr_pings);
	if (nr_pings == 0) {
		if (plain_scattered)
			plain_pages(plain[0], source, true);
		for (size_t at = 0; at < MEMORY && !plain_scattered; at += PIECE)
			plain_send(plain[0], source + at, PIECE);
		plain_recv(plain[0], ping, 1);
	}
	for (unsigned i = 0; i < nr_pings; i++) {
		plain_send(plain[0], ping, PING);
		plain_recv(plain[0], ping, PING);
	}
	pthread_join(t, NULL);
	return (double)(now_ns() - before);
}

/* -- ours -- */

static struct tp_conn *ours[2]; /* those that are measured */
static struct pair {
	struct tp_conn *conn[2];
	struct tp_listener *listener;
} without, with_tls;

static void *accept_thread(void *arg)
{
	struct pair *to = arg;
	struct ft_error err;

	if (tp_accept(to->listener, &to->conn[1], DEADLINE_NEVER, -1, &err))
		die("accept", &err);
	return NULL;
}

static void ours_open(struct pair *to, enum tp_tls tls, const char *dir)
{
	struct tp_params p = { .lanes = 2 };
	struct ft_error err;
	pthread_t t;

	tls_params(&p, tls, dir);
	if (tp_listen(&to->listener, "127.0.0.1:0", &p, &err))
		die("listen", &err);
	pthread_create(&t, NULL, accept_thread, to);
	if (tp_connect(&to->conn[0], tp_listener_address(to->listener), &p, DEADLINE_NEVER, -1, &err))
		die("connect", &err);
	pthread_join(t, NULL);
	if (tp_window_open(to->conn[1], 0, target, MEMORY, &err))
		die("window", &err);
}

static void ours_close(struct pair *p)
{
	tp_close(p->conn[0]);
	tp_close(p->conn[1]);
	tp_listener_close(p->listener);
}

static void ours_are(const struct pair *p)
{
	memcpy(ours, p->conn, sizeof(ours));
}

static void ours_send(struct tp_conn *c, size_t n)
{
	struct iovec v = { message, n };
	struct ft_error err;

	if (tp_send(c, 1, &v, 1, DEADLINE_NEVER, &err))
		die("send", &err);
}

static void ours_recv(struct tp_conn *c)
{
	static _Thread_local uint8_t in[TP_MESSAGE_MAX];
	struct ft_error err;
	uint32_t lane;
	size_t len;

	if (tp_recv(c, in, sizeof(in), &lane, &len, DEADLINE_NEVER, &err))
		die("recv", &err);
}

static void *ours_receiver(void *arg)
{
	const unsigned *nr_pings = arg;

	for (unsigned i = 0; i < (*nr_pings ? *nr_pings : 1); i++) {
		ours_recv(ours[1]);
		ours_send(ours[1], PING);
	}
	return NULL;
}

static void write_runs(size_t run)
{
	struct ft_error err;
	uint64_t ticket = 0;

	for (size_t i = 0; i < MEMORY / run; i++) {
		size_t at = scattered ? (size_t)order[i] * run : i * run;
		struct iovec v = { source + at, run };

		if (tp_write(ours[0], 1, 0, at, &v, 1, &ticket, DEADLINE_NEVER, &err))
			die("write", &err);
	}
	if (tp_wait_completed(ours[0], 1, ticket, DEADLINE_NEVER, &err))
		die("wait", &err);
}

static double ours_run(unsigned nr_pings, size_t run)
{
	uint64_t before = now_ns();
	pthread_t t;

	pthread_create(&t, NULL, ours_receiver, &nr_pings);
	if (nr_pings == 0)
		write_runs(run);
	for (unsigned i = 0; i < (nr_pings ? nr_pings : 1); i++) {
		ours_send(ours[0], PING);
		ours_recv(ours[0]);
	}
	pthread_join(t, NULL);
	return (double)(now_ns() - before);
}

/* -- figures -- */

struct row {
	const char *name, *unit;
	double plain, ours; /* medians */
	struct figure ratio;
};

static struct row measure(const char *name, unsigned nr_pings, size_t run)
{
	double p[REPS_MAX], o[REPS_MAX], q[REPS_MAX];

	plain_run(nr_pings);
	ours_run(nr_pings, run);
	if (nr_pings == 0 && memcmp(source, target, MEMORY) != 0)
		die(name, &(struct ft_error){ .msg = "what arrived is not what was sent" });
	for (unsigned i = 0; i < reps; i++) {
		double tp = plain_run(nr_pings), to = ours_run(nr_pings, run);

		q[i] = tp / to;
		/* GB/s, or microseconds a round trip */
		p[i] = nr_pings ? tp / nr_pings / 1e3 : MEMORY / tp;
		o[i] = nr_pings ? to / nr_pings / 1e3 : MEMORY / to;
	}
	return (struct row){ name, nr_pings ? "us" : "GB/s", figure_of(p, reps).median, figure_of(o, reps).median,
			     figure_of(q, reps) };
}

/* With TLS beside without, both ours. */
static struct row measure_tls(const char *name, unsigned nr_pings, size_t run)
{
	double p[REPS_MAX], o[REPS_MAX], q[REPS_MAX];

	memset(target, 0, MEMORY);
	ours_are(&with_tls);
	ours_run(nr_pings, run);
	if (nr_pings == 0 && memcmp(source, target, MEMORY) != 0)
		die(name, &(struct ft_error){ .msg = "what arrived is not what was sent" });
	for (unsigned i = 0; i < reps; i++) {
		double tp, to;

		ours_are(&without);
		tp = ours_run(nr_pings, run);
		ours_are(&with_tls);
		to = ours_run(nr_pings, run);
		q[i] = tp / to;
		p[i] = nr_pings ? tp / nr_pings / 1e3 : MEMORY / tp;
		o[i] = nr_pings ? to / nr_pings / 1e3 : MEMORY / to;
	}
	return (struct row){ name, nr_pings ? "us" : "GB/s", figure_of(p, reps).median, figure_of(o, reps).median,
			     figure_of(q, reps) };
}

static void print(const struct row *r, unsigned nr, bool json)
{
	if (json)
		printf("{\"bench\": \"transport\", \"repetitions\": %u, \"rows\": [", reps);
	else
		printf("%-27s %6s %8s %8s   %s\n", "tcp, one lane", "", "plain", "ours", "ratio (quartiles)");
	for (unsigned i = 0; i < nr; i++) {
		if (json)
			printf("%s\n  {\"name\": \"%s\", \"unit\": \"%s\", \"plain\": %.3f, \"ours\": %.3f, \"ratio\": "
			       "%.3f, \"ratio_q1\": %.3f, "
			       "\"ratio_q3\": %.3f}",
			       i ? "," : "", r[i].name, r[i].unit, r[i].plain, r[i].ours, r[i].ratio.median,
			       r[i].ratio.q1, r[i].ratio.q3);
		else
			printf("%-27s %6s %8.2f %8.2f   %.2f (%.2f to %.2f)\n", r[i].name, r[i].unit, r[i].plain,
			       r[i].ours, r[i].ratio.median, r[i].ratio.q1, r[i].ratio.q3);
	}
	if (json)
		printf("\n]}\n");
}

static void shuffle(void)
{
	uint32_t n = MEMORY / 4096;

	srandom(1);
	order = malloc(n * sizeof(*order));
	if (!order)
		die("malloc", NULL);
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)random() % (i + 1), swap = order[i];

		order[i] = order[j];
		order[j] = swap;
	}
}

int main(int argc, char **argv)
{
	bool json = false;
	struct row row[9];
	char folder[32];

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0) {
			json = true;
		} else if (strcmp(argv[i], "--quick") == 0) {
			reps = 3;
			pings = 500;
		} else {
			bool help = strcmp(argv[i], "--help") == 0;

			fprintf(help ? stdout : stderr,
				"usage: bench_transport [--quick] [--json] [--help]\n"
				"The tcp transport beside a plain TCP socket on loopback, in one run.\n");
			return help ? 0 : 2;
		}
	}
	source = map(MEMORY);
	target = map(MEMORY);
	for (size_t i = 0; i < MEMORY; i++)
		source[i] = (uint8_t)(i * 31 + (i >> 12));
	shuffle();
	plain_open();
	tls_good_folder(tls_folder(folder, sizeof(folder)));
	ours_open(&without, TP_TLS_OFF, folder);
	ours_open(&with_tls, TP_TLS_PSK, folder);
	tls_folder_remove(folder);
	ours_are(&without);
	scattered = true;
	row[0] = measure("4 KiB pages, scattered", 0, 4096);
	plain_scattered = true;
	row[1] = measure("same, plain scattered too", 0, 4096);
	scattered = plain_scattered = false;
	row[2] = measure("4 KiB pages, in order", 0, 4096);
	row[3] = measure("64 KiB runs", 0, 65536);
	row[4] = measure("4 MiB runs", 0, TP_WRITE_MAX);
	row[5] = measure("message round trip", pings, 0);
	scattered = true;
	row[6] = measure_tls("tls: 4 KiB pages, scattered", 0, 4096);
	scattered = false;
	row[7] = measure_tls("tls: 64 KiB runs", 0, 65536);
	row[8] = measure_tls("tls: message round trip", pings, 0);
	print(row, 9, json);
	ours_close(&without);
	ours_close(&with_tls);
	free(order);
	return 0;
}
