/* SPDX-License-Identifier: MIT */
/* fields.h - one line of output, as words or as a JSON object, from one list of named values.
 * So each record is described in one place (words.c) for both.  One thread. */
#ifndef FTDUMP_FIELDS_H
#define FTDUMP_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

struct line {
	bool json;
	struct json_t *object; /* JSON only */
	int gap;	       /* words: spaces that are due if anything follows */
};

struct line line_begin(bool json);
/* Only in words: printed as it is.  Only in JSON: named. */
void line_text(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void line_only_json(struct line *l, const char *name, uint64_t value);
/* Only in words: left, in a column of @width if anything follows. */
void line_column(struct line *l, const char *text, int width);
/* In words " name=value". */
void line_u64(struct line *l, const char *name, uint64_t value);
void line_hex(struct line *l, const char *name, uint64_t value);
void line_string(struct line *l, const char *name, const char *text);
void line_octets(struct line *l, const char *name, const char *text, size_t len); /* quoted; tabs and newlines as \t, \n */
/* A list of page runs: in words " [64+16 128]", in JSON [[64, 16], [128, 1]]. */
void line_pages_begin(struct line *l);
void line_pages(struct line *l, uint64_t first, uint64_t nr);
void line_pages_end(struct line *l);
void line_end(struct line *l);

#endif
