/* SPDX-License-Identifier: MIT */
/* pool.h - memory for staging and receive images: a jemalloc arena of its own whose extents come from mmap,
 * with a hard cap, huge-page advice and optional mlock.  The arena belongs to a private, renamed copy of
 * jemalloc inside libft (tools/cmake), so the malloc of the embedding VMM is never replaced.
 * The cap is for memory that can be handed out; jemalloc's notes about it (some tens of KiB touched) come on top.
 * Thread-safe.  Nothing on the epoch path allocates: slabs are made once and reused. */
#ifndef FT_BASE_POOL_H
#define FT_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ft/error.h>

struct pool;

struct pool_options {
	uint64_t cap_bytes;  /* mapped memory never exceeds it */
	bool huge_pages;     /* MADV_HUGEPAGE on extents of 2 MiB and more */
	bool sparse;	     /* most of it is never touched: the kernel is not asked whether all of it could be */
	bool lock;	     /* mlock extents; pool_create checks RLIMIT_MEMLOCK against the cap */
	bool lock_on_fault;  /* with lock: a page is locked when it is first touched, not before */
};

struct pool_stats {
	uint64_t cap_bytes;
	uint64_t mapped_bytes; /* what the pool holds; freed memory stays mapped until the cap is met, or the end */
	uint64_t used_bytes;   /* handed out, as asked for */
	uint64_t peak_bytes;   /* the most that was ever mapped */
	bool huge_pages, locked; /* asked for, and not refused by the kernel */
};

/* pool_create - 0; -EINVAL: a cap below a page; -ENOMEM: no memory, or @opt->lock and the kernel will not lock the cap: the
 * sentence has the limit found, the number needed and how to raise it.  Maps nothing yet. */
int pool_create(struct pool **out, const struct pool_options *opt, struct ft_error *err);
/* pool_alloc - @len octets, aligned to @align (a power of two), zeroed on first use of the mapping only.
 * NULL at the cap or without memory. */
void *pool_alloc(struct pool *p, size_t len, size_t align);
/* pool_free - @len as given to pool_alloc().  NULL is harmless. */
void pool_free(struct pool *p, void *mem, size_t len);
/* pool_trim - [@mem, @mem + @len) of the pool, whole pages, is zeros again and takes no memory, where the kernel can: locked pages from Linux 5.18 on.
 * Else its contents are undefined. */
void pool_trim(struct pool *p, void *mem, size_t len);
void pool_stats(struct pool *p, struct pool_stats *out);
/* pool_destroy - everything handed out must have come back.  NULL is harmless. */
void pool_destroy(struct pool *p);

#endif
