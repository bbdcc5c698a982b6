/* SPDX-License-Identifier: MIT */
/* failover.c - the promotion of a secondary, on its caller's thread: is it allowed, by the state and by the witness; end the connection, finish the apply,
 * load, run.
 * Answers in every state (ft.h: enum ft_failover_outcome).  See secondary.h for what must hold. */
#include "secondary.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "lease.h"
#include "log.h"
#include "thread.h"

/* What a failover would do in the present state. */
static enum ft_failover_outcome may_promote(struct secondary *c, unsigned flags, enum ft_state *state,
					    struct ft_error *err)
{
	struct ft_session *s = c->s;
	bool force = flags & FT_FAILOVER_FORCE, stale;
	char reason[FT_ERROR_MAX];

	pthread_mutex_lock(&s->lock);
	*state = s->state;
	stale = s->image_stale && c->complete;
	memcpy(reason, s->reason, sizeof(reason));
	pthread_mutex_unlock(&s->lock);
	switch (*state) {
	case FT_STATE_ACTIVE:
		return FT_FAILOVER_ALREADY;
	case FT_STATE_PROMOTING:
		err_set(err, -EBUSY, "a failover is under way");
		return FT_FAILOVER_BUSY;
	case FT_STATE_REFUSED:
		if (force)
			return FT_FAILOVER_DONE;
		err_set(err, -EIO, "a failover failed before: %.300s; --force tries again", reason);
		return FT_FAILOVER_FAILED;
	case FT_STATE_STANDBY:
		if (force)
			return FT_FAILOVER_DONE;
		err_set(err, -EBUSY,
			"the primary is connected and alive; --force takes over all the same, and then both may run");
		return FT_FAILOVER_PEER_ALIVE;
	case FT_STATE_STANDBY_SUSPECT:
		return FT_FAILOVER_DONE;
	case FT_STATE_IDLE:
	case FT_STATE_WAITING:
	case FT_STATE_STANDBY_SYNCING:
		if (stale && force)
			return FT_FAILOVER_DONE;
		if (stale)
			err_set(err, -ENODATA,
				"there is only an old image: the primary went on without it; --force takes it and "
				"loses what came since");
		else
			err_set(err, -ENODATA, "there is no complete image to go on from (state %s)",
				ft_state_name(*state));
		return FT_FAILOVER_NO_IMAGE;
	case FT_STATE_CONNECTING:
	case FT_STATE_SYNCING:
	case FT_STATE_PROTECTED:
	case FT_STATE_SUSPECT:
	case FT_STATE_ALONE:
	case FT_STATE_FENCED:
	case FT_STATE_COUNT:
		break;
	}
	err_set(err, -EINVAL, "this side is not a secondary (state %s)", ft_state_name(*state));
	return FT_FAILOVER_NOT_SECONDARY;
}

static uint64_t lap(uint64_t *mark)
{
	uint64_t now = now_ns(), took = now - *mark;

	*mark = now;
	return took;
}

/* ---- the witness ---- */

/* What the lease is taken for: the image is of the generation that its primary said hello with.  The operator's word is good for any. */
static uint64_t expected_generation(struct secondary *c, unsigned flags)
{
	uint64_t generation;

	pthread_mutex_lock(&c->s->lock);
	generation = c->generation ? c->generation : UINT64_MAX;
	pthread_mutex_unlock(&c->s->lock);
	return flags & FT_FAILOVER_FORCE ? 0 : generation;
}

/* *@generation: that the witness has from now on; 0: it could not be asked. */
static enum ft_failover_outcome ask_witness(struct secondary *c, unsigned flags, uint64_t *generation,
					    struct ft_error *err)
{
	struct ft_session *s = c->s;
	enum witness_answer answer = lease_take(s->lease, expected_generation(c, flags), generation, err);

	if (answer == WITNESS_YES)
		return FT_FAILOVER_DONE;
	*generation = 0;
	if (answer == WITNESS_NO || !(flags & FT_FAILOVER_FORCE))
		return FT_FAILOVER_NOT_GRANTED;
	log_warn("failover", "%s: forced without the witness: %s", s->name, err->msg);
	return FT_FAILOVER_DONE;
}

/* One at a time waits for the witness. */
static bool begin_asking(struct secondary *c)
{
	bool first;

	pthread_mutex_lock(&c->s->lock);
	first = !c->asking;
	c->asking = true;
	pthread_mutex_unlock(&c->s->lock);
	return first;
}

static void end_asking(struct secondary *c)
{
	pthread_mutex_lock(&c->s->lock);
	c->asking = false;
	pthread_mutex_unlock(&c->s->lock);
}

static void give_back(struct secondary *c)
{
	if (c->s->lease)
		lease_give_back(c->s->lease);
}

/* ---- the promotion ---- */

/* With the session's lock held: the latest generation that is known. */
static uint64_t known_generation(const struct secondary *c)
{
	return c->generation > c->s->generation ? c->generation : c->s->generation;
}

static int write_down(struct secondary *c, enum statefile_word word, uint64_t epoch, struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint8_t session[sizeof(c->session_id)];
	uint64_t generation;

	pthread_mutex_lock(&s->lock);
	generation = known_generation(c) + (word == SAYS_PROMOTING);
	memcpy(session, c->session_id, sizeof(session));
	pthread_mutex_unlock(&s->lock);
	return written_set(s, word, generation, session, epoch, err);
}

/* Nothing has been done yet that could not be left: without force it came from STANDBY_SUSPECT, and is there again. */
static int put_off(struct secondary *c, struct ft_failover_result *res, struct ft_error *err)
{
	res->outcome = FT_FAILOVER_FAILED;
	err_prefix(err, "not promoted, as that cannot be written down (--force does it all the same)");
	session_event(c->s, EV_PUT_OFF, err->msg);
	return err->code;
}

/* @generation: what the witness has given the promotion; 0: there is none. */
static int promote(struct secondary *c, bool force, uint64_t generation, struct ft_failover_result *res,
		   struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint64_t begun = now_ns(), mark = begun, len;
	const void *state;
	int r;

	secondary_end_connection(c, FTW_CODE_ACTIVE, "the secondary is taking over");
	res->stop_ns = lap(&mark);
	secondary_wait_applied(c);
	res->apply_ns = lap(&mark);
	pthread_mutex_lock(
		&c->standby_lock); /* ft-accept may be about to greet a primary that a forced failover ignores */
	state = standby_state(c->standby, &len);
	res->epoch = standby_epoch_image(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	if (write_down(c, SAYS_PROMOTING, res->epoch, err) && !force)
		return put_off(c, res, err);
	err_clear(err);
	r = s->ops.load_state(s->user, state, len, err);
	res->load_ns = lap(&mark);
	if (r) {
		err_prefix(err, "loading the device state");
	} else {
		r = s->ops.activate(s->user, err);
		res->activate_ns = lap(&mark);
		if (r)
			err_prefix(err, "starting the guest");
	}
	res->total_ns = mark - begun;
	if (r) {
		res->outcome = FT_FAILOVER_FAILED;
		write_down(c, SAYS_REFUSED, res->epoch, NULL);
		session_event(s, EV_UNUSABLE, err->msg);
		give_back(c);
		return r;
	}
	pthread_mutex_lock(&s->lock);
	if (!generation)
		generation = known_generation(c) + 1;
	s->generation = generation;
	pthread_mutex_unlock(&s->lock);
	write_down(c, SAYS_RUNNING, res->epoch, NULL); /* if it fails: what was written before means the same */
	session_event(s, EV_PROMOTED, NULL);
	return 0;
}

/* From DONE on the state is PROMOTING: nobody else is let in. */
static enum ft_failover_outcome begin_promotion(struct secondary *c, unsigned flags, struct ft_error *err)
{
	enum ft_failover_outcome outcome;
	enum ft_state state;

	do
		outcome = may_promote(c, flags, &state, err);
	while (outcome == FT_FAILOVER_DONE && session_event_from(c->s, state, EV_FAILOVER, NULL) < 0);
	return outcome;
}

/* By the state, then by the witness, and by the state again: what that waits for takes a while.  The witness comes before the promotion, as a refusal
 * then leaves connection, image and state as they are. */
static enum ft_failover_outcome permit(struct secondary *c, unsigned flags, uint64_t *generation, struct ft_error *err)
{
	enum ft_failover_outcome outcome;
	enum ft_state state;

	outcome = may_promote(c, flags, &state, err);
	if (outcome == FT_FAILOVER_DONE)
		outcome = ask_witness(c, flags, generation, err);
	if (outcome != FT_FAILOVER_DONE)
		return outcome;
	outcome = begin_promotion(c, flags, err);
	if (outcome != FT_FAILOVER_DONE)
		give_back(c);
	return outcome;
}

int secondary_failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err)
{
	struct secondary *c = s->secondary;
	struct ft_error scratch = { 0 };
	uint64_t generation = 0;

	if (!err)
		err = &scratch;
	if (!s->lease) {
		res->outcome = begin_promotion(c, flags, err);
	} else if (begin_asking(c)) {
		res->outcome = permit(c, flags, &generation, err);
		end_asking(c);
	} else {
		err_set(err, -EBUSY, "another failover waits for the witness");
		res->outcome = FT_FAILOVER_BUSY;
	}
	if (res->outcome == FT_FAILOVER_ALREADY) {
		res->epoch = standby_epoch_image(c->standby);
		return 0;
	}
	if (res->outcome != FT_FAILOVER_DONE)
		return err->code;
	err_clear(err);
	return promote(c, flags & FT_FAILOVER_FORCE, generation, res, err);
}
