/* SPDX-License-Identifier: MIT */
/* disk_standby.c - see disk_standby.h.  A qemu-nbd ends when its client leaves, and so with us, whatever kills us: the next start finds the
 * images free.  (PR_SET_PDEATHSIG would not do: it looks at the thread that forked, and images are opened anew on threads of connections.) */
#include "disk_standby.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "disk_journal.h"
#include "disk_nbd.h"
#include "launch.h"

#define START_MS 10000
#define END_MS 10000
#define BUSY_MS 3000
#define CAP_BYTES (UINT64_C(256) << 20) /* committed, and not in the images: more lets the primary wait */

struct image {
	pid_t pid;
	char log[320], path[320];
	struct disk_nbd *nbd;
};

struct disk_standby {
	const struct disk_list *list;
	char run_dir[256], journal_path[520];
	bool durable;
	struct journal *journal;
	struct image image[DISKS_MAX];
	bool is_finished;
	atomic_bool has_failed; /* an image: all are opened anew before they are used again */
};

/* ---- images ------------------------------------------------------------------------------------- */

static int image_failed(struct disk_standby *d, unsigned disk, struct ft_error *err)
{
	atomic_store(&d->has_failed, true);
	return fail_in(err, "secondary's disk %s", d->list->disk[disk].name);
}

static int write_image(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *err)
{
	struct disk_standby *d = user;
	int rc = disk_nbd_write(d->image[disk].nbd, offset, buf, len, err);

	return rc ? image_failed(d, disk, err) : 0;
}

static int zero_image(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *err)
{
	struct disk_standby *d = user;
	int rc = disk_nbd_zero(d->image[disk].nbd, offset, len, err);

	return rc ? image_failed(d, disk, err) : 0;
}

static int flush_images(void *user, struct ft_error *err)
{
	struct disk_standby *d = user;
	int rc = 0;

	for (unsigned i = 0; !rc && i < d->list->nr; i++) {
		rc = disk_nbd_flush(d->image[i].nbd, err);
		if (rc)
			image_failed(d, i, err);
	}
	return rc;
}

static void become_nbd(const struct disk_info *disk, const struct image *image)
{
	char format[32], path[340];
	char *argv[] = { (char *)"qemu-nbd", format, (char *)"--cache=writeback", (char *)"--discard=unmap",
			 (char *)"--socket", path,   (char *)disk->file,          NULL };
	sigset_t none;
	int null = open("/dev/null", O_RDWR), log = open(image->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	snprintf(format, sizeof(format), "--format=%s", disk->format);
	snprintf(path, sizeof(path), "%s", image->path);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid(); /* no terminal's ^C */
	if (null < 0 || log < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
		_exit(126);
	execvp(argv[0], argv);
	dprintf(2, "qemu-nbd cannot be run (%s); it is in Debian's package qemu-utils\n", strerror(errno));
	_exit(127);
}

static bool has_ended(struct image *i)
{
	if (i->pid > 0 && waitpid(i->pid, NULL, WNOHANG) == i->pid)
		i->pid = 0;
	return i->pid == 0;
}

static int ended(const struct image *i, const struct disk_info *disk, struct ft_error *err)
{
	char words[256];

	launch_last_words(i->log, words, sizeof(words));
	if (strstr(words, "lock"))
		return fail(err, -EBUSY,
			    "disk %s: another process has its image %s open (%.200s); if that is the primary, by "
			    "shared storage: "
			    "each host needs an image of its own, since the primary writes to its one before an epoch "
			    "is safe",
			    disk->name, disk->file, words);
	return fail(err, -ECHILD, "disk %s: %s", disk->name, words[0] ? words : "qemu-nbd has ended and said nothing");
}

static int start_image(struct disk_standby *d, unsigned n, struct ft_error *err)
{
	const struct disk_info *disk = &d->list->disk[n];
	uint64_t deadline = util_deadline_ms(START_MS);
	struct image *i = &d->image[n];
	int rc;

	snprintf(i->log, sizeof(i->log), "%s/qemu-nbd.%u.log", d->run_dir, n);
	snprintf(i->path, sizeof(i->path), "%s/image.%u", d->run_dir, n);
	unlink(i->path);
	i->pid = fork();
	if (i->pid < 0) {
		i->pid = 0;
		return fail_sys(err, -errno, "qemu-nbd");
	}
	if (i->pid == 0)
		become_nbd(disk, i);
	while (access(i->path, F_OK) && !has_ended(i) && util_now_ns() < deadline)
		util_sleep_ms(5);
	if (has_ended(i))
		return ended(i, disk, err);
	rc = disk_nbd_open(&i->nbd, i->path, "", disk->size, err);
	if (!rc)
		return 0;
	/* it listens before it opens the image */
	for (deadline = util_deadline_ms(1000); !has_ended(i) && util_now_ns() < deadline;)
		util_sleep_ms(5);
	return has_ended(i) ? ended(i, disk, err) : fail_in(err, "disk %s", disk->name);
}

static void end_image(struct image *i)
{
	uint64_t deadline = util_deadline_ms(END_MS);

	disk_nbd_close(i->nbd);
	i->nbd = NULL;
	if (i->pid > 0)
		kill(i->pid, SIGTERM);
	while (!has_ended(i) && util_now_ns() < deadline)
		util_sleep_ms(2);
	if (i->pid > 0) {
		kill(i->pid, SIGKILL);
		waitpid(i->pid, NULL, 0);
		i->pid = 0;
	}
	unlink(i->path);
}

static int start_images(struct disk_standby *d, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(BUSY_MS);
	int rc = 0;

	for (unsigned i = 0; !rc && i < d->list->nr; i++) {
		/* the qemu-nbd of a predecessor that was killed may not have let go yet */
		while ((rc = start_image(d, i, err)) == -EBUSY && util_now_ns() < deadline)
			util_sleep_ms(50);
	}
	return rc;
}

static void end_images(struct disk_standby *d)
{
	for (unsigned i = 0; i < d->list->nr; i++)
		end_image(&d->image[i]);
}

/* ---- the journal -------------------------------------------------------------------------------- */

void disk_standby_look(const struct disk_standby_config *config, struct disk_standby_look *out)
{
	struct journal_config c = {
		.path = out->path, .size = config->list->size, .id = config->list->id, .nr = config->list->nr
	};

	if (config->journal)
		snprintf(out->path, sizeof(out->path), "%s", config->journal);
	else
		snprintf(out->path, sizeof(out->path), "%.500s.ft-journal", config->list->disk[0].file);
	journal_look(&c, &out->journal);
}

static int open_journal(struct disk_standby *d, uint64_t *replayed, struct ft_error *err)
{
	struct journal_config c = { .path = d->journal_path,
				    .size = d->list->size,
				    .id = d->list->id,
				    .nr = d->list->nr,
				    .cap_bytes = CAP_BYTES,
				    .durable = d->durable,
				    .write = write_image,
				    .zero = zero_image,
				    .flush = flush_images,
				    .user = d };

	return journal_open(&d->journal, &c, replayed, err);
}

int disk_standby_open(struct disk_standby **out, const struct disk_standby_config *config, char *said, size_t size,
		      struct ft_error *err)
{
	struct disk_standby *d = calloc(1, sizeof(*d));
	struct disk_standby_look look;
	uint64_t replayed = 0;
	int rc;

	*out = NULL;
	said[0] = '\0';
	if (!d)
		return fail(err, -ENOMEM, "no memory");
	d->list = config->list;
	d->durable = config->durable;
	snprintf(d->run_dir, sizeof(d->run_dir), "%s", config->run_dir);
	disk_standby_look(config, &look);
	snprintf(d->journal_path, sizeof(d->journal_path), "%s", look.path);
	if (look.journal.is_incomplete)
		snprintf(said, size, "the images are incomplete: the first copy did not come to its end");
	rc = start_images(d, err);
	if (!rc)
		rc = open_journal(d, &replayed, err);
	if (!rc && replayed)
		snprintf(said, size, "%llu octets were left in the journal %s, and the images have them now",
			 (unsigned long long)replayed, d->journal_path);
	if (rc) {
		d->is_finished = true; /* nothing more is applied */
		disk_standby_close(d);
		return rc;
	}
	*out = d;
	return 0;
}

/* A qemu-nbd that died, an image or a journal that could not be written: perhaps it can now.  The file has all that was committed. */
static int mend(struct disk_standby *d, struct ft_error *err)
{
	int rc;

	if (!atomic_load(&d->has_failed) && !journal_has_failed(d->journal))
		return 0;
	journal_halt(d->journal);
	end_images(d);
	rc = start_images(d, err);
	if (rc)
		return rc;
	atomic_store(&d->has_failed, false);
	return journal_again(d->journal, err);
}

int disk_standby_begin(struct disk_standby *d, struct ft_error *err)
{
	int rc = mend(d, err);

	return rc ? rc : journal_begin(d->journal, err);
}

int disk_standby_write(struct disk_standby *d, const void *buf, size_t len, struct ft_error *err)
{
	return journal_write(d->journal, buf, len, err);
}

int disk_standby_commit(struct disk_standby *d, uint64_t epoch, struct ft_error *err)
{
	return journal_commit(d->journal, epoch, err);
}

uint64_t disk_standby_bytes(struct disk_standby *d)
{
	return journal_bytes(d->journal);
}

int disk_standby_finish(struct disk_standby *d, struct ft_error *err)
{
	int rc;

	if (d->is_finished)
		return 0;
	rc = mend(d, err);
	if (!rc)
		rc = journal_finish(d->journal, err);
	if (rc && (atomic_load(&d->has_failed) || journal_has_failed(d->journal))) /* only now it was seen */
		rc = mend(d, err) ? err->code : journal_finish(d->journal, err);
	if (rc)
		return rc;
	d->is_finished = true;
	end_images(d);
	return 0;
}

void disk_standby_close(struct disk_standby *d)
{
	struct ft_error err = { 0 };

	if (!d)
		return;
	disk_standby_finish(d, &err);
	journal_close(d->journal);
	end_images(d);
	free(d);
}
