/* SPDX-License-Identifier: MIT */
/* faultpoint.h - named places where a test makes an operation fail.
 * `if (FT_FAULT("stage/alloc")) return -ENOMEM;`  Compiled to 0 unless FT_FAULT_POINTS is defined (CMake
 * option FAULT_POINTS, on in presets dev, asan, tsan).  The runner in tests/fault fails the 1st, 2nd, 3rd ... hit of
 * a whole scenario; every name stands in faultpoint.c's list, and a check finds names that no test hits. */
#ifndef FT_BASE_FAULTPOINT_H
#define FT_BASE_FAULTPOINT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef FT_FAULT_POINTS
#define FT_FAULT(name) __builtin_expect(faultpoint_hit(name), 0)
#else
#define FT_FAULT(name) 0
#endif

/* faultpoint_hit - count a hit; true if it is the one to fail. */
bool faultpoint_hit(const char *name);

/* faultpoint_arm - fail the @nth hit (from 1) of any point from now on, and with @persistent all after it.
 * @nth 0: fail none, count only.  @only: restrict to this name (kept, not copied), or NULL. */
void faultpoint_arm(uint64_t nth, bool persistent, const char *only);
void faultpoint_disarm(void);
uint64_t faultpoint_hits(void); /* since the last arm */
const char *faultpoint_failed(void); /* the name that was made to fail last, or NULL */
/* faultpoint_names - the list of all points, ended by NULL. */
const char *const *faultpoint_names(void);

#endif
