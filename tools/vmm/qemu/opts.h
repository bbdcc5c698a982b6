/* SPDX-License-Identifier: MIT */
/* opts.h - QEMU's option syntax: "driver,key=value,flag", a comma inside a value doubled, or one JSON object.
 * Pure functions on strings. */
#ifndef FT_QEMU_OPTS_H
#define FT_QEMU_OPTS_H

#include <stdbool.h>
#include <stdint.h>
#include "util.h"

struct opts {
	struct strv key, value; /* same length; a flag has the value "on" */
	bool json;		/* came as JSON: top-level scalars only are here */
};

/* opts_parse - @implied: key of a first item that has no "=" (NULL: it is a flag too).  -EINVAL for bad JSON, -ENOMEM. */
int opts_parse(struct opts *o, const char *text, const char *implied, struct ft_error *err);
void opts_free(struct opts *o);

/* The last value of @key, as QEMU takes it; NULL. */
const char *opts_get(const struct opts *o, const char *key);
/* Whether @key is on: "on", "yes", "true", or a bare flag; @unset without it. */
bool opts_is_on(const struct opts *o, const char *key, bool unset);
/* opts_set - replace all of @key, or append. */
void opts_set(struct opts *o, const char *key, const char *value);
void opts_unset(struct opts *o, const char *key);

/* opts_quote - @value with commas doubled; the caller frees it; NULL without memory. */
char *opts_quote(const char *value);
/* opts_print - back to text; @implied is written as its bare value if it comes first.  NULL without memory. */
char *opts_print(const struct opts *o, const char *implied);

/* opts_size - "512", "1.5G" ...; a bare number counts in @unit octets.  -EINVAL, -ERANGE. */
int opts_size(const char *text, uint64_t unit, uint64_t *out);

#endif
