/* SPDX-License-Identifier: MIT */
/* rdma_private.h - a connection of several reliable queue pairs, as the files of this folder see it.  Nobody else includes it.
 *
 *   rdma_setup.c   addresses, connect, listen, accept, refusal: until all lanes stand
 *   rdma_conn.c    what a connection owns, its making and its end, connection manager events, status
 *   rdma_wait.c    waiting and dispatch: one thread at a time is the poller, the others wait for its word
 *   rdma_send.c    writes and messages: the lane's queue, posting, send completions
 *   rdma_recv.c    receive completions by work-request id and by kind, credits, messages to the application
 *   rdma_keys.c    the writing side's knowledge of the peer's windows: chunks, keys, least recently used, unpinning; local keys
 *   rdma_window.c  the receiving side's windows: registration for the peer
 *
 * One mutex, rdma.lock, guards all that is not said to be otherwise.  Under it nothing waits; registering a window's memory happens
 * outside of it, by the poller. */
#ifndef FT_RDMA_PRIVATE_H
#define FT_RDMA_PRIVATE_H

#include "fabric.h"
#include "rdma_chunk.h"
#include "rdma_wire.h"
#include "transport_ops.h"

#define RDMA_QUEUE 1024u   /* entries of a lane: writes and messages, queued or posted */
#define RDMA_SGE_MAX 16u   /* gather list of one write; less where the device has less */
#define RDMA_MERGE_MAX TP_WRITE_MAX
/* Small writes that are gathered before they are posted.  In soft-RoCE each post is a system call, and each chain's end may wake a waiter:
 * with 64, not 32, and no wake-up for each chain where a credit is waited for, the processes took 2.7 instead of 3.2 s of an emulated
 * processor for 1 GiB of scattered pages, and 0.24 instead of 1.2 s in runs of 64 KiB. */
#define RDMA_POST_WRITES 64u
#define RDMA_POST_BYTES (1u << 20)
#define RDMA_LOCAL_MAX 64u /* announced ranges of local memory */
#define RDMA_SLOTS_SPARE 4u /* send slots beyond the credits */

/* What both sides have agreed on, and this side's settings. */
struct rdma_limits {
	uint32_t lanes;
	uint32_t credits_ours, credits_peers;
	uint32_t capabilities; /* agreed */
	uint32_t chunk_shift;
	uint64_t pin_budget_ours, pin_budget_peers; /* 0: none */
	uint32_t signal_every, sq_depth;
};

#define RDMA_REQUESTS 2u /* of each kind without an answer: what comes meanwhile gathers in the next */
#define RDMA_REPLIES 4u /* answers that wait for a control credit: two to requests for keys, two to unpinned chunks */

enum entry_state { ENTRY_FREE = 0, ENTRY_QUEUED, ENTRY_POSTED, ENTRY_DONE };

struct chunk;

/* One work request: a write, or a message. */
struct entry {
	enum entry_state state;
	enum rdma_kind kind; /* 0: a write */
	uint32_t window, slot;
	uint64_t offset, len, ticket; /* ticket: the last write that ends in it, 0: none */
	struct chunk *chunk;	      /* NULL: the window has one key */
	struct ibv_mr *once;	      /* registered for this write alone */
	bool mirror;		      /* its memory is registered with the chunk: the key is filled in when it is posted */
	unsigned nr_sge;
	struct ibv_sge sge[RDMA_SGE_MAX];
};

struct send_slot {
	uint8_t *memory; /* RDMA_SLOT_BYTES */
	bool busy;
};

struct lane {
	struct rdma_cm_id *id;
	uint32_t index;
	bool attached, established, disconnected;

	/* the lane's turn: one tp_send() at a time */
	bool sending;
	unsigned turn_waiters;

	/* sending */
	struct entry *entry;	      /* RDMA_QUEUE, a ring */
	uint64_t first, next_post, end; /* oldest not done; oldest queued; behind the newest */
	unsigned nr_queued;
	bool stuck; /* somebody waits for what is queued: it goes as soon as it can, whoever sees that */
	unsigned gathered; /* entries and octets queued since it was last tried to post */
	uint64_t gathered_bytes;
	uint64_t tickets, completed; /* given out; up to which all are completed */
	uint64_t seen_tickets;	     /* at the last tp_completed() */
	uint64_t sq_posted, sq_done, sq_signaled; /* work requests: posted; known to be complete; the last that will tell */
	uint64_t moved_ns;   /* when the device last completed something, or got something to do */
	uint32_t *sq;	     /* sq_depth: entry (modulo RDMA_QUEUE) of work request n */
	struct send_slot *slot; /* nr_slots */
	unsigned nr_slots;
	uint64_t sent, returned; /* messages: number of the last; the peer's application is done with */
	uint64_t control_sent, control_returned;
	uint64_t sent_posted, control_posted; /* of these: the device has them, so that the peer may have */
	bool said_close;
	bool flushed; /* work of it was given up by the device */
	bool ask; /* tp_settle(): a credit is to be asked for */
	uint64_t asked; /* for that message */

	/* receiving */
	uint8_t *rx_memory;  /* nr_receives slots of RDMA_SLOT_BYTES */
	unsigned nr_receives;
	uint64_t received, taken, told; /* messages: come in; the application is done with; the peer knows of */
	uint64_t control_received, control_told;
	uint64_t answer_at;  /* a credit is asked for once that many were taken; 0: none */
	bool closed;	     /* the peer's last word has come */
	bool silent;	     /* a receive came back unused: all that came was told */
};

/* A message that came in and waits for tp_recv(). */
struct arrival {
	uint32_t lane, slot, len;
};

/* The peer's window, as it told it. */
struct remote_window {
	bool open;
	bool touched; /* a chunk was wanted; before that all are zeros, however many the peer says there are */
	uint32_t rkey, generation;
	uint64_t address, len;
	struct chunk *chunk; /* nr_chunks; NULL: one key */
	uint32_t nr_chunks;
	uint8_t *source; /* local memory that this window mirrors, or NULL */
	uint64_t source_len;
};

/* Our window, as the peer may write it. */
struct own_window {
	void *base;
	uint64_t len;
	uint32_t generation;
	struct ibv_mr *mr;    /* whole */
	struct ibv_mr **chunk; /* by chunk, nr_chunks */
	uint32_t nr_chunks;
};

struct local_range {
	uint8_t *base;
	uint64_t len;
	struct ibv_mr *mr;
};

/* An answer that waits until it may be sent. */
struct reply {
	enum rdma_kind kind;
	uint32_t count, entry_bytes;
	struct rdma_key_entry entry[RDMA_BATCH_MAX]; /* or chunk entries, in the same room */
};

/* Of a completion queue. */
struct cq_events {
	unsigned taken; /* to be acked */
	bool armed;	/* it will tell, or has told and nobody has looked yet */
};

struct rdma {
	struct tp_conn conn;
	uint32_t made; /* lanes there is memory for; conn.lanes of them are used */
	bool stands;
	const struct rdma_fabric *fabric;
	struct rdma_limits limits;
	struct rdma_event_channel *events; /* of all ids of this connection */
	struct ibv_context *verbs;
	struct ibv_device_attr_ex device;
	struct ibv_pd *pd;
	struct ibv_comp_channel *send_channel, *recv_channel;
	struct ibv_cq *send_cq, *recv_cq;
	uint8_t *slots; /* memory of all slots, one registration */
	size_t slots_bytes;
	struct ibv_mr *slots_mr;
	unsigned max_sge;
	int wake_fd;  /* raised for good once the fate is sealed, and for a moment to have the poller look again */
	int ready_fd; /* raised while tp_recv may have something without an fd saying so */
	int epoll_fd;

	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool polling;	      /* a thread, @poller, is the poller */
	pthread_t poller;
	bool more;	      /* not all that has come in was looked at */
	bool starved;	      /* something could not be queued or posted for want of a send completion: one will wake the poller */
	bool deaf;	      /* the device refused a post although nothing is on its way that would tell: look again soon */
	bool polled;	      /* the application uses tp_poll_fd() */
	unsigned send_waiters; /* waits that a send completion may end */
	struct cq_events send_events, recv_events;

	struct arrival *arrival; /* nr_arrivals, a ring of all receives */
	unsigned nr_arrivals;
	uint64_t arrival_first, arrival_end;
	struct reply *reply; /* RDMA_REPLIES, a queue */
	unsigned nr_replies;
	bool answering; /* the poller, without the lock, makes the next one */
	uint32_t announce; /* bits of own windows that the peer is to be told of */
	struct rdma_window_entry announcement[TP_WINDOWS_MAX];
	int given; /* lane of the message that tp_recv() gave last, -1 */
	bool failed; /* it is lost, @lost says why; what has come in is still being told */
	bool breached; /* the peer is told so; @lane 0 has the sentence */
	bool over; /* nothing more comes in: @lost says why, told when the arrivals are empty */
	struct ft_error lost;

	struct remote_window remote[TP_WINDOWS_MAX];
	pthread_mutex_t own_lock; /* guards own[]; taken before lock, never under it */
	struct own_window own[TP_WINDOWS_MAX];
	uint64_t own_pinned; /* octets of own windows; guarded by own_lock */
	struct local_range local[RDMA_LOCAL_MAX];
	unsigned nr_local;

	/* the writing side's keys */
	struct chunk *lru_first, *lru_last; /* registered, oldest use first */
	struct chunk *want_first, *want_last;	/* WANTED, first come first served */
	struct chunk *unpin_first, *unpin_last; /* DRAINING and drained: to be told */
	unsigned registers_out, unregisters_out; /* requests without an answer, */
	uint32_t register_count[RDMA_REQUESTS], unregister_count[RDMA_REQUESTS]; /* and the chunks in each, oldest first */
	bool pressed; /* chunks are wanted, and writes that are not posted hold all keys */
	uint64_t pinned_remote; /* octets of the peer's chunks: ASKED, READY, DRAINING, TOLD */
	uint64_t unpinning;	/* of these: DRAINING, TOLD */
	uint64_t key_budget;	/* what pinned_remote is kept to; 0: no limit */
	uint64_t unpins;

	struct tp_info info; /* what does not change */
	_Atomic uint64_t registrations, deregistrations; /* of any memory, on this side */
	_Atomic uint64_t pinned;	/* octets registered on this side now */
	_Atomic uint64_t bytes_sent, bytes_received, writes, messages_sent, messages_received;
	struct lane lane[]; /* made */
};

static inline struct rdma *rdma_of(struct tp_conn *c)
{
	return (struct rdma *)c;
}

static inline void rdma_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* -- rdma_conn.c -- */

/* rdma_conn_create - with nothing from a device yet; @lanes as wished, fewer may be used in the end (conn.lanes).  @events becomes its
 * own, also when this fails. */
int rdma_conn_create(struct rdma **out, const struct rdma_fabric *fabric, uint32_t lanes, struct rdma_event_channel *events,
		     const char *peer, struct ft_error *err);
/* rdma_conn_prepare - protection domain, queues and slots on the device of @verbs.  s->limits is what was asked for; sq_depth and
 * credits_ours are made smaller where the device wants it.  Once, before the first rdma_lane_attach(). */
int rdma_conn_prepare(struct rdma *s, struct ibv_context *verbs, struct ft_error *err);
/* rdma_lane_attach - @id becomes lane @lane: its queue pair is made, and its receives are posted.  The id is the connection's from now
 * on, also when this fails.  -EXDEV: it is on another device than the other lanes. */
int rdma_lane_attach(struct rdma *s, uint32_t lane, struct rdma_cm_id *id, struct ft_error *err);
/* rdma_conn_stand - all lanes are established and s->limits agreed: the connection may be given out. */
int rdma_conn_stand(struct rdma *s, struct ft_error *err);
/* rdma_conn_destroy - from whatever state; without a goodbye unless it stood.  NULL is harmless. */
void rdma_conn_destroy(struct rdma *s);
/* rdma_conn_events - take what the connection manager has to say.  Lock held. */
void rdma_conn_events(struct rdma *s);
/* rdma_linger_ms - how long the last words may take; 300.  rdma_end_ms - how long who closes waits for the kernel to give back queue pairs; 1000.
 * Tests set them. */
extern unsigned rdma_linger_ms, rdma_end_ms;

/* rdma_reg, rdma_dereg - memory of this side; counted.  @use says for the sentence what it is; -ENOMEM names RLIMIT_MEMLOCK when that is
 * the likely reason.  Any thread, with or without the lock. */
struct rdma_use {
	const char *what, *less; /* with what settings it would be less */
};
int rdma_reg(struct rdma *s, void *base, uint64_t len, int access, struct rdma_use use, struct ibv_mr **out, struct ft_error *err);
void rdma_dereg(struct rdma *s, struct ibv_mr *mr); /* NULL is harmless */
void rdma_dereg_access(struct rdma *s, struct ibv_mr *mr, int access); /* with the access of rdma_reg(), where nothing was pinned */
/* rdma_check_memlock - may this process pin @bytes more?  The sentence names the limit found, the number needed and how to raise it. */
int rdma_check_memlock(struct rdma *s, uint64_t bytes, struct rdma_use use, struct ft_error *err);

/* -- rdma_wait.c: lock held -- */

/* rdma_wait - until something may have changed; -ETIMEDOUT: @deadline has passed.  The caller looks at its condition again, also then.
 * @for_send: a send completion counts. */
int rdma_wait(struct rdma *s, bool for_send, uint64_t deadline);
/* rdma_progress - whatever is there now, without waiting, unless another thread is the poller. */
void rdma_progress(struct rdma *s);
/* rdma_rearm - for who sleeps on tp_poll_fd() next: what comes from now on makes it readable; what is there is dealt with. */
void rdma_rearm(struct rdma *s);
/* rdma_starve - for want of a send completion; the next one wakes the poller.  Those that are there are dealt with: look again.
 * rdma_deaf - the device refuses, and nothing is on its way: the poller tries again soon. */
void rdma_starve(struct rdma *s);
void rdma_deaf(struct rdma *s);
/* rdma_kick - the poller, if that is another thread, looks again at what it waits for: something has changed that no descriptor tells. */
void rdma_kick(struct rdma *s);
/* rdma_break - the connection is over, both ways, with this sentence.  rdma_last_word - by the peer, that nothing more comes in and nothing
 * goes out; what has come is still handed out; it counts more than a failure.  rdma_fail - the connection is lost, but what came before may
 * not be told yet: it is over when each lane was closed or has flushed a receive.  rdma_lane_silent - one was, or has.
 * rdma_breach - it was the peer's fault, who is told. */
void rdma_break(struct rdma *s, int code, const char *fmt, ...) FT_PRINTF(3, 4);
void rdma_last_word(struct rdma *s, int code, const char *fmt, ...) FT_PRINTF(3, 4);
void rdma_fail(struct rdma *s, int code, const char *fmt, ...) FT_PRINTF(3, 4);
void rdma_lane_silent(struct rdma *s, struct lane *l);
void rdma_breach(struct rdma *s, const char *fmt, ...) FT_PRINTF(2, 3);

/* -- rdma_send.c: lock held, but for rdma_op_* -- */

void rdma_drain_send(struct rdma *s);
/* rdma_pump - post what may be posted: all of it with @flush, else only when there is enough. */
void rdma_pump(struct rdma *s, struct lane *l, bool flush);
void rdma_pump_all(struct rdma *s);
/* rdma_may_say, rdma_say - queue a message of the transport's own if there is room for it now; false: not now, ask again after progress. */
bool rdma_may_say(struct rdma *s, struct lane *l, enum rdma_kind kind);
bool rdma_say(struct rdma *s, struct lane *l, enum rdma_kind kind, uint32_t count, const void *body, size_t len);
void rdma_goodbye(struct rdma *s);

int rdma_op_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov,
		  uint64_t *ticket, uint64_t deadline, struct ft_error *err);
uint64_t rdma_op_completed(struct tp_conn *c, uint32_t lane);
int rdma_op_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err);
int rdma_op_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline, struct ft_error *err);
int rdma_op_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err);
uint32_t rdma_op_credits(struct tp_conn *c, uint32_t lane);

/* -- rdma_recv.c -- */

/* rdma_drain_recv - dispatch what has come in; by the poller, lock held (and given up while memory is registered). */
void rdma_drain_recv(struct rdma *s);
/* rdma_control - send what is due and may be sent: answers, windows, requests for keys, credits.  Lock held. */
void rdma_control(struct rdma *s);
int rdma_post_receive(struct rdma *s, struct lane *l, unsigned slot);
int rdma_op_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err);

/* -- rdma_keys.c: lock held, but for rdma_op_* -- */

/* A chunk of the peer's window.
 *
 *   NONE --want--> WANTED --budget--> ASKED --answer--> READY --least recently used--> DRAINING --its writes complete,
 *    ^                                                                                  local memory deregistered--> TOLD --answer--.
 *    '------------------------------------------------------------------------------------------------------------------------------'
 *
 * Writes are posted in READY only; in DRAINING and TOLD, the states of being unpinned, they wait, while those to other chunks go on.
 * With writes queued a chunk is not chosen for unpinning, unless all would wait for one another. */
enum chunk_state { CHUNK_NONE = 0, CHUNK_WANTED, CHUNK_ASKED, CHUNK_READY, CHUNK_DRAINING, CHUNK_TOLD };

struct chunk {
	enum chunk_state state;
	uint32_t rkey;
	uint32_t window, queued, on_wire; /* writes that wait for it; that are posted */
	bool fresh;			   /* asked for ahead, and not written yet */
	struct ibv_mr *mr;		   /* of the memory that it mirrors, or NULL */
	struct chunk *prev, *next;	   /* in the list of its state */
};

/* rdma_key_want - a write to it was queued, or (@soon) will be: have it registered. */
void rdma_key_want(struct rdma *s, uint32_t window, struct chunk *c, bool soon);
/* rdma_key_unwant - a queued write was given up.  rdma_key_posted, rdma_key_done - of one write. */
void rdma_key_unwant(struct rdma *s, struct chunk *c);
void rdma_key_posted(struct rdma *s, struct chunk *c);
void rdma_key_done(struct rdma *s, struct chunk *c);
/* rdma_keys_control - ask for keys, tell of unpinned chunks, as far as control credits allow. */
void rdma_keys_control(struct rdma *s);
/* Bodies of messages, lengths checked; a breach is dealt with inside. */
void rdma_keys_on_window(struct rdma *s, const struct rdma_window_entry *e, uint32_t count);
void rdma_keys_on_registered(struct rdma *s, const struct rdma_key_entry *e, uint32_t count);
void rdma_keys_on_unregistered(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count);
void rdma_keys_fini(struct rdma *s);
/* rdma_local_key - the lkey of memory that was announced; false: it was not. */
bool rdma_local_key(const struct rdma *s, const void *at, uint64_t len, uint32_t *lkey);

int rdma_op_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err);
int rdma_op_mirror(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err);
void rdma_op_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len);

/* -- rdma_window.c -- */

/* rdma_check_budget - may @bytes be pinned as a whole?  Any thread. */
int rdma_check_budget(struct rdma *s, uint64_t bytes, const char *what, struct ft_error *err);
int rdma_op_window(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err);
/* By the poller, lock held and given up meanwhile; the answer is put into s->reply.  False: the peer asked for nonsense (told). */
void rdma_window_on_register(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count);
void rdma_window_on_unregister(struct rdma *s, const struct rdma_chunk_entry *e, uint32_t count);
void rdma_windows_control(struct rdma *s); /* lock held: announce */
void rdma_windows_fini(struct rdma *s);

#endif
