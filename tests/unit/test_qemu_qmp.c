/* SPDX-License-Identifier: MIT */
/* test_qemu_qmp.c - the QMP client against a server that answers rightly, wrongly, late, not at all, and that vanishes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_qmp.h"
#include "qmp.h"

#define LONG_MS 20000

static struct fake_qmp server;
static struct qmp *q;
static struct ft_error err;
static char events[256];
static json_t *late; /* id of the command that was met with silence; server thread */

static void on_event(void *user, const char *name, const json_t *data)
{
	(void)user;
	cr_assert_str_eq(json_string_value(json_object_get(data, "of")), name);
	strcat(events, name);
	strcat(events, " ");
}

/* The commands of the tests. */
static bool on_command(struct fake_qmp *f, const char *cmd, json_t *args, json_t *id, int fd)
{
	char line[256];

	if (!strcmp(cmd, "echo")) {
		fake_qmp_return(f, id, json_incref(args));
	} else if (!strcmp(cmd, "refuse")) {
		fake_qmp_error(f, id, "No such luck");
	} else if (!strcmp(cmd, "silence")) {
		json_decref(late);
		late = json_incref(id);
	} else if (!strcmp(cmd, "late")) {
		fake_qmp_return(f, late, json_string("the answer to silence"));
		fake_qmp_return(f, id, json_string("the answer to late"));
	} else if (!strcmp(cmd, "stranger")) {
		fake_qmp_say(f,
			     "{\"return\": 1, \"id\": 999}\r\n{\"return\": 2, \"id\": \"one\"}\r\n{\"return\": 3}\r\n");
		fake_qmp_return(f, id, json_integer(4));
	} else if (!strcmp(cmd, "eventful")) {
		fake_qmp_event(f, "STOP");
		fake_qmp_event(f, "RESUME");
		fake_qmp_return(f, id, NULL);
	} else if (!strcmp(cmd, "pieces")) {
		fake_qmp_say(f, "{\"ret");
		usleep(20000);
		snprintf(line, sizeof(line), "urn\": \"whole\", \"id\": %lld}", json_integer_value(id));
		fake_qmp_say(f, line);
		usleep(20000);
		fake_qmp_say(f, "\r\n");
	} else if (!strcmp(cmd, "write")) {
		cr_assert_geq(fd, 0);
		cr_assert_eq(write(fd, "hello", 5), 5);
		close(fd);
		fake_qmp_return(f, id, NULL);
	} else if (!strcmp(cmd, "nonsense")) {
		fake_qmp_say(f, "HTTP/1.1 400 Bad Request\r\n");
	} else if (!strcmp(cmd, "neither")) {
		snprintf(line, sizeof(line), "{\"id\": %lld}\r\n", json_integer_value(id));
		fake_qmp_say(f, line);
	} else if (!strcmp(cmd, "half")) {
		fake_qmp_say(f, "{\"return\": {");
		return false;
	} else if (!strcmp(cmd, "vanish")) {
		return false;
	}
	return true;
}

static void setup(void)
{
	events[0] = '\0';
	server = (struct fake_qmp){ .on_command = on_command };
	fake_qmp_start(&server);
	cr_assert_eq(qmp_open(&q, server.path, util_deadline_ms(LONG_MS), NULL, on_event, NULL, &err), 0, "%s",
		     err.msg);
}

static void teardown(void)
{
	qmp_close(q);
	fake_qmp_stop(&server);
	json_decref(late);
	late = NULL;
}

TestSuite(qmp, .init = setup, .fini = teardown, .timeout = 60);

static int call(const char *cmd, json_t **ret)
{
	err = (struct ft_error){ 0 };
	return qmp_call(q, cmd, -1, util_deadline_ms(LONG_MS), ret, &err, NULL);
}

Test(qmp, returns_what_came)
{
	json_t *ret;

	cr_assert_eq(qmp_call(q, "echo", -1, util_deadline_ms(LONG_MS), &ret, &err, "{s:s, s:b}", "filename", "/x",
			      "live", 0),
		     0, "%s", err.msg);
	cr_assert_str_eq(json_string_value(json_object_get(ret, "filename")), "/x");
	cr_assert(json_is_false(json_object_get(ret, "live")));
	json_decref(ret);
	cr_assert_eq(call("pieces", &ret), 0, "%s", err.msg);
	cr_assert_str_eq(json_string_value(ret), "whole");
	json_decref(ret);
}

Test(qmp, a_refusal_has_the_command_and_its_words)
{
	json_t *ret;

	cr_assert_eq(call("refuse", &ret), -EREMOTEIO);
	cr_assert_null(ret);
	cr_assert_str_eq(err.msg, "QMP refuse: No such luck");
	/* the connection is as good as before */
	cr_assert_eq(call("echo", NULL), 0, "%s", err.msg);
}

Test(qmp, an_answer_without_meaning_is_an_error)
{
	cr_assert_eq(call("neither", NULL), -EPROTO);
	cr_assert_eq(call("echo", NULL), 0, "%s", err.msg);
}

Test(qmp, silence_ends_at_the_deadline_and_shifts_no_answers)
{
	uint64_t begin = util_now_ns();
	json_t *ret;

	cr_assert_eq(qmp_call(q, "silence", -1, util_deadline_ms(100), NULL, &err, NULL), -ETIMEDOUT);
	cr_assert_str_eq(err.msg, "QMP silence: no answer in time");
	cr_assert_lt(util_now_ns() - begin, UINT64_C(10000000000));
	cr_assert_eq(call("late", &ret), 0, "%s", err.msg);
	cr_assert_str_eq(json_string_value(ret), "the answer to late");
	json_decref(ret);
}

Test(qmp, answers_to_others_are_dropped)
{
	json_t *ret;

	cr_assert_eq(call("stranger", &ret), 0, "%s", err.msg);
	cr_assert_eq(json_integer_value(ret), 4);
	json_decref(ret);
}

Test(qmp, events_come_in_order_also_without_a_command)
{
	uint64_t id;

	cr_assert_eq(call("eventful", NULL), 0);
	cr_assert_str_eq(events, "STOP RESUME ");
	cr_assert_eq(qmp_send(q, "eventful", -1, &id, &err, NULL), 0);
	while (!qmp_poll(q, id))
		usleep(1000);
	cr_assert_str_eq(events, "STOP RESUME STOP RESUME ");
	cr_assert_eq(qmp_wait(q, id, util_deadline_ms(LONG_MS), NULL, &err), 0);
	cr_assert_eq(qmp_pump(q), 0);
}

static bool two_events(void *user)
{
	(void)user;
	return !strcmp(events, "STOP RESUME ");
}

static bool never(void *user)
{
	(void)user;
	return false;
}

Test(qmp, waiting_for_an_event)
{
	uint64_t id;

	cr_assert_eq(qmp_send(q, "eventful", -1, &id, &err, NULL), 0);
	cr_assert_eq(qmp_wait_for(q, two_events, NULL, util_deadline_ms(LONG_MS), &err), 0, "%s", err.msg);
	cr_assert_eq(qmp_wait_for(q, never, NULL, util_deadline_ms(50), &err), -ETIMEDOUT);
	qmp_forget(q, id);
	cr_assert_eq(qmp_wait(q, id, util_deadline_ms(50), NULL, &err), -EINVAL);
}

Test(qmp, descriptors_travel_with_their_command)
{
	char buf[8] = "";
	int fd[2];

	cr_assert_eq(pipe(fd), 0);
	cr_assert_eq(qmp_call(q, "write", fd[1], util_deadline_ms(LONG_MS), NULL, &err, NULL), 0, "%s", err.msg);
	close(fd[1]);
	cr_assert_eq(read(fd[0], buf, sizeof(buf)), 5);
	cr_assert_str_eq(buf, "hello");
	close(fd[0]);
}

Test(qmp, too_many_at_once_is_refused)
{
	uint64_t id[8], one;
	int i;

	for (i = 0; i < 8; i++)
		cr_assert_eq(qmp_send(q, "silence", -1, &id[i], &err, NULL), 0);
	cr_assert_eq(qmp_send(q, "silence", -1, &one, &err, NULL), -EBUSY);
	qmp_forget(q, id[3]);
	cr_assert_eq(call("echo", NULL), 0, "%s", err.msg);
}

Test(qmp, vanishing_is_noticed_at_once_and_for_ever)
{
	static const char *const ends[] = { "vanish", "half" };
	size_t i;

	for (i = 0; i < 2; i++) {
		uint64_t begin = util_now_ns();

		cr_assert_eq(call(ends[i], NULL), -EPIPE);
		cr_assert(strstr(err.msg, "QEMU has closed the connection"), "%s", err.msg);
		cr_assert_lt(util_now_ns() - begin, UINT64_C(10000000000));
		cr_assert_eq(call("echo", NULL), -EPIPE);
		cr_assert_eq(qmp_pump(q), -EPIPE);
		cr_assert_eq(qmp_wait_for(q, never, NULL, util_deadline_ms(LONG_MS), &err), -EPIPE);
		qmp_close(q);
		cr_assert_eq(qmp_open(&q, server.path, util_deadline_ms(LONG_MS), NULL, on_event, NULL, &err), 0, "%s",
			     err.msg);
	}
}

Test(qmp, what_is_not_qmp_is_said_to_be)
{
	cr_assert_eq(call("nonsense", NULL), -EPROTO);
	cr_assert(strstr(err.msg, "not a JSON object"), "%s", err.msg);
	cr_assert_eq(call("echo", NULL), -EPROTO);
}

static void *echo_often(void *arg)
{
	json_int_t i, base = *(int *)arg;
	json_t *ret;

	for (i = base; i < base + 200; i++) {
		if (qmp_call(q, "echo", -1, util_deadline_ms(LONG_MS), &ret, NULL, "{s:I}", "n", i))
			return "failed";
		if (json_integer_value(json_object_get(ret, "n")) != i)
			return "somebody else's answer";
		json_decref(ret);
	}
	return NULL;
}

Test(qmp, threads_get_their_own_answers)
{
	int base[3] = { 0, 1000, 2000 };
	pthread_t t[3];
	void *why;
	int i;

	for (i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, echo_often, &base[i]);
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], &why);
		cr_assert_null(why, "%s", (char *)why);
	}
}

/* ---- opening ------------------------------------------------------------------------------------ */

Test(qmp_open, nobody_there, .timeout = 60)
{
	struct qmp *none;

	cr_assert_eq(qmp_open(&none, "/nonexistent/qmp", util_deadline_ms(50), NULL, NULL, NULL, &err), -ENOENT);
	cr_assert_null(none);
	cr_assert(strstr(err.msg, "/nonexistent/qmp"), "%s", err.msg);
}

static bool dead(void *user)
{
	(void)user;
	return false;
}

Test(qmp_open, a_process_that_died_is_not_waited_for, .timeout = 60)
{
	uint64_t begin = util_now_ns();
	struct qmp *none;

	cr_assert_eq(qmp_open(&none, "/nonexistent/qmp", util_deadline_ms(LONG_MS), dead, NULL, NULL, &err), -EPIPE);
	cr_assert_lt(util_now_ns() - begin, UINT64_C(10000000000));
}

Test(qmp_open, no_greeting, .timeout = 60)
{
	struct fake_qmp mute = { .greeting = "", .on_command = on_command };
	struct qmp *none;

	fake_qmp_start(&mute);
	cr_assert_eq(qmp_open(&none, mute.path, util_deadline_ms(100), NULL, NULL, NULL, &err), -ETIMEDOUT);
	cr_assert(strstr(err.msg, "greeting"), "%s", err.msg);
	fake_qmp_stop(&mute);
}

Test(qmp_open, a_line_without_end_is_bounded, .timeout = 120)
{
	char *endless = malloc((17 << 20) + 1);
	struct fake_qmp flood = { .on_command = on_command };
	struct qmp *none;

	memset(endless, 'x', 17 << 20);
	endless[17 << 20] = '\0';
	flood.greeting = endless;
	fake_qmp_start(&flood);
	cr_assert_eq(qmp_open(&none, flood.path, util_deadline_ms(LONG_MS), NULL, NULL, NULL, &err), -EPROTO);
	cr_assert(strstr(err.msg, "longer than"), "%s", err.msg);
	fake_qmp_stop(&flood);
	free(endless);
}
