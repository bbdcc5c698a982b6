/* SPDX-License-Identifier: MIT */
/* machine_ops.c - what a session calls (struct ft_vmm_ops): of the primary, tracking, pause and state, output; of the
 * secondary, the comparison, loading, and the start of the guest.
 *
 * Owns nothing: the parts belong to the machine, see machine_private.h.  Runs on the session's threads, as struct ft_vmm_ops
 * says for each; is_chosen, is_paused and the estimate are the epoch thread's.  The guard stays armed through the pauses of
 * epochs, and is disarmed where the guest is to stand for good: held by the operator, or fenced. */
#include "machine_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "disk_journal.h"
#include "identity.h"
#include "launch.h"

#define ANNOUNCE_MS 1000
#define SETTLE_MS 2000 /* for what is left of the copy of the disks before the last pause of a full sync */
#define ESTIMATE_NS (5 * UTIL_NS_PER_MS) /* an estimate is good for so long, and for 20 times what it cost */

/* ---- ops: primary ------------------------------------------------------------------------------- */

/* One that has ended is known by its socket first, by its process a moment later. */
static int ready(void *user, struct ft_error *err)
{
	struct machine *m = user;

	if (qmp_pump(m->qmp) || !machine_is_alive(m))
		return fail(err, -EPIPE, "QEMU has ended, or closed its socket: there is nothing to protect");
	return 0;
}

static int track_start(void *user, struct ft_error *err)
{
	struct machine *m = user;
	int rc = 0;

	if (!m->is_chosen) {
		rc = devstate_choose(m->state, err);
		if (rc)
			return rc;
		m->is_chosen = true;
		machine_say(m, FT_LOG_INFO, "device state is taken by %s, pages are tracked by %s",
			    devstate_method_name(devstate_method(m->state)), tracker_method(m->tracker));
	}
	m->estimate_until_ns = 0;
	/* between its end and cont the images are inactive, and whatever writes one then (a block job, the monitor) makes QEMU 7.2 abort */
	if (m->mirrors && devstate_method(m->state) == DEVSTATE_MIGRATE)
		return fail(
			err, -ENOTSUP,
			"the device state is taken by \"migrate\", which makes QEMU let go of its disks; with disks "
			"only pipe and stopcont are possible");
	rc = m->mirrors ? mirrors_begin(m->mirrors, err) : 0;
	return rc ? rc : tracker_arm(m->tracker, err);
}

static void track_stop(void *user)
{
	tracker_disarm(((struct machine *)user)->tracker);
}

struct collection {
	struct ft_dirty *dirty;
	uint32_t region;
	int rc;
};

static void add_pages(void *user, uint64_t first, uint64_t nr)
{
	struct collection *c = user;
	int rc = ft_dirty_add(c->dirty, c->region, first, nr);

	if (rc)
		c->rc = rc;
}

static int collect_present(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;
	struct collection c = { dirty, m->region, 0 };
	int rc = tracker_present(m->ram_fd, m->ram_bytes, add_pages, &c, err);

	return rc ? rc : c.rc ? fail_sys(err, c.rc, "pages of the guest") : 0;
}

static int collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct machine *m = user;
	struct collection c = { dirty, m->region, 0 };
	int rc = tracker_collect(m->tracker, m->is_paused, add_pages, &c, err);

	m->estimate_until_ns = 0;
	return rc ? rc : c.rc ? fail_sys(err, c.rc, "pages of the guest") : 0;
}

/* Scanning costs 0.2 ms a GiB and more, so the last figure serves for a while. */
static uint64_t estimate_dirty(void *user)
{
	struct machine *m = user;
	uint64_t begin = util_now_ns(), cost;

	if (begin < m->estimate_until_ns)
		return m->estimate;
	m->estimate = tracker_estimate(m->tracker);
	cost = util_now_ns() - begin;
	m->estimate_until_ns = begin + (cost * 20 > ESTIMATE_NS ? cost * 20 : ESTIMATE_NS);
	return m->estimate;
}

/* QEMU's stop waits for the writes under way, and they must not wait for us. */
static int pause_disks(struct machine *m, struct ft_error *err)
{
	struct tap *tap = m->mirrors ? mirrors_tap(m->mirrors) : NULL;
	int rc = tap ? tap_settle(tap, util_deadline_ms(SETTLE_MS), err) : 0;

	if (tap && !rc)
		tap_pausing(tap, true);
	return rc;
}

static int pause_guest(void *user, struct ft_error *err)
{
	struct machine *m = user;
	enum devstate_method before = devstate_method(m->state);
	int rc = pause_disks(m, err);

	if (!rc)
		rc = devstate_pause(m->state, err);
	if (devstate_method(m->state) != before)
		machine_say(m, FT_LOG_WARN, "device state: %s failed, going on with %s", devstate_method_name(before),
			    devstate_method_name(devstate_method(m->state)));
	m->is_paused = !rc;
	return rc;
}

static void *sink_buffer(void *user, size_t want, size_t *cap)
{
	return ft_state_buffer(user, want, cap);
}

static void sink_advance(void *user, size_t len)
{
	ft_state_advance(user, len);
}

static int save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	struct machine *m = user;
	struct devstate_sink to = { sink_buffer, sink_advance, sink };

	return devstate_save(m->state, &to, err);
}

static int resume_guest(void *user, struct ft_error *err)
{
	struct machine *m = user;

	int rc;

	m->is_paused = false;
	rc = devstate_resume(m->state, err);
	if (m->mirrors)
		tap_pausing(mirrors_tap(m->mirrors), false);
	return rc;
}

/* While the operator holds the guest there is a file that says so: who attaches later leaves it stopped. */
static void mark_held(struct machine *m, bool held)
{
	char path[512];
	int fd;

	if (!m->has_run_dir)
		return;
	snprintf(path, sizeof(path), "%s/held", m->run_dir);
	if (held) {
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		fd_close(&fd);
	} else {
		unlink(path);
	}
}

bool machine_is_marked_held(struct machine *m)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/held", m->run_dir);
	return !m->has_run_dir || access(path, F_OK) == 0;
}

static int guest_hold(void *user, bool hold, struct ft_error *err)
{
	struct machine *m = user;
	int rc;

	if (m->mirrors && hold)
		tap_pausing(mirrors_tap(m->mirrors), true);
	rc = hold ? devstate_stop(m->state, err) : devstate_cont(m->state, err);
	if (m->mirrors && hold)
		tap_pausing(mirrors_tap(m->mirrors), false);
	if (rc)
		return rc;
	mark_held(m, hold);
	guard_arm(m->guard, !hold);
	return 0;
}

static void output_cut(void *user, uint64_t epoch)
{
	struct machine *m = user;

	consoles_cut(m->consoles, epoch);
	nics_cut(m->nics, epoch);
	if (m->mirrors)
		tap_cut(mirrors_tap(m->mirrors), epoch);
}

static void output_release(void *user, uint64_t epoch)
{
	struct machine *m = user;

	consoles_release(m->consoles, epoch);
	nics_release(m->nics, epoch);
	if (m->mirrors && epoch == UINT64_MAX)
		tap_off(mirrors_tap(m->mirrors));
	else if (m->mirrors)
		tap_acked(mirrors_tap(m->mirrors), epoch);
}

/* The guest runs elsewhere.  The process is stopped as a whole: with `pipe` QEMU is only blocked, and would let the guest run
 * the moment that we read or die. */
static void output_drop(void *user)
{
	struct machine *m = user;

	guard_arm(m->guard, false);
	if (syscall(SYS_pidfd_send_signal, m->pidfd, SIGSTOP, NULL, 0) && errno != ESRCH)
		machine_say(m, FT_LOG_ERROR, "fenced, but QEMU cannot be stopped: %s", strerror(errno));
	consoles_drop(m->consoles);
	nics_drop(m->nics);
	if (m->mirrors)
		tap_off(mirrors_tap(m->mirrors));
}

static int64_t side_read(void *user, uint64_t epoch, void *buf, size_t cap, struct ft_error *err)
{
	return tap_read(mirrors_tap(((struct machine *)user)->mirrors), epoch, buf, cap, err);
}

static uint64_t side_left(void *user)
{
	return tap_left(mirrors_tap(((struct machine *)user)->mirrors));
}

/* ---- ops: secondary ----------------------------------------------------------------------------- */

static int check_identity(void *user, const char *identity, struct ft_error *err)
{
	return identity_compare(identity, ((struct machine *)user)->identity, err);
}

/* QEMU ends when it cannot load; its last words say why. */
static void add_last_words(struct machine *m, struct ft_error *err)
{
	char words[200];
	size_t used = strlen(err->msg);

	launch_last_words(m->log, words, sizeof(words));
	if (words[0])
		snprintf(err->msg + used, sizeof(err->msg) - used, " (QEMU: %s)", words);
}

static int load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct machine *m = user;
	int rc = m->disk_standby ? disk_standby_finish(m->disk_standby, err) : 0;

	if (rc)
		return rc;
	rc = devstate_load(m->state, buf, len, err);
	if (rc)
		add_last_words(m, err);
	return rc;
}

static int side_begin(void *user, struct ft_error *err)
{
	return disk_standby_begin(((struct machine *)user)->disk_standby, err);
}

static int side_write(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err)
{
	(void)epoch; /* they come in order */
	return disk_standby_write(((struct machine *)user)->disk_standby, buf, len, err);
}

static int side_commit(void *user, uint64_t epoch, struct ft_error *err)
{
	return disk_standby_commit(((struct machine *)user)->disk_standby, epoch, err);
}

/* Switches learn where the guest is now: QEMU sends a frame from each card's address, and tells the guest to do so. */
static void announce(struct machine *m)
{
	struct ft_error err = { 0 };

	if (m->cmdline.nr_nics && qmp_call(m->qmp, "announce-self", -1, util_deadline_ms(ANNOUNCE_MS), NULL, &err,
					   "{s:i, s:i, s:i, s:i}", "initial", 20, "max", 500, "rounds", 6, "step", 80))
		machine_say(m, FT_LOG_WARN, "switches are not told where the guest is now: %s", err.msg);
}

static int activate(void *user, struct ft_error *err)
{
	struct machine *m = user;
	int rc;

	nics_plug(m->nics, true);
	rc = devstate_cont(m->state, err);
	if (rc) {
		nics_plug(m->nics, false);
		return rc;
	}
	m->was_started = true;
	guard_arm(m->guard, true);
	announce(m);
	return 0;
}

/* Without a standby that could take them the writes of the guest are not held: whatever comes next begins with a sync. */
static void follow_state(struct machine *m, const struct ft_event *event)
{
	struct tap *tap = mirrors_tap(m->mirrors);

	if (strstr(event->reason, JOURNAL_NO_BASE))
		tap_lost_base(tap);
	if (event->state != FT_STATE_SYNCING && event->state != FT_STATE_PROTECTED)
		tap_off(tap);
	if (event->state == FT_STATE_IDLE)
		atomic_store(&m->disks_unwanted, true);
}

static void on_event(void *user, const struct ft_event *event)
{
	struct machine *m = user;

	if (m->mirrors && event->type == FT_EVENT_STATE)
		follow_state(m, event);
	if (m->config.on_event)
		m->config.on_event(m->config.user, event);
}

#define OPS                                                                                                            \
	.struct_size = sizeof(struct ft_vmm_ops), .track_start = track_start, .track_stop = track_stop,                \
	.collect_present = collect_present, .collect_dirty = collect_dirty, .estimate_dirty = estimate_dirty,          \
	.pause = pause_guest, .save_state = save_state, .resume = resume_guest, .output_cut = output_cut,              \
	.output_release = output_release, .output_drop = output_drop, .check_identity = check_identity,                \
	.load_state = load_state, .activate = activate, .on_event = on_event, .guest_hold = guest_hold, .ready = ready

const struct ft_vmm_ops *machine_ops(const struct machine *m)
{
	static const struct ft_vmm_ops without = { OPS };
	static const struct ft_vmm_ops with_disks = {
		OPS,
		.side_read = side_read,
		.side_left = side_left,
		.side_begin = side_begin,
		.side_write = side_write,
		.side_commit = side_commit,
	};

	return m->mirrors ? &with_disks : &without;
}
