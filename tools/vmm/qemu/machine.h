/* SPDX-License-Identifier: MIT */
/* machine.h - one QEMU as a machine that libft protects or keeps ready: the process, its memory, its state, its consoles,
 * and the ops that a session calls.  A machine outlives sessions: a promoted secondary becomes a primary with it.
 *
 * machine_ functions: main thread.  The ops: see struct ft_vmm_ops. */
#ifndef FT_QEMU_MACHINE_H
#define FT_QEMU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <ft/ft.h>
#include "cmdline.h"
#include "devstate.h"
#include "nics.h"

struct machine;

struct machine_config {
	const char *name;	 /* NULL: of -name, or "vm" */
	const char *run_base;	 /* directory that is there, for the run directories of machines */
	char *const *qemu;	 /* QEMU's argv as the user gave it; NULL when attaching */
	const char *qmp_path;	 /* attach: the socket */
	pid_t pid;		 /* attach: 0 asks the socket */
	const char *shim;	 /* NULL: where it is built or installed */
	const char *console;	 /* destination instead of the first console's own; NULL */
	const char *qemu_log;	 /* NULL: qemu.log in the run directory */
	enum devstate_method method;
	bool is_secondary, unsafe_output;
	uint64_t hold_bytes;	 /* of output, for each console */
	uint64_t net_hold_bytes; /* for each network card */
	enum nics_at_cap net_at_cap;
	uint64_t disk_hold_bytes; /* writes of the guest's disks, of all together */
	const char *disk_journal; /* secondary: NULL: beside the first image */
	bool disk_durability;	  /* secondary: an epoch's writes are stable before it is acknowledged */
	/* [any thread] A line for the user, and events of the session.  May be NULL. */
	void (*say)(void *user, enum ft_log_level level, const char *text);
	void (*on_event)(void *user, const struct ft_event *event);
	void *user;
};

/* machine_command - the command line that machine_open() would run.  @ram_fd is only a number. */
int machine_command(struct cmdline *out, const struct machine_config *config, const char *run_dir, int ram_fd, struct ft_error *err);
/* machine_decide_name - the machine's name: the configured one, that of -name, or "vm". */
void machine_decide_name(const struct machine_config *config, char *out, size_t size);

/* machine_open - start QEMU with the guest not yet running, or take a running one.  Refuses what cannot be protected. */
int machine_open(struct machine **out, const struct machine_config *config, struct ft_error *err);
/* machine_close - let go.  A QEMU that still runs goes on. */
void machine_close(struct machine *m);

/* machine_abandon - QEMU has crashed and the standby is to go on: put terminal and run directory right before _exit(), with the
 * session still there, so that nobody is told goodbye and nothing that is held leaves. */
void machine_abandon(struct machine *m);

const char *machine_name(const struct machine *m);
const char *machine_run_dir(const struct machine *m); /* where its sockets are */
const char *machine_identity(const struct machine *m);
pid_t machine_pid(const struct machine *m);
int machine_pidfd(const struct machine *m); /* readable when QEMU has ended */
const char *machine_tracking(const struct machine *m); /* "wp", "soft-dirty" */
enum devstate_method machine_method(const struct machine *m);
uint64_t machine_held(struct machine *m); /* octets of output held */
uint64_t machine_dropped(struct machine *m); /* frames of the guest that were dropped */

/* machine_nic - of the network card @n; false: there are no more.  Any thread. */
bool machine_nic(struct machine *m, unsigned n, struct nics_figures *out);

struct machine_disk {
	const char *name;
	uint64_t size;
	bool is_standby; /* of a guest that does not run here: only journal_bytes says something; else only the others do */
	uint64_t dirty_bytes;	/* that the secondary does not have */
	uint64_t held_bytes;	/* writes on their way, of all disks */
	uint64_t journal_bytes; /* committed and not yet in the images, of all disks */
};
/* machine_disk - of the disk @n; false: there are no more.  Any thread. */
bool machine_disk(struct machine *m, unsigned n, struct machine_disk *out);

/* machine_ops - what a session gets, with the machine as its user: with the side stream if there are disks to replicate. */
const struct ft_vmm_ops *machine_ops(const struct machine *m);
/* machine_add_to - its memory becomes the session's; early ends of epochs are asked of @s from now on (NULL: of nobody). */
int machine_add_to(struct machine *m, struct ft_session *s, struct ft_error *err);

/* machine_start - the guest runs, if it has not been started. */
int machine_start(struct machine *m, struct ft_error *err);
/* machine_pump - take QMP events that have arrived. */
void machine_pump(struct machine *m);
/* machine_ended - has QEMU ended?  *@status gets its exit status (128 + signal; 0 where it is not our child). */
bool machine_ended(struct machine *m, int *status);
/* machine_end_reason - what QEMU said last: "guest-shutdown", "host-qmp-quit" ...; "": it crashed. */
const char *machine_end_reason(const struct machine *m);
/* machine_quit - end QEMU, by force after @grace_ms. */
void machine_quit(struct machine *m, unsigned grace_ms);

#endif
