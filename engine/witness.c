/* SPDX-License-Identifier: MIT */
/* witness.c - which store a text means, and how every store answers: see witness.h. */
#include "witness.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "err.h"

/* ---- texts ---- */

bool witness_is_none(const char *text)
{
	return !text || !*text || strcmp(text, "none") == 0;
}

/* The path of "file:PATH", or NULL. */
static const char *path_of(const char *text)
{
	return strncmp(text, "file:", 5) == 0 && text[5] ? text + 5 : NULL;
}

int witness_check(const char *text, struct ft_error *err)
{
	if (witness_is_none(text) || path_of(text))
		return 0;
	if (strncmp(text, "etcd:", 5) == 0)
		return err_set(err, -EINVAL,
			       "witness: etcd is not there yet; file:PATH on storage that both sides see is");
	return err_set(err, -EINVAL, "witness: '%.100s' is neither none nor file:PATH", text);
}

int witness_open(struct witness **out, const char *text, const struct witness_self *self, struct ft_error *err)
{
	*out = NULL;
	return witness_file_open(out, path_of(text), self, err);
}

void witness_close(struct witness *w)
{
	if (w)
		w->ops->close(w);
}

/* ---- answers ---- */

uint64_t witness_wait_ns(const struct witness_self *self, const struct witness_record *record)
{
	uint64_t lease = record->lease_ms > self->lease_ms ? record->lease_ms : self->lease_ms;

	return (lease + self->drift_ms) * NS_PER_MS;
}

/* The time is taken after the record was read: whatever renewal is in it was asked for before. */
static uint64_t silence(struct witness *w, const struct witness_record *record)
{
	uint64_t now = boot_now_ns();

	if (!w->seen_ns || w->seen.counter != record->counter || w->seen.generation != record->generation ||
	    strcmp(w->seen.holder, record->holder) != 0) {
		w->seen = *record;
		w->seen_ns = now;
	}
	return now - w->seen_ns;
}

static enum witness_answer may_take(const struct witness *w, const struct witness_question *q,
				    const struct witness_record *record, uint64_t silent_ns, struct ft_error *err)
{
	if (q->generation && q->generation != record->generation) {
		err_set(err, -ESTALE,
			"the witness has generation %" PRIu64 " and not %" PRIu64 ": %s went on without what is here",
			record->generation, q->generation, *record->holder ? record->holder : "who held it");
		return WITNESS_NO;
	}
	if (*record->holder && silent_ns < witness_wait_ns(&w->self, record)) {
		err_set(err, -EBUSY,
			"the witness says that %s holds the lease (generation %" PRIu64 "), silent for %" PRIu64
			" of %" PRIu64 " ms",
			record->holder, record->generation, silent_ns / NS_PER_MS,
			witness_wait_ns(&w->self, record) / NS_PER_MS);
		return WITNESS_NO;
	}
	return WITNESS_YES;
}

static enum witness_answer is_ours(const struct witness *w, const struct witness_record *record, struct ft_error *err)
{
	if (strcmp(record->holder, w->self.name) == 0)
		return WITNESS_YES;
	err_set(err, -EOWNERDEAD, "the witness says that %s holds the lease, of generation %" PRIu64,
		*record->holder ? record->holder : "nobody", record->generation);
	return WITNESS_NO;
}

static void change(const struct witness *w, enum witness_what what, struct witness_record *record)
{
	bool ours = strcmp(record->holder, w->self.name) == 0;

	if (what == WITNESS_RAISE || (what == WITNESS_TAKE && !ours))
		record->generation++;
	if (what == WITNESS_GIVE_BACK)
		record->holder[0] = '\0';
	else
		memcpy(record->holder, w->self.name, sizeof(record->holder));
	record->counter++;
	record->lease_ms = w->self.lease_ms;
}

enum witness_answer witness_judge(struct witness *w, const struct witness_question *q, struct witness_record *record,
				  struct witness_view *view, struct ft_error *err)
{
	enum witness_answer answer = WITNESS_YES;

	view->silent_ns = silence(w, record);
	switch (q->what) {
	case WITNESS_LOOK:
		break;
	case WITNESS_TAKE: /* again, when the first answer was lost: it is ours already */
		if (strcmp(record->holder, w->self.name) != 0)
			answer = may_take(w, q, record, view->silent_ns, err);
		break;
	case WITNESS_RENEW:
	case WITNESS_RAISE:
	case WITNESS_GIVE_BACK:
		answer = is_ours(w, record, err);
		break;
	}
	if (answer == WITNESS_YES && q->what != WITNESS_LOOK)
		change(w, q->what, record);
	view->record = *record;
	return answer;
}
