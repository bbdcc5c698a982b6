/* SPDX-License-Identifier: MIT */
/* primary.c - a primary's connections: hello, serve, loss, suspicion, going on alone, connecting again.  Runs on ft-epoch.
 *
 * Must hold
 *   - whatever happens to the connection, the guest runs, but in FENCED or when the operator stopped it (promise 8);
 *   - output that no ack covers is let out only by ALONE, IDLE or a new session that the standby accepted: see state.c. */
#include "primary.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "clock.h"
#include "err.h"
#include "log.h"
#include "thread.h"

#define SUSPECT_RETRY_MS 50 /* a secondary that is still there is found again before output was held for long */
#define BYE_MS 200	    /* how long an orderly end may wait for room in the socket */

/* ---- the end of a connection ---- */

/* True for the first cause; the others follow from it. */
static bool mark_lost(struct primary *p, const struct ft_error *why)
{
	struct ft_session *s = p->s;
	bool first;

	pthread_mutex_lock(&s->lock);
	first = !p->lost;
	p->lost = true;
	if (first)
		p->loss_error = *why;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return first;
}

void primary_lose(struct primary *p, uint32_t code, const struct ft_error *why)
{
	if (!mark_lost(p, why))
		return;
	log_warn("primary", "%s: %s", p->s->name, why->msg);
	if (code != FTW_CODE_NONE)
		link_send_reason(p->link, FTW_ERROR, code, why->msg, deadline_in_ms(BYE_MS));
	tp_cancel(p->link->conn);
}

static void say_goodbye(struct primary *p)
{
	struct ft_error why = { 0 };

	err_set(&why, -ECANCELED, "stopped");
	if (!mark_lost(p, &why))
		return;
	link_send_reason(p->link, FTW_BYE, FTW_CODE_STOPPED, "protection was stopped on the primary", deadline_in_ms(BYE_MS));
	tp_cancel(p->link->conn);
}

bool primary_lost(struct primary *p)
{
	bool lost;

	pthread_mutex_lock(&p->s->lock);
	lost = p->lost;
	pthread_mutex_unlock(&p->s->lock);
	return lost;
}

int primary_wait_locked(struct primary *p, uint64_t deadline)
{
	struct ft_session *s = p->s;

	if (p->lost)
		return -ENOTCONN;
	if (s->stopping)
		return -ECANCELED;
	if (cond_wait_until(&s->cond, &s->lock, deadline) == -ETIMEDOUT)
		return -ETIMEDOUT;
	return p->lost ? -ENOTCONN : s->stopping ? -ECANCELED : 0;
}

/* ---- output ---- */

static void release_all(struct primary *p)
{
	struct ft_session *s = p->s;

	p->output_held = false;
	if (s->ops.output_release)
		s->ops.output_release(s->user, UINT64_MAX);
}

static void stop_guest(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };

	if (s->ops.pause(s->user, &err))
		log_error("primary", "%s: fenced, but the guest does not stop: %s", s->name, err.msg);
	atomic_store(&s->guest_paused, true);
	if (s->ops.output_drop)
		s->ops.output_drop(s->user);
}

static void change(struct primary *p, enum state_event event, const char *reason)
{
	int actions = session_event(p->s, event, reason);

	if (actions < 0)
		return;
	if (actions & ACT_RELEASE_OUTPUT)
		release_all(p);
	if (actions & ACT_STOP_GUEST)
		stop_guest(p);
}

/* ---- hello ---- */

static int send_hello(struct primary *p, struct link *l, const struct ft_config *cfg, uint64_t deadline, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct hello h = {
		.version_min = FTW_VERSION_MIN,
		.version_max = FTW_VERSION_MAX,
		.placement = FTW_PLACEMENT_MIRROR,
		.mode = FTW_MODE_CHECKPOINT,
		.generation = s->generation,
		.epoch_committed = atomic_load(&s->epoch_acked),
		.nr_pages = p->regions->nr_pages,
		.state_max = cfg->state_max,
		.page_bytes = FT_PAGE_SIZE,
		.chunk_bytes = 1u << 20,
		.lanes = l->lanes - 1,
		.heartbeat_ms = cfg->heartbeat_ms,
		.heartbeat_misses = cfg->heartbeat_misses,
		.identity = s->identity,
		.identity_bytes = (uint32_t)strlen(s->identity),
		.name = s->name,
		.name_bytes = (uint32_t)strlen(s->name),
	};
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);

	memcpy(h.session, p->session_id, sizeof(h.session));
	return link_end(l, 0, create_hello(buf, seq, &h), deadline, err);
}

static int send_regions(struct primary *p, struct link *l, uint64_t deadline, struct ft_error *err)
{
	struct region_entry *e = calloc(p->regions->count, sizeof(*e));
	uint32_t count, seq;
	void *buf;

	if (!e)
		return err_set(err, -ENOMEM, "no memory for the region table");
	count = region_entries(p->regions, e);
	buf = link_begin(l, 0, &seq);
	seq = (uint32_t)create_regions(buf, seq, e, count);
	free(e);
	return link_end(l, 0, seq, deadline, err);
}

/* What the secondary answers instead of hello-ack.  -EOWNERDEAD: it runs the machine itself. */
static int refused(struct cursor *body, struct ft_error *err)
{
	struct reason why;
	int r = consume_reason(body, &why, err);

	if (r)
		return r;
	r = why.code == FTW_CODE_ACTIVE ? -EOWNERDEAD : -ECONNREFUSED;
	return err_set(err, r, "secondary refused: %.*s", (int)why.reason_bytes, why.text);
}

static int receive_ack(struct primary *p, struct link *l, uint64_t deadline, struct ft_error *err)
{
	struct record_head head;
	struct hello_ack ack;
	struct cursor body;
	const void *msg;
	uint32_t lane;
	size_t len;
	char name[24];
	int r = link_receive(l, &lane, &head, &body, &msg, &len, deadline, err);

	if (r == -ETIMEDOUT)
		return err_set(err, r, "no answer to hello");
	if (r)
		return r;
	if (head.type == FTW_REFUSE)
		return refused(&body, err);
	if (head.type != FTW_HELLO_ACK || lane != 0)
		return err_set(err, -EPROTO, "%s instead of an answer to hello", record_name(head.type, name));
	r = consume_hello_ack(&body, &ack, err);
	if (r)
		return r;
	if (ack.version < FTW_VERSION_MIN || ack.version > FTW_VERSION_MAX || ack.placement != FTW_PLACEMENT_MIRROR ||
	    ack.capabilities != 0 || ack.epoch_credits == 0)
		return err_set(err, -EPROTO, "hello-ack chose what was not offered (version %u, placement %u, credits %u)",
			       ack.version, ack.placement, ack.epoch_credits);
	p->epoch_credits = ack.epoch_credits;
	p->heartbeat_ms = ack.heartbeat_ms;
	p->heartbeat_misses = ack.heartbeat_misses;
	return 0;
}

static void use_regions(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->regions = s->regions;
	p->regions_used = p->regions_wanted;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static void leave_regions(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->regions = NULL;
	p->regions_used = 0;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static int fit_dirty(struct primary *p, struct ft_error *err)
{
	if (p->dirty && bitmap_pages(p->dirty) == p->regions->nr_pages)
		return 0;
	bitmap_destroy(p->dirty);
	p->dirty = NULL;
	if (bitmap_create(&p->dirty, p->regions->nr_pages))
		return err_set(err, -ENOMEM, "no memory for the dirty bitmap");
	return 0;
}

/* One attempt: connect, hello, regions, answer. On success p->link is set and the regions are in use. */
static int handshake(struct primary *p, uint64_t deadline, struct ft_error *err)
{
	struct ft_session *s = p->s;
	struct tp_params params = { 0 };
	struct tp_conn *conn;
	struct ft_config cfg;
	struct link *l = NULL;
	int r;

	session_config(s, &cfg);
	params.lanes = cfg.lanes + 1;
	r = tp_connect(&conn, s->peer_uri, &params, deadline, s->stop_fd, err);
	if (r)
		return err_prefix(err, "secondary %s", s->peer_uri);
	use_regions(p);
	r = link_create(&l, conn, s->recording, err);
	if (!r)
		r = fit_dirty(p, err);
	if (!r)
		r = send_hello(p, l, &cfg, deadline, err);
	if (!r)
		r = send_regions(p, l, deadline, err);
	if (!r)
		r = receive_ack(p, l, deadline, err);
	if (r) {
		link_destroy(l);
		leave_regions(p);
		err_prefix(err, "secondary %s", s->peer_uri);
		return r;
	}
	pthread_mutex_lock(&s->lock);
	p->link = l;
	snprintf(s->peer, sizeof(s->peer), "%s", tp_peer(conn));
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* ---- one connection ---- */

static void reset_connection(struct primary *p)
{
	struct ft_session *s = p->s;

	pthread_mutex_lock(&s->lock);
	p->lost = false;
	err_clear(&p->loss_error);
	p->acked = p->applied = p->sent = 0;
	p->cut_now = false;
	for (unsigned i = 0; i < EPOCH_JOBS; i++)
		p->job[i].busy = false;
	pthread_mutex_unlock(&s->lock);
	p->next_epoch = 1;
	p->paused_ns = p->resumed_ns = now_ns();
	atomic_store(&s->epoch_running, 1);
	atomic_store(&s->epoch_sent, 0);
	atomic_store(&s->epoch_acked, 0);
	atomic_store(&s->epoch_applied, 0);
}

static int wait_first_ack(struct primary *p)
{
	struct ft_session *s = p->s;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (p->acked < 1 && !r)
		r = primary_wait_locked(p, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* The operator's pause: an epoch is cut, then the guest stays where it is. */
static int hold_guest(struct primary *p, bool hold, struct ft_error *err)
{
	struct ft_session *s = p->s;
	int r;

	if (s->ops.guest_hold)
		r = s->ops.guest_hold(s->user, hold, err);
	else
		r = hold ? s->ops.pause(s->user, err) : s->ops.resume(s->user, err);
	if (!r)
		atomic_store(&s->guest_paused, hold);
	return r;
}

static void serve_hold(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	bool want, held;
	int r;

	pthread_mutex_lock(&s->lock);
	want = p->want_hold;
	held = p->held;
	p->poked = false;
	pthread_mutex_unlock(&s->lock);
	if (want == held)
		return;
	r = hold_guest(p, want, &err);
	if (r)
		log_error("primary", "%s: %s", s->name, err.msg);
	pthread_mutex_lock(&s->lock);
	p->hold_result = r;
	if (r)
		p->want_hold = held;
	else
		p->held = want;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static void epochs(struct primary *p)
{
	if (sync_run(p) || wait_first_ack(p))
		return;
	change(p, EV_FIRST_COMMIT, NULL);
	while (epoch_wait(p) == 0) {
		if (!atomic_load(&p->s->guest_paused) && epoch_run(p))
			return;
		serve_hold(p);
	}
}

/* What was not sent goes back to the free slabs; ft-ship has ended. */
static void reclaim(struct primary *p)
{
	struct cds_wfcq_node *node;

	while ((node = queue_get(&p->to_ship, 0))) {
		struct work *w = (struct work *)node;

		if (w->kind == WORK_SLAB)
			queue_put(&p->free_slabs, &w->node);
	}
}

static void serve(struct primary *p)
{
	struct ft_session *s = p->s;
	struct link *link = p->link;
	struct ft_error err = { 0 };
	bool shipping, answering;
	int r;

	r = thread_start(&p->ship_thread, "ft-ship", ship_main, p);
	shipping = r == 0;
	if (!r)
		r = thread_start(&p->answer_thread, "ft-answer", answer_main, p);
	answering = r == 0;
	if (r) {
		err_sys(&err, r, "cannot start a thread");
		primary_lose(p, FTW_CODE_MEMORY, &err);
	} else {
		epochs(p);
	}
	if (session_stopping(s))
		say_goodbye(p);
	if (shipping)
		pthread_join(p->ship_thread, NULL);
	if (answering)
		pthread_join(p->answer_thread, NULL);
	reclaim(p);
	stats_count(&s->stats, FT_COUNTER_DUPLICATES, atomic_load(&link->duplicates));
	pthread_mutex_lock(&s->lock);
	p->link = NULL;
	memcpy(p->loss, p->loss_error.msg, sizeof(p->loss));
	s->peer[0] = '\0';
	pthread_mutex_unlock(&s->lock);
	link_destroy(link);
	leave_regions(p);
}

static void stop_tracking(struct primary *p)
{
	if (p->tracking && p->s->ops.track_stop)
		p->s->ops.track_stop(p->s->user);
	p->tracking = false;
}

/* Nothing to do until @deadline but what the operator wants. */
static void idle(struct primary *p, uint64_t deadline)
{
	session_sleep(p->s, deadline, &p->poked);
	serve_hold(p);
}

static void after_loss(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_config cfg;

	stats_count(&s->stats, FT_COUNTER_LOSSES, 1);
	session_config(s, &cfg);
	p->suspect_until_ns = deadline_in_ms(cfg.suspect_ms);
	if (p->output_held) {
		change(p, EV_PEER_LOST_HELD, p->loss); /* ask the secondary again at once: nothing leaves until we know */
		return;
	}
	change(p, EV_PEER_LOST, p->loss);
	stop_tracking(p);
	idle(p, cfg.reconnect_ms ? deadline_in_ms(cfg.reconnect_ms) : DEADLINE_NEVER);
}

/* ---- between connections ---- */

/* How long an attempt may take: in SUSPECT no longer than until output is let go. */
static uint64_t attempt_deadline(struct primary *p, const struct ft_config *cfg)
{
	uint64_t deadline = deadline_in_ms(cfg->connect_timeout_ms);

	if (session_state(p->s) == FT_STATE_SUSPECT && cfg->on_loss == FT_ON_LOSS_CONTINUE && p->suspect_until_ns < deadline)
		return p->suspect_until_ns;
	return deadline;
}

static void wait_for_next_attempt(struct primary *p, const struct ft_error *why)
{
	struct ft_session *s = p->s;
	char reason[2 * FT_ERROR_MAX];
	struct ft_config cfg;
	uint64_t until;

	session_config(s, &cfg);
	snprintf(reason, sizeof(reason), "%s%s%s", p->loss, *p->loss ? "; tried again: " : "", why->msg);
	reason[FT_ERROR_MAX - 1] = '\0';
	if (session_state(s) == FT_STATE_SUSPECT) {
		if (cfg.on_loss == FT_ON_LOSS_CONTINUE && now_ns() >= p->suspect_until_ns) {
			change(p, EV_SUSPECT_OVER, reason);
			stop_tracking(p);
		} else {
			session_reason(s, reason);
		}
		until = deadline_in_ms(SUSPECT_RETRY_MS);
	} else {
		session_reason(s, reason);
		until = cfg.reconnect_ms ? deadline_in_ms(cfg.reconnect_ms) : DEADLINE_NEVER;
	}
	idle(p, until);
}

static void attempt(struct primary *p)
{
	struct ft_session *s = p->s;
	struct ft_error err = { 0 };
	struct ft_config cfg;
	int r;

	session_config(s, &cfg);
	r = handshake(p, attempt_deadline(p, &cfg), &err);
	if (r == -EOWNERDEAD) {
		change(p, EV_PEER_ACTIVE, err.msg);
		return;
	}
	if (r) {
		wait_for_next_attempt(p, &err);
		return;
	}
	if (*p->loss)
		stats_count(&s->stats, FT_COUNTER_RECONNECTS, 1);
	reset_connection(p);
	change(p, EV_HELLO_OK, NULL);
	serve(p);
	if (!session_stopping(s))
		after_loss(p);
}

static void *epoch_main(void *arg)
{
	struct primary *p = arg;
	struct ft_session *s = p->s;

	while (!session_stopping(s) && session_state(s) != FT_STATE_FENCED)
		attempt(p);
	stop_tracking(p);
	session_sleep(s, DEADLINE_NEVER, NULL); /* FENCED: until the end */
	change(p, EV_STOP, "stopped");
	return NULL;
}

/* ---- life ---- */

int primary_create(struct ft_session *s, struct ft_error *err)
{
	struct primary *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(err, -ENOMEM, "no memory for a session");
	p->s = s;
	s->primary = p;
	p->regions_wanted = 1;
	queue_init(&p->free_slabs);
	queue_init(&p->to_ship);
	s->generation = 1;
	if (getrandom(p->session_id, sizeof(p->session_id), 0) != sizeof(p->session_id))
		return err_sys(err, -errno, "getrandom");
	p->plan = malloc(sizeof(*p->plan));
	return p->plan ? 0 : err_set(err, -ENOMEM, "no memory for a session");
}

static int make_slabs(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	uint64_t slab_bytes = (uint64_t)SLAB_PAGES * FT_PAGE_SIZE;
	struct pool_options opt = { .cap_bytes = cfg->staging_bytes, .huge_pages = cfg->huge_pages, .lock = cfg->lock_memory };
	int r = pool_create(&p->pool, &opt, err);

	if (r)
		return r;
	p->nr_slabs = (uint32_t)(cfg->staging_bytes / slab_bytes);
	p->slab = calloc(p->nr_slabs, sizeof(*p->slab));
	p->slab_work = calloc(p->nr_slabs, sizeof(*p->slab_work));
	if (!p->slab || !p->slab_work)
		return err_set(err, -ENOMEM, "no memory for staging");
	for (uint32_t i = 0; i < p->nr_slabs; i++) {
		if (slab_create(&p->slab[i], p->pool)) {
			/* the arena keeps a little for itself: what fits is what there is, but one must */
			p->nr_slabs = i;
			break;
		}
		p->slab_work[i] = (struct work){ .kind = WORK_SLAB, .slab = p->slab[i] };
		queue_put(&p->free_slabs, &p->slab_work[i].node);
	}
	if (p->nr_slabs < 2)
		return err_set(err, -ENOMEM, "staging-bytes %llu is too small: two slabs of %llu octets are needed",
			       (unsigned long long)cfg->staging_bytes, (unsigned long long)slab_bytes);
	return 0;
}

static int make_jobs(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	for (unsigned i = 0; i < EPOCH_JOBS; i++) {
		struct epoch_job *job = &p->job[i];
		void *buf = mmap(NULL, cfg->state_max, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (buf == MAP_FAILED)
			return err_sys(err, -errno, "no memory for a device state of %llu octets", (unsigned long long)cfg->state_max);
		job->state = (struct ft_state_sink){ .buf = buf, .cap = cfg->state_max };
		job->work = (struct work){ .kind = WORK_COMMIT, .job = job };
	}
	return 0;
}

int primary_start(struct ft_session *s, struct ft_error *err)
{
	struct primary *p = s->primary;
	int r = make_slabs(p, &s->cfg, err);

	if (!r)
		r = make_jobs(p, &s->cfg, err);
	if (r)
		return r;
	session_event(s, EV_START, NULL);
	r = thread_start(&p->thread, "ft-epoch", epoch_main, p);
	if (r)
		return err_sys(err, r, "cannot start a thread");
	p->thread_made = true;
	return 0;
}

void primary_join(struct ft_session *s)
{
	struct primary *p = s->primary;

	if (p->thread_made)
		pthread_join(p->thread, NULL);
	p->thread_made = false;
}

void primary_destroy(struct ft_session *s)
{
	struct primary *p = s->primary;

	if (!p)
		return;
	for (uint32_t i = 0; p->slab && i < p->nr_slabs; i++)
		slab_destroy(p->slab[i], p->pool);
	for (unsigned i = 0; i < EPOCH_JOBS; i++)
		if (p->job[i].state.buf)
			munmap(p->job[i].state.buf, p->job[i].state.cap);
	pool_destroy(p->pool);
	bitmap_destroy(p->dirty);
	queue_fini(&p->free_slabs);
	queue_fini(&p->to_ship);
	free(p->slab);
	free(p->slab_work);
	free(p->plan);
	free(p);
	s->primary = NULL;
}

void primary_memory(struct ft_session *s, uint64_t *used, uint64_t *cap)
{
	struct pool_stats st = { 0 };

	if (s->primary->pool)
		pool_stats(s->primary->pool, &st);
	*used = st.used_bytes;
	*cap = st.cap_bytes;
}

/* ---- regions that change under way ---- */

void primary_regions_changed(struct ft_session *s)
{
	struct primary *p = s->primary;
	struct ft_error why = { 0 };
	bool serving;

	pthread_mutex_lock(&s->lock);
	p->regions_wanted++;
	serving = p->regions_used && p->link && !p->lost;
	if (serving) {
		p->lost = true;
		err_set(&why, -ESTALE, "the machine's regions changed: a new full sync is needed");
		p->loss_error = why;
		tp_cancel(p->link->conn);
	}
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

void primary_wait_regions(struct ft_session *s)
{
	struct primary *p = s->primary;

	pthread_mutex_lock(&s->lock);
	while (p->regions_used && p->regions_used != p->regions_wanted)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->lock);
}

/* ---- the operator's calls ---- */

void ft_session_cut(struct ft_session *s)
{
	if (s->role != FT_ROLE_PRIMARY)
		return;
	pthread_mutex_lock(&s->lock);
	if (!s->primary->cut_now) {
		s->primary->cut_now = true;
		pthread_cond_broadcast(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
}

static int not_protected(struct ft_session *s, struct ft_error *err)
{
	return err_set(err, -ENOTCONN, "the machine is not protected now (state %s%s%s)", ft_state_name(session_state(s)),
		       *s->reason ? ": " : "", s->reason);
}

int ft_session_checkpoint(struct ft_session *s, uint32_t timeout_ms, uint64_t *epoch, struct ft_error *err)
{
	struct primary *p = s->primary;
	uint64_t deadline = deadline_in_ms(timeout_ms);
	int r = 0;

	*epoch = 0;
	if (s->role != FT_ROLE_PRIMARY)
		return err_set(err, -EINVAL, "checkpoints are asked of the primary");
	if (session_state(s) != FT_STATE_PROTECTED)
		return not_protected(s, err);
	pthread_mutex_lock(&s->lock);
	*epoch = atomic_load(&s->epoch_running);
	p->cut_now = true;
	pthread_cond_broadcast(&s->cond);
	while (!r && p->acked < *epoch)
		r = primary_wait_locked(p, deadline);
	pthread_mutex_unlock(&s->lock);
	if (r == -ETIMEDOUT)
		return err_set(err, r, "epoch %llu was not acknowledged within %u ms", (unsigned long long)*epoch, timeout_ms);
	return r ? not_protected(s, err) : 0;
}

static int guest_hold(struct ft_session *s, bool hold, uint32_t timeout_ms, struct ft_error *err)
{
	struct primary *p = s->primary;
	uint64_t deadline = deadline_in_ms(timeout_ms);
	int r = 0;

	if (s->role != FT_ROLE_PRIMARY)
		return err_set(err, -EINVAL, "the guest of a secondary does not run");
	if (hold && session_state(s) != FT_STATE_PROTECTED)
		return not_protected(s, err);
	pthread_mutex_lock(&s->lock);
	p->want_hold = hold;
	p->poked = true;
	p->hold_result = 0;
	pthread_cond_broadcast(&s->cond);
	while (p->held != hold && !p->hold_result && !s->stopping && r != -ETIMEDOUT)
		r = cond_wait_until(&s->cond, &s->lock, deadline);
	r = p->held == hold ? 0 : p->hold_result ? p->hold_result : s->stopping ? -ECANCELED : -ETIMEDOUT;
	if (r)
		p->want_hold = p->held;
	pthread_mutex_unlock(&s->lock);
	if (!r)
		return 0;
	return err_set(err, r, "the guest was not %s within %u ms", hold ? "stopped" : "started", timeout_ms);
}

int ft_session_pause_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err)
{
	return guest_hold(s, true, timeout_ms, err);
}

int ft_session_resume_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err)
{
	return guest_hold(s, false, timeout_ms, err);
}
