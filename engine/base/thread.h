/* SPDX-License-Identifier: MIT */
/* thread.h - threads of the library: signals blocked (they belong to the embedding program) but for the faults a thread
 * makes itself; named for top and gdb. */
#ifndef FT_BASE_THREAD_H
#define FT_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* thread_start - 0 or a negative errno.  @name: at most 15 characters. */
int thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg);

/* A condition variable that waits on CLOCK_MONOTONIC. */
void cond_init(pthread_cond_t *cond);

/* cond_wait_until - with @mutex held; -ETIMEDOUT after @deadline (clock.h).  May wake early: re-check. */
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
