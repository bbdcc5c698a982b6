/* SPDX-License-Identifier: MIT */
/* qmp.c - see qmp.h.
 * One buffer of what was read; whole lines are parsed as they complete.  `waiting` lists the commands that somebody
 * still wants an answer to: a reply with an id that is not there is late, or not ours, and is dropped. */
#include "qmp.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES (16u << 20) /* query-qmp-schema, the longest answer known, has some 200 KiB */
#define WAITING_MAX 8
#define SEND_MS 5000

struct waiting {
	uint64_t id; /* 0: free */
	const char *cmd;
	json_t *reply;
};

struct qmp {
	int fd;
	int replied; /* eventfd: a reply was read since qmp_poll() last looked */
	qmp_event_fn *event;
	void *user;

	pthread_mutex_t lock; /* guards all below, and is held while reading */
	int dead;             /* negative errno once the connection is unusable */
	char why[160];
	bool greeted;
	uint64_t last_id;
	struct waiting waiting[WAITING_MAX];
	char *buf;
	size_t used, room;
};

static int die(struct qmp *q, int code, const char *why)
{
	if (!q->dead) {
		q->dead = code;
		strncpy(q->why, why, sizeof(q->why) - 1);
	}
	return q->dead;
}

static struct waiting *find(struct qmp *q, uint64_t id)
{
	int i;

	for (i = 0; i < WAITING_MAX; i++)
		if (q->waiting[i].id == id)
			return &q->waiting[i];
	return NULL;
}

static void forget(struct waiting *w)
{
	json_decref(w->reply);
	*w = (struct waiting){ 0 };
}

static int consume(struct qmp *q, const char *line, size_t len)
{
	json_t *msg = json_loadb(line, len, 0, NULL), *id;
	struct waiting *w;

	if (!json_is_object(msg)) {
		json_decref(msg);
		return die(q, -EPROTO, "what came is not a JSON object; is this really a QMP socket?");
	}
	if (json_object_get(msg, "event")) {
		const char *name = json_string_value(json_object_get(msg, "event"));

		if (q->event && name)
			q->event(q->user, name, json_object_get(msg, "data"));
	} else if (json_object_get(msg, "QMP")) {
		q->greeted = true;
	} else {
		id = json_object_get(msg, "id");
		w = json_is_integer(id) && json_integer_value(id) > 0 ? find(q, (uint64_t)json_integer_value(id))
								      : NULL;
		if (w && !w->reply) {
			w->reply = json_incref(msg);
			eventfd_write(q->replied, 1);
		}
	}
	json_decref(msg);
	return 0;
}

/* Take all complete lines out of the buffer. */
static int consume_lines(struct qmp *q)
{
	char *at = q->buf, *end = q->buf + q->used, *nl;
	int rc = 0;

	while (!rc && (nl = memchr(at, '\n', (size_t)(end - at)))) {
		if (nl - at > 1)
			rc = consume(q, at, (size_t)(nl - at));
		at = nl + 1;
	}
	q->used = (size_t)(end - at);
	memmove(q->buf, at, q->used);
	return rc;
}

/* Read once and parse.  0: something may have come; -EAGAIN: nothing there. */
static int read_some(struct qmp *q)
{
	size_t room = q->room * 2 + 16384;
	char *grown;
	ssize_t n;

	if (q->dead)
		return q->dead;
	if (q->room - q->used < 4096) {
		if (q->room >= LINE_MAX_BYTES)
			return die(q, -EPROTO, "a line is longer than 16 MiB");
		grown = realloc(q->buf, room < LINE_MAX_BYTES ? room : LINE_MAX_BYTES);
		if (!grown)
			return die(q, -ENOMEM, "no memory for an answer");
		q->buf = grown;
		q->room = room < LINE_MAX_BYTES ? room : LINE_MAX_BYTES;
	}
	n = recv(q->fd, q->buf + q->used, q->room - q->used, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : die(q, -EPIPE, "QEMU has closed the connection");
	if (n == 0)
		return die(q, -EPIPE, "QEMU has closed the connection");
	q->used += (size_t)n;
	return consume_lines(q);
}

static void read_all(struct qmp *q)
{
	while (!read_some(q))
		;
}

/* Wait for input until @deadline.  0, -ETIMEDOUT or dead. */
static int read_until(struct qmp *q, uint64_t deadline)
{
	struct pollfd p = { .fd = q->fd, .events = POLLIN };
	int rc = read_some(q);

	if (rc != -EAGAIN)
		return rc;
	rc = poll(&p, 1, util_left_ms(deadline));
	if (rc == 0 && util_now_ns() >= deadline)
		return -ETIMEDOUT;
	return 0;
}

static int lock_until(struct qmp *q, uint64_t deadline)
{
	struct timespec t = { .tv_sec = (time_t)(deadline / 1000000000), .tv_nsec = (long)(deadline % 1000000000) };

	return -pthread_mutex_clocklock(&q->lock, CLOCK_MONOTONIC, &t);
}

/* Sends all of @buf, @fd with its first octet. */
static int send_all(struct qmp *q, const char *buf, size_t len, int fd)
{
	uint64_t deadline = util_deadline_ms(SEND_MS);
	struct pollfd p = { .fd = q->fd, .events = POLLOUT };
	ssize_t n;

	if (fd >= 0) {
		if (fd_send(q->fd, fd, buf, 1))
			return die(q, -EPIPE, "QEMU has closed the connection");
		buf++;
		len--;
	}
	while (len) {
		n = send(q->fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			buf += n;
			len -= (size_t)n;
		} else if (errno == EAGAIN) {
			if (poll(&p, 1, util_left_ms(deadline)) == 0)
				return die(q, -ETIMEDOUT, "QEMU does not read its socket");
		} else if (errno != EINTR) {
			return die(q, -EPIPE, "QEMU has closed the connection");
		}
	}
	return 0;
}

static int sendv(struct qmp *q, const char *cmd, int fd, uint64_t *id, struct ft_error *err, const char *fmt,
		 va_list ap)
{
	json_t *args = NULL, *msg = NULL;
	struct waiting *w;
	char *text = NULL;
	size_t len;
	int rc;

	*id = 0;
	w = find(q, 0);
	if (q->dead) {
		rc = fail(err, q->dead, "QMP %s: %s", cmd, q->why);
		goto out;
	}
	if (!w) {
		rc = fail(err, -EBUSY, "QMP %s: too many commands at once", cmd);
		goto out;
	}
	args = fmt ? json_vpack_ex(NULL, 0, fmt, ap) : json_object();
	msg = args ? json_pack("{s:s, s:O, s:I}", "execute", cmd, "arguments", args, "id", (json_int_t)(q->last_id + 1))
		   : NULL;
	text = msg ? json_dumps(msg, JSON_COMPACT) : NULL;
	if (!text) {
		rc = fail(err, -ENOMEM, "QMP %s: the command could not be built", cmd);
		goto out;
	}
	len = strlen(text);
	text[len] = '\n'; /* takes the place of the terminator */
	*w = (struct waiting){ .id = ++q->last_id, .cmd = cmd };
	rc = send_all(q, text, len + 1, fd);
	if (rc) {
		forget(w);
		fail(err, rc, "QMP %s: %s", cmd, q->why);
		goto out;
	}
	*id = q->last_id;
out:
	free(text);
	json_decref(msg);
	json_decref(args);
	return rc;
}

int qmp_send(struct qmp *q, const char *cmd, int fd, uint64_t *id, struct ft_error *err, const char *fmt, ...)
{
	va_list ap;
	int rc;

	*id = 0;
	rc = lock_until(q, util_deadline_ms(SEND_MS));
	if (rc)
		return fail_sys(err, rc, "QMP %s", cmd);
	va_start(ap, fmt);
	rc = sendv(q, cmd, fd, id, err, fmt, ap);
	va_end(ap);
	pthread_mutex_unlock(&q->lock);
	return rc;
}

static int judge(const struct waiting *w, json_t **ret, struct ft_error *err)
{
	const json_t *error = json_object_get(w->reply, "error"), *value = json_object_get(w->reply, "return");
	const char *desc;

	if (value) {
		if (ret)
			*ret = json_incref((json_t *)value);
		return 0;
	}
	desc = json_string_value(json_object_get(error, "desc"));
	return fail(err, error ? -EREMOTEIO : -EPROTO, "QMP %s: %s", w->cmd,
		    desc ? desc : "an answer without return or error");
}

int qmp_wait(struct qmp *q, uint64_t id, uint64_t deadline, json_t **ret, struct ft_error *err)
{
	struct waiting *w;
	int rc;

	if (ret)
		*ret = NULL;
	rc = lock_until(q, deadline);
	if (rc)
		return fail_sys(err, rc, "QMP: another command is still waiting");
	w = id ? find(q, id) : NULL;
	if (!w) {
		pthread_mutex_unlock(&q->lock);
		return fail(err, -EINVAL, "QMP: no such command");
	}
	while (!w->reply && !rc)
		rc = read_until(q, deadline);
	if (w->reply)
		rc = judge(w, ret, err);
	else if (rc == -ETIMEDOUT)
		fail(err, rc, "QMP %s: no answer in time", w->cmd);
	else
		fail(err, rc, "QMP %s: %s", w->cmd, q->why);
	forget(w);
	pthread_mutex_unlock(&q->lock);
	return rc;
}

bool qmp_poll(struct qmp *q, uint64_t id)
{
	struct waiting *w;
	eventfd_t count;
	bool ready;

	pthread_mutex_lock(&q->lock);
	eventfd_read(q->replied, &count);
	read_all(q);
	w = id ? find(q, id) : NULL;
	ready = q->dead || !w || w->reply;
	pthread_mutex_unlock(&q->lock);
	return ready;
}

void qmp_forget(struct qmp *q, uint64_t id)
{
	struct waiting *w;

	pthread_mutex_lock(&q->lock);
	w = id ? find(q, id) : NULL;
	if (w)
		forget(w);
	pthread_mutex_unlock(&q->lock);
}

int qmp_call(struct qmp *q, const char *cmd, int fd, uint64_t deadline, json_t **ret, struct ft_error *err,
	     const char *fmt, ...)
{
	uint64_t id;
	va_list ap;
	int rc;

	if (ret)
		*ret = NULL;
	rc = lock_until(q, deadline);
	if (rc)
		return fail_sys(err, rc, "QMP %s: another command is still waiting", cmd);
	va_start(ap, fmt);
	rc = sendv(q, cmd, fd, &id, err, fmt, ap);
	va_end(ap);
	pthread_mutex_unlock(&q->lock);
	return rc ? rc : qmp_wait(q, id, deadline, ret, err);
}

int qmp_wait_for(struct qmp *q, bool (*done)(void *user), void *user, uint64_t deadline, struct ft_error *err)
{
	int rc = lock_until(q, deadline);

	if (rc)
		return fail_sys(err, rc, "QMP: another command is still waiting");
	while (!done(user) && !rc)
		rc = read_until(q, deadline);
	if (done(user))
		rc = 0;
	else if (rc == -ETIMEDOUT)
		fail(err, rc, "QMP: the event did not come in time");
	else
		fail(err, rc, "QMP: %s", q->why);
	pthread_mutex_unlock(&q->lock);
	return rc;
}

int qmp_pump(struct qmp *q)
{
	int rc;

	if (pthread_mutex_trylock(&q->lock))
		return 0;
	read_all(q);
	rc = q->dead;
	pthread_mutex_unlock(&q->lock);
	return rc;
}

int qmp_fd(const struct qmp *q)
{
	return q->fd;
}

int qmp_replied_fd(const struct qmp *q)
{
	return q->replied;
}

pid_t qmp_peer(const struct qmp *q)
{
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred);

	return getsockopt(q->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ? 0 : cred.pid;
}

static bool greeted(void *user)
{
	return ((struct qmp *)user)->greeted;
}

/* Connect in slices, so that a QEMU that dies while starting is noticed at once. */
static int connect_alive(const char *path, uint64_t deadline, bool (*alive)(void *user), void *user,
			 struct ft_error *err)
{
	uint64_t slice;
	int fd;

	for (;;) {
		slice = util_deadline_ms(50);
		fd = unix_connect(path, slice < deadline ? slice : deadline, err);
		if (fd >= 0 || (fd != -ENOENT && fd != -ECONNREFUSED) || util_now_ns() >= deadline)
			return fd;
		if (alive && !alive(user))
			return fail(err, -EPIPE, "QMP: QEMU ended before it opened its socket");
	}
}

int qmp_open(struct qmp **out, const char *path, uint64_t deadline, bool (*alive)(void *user), qmp_event_fn *event,
	     void *user, struct ft_error *err)
{
	struct qmp *q;
	int rc;

	*out = NULL;
	q = calloc(1, sizeof(*q));
	if (!q)
		return fail(err, -ENOMEM, "QMP: no memory");
	q->event = event;
	q->user = user;
	pthread_mutex_init(&q->lock, NULL);
	q->fd = -1;
	q->replied = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->replied < 0) {
		rc = fail_sys(err, -errno, "QMP: eventfd");
		goto out;
	}
	q->fd = connect_alive(path, deadline, alive, user, err);
	rc = q->fd < 0 ? q->fd : 0;
	if (rc)
		goto out;
	rc = qmp_wait_for(q, greeted, q, deadline, err);
	if (rc) {
		fail_in(err, "%s: greeting", path);
		goto out;
	}
	rc = qmp_call(q, "qmp_capabilities", -1, deadline, NULL, err, NULL);
out:
	if (rc) {
		qmp_close(q);
		return rc;
	}
	*out = q;
	return 0;
}

void qmp_close(struct qmp *q)
{
	int i;

	if (!q)
		return;
	fd_close(&q->fd);
	fd_close(&q->replied);
	for (i = 0; i < WAITING_MAX; i++)
		forget(&q->waiting[i]);
	free(q->buf);
	pthread_mutex_destroy(&q->lock);
	free(q);
}
