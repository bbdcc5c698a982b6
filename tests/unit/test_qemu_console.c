/* SPDX-License-Identifier: MIT */
/* test_qemu_console.c - consoles on their way through us: held by epoch, nothing lost or let out early at a cut, input at once, a
 * full queue stops the guest and not us; and every kind of destination.  The test plays QEMU: it listens, and writes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "console.h"

static char dir[64], socket_path[96], file_path[96];
static int listener, guest; /* guest: QEMU's end */
static struct consoles *c;
static struct ft_error err;
static atomic_int nr_cuts;
static char said[128];

static void want_cut(void *user)
{
	(void)user;
	atomic_fetch_add(&nr_cuts, 1);
}

static void say(void *user, const char *text)
{
	(void)user;
	snprintf(said, sizeof(said), "%s", text);
}

static void setup(void)
{
	snprintf(dir, sizeof(dir), "/tmp/ft-console-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(socket_path, sizeof(socket_path), "%s/qemu", dir);
	snprintf(file_path, sizeof(file_path), "%s/out", dir);
	listener = unix_listen(socket_path, &err);
	cr_assert_geq(listener, 0, "%s", err.msg);
}

static void teardown(void)
{
	consoles_close(c, 0);
	c = NULL;
	close(guest);
	close(listener);
	unlink(socket_path);
	unlink(file_path);
	rmdir(dir);
}

TestSuite(console, .init = setup, .fini = teardown, .timeout = 60);

static int open_to(const char *fmt, const char *path, bool keep)
{
	char destination[256];
	struct cmdline_route spec = { (char *)"c0", socket_path, destination };
	struct consoles_config config = {
		.console = &spec, .nr = 1, .keep = keep, .hold_bytes = 1 << 16, .want_cut = want_cut, .say = say
	};
	int rc;

	snprintf(destination, sizeof(destination), fmt, path);
	rc = consoles_open(&c, &config, &err);
	guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* also what was given up */
	if (rc)
		close(guest);
	return rc;
}

static void open_file(void)
{
	cr_assert_eq(open_to("file,path=%s", file_path, false), 0, "%s", err.msg);
}

static void send_text(const char *text)
{
	cr_assert_eq(write(guest, text, strlen(text)), (ssize_t)strlen(text));
}

static const char *content(void)
{
	static char buf[4096];
	int fd = open(file_path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

static void wait_content(const char *text)
{
	for (int i = 0; i < 2000 && strcmp(content(), text) != 0; i++)
		usleep(5000);
	cr_assert_str_eq(content(), text);
}

/* What the thread has read lies in the queue. */
static void wait_held(uint64_t n)
{
	for (int i = 0; i < 2000 && consoles_held(c) != n; i++)
		usleep(5000);
	cr_assert_eq(consoles_held(c), n);
}

Test(console, passes_before_the_first_cut)
{
	open_file();
	send_text("hello\n");
	wait_content("hello\n");
}

Test(console, holds_by_epoch)
{
	open_file();
	send_text("zero ");
	wait_content("zero ");
	consoles_cut(c, 1);
	send_text("one ");
	wait_held(4);
	consoles_cut(c, 2);
	send_text("two ");
	wait_held(8);
	usleep(50000);
	cr_assert_str_eq(content(), "zero ");
	consoles_release(c, 1);
	usleep(20000);
	cr_assert_str_eq(content(), "zero ");
	consoles_release(c, 2);
	wait_content("zero one ");
	consoles_release(c, UINT64_MAX);
	wait_content("zero one two ");
	send_text("free");
	wait_content("zero one two free");
}

/* What was written before the pause must be of the epoch that the pause ends, although our thread has not read it yet. */
Test(console, a_cut_takes_what_is_still_in_the_socket)
{
	char text[16], want[4096] = "";

	open_file();
	consoles_cut(c, 1);
	for (int i = 2; i < 200; i++) {
		snprintf(text, sizeof(text), "%d ", i);
		send_text(text);
		consoles_cut(c, (uint64_t)i);
		strcat(want, text);
		consoles_release(c, (uint64_t)i);
		cr_assert_str_eq(content(), want, "after epoch %d", i);
	}
}

Test(console, dropped_output_never_leaves)
{
	open_file();
	consoles_cut(c, 1);
	send_text("lost");
	wait_held(4);
	consoles_drop(c);
	send_text("lost too");
	consoles_cut(c, 2);
	usleep(50000);
	cr_assert_str_eq(content(), "");
}

Test(console, input_goes_to_the_guest_at_once)
{
	char buf[16] = "";
	int client;

	cr_assert_eq(open_to("socket,path=%s,server=on,wait=off", file_path, false), 0, "%s", err.msg);
	consoles_cut(c, 1);
	client = unix_connect(file_path, util_deadline_ms(10000), &err);
	cr_assert_geq(client, 0, "%s", err.msg);
	cr_assert_eq(write(client, "ls\n", 3), 3);
	cr_assert_eq(recv(guest, buf, 3, MSG_WAITALL), 3);
	cr_assert_str_eq(buf, "ls\n");
	close(client);
}

/* Writes until the guest would have to wait; returns how much went. */
static size_t flood(void)
{
	static char block[4096];
	size_t sum = 0;
	ssize_t n;

	memset(block, 'f', sizeof(block));
	for (int quiet = 0; quiet < 40;) {
		n = send(guest, block, sizeof(block), MSG_DONTWAIT);
		quiet = n > 0 ? 0 : quiet + 1;
		sum += n > 0 ? (size_t)n : 0;
		if (n <= 0)
			usleep(5000);
	}
	return sum;
}

Test(console, a_full_queue_stops_the_guest_and_asks_for_a_cut)
{
	size_t sum;
	struct stat st;

	open_file();
	consoles_cut(c, 1);
	sum = flood();
	cr_assert_gt(atomic_load(&nr_cuts), 0);
	cr_assert_geq(sum, 1 << 16);
	cr_assert_leq(consoles_held(c), (1 << 16) + (512 << 10));
	cr_assert_eq(stat(file_path, &st), 0);
	cr_assert_eq(st.st_size, 0);
	/* the cut has room for what is in the socket */
	consoles_cut(c, 2);
	cr_assert_eq(consoles_held(c), sum);
	consoles_release(c, 2);
	for (int i = 0; i < 2000 && (size_t)st.st_size != sum; i++) {
		usleep(5000);
		stat(file_path, &st);
	}
	cr_assert_eq((size_t)st.st_size, sum);
	/* and the guest goes on */
	send_text("more");
	wait_held(4);
}

Test(console, a_client_that_does_not_read_stops_the_guest_not_us)
{
	char buf[4096];
	size_t sum, got = 0;
	ssize_t n;
	int client;

	cr_assert_eq(open_to("socket,path=%s,server=on", file_path, false), 0, "%s", err.msg);
	client = unix_connect(file_path, util_deadline_ms(10000), &err);
	usleep(50000);
	sum = flood();
	consoles_cut(c, 1);
	consoles_release(c, 1);
	while (got < sum && (n = recv(client, buf, sizeof(buf), 0)) > 0)
		got += (size_t)n;
	cr_assert_eq(got, sum);
	close(client);
}

Test(console, clients_come_and_go)
{
	char buf[8] = "";
	int client;

	cr_assert_eq(open_to("socket,path=%s,server=on,wait=off", file_path, false), 0, "%s", err.msg);
	send_text("nobody reads this");
	usleep(50000);
	for (int i = 0; i < 3; i++) {
		client = unix_connect(file_path, util_deadline_ms(10000), &err);
		cr_assert_geq(client, 0, "%s", err.msg);
		cr_assert_eq(write(client, "x", 1), 1); /* accepted when it arrives */
		cr_assert_eq(recv(guest, buf, 1, 0), 1);
		send_text("hi");
		cr_assert_eq(recv(client, buf, 2, MSG_WAITALL), 2);
		cr_assert_eq(memcmp(buf, "hi", 2), 0);
		close(client);
		usleep(50000);
		send_text("gone");
		usleep(20000);
	}
}

Test(console, tcp_both_ways)
{
	char spec[64], buf[8];
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);
	int server = socket(AF_INET, SOCK_STREAM, 0), client;

	/* as a client, to a server of ours that has taken a free port */
	cr_assert_eq(listen(server, 1), 0);
	cr_assert_eq(getsockname(server, (struct sockaddr *)&a, &len), 0);
	snprintf(spec, sizeof(spec), "%u", ntohs(*(uint16_t *)((char *)&a + 2)));
	cr_assert_eq(open_to("socket,host=127.0.0.1,port=%s", spec, false), 0, "%s", err.msg);
	client = accept(server, NULL, NULL);
	send_text("out");
	cr_assert_eq(recv(client, buf, 3, MSG_WAITALL), 3);
	cr_assert_eq(write(client, "in", 2), 2);
	cr_assert_eq(recv(guest, buf, 2, MSG_WAITALL), 2);
	consoles_close(c, 0);
	close(client);
	close(server);
	close(guest);
	/* as a server there */
	c = NULL;
	cr_assert_eq(open_to("socket,host=127.0.0.1,port=%s,server=on", spec, false), 0, "%s", err.msg);
	client = socket(AF_INET, SOCK_STREAM, 0);
	((char *)&a)[4] = 127;
	((char *)&a)[7] = 1;
	cr_assert_eq(connect(client, (struct sockaddr *)&a, len), 0);
	cr_assert_eq(write(client, "in", 2), 2);
	cr_assert_eq(recv(guest, buf, 2, MSG_WAITALL), 2);
	send_text("out");
	cr_assert_eq(recv(client, buf, 3, MSG_WAITALL), 3);
	close(client);
}

Test(console, a_pseudo_terminal)
{
	struct termios t;
	char name[64], buf[8] = "";
	int slave;

	cr_assert_eq(open_to("%s", "pty", false), 0, "%s", err.msg);
	cr_assert_eq(sscanf(said, "character device c0 is pty %63s", name), 1, "%s", said);
	send_text("nobody reads this");
	usleep(50000);
	slave = open(name, O_RDWR | O_NOCTTY);
	cr_assert_geq(slave, 0);
	tcgetattr(slave, &t);
	cfmakeraw(&t);
	tcsetattr(slave, TCSANOW, &t);
	cr_assert_eq(write(slave, "x", 1), 1);
	cr_assert_eq(recv(guest, buf, 1, 0), 1);
	send_text("hi");
	cr_assert_eq(read(slave, buf, sizeof(buf)), 2);
	cr_assert_eq(memcmp(buf, "hi", 2), 0);
	close(slave);
	send_text("gone");
	usleep(20000);
}

Test(console, files_begin_anew_or_go_on)
{
	FILE *f = fopen(file_path, "w");

	fputs("old ", f);
	fclose(f);
	cr_assert_eq(open_to("file,path=%s,append=on", file_path, false), 0);
	send_text("appended ");
	wait_content("old appended ");
	consoles_close(c, 0);
	close(guest);
	c = NULL;
	cr_assert_eq(open_to("file,path=%s", file_path, true), 0);
	send_text("kept ");
	wait_content("old appended kept ");
	consoles_close(c, 0);
	close(guest);
	c = NULL;
	open_file();
	send_text("new");
	wait_content("new");
}

Test(console, bad_destinations_are_refused)
{
	cr_assert_eq(open_to("file,path=%s", "/nonexistent/x", false), -ENOENT);
	cr_assert(strstr(err.msg, "console c0") && strstr(err.msg, "/nonexistent/x"), "%s", err.msg);
	cr_assert_null(c);
	cr_assert_lt(open_to("socket,path=%s", "/nonexistent/x", false), 0);
	cr_assert_eq(open_to("%s", "telepathy", false), -EINVAL);
	cr_assert_eq(open_to("%s", "null", false), 0, "%s", err.msg);
	send_text("into the void");
}

Test(console, qemu_that_is_gone_is_noticed_quietly)
{
	open_file();
	send_text("last words");
	close(guest);
	guest = -1;
	wait_content("last words");
	consoles_cut(c, 1);
	consoles_release(c, 1);
	usleep(300000);
}

Test(console, closing_waits_for_what_may_leave)
{
	open_file();
	send_text("last words");
	consoles_close(c, 5000);
	c = NULL;
	cr_assert_str_eq(content(), "last words");
}
