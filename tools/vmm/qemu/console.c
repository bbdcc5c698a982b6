/* SPDX-License-Identifier: MIT */
/* console.c - see console.h.
 *
 * QEMU listens and we connect, so that QEMU outlives us and a later ftqemu can connect again.
 * A cut must have in its epoch all that the guest sent before it was paused, also what is still in the socket: else
 * a standby that goes on from that epoch would not send it again, and it would be lost.  So consoles_cut() empties the
 * socket first.  For that it needs room whatever the guest did, and the thread leaves RESERVE free: more than a Unix socket
 * of the default size holds. */
#include "console.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <ft/ft.h>
#include "sink.h"

#define RESERVE (512u << 10)
#define CHUNK 16384
#define INPUT 1024
#define CUT_EVERY_MS 1 /* while a queue is full */

struct console {
	struct consoles *all;
	int qemu;   /* open from consoles_open() to consoles_close() */
	bool ended; /* QEMU closed it; guarded by all->lock */
	struct ft_output *output;
	struct sink *sink;
	char input[INPUT]; /* typed, not yet taken by QEMU; console thread */
	size_t nr_input;
	bool full; /* console thread */
};

struct consoles {
	struct consoles_config config;
	pthread_mutex_t lock; /* reading from QEMU and queueing are one step; before ft_output's own lock */
	pthread_t thread;
	bool has_thread;
	int wake;  /* eventfd */
	bool stop; /* guarded by lock */
	unsigned nr;
	struct console console[CMDLINE_CONSOLES_MAX];
};

static void wake(struct consoles *c)
{
	uint64_t one = 1;

	if (write(c->wake, &one, sizeof(one)) < 0 && errno != EAGAIN)
		return;
}

/* [ft_output, its lock held] */
static size_t emit(void *user, const void *buf, size_t len)
{
	struct console *con = user;
	size_t took = sink_write(con->sink, buf, len);

	if (took < len)
		wake(con->all); /* so that the thread waits for room */
	return took;
}

/* Take what QEMU has for us, leaving @reserve of the queue free.  Returns false when the queue is full.  *@some: there was something. */
static bool read_locked(struct console *con, uint64_t reserve, bool *some)
{
	char buf[CHUNK];
	uint64_t room;
	ssize_t n;

	*some = false;
	while (!con->ended) {
		room = ft_output_room(con->output);
		if (room <= reserve)
			return false;
		room -= reserve;
		n = recv(con->qemu, buf, room < sizeof(buf) ? room : sizeof(buf), MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n <= 0)
			con->ended = true;
		else if (ft_output_write(con->output, buf, (size_t)n))
			return false; /* cannot be: there was room, and only we write */
		else
			*some = true;
	}
	return true;
}

/* ---- the thread --------------------------------------------------------------------------------- */

static void push_input(struct console *con)
{
	ssize_t n;

	if (!con->nr_input)
		return;
	n = send(con->qemu, con->input, con->nr_input, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n <= 0)
		return;
	con->nr_input -= (size_t)n;
	memmove(con->input, con->input + n, con->nr_input);
}

/* Where in the poll array a console's sink is. */
struct slot {
	int first, nr;
};

static bool has_ended(struct console *con)
{
	bool ended;

	pthread_mutex_lock(&con->all->lock);
	ended = con->ended;
	pthread_mutex_unlock(&con->all->lock);
	return ended;
}

static int prepare(struct consoles *c, struct pollfd *p, struct slot *slot)
{
	int n = 0;
	unsigned i;

	p[n++] = (struct pollfd){ .fd = c->wake, .events = POLLIN };
	for (i = 0; i < c->nr; i++) {
		struct console *con = &c->console[i];
		short events = (short)((con->full ? 0 : POLLIN) | (con->nr_input ? POLLOUT : 0));
		bool ended = has_ended(con);

		if (events && !ended)
			p[n++] = (struct pollfd){ .fd = con->qemu, .events = events };
		slot[i].first = n;
		slot[i].nr = sink_poll(con->sink, p + n, con->nr_input == 0 && !ended);
		n += slot[i].nr;
	}
	return n;
}

static void serve(struct console *con, const struct pollfd *p, const struct slot *slot)
{
	bool writable, some;
	size_t n;

	n = sink_handle(con->sink, p + slot->first, slot->nr, con->input + con->nr_input, INPUT - con->nr_input,
			&writable);
	con->nr_input += n;
	push_input(con);
	if (writable)
		ft_output_kick(con->output);
	pthread_mutex_lock(&con->all->lock);
	con->full = !read_locked(con, RESERVE, &some);
	pthread_mutex_unlock(&con->all->lock);
	if (some && con->all->config.has_output && ft_output_held(con->output))
		con->all->config.has_output(con->all->config.user);
}

static bool stopping(struct consoles *c)
{
	bool stop;

	pthread_mutex_lock(&c->lock);
	stop = c->stop;
	pthread_mutex_unlock(&c->lock);
	return stop;
}

static void *run(void *arg)
{
	struct pollfd p[1 + CMDLINE_CONSOLES_MAX * 4];
	struct slot slot[CMDLINE_CONSOLES_MAX];
	struct consoles *c = arg;
	uint64_t count;
	bool full;
	unsigned i;
	int n;

	while (!stopping(c)) {
		full = false;
		for (i = 0; i < c->nr; i++)
			full |= c->console[i].full;
		n = prepare(c, p, slot);
		if (full && c->config.want_cut)
			c->config.want_cut(c->config.user);
		if (poll(p, (nfds_t)n, full ? CUT_EVERY_MS : 200) < 0 && errno != EINTR)
			break;
		if (p[0].revents && read(c->wake, &count, sizeof(count)) < 0 && errno != EAGAIN)
			break;
		for (i = 0; i < c->nr; i++)
			serve(&c->console[i], p, &slot[i]);
	}
	return NULL;
}

/* ---- session ------------------------------------------------------------------------------------ */

void consoles_cut(struct consoles *c, uint64_t epoch)
{
	unsigned i;
	bool some;

	pthread_mutex_lock(&c->lock);
	for (i = 0; i < c->nr; i++) {
		read_locked(&c->console[i], 0, &some);
		ft_output_cut(c->console[i].output, epoch);
	}
	pthread_mutex_unlock(&c->lock);
}

void consoles_release(struct consoles *c, uint64_t epoch)
{
	unsigned i;

	for (i = 0; i < c->nr; i++)
		ft_output_release(c->console[i].output, epoch);
	wake(c); /* there may be room again */
}

void consoles_drop(struct consoles *c)
{
	unsigned i;

	pthread_mutex_lock(&c->lock);
	for (i = 0; i < c->nr; i++)
		ft_output_drop(c->console[i].output);
	pthread_mutex_unlock(&c->lock);
}

uint64_t consoles_held(struct consoles *c)
{
	uint64_t n = 0;
	unsigned i;

	for (i = 0; i < c->nr; i++)
		n += ft_output_held(c->console[i].output);
	return n;
}

/* ---- open, close -------------------------------------------------------------------------------- */

static int open_one(struct consoles *c, const struct cmdline_route *spec, struct ft_error *err)
{
	struct console *con = &c->console[c->nr];
	char said[128], text[256];
	int rc;

	*con = (struct console){ .all = c, .qemu = -1 };
	c->nr++;
	con->qemu = unix_connect(spec->socket, util_deadline_ms(1000), err);
	if (con->qemu < 0)
		return con->qemu;
	rc = sink_open(&con->sink, spec->destination, c->config.keep, said, sizeof(said), err);
	if (rc) {
		fail_in(err, "console %s", spec->id);
		return rc;
	}
	if (said[0] && c->config.say) {
		snprintf(text, sizeof(text), "character device %s is %s", spec->id, said);
		c->config.say(c->config.user, text);
	}
	rc = ft_output_open(&con->output, c->config.hold_bytes + RESERVE, emit, con);
	return rc ? fail_sys(err, rc, "console %s", spec->id) : 0;
}

static int start_thread(struct consoles *c, struct ft_error *err)
{
	sigset_t all, old;
	int rc;

	/* signals are for the main thread */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(&c->thread, NULL, run, c);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return fail_sys(err, rc, "thread for the consoles");
	c->has_thread = true;
	pthread_setname_np(c->thread, "ft-console");
	return 0;
}

int consoles_open(struct consoles **out, const struct consoles_config *config, struct ft_error *err)
{
	struct consoles *c;
	unsigned i;
	int rc = 0;

	*out = NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return fail(err, -ENOMEM, "no memory");
	c->config = *config;
	pthread_mutex_init(&c->lock, NULL);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake < 0)
		rc = fail_sys(err, -errno, "eventfd");
	for (i = 0; !rc && i < config->nr; i++)
		rc = open_one(c, &config->console[i], err);
	if (!rc)
		rc = start_thread(c, err);
	if (rc) {
		consoles_close(c, 0);
		return rc;
	}
	*out = c;
	return 0;
}

/* Is there something that may leave, or that QEMU has sent and we have not seen? */
static bool busy(struct consoles *c)
{
	unsigned i;
	char octet;

	for (i = 0; i < c->nr; i++) {
		struct console *con = &c->console[i];
		bool unread;

		pthread_mutex_lock(&c->lock);
		unread = !con->ended && recv(con->qemu, &octet, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
		pthread_mutex_unlock(&c->lock);
		if (unread || ft_output_pending(con->output))
			return true;
	}
	return false;
}

void consoles_abandon(struct consoles *c)
{
	unsigned i;

	for (i = 0; i < c->nr; i++)
		sink_restore(c->console[i].sink);
}

void consoles_close(struct consoles *c, unsigned grace_ms)
{
	uint64_t deadline = util_deadline_ms(grace_ms);
	unsigned i;

	if (!c)
		return;
	while (c->has_thread && util_now_ns() < deadline && busy(c))
		util_sleep_ms(5);
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_mutex_unlock(&c->lock);
	if (c->has_thread) {
		wake(c);
		pthread_join(c->thread, NULL);
	}
	for (i = 0; i < c->nr; i++) {
		ft_output_close(c->console[i].output);
		sink_close(c->console[i].sink);
		fd_close(&c->console[i].qemu);
	}
	fd_close(&c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
