/* SPDX-License-Identifier: MIT */
/* clock.h - monotonic time and deadlines.  Nothing in ft reads the wall clock to decide anything. */
#ifndef FT_BASE_CLOCK_H
#define FT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

/* A deadline is a point of CLOCK_MONOTONIC in ns. */
#define DEADLINE_NEVER UINT64_MAX

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* A time too long for 64 bits of ns is never. */
static inline uint64_t deadline_in_ms(uint64_t ms)
{
	uint64_t now = now_ns();

	return ms > (DEADLINE_NEVER - now) / NS_PER_MS ? DEADLINE_NEVER : now + ms * NS_PER_MS;
}

static inline struct timespec timespec_of_ns(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
}

/* boot_now_ns - the same while the host runs, and it does not stand still while the host sleeps: for what others count on meanwhile, as a lease.
 * CLOCK_BOOTTIME; a function of its own so that a test can put another clock in its place. */
uint64_t boot_now_ns(void);

/* For poll(): ms left, rounded up so that a wait never ends early; 0 when over, -1 for never.  At most an hour: ask again. */
static inline int deadline_poll_ms(uint64_t deadline)
{
	uint64_t now;

	if (deadline == DEADLINE_NEVER)
		return -1;
	now = now_ns();
	if (now >= deadline)
		return 0;
	if (deadline - now > 3600 * NS_PER_S)
		return 3600000;
	return (int)((deadline - now + NS_PER_MS - 1) / NS_PER_MS);
}

#endif
