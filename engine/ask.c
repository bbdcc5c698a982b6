/* SPDX-License-Identifier: MIT */
/* ask.c - a primary that has run before asks the secondary, before its guest runs (ft_session_claim()): does the other side run the machine, or hold a
 * checkpoint that it is to go on from?  docs/protocol.md "A question".
 * On the caller's thread; there is no other of this session yet.  Each wait ends: see docs/waits.md. */
#include "primary.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "log.h"

#define ASK_AGAIN_MS 50

/* The answer's code into *@code and its sentence into @err; negative if there was none. */
static int receive_answer(struct primary *p, struct link *l, uint64_t deadline, uint32_t *code, struct ft_error *err)
{
	struct record_head head;
	struct cursor body;
	struct reason why;
	uint32_t lane;
	char name[24];
	int r = link_receive_greeting(l, p->s->stop_fd, &lane, &head, &body, deadline, err);

	if (r)
		return r == -ETIMEDOUT ? err_set(err, r, "no answer to the question") : r;
	if (head.type != FTW_REFUSE || lane != 0)
		return err_set(err, -EPROTO, "%s on lane %u instead of an answer to the question",
			       record_name(head.type, name), lane);
	r = consume_reason(&body, &why, err);
	if (r)
		return r;
	*code = why.code;
	err_set(err, -ECONNREFUSED, "%.*s", (int)why.reason_bytes, why.text);
	return 0;
}

static int ask_once(struct primary *p, const struct ft_config *cfg, uint32_t *code, struct ft_error *err)
{
	uint64_t deadline = deadline_in_ms(cfg->connect_timeout_ms);
	struct tp_params params = link_params(cfg, 2);
	struct tp_conn *conn;
	struct link *l;
	int r = tp_connect(&conn, p->s->peer_uri, &params, deadline, p->s->stop_fd, err);

	if (!r)
		r = link_create(&l, conn, p->s->recording, err);
	if (r)
		return r;
	r = send_question(p, l, cfg, deadline, err);
	if (!r)
		r = receive_answer(p, l, deadline, code, err);
	link_destroy(l);
	return r;
}

/* Who answers that another primary is there may not have noticed yet that our last run has ended. */
static int ask_until_answered(struct primary *p, const struct ft_config *cfg, uint32_t *code, struct ft_error *err)
{
	uint64_t deadline = deadline_in_ms(cfg->suspect_ms);
	int r;

	for (;;) {
		err_clear(err);
		r = ask_once(p, cfg, code, err);
		if (r == -ECANCELED || now_ns() >= deadline || (!r && *code != FTW_CODE_BUSY))
			return r;
		session_sleep(p->s, deadline_in_ms(ASK_AGAIN_MS), NULL);
	}
}

static int not_asked(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	if (cfg->on_loss == FT_ON_LOSS_CONTINUE || p->s->written.now.word != SAYS_PROTECTED) {
		log_warn("primary", "%s: the secondary could not be asked whether it runs the machine, going on: %s",
			 p->s->name, err->msg);
		err_clear(err);
		return 0;
	}
	err_prefix(
		err,
		"the machine was protected, the secondary could not be asked whether it runs it, and on-loss is hold");
	return err->code = -EHOSTUNREACH;
}

int ask_other_side(struct primary *p, struct ft_error *err)
{
	uint32_t code = FTW_CODE_NONE;
	struct ft_config cfg;
	int r;

	session_config(p->s, &cfg);
	r = ask_until_answered(p, &cfg, &code, err);
	if (r)
		return r == -ECANCELED ? r : not_asked(p, &cfg, err);
	switch (code) {
	case FTW_CODE_ACTIVE:
		err->code = -EOWNERDEAD;
		return err_prefix(err, "the machine may not run here: the secondary says");
	case FTW_CODE_HOLDS:
	case FTW_CODE_BUSY:
		err->code = -EBUSY;
		return err_prefix(err, "the machine may not run here yet: the secondary says");
	default:
		err_clear(err); /* it has nothing; what else keeps it from serving us, the hello will tell */
		return 0;
	}
}
