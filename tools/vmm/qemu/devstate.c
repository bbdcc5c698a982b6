/* SPDX-License-Identifier: MIT */
/* devstate.c - see devstate.h.
 *
 * `running` follows QEMU's STOP and RESUME events, so that a guest that stood still anyway (stopped by the operator,
 * powered off with -no-shutdown, panicked) is replicated as it is and not started by us.
 *
 * pipe: the pipe has one page while QEMU writes its first octets, so that it blocks, and is widened when the state is to
 * be read: QEMU then writes all of it at once, and not in steps of a page with two task switches each. */
#include "devstate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_MS 10000    /* a QMP command during a pause; QEMU needs about 1 ms */
#define CONT_MS 2000     /* how long a refused cont is tried again */
#define LOAD_MS 60000    /* loading a state; QEMU needs about 20 ms */
#define PIPE_HELD 4096   /* one page, the least there is */
#define PIPE_WIDE 262144 /* for reading; device states have 10 to 400 KiB */
#define PIPE_LEAST 8192  /* a shorter state is not trusted to keep QEMU blocked */
#define READ_STEP 65536

/* Of a migration, from its events. */
enum outcome { OUTCOME_NONE, OUTCOME_COMPLETED, OUTCOME_FAILED };

enum phase {
	PHASE_RUNNING, /* no pause of ours */
	PHASE_PAUSED,
	PHASE_SAVED, /* pipe: QEMU has answered and let the guest run */
};

struct devstate {
	struct qmp *qmp;
	enum devstate_method method; /* in use; AUTO: not chosen yet */
	bool is_auto, picture, can_migrate, keeps_disks;
	atomic_bool running;
	atomic_int outcome;
	bool migrate_ready; /* capabilities are set */

	/* of the pause under way */
	enum phase phase;
	bool was_running;
	uint64_t save_id; /* pipe: the command QEMU is at; 0: answered */
	size_t taken;     /* pipe: octets read so far */

	int pipe[2];   /* [1] is closed once QEMU has it */
	int pipe_qemu; /* its number in QEMU; -1: to be made */
	json_int_t pipe_set;
	int memfd, memfd_qemu;
	enum devstate_method next; /* taken up after this pause; AUTO: stay */
	char waste[READ_STEP];     /* for states that nobody wants */
};

static const char *const method_name[] = { "auto", "pipe", "stopcont", "migrate" };

const char *devstate_method_name(enum devstate_method m)
{
	return method_name[m];
}

int devstate_method_parse(const char *text, enum devstate_method *out)
{
	int i;

	for (i = 0; i <= DEVSTATE_MIGRATE; i++)
		if (!strcmp(text, method_name[i])) {
			*out = (enum devstate_method)i;
			return 0;
		}
	return -EINVAL;
}

/* ---- events ------------------------------------------------------------------------------------- */

void devstate_event(struct devstate *s, const char *name, const json_t *data)
{
	const char *status;

	if (!strcmp(name, "STOP")) {
		atomic_store(&s->running, false);
	} else if (!strcmp(name, "RESUME")) {
		atomic_store(&s->running, true);
	} else if (!strcmp(name, "MIGRATION")) {
		status = json_string_value(json_object_get(data, "status"));
		if (status && !strcmp(status, "completed"))
			atomic_store(&s->outcome, OUTCOME_COMPLETED);
		else if (status && (!strcmp(status, "failed") || !strcmp(status, "cancelled")))
			atomic_store(&s->outcome, OUTCOME_FAILED);
	}
}

void devstate_set_running(struct devstate *s, bool running)
{
	atomic_store(&s->running, running);
}

bool devstate_running(const struct devstate *s)
{
	return atomic_load(&s->running);
}

static bool has_outcome(void *user)
{
	return atomic_load(&((struct devstate *)user)->outcome) != OUTCOME_NONE;
}

static bool runs(void *user)
{
	return devstate_running(user);
}

static bool stands(void *user)
{
	return !devstate_running(user);
}

/* ---- commands that all ways share --------------------------------------------------------------- */

int devstate_stop(struct devstate *s, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS);
	int rc = qmp_call(s->qmp, "stop", -1, deadline, NULL, err, NULL);

	return rc ? rc : qmp_wait_for(s->qmp, stands, s, deadline, err);
}

/* Right after a migration QEMU says for a moment that it is not finalized yet.  A guest must not stay paused for that. */
int devstate_cont(struct devstate *s, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS), give_up = util_deadline_ms(CONT_MS);
	int rc;

	for (;;) {
		rc = qmp_call(s->qmp, "cont", -1, deadline, NULL, err, NULL);
		if (rc != -EREMOTEIO || util_now_ns() >= give_up)
			break;
		util_sleep_ms(1);
	}
	return rc ? rc : qmp_wait_for(s->qmp, runs, s, deadline, err);
}

/* Gives @fd to QEMU for good; *@number is its number there, *@set what remove-fd wants. */
static int give_fd(struct devstate *s, int fd, int *number, json_int_t *set, struct ft_error *err)
{
	json_t *ret;
	int rc = qmp_call(s->qmp, "add-fd", fd, util_deadline_ms(STEP_MS), &ret, err, NULL);

	if (rc)
		return rc;
	*number = (int)json_integer_value(json_object_get(ret, "fd"));
	if (set)
		*set = json_integer_value(json_object_get(ret, "fdset-id"));
	json_decref(ret);
	return *number > 0 ? 0 : fail(err, -EPROTO, "QMP add-fd: an answer without a number");
}

/* ---- pipe --------------------------------------------------------------------------------------- */

static void pipe_unmake(struct devstate *s)
{
	struct ft_error ignored;

	/* QEMU may be gone, or may have a copy that it lost track of after a failure: the next pipe is another one */
	if (s->pipe_qemu >= 0)
		qmp_call(s->qmp, "remove-fd", -1, util_deadline_ms(STEP_MS), NULL, &ignored, "{s:I}", "fdset-id",
			 s->pipe_set);
	s->pipe_qemu = -1;
	fd_close(&s->pipe[0]);
	fd_close(&s->pipe[1]);
}

static int pipe_make(struct devstate *s, struct ft_error *err)
{
	int rc = 0;

	if (pipe2(s->pipe, O_CLOEXEC | O_NONBLOCK))
		return fail_sys(err, -errno, "pipe");
	/* QEMU's end must block; it opens the pipe anew, so the mode of this description does not matter */
	if (fcntl(s->pipe[0], F_SETPIPE_SZ, PIPE_HELD) != PIPE_HELD)
		rc = fail(err, -ENOTSUP, "a pipe of one page is not to be had here");
	if (!rc)
		rc = give_fd(s, s->pipe[1], &s->pipe_qemu, &s->pipe_set, err);
	fd_close(&s->pipe[1]);
	if (rc)
		pipe_unmake(s);
	return rc;
}

/* A pipe of one page that is empty. */
static int pipe_ready(struct devstate *s, struct ft_error *err)
{
	int left = 0;

	if (s->pipe_qemu >= 0 && !ioctl(s->pipe[0], FIONREAD, &left) && !left &&
	    fcntl(s->pipe[0], F_SETPIPE_SZ, PIPE_HELD) == PIPE_HELD)
		return 0;
	pipe_unmake(s);
	return pipe_make(s, err);
}

/* Wait until the pipe has something or QEMU has answered. */
static int pipe_wait(struct devstate *s, uint64_t deadline, struct ft_error *err)
{
	struct pollfd p[3] = { { .fd = s->pipe[0], .events = POLLIN },
			       { .fd = qmp_fd(s->qmp), .events = POLLIN },
			       { .fd = qmp_replied_fd(s->qmp), .events = POLLIN } };
	int n = poll(p, 3, util_left_ms(deadline));

	if (n < 0 && errno != EINTR)
		return fail_sys(err, -errno, "poll");
	if (util_now_ns() >= deadline) /* also while a part of a page lies there, which poll() takes for news */
		return fail(err, -ETIMEDOUT, "QEMU does not save the device state");
	return 0;
}

static int pipe_answer(struct devstate *s, struct ft_error *err)
{
	uint64_t id = s->save_id;

	s->save_id = 0;
	return qmp_wait(s->qmp, id, util_deadline_ms(STEP_MS), NULL, err);
}

/* QEMU answered before the pipe was full: it refused, or the state was too short to make it wait. */
static int pipe_not_held(struct devstate *s, struct ft_error *err)
{
	int rc = pipe_answer(s, err);

	return rc ? rc : fail(err, -ENODATA, "the device state fits into the pipe, so QEMU did not wait");
}

static int pipe_pause(struct devstate *s, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS);
	char path[32];
	int filled, rc;

	s->taken = 0;
	rc = pipe_ready(s, err);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->pipe_qemu);
	rc = qmp_send(s->qmp, "xen-save-devices-state", -1, &s->save_id, err, "{s:s, s:b}", "filename", path, "live",
		      0);
	if (rc)
		return rc;
	for (;;) {
		rc = pipe_wait(s, deadline, err);
		if (rc)
			return rc;
		if (ioctl(s->pipe[0], FIONREAD, &filled))
			return fail_sys(err, -errno, "pipe");
		if (filled == PIPE_HELD)
			return 0;
		if (qmp_poll(s->qmp, s->save_id))
			return pipe_not_held(s, err);
	}
}

/* Read until QEMU has answered and the pipe is empty. */
static int pipe_drain(struct devstate *s, const struct devstate_sink *sink, uint64_t deadline, struct ft_error *err)
{
	bool answered = false;
	int rc;

	fcntl(s->pipe[0], F_SETPIPE_SZ, PIPE_WIDE); /* if it may not grow it only takes longer */
	for (;;) {
		size_t cap = sizeof(s->waste);
		void *to = sink ? sink->buffer(sink->user, 1, &cap) : s->waste;
		ssize_t n;

		if (!to)
			return fail(err, -EFBIG, "the device state is longer than state-max");
		n = read(s->pipe[0], to, cap);
		if (n > 0) {
			s->taken += (size_t)n;
			if (sink)
				sink->advance(sink->user, (size_t)n);
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return fail_sys(err, -errno, "pipe");
		if (answered)
			return 0;
		/* what was written before the answer is in the pipe: so one more look into it */
		answered = qmp_poll(s->qmp, s->save_id);
		if (answered)
			continue;
		rc = pipe_wait(s, deadline, err);
		if (rc)
			return rc;
	}
}

static int pipe_save(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err)
{
	int rc = pipe_drain(s, sink, util_deadline_ms(STEP_MS), err);

	if (rc)
		return rc;
	s->phase = PHASE_SAVED;
	rc = pipe_answer(s, err);
	if (!rc && s->taken < PIPE_LEAST)
		rc = fail(err, -ENODATA, "a device state of %zu octets does not make QEMU wait", s->taken);
	return rc;
}

static int pipe_resume(struct devstate *s, struct ft_error *err)
{
	struct ft_error ignored;

	if (s->save_id) {
		/* a pause that was given up: let QEMU write the rest to nowhere; if that fails too, a closed pipe ends it */
		if (pipe_drain(s, NULL, util_deadline_ms(STEP_MS), &ignored))
			fd_close(&s->pipe[0]);
		if (pipe_answer(s, &ignored))
			pipe_unmake(s);
	}
	if (s->was_running && !devstate_running(s))
		return devstate_cont(s, err);
	return 0;
}

/* ---- stop, save, cont --------------------------------------------------------------------------- */

static int memfd_ready(struct devstate *s, struct ft_error *err)
{
	if (s->memfd < 0)
		s->memfd = memfd_create("ft-state", MFD_CLOEXEC);
	if (s->memfd < 0)
		return fail_sys(err, -errno, "memfd for the device state");
	if (ftruncate(s->memfd, 0) || lseek(s->memfd, 0, SEEK_SET))
		return fail_sys(err, -errno, "memfd for the device state");
	return 0;
}

static int memfd_take(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err)
{
	off_t at = 0;
	size_t cap;
	ssize_t n;
	void *to;

	for (;;) {
		to = sink->buffer(sink->user, 1, &cap);
		if (!to)
			return fail(err, -EFBIG, "the device state is longer than state-max");
		n = pread(s->memfd, to, cap, at);
		if (n < 0)
			return fail_sys(err, -errno, "device state");
		if (n == 0)
			return at ? 0 : fail(err, -ENODATA, "QEMU wrote no device state");
		sink->advance(sink->user, (size_t)n);
		at += n;
	}
}

static int stop_pause(struct devstate *s, struct ft_error *err)
{
	return devstate_running(s) ? devstate_stop(s, err) : 0;
}

static int stop_resume(struct devstate *s, struct ft_error *err)
{
	return s->was_running && !devstate_running(s) ? devstate_cont(s, err) : 0;
}

static int stopcont_save(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err)
{
	char path[32];
	int rc = memfd_ready(s, err);

	if (!rc && s->memfd_qemu < 0)
		rc = give_fd(s, s->memfd, &s->memfd_qemu, NULL, err);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->memfd_qemu);
	/* live=true, the default, would let go of the disks */
	rc = qmp_call(s->qmp, "xen-save-devices-state", -1, util_deadline_ms(STEP_MS), NULL, err, "{s:s, s:b}",
		      "filename", path, "live", 0);
	return rc ? rc : memfd_take(s, sink, err);
}

static int migrate_ready(struct devstate *s, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS);
	int rc;

	if (s->migrate_ready)
		return 0;
	rc = qmp_call(s->qmp, "migrate-set-capabilities", -1, deadline, NULL, err, "{s:[{s:s, s:b}, {s:s, s:b}]}",
		      "capabilities", "capability", "events", "state", 1, "capability", "x-ignore-shared", "state", 1);
	/* the default limit of 128 MiB/s would make a pause of 3 ms out of 400 KiB */
	if (!rc)
		rc = qmp_call(s->qmp, "migrate-set-parameters", -1, deadline, NULL, err, "{s:I}", "max-bandwidth",
			      (json_int_t)1 << 40);
	s->migrate_ready = !rc;
	return rc;
}

static int migrate_save(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(STEP_MS);
	int rc = memfd_ready(s, err);

	if (!rc)
		rc = migrate_ready(s, err);
	if (!rc)
		rc = qmp_call(s->qmp, "getfd", s->memfd, deadline, NULL, err, "{s:s}", "fdname", "ft-state");
	if (rc)
		return rc;
	atomic_store(&s->outcome, OUTCOME_NONE);
	rc = qmp_call(s->qmp, "migrate", -1, deadline, NULL, err, "{s:s}", "uri", "fd:ft-state");
	if (!rc)
		rc = qmp_wait_for(s->qmp, has_outcome, s, deadline, err);
	if (rc)
		return rc;
	if (atomic_load(&s->outcome) != OUTCOME_COMPLETED)
		return fail(err, -EIO, "QEMU's migrate failed");
	return memfd_take(s, sink, err);
}

/* ---- the ways ----------------------------------------------------------------------------------- */

struct way {
	int (*pause)(struct devstate *s, struct ft_error *err);
	int (*save)(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err);
	int (*resume)(struct devstate *s, struct ft_error *err);
};

static const struct way ways[] = {
	[DEVSTATE_PIPE] = { pipe_pause, pipe_save, pipe_resume },
	[DEVSTATE_STOPCONT] = { stop_pause, stopcont_save, stop_resume },
	[DEVSTATE_MIGRATE] = { stop_pause, migrate_save, stop_resume },
};

static enum devstate_method first_method(const struct devstate *s)
{
	return s->picture && s->can_migrate ? DEVSTATE_MIGRATE : DEVSTATE_PIPE;
}

/* What to try when @m has failed; AUTO: nothing is left. */
static enum devstate_method next_method(const struct devstate *s, enum devstate_method m)
{
	if (!s->is_auto)
		return DEVSTATE_AUTO;
	if (m == DEVSTATE_PIPE)
		return DEVSTATE_STOPCONT;
	if (m == DEVSTATE_MIGRATE && s->picture)
		return DEVSTATE_PIPE;
	return m == DEVSTATE_STOPCONT && s->can_migrate && !s->picture && !s->keeps_disks ? DEVSTATE_MIGRATE
											  : DEVSTATE_AUTO;
}

void devstate_keep_disks(struct devstate *s)
{
	s->keeps_disks = true;
}

/* Failures that say something about the way and not about QEMU being gone or stuck. */
static bool is_refusal(int rc)
{
	return rc == -EREMOTEIO || rc == -ENODATA || rc == -ENOTSUP || rc == -EIO;
}

static int pause_by(struct devstate *s, struct ft_error *err)
{
	/* a resume that failed is still owed */
	s->was_running = devstate_running(s) || (s->phase != PHASE_RUNNING && s->was_running);
	s->phase = PHASE_PAUSED;
	return ways[s->method].pause(s, err);
}

int devstate_pause(struct devstate *s, struct ft_error *err)
{
	enum devstate_method next;
	struct ft_error ignored;
	int rc;

	if (s->method == DEVSTATE_AUTO)
		s->method = first_method(s);
	qmp_pump(s->qmp); /* what was said since: the guest may have stopped by itself */
	rc = pause_by(s, err);
	while (rc && is_refusal(rc)) {
		next = next_method(s, s->method);
		if (next == DEVSTATE_AUTO || devstate_resume(s, &ignored))
			break;
		s->method = next;
		rc = pause_by(s, err);
	}
	return rc;
}

int devstate_save(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err)
{
	int rc = ways[s->method].save(s, sink, err);

	/* too late for this pause; the next one goes another way */
	if (rc && is_refusal(rc)) {
		s->next = next_method(s, s->method);
		if (s->next != DEVSTATE_AUTO)
			fail_in(err, "%s (next time: %s)", devstate_method_name(s->method),
				devstate_method_name(s->next));
	}
	return rc;
}

int devstate_resume(struct devstate *s, struct ft_error *err)
{
	int rc = 0;

	if (s->phase != PHASE_RUNNING)
		rc = ways[s->method].resume(s, err);
	if (rc)
		return rc;
	s->phase = PHASE_RUNNING;
	if (s->next != DEVSTATE_AUTO)
		s->method = s->next;
	s->next = DEVSTATE_AUTO;
	return 0;
}

static void *waste_buffer(void *user, size_t want, size_t *cap)
{
	struct devstate *s = user;

	(void)want;
	*cap = sizeof(s->waste);
	return s->waste;
}

static void waste_advance(void *user, size_t len)
{
	(void)user;
	(void)len;
}

static int attempt(struct devstate *s, struct ft_error *err)
{
	const struct devstate_sink waste = { waste_buffer, waste_advance, s };
	struct ft_error resume_err = { 0 };
	int rc = pause_by(s, err), resumed;

	if (!rc)
		rc = ways[s->method].save(s, &waste, err);
	resumed = devstate_resume(s, &resume_err);
	if (!rc && resumed) {
		*err = resume_err;
		rc = resumed;
	}
	return rc;
}

int devstate_choose(struct devstate *s, struct ft_error *err)
{
	struct ft_error why = { 0 };
	enum devstate_method m;
	int rc;

	qmp_pump(s->qmp);
	for (m = s->is_auto ? first_method(s) : s->method;;) {
		s->method = m;
		rc = attempt(s, &why);
		m = next_method(s, m);
		if (!rc || !is_refusal(rc) || m == DEVSTATE_AUTO)
			break;
	}
	return rc ? fail(err, rc, "device state cannot be taken (%s): %s", devstate_method_name(s->method), why.msg)
		  : 0;
}

enum devstate_method devstate_method(const struct devstate *s)
{
	return s->method;
}

/* ---- standby ------------------------------------------------------------------------------------ */

static int write_all(int fd, const char *buf, size_t len)
{
	ssize_t n;

	while (len) {
		n = write(fd, buf, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		buf += n;
		len -= (size_t)n;
	}
	return lseek(fd, 0, SEEK_SET) ? -errno : 0;
}

int devstate_load(struct devstate *s, const void *buf, size_t len, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(LOAD_MS);
	int rc = memfd_ready(s, err);

	if (!rc) {
		rc = write_all(s->memfd, buf, len);
		if (rc)
			fail_sys(err, rc, "memfd for the device state");
	}
	/* x-ignore-shared: RAM is in place; it does not matter to a stream of xen-save, which has no RAM */
	if (!rc)
		rc = migrate_ready(s, err);
	if (!rc)
		rc = qmp_call(s->qmp, "getfd", s->memfd, deadline, NULL, err, "{s:s}", "fdname", "ft-state");
	if (rc)
		return rc;
	atomic_store(&s->outcome, OUTCOME_NONE);
	rc = qmp_call(s->qmp, "migrate-incoming", -1, deadline, NULL, err, "{s:s}", "uri", "fd:ft-state");
	if (!rc)
		rc = qmp_wait_for(s->qmp, has_outcome, s, deadline, err);
	if (!rc && atomic_load(&s->outcome) != OUTCOME_COMPLETED)
		rc = fail(err, -EIO, "QEMU could not load the device state");
	return rc;
}

int devstate_open(struct devstate **out, struct qmp *qmp, enum devstate_method method, bool picture, bool can_migrate,
		  struct ft_error *err)
{
	struct devstate *s;

	*out = NULL;
	if (method == DEVSTATE_MIGRATE && !can_migrate)
		return fail(err, -ENOTSUP,
			    "state method migrate: this QEMU was started without -global "
			    "migration.send-configuration=off, so the standby "
			    "could not load it");
	s = calloc(1, sizeof(*s));
	if (!s)
		return fail(err, -ENOMEM, "no memory");
	*s = (struct devstate){ .qmp = qmp,
				.method = method,
				.is_auto = method == DEVSTATE_AUTO,
				.picture = picture,
				.can_migrate = can_migrate,
				.pipe = { -1, -1 },
				.pipe_qemu = -1,
				.memfd = -1,
				.memfd_qemu = -1 };
	*out = s;
	return 0;
}

void devstate_close(struct devstate *s)
{
	if (!s)
		return;
	fd_close(&s->pipe[0]);
	fd_close(&s->pipe[1]);
	fd_close(&s->memfd);
	free(s);
}
