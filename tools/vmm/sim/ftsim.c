/* SPDX-License-Identifier: MIT */
/* ftsim.c - protect a simulated guest: libft tried without a hypervisor, as ftqemu uses it with one.
 * The main thread waits for signals and the session's state; events are printed from the session's threads, a line at a time. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <ft/ft.h>
#include "cli.h"
#include "human.h"
#include "logsink.h"
#include "sim.h"

#define EXIT_ROLE 3 /* by what is written down, or what the other side says, the guest may not run here */

struct args {
	struct ft_config cfg;
	struct sim_config sim;
	uint64_t size_bytes;
	uint32_t seconds, every_s;
	const char *control, *output;
	bool auto_failover, verbose;
};

struct run {
	struct args *args;
	struct sim *sim;
	struct ft_session *session;
	struct ft_control *control;
	int output_fd;
	char failover_error[FT_ERROR_MAX]; /* that was printed last */
};

/* ---- options ---- */

static int set_pattern(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	struct args *a = user;

	(void)opt;
	if (sim_pattern_of(value, &a->sim.pattern) == 0)
		return 0;
	err->code = -EINVAL;
	snprintf(err->msg, sizeof(err->msg),
		 "'%s' is not one of uniform, hot, sequential, sparse, zero, rewrite, scatter, flip, mixed", value);
	return err->code;
}

static int set_peer(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	(void)opt, (void)err;
	((struct args *)user)->cfg.peer = value;
	return 0;
}

#define GUEST_OPTIONS                                                                                                  \
	{ .name = "size",                                                                                              \
	  .arg = "SIZE",                                                                                               \
	  .help = "memory of the guest (default 64M)",                                                                 \
	  .group = "Guest (the same on both sides)",                                                                   \
	  .offset = offsetof(struct args, size_bytes),                                                                 \
	  .set = cli_set_size },                                                                                       \
		CLI_U32(struct args, sim.nr_cpus, "cpus", 0, "N", "vCPUs (default 2)"),                                \
		{ .name = "pattern",                                                                                   \
		  .arg = "NAME",                                                                                       \
		  .help = "what the vCPUs write: uniform, hot, sequential, sparse, zero, rewrite, scatter, flip, "     \
			  "mixed",                                                                                     \
		  .set = set_pattern },                                                                                \
		CLI_U64(struct args, sim.seed, "seed", 0, "N", "of everything the guest does"),                        \
		CLI_U64(struct args, sim.working_set_pages, "working-set", 0, "PAGES",                                 \
			"pages that are written (default: all)"),                                                      \
		CLI_U64(struct args, sim.prefill_pages, "prefill", 0, "PAGES", "pages that are filled at the start"),  \
		CLI_U64(struct args, sim.output_every, "output-every", 0, "N",                                         \
			"steps from one message of a vCPU to its next; 0: none"),                                      \
		CLI_U64(struct args, sim.rate, "rate", 0, "N",                                                         \
			"pages a second; 0: as fast as it goes (default 20000)"),                                      \
		CLI_SIZE(struct args, sim.state_bytes, "state", 0, "SIZE", "device state (default 16K)"),              \
		CLI_SIZE(struct args, sim.side_max_bytes, "side", 0, "SIZE",                                           \
			 "most octets that it writes to its disk in an epoch (default 0: it has none)"),               \
		CLI_FLAG(struct args, sim.checksum, "checksum", 0,                                                     \
			 "put a checksum of the memory into the device state")

#define RUN_OPTIONS                                                                                                    \
	{ .name = "control",                                                                                           \
	  .arg = "PATH",                                                                                               \
	  .help = "control socket for ftctl",                                                                          \
	  .group = "Running",                                                                                          \
	  .offset = offsetof(struct args, control),                                                                    \
	  .set = cli_set_string,                                                                                       \
	  .letter = 'c' },                                                                                             \
		CLI_U32(struct args, seconds, "seconds", 0, "N",                                                       \
			"end by itself after so long (default: at SIGINT or SIGTERM)"),                                \
		CLI_U32(struct args, every_s, "every", 0, "N",                                                         \
			"print a status line every so many seconds (default: never)"),                                 \
		CLI_FLAG(struct args, verbose, "verbose", 'v', "the library's log lines on standard error")

static const struct cli_option primary_options[] = {
	{ .name = "secondary",
	  .arg = "HOST:PORT",
	  .help = "where the secondary listens (or --peer); rdma:HOST:PORT over RDMA",
	  .set = set_peer },
	CLI_STRING(struct args, output, "output", 'o', "FILE", "append what the guest sends, once it may leave"),
	GUEST_OPTIONS,
	RUN_OPTIONS,
	CLI_END
};
static const struct cli_option secondary_options[] = {
	CLI_STRING(struct args, output, "output", 'o', "FILE",
		   "the primary's: after a failover check that all in it is known here"),
	CLI_FLAG(struct args, auto_failover, "auto-failover", 0,
		 "promote when the primary is lost, without waiting for ftctl"),
	GUEST_OPTIONS, RUN_OPTIONS, CLI_END
};

/* ---- printing ---- */

static void print_event(void *user, const struct ft_event *ev)
{
	const struct run *r = user;

	if (ev->type != FT_EVENT_STATE)
		return;
	printf("ftsim: %s: %s -> %s%s%s\n", r->args->cfg.name, ft_state_name(ev->old_state), ft_state_name(ev->state),
	       ev->reason[0] ? ": " : "", ev->reason);
	fflush(stdout);
}

static void print_status(struct run *r)
{
	static struct ft_stats stats; /* main thread only */
	char pause[HUMAN_MAX], sent[HUMAN_MAX], steps[HUMAN_MAX];
	struct ft_status st;

	ft_session_status(r->session, &st);
	ft_session_stats(r->session, &stats);
	printf("ftsim: %s: epoch %llu sent, %llu acked, %llu applied; pause p50 %s; %s sent; %s steps\n",
	       ft_state_name(st.state), (unsigned long long)st.epoch_sent, (unsigned long long)st.epoch_acked,
	       (unsigned long long)st.epoch_applied, human_ns(pause, stats.dist[FT_METRIC_PAUSE].p50),
	       human_bytes(sent, stats.counter[FT_COUNTER_BYTES_SENT]), human_count(steps, sim_steps(r->sim)));
	fflush(stdout);
}

/* ---- verdict ---- */

static int print_verdict(struct run *r, int ret, const char *what, uint64_t steps, uint64_t pages,
			 const struct ft_error *err)
{
	char s[HUMAN_MAX], p[HUMAN_MAX];

	if (ret)
		printf("ftsim: verdict: FAIL: %s: %s\n", what, err->msg);
	else
		printf("ftsim: verdict: PASS: %s: %s pages are what a replay of %s steps gives\n", what,
		       human_count(p, pages), human_count(s, steps));
	fflush(stdout);
	(void)r;
	return ret ? 1 : 0;
}

static int check_output(struct run *r, struct ft_error *err)
{
	struct sim_client *client = NULL;
	char buf[4096];
	ssize_t n;
	int fd, ret;

	if (!r->args->output)
		return 0;
	fd = open(r->args->output, O_RDONLY | O_CLOEXEC);
	ret = fd < 0 ? -errno : sim_client_create(&client);
	if (ret) {
		snprintf(err->msg, sizeof(err->msg), "%s: %s", r->args->output, strerror(-ret));
	} else {
		while ((n = read(fd, buf, sizeof(buf))) > 0)
			sim_client_feed(client, buf, (size_t)n);
		ret = sim_check_promise(client, r->sim, err);
	}
	sim_client_destroy(client);
	if (fd >= 0)
		close(fd);
	return ret;
}

static int verify_promoted(struct run *r)
{
	uint64_t steps = 0, pages = 0;
	struct ft_error err = { 0 };
	struct ft_status st;
	char what[64];
	int ret = sim_verify(r->sim, &steps, &pages, &err);

	if (!ret)
		ret = check_output(r, &err);
	ft_session_status(r->session, &st);
	snprintf(what, sizeof(what), "went on from epoch %llu", (unsigned long long)st.epoch_applied);
	return print_verdict(r, ret, what, steps, pages, &err);
}

static int verify_primary(struct run *r)
{
	uint64_t steps = 0, pages = 0;
	struct ft_error err = { 0 };
	struct sim_client_stats st;
	int ret = sim_verify(r->sim, &steps, &pages, &err);

	sim_client_stats(sim_get_client(r->sim), &st);
	if (!ret && st.gaps) {
		snprintf(err.msg, sizeof(err.msg), "%llu gaps in the output", (unsigned long long)st.gaps);
		ret = -EBADMSG;
	}
	return print_verdict(r, ret, "memory at the end", steps, pages, &err);
}

/* ---- running ---- */

static bool promote_if_lost(struct run *r, struct ft_status *st)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };

	if (!r->args->auto_failover || st->state != FT_STATE_STANDBY_SUSPECT)
		return false;
	if (ft_session_failover(r->session, 0, &res, &err) == 0)
		return true;
	if (strcmp(err.msg, r->failover_error) != 0) /* once, not ten times a second */
		cli_error("failover: %s", err.msg);
	memcpy(r->failover_error, err.msg, sizeof(err.msg));
	return false;
}

/* One round of waiting: a signal, or a tenth of a second.  False: it is time to end. */
static bool wait_tick(const sigset_t *set, uint64_t ticks, uint32_t seconds)
{
	const struct timespec tick = { .tv_nsec = 100000000 };

	if (seconds && ticks >= seconds * 10u)
		return false;
	return sigtimedwait(set, NULL, &tick) < 0;
}

static int run_session(struct run *r, const sigset_t *set)
{
	bool is_secondary = r->args->cfg.role == FT_ROLE_SECONDARY, verified = false;
	struct ft_status st;
	int exit_status = 0;

	for (uint64_t ticks = 0; wait_tick(set, ticks, r->args->seconds); ticks++) {
		ft_session_status(r->session, &st);
		promote_if_lost(r, &st);
		if (is_secondary && st.state == FT_STATE_ACTIVE && !verified) {
			exit_status = verify_promoted(r);
			verified = true;
		}
		if (r->args->every_s && ticks % (r->args->every_s * 10u) == 0)
			print_status(r);
	}
	print_status(r);
	return is_secondary ? exit_status : verify_primary(r);
}

static int open_run(struct run *r, struct ft_error *err)
{
	struct args *a = r->args;
	int ret;

	a->sim.region_bytes[0] = a->size_bytes;
	a->sim.on_event = print_event;
	a->sim.on_event_user = r;
	a->sim.client_fd = r->output_fd;
	ret = sim_create(&r->sim, &a->sim, a->cfg.role == FT_ROLE_SECONDARY, err);
	if (ret)
		return ret;
	a->cfg.identity = sim_identity(r->sim);
	ret = ft_session_open(&r->session, &a->cfg, sim_ops_of(r->sim), r->sim, err);
	if (!ret)
		ret = sim_attach(r->sim, r->session, err);
	if (!ret && a->control)
		ret = ft_control_open(&r->control, a->control, NULL, NULL, err);
	if (!ret && r->control)
		ft_control_set_session(r->control, r->session);
	if (!ret)
		ret = ft_session_start(r->session, err);
	if (!ret && a->cfg.role == FT_ROLE_PRIMARY)
		ret = sim_start(r->sim, err);
	return ret;
}

static void close_run(struct run *r)
{
	if (r->control)
		ft_control_set_session(r->control, NULL);
	ft_control_close(r->control);
	if (r->sim && sim_attach(r->sim, NULL, NULL))
		cli_error("the session was not let go of");
	ft_session_close(r->session);
	sim_destroy(r->sim);
	if (r->output_fd >= 0)
		close(r->output_fd);
}

static void print_address(struct run *r)
{
	char address[128];

	if (ft_session_address(r->session, address, sizeof(address)) == 0)
		printf("ftsim: listening on %s\n", address);
	fflush(stdout);
}

/* As ft_session_start() says. */
static bool may_not_run(int ret)
{
	return ret == -EOWNERDEAD || ret == -EBUSY || ret == -EHOSTUNREACH || ret == -EPERM;
}

static int run_ftsim(struct args *a)
{
	struct run r = { .args = a, .output_fd = -1 };
	struct ft_error err = { 0 };
	int exit_status = 1, ret;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (a->verbose && logsink_open(NULL, FT_LOG_DEBUG, &err)) {
		cli_error("%s", err.msg);
		return 1;
	}
	if (a->output && a->cfg.role == FT_ROLE_PRIMARY) {
		r.output_fd = open(a->output, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600);
		if (r.output_fd < 0) {
			cli_errno(-errno, "%s", a->output);
			return 1;
		}
	}
	ret = open_run(&r, &err);
	if (ret) {
		cli_error("%s", err.msg);
		exit_status = may_not_run(ret) ? EXIT_ROLE : 1;
	} else {
		if (a->cfg.role == FT_ROLE_SECONDARY)
			print_address(&r);
		exit_status = run_session(&r, &set);
	}
	close_run(&r);
	return exit_status;
}

static int run_primary(void *user, int argc, char **argv)
{
	struct args *a = user;

	(void)argc, (void)argv;
	if (!a->cfg.peer) {
		cli_error("--secondary HOST:PORT is needed");
		return CLI_USAGE;
	}
	return run_ftsim(a);
}

static int run_secondary(void *user, int argc, char **argv)
{
	struct args *a = user;

	(void)argc, (void)argv;
	if (!a->cfg.listen) {
		cli_error("--listen HOST:PORT is needed");
		return CLI_USAGE;
	}
	return run_ftsim(a);
}

static const struct cli_command commands[] = {
	{ .name = "primary",
	  .help = "run the guest and protect it",
	  .options = primary_options,
	  .run = run_primary,
	  .settings = FT_OPT_PRIMARY,
	  .config = offsetof(struct args, cfg) },
	{ .name = "secondary",
	  .help = "keep a standby of it",
	  .options = secondary_options,
	  .run = run_secondary,
	  .settings = FT_OPT_SECONDARY,
	  .config = offsetof(struct args, cfg),
	  .more = "After a failover the memory is compared with a replay of what the guest did, and a line with the "
		  "verdict is printed." },
	{ 0 }
};
static const struct cli_program program = {
	.name = "ftsim",
	.help = "protect a simulated guest: memory and vCPUs that write it by a seed",
	.commands = commands,
};

int main(int argc, char **argv)
{
	static struct args args;

	sim_config_init(&args.sim);
	args.size_bytes = 64u << 20;
	return cli_main(&program, argc, argv, &args);
}
