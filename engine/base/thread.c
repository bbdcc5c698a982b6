/* SPDX-License-Identifier: MIT */
/* thread.c - see thread.h. */
#include "thread.h"

#include <errno.h>
#include <signal.h>

#include "clock.h"
#include "faultpoint.h"

/* What a thread does to itself: blocked, these would end the process past the handlers of the embedding program (QEMU's for
 * SIGBUS, a sanitizer's for SIGSEGV). */
static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };

int thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&all, faults[i]);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = FT_FAULT("thread/start") ? EAGAIN : pthread_create(out, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		pthread_setname_np(*out, name);
	return -r;
}

void cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
	struct timespec t;

	if (deadline_ns == DEADLINE_NEVER)
		return -pthread_cond_wait(cond, mutex);
	t = timespec_of_ns(deadline_ns);
	return -pthread_cond_timedwait(cond, mutex, &t);
}
