/* SPDX-License-Identifier: MIT */
#include "transport_ops.h"
#include <errno.h>
int loopback_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd, struct ft_error *err)
{ (void)out; (void)p; (void)deadline; (void)cancel_fd; return err_set(err, -ENOSYS, "%s", rest); }
int loopback_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{ (void)out; (void)p; return err_set(err, -ENOSYS, "%s", rest); }
