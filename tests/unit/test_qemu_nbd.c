/* SPDX-License-Identifier: MIT */
/* test_qemu_nbd.c - the NBD end of a disk's mirror: with libnbd as its client, and with a client that breaks the protocol. */
#include <criterion/criterion.h>

#include <endian.h>
#include <errno.h>
#include <libnbd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "nbd_server.h"

#define SIZE (UINT64_C(100) << 20)

static char dir[] = "/tmp/test-nbd-XXXXXX", path[64], why_gone[256];
static uint8_t image[1 << 20];
static atomic_uint writes, zeros, goodbyes;
static atomic_bool fails;
static struct nbd_server *server;
static struct ft_error err;

static int on_write(void *user, uint64_t offset, const void *buf, uint32_t len)
{
	(void)user;
	cr_assert(len && offset <= SIZE && len <= SIZE - offset);
	if (offset + len <= sizeof(image))
		memcpy(image + offset, buf, len);
	atomic_fetch_add(&writes, 1);
	return atomic_load(&fails) ? -EIO : 0;
}

static int on_zero(void *user, uint64_t offset, uint32_t len)
{
	(void)user;
	cr_assert(len && offset <= SIZE && len <= SIZE - offset);
	if (offset + len <= sizeof(image))
		memset(image + offset, 0, len);
	atomic_fetch_add(&zeros, 1);
	return 0;
}

static void on_gone(void *user, const char *why)
{
	(void)user;
	snprintf(why_gone, sizeof(why_gone), "%s", why);
	atomic_fetch_add(&goodbyes, 1);
}

static const struct nbd_export export = {
	.name = "disk", .size = SIZE, .write = on_write, .zero = on_zero, .gone = on_gone
};

static void setup(void)
{
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/nbd", dir);
	cr_assert_eq(nbd_server_open(&server, path, &export, &err), 0, "%s", err.msg);
}

static void teardown(void)
{
	nbd_server_close(server);
	cr_assert_neq(access(path, F_OK), 0);
	rmdir(dir);
}

TestSuite(nbd, .init = setup, .fini = teardown, .timeout = 60);

static struct nbd_handle *client(const char *name)
{
	struct nbd_handle *h = nbd_create();

	cr_assert_eq(nbd_set_export_name(h, name), 0);
	nbd_set_strict_mode(h, 0);
	return h;
}

static void until_gone(void)
{
	for (int i = 0; !atomic_load(&goodbyes) && i < 10000; i++)
		usleep(1000);
	cr_assert_eq(atomic_load(&goodbyes), 1);
}

Test(nbd, writes_zeros_trims_and_flushes)
{
	struct nbd_handle *h = client("disk");
	static uint8_t buf[3 << 16];

	memset(buf, 7, sizeof(buf));
	cr_assert_eq(nbd_connect_unix(h, path), 0, "%s", nbd_get_error());
	cr_assert_eq(nbd_get_size(h), SIZE);
	cr_assert(nbd_can_zero(h) == 1 && nbd_can_trim(h) == 1 && nbd_can_flush(h) == 1 && nbd_is_read_only(h) == 0);
	cr_assert_eq(nbd_get_block_size(h, LIBNBD_SIZE_MINIMUM), 1);
	cr_assert_eq(nbd_pwrite(h, buf, sizeof(buf), 1000, 0), 0);
	cr_assert_eq(nbd_zero(h, 100, 2000, 0), 0);
	cr_assert_eq(nbd_trim(h, 100, 4000, 0), 0);
	cr_assert_eq(nbd_flush(h, 0), 0);
	cr_assert_eq(nbd_pwrite(h, buf, 1, SIZE - 1, 0), 0, "the last octet");
	cr_assert(image[999] == 0 && image[1000] == 7 && image[2000] == 0 && image[2100] == 7 && image[4050] == 0 &&
		  image[1000 + sizeof(buf) - 1] == 7 && image[1000 + sizeof(buf)] == 0);
	atomic_store(&fails, true);
	cr_assert_eq(nbd_pwrite(h, buf, 512, 0, 0), -1, "the guest is told");
	nbd_shutdown(h, 0);
	nbd_close(h);
	until_gone();
}

Test(nbd, a_read_ends_it)
{
	struct nbd_handle *h = client("disk");
	char buf[512];

	cr_assert_eq(nbd_connect_unix(h, path), 0);
	cr_assert_eq(nbd_pread(h, buf, sizeof(buf), 0, 0), -1);
	nbd_close(h);
	until_gone();
	cr_assert(strstr(why_gone, "reads"), "%s", why_gone);
}

Test(nbd, nobody_comes_twice)
{
	struct nbd_handle *h = client("disk");

	cr_assert_eq(nbd_connect_unix(h, path), 0);
	nbd_close(h);
	until_gone();
	h = client("disk");
	cr_assert_eq(nbd_connect_unix(h, path), -1);
	nbd_close(h);
}

Test(nbd, another_name_is_refused)
{
	struct nbd_handle *h = client("other");

	cr_assert_eq(nbd_connect_unix(h, path), -1);
	nbd_close(h);
	cr_assert_eq(atomic_load(&writes), 0);
}

/* ---- raw ---------------------------------------------------------------------------------------- */

struct raw {
	int fd[2];
	pthread_t thread;
	int rc;
	struct ft_error why;
};

static void *serve(void *user)
{
	struct raw *r = user;

	r->rc = nbd_serve(r->fd[1], r->fd[1], &export, &r->why);
	close(r->fd[1]);
	return NULL;
}

static void raw_begin(struct raw *r)
{
	struct timeval patience = { .tv_sec = 10 };

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, r->fd), 0);
	setsockopt(r->fd[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	cr_assert_eq(pthread_create(&r->thread, NULL, serve, r), 0);
}

static void raw_end(struct raw *r)
{
	shutdown(r->fd[0], SHUT_WR);
	pthread_join(r->thread, NULL);
	close(r->fd[0]);
}

static void say(struct raw *r, const void *buf, size_t len)
{
	(void)!send(r->fd[0], buf, len, MSG_NOSIGNAL);
}

static void say_option(struct raw *r, uint32_t option, const void *data, uint32_t len)
{
	uint8_t head[16] = "IHAVEOPT";

	memcpy(head + 8, &(uint32_t){ htobe32(option) }, 4);
	memcpy(head + 12, &(uint32_t){ htobe32(len) }, 4);
	say(r, head, sizeof(head));
	say(r, data, len);
}

/* Type of the next reply to an option; its data are thrown away. */
static uint32_t heard(struct raw *r)
{
	uint8_t head[20], data[512];
	uint32_t type, len;

	cr_assert_eq(recv(r->fd[0], head, sizeof(head), MSG_WAITALL), (ssize_t)sizeof(head));
	memcpy(&type, head + 12, 4);
	memcpy(&len, head + 16, 4);
	len = be32toh(len);
	cr_assert(len <= sizeof(data) && (!len || recv(r->fd[0], data, len, MSG_WAITALL) == (ssize_t)len));
	return be32toh(type);
}

static void greet(struct raw *r)
{
	uint8_t hello[18];

	cr_assert_eq(recv(r->fd[0], hello, sizeof(hello), MSG_WAITALL), (ssize_t)sizeof(hello));
	cr_assert_eq(memcmp(hello, "NBDMAGICIHAVEOPT", 16), 0);
	say(r, "\0\0\0\3", 4);
}

static void say_request(struct raw *r, uint16_t flags, uint16_t type, uint64_t offset, uint32_t len)
{
	uint8_t q[28] = { 0x25, 0x60, 0x95, 0x13 };

	memcpy(q + 4, &(uint16_t){ htobe16(flags) }, 2);
	memcpy(q + 6, &(uint16_t){ htobe16(type) }, 2);
	memcpy(q + 16, &(uint64_t){ htobe64(offset) }, 8);
	memcpy(q + 24, &(uint32_t){ htobe32(len) }, 4);
	say(r, q, sizeof(q));
}

static void go(struct raw *r)
{
	greet(r);
	say_option(r, 7, "\0\0\0\4disk\0\0", 10);
	cr_assert(heard(r) == 3 && heard(r) == 3 && heard(r) == 1);
}

Test(nbd_raw, options_that_are_not_sound_get_an_answer, .timeout = 60)
{
	struct raw r;

	raw_begin(&r);
	greet(&r);
	say_option(&r, 5, "", 0); /* STARTTLS */
	cr_assert_eq(heard(&r), 0x80000001);
	say_option(&r, 8, "", 0); /* structured replies */
	cr_assert_eq(heard(&r), 0x80000001);
	say_option(&r, 6, "\0\0\0\4di", 6);
	cr_assert_eq(heard(&r), 0x80000003, "the name is longer than the option");
	say_option(&r, 6, "\xff\xff\xff\xff\0\0", 6);
	cr_assert_eq(heard(&r), 0x80000003);
	say_option(&r, 6, "\0\0\0\4disk\0\1", 10);
	cr_assert_eq(heard(&r), 0x80000003, "a request that is not there");
	say_option(&r, 6, "\0\0\0\4dusk\0\0", 10);
	cr_assert_eq(heard(&r), 0x80000006);
	say_option(&r, 3, "", 0);
	cr_assert(heard(&r) == 2 && heard(&r) == 1);
	say_option(&r, 2, "", 0);
	cr_assert_eq(heard(&r), 1);
	raw_end(&r);
	cr_assert_eq(r.rc, 0);
}

Test(nbd_raw, nonsense_ends_it, .timeout = 60)
{
	static const struct {
		uint16_t flags, type;
		uint64_t offset;
		uint32_t len;
	} bad[] = {
		{ 0, 1, 0, 0 },        { 0, 1, SIZE, 1 },       { 0, 1, UINT64_MAX, 1 },
		{ 0, 1, SIZE - 1, 2 }, { 0, 1, 0, 0xffffffff }, { 0, 1, 0, (32 << 20) + 1 },
		{ 4, 1, 0, 1 },        { 0, 6, SIZE - 1, 2 },   { 0, 4, 0, 0 },
		{ 8, 6, 0, 1 },        { 0, 3, 0, 1 },          { 0, 5, 0, 0 },
		{ 0, 7, 0, 1 },        { 0, 99, 0, 0 },         { 0, 0, 0, 512 },
	};
	struct raw r;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		raw_begin(&r);
		go(&r);
		say_request(&r, bad[i].flags, bad[i].type, bad[i].offset, bad[i].len);
		raw_end(&r);
		cr_assert_eq(r.rc, -EPROTO, "request %zu: %d %s", i, r.rc, r.why.msg);
	}
	cr_assert_eq(atomic_load(&writes) + atomic_load(&zeros), 0);
}

Test(nbd_raw, cut_off_anywhere_it_ends, .timeout = 60)
{
	uint8_t all[4 + 26 + 28 + 512] = { 0, 0, 0, 3, 'I', 'H', 'A', 'V', 'E', 'O', 'P', 'T', 0,   0, 0,
					   7, 0, 0, 0, 10,  0,   0,   0,   4,   'd', 'i', 's', 'k', 0, 0 };
	struct raw r;

	memcpy(all + 30, "\x25\x60\x95\x13\0\0\0\1", 8);
	all[30 + 26] = 2; /* 512 octets */
	for (size_t n = 0; n < sizeof(all); n += n < sizeof(all) - 512 ? 1 : 73) {
		raw_begin(&r);
		say(&r, all, n);
		raw_end(&r);
		cr_assert_eq(r.rc, -EPIPE, "after %zu: %d %s", n, r.rc, r.why.msg);
	}
	cr_assert_eq(atomic_load(&writes), 0);
}

Test(nbd_raw, options_have_an_end, .timeout = 60)
{
	struct raw r;

	raw_begin(&r);
	greet(&r);
	for (int i = 0; i < 100; i++)
		say_option(&r, 99, "", 0);
	raw_end(&r);
	cr_assert_eq(r.rc, -EPROTO);
}

Test(nbd_raw, the_old_handshake_is_refused, .timeout = 60)
{
	struct raw r;

	raw_begin(&r);
	say(&r, "\0\0\0\0", 4);
	raw_end(&r);
	cr_assert_eq(r.rc, -EPROTO);
}
