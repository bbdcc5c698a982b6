/* SPDX-License-Identifier: MIT */
/* error.h - how every function of ft reports a failure: a negative errno and one sentence.
 * The sentence is built once, where the cause is known, into the caller's fixed buffer; callers put
 * context in front ("standby 10.0.0.2:7000: hello: ...").  No allocation, no locale, no static state. */
#ifndef FT_ERROR_H
#define FT_ERROR_H

#define FT_ERROR_MAX 512

struct ft_error {
	int code;		/* negative errno, 0 when there is none */
	char msg[FT_ERROR_MAX]; /* one sentence without a full stop or newline; always terminated */
};

#endif
