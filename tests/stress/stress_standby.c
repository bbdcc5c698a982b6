/* SPDX-License-Identifier: MIT */
/* stress_standby.c - standby_apply_run() on one thread beside standby_consume() and standby_connect() on another, as
 * in the engine: everything else is under one lock.  While an epoch is applied the receiver gets records of the next
 * one, too early (S4), and the connection comes and goes.  After each apply all octets are compared.  For TSan. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "digest.h"
#include "standby.h"

#define PAGE FT_PAGE_SIZE
#define PAGES 256u
#define EPOCHS 300u

static struct standby *standby;
static uint8_t *memory, *image, *model;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t committed, applied;
static atomic_bool applying;
static uint8_t buf[FTW_RECORD_MAX]; /* receiver only */

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "stress_standby: %s\n", what);
	abort();
}

static int consume(uint32_t lane, size_t len, enum standby_event *event)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = standby_consume(standby, lane, buf, len, event, NULL);
	pthread_mutex_unlock(&lock);
	return rc;
}

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
	must(consume(1, create_runs(buf, FTW_NOTIFY_WRITE, epoch, 1, &data, 1, d), &event) == 0, "notify-write");
	for (uint64_t p = zero.first; p < zero.first + zero.nr; p++) {
		memset(model + p * PAGE, 0, PAGE);
		z += digest_zero(p);
	}
	must(consume(1, create_runs(buf, FTW_ZERO_PAGES, epoch, 2, &zero, 1, z), &event) == 0, "zero-pages");
	c.digest = d + z + digest_state(NULL, 0);
	must(consume(0, create_commit(buf, epoch, 1, &c), &event) == 0 && event == STANDBY_WHOLE, "commit");
	must(standby_commit(standby, &event, NULL) == 0 && !event, "nothing is behind it");
}

/* What a peer without manners sends while an epoch is applied. */
static void disturb(uint64_t epoch)
{
	enum standby_event event;

	do {
		must(consume(0, create_heartbeat(buf, 3, &(struct heartbeat){ 1, 2 }), &event) < 0, "heartbeat");
		must(consume(1, create_runs(buf, FTW_ZERO_PAGES, epoch + 1, 3, &(struct page_run){ 0, PAGES }, 1, 0),
			     &event) < 0,
		     "early record");
		pthread_mutex_lock(&lock);
		standby_connect(standby, 1, 0);
		must(standby_epoch_committed(standby) == epoch, "committed epoch is lost");
		pthread_mutex_unlock(&lock);
	} while (atomic_load(&applying));
}

static void *apply_thread(void *arg)
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

int main(void)
{
	struct region_table *none = region_table_empty(), *t;
	struct standby_options opt = { .lanes = 1, .state_max = 64, .epochs = 1, .ring_bytes = 512 * PAGE };
	pthread_t thread;
	uint64_t len;

	memory = aligned_alloc(PAGE, PAGES * PAGE);
	model = calloc(PAGES, PAGE);
	memset(memory, 0xaa, PAGES * PAGE);
	t = region_table_add(none, "ram", memory, PAGES * PAGE, NULL);
	must(t && standby_create(&standby, t, &opt, NULL) == 0, "create");
	image = standby_image(standby, &len);
	pthread_barrier_init(&committed, NULL, 2);
	pthread_barrier_init(&applied, NULL, 2);
	must(pthread_create(&thread, NULL, apply_thread, NULL) == 0, "thread");
	for (uint64_t epoch = 1; epoch <= EPOCHS; epoch++) {
		standby_connect(standby, 1, 0);
		receive(epoch);
		atomic_store(&applying, true);
		pthread_barrier_wait(&committed);
		disturb(epoch);
		pthread_barrier_wait(&applied);
		must(memcmp(memory, model, PAGES * PAGE) == 0, "the image is not what was told");
	}
	pthread_join(thread, NULL);
	standby_destroy(standby);
	region_table_free(t);
	region_table_free(none);
	free(memory);
	free(model);
	return 0;
}
