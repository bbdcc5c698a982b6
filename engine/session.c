/* SPDX-License-Identifier: MIT */
/* session.c - the public face of a session: open, regions, start, stop, status, settings; and the one setter of its state.
 * What a primary does is in primary.c, epoch.c, ship.c and answer.c; what a secondary does in secondary.c. */
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <urcu-bp.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"
#include "lease.h"
#include "log.h"
#include "options.h"
#include "thread.h"

/* ---- state ---- */

enum ft_state session_state(struct ft_session *s)
{
	enum ft_state state;

	pthread_mutex_lock(&s->lock);
	state = s->state;
	pthread_mutex_unlock(&s->lock);
	return state;
}

static void tell(struct ft_session *s, const struct ft_event *event)
{
	if (s->ops.on_event)
		s->ops.on_event(s->user, event);
}

static int transition(struct ft_session *s, enum ft_state from, bool any, enum state_event event, const char *reason)
{
	const struct state_change *change;
	struct ft_event told = { .type = FT_EVENT_STATE };
	char why[FT_ERROR_MAX] = "";

	pthread_mutex_lock(&s->event_lock);
	pthread_mutex_lock(&s->lock);
	told.old_state = s->state;
	change = any || s->state == from ? state_next(s->role, s->state, event) : NULL;
	if (change) {
		s->state = change->next;
		s->state_since_ns = now_ns();
		if (change->actions & ACT_MARK_STALE)
			s->image_stale = true;
		snprintf(s->reason, sizeof(s->reason), "%s", reason ? reason : "");
		memcpy(why, s->reason, sizeof(why));
		pthread_cond_broadcast(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
	if (!change) {
		pthread_mutex_unlock(&s->event_lock);
		return -1;
	}
	log_info("state", "%s: %s --%s--> %s: %s%s%s", s->name, ft_state_name(told.old_state), state_event_name(event),
		 ft_state_name(change->next), change->what, *why ? ": " : "", why);
	told.state = change->next;
	told.reason = why;
	told.epoch = atomic_load(&s->epoch_acked);
	tell(s, &told);
	pthread_mutex_unlock(&s->event_lock);
	return (int)change->actions;
}

int session_event(struct ft_session *s, enum state_event event, const char *reason)
{
	return transition(s, FT_STATE_IDLE, true, event, reason);
}

int session_event_from(struct ft_session *s, enum ft_state from, enum state_event event, const char *reason)
{
	return transition(s, from, false, event, reason);
}

void session_reason(struct ft_session *s, const char *reason)
{
	pthread_mutex_lock(&s->lock);
	snprintf(s->reason, sizeof(s->reason), "%s", reason);
	pthread_mutex_unlock(&s->lock);
}

void session_tell(struct ft_session *s, enum ft_event_type type, uint64_t epoch)
{
	struct ft_event event = {
		.type = type,
		.reason = "",
		.epoch = epoch,
		.sync_round = atomic_load(&s->sync_round),
		.sync_pages_done = atomic_load(&s->sync_done),
		.sync_pages_total = atomic_load(&s->sync_total),
	};

	event.state = event.old_state = session_state(s);
	tell(s, &event);
}

bool session_stopping(struct ft_session *s)
{
	bool stopping;

	pthread_mutex_lock(&s->lock);
	stopping = s->stopping;
	pthread_mutex_unlock(&s->lock);
	return stopping;
}

void session_config(struct ft_session *s, struct ft_config *out)
{
	pthread_mutex_lock(&s->lock);
	*out = s->cfg;
	pthread_mutex_unlock(&s->lock);
}

void session_sleep(struct ft_session *s, uint64_t deadline, const bool *wake)
{
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && !(wake && *wake))
		if (cond_wait_until(&s->cond, &s->lock, deadline) == -ETIMEDOUT)
			break;
	pthread_mutex_unlock(&s->lock);
}

/* ---- what callbacks may call ---- */

int ft_dirty_add(struct ft_dirty *dirty, uint32_t region, uint64_t first, uint64_t nr)
{
	const struct region *g;

	if (region >= dirty->regions->count)
		return -ERANGE;
	g = &dirty->regions->region[region];
	if (!g->base || first > g->nr_pages || nr > g->nr_pages - first)
		return -ERANGE;
	if (nr)
		bitmap_set_run(dirty->set, g->first_page + first, nr);
	return 0;
}

void *ft_state_buffer(struct ft_state_sink *sink, size_t want, size_t *cap)
{
	*cap = sink->cap - sink->len;
	return want > *cap ? NULL : sink->buf + sink->len;
}

void ft_state_advance(struct ft_state_sink *sink, size_t len)
{
	sink->len += len < sink->cap - sink->len ? len : sink->cap - sink->len;
}

int ft_state_write(struct ft_state_sink *sink, const void *buf, size_t len)
{
	size_t cap;
	void *to = ft_state_buffer(sink, len, &cap);

	if (!to)
		return -EFBIG;
	memcpy(to, buf, len);
	ft_state_advance(sink, len);
	return 0;
}

/* ---- open and close ---- */

static int check_ops(enum ft_role role, enum ft_capture capture, const struct ft_vmm_ops *ops, struct ft_error *err)
{
	if (role == FT_ROLE_PRIMARY &&
	    !(ops->track_start && ops->collect_dirty && ops->pause && ops->save_state && ops->resume))
		return err_set(err, -EINVAL,
			       "a primary needs track_start, collect_dirty, pause, save_state and resume");
	if (role == FT_ROLE_PRIMARY && !ops->side_read != !ops->side_left)
		return err_set(err, -EINVAL, "a primary's side stream needs side_read and side_left");
	if (role == FT_ROLE_PRIMARY && capture == FT_CAPTURE_COW && !ops->write_hook)
		return err_set(err, -ENOTSUP,
			       "capture: copy on write needs a VMM that tells its writes beforehand (write_hook)");
	if (role == FT_ROLE_SECONDARY && !(ops->load_state && ops->activate))
		return err_set(err, -EINVAL, "a secondary needs load_state and activate");
	if (role == FT_ROLE_SECONDARY &&
	    (!ops->side_begin != !ops->side_write || !ops->side_begin != !ops->side_commit))
		return err_set(err, -EINVAL, "a secondary's side stream needs side_begin, side_write and side_commit");
	return 0;
}

/* An embedder built against an older ft.h has a shorter struct; what it does not know is absent. */
static int copy_ops(struct ft_session *s, const struct ft_vmm_ops *ops, struct ft_error *err)
{
	size_t n = ops->struct_size < sizeof(s->ops) ? ops->struct_size : sizeof(s->ops);

	if (ops->struct_size < offsetof(struct ft_vmm_ops, guest_hold))
		return err_set(err, -EINVAL, "ops.struct_size is %zu; set it to sizeof(struct ft_vmm_ops)",
			       ops->struct_size);
	memcpy(&s->ops, ops, n);
	return check_ops(s->role, s->cfg.capture, &s->ops, err);
}

static char *keep(const char *text)
{
	return FT_FAULT("session/text") ? NULL : strdup(text ? text : "");
}

static int copy_config(struct ft_session *s, const struct ft_config *cfg, struct ft_error *err)
{
	/* an embedder built against an older ft.h has a shorter struct; what it does not know has its default */
	if (cfg->struct_size < offsetof(struct ft_config, rdma_chunk) || cfg->struct_size > sizeof(*cfg))
		return err_set(err, -EINVAL, "config.struct_size is %zu; use ft_config_init()", cfg->struct_size);
	ft_config_init(&s->cfg, cfg->role);
	memcpy(&s->cfg, cfg, cfg->struct_size);
	s->cfg.struct_size = sizeof(s->cfg);
	s->name = keep(cfg->name && *cfg->name ? cfg->name : "vm");
	s->peer_uri = keep(cfg->peer);
	s->listen_uri = keep(cfg->listen);
	s->identity = keep(cfg->identity);
	s->record_path = keep(cfg->record);
	s->state_path = keep(s->cfg.state_file);
	s->tls_dir = keep(s->cfg.tls_dir); /* an older struct has none */
	s->tls_psk_user = keep(s->cfg.tls_psk_user);
	s->tls_peer = keep(s->cfg.tls_peer);
	s->witness = keep(s->cfg.witness);
	if (!s->name || !s->peer_uri || !s->listen_uri || !s->identity || !s->record_path || !s->state_path ||
	    !s->tls_dir || !s->tls_psk_user || !s->tls_peer || !s->witness)
		return err_set(err, -ENOMEM, "no memory for a session");
	if (strlen(s->name) >= FT_NAME_MAX || !text_printable(s->name, strlen(s->name)))
		return err_set(err, -EINVAL, "name: at most %u printable ASCII characters", FT_NAME_MAX - 1);
	if (strlen(s->identity) >= FT_IDENTITY_MAX || !identity_printable(s->identity, strlen(s->identity)))
		return err_set(err, -EINVAL, "identity: at most %u printable ASCII characters, tabs and newlines",
			       FT_IDENTITY_MAX - 1);
	s->cfg.name = s->name;
	s->cfg.peer = s->peer_uri;
	s->cfg.listen = s->listen_uri;
	s->cfg.identity = s->identity;
	s->cfg.record = s->record_path;
	s->cfg.state_file = s->state_path;
	s->written.path = *s->state_path ? s->state_path : NULL;
	s->cfg.tls_dir = s->tls_dir;
	s->cfg.tls_psk_user = s->tls_psk_user;
	s->cfg.tls_peer = s->tls_peer;
	s->cfg.witness = s->witness;
	return options_check(&s->cfg, err);
}

static void session_free(struct ft_session *s)
{
	if (!s)
		return;
	lease_close(s->lease); /* its thread calls the primary */
	primary_destroy(s);
	secondary_destroy(s);
	recording_close(s->recording);
	region_table_free(s->regions);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	free(s->name);
	free(s->peer_uri);
	free(s->listen_uri);
	free(s->identity);
	free(s->record_path);
	free(s->state_path);
	free(s->tls_dir);
	free(s->tls_psk_user);
	free(s->tls_peer);
	free(s->witness);
	pthread_mutex_destroy(&s->event_lock);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->cond);
	free(s);
}

int ft_session_open(struct ft_session **out, const struct ft_config *cfg, const struct ft_vmm_ops *ops, void *user,
		    struct ft_error *err)
{
	struct ft_session *s;
	int r;

	*out = NULL;
	if (!cfg || !ops)
		return err_set(err, -EINVAL, "a session needs a configuration and the ops of a VMM");
	s = FT_FAULT("session/create") ? NULL : calloc(1, sizeof(*s));
	if (!s)
		return err_set(err, -ENOMEM, "no memory for a session");
	pthread_mutex_init(&s->event_lock, NULL);
	pthread_mutex_init(&s->lock, NULL);
	cond_init(&s->cond);
	stats_init(&s->stats);
	s->role = cfg->role;
	s->user = user;
	s->state_since_ns = now_ns();
	s->stop_fd = FT_FAULT("session/eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->regions = region_table_empty();
	r = s->stop_fd < 0 ? err_sys(err, -errno, "eventfd") : 0;
	if (!r && !s->regions)
		r = err_set(err, -ENOMEM, "no memory for a session");
	if (!r)
		r = copy_config(s, cfg, err);
	if (!r)
		r = copy_ops(s, ops, err);
	if (!r && *s->record_path)
		r = recording_create(&s->recording, s->record_path, s->cfg.record_payload, err);
	if (!r)
		r = s->role == FT_ROLE_PRIMARY ? primary_create(s, err) : secondary_create(s, err);
	if (r) {
		session_free(s);
		return r;
	}
	*out = s;
	return 0;
}

void ft_session_close(struct ft_session *s)
{
	if (!s)
		return;
	ft_session_stop(s);
	session_free(s);
}

/* ---- regions ---- */

/* Publish @next; when this returns no reader has the old table any more, and it is freed. */
static void publish_regions(struct ft_session *s, struct region_table *next)
{
	struct region_table *old = s->regions;

	rcu_set_pointer(&s->regions, next);
	pthread_mutex_unlock(&s->lock);
	if (s->role == FT_ROLE_PRIMARY) {
		primary_regions_changed(s);
		primary_wait_regions(s);
	}
	urcu_bp_synchronize_rcu();
	region_table_free(old);
}

int ft_session_add_region(struct ft_session *s, const char *name, void *base, uint64_t len, struct ft_error *err)
{
	struct region_table *next;
	struct ft_error scratch;
	int index;

	if (!err)
		err = &scratch;
	pthread_mutex_lock(&s->lock);
	index = (int)s->regions->count;
	if (s->started && s->role == FT_ROLE_SECONDARY) {
		pthread_mutex_unlock(&s->lock);
		return err_set(err, -EBUSY, "regions of a secondary are added before it is started");
	}
	next = region_table_add(s->regions, name, base, len, err);
	if (!next) {
		pthread_mutex_unlock(&s->lock);
		return err->code;
	}
	publish_regions(s, next);
	return index;
}

int ft_session_remove_region(struct ft_session *s, uint32_t region, struct ft_error *err)
{
	struct region_table *next;
	struct ft_error scratch;

	if (!err)
		err = &scratch;
	pthread_mutex_lock(&s->lock);
	if (s->started && s->role == FT_ROLE_SECONDARY) {
		pthread_mutex_unlock(&s->lock);
		return err_set(err, -EBUSY, "regions of a secondary cannot be removed while it runs");
	}
	next = region_table_without(s->regions, region, err);
	if (!next) {
		pthread_mutex_unlock(&s->lock);
		return err->code;
	}
	publish_regions(s, next);
	return 0;
}

/* ---- start and stop ---- */

static int claim(struct ft_session *s, unsigned flags, struct ft_error *err)
{
	int r;

	if (s->written.claimed)
		return 0;
	r = s->role == FT_ROLE_PRIMARY ? primary_claim(s, flags, err) : written_begin_secondary(s, err);
	if (!r && s->role == FT_ROLE_PRIMARY)
		r = primary_acquire(s, err);
	pthread_mutex_lock(&s->lock);
	s->written.claimed = r == 0;
	pthread_mutex_unlock(&s->lock);
	return r;
}

int ft_session_claim(struct ft_session *s, unsigned flags, struct ft_error *err)
{
	struct ft_error scratch = { 0 };

	if (s->role != FT_ROLE_PRIMARY)
		return err_set(err, -EINVAL, "a secondary's guest does not run before it is promoted");
	return claim(s, flags, err ? err : &scratch);
}

int ft_session_start(struct ft_session *s, struct ft_error *err)
{
	struct ft_error scratch = { 0 };
	bool again;
	int r;

	if (!err)
		err = &scratch;
	pthread_mutex_lock(&s->lock);
	again = s->started || s->stopped || s->stopping;
	if (!again)
		s->started = s->starting = true;
	pthread_mutex_unlock(&s->lock);
	if (again)
		return err_set(err, -EALREADY, "the session was started or stopped before");
	if (s->regions->total_bytes == 0)
		r = err_set(err, -EINVAL, "the machine has no memory: add a region before the start");
	else
		r = claim(s, 0, err);
	if (!r)
		r = s->role == FT_ROLE_PRIMARY ? primary_start(s, err) : secondary_start(s, err);
	pthread_mutex_lock(&s->lock);
	s->starting = false;
	if (r) {
		s->started = false;
		s->stopped = true; /* half made: it can only be closed */
	}
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	return r;
}

void ft_session_stop(struct ft_session *s)
{
	bool first;

	pthread_mutex_lock(&s->lock);
	while (s->starting)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	first = s->started && !s->stopping;
	s->stopping = true;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	if (first) {
		eventfd_write(s->stop_fd, 1);
		if (s->role == FT_ROLE_PRIMARY)
			primary_join(s);
		else
			secondary_join(s);
		pthread_mutex_lock(&s->lock);
		s->stopped = true;
		pthread_cond_broadcast(&s->cond);
		pthread_mutex_unlock(&s->lock);
		return;
	}
	pthread_mutex_lock(&s->lock);
	while (s->started && !s->stopped)
		cond_wait_until(&s->cond, &s->lock, DEADLINE_NEVER);
	pthread_mutex_unlock(&s->lock);
}

/* The transport that an address means: "rdma:HOST:PORT"; without a word in front it is tcp. */
static const char *transport_of(const char *uri)
{
	const char *rest = strncmp(uri, "fault(", 6) == 0 ? strstr(uri, ")/") : NULL;

	if (rest)
		uri = rest + 2;
	if (strncmp(uri, "rdma:", 5) == 0)
		return "rdma";
	return strncmp(uri, "loopback:", 9) == 0 ? "loopback" : "tcp";
}

int ft_session_address(struct ft_session *s, char *buf, size_t size)
{
	const char *address = s->role == FT_ROLE_SECONDARY ? secondary_address(s) : NULL;
	bool rdma = strcmp(transport_of(s->listen_uri), "rdma") == 0;

	if (!address)
		return -ENOTCONN;
	if (strncmp(address, "rdma:", 5) == 0)
		rdma = false; /* it is there already */
	return snprintf(buf, size, "%s%s", rdma ? "rdma:" : "", address) < (int)size ? 0 : -ENOSPC;
}

int ft_session_wait(struct ft_session *s, uint32_t mask, uint32_t timeout_ms)
{
	uint64_t deadline = deadline_in_ms(timeout_ms);
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (!(mask & (1u << s->state)) && r != -ETIMEDOUT)
		r = cond_wait_until(&s->cond, &s->lock, deadline);
	r = mask & (1u << s->state) ? (int)s->state : -ETIMEDOUT;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* ---- settings ---- */

int ft_session_set(struct ft_session *s, const char *name, const char *value, struct ft_error *err)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = options_set_live(&s->cfg, name, value, err);
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
	if (!r)
		log_info("session", "%s: %s is now %s", s->name, name, value);
	return r;
}

int ft_session_get(struct ft_session *s, const char *name, char *buf, size_t size)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = ft_config_get(&s->cfg, name, buf, size);
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* ---- failover ---- */

int ft_session_failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res, struct ft_error *err)
{
	memset(res, 0, sizeof(*res));
	if (s->role != FT_ROLE_SECONDARY) {
		res->outcome = FT_FAILOVER_NOT_SECONDARY;
		return err_set(err, -EINVAL, "this side is the primary; failover is asked of the secondary");
	}
	return secondary_failover(s, flags, res, err);
}

/* ---- status ---- */

static void read_status(struct ft_session *s, struct ft_status *out)
{
	const struct region_table *regions;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&s->lock);
	out->role = s->role;
	out->state = s->state;
	out->state_age_ns = now_ns() - s->state_since_ns;
	out->generation = s->generation;
	out->interval_ms = s->cfg.interval_ms;
	memcpy(out->reason, s->reason, sizeof(out->reason));
	memcpy(out->peer, s->peer, sizeof(out->peer));
	written_status(s, out);
	pthread_mutex_unlock(&s->lock);
	snprintf(out->name, sizeof(out->name), "%s", s->name);
	out->is_protected = out->state == FT_STATE_PROTECTED || out->state == FT_STATE_STANDBY;
	out->epoch_running = atomic_load(&s->epoch_running);
	out->epoch_sent = atomic_load(&s->epoch_sent);
	out->epoch_acked = atomic_load(&s->epoch_acked);
	out->epoch_applied = atomic_load(&s->epoch_applied);
	out->sync_round = atomic_load(&s->sync_round);
	out->sync_pages_done = atomic_load(&s->sync_done);
	out->sync_pages_total = atomic_load(&s->sync_total);
	out->guest_paused = atomic_load(&s->guest_paused);
	urcu_bp_read_lock();
	regions = rcu_dereference(s->regions);
	out->guest_bytes = regions->total_bytes;
	for (uint32_t i = 0; i < regions->count; i++)
		out->regions += regions->region[i].base != NULL;
	urcu_bp_read_unlock();
	snprintf(out->transport, sizeof(out->transport), "%s",
		 transport_of(s->role == FT_ROLE_PRIMARY ? s->peer_uri : s->listen_uri));
	if (s->role == FT_ROLE_PRIMARY) {
		primary_memory(s, &out->memory_bytes, &out->memory_cap_bytes);
		primary_link_status(s, out);
		primary_pace_status(s, out);
		primary_capture_status(s, out);
		primary_skip_status(s, out);
	} else {
		secondary_memory(s, &out->memory_bytes, &out->memory_cap_bytes);
		secondary_link_status(s, out);
	}
	session_lease_status(s, out);
	snprintf(out->bottleneck, sizeof(out->bottleneck), "%s", stats_bottleneck(&s->stats));
}

void ft_session_status_sized(struct ft_session *s, struct ft_status *out, size_t size)
{
	struct ft_status all;

	read_status(s, &all);
	memset(out, 0, size);
	memcpy(out, &all, size < sizeof(all) ? size : sizeof(all));
}

void ft_session_stats(struct ft_session *s, struct ft_stats *out)
{
	stats_read(&s->stats, out);
}
