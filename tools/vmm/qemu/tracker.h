/* SPDX-License-Identifier: MIT */
/* tracker.h - which pages of another process' shared memory were written.
 *
 * The memory is a memfd that the target maps (QEMU: the guest's RAM) and that we map too.  Two ways, chosen at start:
 *  - wp: userfaultfd made in the target, armed from here, harvested by PAGEMAP_SCAN (Linux 6.7).  One system call
 *    reports and re-protects, atomically per page, so nothing is lost while the target runs.
 *  - soft-dirty: /proc/PID/clear_refs and /proc/PID/pagemap, where the kernel has CONFIG_MEM_SOFT_DIRTY.  It cannot clear
 *    what it reports in one step, so it must be harvested while the target is stopped, or reported again: see tracker.c.
 * Seen: stores by any thread of the target, system calls and DMA emulation that write through its mapping, writes
 * by ptrace and process_vm_writev.  Not seen: other mappings of the memfd, pwrite() to it, holes punched in it.
 * One thread at a time. */
#ifndef FT_QEMU_TRACKER_H
#define FT_QEMU_TRACKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "util.h"

struct tracker;

/* [caller's thread] Pages [@first, @first + @nr) of the memory were written. */
typedef void tracker_report(void *user, uint64_t first, uint64_t nr);

/* tracker_open - of the memory @memfd (@len octets) that process @pid maps.  @uffd: userfaultfd made in @pid, taken over
 * also on failure; -1: none could be had, only soft-dirty is left.
 * -ENOTSUP: the kernel has neither; the sentence names the kernel and what is needed.  -EINVAL: @pid does not map all of @memfd. */
int tracker_open(struct tracker **out, pid_t pid, int memfd, uint64_t len, int uffd, struct ft_error *err);
/* tracker_open_soft_dirty - the same by soft-dirty bits, from descriptors that are open already and become the tracker's:
 * @pagemap and @clear_refs of a process that maps @memfd at @va. */
int tracker_open_soft_dirty(struct tracker **out, int pagemap, int clear_refs, int memfd, uint64_t va, uint64_t len, struct ft_error *err);
void tracker_close(struct tracker *t); /* leaves the target as it is: what is armed stays armed and costs a fault per page */
const char *tracker_method(const struct tracker *t); /* "wp", "soft-dirty" */

/* tracker_arm - from now on each written page is reported.  May be repeated. */
int tracker_arm(struct tracker *t, struct ft_error *err);
/* tracker_disarm - the target runs at full speed again. */
void tracker_disarm(struct tracker *t);
/* tracker_collect - report and clear.  @stopped: the target writes nothing meanwhile. */
int tracker_collect(struct tracker *t, bool stopped, tracker_report *report, void *user, struct ft_error *err);
/* tracker_estimate - number of pages tracker_collect() would report; nothing is cleared. */
uint64_t tracker_estimate(struct tracker *t);
/* tracker_present - pages of @memfd that are not holes (a hole reads as zeros). */
int tracker_present(int memfd, uint64_t len, tracker_report *report, void *user, struct ft_error *err);

/* tracker_fetch_uffd - a userfaultfd that @pid has open, by pidfd_getfd().  -ENOENT: it has none. -EPERM: not permitted. */
int tracker_fetch_uffd(pid_t pid, struct ft_error *err);
/* tracker_fetch_memfd - the descriptor behind the largest shared file mapping of @pid that is exactly @len long. */
int tracker_fetch_memfd(pid_t pid, uint64_t len, struct ft_error *err);
/* tracker_check_kernel - whether this kernel can track at all; for a refusal before anything is started. */
int tracker_check_kernel(struct ft_error *err);

#endif
