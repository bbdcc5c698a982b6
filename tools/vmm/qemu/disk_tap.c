/* SPDX-License-Identifier: MIT */
/* disk_tap.c - see disk_tap.h.
 *
 * What must hold, with the lock held:
 *  - Each block is dirty, or what the secondary lacks of it is in the queue, is on its way (sent), or is nothing.
 *  - In mode OFF queue and sent are empty.
 *  - `synced` has the blocks that were sent with no epoch of their own (full sync): dirty again unless the first epoch is acknowledged.
 *  - While blocks are read (`reading`) they are not dirty; a write to one makes it dirty, and `raced` is the first of those: what was read of the blocks
 *    before it counts.  (Without that a guest that writes all over its disk would let no read of a long run count.)
 *
 * Pace: when a full sync has been through all that was dirty, and yet more is left than may be held, the guest's writes come at half the rate at
 * which the copy gets on, so that less is left in each round.  A guest that writes as fast as the connection carries would never be protected else. */
#include "disk_tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define ENTRY_COST 96u                     /* what an entry takes beside its octets */
#define RUN_MAX (UINT64_C(1) << 30)        /* octets looked at in one step of the copy: zeros go at once */
#define PACE_MAX_NS (500 * UTIL_NS_PER_MS) /* that one write of the guest is held back */
#define STEP_MAX_NS                                                                                                    \
	(100 * UTIL_NS_PER_MS) /* from one read of the copy to the next: more is something else, as pages of memory */

enum mode { OFF, SYNC, EPOCHS };

struct entry {
	struct entry *next;
	uint64_t epoch; /* 0: of a full sync */
	uint64_t offset;
	uint32_t len;
	uint8_t disk, kind;
	uint8_t *octets; /* NULL: zeros, or sent */
};

struct list {
	struct entry *first, **end;
};

struct disk {
	uint64_t size, nr_blocks, nr_dirty;
	uint64_t *dirty, *synced; /* bitmaps */
	uint64_t next;            /* the copy goes on here */
};

struct tap {
	struct tap_config config;
	unsigned nr;
	struct disk disk[DISKS_MAX];
	uint8_t *buf; /* of one read */

	pthread_mutex_t lock; /* guards all that follows and the disks */
	pthread_cond_t moved; /* there is room, mode or pausing changed, a read is done */
	enum mode mode;
	bool pausing, settling, is_broken, asked;
	bool settled; /* the last pause of the full sync comes at once: whatever is written until then is queued */
	char why[256];
	struct list queue, sent;
	uint64_t held;
	uint64_t last_cut, first_cut; /* of this session; 0: none */
	size_t emitted;               /* octets of queue.first with its head that were given out */
	/* the copy */
	uint8_t name[DISK_NAME];
	bool has_base; /* an epoch of the copy was acknowledged */
	bool base_is_due, changes_only;
	bool is_copied; /* the full sync of this session was acknowledged with its first epoch */
	size_t base_emitted;
	bool is_reading;
	unsigned read_disk;
	uint64_t read_first, read_end, raced; /* blocks */
	/* the pace of this full sync */
	uint64_t to_pass, passed, read; /* octets: dirty when it began; looked at; of these not zero */
	uint64_t read_ns, step_ns;      /* how long that took; when the last read was done */
	uint64_t free_ns;               /* when the next write may be done */
};

/* ---- bitmaps ------------------------------------------------------------------------------------ */

static bool is_dirty(const struct disk *d, uint64_t block)
{
	return d->dirty[block / 64] >> block % 64 & 1;
}

static void set_dirty(struct disk *d, uint64_t block)
{
	d->nr_dirty += !is_dirty(d, block);
	d->dirty[block / 64] |= UINT64_C(1) << block % 64;
}

static void set_clean(struct disk *d, uint64_t block)
{
	d->nr_dirty -= is_dirty(d, block);
	d->dirty[block / 64] &= ~(UINT64_C(1) << block % 64);
}

static void set_range_dirty(struct disk *d, uint64_t offset, uint64_t len)
{
	for (uint64_t b = offset / TAP_BLOCK; b <= (offset + len - 1) / TAP_BLOCK; b++)
		set_dirty(d, b);
}

/* First dirty block from @from on, or nr_blocks. */
static uint64_t next_dirty(const struct disk *d, uint64_t from)
{
	uint64_t i = from / 64, word;

	if (from >= d->nr_blocks)
		return d->nr_blocks;
	word = d->dirty[i] & ~UINT64_C(0) << from % 64;
	while (!word) {
		if (++i * 64 >= d->nr_blocks)
			return d->nr_blocks;
		word = d->dirty[i];
	}
	return i * 64 + (unsigned)__builtin_ctzll(word);
}

static void set_all_dirty(struct disk *d)
{
	memset(d->dirty, 0, (d->nr_blocks + 63) / 64 * 8);
	memset(d->synced, 0, (d->nr_blocks + 63) / 64 * 8);
	for (uint64_t b = 0; b < d->nr_blocks; b++)
		d->dirty[b / 64] |= UINT64_C(1) << b % 64;
	d->nr_dirty = d->nr_blocks;
	d->next = 0;
}

static void synced_becomes_dirty(struct disk *d)
{
	uint64_t nr = 0;

	for (uint64_t i = 0; i < (d->nr_blocks + 63) / 64; i++) {
		d->dirty[i] |= d->synced[i];
		d->synced[i] = 0;
		nr += (unsigned)__builtin_popcountll(d->dirty[i]);
	}
	d->nr_dirty = nr;
	d->next = 0;
}

static uint64_t left_locked(const struct tap *t)
{
	uint64_t left = 0;

	for (unsigned i = 0; i < t->nr; i++)
		left += t->disk[i].nr_dirty * TAP_BLOCK;
	return left;
}

/* ---- queue -------------------------------------------------------------------------------------- */

static void list_init(struct list *l)
{
	l->first = NULL;
	l->end = &l->first;
}

static void append(struct list *l, struct entry *e)
{
	e->next = NULL;
	*l->end = e;
	l->end = &e->next;
}

static struct entry *pop(struct list *l)
{
	struct entry *e = l->first;

	l->first = e->next;
	if (!l->first)
		l->end = &l->first;
	return e;
}

static void drop(struct tap *t, struct entry *e)
{
	t->held -= ENTRY_COST + (e->octets ? e->len : 0);
	free(e->octets);
	free(e);
}

/* @octets becomes the queue's.  Without memory: false, and the caller still has it. */
static bool enqueue(struct tap *t, unsigned disk, enum disk_kind kind, uint64_t offset, uint32_t len, uint8_t *octets)
{
	struct entry *e = malloc(sizeof(*e));

	if (!e)
		return false;
	*e = (struct entry){ .epoch = t->mode == EPOCHS ? t->last_cut + 1 : 0,
			     .offset = offset,
			     .len = len,
			     .disk = (uint8_t)disk,
			     .kind = (uint8_t)kind,
			     .octets = octets };
	append(&t->queue, e);
	t->held += ENTRY_COST + (octets ? len : 0);
	return true;
}

/* All that the secondary has not acknowledged is dirty. */
static void forget_queue(struct tap *t)
{
	struct list *lists[] = { &t->sent, &t->queue };

	for (unsigned i = 0; i < 2; i++) {
		while (lists[i]->first) {
			struct entry *e = pop(lists[i]);

			set_range_dirty(&t->disk[e->disk], e->offset, e->len);
			drop(t, e);
		}
	}
	for (unsigned i = 0; i < t->nr; i++)
		synced_becomes_dirty(&t->disk[i]);
	t->emitted = 0;
	t->raced = t->read_first; /* a read under way is of a sync that is over */
	if (t->is_reading)
		for (uint64_t b = t->read_first; b < t->read_end; b++)
			set_dirty(&t->disk[t->read_disk], b);
}

static void turn_off(struct tap *t)
{
	forget_queue(t);
	t->mode = OFF;
	t->settling = t->settled = false;
	pthread_cond_broadcast(&t->moved);
}

/* ---- from the mirrors --------------------------------------------------------------------------- */

/* The octets of a block that are to be queued: none if it is dirty, or being read. */
static bool is_queued(struct tap *t, unsigned disk, uint64_t block)
{
	struct disk *d = &t->disk[disk];

	if (t->is_reading && t->read_disk == disk && block >= t->read_first && block < t->read_end) {
		t->raced = block < t->raced ? block : t->raced;
		set_dirty(d, block);
	}
	return !is_dirty(d, block);
}

static bool queue_part(struct tap *t, unsigned disk, uint64_t offset, const uint8_t *buf, uint32_t len)
{
	uint8_t *copy = NULL;

	if (buf) {
		copy = malloc(len);
		if (!copy)
			return false;
		memcpy(copy, buf, len);
	}
	if (enqueue(t, disk, copy ? DISK_DATA : DISK_ZERO, offset, len, copy))
		return true;
	free(copy);
	return false;
}

/* Split into stretches of dirty and of clean blocks. */
static void put_write(struct tap *t, unsigned disk, uint64_t offset, const uint8_t *buf, uint32_t len)
{
	uint64_t end = offset + len, at = offset, stop;
	bool clean;

	while (at < end) {
		clean = is_queued(t, disk, at / TAP_BLOCK);
		stop = (at / TAP_BLOCK + 1) * TAP_BLOCK;
		while (stop < end && stop - at + TAP_BLOCK <= DISK_RECORD_MAX &&
		       is_queued(t, disk, stop / TAP_BLOCK) == clean)
			stop += TAP_BLOCK;
		if (stop > end)
			stop = end;
		/* in a full sync no epoch needs the octets: what finds no room (or no memory) is copied later */
		if (clean && t->mode == SYNC &&
		    ((!t->settled && t->held >= t->config.hold_bytes) ||
		     !queue_part(t, disk, at, buf ? buf + (at - offset) : NULL, (uint32_t)(stop - at))))
			set_range_dirty(&t->disk[disk], at, stop - at);
		else if (clean && t->mode == EPOCHS &&
			 !queue_part(t, disk, at, buf ? buf + (at - offset) : NULL, (uint32_t)(stop - at))) {
			snprintf(t->why, sizeof(t->why), "no memory for the writes of the guest's disks");
			set_range_dirty(&t->disk[disk], at, end - at);
			turn_off(t);
			return;
		}
		at = stop;
	}
}

static bool has_to_wait(const struct tap *t, uint32_t octets)
{
	if (t->pausing || t->mode == OFF)
		return false;
	if (t->settling)
		return true;
	return t->mode == EPOCHS && t->held && t->held + octets > t->config.hold_bytes;
}

static bool is_paced(const struct tap *t)
{
	return t->mode == SYNC && !t->pausing && !t->settling && !t->settled && t->passed >= t->to_pass && t->read &&
	       left_locked(t) > t->config.hold_bytes;
}

/* Until the writes before this one and itself have taken twice the time of a copy of as many octets. */
static void keep_pace(struct tap *t, uint32_t octets)
{
	uint64_t now = util_now_ns(), cost;
	struct timespec until;

	if (!is_paced(t))
		return;
	cost = (uint64_t)(2.0 * octets * (double)t->read_ns / (double)t->read);
	t->free_ns = (t->free_ns > now ? t->free_ns : now) + (cost < PACE_MAX_NS ? cost : PACE_MAX_NS);
	until.tv_sec = (time_t)(t->free_ns / (1000 * UTIL_NS_PER_MS));
	until.tv_nsec = (long)(t->free_ns % (1000 * UTIL_NS_PER_MS));
	while (is_paced(t) && pthread_cond_timedwait(&t->moved, &t->lock, &until) != ETIMEDOUT)
		;
}

static int put_in(struct tap *t, unsigned disk, uint64_t offset, const uint8_t *buf, uint32_t len)
{
	pthread_mutex_lock(&t->lock);
	keep_pace(t, len);
	if (t->mode == EPOCHS && !t->asked && t->held + (buf ? len : 0) > t->config.hold_bytes / 2) {
		t->asked = true;
		if (t->config.want_cut)
			t->config.want_cut(t->config.user);
	}
	while (has_to_wait(t, buf ? len : 0))
		pthread_cond_wait(&t->moved, &t->lock);
	if (t->mode == OFF)
		set_range_dirty(&t->disk[disk], offset, len);
	else
		put_write(t, disk, offset, buf, len);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

int tap_write(struct tap *t, unsigned disk, uint64_t offset, const void *buf, uint32_t len)
{
	return put_in(t, disk, offset, buf, len);
}

int tap_zero(struct tap *t, unsigned disk, uint64_t offset, uint32_t len)
{
	return put_in(t, disk, offset, NULL, len);
}

void tap_broken(struct tap *t, const char *why)
{
	pthread_mutex_lock(&t->lock);
	snprintf(t->why, sizeof(t->why), "%s", why);
	t->is_broken = true;
	turn_off(t);
	pthread_mutex_unlock(&t->lock);
}

/* ---- the copy ----------------------------------------------------------------------------------- */

/* The next run of dirty blocks, cleared and marked as being read.  False: nothing is dirty. */
static bool begin_read(struct tap *t)
{
	for (unsigned i = 0; i < t->nr; i++) {
		struct disk *d = &t->disk[i];
		uint64_t first, end;

		if (!d->nr_dirty)
			continue;
		first = next_dirty(d, d->next);
		if (first == d->nr_blocks)
			first = next_dirty(d, 0);
		for (end = first; end < d->nr_blocks && end - first < RUN_MAX / TAP_BLOCK && is_dirty(d, end); end++)
			set_clean(d, end);
		t->read_disk = i;
		t->read_first = first;
		t->read_end = end;
		t->is_reading = true;
		t->raced = end;
		return true;
	}
	return false;
}

/* The first *@len octets of the run were read; the rest is dirty as before. */
static int end_read(struct tap *t, uint64_t offset, uint32_t len, bool zero, int rc)
{
	struct disk *d = &t->disk[t->read_disk];
	uint64_t done = (offset + len) == d->size ? t->read_end : (offset + len) / TAP_BLOCK, now = util_now_ns();
	uint8_t *copy = NULL;

	t->is_reading = false;
	t->passed += len;
	t->read += zero ? 0 : len;
	t->read_ns += now - t->step_ns < STEP_MAX_NS ? now - t->step_ns : STEP_MAX_NS;
	t->step_ns = now;
	pthread_cond_broadcast(&t->moved);
	if (rc || t->mode != SYNC)
		done = t->read_first;
	else if (t->raced < done)
		done = t->raced;
	for (uint64_t b = done; b < t->read_end; b++)
		set_dirty(d, b);
	if (done == t->read_first)
		return rc;
	d->next = done;
	len = (uint32_t)((done * TAP_BLOCK < d->size ? done * TAP_BLOCK : d->size) - offset);
	if (!zero) {
		copy = malloc(len);
		if (copy)
			memcpy(copy, t->buf, len);
	}
	if ((zero || copy) && enqueue(t, t->read_disk, zero ? DISK_ZERO : DISK_DATA, offset, len, copy))
		return 0;
	free(copy);
	set_range_dirty(d, offset, len);
	return -ENOMEM;
}

/* One step of the copy; the lock is let go of meanwhile.  1: something was done, 0: nothing to do. */
static int copy_step(struct tap *t, struct ft_error *err)
{
	uint64_t offset, end;
	uint32_t len;
	bool zero = false;
	int rc;

	if (t->is_reading || !begin_read(t))
		return 0;
	offset = t->read_first * TAP_BLOCK;
	end = t->read_end * TAP_BLOCK;
	if (end > t->disk[t->read_disk].size)
		end = t->disk[t->read_disk].size;
	len = (uint32_t)(end - offset);
	pthread_mutex_unlock(&t->lock);
	rc = t->config.read(t->config.user, t->read_disk, offset, &len, t->buf, &zero, err);
	pthread_mutex_lock(&t->lock);
	rc = end_read(t, offset, len, zero, rc);
	return rc ? rc : 1;
}

int tap_settle(struct tap *t, uint64_t deadline, struct ft_error *err)
{
	int rc = 1;

	pthread_mutex_lock(&t->lock);
	t->settling = t->mode == SYNC;
	while (rc >= 0 && t->mode == SYNC && (left_locked(t) || t->is_reading)) {
		if (util_now_ns() > deadline)
			rc = fail(err, -ETIMEDOUT, "the disk cannot be read fast enough for the last step of its copy");
		else
			rc = copy_step(t, err);
		if (rc == 0) { /* another thread reads */
			pthread_mutex_unlock(&t->lock);
			util_sleep_ms(1);
			pthread_mutex_lock(&t->lock);
		}
	}
	t->settling = false;
	t->settled = rc >= 0 && t->mode == SYNC;
	pthread_cond_broadcast(&t->moved);
	pthread_mutex_unlock(&t->lock);
	return rc < 0 ? rc : 0;
}

/* ---- from the session --------------------------------------------------------------------------- */

int tap_begin(struct tap *t, struct ft_error *err)
{
	pthread_mutex_lock(&t->lock);
	turn_off(t);
	t->changes_only = t->has_base && !t->is_broken;
	if (!t->changes_only) {
		for (unsigned i = 0; i < t->nr; i++)
			set_all_dirty(&t->disk[i]);
		t->has_base = false;
		if (getrandom(t->name, sizeof(t->name), 0) != sizeof(t->name)) {
			pthread_mutex_unlock(&t->lock);
			return fail_sys(err, -errno, "a name for the copy of the disks");
		}
	}
	t->is_broken = false;
	t->why[0] = '\0';
	t->last_cut = t->first_cut = 0;
	t->asked = t->is_copied = false;
	t->base_is_due = true;
	t->base_emitted = 0;
	t->step_ns = t->free_ns = util_now_ns();
	t->to_pass = left_locked(t);
	t->passed = t->read = t->read_ns = 0;
	t->mode = SYNC;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

void tap_off(struct tap *t)
{
	pthread_mutex_lock(&t->lock);
	turn_off(t);
	pthread_mutex_unlock(&t->lock);
}

void tap_lost_base(struct tap *t)
{
	pthread_mutex_lock(&t->lock);
	t->has_base = false;
	pthread_mutex_unlock(&t->lock);
}

void tap_pausing(struct tap *t, bool pausing)
{
	pthread_mutex_lock(&t->lock);
	t->pausing = pausing;
	pthread_cond_broadcast(&t->moved);
	while (pausing && t->is_reading)
		pthread_cond_wait(&t->moved, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void tap_cut(struct tap *t, uint64_t epoch)
{
	pthread_mutex_lock(&t->lock);
	if (t->mode == SYNC && left_locked(t)) {
		snprintf(t->why, sizeof(t->why), "the copy of the disks was not complete when the first epoch ended");
		turn_off(t);
	} else if (t->mode != OFF) {
		if (t->mode == SYNC)
			t->first_cut = epoch;
		t->mode = EPOCHS;
		t->last_cut = epoch;
		t->asked = false;
	}
	pthread_mutex_unlock(&t->lock);
}

void tap_acked(struct tap *t, uint64_t epoch)
{
	pthread_mutex_lock(&t->lock);
	if (t->mode == EPOCHS && epoch >= t->first_cut && epoch <= t->last_cut) {
		while (t->sent.first && t->sent.first->epoch <= epoch)
			drop(t, pop(&t->sent));
		for (unsigned i = 0; !t->is_copied && i < t->nr; i++)
			memset(t->disk[i].synced, 0, (t->disk[i].nr_blocks + 63) / 64 * 8);
		t->is_copied = t->has_base = true;
		pthread_cond_broadcast(&t->moved);
	}
	pthread_mutex_unlock(&t->lock);
}

static size_t part(void *buf, size_t cap, const void *from, size_t len, size_t *done)
{
	size_t n = len - *done < cap ? len - *done : cap;

	memcpy(buf, (const uint8_t *)from + *done, n);
	*done += n;
	return n;
}

static size_t emit_base(struct tap *t, uint8_t *buf, size_t cap)
{
	uint8_t record[DISK_HEAD + DISK_NAME];
	size_t n;

	disk_head(record, DISK_BASE, 0, DISK_NAME, t->changes_only);
	memcpy(record + DISK_HEAD, t->name, DISK_NAME);
	n = part(buf, cap, record, sizeof(record), &t->base_emitted);
	t->base_is_due = t->base_emitted < sizeof(record);
	return n;
}

/* The whole of the first entry has been given out. */
static void was_sent(struct tap *t)
{
	struct entry *e = pop(&t->queue);

	t->emitted = 0;
	if (e->epoch == 0 && !t->last_cut) { /* in the full sync: only the blocks are remembered */
		for (uint64_t b = e->offset / TAP_BLOCK; b <= (e->offset + e->len - 1) / TAP_BLOCK; b++)
			t->disk[e->disk].synced[b / 64] |= UINT64_C(1) << b % 64;
		drop(t, e);
	} else {
		if (e->octets)
			t->held -= e->len;
		free(e->octets);
		e->octets = NULL;
		append(&t->sent, e);
	}
	pthread_cond_broadcast(&t->moved);
}

static size_t emit(struct tap *t, uint8_t *buf, size_t cap)
{
	const struct entry *e = t->queue.first;
	uint8_t head[DISK_HEAD];
	size_t n = 0, whole = DISK_HEAD + (e->octets ? e->len : 0), at;

	if (t->emitted < DISK_HEAD) {
		disk_head(head, (enum disk_kind)e->kind, e->disk, e->len, e->offset);
		n = part(buf, cap, head, DISK_HEAD, &t->emitted);
	}
	if (n < cap && t->emitted >= DISK_HEAD && t->emitted < whole) {
		at = t->emitted - DISK_HEAD;
		n += part(buf + n, cap - n, e->octets, e->len, &at);
		t->emitted = DISK_HEAD + at;
	}
	if (t->emitted == whole)
		was_sent(t);
	return n;
}

int64_t tap_read(struct tap *t, uint64_t epoch, void *buf, size_t cap, struct ft_error *err)
{
	size_t n = 0;
	int rc = 1;

	pthread_mutex_lock(&t->lock);
	while (rc > 0 && n < cap && t->mode != OFF) {
		if (t->base_is_due)
			n += emit_base(t, (uint8_t *)buf + n, cap - n);
		else if (t->queue.first && (epoch == 0 || t->queue.first->epoch <= epoch))
			n += emit(t, (uint8_t *)buf + n, cap - n);
		else if (t->mode == SYNC && epoch == 0 && !t->pausing && n == 0)
			rc = copy_step(t, err);
		else
			break;
	}
	if (t->mode == OFF)
		rc = fail(err, -ENOTCONN, "%s", t->why[0] ? t->why : "the disks are not followed any more");
	pthread_mutex_unlock(&t->lock);
	return rc < 0 ? rc : (int64_t)n;
}

uint64_t tap_left(struct tap *t)
{
	uint64_t left;

	pthread_mutex_lock(&t->lock);
	left = left_locked(t);
	pthread_mutex_unlock(&t->lock);
	return left;
}

void tap_figures(struct tap *t, unsigned disk, struct tap_figures *out)
{
	pthread_mutex_lock(&t->lock);
	out->dirty_bytes = t->disk[disk].nr_dirty * TAP_BLOCK;
	if (out->dirty_bytes > t->disk[disk].size)
		out->dirty_bytes = t->disk[disk].size;
	out->held_bytes = t->held;
	pthread_mutex_unlock(&t->lock);
}

/* ---- open, close -------------------------------------------------------------------------------- */

int tap_open(struct tap **out, const struct tap_config *config, struct ft_error *err)
{
	struct tap *t = calloc(1, sizeof(*t));
	pthread_condattr_t attr;
	bool oom = !t;

	*out = NULL;
	if (t) {
		t->config = *config;
		t->config.size = NULL; /* the caller's */
		t->nr = config->nr;
		list_init(&t->queue);
		list_init(&t->sent);
		pthread_mutex_init(&t->lock, NULL);
		pthread_condattr_init(&attr);
		pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
		pthread_cond_init(&t->moved, &attr);
		pthread_condattr_destroy(&attr);
		t->buf = malloc(TAP_READ_MAX);
		oom = !t->buf;
	}
	for (unsigned i = 0; !oom && i < config->nr; i++) {
		struct disk *d = &t->disk[i];

		d->size = config->size[i];
		d->nr_blocks = (d->size + TAP_BLOCK - 1) / TAP_BLOCK;
		d->dirty = calloc((d->nr_blocks + 63) / 64 + 1, 8);
		d->synced = calloc((d->nr_blocks + 63) / 64 + 1, 8);
		oom = !d->dirty || !d->synced;
		if (!oom)
			set_all_dirty(d);
	}
	if (oom) {
		tap_close(t);
		return fail(err, -ENOMEM, "no memory to follow the disks");
	}
	*out = t;
	return 0;
}

void tap_close(struct tap *t)
{
	if (!t)
		return;
	while (t->queue.first)
		drop(t, pop(&t->queue));
	while (t->sent.first)
		drop(t, pop(&t->sent));
	for (unsigned i = 0; i < t->nr; i++) {
		free(t->disk[i].dirty);
		free(t->disk[i].synced);
	}
	free(t->buf);
	pthread_cond_destroy(&t->moved);
	pthread_mutex_destroy(&t->lock);
	free(t);
}
