/* SPDX-License-Identifier: MIT */
/* control.h - inside of the control socket, in two parts that know nothing of each other's business:
 *   command.c   one line of JSON in, one line out; no socket, no thread (tests and fuzzing call it directly)
 *   control.c   the socket, its thread and its clients
 * and control_session.c, which binds both to ft_session_*.  The protocol is in ft-control(7). */
#ifndef FT_CONTROL_H
#define FT_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <ft/ft.h>

#define CONTROL_VERSION 1
#define CONTROL_LINE_MAX 65536u /* octets of one request, newline included */
#define CONTROL_CLIENTS_MAX 16u
#define CONTROL_TIMEOUT_MAX_MS 3600000u

/* What commands need of a session: the functions of ft.h, or a test's. */
struct control_ops {
	void (*status)(struct ft_session *s, struct ft_status *out);
	void (*stats)(struct ft_session *s, struct ft_stats *out);
	int (*get)(struct ft_session *s, const char *name, char *buf, size_t size);
	int (*set)(struct ft_session *s, const char *name, const char *value, struct ft_error *err);
	int (*wait)(struct ft_session *s, uint32_t mask, uint32_t timeout_ms);
	int (*checkpoint)(struct ft_session *s, uint32_t timeout_ms, uint64_t *epoch, struct ft_error *err);
	int (*pause_guest)(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err);
	int (*resume_guest)(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err);
	int (*failover)(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err);
	void (*stop)(struct ft_session *s);
};

/* What a command acts on. */
struct control_env {
	const struct control_ops *ops;
	struct ft_session *session; /* NULL: none */
	ft_control_command *extra;  /* or NULL */
	void *extra_user;
	bool (*is_revoked)(void *user); /* `wait` gives up when it says so; or NULL */
	void *user;
};

/* One request.  Always leaves something that control_answer() can answer, if only a refusal. */
struct control_request {
	struct json_t *json; /* the object, or NULL */
	const struct command *command; /* NULL: refused, or a command of the VMM's own */
	const char *code;    /* refused: why, in a word */
	struct ft_error err; /* refused: why, in a sentence */
};

void control_parse(struct control_request *rq, const char *line, size_t len);
void control_refuse(struct control_request *rq, const char *code, const char *sentence);
/* May it take long?  Then it must not run on the thread that serves others. */
bool control_is_long(const struct control_request *rq);
/* Does it act on the session (and not on the VMM's own business, or on nothing)? */
bool control_uses_session(const struct control_request *rq);
/* For the log: the command if it changes something, else NULL. */
const char *control_changes(const struct control_request *rq);
/* Runs it; returns the reply with its newline (free() it), NULL without memory.  *@len gets its length. */
char *control_answer(const struct control_request *rq, const struct control_env *env, size_t *len);
void control_request_free(struct control_request *rq);

/* control_open - ft_control_open() over other functions than ft_session_*. */
int control_open(struct ft_control **out, const char *path, const struct control_ops *ops, ft_control_command *extra,
		 void *user, struct ft_error *err);

#endif
