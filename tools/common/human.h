/* SPDX-License-Identifier: MIT */
/* human.h - times, sizes and numbers as people write them.  Pure functions; each returns @buf. */
#ifndef FT_TOOLS_HUMAN_H
#define FT_TOOLS_HUMAN_H

#include <stddef.h>
#include <stdint.h>

#define HUMAN_MAX 32 /* room that always suffices */

const char *human_ns(char buf[static HUMAN_MAX], uint64_t ns);	    /* "870 ns", "41.3 us", "2.71 ms", "3.2 s", "5 min 12 s" */
const char *human_bytes(char buf[static HUMAN_MAX], uint64_t bytes); /* "512 B", "4.0 KiB", "256 MiB" */
const char *human_count(char buf[static HUMAN_MAX], uint64_t n);    /* "1,234,567" */

/* Decimal digits only, the whole of @text; 0 or -1. */
int human_parse_u64(const char *text, uint64_t *out);
/* Digits and perhaps K, M, G or T (KiB ...). */
int human_parse_size(const char *text, uint64_t *out);

#endif
