/* SPDX-License-Identifier: MIT */
/* disk_journal.c - see disk_journal.h.
 *
 * Positions in the file: applied <= committed <= end.  The reader (the thread, or the replay) is in [applied, committed), the writer at end. */
#include "disk_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define HEAD_BYTES 4096u
#define COPY_BYTES 512u                    /* of the head: a sector, which a disk writes whole or not */
#define MAGIC UINT64_C(0x324c4e4a4b534454) /* "TDSKJNL2", least significant octet first */
#define INCOMPLETE UINT64_C(1)
#define READ_BYTES (UINT32_C(1) << 20)
#define SLOW_MS 30000                   /* how long what comes in may wait for the images */
#define RESET_BYTES (UINT64_C(1) << 40) /* a file that long begins anew even if that has to be waited for */

/* Of the head's words; all are 64 bit. */
enum { W_MAGIC, W_SEQUENCE, W_FIT, W_IMAGES, W_FLAGS, W_APPLIED, W_DIGEST, WORDS };

struct journal {
	struct journal_config config;
	char path[512];
	uint64_t size[DISKS_MAX];
	int fd;
	uint64_t sequence, flags;
	uint64_t fit, images;  /* of the sizes; of the identities */
	struct disk_stream in; /* checks what comes in */
	XXH3_state_t *digest;  /* of the epoch that comes in */
	uint64_t epoch_bytes;
	bool is_direct, wants_begin;
	bool has_name, has_new_name;
	uint8_t name[DISK_NAME], new_name[DISK_NAME]; /* of the copy that is here; of the one that comes */
	uint64_t end;
	uint8_t *buf; /* of the reader */

	pthread_mutex_t lock; /* guards what follows, and the head */
	pthread_cond_t moved;
	uint64_t applied, committed;
	bool stop, has_thread;
	struct ft_error failed; /* of applying */
	pthread_t thread;
};

/* ---- the file ----------------------------------------------------------------------------------- */

static int write_at(struct journal *j, uint64_t at, const void *buf, size_t len, struct ft_error *err)
{
	const uint8_t *from = buf;
	ssize_t n;

	while (len) {
		n = pwrite(j->fd, from, len, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail_sys(err, n < 0 ? -errno : -EIO, "journal of the disks, %s", j->path);
		from += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static int make_stable(struct journal *j, struct ft_error *err)
{
	return fdatasync(j->fd) ? fail_sys(err, -errno, "journal of the disks, %s", j->path) : 0;
}

static uint64_t digest_of(const uint64_t *word, unsigned nr)
{
	uint8_t octets[8 * DISKS_MAX];

	for (unsigned i = 0; i < nr; i++)
		disk_put64(octets + 8 * i, word[i]);
	return XXH3_64bits(octets, 8 * nr);
}

static bool is_of(const struct journal *j, const struct journal_config *c)
{
	return j->fit == digest_of(c->size, c->nr) && (!c->id || j->images == digest_of(c->id, c->nr));
}

static int write_head(struct journal *j, struct ft_error *err)
{
	uint64_t word[WORDS] = { [W_MAGIC] = MAGIC,      [W_SEQUENCE] = ++j->sequence, [W_FIT] = j->fit,
				 [W_IMAGES] = j->images, [W_FLAGS] = j->flags,         [W_APPLIED] = j->applied };
	uint8_t octets[8 * WORDS];
	int rc;

	for (unsigned i = 0; i < WORDS; i++)
		disk_put64(octets + 8 * i, word[i]);
	disk_put64(octets + 8 * W_DIGEST, XXH3_64bits(octets, 8 * W_DIGEST));
	rc = write_at(j, j->sequence % 2 * COPY_BYTES, octets, sizeof(octets), err);
	return rc ? rc : make_stable(j, err);
}

static bool read_copy(const struct journal *j, unsigned which, uint64_t word[WORDS])
{
	uint8_t octets[8 * WORDS];

	if (pread(j->fd, octets, sizeof(octets), (off_t)(which * COPY_BYTES)) != sizeof(octets))
		return false;
	for (unsigned i = 0; i < WORDS; i++)
		word[i] = disk_get64(octets + 8 * i);
	return word[W_MAGIC] == MAGIC && word[W_DIGEST] == XXH3_64bits(octets, 8 * W_DIGEST);
}

/* False: there is no head. */
static bool read_head(struct journal *j)
{
	uint64_t word[2][WORDS];
	bool ok[2] = { read_copy(j, 0, word[0]), read_copy(j, 1, word[1]) };
	unsigned newer = ok[1] && (!ok[0] || word[1][W_SEQUENCE] > word[0][W_SEQUENCE]);

	if (!ok[newer])
		return false;
	j->sequence = word[newer][W_SEQUENCE];
	j->fit = word[newer][W_FIT];
	j->images = word[newer][W_IMAGES];
	j->flags = word[newer][W_FLAGS];
	j->applied = word[newer][W_APPLIED];
	return j->applied >= HEAD_BYTES;
}

/* The images have all: the file begins anew.  Shortened first, so that nothing old is behind the new beginning. */
static int restart_file(struct journal *j, struct ft_error *err)
{
	int rc = ftruncate(j->fd, HEAD_BYTES) ? fail_sys(err, -errno, "journal of the disks, %s", j->path)
					      : make_stable(j, err);

	if (rc)
		return rc;
	j->applied = j->committed = j->end = HEAD_BYTES;
	return write_head(j, err);
}

/* ---- applying ----------------------------------------------------------------------------------- */

static int apply_data(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *err)
{
	struct journal *j = user;

	return j->config.write(j->config.user, disk, offset, buf, len, err);
}

static int apply_zero(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *err)
{
	struct journal *j = user;

	return j->config.zero(j->config.user, disk, offset, len, err);
}

static int ignore_base(void *user, const uint8_t name[DISK_NAME], bool changes_only, struct ft_error *err)
{
	(void)user, (void)name, (void)changes_only, (void)err;
	return 0;
}

static int ignore_commit(void *user, const uint8_t payload[DISK_COMMIT], struct ft_error *err)
{
	(void)user, (void)payload, (void)err;
	return 0;
}

static const struct disk_stream_ops apply_ops = { apply_data, apply_zero, ignore_base, ignore_commit };

/* Octets [@from, @to) of the file into @s.  -ENODATA: the file ends before. */
static int read_range(struct journal *j, struct disk_stream *s, uint64_t from, uint64_t to, struct ft_error *err)
{
	int rc = 0;
	ssize_t n;

	while (!rc && from < to) {
		n = pread(j->fd, j->buf, to - from < READ_BYTES ? (size_t)(to - from) : READ_BYTES, (off_t)from);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail_sys(err, -errno, "journal of the disks, %s", j->path);
		if (n == 0)
			return -ENODATA;
		rc = disk_stream_read(s, j->buf, (size_t)n, err);
		from += (uint64_t)n;
	}
	return rc;
}

/* Everything committed up to @to is put into the images and forgotten here. */
static int apply_to(struct journal *j, uint64_t from, uint64_t to, struct ft_error *err)
{
	struct disk_stream s;
	int rc;

	disk_stream_init(&s, &apply_ops, j, j->size, j->config.nr);
	rc = make_stable(j, err); /* J5 */
	if (!rc)
		rc = read_range(j, &s, from, to, err);
	if (!rc)
		rc = j->config.flush(j->config.user, err);
	if (rc)
		return rc == -ENODATA ? fail(err, -EIO, "journal of the disks, %s: it has become shorter", j->path)
				      : rc;
	pthread_mutex_lock(&j->lock);
	j->applied = to;
	rc = write_head(j, err);
	/* with the lock: a file that began anew has other things there.  Where it cannot be done the file is only larger */
	if (!rc)
		(void)!fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
	pthread_cond_broadcast(&j->moved);
	pthread_mutex_unlock(&j->lock);
	return rc;
}

static void *run(void *user)
{
	struct journal *j = user;
	struct ft_error err = { 0 };
	uint64_t from, to;
	int rc = 0;

	pthread_mutex_lock(&j->lock);
	while (!rc) {
		while (!j->stop && j->applied == j->committed)
			pthread_cond_wait(&j->moved, &j->lock);
		if (j->stop)
			break;
		from = j->applied;
		to = j->committed;
		pthread_mutex_unlock(&j->lock);
		rc = apply_to(j, from, to, &err);
		pthread_mutex_lock(&j->lock);
	}
	if (rc)
		j->failed = err;
	pthread_cond_broadcast(&j->moved);
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

/* Until the images have all but @more octets of what is committed. */
static int wait_applied(struct journal *j, uint64_t more, unsigned ms, struct ft_error *err)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	pthread_mutex_lock(&j->lock);
	while (!j->failed.code && j->committed - j->applied > more && !rc)
		rc = -pthread_cond_timedwait(&j->moved, &j->lock, &until);
	if (j->failed.code)
		rc = fail(err, j->failed.code, "%s", j->failed.msg);
	else if (j->committed - j->applied > more)
		rc = fail(err, -ETIMEDOUT,
			  "the secondary's disk is too slow: %" PRIu64 " MiB of its journal wait for it",
			  (j->committed - j->applied) >> 20);
	else
		rc = 0;
	pthread_mutex_unlock(&j->lock);
	return rc;
}

/* ---- what comes in ------------------------------------------------------------------------------ */

/* Before the images are changed by what is not committed. */
static int mark_incomplete(struct journal *j, struct ft_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&j->lock);
	if (!(j->flags & INCOMPLETE)) {
		j->flags |= INCOMPLETE;
		rc = write_head(j, err);
	}
	pthread_mutex_unlock(&j->lock);
	return rc;
}

static int check_data(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *err)
{
	struct journal *j = user;
	int rc = j->is_direct ? mark_incomplete(j, err) : 0;

	return rc || !j->is_direct ? rc : j->config.write(j->config.user, disk, offset, buf, len, err);
}

static int check_zero(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *err)
{
	struct journal *j = user;
	int rc = j->is_direct ? mark_incomplete(j, err) : 0;

	return rc || !j->is_direct ? rc : j->config.zero(j->config.user, disk, offset, len, err);
}

static int check_base(void *user, const uint8_t name[DISK_NAME], bool changes_only, struct ft_error *err)
{
	struct journal *j = user;

	if (changes_only && (!j->has_name || memcmp(name, j->name, DISK_NAME)))
		return fail(err, -ESTALE, "%s, so all of it is needed", JOURNAL_NO_BASE);
	memcpy(j->new_name, name, DISK_NAME);
	j->has_new_name = true;
	return 0;
}

static const struct disk_stream_ops check_ops = { check_data, check_zero, check_base, NULL };

static void begin_epoch(struct journal *j)
{
	disk_stream_init(&j->in, &check_ops, j, j->size, j->config.nr);
	XXH3_64bits_reset(j->digest);
	j->epoch_bytes = 0;
}

int journal_begin(struct journal *j, struct ft_error *err)
{
	int rc = 0;

	begin_epoch(j);
	j->has_new_name = false;
	pthread_mutex_lock(&j->lock);
	j->end = j->committed;
	if (ftruncate(j->fd, (off_t)j->end))
		rc = fail_sys(err, -errno, "journal of the disks, %s", j->path);
	pthread_mutex_unlock(&j->lock);
	j->wants_begin = rc != 0;
	return rc;
}

/* Before an epoch's first octet, when nothing waits to be applied; not at the end of one, since an epoch that was committed is, whatever fails then. */
static int begin_anew_if_empty(struct journal *j, struct ft_error *err)
{
	int rc = 0;

	if (j->end > RESET_BYTES)
		rc = wait_applied(j, 0, SLOW_MS, err);
	pthread_mutex_lock(&j->lock);
	if (!rc && j->applied == j->committed && j->committed == j->end && j->end > HEAD_BYTES + j->config.cap_bytes)
		rc = restart_file(j, err);
	pthread_mutex_unlock(&j->lock);
	return rc;
}

int journal_write(struct journal *j, const void *buf, size_t len, struct ft_error *err)
{
	int rc = 0;

	if (j->wants_begin)
		return fail(err, -EPROTO, "disks: octets of a sync that was not begun");
	if (!j->is_direct)
		rc = wait_applied(j, j->config.cap_bytes, SLOW_MS, err);
	if (!rc && !j->is_direct && !j->epoch_bytes)
		rc = begin_anew_if_empty(j, err);
	if (!rc && !j->is_direct)
		rc = write_at(j, j->end, buf, len, err);
	if (!rc)
		rc = disk_stream_read(&j->in, buf, len, err);
	if (rc) {
		j->wants_begin = true; /* part of it may be there */
		return rc;
	}
	if (!j->is_direct) {
		XXH3_64bits_update(j->digest, buf, len);
		j->end += len;
	}
	j->epoch_bytes += len;
	return 0;
}

static int commit_direct(struct journal *j, struct ft_error *err)
{
	int rc = j->config.flush(j->config.user, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&j->lock);
	j->flags &= ~INCOMPLETE;
	rc = write_head(j, err);
	pthread_mutex_unlock(&j->lock);
	j->is_direct = rc != 0;
	return rc;
}

static int commit_mark(struct journal *j, uint64_t epoch, struct ft_error *err)
{
	uint8_t record[DISK_HEAD + DISK_COMMIT];
	int rc;

	disk_head(record, DISK_COMMIT_MARK, 0, DISK_COMMIT, 0);
	disk_put64(record + DISK_HEAD, j->epoch_bytes);
	disk_put64(record + DISK_HEAD + 8, XXH3_64bits_digest(j->digest));
	disk_put64(record + DISK_HEAD + 16, epoch);
	rc = write_at(j, j->end, record, sizeof(record), err);
	if (!rc && j->config.durable)
		rc = make_stable(j, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&j->lock);
	j->end += sizeof(record);
	j->committed = j->end;
	pthread_cond_broadcast(&j->moved);
	pthread_mutex_unlock(&j->lock);
	return 0;
}

int journal_commit(struct journal *j, uint64_t epoch, struct ft_error *err)
{
	int rc = 0;

	if (j->wants_begin)
		return fail(err, -EPROTO, "disks: the end of an epoch that was not begun");
	if (!disk_stream_is_between(&j->in))
		rc = fail(err, -EPROTO, "disks: an epoch ends within a record");
	else if (j->is_direct)
		rc = commit_direct(j, err);
	else
		rc = wait_applied(j, j->config.cap_bytes, SLOW_MS, err);
	if (!rc && j->epoch_bytes && j->end != j->committed)
		rc = commit_mark(j, epoch, err);
	if (rc) {
		j->wants_begin = true;
		return rc;
	}
	if (j->has_new_name) {
		memcpy(j->name, j->new_name, DISK_NAME);
		j->has_name = true;
		j->has_new_name = false;
	}
	begin_epoch(j);
	return 0;
}

/* ---- what was left ------------------------------------------------------------------------------ */

static bool read_at(const struct journal *j, uint64_t at, void *buf, size_t len)
{
	return pread(j->fd, buf, len, (off_t)at) == (ssize_t)len;
}

static bool has_digest(struct journal *j, uint64_t from, uint64_t to, uint64_t want)
{
	size_t n;

	XXH3_64bits_reset(j->digest);
	for (; from < to; from += n) {
		n = to - from < READ_BYTES ? (size_t)(to - from) : READ_BYTES;
		if (!read_at(j, from, j->buf, n))
			return false;
		XXH3_64bits_update(j->digest, j->buf, n);
	}
	return XXH3_64bits_digest(j->digest) == want;
}

/* The end of the last epoch behind applied that is whole. */
static uint64_t find_committed(struct journal *j, uint64_t size)
{
	uint64_t good = j->applied, at = good, first, length;
	uint8_t head[DISK_HEAD], mark[DISK_COMMIT];

	while (at <= size && size - at >= DISK_HEAD && read_at(j, at, head, sizeof(head))) {
		first = disk_get64(head);
		length = first >> 32;
		at += DISK_HEAD;
		switch (first & 0xff) {
		case DISK_ZERO:
			break;
		case DISK_DATA:
		case DISK_BASE:
			at += length;
			break;
		case DISK_COMMIT_MARK:
			if (!read_at(j, at, mark, sizeof(mark)) || disk_get64(mark) != at - DISK_HEAD - good ||
			    !has_digest(j, good, at - DISK_HEAD, disk_get64(mark + 8)))
				return good;
			at += DISK_COMMIT;
			good = at;
			break;
		default:
			return good;
		}
	}
	return good;
}

/* A start that did not come as far as the head, for want of room or since it was killed, leaves zeros. */
static bool was_never_begun(const struct journal *j, uint64_t size)
{
	static const uint8_t zeros[HEAD_BYTES];
	uint8_t head[HEAD_BYTES];

	return size == 0 ||
	       (size <= HEAD_BYTES && read_at(j, 0, head, (size_t)size) && !memcmp(head, zeros, (size_t)size));
}

static int not_ours(struct journal *j, struct ft_error *err)
{
	const char *why = j->fit == digest_of(j->config.size, j->config.nr)
				  ? "other images, or these were replaced or copied"
				  : "disks of other sizes";

	return fail(err, -EEXIST,
		    "%s has %" PRIu64 " octets for %s: start with those, or remove it and what they had is lost",
		    j->path, j->committed - j->applied, why);
}

/* The file as it was found: empty, ours, or somebody else's. */
static int take_file(struct journal *j, uint64_t *replayed, struct ft_error *err)
{
	struct stat st;
	int rc = 0;

	if (fstat(j->fd, &st))
		return fail_sys(err, -errno, "journal of the disks, %s", j->path);
	if (was_never_begun(j, (uint64_t)st.st_size))
		return 0;
	if (!read_head(j))
		return fail(err, -EEXIST,
			    "%s is there, and is no journal of disks: give --disk-journal another name, or remove it",
			    j->path);
	j->committed = find_committed(j, (uint64_t)st.st_size);
	if (j->committed > j->applied) {
		if (!is_of(j, &j->config))
			return not_ours(j, err);
		*replayed = j->committed - j->applied;
		rc = apply_to(j, j->applied, j->committed, err);
		if (rc)
			fail_in(err, "what was left in %s cannot be applied", j->path);
	}
	if (!is_of(j, &j->config))
		j->flags = 0;
	return rc;
}

/* ---- open, close -------------------------------------------------------------------------------- */

static int open_file(struct journal *j, struct ft_error *err)
{
	j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->fd < 0)
		return fail_sys(err, -errno, "journal of the disks, %s", j->path);
	if (flock(j->fd, LOCK_EX | LOCK_NB))
		return fail(err, -EBUSY, "journal of the disks, %s: another process uses it", j->path);
	return 0;
}

static int start_thread(struct journal *j, struct ft_error *err)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&j->thread, NULL, run, j);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	j->has_thread = rc == 0;
	if (!rc)
		pthread_setname_np(j->thread, "ft-journal");
	return rc ? fail_sys(err, -rc, "thread of the disks' journal") : 0;
}

int journal_open(struct journal **out, const struct journal_config *config, uint64_t *replayed, struct ft_error *err)
{
	struct journal *j = calloc(1, sizeof(*j));
	pthread_condattr_t attr;
	int rc = 0;

	*out = NULL;
	*replayed = 0;
	if (!j)
		return fail(err, -ENOMEM, "no memory");
	j->config = *config;
	memcpy(j->size, config->size, config->nr * sizeof(j->size[0]));
	snprintf(j->path, sizeof(j->path), "%s", config->path);
	j->fd = -1;
	j->applied = j->committed = j->end = HEAD_BYTES;
	j->is_direct = j->wants_begin = true;
	pthread_mutex_init(&j->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&j->moved, &attr);
	pthread_condattr_destroy(&attr);
	j->buf = malloc(READ_BYTES);
	j->digest = XXH3_createState();
	if (!j->buf || !j->digest)
		rc = fail(err, -ENOMEM, "no memory");
	if (!rc)
		rc = open_file(j, err);
	if (!rc)
		rc = take_file(j, replayed, err);
	j->fit = digest_of(config->size, config->nr);
	j->images = config->id ? digest_of(config->id, config->nr) : 0;
	if (!rc)
		rc = restart_file(j, err);
	if (!rc)
		rc = start_thread(j, err);
	if (rc) {
		journal_close(j);
		return rc;
	}
	*out = j;
	return 0;
}

static void end_thread(struct journal *j)
{
	pthread_mutex_lock(&j->lock);
	j->stop = true;
	pthread_cond_broadcast(&j->moved);
	pthread_mutex_unlock(&j->lock);
	if (j->has_thread)
		pthread_join(j->thread, NULL);
	j->has_thread = false;
}

void journal_halt(struct journal *j)
{
	end_thread(j);
}

int journal_again(struct journal *j, struct ft_error *err)
{
	j->stop = false;
	j->failed = (struct ft_error){ 0 };
	return start_thread(j, err);
}

int journal_finish(struct journal *j, struct ft_error *err)
{
	int rc = wait_applied(j, 0, 10 * SLOW_MS, err);

	if (rc)
		return rc;
	end_thread(j);
	j->wants_begin = true;
	if (!(j->flags & INCOMPLETE) && unlink(j->path))
		return fail_sys(err, -errno, "journal of the disks, %s", j->path);
	return 0;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	end_thread(j);
	fd_close(&j->fd);
	XXH3_freeState(j->digest);
	free(j->buf);
	pthread_cond_destroy(&j->moved);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

void journal_look(const struct journal_config *config, struct journal_look *out)
{
	struct journal j = { .fd = open(config->path, O_RDONLY | O_CLOEXEC),
			     .buf = malloc(READ_BYTES),
			     .digest = XXH3_createState() };
	struct stat st;

	*out = (struct journal_look){ .is_incomplete = false };
	if (j.fd >= 0 && j.buf && j.digest && !fstat(j.fd, &st) && read_head(&j) && is_of(&j, config)) {
		out->is_incomplete = j.flags & INCOMPLETE;
		out->bytes = find_committed(&j, (uint64_t)st.st_size) - j.applied;
	}
	fd_close(&j.fd);
	XXH3_freeState(j.digest);
	free(j.buf);
}

bool journal_has_failed(struct journal *j)
{
	bool failed;

	pthread_mutex_lock(&j->lock);
	failed = j->failed.code != 0;
	pthread_mutex_unlock(&j->lock);
	return failed;
}

uint64_t journal_bytes(struct journal *j)
{
	uint64_t n;

	pthread_mutex_lock(&j->lock);
	n = j->committed - j->applied;
	pthread_mutex_unlock(&j->lock);
	return n;
}
