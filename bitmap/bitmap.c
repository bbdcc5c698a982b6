/* SPDX-License-Identifier: MIT */
/* bitmap.c - a set of pages with summary levels; the contract is in bitmap.h.
 * Level 0 holds a bit per page.  A line is 8 words, 512 bits, one cache line.  Level k + 1 holds a bit per line of level
 * k: "this line may be non-zero".  There are as many levels as it takes to come down to one line, and two at least.  All
 * levels lie in one mapping that is reserved and never touched ahead of use, so an empty set over 2^38 pages costs a few
 * pages of memory.
 * Owns: the mapping.  Thread: any, as the grid in bitmap.h allows.
 *
 * Why a bit per line and not per word: 5,000 pages spread over 64 GiB leave 5,000 leaf words and as many leaf lines, but
 * 4,000 summary words in the one case and 512 in the other, and each is an exchange (7 ns) for take.  take and walk of
 * that set: 126 us (181 us after other memory was read), flat passes doing the same 302 us (564 us); nothing set: under
 * 1 us against 117 us; all set: 1.7 ms against 1.9 ms (AMD EPYC, bench_bitmap; docs/decisions/003-summary-bitmap.md).
 *
 * Why no bit is lost
 *
 * Every operation marked [up] or [down] below is seq_cst, so all of them stand in one total order, and that order
 * agrees with happens-before; "earlier" and "later" mean places in it.
 *	[up]	set: first the leaf bit (always a fetch_or), then, level by level to the root, each summary bit is seen to
 *		be 1 or made 1.  Never stops half way, not even when the page was set already: the one who set it may
 *		still be on its way up, and our caller may count on its own page being found.
 *	[down]	take: first a word is exchanged with 0, then the line below each bit that was in it.
 * Let set(p) end before take T begins, let p's leaf bit still be set then, and look at level k.  When set(p) passed it,
 * the summary bit above p was 1.  Only takes make it 0 (clear_run too, see retract(); the two never overlap).  If an
 * earlier take T' did so after set(p) passed, then T' went on to the line below, later still; by then set(p) had long
 * passed that line too, so the same holds there, and so on down to the leaf, which T' emptied after p was set in it: p would be gone, against what we assumed.  So on each level
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

#define LEVELS_MAX 6 /* 512^6 > 2^52 */
#define PAGES_MAX (UINT64_C(1) << 52)
#define LINE_WORDS 8
#define LINE_SHIFT 9 /* 512 bits in a line */
#define NONE UINT64_MAX
#define ALL UINT64_MAX

typedef _Atomic uint64_t word;

struct bitmap {
	uint64_t nr_pages;
	unsigned nr_levels;
	uint64_t nr_words[LEVELS_MAX]; /* whole lines */
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

/* Number of set bits; without -mpopcnt the builtin is a call into libgcc, a tenth of the time of a take. */
static inline uint64_t weight(uint64_t v)
{
	v -= v >> 1 & UINT64_C(0x5555555555555555);
	v = (v & UINT64_C(0x3333333333333333)) + (v >> 2 & UINT64_C(0x3333333333333333));
	v = (v + (v >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
	return v * UINT64_C(0x0101010101010101) >> 56;
}

static uint64_t peek(const word *w)
{
	/* only where the caller is alone or a stale answer does no harm */
	return atomic_load_explicit(w, memory_order_relaxed);
}

static void poke(word *w, uint64_t bits)
{
	atomic_store_explicit(w, bits, memory_order_relaxed); /* the caller is alone */
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
		n = (n + (1 << LINE_SHIFT) - 1) >> LINE_SHIFT;
		b->nr_words[b->nr_levels++] = n * LINE_WORDS;
		total += n * LINE_WORDS;
	}
	b->len_bytes = total * sizeof(word);
	mem = mmap(NULL, b->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED) {
		free(b);
		return -ENOMEM;
	}
	for (unsigned k = 0; k < b->nr_levels; k++) {
		b->level[k] = mem;
		mem += b->nr_words[k];
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

/* [up] Line @line of level @k has become non-zero: mark it on all levels above. */
static void publish(struct bitmap *b, unsigned k, uint64_t line)
{
	for (k++; k < b->nr_levels; k++, line >>= LINE_SHIFT)
		mark(&b->level[k][line >> 6], bit(line));
}

bool bitmap_set(struct bitmap *b, uint64_t page)
{
	uint64_t old;

	assert(page < b->nr_pages);
	/* seq_cst; pairs with the exchange in move(), also to hand over what was written to the page.  So it may not be
	 * skipped when the bit is set already. */
	old = atomic_fetch_or(&b->level[0][page >> 6], bit(page));
	publish(b, 0, page >> LINE_SHIFT);
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
		lo >>= LINE_SHIFT;
		hi >>= LINE_SHIFT;
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

/* Which words of a line are not zero, as 8 bits.  Without branches: in a sparse set the place of the one word that is
 * not zero cannot be predicted, and a misprediction costs more than all eight looks.  seq_cst for the sake of move(). */
static inline unsigned nonzero(const word *line)
{
#define LOOK(i) ((unsigned)(atomic_load(&line[i]) != 0) << (i))
	return LOOK(0) | LOOK(1) | LOOK(2) | LOOK(3) | LOOK(4) | LOOK(5) | LOOK(6) | LOOK(7);
#undef LOOK
}

/* The first set bit of level @base at or behind @at, and all of its word in *@found.  Up, to the line behind, where
 * nothing is left in a line; down where there is something.  A summary bit above a line of zeros only sends us up again;
 * so does a word that a take empties under our eyes, which bitmap_test_any() may meet. */
static inline uint64_t seek(const struct bitmap *b, unsigned base, uint64_t at, uint64_t *found)
{
	uint64_t left, next;
	unsigned words;
	const word *line;

	for (unsigned k = base; k < b->nr_levels && at >> 6 < b->nr_words[k];) {
		line = &b->level[k][at >> LINE_SHIFT << 3];
		*found = peek(&line[at >> 6 & 7]);
		left = *found & ALL << (at & 63);
		if (!left) {
			words = nonzero(line) & 0xfeu << (at >> 6 & 7);
			if (!words) {
				at = (at >> LINE_SHIFT) + 1;
				k++;
				continue;
			}
			at = (at >> LINE_SHIFT << LINE_SHIFT) | (uint64_t)__builtin_ctz(words) << 6;
			continue;
		}
		for (;;) {
			at = (at & ~UINT64_C(63)) | (uint64_t)__builtin_ctzll(left);
			if (k == base)
				return at;
			next = left & (left - 1);
			line = &b->level[--k][at << 3];
			if (next)
				__builtin_prefetch(
					&line[(uint64_t)(__builtin_ctzll(next) - __builtin_ctzll(left)) << 3]);
			words = nonzero(line);
			if (!words) {
				at++;
				k++;
				break;
			}
			at = at << LINE_SHIFT | (uint64_t)__builtin_ctz(words) << 6;
			left = *found = peek(&line[__builtin_ctz(words)]);
			if (!left)
				break;
		}
	}
	return NONE;
}

static uint64_t next_set(const struct bitmap *b, unsigned base, uint64_t at)
{
	uint64_t word_of_it;

	return seek(b, base, at, &word_of_it);
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
	uint64_t found, at = seek(b, 0, from, &found), end, clear;

	assert(max_pages > 0);
	if (at == NONE)
		return false;
	end = b->nr_pages - at > max_pages ? at + max_pages : b->nr_pages;
	clear = ~(found >> (at & 63)); /* what was shifted in counts as clear: at the end of the word look on */
	*run = (struct page_run){ .first = at, .nr = clear ? (uint64_t)__builtin_ctzll(clear) : 64 };
	if ((at & 63) + run->nr == 64)
		run->nr = next_clear(b, at, end) - at;
	else if (run->nr > end - at)
		run->nr = end - at;
	return true;
}

/* Ask for the leaf lines below line @line of level 1 of @from, in @b.  An exchange is a barrier, so without this the cache
 * misses of a take would come one after the other: they made it 1.4 times as long. */
static void prefetch(const struct bitmap *b, const struct bitmap *from, uint64_t line)
{
	for (uint64_t w = line * LINE_WORDS; w < (line + 1) * LINE_WORDS; w++)
		for (uint64_t bits = peek(&from->level[1][w]); bits; bits &= bits - 1)
			__builtin_prefetch(&b->level[0][((w << 6) + (uint64_t)__builtin_ctzll(bits)) * LINE_WORDS], 1);
}

static uint64_t move(struct bitmap *dst, struct bitmap *src, unsigned k, uint64_t line);

/* What is below the bits @had of summary word @w of level @k; the bits under which there was something go to @put. */
static uint64_t move_below(struct bitmap *dst, struct bitmap *src, unsigned k, uint64_t w, uint64_t had, uint64_t *put)
{
	uint64_t total = 0, n;

	for (; had; had &= had - 1) {
		n = move(dst, src, k - 1, (w << 6) + (uint64_t)__builtin_ctzll(had));
		if (n)
			*put |= had & (~had + 1);
		total += n;
	}
	return total;
}

/* [down] Empty line @line of level @k of @src and all below it; with @dst, add what was there to it (the caller is alone
 * with @dst: no atomic read-modify-write) and mark only lines that did get something.  Returns the number of pages moved.
 * The exchange is seq_cst and pairs with the operations of a set on the same word.  A word that reads 0 needs none: the
 * load has its place in the total order just as well. */
static uint64_t move(struct bitmap *dst, struct bitmap *src, unsigned k, uint64_t line)
{
	uint64_t total = 0, had, put, w;

	if (k == 1) {
		prefetch(src, src, line);
		if (dst)
			prefetch(dst, src, line);
	}
	for (unsigned words = nonzero(&src->level[k][line * LINE_WORDS]); words; words &= words - 1) {
		w = line * LINE_WORDS + (unsigned)__builtin_ctz(words);
		had = atomic_exchange(&src->level[k][w], 0);
		put = 0;
		if (k > 0) {
			total += move_below(dst, src, k, w, had, &put);
		} else {
			put = had;
			total += weight(had);
		}
		if (dst && put)
			poke(&dst->level[k][w], peek(&dst->level[k][w]) | put);
	}
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
	for (uint64_t line = next_set(src, 1, 0); line != NONE; line = next_set(src, 1, line + 1)) {
		for (uint64_t w = line * LINE_WORDS; w < (line + 1) * LINE_WORDS; w++) {
			bits = peek(&src->level[0][w]);
			if (bits)
				atomic_fetch_or(&dst->level[0][w], bits); /* as in bitmap_set() */
		}
		publish(dst, 0, line);
	}
}

uint64_t bitmap_count(const struct bitmap *b)
{
	uint64_t n = 0;

	for (uint64_t line = next_set(b, 1, 0); line != NONE; line = next_set(b, 1, line + 1))
		for (uint64_t w = line * LINE_WORDS; w < (line + 1) * LINE_WORDS; w++)
			n += weight(peek(&b->level[0][w]));
	return n;
}

bool bitmap_empty(const struct bitmap *b)
{
	return next_set(b, 0, 0) == NONE;
}

static bool line_zero(const struct bitmap *b, unsigned k, uint64_t line)
{
	uint64_t any = 0;

	for (uint64_t w = line * LINE_WORDS; w < (line + 1) * LINE_WORDS; w++)
		any |= atomic_load(&b->level[k][w]);
	return !any;
}

/* Leaf line @line may have become zero: then drop its summary bit, and so on up while lines become zero.  A set may come
 * by at any time, so the line is looked at again after its bit was dropped (both seq_cst): a set that came before this
 * look is published again by us, one that comes after it finds the bit dropped and marks it by itself. */
static void retract(struct bitmap *b, uint64_t line)
{
	for (unsigned k = 0; k + 1 < b->nr_levels && line_zero(b, k, line); k++, line >>= LINE_SHIFT) {
		atomic_fetch_and(&b->level[k + 1][line >> 6], ~bit(line));
		if (!line_zero(b, k, line)) {
			publish(b, k, line);
			return;
		}
	}
}

void bitmap_clear_run(struct bitmap *b, uint64_t first, uint64_t nr)
{
	uint64_t last = first + nr - 1, lo, hi;

	assert(first <= b->nr_pages && nr <= b->nr_pages - first);
	if (nr == 0)
		return;
	for (uint64_t line = next_set(b, 1, first >> LINE_SHIFT); line <= last >> LINE_SHIFT;
	     line = next_set(b, 1, line + 1)) {
		lo = line == first >> LINE_SHIFT ? first >> 6 : line * LINE_WORDS;
		hi = line == last >> LINE_SHIFT ? last >> 6 : line * LINE_WORDS + LINE_WORDS - 1;
		for (uint64_t w = lo; w <= hi; w++)
			if (peek(&b->level[0][w]))
				atomic_fetch_and(&b->level[0][w], ~mask(w, first, last));
		retract(b, line);
	}
}
