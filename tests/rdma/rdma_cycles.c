/* SPDX-License-Identifier: MIT */
/* rdma_cycles.c - connections over a real RDMA device are made and ended a thousand times in all ways, and nothing stays behind: no object
 * of verbs or of the connection manager (counted at the fabric, both sides are in this process), no event that was not acked, no
 * descriptor, no memory, and nothing in the kernel ("rdma resource show", which must show it while it lives).
 *
 *   whole       connect, write, send, settle; closed by the one side or the other first, or by both at once
 *   cut         severed or cancelled in the middle of writes
 *   given-up    the connect is cancelled, or runs out of time, after a random moment
 *   half        a lane of a set of which the others never come; a request that is not ours
 *
 * rdma_cycles URI [CYCLES]     a listening URI (rdma:ADDRESS:0); 200 cycles */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "address.h"
#include "check.h"
#include "clock.h"
#include "fabric.h"
#include "rdma_hello.h"
#include "rng.h"
#include "transport.h"

#define WAIT_MS 30000u
#define WARM_UP 20u /* cycles before descriptors and memory are measured */
/* Of resident memory; one connection has 2.5 MB.  A sanitizer keeps what was freed, and finds leaks by itself. */
#ifdef FT_ASAN
#define GROWTH_BYTES (256u << 20)
#else
#define GROWTH_BYTES (1u << 20)
#endif
#define MEMORY_BYTES (6u << 20)

/* -- the fabric, counted -- */

enum kind { CHANNEL, CM_EVENT, ID, QP, PD, MR, COMP_CHANNEL, CQ, CQ_EVENT, KINDS };
static const char *const kind_names[KINDS] = { "event channels",
					       "events of the connection manager",
					       "ids",
					       "queue pairs",
					       "protection domains",
					       "memory regions",
					       "completion channels",
					       "completion queues",
					       "completion events" };
static _Atomic int64_t live[KINDS], made[KINDS];

static void got(enum kind k)
{
	atomic_fetch_add(&live[k], 1);
	atomic_fetch_add(&made[k], 1);
}

static void gone(enum kind k, int64_t n)
{
	atomic_fetch_sub(&live[k], n);
}

static struct rdma_event_channel *create_event_channel(void)
{
	struct rdma_event_channel *c = rdma_verbs.create_event_channel();

	if (c)
		got(CHANNEL);
	return c;
}

static void destroy_event_channel(struct rdma_event_channel *c)
{
	rdma_verbs.destroy_event_channel(c);
	gone(CHANNEL, 1);
}

static int get_cm_event(struct rdma_event_channel *c, struct rdma_cm_event **e)
{
	int r = rdma_verbs.get_cm_event(c, e);

	if (r == 0)
		got(CM_EVENT);
	if (r == 0 && (*e)->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		got(ID); /* it came with the request */
	return r;
}

static int ack_cm_event(struct rdma_cm_event *e)
{
	gone(CM_EVENT, 1);
	return rdma_verbs.ack_cm_event(e);
}

static int create_id(struct rdma_event_channel *c, struct rdma_cm_id **id, void *context)
{
	int r = rdma_verbs.create_id(c, id, context);

	if (r == 0)
		got(ID);
	return r;
}

static int destroy_id(struct rdma_cm_id *id)
{
	int r = rdma_verbs.destroy_id(id);

	if (r == 0)
		gone(ID, 1);
	return r;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	int r = rdma_verbs.create_qp(id, pd, attr);

	if (r == 0)
		got(QP);
	return r;
}

static void destroy_qp(struct rdma_cm_id *id)
{
	if (id->qp)
		gone(QP, 1);
	rdma_verbs.destroy_qp(id);
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = rdma_verbs.alloc_pd(context);

	if (pd)
		got(PD);
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	int r = rdma_verbs.dealloc_pd(pd);

	if (r == 0)
		gone(PD, 1);
	return r;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
	struct ibv_mr *mr = rdma_verbs.reg_mr(pd, at, len, access);

	if (mr)
		got(MR);
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	int r = rdma_verbs.dereg_mr(mr);

	if (r == 0)
		gone(MR, 1);
	return r;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *c = rdma_verbs.create_comp_channel(context);

	if (c)
		got(COMP_CHANNEL);
	return c;
}

static int destroy_comp_channel(struct ibv_comp_channel *c)
{
	int r = rdma_verbs.destroy_comp_channel(c);

	if (r == 0)
		gone(COMP_CHANNEL, 1);
	return r;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = rdma_verbs.create_cq(context, cqe, cq_context, channel);

	if (cq)
		got(CQ);
	return cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	int r = rdma_verbs.destroy_cq(cq);

	if (r == 0)
		gone(CQ, 1);
	return r;
}

static int get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **context)
{
	int r = rdma_verbs.get_cq_event(c, cq, context);

	if (r == 0)
		got(CQ_EVENT);
	return r;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	rdma_verbs.ack_cq_events(cq, n);
	gone(CQ_EVENT, n);
}

static void count_fabric(void)
{
	static struct rdma_fabric f;

	f = rdma_verbs;
	f.create_event_channel = create_event_channel;
	f.destroy_event_channel = destroy_event_channel;
	f.get_cm_event = get_cm_event;
	f.ack_cm_event = ack_cm_event;
	f.create_id = create_id;
	f.destroy_id = destroy_id;
	f.create_qp = create_qp;
	f.destroy_qp = destroy_qp;
	f.alloc_pd = alloc_pd;
	f.dealloc_pd = dealloc_pd;
	f.reg_mr = reg_mr;
	f.dereg_mr = dereg_mr;
	f.create_comp_channel = create_comp_channel;
	f.destroy_comp_channel = destroy_comp_channel;
	f.create_cq = create_cq;
	f.destroy_cq = destroy_cq;
	f.get_cq_event = get_cq_event;
	f.ack_cq_events = ack_cq_events;
	rdma_fabric_set(&f);
}

static void check_nothing_lives(const char *when)
{
	for (enum kind k = 0; k < KINDS; k++)
		CHECK(live[k] == 0, "%s: %" PRId64 " of %" PRId64 " %s are left", when, live[k], made[k],
		      kind_names[k]);
}

/* -- what the process and the kernel have -- */

static unsigned nr_fds(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 4096; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static uint64_t resident_bytes(void)
{
	unsigned long long size, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%llu %llu", &size, &resident) == 2, "/proc/self/statm cannot be read");
	fclose(f);
	return resident * 4096;
}

/* kernel_has - how many of this process's objects of the kind the kernel lists. */
static unsigned kernel_has(const char *kind)
{
	char command[64], pid[32], line[1024];
	unsigned n = 0;
	FILE *f;

	snprintf(command, sizeof(command), "rdma resource show %s", kind);
	snprintf(pid, sizeof(pid), " pid %d ", (int)getpid());
	f = popen(command, "r");
	CHECK(f, "%s: %s", command, strerror(errno));
	while (fgets(line, sizeof(line), f))
		n += strstr(line, pid) != NULL;
	CHECK(pclose(f) == 0, "'%s' fails", command);
	return n;
}

static const char *const kernel_kinds[] = { "qp", "cq", "mr", "pd", "cm_id" };

static void check_kernel(bool has)
{
	for (size_t i = 0; i < sizeof(kernel_kinds) / sizeof(kernel_kinds[0]); i++) {
		unsigned n = kernel_has(kernel_kinds[i]);

		CHECK(has == (n > 0), "the kernel has %u %s of this process, %s", n, kernel_kinds[i],
		      has ? "though a connection stands: the look at it proves nothing" : "though all was closed");
	}
}

/* -- the two sides -- */

static struct {
	struct tp_listener *listener;
	char uri[160];
	struct tp_params params;
	struct rng rng;
	uint8_t *source, *window;
} t;

struct accepting {
	pthread_t thread;
	struct tp_conn *conn;
	struct ft_error err;
	int cancel_fd;
};

static void *accept_one(void *arg)
{
	struct accepting *a = arg;

	tp_accept(t.listener, &a->conn, deadline_in_ms(WAIT_MS), a->cancel_fd, &a->err);
	return NULL;
}

static void begin_accept(struct accepting *a)
{
	memset(a, 0, sizeof(*a));
	a->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	CHECK(a->cancel_fd >= 0 && pthread_create(&a->thread, NULL, accept_one, a) == 0, "thread: %s", strerror(errno));
}

static struct tp_conn *end_accept(struct accepting *a)
{
	pthread_join(a->thread, NULL);
	close(a->cancel_fd);
	return a->conn;
}

static void open_both(struct tp_conn **client, struct tp_conn **server)
{
	struct accepting a;
	struct ft_error err = { 0 };

	begin_accept(&a);
	CHECK_OK(tp_connect(client, t.uri, &t.params, deadline_in_ms(WAIT_MS), -1, &err), err);
	*server = end_accept(&a);
	CHECK(*server, "accept: %s", a.err.msg);
}

static void draw_params(void)
{
	static const uint32_t credits[] = { 1, 2, 4,
					    8 }; /* memory for messages is most of what a connection costs here */

	t.params.registration = rng_range(&t.rng, 0, 1) ? TP_REGISTER_WHOLE : TP_REGISTER_CHUNKS;
	t.params.lanes = (uint32_t)rng_range(&t.rng, 2, 3);
	t.params.credits = credits[rng_range(&t.rng, 0, 3)];
	t.params.pin_budget = rng_range(&t.rng, 0, 1) ? 4u << 20 : 0;
}

static int write_all(struct tp_conn *c, struct ft_error *err)
{
	int r = 0;

	for (uint64_t at = 0; at < MEMORY_BYTES && r == 0; at += 2u << 20) {
		struct iovec v = { t.source + at, 2u << 20 };

		r = tp_write(c, 1, 0, at, &v, 1, NULL, deadline_in_ms(WAIT_MS), err);
	}
	return r;
}

/* Keys are given by who receives. */
static void *receive_one(void *arg)
{
	static uint8_t buf[TP_MESSAGE_MAX];
	struct ft_error err = { 0 };
	uint32_t lane;
	size_t len;

	CHECK_OK(tp_recv(arg, buf, sizeof(buf), &lane, &len, deadline_in_ms(WAIT_MS), &err), err);
	CHECK(lane == 1 && len == 5, "a message of %zu octets on lane %u", len, lane);
	return NULL;
}

static void exchange(struct tp_conn *client, struct tp_conn *server)
{
	struct ft_error err = { 0 };
	struct iovec hello = { (void *)"hello", 5 };
	pthread_t thread;

	t.source[rng_range(&t.rng, 0, MEMORY_BYTES - 1)]++;
	CHECK_OK(tp_window_open(server, 0, t.window, MEMORY_BYTES, &err), err);
	CHECK(pthread_create(&thread, NULL, receive_one, server) == 0, "no thread");
	CHECK_OK(tp_memory(client, t.source, MEMORY_BYTES / 2, &err), err); /* the rest is registered write by write */
	CHECK_OK(write_all(client, &err), err);
	CHECK_OK(tp_send(client, 1, &hello, 1, deadline_in_ms(WAIT_MS), &err), err);
	pthread_join(thread, NULL);
	CHECK(memcmp(t.source, t.window, MEMORY_BYTES) == 0, "the window is not what was written");
}

static void *close_conn(void *arg)
{
	tp_close(arg);
	return NULL;
}

/* -- the ways -- */

static void whole(void)
{
	struct tp_conn *client, *server;
	pthread_t thread;

	open_both(&client, &server);
	if (rng_range(&t.rng, 0, 3))
		exchange(client, server);
	switch (rng_range(&t.rng, 0, 2)) {
	case 0:
		tp_close(client);
		tp_close(server);
		break;
	case 1:
		tp_close(server);
		tp_close(client);
		break;
	case 2:
		CHECK(pthread_create(&thread, NULL, close_conn, client) == 0, "no thread");
		tp_close(server);
		pthread_join(thread, NULL);
		break;
	}
}

static void cut(void)
{
	struct tp_conn *client, *server;
	struct ft_error err = { 0 };

	open_both(&client, &server);
	CHECK_OK(tp_window_open(server, 0, t.window, MEMORY_BYTES, &err), err);
	tp_prepare(client, 0, 0, MEMORY_BYTES);
	write_all(client, &err); /* as far as it goes: nobody receives on the other side */
	if (rng_range(&t.rng, 0, 1))
		client->ops->sever(client);
	else
		tp_cancel(server);
	tp_close(server);
	tp_close(client);
}

struct cancelling {
	int fd;
	uint64_t us;
};

static void *cancel_later(void *arg)
{
	struct cancelling *c = arg;

	usleep((useconds_t)c->us);
	eventfd_write(c->fd, 1);
	return NULL;
}

/* Whatever became of it on the other side, both sides must come to their end. */
static void given_up(void)
{
	struct cancelling c = { .fd = eventfd(0, EFD_CLOEXEC), .us = rng_range(&t.rng, 0, 60000) };
	bool by_time = rng_range(&t.rng, 0, 1);
	struct ft_error err = { 0 };
	struct tp_conn *client;
	struct accepting a;
	pthread_t thread;

	begin_accept(&a);
	CHECK(pthread_create(&thread, NULL, cancel_later, &c) == 0, "no thread");
	tp_connect(&client, t.uri, &t.params, by_time ? now_ns() + c.us * 1000 : deadline_in_ms(WAIT_MS),
		   by_time ? -1 : c.fd, &err);
	pthread_join(thread, NULL);
	close(c.fd);
	eventfd_write(a.cancel_fd, 1);
	tp_close(end_accept(&a));
	tp_close(client);
}

static void await_event(struct rdma_event_channel *events, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;

	CHECK(wait_fd(events->fd, POLLIN, -1, deadline_in_ms(WAIT_MS)) == 0 && rdma_get_cm_event(events, &e) == 0,
	      "no event %s", rdma_event_str(type));
	CHECK(e->event == type, "%s (%d) instead of %s", rdma_event_str(e->event), e->status, rdma_event_str(type));
	rdma_ack_cm_event(e);
}

/* One request by hand. */
static void ask(struct rdma_event_channel *events, struct rdma_cm_id **id, const struct sockaddr *to, const void *hello,
		size_t len)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = (uint8_t)len, .retry_count = 6 };

	CHECK(rdma_create_id(events, id, NULL, RDMA_PS_TCP) == 0 &&
		      rdma_resolve_addr(*id, NULL, (struct sockaddr *)to, (int)WAIT_MS) == 0,
	      "resolve: %s", strerror(errno));
	await_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(*id, (int)WAIT_MS) == 0, "route: %s", strerror(errno));
	await_event(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_create_qp(*id, NULL, &attr) == 0 && rdma_connect(*id, &param) == 0, "connect: %s", strerror(errno));
}

static void half(void)
{
	struct rdma_limits limits = rdma_limits_of(&t.params);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct ft_error err = { 0 };
	struct rdma_hello hello;
	struct rdma_cm_id *id;
	struct host_port name;
	struct addrinfo *list;
	uint8_t token[16];
	struct accepting a;

	CHECK_OK(address_parse(&name, t.uri + strlen("rdma:"), &err), err);
	CHECK_OK(address_resolve(&list, &name, 0, deadline_in_ms(WAIT_MS), -1, &err), err);
	for (unsigned i = 0; i < sizeof(token); i++)
		token[i] = (uint8_t)rng_next(&t.rng);
	rdma_hello_fill(&hello, &limits, token, (uint32_t)rng_range(&t.rng, 0, limits.lanes - 1));
	if (rng_range(&t.rng, 0, 1)) {
		begin_accept(&a);
		hello.magic.be ^= 1;
		ask(events, &id, list->ai_addr, &hello, sizeof(hello));
		await_event(events, RDMA_CM_EVENT_REJECTED);
		eventfd_write(a.cancel_fd, 1);
		end_accept(&a);
	} else { /* the listener hears of it only while it looks, and of its end too */
		ask(events, &id, list->ai_addr, &hello, sizeof(hello));
		begin_accept(&a);
		usleep((useconds_t)rng_range(&t.rng, 0, 30000));
		eventfd_write(a.cancel_fd, 1);
		end_accept(&a);
	}
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(events);
	freeaddrinfo(list);
}

/* -- all of them -- */

static void open_listener(const char *uri)
{
	struct tp_params most = { .lanes = TP_LANES_MAX, .credits = 2, .sq_depth = 32 };
	struct ft_error err = { 0 };

	CHECK_OK(tp_listen(&t.listener, uri, &most, &err), err);
	snprintf(t.uri, sizeof(t.uri), "rdma:%s", tp_listener_address(t.listener));
}

/* What waits in the listener for a peer that will not come goes with it. */
static void measure(const char *uri, unsigned *fds, uint64_t *resident)
{
	tp_listener_close(t.listener);
	check_nothing_lives("without a listener");
	*fds = nr_fds();
	*resident = resident_bytes();
	open_listener(uri);
}

static void look_at_kernel(void)
{
	struct tp_conn *client, *server;

	open_both(&client, &server);
	check_kernel(true);
	tp_close(client);
	tp_close(server);
}

static void *map(void)
{
	void *m = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	CHECK(m != MAP_FAILED, "no memory");
	return m;
}

int main(int argc, char **argv)
{
	static void (*const ways[])(void) = { whole, cut, given_up, half };
	static const char *const names[] = { "whole", "cut", "given up", "half" };
	unsigned cycles = argc > 2 ? (unsigned)atoi(argv[2]) : 200, fds = 0, fds_then, done[4] = { 0 };
	uint64_t resident = 0, resident_then, spent[4] = { 0 };

	CHECK(argc > 1, "usage: rdma_cycles URI [CYCLES]");
	setvbuf(stdout, NULL, _IOLBF, 0);
	count_fabric();
	t.rng.state = 1;
	t.params.lanes = 2;
	t.params.sq_depth = 32;
	t.source = map();
	t.window = map();
	open_listener(argv[1]);
	look_at_kernel();
	for (unsigned i = 0; i < WARM_UP + cycles; i++) {
		unsigned way = i % 4;
		uint64_t begun = now_ns();

		if (i == WARM_UP)
			measure(argv[1], &fds, &resident);
		draw_params();
		ways[way]();
		spent[way] += now_ns() - begun;
		done[way]++;
	}
	measure(argv[1], &fds_then, &resident_then);
	CHECK(fds_then == fds, "%u descriptors after %u cycles, %u before", fds_then, cycles, fds);
	CHECK(resident_then <= resident + GROWTH_BYTES,
	      "%" PRIu64 " octets are resident after %u cycles, %" PRIu64 " before", resident_then, cycles, resident);
	tp_listener_close(t.listener);
	check_nothing_lives("at the end");
	check_kernel(false);
	printf("%u cycles: %" PRId64 " registrations, %" PRId64 " queue pairs, %" PRId64 " ids, %" PRId64
	       " events: nothing is left; %u descriptors, memory %+" PRId64 " KiB\n",
	       cycles, made[MR], made[QP], made[ID], made[CM_EVENT], fds,
	       ((int64_t)resident_then - (int64_t)resident) / 1024);
	for (unsigned way = 0; way < 4; way++)
		printf("  %-8s %u, %" PRIu64 " ms each\n", names[way], done[way],
		       done[way] ? spent[way] / done[way] / NS_PER_MS : 0);
	return 0;
}
