/* SPDX-License-Identifier: MIT */
/* launch.h - QEMU as a process: started so that it outlives us, watched by a pidfd; the run directory; and the guard,
 * a small process that lets the guest run on if we die while it is paused.  Main thread, before any other thread is made. */
#ifndef FT_QEMU_LAUNCH_H
#define FT_QEMU_LAUNCH_H

#include <stdbool.h>
#include <sys/types.h>
#include "util.h"

/* run_dir_make - @out gets the private directory of machine @name in @base (such as /run/ft, which is there): NAME, or NAME.2,
 * NAME.3 ... if QEMUs use those.  0700 and ours, or it is refused.  What a dead predecessor left in it is removed.  *@lock is
 * held while it is used, by QEMU too: it is inherited. */
int run_dir_make(const char *base, const char *name, char *out, size_t size, int *lock, struct ft_error *err);
void run_dir_remove(const char *dir);

struct launch {
	char *const *argv;
	int ram_fd;	 /* inherited under its number */
	int lock_fd;	 /* inherited; -1: none */
	const char *log; /* file that gets QEMU's words */
	const char *preload; /* NULL: the shim comes as a plugin */
};

/* launch_qemu - start it.  *@uffd gets what the shim handed over, -1 if nothing came.  QEMU is in a session of its own: neither
 * a terminal's ^C nor our end reaches it. */
int launch_qemu(const struct launch *l, pid_t *pid, int *pidfd, int *uffd, struct ft_error *err);

/* launch_capture - run @argv, its stdout and stderr as text (the caller's to free); NULL without. */
char *launch_capture(char *const *argv);

/* launch_last_words - QEMU's last complaint in @log, else its last line, into @buf ("" if none). */
void launch_last_words(const char *log, char *buf, size_t size);

/* launch_was_paused - is "status" of query-status one that a pause of ours leaves, when we die in it? */
bool launch_was_paused(const char *status);

/* guard_start - fork the guard of the QEMU @pid that listens at @qmp_path.  *@fd: its leash. */
int guard_start(const char *qmp_path, pid_t pid, int *fd, struct ft_error *err);
/* guard_arm - whether the guest is to run on if we die now (not while the operator or a fence holds it). */
void guard_arm(int fd, bool armed);

#endif
