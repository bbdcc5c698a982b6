/* SPDX-License-Identifier: MIT */
/* faultpoint.h - named places where a test makes an operation fail.
 * `if (FT_FAULT("stage/alloc")) return -ENOMEM;` or `fd = FT_FAULT("x/open") ? faultpoint_errno(EMFILE) : open(...)`.
 * Compiled to 0 unless FT_FAULT_POINTS is defined (CMake option FAULT_POINTS, on in presets dev, asan, tsan).
 * tests/stress/stress_faults.c fails the 1st, 2nd, 3rd ... hit of each in a whole scenario; every name stands in
 * faultpoint.c's list, and a name that the scenario does not hit fails it.  Not in loops that run once a page. */
#ifndef FT_BASE_FAULTPOINT_H
#define FT_BASE_FAULTPOINT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef FT_FAULT_POINTS
#define FT_FAULT(name) __builtin_expect(faultpoint_hit(name), 0)
#else
#define FT_FAULT(name) 0
#endif

/* faultpoint_errno - what a system call that fails returns; faultpoint_map - what mmap() does. */
static inline int faultpoint_errno(int error)
{
	errno = error;
	return -1;
}

static inline void *faultpoint_map(int error)
{
	errno = error;
	return (void *)-1; /* MAP_FAILED */
}

/* faultpoint_hit - count a hit; true if it is the one to fail. */
bool faultpoint_hit(const char *name);

/* faultpoint_arm - fail the @nth hit (from 1) of any point from now on, and with @persistent all after it.
 * @nth 0: fail none, count only.  @only: restrict to this name (kept, not copied), or NULL. */
void faultpoint_arm(uint64_t nth, bool persistent, const char *only);
void faultpoint_disarm(void); /* counting goes on */
uint64_t faultpoint_hits(void); /* since the last arm, of @only if there is one */
uint64_t faultpoint_hits_of(const char *name); /* since the last arm; of a name of the list */
const char *faultpoint_failed(void); /* the name that was made to fail last, or NULL */
/* faultpoint_names - the list of all points, ended by NULL. */
const char *const *faultpoint_names(void);

#endif
