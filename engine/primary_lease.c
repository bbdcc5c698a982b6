/* SPDX-License-Identifier: MIT */
/* primary_lease.c - a primary and its lease: it is taken before the start, what the guest sent leaves only while it is held, going on alone is written down
 * before, and without it the guest is stopped.  Without a witness everything may leave, and nothing is asked.
 *
 * Threads: ft-answer (release_acked), ft-lease (the two callbacks), ft-epoch (the rest).
 *
 * Must hold
 *   - lease_held() is looked at with release.lock held, right before the VMM is told to let something out;
 *   - all of the output that was to leave has left before the epochs of a connection are numbered from 1 again (release_settle()).
 *
 * In the states whose output is free (state.c) the VMM lets it out by itself.  No image that the secondary may be promoted from without force is of the
 * generation that the witness has then: it was raised when output went free, or the secondary said itself that its image is an old one. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "lease.h"
#include "log.h"

#define SETTLE_MS 10 /* how soon it is seen that a renewal has let it out */

/* ---- may we? ---- */

/* Without a word from the witness, but not against it. */
static bool goes_on(const struct primary *p, enum lease_state state)
{
	return p->witness_loss == FT_WITNESS_AVAILABLE && (state == LEASE_LATE || state == LEASE_OVER);
}

static bool allowed(const struct primary *p)
{
	const struct lease *l = p->s->lease;

	return !l || lease_held(l) || goes_on(p, lease_state(l));
}

bool primary_lease_ended(struct primary *p, struct ft_error *why)
{
	struct ft_session *s = p->s;
	enum lease_state state = s->lease ? lease_state(s->lease) : LEASE_HELD;

	if (state != LEASE_LOST && (state != LEASE_OVER || goes_on(p, state)))
		return false;
	lease_why(s->lease, why);
	return true;
}

/* ---- output ---- */

static void tell(struct primary *p, uint64_t epoch)
{
	if (p->s->ops.output_release)
		p->s->ops.output_release(p->s->user, epoch);
}

/* What is to leave leaves, if we may; else when the lease is renewed. */
static void let_out_locked(struct primary *p)
{
	struct release *r = &p->release;

	if (r->ended || (!r->all && r->out >= r->acked) || !allowed(p))
		return;
	tell(p, r->all ? UINT64_MAX : r->acked);
	r->all = false;
	r->out = r->acked;
}

bool release_acked(struct primary *p, uint64_t epoch)
{
	struct release *r = &p->release;
	bool out;

	if (!p->s->lease) {
		tell(p, epoch);
		return true;
	}
	pthread_mutex_lock(&r->lock);
	r->acked = epoch;
	let_out_locked(p);
	out = r->out >= epoch;
	pthread_mutex_unlock(&r->lock);
	return out;
}

void release_all(struct primary *p)
{
	struct release *r = &p->release;

	p->output_held = false;
	pthread_mutex_lock(&r->lock);
	r->all = true;
	let_out_locked(p);
	pthread_mutex_unlock(&r->lock);
}

void release_begin(struct primary *p)
{
	pthread_mutex_lock(&p->release.lock);
	p->release.acked = p->release.out = 0;
	pthread_mutex_unlock(&p->release.lock);
}

void release_end(struct primary *p)
{
	pthread_mutex_lock(&p->release.lock);
	p->release.ended = true;
	pthread_mutex_unlock(&p->release.lock);
}

int release_settle(struct primary *p)
{
	struct ft_session *s = p->s;
	int r = 0;

	for (;;) {
		bool all;

		pthread_mutex_lock(&p->release.lock);
		let_out_locked(p);
		all = p->release.all;
		pthread_mutex_unlock(&p->release.lock);
		if (!all)
			return 0;
		pthread_mutex_lock(&s->lock);
		r = primary_wait_locked(p, deadline_in_ms(SETTLE_MS));
		pthread_mutex_unlock(&s->lock);
		if (r && r != -ETIMEDOUT)
			return r;
	}
}

/* ---- ft-lease ---- */

/* The generation may be news: of a question to raise it whose answer was lost. */
static void granted(void *primary, uint64_t generation)
{
	struct primary *p = primary;

	session_set_generation(p->s, generation);
	pthread_mutex_lock(&p->release.lock);
	let_out_locked(p);
	pthread_mutex_unlock(&p->release.lock);
}

/* The connection ends, and ft-epoch finds out what it has to do (protect.c). */
static void ended(void *primary, const struct ft_error *why)
{
	struct primary *p = primary;
	struct ft_session *s = p->s;

	if (goes_on(p, lease_state(s->lease)))
		return;
	pthread_mutex_lock(&s->lock);
	if (p->link && !p->lost) {
		p->lost = true;
		p->loss_error = *why;
		tp_cancel(p->link->conn);
	}
	p->poked = true;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

/* ---- ft-epoch, and the start ---- */

int primary_acquire(struct ft_session *s, struct ft_error *err)
{
	struct primary *p = s->primary;
	const struct lease_options callbacks = { .granted = granted, .ended = ended, .user = p };
	struct ft_error scratch = { 0 };
	uint64_t generation;
	int r;

	err = err ? err : &scratch;
	if (s->lease)
		return primary_lease_ended(p, err) ? err->code : 0;
	p->witness_loss = s->cfg.witness_loss;
	r = session_lease_open(s, &callbacks, err);
	if (r || !s->lease)
		return r;
	if (lease_take(s->lease, 0, &generation, err) != WITNESS_YES)
		return err->code;
	session_set_generation(s, generation);
	return 0;
}

enum witness_answer primary_raise(struct primary *p, struct ft_error *err)
{
	struct ft_session *s = p->s;
	enum witness_answer answer;
	uint64_t generation;

	if (!s->lease)
		return WITNESS_YES;
	answer = lease_raise(s->lease, &generation, err);
	if (answer == WITNESS_YES)
		session_set_generation(s, generation);
	return answer;
}
