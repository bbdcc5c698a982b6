/* SPDX-License-Identifier: MIT */
/* test_pool.c - pool.h: the cap, reuse, alignment, huge-page advice, locking and its refusal, threads, and that the
 * program's own malloc is not touched. */
#include <criterion/criterion.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "faultpoint.h"
#include "pool.h"

#define MIB ((size_t)1 << 20)

static struct pool *create(uint64_t cap_bytes, bool huge_pages, bool lock)
{
	struct pool_options opt = { .cap_bytes = cap_bytes, .huge_pages = huge_pages, .lock = lock };
	struct ft_error err = { 0 };
	struct pool *p;

	cr_assert_eq(pool_create(&p, &opt, &err), 0, "%s", err.msg);
	return p;
}

static struct pool_stats stats(struct pool *p)
{
	struct pool_stats s;

	pool_stats(p, &s);
	return s;
}

Test(pool, the_whole_cap_can_be_handed_out_and_not_a_page_more)
{
	struct pool *p = create(64 * MIB, false, false);
	void *slab[8];

	for (int i = 0; i < 8; i++) {
		slab[i] = pool_alloc(p, 8 * MIB, 4096);
		cr_assert_not_null(slab[i], "slab %d", i);
		memset(slab[i], i + 1, 8 * MIB);
	}
	cr_assert_null(pool_alloc(p, 8 * MIB, 4096));
	cr_assert_null(pool_alloc(p, 1, 1));
	cr_assert_eq(stats(p).mapped_bytes, 64 * MIB);
	cr_assert_eq(stats(p).used_bytes, 64 * MIB);
	for (int i = 0; i < 8; i++) {
		cr_assert_eq(((char *)slab[i])[8 * MIB - 1], i + 1);
		pool_free(p, slab[i], 8 * MIB);
	}
	cr_assert_eq(stats(p).used_bytes, 0);
	cr_assert_eq(stats(p).peak_bytes, 64 * MIB);
	pool_destroy(p);
}

/* 33 MiB would be 40 MiB in jemalloc's size classes. */
Test(pool, odd_lengths_are_not_rounded_up)
{
	struct pool *p = create(33 * MIB, false, false);
	void *a = pool_alloc(p, 33 * MIB, 4096);

	cr_assert_not_null(a);
	cr_assert_eq(stats(p).mapped_bytes, 33 * MIB);
	pool_free(p, a, 33 * MIB);
	cr_assert_eq(stats(p).mapped_bytes, 0);
	pool_destroy(p);
}

Test(pool, what_was_freed_serves_other_lengths_at_the_cap)
{
	struct pool *p = create(16 * MIB, false, false);
	static const size_t len[] = { 16 * MIB, 1 * MIB, 9 * MIB, 4096, 7 * MIB + 1, 16 * MIB };
	void *mem;

	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof(len) / sizeof(len[0]); i++) {
			mem = pool_alloc(p, len[i], 4096);
			cr_assert_not_null(mem, "%zu octets in round %d", len[i], round);
			memset(mem, 0xa5, len[i]);
			cr_assert_leq(stats(p).mapped_bytes, 16 * MIB);
			pool_free(p, mem, len[i]);
		}
	pool_destroy(p);
}

Test(pool, small_pieces_alignment_and_zero)
{
	static const size_t align[] = { 1, 16, 64, 4096, 65536, 2 * MIB };
	struct pool *p = create(64 * MIB, true, false);
	void *mem[6];

	for (size_t i = 0; i < 6; i++) {
		mem[i] = pool_alloc(p, 100 + i * 5000, align[i]);
		cr_assert_not_null(mem[i]);
		cr_assert_eq((uintptr_t)mem[i] % align[i], 0);
		for (size_t k = 0; k < 100 + i * 5000; k++)
			cr_assert_eq(((char *)mem[i])[k], 0);
		memset(mem[i], 1, 100 + i * 5000);
	}
	for (size_t i = 0; i < 6; i++)
		pool_free(p, mem[i], 100 + i * 5000);
	mem[0] = pool_alloc(p, 9 * MIB + 5, 4 * MIB);
	cr_assert_not_null(mem[0]);
	cr_assert_eq((uintptr_t)mem[0] % (4 * MIB), 0);
	pool_free(p, mem[0], 9 * MIB + 5);
	cr_assert_null(pool_alloc(p, 0, 1));
	cr_assert_null(pool_alloc(p, SIZE_MAX, 1));
	pool_free(p, NULL, 5);
	pool_destroy(p);
	pool_destroy(NULL);
}

Test(pool, a_cap_without_sense_is_refused)
{
	struct pool_options opt = { .cap_bytes = 100 };
	struct pool *p = (struct pool *)8;
	struct ft_error err = { 0 };

	cr_assert_eq(pool_create(&p, &opt, &err), -EINVAL);
	cr_assert_null(p);
	cr_assert(strstr(err.msg, "100 bytes"), "%s", err.msg);
}

/* A field of the mapping that holds @mem, from /proc/self/smaps. */
static bool smaps_field(const void *mem, const char *field, char *out, size_t len)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	bool inside = false, found = false;
	unsigned long from, to;
	char line[512];

	cr_assert_not_null(f);
	while (!found && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = (uintptr_t)mem >= from && (uintptr_t)mem < to;
		else if (inside && !strncmp(line, field, strlen(field))) {
			snprintf(out, len, "%.200s", line + strlen(field));
			found = true;
		}
	}
	fclose(f);
	return found;
}

Test(pool, big_extents_are_advised_and_aligned_for_huge_pages)
{
	struct pool *p = create(64 * MIB, true, false), *q = create(64 * MIB, false, false);
	void *a = pool_alloc(p, 8 * MIB, 4096), *b = pool_alloc(q, 8 * MIB, 4096);
	void *odd = pool_alloc(p, 9 * MIB, 4096);
	char flags[256];

	cr_assert(a && b && odd);
	cr_assert_eq((uintptr_t)a % (2 * MIB), 0);
	cr_assert_eq((uintptr_t)odd % (2 * MIB), 0);
	if (stats(p).huge_pages) { /* false on a kernel without them, where the advice is refused */
		cr_assert(smaps_field(a, "VmFlags:", flags, sizeof(flags)));
		cr_assert(strstr(flags, " hg"), "%s", flags);
	}
	cr_assert(smaps_field(b, "VmFlags:", flags, sizeof(flags)));
	cr_assert_not(strstr(flags, " hg"), "%s", flags);
	cr_assert_not(stats(q).huge_pages);
	pool_free(p, a, 8 * MIB);
	pool_free(p, odd, 9 * MIB);
	pool_free(q, b, 8 * MIB);
	pool_destroy(p);
	pool_destroy(q);
}

/* 32 KiB can be locked everywhere: the limit was 64 KiB even on old systems. */
Test(pool, locked_extents_are_locked)
{
	struct pool *p = create(32768, false, true);
	void *mem = pool_alloc(p, 32768, 4096);
	char flags[256];

	cr_assert_not_null(mem);
	cr_assert(stats(p).locked);
	cr_assert(smaps_field(mem, "VmFlags:", flags, sizeof(flags)));
	cr_assert(strstr(flags, " lo"), "%s", flags);
	pool_free(p, mem, 32768);
	pool_destroy(p);
}

/* As a user without CAP_IPC_LOCK and with a limit of 64 KiB. */
Test(pool, too_low_a_memlock_limit_is_refused_in_words)
{
	struct pool_options opt = { .cap_bytes = 4 * MIB, .lock = true };
	struct rlimit limit = { 65536, 65536 };
	struct pool *p = (struct pool *)8;
	struct ft_error err = { 0 };

	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (geteuid() == 0)
		cr_assert_eq(setresuid(65534, 65534, 65534), 0);
	cr_assert_eq(pool_create(&p, &opt, &err), -ENOMEM);
	cr_assert_null(p);
	cr_assert_eq(err.code, -ENOMEM);
	cr_assert(strstr(err.msg, "RLIMIT_MEMLOCK is 65536 bytes"), "%s", err.msg);
	cr_assert(strstr(err.msg, "4194304 are needed"), "%s", err.msg);
	cr_assert(strstr(err.msg, "ulimit -l 4096"), "%s", err.msg);
	opt.cap_bytes = 32768;
	cr_assert_eq(pool_create(&p, &opt, &err), 0, "%s", err.msg);
	pool_destroy(p);
}

static void *churn(void *arg)
{
	struct pool *p = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;
	size_t len;
	char *mem;

	for (int i = 0; i < 2000; i++) {
		len = 1 + (size_t)rand_r(&seed) % (i % 100 ? 100000 : 3 * MIB);
		mem = pool_alloc(p, len, 64);
		if (!mem)
			continue;
		mem[0] = mem[len - 1] = (char)i;
		cr_assert_eq(mem[0], (char)i);
		pool_free(p, mem, len);
	}
	return NULL;
}

Test(pool, threads)
{
	struct pool *p = create(8 * MIB, true, false);
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&t[i], NULL, churn, p), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	cr_assert_eq(stats(p).used_bytes, 0);
	cr_assert_leq(stats(p).peak_bytes, 8 * MIB);
	pool_destroy(p);
}

static unsigned long mapped_kib(void)
{
	unsigned long pages;
	FILE *f = fopen("/proc/self/statm", "r");

	cr_assert_not_null(f);
	cr_assert_eq(fscanf(f, "%lu", &pages), 1);
	fclose(f);
	return pages * 4;
}

Test(pool, pools_come_and_go_without_a_rest)
{
	unsigned long before = 0;

	for (int i = 0; i < 200; i++) {
		struct pool *p = create(64 * MIB, false, false);
		void *a = pool_alloc(p, 8 * MIB, 4096), *b = pool_alloc(p, 100, 8);

		cr_assert(a && b);
		pool_free(p, a, 8 * MIB);
		pool_free(p, b, 100);
		pool_destroy(p);
		if (i == 20)
			before = mapped_kib();
	}
	cr_assert_leq(mapped_kib(), before + 16384);
}

/* The program's malloc never sees what the pool does. */
Test(pool, malloc_is_not_replaced)
{
	struct pool *p = create(64 * MIB, false, false);
	size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
	void *a = pool_alloc(p, 8 * MIB, 4096), *b = pool_alloc(p, 5000, 8);

	cr_assert_eq(mallinfo2().uordblks + mallinfo2().hblkhd, before);
	pool_free(p, a, 8 * MIB);
	pool_free(p, b, 5000);
	pool_destroy(p);
}

#ifdef FT_FAULT_POINTS
Test(pool, the_fault_point_makes_one_allocation_fail)
{
	struct pool *p = create(MIB, false, false);
	void *a;

	faultpoint_arm(1, false, "pool/alloc");
	cr_assert_null(pool_alloc(p, 100, 8));
	cr_assert_str_eq(faultpoint_failed(), "pool/alloc");
	a = pool_alloc(p, 100, 8);
	cr_assert_not_null(a);
	faultpoint_disarm();
	pool_free(p, a, 100);
	pool_destroy(p);
}
#endif
