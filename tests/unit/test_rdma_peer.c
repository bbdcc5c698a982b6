/* SPDX-License-Identifier: MIT */
/* test_rdma_peer.c - the rdma transport against a peer made by hand (rdma_raw.h): what a peer may do to it, and when it must not wait for one.
 * Each test stands for a fault that was found by reading; the wrong messages as such are in stress_rdma_hostile.c. */
#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "fabric_fake.h"
#include "rdma_private.h"
#include "rdma_raw.h"

#define MIB (1u << 20)
#define WAIT_MS 20000u

static struct tp_params params;
static struct tp_listener *listener;
static struct tp_conn *c;
static struct rdma_raw raw;
static uint8_t buf[TP_MESSAGE_MAX];
static struct ft_error err;

static void setup(void)
{
	fabric_start(NULL);
	params = (struct tp_params){ .lanes = 3 };
}

/* -- both ends -- */

static void open_listener(void)
{
	int r = tp_listen(&listener, "rdma:10.9.0.1:0", &params, &err);

	cr_assert_eq(r, 0, "%s", err.msg);
}

static void accept_raw(void)
{
	for (unsigned i = 0; i < 8 && !c; i++) {
		tp_accept(listener, &c, now_ns(), -1, &err);
		rdma_raw_events(&raw);
	}
	cr_assert(c, "%s", err.msg);
}

static void open_with(uint32_t lanes)
{
	open_listener();
	rdma_raw_connect(&raw, tp_listener_address(listener), lanes);
	accept_raw();
	cr_assert(rdma_raw_all(&raw, RAW_UP));
}

static void close_all(void)
{
	const char *text;

	tp_close(c);
	c = NULL;
	rdma_raw_close(&raw);
	tp_listener_close(listener);
	cr_assert(fabric_all_gone(), "%s", fabric_live_text());
	cr_assert_eq(fabric_violations(&text), 0, "%s", text);
	fabric_stop();
}

TestSuite(peer, .init = setup, .timeout = 120);

/* -- what both say -- */

static int receive(uint64_t deadline)
{
	uint32_t lane;
	size_t len;

	return tp_recv(c, buf, sizeof(buf), &lane, &len, deadline, &err);
}

static int say(uint32_t lane, uint64_t deadline)
{
	struct iovec one = { "x", 1 };

	return tp_send(c, lane, &one, 1, deadline, &err);
}

static int put(uint32_t lane, uint64_t offset, void *from, size_t len)
{
	struct iovec v = { from, len };

	return tp_write(c, lane, 0, offset, &v, 1, NULL, deadline_in_ms(WAIT_MS), &err);
}

/* Until the raw peer has had a message of that kind; other ones are passed over. */
static bool raw_gets(enum rdma_kind kind, unsigned ms)
{
	uint64_t deadline = deadline_in_ms(ms);

	do {
		while (rdma_raw_next(&raw))
			if (from_be16(raw.head.kind) == kind)
				return true;
		usleep(1000);
	} while (now_ns() < deadline);
	return false;
}

static void raw_announces(uint64_t len)
{
	const struct rdma_window_entry e = { .window = to_be32(0),
					     .address = to_be64((uintptr_t)raw.scratch),
					     .len = to_be64(len),
					     .generation = to_be32(1) };

	cr_assert(rdma_raw_tell(&raw, 0, RDMA_WINDOW, 1, &e, sizeof(e)));
}

/* Keys for all that was asked for in the message that has just come: those of the scratch memory. */
static void raw_grants(void)
{
	const struct rdma_chunk_entry *asked = (const void *)raw.body;
	struct rdma_key_entry e[RDMA_BATCH_MAX];
	uint32_t n = from_be16(raw.head.count);

	for (uint32_t i = 0; i < n; i++)
		e[i] = (struct rdma_key_entry){ .chunk = asked[i], .rkey = to_be32(raw.mr->rkey) };
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_REGISTERED, n, e, n * sizeof(e[0])));
}

static void raw_lets_go(void)
{
	uint32_t n = from_be16(raw.head.count);

	cr_assert(rdma_raw_tell(&raw, 0, RDMA_UNREGISTERED, n, raw.body, n * sizeof(struct rdma_chunk_entry)));
}

static int receive_until(uint64_t deadline)
{
	int r;

	do
		r = receive(deadline);
	while (r == 0);
	return r;
}

/* Our side has ended it for the peer's fault, and the peer knows why. */
static void breached(const char *part)
{
	cr_assert_eq(receive_until(deadline_in_ms(WAIT_MS)), -EPROTO, "%s", err.msg);
	cr_assert(strstr(err.msg, part), "%s", err.msg);
	cr_assert(raw_gets(RDMA_BREACH, WAIT_MS));
	cr_assert(strstr(raw.breach, part), "%s", raw.breach);
}

/* -- a good peer -- */

Test(peer, good)
{
	open_with(2);
	cr_assert(rdma_raw_tell(&raw, 1, RDMA_MESSAGE, 0, "hello", 5));
	cr_assert_eq(receive(deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert_eq(memcmp(buf, "hello", 5), 0);
	cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert(raw_gets(RDMA_MESSAGE, WAIT_MS));
	close_all();
}

/* -- waits -- */

static const struct rdma_fabric *fake;
static unsigned flood; /* how many more */

static int poll_and_flood(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	if (flood > 0 && cq != raw.send_cq && cq != raw.recv_cq) {
		flood--;
		rdma_raw_tell(&raw, 0, RDMA_CREDIT, 0, NULL, 0);
	}
	return fake->poll_cq(cq, num_entries, wc);
}

/* A peer that has always said something more does not keep tp_recv() from its deadline, nor others from the connection. */
Test(peer, flood)
{
	struct rdma_fabric flooded;

	fake = rdma_fabric();
	flooded = *fake;
	flooded.poll_cq = poll_and_flood;
	rdma_fabric_set(&flooded);
	open_with(2);
	flood = 200000;
	cr_assert_eq(receive(deadline_in_ms(50)), -ETIMEDOUT, "%s", err.msg);
	cr_assert_neq(flood, 0, "receiving ended only with the flood");
	flood = 0;
	close_all();
}

/* The listener's channel has always something more. */
static int get_nothing(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	if (flood == 0)
		return fake->get_cm_event(channel, event);
	flood--;
	return -EAGAIN;
}

/* Requests without an end do not keep tp_accept() from its deadline. */
Test(peer, flood_of_requests)
{
	struct rdma_fabric flooded;

	fake = rdma_fabric();
	flooded = *fake;
	flooded.get_cm_event = get_nothing;
	rdma_fabric_set(&flooded);
	open_listener();
	rdma_raw_connect(&raw, tp_listener_address(listener), 2);
	flood = 100000;
	cr_assert_eq(tp_accept(listener, &c, deadline_in_ms(50), -1, &err), -ETIMEDOUT, "%s", err.msg);
	cr_assert_neq(flood, 0, "accepting ended only with the flood");
	flood = 0;
	accept_raw();
	close_all();
}

static void *receiver(void *arg)
{
	(void)arg;
	while (receive(DEADLINE_NEVER) == 0)
		;
	return NULL;
}

/* A thread in tp_recv() that is asleep by now. */
static pthread_t start_receiver(void)
{
	pthread_t t;

	cr_assert_eq(pthread_create(&t, NULL, receiver, NULL), 0);
	usleep(50000);
	return t;
}

static void end_receiver(pthread_t t)
{
	tp_cancel(c);
	pthread_join(t, NULL);
}

/* The send queue is full when a window is opened; when there is room again nobody else says anything. */
Test(peer, room_comes_while_the_poller_sleeps)
{
	static uint8_t memory[4096];
	bool told = false;
	pthread_t t;

	params.sq_depth = 4;
	open_with(2);
	t = start_receiver();
	fabric_manual();
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(say(0, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert_eq(tp_window_open(c, 0, memory, sizeof(memory), &err), 0, "%s", err.msg);
	for (unsigned i = 0; i < 500 && !told; i++) {
		fabric_settle();
		told = raw_gets(RDMA_WINDOW, 1);
	}
	cr_assert(told, "the window is not told");
	fabric_immediate();
	end_receiver(t);
	close_all();
}

/* The device takes nothing for a while although nothing is on its way. */
Test(peer, device_is_deaf_while_the_poller_sleeps)
{
	static uint8_t memory[4096];
	pthread_t t;

	open_with(2);
	t = start_receiver();
	fabric_fail(FABRIC_POST_SEND, 1, ENOMEM, 3);
	cr_assert_eq(tp_window_open(c, 0, memory, sizeof(memory), &err), 0, "%s", err.msg);
	cr_assert(raw_gets(RDMA_WINDOW, 500), "the window is not told");
	end_receiver(t);
	close_all();
}

static void *sender(void *arg)
{
	struct ft_error why;
	struct iovec one = { "x", 1 };

	*(int *)arg = tp_send(c, 1, &one, 1, DEADLINE_NEVER, &why);
	return NULL;
}

static void *receiver_of_some(void *arg)
{
	int r = 0;

	for (unsigned i = 0; i < 6 && r == 0; i++)
		r = receive(DEADLINE_NEVER);
	*(int *)arg = r;
	return NULL;
}

#define NR_SENDERS 7u

/* One waits for a credit, others for the lane; whoever of them sleeps on the descriptors, all get their turn when there are credits. */
Test(peer, turn_is_passed_on)
{
	open_with(2);
	for (unsigned round = 0; round < 40; round++) {
		pthread_t t[NR_SENDERS + 1];
		int got[NR_SENDERS + 1];

		while (tp_credits(c, 1) > 0)
			cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
		for (unsigned i = 0; i <= NR_SENDERS; i++) {
			cr_assert_eq(pthread_create(&t[i], NULL, i ? sender : receiver_of_some, &got[i]), 0);
			usleep(i < 2 ? 2000 : 200);
		}
		for (unsigned i = 0; i < 6; i++) {
			while (i == 5 && rdma_raw_next(&raw)) /* the last has credits with it, and lets the poller go */
				;
			rdma_raw_tell(&raw, 1, RDMA_MESSAGE, 0, "x", 1);
			usleep(300);
		}
		for (unsigned i = 0; i <= NR_SENDERS; i++) {
			pthread_join(t[i], NULL);
			cr_assert_eq(got[i], 0);
		}
	}
	close_all();
}

/* Who waits in poll() for tp_poll_fd() hears of a message also when another thread has polled before. */
Test(peer, poll_fd_after_another_poller)
{
	struct pollfd p;
	pthread_t t;
	int got = 1;

	open_with(2);
	p = (struct pollfd){ .fd = tp_poll_fd(c), .events = POLLIN };
	while (tp_credits(c, 1) > 0)
		cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT);
	cr_assert_eq(pthread_create(&t, NULL, sender, &got), 0);
	usleep(20000);
	while (rdma_raw_next(&raw))
		;
	rdma_raw_tell(&raw, 1, RDMA_CREDIT, 0, NULL, 0);
	pthread_join(t, NULL);
	cr_assert_eq(got, 0);
	while (poll(&p, 1, 0) == 1)
		cr_assert_eq(receive(now_ns()), -ETIMEDOUT, "%s", err.msg);
	rdma_raw_tell(&raw, 1, RDMA_MESSAGE, 0, "x", 1);
	cr_assert_eq(poll(&p, 1, 1000), 1);
	cr_assert_eq(receive(now_ns()), 0, "%s", err.msg);
	close_all();
}

/* -- what a peer says -- */

/* In manual mode: what the raw peer has posted on a lane comes, and nothing else happens. */
static void step_raw(uint32_t lane)
{
	struct fabric_choice ch[64];
	unsigned n, i;

	do {
		n = fabric_choices(ch, 64);
		for (i = 0; i < n; i++)
			if (ch[i].kind == FABRIC_DELIVER ||
			    (ch[i].kind == FABRIC_EXECUTE && ch[i].qp_num == raw.lane[lane].id->qp->qp_num))
				break;
		if (i < n)
			fabric_step(i);
	} while (i < n);
}

Test(peer, messages_without_credit)
{
	open_with(2);
	for (unsigned i = 0; i < 9; i++)
		cr_assert(rdma_raw_tell(&raw, 1, RDMA_MESSAGE, 0, "x", 1));
	breached("credit");
	close_all();
}

Test(peer, control_messages_without_credit)
{
	open_with(2);
	for (unsigned i = 0; i < RDMA_CONTROL_CREDITS + 1; i++)
		raw_announces(MIB);
	breached("credit");
	close_all();
}

/* A message that waits for room is not on its way: nobody can be done with it. */
Test(peer, credit_for_what_was_not_sent)
{
	struct rdma_head head;
	pthread_t t;
	int got = 1;

	params.sq_depth = 4;
	open_with(2);
	fabric_manual();
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert_eq(pthread_create(&t, NULL, sender, &got), 0);
	usleep(50000);
	head = rdma_raw_head(&raw, 1, RDMA_CREDIT, 0, 0);
	head.taken = to_be64(5);
	rdma_raw_say(&raw, 1, &head, NULL, 0);
	step_raw(1);
	cr_assert_eq(receive(deadline_in_ms(WAIT_MS)), -EPROTO, "%s", err.msg);
	pthread_join(t, NULL);
	cr_assert_eq(got, -EPROTO);
	fabric_immediate();
	close_all();
}

/* The peer's last word counts, whoever notices first that it has gone. */
Test(peer, breach_behind_a_failed_send)
{
	struct fabric_choice ch[64];
	unsigned n;

	open_with(2);
	fabric_manual();
	cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_BREACH, 0, "it was too much", 15));
	step_raw(0);
	for (uint32_t i = 0; i < 2; i++) {
		raw.f->disconnect(raw.lane[i].id);
		raw.f->destroy_qp(raw.lane[i].id);
	}
	n = fabric_choices(ch, 64);
	for (unsigned i = 0; i < n; i++)
		if (ch[i].kind == FABRIC_TIMEOUT && ch[i].qp_num) {
			fabric_step(i);
			break;
		}
	tp_completed(c, 1); /* looks at completions of sends only */
	cr_assert_eq(receive(deadline_in_ms(WAIT_MS)), -ECONNRESET);
	cr_assert(strstr(err.msg, "it was too much"), "%s", err.msg);
	fabric_immediate();
	close_all();
}

Test(peer, breach_is_printable)
{
	open_with(2);
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_BREACH, 0, "a\x9b\x1b[31m\xff", 8));
	cr_assert_eq(receive(deadline_in_ms(WAIT_MS)), -ECONNRESET);
	cr_assert(strstr(err.msg, "a??[31m?"), "%s", err.msg);
	close_all();
}

static void *stepper(void *arg)
{
	_Atomic bool *stop = arg;

	while (!*stop) {
		usleep(20000);
		fabric_settle();
	}
	return NULL;
}

/* tp_close() while the device takes its time. */
static void close_slowly(void)
{
	_Atomic bool stop = false;
	pthread_t t;

	rdma_linger_ms = 5000;
	cr_assert_eq(pthread_create(&t, NULL, stepper, &stop), 0);
	tp_close(c);
	c = NULL;
	stop = true;
	pthread_join(t, NULL);
	fabric_immediate();
}

/* The peer learns why, also when the connection is closed at once. */
Test(peer, breach_before_close)
{
	open_with(2);
	fabric_manual();
	cr_assert(rdma_raw_tell(&raw, 0, 99, 0, NULL, 0));
	step_raw(0);
	cr_assert_eq(receive(deadline_in_ms(WAIT_MS)), -EPROTO);
	close_slowly();
	cr_assert(raw_gets(RDMA_BREACH, 0));
	close_all();
}

/* All slots are under way when the last word is due. */
Test(peer, close_waits_for_a_slot)
{
	unsigned closed = 0;

	params.credits = 1;
	open_with(2);
	fabric_manual();
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(say(1, deadline_in_ms(WAIT_MS)), 0, "%s", err.msg);
	close_slowly();
	while (raw_gets(RDMA_CLOSE, 0))
		closed++;
	cr_assert_eq(closed, 2);
	close_all();
}

/* -- keys -- */

static void open_with_budget(uint32_t lanes, uint64_t budget, uint32_t capabilities)
{
	struct rdma_hello h;

	open_listener();
	rdma_raw_find(&raw, tp_listener_address(listener), lanes);
	for (uint32_t i = 0; i < lanes; i++) {
		rdma_raw_hello(&h, i, lanes);
		h.pin_budget = to_be64(budget);
		h.capabilities = to_be32(capabilities);
		rdma_raw_ask(&raw, i, &h, sizeof(h));
	}
	accept_raw();
}

/* What a good peer does with what has come. */
static void raw_serves(void)
{
	while (rdma_raw_next(&raw)) {
		if (from_be16(raw.head.kind) == RDMA_REGISTER)
			raw_grants();
		else if (from_be16(raw.head.kind) == RDMA_UNREGISTER)
			raw_lets_go();
	}
	rdma_raw_tell(&raw, 0, RDMA_CREDIT, 0, NULL, 0);
}

static uint64_t await_writes(uint32_t lane, uint64_t ticket)
{
	uint64_t done = 0;

	for (unsigned i = 0; i < 200 && done < ticket; i++) {
		tp_wait_completed(c, lane, ticket, deadline_in_ms(2), &err);
		raw_serves();
		receive(now_ns());
		done = tp_completed(c, lane);
	}
	return done;
}

static uint8_t source[4096];

static void open_for_writing(uint32_t lanes)
{
	open_with_budget(lanes, 4 * MIB, RDMA_CAP_CHUNKS);
	cr_assert_eq(tp_memory(c, source, sizeof(source), &err), 0, "%s", err.msg);
	raw_announces(8 * MIB);
}

/* Writes that are gathered on one lane hold the keys that another lane waits for. */
Test(peer, gathered_writes_and_another_lane)
{
	open_for_writing(3);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(put(1, i * MIB, source, 64), 0, "%s", err.msg);
	cr_assert_eq(await_writes(1, 4), 4, "%s", err.msg);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(put(1, i * MIB, source, 64), 0, "%s", err.msg);
	cr_assert_eq(put(2, 4 * MIB, source, 64), 0, "%s", err.msg);
	cr_assert_eq(await_writes(2, 1), 1, "%s", err.msg);
	close_all();
}

/* A message waits for a write, the write for a key, and all keys are held by writes behind the message. */
Test(peer, writes_behind_a_message_hold_all_keys)
{
	pthread_t t;
	int got = 1;

	open_for_writing(2);
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(put(1, i * MIB, source, 64), 0, "%s", err.msg);
	cr_assert_eq(pthread_create(&t, NULL, sender, &got), 0);
	usleep(50000);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(put(1, i * MIB, source, 64), 0, "%s", err.msg);
	cr_assert_eq(await_writes(1, 9), 9, "%s", err.msg);
	pthread_join(t, NULL);
	cr_assert_eq(got, 0);
	close_all();
}

static bool refuse_messages;

/* As a device that has room for the writes of a chain, and not for the message behind them. */
static int post_writes_only(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_send_wr *message = wr, *before = NULL;
	int r = 0;

	while (message && message->opcode != IBV_WR_SEND) {
		before = message;
		message = message->next;
	}
	if (!refuse_messages || !message)
		return fake->post_send(qp, wr, bad);
	if (before) {
		before->next = NULL;
		r = fake->post_send(qp, wr, bad);
	}
	*bad = r ? *bad : message;
	return r ? r : -ENOMEM;
}

/* The end of a chain, which would have told of its writes, was not taken, and then given up: the writes become known all the same. */
Test(peer, end_of_a_chain_is_given_up)
{
	struct rdma_fabric half;

	fake = rdma_fabric();
	half = *fake;
	half.post_send = post_writes_only;
	rdma_fabric_set(&half);
	open_for_writing(2);
	cr_assert_eq(put(1, 0, source, 64), 0, "%s", err.msg);
	cr_assert_eq(await_writes(1, 1), 1, "%s", err.msg);
	refuse_messages = true;
	cr_assert_eq(put(1, 0, source, 64), 0, "%s", err.msg);
	cr_assert_eq(say(1, deadline_in_ms(20)), -ETIMEDOUT, "%s", err.msg);
	refuse_messages = false;
	cr_assert_eq(await_writes(1, 2), 2, "%s", err.msg);
	close_all();
}

/* An answer must be about all that was asked, or what is left out would wait for ever. */
Test(peer, answer_is_too_short)
{
	struct rdma_key_entry e = { .rkey = to_be32(raw.mr ? raw.mr->rkey : 0) };

	open_for_writing(2);
	for (unsigned i = 0; i < 2; i++)
		tp_prepare(c, 0, i * MIB, MIB);
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT);
	tp_prepare(c, 0, 0, 2 * MIB);
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT);
	cr_assert(raw_gets(RDMA_REGISTER, WAIT_MS));
	cr_assert_eq(from_be16(raw.head.count), 2);
	memcpy(&e.chunk, raw.body, sizeof(e.chunk));
	e.rkey = to_be32(raw.mr->rkey);
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_REGISTERED, 1, &e, sizeof(e)));
	breached("answer");
	close_all();
}

/* A window is opened anew while the peer asks for a key of the old one: it is told so before it gets its answer, which would else be taken for
 * one about the new one. */
Test(peer, window_before_answer)
{
	static uint8_t memory[2][4096];
	const struct rdma_chunk_entry e = { .window = to_be32(0), .generation = to_be32(1) };
	bool told = false;

	open_with(2);
	for (uint32_t i = 0; i < RDMA_CONTROL_CREDITS; i++)
		cr_assert_eq(tp_window_open(c, i, memory[0], sizeof(memory[0]), &err), 0, "%s", err.msg);
	tp_window_close(c, 0);
	cr_assert_eq(tp_window_open(c, 0, memory[1], sizeof(memory[1]), &err), 0, "%s", err.msg);
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_REGISTER, 1, &e, sizeof(e)));
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT);
	while (rdma_raw_next(&raw))
		;
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_CREDIT, 0, NULL, 0));
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT);
	while (rdma_raw_next(&raw)) {
		told = told || from_be16(raw.head.kind) == RDMA_WINDOW;
		if (from_be16(raw.head.kind) == RDMA_REGISTERED)
			cr_assert(told, "the answer came first");
	}
	cr_assert(told);
	close_all();
}

/* -- memory -- */

/* A peer that wants whole windows does not get more pinned than this side's budget. */
Test(peer, whole_within_budget)
{
	void *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tp_info info;

	params.pin_budget = 4 * MIB;
	open_with_budget(2, 0, 0);
	tp_info(c, &info);
	cr_assert_str_eq(info.registration, "whole");
	cr_assert_eq(tp_window_open(c, 0, memory, 2 * MIB, &err), 0, "%s", err.msg);
	cr_assert_eq(tp_window_open(c, 1, memory, 3 * MIB, &err), -ENOMEM, "%s", err.msg);
	cr_assert(strstr(err.msg, "rdma-pin-budget"), "%s", err.msg);
	cr_assert_eq(tp_mirror(c, 0, memory, 8 * MIB, &err), -ENOMEM, "%s", err.msg);
	cr_assert(strstr(err.msg, "rdma-pin-budget"), "%s", err.msg);
	close_all();
	munmap(memory, 8 * MIB);
}

static size_t resident(void)
{
	unsigned long size = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	cr_assert(f && fscanf(f, "%lu %lu", &size, &pages) == 2);
	fclose(f);
	return pages * 4096;
}

/* Windows of a size that nobody has cost nothing as long as nothing is written to them. */
Test(peer, huge_windows)
{
	struct rdma_window_entry e[TP_WINDOWS_MAX];
	size_t before;

	open_with(2);
	for (uint32_t i = 0; i < TP_WINDOWS_MAX; i++)
		e[i] = (struct rdma_window_entry){ .window = to_be32(i),
						   .len = to_be64(UINT64_C(1) << 40),
						   .generation = to_be32(1) };
	before = resident();
	cr_assert(rdma_raw_tell(&raw, 0, RDMA_WINDOW, TP_WINDOWS_MAX, e, sizeof(e)));
	cr_assert_eq(receive(now_ns()), -ETIMEDOUT, "%s", err.msg);
	cr_assert_lt(resident() - before, 300 * MIB);
	close_all();
}
