/* SPDX-License-Identifier: MIT */
/* test_qemu_journal.c - the secondary's side of the disks, with images that are arrays.  A crash is a copy of the file and of the images, taken
 * between any two steps that the journal takes with the images; what the next start makes of it must be one committed epoch. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "disk_journal.h"

#define SIZE 65536u
#define EPOCHS 6u
#define CRASHES 64u

static const uint64_t size[2] = { SIZE, SIZE };

struct images {
	uint8_t disk[2][SIZE];
	unsigned steps;
	int fails; /* steps until one fails; 0: never */
	atomic_int holds;
	bool is_copy;           /* of a crash: not noted */
	struct images *flushed; /* gets what is flushed */
	void (*before)(struct images *images);
};

/* ---- what the journal does with its file, noted beside what it does with the images --------------- */

/* W write or zeros of an image, F flush of the images, S the file is made stable, H a head, O octets behind the head, P octets are let go of,
 * T the file becomes shorter.  The functions of the C library that do it are ours in this program. */
static struct {
	bool is_on;
	char did[4096];
	atomic_uint n;
	void (*stable)(int fd);
	int truncate_fails;
} notes;

static void note(char what)
{
	unsigned n;

	if (!notes.is_on)
		return;
	n = atomic_fetch_add(&notes.n, 1);
	cr_assert_lt(n, sizeof(notes.did) - 1);
	notes.did[n] = what;
}

int fdatasync(int fd)
{
	int rc = (int)syscall(SYS_fdatasync, fd);

	note('S');
	if (notes.stable)
		notes.stable(fd);
	return rc;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t at)
{
	note(at < 4096 ? 'H' : 'O');
	return syscall(SYS_pwrite64, fd, buf, len, at);
}

int fallocate(int fd, int mode, off_t at, off_t len)
{
	note('P');
	return (int)syscall(SYS_fallocate, fd, mode, at, len);
}

int ftruncate(int fd, off_t len)
{
	note('T');
	if (notes.truncate_fails && notes.truncate_fails-- == 1) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_ftruncate, fd, len);
}

static char dir[] = "/tmp/test-journal-XXXXXX", path[64];
static struct images images;
static uint8_t want[EPOCHS + 1][2][SIZE]; /* after each epoch */
static struct journal *journal;
static struct ft_error err;
static uint64_t replayed;

static int step(struct images *i, char what, struct ft_error *e)
{
	if (i->before)
		i->before(i);
	if (!i->is_copy)
		note(what);
	while (atomic_load(&i->holds))
		usleep(1000);
	i->steps++;
	return i->fails && --i->fails == 0 ? fail(e, -EIO, "the image is broken") : 0;
}

static int on_write(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *e)
{
	struct images *i = user;
	int rc = step(i, 'W', e);

	if (!rc)
		memcpy(i->disk[disk] + offset, buf, len);
	return rc;
}

static int on_zero(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *e)
{
	struct images *i = user;
	int rc = step(i, 'W', e);

	if (!rc)
		memset(i->disk[disk] + offset, 0, len);
	return rc;
}

static int on_flush(void *user, struct ft_error *e)
{
	struct images *i = user;
	int rc = step(i, 'F', e);

	if (!rc && i->flushed)
		memcpy(i->flushed->disk, i->disk, sizeof(i->disk));
	return rc;
}

static uint64_t image_id[2] = { 11, 12 };

static int open_at(const char *at, struct images *i, const uint64_t *sizes)
{
	struct journal_config c = { .path = at,
				    .size = sizes,
				    .id = image_id,
				    .nr = 2,
				    .cap_bytes = 1 << 20,
				    .write = on_write,
				    .zero = on_zero,
				    .flush = on_flush,
				    .user = i };

	return journal_open(&journal, &c, &replayed, &err);
}

static bool is_incomplete(const char *at)
{
	struct journal_config c = { .path = at, .size = size, .id = image_id, .nr = 2 };
	struct journal_look look;

	journal_look(&c, &look);
	return look.is_incomplete;
}

static void setup(void)
{
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/journal", dir);
	memset(images.disk, 0xee, sizeof(images.disk));
	cr_assert_eq(open_at(path, &images, size), 0, "%s", err.msg);
}

static void teardown(void)
{
	char command[100];

	journal_close(journal);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(journal, .init = setup, .fini = teardown, .timeout = 120);

/* ---- a stream ----------------------------------------------------------------------------------- */

static uint8_t stream[1 << 20];
static size_t used;

static void put_base(bool changes_only, char name)
{
	disk_head(stream + used, DISK_BASE, 0, DISK_NAME, changes_only);
	memset(stream + used + DISK_HEAD, name, DISK_NAME);
	used += DISK_HEAD + DISK_NAME;
}

static void put_data(unsigned disk, uint64_t offset, uint32_t len, int octet)
{
	disk_head(stream + used, DISK_DATA, disk, len, offset);
	memset(stream + used + DISK_HEAD, octet, len);
	used += DISK_HEAD + len;
}

static void put_zero(unsigned disk, uint64_t offset, uint32_t len)
{
	disk_head(stream + used, DISK_ZERO, disk, len, offset);
	used += DISK_HEAD;
}

static int send_all(void)
{
	size_t at, n;
	int rc = 0;

	for (at = 0; !rc && at < used; at += n) {
		n = used - at < 1234 ? used - at : 1234;
		rc = journal_write(journal, stream + at, n, &err);
	}
	used = 0;
	return rc;
}

static void full_copy(char name)
{
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(false, name);
	put_data(0, 0, SIZE, 1);
	put_data(1, 0, 1000, 2);
	put_zero(1, 1000, SIZE - 1000);
	cr_assert_eq(send_all(), 0, "%s", err.msg);
	cr_assert_eq(journal_commit(journal, 1, &err), 0, "%s", err.msg);
	memset(want[0][0], 1, SIZE);
	memset(want[0][1], 0, SIZE);
	memset(want[0][1], 2, 1000);
}

/* Epochs that overlap one another and themselves. */
static void put_epoch(unsigned e)
{
	memcpy(want[e], want[e - 1], sizeof(want[e]));
	put_data(0, 100 * e, 300, (int)(10 * e));
	memset(want[e][0] + 100 * e, (int)(10 * e), 300);
	put_data(0, 100 * e + 50, 100, (int)(10 * e + 1));
	memset(want[e][0] + 100 * e + 50, (int)(10 * e + 1), 100);
	put_zero(1, 200 * e, 150);
	memset(want[e][1] + 200 * e, 0, 150);
	put_data(1, SIZE - 700, 700, (int)(10 * e + 2));
	memset(want[e][1] + SIZE - 700, (int)(10 * e + 2), 700);
}

static void send_epoch(unsigned e)
{
	put_epoch(e);
	cr_assert_eq(send_all(), 0, "%s", err.msg);
	cr_assert_eq(journal_commit(journal, e + 1, &err), 0, "%s", err.msg);
}

static bool is_epoch(const struct images *i, unsigned e)
{
	return !memcmp(i->disk, want[e], sizeof(i->disk));
}

static void until_applied(void)
{
	for (int i = 0; journal_bytes(journal) && i < 20000; i++)
		usleep(1000);
	cr_assert_eq(journal_bytes(journal), 0);
}

Test(journal, applies_what_was_committed)
{
	full_copy('a');
	cr_assert(is_epoch(&images, 0), "the first copy goes straight into the images");
	for (unsigned e = 1; e <= EPOCHS; e++)
		send_epoch(e);
	put_epoch(1); /* and never committed */
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_finish(journal, &err), 0, "%s", err.msg);
	cr_assert(is_epoch(&images, EPOCHS));
	cr_assert_neq(access(path, F_OK), 0, "nothing is left");
}

Test(journal, an_epoch_that_is_not_committed_is_void)
{
	full_copy('a');
	send_epoch(1);
	until_applied();
	put_data(0, 0, SIZE, 0x77);
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(true, 'a');
	put_data(0, 5, 5, 0x55);
	cr_assert_eq(send_all(), 0, "%s", err.msg);
	cr_assert_eq(journal_commit(journal, 1, &err), 0);
	until_applied();
	memset(want[1][0] + 5, 0x55, 5);
	cr_assert(is_epoch(&images, 1));
}

Test(journal, changes_of_another_copy_are_refused)
{
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(true, 'a');
	cr_assert_eq(send_all(), -ESTALE);
	cr_assert(strstr(err.msg, JOURNAL_NO_BASE), "%s", err.msg);
	full_copy('a');
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(false, 'b'); /* begun, and not committed: the copy is still a */
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(true, 'b');
	cr_assert_eq(send_all(), -ESTALE);
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(true, 'a');
	cr_assert_eq(send_all(), 0);
}

Test(journal, nonsense_is_refused)
{
	static const struct {
		unsigned kind, disk;
		uint32_t length;
		uint64_t offset;
	} bad[] = { { 0, 0, 1, 0 },         { 1, 2, 1, 0 },    { 1, 0, 0, 0 },          { 1, 0, SIZE + 1, 0 },
		    { 1, 0, 1, SIZE },      { 2, 0, 1, SIZE }, { 2, 0, 2, UINT64_MAX }, { 3, 0, 15, 0 },
		    { 3, 0, DISK_NAME, 2 }, { 4, 0, 24, 0 },   { 5, 0, 1, 0 },          { 2, 0, UINT32_MAX, 0 } };

	full_copy('a');
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(journal_begin(journal, &err), 0);
		disk_head(stream, (enum disk_kind)bad[i].kind, bad[i].disk, bad[i].length, bad[i].offset);
		used = DISK_HEAD;
		cr_assert_eq(send_all(), -EPROTO, "record %zu", i);
		cr_assert_eq(journal_commit(journal, 2, &err), -EPROTO, "and nothing of it is committed");
	}
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_data(0, 0, 100, 1);
	used -= 50;
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_commit(journal, 2, &err), -EPROTO, "half a record");
	cr_assert_eq(journal_finish(journal, &err), 0);
	cr_assert(is_epoch(&images, 0));
}

/* ---- crashes ------------------------------------------------------------------------------------ */

struct crash {
	struct images images;
	char path[80];
};

static struct crash *crash;
static unsigned nr_crashes;

static void copy_file(const char *from, const char *to)
{
	static uint8_t buf[1 << 20];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ssize_t n;

	cr_assert(in >= 0 && out >= 0, "%s, %s", from, to);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		cr_assert_eq(write(out, buf, (size_t)n), n);
	cr_assert_eq(n, 0);
	close(in);
	close(out);
}

static void take_crash(struct images *i)
{
	struct crash *c = &crash[nr_crashes];

	if (nr_crashes == CRASHES)
		return;
	memcpy(c->images.disk, i->disk, sizeof(i->disk));
	snprintf(c->path, sizeof(c->path), "%s/crash%u", dir, nr_crashes++);
	copy_file(path, c->path);
}

/* What a start makes of it: the epoch that the images have then, or -1. */
static int epoch_after_start(const char *at, struct images *i)
{
	struct journal *kept = journal;
	int found = -1;

	cr_assert_eq(open_at(at, i, size), 0, "%s: %s", at, err.msg);
	journal_close(journal);
	journal = kept;
	for (unsigned e = 0; found < 0 && e <= EPOCHS; e++)
		if (is_epoch(i, e))
			found = (int)e;
	return found;
}

Test(journal, a_crash_between_any_two_steps_is_made_good)
{
	static struct images again;
	int before = 0, e;

	crash = calloc(CRASHES, sizeof(*crash));
	full_copy('a');
	atomic_store(&images.holds, 1); /* all epochs are committed before the first is applied */
	for (unsigned n = 1; n <= EPOCHS; n++)
		send_epoch(n);
	images.before = take_crash;
	atomic_store(&images.holds, 0);
	until_applied();
	take_crash(&images);
	images.before = NULL;
	cr_assert(nr_crashes > 20);
	for (unsigned n = 0; n < nr_crashes; n++) {
		char twice[100];

		snprintf(twice, sizeof(twice), "%s.twice", crash[n].path);
		copy_file(crash[n].path, twice);
		again = crash[n].images;
		/* the replay crashes too, at its third step, and the next start begins again */
		again.fails = 3;
		if (open_at(twice, &again, size) == 0)
			journal_close(journal);
		again.fails = 0;
		cr_assert_eq(epoch_after_start(twice, &again), (int)EPOCHS, "crash %u, twice", n);
		e = epoch_after_start(crash[n].path, &crash[n].images);
		cr_assert_eq(e, (int)EPOCHS, "crash %u: epoch %d", n, e);
		before = e;
	}
	cr_assert_eq(before, (int)EPOCHS);
	journal = NULL;
	free(crash);
}

Test(journal, a_torn_tail_is_some_whole_epoch)
{
	static struct images start, torn;
	char whole[80], cut[80];
	struct stat st;
	int last = 0, e;

	full_copy('a');
	start = images;
	atomic_store(&images.holds, 1);
	for (unsigned n = 1; n <= 3; n++)
		send_epoch(n);
	snprintf(whole, sizeof(whole), "%s/whole", dir);
	snprintf(cut, sizeof(cut), "%s/cut", dir);
	copy_file(path, whole);
	atomic_store(&images.holds, 0);
	cr_assert_eq(stat(whole, &st), 0);
	for (off_t n = 4096; n <= st.st_size; n += 1 + (n > 4200 && n < st.st_size - 60 ? 12 : 0)) {
		torn = start;
		copy_file(whole, cut);
		cr_assert_eq(truncate(cut, n), 0);
		e = epoch_after_start(cut, &torn);
		cr_assert(e >= last && e <= 3, "after %ld octets: epoch %d", (long)n, e);
		last = e;
	}
	cr_assert_eq(last, 3);
	/* octets that changed: nothing of that epoch and of those behind it */
	for (off_t n = 4096; n < st.st_size; n += 97) {
		int fd;
		uint8_t octet;

		torn = start;
		copy_file(whole, cut);
		fd = open(cut, O_RDWR);
		cr_assert(pread(fd, &octet, 1, n) == 1);
		octet ^= 0x40;
		cr_assert(pwrite(fd, &octet, 1, n) == 1);
		close(fd);
		e = epoch_after_start(cut, &torn);
		cr_assert(e >= 0 && e < 3, "octet %ld: epoch %d", (long)n, e);
	}
}

Test(journal, a_torn_head_leaves_the_one_before)
{
	static struct images start, torn;
	char cut[80];

	full_copy('a');
	start = images;
	atomic_store(&images.holds, 1);
	send_epoch(1);
	snprintf(cut, sizeof(cut), "%s/cut", dir);
	for (int which = 0; which < 2; which++) {
		int fd;

		torn = start;
		copy_file(path, cut);
		fd = open(cut, O_RDWR);
		cr_assert(pwrite(fd, "torn", 4, which * 512 + 20) == 4);
		close(fd);
		cr_assert_eq(epoch_after_start(cut, &torn), 1, "copy %d of the head", which);
	}
	atomic_store(&images.holds, 0);
}

/* ---- the order of what is done ------------------------------------------------------------------ */

/* J2, J5: the file is stable before the first write to an image; the images are flushed before the head that says so, that is stable before the
 * octets are let go of.  In each turn: S W+ F H S P, whatever comes in meanwhile. */
Test(journal, flushes_before_it_says_so_and_says_so_before_it_forgets)
{
	static const char turn[] = "SWFHSP";
	unsigned at = 0, turns = 0;

	full_copy('a');
	notes.is_on = true;
	for (unsigned e = 1; e <= EPOCHS; e++) {
		send_epoch(e);
		until_applied();
	}
	journal_halt(journal); /* the last of a turn is done by then */
	notes.is_on = false;
	for (const char *c = notes.did; *c; c++) {
		if (*c == 'O' || (*c == 'W' && turn[at] == 'F'))
			continue;
		cr_assert_eq(*c, turn[at], "%s: at %zu not %c", notes.did, (size_t)(c - notes.did), turn[at]);
		at = (at + 1) % 6;
		turns += at == 0;
	}
	cr_assert(at == 0 && turns >= 1 && turns <= EPOCHS, "%s", notes.did);
	cr_assert_eq(journal_again(journal, &err), 0);
}

/* The power goes: of the file only that is sure to be there which was made stable, of the images only what was flushed; all the rest may be there, too. */
static struct {
	char stable[80];
	struct images flushed;
	unsigned nr;
	struct crash crash[4 * CRASHES];
} power;

static void file_is_stable(int fd)
{
	(void)fd;
	copy_file(path, power.stable);
}

static void take_power(struct images *i)
{
	for (unsigned n = 0; n < 4 && power.nr < 4 * CRASHES; n++) {
		struct crash *c = &power.crash[power.nr];

		memcpy(c->images.disk, n & 1 ? i->disk : power.flushed.disk, sizeof(i->disk));
		c->images.is_copy = true;
		snprintf(c->path, sizeof(c->path), "%s/power%u", dir, power.nr++);
		copy_file(n & 2 ? path : power.stable, c->path);
	}
}

Test(journal, when_the_power_goes_the_images_become_those_of_one_epoch)
{
	int e, last = 0;

	full_copy('a');
	snprintf(power.stable, sizeof(power.stable), "%s/stable", dir);
	copy_file(path, power.stable);
	memcpy(power.flushed.disk, images.disk, sizeof(images.disk));
	notes.is_on = true;
	notes.stable = file_is_stable;
	images.flushed = &power.flushed;
	images.before = take_power;
	for (unsigned n = 1; n <= 3; n++) {
		send_epoch(n);
		if (n == 2)
			until_applied();
	}
	until_applied();
	journal_halt(journal);
	images.before = NULL;
	images.flushed = NULL;
	notes.stable = NULL;
	notes.is_on = false;
	cr_assert(power.nr > 40);
	for (unsigned n = 0; n < power.nr; n++) {
		e = epoch_after_start(power.crash[n].path, &power.crash[n].images);
		cr_assert(e >= 0, "case %u of %u: neither one epoch nor another", n, power.nr);
		last = e > last ? e : last;
	}
	cr_assert_eq(last, 3);
	cr_assert_eq(journal_again(journal, &err), 0);
}

/* The file cannot be made shorter when it is to begin anew: the epoch before that was committed all the same, as the session was told. */
Test(journal, what_fails_after_a_commit_does_not_undo_it)
{
	int rc = 0;

	full_copy('a');
	while (!rc) {
		for (unsigned k = 0; k < 10; k++)
			put_data(0, 0, 50000, 7);
		put_data(0, 0, 8, (int)images.steps);
		notes.truncate_fails = 1; /* the next one */
		rc = send_all();
		if (!rc)
			cr_assert_eq(journal_commit(journal, 2, &err), 0, "%s", err.msg);
		until_applied();
		if (!rc)
			cr_assert_eq(journal_commit(journal, 3, &err), 0, "an epoch without a write: %s", err.msg);
	}
	cr_assert_eq(rc, -EIO);
	cr_assert(strstr(err.msg, "journal"), "%s", err.msg);
	memcpy(want[1], images.disk, sizeof(want[1]));
	/* and it goes on */
	notes.truncate_fails = 0;
	cr_assert_eq(journal_begin(journal, &err), 0, "%s", err.msg);
	put_base(true, 'a');
	put_data(0, 3, 1, 3);
	cr_assert_eq(send_all(), 0, "%s", err.msg);
	cr_assert_eq(journal_commit(journal, 3, &err), 0, "%s", err.msg);
	until_applied();
	want[1][0][3] = 3;
	cr_assert(is_epoch(&images, 1));
}

/* ---- what does not fit -------------------------------------------------------------------------- */

Test(journal, another_disk_s_journal_is_refused)
{
	static const uint64_t other[2] = { SIZE, SIZE / 2 };
	struct journal *kept = journal;
	char copy[80];

	full_copy('a');
	atomic_store(&images.holds, 1);
	send_epoch(1);
	snprintf(copy, sizeof(copy), "%s/copy", dir);
	copy_file(path, copy);
	atomic_store(&images.holds, 0);
	cr_assert_eq(open_at(copy, &images, other), -EEXIST);
	cr_assert(strstr(err.msg, "other sizes"), "%s", err.msg);
	cr_assert_eq(open_at(path, &images, size), -EBUSY, "it is in use");
	cr_assert_eq(truncate(copy, 20), 0);
	cr_assert_eq(open_at(copy, &images, size), -EEXIST);
	cr_assert(strstr(err.msg, "no journal"), "%s", err.msg);
	journal = kept;
}

Test(journal, a_journal_of_images_that_were_replaced_is_refused)
{
	struct journal_config c = { .size = size, .id = image_id, .nr = 2 };
	struct journal *kept = journal;
	struct journal_look look;
	char copy[80];

	full_copy('a');
	atomic_store(&images.holds, 1);
	send_epoch(1);
	snprintf(copy, sizeof(copy), "%s/copy", dir);
	copy_file(path, copy);
	atomic_store(&images.holds, 0);
	until_applied(); /* no more writes to the images by that one */
	c.path = copy;
	journal_look(&c, &look);
	cr_assert(look.bytes > 0 && !look.is_incomplete);
	image_id[1]++;
	journal_look(&c, &look);
	cr_assert_eq(look.bytes, 0, "it says nothing of those");
	memset(images.disk, 0x55, sizeof(images.disk));
	cr_assert_eq(open_at(copy, &images, size), -EEXIST);
	cr_assert(strstr(err.msg, "replaced"), "%s", err.msg);
	cr_assert(images.disk[0][100] == 0x55, "they are as they were");
	image_id[1]--;
	cr_assert_eq(open_at(copy, &images, size), 0, "%s", err.msg);
	cr_assert_eq(images.disk[0][100], 10, "its own images get it");
	journal_close(journal);
	journal = kept;
}

Test(journal, a_start_that_found_no_room_for_its_head_is_no_obstacle)
{
	struct journal *kept = journal;
	struct rlimit limit = { 0, RLIM_INFINITY };
	char other[80];

	snprintf(other, sizeof(other), "%s/other", dir);
	close(open(other, O_RDWR | O_CREAT, 0600));
	cr_assert_eq(truncate(other, 4096), 0);
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	cr_assert_eq(open_at(other, &images, size), -EFBIG);
	limit.rlim_cur = RLIM_INFINITY;
	setrlimit(RLIMIT_FSIZE, &limit);
	cr_assert_eq(open_at(other, &images, size), 0, "%s", err.msg);
	journal_close(journal);
	journal = kept;
}

Test(journal, an_image_that_cannot_be_written_is_told)
{
	int rc = 0;

	full_copy('a');
	images.fails = 2;
	put_epoch(1);
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_commit(journal, 2, &err), 0);
	for (int i = 0; !rc && i < 20000; i++) {
		put_data(0, 0, 10, 1);
		rc = send_all();
		usleep(1000);
	}
	cr_assert_eq(rc, -EIO);
	cr_assert_str_eq(err.msg, "the image is broken");
	cr_assert_eq(journal_finish(journal, &err), -EIO);
	journal_halt(journal);
	cr_assert_eq(journal_again(journal, &err), 0); /* it can be written again */
	cr_assert_eq(journal_begin(journal, &err), 0);
	until_applied();
	cr_assert(is_epoch(&images, 1));
	put_base(true, 'a');
	memcpy(want[1], images.disk, sizeof(want[1]));
	images.fails = 1;
	send_epoch(2);
	while (images.fails)
		usleep(1000);
	journal_close(journal);
	cr_assert_eq(epoch_after_start(path, &images), 2, "it was committed, so it stays");
	journal = NULL;
}

Test(journal, a_full_file_system_refuses_the_epoch_and_keeps_the_last)
{
	struct rlimit limit = { 20000, RLIM_INFINITY };
	int rc;

	full_copy('a');
	send_epoch(1);
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	put_data(0, 0, 30000, 0x99);
	rc = send_all();
	cr_assert_eq(rc, -EFBIG);
	cr_assert(strstr(err.msg, "journal"), "%s", err.msg);
	cr_assert_eq(journal_commit(journal, 3, &err), -EPROTO);
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(true, 'a');
	put_data(0, 3, 1, 3);
	cr_assert_eq(send_all(), 0, "%s", err.msg);
	cr_assert_eq(journal_commit(journal, 3, &err), 0);
	cr_assert_eq(journal_finish(journal, &err), 0);
	want[1][0][3] = 3;
	cr_assert(is_epoch(&images, 1));
}

Test(journal, a_copy_that_was_cut_off_leaves_incomplete_images)
{
	cr_assert_eq(journal_begin(journal, &err), 0);
	put_base(false, 'a');
	put_data(0, 0, 100, 1);
	cr_assert_eq(send_all(), 0);
	cr_assert_eq(journal_finish(journal, &err), 0);
	cr_assert_eq(access(path, F_OK), 0, "the file stays, and says so");
	cr_assert(is_incomplete(path));
	journal_close(journal);
	cr_assert_eq(open_at(path, &images, size), 0, "%s", err.msg);
	full_copy('b');
	cr_assert_not(is_incomplete(path));
}

Test(journal, the_file_does_not_grow_for_ever)
{
	struct stat st;

	full_copy('a');
	for (unsigned n = 0; n < 60; n++) {
		for (unsigned k = 0; k < 10; k++)
			put_data(0, 0, 50000, (int)n);
		cr_assert_eq(send_all(), 0, "%s", err.msg);
		cr_assert_eq(journal_commit(journal, n + 2, &err), 0);
		until_applied();
	}
	cr_assert_eq(stat(path, &st), 0);
	cr_assert(st.st_size < 4 << 20, "%ld", (long)st.st_size);
	cr_assert(images.disk[0][0] == 59 && images.disk[0][49999] == 59);
}
