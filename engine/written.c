/* SPDX-License-Identifier: MIT */
/* written.c - see written.h. */
#include "written.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "err.h"
#include "log.h"
#include "session.h"

/* ---- writing ---- */

static int put_down(struct ft_session *s, const struct statefile *f, struct ft_error *err)
{
	struct ft_error scratch = { 0 };
	int r;

	if (!err)
		err = &scratch;
	r = statefile_write(s->written.path, f, err);
	if (r)
		log_error("state", "%s: %s", s->name, err->msg);
	pthread_mutex_lock(&s->lock);
	if (!r)
		s->written.now = *f;
	snprintf(s->written.error, sizeof(s->written.error), "%s", r ? err->msg : "");
	pthread_mutex_unlock(&s->lock);
	return r;
}

int written_set(struct ft_session *s, enum statefile_word word, uint64_t generation, const uint8_t session[16],
		uint64_t epoch, struct ft_error *err)
{
	struct statefile f = { .word = word, .role = s->role, .generation = generation, .epoch = epoch };

	if (!s->written.path)
		return 0;
	memcpy(f.session, session, sizeof(f.session));
	snprintf(f.name, sizeof(f.name), "%s", s->name);
	return put_down(s, &f, err);
}

void written_note(struct ft_session *s, enum statefile_word word, uint64_t generation, const uint8_t session[16],
		  uint64_t epoch)
{
	const struct statefile *now = &s->written.now; /* whoever may write may read */
	bool sure = !s->written.error[0]; /* after a write that failed the file is the old one or the new one */

	if (sure && now->word == word && now->generation == generation && memcmp(now->session, session, 16) == 0)
		return;
	written_set(s, word, generation, session, epoch, NULL); /* an error was told: the guest goes first */
}

/* ---- what the file says at the start ---- */

static int look(struct ft_session *s, struct ft_error *err)
{
	struct statefile f = { 0 };
	int r = s->written.path ? statefile_read(s->written.path, &f, err) : 0;

	if (r)
		return r;
	if (f.word != SAYS_NOTHING && strcmp(f.name, s->name) != 0)
		return err_set(err, -EBADMSG, "state file %s: it is of the machine '%s', this one is '%s'",
			       s->written.path, f.name, s->name);
	pthread_mutex_lock(&s->lock);
	s->written.now = f;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static int lost_role(struct ft_session *s, const char *what, struct ft_error *err)
{
	const struct statefile *now = &s->written.now;

	return err_set(err, -EOWNERDEAD,
		       "the machine may not run here: state file %s says '%s', generation %llu: %s; start it as a "
		       "secondary",
		       s->written.path, statefile_word_name(now->word), (unsigned long long)now->generation, what);
}

int written_begin_primary(struct ft_session *s, bool *ask, struct ft_error *err)
{
	int r = look(s, err);

	*ask = false;
	if (r)
		return r;
	switch (s->written.now.word) {
	case SAYS_NOTHING:
		return 0;
	case SAYS_RUNNING: /* it may have been more since, and could not be written */
	case SAYS_PROTECTED:
	case SAYS_STOPPED:
	case SAYS_PROMOTING:
		*ask = true;
		return 0;
	case SAYS_FENCED:
		return lost_role(s, "the other side took it over", err);
	case SAYS_JOINED:
	case SAYS_STANDBY:
	case SAYS_REFUSED:
		return lost_role(s, "this side is the standby of a machine that ran on the other one", err);
	case SAYS_COUNT:
		break;
	}
	return -EBADMSG;
}

/* What is here may be the only copy, or the newest. */
static int give_up(struct ft_session *s, struct ft_error *err)
{
	const struct statefile *now = &s->written.now;

	if (!s->cfg.join)
		return err_set(
			err, -EPERM,
			"state file %s says '%s', generation %llu: the machine ran here, and as a secondary this "
			"side gives up its memory and disks; if the other side runs it, say so: --join on",
			s->written.path, statefile_word_name(now->word), (unsigned long long)now->generation);
	return written_set(s, SAYS_JOINED, now->generation, now->session, now->epoch, err);
}

int written_begin_secondary(struct ft_session *s, struct ft_error *err)
{
	int r = look(s, err);

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	s->generation = s->written.now.generation;
	pthread_mutex_unlock(&s->lock);
	switch (s->written.now.word) {
	case SAYS_RUNNING:
	case SAYS_PROTECTED:
	case SAYS_STOPPED:
	case SAYS_PROMOTING:
		return give_up(s, err);
	case SAYS_NOTHING:
	case SAYS_FENCED:
	case SAYS_JOINED:
	case SAYS_STANDBY:
	case SAYS_REFUSED:
		return 0;
	case SAYS_COUNT:
		break;
	}
	return -EBADMSG;
}

/* ---- status ---- */

void written_status(struct ft_session *s, struct ft_status *out)
{
	const struct written *w = &s->written;

	if (!w->path)
		return;
	snprintf(out->state_file, sizeof(out->state_file), "%s", w->path);
	snprintf(out->state_file_says, sizeof(out->state_file_says), "%s", statefile_word_name(w->now.word));
	memcpy(out->state_file_error, w->error, sizeof(out->state_file_error));
}
