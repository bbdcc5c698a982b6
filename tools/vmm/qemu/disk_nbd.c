/* SPDX-License-Identifier: MIT */
/* disk_nbd.c - see disk_nbd.h.  libnbd's synchronous calls wait for ever, so its asynchronous ones are used, one at a time. */
#include "disk_nbd.h"

#include <errno.h>
#include <libnbd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MS 30000 /* one request: a disk that is busy may take seconds */
#define CONNECT_MS 10000

struct disk_nbd {
	struct nbd_handle *nbd;
	bool has_status;
	/* of the block status under way */
	uint64_t offset;
	uint32_t extent, flags;
};

static int failed(struct ft_error *err, const char *what)
{
	int code = nbd_get_errno() > 0 ? -nbd_get_errno() : -EIO;
	const char *text = nbd_get_error();

	return fail(err, code, "%s: %s", what, text ? text : strerror(-code));
}

/* Until the command is done. */
static int finish(struct disk_nbd *d, int64_t cookie, const char *what, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(CALL_MS);
	int done;

	if (cookie < 0)
		return failed(err, what);
	for (;;) {
		done = nbd_aio_command_completed(d->nbd, (uint64_t)cookie);
		if (done)
			return done < 0 ? failed(err, what) : 0;
		if (util_now_ns() >= deadline)
			return fail(err, -ETIMEDOUT, "%s: no answer within %d s", what, CALL_MS / 1000);
		if (nbd_poll(d->nbd, util_left_ms(deadline)) < 0)
			return failed(err, what);
	}
}

static int connect_to(struct disk_nbd *d, const char *path, const char *export, struct ft_error *err)
{
	uint64_t deadline = util_deadline_ms(CONNECT_MS);
	int fd = unix_connect(path, deadline, err);

	if (fd < 0)
		return fd;
	if (nbd_set_export_name(d->nbd, export) || nbd_add_meta_context(d->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) ||
	    nbd_aio_connect_socket(d->nbd, fd))
		return failed(err, path);
	while (!nbd_aio_is_ready(d->nbd)) {
		if (nbd_aio_is_dead(d->nbd) || nbd_aio_is_closed(d->nbd))
			return failed(err, path);
		if (util_now_ns() >= deadline)
			return fail(err, -ETIMEDOUT, "%s: no NBD greeting within %d s", path, CONNECT_MS / 1000);
		if (nbd_poll(d->nbd, util_left_ms(deadline)) < 0)
			return failed(err, path);
	}
	return 0;
}

int disk_nbd_open(struct disk_nbd **out, const char *path, const char *export, uint64_t size, struct ft_error *err)
{
	struct disk_nbd *d = calloc(1, sizeof(*d));
	int64_t has;
	int rc;

	*out = NULL;
	if (!d)
		return fail(err, -ENOMEM, "no memory");
	d->nbd = nbd_create();
	rc = d->nbd ? connect_to(d, path, export, err) : failed(err, path);
	has = rc ? 0 : nbd_get_size(d->nbd);
	if (!rc && (has < 0 || (uint64_t)has != size))
		rc = fail(err, -EINVAL, "%s: the disk has %lld octets, not %llu", path, (long long)has,
			  (unsigned long long)size);
	if (rc) {
		disk_nbd_close(d);
		return rc;
	}
	d->has_status = nbd_can_meta_context(d->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1;
	*out = d;
	return 0;
}

void disk_nbd_close(struct disk_nbd *d)
{
	if (!d)
		return;
	nbd_close(d->nbd); /* closes the socket: a server takes that for a goodbye */
	free(d);
}

static int on_extent(void *user, const char *context, uint64_t offset, uint32_t *entries, size_t nr, int *error)
{
	struct disk_nbd *d = user;

	(void)context, (void)error;
	if (offset == d->offset && nr >= 2) {
		d->extent = entries[0];
		d->flags = entries[1];
	}
	return 0;
}

int disk_nbd_look(struct disk_nbd *d, uint64_t offset, uint32_t *len, uint32_t unit, uint32_t read_max, void *buf,
		  bool *zero, struct ft_error *err)
{
	nbd_extent_callback extent = { .callback = on_extent, .user_data = d };
	uint32_t zeros;
	int rc = 0;

	*zero = false;
	d->extent = 0;
	d->offset = offset;
	if (d->has_status)
		rc = finish(d, nbd_aio_block_status(d->nbd, *len, offset, extent, NBD_NULL_COMPLETION, 0),
			    "what the disk has", err);
	if (rc)
		return rc;
	zeros = d->extent && d->flags & LIBNBD_STATE_ZERO ? d->extent : 0;
	if (zeros >= *len || zeros / unit) {
		*len = zeros >= *len ? *len : zeros / unit * unit;
		*zero = true;
		return 0;
	}
	if (*len > read_max)
		*len = read_max;
	return finish(d, nbd_aio_pread(d->nbd, buf, *len, offset, NBD_NULL_COMPLETION, 0), "reading the disk", err);
}

int disk_nbd_write(struct disk_nbd *d, uint64_t offset, const void *buf, size_t len, struct ft_error *err)
{
	return finish(d, nbd_aio_pwrite(d->nbd, buf, len, offset, NBD_NULL_COMPLETION, 0), "writing the image", err);
}

int disk_nbd_zero(struct disk_nbd *d, uint64_t offset, uint32_t len, struct ft_error *err)
{
	return finish(d, nbd_aio_zero(d->nbd, len, offset, NBD_NULL_COMPLETION, 0), "zeros in the image", err);
}

int disk_nbd_flush(struct disk_nbd *d, struct ft_error *err)
{
	return finish(d, nbd_aio_flush(d->nbd, NBD_NULL_COMPLETION, 0), "flushing the image", err);
}
