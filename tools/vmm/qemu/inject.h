/* SPDX-License-Identifier: MIT */
/* inject.h - one userfaultfd() made in a process that runs already, for a QEMU that was started without the shim.
 * The process stands still for well under a millisecond.  x86-64; needs the right to trace it. */
#ifndef FT_QEMU_INJECT_H
#define FT_QEMU_INJECT_H

#include <sys/types.h>
#include "util.h"

/* inject_userfaultfd - the descriptor's number in @pid, or a negative errno. */
int inject_userfaultfd(pid_t pid, struct ft_error *err);

#endif
