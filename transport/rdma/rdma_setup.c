/* SPDX-License-Identifier: MIT */
/* rdma_setup.c - being written. */
#include <errno.h>
#include "rdma_private.h"

int rdma_connect_uri(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline,
		     int cancel_fd, struct ft_error *err)
{
	(void)out, (void)rest, (void)p, (void)deadline, (void)cancel_fd;
	return err_set(err, -ENOTSUP, "rdma: not there yet");
}

int rdma_listen_uri(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	(void)out, (void)rest, (void)p;
	return err_set(err, -ENOTSUP, "rdma: not there yet");
}
