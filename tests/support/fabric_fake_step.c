/* SPDX-License-Identifier: MIT */
/* fabric_fake_step.c - what may happen next in the made-up fabric, and its doing, one step at a time: at once, when the test says so, or by
 * a thread that draws lots.
 *
 * On one queue pair requests are executed in their order, and told in their order; a message is told to its receiver after all writes before
 * it were executed.  A sender hears of a request after it was executed.  Nothing else is ordered. */
#include "fabric_fake_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "check.h"
#include "clock.h"
#include "rng.h"

#define CHOICES_MAX 512
#define ENDLESS 7 /* rnr_retry_count */

struct choice {
	enum fabric_step_kind kind;
	struct fake_qp *qp;
	struct fake_message *m;
};

static struct choice choices[CHOICES_MAX]; /* guarded by fake_lock */

/* -- the state of a queue pair -- */

static struct fake_wr *next_unexecuted(const struct fake_qp *qp)
{
	struct fake_wr *wr;

	TAILQ_FOREACH(wr, &qp->sq, link)
	if (!wr->executed)
		return wr;
	return NULL;
}

static struct fake_wr *first_untold(const struct fake_wrs *list)
{
	struct fake_wr *wr;

	TAILQ_FOREACH(wr, list, link)
	if (!wr->told)
		return wr;
	return NULL;
}

static struct fake_wr *next_receive(const struct fake_qp *qp)
{
	struct fake_wr *wr;

	TAILQ_FOREACH(wr, &qp->rq, link)
	if (!wr->taken)
		return wr;
	return NULL;
}

/* The queue pair at the other end, or NULL; @gone: there was one, and it will never answer again. */
static struct fake_qp *other_end(const struct fake_qp *qp, bool *gone)
{
	struct fake_id *peer = qp->id ? qp->id->peer : NULL;
	struct fake_qp *to = peer ? (struct fake_qp *)peer->id.qp : NULL;

	*gone = !to || to->qp.state == IBV_QPS_ERR || peer->state == ID_OVER;
	return *gone ? NULL : to;
}

static bool can_execute(const struct fake_qp *qp)
{
	struct fake_wr *wr = next_unexecuted(qp);
	struct fake_qp *to;
	bool gone;

	if (!wr || qp->qp.state != IBV_QPS_RTS || qp->stalled || fake.link != FABRIC_UP)
		return false;
	to = other_end(qp, &gone);
	if (!to || to->qp.state != IBV_QPS_RTS)
		return false;
	return wr->opcode != IBV_WR_SEND || next_receive(to) || wr->tries == 0 ||
	       qp->id->param.rnr_retry_count < ENDLESS;
}

static bool can_deliver(const struct fake_qp *qp)
{
	struct fake_wr *wr = first_untold(&qp->rq);

	return wr && (wr->taken || qp->qp.state == IBV_QPS_ERR);
}

static bool can_ack(const struct fake_qp *qp)
{
	struct fake_wr *wr = first_untold(&qp->sq);

	if (qp->qp.state == IBV_QPS_ERR)
		return wr;
	for (; wr && wr->executed; wr = TAILQ_NEXT(wr, link)) {
		if (wr->status != IBV_WC_SUCCESS)
			return true;
		if ((wr->flags & IBV_SEND_SIGNALED) && fake.link == FABRIC_UP)
			return true;
	}
	return false;
}

/* The request that will never be answered, or NULL. */
static struct fake_wr *hopeless(const struct fake_qp *qp)
{
	struct fake_wr *wr;
	bool gone;

	if (qp->qp.state != IBV_QPS_RTS || qp->stalled || fake.link == FABRIC_SILENT)
		return NULL;
	if (fake.link == FABRIC_DEAD) {
		TAILQ_FOREACH(wr, &qp->sq, link)
		if (!wr->told && (!wr->executed || (wr->flags & IBV_SEND_SIGNALED)))
			return wr;
		return NULL;
	}
	other_end(qp, &gone);
	return gone ? next_unexecuted(qp) : NULL;
}

/* -- execution -- */

static bool local_memory_fits(const struct fake_qp *qp, const struct fake_wr *wr, int access)
{
	for (unsigned i = 0; i < wr->nr_sge && !wr->copy; i++)
		if (wr->sge[i].length > 0 &&
		    !fake_mr_check(wr->sge[i].lkey, false, qp->qp.pd, wr->sge[i].addr, wr->sge[i].length, access))
			return false;
	return true;
}

/* Octets [@from, @to) of what @wr gathers go to @out. */
static void gather(const struct fake_wr *wr, uint64_t from, uint64_t to, uint8_t *out)
{
	uint64_t at = 0;

	if (wr->copy) {
		memcpy(out, wr->copy + from, to - from);
		return;
	}
	for (unsigned i = 0; i < wr->nr_sge; at += wr->sge[i++].length) {
		uint64_t a = from > at ? from - at : 0, b = to > at ? to - at : 0;

		if (b > wr->sge[i].length)
			b = wr->sge[i].length;
		if (a >= b)
			continue;
		memcpy(out, (const uint8_t *)(uintptr_t)wr->sge[i].addr + a, b - a);
		out += b - a;
	}
}

static void scatter(const struct fake_wr *recv, const uint8_t *in, uint64_t len)
{
	for (unsigned i = 0; i < recv->nr_sge && len > 0; i++) {
		uint64_t n = recv->sge[i].length < len ? recv->sge[i].length : len;

		memcpy((void *)(uintptr_t)recv->sge[i].addr, in, n);
		in += n;
		len -= n;
	}
}

static void finish(struct fake_qp *qp, struct fake_wr *wr, enum ibv_wc_status status)
{
	wr->executed = true;
	wr->status = status;
	qp->stalled = status != IBV_WC_SUCCESS;
}

static void execute_write(struct fake_qp *qp, struct fake_wr *wr, struct fake_qp *to)
{
	uint64_t from = wr->half ? wr->len / 2 : 0, end = wr->len;
	uint8_t *target = (uint8_t *)(uintptr_t)wr->remote;

	if (!local_memory_fits(qp, wr, 0)) {
		finish(qp, wr, IBV_WC_LOC_PROT_ERR);
		return;
	}
	if (wr->len > 0 && !fake_mr_check(wr->rkey, true, to->qp.pd, wr->remote, wr->len, IBV_ACCESS_REMOTE_WRITE)) {
		finish(qp, wr, IBV_WC_REM_ACCESS_ERR);
		fake_qp_error(to);
		return;
	}
	if (fake.cfg.torn && wr->len > 1 && !wr->half)
		end = wr->len / 2;
	gather(wr, from, end, target + from);
	wr->half = true;
	if (end == wr->len)
		finish(qp, wr, IBV_WC_SUCCESS);
}

static void no_receive(struct fake_qp *qp, struct fake_wr *wr, struct fake_qp *to)
{
	if (wr->tries++ == 0 && !fake.cfg.rnr_is_fine)
		fake_violation("receiver not ready: queue pair %u has no receive for a message of queue pair %u",
			       to->qp.qp_num, qp->qp.qp_num);
	if (qp->id->param.rnr_retry_count < ENDLESS && wr->tries > qp->id->param.rnr_retry_count)
		finish(qp, wr, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void fail_receive(struct fake_qp *to, struct fake_wr *recv, enum ibv_wc_status status)
{
	recv->status = status;
	fake_qp_error(to);
}

static void execute_send(struct fake_qp *qp, struct fake_wr *wr, struct fake_qp *to)
{
	struct fake_wr *recv = next_receive(to);
	enum ibv_wc_status status;
	uint64_t room = 0;
	uint8_t *data;

	if (!local_memory_fits(qp, wr, 0)) {
		finish(qp, wr, IBV_WC_LOC_PROT_ERR);
		return;
	}
	if (!recv) {
		no_receive(qp, wr, to);
		return;
	}
	recv->taken = true;
	recv->byte_len = (uint32_t)wr->len;
	recv->flags = wr->flags;
	for (unsigned i = 0; i < recv->nr_sge; i++)
		room += recv->sge[i].length;
	status = fake_wr_fails(FABRIC_WR_RECV);
	if (status != IBV_WC_SUCCESS || !local_memory_fits(to, recv, IBV_ACCESS_LOCAL_WRITE)) {
		fail_receive(to, recv, status ? status : IBV_WC_LOC_PROT_ERR);
		finish(qp, wr, IBV_WC_REM_OP_ERR);
		return;
	}
	if (wr->len > room) {
		fail_receive(to, recv, IBV_WC_LOC_LEN_ERR);
		finish(qp, wr, IBV_WC_REM_INV_REQ_ERR);
		return;
	}
	data = fake_alloc(wr->len ? wr->len : 1);
	gather(wr, 0, wr->len, data);
	scatter(recv, data, wr->len);
	free(data);
	finish(qp, wr, IBV_WC_SUCCESS);
}

static void execute(struct fake_qp *qp)
{
	struct fake_wr *wr = next_unexecuted(qp);
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	struct fake_qp *to;
	bool gone;

	to = other_end(qp, &gone);
	if (!wr->begun)
		status = fake_wr_fails(wr->opcode == IBV_WR_SEND ? FABRIC_WR_SEND : FABRIC_WR_WRITE);
	wr->begun = true;
	if (status == IBV_WC_SUCCESS && wr->len > fake.cfg.max_msg_sz)
		status = IBV_WC_LOC_LEN_ERR;
	if (status != IBV_WC_SUCCESS)
		finish(qp, wr, status);
	else if (wr->opcode == IBV_WR_SEND)
		execute_send(qp, wr, to);
	else
		execute_write(qp, wr, to);
}

/* -- completions -- */

static struct ibv_wc completion(const struct fake_qp *qp, const struct fake_wr *wr, enum ibv_wc_status status)
{
	return (struct ibv_wc){ .wr_id = wr->wr_id, .status = status, .qp_num = qp->qp.qp_num };
}

static void deliver_one(struct fake_qp *qp, struct fake_wr *wr)
{
	struct ibv_wc wc = completion(qp, wr, wr->taken ? wr->status : IBV_WC_WR_FLUSH_ERR);

	wr->taken = wr->told = true;
	wc.opcode = IBV_WC_RECV;
	wc.byte_len = wr->byte_len;
	if (fake.lose_recv > 0 && --fake.lose_recv == 0) {
		fake.hits++;
		return;
	}
	fake_cq_push(qp->qp.recv_cq, &wc, true, 1, wr->flags & IBV_SEND_SOLICITED);
}

/* What is flushed is flushed in one step: it all says the same. */
static void deliver(struct fake_qp *qp)
{
	struct fake_wr *wr = first_untold(&qp->rq);
	bool flush = !wr->taken;

	deliver_one(qp, wr);
	while (flush && (wr = first_untold(&qp->rq)))
		deliver_one(qp, wr);
}

static void tell(struct fake_qp *qp, struct fake_wr *wr, enum ibv_wc_status status)
{
	struct ibv_wc wc = completion(qp, wr, status);

	wr->told = true;
	wc.opcode = wr->opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
	fake_cq_push(qp->qp.send_cq, &wc, false, qp->sq_silent + 1, false);
	qp->sq_silent = 0;
}

static void ack(struct fake_qp *qp)
{
	struct fake_wr *wr;

	for (wr = first_untold(&qp->sq); wr; wr = TAILQ_NEXT(wr, link)) {
		if (wr->executed && wr->status != IBV_WC_SUCCESS) {
			tell(qp, wr, wr->status);
			fake_qp_error(qp);
			return;
		}
		if (qp->qp.state == IBV_QPS_ERR) {
			tell(qp, wr, IBV_WC_WR_FLUSH_ERR);
			continue;
		}
		if (wr->flags & IBV_SEND_SIGNALED) {
			tell(qp, wr, IBV_WC_SUCCESS);
			return;
		}
		wr->told = true;
		qp->sq_silent++;
	}
}

static void give_up(struct fake_qp *qp)
{
	struct fake_wr *bad = hopeless(qp), *wr;

	TAILQ_FOREACH(wr, &qp->sq, link)
	{
		if (wr == bad)
			break;
		if (!wr->told) {
			wr->told = true;
			qp->sq_silent++;
		}
	}
	tell(qp, bad, IBV_WC_RETRY_EXC_ERR);
	fake_qp_error(qp);
}

/* A message that the dead wire swallows. */
static void lose_message(struct fake_message *m)
{
	if (m->request)
		fake_cm_send(m->to, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0, false);
	TAILQ_REMOVE(&fake.messages, m, link);
	free(m);
}

/* -- choosing -- */

static void add(unsigned *n, enum fabric_step_kind kind, struct fake_qp *qp, struct fake_message *m)
{
	CHECK(*n < CHOICES_MAX, "too many choices");
	choices[(*n)++] = (struct choice){ kind, qp, m };
}

/* Time-outs last. */
static unsigned list_choices(unsigned *nr_soon)
{
	struct fake_message *m;
	struct fake_qp *qp;
	unsigned n = 0;

	TAILQ_FOREACH(qp, &fake.qps, link)
	{
		if (can_execute(qp))
			add(&n, FABRIC_EXECUTE, qp, NULL);
		if (can_deliver(qp))
			add(&n, FABRIC_DELIVER, qp, NULL);
		if (can_ack(qp))
			add(&n, FABRIC_ACK, qp, NULL);
	}
	TAILQ_FOREACH(m, &fake.messages, link)
	if (!m->timeout && fake_message_ready(m))
		add(&n, FABRIC_CM, NULL, m);
	*nr_soon = n;
	TAILQ_FOREACH(qp, &fake.qps, link)
	if (hopeless(qp))
		add(&n, FABRIC_TIMEOUT, qp, NULL);
	TAILQ_FOREACH(m, &fake.messages, link)
	if (m->timeout ? fake_message_ready(m) && fake.link != FABRIC_SILENT : m->far && fake.link == FABRIC_DEAD)
		add(&n, FABRIC_TIMEOUT, NULL, m);
	return n;
}

static const char *wr_name(const struct fake_wr *wr)
{
	return wr->opcode == IBV_WR_SEND ? "send" : "write";
}

static void describe(const struct choice *c, char *text, size_t size)
{
	const struct fake_wr *wr;

	if (c->m) {
		fake_message_text(c->m, text, size);
		return;
	}
	switch (c->kind) {
	case FABRIC_EXECUTE:
		wr = next_unexecuted(c->qp);
		snprintf(text, size, "qp %u: execute %s of %llu (id %#llx)", c->qp->qp.qp_num, wr_name(wr),
			 (unsigned long long)wr->len, (unsigned long long)wr->wr_id);
		break;
	case FABRIC_DELIVER:
		wr = first_untold(&c->qp->rq);
		snprintf(text, size, "qp %u: tell of receive (id %#llx)%s", c->qp->qp.qp_num,
			 (unsigned long long)wr->wr_id, wr->taken ? "" : ", flushed");
		break;
	case FABRIC_ACK:
		wr = first_untold(&c->qp->sq);
		snprintf(text, size, "qp %u: tell of completed %s (id %#llx)", c->qp->qp.qp_num, wr_name(wr),
			 (unsigned long long)wr->wr_id);
		break;
	case FABRIC_TIMEOUT:
		wr = hopeless(c->qp);
		snprintf(text, size, "qp %u: give up %s (id %#llx)", c->qp->qp.qp_num, wr_name(wr),
			 (unsigned long long)wr->wr_id);
		break;
	case FABRIC_CM:
	case FABRIC_STEP_KINDS:
		break;
	}
}

static void take(struct choice c)
{
	static int trace = -1;
	char text[104];

	if (trace < 0)
		trace = getenv("FABRIC_TRACE") != NULL;
	if (trace) {
		describe(&c, text, sizeof(text));
		fprintf(stderr, "fabric: %s\n", text);
	}
	switch (c.kind) {
	case FABRIC_EXECUTE:
		execute(c.qp);
		break;
	case FABRIC_DELIVER:
		deliver(c.qp);
		break;
	case FABRIC_ACK:
		ack(c.qp);
		break;
	case FABRIC_CM:
		fake_message_deliver(c.m);
		break;
	case FABRIC_TIMEOUT:
		if (c.qp)
			give_up(c.qp);
		else if (c.m->timeout)
			fake_message_deliver(c.m);
		else
			lose_message(c.m);
		break;
	case FABRIC_STEP_KINDS:
		break;
	}
}

void fake_steps_immediate(void)
{
	unsigned soon;

	while (fake.mode == MODE_IMMEDIATE && list_choices(&soon) > 0)
		take(choices[0]);
}

/* -- by hand -- */

static void set_mode(enum fake_mode mode)
{
	fake_step_thread_stop();
	pthread_mutex_lock(&fake_lock);
	fake.mode = mode;
	fake_done(0);
}

void fabric_immediate(void)
{
	set_mode(MODE_IMMEDIATE);
}

void fabric_manual(void)
{
	set_mode(MODE_MANUAL);
}

unsigned fabric_choices(struct fabric_choice *out, unsigned max)
{
	unsigned n, soon;

	pthread_mutex_lock(&fake_lock);
	n = list_choices(&soon);
	for (unsigned i = 0; i < n && i < max; i++) {
		out[i].kind = choices[i].kind;
		out[i].qp_num = choices[i].qp ? choices[i].qp->qp.qp_num : 0;
		describe(&choices[i], out[i].text, sizeof(out[i].text));
	}
	pthread_mutex_unlock(&fake_lock);
	return n;
}

void fabric_step(unsigned choice)
{
	unsigned soon;

	pthread_mutex_lock(&fake_lock);
	CHECK(choice < list_choices(&soon), "no such choice");
	take(choices[choice]);
	pthread_mutex_unlock(&fake_lock);
}

unsigned fabric_settle(void)
{
	unsigned n = 0, soon;

	pthread_mutex_lock(&fake_lock);
	while (list_choices(&soon), soon > 0) {
		take(choices[0]);
		n++;
	}
	pthread_mutex_unlock(&fake_lock);
	return n;
}

/* -- by lot -- */

struct phase {
	unsigned left;
	unsigned kind[FABRIC_STEP_KINDS], qp[4];
};

static void draw_phase(struct phase *p, struct rng *rng)
{
	static const unsigned weights[] = { 0, 1, 1, 4 };

	p->left = (unsigned)rng_range(rng, 1, 64);
	for (unsigned i = 0; i < FABRIC_STEP_KINDS; i++)
		p->kind[i] = weights[rng_next(rng) % 4];
	for (unsigned i = 0; i < 4; i++)
		p->qp[i] = weights[rng_next(rng) % 4];
}

static unsigned draw(struct phase *p, struct rng *rng, unsigned n)
{
	unsigned total = 0, at = 0;

	if (p->left-- == 0)
		draw_phase(p, rng);
	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < n; i++) {
			unsigned w =
				p->kind[choices[i].kind] * (choices[i].qp ? p->qp[choices[i].qp->qp.qp_num % 4] : 1);

			if (pass == 0)
				total += w;
			else if (at < w)
				return i;
			else
				at -= w;
		}
		if (total == 0)
			break;
		at = (unsigned)(rng_next(rng) % total);
	}
	return (unsigned)(rng_next(rng) % n); /* only starved ones are left */
}

/* Nothing to do but time-outs, if those: true when it is time for one. */
static bool idle(unsigned nr_timeouts)
{
	struct timespec t = timespec_of_ns(now_ns() + fake.cfg.timeout_us * UINT64_C(1000));

	if (nr_timeouts > 0)
		return pthread_cond_timedwait(&fake.todo, &fake_lock, &t) == ETIMEDOUT;
	pthread_cond_wait(&fake.todo, &fake_lock);
	return false;
}

static void *thread(void *arg)
{
	struct rng rng = { fake.seed };
	struct phase phase = { 0 };
	unsigned n, soon;

	(void)arg;
	prctl(PR_SET_TIMERSLACK, 1); /* ns */
	pthread_mutex_lock(&fake_lock);
	while (!fake.stop) {
		n = list_choices(&soon);
		if (soon == 0 && idle(n) && !fake.stop) {
			n = list_choices(&soon);
			if (soon == 0 && n > 0)
				take(choices[rng_next(&rng) % n]);
		}
		if (soon == 0)
			continue;
		take(choices[draw(&phase, &rng, soon)]);
		pthread_mutex_unlock(&fake_lock);
		if (fake.pause_us > 0 && rng_next(&rng) % 8 == 0)
			nanosleep(&(struct timespec){ .tv_nsec = (long)(rng_next(&rng) % fake.pause_us) * 1000 }, NULL);
		else /* not sched_yield(), which waits for all that compute */
			nanosleep(&(struct timespec){ .tv_nsec = 1 }, NULL);
		pthread_mutex_lock(&fake_lock);
	}
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

void fabric_random(uint64_t seed, unsigned pause_us)
{
	set_mode(MODE_RANDOM);
	fake.seed = seed;
	fake.pause_us = pause_us;
	fake.stop = false;
	CHECK(pthread_create(&fake.thread, NULL, thread, NULL) == 0, "no thread");
	pthread_mutex_lock(&fake_lock);
	fake.thread_runs = true;
	pthread_mutex_unlock(&fake_lock);
}

void fake_step_thread_stop(void)
{
	bool runs;

	pthread_mutex_lock(&fake_lock);
	runs = fake.thread_runs;
	fake.thread_runs = false;
	fake.stop = true;
	if (runs)
		pthread_cond_signal(&fake.todo);
	pthread_mutex_unlock(&fake_lock);
	if (runs)
		pthread_join(fake.thread, NULL);
}
