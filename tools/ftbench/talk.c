/* SPDX-License-Identifier: MIT */
/* talk.c - asking a process that answers with lines of JSON on a Unix socket: ft-control(7), and QEMU's monitor, whose events STOP, RESUME and
 * MIGRATION are noted on the way.  Events are read when something is asked: they come in order before the answer.  One thread. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "bench.h"
#include "say.h"

#define ANSWER_MS 20000
#define PAUSES_MAX 65536u

static void note_event(struct talk *t, const json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "event"));
	json_t *at = json_object_get(event, "timestamp");
	double us = (double)json_integer_value(json_object_get(at, "seconds")) * 1e6 +
		    (double)json_integer_value(json_object_get(at, "microseconds"));

	if (!strcmp(name, "STOP") && isnan(t->stopped_us))
		t->stopped_us = us;
	if (!strcmp(name, "RESUME")) {
		if (!isnan(t->stopped_us) && t->nr_pauses < PAUSES_MAX)
			t->pause_us[t->nr_pauses++] = us - t->stopped_us;
		t->stopped_us = NAN;
	}
	if (!strcmp(name, "MIGRATION")) {
		const char *s = json_string_value(json_object_get(json_object_get(event, "data"), "status"));

		snprintf(t->migration, sizeof(t->migration), "%s", s ? s : "");
	}
}

static int read_more(struct talk *t, struct ft_error *err)
{
	struct pollfd pf = { .fd = t->fd, .events = POLLIN };
	ssize_t n;
	int r;

	while ((r = poll(&pf, 1, ANSWER_MS)) < 0 && errno == EINTR)
		;
	if (r <= 0)
		return say(err, -ETIMEDOUT, "no answer for %d s", ANSWER_MS / 1000);
	n = recv(t->fd, t->buf + t->used, sizeof(t->buf) - t->used, 0);
	if (n <= 0)
		return say(err, -EPIPE, "the process has closed its socket");
	t->used += (size_t)n;
	return 0;
}

/* The next line that is no event. */
static int next_line(struct talk *t, json_t **out, struct ft_error *err)
{
	*out = NULL;
	for (;;) {
		char *nl = memchr(t->buf, '\n', t->used);
		json_t *j;
		int r;

		if (!nl) {
			r = t->used == sizeof(t->buf) ? say(err, -EPROTO, "a line is too long") : read_more(t, err);
			if (r)
				return r;
			continue;
		}
		j = json_loadb(t->buf, (size_t)(nl - t->buf), 0, NULL);
		t->used -= (size_t)(nl + 1 - t->buf);
		memmove(t->buf, nl + 1, t->used);
		if (!j)
			return say(err, -EPROTO, "an answer is no JSON");
		if (!json_object_get(j, "event")) {
			*out = j;
			return 0;
		}
		note_event(t, j);
		json_decref(j);
	}
}

int talk_ask(struct talk *t, json_t *request, json_t **out, struct ft_error *err)
{
	char *text = json_dumps(request, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0;
	json_t *answer = NULL, *why, *what;
	int r = 0;

	json_decref(request);
	if (out)
		*out = NULL;
	if (!text)
		return say(err, -ENOMEM, "no memory");
	text[len++] = '\n'; /* in place of the terminator */
	if (send(t->fd, text, len, MSG_NOSIGNAL) != (ssize_t)len)
		r = say(err, -EPIPE, "the process has closed its socket");
	free(text);
	r = r ? r : next_line(t, &answer, err);
	if (r)
		return r;
	why = json_object_get(answer, "error");
	if (why) {
		const char *words = json_string_value(json_is_object(why) ? json_object_get(why, "desc") : why);

		r = say(err, -EREMOTEIO, "%.300s", words ? words : "refused");
	}
	what = json_object_get(answer, "return");
	what = what ? what : json_object_get(answer, "data");
	if (!r && out)
		*out = json_incref(what);
	json_decref(answer);
	return r;
}

json_t *qmp_request(const char *command, json_t *arguments)
{
	json_t *j = json_pack("{s:s}", "execute", command);

	if (arguments)
		json_object_set_new(j, "arguments", arguments);
	return j;
}

int talk_open(struct talk **out, const char *path, bool is_qmp, uint64_t deadline_ns, struct ft_error *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct talk *t = calloc(1, sizeof(*t));
	json_t *greeting;
	int r = 0;

	*out = t;
	if (!t || !(t->pause_us = calloc(PAUSES_MAX, sizeof(*t->pause_us)))) {
		free(t);
		*out = NULL;
		return say(err, -ENOMEM, "no memory");
	}
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	t->stopped_us = NAN;
	t->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	while (connect(t->fd, (struct sockaddr *)&a, sizeof(a)) && !r) {
		if (mono_ns() > deadline_ns)
			r = say(err, -ETIMEDOUT, "nobody serves %s", path);
		sleep_ms(10);
	}
	if (!r && is_qmp) {
		r = next_line(t, &greeting, err);
		json_decref(greeting);
		r = r ? r : talk_ask(t, qmp_request("qmp_capabilities", NULL), NULL, err);
	}
	if (r) {
		talk_close(t);
		*out = NULL;
	}
	return r;
}

void talk_close(struct talk *t)
{
	if (!t)
		return;
	close(t->fd);
	free(t->pause_us);
	free(t);
}

void talk_forget_pauses(struct talk *t)
{
	t->nr_pauses = 0;
	t->stopped_us = NAN;
}

void talk_pauses(struct talk *t, double *v)
{
	v[FIG_PAUSE_P50] = quantile(t->pause_us, t->nr_pauses, 0.5);
	v[FIG_PAUSE_P99] = quantile(t->pause_us, t->nr_pauses, 0.99);
	v[FIG_PAUSE_MAX] = quantile(t->pause_us, t->nr_pauses, 1);
}
