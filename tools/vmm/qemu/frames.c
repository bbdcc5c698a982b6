/* SPDX-License-Identifier: MIT */
/* frames.c - see frames.h.  The caller owns buffers and socket. */
#include "frames.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static size_t length_of(const uint8_t *head)
{
	return (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
}

static void put_length(uint8_t *head, size_t len)
{
	head[0] = (uint8_t)(len >> 24);
	head[1] = (uint8_t)(len >> 16);
	head[2] = (uint8_t)(len >> 8);
	head[3] = (uint8_t)len;
}

/* As much as makes @want octets of head and frame.  1: they are there. */
static int fill(struct frames_in *in, int fd, size_t want)
{
	while (in->have < want) {
		ssize_t n = recv(fd, in->buf + in->have, want - in->have, MSG_DONTWAIT);

		if (n > 0)
			in->have += (size_t)n;
		else if (n < 0 && errno == EINTR)
			continue;
		else
			return n < 0 && errno == EAGAIN ? 0 : -EPIPE;
	}
	return 1;
}

int frames_read(struct frames_in *in, int fd, const uint8_t **frame)
{
	size_t len;
	int r;

	if (in->have >= 4 && in->have == 4 + length_of(in->buf)) /* the one that was given last */
		in->have = 0;
	r = fill(in, fd, 4);
	if (r <= 0)
		return r;
	len = length_of(in->buf);
	if (len == 0 || len > UPLINK_FRAME_MAX)
		return -EPROTO;
	r = fill(in, fd, 4 + len);
	if (r <= 0)
		return r;
	*frame = in->buf + 4;
	return (int)len;
}

int frames_flush(struct frames_out *out, int fd)
{
	while (out->at < out->len) {
		ssize_t n = send(fd, out->buf + out->at, out->len - out->at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
			out->at += (size_t)n;
		else if (n < 0 && errno == EINTR)
			continue;
		else
			return n < 0 && errno == EAGAIN ? 0 : -EPIPE;
	}
	out->at = out->len = 0;
	return 1;
}

int frames_write(struct frames_out *out, int fd, const void *frame, size_t len)
{
	uint8_t head[4];
	struct iovec iov[2] = { { head, 4 }, { (void *)(uintptr_t)frame, len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;
	int r = frames_flush(out, fd);

	if (r <= 0)
		return r;
	put_length(head, len);
	do
		n = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : -EPIPE;
	if ((size_t)n < 4 + len) {
		memcpy(out->buf, head, 4);
		memcpy(out->buf + 4, frame, len);
		out->at = (size_t)n;
		out->len = 4 + len;
	}
	return 1;
}
