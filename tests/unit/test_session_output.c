/* SPDX-License-Identifier: MIT */
/* test_session_output.c - output that is held ends the epoch (output-cut and its settings). */
#include <criterion/criterion.h>
#include <inttypes.h>
#include "clock.h"
#include "session_help.h"

static void wait_acked(struct ft_session *s, uint64_t epoch)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	do {
		sleep_ms(1);
		ft_session_status(s, &st);
		cr_assert(now_ns() < deadline, "epoch %" PRIu64 " is not acknowledged", epoch);
	} while (st.epoch_acked < epoch);
}

/* With an interval of an hour, only output ends an epoch. */
Test(output, ends_the_epoch, .timeout = 120)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	struct pair p;

	open_pair(&p, "interval=3600000", NULL);
	pair_wait_protected(&p);
	ft_session_status(p.primary, &st);
	for (uint64_t n = 1; n <= 10; n++) {
		ft_session_output(p.primary);
		wait_acked(p.primary, st.epoch_acked + n);
	}
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 10);
	cr_assert_eq(ft_session_set(p.primary, "output-cut", "off", &err), 0);
	ft_session_output(p.primary);
	sleep_ms(200);
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 10);
	ft_session_output(p.secondary); /* harmless */
	pair_close(&p);
}

/* However much output there is, the ends are "output-gap" apart, or output is let wait for more of it; a slower machine cuts less. */
Test(output, lets_the_guest_run, .timeout = 120)
{
	static const char *const settings[] = { "interval=3600000,output-gap=100",
						"interval=3600000,output-gap=0,output-wait=100" };

	for (unsigned i = 0; i < 2; i++) {
		uint64_t end, cuts;
		struct pair p;

		open_pair(&p, settings[i], NULL);
		pair_wait_protected(&p);
		for (end = deadline_in_ms(1000); now_ns() < end; sleep_ms(1))
			ft_session_output(p.primary);
		cuts = counted(p.primary, FT_COUNTER_OUTPUT_CUTS);
		cr_assert(cuts >= 1 && cuts <= 11, "%s: %" PRIu64 " in a second", settings[i], cuts);
		pair_close(&p);
	}
}

/* "output-gap" counts from the last end for output, not from the last pause: a guest that was quiet is answered at once. */
Test(output, gap_is_between_two_ends, .timeout = 120)
{
	struct ft_error err = { 0 };
	struct ft_status st;
	struct pair p;
	uint64_t epoch;

	open_pair(&p, "interval=3600000,output-gap=3600000", NULL);
	pair_wait_protected(&p);
	ft_session_status(p.primary, &st);
	ft_session_output(p.primary);
	wait_acked(p.primary, st.epoch_acked + 1);
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 1);
	cr_assert_eq(ft_session_checkpoint(p.primary, WAIT_MS, &epoch, &err), 0, "%s",
		     err.msg); /* an end of another kind */
	ft_session_output(p.primary);
	sleep_ms(200);
	cr_assert_eq(counted(p.primary, FT_COUNTER_OUTPUT_CUTS), 1);
	pair_close(&p);
}
