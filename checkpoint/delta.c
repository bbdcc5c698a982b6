/* SPDX-License-Identifier: MIT */
/* delta.c - see delta.h.  Packing is pure; a struct past owns its mapping. */
#include "delta.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <ft/ft.h>
#include "faultpoint.h"
#include "wire.h"

#define LINE 64u
#define LINES (FT_PAGE_SIZE / LINE)
#define WORD 4u
#define WORDS (LINE / WORD)
#define LINE_MAX (2u + LINE) /* of a delta */

/* ---- a line ---- */

static uint64_t difference(const uint8_t *a, const uint8_t *b)
{
	uint64_t x[LINE / 8], y[LINE / 8], any = 0;

	memcpy(x, a, LINE);
	memcpy(y, b, LINE);
	for (unsigned i = 0; i < LINE / 8; i++)
		any |= x[i] ^ y[i];
	return any;
}

/* Every word is written, and kept if it differs: there is room, and no branch that would be guessed wrong. */
static uint8_t *pack_line(uint8_t *out, const uint8_t *old, const uint8_t *now)
{
	uint8_t *at = out + 2;
	ft_be16 wire;
	uint16_t mask = 0;

	for (unsigned i = 0; i < WORDS; i++) {
		uint32_t was, is;

		memcpy(&was, old + i * WORD, WORD);
		memcpy(&is, now + i * WORD, WORD);
		memcpy(at, &is, WORD);
		mask = (uint16_t)(mask | (was != is) << i);
		at += was != is ? WORD : 0;
	}
	wire = to_be16(mask);
	memcpy(out, &wire, sizeof(wire));
	return at;
}

static uint16_t mask_at(const uint8_t *in)
{
	ft_be16 wire;

	memcpy(&wire, in, sizeof(wire));
	return from_be16(wire);
}

static const uint8_t *unpack_line(uint8_t *line, const uint8_t *in)
{
	const uint8_t *at = in + 2;

	for (unsigned mask = mask_at(in); mask; mask &= mask - 1) {
		memcpy(line + (unsigned)__builtin_ctz(mask) * WORD, at, WORD);
		at += WORD;
	}
	return at;
}

/* ---- a page ---- */

static uint64_t lines_at(const uint8_t *in)
{
	ft_be64 wire;

	memcpy(&wire, in, sizeof(wire));
	return from_be64(wire);
}

uint32_t delta_pack(uint8_t *out, const uint8_t *old, const uint8_t *now, uint32_t most)
{
	uint8_t *at = out + sizeof(ft_be64);
	uint64_t lines = 0;
	ft_be64 wire;

	for (unsigned i = 0; i < LINES; i++) {
		if (!difference(old + i * LINE, now + i * LINE))
			continue;
		lines |= UINT64_C(1) << i;
		at = pack_line(at, old + i * LINE, now + i * LINE);
		if (at > out + most)
			return 0;
	}
	wire = to_be64(lines);
	memcpy(out, &wire, sizeof(wire));
	return (uint32_t)(at - out);
}

uint32_t delta_length(const uint8_t *in, uint64_t left)
{
	uint64_t lines, used = sizeof(ft_be64);

	if (left < used)
		return 0;
	for (lines = lines_at(in); lines; lines &= lines - 1) {
		if (left - used < 2 || !mask_at(in + used))
			return 0;
		used += 2 + (unsigned)__builtin_popcount(mask_at(in + used)) * WORD;
		if (used > left)
			return 0;
	}
	return (uint32_t)used;
}

void delta_unpack(uint8_t *page, const uint8_t *in)
{
	const uint8_t *at = in + sizeof(ft_be64);

	for (uint64_t lines = lines_at(in); lines; lines &= lines - 1)
		at = unpack_line(page + (unsigned)__builtin_ctzll(lines) * LINE, at);
}

_Static_assert(DELTA_MIN == sizeof(ft_be64) && DELTA_MAX == DELTA_MIN + LINES * LINE_MAX, "the head says so");

/* ---- contents ---- */

static void *reserve(uint64_t len)
{
	return FT_FAULT("past/map")
		       ? faultpoint_map(ENOMEM)
		       : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Scattered, also where page numbers have a common divisor. */
static uint64_t slot_of(const struct past *p, uint64_t number)
{
	uint64_t x = number * UINT64_C(0xbf58476d1ce4e5b9);

	if (p->all)
		return number;
	x ^= x >> 32;
	return ((x * UINT64_C(0x9e3779b97f4a7c15)) >> 32) * p->slots >> 32;
}

/* Huge pages: each first touch of a small one would cost more than ten deltas do. */
int past_open(struct past *p, uint64_t most, uint64_t nr_pages)
{
	uint64_t slots = most < nr_pages ? most : nr_pages;
	void *number = reserve(slots * sizeof(*p->number));
	void *memory = number == MAP_FAILED ? MAP_FAILED : reserve(slots * FT_PAGE_SIZE);

	*p = (struct past){ .slots = slots, .all = slots == nr_pages };
	if (memory == MAP_FAILED) {
		if (number != MAP_FAILED)
			munmap(number, slots * sizeof(*p->number));
		return -ENOMEM;
	}
	madvise(memory, slots * FT_PAGE_SIZE, MADV_HUGEPAGE);
	p->number = number;
	p->memory = memory;
	return 0;
}

void past_close(struct past *p)
{
	if (!p->number)
		return;
	munmap(p->number, p->slots * sizeof(*p->number));
	munmap(p->memory, p->slots * FT_PAGE_SIZE);
	p->number = NULL;
}

const uint8_t *past_of(const struct past *p, uint64_t number)
{
	uint64_t slot = slot_of(p, number);

	return p->number[slot] == number + 1 ? p->memory + slot * FT_PAGE_SIZE : NULL;
}

void past_note(struct past *p, uint64_t number, const uint8_t *page)
{
	uint64_t slot = slot_of(p, number);

	if (page) {
		memcpy(p->memory + slot * FT_PAGE_SIZE, page, FT_PAGE_SIZE);
		p->number[slot] = number + 1;
	} else if (p->number[slot] == number + 1) {
		p->number[slot] = 0;
	}
}
