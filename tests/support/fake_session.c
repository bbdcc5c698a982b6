/* SPDX-License-Identifier: MIT */
/* fake_session.c - see fake_session.h. */
#include "fake_session.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "options.h"

static struct fake_session *enter(struct ft_session *s)
{
	struct fake_session *f = (struct fake_session *)s;

	if (atomic_load(&f->retired))
		atomic_fetch_add(&f->late_uses, 1);
	pthread_mutex_lock(&f->lock);
	return f;
}

static void leave(struct fake_session *f)
{
	pthread_mutex_unlock(&f->lock);
	if (atomic_load(&f->retired))
		atomic_fetch_add(&f->late_uses, 1);
}

static void get_status(struct ft_session *s, struct ft_status *out)
{
	struct fake_session *f = enter(s);

	*out = f->status;
	leave(f);
}

static void get_stats(struct ft_session *s, struct ft_stats *out)
{
	struct fake_session *f = enter(s);

	*out = f->stats;
	leave(f);
}

static int get_setting(struct ft_session *s, const char *name, char *buf, size_t size)
{
	struct fake_session *f = enter(s);
	int r = ft_config_get(&f->cfg, name, buf, size);

	leave(f);
	return r;
}

static int set_setting(struct ft_session *s, const char *name, const char *value, struct ft_error *err)
{
	struct fake_session *f = enter(s);
	int r = options_set_live(&f->cfg, name, value, err);

	leave(f);
	return r;
}

static int wait_for(struct ft_session *s, uint32_t mask, uint32_t timeout_ms)
{
	uint64_t deadline = deadline_in_ms(timeout_ms);
	struct fake_session *f = enter(s);
	int r = 0;

	while (!(mask & 1u << f->status.state) && r == 0)
		r = cond_wait_until(&f->changed, &f->lock, deadline);
	if (mask & 1u << f->status.state)
		r = (int)f->status.state;
	leave(f);
	return r;
}

static int checkpoint(struct ft_session *s, uint32_t timeout_ms, uint64_t *epoch, struct ft_error *err)
{
	uint64_t deadline = deadline_in_ms(timeout_ms);
	struct fake_session *f = enter(s);
	int r = 0;

	f->in_checkpoint++;
	pthread_cond_broadcast(&f->changed);
	while (f->hold_checkpoint && r == 0)
		r = cond_wait_until(&f->changed, &f->lock, deadline);
	f->in_checkpoint--;
	if (f->hold_checkpoint)
		r = err_set(err, -ETIMEDOUT, "epoch %u was not acknowledged", (unsigned)f->status.epoch_running);
	else if (f->status.state != FT_STATE_PROTECTED)
		r = err_set(err, -ENOTCONN, "not protected");
	else
		*epoch = f->status.epoch_running++;
	leave(f);
	return r;
}

static int pause_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err)
{
	struct fake_session *f = enter(s);

	(void)timeout_ms;
	(void)err;
	f->is_paused = f->status.guest_paused = true;
	leave(f);
	return 0;
}

static int resume_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err)
{
	struct fake_session *f = enter(s);

	(void)timeout_ms;
	(void)err;
	f->is_paused = f->status.guest_paused = false;
	leave(f);
	return 0;
}

static int failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err)
{
	static const int code[] = { 0, 0, -EINVAL, -ENODATA, -EADDRINUSE, -EBUSY, -EIO, -ESTALE };
	struct fake_session *f = enter(s);
	int r;

	f->was_forced = flags & FT_FAILOVER_FORCE;
	res->outcome = f->outcome;
	res->epoch = f->status.epoch_applied;
	res->stop_ns = 1000;
	res->load_ns = 2000000;
	res->total_ns = 2001000;
	r = code[f->outcome];
	if (r)
		err_set(err, r, "refused for the test's reason");
	leave(f);
	return r;
}

static void stop(struct ft_session *s)
{
	struct fake_session *f = enter(s);

	f->is_stopped = true;
	f->status.state = FT_STATE_IDLE;
	pthread_cond_broadcast(&f->changed);
	leave(f);
}

const struct control_ops fake_ops = {
	.status = get_status,
	.stats = get_stats,
	.get = get_setting,
	.set = set_setting,
	.wait = wait_for,
	.checkpoint = checkpoint,
	.pause_guest = pause_guest,
	.resume_guest = resume_guest,
	.failover = failover,
	.stop = stop,
};

void fake_init(struct fake_session *f, enum ft_role role, enum ft_state state)
{
	memset(f, 0, sizeof(*f));
	pthread_mutex_init(&f->lock, NULL);
	cond_init(&f->changed);
	ft_config_init(&f->cfg, role);
	f->cfg.peer = "192.0.2.7:7000";
	f->cfg.listen = "192.0.2.7:7000";
	f->status = (struct ft_status){ .role = role,
					.state = state,
					.is_protected = state == FT_STATE_PROTECTED,
					.name = "web1",
					.peer = "192.0.2.7:7000",
					.reason = "first epoch committed",
					.state_age_ns = UINT64_C(65000000000),
					.generation = 3,
					.epoch_running = 1002,
					.epoch_sent = 1001,
					.epoch_acked = 1000,
					.epoch_applied = 999,
					.interval_ms = 50,
					.regions = 2,
					.guest_bytes = UINT64_C(1) << 30,
					.memory_bytes = 16u << 20,
					.memory_cap_bytes = 256u << 20,
					.bottleneck = "interval",
					.transport = "tcp" };
	if (role == FT_ROLE_PRIMARY) {
		f->status.interval_now_ns = 50000000;
		memcpy(f->status.interval_mode, "fixed", 6);
		memcpy(f->status.interval_reason, "fixed", 6);
		memcpy(f->status.epoch_end, "interval", 9);
		memcpy(f->status.capture, "copy", 5);
	}
	for (unsigned i = 0; i < FT_METRIC_COUNT; i++)
		f->stats.dist[i] = (struct ft_dist){
			.count = 1000, .min = 1000 + i, .mean = 2000.5, .p50 = 2000, .p99 = 9000, .max = 10000
		};
	for (unsigned i = 0; i < FT_COUNTER_COUNT; i++)
		f->stats.counter[i] = 100 + i;
}

void fake_destroy(struct fake_session *f)
{
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
}

void fake_state(struct fake_session *f, enum ft_state state)
{
	pthread_mutex_lock(&f->lock);
	f->status.state = state;
	f->status.is_protected = state == FT_STATE_PROTECTED || state == FT_STATE_STANDBY;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

void fake_hold_checkpoint(struct fake_session *f, bool hold)
{
	pthread_mutex_lock(&f->lock);
	f->hold_checkpoint = hold;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

bool fake_await_checkpoint(struct fake_session *f)
{
	uint64_t deadline = deadline_in_ms(10000);
	bool there;

	pthread_mutex_lock(&f->lock);
	while (!f->in_checkpoint && cond_wait_until(&f->changed, &f->lock, deadline) == 0)
		;
	there = f->in_checkpoint;
	pthread_mutex_unlock(&f->lock);
	return there;
}

void fake_retire(struct fake_session *f)
{
	atomic_store(&f->retired, true);
}
