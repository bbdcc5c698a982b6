/* SPDX-License-Identifier: MIT */
/* config.c - see config.h.  inih takes lines apart; the reader below feeds it, counts them, and keeps the section by
 * itself, since inih cuts lines at 200 octets, cuts section names at 49 and tells its handler no line number.
 * A file is read whole, then gone through three times: which sections are there, [defaults], [NAME]. */
#include "config.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1u << 20)
#define LINE_MAX_OCTETS 65536
#define DEFAULTS "defaults"

/* Texts handed to @set. */
struct kept {
	struct kept *next;
	char text[];
};
static struct kept *kept;

/* One time through. */
struct pass {
	const char *path, *at; /* @at: what is left of the text */
	unsigned line;
	char section[FT_NAME_MAX]; /* where we are; "" before the first */
	const char *want;          /* the section that matters */
	config_set *set;           /* gets its keys; NULL: only look at the sections */
	void *user;
	char only[FT_NAME_MAX], list[256]; /* sections but [defaults]: the first, and all */
	unsigned nr_sections;
	bool found; /* @want */
	struct ft_error *err;
};

static int fail(struct pass *p, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct pass *p, int code, const char *fmt, ...)
{
	struct ft_error *err = p->err;
	va_list ap;
	int used;

	if (err->code)
		return err->code; /* the first one counts */
	err->code = code;
	used = p->line ? snprintf(err->msg, sizeof(err->msg), "%.200s:%u: ", p->path, p->line)
		       : snprintf(err->msg, sizeof(err->msg), "%.200s: ", p->path);
	va_start(ap, fmt);
	vsnprintf(err->msg + used, sizeof(err->msg) - (size_t)used, fmt, ap);
	va_end(ap);
	return code;
}

static const char *keep(const char *text)
{
	size_t len = strlen(text) + 1;
	struct kept *k = malloc(sizeof(*k) + len);

	if (!k)
		return NULL;
	memcpy(k->text, text, len);
	k->next = kept;
	kept = k;
	return k->text;
}

void config_forget(void)
{
	while (kept) {
		struct kept *next = kept->next;

		free(kept);
		kept = next;
	}
}

static void note_section(struct pass *p)
{
	size_t used = strlen(p->list);

	if (p->want && strcmp(p->section, p->want) == 0)
		p->found = true;
	if (strcmp(p->section, DEFAULTS) == 0)
		return;
	if (!p->nr_sections)
		memcpy(p->only, p->section, sizeof(p->only));
	else if (strcmp(p->section, p->only) == 0)
		return;
	p->nr_sections++;
	snprintf(p->list + used, sizeof(p->list) - used, "%s%s", used ? ", " : "", p->section);
}

/* A line that begins with [ opens a section; inih checks the bracket that closes it. */
static void follow_section(struct pass *p, const char *line)
{
	size_t len;

	line += strspn(line, " \t");
	if (*line != '[')
		return;
	len = strcspn(++line, "]\n");
	if (len == 0 || len >= sizeof(p->section)) {
		fail(p, -EINVAL, "a section's name has 1 to %u characters", FT_NAME_MAX - 1);
		return;
	}
	memcpy(p->section, line, len);
	p->section[len] = '\0';
	note_section(p);
}

/* ini_reader: like fgets(); NULL at the end, or once something was wrong. */
static char *next_line(char *buf, int size, void *stream)
{
	struct pass *p = stream;
	size_t len = strcspn(p->at, "\n");

	if (!*p->at || p->err->code)
		return NULL;
	p->line++;
	len += p->at[len] == '\n';
	if (len >= (size_t)size) {
		fail(p, -E2BIG, "line of more than %d octets", size - 1);
		return NULL;
	}
	memcpy(buf, p->at, len);
	buf[len] = '\0';
	p->at += len;
	follow_section(p, buf);
	return buf;
}

/* ini_handler: 0 stops. */
static int on_key(void *user, const char *section, const char *key, const char *value)
{
	struct pass *p = user;
	struct ft_error err = { 0 };
	const char *text;

	(void)section;
	if (p->err->code)
		return 0;
	if (!p->section[0])
		return fail(p, -EINVAL, "%s: stands outside of a section; begin with [" DEFAULTS "] or [NAME]", key) ==
		       0;
	if (!p->set || strcmp(p->section, p->want) != 0)
		return 1;
	text = keep(value);
	if (!text)
		return fail(p, -ENOMEM, "out of memory") == 0;
	if (p->set(p->user, key, text, &err) < 0)
		return fail(p, err.code, "%s", err.msg) == 0;
	return 1;
}

static int go_through(struct pass *p)
{
	int r;

	ini_allow_multiline = false;       /* an indented line is a line */
	ini_allow_inline_comments = false; /* a ';' may be part of a value */
	ini_stop_on_first_error = true;
	ini_use_stack = false;
	ini_initial_alloc = ini_max_line = LINE_MAX_OCTETS;
	r = ini_parse_stream(next_line, p, on_key, p);
	if (r > 0)
		fail(p, -EINVAL, "neither [SECTION] nor KEY = VALUE nor a comment");
	else if (r < 0)
		fail(p, -ENOMEM, "out of memory");
	return p->err->code;
}

/* Which section is meant?  *@used gets its name, or NULL. */
static int choose(struct pass *look, const char *section, const char **used)
{
	*used = NULL;
	if (!look->nr_sections)
		return 0;
	look->line = 0; /* about the whole file */
	if (section && !look->found)
		return fail(look, -ENOENT, "no section [%s]; there is %s", section, look->list);
	if (!section && look->nr_sections > 1)
		return fail(look, -EINVAL, "which machine? --name NAME says it; there is %s", look->list);
	*used = section ? section : keep(look->only);
	return *used ? 0 : fail(look, -ENOMEM, "out of memory");
}

int config_read_string(const char *path, const char *text, const char *section, config_set *set, void *user,
		       const char **used, struct ft_error *err)
{
	static const char bom[] = "\xEF\xBB\xBF";
	struct pass look = { .path = path, .at = text, .want = section, .err = err };
	struct pass defaults = { .path = path, .at = text, .want = DEFAULTS, .set = set, .user = user, .err = err };
	struct pass own = defaults;
	int r;

	err->code = 0;
	*used = NULL;
	if (strncmp(text, bom, 3) == 0)
		look.at = defaults.at = own.at = text + 3;
	r = go_through(&look);
	if (!r)
		r = choose(&look, section, used);
	if (!r)
		r = go_through(&defaults);
	own.want = *used;
	return r || !own.want ? r : go_through(&own);
}

int config_read(const char *path, const char *section, config_set *set, void *user, const char **used,
		struct ft_error *err)
{
	char *text = calloc(1, FILE_MAX + 1);
	FILE *f = fopen(path, "re");
	size_t len;
	int r = 0;

	*used = NULL;
	if (!f || !text) {
		r = f ? -ENOMEM : -errno;
		goto out;
	}
	len = fread(text, 1, FILE_MAX + 1, f);
	if (ferror(f))
		r = -EIO;
	else if (len > FILE_MAX)
		r = -EFBIG;
	else if (strlen(text) != len)
		r = -EILSEQ; /* a zero octet: no text file */
out:
	if (f)
		fclose(f);
	if (r) {
		err->code = r;
		snprintf(err->msg, sizeof(err->msg), "%.300s: %s", path, strerror(-r));
	} else {
		r = config_read_string(path, text, section, set, user, used, err);
	}
	free(text);
	return r;
}
