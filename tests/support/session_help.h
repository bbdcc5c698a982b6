/* SPDX-License-Identifier: MIT */
/* session_help.h - what the tests of sessions (unit/test_session*.c) share: sessions that are never connected, pairs of a small machine
 * (pair.h), and what was said to whom.  What is not as expected ends the test program with a sentence.  Main thread only. */
#ifndef TEST_SESSION_HELP_H
#define TEST_SESSION_HELP_H

#include "pair.h"

#define PAGE ((uint64_t)FT_PAGE_SIZE)
#define SOON_MS 4000u /* what needs no waiting at all comes within; ten times what a busy machine takes */

void sleep_ms(unsigned ms);
void *ram(uint64_t pages);
enum ft_state state_of(struct ft_session *s);
uint64_t counted(struct ft_session *s, enum ft_counter which);
/* fails - a call gave @r and @err: the code is @code, and @part in the sentence. */
void fails(int r, const struct ft_error *err, int code, const char *part);

/* -- a machine that does nothing, and has no memory yet -- */
struct ft_vmm_ops plain_ops(void);
struct ft_config plain_config(enum ft_role role);
struct ft_session *plain_open(enum ft_role role);

/* -- pairs -- */
/* small_options - a machine of 300 pages that sends much.  open_pair - such a pair.  @primary, @secondary: settings, as in pair_options. */
void small_options(struct pair_options *opt);
void open_pair(struct pair *p, const char *primary, const char *secondary);
/* failover - of the secondary: what comes of it is @outcome; with @code not 0 that is returned, with @part in the sentence.  What is promoted is
 * checked as pair_check_promoted() does. */
void failover(struct pair *p, unsigned flags, enum ft_failover_outcome outcome, int code, const char *part);

/* -- refusals -- */
/* hear_refusals - from now on, for check_refused(). */
void hear_refusals(void);
/* check_refused - @primary is turned away by the pair's secondary; both say @part. */
void check_refused(struct pair *p, struct ft_session *primary, const char *part);

#endif
