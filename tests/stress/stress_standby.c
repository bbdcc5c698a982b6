/* SPDX-License-Identifier: MIT */
/* stress_standby.c - standby_apply_run() on one thread beside standby_consume() and standby_connect() on another, as
 * in the engine: everything else is under one lock.  For TSan.
 *
 *   mirror  while an epoch is applied the receiver gets records of the next one, too early (S4), and the connection comes and goes.
 *           After each apply all octets are compared
 *   slab    several epochs are under way: pages land in the ring, without the lock, and records of n + 1 and n + 2 come in, on two lanes, while n
 *           is applied, or its pages are moved to make room; connections end in the middle of that, some by a record that is refused.  After
 *           each apply all octets are compared with what the sender had at that commit */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "digest.h"
#include "rng.h"
#include "standby.h"

#define PAGE FT_PAGE_SIZE
#define PAGES 256u
#define EPOCHS 300u

static struct standby *standby;
static struct region_table *none, *regions;
static uint8_t *memory;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t buf[FTW_RECORD_MAX]; /* receiver only */

static void open_standby(const struct standby_options *opt)
{
	memory = aligned_alloc(PAGE, PAGES * PAGE);
	memset(memory, 0xaa, PAGES * PAGE);
	none = region_table_empty();
	regions = region_table_add(none, "ram", memory, PAGES * PAGE, NULL);
	CHECK(regions && standby_create(&standby, regions, opt, NULL) == 0, "create");
}

static void close_standby(void)
{
	standby_destroy(standby);
	region_table_free(regions);
	region_table_free(none);
	free(memory);
}

static int consume(uint32_t lane, size_t len, enum standby_event *event)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = standby_consume(standby, lane, buf, len, event, NULL);
	pthread_mutex_unlock(&lock);
	return rc;
}

/* ---- mirror ---- */

static uint8_t *image, *model;
static pthread_barrier_t committed, applied;
static atomic_bool applying;

static void receive(uint64_t epoch)
{
	struct page_run data = { epoch * 7 % 200, 40 }, zero = { (epoch * 7 + 100) % 200, 16 };
	struct commit c = { .lanes = 1, .nr_data_pages = data.nr, .nr_zero_pages = zero.nr, .seq = { 2 } };
	uint64_t d = 0, z = 0;
	enum standby_event event;

	for (uint64_t p = data.first; p < data.first + data.nr; p++) {
		memset(image + p * PAGE, (int)(epoch + p) | 1, PAGE);
		memset(model + p * PAGE, (int)(epoch + p) | 1, PAGE);
		d += digest_page(image + p * PAGE, p);
	}
	CHECK(consume(1, create_runs(buf, FTW_NOTIFY_WRITE, epoch, 1, &data, 1, d), &event) == 0, "notify-write");
	for (uint64_t p = zero.first; p < zero.first + zero.nr; p++) {
		memset(model + p * PAGE, 0, PAGE);
		z += digest_zero(p);
	}
	CHECK(consume(1, create_runs(buf, FTW_ZERO_PAGES, epoch, 2, &zero, 1, z), &event) == 0, "zero-pages");
	c.digest = d + z + digest_state(NULL, 0);
	CHECK(consume(0, create_commit(buf, epoch, 1, &c), &event) == 0 && event == STANDBY_WHOLE, "commit");
	CHECK(standby_commit(standby, &event, NULL) == 0 && !event, "nothing is behind it");
}

/* What a peer without manners sends while an epoch is applied. */
static void disturb(uint64_t epoch)
{
	enum standby_event event;

	do {
		CHECK(consume(0, create_heartbeat(buf, 3, &(struct heartbeat){ 1, 2 }), &event) < 0, "heartbeat");
		CHECK(consume(1, create_runs(buf, FTW_ZERO_PAGES, epoch + 1, 3, &(struct page_run){ 0, PAGES }, 1, 0),
			      &event) < 0,
		      "early record");
		pthread_mutex_lock(&lock);
		standby_connect(standby, 1, 0);
		CHECK(standby_epoch_committed(standby) == epoch, "committed epoch is lost");
		pthread_mutex_unlock(&lock);
	} while (atomic_load(&applying));
}

static void *mirror_apply(void *arg)
{
	for (uint64_t epoch = 1; epoch <= EPOCHS; epoch++) {
		pthread_barrier_wait(&committed);
		pthread_mutex_lock(&lock);
		standby_begin_apply(standby);
		pthread_mutex_unlock(&lock);
		for (int i = 0; i < 5; i++)
			standby_apply_run(standby);
		pthread_mutex_lock(&lock);
		standby_end_apply(standby);
		atomic_store(&applying, false);
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&applied);
	}
	return arg;
}

static void mirror(void)
{
	struct standby_options opt = { .lanes = 1, .state_max = 64, .epochs = 1, .ring_bytes = 512 * PAGE };
	pthread_t thread;
	uint64_t len;

	open_standby(&opt);
	model = calloc(PAGES, PAGE);
	image = standby_image(standby, &len);
	pthread_barrier_init(&committed, NULL, 2);
	pthread_barrier_init(&applied, NULL, 2);
	CHECK(pthread_create(&thread, NULL, mirror_apply, NULL) == 0, "thread");
	for (uint64_t epoch = 1; epoch <= EPOCHS; epoch++) {
		standby_connect(standby, 1, 0);
		receive(epoch);
		atomic_store(&applying, true);
		pthread_barrier_wait(&committed);
		disturb(epoch);
		pthread_barrier_wait(&applied);
		CHECK(memcmp(memory, model, PAGES * PAGE) == 0, "the image is not what was told");
	}
	pthread_join(thread, NULL);
	close_standby();
	free(model);
}

/* ---- slab ---- */

#define LANES 2u
#define WINDOW 3u
#define SLOTS ((uint64_t)FTW_RING_SLOTS_MIN)
#define QUEUE 4096u
#define TOLD_MAX 24u

/* A record: one run of pages, all filled with one octet; 0: told as zeros.  On lane 0: a commit. */
struct told {
	uint64_t epoch, position, digest;
	struct page_run run;
	uint8_t fill;
	struct commit commit;
};

/* The sender, whose records wait in their lanes until the receiver takes them; one thread is both. */
static struct {
	struct rng rng;
	uint8_t page[PAGES];
	uint8_t *ring;
	uint64_t epoch, position;
	unsigned left; /* records until the commit */
	struct commit commit;
	struct {
		struct told told[QUEUE];
		uint32_t taken, sent;
	} lane[LANES + 1];
	bool ends; /* the connection, soon */
	uint64_t losses;
} tx;

/* Guarded by lock: what the two threads tell each other. */
static struct {
	uint64_t applied, freed;
	uint64_t end[8]; /* of the ring, by epoch */
	uint8_t at_commit
		[8][PAGES]; /* by epoch; stays as it is until that is applied, and is looked at without the lock then */
	bool applying, over;
	uint64_t applies, moved, beside; /* all of them; pages moved; records that came while an epoch was applied */
} both;

static void begin_epoch(void)
{
	tx.epoch++;
	tx.left = (unsigned)(rng_next(&tx.rng) % 8 ? rng_range(&tx.rng, 1, 12)
						   : rng_range(&tx.rng, 60, 120)); /* longer than the ring */
	tx.commit = (struct commit){ .lanes = LANES, .digest = digest_state(NULL, 0) };
}

static void connect_anew(void)
{
	bool busy = true;

	while (busy) { /* what was committed is applied first */
		pthread_mutex_lock(&lock);
		busy = !both.over && (standby_apply_pending(standby) || both.applying);
		if (!busy && !both.over) {
			standby_connect(standby, LANES, WINDOW);
			standby_restart(standby);
			both.applied = both.freed = 0;
		}
		pthread_mutex_unlock(&lock);
		sched_yield();
	}
	tx.epoch = tx.position = 0;
	memset(tx.page, 0, sizeof(tx.page)); /* the first epoch is the whole machine */
	for (unsigned i = 0; i <= LANES; i++)
		tx.lane[i].taken = tx.lane[i].sent = 0;
	begin_epoch();
}

static void send_one(uint32_t lane, const struct told *t)
{
	CHECK(tx.lane[lane].sent - tx.lane[lane].taken < QUEUE, "lane %u is full", lane);
	tx.lane[lane].told[tx.lane[lane].sent++ % QUEUE] = *t;
}

static uint64_t digest_of(const struct told *t)
{
	uint8_t page[PAGE];
	uint64_t sum = 0;

	memset(page, t->fill, PAGE);
	for (uint64_t p = t->run.first; p < t->run.first + t->run.nr; p++)
		sum += t->fill ? digest_page(page, p) : digest_zero(p);
	return sum;
}

/* False: there is no room for it. */
static bool send_pages(uint64_t freed)
{
	uint64_t stripe = rng_range(&tx.rng, 0, PAGES / 64 - 1), nr = rng_range(&tx.rng, 1, TOLD_MAX);
	struct told t = { .epoch = tx.epoch,
			  .position = tx.position,
			  .run = { stripe * 64 + rng_range(&tx.rng, 0, 64 - nr), nr },
			  .fill = (uint8_t)(rng_next(&tx.rng) % 5 ? 1 + rng_next(&tx.rng) % 255 : 0) };

	if (tx.position + TOLD_MAX > freed + SLOTS)
		return false;
	t.digest = digest_of(&t);
	send_one(1 + (uint32_t)(stripe % LANES), &t); /* a page keeps to its lane */
	memset(&tx.page[t.run.first], t.fill, nr);
	tx.position += t.fill ? nr : 0;
	tx.commit.digest += t.digest;
	*(t.fill ? &tx.commit.nr_data_pages : &tx.commit.nr_zero_pages) += nr;
	return true;
}

static void send_commit(void)
{
	struct told t = { .epoch = tx.epoch };

	for (unsigned i = 0; i < LANES; i++)
		tx.commit.seq[i] = tx.lane[i + 1].sent;
	t.commit = tx.commit;
	send_one(0, &t);
	pthread_mutex_lock(&lock);
	both.end[tx.epoch % 8] = tx.position;
	memcpy(both.at_commit[tx.epoch % 8], tx.page, sizeof(tx.page));
	pthread_mutex_unlock(&lock);
	tx.ends = tx.ends || rng_next(&tx.rng) % 15 == 0;
	begin_epoch();
}

static void step_sender(void)
{
	uint64_t done, freed;

	pthread_mutex_lock(&lock);
	done = both.applied;
	freed = both.freed;
	pthread_mutex_unlock(&lock);
	if (tx.epoch > done + WINDOW)
		return;
	if (!tx.left)
		send_commit();
	else if (send_pages(freed))
		tx.left--;
}

/* As a transport does: without the lock. */
static void put_in_ring(const struct told *t)
{
	for (uint64_t i = 0; t->fill && i < t->run.nr; i++)
		memset(tx.ring + (t->position + i) % SLOTS * PAGE, t->fill, PAGE);
}

static size_t make(uint32_t lane, uint32_t seq, const struct told *t)
{
	if (lane == 0)
		return create_commit(buf, t->epoch, seq, &t->commit);
	return t->fill ? create_slab_runs(buf, t->epoch, seq, t->position, &t->run, 1, t->digest)
		       : create_runs(buf, FTW_ZERO_PAGES, t->epoch, seq, &t->run, 1, t->digest);
}

static void step_lane(uint32_t lane)
{
	const struct told *t = &tx.lane[lane].told[tx.lane[lane].taken % QUEUE];
	enum standby_event event = STANDBY_NOTHING;
	struct ft_error err = { 0 };
	int rc = 0;

	if (tx.lane[lane].taken == tx.lane[lane].sent)
		return;
	if (lane)
		put_in_ring(t);
	pthread_mutex_lock(&lock);
	rc = standby_consume(standby, lane, buf, make(lane, ++tx.lane[lane].taken, t), &event, &err);
	both.beside += both.applying;
	while (!rc && event & STANDBY_WHOLE)
		rc = standby_commit(standby, &event, &err);
	standby_memory_bytes(standby);
	pthread_mutex_unlock(&lock);
	CHECK_OK(rc, err);
}

/* A connection ends; with a record that is refused, while others are applied. */
static void lose(void)
{
	enum standby_event event;

	if (rng_next(&tx.rng) % 2)
		CHECK(consume(1,
			      create_runs(buf, FTW_ZERO_PAGES, tx.epoch + WINDOW + 1, tx.lane[1].taken + 1,
					  &(struct page_run){ 0, PAGES }, 1, 0),
			      &event) < 0,
		      "a record of an epoch that is not under way");
	connect_anew();
	tx.ends = false;
	tx.losses++;
}

static bool is_over(void)
{
	bool over;

	pthread_mutex_lock(&lock);
	over = both.over;
	pthread_mutex_unlock(&lock);
	return over;
}

static void receive_slab(void)
{
	while (!is_over()) {
		uint64_t what = rng_range(&tx.rng, 0, 99);

		if (!what && tx.ends)
			lose();
		else if (what < 40)
			step_sender();
		else
			step_lane((uint32_t)(what % (LANES + 1)));
	}
}

/* What was told in the ring is free, and the primary knows it. */
static void note_applied(uint64_t epoch)
{
	both.applied = epoch;
	if (both.end[epoch % 8] > both.freed)
		both.freed = both.end[epoch % 8];
	both.over = ++both.applies == EPOCHS;
}

static void compare(uint64_t epoch)
{
	const uint8_t *sent = both.at_commit[epoch % 8];

	for (uint64_t i = 0; i < PAGES; i++) {
		const uint8_t *page = memory + i * PAGE;

		CHECK(page[0] == sent[i] && memcmp(page, page + 1, PAGE - 1) == 0,
		      "epoch %" PRIu64 ": page %" PRIu64 " is not what was told", epoch, i);
	}
}

static void apply_slab(void)
{
	uint64_t epoch;

	both.applying = true;
	standby_begin_apply(standby);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < 5; i++) {
		standby_apply_run(standby);
		sched_yield();
	}
	pthread_mutex_lock(&lock);
	standby_end_apply(standby);
	epoch = standby_epoch_applied(standby);
	pthread_mutex_unlock(&lock);
	compare(epoch);
	pthread_mutex_lock(&lock);
	note_applied(epoch);
	both.applying = false;
}

static void *slab_apply(void *arg)
{
	struct room room;

	pthread_mutex_lock(&lock);
	while (!both.over) {
		if (standby_apply_pending(standby)) {
			apply_slab();
		} else if (standby_make_room(standby, 64, &room)) {
			both.moved += room.freed - both.freed;
			both.freed = room.freed;
		}
		pthread_mutex_unlock(&lock);
		sched_yield();
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	return arg;
}

static void slab(void)
{
	struct standby_options opt = { .lanes = LANES, .state_max = 64, .epochs = WINDOW, .ring_bytes = SLOTS * PAGE };
	pthread_t thread;
	uint64_t len;

	open_standby(&opt);
	tx.ring = standby_ring(standby, &len);
	connect_anew();
	CHECK(pthread_create(&thread, NULL, slab_apply, NULL) == 0, "thread");
	receive_slab();
	pthread_join(thread, NULL);
	printf("slab: %u epochs, %" PRIu64 " pages moved, %" PRIu64 " records beside an apply, %" PRIu64 " losses\n",
	       EPOCHS, both.moved, both.beside, tx.losses);
	CHECK(both.moved > 1000 && both.beside > 0 && tx.losses > 0, "not all of it was tried");
	close_standby();
}

int main(void)
{
	mirror();
	slab();
	return 0;
}
