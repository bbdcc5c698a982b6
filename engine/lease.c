/* SPDX-License-Identifier: MIT */
/* lease.c - see lease.h.
 *
 * Threads: ft-lease renews what is ours every third of the lease's time, and looks who has what is not; callers take, raise and give back.  `asking` lets
 * one of them at a time ask the witness; each question ends within a third of the lease's time. */
#include "lease.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "log.h"
#include "thread.h"

struct lease {
	struct witness *witness;
	struct lease_options opt;
	pthread_t thread;
	bool thread_made;

	_Atomic uint64_t until_ns; /* by boot_now_ns(); 0: not held */
	atomic_bool ours, lost, over;

	pthread_mutex_t asking; /* outermost */

	pthread_mutex_t lock;
	pthread_cond_t cond; /* with lock: quit */
	/* guarded by lock */
	bool quit;
	struct witness_view view;
	char trouble[FT_ERROR_MAX];
	struct ft_error end; /* set before lost or over is */
};

static uint64_t third_ms(const struct lease *l)
{
	return l->opt.self.lease_ms / 3;
}

/* ---- looking ---- */

bool lease_held(const struct lease *l)
{
	return boot_now_ns() < atomic_load(&l->until_ns);
}

enum lease_state lease_state(const struct lease *l)
{
	if (atomic_load(&l->lost))
		return LEASE_LOST;
	if (!atomic_load(&l->ours))
		return LEASE_NONE;
	if (lease_held(l))
		return LEASE_HELD;
	return atomic_load(&l->over) ? LEASE_OVER : LEASE_LATE;
}

void lease_why(struct lease *l, struct ft_error *why)
{
	pthread_mutex_lock(&l->lock);
	*why = l->end;
	pthread_mutex_unlock(&l->lock);
}

const char *lease_state_name(enum lease_state state)
{
	static const char *const names[] = { "none", "held", "late", "over", "lost" };

	return state <= LEASE_LOST ? names[state] : "?";
}

void lease_status(struct lease *l, struct lease_status *out)
{
	uint64_t until = atomic_load(&l->until_ns), now = boot_now_ns();

	memset(out, 0, sizeof(*out));
	out->state = lease_state(l);
	out->left_ns = until > now ? until - now : 0;
	pthread_mutex_lock(&l->lock);
	out->view = l->view;
	memcpy(out->trouble, l->trouble, sizeof(out->trouble));
	pthread_mutex_unlock(&l->lock);
}

/* ---- asking ---- */

static void note(struct lease *l, enum witness_answer answer, const struct witness_view *view,
		 const struct ft_error *err)
{
	bool news;

	pthread_mutex_lock(&l->lock);
	if (answer != WITNESS_UNKNOWN)
		l->view = *view;
	news = answer == WITNESS_UNKNOWN && !*l->trouble;
	memset(l->trouble, 0, sizeof(l->trouble));
	if (answer == WITNESS_UNKNOWN)
		memcpy(l->trouble, err->msg, sizeof(l->trouble));
	pthread_mutex_unlock(&l->lock);
	if (news)
		log_warn("lease", "%s", err->msg);
}

/* What a granted question to take, renew or raise is worth counts from before it was asked. */
static enum witness_answer ask_locked(struct lease *l, enum witness_what what, uint64_t generation,
				      struct witness_view *view, struct ft_error *err)
{
	const struct witness_question q = { .what = what, .generation = generation };
	uint64_t asked = boot_now_ns();
	enum witness_answer answer;

	answer = witness_ask(l->witness, &q, deadline_in_ms(third_ms(l)), view, err);
	note(l, answer, view, err);
	if (answer != WITNESS_YES || what == WITNESS_LOOK || what == WITNESS_GIVE_BACK)
		return answer;
	atomic_store(&l->over, false);
	atomic_store(&l->lost, false);
	atomic_store(&l->ours, true);
	atomic_store(&l->until_ns, lease_until(&l->opt.self, asked));
	return answer;
}

static void note_end(struct lease *l, const struct ft_error *why)
{
	pthread_mutex_lock(&l->lock);
	l->end = *why;
	pthread_mutex_unlock(&l->lock);
}

/* @lost: why it is another's; NULL: we do not want it any more. */
static void drop_locked(struct lease *l, const struct ft_error *lost)
{
	atomic_store(&l->until_ns, 0);
	if (lost)
		note_end(l, lost);
	atomic_store(&l->lost, lost != NULL);
	atomic_store(&l->ours, false);
}

/* *@granted: the generation, or 0.  True: it goes on; else @err says why it does not. */
static bool renew_locked(struct lease *l, uint64_t *granted, struct ft_error *err)
{
	uint64_t lease_ns = l->opt.self.lease_ms * NS_PER_MS;
	struct witness_view view = { 0 };
	enum witness_answer answer = ask_locked(l, WITNESS_RENEW, 0, &view, err);

	*granted = answer == WITNESS_YES ? view.record.generation : 0;
	if (answer == WITNESS_NO) {
		drop_locked(l, err);
		return false;
	}
	if (*granted || atomic_load(&l->over) || boot_now_ns() < atomic_load(&l->until_ns) + lease_ns)
		return true;
	err_prefix(err, "the lease is over: it could not be renewed");
	note_end(l, err);
	atomic_store(&l->over, true);
	return false;
}

/* ---- ft-lease ---- */

static void turn(struct lease *l)
{
	struct witness_view view;
	struct ft_error err = { 0 };
	uint64_t granted = 0;
	bool goes_on = true;

	pthread_mutex_lock(&l->asking);
	if (atomic_load(&l->ours))
		goes_on = renew_locked(l, &granted, &err);
	else
		ask_locked(l, WITNESS_LOOK, 0, &view, &err);
	pthread_mutex_unlock(&l->asking);
	if (granted && l->opt.granted)
		l->opt.granted(l->opt.user, granted);
	if (goes_on)
		return;
	log_error("lease", "%s", err.msg);
	if (l->opt.ended)
		l->opt.ended(l->opt.user, &err);
}

static void *lease_main(void *arg)
{
	struct lease *l = arg;
	uint64_t due = now_ns();

	pthread_mutex_lock(&l->lock);
	while (!l->quit) {
		if (now_ns() < due) {
			cond_wait_until(&l->cond, &l->lock, due);
			continue;
		}
		due = deadline_in_ms(third_ms(l));
		pthread_mutex_unlock(&l->lock);
		turn(l);
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* ---- callers ---- */

static void rest(struct lease *l, uint64_t deadline)
{
	int r = 0;

	pthread_mutex_lock(&l->lock);
	while (!l->quit && r != -ETIMEDOUT)
		r = cond_wait_until(&l->cond, &l->lock, deadline);
	pthread_mutex_unlock(&l->lock);
}

/* How long until it is worth to ask again: the holder may be heard of meanwhile, and then there is nothing to wait for. */
static uint64_t patience_ns(const struct lease *l, const struct witness_view *view)
{
	uint64_t wait = witness_wait_ns(&l->opt.self, &view->record),
		 left = wait > view->silent_ns ? wait - view->silent_ns : 0;
	uint64_t look = third_ms(l) * NS_PER_MS / 2;

	return left < look ? left + NS_PER_MS : look;
}

enum witness_answer lease_take(struct lease *l, uint64_t generation, uint64_t *now, struct ft_error *err)
{
	struct witness_view view = { 0 };
	uint64_t counter = 0;
	bool first = true;

	for (;; first = false) {
		enum witness_answer answer;

		err_clear(err);
		pthread_mutex_lock(&l->asking);
		answer = ask_locked(l, WITNESS_TAKE, generation, &view, err);
		pthread_mutex_unlock(&l->asking);
		*now = answer == WITNESS_UNKNOWN ? 0 : view.record.generation;
		if (answer != WITNESS_NO || err->code != -EBUSY)
			return answer;
		if (!first && view.record.counter != counter)
			return answer; /* the holder lives */
		counter = view.record.counter;
		rest(l, now_ns() + patience_ns(l, &view));
	}
}

enum witness_answer lease_raise(struct lease *l, uint64_t *now, struct ft_error *err)
{
	struct witness_view view = { 0 };
	enum witness_answer answer;

	pthread_mutex_lock(&l->asking);
	answer = ask_locked(l, WITNESS_RAISE, 0, &view, err);
	if (answer == WITNESS_NO)
		drop_locked(l, err);
	pthread_mutex_unlock(&l->asking);
	*now = view.record.generation;
	return answer;
}

void lease_give_back(struct lease *l)
{
	struct witness_view view;
	struct ft_error err = { 0 };

	pthread_mutex_lock(&l->asking);
	if (atomic_load(&l->ours)) {
		drop_locked(l, NULL);
		ask_locked(l, WITNESS_GIVE_BACK, 0, &view, &err);
	}
	pthread_mutex_unlock(&l->asking);
}

/* ---- life ---- */

int lease_open(struct lease **out, const struct lease_options *opt, struct ft_error *err)
{
	struct lease *l = calloc(1, sizeof(*l));
	int r;

	*out = NULL;
	if (!l)
		return err_set(err, -ENOMEM, "no memory for a lease");
	pthread_mutex_init(&l->asking, NULL);
	pthread_mutex_init(&l->lock, NULL);
	cond_init(&l->cond);
	l->opt = *opt;
	r = witness_open(&l->witness, opt->witness, &opt->self, err);
	if (!r) {
		r = thread_start(&l->thread, "ft-lease", lease_main, l);
		l->thread_made = r == 0;
		if (r)
			err_sys(err, r, "cannot start a thread");
	}
	if (r) {
		lease_close(l);
		return r;
	}
	*out = l;
	return 0;
}

void lease_close(struct lease *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->quit = true;
	pthread_cond_broadcast(&l->cond);
	pthread_mutex_unlock(&l->lock);
	if (l->thread_made)
		pthread_join(l->thread, NULL);
	if (l->witness)
		lease_give_back(l);
	witness_close(l->witness);
	pthread_mutex_destroy(&l->asking);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->cond);
	free(l);
}
