/* SPDX-License-Identifier: MIT */
/* test_session.c - the edges of the public API without a connection: wrong order, wrong arguments, settings, what two hundred lives leave. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "session_help.h"

static uint64_t nothing_left(void *user)
{
	(void)user;
	return 0;
}

static int no_write(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err)
{
	(void)user, (void)epoch, (void)buf, (void)len, (void)err;
	return 0;
}

static void not_opened(const struct ft_config *cfg, const struct ft_vmm_ops *ops, const char *part)
{
	struct ft_session *s = (struct ft_session *)1;
	struct ft_error err = { 0 };

	fails(ft_session_open(&s, cfg, ops, NULL, &err), &err, -EINVAL, part);
	cr_assert_null(s);
	cr_assert_eq(ft_session_open(&s, cfg, ops, NULL, NULL), -EINVAL);
}

Test(session, open_refuses_what_cannot_work)
{
	struct ft_config good = plain_config(FT_ROLE_PRIMARY), cfg = good, standby = plain_config(FT_ROLE_SECONDARY);
	struct ft_vmm_ops all = plain_ops(), ops = all;
	char name[FT_NAME_MAX + 1];
	struct ft_session *s;
	struct ft_error err = { 0 };

	not_opened(NULL, &all, "configuration");
	not_opened(&good, NULL, "ops");
	cfg.struct_size = 0;
	not_opened(&cfg, &all, "struct_size");
	cfg = good;
	cfg.role = 0;
	not_opened(&cfg, &all, "role");
	cfg = good;
	cfg.peer = NULL;
	not_opened(&cfg, &all, "peer");
	standby.listen = "";
	not_opened(&standby, &all, "listen");
	cfg = good;
	memset(name, 'n', FT_NAME_MAX);
	name[FT_NAME_MAX] = '\0';
	cfg.name = name;
	not_opened(&cfg, &all, "name");
	cfg = good;
	cfg.lanes = 9;
	fails(ft_session_open(&s, &cfg, &all, NULL, &err), &err, -ERANGE, "lanes");
	cr_assert_null(s);
	ops.struct_size = 8;
	not_opened(&good, &ops, "struct_size");
	ops = all;
	ops.pause = NULL;
	not_opened(&good, &ops, "a primary needs");
	ops = all;
	ops.load_state = NULL;
	standby.listen = "127.0.0.1:0";
	not_opened(&standby, &ops, "a secondary needs");
	ops = all;
	ops.side_write = no_write;
	not_opened(&standby, &ops, "a secondary's side stream needs");
	ops = all;
	ops.side_left = nothing_left;
	not_opened(&good, &ops, "a primary's side stream needs");
	ops = all;
	ops.struct_size = offsetof(struct ft_vmm_ops, guest_hold); /* an older embedder */
	cr_assert_eq(ft_session_open(&s, &good, &ops, NULL, &err), 0, "%s", err.msg);
	ft_session_close(s);
	cfg = good; /* and an older struct of settings: what it lacks has its default */
	cfg.struct_size = offsetof(struct ft_config, rdma_chunk);
	cfg.credits = cfg.rdma_retries = 0;
	cr_assert_eq(ft_session_open(&s, &cfg, &all, NULL, &err), 0, "%s", err.msg);
	cr_assert_eq(ft_session_get(s, "credits", name, sizeof(name)), 0);
	cr_assert_str_eq(name, "8");
	ft_session_close(s);
	ft_session_close(NULL);
}

Test(session, calls_before_the_start)
{
	struct ft_session *a = plain_open(FT_ROLE_PRIMARY), *b = plain_open(FT_ROLE_SECONDARY);
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	uint64_t epoch = 7;
	char text[64];

	cr_assert_eq(state_of(a), FT_STATE_IDLE);
	cr_assert_eq(ft_session_address(b, text, sizeof(text)), -ENOTCONN);
	cr_assert_eq(ft_session_wait(a, STATE(IDLE), 0), FT_STATE_IDLE);
	cr_assert_eq(ft_session_wait(a, STATE(PROTECTED), 20), -ETIMEDOUT);
	fails(ft_session_checkpoint(a, 100, &epoch, &err), &err, -ENOTCONN, "not protected");
	cr_assert_eq(epoch, 0);
	fails(ft_session_checkpoint(b, 100, &epoch, &err), &err, -EINVAL, "primary");
	fails(ft_session_pause_guest(a, 100, &err), &err, -ENOTCONN, "not protected");
	fails(ft_session_pause_guest(b, 100, &err), &err, -EINVAL, "secondary");
	cr_assert_eq(ft_session_resume_guest(a, 100, &err), 0);
	ft_session_cut(a);
	ft_session_cut(b);
	fails(ft_session_failover(a, 0, &res, &err), &err, -EINVAL, "primary");
	cr_assert_eq(res.outcome, FT_FAILOVER_NOT_SECONDARY);
	fails(ft_session_failover(b, FT_FAILOVER_FORCE, &res, &err), &err, -ENODATA, "no complete image");
	cr_assert_eq(res.outcome, FT_FAILOVER_NO_IMAGE);
	cr_assert_eq(ft_session_failover(b, 0, &res, NULL), -ENODATA);
	fails(ft_session_start(a, &err), &err, -EINVAL, "no memory");
	fails(ft_session_start(a, &err), &err, -EALREADY, "before");
	ft_session_stop(b);
	ft_session_stop(b);
	fails(ft_session_start(b, &err), &err, -EALREADY, "before");
	ft_session_close(a);
	ft_session_close(b);
}

Test(session, regions_are_checked)
{
	struct ft_session *s = plain_open(FT_ROLE_SECONDARY);
	uint8_t *mem = ram(FT_REGIONS_MAX + 8);
	struct ft_error err = { 0 };
	char name[FT_NAME_MAX + 1];
	struct ft_status st;

	memset(name, 'r', FT_NAME_MAX);
	name[FT_NAME_MAX] = '\0';
	cr_assert_eq(ft_session_add_region(s, "ram", mem, 4 * PAGE, &err), 0);
	fails(ft_session_add_region(s, "ram", mem + 4 * PAGE, PAGE, &err), &err, -EEXIST, "ram");
	fails(ft_session_add_region(s, "x", mem + 3 * PAGE, PAGE, &err), &err, -EINVAL, "overlaps");
	fails(ft_session_add_region(s, "x", mem + 4 * PAGE + 8, PAGE, &err), &err, -EINVAL, "address");
	fails(ft_session_add_region(s, "x", mem + 4 * PAGE, PAGE - 1, &err), &err, -EINVAL, "octets");
	fails(ft_session_add_region(s, "x", NULL, PAGE, &err), &err, -EINVAL, "address");
	fails(ft_session_add_region(s, "", mem + 4 * PAGE, PAGE, &err), &err, -EINVAL, "name");
	fails(ft_session_add_region(s, name, mem + 4 * PAGE, PAGE, &err), &err, -EINVAL, "name");
	cr_assert_eq(ft_session_add_region(s, "ram", mem + 4 * PAGE, PAGE, NULL), -EEXIST,
		     "the code needs no sentence");
	fails(ft_session_remove_region(s, 1, &err), &err, -EINVAL, "no region 1");
	for (unsigned i = 1; i < FT_REGIONS_MAX; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		cr_assert_eq(ft_session_add_region(s, name, mem + (3 + i) * PAGE, PAGE, &err), (int)i, "%s", err.msg);
	}
	fails(ft_session_add_region(s, "x", mem + (FT_REGIONS_MAX + 4) * PAGE, PAGE, &err), &err, -ENOSPC, "1024");
	cr_assert_eq(ft_session_remove_region(s, 5, &err), 0);
	fails(ft_session_remove_region(s, 5, &err), &err, -EINVAL, "no region 5");
	ft_session_status(s, &st);
	cr_assert_eq(st.regions, FT_REGIONS_MAX - 1);
	cr_assert_eq(st.guest_bytes, (FT_REGIONS_MAX + 2) * PAGE);
	cr_assert_eq(ft_session_start(s, &err), 0, "%s", err.msg);
	fails(ft_session_remove_region(s, 0, &err), &err, -EBUSY, "secondary");
	fails(ft_session_add_region(s, "y", mem + (FT_REGIONS_MAX + 4) * PAGE, PAGE, &err), &err, -EBUSY, "secondary");
	ft_session_close(s);
	munmap(mem, (FT_REGIONS_MAX + 8) * PAGE);
}

Test(session, live_settings_change_and_others_do_not)
{
	struct ft_session *both[2] = { plain_open(FT_ROLE_PRIMARY), plain_open(FT_ROLE_SECONDARY) };
	unsigned nr_live = 0, nr_fixed = 0;
	size_t n;
	const struct ft_option *o = ft_options(&n);
	struct ft_error err = { 0 };
	char text[256], again[256];

	for (size_t i = 0; i < 2 * n; i++) {
		const struct ft_option *opt = &o[i / 2];
		struct ft_session *s = both[i % 2];
		bool is_live = opt->flags & FT_OPT_LIVE && opt->flags & (i % 2 ? FT_OPT_SECONDARY : FT_OPT_PRIMARY);
		char value[32], second[32], *choice = NULL;

		if (opt->choices) {
			choice = second;
			snprintf(second, sizeof(second), "%.*s", (int)strcspn(strchr(opt->choices, '|') + 1, "|"),
				 strchr(opt->choices, '|') + 1);
		}

		if (opt->type == FT_OPT_BOOL)
			snprintf(value, sizeof(value), "%s", strcmp(opt->value, "on") ? "on" : "off");
		else
			snprintf(value, sizeof(value), "%" PRIu64, opt->min + 300);
		cr_assert_eq(ft_session_get(s, opt->name, text, sizeof(text)), 0);
		if (is_live) {
			cr_assert_eq(ft_session_set(s, opt->name, choice ? choice : value, &err), 0, "%s: %s",
				     opt->name, err.msg);
			cr_assert_eq(ft_session_get(s, opt->name, again, sizeof(again)), 0);
			cr_assert_str_eq(again, choice ? choice : value);
			cr_assert_neq(ft_session_set(s, opt->name, "nonsense", &err), 0);
			cr_assert(strstr(err.msg, opt->name), "%s: %s", opt->name, err.msg);
			nr_live++;
		} else {
			fails(ft_session_set(s, opt->name, value, &err), &err, -EPERM, opt->name);
			cr_assert_eq(ft_session_get(s, opt->name, again, sizeof(again)), 0);
			cr_assert_str_eq(again, text);
			nr_fixed++;
		}
	}
	cr_assert(nr_live >= 9 && nr_fixed > nr_live, "%u live, %u not", nr_live, nr_fixed);
	fails(ft_session_set(both[0], "colour", "red", &err), &err, -ENOENT, "colour");
	cr_assert_eq(ft_session_get(both[0], "colour", text, sizeof(text)), -ENOENT);
	fails(ft_session_set(both[0], "interval", "0", &err), &err, -ERANGE, "interval");
	ft_session_close(both[0]);
	ft_session_close(both[1]);
}

static unsigned nr_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	cr_assert(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#ifdef FT_ASAN
#define SLACK_KIB (512u << 10) /* it keeps what is freed for a while, and finds leaks by itself */
#else
#define SLACK_KIB 4096u
#endif

static unsigned long data_kib(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[128];

	cr_assert(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmData: %lu", &kib) == 1)
			break;
	fclose(f);
	return kib;
}

Test(session, two_hundred_lives_leave_nothing, .timeout = 300)
{
	uint8_t *mem = ram(2);
	unsigned long kib[2] = { 0 };
	unsigned fds = 0;

	for (unsigned i = 0; i < 200; i++) {
		struct ft_session *a = plain_open(FT_ROLE_PRIMARY), *b = plain_open(FT_ROLE_SECONDARY);
		struct ft_error err = { 0 };

		cr_assert_eq(ft_session_add_region(a, "ram", mem, PAGE, &err), 0);
		cr_assert_eq(ft_session_add_region(b, "ram", mem + PAGE, PAGE, &err), 0);
		cr_assert_eq(ft_session_start(a, &err), 0, "%s", err.msg);
		cr_assert_eq(ft_session_start(b, &err), 0, "%s", err.msg);
		if (i % 2)
			ft_session_stop(a);
		ft_session_close(a);
		ft_session_close(b);
		if (i == 40) { /* what libc keeps for itself, it has by now */
			fds = nr_fds();
			kib[0] = data_kib();
		}
	}
	cr_assert_eq(nr_fds(), fds);
	kib[1] = data_kib();
	cr_assert_lt(kib[1], kib[0] + SLACK_KIB, "%lu KiB of data after 40 lives, %lu after 200", kib[0], kib[1]);
	munmap(mem, 2 * PAGE);
}
