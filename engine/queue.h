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
	cds_wfcq_enqueue(&q->head, &q->tail, node);
	sem_post(&q->items);
}

/* queue_kick - whoever waits gets an item, or NULL. */
static inline void queue_kick(struct stage_queue *q)
{
	sem_post(&q->items);
}

/* queue_get - NULL when there was none before @deadline, or after a kick. */
static inline struct cds_wfcq_node *queue_get(struct stage_queue *q, uint64_t deadline)
{
	struct timespec t = timespec_of_ns(deadline);

	while (sem_clockwait(&q->items, CLOCK_MONOTONIC, &t) != 0)
		if (errno != EINTR)
			return NULL;
	return __cds_wfcq_dequeue_blocking(&q->head, &q->tail);
}

static inline int queue_length(struct stage_queue *q)
{
	int n = 0;

	sem_getvalue(&q->items, &n);
	return n;
}

#endif
