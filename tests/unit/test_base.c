/* SPDX-License-Identifier: MIT */
/* test_base.c - the leaf code all folders use: hist, err, faultpoint, clock, thread, log. */
#include <criterion/criterion.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "hist.h"
#include "log.h"
#include "thread.h"

/* ---- hist ---- */

static uint64_t draw(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return *seed >> 20;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Never told too small, and too large by 1/64 at most. */
static void expect_percentile(uint64_t got, uint64_t exact, const char *what, uint64_t n)
{
	cr_assert_geq(got, exact, "%s of %lu values: %lu, exact %lu", what, n, got, exact);
	cr_assert_leq(got - exact, exact / 64, "%s of %lu values: %lu, exact %lu", what, n, got, exact);
}

static void expect_hist(uint64_t *value, uint64_t n)
{
	static struct hist h;
	struct ft_dist d;
	double sum = 0;

	hist_init(&h);
	for (uint64_t i = 0; i < n; i++) {
		hist_add(&h, value[i]);
		sum += (double)value[i];
	}
	hist_read(&h, &d);
	qsort(value, n, sizeof(*value), by_value);
	cr_assert_eq(d.count, n);
	cr_assert_eq(d.min, value[0]);
	cr_assert_eq(d.max, value[n - 1]);
	cr_assert_float_eq(d.mean, sum / (double)n, sum / (double)n * 1e-9 + 1e-9);
	expect_percentile(d.p50, value[(n + 1) / 2 - 1], "p50", n);
	expect_percentile(d.p99, value[n - n / 100 - 1], "p99", n);
}

Test(hist, percentiles_are_within_a_64th_of_a_sorted_array)
{
	static uint64_t value[10000];
	uint64_t seed = 1;

	for (uint64_t n = 1; n <= 10000; n = n * 3 / 2 + 1)
		for (unsigned bits = 1; bits <= 43; bits += 3) {
			for (uint64_t i = 0; i < n; i++)
				value[i] = draw(&seed) & ((UINT64_C(1) << (1 + draw(&seed) % bits)) - 1);
			expect_hist(value, n);
		}
}

Test(hist, zeros_edges_of_buckets_and_the_largest_value)
{
	uint64_t zeros[] = { 0, 0, 0, 5 }, edges[] = { 63, 64, 65, 127, 128, 129, 255, 256, 4095, 4096 };
	struct ft_dist d;
	static struct hist h;

	expect_hist(zeros, 4);
	for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
		expect_hist((uint64_t[]){ edges[i] }, 1);
	expect_hist(edges, sizeof(edges) / sizeof(edges[0]));
	hist_init(&h);
	hist_add(&h, UINT64_MAX);
	hist_read(&h, &d);
	cr_assert(d.count == 1 && d.min == UINT64_MAX && d.max == UINT64_MAX && d.p50 == UINT64_MAX &&
		  d.p99 == UINT64_MAX);
}

Test(hist, empty_is_all_zero)
{
	static struct hist h;
	struct ft_dist d, zero = { 0 };

	hist_init(&h);
	hist_read(&h, &d);
	cr_assert_arr_eq(&d, &zero, sizeof(d));
}

/* ---- err ---- */

Test(err, set_returns_the_code_and_stores_the_sentence)
{
	struct ft_error err = { 0 };

	cr_assert_eq(err_set(&err, -EINVAL, "version %d, we speak %s", 3, "1-2"), -EINVAL);
	cr_assert_eq(err.code, -EINVAL);
	cr_assert_str_eq(err.msg, "version 3, we speak 1-2");
	cr_assert_eq(err_prefix(&err, "hello"), -EINVAL);
	cr_assert_eq(err_prefix(&err, "standby %s", "10.0.0.2"), -EINVAL);
	cr_assert_str_eq(err.msg, "standby 10.0.0.2: hello: version 3, we speak 1-2");
	cr_assert_eq(err_set(&err, -EIO, "again: %s", err.msg), -EIO);
	cr_assert_str_eq(err.msg, "again: standby 10.0.0.2: hello: version 3, we speak 1-2");
	err_clear(&err);
	cr_assert(err.code == 0 && err.msg[0] == '\0');
}

Test(err, sys_appends_the_reason_in_any_locale)
{
	struct ft_error err = { 0 };

	setlocale(LC_ALL, "");
	cr_assert_eq(err_sys(&err, -ENOENT, "open %s", "/x"), -ENOENT);
	cr_assert_str_eq(err.msg, "open /x: No such file or directory");
	cr_assert_eq(err_sys(&err, -99999, "odd"), -99999);
	cr_assert_str_eq(err.msg, "odd: unknown error");
}

Test(err, null_is_allowed)
{
	cr_assert_eq(err_set(NULL, -EIO, "x"), -EIO);
	cr_assert_eq(err_sys(NULL, -EIO, "x"), -EIO);
	cr_assert_eq(err_prefix(NULL, "x"), 0);
	err_clear(NULL);
}

/* What does not fit is cut at the end, and never runs over into what lies behind. */
Test(err, long_sentences_are_cut_and_terminated)
{
	struct {
		struct ft_error err;
		char behind[16];
	} s;
	char text[2 * FT_ERROR_MAX];

	memset(&s, 0x5a, sizeof(s));
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	cr_assert_eq(err_set(&s.err, -EIO, "%s", text), -EIO);
	cr_assert_eq(strlen(s.err.msg), FT_ERROR_MAX - 1);
	cr_assert_eq(err_prefix(&s.err, "context"), -EIO);
	cr_assert_eq(strlen(s.err.msg), FT_ERROR_MAX - 1);
	cr_assert_eq(strncmp(s.err.msg, "context: xxx", 12), 0);
	err_prefix(&s.err, "%s", text);
	cr_assert_eq(strlen(s.err.msg), FT_ERROR_MAX - 1);
	err_sys(&s.err, -EIO, "%s", text);
	cr_assert_eq(strlen(s.err.msg), FT_ERROR_MAX - 1);
	for (size_t i = 0; i < sizeof(s.behind); i++)
		cr_assert_eq(s.behind[i], 0x5a);
}

/* ---- faultpoint ---- */

Test(faultpoint, the_nth_hit_fails_once)
{
	faultpoint_arm(3, false, NULL);
	cr_assert_null(faultpoint_failed());
	cr_assert_not(faultpoint_hit("a"));
	cr_assert_not(faultpoint_hit("b"));
	cr_assert(faultpoint_hit("c"));
	cr_assert_not(faultpoint_hit("d"));
	cr_assert_eq(faultpoint_hits(), 4);
	cr_assert_str_eq(faultpoint_failed(), "c");
	faultpoint_arm(1, false, NULL);
	cr_assert_eq(faultpoint_hits(), 0);
	cr_assert_null(faultpoint_failed());
	cr_assert(faultpoint_hit("e"));
	faultpoint_disarm();
	cr_assert_not(faultpoint_hit("f"));
}

Test(faultpoint, persistent_goes_on_failing)
{
	faultpoint_arm(2, true, NULL);
	cr_assert_not(faultpoint_hit("a"));
	cr_assert(faultpoint_hit("b"));
	cr_assert(faultpoint_hit("c"));
	cr_assert_str_eq(faultpoint_failed(), "c");
	faultpoint_disarm();
	cr_assert_not(faultpoint_hit("d"));
}

Test(faultpoint, only_one_name_and_counting_alone)
{
	faultpoint_arm(2, false, "b");
	cr_assert_not(faultpoint_hit("b"));
	cr_assert_not(faultpoint_hit("a"));
	cr_assert(faultpoint_hit("b"));
	cr_assert_eq(faultpoint_hits(), 2);
	faultpoint_arm(0, true, NULL);
	for (int i = 0; i < 10; i++)
		cr_assert_not(faultpoint_hit("a"));
	cr_assert_eq(faultpoint_hits(), 10);
}

Test(faultpoint, the_list_has_no_name_twice)
{
	const char *const *names = faultpoint_names();

	cr_assert_not_null(names[0]);
	for (size_t i = 0; names[i]; i++)
		for (size_t k = i + 1; names[k]; k++)
			cr_assert_str_neq(names[i], names[k]);
}

/* ---- clock ---- */

Test(clock, poll_times_are_rounded_up_and_bounded)
{
	uint64_t before, deadline;
	int ms;

	cr_assert_eq(deadline_poll_ms(DEADLINE_NEVER), -1);
	cr_assert_eq(deadline_poll_ms(0), 0);
	cr_assert_eq(deadline_poll_ms(now_ns()), 0);
	cr_assert_eq(deadline_poll_ms(DEADLINE_NEVER - 1), 3600000);
	cr_assert_eq(deadline_poll_ms(now_ns() + 7200 * NS_PER_S), 3600000);
	for (uint64_t ns = 50 * NS_PER_MS; ns < 60 * NS_PER_MS; ns += 123457) {
		before = now_ns();
		deadline = before + ns;
		ms = deadline_poll_ms(deadline);
		/* a poll of ms that starts now ends at the deadline or later; and not a whole ms later than needed */
		cr_assert(ms == 0 || now_ns() + (uint64_t)ms * NS_PER_MS >= deadline);
		cr_assert_leq((uint64_t)ms * NS_PER_MS, deadline - before + NS_PER_MS - 1);
	}
}

/* Here the wait would end early if the rest of a ms were cut off. */
Test(clock, a_fraction_of_a_millisecond_is_a_whole_one)
{
	uint64_t deadline;
	int ms;

	for (int tries = 0; tries < 1000; tries++) {
		deadline = now_ns() + NS_PER_MS / 2;
		ms = deadline_poll_ms(deadline);
		if (now_ns() < deadline) {
			cr_assert_eq(ms, 1);
			return;
		}
	}
	cr_assert_fail("no run of three lines took less than half a millisecond");
}

Test(clock, deadlines_do_not_wrap)
{
	uint64_t before = now_ns(), d = deadline_in_ms(1500);

	cr_assert_geq(d, before + 1500 * NS_PER_MS);
	cr_assert_leq(d, now_ns() + 1500 * NS_PER_MS);
	cr_assert_eq(deadline_in_ms(UINT64_MAX), DEADLINE_NEVER);
	cr_assert_eq(deadline_in_ms(UINT64_MAX / NS_PER_MS + 1), DEADLINE_NEVER);
	cr_assert_geq(now_ns(), before);
	cr_assert_eq(timespec_of_ns(3 * NS_PER_S + 7).tv_sec, 3);
	cr_assert_eq(timespec_of_ns(3 * NS_PER_S + 7).tv_nsec, 7);
}

/* ---- thread ---- */

struct seen {
	sigset_t mask;
	char name[16];
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool go;
};

static void *look(void *arg)
{
	struct seen *s = arg;

	pthread_sigmask(SIG_SETMASK, NULL, &s->mask);
	pthread_mutex_lock(&s->mutex);
	while (!s->go)
		cond_wait_until(&s->cond, &s->mutex, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->mutex);
	pthread_getname_np(pthread_self(), s->name, sizeof(s->name));
	return s;
}

Test(thread, signals_are_blocked_but_faults_and_the_name_is_set)
{
	static const int blocked[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGPIPE };
	static const int open[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
	struct seen s = { .mutex = PTHREAD_MUTEX_INITIALIZER };
	sigset_t before, after;
	pthread_t t;

	cond_init(&s.cond);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	cr_assert_eq(thread_start(&t, "ft-test", look, &s), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	pthread_mutex_lock(&s.mutex);
	s.go = true;
	pthread_cond_signal(&s.cond);
	pthread_mutex_unlock(&s.mutex);
	pthread_join(t, NULL);
	cr_assert_str_eq(s.name, "ft-test");
	for (size_t i = 0; i < sizeof(blocked) / sizeof(blocked[0]); i++)
		cr_assert(sigismember(&s.mask, blocked[i]), "signal %d", blocked[i]);
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
		cr_assert_not(sigismember(&s.mask, open[i]), "signal %d", open[i]);
	for (int sig = 1; sig < 32; sig++)
		cr_assert_eq(sigismember(&before, sig), sigismember(&after, sig), "signal %d", sig);
	pthread_cond_destroy(&s.cond);
}

Test(thread, a_condition_times_out_at_its_deadline)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	uint64_t deadline = deadline_in_ms(20);
	pthread_cond_t cond;
	int r;

	cond_init(&cond);
	pthread_mutex_lock(&mutex);
	do
		r = cond_wait_until(&cond, &mutex, deadline);
	while (r == 0);
	cr_assert_eq(r, -ETIMEDOUT);
	cr_assert_geq(now_ns(), deadline);
	cr_assert_eq(cond_wait_until(&cond, &mutex, 0), -ETIMEDOUT);
	pthread_mutex_unlock(&mutex);
	pthread_cond_destroy(&cond);
}

/* ---- log ---- */

static char logged[256];
static int nr_logged;

static void keep(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	nr_logged++;
	snprintf(logged, sizeof(logged), "%s %d %s %.100s", (char *)user, (int)level, module, msg);
}

Test(log, lines_up_to_the_level_reach_the_callback)
{
	char want[256], big[4096], user[] = "me";

	log_error("x", "nobody listens");
	ft_log_set(keep, user, FT_LOG_WARN);
	log_warn("epoch", "%d pages", 7);
	snprintf(want, sizeof(want), "me %d epoch 7 pages", (int)FT_LOG_WARN);
	cr_assert_str_eq(logged, want);
	log_info("epoch", "too chatty");
	cr_assert_eq(nr_logged, 1);
	memset(big, 'y', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	log_error("epoch", "%s", big);
	cr_assert_eq(nr_logged, 2);
	ft_log_set(NULL, NULL, FT_LOG_DEBUG);
	log_error("epoch", "nobody listens");
	cr_assert_eq(nr_logged, 2);
}
