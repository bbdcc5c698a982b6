/* SPDX-License-Identifier: MIT */
/* stress_crew.c - crews of several sizes at a time, each with an owner who has runs of a random number of parts done, now and then with a rest.  Words
 * that are neither atomic nor locked go from owner to part and back: ThreadSanitizer sees whether the order that crew.h promises is there, and the owner
 * sees each of them.  Usage: stress_crew [milliseconds], 2000 by default.  Exit status 0 is a pass. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "crew.h"
#include "rng.h"

#define OWNERS 3u
#define PARTS 200u

static uint64_t end_ns;
static _Atomic uint64_t nr_runs, nr_parts, nr_others;

struct owner {
	pthread_t thread;
	struct crew *crew;
	struct rng rng;
	uint64_t question[PARTS], answer[PARTS];
	pthread_t answered[PARTS];
};

static void answer(void *work, uint32_t part)
{
	struct owner *o = work;

	CHECK(part < PARTS && !o->answer[part], "part %u was done before", part);
	for (volatile uint64_t i = o->question[part] % 500; i; i--)
		;
	o->answer[part] = o->question[part] * 3 + 1;
	o->answered[part] = pthread_self();
}

static void rest(struct rng *r)
{
	struct timespec t = { .tv_nsec = (long)rng_range(r, 1, 300000) };

	if (rng_range(r, 0, 15) == 0) /* the others fall asleep, or are just about to */
		nanosleep(&t, NULL);
}

static void ask(struct owner *o, uint32_t nr)
{
	memset(o->answer, 0, sizeof(o->answer));
	for (uint32_t i = 0; i < nr; i++) {
		o->question[i] = rng_next(&o->rng) | 1;
		crew_offer(o->crew, 1);
		if (i == nr / 2)
			rest(&o->rng);
	}
}

static void check(struct owner *o, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		CHECK(o->answer[i] == o->question[i] * 3 + 1, "part %u of %u is not done", i, nr);
		nr_others += !pthread_equal(o->answered[i], o->thread);
	}
	nr_parts += nr;
}

static void *own(void *arg)
{
	struct owner *o = arg;

	while (now_ns() < end_ns) {
		uint32_t nr = (uint32_t)rng_range(&o->rng, 0, PARTS);

		crew_begin(o->crew, answer, o);
		ask(o, nr);
		if (rng_range(&o->rng, 0, 3) == 0) {
			crew_wait(o->crew);
			check(o, nr);
			nr = (uint32_t)rng_range(&o->rng, 0, 10);
			ask(o, nr);
		}
		crew_end(o->crew);
		check(o, nr);
		rest(&o->rng);
		nr_runs++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static struct owner owner[OWNERS];
	struct ft_error err = { 0 };

	end_ns = deadline_in_ms(argc > 1 ? strtoul(argv[1], NULL, 10) : 2000);
	for (unsigned i = 0; i < OWNERS; i++) {
		owner[i].rng.state = i;
		CHECK_OK(crew_create(&owner[i].crew, 1 + i * 2, "stress-crew", &err), err);
		CHECK(pthread_create(&owner[i].thread, NULL, own, &owner[i]) == 0, "no thread");
	}
	for (unsigned i = 0; i < OWNERS; i++) {
		pthread_join(owner[i].thread, NULL);
		crew_destroy(owner[i].crew);
	}
	printf("%" PRIu64 " runs, %" PRIu64 " parts, %" PRIu64 " of them not by the owner\n", nr_runs, nr_parts,
	       nr_others);
	CHECK(nr_others > 0, "the owners did all of it: nothing was tried");
	return 0;
}
