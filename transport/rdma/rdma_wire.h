/* SPDX-License-Identifier: MIT */
/* rdma_wire.h - what the two ends of an rdma connection tell one another: the private data of connecting, and the head of each
 * message.  docs/protocol-rdma.md says who sends what when.  Private. */
#ifndef FT_RDMA_WIRE_H
#define FT_RDMA_WIRE_H

#include <assert.h>
#include <stdint.h>
#include "transport.h"
#include "wire.h"

#define RDMA_MAGIC UINT64_C(0x66742d72646d612d) /* "ft-rdma-" */
#define RDMA_VERSION 1

/* Capabilities: unknown ones are refused, absent ones not used. */
#define RDMA_CAP_CHUNKS 1u /* registration by chunks; without it a window is registered whole */
#define RDMA_CAP_ODP 2u	   /* windows are registered on demand by the device: nothing is pinned */
#define RDMA_CAPS_KNOWN (RDMA_CAP_CHUNKS | RDMA_CAP_ODP)

enum rdma_status {
	RDMA_OK = 0,
	RDMA_REFUSE_VERSION = 1,
	RDMA_REFUSE_LANES = 2, /* lane or lanes out of range */
	RDMA_REFUSE_SURPLUS = 3, /* a lane above those that are used: not an error of the set */
	RDMA_REFUSE_CAPABILITY = 4,
	RDMA_REFUSE_LIMIT = 5, /* memory, device limits */
	RDMA_REFUSE_OTHER = 6,
};

/* Private data of a connect request, and of its acceptance.  The connection manager passes at most 56 octets in a request. */
struct rdma_hello {
	ft_be64 magic;
	ft_be16 version;
	ft_be16 lane;	  /* of this queue pair */
	ft_be16 lanes;	  /* request: of the set; acceptance: that are used */
	ft_be16 status;	  /* 0 */
	uint8_t token[16];	  /* the same on all lanes of one set */
	ft_be32 capabilities; /* request: wished; acceptance: agreed */
	ft_be16 credits;	  /* messages that this side takes on each lane without having given a credit */
	uint8_t chunk_shift;  /* request: wished; acceptance: agreed; 20 to 28 */
	uint8_t reserved;	  /* 0 */
	ft_be64 pin_budget;	  /* octets of windows that this side lets the other keep registered at a time; 0: no limit */
};
static_assert(sizeof(struct rdma_hello) == 48, "wire layout; 56 octets at most");

/* Private data of a rejection: at most 148 octets. */
struct rdma_refusal {
	ft_be64 magic;
	ft_be16 version; /* the refuser's */
	ft_be16 status;
	ft_be16 lanes; /* the most that the refuser takes */
	uint8_t len; /* of text */
	uint8_t reserved;
	char text[128]; /* the reason, UTF-8 without a terminator, the rest zeros */
};
static_assert(sizeof(struct rdma_refusal) == 144, "wire layout");

enum rdma_kind {
	RDMA_MESSAGE = 1,      /* the engine's; takes a credit */
	RDMA_CREDIT = 2,       /* only the head counts; count 1: the sender asks for a credit in answer, once all before it was taken */
	RDMA_CLOSE = 3,	       /* number: messages sent on this lane; the last of its lane */
	/* lane 0 only; each takes a control credit */
	RDMA_WINDOW = 4,       /* count windows were opened: struct rdma_window_entry each */
	RDMA_REGISTER = 5,     /* count chunks are to be registered: struct rdma_chunk_entry each */
	RDMA_REGISTERED = 6,   /* the answer, the same chunks in the same order: struct rdma_key_entry each */
	RDMA_UNREGISTER = 7,   /* count chunks are not written any more: struct rdma_chunk_entry each */
	RDMA_UNREGISTERED = 8, /* the answer, the same chunks in the same order */
	RDMA_BREACH = 9,       /* the sender gives up; a sentence follows */
};

#define RDMA_CONTROL_CREDITS 8u /* control messages on their way in one direction */
/* Receives for RDMA_CREDIT, RDMA_CLOSE and RDMA_BREACH, which take no credit.  At most so many can be on their way: two credits for
 * messages (one for each half of the window: who has not dealt with them has no credit to earn a third), two for control messages likewise,
 * one question, one answer to a question, and two last words. */
#define RDMA_SPARE 8u
#define RDMA_BATCH_MAX 256u	/* chunks in one message */

struct rdma_head {
	ft_be16 kind;
	ft_be16 count;
	ft_be32 len;		/* octets behind this head */
	ft_be64 number;		/* from 1, on this lane and direction: of a message; of a control message; close: of the last message */
	ft_be64 taken;		/* messages of the opposite direction of this lane that the application is done with */
	ft_be64 control_taken;	/* control messages of the opposite direction that were dealt with; 0 but on lane 0 */
};
static_assert(sizeof(struct rdma_head) == 32, "wire layout");

struct rdma_window_entry {
	ft_be32 window;
	ft_be32 rkey; /* of the whole window; 0 with chunks */
	ft_be64 address;
	ft_be64 len;
	ft_be32 generation; /* rises with each opening of this window; chunks of older ones are forgotten */
	ft_be32 reserved;
};
static_assert(sizeof(struct rdma_window_entry) == 32, "wire layout");

struct rdma_chunk_entry {
	ft_be32 window;
	ft_be32 generation;
	ft_be64 chunk;
};
static_assert(sizeof(struct rdma_chunk_entry) == 16, "wire layout");

enum rdma_key_status { RDMA_KEY_OK = 0, RDMA_KEY_BUDGET = 1, RDMA_KEY_FAILED = 2 };

struct rdma_key_entry {
	struct rdma_chunk_entry chunk;
	ft_be32 rkey;
	ft_be32 status; /* enum rdma_key_status */
	ft_be32 error;	/* RDMA_KEY_FAILED: the errno of the registration */
	ft_be32 reserved;
};
static_assert(sizeof(struct rdma_key_entry) == 32, "wire layout");

#define RDMA_SLOT_BYTES (sizeof(struct rdma_head) + TP_MESSAGE_MAX)

#endif
