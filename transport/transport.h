/* SPDX-License-Identifier: MIT */
/* transport.h - what the engine asks of a link, and what every transport keeps.
 *
 * A connection has lanes, numbered from 0.  Lane 0 carries control messages, lanes 1.. carry data.
 * On one lane everything is ordered: a message arrives after all writes and messages that were posted before it on
 * the same lane, and when it is received the data of those writes is in place.  Between lanes there is no order.
 *
 *   write    puts octets into a window (memory that the other side opened under a number).  Asynchronous: the
 *            buffer belongs to the transport until the write is completed, see tp_completed(), or tp_close() has returned.  Completed means
 *            "the buffer may be reused", never "the peer has it": only the peer's process can say that.
 *   send     a message of at most TP_MESSAGE_MAX octets; copied before it returns.  Takes a credit.
 *   recv     the next message of any lane.
 *
 * Waits: each call that may wait has a deadline (engine/base/clock.h; now_ns() or earlier = do not wait) and ends at once with
 * -ECANCELED after tp_cancel(), and with -ECONNRESET, -EPIPE or the like when the peer is lost.  -ETIMEDOUT leaves the connection
 * usable where it says so.  After any other error the connection is broken: every later call fails with the same error
 * (-EINVAL, -EMSGSIZE, -EBUSY: a wrong argument, nothing happened).  A peer that closes breaks sending at once (-EPIPE, -ECONNRESET);
 * tp_recv first hands out what came before.
 *
 * Threads: tp_write, tp_send, tp_completed, tp_wait_completed: any thread, serialised per lane inside.  tp_recv: one thread at a
 * time.  tp_window_*: any thread.  tp_cancel: any thread, any time before tp_close.  tp_close: waits for calls in other threads to leave, then frees.
 *
 * The peer is not believed: window, offset, length, lane, frame are checked before use; a breach breaks the connection
 * with -EPROTO and a sentence in @err. */
#ifndef FT_TRANSPORT_H
#define FT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <ft/error.h>

#define TP_MESSAGE_MAX 65536u /* octets of one message */
#define TP_WRITE_MAX (4u << 20) /* octets of one write */
#define TP_LANES_MAX 9u	      /* lane 0 and 8 data lanes */
#define TP_WINDOWS_MAX 16u
#define TP_IOV_MAX 64u

struct tp_conn;
struct tp_listener;

/* How the receiving side of an rdma connection lets its windows be written; agreed by both sides. */
enum tp_registration {
	TP_REGISTER_CHUNKS = 0, /* chunk by chunk, when first written; within a budget, the least recently used are given back */
	TP_REGISTER_WHOLE,	/* each window as a whole when it is opened: all of it becomes resident and pinned */
	TP_REGISTER_ODP,	/* as a whole, but nothing is pinned: the device fetches pages; falls back to chunks where it cannot */
};

/* How both sides of a tcp connection prove who they are; then all of it is encrypted.  docs/security.md. */
enum tp_tls {
	TP_TLS_OFF = 0,
	TP_TLS_X509, /* each has a certificate */
	TP_TLS_PSK,  /* both have the same key */
};

struct tp_params {
	uint32_t lanes;	   /* connect: lanes to make, lane 0 included (2..TP_LANES_MAX); accept: the most to take */
	uint32_t credits;  /* messages that may be on their way on one lane; 0: the transport's default, 8 */
	uint32_t keepalive_ms; /* tcp: idle time before probes; 0: default */

	/* rdma; 0: default */
	enum tp_registration registration;
	uint32_t chunk_bytes;  /* a power of two, 1 MiB (default) to 256 MiB; both sides': the smaller */
	uint64_t pin_budget;   /* octets of windows and mirrored memory that may be pinned at a time; 0: no limit.  Each side has its own */
	uint32_t signal_every; /* a completion is asked for at least every so many writes; 64 */
	uint32_t sq_depth;     /* work requests on their way on one lane; 256 */
	uint32_t ack_timeout;  /* 4.096 us * 2^n until a packet counts as lost; 17 (0.5 s), 1 to 31 */
	uint32_t retry_count;  /* times that a packet is sent again; 6, 1 to 6 (7 never ends in soft-RoCE) */

	/* tcp; the strings (NULL: "") stay the caller's, and must live until tp_connect() has returned and the listener is closed */
	enum tp_tls tls;
	const char *tls_dir;	  /* of certificates or keys, named as QEMU does */
	const char *tls_psk_user; /* psk: connect: who we are; accept: the only one who is taken, "" for each that has a key */
	const char *tls_peer;	  /* x509: names, of which the peer's certificate must have one; "": connect: the host of the URI; accept: any */
};

/* URI: "HOST:PORT", "tcp:HOST:PORT", "tcp:[v6%scope]:PORT", "rdma:HOST:PORT", "loopback:NAME" (in-process), and "fault(SPEC)/URI", where SPEC
 * is key=value pairs, comma separated (transport/fault_spec.c lists them): a wrapper that misbehaves by a seed. */

/* tp_connect - all lanes, or nothing.  Tries every address of the name until @deadline.  @cancel_fd: becomes readable
 * when the attempt is to be given up (-ECANCELED), or -1. */
int tp_connect(struct tp_conn **out, const char *uri, const struct tp_params *p, uint64_t deadline, int cancel_fd,
	       struct ft_error *err);
int tp_listen(struct tp_listener **out, const char *uri, const struct tp_params *p, struct ft_error *err);
/* tp_check - can it be had at all: with TLS, the folder is read.  Better said before the guest runs than by attempts that all fail. */
int tp_check(const char *uri, const struct tp_params *p, bool listener, struct ft_error *err);
/* tp_accept - a connection with all its lanes.  Half-open ones do not hold up others and are dropped after a while.
 * -ETIMEDOUT, -ECANCELED: the listener stays usable. */
int tp_accept(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int cancel_fd, struct ft_error *err);
/* tp_listener_address - "HOST:PORT" as others can connect to it (port as taken), without "tcp:". */
const char *tp_listener_address(const struct tp_listener *l);
void tp_listener_close(struct tp_listener *l); /* NULL is harmless; no thread may be in tp_accept */

const char *tp_name(const struct tp_conn *c); /* "tcp", "tls", "loopback", "fault/tcp" */
const char *tp_peer(const struct tp_conn *c); /* printable address of the other side */
uint32_t tp_lanes(const struct tp_conn *c);   /* lane 0 included */

/* tp_window_open - let the peer write into [@base, @base + @len) under number @id (< TP_WINDOWS_MAX).
 * -EBUSY: open already.  The memory must stay until tp_window_close() or tp_close(). */
int tp_window_open(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err);
/* tp_window_close - when it returns, nothing is written there any more; a write that arrives later is a breach.
 * rdma: the peer's device writes by itself, and taking its key away would cost more than an epoch.  The memory stays registered, and must
 * stay, until another window is opened under this number or tp_close() has returned; a peer that keeps to its protocol does not write. */
void tp_window_close(struct tp_conn *c, uint32_t id);

/* What writes will come from and go to.  Needed for nothing, but rdma is slow without: it then registers memory for each write.
 * tp_memory - [@base, @base + @len) is read by writes until tp_close(); it is registered (pinned) now, once.
 * tp_mirror - [@base, @base + @len) is what the peer's window @window is a copy of, at the same offsets: it is registered chunk by chunk
 * together with the window's chunks, and given back with them.
 * tp_prepare - [@offset, +@len) of window @window will be written soon: keys are asked for ahead, many in one message.  Never waits. */
int tp_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err);
int tp_mirror(struct tp_conn *c, uint32_t window, void *base, uint64_t len, struct ft_error *err);
void tp_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len);

/* tp_write - @iov (at most TP_IOV_MAX parts, at most TP_WRITE_MAX octets in all) goes to @offset of the peer's window @window.
 * *@ticket, if asked for, is this write's number on its lane (from 1, rising).  May wait for room.
 * -ETIMEDOUT: nothing was taken, the connection is fine. */
int tp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov,
	     uint64_t *ticket, uint64_t deadline, struct ft_error *err);
/* tp_completed - the ticket up to which the writes of the lane are completed.  Never waits.  Small writes are gathered: they leave with the
 * next message, when there are enough, in tp_wait_completed(), and at the second tp_completed() without a write in between. */
uint64_t tp_completed(struct tp_conn *c, uint32_t lane);
/* tp_wait_completed - -ETIMEDOUT: not yet, the connection is fine. */
int tp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err);

/* tp_send - one message, gathered.  May wait for a credit or for room.  -ETIMEDOUT: nothing was sent, the connection is fine; if time
 * runs out in the middle of the message the connection is broken, -EPIPE.  Credits come in through tp_recv(); while no thread is in
 * there, a tp_send() that waits for one reads its lane itself, up to the next message or write. */
int tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline, struct ft_error *err);
/* tp_settle - until the peer's application is done with all messages sent on the lane: it has come back to tp_recv() after the last.  Then
 * what they told of may be written again.  Between two tp_recv() of the peer tcp and loopback change nothing and return at once; rdma
 * writes whenever it can.  -ETIMEDOUT: not yet, the connection is fine. */
int tp_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err);
/* tp_credits - messages that may be sent on the lane now without waiting for the peer. */
uint32_t tp_credits(struct tp_conn *c, uint32_t lane);

/* tp_recv - the next message into @buf (@cap >= TP_MESSAGE_MAX); *@lane, *@len say which and how long.
 * Writes that arrive meanwhile are put in place here, and but for rdma only here: between two calls windows do not change.  -ETIMEDOUT: nothing yet, the connection is fine; a message that has come in part is kept.
 * -ENODATA: the peer closed in an orderly way. */
int tp_recv(struct tp_conn *c, void *buf, size_t cap, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err);

/* tp_poll_fd - readable when tp_recv may have something to do (level triggered, may be spurious). */
int tp_poll_fd(struct tp_conn *c);

/* tp_cancel - all waits end now, all later calls fail (-ECANCELED). */
void tp_cancel(struct tp_conn *c);
/* tp_close - cancel, wait until no thread is inside, free.  What was sent before is still delivered where the transport can (tcp: a
 * graceful shutdown, without waiting).  NULL is harmless. */
void tp_close(struct tp_conn *c);

struct tp_stats {
	uint64_t bytes_sent, bytes_received; /* everything, frames included */
	uint64_t writes, messages_sent, messages_received;
};
void tp_stats(struct tp_conn *c, struct tp_stats *out);

/* What an operator wants to know of a connection over rdma; all empty for others. */
struct tp_info {
	char device[64], gid[48], registration[16]; /* registration: "chunks", "whole", "odp" */
	uint32_t port, mtu;			    /* of the device; octets of a packet's payload */
	uint32_t lanes, credits;		    /* as agreed; lanes: lane 0 included */
	uint64_t chunk_bytes;
	uint64_t pinned_bytes, pin_budget;	    /* this side's: now; 0: no limit */
	uint64_t peer_pinned_bytes, peer_pin_budget; /* of the peer's windows, as far as we had them registered */
	uint64_t registrations, deregistrations;    /* of memory on this side */
	uint64_t unpins;			    /* chunks that were given back for the budget */
};
void tp_info(struct tp_conn *c, struct tp_info *out);

#endif
