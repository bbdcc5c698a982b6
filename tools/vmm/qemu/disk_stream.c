/* SPDX-License-Identifier: MIT */
/* disk_stream.c - see disk_stream.h. */
#include "disk_stream.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

void disk_put64(uint8_t *to, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

uint64_t disk_get64(const uint8_t *from)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | from[i];
	return v;
}

void disk_head(uint8_t head[DISK_HEAD], enum disk_kind kind, unsigned disk, uint32_t length, uint64_t offset)
{
	disk_put64(head, (uint64_t)kind | (uint64_t)disk << 8 | (uint64_t)length << 32);
	disk_put64(head + 8, offset);
}

void disk_stream_init(struct disk_stream *s, const struct disk_stream_ops *ops, void *user, const uint64_t *size,
		      unsigned nr)
{
	*s = (struct disk_stream){ .ops = ops, .user = user, .size = size, .nr = nr };
}

bool disk_stream_is_between(const struct disk_stream *s)
{
	return s->have == 0 && s->left == 0;
}

/* A head is complete: is it one?  Payload that follows is in left. */
static int begin_record(struct disk_stream *s, struct ft_error *err)
{
	uint64_t first = disk_get64(s->head);
	uint32_t length = (uint32_t)(first >> 32);
	unsigned kind = first & 0xff;

	s->disk = first >> 8 & 0xff;
	s->offset = disk_get64(s->head + 8);
	if (first >> 16 & 0xffff)
		return fail(err, -EPROTO, "disks: a record with a part that is not known");
	switch (kind) {
	case DISK_DATA:
	case DISK_ZERO:
		if (s->disk >= s->nr || length == 0 || length > DISK_RECORD_MAX || s->offset > s->size[s->disk] ||
		    length > s->size[s->disk] - s->offset)
			return fail(err, -EPROTO,
				    "disks: %" PRIu32 " octets at %" PRIu64 " of disk %u, which cannot be", length,
				    s->offset, s->disk);
		break;
	case DISK_BASE:
		if (s->disk || length != DISK_NAME || s->offset > 1)
			return fail(err, -EPROTO, "disks: a base that cannot be");
		break;
	case DISK_COMMIT_MARK:
		if (!s->ops->commit || s->disk || length != DISK_COMMIT || s->offset)
			return fail(err, -EPROTO, "disks: a commit where none can be");
		break;
	default:
		return fail(err, -EPROTO, "disks: a record of kind %u", kind);
	}
	s->kind = (enum disk_kind)kind;
	if (s->kind != DISK_ZERO) {
		s->left = length;
		return 0;
	}
	s->have = 0;
	return s->ops->zero(s->user, s->disk, s->offset, length, err);
}

static int take_payload(struct disk_stream *s, const uint8_t *buf, size_t n, struct ft_error *err)
{
	size_t length = s->kind == DISK_BASE ? DISK_NAME : DISK_COMMIT;
	int rc;

	if (s->kind == DISK_DATA) {
		rc = s->ops->data(s->user, s->disk, s->offset, buf, n, err);
		s->offset += n;
	} else {
		memcpy(s->small + (length - s->left), buf, n);
		rc = 0;
	}
	s->left -= n;
	if (rc || s->left)
		return rc;
	s->have = 0;
	if (s->kind == DISK_BASE)
		return s->ops->base(s->user, s->small, s->offset == 1, err);
	return s->kind == DISK_COMMIT_MARK ? s->ops->commit(s->user, s->small, err) : 0;
}

int disk_stream_read(struct disk_stream *s, const void *buf, size_t len, struct ft_error *err)
{
	const uint8_t *at = buf;
	size_t n;
	int rc;

	while (len) {
		if (s->left) {
			n = len < s->left ? len : (size_t)s->left;
			rc = take_payload(s, at, n, err);
		} else {
			n = DISK_HEAD - s->have < len ? DISK_HEAD - s->have : len;
			memcpy(s->head + s->have, at, n);
			s->have += n;
			rc = s->have == DISK_HEAD ? begin_record(s, err) : 0;
		}
		if (rc)
			return rc;
		at += n;
		len -= n;
	}
	return 0;
}
