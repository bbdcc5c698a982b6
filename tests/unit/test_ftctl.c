/* SPDX-License-Identifier: MIT */
/* test_ftctl.c - the program itself, against a control socket over a fake session: what it prints, and its exit status.
 * `top` is also run on a pseudo terminal, to see that the terminal is given back. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include "base/clock.h"
#include "base/err.h"
#include "control.h"
#include "fake_session.h"

static char dir[] = "/tmp/ft-test-ftctl-XXXXXX", path[64], ftctl[512], out[65536];
static char given_path[80], *given = given_path; /* "-s PATH" */
static struct fake_session fake;
static struct ft_control *control;
static const char *machine_text; /* what the command `machine` answers; NULL: there is none */

/* The process's own commands: says what it got. */
static int own_command(void *user, const char *cmd, const struct json_t *args, struct json_t **reply,
		       struct ft_error *err)
{
	(void)user;
	if (strcmp(cmd, "protect") == 0 || strcmp(cmd, "frobnicate") == 0) {
		*reply = json_deep_copy(args);
		return 0;
	}
	if (strcmp(cmd, "machine") == 0 && machine_text) {
		*reply = json_loads(machine_text, 0, NULL);
		return 0;
	}
	(void)err;
	return -ENOSYS;
}

static void serve(void)
{
	char self[400];
	struct ft_error err = { 0 };
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	cr_assert_gt(n, 0);
	self[n] = '\0';
	snprintf(ftctl, sizeof(ftctl), "%s/../tools/ftctl/ftctl", dirname(self));
	cr_assert_eq(access(ftctl, X_OK), 0, "%s", ftctl);
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	snprintf(given_path, sizeof(given_path), "-s %s", path);
	fake_init(&fake, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
	cr_assert_eq(control_open(&control, path, &fake_ops, own_command, NULL, &err), 0, "%s", err.msg);
	ft_control_set_session(control, fake_handle(&fake));
}

static void end(void)
{
	ft_control_close(control);
	fake_destroy(&fake);
	rmdir(dir);
}

TestSuite(ftctl, .init = serve, .fini = end, .timeout = 120);

/* Runs it with @args; its output, both kinds, is in out. */
static int run(const char *args)
{
	char command[1024];
	FILE *f;
	size_t n;
	int status;

	snprintf(command, sizeof(command), "'%s' %s %s 2>&1", ftctl, given, args);
	f = popen(command, "r");
	cr_assert(f);
	n = fread(out, 1, sizeof(out) - 1, f);
	out[n] = '\0';
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *args, int status, const char *part)
{
	int got = run(args);

	cr_expect_eq(got, status, "%s: exit status %d", args, got);
	cr_expect(strstr(out, part), "%s prints: %s", args, out);
}

Test(ftctl, status)
{
	char line[64];

	expect("status", 0, "web1: primary, protected for 1 min 5 s: first epoch committed\n");
	cr_expect(strstr(out, "  protected    yes\n"), "%s", out);
	cr_expect(strstr(out, "  epoch        1,002 running, 1,001 sent, 1,000 acked, 999 applied\n"), "%s", out);
	cr_expect(strstr(out, "  interval     50 ms; last ended by interval\n"), "%s", out);
	cr_expect(strstr(out, "  capture      in the pause (copy)\n"), "%s", out);
	strcpy(fake.status.capture, "cow");
	expect("status", 0, "  capture      copy on write (cow)\n");
	strcpy(fake.status.skip_same, "on");
	expect("status", 0, "  skip same    all pages are looked at (on)\n");
	strcpy(fake.status.skip_same, "off");
	expect("status", 0, "  skip same    no (off)\n");
	strcpy(fake.status.skip_same, "sample");
	expect("status", 0, "  skip same    a sample is looked at, to find out whether it is worth it (sample)\n");
	snprintf(line, sizeof(line), "; %d pages were there already\n", 100 + FT_COUNTER_SAME_PAGES);
	cr_expect(strstr(out, line), "%s", out);
	strcpy(fake.status.interval_mode, "output-delay");
	strcpy(fake.status.interval_reason, "link");
	strcpy(fake.status.epoch_end, "watermark");
	fake.status.interval_now_ns = 12000000;
	fake.status.watermark_pages = 4500;
	expect("status", 0,
	       "  interval     12.0 ms, found for output-delay (link), at most 4,500 dirty pages; last ended by "
	       "watermark\n");
	cr_expect(strstr(out, "  pause        p50 2.00 us, p99 9.00 us, max 10.0 us\n"), "%s", out);
	cr_expect(strstr(out, "  memory       16.0 MiB of 256 MiB\n"), "%s", out);
	cr_expect(strstr(out, "  bottleneck   interval\n"), "%s", out);
	fake.status.state = FT_STATE_SYNCING;
	fake.status.is_protected = false;
	fake.status.sync_round = 2;
	fake.status.sync_pages_done = 1000;
	fake.status.sync_pages_total = 4000;
	expect("status", 0, "  full copy    round 2, 1,000 of 4,000 pages (25%)\n");
	cr_expect(strstr(out, "  protected    NO\n"), "%s", out);
	fake.status.role = FT_ROLE_SECONDARY;
	fake.status.state = FT_STATE_STANDBY;
	expect("status", 0, "web1: secondary, standby for");
	cr_expect(strstr(out, "  epoch        1,000 acked, 999 applied\n"), "%s", out);
	cr_expect(strstr(out, "  transport    tcp\n"), "%s", out);
	cr_expect_null(strstr(out, "pinned"), "%s", out);
	cr_expect(strstr(out, "  generation   3\n"), "%s", out);
	cr_expect_null(strstr(out, "state file"), "%s", out);
}

Test(ftctl, status_of_the_state_file)
{
	strcpy(fake.status.state_file, "/var/lib/ft/web1.state");
	strcpy(fake.status.state_file_says, "standby");
	expect("status", 0, "  state file   /var/lib/ft/web1.state: standby\n");
	cr_expect_null(strstr(out, "written"), "%s", out);
	strcpy(fake.status.state_file_error, "state file /var/lib/ft/web1.state: cannot be written: No space left");
	expect("status", 0, "  written      NO: state file /var/lib/ft/web1.state: cannot be written: No space left\n");
	expect("status --json", 0, "\"state_file_says\": \"standby\"");
	cr_expect(strstr(out, "\"state_file_error\": \"state file /var/lib"), "%s", out);
}

Test(ftctl, status_of_the_machine)
{
	expect("status", 0, "  bottleneck   interval\n");
	cr_expect_null(strstr(out, "machine"), "no word of a command that the process does not have: %s", out);
	machine_text = "{\"nics\": [{\"name\": \"ft-net0\", \"held-bytes\": 2048, \"dropped-frames\": 0},"
		       " {\"name\": \"ft-net1\", \"held-bytes\": 0, \"dropped-frames\": 12}],"
		       "\"disks\": [{\"name\": \"virtio0\", \"size\": 8388608, \"dirty-bytes\": 2097152, "
		       "\"copied-percent\": 75},"
		       " {\"name\": \"ide0-hd0\", \"size\": 8388608, \"journal-bytes\": 4096}]}";
	expect("status", 0, "  network      ft-net0: 2.00 KiB held\n");
	cr_expect(strstr(out, "  network      ft-net1: 0 B held, 12 frames DROPPED\n"), "%s", out);
	cr_expect(strstr(out, "  disk         virtio0: 8.00 MiB, 75% at the secondary, 2.00 MiB still to be sent\n"),
		  "%s", out);
	cr_expect(strstr(out, "  disk         ide0-hd0: 8.00 MiB, 4.00 KiB in the journal\n"), "%s", out);
}

static void set_rdma(struct ft_status *s)
{
	snprintf(s->transport, sizeof(s->transport), "rdma");
	snprintf(s->rdma_device, sizeof(s->rdma_device), "rxe0");
	snprintf(s->rdma_gid, sizeof(s->rdma_gid), "fe80::5054:ff:fe12:3456");
	snprintf(s->rdma_registration, sizeof(s->rdma_registration), "chunks");
	s->rdma_port = 1;
	s->rdma_mtu = 1024;
	s->rdma_lanes = 2;
	s->rdma_credits = 8;
	s->rdma_chunk_bytes = 4u << 20;
	s->rdma_pinned_bytes = 12u << 20;
	s->rdma_peer_pinned_bytes = 40u << 20;
	s->rdma_peer_pin_budget = 64u << 20;
	s->rdma_registrations = 1234;
	s->rdma_deregistrations = 1231;
	s->rdma_unpins = 57;
}

Test(ftctl, status_with_a_witness)
{
	const json_t *w;
	json_t *j;

	strcpy(fake.status.witness, "file:/srv/ft/web1");
	strcpy(fake.status.lease, "held");
	strcpy(fake.status.lease_holder, "a:1:2");
	fake.status.lease_generation = 4;
	fake.status.lease_left_ns = 1500000000;
	expect("status", 0, "  lease        held for 1.50 s; file:/srv/ft/web1 has generation 4 of a:1:2\n");
	cr_expect_null(strstr(out, "NO ANSWER"), "%s", out);
	cr_expect_eq(run("status --json"), 0);
	j = json_loads(out, 0, NULL);
	cr_assert(j, "%s", out);
	w = json_object_get(j, "witness");
	cr_expect_str_eq(json_string_value(json_object_get(w, "lease")), "held");
	cr_expect_str_eq(json_string_value(json_object_get(w, "holder")), "a:1:2");
	cr_expect_eq(json_integer_value(json_object_get(w, "generation")), 4);
	cr_expect_eq(json_integer_value(json_object_get(w, "left_ns")), 1500000000);
	json_decref(j);
	strcpy(fake.status.lease, "none");
	strcpy(fake.status.witness_trouble, "disk full");
	fake.status.lease_holder[0] = '\0';
	fake.status.lease_left_ns = 0;
	expect("status", 0, "  lease        not ours; file:/srv/ft/web1 has generation 4 of nobody\n");
	cr_expect(strstr(out, "  witness      NO ANSWER: disk full\n"), "%s", out);
}

Test(ftctl, status_over_rdma)
{
	json_t *j, *rdma;

	set_rdma(&fake.status);
	expect("status", 0,
	       "  transport    rdma, device rxe0 port 1, GID fe80::5054:ff:fe12:3456, MTU 1024; 2 lanes, 8 credits\n");
	cr_expect(strstr(out, "  pinned       12.0 MiB here, 40.0 MiB of 64.0 MiB at the peer; chunks of 4.00 MiB\n"),
		  "%s", out);
	cr_expect(strstr(out, "  registered   1,234, 1,231 ended, 57 of these to keep within a budget\n"), "%s", out);
	cr_expect_eq(run("status --json"), 0);
	j = json_loads(out, 0, NULL);
	cr_assert(j, "%s", out);
	cr_expect_str_eq(json_string_value(json_object_get(j, "transport")), "rdma");
	rdma = json_object_get(j, "rdma");
	cr_expect_eq(json_object_size(rdma), 15);
	cr_expect_str_eq(json_string_value(json_object_get(rdma, "device")), "rxe0");
	cr_expect_str_eq(json_string_value(json_object_get(rdma, "gid")), "fe80::5054:ff:fe12:3456");
	cr_expect_str_eq(json_string_value(json_object_get(rdma, "registration")), "chunks");
	cr_expect_eq(json_integer_value(json_object_get(rdma, "mtu")), 1024);
	cr_expect_eq(json_integer_value(json_object_get(rdma, "peer_pin_budget")), 64 << 20);
	cr_expect_eq(json_integer_value(json_object_get(rdma, "unpins")), 57);
	json_decref(j);
	snprintf(fake.status.rdma_registration, sizeof(fake.status.rdma_registration), "whole");
	fake.status.rdma_lanes = 1;
	expect("status", 0, "at the peer; whole\n");
	cr_expect(strstr(out, "; 1 lane, 8 credits\n"), "%s", out);
}

Test(ftctl, json)
{
	json_t *j;

	cr_expect_eq(run("status --json"), 0);
	j = json_loads(out, 0, NULL);
	cr_assert(j, "%s", out);
	cr_expect_str_eq(json_string_value(json_object_get(j, "state")), "protected");
	json_decref(j);
	cr_expect_eq(run("--json stats"), 0);
	j = json_loads(out, 0, NULL);
	cr_assert(j, "%s", out);
	cr_expect_eq(json_object_size(json_object_get(j, "dist")), FT_METRIC_COUNT);
	json_decref(j);
	fake.outcome = FT_FAILOVER_NO_IMAGE;
	cr_expect_eq(run("--json failover 2>/dev/null; exit $?"), 4);
}

Test(ftctl, stats)
{
	expect("stats", 0,
	       "pause                  1000      1.00 us      2.00 us      2.00 us      9.00 us      10.0 us\n");
	cr_expect(strstr(out, "epochs                  100\n"), "%s", out);
}

Test(ftctl, settings)
{
	expect("set interval 25", 0, "interval           25\n");
	cr_expect_eq(fake.cfg.interval_ms, 25);
	expect("get interval", 0, "25\n");
	expect("get", 0, "on-loss            continue\n");
	expect("options", 0, "interval           50        how long the guest runs between two checkpoints (live)\n");
	expect("set interval soon", 2, "ftctl: interval: 'soon' is not a time such as 50, 50ms or 2s\n");
	expect("set lanes 2", 1, "cannot be changed while running");
	expect("set intervall 2", 2, "no setting 'intervall'");
	expect("set interval", 2, "set: needs NAME VALUE");
}

Test(ftctl, exit_status_of_a_failover)
{
	static const int status[] = { 0, 0, 5, 4, 3, 9, 1, 10 };

	for (enum ft_failover_outcome o = FT_FAILOVER_DONE; o <= FT_FAILOVER_NOT_GRANTED; o++) {
		fake.outcome = o;
		cr_expect_eq(run("failover"), status[o], "outcome %d", (int)o);
	}
	fake.outcome = FT_FAILOVER_DONE;
	expect("failover", 0, "done: the machine runs here from epoch 999, after 2.00 ms\n");
	cr_expect(strstr(out, "  device state loaded     2.00 ms\n"), "%s", out);
	cr_expect(!fake.was_forced);
	fake.outcome = FT_FAILOVER_ALREADY;
	expect("failover --force", 0, "already done: the machine runs here since epoch 999\n");
	cr_expect(fake.was_forced);
	fake.outcome = FT_FAILOVER_PEER_ALIVE;
	expect("failover", 3, "ftctl: refused for the test's reason\n");
}

Test(ftctl, acting)
{
	expect("checkpoint", 0, "epoch 1002 is safe on the secondary\n");
	cr_expect_eq(run("checkpoint -q"), 0);
	cr_expect_str_empty(out);
	fake_hold_checkpoint(&fake, true);
	expect("checkpoint -t 50", 8, "not acknowledged");
	fake_hold_checkpoint(&fake, false);
	expect("pause", 0, "the guest is paused\n");
	cr_expect(fake.is_paused);
	expect("resume", 0, "the guest runs\n");
	cr_expect(!fake.is_paused);
	expect("wait standby protected", 0, "protected\n");
	expect("wait standby -t 100", 8, "not reached within 100 ms");
	expect("wait nonsense", 2, "'nonsense'");
	expect("stop", 0, "replication has ended");
	cr_expect(fake.is_stopped);
	expect("checkpoint", 6, "not protected");
	ft_control_set_session(control, NULL);
	expect("status", 6, "no session");
}

Test(ftctl, commands_of_the_process)
{
	expect("protect h:1 --json", 0, "\"peer\": \"h:1\"");
	expect("protect", 0, "protection begins\n");
	expect("frobnicate a=1 b=x=y", 0, "\"b\": \"x=y\"");
	expect("frobnicate a", 2, "frobnicate: 'a' is not KEY=VALUE");
	expect("statsu", 2, "there is no command 'statsu'");
}

Test(ftctl, no_process)
{
	ft_control_close(control);
	control = NULL;
	expect("status", 7, "/s: no process serves it\n");
	expect("top -c 1", 7, "/s: no process serves it\n");
}

/* Without -s and -n: the one machine that is served, whatever killed processes left behind. */
Test(ftctl, finds_the_only_machine)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ft_control *one, *two;
	struct ft_error err = { 0 };
	char two_path[80];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	setenv("FT_RUNTIME_DIR", dir, 1);
	given = "";
	expect("ping", 7, "ftctl: no process serves a socket in /tmp/ft-test-ftctl-");
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/dead.sock", dir);
	cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(fd);
	snprintf(two_path, sizeof(two_path), "%s/one.sock", dir);
	cr_assert_eq(control_open(&one, two_path, &fake_ops, NULL, NULL, &err), 0, "%s", err.msg);
	expect("ping", 0, "\"session\": false");
	expect("-n one ping", 0, "\"session\": false");
	expect("-n dead ping", 7, "/dead.sock: no process serves it");
	snprintf(two_path, sizeof(two_path), "%s/two.sock", dir);
	cr_assert_eq(control_open(&two, two_path, &fake_ops, NULL, NULL, &err), 0, "%s", err.msg);
	expect("ping", 2, "ftctl: which machine? -n NAME says it; there is ");
	setenv("FT_SOCKET", two_path, 1);
	expect("ping", 0, "\"session\": false");
	ft_control_close(one);
	ft_control_close(two);
	unlink(a.sun_path);
}

Test(ftctl, top_in_a_pipe)
{
	int lines = 0;

	expect("top -d 100 -c 3", 0, "web1             protected               1000");
	for (char *c = out; *c; c++)
		lines += *c == '\n';
	cr_expect_eq(lines, 4);
	cr_expect_null(strchr(out, '\033'));
	expect("top -d 100 -c 1 --json", 0, "{\"status\":{");
	expect("top -d 99", 2, "at least 100 ms");
}

/* ---- top on a terminal -------------------------------------------------------------------------- */

/* Reads the terminal until @part has come. */
static void await(int fd, const char *part)
{
	uint64_t deadline = deadline_in_ms(30000);
	size_t len = strlen(out);

	while (!strstr(out, part) && now_ns() < deadline && len < sizeof(out) - 1) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n = poll(&p, 1, 100) > 0 ? read(fd, out + len, sizeof(out) - 1 - len) : 0;

		if (n < 0)
			break;
		len += (size_t)n;
		out[len] = '\0';
	}
	cr_assert(strstr(out, part), "'%s' is missing in: %.800s", part, out);
}

static pid_t start_top(int *fd, struct termios *before)
{
	struct winsize ws = { .ws_row = 10, .ws_col = 40 };
	int slave;
	pid_t pid;

	out[0] = '\0';
	cr_assert_eq(openpty(fd, &slave, NULL, NULL, &ws), 0);
	cr_assert_eq(tcgetattr(slave, before), 0);
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		close(*fd);
		login_tty(slave);
		execl(ftctl, "ftctl", "-s", path, "top", "-d", "100", (char *)NULL);
		_exit(99);
	}
	close(slave);
	await(*fd, "\033[?1049h");
	await(*fd, "web1: primary, protected");
	return pid;
}

static void expect_end(pid_t pid, int fd, const struct termios *before, int status)
{
	struct termios after;
	int got;

	await(fd, "\033[?25h\033[?1049l");
	cr_assert_eq(waitpid(pid, &got, 0), pid);
	cr_expect(WIFEXITED(got) && WEXITSTATUS(got) == status, "%x", (unsigned)got);
	cr_assert_eq(tcgetattr(fd, &after), 0);
	cr_expect_eq(after.c_lflag, before->c_lflag, "the terminal was not given back");
	close(fd);
}

Test(ftctl, top_ends_with_q)
{
	struct termios before, during;
	int fd;
	pid_t pid = start_top(&fd, &before);

	cr_assert_eq(tcgetattr(fd, &during), 0);
	cr_expect_neq(during.c_lflag, before.c_lflag);
	cr_expect_null(strstr(out, "first epoch committed"), "a line was not cut to 40 columns");
	cr_expect_null(strstr(out, "bottleneck"), "lines below the window were not cut");
	cr_assert_eq(write(fd, "q", 1), 1);
	expect_end(pid, fd, &before, 0);
}

Test(ftctl, top_follows_the_window)
{
	struct winsize larger = { .ws_row = 60, .ws_col = 120 };
	struct termios before;
	int fd;
	pid_t pid = start_top(&fd, &before);

	cr_assert_eq(ioctl(fd, TIOCSWINSZ, &larger), 0);
	await(fd, "first epoch committed");
	await(fd, "bottleneck");
	cr_assert_eq(write(fd, "q", 1), 1);
	expect_end(pid, fd, &before, 0);
}

Test(ftctl, top_ends_with_interrupt)
{
	struct termios before;
	int fd;
	pid_t pid = start_top(&fd, &before);

	cr_assert_eq(write(fd, "\003", 1), 1);
	expect_end(pid, fd, &before, 128 + SIGINT);
}

Test(ftctl, top_gives_the_terminal_back_while_it_is_stopped)
{
	struct termios before, stopped;
	int fd, got;
	pid_t pid = start_top(&fd, &before);

	cr_assert_eq(kill(pid, SIGTSTP), 0);
	cr_assert_eq(waitpid(pid, &got, WUNTRACED), pid);
	cr_expect(WIFSTOPPED(got));
	cr_assert_eq(tcgetattr(fd, &stopped), 0);
	cr_expect_eq(stopped.c_lflag, before.c_lflag);
	out[0] = '\0';
	cr_assert_eq(kill(pid, SIGCONT), 0);
	await(fd, "\033[?1049h");
	await(fd, "web1: primary");
	out[0] = '\0';
	cr_assert_eq(write(fd, "q", 1), 1);
	expect_end(pid, fd, &before, 0);
}

/* The process goes away and comes back. */
Test(ftctl, top_waits_for_a_process)
{
	struct termios before;
	struct ft_error err = { 0 };
	int fd;
	pid_t pid = start_top(&fd, &before);

	ft_control_close(control);
	control = NULL;
	await(fd, "/s: no process");
	out[0] = '\0';
	cr_assert_eq(control_open(&control, path, &fake_ops, own_command, NULL, &err), 0, "%s", err.msg);
	ft_control_set_session(control, fake_handle(&fake));
	await(fd, "web1: primary");
	cr_assert_eq(write(fd, "q", 1), 1);
	expect_end(pid, fd, &before, 0);
}
