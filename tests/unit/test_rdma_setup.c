/* SPDX-License-Identifier: MIT */
/* test_rdma_setup.c - connecting and listening over rdma, on the made-up fabric: who gets through to whom, what is said to those who do
 * not, and that nothing is left behind, whatever the fabric and the peer do.  After every test the fabric is asked whether all was
 * given back, every event acked once, and no rule of librdmacm broken.
 *
 * Deadlines are generous: where something has to end at once, a test fails only if it did not end long before its deadline. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "fabric_fake.h"
#include "faultpoint.h"
#include "rdma_hello.h"
#include "transport.h"
#include "transport_ops.h"

#define LONG_MS 30000u
#define SOON_MS 10000u     /* what ends at once ends within this */
#define HALF_OPEN_MS 5000u /* rdma_listen.c */
#define HALF_OPEN_MAX 64u

static uint64_t soon(void)
{
	return deadline_in_ms(LONG_MS);
}

static void setup(void)
{
	rdma_linger_ms = 50;
	fabric_start(NULL);
}

static void teardown(void)
{
	const char *text;

	cr_assert_eq(fabric_violations(&text), 0, "%s", text);
	cr_assert(fabric_all_gone(), "left behind: %s", fabric_live_text());
	fabric_stop();
}

TestSuite(rdma_setup, .init = setup, .fini = teardown, .timeout = 120);

static unsigned nr_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* -- two ends -- */

static const struct tp_params three_lanes = { .lanes = 3 };

struct duo {
	struct tp_listener *l;
	struct tp_conn *a, *b; /* connected, accepted */
	struct tp_params pa;
	char uri[160];
	int ra, rb, cancel_fd, give_up_fd; /* connect's; accept's */
	uint64_t accept_ms, connect_ms;
	pthread_t t;
	struct ft_error ea, eb;
};

static void duo_listen(struct duo *d, const char *listen, struct tp_params p)
{
	memset(d, 0, sizeof(*d));
	d->pa = three_lanes;
	d->cancel_fd = d->give_up_fd = -1;
	d->accept_ms = d->connect_ms = LONG_MS;
	cr_assert_eq(tp_listen(&d->l, listen, &p, &d->eb), 0, "%s", d->eb.msg);
}

/* @host: as it stands in a URI */
static void duo_to(struct duo *d, const char *host)
{
	snprintf(d->uri, sizeof(d->uri), "rdma:%s%s", host, strrchr(tp_listener_address(d->l), ':'));
}

static void *accept_thread(void *arg)
{
	struct duo *d = arg;

	d->rb = tp_accept(d->l, &d->b, deadline_in_ms(d->accept_ms), d->give_up_fd, &d->eb);
	return NULL;
}

static void *connect_thread(void *arg)
{
	struct duo *d = arg;

	d->ra = tp_connect(&d->a, d->uri, &d->pa, deadline_in_ms(d->connect_ms), d->cancel_fd, &d->ea);
	return NULL;
}

/* Both sides at once; both come back before their deadlines or one of them says why not. */
static void duo_meet(struct duo *d)
{
	pthread_create(&d->t, NULL, accept_thread, d);
	connect_thread(d);
	pthread_join(d->t, NULL);
}

static void duo_end(struct duo *d)
{
	tp_close(d->a);
	tp_close(d->b);
	d->a = d->b = NULL;
	tp_listener_close(d->l);
	d->l = NULL;
}

/* A message each way on each lane. */
static void talk(struct tp_conn *from, struct tp_conn *to)
{
	static __thread uint8_t buf[TP_MESSAGE_MAX];

	for (uint32_t i = 0; i < tp_lanes(from); i++) {
		struct iovec v = { .iov_base = "hello", .iov_len = 5 };
		struct ft_error err = { 0 };
		uint32_t lane = 99;
		size_t len = 0;

		cr_assert_eq(tp_send(from, i, &v, 1, soon(), &err), 0, "%s", err.msg);
		cr_assert_eq(tp_recv(to, buf, sizeof(buf), &lane, &len, soon(), &err), 0, "%s", err.msg);
		cr_assert_eq(lane, i);
		cr_assert_eq(len, 5);
	}
}

static void duo_talk(struct duo *d)
{
	cr_assert_eq(d->ra, 0, "%s", d->ea.msg);
	cr_assert_eq(d->rb, 0, "%s", d->eb.msg);
	cr_assert_eq(tp_lanes(d->a), tp_lanes(d->b));
	talk(d->a, d->b);
	talk(d->b, d->a);
}

static void meet_and_talk(const char *listen, const char *host)
{
	struct duo d;

	duo_listen(&d, listen, three_lanes);
	duo_to(&d, host);
	duo_meet(&d);
	duo_talk(&d);
	cr_assert(strstr(tp_peer(d.a), "]:") || strstr(tp_peer(d.a), "10.9.0."), "%s", tp_peer(d.a));
	duo_end(&d);
}

/* -- it works -- */

Test(rdma_setup, ipv4_ipv6_link_local_and_all_addresses)
{
	meet_and_talk("rdma:10.9.0.1:0", "10.9.0.1");
	meet_and_talk("rdma::0", "10.9.0.1");
	meet_and_talk("rdma:*:0", "[fd09::1]");
	meet_and_talk("rdma:[::]:0", "10.9.0.1");
	meet_and_talk("rdma:0.0.0.0:0", "10.9.0.1");
	meet_and_talk("rdma:[fd09::1]:0", "[fd09::1]");
	meet_and_talk("rdma:[fe80::1%lo]:0", "[fe80::1%lo]");
	meet_and_talk("rdma::0", "[fe80::1%lo]");
}

Test(rdma_setup, the_address_is_one_that_others_can_connect_to)
{
	struct duo d;

	duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
	cr_assert_eq(strncmp(tp_listener_address(d.l), "10.9.0.1:", 9), 0, "%s", tp_listener_address(d.l));
	cr_assert_neq(atoi(tp_listener_address(d.l) + 9), 0);
	snprintf(d.uri, sizeof(d.uri), "rdma:%s", tp_listener_address(d.l));
	duo_meet(&d);
	duo_talk(&d);
	cr_assert_str_eq(tp_peer(d.a), tp_listener_address(d.l));
	duo_end(&d);
}

Test(rdma_setup, what_was_agreed_is_known_to_both)
{
	struct tp_params p = { .lanes = 9, .credits = 4, .chunk_bytes = 4u << 20, .pin_budget = 64u << 20 };
	struct tp_info a, b;
	struct duo d;

	duo_listen(&d, "rdma::0", p);
	d.pa = (struct tp_params){ .lanes = 5, .credits = 16, .chunk_bytes = 2u << 20, .pin_budget = 32u << 20 };
	duo_to(&d, "10.9.0.1");
	duo_meet(&d);
	duo_talk(&d);
	tp_info(d.a, &a);
	tp_info(d.b, &b);
	cr_assert_eq(a.lanes, 5);
	cr_assert_eq(b.lanes, 5);
	cr_assert_eq(a.chunk_bytes, 2u << 20);
	cr_assert_eq(b.chunk_bytes, 2u << 20);
	cr_assert_eq(a.credits, 4);
	cr_assert_eq(b.credits, 16);
	cr_assert_eq(a.peer_pin_budget, 64u << 20);
	cr_assert_eq(b.peer_pin_budget, 32u << 20);
	cr_assert_str_eq(a.registration, "chunks");
	cr_assert_str_eq(b.registration, "chunks");
	duo_end(&d);
}

static void registered(enum tp_registration connects, enum tp_registration accepts, const char *as)
{
	struct tp_params p = { .lanes = 3, .registration = accepts };
	struct tp_info a, b;
	struct duo d;

	duo_listen(&d, "rdma::0", p);
	d.pa.registration = connects;
	duo_to(&d, "10.9.0.1");
	duo_meet(&d);
	duo_talk(&d);
	tp_info(d.a, &a);
	tp_info(d.b, &b);
	cr_assert_str_eq(a.registration, as);
	cr_assert_str_eq(b.registration, as);
	duo_end(&d);
}

Test(rdma_setup, registration_is_whole_if_either_wants_it_and_on_demand_if_the_device_can)
{
	struct fabric_config cfg;

	registered(TP_REGISTER_CHUNKS, TP_REGISTER_WHOLE, "whole");
	registered(TP_REGISTER_WHOLE, TP_REGISTER_CHUNKS, "whole");
	registered(TP_REGISTER_ODP, TP_REGISTER_ODP, "chunks"); /* the device cannot */
	fabric_defaults(&cfg);
	cfg.odp = true;
	fabric_reset(&cfg);
	registered(TP_REGISTER_ODP, TP_REGISTER_ODP, "odp");
	registered(TP_REGISTER_ODP, TP_REGISTER_CHUNKS, "chunks");
	registered(TP_REGISTER_ODP, TP_REGISTER_WHOLE, "whole");
}

Test(rdma_setup, lanes_that_the_listener_does_not_take_are_dropped)
{
	struct tp_params two = { .lanes = 2 };
	struct fabric_live live;
	struct duo d;

	duo_listen(&d, "rdma::0", two);
	d.pa.lanes = 9;
	duo_to(&d, "10.9.0.1");
	duo_meet(&d);
	duo_talk(&d);
	cr_assert_eq(tp_lanes(d.a), 2);
	fabric_live(&live);
	cr_assert_eq(live.qps, 4, "%s", fabric_live_text());
	cr_assert_eq(live.ids, 5, "%s", fabric_live_text()); /* and the listener's */
	duo_end(&d);
}

/* iWARP: private data is not padded. */
Test(rdma_setup, over_iwarp)
{
	struct fabric_config cfg;

	fabric_defaults(&cfg);
	cfg.iwarp = true;
	fabric_reset(&cfg);
	meet_and_talk("rdma::0", "10.9.0.1");
}

Test(rdma_setup, several_at_once)
{
	struct duo d[6];

	duo_listen(&d[0], "rdma::0", three_lanes);
	duo_to(&d[0], "10.9.0.1");
	for (unsigned i = 1; i < 6; i++)
		d[i] = d[0];
	for (unsigned i = 0; i < 6; i++)
		pthread_create(&d[i].t, NULL, connect_thread, &d[i]);
	for (unsigned i = 0; i < 6; i++)
		cr_assert_eq(tp_accept(d[0].l, &d[i].b, soon(), -1, &d[i].eb), 0, "%s", d[i].eb.msg);
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(d[i].t, NULL);
		cr_assert_eq(d[i].ra, 0, "%s", d[i].ea.msg);
	}
	for (unsigned i = 0; i < 6; i++) {
		tp_close(d[i].a);
		tp_close(d[i].b);
	}
	tp_listener_close(d[0].l);
}

/* -- nobody gets through -- */

/* An attempt that fails with @code and a sentence with @says, long before its deadline. */
static void fails(const char *uri, int code, const char *says)
{
	uint64_t before = now_ns();
	struct tp_conn *c = NULL;
	struct ft_error err = { 0 };
	int r = tp_connect(&c, uri, &three_lanes, soon(), -1, &err);

	cr_assert_eq(r, code, "%s: %d: %s", uri, r, err.msg);
	cr_assert_null(c);
	cr_assert(strstr(err.msg, says), "%s: %s", uri, err.msg);
	cr_assert_lt(now_ns() - before, SOON_MS * NS_PER_MS);
	cr_assert(fabric_all_gone(), "%s: left behind: %s", uri, fabric_live_text());
}

Test(rdma_setup, says_what_is_in_the_way)
{
	fails("rdma:10.9.0.1:7000", -ECONNREFUSED, "10.9.0.1:7000: nobody listens at this port over RDMA");
	fails("rdma:[fd09::1]:7000", -ECONNREFUSED, "[fd09::1]:7000: nobody listens");
	fails("rdma:10.9.0.9:7000", -EHOSTUNREACH, "the peer's host does not answer over RDMA");
	fails("rdma:127.0.0.1:7000", -ENODEV, "use the device's own address");
	fails("rdma:[::1]:7000", -ENODEV, "use the device's own address");
	fails("rdma:10.9.0.1:0", -EINVAL, "port 0");
	fails("rdma:10.9.0.1", -EINVAL, "HOST:PORT");
	fails("rdma:fd09::1:7000", -EINVAL, "[ADDRESS]:PORT");
}

Test(rdma_setup, says_that_an_address_or_a_route_is_not_found)
{
	fabric_address("10.9.0.1", RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	fails("rdma:10.9.0.1:7000", -ETIMEDOUT, "nobody on the network answers for this address");
	fabric_address("10.9.0.1", RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
	fails("rdma:10.9.0.1:7000", -ENODEV, "no RDMA device of this host leads there");
	fabric_address("10.9.0.1", RDMA_CM_EVENT_ROUTE_ERROR, -ENETUNREACH);
	fails("rdma:10.9.0.1:7000", -ENETUNREACH, "no route for RDMA leads there");
	fabric_address_refused("10.9.0.1", ENODEV);
	fails("rdma:10.9.0.1:7000", -ENODEV, "no RDMA device of this host leads there");
	fabric_address_refused("10.9.0.1", EHOSTUNREACH);
	fails("rdma:10.9.0.1:7000", -EHOSTUNREACH, "the address cannot be resolved: No route to host");
}

Test(rdma_setup, says_that_this_host_has_no_rdma)
{
	struct tp_listener *l = NULL;
	struct ft_error err = { 0 };

	fabric_fail(FABRIC_CREATE_EVENT_CHANNEL, 1, ENODEV, FABRIC_FOR_EVER);
	fails("rdma:10.9.0.1:7000", -ENODEV, "rdma link add rxe0 type rxe netdev INTERFACE");
	cr_assert_eq(tp_listen(&l, "rdma::0", &three_lanes, &err), -ENODEV);
	cr_assert(strstr(err.msg, "modprobe rdma_rxe"), "%s", err.msg);
	fabric_fail(FABRIC_CREATE_EVENT_CHANNEL, 1, EACCES, FABRIC_FOR_EVER);
	fails("rdma:10.9.0.1:7000", -EACCES, "/dev/infiniband/rdma_cm");
	fabric_fail(FABRIC_CREATE_EVENT_CHANNEL, 1, EMFILE, FABRIC_FOR_EVER);
	fails("rdma:10.9.0.1:7000", -EMFILE, "Too many open files");
}

Test(rdma_setup, lanes_on_different_devices_are_refused)
{
	struct fabric_config cfg;

	fabric_defaults(&cfg);
	cfg.devices = 2;
	fabric_reset(&cfg);
	fabric_route(2, 1);
	fails("rdma:10.9.0.1:7000", -EXDEV, "lane 1 is on another device");
}

static void cannot_listen(const char *uri, int code, const char *says)
{
	struct tp_listener *l = NULL;
	struct ft_error err = { 0 };

	cr_assert_eq(tp_listen(&l, uri, &three_lanes, &err), code, "%s: %s", uri, err.msg);
	cr_assert_null(l);
	cr_assert(strstr(err.msg, says), "%s: %s", uri, err.msg);
}

Test(rdma_setup, says_why_it_cannot_listen)
{
	cannot_listen("rdma:10.8.0.1:0", -EADDRNOTAVAIL, "this host does not have the address");
	fabric_fail(FABRIC_BIND_ADDR, 1, ENODEV, 1);
	cannot_listen("rdma:10.9.0.1:0", -ENODEV, "the address is on no RDMA device");
	cannot_listen("rdma:127.0.0.1:0", -ENODEV, "loopback addresses are on none"); /* though Linux binds to it */
	cannot_listen("rdma:[::1]:0", -ENODEV, "loopback addresses are on none");
	fabric_fail(FABRIC_BIND_ADDR, 1, EADDRNOTAVAIL,
		    2); /* what Linux says if somebody has the port on one address */
	cannot_listen("rdma::7000", -EADDRINUSE, "in use");
	cannot_listen("rdma:nonsense", -EINVAL, "HOST:PORT");
}

Test(rdma_setup, a_port_is_taken_once_and_free_again_at_once)
{
	struct tp_listener *second = NULL;
	struct ft_error err = { 0 };
	char uri[160];
	struct duo d;

	duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
	snprintf(uri, sizeof(uri), "rdma:%s", tp_listener_address(d.l));
	for (int i = 0; i < 3; i++) {
		duo_to(&d, "10.9.0.1");
		duo_meet(&d);
		duo_talk(&d);
		cr_assert_eq(tp_listen(&second, uri, &three_lanes, &err), -EADDRINUSE, "%s", err.msg);
		/* the connection is there yet, as one that was not closed in an orderly way would be */
		tp_listener_close(d.l);
		cr_assert_eq(tp_listen(&d.l, uri, &three_lanes, &err), 0, "%s", err.msg);
		tp_close(d.a);
		tp_close(d.b);
		d.a = d.b = NULL;
	}
	duo_end(&d);
}

/* -- deadlines and cancelling -- */

static void times_out(const char *says)
{
	uint64_t before = now_ns();
	struct tp_conn *c = NULL;
	struct ft_error err = { 0 };

	cr_assert_eq(tp_connect(&c, "rdma:10.9.0.1:7000", &three_lanes, deadline_in_ms(50), -1, &err), -ETIMEDOUT, "%s",
		     err.msg);
	cr_assert(strstr(err.msg, says), "%s", err.msg);
	cr_assert_geq(now_ns() - before, 50 * NS_PER_MS);
	cr_assert(fabric_all_gone(), "%s", fabric_live_text());
}

Test(rdma_setup, connect_ends_at_its_deadline_at_each_step)
{
	for (unsigned lane = 1; lane <= 3; lane++) {
		fabric_cm_change(RDMA_CM_EVENT_ADDR_RESOLVED, lane, FABRIC_CM_NEVER, 0);
		times_out("nobody on the network answers");
		fabric_cm_change(RDMA_CM_EVENT_ROUTE_RESOLVED, lane, FABRIC_CM_NEVER, 0);
		times_out("no route");
	}
	for (unsigned lane = 1; lane <= 3; lane++)
		fabric_cm_change(RDMA_CM_EVENT_REJECTED, 1, FABRIC_CM_NEVER, 0);
	times_out("nobody accepts");
}

Test(rdma_setup, connect_is_cancelled)
{
	struct duo d;
	uint64_t before = now_ns();

	duo_listen(&d, "rdma::0", three_lanes);
	duo_to(&d, "10.9.0.1");
	d.cancel_fd = eventfd(0, EFD_CLOEXEC);
	pthread_create(&d.t, NULL, connect_thread, &d); /* nobody is in tp_accept() */
	usleep(50000);
	event_raise(d.cancel_fd);
	pthread_join(d.t, NULL);
	cr_assert_eq(d.ra, -ECANCELED);
	cr_assert(strstr(d.ea.msg, "10.9.0.1"), "%s", d.ea.msg);
	cr_assert_lt(now_ns() - before, SOON_MS * NS_PER_MS);
	/* the listener does not take what was left for a connection, and goes on */
	cr_assert_eq(tp_accept(d.l, &d.b, deadline_in_ms(100), -1, &d.eb), -ETIMEDOUT, "%s", d.eb.msg);
	cr_assert_eq(tp_accept(d.l, &d.b, soon(), d.cancel_fd, &d.eb), -ECANCELED);
	event_clear(d.cancel_fd);
	duo_meet(&d);
	duo_talk(&d);
	close(d.cancel_fd);
	duo_end(&d);
}

Test(rdma_setup, accept_does_not_wait_if_it_may_not)
{
	uint64_t before = now_ns();
	struct duo d;

	duo_listen(&d, "rdma::0", three_lanes);
	cr_assert_eq(tp_accept(d.l, &d.b, 0, -1, &d.eb), -ETIMEDOUT);
	cr_assert(strstr(d.eb.msg, "nobody connected"));
	cr_assert_lt(now_ns() - before, SOON_MS * NS_PER_MS);
	duo_end(&d);
}

/* -- a peer that is no ft -- */

/* One lane of a peer of our own making. */
struct raw {
	const struct rdma_fabric *f;
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
};

/* The next event, within LONG_MS; its type. */
static int raw_event(struct raw *w, uint8_t *data, size_t *len)
{
	struct rdma_cm_event *e;
	int type;

	cr_assert_eq(wait_fd(w->events->fd, POLLIN, -1, soon()), 0, "no event came");
	cr_assert_eq(w->f->get_cm_event(w->events, &e), 0);
	type = (int)e->event;
	*len = e->param.conn.private_data_len;
	if (*len > 0)
		memcpy(data, e->param.conn.private_data, *len);
	w->f->ack_cm_event(e);
	return type;
}

static void raw_ask(struct raw *w, const struct duo *d, const void *data, uint8_t len)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("10.9.0.1") };
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len, .retry_count = 3 };
	uint8_t none[256];
	size_t n;

	w->f = rdma_fabric();
	to.sin_port = htons((uint16_t)atoi(strrchr(d->uri, ':') + 1));
	w->events = w->f->create_event_channel();
	cr_assert_eq(w->f->create_id(w->events, &w->id, NULL), 0);
	cr_assert_eq(w->f->resolve_addr(w->id, NULL, (struct sockaddr *)&to, 1000), 0);
	cr_assert_eq(raw_event(w, none, &n), RDMA_CM_EVENT_ADDR_RESOLVED);
	cr_assert_eq(w->f->resolve_route(w->id, 1000), 0);
	cr_assert_eq(raw_event(w, none, &n), RDMA_CM_EVENT_ROUTE_RESOLVED);
	w->pd = w->f->alloc_pd(w->id->verbs);
	w->cq = w->f->create_cq(w->id->verbs, 4, NULL, NULL);
	attr.send_cq = attr.recv_cq = w->cq;
	cr_assert_eq(w->f->create_qp(w->id, w->pd, &attr), 0);
	cr_assert_eq(w->f->connect(w->id, &param), 0);
}

static void raw_end(struct raw *w)
{
	w->f->disconnect(w->id);
	w->f->destroy_qp(w->id);
	w->f->destroy_cq(w->cq);
	w->f->dealloc_pd(w->pd);
	w->f->destroy_id(w->id);
	w->f->destroy_event_channel(w->events);
}

/* Until the listener has taken as many requests as there are ids of the made-up peers. */
static void raw_taken(unsigned asked)
{
	struct fabric_live live;
	uint64_t deadline = soon();

	do {
		usleep(1000);
		fabric_live(&live);
	} while (live.ids < 1 + 2 * asked && now_ns() < deadline);
	cr_assert_eq(live.ids, 1 + 2 * asked, "%s", fabric_live_text());
}

/* The listener refuses with @status and a sentence with @says. */
static void raw_refused(struct raw *w, enum rdma_status status, const char *says)
{
	uint8_t data[256];
	struct ft_error why = { 0 };
	size_t n;

	cr_assert_eq(raw_event(w, data, &n), RDMA_CM_EVENT_REJECTED);
	cr_assert_eq(rdma_refusal_read(data, n, &why), status, "%s", why.msg);
	cr_assert(strstr(why.msg, says), "%s", why.msg);
}

static struct rdma_hello hello(uint8_t set, uint32_t lane, uint32_t lanes)
{
	struct tp_params p = { .lanes = lanes, .credits = 8, .chunk_bytes = 1u << 20 };
	struct rdma_limits l = rdma_limits_of(&p);
	uint8_t token[16] = { set };
	struct rdma_hello h;

	rdma_hello_fill(&h, &l, token, lane);
	return h;
}

/* A listener that somebody is in tp_accept() of, until duo_meet_there(). */
static void duo_serve(struct duo *d)
{
	duo_listen(d, "rdma::0", three_lanes);
	duo_to(d, "10.9.0.1");
	pthread_create(&d->t, NULL, accept_thread, d);
}

static void duo_meet_there(struct duo *d)
{
	connect_thread(d);
	pthread_join(d->t, NULL);
	duo_talk(d);
	duo_end(d);
}

Test(rdma_setup, garbage_is_refused_with_a_reason_and_the_listener_goes_on)
{
	struct rdma_hello h;
	struct raw w;
	struct duo d;

	duo_serve(&d);
	raw_ask(&w, &d, "GET / HTTP/1.1\r\n\r\n", 18);
	raw_refused(&w, RDMA_REFUSE_OTHER, "the request is not one of ft's");
	raw_end(&w);
	raw_ask(&w, &d, NULL, 0);
	raw_refused(&w, RDMA_REFUSE_OTHER, "the request is not one of ft's");
	raw_end(&w);
	h = hello(1, 0, 3);
	h.version = to_be16(7);
	raw_ask(&w, &d, &h, sizeof(h));
	raw_refused(&w, RDMA_REFUSE_VERSION, "version 7 was asked for, this side speaks 1");
	raw_end(&w);
	h = hello(1, 3, 3);
	raw_ask(&w, &d, &h, sizeof(h));
	raw_refused(&w, RDMA_REFUSE_LANES, "lane 3 of 3 lanes, 2 to 9 can be had");
	raw_end(&w);
	h = hello(1, 0, 3);
	h.capabilities = to_be32(8);
	raw_ask(&w, &d, &h, sizeof(h));
	raw_refused(&w, RDMA_REFUSE_CAPABILITY, "capabilities 0x8 are not known here");
	raw_end(&w);
	duo_meet_there(&d);
}

Test(rdma_setup, lanes_that_do_not_go_together_are_refused)
{
	struct rdma_hello h = hello(1, 0, 3);
	struct raw first, w;
	struct duo d;

	duo_serve(&d);
	raw_ask(&first, &d, &h, sizeof(h));
	raw_ask(&w, &d, &h, sizeof(h));
	raw_refused(&w, RDMA_REFUSE_OTHER, "this lane of the set was asked for already");
	raw_end(&w);
	h = hello(1, 1, 4);
	raw_ask(&w, &d, &h, sizeof(h));
	raw_refused(&w, RDMA_REFUSE_OTHER, "the requests of one set differ");
	raw_end(&w);
	duo_meet_there(&d); /* refuses what is left of the set */
	raw_refused(&first, RDMA_REFUSE_OTHER, "the listener closes");
	raw_end(&first);
}

Test(rdma_setup, half_open_sets_hold_up_nobody_and_are_dropped)
{
	struct rdma_hello h = hello(1, 0, 2);
	uint64_t before;
	struct raw w;
	struct duo d;

	duo_serve(&d);
	before = now_ns();
	raw_ask(&w, &d, &h, sizeof(h));
	connect_thread(&d); /* comes second, is served first */
	pthread_join(d.t, NULL);
	duo_talk(&d);
	cr_assert_lt(now_ns() - before, HALF_OPEN_MS * NS_PER_MS, "or this machine is too slow for this test");
	tp_close(d.a);
	tp_close(d.b);
	d.a = d.b = NULL;
	pthread_create(&d.t, NULL, accept_thread, &d);
	raw_refused(&w, RDMA_REFUSE_OTHER, "its set did not become whole in time");
	cr_assert_geq(now_ns() - before, HALF_OPEN_MS * NS_PER_MS);
	raw_end(&w);
	duo_meet_there(&d);
}

Test(rdma_setup, one_half_open_too_many_drives_out_the_oldest)
{
	struct raw w[HALF_OPEN_MAX + 1];
	struct rdma_hello h;
	struct duo d;

	duo_serve(&d);
	for (unsigned i = 0; i <= HALF_OPEN_MAX; i++) {
		h = hello((uint8_t)i, 0, 2);
		raw_ask(&w[i], &d, &h, sizeof(h));
		if (i < HALF_OPEN_MAX)
			raw_taken(i + 1);
	}
	raw_refused(&w[0], RDMA_REFUSE_LIMIT, "too many connections are half-open");
	raw_end(&w[0]);
	duo_meet_there(&d);
	for (unsigned i = 1; i <= HALF_OPEN_MAX; i++)
		raw_end(&w[i]);
}

/* A peer that asks for all its lanes and leaves before it was accepted, or while it is. */
Test(rdma_setup, a_set_whose_peer_leaves)
{
	struct rdma_hello h[2] = { hello(1, 0, 2), hello(1, 1, 2) };
	struct raw w[2];
	struct duo d;

	for (int way = 0; way < 4; way++) {
		duo_listen(&d, "rdma::0", three_lanes);
		duo_to(&d, "10.9.0.1");
		if (way >= 2)
			pthread_create(&d.t, NULL, accept_thread, &d);
		raw_ask(&w[0], &d, &h[0], sizeof(h[0]));
		if (way == 1)
			raw_end(&w[0]);
		raw_ask(&w[1], &d, &h[1], sizeof(h[1]));
		if (way != 1)
			raw_end(&w[0]);
		raw_end(&w[1]);
		if (way < 2)
			pthread_create(&d.t, NULL, accept_thread, &d);
		if (way == 3) { /* the listener is closed with whatever is left */
			duo_meet_there(&d);
			continue;
		}
		duo_meet_there(&d);
	}
}

/* A peer that is accepted and never takes notice. */
Test(rdma_setup, a_set_that_does_not_come_to_stand_holds_up_nobody_and_is_dropped)
{
	struct rdma_hello h[2] = { hello(1, 0, 2), hello(1, 1, 2) };
	struct fabric_live live;
	struct raw w[2];
	uint64_t before;
	struct duo d;

	duo_serve(&d);
	before = now_ns();
	for (int i = 0; i < 2; i++)
		raw_ask(&w[i], &d, &h[i],
			sizeof(h[i])); /* ESTABLISHED comes here, and is not got: no last word goes back */
	connect_thread(&d);
	pthread_join(d.t, NULL);
	duo_talk(&d);
	tp_close(d.a);
	tp_close(d.b);
	d.a = d.b = NULL;
	fabric_live(&live);
	cr_assert_eq(live.qps, 4, "the set is accepted: %s", fabric_live_text());
	while (now_ns() - before < (HALF_OPEN_MS + 100) * NS_PER_MS)
		cr_assert_eq(tp_accept(d.l, &d.b, deadline_in_ms(100), -1, &d.eb), -ETIMEDOUT);
	fabric_live(&live);
	cr_assert_eq(live.qps, 2, "the set is dropped: %s", fabric_live_text());
	for (int i = 0; i < 2; i++)
		raw_end(&w[i]);
	pthread_create(&d.t, NULL, accept_thread, &d);
	duo_meet_there(&d);
}

Test(rdma_setup, the_listener_closes_in_whatever_state)
{
	struct rdma_hello h[3] = { hello(1, 0, 2), hello(1, 1, 2), hello(2, 0, 2) };
	struct raw w[3];
	struct duo d;

	for (unsigned asked = 0; asked <= 3; asked++) {
		for (unsigned looked = 0; looked < 2; looked++) {
			duo_listen(&d, "rdma::0", three_lanes);
			duo_to(&d, "10.9.0.1");
			for (unsigned i = 0; i < asked; i++)
				raw_ask(&w[i], &d, &h[i], sizeof(h[i]));
			if (looked)
				cr_assert_eq(tp_accept(d.l, &d.b, deadline_in_ms(20), -1, &d.eb), -ETIMEDOUT);
			tp_listener_close(d.l);
			for (unsigned i = 0; i < asked; i++)
				raw_end(&w[i]);
			cr_assert(fabric_all_gone(), "%u asked, looked %u: %s", asked, looked, fabric_live_text());
		}
	}
}

/* -- refused for want of something -- */

Test(rdma_setup, what_the_listener_lacks_is_told_to_the_peer)
{
	static const struct {
		enum fabric_call call;
		unsigned nth; /* the connecting side's come first */
		const char *says;
	} lacks[] = { { FABRIC_CREATE_EVENT_CHANNEL, 2, "connection manager" },
		      { FABRIC_CREATE_CQ, 3, "completion queue" },
		      { FABRIC_REG_MR, 2, "memory for messages" },
		      { FABRIC_CREATE_QP, 4, "queue pair" },
		      { FABRIC_CREATE_QP, 6, "queue pair" },
		      { FABRIC_MIGRATE_ID, 1, "moved to its connection" },
		      { FABRIC_ACCEPT, 1, "cannot be accepted" },
		      { FABRIC_QUERY_DEVICE, 2, "limits" } };
	struct duo d;

	for (size_t i = 0; i < sizeof(lacks) / sizeof(lacks[0]); i++) {
		duo_serve(&d);
		fabric_fail(lacks[i].call, lacks[i].nth, ENOMEM, 1);
		connect_thread(&d);
		cr_assert_eq(d.ra, -ENOBUFS, "%s: %s", fabric_call_name(lacks[i].call), d.ea.msg);
		cr_assert(strstr(d.ea.msg, "10.9.0.1"), "%s", d.ea.msg);
		cr_assert(strstr(d.ea.msg, "the peer refuses the connection: "), "%s", d.ea.msg);
		cr_assert(strstr(d.ea.msg, lacks[i].says), "%s: %s", fabric_call_name(lacks[i].call), d.ea.msg);
		duo_meet_there(&d);
		cr_assert(fabric_all_gone(), "%s", fabric_live_text());
	}
}

/* -- everything that can go wrong, once -- */

/* Until both sides got through to each other or have given up; the side that fails has to say why. */
static void meet_with_a_fault(struct duo *d, const char *what)
{
	d->give_up_fd = eventfd(0, EFD_CLOEXEC);
	pthread_create(&d->t, NULL, accept_thread, d);
	connect_thread(d);
	if (d->ra != 0)
		event_raise(d->give_up_fd); /* nobody else will come */
	pthread_join(d->t, NULL);
	cr_assert(d->ra == 0 || (d->ra < 0 && d->ea.msg[0] && d->ea.code == d->ra), "%s: %d: %s", what, d->ra,
		  d->ea.msg);
	cr_assert(d->rb == 0 || (d->rb < 0 && d->eb.msg[0]), "%s: %d: %s", what, d->rb, d->eb.msg);
	tp_close(d->a);
	tp_close(d->b);
	d->a = d->b = NULL;
	close(d->give_up_fd);
	d->give_up_fd = -1;
	d->connect_ms = d->accept_ms = LONG_MS;
}

/* After a fault that came once the same listener serves the next. */
static void works_again(struct duo *d, const char *what)
{
	duo_meet(d);
	cr_assert_eq(d->ra, 0, "%s: %s", what, d->ea.msg);
	cr_assert_eq(d->rb, 0, "%s: %s", what, d->eb.msg);
	duo_end(d);
	cr_assert(fabric_all_gone(), "%s: left behind: %s", what, fabric_live_text());
}

Test(rdma_setup, each_call_fails_once, .timeout = 600)
{
	static const int errors[] = { ENOMEM, EINVAL, ENODEV };
	struct duo d;
	char what[64];

	for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
		for (unsigned nth = 1;; nth++) {
			unsigned hits;

			fabric_reset(NULL);
			snprintf(what, sizeof(what), "call %u fails with %s", nth, strerror(errors[e]));
			duo_listen(&d, "rdma::0", three_lanes);
			duo_to(&d, "10.9.0.1");
			fabric_fail_any(nth, errors[e], 1);
			d.connect_ms = d.accept_ms = 300; /* some faults look like a peer that says nothing */
			meet_with_a_fault(&d, what);
			hits = fabric_hits();
			if (hits) {
				works_again(&d, what);
				continue;
			}
			tp_listener_close(d.l);
			if (d.ra == 0)
				break;
			cr_assert_eq(d.ra, -ETIMEDOUT, "no call failed: %s", d.ea.msg);
			nth--; /* the machine is slow: once more */
		}
	}
}

Test(rdma_setup, listening_fails_at_each_call)
{
	struct tp_listener *l;
	struct ft_error err;
	unsigned nth;

	for (nth = 1;; nth++) {
		fabric_reset(NULL);
		l = NULL;
		fabric_fail_any(nth, ENOMEM, FABRIC_FOR_EVER);
		if (tp_listen(&l, "rdma:10.9.0.1:0", &three_lanes, &err) == 0)
			break;
		cr_assert_gt(fabric_hits(), 0);
		cr_assert_null(l);
		cr_assert(err.msg[0]);
		cr_assert(fabric_all_gone(), "%u: %s", nth, fabric_live_text());
	}
	cr_assert_eq(fabric_hits(), 0);
	cr_assert_gt(nth, 3);
	tp_listener_close(l);
}

/* Every event of the making, the 1st to the 3rd of its kind on each side, does not come, comes twice, or comes as another. */
Test(rdma_setup, each_event_goes_wrong_once, .timeout = 600)
{
	static const int from[] = { RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
				    RDMA_CM_EVENT_ESTABLISHED };
	static const int to[] = { FABRIC_CM_TWICE,
				  RDMA_CM_EVENT_ADDR_ERROR,
				  RDMA_CM_EVENT_ROUTE_ERROR,
				  RDMA_CM_EVENT_CONNECT_ERROR,
				  RDMA_CM_EVENT_UNREACHABLE,
				  RDMA_CM_EVENT_REJECTED,
				  RDMA_CM_EVENT_DISCONNECTED,
				  RDMA_CM_EVENT_DEVICE_REMOVAL,
				  RDMA_CM_EVENT_ADDR_CHANGE,
				  RDMA_CM_EVENT_TIMEWAIT_EXIT,
				  FABRIC_CM_NEVER };
	struct duo d;
	char what[96];

	for (size_t f = 0; f < sizeof(from) / sizeof(from[0]); f++) {
		for (size_t t = 0; t < sizeof(to) / sizeof(to[0]); t++) {
			for (unsigned nth = 1; nth <= (f == 2 ? 6 : 3); nth++) {
				fabric_reset(NULL);
				snprintf(what, sizeof(what), "event %d, number %u, becomes %d", from[f], nth, to[t]);
				duo_listen(&d, "rdma::0", three_lanes);
				duo_to(&d, "10.9.0.1");
				fabric_cm_change((enum rdma_cm_event_type)from[f], nth, to[t], -ECONNRESET);
				d.connect_ms = d.accept_ms = 300; /* for what never comes */
				meet_with_a_fault(&d, what);
				if (!fabric_hits()) {
					tp_listener_close(d.l);
					cr_assert_eq(d.ra, -ETIMEDOUT, "%s: did not happen", what);
					nth--; /* the machine is slow: once more */
					continue;
				}
				works_again(&d, what);
			}
		}
	}
}

Test(rdma_setup, the_device_goes)
{
	struct duo d;

	duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
	pthread_create(&d.t, NULL, accept_thread, &d);
	usleep(20000);
	fabric_remove_device(0);
	pthread_join(d.t, NULL);
	cr_assert_eq(d.rb, -ENODEV, "%s", d.eb.msg);
	cr_assert(strstr(d.eb.msg, "the RDMA device is gone"), "%s", d.eb.msg);
	duo_end(&d);
}

/* Points of faultpoint.c, where memory and descriptors are taken; compiled out of a release. */
Test(rdma_setup, each_fault_point)
{
	static const char *const points[] = { "rdma/token",    "rdma/listener", "rdma/listener-epoll", "rdma/half",
					      "rdma/standing", "rdma/create",   "rdma/lane",           "rdma/wake-fd" };
	struct duo d;

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		for (unsigned nth = 1; nth < 40; nth++) {
			struct tp_listener *l = NULL;
			struct ft_error err = { 0 };
			uint64_t hits;
			int r;

			faultpoint_arm(nth, false, points[i]);
			r = tp_listen(&l, "rdma::0", &three_lanes, &err);
			if (r != 0)
				cr_assert(err.msg[0]);
			tp_listener_close(l);
			faultpoint_disarm();
			duo_listen(&d, "rdma::0", three_lanes);
			duo_to(&d, "10.9.0.1");
			d.connect_ms = d.accept_ms = 300;
			if (r == 0)
				faultpoint_arm(nth, false, points[i]);
			meet_with_a_fault(&d, points[i]);
			hits = faultpoint_hits();
			faultpoint_disarm();
			works_again(&d, points[i]);
			if (hits < nth)
				break;
		}
	}
}

Test(rdma_setup, no_descriptor_is_left)
{
	unsigned before;

	meet_and_talk("rdma::0", "10.9.0.1");
	before = nr_fds();
	for (int i = 0; i < 20; i++)
		meet_and_talk("rdma::0", "10.9.0.1");
	cr_assert_eq(nr_fds(), before);
}

/* -- what ends a connection is told -- */

static void loss_is_told(struct duo *d, const char *says)
{
	uint8_t *buf = malloc(TP_MESSAGE_MAX);
	struct ft_error err = { 0 };
	uint32_t lane;
	size_t len;

	cr_assert(buf);
	cr_assert_eq(tp_recv(d->a, buf, TP_MESSAGE_MAX, &lane, &len, soon(), &err), -ECONNRESET, "%s", err.msg);
	cr_assert(strstr(err.msg, says), "%s", err.msg);
	free(buf);
}

/* Failed work of one lane, and what was flushed of all: receives, which are looked at first, and sends of lanes before it. */
Test(rdma_setup, the_cause_of_a_loss_is_told_and_not_what_was_flushed)
{
	struct iovec v = { .iov_base = "hello", .iov_len = 5 };
	struct duo d;

	for (uint32_t lane = 0; lane < 3; lane++) {
		duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
		duo_to(&d, "10.9.0.1");
		duo_meet(&d);
		cr_assert(d.a && d.b, "%s %s", d.ea.msg, d.eb.msg);
		fabric_link(FABRIC_DEAD);
		cr_assert_eq(tp_send(d.a, lane, &v, 1, soon(), &d.ea), 0, "%s", d.ea.msg);
		loss_is_told(&d, "transport retry counter exceeded");
		duo_end(&d);
		fabric_reset(NULL);
	}
}

Test(rdma_setup, a_peer_that_the_network_has_lost)
{
	struct duo d;

	duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
	duo_to(&d, "10.9.0.1");
	duo_meet(&d);
	cr_assert(d.a && d.b, "%s %s", d.ea.msg, d.eb.msg);
	talk(d.b, d.a);
	fabric_cm_send(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	loss_is_told(&d, "is not there any more");
	duo_end(&d);
}

/* -- a kernel that does not give back a queue pair -- */

static const struct rdma_fabric *quick;
static pthread_mutex_t kernel = PTHREAD_MUTEX_INITIALIZER;

static void slow_destroy_qp(struct rdma_cm_id *id)
{
	pthread_mutex_lock(&kernel);
	quick->destroy_qp(id);
	pthread_mutex_unlock(&kernel);
}

/* Who closes does not wait for it; the device has no memory of ours then, and all is given back when the kernel does. */
Test(rdma_setup, queue_pairs_that_the_kernel_keeps)
{
	uint64_t deadline = soon();
	struct fabric_live live;
	struct rdma_fabric slow;
	struct duo d;

	quick = rdma_fabric();
	slow = *quick;
	slow.destroy_qp = slow_destroy_qp;
	rdma_fabric_set(&slow);
	rdma_end_ms = 20;
	duo_listen(&d, "rdma:10.9.0.1:0", three_lanes);
	duo_to(&d, "10.9.0.1");
	duo_meet(&d);
	cr_assert(d.a && d.b, "%s %s", d.ea.msg, d.eb.msg);
	talk(d.a, d.b);
	pthread_mutex_lock(&kernel);
	duo_end(&d);
	fabric_live(&live);
	cr_expect_eq(live.qps, 6);
	cr_expect_eq(live.mrs, 0);
	pthread_mutex_unlock(&kernel);
	while (!fabric_all_gone())
		cr_assert(now_ns() < deadline, "%s", fabric_live_text());
	rdma_fabric_set(quick);
}
