/* SPDX-License-Identifier: MIT */
/* fault_private.h - a connection that misbehaves, as fault.c (its life and its calls), fault_spec.c (what it is to do), fault_pass.c (the
 * faults) and fault_pump.c (reorder) see it.  Nobody else includes it. */
#ifndef FT_FAULT_PRIVATE_H
#define FT_FAULT_PRIVATE_H

#include "clock.h"
#include "transport_ops.h"

struct fault_spec {
	uint64_t seed, delay_ms, slow, stall_after, stall_ms, cut, cutmsg, oneway, dup, corrupt, reorder;
	bool has_stall, has_cut, has_oneway;
};

struct item {
	struct item *next;
	bool message;
	uint32_t window;
	uint64_t offset;
	size_t len;
	unsigned nr_iov;
	struct iovec iov[TP_IOV_MAX];
	uint8_t octets[]; /* of a message that is queued */
};

struct lane {
	struct fault *owner;
	uint32_t index;
	bool busy;
	uint64_t inner_posted, dropped; /* writes that were passed on, and that disappeared */
	/* reorder */
	struct item *first, **last;
	unsigned nr_items, nr_messages;
	uint64_t posted, done, told; /* told: what tp_completed() has admitted */
	pthread_t pump;
	bool pumping;
};

struct fault {
	struct tp_conn conn;
	struct tp_conn *inner;
	struct fault_spec spec;
	int halt_fd; /* readable once receiving is over */

	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t cond;  /* anything has changed */
	uint64_t random, octets, messages, writes, free_ns, stall_until;
	uint8_t *corrupted; /* the write that was changed; the inner connection may still read it */
	bool stopping;
	bool held; /* a message that came in while all stood still */
	uint32_t held_lane;
	size_t held_len;
	uint8_t held_octets[TP_MESSAGE_MAX];
	struct lane lane[TP_LANES_MAX];
};

static inline struct fault *fault_of(struct tp_conn *c)
{
	return (struct fault *)c;
}

/* fault_stalled - nothing is to move now; lock held. */
static inline bool fault_stalled(const struct fault *f)
{
	return now_ns() < f->stall_until;
}

/* -- fault_spec.c -- */

/* fault_parse - "KEY=VALUE,...)/URI", behind "fault(". */
int fault_parse(struct fault_spec *s, const char *text, const char **uri, struct ft_error *err);

/* -- fault_pass.c: the lock is held -- */

uint64_t fault_draw(struct fault *f);
/* fault_sleep_until - with the fate and the deadline of the caller, who learns of them. */
int fault_sleep_until(struct fault *f, uint64_t when, uint64_t deadline, struct ft_error *err);
int fault_sleep_random(struct fault *f, uint64_t up_to_ms, uint64_t deadline, struct ft_error *err);

/* -- fault_pass.c: without the lock -- */

/* fault_inner_failed - what the caller is to hear after @r of the inner connection. */
int fault_inner_failed(struct fault *f, int r, struct ft_error *err);
/* fault_pass_write, fault_pass_message - to the inner connection, with all that is to befall them; the lane is ours. */
int fault_pass_write(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err);
int fault_pass_message(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err);

/* -- fault_pump.c -- */

int fault_start_pumps(struct fault *f);
/* fault_stop_pumps - after they have carried on what is queued, if that takes no longer than 1 s;
 * then the inner connection is cancelled. */
void fault_stop_pumps(struct fault *f);
/* fault_queue - a copy of @from waits for the lane's pump. */
int fault_queue(struct fault *f, struct lane *l, const struct item *from, uint64_t *ticket, uint64_t deadline,
		struct ft_error *err);
/* fault_await_pump - with the lock held: until the pump has done @ticket. */
int fault_await_pump(struct fault *f, struct lane *l, uint64_t ticket, uint64_t deadline, struct ft_error *err);
/* fault_await_idle - with the lock held: until the pump has carried on all that is queued on the lane. */
int fault_await_idle(struct fault *f, struct lane *l, uint64_t deadline, struct ft_error *err);
/* fault_queue_fini - frees what the pump has left. */
void fault_queue_fini(struct lane *l);

#endif
