/* SPDX-License-Identifier: MIT */
/* rdma_story.h - a conversation of two ends over one connection, whose every octet is checked; for the tests of transport/rdma over the
 * made-up fabric.
 *
 * The writer tells rounds: in each it writes pieces of random sizes, from memory of all kinds, on all lanes, names them in a message per lane,
 * and commits on lane 0.  The reader compares with what the writer meant, the pieces at their message and the whole window at the commit, chats
 * a little on whatever lane has a credit, and answers.  Memory is spoiled as soon as its write is completed, written anew as soon as
 * it has settled.  Who meets an error closes its end at once; then the other end must find out. */
#ifndef TEST_RDMA_STORY_H
#define TEST_RDMA_STORY_H

#include <stdint.h>
#include "transport.h"

struct rdma_story {
	/* given; 0: what the comment says */
	struct tp_params writer, reader; /* lanes 3 */
	const char *listen;	/* "rdma:10.9.0.1:0" */
	uint64_t seed;
	unsigned rounds;	/* 3 */
	uint64_t window_bytes;	/* 6 MiB and a bit */
	unsigned pieces;	/* of a lane in a round, at most; 4 */
	uint32_t long_bytes;	/* of the longest pieces; 1.2 MiB */
	unsigned deadline_ms;	/* of each call; 20000 */
	unsigned plain;		/* only so many of the kinds of memory: 1 announced, 2 and mirrored, 3 (or 0) and unknown */
	void (*connected)(void *user); /* both ends stand; nothing was sent yet */
	void (*told)(void *user, unsigned round); /* on the writer's thread, after each round */
	void *user;

	/* what came of it */
	int rw, rr;		/* 0; the reader's is -ENODATA when all is well */
	struct ft_error ew, er;
	bool stood;		/* the connection was made */
	unsigned rounds_done;	/* answered */
	char wrong[200];	/* something was not as it must be whatever fails: content, order; empty: nothing */
	struct tp_info iw, ir;	/* at the end */
};

void rdma_story(struct rdma_story *s);
/* rdma_story_whole - all was well. */
bool rdma_story_whole(const struct rdma_story *s);
/* rdma_story_text - for messages; of this thread. */
const char *rdma_story_text(const struct rdma_story *s);

#endif
