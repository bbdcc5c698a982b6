/* SPDX-License-Identifier: MIT */
/* rdma_hello.h - what two sides tell one another while they connect, and what they agree on.  No device, no waiting, no memory:
 * any thread.  rdma_setup.c and rdma_listen.c send and receive it; docs/protocol-rdma.md "Making a connection". */
#ifndef FT_RDMA_HELLO_H
#define FT_RDMA_HELLO_H

#include "rdma_private.h"

/* rdma_limits_of - what a side wishes for by its settings. */
struct rdma_limits rdma_limits_of(const struct tp_params *p);

/* rdma_agree - by the side that accepts, once rdma_conn_prepare() has taken from @l what its device cannot do: @l becomes what both
 * sides keep to, and learns what the other told of itself.  @request has passed rdma_request_check(). */
void rdma_agree(struct rdma_limits *l, const struct rdma_hello *request);

/* rdma_hello_fill - of one lane: a request with what is wished for, or an acceptance with what is agreed. */
void rdma_hello_fill(struct rdma_hello *h, const struct rdma_limits *l, const uint8_t token[16], uint32_t lane);

/* rdma_request_check - is it one that can be accepted, whatever its set?  RDMA_OK, or what to refuse it with, the sentence in @why.
 * *@h is a copy of what stands in @data. */
enum rdma_status rdma_request_check(struct rdma_hello *h, const void *data, size_t len, struct ft_error *why);

/* rdma_request_same_set - do two requests with the same token go together? */
bool rdma_request_same_set(const struct rdma_hello *a, const struct rdma_hello *b);

/* rdma_acceptance_take - by the side that asked with @asked, for each lane: is the answer one that goes with the request, and with those
 * of the lanes before (unless @first)?  @l becomes what was agreed. */
int rdma_acceptance_take(struct rdma_limits *l, const struct rdma_limits *asked, const uint8_t token[16], uint32_t lane,
			 bool first, const void *data, size_t len, struct ft_error *err);

/* rdma_refusal_fill - @text is cut where it is too long. */
void rdma_refusal_fill(struct rdma_refusal *r, enum rdma_status status, const char *text);
/* rdma_refusal_read - what a rejection says: RDMA_OK, it is not one of ours; else its status, with code and sentence in @why. */
enum rdma_status rdma_refusal_read(const void *data, size_t len, struct ft_error *why);

#endif
