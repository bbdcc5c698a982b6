/* SPDX-License-Identifier: MIT */
/* bitmap.c - a set of pages with summary levels; the contract is in bitmap.h.
 * Level 0 holds a bit per page.  Level k + 1 holds a bit per word of level k: "this word may be non-zero".  There are
 * as many levels as it takes to come down to one word, the root, and two at least.  All levels lie in one mapping that
 * is reserved and never touched ahead of use, so an empty set over 2^40 pages costs a few pages of memory.
 * Owns: the mapping.  Thread: any, as the grid in bitmap.h allows.
 *
 * Why no bit is lost
 *
 * Every operation marked [up] or [down] below is seq_cst, so all of them stand in one total order, and that order
 * agrees with happens-before; "earlier" and "later" mean places in it.
 *	[up]	set: first the leaf bit (always a fetch_or), then, level by level to the root, each summary bit is seen to
 *		be 1 or made 1.  Never stops half way, not even when the page was set already: the one who set it may
 *		still be on its way up, and our caller may count on its own page being found.
 *	[down]	take: first a word is exchanged with 0, then the words below each bit that was in it.
 * Let set(p) end before take T begins, let p's leaf bit still be set then, and look at level k.  When set(p) passed it,
 * the summary bit above p was 1.  Only takes make it 0.  If an earlier take T' did so after set(p) passed, then T' went
 * on to the word below, later still; by then set(p) had long passed that word too, so the same holds there, and so on
 * down to the leaf, which T' emptied after p was set in it: p would be gone, against what we assumed.  So on each level
 * the bit is still 1 when T comes, and T finds its way down to p.  If set(p) overlaps T, then either T takes p, or each
 * bit that T cleared before set(p) passed is made 1 again by set(p), and the next take finds p by the same argument.
 * What can be left over is a summary bit above words that are zero.  It costs a look, and the next take drops it.
 *
 * Both orders are needed.  With summary before leaf in set, T could clear the summary and find the leaf still empty in
 * between; with leaf before summary in take, T could empty the leaf, and then wipe the summary bit of a set that came
 * between the two.  Acquire and release would not do: set's look at the summary and take's look at the leaf each follow
 * a write to the other word, and only seq_cst forbids that both see the old value.  tests/stress/stress_bitmap.c lists
 * what happens when these orders are broken. */
#include "bitmap.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "faultpoint.h"

#define LEVELS_MAX 9 /* 64^9 > 2^52 */
#define PAGES_MAX (UINT64_C(1) << 52)
#define NONE UINT64_MAX
#define ALL UINT64_MAX
#define LINE_WORDS 8 /* words in a cache line; each level starts on one of its own */

typedef _Atomic uint64_t word;

struct bitmap {
	uint64_t nr_pages;
	unsigned nr_levels;
	uint64_t nr_words[LEVELS_MAX];
	word *level[LEVELS_MAX];
	size_t len_bytes; /* of the mapping, which starts at level[0] */
};

static uint64_t bit(uint64_t at)
{
	return UINT64_C(1) << (at & 63);
}

/* Bits @lo to @hi (both included) of the bits that word @w holds. */
static uint64_t mask(uint64_t w, uint64_t lo, uint64_t hi)
{
	uint64_t m = ALL;

	if (w == lo >> 6)
		m &= ALL << (lo & 63);
	if (w == hi >> 6)
		m &= ALL >> (63 - (hi & 63));
	return m;
}

/* Without -mpopcnt the builtin is a call into libgcc; full words are the case where that would show. */
static uint64_t weight(uint64_t bits)
{
	return bits == ALL ? 64 : (uint64_t)__builtin_popcountll(bits);
}

/* Words from the start of a level of @nr words to the start of the next. */
static uint64_t stride(uint64_t nr)
{
	return (nr + LINE_WORDS - 1) / LINE_WORDS * LINE_WORDS;
}

static uint64_t peek(const word *w)
{
	/* only where the caller is alone or a stale answer does no harm */
	return atomic_load_explicit(w, memory_order_relaxed);
}

int bitmap_create(struct bitmap **out, uint64_t nr_pages)
{
	struct bitmap *b;
	uint64_t n = nr_pages, total = 0;
	word *mem;

	*out = NULL;
	if (nr_pages == 0 || nr_pages > PAGES_MAX)
		return -EINVAL;
	if (FT_FAULT("bitmap/create"))
		return -ENOMEM;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->nr_pages = nr_pages;
	while (b->nr_levels < 2 || n > 1) {
		n = (n + 63) >> 6;
		b->nr_words[b->nr_levels++] = n;
		total += stride(n);
	}
	b->len_bytes = total * sizeof(word);
	mem = mmap(NULL, b->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED) {
		free(b);
		return -ENOMEM;
	}
	for (unsigned k = 0; k < b->nr_levels; k++) {
		b->level[k] = mem;
		mem += stride(b->nr_words[k]);
	}
	*out = b;
	return 0;
}

void bitmap_destroy(struct bitmap *b)
{
	if (!b)
		return;
	munmap(b->level[0], b->len_bytes);
	free(b);
}

uint64_t bitmap_pages(const struct bitmap *b)
{
	return b->nr_pages;
}

/* [up] See to it that @bits are set in a summary word.  Looking first keeps the upper levels shared between the caches
 * of all writers instead of bouncing.  seq_cst; both pair with the exchange in move(). */
static void mark(word *w, uint64_t bits)
{
	if ((atomic_load(w) & bits) != bits)
		atomic_fetch_or(w, bits);
}

/* [up] Word @w of level @k has become non-zero: mark it on all levels above. */
static void publish(struct bitmap *b, unsigned k, uint64_t w)
{
	for (k++; k < b->nr_levels; k++, w >>= 6)
		mark(&b->level[k][w >> 6], bit(w));
}

bool bitmap_set(struct bitmap *b, uint64_t page)
{
	uint64_t old;

	assert(page < b->nr_pages);
	/* seq_cst; pairs with the exchange in move(), also to hand over what was written to the page.  So it may not be
	 * skipped when the bit is set already. */
	old = atomic_fetch_or(&b->level[0][page >> 6], bit(page));
	publish(b, 0, page >> 6);
	return !(old & bit(page));
}

uint64_t bitmap_set_run(struct bitmap *b, uint64_t first, uint64_t nr)
{
	uint64_t lo = first, hi = first + nr - 1, fresh = 0, m;

	assert(first <= b->nr_pages && nr <= b->nr_pages - first);
	if (nr == 0)
		return 0;
	for (uint64_t w = lo >> 6; w <= hi >> 6; w++) {
		m = mask(w, lo, hi);
		fresh += weight(m & ~atomic_fetch_or(&b->level[0][w], m)); /* as in bitmap_set() */
	}
	for (unsigned k = 1; k < b->nr_levels; k++) {
		lo >>= 6;
		hi >>= 6;
		for (uint64_t w = lo >> 6; w <= hi >> 6; w++)
			mark(&b->level[k][w], mask(w, lo, hi));
	}
	return fresh;
}

bool bitmap_test(const struct bitmap *b, uint64_t page)
{
	assert(page < b->nr_pages);
	/* acquire; pairs with the fetch_or of a set */
	return atomic_load_explicit(&b->level[0][page >> 6], memory_order_acquire) & bit(page);
}

/* The first set bit of level @base at or behind @at: up where nothing is left in a word, down where something is.
 * A summary bit above a zero word only sends us up again, behind it. */
static uint64_t next_set(const struct bitmap *b, unsigned base, uint64_t at)
{
	unsigned k = base;
	uint64_t left;

	while (k < b->nr_levels && at >> 6 < b->nr_words[k]) {
		left = peek(&b->level[k][at >> 6]) >> (at & 63);
		if (!left) {
			at = (at >> 6) + 1;
			k++;
			continue;
		}
		at += (uint64_t)__builtin_ctzll(left);
		if (k == base)
			return at;
		k--;
		at <<= 6;
	}
	return NONE;
}

/* The first clear page at or behind @at, or @end. */
static uint64_t next_clear(const struct bitmap *b, uint64_t at, uint64_t end)
{
	uint64_t clear;

	while (at < end) {
		clear = ~peek(&b->level[0][at >> 6]) >> (at & 63);
		if (clear) {
			at += (uint64_t)__builtin_ctzll(clear);
			break;
		}
		at = (at | 63) + 1;
	}
	return at < end ? at : end;
}

bool bitmap_test_any(const struct bitmap *b, uint64_t first, uint64_t nr)
{
	uint64_t at;

	assert(first <= b->nr_pages && nr <= b->nr_pages - first);
	at = next_set(b, 0, first);
	return at != NONE && at - first < nr;
}

bool bitmap_next_run(const struct bitmap *b, uint64_t from, uint64_t max_pages, struct page_run *run)
{
	uint64_t at = next_set(b, 0, from), end;

	assert(max_pages > 0);
	if (at == NONE)
		return false;
	end = b->nr_pages - at > max_pages ? at + max_pages : b->nr_pages;
	*run = (struct page_run){ .first = at, .nr = next_clear(b, at, end) - at };
	return true;
}

/* [down] Empty word @w of level @k of @src and all below it; with @dst, add what was there to it, from the leaf up, and
 * mark only words that did get something.  Returns the number of pages moved.
 * The exchange is seq_cst and pairs with the operations of a set on the same word.  A word that reads 0 needs none: the
 * load has its place in the total order just as well. */
static uint64_t move(struct bitmap *dst, struct bitmap *src, unsigned k, uint64_t w)
{
	word *from = &src->level[k][w];
	uint64_t had = atomic_load(from), put = 0, total = 0, n;

	if (had)
		had = atomic_exchange(from, 0);
	if (k == 0) {
		put = had;
		total = weight(had);
	}
	for (; k > 0 && had; had &= had - 1) {
		n = move(dst, src, k - 1, (w << 6) + (uint64_t)__builtin_ctzll(had));
		if (n)
			put |= had & -had;
		total += n;
	}
	if (dst && put)
		atomic_fetch_or(&dst->level[k][w], put); /* as in bitmap_set() */
	return total;
}

uint64_t bitmap_take(struct bitmap *dst, struct bitmap *src)
{
	assert(dst != src && dst->nr_pages == src->nr_pages);
	return move(dst, src, src->nr_levels - 1, 0);
}

void bitmap_clear(struct bitmap *b)
{
	move(NULL, b, b->nr_levels - 1, 0);
}

void bitmap_or(struct bitmap *dst, const struct bitmap *src)
{
	uint64_t bits;

	assert(dst->nr_pages == src->nr_pages);
	for (uint64_t w = next_set(src, 1, 0); w != NONE; w = next_set(src, 1, w + 1)) {
		bits = peek(&src->level[0][w]);
		if (!bits)
			continue;
		atomic_fetch_or(&dst->level[0][w], bits); /* as in bitmap_set() */
		publish(dst, 0, w);
	}
}

uint64_t bitmap_count(const struct bitmap *b)
{
	uint64_t n = 0;

	for (uint64_t w = next_set(b, 1, 0); w != NONE; w = next_set(b, 1, w + 1))
		n += weight(peek(&b->level[0][w]));
	return n;
}

bool bitmap_empty(const struct bitmap *b)
{
	return next_set(b, 0, 0) == NONE;
}

/* Leaf word @w has become zero: drop its summary bit, and so on up while words become zero.  A set may come by at any
 * time, so the word below is looked at again after its bit was dropped (both seq_cst): a set that came before this look
 * is published again by us, one that comes after it finds the bit dropped and marks it by itself. */
static void retract(struct bitmap *b, uint64_t w)
{
	uint64_t left;

	for (unsigned k = 0; k + 1 < b->nr_levels; k++, w >>= 6) {
		left = atomic_fetch_and(&b->level[k + 1][w >> 6], ~bit(w)) & ~bit(w);
		if (atomic_load(&b->level[k][w])) {
			publish(b, k, w);
			return;
		}
		if (left)
			return;
	}
}

void bitmap_clear_run(struct bitmap *b, uint64_t first, uint64_t nr)
{
	uint64_t last = first + nr - 1, m;

	assert(first <= b->nr_pages && nr <= b->nr_pages - first);
	if (nr == 0)
		return;
	for (uint64_t w = next_set(b, 1, first >> 6); w <= last >> 6; w = next_set(b, 1, w + 1)) {
		m = mask(w, first, last);
		if (!(atomic_fetch_and(&b->level[0][w], ~m) & ~m))
			retract(b, w);
	}
}
