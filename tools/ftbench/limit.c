/* SPDX-License-Identifier: MIT */
/* limit.c - the physical limits beside which the figures stand: a plain copy of scattered pages, and a plain TCP connection.
 * They run in the processes that the point is measured in, before its sessions begin. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"

#define ROUNDS 9u
#define PIECE (256u << 10)

/* Memory as the engine's staging: used before, huge pages if there are. */
static uint8_t *used_memory(uint64_t bytes)
{
	uint8_t *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return NULL;
	madvise(m, bytes, MADV_HUGEPAGE);
	memset(m, 1, bytes);
	return m;
}

double limit_memcpy_ns(const uint8_t *from, uint64_t set, uint64_t step, uint64_t pages)
{
	uint64_t every = set / pages ? set / pages : 1;
	uint8_t *to = used_memory(pages * FT_PAGE_SIZE);
	double ns[ROUNDS];

	if (!to)
		return NAN;
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t t = mono_ns();

		for (uint64_t p = 0; p < pages; p++)
			memcpy(to + p * FT_PAGE_SIZE, from + (p * every + i % every) % set * step * FT_PAGE_SIZE,
			       FT_PAGE_SIZE);
		ns[i] = (double)(mono_ns() - t);
	}
	munmap(to, pages * FT_PAGE_SIZE);
	return quantile(ns, ROUNDS, 0.5);
}

double limit_memcpy_of_ns(uint64_t set, uint64_t pages)
{
	uint8_t *from = used_memory(set * FT_PAGE_SIZE);
	double ns = from ? limit_memcpy_ns(from, set, 1, pages) : NAN;

	if (from)
		munmap(from, set * FT_PAGE_SIZE);
	return ns;
}

double limit_stream(uint64_t bytes)
{
	uint8_t *from = used_memory(bytes), *to = used_memory(bytes);
	double rate[ROUNDS] = { 0 };

	for (unsigned i = 0; from && to && i < ROUNDS; i++) {
		uint64_t t = mono_ns();

		memcpy(to, from, bytes);
		rate[i] = (double)bytes * 1e9 / (double)(mono_ns() - t + 1);
	}
	if (from)
		munmap(from, bytes);
	if (to)
		munmap(to, bytes);
	return quantile(rate, ROUNDS, 0.5);
}

/* ---- plain TCP: a length, that many octets, one octet back ---- */

int limit_tcp_listen(uint16_t *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1) ||
	    getsockname(fd, (struct sockaddr *)&a, &len)) {
		int r = -errno;

		if (fd >= 0)
			close(fd);
		return r;
	}
	*port = ntohs(a.sin_port);
	return fd;
}

static bool receive_all(int fd, uint8_t *to, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = recv(fd, to + at, bytes - at, 0);

		if (n <= 0)
			return false;
		at += (uint64_t)n;
	}
	return true;
}

static bool send_all(int fd, const uint8_t *from, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = send(fd, from + at, bytes - at < PIECE ? bytes - at : PIECE, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		at += (uint64_t)n;
	}
	return true;
}

static void no_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

int limit_tcp_serve(int listener)
{
	int fd = accept(listener, NULL, NULL);
	uint64_t bytes = 0, have = 0;
	uint8_t *to = NULL;

	if (fd < 0)
		return -errno;
	no_delay(fd);
	while (receive_all(fd, (uint8_t *)&bytes, sizeof(bytes))) {
		if (bytes > have) {
			if (to)
				munmap(to, have);
			to = used_memory(have = bytes);
		}
		if (!to || !receive_all(fd, to, bytes) || !send_all(fd, to, 1))
			break;
	}
	if (to)
		munmap(to, have);
	close(fd);
	return 0;
}

static double one_round(int fd, const uint8_t *from, uint64_t bytes)
{
	uint64_t t = mono_ns();
	uint8_t back;

	if (!send_all(fd, (const uint8_t *)&bytes, sizeof(bytes)) || !send_all(fd, from, bytes) ||
	    !receive_all(fd, &back, 1))
		return NAN;
	return (double)(mono_ns() - t);
}

int limit_tcp(uint16_t port, uint64_t bytes, double *bytes_per_s, double *rtt_ns)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ret = 0;
	uint8_t *from = used_memory(bytes);
	double big[ROUNDS], small[ROUNDS * 11];

	*bytes_per_s = *rtt_ns = NAN;
	if (fd < 0 || !from || connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		ret = from ? -errno : -ENOMEM;
		goto out;
	}
	no_delay(fd);
	one_round(fd, from, bytes); /* the window opens, memory is touched */
	for (unsigned i = 0; i < ROUNDS; i++)
		big[i] = one_round(fd, from, bytes);
	for (unsigned i = 0; i < ROUNDS * 11; i++)
		small[i] = one_round(fd, from, 56);
	*rtt_ns = quantile(small, ROUNDS * 11, 0.5);
	*bytes_per_s = (double)bytes * 1e9 / fmax(quantile(big, ROUNDS, 0.5) - *rtt_ns, 1);
out:
	if (from)
		munmap(from, bytes);
	if (fd >= 0)
		close(fd);
	return ret;
}

int limit_tcp_alone(uint64_t bytes, double *bytes_per_s, double *rtt_ns)
{
	uint16_t port = 0;
	int listener = limit_tcp_listen(&port), ret;
	pid_t pid;

	if (listener < 0)
		return listener;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		limit_tcp_serve(listener);
		_exit(0);
	}
	close(listener);
	ret = pid < 0 ? -EAGAIN : limit_tcp(port, bytes, bytes_per_s, rtt_ns);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return ret;
}
