/* SPDX-License-Identifier: MIT */
/* rdma_raw.h - a peer of the rdma transport that is made by hand: it calls the fabric's table directly, and says what it likes when it likes.
 * It keeps count of what would be right, so that a test need only change what it wants to be wrong.  One thread at a time.  What fails in here
 * that a test did not ask for ends the program. */
#ifndef TEST_RDMA_RAW_H
#define TEST_RDMA_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ft/error.h>
#include "fabric.h"
#include "rdma_wire.h"

#define RDMA_RAW_RECEIVES 48u /* a lane */
#define RDMA_RAW_SENDS 8u
#define RDMA_RAW_SCRATCH (16u << 20)

enum rdma_raw_state { RAW_NEW, RAW_READY, RAW_ASKED, RAW_UP, RAW_REFUSED, RAW_GONE };

struct rdma_raw_lane {
	struct rdma_cm_id *id;
	enum rdma_raw_state state;
	uint8_t answer[256]; /* private data of what came last: acceptance, refusal, request */
	uint8_t answer_len;
	uint64_t sent, control_sent;	     /* ours: number of the last */
	uint64_t received, control_received; /* theirs */
	uint64_t returned, control_returned; /* ours, that they are done with */
	unsigned next_send, sending;
};

struct rdma_raw {
	const struct rdma_fabric *f;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	uint8_t *memory, *scratch; /* scratch: RDMA_RAW_SCRATCH octets that may be written to by the other side, and be written from */
	size_t bytes;
	uint32_t lanes;
	struct rdma_raw_lane lane[TP_LANES_MAX];
	bool lost; /* a work request has failed, or a lane was left */
	/* a message that came */
	struct rdma_head head;
	uint32_t from, len;
	uint8_t body[TP_MESSAGE_MAX];
	char breach[FT_ERROR_MAX]; /* what the other side's last word was, "" */
};

/* rdma_raw_hello - a good one for lane @lane of @lanes: chunks of 1 MiB, 8 credits, no budget. */
void rdma_raw_hello(struct rdma_hello *h, uint32_t lane, uint32_t lanes);

/* -- asking -- */
/* rdma_raw_find - queue pairs for @lanes lanes to @address, "10.9.0.1:PORT"; nothing is asked for yet. */
void rdma_raw_find(struct rdma_raw *r, const char *address, uint32_t lanes);
void rdma_raw_ask(struct rdma_raw *r, uint32_t lane, const void *data, size_t len);
/* rdma_raw_connect - find, and ask for all lanes with good hellos. */
void rdma_raw_connect(struct rdma_raw *r, const char *address, uint32_t lanes);

/* -- being asked -- */
/* rdma_raw_listen - at a free port of 10.9.0.1, which is put behind "rdma:10.9.0.1:" in @uri. */
void rdma_raw_listen(struct rdma_raw *r, char *uri, size_t size);
void rdma_raw_accept(struct rdma_raw *r, uint32_t lane, const void *data, size_t len);
void rdma_raw_reject(struct rdma_raw *r, uint32_t lane, const void *data, size_t len);
/* rdma_raw_answer - the acceptance of what lane @lane has asked for. */
void rdma_raw_answer(const struct rdma_raw *r, struct rdma_hello *h, uint32_t lane);

/* rdma_raw_events - take what the connection manager has.  Never waits. */
void rdma_raw_events(struct rdma_raw *r);
bool rdma_raw_all(const struct rdma_raw *r, enum rdma_raw_state state); /* all lanes are in it */

/* -- messages -- */
/* rdma_raw_head - as it should be for the next message. */
struct rdma_head rdma_raw_head(const struct rdma_raw *r, uint32_t lane, uint32_t kind, uint32_t count, uint32_t len);
/* rdma_raw_post - @n octets as a message, whatever they are; false: the lane is gone. */
bool rdma_raw_post(struct rdma_raw *r, uint32_t lane, const void *octets, size_t n);
/* rdma_raw_say - @head and @len octets of @body; what they say is counted as said. */
bool rdma_raw_say(struct rdma_raw *r, uint32_t lane, const struct rdma_head *head, const void *body, size_t len);
bool rdma_raw_tell(struct rdma_raw *r, uint32_t lane, uint32_t kind, uint32_t count, const void *body, size_t len); /* as it should be */
/* rdma_raw_write - from the scratch memory, in the peer's device's way: no protocol. */
bool rdma_raw_write(struct rdma_raw *r, uint32_t lane, uint64_t remote, uint32_t rkey, uint32_t len);
/* rdma_raw_next - the next message that has come is in head, from, len and body; false: there is none. */
bool rdma_raw_next(struct rdma_raw *r);

void rdma_raw_close(struct rdma_raw *r); /* from any state */

#endif
