/* SPDX-License-Identifier: MIT */
/* primary.c - a primary's life, its regions, and the operator's calls.  What its epoch thread does is in protect.c. */
#include "primary.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "log.h"
#include "thread.h"

/* ---- life ---- */

int primary_create(struct ft_session *s, struct ft_error *err)
{
	struct primary *p = FT_FAULT("primary/create") ? NULL : calloc(1, sizeof(*p));

	if (!p)
		return err_set(err, -ENOMEM, "no memory for a session");
	p->s = s;
	s->primary = p;
	pthread_mutex_init(&p->release.lock, NULL);
	p->regions_wanted = 1;
	queue_init(&p->free_slabs);
	queue_init(&p->to_ship);
	p->side_work.kind = WORK_SIDE;
	s->generation = 1; /* with a state file that is found when it is claimed */
	if (FT_FAULT("primary/random") || getrandom(p->session_id, sizeof(p->session_id), 0) != sizeof(p->session_id))
		return err_set(err, -EIO, "the kernel gave no random number for the session");
	p->plan = FT_FAULT("primary/plan") ? NULL : malloc(sizeof(*p->plan));
	return p->plan ? 0 : err_set(err, -ENOMEM, "no memory for a session");
}

static int make_slabs(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	struct pool_options opt = { .cap_bytes = cfg->staging_bytes,
				    .huge_pages = cfg->huge_pages,
				    .lock = cfg->lock_memory };
	int r = pool_create(&p->pool, &opt, err);

	if (r)
		return r;
	p->nr_slabs = (uint32_t)(cfg->staging_bytes / SLAB_BYTES); /* at least two, see options.c */
	p->staging_bytes = p->nr_slabs * SLAB_BYTES;
	/* in one piece, so that a transport is told of all of it at once */
	p->staging = pool_alloc(p->pool, p->staging_bytes, SLAB_ALIGN);
	p->slab = FT_FAULT("primary/staging") ? NULL : calloc(p->nr_slabs, sizeof(*p->slab));
	p->slab_work = calloc(p->nr_slabs, sizeof(*p->slab_work));
	if (!p->staging || !p->slab || !p->slab_work)
		return err_set(err, -ENOMEM, "no memory for staging: %llu octets (staging-bytes)",
			       (unsigned long long)p->staging_bytes);
	for (uint32_t i = 0; i < p->nr_slabs; i++) {
		if (slab_create(&p->slab[i], p->staging + i * SLAB_BYTES))
			return err_set(err, -ENOMEM, "no memory for staging");
		p->slab_work[i] = (struct work){ .kind = WORK_SLAB, .slab = p->slab[i] };
		queue_put(&p->free_slabs, &p->slab_work[i].node);
	}
	return 0;
}

static int make_jobs(struct primary *p, const struct ft_config *cfg, struct ft_error *err)
{
	p->nr_jobs = cfg->placement == FT_PLACEMENT_SLAB && cfg->epochs_in_flight > EPOCH_JOBS_MIN
			     ? cfg->epochs_in_flight
			     : EPOCH_JOBS_MIN;
	for (unsigned i = 0; i < p->nr_jobs; i++) {
		struct epoch_job *job = &p->job[i];
		void *buf = FT_FAULT("primary/state") ? faultpoint_map(ENOMEM)
						      : mmap(NULL, cfg->state_max, PROT_READ | PROT_WRITE,
							     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (buf == MAP_FAILED)
			return err_sys(err, -errno, "no memory for a device state of %llu octets",
				       (unsigned long long)cfg->state_max);
		job->state = (struct ft_state_sink){ .buf = buf, .cap = cfg->state_max };
		job->work = (struct work){ .kind = WORK_COMMIT, .job = job };
	}
	return 0;
}

/* The other side's word counts also next time, when it may not be there. */
static int ask(struct primary *p, struct ft_error *err)
{
	struct ft_session *s = p->s;
	const struct statefile *now = &s->written.now;
	int r = ask_other_side(p, err);

	if (r == -EOWNERDEAD)
		written_note(s, SAYS_FENCED, now->generation, now->session, now->epoch);
	return r;
}

int primary_claim(struct ft_session *s, unsigned flags, struct ft_error *err)
{
	struct primary *p = s->primary;
	bool to_ask;
	int r = written_begin_primary(s, &to_ask, err);

	if (!r && to_ask && !(flags & FT_CLAIM_RUNNING))
		r = ask(p, err);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	s->generation = s->written.now.generation + 1;
	pthread_mutex_unlock(&s->lock);
	return written_set(s, SAYS_RUNNING, s->generation, p->session_id, 0, err);
}

int primary_start(struct ft_session *s, struct ft_error *err)
{
	struct tp_params params = link_params(&s->cfg, s->cfg.lanes + 1);
	struct primary *p = s->primary;
	int r = tp_check(s->peer_uri, &params, false, err);

	if (!r)
		r = make_slabs(p, &s->cfg, err);
	if (!r)
		r = make_jobs(p, &s->cfg, err);
	if (r)
		return r;
	p->capture = s->cfg.capture;
	if (p->capture != FT_CAPTURE_COPY && s->ops.write_hook &&
	    cow_create(&p->cow, &s->stats.metric[FT_METRIC_WRITE_FAULT]))
		return err_set(err, -ENOMEM, "no memory for capture by copy on write");
	r = copier_create(&p->copier, s->cfg.capture_threads, "ft-capture", err);
	if (!r)
		r = primary_acquire(s, err);
	if (r)
		return r;
	session_event(s, EV_START, NULL);
	r = thread_start(&p->thread, "ft-epoch", epoch_main, p);
	if (r) {
		session_event(s, EV_STOP, "the session could not be started");
		return err_sys(err, r, "cannot start a thread");
	}
	p->thread_made = true;
	return 0;
}

void primary_join(struct ft_session *s)
{
	struct primary *p = s->primary;

	if (p->thread_made)
		pthread_join(p->thread, NULL);
	p->thread_made = false;
	copier_destroy(&p->copier);
}

void primary_destroy(struct ft_session *s)
{
	struct primary *p = s->primary;

	if (!p)
		return;
	copier_destroy(&p->copier);
	for (uint32_t i = 0; p->slab && i < p->nr_slabs; i++)
		slab_destroy(p->slab[i]);
	for (unsigned i = 0; i < EPOCH_JOBS; i++)
		if (p->job[i].state.buf)
			munmap(p->job[i].state.buf, p->job[i].state.cap);
	if (p->staging)
		pool_free(p->pool, p->staging, p->staging_bytes);
	pool_destroy(p->pool);
	bitmap_destroy(p->dirty);
	ahead_destroy(p);
	resync_destroy(p);
	skip_end(p);
	cow_destroy(p->cow);
	queue_fini(&p->free_slabs);
	queue_fini(&p->to_ship);
	pthread_mutex_destroy(&p->release.lock);
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

void primary_link_status(struct ft_session *s, struct ft_status *out)
{
	struct primary *p = s->primary;
	struct link *link;

	pthread_mutex_lock(&s->lock);
	link = p->link;
	p->link_users += link != NULL;
	pthread_mutex_unlock(&s->lock);
	if (!link)
		return;
	link_status(link, out);
	pthread_mutex_lock(&s->lock);
	if (--p->link_users == 0 && !p->link)
		pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
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

/* ---- the guest's writers ---- */

void ft_session_write_begin(struct ft_session *s, uint32_t region, uint64_t first, uint64_t nr)
{
	/* what orders it before the guest's next step is the VMM's own resume */
	if (atomic_load_explicit(&s->write_hooked, memory_order_relaxed))
		cow_write(s->primary->cow, region, first, nr);
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

void ft_session_output(struct ft_session *s)
{
	if (s->role != FT_ROLE_PRIMARY || atomic_load_explicit(&s->primary->output_ns, memory_order_relaxed))
		return;
	pthread_mutex_lock(&s->lock);
	atomic_store(&s->primary->output_ns, now_ns());
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static int not_protected(struct ft_session *s, struct ft_error *err)
{
	struct ft_status st;

	ft_session_status(s, &st);
	return err_set(err, -ENOTCONN, "the machine is not protected now (state %s%s%.400s)", ft_state_name(st.state),
		       *st.reason ? ": " : "", st.reason);
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
	p->awaiting++;
	while (!r && p->acked < *epoch)
		r = primary_wait_locked(p, deadline);
	p->awaiting--;
	pthread_mutex_unlock(&s->lock);
	if (r == -ETIMEDOUT)
		return err_set(err, r, "epoch %llu was not acknowledged within %u ms", (unsigned long long)*epoch,
			       timeout_ms);
	return r ? not_protected(s, err) : 0;
}

static int guest_hold(struct ft_session *s, bool hold, uint32_t timeout_ms, struct ft_error *err)
{
	struct primary *p = s->primary;
	uint64_t deadline = deadline_in_ms(timeout_ms);
	int r = 0;

	if (s->role != FT_ROLE_PRIMARY)
		return err_set(err, -EINVAL, "this side is a secondary: its guest is not ours to stop or start");
	if (hold && session_state(s) != FT_STATE_PROTECTED)
		return not_protected(s, err);
	if (!hold && session_state(s) == FT_STATE_FENCED)
		return err_set(err, -EPERM, "the other side runs the machine: the guest stays stopped here");
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
