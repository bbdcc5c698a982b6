/* SPDX-License-Identifier: MIT */
/* disk_mirror.c - see disk_mirror.h.
 * Names in QEMU: job ft-mirror-N, its filter ft-filter-N, the target's node ft-target-N, the export ft-disk-N. */
#include "disk_mirror.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "disk_nbd.h"
#include "nbd_server.h"

#define STEP_MS 10000
#define JOB_PREFIX "ft-mirror-"

struct mirrors;

struct mirror {
	struct mirrors *all;
	unsigned index;
	struct nbd_server *server;
	struct disk_nbd *reader;
};

struct mirrors {
	struct mirrors_config config;
	char run_dir[256];
	struct tap *tap;
	struct mirror mirror[DISKS_MAX];
	bool is_on;
	atomic_bool is_whole; /* every write since mirrors_begin() was seen */
	unsigned turn;        /* part of the sockets' names, so that nothing of an earlier turn finds them */
};

/* ---- what a mirror says ------------------------------------------------------------------------- */

/* [server's thread] */
static int on_write(void *user, uint64_t offset, const void *buf, uint32_t len)
{
	struct mirror *m = user;

	return tap_write(m->all->tap, m->index, offset, buf, len);
}

static int on_zero(void *user, uint64_t offset, uint32_t len)
{
	struct mirror *m = user;

	return tap_zero(m->all->tap, m->index, offset, len);
}

/* Writes are missed from now on. */
static void break_it(struct mirrors *m, unsigned disk, const char *why)
{
	char text[300];

	if (!atomic_exchange(&m->is_whole, false))
		return;
	snprintf(text, sizeof(text), "disk %s is not followed any more: %s", m->config.list->disk[disk].name, why);
	tap_broken(m->tap, text);
}

static void on_gone(void *user, const char *why)
{
	struct mirror *m = user;

	break_it(m->all, m->index, why);
}

void mirrors_event(struct mirrors *m, const char *name, const json_t *data)
{
	const char *id = json_string_value(json_object_get(data, "device")), *why;
	unsigned n;

	if (strcmp(name, "BLOCK_JOB_COMPLETED") && strcmp(name, "BLOCK_JOB_CANCELLED") &&
	    strcmp(name, "BLOCK_JOB_ERROR"))
		return;
	if (!id || sscanf(id, JOB_PREFIX "%u", &n) != 1 || n >= m->config.list->nr)
		return;
	why = json_string_value(json_object_get(data, "error"));
	break_it(m, n,
		 why                                   ? why
		 : strcmp(name, "BLOCK_JOB_CANCELLED") ? "QEMU's mirror failed"
						       : "QEMU's mirror was cancelled");
}

/* ---- QEMU's side -------------------------------------------------------------------------------- */

static bool is_ours(const json_t *one, const char *key, const char *prefix)
{
	const char *id = json_string_value(json_object_get(one, key));

	return id && !strncmp(id, prefix, strlen(prefix));
}

/* Number of our jobs; @cancel: and end them. */
static int our_jobs(struct qmp *qmp, bool cancel, struct ft_error *err)
{
	json_t *list, *one;
	size_t i;
	int n = 0, rc = qmp_call(qmp, "query-block-jobs", -1, util_deadline_ms(STEP_MS), &list, err, NULL);

	if (rc)
		return rc;
	json_array_foreach(list, i, one)
	{
		if (!is_ours(one, "device", JOB_PREFIX))
			continue;
		n++;
		if (cancel) /* it may just have ended */
			qmp_call(qmp, "block-job-cancel", -1, util_deadline_ms(STEP_MS), NULL, NULL, "{s:s, s:b}",
				 "device", json_string_value(json_object_get(one, "device")), "force", 1);
	}
	json_decref(list);
	return n;
}

static int end_jobs(struct qmp *qmp, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS);
	int n = our_jobs(qmp, true, err);

	while (n > 0 && util_now_ns() < deadline) {
		util_sleep_ms(5);
		n = our_jobs(qmp, false, err);
	}
	return n <= 0 ? n : fail(err, -ETIMEDOUT, "QEMU does not end its mirror of a disk");
}

static int remove_targets(struct qmp *qmp, struct ft_error *err)
{
	json_t *list, *one;
	size_t i;
	int rc =
		qmp_call(qmp, "query-named-block-nodes", -1, util_deadline_ms(STEP_MS), &list, err, "{s:b}", "flat", 1);

	if (rc)
		return rc;
	json_array_foreach(list, i, one)
	{
		if (is_ours(one, "node-name", "ft-target-"))
			rc = qmp_call(qmp, "blockdev-del", -1, util_deadline_ms(STEP_MS), NULL, err, "{s:s}",
				      "node-name", json_string_value(json_object_get(one, "node-name")));
		if (rc)
			break;
	}
	json_decref(list);
	return rc;
}

/* QEMU has one NBD server; it is ours if an export of ours is on it. */
static int stop_exports(struct qmp *qmp, struct ft_error *err)
{
	json_t *list, *one;
	bool ours = false;
	size_t i;
	int rc = qmp_call(qmp, "query-block-exports", -1, util_deadline_ms(STEP_MS), &list, err, NULL);

	if (rc)
		return rc;
	json_array_foreach(list, i, one) ours |= is_ours(one, "id", "ft-disk-");
	json_decref(list);
	return ours ? qmp_call(qmp, "nbd-server-stop", -1, util_deadline_ms(STEP_MS), NULL, err, NULL) : 0;
}

int mirrors_clean(struct qmp *qmp, struct ft_error *err)
{
	int rc = end_jobs(qmp, err);

	if (!rc)
		rc = remove_targets(qmp, err);
	if (!rc)
		rc = stop_exports(qmp, err);
	return rc;
}

static void socket_path(const struct mirrors *m, char *out, size_t size, const char *what, unsigned n)
{
	snprintf(out, size, "%s/ft-%s-%u.%u", m->run_dir, what, n, m->turn);
}

static int start_export(struct mirrors *m, const char *path, struct ft_error *err)
{
	int rc = qmp_call(m->config.qmp, "nbd-server-start", -1, util_deadline_ms(STEP_MS), NULL, err,
			  "{s:{s:s, s:{s:s}}}", "addr", "type", "unix", "data", "path", path);

	if (rc)
		fail_in(err, "the export of the disks, which are read through QEMU (it can have one NBD server, and "
			     "somebody else may use it)");
	return rc;
}

static int start_mirror(struct mirrors *m, unsigned n, const char *exports, struct ft_error *err)
{
	const struct disk_info *disk = &m->config.list->disk[n];
	struct mirror *one = &m->mirror[n];
	struct nbd_export export = {
		.size = disk->size, .write = on_write, .zero = on_zero, .gone = on_gone, .user = one
	};
	char path[320], id[64], target[64], filter[64], job[64];
	uint64_t deadline = util_deadline_ms(STEP_MS);
	int rc;

	snprintf(id, sizeof(id), "ft-disk-%u", n);
	snprintf(target, sizeof(target), "ft-target-%u", n);
	snprintf(filter, sizeof(filter), "ft-filter-%u", n);
	snprintf(job, sizeof(job), JOB_PREFIX "%u", n);
	socket_path(m, path, sizeof(path), "mirror", n);
	export.name = id;
	rc = qmp_call(m->config.qmp, "block-export-add", -1, deadline, NULL, err, "{s:s, s:s, s:s, s:s, s:b}", "type",
		      "nbd", "id", id, "node-name", disk->node, "name", id, "writable", 0);
	if (!rc)
		rc = disk_nbd_open(&one->reader, exports, id, disk->size, err);
	if (!rc)
		rc = nbd_server_open(&one->server, path, &export, err);
	if (!rc)
		rc = qmp_call(m->config.qmp, "blockdev-add", -1, deadline, NULL, err, "{s:s, s:s, s:s, s:{s:s, s:s}}",
			      "driver", "nbd", "node-name", target, "export", id, "server", "type", "unix", "path",
			      path);
	if (!rc)
		rc = qmp_call(m->config.qmp, "blockdev-mirror", -1, deadline, NULL, err,
			      "{s:s, s:s, s:s, s:s, s:s, s:s}", "job-id", job, "device", disk->node, "target", target,
			      "sync", "none", "copy-mode", "write-blocking", "filter-node-name", filter);
	if (rc)
		fail_in(err, "disk %s", disk->name);
	return rc;
}

static int start(struct mirrors *m, struct ft_error *err)
{
	char exports[320];
	int rc;

	m->turn++;
	m->is_on = true;
	socket_path(m, exports, sizeof(exports), "export", 0);
	rc = mirrors_clean(m->config.qmp, err);
	atomic_store(&m->is_whole, true); /* events of the jobs that were ended have been taken */
	if (!rc)
		rc = start_export(m, exports, err);
	for (unsigned i = 0; !rc && i < m->config.list->nr; i++)
		rc = start_mirror(m, i, exports, err);
	if (rc)
		mirrors_stop(m);
	return rc;
}

int mirrors_begin(struct mirrors *m, struct ft_error *err)
{
	int rc = 0;

	if (!m->is_on || !atomic_load(&m->is_whole)) {
		mirrors_stop(m);
		tap_broken(m->tap, "the disks were not followed");
		rc = start(m, err);
	}
	return rc ? rc : tap_begin(m->tap, err);
}

void mirrors_stop(struct mirrors *m)
{
	char path[320];

	if (!m->is_on)
		return;
	atomic_store(&m->is_whole, false);
	tap_broken(m->tap, "the disks are not followed any more"); /* so that no write waits */
	for (unsigned i = 0; i < m->config.list->nr; i++) {
		disk_nbd_close(m->mirror[i].reader);
		m->mirror[i].reader = NULL;
	}
	mirrors_clean(m->config.qmp, NULL); /* what is left fails by itself, as when we die */
	for (unsigned i = 0; i < m->config.list->nr; i++) {
		nbd_server_close(m->mirror[i].server);
		m->mirror[i].server = NULL;
	}
	socket_path(m, path, sizeof(path), "export", 0);
	remove(path);
	m->is_on = false;
}

/* ---- open, close -------------------------------------------------------------------------------- */

/* [thread of tap_read() or tap_settle()] */
static int read_disk(void *user, unsigned disk, uint64_t offset, uint32_t *len, void *buf, bool *zero,
		     struct ft_error *err)
{
	struct mirrors *m = user;
	int rc = disk_nbd_look(m->mirror[disk].reader, offset, len, (uint32_t)TAP_BLOCK, TAP_READ_MAX, buf, zero, err);

	if (rc) {
		fail_in(err, "disk %s", m->config.list->disk[disk].name);
		break_it(m, disk, err->msg);
	}
	return rc;
}

static void want_cut(void *user)
{
	struct mirrors *m = user;

	if (m->config.want_cut)
		m->config.want_cut(m->config.user);
}

int mirrors_open(struct mirrors **out, const struct mirrors_config *config, struct ft_error *err)
{
	struct mirrors *m = calloc(1, sizeof(*m));
	struct tap_config c = { .size = config->list->size,
				.nr = config->list->nr,
				.hold_bytes = config->hold_bytes,
				.read = read_disk,
				.want_cut = want_cut,
				.user = m };
	int rc;

	*out = NULL;
	if (!m)
		return fail(err, -ENOMEM, "no memory");
	m->config = *config;
	snprintf(m->run_dir, sizeof(m->run_dir), "%s", config->run_dir);
	m->config.run_dir = m->run_dir;
	for (unsigned i = 0; i < config->list->nr; i++)
		m->mirror[i] = (struct mirror){ .all = m, .index = i };
	rc = tap_open(&m->tap, &c, err);
	if (rc) {
		free(m);
		return rc;
	}
	*out = m;
	return 0;
}

void mirrors_close(struct mirrors *m)
{
	if (!m)
		return;
	if (m->is_on)
		tap_broken(m->tap, "the end");
	for (unsigned i = 0; i < m->config.list->nr; i++) {
		disk_nbd_close(m->mirror[i].reader);
		nbd_server_close(m->mirror[i].server);
	}
	tap_close(m->tap);
	free(m);
}

struct tap *mirrors_tap(struct mirrors *m)
{
	return m->tap;
}
