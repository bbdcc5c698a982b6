/* SPDX-License-Identifier: MIT */
/* client.c - who gets the guest's output: puts the messages together again, checks numbers, keeps a log.
 * Called with the output queue's lock held, so it only copies.  One mutex guards all of it; it nests in nothing else's. */
#include "sim.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "sim_private.h"

#define LOG_MAX 65536u /* deliveries; the oldest go first */

struct sim_client {
	pthread_mutex_t lock;
	struct sim_client_stats stats;
	uint8_t part[sizeof(struct sim_message)];
	size_t part_bytes;
	struct sim_delivery *log; /* ring */
	uint64_t logged;
};

int sim_client_create(struct sim_client **out)
{
	struct sim_client *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (!c)
		return -ENOMEM;
	c->log = calloc(LOG_MAX, sizeof(*c->log));
	if (!c->log) {
		free(c);
		return -ENOMEM;
	}
	c->stats.delay_min_ns = UINT64_MAX;
	pthread_mutex_init(&c->lock, NULL);
	*out = c;
	return 0;
}

void sim_client_destroy(struct sim_client *c)
{
	if (!c)
		return;
	pthread_mutex_destroy(&c->lock);
	free(c->log);
	free(c);
}

static void deliver(struct sim_client *c, const struct sim_message *m)
{
	struct sim_client_stats *st = &c->stats;
	uint64_t now = clock_ns(), delay = now > m->sent_ns ? now - m->sent_ns : 0;

	if (m->magic != SIM_MESSAGE_MAGIC || m->cpu >= SIM_CPUS_MAX) {
		st->damaged++;
		return;
	}
	if (m->number != st->last[m->cpu] + 1)
		st->gaps++;
	st->last[m->cpu] = m->number;
	st->last_hash[m->cpu] = m->hash;
	st->delivered++;
	st->delay_sum_ns += delay;
	if (delay < st->delay_min_ns)
		st->delay_min_ns = delay;
	if (delay > st->delay_max_ns)
		st->delay_max_ns = delay;
	c->log[c->logged++ % LOG_MAX] = (struct sim_delivery){ .message = *m, .time_ns = now };
}

void sim_client_feed(struct sim_client *c, const void *buf, size_t len)
{
	const uint8_t *at = buf;

	pthread_mutex_lock(&c->lock);
	while (len) {
		size_t n = sizeof(c->part) - c->part_bytes;
		struct sim_message m;

		if (n > len)
			n = len;
		memcpy(c->part + c->part_bytes, at, n);
		c->part_bytes += n;
		at += n;
		len -= n;
		if (c->part_bytes < sizeof(c->part))
			break;
		memcpy(&m, c->part, sizeof(m));
		c->part_bytes = 0;
		deliver(c, &m);
	}
	pthread_mutex_unlock(&c->lock);
}

void sim_client_stats(struct sim_client *c, struct sim_client_stats *out)
{
	pthread_mutex_lock(&c->lock);
	*out = c->stats;
	pthread_mutex_unlock(&c->lock);
	if (!out->delivered)
		out->delay_min_ns = 0;
}

size_t sim_client_log(struct sim_client *c, struct sim_delivery *out, size_t max)
{
	uint64_t n, first;

	pthread_mutex_lock(&c->lock);
	n = c->logged < LOG_MAX ? c->logged : LOG_MAX;
	if (n > max)
		n = max;
	first = c->logged - n;
	for (uint64_t i = 0; i < n; i++)
		out[i] = c->log[(first + i) % LOG_MAX];
	pthread_mutex_unlock(&c->lock);
	return n;
}
