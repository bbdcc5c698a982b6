/* SPDX-License-Identifier: MIT */
/* machine_setup.c - both ways of coming to a machine.
 *
 * Made by us: memory is a memfd of ours that QEMU inherits, the userfaultfd comes from the shim through a socket, the guest
 * waits (-S) until everything that could be a reason to refuse has been looked at.
 * Taken over: the same things are fetched from the running process.  machine.json in the run directory says to a later ftqemu
 * which consoles belong to it.
 *
 * Runs on the main thread, before there is a session; only QMP events and the consoles' callbacks come from other threads.
 * Whatever is made goes into the machine at once: after an error machine_close() takes it from there. */
#include "machine_private.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "identity.h"
#include "inject.h"
#include "launch.h"

#define START_MS 30000
#define ENDING_MS 1000
#define QMP_MS 10000

/* ---- what both ways of coming to a machine share ------------------------------------------------ */

/* [whoever reads QMP] */
static void qmp_event(void *user, const char *name, const json_t *data)
{
	struct machine *m = user;
	const char *reason;

	if (m->state)
		devstate_event(m->state, name, data);
	if (m->mirrors)
		mirrors_event(m->mirrors, name, data);
	if (!strcmp(name, "SHUTDOWN")) {
		reason = json_string_value(json_object_get(data, "reason"));
		snprintf(m->end_reason, sizeof(m->end_reason), "%s", reason ? reason : "shutdown");
	}
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

static void want_cut(void *user);

/* A secondary that died leaves images that are of no epoch until its journal was applied. */
static int check_leftover(const struct disk_standby_config *config, struct ft_error *err)
{
	struct disk_standby_look look;

	disk_standby_look(config, &look);
	if (look.journal.is_incomplete)
		return fail(err, -EUCLEAN,
			    "%s says that the image beside it is incomplete: a secondary's first copy into it did not "
			    "come to its "
			    "end; give another image, or remove that file if this one is to be taken as it is",
			    look.path);
	if (look.journal.bytes)
		return fail(err, -EUCLEAN,
			    "%s has %" PRIu64
			    " octets that the image beside it lacks, since a secondary died: start ftqemu secondary "
			    "with it, which applies them, and end it; or remove that file if the image is to be taken "
			    "as it is",
			    look.path, look.journal.bytes);
	return 0;
}

/* After the identity was read. */
static int open_disks(struct machine *m, struct ft_error *err)
{
	struct mirrors_config c = { .list = &m->disks,
				    .qmp = m->qmp,
				    .run_dir = m->run_dir,
				    .hold_bytes = m->config.disk_hold_bytes,
				    .want_cut = want_cut,
				    .user = m };
	struct disk_standby_config s = { .list = &m->disks,
					 .run_dir = m->run_dir,
					 .journal = m->config.disk_journal,
					 .durable = m->config.disk_durability };
	struct strv left_out = { 0 };
	char said[700];
	int rc = mirrors_clean(m->qmp, err);

	if (!rc)
		rc = disk_list_read(&m->disks, m->qmp, util_deadline_ms(QMP_MS), m->config.unsafe_output, &left_out,
				    err);
	for (size_t i = 0; i < left_out.n; i++)
		machine_say(m, FT_LOG_WARN, "not replicated, because of --unsafe-output: %s", left_out.v[i]);
	strv_free(&left_out);
	if (rc || !m->disks.nr)
		return rc;
	devstate_keep_disks(m->state);
	rc = disk_list_identity(&m->disks, &m->identity, FT_IDENTITY_MAX, err);
	if (!rc && m->config.is_secondary) {
		rc = disk_standby_open(&m->disk_standby, &s, said, sizeof(said), err);
		if (!rc && said[0])
			machine_say(m, FT_LOG_WARN, "%s", said);
	} else if (!rc && m->config.qemu) {
		rc = check_leftover(&s, err);
	}
	return rc ? rc : mirrors_open(&m->mirrors, &c, err);
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
	machine_with_session(user, ft_session_cut);
}

static void has_output(void *user)
{
	machine_with_session(user, ft_session_output);
}

static void console_said(void *user, const char *text)
{
	machine_say(user, FT_LOG_WARN, "%s", text);
}

static int open_consoles(struct machine *m, bool keep, struct ft_error *err)
{
	struct consoles_config c = { .console = m->cmdline.console,
				     .nr = m->cmdline.nr_consoles,
				     .keep = keep,
				     .hold_bytes = m->config.hold_bytes,
				     .has_output = has_output,
				     .want_cut = want_cut,
				     .say = console_said,
				     .user = m };

	return consoles_open(&m->consoles, &c, err);
}

static int open_nics(struct machine *m, struct ft_error *err)
{
	struct nics_config c = { .nic = m->cmdline.nic,
				 .nr = m->cmdline.nr_nics,
				 .hold_bytes = m->config.net_hold_bytes,
				 .at_cap = m->config.net_at_cap,
				 .has_output = has_output,
				 .want_cut = want_cut,
				 .say = console_said,
				 .user = m };
	int rc = nics_open(&m->nics, &c, err);

	if (!rc && !m->config.is_secondary)
		nics_plug(m->nics, true);
	return rc;
}

/* The first serial port, else what comes first. */
static struct cmdline_route *first_console(struct machine *m)
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
	struct cmdline_route *first = first_console(m);
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
		machine_say(m, FT_LOG_DEBUG, "added: %s", m->cmdline.notes.v[i]);
	for (i = 0; i < m->cmdline.unheld.n; i++)
		machine_say(m, FT_LOG_WARN, "not held, because of --unsafe-output: %s", m->cmdline.unheld.v[i]);
}

/* ---- machine.json ------------------------------------------------------------------------------- */

static void json_path(const struct machine *m, char *out, size_t size)
{
	snprintf(out, size, "%s/machine.json", m->run_dir);
}

static json_t *list_routes(const struct cmdline_route *r, unsigned nr)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < nr; i++)
		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "id", r[i].id, "socket", r[i].socket,
						      "destination", r[i].destination));
	return list;
}

static int write_json(struct machine *m, struct ft_error *err)
{
	json_t *root = json_pack("{s:s, s:I, s:s, s:o, s:o}", "name", m->name, "pid", (json_int_t)m->pid, "log", m->log,
				 "consoles", list_routes(m->cmdline.console, m->cmdline.nr_consoles), "nics",
				 list_routes(m->cmdline.nic, m->cmdline.nr_nics));
	char path[512];
	int rc;

	json_path(m, path, sizeof(path));
	rc = root && !json_dump_file(root, path, JSON_INDENT(1)) ? 0 : fail(err, -EIO, "%s cannot be written", path);
	json_decref(root);
	return rc;
}

static void read_routes(const json_t *list, struct cmdline_route *r, unsigned *nr, unsigned max)
{
	const char *id, *socket, *destination;
	json_t *one;
	size_t i;

	json_array_foreach(list, i, one) if (json_unpack(one, "{s:s, s:s, s:s}", "id", &id, "socket", &socket,
							 "destination", &destination) ||
					     cmdline_add_route(r, nr, max, id, socket, destination)) break;
}

/* The consoles and network cards of a QEMU that an earlier ftqemu started; not being there is fine. */
static void read_json(struct machine *m)
{
	const char *name, *log;
	char path[512];
	json_t *root;

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
	read_routes(json_object_get(root, "consoles"), m->cmdline.console, &m->cmdline.nr_consoles,
		    CMDLINE_CONSOLES_MAX);
	read_routes(json_object_get(root, "nics"), m->cmdline.nic, &m->cmdline.nr_nics, CMDLINE_NICS_MAX);
	json_decref(root);
}

/* The guest would be cut off if it had cards of which nobody knows where to. */
static int check_routes(const struct machine *m, struct ft_error *err)
{
	if (m->cmdline.own_nics == m->cmdline.nr_nics)
		return 0;
	return fail(err, -ENOENT,
		    "%u network cards of the guest go through an ftqemu, and %s/machine.json, which says where to, %s: "
		    "give the QMP socket in the run directory of that ftqemu",
		    m->cmdline.own_nics, m->run_dir, m->has_run_dir ? "knows others" : "is missing");
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
	rc = qmp_open(&m->qmp, m->qmp_path, util_deadline_ms(START_MS), machine_is_alive, qmp_event, m, err);
	return rc && ends(m, ENDING_MS) ? ended_early(m, err) : rc;
}

int machine_make(struct machine *m, struct ft_error *err)
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
		rc = open_disks(m, err);
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
	if (!rc)
		rc = open_nics(m, err);
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
			machine_say(m, FT_LOG_INFO, "one userfaultfd() was called in process %d by ptrace",
				    (int)m->pid);
			m->uffd = tracker_fetch_uffd(m->pid, &why);
		}
	}
	if (m->uffd >= 0)
		return 0;
	machine_say(m, FT_LOG_WARN, "%s", why.msg); /* soft-dirty may do without */
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

int machine_take(struct machine *m, struct ft_error *err)
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
		rc = check_routes(m, err);
	}
	if (!rc)
		rc = open_state(m, err);
	if (!rc)
		rc = check_blockers(m, err);
	if (!rc)
		rc = check_memory(m, err);
	if (!rc)
		rc = identity_read(m->qmp, util_deadline_ms(QMP_MS), FT_IDENTITY_MAX, &m->identity, err);
	if (!rc)
		rc = open_disks(m, err);
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
	if (!rc)
		rc = open_nics(m, err);
	m->was_started = !rc;
	/* an ftqemu that died in a pause, and we were faster than its guard, which now cannot reach QEMU */
	if (!rc && m->found_paused && !machine_is_marked_held(m)) {
		machine_say(m, FT_LOG_WARN, "the guest was left paused, and runs on");
		rc = devstate_cont(m->state, err);
	}
	return rc;
}
