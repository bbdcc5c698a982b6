/* SPDX-License-Identifier: MIT */
/* fuzz_control.c - requests of the control socket: whatever comes in, what goes out is one line of JSON that says ok, or
 * why not.  The session behind it answers at once, and keeps its promises about arguments to itself: it traps. */
#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ft_config cfg;
static unsigned calls;

static void must(bool holds)
{
	if (!holds)
		__builtin_trap();
}

static void status(struct ft_session *s, struct ft_status *out)
{
	must(s == (struct ft_session *)&cfg);
	out->role = FT_ROLE_PRIMARY;
	out->state = FT_STATE_PROTECTED;
	memset(out->reason, 0xff, sizeof(out->reason) - 1);
}

static void stats(struct ft_session *s, struct ft_stats *out)
{
	must(s && out);
}

static int get(struct ft_session *s, const char *name, char *buf, size_t size)
{
	must(s);
	return ft_config_get(&cfg, name, buf, size);
}

static int set(struct ft_session *s, const char *name, const char *value, struct ft_error *err)
{
	struct ft_config changed = cfg; /* texts of the request do not outlive it */

	must(s);
	return ft_config_set(&changed, name, value, err);
}

static int wait_for(struct ft_session *s, uint32_t mask, uint32_t timeout_ms)
{
	must(s && mask && mask < 1u << FT_STATE_COUNT && timeout_ms <= CONTROL_TIMEOUT_MAX_MS);
	return mask & 1u << FT_STATE_PROTECTED ? FT_STATE_PROTECTED : -ETIMEDOUT;
}

static int checkpoint(struct ft_session *s, uint32_t timeout_ms, uint64_t *epoch, struct ft_error *err)
{
	must(s && timeout_ms <= CONTROL_TIMEOUT_MAX_MS);
	*epoch = UINT64_MAX;
	return calls++ % 2 ? err_set(err, -ENOTCONN, "not protected") : 0;
}

static int guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err)
{
	must(s && timeout_ms <= CONTROL_TIMEOUT_MAX_MS && err);
	return calls++ % 2 ? -EIO : 0; /* without a sentence: one is made */
}

static int failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err)
{
	must(s && !(flags & ~(unsigned)FT_FAILOVER_FORCE));
	res->outcome = (enum ft_failover_outcome)(calls++ % 7);
	return res->outcome > FT_FAILOVER_ALREADY ? err_set(err, -EBUSY, "refused") : 0;
}

static void stop(struct ft_session *s)
{
	must(s);
}

static int extra(void *user, const char *cmd, const struct json_t *args, struct json_t **reply, struct ft_error *err)
{
	must(!user && cmd && json_is_object(args) && !*reply && err);
	if (cmd[0] == 'x')
		*reply = json_deep_copy(args);
	return cmd[0] == 'x' ? 0 : -ENOSYS;
}

static bool revoked(void *user)
{
	return !user;
}

static const struct control_ops ops = { .status = status,
					.stats = stats,
					.get = get,
					.set = set,
					.wait = wait_for,
					.checkpoint = checkpoint,
					.pause_guest = guest,
					.resume_guest = guest,
					.failover = failover,
					.stop = stop };

static void check_reply(const char *text, size_t len)
{
	json_t *r;
	const char *error;

	must(text && len && text[len - 1] == '\n' && !memchr(text, '\n', len - 1));
	r = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	must(json_integer_value(json_object_get(r, "v")) == CONTROL_VERSION);
	if (json_is_true(json_object_get(r, "ok"))) {
		must(json_is_object(json_object_get(r, "data")));
	} else {
		error = json_string_value(json_object_get(r, "error"));
		must(error && *error && json_is_string(json_object_get(r, "code")));
	}
	json_decref(r);
}

static void ask(const struct control_env *env, const uint8_t *data, size_t size)
{
	struct control_request rq;
	size_t len;
	char *text;

	control_parse(&rq, (const char *)data, size);
	must(!control_changes(&rq) || control_uses_session(&rq));
	text = control_answer(&rq, env, &len);
	check_reply(text, len);
	free(text);
	control_request_free(&rq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct control_env with = {
		.ops = &ops, .session = (struct ft_session *)&cfg, .extra = extra, .is_revoked = revoked
	};
	struct control_env without = { .ops = &ops };

	if (size > CONTROL_LINE_MAX)
		return 0;
	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	ask(&with, data, size);
	ask(&without, data, size);
	return 0;
}
