/* SPDX-License-Identifier: MIT */
/* test_session_same.c - pages that the secondary has as they are (skip-same): they are not sent, each epoch is still what the oracle says, a new connection
 * knows nothing of the one before, and auto finds out whether it is worth it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "clock.h"
#include "session_help.h"

static void open_guest(struct pair *p, enum sim_pattern pattern, uint64_t rate, const char *settings)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.primary = settings;
	opt.compare = true;
	opt.use_proxy = true;
	opt.sim.region_bytes[0] = UINT64_C(16) << 20;
	opt.sim.prefill_pages = (UINT64_C(16) << 20) / FT_PAGE_SIZE;
	opt.sim.nr_cpus = 1;
	opt.sim.pattern = pattern;
	opt.sim.rate = rate;
	opt.sim.output_every = 0;
	pair_open(p, &opt);
	pair_wait_protected(p);
}

struct sent {
	uint64_t pages, zero, same;
};

static struct sent sent_in(struct pair *p, uint64_t epochs)
{
	struct ft_stats before, after;

	ft_session_stats(p->primary, &before);
	pair_wait_applied(p, epochs);
	pair_check_compared(p);
	ft_session_stats(p->primary, &after);
	return (struct sent){
		.pages = after.counter[FT_COUNTER_PAGES] - before.counter[FT_COUNTER_PAGES],
		.zero = after.counter[FT_COUNTER_ZERO_PAGES] - before.counter[FT_COUNTER_ZERO_PAGES],
		.same = after.counter[FT_COUNTER_SAME_PAGES] - before.counter[FT_COUNTER_SAME_PAGES],
	};
}

static const char *status_word(struct pair *p)
{
	static struct ft_status st;

	ft_session_status(p->primary, &st);
	return st.skip_same;
}

/* What is written again as it was does not leave; what is not, does. */
Test(same, pages_that_are_there_are_not_sent, .timeout = 120)
{
	struct sent sent;
	struct pair p;

	open_guest(&p, SIM_REWRITE, 20000, "interval=20,output-cut=off,skip-same=on");
	cr_expect_str_eq(status_word(&p), "on");
	sent = sent_in(&p, 20);
	cr_expect_eq(sent.pages, 0, "%" PRIu64 " pages were sent", sent.pages);
	cr_expect_gt(sent.same, 500);
	cr_expect_eq(counted(p.primary, FT_COUNTER_SKIP_SWITCHES), 0);
	pair_close(&p);
	open_guest(&p, SIM_FLIP, 20000, "interval=20,output-cut=off,skip-same=on");
	sent = sent_in(&p, 20);
	cr_expect(sent.pages > 100 && sent.zero > 100 && sent.same > 100,
		  "%" PRIu64 " pages, %" PRIu64 " zero, %" PRIu64 " same", sent.pages, sent.zero, sent.same);
	pair_close(&p);
}

Test(same, off_is_off, .timeout = 120)
{
	struct sent sent;
	struct pair p;

	open_guest(&p, SIM_REWRITE, 20000, "interval=20,output-cut=off,skip-same=off");
	cr_expect_str_eq(status_word(&p), "off");
	sent = sent_in(&p, 20);
	cr_expect_eq(sent.same, 0);
	cr_expect_gt(sent.pages, 500);
	pair_close(&p);
}

/* The standby that comes back has none of what was told before, and gets all of it. */
Test(same, a_new_connection_knows_nothing, .timeout = 120)
{
	uint64_t losses, pages;
	struct pair p;

	open_guest(&p, SIM_REWRITE, 20000, "interval=20,output-cut=off,skip-same=on,resync=off");
	for (unsigned i = 0; i < 3; i++) {
		losses = atomic_load(&p.losses);
		pages = counted(p.primary, FT_COUNTER_PAGES);
		proxy_set_mode(p.proxy, PROXY_REFUSE);
		while (atomic_load(&p.losses) == losses)
			sleep_ms(2);
		proxy_set_mode(p.proxy, PROXY_PASS);
		pair_wait_protected(&p);
		cr_expect_geq(counted(p.primary, FT_COUNTER_PAGES) - pages, 4096,
			      "a full copy of a machine of 4096 pages");
		pair_wait_applied(&p, 5);
		pair_check_compared(&p);
	}
	pair_close(&p);
}

/* All pages are looked at once the sample says so, and then hardly any is sent. */
Test(same, auto_looks_where_it_pays, .timeout = 120)
{
	struct pair p;
	uint64_t deadline;

	open_guest(&p, SIM_REWRITE, 200000, "interval=20,output-cut=off");
	deadline = now_ns() + WAIT_MS * NS_PER_MS;
	while (strcmp(status_word(&p), "on") != 0) {
		cr_assert(now_ns() < deadline, "still %s", status_word(&p));
		pair_wait_applied(&p, 1);
	}
	cr_expect_eq(counted(p.primary, FT_COUNTER_SKIP_SWITCHES), 1);
	while (sent_in(&p, 5).pages > 50) /* each page once more, to know it */
		cr_assert(now_ns() < deadline, "pages are sent for ever");
	pair_close(&p);
}

Test(same, auto_leaves_what_does_not_pay, .timeout = 120)
{
	uint64_t pages = 0, same = 0;
	struct pair p;

	open_guest(&p, SIM_UNIFORM, 200000, "interval=20,output-cut=off,skip-same=auto");
	while (pages < UINT64_C(64) * 1000) { /* twenty times what the sample needs to decide */
		struct sent sent = sent_in(&p, 5);

		pages += sent.pages;
		same += sent.same;
	}
	cr_expect_str_eq(status_word(&p), "sample");
	cr_expect_eq(counted(p.primary, FT_COUNTER_SKIP_SWITCHES), 0);
	cr_expect_eq(same, 0, "%" PRIu64 " pages of random content were the same", same);
	pair_close(&p);
}

Test(same, no_connection_nothing_is_looked_at)
{
	struct ft_session *s = plain_open(FT_ROLE_PRIMARY);
	struct ft_status st;

	ft_session_status(s, &st);
	cr_expect_str_eq(st.skip_same, "off");
	ft_session_close(s);
}
