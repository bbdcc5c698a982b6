/* SPDX-License-Identifier: MIT */
/* run.c - the life of one machine: QEMU, its session, the control socket, signals.
 *
 * The main thread waits for signals, QEMU's end and what other threads want; it alone opens and closes sessions.  Lines for
 * the user come from any thread and are printed here, since a session's thread must not wait for a terminal. */
#include "ftqemu.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "cli.h"
#include "runtime.h"

#define LINES_MAX 64 /* between two looks of the main thread */
#define TICK_MS 200
#define QUIT_MS 5000

struct run {
	const struct args *args;
	enum role role;
	struct ft_config cfg;
	struct machine *machine;
	struct ft_session *session;
	struct ft_session *
		promoted; /* an earlier one, of a secondary that was promoted: it goes on telling an old primary that it lost */
	struct ft_control *control;
	bool is_primary; /* of the session there is */
	FILE *log;
	int wake, signals;

	pthread_mutex_t lock; /* guards what follows */
	struct {
		enum ft_log_level level;
		char text[FT_ERROR_MAX];
	} line[LINES_MAX];
	unsigned nr_lines, nr_lost;
	bool want_quit, was_promoted;
	char want_peer[256]; /* "" or the secondary to protect with */
	enum ft_state state;
};

/* ---- lines for the user ------------------------------------------------------------------------- */

static void wake(struct run *r)
{
	uint64_t one = 1;

	if (write(r->wake, &one, sizeof(one)) < 0)
		return; /* it is awake then */
}

/* [any thread] */
static void say(void *user, enum ft_log_level level, const char *text)
{
	struct run *r = user;

	if (level == FT_LOG_DEBUG && !r->args->verbose)
		return;
	pthread_mutex_lock(&r->lock);
	if (r->nr_lines < LINES_MAX) {
		r->line[r->nr_lines].level = level;
		snprintf(r->line[r->nr_lines].text, sizeof(r->line[0].text), "%s", text);
		r->nr_lines++;
	} else {
		r->nr_lost++;
	}
	pthread_mutex_unlock(&r->lock);
	wake(r);
}

static void log_line(void *user, enum ft_log_level level, const char *module, const char *msg)
{
	char text[FT_ERROR_MAX];

	snprintf(text, sizeof(text), "%s: %s", module, msg);
	say(user, level, text);
}

static void print_line(struct run *r, enum ft_log_level level, const char *text)
{
	static const char *const mark[] = { "error: ", "warning: ", "", "" };
	struct timespec now;
	struct tm tm;
	char clock[32];

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	fprintf(r->log, "%s.%03ld ftqemu: %s%s\n", clock, now.tv_nsec / 1000000, mark[level], text);
	fflush(r->log);
}

static void print_lines(struct run *r)
{
	enum ft_log_level level;
	char text[FT_ERROR_MAX];
	unsigned i;

	for (i = 0;; i++) {
		pthread_mutex_lock(&r->lock);
		if (i >= r->nr_lines)
			break;
		level = r->line[i].level;
		memcpy(text, r->line[i].text, sizeof(text));
		pthread_mutex_unlock(&r->lock);
		print_line(r, level, text);
	}
	r->nr_lines = 0;
	i = r->nr_lost;
	r->nr_lost = 0;
	pthread_mutex_unlock(&r->lock);
	if (i)
		fprintf(r->log, "(%u lines were lost)\n", i);
}

static int report(struct run *r, const struct ft_error *err)
{
	print_lines(r);
	print_line(r, FT_LOG_ERROR, err->msg);
	return err->code;
}

/* [a session's thread] */
static void on_event(void *user, const struct ft_event *event)
{
	struct run *r = user;
	char text[FT_ERROR_MAX];

	if (event->type != FT_EVENT_STATE)
		return;
	snprintf(text, sizeof(text), "%s%s%s", ft_state_name(event->state), event->reason[0] ? ": " : "",
		 event->reason);
	say(r, FT_LOG_INFO, text);
	pthread_mutex_lock(&r->lock);
	r->state = event->state;
	r->was_promoted |= event->state == FT_STATE_ACTIVE;
	pthread_mutex_unlock(&r->lock);
	wake(r);
}

/* ---- sessions ----------------------------------------------------------------------------------- */

static void end_session(struct run *r)
{
	if (r->session)
		ft_session_stop(r->session);
	if (r->control)
		ft_control_set_session(r->control, NULL);
	machine_add_to(r->machine, NULL, NULL);
	ft_session_close(r->session);
	r->session = NULL;
}

static int begin_session(struct run *r, enum ft_role role, struct ft_error *err)
{
	char address[128];
	int rc;

	r->cfg.role = role;
	r->cfg.name = machine_name(r->machine);
	r->cfg.identity = machine_identity(r->machine);
	r->is_primary = role == FT_ROLE_PRIMARY;
	rc = ft_session_open(&r->session, &r->cfg, machine_ops(r->machine), r->machine, err);
	if (!rc)
		rc = machine_add_to(r->machine, r->session, err);
	if (!rc && r->control)
		ft_control_set_session(r->control, r->session);
	if (!rc)
		rc = ft_session_acquire(r->session, err);
	if (!rc && r->role == ROLE_PRIMARY) /* not before it is known that it runs nowhere else */
		rc = machine_start(r->machine, err);
	if (!rc)
		rc = ft_session_start(r->session, err);
	if (rc) {
		end_session(r);
		return rc;
	}
	if (role == FT_ROLE_SECONDARY && !ft_session_address(r->session, address, sizeof(address))) {
		char text[200];

		snprintf(text, sizeof(text), "listening at %s", address);
		say(r, FT_LOG_INFO, text);
	}
	return 0;
}

/* The promoted session keeps listening: a primary that was stopped, and comes back, must be told that it lost. */
static void set_aside(struct run *r)
{
	ft_control_set_session(r->control, NULL);
	r->promoted = r->session;
	r->session = NULL;
}

/* The machine runs here and is to be protected by @peer. */
static void protect(struct run *r, const char *peer)
{
	static char kept[256]; /* the config points at it for as long as the process lives */
	struct ft_error err = { 0 };

	snprintf(kept, sizeof(kept), "%s", peer);
	if (r->is_primary)
		end_session(r);
	else
		set_aside(r);
	r->cfg.peer = kept;
	if (begin_session(r, FT_ROLE_PRIMARY, &err))
		report(r, &err);
}

/* ---- control socket ----------------------------------------------------------------------------- */

static int refuse(struct ft_error *err, int code, const char *text)
{
	err->code = code;
	snprintf(err->msg, sizeof(err->msg), "%s", text);
	return code;
}

/* [control thread] */
static int command_protect(struct run *r, const json_t *args, json_t **reply, struct ft_error *err)
{
	const char *peer = json_string_value(json_object_get(args, "peer"));
	bool ok;

	if (!peer || !*peer || strlen(peer) >= sizeof(r->want_peer))
		return refuse(err, -EINVAL, "protect: where does the secondary listen? (\"peer\": \"HOST:PORT\")");
	pthread_mutex_lock(&r->lock);
	ok = r->is_primary ? r->state != FT_STATE_FENCED : r->state == FT_STATE_ACTIVE;
	if (ok)
		snprintf(r->want_peer, sizeof(r->want_peer), "%s", peer);
	pthread_mutex_unlock(&r->lock);
	if (!ok)
		return refuse(err, -EBUSY, "protect: the machine does not run here");
	wake(r);
	*reply = json_pack("{s:s}", "peer", peer);
	return *reply ? 0 : refuse(err, -ENOMEM, "no memory");
}

/* As `machine` shows them. */
static json_t *list_nics(struct run *r)
{
	json_t *list = json_array();
	struct nics_figures f;

	for (unsigned i = 0; machine_nic(r->machine, i, &f); i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "name", f.name, "held-bytes",
						      (json_int_t)f.held_bytes, "dropped-frames",
						      (json_int_t)f.dropped_frames));
	return list;
}

static json_t *list_disks(struct run *r)
{
	json_t *list = json_array();
	struct machine_disk d;

	for (unsigned i = 0; machine_disk(r->machine, i, &d); i++) {
		json_t *one = json_pack("{s:s, s:I}", "name", d.name, "size", (json_int_t)d.size);

		if (d.is_standby) {
			json_object_set_new(one, "journal-bytes", json_integer((json_int_t)d.journal_bytes));
		} else {
			json_object_set_new(one, "dirty-bytes", json_integer((json_int_t)d.dirty_bytes));
			json_object_set_new(
				one, "copied-percent",
				json_integer(d.size ? (json_int_t)((d.size - d.dirty_bytes) * 100 / d.size) : 100));
			json_object_set_new(one, "held-bytes", json_integer((json_int_t)d.held_bytes));
		}
		json_array_append_new(list, one);
	}
	return list;
}

static int command(void *user, const char *cmd, const json_t *args, json_t **reply, struct ft_error *err)
{
	struct run *r = user;

	if (!strcmp(cmd, "protect"))
		return command_protect(r, args, reply, err);
	if (!strcmp(cmd, "quit")) {
		pthread_mutex_lock(&r->lock);
		r->want_quit = true;
		pthread_mutex_unlock(&r->lock);
		wake(r);
		*reply = json_object();
		return *reply ? 0 : refuse(err, -ENOMEM, "no memory");
	}
	if (!strcmp(cmd, "machine")) {
		*reply = json_pack("{s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "name", machine_name(r->machine),
				   "pid", (json_int_t)machine_pid(r->machine), "run-dir", machine_run_dir(r->machine),
				   "state-method", devstate_method_name(machine_method(r->machine)), "tracking",
				   machine_tracking(r->machine), "held-bytes", (json_int_t)machine_held(r->machine),
				   "dropped-frames", (json_int_t)machine_dropped(r->machine), "nics", list_nics(r),
				   "disks", list_disks(r));
		return *reply ? 0 : refuse(err, -ENOMEM, "no memory");
	}
	return -ENOSYS;
}

static int open_control(struct run *r, struct ft_error *err)
{
	char path[256];
	size_t used;
	int rc = 0;

	if (r->args->control)
		snprintf(path, sizeof(path), "%s", r->args->control);
	else
		rc = runtime_socket(path, sizeof(path), machine_name(r->machine), err);
	if (!rc)
		rc = ft_control_open(&r->control, path, command, r, err);
	used = strlen(err->msg);
	if (rc == -EADDRINUSE)
		snprintf(err->msg + used, sizeof(err->msg) - used,
			 " (two machines of one name on one host: give one another --name or --control)");
	return rc;
}

/* ---- signals ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t kill_pidfd = -1;

static void at_once(int signal)
{
	(void)signal;
	if (kill_pidfd >= 0)
		syscall(SYS_pidfd_send_signal, (int)kill_pidfd, SIGKILL, NULL, 0);
	_exit(130);
}

/* From here on a second ^C ends everything. */
static void arm_second(struct run *r)
{
	struct sigaction sa = { .sa_handler = at_once };
	sigset_t set;

	kill_pidfd = r->role == ROLE_ATTACH ? -1 : machine_pidfd(r->machine);
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static int open_signals(struct run *r)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error that is told */
	r->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return r->signals < 0 || r->wake < 0 ? -errno : 0;
}

/* ---- the life ----------------------------------------------------------------------------------- */

/* What other threads want; true: end. */
static bool serve_wants(struct run *r)
{
	char peer[256];
	bool quit;

	pthread_mutex_lock(&r->lock);
	if (r->was_promoted && !r->want_peer[0] && r->args->then_secondary)
		snprintf(r->want_peer, sizeof(r->want_peer), "%s", r->args->then_secondary);
	r->was_promoted = false;
	memcpy(peer, r->want_peer, sizeof(peer));
	r->want_peer[0] = '\0';
	quit = r->want_quit;
	pthread_mutex_unlock(&r->lock);
	if (peer[0] && !quit)
		protect(r, peer);
	return quit;
}

static bool signalled(struct run *r)
{
	struct signalfd_siginfo info;

	return read(r->signals, &info, sizeof(info)) == sizeof(info);
}

/* Until QEMU ends (false) or we shall (true). */
static bool watch(struct run *r)
{
	struct pollfd p[] = { { .fd = r->signals, .events = POLLIN },
			      { .fd = machine_pidfd(r->machine), .events = POLLIN },
			      { .fd = r->wake, .events = POLLIN } };
	uint64_t count;
	int status;

	for (;;) {
		if (poll(p, 3, TICK_MS) < 0 && errno != EINTR)
			return true;
		if (p[2].revents && read(r->wake, &count, sizeof(count)) < 0 && errno != EAGAIN)
			return true;
		print_lines(r);
		if (machine_ended(r->machine, &status))
			return false;
		if (signalled(r) || serve_wants(r))
			return true;
		machine_pump(r->machine);
	}
}

static bool is_fenced(struct run *r)
{
	bool fenced;

	pthread_mutex_lock(&r->lock);
	fenced = r->is_primary && r->state == FT_STATE_FENCED;
	pthread_mutex_unlock(&r->lock);
	return fenced;
}

/* QEMU died under a guest that was protected.  That is what the standby is for: no goodbye, nothing that is held leaves. */
static void give_up(struct run *r, int status)
{
	char text[FT_ERROR_MAX];

	snprintf(text, sizeof(text),
		 "QEMU has crashed, status %d; the secondary can go on from the last checkpoint (ftctl failover)",
		 status);
	say(r, FT_LOG_ERROR, text);
	print_lines(r);
	ft_control_close(r->control);
	machine_abandon(r->machine);
	_exit(status ? status : EXIT_SESSION);
}

/* Orderly: the session first, so that the secondary is told; then QEMU, unless it was never ours. */
static int finish(struct run *r, bool wanted)
{
	const char *reason = machine_end_reason(r->machine);
	bool waited, fenced = is_fenced(r);
	char text[200];
	int status = 0;

	pthread_mutex_lock(&r->lock);
	waited = !r->is_primary && r->state != FT_STATE_ACTIVE;
	pthread_mutex_unlock(&r->lock);
	arm_second(r);
	if (!wanted) {
		machine_ended(r->machine, &status);
		if (!*reason && !waited && r->session)
			give_up(r, status);
		snprintf(text, sizeof(text), "QEMU has ended%s%s%s, status %d", *reason ? " (" : "", reason,
			 *reason ? ")" : "", status);
		say(r, waited || status ? FT_LOG_ERROR : FT_LOG_INFO, text);
	}
	print_lines(r);
	end_session(r);
	ft_session_close(r->promoted);
	print_lines(r);
	if (wanted && r->role != ROLE_ATTACH) {
		machine_quit(r->machine, fenced ? 0 : QUIT_MS);
		return 0;
	}
	if (wanted)
		return 0;
	return waited ? EXIT_STANDBY : status;
}

static int live(struct run *r)
{
	struct ft_error err = { 0 };
	int rc = open_control(r, &err);

	if (!rc)
		rc = begin_session(r, r->role == ROLE_SECONDARY ? FT_ROLE_SECONDARY : FT_ROLE_PRIMARY, &err);
	if (rc) {
		report(r, &err);
		if (r->role != ROLE_ATTACH)
			machine_quit(r->machine, QUIT_MS);
		return EXIT_SESSION;
	}
	return finish(r, watch(r));
}

static int open_machine(struct run *r, char **qemu)
{
	const struct args *a = r->args;
	char base[256];
	struct machine_config config = {
		.name = a->name,
		.run_base = base,
		.qemu = r->role == ROLE_ATTACH ? NULL : qemu,
		.qmp_path = a->qmp,
		.pid = (pid_t)a->pid,
		.shim = a->shim,
		.console = a->console,
		.qemu_log = a->qemu_log,
		.method = a->state_method,
		.is_secondary = r->role == ROLE_SECONDARY,
		.unsafe_output = a->unsafe_output,
		.hold_bytes = a->hold_bytes,
		.net_hold_bytes = a->net_hold_bytes,
		.net_at_cap = a->net_at_cap,
		.disk_hold_bytes = a->disk_hold_bytes,
		.disk_journal = a->disk_journal,
		.disk_durability = a->disk_durability,
		.say = say,
		.on_event = on_event,
		.user = r,
	};
	struct ft_error err = { 0 };
	int rc = runtime_make_directory(&err);

	if (!rc)
		rc = runtime_directory(base, sizeof(base), &err);
	if (!rc)
		rc = machine_open(&r->machine, &config, &err);
	if (rc)
		report(r, &err);
	return rc;
}

static int open_log(struct run *r)
{
	r->log = stderr;
	if (!r->args->log)
		return 0;
	r->log = fopen(r->args->log, "ae");
	if (r->log)
		return 0;
	cli_errno(-errno, "%s", r->args->log);
	return -EIO;
}

int run_machine(const struct args *args, enum role role, char **qemu)
{
	struct run r = { .args = args, .role = role, .cfg = args->cfg, .wake = -1, .signals = -1 };
	int status = EXIT_REFUSED;

	pthread_mutex_init(&r.lock, NULL);
	if (open_log(&r))
		return EXIT_REFUSED;
	if (open_signals(&r)) {
		cli_errno(-errno, "signals");
	} else if (!open_machine(&r, qemu)) {
		ft_log_set(log_line, &r, args->verbose ? FT_LOG_DEBUG : FT_LOG_WARN);
		status = live(&r);
		ft_log_set(NULL, NULL, FT_LOG_ERROR);
	}
	ft_control_close(r.control);
	machine_close(r.machine);
	print_lines(&r);
	if (r.wake >= 0)
		close(r.wake);
	if (r.signals >= 0)
		close(r.signals);
	if (r.log != stderr)
		fclose(r.log);
	pthread_mutex_destroy(&r.lock);
	return status;
}
