/* SPDX-License-Identifier: MIT */
/* test_fault.c - the wrapper fault(...)/ of transport/fault.c: each of its keys does what it says, and what makes no sense is refused.  That the
 * contract of transport.h holds under those that only take time is in test_transport.c. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "duo.h"

/* -- fault: each key does what it says -- */

static void fault_open(struct duo *d, const char *wrap)
{
	struct kind k = { .listen = "127.0.0.1:0" };

	duo_listen(d, &k, (struct tp_params){ .lanes = LANES });
	snprintf(d->uri, sizeof(d->uri), "fault(%s)/%s", wrap, tp_listener_address(d->l));
	duo_join(d);
	duo_open_window(d, WINDOW_BYTES);
	cr_assert_str_eq(tp_name(d->a), "fault/tcp");
}

static int put(struct duo *d, uint64_t at, const char *text)
{
	return tp_write(d->a, 1, 0, at, &(struct iovec){ (void *)text, strlen(text) }, 1, NULL, soon(), &d->err);
}

Test(fault, cut_in_the_middle_of_a_write, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "cut=13");
	cr_assert_eq(put(&d, 0, "12345"), 0);
	cr_assert_eq(send_text(d.a, 1, "abc", soon(), &d.err), 0);
	cr_assert_eq(put(&d, 5, "67890xyz"), -ECONNRESET, "%s", d.err.msg);
	cr_assert_eq(send_text(d.a, 1, "abc", soon(), &d.err), -ECONNRESET);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert(strstr(d.err.msg, "cut after 13 octets"), "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert_arr_eq(d.window, "1234567890\0\0\0", 13);
	duo_close(&d);
}

Test(fault, cut_before_a_message, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "cutmsg=3");
	cr_assert_eq(send_text(d.a, 0, "1", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 1, "2", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 2, "3", soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ECONNRESET);
	duo_close(&d);
}

Test(fault, oneway_swallows_what_is_sent, .timeout = 60)
{
	uint64_t ticket;
	struct duo d;

	fault_open(&d, "oneway=1");
	cr_assert_eq(put(&d, 0, "kept"), 0);
	cr_assert_eq(send_text(d.a, 0, "heard", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	for (int i = 0; i < 50; i++)
		cr_assert_eq(send_text(d.a, 0, "unheard", soon(), &d.err), 0, "takes no credit: %s", d.err.msg);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, &(struct iovec){ "lost", 4 }, 1, &ticket, soon(), &d.err), 0);
	cr_assert_eq(ticket, 2);
	cr_assert_eq(tp_wait_completed(d.a, 1, ticket, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(tp_completed(d.a, 1), 2);
	cr_assert_eq(recv_text(d.b, deadline_in_ms(100), &d.err), -ETIMEDOUT);
	cr_assert_arr_eq(d.window, "kept", 4);
	cr_assert_eq(send_text(d.b, 0, "other way", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), 0);
	cr_assert_str_eq(duo_buf, "other way");
	duo_close(&d);
}

Test(fault, stall_holds_both_directions, .timeout = 60)
{
	struct duo d;

	fault_open(&d, "stall=1:400");
	cr_assert_eq(send_text(d.a, 0, "last", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.b, 0, "held", soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 0, "late", deadline_in_ms(50), &d.err), -ETIMEDOUT);
	cr_assert_eq(recv_text(d.a, deadline_in_ms(50), &d.err), -ETIMEDOUT);
	cr_assert_eq(send_text(d.a, 0, "late", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(duo_buf, "held");
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0);
	cr_assert_str_eq(duo_buf, "late");
	duo_close(&d);
	fault_open(&d, "stall=0:0");
	cr_assert_eq(send_text(d.a, 0, "never", deadline_in_ms(100), &d.err), -ETIMEDOUT);
	cr_assert_eq(recv_text(d.b, deadline_in_ms(100), &d.err), -ETIMEDOUT);
	duo_close(&d);
}

Test(fault, dup_and_corrupt, .timeout = 60)
{
	unsigned differ = 0;
	struct duo d;

	fault_open(&d, "dup=100,corrupt=2,seed=5");
	cr_assert_eq(put(&d, 0, "aaaaaaaa"), 0);
	cr_assert_eq(put(&d, 8, "aaaaaaaa"), 0);
	cr_assert_eq(put(&d, 16, "aaaaaaaa"), 0);
	cr_assert_eq(send_text(d.a, 1, "twice", soon(), &d.err), 0);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
		cr_assert_str_eq(duo_buf, "twice");
	}
	for (int i = 0; i < 24; i++) {
		differ += (unsigned)__builtin_popcount(d.window[i] ^ 'a');
		cr_assert(d.window[i] == 'a' || (i >= 8 && i < 16));
	}
	cr_assert_eq(differ, 1);
	duo_close(&d);
}

Test(fault, slow_and_delay_take_their_time, .timeout = 60)
{
	uint64_t before;
	struct duo d;

	fault_open(&d, "slow=100000,delay=1");
	before = now_ns();
	for (int i = 0; i < 6; i++)
		cr_assert_eq(tp_write(d.a, 1, 0, 0, &(struct iovec){ duo_octets, 10000 }, 1, NULL, soon(), &d.err), 0);
	cr_assert(now_ns() - before >= 500 * NS_PER_MS, "60,000 octets at 100,000 a second");
	duo_close(&d);
}

/* The same messages on two lanes: with reorder one lane overtakes the other, though never itself. */
Test(fault, reorder_lets_lanes_overtake, .timeout = 60)
{
	unsigned next[LANES] = { 0 }, overtaken = 0;
	struct duo d;

	fault_open(&d, "reorder=1,seed=3");
	for (unsigned i = 0; i < 100; i++) {
		for (uint32_t lane = 1; lane < LANES; lane++)
			cr_assert_eq(tp_send(d.a, lane, &(struct iovec){ &i, sizeof(i) }, 1, soon(), &d.err), 0, "%s",
				     d.err.msg);
		/* one round behind, no more: this thread is sender and receiver, and a lane that is far behind would use up its credits */
		for (uint32_t got = 0; i >= 1 && got < LANES - 1; got++) {
			uint32_t lane;
			unsigned number;
			size_t len;

			cr_assert_eq(tp_recv(d.b, duo_buf, sizeof(duo_buf), &lane, &len, soon(), &d.err), 0);
			memcpy(&number, duo_buf, sizeof(number));
			cr_assert_eq(number, next[lane], "lane %u", lane);
			next[lane]++;
			overtaken += next[1] != next[2] && next[1] != next[2] + 1;
		}
	}
	cr_assert(overtaken > 0);
	duo_close(&d);
}

Test(fault, specifications_that_make_no_sense_are_refused, .timeout = 60)
{
	static const char *const bad[] = { "fault(",
					   "fault(x",
					   "fault(seed)/loopback:x",
					   "fault(seed=)/loopback:x",
					   "fault(seed=1/loopback:x",
					   "fault(seed=1)loopback:x",
					   "fault(nothing=1)/loopback:x",
					   "fault(stall=3)/loopback:x",
					   "fault(seed=-1)/loopback:x",
					   "fault(averyveryverylongkey=1)/loopback:x" };
	struct tp_params p = { .lanes = 2 };
	struct tp_listener *l;
	struct ft_error err;
	struct tp_conn *c;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(tp_connect(&c, bad[i], &p, soon(), -1, &err), -EINVAL, "%s: %s", bad[i], err.msg);
		cr_assert_eq(tp_listen(&l, bad[i], &p, &err), -EINVAL, "%s: %s", bad[i], err.msg);
	}
	cr_assert_eq(tp_connect(&c, "fault()/loopback:nobody", &p, soon(), -1, &err), -ECONNREFUSED);
}
