/* SPDX-License-Identifier: MIT */
/* fabric.c - the real fabric: rdma-core behind the table of fabric.h.  Results become negative errnos here and nowhere else. */
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>

static const struct rdma_fabric *_Atomic in_use = &rdma_verbs;

void rdma_fabric_set(const struct rdma_fabric *fabric)
{
	atomic_store(&in_use, fabric ? fabric : &rdma_verbs);
}

const struct rdma_fabric *rdma_fabric(void)
{
	return atomic_load(&in_use);
}

/* librdmacm: 0, or -1 with errno */
static int from_cm(int r)
{
	return r ? -errno : 0;
}

/* libibverbs: 0, or an errno; some providers answer -1 with errno */
static int from_verbs(int r)
{
	return r < 0 ? -errno : -r;
}

static int no_wait(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? flags : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static struct rdma_event_channel *create_event_channel(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();

	if (c && no_wait(c->fd)) {
		rdma_destroy_event_channel(c);
		return NULL;
	}
	return c;
}

static int get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	return from_cm(rdma_get_cm_event(channel, event));
}

static int ack_cm_event(struct rdma_cm_event *event)
{
	return from_cm(rdma_ack_cm_event(event));
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context)
{
	return from_cm(rdma_create_id(channel, id, context, RDMA_PS_TCP));
}

static int destroy_id(struct rdma_cm_id *id)
{
	return from_cm(rdma_destroy_id(id));
}

static int set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
	return from_cm(rdma_set_option(id, level, optname, optval, optlen));
}

static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	return from_cm(rdma_resolve_addr(id, src, dst, timeout_ms));
}

static int resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	return from_cm(rdma_resolve_route(id, timeout_ms));
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	return from_cm(rdma_bind_addr(id, addr));
}

static int listen_id(struct rdma_cm_id *id, int backlog)
{
	return from_cm(rdma_listen(id, backlog));
}

static int connect_id(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return from_cm(rdma_connect(id, param));
}

static int accept_id(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return from_cm(rdma_accept(id, param));
}

static int reject_id(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	return from_cm(rdma_reject(id, private_data, private_data_len));
}

static int disconnect_id(struct rdma_cm_id *id)
{
	return from_cm(rdma_disconnect(id));
}

static int migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	return from_cm(rdma_migrate_id(id, channel));
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return from_cm(rdma_create_qp(id, pd, attr));
}

static int query_device(struct ibv_context *context, struct ibv_device_attr_ex *attr)
{
	return from_verbs(ibv_query_device_ex(context, NULL, attr));
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	return from_verbs(ibv_query_port(context, port, attr));
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	return from_verbs(ibv_query_qp(qp, attr, mask, init));
}

static const char *device_name(struct ibv_context *context)
{
	return ibv_get_device_name(context->device);
}

static int dealloc_pd(struct ibv_pd *pd)
{
	return from_verbs(ibv_dealloc_pd(pd));
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr(pd, addr, length, access);
}

static int dereg_mr(struct ibv_mr *mr)
{
	return from_verbs(ibv_dereg_mr(mr));
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *c = ibv_create_comp_channel(context);

	if (c && no_wait(c->fd)) {
		ibv_destroy_comp_channel(c);
		return NULL;
	}
	return c;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	return from_verbs(ibv_destroy_comp_channel(channel));
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel)
{
	return ibv_create_cq(context, cqe, cq_context, channel, 0);
}

static int destroy_cq(struct ibv_cq *cq)
{
	return from_verbs(ibv_destroy_cq(cq));
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return from_verbs(ibv_req_notify_cq(cq, solicited_only));
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	return from_cm(ibv_get_cq_event(channel, cq, cq_context));
}

static int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, num_entries, wc);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return from_verbs(ibv_post_send(qp, wr, bad));
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return from_verbs(ibv_post_recv(qp, wr, bad));
}

const struct rdma_fabric rdma_verbs = {
	.create_event_channel = create_event_channel,
	.destroy_event_channel = rdma_destroy_event_channel,
	.get_cm_event = get_cm_event,
	.ack_cm_event = ack_cm_event,
	.create_id = create_id,
	.destroy_id = destroy_id,
	.set_option = set_option,
	.resolve_addr = resolve_addr,
	.resolve_route = resolve_route,
	.bind_addr = bind_addr,
	.listen = listen_id,
	.connect = connect_id,
	.accept = accept_id,
	.reject = reject_id,
	.disconnect = disconnect_id,
	.migrate_id = migrate_id,
	.create_qp = create_qp,
	.destroy_qp = rdma_destroy_qp,
	.query_device = query_device,
	.query_port = query_port,
	.query_qp = query_qp,
	.device_name = device_name,
	.alloc_pd = ibv_alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.dereg_mr = dereg_mr,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.req_notify_cq = req_notify_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ibv_ack_cq_events,
	.poll_cq = poll_cq,
	.post_send = post_send,
	.post_recv = post_recv,
};
