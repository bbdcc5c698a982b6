/* SPDX-License-Identifier: MIT */
/* test_crew.c - checkpoint/crew.c: each part is done once, and is done when the owner goes on; the threads are as many as asked for, and end.
 * stress_crew.c is the same under ThreadSanitizer, for longer. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "crew.h"
#include "faultpoint.h"
#include "rng.h"

#define PARTS 300u

static atomic_uint times[PARTS];
static atomic_uint others; /* parts that were not done by the owner */
static pthread_t owner;

static void note(void *work, uint32_t part)
{
	atomic_uint *t = work;

	cr_assert_lt(part, PARTS);
	atomic_fetch_add(&t[part], 1);
	if (!pthread_equal(pthread_self(), owner))
		atomic_fetch_add(&others, 1);
}

static struct crew *make(unsigned nr)
{
	struct ft_error err = { 0 };
	struct crew *c;

	cr_assert_eq(crew_create(&c, nr, "test-crew", &err), 0, "%s", err.msg);
	owner = pthread_self();
	return c;
}

static void check_times(uint32_t nr, const char *what)
{
	for (uint32_t i = 0; i < PARTS; i++) {
		cr_assert_eq(atomic_load(&times[i]), i < nr, "%s: part %u of %u was done %u times", what, i, nr,
			     atomic_load(&times[i]));
		atomic_store(&times[i], 0);
	}
}

/* Offered in pieces; waited for once or twice in a run. */
static void run(struct crew *c, struct rng *r)
{
	crew_begin(c, note, times);
	for (uint64_t waits = rng_range(r, 0, 2); waits <= 2; waits++) {
		uint32_t nr = 0;

		for (uint64_t left = rng_range(r, 0, 4); left; left--) {
			uint32_t more = (uint32_t)rng_range(r, 0, PARTS / 4);

			crew_offer(c, more);
			nr += more;
		}
		crew_wait(c);
		check_times(nr, "waited for");
	}
	crew_offer(c, 7);
	crew_end(c);
	check_times(7, "ended");
}

Test(crew, each_part_once, .timeout = 120)
{
	static const unsigned sizes[] = { 1, 2, 3, 5, CREW_MAX };
	struct rng r = { 7 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct crew *c = make(sizes[i]);

		for (unsigned n = 0; n < 400; n++)
			run(c, &r);
		crew_destroy(c);
	}
}

/* A part that takes its time, and gives the processor away. */
static void dawdle(void *work, uint32_t part)
{
	for (unsigned i = 0; i < 20; i++)
		sched_yield();
	note(work, part);
}

Test(crew, the_others_help, .timeout = 60)
{
	struct crew *c = make(3);

	for (unsigned n = 0; n < 1000 && !atomic_load(&others); n++) {
		crew_begin(c, dawdle, times);
		crew_offer(c, PARTS);
		crew_end(c);
		check_times(PARTS, "ended");
	}
	crew_destroy(c);
	cr_assert_gt(atomic_load(&others), 0, "the owner did all of it");
}

static unsigned count_threads(void)
{
	DIR *d = opendir("/proc/self/task");
	unsigned n = 0;

	cr_assert(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* pthread_join() returns a little before the kernel has taken the thread out of /proc. */
static void wait_for_threads(unsigned nr)
{
	for (unsigned i = 0; i < 1000000 && count_threads() != nr; i++)
		sched_yield();
	cr_assert_eq(count_threads(), nr);
}

Test(crew, threads_are_as_many_as_asked_for, .timeout = 60)
{
	unsigned before = count_threads();
	struct crew *c = make(1);

	cr_assert_eq(count_threads(), before, "alone, and a thread was made");
	crew_destroy(c);
	c = make(4);
	cr_assert_eq(count_threads(), before + 3);
	crew_destroy(c);
	wait_for_threads(before);
	crew_destroy(NULL);
}

#ifdef FT_FAULT_POINTS
Test(crew, a_thread_that_cannot_be_made, .timeout = 60)
{
	unsigned before = count_threads();

	for (unsigned nth = 1; nth <= 3; nth++) {
		struct ft_error err = { 0 };
		struct crew *c;

		faultpoint_arm(nth, false, "thread/start");
		cr_assert_eq(crew_create(&c, 4, "test-crew", &err), -EAGAIN);
		faultpoint_disarm();
		cr_assert_null(c);
		cr_assert(strstr(err.msg, "cannot start 3 threads (test-crew)"), "%s", err.msg);
		wait_for_threads(before);
	}
}
#endif
