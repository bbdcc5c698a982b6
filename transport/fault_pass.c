/* SPDX-License-Identifier: MIT */
/* fault_pass.c - how a write or a message comes to the inner connection: late, changed, twice, in part, or not at all.
 * Owns the counts that the faults go by (octets, messages, writes, free_ns), under the lock.  Runs on the thread that calls, or
 * with reorder on the lane's pump.
 *
 * A break is what a dying process causes: no close frame, -ECONNRESET on both sides.
 *
 * Must hold: one thread at a time per lane is between the count of a write and the inner call (lane.busy, or the pump), so tickets of both
 * connections run alike, those that disappear at the end.  The lock is not held in a call of the inner connection. */
#include "fault_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "thread.h"

/* -- helpers: lock is held -- */

/* splitmix64 */
uint64_t fault_draw(struct fault *f)
{
	uint64_t x = f->random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* fault_sleep_until - with the fate and the deadline of the caller, who learns of them; a pump (no @err, DEADLINE_NEVER) goes on at once
 * when the connection is to be closed. */
int fault_sleep_until(struct fault *f, uint64_t when, uint64_t deadline, struct ft_error *err)
{
	while (now_ns() < when) {
		int r = conn_fate_tx(&f->conn, err);

		if (r != 0)
			return f->spec.reorder && r == -ECANCELED ? 0 : r;
		if (now_ns() >= deadline)
			return err_set(err, -ETIMEDOUT, "%s %s: the fault wrapper holds it back", f->conn.name,
				       f->conn.peer);
		cond_wait_until(&f->cond, &f->lock, when < deadline ? when : deadline);
	}
	return 0;
}

int fault_sleep_random(struct fault *f, uint64_t up_to_ms, uint64_t deadline, struct ft_error *err)
{
	uint64_t now = now_ns(), ns;

	if (up_to_ms == 0)
		return 0;
	ns = fault_draw(f) % (up_to_ms * NS_PER_MS + 1);
	if (deadline != DEADLINE_NEVER)
		ns = deadline <= now ? 0 : ns < (deadline - now) / 2 ? ns : (deadline - now) / 2;
	return fault_sleep_until(f, now + ns, deadline, err);
}

/* hold_back - what makes things late. */
static int hold_back(struct fault *f, uint64_t deadline, struct ft_error *err)
{
	int r = fault_sleep_until(f, f->stall_until, deadline, err);

	if (r == 0 && !f->spec.reorder) /* there the pump has paused already */
		r = fault_sleep_random(f, f->spec.delay_ms, deadline, err);
	if (r == 0)
		r = fault_sleep_until(f, f->free_ns, deadline, err);
	return r;
}

static void charge(struct fault *f, size_t len)
{
	uint64_t now = now_ns();

	f->octets += len;
	if (f->spec.slow)
		f->free_ns = (f->free_ns > now ? f->free_ns : now) + (uint64_t)len * NS_PER_S / f->spec.slow;
}

static bool disappears(const struct fault *f)
{
	return f->spec.has_oneway && f->messages >= f->spec.oneway;
}

/* fault_inner_failed - our own fate explains it better, if we caused it. */
int fault_inner_failed(struct fault *f, int r, struct ft_error *err)
{
	int fate = conn_fate_tx(&f->conn, err);

	return fate != 0 ? fate : r;
}

/* -- breaking: without the lock -- */

static int cut(struct fault *f, const char *what, uint64_t n, struct ft_error *err)
{
	struct ft_error why;

	f->inner->ops->sever(f->inner);
	err_set(&why, -ECONNRESET, "fault: cut after %llu %s", (unsigned long long)n, what);
	return conn_break(&f->conn, &why, err);
}

/* -- passing on: the lane is busy with us, no lock -- */

static int pass_in_part(struct fault *f, struct lane *l, const struct item *it, uint64_t len, uint64_t deadline,
			struct ft_error *err)
{
	struct iovec iov[TP_IOV_MAX];
	uint64_t ticket;
	unsigned nr = 0;

	for (uint64_t left = len; left > 0; nr++) {
		iov[nr] = it->iov[nr];
		if (iov[nr].iov_len > left)
			iov[nr].iov_len = left;
		left -= iov[nr].iov_len;
	}
	if (nr > 0 && tp_write(f->inner, l->index, it->window, it->offset, iov, nr, &ticket, deadline, err) == 0)
		tp_wait_completed(f->inner, l->index, ticket, deadline, err);
	return cut(f, "octets", f->spec.cut, err);
}

/* A copy with one bit changed; the caller's memory is not ours to change. */
static int pass_corrupted(struct fault *f, struct lane *l, const struct item *it, uint64_t bit, uint64_t deadline,
			  struct ft_error *err)
{
	struct iovec one;
	size_t at = 0;

	f->corrupted = malloc(it->len);
	if (!f->corrupted)
		return err_set(err, -ENOMEM, "no memory for a write that is to be corrupted");
	for (unsigned i = 0; i < it->nr_iov; i++) {
		memcpy(f->corrupted + at, it->iov[i].iov_base, it->iov[i].iov_len);
		at += it->iov[i].iov_len;
	}
	bit %= it->len * 8;
	f->corrupted[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	one = (struct iovec){ f->corrupted, it->len };
	return tp_write(f->inner, l->index, it->window, it->offset, &one, 1, NULL, deadline, err);
}

int fault_pass_write(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err)
{
	bool drop = false, corrupt = false;
	uint64_t room = UINT64_MAX, bit = 0;
	int r;

	pthread_mutex_lock(&f->lock);
	r = hold_back(f, deadline, err);
	if (r == 0) {
		drop = disappears(f);
		if (f->spec.has_cut)
			room = f->spec.cut > f->octets ? f->spec.cut - f->octets : 0;
		charge(f, it->len);
		corrupt = ++f->writes == f->spec.corrupt;
		bit = fault_draw(f);
	}
	pthread_mutex_unlock(&f->lock);
	if (r != 0)
		return r;
	if (it->len >= room)
		return pass_in_part(f, l, it, room, deadline, err);
	if (!drop)
		r = corrupt ? pass_corrupted(f, l, it, bit, deadline, err)
			    : tp_write(f->inner, l->index, it->window, it->offset, it->iov, it->nr_iov, NULL, deadline,
				       err);
	if (r != 0)
		return fault_inner_failed(f, r, err);
	pthread_mutex_lock(&f->lock);
	l->inner_posted += !drop;
	l->dropped += drop;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

int fault_pass_message(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err)
{
	bool drop = false, cut_octets = false, cut_message = false, twice = false;
	int r;

	pthread_mutex_lock(&f->lock);
	r = hold_back(f, deadline, err);
	if (r == 0) {
		drop = disappears(f);
		cut_octets = f->spec.has_cut && f->octets + it->len >= f->spec.cut;
		cut_message =
			f->spec.cutmsg && f->messages + 1 >= f->spec.cutmsg; /* two lanes may count at the same time */
		twice = fault_draw(f) % 100 < f->spec.dup;
	}
	pthread_mutex_unlock(&f->lock);
	if (r == 0 && cut_message)
		return cut(f, "messages", f->spec.cutmsg - 1, err);
	if (r == 0 && cut_octets)
		return cut(f, "octets", f->spec.cut, err);
	if (r == 0 && !drop)
		r = tp_send(f->inner, l->index, it->iov, it->nr_iov, deadline, err);
	if (r != 0)
		return fault_inner_failed(f, r, err);
	if (twice && !drop) /* the first is sent, so the call succeeds whatever becomes of the second */
		tp_send(f->inner, l->index, it->iov, it->nr_iov, deadline, NULL);
	pthread_mutex_lock(&f->lock);
	charge(f, it->len);
	f->messages++;
	if (f->spec.has_stall && f->messages == f->spec.stall_after)
		f->stall_until = f->spec.stall_ms ? now_ns() + f->spec.stall_ms * NS_PER_MS : DEADLINE_NEVER;
	pthread_mutex_unlock(&f->lock);
	return 0;
}
