/* SPDX-License-Identifier: MIT */
/* same.c - see same.h.  Owns the table's mapping. */
#include "same.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <ft/ft.h>
#include "clock.h"
#include "faultpoint.h"

#define SAMPLE_BITS 5u
#define COST_ROUNDS 8u

int same_open(struct same *s, uint64_t nr_pages)
{
	static const uint8_t zeros[FT_PAGE_SIZE];
	void *mem = FT_FAULT("same/map") ? faultpoint_map(ENOMEM)
					 : mmap(NULL, nr_pages * sizeof(*s->page), PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*s = (struct same){ .nr_pages = nr_pages };
	if (mem == MAP_FAILED)
		return -ENOMEM;
	s->page = mem;
	if (FT_FAULT("same/secret") || getrandom(s->secret, sizeof(s->secret), 0) != sizeof(s->secret)) {
		same_close(s);
		return -EIO;
	}
	s->zero = digest_secret(zeros, s->secret);
	return 0;
}

void same_close(struct same *s)
{
	if (s->page)
		munmap(s->page, s->nr_pages * sizeof(*s->page));
	s->page = NULL;
}

static void forget(struct same *s)
{
	size_t len = s->nr_pages * sizeof(*s->page);

	/* of memory that is locked nothing can be given back */
	if (madvise(s->page, len, MADV_DONTNEED))
		memset(s->page, 0, len);
}

void same_look_at(struct same *s, bool all)
{
	if (s->all && !all)
		forget(s);
	s->all = all;
}

/* The upper bits of the product are scattered also where page numbers have a common divisor. */
static bool in_sample(uint64_t number)
{
	return (number * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - SAMPLE_BITS) == 0;
}

static bool equal(struct digest128 a, struct digest128 b)
{
	return a.low == b.low && a.high == b.high;
}

bool same_is(struct same *s, uint64_t number, const uint8_t *page, bool zero)
{
	bool sample = in_sample(number), found;
	struct digest128 now;

	assert(number < s->nr_pages);
	if (!s->all && !sample)
		return false;
	now = zero ? s->zero : digest_secret(page, s->secret);
	/* the digest that stands for none counts as never found */
	found = equal(now, s->page[number]) && (now.low | now.high);
	s->page[number] = now;
	s->looked += sample && !zero;
	s->found += sample && !zero && found;
	return found;
}

/* The shortest of some rounds: the others lost the processor in between, or had their pages fetched from memory. */
uint64_t same_cost_ps(const struct same *s, const uint8_t *memory, uint32_t pages)
{
	uint64_t least = UINT64_MAX, sum = 0;

	for (unsigned i = 0; i < COST_ROUNDS; i++) {
		uint64_t begun = now_ns(), took;

		for (uint32_t k = 0; k < pages; k++)
			sum += digest_secret(memory + (size_t)k * FT_PAGE_SIZE, s->secret).low;
		took = now_ns() - begun;
		least = took < least ? took : least;
	}
	__asm__ volatile("" : : "r"(sum));
	return least * 1000 / pages;
}
