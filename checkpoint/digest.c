/* SPDX-License-Identifier: MIT */
/* digest.c - see digest.h.  Pure functions: any thread.
 * Which XXH3: libxxhash's own dispatch, which picks SSE2, AVX2 or AVX-512 by the CPU it runs on.  ns per page here
 * (Zen 5, pages in L3 / in DRAM): dispatch 69 / 152; inlined and built with -mavx2 70 / 188, with -mavx512f 71 /
 * 179; the library without dispatch 200 / 260; inlined at the x86-64 baseline 720 (gcc), 400 (clang).  So nothing of
 * our own would be faster, and the test compares with the scalar code of the header. */
#include "digest.h"

#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* renames XXH3_64bits_withSeed, XXH3_128bits_withSecret */
#endif
#include <ft/ft.h>
#include "wire.h"

uint64_t digest_page(const void *page, uint64_t number)
{
	return XXH3_64bits_withSeed(page, FT_PAGE_SIZE, number);
}

uint64_t digest_zero(uint64_t number)
{
	ft_be64 octets = to_be64(number);

	return XXH3_64bits_withSeed(&octets, sizeof(octets), 0);
}

uint64_t digest_state(const void *buf, size_t len)
{
	return XXH3_64bits_withSeed(buf, len, len);
}

uint64_t digest_side(const void *buf, size_t len, uint64_t offset)
{
	return XXH3_64bits_withSeed(buf, len, offset);
}

struct digest128 digest_secret(const void *page, const uint8_t secret[DIGEST_SECRET_BYTES])
{
	XXH128_hash_t h = XXH3_128bits_withSecret(page, FT_PAGE_SIZE, secret, DIGEST_SECRET_BYTES);

	return (struct digest128){ .low = h.low64, .high = h.high64 };
}

#define WORDS (FT_PAGE_SIZE / 8)

/* A used page: 2 ns in L3; a page of zeros 41 ns in L2, 47 in L3, 125 in DRAM.  AVX2 makes it 24, 40, 93 and
 * memcmp() with itself, which libc dispatches, 33, 46, 177: not worth a version per CPU beside a digest of 70. */
int page_is_zero(const void *page)
{
	const uint64_t *w = page;

	if (w[0] | w[WORDS / 2] | w[WORDS - 1])
		return 0;
	for (unsigned i = 0; i < WORDS; i += 8)
		if (w[i] | w[i + 1] | w[i + 2] | w[i + 3] | w[i + 4] | w[i + 5] | w[i + 6] | w[i + 7])
			return 0;
	return 1;
}
