/* SPDX-License-Identifier: MIT */
/* cow.c - see cow.h.
 *
 * Which pages are still to be copied is `set` without `done`: set does not change while armed, done only grows (bitmap.h forbids two
 * clear_run at a time, two sets may run together).  A page is tested, copied and entered in done with its stripe's lock held, so
 * it is copied once; a writer that finds it in done with that lock knows that the copy is finished.
 *
 * Both bitmaps are cleared by disarm, which first makes `armed` false and then passes through every stripe: who had the lock before saw them
 * whole, who gets it afterwards sees that nothing is armed.  cow_end() does the same with `on`.
 *
 * Locks: stripe, then fault_lock.  A writer that must wait for a slab holds no stripe: who gives slabs needs them. */
#include "cow.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "faultpoint.h"
#include "thread.h"

#define STRIPES 64u
#define SAMPLE_MAX_NS 10000u /* a longer one has lost its processor meanwhile: that is no price of telling */

struct cow {
	pthread_mutex_t stripe[STRIPES];
	atomic_bool on, armed; /* changed by the owner, read by writers with a stripe */
	const struct region_table *regions;
	struct bitmap *written, *set, *done;
	_Atomic uint64_t nr_written, told_ns;

	pthread_mutex_t fault_lock;
	pthread_cond_t given;
	/* guarded by fault_lock */
	struct slab *fault;
	struct cow_paid paid;
	struct hist *times; /* NULL: nobody wants to know */

	uint32_t order[SLAB_PAGES]; /* owner's, of cow_sort() */
	uint8_t page[FT_PAGE_SIZE];
};

int cow_create(struct cow **out, struct hist *paid)
{
	struct cow *c = FT_FAULT("cow/create") ? NULL : calloc(1, sizeof(*c));

	*out = c;
	if (!c)
		return -ENOMEM;
	for (unsigned i = 0; i < STRIPES; i++)
		pthread_mutex_init(&c->stripe[i], NULL);
	pthread_mutex_init(&c->fault_lock, NULL);
	cond_init(&c->given);
	c->times = paid;
	return 0;
}

static void free_sets(struct cow *c)
{
	bitmap_destroy(c->written);
	bitmap_destroy(c->set);
	bitmap_destroy(c->done);
	c->written = c->set = c->done = NULL;
}

void cow_destroy(struct cow *c)
{
	if (!c)
		return;
	free_sets(c);
	for (unsigned i = 0; i < STRIPES; i++)
		pthread_mutex_destroy(&c->stripe[i]);
	pthread_mutex_destroy(&c->fault_lock);
	pthread_cond_destroy(&c->given);
	free(c);
}

int cow_begin(struct cow *c, const struct region_table *regions)
{
	uint64_t n = regions->nr_pages;

	c->regions = regions;
	if (FT_FAULT("cow/begin") || bitmap_create(&c->written, n) || bitmap_create(&c->set, n) ||
	    bitmap_create(&c->done, n)) {
		free_sets(c);
		return -ENOMEM;
	}
	atomic_store(&c->nr_written, 0);
	return 0;
}

void cow_on(struct cow *c)
{
	atomic_store(&c->on, true);
}

/* Every writer that was inside is out, or will see what was stored before. */
static void pass_writers(struct cow *c)
{
	for (unsigned i = 0; i < STRIPES; i++) {
		pthread_mutex_lock(&c->stripe[i]);
		pthread_mutex_unlock(&c->stripe[i]);
	}
}

void cow_disarm(struct cow *c)
{
	atomic_store(&c->armed, false);
	pthread_mutex_lock(&c->fault_lock);
	pthread_cond_broadcast(&c->given);
	pthread_mutex_unlock(&c->fault_lock);
	pass_writers(c);
	bitmap_clear(c->set);
	bitmap_clear(c->done);
}

void cow_off(struct cow *c)
{
	atomic_store(&c->on, false);
	pass_writers(c);
	bitmap_clear(c->written);
	atomic_store(&c->nr_written, 0);
}

void cow_end(struct cow *c)
{
	if (!c->set)
		return;
	atomic_store(&c->on, false);
	cow_disarm(c);
	free_sets(c);
}

void cow_arm(struct cow *c)
{
	struct bitmap *empty = c->set;

	c->set = c->written;
	c->written = empty;
	atomic_store(&c->nr_written, 0);
	atomic_store(&c->told_ns, 0);
	c->paid = (struct cow_paid){ 0 };
	atomic_store(&c->armed, true);
}

static bool to_copy(const struct cow *c, uint64_t page)
{
	return atomic_load(&c->armed) && bitmap_test(c->set, page) && !bitmap_test(c->done, page);
}

static void append(struct cow *c, struct slab *s, uint64_t page)
{
	pages_copy(s->memory + (size_t)s->nr * FT_PAGE_SIZE, region_page_address(c->regions, page, NULL), 1, NULL);
	pages_copied();
	s->page[s->nr++] = page;
}

static bool has_room(const struct cow *c)
{
	return c->fault && c->fault->nr < SLAB_PAGES;
}

static void pay_locked(struct cow *c, uint64_t began)
{
	uint64_t ns = now_ns() - began;

	c->paid.ns += ns;
	if (c->times)
		hist_add(c->times, ns);
}

static void pay(struct cow *c, uint64_t began)
{
	pthread_mutex_lock(&c->fault_lock);
	pay_locked(c, began);
	pthread_mutex_unlock(&c->fault_lock);
}

/* False: there is no room for it. */
static bool fault(struct cow *c, uint64_t page, uint64_t began)
{
	bool room;

	pthread_mutex_lock(&c->fault_lock);
	room = has_room(c);
	if (room) {
		append(c, c->fault, page);
		c->paid.faults++;
		pay_locked(c, began);
	}
	pthread_mutex_unlock(&c->fault_lock);
	return room;
}

static void wait_for_room(struct cow *c)
{
	pthread_mutex_lock(&c->fault_lock);
	while (atomic_load(&c->armed) && !has_room(c))
		cond_wait_until(&c->given, &c->fault_lock, DEADLINE_NEVER);
	pthread_mutex_unlock(&c->fault_lock);
}

/* True: it was one of those that are paid for. */
static bool write_page(struct cow *c, uint64_t page)
{
	pthread_mutex_t *lock = &c->stripe[page % STRIPES];
	uint64_t began = 0;
	bool waited = false, paid = false; /* waited: and another has copied the page meanwhile */

	if (pthread_mutex_trylock(lock)) {
		began = now_ns();
		pthread_mutex_lock(lock);
	}
	while (atomic_load(&c->on) && to_copy(c, page)) {
		began = began ? began : now_ns();
		if (fault(c, page, began)) {
			bitmap_set(c->done, page);
			waited = false;
			paid = true;
			break;
		}
		pthread_mutex_unlock(lock);
		wait_for_room(c);
		waited = true;
		pthread_mutex_lock(lock);
	}
	if (waited)
		pay(c, began);
	if (atomic_load(&c->on) && bitmap_set(c->written, page))
		atomic_fetch_add_explicit(&c->nr_written, 1, memory_order_relaxed);
	pthread_mutex_unlock(lock);
	return paid || waited;
}

/* The page space of a region, without trust in its table once it is off: looked up with a stripe, any; not the same for all writers. */
static bool locate(struct cow *c, uint32_t region, uint64_t first, uint64_t nr, uint64_t *page)
{
	pthread_mutex_t *lock = &c->stripe[first % STRIPES];
	bool ok = false;

	pthread_mutex_lock(lock);
	if (atomic_load(&c->on) && region < c->regions->count) {
		const struct region *r = &c->regions->region[region];

		ok = r->base && first <= r->nr_pages && nr <= r->nr_pages - first;
		*page = r->first_page + first;
	}
	pthread_mutex_unlock(lock);
	return ok;
}

void cow_write(struct cow *c, uint32_t region, uint64_t first, uint64_t nr)
{
	static _Thread_local unsigned calls;
	uint64_t began = ++calls % COW_SAMPLE ? 0 : now_ns(), page, ns;
	bool paid = false;

	if (!locate(c, region, first, nr, &page))
		return;
	for (uint64_t i = 0; i < nr; i++)
		paid |= write_page(c, page + i);
	if (!began || paid)
		return;
	ns = now_ns() - began;
	atomic_fetch_add_explicit(&c->told_ns, COW_SAMPLE * (ns < SAMPLE_MAX_NS ? ns : SAMPLE_MAX_NS),
				  memory_order_relaxed);
}

uint64_t cow_written(const struct cow *c)
{
	return atomic_load_explicit(&c->nr_written, memory_order_relaxed);
}

bool cow_copy(struct cow *c, struct slab *s, uint64_t *at, uint32_t max)
{
	uint32_t room = SLAB_PAGES - s->nr;
	struct page_run run;

	if (!bitmap_next_run(c->set, *at, max < room ? max : room, &run))
		return false;
	for (uint64_t page = run.first; page < run.first + run.nr; page++) {
		pthread_mutex_t *lock = &c->stripe[page % STRIPES];

		pthread_mutex_lock(lock);
		if (to_copy(c, page)) {
			append(c, s, page);
			bitmap_set(c->done, page);
		}
		pthread_mutex_unlock(lock);
	}
	*at = run.first + run.nr;
	return true;
}

bool cow_starved(struct cow *c)
{
	bool room;

	pthread_mutex_lock(&c->fault_lock);
	room = has_room(c);
	pthread_mutex_unlock(&c->fault_lock);
	return !room;
}

struct slab *cow_exchange(struct cow *c, struct slab *fresh)
{
	struct slab *old;

	if (fresh)
		fresh->nr = 0;
	pthread_mutex_lock(&c->fault_lock);
	old = c->fault;
	c->fault = fresh;
	pthread_cond_broadcast(&c->given);
	pthread_mutex_unlock(&c->fault_lock);
	return old;
}

struct cow_paid cow_paid(struct cow *c)
{
	struct cow_paid paid;

	pthread_mutex_lock(&c->fault_lock);
	paid = c->paid;
	pthread_mutex_unlock(&c->fault_lock);
	paid.told_ns = atomic_load_explicit(&c->told_ns, memory_order_relaxed);
	return paid;
}

/* Shell's: in place, as qsort() may allocate. */
static void sort_order(uint32_t *order, const uint64_t *page, uint32_t nr)
{
	for (uint32_t gap = nr / 2; gap; gap /= 2)
		for (uint32_t i = gap; i < nr; i++) {
			uint32_t slot = order[i], k = i;

			for (; k >= gap && page[order[k - gap]] > page[slot]; k -= gap)
				order[k] = order[k - gap];
			order[k] = slot;
		}
}

/* Each cycle of the permutation takes its first page out and moves the others up. */
void cow_sort(struct cow *c, struct slab *s)
{
	for (uint32_t i = 0; i < s->nr; i++)
		c->order[i] = i;
	sort_order(c->order, s->page, s->nr);
	for (uint32_t i = 0; i < s->nr; i++) {
		uint64_t number = s->page[i];
		uint32_t to = i;

		if (c->order[i] == i)
			continue;
		memcpy(c->page, s->memory + (size_t)i * FT_PAGE_SIZE, FT_PAGE_SIZE);
		while (c->order[to] != i) {
			uint32_t from = c->order[to];

			memcpy(s->memory + (size_t)to * FT_PAGE_SIZE, s->memory + (size_t)from * FT_PAGE_SIZE,
			       FT_PAGE_SIZE);
			s->page[to] = s->page[from];
			c->order[to] = to;
			to = from;
		}
		memcpy(s->memory + (size_t)to * FT_PAGE_SIZE, c->page, FT_PAGE_SIZE);
		s->page[to] = number;
		c->order[to] = to;
	}
}
