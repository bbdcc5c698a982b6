/* SPDX-License-Identifier: MIT */
/* opts.c - see opts.h. */
#include "opts.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct opts *o, const char *key, const char *value)
{
	strv_add(&o->key, key);
	strv_add(&o->value, value);
}

static int parse_json(struct opts *o, const char *text, struct ft_error *err)
{
	json_error_t why;
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why), *value;
	const char *key;

	if (!json_is_object(root)) {
		json_decref(root);
		return fail(err, -EINVAL, "%.100s: not a JSON object (%s)", text, why.text);
	}
	o->json = true;
	json_object_foreach(root, key, value)
	{
		char number[32];

		if (json_is_string(value)) {
			add(o, key, json_string_value(value));
		} else if (json_is_boolean(value)) {
			add(o, key, json_is_true(value) ? "on" : "off");
		} else if (json_is_integer(value)) {
			snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
			add(o, key, number);
		}
	}
	json_decref(root);
	return 0;
}

/* Copy up to a single comma, undoubling double ones; returns where it stopped. */
static const char *item(const char *at, char *to)
{
	for (; *at; at++) {
		if (*at == ',') {
			if (at[1] != ',')
				break;
			at++;
		}
		*to++ = *at;
	}
	*to = '\0';
	return *at ? at + 1 : at;
}

/* A name knows no doubled commas. */
static const char *flag(const char *at, char *to)
{
	size_t n = strcspn(at, ",");

	memcpy(to, at, n);
	to[n] = '\0';
	return at[n] ? at + n + 1 : at + n;
}

int opts_parse(struct opts *o, const char *text, const char *implied, struct ft_error *err)
{
	const char *at = text, *eq, *comma;
	bool first = true;
	char *one;

	*o = (struct opts){ 0 };
	if (text[0] == '{')
		return parse_json(o, text, err);
	one = malloc(strlen(text) + 1);
	if (!one)
		return fail(err, -ENOMEM, "no memory for the options");
	while (*at) {
		/* a key never holds a comma, so "a,b=c" is the flag a and then b */
		eq = strchr(at, '=');
		comma = strchr(at, ',');
		if (eq && (!comma || eq < comma)) {
			size_t n = (size_t)(eq - at);

			memcpy(one, at, n);
			one[n] = '\0';
			strv_add(&o->key, one);
			at = item(eq + 1, one);
			strv_add(&o->value, one);
		} else {
			if (first && implied) {
				at = item(at, one);
				add(o, implied, one);
			} else {
				at = flag(at, one);
				if (!strcmp(one, "nowait"))
					add(o, "wait", "off"); /* the one old negated flag that is in wide use */
				else if (one[0])
					add(o, one, "on");
			}
		}
		first = false;
	}
	free(one);
	if (!o->key.oom && !o->value.oom)
		return 0;
	opts_free(o);
	return fail(err, -ENOMEM, "no memory for the options");
}

void opts_free(struct opts *o)
{
	strv_free(&o->key);
	strv_free(&o->value);
	o->json = false;
}

const char *opts_get(const struct opts *o, const char *key)
{
	size_t i = o->key.n;

	while (i--)
		if (!strcmp(o->key.v[i], key))
			return o->value.v[i];
	return NULL;
}

bool opts_is_on(const struct opts *o, const char *key, bool unset)
{
	const char *v = opts_get(o, key);

	if (!v)
		return unset;
	return !strcmp(v, "on") || !strcmp(v, "yes") || !strcmp(v, "true") || !strcmp(v, "y");
}

static void drop(struct strv *s, size_t i)
{
	free(s->v[i]);
	memmove(&s->v[i], &s->v[i + 1], (s->n - i) * sizeof(*s->v)); /* with the NULL behind them */
	s->n--;
}

void opts_unset(struct opts *o, const char *key)
{
	size_t i = o->key.n;

	while (i--)
		if (!strcmp(o->key.v[i], key)) {
			drop(&o->key, i);
			drop(&o->value, i);
		}
}

void opts_set(struct opts *o, const char *key, const char *value)
{
	size_t i;
	char *copy;

	for (i = 0; i < o->key.n; i++)
		if (!strcmp(o->key.v[i], key)) {
			copy = strdup(value);
			if (!copy) {
				o->value.oom = true;
				return;
			}
			free(o->value.v[i]);
			o->value.v[i] = copy;
			return;
		}
	add(o, key, value);
}

char *opts_quote(const char *value)
{
	char *out = malloc(strlen(value) * 2 + 1), *to = out;

	if (!out)
		return NULL;
	for (; *value; value++) {
		*to++ = *value;
		if (*value == ',')
			*to++ = ',';
	}
	*to = '\0';
	return out;
}

char *opts_print(const struct opts *o, const char *implied)
{
	size_t size = 1, i;
	char *out, *to;

	for (i = 0; i < o->key.n; i++)
		size += strlen(o->key.v[i]) + 2 * strlen(o->value.v[i]) + 2;
	out = malloc(size);
	if (!out)
		return NULL;
	to = out;
	for (i = 0; i < o->key.n; i++) {
		char *quoted = opts_quote(o->value.v[i]);

		if (!quoted) {
			free(out);
			return NULL;
		}
		if (i)
			*to++ = ',';
		if (i || !implied || strcmp(o->key.v[i], implied))
			to += sprintf(to, "%s=", o->key.v[i]);
		to = stpcpy(to, quoted);
		free(quoted);
	}
	*to = '\0';
	return out;
}

int opts_size(const char *text, uint64_t unit, uint64_t *out)
{
	static const char suffixes[] = "BKMGTPE";
	size_t digits = strspn(text, "0123456789.");
	const char *s;
	char number[32];
	double value;

	if (!isdigit((unsigned char)text[0]) || digits >= sizeof(number))
		return -EINVAL;
	memcpy(number, text, digits);
	number[digits] = '\0';
	if (strchr(number, '.') != strrchr(number, '.'))
		return -EINVAL;
	value = strtod(number, NULL);
	if (text[digits]) {
		s = strchr(suffixes, toupper((unsigned char)text[digits]));
		if (!s || text[digits + 1])
			return -EINVAL;
		unit = UINT64_C(1) << (10 * (s - suffixes));
	}
	value *= (double)unit;
	if (value >= 9e18)
		return -ERANGE;
	*out = (uint64_t)value;
	return 0;
}
