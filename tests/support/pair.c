/* SPDX-License-Identifier: MIT */
/* pair.c - see pair.h. */
#include "pair.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"

/* Short times, so that tests are quick, and patience where a busy machine needs it. */
#define PRIMARY_SETTINGS                                                                                               \
	"interval=2,heartbeat=50,heartbeat-misses=40,suspect=300,reconnect=20,connect-timeout=5000,staging-bytes=32M," \
	"state-max=1M"
#define SECONDARY_SETTINGS "heartbeat=50,heartbeat-misses=40,state-max=1M"

static void sleep_ms(unsigned ms)
{
	struct timespec t = timespec_of_ns(ms * NS_PER_MS);

	nanosleep(&t, NULL);
}

/* FT_TEST_LOG=1: the library's log lines, to find out why a test fails. */
void pair_log_line(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	uint64_t us = now_ns() / 1000;

	(void)user;
	fprintf(stderr, "%" PRIu64 ".%06" PRIu64 " %d %s: %s\n", us / 1000000, us % 1000000, (int)level, module, msg);
}

/* FT_TEST_RECORD=DIRECTORY: what each session says goes to a file there. */
static const char *recording(const char *side, char *buf, size_t size)
{
	const char *directory = getenv("FT_TEST_RECORD");
	static unsigned count;

	if (!directory)
		return NULL;
	snprintf(buf, size, "%s/%u-%s.ftrec", directory, count++, side);
	return buf;
}

void pair_options_init(struct pair_options *opt)
{
	*opt = (struct pair_options){ 0 };
	sim_config_init(&opt->sim);
	opt->sim.region_bytes[0] = 4u << 20;
	opt->sim.prefill_pages = 200;
}

/* Texts are kept by pointer, for as long as the process lives. */
static char *keep(const char *settings)
{
	static struct kept {
		struct kept *next;
		char text[];
	} * all;
	size_t len = strlen(settings) + 1;
	struct kept *k = malloc(sizeof(*k) + len);

	CHECK(k, "no memory");
	memcpy(k->text, settings, len);
	k->next = all;
	all = k;
	return k->text;
}

void pair_settings(struct ft_config *cfg, const char *settings)
{
	struct ft_error err = { 0 };
	char *rest, *item;

	if (!settings)
		return;
	for (item = strtok_r(keep(settings), ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(item, '=');

		CHECK(value, "setting '%s' has no value", item);
		*value++ = '\0';
		CHECK_OK(ft_config_set(cfg, item, value, &err), err);
	}
}

const char *pair_common_settings(void)
{
	return getenv("FT_TEST_SETTINGS");
}

/* ---- events of the secondary ---- */

static void on_secondary_event(void *user, const struct ft_event *ev)
{
	struct pair *p = user;
	struct ft_error err = { 0 };

	if (ev->type == FT_EVENT_STATE && ev->state == FT_STATE_PROMOTING)
		atomic_store(&p->promoted_from, ev->old_state);
	if (ev->type != FT_EVENT_EPOCH)
		return;
	/* the apply thread: the image rests until this returns */
	if (p->opt.compare && !atomic_load(&p->differs)) {
		if (sim_oracle_compare(p->oracle, ev->epoch, p->secondary_sim, &err)) {
			p->difference = err;
			atomic_store(&p->differs, true);
		} else {
			atomic_fetch_add(&p->compared, 1);
		}
	}
	atomic_fetch_add(&p->applied, 1);
}

static void on_primary_event(void *user, const struct ft_event *ev)
{
	struct pair *p = user;

	if (ev->type == FT_EVENT_STATE && (ev->old_state == FT_STATE_PROTECTED || ev->old_state == FT_STATE_SYNCING) &&
	    (ev->state == FT_STATE_SUSPECT || ev->state == FT_STATE_CONNECTING))
		atomic_fetch_add(&p->losses, 1);
}

/* ---- life ---- */

void pair_open_sims(struct pair *p, const struct pair_options *opt)
{
	struct sim_config cfg = opt->sim;
	struct ft_error err = { 0 };

	if (getenv("FT_TEST_LOG"))
		ft_log_set(pair_log_line, NULL, FT_LOG_DEBUG);
	memset(p, 0, sizeof(*p));
	p->opt = *opt;
	cfg.on_event_user = p;
	cfg.on_event = on_primary_event;
	CHECK_OK(sim_create(&p->primary_sim, &cfg, false, &err), err);
	cfg.on_event = on_secondary_event;
	cfg.client_fd = -1;
	CHECK_OK(sim_create(&p->secondary_sim, &cfg, true, &err), err);
	if (opt->compare)
		CHECK_OK(sim_oracle_create(&p->oracle, p->primary_sim, &err), err);
}

static void listen_uri(const struct pair *p, char *buf, size_t size)
{
	const char *where = p->opt.use_loopback ? "loopback:pair" : p->opt.listen ? p->opt.listen : "127.0.0.1:0";

	if (p->opt.listen_fault)
		snprintf(buf, size, "fault(%s)/%s", p->opt.listen_fault, where);
	else
		snprintf(buf, size, "%s", where);
}

void pair_start_secondary(struct pair *p)
{
	char uri[160], address[128] = "loopback:pair", record[256];
	struct ft_error err = { 0 };
	struct ft_config cfg;

	listen_uri(p, uri, sizeof(uri));
	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	pair_settings(&cfg, SECONDARY_SETTINGS);
	pair_settings(&cfg, pair_common_settings());
	pair_settings(&cfg, p->opt.secondary);
	cfg.identity = sim_identity(p->secondary_sim);
	cfg.state_file = p->opt.secondary_state;
	cfg.witness = p->opt.witness;
	cfg.listen = uri;
	cfg.record = recording("secondary", record, sizeof(record));
	CHECK_OK(ft_session_open(&p->secondary, &cfg, sim_ops_of(p->secondary_sim), p->secondary_sim, &err), err);
	CHECK_OK(sim_attach(p->secondary_sim, p->secondary, &err), err);
	CHECK_OK(ft_session_start(p->secondary, &err), err);
	if (!p->opt.use_loopback)
		CHECK_OK(ft_session_address(p->secondary, address, sizeof(address)), err);
	if (p->opt.use_proxy) {
		p->proxy = proxy_open(address);
		snprintf(address, sizeof(address), "%s", proxy_address(p->proxy));
	}
	if (p->opt.fault)
		snprintf(p->address, sizeof(p->address), "fault(%s)/%s", p->opt.fault, address);
	else
		snprintf(p->address, sizeof(p->address), "%s", address);
}

void pair_start_primary(struct pair *p, const char *uri)
{
	struct ft_error err = { 0 };
	struct ft_config cfg;
	char record[256];

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	pair_settings(&cfg, PRIMARY_SETTINGS);
	pair_settings(&cfg, pair_common_settings());
	pair_settings(&cfg, p->opt.primary);
	cfg.identity = sim_identity(p->primary_sim);
	cfg.state_file = p->opt.primary_state;
	cfg.witness = p->opt.witness;
	cfg.peer = uri;
	cfg.record = recording("primary", record, sizeof(record));
	CHECK_OK(sim_start(p->primary_sim, &err), err);
	CHECK_OK(ft_session_open(&p->primary, &cfg, sim_ops_of(p->primary_sim), p->primary_sim, &err), err);
	CHECK_OK(sim_attach(p->primary_sim, p->primary, &err), err);
	CHECK_OK(ft_session_start(p->primary, &err), err);
}

void pair_open(struct pair *p, const struct pair_options *opt)
{
	pair_open_sims(p, opt);
	pair_start_secondary(p);
	pair_start_primary(p, p->address);
}

void pair_close(struct pair *p)
{
	struct ft_error err = { 0 };

	CHECK_OK(sim_attach(p->primary_sim, NULL, &err), err);
	CHECK_OK(sim_attach(p->secondary_sim, NULL, &err), err);
	ft_session_close(p->primary);
	ft_session_close(p->secondary);
	proxy_close(p->proxy);
	sim_oracle_destroy(p->oracle);
	sim_destroy(p->primary_sim);
	sim_destroy(p->secondary_sim);
	memset(p, 0, sizeof(*p));
}

/* ---- waiting ---- */

const char *pair_status_text(struct ft_session *s, char *buf, size_t size)
{
	struct ft_status st;

	ft_session_status(s, &st);
	snprintf(buf, size, "%s (%s), epoch sent %" PRIu64 " acked %" PRIu64 " applied %" PRIu64,
		 ft_state_name(st.state), st.reason, st.epoch_sent, st.epoch_acked, st.epoch_applied);
	return buf;
}

enum ft_state pair_wait(struct ft_session *s, uint32_t mask)
{
	int r = ft_session_wait(s, mask, WAIT_MS);
	char text[1024];

	CHECK(r >= 0, "waited for states 0x%x, still %s", mask, pair_status_text(s, text, sizeof(text)));
	return (enum ft_state)r;
}

void pair_wait_protected(struct pair *p)
{
	pair_wait(p->primary, STATE(PROTECTED));
	pair_wait(p->secondary, STATE(STANDBY));
}

void pair_check_compared(struct pair *p)
{
	CHECK(!atomic_load(&p->differs), "the standby differs from the oracle: %s", p->difference.msg);
}

void pair_wait_applied(struct pair *p, uint64_t n)
{
	uint64_t target = atomic_load(&p->applied) + n, deadline = deadline_in_ms(WAIT_MS), seen = 0;
	char a[1024], b[1024];

	while (atomic_load(&p->applied) < target) {
		uint64_t applied = atomic_load(&p->applied);

		if (applied != seen)
			deadline = deadline_in_ms(WAIT_MS); /* progress */
		seen = applied;
		CHECK(now_ns() < deadline, "no epoch is applied any more: primary %s; secondary %s",
		      pair_status_text(p->primary, a, sizeof(a)), pair_status_text(p->secondary, b, sizeof(b)));
		if (atomic_load(&p->differs))
			return;
		sleep_ms(1);
	}
}

/* ---- what must hold ---- */

void pair_check_runs(struct pair *p, uint32_t bound_ms)
{
	uint64_t longest;
	char text[1024];

	CHECK(sim_wait_steps(p->primary_sim, 1, WAIT_MS) == 0, "the primary's guest does not run: %s",
	      pair_status_text(p->primary, text, sizeof(text)));
	longest = sim_longest_pause_ns(p->primary_sim);
	CHECK(longest <= bound_ms * NS_PER_MS, "the primary's guest was paused for %" PRIu64 " ms, the bound is %u ms",
	      longest / NS_PER_MS, bound_ms);
}

void pair_check_stopped(struct pair *p)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	while (!sim_is_paused(p->primary_sim)) {
		CHECK(now_ns() < deadline, "the primary lost its role, but its guest runs");
		sleep_ms(1);
	}
}

void pair_check_unprotected(struct pair *p, const char *part)
{
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct ft_status st;

	for (;;) {
		ft_session_status(p->primary, &st);
		if (!st.is_protected && st.reason[0] && (!part || strstr(st.reason, part)))
			return;
		CHECK(now_ns() < deadline, "the primary is %s, protected %d, reason '%s'; expected '%s'",
		      ft_state_name(st.state), st.is_protected, st.reason, part ? part : "any");
		sleep_ms(5);
	}
}

void pair_check_promoted(struct pair *p, const struct ft_failover_result *res)
{
	unsigned from = atomic_load(&p->promoted_from);
	struct ft_error err = { 0 };
	uint64_t epoch;

	CHECK(res->outcome == FT_FAILOVER_DONE, "failover outcome %d", (int)res->outcome);
	CHECK_OK(sim_same_state(p->primary_sim, p->secondary_sim, &epoch, &err), err);
	CHECK(epoch == res->epoch, "failover says epoch %" PRIu64 ", the device state is of epoch %" PRIu64, res->epoch,
	      epoch);
	CHECK_OK(sim_verify(p->secondary_sim, NULL, NULL, &err), err);
	if (from == FT_STATE_STANDBY || from == FT_STATE_STANDBY_SUSPECT)
		CHECK_OK(sim_check_promise(sim_get_client(p->primary_sim), p->secondary_sim, &err), err);
	CHECK(sim_wait_steps(p->secondary_sim, 1, WAIT_MS) == 0, "the promoted guest does not run");
}
