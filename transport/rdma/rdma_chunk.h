/* SPDX-License-Identifier: MIT */
/* rdma_chunk.h - where the chunks of a window lie.  Chunk i begins i << shift octets behind the window's base, whatever the base's own
 * alignment (the two sides differ in it), and the last one ends with the window.  All arithmetic on chunks is here; test_rdma_chunk has it. */
#ifndef FT_RDMA_CHUNK_H
#define FT_RDMA_CHUNK_H

#include <stdint.h>

#define RDMA_CHUNK_SHIFT_MIN 20u
#define RDMA_CHUNK_SHIFT_MAX 28u
#define RDMA_CHUNKS_MAX (1u << 20) /* of one window: 1 TiB in chunks of 1 MiB */

static inline uint64_t chunk_count(uint64_t len, unsigned shift)
{
	return (len >> shift) + ((len & ((UINT64_C(1) << shift) - 1)) != 0);
}

static inline uint64_t chunk_of(uint64_t offset, unsigned shift)
{
	return offset >> shift;
}

static inline uint64_t chunk_offset(uint64_t chunk, unsigned shift)
{
	return chunk << shift;
}

/* chunk_bytes - of chunk @chunk (below chunk_count()) of a window of @len octets. */
static inline uint64_t chunk_bytes(uint64_t chunk, uint64_t len, unsigned shift)
{
	uint64_t left = len - chunk_offset(chunk, shift), full = UINT64_C(1) << shift;

	return left < full ? left : full;
}

/* chunk_left - octets from @offset to the end of its chunk. */
static inline uint64_t chunk_left(uint64_t offset, uint64_t len, unsigned shift)
{
	uint64_t chunk = chunk_of(offset, shift);

	return chunk_offset(chunk, shift) + chunk_bytes(chunk, len, shift) - offset;
}

#endif
