/* SPDX-License-Identifier: MIT */
/* nbd_server.c - see nbd_server.h.  The protocol is that of the NBD project's doc/proto.md; names are as there.
 * Nothing that the client says is used before it was checked, and the largest thing it can make us hold is one payload. */
#include "nbd_server.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x4e42444d41474943)        /* "NBDMAGIC" */
#define OPTION_MAGIC UINT64_C(0x49484156454f5054) /* "IHAVEOPT" */
#define OPTION_REPLY_MAGIC UINT64_C(0x0003e889045565a9)
#define REQUEST_MAGIC UINT32_C(0x25609513)
#define REPLY_MAGIC UINT32_C(0x67446698)
#define OPTION_MAX 8192u /* octets of one option; a name may have 4096 */
#define OPTIONS_MAX 64u  /* that a client may try */
#define NAME_MAX_OCTETS 4096u

enum { FLAG_FIXED_NEWSTYLE = 1, FLAG_NO_ZEROES = 2 };
enum { OPT_EXPORT_NAME = 1, OPT_ABORT = 2, OPT_LIST = 3, OPT_INFO = 6, OPT_GO = 7 };
enum { REP_ACK = 1, REP_SERVER = 2, REP_INFO = 3 };
#define REP_ERR_UNSUP UINT32_C(0x80000001)
#define REP_ERR_INVALID UINT32_C(0x80000003)
#define REP_ERR_UNKNOWN UINT32_C(0x80000006)
enum { INFO_EXPORT = 0, INFO_BLOCK_SIZE = 3 };
enum { T_HAS_FLAGS = 1, T_SEND_FLUSH = 4, T_SEND_FUA = 8, T_SEND_TRIM = 32, T_SEND_WRITE_ZEROES = 64 };
enum { CMD_READ = 0, CMD_WRITE = 1, CMD_DISC = 2, CMD_FLUSH = 3, CMD_TRIM = 4, CMD_WRITE_ZEROES = 6 };
enum { CMD_FLAG_FUA = 1, CMD_FLAG_NO_HOLE = 2 };

#define TRANSMISSION (T_HAS_FLAGS | T_SEND_FLUSH | T_SEND_FUA | T_SEND_TRIM | T_SEND_WRITE_ZEROES)

struct client {
	int in, out;
	const struct nbd_export *export;
	struct ft_error *why;
	uint8_t *payload; /* NBD_PAYLOAD_MAX, made when the first write comes */
};

/* ---- octets ------------------------------------------------------------------------------------- */

static int take(struct client *c, void *buf, size_t len)
{
	uint8_t *to = buf;
	ssize_t n;

	while (len) {
		n = read(c->in, to, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail_sys(c->why, -errno, "disk's mirror");
		if (n == 0)
			return fail(c->why, -EPIPE, "QEMU has closed the connection of the disk's mirror");
		to += n;
		len -= (size_t)n;
	}
	return 0;
}

static int give(struct client *c, const void *buf, size_t len)
{
	const uint8_t *from = buf;
	ssize_t n;

	while (len) {
		n = send(c->out, from, len, MSG_NOSIGNAL);
		if (n < 0 && errno == ENOTSOCK)
			n = write(c->out, from, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail_sys(c->why, n < 0 ? -errno : -EPIPE, "disk's mirror");
		from += n;
		len -= (size_t)n;
	}
	return 0;
}

static int broken(struct client *c, const char *what)
{
	return fail(c->why, -EPROTO, "disk's mirror: %s", what);
}

/* ---- handshake ---------------------------------------------------------------------------------- */

struct greeting {
	uint64_t magic, option_magic;
	uint16_t flags;
} __attribute__((packed));

struct option {
	uint64_t magic;
	uint32_t option, len;
} __attribute__((packed));

struct option_reply {
	uint64_t magic;
	uint32_t option, type, len;
} __attribute__((packed));

static int reply_option(struct client *c, uint32_t option, uint32_t type, const void *buf, uint32_t len)
{
	struct option_reply r = { htobe64(OPTION_REPLY_MAGIC), htobe32(option), htobe32(type), htobe32(len) };
	int rc = give(c, &r, sizeof(r));

	return rc || !len ? rc : give(c, buf, len);
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return be32toh(v);
}

static bool is_ours(const struct client *c, const uint8_t *name, uint32_t len)
{
	return len == strlen(c->export->name) && !memcmp(name, c->export->name, len);
}

static int reply_infos(struct client *c, uint32_t option)
{
	struct {
		uint16_t type;
		uint64_t size;
		uint16_t flags;
	} __attribute__((packed)) of_export = { htobe16(INFO_EXPORT), htobe64(c->export->size), htobe16(TRANSMISSION) };
	/* smallest 1: else QEMU rounds a write up to 512 octets, with what it reads from us */
	struct {
		uint16_t type;
		uint32_t smallest, preferred, largest;
	} __attribute__((packed))
	sizes = { htobe16(INFO_BLOCK_SIZE), htobe32(1), htobe32(4096), htobe32(NBD_PAYLOAD_MAX) };
	int rc = reply_option(c, option, REP_INFO, &of_export, sizeof(of_export));

	if (!rc)
		rc = reply_option(c, option, REP_INFO, &sizes, sizeof(sizes));
	return rc ? rc : reply_option(c, option, REP_ACK, NULL, 0);
}

/* INFO and GO: u32 length of the name, the name, u16 number of requests, the requests. */
static int on_info(struct client *c, uint32_t option, const uint8_t *data, uint32_t len, bool *go)
{
	uint32_t name;
	uint16_t requests;

	if (len < 6)
		return reply_option(c, option, REP_ERR_INVALID, NULL, 0);
	name = get32(data);
	if (name > NAME_MAX_OCTETS || name > len - 6)
		return reply_option(c, option, REP_ERR_INVALID, NULL, 0);
	memcpy(&requests, data + 4 + name, sizeof(requests));
	if (len - 6 - name != 2 * (uint32_t)be16toh(requests))
		return reply_option(c, option, REP_ERR_INVALID, NULL, 0);
	if (!is_ours(c, data + 4, name))
		return reply_option(c, option, REP_ERR_UNKNOWN, NULL, 0);
	*go = option == OPT_GO;
	return reply_infos(c, option);
}

static int on_export_name(struct client *c, uint32_t flags, const uint8_t *name, uint32_t len)
{
	struct {
		uint64_t size;
		uint16_t flags;
		uint8_t zeros[124];
	} __attribute__((packed)) r = { htobe64(c->export->size), htobe16(TRANSMISSION), { 0 } };

	if (!is_ours(c, name, len))
		return broken(c, "another export was asked for");
	return give(c, &r, flags & FLAG_NO_ZEROES ? sizeof(r) - sizeof(r.zeros) : sizeof(r));
}

static int on_list(struct client *c, uint32_t len)
{
	uint32_t name = (uint32_t)strlen(c->export->name);
	uint8_t buf[4 + 256];
	int rc;

	if (len)
		return reply_option(c, OPT_LIST, REP_ERR_INVALID, NULL, 0);
	memcpy(buf, &(uint32_t){ htobe32(name) }, 4);
	memcpy(buf + 4, c->export->name, name);
	rc = reply_option(c, OPT_LIST, REP_SERVER, buf, 4 + name);
	return rc ? rc : reply_option(c, OPT_LIST, REP_ACK, NULL, 0);
}

/* 1: the client wants to leave. */
static int handshake(struct client *c)
{
	struct greeting hello = { htobe64(MAGIC), htobe64(OPTION_MAGIC),
				  htobe16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) };
	uint8_t data[OPTION_MAX];
	struct option o;
	uint32_t flags;
	bool go = false;
	int rc = give(c, &hello, sizeof(hello));

	if (!rc)
		rc = take(c, &flags, sizeof(flags));
	flags = rc ? 0 : be32toh(flags);
	if (!rc && (!(flags & FLAG_FIXED_NEWSTYLE) || flags & ~(uint32_t)(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)))
		return broken(c, "the client does not speak fixed newstyle");
	for (unsigned n = 0; !rc && !go; n++) {
		rc = n < OPTIONS_MAX ? take(c, &o, sizeof(o)) : broken(c, "too many options");
		if (rc)
			break;
		o.option = be32toh(o.option);
		o.len = be32toh(o.len);
		if (be64toh(o.magic) != OPTION_MAGIC || o.len > OPTION_MAX)
			return broken(c, "not an option");
		rc = take(c, data, o.len);
		if (rc)
			break;
		switch (o.option) {
		case OPT_EXPORT_NAME:
			return on_export_name(c, flags, data, o.len);
		case OPT_ABORT:
			rc = reply_option(c, o.option, REP_ACK, NULL, 0);
			return rc ? rc : 1;
		case OPT_LIST:
			rc = on_list(c, o.len);
			break;
		case OPT_INFO:
		case OPT_GO:
			rc = on_info(c, o.option, data, o.len, &go);
			break;
		default:
			rc = reply_option(c, o.option, REP_ERR_UNSUP, NULL, 0);
		}
	}
	return rc;
}

/* ---- transmission ------------------------------------------------------------------------------- */

struct request {
	uint32_t magic;
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t len;
} __attribute__((packed));

static int take_payload(struct client *c, uint32_t len)
{
	if (!c->payload)
		c->payload = malloc(NBD_PAYLOAD_MAX);
	return c->payload ? take(c, c->payload, len) : fail(c->why, -ENOMEM, "no memory for the disk's mirror");
}

/* *@error: what the client is told. */
static int serve_request(struct client *c, const struct request *r, uint32_t *error)
{
	const struct nbd_export *e = c->export;
	bool inside = r->len && r->offset <= e->size && r->len <= e->size - r->offset;
	int rc;

	switch (r->type) {
	case CMD_WRITE:
		if (!inside || r->len > NBD_PAYLOAD_MAX || r->flags & ~CMD_FLAG_FUA)
			return broken(c, "a write that cannot be");
		rc = take_payload(c, r->len);
		if (rc)
			return rc;
		*error = e->write(e->user, r->offset, c->payload, r->len) ? EIO : 0;
		return 0;
	case CMD_TRIM:
	case CMD_WRITE_ZEROES:
		if (!inside || r->flags & ~(CMD_FLAG_FUA | CMD_FLAG_NO_HOLE))
			return broken(c, "zeros that cannot be");
		*error = e->zero(e->user, r->offset, r->len) ? EIO : 0;
		return 0;
	case CMD_FLUSH:
		if (r->len || r->offset || r->flags)
			return broken(c, "a flush that cannot be");
		*error = 0;
		return 0;
	case CMD_READ:
		return broken(c, "it reads, and there is nothing to read");
	default:
		return broken(c, "an unknown request");
	}
}

static int transmit(struct client *c)
{
	struct {
		uint32_t magic, error;
		uint64_t cookie;
	} __attribute__((packed)) reply = { .magic = htobe32(REPLY_MAGIC) };
	struct request r;
	uint32_t error = 0;
	int rc;

	for (;;) {
		rc = take(c, &r, sizeof(r));
		if (rc)
			return rc;
		if (be32toh(r.magic) != REQUEST_MAGIC)
			return broken(c, "not a request");
		r.flags = be16toh(r.flags);
		r.type = be16toh(r.type);
		r.offset = be64toh(r.offset);
		r.len = be32toh(r.len);
		if (r.type == CMD_DISC)
			return 0;
		rc = serve_request(c, &r, &error);
		if (rc)
			return rc;
		reply.error = htobe32(error);
		reply.cookie = r.cookie;
		rc = give(c, &reply, sizeof(reply));
		if (rc)
			return rc;
	}
}

int nbd_serve(int in, int out, const struct nbd_export *export, struct ft_error *why)
{
	struct client c = { .in = in, .out = out, .export = export, .why = why };
	int rc = handshake(&c);

	if (!rc)
		rc = transmit(&c);
	free(c.payload);
	return rc < 0 ? rc : 0;
}

/* ---- the thread --------------------------------------------------------------------------------- */

struct nbd_server {
	struct nbd_export export;
	char name[128], path[108];
	int listener;
	pthread_mutex_t lock; /* guards fd */
	int fd;
	atomic_bool ending;
	pthread_t thread;
};

static void *run(void *user)
{
	struct nbd_server *s = user;
	struct ft_error why = { 0 };
	struct pollfd p = { .fd = s->listener, .events = POLLIN };
	int fd = -1;

	while (fd < 0 && !atomic_load(&s->ending) && (poll(&p, 1, -1) >= 0 || errno == EINTR))
		fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0) {
		pthread_mutex_lock(&s->lock);
		s->fd = fd;
		if (atomic_load(&s->ending))
			shutdown(fd, SHUT_RDWR);
		pthread_mutex_unlock(&s->lock);
		shutdown(
			s->listener,
			SHUT_RDWR); /* nobody else, and not the same one again: what it wrote in between would be missing */
		if (!nbd_serve(fd, fd, &s->export, &why))
			snprintf(why.msg, sizeof(why.msg), "QEMU has ended the disk's mirror");
	} else {
		fail_sys(&why, -errno, "%s", s->path);
	}
	if (!atomic_load(&s->ending))
		s->export.gone(s->export.user, why.msg);
	pthread_mutex_lock(&s->lock);
	fd_close(&s->fd);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

int nbd_server_open(struct nbd_server **out, const char *path, const struct nbd_export *export, struct ft_error *err)
{
	struct nbd_server *s = calloc(1, sizeof(*s));
	sigset_t all, old;
	int rc;

	*out = NULL;
	if (!s)
		return fail(err, -ENOMEM, "no memory");
	s->fd = -1;
	s->export = *export;
	if (snprintf(s->path, sizeof(s->path), "%s", path) >= (int)sizeof(s->path) ||
	    snprintf(s->name, sizeof(s->name), "%s", export->name) >= (int)sizeof(s->name)) {
		free(s);
		return fail(err, -ENAMETOOLONG, "%s: too long for a socket", path);
	}
	s->export.name = s->name;
	s->listener = unix_listen(path, err);
	if (s->listener < 0) {
		rc = s->listener;
		free(s);
		return rc;
	}
	pthread_mutex_init(&s->lock, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&s->thread, NULL, run, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		fd_close(&s->listener);
		unlink(path);
		pthread_mutex_destroy(&s->lock);
		free(s);
		return fail_sys(err, -rc, "thread of a disk's mirror");
	}
	pthread_setname_np(s->thread, "ft-mirror");
	*out = s;
	return 0;
}

void nbd_server_close(struct nbd_server *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	atomic_store(&s->ending, true);
	shutdown(s->listener, SHUT_RDWR);
	if (s->fd >= 0)
		shutdown(s->fd, SHUT_RDWR);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	fd_close(&s->listener);
	unlink(s->path);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
