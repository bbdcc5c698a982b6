/* SPDX-License-Identifier: MIT */
/* command.c - the commands of the control socket: one JSON object in, one out.  ft-control(7) is the specification.
 * No socket, no thread, no state: whoever calls control_answer() lends its thread.  What comes in is not believed. */
#include "control.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faultpoint.h"

#define WAIT_SLICE_MS 100 /* how soon `wait` notices that its session is being taken away */

/* One command being run. */
struct call {
	json_t *args;
	const struct control_env *env;
	struct ft_session *session;
	json_t *data; /* of the reply; owned */
	const char *code;
	struct ft_error err;
};

struct command {
	const char *name;
	int (*run)(struct call *call); /* 0 or a negative errno with a sentence in call->err */
	bool needs_session, is_long, changes;
};

/* ---- arguments ---------------------------------------------------------------------------------- */

static int bad_arg(struct call *call, const char *key, const char *right)
{
	return err_set(&call->err, -EINVAL, "'%s' must be %s", key, right);
}

static int arg_string(struct call *call, const char *key, const char **out)
{
	*out = json_string_value(json_object_get(call->args, key));
	return *out ? 0 : bad_arg(call, key, "a text");
}

static int arg_flag(struct call *call, const char *key, bool *out)
{
	const json_t *v = json_object_get(call->args, key);

	*out = json_is_true(v);
	return !v || json_is_boolean(v) ? 0 : bad_arg(call, key, "true or false");
}

static int arg_timeout(struct call *call, uint32_t otherwise_ms, uint32_t *out)
{
	const json_t *v = json_object_get(call->args, "timeout_ms");
	json_int_t n = v ? json_integer_value(v) : otherwise_ms;

	*out = otherwise_ms;
	if ((v && !json_is_integer(v)) || n < 0 || n > CONTROL_TIMEOUT_MAX_MS)
		return bad_arg(call, "timeout_ms", "a number from 0 to 3600000");
	*out = (uint32_t)n;
	return 0;
}

/* json_pack() wants exact types, and uint64_t is not one of them. */
static void put_u64(json_t *object, const char *key, uint64_t v)
{
	json_object_set_new(object, key, json_integer(v > INT64_MAX ? INT64_MAX : (json_int_t)v));
}

/* Names and reasons may hold what a peer or a client sent, also cut in the middle of a character: octets that are no
 * UTF-8 must not lose the whole reply. */
static void put_text(json_t *object, const char *key, const char *text)
{
	json_t *v = json_string(text);
	char ascii[FT_ERROR_MAX];
	size_t i;

	if (!v) {
		for (i = 0; text[i] && i < sizeof(ascii) - 1; i++)
			ascii[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
		ascii[i] = '\0';
		v = json_string(ascii);
	}
	json_object_set_new(object, key, v);
}

/* ---- commands without a session ----------------------------------------------------------------- */

static int run_ping(struct call *call)
{
	put_text(call->data, "version", ft_version());
	put_u64(call->data, "protocol", CONTROL_VERSION);
	put_u64(call->data, "pid", (uint64_t)getpid());
	json_object_set_new(call->data, "session", json_boolean(call->session));
	return 0;
}

static const char *type_name(enum ft_option_type type)
{
	switch (type) {
	case FT_OPT_STRING:
		return "string";
	case FT_OPT_UINT:
		return "number";
	case FT_OPT_SIZE:
		return "size";
	case FT_OPT_BOOL:
		return "bool";
	case FT_OPT_CHOICE:
		return "choice";
	}
	return "?";
}

static json_t *describe_option(const struct ft_option *o)
{
	json_t *j = json_object();

	put_text(j, "name", o->name);
	put_text(j, "type", type_name(o->type));
	json_object_set_new(j, "primary", json_boolean(o->flags & FT_OPT_PRIMARY));
	json_object_set_new(j, "secondary", json_boolean(o->flags & FT_OPT_SECONDARY));
	json_object_set_new(j, "live", json_boolean(o->flags & FT_OPT_LIVE));
	if (o->type == FT_OPT_UINT || o->type == FT_OPT_SIZE) {
		put_u64(j, "min", o->min);
		put_u64(j, "max", o->max);
	}
	if (o->choices)
		put_text(j, "choices", o->choices);
	put_text(j, "unit", o->unit);
	put_text(j, "default", o->value);
	put_text(j, "help", o->help);
	return j;
}

static int run_options(struct call *call)
{
	size_t n;
	const struct ft_option *o = ft_options(&n);
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, describe_option(&o[i]));
	json_object_set_new(call->data, "options", list);
	return 0;
}

/* ---- looking ------------------------------------------------------------------------------------ */

static const char *role_name(enum ft_role role)
{
	return role == FT_ROLE_PRIMARY ? "primary" : role == FT_ROLE_SECONDARY ? "secondary" : "?";
}

static json_t *describe_rdma(const struct ft_status *s)
{
	json_t *j = json_object();

	put_text(j, "device", s->rdma_device);
	put_u64(j, "port", s->rdma_port);
	put_text(j, "gid", s->rdma_gid);
	put_u64(j, "mtu", s->rdma_mtu);
	put_u64(j, "lanes", s->rdma_lanes);
	put_u64(j, "credits", s->rdma_credits);
	put_text(j, "registration", s->rdma_registration);
	put_u64(j, "chunk_bytes", s->rdma_chunk_bytes);
	put_u64(j, "pinned_bytes", s->rdma_pinned_bytes);
	put_u64(j, "pin_budget", s->rdma_pin_budget);
	put_u64(j, "peer_pinned_bytes", s->rdma_peer_pinned_bytes);
	put_u64(j, "peer_pin_budget", s->rdma_peer_pin_budget);
	put_u64(j, "registrations", s->rdma_registrations);
	put_u64(j, "deregistrations", s->rdma_deregistrations);
	put_u64(j, "unpins", s->rdma_unpins);
	return j;
}

static json_t *describe_witness(const struct ft_status *s)
{
	json_t *j = json_object();

	put_text(j, "witness", s->witness);
	put_text(j, "lease", s->lease);
	put_text(j, "holder", s->lease_holder);
	put_u64(j, "generation", s->lease_generation);
	put_u64(j, "left_ns", s->lease_left_ns);
	put_text(j, "trouble", s->witness_trouble);
	return j;
}

static int run_status(struct call *call)
{
	struct ft_status s;
	json_t *d = call->data;

	memset(&s, 0, sizeof(s));
	call->env->ops->status(call->session, &s);
	put_text(d, "name", s.name);
	put_text(d, "role", role_name(s.role));
	put_text(d, "state", ft_state_name(s.state));
	json_object_set_new(d, "protected", json_boolean(s.is_protected));
	put_text(d, "peer", s.peer);
	put_text(d, "reason", s.reason);
	put_u64(d, "state_age_ns", s.state_age_ns);
	put_u64(d, "generation", s.generation);
	put_u64(d, "epoch_running", s.epoch_running);
	put_u64(d, "epoch_sent", s.epoch_sent);
	put_u64(d, "epoch_acked", s.epoch_acked);
	put_u64(d, "epoch_applied", s.epoch_applied);
	put_u64(d, "interval_ms", s.interval_ms);
	put_u64(d, "sync_round", s.sync_round);
	put_u64(d, "sync_pages_done", s.sync_pages_done);
	put_u64(d, "sync_pages_total", s.sync_pages_total);
	put_u64(d, "regions", s.regions);
	put_u64(d, "guest_bytes", s.guest_bytes);
	put_u64(d, "memory_bytes", s.memory_bytes);
	put_u64(d, "memory_cap_bytes", s.memory_cap_bytes);
	json_object_set_new(d, "guest_paused", json_boolean(s.guest_paused));
	put_text(d, "bottleneck", s.bottleneck);
	put_text(d, "transport", s.transport);
	if (*s.state_file) {
		put_text(d, "state_file", s.state_file);
		put_text(d, "state_file_says", s.state_file_says);
		put_text(d, "state_file_error", s.state_file_error);
	}
	if (*s.interval_mode) {
		put_text(d, "interval_mode", s.interval_mode);
		put_u64(d, "interval_now_ns", s.interval_now_ns);
		put_text(d, "interval_reason", s.interval_reason);
		put_text(d, "epoch_end", s.epoch_end);
		put_u64(d, "watermark_pages", s.watermark_pages);
		put_text(d, "capture", s.capture);
		put_text(d, "skip_same", s.skip_same);
	}
	if (*s.witness)
		json_object_set_new(d, "witness", describe_witness(&s));
	if (*s.rdma_device)
		json_object_set_new(d, "rdma", describe_rdma(&s));
	return 0;
}

static json_t *describe_dist(enum ft_metric m, const struct ft_dist *dist)
{
	json_t *j = json_object();

	put_text(j, "unit", ft_metric_unit(m));
	put_u64(j, "count", dist->count);
	put_u64(j, "min", dist->min);
	json_object_set_new(j, "mean", json_real(dist->mean));
	put_u64(j, "p50", dist->p50);
	put_u64(j, "p99", dist->p99);
	put_u64(j, "max", dist->max);
	return j;
}

static int run_stats(struct call *call)
{
	struct ft_stats *s = FT_FAULT("command/stats") ? NULL : calloc(1, sizeof(*s));
	json_t *dist = json_object(), *counter = json_object();

	if (!s) {
		json_decref(dist);
		json_decref(counter);
		return err_set(&call->err, -ENOMEM, "out of memory");
	}
	call->env->ops->stats(call->session, s);
	for (enum ft_metric m = 0; m < FT_METRIC_COUNT; m++)
		json_object_set_new(dist, ft_metric_name(m), describe_dist(m, &s->dist[m]));
	for (enum ft_counter c = 0; c < FT_COUNTER_COUNT; c++)
		put_u64(counter, ft_counter_name(c), s->counter[c]);
	json_object_set_new(call->data, "dist", dist);
	json_object_set_new(call->data, "counter", counter);
	free(s);
	return 0;
}

static int get_setting(struct call *call, const char *name)
{
	char *text = FT_FAULT("command/get") ? NULL : malloc(FT_IDENTITY_MAX); /* the longest setting there is */
	int r;

	if (!text)
		return err_set(&call->err, -ENOMEM, "out of memory");
	r = call->env->ops->get(call->session, name, text, FT_IDENTITY_MAX);
	if (r == 0)
		put_text(call->data, name, text);
	else
		err_set(&call->err, r, "there is no setting '%.64s'", name);
	free(text);
	return r;
}

/* {"name": "interval"}, or without a name all of the role. */
static int run_get(struct call *call)
{
	size_t n;
	const struct ft_option *o = ft_options(&n);
	const char *name;
	struct ft_status s;
	unsigned role;
	int r = 0;

	if (json_object_get(call->args, "name"))
		return arg_string(call, "name", &name) ? call->err.code : get_setting(call, name);
	memset(&s, 0, sizeof(s));
	call->env->ops->status(call->session, &s);
	role = s.role == FT_ROLE_PRIMARY ? FT_OPT_PRIMARY : FT_OPT_SECONDARY;
	for (size_t i = 0; i < n && !r; i++)
		if (o[i].flags & role)
			r = get_setting(call, o[i].name);
	return r;
}

/* ---- acting ------------------------------------------------------------------------------------- */

/* A setting's value comes as a text, a number, or true and false. */
static int run_set(struct call *call)
{
	const json_t *v = json_object_get(call->args, "value");
	const char *name, *value;
	char number[32];
	int r = arg_string(call, "name", &name);

	if (r)
		return r;
	if (json_is_string(v)) {
		value = json_string_value(v);
	} else if (json_is_boolean(v)) {
		value = json_is_true(v) ? "on" : "off";
	} else if (json_is_integer(v)) {
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		value = number;
	} else {
		return bad_arg(call, "value", "a text, a number, true or false");
	}
	r = call->env->ops->set(call->session, name, value, &call->err);
	return r ? r : get_setting(call, name);
}

static int run_checkpoint(struct call *call)
{
	uint32_t timeout_ms;
	uint64_t epoch = 0;
	int r = arg_timeout(call, 10000, &timeout_ms);

	if (!r)
		r = call->env->ops->checkpoint(call->session, timeout_ms, &epoch, &call->err);
	if (!r)
		put_u64(call->data, "epoch", epoch);
	return r;
}

static int run_pause(struct call *call)
{
	uint32_t timeout_ms;
	int r = arg_timeout(call, 10000, &timeout_ms);

	return r ? r : call->env->ops->pause_guest(call->session, timeout_ms, &call->err);
}

static int run_resume(struct call *call)
{
	uint32_t timeout_ms;
	int r = arg_timeout(call, 10000, &timeout_ms);

	return r ? r : call->env->ops->resume_guest(call->session, timeout_ms, &call->err);
}

static int run_stop(struct call *call)
{
	call->env->ops->stop(call->session);
	return 0;
}

static const char *outcome_name(enum ft_failover_outcome outcome)
{
	switch (outcome) {
	case FT_FAILOVER_DONE:
		return "done";
	case FT_FAILOVER_ALREADY:
		return "already";
	case FT_FAILOVER_NOT_SECONDARY:
		return "not-secondary";
	case FT_FAILOVER_NO_IMAGE:
		return "no-image";
	case FT_FAILOVER_PEER_ALIVE:
		return "peer-alive";
	case FT_FAILOVER_BUSY:
		return "busy";
	case FT_FAILOVER_FAILED:
		return "failed";
	case FT_FAILOVER_NOT_GRANTED:
		return "not-granted";
	}
	return "?";
}

static int run_failover(struct call *call)
{
	struct ft_failover_result res;
	bool force;
	int r = arg_flag(call, "force", &force);

	if (r)
		return r;
	memset(&res, 0, sizeof(res));
	r = call->env->ops->failover(call->session, force ? FT_FAILOVER_FORCE : 0, &res, &call->err);
	put_text(call->data, "outcome", outcome_name(res.outcome));
	put_u64(call->data, "epoch", res.epoch);
	put_u64(call->data, "stop_ns", res.stop_ns);
	put_u64(call->data, "apply_ns", res.apply_ns);
	put_u64(call->data, "load_ns", res.load_ns);
	put_u64(call->data, "activate_ns", res.activate_ns);
	put_u64(call->data, "total_ns", res.total_ns);
	if (r)
		call->code = outcome_name(res.outcome);
	return r;
}

/* ---- wait --------------------------------------------------------------------------------------- */

static int add_state(struct call *call, const json_t *name, uint32_t *mask)
{
	const char *text = json_string_value(name);

	for (enum ft_state s = 0; text && s < FT_STATE_COUNT; s++)
		if (strcmp(text, ft_state_name(s)) == 0) {
			*mask |= 1u << s;
			return 0;
		}
	return err_set(&call->err, -EINVAL, "'states' names '%.64s', which is no state",
		       text ? text : "what is no text");
}

static int arg_states(struct call *call, uint32_t *mask)
{
	const json_t *v = json_object_get(call->args, "states");
	int r = 0;

	if (json_is_string(v))
		return add_state(call, v, mask);
	if (!json_array_size(v))
		return bad_arg(call, "states", "the name of a state, or a list of them");
	for (size_t i = 0; i < json_array_size(v) && !r; i++)
		r = add_state(call, json_array_get(v, i), mask);
	return r;
}

/* In slices: a session must be able to go away under a wait of an hour. */
static int wait_in_slices(struct call *call, uint32_t mask, uint64_t deadline)
{
	const struct control_env *env = call->env;
	int r, slice;

	for (;;) {
		slice = deadline_poll_ms(deadline);
		r = env->ops->wait(call->session, mask, slice < WAIT_SLICE_MS ? (uint32_t)slice : WAIT_SLICE_MS);
		if (r != -ETIMEDOUT)
			return r;
		if (env->is_revoked && env->is_revoked(env->user))
			return -ECANCELED;
		if (slice == 0)
			return -ETIMEDOUT;
	}
}

static int run_wait(struct call *call)
{
	uint32_t mask = 0, timeout_ms;
	int r = arg_states(call, &mask);

	if (!r)
		r = arg_timeout(call, 60000, &timeout_ms);
	if (r)
		return r;
	r = wait_in_slices(call, mask, deadline_in_ms(timeout_ms));
	if (r == -ETIMEDOUT)
		return err_set(&call->err, r, "not reached within %u ms", timeout_ms);
	if (r == -ECANCELED)
		return err_set(&call->err, r, "the session has ended");
	if (r < 0)
		return err_sys(&call->err, r, "waiting");
	put_text(call->data, "state", ft_state_name((enum ft_state)r));
	return 0;
}

/* ---- the table ---------------------------------------------------------------------------------- */

static const struct command commands[] = {
	{ "ping", run_ping, false, false, false },
	{ "version", run_ping, false, false, false },
	{ "options", run_options, false, false, false },
	{ "status", run_status, true, false, false },
	{ "stats", run_stats, true, false, false },
	{ "get", run_get, true, false, false },
	{ "set", run_set, true, false, true },
	{ "wait", run_wait, true, true, false },
	{ "checkpoint", run_checkpoint, true, true, false },
	{ "pause", run_pause, true, true, true },
	{ "resume", run_resume, true, true, true },
	{ "failover", run_failover, true, true, true },
	{ "stop", run_stop, true, true, true },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

bool control_is_long(const struct control_request *rq)
{
	return rq->command && rq->command->is_long;
}

bool control_uses_session(const struct control_request *rq)
{
	return rq->command;
}

const char *control_changes(const struct control_request *rq)
{
	return rq->command && rq->command->changes ? rq->command->name : NULL;
}

/* ---- request ------------------------------------------------------------------------------------ */

void control_refuse(struct control_request *rq, const char *code, const char *sentence)
{
	rq->code = code;
	err_set(&rq->err, -EINVAL, "%s", sentence);
}

static void check_request(struct control_request *rq)
{
	const json_t *version = json_object_get(rq->json, "v");
	const json_t *id = json_object_get(rq->json, "id");
	const char *cmd = json_string_value(json_object_get(rq->json, "cmd"));

	if (version && (!json_is_integer(version) || json_integer_value(version) != CONTROL_VERSION))
		control_refuse(rq, "version", "'v' must be 1: that is the protocol spoken here");
	else if (id && !json_is_integer(id) && !json_is_string(id))
		control_refuse(rq, "bad-request", "'id' must be a number or a text");
	else if (!cmd)
		control_refuse(rq, "bad-request", "'cmd' must name a command");
	else
		rq->command = find_command(cmd);
}

void control_parse(struct control_request *rq, const char *line, size_t len)
{
	json_error_t where;

	memset(rq, 0, sizeof(*rq));
	rq->json = json_loadb(line, len, JSON_REJECT_DUPLICATES, &where);
	if (!rq->json) {
		rq->code = "bad-request";
		err_set(&rq->err, -EINVAL, "not JSON: %s, at octet %d", where.text, where.position);
	} else if (!json_is_object(rq->json)) {
		control_refuse(rq, "bad-request", "a request is a JSON object");
	} else {
		check_request(rq);
	}
}

void control_request_free(struct control_request *rq)
{
	json_decref(rq->json);
	rq->json = NULL;
}

/* ---- reply -------------------------------------------------------------------------------------- */

static const char *code_of(int error)
{
	switch (-error) {
	case EINVAL:
	case ERANGE:
		return "bad-argument";
	case ENOENT:
		return "not-found";
	case ENOSYS:
		return "unknown-command";
	case EPERM:
	case EACCES:
		return "refused";
	case ENOTCONN:
		return "not-protected";
	case EBUSY:
		return "busy";
	case ETIMEDOUT:
		return "timeout";
	case ECANCELED:
		return "canceled";
	default:
		return "failed";
	}
}

/* A command that the library does not know. */
static int run_extra(struct call *call)
{
	const struct control_env *env = call->env;
	const char *cmd = json_string_value(json_object_get(call->args, "cmd"));
	json_t *reply = NULL;
	int r = env->extra ? env->extra(env->extra_user, cmd, call->args, &reply, &call->err) : -ENOSYS;

	if (reply) {
		json_decref(call->data);
		call->data = reply;
	}
	if (r == -ENOSYS)
		err_set(&call->err, r, "there is no command '%.64s'", cmd);
	return r;
}

static void run_call(const struct control_request *rq, struct call *call)
{
	int r;

	if (rq->code) {
		call->err = rq->err;
		call->code = rq->code;
		return;
	}
	if (rq->command && rq->command->needs_session && !call->session) {
		call->code = "no-session";
		err_set(&call->err, -ENOTCONN, "there is no session here now: nothing is being protected");
		return;
	}
	r = rq->command ? rq->command->run(call) : run_extra(call);
	if (r == 0) {
		err_clear(&call->err);
		return;
	}
	if (!call->err.code)
		err_sys(&call->err, r, "failed");
	if (!call->code)
		call->code = code_of(r);
}

static json_t *make_reply(const struct control_request *rq, const struct call *call)
{
	json_t *reply = json_object(), *id = json_object_get(rq->json, "id");

	put_u64(reply, "v", CONTROL_VERSION);
	if (id && (json_is_integer(id) || json_is_string(id)))
		json_object_set(reply, "id", id);
	json_object_set_new(reply, "ok", json_boolean(!call->code));
	if (call->code) {
		put_text(reply, "error", call->err.msg);
		put_text(reply, "code", call->code);
	}
	if (!call->code || json_object_size(call->data))
		json_object_set(reply, "data", call->data);
	return reply;
}

char *control_answer(const struct control_request *rq, const struct control_env *env, size_t *len)
{
	struct call call = { .args = rq->json, .env = env, .session = env->session, .data = json_object() };
	json_t *reply;
	char *text;

	run_call(rq, &call);
	reply = make_reply(rq, &call);
	json_decref(call.data);
	*len = json_dumpb(reply, NULL, 0, JSON_COMPACT);
	text = *len && !FT_FAULT("command/reply") ? malloc(*len + 1) : NULL;
	if (text) {
		json_dumpb(reply, text, *len, JSON_COMPACT);
		text[(*len)++] = '\n';
	}
	json_decref(reply);
	return text;
}
