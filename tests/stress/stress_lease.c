/* SPDX-License-Identifier: MIT */
/* stress_lease.c - three sides want the lease of one made-up witness, which falls silent for each of them now and then; each takes it when it can, raises it,
 * gives it back or loses it.  A looker asks all of them without a rest: of one generation there is never more than one that holds it.
 * Usage: stress_lease [milliseconds], 5000 by default.  Exit status 0 is a pass.
 * Wrapped: witness_open boot_now_ns */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "fake_witness.h"
#include "lease.h"
#include "rng.h"

FAKE_WITNESS_WRAPS

#define SIDES 3u
#define LEASE_MS 100u
#define DRIFT_MS 5u

static uint64_t end_ns;
static _Atomic uint64_t nr_taken, nr_refused, nr_unknown, nr_lost, nr_looks, nr_held;

static struct side {
	struct lease *lease;
	pthread_t thread;
	struct rng rng;
} side[SIDES];

/* Whom to disturb: who holds it, mostly. */
static unsigned anybody(struct rng *r)
{
	for (unsigned i = 0; i < SIDES; i++)
		if (lease_held(side[i].lease))
			return i;
	return (unsigned)rng_range(r, 0, SIDES - 1);
}

static void rest(struct rng *r, unsigned most_ms)
{
	uint64_t us = rng_range(r, 1, most_ms * 1000);
	struct timespec t = timespec_of_ns(us * 1000);

	nanosleep(&t, NULL);
}

static void ended(void *user, const struct ft_error *why)
{
	(void)user;
	CHECK(why->msg[0], "no sentence");
	nr_lost++;
}

static void act(struct side *s)
{
	unsigned any = anybody(&s->rng);
	struct ft_error err = { 0 };
	uint64_t now;

	switch (rng_range(&s->rng, 0, 7)) {
	case 0:
	case 1:
	case 2:
		switch (lease_take(s->lease, 0, &now, &err)) {
		case WITNESS_YES:
			nr_taken++;
			break;
		case WITNESS_NO:
			nr_refused++;
			break;
		case WITNESS_UNKNOWN:
			nr_unknown++;
			break;
		}
		break;
	case 3:
		(void)lease_raise(s->lease, &now, &err);
		break;
	case 4:
		lease_give_back(s->lease);
		break;
	case 5: /* of another side too: it goes on acting */
		fake_witness_mode(any, FAKE_SILENT);
		rest(&s->rng, 5 * LEASE_MS);
		fake_witness_mode(any, FAKE_ANSWERS);
		break;
	case 6:
		fake_witness_mode(any, FAKE_MUTE);
		rest(&s->rng, LEASE_MS);
		fake_witness_mode(any, FAKE_ANSWERS);
		break;
	default:
		rest(&s->rng, LEASE_MS);
	}
}

static void *act_main(void *arg)
{
	struct side *s = arg;

	while (now_ns() < end_ns)
		act(s);
	return NULL;
}

/* Who holds it at the beginning and at the end of a look has held it all the while, if nobody took it meanwhile; then nobody else held it in between. */
static void look(void)
{
	struct lease_status st;

	for (unsigned i = 0; i < SIDES; i++) {
		uint64_t generation = fake_witness_record().generation;
		bool held = lease_held(side[i].lease), other = false;

		for (unsigned k = 0; k < SIDES; k++)
			other |= k != i && lease_held(side[k].lease);
		held = held && lease_held(side[i].lease);
		CHECK(!held || !other || fake_witness_record().generation != generation, "two hold the lease");
		nr_held += held;
		lease_status(side[i].lease, &st);
		CHECK(st.left_ns <= (LEASE_MS - DRIFT_MS) * NS_PER_MS, "held for longer than there is");
	}
	nr_looks++;
}

int main(int argc, char **argv)
{
	struct ft_error err = { 0 };

	fake_witness_reset();
	fake_clock_run();
	end_ns = deadline_in_ms(argc > 1 ? strtoul(argv[1], NULL, 10) : 5000);
	for (unsigned i = 0; i < SIDES; i++) {
		struct lease_options opt = { .witness = "file:made-up",
					     .self = { .lease_ms = LEASE_MS, .drift_ms = DRIFT_MS },
					     .ended = ended };

		side[i].rng.state = i;
		snprintf(opt.self.name, sizeof(opt.self.name), "side-%u", i);
		CHECK_OK(lease_open(&side[i].lease, &opt, &err), err);
	}
	for (unsigned i = 0; i < SIDES; i++)
		CHECK(pthread_create(&side[i].thread, NULL, act_main, &side[i]) == 0, "no thread");
	while (now_ns() < end_ns)
		look();
	for (unsigned i = 0; i < SIDES; i++)
		pthread_join(side[i].thread, NULL);
	for (unsigned i = 0; i < SIDES; i++)
		lease_close(side[i].lease);
	printf("taken %" PRIu64 " times, refused %" PRIu64 ", not known %" PRIu64 ", lost or over %" PRIu64 "; %" PRIu64
	       " looks, %" PRIu64 " times held\n",
	       nr_taken, nr_refused, nr_unknown, nr_lost, nr_looks, nr_held);
	CHECK(nr_taken > 3 && nr_refused > 0 && nr_held > 0 && nr_unknown > 0 && nr_lost > 0, "nothing was tried");
	CHECK(fake_witness_record().holder[0] == '\0', "not given back");
	return 0;
}
