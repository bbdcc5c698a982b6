/* SPDX-License-Identifier: MIT */
/* stress_rdma.c - thousands of checked conversations (support/rdma_story.h) over the made-up fabric, whose steps a thread draws: each seed
 * is another mixture of lanes, credits (1, 2, 4, 8), queue depth (from 4), signaling, ways of registration, pin budgets (from 4 chunks), memory
 * of all kinds, small devices, torn writes, full queues, and, in a part of them, of one fault: a work request that fails, a call that fails,
 * a wire that dies.  Made for ThreadSanitizer too.  Exit status 0 is a pass.
 *
 * Without a fault every octet must arrive and both ends be well; with one nothing may be wrong that was told, and both ends must end.  In
 * all cases nothing is left in the fabric, and no rule of verbs was broken.
 *
 * Tried once each, in transport/rdma, to see that it bites: tp_completed() that tells all tickets at once and tp_settle() that does not wait
 * (found by seeds 1 and 27: a piece is not in place), a message that overtakes writes that wait for a key (1: the same), a chunk
 * that is unpinned while writes to it are on the wire (11: remote access error), and rdma_fail() that ends a connection before the receives
 * that came earlier were told (1: a round is missing).
 *
 * stress_rdma [--seed FIRST] [--seeds N]      150 seeds; FABRIC_TRACE=1 tells each step of the fabric */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric_fake.h"
#include "rdma_private.h"
#include "rdma_story.h"
#include "rng.h"

enum fault { FAULT_NONE, FAULT_FULL, FAULT_WR, FAULT_CALL, FAULT_WIRE, NR_FAULTS };

struct draw {
	enum fault fault;
	enum fabric_wr wr;
	enum ibv_wc_status status;
	enum fabric_call call;
	unsigned nth, times;
	int error;
};

static uint32_t one_of(struct rng *r, const uint32_t *list, unsigned n)
{
	return list[rng_next(r) % n];
}
#define ONE_OF(r, ...) one_of(r, (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / 4)

static struct tp_params draw_params(struct rng *r)
{
	struct tp_params p = { .lanes = ONE_OF(r, 2, 3, 4, 9),
			       .credits = ONE_OF(r, 1, 2, 4, 8),
			       .sq_depth = ONE_OF(r, 4, 5, 8, 32, 256),
			       .signal_every = ONE_OF(r, 1, 2, 7, 64),
			       .chunk_bytes = ONE_OF(r, 1u << 20, 1u << 20, 2u << 20),
			       .registration = (enum tp_registration)ONE_OF(r, TP_REGISTER_CHUNKS, TP_REGISTER_CHUNKS,
									    TP_REGISTER_CHUNKS, TP_REGISTER_WHOLE,
									    TP_REGISTER_ODP) };

	if (p.registration == TP_REGISTER_CHUNKS)
		p.pin_budget = p.chunk_bytes * (uint64_t)ONE_OF(r, 0, 4, 4, 5, 9);
	return p;
}

static struct fabric_config draw_device(struct rng *r)
{
	struct fabric_config cfg;

	fabric_defaults(&cfg);
	cfg.torn = rng_next(r) % 2;
	cfg.odp = rng_next(r) % 2;
	cfg.iwarp = rng_next(r) % 8 == 0;
	cfg.timewait_exit = rng_next(r) % 2;
	cfg.max_sge = (int)ONE_OF(r, 1, 2, 32);
	return cfg;
}

static struct draw draw_fault(struct rng *r)
{
	struct draw d = { .fault = rng_next(r) % 2 ? FAULT_NONE : (enum fault)(rng_next(r) % NR_FAULTS) };

	d.nth = (unsigned)rng_range(r, 1, 60);
	d.times = d.fault == FAULT_FULL ? (unsigned)rng_range(r, 1, 30) : 1;
	d.error = d.fault == FAULT_FULL ? ENOMEM : EIO;
	d.call = d.fault == FAULT_FULL ? FABRIC_POST_SEND
				       : (enum fabric_call)ONE_OF(r, FABRIC_POLL_CQ, FABRIC_POST_SEND, FABRIC_POST_RECV,
								  FABRIC_REG_MR);
	d.wr = (enum fabric_wr)(rng_next(r) % 3);
	d.status = (enum ibv_wc_status)rng_range(r, 1, IBV_WC_GENERAL_ERR);
	return d;
}

static void arm(void *user)
{
	const struct draw *d = user;

	if (d->fault == FAULT_WR)
		fabric_fail_wr(d->wr, d->nth, d->status);
	if (d->fault == FAULT_FULL || d->fault == FAULT_CALL)
		fabric_fail(d->call, d->nth, d->error, d->times);
}

static void cut(void *user, unsigned round)
{
	const struct draw *d = user;

	if (d->fault == FAULT_WIRE && round == d->nth % 3)
		fabric_link(FABRIC_DEAD);
}

static void judge(const struct rdma_story *s, const struct draw *d)
{
	const char *text;
	bool may_fail = (d->fault == FAULT_WR || d->fault == FAULT_CALL) ? fabric_hits() > 0 : d->fault == FAULT_WIRE;

	CHECK(!s->wrong[0], "%s", rdma_story_text(s));
	CHECK(s->stood, "%s", rdma_story_text(s));
	CHECK(may_fail || rdma_story_whole(s), "fault %u: %s", d->fault, rdma_story_text(s));
	/* over a dead wire who has nothing on its way is not told */
	CHECK((s->rw != -ETIMEDOUT && s->rr != -ETIMEDOUT) || d->fault == FAULT_WIRE, "fault %u: %s", d->fault,
	      rdma_story_text(s));
	CHECK(s->rw == 0 || s->ew.msg[0], "fault %u: %s", d->fault, rdma_story_text(s));
	CHECK(fabric_violations(&text) == 0, "fault %u: %s: %s", d->fault, rdma_story_text(s), text);
	CHECK(fabric_all_gone(), "fault %u: %s: left behind: %s", d->fault, rdma_story_text(s), fabric_live_text());
}

static void run(uint64_t seed, unsigned *whole, uint64_t *unpins)
{
	struct rng r = { seed };
	struct fabric_config cfg = draw_device(&r);
	struct draw d = draw_fault(&r);
	struct rdma_story s = { .writer = draw_params(&r),
				.reader = draw_params(&r),
				.listen = rng_next(&r) % 2 ? "rdma:10.9.0.1:0" : "rdma:[fd09::1]:0",
				.seed = seed,
				.rounds = (unsigned)rng_range(&r, 2, 8),
				.window_bytes = rng_range(&r, 1u << 20, 12u << 20),
				.pieces = (unsigned)rng_range(&r, 1, 12),
				.connected = arm,
				.told = cut,
				.user = &d };

	/* either has its way, and then a budget that is less than the window is refused */
	if (s.writer.registration == TP_REGISTER_WHOLE || s.reader.registration == TP_REGISTER_WHOLE)
		s.writer.pin_budget = s.reader.pin_budget = 0;
	s.deadline_ms = d.fault == FAULT_WIRE ? 1000 : 60000;
	rdma_linger_ms = d.fault == FAULT_NONE || d.fault == FAULT_FULL ? 20000 : 50; /* a whole one has a whole end */
	fabric_start(&cfg);
	fabric_random(seed, (unsigned)ONE_OF(&r, 0, 20, 300));
	rdma_story(&s);
	judge(&s, &d);
	*whole += rdma_story_whole(&s);
	*unpins += s.iw.unpins;
	fabric_stop();
}

int main(int argc, char **argv)
{
	uint64_t seed = 1, seeds = 150, unpins = 0;
	unsigned whole = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i += 2) {
		CHECK(i + 1 < argc, "%s needs a value", argv[i]);
		if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--seeds") == 0)
			seeds = strtoull(argv[i + 1], NULL, 10);
		else
			DIE("usage: stress_rdma [--seed FIRST] [--seeds N]");
	}
	for (uint64_t i = 0; i < seeds; i++)
		run(seed + i, &whole, &unpins);
	printf("%llu conversations from seed %llu on: %u whole, the others with a fault; %llu chunks unpinned\n",
	       (unsigned long long)seeds, (unsigned long long)seed, whole, (unsigned long long)unpins);
	CHECK(seeds < 20 || (whole > seeds / 3 && whole < seeds && unpins > 0), "the mixture is not one");
	return 0;
}
