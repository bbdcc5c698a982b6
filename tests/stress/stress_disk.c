/* SPDX-License-Identifier: MIT */
/* stress_disk.c - the disks of a standby are those of the last committed epoch, octet by octet: disk_tap.h and disk_journal.h together, without
 * QEMU and without a network.
 *
 * One thread a disk writes as a guest's mirror does: to the disk, then to the tap.  The main thread is the session: full syncs, pauses, epochs.
 * At random the link is lost (before, in and after an epoch's octets, and with the ack), a mirror breaks, the secondary crashes, also in
 * the middle of applying, and is started anew on its file.  After each crash, and at the end, the images are compared with what the disks
 * were at the last cut that was committed.
 *
 * stress_disk [--losses N] [--seed S] */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include "check.h"
#include "disk_journal.h"
#include "disk_tap.h"
#include "rng.h"

#define NR 2u
#define HOLD (UINT64_C(256) << 10)
#define CAP (UINT64_C(512) << 10)
#define WRITE_MAX (UINT32_C(96) << 10)

static const uint64_t size[NR] = { (UINT64_C(3) << 20) + 512, UINT64_C(1) << 20 };

static struct {
	uint64_t losses, seed;
} args = { .losses = 60, .seed = 0 };

/* ---- the primary's disks ------------------------------------------------------------------------ */

static uint8_t *disk[NR], *snapshot[NR], *committed[NR], *image[NR];
static pthread_mutex_t disk_lock[NR] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER };
static pthread_rwlock_t guest = PTHREAD_RWLOCK_INITIALIZER; /* held for reading by a write under way */
static struct tap *tap;
static atomic_bool stop, cut_wanted;

static void want_cut(void *user)
{
	(void)user;
	atomic_store(&cut_wanted, true);
}

/* In pieces, so that writes come in between. */
static int read_disk(void *user, unsigned i, uint64_t offset, uint32_t *len, void *buf, bool *zero,
		     struct ft_error *err)
{
	(void)user, (void)err;
	CHECK(i < NR && offset % TAP_BLOCK == 0 && offset + *len <= size[i], "a read outside of the disk");
	if (*len > TAP_READ_MAX)
		*len = TAP_READ_MAX;
	for (uint32_t at = 0; at < *len; at += 16384) {
		uint32_t n = *len - at < 16384 ? *len - at : 16384;

		pthread_mutex_lock(&disk_lock[i]);
		memcpy((uint8_t *)buf + at, disk[i] + offset + at, n);
		pthread_mutex_unlock(&disk_lock[i]);
		sched_yield();
	}
	*zero = !((uint8_t *)buf)[0] && !memcmp(buf, (uint8_t *)buf + 1, *len - 1);
	return 0;
}

static void write_once(unsigned i, struct rng *r)
{
	static _Thread_local uint8_t octets[WRITE_MAX];
	uint32_t len = (uint32_t)rng_range(r, 1, rng_next(r) % 4 ? 4096 : WRITE_MAX);
	uint64_t area = rng_next(r) % 3 ? size[i] : UINT64_C(200000), offset = rng_range(r, 0, area - len);
	bool zero = rng_next(r) % 5 == 0;
	int rc;

	memset(octets, zero ? 0 : (int)rng_range(r, 1, 255), len);
	pthread_rwlock_rdlock(&guest);
	pthread_mutex_lock(&disk_lock[i]);
	memcpy(disk[i] + offset, octets, len);
	pthread_mutex_unlock(&disk_lock[i]);
	if (rng_next(r) % 4 == 0)
		sched_yield();
	rc = zero ? tap_zero(tap, i, offset, len) : tap_write(tap, i, offset, octets, len);
	pthread_rwlock_unlock(&guest);
	CHECK(rc == 0, "the guest's write failed: %d", rc);
}

static void *writer(void *arg)
{
	unsigned i = (unsigned)(uintptr_t)arg;
	struct rng r = { args.seed * 7 + i };

	while (!atomic_load(&stop)) {
		write_once(i, &r);
		if (rng_next(&r) % 8 == 0)
			util_sleep_ms((unsigned)(rng_next(&r) % 3));
	}
	return NULL;
}

/* ---- the secondary ------------------------------------------------------------------------------ */

static struct journal *journal;
static char path[64];
static atomic_int fails_in; /* image operations until one fails, and all behind it; 0: none */
static bool is_comparable;  /* the images are, or the journal makes them, what `committed` says */
static bool is_fresh;       /* nothing was committed in this process: a copy goes to the images at once */
static unsigned replays, syncs, partial;

static int step(struct ft_error *err)
{
	int left = atomic_load(&fails_in);

	if (left == 0)
		return 0;
	if (left > 1) {
		atomic_store(&fails_in, left - 1);
		return 0;
	}
	err->code = -EIO;
	snprintf(err->msg, sizeof(err->msg), "crash");
	return -EIO;
}

static int write_image(void *user, unsigned i, uint64_t offset, const void *buf, size_t len, struct ft_error *err)
{
	int rc = step(err);

	(void)user;
	if (!rc)
		memcpy(image[i] + offset, buf, len);
	return rc;
}

static int zero_image(void *user, unsigned i, uint64_t offset, uint32_t len, struct ft_error *err)
{
	int rc = step(err);

	(void)user;
	if (!rc)
		memset(image[i] + offset, 0, len);
	return rc;
}

static int flush_image(void *user, struct ft_error *err)
{
	(void)user;
	return step(err);
}

static void compare(const char *when)
{
	for (unsigned i = 0; i < NR; i++)
		for (uint64_t at = 0; memcmp(image[i], committed[i], size[i]) && at < size[i]; at++)
			CHECK(image[i][at] == committed[i][at], "%s: disk %u differs at %" PRIu64 " (seed %" PRIu64 ")",
			      when, i, at, args.seed);
}

static void open_journal(void)
{
	const struct journal_config config = { .path = path,
					       .size = size,
					       .nr = NR,
					       .cap_bytes = CAP,
					       .write = write_image,
					       .zero = zero_image,
					       .flush = flush_image };
	struct ft_error err = { 0 };
	uint64_t replayed = 0;

	CHECK_OK(journal_open(&journal, &config, &replayed, &err), err);
	replays += replayed != 0;
	is_fresh = true;
	if (is_comparable)
		compare("after a crash");
}

/* Its process ends and comes again. */
static void crash(void)
{
	journal_close(journal);
	atomic_store(&fails_in, 0);
	open_journal();
}

/* ---- the session -------------------------------------------------------------------------------- */

static struct rng rng;

/* All that tap_read() has goes to the secondary; or the link is lost on the way. */
static int ship(uint64_t epoch, uint64_t lose_after, struct ft_error *err)
{
	static uint8_t buf[64 << 10];
	uint64_t moved = 0;
	int64_t n = 0;
	int rc;

	/* a guest that writes faster than this would never let a round end */
	while ((epoch || moved < 4 * size[0]) &&
	       (n = tap_read(tap, epoch, buf, rng_range(&rng, 4096, sizeof(buf)), err)) > 0) {
		size_t first = (size_t)rng_range(&rng, 0, (uint64_t)n);

		is_comparable = is_comparable && !is_fresh;
		rc = journal_write(journal, buf, first, err);
		if (!rc)
			rc = journal_write(journal, buf + first, (size_t)n - first, err);
		if (rc)
			return rc;
		moved += (uint64_t)n;
		if (moved > lose_after)
			return -ECONNRESET;
	}
	return n < 0 ? (int)n : 0;
}

static void cut(uint64_t epoch)
{
	tap_pausing(tap, true);
	pthread_rwlock_wrlock(&guest); /* stop drains what is under way */
	for (unsigned i = 0; i < NR; i++)
		memcpy(snapshot[i], disk[i], size[i]);
	tap_cut(tap, epoch);
	pthread_rwlock_unlock(&guest);
	tap_pausing(tap, false);
}

static int commit(uint64_t epoch, struct ft_error *err)
{
	int rc = journal_commit(journal, epoch, err);

	if (rc)
		return rc;
	for (unsigned i = 0; i < NR; i++)
		memcpy(committed[i], snapshot[i], size[i]);
	is_comparable = true;
	is_fresh = false;
	return 0;
}

static int full_sync(struct ft_error *err)
{
	uint64_t lose_after = rng_next(&rng) % 4 ? UINT64_MAX : rng_range(&rng, 0, size[0]);
	int rc = journal_begin(journal, err);

	if (!rc)
		rc = tap_begin(tap, err);
	if (rc)
		return rc;
	syncs++;
	partial += tap_left(tap) < size[0];
	for (unsigned round = 0; !rc && round < 10 && tap_left(tap) > 4 * TAP_BLOCK; round++)
		rc = ship(0, lose_after, err);
	return rc ? rc : tap_settle(tap, util_deadline_ms(10000), err);
}

static int epoch_once(uint64_t epoch, struct ft_error *err)
{
	uint64_t until = util_deadline_ms(rng_next(&rng) % 4);
	int rc;

	while (util_now_ns() < until && !atomic_load(&cut_wanted))
		sched_yield();
	atomic_store(&cut_wanted, false);
	cut(epoch);
	rc = ship(epoch, rng_next(&rng) % 16 ? UINT64_MAX : rng_range(&rng, 0, HOLD), err);
	if (!rc)
		rc = rng_next(&rng) % 20 ? commit(epoch, err) : -ECONNRESET;
	if (!rc)
		rc = rng_next(&rng) % 20 ? 0 : -ECONNRESET; /* the ack is lost */
	if (!rc)
		tap_acked(tap, epoch);
	return rc;
}

/* One connection, until it is lost. */
static int protect(struct ft_error *err)
{
	int rc = full_sync(err);

	for (uint64_t epoch = 1; !rc; epoch++)
		rc = epoch_once(epoch, err);
	return rc;
}

static void session(void)
{
	struct ft_error err = { 0 };
	int rc;

	if (rng_next(&rng) % 3 == 0)
		atomic_store(&fails_in, (int)rng_range(&rng, 1, 400));
	rc = protect(&err);
	tap_off(tap);
	CHECK(rc == -ECONNRESET || rc == -EIO || rc == -ESTALE, "seed %" PRIu64 ": %d: %s", args.seed, rc, err.msg);
	if (rc == -ESTALE) {
		tap_lost_base(tap);
	} else if (rc == -EIO || rng_next(&rng) % 4 == 0) {
		crash();
	} else if (rng_next(&rng) % 6 == 0) {
		tap_broken(tap, "somebody broke it");
	}
	if (rng_next(&rng) % 3 == 0)
		util_sleep_ms((unsigned)(rng_next(&rng) % 10)); /* alone */
}

static void read_args(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--losses"))
			args.losses = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			args.seed = strtoull(argv[i + 1], NULL, 0);
		else
			DIE("usage: stress_disk [--losses N] [--seed S]");
	}
	if (!args.seed && getrandom(&args.seed, 4, 0) != 4)
		args.seed = 1;
	rng.state = args.seed;
}

int main(int argc, char **argv)
{
	const struct tap_config config = {
		.size = size, .nr = NR, .hold_bytes = HOLD, .read = read_disk, .want_cut = want_cut
	};
	struct ft_error err = { 0 };
	pthread_t thread[NR];

	read_args(argc, argv);
	/* in memory if it can be: each head of the journal is made stable */
	snprintf(path, sizeof(path), "%s/ft-stress-disk.%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm",
		 (int)getpid());
	for (unsigned i = 0; i < NR; i++) {
		disk[i] = calloc(1, size[i]);
		snapshot[i] = calloc(1, size[i]);
		committed[i] = calloc(1, size[i]);
		image[i] = malloc(size[i]);
		CHECK(disk[i] && snapshot[i] && committed[i] && image[i], "no memory");
		memset(image[i], 0xee, size[i]);
	}
	CHECK_OK(tap_open(&tap, &config, &err), err);
	open_journal();
	for (unsigned i = 0; i < NR; i++)
		CHECK(!pthread_create(&thread[i], NULL, writer, (void *)(uintptr_t)i), "no thread");
	for (uint64_t n = 0; n < args.losses; n++)
		session();
	atomic_store(&stop, true);
	for (unsigned i = 0; i < NR; i++)
		pthread_join(thread[i], NULL);
	crash();
	if (is_comparable)
		compare("at the end");
	CHECK(args.losses < 60 || (replays && partial),
	      "nothing was replayed (%u), or no sync was of changes only (%u)", replays, partial);
	printf("%u full syncs (%u of changes only), %u replays (seed %" PRIu64 ")\n", syncs, partial, replays,
	       args.seed);
	tap_close(tap);
	journal_close(journal);
	remove(path);
	for (unsigned i = 0; i < NR; i++) {
		free(disk[i]);
		free(snapshot[i]);
		free(committed[i]);
		free(image[i]);
	}
	return 0;
}
