/* SPDX-License-Identifier: MIT */
/* queue.h - the queues between the stages of the primary: liburcu's wait-free concurrent queue and a semaphore that counts
 * its items.  Any number of threads put; one thread gets.  A put never waits, so the guest's pause does not depend on the
 * thread at the other end. */
#ifndef FT_QUEUE_H
#define FT_QUEUE_H

#include <errno.h>
#include <semaphore.h>
#include <stdint.h>
#include <time.h>
#include <urcu/wfcqueue.h>
#include "clock.h"

/* ThreadSanitizer sees neither liburcu's barriers nor sem_clockwait(): it is told that a get comes after its put. */
#ifdef FT_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define queue_order_put(q) __tsan_release(q)
#define queue_order_get(q) __tsan_acquire(q)
#else
#define queue_order_put(q) ((void)(q))
#define queue_order_get(q) ((void)(q))
#endif

struct stage_queue {
	struct cds_wfcq_head head;
	struct cds_wfcq_tail tail;
	sem_t items;
};

static inline void queue_init(struct stage_queue *q)
{
	cds_wfcq_init(&q->head, &q->tail);
	sem_init(&q->items, 0, 0);
}

static inline void queue_fini(struct stage_queue *q)
{
	cds_wfcq_destroy(&q->head, &q->tail);
	sem_destroy(&q->items);
}

static inline void queue_put(struct stage_queue *q, struct cds_wfcq_node *node)
{
	cds_wfcq_node_init(node);
	queue_order_put(q);
	cds_wfcq_enqueue(&q->head, &q->tail, node);
	sem_post(&q->items);
}

/* queue_get - NULL when there was none before @deadline, or at queue_wake(). */
static inline struct cds_wfcq_node *queue_get(struct stage_queue *q, uint64_t deadline)
{
	struct timespec t = timespec_of_ns(deadline);
	struct cds_wfcq_node *node;

	while (sem_clockwait(&q->items, CLOCK_MONOTONIC, &t) != 0)
		if (errno != EINTR)
			return NULL;
	node = __cds_wfcq_dequeue_blocking(&q->head, &q->tail);
	queue_order_get(q);
	return node;
}

/* queue_wake - queue_get() comes back with NULL once, though its deadline is not over. */
static inline void queue_wake(struct stage_queue *q)
{
	sem_post(&q->items);
}

/* queue_drain - the next item, NULL when it is empty; by the only thread that still uses the queue.  Wakes that are left over go too. */
static inline struct cds_wfcq_node *queue_drain(struct stage_queue *q)
{
	struct cds_wfcq_node *node = __cds_wfcq_dequeue_blocking(&q->head, &q->tail);

	if (node)
		sem_trywait(&q->items);
	else
		while (sem_trywait(&q->items) == 0)
			;
	return node;
}

static inline int queue_length(struct stage_queue *q)
{
	int n = 0;

	sem_getvalue(&q->items, &n);
	return n;
}

#endif
