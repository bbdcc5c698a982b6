/* SPDX-License-Identifier: MIT */
/* machine.c - see machine.h.
 *
 * Made by us: memory is a memfd of ours that QEMU inherits, the userfaultfd comes from the shim through a socket, the guest
 * waits (-S) until everything that could be a reason to refuse has been looked at.
 * Taken over: the same things are fetched from the running process.  machine.json in the run directory says to a later ftqemu
 * which consoles belong to it. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console.h"
#include "identity.h"
#include "inject.h"
#include "launch.h"
#include "qmp.h"
#include "tracker.h"

#define START_MS 30000
#define ENDING_MS 1000
#define QMP_MS 10000
#define ESTIMATE_NS (5 * UTIL_NS_PER_MS) /* an estimate is good for so long, and for 20 times what it cost */

struct machine {
	struct machine_config config;
	char name[FT_NAME_MAX];
	char run_dir[256], qmp_path[320], log[512];
	bool has_run_dir; /* machine.json is kept there */
	int lock_fd;

	pid_t pid;
	int pidfd;
	bool is_child, has_ended, was_started;
	bool found_paused; /* attach: stopped as one of our pauses stops it */
	int status;
	char end_reason[64]; /* written while QMP events are taken */

	int ram_fd, uffd;
	void *ram;
	uint64_t ram_bytes;

	struct cmdline cmdline;
	struct qmp *qmp;
	struct devstate *state;
	struct tracker *tracker;
	struct consoles *consoles;
	char *identity;
	int guard;

	_Atomic(struct ft_session *) session; /* for early cuts from the console thread */
	uint32_t region;
	/* session's epoch thread */
	bool is_chosen, is_paused; /* is_chosen: the way to take device state was tried */
	uint64_t estimate, estimate_until_ns;
};

static void say(struct machine *m, enum ft_log_level level, const char *fmt, ...) QEMU_PRINTF(3, 4);
static void say(struct machine *m, enum ft_log_level level, const char *fmt, ...)
{
	char text[FT_ERROR_MAX];
	va_list ap;

	if (!m->config.say)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	m->config.say(m->config.user, level, text);
}

/* ---- ops: primary ------------------------------------------------------------------------------- */

static int track_start(void *user, struct ft_error *err)
{
	struct machine *m = user;
	int rc = 0;

	if (!m->is_chosen) {
		rc = devstate_choose(m->state, err);
		if (rc)
			return rc;
		m->is_chosen = true;
		say(m, FT_LOG_INFO, "device state is taken by %s, pages are tracked by %s",
		    devstate_method_name(devstate_method(m->state)), tracker_method(m->tracker));
	}
	m->estimate_until_ns = 0;
	return tracker_arm(m->tracker, err);
}

static void track_stop(void *user)
{
	tracker_disarm(((struct machine *)user)->tracker);
}

struct collection {
	struct ft_dirty *dirty;
	uint32_t region;
	int rc;
};

static void add_pages(void *user, uint64_t first, uint64_t nr)
{
	struct collection *c = user;
	int rc = ft_dirty_add(c->dirty, c->region, first, nr);

	if (rc)
		c->rc = rc;
}

static int collect_present(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;
	struct collection c = { dirty, m->region, 0 };
	int rc = tracker_present(m->ram_fd, m->ram_bytes, add_pages, &c, err);

	return rc ? rc : c.rc ? fail_sys(err, c.rc, "pages of the guest") : 0;
}

static int collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;
	struct collection c = { dirty, m->region, 0 };
	int rc = tracker_collect(m->tracker, m->is_paused, add_pages, &c, err);

	m->estimate_until_ns = 0;
	return rc ? rc : c.rc ? fail_sys(err, c.rc, "pages of the guest") : 0;
}

/* Scanning costs 0.2 ms a GiB and more, so the last figure serves for a while. */
static uint64_t estimate_dirty(void *user)
{
	struct machine *m = user;
	uint64_t begin = util_now_ns(), cost;

	if (begin < m->estimate_until_ns)
		return m->estimate;
	m->estimate = tracker_estimate(m->tracker);
	cost = util_now_ns() - begin;
	m->estimate_until_ns = begin + (cost * 20 > ESTIMATE_NS ? cost * 20 : ESTIMATE_NS);
	return m->estimate;
}

static int pause_guest(void *user, struct ft_error *err)
{
	struct machine *m = user;
	enum devstate_method before = devstate_method(m->state);
	int rc = devstate_pause(m->state, err);

	if (devstate_method(m->state) != before)
		say(m, FT_LOG_WARN, "device state: %s failed, going on with %s", devstate_method_name(before),
		    devstate_method_name(devstate_method(m->state)));
	m->is_paused = !rc;
	return rc;
}

static void *sink_buffer(void *user, size_t want, size_t *cap)
{
	return ft_state_buffer(user, want, cap);
}

static void sink_advance(void *user, size_t len)
{
	ft_state_advance(user, len);
}

static int save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	struct machine *m = user;
	struct devstate_sink to = { sink_buffer, sink_advance, sink };

	return devstate_save(m->state, &to, err);
}

static int resume_guest(void *user, struct ft_error *err)
{
	struct machine *m = user;

	m->is_paused = false;
	return devstate_resume(m->state, err);
}

/* While the operator holds the guest there is a file that says so: who attaches later leaves it stopped. */
static void mark_held(struct machine *m, bool held)
{
	char path[512];
	int fd;

	if (!m->has_run_dir)
		return;
	snprintf(path, sizeof(path), "%s/held", m->run_dir);
	if (held) {
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		fd_close(&fd);
	} else {
		unlink(path);
	}
}

static bool is_held(struct machine *m)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/held", m->run_dir);
	return !m->has_run_dir || access(path, F_OK) == 0;
}

static int guest_hold(void *user, bool hold, struct ft_error *err)
{
	struct machine *m = user;
	int rc = hold ? devstate_stop(m->state, err) : devstate_cont(m->state, err);

	if (rc)
		return rc;
	mark_held(m, hold);
	guard_arm(m->guard, !hold);
	return 0;
}

static void output_cut(void *user, uint64_t epoch)
{
	consoles_cut(((struct machine *)user)->consoles, epoch);
}

static void output_release(void *user, uint64_t epoch)
{
	consoles_release(((struct machine *)user)->consoles, epoch);
}

/* The guest runs elsewhere.  The process is stopped as a whole: with `pipe` QEMU is only blocked, and would let the guest run
 * the moment that we read or die. */
static void output_drop(void *user)
{
	struct machine *m = user;

	guard_arm(m->guard, false);
	if (syscall(SYS_pidfd_send_signal, m->pidfd, SIGSTOP, NULL, 0) && errno != ESRCH)
		say(m, FT_LOG_ERROR, "fenced, but QEMU cannot be stopped: %s", strerror(errno));
	consoles_drop(m->consoles);
}

/* ---- ops: secondary ----------------------------------------------------------------------------- */

static int check_identity(void *user, const char *identity, struct ft_error *err)
{
	return identity_compare(identity, ((struct machine *)user)->identity, err);
}

/* QEMU ends when it cannot load; its last words say why. */
static void add_last_words(struct machine *m, struct ft_error *err)
{
	char words[200];
	size_t used = strlen(err->msg);

	launch_last_words(m->log, words, sizeof(words));
	if (words[0])
		snprintf(err->msg + used, sizeof(err->msg) - used, " (QEMU: %s)", words);
}

static int load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct machine *m = user;
	int rc = devstate_load(m->state, buf, len, err);

	if (rc)
		add_last_words(m, err);
	return rc;
}

static int activate(void *user, struct ft_error *err)
{
	struct machine *m = user;
	int rc = devstate_cont(m->state, err);

	if (rc)
		return rc;
	m->was_started = true;
	guard_arm(m->guard, true);
	return 0;
}

static void on_event(void *user, const struct ft_event *event)
{
	struct machine *m = user;

	if (m->config.on_event)
		m->config.on_event(m->config.user, event);
}

const struct ft_vmm_ops machine_ops = {
	.struct_size = sizeof(struct ft_vmm_ops),
	.track_start = track_start,
	.track_stop = track_stop,
	.collect_present = collect_present,
	.collect_dirty = collect_dirty,
	.estimate_dirty = estimate_dirty,
	.pause = pause_guest,
	.save_state = save_state,
	.resume = resume_guest,
	.output_cut = output_cut,
	.output_release = output_release,
	.output_drop = output_drop,
	.check_identity = check_identity,
	.load_state = load_state,
	.activate = activate,
	.on_event = on_event,
	.guest_hold = guest_hold,
};

/* ---- what both ways of coming to a machine share ------------------------------------------------ */

/* [whoever reads QMP] */
static void qmp_event(void *user, const char *name, const json_t *data)
{
	struct machine *m = user;
	const char *reason;

	if (m->state)
		devstate_event(m->state, name, data);
	if (!strcmp(name, "SHUTDOWN")) {
		reason = json_string_value(json_object_get(data, "reason"));
		snprintf(m->end_reason, sizeof(m->end_reason), "%s", reason ? reason : "shutdown");
	}
}

static bool is_alive(void *user)
{
	struct machine *m = user;
	struct pollfd p = { .fd = m->pidfd, .events = POLLIN };

	return m->pidfd < 0 || poll(&p, 1, 0) == 0;
}

/* A process closes its sockets a little before it can be waited for. */
static bool ends(struct machine *m, int within_ms)
{
	struct pollfd p = { .fd = m->pidfd, .events = POLLIN };

	return poll(&p, 1, within_ms) == 1;
}

static int open_state(struct machine *m, struct ft_error *err)
{
	const char *status;
	json_t *ret;
	int rc =
		devstate_open(&m->state, m->qmp, m->config.method, m->cmdline.has_picture, m->cmdline.bare_stream, err);

	if (!rc)
		rc = qmp_call(m->qmp, "query-status", -1, util_deadline_ms(QMP_MS), &ret, err, NULL);
	if (rc)
		return rc;
	devstate_set_running(m->state, json_is_true(json_object_get(ret, "running")));
	status = json_string_value(json_object_get(ret, "status"));
	m->found_paused = status && launch_was_paused(status);
	json_decref(ret);
	return 0;
}

/* Devices that QEMU itself says cannot move: there is no state of them to send. */
static int check_blockers(struct machine *m, struct ft_error *err)
{
	const char *first;
	json_t *ret;
	int rc = qmp_call(m->qmp, "query-migrate", -1, util_deadline_ms(QMP_MS), &ret, err, NULL);

	if (rc)
		return rc;
	first = json_string_value(json_array_get(json_object_get(ret, "blocked-reasons"), 0));
	if (first)
		rc = fail(err, -ENOTSUP, "this machine cannot be protected: %s", first);
	json_decref(ret);
	return rc;
}

static int map_ram(struct machine *m, struct ft_error *err)
{
	m->ram = mmap(NULL, m->ram_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->ram_fd, 0);
	if (m->ram == MAP_FAILED) {
		m->ram = NULL;
		return fail_sys(err, -errno, "memory of the guest (%" PRIu64 " MiB)", m->ram_bytes >> 20);
	}
	madvise(m->ram, m->ram_bytes, MADV_DONTDUMP);
	return 0;
}

static int open_tracker(struct machine *m, struct ft_error *err)
{
	int uffd = m->uffd;

	m->uffd = -1; /* tracker_open() has it from here */
	return tracker_open(&m->tracker, m->pid, m->ram_fd, m->ram_bytes, uffd, err);
}

static void want_cut(void *user)
{
	struct ft_session *s = atomic_load(&((struct machine *)user)->session);

	if (s)
		ft_session_cut(s);
}

static void console_said(void *user, const char *text)
{
	say(user, FT_LOG_WARN, "%s", text);
}

static int open_consoles(struct machine *m, bool keep, struct ft_error *err)
{
	struct consoles_config c = { m->cmdline.console, m->cmdline.nr_consoles, keep, m->config.hold_bytes,
				     want_cut,           console_said,           m };

	return consoles_open(&m->consoles, &c, err);
}

/* The first serial port, else what comes first. */
static struct cmdline_console *first_console(struct machine *m)
{
	unsigned i;

	for (i = 0; i < m->cmdline.nr_consoles; i++)
		if (!strncmp(m->cmdline.console[i].id, "ft-serial", 9))
			return &m->cmdline.console[i];
	return m->cmdline.nr_consoles ? &m->cmdline.console[0] : NULL;
}

/* --console: another destination for it. */
static int override_console(struct machine *m, struct ft_error *err)
{
	struct cmdline_console *first = first_console(m);
	char *destination;
	int rc;

	if (!m->config.console || !first)
		return 0;
	rc = cmdline_destination(m->config.console, &destination, err);
	if (rc) {
		fail_in(err, "--console");
		return rc;
	}
	free(first->destination);
	first->destination = destination ? destination : strdup("null");
	return first->destination ? 0 : fail(err, -ENOMEM, "no memory");
}

static void tell_notes(struct machine *m)
{
	size_t i;

	for (i = 0; i < m->cmdline.notes.n; i++)
		say(m, FT_LOG_DEBUG, "added: %s", m->cmdline.notes.v[i]);
	for (i = 0; i < m->cmdline.unheld.n; i++)
		say(m, FT_LOG_WARN, "not held, because of --unsafe-output: %s", m->cmdline.unheld.v[i]);
}

/* ---- machine.json ------------------------------------------------------------------------------- */

static void json_path(const struct machine *m, char *out, size_t size)
{
	snprintf(out, size, "%s/machine.json", m->run_dir);
}

static int write_json(struct machine *m, struct ft_error *err)
{
	json_t *list = json_array(), *root;
	char path[512];
	unsigned i;
	int rc;

	for (i = 0; i < m->cmdline.nr_consoles; i++) {
		const struct cmdline_console *c = &m->cmdline.console[i];

		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "id", c->id, "socket", c->socket,
						      "destination", c->destination));
	}
	root = json_pack("{s:s, s:I, s:s, s:o}", "name", m->name, "pid", (json_int_t)m->pid, "log", m->log, "consoles",
			 list);
	json_path(m, path, sizeof(path));
	rc = root && !json_dump_file(root, path, JSON_INDENT(1)) ? 0 : fail(err, -EIO, "%s cannot be written", path);
	json_decref(root);
	return rc;
}

/* The consoles of a QEMU that an earlier ftqemu started; not being there is fine. */
static void read_json(struct machine *m)
{
	const char *id, *socket, *destination, *name, *log;
	json_t *root, *c;
	char path[512];
	size_t i;

	json_path(m, path, sizeof(path));
	root = json_load_file(path, 0, NULL);
	if (!root || json_integer_value(json_object_get(root, "pid")) != m->pid) {
		json_decref(root);
		return;
	}
	m->has_run_dir = true;
	name = json_string_value(json_object_get(root, "name"));
	log = json_string_value(json_object_get(root, "log"));
	if (name && !m->name[0])
		snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->log, sizeof(m->log), "%s", log ? log : "");
	json_array_foreach(json_object_get(root, "consoles"), i, c)
	{
		struct cmdline_console *to = &m->cmdline.console[m->cmdline.nr_consoles];

		if (m->cmdline.nr_consoles == CMDLINE_CONSOLES_MAX ||
		    json_unpack(c, "{s:s, s:s, s:s}", "id", &id, "socket", &socket, "destination", &destination))
			break;
		*to = (struct cmdline_console){ strdup(id), strdup(socket), strdup(destination) };
		m->cmdline.nr_consoles++;
	}
	json_decref(root);
}

/* ---- a machine made by us ----------------------------------------------------------------------- */

static bool is_there(const char *path)
{
	return access(path, R_OK) == 0;
}

/* Beside the program (as built), else where it is installed. */
static int find_shim(const char *given, char *out, size_t size, struct ft_error *err)
{
	char exe[PATH_MAX] = "";
	ssize_t n;

	if (given) {
		if (!realpath(given, exe) || snprintf(out, size, "%s", exe) >= (int)size)
			return fail_sys(err, -errno, "shim %s", given);
		return 0;
	}
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (n > 0 && snprintf(out, size, "%s/ft-shim.so", dirname(exe)) < (int)size && is_there(out))
		return 0;
	snprintf(out, size, "%s/ft-shim.so", FT_SHIM_DIR);
	return is_there(out)
		       ? 0
		       : fail(err, -ENOENT, "the shim ft-shim.so is neither beside the program nor in %s; give --shim",
			      FT_SHIM_DIR);
}

int machine_command(struct cmdline *out, const struct machine_config *config, const char *run_dir, int ram_fd,
		    struct ft_error *err)
{
	char *help[] = { config->qemu[0], (char *)"-help", NULL },
	     *list[] = { config->qemu[0], (char *)"-M", (char *)"help", NULL };
	struct cmdline_request req = { .argv = config->qemu,
				       .run_dir = run_dir,
				       .ram_fd = ram_fd,
				       .is_secondary = config->is_secondary,
				       .unsafe_output = config->unsafe_output };
	char shim[PATH_MAX], *machines = NULL, *options = NULL;
	int rc;

	*out = (struct cmdline){ 0 };
	rc = find_shim(config->shim, shim, sizeof(shim), err);
	if (rc)
		return rc;
	machines = launch_capture(list);
	options = launch_capture(help);
	if (!machines || !strstr(machines, "Supported machines")) {
		rc = fail(err, -ENOENT, "%s does not answer \"-M help\": is it a QEMU?", config->qemu[0]);
		goto out;
	}
	req.machines = machines;
	req.shim = shim;
	req.has_plugins = options && strstr(options, "\n-plugin");
	rc = cmdline_rewrite(out, &req, err);
out:
	free(machines);
	free(options);
	return rc;
}

static int make_ram(struct machine *m, struct ft_error *err)
{
	m->ram_fd = memfd_create("ft-ram", MFD_CLOEXEC);
	return m->ram_fd < 0 ? fail_sys(err, -errno, "memory of the guest") : 0;
}

static int ended_early(struct machine *m, struct ft_error *err)
{
	char words[256];

	launch_last_words(m->log, words, sizeof(words));
	machine_ended(m, &m->status);
	return fail(err, -ECHILD, "QEMU ended before the guest was started, exit status %d: %s", m->status,
		    words[0] ? words : "it said nothing");
}

void machine_decide_name(const struct machine_config *config, char *out, size_t size)
{
	char *const *a;
	const char *name = config->name;

	for (a = config->qemu; !name && *a; a++)
		if ((!strcmp(*a, "-name") || !strcmp(*a, "--name")) && a[1])
			name = a[1];
	if (!name)
		name = "vm";
	if (config->name) {
		snprintf(out, size, "%s", name);
	} else {
		if (!strncmp(name, "guest=", 6))
			name += 6;
		snprintf(out, size, "%.*s", (int)strcspn(name, ","), name);
	}
}

static int prepare(struct machine *m, struct ft_error *err)
{
	int rc = tracker_check_kernel(err);

	machine_decide_name(&m->config, m->name, sizeof(m->name));
	if (!rc)
		rc = run_dir_make(m->config.run_base, m->name, m->run_dir, sizeof(m->run_dir), &m->lock_fd, err);
	if (rc)
		return rc;
	m->has_run_dir = true;
	snprintf(m->qmp_path, sizeof(m->qmp_path), "%s/qmp.sock", m->run_dir);
	if (m->config.qemu_log)
		snprintf(m->log, sizeof(m->log), "%s", m->config.qemu_log);
	else
		snprintf(m->log, sizeof(m->log), "%s/qemu.log", m->run_dir);
	rc = make_ram(m, err);
	if (!rc)
		rc = machine_command(&m->cmdline, &m->config, m->run_dir, m->ram_fd, err);
	if (!rc)
		rc = override_console(m, err);
	if (!rc && ftruncate(m->ram_fd, (off_t)m->cmdline.ram_bytes))
		rc = fail_sys(err, -errno, "memory of the guest (%" PRIu64 " MiB)", m->cmdline.ram_bytes >> 20);
	m->ram_bytes = m->cmdline.ram_bytes;
	return rc;
}

static bool uses_plugin(const struct cmdline *c)
{
	size_t i;

	for (i = 0; i + 1 < c->argv.n; i++)
		if (!strcmp(c->argv.v[i], "-plugin") && strstr(c->argv.v[i + 1], "ft-shim.so"))
			return true;
	return false;
}

static int start_qemu(struct machine *m, struct ft_error *err)
{
	struct launch l = { .argv = m->cmdline.argv.v, .ram_fd = m->ram_fd, .lock_fd = m->lock_fd, .log = m->log };
	char shim[PATH_MAX];
	int rc = find_shim(m->config.shim, shim, sizeof(shim), err);

	if (rc)
		return rc;
	if (!uses_plugin(&m->cmdline))
		l.preload = shim;
	m->is_child = true;
	rc = launch_qemu(&l, &m->pid, &m->pidfd, &m->uffd, err);
	if (rc)
		return rc;
	rc = qmp_open(&m->qmp, m->qmp_path, util_deadline_ms(START_MS), is_alive, qmp_event, m, err);
	return rc && ends(m, ENDING_MS) ? ended_early(m, err) : rc;
}

static int make(struct machine *m, struct ft_error *err)
{
	int rc = prepare(m, err);

	if (!rc) {
		tell_notes(m);
		rc = start_qemu(m, err);
	}
	if (!rc)
		rc = open_state(m, err);
	if (!rc)
		rc = check_blockers(m, err);
	if (!rc)
		rc = identity_read(m->qmp, util_deadline_ms(QMP_MS), FT_IDENTITY_MAX, &m->identity, err);
	if (!rc)
		rc = map_ram(m, err);
	if (!rc)
		rc = open_tracker(m, err);
	if (!rc)
		rc = write_json(m, err);
	if (!rc)
		rc = guard_start(m->qmp_path, m->pid, &m->guard, err);
	if (!rc)
		rc = open_consoles(m, false, err);
	return rc;
}

/* ---- a machine that runs already ---------------------------------------------------------------- */

/* /proc/PID/cmdline as a list. */
static int read_argv(pid_t pid, struct strv *argv, struct ft_error *err)
{
	char path[64], *word = NULL;
	size_t room = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return fail_sys(err, -errno, "%s", path);
	while (getdelim(&word, &room, '\0', f) > 0)
		strv_add(argv, word);
	free(word);
	fclose(f);
	return argv->n && !argv->oom ? 0 : fail(err, -ESRCH, "process %d has no command line", (int)pid);
}

static int check_running(struct machine *m, struct ft_error *err)
{
	struct cmdline_request req = {
		.run_dir = m->run_dir, .shim = "", .unsafe_output = m->config.unsafe_output, .running = true
	};
	struct strv argv = { 0 };
	int rc = read_argv(m->pid, &argv, err);

	if (!rc) {
		req.argv = argv.v;
		rc = cmdline_rewrite(&m->cmdline, &req, err);
	}
	strv_free(&argv);
	return rc;
}

/* One memory backend, shared, that is all of the guest's memory. */
static int check_memory(struct machine *m, struct ft_error *err)
{
	json_t *list, *sum, *one;
	int rc = qmp_call(m->qmp, "query-memory-size-summary", -1, util_deadline_ms(QMP_MS), &sum, err, NULL);

	if (rc)
		return rc;
	m->ram_bytes = (uint64_t)json_integer_value(json_object_get(sum, "base-memory"));
	rc = json_integer_value(json_object_get(sum, "plugged-memory"))
		     ? fail(err, -ENOTSUP, "memory that was plugged in cannot be protected")
		     : 0;
	json_decref(sum);
	if (!rc)
		rc = qmp_call(m->qmp, "query-memdev", -1, util_deadline_ms(QMP_MS), &list, err, NULL);
	if (rc)
		return rc;
	one = json_array_get(list, 0);
	if (json_array_size(list) != 1)
		rc = fail(err, -ENOTSUP, "the guest has %zu memory backends; exactly one can be protected",
			  json_array_size(list));
	else if (!json_is_true(json_object_get(one, "share")))
		rc = fail(err, -ENOTSUP,
			  "the guest's memory is private to QEMU: start it with memory-backend-memfd, or "
			  "memory-backend-file,share=on");
	json_decref(list);
	return rc;
}

static int fetch_memory(struct machine *m, struct ft_error *err)
{
	m->ram_fd = tracker_fetch_memfd(m->pid, m->ram_bytes, err);
	return m->ram_fd < 0 ? m->ram_fd : map_ram(m, err);
}

static int fetch_uffd(struct machine *m, struct ft_error *err)
{
	struct ft_error why = { 0 };
	int rc;

	m->uffd = tracker_fetch_uffd(m->pid, &why);
	if (m->uffd == -ENOENT) {
		rc = inject_userfaultfd(m->pid, &why);
		if (rc >= 0) {
			say(m, FT_LOG_INFO, "one userfaultfd() was called in process %d by ptrace", (int)m->pid);
			m->uffd = tracker_fetch_uffd(m->pid, &why);
		}
	}
	if (m->uffd >= 0)
		return 0;
	say(m, FT_LOG_WARN, "%s", why.msg); /* soft-dirty may do without */
	m->uffd = -1;
	(void)err;
	return 0;
}

static int take_process(struct machine *m, struct ft_error *err)
{
	char *copy;
	int rc;

	snprintf(m->qmp_path, sizeof(m->qmp_path), "%s", m->config.qmp_path);
	copy = realpath(m->config.qmp_path, NULL);
	snprintf(m->run_dir, sizeof(m->run_dir), "%s", copy ? dirname(copy) : "");
	free(copy);
	snprintf(m->name, sizeof(m->name), "%s", m->config.name ? m->config.name : "");
	rc = qmp_open(&m->qmp, m->qmp_path, util_deadline_ms(QMP_MS), NULL, qmp_event, m, err);
	if (rc)
		return rc;
	m->pid = m->config.pid ? m->config.pid : qmp_peer(m->qmp);
	if (m->pid <= 0)
		return fail(err, -ESRCH, "%s: whose socket it is cannot be told; give --pid", m->qmp_path);
	m->pidfd = (int)syscall(SYS_pidfd_open, m->pid, 0);
	return m->pidfd < 0 ? fail_sys(err, -errno, "process %d", (int)m->pid) : 0;
}

static int take(struct machine *m, struct ft_error *err)
{
	int rc = tracker_check_kernel(err);

	if (!rc)
		rc = take_process(m, err);
	if (!rc)
		rc = check_running(m, err);
	if (!rc) {
		tell_notes(m);
		read_json(m);
		if (!m->name[0])
			snprintf(m->name, sizeof(m->name), "%s", m->cmdline.name ? m->cmdline.name : "vm");
		rc = open_state(m, err);
	}
	if (!rc)
		rc = check_blockers(m, err);
	if (!rc)
		rc = check_memory(m, err);
	if (!rc)
		rc = identity_read(m->qmp, util_deadline_ms(QMP_MS), FT_IDENTITY_MAX, &m->identity, err);
	if (!rc)
		rc = fetch_memory(m, err);
	if (!rc)
		rc = fetch_uffd(m, err);
	if (!rc)
		rc = open_tracker(m, err);
	if (!rc)
		rc = guard_start(m->qmp_path, m->pid, &m->guard, err);
	if (!rc)
		rc = override_console(m, err);
	if (!rc)
		rc = open_consoles(m, true, err);
	m->was_started = !rc;
	/* an ftqemu that died in a pause, and we were faster than its guard, which now cannot reach QEMU */
	if (!rc && m->found_paused && !is_held(m)) {
		say(m, FT_LOG_WARN, "the guest was left paused, and runs on");
		rc = devstate_cont(m->state, err);
	}
	return rc;
}

/* ---- open, close -------------------------------------------------------------------------------- */

int machine_open(struct machine **out, const struct machine_config *config, struct ft_error *err)
{
	struct machine *m;
	int rc;

	*out = NULL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return fail(err, -ENOMEM, "no memory");
	m->config = *config;
	m->lock_fd = m->pidfd = m->ram_fd = m->uffd = m->guard = -1;
	rc = config->qemu ? make(m, err) : take(m, err);
	/* what was pointed at is the caller's */
	m->config.run_base = m->config.shim = m->config.qmp_path = m->config.qemu_log = m->config.console =
		m->config.name = NULL;
	m->config.qemu = NULL;
	if (rc) {
		if (m->is_child && m->pid)
			machine_quit(m, 1000);
		machine_close(m);
		return rc;
	}
	if (m->was_started)
		guard_arm(m->guard, devstate_running(m->state));
	say(m, FT_LOG_INFO, "QEMU is process %d, its sockets are in %s", (int)m->pid, m->run_dir);
	*out = m;
	return 0;
}

void machine_close(struct machine *m)
{
	int status;

	if (!m)
		return;
	if (m->qmp && m->has_ended)
		qmp_pump(m->qmp);
	consoles_close(m->consoles, m->consoles ? 500 : 0);
	tracker_close(m->tracker);
	devstate_close(m->state);
	qmp_close(m->qmp);
	if (m->guard >= 0)
		guard_arm(m->guard, false); /* an orderly end leaves nothing paused */
	fd_close(&m->guard);
	if (m->ram)
		munmap(m->ram, m->ram_bytes);
	fd_close(&m->ram_fd);
	fd_close(&m->uffd);
	if (m->has_run_dir && m->pid && machine_ended(m, &status))
		run_dir_remove(m->run_dir);
	else if (m->has_run_dir && !m->pid)
		run_dir_remove(m->run_dir);
	fd_close(&m->pidfd);
	fd_close(&m->lock_fd);
	free(m->identity);
	cmdline_free(&m->cmdline);
	free(m);
}

void machine_abandon(struct machine *m)
{
	consoles_abandon(m->consoles);
	if (m->has_run_dir)
		run_dir_remove(m->run_dir);
}

int machine_add_to(struct machine *m, struct ft_session *s, struct ft_error *err)
{
	int region;

	atomic_store(&m->session, s);
	if (!s)
		return 0;
	region = ft_session_add_region(s, "ram", m->ram, m->ram_bytes, err);
	if (region < 0)
		return region;
	m->region = (uint32_t)region;
	return 0;
}

/* ---- the process -------------------------------------------------------------------------------- */

const char *machine_name(const struct machine *m)
{
	return m->name;
}

const char *machine_run_dir(const struct machine *m)
{
	return m->run_dir;
}

const char *machine_identity(const struct machine *m)
{
	return m->identity;
}

pid_t machine_pid(const struct machine *m)
{
	return m->pid;
}

int machine_pidfd(const struct machine *m)
{
	return m->pidfd;
}

const char *machine_tracking(const struct machine *m)
{
	return tracker_method(m->tracker);
}

enum devstate_method machine_method(const struct machine *m)
{
	return devstate_method(m->state);
}

uint64_t machine_held(struct machine *m)
{
	return consoles_held(m->consoles);
}

int machine_start(struct machine *m, struct ft_error *err)
{
	int rc;

	if (m->was_started)
		return 0;
	rc = devstate_cont(m->state, err);
	if (rc)
		return rc;
	m->was_started = true;
	guard_arm(m->guard, true);
	return 0;
}

void machine_pump(struct machine *m)
{
	qmp_pump(m->qmp);
}

bool machine_ended(struct machine *m, int *status)
{
	siginfo_t info = { 0 };

	if (!m->has_ended && !is_alive(m)) {
		m->has_ended = true;
		if (m->is_child && !waitid(P_PIDFD, (id_t)m->pidfd, &info, WEXITED | WNOHANG))
			m->status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
		if (m->qmp)
			qmp_pump(m->qmp); /* its last event says why */
	}
	*status = m->status;
	return m->has_ended;
}

const char *machine_end_reason(const struct machine *m)
{
	return m->end_reason;
}

void machine_quit(struct machine *m, unsigned grace_ms)
{
	uint64_t deadline = util_deadline_ms(grace_ms);
	int status;

	if (m->qmp && grace_ms && !machine_ended(m, &status))
		qmp_call(m->qmp, "quit", -1, deadline, NULL, NULL, NULL);
	while (!machine_ended(m, &status) && util_now_ns() < deadline)
		util_sleep_ms(10);
	if (machine_ended(m, &status) || m->pidfd < 0)
		return;
	syscall(SYS_pidfd_send_signal, m->pidfd, SIGKILL, NULL, 0);
	deadline = util_deadline_ms(5000);
	while (!machine_ended(m, &status) && util_now_ns() < deadline)
		util_sleep_ms(10);
}
