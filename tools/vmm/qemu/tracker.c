/* SPDX-License-Identifier: MIT */
/* tracker.c - see tracker.h.
 *
 * wp: UFFDIO_WRITEPROTECT is used once, at arming, and not PAGEMAP_SCAN alone: it splits huge mappings.  Where PAGEMAP_SCAN
 * protects a huge page it stays huge and is tracked in 2 MiB: 3 written pages were reported as 1024.
 * An idle scan of 1 GiB takes 0.2 ms; it follows the populated page tables, not the dirty pages.
 *
 * soft-dirty: pagemap is read first and clear_refs written after, so with a running target a write in between would be
 * lost.  Then nothing is cleared and the pages are reported again by the next call.  A page that is not mapped has no bit: it
 * may have been written and reclaimed since, so it counts as written unless it is a hole. */
#include "tracker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "wp_kernel.h"

#define PAGE 4096u
#define VEC_LEN 65536u /* runs in one system call; 1.5 MiB, reused */
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)
#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)
#define PAGEMAP_SOFT_DIRTY (UINT64_C(1) << 55)
#define PAGEMAP_STEP 8192u /* entries in one read */

struct tracker {
	pid_t pid;
	int memfd; /* the caller's */
	int uffd, pagemap, clear_refs;
	bool is_wp;
	uint64_t va, len; /* the mapping in the target */
	void *vec;        /* struct wp_page_region[VEC_LEN], or uint64_t[PAGEMAP_STEP] */
	size_t vec_bytes;
};

/* ---- what the kernel can ------------------------------------------------------------------------ */

static int scan(int pagemap, uint64_t start, uint64_t end, bool protect, struct wp_page_region *vec, uint64_t *walk_end)
{
	struct wp_scan_arg a = {
		.size = sizeof(a),
		.flags = WP_SCAN_CHECK_ASYNC | (protect ? WP_SCAN_PROTECT : 0),
		.start = start,
		.end = end,
		.vec = (uintptr_t)vec,
		.vec_len = VEC_LEN,
		/* exactly this category, alone: the kernel has a fast path for it */
		.category_mask = WP_PAGE_IS_WRITTEN,
		.return_mask = WP_PAGE_IS_WRITTEN,
	};
	int n;

	do
		n = ioctl(pagemap, WP_PAGEMAP_SCAN, &a);
	while (n < 0 && errno == EINTR);
	*walk_end = a.walk_end;
	return n < 0 ? -errno : n;
}

static bool kernel_has_wp(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = WP_FEATURE_ASYNC | WP_FEATURE_UNPOPULATED | WP_FEATURE_HUGETLBFS_SHMEM };
	struct wp_scan_arg none = { .size = sizeof(none) };
	int fd = (int)syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool has = true;

	/* forbidden here says nothing about the target, which may be permitted; missing does */
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api))
		has = false;
	if (fd < 0 && errno == ENOSYS)
		has = false;
	if (pagemap < 0 || (ioctl(pagemap, WP_PAGEMAP_SCAN, &none) < 0 && (errno == ENOTTY || errno == EINVAL)))
		has = false;
	fd_close(&fd);
	fd_close(&pagemap);
	return has;
}

static bool soft_dirty_bit(int pagemap, const void *page)
{
	uint64_t entry = 0;

	return pread(pagemap, &entry, sizeof(entry), (off_t)((uintptr_t)page / PAGE * sizeof(entry))) ==
		       sizeof(entry) &&
	       (entry & PAGEMAP_SOFT_DIRTY);
}

/* By trying it on a page of our own: the files are there also in kernels built without it. */
static bool kernel_has_soft_dirty(void)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC),
	    clear = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
	volatile char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool has = false, was_set;

	if (pagemap >= 0 && clear >= 0 && page != MAP_FAILED) {
		*page = 1;
		if (write(clear, "4", 1) == 1) {
			was_set = soft_dirty_bit(pagemap, (const void *)page);
			*page = 2;
			has = !was_set && soft_dirty_bit(pagemap, (const void *)page);
		}
	}
	if (page != MAP_FAILED)
		munmap((void *)page, PAGE);
	fd_close(&pagemap);
	fd_close(&clear);
	return has;
}

int tracker_check_kernel(struct ft_error *err)
{
	struct utsname u;

	if (kernel_has_wp() || kernel_has_soft_dirty())
		return 0;
	uname(&u);
	return fail(err, -ENOTSUP,
		    "this kernel (%s) cannot track the pages a guest writes: it has neither asynchronous write "
		    "protection with "
		    "PAGEMAP_SCAN (Linux 6.7 or newer) nor soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)",
		    u.release);
}

/* ---- the target's descriptors and mappings ------------------------------------------------------ */

/* Calls @want for each descriptor of @pid until it returns true; the number, or -ENOENT. */
static int find_fd(pid_t pid, bool (*want)(const char *link, const char *path, const void *arg), const void *arg,
		   struct ft_error *err)
{
	char dir[64], path[64 + 256], link[512];
	struct dirent *e;
	int found = -ENOENT;
	ssize_t n;
	DIR *d;

	snprintf(dir, sizeof(dir), "/proc/%d/fd", (int)pid);
	d = opendir(dir);
	if (!d)
		return fail_sys(err, -errno, "descriptors of process %d", (int)pid);
	while (found < 0 && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		n = readlink(path, link, sizeof(link) - 1);
		if (n < 0)
			continue;
		link[n] = '\0';
		if (want(link, path, arg))
			found = atoi(e->d_name);
	}
	closedir(d);
	if (found < 0)
		fail(err, found, "process %d has no such descriptor", (int)pid);
	return found;
}

static bool is_uffd(const char *link, const char *path, const void *arg)
{
	(void)path;
	(void)arg;
	return !strcmp(link, "anon_inode:[userfaultfd]");
}

int tracker_fetch_uffd(pid_t pid, struct ft_error *err)
{
	int number = find_fd(pid, is_uffd, NULL, err), pidfd, fd;

	if (number < 0)
		return number;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return fail_sys(err, -errno, "process %d", (int)pid);
	fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
	if (fd < 0)
		fd = fail_sys(
			err, -errno,
			"the userfaultfd of process %d cannot be fetched (run ftqemu as root, or see ptrace_scope)",
			(int)pid);
	close(pidfd);
	return fd;
}

struct mapping {
	uint64_t start, end, offset, inode;
	unsigned major, minor;
	bool is_shared;
};

static bool parse_mapping(const char *line, struct mapping *m)
{
	char perm[8];

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64, &m->start, &m->end, perm, &m->offset,
		   &m->major, &m->minor, &m->inode) != 7)
		return false;
	m->is_shared = strlen(perm) == 4 && perm[3] == 's';
	return true;
}

static FILE *open_maps(pid_t pid, struct ft_error *err)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	if (!f)
		fail_sys(err, -errno, "mappings of process %d", (int)pid);
	return f;
}

static bool is_inode(const char *link, const char *path, const void *arg)
{
	const struct mapping *m = arg;
	struct stat st;

	(void)link;
	return !stat(path, &st) && S_ISREG(st.st_mode) && st.st_ino == m->inode && major(st.st_dev) == m->major &&
	       minor(st.st_dev) == m->minor;
}

int tracker_fetch_memfd(pid_t pid, uint64_t len, struct ft_error *err)
{
	struct mapping m, found = { 0 };
	uint64_t sum = 0;
	char line[768], path[64];
	FILE *f = open_maps(pid, err);
	int number, fd;

	if (!f)
		return err ? err->code : -ENOENT;
	/* a mapping may be split in pieces; they share the inode and lie one behind the other */
	while (fgets(line, sizeof(line), f)) {
		if (!parse_mapping(line, &m) || !m.is_shared || !m.inode)
			continue;
		sum = m.offset && m.inode == found.inode ? sum + (m.end - m.start) : m.end - m.start;
		found = m;
		if (sum == len)
			break;
	}
	fclose(f);
	if (sum != len)
		return fail(err, -ENOENT,
			    "process %d has no shared mapping of %" PRIu64
			    " MiB: its memory must be shared (memory-backend-memfd, or "
			    "memory-backend-file with share=on)",
			    (int)pid, len >> 20);
	number = find_fd(pid, is_inode, &found, err);
	if (number < 0)
		return number;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, number);
	fd = open(path, O_RDWR | O_CLOEXEC);
	return fd >= 0 ? fd : fail_sys(err, -errno, "memory of process %d", (int)pid);
}

/* Where the target maps all of the memfd. */
static int find_mapping(struct tracker *t, struct ft_error *err)
{
	uint64_t covered = 0;
	struct mapping m;
	struct stat st;
	char line[768];
	int rc = 0;
	FILE *f;

	if (fstat(t->memfd, &st))
		return fail_sys(err, -errno, "memory");
	f = open_maps(t->pid, err);
	if (!f)
		return err ? err->code : -ENOENT;
	while (!rc && fgets(line, sizeof(line), f)) {
		if (!parse_mapping(line, &m) || m.inode != st.st_ino || m.major != major(st.st_dev) ||
		    m.minor != minor(st.st_dev))
			continue;
		if (covered && m.start - m.offset != t->va)
			rc = fail(err, -EINVAL,
				  "process %d maps its memory twice; writes through one of them would not be seen",
				  (int)t->pid);
		t->va = m.start - m.offset;
		covered += m.end - m.start;
	}
	fclose(f);
	if (!rc && covered < t->len)
		rc = fail(err, -EINVAL, "process %d maps %" PRIu64 " of the %" PRIu64 " octets of its memory",
			  (int)t->pid, covered, t->len);
	return rc;
}

/* ---- open and close ----------------------------------------------------------------------------- */

static int open_proc(pid_t pid, const char *name, int flags, struct ft_error *err)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, flags | O_CLOEXEC);
	return fd >= 0 ? fd : fail_sys(err, -errno, "%s", path);
}

static int open_wp(struct tracker *t, struct ft_error *err)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = WP_FEATURE_ASYNC | WP_FEATURE_UNPOPULATED | WP_FEATURE_HUGETLBFS_SHMEM };

	/* EINVAL: an earlier ftqemu has done it on this descriptor (that the kernel can, was asked before) */
	if (ioctl(t->uffd, UFFDIO_API, &api) && errno != EINVAL)
		return fail_sys(err, -errno, "userfaultfd of process %d", (int)t->pid);
	t->is_wp = true;
	return 0;
}

static int open_soft_dirty(struct tracker *t, struct ft_error *err)
{
	struct utsname u;

	if (!kernel_has_soft_dirty()) {
		uname(&u);
		return fail(err, -ENOTSUP,
			    "no userfaultfd could be had from process %d, and this kernel (%s) has no soft-dirty bits "
			    "to do without",
			    (int)t->pid, u.release);
	}
	t->clear_refs = open_proc(t->pid, "clear_refs", O_WRONLY, err);
	return t->clear_refs < 0 ? t->clear_refs : 0;
}

static int make_vec(struct tracker *t, struct ft_error *err)
{
	t->vec_bytes = VEC_LEN * sizeof(struct wp_page_region);
	t->vec = mmap(NULL, t->vec_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (t->vec != MAP_FAILED)
		return 0;
	t->vec = NULL;
	return fail_sys(err, -errno, "memory for the scan");
}

int tracker_open_soft_dirty(struct tracker **out, int pagemap, int clear_refs, int memfd, uint64_t va, uint64_t len,
			    struct ft_error *err)
{
	struct tracker *t = calloc(1, sizeof(*t));
	int rc;

	*out = NULL;
	if (!t) {
		fd_close(&pagemap);
		fd_close(&clear_refs);
		return fail(err, -ENOMEM, "no memory");
	}
	*t = (struct tracker){
		.memfd = memfd, .va = va, .len = len, .uffd = -1, .pagemap = pagemap, .clear_refs = clear_refs
	};
	rc = make_vec(t, err);
	if (rc) {
		tracker_close(t);
		return rc;
	}
	*out = t;
	return 0;
}

int tracker_open(struct tracker **out, pid_t pid, int memfd, uint64_t len, int uffd, struct ft_error *err)
{
	struct tracker *t;
	int rc;

	*out = NULL;
	t = calloc(1, sizeof(*t));
	if (!t) {
		fd_close(&uffd);
		return fail(err, -ENOMEM, "no memory");
	}
	*t = (struct tracker){ .pid = pid, .memfd = memfd, .len = len, .uffd = uffd, .pagemap = -1, .clear_refs = -1 };
	rc = tracker_check_kernel(err);
	if (!rc)
		rc = find_mapping(t, err);
	if (!rc) {
		t->pagemap = open_proc(pid, "pagemap", O_RDONLY, err);
		rc = t->pagemap < 0 ? t->pagemap : 0;
	}
	if (!rc)
		rc = uffd >= 0 && kernel_has_wp() ? open_wp(t, err) : open_soft_dirty(t, err);
	if (!rc)
		rc = make_vec(t, err);
	if (rc) {
		tracker_close(t);
		return rc;
	}
	*out = t;
	return 0;
}

void tracker_close(struct tracker *t)
{
	if (!t)
		return;
	fd_close(&t->uffd);
	fd_close(&t->pagemap);
	fd_close(&t->clear_refs);
	if (t->vec)
		munmap(t->vec, t->vec_bytes);
	free(t);
}

const char *tracker_method(const struct tracker *t)
{
	return t->is_wp ? "wp" : "soft-dirty";
}

/* ---- arm, harvest ------------------------------------------------------------------------------- */

static int clear_soft_dirty(struct tracker *t, struct ft_error *err)
{
	return write(t->clear_refs, "4", 1) == 1 ? 0 : fail_sys(err, -errno, "clear_refs of process %d", (int)t->pid);
}

int tracker_arm(struct tracker *t, struct ft_error *err)
{
	struct uffdio_register reg = { .range = { t->va, t->len }, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect wp = { .range = { t->va, t->len }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };

	if (!t->is_wp)
		return clear_soft_dirty(t, err);
	if (ioctl(t->uffd, UFFDIO_REGISTER, &reg))
		return fail_sys(err, -errno, "memory of process %d cannot be write-protected", (int)t->pid);
	/* EAGAIN: the address space is changing under us */
	while (ioctl(t->uffd, UFFDIO_WRITEPROTECT, &wp))
		if (errno != EAGAIN && errno != EINTR)
			return fail_sys(err, -errno, "memory of process %d cannot be write-protected", (int)t->pid);
	return 0;
}

void tracker_disarm(struct tracker *t)
{
	struct uffdio_range range = { t->va, t->len };

	if (t->is_wp)
		ioctl(t->uffd, UFFDIO_UNREGISTER, &range); /* fails when the target has gone: fine */
}

static int collect_wp(struct tracker *t, bool protect, tracker_report *report, void *user, struct ft_error *err)
{
	const struct wp_page_region *vec = t->vec;
	uint64_t at = t->va, end = t->va + t->len, next;
	int n, i;

	while (at < end) {
		n = scan(t->pagemap, at, end, protect, t->vec, &next);
		if (n < 0)
			return fail_sys(err, n, "pages written by process %d", (int)t->pid);
		for (i = 0; i < n; i++)
			report(user, (vec[i].start - t->va) / PAGE, (vec[i].end - vec[i].start) / PAGE);
		if (next <= at)
			return fail(err, -EIO, "pages written by process %d: the scan stopped at %" PRIx64, (int)t->pid,
				    at);
		at = next;
	}
	return 0;
}

/* Report what of pages [@first, @last) is not a hole. */
static int report_data(int memfd, uint64_t first, uint64_t last, tracker_report *report, void *user,
		       struct ft_error *err)
{
	off_t at = (off_t)(first * PAGE), end = (off_t)(last * PAGE), hole;

	while (at < end) {
		at = lseek(memfd, at, SEEK_DATA);
		if (at < 0 && errno == ENXIO) /* nothing but holes from here */
			return 0;
		if (at < 0)
			return fail_sys(err, -errno, "holes of the memory");
		if (at >= end)
			return 0;
		hole = lseek(memfd, at, SEEK_HOLE);
		if (hole < 0)
			return fail_sys(err, -errno, "holes of the memory");
		if (hole > end)
			hole = end;
		report(user, (uint64_t)at / PAGE, ((uint64_t)hole - (uint64_t)at + PAGE - 1) / PAGE);
		at = hole;
	}
	return 0;
}

enum softness { CLEAN, DIRTY, ABSENT };

static enum softness softness_of(uint64_t entry)
{
	if (entry & PAGEMAP_SOFT_DIRTY)
		return DIRTY;
	return entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED) ? CLEAN : ABSENT;
}

static int collect_soft_dirty(struct tracker *t, tracker_report *report, void *user, struct ft_error *err)
{
	uint64_t pages = t->len / PAGE, page, run, n;
	const uint64_t *entry = t->vec;
	ssize_t got;
	int rc = 0;

	for (page = 0; !rc && page < pages; page += n) {
		n = pages - page < PAGEMAP_STEP ? pages - page : PAGEMAP_STEP;
		got = pread(t->pagemap, t->vec, n * sizeof(*entry), (off_t)((t->va / PAGE + page) * sizeof(*entry)));
		if (got != (ssize_t)(n * sizeof(*entry)))
			return fail_sys(err, got < 0 ? -errno : -EIO, "pagemap of process %d", (int)t->pid);
		for (uint64_t i = 0; !rc && i < n; i += run) {
			enum softness s = softness_of(entry[i]);

			for (run = 1; i + run < n && softness_of(entry[i + run]) == s; run++)
				;
			if (s == DIRTY)
				report(user, page + i, run);
			else if (s == ABSENT)
				rc = report_data(t->memfd, page + i, page + i + run, report, user, err);
		}
	}
	return rc;
}

int tracker_collect(struct tracker *t, bool stopped, tracker_report *report, void *user, struct ft_error *err)
{
	int rc;

	if (t->is_wp)
		return collect_wp(t, true, report, user, err);
	rc = collect_soft_dirty(t, report, user, err);
	if (!rc && stopped)
		rc = clear_soft_dirty(t, err);
	return rc;
}

static void count(void *user, uint64_t first, uint64_t nr)
{
	(void)first;
	*(uint64_t *)user += nr;
}

uint64_t tracker_estimate(struct tracker *t)
{
	uint64_t n = 0;

	if (t->is_wp)
		collect_wp(t, false, count, &n, NULL);
	else
		collect_soft_dirty(t, count, &n, NULL);
	return n;
}

int tracker_present(int memfd, uint64_t len, tracker_report *report, void *user, struct ft_error *err)
{
	return report_data(memfd, 0, len / PAGE, report, user, err);
}
