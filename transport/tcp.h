/* SPDX-License-Identifier: MIT */
/* tcp.h - the wire of the tcp transport (layout and limits; docs/protocol-tcp.md says who sends what when), and what
 * tcp_setup.c (addresses, connect, accept) and tcp.c (a connection that stands) have in common.  Private. */
#ifndef FT_TCP_H
#define FT_TCP_H

#include <assert.h>
#include <stdint.h>
#include "transport_ops.h"
#include "wire.h"

#define TCP_MAGIC UINT64_C(0x66742d7463702d31) /* "ft-tcp-1" */
#define TCP_VERSION 1
/* Larger batches wake the receiver less often: 256 pages a frame carried 4 KiB pages at up to 1.2 times a plain copy, 64 at 0.8 to 0.9
 * (bench_transport, best of 25).  Gathering costs no time worth the name, since only pointers are gathered. */
#define TCP_EXTENTS_MAX 256u	  /* writes in one frame */
#define TCP_BATCH_BYTES (1u << 20) /* a batch of writes that has grown to this is sent */
#define TCP_FRAME_BYTES_MAX (TCP_EXTENTS_MAX * (uint32_t)sizeof(struct tcp_extent) + TCP_BATCH_BYTES + TP_WRITE_MAX)

enum tcp_status {
	TCP_OK = 0,
	TCP_REFUSE_VERSION = 1,
	TCP_REFUSE_LANES = 2,
	TCP_REFUSE_PLAIN = 3, /* the listener wants TLS */
	TCP_REFUSE_TLS = 4,   /* it has none; said without TLS */
};

struct tcp_preamble {
	ft_be64 magic;
	ft_be16 version;
	ft_be16 lane;	/* of this socket */
	ft_be16 lanes;	/* connect: of the set; answer: that are used */
	ft_be16 status; /* connect: 0; answer: enum tcp_status */
	uint8_t token[16]; /* the same on all lanes of one set, and in the answers */
	ft_be32 credits;   /* messages that the sender of the preamble takes without having given a credit */
	ft_be32 reserved;  /* 0 */
};
static_assert(sizeof(struct tcp_preamble) == 40, "wire layout");

enum tcp_kind { FRAME_MESSAGE = 1, FRAME_WRITE = 2, FRAME_CREDIT = 3, FRAME_CLOSE = 4 };

struct tcp_frame {
	ft_be16 kind;
	ft_be16 count;	/* write: extents; others 0 */
	ft_be32 len;	/* octets behind this head */
	ft_be64 number; /* message: its number, from 1; write: number of its first write, from 1; credit: messages that the
			 * application has taken from this lane so far; close: messages sent on this lane */
};
static_assert(sizeof(struct tcp_frame) == 16, "wire layout");

struct tcp_extent {
	ft_be32 window;
	ft_be32 len; /* 1 to TP_WRITE_MAX */
	ft_be64 offset;
};
static_assert(sizeof(struct tcp_extent) == 16, "wire layout");

struct tcp_limits {
	uint32_t lanes;
	uint32_t credits_ours;	/* messages we take on each lane */
	uint32_t credits_peers; /* messages the peer takes */
};

struct tls;

/* tcp_conn_create - a connection over @fds[0..lanes), stream sockets that do not block, behind the preambles, and @tls over each of them (NULL:
 * none).  It owns them from now on if 0 is returned. */
int tcp_conn_create(struct tp_conn **out, const int *fds, struct tls *const *tls, const struct tcp_limits *limits, const char *peer,
		    struct ft_error *err);

#endif
