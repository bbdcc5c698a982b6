/* SPDX-License-Identifier: MIT */
/* test_qemu_nics.c - frames of the guest's network cards on their way through ftqemu: this test is QEMU (a listening Unix socket) on one side
 * and the outside (datagrams, a stream) on the other.  The order and the epochs of what is held are test_output.c's. */
#include <criterion/criterion.h>

#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "frames.h"
#include "nics.h"
#include "uplink.h"

static char dir[] = "/tmp/test-nics-XXXXXX", qemu_path[64], in_path[64], out_path[64];
static int listener, guest = -1, outside = -1;
static atomic_uint cuts, outputs;
static struct nics *nics;
static struct ft_error err;

static void want_cut(void *user)
{
	(void)user;
	atomic_fetch_add(&cuts, 1);
}

static void has_output(void *user)
{
	(void)user;
	atomic_fetch_add(&outputs, 1);
}

static int bound(int type, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = 10 };
	int fd = socket(AF_UNIX, type, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	cr_assert(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0, "%s: %s", path, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

static void setup(void)
{
	cr_assert(mkdtemp(dir));
	snprintf(qemu_path, sizeof(qemu_path), "%s/q", dir);
	snprintf(in_path, sizeof(in_path), "%s/in", dir);
	snprintf(out_path, sizeof(out_path), "%s/out", dir);
	listener = bound(SOCK_STREAM, qemu_path);
	cr_assert_eq(listen(listener, 1), 0);
}

static void teardown(void)
{
	nics_close(nics);
	close(guest);
	close(listener);
	close(outside);
	unlink(qemu_path);
	unlink(in_path);
	unlink(out_path);
	rmdir(dir);
}

TestSuite(nics, .init = setup, .fini = teardown, .timeout = 60);

static void open_nics(const char *destination, uint64_t hold, enum nics_at_cap at_cap)
{
	static struct cmdline_route route;
	struct nics_config config = { .nic = &route,
				      .nr = 1,
				      .hold_bytes = hold,
				      .at_cap = at_cap,
				      .has_output = has_output,
				      .want_cut = want_cut };

	route = (struct cmdline_route){ (char *)"n0", qemu_path, (char *)(uintptr_t)destination };
	cr_assert_eq(nics_open(&nics, &config, &err), 0, "%s", err.msg);
	guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(guest, 0);
}

static void open_dgram(uint64_t hold, enum nics_at_cap at_cap)
{
	char destination[256];

	outside = bound(SOCK_DGRAM, out_path);
	snprintf(destination, sizeof(destination),
		 "dgram,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", in_path, out_path);
	open_nics(destination, hold, at_cap);
}

/* The guest's card sends frame @n, of @len octets that all are @n. */
static void guest_sends(unsigned n, size_t len)
{
	static uint8_t frame[4 + UPLINK_FRAME_MAX];
	uint8_t head[4] = { (uint8_t)(len >> 24), (uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len };

	memcpy(frame, head, 4);
	memset(frame + 4, (int)n, len);
	for (size_t at = 0; at < len + 4;) {
		ssize_t sent = send(guest, frame + at, len + 4 - at, 0);

		cr_assert_gt(sent, 0);
		at += (size_t)sent;
	}
}

/* Nothing: -1; else the frame's number. */
static int outside_gets(size_t len, int flags)
{
	static uint8_t buf[UPLINK_FRAME_MAX];
	ssize_t got = recv(outside, buf, sizeof(buf), flags);

	if (got < 0)
		return -1;
	cr_assert_eq((size_t)got, len);
	for (size_t i = 0; i < len; i++)
		cr_assert_eq(buf[i], buf[0]);
	return buf[0];
}

static void until(bool (*so)(void), const char *what)
{
	for (unsigned i = 0; i < 10000 && !so(); i++)
		util_sleep_ms(1);
	cr_assert(so(), "%s", what);
}

static bool some_held(void)
{
	return nics_held(nics) > 0;
}

static bool quarter_held(void)
{
	return nics_held(nics) > 60000;
}

static bool two_thirds_held(void)
{
	return nics_held(nics) > 175000;
}

static bool cut_wanted(void)
{
	return atomic_load(&cuts) > 0;
}

static bool some_dropped(void)
{
	return nics_dropped(nics) > 0;
}

Test(nics, pass_until_the_first_cut_then_with_their_epoch)
{
	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	guest_sends(1, 60);
	cr_assert_eq(outside_gets(60, 0), 1);
	cr_assert_eq(atomic_load(&outputs), 0);
	nics_cut(nics, 1);
	guest_sends(2, 1514);
	until(some_held, "a frame is held");
	cr_assert_geq(atomic_load(&outputs), 1);
	nics_release(nics, 1);
	cr_assert_eq(outside_gets(0, MSG_DONTWAIT), -1);
	/* sent before the pause, and still in the socket: of the epoch that ends */
	guest_sends(3, 60);
	nics_cut(nics, 2);
	guest_sends(4, 60);
	nics_release(nics, 2);
	cr_assert_eq(outside_gets(1514, 0), 2);
	cr_assert_eq(outside_gets(60, 0), 3);
	until(some_held, "the next one is held");
	cr_assert_eq(outside_gets(0, MSG_DONTWAIT), -1);
	nics_release(nics, UINT64_MAX);
	cr_assert_eq(outside_gets(60, 0), 4);
}

Test(nics, frames_to_the_guest_pass_at_once)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	uint8_t buf[16];

	open_dgram(1 << 20, NICS_CUT);
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", in_path);
	nics_plug(nics, true);
	nics_cut(nics, 1);
	cr_assert_eq(sendto(outside, "to the guest", 12, 0, (struct sockaddr *)&to, sizeof(to)), 12);
	cr_assert_eq(recv(guest, buf, sizeof(buf), MSG_WAITALL), 16);
	cr_assert_eq(memcmp(buf, "\0\0\0\14to the guest", 16), 0);
}

Test(nics, a_card_that_is_not_plugged_in_is_deaf_and_mute)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char octet;

	open_dgram(1 << 20, NICS_CUT);
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", in_path);
	cr_assert_eq(sendto(outside, "lost", 4, 0, (struct sockaddr *)&to, sizeof(to)), 4);
	guest_sends(1, 60);
	util_sleep_ms(100);
	cr_assert_eq(outside_gets(0, MSG_DONTWAIT), -1);
	cr_assert_lt(recv(guest, &octet, 1, MSG_DONTWAIT), 0);
	nics_plug(nics, true);
	guest_sends(2, 60);
	cr_assert_eq(outside_gets(60, 0), 2);
}

Test(nics, what_is_held_when_the_other_side_took_over_never_leaves)
{
	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	nics_cut(nics, 1);
	guest_sends(1, 60);
	until(some_held, "a frame is held");
	nics_drop(nics);
	cr_assert_eq(nics_held(nics), 0);
	guest_sends(2, 60);
	nics_release(nics, UINT64_MAX);
	util_sleep_ms(50);
	cr_assert_eq(outside_gets(0, MSG_DONTWAIT), -1);
}

#define HOLD 262144u
#define FRAME 1000u

Test(nics, an_epoch_that_fills_half_of_the_queue_is_to_end)
{
	unsigned n;

	open_dgram(HOLD, NICS_CUT);
	nics_plug(nics, true);
	nics_cut(nics, 1);
	for (n = 0; n < HOLD / 4 / FRAME; n++)
		guest_sends(n, FRAME);
	until(quarter_held, "a quarter is not held");
	cr_assert_eq(atomic_load(&cuts), 0);
	for (; n < HOLD * 3 / 4 / FRAME; n++)
		guest_sends(n, FRAME);
	until(cut_wanted, "no end of the epoch is asked for");
	until(two_thirds_held, "two thirds are not held");
	cr_assert_eq(atomic_load(&cuts), 1, "asked for once");
	/* the queue is still full of it: an end of the next one would not help */
	nics_cut(nics, 2);
	guest_sends(0, FRAME);
	util_sleep_ms(20);
	cr_assert_eq(atomic_load(&cuts), 1);
	cr_assert_eq(nics_dropped(nics), 0);
}

static void fill_twice(enum nics_at_cap at_cap)
{
	open_dgram(HOLD, at_cap);
	nics_plug(nics, true);
	nics_cut(nics, 1);
	for (unsigned n = 0; n < 2 * HOLD / FRAME; n++)
		guest_sends(n, FRAME); /* would wait for ever if nobody read */
	until(some_dropped, "none is dropped");
	cr_assert_leq(nics_held(nics), HOLD);
	for (unsigned n = 0; n < 50; n++)
		guest_sends(n, FRAME);
	nics_cut(nics, 2); /* the guest stands: what is in the socket is taken, and dropped */
	nics_release(nics, 2);
	cr_assert_eq(nics_held(nics), 0);
	for (unsigned n = 0; n < HOLD / (FRAME + 4); n++)
		cr_assert_eq(outside_gets(FRAME, 0), (int)(n % 256));
	cr_assert_eq(outside_gets(0, MSG_DONTWAIT), -1);
}

Test(nics, what_finds_no_room_is_lost_and_the_guest_does_not_wait)
{
	fill_twice(NICS_CUT);
	cr_assert_eq(atomic_load(&cuts), 1);
}

Test(nics, at_the_cap_an_epoch_need_not_end)
{
	fill_twice(NICS_DROP);
	cr_assert_eq(atomic_load(&cuts), 0);
}

/* ---- outside ends that do not take ---- */

/* All of it computes for less than half of the time. */
static void does_not_spin(void)
{
	uint64_t wall = util_now_ns();
	struct timespec cpu[2];

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]);
	util_sleep_ms(300);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]);
	wall = util_now_ns() - wall;
	cr_assert_lt((uint64_t)(cpu[1].tv_sec - cpu[0].tv_sec) * 1000000000u + (uint64_t)cpu[1].tv_nsec -
			     (uint64_t)cpu[0].tv_nsec,
		     wall / 2);
}

Test(nics, datagrams_wait_for_a_receiver_that_is_slow)
{
	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	nics_cut(nics, 1);
	for (unsigned n = 0; n < 900; n++)
		guest_sends(n, FRAME);
	nics_cut(nics, 2);
	nics_release(nics, 2); /* more than a socket's queue holds */
	for (unsigned n = 0; n < 900; n++)
		cr_assert_eq(outside_gets(FRAME, 0), (int)(n % 256), "frame %u", n);
	cr_assert_eq(nics_dropped(nics), 0);
}

Test(nics, datagrams_that_nobody_takes_are_lost_in_the_end)
{
	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	for (unsigned n = 0; n < 900; n++)
		guest_sends(n, FRAME);
	does_not_spin();
	until(some_dropped, "none is lost");
	close(outside);
	outside = -1;
	guest_sends(1, FRAME);
	does_not_spin();
}

Test(nics, a_stream_peer_that_stalls)
{
	static struct frames_in in;
	char destination[256];
	const uint8_t *frame;
	unsigned nr = 0;
	int peer, got;

	snprintf(destination, sizeof(destination), "stream,addr.type=unix,addr.path=%s", out_path);
	outside = bound(SOCK_STREAM, out_path);
	cr_assert_eq(listen(outside, 1), 0);
	open_nics(destination, HOLD, NICS_CUT);
	nics_plug(nics, true);
	peer = accept4(outside, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(peer, 0);
	util_sleep_ms(20);
	nics_cut(nics, 1);
	nics_release(nics, UINT64_MAX); /* not held: the wire is what is slow */
	for (unsigned n = 0; n < 3000; n++)
		guest_sends(n, FRAME);
	until(some_dropped, "none is dropped");
	does_not_spin();
	cr_assert_eq(atomic_load(&cuts), 0, "the end of an epoch would not help");
	/* what it gets when it goes on are whole frames, in order */
	for (unsigned i = 0; i < 5000 && nr < 200; i++) {
		got = frames_read(&in, peer, &frame);
		if (got == 0) {
			util_sleep_ms(1);
			continue;
		}
		cr_assert_eq(got, (int)FRAME);
		cr_assert_eq(frame[0], (uint8_t)nr);
		cr_assert_eq(frame[FRAME - 1], (uint8_t)nr);
		nr++;
	}
	cr_assert_eq(nr, 200);
	close(peer);
}

/* A standby's: the peer has room for one, and that is the primary's. */
Test(nics, a_stream_is_connected_when_it_is_plugged_in)
{
	struct pollfd p;
	char destination[256];

	snprintf(destination, sizeof(destination), "stream,addr.type=unix,addr.path=%s", out_path);
	outside = bound(SOCK_STREAM, out_path);
	cr_assert_eq(listen(outside, 1), 0);
	open_nics(destination, HOLD, NICS_CUT);
	p = (struct pollfd){ .fd = outside, .events = POLLIN };
	cr_assert_eq(poll(&p, 1, 500), 0, "somebody connects");
	nics_plug(nics, true);
	cr_assert_eq(poll(&p, 1, 10000), 1);
}

static unsigned said;

static void hear(void *user, const char *text)
{
	(void)user;
	if (strstr(text, "network n0: the tap device was deleted"))
		__atomic_fetch_add(&said, 1, __ATOMIC_SEQ_CST);
}

static bool heard(void)
{
	return __atomic_load_n(&said, __ATOMIC_SEQ_CST) > 0;
}

/* In a network namespace of this process's own. */
Test(nics, a_tap_device_that_is_deleted)
{
	struct ifreq req = { .ifr_flags = IFF_UP };
	struct cmdline_route route = { (char *)"n0", qemu_path, (char *)"tap,ifname=tap0,script=no" };
	struct nics_config config = { .nic = &route, .nr = 1, .hold_bytes = HOLD, .say = hear };
	int fd;

	cr_assert_eq(unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET), 0, "%s", strerror(errno));
	cr_assert_eq(nics_open(&nics, &config, &err), 0, "%s", err.msg);
	guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	nics_plug(nics, true);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	strcpy(req.ifr_name, "tap0");
	cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &req), 0, "%s", strerror(errno));
	guest_sends(1, 60);
	util_sleep_ms(50);
	cr_assert_eq(nics_dropped(nics), 0);
	cr_assert_eq(system("ip link delete tap0"), 0);
	until(heard, "nothing is said");
	guest_sends(2, 60);
	until(some_dropped, "the frame is not counted");
	does_not_spin();
	close(fd);
}

/* Frames of all sizes, in pieces, over a stream whose other side comes late, goes, and comes again. */
Test(nics, a_stream_carries_whole_frames)
{
	static struct frames_in in;
	char destination[256];
	const uint8_t *frame;
	int peer;

	snprintf(destination, sizeof(destination), "stream,addr.type=unix,addr.path=%s", out_path);
	open_nics(destination, 1 << 20, NICS_CUT);
	nics_plug(nics, true);
	outside = bound(SOCK_STREAM, out_path);
	cr_assert_eq(listen(outside, 1), 0);
	for (unsigned round = 0; round < 2; round++) {
		peer = accept4(outside, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		cr_assert_geq(peer, 0);
		memset(&in, 0, sizeof(in));
		util_sleep_ms(50);
		for (unsigned n = 1; n <= 200; n++) {
			size_t len = n * 331 % 60000 + 1;
			int got = 0;

			guest_sends(n, len);
			for (unsigned i = 0; i < 10000 && got == 0; i++) {
				got = frames_read(&in, peer, &frame);
				if (got == 0)
					util_sleep_ms(1);
			}
			cr_assert_eq(got, (int)len, "frame %u: %d", n, got);
			cr_assert(frame[0] == (uint8_t)n && frame[len - 1] == (uint8_t)n);
		}
		close(peer);
	}
}

/* The frame that follows comes by the connection that follows. */
static void meet_again(void)
{
	close(guest);
	guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(guest, 0);
	guest_sends(7, 60);
	cr_assert_eq(outside_gets(60, 0), 7);
}

Test(nics, a_guest_that_says_nonsense_is_connected_to_anew)
{
	char octet;

	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	cr_assert_eq(send(guest, "\377\377\377\377", 4, 0), 4);
	cr_assert_leq(recv(guest, &octet, 1, 0), 0, "not hung up");
	meet_again();
}

Test(nics, a_guest_that_hangs_up_is_connected_to_anew)
{
	open_dgram(1 << 20, NICS_CUT);
	nics_plug(nics, true);
	cr_assert_eq(send(guest, "\0\0\0\60half", 8, 0), 8);
	shutdown(guest, SHUT_RDWR);
	meet_again();
}

Test(nics, uplinks_that_cannot_be)
{
	static const char *const bad[][2] = {
		{ "dgram", "wants local.type=" },
		{ "dgram,local.type=unix,local.path=/nowhere/x,remote.type=unix,remote.path=y", "local address" },
		{ "dgram,local.type=inet,local.host=127.0.0.1,remote.type=inet", "host and port" },
		{ "stream", "wants addr.type=" },
		{ "stream,addr.type=vsock", "unix or inet" },
		{ "stream,server=on,addr.type=unix,addr.path=/tmp", "local address" },
		{ "tap,ifname=a-name-that-is-too-long", "too long" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct uplink *u;
		char line[64];

		cr_assert_lt(uplink_open(&u, bad[i][0], line, sizeof(line), &err), 0, "%s", bad[i][0]);
		cr_assert(strstr(err.msg, bad[i][1]), "%s: %s", bad[i][0], err.msg);
	}
}
