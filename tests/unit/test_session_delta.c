/* SPDX-License-Identifier: MIT */
/* test_session_delta.c - pages that go as their difference (delta): fewer octets, each epoch still what the oracle says; off by default; not into a ring. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "session_help.h"

static void open_guest(struct pair *p, const char *settings)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.primary = settings;
	opt.compare = true;
	opt.sim.region_bytes[0] = UINT64_C(16) << 20;
	opt.sim.prefill_pages = (UINT64_C(16) << 20) / FT_PAGE_SIZE;
	opt.sim.nr_cpus = 1;
	opt.sim.pattern = SIM_SPARSE;
	opt.sim.rate = 20000;
	opt.sim.output_every = 0;
	pair_open(p, &opt);
	pair_wait_protected(p);
}

/* Octets on the wire for each page that was told. */
static double octets_of_a_page(struct pair *p, uint64_t epochs)
{
	struct ft_stats a, z;
	uint64_t pages;

	pair_wait_applied(p, 3);
	ft_session_stats(p->primary, &a);
	pair_wait_applied(p, epochs);
	pair_check_compared(p);
	ft_session_stats(p->primary, &z);
	pages = z.counter[FT_COUNTER_PAGES] + z.counter[FT_COUNTER_DELTA_PAGES] - a.counter[FT_COUNTER_PAGES] -
		a.counter[FT_COUNTER_DELTA_PAGES];
	cr_assert_gt(pages, 500);
	return (double)z.dist[FT_METRIC_BYTES].p50 / (double)z.dist[FT_METRIC_DIRTY_PAGES].p50;
}

Test(delta, fewer_octets, .timeout = 120)
{
	struct pair p;
	double with, without;

	open_guest(&p, "interval=20,output-cut=off,placement=mirror,delta=on");
	with = octets_of_a_page(&p, 20);
	cr_expect_gt(counted(p.primary, FT_COUNTER_DELTA_PAGES), 500);
	cr_expect_geq(counted(p.primary, FT_COUNTER_DELTA_BYTES), counted(p.primary, FT_COUNTER_DELTA_PAGES) * 16);
	pair_close(&p);
	open_guest(&p, "interval=20,output-cut=off");
	without = octets_of_a_page(&p, 20);
	cr_expect_eq(counted(p.primary, FT_COUNTER_DELTA_PAGES), 0, "it is on by default");
	pair_close(&p);
	cr_expect_lt(with * 10, without, "%.0f octets a page with, %.0f without", with, without);
}

/* A cache of an eighth of the pages: what is not in it goes as it is. */
Test(delta, a_small_cache_will_do, .timeout = 120)
{
	uint64_t pages;
	struct pair p;

	open_guest(&p, "interval=20,output-cut=off,placement=mirror,delta=on,delta-cache=2M");
	pages = counted(p.primary, FT_COUNTER_PAGES);
	pair_wait_applied(&p, 40);
	pair_check_compared(&p);
	cr_expect_gt(counted(p.primary, FT_COUNTER_DELTA_PAGES), 50);
	cr_expect_gt(counted(p.primary, FT_COUNTER_PAGES) - pages, 50);
	pair_close(&p);
}

Test(delta, not_into_a_ring)
{
	struct ft_config cfg = plain_config(FT_ROLE_PRIMARY);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;

	cfg.delta = 1;
	cfg.placement = FT_PLACEMENT_SLAB;
	fails(ft_session_open(&s, &cfg, &ops, NULL, &err), &err, -EINVAL, "delta");
}
