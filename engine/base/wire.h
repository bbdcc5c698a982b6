/* SPDX-License-Identifier: MIT */
/* wire.h - integers in network order.  Each is a struct with one member, so that a missing byte swap does
 * not compile. */
#ifndef FT_BASE_WIRE_H
#define FT_BASE_WIRE_H

#include <endian.h>
#include <stdint.h>

typedef struct { uint16_t be; } ft_be16;
typedef struct { uint32_t be; } ft_be32;
typedef struct { uint64_t be; } ft_be64;

static inline uint16_t from_be16(ft_be16 v) { return be16toh(v.be); }
static inline uint32_t from_be32(ft_be32 v) { return be32toh(v.be); }
static inline uint64_t from_be64(ft_be64 v) { return be64toh(v.be); }
static inline ft_be16 to_be16(uint16_t v) { return (ft_be16){ htobe16(v) }; }
static inline ft_be32 to_be32(uint32_t v) { return (ft_be32){ htobe32(v) }; }
static inline ft_be64 to_be64(uint64_t v) { return (ft_be64){ htobe64(v) }; }

#endif
