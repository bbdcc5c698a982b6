/* SPDX-License-Identifier: MIT */
/* control_session.c - the control socket over real sessions; see control.h. */
#include "control.h"

static const struct control_ops session_ops = {
	.status = ft_session_status,
	.stats = ft_session_stats,
	.get = ft_session_get,
	.set = ft_session_set,
	.wait = ft_session_wait,
	.checkpoint = ft_session_checkpoint,
	.pause_guest = ft_session_pause_guest,
	.resume_guest = ft_session_resume_guest,
	.failover = ft_session_failover,
	.stop = ft_session_stop,
};

int ft_control_open(struct ft_control **out, const char *path, ft_control_command *extra, void *user,
		    struct ft_error *err)
{
	return control_open(out, path, &session_ops, extra, user, err);
}
