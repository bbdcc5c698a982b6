/* SPDX-License-Identifier: MIT */
/* fabric_fake_private.h - what the files of the made-up fabric share.  Nobody else includes it.
 *
 *   fabric_fake.c        start and stop, calls and their faults, accounts, the table
 *   fabric_fake_cm.c     connection manager: addresses, ids, events
 *   fabric_fake_verbs.c  protection domains, memory, queues, posting and polling
 *   fabric_fake_step.c   what may happen next, and its doing
 *
 * Everything is guarded by fake_lock. */
#ifndef TEST_FABRIC_FAKE_PRIVATE_H
#define TEST_FABRIC_FAKE_PRIVATE_H

#include <pthread.h>
#include <sys/queue.h>
#include "fabric_fake.h"

#define FAKE_SGE_MAX 32
#define FAKE_DEVICES_MAX 8
#define FAKE_RULES_MAX 16
#define FAKE_SENTENCES 32

/* -- connection manager -- */

struct fake_id;

struct fake_event {
	struct rdma_cm_event ev; /* the user's view; first */
	TAILQ_ENTRY(fake_event) link;
	struct fake_id *owner; /* whose account it is on: of a connect request the listener */
	struct fake_id *about; /* what it is for: of a connect request the new id */
	uint8_t *data;	       /* of ev.param.conn; freed when acked, so that a late look at it is found */
	bool twice;	       /* a copy of one that came already: has no effect */
	bool out, acked;       /* got by the user; given back */
};
TAILQ_HEAD(fake_events, fake_event);

struct fake_channel {
	struct rdma_event_channel ch;
	LIST_ENTRY(fake_channel) link;
	struct fake_events events; /* to be got */
};

enum fake_id_state {
	ID_IDLE, ID_BOUND, ID_ADDR_ASKED, ID_ADDR, ID_ROUTE_ASKED, ID_ROUTE, ID_LISTENING,
	ID_ASKED,     /* active: a request is on its way */
	ID_REQUESTED, /* passive: there was a request */
	ID_ACCEPTED,  /* passive: until the active side's last word; active: until ESTABLISHED was got */
	ID_CONNECTED,
	ID_LEAVING, /* we, or the other side, said goodbye */
	ID_OVER,
};

/* What is on its way to an id: an event to be, or a connect request looking for its listener. */
struct fake_message {
	TAILQ_ENTRY(fake_message) link;
	struct fake_id *to;
	enum rdma_cm_event_type type;
	int status;
	bool request;  /* @to asks for a connection */
	bool far;      /* it crosses the wire */
	bool timeout;  /* only a time-out brings it */
	struct rdma_conn_param param;
	uint8_t data[256];
	uint8_t len;
};
TAILQ_HEAD(fake_messages, fake_message);

struct fake_id {
	struct rdma_cm_id id;
	LIST_ENTRY(fake_id) link;
	unsigned number; /* for texts and for order */
	enum fake_id_state state;
	struct fake_id *peer;	/* the other end, while it is there */
	bool had_peer, passive, bound, reuse, v6only;
	struct fake_id *listener; /* of a request that was not got yet */
	unsigned device;	/* where it is, once known: UINT_MAX before */
	unsigned unacked;
	unsigned waiting, backlog; /* listener: requests that were not got */
	uint8_t ack_timeout;
	struct rdma_conn_param param; /* of connecting: retries */
	bool goodbye_sent;	     /* DISCONNECTED is due to the other side, and to us */
};

/* -- verbs -- */

struct fake_pd {
	struct ibv_pd pd;
	LIST_ENTRY(fake_pd) link;
	unsigned mrs, qps;
};

struct fake_mr {
	struct ibv_mr mr;
	int access;
};

struct fake_comp_channel {
	struct ibv_comp_channel ch;
	LIST_ENTRY(fake_comp_channel) link;
	TAILQ_HEAD(, fake_comp_event) events;
};

struct fake_comp_event {
	TAILQ_ENTRY(fake_comp_event) link;
	struct fake_cq *cq;
};

struct fake_cqe {
	struct ibv_wc wc;
	uint32_t qp_num;
	bool recv;
	unsigned retires; /* places of the queue that its polling makes free */
};

struct fake_cq {
	struct ibv_cq cq;
	LIST_ENTRY(fake_cq) link;
	struct fake_cqe *ring; /* cq.cqe of them */
	unsigned first, count;
	bool armed, solicited_only;
	unsigned qps, unacked;
};

/* A work request from its posting until the user knows that it is done: it has polled its completion, or a later one of the same queue. */
struct fake_wr {
	TAILQ_ENTRY(fake_wr) link;
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	uint64_t remote;
	uint32_t rkey;
	unsigned nr_sge;
	struct ibv_sge sge[FAKE_SGE_MAX];
	uint8_t *copy; /* inline: the octets as they were */
	uint64_t len;
	bool begun, half, executed, told; /* told: completed, loudly or silently */
	unsigned tries;		   /* without a receive */
	enum ibv_wc_status status;
	/* receives */
	bool taken;
	uint32_t byte_len;
};
TAILQ_HEAD(fake_wrs, fake_wr);

struct fake_qp {
	struct ibv_qp qp;
	TAILQ_ENTRY(fake_qp) link;
	struct fake_id *id;
	struct ibv_qp_cap cap;
	bool sq_sig_all, stalled; /* stalled: one has failed and the sender has not heard of it */
	struct fake_wrs sq, rq;
	unsigned sq_used, rq_used;
	unsigned sq_silent; /* completed since the last completion that was told */
};
TAILQ_HEAD(fake_qps, fake_qp);

/* -- everything -- */

struct fake_rule {
	bool any;
	enum fabric_call call;
	unsigned nth, times;
	int error;
};

struct fake_wr_rule {
	enum fabric_wr wr;
	unsigned nth;
	enum ibv_wc_status status;
};

struct fake_cm_rule {
	enum rdma_cm_event_type from;
	unsigned nth;
	int to, status;
};

struct fake_address_rule {
	char address[64];
	enum rdma_cm_event_type error;
	int status, refused;
};

struct fake_device {
	struct ibv_device dev;
	struct ibv_context context;
	bool removed;
};

enum fake_mode { MODE_IMMEDIATE, MODE_MANUAL, MODE_RANDOM };

struct fake {
	struct fabric_config cfg;
	struct fake_device device[FAKE_DEVICES_MAX];
	enum fabric_link link;

	LIST_HEAD(, fake_channel) channels;
	LIST_HEAD(, fake_id) ids; /* newest first */
	struct fake_messages messages;
	struct fake_events husks; /* got; kept for a while when acked, so that a second ack is found */
	unsigned nr_husks;
	LIST_HEAD(, fake_pd) pds;
	LIST_HEAD(, fake_comp_channel) comp_channels;
	LIST_HEAD(, fake_cq) cqs;
	struct fake_qps qps; /* oldest first */
	struct fake_mr **mr; /* by index; NULL: free */
	uint32_t *mr_generation;
	unsigned nr_mr, cap_mr;
	unsigned next_id, next_handle;
	uint32_t next_qp_num;
	uint16_t next_port;

	struct fabric_live live;
	uint64_t registered;
	unsigned violations;
	char sentence[FAKE_SENTENCES][200];

	struct fake_rule rule[FAKE_RULES_MAX];
	struct fake_wr_rule wr_rule[FAKE_RULES_MAX];
	struct fake_cm_rule cm_rule[FAKE_RULES_MAX];
	struct fake_address_rule address_rule[FAKE_RULES_MAX];
	struct {
		unsigned nth, device;
	} route_rule[FAKE_RULES_MAX];
	unsigned nr_rules, nr_wr_rules, nr_cm_rules, nr_address_rules, nr_route_rules;
	unsigned lose_recv;
	unsigned hits;
	uint64_t count[FABRIC_CALLS];

	enum fake_mode mode;
	bool thread_runs, stop; /* of random mode; is to end */
	pthread_cond_t todo; /* CLOCK_MONOTONIC; something may have become possible */
	pthread_t thread;
	uint64_t seed;
	unsigned pause_us;
};
extern pthread_mutex_t fake_lock;
extern struct fake fake;

/* fake_begin - takes the lock; 0, or a negative errno if this call is to fail.  fake_done - lets what has become possible happen, gives
 * up the lock, and returns @r.  Always in pairs. */
int fake_begin(enum fabric_call call);
int fake_done(int r);
void *fake_done_ptr(void *p, int r); /* NULL with errno from @r */
/* fake_rule_hits - for calls that are counted by the piece. */
int fake_rule_hits(enum fabric_call call);
enum ibv_wc_status fake_wr_fails(enum fabric_wr wr);
void fake_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void fake_raise(int fd); /* an eventfd as a level */
void fake_lower(int fd);
int fake_eventfd(void);
struct fake_device *fake_device_of(const struct ibv_context *c);
void *fake_alloc(size_t n);

/* -- steps -- */

void fake_steps_immediate(void); /* in mode immediate: all that can */
void fake_step_thread_stop(void); /* lock not held */

/* -- connection manager -- */

/* fake_message_ready - can it be delivered now?  The first of its id only. */
bool fake_message_ready(const struct fake_message *m);
void fake_message_deliver(struct fake_message *m);
void fake_message_text(const struct fake_message *m, char *text, size_t size);
void fake_cm_send(struct fake_id *to, enum rdma_cm_event_type type, int status, const void *data, uint8_t len, bool far);
void fake_cm_free_all(void);
void fake_cm_remove_device(unsigned device);

/* -- verbs -- */

struct fake_qp *fake_qp_by_num(uint32_t num);
/* fake_mr_check - the memory that @key stands for, or NULL. */
struct fake_mr *fake_mr_check(uint32_t key, bool remote, const struct ibv_pd *pd, uint64_t addr, uint64_t len, int access);
void fake_cq_push(struct ibv_cq *cq, const struct ibv_wc *wc, bool recv, unsigned retires, bool solicited);
void fake_qp_error(struct fake_qp *qp); /* to state ERR: everything not told is flushed */
void fake_verbs_free_all(void);

extern const struct rdma_fabric fake_cm_table, fake_verbs_table; /* each fills its half */

#endif
