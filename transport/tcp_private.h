/* SPDX-License-Identifier: MIT */
/* tcp_private.h - a connection of several TCP sockets, as tcp.c (its life), tcp_send.c and tcp_recv.c see it.  Nobody else includes it.
 *
 * Order of locks: sending turn, tx turn.  Who holds rx_lock only tries the tx turn; who holds the tx turn never asks for rx_lock.
 * windows->lock, conn.lock and turn.lock are innermost. */
#ifndef FT_TCP_PRIVATE_H
#define FT_TCP_PRIVATE_H

#include "tcp.h"
#include "tls.h"

#define PARTS_MAX                                                                                                      \
	(TCP_EXTENTS_MAX - 1 + TP_IOV_MAX)     /* a batch with 256 parts is full, the last write may bring 64 to 255 */
#define TRAIN_MAX (3 + PARTS_MAX + TP_IOV_MAX) /* credit, batch head, message head, and their parts */
#define AHEAD_MAX (sizeof(struct tcp_frame) + TCP_EXTENTS_MAX * sizeof(struct tcp_extent))
#define EV_HALT UINT32_MAX /* marks in the epoll set; others are lanes */
#define EV_READY (UINT32_MAX - 1)

/* A lock whose waiters have a deadline and can be cancelled: 0 free, 1 taken, 2 taken and somebody may wait. */
struct turn {
	_Atomic int state;
	pthread_mutex_t lock;
	pthread_cond_t cond;
};

enum phase { RX_FRAME, RX_TABLE, RX_PAYLOAD, RX_MESSAGE, RX_OVER };

struct extent {
	uint32_t window, len;
	uint64_t offset;
};

struct lane {
	int fd;
	struct tls *tls; /* over it; NULL: none */
	uint32_t index;

	struct turn sending; /* one tp_send() at a time; outside of tx */
	struct turn tx;      /* guards this group */
	struct {
		struct tcp_frame frame;
		struct tcp_extent extent[TCP_EXTENTS_MAX];
	} batch;
	unsigned nr_extents, nr_parts;
	uint32_t batch_bytes;
	struct iovec part[PARTS_MAX];
	struct iovec train[TRAIN_MAX];
	unsigned train_at, nr_train, train_message; /* train_message: index of the message's head */
	uint64_t train_ticket;                      /* completed with the train */
	bool train_batch, train_credit, torn, watched;
	uint64_t seen_posted; /* at the last tp_completed() */
	struct tcp_frame credit_frame, message_frame;
	uint64_t posted;

	_Atomic uint64_t completed;
	_Atomic uint64_t taken;    /* credits used: number of the last message; written under the sending turn */
	_Atomic uint64_t returned; /* messages that the peer has consumed; reader */
	_Atomic uint64_t consumed; /* messages handed out here; tp_recv */
	_Atomic uint64_t told;     /* the last credit sent; written under the tx turn */
	_Atomic bool waiting;      /* tp_send waits on credit_fd */
	_Atomic bool missed;    /* it found another lane's waiter reading: to be woken when that one has left */
	int credit_fd;

	/* guarded by rx_lock */
	enum phase phase;
	bool ready; /* may have something without epoll saying so */
	bool whole; /* message is complete and waits for tp_recv */
	uint8_t ahead[AHEAD_MAX];
	unsigned ahead_at, ahead_end;
	unsigned count, at; /* extents of the frame, the one being filled */
	uint32_t len, got;  /* frame, or message so far */
	struct extent extent[TCP_EXTENTS_MAX];
	uint8_t *message; /* TP_MESSAGE_MAX */
	uint64_t messages_in, writes_in;
};

struct tcp {
	struct tp_conn conn;
	struct tcp_limits limits;
	int halt_tx_fd, halt_rx_fd; /* readable once that direction is over */
	int epoll_fd, ready_fd;
	pthread_mutex_t rx_lock;
	/* guarded by rx_lock */
	unsigned next, nr_over; /* lane to look at first; lanes that will bring nothing more */
	bool ready_raised, closed_by_peer;
	struct ft_error lost; /* why the first lane died; told when the others are empty */

	_Atomic uint64_t bytes_sent, bytes_received, writes, messages_sent, messages_received;
	struct lane lane[]; /* conn.lanes */
};

static inline struct tcp *tcp_of(struct tp_conn *c)
{
	return (struct tcp *)c;
}

static inline void tcp_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* -- tcp_send.c -- */

void tcp_turn_init(struct turn *t);
void tcp_turn_fini(struct turn *t);
/* tcp_turn_kick - who waits for the turn looks at the fate of the connection now. */
void tcp_turn_kick(struct turn *t);
/* tcp_credit_owed - half the window is used, and the peer does not know. */
bool tcp_credit_owed(const struct tcp *s, struct lane *l);
/* tcp_push_credit - by the reader: what is due goes now, or with whoever has the turn, or when there is room. */
void tcp_push_credit(struct tcp *s, struct lane *l);
/* tcp_say_goodbye - the last words of a lane, as far as they go without waiting; no thread is inside. */
void tcp_say_goodbye(struct tcp *s, struct lane *l);

int tcp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
	      unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err);
uint64_t tcp_completed(struct tp_conn *c, uint32_t lane);
int tcp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err);
int tcp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
	     struct ft_error *err);
uint32_t tcp_credits(struct tp_conn *c, uint32_t lane);

/* -- tcp_recv.c -- */

/* tcp_read_for_credit - in tp_recv()'s place, if nobody is there.  True: the socket is to be watched for more. */
bool tcp_read_for_credit(struct tcp *s, struct lane *l);

int tcp_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err);

#endif
