/* SPDX-License-Identifier: MIT */
/* inject.c - see inject.h.
 *
 * The main thread is seized and stopped.  If it is within a system call (nearly always: it polls), the kernel has put the
 * instruction pointer behind a syscall instruction, and that instruction is used; else one is looked for in the vdso.  Registers
 * are set for userfaultfd(), one system call is run, and registers are put back as they were.  An interrupted system call
 * restarts by itself: orig_rax of the saved registers tells the kernel, as it does for a signal handler. */
#include "inject.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/userfaultfd.h>

#if defined(__x86_64__)

static int wait_stop(pid_t pid, int *status)
{
	while (waitpid(pid, status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFSTOPPED(*status) ? 0 : -ESRCH;
}

static bool is_syscall_at(pid_t pid, uint64_t at)
{
	errno = 0;
	return (ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL) & 0xffff) == 0x050f && !errno;
}

/* A syscall instruction in the target's vdso. */
static uint64_t search_vdso(pid_t pid)
{
	char line[256], path[64];
	uint64_t start = 0, end = 0, at, found = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strstr(line, "[vdso]") && sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) == 2)
			break;
	if (f)
		fclose(f);
	for (at = start; !found && at + 8 <= end; at++)
		if (is_syscall_at(pid, at))
			found = at;
	return found;
}

/* Runs one system call in the stopped thread; its result, or a negative errno of ours in *@rc. */
static long call(pid_t pid, const struct user_regs_struct *saved, uint64_t at, long flags, int *rc)
{
	struct user_regs_struct regs = *saved;
	int status;

	regs.rip = at;
	regs.rax = __NR_userfaultfd;
	regs.orig_rax = (unsigned long long)-1; /* not within a system call: nothing to restart */
	regs.rdi = (unsigned long long)flags;
	if (ptrace(PTRACE_SETREGS, pid, NULL, &regs) || ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) {
		*rc = -errno;
		return -1;
	}
	*rc = wait_stop(pid, &status);
	if (*rc)
		return -1;
	if (WSTOPSIG(status) != SIGTRAP) {
		*rc = -EINTR;
		return -1;
	}
	if (ptrace(PTRACE_GETREGS, pid, NULL, &regs)) {
		*rc = -errno;
		return -1;
	}
	return (long)regs.rax;
}

/* Signals wait meanwhile: one that was delivered here would be lost, or its handler run on the wrong registers. */
static long call_in(pid_t pid, int *rc)
{
	uint64_t mask, all = ~UINT64_C(0), at;
	struct user_regs_struct saved;
	long result;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &saved)) {
		*rc = -errno;
		return -1;
	}
	if (ptrace(PTRACE_GETSIGMASK, pid, sizeof(mask), &mask) || ptrace(PTRACE_SETSIGMASK, pid, sizeof(all), &all)) {
		*rc = -errno;
		return -1;
	}
	at = is_syscall_at(pid, saved.rip - 2) ? saved.rip - 2 : search_vdso(pid);
	*rc = at ? 0 : -ENOEXEC;
	result = *rc ? -1 : call(pid, &saved, at, O_CLOEXEC | O_NONBLOCK, rc);
	if (!*rc && result == -EPERM)
		result = call(pid, &saved, at, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, rc);
	if ((ptrace(PTRACE_SETREGS, pid, NULL, &saved) || ptrace(PTRACE_SETSIGMASK, pid, sizeof(mask), &mask)) && !*rc)
		*rc = -errno;
	return result;
}

int inject_userfaultfd(pid_t pid, struct ft_error *err)
{
	long result = -1;
	int status, rc = 0;

	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL))
		return fail_sys(err, -errno,
				"process %d cannot be traced to make a userfaultfd in it (run ftqemu as root, or start "
				"QEMU by ftqemu)",
				(int)pid);
	if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL))
		rc = -errno;
	if (!rc)
		rc = wait_stop(pid, &status);
	if (!rc)
		result = call_in(pid, &rc);
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
	if (rc)
		return fail_sys(err, rc, "userfaultfd could not be made in process %d", (int)pid);
	return result >= 0 ? (int)result : fail_sys(err, (int)result, "userfaultfd in process %d", (int)pid);
}

#else

int inject_userfaultfd(pid_t pid, struct ft_error *err)
{
	return fail(err, -ENOTSUP, "process %d has no userfaultfd, and making one in it is built for x86-64 only",
		    (int)pid);
}

#endif
