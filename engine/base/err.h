/* SPDX-License-Identifier: MIT */
/* err.h - filling struct ft_error (ft/error.h).  Leaf code: any thread, no allocation. */
#ifndef FT_BASE_ERR_H
#define FT_BASE_ERR_H

#include <ft/error.h>

#define FT_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* err_set - store @code (a negative errno) and the sentence; returns @code.  @err may be NULL. */
int err_set(struct ft_error *err, int code, const char *fmt, ...) FT_PRINTF(3, 4);

/* err_sys - like err_set with ": strerror(-code)" behind the sentence. */
int err_sys(struct ft_error *err, int code, const char *fmt, ...) FT_PRINTF(3, 4);

/* err_prefix - put "context: " in front of the sentence that is there; returns err->code.  Without @err it returns 0: do
 * not use its value where the caller may have given none. */
int err_prefix(struct ft_error *err, const char *fmt, ...) FT_PRINTF(2, 3);

void err_clear(struct ft_error *err);

#endif
