/* SPDX-License-Identifier: MIT */
/* link.h - records over a transport connection: numbers them per lane, keeps them in order, records them.
 * link_begin/link_end: any thread, one lane at a time.  link_receive: the receive thread only. */
#ifndef FT_LINK_H
#define FT_LINK_H

#include <pthread.h>
#include <stdatomic.h>
#include <ft/ft.h>
#include "codec.h"
#include "recording.h"
#include "stats.h"
#include "transport.h"

struct link_lane {
	pthread_mutex_t lock;	       /* one record is made and sent at a time; rank: leaf but for the transport */
	uint32_t sent;		       /* guarded by lock: seq of the last record */
	bool failed;		       /* guarded by lock: the last could not be sent, and has its number still */
	bool over;		       /* guarded by lock: refuse, bye or error was sent, and is the last */
	uint8_t buf[FTW_RECORD_MAX];   /* guarded by lock */
	uint32_t received;	       /* receive thread only */
};

struct link {
	struct tp_conn *conn;
	struct recording *recording; /* may be NULL; the session's */
	uint32_t connection;	     /* its number there */
	uint32_t lanes;		     /* lane 0 included */
	uint32_t reserve;	     /* credits of lane 0 that heartbeats and progress leave to the records that must go */
	struct link_lane *lane;
	uint8_t *in;		     /* receive thread: the message that link_receive() gave last */
	_Atomic uint64_t cut_off_ns; /* when sending failed because the peer had closed; 0: it did not */
	_Atomic uint64_t duplicates; /* records that came twice and were dropped */
	uint64_t counted_out, counted_in, counted_twice; /* by link_count() */
};

/* link_params - what the settings say of a connection; @lanes: lane 0 included. */
struct tp_params link_params(const struct ft_config *cfg, uint32_t lanes);

/* link_create - takes over @conn (closed by link_destroy, also when this fails). */
int link_create(struct link **out, struct tp_conn *conn, struct recording *recording, struct ft_error *err);
void link_destroy(struct link *l); /* no thread may be inside; NULL is harmless */

/* link_count - add octets and repetitions since the last call to the session's figures.  The receive thread, then who destroys. */
void link_count(struct link *l, struct stats *stats);

/* link_status - what an operator wants to know of the connection. */
void link_status(struct link *l, struct ft_status *out);

/* link_begin - lock the lane; returns its buffer, *@seq is the number that the record must carry.  Then create_X(), then link_end(). */
void *link_begin(struct link *l, uint32_t lane, uint32_t *seq);
int link_end(struct link *l, uint32_t lane, size_t len, uint64_t deadline, struct ft_error *err);
void link_drop(struct link *l, uint32_t lane); /* instead of link_end(): there is nothing to send after all */
uint32_t link_sent(struct link *l, uint32_t lane);

int link_write(struct link *l, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov,
	       uint64_t *ticket, uint64_t deadline, struct ft_error *err);

/* link_receive - the next record that is not a repetition.  @body is inside of *@msg, both valid until the next call.
 * Checked: head, padding, sequence (a gap is -EPROTO).  -ETIMEDOUT: none before @deadline. */
int link_receive(struct link *l, uint32_t *lane, struct record_head *head, struct cursor *body, const void **msg, size_t *len,
		 uint64_t deadline, struct ft_error *err);

/* link_receive_greeting - the same, and -ECANCELED soon after @stop_fd became readable: nobody cuts a connection that is not in use yet. */
int link_receive_greeting(struct link *l, int stop_fd, uint32_t *lane, struct record_head *head, struct cursor *body, uint64_t deadline,
			  struct ft_error *err);

/* Records that may be left out: a heartbeat, a word of work, of room or of progress.  They go only if nobody else is sending on lane 0 and half of the peer's
 * credits are there, so they never wait for the peer: who receives must not wait in sending, or the credit that it waits for stands
 * unread behind a message.  -EAGAIN: it was left out.  Who receives learns by its heartbeats that no reason came (link_hear_first()). */
int link_send_heartbeat(struct link *l, uint64_t echo_ns, uint64_t deadline, struct ft_error *err);
int link_send_working(struct link *l, uint64_t epoch, uint64_t deadline, struct ft_error *err);
/* Cumulative: a later one says all.  The first of a connection goes by link_send_first_room(), with all credits there. */
int link_send_room(struct link *l, const struct room *room, uint64_t deadline, struct ft_error *err);
int link_send_first_room(struct link *l, const struct room *room, uint64_t deadline, struct ft_error *err);
int link_send_progress(struct link *l, uint64_t epoch, const struct sync_progress *p, uint64_t deadline, struct ft_error *err);

/* Records of lane 0 that must go.  Behind link_send_reason() nothing goes on lane 0 any more (-ESHUTDOWN). */
int link_send_mark(struct link *l, uint32_t type, uint64_t epoch, uint64_t deadline, struct ft_error *err);
int link_send_reason(struct link *l, uint32_t type, uint32_t code, const char *text, uint64_t deadline);

/* How long is listened for the reason of a peer that takes nothing any more.  What it said last is here by then, or is lost. */
#define LINK_HEAR_MS 1000

/* link_hear_first - sending gave @r.  True: because the peer has closed; why is told by what is still to be received, perhaps a goodbye, and
 * who sends leaves it to who receives.  False: another failure, or LINK_HEAR_MS have passed since the first of them. */
bool link_hear_first(struct link *l, int r);

#endif
