/* SPDX-License-Identifier: MIT */
/* test_qemu_tap.c - the primary's side of the disks, against a disk and a standby that are arrays: what tap_read() gives is applied to the standby
 * when its epoch is acknowledged, and then the standby is the disk as it was at the cut.  Writes go to the disk first and then to
 * the tap, as a mirror does; the reader of the disk is made to meet writes by hand. */
#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "disk_tap.h"
#include "rng.h"

#define NR 2u
#define BLOCKS 20u

static const uint64_t size[NR] = { BLOCKS * TAP_BLOCK - 1000, 5 * TAP_BLOCK };
static uint8_t *disk[NR], *at_cut[NR], *standby[NR], *pending[NR];
static struct tap *tap;
static struct ft_error err;
static atomic_uint cuts, reads;
static void (*during_read)(unsigned d, uint64_t offset, uint32_t len);
static void (*after_read)(unsigned d, uint64_t offset, uint32_t len);
static bool got_base, got_changes_only;
static uint64_t got_bytes;
static struct disk_stream in;

static int read_disk(void *user, unsigned d, uint64_t offset, uint32_t *len, void *buf, bool *zero, struct ft_error *e)
{
	void (*hook)(unsigned, uint64_t, uint32_t) = during_read;

	(void)user, (void)e;
	atomic_fetch_add(&reads, 1);
	cr_assert(*len && offset % TAP_BLOCK == 0 && offset + *len <= size[d]);
	if (*len > TAP_READ_MAX)
		*len = TAP_READ_MAX;
	*zero = true;
	for (uint32_t i = 0; *zero && i < *len; i++)
		*zero = disk[d][offset + i] == 0;
	memcpy(buf, disk[d] + offset, *len);
	during_read = NULL;
	if (hook)
		hook(d, offset, *len);
	if (after_read)
		after_read(d, offset, *len);
	return 0;
}

static void want_cut(void *user)
{
	(void)user;
	atomic_fetch_add(&cuts, 1);
}

static int on_data(void *user, unsigned d, uint64_t offset, const void *buf, size_t len, struct ft_error *e)
{
	(void)user, (void)e;
	memcpy(pending[d] + offset, buf, len);
	got_bytes += len;
	return 0;
}

static int on_zero(void *user, unsigned d, uint64_t offset, uint32_t len, struct ft_error *e)
{
	(void)user, (void)e;
	memset(pending[d] + offset, 0, len);
	return 0;
}

static int on_base(void *user, const uint8_t name[DISK_NAME], bool changes_only, struct ft_error *e)
{
	(void)user, (void)name, (void)e;
	got_base = true;
	got_changes_only = changes_only;
	return 0;
}

static const struct disk_stream_ops ops = { on_data, on_zero, on_base, NULL };

static void open_with(uint64_t hold)
{
	struct tap_config c = { .size = size, .nr = NR, .hold_bytes = hold, .read = read_disk, .want_cut = want_cut };

	for (unsigned i = 0; i < NR; i++) {
		disk[i] = calloc(1, BLOCKS * TAP_BLOCK);
		at_cut[i] = calloc(1, BLOCKS * TAP_BLOCK);
		standby[i] = calloc(1, BLOCKS * TAP_BLOCK);
		pending[i] = calloc(1, BLOCKS * TAP_BLOCK);
		memset(standby[i], 0xee, size[i]); /* whatever was there */
		memset(pending[i], 0xee, size[i]);
		memset(disk[i], (int)i + 1, size[i] / 2);
	}
	cr_assert_eq(tap_open(&tap, &c, &err), 0, "%s", err.msg);
}

static void setup(void)
{
	open_with(UINT64_C(1) << 20);
}

static void teardown(void)
{
	tap_close(tap);
	for (unsigned i = 0; i < NR; i++) {
		free(disk[i]);
		free(at_cut[i]);
		free(standby[i]);
		free(pending[i]);
	}
}

TestSuite(tap, .init = setup, .fini = teardown, .timeout = 60);

static void guest_writes(unsigned d, uint64_t offset, uint32_t len, int octet)
{
	memset(disk[d] + offset, octet, len);
	cr_assert_eq(octet ? tap_write(tap, d, offset, disk[d] + offset, len) : tap_zero(tap, d, offset, len), 0);
}

static void receive(uint64_t epoch)
{
	static uint8_t buf[5000]; /* cuts records anywhere */
	int64_t n;

	while ((n = tap_read(tap, epoch, buf, sizeof(buf), &err)) > 0)
		cr_assert_eq(disk_stream_read(&in, buf, (size_t)n, &err), 0, "%s", err.msg);
	cr_assert_eq(n, 0, "%s", err.msg);
}

static void begin(void)
{
	got_base = false;
	got_bytes = 0;
	disk_stream_init(&in, &ops, NULL, size, NR);
	for (unsigned i = 0; i < NR; i++)
		memcpy(pending[i], standby[i], size[i]);
	cr_assert_eq(tap_begin(tap, &err), 0, "%s", err.msg);
}

static void cut(uint64_t epoch)
{
	tap_pausing(tap, true);
	tap_cut(tap, epoch);
	for (unsigned i = 0; i < NR; i++)
		memcpy(at_cut[i], disk[i], size[i]);
	tap_pausing(tap, false);
}

/* All of the epoch has come: the standby takes it, and has to be the disk of the cut. */
static void commit(uint64_t epoch)
{
	receive(epoch);
	cr_assert(disk_stream_is_between(&in));
	for (unsigned i = 0; i < NR; i++) {
		memcpy(standby[i], pending[i], size[i]);
		for (uint64_t o = 0; o < size[i]; o++)
			cr_assert(standby[i][o] == at_cut[i][o], "epoch %lu: octet %lu of disk %u is %u, not %u",
				  (unsigned long)epoch, (unsigned long)o, i, standby[i][o], at_cut[i][o]);
	}
	tap_acked(tap, epoch);
}

static void protect(void)
{
	begin();
	receive(0);
	cr_assert(got_base && tap_left(tap) == 0);
	cut(1);
	commit(1);
}

static uint64_t held(void)
{
	struct tap_figures f;

	tap_figures(tap, 0, &f);
	return f.held_bytes;
}

Test(tap, a_copy_and_epochs)
{
	protect();
	cr_assert_not(got_changes_only);
	guest_writes(0, 70000, 100, 9);
	cut(2);
	guest_writes(0, 70050, 100, 8); /* of the next: overlaps, and the guest runs while the last is sent */
	commit(2);
	guest_writes(1, TAP_BLOCK - 1, 2, 7);
	guest_writes(0, 0, 3 * TAP_BLOCK, 0);
	cut(3);
	guest_writes(0, size[0] - 1, 1, 5);
	commit(3);
	cut(4);
	commit(4);
	cr_assert_eq(held(), 0);
}

static void write_in_it(unsigned d, uint64_t offset, uint32_t len)
{
	guest_writes(d, offset + len / 2, 10, 0x33);
}

Test(tap, a_write_during_the_read_of_its_block)
{
	during_read = write_in_it;
	protect();
	cr_assert(atomic_load(&reads) > 2);
}

static void write_behind_it(unsigned d, uint64_t offset, uint32_t len)
{
	(void)offset, (void)len;
	guest_writes(d, size[d] - 50, 10, 0x44);
}

Test(tap, a_write_during_the_read_of_another_block)
{
	during_read = write_behind_it;
	protect();
}

static void always_behind_it(unsigned d, uint64_t offset, uint32_t len)
{
	if (offset + len < size[d] && atomic_load(&reads) < 1000)
		guest_writes(d, size[d] - 50, 10, 0x44);
}

/* A guest that writes somewhere all the time does not void what is read elsewhere. */
Test(tap, writes_behind_each_read)
{
	after_read = always_behind_it;
	protect();
	cr_assert_lt(atomic_load(&reads), 4 * BLOCKS);
}

/* The disk has a write that the tap does not know of yet, and the read sees it: it comes behind what was read. */
static void written_but_not_told(unsigned d, uint64_t offset, uint32_t len)
{
	(void)len;
	if (d == 0 && offset == 0)
		memset(disk[0] + 10, 0x55, 10);
}

Test(tap, a_write_that_is_told_after_the_read)
{
	memset(disk[0] + 10, 0, 30);
	written_but_not_told(0, 0, 1);
	begin();
	receive(0);
	cr_assert_eq(tap_write(tap, 0, 10, disk[0] + 10, 10), 0);
	cut(1);
	commit(1);
}

Test(tap, what_finds_no_room_during_the_copy_is_copied_later)
{
	begin();
	receive(0);
	for (int i = 0; i < 40; i++) /* twice what may be held, and older writes of the same blocks are queued */
		guest_writes(0, (uint64_t)(i % 10) * TAP_BLOCK, (uint32_t)TAP_BLOCK, i + 1);
	cr_assert(tap_left(tap) > 0 && held() < UINT64_C(2) << 20);
	receive(0);
	cr_assert_eq(tap_left(tap), 0);
	cut(1);
	commit(1);
}

Test(tap, after_a_loss_only_what_changed)
{
	protect();
	guest_writes(0, 5 * TAP_BLOCK, 100, 0x11); /* epoch 2: sent, never acknowledged */
	cut(2);
	receive(2);
	guest_writes(0, 7 * TAP_BLOCK, 100, 0x12); /* epoch 3: cut, not sent */
	cut(3);
	guest_writes(0, 9 * TAP_BLOCK, 100, 0x13); /* never cut */
	tap_off(tap);
	guest_writes(0, 11 * TAP_BLOCK, 100, 0x14); /* nobody listens */
	cr_assert_eq(tap_left(tap), 4 * TAP_BLOCK);
	protect();
	cr_assert(got_changes_only);
	cr_assert_eq(got_bytes, 4 * TAP_BLOCK);
	guest_writes(0, 1, 1, 0x15);
	cut(2);
	commit(2);
}

Test(tap, a_copy_that_was_never_acknowledged_is_sent_again)
{
	begin();
	receive(0);
	tap_off(tap);
	cr_assert_eq(tap_left(tap), (BLOCKS + 5) * TAP_BLOCK);
	protect();
	cr_assert_not(got_changes_only);
	guest_writes(0, 3 * TAP_BLOCK, 100, 0x21);
	cut(2);
	commit(2);
	tap_off(tap);
	guest_writes(0, 4 * TAP_BLOCK, 100, 0x22);
	begin(); /* the changes are on their way when the link is lost again */
	receive(0);
	cr_assert(got_changes_only && tap_left(tap) == 0);
	tap_off(tap);
	cr_assert_eq(tap_left(tap), TAP_BLOCK);
	protect();
	cr_assert(got_changes_only);
}

Test(tap, another_secondary_needs_all)
{
	protect();
	tap_off(tap);
	tap_lost_base(tap);
	memset(standby[0], 0xdd, size[0]);
	memset(standby[1], 0xdd, size[1]);
	protect();
	cr_assert_not(got_changes_only);
}

Test(tap, a_broken_mirror_says_so_and_needs_all)
{
	char buf[100];

	protect();
	tap_broken(tap, "the mirror is gone");
	cr_assert_eq(tap_read(tap, 2, buf, sizeof(buf), &err), -ENOTCONN);
	cr_assert_str_eq(err.msg, "the mirror is gone");
	disk[0][12345] = 0x77; /* and is not told */
	protect();
	cr_assert_not(got_changes_only);
}

Test(tap, a_cut_before_the_copy_is_complete_is_not_taken)
{
	char buf[100];

	begin();
	tap_cut(tap, 1);
	cr_assert_eq(tap_read(tap, 1, buf, sizeof(buf), &err), -ENOTCONN);
}

Test(tap, settle_reads_what_is_left)
{
	begin();
	cr_assert(tap_left(tap) > 0);
	cr_assert_eq(tap_settle(tap, util_deadline_ms(10000), &err), 0);
	cr_assert_eq(tap_left(tap), 0);
	cut(1);
	commit(1);
}

/* ---- a guest that never rests ------------------------------------------------------------------- */

#define READS_MAX 1000u

/* A read takes its time, and the guest writes all over the disk meanwhile, as often as it is let.  Not for ever, or the test would not end. */
static void writes_all_the_time(unsigned d, uint64_t offset, uint32_t len)
{
	static uint8_t block[TAP_BLOCK];
	static unsigned n;
	uint64_t until = util_now_ns() + len * 20; /* 50 MB/s */

	(void)d, (void)offset;
	while (util_now_ns() < until && atomic_load(&reads) < READS_MAX)
		cr_assert_eq(tap_write(tap, 0, n++ % (BLOCKS - 1) * TAP_BLOCK, block, (uint32_t)TAP_BLOCK), 0);
}

Test(tap, a_guest_that_never_rests_is_slowed_until_little_is_left)
{
	static uint8_t buf[TAP_BLOCK];
	int64_t n = 1;

	teardown();
	open_with(2 * TAP_BLOCK);
	memset(disk[0], 7, size[0]);
	after_read = writes_all_the_time;
	begin();
	while (n > 0 && tap_left(tap) > 4 * TAP_BLOCK)
		n = tap_read(tap, 0, buf, sizeof(buf), &err);
	cr_assert_geq(n, 0, "%s", err.msg);
	cr_assert_lt(atomic_load(&reads), READS_MAX, "only when the guest had given up");
}

/* ---- at the cap --------------------------------------------------------------------------------- */

static atomic_bool written;

static void *write_more(void *user)
{
	(void)user;
	tap_write(tap, 0, 0, disk[0], 600 << 10);
	atomic_store(&written, true);
	return NULL;
}

static void start_write_that_waits(pthread_t *thread)
{
	protect();
	cr_assert_eq(atomic_load(&cuts), 0);
	guest_writes(0, 0, 600 << 10, 0x31);
	cr_assert_eq(atomic_load(&cuts), 1, "an early end of the epoch");
	cr_assert_eq(pthread_create(thread, NULL, write_more, NULL), 0);
	usleep(50000);
	cr_assert_not(atomic_load(&written));
}

Test(tap, at_the_cap_a_write_waits_until_the_epoch_is_sent)
{
	pthread_t t;

	start_write_that_waits(&t);
	tap_cut(tap, 2);
	memcpy(at_cut[0], disk[0], size[0]);
	commit(2);
	pthread_join(t, NULL);
	cut(3);
	commit(3);
}

Test(tap, but_not_while_the_guest_is_being_paused)
{
	pthread_t t;

	start_write_that_waits(&t);
	tap_pausing(tap, true);
	pthread_join(t, NULL);
	cr_assert(held() > UINT64_C(1) << 20);
	cut(2);
	commit(2);
}

Test(tap, nor_when_protection_ends)
{
	pthread_t t;

	start_write_that_waits(&t);
	tap_off(tap);
	pthread_join(t, NULL);
	cr_assert_eq(held(), 0);
}

/* ---- any order ---------------------------------------------------------------------------------- */

static struct rng rng;

static unsigned any(unsigned n)
{
	return (unsigned)(rng_next(&rng) % n);
}

static void random_write(void)
{
	unsigned d = any(NR);
	uint64_t offset = rng_next(&rng) % size[d], most = size[d] - offset;
	uint32_t len = 1 + any(any(4) ? 5000 : 200000);

	guest_writes(d, offset, len < most ? len : (uint32_t)most, any(4) ? (int)any(255) : 0);
}

static void sometimes_write(unsigned d, uint64_t offset, uint32_t len)
{
	(void)d, (void)offset, (void)len;
	if (any(3) == 0)
		random_write();
}

Test(tap, random_programs)
{
	uint64_t epoch;

	after_read = sometimes_write;
	rng.state = 1;
	for (int session = 0; session < 80; session++) {
		begin();
		for (int i = 0; i < 3 || tap_left(tap); i++) {
			receive(0);
			if (i < 20)
				random_write();
		}
		for (epoch = 1; epoch < 6; epoch++) {
			cut(epoch);
			for (unsigned i = any(4); i; i--)
				random_write();
			if (any(6) == 0)
				break; /* lost before the ack */
			commit(epoch);
		}
		tap_off(tap);
		for (unsigned i = any(3); i; i--)
			random_write();
		if (any(8) == 0)
			tap_lost_base(tap);
	}
}
