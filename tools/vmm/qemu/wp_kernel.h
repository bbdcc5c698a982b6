/* SPDX-License-Identifier: MIT */
/* wp_kernel.h - the kernel's interface for tracking writes of another process, where the system's headers are older:
 * asynchronous write protection by userfaultfd and PAGEMAP_SCAN, Linux 6.7 (Debian 12 has the headers of 6.1).
 * Names and numbers are the kernel's ABI; structs are declared under names of our own, so that newer headers do not clash. */
#ifndef FT_QEMU_WP_KERNEL_H
#define FT_QEMU_WP_KERNEL_H

#include <stdint.h>
#include <sys/ioctl.h>
#include <linux/userfaultfd.h>

#define WP_FEATURE_HUGETLBFS_SHMEM (UINT64_C(1) << 12)
#define WP_FEATURE_UNPOPULATED (UINT64_C(1) << 13)
#define WP_FEATURE_ASYNC (UINT64_C(1) << 15)

/* A run of pages that PAGEMAP_SCAN found; addresses are of the scanned process. */
struct wp_page_region {
	uint64_t start, end, categories;
};

struct wp_scan_arg {
	uint64_t size, flags;
	uint64_t start, end, walk_end; /* walk_end: where the kernel stopped, because the vector was full or at the end */
	uint64_t vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define WP_PAGEMAP_SCAN _IOWR('f', 16, struct wp_scan_arg)
#define WP_PAGE_IS_WRITTEN (UINT64_C(1) << 1)
#define WP_SCAN_PROTECT (UINT64_C(1) << 0)     /* PM_SCAN_WP_MATCHING: protect what is reported, in the same step */
#define WP_SCAN_CHECK_ASYNC (UINT64_C(1) << 1) /* PM_SCAN_CHECK_WPASYNC: fail where tracking is not armed */

#endif
