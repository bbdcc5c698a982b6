/* SPDX-License-Identifier: MIT */
/* fabric.h - every call that the rdma transport makes into rdma-core, as a table.  rdma_verbs is the real one; tests put a made-up
 * fabric in its place, which completes, reorders and fails as it is told.  Nothing else in this folder calls ibv_* or rdma_*.
 *
 * Each member has the meaning, the arguments and the result of the function of the same name in rdma-core: ibv_X or rdma_X; those that
 * rdma-core declares as returning 0 or -1 with errno here return 0 or a negative errno, those that return an errno return it negative,
 * and those that return a pointer return NULL with errno set.  All may be called from any thread; none waits, but for ack_cq_events,
 * destroy_* and destroy_id, which wait for events that were got and not acked. */
#ifndef FT_RDMA_FABRIC_H
#define FT_RDMA_FABRIC_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct rdma_fabric {
	/* connection manager */
	struct rdma_event_channel *(*create_event_channel)(void);
	void (*destroy_event_channel)(struct rdma_event_channel *channel);
	int (*get_cm_event)(struct rdma_event_channel *channel, struct rdma_cm_event **event); /* -EAGAIN: none; the fd does not block */
	int (*ack_cm_event)(struct rdma_cm_event *event);
	int (*create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context); /* RDMA_PS_TCP */
	int (*destroy_id)(struct rdma_cm_id *id);
	int (*set_option)(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);
	int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
	int (*resolve_route)(struct rdma_cm_id *id, int timeout_ms);
	int (*bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
	int (*listen)(struct rdma_cm_id *id, int backlog);
	int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*reject)(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
	int (*disconnect)(struct rdma_cm_id *id);
	int (*migrate_id)(struct rdma_cm_id *id, struct rdma_event_channel *channel);
	int (*create_qp)(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	void (*destroy_qp)(struct rdma_cm_id *id);

	/* verbs */
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr_ex *attr);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
	const char *(*device_name)(struct ibv_context *context);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context); /* -EAGAIN: none */
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned nevents);
	int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc); /* how many, or negative */
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
};

extern const struct rdma_fabric rdma_verbs;

/* rdma_fabric_set - what connections and listeners made from now on use; NULL: rdma_verbs.  For tests, before there are any. */
void rdma_fabric_set(const struct rdma_fabric *fabric);
const struct rdma_fabric *rdma_fabric(void);

#endif
