/* SPDX-License-Identifier: MIT */
/* fault_spec.c - the specification of a connection that misbehaves: "fault(KEY=VALUE,...)/URI".
 *
 *   seed=N        of all that is random here (default 1; connection number n of a listener uses N + n)
 *   delay=MS      each write and message waits a random time up to MS before it goes (at most half of what the caller's deadline leaves)
 *   slow=B        at most B octets a second leave, all lanes together
 *   stall=N:MS    when N messages have been sent, nothing moves for MS in either direction; 0: for ever
 *   cut=N         the connection breaks when N octets of payload have been sent; the write that crosses the mark arrives in part
 *   cutmsg=N      the connection breaks instead of sending the Nth message
 *   oneway=N      when N messages have been sent, what we send disappears and counts as sent; what comes in still does
 *   dup=P         P percent of the messages are sent twice
 *   corrupt=N     one bit of the Nth write is flipped
 *   reorder=1     each lane has a thread that carries its writes and messages on after random pauses (up to delay, or 2 ms): lanes
 *                 overtake each other, the order on one lane is kept, and completions are told late
 *
 * Owns no state; any thread.  Must hold: a key that is not given does nothing; what is behind ")/" is the URI, and not looked at here. */
#include "fault_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int parse_number(const char *key, const char *text, uint64_t *out, char **end, struct ft_error *err)
{
	errno = 0;
	*out = strtoull(text, end, 10);
	if (*end == text || errno != 0 || text[0] == '-')
		return err_set(err, -EINVAL, "fault(%s=...): a number is expected", key);
	return 0;
}

static int parse_stall(struct fault_spec *s, const char *text, char **end, struct ft_error *err)
{
	int r = parse_number("stall", text, &s->stall_after, end, err);

	if (r != 0)
		return r;
	if (**end != ':')
		return err_set(err, -EINVAL, "fault(stall=N:MS): ':' is expected behind N");
	s->has_stall = true;
	return parse_number("stall", *end + 1, &s->stall_ms, end, err);
}

static int parse_key(struct fault_spec *s, const char *key, const char *text, char **end, struct ft_error *err)
{
	const struct {
		const char *name;
		uint64_t *value;
		bool *given;
	} keys[] = {
		{ "seed", &s->seed, NULL },       { "delay", &s->delay_ms, NULL },
		{ "slow", &s->slow, NULL },       { "cut", &s->cut, &s->has_cut },
		{ "cutmsg", &s->cutmsg, NULL },   { "oneway", &s->oneway, &s->has_oneway },
		{ "dup", &s->dup, NULL },         { "corrupt", &s->corrupt, NULL },
		{ "reorder", &s->reorder, NULL },
	};

	if (strcmp(key, "stall") == 0)
		return parse_stall(s, text, end, err);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (strcmp(key, keys[i].name) != 0)
			continue;
		if (keys[i].given)
			*keys[i].given = true;
		return parse_number(key, text, keys[i].value, end, err);
	}
	return err_set(err, -EINVAL, "fault(%s=...): there is no such key", key);
}

/* fault_parse - "KEY=VALUE,...)/URI", behind "fault(". */
int fault_parse(struct fault_spec *s, const char *text, const char **uri, struct ft_error *err)
{
	*s = (struct fault_spec){ .seed = 1 };
	while (*text != ')') {
		char key[16];
		size_t n = strcspn(text, "=,)");
		char *end;
		int r;

		if (text[n] != '=' || n >= sizeof(key))
			return err_set(err, -EINVAL, "fault(...): KEY=VALUE is expected at '%.20s'", text);
		memcpy(key, text, n);
		key[n] = '\0';
		r = parse_key(s, key, text + n + 1, &end, err);
		if (r != 0)
			return r;
		if (*end != ',' && *end != ')')
			return err_set(err, -EINVAL, "fault(...): ',' or ')' is expected at '%.20s'", end);
		text = *end == ',' ? end + 1 : end;
	}
	if (text[1] != '/')
		return err_set(err, -EINVAL, "fault(...): '/' and a URI are expected behind ')'");
	*uri = text + 2;
	return 0;
}
