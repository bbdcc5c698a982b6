/* SPDX-License-Identifier: MIT */
/* guest.c - a point of a real guest: the small Linux of tools/guest, unmodified, under QEMU with TCG, protected by two ftqemu on this host.
 *
 *   ftbench's worker --- control sockets ---> ftqemu primary --+--> QEMU     console: a file; a second monitor: STOP and RESUME
 *                                             ftqemu secondary +--> QEMU     console: a file, that of the promoted guest
 *
 * The pause is that of the guest: from STOP to RESUME by QEMU's own time stamps, as it is measured of COLO too (peers.c); the engine's mean and its
 * phases, which have the way there and back as well, come from its statistics.  What the guest did is read from its console, which is
 * output like any other and comes with its epoch.  One thread. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "bench.h"
#include "say.h"

#define WAIT_NS UINT64_C(120000000000) /* a machine that is busy with other things is slow */
#define SETTLE_MS 1000
#define ALONE_MS 1500
#define QEMU "qemu-system-x86_64"
#define RAM_PAD 8192u /* COLO loses pages when the RAM is a multiple of 256 KiB; all get the same guest */

struct pair {
	const struct point *p;
	double *v;
	struct host host;
	pid_t primary, secondary;
	char listen[160];
	struct talk *ctl, *side_ctl, *qmp;
};

const char *guest_missing(const struct point *p)
{
	static char why[256];
	static const char *const file[] = { "vmlinuz", "initrd.gz" };

	if (!host_has(QEMU))
		return QEMU " is not installed";
	for (size_t i = 0; i < 2; i++) {
		snprintf(why, sizeof(why), "%.150s/%s", p->images, file[i]);
		if (access(why, R_OK)) {
			snprintf(why, sizeof(why),
				 "%.100s has no %s: tools/guest/build of the source tree makes it (--images)",
				 p->images, file[i]);
			return why;
		}
	}
	return NULL;
}

/* Pages that it writes anywhere in, as the simulated guest: four times as many as in an interval, but at least 16 MiB. */
static uint64_t set_mib(const struct point *p)
{
	uint64_t mib = 4 * p->pages * FT_PAGE_SIZE >> 20;

	return mib < 16 ? 16 : mib;
}

void guest_words(struct words *w, const struct point *p, const char *dir, const char *name)
{
	static const char *const fixed[] = {
		QEMU, "-M", "pc", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"
	};

	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		words_add(w, "%s", fixed[i]);
	words_add(w, "-m");
	words_add(w, "%lluK", (unsigned long long)((p->guest_bytes + RAM_PAD) / 1024));
	words_add(w, "-kernel");
	words_add(w, "%s/vmlinuz", p->images);
	words_add(w, "-initrd");
	words_add(w, "%s/initrd.gz", p->images);
	words_add(w, "-append");
	words_add(w, "console=ttyS0 quiet panic=-1 ft.mem=%llu ft.ws=%llu ft.rate=%llu ft.period=100 ft.sweep=20000",
		  (unsigned long long)set_mib(p), (unsigned long long)set_mib(p),
		  (unsigned long long)(p->pages * 1000 / p->interval_ms));
	words_add(w, "-serial");
	words_add(w, "file:%s/%s.console", dir, name);
	words_add(w, "-qmp");
	words_add(w, "unix:%s/%s.qmp,server=on,wait=off", dir, name);
}

/* ---- its console ---- */

static uint64_t number_of(const char *line, const char *end, const char *name)
{
	const char *at = strstr(line, name);

	return at && at < end ? strtoull(at + strlen(name), NULL, 10) : 0;
}

/* The last whole line that begins with "ft-guest C", of the last some of the file. */
static bool last_line(const char *path, struct counts *c)
{
	static const char head[] = "ft-guest C ";
	char buf[4096], *line = buf, *at = NULL, *end;
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return false;
	if (fseek(f, -(long)(sizeof(buf) - 1), SEEK_END))
		rewind(f);
	n = fread(buf, 1, sizeof(buf) - 1, f);
	fclose(f);
	buf[n] = '\0';
	while ((line = strstr(line, head)) && (end = strchr(line, '\n')))
		at = line, line = end;
	if (!at)
		return false;
	end = strchr(at, '\n');
	*c = (struct counts){ .counter = strtoull(at + strlen(head), NULL, 10),
			      .steps = number_of(at, end, " steps "),
			      .bad = number_of(at, end, " errs ") + number_of(at, end, " klog ") +
				     number_of(at, end, " back "),
			      .ns = mono_ns() };
	return true;
}

int guest_counts(struct host *h, const char *name, struct counts *c, struct ft_error *err)
{
	struct counts before = { 0 };
	uint64_t end = mono_ns() + WAIT_NS;
	char path[128], said[256];

	snprintf(path, sizeof(path), "%s/%s.console", h->dir, name);
	last_line(path, &before);
	while (!last_line(path, c) || c->counter <= before.counter) {
		for (unsigned i = 0; i < h->n; i++)
			if (host_wait(h, h->child[i], 0) != -ETIMEDOUT)
				return say(err, -EIO, "QEMU or ftqemu has ended: %s",
					   host_said(h, name, said, sizeof(said)));
		if (mono_ns() > end)
			return say(err, -ETIMEDOUT, "the guest says nothing on its console; %s",
				   host_said(h, name, said, sizeof(said)));
		sleep_ms(2);
	}
	return c->bad ? say(err, -EIO, "the guest finds its memory, log or clock wrong") : 0;
}

/* ---- the two ftqemu ---- */

/* ftqemu lies beside this program when installed, in a folder beside in the build tree. */
static const char *ftqemu_path(void)
{
	static char path[512];
	char self[400];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n < 0 ? 0 : n] = '\0';
	slash = strrchr(self, '/');
	if (!slash)
		return "ftqemu";
	*slash = '\0';
	snprintf(path, sizeof(path), "%s/ftqemu", self);
	if (access(path, X_OK))
		snprintf(path, sizeof(path), "%s/../ftqemu/ftqemu", self);
	return access(path, X_OK) ? "ftqemu" : path;
}

static void add_settings(struct words *w, const struct point *p, unsigned role)
{
	char copy[SET_TEXT], *rest, *item;
	size_t n;
	const struct ft_option *o = ft_options(&n);

	snprintf(copy, sizeof(copy), "%s", p->set);
	for (item = strtok_r(copy, " ", &rest); item; item = strtok_r(NULL, " ", &rest)) {
		char *value = strchr(item, '=');

		*value++ = '\0';
		for (size_t i = 0; i < n; i++)
			if (strcmp(o[i].name, item) == 0 && (o[i].flags & role)) {
				words_add(w, "--%s", item);
				words_add(w, "%s", value);
			}
	}
}

static int start_side(struct pair *x, bool is_primary, struct ft_error *err)
{
	const char *name = is_primary ? "primary" : "secondary";
	struct words w = { .n = 0 };
	char path[128];
	pid_t pid;

	words_add(&w, "%s", ftqemu_path());
	words_add(&w, "%s", name);
	words_add(&w, is_primary ? "--secondary" : "--listen");
	words_add(&w, "%s", x->listen);
	words_add(&w, "--name");
	words_add(&w, "ftbench-%d-%s", (int)getpid(), name);
	words_add(&w, "--heartbeat-misses");
	words_add(&w, "100");
	words_add(&w, "--control");
	words_add(&w, "%s/%s.ctl", x->host.dir, name);
	if (is_primary) {
		words_add(&w, "--reconnect");
		words_add(&w, "100");
		words_add(&w, "--interval");
		words_add(&w, "%u", x->p->interval_ms);
		words_add(&w, "--output-cut");
		words_add(&w, "off"); /* as with the simulated guest */
	}
	add_settings(&w, x->p, is_primary ? FT_OPT_PRIMARY : FT_OPT_SECONDARY);
	words_add(&w, "--");
	guest_words(&w, x->p, x->host.dir, name);
	pid = host_start(&x->host, name, &w, NULL, err);
	if (pid < 0)
		return pid;
	*(is_primary ? &x->primary : &x->secondary) = pid;
	snprintf(path, sizeof(path), "%s/%s.ctl", x->host.dir, name);
	return talk_open(is_primary ? &x->ctl : &x->side_ctl, path, false, mono_ns() + WAIT_NS, err);
}

/* Of one: "status", and whether it is protected. */
static int look_at_status(struct pair *x, bool *is_protected, uint64_t *applied, struct ft_error *err)
{
	json_t *s;
	int r = talk_ask(x->ctl, json_pack("{s:s}", "cmd", "status"), &s, err);
	double mib = (double)json_integer_value(json_object_get(s, "memory_bytes")) / 1048576, *v = x->v;

	if (r)
		return r;
	*is_protected = json_is_true(json_object_get(s, "protected"));
	*applied = (uint64_t)json_integer_value(json_object_get(s, "epoch_applied"));
	v[FIG_ENGINE] = fmax(mib, isnan(v[FIG_ENGINE]) ? 0 : v[FIG_ENGINE]);
	v[FIG_CAP] = (double)json_integer_value(json_object_get(s, "memory_cap_bytes")) / 1048576;
	json_decref(s);
	return 0;
}

static int read_stats(struct talk *t, struct ft_stats *out, struct ft_error *err)
{
	json_t *s;
	int r = talk_ask(t, json_pack("{s:s}", "cmd", "stats"), &s, err);
	json_t *dist = json_object_get(s, "dist"), *counter = json_object_get(s, "counter");

	memset(out, 0, sizeof(*out));
	for (int m = 0; !r && m < FT_METRIC_COUNT; m++) {
		json_t *d = json_object_get(dist, ft_metric_name((enum ft_metric)m));

		out->dist[m].count = (uint64_t)json_integer_value(json_object_get(d, "count"));
		out->dist[m].mean = json_number_value(json_object_get(d, "mean"));
	}
	for (int c = 0; !r && c < FT_COUNTER_COUNT; c++)
		out->counter[c] =
			(uint64_t)json_integer_value(json_object_get(counter, ft_counter_name((enum ft_counter)c)));
	json_decref(s);
	return r;
}

/* Processor time of the guest's QEMU is not the protection's, but what saving its state costs there is not seen. */
static int take_look(struct pair *x, struct look *l, struct ft_error *err)
{
	struct counts c;
	int r = guest_counts(&x->host, "primary", &c, err);

	r = r ? r : read_stats(x->ctl, &l->stats, err);
	r = r ? r : read_stats(x->side_ctl, &l->side_stats, err);
	l->ns = c.ns;
	l->steps = c.steps;
	usage_of(x->primary, &l->usage);
	usage_of(x->secondary, &l->side_usage);
	l->side_usage.cpu_secondary_ns = l->side_usage.cpu_primary_ns;
	return r;
}

static int measure_limits(struct pair *x, double *memcpy_page_ns, struct ft_error *err)
{
	uint64_t bytes = x->p->pages * FT_PAGE_SIZE;
	int r = limit_tcp_alone(bytes < 8u << 20 ? 8u << 20 : bytes, &x->v[FIG_LINK], &x->v[FIG_RTT]);

	if (r)
		return say(err, r, "plain TCP over 127.0.0.1: %s", strerror(-r));
	*memcpy_page_ns = limit_memcpy_of_ns(set_mib(x->p) << 8, x->p->pages) / (double)x->p->pages;
	x->v[FIG_LINK] /= 1e6;
	x->v[FIG_RTT] /= 1e3;
	if (!strcmp(x->p->transport, "rdma"))
		x->v[FIG_LINK] = x->v[FIG_RTT] = NAN; /* plain TCP is not its limit */
	return 0;
}

static int measure_alone(struct pair *x, double *rate, struct ft_error *err)
{
	struct counts a, z;
	int r = guest_counts(&x->host, "primary", &a, err);

	sleep_ms(r ? 0 : ALONE_MS);
	r = r ? r : guest_counts(&x->host, "primary", &z, err);
	if (!r)
		*rate = (double)(z.steps - a.steps) * 1e9 / (double)(z.ns - a.ns);
	return r;
}

static int protect(struct pair *x, struct ft_error *err)
{
	uint64_t end = mono_ns() + WAIT_NS, applied = 0;
	bool is_protected = false;
	char path[128];
	int r = start_side(x, false, err);

	while (!r && (!is_protected || applied < 4)) {
		r = look_at_status(x, &is_protected, &applied, err);
		if (!r && mono_ns() > end)
			r = say(err, -ETIMEDOUT, "not protected within %d s", (int)(WAIT_NS / 1000000000));
		sleep_ms(20);
	}
	snprintf(path, sizeof(path), "%s/primary.qmp", x->host.dir);
	r = r ? r : talk_open(&x->qmp, path, true, mono_ns() + WAIT_NS, err);
	if (!r)
		sleep_ms(SETTLE_MS);
	return r;
}

/* Lets the time pass; what happened up to the answer is in x->qmp then. */
static int watch(struct pair *x, struct ft_error *err)
{
	uint64_t end = mono_ns() + (uint64_t)(x->p->seconds * 1e9), applied;
	bool is_protected = true;
	int r = 0;

	while (!r && mono_ns() < end) {
		r = look_at_status(x, &is_protected, &applied, err);
		if (!r && !is_protected)
			r = say(err, -EIO, "not protected any more");
		sleep_ms(50);
	}
	return r ? r : talk_ask(x->qmp, qmp_request("query-status", NULL), NULL, err);
}

/* And the promoted guest, which counts on, finds its memory whole. */
static int fail_over(struct pair *x, struct ft_error *err)
{
	struct ft_failover_result res = { 0 };
	struct counts c;
	json_t *a;
	int r = talk_ask(x->side_ctl, json_pack("{s:s,s:b}", "cmd", "failover", "force", 1), &a, err);

	res.stop_ns = (uint64_t)json_integer_value(json_object_get(a, "stop_ns"));
	res.apply_ns = (uint64_t)json_integer_value(json_object_get(a, "apply_ns"));
	res.load_ns = (uint64_t)json_integer_value(json_object_get(a, "load_ns"));
	res.activate_ns = (uint64_t)json_integer_value(json_object_get(a, "activate_ns"));
	res.total_ns = (uint64_t)json_integer_value(json_object_get(a, "total_ns"));
	json_decref(a);
	look_failover(x->v, &res);
	return r ? r : guest_counts(&x->host, "secondary", &c, err);
}

static int measure(struct pair *x, struct ft_error *err)
{
	static struct look a, z;
	double alone = 0, memcpy_page_ns = NAN;
	int r = measure_limits(x, &memcpy_page_ns, err);

	r = r ? r : start_side(x, true, err);
	r = r ? r : measure_alone(x, &alone, err);
	r = r ? r : protect(x, err);
	r = r ? r : take_look(x, &a, err);
	r = r ? r : talk_ask(x->qmp, qmp_request("query-status", NULL), NULL, err);
	if (r)
		return r;
	talk_forget_pauses(x->qmp);
	r = watch(x, err);
	r = r ? r : take_look(x, &z, err);
	if (r)
		return r;
	talk_pauses(x->qmp, x->v);
	look_phases(x->v, &a, &z);
	look_limits(x->v, memcpy_page_ns);
	look_costs(x->v, &a, &z);
	look_side_memory(x->v, &z);
	look_work(x->v, &a, &z, alone);
	x->v[FIG_PINNED_PRIMARY] = x->v[FIG_PINNED_SECONDARY] = NAN;
	x->v[FIG_PROTECTED] = 100; /* else it has failed */
	return x->p->no_failover ? 0 : fail_over(x, err);
}

int guest_measure(const struct point *p, double *v, struct ft_error *err)
{
	struct pair *x = calloc(1, sizeof(*x));
	struct ft_error why = { 0 };
	int r;

	if (!x)
		return say(err, -ENOMEM, "no memory");
	x->p = p;
	x->v = v;
	r = host_open(&x->host, err);
	if (r)
		return r;
	snprintf(x->listen, sizeof(x->listen), "%s%s:%u", strcmp(p->transport, "rdma") ? "" : "rdma:", p->address,
		 host_free_port());
	r = measure(x, err);
	if (r) {
		char said[160];

		why = *err;
		say(err, r, "%.200s (primary: %s)", why.msg, host_said(&x->host, "primary", said, sizeof(said)));
	}
	talk_close(x->qmp);
	talk_close(x->ctl);
	talk_close(x->side_ctl);
	host_close(&x->host);
	free(x);
	return r;
}
