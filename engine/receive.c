/* SPDX-License-Identifier: MIT */
/* receive.c - ft-receive: the records of one primary, until it is lost.  See secondary.h for what must hold. */
#include "secondary.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "log.h"
#include "thread.h"

struct reception {
	uint64_t heard_ns, beat_ns, echo_ns;
	uint64_t epoch_ns; /* first record of the epoch under way, 0 none */
	uint32_t code;     /* why the connection ends, if it is not for what came */
};

/* -- the side stream: the VMM takes it, or ends the connection -- */

static void work_begin(struct secondary *c)
{
	atomic_store(&c->working_ns, now_ns());
}

static int work_end(struct secondary *c, struct reception *rx, int r, struct ft_error *err)
{
	atomic_store(&c->working_ns, 0);
	rx->heard_ns = now_ns(); /* nobody listened meanwhile */
	if (r) {
		rx->code = FTW_CODE_UNUSABLE;
		err_prefix(err, "side stream");
	}
	return r;
}

static int side_begin(struct secondary *c, struct reception *rx, struct ft_error *err)
{
	struct ft_session *s = c->s;

	if (!s->ops.side_begin)
		return 0;
	atomic_store(&c->working_told, 0);
	work_begin(c);
	return work_end(c, rx, s->ops.side_begin(s->user, err), err);
}

static int side_write(struct secondary *c, struct reception *rx, uint64_t epoch, const struct side_data *d,
		      struct ft_error *err)
{
	struct ft_session *s = c->s;

	stats_count(&s->stats, FT_COUNTER_SIDE_BYTES, d->data_bytes);
	work_begin(c);
	return work_end(c, rx, s->ops.side_write(s->user, epoch, d->data, d->data_bytes, err), err);
}

static int side_commit(struct secondary *c, struct reception *rx, uint64_t epoch, struct ft_error *err)
{
	struct ft_session *s = c->s;

	if (!s->ops.side_commit)
		return 0;
	work_begin(c);
	return work_end(c, rx, s->ops.side_commit(s->user, epoch, err), err);
}

/* -- records -- */

static void note_commit(struct secondary *c, struct reception *rx, uint64_t epoch)
{
	struct ft_session *s = c->s;

	memcpy(c->image.session_id, c->session_id, sizeof(c->image.session_id));
	c->image.connection = c->connection;
	pthread_mutex_lock(&s->lock);
	c->complete = true;
	s->image_stale = false;
	pthread_mutex_unlock(&s->lock);
	atomic_store(&s->epoch_acked, epoch);
	atomic_store(&s->epoch_running, epoch + 1);
	session_event_from(s, FT_STATE_STANDBY_SYNCING, EV_FIRST_COMMIT, NULL);
	stats_count(&s->stats, FT_COUNTER_EPOCHS, 1);
	stats_add(&s->stats, FT_METRIC_RECEIVE, now_ns() - rx->epoch_ns);
	stats_phase(&s->stats, PHASE_RECEIVE, now_ns() - rx->epoch_ns);
	rx->epoch_ns = 0;
}

/* All of @epoch is here and checked out.  *@event: is the one behind it, too? */
static int commit(struct secondary *c, struct reception *rx, uint64_t epoch, enum standby_event *event,
		  struct ft_error *err)
{
	struct ft_session *s = c->s;
	struct ft_error next_err = { 0 };
	int r, next;

	if (!c->slab_epochs)
		tp_window_close(c->link->conn, FTW_WINDOW_IMAGE);
	r = side_commit(c, rx, epoch, err);
	if (r)
		return r;
	pthread_mutex_lock(&c->standby_lock);
	next = standby_commit(c->standby, event, &next_err);
	pthread_mutex_unlock(&c->standby_lock);
	note_commit(c, rx, epoch);
	r = link_send_mark(c->link, FTW_ACK, epoch, deadline_in_ms(SEND_MS), err);
	/* applied also when the ack cannot be sent: the epoch is committed */
	pthread_mutex_lock(&s->lock);
	c->apply_wanted++;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	if (r && !link_hear_first(c->link, r))
		return r;
	if (next)
		*err = next_err;
	return next;
}

/* ft-apply makes it, and says so: it may wait for a credit, and who receives may not (link.h). */
static void want_room(struct secondary *c)
{
	struct ft_session *s = c->s;

	pthread_mutex_lock(&s->lock);
	if (!c->room_wanted)
		pthread_cond_broadcast(&s->cond);
	c->room_wanted = true;
	pthread_mutex_unlock(&s->lock);
}

static int on_epoch_record(struct secondary *c, struct reception *rx, uint32_t lane, uint32_t type, const void *msg,
			   size_t len, struct ft_error *err)
{
	char name[24];
	enum standby_event event = STANDBY_NOTHING;
	struct side_data side;
	uint64_t epoch;
	bool room;
	int r;

	if (c->capabilities & FTW_CAP_RESYNC && !c->connection)
		return err_set(err, -EPROTO, "%s before base", record_name(type, name));
	if (!rx->epoch_ns)
		rx->epoch_ns = now_ns();
	pthread_mutex_lock(&c->standby_lock);
	r = standby_consume(c->standby, lane, msg, len, &event, err);
	side = standby_side(c->standby);
	epoch = standby_epoch_committed(c->standby) + 1;
	room = standby_needs_room(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	if (!r && event & STANDBY_SIDE)
		r = side_write(c, rx, epoch, &side, err);
	for (; !r && event & STANDBY_WHOLE; epoch++)
		r = commit(c, rx, epoch, &event, err);
	if (!r && room)
		want_room(c);
	return r;
}

/* Have we the image that the primary would go on from?  The epoch of it, or 0.  With standby_lock. */
static uint64_t held_of(struct secondary *c, const struct base *b)
{
	uint64_t epoch = standby_epoch_image(c->standby);

	return b->base_connection && b->base_connection == c->image.connection &&
			       memcmp(c->image.session_id, c->session_id, sizeof(c->session_id)) == 0 &&
			       epoch >= b->base_epoch
		       ? epoch
		       : 0;
}

/* Before anything of an epoch. */
static int on_base(struct secondary *c, struct cursor *body, struct ft_error *err)
{
	uint64_t held;
	struct base b;
	uint32_t seq;
	void *buf;
	int r = consume_base(body, &b, err);

	if (r)
		return r;
	if (!(c->capabilities & FTW_CAP_RESYNC))
		return err_set(err, -EPROTO, "base, and hello offered no resync");
	if (c->connection)
		return err_set(err, -EPROTO, "base: a second one");
	c->connection = b.connection;
	pthread_mutex_lock(&c->standby_lock);
	held = held_of(c, &b);
	if (held)
		standby_keep_image(c->standby);
	pthread_mutex_unlock(&c->standby_lock);
	buf = link_begin(c->link, 0, &seq);
	r = link_end(c->link, 0, create_base_ack(buf, seq, held), deadline_in_ms(SEND_MS), err);
	return r && link_hear_first(c->link, r) ? 0 : r;
}

static int on_sync_progress(struct secondary *c, const struct record_head *head, struct cursor *body,
			    struct ft_error *err)
{
	struct ft_session *s = c->s;
	struct sync_progress sp;
	int r = consume_sync_progress(body, &sp, err);

	if (r)
		return r;
	atomic_store(&s->sync_round, sp.round);
	atomic_store(&s->sync_done, sp.pages_done);
	atomic_store(&s->sync_total, sp.pages_total);
	session_tell(s, FT_EVENT_SYNC, head->epoch);
	return 0;
}

static int on_goodbye(struct secondary *c, const struct record_head *head, struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	if (head->type == FTW_BYE) {
		pthread_mutex_lock(&c->s->lock);
		c->bye = true;
		pthread_mutex_unlock(&c->s->lock);
	}
	return err_set(err, -ECONNRESET, "primary %s: %.*s", head->type == FTW_BYE ? "ended" : "gave up",
		       (int)why.reason_bytes, why.text);
}

/* What is optional and unknown may be anywhere; the standby knows the lanes of those that tell pages. */
static bool belongs_on_data_lane(uint32_t type)
{
	switch (type) {
	case FTW_NOTIFY_WRITE:
	case FTW_NOTIFY_SLAB:
	case FTW_NOTIFY_DELTA:
	case FTW_PAGE_CHECKS:
	case FTW_ZERO_PAGES:
	case FTW_DEVICE_STATE:
	case FTW_SIDE_DATA:
	case FTW_COMMIT:
		return true;
	default:
		return (type & FTW_OPTIONAL) && !record_type_find(type);
	}
}

static int on_record(struct secondary *c, struct reception *rx, uint32_t lane, const struct record_head *head,
		     struct cursor *body, const void *msg, size_t len, struct ft_error *err)
{
	struct heartbeat beat;
	char name[24];
	int r;

	if (lane && !belongs_on_data_lane(head->type))
		return err_set(err, -EPROTO, "%s on data lane %u", record_name(head->type, name), lane);
	switch (head->type) {
	case FTW_SIDE_DATA:
		if (!(c->capabilities & FTW_CAP_SIDE_STREAM))
			return err_set(err, -EPROTO, "side-data, and hello named no side stream");
		return on_epoch_record(c, rx, lane, head->type, msg, len, err);
	case FTW_NOTIFY_DELTA:
		if (!(c->capabilities & FTW_CAP_DELTA))
			return err_set(err, -EPROTO, "notify-delta, and hello named no deltas");
		return on_epoch_record(c, rx, lane, head->type, msg, len, err);
	case FTW_PAGE_CHECKS:
		if (!(c->capabilities & FTW_CAP_PAGE_CHECKS))
			return err_set(err, -EPROTO, "page-checks, and hello named none");
		return on_epoch_record(c, rx, lane, head->type, msg, len, err);
	case FTW_NOTIFY_WRITE:
	case FTW_NOTIFY_SLAB:
	case FTW_ZERO_PAGES:
	case FTW_DEVICE_STATE:
	case FTW_COMMIT:
		return on_epoch_record(c, rx, lane, head->type, msg, len, err);
	case FTW_BASE:
		return on_base(c, body, err);
	case FTW_HEARTBEAT:
		r = consume_heartbeat(body, &beat, err);
		rx->echo_ns = beat.time_ns;
		return r;
	case FTW_SYNC_PROGRESS:
		return on_sync_progress(c, head, body, err);
	case FTW_BYE:
	case FTW_ERROR:
		return on_goodbye(c, head, body, err);
	default:
		if ((head->type & FTW_OPTIONAL) && !record_type_find(head->type))
			return lane ? on_epoch_record(c, rx, lane, head->type, msg, len, err)
				    : 0; /* the commit counts it */
		return err_set(err, -EPROTO, "unexpected %s from the primary", record_name(head->type, name));
	}
}

static int silent(const struct secondary *c, uint64_t ns, struct ft_error *err)
{
	return err_set(err, -ETIMEDOUT, "no word from the primary for %llu ms (%u heartbeats of %u ms)",
		       (unsigned long long)(ns / NS_PER_MS), c->heartbeat_misses, c->heartbeat_ms);
}

/* A heartbeat that was left out is not missed: either something else is on its way, or the primary does not read. */
static int keep_time(struct secondary *c, struct reception *rx, bool quiet, struct ft_error *err)
{
	uint64_t now = now_ns(), beat = c->heartbeat_ms * NS_PER_MS, limit = beat * c->heartbeat_misses;

	if (now >= rx->beat_ns + beat) {
		uint64_t deadline = rx->heard_ns + limit > now + beat ? rx->heard_ns + limit : now + beat;
		int r = link_send_heartbeat(c->link, rx->echo_ns, deadline, err);

		if (r && r != -EAGAIN && !link_hear_first(c->link, r))
			return r == -ETIMEDOUT ? silent(c, now_ns() - rx->heard_ns, err) : r;
		rx->beat_ns = now;
		link_count(c->link, &c->s->stats);
	}
	if (quiet && now - rx->heard_ns > limit)
		return silent(c, now - rx->heard_ns, err);
	return 0;
}

static uint32_t code_of(const struct reception *rx, int r)
{
	if (rx->code != FTW_CODE_NONE)
		return rx->code;
	switch (r) {
	case -EPROTO:
	case -ESTALE:
		return FTW_CODE_PROTOCOL;
	case -EBADMSG:
		return FTW_CODE_DIGEST;
	case -E2BIG:
		return FTW_CODE_LIMIT;
	default:
		return FTW_CODE_NONE;
	}
}

/* Long writes come in without a message for a while: octets that arrive are a word too.  (Over rdma the device puts writes in place and
 * nobody sees them; but there they hold up nothing on lane 0, and heartbeats come beside them.) */
static bool octets_came(struct secondary *c, uint64_t *seen)
{
	struct tp_stats st;
	bool more;

	tp_stats(c->link->conn, &st);
	more = st.bytes_received != *seen;
	*seen = st.bytes_received;
	return more;
}

static int receive_until_lost(struct secondary *c, struct reception *rx, struct ft_error *err)
{
	uint64_t seen = 0;
	int r = side_begin(c, rx, err);

	while (!r) {
		struct record_head head;
		struct cursor body;
		const void *msg;
		uint32_t lane;
		size_t len;

		r = link_receive(c->link, &lane, &head, &body, &msg, &len, rx->beat_ns + c->heartbeat_ms * NS_PER_MS,
				 err);
		if (r == 0) {
			rx->heard_ns = now_ns();
			r = on_record(c, rx, lane, &head, &body, msg, len, err);
			if (!r)
				r = keep_time(c, rx, false, err);
		} else if (r == -ETIMEDOUT) {
			err_clear(err);
			if (octets_came(c, &seen))
				rx->heard_ns = now_ns();
			r = keep_time(c, rx, true, err);
		}
	}
	return r;
}

static void lost(struct secondary *c, const struct reception *rx, int r, struct ft_error *err)
{
	struct ft_session *s = c->s;
	uint32_t code = code_of(rx, r);
	bool bye;

	pthread_mutex_lock(&s->lock);
	bye = c->bye;
	pthread_mutex_unlock(&s->lock);
	if (code != FTW_CODE_NONE) {
		stats_count(&s->stats, FT_COUNTER_REFUSALS, 1);
		link_send_reason(c->link, FTW_ERROR, code, err->msg, deadline_in_ms(SEND_MS));
	}
	stats_count(&s->stats, FT_COUNTER_LOSSES, 1);
	log_warn("secondary", "%s: %s", s->name, err->msg);
	if (session_event_from(s, FT_STATE_STANDBY, bye ? EV_PEER_BYE : EV_PEER_LOST_HELD, err->msg) < 0)
		session_event_from(s, FT_STATE_STANDBY_SYNCING, bye ? EV_PEER_BYE : EV_PEER_LOST, err->msg);
}

void *receive_main(void *arg)
{
	struct secondary *c = arg;
	struct ft_session *s = c->s;
	struct ft_error err = { 0 };
	struct link *link;
	struct reception rx = { .heard_ns = now_ns() };
	int r = receive_until_lost(c, &rx, &err);

	lost(c, &rx, r, &err);
	tp_cancel(c->link->conn);
	pthread_mutex_lock(&s->lock);
	while (c->link_users)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	link = c->link;
	c->link = NULL; /* link_get() refuses from here on */
	s->peer[0] = '\0';
	pthread_mutex_unlock(&s->lock);
	link_count(link, &s->stats);
	link_destroy(link); /* only now nothing more is written into the receive image */
	pthread_mutex_lock(&s->lock);
	c->receiving = false;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}
