/* SPDX-License-Identifier: MIT */
/* crew.c - see crew.h.
 * Parts are counted over the life of the crew, mod 2^32: taken <= ready, done <= taken.  Who moves `taken` on by one has the part; a compare and
 * exchange on a number that only grows cannot mistake a part of this run for one of the next.  A run does not end before its parts are done, so who
 * has one may read what the owner set for the run.
 * Awake the others spin, and let others run after a while: a pause is short, and to wake a thread costs as much as some twenty pages. */
#include "crew.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "err.h"
#include "faultpoint.h"
#include "thread.h"

#define LINE 64     /* octets that processors pass to each other at a time */
#define SPINS 1000u /* about 20 us */

typedef _Atomic uint32_t word;

struct crew {
	/* set by create, then constant */
	unsigned nr_threads; /* besides the owner */
	unsigned nr_started;
	pthread_t thread[CREW_MAX - 1];
	/* the owner's; read by who has a part */
	void (*part)(void *work, uint32_t part);
	void *work;
	uint32_t first; /* number of part 0 */

	_Alignas(LINE) word call;  /* odd: a run; where the others sleep */
	atomic_bool quit;          /* stored before `call` changes */
	_Alignas(LINE) word ready; /* release; pairs with the acquire in take(): what the part needs */
	_Alignas(LINE) word taken; /* relaxed: `ready` and `done` order what goes with the parts */
	_Alignas(
		LINE) word done; /* seq_cst; pairs with the owner's load: what the part wrote; where the owner sleeps */
	atomic_bool
		waiting; /* seq_cst, as `done`: of "done, then is anybody waiting?" and "waiting, then is it done?" one sees the other */
};

/* Comes back early too: the callers look again. */
static void futex_wait(word *w, uint32_t while_it_is)
{
	syscall(SYS_futex, w, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}

static void futex_wake(word *w, int most)
{
	syscall(SYS_futex, w, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

static void spin(unsigned *spins)
{
	if (++*spins > SPINS)
		sched_yield();
#ifdef __x86_64__
	else
		__builtin_ia32_pause();
#endif
}

/* False: there is no part to be had now.  `taken` is read first: so it cannot be ahead of `ready`. */
static bool take(struct crew *c, uint32_t *at)
{
	*at = atomic_load_explicit(&c->taken, memory_order_acquire);
	do {
		if (*at == atomic_load_explicit(&c->ready, memory_order_acquire))
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&c->taken, at, *at + 1, memory_order_acq_rel,
							memory_order_acquire));
	return true;
}

static bool do_part(struct crew *c)
{
	uint32_t at;

	if (!take(c, &at))
		return false;
	c->part(c->work, at - c->first);
	atomic_fetch_add(&c->done, 1);
	if (atomic_load(&c->waiting))
		futex_wake(&c->done, 1);
	return true;
}

/* The owner has woken one: each wakes two more, since who wakes pays for it. */
static void help(struct crew *c, uint32_t call)
{
	unsigned spins = 0;

	if (c->nr_threads > 1)
		futex_wake(&c->call, 2);
	while (atomic_load_explicit(&c->call, memory_order_acquire) == call) {
		if (do_part(c))
			spins = 0;
		else
			spin(&spins);
	}
}

static void *crew_main(void *arg)
{
	struct crew *c = arg;

	for (;;) {
		uint32_t call = atomic_load(&c->call);

		if (atomic_load(&c->quit))
			return NULL;
		if (call & 1)
			help(c, call);
		else
			futex_wait(&c->call, call);
	}
}

int crew_create(struct crew **out, unsigned nr, const char *name, struct ft_error *err)
{
	struct crew *c = FT_FAULT("crew/create") ? NULL : aligned_alloc(LINE, sizeof(*c));
	int r = 0;

	*out = NULL;
	if (!c)
		return err_set(err, -ENOMEM, "no memory for %u threads (%s)", nr, name);
	memset(c, 0, sizeof(*c));
	c->nr_threads = nr - 1;
	for (; !r && c->nr_started < c->nr_threads; c->nr_started += r == 0)
		r = thread_start(&c->thread[c->nr_started], name, crew_main, c);
	if (r) {
		crew_destroy(c);
		return err_sys(err, r, "cannot start %u threads (%s)", nr - 1, name);
	}
	*out = c;
	return 0;
}

void crew_destroy(struct crew *c)
{
	if (!c)
		return;
	atomic_store(&c->quit, true);
	atomic_fetch_add(&c->call, 2);
	futex_wake(&c->call, INT_MAX);
	for (unsigned i = 0; i < c->nr_started; i++)
		pthread_join(c->thread[i], NULL);
	free(c);
}

void crew_begin(struct crew *c, void (*part)(void *work, uint32_t part), void *work)
{
	c->part = part;
	c->work = work;
	c->first = atomic_load_explicit(&c->ready, memory_order_relaxed);
	atomic_fetch_add(&c->call, 1);
	if (c->nr_threads)
		futex_wake(&c->call, 1);
}

void crew_offer(struct crew *c, uint32_t nr)
{
	atomic_fetch_add_explicit(&c->ready, nr, memory_order_release);
}

void crew_wait(struct crew *c)
{
	uint32_t all = atomic_load_explicit(&c->ready, memory_order_relaxed), done;
	unsigned spins = 0;

	while (do_part(c))
		;
	while (atomic_load(&c->done) != all && spins < SPINS)
		spin(&spins);
	atomic_store(&c->waiting, true);
	while ((done = atomic_load(&c->done)) != all)
		futex_wait(&c->done, done);
	atomic_store(&c->waiting, false);
	c->first = all;
}

void crew_end(struct crew *c)
{
	crew_wait(c);
	atomic_fetch_add(&c->call, 1);
}
