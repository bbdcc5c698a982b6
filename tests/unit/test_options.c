/* SPDX-License-Identifier: MIT */
/* test_options.c - the table of settings, text to value and back, and what a session refuses. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <ft/ft.h>

#include "options.h"

static const struct ft_option *find(const char *name)
{
	const struct ft_option *o = options_find(name);

	cr_assert(o, "%s", name);
	return o;
}

static void good(struct ft_config *cfg, const char *name, const char *value)
{
	struct ft_error err = { 0 };

	cr_assert_eq(ft_config_set(cfg, name, value, &err), 0, "%s %s: %s", name, value, err.msg);
}

/* Refused with @code, the sentence holds @part, and nothing is changed. */
static void bad(const char *name, const char *value, int code, const char *part)
{
	struct ft_config cfg, before;
	struct ft_error err = { 0 };
	int r;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	before = cfg;
	r = ft_config_set(&cfg, name, value, &err);
	cr_expect_eq(r, code, "%s '%s': %d", name, value, r);
	cr_expect_eq(err.code, code);
	cr_expect(strstr(err.msg, part), "%s '%s' says: %s", name, value, err.msg);
	cr_expect_eq(memcmp(&cfg, &before, sizeof(cfg)), 0, "%s was changed", name);
}

static void expect(const struct ft_config *cfg, const char *name, const char *value)
{
	char text[256] = "";

	cr_assert_eq(ft_config_get(cfg, name, text, sizeof(text)), 0);
	cr_expect_str_eq(text, value, "%s is %s, not %s", name, text, value);
}

Test(options, defaults_are_those_of_the_table)
{
	size_t n;
	const struct ft_option *o = ft_options(&n);
	struct ft_config cfg;

	cr_assert_eq(n, 61);
	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	cr_expect_eq(cfg.struct_size, sizeof(cfg));
	cr_expect_eq(cfg.role, FT_ROLE_SECONDARY);
	for (size_t i = 0; i < n; i++)
		expect(&cfg, o[i].name, o[i].value);
	cr_expect_eq(cfg.interval_ms, 50);
	cr_expect_eq(cfg.heartbeat_ms * cfg.heartbeat_misses, 1000);
	cr_expect_eq(cfg.staging_bytes, UINT64_C(256) << 20);
	cr_expect_eq(cfg.state_max, UINT64_C(64) << 20);
	cr_expect_eq(cfg.huge_pages, 1);
	cr_expect_eq(cfg.lock_memory, 0);
	cr_expect_str_eq(cfg.name, "vm");
	cr_expect_str_eq(cfg.identity, "");
	cr_expect_null(cfg.peer);
	cr_expect_null(cfg.record);
}

Test(options, each_has_a_field_of_its_own)
{
	size_t n;
	const struct ft_option *o = ft_options(&n);

	for (size_t i = 0; i < n; i++) {
		struct ft_config cfg;
		char value[64], other[256];

		ft_config_init(&cfg, FT_ROLE_PRIMARY);
		if (o[i].type == FT_OPT_STRING)
			snprintf(value, sizeof(value), "text-%zu", i);
		else if (o[i].type == FT_OPT_BOOL)
			snprintf(value, sizeof(value), "%s", strcmp(o[i].value, "on") ? "on" : "off");
		else if (o[i].type == FT_OPT_CHOICE)
			snprintf(value, sizeof(value), "%.*s", (int)strcspn(strchr(o[i].choices, '|') + 1, "|"),
				 strchr(o[i].choices, '|') + 1);
		else
			snprintf(value, sizeof(value), "%" PRIu64, o[i].max - 1);
		if (o[i].flags & FT_OPT_POWER_OF_2)
			snprintf(value, sizeof(value), "%" PRIu64 "M", o[i].max >> 21);
		good(&cfg, o[i].name, value);
		expect(&cfg, o[i].name, value);
		for (size_t k = 0; k < n; k++) {
			if (k == i)
				continue;
			cr_assert_eq(ft_config_get(&cfg, o[k].name, other, sizeof(other)), 0);
			cr_expect_str_eq(other, o[k].value, "setting %s changed %s", o[i].name, o[k].name);
		}
	}
}

Test(options, table_is_complete_and_in_range)
{
	size_t n;
	const struct ft_option *o = ft_options(&n);

	for (size_t i = 0; i < n; i++) {
		struct ft_config cfg;
		char edge[32];

		cr_expect(o[i].help && strlen(o[i].help) > 10, "%s", o[i].name);
		cr_expect(o[i].flags & (FT_OPT_PRIMARY | FT_OPT_SECONDARY), "%s", o[i].name);
		cr_expect_eq(options_find(o[i].name), &o[i], "%s is there twice", o[i].name);
		if (o[i].type != FT_OPT_UINT && o[i].type != FT_OPT_SIZE)
			continue;
		ft_config_init(&cfg, FT_ROLE_PRIMARY);
		snprintf(edge, sizeof(edge), "%" PRIu64, o[i].min);
		good(&cfg, o[i].name, edge);
		snprintf(edge, sizeof(edge), "%" PRIu64, o[i].max);
		good(&cfg, o[i].name, edge);
		snprintf(edge, sizeof(edge), "%" PRIu64, o[i].max + 1);
		bad(o[i].name, edge, -ERANGE, "is outside of");
		if (o[i].min) {
			snprintf(edge, sizeof(edge), "%" PRIu64, o[i].min - 1);
			bad(o[i].name, edge, -ERANGE, "is outside of");
		}
	}
}

Test(options, forms_of_numbers)
{
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	good(&cfg, "interval", "20ms");
	cr_expect_eq(cfg.interval_ms, 20);
	good(&cfg, "interval", "2s");
	cr_expect_eq(cfg.interval_ms, 2000);
	good(&cfg, "staging-bytes", "3G");
	cr_expect_eq(cfg.staging_bytes, UINT64_C(3) << 30);
	good(&cfg, "staging-bytes", "20MiB");
	expect(&cfg, "staging-bytes", "20M");
	good(&cfg, "state-max", "8193");
	expect(&cfg, "state-max", "8193");
	good(&cfg, "lock-memory", "yes");
	cr_expect_eq(cfg.lock_memory, 1);
	good(&cfg, "lock-memory", "0");
	cr_expect_eq(cfg.lock_memory, 0);
	good(&cfg, "on-loss", "hold");
	cr_expect_eq(cfg.on_loss, FT_ON_LOSS_HOLD);
	good(&cfg, "peer", "");
	cr_expect_null(cfg.peer);
}

Test(options, refusals_say_what_would_be_right)
{
	bad("intervall", "5", -ENOENT, "no setting 'intervall'");
	bad("interval", "", -EINVAL, "a time such as");
	bad("interval", "-5", -EINVAL, "a time such as");
	bad("interval", " 5", -EINVAL, "a time such as");
	bad("interval", "5 s", -EINVAL, "a time such as");
	bad("interval", "0x10", -EINVAL, "a time such as");
	bad("interval", "18446744073709551616", -EINVAL, "a time such as");
	bad("interval", "18446744073709552s", -EINVAL, "a time such as");
	bad("interval", "0", -ERANGE, "1 to 3600000 ms");
	bad("lanes", "2ms", -EINVAL, "not a number");
	bad("lanes", "9", -ERANGE, "1 to 8");
	bad("staging-bytes", "12Q", -EINVAL, "64K, 256M or 1G");
	bad("staging-bytes", "12Mx", -EINVAL, "64K, 256M or 1G");
	bad("staging-bytes", "99999999999T", -EINVAL, "64K, 256M or 1G");
	bad("staging-bytes", "1M", -ERANGE, "16M to 1T");
	bad("huge-pages", "2", -EINVAL, "neither on nor off");
	bad("on-loss", "hol", -EINVAL, "continue|hold");
	bad("on-loss", "continue|hold", -EINVAL, "continue|hold");
	bad("name", "", -EINVAL, "needs a name");
	bad("name", "../x", -EINVAL, "dot");
	bad("name", "a/b", -EINVAL, "slash");
	bad("name", "a\nb", -EINVAL, "control character");
}

Test(options, long_texts_are_refused)
{
	static char text[FT_IDENTITY_MAX + 1];
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	memset(text, 'x', FT_IDENTITY_MAX);
	bad("identity", text, -ERANGE, "16383 octets");
	text[FT_IDENTITY_MAX - 1] = '\0';
	good(&cfg, "identity", text);
	text[FT_NAME_MAX] = '\0';
	bad("name", text, -ERANGE, "127 characters");
	text[FT_NAME_MAX - 1] = '\0';
	good(&cfg, "name", text);
}

Test(options, a_power_of_two_is_asked_for_where_it_is_set)
{
	struct ft_config cfg;
	struct ft_error err = { 0 };

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cr_expect_eq(ft_config_set(&cfg, "rdma-chunk", "3M", &err), -EINVAL);
	cr_expect_str_eq(err.msg, "rdma-chunk: 3145728 is not a power of two");
	cr_expect_eq(cfg.rdma_chunk, 1u << 20);
	cr_expect_eq(ft_config_set(&cfg, "rdma-chunk", "4M", &err), 0, "%s", err.msg);
}

Test(options, get_cuts_and_refuses)
{
	struct ft_config cfg;
	char text[4];

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cr_expect_eq(ft_config_get(&cfg, "staging-bytes", text, sizeof(text)), 0);
	cr_expect_str_eq(text, "256");
	cr_expect_eq(ft_config_get(&cfg, "nothing", text, sizeof(text)), -ENOENT);
}

/* ---- what ft_session_open() and ft_session_set() go by ------------------------------------------- */

static void refused(const struct ft_config *cfg, const char *part)
{
	struct ft_error err = { 0 };

	cr_expect_lt(options_check(cfg, &err), 0, "%s was not refused", part);
	cr_expect(strstr(err.msg, part), "says: %s", err.msg);
}

Test(options, check_refuses_what_cannot_work)
{
	struct ft_config ok, cfg;
	struct ft_error err = { 0 };

	ft_config_init(&ok, FT_ROLE_PRIMARY);
	refused(&ok, "peer: a primary needs");
	ok.peer = "h:1";
	cr_assert_eq(options_check(&ok, &err), 0, "%s", err.msg);

	cfg = ok;
	cfg.struct_size--;
	refused(&cfg, "ft_config_init");
	cfg = ok;
	cfg.role = 0;
	refused(&cfg, "neither primary nor secondary");
	cfg = ok;
	cfg.role = FT_ROLE_SECONDARY;
	refused(&cfg, "listen: a secondary needs");
	cfg.listen = ":0";
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg = ok;
	cfg.interval_ms = 0;
	refused(&cfg, "interval: 0 ms is outside");
	cfg = ok;
	cfg.on_loss = 7;
	refused(&cfg, "on-loss: 7");
	cfg = ok;
	cfg.huge_pages = 2;
	refused(&cfg, "huge-pages: 2");
	cfg = ok;
	cfg.name = NULL;
	refused(&cfg, "name");
	cfg = ok;
	cfg.record_payload = 1;
	refused(&cfg, "record-payload");
	cfg.record = "x";
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg = ok;
	cfg.pause_max_ms = cfg.sync_pause_ms - 1;
	refused(&cfg, "sync-pause: 50 ms is more than pause-max allows, 49 ms");
	cfg = ok;
	cfg.rdma_chunk = 3u << 20;
	refused(&cfg, "rdma-chunk: 3145728 is not a power of two");
	cfg.rdma_chunk = 1u << 20;
	cfg.witness = "/tmp/w";
	refused(&cfg, "witness: '/tmp/w' is neither none nor file:PATH");
	cfg.witness = "file:/tmp/w";
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg.lease_drift_ms = cfg.lease_ms / 4 + 1;
	refused(&cfg, "lease-drift: 501 ms is more than a quarter of the lease, 2000 ms");
	cfg.lease_drift_ms = 500;
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg.state_file = "/somewhere";
	refused(&cfg, "state-file: goes without a witness only");
	cfg.witness = NULL;
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg.state_file = NULL;
	cfg.rdma_chunk = 16u << 20;
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg.rdma_pin_budget = 63u << 20;
	refused(&cfg, "rdma-pin-budget: 63M is less than 4 chunks of 16M");
	cfg.rdma_pin_budget = 64u << 20;
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	cfg.rdma_registration = 3;
	refused(&cfg, "rdma-registration: 3");
}

Test(options, tls_needs_what_it_needs)
{
	struct ft_error err = { 0 };
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.peer = "h:1";
	good(&cfg, "tls", "x509");
	refused(&cfg, "tls-dir: TLS needs a folder");
	good(&cfg, "tls-dir", "/somewhere");
	good(&cfg, "tls-peer", "a.test b.test");
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	good(&cfg, "tls", "psk");
	good(&cfg, "tls-peer", "");
	refused(&cfg, "tls-psk-user: a primary needs the name of its key");
	good(&cfg, "tls-psk-user", "me");
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	good(&cfg, "tls-peer", "a.test");
	refused(&cfg, "tls-peer: is about certificates");
	good(&cfg, "tls", "off");
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	cfg.listen = "h:1";
	good(&cfg, "tls", "psk");
	good(&cfg, "tls-dir", "/somewhere");
	cr_expect_eq(options_check(&cfg, &err), 0, "%s", err.msg);
}

/* A program that was built against an older ft.h has a struct without the newer fields. */
Test(options, an_older_struct_ends_earlier)
{
	const size_t old = offsetof(struct ft_config, rdma_chunk);
	struct ft_error err = { 0 };
	struct ft_config cfg;
	char text[32];

	memset(&cfg, 0x5a, sizeof(cfg));
	ft_config_init_sized(&cfg, old, FT_ROLE_PRIMARY);
	cr_expect_eq(cfg.struct_size, old);
	cr_expect_eq(cfg.rdma_chunk, UINT64_C(0x5a5a5a5a5a5a5a5a), "written behind the end");
	good(&cfg, "lock-memory", "on");
	cr_expect_eq(ft_config_set(&cfg, "rdma-chunk", "2M", &err), -ENOENT);
	cr_expect(strstr(err.msg, "older libft"), "says: %s", err.msg);
	cr_expect_eq(ft_config_set(&cfg, "rdma-retries", "2", &err), -ENOENT);
	cr_expect_eq(ft_config_get(&cfg, "credits", text, sizeof(text)), -ENOENT);
	cr_expect_eq(cfg.rdma_chunk, UINT64_C(0x5a5a5a5a5a5a5a5a), "written behind the end");
}

static void set_live(struct ft_config *cfg, const char *name, const char *value, int want)
{
	struct ft_config before = *cfg;
	struct ft_error err = { 0 };

	cr_expect_eq(options_set_live(cfg, name, value, &err), want, "%s %s: %s", name, value, err.msg);
	if (want) {
		cr_expect_eq(memcmp(cfg, &before, sizeof(before)), 0);
		cr_expect(err.msg[0]);
	}
}

Test(options, set_live)
{
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.peer = "h:1";
	set_live(&cfg, "interval", "20", 0);
	cr_expect_eq(cfg.interval_ms, 20);
	set_live(&cfg, "interval", "soon", -EINVAL);
	set_live(&cfg, "lanes", "2", -EPERM);
	set_live(&cfg, "listen", ":1", -EPERM);
	set_live(&cfg, "nothing", "1", -ENOENT);
	set_live(&cfg, "pause-max", "10", -EINVAL); /* below sync-pause */
	cfg.role = FT_ROLE_SECONDARY;
	cfg.listen = ":1";
	set_live(&cfg, "interval", "30", -EPERM);
	set_live(&cfg, "heartbeat", "100", 0);
	cr_expect_eq(find("heartbeat")->flags & FT_OPT_LIVE, FT_OPT_LIVE);
}
