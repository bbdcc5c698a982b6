/* SPDX-License-Identifier: MIT */
/* track.c - see track.h.
 *
 * No page is lost between a marker and the collector:
 *  - The marker writes the page, then sets the bit with a read-modify-write, also when it is set already.  The collector
 *    takes the word with another one.  Whichever comes first in the order of that word, either the collector sees the write (its
 *    exchange reads what the marker released) or the bit stays for the next time.  A plain "is it set already?" would not do: the
 *    load could pass the page's store in the store buffer.
 *  - The marker that finds the word empty sets the summary bit after it; the collector clears summary bits before it takes the
 *    words.  So a word with bits has its summary bit, or a marker is about to set it, or the collector is about to take it. */
#include "track.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

struct track {
	uint64_t nr_pages, nr_words, nr_summary;
	size_t map_bytes;
	_Atomic uint64_t *word, *summary;
	_Atomic uint64_t count;
};

int track_create(struct track **out, uint64_t nr_pages)
{
	struct track *t = calloc(1, sizeof(*t));
	void *mem;

	*out = NULL;
	if (!t)
		return -ENOMEM;
	t->nr_pages = nr_pages;
	t->nr_words = (nr_pages + 63) / 64;
	t->nr_summary = (t->nr_words + 63) / 64;
	t->map_bytes = (t->nr_words + t->nr_summary) * sizeof(uint64_t);
	mem = mmap(NULL, t->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED) {
		free(t);
		return -ENOMEM;
	}
	t->word = mem;
	t->summary = t->word + t->nr_words;
	*out = t;
	return 0;
}

void track_destroy(struct track *t)
{
	if (!t)
		return;
	munmap((void *)t->word, t->map_bytes);
	free(t);
}

bool track_mark(struct track *t, uint64_t page)
{
	uint64_t w = page / 64, bit = UINT64_C(1) << page % 64;
	uint64_t old = atomic_fetch_or_explicit(&t->word[w], bit, memory_order_acq_rel); /* pairs with take_word() */

	if (!old)
		atomic_fetch_or_explicit(&t->summary[w / 64], UINT64_C(1) << w % 64, memory_order_release);
	if (old & bit)
		return false;
	atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
	return true;
}

bool track_test(const struct track *t, uint64_t page)
{
	return atomic_load_explicit(&t->word[page / 64], memory_order_acquire) >> page % 64 & 1;
}

uint64_t track_count(const struct track *t)
{
	int64_t n = (int64_t)atomic_load_explicit(&t->count, memory_order_relaxed);

	return n > 0 ? (uint64_t)n : 0; /* below 0 for a moment: taken before its marker has counted it */
}

static uint64_t take_word(struct track *t, _Atomic uint64_t *word)
{
	uint64_t bits = atomic_exchange_explicit(word, 0, memory_order_acq_rel); /* pairs with track_mark() */

	atomic_fetch_sub_explicit(&t->count, (uint64_t)__builtin_popcountll(bits), memory_order_relaxed);
	return bits;
}

/* A run that is still growing, because the next word may go on where this one ended. */
struct growing {
	uint64_t first, nr;
	int (*run)(void *user, uint64_t first, uint64_t nr);
	void *user;
};

static int grow(struct growing *g, uint64_t first, uint64_t nr)
{
	int ret = 0;

	if (g->nr && g->first + g->nr == first) {
		g->nr += nr;
		return 0;
	}
	if (g->nr)
		ret = g->run(g->user, g->first, g->nr);
	g->first = first;
	g->nr = nr;
	return ret;
}

static int grow_word(struct growing *g, uint64_t base, uint64_t bits)
{
	while (bits) {
		unsigned at = (unsigned)__builtin_ctzll(bits);
		uint64_t rest = ~(bits >> at);
		unsigned nr = rest ? (unsigned)__builtin_ctzll(rest) : 64;
		int ret = grow(g, base + at, nr);

		if (ret)
			return ret;
		if (at + nr >= 64)
			break;
		bits &= ~UINT64_C(0) << (at + nr);
	}
	return 0;
}

static int walk(struct track *t, bool clear, struct growing *g)
{
	for (uint64_t s = 0; s < t->nr_summary; s++) {
		uint64_t words = atomic_load_explicit(&t->summary[s], memory_order_acquire);

		if (words && clear)
			words = atomic_exchange_explicit(&t->summary[s], 0, memory_order_acq_rel);
		for (; words; words &= words - 1) {
			uint64_t w = s * 64 + (uint64_t)__builtin_ctzll(words);
			uint64_t bits = clear ? take_word(t, &t->word[w]) : atomic_load(&t->word[w]);
			int ret = grow_word(g, w * 64, bits);

			if (ret)
				return ret;
		}
	}
	return g->nr ? g->run(g->user, g->first, g->nr) : 0;
}

int track_take(struct track *t, int (*run)(void *user, uint64_t first, uint64_t nr), void *user)
{
	struct growing g = { .run = run, .user = user };

	return walk(t, true, &g);
}

int track_each(struct track *t, int (*run)(void *user, uint64_t first, uint64_t nr), void *user)
{
	struct growing g = { .run = run, .user = user };

	return walk(t, false, &g);
}
