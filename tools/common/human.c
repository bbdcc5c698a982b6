/* SPDX-License-Identifier: MIT */
/* human.c - see human.h. */
#include "human.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Three digits that say something: 2.71, 41.3, 870. */
static const char *three_digits(char buf[static HUMAN_MAX], double v, const char *unit)
{
	snprintf(buf, HUMAN_MAX, "%.*f %s", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, unit);
	return buf;
}

const char *human_ns(char buf[static HUMAN_MAX], uint64_t ns)
{
	uint64_t s = ns / 1000000000;

	if (ns < 1000)
		snprintf(buf, HUMAN_MAX, "%" PRIu64 " ns", ns);
	else if (ns < 1000000)
		three_digits(buf, (double)ns / 1e3, "us");
	else if (ns < 1000000000)
		three_digits(buf, (double)ns / 1e6, "ms");
	else if (s < 60)
		three_digits(buf, (double)ns / 1e9, "s");
	else if (s < 3600)
		snprintf(buf, HUMAN_MAX, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, HUMAN_MAX, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
	else
		snprintf(buf, HUMAN_MAX, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
	return buf;
}

const char *human_bytes(char buf[static HUMAN_MAX], uint64_t bytes)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)bytes / 1024;
	unsigned u = 0;

	if (bytes < 1024) {
		snprintf(buf, HUMAN_MAX, "%" PRIu64 " B", bytes);
		return buf;
	}
	for (; v >= 1023.5 && u < 5; u++)
		v /= 1024;
	return three_digits(buf, v, units[u]);
}

const char *human_count(char buf[static HUMAN_MAX], uint64_t n)
{
	char digits[24];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n), out = 0;

	for (size_t i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			buf[out++] = ',';
		buf[out++] = digits[i];
	}
	buf[out] = '\0';
	return buf;
}

static const char *parse_digits(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	if (*text < '0' || *text > '9')
		return NULL;
	for (; *text >= '0' && *text <= '9'; text++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*text - '0'), &v))
			return NULL;
	*out = v;
	return text;
}

int human_parse_u64(const char *text, uint64_t *out)
{
	const char *rest = parse_digits(text, out);

	return rest && !*rest ? 0 : -1;
}

int human_parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *rest = parse_digits(text, out), *unit;

	if (!rest)
		return -1;
	if (!*rest)
		return 0;
	unit = strchr(units, *rest);
	if (!unit || (rest[1] && strcmp(rest + 1, "iB") != 0))
		return -1;
	return __builtin_mul_overflow(*out, UINT64_C(1024) << (10 * (unit - units)), out) ? -1 : 0;
}
