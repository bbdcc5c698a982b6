/* SPDX-License-Identifier: MIT */
/* test_control.c - the control protocol without a socket, then over one.  The session is tests/support/fake_session.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "control.h"
#include "fake_session.h"

/* ---- without a socket --------------------------------------------------------------------------- */

static json_t *ask_env(const struct control_env *env, const char *line)
{
	struct control_request rq;
	size_t len;
	char *text;
	json_t *reply;

	control_parse(&rq, line, strlen(line));
	text = control_answer(&rq, env, &len);
	control_request_free(&rq);
	cr_assert(text);
	cr_assert_eq(text[len - 1], '\n');
	cr_assert_null(memchr(text, '\n', len - 1), "a reply is one line");
	reply = json_loadb(text, len, 0, NULL);
	cr_assert(reply, "%.*s", (int)len, text);
	cr_expect_eq(json_integer_value(json_object_get(reply, "v")), 1);
	free(text);
	return reply;
}

static json_t *ask(struct fake_session *f, const char *line)
{
	struct control_env env = { .ops = &fake_ops, .session = f ? fake_handle(f) : NULL };

	return ask_env(&env, line);
}

static const char *text_of(const json_t *reply, const char *key)
{
	const char *t = json_string_value(json_object_get(reply, key));

	return t ? t : "";
}

static const char *data_text(const json_t *reply, const char *key)
{
	return text_of(json_object_get(reply, "data"), key);
}

static json_int_t data_number(const json_t *reply, const char *key)
{
	return json_integer_value(json_object_get(json_object_get(reply, "data"), key));
}

static void expect_ok(json_t *reply)
{
	cr_expect(json_is_true(json_object_get(reply, "ok")), "%s", text_of(reply, "error"));
	cr_expect(json_is_object(json_object_get(reply, "data")));
	json_decref(reply);
}

static void expect_refused(struct fake_session *f, const char *line, const char *code, const char *part)
{
	json_t *reply = ask(f, line);

	cr_expect(json_is_false(json_object_get(reply, "ok")), "%s", line);
	cr_expect_str_eq(text_of(reply, "code"), code, "%s: %s", line, text_of(reply, "code"));
	cr_expect(strstr(text_of(reply, "error"), part), "%s: %s", line, text_of(reply, "error"));
	json_decref(reply);
}

Test(command, what_is_no_request_is_refused)
{
	struct fake_session f;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	expect_refused(&f, "", "bad-request", "not JSON");
	expect_refused(&f, "status", "bad-request", "not JSON");
	expect_refused(&f, "{\"cmd\":\"status\"", "bad-request", "not JSON");
	expect_refused(&f, "{\"cmd\":\"status\",\"cmd\":\"stop\"}", "bad-request", "not JSON");
	expect_refused(&f, "[1,2]", "bad-request", "object");
	expect_refused(&f, "{}", "bad-request", "'cmd'");
	expect_refused(&f, "{\"cmd\":7}", "bad-request", "'cmd'");
	expect_refused(&f, "{\"v\":2,\"cmd\":\"stop\"}", "version", "'v' must be 1");
	expect_refused(&f, "{\"v\":\"1\",\"cmd\":\"stop\"}", "version", "'v' must be 1");
	expect_refused(&f, "{\"id\":[],\"cmd\":\"stop\"}", "bad-request", "'id'");
	expect_refused(&f, "{\"cmd\":\"halt\"}", "unknown-command", "'halt'");
	cr_expect(!f.is_stopped);
	fake_destroy(&f);
}

Test(command, id_comes_back)
{
	struct fake_session f;
	json_t *r;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	r = ask(&f, "{\"v\":1,\"id\":77,\"cmd\":\"ping\"}");
	cr_expect_eq(json_integer_value(json_object_get(r, "id")), 77);
	json_decref(r);
	r = ask(&f, "{\"v\":1,\"id\":\"a\",\"cmd\":\"nonsense\"}");
	cr_expect_str_eq(text_of(r, "id"), "a");
	json_decref(r);
	r = ask(&f, "{\"cmd\":\"ping\"}");
	cr_expect_null(json_object_get(r, "id"));
	json_decref(r);
	fake_destroy(&f);
}

Test(command, without_a_session)
{
	expect_refused(NULL, "{\"cmd\":\"status\"}", "no-session", "no session");
	expect_refused(NULL, "{\"cmd\":\"failover\",\"force\":true}", "no-session", "no session");
	expect_ok(ask(NULL, "{\"cmd\":\"ping\"}"));
	expect_ok(ask(NULL, "{\"cmd\":\"options\"}"));
}

Test(command, status_and_stats)
{
	struct fake_session f;
	json_t *r, *dist;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	r = ask(&f, "{\"cmd\":\"status\"}");
	cr_expect_str_eq(data_text(r, "state"), "protected");
	cr_expect_str_eq(data_text(r, "role"), "primary");
	cr_expect_str_eq(data_text(r, "peer"), "192.0.2.7:7000");
	cr_expect_str_eq(data_text(r, "bottleneck"), "interval");
	cr_expect_str_eq(data_text(r, "interval_mode"), "fixed");
	cr_expect_str_eq(data_text(r, "interval_reason"), "fixed");
	cr_expect_str_eq(data_text(r, "epoch_end"), "interval");
	cr_expect(json_is_true(json_object_get(json_object_get(r, "data"), "protected")));
	cr_expect_eq(data_number(r, "epoch_running"), 1002);
	cr_expect_eq(data_number(r, "epoch_applied"), 999);
	cr_expect_eq(data_number(r, "state_age_ns"), 65000000000);
	cr_expect_eq(data_number(r, "memory_cap_bytes"), 256 << 20);
	json_decref(r);

	r = ask(&f, "{\"cmd\":\"stats\"}");
	dist = json_object_get(json_object_get(r, "data"), "dist");
	cr_expect_eq(json_object_size(dist), FT_METRIC_COUNT);
	cr_expect_eq(json_integer_value(json_object_get(json_object_get(dist, "pause"), "p99")), 9000);
	cr_expect_eq(json_integer_value(json_object_get(json_object_get(dist, "stop"), "min")), 1001);
	cr_expect_str_eq(text_of(json_object_get(dist, "pause"), "unit"), "ns");
	cr_expect_eq(json_object_size(json_object_get(json_object_get(r, "data"), "counter")), FT_COUNTER_COUNT);
	json_decref(r);
	fake_destroy(&f);
}

/* A reason that holds octets of a peer which are no UTF-8 costs those octets, not the reply. */
Test(command, foreign_octets)
{
	struct fake_session f;
	json_t *r;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_ALONE);
	strcpy(f.status.reason, "peer said \xff\xfe.");
	r = ask(&f, "{\"cmd\":\"status\"}");
	cr_expect_str_eq(data_text(r, "reason"), "peer said ??.");
	json_decref(r);
	fake_destroy(&f);
}

Test(command, settings)
{
	struct fake_session f;
	json_t *r;
	size_t n;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	ft_options(&n);
	r = ask(&f, "{\"cmd\":\"options\"}");
	cr_expect_eq(json_array_size(json_object_get(json_object_get(r, "data"), "options")), n);
	json_decref(r);
	r = ask(&f, "{\"cmd\":\"set\",\"name\":\"interval\",\"value\":\"25\"}");
	cr_expect_str_eq(data_text(r, "interval"), "25");
	json_decref(r);
	expect_ok(ask(&f, "{\"cmd\":\"set\",\"name\":\"interval\",\"value\":20}"));
	cr_expect_eq(f.cfg.interval_ms, 20);
	r = ask(&f, "{\"cmd\":\"get\",\"name\":\"interval\"}");
	cr_expect_str_eq(data_text(r, "interval"), "20");
	json_decref(r);
	r = ask(&f, "{\"cmd\":\"get\"}");
	cr_expect_str_eq(data_text(r, "on-loss"), "continue");
	cr_expect_null(json_object_get(json_object_get(r, "data"), "listen"), "a primary has no 'listen'");
	json_decref(r);
	expect_refused(&f, "{\"cmd\":\"get\",\"name\":\"intervall\"}", "not-found", "intervall");
	expect_refused(&f, "{\"cmd\":\"get\",\"name\":7}", "bad-argument", "'name'");
	expect_refused(&f, "{\"cmd\":\"set\",\"name\":\"interval\"}", "bad-argument", "'value'");
	expect_refused(&f, "{\"cmd\":\"set\",\"value\":\"1\"}", "bad-argument", "'name'");
	expect_refused(&f, "{\"cmd\":\"set\",\"name\":\"interval\",\"value\":\"soon\"}", "bad-argument", "a time");
	expect_refused(&f, "{\"cmd\":\"set\",\"name\":\"interval\",\"value\":-1}", "bad-argument", "a time");
	expect_refused(&f, "{\"cmd\":\"set\",\"name\":\"lanes\",\"value\":2}", "refused", "while running");
	cr_expect_eq(f.cfg.interval_ms, 20);
	fake_destroy(&f);
}

Test(command, acting)
{
	struct fake_session f;
	json_t *r;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	r = ask(&f, "{\"cmd\":\"checkpoint\",\"timeout_ms\":5000}");
	cr_expect_eq(data_number(r, "epoch"), 1002);
	json_decref(r);
	expect_refused(&f, "{\"cmd\":\"checkpoint\",\"timeout_ms\":-1}", "bad-argument", "timeout_ms");
	expect_refused(&f, "{\"cmd\":\"checkpoint\",\"timeout_ms\":\"1\"}", "bad-argument", "timeout_ms");
	expect_refused(&f, "{\"cmd\":\"checkpoint\",\"timeout_ms\":3600001}", "bad-argument", "timeout_ms");
	fake_hold_checkpoint(&f, true);
	expect_refused(&f, "{\"cmd\":\"checkpoint\",\"timeout_ms\":10}", "timeout", "not acknowledged");
	expect_ok(ask(&f, "{\"cmd\":\"pause\"}"));
	cr_expect(f.is_paused);
	expect_ok(ask(&f, "{\"cmd\":\"resume\"}"));
	cr_expect(!f.is_paused);
	expect_ok(ask(&f, "{\"cmd\":\"stop\"}"));
	cr_expect(f.is_stopped);
	fake_hold_checkpoint(&f, false);
	expect_refused(&f, "{\"cmd\":\"checkpoint\"}", "not-protected", "not protected");
	fake_destroy(&f);
}

Test(command, failover_has_a_code_for_each_outcome)
{
	static const char *const code[] = { "",           "",     "not-secondary", "no-image",
					    "peer-alive", "busy", "failed",        "not-granted" };
	struct fake_session f;
	json_t *r;

	fake_init(&f, FT_ROLE_SECONDARY, FT_STATE_STANDBY);
	for (enum ft_failover_outcome o = FT_FAILOVER_DONE; o <= FT_FAILOVER_NOT_GRANTED; o++) {
		f.outcome = o;
		r = ask(&f, "{\"cmd\":\"failover\"}");
		cr_expect_eq(json_is_true(json_object_get(r, "ok")), o <= FT_FAILOVER_ALREADY);
		cr_expect_str_eq(text_of(r, "code"), code[o]);
		cr_expect_str_eq(data_text(r, "outcome"), o == 0 ? "done" : o == 1 ? "already" : code[o]);
		cr_expect_eq(data_number(r, "total_ns"), 2001000);
		json_decref(r);
		cr_expect(!f.was_forced);
	}
	f.outcome = FT_FAILOVER_DONE;
	expect_ok(ask(&f, "{\"cmd\":\"failover\",\"force\":true}"));
	cr_expect(f.was_forced);
	f.was_forced = false;
	expect_refused(&f, "{\"cmd\":\"failover\",\"force\":1}", "bad-argument", "'force'");
	cr_expect(!f.was_forced);
	fake_destroy(&f);
}

static bool revoke_second(void *user)
{
	return ++*(int *)user == 2;
}

Test(command, wait)
{
	struct fake_session f;
	int asked = 0;
	struct control_env env = {
		.ops = &fake_ops, .session = fake_handle(&f), .is_revoked = revoke_second, .user = &asked
	};
	json_t *r;

	fake_init(&f, FT_ROLE_PRIMARY, FT_STATE_ALONE);
	r = ask(&f, "{\"cmd\":\"wait\",\"states\":[\"protected\",\"alone\"]}");
	cr_expect_str_eq(data_text(r, "state"), "alone");
	json_decref(r);
	expect_ok(ask(&f, "{\"cmd\":\"wait\",\"states\":\"alone\",\"timeout_ms\":0}"));
	expect_refused(&f, "{\"cmd\":\"wait\",\"states\":\"protected\",\"timeout_ms\":150}", "timeout", "150 ms");
	expect_refused(&f, "{\"cmd\":\"wait\",\"states\":\"safe\"}", "bad-argument", "'safe'");
	expect_refused(&f, "{\"cmd\":\"wait\",\"states\":[]}", "bad-argument", "'states'");
	expect_refused(&f, "{\"cmd\":\"wait\",\"states\":[3]}", "bad-argument", "no text");
	expect_refused(&f, "{\"cmd\":\"wait\"}", "bad-argument", "'states'");
	r = ask_env(&env, "{\"cmd\":\"wait\",\"states\":\"protected\",\"timeout_ms\":600000}");
	cr_expect_str_eq(text_of(r, "code"), "canceled");
	cr_expect_eq(asked, 2);
	json_decref(r);
	fake_destroy(&f);
}

static int vmm_command(void *user, const char *cmd, const struct json_t *args, struct json_t **reply,
		       struct ft_error *err)
{
	(void)user;
	if (strcmp(cmd, "protect") == 0) {
		*reply = json_pack("{s:O}", "peer", json_object_get(args, "peer"));
		return 0;
	}
	return strcmp(cmd, "break") ? -ENOSYS : err_set(err, -EBUSY, "it is broken");
}

Test(command, those_of_the_vmm)
{
	struct control_env env = { .ops = &fake_ops, .extra = vmm_command };
	json_t *r = ask_env(&env, "{\"cmd\":\"protect\",\"peer\":\"h:1\"}");

	cr_expect_str_eq(data_text(r, "peer"), "h:1");
	json_decref(r);
	r = ask_env(&env, "{\"cmd\":\"break\"}");
	cr_expect_str_eq(text_of(r, "code"), "busy");
	cr_expect_str_eq(text_of(r, "error"), "it is broken");
	json_decref(r);
	r = ask_env(&env, "{\"cmd\":\"other\"}");
	cr_expect_str_eq(text_of(r, "code"), "unknown-command");
	json_decref(r);
}

/* ---- over a socket ------------------------------------------------------------------------------ */

static char dir[] = "/tmp/ft-test-control-XXXXXX", path[64];
static struct fake_session fake;
static struct ft_control *control;
static struct ft_control *extra_control; /* what `switch` gives a session to */

static int switch_command(void *user, const char *cmd, const struct json_t *args, struct json_t **reply,
			  struct ft_error *err)
{
	(void)user;
	(void)args;
	(void)reply;
	(void)err;
	if (strcmp(cmd, "switch"))
		return -ENOSYS;
	ft_control_set_session(extra_control, NULL);
	return 0;
}

static void serve(void)
{
	struct ft_error err = { 0 };

	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	fake_init(&fake, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	cr_assert_eq(control_open(&control, path, &fake_ops, switch_command, NULL, &err), 0, "%s", err.msg);
	extra_control = control;
	ft_control_set_session(control, fake_handle(&fake));
}

static void end(void)
{
	ft_control_close(control);
	cr_expect_eq(access(path, F_OK), -1, "the socket is still there");
	fake_destroy(&fake);
	cr_expect_eq(rmdir(dir), 0, "something was left behind");
}

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval t = { .tv_sec = 20 };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	cr_assert_geq(fd, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0, "%s", strerror(errno));
	cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	cr_assert_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* One line; NULL at the end. */
static json_t *hear(int fd)
{
	static char line[1 << 20];
	size_t len = 0;
	json_t *j;

	while (len < sizeof(line) && recv(fd, line + len, 1, 0) == 1)
		if (line[len++] == '\n') {
			j = json_loadb(line, len, 0, NULL);
			cr_assert(j, "%.*s", (int)len, line);
			return j;
		}
	return NULL;
}

static void expect_code(int fd, const char *code)
{
	json_t *r = hear(fd);

	cr_assert(r, "no answer");
	cr_expect_str_eq(text_of(r, "code"), code, "%s: %s", text_of(r, "code"), text_of(r, "error"));
	json_decref(r);
}

static void expect_served(void)
{
	int fd = dial();

	say(fd, "{\"cmd\":\"status\"}\n");
	expect_code(fd, "");
	close(fd);
}

TestSuite(control, .init = serve, .fini = end, .timeout = 120);

Test(control, one_client)
{
	int fd = dial();
	struct stat st;

	cr_assert_eq(stat(path, &st), 0);
	cr_expect_eq(st.st_mode & 0777, 0600);
	say(fd, "{\"cmd\":\"ping\"}\n");
	expect_code(fd, "");
	say(fd, "{\"cmd\":");
	say(fd, "\"status\"}\n\n");
	expect_code(fd, "");
	close(fd);
	expect_served();
}

/* Many lines at once are answered one by one in order, also behind the end of input and without a last newline. */
Test(control, many_lines_at_once)
{
	int fd = dial();
	char line[64];

	for (int i = 0; i < 200; i++) {
		snprintf(line, sizeof(line), "{\"id\":%d,\"cmd\":\"%s\"}\n", i, i % 10 ? "ping" : "checkpoint");
		say(fd, line);
	}
	say(fd, "{\"id\":200,\"cmd\":\"ping\"}");
	shutdown(fd, SHUT_WR);
	for (int i = 0; i <= 200; i++) {
		json_t *r = hear(fd);

		cr_assert(r, "%d", i);
		cr_assert_eq(json_integer_value(json_object_get(r, "id")), i);
		json_decref(r);
	}
	cr_expect_null(hear(fd));
	close(fd);
}

Test(control, too_long_a_line)
{
	static char big[CONTROL_LINE_MAX];
	int fd = dial();

	memset(big, ' ', sizeof(big));
	cr_assert_eq(send(fd, big, sizeof(big), MSG_NOSIGNAL), sizeof(big));
	expect_code(fd, "too-long");
	cr_expect_null(hear(fd));
	close(fd);
	expect_served();

	fd = dial();
	big[sizeof(big) - 1] = '\n';
	memcpy(big, "{\"cmd\":\"ping\"}", 14);
	cr_assert_eq(send(fd, big, sizeof(big), MSG_NOSIGNAL), sizeof(big));
	expect_code(fd, "");
	close(fd);
}

Test(control, status_does_not_wait_for_a_checkpoint)
{
	int slow = dial();

	fake_hold_checkpoint(&fake, true);
	say(slow, "{\"cmd\":\"checkpoint\",\"timeout_ms\":60000}\n{\"cmd\":\"ping\"}\n");
	cr_assert(fake_await_checkpoint(&fake));
	expect_served();
	fake_hold_checkpoint(&fake, false);
	expect_code(slow, "");
	expect_code(slow, "");
	close(slow);
}

Test(control, client_that_leaves_during_a_command)
{
	int fd = dial();

	fake_hold_checkpoint(&fake, true);
	say(fd, "{\"cmd\":\"checkpoint\",\"timeout_ms\":60000}\n");
	cr_assert(fake_await_checkpoint(&fake));
	close(fd);
	expect_served();
	fake_hold_checkpoint(&fake, false);
	expect_served();
}

/* One client asks and does not read: others do not notice. */
Test(control, client_that_does_not_read)
{
	int fd = dial();
	const char *line = "{\"cmd\":\"options\"}\n";

	cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	for (int i = 0; i < 100000 && send(fd, line, strlen(line), MSG_NOSIGNAL) > 0; i++)
		;
	for (int i = 0; i < 20; i++)
		expect_served();
	close(fd);
}

/* Sixteen that say nothing keep nobody out for longer than the idle time. */
Test(control, silent_clients)
{
	int fd[CONTROL_CLIENTS_MAX], late;
	uint64_t deadline = deadline_in_ms(60000);
	bool served = false;
	json_t *r;

	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		fd[i] = dial();
		say(fd[i], "{\"cmd\":\"ping\"}\n{\"cmd");
		expect_code(fd[i], "");
	}
	late = dial();
	expect_code(late, "busy");
	close(late);
	while (!served && now_ns() < deadline) {
		late = dial();
		if (send(late, "{\"cmd\":\"status\"}\n", 17, MSG_NOSIGNAL) < 0)
			cr_assert_eq(errno, EPIPE); /* turned away already */
		r = hear(late);
		served = r && json_is_true(json_object_get(r, "ok"));
		json_decref(r);
		close(late);
		if (!served)
			poll(NULL, 0, 200);
	}
	cr_expect(served);
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++)
		close(fd[i]);
}

static void *unset(void *arg)
{
	ft_control_set_session(control, NULL);
	fake_retire(&fake);
	*(_Atomic bool *)arg = true;
	return NULL;
}

Test(control, taking_the_session_away_waits_for_its_commands)
{
	_Atomic bool gone = false;
	int fd = dial();
	pthread_t t;

	fake_hold_checkpoint(&fake, true);
	say(fd, "{\"cmd\":\"checkpoint\",\"timeout_ms\":60000}\n");
	cr_assert(fake_await_checkpoint(&fake));
	cr_assert_eq(thread_start(&t, "unset", unset, (void *)&gone), 0);
	poll(NULL, 0, 300);
	cr_expect(!gone, "it did not wait");
	fake_hold_checkpoint(&fake, false);
	pthread_join(t, NULL);
	cr_expect(gone);
	expect_code(fd, "");
	say(fd, "{\"cmd\":\"status\"}\n");
	expect_code(fd, "no-session");
	cr_expect_eq(fake.late_uses, 0);
	close(fd);
}

Test(control, taking_the_session_away_ends_wait)
{
	int fd = dial();
	uint64_t before = now_ns();

	say(fd, "{\"cmd\":\"wait\",\"states\":\"alone\",\"timeout_ms\":600000}\n");
	poll(NULL, 0, 100);
	ft_control_set_session(control, NULL);
	cr_expect_lt(now_ns() - before, 30 * NS_PER_S);
	expect_code(fd, "canceled");
	close(fd);
}

Test(control, a_command_of_the_vmm_may_take_the_session_away)
{
	int fd = dial();

	say(fd, "{\"cmd\":\"switch\"}\n{\"cmd\":\"status\"}\n");
	expect_code(fd, "");
	expect_code(fd, "no-session");
	close(fd);
}

Test(control, closing_ends_wait_and_answers_it)
{
	int fd = dial();

	say(fd, "{\"cmd\":\"wait\",\"states\":\"alone\",\"timeout_ms\":600000}\n");
	poll(NULL, 0, 100);
	ft_control_close(control);
	control = NULL;
	expect_code(fd, "canceled");
	cr_expect_null(hear(fd));
	close(fd);
}

/* ---- the socket file ---------------------------------------------------------------------------- */

static int open_here(struct ft_control **out, struct ft_error *err)
{
	return control_open(out, path, &fake_ops, NULL, NULL, err);
}

Test(control, a_live_socket_is_refused)
{
	struct ft_control *second;
	struct ft_error err = { 0 };

	cr_expect_eq(open_here(&second, &err), -EADDRINUSE);
	cr_expect(strstr(err.msg, "another process serves it"), "%s", err.msg);
	cr_expect_null(second);
	expect_served();
}

Test(control, a_dead_socket_is_replaced)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ft_error err = { 0 };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	ft_control_close(control);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(fd);
	cr_assert_eq(open_here(&control, &err), 0, "%s", err.msg);
	ft_control_set_session(control, fake_handle(&fake));
	expect_served();
}

Test(control, anything_else_there_is_refused)
{
	struct ft_control *second;
	struct ft_error err = { 0 };
	int fd;

	ft_control_close(control);
	control = NULL;
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	cr_assert_geq(fd, 0);
	close(fd);
	cr_expect_eq(open_here(&second, &err), -EEXIST);
	cr_expect_eq(access(path, F_OK), 0);
	unlink(path);
}

Test(control, impossible_paths_are_refused)
{
	struct ft_control *second;
	struct ft_error err = { 0 };
	char longer[200];

	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	cr_expect_eq(control_open(&second, longer, &fake_ops, NULL, NULL, &err), -ENAMETOOLONG);
	cr_expect_eq(control_open(&second, "", &fake_ops, NULL, NULL, &err), -ENAMETOOLONG);
	cr_expect_eq(control_open(&second, "/nonexistent/s", &fake_ops, NULL, NULL, &err), -ENOENT);
	cr_expect(strstr(err.msg, "/nonexistent"), "%s", err.msg);
}

/* A socket that somebody else put in our place stays. */
Test(control, closing_removes_only_its_own_socket)
{
	struct ft_error err = { 0 };
	struct ft_control *second;

	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(open_here(&second, &err), 0, "%s", err.msg);
	ft_control_close(control);
	cr_expect_eq(access(path, F_OK), 0);
	control = second;
}
