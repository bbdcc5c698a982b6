/* SPDX-License-Identifier: MIT */
/* digest.h - the sums by which a commit is checked (docs/protocol.md "Digest").
 * The digest of a set is the sum modulo 2^64 of its members' digests, so the order does not matter:
 *   data page p    XXH3_64bits(4096 octets, seed = p)
 *   zero page p    XXH3_64bits(the page number, 8 octets in network order, seed = 0)
 *   device state   XXH3_64bits(its octets, seed = its length), also for 0 octets
 *   side-data      XXH3_64bits(its octets, seed = its offset)
 * Not a defence against a malicious peer: it finds what was lost, misplaced or damaged on the way. */
#ifndef FT_DIGEST_H
#define FT_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t digest_page(const void *page, uint64_t number);
uint64_t digest_zero(uint64_t number);
uint64_t digest_state(const void *buf, size_t len);
uint64_t digest_side(const void *buf, size_t len, uint64_t offset);

/* digest_secret - of a page with a secret of the caller's: XXH3's 128 bits.  Not part of the protocol: what the primary knows a page again by (same.h). */
#define DIGEST_SECRET_BYTES 192
struct digest128 {
	uint64_t low, high;
};
struct digest128 digest_secret(const void *page, const uint8_t secret[DIGEST_SECRET_BYTES]);

/* page_is_zero - all 4096 octets are 0.  Looks at the ends and the middle first: a used page costs some ns. */
int page_is_zero(const void *page);

#endif
