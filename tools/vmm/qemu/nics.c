/* SPDX-License-Identifier: MIT */
/* nics.c - see nics.h.
 *
 * QEMU listens and we connect, as for consoles, and again when it closed.  A frame that the guest sent before a pause and that is still in the
 * socket belongs to the epoch that ends: nics_cut() takes what is there.
 *
 * Must hold: QEMU's socket is read whatever happens.  QEMU 7.2 writes to it with a blocking send, its main loop locked: a card that
 * waited for room would be a QEMU that cannot be paused.  What finds no room is dropped, as in any network. */
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

#define BURST 64 /* frames of one card before the next one has its turn */
#define CONNECT_EVERY_MS 200
#define IDLE_MS 200

_Static_assert(UPLINK_FRAME_MAX <= FT_OUTPUT_PACKET_MAX, "each frame can be held");

struct nic {
	struct nics *all;
	const struct cmdline_route *spec;
	struct uplink *uplink;
	struct ft_output *output;
	_Atomic uint64_t dropped; /* frames of the guest that found no room */
	/* guarded by all->lock */
	int qemu;
	int ended; /* QEMU closed it (-EPIPE), or said what is no frame (-EPROTO); the thread connects again */
	struct frames_in from_guest;
	uint64_t running; /* octets of the epoch that runs */
	bool asked;       /* for its end */
	/* the thread's */
	uint64_t connect_ns; /* not before then */
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

static void queue_locked(struct nic *c, const uint8_t *frame, size_t len)
{
	c->running += len;
	if (ft_output_write(c->output, frame, len))
		atomic_fetch_add(&c->dropped, 1);
}

/* Take what QEMU has for us, @most frames.  Returns how many there were. */
static unsigned read_locked(struct nic *c, unsigned most)
{
	unsigned nr = 0;

	while (nr < most && !c->ended) {
		const uint8_t *frame;
		int len = frames_read(&c->from_guest, c->qemu, &frame);

		if (len == 0)
			break;
		if (len < 0) {
			c->ended = len;
			break;
		}
		queue_locked(c, frame, (size_t)len);
		nr++;
	}
	return nr;
}

/* The epoch that runs has filled half of the queue alone.  Asked once: until it ends nothing more can be done. */
static bool must_end_locked(struct nic *c)
{
	uint64_t half = c->all->config.hold_bytes / 2;

	if (c->all->config.at_cap != NICS_CUT || c->asked || c->running <= half || ft_output_held(c->output) <= half)
		return false;
	c->asked = true;
	return true;
}

static void take(struct nic *c)
{
	const struct nics_config *config = &c->all->config;
	unsigned taken;
	bool must_end;

	pthread_mutex_lock(&c->all->lock);
	taken = read_locked(c, BURST);
	must_end = taken && must_end_locked(c);
	pthread_mutex_unlock(&c->all->lock);
	if (taken && config->has_output && ft_output_held(c->output))
		config->has_output(config->user);
	if (must_end && config->want_cut)
		config->want_cut(config->user);
}

/* ---- to the guest ------------------------------------------------------------------------------- */

static bool has_ended(struct nic *c)
{
	bool ended;

	pthread_mutex_lock(&c->all->lock);
	ended = c->ended != 0;
	pthread_mutex_unlock(&c->all->lock);
	return ended;
}

static void end(struct nic *c, int why)
{
	pthread_mutex_lock(&c->all->lock);
	c->ended = c->ended ? c->ended : why;
	pthread_mutex_unlock(&c->all->lock);
}

/* 0: QEMU has no room now. */
static int give(struct nic *c)
{
	int r;

	if (!atomic_load(&c->all->plugged) || has_ended(c))
		return 1; /* nobody is there to take it */
	r = frames_write(&c->to_guest, c->qemu, c->inbound, c->inbound_len);
	if (r < 0)
		end(c, r);
	return r;
}

static void feed(struct nic *c)
{
	for (unsigned i = 0; i < BURST; i++) {
		if (!c->inbound_len)
			c->inbound_len = uplink_receive(c->uplink, c->inbound);
		if (!c->inbound_len || give(c) == 0)
			break;
		c->inbound_len = 0;
	}
	if (c->to_guest.len && !has_ended(c) && frames_flush(&c->to_guest, c->qemu) < 0)
		end(c, -EPIPE);
}

/* ---- the thread --------------------------------------------------------------------------------- */

static void say(struct nic *c, const char *what)
{
	char text[256];

	snprintf(text, sizeof(text), "network %s: %s", c->spec->id, what);
	if (c->all->config.say)
		c->all->config.say(c->all->config.user, text);
}

static void hang_up(struct nic *c)
{
	int why;

	pthread_mutex_lock(&c->all->lock);
	why = c->ended;
	fd_close(&c->qemu);
	c->from_guest.have = 0;
	pthread_mutex_unlock(&c->all->lock);
	c->to_guest.at = c->to_guest.len = 0;
	if (why == -EPROTO)
		say(c, "what QEMU sent is no frame: connecting to it anew");
}

/* QEMU listens again when it has seen the end of the connection before. */
static void reconnect(struct nic *c)
{
	struct ft_error ignored;
	int fd;

	if (c->qemu >= 0)
		hang_up(c);
	if (util_now_ns() < c->connect_ns)
		return;
	c->connect_ns = util_now_ns() + CONNECT_EVERY_MS * UTIL_NS_PER_MS;
	fd = unix_connect(c->spec->socket, 0, &ignored);
	if (fd < 0)
		return;
	pthread_mutex_lock(&c->all->lock);
	c->qemu = fd;
	c->ended = 0;
	pthread_mutex_unlock(&c->all->lock);
}

/* Where in the poll array a card's ends are. */
struct slot {
	int first, nr;
};

static int prepare(struct nics *n, struct pollfd *p, struct slot *slot, int *timeout_ms)
{
	int nr = 0;

	*timeout_ms = IDLE_MS;
	p[nr++] = (struct pollfd){ .fd = n->wake, .events = POLLIN };
	for (unsigned i = 0; i < n->nr; i++) {
		struct nic *c = n->nic[i];
		bool to_guest = c->inbound_len || c->to_guest.len;

		if (has_ended(c))
			reconnect(c);
		if (c->qemu >= 0)
			p[nr++] =
				(struct pollfd){ .fd = c->qemu, .events = (short)(POLLIN | (to_guest ? POLLOUT : 0)) };
		slot[i].first = nr;
		slot[i].nr = uplink_poll(c->uplink, p + nr, !to_guest, timeout_ms);
		nr += slot[i].nr;
	}
	return nr;
}

static void serve(struct nic *c, const struct pollfd *p, const struct slot *slot)
{
	if (uplink_handle(c->uplink, p + slot->first, slot->nr))
		ft_output_kick(c->output);
	feed(c);
	take(c);
	if (uplink_gone(c->uplink))
		say(c, "the tap device was deleted: what the guest sends is lost from now on");
}

static void *run(void *arg)
{
	struct pollfd p[1 + CMDLINE_NICS_MAX * 3];
	struct slot slot[CMDLINE_NICS_MAX];
	struct nics *n = arg;
	uint64_t count;
	int timeout_ms;

	while (!atomic_load(&n->stop)) {
		int nr = prepare(n, p, slot, &timeout_ms);

		if (poll(p, (nfds_t)nr, timeout_ms) < 0 && errno != EINTR)
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
	for (unsigned i = 0; i < n->nr; i++)
		uplink_plug(n->nic[i]->uplink, in);
	wake(n);
}

void nics_cut(struct nics *n, uint64_t epoch)
{
	pthread_mutex_lock(&n->lock);
	for (unsigned i = 0; i < n->nr; i++) {
		struct nic *c = n->nic[i];

		read_locked(c, UINT32_MAX);
		ft_output_cut(c->output, epoch);
		c->running = 0;
		c->asked = false;
	}
	pthread_mutex_unlock(&n->lock);
}

void nics_release(struct nics *n, uint64_t epoch)
{
	for (unsigned i = 0; i < n->nr; i++)
		ft_output_release(n->nic[i]->output, epoch);
}

void nics_drop(struct nics *n)
{
	nics_plug(n, false);
	pthread_mutex_lock(&n->lock);
	for (unsigned i = 0; i < n->nr; i++)
		ft_output_drop(n->nic[i]->output);
	pthread_mutex_unlock(&n->lock);
}

bool nics_figures(struct nics *n, unsigned i, struct nics_figures *out)
{
	struct nic *c;

	if (i >= n->nr)
		return false;
	c = n->nic[i];
	*out = (struct nics_figures){ .name = c->spec->id,
				      .held_bytes = ft_output_held(c->output),
				      .dropped_frames = atomic_load(&c->dropped) + uplink_lost(c->uplink) };
	return true;
}

uint64_t nics_held(struct nics *n)
{
	struct nics_figures f;
	uint64_t held = 0;

	for (unsigned i = 0; nics_figures(n, i, &f); i++)
		held += f.held_bytes;
	return held;
}

uint64_t nics_dropped(struct nics *n)
{
	struct nics_figures f;
	uint64_t dropped = 0;

	for (unsigned i = 0; nics_figures(n, i, &f); i++)
		dropped += f.dropped_frames;
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
	*c = (struct nic){ .all = n, .spec = spec, .qemu = -1 };
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
