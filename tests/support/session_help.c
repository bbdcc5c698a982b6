/* SPDX-License-Identifier: MIT */
/* session_help.c - see session_help.h. */
#include "session_help.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "check.h"
#include "clock.h"

void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

enum ft_state state_of(struct ft_session *s)
{
	struct ft_status st;

	ft_session_status(s, &st);
	return st.state;
}

void fails(int r, const struct ft_error *err, int code, const char *part)
{
	CHECK(r == code, "%d instead of %d: %s", r, code, err->msg);
	CHECK(err->code == code, "the error says %d", err->code);
	CHECK(strstr(err->msg, part), "'%s' is not in '%s'", part, err->msg);
}

/* ---- sessions that are never connected ---- */

static int nothing(void *user, struct ft_error *err)
{
	(void)user, (void)err;
	return 0;
}

static int no_pages(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	(void)user, (void)dirty, (void)err;
	return 0;
}

static int no_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	(void)user, (void)sink, (void)err;
	return 0;
}

static int any_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	(void)user, (void)buf, (void)len, (void)err;
	return 0;
}

struct ft_vmm_ops plain_ops(void)
{
	return (struct ft_vmm_ops){ .struct_size = sizeof(struct ft_vmm_ops),
				    .track_start = nothing,
				    .collect_dirty = no_pages,
				    .pause = nothing,
				    .save_state = no_state,
				    .resume = nothing,
				    .load_state = any_state,
				    .activate = nothing };
}

struct ft_config plain_config(enum ft_role role)
{
	struct ft_config cfg;

	ft_config_init(&cfg, role);
	pair_settings(&cfg, role == FT_ROLE_PRIMARY ? "staging-bytes=16M,state-max=1M,reconnect=20" : "state-max=1M");
	cfg.peer = "127.0.0.1:1";
	cfg.listen = "127.0.0.1:0";
	return cfg;
}

struct ft_session *plain_open(enum ft_role role)
{
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };
	struct ft_session *s;

	CHECK_OK(ft_session_open(&s, &cfg, &ops, NULL, &err), err);
	return s;
}

void *ram(uint64_t pages)
{
	void *mem = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mem != MAP_FAILED, "no memory");
	return mem;
}

/* ---- pairs ---- */

void small_options(struct pair_options *opt)
{
	pair_options_init(opt);
	opt->sim.region_bytes[0] = 300 * PAGE;
	opt->sim.prefill_pages = 60;
	opt->sim.rate = 10000;
	opt->sim.output_every = 10;
}

void open_pair(struct pair *p, const char *primary, const char *secondary)
{
	struct pair_options opt;

	small_options(&opt);
	opt.primary = primary;
	opt.secondary = secondary;
	pair_open(p, &opt);
}

void failover(struct pair *p, unsigned flags, enum ft_failover_outcome outcome, int code, const char *part)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	int r = ft_session_failover(p->secondary, flags, &res, &err);

	CHECK(res.outcome == outcome, "outcome %d, not %d: %s", (int)res.outcome, (int)outcome, err.msg);
	if (code)
		fails(r, &err, code, part);
	else
		CHECK(r == 0, "%s", err.msg);
	CHECK(outcome != FT_FAILOVER_DONE || (res.epoch > 0 && res.total_ns > 0),
	      "epoch %" PRIu64 " after %" PRIu64 " ns", res.epoch, res.total_ns);
	if (outcome == FT_FAILOVER_DONE)
		pair_check_promoted(p, &res);
}

uint64_t counted(struct ft_session *s, enum ft_counter which)
{
	struct ft_stats *st = calloc(1, sizeof(*st));
	uint64_t n;

	CHECK(st, "no memory");
	ft_session_stats(s, st);
	n = st->counter[which];
	free(st);
	return n;
}

/* ---- refusals ---- */

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[4096]; /* refusals in the log of this process: the secondary's */

static void hear(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	(void)user, (void)level;
	pthread_mutex_lock(&said_lock);
	if (strcmp(module, "secondary") == 0 && strstr(msg, "refused"))
		snprintf(said, sizeof(said), "%s", msg);
	pthread_mutex_unlock(&said_lock);
}

void hear_refusals(void)
{
	ft_log_set(hear, NULL, FT_LOG_WARN);
}

void check_refused(struct pair *p, struct ft_session *primary, const char *part)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	do {
		sleep_ms(5);
		ft_session_status(primary, &st);
		CHECK(now_ns() < deadline, "the primary says '%s', expected '%s'", st.reason, part);
	} while (!strstr(st.reason, part));
	CHECK(st.state == FT_STATE_CONNECTING, "the primary is %s", ft_state_name(st.state));
	pthread_mutex_lock(&said_lock);
	CHECK(strstr(said, part), "the secondary says '%s', expected '%s'", said, part);
	pthread_mutex_unlock(&said_lock);
	CHECK(counted(p->secondary, FT_COUNTER_REFUSALS) > 0, "no refusal was counted");
}
