/* SPDX-License-Identifier: MIT */
/* machine.c - see machine.h: open, close, and the process in between.
 *
 * Owns struct machine with all that hangs on it.  Main thread, but for machine_say() and machine_is_alive().  How QEMU is
 * started or taken is in machine_setup.c, what a session calls in machine_ops.c. */
#include "machine_private.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "launch.h"

void machine_say(struct machine *m, enum ft_log_level level, const char *fmt, ...)
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

bool machine_is_alive(void *user)
{
	struct machine *m = user;
	struct pollfd p = { .fd = m->pidfd, .events = POLLIN };

	return m->pidfd < 0 || poll(&p, 1, 0) == 0;
}

void machine_with_session(struct machine *m, void (*what)(struct ft_session *s))
{
	pthread_mutex_lock(&m->session_lock);
	if (m->session)
		what(m->session);
	pthread_mutex_unlock(&m->session_lock);
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
	pthread_mutex_init(&m->session_lock, NULL);
	m->lock_fd = m->pidfd = m->ram_fd = m->uffd = m->guard = -1;
	rc = config->qemu ? machine_make(m, err) : machine_take(m, err);
	/* what was pointed at is the caller's */
	m->config.run_base = m->config.shim = m->config.qmp_path = m->config.qemu_log = m->config.console =
		m->config.name = NULL;
	m->config.qemu = NULL;
	m->config.disk_journal = NULL;
	if (rc) {
		if (m->is_child && m->pid)
			machine_quit(m, 1000);
		machine_close(m);
		return rc;
	}
	if (m->was_started)
		guard_arm(m->guard, devstate_running(m->state));
	machine_say(m, FT_LOG_INFO, "QEMU is process %d, its sockets are in %s", (int)m->pid, m->run_dir);
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
	if (m->mirrors && !m->has_ended)
		mirrors_stop(m->mirrors);
	mirrors_close(m->mirrors);
	disk_standby_close(m->disk_standby);
	nics_close(m->nics);
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
	pthread_mutex_destroy(&m->session_lock);
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

	pthread_mutex_lock(&m->session_lock);
	m->session = s;
	pthread_mutex_unlock(&m->session_lock);
	if (!s) {
		if (m->mirrors)
			mirrors_stop(m->mirrors);
		return 0;
	}
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
	return consoles_held(m->consoles) + nics_held(m->nics);
}

uint64_t machine_dropped(struct machine *m)
{
	return nics_dropped(m->nics);
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

bool machine_nic(struct machine *m, unsigned n, struct nics_figures *out)
{
	return nics_figures(m->nics, n, out);
}

bool machine_disk(struct machine *m, unsigned n, struct machine_disk *out)
{
	struct tap_figures f;

	if (n >= m->disks.nr)
		return false;
	tap_figures(mirrors_tap(m->mirrors), n, &f);
	*out = (struct machine_disk){ .name = m->disks.disk[n].name,
				      .size = m->disks.size[n],
				      .is_standby = !m->was_started && m->disk_standby,
				      .dirty_bytes = f.dirty_bytes,
				      .held_bytes = f.held_bytes,
				      .journal_bytes = m->disk_standby ? disk_standby_bytes(m->disk_standby) : 0 };
	return true;
}

void machine_pump(struct machine *m)
{
	if (atomic_exchange(&m->disks_unwanted, false) && m->mirrors)
		mirrors_stop(m->mirrors);
	qmp_pump(m->qmp);
}

bool machine_ended(struct machine *m, int *status)
{
	siginfo_t info = { 0 };

	if (!m->has_ended && !machine_is_alive(m)) {
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
