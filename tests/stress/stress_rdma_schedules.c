/* SPDX-License-Identifier: MIT */
/* stress_rdma_schedules.c - small stories over the made-up fabric, in every order of events that the rules of verbs allow.
 *
 * Both ends are driven from this one thread by calls that do not wait.  Whenever more than one thing may happen next (a work request is
 * executed, a receive is told, a sender hears of its completions, an end does its next step) one is chosen; a story is told again and again,
 * from its beginning, until all choices were taken.  Longer stories would never end so: of these all orders are told that differ from the
 * first-come one in at most so many choices (--differ), and of those with chunks orders are drawn, by the thousand.
 *
 *   pingpong   a message and its answer, with a credit window of 1 and of 2: among the orders is that of seed 000, "An RDMA race?": the answer
 *              is received before the completion of the message that it answers is told
 *   notify     write and notify-write; what was told of is in place when the message is received; then the same page is written again
 *   lanes      two lanes, and a commit with their counts on the control lane
 *   close      a last message, and the end
 *   chunks     keys by chunk within a budget: register, write, unpin, write again
 *
 * Proof that this finds what it is for: with one receive completion dropped (fabric_lose_recv) every schedule of pingpong must be found out, as
 * a story that does not end; that is run each time.  Tried once besides, in rdma_recv.c's on_message(): to drop a message that comes while
 * completions of our own sends on its lane are outstanding, which is what QEMU's wait for RDMA_WRID_SEND_CONTROL did: the fifth order
 * of pingpong did not end (choices 0/1 0/1 1/3 1/2 and the first ones from there on).
 *
 * stress_rdma_schedules [--story NAME] [--differ N] [--draws N] [--seed S] */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#include "clock.h"
#include "fabric_fake.h"
#include "rdma_private.h"
#include "rng.h"
#include "transport.h"

#define DEPTH_MAX 400u
#define OPTIONS_MAX 64u
#define WINDOW_BYTES (6u << 20)
#define PAGE 4096u

struct world;
typedef bool step_fn(struct world *w); /* does what can be done without waiting; true: something was */

struct story {
	const char *name;
	struct tp_params params;
	step_fn *a, *b;
	bool window;     /* b opens window 0 before the story begins */
	unsigned rounds; /* pingpong */
	unsigned differ; /* choices that may differ from the first; 0: any number */
	bool drawn;      /* too large for all orders */
	unsigned least;  /* so many orders there are at least, or the search is broken */
};

struct world {
	const struct story *story;
	struct tp_conn *a, *b;
	uint8_t *image, *source;
	unsigned at_a, at_b; /* how far each end's part is */
	bool done_a, done_b, reset;
	uint8_t buf[TP_MESSAGE_MAX];
};

/* ---- choosing ---- */

static struct {
	unsigned depth, taken[DEPTH_MAX], options[DEPTH_MAX], differ, may_differ;
	bool drawn;
	struct rng rng;
} path;

static unsigned choose(unsigned options)
{
	unsigned d = path.depth++;

	CHECK(d < DEPTH_MAX, "a story of more than %u choices", DEPTH_MAX);
	if (path.drawn)
		return (unsigned)(rng_next(&path.rng) % options);
	if (path.may_differ && path.differ == path.may_differ)
		options = 1;
	if (path.options[d] == 0) {
		path.options[d] = options;
		path.taken[d] = 0;
	}
	CHECK(path.options[d] == options, "the story is not told the same way twice: %u choices, then %u",
	      path.options[d], options);
	path.differ += path.taken[d] != 0;
	return path.taken[d];
}

/* The next path; false: that was the last. */
static bool next_path(void)
{
	while (path.depth > 0) {
		unsigned d = --path.depth;

		if (path.taken[d] + 1 < path.options[d]) {
			path.taken[d]++;
			return true;
		}
		path.options[d] = 0;
	}
	return false;
}

static void tell_path(void)
{
	fprintf(stderr, "choices:");
	for (unsigned i = 0; i < path.depth; i++)
		fprintf(stderr, " %u/%u", path.taken[i], path.options[i]);
	fprintf(stderr, "\n");
}

/* ---- both ends ---- */

static struct iovec part(const void *p, size_t n)
{
	return (struct iovec){ .iov_base = (void *)p, .iov_len = n };
}

/* What is allowed to go wrong is "not yet"; with close also the end of the other side. */
static bool took(struct world *w, int r, const struct ft_error *err)
{
	if (r == 0)
		return true;
	if (r == -ETIMEDOUT)
		return false;
	CHECK(strcmp(w->story->name, "close") == 0 && (r == -ENODATA || r == -ECONNRESET || r == -EPIPE), "%s: %s",
	      w->story->name, err->msg);
	w->reset = true;
	return false;
}

static bool say(struct world *w, struct tp_conn *c, uint32_t lane, uint32_t what)
{
	struct iovec v = part(&what, sizeof(what));
	struct ft_error err = { 0 };

	return took(w, tp_send(c, lane, &v, 1, 0, &err), &err);
}

/* A message of any lane; *@what is its word. */
static bool hear(struct world *w, struct tp_conn *c, uint32_t *lane, uint32_t *what)
{
	struct ft_error err = { 0 };
	size_t len;

	if (!took(w, tp_recv(c, w->buf, sizeof(w->buf), lane, &len, 0, &err), &err))
		return false;
	CHECK(len == sizeof(*what), "%s: a message of %zu octets", w->story->name, len);
	memcpy(what, w->buf, sizeof(*what));
	return true;
}

static bool put(struct world *w, uint32_t lane, uint64_t offset, uint8_t value)
{
	struct iovec v = part(w->source + offset, PAGE);
	struct ft_error err = { 0 };

	memset(w->source + offset, value, PAGE);
	return took(w, tp_write(w->a, lane, 0, offset, &v, 1, NULL, 0, &err), &err);
}

static void must_hold(const struct world *w, uint64_t offset, uint8_t value)
{
	for (unsigned i = 0; i < PAGE; i++)
		CHECK(w->image[offset + i] == value, "%s: octet %u behind %" PRIu64 " is %u, %u was told of",
		      w->story->name, i, offset, w->image[offset + i], value);
}

/* ---- pingpong ---- */

static bool ping(struct world *w)
{
	uint32_t lane, what;

	if (w->at_a == 2 * w->story->rounds) {
		w->done_a = true;
		return false;
	}
	if (w->at_a % 2 == 0) {
		if (!say(w, w->a, 0, w->at_a))
			return false;
	} else {
		if (!hear(w, w->a, &lane, &what))
			return false;
		CHECK(what == 100 + w->at_a - 1 && lane == 0, "answer %u to %u", what, w->at_a - 1);
	}
	w->at_a++;
	return true;
}

static bool pong(struct world *w)
{
	uint32_t lane, what;

	if (w->at_b == 2 * w->story->rounds) {
		w->done_b = true;
		return false;
	}
	if (w->at_b % 2 == 0) {
		if (!hear(w, w->b, &lane, &what))
			return false;
		CHECK(what == w->at_b && lane == 0, "message %u, expected %u", what, w->at_b);
	} else if (!say(w, w->b, 0, 100 + w->at_b - 1)) {
		return false;
	}
	w->at_b++;
	return true;
}

/* ---- notify: write, tell, settle, write the same again, tell ---- */

static bool write_and_tell(struct world *w)
{
	struct ft_error err = { 0 };
	bool did = false;

	switch (w->at_a) {
	case 0:
	case 3:
		did = put(w, 1, 0, (uint8_t)(w->at_a + 1));
		break;
	case 1:
	case 4:
		did = say(w, w->a, 1, w->at_a);
		break;
	case 2:
		did = took(w, tp_settle(w->a, 1, 0, &err), &err);
		break;
	default:
		w->done_a = true;
		break;
	}
	w->at_a += did;
	return did;
}

static bool hear_and_look(struct world *w)
{
	uint32_t lane, what;

	if (w->at_b == 2) {
		/* come back once more, or the settling would wait for ever */
		w->done_b = true;
		return false;
	}
	if (!hear(w, w->b, &lane, &what))
		return false;
	must_hold(w, 0, (uint8_t)what);
	w->at_b++;
	return true;
}

/* ---- lanes: a page on each of two, then the commit ---- */

static bool write_two_lanes(struct world *w)
{
	bool did = false;

	switch (w->at_a) {
	case 0:
	case 2:
		did = put(w, 1 + w->at_a / 2, (uint64_t)w->at_a * PAGE, (uint8_t)(7 + w->at_a));
		break;
	case 1:
	case 3:
		did = say(w, w->a, 1 + w->at_a / 2, w->at_a - 1);
		break;
	case 4:
		did = say(w, w->a, 0, 1000);
		break;
	default:
		w->done_a = true;
		break;
	}
	w->at_a += did;
	return did;
}

/* Between lanes there is no order; the commit may come first. */
static bool hear_two_lanes(struct world *w)
{
	uint32_t lane, what;

	if (w->at_b == 3) {
		w->done_b = true;
		return false;
	}
	if (!hear(w, w->b, &lane, &what))
		return false;
	if (what < 1000) {
		CHECK(lane == 1 + what / 2, "word %u came on lane %u", what, lane);
		must_hold(w, (uint64_t)what * PAGE, (uint8_t)(7 + what));
	}
	w->at_b++;
	return true;
}

/* ---- close ---- */

static bool last_word(struct world *w)
{
	if (w->at_a == 0) {
		w->at_a += say(w, w->a, 0, 5);
		return false; /* the end comes whenever this end runs again */
	}
	if (w->at_a == 1) {
		tp_close(w->a);
		w->a = NULL;
		w->at_a++;
		w->done_a = true;
		return true;
	}
	return false;
}

static bool hear_the_end(struct world *w)
{
	uint32_t lane, what;

	if (w->reset) {
		w->done_b = true;
		return false;
	}
	if (!hear(w, w->b, &lane, &what))
		return w->reset;
	CHECK(what == 5 && w->at_b == 0, "word %u, %u have come", what, w->at_b);
	w->at_b++;
	return true;
}

/* ---- chunks: six chunks in a budget of four, twice ---- */

#define CHUNK_WRITES 12u

static bool write_chunks(struct world *w)
{
	unsigned n = w->at_a / 2;
	uint64_t offset = (uint64_t)(n % 6) << 20;
	bool did;

	if (n == CHUNK_WRITES) {
		w->done_a = true;
		return false;
	}
	if (w->at_a % 2 == 0)
		did = put(w, 1, offset + (n / 6) * PAGE, (uint8_t)(n + 1));
	else
		did = say(w, w->a, 1, n);
	w->at_a += did;
	return did;
}

static bool hear_chunks(struct world *w)
{
	uint32_t lane, what;

	if (w->at_b == CHUNK_WRITES) {
		w->done_b = true;
		return false;
	}
	if (!hear(w, w->b, &lane, &what))
		return false;
	CHECK(what == w->at_b, "word %u, expected %u", what, w->at_b);
	must_hold(w, ((uint64_t)(what % 6) << 20) + (what / 6) * PAGE, (uint8_t)(what + 1));
	w->at_b++;
	return true;
}

/* ---- telling a story ---- */

static const struct story stories[] = {
	{ .name = "pingpong",
	  .params = { .lanes = 2, .credits = 1, .sq_depth = 4 },
	  .a = ping,
	  .b = pong,
	  .rounds = 1,
	  .least = 20 },
	{ .name = "pingpong1",
	  .params = { .lanes = 2, .credits = 1, .sq_depth = 4 },
	  .a = ping,
	  .b = pong,
	  .rounds = 3,
	  .differ = 2,
	  .least = 100 },
	{ .name = "pingpong2",
	  .params = { .lanes = 2, .credits = 2, .sq_depth = 4 },
	  .a = ping,
	  .b = pong,
	  .rounds = 3,
	  .differ = 2,
	  .least = 100 },
	{ .name = "notify",
	  .params = { .lanes = 2, .credits = 1, .sq_depth = 4, .registration = TP_REGISTER_WHOLE },
	  .a = write_and_tell,
	  .b = hear_and_look,
	  .window = true,
	  .differ = 2,
	  .least = 100 },
	{ .name = "lanes",
	  .params = { .lanes = 3, .credits = 1, .sq_depth = 4, .registration = TP_REGISTER_WHOLE },
	  .a = write_two_lanes,
	  .b = hear_two_lanes,
	  .window = true,
	  .differ = 2,
	  .least = 100 },
	{ .name = "close",
	  .params = { .lanes = 2, .credits = 1, .sq_depth = 4 },
	  .a = last_word,
	  .b = hear_the_end,
	  .least = 20 },
	{ .name = "chunks",
	  .params = { .lanes = 2, .credits = 2, .sq_depth = 4, .pin_budget = 4u << 20 },
	  .a = write_chunks,
	  .b = hear_chunks,
	  .window = true,
	  .drawn = true },
	{ .name = "chunks8",
	  .params = { .lanes = 2, .credits = 8, .sq_depth = 8, .pin_budget = 5u << 20 },
	  .a = write_chunks,
	  .b = hear_chunks,
	  .window = true,
	  .drawn = true },
};

struct accepting {
	struct tp_listener *listener;
	struct tp_conn *conn;
};

static void *accept_main(void *arg)
{
	struct accepting *acc = arg;
	struct ft_error err = { 0 };

	CHECK(tp_accept(acc->listener, &acc->conn, deadline_in_ms(20000), -1, &err) == 0, "accept: %s", err.msg);
	return NULL;
}

static void connect_both(struct world *w)
{
	struct accepting acc = { 0 };
	struct ft_error err = { 0 };
	pthread_t t;
	char uri[160];

	CHECK(tp_listen(&acc.listener, "rdma:10.9.0.1:0", &w->story->params, &err) == 0, "listen: %s", err.msg);
	snprintf(uri, sizeof(uri), "rdma:%s", tp_listener_address(acc.listener));
	CHECK(pthread_create(&t, NULL, accept_main, &acc) == 0, "thread");
	CHECK(tp_connect(&w->a, uri, &w->story->params, deadline_in_ms(20000), -1, &err) == 0, "connect: %s", err.msg);
	pthread_join(t, NULL);
	w->b = acc.conn;
	tp_listener_close(acc.listener);
}

/* The window is announced before the story: its first steps are the same for all. */
static void open_window(struct world *w)
{
	struct ft_error err = { 0 };
	uint32_t lane;
	size_t len;

	memset(w->image, 0, WINDOW_BYTES);
	CHECK(tp_window_open(w->b, 0, w->image, WINDOW_BYTES, &err) == 0, "window: %s", err.msg);
	CHECK(tp_memory(w->a, w->source, WINDOW_BYTES, &err) == 0, "memory: %s", err.msg);
	CHECK(tp_recv(w->a, w->buf, sizeof(w->buf), &lane, &len, 0, &err) == -ETIMEDOUT, "a message too many");
	err_clear(&err);
	CHECK(tp_recv(w->b, w->buf, sizeof(w->buf), &lane, &len, 0, &err) == -ETIMEDOUT, "a message too many");
}

/* What time alone brings about is not among the choices as long as there are others. */
static unsigned events(unsigned *index)
{
	struct fabric_choice choice[OPTIONS_MAX];
	unsigned n = fabric_choices(choice, OPTIONS_MAX), out = 0;

	for (unsigned i = 0; i < n; i++)
		if (choice[i].kind != FABRIC_TIMEOUT)
			index[out++] = i;
	return out;
}

/* Lets one end go on, in both until neither can; false: nothing could be done. */
static bool run_ends(struct world *w)
{
	bool did = false, more;

	do {
		more = w->a && w->story->a(w);
		more |= w->story->b(w);
		did |= more;
	} while (more);
	return did;
}

/* Both ends once more, for what they still have to say: credits, answers. */
static bool tell_to_its_end(struct world *w)
{
	unsigned idle = 0;
	bool may_run = true;

	while (!w->done_a || !w->done_b) {
		unsigned index[OPTIONS_MAX], n = events(index), pick;

		if (n == 0 && !may_run) {
			if (++idle == 3)
				return false; /* nothing can happen any more */
			may_run = true;
			continue;
		}
		pick = choose(n + may_run);
		if (pick < n) {
			fabric_step(index[pick]);
			may_run = true;
			idle = 0;
		} else {
			if (run_ends(w))
				idle = 0;
			may_run = false;
		}
	}
	return true;
}

/* One schedule: whether the story came to its end. */
static bool tell(const struct story *story, struct world *w, unsigned lose)
{
	const char *text;
	bool ended;

	*w = (struct world){ .story = story, .image = w->image, .source = w->source };
	path.depth = path.differ = 0;
	fabric_start(NULL);
	connect_both(w);
	if (story->window)
		open_window(w);
	fabric_manual();
	if (lose)
		fabric_lose_recv(lose);
	ended = tell_to_its_end(w);
	if (w->a)
		tp_close(w->a);
	tp_close(w->b);
	fabric_settle();
	if (fabric_violations(&text)) {
		tell_path();
		DIE("%s: a rule of verbs was broken: %s", story->name, text);
	}
	CHECK(fabric_all_gone(), "%s: left in the fabric: %s", story->name, fabric_live_text());
	fabric_stop();
	return ended;
}

static void all_orders(const struct story *story, struct world *w, unsigned differ)
{
	unsigned n = 0, depth = 0;

	memset(&path, 0, sizeof(path));
	path.may_differ = differ && story->differ ? differ : story->differ;
	do {
		if (!tell(story, w, 0)) {
			tell_path();
			DIE("%s: the story does not end", story->name);
		}
		n++;
		depth = path.depth > depth ? path.depth : depth;
	} while (next_path());
	if (path.may_differ)
		printf("%s: all %u orders of events that differ in at most %u of up to %u choices\n", story->name, n,
		       path.may_differ, depth);
	else
		printf("%s: all %u orders of events, up to %u choices each\n", story->name, n, depth);
	CHECK(n >= story->least, "%s: only %u orders: the search is broken", story->name, n);
}

static void drawn_orders(const struct story *story, struct world *w, unsigned draws, uint64_t seed)
{
	memset(&path, 0, sizeof(path));
	path.drawn = true;
	for (unsigned i = 0; i < draws; i++) {
		path.rng.state = seed + i;
		CHECK(tell(story, w, 0), "%s: the story does not end with --seed %" PRIu64 " --draws 1", story->name,
		      seed + i);
	}
	printf("%s: %u orders of events drawn\n", story->name, draws);
}

/* Each receive completion in turn is lost: the story must not come to its end, in any order.  (One that is told after all that
 * matters was said may be missed without harm: those are counted.) */
static void must_notice_loss(const struct story *story, struct world *w)
{
	for (unsigned lose = 1; lose <= 2 * story->rounds; lose++) {
		unsigned n = 0, noticed = 0;

		memset(&path, 0, sizeof(path));
		do {
			noticed += !tell(story, w, lose);
			n++;
		} while (n < 2000 && next_path());
		CHECK(noticed == n, "%s: receive %u was lost, which %u of %u orders did not notice", story->name, lose,
		      n - noticed, n);
	}
	printf("%s: a lost receive is noticed in every order\n", story->name);
}

int main(int argc, char **argv)
{
	struct world w = { 0 };
	unsigned draws = 500, differ = 0;
	uint64_t seed = 1;
	const char *only = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i += 2) {
		CHECK(i + 1 < argc, "%s needs a value", argv[i]);
		if (strcmp(argv[i], "--story") == 0)
			only = argv[i + 1];
		else if (strcmp(argv[i], "--differ") == 0)
			differ = (unsigned)strtoul(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--draws") == 0)
			draws = (unsigned)strtoul(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[i + 1], NULL, 10);
		else
			DIE("what is %s?", argv[i]);
	}
	rdma_linger_ms = 0;
	w.image = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w.source = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(w.image != MAP_FAILED && w.source != MAP_FAILED, "mmap");
	for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
		if (only && strcmp(only, stories[i].name) != 0)
			continue;
		if (stories[i].drawn)
			drawn_orders(&stories[i], &w, draws, seed);
		else
			all_orders(&stories[i], &w, differ);
	}
	if (!only || strcmp(only, "pingpong") == 0)
		must_notice_loss(&stories[0], &w);
	return 0;
}
