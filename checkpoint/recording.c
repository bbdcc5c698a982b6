/* SPDX-License-Identifier: MIT */
/* recording.c - see recording.h; docs/protocol.md "Recorded streams" describes the file.
 * Each entry is one writev(), so what was recorded before a crash is in the file, and what was cut off by a full disk
 * is taken away again.  One mutex per recording orders the entries and their times. */
#include "recording.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "log.h"
#include "wire.h"

#define FILE_MAGIC UINT64_C(0x66742d7374726561) /* "ft-strea" */
#define FILE_VERSION 1u
#define FILE_PAYLOAD 1u                 /* flag: pages are in the file */
#define ENTRY_MARK UINT32_C(0x6674656e) /* "ften" */
#define LANE_MAX 8u
#define WINDOW_MAX 15u

struct file_head {
	ft_be64 magic;
	ft_be32 version, flags;
};
static_assert(sizeof(struct file_head) == 16, "file layout");

struct entry_head {
	ft_be32 mark;
	ft_be32 crc; /* CRC-32 of all that follows in the entry but its padding */
	ft_be16 kind, direction;
	ft_be32 lane;
	ft_be64 time_ns;
	ft_be64 offset;
	ft_be32 window, write_bytes;
	ft_be32 payload_bytes, connection;
};
static_assert(sizeof(struct entry_head) == 48 && offsetof(struct entry_head, kind) == 8, "file layout");
#define CRC_FROM offsetof(struct entry_head, kind)

/* -- CRC-32 (the one of zip and Ethernet), eight octets at a time: 8 KiB of tables, made once -- */

static uint32_t crc_table[8][256];

static void crc_init(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int bit = 0; bit < 8; bit++)
			c = (c >> 1) ^ (c & 1 ? 0xedb88320u : 0);
		crc_table[0][i] = c;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int k = 1; k < 8; k++)
			crc_table[k][i] = (crc_table[k - 1][i] >> 8) ^ crc_table[0][crc_table[k - 1][i] & 0xff];
}

/* crc_add - @crc starts as ~0 and is inverted at the end. */
static uint32_t crc_add(uint32_t crc, const void *buf, size_t len)
{
	const uint8_t *p = buf;

	for (; len >= 8; p += 8, len -= 8) {
		uint64_t v;

		memcpy(&v, p, 8);
		v = le64toh(v) ^ crc;
		crc = 0;
		for (int k = 0; k < 8; k++)
			crc ^= crc_table[7 - k][(v >> (8 * k)) & 0xff];
	}
	for (; len; p++, len--)
		crc = (crc >> 8) ^ crc_table[0][(crc ^ *p) & 0xff];
	return crc;
}

static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static size_t padding_of(size_t len)
{
	return -len & 7;
}

/* -- writing -- */

struct recording {
	int fd;
	bool payload;
	char *path;
	pthread_mutex_t lock;
	uint64_t len_bytes;   /* guarded by lock: whole entries in the file */
	bool ended;           /* guarded by lock */
	uint32_t connections; /* guarded by lock: number of the last one */
};

/* write_all - 0 or a negative errno; @v is used up. */
static int write_all(int fd, struct iovec *v, unsigned n)
{
	while (n) {
		ssize_t done = FT_FAULT("recording/write") ? faultpoint_errno(ENOSPC) : writev(fd, v, (int)n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -errno;
		while (n && (size_t)done >= v->iov_len) {
			done -= (ssize_t)v->iov_len;
			v++;
			n--;
		}
		if (n) {
			v->iov_base = (uint8_t *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
	return 0;
}

int recording_create(struct recording **out, const char *path, bool payload, struct ft_error *err)
{
	struct file_head head = { .magic = to_be64(FILE_MAGIC),
				  .version = to_be32(FILE_VERSION),
				  .flags = to_be32(payload ? FILE_PAYLOAD : 0) };
	struct iovec v = { &head, sizeof(head) };
	struct recording *r = FT_FAULT("recording/create") ? NULL : calloc(1, sizeof(*r));
	int rc;

	*out = NULL;
	pthread_once(&crc_once, crc_init);
	if (!r || !(r->path = strdup(path))) {
		rc = err_set(err, -ENOMEM, "recording %s: no memory", path);
		goto fail;
	}
	/* O_NONBLOCK does nothing to a file and keeps a pipe from stopping the session */
	r->fd = FT_FAULT("recording/open")
			? faultpoint_errno(ENOSPC)
			: open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
	if (r->fd < 0) {
		rc = err_sys(err, -errno, "recording %s: cannot be opened", path);
		goto fail;
	}
	rc = write_all(r->fd, &v, 1);
	if (rc) {
		err_sys(err, rc, "recording %s: cannot be written", path);
		close(r->fd);
		goto fail;
	}
	pthread_mutex_init(&r->lock, NULL);
	r->payload = payload;
	r->len_bytes = sizeof(head);
	*out = r;
	return 0;
fail:
	if (r)
		free(r->path);
	free(r);
	return rc;
}

/* end_locked - the disk is full or the reader gone: say so once, take back the piece of an entry that got in. */
static void end_locked(struct recording *r, int rc)
{
	char text[128];
	const bool cut = ftruncate(r->fd, (off_t)r->len_bytes) != 0; /* no file: a pipe, say */

	r->ended = true;
	log_warn("recording", "%s: ended after %" PRIu64 " octets%s: %s", r->path, r->len_bytes,
		 cut ? " and perhaps a piece of an entry" : "", strerror_r(-rc, text, sizeof(text)));
}

/* append_locked - @payload gathers what goes behind the head; its length is in @h already. */
static void append_locked(struct recording *r, struct entry_head *h, const struct iovec *payload, unsigned nr)
{
	static const uint8_t zeros[8];
	const size_t len = from_be32(h->payload_bytes), padding = padding_of(len);
	struct iovec v[RECORDING_IOV_MAX + 2];
	uint32_t crc;
	int rc;

	h->mark = to_be32(ENTRY_MARK);
	v[0] = (struct iovec){ h, sizeof(*h) };
	for (unsigned i = 0; i < nr; i++)
		v[1 + i] = payload[i];
	v[1 + nr] = (struct iovec){ (void *)zeros, padding };

	if (r->ended)
		return;
	h->time_ns = to_be64(now_ns());
	crc = crc_add(~0u, &h->kind, sizeof(*h) - CRC_FROM);
	for (unsigned i = 0; i < nr; i++)
		crc = crc_add(crc, payload[i].iov_base, payload[i].iov_len);
	h->crc = to_be32(~crc);
	rc = write_all(r->fd, v, nr + 2);
	if (rc)
		end_locked(r, rc);
	else
		r->len_bytes += sizeof(*h) + len + padding;
}

static void append(struct recording *r, struct entry_head *h, const struct iovec *payload, unsigned nr)
{
	pthread_mutex_lock(&r->lock);
	append_locked(r, h, payload, nr);
	pthread_mutex_unlock(&r->lock);
}

void recording_message(struct recording *r, uint32_t connection, uint32_t direction, uint32_t lane, const void *msg,
		       size_t len)
{
	struct entry_head h = { .kind = to_be16(RECORDING_MESSAGE),
				.direction = to_be16((uint16_t)direction),
				.lane = to_be32(lane),
				.payload_bytes = to_be32((uint32_t)len),
				.connection = to_be32(connection) };
	const struct iovec v = { (void *)msg, len };

	if (!r)
		return;
	assert(len && len <= RECORDING_MESSAGE_MAX && lane <= LANE_MAX);
	append(r, &h, &v, 1);
}

void recording_write(struct recording *r, uint32_t connection, uint32_t direction, uint32_t lane, uint32_t window,
		     uint64_t offset, const struct iovec *iov, unsigned nr_iov)
{
	struct entry_head h = { .kind = to_be16(RECORDING_WRITE),
				.direction = to_be16((uint16_t)direction),
				.lane = to_be32(lane),
				.window = to_be32(window),
				.offset = to_be64(offset),
				.connection = to_be32(connection) };
	uint64_t len = 0;

	if (!r)
		return;
	for (unsigned i = 0; i < nr_iov; i++)
		len += iov[i].iov_len;
	assert(nr_iov <= RECORDING_IOV_MAX && len && len <= RECORDING_WRITE_MAX && lane <= LANE_MAX &&
	       window <= WINDOW_MAX);
	h.write_bytes = to_be32((uint32_t)len);
	if (r->payload)
		h.payload_bytes = h.write_bytes;
	append(r, &h, iov, r->payload ? nr_iov : 0);
}

/* append_mark - an open entry if @connection is 0, which then gets the next number, else the close entry of it. */
static uint32_t append_mark(struct recording *r, uint32_t connection, const char *text)
{
	const size_t len = strnlen(text, RECORDING_TEXT_MAX);
	struct entry_head h = { .kind = to_be16(connection ? RECORDING_CLOSE : RECORDING_OPEN),
				.payload_bytes = to_be32((uint32_t)len) };
	char printable[RECORDING_TEXT_MAX];
	const struct iovec v = { printable, len };

	for (size_t i = 0; i < len; i++)
		printable[i] = text[i] >= 0x20 && text[i] <= 0x7e ? text[i] : '?';
	pthread_mutex_lock(&r->lock);
	if (!connection)
		connection = ++r->connections;
	h.connection = to_be32(connection);
	append_locked(r, &h, &v, 1);
	pthread_mutex_unlock(&r->lock);
	return connection;
}

uint32_t recording_begin(struct recording *r, const char *text)
{
	return r ? append_mark(r, 0, text) : 0;
}

void recording_end(struct recording *r, uint32_t connection, const char *text)
{
	if (r)
		append_mark(r, connection, text);
}

void recording_close(struct recording *r)
{
	if (!r)
		return;
	close(r->fd);
	pthread_mutex_destroy(&r->lock);
	free(r->path);
	free(r);
}

/* -- reading -- */

struct recording_reader {
	FILE *file;
	char *path;
	bool payload;
	uint64_t offset; /* of the next entry */
	uint8_t *buf;    /* grows to the largest payload, at most RECORDING_WRITE_MAX and padding */
	size_t cap;
};

static int damaged(const struct recording_reader *r, struct ft_error *err, const char *what)
{
	return err_set(err, -EPROTO, "%s: octet %" PRIu64 ": %s", r->path, r->offset, what);
}

/* read_all - 1, 0 at the end of the file, -ENODATA in the middle of @buf. */
static int read_all(struct recording_reader *r, void *buf, size_t len, struct ft_error *err)
{
	size_t n = fread(buf, 1, len, r->file);

	if (n == len)
		return 1;
	if (ferror(r->file))
		return err_sys(err, errno ? -errno : -EIO, "%s: cannot be read", r->path);
	if (n == 0)
		return 0;
	return err_set(err, -ENODATA, "%s: octet %" PRIu64 ": cut off in an entry", r->path, r->offset);
}

static int read_file_head(struct recording_reader *r, struct ft_error *err)
{
	struct file_head h;
	int rc = read_all(r, &h, sizeof(h), err);

	if (rc < 0 && rc != -ENODATA)
		return rc;
	if (rc <= 0)
		return err_set(err, -ENODATA, "%s: cut off in its head", r->path);
	if (from_be64(h.magic) != FILE_MAGIC)
		return err_set(err, -EPROTO, "%s: not a recorded stream", r->path);
	if (from_be32(h.version) != FILE_VERSION)
		return err_set(err, -EPROTO, "%s: recording of version %" PRIu32 ", this program reads %u", r->path,
			       from_be32(h.version), FILE_VERSION);
	if (from_be32(h.flags) & ~FILE_PAYLOAD)
		return err_set(err, -EPROTO, "%s: unknown flags in its head", r->path);
	r->payload = from_be32(h.flags) & FILE_PAYLOAD;
	r->offset = sizeof(h);
	return 0;
}

int recording_open(struct recording_reader **out, const char *path, struct ft_error *err)
{
	struct recording_reader *r = calloc(1, sizeof(*r));
	int rc;

	*out = NULL;
	pthread_once(&crc_once, crc_init);
	if (!r || !(r->path = strdup(path))) {
		rc = err_set(err, -ENOMEM, "%s: no memory", path);
		goto fail;
	}
	r->file = fopen(path, "rbe");
	if (!r->file) {
		rc = err_sys(err, -errno, "%s: cannot be opened", path);
		goto fail;
	}
	rc = read_file_head(r, err);
	if (rc)
		goto fail;
	*out = r;
	return 0;
fail:
	recording_reader_close(r);
	return rc;
}

/* check_entry - NULL, or what is wrong with the head of an entry. */
static const char *check_entry(const struct recording_reader *r, const struct recording_entry *e)
{
	const bool mark = e->kind == RECORDING_OPEN || e->kind == RECORDING_CLOSE, write = e->kind == RECORDING_WRITE;

	if (e->kind < RECORDING_MESSAGE || e->kind > RECORDING_CLOSE)
		return "unknown kind of entry";
	if (mark ? e->direction != 0 : e->direction != RECORDING_SENT && e->direction != RECORDING_RECEIVED)
		return "unknown direction";
	if (!e->connection)
		return "no number of a connection";
	if (e->lane > (mark ? 0 : LANE_MAX))
		return "lane out of range";
	if (!write && (e->window || e->offset || e->write_bytes))
		return "fields of a write in another entry";
	if (mark)
		return e->payload_bytes > RECORDING_TEXT_MAX ? "text too long" : NULL;
	if (!write)
		return !e->payload_bytes || e->payload_bytes > RECORDING_MESSAGE_MAX
			       ? "length of a message out of range"
			       : NULL;
	if (e->window > WINDOW_MAX || !e->write_bytes || e->write_bytes > RECORDING_WRITE_MAX ||
	    e->offset > UINT64_MAX - e->write_bytes)
		return "window or length of a write out of range";
	return e->payload_bytes != (r->payload ? e->write_bytes : 0) ? "payload of a write has another length" : NULL;
}

static int read_payload(struct recording_reader *r, size_t len, struct ft_error *err)
{
	const size_t all = len + padding_of(len);
	int rc;

	if (all > r->cap) {
		uint8_t *more = realloc(r->buf, all);

		if (!more)
			return err_set(err, -ENOMEM, "%s: no memory for %zu octets", r->path, all);
		r->buf = more;
		r->cap = all;
	}
	rc = all ? read_all(r, r->buf, all, err) : 1;
	if (rc == 0)
		return err_set(err, -ENODATA, "%s: octet %" PRIu64 ": cut off in an entry", r->path, r->offset);
	if (rc < 0)
		return rc;
	for (size_t i = len; i < all; i++)
		if (r->buf[i])
			return damaged(r, err, "padding is not zeros");
	return 0;
}

int recording_next(struct recording_reader *r, struct recording_entry *out, struct ft_error *err)
{
	struct recording_entry e;
	struct entry_head h;
	const char *what;
	int rc = read_all(r, &h, sizeof(h), err);

	if (rc <= 0)
		return rc;
	if (from_be32(h.mark) != ENTRY_MARK)
		return damaged(r, err, "no entry begins here");
	e = (struct recording_entry){
		.kind = from_be16(h.kind),
		.direction = from_be16(h.direction),
		.lane = from_be32(h.lane),
		.connection = from_be32(h.connection),
		.time_ns = from_be64(h.time_ns),
		.window = from_be32(h.window),
		.offset = from_be64(h.offset),
		.write_bytes = from_be32(h.write_bytes),
		.payload_bytes = from_be32(h.payload_bytes),
	};
	what = check_entry(r, &e);
	if (what)
		return damaged(r, err, what);
	rc = read_payload(r, e.payload_bytes, err);
	if (rc)
		return rc;
	if (~crc_add(crc_add(~0u, &h.kind, sizeof(h) - CRC_FROM), r->buf, e.payload_bytes) != from_be32(h.crc))
		return damaged(r, err, "checksum of the entry is wrong");
	e.payload = r->buf;
	r->offset += sizeof(h) + e.payload_bytes + padding_of(e.payload_bytes);
	*out = e;
	return 1;
}

bool recording_has_payload(const struct recording_reader *r)
{
	return r->payload;
}

uint64_t recording_offset(const struct recording_reader *r)
{
	return r->offset;
}

void recording_reader_close(struct recording_reader *r)
{
	if (!r)
		return;
	if (r->file)
		fclose(r->file);
	free(r->buf);
	free(r->path);
	free(r);
}
