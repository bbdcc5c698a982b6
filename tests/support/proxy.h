/* SPDX-License-Identifier: MIT */
/* proxy.h - a relay between the two sides' TCP connections, which a test can make stall, refuse, crawl or break at a given octet.
 * All connections of one protection go through it.  One thread of its own; every function may be called from any thread. */
#ifndef TEST_PROXY_H
#define TEST_PROXY_H

#include <stdint.h>

struct proxy;

enum proxy_mode {
	PROXY_PASS = 0, /* relay */
	PROXY_STALL,	/* nothing moves, connections stay, new ones are accepted and stall too */
	PROXY_REFUSE,	/* connections are reset, new ones too */
};
enum proxy_way { PROXY_TO_TARGET = 0, PROXY_FROM_TARGET = 1 };

/* proxy_open - relay to @target ("HOST:PORT", numeric).  Ends the test program if it cannot. */
struct proxy *proxy_open(const char *target);
void proxy_close(struct proxy *p);
const char *proxy_address(const struct proxy *p); /* "127.0.0.1:PORT" */

void proxy_set_mode(struct proxy *p, enum proxy_mode mode);
/* proxy_cut_after - once @octets have passed that way in all (counted from the opening), change to @mode.  0: never. */
void proxy_cut_after(struct proxy *p, enum proxy_way way, uint64_t octets, enum proxy_mode mode);
void proxy_set_rate(struct proxy *p, uint64_t octets_per_s); /* each way; 0: as fast as it goes */
uint64_t proxy_octets(struct proxy *p, enum proxy_way way);
/* proxy_set_once - when the first connection ends, whoever ends it, refuse from then on: a side that died stays dead. */
void proxy_set_once(struct proxy *p);
void proxy_wait_cut(struct proxy *p); /* until proxy_cut_after or proxy_set_once has come true */

#endif
