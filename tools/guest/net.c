/* SPDX-License-Identifier: MIT */
/* net.c - the guest's service on the network, for tests that talk to it across a failover: TCP port 7777, lines of text.
 *   add N      adds to the total, which lives in this program's memory; the answer is "total N COUNT": the new total, and how many additions
 *              there were
 *   get        the same answer, nothing is added
 *   pour N     N octets that follow from their position (see pour()), for a long download
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
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7777, CLIENTS = 32, LINE = 256, CHUNK = 16384 };

struct client {
	int fd; /* -1: free */
	char line[LINE];
	size_t have;
	uint64_t pour_at, pour_left;
};

static struct client client[CLIENTS];
static uint64_t total, count;

static void hang_up(struct client *c)
{
	close(c->fd);
	*c = (struct client){ .fd = -1 };
}

/* An answer is short and the socket has room for it, or the client is not worth it. */
static void answer(struct client *c, const char *text)
{
	size_t len = strlen(text);

	if (send(c->fd, text, len, MSG_NOSIGNAL) != (ssize_t)len)
		hang_up(c);
}

static void obey(struct client *c, const char *line)
{
	unsigned long long n;
	char text[64];

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

static void listen_to(struct client *c)
{
	ssize_t n = recv(c->fd, c->line + c->have, sizeof(c->line) - 1 - c->have, MSG_DONTWAIT);
	char *end;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0 || c->have + (size_t)n == sizeof(c->line) - 1) {
		hang_up(c);
		return;
	}
	c->have += (size_t)n;
	c->line[c->have] = '\0';
	while (c->fd >= 0 && !c->pour_left && (end = strchr(c->line, '\n'))) {
		*end = '\0';
		obey(c, c->line);
		c->have -= (size_t)(end + 1 - c->line);
		memmove(c->line, end + 1, c->have + 1);
	}
}

/* Octet i is the lowest of i * 31 + (i >> 8) * 7. */
static void pour(struct client *c)
{
	static uint8_t buf[CHUNK];
	size_t len = c->pour_left < sizeof(buf) ? (size_t)c->pour_left : sizeof(buf);
	ssize_t n;

	for (size_t k = 0; k < len; k++) {
		uint64_t i = c->pour_at + k;

		buf[k] = (uint8_t)(i * 31 + (i >> 8) * 7);
	}
	n = send(c->fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		hang_up(c);
		return;
	}
	c->pour_at += (uint64_t)n;
	c->pour_left -= (uint64_t)n;
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

int main(void)
{
	int listener = listen_on(PORT);

	signal(SIGPIPE, SIG_IGN);
	for (unsigned i = 0; i < CLIENTS; i++)
		client[i].fd = -1;
	for (;;) {
		struct pollfd p[CLIENTS + 1] = { { .fd = listener, .events = POLLIN } };

		for (unsigned i = 0; i < CLIENTS; i++)
			p[i + 1] =
				(struct pollfd){ .fd = client[i].fd, .events = client[i].pour_left ? POLLOUT : POLLIN };
		if (poll(p, CLIENTS + 1, -1) < 0)
			continue;
		if (p[0].revents)
			greet(listener);
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (client[i].fd < 0 || client[i].fd != p[i + 1].fd || !p[i + 1].revents)
				continue;
			if (client[i].pour_left)
				pour(&client[i]);
			else
				listen_to(&client[i]);
		}
	}
}
