/* SPDX-License-Identifier: MIT */
/* ops.c - struct ft_vmm_ops of the sim: what libft calls, on its threads.
 * Dirty pages come from track.c, the device state is the vCPUs' registers, output goes through libft's own queue.  Each op may be told to
 * be slow or to fail (sim_delay_op, sim_fail_op). */
#include "sim.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "guest.h"
#include "say.h"
#include "sim_private.h"

#define STATE_MAGIC UINT64_C(0x73696d2d73746174)
#define FILL_STEP UINT64_C(0x9e3779b97f4a7c15)

struct state_head {
	uint64_t magic, total_bytes, serial, seed, nr_cpus;
	uint64_t has_checksum, checksum; /* of the memory */
	uint64_t side_key, side_bytes;
	uint64_t sum; /* of this struct with sum 0, and of the vCPUs' registers behind it */
};

/* ---- tracking, pause, resume ---- */

int sim_op_enter(struct sim *s, enum sim_op op, struct ft_error *err)
{
	uint64_t call, delay_ns;
	bool fail;

	pthread_mutex_lock(&s->lock);
	call = ++s->fault[op].calls;
	delay_ns = s->fault[op].delay_ns;
	fail = s->fault[op].times && call >= s->fault[op].at;
	if (fail && s->fault[op].times != UINT64_MAX)
		s->fault[op].times--;
	pthread_mutex_unlock(&s->lock);
	if (delay_ns)
		sleep_ns(delay_ns);
	return fail ? say(err, -EIO, "sim: %s was made to fail at call %llu", sim_op_name(op), (unsigned long long)call)
		    : 0;
}

static int drop_run(void *user, uint64_t first, uint64_t nr)
{
	(void)user, (void)first, (void)nr;
	return 0;
}

static int op_ready(void *user, struct ft_error *err)
{
	return sim_op_enter(user, SIM_OP_READY, err);
}

static int op_track_start(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = sim_op_enter(s, SIM_OP_TRACK_START, err);

	side_start(s);
	return ret ? ret : track_take(s->dirty, drop_run, NULL);
}

static void op_track_stop(void *user)
{
	(void)user; /* marking is always on: it is cheap, and the next track_start drops what came meanwhile */
}

struct report {
	struct sim *sim;
	struct ft_dirty *dirty;
	uint64_t lose_every;
};

static int report_pages(struct report *rep, uint32_t region, uint64_t first, uint64_t nr)
{
	struct sim *s = rep->sim;

	if (!rep->lose_every)
		return ft_dirty_add(rep->dirty, region, first, nr);
	for (uint64_t i = 0; i < nr; i++) {
		int ret = 0;

		if (++s->reported % rep->lose_every == 0)
			atomic_fetch_add(&s->lost, 1);
		else
			ret = ft_dirty_add(rep->dirty, region, first + i, 1);
		if (ret)
			return ret;
	}
	return 0;
}

/* A run of the tracking's page space may go over the border of two regions. */
static int report_run(void *user, uint64_t first, uint64_t nr)
{
	struct report *rep = user;
	struct sim *s = rep->sim;

	while (nr) {
		uint32_t r = s->cfg.nr_regions - 1;
		uint64_t n;
		int ret;

		while (first < s->track_first[r])
			r--;
		n = s->track_first[r + 1] - first;
		if (n > nr)
			n = nr;
		ret = report_pages(rep, r, first - s->track_first[r], n);
		if (ret)
			return ret;
		first += n;
		nr -= n;
	}
	return 0;
}

static int op_collect_present(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct sim *s = user;
	struct report rep = { .sim = s, .dirty = dirty };
	int ret = sim_op_enter(s, SIM_OP_COLLECT_PRESENT, err);

	if (ret)
		return ret;
	for (uint32_t r = 0; r < s->cfg.nr_regions && s->present_all; r++) {
		ret = ft_dirty_add(dirty, r, 0, s->cfg.region_bytes[r] / FT_PAGE_SIZE);
		if (ret)
			return say(err, ret, "sim: region %u was not taken: %s", r, strerror(-ret));
	}
	ret = s->present_all ? 0 : track_each(s->present, report_run, &rep);
	return ret ? say(err, ret, "sim: present pages were not taken: %s", strerror(-ret)) : 0;
}

static int op_collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	struct sim *s = user;
	struct report rep = { .sim = s, .dirty = dirty, .lose_every = atomic_load(&s->lose_every) };
	int ret = sim_op_enter(s, SIM_OP_COLLECT_DIRTY, err);

	if (ret)
		return ret;
	side_grow(s);
	ret = track_take(s->dirty, report_run, &rep);
	return ret ? say(err, ret, "sim: dirty pages were not taken: %s", strerror(-ret)) : 0;
}

static uint64_t op_estimate_dirty(void *user)
{
	struct sim *s = user;

	return track_count(s->dirty);
}

static int op_pause(void *user, struct ft_error *err)
{
	struct sim *s = user;

	cpus_pause(s);
	return sim_op_enter(s, SIM_OP_PAUSE, err);
}

static int op_resume(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = sim_op_enter(s, SIM_OP_RESUME, err);

	cpus_resume(s);
	return ret;
}

static int op_write_hook(void *user, bool on, struct ft_error *err)
{
	struct sim *s = user;
	int ret = 0;

	pthread_mutex_lock(&s->session_lock);
	atomic_store(&s->hook, on ? s->session : NULL);
	if (on && !s->session)
		ret = say(err, -ENODEV, "sim: no session to tell writes to");
	pthread_mutex_unlock(&s->session_lock);
	if (!on) { /* nobody is left inside */
		sim_stop(s);
		sim_continue(s);
	}
	return ret;
}

/* ---- device state: head, registers, then a filler that depends on the epoch and is checked as well ---- */

static uint64_t sum_words(const void *buf, size_t len)
{
	const uint64_t *w = buf;
	uint64_t sum = len;

	for (size_t i = 0; i < len / 8; i++)
		sum = mix64(sum ^ w[i]);
	return sum;
}

struct state_front {
	struct state_head head;
	struct guest_regs regs[SIM_CPUS_MAX];
};

static size_t front_bytes(const struct sim *s)
{
	return sizeof(struct state_head) + s->cfg.nr_cpus * sizeof(struct guest_regs);
}

static void make_front(struct sim *s, struct state_front *f)
{
	uint64_t want = atomic_load(&s->state_bytes) / 8 * 8;

	memset(f, 0, sizeof(*f));
	f->head.magic = STATE_MAGIC;
	f->head.total_bytes = want > front_bytes(s) ? want : front_bytes(s);
	f->head.serial = s->serial;
	f->head.seed = s->cfg.seed;
	f->head.nr_cpus = s->cfg.nr_cpus;
	f->head.has_checksum = s->cfg.checksum;
	f->head.checksum = s->cfg.checksum ? guest_checksum(s->guest) : 0;
	pthread_mutex_lock(&s->lock);
	f->head.side_key = s->side.key;
	f->head.side_bytes = s->side.made;
	pthread_mutex_unlock(&s->lock);
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		f->regs[i] = s->guest->cpu[i].regs;
	f->head.sum = sum_words(f, front_bytes(s));
}

static int op_save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	struct sim *s = user;
	struct state_front f;
	uint64_t left, word;
	int ret = sim_op_enter(s, SIM_OP_SAVE_STATE, err);

	if (ret)
		return ret;
	make_front(s, &f);
	ret = ft_state_write(sink, &f, front_bytes(s));
	if (ret)
		return say(err, ret, "sim: device state: %s", strerror(-ret));
	word = mix64(f.head.serial);
	for (left = f.head.total_bytes - front_bytes(s); left;) {
		size_t cap = 0, want = left < 65536 ? left : 65536;
		uint8_t *buf = ft_state_buffer(sink, want, &cap);

		if (!buf)
			return say(err, -EFBIG, "sim: device state of %llu octets is not taken",
				   (unsigned long long)f.head.total_bytes);
		for (size_t i = 0; i < want; i += 8, word += FILL_STEP)
			memcpy(buf + i, &word, 8);
		ft_state_advance(sink, want);
		left -= want;
	}
	return 0;
}

static int check_front(struct sim *s, struct state_front *f, const void *buf, size_t len, struct ft_error *err)
{
	uint64_t sum;

	if (len < front_bytes(s))
		return say(err, -EBADMSG, "sim: device state of %zu octets is too short", len);
	memcpy(f, buf, front_bytes(s));
	sum = f->head.sum;
	f->head.sum = 0;
	if (f->head.magic != STATE_MAGIC || f->head.seed != s->cfg.seed || f->head.nr_cpus != s->cfg.nr_cpus)
		return say(err, -EBADMSG, "sim: device state is not of this guest");
	if (f->head.total_bytes != len)
		return say(err, -EBADMSG, "sim: device state has %zu octets and says %llu", len,
			   (unsigned long long)f->head.total_bytes);
	if (sum_words(f, front_bytes(s)) != sum)
		return say(err, -EBADMSG, "sim: device state is damaged");
	return 0;
}

static int check_filler(const struct state_front *f, const uint8_t *at, size_t len, struct ft_error *err)
{
	uint64_t word = mix64(f->head.serial);

	for (size_t i = 0; i < len; i += 8, word += FILL_STEP)
		if (memcmp(at + i, &word, 8))
			return say(err, -EBADMSG, "sim: device state is damaged %zu octets behind its head", i);
	return 0;
}

static int op_load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct sim *s = user;
	struct state_front f = { 0 };
	int ret = sim_op_enter(s, SIM_OP_LOAD_STATE, err);

	if (!ret)
		ret = check_front(s, &f, buf, len, err);
	if (!ret)
		ret = check_filler(&f, (const uint8_t *)buf + front_bytes(s), len - front_bytes(s), err);
	if (ret)
		return ret;
	ret = side_check(s, f.head.side_key, f.head.side_bytes, err);
	if (ret)
		return ret;
	if (f.head.has_checksum && guest_checksum(s->guest) != f.head.checksum)
		return say(err, -EBADMSG, "sim: the memory is not that of its device state: checksums differ");
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++) {
		s->guest->cpu[i].regs = s->loaded[i] = f.regs[i];
		atomic_store(&s->runner[i].steps, f.regs[i].steps);
	}
	s->serial = s->loaded_serial = f.head.serial;
	s->has_loaded = s->present_all = true;
	return 0;
}

static int op_activate(void *user, struct ft_error *err)
{
	struct sim *s = user;
	int ret = sim_op_enter(s, SIM_OP_ACTIVATE, err);

	if (ret)
		return ret;
	pthread_mutex_lock(&s->lock);
	s->pages_per_epoch = 0; /* nobody cuts epochs here: it runs at its rate */
	pthread_mutex_unlock(&s->lock);
	return sim_start(s, err);
}

/* ---- output ---- */

size_t sim_emit(void *user, const void *buf, size_t len)
{
	struct sim *s = user;
	ssize_t n = (ssize_t)len;

	if (atomic_load(&s->client_blocked))
		return 0;
	if (s->cfg.client_fd >= 0)
		n = write(s->cfg.client_fd, buf, len);
	if (n <= 0)
		return 0;
	sim_client_feed(s->client, buf, (size_t)n);
	return (size_t)n;
}

static void op_output_cut(void *user, uint64_t epoch)
{
	struct sim *s = user;
	struct cut *c;

	pthread_mutex_lock(&s->lock);
	c = &s->cut[++s->serial % SIM_CUTS];
	c->serial = s->serial;
	c->epoch = epoch;
	c->side_key = s->side.key;
	c->side_made = s->side.made;
	s->side.cut = true;
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		c->regs[i] = s->guest->cpu[i].regs;
	pthread_mutex_unlock(&s->lock);
	if (s->output)
		ft_output_cut(s->output, epoch);
}

static void op_output_release(void *user, uint64_t epoch)
{
	struct sim *s = user;

	if (!s->output)
		return;
	ft_output_release(s->output, epoch);
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->work); /* who waits for room */
	pthread_mutex_unlock(&s->lock);
}

static void op_output_drop(void *user)
{
	struct sim *s = user;

	if (s->output)
		ft_output_drop(s->output);
}

static void op_on_event(void *user, const struct ft_event *event)
{
	struct sim *s = user;

	if (s->cfg.on_event)
		s->cfg.on_event(s->cfg.on_event_user, event);
}

#define OPS                                                                                                            \
	.struct_size = sizeof(struct ft_vmm_ops), .track_start = op_track_start, .track_stop = op_track_stop,          \
	.collect_present = op_collect_present, .collect_dirty = op_collect_dirty, .estimate_dirty = op_estimate_dirty, \
	.pause = op_pause, .save_state = op_save_state, .resume = op_resume, .output_cut = op_output_cut,              \
	.output_release = op_output_release, .output_drop = op_output_drop, .load_state = op_load_state,               \
	.activate = op_activate, .on_event = op_on_event, .write_hook = op_write_hook, .ready = op_ready

static const struct ft_vmm_ops ops = { OPS };
static const struct ft_vmm_ops ops_with_side = {
	OPS,
	.side_read = side_read,
	.side_left = side_left,
	.side_begin = side_begin,
	.side_write = side_write,
	.side_commit = side_commit,
};

const struct ft_vmm_ops *sim_ops(void)
{
	return &ops;
}

const struct ft_vmm_ops *sim_ops_of(const struct sim *s)
{
	return s->cfg.side_max_bytes ? &ops_with_side : &ops;
}
