/* SPDX-License-Identifier: MIT */
/* test_qemu_tracker.c - pages that another process writes into shared memory are reported, whatever writes them, and none
 * is lost.  The other process is a child that does what it is told through a socket. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/userfaultfd.h>

#include "inject.h"
#include "tracker.h"

#define PAGE 4096u
#define PAGES 2048u
#define LEN ((uint64_t)PAGES * PAGE)

enum op { STORE, LOAD, READ, DIRECT, DROP, THREADS, STOP_THREADS, COLLAPSE, MAP_AGAIN, MAKE_UFFD };

struct order {
	enum op op;
	uint64_t page, nr;
};

struct child {
	pid_t pid;
	int sock, memfd;
	uint64_t va;
	char *map; /* ours */
};

static struct child c;
static struct tracker *t;
static struct ft_error err;
static unsigned char seen[PAGES];

/* ---- in the child ------------------------------------------------------------------------------- */

static char *ram;
static atomic_bool stop;
static atomic_uint writing;
static pthread_t writer[2];
static char direct_file[] = "/tmp/ft-direct-XXXXXX";

static void *write_on(void *arg)
{
	uint64_t x = (uintptr_t)arg * 7919 + 12345, n = 0;

	for (; !atomic_load(&stop); n++) {
		if (n == 1)
			atomic_fetch_add(&writing, 1);
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		__atomic_add_fetch((uint64_t *)(ram + (x >> 33) % PAGES * PAGE), 1, __ATOMIC_SEQ_CST);
	}
	return (void *)(uintptr_t)n;
}

static uint64_t stop_writers(void)
{
	uint64_t sum = 0;
	void *n;

	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++) {
		pthread_join(writer[i], &n);
		sum += (uintptr_t)n;
	}
	return sum;
}

static void direct_read(char *to)
{
	static char block[PAGE] __attribute__((aligned(4096)));
	int fd = mkstemp(direct_file);

	memset(block, 'd', sizeof(block));
	if (write(fd, block, sizeof(block)) != sizeof(block))
		_exit(1);
	close(fd);
	fd = open(direct_file, O_RDONLY | O_DIRECT);
	if (fd < 0 || pread(fd, to, PAGE, 0) != PAGE)
		_exit(1);
	close(fd);
	unlink(direct_file);
}

static uint64_t obey(const struct order *o, int memfd)
{
	char *at = ram + o->page * PAGE;
	int fd;

	switch (o->op) {
	case STORE:
		for (uint64_t i = 0; i < o->nr; i++)
			at[i * PAGE]++;
		break;
	case LOAD:
		return ((volatile char *)at)[0] != 0;
	case READ:
		fd = open("/dev/zero", O_RDONLY);
		if (read(fd, at, 100) != 100)
			_exit(1);
		close(fd);
		break;
	case DIRECT:
		direct_read(at);
		break;
	case DROP:
		if (madvise(at, o->nr * PAGE, MADV_DONTNEED))
			_exit(1);
		break;
	case THREADS:
		for (uintptr_t i = 0; i < 2; i++)
			pthread_create(&writer[i], NULL, write_on, (void *)(i + 1));
		while (atomic_load(&writing) < 2)
			sched_yield();
		break;
	case STOP_THREADS:
		return stop_writers();
	case COLLAPSE:
		return madvise(ram, LEN, 25 /* MADV_COLLAPSE */) == 0;
	case MAP_AGAIN:
		return mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0) != MAP_FAILED;
	case MAKE_UFFD:
		return (uint64_t)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	}
	return 0;
}

static void child_main(int sock, int memfd)
{
	struct order o;
	uint64_t answer;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* on a 2 MiB border, as QEMU does */
	ram = mmap(NULL, LEN + (2u << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ram = (char *)(((uintptr_t)ram + (2u << 20) - 1) & ~(uintptr_t)((2u << 20) - 1));
	ram = mmap(ram, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd, 0);
	answer = (uintptr_t)ram;
	do
		if (write(sock, &answer, sizeof(answer)) != sizeof(answer))
			break;
	while (read(sock, &o, sizeof(o)) == sizeof(o) && (answer = obey(&o, memfd), true));
	_exit(0);
}

/* ---- here --------------------------------------------------------------------------------------- */

static uint64_t hear(void)
{
	uint64_t answer;

	cr_assert_eq(read(c.sock, &answer, sizeof(answer)), (ssize_t)sizeof(answer));
	return answer;
}

static uint64_t tell(enum op op, uint64_t page, uint64_t nr)
{
	struct order o = { op, page, nr };

	cr_assert_eq(write(c.sock, &o, sizeof(o)), (ssize_t)sizeof(o));
	return hear();
}

static void start_child(void)
{
	int sv[2];

	c.memfd = memfd_create("test-ram", MFD_CLOEXEC);
	cr_assert_eq(ftruncate(c.memfd, (off_t)LEN), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	c.pid = fork();
	if (c.pid == 0) {
		close(sv[0]);
		child_main(sv[1], c.memfd);
	}
	close(sv[1]);
	c.sock = sv[0];
	c.va = hear();
	c.map = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, c.memfd, 0);
	cr_assert_neq(c.map, MAP_FAILED);
}

static int fetch(void)
{
	int fd;

	cr_assert_geq((int)tell(MAKE_UFFD, 0, 0), 0);
	fd = tracker_fetch_uffd(c.pid, &err);
	cr_assert_geq(fd, 0, "%s", err.msg);
	return fd;
}

static void setup(void)
{
	start_child();
	cr_assert_eq(tracker_open(&t, c.pid, c.memfd, LEN, fetch(), &err), 0, "%s", err.msg);
	cr_assert_str_eq(tracker_method(t), "wp");
}

static void teardown(void)
{
	tracker_close(t);
	close(c.sock);
	kill(c.pid, SIGKILL);
	waitpid(c.pid, NULL, 0);
	munmap(c.map, LEN);
	close(c.memfd);
}

TestSuite(tracker, .init = setup, .fini = teardown, .timeout = 120);

static void note(void *user, uint64_t first, uint64_t nr)
{
	(void)user;
	cr_assert_leq(first + nr, PAGES);
	for (uint64_t i = 0; i < nr; i++)
		seen[first + i] = 1;
}

static unsigned collect(void)
{
	unsigned n = 0;

	memset(seen, 0, sizeof(seen));
	cr_assert_eq(tracker_collect(t, true, note, NULL, &err), 0, "%s", err.msg);
	for (unsigned i = 0; i < PAGES; i++)
		n += seen[i];
	return n;
}

static void arm(void)
{
	cr_assert_eq(tracker_arm(t, &err), 0, "%s", err.msg);
	cr_assert_eq(collect(), 0);
}

/* Exactly pages [@page, @page + @nr) were reported. */
static void expect(const char *what, uint64_t page, uint64_t nr)
{
	unsigned n = collect();

	cr_expect_eq(n, nr, "%s: %u pages reported instead of %llu", what, n, (unsigned long long)nr);
	for (uint64_t i = 0; i < nr; i++)
		cr_expect(seen[page + i], "%s: page %llu not reported", what, (unsigned long long)(page + i));
	cr_expect_eq(collect(), 0, "%s: reported again", what);
}

static void every_writer(void)
{
	char octet = 'v';
	struct iovec from = { &octet, 1 }, to = { (void *)(uintptr_t)(c.va + 500 * PAGE), 1 };

	tell(STORE, 100, 1);
	expect("store", 100, 1);
	tell(STORE, 100, 1);
	expect("store again", 100, 1);
	tell(READ, 300, 1);
	expect("read(2) into it", 300, 1);
	tell(DIRECT, 400, 1);
	expect("O_DIRECT read into it", 400, 1);
	cr_assert_eq(c.map[400 * PAGE], 'd');
	cr_assert_eq(process_vm_writev(c.pid, &from, 1, &to, 1, 0), 1);
	expect("process_vm_writev", 500, 1);
	tell(STORE, 1000, 64);
	expect("64 stores", 1000, 64);
	tell(STORE, 0, PAGES);
	expect("all", 0, PAGES);
	tell(LOAD, 200, 1);
	expect("load", 0, 0);
	tell(DROP, 900, 8); /* the contents stay in the file */
	expect("MADV_DONTNEED", 0, 0);
	tell(STORE, 901, 1);
	expect("store after MADV_DONTNEED", 901, 1);
}

Test(tracker, sees_every_writer_of_fresh_memory)
{
	arm();
	every_writer();
}

Test(tracker, sees_every_writer_of_memory_that_was_there)
{
	tell(STORE, 0, PAGES);
	arm();
	every_writer();
}

/* Why vhost-user and the like are refused.  If this changes, the documentation has to. */
Test(tracker, does_not_see_other_mappings)
{
	tell(STORE, 0, PAGES);
	arm();
	c.map[600 * PAGE]++;
	expect("store through our mapping", 0, 0);
	cr_assert_eq(pwrite(c.memfd, "xyz", 3, 700 * PAGE), 3);
	expect("pwrite", 0, 0);
}

Test(tracker, huge_pages_are_tracked_by_small_ones)
{
	tell(STORE, 0, PAGES);
	tell(COLLAPSE, 0, 0); /* not every kernel can; then it is as the others */
	arm();
	tell(STORE, 5, 1);
	tell(STORE, 700, 1);
	collect();
	cr_assert(seen[5] && seen[700]);
	tell(STORE, 9, 1);
	expect("one store", 9, 1);
}

Test(tracker, estimate_does_not_clear)
{
	arm();
	tell(STORE, 10, 3);
	cr_assert_eq(tracker_estimate(t), 3);
	cr_assert_eq(tracker_estimate(t), 3);
	expect("stores", 10, 3);
	cr_assert_eq(tracker_estimate(t), 0);
}

Test(tracker, arming_again_forgets_nothing_later)
{
	arm();
	tell(STORE, 10, 3);
	arm(); /* a full copy follows: what was before is in it */
	tell(STORE, 20, 2);
	expect("stores", 20, 2);
}

Test(tracker, disarmed_and_armed_again)
{
	arm();
	tracker_disarm(t);
	tell(STORE, 10, 3);
	arm();
	tell(STORE, 30, 3);
	expect("stores", 30, 3);
}

Test(tracker, another_tracker_takes_over)
{
	arm();
	tracker_close(t);
	tell(STORE, 1, 5);
	cr_assert_eq(tracker_open(&t, c.pid, c.memfd, LEN, tracker_fetch_uffd(c.pid, &err), &err), 0, "%s", err.msg);
	arm();
	tell(STORE, 40, 2);
	expect("stores", 40, 2);
}

/* Two threads write all the time; every page that was reported is copied.  At the end the copy is the memory. */
Test(tracker, loses_nothing_while_it_is_written)
{
	char *copy = calloc(PAGES, PAGE);
	uint64_t writes, sum = 0, begin = util_now_ns();
	unsigned rounds = 0, bad = 0;

	arm();
	tell(THREADS, 0, 0);
	while (rounds < 20 || util_now_ns() - begin < UINT64_C(2000000000)) {
		collect();
		for (unsigned i = 0; i < PAGES; i++)
			if (seen[i])
				memcpy(copy + (size_t)i * PAGE, c.map + (size_t)i * PAGE, PAGE);
		rounds++;
	}
	writes = tell(STOP_THREADS, 0, 0);
	collect();
	for (unsigned i = 0; i < PAGES; i++) {
		if (seen[i])
			memcpy(copy + (size_t)i * PAGE, c.map + (size_t)i * PAGE, PAGE);
		bad += memcmp(copy + (size_t)i * PAGE, c.map + (size_t)i * PAGE, PAGE) != 0;
		sum += *(uint64_t *)(copy + (size_t)i * PAGE);
	}
	cr_assert_eq(bad, 0, "%u pages differ after %u rounds", bad, rounds);
	cr_assert_eq(sum, writes);
	cr_assert_gt(writes, 1000);
	free(copy);
}

Test(tracker, a_target_that_died_is_an_error)
{
	arm();
	kill(c.pid, SIGKILL);
	waitpid(c.pid, NULL, 0);
	cr_assert_lt(tracker_collect(t, true, note, NULL, &err), 0);
	cr_assert(strstr(err.msg, "pages written by process"), "%s", err.msg);
	tracker_estimate(t);
	tracker_disarm(t);
}

Test(tracker, memory_is_found_in_the_process)
{
	char *map;
	int fd = tracker_fetch_memfd(c.pid, LEN, &err);

	cr_assert_geq(fd, 0, "%s", err.msg);
	c.map[PAGE * 3] = 'm';
	map = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(map, MAP_FAILED);
	cr_assert_eq(map[PAGE * 3], 'm');
	munmap(map, LEN);
	close(fd);
	cr_assert_eq(tracker_fetch_memfd(c.pid, LEN * 2, &err), -ENOENT);
	cr_assert(strstr(err.msg, "must be shared"), "%s", err.msg);
}

Test(tracker, memory_that_is_mapped_twice_is_refused)
{
	struct tracker *none;

	cr_assert(tell(MAP_AGAIN, 0, 0));
	cr_assert_eq(tracker_open(&none, c.pid, c.memfd, LEN, tracker_fetch_uffd(c.pid, &err), &err), -EINVAL);
	cr_assert(strstr(err.msg, "twice"), "%s", err.msg);
	cr_assert_null(none);
}

Test(tracker, memory_that_is_not_mapped_is_refused)
{
	struct tracker *none;
	int other = memfd_create("other", MFD_CLOEXEC);

	cr_assert_eq(ftruncate(other, (off_t)LEN), 0);
	cr_assert_eq(tracker_open(&none, c.pid, other, LEN, tracker_fetch_uffd(c.pid, &err), &err), -EINVAL);
	cr_assert(strstr(err.msg, "maps 0 of the"), "%s", err.msg);
	close(other);
}

Test(tracker, holes_are_not_present)
{
	unsigned n = 0;

	tell(STORE, 7, 1);
	tell(STORE, 100, 30);
	memset(seen, 0, sizeof(seen));
	cr_assert_eq(tracker_present(c.memfd, LEN, note, NULL, &err), 0, "%s", err.msg);
	for (unsigned i = 0; i < PAGES; i++)
		n += seen[i];
	cr_assert_eq(n, 31);
	cr_assert(seen[7] && seen[100] && seen[129]);
}

/* ---- without the shim --------------------------------------------------------------------------- */

Test(tracker_late, a_userfaultfd_is_made_in_a_running_process, .init = start_child, .fini = teardown, .timeout = 120)
{
	int fd;

	cr_assert_eq(tracker_fetch_uffd(c.pid, &err), -ENOENT);
	fd = inject_userfaultfd(c.pid, &err);
	cr_assert_geq(fd, 0, "%s", err.msg);
	/* the child sat in read(2), which goes on as if nothing had been */
	tell(STORE, 3, 1);
	cr_assert_eq(tracker_open(&t, c.pid, c.memfd, LEN, tracker_fetch_uffd(c.pid, &err), &err), 0, "%s", err.msg);
	arm();
	every_writer();
}

Test(tracker_late, a_busy_process_is_injected_too, .init = start_child, .fini = teardown, .timeout = 120)
{
	tell(THREADS, 0, 0);
	for (int i = 0; i < 20; i++)
		cr_assert_geq(inject_userfaultfd(c.pid, &err), 0, "%s", err.msg);
	cr_assert_gt(tell(STOP_THREADS, 0, 0), 0);
}

Test(tracker_late, a_process_that_is_not_there, .timeout = 60)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	waitpid(pid, NULL, 0);
	cr_assert_lt(inject_userfaultfd(pid, &err), 0);
	cr_assert(strstr(err.msg, "cannot be traced"), "%s", err.msg);
	cr_assert_lt(tracker_fetch_uffd(pid, &err), 0);
	cr_assert_lt(tracker_fetch_memfd(pid, LEN, &err), 0);
}

/* Without a userfaultfd only soft-dirty is left: it works, or the refusal names this kernel. */
Test(tracker_late, without_userfaultfd, .init = start_child, .fini = teardown, .timeout = 120)
{
	int rc = tracker_open(&t, c.pid, c.memfd, LEN, -1, &err);
	struct utsname u;

	if (rc == 0) {
		cr_assert_str_eq(tracker_method(t), "soft-dirty");
		tell(STORE, 0, PAGES);
		cr_assert_eq(tracker_arm(t, &err), 0, "%s", err.msg);
		tell(STORE, 100, 2);
		expect("store", 100, 2);
		return;
	}
	uname(&u);
	cr_assert_eq(rc, -ENOTSUP);
	cr_assert(strstr(err.msg, u.release) && strstr(err.msg, "soft-dirty"), "%s", err.msg);
}

/* ---- soft-dirty, from a pagemap that we write ourselves ------------------------------------------ */

#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define DIRTY (UINT64_C(1) << 55)

static void put(int pagemap, uint64_t page, uint64_t entry)
{
	cr_assert_eq(pwrite(pagemap, &entry, 8, (off_t)((100 + page) * 8)), 8);
}

Test(tracker_soft_dirty, bits_are_understood, .timeout = 60)
{
	int pagemap = memfd_create("pagemap", 0), clear = memfd_create("clear", 0);
	char cleared[4] = "";

	c.memfd = memfd_create("ram", 0);
	cr_assert_eq(ftruncate(c.memfd, (off_t)LEN), 0);
	for (uint64_t i = 0; i < PAGES; i++)
		put(pagemap, i, PRESENT);
	put(pagemap, 0, PRESENT | DIRTY);
	put(pagemap, 17, PRESENT | DIRTY);
	put(pagemap, 18, SWAPPED | DIRTY);
	put(pagemap, 20, SWAPPED);
	put(pagemap, PAGES - 1, DIRTY);
	/* not mapped: a hole, and one that has contents: that one may have been written and reclaimed */
	put(pagemap, 40, 0);
	put(pagemap, 41, 0);
	cr_assert_eq(pwrite(c.memfd, "x", 1, 41 * PAGE), 1);
	cr_assert_eq(tracker_open_soft_dirty(&t, pagemap, clear, c.memfd, 100 * PAGE, LEN, &err), 0, "%s", err.msg);
	cr_assert_eq(tracker_estimate(t), 5);
	cr_assert_eq(tracker_collect(t, false, note, NULL, &err), 0);
	cr_assert_eq(pread(clear, cleared, 1, 0), 0, "cleared while the target ran");
	cr_assert_eq(collect(), 5);
	cr_assert(seen[0] && seen[17] && seen[18] && seen[41] && seen[PAGES - 1]);
	cr_assert_eq(pread(clear, cleared, 1, 0), 1);
	cr_assert_eq(cleared[0], '4');
	tracker_close(t);
	close(c.memfd);
}
