/* SPDX-License-Identifier: MIT */
/* pool.c - see pool.h.
 * Two ways to memory, one account.  What jemalloc can hand out without much rounding comes from the pool's arena, whose
 * extents come from map_extent().  Its size classes are a quarter of a power of two apart, so an image of 1.1 GiB would
 * take 1.25 GiB, and with mlock really take it: such lengths are an extent of their own.
 * Freed extents stay in the arena for the next one who asks; they are given back when the cap is reached, and at the end.
 * Owns: the arena and every mapping.  Thread: any.  Must hold: mapped <= cap at every instant (charge() comes before mmap,
 * and is undone behind munmap).  docs/decisions/004-private-jemalloc.md says why the arena is not the VMM's jemalloc. */
#include "pool.h"

#include <assert.h>
#include <errno.h>
#include <jemalloc/jemalloc.h> /* types and flags only; the functions of our copy are below */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "err.h"
#include "faultpoint.h"

#define PAGE UINT64_C(4096)
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define HUGE_PAGE (UINT64_C(2) << 20)
#define ROUNDING_MAX (UINT64_C(256) << 10) /* what jemalloc may add to a length */

/* Of the private copy (tools/cmake/FtJemalloc.cmake). */
void *ftje_mallocx(size_t size, int flags);
void ftje_dallocx(void *mem, int flags);
size_t ftje_nallocx(size_t size, int flags);
int ftje_mallctl(const char *name, void *old, size_t *old_len, void *new, size_t new_len);

/* Read by the copy when it starts, behind MALLOC_CONF and /etc/malloc.conf, which may be meant for the VMM's own
 * jemalloc: nothing kept on its side (retain), freed extents stay until we purge, no threads, no output. */
extern const char *ftje_malloc_conf_2_conf_harder;
const char *ftje_malloc_conf_2_conf_harder = "narenas:1,tcache:false,retain:false,background_thread:false,"
					     "dirty_decay_ms:-1,muzzy_decay_ms:0,stats_print:false,abort_conf:false";

/* A switch inside the copy (weak there, see tools/cmake): on, it adds a page to each large length, so that eight slabs
 * would not fit into a cap of eight slabs. */
extern bool je_opt_cache_oblivious;
bool je_opt_cache_oblivious = false;

/* The argument of "experimental.arenas_create_ext" in jemalloc 5.3; the call checks the size. */
struct arena_config {
	extent_hooks_t *hooks;
	bool metadata_use_hooks;
};

struct pool {
	extent_hooks_t hooks; /* first: a hook gets its address */
	struct pool_options opt;
	int flags; /* MALLOCX_*: our arena, no thread cache */
	unsigned arena;
	bool has_arena;
	atomic_bool huge_refused;            /* the kernel has no huge pages; relaxed, only told */
	_Atomic uint64_t mapped, used, peak; /* relaxed: counts, they order nothing */
};

/* Reserve @len of the cap. */
static bool charge(struct pool *p, uint64_t len)
{
	uint64_t old = atomic_load_explicit(&p->mapped, memory_order_relaxed), peak;

	do {
		if (len > p->opt.cap_bytes - old)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&p->mapped, &old, old + len, memory_order_relaxed,
							memory_order_relaxed));
	peak = atomic_load_explicit(&p->peak, memory_order_relaxed);
	while (peak < old + len && !atomic_compare_exchange_weak_explicit(&p->peak, &peak, old + len,
									  memory_order_relaxed, memory_order_relaxed))
		;
	return true;
}

static void discharge(struct pool *p, uint64_t len)
{
	atomic_fetch_sub_explicit(&p->mapped, len, memory_order_relaxed);
}

/* mmap with an alignment: take more, give back both ends. */
static uint8_t *map_aligned(size_t len, size_t align, bool sparse)
{
	size_t all = len + (align > PAGE ? align : 0), head;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (sparse ? MAP_NORESERVE : 0);
	uint8_t *mem =
		FT_FAULT("pool/map") ? faultpoint_map(ENOMEM) : mmap(NULL, all, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	if (all == len)
		return mem;
	head = -(uintptr_t)mem & (align - 1);
	if (head)
		munmap(mem, head);
	if (all - head - len)
		munmap(mem + head + len, all - head - len);
	return mem + head;
}

/* @len is a multiple of the page size. */
static void *map_extent(struct pool *p, size_t len, size_t align)
{
	bool huge = p->opt.huge_pages && len >= HUGE_PAGE;
	uint8_t *mem;

	if (huge && align < HUGE_PAGE)
		align = HUGE_PAGE;
	if (!charge(p, len))
		return NULL;
	mem = map_aligned(len, align, p->opt.sparse);
	if (mem && huge && madvise(mem, len, MADV_HUGEPAGE) != 0)
		atomic_store_explicit(&p->huge_refused, true, memory_order_relaxed); /* slower, not wrong */
	/* the bare call: sanitizers make mlock() do nothing */
	if (mem && p->opt.lock && syscall(SYS_mlock2, mem, len, p->opt.lock_on_fault ? MLOCK_ONFAULT : 0) != 0) {
		munmap(mem, len);
		mem = NULL;
	}
	if (!mem)
		discharge(p, len);
	return mem;
}

static void unmap_extent(struct pool *p, void *mem, size_t len)
{
	munmap(mem, len);
	discharge(p, len);
}

static void *hook_alloc(extent_hooks_t *hooks, void *at, size_t len, size_t align, bool *zero, bool *commit,
			unsigned arena)
{
	void *mem;

	(void)arena;
	if (at)
		return NULL; /* jemalloc would like to grow an extent in place */
	mem = map_extent((struct pool *)hooks, len, align);
	if (mem)
		*zero = *commit = true;
	return mem;
}

/* Hooks that return a bool return true for "no". */
static bool hook_dalloc(extent_hooks_t *hooks, void *mem, size_t len, bool committed, unsigned arena)
{
	(void)committed;
	(void)arena;
	unmap_extent((struct pool *)hooks, mem, len);
	return false;
}

static void hook_destroy(extent_hooks_t *hooks, void *mem, size_t len, bool committed, unsigned arena)
{
	hook_dalloc(hooks, mem, len, committed, arena);
}

/* Parts of a mapping and neighbouring mappings may be unmapped as one likes. */
static bool hook_split(extent_hooks_t *hooks, void *mem, size_t len, size_t len_a, size_t len_b, bool committed,
		       unsigned arena)
{
	(void)hooks, (void)mem, (void)len, (void)len_a, (void)len_b, (void)committed, (void)arena;
	return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *a, size_t len_a, void *b, size_t len_b, bool committed,
		       unsigned arena)
{
	(void)hooks, (void)a, (void)len_a, (void)b, (void)len_b, (void)committed, (void)arena;
	return false;
}

/* Would the kernel let us lock the cap?  Asked, not worked out from limit, capabilities and what is locked already:
 * MAP_LOCKED counts the whole mapping, and PROT_NONE leaves nothing to fault in. */
static int check_lock(uint64_t cap, struct ft_error *err)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_LOCKED;
	void *mem = mmap(NULL, cap, PROT_NONE, flags, -1, 0);
	int r = mem == MAP_FAILED ? -errno : 0;
	struct rlimit limit;
	char hard[32];

	if (r == 0) {
		munmap(mem, cap);
		return 0;
	}
	if ((r != -EAGAIN && r != -EPERM) || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return err_sys(err, r, "locked memory: %llu bytes", (unsigned long long)cap);
	snprintf(hard, sizeof(hard), "%llu", (unsigned long long)limit.rlim_max);
	return err_set(
		err, -ENOMEM,
		"locked memory: RLIMIT_MEMLOCK is %llu bytes (hard limit %s), and %llu are needed on top of what this "
		"process has locked already; raise it with \"ulimit -l %llu\", with LimitMEMLOCK=%llu in the systemd "
		"unit, or in /etc/security/limits.conf",
		(unsigned long long)limit.rlim_cur, limit.rlim_max == RLIM_INFINITY ? "none" : hard,
		(unsigned long long)cap, (unsigned long long)((cap + 1023) / 1024), (unsigned long long)cap);
}

/* Metadata stays out of the hooks: it comes in blocks of 2 MiB, of which a few pages are touched, and would eat the cap. */
static int create_arena(struct pool *p)
{
	struct arena_config config = { .hooks = &p->hooks, .metadata_use_hooks = false };
	size_t len = sizeof(p->arena);
	int r = FT_FAULT("pool/arena")
			? ENOMEM
			: ftje_mallctl("experimental.arenas_create_ext", &p->arena, &len, &config, sizeof(config));

	if (r)
		return -r;
	p->has_arena = true;
	p->flags = MALLOCX_ARENA(p->arena) | MALLOCX_TCACHE_NONE;
	return 0;
}

static void tell_arena(const struct pool *p, const char *what)
{
	char name[48];

	snprintf(name, sizeof(name), "arena.%u.%s", p->arena, what);
	ftje_mallctl(name, NULL, NULL, NULL, 0);
}

int pool_create(struct pool **out, const struct pool_options *opt, struct ft_error *err)
{
	struct pool *p;
	int r;

	*out = NULL;
	if (opt->cap_bytes < PAGE)
		return err_set(err, -EINVAL, "pool: the cap is %llu bytes, less than a page",
			       (unsigned long long)opt->cap_bytes);
	if (opt->lock) {
		r = check_lock(opt->cap_bytes, err);
		if (r)
			return r;
	}
	p = FT_FAULT("pool/create") ? NULL : calloc(1, sizeof(*p));
	if (!p)
		return err_sys(err, -ENOMEM, "pool");
	p->opt = *opt;
	p->hooks = (extent_hooks_t){ .alloc = hook_alloc,
				     .dalloc = hook_dalloc,
				     .destroy = hook_destroy,
				     .split = hook_split,
				     .merge = hook_merge };
	r = create_arena(p);
	if (r) {
		pool_destroy(p);
		return err_sys(err, r, "pool: jemalloc arena");
	}
	*out = p;
	return 0;
}

static size_t round_to_page(size_t len)
{
	return (len + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static int flags_for(const struct pool *p, size_t align)
{
	return p->flags | (align > 1 ? MALLOCX_ALIGN(align) : 0);
}

/* Depends on nothing but the length, so that pool_free() finds the same answer.  nallocx says 0 for what it cannot do. */
static bool own_extent(size_t len)
{
	return ftje_nallocx(len, MALLOCX_TCACHE_NONE) - len > ROUNDING_MAX;
}

static void *alloc(struct pool *p, size_t len, size_t align)
{
	if (own_extent(len))
		return map_extent(p, round_to_page(len), align);
	return ftje_mallocx(len, flags_for(p, align));
}

void *pool_alloc(struct pool *p, size_t len, size_t align)
{
	void *mem;

	assert(align && !(align & (align - 1)));
	if (len == 0 || len > p->opt.cap_bytes || FT_FAULT("pool/alloc"))
		return NULL;
	mem = alloc(p, len, align);
	if (!mem) {
		tell_arena(p, "purge"); /* what was freed may have another length than what is asked for */
		mem = alloc(p, len, align);
	}
	if (mem)
		atomic_fetch_add_explicit(&p->used, len, memory_order_relaxed);
	return mem;
}

void pool_free(struct pool *p, void *mem, size_t len)
{
	if (!mem)
		return;
	if (own_extent(len))
		unmap_extent(p, mem, round_to_page(len));
	else
		ftje_dallocx(mem, p->flags);
	atomic_fetch_sub_explicit(&p->used, len, memory_order_relaxed);
}

void pool_trim(struct pool *p, void *mem, size_t len)
{
	(void)!madvise(mem, len,
		       p->opt.lock ? MADV_DONTNEED_LOCKED : MADV_DONTNEED); /* refused: it stays, which is not wrong */
}

void pool_stats(struct pool *p, struct pool_stats *out)
{
	*out = (struct pool_stats){
		.cap_bytes = p->opt.cap_bytes,
		.mapped_bytes = atomic_load_explicit(&p->mapped, memory_order_relaxed),
		.used_bytes = atomic_load_explicit(&p->used, memory_order_relaxed),
		.peak_bytes = atomic_load_explicit(&p->peak, memory_order_relaxed),
		.huge_pages = p->opt.huge_pages && !atomic_load_explicit(&p->huge_refused, memory_order_relaxed),
		.locked = p->opt.lock,
	};
}

void pool_destroy(struct pool *p)
{
	if (!p)
		return;
	assert(atomic_load(&p->used) == 0);
	if (p->has_arena)
		tell_arena(p, "destroy");
	assert(atomic_load(&p->mapped) == 0);
	free(p);
}
