/* SPDX-License-Identifier: MIT */
/* test_region.c - checkpoint/region.c: what is taken and refused, and page lookup against a walk over all regions. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "region.h"

#define PAGE FT_PAGE_SIZE
#define AT(n) ((void *)(uintptr_t)(0x10000000u + (n)*PAGE)) /* addresses are not looked behind */

static struct region_table *with(struct region_table *old, const char *name, void *base, uint64_t pages)
{
	struct ft_error err;
	struct region_table *t = region_table_add(old, name, base, pages * PAGE, &err);

	cr_assert(t, "%s", err.msg);
	region_table_free(old);
	return t;
}

static struct region_table *three(void)
{
	struct region_table *t = with(region_table_empty(), "ram", AT(0), 100);

	t = with(t, "rom", AT(1000), 64);
	return with(t, "vga", AT(100), 1);
}

Test(region, laid_end_to_end)
{
	struct region_table *t = three();

	cr_assert_eq(t->count, 3);
	cr_assert_eq(t->region[0].first_page, 0);
	cr_assert_eq(t->region[1].first_page, 128);
	cr_assert_eq(t->region[2].first_page, 192);
	cr_assert_eq(t->nr_pages, 256);
	cr_assert_eq(t->total_bytes, 165 * PAGE);
	region_table_free(t);
	region_table_free(NULL);
}

static void refused(const struct region_table *t, const char *name, void *base, uint64_t len, int code,
		    const char *sentence)
{
	struct ft_error err = { 0 };

	cr_assert_null(region_table_add(t, name, base, len, &err));
	cr_assert_eq(err.code, code, "%d: %s", err.code, err.msg);
	cr_assert(strstr(err.msg, sentence), "'%s' is not in '%s'", sentence, err.msg);
	cr_assert_null(region_table_add(t, name, base, len, NULL));
}

Test(region, what_is_refused)
{
	struct region_table *t = three();
	char name[FT_NAME_MAX + 1];

	memset(name, 'n', FT_NAME_MAX);
	name[FT_NAME_MAX] = '\0';
	refused(t, "rom", AT(5000), PAGE, -EEXIST, "region rom is there already");
	refused(t, "", AT(5000), PAGE, -EINVAL, "name has 1 to 127");
	refused(t, name, AT(5000), PAGE, -EINVAL, "name has 1 to 127");
	refused(t, "x", NULL, PAGE, -EINVAL, "address");
	refused(t, "x", (char *)AT(5000) + 512, PAGE, -EINVAL, "address");
	refused(t, "x", AT(5000), 0, -EINVAL, "0 octets");
	refused(t, "x", AT(5000), PAGE + 1, -EINVAL, "4097 octets");
	refused(t, "x", AT(5000), UINT64_MAX - PAGE + 1, -EINVAL, "do not fit");
	refused(t, "x", AT(99), PAGE, -EINVAL, "overlaps region ram");
	refused(t, "x", AT(999), 3 * PAGE, -EINVAL, "overlaps region rom");
	refused(t, "x", AT(0), 5000 * PAGE, -EINVAL, "overlaps region ram");
	name[FT_NAME_MAX - 1] = '\0';
	t = with(t, name, AT(101), 899); /* fits exactly between vga and rom */
	cr_assert_eq(t->nr_pages, 256 + 960);
	region_table_free(t);
}

Test(region, at_most_so_many)
{
	struct region_table *t = region_table_empty();
	char name[16];

	for (unsigned i = 0; i < FT_REGIONS_MAX; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		t = with(t, name, AT(i), 1);
	}
	refused(t, "x", AT(5000), PAGE, -ENOSPC, "there are 1024 regions already");
	region_table_free(t);
}

Test(region, removed_keeps_its_index)
{
	struct region_table *t = three(), *u;
	struct region_entry e[8];
	struct ft_error err;

	u = region_table_without(t, 1, &err);
	cr_assert(u);
	region_table_free(t);
	cr_assert_eq(u->count, 3);
	cr_assert_eq(u->nr_pages, 192);
	cr_assert_eq(u->total_bytes, 101 * PAGE);
	cr_assert_eq(region_of_page(u, 128), &u->region[2]);
	cr_assert_null(region_of_page(u, 192));
	cr_assert_eq(region_entries(u, e), 2);
	cr_assert_eq(e[1].first_page, 128);
	cr_assert_null(region_table_without(u, 1, &err));
	cr_assert_eq(err.code, -EINVAL);
	cr_assert_null(region_table_without(u, 3, &err));
	u = with(u, "rom", AT(1000), 2); /* name and memory are free again, the index is not */
	cr_assert_eq(u->region[3].first_page, 192);
	region_table_free(u);
}

Test(region, page_lookup_against_a_walk)
{
	struct region_table *t = region_table_empty();
	uint64_t x = 88172645463325252u;
	char name[16];

	cr_assert_null(region_of_page(t, 0));
	for (unsigned i = 0, at = 0; i < 40; i++) {
		uint64_t pages;

		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		pages = x % 3 ? 1 + x % 200 : 64;
		snprintf(name, sizeof(name), "r%u", i);
		t = with(t, name, AT(at), pages);
		at += (unsigned)pages;
		if (i % 7 == 3) {
			struct region_table *u = region_table_without(t, i - 1, NULL);

			region_table_free(t);
			t = u;
		}
	}
	for (uint64_t p = 0; p < t->nr_pages + 70; p++) {
		const struct region *want = NULL;
		uint64_t follow;
		uint8_t *at;

		for (uint32_t i = 0; i < t->count; i++)
			if (t->region[i].base && p >= t->region[i].first_page &&
			    p < t->region[i].first_page + t->region[i].nr_pages)
				want = &t->region[i];
		cr_assert_eq(region_of_page(t, p), want, "page %lu", (unsigned long)p);
		at = region_page_address(t, p, &follow);
		cr_assert_eq(at, want ? want->base + (p - want->first_page) * PAGE : NULL);
		cr_assert_eq(follow, want ? want->first_page + want->nr_pages - p : 0);
	}
	cr_assert_null(region_page_address(t, UINT64_MAX, NULL));
	region_table_free(t);
}

static void differs(const struct region_table *t, const struct region_entry *e, uint32_t count, const char *sentence)
{
	struct ft_error err = { 0 };

	cr_assert_eq(region_table_matches(t, e, count, &err), -EINVAL);
	cr_assert(strstr(err.msg, sentence), "'%s' is not in '%s'", sentence, err.msg);
}

Test(region, same_layout_or_not)
{
	struct region_table *t = three(), *u;
	struct region_entry e[4], good[4];
	struct ft_error err;

	cr_assert_eq(region_entries(t, good), 3);
	good[3] = (struct region_entry){ .first_page = 256, .len_bytes = PAGE, .name_bytes = 2, .name = "x\033" };
	cr_assert_eq(region_table_matches(t, good, 3, &err), 0);
	differs(t, good, 2, "region vga is missing there");
	differs(t, good, 4, "region x? is missing here");
#define DIFFERS(field, value, sentence)                                                                                \
	do {                                                                                                           \
		memcpy(e, good, sizeof(e));                                                                            \
		e[1].field = (value);                                                                                  \
		differs(t, e, 3, sentence);                                                                            \
	} while (0)
	DIFFERS(name, "rxm", "region 1 is rxm there and rom here");
	DIFFERS(name_bytes, 2, "region 1 is ro there and rom here");
	DIFFERS(len_bytes, PAGE, "region rom has 4096 octets there and 262144 here");
	DIFFERS(first_page, 192, "region rom starts at page 192 there and 128 here");
	DIFFERS(flags, 4, "region rom has flags 0x4");
	u = region_table_without(t, 1, NULL);
	cr_assert_eq(region_entries(u, e), 2);
	cr_assert_eq(region_table_matches(u, e, 2, &err), 0);
	differs(t, e, 2, "region 1 is vga there and rom here");
	region_table_free(u);
	region_table_free(t);
}

Test(region, a_table_always_fits_into_its_record)
{
	struct region_table *t = region_table_empty(), *next;
	static struct region_entry entry[FT_REGIONS_MAX];
	static uint8_t record[FTW_RECORD_MAX];
	struct ft_error err = { 0 };
	char name[FT_NAME_MAX];
	uint32_t n = 0;

	for (;; n++) {
		snprintf(name, sizeof(name), "%0100u", n);
		next = region_table_add(t, name, (void *)(uintptr_t)(0x100000 + n * FT_PAGE_SIZE), FT_PAGE_SIZE, &err);
		if (!next)
			break;
		region_table_free(t);
		t = next;
	}
	cr_assert_eq(err.code, -ENOSPC);
	cr_assert(strstr(err.msg, "shorter names"), "%s", err.msg);
	cr_assert_gt(n, 400);
	cr_assert_gt(create_regions(record, 1, entry, region_entries(t, entry)), 0);
	region_table_free(t);
}

Test(region, names_are_printable)
{
	struct region_table *t = region_table_empty();
	struct ft_error err = { 0 };

	cr_assert_null(region_table_add(t, "r\303\244m", (void *)0x100000, FT_PAGE_SIZE, &err));
	cr_assert_eq(err.code, -EINVAL);
	region_table_free(t);
}

Test(region, a_table_after_a_removal_is_that_of_a_machine_that_never_had_it)
{
	struct region_table *t[6] = { region_table_empty() }, *fresh[3] = { region_table_empty() };
	struct region_entry e[3];
	struct ft_error err = { 0 };
	const char *names[] = { "a", "b", "c" };

	for (unsigned i = 0; i < 3; i++)
		cr_assert(t[i + 1] = region_table_add(t[i], names[i], (void *)(uintptr_t)(0x1000000 * (i + 1)),
						      (100 + i) * FT_PAGE_SIZE, &err));
	cr_assert(t[4] = region_table_without(t[3], 1, &err));
	cr_assert(fresh[1] = region_table_add(fresh[0], "a", (void *)0x1000000, 100 * FT_PAGE_SIZE, &err));
	cr_assert(fresh[2] = region_table_add(fresh[1], "c", (void *)0x3000000, 102 * FT_PAGE_SIZE, &err));
	cr_assert_eq(region_entries(t[4], e), 2);
	cr_assert_eq(region_table_matches(fresh[2], e, 2, &err), 0, "%s", err.msg);
	cr_assert_eq(t[4]->nr_pages, fresh[2]->nr_pages);
	cr_assert_eq(region_of_page(t[4], 128), &t[4]->region[2]);
	cr_assert_null(region_of_page(t[4], 127));
	for (unsigned i = 0; i < 5; i++)
		region_table_free(t[i]);
	for (unsigned i = 0; i < 3; i++)
		region_table_free(fresh[i]);
}
