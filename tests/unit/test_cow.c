/* SPDX-License-Identifier: MIT */
/* test_cow.c - capture by copy on write: each page once, as it was when armed; what writers fill is sorted; waiting writers are let go. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cow.h"
#include "sim.h"

#define PAGES 300u

static _Alignas(FT_PAGE_SIZE) uint8_t ram[PAGES * FT_PAGE_SIZE];

struct world {
	struct region_table *empty, *regions;
	struct cow *cow;
	struct hist paid; /* by writers */
	struct slab *slab[2];
	void *memory[2];
};

static void make(struct world *w)
{
	struct ft_error err = { 0 };

	memset(ram, 1, sizeof(ram));
	w->empty = region_table_empty();
	w->regions = region_table_add(w->empty, "ram", ram, sizeof(ram), &err);
	cr_assert(w->regions, "%s", err.msg);
	hist_init(&w->paid);
	cr_assert_eq(cow_create(&w->cow, &w->paid), 0);
	cr_assert_eq(cow_begin(w->cow, w->regions), 0);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(posix_memalign(&w->memory[i], FT_PAGE_SIZE, SLAB_BYTES), 0);
		cr_assert_eq(slab_create(&w->slab[i], w->memory[i]), 0);
	}
	cow_on(w->cow);
}

static void unmake(struct world *w)
{
	cow_end(w->cow);
	cow_destroy(w->cow);
	for (unsigned i = 0; i < 2; i++) {
		slab_destroy(w->slab[i]);
		free(w->memory[i]);
	}
	region_table_free(w->regions);
	region_table_free(w->empty);
}

static void write_to(struct world *w, uint64_t page, uint8_t value)
{
	cow_write(w->cow, 0, page, 1);
	memset(ram + page * FT_PAGE_SIZE, value, FT_PAGE_SIZE);
}

static void expect_old(const struct slab *s, uint32_t slot, uint64_t page, uint8_t value)
{
	cr_expect_eq(s->page[slot], page, "slot %u: page %lu", slot, (unsigned long)s->page[slot]);
	for (size_t i = 0; i < FT_PAGE_SIZE; i += 511)
		cr_assert_eq(s->memory[slot * (size_t)FT_PAGE_SIZE + i], value, "slot %u octet %zu", slot, i);
}

/* So many times are in the distribution, and their sum is what the epoch is told. */
static void expect_paid(struct world *w, uint64_t times, uint64_t least_ns)
{
	struct cow_paid paid = cow_paid(w->cow);
	struct ft_dist d;

	hist_read(&w->paid, &d);
	cr_expect_eq(d.count, times, "%lu times", (unsigned long)d.count);
	cr_expect_float_eq(d.mean * (double)times, (double)paid.ns, 1);
	cr_expect_geq(paid.ns, least_ns);
}

Test(cow, a_page_is_copied_once_as_it_was)
{
	struct world w;
	uint64_t at = 0;

	make(&w);
	for (uint64_t page = 10; page < 20; page++)
		write_to(&w, page, (uint8_t)page);
	cr_expect_eq(cow_written(w.cow), 10);
	cow_arm(w.cow);
	cr_expect_eq(cow_written(w.cow), 0);
	cr_expect(cow_starved(w.cow));
	cr_expect_null(cow_exchange(w.cow, w.slab[0]));
	for (uint64_t page = 19; page > 15; page--)
		write_to(&w, page, 99);
	write_to(&w, 17, 98);
	write_to(&w, 50, 97);
	while (cow_copy(w.cow, w.slab[1], &at, 3))
		;
	cow_disarm(w.cow);
	cr_expect_eq(cow_paid(w.cow).faults, 4);
	expect_paid(&w, 4, 4);
	cr_assert_eq(cow_exchange(w.cow, NULL), w.slab[0]);
	cr_assert_eq(w.slab[0]->nr, 4);
	cr_assert_eq(w.slab[1]->nr, 6);
	cow_sort(w.cow, w.slab[0]);
	for (uint32_t i = 0; i < 4; i++)
		expect_old(w.slab[0], i, 16 + i, (uint8_t)(16 + i));
	for (uint32_t i = 0; i < 6; i++)
		expect_old(w.slab[1], i, 10 + i, (uint8_t)(10 + i));
	cr_expect_eq(cow_written(w.cow), 5, "what was written since is of the next epoch");
	unmake(&w);
}

Test(cow, what_was_written_since_is_the_next_set)
{
	struct world w;
	uint64_t at = 0;

	make(&w);
	write_to(&w, 3, 3);
	cow_arm(w.cow);
	cow_exchange(w.cow, w.slab[0]);
	write_to(&w, 3, 4);
	write_to(&w, 299, 5);
	cow_disarm(w.cow);
	cow_exchange(w.cow, NULL);
	cow_arm(w.cow);
	while (cow_copy(w.cow, w.slab[1], &at, 64))
		;
	cr_assert_eq(w.slab[1]->nr, 2);
	expect_old(w.slab[1], 0, 3, 4);
	expect_old(w.slab[1], 1, 299, 5);
	cow_disarm(w.cow);
	unmake(&w);
}

Test(cow, sorting_any_order)
{
	struct world w;
	uint64_t x = 7;

	make(&w);
	for (uint32_t i = 0; i < SLAB_PAGES; i++) {
		x = x * 5 % 4099; /* a prime: no repeats in so few */
		w.slab[0]->page[i] = x;
		memcpy(w.slab[0]->memory + i * (size_t)FT_PAGE_SIZE, &x, sizeof(x));
	}
	w.slab[0]->nr = SLAB_PAGES;
	cow_sort(w.cow, w.slab[0]);
	for (uint32_t i = 0; i < SLAB_PAGES; i++) {
		cr_assert_eq(memcmp(w.slab[0]->memory + i * (size_t)FT_PAGE_SIZE, &w.slab[0]->page[i], 8), 0);
		cr_assert(i == 0 || w.slab[0]->page[i] > w.slab[0]->page[i - 1], "slot %u", i);
	}
	unmake(&w);
}

Test(cow, out_of_range_and_off_is_nothing)
{
	struct world w;

	make(&w);
	cow_write(w.cow, 0, PAGES - 1, 2);
	cow_write(w.cow, 0, UINT64_MAX, 2);
	cow_write(w.cow, 1, 0, 1);
	cr_expect_eq(cow_written(w.cow), 0);
	cow_end(w.cow);
	cow_write(w.cow, 0, 0, 1);
	cow_end(w.cow);
	unmake(&w);
}

#define WAIT_US 20000u

static atomic_bool gone_on;

static void *writer(void *arg)
{
	cow_write(((struct world *)arg)->cow, 0, 5, 1);
	atomic_store(&gone_on, true);
	return NULL;
}

/* @by: what lets it go. */
static void let_go(void (*by)(struct world *w))
{
	struct world w;
	pthread_t t;

	make(&w);
	write_to(&w, 5, 5);
	cow_arm(w.cow);
	cr_assert_eq(pthread_create(&t, NULL, writer, &w), 0);
	usleep(WAIT_US);
	cr_expect(!atomic_load(&gone_on), "there was no slab to copy into");
	by(&w);
	pthread_join(t, NULL);
	cr_expect(atomic_load(&gone_on));
	expect_paid(&w, 1, WAIT_US * 1000 / 10); /* a tenth: its thread may have begun late */
	cow_disarm(w.cow);
	cow_exchange(w.cow, NULL);
	unmake(&w);
}

static void by_slab(struct world *w)
{
	cow_exchange(w->cow, w->slab[0]);
}

static void by_disarm(struct world *w)
{
	cow_disarm(w->cow);
}

Test(cow, a_writer_waits_for_a_slab, .timeout = 20)
{
	let_go(by_slab);
}

Test(cow, a_writer_does_not_wait_for_what_ends, .timeout = 20)
{
	let_go(by_disarm);
}

/* A VMM that does not tell its writes is refused with a sentence, not captured wrongly. */
Test(cow, a_vmm_without_the_hook_is_refused)
{
	struct ft_vmm_ops ops = *sim_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.peer = "127.0.0.1:1";
	cfg.capture = FT_CAPTURE_COW;
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	ft_session_close(s);
	ops.write_hook = NULL;
	cr_expect_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), -ENOTSUP);
	cr_expect(strstr(err.msg, "write_hook"), "says: %s", err.msg);
	cfg.capture = FT_CAPTURE_COPY;
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	ft_session_close(s);
	cfg.capture = FT_CAPTURE_AUTO; /* which is copy, then */
	cr_assert_eq(ft_session_open(&s, &cfg, &ops, NULL, &err), 0, "%s", err.msg);
	ft_session_close(s);
}
