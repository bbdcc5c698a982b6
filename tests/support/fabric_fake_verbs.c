/* SPDX-License-Identifier: MIT */
/* fabric_fake_verbs.c - the made-up fabric's objects: protection domains, memory, completion queues, queue pairs; posting and polling.
 * Strict where providers differ: a place in a send or receive queue is free when its completion, or a later one, was polled and not when
 * the device is done; memory that a request names may be deregistered after that only. */
#include "fabric_fake_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static struct fake_qp *of_qp(struct ibv_qp *qp)
{
	return (struct fake_qp *)qp;
}

static struct fake_cq *of_cq(struct ibv_cq *cq)
{
	return (struct fake_cq *)cq;
}

static struct fake_pd *of_pd(struct ibv_pd *pd)
{
	return (struct fake_pd *)pd;
}

static int alive(struct ibv_context *context)
{
	struct fake_device *d = fake_device_of(context);

	return !d || d->removed ? -EIO : 0;
}

/* -- the device -- */

static int query_device(struct ibv_context *context, struct ibv_device_attr_ex *attr)
{
	int r = fake_begin(FABRIC_QUERY_DEVICE);
	struct ibv_device_attr *a = &attr->orig_attr;

	if (r || (r = alive(context)))
		return fake_done(r);
	memset(attr, 0, sizeof(*attr));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "made up");
	a->max_mr_size = fake.cfg.max_mr_size;
	a->page_size_cap = 4096;
	a->max_qp = fake.cfg.max_qp;
	a->max_qp_wr = fake.cfg.max_qp_wr;
	a->max_sge = a->max_sge_rd = fake.cfg.max_sge;
	a->max_cq = 1024;
	a->max_cqe = fake.cfg.max_cqe;
	a->max_mr = fake.cfg.max_mr;
	a->max_pd = 1024;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->max_res_rd_atom = 4096;
	a->max_pkeys = 1;
	a->phys_port_cnt = 1;
	if (fake.cfg.odp) {
		attr->odp_caps.general_caps = IBV_ODP_SUPPORT;
		attr->odp_caps.per_transport_caps.rc_odp_caps =
			IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
	}
	return fake_done(0);
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	int r = fake_begin(FABRIC_QUERY_PORT);

	if (!r)
		r = alive(context);
	if (!r && port != 1)
		r = -EINVAL;
	if (r)
		return fake_done(r);
	memset(attr, 0, sizeof(*attr));
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = IBV_MTU_4096;
	attr->active_mtu = fake.cfg.mtu;
	attr->gid_tbl_len = 3;
	attr->max_msg_sz = fake.cfg.max_msg_sz;
	attr->pkey_tbl_len = 1;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return fake_done(0);
}

static const char *device_name(struct ibv_context *context)
{
	return context->device->name;
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	int r = fake_begin(FABRIC_ALLOC_PD);
	struct fake_pd *pd;

	if (r || (r = alive(context)))
		return fake_done_ptr(NULL, r);
	pd = fake_alloc(sizeof(*pd));
	pd->pd.context = context;
	pd->pd.handle = ++fake.next_handle;
	LIST_INSERT_HEAD(&fake.pds, pd, link);
	fake.live.pds++;
	return fake_done_ptr(&pd->pd, 0);
}

static int dealloc_pd(struct ibv_pd *user)
{
	int r = fake_begin(FABRIC_DEALLOC_PD);
	struct fake_pd *pd = of_pd(user);

	if (r)
		return fake_done(r);
	if (pd->mrs || pd->qps) {
		fake_violation("protection domain given back with %u regions and %u queue pairs", pd->mrs, pd->qps);
		return fake_done(-EBUSY);
	}
	LIST_REMOVE(pd, link);
	free(pd);
	fake.live.pds--;
	return fake_done(0);
}

/* -- memory -- */

static bool is_mapped(const void *addr, size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)addr / page * page, last = ((uintptr_t)addr + (len ? len - 1 : 0)) / page * page;
	unsigned char vec;

	return mincore((void *)first, page, &vec) == 0 && mincore((void *)last, page, &vec) == 0;
}

static int may_register(struct ibv_pd *pd, const void *addr, size_t length, int access)
{
	bool demand = access & IBV_ACCESS_ON_DEMAND;

	if (alive(pd->context))
		return -EIO;
	if (length == 0 || length > fake.cfg.max_mr_size || (demand && !fake.cfg.odp))
		return -EINVAL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		fake_violation("memory registered to be written by the peer but not locally");
		return -EINVAL;
	}
	if (!is_mapped(addr, length))
		return -EFAULT;
	if (fake.live.mrs >= (unsigned)fake.cfg.max_mr)
		return -ENOMEM;
	if (!demand && (length > fake.cfg.max_pinned || fake.live.pinned > fake.cfg.max_pinned - length))
		return -ENOMEM;
	return 0;
}

static unsigned free_place(void)
{
	for (unsigned i = 0; i < fake.nr_mr; i++)
		if (!fake.mr[i])
			return i;
	if (fake.nr_mr == fake.cap_mr) {
		fake.cap_mr = fake.cap_mr ? 2 * fake.cap_mr : 64;
		fake.mr = realloc(fake.mr, fake.cap_mr * sizeof(fake.mr[0]));
		fake.mr_generation = realloc(fake.mr_generation, fake.cap_mr * sizeof(fake.mr_generation[0]));
		CHECK(fake.mr && fake.mr_generation, "no memory");
	}
	fake.mr[fake.nr_mr] = NULL;
	fake.mr_generation[fake.nr_mr] = 0;
	return fake.nr_mr++;
}

/* Keys: 18 bits of place, 13 of generation, 1 for remote: one that was given back is not taken for another. */
static void set_keys(struct fake_mr *mr, unsigned place)
{
	uint32_t key = (fake.mr_generation[place]++ & 0x1fff) << 19 | (place + 1) << 1;

	mr->mr.lkey = key;
	mr->mr.rkey = key | 1;
}

struct fake_mr *fake_mr_check(uint32_t key, bool remote, const struct ibv_pd *pd, uint64_t addr, uint64_t len,
			      int access)
{
	unsigned place = (key >> 1 & 0x3ffff) - 1;
	struct fake_mr *mr = place < fake.nr_mr ? fake.mr[place] : NULL;
	uint64_t base;

	if (!mr || (remote ? mr->mr.rkey : mr->mr.lkey) != key || mr->mr.pd != pd || (mr->access & access) != access)
		return NULL;
	base = (uint64_t)(uintptr_t)mr->mr.addr;
	if (addr < base || len > mr->mr.length || addr - base > mr->mr.length - len)
		return NULL;
	return mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	int r = fake_begin(FABRIC_REG_MR);
	struct fake_mr *mr;
	unsigned place;

	if (r || (r = may_register(pd, addr, length, access)))
		return fake_done_ptr(NULL, r);
	mr = fake_alloc(sizeof(*mr));
	place = free_place();
	mr->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = place };
	mr->access = access;
	set_keys(mr, place);
	fake.mr[place] = mr;
	of_pd(pd)->mrs++;
	fake.registered++;
	fake.live.mrs++;
	fake.live.bytes += length;
	if (!(access & IBV_ACCESS_ON_DEMAND))
		fake.live.pinned += length;
	return fake_done_ptr(&mr->mr, 0);
}

static bool names(const struct fake_wrs *list, uint32_t lkey)
{
	const struct fake_wr *wr;

	TAILQ_FOREACH(wr, list, link)
	for (unsigned i = 0; i < wr->nr_sge && !wr->copy; i++)
		if (wr->sge[i].lkey == lkey)
			return true;
	return false;
}

static int dereg_mr(struct ibv_mr *user)
{
	int r = fake_begin(FABRIC_DEREG_MR);
	struct fake_mr *mr = (struct fake_mr *)user;
	struct fake_qp *qp;

	if (r)
		return fake_done(r);
	TAILQ_FOREACH(qp, &fake.qps, link)
	if (qp->qp.state != IBV_QPS_ERR && (names(&qp->sq, mr->mr.lkey) || names(&qp->rq, mr->mr.lkey)))
		fake_violation("memory deregistered that queue pair %u still uses", qp->qp.qp_num);
	fake.mr[mr->mr.handle] = NULL;
	of_pd(mr->mr.pd)->mrs--;
	fake.live.mrs--;
	fake.live.bytes -= mr->mr.length;
	if (!(mr->access & IBV_ACCESS_ON_DEMAND))
		fake.live.pinned -= mr->mr.length;
	free(mr);
	return fake_done(0);
}

/* -- completion queues -- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	int r = fake_begin(FABRIC_CREATE_COMP_CHANNEL), fd;
	struct fake_comp_channel *c;

	if (r || (r = alive(context)))
		return fake_done_ptr(NULL, r);
	fd = fake_eventfd();
	if (fd < 0)
		return fake_done_ptr(NULL, fd);
	c = fake_alloc(sizeof(*c));
	c->ch.context = context;
	c->ch.fd = fd;
	TAILQ_INIT(&c->events);
	LIST_INSERT_HEAD(&fake.comp_channels, c, link);
	fake.live.comp_channels++;
	return fake_done_ptr(&c->ch, 0);
}

static void free_comp_channel(struct fake_comp_channel *c)
{
	struct fake_comp_event *e;

	while ((e = TAILQ_FIRST(&c->events))) {
		TAILQ_REMOVE(&c->events, e, link);
		free(e);
	}
	LIST_REMOVE(c, link);
	close(c->ch.fd);
	free(c);
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	int r = fake_begin(FABRIC_DESTROY_COMP_CHANNEL);

	if (r)
		return fake_done(r);
	if (channel->refcnt > 0) {
		fake_violation("completion channel destroyed while %d queues use it", channel->refcnt);
		return fake_done(-EBUSY);
	}
	free_comp_channel((struct fake_comp_channel *)channel);
	fake.live.comp_channels--;
	return fake_done(0);
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel)
{
	int r = fake_begin(FABRIC_CREATE_CQ);
	struct fake_cq *cq;

	if (r || (r = alive(context)))
		return fake_done_ptr(NULL, r);
	if (cqe < 1 || cqe > fake.cfg.max_cqe)
		return fake_done_ptr(NULL, -EINVAL);
	cq = fake_alloc(sizeof(*cq));
	cq->cq.context = context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.handle = ++fake.next_handle;
	cq->cq.cqe = cqe;
	cq->ring = fake_alloc((size_t)cqe * sizeof(cq->ring[0]));
	if (channel)
		channel->refcnt++;
	LIST_INSERT_HEAD(&fake.cqs, cq, link);
	fake.live.cqs++;
	return fake_done_ptr(&cq->cq, 0);
}

static void drop_comp_events(struct fake_cq *cq)
{
	struct fake_comp_channel *c = (struct fake_comp_channel *)cq->cq.channel;
	struct fake_comp_event *e, *next;
	bool had = !TAILQ_EMPTY(&c->events);

	for (e = TAILQ_FIRST(&c->events); e; e = next) {
		next = TAILQ_NEXT(e, link);
		if (e->cq == cq) {
			TAILQ_REMOVE(&c->events, e, link);
			free(e);
		}
	}
	if (had && TAILQ_EMPTY(&c->events))
		fake_lower(c->ch.fd);
}

static int destroy_cq(struct ibv_cq *user)
{
	int r = fake_begin(FABRIC_DESTROY_CQ);
	struct fake_cq *cq = of_cq(user);

	if (r)
		return fake_done(r);
	if (cq->qps) {
		fake_violation("completion queue destroyed while %u queue pairs use it", cq->qps);
		return fake_done(-EBUSY);
	}
	if (cq->unacked) {
		fake_violation(
			"completion queue destroyed with %u events that are not acked: libibverbs would wait for ever",
			cq->unacked);
		fake.live.cq_events -= cq->unacked;
	}
	if (cq->cq.channel) {
		drop_comp_events(cq);
		cq->cq.channel->refcnt--;
	}
	LIST_REMOVE(cq, link);
	free(cq->ring);
	free(cq);
	fake.live.cqs--;
	return fake_done(0);
}

static int req_notify_cq(struct ibv_cq *user, int solicited_only)
{
	int r = fake_begin(FABRIC_REQ_NOTIFY_CQ);

	if (r)
		return fake_done(r);
	of_cq(user)->armed = true;
	of_cq(user)->solicited_only = solicited_only != 0;
	return fake_done(0);
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	int r = fake_begin(FABRIC_GET_CQ_EVENT);
	struct fake_comp_channel *c = (struct fake_comp_channel *)channel;
	struct fake_comp_event *e = TAILQ_FIRST(&c->events);

	if (r || !e)
		return fake_done(r ? r : -EAGAIN);
	TAILQ_REMOVE(&c->events, e, link);
	if (TAILQ_EMPTY(&c->events))
		fake_lower(c->ch.fd);
	*cq = &e->cq->cq;
	*cq_context = e->cq->cq.cq_context;
	e->cq->unacked++;
	fake.live.cq_events++;
	free(e);
	return fake_done(0);
}

static void ack_cq_events(struct ibv_cq *user, unsigned nevents)
{
	struct fake_cq *cq = of_cq(user);

	pthread_mutex_lock(&fake_lock);
	if (nevents > cq->unacked) {
		fake_violation("%u completion events acked, %u were got", nevents, cq->unacked);
		nevents = cq->unacked;
	}
	cq->unacked -= nevents;
	fake.live.cq_events -= nevents;
	fake_done(0);
}

static void notify(struct fake_cq *cq)
{
	struct fake_comp_channel *c = (struct fake_comp_channel *)cq->cq.channel;
	struct fake_comp_event *e;

	cq->armed = false;
	if (!c)
		return;
	e = fake_alloc(sizeof(*e));
	e->cq = cq;
	if (TAILQ_EMPTY(&c->events))
		fake_raise(c->ch.fd);
	TAILQ_INSERT_TAIL(&c->events, e, link);
}

void fake_cq_push(struct ibv_cq *user, const struct ibv_wc *wc, bool recv, unsigned retires, bool solicited)
{
	struct fake_cq *cq = of_cq(user);

	if (cq->count == (unsigned)cq->cq.cqe) {
		fake_violation("completion queue of %d overrun", cq->cq.cqe);
		return;
	}
	cq->ring[(cq->first + cq->count++) % (unsigned)cq->cq.cqe] =
		(struct fake_cqe){ .wc = *wc, .qp_num = wc->qp_num, .recv = recv, .retires = retires };
	if (cq->armed && (!cq->solicited_only || solicited || wc->status != IBV_WC_SUCCESS))
		notify(cq);
}

/* The user knows now that the oldest @n of the list are done. */
static void retire(struct fake_wrs *list, unsigned *used, unsigned n)
{
	while (n-- > 0) {
		struct fake_wr *wr = TAILQ_FIRST(list);

		TAILQ_REMOVE(list, wr, link);
		free(wr->copy);
		free(wr);
		--*used;
	}
}

static int poll_cq(struct ibv_cq *user, int num_entries, struct ibv_wc *wc)
{
	int r = fake_begin(FABRIC_POLL_CQ), n = 0;
	struct fake_cq *cq = of_cq(user);

	if (r)
		return fake_done(r);
	for (; n < num_entries && cq->count > 0; n++, cq->count--) {
		struct fake_cqe *e = &cq->ring[cq->first];
		struct fake_qp *qp = fake_qp_by_num(e->qp_num);

		wc[n] = e->wc;
		if (e->wc.status != IBV_WC_SUCCESS) /* only these count then */
			memset(&wc[n].opcode, 0x5a, sizeof(wc[n].opcode));
		if (qp && e->recv)
			retire(&qp->rq, &qp->rq_used, e->retires);
		else if (qp)
			retire(&qp->sq, &qp->sq_used, e->retires);
		cq->first = (cq->first + 1) % (unsigned)cq->cq.cqe;
	}
	return fake_done(n);
}

/* -- queue pairs -- */

struct fake_qp *fake_qp_by_num(uint32_t num)
{
	struct fake_qp *qp;

	TAILQ_FOREACH(qp, &fake.qps, link)
	if (qp->qp.qp_num == num)
		return qp;
	return NULL;
}

static int check_caps(const struct ibv_qp_cap *cap)
{
	uint32_t wr = (uint32_t)fake.cfg.max_qp_wr, sge = (uint32_t)fake.cfg.max_sge;

	if (cap->max_send_wr > wr || cap->max_recv_wr > wr || cap->max_send_sge > sge || cap->max_recv_sge > sge ||
	    cap->max_inline_data > fake.cfg.max_inline)
		return -EINVAL;
	return fake.live.qps >= (unsigned)fake.cfg.max_qp ? -ENOMEM : 0;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	int r = fake_begin(FABRIC_CREATE_QP);
	struct fake_qp *qp;

	if (!r && (!id->verbs || !pd || pd->context != id->verbs || id->qp || !attr->send_cq || !attr->recv_cq ||
		   attr->qp_type != IBV_QPT_RC))
		r = -EINVAL;
	if (r || (r = alive(id->verbs)) || (r = check_caps(&attr->cap)))
		return fake_done(r);
	qp = fake_alloc(sizeof(*qp));
	qp->id = (struct fake_id *)id;
	qp->cap = attr->cap;
	qp->sq_sig_all = attr->sq_sig_all;
	TAILQ_INIT(&qp->sq);
	TAILQ_INIT(&qp->rq);
	qp->qp = (struct ibv_qp){ .context = id->verbs,
				  .qp_context = attr->qp_context,
				  .pd = pd,
				  .send_cq = attr->send_cq,
				  .recv_cq = attr->recv_cq,
				  .handle = ++fake.next_handle,
				  .qp_num = fake.next_qp_num++,
				  .state = IBV_QPS_INIT,
				  .qp_type = IBV_QPT_RC };
	of_cq(attr->send_cq)->qps++;
	of_cq(attr->recv_cq)->qps++;
	of_pd(pd)->qps++;
	TAILQ_INSERT_TAIL(&fake.qps, qp, link);
	fake.live.qps++;
	id->qp = &qp->qp;
	id->pd = pd;
	return fake_done(0);
}

static void free_wrs(struct fake_wrs *list)
{
	struct fake_wr *wr;

	while ((wr = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, wr, link);
		free(wr->copy);
		free(wr);
	}
}

static void free_qp(struct fake_qp *qp)
{
	TAILQ_REMOVE(&fake.qps, qp, link);
	free_wrs(&qp->sq);
	free_wrs(&qp->rq);
	free(qp);
}

static void destroy_qp(struct rdma_cm_id *id)
{
	struct fake_qp *qp = of_qp(id->qp);

	pthread_mutex_lock(&fake_lock);
	of_cq(qp->qp.send_cq)->qps--;
	of_cq(qp->qp.recv_cq)->qps--;
	of_pd(qp->qp.pd)->qps--;
	free_qp(qp);
	id->qp = NULL;
	fake.live.qps--;
	fake_done(0);
}

static int query_qp(struct ibv_qp *user, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	int r = fake_begin(FABRIC_QUERY_QP);
	struct fake_qp *qp = of_qp(user);

	(void)mask;
	if (r || (r = alive(user->context)))
		return fake_done(r);
	memset(attr, 0, sizeof(*attr));
	attr->qp_state = attr->cur_qp_state = user->state;
	attr->path_mtu = fake.cfg.mtu;
	attr->cap = qp->cap;
	attr->port_num = 1;
	attr->dest_qp_num = qp->id && qp->id->peer && qp->id->peer->id.qp ? qp->id->peer->id.qp->qp_num : 0;
	attr->timeout = qp->id && qp->id->ack_timeout ? qp->id->ack_timeout : 19;
	attr->retry_cnt = qp->id ? qp->id->param.retry_count : 0;
	attr->rnr_retry = qp->id ? qp->id->param.rnr_retry_count : 0;
	memset(init, 0, sizeof(*init));
	init->send_cq = user->send_cq;
	init->recv_cq = user->recv_cq;
	init->cap = qp->cap;
	init->qp_type = user->qp_type;
	return fake_done(0);
}

void fake_qp_error(struct fake_qp *qp)
{
	if (qp->qp.state != IBV_QPS_RESET)
		qp->qp.state = IBV_QPS_ERR;
}

/* -- posting -- */

static void copy_inline(struct fake_wr *wr)
{
	size_t at = 0;

	wr->copy = fake_alloc(wr->len ? wr->len : 1);
	for (unsigned i = 0; i < wr->nr_sge; i++) {
		memcpy(wr->copy + at, (const void *)(uintptr_t)wr->sge[i].addr, wr->sge[i].length);
		at += wr->sge[i].length;
	}
}

static struct fake_wr *new_wr(uint64_t wr_id, const struct ibv_sge *sge, int nr)
{
	struct fake_wr *wr = fake_alloc(sizeof(*wr));

	wr->wr_id = wr_id;
	wr->nr_sge = (unsigned)nr;
	for (int i = 0; i < nr; i++) {
		wr->sge[i] = sge[i];
		wr->len += sge[i].length;
	}
	return wr;
}

static int post_one_send(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	int r = fake_rule_hits(FABRIC_POST_SEND);
	struct fake_wr *w;
	uint64_t len = 0;

	if (r || (r = alive(qp->qp.context)))
		return r;
	if (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR) {
		fake_violation("queue pair %u is asked to send before it is connected", qp->qp.qp_num);
		return -EINVAL;
	}
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return -EINVAL;
	if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_RDMA_WRITE)
		return -EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		len += wr->sg_list[i].length;
	if ((wr->send_flags & IBV_SEND_INLINE) && len > qp->cap.max_inline_data)
		return -EINVAL;
	if (qp->sq_used == qp->cap.max_send_wr)
		return -ENOMEM;
	w = new_wr(wr->wr_id, wr->sg_list, wr->num_sge);
	w->opcode = wr->opcode;
	w->flags = wr->send_flags | (qp->sq_sig_all ? IBV_SEND_SIGNALED : 0);
	w->remote = wr->wr.rdma.remote_addr;
	w->rkey = wr->wr.rdma.rkey;
	if (w->flags & IBV_SEND_INLINE)
		copy_inline(w);
	TAILQ_INSERT_TAIL(&qp->sq, w, link);
	qp->sq_used++;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int r = 0;

	pthread_mutex_lock(&fake_lock);
	for (; wr && r == 0; wr = r ? wr : wr->next)
		r = post_one_send(of_qp(qp), wr);
	if (r)
		*bad = wr;
	return fake_done(r);
}

static int post_one_recv(struct fake_qp *qp, const struct ibv_recv_wr *wr)
{
	int r = fake_rule_hits(FABRIC_POST_RECV);
	struct fake_wr *w;

	if (r || (r = alive(qp->qp.context)))
		return r;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_recv_sge)
		return -EINVAL;
	if (qp->rq_used == qp->cap.max_recv_wr) {
		fake_violation("receive queue of queue pair %u overrun", qp->qp.qp_num);
		return -ENOMEM;
	}
	w = new_wr(wr->wr_id, wr->sg_list, wr->num_sge);
	TAILQ_INSERT_TAIL(&qp->rq, w, link);
	qp->rq_used++;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int r = 0;

	pthread_mutex_lock(&fake_lock);
	for (; wr && r == 0; wr = r ? wr : wr->next)
		r = post_one_recv(of_qp(qp), wr);
	if (r)
		*bad = wr;
	return fake_done(r);
}

/* -- the end -- */

void fake_verbs_free_all(void)
{
	struct fake_comp_channel *c;
	struct fake_pd *pd;
	struct fake_cq *cq;
	struct fake_qp *qp;

	while ((qp = TAILQ_FIRST(&fake.qps)))
		free_qp(qp);
	while ((c = LIST_FIRST(&fake.comp_channels)))
		free_comp_channel(c);
	while ((cq = LIST_FIRST(&fake.cqs))) {
		LIST_REMOVE(cq, link);
		free(cq->ring);
		free(cq);
	}
	while ((pd = LIST_FIRST(&fake.pds))) {
		LIST_REMOVE(pd, link);
		free(pd);
	}
	for (unsigned i = 0; i < fake.nr_mr; i++)
		free(fake.mr[i]);
	free(fake.mr);
	free(fake.mr_generation);
}

const struct rdma_fabric fake_verbs_table = {
	.create_qp = create_qp,
	.destroy_qp = destroy_qp,
	.query_device = query_device,
	.query_port = query_port,
	.query_qp = query_qp,
	.device_name = device_name,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.dereg_mr = dereg_mr,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.req_notify_cq = req_notify_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.poll_cq = poll_cq,
	.post_send = post_send,
	.post_recv = post_recv,
};
