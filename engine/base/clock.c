/* SPDX-License-Identifier: MIT */
/* clock.c - see clock.h.  Any thread. */
#include "clock.h"

uint64_t boot_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}
