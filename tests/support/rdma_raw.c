/* SPDX-License-Identifier: MIT */
/* rdma_raw.c - see rdma_raw.h. */
#include "rdma_raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

#define LANE_SHIFT 32
#define RNR_RETRIES 2

void rdma_raw_hello(struct rdma_hello *h, uint32_t lane, uint32_t lanes)
{
	*h = (struct rdma_hello){ .magic = to_be64(RDMA_MAGIC),
				  .version = to_be16(RDMA_VERSION),
				  .lane = to_be16((uint16_t)lane),
				  .lanes = to_be16((uint16_t)lanes),
				  .token = "raw",
				  .capabilities = to_be32(RDMA_CAP_CHUNKS),
				  .credits = to_be16(8),
				  .chunk_shift = 20 };
}

/* -- what a peer has -- */

static uint8_t *receive_memory(const struct rdma_raw *r, uint32_t lane, uint64_t slot)
{
	return r->memory + (lane * (RDMA_RAW_RECEIVES + RDMA_RAW_SENDS) + slot) * RDMA_SLOT_BYTES;
}

static uint8_t *send_memory(const struct rdma_raw *r, uint32_t lane, unsigned slot)
{
	return receive_memory(r, lane, RDMA_RAW_RECEIVES + slot);
}

static void post_receive(struct rdma_raw *r, uint32_t lane, uint64_t slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)receive_memory(r, lane, slot),
			       .length = RDMA_SLOT_BYTES,
			       .lkey = r->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)lane << LANE_SHIFT | slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	int e = r->f->post_recv(r->lane[lane].id->qp, &wr, &bad);

	CHECK(e == 0, "a receive of the raw peer: %s", strerror(-e));
}

static void equip(struct rdma_raw *r, struct ibv_context *verbs)
{
	unsigned slots = TP_LANES_MAX * (RDMA_RAW_RECEIVES + RDMA_RAW_SENDS);

	r->bytes = slots * RDMA_SLOT_BYTES + RDMA_RAW_SCRATCH;
	r->memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(r->memory != MAP_FAILED, "no memory for a raw peer");
	r->scratch = r->memory + slots * RDMA_SLOT_BYTES;
	r->pd = r->f->alloc_pd(verbs);
	r->send_cq = r->f->create_cq(verbs, TP_LANES_MAX * 64, NULL, NULL);
	r->recv_cq = r->f->create_cq(verbs, TP_LANES_MAX * RDMA_RAW_RECEIVES, NULL, NULL);
	CHECK(r->pd && r->send_cq && r->recv_cq, "no queues for a raw peer");
	r->mr = r->f->reg_mr(r->pd, r->memory, r->bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(r->mr, "no memory for a raw peer");
}

static void make_lane(struct rdma_raw *r, uint32_t lane)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = RDMA_RAW_RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct rdma_cm_id *id = r->lane[lane].id;

	if (!r->pd)
		equip(r, id->verbs);
	attr.send_cq = r->send_cq;
	attr.recv_cq = r->recv_cq;
	CHECK(r->f->create_qp(id, r->pd, &attr) == 0, "no queue pair for a raw peer");
	for (unsigned i = 0; i < RDMA_RAW_RECEIVES; i++)
		post_receive(r, lane, i);
}

static void start(struct rdma_raw *r)
{
	memset(r, 0, sizeof(*r));
	r->f = rdma_fabric();
	r->events = r->f->create_event_channel();
	CHECK(r->events, "no event channel for a raw peer");
}

/* -- events -- */

static struct rdma_raw_lane *lane_of(struct rdma_raw *r, const struct rdma_cm_id *id)
{
	for (uint32_t i = 0; i < TP_LANES_MAX; i++)
		if (r->lane[i].id == id)
			return &r->lane[i];
	return NULL;
}

static void keep_answer(struct rdma_raw_lane *l, const struct rdma_cm_event *e)
{
	l->answer_len = e->param.conn.private_data ? e->param.conn.private_data_len : 0;
	if (l->answer_len)
		memcpy(l->answer, e->param.conn.private_data, l->answer_len);
}

static void on_request(struct rdma_raw *r, const struct rdma_cm_event *e)
{
	const struct rdma_hello *h = e->param.conn.private_data;
	uint32_t lane;

	CHECK(h && e->param.conn.private_data_len >= sizeof(*h), "a request without a hello");
	lane = from_be16(h->lane);
	CHECK(lane < TP_LANES_MAX && !r->lane[lane].id, "a second request for lane %u", lane);
	r->lane[lane].id = e->id;
	r->lanes = from_be16(h->lanes);
	keep_answer(&r->lane[lane], e);
}

static void on_event(struct rdma_raw *r, const struct rdma_cm_event *e)
{
	struct rdma_raw_lane *l = lane_of(r, e->id);

	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		on_request(r, e);
		return;
	}
	if (!l)
		return;
	switch ((int)e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK(r->f->resolve_route(l->id, 1000) == 0, "no route for a raw peer");
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		l->state = RAW_READY;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (l->state == RAW_ASKED)
			keep_answer(l, e);
		l->state = RAW_UP;
		break;
	case RDMA_CM_EVENT_REJECTED:
		keep_answer(l, e);
		l->state = RAW_REFUSED;
		break;
	default:
		l->state = RAW_GONE;
		r->lost = true;
		break;
	}
}

void rdma_raw_events(struct rdma_raw *r)
{
	struct rdma_cm_event *e;

	while (r->f->get_cm_event(r->events, &e) == 0) {
		struct rdma_cm_id *asked = e->event == RDMA_CM_EVENT_CONNECT_REQUEST ? e->id : NULL;

		on_event(r, e);
		r->f->ack_cm_event(e);
		for (uint32_t i = 0; asked && i < TP_LANES_MAX; i++)
			if (r->lane[i].id == asked)
				make_lane(r, i);
	}
}

bool rdma_raw_all(const struct rdma_raw *r, enum rdma_raw_state state)
{
	for (uint32_t i = 0; i < r->lanes; i++)
		if (r->lane[i].state != state)
			return false;
	return r->lanes > 0;
}

/* -- asking -- */

static struct sockaddr_in address_of(const char *text)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	const char *port = strrchr(text, ':');
	char host[64] = "";

	CHECK(port && (size_t)(port - text) < sizeof(host), "'%s' is no address", text);
	memcpy(host, text, (size_t)(port - text));
	a.sin_port = htons((uint16_t)atoi(port + 1));
	CHECK(inet_pton(AF_INET, host, &a.sin_addr) == 1, "'%s' is no address", text);
	return a;
}

void rdma_raw_find(struct rdma_raw *r, const char *address, uint32_t lanes)
{
	struct sockaddr_in to = address_of(address);

	start(r);
	r->lanes = lanes;
	for (uint32_t i = 0; i < lanes; i++) {
		CHECK(r->f->create_id(r->events, &r->lane[i].id, NULL) == 0, "no id for a raw peer");
		CHECK(r->f->resolve_addr(r->lane[i].id, NULL, (struct sockaddr *)&to, 1000) == 0,
		      "no address for a raw peer");
	}
	for (unsigned tries = 0; !rdma_raw_all(r, RAW_READY); tries++) {
		CHECK(tries < 20000, "the raw peer finds no route");
		rdma_raw_events(r);
		if (tries > 2)
			usleep(500);
	}
	for (uint32_t i = 0; i < lanes; i++)
		make_lane(r, i);
}

static struct rdma_conn_param param(const void *data, size_t len)
{
	return (struct rdma_conn_param){ .private_data = len ? data : NULL,
					 .private_data_len = (uint8_t)len,
					 .retry_count = 6,
					 .rnr_retry_count = RNR_RETRIES };
}

void rdma_raw_ask(struct rdma_raw *r, uint32_t lane, const void *data, size_t len)
{
	struct rdma_conn_param p = param(data, len);

	CHECK(r->f->connect(r->lane[lane].id, &p) == 0, "the raw peer cannot ask");
	r->lane[lane].state = RAW_ASKED;
}

void rdma_raw_connect(struct rdma_raw *r, const char *address, uint32_t lanes)
{
	struct rdma_hello h;

	rdma_raw_find(r, address, lanes);
	for (uint32_t i = 0; i < lanes; i++) {
		rdma_raw_hello(&h, i, lanes);
		rdma_raw_ask(r, i, &h, sizeof(h));
	}
}

/* -- being asked -- */

void rdma_raw_listen(struct rdma_raw *r, char *uri, size_t size)
{
	struct sockaddr_in any = address_of("10.9.0.1:0");

	start(r);
	CHECK(r->f->create_id(r->events, &r->listener, NULL) == 0, "no id for a raw peer");
	CHECK(r->f->bind_addr(r->listener, (struct sockaddr *)&any) == 0, "the raw peer cannot bind");
	CHECK(r->f->listen(r->listener, 64) == 0, "the raw peer cannot listen");
	snprintf(uri, size, "rdma:10.9.0.1:%u", ntohs(r->listener->route.addr.src_sin.sin_port));
}

void rdma_raw_answer(const struct rdma_raw *r, struct rdma_hello *h, uint32_t lane)
{
	memcpy(h, r->lane[lane].answer, sizeof(*h));
}

void rdma_raw_accept(struct rdma_raw *r, uint32_t lane, const void *data, size_t len)
{
	struct rdma_conn_param p = param(data, len);

	CHECK(r->f->accept(r->lane[lane].id, &p) == 0, "the raw peer cannot accept");
}

void rdma_raw_reject(struct rdma_raw *r, uint32_t lane, const void *data, size_t len)
{
	CHECK(r->f->reject(r->lane[lane].id, len ? data : NULL, (uint8_t)len) == 0, "the raw peer cannot reject");
	r->lane[lane].state = RAW_REFUSED;
}

/* -- messages -- */

static bool is_control(uint32_t kind)
{
	return kind >= RDMA_WINDOW && kind <= RDMA_UNREGISTERED;
}

struct rdma_head rdma_raw_head(const struct rdma_raw *r, uint32_t lane, uint32_t kind, uint32_t count, uint32_t len)
{
	const struct rdma_raw_lane *l = &r->lane[lane];
	uint64_t number = 0;

	if (kind == RDMA_MESSAGE)
		number = l->sent + 1;
	else if (kind == RDMA_CLOSE)
		number = l->sent;
	else if (is_control(kind))
		number = l->control_sent + 1;
	return (struct rdma_head){ .kind = to_be16((uint16_t)kind),
				   .count = to_be16((uint16_t)count),
				   .len = to_be32(len),
				   .number = to_be64(number),
				   .taken = to_be64(l->received),
				   .control_taken = to_be64(l->control_received) };
}

static void take_sent(struct rdma_raw *r)
{
	struct ibv_wc wc;

	while (r->send_cq && r->f->poll_cq(r->send_cq, 1, &wc) > 0) {
		if (wc.status != IBV_WC_SUCCESS)
			r->lost = true;
		r->lane[wc.wr_id].sending--;
	}
}

static bool post(struct rdma_raw *r, uint32_t lane, struct ibv_send_wr *wr)
{
	struct rdma_raw_lane *l = &r->lane[lane];
	struct ibv_send_wr *bad;

	wr->wr_id = lane;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	if (r->f->post_send(l->id->qp, wr, &bad)) {
		r->lost = true;
		return false;
	}
	l->sending++;
	take_sent(r);
	return !r->lost;
}

/* A slot of which the device has read the last message: it goes round after that many completions. */
static bool await_slot(struct rdma_raw *r, struct rdma_raw_lane *l)
{
	for (unsigned tries = 0; l->sending >= RDMA_RAW_SENDS && !r->lost; tries++) {
		CHECK(tries < 20000, "what the raw peer sends is not taken");
		take_sent(r);
		if (l->sending >= RDMA_RAW_SENDS)
			usleep(500);
	}
	return !r->lost;
}

bool rdma_raw_post(struct rdma_raw *r, uint32_t lane, const void *octets, size_t n)
{
	struct rdma_raw_lane *l = &r->lane[lane];
	struct ibv_sge sge = { .length = (uint32_t)n, .lkey = r->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = IBV_WR_SEND };

	CHECK(n <= RDMA_SLOT_BYTES, "%zu octets are too many for the raw peer", n);
	take_sent(r);
	if (!l->id || !l->id->qp || l->state != RAW_UP || !await_slot(r, l))
		return false;
	sge.addr = (uintptr_t)send_memory(r, lane, l->next_send++ % RDMA_RAW_SENDS);
	memcpy((void *)(uintptr_t)sge.addr, octets, n);
	return post(r, lane, &wr);
}

bool rdma_raw_say(struct rdma_raw *r, uint32_t lane, const struct rdma_head *head, const void *body, size_t len)
{
	struct rdma_raw_lane *l = &r->lane[lane];
	uint8_t octets[RDMA_SLOT_BYTES];
	uint32_t kind = from_be16(head->kind);

	CHECK(len <= TP_MESSAGE_MAX, "%zu octets are too many for the raw peer", len);
	memcpy(octets, head, sizeof(*head));
	if (len)
		memcpy(octets + sizeof(*head), body, len);
	if (kind == RDMA_MESSAGE)
		l->sent = from_be64(head->number);
	else if (is_control(kind))
		l->control_sent = from_be64(head->number);
	return rdma_raw_post(r, lane, octets, sizeof(*head) + len);
}

bool rdma_raw_tell(struct rdma_raw *r, uint32_t lane, uint32_t kind, uint32_t count, const void *body, size_t len)
{
	struct rdma_head head = rdma_raw_head(r, lane, kind, count, (uint32_t)len);

	return rdma_raw_say(r, lane, &head, body, len);
}

bool rdma_raw_write(struct rdma_raw *r, uint32_t lane, uint64_t remote, uint32_t rkey, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)r->scratch, .length = len, .lkey = r->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE };

	take_sent(r);
	if (r->lane[lane].state != RAW_UP || !await_slot(r, &r->lane[lane]))
		return false;
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	return post(r, lane, &wr);
}

static void heed(struct rdma_raw *r, uint32_t lane)
{
	struct rdma_raw_lane *l = &r->lane[lane];
	uint32_t kind = from_be16(r->head.kind);
	size_t n = r->len < sizeof(r->breach) - 1 ? r->len : sizeof(r->breach) - 1;

	CHECK(r->len == from_be32(r->head.len), "a message of %u octets says that it has %u", r->len,
	      from_be32(r->head.len));
	CHECK(from_be64(r->head.taken) >= l->returned && from_be64(r->head.control_taken) >= l->control_returned,
	      "credits went back");
	l->returned = from_be64(r->head.taken);
	l->control_returned = from_be64(r->head.control_taken);
	if (kind == RDMA_MESSAGE)
		CHECK(from_be64(r->head.number) == ++l->received, "a message is out of order");
	if (is_control(kind))
		CHECK(from_be64(r->head.number) == ++l->control_received, "a control message is out of order");
	if (kind == RDMA_BREACH) {
		memcpy(r->breach, r->body, n);
		r->breach[n] = '\0';
	}
}

bool rdma_raw_next(struct rdma_raw *r)
{
	struct ibv_wc wc;

	while (r->recv_cq && r->f->poll_cq(r->recv_cq, 1, &wc) > 0) {
		uint32_t lane = (uint32_t)(wc.wr_id >> LANE_SHIFT);
		uint64_t slot = wc.wr_id & UINT32_MAX;

		if (wc.status != IBV_WC_SUCCESS) {
			r->lost = true;
			continue;
		}
		CHECK(wc.byte_len >= sizeof(r->head), "a message without a head");
		r->from = lane;
		r->len = wc.byte_len - (uint32_t)sizeof(r->head);
		memcpy(&r->head, receive_memory(r, lane, slot), sizeof(r->head));
		memcpy(r->body, receive_memory(r, lane, slot) + sizeof(r->head), r->len);
		post_receive(r, lane, slot);
		heed(r, lane);
		return true;
	}
	take_sent(r);
	return false;
}

/* -- the end -- */

void rdma_raw_close(struct rdma_raw *r)
{
	const struct rdma_fabric *f = r->f;

	rdma_raw_events(r); /* none is left unacked */
	for (uint32_t i = 0; i < TP_LANES_MAX; i++) {
		struct rdma_cm_id *id = r->lane[i].id;

		if (id && id->qp) {
			f->disconnect(id);
			f->destroy_qp(id);
		}
	}
	if (r->mr)
		f->dereg_mr(r->mr);
	if (r->memory)
		munmap(r->memory, r->bytes);
	if (r->send_cq)
		f->destroy_cq(r->send_cq);
	if (r->recv_cq)
		f->destroy_cq(r->recv_cq);
	if (r->pd)
		f->dealloc_pd(r->pd);
	for (uint32_t i = 0; i < TP_LANES_MAX; i++)
		if (r->lane[i].id)
			f->destroy_id(r->lane[i].id);
	if (r->listener)
		f->destroy_id(r->listener);
	f->destroy_event_channel(r->events);
	r->events = NULL;
}
