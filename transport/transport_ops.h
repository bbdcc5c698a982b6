/* SPDX-License-Identifier: MIT */
/* transport_ops.h - between transport.c and the transports.  Private to this folder (and to tests that look inside).
 * transport.c owns what is the same everywhere: which threads are inside, the fate of a connection, the windows, the checks of
 * arguments.  A transport puts struct tp_conn first in its own struct and fills in the ops.
 *
 * Fate: a connection lives, or is cancelled, or broken.  Each direction has its own fate, because a peer that closes after its last
 * words makes our next send fail before we have read them: conn_break_tx() leaves receiving as it is.  The first break stays. */
#ifndef FT_TRANSPORT_OPS_H
#define FT_TRANSPORT_OPS_H

#include <pthread.h>
#include <stdatomic.h>
#include "err.h"
#include "transport.h"

#define TP_CREDITS_DEFAULT 8u
#define TP_CREDITS_MAX 1024u
#define TP_NAME_MAX 32
#define TP_PEER_MAX 128

/* Arguments have been checked, and the fate of the direction, when these are called; tp_conn.inside is held. */
struct tp_conn_ops {
	int (*write)(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov,
		     uint64_t *ticket, uint64_t deadline, struct ft_error *err);
	uint64_t (*completed)(struct tp_conn *c, uint32_t lane);
	int (*wait_completed)(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err);
	int (*send)(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		    struct ft_error *err);
	uint32_t (*credits)(struct tp_conn *c, uint32_t lane);
	int (*recv)(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err);
	int (*poll_fd)(struct tp_conn *c);
	void (*stats)(struct tp_conn *c, struct tp_stats *out);
	/* The rest may be NULL: there is nothing to do, or to tell. */
	/* window - the window was opened (@base) or closed (NULL); its slot is set already, and is cleared again if this fails. */
	int (*window)(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err);
	int (*memory)(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err);
	int (*mirror)(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err);
	void (*prepare)(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len);
	int (*settle)(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err);
	void (*info)(struct tp_conn *c, struct tp_info *out);
	/* wake - the fate has changed: all waits look at it now.  Any thread, more than once. */
	void (*wake)(struct tp_conn *c);
	/* sever - cut the link without a word, as a dying process would.  Any thread.  For fault.c. */
	void (*sever)(struct tp_conn *c);
	/* destroy - no thread is inside.  What was sent goes out if that needs no waiting. */
	void (*destroy)(struct tp_conn *c);
};

struct tp_windows {
	pthread_mutex_t lock; /* held while octets go into a window, so that close can promise that it was the last */
	struct {
		void *base; /* NULL: not open */
		uint64_t len;
	} slot[TP_WINDOWS_MAX];
};

struct tp_conn {
	const struct tp_conn_ops *ops;
	char name[TP_NAME_MAX];
	char peer[TP_PEER_MAX];
	uint32_t lanes;
	struct tp_windows *windows; /* own_windows, or those of the connection that is wrapped */
	struct tp_windows own_windows;

	_Atomic uint32_t inside; /* calls in progress, and INSIDE_CLOSING */
	pthread_mutex_t lock;	 /* guards the rest; nests in nothing, nothing in it */
	pthread_cond_t drained_cond;
	bool drained;
	_Atomic bool cancelled;
	_Atomic int code_tx, code_rx; /* 0: alive; set once, after the sentence */
	struct ft_error why_tx, why_rx;
};

struct tp_listener_ops {
	int (*accept)(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int cancel_fd, struct ft_error *err);
	void (*close)(struct tp_listener *l);
};

struct tp_listener {
	const struct tp_listener_ops *ops;
	char address[TP_PEER_MAX];
	struct tp_params params; /* limits filled in */
};

/* conn_init, conn_fini - the shared part; @name is tp_name(), @peer is tp_peer(). */
void conn_init(struct tp_conn *c, const struct tp_conn_ops *ops, uint32_t lanes, const char *name, const char *peer);
void conn_fini(struct tp_conn *c);

/* conn_fate_tx, conn_fate_rx - 0, or why this direction is over, with the sentence in @err. */
int conn_fate_tx(struct tp_conn *c, struct ft_error *err);
int conn_fate_rx(struct tp_conn *c, struct ft_error *err);
/* conn_break - both directions end with @code and the sentence of @err; returns what is now the fate of receiving.
 * conn_break_tx - sending ends.  Both wake all waits.  @err may be the caller's own err. */
int conn_break(struct tp_conn *c, const struct ft_error *why, struct ft_error *err);
int conn_break_tx(struct tp_conn *c, const struct ft_error *why, struct ft_error *err);

/* windows_at - where [@offset, +@len) of window @id is, or NULL if it is not open or not that large.  Lock held. */
void *windows_at(const struct tp_windows *w, uint32_t id, uint64_t offset, uint64_t len);

/* wait_fd - poll @fd for @events; ends with -ETIMEDOUT at the deadline, -ECANCELED when @stop_fd (or -1) is readable. */
int wait_fd(int fd, short events, int stop_fd, uint64_t deadline);
/* event_raise, event_clear - an eventfd as a level: readable or not. */
void event_raise(int fd);
void event_clear(int fd);

/* One per transport; @rest is the URI behind the scheme. */
int tcp_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		struct ft_error *err);
int tcp_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err);
int loopback_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		     struct ft_error *err);
int loopback_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err);
int rdma_connect_uri(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		     struct ft_error *err);
int rdma_listen_uri(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err);
int fault_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		  struct ft_error *err);
int fault_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err);

#endif
