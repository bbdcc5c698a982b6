/* SPDX-License-Identifier: MIT */
/* minimal.c - the smallest machine that libft can protect: 16 MiB of memory and a counter that runs through them.
 *	minimal primary HOST:PORT CONTROL-SOCKET
 *	minimal secondary ADDRESS:PORT CONTROL-SOCKET
 * Promote the secondary with `ftctl -s CONTROL-SOCKET failover`: it counts on from the last committed epoch. */
#include <ft/ft.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES 4096u

struct machine {
	uint8_t *memory;
	bool dirty[PAGES];
	uint64_t counter;     /* its "device state" */
	pthread_mutex_t runs; /* held while the guest makes a step, or by pause() */
	bool is_active;
	pthread_cond_t activated;
};

/* ---- what the engine asks of the machine (primary) ---- */

static int track_start(void *user, struct ft_error *err)
{
	(void)user;
	(void)err;
	return 0; /* the guest below notes every page that it writes anyway */
}

static int collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;

	(void)err;
	for (uint64_t page = 0; page < PAGES; page++)
		if (__atomic_exchange_n(&m->dirty[page], false, __ATOMIC_ACQ_REL))
			ft_dirty_add(dirty, 0, page, 1);
	return 0;
}

static int pause_guest(void *user, struct ft_error *err)
{
	(void)err;
	return -pthread_mutex_lock(&((struct machine *)user)->runs);
}

static int resume_guest(void *user, struct ft_error *err)
{
	(void)err;
	return -pthread_mutex_unlock(&((struct machine *)user)->runs);
}

static int save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	(void)err;
	return ft_state_write(sink, &((struct machine *)user)->counter, sizeof(uint64_t));
}

/* ---- and of the standby (secondary) ---- */

static int load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct machine *m = user;

	if (len != sizeof(m->counter)) {
		err->code = -1;
		snprintf(err->msg, sizeof(err->msg), "device state of %zu octets", len);
		return err->code;
	}
	memcpy(&m->counter, buf, len);
	return 0;
}

static int activate(void *user, struct ft_error *err)
{
	struct machine *m = user;

	(void)err;
	pthread_mutex_lock(&m->runs);
	m->is_active = true;
	pthread_cond_signal(&m->activated);
	pthread_mutex_unlock(&m->runs);
	return 0;
}

static const struct ft_vmm_ops ops = {
	.struct_size = sizeof(ops),
	.track_start = track_start,
	.collect_dirty = collect_dirty,
	.pause = pause_guest,
	.save_state = save_state,
	.resume = resume_guest,
	.load_state = load_state,
	.activate = activate,
};

/* ---- the guest ---- */

static void step(struct machine *m)
{
	uint64_t page, *word;

	pthread_mutex_lock(&m->runs);
	page = m->counter % PAGES;
	word = (uint64_t *)(m->memory + page * FT_PAGE_SIZE);
	*word = m->counter++;
	__atomic_store_n(&m->dirty[page], true, __ATOMIC_RELEASE); /* behind the write, or it could be missed */
	pthread_mutex_unlock(&m->runs);
}

/* Does the memory hold what this counter has written? */
static bool is_whole(const struct machine *m)
{
	for (uint64_t i = m->counter > PAGES ? m->counter - PAGES : 0; i < m->counter; i++)
		if (*(const uint64_t *)(m->memory + i % PAGES * FT_PAGE_SIZE) != i)
			return false;
	return true;
}

static void run(struct machine *m, bool is_primary)
{
	if (!is_primary) {
		pthread_mutex_lock(&m->runs);
		while (!m->is_active)
			pthread_cond_wait(&m->activated, &m->runs);
		pthread_mutex_unlock(&m->runs);
		printf("goes on at %" PRIu64 ", memory %s\n", m->counter, is_whole(m) ? "whole" : "BROKEN");
		fflush(stdout);
	}
	for (;;) {
		step(m);
		usleep(100);
	}
}

/* ---- protection ---- */

static int protect(struct machine *m, bool is_primary, const char *address, const char *socket, struct ft_error *err)
{
	struct ft_config cfg;
	struct ft_session *session;
	struct ft_control *control;

	ft_config_init(&cfg, is_primary ? FT_ROLE_PRIMARY : FT_ROLE_SECONDARY);
	cfg.name = "minimal";
	cfg.peer = cfg.listen = address;
	cfg.staging_bytes = 64 << 20;
	if (ft_session_open(&session, &cfg, &ops, m, err) < 0 ||
	    ft_session_add_region(session, "memory", m->memory, PAGES * FT_PAGE_SIZE, err) < 0 ||
	    ft_session_start(session, err) < 0 || ft_control_open(&control, socket, NULL, NULL, err) < 0)
		return err->code;
	ft_control_set_session(control, session);
	return 0;
}

int main(int argc, char **argv)
{
	static struct machine m = { .runs = PTHREAD_MUTEX_INITIALIZER, .activated = PTHREAD_COND_INITIALIZER };
	bool is_primary = argc == 4 && strcmp(argv[1], "primary") == 0;
	struct ft_error err = { 0 };

	if (argc != 4 || (!is_primary && strcmp(argv[1], "secondary") != 0)) {
		fprintf(stderr, "usage: minimal primary|secondary ADDRESS:PORT CONTROL-SOCKET\n");
		return 2;
	}
	m.memory = aligned_alloc(FT_PAGE_SIZE, PAGES * FT_PAGE_SIZE);
	if (!m.memory)
		return 1;
	memset(m.memory, 0, PAGES * FT_PAGE_SIZE);
	if (protect(&m, is_primary, argv[2], argv[3], &err) < 0) {
		fprintf(stderr, "minimal: %s\n", err.msg);
		return 1;
	}
	run(&m, is_primary);
	return 0;
}
