/* SPDX-License-Identifier: MIT */
/* test_session_checks.c - page-checks: with both placements a page that is damaged on the way is named, on both sides, and the machine is protected again behind it. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include "session_help.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool primary_says, secondary_says;
static const char *sentence;

static void hear(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user, (void)level;
	pthread_mutex_lock(&lock);
	if (sentence && strstr(msg, sentence))
		*(strcmp(module, "secondary") == 0 ? &secondary_says : &primary_says) = true;
	pthread_mutex_unlock(&lock);
}

/* A bit of one write of each connection is flipped: behind the first epochs, with an image each run of pages is a write of its own. */
static void damage(const char *settings, const char *fault, const char *expected)
{
	struct pair_options opt;
	struct pair p;

	sentence = expected;
	pair_options_init(&opt);
	opt.primary = settings;
	opt.compare = true;
	opt.fault = fault;
	opt.sim.region_bytes[0] = UINT64_C(16) << 20;
	opt.sim.nr_cpus = 1;
	opt.sim.rate = 20000;
	pair_open(&p, &opt);
	ft_log_set(hear, NULL, FT_LOG_WARN);
	while (atomic_load(&p.losses) < 2)
		sleep_ms(5);
	pair_wait_applied(&p, 1);
	pair_check_compared(&p);
	pair_close(&p);
	ft_log_set(NULL, NULL, FT_LOG_WARN);
	cr_expect(secondary_says, "the secondary does not say '%s'", sentence);
	cr_expect(primary_says, "the primary does not say '%s'", sentence);
}

Test(checks, the_page_is_named_in_a_ring, .timeout = 120)
{
	damage("interval=20,page-checks=on", "corrupt=20", "is not what was sent; of ");
}

Test(checks, the_page_is_named_in_an_image, .timeout = 120)
{
	damage("interval=20,page-checks=on,placement=mirror", "corrupt=3000", "is not what was sent; of ");
}

Test(checks, not_by_default, .timeout = 120)
{
	damage("interval=20", "corrupt=20", "digest of ");
}
