/* SPDX-License-Identifier: MIT */
/* rdma_conn.c - what an rdma connection owns: its making, memory registration, connection manager events, what status shows, its end.
 * Runs on the threads of whoever makes, uses and closes it.
 *
 * Must hold: whatever half-built state it is in, rdma_conn_destroy() gives back all, each registration once; a connection manager event is
 * acked exactly once, after what is needed of it was taken. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "log.h"
#include "rdma_private.h"
#include "thread.h"

unsigned rdma_linger_ms = 300, rdma_end_ms = 1000;

/* -- memory -- */

static bool may_lock_all(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

	return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK));
}

static uint64_t memlock_limit(void)
{
	struct rlimit limit;

	if (may_lock_all() || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return limit.rlim_cur;
}

static unsigned long long mib(uint64_t bytes)
{
	return (bytes + (1u << 20) - 1) >> 20;
}

int rdma_check_memlock(struct rdma *s, uint64_t bytes, struct rdma_use use, struct ft_error *err)
{
	uint64_t limit = memlock_limit(), pinned = atomic_load(&s->pinned);

	if (bytes <= limit && pinned <= limit - bytes)
		return 0;
	return err_set(
		err, -ENOMEM,
		"%s needs %llu MiB of pinned memory besides %llu MiB, but RLIMIT_MEMLOCK is %llu MiB: raise it (ulimit "
		"-l %llu, LimitMEMLOCK= of the systemd unit), or give %s",
		use.what, mib(bytes), mib(pinned), mib(limit), (unsigned long long)((bytes + pinned + 1023) >> 10),
		use.less);
}

int rdma_reg(struct rdma *s, void *base, uint64_t len, int access, struct rdma_use use, struct ibv_mr **out,
	     struct ft_error *err)
{
	int e;

	*out = s->fabric->reg_mr(s->pd, base, len, access);
	if (*out) {
		rdma_count(&s->registrations, 1);
		if (!(access & IBV_ACCESS_ON_DEMAND))
			rdma_count(&s->pinned, len);
		return 0;
	}
	e = errno ? errno : ENOMEM;
	if (e == ENOMEM && rdma_check_memlock(s, len, use, err))
		return -ENOMEM;
	return err_sys(err, -e, "%s (%llu octets, %llu MiB are pinned already) cannot be registered with %s", use.what,
		       (unsigned long long)len, mib(atomic_load(&s->pinned)), s->info.device);
}

void rdma_dereg(struct rdma *s, struct ibv_mr *mr)
{
	rdma_dereg_access(s, mr, 0);
}

void rdma_dereg_access(struct rdma *s, struct ibv_mr *mr, int access)
{
	uint64_t len;
	int r;

	if (!mr)
		return;
	len = mr->length;
	r = s->fabric->dereg_mr(mr);
	if (r) {
		log_warn("rdma", "%s: deregistering memory: %s", s->conn.peer, strerror(-r));
		return;
	}
	rdma_count(&s->deregistrations, 1);
	if (!(access & IBV_ACCESS_ON_DEMAND))
		atomic_fetch_sub_explicit(&s->pinned, len, memory_order_relaxed);
}

/* -- status -- */

static void op_stats(struct tp_conn *c, struct tp_stats *out)
{
	struct rdma *s = rdma_of(c);

	out->bytes_sent = atomic_load_explicit(&s->bytes_sent, memory_order_relaxed);
	out->bytes_received = atomic_load_explicit(&s->bytes_received, memory_order_relaxed);
	out->writes = atomic_load_explicit(&s->writes, memory_order_relaxed);
	out->messages_sent = atomic_load_explicit(&s->messages_sent, memory_order_relaxed);
	out->messages_received = atomic_load_explicit(&s->messages_received, memory_order_relaxed);
}

static void op_info(struct tp_conn *c, struct tp_info *out)
{
	struct rdma *s = rdma_of(c);

	pthread_mutex_lock(&s->lock);
	*out = s->info;
	out->pinned_bytes = atomic_load(&s->pinned);
	out->pin_budget = s->limits.pin_budget_ours;
	out->peer_pinned_bytes = s->pinned_remote;
	out->peer_pin_budget = s->limits.pin_budget_peers;
	out->registrations = atomic_load(&s->registrations);
	out->deregistrations = atomic_load(&s->deregistrations);
	out->unpins = s->unpins;
	pthread_mutex_unlock(&s->lock);
}

static void fill_info(struct rdma *s)
{
	const struct rdma_cm_id *id = s->lane[0].id;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct tp_info *info = &s->info;

	info->port = id->port_num;
	if (!s->fabric->query_qp(id->qp, &attr, IBV_QP_PATH_MTU, &init))
		info->mtu = 128u << attr.path_mtu;
	if (!inet_ntop(AF_INET6, &id->route.addr.addr.ibaddr.sgid, info->gid, sizeof(info->gid)))
		info->gid[0] = '\0';
	info->lanes = s->conn.lanes;
	info->credits = s->limits.credits_peers;
	info->chunk_bytes = s->limits.capabilities & RDMA_CAP_CHUNKS ? UINT64_C(1) << s->limits.chunk_shift : 0;
	strcpy(info->registration, s->limits.capabilities & RDMA_CAP_ODP      ? "odp"
				   : s->limits.capabilities & RDMA_CAP_CHUNKS ? "chunks"
									      : "whole");
}

/* -- connection manager events -- */

static struct lane *lane_of_id(struct rdma *s, const struct rdma_cm_id *id)
{
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		if (s->lane[i].id == id)
			return &s->lane[i];
	return NULL;
}

void rdma_conn_events(struct rdma *s)
{
	struct rdma_cm_event *event;

	while (s->fabric->get_cm_event(s->events, &event) == 0) {
		enum rdma_cm_event_type what = event->event;
		struct lane *l = lane_of_id(s, event->id);

		s->fabric->ack_cm_event(event);
		if (!l)
			continue;
		switch ((int)what) { /* what later kernels have is no business of ours */
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_drain_recv(s); /* the reason may be there, or the peer's last word */
			rdma_drain_send(s);
			if (!l->closed)
				rdma_fail(s, -ECONNRESET, "the peer closed lane %u", l->index);
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			rdma_break(s, -ENODEV, "the device %s was removed", s->info.device);
			break;
		case RDMA_CM_EVENT_UNREACHABLE:
			/* Linux says so too when the peer's address has moved to another place of the network */
			rdma_drain_recv(s);
			rdma_fail(s, -ECONNRESET, "the network says that the peer of lane %u is not there any more",
				  l->index);
			break;
		case RDMA_CM_EVENT_CONNECT_ERROR:
		case RDMA_CM_EVENT_REJECTED:
			rdma_break(s, -ECONNRESET, "lane %u was lost while connecting", l->index);
			break;
		default:
			break;
		}
	}
}

/* -- making -- */

static void op_wake(struct tp_conn *c)
{
	/* for good: who waits for more than the fate of the connection is the poller, or is woken by it */
	event_raise(rdma_of(c)->wake_fd);
}

static void op_sever(struct tp_conn *c)
{
	struct rdma *s = rdma_of(c);

	for (uint32_t i = 0; i < c->lanes; i++)
		s->fabric->disconnect(s->lane[i].id);
}

static int op_poll_fd(struct tp_conn *c)
{
	struct rdma *s = rdma_of(c);

	pthread_mutex_lock(&s->lock);
	if (!s->polled) {
		s->polled = true;
		event_raise(s->ready_fd); /* nothing is armed yet */
	}
	pthread_mutex_unlock(&s->lock);
	return s->epoll_fd;
}

static void op_destroy(struct tp_conn *c)
{
	rdma_conn_destroy(rdma_of(c));
}

static const struct tp_conn_ops ops = {
	.write = rdma_op_write,
	.completed = rdma_op_completed,
	.wait_completed = rdma_op_wait_completed,
	.send = rdma_op_send,
	.credits = rdma_op_credits,
	.recv = rdma_op_recv,
	.poll_fd = op_poll_fd,
	.stats = op_stats,
	.window = rdma_op_window,
	.memory = rdma_op_memory,
	.mirror = rdma_op_mirror,
	.prepare = rdma_op_prepare,
	.settle = rdma_op_settle,
	.info = op_info,
	.wake = op_wake,
	.sever = op_sever,
	.destroy = op_destroy,
};

static int open_fds(struct rdma *s, struct ft_error *err)
{
	s->wake_fd = FT_FAULT("rdma/wake-fd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (s->wake_fd < 0 || s->ready_fd < 0 || s->epoll_fd < 0)
		return err_sys(err, -errno, "descriptors for a connection");
	return 0;
}

int rdma_conn_create(struct rdma **out, const struct rdma_fabric *fabric, uint32_t lanes,
		     struct rdma_event_channel *events, const char *peer, struct ft_error *err)
{
	struct rdma *s = FT_FAULT("rdma/create") ? NULL : calloc(1, sizeof(*s) + lanes * sizeof(s->lane[0]));
	int r;

	*out = NULL;
	if (!s) {
		fabric->destroy_event_channel(events);
		return err_set(err, -ENOMEM, "no memory for a connection");
	}
	s->fabric = fabric;
	s->events = events;
	s->made = lanes;
	s->given = -1;
	s->wake_fd = s->ready_fd = s->epoll_fd = -1;
	conn_init(&s->conn, &ops, lanes, "rdma", peer);
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->own_lock, NULL);
	cond_init(&s->cond);
	for (uint32_t i = 0; i < lanes; i++)
		s->lane[i].index = i;
	s->reply = calloc(RDMA_REPLIES, sizeof(*s->reply));
	r = s->reply ? open_fds(s, err) : err_set(err, -ENOMEM, "no memory for a connection");
	if (r) {
		rdma_conn_destroy(s);
		return r;
	}
	*out = s;
	return 0;
}

/* -- preparing -- */

static unsigned receives_of(const struct rdma *s, uint32_t lane)
{
	return s->limits.credits_ours + RDMA_SPARE + (lane == 0 ? RDMA_CONTROL_CREDITS : 0);
}

static unsigned slots_of(const struct rdma *s, uint32_t lane)
{
	return s->limits.credits_ours + RDMA_SLOTS_SPARE + (lane == 0 ? RDMA_CONTROL_CREDITS : 0);
}

static unsigned receives_in_all(const struct rdma *s)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < s->made; i++)
		n += receives_of(s, i);
	return n;
}

static int at_least(unsigned have, unsigned want, const char *what, const struct rdma *s, struct ft_error *err)
{
	return have >= want ? 0
			    : err_set(err, -ENOSPC, "the device %s has %u %s, %u are needed", s->info.device, have,
				      what, want);
}

/* Make queues as small as the device wants them, as long as they still work. */
static int fit_device(struct rdma *s, struct ft_error *err)
{
	const struct ibv_device_attr *d = &s->device.orig_attr;
	unsigned wr = d->max_qp_wr > 0 ? (unsigned)d->max_qp_wr : 0, cqe = d->max_cqe > 0 ? (unsigned)d->max_cqe : 0;
	unsigned most = wr < cqe / s->made ? wr : cqe / s->made;
	unsigned fixed = RDMA_SPARE + RDMA_CONTROL_CREDITS;
	int r = at_least(wr, fixed + 1, "work requests a queue", s, err);

	if (!r)
		r = at_least(cqe, s->made * (fixed + 1), "entries a completion queue", s, err);
	if (!r)
		r = at_least(d->max_sge > 0 ? (unsigned)d->max_sge : 0, 1, "parts a work request", s, err);
	if (r)
		return r;
	if (s->limits.sq_depth > most)
		s->limits.sq_depth = most;
	if (s->limits.credits_ours > most - fixed)
		s->limits.credits_ours = most - fixed;
	if (s->limits.signal_every > s->limits.sq_depth / 2)
		s->limits.signal_every = s->limits.sq_depth / 2 ? s->limits.sq_depth / 2 : 1;
	s->max_sge = (unsigned)d->max_sge < RDMA_SGE_MAX ? (unsigned)d->max_sge : RDMA_SGE_MAX;
	return 0;
}

static int make_queues(struct rdma *s, struct ft_error *err)
{
	const struct rdma_fabric *f = s->fabric;

	s->pd = f->alloc_pd(s->verbs);
	if (!s->pd)
		return err_sys(err, -errno, "protection domain on %s", s->info.device);
	s->send_channel = f->create_comp_channel(s->verbs);
	s->recv_channel = s->send_channel ? f->create_comp_channel(s->verbs) : NULL;
	if (!s->recv_channel)
		return err_sys(err, -errno, "completion channel on %s", s->info.device);
	s->send_cq = f->create_cq(s->verbs, (int)(s->made * s->limits.sq_depth), NULL, s->send_channel);
	s->recv_cq = s->send_cq ? f->create_cq(s->verbs, (int)receives_in_all(s), NULL, s->recv_channel) : NULL;
	if (!s->recv_cq)
		return err_sys(err, -errno, "completion queue of %u entries on %s", s->made * s->limits.sq_depth,
			       s->info.device);
	return 0;
}

static int make_lane(struct rdma *s, struct lane *l, uint8_t **memory)
{
	l->nr_receives = receives_of(s, l->index);
	l->nr_slots = slots_of(s, l->index);
	l->entry = calloc(RDMA_QUEUE, sizeof(*l->entry));
	l->sq = calloc(s->limits.sq_depth, sizeof(*l->sq));
	l->slot = FT_FAULT("rdma/lane") ? NULL : calloc(l->nr_slots, sizeof(*l->slot));
	if (!l->entry || !l->sq || !l->slot)
		return -ENOMEM;
	l->rx_memory = *memory;
	*memory += l->nr_receives * RDMA_SLOT_BYTES;
	for (unsigned i = 0; i < l->nr_slots; i++, *memory += RDMA_SLOT_BYTES)
		l->slot[i].memory = *memory;
	return 0;
}

/* Memory of all messages, both ways, in one registration. */
static int make_slots(struct rdma *s, struct ft_error *err)
{
	const struct rdma_use use = { "memory for messages", "fewer lanes or credits" };
	unsigned n = receives_in_all(s);
	uint8_t *memory;
	int r = 0;

	s->nr_arrivals = n;
	for (uint32_t i = 0; i < s->made; i++)
		n += slots_of(s, i);
	s->slots_bytes = n * RDMA_SLOT_BYTES;
	memory = mmap(NULL, s->slots_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return err_sys(err, -errno, "%zu octets for messages", s->slots_bytes);
	s->slots = memory;
	s->arrival = calloc(s->nr_arrivals, sizeof(*s->arrival));
	if (!s->arrival)
		r = -ENOMEM;
	for (uint32_t i = 0; i < s->made && !r; i++)
		r = make_lane(s, &s->lane[i], &memory);
	if (r)
		return err_set(err, r, "no memory for %u lanes", s->made);
	return rdma_reg(s, s->slots, s->slots_bytes, IBV_ACCESS_LOCAL_WRITE, use, &s->slots_mr, err);
}

static int watch(struct rdma *s, int fd, struct ft_error *err)
{
	struct epoll_event e = { .events = EPOLLIN };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) ? err_sys(err, -errno, "epoll") : 0;
}

int rdma_conn_prepare(struct rdma *s, struct ibv_context *verbs, struct ft_error *err)
{
	const char *name = s->fabric->device_name(verbs);
	int r;

	s->verbs = verbs;
	strncpy(s->info.device, name ? name : "?", sizeof(s->info.device) - 1);
	r = s->fabric->query_device(verbs, &s->device);
	if (r)
		return err_sys(err, r, "the limits of %s", s->info.device);
	r = fit_device(s, err);
	if (!r)
		r = make_queues(s, err);
	if (!r)
		r = make_slots(s, err);
	if (!r)
		r = watch(s, s->recv_channel->fd, err);
	if (!r)
		r = watch(s, s->events->fd, err);
	if (!r)
		r = watch(s, s->wake_fd, err);
	return r ? r : watch(s, s->ready_fd, err);
}

int rdma_lane_attach(struct rdma *s, uint32_t lane, struct rdma_cm_id *id, struct ft_error *err)
{
	struct lane *l = &s->lane[lane];
	struct ibv_qp_init_attr attr = {
		.send_cq = s->send_cq,
		.recv_cq = s->recv_cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = s->limits.sq_depth,
			 .max_recv_wr = l->nr_receives,
			 .max_send_sge = s->max_sge,
			 .max_recv_sge = 1 },
	};
	int r;

	l->id = id;
	if (id->verbs != s->verbs)
		return err_set(err, -EXDEV, "lane %u is on another device than the others", lane);
	r = s->fabric->create_qp(id, s->pd, &attr);
	if (r)
		return err_sys(err, r, "queue pair with %u work requests on %s", s->limits.sq_depth, s->info.device);
	l->attached = true;
	for (unsigned i = 0; i < l->nr_receives && !r; i++)
		r = rdma_post_receive(s, l, i);
	return r ? err_sys(err, r, "posting receives on %s", s->info.device) : 0;
}

int rdma_conn_stand(struct rdma *s, struct ft_error *err)
{
	(void)err;
	fill_info(s);
	s->key_budget = s->limits.pin_budget_peers;
	s->stands = true;
	return 0;
}

/* -- the end -- */

static void free_lane(struct rdma *s, struct lane *l)
{
	for (uint64_t i = l->first; i < l->end; i++)
		rdma_dereg(s, l->entry[i % RDMA_QUEUE].once);
	free(l->entry);
	free(l->sq);
	free(l->slot);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void free_queues(struct rdma *s)
{
	const struct rdma_fabric *f = s->fabric;

	if (s->send_cq) {
		f->ack_cq_events(s->send_cq, s->send_events.taken);
		f->destroy_cq(s->send_cq);
	}
	if (s->recv_cq) {
		f->ack_cq_events(s->recv_cq, s->recv_events.taken);
		f->destroy_cq(s->recv_cq);
	}
	if (s->send_channel)
		f->destroy_comp_channel(s->send_channel);
	if (s->recv_channel)
		f->destroy_comp_channel(s->recv_channel);
	if (s->pd)
		f->dealloc_pd(s->pd);
}

static bool is_stopped(const struct rdma *s, const struct lane *l)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	return s->fabric->query_qp(l->id->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR;
}

/* Puts queue pairs into error, whether or not there is somebody to say goodbye to.  One for which that fails is destroyed at once. */
static void stop_queue_pairs(struct rdma *s)
{
	for (uint32_t i = 0; i < s->made; i++) {
		struct lane *l = &s->lane[i];

		if (l->attached && s->fabric->disconnect(l->id) && !is_stopped(s, l)) {
			s->fabric->destroy_qp(l->id);
			l->attached = false;
		}
	}
}

/* From then on no device touches our memory, whatever becomes of the queue pairs. */
static void give_back_memory(struct rdma *s)
{
	rdma_keys_fini(s);
	rdma_windows_fini(s);
	for (unsigned i = 0; i < s->nr_local; i++)
		rdma_dereg(s, s->local[i].mr);
	for (uint32_t i = 0; i < s->made; i++)
		free_lane(s, &s->lane[i]);
	rdma_dereg(s, s->slots_mr);
	if (s->slots)
		munmap(s->slots, s->slots_bytes);
}

static void give_back_rest(struct rdma *s)
{
	for (uint32_t i = 0; i < s->made; i++)
		if (s->lane[i].attached)
			s->fabric->destroy_qp(s->lane[i].id);
	free_queues(s);
	for (uint32_t i = 0; i < s->made; i++)
		if (s->lane[i].id)
			s->fabric->destroy_id(s->lane[i].id);
	s->fabric->destroy_event_channel(s->events);
	close_fd(s->wake_fd);
	close_fd(s->ready_fd);
	close_fd(s->epoll_fd);
	free(s->arrival);
	free(s->reply);
	pthread_cond_destroy(&s->cond);
	pthread_mutex_destroy(&s->own_lock);
	pthread_mutex_destroy(&s->lock);
	conn_fini(&s->conn);
	free(s);
}

/* A thread that gives back, and who waits for it: whoever is later frees this. */
struct ending {
	struct rdma *conn;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool over, left;
};

static void ending_free(struct ending *e)
{
	pthread_cond_destroy(&e->cond);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static void *ending_main(void *user)
{
	struct ending *e = user;
	bool left;

	give_back_rest(e->conn);
	pthread_mutex_lock(&e->lock);
	e->over = true;
	left = e->left;
	pthread_cond_signal(&e->cond);
	pthread_mutex_unlock(&e->lock);
	if (left)
		ending_free(e);
	return NULL;
}

/* false: it takes longer. */
static bool ending_wait(struct ending *e, uint64_t deadline)
{
	bool over;

	pthread_mutex_lock(&e->lock);
	while (!e->over && cond_wait_until(&e->cond, &e->lock, deadline) != -ETIMEDOUT)
		;
	over = e->over;
	e->left = !over;
	pthread_mutex_unlock(&e->lock);
	return over;
}

/* The kernel may hold whoever destroys a queue pair for as long as it likes: soft RoCE does so while a packet of it lies in a network
 * device that is down (rxe_destroy_qp(), Linux 6.12).  Who closes has a guest to care for: he waits @rdma_end_ms and no longer. */
static void give_back_in_time(struct rdma *s)
{
	struct ending *e = s->stands ? calloc(1, sizeof(*e)) : NULL;
	char peer[sizeof(s->conn.peer)];
	pthread_t t;

	if (!e)
		return give_back_rest(s);
	e->conn = s;
	pthread_mutex_init(&e->lock, NULL);
	cond_init(&e->cond);
	memcpy(peer, s->conn.peer, sizeof(peer));
	if (thread_start(&t, "ft-rdma-end", ending_main, e)) {
		ending_free(e);
		return give_back_rest(s);
	}
	if (ending_wait(e, deadline_in_ms(rdma_end_ms))) {
		pthread_join(t, NULL);
		return ending_free(e);
	}
	pthread_detach(t);
	log_warn("rdma",
		 "%s: the kernel keeps the queue pairs of a connection that is over, for more than %u ms: a thread "
		 "waits for it",
		 peer, rdma_end_ms);
}

void rdma_conn_destroy(struct rdma *s)
{
	if (!s)
		return;
	if (s->stands)
		rdma_goodbye(s);
	stop_queue_pairs(s);
	give_back_memory(s);
	give_back_in_time(s);
}
