/* SPDX-License-Identifier: MIT */
/* test_session_auto.c - "capture" auto in a session: a guest that is dear to capture on write makes it change its way, there and back, and at no border
 * a page is lost.  The machine is made for that: in the first moment behind each pause, before resume() returns, it writes pages that it writes only
 * then, once.  What is dropped from its tracking a moment too late would take them along, and nothing would send them again. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#include "clock.h"
#include "session_help.h"

#define HOT 80u   /* pages that the guest writes all the time */
#define FRESH 70u /* behind each pause */
#define TELLS                                                                                                          \
	20000u /* of writes behind each pause, when they are told: to capture on write is much dearer than to copy */
#define ROUNDS 160u
#define PAGES (HOT + FRESH * ROUNDS)

struct machine {
	struct ft_session *session;
	uint8_t *memory;
	_Atomic bool dirty[PAGES], hooked, ends;
	atomic_uint rounds;
	pthread_t guest;
	pthread_mutex_t lock; /* held while the guest writes a page, guards: */
	bool stopped;
};

static void write_page(struct machine *m, uint64_t page)
{
	if (atomic_load(&m->hooked))
		ft_session_write_begin(m->session, 0, page, 1);
	m->memory[page * PAGE]++;
	atomic_store(&m->dirty[page], true);
}

static void *run_guest(void *arg)
{
	struct machine *m = arg;

	for (uint64_t n = 0; !atomic_load(&m->ends); n++) {
		pthread_mutex_lock(&m->lock);
		if (!m->stopped)
			write_page(m, n % HOT);
		pthread_mutex_unlock(&m->lock);
	}
	return NULL;
}

static int collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;

	(void)err;
	for (uint64_t page = 0; page < PAGES; page++)
		if (atomic_exchange(&m->dirty[page], false))
			ft_dirty_add(dirty, 0, page, 1);
	return 0;
}

static int stop(void *user, struct ft_error *err)
{
	struct machine *m = user;

	(void)err;
	pthread_mutex_lock(&m->lock);
	m->stopped = true;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* The guest's first steps are over when this returns. */
static int resume(void *user, struct ft_error *err)
{
	struct machine *m = user;
	unsigned round = atomic_load(&m->rounds);

	(void)err;
	/* never of a page that is to be copied first: ft-epoch, which is here, gives the memory for that */
	for (unsigned i = 0; i < TELLS && round < ROUNDS && atomic_load(&m->hooked); i++)
		ft_session_write_begin(m->session, 0, HOT + round * FRESH, 1);
	for (uint64_t i = 0; i < FRESH && round < ROUNDS; i++)
		write_page(m, HOT + (uint64_t)round * FRESH + i);
	if (round < ROUNDS)
		atomic_fetch_add(&m->rounds, 1);
	pthread_mutex_lock(&m->lock);
	m->stopped = false;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int write_hook(void *user, bool on, struct ft_error *err)
{
	struct machine *m = user;

	(void)err;
	atomic_store(&m->hooked, on);
	pthread_mutex_lock(&m->lock); /* nobody is left inside */
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static void open_side(struct ft_session **s, struct machine *m, enum ft_role role, const char *settings)
{
	struct ft_config cfg = plain_config(role);
	struct ft_vmm_ops ops = plain_ops();
	struct ft_error err = { 0 };

	pthread_mutex_init(&m->lock, NULL);
	m->memory = ram(PAGES);
	cfg.peer = cfg.listen = "loopback:auto";
	pair_settings(&cfg, settings);
	if (role == FT_ROLE_PRIMARY) {
		ops.collect_dirty = collect_dirty;
		ops.pause = stop;
		ops.resume = resume;
		ops.write_hook = write_hook;
	}
	CHECK_OK(ft_session_open(s, &cfg, &ops, m, &err), err);
	m->session = *s;
	CHECK_OK(ft_session_add_region(*s, "ram", m->memory, PAGES * PAGE, &err), err);
	CHECK_OK(ft_session_start(*s, &err), err);
}

static void close_side(struct machine *m)
{
	ft_session_close(m->session);
	munmap(m->memory, PAGES * PAGE);
}

static void wait_until(atomic_uint *value, unsigned least)
{
	for (uint64_t deadline = deadline_in_ms(WAIT_MS); atomic_load(value) < least; sleep_ms(1))
		CHECK(now_ns() < deadline, "%u of %u after %u ms", atomic_load(value), least, WAIT_MS);
}

static void wait_applied(struct ft_session *s, uint64_t epoch)
{
	struct ft_status st;
	uint64_t deadline = deadline_in_ms(WAIT_MS);

	for (ft_session_status(s, &st); st.epoch_applied < epoch; ft_session_status(s, &st)) {
		CHECK(now_ns() < deadline, "epoch %lu is not applied", (unsigned long)epoch);
		sleep_ms(1);
	}
}

Test(session_auto, no_page_is_lost_where_the_way_of_capturing_changes, .timeout = 120)
{
	static struct machine a, b;
	struct ft_session *primary, *secondary;
	struct ft_error err = { 0 };
	uint64_t epoch, switches;

	open_side(&secondary, &b, FT_ROLE_SECONDARY, NULL);
	open_side(&primary, &a, FT_ROLE_PRIMARY, "capture=auto,interval=2");
	CHECK(pthread_create(&a.guest, NULL, run_guest, &a) == 0, "no thread");
	pair_wait(primary, STATE(PROTECTED));
	wait_until(&a.rounds, ROUNDS);
	atomic_store(&a.ends, true);
	pthread_join(a.guest, NULL);
	CHECK_OK(ft_session_checkpoint(primary, WAIT_MS, &epoch, &err), err);
	wait_applied(secondary, epoch);
	switches = counted(primary, FT_COUNTER_CAPTURE_SWITCHES);
	cr_expect_geq(switches, 2, "it changed its way %lu times", (unsigned long)switches);
	for (uint64_t page = 0; page < PAGES; page++)
		cr_assert_eq(b.memory[page * PAGE], a.memory[page * PAGE], "page %lu: %u, and %u there",
			     (unsigned long)page, a.memory[page * PAGE], b.memory[page * PAGE]);
	close_side(&a);
	close_side(&b);
}
