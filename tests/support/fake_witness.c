/* SPDX-License-Identifier: MIT */
/* fake_witness.c - see fake_witness.h. */
#include "fake_witness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "clock.h"
#include "err.h"

#define BEGIN_NS (1000 * NS_PER_S)
#define NR_QUESTIONS (WITNESS_GIVE_BACK + 1u)

struct fake_side {
	char name[WITNESS_NAME_MAX];
	enum fake_mode mode;
	uint64_t takes_ms, asked[NR_QUESTIONS];
};

struct fake_witness {
	struct witness base;
	unsigned side;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_side sides[FAKE_SIDES]; /* guarded by lock, as the next two */
static unsigned nr_sides;
static struct witness_record record;
static _Atomic uint64_t clock_ns = BEGIN_NS, running_since;

/* ---- the clock ---- */

uint64_t fake_clock_ns(void)
{
	uint64_t since = atomic_load(&running_since);

	return atomic_load(&clock_ns) + (since ? now_ns() - since : 0);
}

void fake_clock_advance(uint64_t ms)
{
	atomic_fetch_add(&clock_ns, ms * NS_PER_MS);
}

void fake_clock_run(void)
{
	atomic_store(&running_since, now_ns());
}

/* ---- the store ---- */

void fake_witness_reset(void)
{
	pthread_mutex_lock(&lock);
	memset(sides, 0, sizeof(sides));
	memset(&record, 0, sizeof(record));
	nr_sides = 0;
	pthread_mutex_unlock(&lock);
	atomic_store(&running_since, 0);
	atomic_store(&clock_ns, BEGIN_NS);
}

void fake_witness_mode(unsigned side, enum fake_mode mode)
{
	pthread_mutex_lock(&lock);
	sides[side].mode = mode;
	pthread_mutex_unlock(&lock);
}

void fake_witness_takes(unsigned side, uint64_t ms)
{
	pthread_mutex_lock(&lock);
	sides[side].takes_ms = ms;
	pthread_mutex_unlock(&lock);
}

struct witness_record fake_witness_record(void)
{
	struct witness_record r;

	pthread_mutex_lock(&lock);
	r = record;
	pthread_mutex_unlock(&lock);
	return r;
}

void fake_witness_set(const struct witness_record *r)
{
	pthread_mutex_lock(&lock);
	record = *r;
	pthread_mutex_unlock(&lock);
}

uint64_t fake_witness_asked(unsigned side, enum witness_what what)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = sides[side].asked[what];
	pthread_mutex_unlock(&lock);
	return n;
}

const char *fake_witness_name(unsigned side)
{
	return sides[side].name; /* does not change once it is there */
}

static enum witness_answer fake_ask(struct witness *w, const struct witness_question *q, uint64_t deadline,
				    struct witness_view *view, struct ft_error *err)
{
	const struct fake_witness *f = (struct fake_witness *)w;
	struct fake_side *side = &sides[f->side];
	enum witness_answer answer = WITNESS_UNKNOWN;
	struct witness_record r;

	(void)deadline;
	pthread_mutex_lock(&lock);
	fake_clock_advance(side->takes_ms);
	if (side->mode != FAKE_SILENT) {
		r = record;
		answer = witness_judge(w, q, &r, view, err);
		if (answer == WITNESS_YES && q->what != WITNESS_LOOK)
			record = r;
	}
	if (side->mode != FAKE_ANSWERS) {
		answer = WITNESS_UNKNOWN;
		err_set(err, -ETIMEDOUT, "the made-up witness does not answer");
	}
	side->asked[q->what]++;
	pthread_mutex_unlock(&lock);
	return answer;
}

static void fake_close(struct witness *w)
{
	free(w);
}

static const struct witness_ops fake_ops = { .ask = fake_ask, .close = fake_close };

int fake_witness_open(struct witness **out, const char *text, const struct witness_self *self, struct ft_error *err)
{
	struct fake_witness *f = calloc(1, sizeof(*f));

	(void)text, (void)err;
	CHECK(f, "no memory");
	f->base = (struct witness){ .ops = &fake_ops, .self = *self };
	pthread_mutex_lock(&lock);
	CHECK(nr_sides < FAKE_SIDES, "too many sides");
	f->side = nr_sides++;
	memcpy(sides[f->side].name, self->name, sizeof(self->name));
	pthread_mutex_unlock(&lock);
	*out = &f->base;
	return 0;
}
