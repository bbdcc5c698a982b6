/* SPDX-License-Identifier: MIT */
/* colofix.c - lets the COLO of Debian 12's QEMU (7.2) run with TCG, so that it can be measured beside ft.
 * Preloaded into both QEMUs by compare_colo, and only there.
 *
 * What is wrong: at a checkpoint COLO's thread saves the machine without holding the big lock.  With TCG that ends in a
 * wait on a condition that goes with the big lock; such a wait returns with the lock held, nobody gives it back, and the same
 * thread then waits for ever for the lock that it has.
 * What is done here: a wait by a thread that does not own the mutex takes it, waits for a moment, and gives it back.  Callers of
 * condition waits look at their condition again, so waking too early is allowed. */
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

typedef int cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	static cond_wait *real;
	struct timespec until;

	if (!real)
		real = (cond_wait *)dlsym(RTLD_NEXT, "pthread_cond_wait");
	if (mutex->__data.__owner == gettid())
		return real(cond, mutex);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 200000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_mutex_lock(mutex);
	pthread_cond_timedwait(cond, mutex, &until); /* timed out: a wake-up without a cause */
	pthread_mutex_unlock(mutex);
	return 0;
}
