/* SPDX-License-Identifier: MIT */
/* test_recording.c - recorded streams: what is written is read again; a file that was cut, changed or is something
 * else gives a sentence and never an entry that was not written; a full disk ends the recording and nothing else. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <ft/ft.h>
#include "clock.h"
#include "link.h"
#include "recording.h"

#define HEAD 16u  /* of the file */
#define ENTRY 48u /* head of an entry */

static char path[64];
static int log_lines;
static char log_text[256];

static void count_log(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user;
	(void)level;
	cr_assert_str_eq(module, "recording");
	snprintf(log_text, sizeof(log_text), "%s", msg);
	log_lines++;
}

static void setup(void)
{
	int fd;

	strcpy(path, "/tmp/ft-recording-XXXXXX");
	fd = mkstemp(path);
	cr_assert_geq(fd, 0);
	close(fd);
	ft_log_set(count_log, NULL, FT_LOG_DEBUG);
}

static void teardown(void)
{
	unlink(path);
}

TestSuite(recording, .init = setup, .fini = teardown);

static uint8_t page[2][4096];

/* write_sample - five entries of every kind, with a payload that needs padding; their borders in the file into @border. */
static void write_sample(bool payload, uint64_t border[6])
{
	const uint64_t pages = payload ? sizeof(page) : 0;
	const uint64_t len[] = { ENTRY + 8, ENTRY + 24, ENTRY + pages, ENTRY + 16, ENTRY };
	struct iovec iov[] = { { page[0], 4096 }, { page[1], 4096 } };
	struct recording *r;
	struct ft_error err;

	memset(page[0], 0x11, 4096);
	memset(page[1], 0x22, 4096);
	cr_assert_eq(recording_create(&r, path, payload, &err), 0, "%s", err.msg);
	cr_assert_eq(recording_begin(r, "a\nb"), 1);
	recording_message(r, 1, RECORDING_SENT, 0, "012345678901234567890123", 24);
	recording_write(r, 1, RECORDING_SENT, 3, 0, 40960, iov, 2);
	recording_message(r, 77, RECORDING_RECEIVED, 8, "0123456789", 10);
	recording_end(r, 1, "");
	recording_close(r);
	border[0] = HEAD;
	for (int i = 0; i < 5; i++)
		border[i + 1] = border[i] + len[i];
}

static uint8_t *slurp(size_t *len)
{
	FILE *f = fopen(path, "rb");
	uint8_t *octets = malloc(100000);

	cr_assert_not_null(f);
	*len = fread(octets, 1, 100000, f);
	fclose(f);
	return octets;
}

static void spill(const uint8_t *octets, size_t len)
{
	FILE *f = fopen(path, "wb");

	cr_assert_not_null(f);
	cr_assert_eq(fwrite(octets, 1, len, f), len);
	fclose(f);
}

/* count_entries - how many can be read; *@end is the code of the end (0: orderly). */
static int count_entries(int *end, struct ft_error *err)
{
	struct recording_reader *reader;
	struct recording_entry e;
	int n = 0;

	*end = recording_open(&reader, path, err);
	if (*end)
		return -1;
	while ((*end = recording_next(reader, &e, err)) > 0)
		n++;
	recording_reader_close(reader);
	return n;
}

static void check_sample(bool payload)
{
	struct recording_reader *reader;
	struct recording_entry e;
	struct ft_error err;
	uint64_t border[6], last = 0;

	write_sample(payload, border);
	cr_assert_eq(recording_open(&reader, path, &err), 0, "%s", err.msg);
	cr_assert_eq(recording_has_payload(reader), payload);
	cr_assert_eq(recording_next(reader, &e, &err), 1);
	cr_assert(e.kind == RECORDING_OPEN && e.connection == 1 && e.direction == 0 && e.lane == 0 &&
		  e.payload_bytes == 3 && memcmp(e.payload, "a?b", 3) == 0);
	last = e.time_ns;
	cr_assert_eq(recording_next(reader, &e, &err), 1);
	cr_assert(e.kind == RECORDING_MESSAGE && e.direction == RECORDING_SENT && e.payload_bytes == 24 &&
		  e.payload[23] == '3');
	cr_assert(e.time_ns >= last && e.write_bytes == 0);
	cr_assert_eq(recording_offset(reader), border[2]);
	cr_assert_eq(recording_next(reader, &e, &err), 1);
	cr_assert(e.kind == RECORDING_WRITE && e.lane == 3 && e.window == 0 && e.offset == 40960 &&
		  e.write_bytes == 8192);
	cr_assert_eq(e.payload_bytes, payload ? 8192u : 0u);
	if (payload)
		cr_assert(memcmp(e.payload, page, sizeof(page)) == 0);
	cr_assert_eq(recording_next(reader, &e, &err), 1);
	cr_assert(e.direction == RECORDING_RECEIVED && e.lane == 8 && e.payload_bytes == 10 && e.connection == 77);
	cr_assert_eq(recording_next(reader, &e, &err), 1);
	cr_assert(e.kind == RECORDING_CLOSE && e.payload_bytes == 0);
	cr_assert_eq(recording_next(reader, &e, &err), 0);
	recording_reader_close(reader);
}

Test(recording, round_trip)
{
	struct stat st;

	check_sample(true);
	check_sample(false);
	unlink(path);
	check_sample(false);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0600);
}

Test(recording, null_is_no_recording)
{
	const struct iovec iov = { page, 1 };

	cr_assert_eq(recording_begin(NULL, "x"), 0);
	recording_message(NULL, 0, RECORDING_SENT, 0, "x", 1);
	recording_write(NULL, 0, RECORDING_SENT, 0, 0, 0, &iov, 1);
	recording_end(NULL, 0, "x");
	recording_close(NULL);
	recording_reader_close(NULL);
	cr_assert_eq(log_lines, 0);
}

Test(recording, cut_at_each_octet)
{
	uint64_t border[6];
	struct ft_error err;
	uint8_t *octets;
	size_t len;

	write_sample(false, border);
	octets = slurp(&len);
	cr_assert_eq(len, border[5]);
	for (size_t cut = 0; cut < len; cut++) {
		int whole = -1, end, n;

		for (int i = 0; i < 6 && border[i] <= cut; i++)
			whole = i;
		spill(octets, cut);
		n = count_entries(&end, &err);
		cr_assert_eq(n, whole, "cut at %zu: %d entries", cut, n);
		cr_assert_eq(end, whole >= 0 && border[whole] == cut ? 0 : -ENODATA, "cut at %zu: %d", cut, end);
	}
	free(octets);
}

/* Every bit of the file, one after the other: what stands before is read, and behind it nothing. */
Test(recording, flipped_bits)
{
	uint64_t border[6];
	struct ft_error err;
	uint8_t *octets;
	size_t len;

	write_sample(false, border);
	octets = slurp(&len);
	for (size_t bit = 0; bit < 8 * len; bit++) {
		int before = -1, end, n;

		for (int i = 0; i < 6 && border[i] <= bit / 8; i++)
			before = i;
		if (bit == 8 * 15 + 0)
			continue; /* the flag "with payload": a write then has another length, see below */
		octets[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		spill(octets, len);
		n = count_entries(&end, &err);
		octets[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		cr_assert_eq(n, before, "bit %zu: %d entries", bit, n);
		cr_assert(end == -EPROTO || end == -ENODATA, "bit %zu: %d", bit, end);
		cr_assert_gt(strlen(err.msg), strlen(path));
	}
	octets[15] ^= 1;
	spill(octets, len);
	{
		int end;

		cr_assert_eq(count_entries(&end, &err), 2);
		cr_assert_eq(end, -EPROTO);
	}
	free(octets);
}

Test(recording, not_a_recording)
{
	struct recording_reader *reader;
	struct ft_error err;

	cr_assert_eq(recording_open(&reader, "/nowhere/at/all", &err), -ENOENT);
	cr_assert_null(reader);
	spill((const uint8_t *)"#!/bin/sh\nexit 0\n", 17);
	cr_assert_eq(recording_open(&reader, path, &err), -EPROTO);
	cr_assert_not_null(strstr(err.msg, "not a recorded stream"));
	cr_assert_eq(recording_open(&reader, "/tmp", &err), -EISDIR, "%s", err.msg);
	cr_assert_null(reader);
}

Test(recording, cannot_be_created)
{
	struct recording *r;
	struct ft_error err;

	cr_assert_eq(recording_create(&r, "/nowhere/at/all", false, &err), -ENOENT);
	cr_assert_null(r);
	cr_assert_eq(recording_create(&r, "/dev/full", false, &err), -ENOSPC);
	cr_assert_null(r);
	cr_assert_not_null(strstr(err.msg, "/dev/full"));
}

/* The disk is full in the middle of an entry: one line in the log, whole entries in the file. */
Test(recording, full_disk)
{
	const struct rlimit limit = { 10000, 10000 };
	struct recording *r;
	struct ft_error err;
	struct stat st;
	int end, n;

	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(recording_create(&r, path, false, &err), 0);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (int i = 0; i < 200; i++)
		recording_message(r, 1, RECORDING_SENT, 0, page, 100);
	recording_end(r, 1, "end");
	recording_close(r);
	cr_assert_eq(log_lines, 1);
	cr_assert_not_null(strstr(log_text, path), "%s", log_text);
	n = count_entries(&end, &err);
	cr_assert_eq(end, 0, "%s", err.msg);
	cr_assert_eq(n, (10000 - HEAD) / (ENTRY + 104));
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, HEAD + n * (ENTRY + 104));
}

/* A pipe whose reader sleeps: the recording ends, the caller is not kept. */
Test(recording, slow_pipe, .timeout = 60)
{
	struct recording *r;
	struct ft_error err;
	int fd;

	unlink(path);
	cr_assert_eq(mkfifo(path, 0600), 0);
	cr_assert_eq(recording_create(&r, path, false, &err), -ENXIO); /* nobody reads */
	fd = open(path, O_RDONLY | O_NONBLOCK);
	cr_assert_eq(recording_create(&r, path, false, &err), 0, "%s", err.msg);
	for (int i = 0; i < 100; i++)
		recording_message(r, 1, RECORDING_SENT, 0, page, 4096);
	recording_close(r);
	cr_assert_eq(log_lines, 1);
	cr_assert_not_null(strstr(log_text, "piece of an entry"), "%s", log_text);
	close(fd);
}

#define THREADS 4
#define EACH 300

static void *write_many(void *arg)
{
	struct recording *r = arg;
	uint8_t msg[64] = { 0 };

	for (int i = 0; i < EACH; i++)
		recording_message(r, 1, RECORDING_SENT, 1, msg, 1 + (size_t)i % sizeof(msg));
	return NULL;
}

Test(recording, threads)
{
	pthread_t t[THREADS];
	struct recording *r;
	struct ft_error err;
	int end;

	cr_assert_eq(recording_create(&r, path, false, &err), 0);
	for (int i = 0; i < THREADS; i++)
		cr_assert_eq(pthread_create(&t[i], NULL, write_many, r), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	recording_close(r);
	cr_assert_eq(count_entries(&end, &err), THREADS * EACH);
	cr_assert_eq(end, 0, "%s", err.msg);
}

static void *connect_to(void *uri)
{
	struct tp_params params = { .lanes = 2 };
	struct tp_conn *c = NULL;

	cr_assert_eq(tp_connect(&c, uri, &params, deadline_in_ms(10000), -1, NULL), 0);
	return c;
}

/* Several threads may try to send when the peer has gone, and each gets the number that comes next. */
Test(recording, what_cannot_be_sent_stands_there_once, .timeout = 60)
{
	struct tp_params params = { .lanes = 2 };
	struct recording_entry e;
	struct recording_reader *rd;
	struct tp_listener *listener;
	struct tp_conn *peer;
	struct recording *r;
	struct ft_error err = { 0 };
	struct link *l;
	unsigned failed = 0, messages = 0;
	pthread_t t;
	void *conn;

	cr_assert_eq(recording_create(&r, path, false, &err), 0, "%s", err.msg);
	cr_assert_eq(tp_listen(&listener, "loopback:recording", &params, &err), 0, "%s", err.msg);
	cr_assert_eq(pthread_create(&t, NULL, connect_to, "loopback:recording"), 0);
	cr_assert_eq(tp_accept(listener, &peer, deadline_in_ms(10000), -1, &err), 0, "%s", err.msg);
	pthread_join(t, &conn);
	cr_assert_eq(link_create(&l, conn, r, &err), 0, "%s", err.msg);
	cr_assert_eq(link_send_mark(l, FTW_ACK, 1, deadline_in_ms(10000), &err), 0, "%s", err.msg);
	tp_close(peer);
	for (unsigned i = 0; failed < 3 && i < 100; i++)
		failed += link_send_mark(l, FTW_APPLIED, 1, deadline_in_ms(1000), &err) < 0;
	cr_assert_eq(failed, 3);
	link_destroy(l);
	tp_listener_close(listener);
	recording_close(r);

	cr_assert_eq(recording_open(&rd, path, &err), 0, "%s", err.msg);
	while (recording_next(rd, &e, &err) == 1)
		if (e.kind == RECORDING_MESSAGE) {
			struct ftw_record head;

			memcpy(&head, e.payload, sizeof(head));
			cr_expect_eq(from_be32(head.seq), ++messages, "number %u", from_be32(head.seq));
		}
	cr_expect_geq(messages, 2);
	recording_reader_close(rd);
}
