/* SPDX-License-Identifier: MIT */
/* side.c - the sim's side stream, in the place of a disk's writes.
 * So many octets as the guest is taken to write in an epoch follow from a lot; which octet stands where follows from the stream's key (its
 * first 8 octets) and the place.  So the standby checks every octet as it comes; the device state says how many were written up to its cut,
 * and load_state finds whether just those were committed. */
#include <errno.h>
#include <string.h>
#include "guest.h"
#include "say.h"
#include "sim.h"
#include "sim_private.h"

static uint64_t word_at(uint64_t key, uint64_t place)
{
	return place < 8 ? key : mix64(key ^ place / 8);
}

static void fill(uint8_t *to, uint64_t key, uint64_t from, size_t len)
{
	uint64_t word = word_at(key, from);

	for (size_t i = 0; i < len; i++, from++) {
		if (from % 8 == 0)
			word = word_at(key, from);
		to[i] = (uint8_t)(word >> from % 8 * 8);
	}
}

/* ---- primary ---- */

/* Nothing, one octet, some, and now and then all that there may be. */
static uint64_t draw(struct sim *s)
{
	uint64_t lot = mix64(s->side.key + ++s->side.draws);

	switch (lot % 16) {
	case 0:
		return s->cfg.side_max_bytes - lot / 16 % (s->cfg.side_max_bytes / 4 + 1);
	case 1:
	case 2:
	case 3:
		return lot / 16 % (s->cfg.side_max_bytes / 16 + 1);
	case 4:
	case 5:
	case 6:
	case 7:
		return lot / 16 % 10000;
	case 8:
	case 9:
	case 10:
		return 1;
	default:
		return 0;
	}
}

void side_start(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	s->side.key = mix64(s->side.key ^ s->cfg.seed) | 1;
	s->side.made = s->cfg.side_max_bytes;
	s->side.read = 0;
	s->side.cut = false;
	pthread_mutex_unlock(&s->lock);
}

void side_grow(struct sim *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->cfg.side_max_bytes)
		s->side.made += draw(s);
	pthread_mutex_unlock(&s->lock);
}

/* What had been written when @epoch was cut; 0: of this full sync it was not, or the full sync is over. */
static uint64_t made_until(struct sim *s, uint64_t epoch)
{
	uint64_t serial = s->serial;
	const struct cut *c;

	if (epoch == 0)
		return s->side.cut ? 0 : s->side.made;
	while (serial && s->serial - serial < SIM_CUTS && s->cut[serial % SIM_CUTS].epoch != epoch)
		serial--;
	c = &s->cut[serial % SIM_CUTS];
	return serial && c->epoch == epoch && c->side_key == s->side.key ? c->side_made : 0;
}

int64_t side_read(void *user, uint64_t epoch, void *buf, size_t cap, struct ft_error *err)
{
	struct sim *s = user;
	int r = sim_op_enter(s, SIM_OP_SIDE_READ, err);
	uint64_t key, from, n;

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	key = s->side.key;
	from = s->side.read;
	n = made_until(s, epoch);
	if (n < from) {
		pthread_mutex_unlock(&s->lock);
		return say(err, -EPROTO, "sim: side_read of epoch %llu at a wrong time", (unsigned long long)epoch);
	}
	n -= from;
	n = n < cap ? n : cap - s->side.draws % 7 * 100; /* pieces of odd lengths */
	s->side.read += n;
	if (epoch == 0)
		s->side.made += n * s->cfg.side_chase / 100;
	pthread_mutex_unlock(&s->lock);
	fill(buf, key, from, n);
	return (int64_t)n;
}

uint64_t side_left(void *user)
{
	struct sim *s = user;
	uint64_t left;

	pthread_mutex_lock(&s->lock);
	s->side.backlog = left = s->side.made - s->side.read;
	pthread_mutex_unlock(&s->lock);
	return left;
}

uint64_t sim_side_backlog(struct sim *s)
{
	uint64_t left;

	pthread_mutex_lock(&s->lock);
	left = s->side.backlog;
	pthread_mutex_unlock(&s->lock);
	return left;
}

/* ---- secondary ---- */

static int enter(struct sim *s, enum sim_op op, struct ft_error *err)
{
	if (atomic_exchange(&s->side.busy, true))
		return say(err, -EBUSY, "sim: %s beside another call", sim_op_name(op));
	return sim_op_enter(s, op, err);
}

static int leave(struct sim *s, int r)
{
	atomic_store(&s->side.busy, false);
	return r;
}

int side_begin(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int r = enter(s, SIM_OP_SIDE_BEGIN, err);

	s->side.in_key = s->side.in_bytes = 0;
	s->side.in_epochs = false;
	return leave(s, r);
}

/* Each octet is what it must be, the first 8 being the key. */
static int check(struct sim *s, const uint8_t *at, size_t len, struct ft_error *err)
{
	uint64_t word = word_at(s->side.in_key, s->side.in_bytes);

	for (size_t i = 0; i < len; i++) {
		uint64_t place = s->side.in_bytes++;

		if (place < 8) {
			s->side.in_key |= (uint64_t)at[i] << place * 8;
			continue;
		}
		if (place % 8 == 0)
			word = word_at(s->side.in_key, place);
		if (at[i] != (uint8_t)(word >> place % 8 * 8))
			return say(err, -EBADMSG, "sim: octet %llu of the side stream is wrong",
				   (unsigned long long)place);
	}
	return 0;
}

int side_write(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err)
{
	struct sim *s = user;
	int r = enter(s, SIM_OP_SIDE_WRITE, err);

	if (!r && epoch != (s->side.in_epochs ? s->side.epoch : 0) + 1)
		r = say(err, -EPROTO, "sim: side_write of epoch %llu after %llu", (unsigned long long)epoch,
			(unsigned long long)s->side.epoch);
	return leave(s, r ? r : check(s, buf, len, err));
}

int side_commit(void *user, uint64_t epoch, struct ft_error *err)
{
	struct sim *s = user;
	int r = enter(s, SIM_OP_SIDE_COMMIT, err);

	pthread_mutex_lock(&s->lock);
	if (!r && epoch != (s->side.in_epochs ? s->side.epoch : 0) + 1)
		r = say(err, -EPROTO, "sim: side_commit of epoch %llu after %llu", (unsigned long long)epoch,
			(unsigned long long)s->side.epoch);
	if (!r) {
		s->side.epoch = epoch;
		s->side.in_epochs = true;
		s->side.kept_key = s->side.in_key;
		s->side.kept_bytes = s->side.in_bytes;
	}
	pthread_mutex_unlock(&s->lock);
	return leave(s, r);
}

int side_check(struct sim *s, uint64_t key, uint64_t bytes, struct ft_error *err)
{
	uint64_t kept_key, kept_bytes;

	if (!s->cfg.side_max_bytes)
		return 0;
	if (atomic_load(&s->side.busy))
		return say(err, -EBUSY, "sim: the side stream is being written");
	pthread_mutex_lock(&s->lock);
	kept_key = s->side.kept_key;
	kept_bytes = s->side.kept_bytes;
	pthread_mutex_unlock(&s->lock);
	if (kept_bytes != bytes)
		return say(err, -EBADMSG,
			   "sim: %llu octets of the side stream are committed, at the cut there were %llu",
			   (unsigned long long)kept_bytes, (unsigned long long)bytes);
	if (bytes >= 8 && kept_key != key)
		return say(err, -EBADMSG, "sim: the side stream that is committed is of another connection");
	return 0;
}
