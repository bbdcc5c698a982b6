/* SPDX-License-Identifier: MIT */
/* test_rdma.c - the data path of transport/rdma under faults, on the made-up fabric: each call fails once, and from then on; each status that a
 * work request can end with; memory that cannot be registered; queues that are full although they should not be; small devices; a wire that
 * takes nothing; events of the connection manager that come twice, or that nobody knows.  What the contract says in general is in
 * test_transport.c and test_transport_end.c, which run over rdma too; connecting and listening in test_rdma_setup.c; peers that lie in test_rdma_peer.c.
 *
 * The conversation is that of support/rdma_story.h.  Whatever happens, it must come to an end of itself (nobody runs into a deadline, unless
 * nothing could tell him), what was told must be in place, nothing may be left behind, and no rule of verbs be broken. */
#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "fabric_fake.h"
#include "rdma_private.h"
#include "rdma_story.h"
#include "transport.h"

static void setup(void)
{
	rdma_linger_ms = 20;
	fabric_start(NULL);
}

static void nothing_left(const char *what)
{
	const char *text;

	cr_assert_eq(fabric_violations(&text), 0, "%s: %s", what, text);
	cr_assert(fabric_all_gone(), "%s: left behind: %s", what, fabric_live_text());
}

static void teardown(void)
{
	nothing_left("in the end");
	fabric_stop();
}

TestSuite(rdma, .init = setup, .fini = teardown, .timeout = 600);

/* Small, with unpinning: 7 chunks and a budget of 4. */
static struct rdma_story small(uint64_t seed)
{
	return (struct rdma_story){
		.writer = { .lanes = 3, .credits = 2, .sq_depth = 8, .signal_every = 3, .pin_budget = 4u << 20 },
		.reader = { .lanes = 3, .credits = 2, .sq_depth = 8, .signal_every = 3, .pin_budget = 4u << 20 },
		.seed = seed
	};
}

static void tell_whole(struct rdma_story *s, const char *what)
{
	rdma_story(s);
	cr_assert(rdma_story_whole(s), "%s: %s", what, rdma_story_text(s));
	nothing_left(what);
}

/* Whatever came of it: no hang, nothing wrong, and who failed says why. */
static void tell_somehow(struct rdma_story *s, const char *what)
{
	rdma_story(s);
	cr_assert(!s->wrong[0], "%s: %s", what, rdma_story_text(s));
	cr_assert(s->rw == 0 || (s->rw != -ETIMEDOUT && s->ew.msg[0]), "%s: %s", what, rdma_story_text(s));
	cr_assert(s->rr != 0 && s->rr != -ETIMEDOUT && s->er.msg[0], "%s: %s", what, rdma_story_text(s));
	cr_assert(s->rw != 0 || s->rounds_done == s->rounds, "%s: %s", what, rdma_story_text(s));
	nothing_left(what);
}

/* -- without faults, for comparison -- */

Test(rdma, the_story_is_told_in_all_ways)
{
	static const enum tp_registration how[] = { TP_REGISTER_CHUNKS, TP_REGISTER_WHOLE, TP_REGISTER_ODP };
	struct fabric_config cfg;
	char what[64];

	for (uint64_t seed = 1; seed <= 12; seed++) {
		struct rdma_story s = small(seed);

		fabric_defaults(&cfg);
		cfg.odp = seed % 2;
		fabric_reset(&cfg);
		s.writer.registration = s.reader.registration = how[seed % 3];
		if (how[seed % 3] == TP_REGISTER_WHOLE)
			s.writer.pin_budget = s.reader.pin_budget = 0;
		s.writer.lanes = s.reader.lanes = 2 + (uint32_t)seed % 4;
		s.listen = seed % 4 ? NULL : "rdma:[fd09::1]:0";
		rdma_linger_ms = 20000; /* the thread takes its time for the last words too */
		if (seed > 6)
			fabric_random(seed, 100);
		snprintf(what, sizeof(what), "seed %u", (unsigned)seed);
		tell_whole(&s, what);
		cr_assert_str_eq(s.iw.registration, seed % 3 == 1              ? "whole"
						    : seed % 3 == 2 && cfg.odp ? "odp"
									       : "chunks");
		cr_assert_str_eq(s.iw.device, "fake0");
	}
}

/* More chunks than the budget has room for: they come and go, each registration is given back, and never is more pinned than may be. */
struct watch {
	uint64_t before, most; /* the slots of messages; with chunks and all */
};

static void look_before(void *user)
{
	struct watch *w = user;
	struct fabric_live l;

	fabric_live(&l);
	w->before = l.pinned;
}

static void look(void *user, unsigned round)
{
	struct watch *w = user;
	struct fabric_live l;

	(void)round;
	fabric_live(&l);
	if (l.pinned > w->most)
		w->most = l.pinned;
}

Test(rdma, a_budget_is_kept)
{
	struct rdma_story s = small(5);
	struct watch w = { 0 };

	s.window_bytes = 20u << 20;
	s.rounds = 20;
	s.plain = 2; /* unknown memory is pinned besides */
	s.connected = look_before;
	s.told = look;
	s.user = &w;
	tell_whole(&s, "within a budget of 4 of 20 chunks");
	cr_assert_gt(s.iw.unpins, 20);
	cr_assert_gt(s.ir.registrations, 20);
	cr_assert(s.iw.peer_pinned_bytes <= 4u << 20, "%llu", (unsigned long long)s.iw.peer_pinned_bytes);
	/* the reader's chunks, what the writer mirrors them from, and its announced memory */
	cr_assert(w.most <= w.before + (4u << 20) + (4u << 20) + (4u << 20), "%llu, %llu before",
		  (unsigned long long)w.most, (unsigned long long)w.before);
}

/* -- each call fails -- */

struct fault {
	enum fabric_call call;
	unsigned nth, times;
	int error;
};

static void arm(void *user)
{
	const struct fault *f = user;

	fabric_fail(f->call, f->nth, f->error, f->times);
}

/* The 1st, 2nd, ... call fails, until one run meets no fault; every @stride. */
static unsigned each_call(enum fabric_call call, int error, unsigned times, unsigned stride)
{
	struct fault f = { .call = call, .nth = 1, .times = times, .error = error };
	unsigned runs = 0;
	char what[96];

	for (;; f.nth += stride, runs++) {
		struct rdma_story s = small(7);

		fabric_reset(NULL);
		s.connected = arm;
		s.user = &f;
		snprintf(what, sizeof(what), "%s number %u%s: %s", fabric_call_name(call), f.nth,
			 times > 1 ? " on" : "", strerror(error));
		tell_somehow(&s, what);
		if (fabric_hits() == 0) {
			cr_assert(rdma_story_whole(&s), "%s: %s", what, rdma_story_text(&s));
			return runs;
		}
	}
}

Test(rdma, polling_fails)
{
	cr_assert_gt(each_call(FABRIC_POLL_CQ, EIO, 1, 7), 10);
	each_call(FABRIC_POLL_CQ, EIO, FABRIC_FOR_EVER, 41);
}

Test(rdma, posting_fails)
{
	cr_assert_gt(each_call(FABRIC_POST_SEND, EIO, 1, 3), 10);
	each_call(FABRIC_POST_SEND, EIO, FABRIC_FOR_EVER, 17);
	cr_assert_gt(each_call(FABRIC_POST_RECV, ENOMEM, 1, 2), 10);
	each_call(FABRIC_POST_RECV, EINVAL, FABRIC_FOR_EVER, 11);
}

Test(rdma, events_fail)
{
	each_call(FABRIC_GET_CQ_EVENT, ENOMEM, 1, 1);
	each_call(FABRIC_GET_CM_EVENT, ENOMEM, 1, 1);
	each_call(FABRIC_REQ_NOTIFY_CQ, ENOMEM, 1, 3);
	each_call(FABRIC_REQ_NOTIFY_CQ, ENOMEM, FABRIC_FOR_EVER, 29);
	each_call(FABRIC_DISCONNECT, EINVAL, 1, 1);
}

Test(rdma, registering_fails)
{
	cr_assert_gt(each_call(FABRIC_REG_MR, ENOMEM, 1, 1), 8);
	cr_assert_gt(each_call(FABRIC_REG_MR, EFAULT, 1, 1), 8);
	each_call(FABRIC_REG_MR, ENOMEM, 3, 1);
	each_call(FABRIC_REG_MR, ENOMEM, FABRIC_FOR_EVER, 1);
}

/* ENOMEM from posting is no error: everything is told in the end. */
Test(rdma, queues_that_are_full_for_a_while_cost_only_time)
{
	static const unsigned times[] = { 1, 2, 40 };
	char what[64];

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		struct fault f = { .call = FABRIC_POST_SEND, .nth = 1, .times = times[i], .error = ENOMEM };

		for (bool hit = true; hit; f.nth += times[i] + 6) {
			struct rdma_story s = small(9);

			fabric_reset(NULL);
			s.connected = arm;
			s.user = &f;
			snprintf(what, sizeof(what), "%u times from number %u on", f.times, f.nth);
			tell_whole(&s, what);
			hit = fabric_hits() > 0;
		}
		cr_assert_gt(f.nth, 30);
	}
}

/* -- each status -- */

struct end_of_wr {
	enum fabric_wr wr;
	unsigned nth;
	enum ibv_wc_status status;
};

static void arm_wr(void *user)
{
	const struct end_of_wr *e = user;

	fabric_fail_wr(e->wr, e->nth, e->status);
}

static void one_status(enum fabric_wr wr, enum ibv_wc_status status, unsigned nth, bool by_lot)
{
	struct end_of_wr e = { wr, nth, status };
	struct rdma_story s = small(11);
	char what[128];

	fabric_reset(NULL);
	if (by_lot)
		fabric_random(nth, 50);
	s.connected = arm_wr;
	s.user = &e;
	snprintf(what, sizeof(what), "request %u of kind %u ends with: %s", nth, wr, ibv_wc_status_str(status));
	tell_somehow(&s, what);
	if (fabric_hits() == 0) {
		cr_assert(rdma_story_whole(&s), "%s: %s", what, rdma_story_text(&s));
		cr_assert(nth > 1, "%s: there is none", what);
		return;
	}
	cr_assert(!rdma_story_whole(&s), "%s: was not noticed: %s", what, rdma_story_text(&s));
	/* the status is told by name on the side that had it, but where the peer's end may be told before it */
	if (status != IBV_WC_WR_FLUSH_ERR && !by_lot)
		cr_assert(strstr(s.ew.msg, ibv_wc_status_str(status)) || strstr(s.er.msg, ibv_wc_status_str(status)),
			  "%s: %s", what, rdma_story_text(&s));
	cr_assert(s.rw == 0 || s.rw == -ECONNRESET || s.rw == -EPIPE, "%s: %s", what, rdma_story_text(&s));
	cr_assert(s.rr == -ENODATA || s.rr == -ECONNRESET || s.rr == -EPIPE, "%s: %s", what, rdma_story_text(&s));
}

static void each_status(enum fabric_wr wr)
{
	for (int status = 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++)
		for (unsigned nth = 1; nth < 14; nth += nth < 3 ? 1 : 10)
			one_status(wr, (enum ibv_wc_status)status, nth, false);
	for (unsigned nth = 1; nth < 12; nth++)
		one_status(wr, IBV_WC_RETRY_EXC_ERR, nth, true);
}

Test(rdma, a_write_ends_with_each_status)
{
	each_status(FABRIC_WR_WRITE);
}

Test(rdma, a_message_ends_with_each_status)
{
	each_status(FABRIC_WR_SEND);
}

Test(rdma, a_receive_ends_with_each_status)
{
	each_status(FABRIC_WR_RECV);
}

/* -- little memory -- */

/* Less can be pinned than both sides believe: what fits is used, down to where it cannot be; then it is said. */
Test(rdma, less_memory_than_was_thought)
{
	unsigned whole = 0, refused = 0;
	char what[64];

	for (uint64_t mib = 40; mib > 0; mib--) {
		struct fabric_config cfg;
		struct rdma_story s = small(13);

		fabric_defaults(&cfg);
		cfg.max_pinned = mib << 20;
		fabric_reset(&cfg);
		s.writer.pin_budget = s.reader.pin_budget = 0;
		snprintf(what, sizeof(what), "%llu MiB", (unsigned long long)mib);
		tell_somehow(&s, what);
		whole += rdma_story_whole(&s);
		if (rdma_story_whole(&s))
			continue;
		refused++;
		cr_assert(strstr(s.ew.msg, "register") || strstr(s.er.msg, "register") || strstr(s.ew.msg, "pin") ||
				  strstr(s.er.msg, "pin"),
			  "%s: %s", what, rdma_story_text(&s));
	}
	cr_assert(whole > 5 && refused > 0, "%u whole, %u refused", whole, refused);
}

/* -- small devices -- */

Test(rdma, devices_of_all_sizes)
{
	unsigned whole = 0, refused = 0;
	char what[96];

	for (int wr = 8; wr <= 40; wr += wr < 20 ? 1 : 5) {
		for (int sge = 1; sge <= 4; sge += 3) {
			for (int cqe = 40; cqe <= 400; cqe += 120) {
				struct fabric_config cfg;
				struct rdma_story s = small(15);

				fabric_defaults(&cfg);
				cfg.max_qp_wr = wr;
				cfg.max_sge = sge;
				cfg.max_cqe = cqe;
				fabric_reset(&cfg);
				s.writer.credits = s.reader.credits = 8;
				snprintf(what, sizeof(what), "%d requests, %d parts, %d completions", wr, sge, cqe);
				rdma_story(&s);
				nothing_left(what);
				if (s.stood) {
					cr_assert(rdma_story_whole(&s), "%s: %s", what, rdma_story_text(&s));
					whole++;
					continue;
				}
				refused++;
				cr_assert(strstr(s.ew.msg, "are needed"), "%s: %s", what, rdma_story_text(&s));
			}
		}
	}
	cr_assert(whole > 20 && refused > 5, "%u whole, %u refused", whole, refused);
}

Test(rdma, memory_regions_run_out)
{
	char what[64];

	for (int mrs = 4; mrs < 24; mrs++) {
		struct fabric_config cfg;
		struct rdma_story s = small(17);

		fabric_defaults(&cfg);
		cfg.max_mr = mrs;
		fabric_reset(&cfg);
		snprintf(what, sizeof(what), "%d regions", mrs);
		tell_somehow(&s, what);
		cr_assert(mrs < 20 || rdma_story_whole(&s), "%s: %s", what, rdma_story_text(&s));
	}
}

/* -- the wire -- */

static void cut_dead(void *user, unsigned round)
{
	(void)user, (void)round;
	fabric_link(FABRIC_DEAD);
}

Test(rdma, a_dead_wire_is_told_by_name)
{
	for (unsigned by_lot = 0; by_lot < 2; by_lot++) {
		struct rdma_story s = small(19);
		uint64_t before = now_ns();

		fabric_reset(NULL);
		if (by_lot)
			fabric_random(19, 50);
		s.told = cut_dead;
		s.reader.lanes = s.writer.lanes = 3;
		s.deadline_ms = 2000; /* the reader has nothing on its way, so nothing tells it */
		rdma_story(&s);
		cr_assert(!s.wrong[0] && s.rounds_done == 1, "%s", rdma_story_text(&s));
		cr_assert_eq(s.rw, -ECONNRESET, "%s", rdma_story_text(&s));
		cr_assert(strstr(s.ew.msg, ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)), "%s", rdma_story_text(&s));
		cr_assert_lt(now_ns() - before, 20 * NS_PER_S);
		nothing_left("dead wire");
	}
}

static void cut_silent(void *user, unsigned round)
{
	(void)user, (void)round;
	fabric_link(FABRIC_SILENT);
}

Test(rdma, a_silent_wire_ends_at_the_deadline_and_closes_soon)
{
	struct rdma_story s;
	uint64_t before = 0, ms;

	/* a deadline that this machine keeps while the wire stands */
	for (ms = 300; ms < 30000; ms *= 4) {
		s = small(21);
		s.told = cut_silent;
		s.deadline_ms = (unsigned)ms;
		before = now_ns();
		rdma_story(&s);
		if (s.rounds_done)
			break;
	}
	cr_assert(!s.wrong[0] && s.rounds_done == 1, "%s", rdma_story_text(&s));
	cr_assert(s.rw == -ETIMEDOUT && s.rr == -ETIMEDOUT, "%s", rdma_story_text(&s));
	cr_assert_lt(now_ns() - before, 10 * NS_PER_S * ms / 300);
}

/* -- events of the connection manager, in the middle -- */

static int event_to_send;

static void send_event(void *user, unsigned round)
{
	(void)user;
	if (round == 1)
		fabric_cm_send(event_to_send, -EIO);
}

Test(rdma, events_that_mean_nothing_change_nothing)
{
	static const int events[] = { RDMA_CM_EVENT_ADDR_RESOLVED,
				      RDMA_CM_EVENT_ADDR_ERROR,
				      RDMA_CM_EVENT_ROUTE_ERROR,
				      RDMA_CM_EVENT_ESTABLISHED,
				      RDMA_CM_EVENT_ADDR_CHANGE,
				      RDMA_CM_EVENT_TIMEWAIT_EXIT,
				      RDMA_CM_EVENT_MULTICAST_JOIN,
				      RDMA_CM_EVENT_MULTICAST_ERROR,
				      16,
				      77,
				      999 };
	char what[32];

	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		struct rdma_story s = small(23);

		event_to_send = events[i];
		s.rounds = 4;
		s.told = send_event;
		snprintf(what, sizeof(what), "event %d", events[i]);
		tell_whole(&s, what);
	}
}

Test(rdma, events_that_end_it)
{
	static const struct {
		int event, code;
		const char *says;
	} ends[] = { { RDMA_CM_EVENT_DEVICE_REMOVAL, -ENODEV, "the device fake0 was removed" },
		     { RDMA_CM_EVENT_DISCONNECTED, -ECONNRESET, "lane" },
		     { RDMA_CM_EVENT_REJECTED, -ECONNRESET, "was lost" },
		     { RDMA_CM_EVENT_UNREACHABLE, -ECONNRESET, "is not there any more" } };
	char what[32];

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct rdma_story s = small(25);

		event_to_send = ends[i].event;
		s.rounds = 4;
		s.told = send_event;
		snprintf(what, sizeof(what), "event %d", ends[i].event);
		tell_somehow(&s, what);
		cr_assert(s.rounds_done < s.rounds, "%s: %s", what, rdma_story_text(&s));
		/* both have it; who closes first may be all that the other sees */
		cr_assert((s.rw == ends[i].code && strstr(s.ew.msg, ends[i].says)) ||
				  (s.rr == ends[i].code && strstr(s.er.msg, ends[i].says)),
			  "%s: %s", what, rdma_story_text(&s));
	}
}

static void remove_device(void *user, unsigned round)
{
	(void)user, (void)round;
	fabric_remove_device(0);
}

Test(rdma, the_device_goes)
{
	struct rdma_story s = small(27);

	s.told = remove_device;
	tell_somehow(&s, "device removed");
	cr_assert_eq(s.rounds_done, 1);
}

Test(rdma, a_goodbye_that_comes_twice_or_never)
{
	static const int to[] = { FABRIC_CM_TWICE, FABRIC_CM_NEVER };

	for (unsigned i = 0; i < 2; i++) {
		for (unsigned nth = 1; nth <= 6; nth++) {
			struct rdma_story s = small(29);

			fabric_reset(NULL);
			fabric_cm_change(RDMA_CM_EVENT_DISCONNECTED, nth, to[i], 0);
			tell_whole(&s, "goodbye");
		}
	}
}

/* -- windows -- */

static uint8_t *pages(size_t len)
{
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(p, MAP_FAILED);
	return p;
}

struct duo {
	struct tp_listener *l;
	struct tp_conn *a, *b;
	struct tp_params p;
	struct ft_error err;
	_Atomic bool stop;
	pthread_t t;
};

static void *connect_duo(void *arg)
{
	struct duo *d = arg;
	struct ft_error err;
	char uri[128];

	snprintf(uri, sizeof(uri), "rdma:%s", tp_listener_address(d->l));
	cr_assert_eq(tp_connect(&d->a, uri, &d->p, deadline_in_ms(20000), -1, &err), 0, "%s", err.msg);
	return NULL;
}

static void *receive_all(void *arg)
{
	static _Thread_local uint8_t buf[TP_MESSAGE_MAX];
	struct duo *d = arg;
	struct ft_error err;
	uint32_t lane;
	size_t len;

	while (!d->stop)
		tp_recv(d->b, buf, sizeof(buf), &lane, &len, deadline_in_ms(5), &err);
	return NULL;
}

/* With somebody in tp_recv() of b all the time. */
static void duo_open(struct duo *d)
{
	pthread_t t;

	cr_assert_eq(tp_listen(&d->l, "rdma:10.9.0.1:0", &d->p, &d->err), 0, "%s", d->err.msg);
	pthread_create(&t, NULL, connect_duo, d);
	cr_assert_eq(tp_accept(d->l, &d->b, deadline_in_ms(20000), -1, &d->err), 0, "%s", d->err.msg);
	pthread_join(t, NULL);
	pthread_create(&d->t, NULL, receive_all, d);
}

static void duo_close(struct duo *d)
{
	tp_close(d->a);
	d->stop = true;
	pthread_join(d->t, NULL);
	tp_close(d->b);
	tp_listener_close(d->l);
}

static void put(struct duo *d, uint64_t offset, const char *text)
{
	uint64_t ticket;

	cr_assert_eq(tp_write(d->a, 1, 0, offset, &(struct iovec){ (void *)text, strlen(text) }, 1, &ticket,
			      deadline_in_ms(20000), &d->err),
		     0, "%s", d->err.msg);
	cr_assert_eq(tp_wait_completed(d->a, 1, ticket, deadline_in_ms(20000), &d->err), 0, "%s", d->err.msg);
}

/* A number that is opened again stands for the new memory, of another length, whatever keys were out for the old one. */
Test(rdma, a_window_is_opened_again_elsewhere)
{
	for (unsigned whole = 0; whole < 2; whole++) {
		struct duo d = { .p = { .lanes = 2, .registration = whole ? TP_REGISTER_WHOLE : TP_REGISTER_CHUNKS } };
		static uint8_t buf[TP_MESSAGE_MAX];
		uint8_t *first = pages(3u << 20), *second = pages(5u << 20);
		size_t len;

		duo_open(&d);
		cr_assert_eq(tp_window_open(d.b, 0, first, 3u << 20, &d.err), 0, "%s", d.err.msg);
		put(&d, 0, "one");
		put(&d, 2u << 20, "two");
		cr_assert_str_eq((char *)first, "one");
		tp_window_close(d.b, 0);
		put(&d, 100, "still"); /* it stays registered until it is opened again */
		cr_assert_str_eq((char *)first + 100, "still");
		cr_assert_eq(tp_window_open(d.b, 0, second, 5u << 20, &d.err), 0, "%s", d.err.msg);
		/* known when the word of the other side was read */
		while (tp_write(d.a, 1, 0, 4u << 20, &(struct iovec){ "far", 3 }, 1, NULL, deadline_in_ms(1), &d.err) !=
		       0) {
			cr_assert_eq(d.err.code, -EINVAL, "%s", d.err.msg);
			cr_assert_eq(tp_recv(d.a, buf, sizeof(buf), NULL, &len, now_ns(), &d.err), -ETIMEDOUT, "%s",
				     d.err.msg);
		}
		put(&d, 0, "three");
		cr_assert_str_eq((char *)second, "three");
		cr_assert_str_eq((char *)second + (4u << 20), "far");
		cr_assert_str_eq((char *)first, "one");
		duo_close(&d);
		munmap(first, 3u << 20);
		munmap(second, 5u << 20);
		nothing_left("windows");
	}
}

/* Memory that may not be registered at all. */
Test(rdma, memory_that_is_not_there)
{
	struct duo d = { .p = { .lanes = 2 } };
	uint8_t *window = pages(2u << 20);

	duo_open(&d);
	cr_assert_eq(tp_window_open(d.b, 0, window, 2u << 20, &d.err), 0);
	put(&d, 0, "fine");
	cr_assert_eq(tp_memory(d.a, (void *)4096, 100, &d.err), -EFAULT, "%s", d.err.msg);
	cr_assert(strstr(d.err.msg, "cannot be registered with fake0"), "%s", d.err.msg);
	put(&d, 0, "still fine");
	cr_assert_eq(
		tp_write(d.a, 1, 0, 0, &(struct iovec){ (void *)4096, 100 }, 1, NULL, deadline_in_ms(20000), &d.err),
		-EFAULT, "%s", d.err.msg);
	cr_assert_eq(tp_write(d.a, 1, 0, 0, &(struct iovec){ "x", 1 }, 1, NULL, deadline_in_ms(20000), &d.err), -EFAULT,
		     "half a write cannot be taken back: %s", d.err.msg);
	duo_close(&d);
	munmap(window, 2u << 20);
}
