/* SPDX-License-Identifier: MIT */
/* bench.h - what the files of ftbench share.
 *
 * A *point* is one protection of a guest with fixed settings, or the same guest under one of ft's peers; what is measured at it are *figures*, a fixed list, so that
 * tables, JSON, CSV and comparisons need no code for each of them.  A *run* is a list of points with the figures of each repeat.
 * The process that the user started has one thread and only waits; each point is measured in a process of its own (point.c). */
#ifndef FTBENCH_H
#define FTBENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <ft/ft.h>

#define REPEATS_MAX 64u
#define SETS_MAX 16u
#define SET_TEXT 256u
#define MISSING_MAX 8u
#define POINTS_MAX 4096u

enum { BENCH_OK = 0, BENCH_WORSE = 1 /* or: the target cannot be met */, BENCH_FAILED = 3 }; /* exit statuses; 2 is a usage error */

enum figure {
	FIG_PAUSE_P50, FIG_PAUSE_P99, FIG_PAUSE_MAX, FIG_PAUSE_MEAN, FIG_STOP, FIG_COLLECT, FIG_CAPTURE, FIG_SAVE, FIG_RESUME,
	FIG_MEMCPY, FIG_PAUSE_RATIO,
	FIG_EPOCH, FIG_DIRTY, FIG_EPOCHS, FIG_WRITTEN, FIG_SLOWDOWN, FIG_PROTECTED,
	FIG_SHIP, FIG_ACK, FIG_APPLIED, FIG_APPLY, FIG_SAFE_P50, FIG_SAFE_P99, FIG_LINK, FIG_RTT, FIG_SAFE_RATIO,
	FIG_DELAY_P50, FIG_DELAY_P99, FIG_HELD_P50, FIG_HELD_P99,
	FIG_BYTES, FIG_CPU_PRIMARY, FIG_CPU_SECONDARY, FIG_BUSY,
	FIG_ENGINE, FIG_CAP, FIG_MET, FIG_GROWN, FIG_RSS_PRIMARY, FIG_RSS_SECONDARY, FIG_PINNED_PRIMARY, FIG_PINNED_SECONDARY, FIG_GUEST,
	FIG_FAIL_STOP, FIG_FAIL_APPLY, FIG_FAIL_LOAD, FIG_FAIL_START, FIG_FAILOVER,
	FIG_TRANSFER, FIG_HUNG,
	FIG_COUNT
};

struct figure_info {
	const char *name, *unit;
	int better;	  /* -1: less, 1: more, 0: neither, it is not compared */
	double floor;	  /* a difference below that is nothing */
	const char *help;
};
extern const struct figure_info figure_info[FIG_COUNT];
int figure_named(const char *name); /* -1: there is none */

struct point {
	const char *transport, *address; /* "tcp", "loopback", "rdma", or a peer's name; address of the device for rdma */
	int (*measure)(const struct point *p, double *v, struct ft_error *err); /* NULL: a simulated guest, measured by point.c */
	const char *images, *preload; /* of a real guest: folder of vmlinuz and initrd.gz; library that COLO needs */
	uint32_t interval_ms, cpus, slow_us, link_delay_ms;
	uint64_t pages, guest_bytes, link_limit;
	const char *pattern;
	char set[SET_TEXT]; /* "NAME=VALUE NAME=VALUE" */
	double seconds;
	bool is_idle;	/* the guest writes nothing */
	bool is_flood;	/* it writes all of its memory as fast as it goes */
	bool no_failover;
	bool may_drop; /* protection may be given up, as at-cap=drop does: that is measured, and no failure */
};

struct result {
	double v[FIG_COUNT]; /* NAN: not measured here */
};

/* point_run - measure @p.  @tick is called some times a second with the seconds since the beginning. */
FT_MUST int point_run(const struct point *p, struct result *out, void (*tick)(void *user, double s), void *user, struct ft_error *err);
double point_expected_s(const struct point *p); /* how long that takes, about */
int point_check_set(const char *name, const char *value, struct ft_error *err);

/* ---- limit.c: what the machine could do without us ---- */
/* limit_memcpy_ns - @pages of the @set pages of @from, each @step pages behind the other, into used memory; the median of some. */
double limit_memcpy_ns(const uint8_t *from, uint64_t set, uint64_t step, uint64_t pages);
double limit_memcpy_of_ns(uint64_t set, uint64_t pages); /* the same of memory of its own */
int limit_tcp_listen(uint16_t *port);
int limit_tcp_serve(int listener); /* one client, until it closes */
int limit_tcp(uint16_t port, uint64_t bytes, double *bytes_per_s, double *rtt_ns);
int limit_tcp_alone(uint64_t bytes, double *bytes_per_s, double *rtt_ns); /* with a process that serves */
double limit_stream(uint64_t bytes); /* octets a second of one plain copy */

/* ---- usage.c: what a process uses ---- */
struct usage {
	uint64_t cpu_primary_ns, cpu_secondary_ns; /* of the engine's threads, by role */
	uint64_t rss_bytes, pinned_bytes;
};
void usage_read(struct usage *u);
uint64_t usage_resident(void); /* octets of this process, now */
/* usage_of - of process @pid, all its threads as those of the primary; its memory together with that of the processes that it started, what
 * they share counted once. */
void usage_of(pid_t pid, struct usage *u);
uint64_t mono_ns(void);
void sleep_ms(unsigned ms);

/* ---- look.c: pure; @v are the figures of a result ---- */
struct look { /* at both sides, at the beginning and the end of the time that counts */
	struct ft_stats stats, side_stats;
	struct usage usage, side_usage;
	uint64_t ns, steps; /* steps: pages that the guest wrote */
};
void look_phases(double *v, const struct look *a, const struct look *z);
void look_costs(double *v, const struct look *a, const struct look *z);
void look_side_memory(double *v, const struct look *z);
void look_work(double *v, const struct look *a, const struct look *z, double alone); /* @alone: pages a second unprotected; 0: not known */
void look_limits(double *v, double memcpy_page_ns);
void look_failover(double *v, const struct ft_failover_result *r);

/* ---- host.c: processes of a real guest, and their folder; all of it ends with the process that opened it, however that ends ---- */
#define WORDS_MAX 128u
struct words { /* a command line */
	const char *w[WORDS_MAX + 1];
	char text[8192];
	size_t used;
	unsigned n;
};
void words_add(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define CHILDREN_MAX 8u
struct host {
	char dir[48];
	pid_t child[CHILDREN_MAX];
	unsigned n;
	int sweeper;
};
FT_MUST int host_open(struct host *h, struct ft_error *err);
/* host_start - what it says goes into DIR/NAME.out and DIR/NAME.log.  @preload may be NULL.  The process, or a negative errno. */
FT_MUST pid_t host_start(struct host *h, const char *name, const struct words *w, const char *preload, struct ft_error *err);
FT_MUST int host_wait(struct host *h, pid_t pid, uint64_t deadline_ns); /* its exit status; -ETIMEDOUT */
bool host_lives(pid_t pid);
const char *host_said(struct host *h, const char *name, char *buf, size_t size); /* the end of what it said, for a message */
void host_close(struct host *h);
unsigned host_children(pid_t pid, pid_t *out, unsigned max);
uint16_t host_free_port(void);
bool host_has(const char *program); /* in $PATH */

/* ---- talk.c: JSON lines over a Unix socket: ft-control(7), and QEMU's monitor with its STOP and RESUME ---- */
struct talk {
	int fd;
	size_t used;
	double stopped_us, *pause_us; /* by QEMU's time stamps */
	unsigned nr_pauses;
	char migration[24]; /* its last status */
	char buf[1 << 18];
};
FT_MUST int talk_open(struct talk **out, const char *path, bool is_qmp, uint64_t deadline_ns, struct ft_error *err);
void talk_close(struct talk *t);
/* talk_ask - @request is taken.  What came back ("return", "data") into *@out, which may be NULL; a refusal is an error with its words. */
FT_MUST int talk_ask(struct talk *t, json_t *request, json_t **out, struct ft_error *err);
json_t *qmp_request(const char *command, json_t *arguments); /* @arguments is taken; may be NULL */
void talk_forget_pauses(struct talk *t);
void talk_pauses(struct talk *t, double *v); /* as figures */

/* ---- guest.c: the guest of tools/guest, under QEMU ---- */
struct counts { /* a line of its console */
	uint64_t counter, steps, bad, ns; /* ns: when it was seen here */
};
void guest_words(struct words *w, const struct point *p, const char *dir, const char *name); /* QEMU, with console and monitor in @dir */
/* guest_counts - the first line that comes from now on, of a guest that has written all its pages. */
FT_MUST int guest_counts(struct host *h, const char *name, struct counts *c, struct ft_error *err);
FT_MUST int guest_measure(const struct point *p, double *v, struct ft_error *err);
const char *guest_missing(const struct point *p); /* why there can be none; NULL: it can */

/* ---- statistic.c: pure ---- */
struct spread {
	unsigned n;
	double median, low, high; /* low, high: quartiles of four values and more, else the smallest and the largest */
};
double quantile(double *v, unsigned n, double share); /* sorts @v; NAN of none */
double dist_between(const struct ft_dist *a, const struct ft_dist *z); /* mean of what came between two readings; NAN of nothing */
struct spread spread_of(const double *v, unsigned n); /* NAN is left out */

enum verdict { VERDICT_SAME, VERDICT_BETTER, VERDICT_WORSE, VERDICT_NONE };
/* verdict_of - is @b another value than @a beyond the noise?  The spreads must not overlap, and the medians differ by more than @percent
 * and the figure's floor; with one value on a side nothing is known of the noise, and five times @percent is asked for. */
enum verdict verdict_of(const struct figure_info *f, struct spread a, struct spread b, double percent);

/* ---- run.c: points with their repeats, and as JSON and CSV ---- */
struct entry {
	char transport[16], pattern[24], set[SET_TEXT];
	uint32_t interval_ms;
	uint64_t pages;
	unsigned n;
	double v[FIG_COUNT][REPEATS_MAX];
};
struct run {
	struct entry *entry;
	unsigned n;
	char missing[MISSING_MAX][192]; /* peers that could not be measured, and why */
	unsigned nr_missing;
};
struct entry *run_add(struct run *r, const struct point *p); /* NULL: no memory */
void run_free(struct run *r);
struct spread entry_spread(const struct entry *e, enum figure f);
void entry_name(const struct entry *e, char *buf, size_t size);
json_t *run_to_json(const struct run *r);
FT_MUST int run_from_json(struct run *r, const json_t *j, struct ft_error *err);
FT_MUST int run_load(struct run *r, const char *path, struct ft_error *err);
FT_MUST int run_save_json(const struct run *r, const char *path, struct ft_error *err); /* "-": standard output */
FT_MUST int run_save_csv(const struct run *r, const char *path, struct ft_error *err);
void run_print(const struct run *r, FILE *f);

/* ---- plot.c ---- */
FT_MUST int plot_run(const struct run *r, const char *dir, bool quiet, struct ft_error *err);

/* ---- advise.c ---- */
struct host_model { /* of the engine here: fixed cost, and cost of a page */
	double pause0_ns, pause_page_ns;
	double safe0_ns, safe_page_ns; /* from resumption to acknowledgement */
};
struct target {
	double max_delay_ms, max_slowdown_pct; /* NAN: none */
	double pages_per_second;
};
struct advice {
	bool is_met;
	uint32_t interval_ms;
	double delay_ms, slowdown_pct, pages;
	uint64_t staging_bytes;
	uint32_t best_delay_interval_ms, best_slowdown_interval_ms; /* what could be, each alone; 0: no interval can be sustained */
	double best_delay_ms, best_slowdown_pct;
	char why[512];
};
/* advise_predict - the largest output delay and the slow-down at an interval; false: it cannot be sustained there. */
bool advise_predict(const struct host_model *m, double pages_per_second, uint32_t interval_ms, double *delay_ms, double *slowdown_pct);
struct advice advise_decide(const struct host_model *m, const struct target *t);

/* ---- compare.c ---- */
/* compare_runs - print what differs to @f; BENCH_WORSE or BENCH_OK, or -ENOENT when they share no point. */
int compare_runs(const struct run *a, const struct run *b, double percent, bool all, FILE *f);

/* ---- the commands ---- */
struct args {
	const char *transport, *address, *intervals, *pages, *patterns, *json, *csv, *plot, *guest, *images, *preload, *rates;
	const char *set[SETS_MAX];
	unsigned nr_sets;
	uint64_t guest_bytes, link_limit, pages_per_second;
	uint32_t cpus, repeat, slow_us, link_delay_ms, threshold, max_delay_ms, max_slowdown_pct;
	double seconds;
	bool quiet, all;
};
int run_sweep(void *user, int argc, char **argv);
int run_compare(void *user, int argc, char **argv);
int run_advise(void *user, int argc, char **argv);
int run_plot(void *user, int argc, char **argv);
int run_idle(void *user, int argc, char **argv);
int run_memory(void *user, int argc, char **argv);
int run_peers(void *user, int argc, char **argv);
int run_techniques(void *user, int argc, char **argv);

/* sweep.c: for the other commands too */
int args_check(const struct args *a); /* 0, or an exit status after a sentence */
void point_of_args(struct point *p, const struct args *a);
int measure_points(const struct args *a, const struct point *p, unsigned n, struct run *r); /* interleaved repeats with progress; exit status */
int save_run(const struct args *a, const struct run *r); /* --json, --csv; exit status */
bool wants_table(const struct args *a);
int points_of_rates(const struct args *a, struct point *p, unsigned max, unsigned *n); /* --pages-per-second by --interval */

#endif
