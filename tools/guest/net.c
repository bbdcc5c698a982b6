/* SPDX-License-Identifier: MIT */
/* net.c - the guest's service on the network, for tests that talk to it across a failover: TCP port 7777, lines of text.
 *   add N      adds to the total, which lives in this program's memory; the answer is "total N COUNT": the new total, and how many additions
 *              there were
 *   get        the same answer, nothing is added
 *   pour N     N octets that follow from their position (see pattern()), for a long download
 *   sink N     the next N octets are taken and thrown away; then the answer is "took N", for a long upload
 *   tick PORT HZ [SIZE]   no answer, but from now on HZ times a second a UDP datagram "tick N RANDOM NS" to that port of the client, filled with
 *              spaces to SIZE octets: N counts up in this program's memory, in a page of its own (see tick_page); RANDOM comes from the kernel,
 *              and NS is the clock, for each tick anew.  A guest that was rolled back to before a tick that somebody saw cannot say the same
 *              again.  (RANDOM alone might be the same: the kernel's generator is in the checkpoint, too.)  0 times: no more.
 * "ft-net pattern N" writes what "pour N" sends to its output, and serves nothing.
 * Many connections; one thread.  Settings come from the kernel's command line by init, which has put the card up. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7777, CLIENTS = 32, LINE = 256, CHUNK = 16384, DATAGRAM = 1472, PAGE = 4096 };

struct client {
	int fd; /* -1: free */
	char line[LINE];
	size_t have;
	uint64_t pour_at, pour_left;
	uint64_t sink_all, sink_left;
};

static struct client client[CLIENTS];
static uint64_t total, count;
static struct {
	struct sockaddr_in6 to;
	int timer, socket;
	size_t size;
} ticker;

/* Who looks at the guest's memory from outside knows the page by its first two words, and which tick it has come to: a number is here before its
 * datagram is sent.  The words are put in at the start, one by one, so that nothing else looks like it. */
static volatile _Alignas(PAGE) struct {
	uint64_t magic[2];
	uint64_t n;
	uint8_t rest[PAGE - 24];
} tick_page;
#define TICK_MAGIC 0x66742d7469636b73ull

static void hang_up(struct client *c)
{
	close(c->fd);
	*c = (struct client){ .fd = -1 };
}

/* An answer is short and the socket has room for it, or the client is not worth it. */
static void answer(struct client *c, const char *text)
{
	size_t len = strlen(text);

	if (send(c->fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len)
		hang_up(c);
}

static void tick_for(const struct client *c, unsigned port, unsigned hz, unsigned size)
{
	struct timespec each = { .tv_sec = hz == 1, .tv_nsec = hz > 1 ? 1000000000 / hz : 0 };
	socklen_t len = sizeof(ticker.to);

	if (getpeername(c->fd, (struct sockaddr *)&ticker.to, &len))
		return;
	ticker.to.sin6_port = htons((uint16_t)port);
	ticker.size = size < DATAGRAM ? size : DATAGRAM;
	timerfd_settime(ticker.timer, 0, &(struct itimerspec){ .it_interval = each, .it_value = each }, NULL);
}

static void tick(void)
{
	uint64_t late, random;
	struct timespec t;
	char text[DATAGRAM + 1];

	if (read(ticker.timer, &late, sizeof(late)) < 0 || getrandom(&random, sizeof(random), 0) != sizeof(random))
		return;
	clock_gettime(CLOCK_MONOTONIC, &t);
	tick_page.n++;
	size_t len =
		(size_t)snprintf(text, sizeof(text), "tick %llu %016llx %lld%09ld\n", (unsigned long long)tick_page.n,
				 (unsigned long long)random, (long long)t.tv_sec, t.tv_nsec);
	if (len < ticker.size) {
		memset(text + len, ' ', ticker.size - len);
		len = ticker.size;
	}
	/* one that finds no room is lost, as in any network */
	(void)sendto(ticker.socket, text, len, MSG_DONTWAIT, (struct sockaddr *)&ticker.to, sizeof(ticker.to));
}

static void took(struct client *c, size_t len)
{
	char text[64];

	c->sink_left -= len;
	if (c->sink_left)
		return;
	snprintf(text, sizeof(text), "took %llu\n", (unsigned long long)c->sink_all);
	answer(c, text);
}

/* What came with the line is the first of it. */
static void sink_for(struct client *c, uint64_t n)
{
	size_t len = c->have < n ? c->have : (size_t)n;

	c->sink_all = c->sink_left = n;
	c->have -= len;
	memmove(c->line, c->line + len, c->have + 1);
	took(c, len);
}

static void obey(struct client *c, const char *line)
{
	unsigned long long n;
	unsigned port, hz, size = 0;
	char text[64];

	if (sscanf(line, "tick %u %u %u", &port, &hz, &size) >= 2) {
		tick_for(c, port, hz, size);
		return;
	}
	if (sscanf(line, "sink %llu", &n) == 1) {
		sink_for(c, n);
		return;
	}
	if (sscanf(line, "pour %llu", &n) == 1) {
		c->pour_at = 0;
		c->pour_left = n;
		return;
	}
	if (sscanf(line, "add %llu", &n) == 1) {
		total += n;
		count++;
	} else if (strcmp(line, "get")) {
		answer(c, "what?\n");
		return;
	}
	snprintf(text, sizeof(text), "total %llu %llu\n", (unsigned long long)total, (unsigned long long)count);
	answer(c, text);
}

/* Each line is taken out of the client before it is obeyed: that may hang up, and then nothing of the client is left. */
static void obey_lines(struct client *c)
{
	char line[LINE], *end;

	while (!c->pour_left && !c->sink_left && (end = strchr(c->line, '\n'))) {
		size_t len = (size_t)(end - c->line);

		memcpy(line, c->line, len);
		line[len] = '\0';
		c->have -= len + 1;
		memmove(c->line, end + 1, c->have + 1);
		obey(c, line);
	}
}

static void listen_to(struct client *c)
{
	ssize_t n = recv(c->fd, c->line + c->have, sizeof(c->line) - 1 - c->have, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		hang_up(c);
		return;
	}
	c->have += (size_t)n;
	c->line[c->have] = '\0';
	obey_lines(c);
	if (c->have == sizeof(c->line) - 1) /* a line that has no end */
		hang_up(c);
}

static void sink(struct client *c)
{
	static uint8_t buf[CHUNK];
	ssize_t n = recv(c->fd, buf, c->sink_left < CHUNK ? (size_t)c->sink_left : CHUNK, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		hang_up(c);
		return;
	}
	took(c, (size_t)n);
}

/* Octet i is the lowest of i * 31 + (i >> 8) * 7. */
static size_t pattern(uint8_t buf[CHUNK], uint64_t at, uint64_t left)
{
	size_t len = left < CHUNK ? (size_t)left : CHUNK;

	for (size_t k = 0; k < len; k++) {
		uint64_t i = at + k;

		buf[k] = (uint8_t)(i * 31 + (i >> 8) * 7);
	}
	return len;
}

static void pour(struct client *c)
{
	static uint8_t buf[CHUNK];
	size_t len = pattern(buf, c->pour_at, c->pour_left);
	ssize_t n = send(c->fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		hang_up(c);
		return;
	}
	c->pour_at += (uint64_t)n;
	c->pour_left -= (uint64_t)n;
	obey_lines(c);
}

static int write_pattern(uint64_t len)
{
	static uint8_t buf[CHUNK];

	for (uint64_t at = 0; at < len; at += CHUNK)
		if (fwrite(buf, pattern(buf, at, len - at), 1, stdout) != 1)
			return 1;
	return fclose(stdout) != 0;
}

static void greet(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	for (unsigned i = 0; fd >= 0 && i < CLIENTS; i++) {
		if (client[i].fd < 0) {
			client[i].fd = fd;
			return;
		}
	}
	if (fd >= 0)
		close(fd);
}

static int listen_on(uint16_t port)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 16)) {
		perror("ft-net: listen");
		exit(1);
	}
	return fd;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "pattern"))
		return write_pattern(strtoull(argv[2], NULL, 10));

	int listener = listen_on(PORT);

	signal(SIGPIPE, SIG_IGN);
	ticker.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	ticker.socket = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	tick_page.magic[0] = TICK_MAGIC;
	tick_page.magic[1] = ~TICK_MAGIC;
	for (unsigned i = 0; i < CLIENTS; i++)
		client[i].fd = -1;
	for (;;) {
		struct pollfd p[CLIENTS + 2] = { { .fd = listener, .events = POLLIN },
						 { .fd = ticker.timer, .events = POLLIN } };

		for (unsigned i = 0; i < CLIENTS; i++)
			p[i + 2] =
				(struct pollfd){ .fd = client[i].fd, .events = client[i].pour_left ? POLLOUT : POLLIN };
		if (poll(p, CLIENTS + 2, -1) < 0)
			continue;
		if (p[1].revents)
			tick();
		/* first those that were polled: one who comes may get the place of one who left */
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (!p[i + 2].revents)
				continue;
			if (client[i].pour_left)
				pour(&client[i]);
			else if (client[i].sink_left)
				sink(&client[i]);
			else
				listen_to(&client[i]);
		}
		if (p[0].revents)
			greet(listener);
	}
}
