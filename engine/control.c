/* SPDX-License-Identifier: MIT */
/* control.c - the control socket: JSON lines on a Unix socket, ft-control(7).  What a line means is command.c's business.
 *
 * One thread serves the listening socket and at most 16 clients by poll(); nothing it does blocks, but for commands of the
 * VMM's own, as ft.h says.  A command that may take long (wait, checkpoint, pause, resume, failover, stop) gets a thread
 * for itself, so that `status` of another client does not wait for it; a client has at most one command under way, and
 * its next line stays in the kernel until then.
 *
 * What must hold:
 *  - A client that sends nothing, sends half a line, or does not read costs others nothing: reading is cut at 64 KiB, a
 *    client is not read while its reply is not taken, and when all places are taken the longest idle one goes.
 *  - A command uses the session of a binding that it counted itself into; ft_control_set_session() puts in a new binding
 *    and waits until the old one's count is 0.
 * Locks: c->lock guards what is marked; c->rebind is taken before it, by ft_control_set_session() only. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faultpoint.h"
#include "base/log.h"
#include "base/thread.h"

#define IDLE_NS (5 * NS_PER_S)    /* after that a client may lose its place to a new one */
#define UNREAD_NS (30 * NS_PER_S) /* a reply that is not taken for so long ends the client */
#define ACCEPT_AGAIN_NS NS_PER_S  /* after a failed accept (no descriptors left, say) */

/* A session and the commands that use it. */
struct binding {
	struct ft_session *session;
	unsigned users;
};

struct client {
	int fd; /* -1: place free, or gone while its command is still under way */
	struct ft_control *control;
	pid_t pid;
	char *in; /* CONTROL_LINE_MAX */
	size_t in_len;
	char *out; /* reply not yet taken; NULL: none */
	size_t out_len, out_at;
	bool last; /* close when the reply is out */
	bool eof;  /* sends no more; what it sent is still answered */
	uint64_t active_ns;

	/* a long command; the worker owns request and answer until is_done */
	bool is_busy;
	pthread_t worker;
	struct control_request request;
	struct binding *binding;
	char *answer;
	size_t answer_len;
	bool is_done; /* guarded by control->lock */
};

struct ft_control {
	/* set before the thread starts, then constant */
	const struct control_ops *ops;
	ft_control_command *extra;
	void *user;
	int listen_fd, wake_fd;
	struct sockaddr_un address;
	dev_t dev; /* of the socket file as we made it */
	ino_t ino;
	pthread_t thread;
	bool has_thread;

	/* control thread only */
	struct client client[CONTROL_CLIENTS_MAX];
	uint64_t accept_at_ns;

	pthread_mutex_t rebind; /* one ft_control_set_session() at a time */
	pthread_mutex_t lock;
	/* guarded by lock */
	pthread_cond_t unused; /* a binding's users have become 0 */
	struct binding binding[2];
	struct binding *current;
	bool is_closing;
};

/* ---- sessions ----------------------------------------------------------------------------------- */

static struct binding *binding_get(struct ft_control *c)
{
	struct binding *b;

	pthread_mutex_lock(&c->lock);
	b = c->current;
	b->users++;
	pthread_mutex_unlock(&c->lock);
	return b;
}

static void binding_put(struct ft_control *c, struct binding *b)
{
	pthread_mutex_lock(&c->lock);
	if (--b->users == 0)
		pthread_cond_broadcast(&c->unused);
	pthread_mutex_unlock(&c->lock);
}

void ft_control_set_session(struct ft_control *c, struct ft_session *s)
{
	struct binding *old;

	pthread_mutex_lock(&c->rebind);
	pthread_mutex_lock(&c->lock);
	old = c->current;
	c->current = old == &c->binding[0] ? &c->binding[1] : &c->binding[0];
	c->current->session = s;
	while (old->users)
		pthread_cond_wait(&c->unused, &c->lock);
	old->session = NULL;
	pthread_mutex_unlock(&c->lock);
	pthread_mutex_unlock(&c->rebind);
}

/* For `wait`, on a worker: should it give up? */
static bool is_revoked(void *user)
{
	struct client *cl = user;
	struct ft_control *c = cl->control;
	bool r;

	pthread_mutex_lock(&c->lock);
	r = c->is_closing || c->current != cl->binding;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static void wake(struct ft_control *c)
{
	uint64_t one = 1;
	ssize_t r = write(c->wake_fd, &one, sizeof(one));

	(void)r; /* fails only if the counter is full: then it is awake */
}

/* ---- commands ----------------------------------------------------------------------------------- */

static char *answer(struct client *cl, const struct control_request *rq, struct binding *b, size_t *len)
{
	struct ft_control *c = cl->control;
	struct control_env env = { .ops = c->ops,
				   .session = b ? b->session : NULL,
				   .extra = c->extra,
				   .extra_user = c->user,
				   .is_revoked = is_revoked,
				   .user = cl };

	return control_answer(rq, &env, len);
}

static void *worker_main(void *arg)
{
	struct client *cl = arg;
	struct ft_control *c = cl->control;

	cl->answer = answer(cl, &cl->request, cl->binding, &cl->answer_len);
	binding_put(c, cl->binding);
	pthread_mutex_lock(&c->lock);
	cl->is_done = true;
	pthread_mutex_unlock(&c->lock);
	wake(c);
	return NULL;
}

static void client_reply(struct client *cl, char *text, size_t len)
{
	cl->out = text;
	cl->out_len = len;
	cl->out_at = 0;
	cl->active_ns = now_ns();
	if (!text)
		cl->last = true; /* no memory for a reply: ending the line is the only word left */
}

static int start_long(struct client *cl)
{
	int r;

	cl->binding = binding_get(cl->control);
	cl->is_done = false;
	r = thread_start(&cl->worker, "ft-command", worker_main, cl);
	if (r)
		binding_put(cl->control, cl->binding);
	else
		cl->is_busy = true;
	return r;
}

/* A whole line, or a refusal, is in @rq. */
static void client_run(struct client *cl, struct control_request *rq)
{
	struct binding *b = NULL;
	char *text;
	size_t len;

	if (control_changes(rq))
		log_info("control", "process %d asks for %s", (int)cl->pid, control_changes(rq));
	if (control_is_long(rq)) {
		cl->request = *rq;
		if (start_long(cl) == 0)
			return;
		rq->command = NULL;
		control_refuse(rq, "failed", "no thread could be made for it");
	}
	/* the VMM's own commands hold no session: they may call ft_control_set_session() */
	if (control_uses_session(rq))
		b = binding_get(cl->control);
	text = answer(cl, rq, b, &len);
	if (b)
		binding_put(cl->control, b);
	control_request_free(rq);
	client_reply(cl, text, len);
}

static void refuse_client(struct client *cl, const char *code, const char *sentence)
{
	struct control_request rq = { 0 };

	control_refuse(&rq, code, sentence);
	cl->last = true;
	client_run(cl, &rq);
}

/* ---- clients ------------------------------------------------------------------------------------ */

/* Closes what is the thread's; a command under way keeps the place until client_reap(). */
static void client_drop(struct client *cl)
{
	if (cl->fd >= 0)
		close(cl->fd);
	cl->fd = -1;
	free(cl->in);
	free(cl->out);
	cl->in = cl->out = NULL;
	cl->in_len = 0;
	cl->last = false;
}

static bool is_free(const struct client *cl)
{
	return cl->fd < 0 && !cl->is_busy;
}

/* Takes over what a finished worker left. */
static void client_reap(struct client *cl)
{
	pthread_join(cl->worker, NULL);
	control_request_free(&cl->request);
	cl->is_busy = false;
	if (cl->fd >= 0)
		client_reply(cl, cl->answer, cl->answer_len);
	else
		free(cl->answer);
	cl->answer = NULL;
}

static void reap_done(struct ft_control *c)
{
	bool done;

	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct client *cl = &c->client[i];

		pthread_mutex_lock(&c->lock);
		done = cl->is_busy && cl->is_done;
		pthread_mutex_unlock(&c->lock);
		if (done)
			client_reap(cl);
	}
}

/* Length of the first whole line that has come, -1 if there is none.  At the end of all, the rest is a line too. */
static ssize_t whole_line(const struct client *cl)
{
	const char *end = memchr(cl->in, '\n', cl->in_len);

	if (end)
		return end - cl->in;
	return cl->eof && cl->in_len ? (ssize_t)cl->in_len : -1;
}

/* Is a line there, and nothing in its way? */
static bool has_work(const struct client *cl)
{
	if (cl->fd < 0 || cl->is_busy || cl->out || cl->last)
		return false;
	return cl->eof || cl->in_len == CONTROL_LINE_MAX || whole_line(cl) >= 0;
}

/* One line of one client; a client that sent many gets its next turn after the others. */
static void client_next_line(struct client *cl)
{
	struct control_request rq;
	ssize_t len;
	size_t used;

	if (!has_work(cl))
		return;
	len = whole_line(cl);
	if (len < 0 && cl->eof) {
		client_drop(cl);
		return;
	}
	if (len < 0) {
		refuse_client(cl, "too-long", "a request has at most 65536 octets");
		return;
	}
	if (len > 0) {
		control_parse(&rq, cl->in, (size_t)len);
		client_run(cl, &rq);
	}
	used = (size_t)len < cl->in_len ? (size_t)len + 1 : cl->in_len;
	cl->in_len -= used;
	memmove(cl->in, cl->in + used, cl->in_len);
}

static void client_read(struct client *cl)
{
	ssize_t n = FT_FAULT("control/receive") ? faultpoint_errno(ECONNRESET)
						: recv(cl->fd, cl->in + cl->in_len, CONTROL_LINE_MAX - cl->in_len, 0);

	if (n > 0) {
		cl->in_len += (size_t)n;
		cl->active_ns = now_ns();
	} else if (n == 0) {
		cl->eof = true;
	} else if (errno != EAGAIN && errno != EINTR) {
		client_drop(cl);
	}
}

static void client_write(struct client *cl)
{
	ssize_t n;

	if (cl->fd < 0 || (!cl->out && !cl->last))
		return;
	n = FT_FAULT("control/send") ? faultpoint_errno(EPIPE)
	    : cl->out                ? send(cl->fd, cl->out + cl->out_at, cl->out_len - cl->out_at, MSG_NOSIGNAL)
				     : 0;
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (now_ns() - cl->active_ns > UNREAD_NS)
			client_drop(cl);
		return;
	}
	if (n < 0) {
		client_drop(cl);
		return;
	}
	cl->out_at += (size_t)n;
	cl->active_ns = now_ns();
	if (cl->out && cl->out_at < cl->out_len)
		return;
	free(cl->out);
	cl->out = NULL;
	if (cl->last)
		client_drop(cl);
}

/* @events: of poll(). */
static void client_serve(struct client *cl, short events)
{
	if (cl->fd < 0)
		return;
	if (events & POLLIN)
		client_read(cl);
	else if (events & (POLLHUP | POLLERR))
		client_drop(cl);
}

/* ---- accepting ---------------------------------------------------------------------------------- */

/* A free place, or that of the client which has been idle for longest. */
static struct client *find_place(struct ft_control *c)
{
	uint64_t now = now_ns();
	struct client *idle = NULL;

	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct client *cl = &c->client[i];

		if (is_free(cl))
			return cl;
		if (!cl->is_busy && now - cl->active_ns >= IDLE_NS && (!idle || cl->active_ns < idle->active_ns))
			idle = cl;
	}
	if (idle)
		client_drop(idle);
	return idle;
}

/* One line to a client that gets no place; it fits into any fresh socket buffer. */
static void turn_away(int fd, const char *code, const char *sentence)
{
	struct control_request rq = { 0 };
	struct control_env env = { 0 };
	char *text;
	size_t len;

	control_refuse(&rq, code, sentence);
	text = control_answer(&rq, &env, &len);
	if (text && send(fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("control", "a client that was turned away did not wait for the reason");
	free(text);
	close(fd);
}

static bool is_allowed(const struct ucred *who)
{
	return who->uid == 0 || who->uid == geteuid();
}

static void accept_client(struct ft_control *c)
{
	struct ucred who = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(who);
	struct client *cl;
	int fd = FT_FAULT("control/accept") ? faultpoint_errno(EMFILE)
					    : accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			c->accept_at_ns = now_ns() + ACCEPT_AGAIN_NS;
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 || !is_allowed(&who)) {
		turn_away(fd, "refused", "only root and the user of this process may control it");
		return;
	}
	cl = find_place(c);
	if (!cl) {
		turn_away(fd, "busy", "too many clients");
		return;
	}
	*cl = (struct client){ .fd = fd, .control = c, .pid = who.pid, .active_ns = now_ns() };
	cl->in = FT_FAULT("control/client") ? NULL : malloc(CONTROL_LINE_MAX);
	if (!cl->in)
		client_drop(cl);
}

/* ---- the thread --------------------------------------------------------------------------------- */

enum { POLL_WAKE, POLL_LISTEN, POLL_CLIENTS };

/* Fills @p; returns how long poll() may sleep. */
static int prepare(struct ft_control *c, struct pollfd *p)
{
	int timeout = -1;

	p[POLL_WAKE] = (struct pollfd){ .fd = c->wake_fd, .events = POLLIN };
	p[POLL_LISTEN] = (struct pollfd){ .fd = c->listen_fd, .events = POLLIN };
	if (now_ns() < c->accept_at_ns) {
		p[POLL_LISTEN].fd = -1;
		timeout = 1000;
	}
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct client *cl = &c->client[i];

		p[POLL_CLIENTS + i] = (struct pollfd){ .fd = cl->fd };
		if (cl->fd < 0 || cl->is_busy)
			continue;
		if (has_work(cl))
			timeout = 0;
		else if (cl->out)
			p[POLL_CLIENTS + i].events = POLLOUT;
		else
			p[POLL_CLIENTS + i].events = POLLIN;
		if (cl->out && timeout)
			timeout = 1000; /* to notice that it is not taken */
	}
	return timeout;
}

static bool is_closing(struct ft_control *c)
{
	bool r;

	pthread_mutex_lock(&c->lock);
	r = c->is_closing;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static void drain_wake(struct ft_control *c)
{
	uint64_t n;
	ssize_t r = read(c->wake_fd, &n, sizeof(n));

	(void)r;
}

static void drop_all(struct ft_control *c)
{
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct client *cl = &c->client[i];

		if (cl->is_busy)
			client_reap(cl);
		client_write(cl); /* the reply to `stop`, perhaps */
		client_drop(cl);
	}
}

static void *control_main(void *arg)
{
	struct ft_control *c = arg;
	struct pollfd p[POLL_CLIENTS + CONTROL_CLIENTS_MAX];

	while (!is_closing(c)) {
		if (poll(p, POLL_CLIENTS + CONTROL_CLIENTS_MAX, prepare(c, p)) < 0)
			continue; /* EINTR; signals are blocked, so hardly ever */
		if (p[POLL_WAKE].revents)
			drain_wake(c);
		for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++)
			client_serve(&c->client[i], p[POLL_CLIENTS + i].revents);
		reap_done(c);
		for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
			client_next_line(&c->client[i]);
			client_write(&c->client[i]);
		}
		if (p[POLL_LISTEN].revents)
			accept_client(c);
	}
	drop_all(c);
	return NULL;
}

/* ---- the socket file ---------------------------------------------------------------------------- */

/* Two processes that both find a dead socket must not remove each other's new one: whoever looks holds a lock on the
 * directory, which leaves no file behind.  Others hold it for as short as we do; a stranger may not hold us up. */
static int lock_directory(const char *path, struct ft_error *err)
{
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
	const char *slash = strrchr(path, '/');
	uint64_t deadline = deadline_in_ms(5000);
	int fd;

	if (slash)
		snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
	else
		snprintf(dir, sizeof(dir), ".");
	fd = FT_FAULT("control/directory") ? faultpoint_errno(EMFILE) : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(err, -errno, "%s", dir);
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || now_ns() > deadline) {
			err_sys(err, -errno, "%s: lock", dir);
			close(fd);
			return err ? err->code : -EBUSY;
		}
		poll(NULL, 0, 10);
	}
	return fd;
}

static int new_socket(struct ft_error *err)
{
	int fd = FT_FAULT("control/socket") ? faultpoint_errno(EMFILE)
					    : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? err_sys(err, -errno, "control socket") : fd;
}

/* Removes a socket that nobody listens on; anything else that is there is refused. */
static int remove_dead(const struct sockaddr_un *address, struct ft_error *err)
{
	const char *path = address->sun_path;
	struct stat st;
	int fd, r;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : err_sys(err, -errno, "control socket %s", path);
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, -EEXIST, "control socket %s: something else than a socket is there", path);
	fd = new_socket(err);
	if (fd < 0)
		return fd;
	r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
	close(fd);
	if (r != -ECONNREFUSED)
		return err_set(err, -EADDRINUSE, "control socket %s: another process serves it", path);
	if (unlink(path) < 0)
		return err_sys(err, -errno, "control socket %s: remove the dead one", path);
	return 0;
}

/* The mode is set before listen(): up to then nobody can connect, whatever the umask. */
static int bind_and_listen(struct ft_control *c, struct ft_error *err)
{
	const char *path = c->address.sun_path;
	struct stat st;

	if (FT_FAULT("control/bind") ? faultpoint_errno(EROFS)
				     : bind(c->listen_fd, (const struct sockaddr *)&c->address, sizeof(c->address)) < 0)
		return err_sys(err, -errno, "control socket %s: bind", path);
	if (lstat(path, &st) == 0) {
		c->dev = st.st_dev;
		c->ino = st.st_ino;
	}
	if (chmod(path, 0600) < 0 || (FT_FAULT("control/listen") && faultpoint_errno(ENOBUFS)) ||
	    listen(c->listen_fd, (int)CONTROL_CLIENTS_MAX) < 0)
		return err_sys(err, -errno, "control socket %s: listen", path);
	return 0;
}

static int open_socket(struct ft_control *c, const char *path, struct ft_error *err)
{
	int lock_fd, r;

	c->address.sun_family = AF_UNIX;
	if (!*path || strlen(path) >= sizeof(c->address.sun_path))
		return err_set(err, -ENAMETOOLONG, "control socket %.128s: a path of 1 to %zu octets is needed", path,
			       sizeof(c->address.sun_path) - 1);
	memcpy(c->address.sun_path, path, strlen(path) + 1);
	lock_fd = lock_directory(path, err);
	if (lock_fd < 0)
		return lock_fd;
	r = remove_dead(&c->address, err);
	if (!r) {
		c->listen_fd = new_socket(err);
		r = c->listen_fd < 0 ? c->listen_fd : bind_and_listen(c, err);
	}
	close(lock_fd);
	return r;
}

/* Removes the file if it is still ours. */
static void remove_socket(struct ft_control *c)
{
	struct stat st;

	if (c->ino && lstat(c->address.sun_path, &st) == 0 && st.st_dev == c->dev && st.st_ino == c->ino)
		unlink(c->address.sun_path);
}

/* ---- open and close ----------------------------------------------------------------------------- */

int control_open(struct ft_control **out, const char *path, const struct control_ops *ops, ft_control_command *extra,
		 void *user, struct ft_error *err)
{
	struct ft_control *c = FT_FAULT("control/open") ? NULL : calloc(1, sizeof(*c));
	int r;

	*out = NULL;
	if (!c)
		return err_set(err, -ENOMEM, "control socket: out of memory");
	c->ops = ops;
	c->extra = extra;
	c->user = user;
	c->current = &c->binding[0];
	c->listen_fd = -1;
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++)
		c->client[i].fd = -1;
	pthread_mutex_init(&c->rebind, NULL);
	pthread_mutex_init(&c->lock, NULL);
	cond_init(&c->unused);
	c->wake_fd = FT_FAULT("control/eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = c->wake_fd < 0 ? err_sys(err, -errno, "control socket: eventfd") : open_socket(c, path, err);
	if (!r) {
		r = thread_start(&c->thread, "ft-control", control_main, c);
		if (r)
			err_sys(err, r, "control socket: thread");
	}
	if (r) {
		ft_control_close(c);
		return r;
	}
	c->has_thread = true;
	*out = c;
	return 0;
}

void ft_control_close(struct ft_control *c)
{
	if (!c)
		return;
	if (c->has_thread) {
		pthread_mutex_lock(&c->lock);
		c->is_closing = true;
		pthread_mutex_unlock(&c->lock);
		wake(c);
		pthread_join(c->thread, NULL);
	}
	remove_socket(c);
	if (c->listen_fd >= 0)
		close(c->listen_fd);
	if (c->wake_fd >= 0)
		close(c->wake_fd);
	pthread_cond_destroy(&c->unused);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->rebind);
	free(c);
}
