/* SPDX-License-Identifier: MIT */
/* rdma_setup.h - what connecting (rdma_setup.c) and listening (rdma_listen.c) share: events of the connection manager, and sentences. */
#ifndef FT_RDMA_SETUP_H
#define FT_RDMA_SETUP_H

#include "rdma_hello.h"

/* What an event of the connection manager said; the event itself is acked by then. */
struct news {
	struct rdma_cm_id *id;
	enum rdma_cm_event_type type;
	int status;
	uint8_t len; /* of data: private data, as far as it is of use */
	uint8_t data[sizeof(struct rdma_refusal)];
};
static_assert(sizeof(struct rdma_refusal) >= sizeof(struct rdma_hello), "room for either");

/* rdma_next_news - the next event of @channel, taken and acked; -EAGAIN: there is none. */
int rdma_next_news(const struct rdma_fabric *f, struct rdma_event_channel *channel, struct news *out);

/* rdma_open_channel - an event channel, or a sentence that says what this host lacks. */
int rdma_open_channel(const struct rdma_fabric *f, struct rdma_event_channel **out, struct ft_error *err);

/* rdma_set_ack_timeout - how soon a lost packet is sent again; before connect or accept.  Each side sets its own. */
void rdma_set_ack_timeout(const struct rdma_fabric *f, struct rdma_cm_id *id, const struct tp_params *p);

/* rdma_param_of - for connect and accept; @h must live as long as it is used. */
struct rdma_conn_param rdma_param_of(const struct rdma_hello *h, const struct tp_params *p);

/* rdma_prepare - rdma_conn_prepare(), and the wish for registration on demand is given up where the device has none for writes. */
int rdma_prepare(struct rdma *s, struct ibv_context *verbs, struct ft_error *err);

/* rdma_lane_of - which lane of @s has @id; conn.lanes: none. */
uint32_t rdma_lane_of(const struct rdma *s, const struct rdma_cm_id *id);

#endif
