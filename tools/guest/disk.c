/* SPDX-License-Identifier: MIT */
/* disk.c - the guest's writer to a disk, for tests that ask whether what was acknowledged is on it: TCP port 7779, lines of text.
 *   put N     appends record N to the file, and answers "done N" when fsync() says that the disk has it
 *   check     reads all records back, from the disk and not from memory, and answers "highest N records COUNT whole", or
 *             "bad record COUNT at OFFSET", for the first that is not
 * A record is its number, its length, a checksum, and content; length and content follow from the number.
 * A guest that was switched off may leave a part of a record that nobody was told of: it is cut off at the start, as a data base does with
 * its log.  (A failover is no such start: nothing is cut off there.)
 *	ft-disk FILE		one process for each connection; appending is one write(), so they do not mix */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7779, CONTENT_MAX = 16384 };

struct record {
	uint64_t n;
	uint32_t len, sum;
	uint8_t content[CONTENT_MAX];
};
#define HEAD offsetof(struct record, content)

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void record_make(struct record *r, uint64_t n)
{
	uint64_t w = mix(n), step = w | 1;
	uint32_t sum = 2166136261u;

	r->n = n;
	r->len = (uint32_t)(1 + w % CONTENT_MAX);
	for (uint32_t i = 0; i < r->len; i++, w += step) {
		r->content[i] = (uint8_t)(w >> 56);
		sum = (sum ^ r->content[i]) * 16777619u;
	}
	r->sum = sum;
}

/* Reads up to the first record that is not whole; true if there is none. */
static bool check(int file, uint64_t *highest, uint64_t *count, off_t *at)
{
	static struct record found, made;
	ssize_t n;

	*highest = *count = 0;
	for (*at = 0; (n = pread(file, &found, sizeof(found), *at)) > 0; *at += (off_t)(HEAD + made.len)) {
		if ((size_t)n < HEAD)
			return false;
		record_make(&made, found.n);
		if ((size_t)n < HEAD + made.len || memcmp(&found, &made, HEAD + made.len))
			return false;
		*highest = found.n > *highest ? found.n : *highest;
		++*count;
	}
	return n == 0;
}

static void obey(int file, const char *line, FILE *out)
{
	static struct record r;
	unsigned long long n;
	uint64_t highest, count;
	off_t at;

	if (sscanf(line, "put %llu", &n) == 1) {
		record_make(&r, n);
		ssize_t len = (ssize_t)(HEAD + r.len);
		if (write(file, &r, (size_t)len) != len || fsync(file))
			fprintf(out, "failed %llu: %m\n", n);
		else
			fprintf(out, "done %llu\n", n);
	} else if (!strcmp(line, "check\n")) {
		posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
		if (check(file, &highest, &count, &at))
			fprintf(out, "highest %llu records %llu whole\n", (unsigned long long)highest,
				(unsigned long long)count);
		else
			fprintf(out, "bad record %llu at %lld\n", (unsigned long long)count + 1, (long long)at);
	} else {
		fprintf(out, "what?\n");
	}
	fflush(out);
}

static void die(const char *what)
{
	fprintf(stderr, "ft-disk: %s: %m\n", what);
	exit(1);
}

static int open_file(const char *path)
{
	int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	uint64_t highest, count;
	off_t at;

	if (file < 0)
		die(path);
	if (!check(file, &highest, &count, &at) && (ftruncate(file, at) || fsync(file)))
		die("cutting off");
	/* the name of a new file must be on the disk, too */
	sync();
	return file;
}

int main(int argc, char **argv)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(PORT), .sin6_addr = IN6ADDR_ANY_INIT };
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (argc != 2) {
		fprintf(stderr, "usage: ft-disk FILE\n");
		return 2;
	}
	int file = open_file(argv[1]);

	signal(SIGCHLD, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 16))
		die("listen");
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0 && fork() == 0) {
			FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
			char line[64];

			while (in && out && fgets(line, sizeof(line), in))
				obey(file, line, out);
			_exit(0);
		}
		if (fd >= 0)
			close(fd);
	}
}
