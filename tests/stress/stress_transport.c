/* SPDX-License-Identifier: MIT */
/* stress_transport.c - many threads on one connection, which ends at a random moment in a random way.  Made for ThreadSanitizer.
 * Both sides have a sender for each lane and one receiver.  A sender writes its round number all over the lane's area, then sends it; the
 * receiver finds that number, and no other, in the area.  Meanwhile a thread asks for completions, credits and statistics, opens and
 * closes another window, and in the end cancels, cuts or closes one side.  Exit status 0 is a pass.
 *
 * stress_transport [--seed S] [--rounds N]    N connections over each transport that needs no device
 *   --listen URI          only this: rdma:ADDRESS:0
 *   --last MS             each lasts so long at most (150)
 *   --credits N           messages on their way on each lane
 *   --registration N      rdma: enum tp_registration */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "transport.h"
#include "transport_ops.h"

#define LANES 4u
#define CREDITS 8u
#define AREA_WORDS 4096u
#define PIECES 16u

static const char *const kinds[][2] = {
	{ "", "127.0.0.1:0" },
	{ "", "[::1]:0" },
	{ "", "loopback:stress" },
	{ "fault(seed=1,delay=1)/", "127.0.0.1:0" },
	{ "fault(seed=2,reorder=1,dup=10)/", "127.0.0.1:0" },
	{ "fault(seed=3,reorder=1,cutmsg=90)/", "loopback:stress" },
};

struct side {
	struct tp_conn *c;
	uint64_t *window;
	uint64_t *source[LANES];
	_Atomic uint64_t received;
};

struct sender {
	struct side *side;
	uint32_t lane;
};

static _Atomic bool failed;
static unsigned last_ms = 150;
static struct tp_params params = { .lanes = LANES, .credits = CREDITS };

static void fail(const char *what, int code, const struct ft_error *err)
{
	fprintf(stderr, "stress_transport: %s: %d %s\n", what, code, err ? err->msg : "");
	failed = true;
}

static bool is_end(int r)
{
	return r == -ECANCELED || r == -ECONNRESET || r == -EPIPE || r == -ENODATA;
}

static int send_round(struct sender *s, uint64_t round, struct ft_error *err)
{
	struct iovec number = { &round, sizeof(round) };
	uint64_t *source = s->side->source[s->lane], ticket = 0;
	size_t piece = AREA_WORDS / PIECES;
	int r = 0;

	for (size_t i = 0; i < AREA_WORDS; i++)
		source[i] = round;
	for (size_t i = 0; i < PIECES && r == 0; i++) {
		struct iovec v = { source + i * piece, piece * sizeof(*source) };

		r = tp_write(s->side->c, s->lane, 0, (s->lane * AREA_WORDS + i * piece) * sizeof(*source), &v, 1,
			     &ticket, DEADLINE_NEVER, err);
	}
	if (r == 0)
		r = tp_send(s->side->c, s->lane, &number, 1, DEADLINE_NEVER, err);
	if (r == 0)
		r = tp_wait_completed(s->side->c, s->lane, ticket, DEADLINE_NEVER, err);
	if (r == 0) /* the area may still be looked at */
		r = tp_settle(s->side->c, s->lane, DEADLINE_NEVER, err);
	return r;
}

static void *sender(void *arg)
{
	struct sender *s = arg;
	struct ft_error err;
	uint64_t round = 1;
	int r;

	while ((r = send_round(s, round, &err)) == 0)
		round++;
	if (!is_end(r))
		fail("sender", r, &err);
	return NULL;
}

static void *receiver(void *arg)
{
	struct side *s = arg;
	uint64_t last[LANES] = { 0 }, round;
	uint8_t *buf = malloc(TP_MESSAGE_MAX);
	struct ft_error err;
	unsigned seed = 1;
	uint32_t lane;
	size_t len;
	int r;

	for (;;) {
		r = tp_recv(s->c, buf, TP_MESSAGE_MAX, &lane, &len, rand_r(&seed) % 8 ? DEADLINE_NEVER : now_ns(),
			    &err);
		if (r == -ETIMEDOUT)
			continue;
		if (r != 0)
			break;
		memcpy(&round, buf, sizeof(round));
		if (len != sizeof(round) || (round != last[lane] + 1 && round != last[lane])) /* the same again: dup */
			fail("a message is out of order", (int)lane, NULL);
		for (size_t i = 0; i < AREA_WORDS && round == last[lane] + 1; i++) {
			if (s->window[lane * AREA_WORDS + i] != round) {
				fail("a write is not in place", (int)lane, NULL);
				break;
			}
		}
		last[lane] = round;
		atomic_fetch_add(&s->received, 1);
		if (rand_r(&seed) % 64 == 0)
			usleep(500);
	}
	if (!is_end(r))
		fail("receiver", r, &err);
	free(buf);
	return NULL;
}

/* -- one connection -- */

struct opener {
	const char *uri;
	struct tp_conn *c;
	struct ft_error err;
};

static void *opener(void *arg)
{
	struct opener *o = arg;

	tp_connect(&o->c, o->uri, &params, deadline_in_ms(30000), -1, &o->err);
	return NULL;
}

static bool open_both(struct side *side, const char *const *kind)
{
	struct tp_listener *l;
	struct ft_error err;
	struct opener o = { 0 };
	char uri[200];
	pthread_t t;
	int r;

	snprintf(uri, sizeof(uri), "%s%s", kind[0], kind[1]);
	r = tp_listen(&l, uri, &params, &err);
	if (r != 0) {
		fail("listen", r, &err);
		return false;
	}
	snprintf(uri, sizeof(uri), "%s%s%s", kind[0], strncmp(kind[1], "rdma:", 5) == 0 ? "rdma:" : "",
		 tp_listener_address(l));
	o.uri = uri;
	pthread_create(&t, NULL, opener, &o);
	r = tp_accept(l, &side[1].c, deadline_in_ms(30000), -1, &err);
	pthread_join(t, NULL);
	side[0].c = o.c;
	tp_listener_close(l);
	if (r != 0 || !o.c)
		fail("accept or connect", r, r ? &err : &o.err);
	return r == 0 && o.c;
}

static void meddle(struct side *side, unsigned *seed)
{
	uint64_t until = now_ns() + ((uint64_t)rand_r(seed) % last_ms) * NS_PER_MS;
	char scratch[64];
	struct tp_stats stats;

	while (now_ns() < until) {
		struct side *s = &side[rand_r(seed) % 2];
		uint32_t lane = (uint32_t)rand_r(seed) % LANES;

		tp_completed(s->c, lane);
		if (tp_credits(s->c, lane) > params.credits)
			fail("too many credits", (int)lane, NULL);
		tp_stats(s->c, &stats);
		tp_window_open(s->c, 3, scratch, sizeof(scratch), NULL);
		tp_window_close(s->c, 3);
		usleep((unsigned)rand_r(seed) % 300);
	}
}

/* end - the threads of @s come to an end at once. */
static void end(struct side *side, struct side *s, unsigned *seed)
{
	switch (rand_r(seed) % 3) {
	case 0:
		tp_cancel(side[0].c);
		tp_cancel(side[1].c);
		break;
	case 1:
		s->c->ops->sever(s->c);
		break;
	case 2: /* and the other side sees no end before this one is closed */
		tp_cancel(s->c);
		break;
	}
}

static void join(pthread_t *t, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		pthread_join(t[i], NULL);
}

static uint64_t run(const char *const *kind, unsigned *seed)
{
	struct sender senders[2 * LANES];
	struct side side[2] = { 0 };
	pthread_t t[2 * LANES + 2];
	unsigned nr = 0, first;

	if (!open_both(side, kind))
		return 0;
	for (unsigned i = 0; i < 2; i++) {
		side[i].window = calloc(LANES * AREA_WORDS, sizeof(uint64_t));
		for (unsigned lane = 0; lane < LANES; lane++)
			side[i].source[lane] = calloc(AREA_WORDS, sizeof(uint64_t));
		if (tp_window_open(side[i].c, 0, side[i].window, LANES * AREA_WORDS * sizeof(uint64_t), NULL) != 0)
			fail("window", 0, NULL);
	}
	for (unsigned i = 0; i < 2; i++) {
		for (uint32_t lane = 0; lane < LANES; lane++) {
			senders[i * LANES + lane] = (struct sender){ &side[i], lane };
			pthread_create(&t[nr++], NULL, sender, &senders[i * LANES + lane]);
		}
		pthread_create(&t[nr++], NULL, receiver, &side[i]);
	}
	meddle(side, seed);
	first = (unsigned)rand_r(seed) % 2;
	end(side, &side[first], seed);
	join(t + first * (LANES + 1), LANES + 1);
	tp_close(side[first].c);
	join(t + (1 - first) * (LANES + 1), LANES + 1);
	tp_close(side[1 - first].c);
	for (unsigned i = 0; i < 2; i++) {
		free(side[i].window);
		for (unsigned lane = 0; lane < LANES; lane++)
			free(side[i].source[lane]);
	}
	return side[0].received + side[1].received;
}

static void run_kind(const char *const *kind, unsigned rounds, unsigned *seed)
{
	uint64_t received = 0;

	for (unsigned i = 0; i < rounds && !failed; i++)
		received += run(kind, seed);
	printf("%s%s: %u connections, %llu messages\n", kind[0], kind[1], rounds, (unsigned long long)received);
	if (received == 0)
		fail("nothing was received", 0, NULL);
}

int main(int argc, char **argv)
{
	const char *given[2] = { "", NULL };
	unsigned seed = 1, rounds = 12;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--seed") == 0)
			seed = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--rounds") == 0)
			rounds = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--listen") == 0)
			given[1] = argv[i + 1];
		else if (strcmp(argv[i], "--last") == 0)
			last_ms = (unsigned)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--credits") == 0)
			params.credits = (uint32_t)atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--registration") == 0)
			params.registration = (enum tp_registration)atoi(argv[i + 1]);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (given[1])
		run_kind(given, rounds, &seed);
	for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && !failed && !given[1]; k++)
		run_kind(kinds[k], rounds, &seed);
	return failed;
}
