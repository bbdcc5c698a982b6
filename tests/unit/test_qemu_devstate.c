/* SPDX-License-Identifier: MIT */
/* test_qemu_devstate.c - the three ways of taking device state, against a QEMU of our own that stops, saves, refuses and dies as it is
 * told.  It runs in this process, so a descriptor's number "in QEMU" is its number here. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devstate.h"
#include "fake_qmp.h"

#define LONG_MS 20000

/* What the QEMU does. */
static size_t state_size;
static bool refuse_xen, refuse_migrate, fail_migrate, die_in_save;
static unsigned answer_us; /* from the end of the state to the answer */
static atomic_int refuse_cont;
static atomic_bool running;
static atomic_int nr_xen, nr_stop, nr_cont, nr_migrate;
static int state_fd = -1;

static struct fake_qmp server;
static struct qmp *q;
static struct devstate *d;
static struct ft_error err;

static void set_running(struct fake_qmp *f, bool on)
{
	if (atomic_exchange(&running, on) != on)
		fake_qmp_event(f, on ? "RESUME" : "STOP");
}

static bool write_state(int fd)
{
	size_t i;

	for (i = 0; i < state_size; i += 1024) {
		char block[1024];
		size_t n = state_size - i < sizeof(block) ? state_size - i : sizeof(block);

		memset(block, 'a' + (int)(i / 1024 % 26), sizeof(block));
		if (write(fd, block, n) != (ssize_t)n)
			return false;
	}
	return true;
}

static bool xen_save(struct fake_qmp *f, const json_t *args, json_t *id)
{
	bool was_running = atomic_load(&running), ok;
	int fd;

	atomic_fetch_add(&nr_xen, 1);
	if (refuse_xen) {
		fake_qmp_error(f, id, "The command xen-save-devices-state has not been found");
		return true;
	}
	cr_assert(json_is_false(json_object_get(args, "live")));
	set_running(f, false);
	fd = open(json_string_value(json_object_get(args, "filename")), O_WRONLY | O_CREAT | O_TRUNC, 0660);
	cr_assert_geq(fd, 0);
	ok = write_state(fd);
	close(fd);
	if (die_in_save)
		return false;
	usleep(answer_us);
	if (was_running)
		set_running(f, true);
	if (ok)
		fake_qmp_return(f, id, NULL);
	else
		fake_qmp_error(f, id, "An IO error has occurred");
	return true;
}

static bool migrate(struct fake_qmp *f, json_t *id)
{
	char line[128];

	atomic_fetch_add(&nr_migrate, 1);
	if (refuse_migrate) {
		fake_qmp_error(f, id, "blocked");
		return true;
	}
	fake_qmp_return(f, id, NULL);
	cr_assert(write_state(state_fd));
	close(state_fd);
	state_fd = -1;
	snprintf(line, sizeof(line), "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"%s\"}}\r\n",
		 fail_migrate ? "failed" : "completed");
	fake_qmp_say(f, "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"setup\"}}\r\n");
	fake_qmp_say(f, line);
	return true;
}

static bool on_command(struct fake_qmp *f, const char *cmd, json_t *args, json_t *id, int fd)
{
	if (!strcmp(cmd, "add-fd")) {
		fake_qmp_return(f, id, json_pack("{s:i, s:i}", "fd", fd, "fdset-id", 1));
		return true;
	}
	if (!strcmp(cmd, "xen-save-devices-state"))
		return xen_save(f, args, id);
	if (!strcmp(cmd, "migrate") || !strcmp(cmd, "migrate-incoming"))
		return migrate(f, id);
	if (!strcmp(cmd, "getfd"))
		state_fd = fd;
	if (!strcmp(cmd, "stop")) {
		atomic_fetch_add(&nr_stop, 1);
		set_running(f, false);
	}
	if (!strcmp(cmd, "cont")) {
		atomic_fetch_add(&nr_cont, 1);
		if (atomic_load(&refuse_cont) > 0) {
			atomic_fetch_sub(&refuse_cont, 1);
			fake_qmp_error(f, id, "Migration is not finalized yet");
			return true;
		}
		set_running(f, true);
	}
	fake_qmp_return(f, id, NULL);
	return true;
}

static void on_event(void *user, const char *name, const json_t *data)
{
	(void)user;
	if (d)
		devstate_event(d, name, data);
}

static void open_with(enum devstate_method method, bool picture)
{
	cr_assert_eq(devstate_open(&d, q, method, picture, true, &err), 0, "%s", err.msg);
	devstate_set_running(d, atomic_load(&running));
}

static void setup(void)
{
	state_size = 58000;
	atomic_store(&running, true);
	server = (struct fake_qmp){ .on_command = on_command };
	fake_qmp_start(&server);
	cr_assert_eq(qmp_open(&q, server.path, util_deadline_ms(LONG_MS), NULL, on_event, NULL, &err), 0, "%s",
		     err.msg);
}

static void teardown(void)
{
	devstate_close(d);
	d = NULL;
	qmp_close(q);
	fake_qmp_stop(&server);
}

TestSuite(devstate, .init = setup, .fini = teardown, .timeout = 120);

/* ---- where the state goes ----------------------------------------------------------------------- */

static char taken[1 << 20];
static size_t nr_taken, max_taken = sizeof(taken);

static void *buffer(void *user, size_t want, size_t *cap)
{
	(void)user;
	*cap = max_taken - nr_taken;
	return *cap >= want ? taken + nr_taken : NULL;
}

static void advance(void *user, size_t len)
{
	(void)user;
	nr_taken += len;
}

static const struct devstate_sink sink = { buffer, advance, NULL };

static void check_taken(void)
{
	cr_assert_eq(nr_taken, state_size, "%zu octets", nr_taken);
	for (size_t i = 0; i < nr_taken; i++)
		cr_assert_eq(taken[i], 'a' + (int)(i / 1024 % 26), "octet %zu", i);
}

/* One checkpoint, as a session makes it. */
static void checkpoint(void)
{
	nr_taken = 0;
	cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
	cr_assert_not(atomic_load(&running));
	usleep(20000);
	cr_assert_not(atomic_load(&running), "the guest ran during the pause");
	cr_assert_eq(devstate_save(d, &sink, &err), 0, "%s", err.msg);
	check_taken();
	cr_assert_eq(devstate_resume(d, &err), 0, "%s", err.msg);
	cr_assert(atomic_load(&running));
	cr_assert(devstate_running(d));
}

Test(devstate, pipe_takes_one_command)
{
	open_with(DEVSTATE_PIPE, false);
	for (int i = 0; i < 5; i++)
		checkpoint();
	cr_assert_eq(atomic_load(&nr_xen), 5);
	cr_assert_eq(atomic_load(&nr_stop) + atomic_load(&nr_cont), 0);
}

/* ftqemu's main thread delivers events meanwhile, and so may read the answer that the epoch's thread waits for. */
static atomic_bool pumping;

static void *pump(void *arg)
{
	(void)arg;
	while (atomic_load(&pumping))
		qmp_pump(q);
	return NULL;
}

Test(devstate, an_answer_that_another_thread_reads)
{
	pthread_t t;

	open_with(DEVSTATE_PIPE, false);
	answer_us = 2000; /* so that both wait for it */
	atomic_store(&pumping, true);
	cr_assert_eq(pthread_create(&t, NULL, pump, NULL), 0);
	for (int i = 0; i < 50; i++)
		checkpoint();
	atomic_store(&pumping, false);
	pthread_join(t, NULL);
}

Test(devstate, stopcont)
{
	open_with(DEVSTATE_STOPCONT, false);
	for (int i = 0; i < 5; i++)
		checkpoint();
	state_size = 100; /* a shorter one after a longer one */
	checkpoint();
	cr_assert_eq(atomic_load(&nr_stop), 6);
	cr_assert_eq(atomic_load(&nr_cont), 6);
}

Test(devstate, migrate)
{
	open_with(DEVSTATE_MIGRATE, false);
	for (int i = 0; i < 5; i++)
		checkpoint();
	cr_assert_eq(atomic_load(&nr_migrate), 5);
	cr_assert_eq(atomic_load(&nr_xen), 0);
}

Test(devstate, a_refused_cont_is_tried_again)
{
	open_with(DEVSTATE_MIGRATE, false);
	atomic_store(&refuse_cont, 3);
	checkpoint();
	cr_assert_eq(atomic_load(&nr_cont), 4);
}

Test(devstate, a_guest_that_stands_stays)
{
	static const enum devstate_method methods[] = { DEVSTATE_PIPE, DEVSTATE_STOPCONT };

	atomic_store(&running, false);
	for (int i = 0; i < 2; i++) {
		open_with(methods[i], false);
		nr_taken = 0;
		cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
		cr_assert_eq(devstate_save(d, &sink, &err), 0, "%s", err.msg);
		check_taken();
		cr_assert_eq(devstate_resume(d, &err), 0, "%s", err.msg);
		cr_assert_not(atomic_load(&running));
		devstate_close(d);
	}
	d = NULL;
	cr_assert_eq(atomic_load(&nr_cont), 0);
}

/* ---- which way ---------------------------------------------------------------------------------- */

Test(devstate, auto_takes_the_pipe)
{
	open_with(DEVSTATE_AUTO, false);
	cr_assert_eq(devstate_choose(d, &err), 0, "%s", err.msg);
	cr_assert_eq(devstate_method(d), DEVSTATE_PIPE);
	cr_assert(atomic_load(&running));
	checkpoint();
}

Test(devstate, auto_leaves_the_pipe_for_short_states)
{
	static const size_t sizes[] = { 1, 1000, 4096, 4097, 8191 };

	for (int i = 0; i < 5; i++) {
		state_size = sizes[i];
		open_with(DEVSTATE_AUTO, false);
		cr_assert_eq(devstate_choose(d, &err), 0, "%zu: %s", sizes[i], err.msg);
		cr_assert_eq(devstate_method(d), DEVSTATE_STOPCONT, "%zu", sizes[i]);
		checkpoint();
		devstate_close(d);
	}
	d = NULL;
}

Test(devstate, auto_takes_migrate_for_pictures)
{
	open_with(DEVSTATE_AUTO, true);
	cr_assert_eq(devstate_choose(d, &err), 0, "%s", err.msg);
	cr_assert_eq(devstate_method(d), DEVSTATE_MIGRATE);
	checkpoint();
	devstate_close(d);
	refuse_migrate = true;
	open_with(DEVSTATE_AUTO, true);
	cr_assert_eq(devstate_choose(d, &err), 0, "%s", err.msg);
	cr_assert_eq(devstate_method(d), DEVSTATE_PIPE);
}

Test(devstate, auto_takes_migrate_where_xen_is_missing)
{
	refuse_xen = true;
	open_with(DEVSTATE_AUTO, false);
	cr_assert_eq(devstate_choose(d, &err), 0, "%s", err.msg);
	cr_assert_eq(devstate_method(d), DEVSTATE_MIGRATE);
	checkpoint();
}

Test(devstate, no_way_is_left)
{
	refuse_xen = refuse_migrate = true;
	open_with(DEVSTATE_AUTO, false);
	cr_assert_lt(devstate_choose(d, &err), 0);
	cr_assert(strstr(err.msg, "device state cannot be taken"), "%s", err.msg);
	cr_assert(atomic_load(&running), "the guest was left paused");
}

Test(devstate, a_chosen_way_is_not_left)
{
	state_size = 1000;
	open_with(DEVSTATE_PIPE, false);
	cr_assert_lt(devstate_choose(d, &err), 0);
	cr_assert(strstr(err.msg, "fits into the pipe"), "%s", err.msg);
	cr_assert_eq(devstate_method(d), DEVSTATE_PIPE);
	cr_assert(atomic_load(&running));
}

Test(devstate, falls_back_within_a_pause)
{
	open_with(DEVSTATE_AUTO, false);
	checkpoint();
	cr_assert_eq(devstate_method(d), DEVSTATE_PIPE);
	state_size = 2000; /* a device was unplugged, say */
	checkpoint();
	cr_assert_eq(devstate_method(d), DEVSTATE_STOPCONT);
}

Test(devstate, does_not_fall_back_to_letting_go_of_the_disks)
{
	refuse_xen = true;
	state_size = 2000; /* too little for pipe */
	open_with(DEVSTATE_AUTO, false);
	devstate_keep_disks(d);
	cr_assert_lt(devstate_choose(d, &err), 0);
	cr_assert_eq(atomic_load(&nr_migrate), 0);
	cr_assert(atomic_load(&running));
}

Test(devstate, migrate_without_a_bare_stream_is_refused)
{
	cr_assert_eq(devstate_open(&d, q, DEVSTATE_MIGRATE, false, false, &err), -ENOTSUP);
	cr_assert(strstr(err.msg, "send-configuration"), "%s", err.msg);
}

/* ---- when it goes wrong ------------------------------------------------------------------------- */

Test(devstate, a_pause_that_is_given_up)
{
	static const enum devstate_method methods[] = { DEVSTATE_PIPE, DEVSTATE_STOPCONT, DEVSTATE_MIGRATE };

	for (int i = 0; i < 3; i++) {
		open_with(methods[i], false);
		cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
		cr_assert_eq(devstate_resume(d, &err), 0, "%s", err.msg);
		cr_assert(atomic_load(&running));
		cr_assert_eq(devstate_resume(d, &err), 0, "twice");
		checkpoint();
		devstate_close(d);
	}
	d = NULL;
}

Test(devstate, a_state_that_is_too_long)
{
	static const enum devstate_method methods[] = { DEVSTATE_PIPE, DEVSTATE_STOPCONT, DEVSTATE_MIGRATE };

	for (int i = 0; i < 3; i++) {
		open_with(methods[i], false);
		nr_taken = 0;
		max_taken = 20000;
		cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
		cr_assert_eq(devstate_save(d, &sink, &err), -EFBIG);
		cr_assert_eq(devstate_resume(d, &err), 0, "%s", err.msg);
		cr_assert(atomic_load(&running));
		max_taken = sizeof(taken);
		checkpoint();
		devstate_close(d);
	}
	d = NULL;
}

Test(devstate, a_migration_that_fails)
{
	open_with(DEVSTATE_MIGRATE, false);
	fail_migrate = true;
	cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
	cr_assert_eq(devstate_save(d, &sink, &err), -EIO);
	cr_assert_eq(devstate_resume(d, &err), 0, "%s", err.msg);
	cr_assert(atomic_load(&running));
	fail_migrate = false;
	checkpoint();
}

Test(devstate, qemu_dies_during_a_pause)
{
	static const enum devstate_method methods[] = { DEVSTATE_PIPE, DEVSTATE_STOPCONT };

	for (int i = 0; i < 2; i++) {
		uint64_t begin = util_now_ns();

		die_in_save = true;
		open_with(methods[i], false);
		nr_taken = 0;
		cr_assert_eq(devstate_pause(d, &err), 0, "%s", err.msg);
		cr_assert_lt(devstate_save(d, &sink, &err), 0);
		cr_assert(strstr(err.msg, "closed the connection"), "%s", err.msg);
		cr_assert_lt(devstate_resume(d, &err), 0);
		cr_assert_lt(util_now_ns() - begin, UINT64_C(8000000000), "it was waited for a dead QEMU");
		devstate_close(d);
		qmp_close(q);
		atomic_store(&running, true);
		d = NULL;
		cr_assert_eq(qmp_open(&q, server.path, util_deadline_ms(LONG_MS), NULL, on_event, NULL, &err), 0, "%s",
			     err.msg);
	}
}

/* ---- standby ------------------------------------------------------------------------------------ */

Test(devstate, load)
{
	open_with(DEVSTATE_AUTO, false);
	state_size = 0;
	cr_assert_eq(devstate_load(d, "state", 5, &err), 0, "%s", err.msg);
	fail_migrate = true;
	cr_assert_eq(devstate_load(d, "state", 5, &err), -EIO);
	refuse_migrate = true;
	cr_assert_eq(devstate_load(d, "state", 5, &err), -EREMOTEIO);
}

Test(devstate, names)
{
	enum devstate_method m;

	cr_assert_eq(devstate_method_parse("migrate", &m), 0);
	cr_assert_eq(m, DEVSTATE_MIGRATE);
	cr_assert_str_eq(devstate_method_name(m), "migrate");
	cr_assert_eq(devstate_method_parse("fifo", &m), -EINVAL);
}
