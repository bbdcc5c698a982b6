/* SPDX-License-Identifier: MIT */
/* output.c - what a guest sends on one device, held by epoch (ft_output_* of ft.h).
 * A ring of octets and a short list of cuts: octets before a cut belong to its epoch.  Everything up to `free_to` may leave;
 * the sink takes it as it can.  Any thread; one lock; nothing allocates after open.
 *
 *   head                     free_to                               tail
 *    |--- may leave, not yet taken ---|--- epoch n ---|--- n+1 ---|-- running epoch --|
 *                                                  cut n        cut n+1
 * A packet is its length and then its octets; only whole ones are offered.
 * Must hold: head <= free_to <= every cut <= tail; with holding off, free_to == tail. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <ft/ft.h>
#include "faultpoint.h"

#define CUTS_MAX 64u /* epochs cut and not released; the engine has two on their way at most */

/* Before each packet in the ring. */
struct packet_head {
	uint32_t len;
};

struct cut {
	uint64_t epoch, at; /* octets before position @at belong to epochs <= @epoch */
};

struct ft_output {
	pthread_mutex_t lock;
	size_t (*emit)(void *user, const void *buf, size_t len);
	void *user;
	uint8_t *ring;
	uint64_t cap;
	uint64_t head, free_to, tail; /* positions since open; ring index is modulo cap */
	struct cut cut[CUTS_MAX];
	unsigned nr_cuts;
	bool holding;
	uint8_t *packet; /* NULL: octets; else room for one packet that lies around the end of the ring */
};

static int open_output(struct ft_output **out, uint64_t cap_bytes, size_t packet_max,
		       size_t (*emit)(void *user, const void *buf, size_t len), void *user)
{
	struct ft_output *o;

	*out = NULL;
	if (!cap_bytes || !emit)
		return -EINVAL;
	o = FT_FAULT("output/open") ? NULL : calloc(1, sizeof(*o));
	if (!o)
		return -ENOMEM;
	o->ring = FT_FAULT("output/ring") ? NULL : malloc(cap_bytes);
	o->packet = packet_max ? malloc(packet_max) : NULL;
	if (!o->ring || (packet_max && !o->packet)) {
		free(o->ring);
		free(o->packet);
		free(o);
		return -ENOMEM;
	}
	pthread_mutex_init(&o->lock, NULL);
	o->emit = emit;
	o->user = user;
	o->cap = cap_bytes;
	*out = o;
	return 0;
}

int ft_output_open(struct ft_output **out, uint64_t cap_bytes, size_t (*emit)(void *user, const void *buf, size_t len),
		   void *user)
{
	return open_output(out, cap_bytes, 0, emit, user);
}

int ft_output_open_packets(struct ft_output **out, uint64_t cap_bytes,
			   size_t (*emit)(void *user, const void *buf, size_t len), void *user)
{
	return open_output(out, cap_bytes, FT_OUTPUT_PACKET_MAX, emit, user);
}

void ft_output_close(struct ft_output *o)
{
	if (!o)
		return;
	pthread_mutex_destroy(&o->lock);
	free(o->ring);
	free(o->packet);
	free(o);
}

static void get_locked(const struct ft_output *o, uint64_t from, void *to, size_t len)
{
	uint64_t at = from % o->cap, n = len;

	if (n > o->cap - at)
		n = o->cap - at;
	memcpy(to, o->ring + at, n);
	memcpy((uint8_t *)to + n, o->ring, len - n);
}

static void drain_packets_locked(struct ft_output *o)
{
	while (o->head < o->free_to) {
		const uint8_t *packet;
		struct packet_head h;
		uint64_t from = o->head + sizeof(h), at = from % o->cap;

		get_locked(o, o->head, &h, sizeof(h));
		packet = o->ring + at;
		if (h.len > o->cap - at) {
			get_locked(o, from, o->packet, h.len);
			packet = o->packet;
		}
		if (o->emit(o->user, packet, h.len) < h.len)
			break;
		o->head = from + h.len;
	}
}

/* Offer what may leave, in at most two pieces where the ring turns over. */
static void drain_octets_locked(struct ft_output *o)
{
	while (o->head < o->free_to) {
		uint64_t at = o->head % o->cap, len = o->free_to - o->head;
		size_t took;

		if (len > o->cap - at)
			len = o->cap - at;
		took = o->emit(o->user, o->ring + at, len);
		o->head += took < len ? took : len;
		if (took < len)
			break;
	}
}

static void drain_locked(struct ft_output *o)
{
	if (o->packet)
		drain_packets_locked(o);
	else
		drain_octets_locked(o);
}

static void put_locked(struct ft_output *o, const uint8_t *buf, size_t len)
{
	while (len) {
		uint64_t at = o->tail % o->cap, n = len;

		if (n > o->cap - at)
			n = o->cap - at;
		memcpy(o->ring + at, buf, n);
		o->tail += n;
		buf += n;
		len -= n;
	}
}

int ft_output_write(struct ft_output *o, const void *buf, size_t len)
{
	struct packet_head h = { .len = (uint32_t)len };
	size_t more = o->packet ? sizeof(h) : 0;
	int r = 0;

	if (o->packet && (len == 0 || len > FT_OUTPUT_PACKET_MAX))
		return -EMSGSIZE;
	pthread_mutex_lock(&o->lock);
	if (len + more > o->cap - (o->tail - o->head)) {
		r = -ENOSPC;
	} else {
		put_locked(o, (const uint8_t *)&h, more);
		put_locked(o, buf, len);
		if (!o->holding)
			o->free_to = o->tail;
		drain_locked(o);
	}
	pthread_mutex_unlock(&o->lock);
	return r;
}

uint64_t ft_output_room(struct ft_output *o)
{
	uint64_t room;

	pthread_mutex_lock(&o->lock);
	room = o->cap - (o->tail - o->head);
	pthread_mutex_unlock(&o->lock);
	return room;
}

void ft_output_cut(struct ft_output *o, uint64_t epoch)
{
	pthread_mutex_lock(&o->lock);
	o->holding = true;
	/* with the list full the two newest epochs become one: it leaves with the later of them, never too early */
	if (o->nr_cuts == CUTS_MAX)
		o->nr_cuts--;
	o->cut[o->nr_cuts++] = (struct cut){ .epoch = epoch, .at = o->tail };
	pthread_mutex_unlock(&o->lock);
}

static void release_locked(struct ft_output *o, uint64_t epoch)
{
	unsigned n = 0;

	while (n < o->nr_cuts && o->cut[n].epoch <= epoch)
		o->free_to = o->cut[n++].at;
	o->nr_cuts -= n;
	memmove(o->cut, o->cut + n, o->nr_cuts * sizeof(o->cut[0]));
}

void ft_output_release(struct ft_output *o, uint64_t epoch)
{
	pthread_mutex_lock(&o->lock);
	if (epoch == UINT64_MAX) {
		o->holding = false;
		o->nr_cuts = 0;
		o->free_to = o->tail;
	} else {
		release_locked(o, epoch);
	}
	drain_locked(o);
	pthread_mutex_unlock(&o->lock);
}

void ft_output_drop(struct ft_output *o)
{
	pthread_mutex_lock(&o->lock);
	o->holding = true;
	o->nr_cuts = 0;
	o->tail = o->free_to; /* what was let out before may still be taken */
	pthread_mutex_unlock(&o->lock);
}

void ft_output_kick(struct ft_output *o)
{
	pthread_mutex_lock(&o->lock);
	drain_locked(o);
	pthread_mutex_unlock(&o->lock);
}

uint64_t ft_output_held(struct ft_output *o)
{
	uint64_t held;

	pthread_mutex_lock(&o->lock);
	held = o->tail - o->free_to;
	pthread_mutex_unlock(&o->lock);
	return held;
}

uint64_t ft_output_pending(struct ft_output *o)
{
	uint64_t pending;

	pthread_mutex_lock(&o->lock);
	pending = o->free_to - o->head;
	pthread_mutex_unlock(&o->lock);
	return pending;
}
