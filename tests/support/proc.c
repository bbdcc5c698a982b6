/* SPDX-License-Identifier: MIT */
/* proc.c - see proc.h.
 * A program of its own, not a mere fork: the parent has threads, and a sanitizer's runtime does not live on in their child. */
#include "proc.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "clock.h"
#include "pair.h"

#define OUTPUT_FD 3

/* ---- the child ---- */

struct child {
	struct pair pair; /* one half of it is used */
	struct ft_session *session;
	struct sim *sim;
};

static void answer_status(struct child *c)
{
	struct ft_status st;

	ft_session_status(c->session, &st);
	printf("status %s steps=%" PRIu64 " paused=%d protected=%d longest=%" PRIu64 " reason=%s\n",
	       ft_state_name(st.state), sim_steps(c->sim), sim_is_paused(c->sim), st.is_protected,
	       sim_longest_pause_ns(c->sim) / NS_PER_MS, st.reason);
}

static void answer_failover(struct child *c, unsigned flags)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	int r = ft_session_failover(c->session, flags, &res, &err);

	printf("failover %d outcome=%d epoch=%" PRIu64 " ms=%" PRIu64 " %s\n", r, (int)res.outcome, res.epoch,
	       res.total_ns / NS_PER_MS, r ? err.msg : "");
}

static void answer_verify(struct child *c)
{
	struct ft_error err = { 0 };
	uint64_t steps = 0;
	int r = sim_verify(c->sim, &steps, NULL, &err);

	printf("verify %d steps=%" PRIu64 " %s\n", r, steps, r ? err.msg : "");
}

static void serve_commands(struct child *c)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "status") == 0)
			answer_status(c);
		else if (strcmp(line, "failover") == 0)
			answer_failover(c, 0);
		else if (strcmp(line, "force") == 0)
			answer_failover(c, FT_FAILOVER_FORCE);
		else if (strcmp(line, "verify") == 0)
			answer_verify(c);
		else if (strcmp(line, "quit") == 0)
			return;
	}
}

static int child_main(const char *role, const char *where, const char *settings)
{
	struct child c = { 0 };
	struct pair_options opt;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	pair_options_init(&opt);
	opt.primary = opt.secondary = settings;
	opt.sim.client_fd = OUTPUT_FD;
	opt.listen = strcmp(where, "-") ? where : NULL;
	pair_open_sims(&c.pair, &opt);
	if (strcmp(role, "primary") == 0) {
		pair_start_primary(&c.pair, where);
		c.session = c.pair.primary;
		c.sim = c.pair.primary_sim;
		printf("ready\n");
	} else {
		pair_start_secondary(&c.pair);
		c.session = c.pair.secondary;
		c.sim = c.pair.secondary_sim;
		printf("ready %s\n", c.pair.address);
	}
	serve_commands(&c);
	pair_close(&c.pair);
	printf("bye\n");
	return 0;
}

bool proc_main(int argc, char **argv, int *status)
{
	if (argc != 5 || strcmp(argv[1], "--role") != 0)
		return false;
	*status = child_main(argv[2], argv[3], argv[4]);
	return true;
}

/* ---- the parent ---- */

/* Not fork(): it runs the handlers of libft's jemalloc, which takes all its locks, more than ThreadSanitizer can count. */
static pid_t spawn_child(int in, int out, int output, char *const argv[])
{
	posix_spawn_file_actions_t fa;
	pid_t pid = -1;
	int r;

	/* above the numbers they are going to: a dup2 must not close one of them */
	in = fcntl(in, F_DUPFD_CLOEXEC, 10);
	out = fcntl(out, F_DUPFD_CLOEXEC, 10);
	output = fcntl(output, F_DUPFD_CLOEXEC, 10);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, in, 0);
	posix_spawn_file_actions_adddup2(&fa, out, 1);
	posix_spawn_file_actions_adddup2(&fa, output, OUTPUT_FD);
	posix_spawn_file_actions_addclosefrom_np(&fa, OUTPUT_FD + 1);
	r = posix_spawn(&pid, "/proc/self/exe", &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	CHECK(r == 0, "posix_spawn: %s", strerror(r));
	close(in);
	close(out);
	close(output);
	return pid;
}

void proc_start(struct proc *p, const char *role, const char *where, const char *settings)
{
	char *argv[] = { "child",
			 "--role",
			 (char *)role,
			 (char *)(where ? where : "-"),
			 (char *)(settings ? settings : "heartbeat=50"),
			 NULL };
	int in[2], out[2], output[2];

	memset(p, 0, sizeof(*p));
	CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0, "pipe: %s",
	      strerror(errno));
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	fcntl(output[1], F_SETFL, O_NONBLOCK);
	fcntl(output[1], F_SETPIPE_SZ, 1 << 20);
	p->pid = spawn_child(in[0], out[1], output[1], argv);
	close(in[0]);
	close(out[1]);
	close(output[1]);
	p->in = in[1];
	p->out = out[0];
	p->output = output[0];
}

static bool take_line(struct proc *p, char *line, size_t size)
{
	char *end = memchr(p->buf, '\n', p->len);
	size_t n;

	if (!end)
		return false;
	n = (size_t)(end - p->buf);
	snprintf(line, size, "%.*s", (int)n, p->buf);
	p->len -= n + 1;
	memmove(p->buf, end + 1, p->len);
	return true;
}

bool proc_line(struct proc *p, char *line, size_t size, unsigned timeout_ms)
{
	uint64_t deadline = deadline_in_ms(timeout_ms);

	while (!take_line(p, line, size)) {
		struct pollfd pfd = { .fd = p->out, .events = POLLIN };
		ssize_t n;

		if (p->len == sizeof(p->buf) || poll(&pfd, 1, deadline_poll_ms(deadline)) <= 0)
			return false;
		n = read(p->out, p->buf + p->len, sizeof(p->buf) - p->len);
		if (n <= 0)
			return false;
		p->len += (size_t)n;
	}
	return true;
}

void proc_expect(struct proc *p, const char *start, char *rest, size_t size)
{
	char line[1024];
	size_t n = strlen(start);

	do
		CHECK(proc_line(p, line, sizeof(line), WAIT_MS), "process %d: no line '%s ...' came", (int)p->pid,
		      start);
	while (strncmp(line, start, n) != 0);
	snprintf(rest, size, "%s", line[n] == ' ' ? line + n + 1 : line + n);
}

void proc_ask(struct proc *p, const char *command, const char *start, char *rest, size_t size)
{
	char line[64];
	int n = snprintf(line, sizeof(line), "%s\n", command);

	CHECK(write(p->in, line, (size_t)n) == n, "process %d: does not take '%s'", (int)p->pid, command);
	proc_expect(p, start, rest, size);
}

void proc_signal(struct proc *p, int sig)
{
	CHECK(kill(p->pid, sig) == 0, "kill: %s", strerror(errno));
}

void proc_drain(struct proc *p, struct sim_client *client)
{
	char buf[4096];
	ssize_t n;

	while ((n = read(p->output, buf, sizeof(buf))) > 0)
		sim_client_feed(client, buf, (size_t)n);
}

void proc_end(struct proc *p)
{
	if (p->pid <= 0)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	close(p->in);
	close(p->out);
	close(p->output);
	p->pid = 0;
}
