/* SPDX-License-Identifier: MIT */
/* record.h - every struct of the wire, and every limit.  Layout only: docs/protocol.md says who sends what when and
 * what the receiver does.  A message of the transport is exactly one record: head, body, zeros up to 8 octets.
 * Never widen a record: add a type. */
#ifndef FT_RECORD_H
#define FT_RECORD_H

#include <assert.h>
#include <stddef.h>
#include "wire.h"

#define FTW_MAGIC UINT64_C(0x66742d7265636f72) /* "ft-recor" */
#define FTW_VERSION_MIN 1
#define FTW_VERSION_MAX 1

#define FTW_RECORD_MAX 65536u /* head, body and padding */
#define FTW_NOTIFY_PAGES_MAX 2048u /* pages of one notify-write or zero-pages */
#define FTW_RUNS_MAX 2048u
#define FTW_REASON_MAX 400u   /* octets of a reason, no terminator on the wire */
#define FTW_STATE_PIECE_MAX 65408u /* octets of device state in one record */
#define FTW_SIDE_PIECE_MAX 65504u  /* octets of the side stream in one record: what it has room for */
#define FTW_DELTA_BYTES_MAX 65496u /* of all deltas of a notify-delta, with their page numbers: what it has room for */
#define FTW_LANES_MAX 8u      /* data lanes */
#define FTW_WINDOW_IMAGE 0u   /* transport window of the receive image (mirror placement) */
#define FTW_WINDOW_RING 1u    /* of the ring (slab placement) */
#define FTW_EPOCH_CREDITS_MAX 8u
#define FTW_RING_SLOTS_MIN 512u /* pages: 2 MiB */
#define FTW_PAGE_BYTES 4096u  /* the only page size of version 1 */
#define FTW_REGION_ALIGN 64u  /* pages; regions start and the page space ends on a multiple */
#define FTW_PAGES_MAX (UINT64_C(1) << 51) /* pages of a page space: its octets fit 63 bits */
#define FTW_REGIONS_MAX 1024u
#define FTW_NAME_MAX 127u     /* octets of a name of a machine or region, no terminator on the wire */
#define FTW_IDENTITY_MAX 16383u
#define FTW_HEARTBEAT_MS_MAX 60000u
#define FTW_HEARTBEAT_MISSES_MAX 1000u

enum ftw_type {
	FTW_HELLO = 0x01,	  /* p -> s, lane 0, first */
	FTW_HELLO_ACK = 0x02,	  /* s -> p, lane 0 */
	FTW_REFUSE = 0x03,	  /* s -> p, lane 0, instead of hello-ack; then close */
	FTW_REGIONS = 0x04,	  /* p -> s, lane 0, after hello, before hello-ack */
	FTW_BASE = 0x05,	  /* p -> s, lane 0, after hello-ack, before any epoch, under its capability */
	FTW_BASE_ACK = 0x06,	  /* s -> p, lane 0 */
	FTW_NOTIFY_WRITE = 0x10,  /* p -> s, data lane of its writes */
	FTW_ZERO_PAGES = 0x11,	  /* p -> s, data lane */
	FTW_DEVICE_STATE = 0x12,  /* p -> s, data lane 1 */
	FTW_COMMIT = 0x13,	  /* p -> s, lane 0 */
	FTW_SIDE_DATA = 0x14,	  /* p -> s, data lane 1 */
	FTW_NOTIFY_SLAB = 0x15,	  /* p -> s, data lane of its writes, slab placement */
	FTW_NOTIFY_DELTA = 0x16,  /* p -> s, data lane, mirror placement, under its capability */
	FTW_PAGE_CHECKS = 0x17,	  /* p -> s, data lane, in front of the record that tells the pages, under its capability */
	FTW_ACK = 0x20,		  /* s -> p, lane 0: the whole epoch is held */
	FTW_APPLIED = 0x21,	  /* s -> p, lane 0: the receive image is free for the next epoch */
	FTW_WORKING = 0x22,	  /* s -> p, lane 0: its machine takes long over the side stream */
	FTW_ROOM = 0x23,	  /* s -> p, lane 0, slab placement: how far the ring may be written */
	FTW_HEARTBEAT = 0x30,	  /* both, lane 0 */
	FTW_BYE = 0x31,		  /* both, lane 0: orderly end, with a reason */
	FTW_ERROR = 0x32,	  /* both, lane 0: the sender gives up, with code and reason */
	FTW_OPTIONAL = 0x80000000u, /* bit: a receiver that does not know the type skips it */
	FTW_SYNC_PROGRESS = 0x80000001u, /* p -> s, lane 0: round of the full sync */
};

/* Head of every record. */
struct ftw_record {
	ft_be32 type;	   /* enum ftw_type */
	ft_be32 len_bytes; /* body without padding */
	ft_be64 epoch;	   /* 0 where it has no meaning */
	ft_be32 seq;	   /* number of the record on its lane and direction, from 1 */
	ft_be32 reserved;  /* 0 */
};
static_assert(sizeof(struct ftw_record) == 24, "wire layout");

/* Capabilities. */
#define FTW_CAP_SIDE_STREAM UINT64_C(1) /* needed: the primary's machine has a side stream */
#define FTW_CAP_DELTA UINT64_C(2)	/* needed: the primary may send notify-delta */
#define FTW_CAP_PAGE_CHECKS UINT64_C(4) /* needed: the primary may send page-checks */

#define FTW_CAP_RESYNC UINT64_C(8) /* offered: base and base-ack follow hello-ack */

enum ftw_placement { FTW_PLACEMENT_MIRROR = 1, FTW_PLACEMENT_SLAB = 2 };
enum ftw_mode { FTW_MODE_CHECKPOINT = 1, FTW_MODE_COLO = 2 };

struct ftw_hello {
	ft_be64 magic;
	ft_be16 version_min, version_max;
	ft_be16 placement, mode;
	ft_be64 capabilities_needed;  /* unknown ones: refuse */
	ft_be64 capabilities_offered; /* unknown ones: not used */
	uint8_t session[16];	      /* drawn at random by the primary at start */
	ft_be64 generation;	      /* of the primary's run; rises with each promotion */
	ft_be64 epoch_committed;      /* last epoch that was acknowledged to this primary, 0 none */
	ft_be64 nr_pages;	      /* of the whole page space */
	ft_be64 state_max;	      /* octets of the largest device state */
	ft_be32 page_bytes, chunk_bytes;
	ft_be32 lanes;		      /* data lanes */
	ft_be32 heartbeat_ms, heartbeat_misses;
	ft_be32 identity_bytes;	      /* behind this struct */
	ft_be32 name_bytes;	      /* behind the identity */
	ft_be32 reserved;
};
static_assert(sizeof(struct ftw_hello) == 112, "wire layout");

struct ftw_hello_ack {
	ft_be16 version, placement;
	ft_be32 epoch_credits;	    /* epochs that may be shipped beyond the last applied one; mirror: 1, slab: 1 to 8 */
	ft_be64 capabilities;	    /* in use from now on */
	ft_be64 generation;	    /* of the secondary */
	ft_be64 epoch_committed;    /* last epoch it holds, 0 none */
	ft_be32 heartbeat_ms, heartbeat_misses;
};
static_assert(sizeof(struct ftw_hello_ack) == 40, "wire layout");

struct ftw_regions {
	ft_be32 count, reserved; /* ftw_region entries follow */
};
struct ftw_region {
	ft_be64 first_page; /* in the page space; a multiple of 64 */
	ft_be64 len_bytes;
	ft_be32 flags;	    /* 0 */
	ft_be32 name_bytes; /* name follows, padded to 8 */
};
static_assert(sizeof(struct ftw_regions) == 8 && sizeof(struct ftw_region) == 24, "wire layout");

struct ftw_base {
	ft_be64 connection;	 /* number of this one in the session, from 1 */
	ft_be64 base_connection; /* of the one to go on from; 0: none */
	ft_be64 base_epoch;	 /* last one of it that was acknowledged to the primary; 0: none */
};
struct ftw_base_ack {
	ft_be64 epoch; /* of the base, which is held; 0: none, the first epoch is the whole machine */
};
static_assert(sizeof(struct ftw_base) == 24 && sizeof(struct ftw_base_ack) == 8, "wire layout");

struct ftw_runs { /* notify-write and zero-pages */
	ft_be32 count;	  /* runs that follow */
	ft_be32 nr_pages; /* their sum, <= FTW_NOTIFY_PAGES_MAX */
	ft_be64 digest;	  /* notify-write: of the pages (digest.h); zero-pages: of their numbers */
};
struct ftw_run { /* packed: consume_runs() hands out pointers into the message, which need not be aligned */
	ft_be64 first_page;
	ft_be32 nr_pages; /* > 0 */
	ft_be32 reserved;
} __attribute__((packed));
static_assert(sizeof(struct ftw_runs) == 16 && sizeof(struct ftw_run) == 16, "wire layout");

struct ftw_slab { /* notify-slab: a ftw_runs, this, then the runs */
	ft_be64 position; /* of the first page in the ring; the others follow it */
};
static_assert(sizeof(struct ftw_slab) == 8, "wire layout");

struct ftw_deltas {
	ft_be32 count;	  /* pages, <= FTW_NOTIFY_PAGES_MAX */
	ft_be32 reserved;
	ft_be64 digest;	  /* of the pages as they are then; for each page its number, 8 octets, and its delta (delta.h) follow */
};
static_assert(sizeof(struct ftw_deltas) == 16, "wire layout");
static_assert(sizeof(struct ftw_record) + sizeof(struct ftw_deltas) + FTW_DELTA_BYTES_MAX == FTW_RECORD_MAX, "limit");

struct ftw_page_checks {
	ft_be32 count; /* pages, <= FTW_NOTIFY_PAGES_MAX: those of the next record on the lane; for each 4 octets follow, the low ones of its digest */
	ft_be32 reserved;
};
static_assert(sizeof(struct ftw_page_checks) == 8, "wire layout");

struct ftw_room {
	ft_be64 slots; /* pages of the ring; the same in each room of a connection */
	ft_be64 freed; /* positions below are free: those below freed + slots may be written */
};
static_assert(sizeof(struct ftw_room) == 16, "wire layout");

struct ftw_device_state {
	ft_be64 total_bytes, offset; /* octets follow; pieces come in order, the first has offset 0 */
};
static_assert(sizeof(struct ftw_device_state) == 16, "wire layout");
static_assert(sizeof(struct ftw_record) + sizeof(struct ftw_device_state) + FTW_STATE_PIECE_MAX <= FTW_RECORD_MAX, "limit");

struct ftw_side_data {
	ft_be64 offset; /* in the side stream of the epoch; octets follow */
};
static_assert(sizeof(struct ftw_side_data) == 8, "wire layout");
static_assert(sizeof(struct ftw_record) + sizeof(struct ftw_side_data) + FTW_SIDE_PIECE_MAX == FTW_RECORD_MAX, "limit");

struct ftw_commit {
	ft_be64 nr_data_pages, nr_zero_pages; /* told in this epoch, each time a page was told counted */
	ft_be64 state_bytes, side_bytes;
	ft_be64 digest;	     /* sum of the digests of the epoch's records and of the device state */
	ft_be32 lanes, reserved;
	ft_be32 seq[FTW_LANES_MAX]; /* the last seq of data lane i + 1 that belongs to it; unused: 0 */
};
static_assert(sizeof(struct ftw_commit) == 80, "wire layout");

struct ftw_reason { /* refuse, bye, error */
	ft_be32 code; /* enum ftw_code */
	ft_be32 reason_bytes; /* text follows */
};
static_assert(sizeof(struct ftw_reason) == 8, "wire layout");

enum ftw_code {
	FTW_CODE_NONE = 0,
	FTW_CODE_VERSION = 1,	    /* no common version */
	FTW_CODE_CAPABILITY = 2,
	FTW_CODE_LAYOUT = 3,	    /* regions, page size, placement differ */
	FTW_CODE_IDENTITY = 4,
	FTW_CODE_BUSY = 5,	    /* another primary is connected */
	FTW_CODE_ACTIVE = 6,	    /* this side was promoted: the sender has lost its role */
	FTW_CODE_LIMIT = 7,	    /* more than this side can hold */
	FTW_CODE_PROTOCOL = 8,	    /* the peer broke the protocol */
	FTW_CODE_DIGEST = 9,
	FTW_CODE_MEMORY = 10,
	FTW_CODE_STOPPED = 11,	    /* operator's stop */
	FTW_CODE_UNUSABLE = 12,	    /* the standby cannot be used any more */
};

struct ftw_heartbeat {
	ft_be64 time_ns; /* sender's monotonic clock, for round trips */
	ft_be64 echo_ns; /* the last time_ns that came from the other side */
};

struct ftw_sync_progress {
	ft_be32 round, reserved;
	ft_be64 pages_done, pages_total;
};
static_assert(sizeof(struct ftw_heartbeat) == 16 && sizeof(struct ftw_sync_progress) == 24, "wire layout");

#endif
