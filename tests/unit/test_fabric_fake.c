/* SPDX-License-Identifier: MIT */
/* test_fabric_fake.c - the made-up fabric keeps the rules of verbs, and notes who breaks them: each rule is seen to bite.  The table is
 * called directly, as transport/rdma does; nothing of ft is in between. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "fabric_fake.h"

#define BYTES 4096u

static const struct rdma_fabric *f;

/* One end of a connection, with what it owns. */
struct end {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *cc;
	struct ibv_cq *scq, *rcq;
	struct ibv_mr *mr;
	uint8_t mem[BYTES];
};

struct two {
	struct rdma_event_channel *lch;
	struct rdma_cm_id *listener;
	struct end a, b; /* active, passive */
	struct rdma_conn_param pa, pb;
};

static void setup(void)
{
	fabric_start(NULL);
	f = rdma_fabric();
}

static void teardown(void)
{
	fabric_stop();
}

TestSuite(fabric, .init = setup, .fini = teardown, .timeout = 60);

static struct sockaddr_in v4(const char *text, uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	cr_assert_eq(inet_pton(AF_INET, text, &a.sin_addr), 1);
	return a;
}

static void no_violation(void)
{
	const char *text;

	cr_assert_eq(fabric_violations(&text), 0, "%s", text);
}

static void violation(const char *part)
{
	const char *text;

	cr_assert_eq(fabric_violations(&text), 1, "%s", text);
	cr_assert(strstr(text, part), "%s", text);
	fabric_forget_violations();
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* The next event of the channel must be @type; acked at once.  The id it is about. */
static struct rdma_cm_id *event(struct rdma_event_channel *ch, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *e = NULL;
	struct rdma_cm_id *id;

	cr_assert(readable(ch->fd));
	cr_assert_eq(f->get_cm_event(ch, &e), 0);
	cr_assert(e->event == type && e->status == status, "%s, status %d", rdma_event_str(e->event), e->status);
	id = e->id;
	cr_assert_eq(f->ack_cm_event(e), 0);
	return id;
}

static void no_event(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *e;

	cr_assert(!readable(ch->fd));
	cr_assert_eq(f->get_cm_event(ch, &e), -EAGAIN);
}

static void equip(struct end *e, unsigned depth, int cqe)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = depth,
						  .max_recv_wr = depth,
						  .max_send_sge = 2,
						  .max_recv_sge = 1,
						  .max_inline_data = 64 } };

	e->pd = f->alloc_pd(e->id->verbs);
	e->cc = f->create_comp_channel(e->id->verbs);
	e->scq = f->create_cq(e->id->verbs, cqe, NULL, e->cc);
	e->rcq = f->create_cq(e->id->verbs, cqe, NULL, e->cc);
	cr_assert(e->pd && e->cc && e->scq && e->rcq);
	attr.send_cq = e->scq;
	attr.recv_cq = e->rcq;
	cr_assert_eq(f->create_qp(e->id, e->pd, &attr), 0);
	e->mr = f->reg_mr(e->pd, e->mem, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cr_assert(e->mr);
}

static void unequip(struct end *e)
{
	if (e->id && e->id->qp)
		f->destroy_qp(e->id);
	if (e->mr)
		cr_assert_eq(f->dereg_mr(e->mr), 0);
	if (e->scq)
		cr_assert_eq(f->destroy_cq(e->scq), 0);
	if (e->rcq)
		cr_assert_eq(f->destroy_cq(e->rcq), 0);
	if (e->cc)
		cr_assert_eq(f->destroy_comp_channel(e->cc), 0);
	if (e->pd)
		cr_assert_eq(f->dealloc_pd(e->pd), 0);
	if (e->id)
		cr_assert_eq(f->destroy_id(e->id), 0);
	if (e->ch)
		f->destroy_event_channel(e->ch);
	memset(e, 0, sizeof(*e));
}

static struct sockaddr_in bound(struct rdma_cm_id *id)
{
	return id->route.addr.src_sin;
}

static void listen_at(struct two *t, const char *address)
{
	struct sockaddr_in any = v4(address, 0);

	memset(t, 0, sizeof(*t));
	t->lch = f->create_event_channel();
	cr_assert_eq(f->create_id(t->lch, &t->listener, NULL), 0);
	cr_assert_eq(f->bind_addr(t->listener, (struct sockaddr *)&any), 0);
	cr_assert_eq(f->listen(t->listener, 4), 0);
	cr_assert_neq(bound(t->listener).sin_port, 0);
}

/* The active side, up to a queue pair. */
static void approach(struct two *t, const char *address)
{
	struct sockaddr_in to = v4(address, ntohs(bound(t->listener).sin_port));

	t->a.ch = f->create_event_channel();
	cr_assert_eq(f->create_id(t->a.ch, &t->a.id, NULL), 0);
	cr_assert_eq(f->resolve_addr(t->a.id, NULL, (struct sockaddr *)&to, 1000), 0);
	cr_assert_null(t->a.id->verbs, "the device is known when the event was got");
	cr_assert_eq(event(t->a.ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0), t->a.id);
	cr_assert(t->a.id->verbs);
	cr_assert_eq(f->resolve_route(t->a.id, 1000), 0);
	cr_assert_eq(event(t->a.ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0), t->a.id);
}

static void join_with(struct two *t, unsigned depth, int cqe)
{
	listen_at(t, "10.9.0.1");
	approach(t, "10.9.0.1");
	equip(&t->a, depth, cqe);
	t->pa.retry_count = 6;
	cr_assert_eq(f->connect(t->a.id, &t->pa), 0);
	t->b.id = event(t->lch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	cr_assert_neq(t->b.id, t->listener);
	equip(&t->b, depth, cqe);
	t->b.ch = f->create_event_channel();
	cr_assert_eq(f->migrate_id(t->b.id, t->b.ch), 0);
	cr_assert_eq(f->accept(t->b.id, &t->pb), 0);
	cr_assert_eq(event(t->a.ch, RDMA_CM_EVENT_ESTABLISHED, 0), t->a.id);
	cr_assert_eq(event(t->b.ch, RDMA_CM_EVENT_ESTABLISHED, 0), t->b.id);
}

static void join(struct two *t)
{
	t->pb.rnr_retry_count = 0;
	join_with(t, 8, 32);
}

static void part(struct two *t)
{
	unequip(&t->a);
	unequip(&t->b);
	if (t->listener)
		cr_assert_eq(f->destroy_id(t->listener), 0);
	if (t->lch)
		f->destroy_event_channel(t->lch);
	cr_assert(fabric_all_gone(), "%s", fabric_live_text());
}

static int post_write(struct end *from, uint64_t wr_id, const void *at, uint32_t len, struct end *to, uint64_t offset,
		      unsigned flags)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)at, len, from->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = flags
	};
	struct ibv_send_wr *bad = NULL;
	int r;

	wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)to->mem + offset;
	wr.wr.rdma.rkey = to->mr->rkey;
	r = f->post_send(from->id->qp, &wr, &bad);
	cr_assert_eq(bad, r ? &wr : NULL);
	return r;
}

static int post_message(struct end *from, uint64_t wr_id, const void *at, uint32_t len, unsigned flags)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)at, len, from->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags
	};
	struct ibv_send_wr *bad = NULL;

	return f->post_send(from->id->qp, &wr, &bad);
}

static int post_receive(struct end *e, uint64_t wr_id, uint32_t offset, uint32_t len)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)(e->mem + offset), len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	return f->post_recv(e->id->qp, &wr, &bad);
}

static struct ibv_wc polled(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { 0 };

	cr_assert_eq(f->poll_cq(cq, 1, &wc), 1);
	cr_assert(wc.wr_id == wr_id && wc.status == status, "id %llu: %s", (unsigned long long)wc.wr_id,
		  ibv_wc_status_str(wc.status));
	return wc;
}

static void empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	cr_assert_eq(f->poll_cq(cq, 1, &wc), 0);
}

/* Take the step of this kind at the queue pair, which must be possible. */
static void step(enum fabric_step_kind kind, struct end *e)
{
	struct fabric_choice c[64];
	unsigned n = fabric_choices(c, 64);

	for (unsigned i = 0; i < n; i++)
		if (c[i].kind == kind && (kind == FABRIC_CM || c[i].qp_num == e->id->qp->qp_num)) {
			fabric_step(i);
			return;
		}
	cr_assert(false, "step %u is not possible", kind);
}

static bool possible(enum fabric_step_kind kind, struct end *e)
{
	struct fabric_choice c[64];
	unsigned n = fabric_choices(c, 64);

	for (unsigned i = 0; i < n; i++)
		if (c[i].kind == kind && c[i].qp_num == e->id->qp->qp_num)
			return true;
	return false;
}

/* -- what goes well -- */

Test(fabric, a_write_and_a_message)
{
	struct two t;
	struct ibv_wc wc;

	join(&t);
	memcpy(t.a.mem, "written, then told", 19);
	cr_assert_eq(post_receive(&t.b, 7, 0, 64), 0);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 7, &t.b, 100, 0), 0);
	cr_assert_eq(post_message(&t.a, 2, t.a.mem + 9, 9, IBV_SEND_SIGNALED), 0);
	wc = polled(t.b.rcq, 7, IBV_WC_SUCCESS);
	cr_assert(wc.opcode == IBV_WC_RECV && wc.byte_len == 9 && wc.qp_num == t.b.id->qp->qp_num);
	cr_assert_arr_eq(t.b.mem, "then told", 9);
	cr_assert_arr_eq(t.b.mem + 100, "written", 7);
	wc = polled(t.a.scq, 2, IBV_WC_SUCCESS);
	cr_assert_eq(wc.opcode, IBV_WC_SEND);
	empty(t.a.scq); /* the write was not signaled */
	empty(t.b.scq);
	part(&t);
	no_violation();
}

Test(fabric, private_data_has_the_length_of_its_kind)
{
	struct rdma_conn_param p = { .private_data = "hello", .private_data_len = 5, .retry_count = 6 };
	struct rdma_cm_event *e;
	static char big[200];
	struct two t;

	listen_at(&t, "0.0.0.0");
	approach(&t, "10.9.0.1");
	equip(&t.a, 4, 8);
	p.private_data = big;
	p.private_data_len = 57;
	cr_assert_eq(f->connect(t.a.id, &p), -EINVAL);
	p.private_data = "hello";
	p.private_data_len = 5;
	cr_assert_eq(f->connect(t.a.id, &p), 0);
	cr_assert_eq(f->get_cm_event(t.lch, &e), 0);
	cr_assert(e->event == RDMA_CM_EVENT_CONNECT_REQUEST && e->listen_id == t.listener && e->id->verbs);
	cr_assert_eq(e->param.conn.private_data_len, 56);
	cr_assert_arr_eq(e->param.conn.private_data, "hello\0\0", 7);
	t.b.id = e->id;
	cr_assert_eq(f->ack_cm_event(e), 0);
	cr_assert_eq(f->reject(t.b.id, big, 149), -EINVAL);
	cr_assert_eq(f->reject(t.b.id, "no", 2), 0);
	cr_assert_eq(f->get_cm_event(t.a.ch, &e), 0);
	cr_assert(e->event == RDMA_CM_EVENT_REJECTED && e->status == 28 && e->param.conn.private_data_len == 148);
	cr_assert_arr_eq(e->param.conn.private_data, "no\0", 3);
	cr_assert_eq(f->ack_cm_event(e), 0);
	part(&t);
	no_violation();
}

Test(fabric, nobody_listens_and_nobody_takes)
{
	struct rdma_conn_param p = { .retry_count = 6 };
	struct two t;

	listen_at(&t, "10.9.0.1");
	approach(&t, "10.9.0.1");
	equip(&t.a, 4, 8);
	cr_assert_eq(f->destroy_id(t.listener), 0);
	cr_assert_eq(f->connect(t.a.id, &p), 0);
	event(t.a.ch, RDMA_CM_EVENT_REJECTED, 8);
	unequip(&t.a);
	f->destroy_event_channel(t.lch);
	listen_at(&t, "10.9.0.1");
	approach(&t, "10.9.0.1");
	equip(&t.a, 4, 8);
	cr_assert_eq(f->connect(t.a.id, &p), 0);
	no_event(t.a.ch);
	cr_assert_eq(f->destroy_id(t.listener), 0); /* with a request that it never looked at */
	event(t.a.ch, RDMA_CM_EVENT_REJECTED, 28);
	t.listener = NULL;
	part(&t);
	no_violation();
}

Test(fabric, addresses)
{
	struct sockaddr_in any = v4("0.0.0.0", 5000), one = v4("10.9.0.1", 5000), two = v4("10.9.0.2", 0);
	struct sockaddr_in6 local = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	struct rdma_event_channel *ch = f->create_event_channel();
	struct rdma_cm_id *x, *y;

	inet_pton(AF_INET6, "fe80::1", &local.sin6_addr);
	cr_assert_eq(f->create_id(ch, &x, NULL), 0);
	cr_assert_eq(f->create_id(ch, &y, NULL), 0);
	cr_assert_eq(f->bind_addr(x, (struct sockaddr *)&two), -EADDRNOTAVAIL);
	cr_assert_eq(f->bind_addr(x, (struct sockaddr *)&any), 0);
	cr_assert_null(x->verbs);
	cr_assert_eq(f->bind_addr(y, (struct sockaddr *)&one), -EADDRINUSE);
	cr_assert_eq(f->destroy_id(x), 0);
	cr_assert_eq(f->bind_addr(y, (struct sockaddr *)&one), 0);
	cr_assert(y->verbs);
	cr_assert_eq(f->destroy_id(y), 0);
	cr_assert_eq(f->create_id(ch, &x, NULL), 0);
	cr_assert_eq(f->resolve_addr(x, NULL, (struct sockaddr *)&local, 1), -EINVAL, "no scope");
	local.sin6_scope_id = 3;
	cr_assert_eq(f->resolve_addr(x, NULL, (struct sockaddr *)&local, 1), 0);
	event(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	fabric_address("fe80::1", RDMA_CM_EVENT_ROUTE_ERROR, -ENETUNREACH);
	cr_assert_eq(f->resolve_route(x, 1), 0);
	event(ch, RDMA_CM_EVENT_ROUTE_ERROR, -ENETUNREACH);
	cr_assert_eq(f->destroy_id(x), 0);
	fabric_address("10.9.0.1", RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	cr_assert_eq(f->create_id(ch, &x, NULL), 0);
	cr_assert_eq(f->resolve_addr(x, NULL, (struct sockaddr *)&one, 1), 0);
	event(ch, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	cr_assert_eq(f->destroy_id(x), 0);
	f->destroy_event_channel(ch);
	cr_assert(fabric_all_gone());
	no_violation();
}

/* -- order -- */

Test(fabric, the_answer_may_overtake_the_completion)
{
	struct two t;

	join(&t);
	cr_assert_eq(post_receive(&t.a, 1, 0, 64), 0);
	cr_assert_eq(post_receive(&t.b, 2, 0, 64), 0);
	fabric_manual();
	cr_assert_eq(post_message(&t.a, 3, t.a.mem, 4, IBV_SEND_SIGNALED), 0);
	step(FABRIC_EXECUTE, &t.a);
	empty(t.b.rcq);
	step(FABRIC_DELIVER, &t.b);
	polled(t.b.rcq, 2, IBV_WC_SUCCESS);
	cr_assert_eq(post_message(&t.b, 4, t.b.mem, 4, IBV_SEND_SIGNALED), 0);
	step(FABRIC_EXECUTE, &t.b);
	step(FABRIC_DELIVER, &t.a);
	polled(t.a.rcq, 1, IBV_WC_SUCCESS);
	empty(t.a.scq);
	step(FABRIC_ACK, &t.a);
	polled(t.a.scq, 3, IBV_WC_SUCCESS);
	cr_assert_eq(fabric_settle(), 1);
	polled(t.b.scq, 4, IBV_WC_SUCCESS);
	part(&t);
	no_violation();
}

Test(fabric, memory_is_read_when_a_request_is_executed)
{
	struct two t;

	join(&t);
	fabric_manual();
	memcpy(t.a.mem, "early", 5);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), 0);
	cr_assert_eq(post_write(&t.a, 2, t.a.mem, 5, &t.b, 10, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
	memcpy(t.a.mem, "later", 5);
	cr_assert(!possible(FABRIC_ACK, &t.a));
	step(FABRIC_EXECUTE, &t.a);
	step(FABRIC_EXECUTE, &t.a);
	cr_assert_arr_eq(t.b.mem, "later", 5);
	cr_assert_arr_eq(t.b.mem + 10, "early", 5);
	step(FABRIC_ACK, &t.a);
	step(FABRIC_ACK, &t.a);
	polled(t.a.scq, 1, IBV_WC_SUCCESS);
	polled(t.a.scq, 2, IBV_WC_SUCCESS);
	part(&t);
	no_violation();
}

Test(fabric, a_torn_write_is_whole_before_its_message)
{
	struct fabric_config cfg;
	struct two t;

	fabric_defaults(&cfg);
	cfg.torn = true;
	fabric_reset(&cfg);
	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, 100, 8), 0);
	fabric_manual();
	memcpy(t.a.mem, "abcdef", 6);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 6, &t.b, 0, 0), 0);
	cr_assert_eq(post_message(&t.a, 2, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	step(FABRIC_EXECUTE, &t.a);
	cr_assert_arr_eq(t.b.mem, "abc\0\0\0", 6);
	step(FABRIC_EXECUTE, &t.a);
	cr_assert_arr_eq(t.b.mem, "abcdef", 6);
	cr_assert(!possible(FABRIC_DELIVER, &t.b));
	step(FABRIC_EXECUTE, &t.a);
	cr_assert(possible(FABRIC_DELIVER, &t.b));
	part(&t);
}

Test(fabric, one_completion_tells_of_all_before_it)
{
	struct two t;

	join_with(&t, 4, 8);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(post_write(&t.a, i, t.a.mem, 5, &t.b, 0, 0), 0);
	cr_assert_eq(post_write(&t.a, 3, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), 0);
	/* all are executed, but the user does not know: no place is free, and the memory is still in use */
	cr_assert_eq(post_write(&t.a, 4, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), -ENOMEM);
	polled(t.a.scq, 3, IBV_WC_SUCCESS);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(post_write(&t.a, i, t.a.mem, 5, &t.b, 0, 0), 0);
	no_violation();
	cr_assert_eq(f->dereg_mr(t.a.mr), 0);
	t.a.mr = NULL;
	violation("still uses");
	part(&t);
}

Test(fabric, queues_are_told_of_as_armed)
{
	struct ibv_cq *cq;
	void *context;
	struct two t;

	join(&t);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), 0);
	cr_assert_eq(f->req_notify_cq(t.a.scq, 0), 0);
	cr_assert(!readable(t.a.cc->fd), "what came before is not told");
	cr_assert_eq(post_write(&t.a, 2, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), 0);
	cr_assert_eq(post_write(&t.a, 3, t.a.mem, 5, &t.b, 0, IBV_SEND_SIGNALED), 0);
	cr_assert(readable(t.a.cc->fd));
	cr_assert_eq(f->get_cq_event(t.a.cc, &cq, &context), 0);
	cr_assert_eq(cq, t.a.scq);
	cr_assert_eq(f->get_cq_event(t.a.cc, &cq, &context), -EAGAIN, "once");
	cr_assert(!readable(t.a.cc->fd));
	f->ack_cq_events(cq, 1);
	no_violation();
	f->ack_cq_events(cq, 1);
	violation("acked");
	part(&t);
}

/* -- memory -- */

Test(fabric, keys_are_checked)
{
	struct ibv_mr *readonly, *foreign, old;
	struct two t;
	static uint8_t other[100];

	/* each once at the peer's side: rkey of another domain, no right, given back, out of bounds; the requester is told, both are in error */
	for (unsigned i = 0; i < 4; i++) {
		struct end to;

		join(&t);
		to = t.b;
		readonly = f->reg_mr(t.b.pd, t.b.mem, 100, IBV_ACCESS_LOCAL_WRITE);
		foreign = f->reg_mr(t.a.pd, t.b.mem, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		old = *f->reg_mr(t.b.pd, t.b.mem, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		to.mr = i == 0 ? foreign : i == 1 ? readonly : i == 2 ? &old : t.b.mr;
		if (i == 2)
			for (unsigned n = 0; n < 5; n++) { /* the place is used again: the old key stays wrong */
				struct ibv_mr *mr =
					f->reg_mr(t.b.pd, other, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

				cr_assert_neq(mr->rkey, old.rkey);
				cr_assert_eq(f->dereg_mr(mr), 0);
			}
		cr_assert_eq(post_receive(&t.b, 5, 0, 10), 0);
		cr_assert_eq(post_write(&t.a, 1, t.a.mem, 100, &to, i == 3 ? BYTES - 99 : 0, 0), 0);
		polled(t.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
		polled(t.b.rcq, 5, IBV_WC_WR_FLUSH_ERR);
		cr_assert(t.a.id->qp->state == IBV_QPS_ERR && t.b.id->qp->state == IBV_QPS_ERR);
		cr_assert_eq(post_message(&t.a, 9, t.a.mem, 1, 0), 0);
		polled(t.a.scq, 9, IBV_WC_WR_FLUSH_ERR);
		no_violation();
		fabric_reset(NULL);
	}
}

Test(fabric, local_keys_are_checked)
{
	struct two t;
	static uint8_t other[100];

	join(&t);
	cr_assert_eq(post_write(&t.a, 1, other, 10, &t.b, 0, 0), 0); /* not in the region */
	polled(t.a.scq, 1, IBV_WC_LOC_PROT_ERR);
	part(&t);
	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, BYTES - 5, 10), 0);
	cr_assert_eq(post_message(&t.a, 2, t.a.mem, 3, 0), 0);
	polled(t.b.rcq, 1, IBV_WC_LOC_PROT_ERR);
	polled(t.a.scq, 2, IBV_WC_REM_OP_ERR);
	part(&t);
	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, 0, 10), 0);
	cr_assert_eq(post_message(&t.a, 2, t.a.mem, 11, 0), 0);
	polled(t.b.rcq, 1, IBV_WC_LOC_LEN_ERR);
	polled(t.a.scq, 2, IBV_WC_REM_INV_REQ_ERR);
	part(&t);
	no_violation();
}

Test(fabric, registration_has_limits)
{
	struct fabric_config cfg;
	struct ibv_mr *mr;
	struct two t;

	fabric_defaults(&cfg);
	cfg.max_pinned = 2 * BYTES + 100;
	cfg.max_mr_size = BYTES;
	fabric_reset(&cfg);
	join(&t);
	errno = 0;
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 101, 0) && errno == ENOMEM);
	mr = f->reg_mr(t.a.pd, t.a.mem, 100, 0);
	cr_assert(mr && f->dereg_mr(mr) == 0);
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, BYTES + 1, 0) && errno == EINVAL);
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 10, IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	cr_assert(!f->reg_mr(t.a.pd, (void *)4096, 10, 0) && errno == EFAULT);
	no_violation();
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 10, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	violation("not locally");
	cr_assert_eq(fabric_registered(), 3);
	part(&t);
}

/* -- breaches of the rules by the user -- */

Test(fabric, queues_have_limits)
{
	struct two t;

	join_with(&t, 4, 2);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(post_receive(&t.b, i, i * 8, 8), 0);
	cr_assert_eq(post_receive(&t.b, 4, 0, 8), -ENOMEM);
	violation("receive queue");
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(post_message(&t.a, i, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	no_violation();
	cr_assert_eq(post_message(&t.a, 2, t.a.mem, 1, 0), 0);
	violation("overrun"); /* the receiver's; the sender's is not signaled */
	part(&t);
}

Test(fabric, a_message_without_a_receive)
{
	struct two t;

	memset(&t, 0, sizeof(t));
	join(&t); /* b accepts with rnr_retry_count 0: a does not try again */
	cr_assert_eq(post_message(&t.a, 1, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	violation("receiver not ready");
	polled(t.a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	part(&t);
	listen_at(&t, "10.9.0.1");
	approach(&t, "10.9.0.1");
	equip(&t.a, 4, 8);
	cr_assert_eq(f->connect(t.a.id, &(struct rdma_conn_param){ .retry_count = 6 }), 0);
	t.b.id = event(t.lch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	equip(&t.b, 4, 8);
	cr_assert_eq(f->accept(t.b.id, &(struct rdma_conn_param){ .rnr_retry_count = 7 }), 0);
	event(t.a.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	cr_assert_eq(post_message(&t.a, 1, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	violation("receiver not ready");
	empty(t.a.scq); /* 7 is for ever */
	cr_assert_eq(post_receive(&t.b, 2, 0, 8), 0);
	polled(t.b.rcq, 2, IBV_WC_SUCCESS);
	polled(t.a.scq, 1, IBV_WC_SUCCESS);
	part(&t);
	no_violation();
}

Test(fabric, destroying_in_the_wrong_order)
{
	struct rdma_cm_event *e;
	struct two t;

	join(&t);
	cr_assert_eq(f->dealloc_pd(t.a.pd), -EBUSY);
	violation("1 regions and 1 queue pairs");
	cr_assert_eq(f->destroy_cq(t.a.scq), -EBUSY);
	violation("completion queue");
	cr_assert_eq(f->destroy_comp_channel(t.a.cc), -EBUSY);
	violation("completion channel");
	cr_assert_eq(f->disconnect(t.b.id), 0);
	cr_assert_eq(f->get_cm_event(t.a.ch, &e), 0);
	f->destroy_qp(t.a.id);
	cr_assert_eq(f->destroy_id(t.a.id), 0);
	violation("events that are not acked");
	cr_assert_eq(f->ack_cm_event(e), 0);
	no_violation();
	cr_assert_eq(f->ack_cm_event(e), -EINVAL);
	violation("twice");
	t.a.id = NULL;
	f->destroy_qp(t.b.id);
	part(&t);
	join(&t);
	cr_assert_eq(f->destroy_id(t.a.id), 0);
	violation("with its queue pair");
}

Test(fabric, sending_before_the_connection_stands)
{
	struct rdma_cm_event *e;
	struct two t;

	listen_at(&t, "10.9.0.1");
	approach(&t, "10.9.0.1");
	equip(&t.a, 4, 8);
	t.b = t.a;
	cr_assert_eq(post_receive(&t.a, 1, 0, 8), 0, "receives may be posted at once");
	cr_assert_eq(post_message(&t.a, 1, t.a.mem, 1, 0), -EINVAL);
	violation("before it is connected");
	cr_assert_eq(f->accept(t.a.id, NULL), -EINVAL);
	violation("accept without");
	memset(&t.b, 0, sizeof(t.b));
	/* the passive side may send once it has accepted; it arrives when the other side has got its event */
	cr_assert_eq(f->connect(t.a.id, &t.pa), 0);
	t.b.id = event(t.lch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	equip(&t.b, 4, 8);
	cr_assert_eq(f->accept(t.b.id, NULL), 0);
	cr_assert_eq(post_message(&t.b, 2, t.b.mem, 1, IBV_SEND_SIGNALED), 0);
	empty(t.a.rcq);
	cr_assert_eq(f->get_cm_event(t.a.ch, &e), 0);
	cr_assert_eq(f->ack_cm_event(e), 0);
	polled(t.a.rcq, 1, IBV_WC_SUCCESS);
	part(&t);
	no_violation();
}

/* -- the end of a connection -- */

Test(fabric, goodbyes)
{
	struct two t;

	join(&t);
	fabric_manual();
	cr_assert_eq(post_receive(&t.a, 1, 0, 8), 0);
	cr_assert_eq(post_receive(&t.b, 2, 0, 8), 0);
	cr_assert_eq(post_receive(&t.b, 3, 0, 8), 0);
	cr_assert_eq(post_message(&t.a, 4, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	step(FABRIC_EXECUTE, &t.a);
	cr_assert_eq(post_message(&t.a, 5, t.a.mem, 1, 0), 0);
	cr_assert_eq(f->disconnect(t.a.id), 0);
	cr_assert(!possible(FABRIC_EXECUTE, &t.a));
	fabric_settle();
	polled(t.a.scq, 4, IBV_WC_WR_FLUSH_ERR); /* it did arrive, but that is not known here any more */
	polled(t.a.scq, 5, IBV_WC_WR_FLUSH_ERR);
	polled(t.a.rcq, 1, IBV_WC_WR_FLUSH_ERR);
	polled(t.b.rcq, 2, IBV_WC_SUCCESS);
	empty(t.b.rcq); /* b has not left: its queue pair still stands */
	event(t.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	no_event(t.a.ch);
	cr_assert_eq(post_message(&t.b, 6, t.b.mem, 1, 0), 0);
	step(FABRIC_TIMEOUT, &t.b);
	polled(t.b.scq, 6, IBV_WC_RETRY_EXC_ERR);
	cr_assert_eq(f->disconnect(t.b.id), 0);
	fabric_settle();
	polled(t.b.rcq, 3, IBV_WC_WR_FLUSH_ERR);
	event(t.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	no_event(t.b.ch);
	part(&t);
	no_violation();
}

Test(fabric, an_id_that_goes_says_goodbye)
{
	struct two t;

	join(&t);
	f->destroy_qp(t.a.id);
	cr_assert_eq(post_message(&t.b, 1, t.b.mem, 1, 0), 0);
	polled(t.b.scq, 1, IBV_WC_RETRY_EXC_ERR);
	no_event(t.b.ch);
	cr_assert_eq(f->destroy_id(t.a.id), 0);
	t.a.id = NULL;
	event(t.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	part(&t);
	no_violation();
}

Test(fabric, a_link_that_is_cut)
{
	struct two t;

	join(&t);
	fabric_link(FABRIC_SILENT);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 1, &t.b, 0, 0), 0);
	cr_assert_eq(post_write(&t.a, 2, t.a.mem, 1, &t.b, 0, 0), 0);
	empty(t.a.scq);
	fabric_link(FABRIC_DEAD);
	polled(t.a.scq, 1, IBV_WC_RETRY_EXC_ERR);
	polled(t.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
	no_event(t.b.ch);
	empty(t.b.rcq);
	part(&t);
	no_violation();
}

Test(fabric, a_device_that_goes)
{
	struct two t;

	join(&t);
	cr_assert_eq(post_receive(&t.a, 1, 0, 8), 0);
	fabric_remove_device(0);
	polled(t.a.rcq, 1, IBV_WC_WR_FLUSH_ERR);
	event(t.a.ch, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	event(t.b.ch, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	event(t.lch, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 8, 0) && errno == EIO);
	part(&t);
	no_violation();
}

/* -- faults on command -- */

Test(fabric, calls_fail_on_command)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr[3], *bad;
	struct two t;

	join(&t);
	fabric_fail(FABRIC_REG_MR, 2, ENOMEM, 2);
	cr_assert_eq(f->dereg_mr(f->reg_mr(t.a.pd, t.a.mem, 8, 0)), 0);
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 8, 0) && errno == ENOMEM);
	cr_assert(!f->reg_mr(t.a.pd, t.a.mem, 8, 0));
	cr_assert_eq(f->dereg_mr(f->reg_mr(t.a.pd, t.a.mem, 8, 0)), 0);
	cr_assert_eq(fabric_hits(), 2);
	cr_assert_eq(fabric_count(FABRIC_REG_MR), 6);
	/* the second request of a chain: the first was taken */
	fabric_fail(FABRIC_POST_SEND, 2, ENOMEM, 1);
	sge = (struct ibv_sge){ (uint64_t)(uintptr_t)t.a.mem, 1, t.a.mr->lkey };
	for (unsigned i = 0; i < 3; i++) {
		wr[i] = (struct ibv_send_wr){ .wr_id = i,
					      .next = i < 2 ? &wr[i + 1] : NULL,
					      .sg_list = &sge,
					      .num_sge = 1,
					      .opcode = IBV_WR_RDMA_WRITE,
					      .send_flags = IBV_SEND_SIGNALED };
		wr[i].wr.rdma.remote_addr = (uint64_t)(uintptr_t)t.b.mem;
		wr[i].wr.rdma.rkey = t.b.mr->rkey;
	}
	cr_assert_eq(f->post_send(t.a.id->qp, wr, &bad), -ENOMEM);
	cr_assert_eq(bad, &wr[1]);
	cr_assert_eq(f->post_send(t.a.id->qp, bad, &bad), 0);
	for (unsigned i = 0; i < 3; i++)
		polled(t.a.scq, i, IBV_WC_SUCCESS);
	fabric_fail_any(3, EIO, FABRIC_FOR_EVER);
	cr_assert_eq(f->req_notify_cq(t.a.scq, 0), 0);
	empty(t.a.scq);
	cr_assert_eq(f->req_notify_cq(t.a.scq, 0), -EIO);
	cr_assert_eq(f->disconnect(t.a.id), -EIO);
	part(&t); /* giving back is not in it */
	no_violation();
}

Test(fabric, requests_end_as_commanded)
{
	struct two t;

	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, 0, 8), 0);
	cr_assert_eq(post_receive(&t.b, 2, 0, 8), 0);
	fabric_fail_wr(FABRIC_WR_WRITE, 2, IBV_WC_FATAL_ERR);
	memset(t.a.mem, 'x', 8);
	cr_assert_eq(post_write(&t.a, 1, t.a.mem, 1, &t.b, 100, 0), 0);
	cr_assert_eq(post_write(&t.a, 2, t.a.mem, 1, &t.b, 101, 0), 0);
	cr_assert_eq(post_message(&t.a, 3, t.a.mem, 1, 0), 0);
	polled(t.a.scq, 2, IBV_WC_FATAL_ERR);
	polled(t.a.scq, 3, IBV_WC_WR_FLUSH_ERR);
	cr_assert_arr_eq(t.b.mem + 100, "x\0", 2);
	empty(t.b.rcq);
	part(&t);
	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, 0, 8), 0);
	cr_assert_eq(post_receive(&t.b, 2, 0, 8), 0);
	fabric_fail_wr(FABRIC_WR_RECV, 1, IBV_WC_GENERAL_ERR);
	cr_assert_eq(post_message(&t.a, 3, t.a.mem, 1, 0), 0);
	polled(t.a.scq, 3, IBV_WC_REM_OP_ERR);
	polled(t.b.rcq, 1, IBV_WC_GENERAL_ERR);
	polled(t.b.rcq, 2, IBV_WC_WR_FLUSH_ERR);
	part(&t);
	join(&t);
	cr_assert_eq(post_receive(&t.b, 1, 0, 8), 0);
	fabric_lose_recv(1);
	cr_assert_eq(post_message(&t.a, 3, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
	polled(t.a.scq, 3, IBV_WC_SUCCESS);
	empty(t.b.rcq);
	cr_assert_eq(fabric_hits(), 3);
	part(&t);
	no_violation();
}

Test(fabric, events_change_on_command)
{
	struct two t;

	fabric_cm_change(RDMA_CM_EVENT_ROUTE_RESOLVED, 1, FABRIC_CM_TWICE, 0);
	listen_at(&t, "10.9.0.1");
	approach(&t, "10.9.0.1");
	event(t.a.ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	part(&t);
	fabric_cm_change(RDMA_CM_EVENT_DISCONNECTED, 1, FABRIC_CM_NEVER, 0);
	join(&t);
	fabric_cm_send(99, -5);
	event(t.a.ch, (enum rdma_cm_event_type)99, -5);
	event(t.b.ch, (enum rdma_cm_event_type)99, -5);
	no_event(t.lch);
	unequip(&t.a);
	no_event(t.b.ch);
	part(&t);
	no_violation();
}

/* -- random -- */

/* The thread moves everything, whatever the seed; one lane's order holds. */
Test(fabric, random_steps_come_to_an_end)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct fabric_config cfg;
		struct two t;

		fabric_defaults(&cfg);
		cfg.torn = seed % 2;
		fabric_reset(&cfg);
		join(&t);
		fabric_random(seed, 50);
		for (unsigned i = 1; i <= 50; i++) {
			struct ibv_wc wc = { 0 };

			t.a.mem[0] = t.a.mem[1] = (uint8_t)i;
			cr_assert_eq(post_receive(&t.b, i, 100, 8), 0);
			cr_assert_eq(post_write(&t.a, i, t.a.mem, 2, &t.b, 0, 0), 0);
			cr_assert_eq(post_message(&t.a, i, t.a.mem, 1, IBV_SEND_SIGNALED), 0);
			while (f->poll_cq(t.b.rcq, 1, &wc) == 0)
				usleep(20);
			cr_assert(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
			cr_assert(t.b.mem[0] == i && t.b.mem[1] == i);
			while (f->poll_cq(t.a.scq, 1, &wc) == 0)
				usleep(20);
			cr_assert(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
		}
		part(&t);
		no_violation();
	}
}
