/* SPDX-License-Identifier: MIT */
/* witness_file.c - the witness that is a file on storage that both sides see: one record as text, read, judged, written and made stable under a lock of
 * the open file.
 *
 * The lock is asked for again and again until the deadline.  Reading, writing and fsync cannot be cut short, so ft-witness does them: who asks waits
 * for it until the deadline, and what it is at then is finished some time, or never.
 *
 * Owns the descriptor and ft-witness, which lives as long as the witness; a storage that hangs at the end keeps both (they go when it answers).
 *
 * Must hold
 *   - nothing is written but what witness_judge() made of a record that was whole, or of an empty file;
 *   - nothing is begun to be written after the deadline: the answer would be taken for not known. */
#include "witness.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "digest.h"
#include "err.h"
#include "thread.h"

#define LOCK_POLL_NS (2 * NS_PER_MS)
#define LATE_NS (20 * NS_PER_MS) /* what ft-witness says at the deadline still comes */
#define CLOSE_MS 1000

/* The record: fixed in length, so that a write never changes the file's. */
#define HOLDER_AT 20u
#define GENERATION_AT (HOLDER_AT + WITNESS_NAME_MAX + 11u)
#define COUNTER_AT (GENERATION_AT + 20u + 9u)
#define LEASE_AT (COUNTER_AT + 20u + 7u)
#define SUM_AT (LEASE_AT + 10u + 5u)
#define RECORD_BYTES (SUM_AT + 16u + 1u)

struct file_witness {
	struct witness base;
	char *path;
	int fd; /* ft-witness only */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond; /* with lock: busy, quit */
	/* guarded by lock */
	bool busy; /* a question was asked and is not answered */
	bool quit;
	bool orphan; /* nobody waits for ft-witness: it frees all when it ends */
	uint64_t asked_ns, deadline;
	struct witness_question question;
	enum witness_answer answer;
	struct witness_view view;
	struct ft_error err;
};

/* ---- the record ---- */

static void encode(char buf[static RECORD_BYTES + 1], const struct witness_record *r)
{
	int n = snprintf(buf, RECORD_BYTES + 1,
			 "ft witness 1\nholder %-63s\ngeneration %020" PRIu64 "\ncounter %020" PRIu64
			 "\nlease %010" PRIu32 "\n",
			 *r->holder ? r->holder : "-", r->generation, r->counter, r->lease_ms);

	snprintf(buf + n, RECORD_BYTES + 1 - (size_t)n, "sum %016" PRIx64 "\n", digest_state(buf, (size_t)n));
}

/* What is read is a record if it is what would be written for it. */
static bool decode(const char buf[static RECORD_BYTES], struct witness_record *r)
{
	char again[RECORD_BYTES + 1];
	size_t len = WITNESS_NAME_MAX - 1;

	memset(r, 0, sizeof(*r));
	memcpy(r->holder, buf + HOLDER_AT, len);
	while (len && r->holder[len - 1] == ' ')
		r->holder[--len] = '\0';
	if (strcmp(r->holder, "-") == 0)
		r->holder[0] = '\0';
	r->generation = strtoull(buf + GENERATION_AT, NULL, 10);
	r->counter = strtoull(buf + COUNTER_AT, NULL, 10);
	r->lease_ms = (uint32_t)strtoull(buf + LEASE_AT, NULL, 10);
	encode(again, r);
	return memcmp(buf, again, RECORD_BYTES) == 0;
}

/* ---- the file: ft-witness ---- */

static int open_file(struct file_witness *f, struct ft_error *err)
{
	struct stat st;

	if (f->fd >= 0)
		return 0;
	f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
	if (f->fd < 0)
		return err_sys(err, -errno, "witness %s", f->path);
	if (fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode))
		return 0;
	close(f->fd);
	f->fd = -1;
	return err_set(err, -EINVAL, "witness %s: not a file", f->path);
}

/* Two sides that look at two files would both be right. */
static int check_same(const struct file_witness *f, struct ft_error *err)
{
	struct stat ours, there;

	if (fstat(f->fd, &ours) || stat(f->path, &there))
		return err_sys(err, -errno, "witness %s", f->path);
	if (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
		return 0;
	return err_set(err, -ESTALE, "witness %s: another file is there than was opened", f->path);
}

static int lock_file(const struct file_witness *f, short type, uint64_t deadline, struct ft_error *err)
{
	const struct timespec poll = { .tv_nsec = LOCK_POLL_NS };
	uint64_t begun = now_ns();

	for (;;) {
		struct flock lock = { .l_type = type, .l_whence = SEEK_SET };

		if (fcntl(f->fd, F_OFD_SETLK, &lock) == 0)
			return 0;
		if (errno != EAGAIN && errno != EACCES && errno != EINTR)
			return err_sys(err, -errno, "witness %s: lock", f->path);
		if (now_ns() + LOCK_POLL_NS >= deadline)
			return err_set(err, -ETIMEDOUT, "witness %s: locked by another for %" PRIu64 " ms", f->path,
				       (now_ns() - begun) / NS_PER_MS);
		nanosleep(&poll, NULL);
	}
}

static void unlock_file(const struct file_witness *f)
{
	struct flock lock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	fcntl(f->fd, F_OFD_SETLK, &lock);
}

static int read_record(const struct file_witness *f, struct witness_record *r, bool *empty, struct ft_error *err)
{
	char buf[RECORD_BYTES + 1]; /* one more: a longer file is not ours */
	ssize_t n = pread(f->fd, buf, sizeof(buf), 0);

	memset(r, 0, sizeof(*r));
	*empty = n == 0;
	if (n < 0)
		return err_sys(err, -errno, "witness %s: read", f->path);
	if (*empty || (n == RECORD_BYTES && decode(buf, r)))
		return 0;
	return err_set(err, -EBADMSG, "witness %s: what is in it is torn, or not a witness's: it is left as it is",
		       f->path);
}

static int write_record(const struct file_witness *f, const struct witness_record *r, bool empty, struct ft_error *err)
{
	char buf[RECORD_BYTES + 1];
	ssize_t n;

	encode(buf, r);
	n = pwrite(f->fd, buf, RECORD_BYTES, 0);
	if (n == RECORD_BYTES)
		return fsync(f->fd) ? err_sys(err, -errno, "witness %s: fsync", f->path) : 0;
	err_sys(err, n < 0 ? -errno : -ENOSPC, "witness %s: write", f->path);
	if (empty && n > 0 && ftruncate(f->fd, 0)) /* the first record: better none than half of one */
		err_prefix(err, "half a record is left");
	return err->code;
}

static enum witness_answer judge_locked(struct file_witness *f, const struct witness_question *q, uint64_t deadline,
					struct witness_view *view, struct ft_error *err)
{
	struct witness_record record;
	enum witness_answer answer;
	bool empty;

	if (check_same(f, err) || read_record(f, &record, &empty, err))
		return WITNESS_UNKNOWN;
	answer = witness_judge(&f->base, q, &record, view, err);
	if (answer != WITNESS_YES || q->what == WITNESS_LOOK)
		return answer;
	if (now_ns() >= deadline) {
		err_set(err, -ETIMEDOUT, "witness %s: too slow", f->path);
		return WITNESS_UNKNOWN;
	}
	return write_record(f, &record, empty, err) ? WITNESS_UNKNOWN : WITNESS_YES;
}

static enum witness_answer consult(struct file_witness *f, const struct witness_question *q, uint64_t deadline,
				   struct witness_view *view, struct ft_error *err)
{
	enum witness_answer answer;

	if (open_file(f, err) || lock_file(f, q->what == WITNESS_LOOK ? F_RDLCK : F_WRLCK, deadline, err))
		return WITNESS_UNKNOWN;
	answer = judge_locked(f, q, deadline, view, err);
	unlock_file(f);
	return answer;
}

static void destroy(struct file_witness *f)
{
	if (f->fd >= 0)
		close(f->fd);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->cond);
	free(f->path);
	free(f);
}

static void serve(struct file_witness *f)
{
	const struct witness_question q = f->question;
	const uint64_t deadline = f->deadline;
	struct witness_view view = { 0 };
	struct ft_error err = { 0 };
	enum witness_answer answer;

	pthread_mutex_unlock(&f->lock);
	answer = consult(f, &q, deadline, &view, &err);
	pthread_mutex_lock(&f->lock);
	f->answer = answer;
	f->view = view;
	f->err = err;
	f->busy = false;
	pthread_cond_broadcast(&f->cond);
}

static void *file_main(void *arg)
{
	struct file_witness *f = arg;
	bool orphan;

	pthread_mutex_lock(&f->lock);
	while (!f->quit || f->busy) {
		if (f->busy)
			serve(f);
		else
			cond_wait_until(&f->cond, &f->lock, DEADLINE_NEVER);
	}
	orphan = f->orphan;
	pthread_mutex_unlock(&f->lock);
	if (orphan)
		destroy(f);
	return NULL;
}

/* ---- who asks ---- */

/* True: no question is under way any more. */
static bool settled_locked(struct file_witness *f, uint64_t deadline)
{
	int r = 0;

	while (f->busy && r != -ETIMEDOUT)
		r = cond_wait_until(&f->cond, &f->lock, deadline);
	return !f->busy;
}

static enum witness_answer file_ask(struct witness *w, const struct witness_question *q, uint64_t deadline,
				    struct witness_view *view, struct ft_error *err)
{
	struct file_witness *f = (struct file_witness *)w;
	enum witness_answer answer = WITNESS_UNKNOWN;
	bool answered = false;

	pthread_mutex_lock(&f->lock);
	if (settled_locked(f, deadline)) {
		f->question = *q;
		f->deadline = deadline;
		f->asked_ns = now_ns();
		f->busy = true;
		pthread_cond_broadcast(&f->cond);
		answered = settled_locked(f, deadline + LATE_NS);
	}
	if (answered) {
		answer = f->answer;
		*view = f->view;
		if (answer != WITNESS_YES)
			*err = f->err;
	} else {
		err_set(err, -ETIMEDOUT, "witness %s: the storage has not answered for %" PRIu64 " ms", f->path,
			(now_ns() - f->asked_ns) / NS_PER_MS);
	}
	pthread_mutex_unlock(&f->lock);
	return answer;
}

static void file_close(struct witness *w)
{
	struct file_witness *f = (struct file_witness *)w;
	bool settled;

	pthread_mutex_lock(&f->lock);
	settled = settled_locked(f, deadline_in_ms(CLOSE_MS));
	f->quit = true;
	f->orphan = !settled;
	if (!settled)
		pthread_detach(f->thread);
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	if (!settled)
		return;
	pthread_join(f->thread, NULL);
	destroy(f);
}

static const struct witness_ops file_ops = { .ask = file_ask, .close = file_close };

int witness_file_open(struct witness **out, const char *path, const struct witness_self *self, struct ft_error *err)
{
	struct file_witness *f = calloc(1, sizeof(*f));
	int r = -ENOMEM;

	*out = NULL;
	if (!f)
		return err_set(err, -ENOMEM, "no memory for a witness");
	pthread_mutex_init(&f->lock, NULL);
	cond_init(&f->cond);
	f->base = (struct witness){ .ops = &file_ops, .self = *self };
	f->fd = -1;
	f->path = strdup(path);
	if (f->path)
		r = thread_start(&f->thread, "ft-witness", file_main, f);
	if (r) {
		destroy(f);
		return err_sys(err, r, "cannot open a witness");
	}
	*out = &f->base;
	return 0;
}
