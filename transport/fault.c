/* SPDX-License-Identifier: MIT */
/* fault.c - a wrapper that makes any transport misbehave, by a seed: "fault(KEY=VALUE,...)/URI".  For tests and drills.
 *
 *   seed=N        of all that is random here (default 1; connection number n of a listener uses N + n)
 *   delay=MS      each write and message waits a random time up to MS before it goes (at most half of what the caller's deadline leaves)
 *   slow=B        at most B octets a second leave, all lanes together
 *   stall=N:MS    when N messages have been sent, nothing moves for MS in either direction; 0: for ever
 *   cut=N         the connection breaks when N octets of payload have been sent; the write that crosses the mark arrives in part
 *   cutmsg=N      the connection breaks instead of sending the Nth message
 *   oneway=N      when N messages have been sent, what we send disappears and counts as sent; what comes in still does
 *   dup=P         P percent of the messages are sent twice
 *   corrupt=N     one bit of the Nth write is flipped
 *   reorder=1     each lane has a thread that carries its writes and messages on after random pauses (up to delay, or 2 ms): lanes
 *                 overtake each other, the order on one lane is kept, and completions are told late
 *
 * All faults are on the side that has the wrapper, and on what it sends, but for stall.  A break is what a dying process causes: no close
 * frame, -ECONNRESET on both sides.  Without reorder a fault happens on the caller's thread, inside its call; with it, on the lane's
 * thread ("pump"), and tp_close() waits up to 1 s for what is queued.  While it stalls, tp_poll_fd() may stay readable.
 *
 * Must hold: one thread at a time per lane is between the count of a write and the inner call (lane.busy), so tickets of both
 * connections run alike, those that disappear at the end. */
#include "transport_ops.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"

#define QUEUE_ITEMS 16u
#define DRAIN_NS NS_PER_S
#define PAUSE_DEFAULT_MS 2u

struct spec {
	uint64_t seed, delay_ms, slow, stall_after, stall_ms, cut, cutmsg, oneway, dup, corrupt, reorder;
	bool has_stall, has_cut, has_oneway;
};

struct item {
	struct item *next;
	bool message;
	uint32_t window;
	uint64_t offset;
	size_t len;
	unsigned nr_iov;
	struct iovec iov[TP_IOV_MAX];
	uint8_t octets[]; /* of a message that is queued */
};

struct lane {
	struct fault *owner;
	uint32_t index;
	bool busy;
	uint64_t inner_posted, dropped; /* writes that were passed on, and that disappeared */
	/* reorder */
	struct item *first, **last;
	unsigned nr_items, nr_messages;
	uint64_t posted, done, told; /* told: what tp_completed() has admitted */
	pthread_t pump;
	bool pumping;
};

struct fault {
	struct tp_conn conn;
	struct tp_conn *inner;
	struct spec spec;
	int halt_fd; /* readable once receiving is over */

	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t cond;  /* anything has changed */
	uint64_t random, octets, messages, writes, free_ns, stall_until;
	uint8_t *corrupted; /* the write that was changed; the inner connection may still read it */
	bool stopping;
	bool held; /* a message that came in while all stood still */
	uint32_t held_lane;
	size_t held_len;
	uint8_t held_octets[TP_MESSAGE_MAX];
	struct lane lane[TP_LANES_MAX];
};

static struct fault *of(struct tp_conn *c)
{
	return (struct fault *)c;
}

/* -- the specification -- */

static int parse_number(const char *key, const char *text, uint64_t *out, char **end, struct ft_error *err)
{
	errno = 0;
	*out = strtoull(text, end, 10);
	if (*end == text || errno != 0 || text[0] == '-')
		return err_set(err, -EINVAL, "fault(%s=...): a number is expected", key);
	return 0;
}

static int parse_stall(struct spec *s, const char *text, char **end, struct ft_error *err)
{
	int r = parse_number("stall", text, &s->stall_after, end, err);

	if (r != 0)
		return r;
	if (**end != ':')
		return err_set(err, -EINVAL, "fault(stall=N:MS): ':' is expected behind N");
	s->has_stall = true;
	return parse_number("stall", *end + 1, &s->stall_ms, end, err);
}

static int parse_key(struct spec *s, const char *key, const char *text, char **end, struct ft_error *err)
{
	const struct {
		const char *name;
		uint64_t *value;
		bool *given;
	} keys[] = {
		{ "seed", &s->seed, NULL },	    { "delay", &s->delay_ms, NULL }, { "slow", &s->slow, NULL },
		{ "cut", &s->cut, &s->has_cut },    { "cutmsg", &s->cutmsg, NULL },  { "oneway", &s->oneway, &s->has_oneway },
		{ "dup", &s->dup, NULL },	    { "corrupt", &s->corrupt, NULL }, { "reorder", &s->reorder, NULL },
	};

	if (strcmp(key, "stall") == 0)
		return parse_stall(s, text, end, err);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (strcmp(key, keys[i].name) != 0)
			continue;
		if (keys[i].given)
			*keys[i].given = true;
		return parse_number(key, text, keys[i].value, end, err);
	}
	return err_set(err, -EINVAL, "fault(%s=...): there is no such key", key);
}

/* parse - "KEY=VALUE,...)/URI", behind "fault(". */
static int parse(struct spec *s, const char *text, const char **uri, struct ft_error *err)
{
	*s = (struct spec){ .seed = 1 };
	while (*text != ')') {
		char key[16];
		size_t n = strcspn(text, "=,)");
		char *end;
		int r;

		if (text[n] != '=' || n >= sizeof(key))
			return err_set(err, -EINVAL, "fault(...): KEY=VALUE is expected at '%.20s'", text);
		memcpy(key, text, n);
		key[n] = '\0';
		r = parse_key(s, key, text + n + 1, &end, err);
		if (r != 0)
			return r;
		if (*end != ',' && *end != ')')
			return err_set(err, -EINVAL, "fault(...): ',' or ')' is expected at '%.20s'", end);
		text = *end == ',' ? end + 1 : end;
	}
	if (text[1] != '/')
		return err_set(err, -EINVAL, "fault(...): '/' and a URI are expected behind ')'");
	*uri = text + 2;
	return 0;
}

/* -- helpers: lock is held -- */

/* splitmix64 */
static uint64_t draw(struct fault *f)
{
	uint64_t x = f->random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* sleep_until - with the fate and the deadline of the caller, who learns of them; a pump (no @err, DEADLINE_NEVER) goes on at once when
 * the connection is to be closed. */
static int sleep_until(struct fault *f, uint64_t when, uint64_t deadline, struct ft_error *err)
{
	while (now_ns() < when) {
		int r = conn_fate_tx(&f->conn, err);

		if (r != 0)
			return f->spec.reorder && r == -ECANCELED ? 0 : r;
		if (now_ns() >= deadline)
			return err_set(err, -ETIMEDOUT, "%s %s: the fault wrapper holds it back", f->conn.name, f->conn.peer);
		cond_wait_until(&f->cond, &f->lock, when < deadline ? when : deadline);
	}
	return 0;
}

static bool stalled(const struct fault *f)
{
	return now_ns() < f->stall_until;
}

static int sleep_random(struct fault *f, uint64_t up_to_ms, uint64_t deadline, struct ft_error *err)
{
	uint64_t now = now_ns(), ns;

	if (up_to_ms == 0)
		return 0;
	ns = draw(f) % (up_to_ms * NS_PER_MS + 1);
	if (deadline != DEADLINE_NEVER)
		ns = deadline <= now ? 0 : ns < (deadline - now) / 2 ? ns : (deadline - now) / 2;
	return sleep_until(f, now + ns, deadline, err);
}

/* hold_back - what makes things late. */
static int hold_back(struct fault *f, uint64_t deadline, struct ft_error *err)
{
	int r = sleep_until(f, f->stall_until, deadline, err);

	if (r == 0 && !f->spec.reorder) /* there the pump has paused already */
		r = sleep_random(f, f->spec.delay_ms, deadline, err);
	if (r == 0)
		r = sleep_until(f, f->free_ns, deadline, err);
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

/* inner_failed - our own fate explains it better, if we caused it. */
static int inner_failed(struct fault *f, int r, struct ft_error *err)
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

static int pass_in_part(struct fault *f, struct lane *l, const struct item *it, uint64_t len, uint64_t deadline, struct ft_error *err)
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

static int pass_write(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err)
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
		bit = draw(f);
	}
	pthread_mutex_unlock(&f->lock);
	if (r != 0)
		return r;
	if (it->len >= room)
		return pass_in_part(f, l, it, room, deadline, err);
	if (!drop)
		r = corrupt ? pass_corrupted(f, l, it, bit, deadline, err) :
			      tp_write(f->inner, l->index, it->window, it->offset, it->iov, it->nr_iov, NULL, deadline, err);
	if (r != 0)
		return inner_failed(f, r, err);
	pthread_mutex_lock(&f->lock);
	l->inner_posted += !drop;
	l->dropped += drop;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

static int pass_message(struct fault *f, struct lane *l, const struct item *it, uint64_t deadline, struct ft_error *err)
{
	bool drop = false, cut_octets = false, cut_message = false, twice = false;
	int r;

	pthread_mutex_lock(&f->lock);
	r = hold_back(f, deadline, err);
	if (r == 0) {
		drop = disappears(f);
		cut_octets = f->spec.has_cut && f->octets + it->len >= f->spec.cut;
		cut_message = f->spec.cutmsg && f->messages + 1 >= f->spec.cutmsg; /* two lanes may count at the same time */
		twice = draw(f) % 100 < f->spec.dup;
	}
	pthread_mutex_unlock(&f->lock);
	if (r == 0 && cut_message)
		return cut(f, "messages", f->spec.cutmsg - 1, err);
	if (r == 0 && cut_octets)
		return cut(f, "octets", f->spec.cut, err);
	if (r == 0 && !drop)
		r = tp_send(f->inner, l->index, it->iov, it->nr_iov, deadline, err);
	if (r != 0)
		return inner_failed(f, r, err);
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

static int lane_take(struct fault *f, struct lane *l, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (l->busy && r == 0) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: other threads use the lane", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0)
		l->busy = true;
	pthread_mutex_unlock(&f->lock);
	return r;
}

static void lane_give(struct fault *f, struct lane *l)
{
	pthread_mutex_lock(&f->lock);
	l->busy = false;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

/* -- reorder: queues and pumps -- */

static bool may_queue(struct fault *f, const struct lane *l, bool message)
{
	if (l->nr_items >= QUEUE_ITEMS)
		return false;
	/* one message may wait for a credit in the pump: when it gets one, we are told */
	return !message || l->nr_messages == 0 || l->nr_messages < tp_credits(f->inner, l->index);
}

static int queue_put(struct fault *f, struct lane *l, struct item *it, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (r == 0 && !may_queue(f, l, it->message)) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: the fault wrapper's queue is full", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0) {
		*l->last = it;
		l->last = &it->next;
		l->nr_items++;
		l->nr_messages += it->message;
		if (!it->message)
			*ticket = ++l->posted;
		pthread_cond_broadcast(&f->cond);
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

static int queue(struct fault *f, struct lane *l, const struct item *from, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct item *it = FT_FAULT("fault/queue") ? NULL : malloc(sizeof(*it) + (from->message ? from->len : 0));
	size_t at = 0;
	int r;

	if (!it)
		return err_set(err, -ENOMEM, "no memory for a queue");
	*it = *from;
	for (unsigned i = 0; from->message && i < from->nr_iov; i++) {
		memcpy(it->octets + at, from->iov[i].iov_base, from->iov[i].iov_len);
		at += from->iov[i].iov_len;
	}
	if (from->message) {
		it->iov[0] = (struct iovec){ it->octets, it->len };
		it->nr_iov = 1;
	}
	r = queue_put(f, l, it, ticket, deadline, err);
	if (r != 0)
		free(it);
	return r;
}

static int carry(struct fault *f, struct lane *l, const struct item *it, struct ft_error *err)
{
	int r;

	if (it->message)
		return pass_message(f, l, it, DEADLINE_NEVER, err);
	r = pass_write(f, l, it, DEADLINE_NEVER, err);
	if (r == 0 && l->inner_posted > 0)
		r = tp_wait_completed(f->inner, l->index, l->inner_posted, DEADLINE_NEVER, err);
	return r;
}

static struct item *queue_wait(struct fault *f, struct lane *l)
{
	struct item *it = NULL;

	pthread_mutex_lock(&f->lock);
	while (!l->first && !f->stopping)
		pthread_cond_wait(&f->cond, &f->lock);
	if (!f->stopping) {
		it = l->first;
		sleep_random(f, f->spec.delay_ms ? f->spec.delay_ms : PAUSE_DEFAULT_MS, DEADLINE_NEVER, NULL);
	}
	pthread_mutex_unlock(&f->lock);
	return it;
}

static void queue_pop(struct fault *f, struct lane *l)
{
	struct item *it = l->first;

	pthread_mutex_lock(&f->lock);
	l->first = it->next;
	if (!l->first)
		l->last = &l->first;
	l->nr_items--;
	l->nr_messages -= it->message;
	l->done += !it->message;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	free(it);
}

static void *pump(void *arg)
{
	struct lane *l = arg;
	struct fault *f = l->owner;
	struct ft_error why;
	struct item *it;
	int r = 0;

	while (r == 0 && (it = queue_wait(f, l))) {
		r = carry(f, l, it, &why);
		if (r == 0)
			queue_pop(f, l);
	}
	if (r != 0 && r != -ECANCELED && conn_fate_tx(&f->conn, NULL) == 0)
		conn_break_tx(&f->conn, &why, NULL);
	pthread_mutex_lock(&f->lock);
	l->pumping = false;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* -- ops -- */

static struct item item_of(bool message, const struct iovec *iov, unsigned nr_iov)
{
	struct item it = { .message = message, .nr_iov = nr_iov };

	for (unsigned i = 0; i < nr_iov; i++) {
		it.iov[i] = iov[i];
		it.len += iov[i].iov_len;
	}
	return it;
}

static int fault_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov, unsigned nr_iov,
		       uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct item it = item_of(false, iov, nr_iov);
	struct fault *f = of(c);
	struct lane *l = &f->lane[lane];
	int r;

	it.window = window;
	it.offset = offset;
	if (f->spec.reorder)
		return queue(f, l, &it, ticket, deadline, err);
	r = lane_take(f, l, deadline, err);
	if (r != 0)
		return r;
	r = pass_write(f, l, &it, deadline, err);
	*ticket = l->inner_posted + l->dropped;
	lane_give(f, l);
	return r;
}

static int fault_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		      struct ft_error *err)
{
	struct item it = item_of(true, iov, nr_iov);
	struct fault *f = of(c);
	struct lane *l = &f->lane[lane];
	int r;

	if (f->spec.reorder)
		return queue(f, l, &it, NULL, deadline, err);
	r = lane_take(f, l, deadline, err);
	if (r != 0)
		return r;
	r = pass_message(f, l, &it, deadline, err);
	lane_give(f, l);
	return r;
}

static uint64_t fault_completed(struct tp_conn *c, uint32_t lane)
{
	struct fault *f = of(c);
	struct lane *l = &f->lane[lane];
	uint64_t inner = f->spec.reorder ? 0 : tp_completed(f->inner, lane), ticket;

	pthread_mutex_lock(&f->lock);
	if (f->spec.reorder)
		ticket = l->told += l->done > l->told ? draw(f) % (l->done - l->told + 1) : 0;
	else if (stalled(f))
		ticket = l->told;
	else
		ticket = l->told = inner < l->inner_posted ? inner : l->inner_posted + l->dropped;
	pthread_mutex_unlock(&f->lock);
	return ticket;
}

/* With the lock held: until the pump has done it. */
static int await_pump(struct fault *f, struct lane *l, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	int r = ticket > l->posted ? err_set(err, -EINVAL, "ticket %llu of %llu", (unsigned long long)ticket, (unsigned long long)l->posted) : 0;

	while (r == 0 && l->done < ticket) {
		r = conn_fate_tx(&f->conn, err);
		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: not completed", f->conn.name, f->conn.peer);
		if (r == 0)
			cond_wait_until(&f->cond, &f->lock, deadline);
	}
	if (r == 0 && l->told < ticket)
		l->told = ticket;
	return r;
}

static int fault_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	struct fault *f = of(c);
	struct lane *l = &f->lane[lane];
	uint64_t inner = 0;
	int r;

	pthread_mutex_lock(&f->lock);
	if (f->spec.reorder) {
		r = await_pump(f, l, ticket, deadline, err);
	} else {
		r = sleep_until(f, f->stall_until, deadline, err);
		inner = ticket <= l->inner_posted || ticket > l->inner_posted + l->dropped ? ticket : l->inner_posted;
	}
	pthread_mutex_unlock(&f->lock);
	if (r == 0 && inner > 0)
		r = tp_wait_completed(f->inner, lane, inner, deadline, err);
	return r == 0 || r == -ETIMEDOUT || r == -EINVAL ? r : inner_failed(f, r, err);
}

static uint32_t fault_credits(struct tp_conn *c, uint32_t lane)
{
	struct fault *f = of(c);
	uint32_t n = tp_credits(f->inner, lane), queued;

	pthread_mutex_lock(&f->lock);
	queued = f->lane[lane].nr_messages;
	pthread_mutex_unlock(&f->lock);
	return n > queued ? n - queued : 0;
}

/* hold - a message that came while all stands still waits here. */
static void hold(struct fault *f, const void *buf, uint32_t lane, size_t len)
{
	memcpy(f->held_octets, buf, len);
	f->held_lane = lane;
	f->held_len = len;
	f->held = true;
}

/* With the lock held.  1: *buf has a message; 0: look at the inner connection. */
static int take_held(struct fault *f, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	while (stalled(f)) {
		int r = conn_fate_rx(&f->conn, err);

		if (r == 0 && now_ns() >= deadline)
			r = err_set(err, -ETIMEDOUT, "%s %s: nothing came", f->conn.name, f->conn.peer);
		if (r != 0)
			return r;
		cond_wait_until(&f->cond, &f->lock, f->stall_until < deadline ? f->stall_until : deadline);
	}
	if (!f->held)
		return 0;
	memcpy(buf, f->held_octets, f->held_len);
	*lane = f->held_lane;
	*len = f->held_len;
	f->held = false;
	return 1;
}

static int recv_inner(struct fault *f, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct ft_error why;
	int r = tp_recv(f->inner, buf, TP_MESSAGE_MAX, lane, len, 0, &why);

	if (r == -ETIMEDOUT) {
		r = wait_fd(tp_poll_fd(f->inner), POLLIN, f->halt_fd, deadline);
		if (r == -ETIMEDOUT)
			return err_set(err, r, "%s %s: nothing came", f->conn.name, f->conn.peer);
		if (r != 0 && conn_fate_rx(&f->conn, NULL) == 0)
			return err_sys(err, r, "poll");
		return conn_fate_rx(&f->conn, err);
	}
	if (r == 0)
		return 1;
	r = conn_fate_rx(&f->conn, err);
	if (r == 0) { /* the sentence of the inner connection is the reason */
		if (err)
			*err = why;
		r = why.code;
	}
	return r;
}

static int fault_recv(struct tp_conn *c, void *buf, uint32_t *lane, size_t *len, uint64_t deadline, struct ft_error *err)
{
	struct fault *f = of(c);
	int r;

	do {
		pthread_mutex_lock(&f->lock);
		r = take_held(f, buf, lane, len, deadline, err);
		pthread_mutex_unlock(&f->lock);
		if (r != 0)
			break;
		r = recv_inner(f, buf, lane, len, deadline, err);
		if (r <= 0)
			continue;
		pthread_mutex_lock(&f->lock);
		if (stalled(f)) {
			hold(f, buf, *lane, *len);
			r = 0;
		}
		pthread_mutex_unlock(&f->lock);
	} while (r == 0);
	return r > 0 ? 0 : r;
}

static int fault_poll_fd(struct tp_conn *c)
{
	return tp_poll_fd(of(c)->inner);
}

static void fault_stats(struct tp_conn *c, struct tp_stats *out)
{
	tp_stats(of(c)->inner, out);
}

/* Calls wait in the inner connection too, so it is cancelled; with reorder only the pumps wait there, and they are to carry on what was
 * sent before a tp_close(). */
static void fault_wake(struct tp_conn *c)
{
	struct fault *f = of(c);

	if (conn_fate_rx(c, NULL) != 0)
		event_raise(f->halt_fd);
	if (!f->spec.reorder || atomic_load(&c->code_rx) != 0)
		tp_cancel(f->inner);
	pthread_mutex_lock(&f->lock);
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

static void fault_sever(struct tp_conn *c)
{
	struct fault *f = of(c);

	f->inner->ops->sever(f->inner);
}

/* stop_pumps - after they have carried on what is queued, if that takes no longer than DRAIN_NS. */
static void stop_pumps(struct fault *f)
{
	uint64_t until = now_ns() + DRAIN_NS;

	pthread_mutex_lock(&f->lock);
	if (stalled(f))
		until = 0;
	for (uint32_t i = 0; i < f->conn.lanes; i++) {
		while (f->lane[i].first && f->lane[i].pumping && now_ns() < until)
			cond_wait_until(&f->cond, &f->lock, until);
	}
	f->stopping = true;
	f->stall_until = 0;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	tp_cancel(f->inner);
}

static void lane_fini(struct lane *l)
{
	while (l->first) {
		struct item *it = l->first;

		l->first = it->next;
		free(it);
	}
}

static void fault_destroy(struct tp_conn *c)
{
	struct fault *f = of(c);

	if (f->spec.reorder)
		stop_pumps(f);
	for (uint32_t i = 0; i < c->lanes; i++) {
		if (f->lane[i].pump)
			pthread_join(f->lane[i].pump, NULL);
		lane_fini(&f->lane[i]);
	}
	tp_close(f->inner);
	close(f->halt_fd);
	free(f->corrupted);
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
	conn_fini(c);
	free(f);
}

static const struct tp_conn_ops ops = {
	.write = fault_write,
	.completed = fault_completed,
	.wait_completed = fault_wait_completed,
	.send = fault_send,
	.credits = fault_credits,
	.recv = fault_recv,
	.poll_fd = fault_poll_fd,
	.stats = fault_stats,
	.wake = fault_wake,
	.sever = fault_sever,
	.destroy = fault_destroy,
};

/* -- making connections -- */

static int start_pumps(struct fault *f)
{
	int r = 0;

	for (uint32_t i = 0; i < f->conn.lanes && r == 0; i++) {
		f->lane[i].pumping = true;
		r = thread_start(&f->lane[i].pump, "ft-fault", pump, &f->lane[i]);
		if (r != 0) {
			f->lane[i].pumping = false;
			f->lane[i].pump = 0;
		}
	}
	return r;
}

/* wrap - takes @inner over in any case. */
static int wrap(struct tp_conn **out, struct tp_conn *inner, const struct spec *spec, uint64_t seed, struct ft_error *err)
{
	struct fault *f = FT_FAULT("fault/create") ? NULL : calloc(1, sizeof(*f));
	char name[TP_NAME_MAX];
	int r = 0;

	if (!f) {
		tp_close(inner);
		return err_set(err, -ENOMEM, "no memory");
	}
	snprintf(name, sizeof(name), "fault/%.20s", tp_name(inner));
	conn_init(&f->conn, &ops, tp_lanes(inner), name, tp_peer(inner));
	f->conn.windows = inner->windows;
	f->inner = inner;
	f->spec = *spec;
	f->random = seed;
	f->halt_fd = FT_FAULT("fault/eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&f->lock, NULL);
	cond_init(&f->cond);
	if (spec->has_stall && spec->stall_after == 0)
		f->stall_until = spec->stall_ms ? now_ns() + spec->stall_ms * NS_PER_MS : DEADLINE_NEVER;
	for (uint32_t i = 0; i < f->conn.lanes; i++) {
		f->lane[i].owner = f;
		f->lane[i].index = i;
		f->lane[i].last = &f->lane[i].first;
	}
	if (f->halt_fd < 0)
		r = -errno;
	if (r == 0 && spec->reorder)
		r = start_pumps(f);
	if (r != 0) {
		fault_destroy(&f->conn);
		return err_sys(err, r, "cannot set up the fault wrapper");
	}
	*out = &f->conn;
	return 0;
}

int fault_connect(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline, int cancel_fd,
		  struct ft_error *err)
{
	struct tp_conn *inner;
	struct spec spec;
	const char *uri;
	int r;

	r = parse(&spec, rest, &uri, err);
	if (r == 0)
		r = tp_connect(&inner, uri, p, deadline, cancel_fd, err);
	return r != 0 ? r : wrap(out, inner, &spec, spec.seed, err);
}

struct fault_listener {
	struct tp_listener base;
	struct tp_listener *inner;
	struct spec spec;
	uint64_t accepted;
};

static int fault_accept(struct tp_listener *base, struct tp_conn **out, uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	struct fault_listener *l = (struct fault_listener *)base;
	struct tp_conn *inner;
	int r = tp_accept(l->inner, &inner, deadline, cancel_fd, err);

	return r != 0 ? r : wrap(out, inner, &l->spec, l->spec.seed + l->accepted++, err);
}

static void fault_listener_close(struct tp_listener *base)
{
	struct fault_listener *l = (struct fault_listener *)base;

	tp_listener_close(l->inner);
	free(l);
}

static const struct tp_listener_ops listener_ops = { .accept = fault_accept, .close = fault_listener_close };

int fault_listen(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	struct fault_listener *l = FT_FAULT("fault/listener") ? NULL : calloc(1, sizeof(*l));
	const char *uri;
	int r;

	if (!l)
		return err_set(err, -ENOMEM, "no memory");
	l->base.ops = &listener_ops;
	r = parse(&l->spec, rest, &uri, err);
	if (r == 0)
		r = tp_listen(&l->inner, uri, p, err);
	if (r != 0) {
		free(l);
		return r;
	}
	strncpy(l->base.address, tp_listener_address(l->inner), sizeof(l->base.address) - 1);
	*out = &l->base;
	return 0;
}
