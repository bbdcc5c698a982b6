/* SPDX-License-Identifier: MIT */
/* fabric_fake.h - a made-up RDMA fabric in this process, behind the table of transport/rdma/fabric.h.  Device n (from 0) has the addresses
 * 10.9.0.n+1, fd09::n+1 and fe80::n+1 (any scope); all connections are between ends in this process.
 *
 * What the rules of verbs leave open happens in steps, in an order that the test chooses: work requests of different queue pairs in any order,
 * memory is read and written when a request is executed and not when it is posted, a receive is told late, and a completed send
 * later still, after the receive of its answer if need be.  What breaks a rule is noted as a sentence (fabric_violations) and answered as a
 * device would.  What the user of the fabric may not rely on, it does not give: a completion that came before the queue was armed
 * raises no event, completions of a queue pair that is gone stay in their queue, private data has the length of its kind, filled with zeros.
 *
 * All functions may be called from any thread; one mutex guards everything. */
#ifndef TEST_FABRIC_FAKE_H
#define TEST_FABRIC_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fabric.h"

struct fabric_config {
	unsigned devices;	/* 1 */
	bool iwarp;		/* private data is as long as it was given; INFINIBAND otherwise */
	int max_qp, max_qp_wr, max_sge, max_cqe, max_mr; /* 1024, 8192, 32, 32767, 65536 */
	uint64_t max_mr_size;	/* 1 << 40 */
	uint64_t max_pinned;	/* octets; ENOMEM beyond, as RLIMIT_MEMLOCK does; UINT64_MAX.  Memory on demand does not count */
	uint32_t max_msg_sz;	/* 8 MiB */
	uint32_t max_inline;	/* 256 */
	enum ibv_mtu mtu;	/* IBV_MTU_4096 */
	bool odp;		/* on-demand paging for RC send, receive and write */
	bool timewait_exit;	/* a TIMEWAIT_EXIT follows each DISCONNECTED */
	bool torn;		/* a write of more than one octet is executed in two steps */
	bool rnr_is_fine;	/* a message without a receive is not noted as a violation */
	unsigned timeout_us;	/* random: how long nothing may be left to do before what can only time out does so; 2000 */
};
void fabric_defaults(struct fabric_config *cfg);

/* fabric_start - put the fabric in place of rdma_verbs, everything at its beginning, mode immediate.  NULL: defaults.
 * fabric_stop - ends the thread of random mode, frees what is left of everything, puts rdma_verbs back.  What was left is told by
 * fabric_live() before that. */
void fabric_start(const struct fabric_config *cfg);
void fabric_stop(void);
/* fabric_reset - both. */
void fabric_reset(const struct fabric_config *cfg);

/* -- what happens next -- */

enum fabric_step_kind {
	FABRIC_EXECUTE,	/* the next work request of a queue pair: its octets are moved; a message takes a receive */
	FABRIC_DELIVER,	/* the oldest receive that is done is told to its completion queue */
	FABRIC_ACK,	/* the sender hears of its requests up to the next one that is told: signaled, or failed */
	FABRIC_CM,	/* a connection manager event comes to its channel, or a message to the other node */
	FABRIC_TIMEOUT,	/* what can never be answered is given up: RETRY_EXC_ERR, a goodbye without an answer */
	FABRIC_STEP_KINDS,
};
struct fabric_choice {
	enum fabric_step_kind kind;
	uint32_t qp_num; /* 0: CM */
	char text[104];
};

/* fabric_immediate - (the mode at first) all that can happen does, at once and in the calling thread.
 * fabric_manual - nothing happens but in fabric_step().
 * fabric_random - a thread takes random steps; phases in which some kinds or queue pairs are starved, pauses of up to @pause_us. */
void fabric_immediate(void);
void fabric_manual(void);
void fabric_random(uint64_t seed, unsigned pause_us);

/* fabric_choices - the steps that can be taken now, at most @max of them in @out, always in the same order for the same history.
 * fabric_step - take the one with this index.  fabric_settle - take steps, the first one each time, until only time-outs are left; how
 * many.  Manual mode. */
unsigned fabric_choices(struct fabric_choice *out, unsigned max);
void fabric_step(unsigned choice);
unsigned fabric_settle(void);

/* -- faults -- */

enum fabric_call {
	FABRIC_CREATE_EVENT_CHANNEL, FABRIC_GET_CM_EVENT, FABRIC_ACK_CM_EVENT, FABRIC_CREATE_ID, FABRIC_DESTROY_ID, FABRIC_SET_OPTION,
	FABRIC_RESOLVE_ADDR, FABRIC_RESOLVE_ROUTE, FABRIC_BIND_ADDR, FABRIC_LISTEN, FABRIC_CONNECT, FABRIC_ACCEPT, FABRIC_REJECT,
	FABRIC_DISCONNECT, FABRIC_MIGRATE_ID, FABRIC_CREATE_QP, FABRIC_QUERY_DEVICE, FABRIC_QUERY_PORT, FABRIC_QUERY_QP, FABRIC_ALLOC_PD,
	FABRIC_DEALLOC_PD, FABRIC_REG_MR, FABRIC_DEREG_MR, FABRIC_CREATE_COMP_CHANNEL, FABRIC_DESTROY_COMP_CHANNEL, FABRIC_CREATE_CQ,
	FABRIC_DESTROY_CQ, FABRIC_REQ_NOTIFY_CQ, FABRIC_GET_CQ_EVENT, FABRIC_POLL_CQ,
	FABRIC_POST_SEND, /* counted by work request, so that a chain can fail in its middle */
	FABRIC_POST_RECV, /* likewise */
	FABRIC_CALLS
};
const char *fabric_call_name(enum fabric_call call);

#define FABRIC_FOR_EVER UINT32_MAX

/* fabric_fail - the @nth (from 1) call from now on fails with @error (positive), and the @times - 1 after it.
 * fabric_fail_any - the same, counting every call that takes something or does something; not those that give back or acknowledge. */
void fabric_fail(enum fabric_call call, unsigned nth, int error, unsigned times);
void fabric_fail_any(unsigned nth, int error, unsigned times);
bool fabric_fails_any(enum fabric_call call); /* fabric_fail_any() counts it */
/* fabric_fail_wr - the @nth write, message or receive that is executed from now on ends with @status; its octets are not moved.
 * A queue pair of which one failed is in error, and what is left of it is flushed. */
enum fabric_wr { FABRIC_WR_WRITE, FABRIC_WR_SEND, FABRIC_WR_RECV };
void fabric_fail_wr(enum fabric_wr wr, unsigned nth, enum ibv_wc_status status);
/* fabric_lose_recv - the @nth receive completion from now on is never told: what a faulty user of verbs does that drops one. */
void fabric_lose_recv(unsigned nth);
unsigned fabric_hits(void); /* of all these, so far */
uint64_t fabric_count(enum fabric_call call); /* calls so far */

/* fabric_link - FABRIC_UP; SILENT: nothing passes between ends any more, and nobody is told; DEAD: the same, and time-outs tell (what was posted
 * ends with RETRY_EXC_ERR; no event comes). */
enum fabric_link { FABRIC_UP, FABRIC_SILENT, FABRIC_DEAD };
void fabric_link(enum fabric_link link);
void fabric_remove_device(unsigned device);

/* fabric_address - what looking up @address (no port) comes to: ADDR_ERROR or ROUTE_ERROR with @status (negative), or, 0 as before.
 * fabric_address_refused - resolve_addr() itself fails.  fabric_route - the @nth resolve_addr() from now on finds device @device. */
void fabric_address(const char *address, enum rdma_cm_event_type error, int status);
void fabric_address_refused(const char *address, int error);
void fabric_route(unsigned nth, unsigned device);

/* fabric_cm_change - the @nth event @from from now on becomes @to with @status.  FABRIC_CM_NEVER as @to: it does not come; FABRIC_CM_TWICE:
 * it comes twice.  fabric_cm_send - an event for each connection end (not for listeners) that lives now. */
#define FABRIC_CM_NEVER 1000
#define FABRIC_CM_TWICE 1001
void fabric_cm_change(enum rdma_cm_event_type from, unsigned nth, int to, int status);
void fabric_cm_send(int type, int status);

/* -- accounts -- */

struct fabric_live {
	unsigned pds, mrs, cqs, qps, event_channels, comp_channels, ids;
	unsigned cm_events; /* got and not acked */
	unsigned cq_events; /* the same */
	uint64_t bytes;	    /* registered, on demand included */
	uint64_t pinned;    /* without */
};
void fabric_live(struct fabric_live *out);
bool fabric_all_gone(void); /* everything in it is 0 */
uint64_t fabric_registered(void); /* registrations so far */
const char *fabric_live_text(void); /* for messages; this thread's, until its next call */
/* fabric_violations - how many, and the sentences of the first ones, one a line; this thread's, until its next call. */
unsigned fabric_violations(const char **text);
void fabric_forget_violations(void);

#endif
