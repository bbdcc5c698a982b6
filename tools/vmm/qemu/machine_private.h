/* SPDX-License-Identifier: MIT */
/* machine_private.h - one QEMU, as machine.c (life), machine_setup.c (coming to a machine) and machine_ops.c (what a
 * session calls) see it. */
#ifndef FT_QEMU_MACHINE_PRIVATE_H
#define FT_QEMU_MACHINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include "console.h"
#include "disk_list.h"
#include "disk_mirror.h"
#include "disk_standby.h"
#include "machine.h"
#include "nics.h"
#include "qmp.h"
#include "tracker.h"

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
	struct nics *nics;
	struct disk_list disks;
	struct mirrors *mirrors;	     /* NULL without disks */
	struct disk_standby *disk_standby;   /* of a secondary, also after its promotion */
	atomic_bool disks_unwanted;	     /* protection was ended; the main thread ends the mirrors */
	char *identity;
	int guard;

	pthread_mutex_t session_lock; /* held while the threads of consoles and nics use it; after their own locks, before the library's */
	struct ft_session *session;
	uint32_t region;
	/* session's epoch thread */
	bool is_chosen, is_paused; /* is_chosen: the way to take device state was tried */
	uint64_t estimate, estimate_until_ns;
};


/* machine.c: [any thread] a line for the user, if he wants any. */
void machine_say(struct machine *m, enum ft_log_level level, const char *fmt, ...) QEMU_PRINTF(3, 4);
/* machine.c: [any thread] @what of the session, if there is one; it is not closed meanwhile. */
void machine_with_session(struct machine *m, void (*what)(struct ft_session *s));
/* machine.c: [any thread] whether the process @user (the machine) is still there. */
bool machine_is_alive(void *user);

/* machine_setup.c: fill @m, which has its config and no descriptor yet: start QEMU, or take a running one.  What has been
 * made before an error is left to machine_close(). */
int machine_make(struct machine *m, struct ft_error *err);
int machine_take(struct machine *m, struct ft_error *err);

/* machine_ops.c: whether the operator held the guest when whoever had it before let go of it. */
bool machine_is_marked_held(struct machine *m);

#endif
