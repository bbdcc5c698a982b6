/* SPDX-License-Identifier: MIT */
/* identity.h - what must be the same on both sides, as text: a line for each property, in an order that QEMU keeps.
 * It is asked of the running QEMU, not taken from the command line, so that a machine that somebody else started can be
 * compared too. */
#ifndef FT_QEMU_IDENTITY_H
#define FT_QEMU_IDENTITY_H

#include "qmp.h"

/* identity_read - *@out is the caller's to free; at most @max octets with its terminator (-E2BIG). */
int identity_read(struct qmp *q, uint64_t deadline, size_t max, char **out, struct ft_error *err);
/* identity_compare - 0, or -EINVAL with a sentence that names the first difference. */
int identity_compare(const char *theirs, const char *ours, struct ft_error *err);

#endif
