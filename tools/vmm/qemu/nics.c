/* SPDX-License-Identifier: MIT */
/* nics.c - see nics.h.
 *
 * QEMU listens and we connect, as for consoles.  A frame that the guest sent before a pause and that is still in the socket belongs to the
 * epoch that ends: nics_cut() takes what is there.  If it finds no room that frame is dropped, for networks lose frames and the guest
 * cannot be asked to wait while it stands. */
#include "nics.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <ft/ft.h>
#include "frames.h"
#include "uplink.h"

#define CUT_EVERY_MS 1 /* while a queue is full */
#define BURST 64       /* frames of one card before the next one has its turn */

_Static_assert(UPLINK_FRAME_MAX <= FT_OUTPUT_PACKET_MAX, "each frame can be held");

struct nic {
	struct nics *all;
	const char *id;
	int qemu;
	bool ended; /* QEMU closed it; guarded by all->lock */
	struct uplink *uplink;
	struct ft_output *output;
	/* guarded by all->lock */
	struct frames_in from_guest;
	const uint8_t *refused; /* a frame that found no room; in from_guest */
	size_t refused_len;
	/* the thread's */
	struct frames_out to_guest;
	size_t inbound_len; /* a frame that QEMU has not taken */
	uint8_t inbound[UPLINK_FRAME_MAX];
};

struct nics {
	struct nics_config config;
	pthread_mutex_t lock; /* reading from QEMU and queueing are one step; before ft_output's own lock */
	pthread_t thread;
	bool has_thread;
	int wake; /* eventfd */
	atomic_bool stop, plugged;
	_Atomic uint64_t dropped;
	unsigned nr;
	struct nic *nic[CMDLINE_NICS_MAX];
};

static void wake(struct nics *n)
{
	uint64_t one = 1;

	if (write(n->wake, &one, sizeof(one)) < 0 && errno != EAGAIN)
		return;
}

/* [ft_output, its lock held] */
static size_t emit(void *user, const void *frame, size_t len)
{
	struct nic *c = user;

	if (!atomic_load(&c->all->plugged))
		return len;
	if (uplink_send(c->uplink, frame, len))
		return len;
	wake(c->all); /* so that the thread waits for room */
	return 0;
}

/* ---- from the guest ----------------------------------------------------------------------------- */

static bool queue_locked(struct nic *c, const uint8_t *frame, size_t len, bool may_wait)
{
	if (ft_output_write(c->output, frame, len) == 0)
		return true;
	if (!may_wait || c->all->config.at_cap == NICS_DROP) {
		atomic_fetch_add(&c->all->dropped, 1);
		return true;
	}
	c->refused = frame;
	c->refused_len = len;
	return false;
}

/* Take what QEMU has for us, @most frames.  Returns how many were queued. */
static unsigned read_locked(struct nic *c, unsigned most, bool may_wait)
{
	unsigned nr = 0;

	while (nr < most && !c->ended) {
		const uint8_t *frame = c->refused;
		int len = (int)c->refused_len;

		c->refused = NULL;
		if (!frame)
			len = frames_read(&c->from_guest, c->qemu, &frame);
		if (len == 0)
			break;
		if (len < 0)
			c->ended = true;
		else if (!queue_locked(c, frame, (size_t)len, may_wait))
			break;
		nr++;
	}
	return nr;
}

/* ---- to the guest ------------------------------------------------------------------------------- */

static void feed(struct nic *c)
{
	for (unsigned i = 0; i < BURST; i++) {
		if (!c->inbound_len)
			c->inbound_len = uplink_receive(c->uplink, c->inbound);
		if (!c->inbound_len)
			break;
		if (atomic_load(&c->all->plugged) &&
		    frames_write(&c->to_guest, c->qemu, c->inbound, c->inbound_len) == 0)
			break;
		c->inbound_len = 0;
	}
	(void)frames_flush(&c->to_guest, c->qemu);
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* Where in the poll array a card's ends are. */
struct slot {
	int first, nr;
};

static int prepare(struct nics *n, struct pollfd *p, struct slot *slot, bool *full)
{
	int nr = 0;

	*full = false;
	p[nr++] = (struct pollfd){ .fd = n->wake, .events = POLLIN };
	for (unsigned i = 0; i < n->nr; i++) {
		struct nic *c = n->nic[i];
		bool ended, refused, to_guest = c->inbound_len || c->to_guest.len;

		pthread_mutex_lock(&n->lock);
		ended = c->ended;
		refused = c->refused != NULL;
		pthread_mutex_unlock(&n->lock);
		*full |= refused;
		if (!ended)
			p[nr++] =
				(struct pollfd){ .fd = c->qemu,
						 .events = (short)((refused ? 0 : POLLIN) | (to_guest ? POLLOUT : 0)) };
		slot[i].first = nr;
		slot[i].nr = uplink_poll(c->uplink, p + nr, !to_guest && !ended);
		nr += slot[i].nr;
	}
	return nr;
}

static void serve(struct nic *c, const struct pollfd *p, const struct slot *slot)
{
	unsigned taken;

	if (uplink_handle(c->uplink, p + slot->first, slot->nr))
		ft_output_kick(c->output);
	feed(c);
	pthread_mutex_lock(&c->all->lock);
	taken = read_locked(c, BURST, true);
	pthread_mutex_unlock(&c->all->lock);
	if (taken && c->all->config.has_output && ft_output_held(c->output))
		c->all->config.has_output(c->all->config.user);
}

static void *run(void *arg)
{
	struct pollfd p[1 + CMDLINE_NICS_MAX * 3];
	struct slot slot[CMDLINE_NICS_MAX];
	struct nics *n = arg;
	uint64_t count;
	bool full;

	while (!atomic_load(&n->stop)) {
		int nr = prepare(n, p, slot, &full);

		if (full && n->config.at_cap == NICS_CUT && n->config.want_cut)
			n->config.want_cut(n->config.user);
		if (poll(p, (nfds_t)nr, full ? CUT_EVERY_MS : 200) < 0 && errno != EINTR)
			break;
		if (p[0].revents && read(n->wake, &count, sizeof(count)) < 0 && errno != EAGAIN)
			break;
		for (unsigned i = 0; i < n->nr; i++)
			serve(n->nic[i], p, &slot[i]);
	}
	return NULL;
}

/* ---- session ------------------------------------------------------------------------------------ */

void nics_plug(struct nics *n, bool in)
{
	atomic_store(&n->plugged, in);
	wake(n);
}

void nics_cut(struct nics *n, uint64_t epoch)
{
	pthread_mutex_lock(&n->lock);
	for (unsigned i = 0; i < n->nr; i++) {
		read_locked(n->nic[i], UINT32_MAX, false);
		ft_output_cut(n->nic[i]->output, epoch);
	}
	pthread_mutex_unlock(&n->lock);
}

void nics_release(struct nics *n, uint64_t epoch)
{
	for (unsigned i = 0; i < n->nr; i++)
		ft_output_release(n->nic[i]->output, epoch);
	wake(n); /* there may be room again */
}

void nics_drop(struct nics *n)
{
	nics_plug(n, false);
	pthread_mutex_lock(&n->lock);
	for (unsigned i = 0; i < n->nr; i++)
		ft_output_drop(n->nic[i]->output);
	pthread_mutex_unlock(&n->lock);
}

uint64_t nics_held(struct nics *n)
{
	uint64_t held = 0;

	for (unsigned i = 0; i < n->nr; i++)
		held += ft_output_held(n->nic[i]->output);
	return held;
}

uint64_t nics_dropped(struct nics *n)
{
	uint64_t dropped = atomic_load(&n->dropped);

	for (unsigned i = 0; i < n->nr; i++)
		dropped += uplink_lost(n->nic[i]->uplink);
	return dropped;
}

/* ---- open, close -------------------------------------------------------------------------------- */

static int open_one(struct nics *n, const struct cmdline_route *spec, struct ft_error *err)
{
	struct nic *c = calloc(1, sizeof(*c));
	char said[64], text[256];
	int rc;

	if (!c)
		return fail(err, -ENOMEM, "no memory");
	*c = (struct nic){ .all = n, .id = spec->id, .qemu = -1 };
	n->nic[n->nr++] = c;
	c->qemu = unix_connect(spec->socket, util_deadline_ms(1000), err);
	if (c->qemu < 0)
		return c->qemu;
	rc = uplink_open(&c->uplink, spec->destination, said, sizeof(said), err);
	if (rc) {
		fail_in(err, "network %s", spec->id);
		return rc;
	}
	if (said[0] && n->config.say) {
		snprintf(text, sizeof(text), "network %s is %s", spec->id, said);
		n->config.say(n->config.user, text);
	}
	rc = ft_output_open_packets(&c->output, n->config.hold_bytes, emit, c);
	return rc ? fail_sys(err, rc, "network %s", spec->id) : 0;
}

static int start_thread(struct nics *n, struct ft_error *err)
{
	sigset_t all, old;
	int rc;

	/* signals are for the main thread */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(&n->thread, NULL, run, n);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return fail_sys(err, rc, "thread for the network");
	n->has_thread = true;
	pthread_setname_np(n->thread, "ft-net");
	return 0;
}

int nics_open(struct nics **out, const struct nics_config *config, struct ft_error *err)
{
	struct nics *n = calloc(1, sizeof(*n));
	int rc = 0;

	*out = NULL;
	if (!n)
		return fail(err, -ENOMEM, "no memory");
	n->config = *config;
	pthread_mutex_init(&n->lock, NULL);
	n->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (n->wake < 0)
		rc = fail_sys(err, -errno, "eventfd");
	for (unsigned i = 0; !rc && i < config->nr; i++)
		rc = open_one(n, &config->nic[i], err);
	if (!rc && n->nr)
		rc = start_thread(n, err);
	if (rc) {
		nics_close(n);
		return rc;
	}
	*out = n;
	return 0;
}

void nics_close(struct nics *n)
{
	if (!n)
		return;
	atomic_store(&n->stop, true);
	if (n->has_thread) {
		wake(n);
		pthread_join(n->thread, NULL);
	}
	for (unsigned i = 0; i < n->nr; i++) {
		ft_output_close(n->nic[i]->output);
		uplink_close(n->nic[i]->uplink);
		fd_close(&n->nic[i]->qemu);
		free(n->nic[i]);
	}
	fd_close(&n->wake);
	pthread_mutex_destroy(&n->lock);
	free(n);
}
