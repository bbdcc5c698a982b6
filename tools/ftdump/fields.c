/* SPDX-License-Identifier: MIT */
/* fields.c - see fields.h. */
#include "fields.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line line_begin(bool json)
{
	struct line l = { .json = json };

	if (json && !(l.object = json_object()))
		abort();
	return l;
}

void line_text(struct line *l, const char *fmt, ...)
{
	va_list ap;

	if (l->json)
		return;
	printf("%*s", l->gap, "");
	l->gap = 0;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
}

void line_column(struct line *l, const char *text, int width)
{
	const int len = (int)strlen(text);

	line_text(l, "%s", text);
	l->gap = len < width ? width - len : 0;
}

/* number - JSON integers are signed; what is larger (only in damaged or hostile streams) becomes a string. */
static json_t *number(uint64_t value)
{
	return value <= INT64_MAX ? json_integer((json_int_t)value) : json_sprintf("%" PRIu64, value);
}

void line_only_json(struct line *l, const char *name, uint64_t value)
{
	if (l->json)
		json_object_set_new(l->object, name, number(value));
}

void line_u64(struct line *l, const char *name, uint64_t value)
{
	line_only_json(l, name, value);
	line_text(l, " %s=%" PRIu64, name, value);
}

void line_hex(struct line *l, const char *name, uint64_t value)
{
	if (l->json)
		json_object_set_new(l->object, name, json_sprintf("0x%016" PRIx64, value));
	line_text(l, " %s=0x%016" PRIx64, name, value);
}

void line_string(struct line *l, const char *name, const char *text)
{
	if (l->json)
		json_object_set_new(l->object, name, json_string(text));
	line_text(l, " %s=%s", name, text);
}

void line_octets(struct line *l, const char *name, const char *text, size_t len)
{
	if (l->json) {
		json_object_set_new(l->object, name, json_stringn(text, len));
		return;
	}
	line_text(l, " %s=\"", name);
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\n' || text[i] == '\t')
			fputs(text[i] == '\n' ? "\\n" : "\\t", stdout);
		else if (text[i] == '"' || text[i] == '\\')
			printf("\\%c", text[i]);
		else
			putchar(text[i]);
	}
	putchar('"');
}

void line_pages_begin(struct line *l)
{
	if (l->json)
		json_object_set_new(l->object, "runs", json_array());
	line_text(l, " [");
}

void line_pages(struct line *l, uint64_t first, uint64_t nr)
{
	json_t *list;

	if (l->json) {
		list = json_object_get(l->object, "runs");
		json_array_append_new(list, json_pack("[o,o]", number(first), number(nr)));
		return;
	}
	line_text(l, nr == 1 ? " %" PRIu64 : " %" PRIu64 "+%" PRIu64, first, nr);
}

void line_pages_end(struct line *l)
{
	line_text(l, " ]");
}

void line_end(struct line *l)
{
	if (l->json) {
		json_dumpf(l->object, stdout, JSON_COMPACT);
		json_decref(l->object);
	}
	putchar('\n');
}
