/* SPDX-License-Identifier: MIT */
/* rdma_listen.c - the side of an rdma connection that is asked: requests are gathered to sets by their token, a set that is whole gets a
 * connection of its own and is accepted, and is given out once all its lanes are established.  Runs on the thread in tp_accept(): between two
 * calls nothing is answered, and requests wait in the kernel.
 *
 * A request lives in two places.  As struct half it waits for the others of its set: at most HALF_OPEN_MAX, each for HALF_OPEN_NS at most,
 * and one more drives out the oldest.  With its whole set it then moves to a struct standing: its id goes over to the event channel of the
 * new connection before it is accepted, so the listener's channel never brings what belongs to a connection that was given out.  Standing
 * ones are few and as short-lived, since each holds a device's queues: at most STANDING_MAX.  Nobody waits for a certain peer. */
#include "rdma_setup.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "address.h"
#include "clock.h"
#include "faultpoint.h"
#include "log.h"

#define HALF_OPEN_MAX 64u
#define HALF_OPEN_NS (5 * NS_PER_S)
#define STANDING_MAX 8u
#define NEWS_MAX (2 * HALF_OPEN_MAX) /* taken from one channel before others get their turn */

/* A request that waits for the others of its set. */
struct half {
	struct half *next; /* oldest first */
	struct rdma_cm_id *id;
	uint64_t since_ns;
	struct rdma_hello hello;
	char peer[TP_PEER_MAX];
};

/* A set that was accepted, and whose lanes are not all established yet. */
struct standing {
	struct standing *next; /* oldest first */
	struct rdma *conn;
	uint64_t since_ns;
	uint32_t accepted; /* lanes below */
};

struct rdma_listener {
	struct tp_listener base;
	const struct rdma_fabric *fabric;
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	int epoll_fd; /* events, and those of all standing: only to wait on */
	bool removed; /* the device is gone */
	struct half *first;
	unsigned nr_half;
	struct standing *standing;
	unsigned nr_standing;
};

/* -- refusing -- */

/* The request of @id is answered with @why, and done with. */
static void refuse(struct rdma_listener *l, struct rdma_cm_id *id, enum rdma_status status, const char *why)
{
	struct rdma_refusal r;

	rdma_refusal_fill(&r, status, why);
	l->fabric->reject(id, &r, sizeof(r)); /* fails if the peer has left, and then nobody wants to know */
	l->fabric->destroy_id(id);
}

static void half_unlink(struct rdma_listener *l, struct half *h)
{
	struct half **at = &l->first;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	l->nr_half--;
}

/* half_drop - its id, if it still has one, is refused with @why. */
static void half_drop(struct rdma_listener *l, struct half *h, enum rdma_status status, const char *why)
{
	half_unlink(l, h);
	if (h->id) {
		log_debug("rdma", "%s: request for lane %u dropped: %s", h->peer, from_be16(h->hello.lane), why);
		refuse(l, h->id, status, why);
	}
	free(h);
}

static void standing_drop(struct rdma_listener *l, struct standing *w, const char *why)
{
	struct standing **at = &l->standing;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	l->nr_standing--;
	if (w->conn && why)
		log_debug("rdma", "%s: accepted connection dropped: %s", w->conn->conn.peer, why);
	rdma_conn_destroy(w->conn); /* its channel leaves the epoll set */
	free(w);
}

/* -- a set becomes a connection -- */

/* collect - the set that @h belongs to, in order of lanes: true if it is whole. */
static bool collect(const struct rdma_listener *l, const struct half *h, struct half *set[TP_LANES_MAX])
{
	uint32_t found = 0;

	for (struct half *o = l->first; o; o = o->next) {
		if (memcmp(o->hello.token, h->hello.token, sizeof(o->hello.token)) == 0) {
			set[from_be16(o->hello.lane)] = o;
			found++;
		}
	}
	return found == from_be16(h->hello.lanes);
}

/* The ids move over; from here on they go with the connection. */
static int take_lanes(struct rdma_listener *l, struct rdma *s, struct half *const *set, struct ft_error *err)
{
	for (uint32_t i = 0; i < s->limits.lanes; i++) {
		struct rdma_cm_id *id = set[i]->id;
		int r;

		rdma_set_ack_timeout(l->fabric, id, &l->base.params);
		r = l->fabric->migrate_id(id, s->events);
		if (r != 0)
			return err_sys(err, r, "lane %u cannot be moved to its connection", i);
		set[i]->id = NULL;
		r = rdma_lane_attach(s, i, id, err);
		if (r != 0)
			return r;
	}
	return 0;
}

static int accept_lanes(struct rdma_listener *l, struct standing *w, const uint8_t token[16], struct ft_error *err)
{
	const struct rdma *s = w->conn;

	for (uint32_t i = 0; i < s->limits.lanes; i++, w->accepted++) {
		struct rdma_hello h;
		struct rdma_conn_param param = rdma_param_of(&h, &l->base.params);
		int r;

		rdma_hello_fill(&h, &s->limits, token, i);
		r = l->fabric->accept(s->lane[i].id, &param);
		if (r != 0)
			return err_sys(err, r, "lane %u cannot be accepted, the peer may have left", i);
	}
	return 0;
}

static int conn_create(struct rdma_listener *l, struct standing *w, struct half *const *set, struct ft_error *err)
{
	uint32_t asked = from_be16(set[0]->hello.lanes), max = l->base.params.lanes, lanes = asked < max ? asked : max;
	struct rdma_event_channel *events;
	int r;

	r = rdma_open_channel(l->fabric, &events, err);
	if (r != 0)
		return r;
	r = rdma_conn_create(&w->conn, l->fabric, lanes, events, set[0]->peer, err);
	if (r != 0)
		return r;
	w->conn->limits = rdma_limits_of(&l->base.params);
	w->conn->limits.lanes = lanes;
	w->conn->limits.credits_peers = from_be16(set[0]->hello.credits);
	return 0;
}

static int build(struct rdma_listener *l, struct standing *w, struct half *const *set, struct ft_error *err)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int r = conn_create(l, w, set, err);

	if (r == 0)
		r = rdma_prepare(w->conn, set[0]->id->verbs, err);
	if (r != 0)
		return r;
	rdma_agree(&w->conn->limits, &set[0]->hello);
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, w->conn->events->fd, &ev) != 0)
		return err_sys(err, -errno, "the connection's events cannot be watched");
	r = take_lanes(l, w->conn, set, err);
	return r == 0 ? accept_lanes(l, w, set[0]->hello.token, err) : r;
}

static struct standing *standing_add(struct rdma_listener *l)
{
	struct standing *w = FT_FAULT("rdma/standing") ? NULL : calloc(1, sizeof(*w)), **at = &l->standing;

	if (!w)
		return NULL;
	w->since_ns = now_ns();
	while (*at)
		at = &(*at)->next;
	*at = w;
	l->nr_standing++;
	return w;
}

/* A set that could not be made: the reason goes to all lanes that were not accepted yet; those that were are cut. */
static void refuse_set(struct rdma_listener *l, struct standing *w, const char *why)
{
	struct rdma_refusal r;

	rdma_refusal_fill(&r, RDMA_REFUSE_LIMIT, why);
	for (uint32_t i = w ? w->accepted : 0; w && w->conn && i < w->conn->conn.lanes; i++) {
		if (w->conn->lane[i].id)
			l->fabric->reject(w->conn->lane[i].id, &r, sizeof(r));
	}
	if (w)
		standing_drop(l, w, why);
}

static void stand_up(struct rdma_listener *l, struct half *const *set)
{
	uint32_t asked = from_be16(set[0]->hello.lanes);
	struct ft_error why = { 0 };
	struct standing *w;
	int r;

	if (l->nr_standing == STANDING_MAX)
		standing_drop(l, l->standing, "too many wait for their peers' last word");
	w = standing_add(l);
	r = w ? build(l, w, set, &why) : err_set(&why, -ENOMEM, "no memory");
	if (r ==
	    -EINVAL) /* what the kernel says to everything once the peer has gone, and that it does not tell before */
		log_info("rdma", "%s: the peer has left, or: %s", set[0]->peer, why.msg);
	else if (r != 0)
		log_warn("rdma", "%s: the connection is refused: %s", set[0]->peer, why.msg);
	if (r != 0)
		refuse_set(l, w, why.msg);
	for (uint32_t i = 0; i < asked; i++)
		half_drop(l, set[i], r ? RDMA_REFUSE_LIMIT : RDMA_REFUSE_SURPLUS,
			  r ? why.msg : "more lanes than are taken here");
}

/* -- requests -- */

/* What is wrong with @h beside those that are there, or NULL. */
static const char *clash(const struct rdma_listener *l, const struct half *h)
{
	for (const struct half *o = l->first; o; o = o->next) {
		if (memcmp(o->hello.token, h->hello.token, sizeof(o->hello.token)) != 0)
			continue;
		if (!rdma_request_same_set(&o->hello, &h->hello))
			return "the requests of one set differ";
		if (o->hello.lane.be == h->hello.lane.be)
			return "this lane of the set was asked for already";
	}
	return NULL;
}

static void half_add(struct rdma_listener *l, struct half *h)
{
	struct half **at = &l->first;

	if (l->nr_half == HALF_OPEN_MAX)
		half_drop(l, l->first, RDMA_REFUSE_LIMIT, "too many connections are half-open");
	while (*at)
		at = &(*at)->next;
	*at = h;
	l->nr_half++;
}

static void take_request(struct rdma_listener *l, const struct news *n)
{
	struct half *set[TP_LANES_MAX] = { NULL };
	struct half *h = FT_FAULT("rdma/half") ? NULL : calloc(1, sizeof(*h));
	enum rdma_status status = RDMA_REFUSE_LIMIT;
	struct ft_error why = { .msg = "no memory" };
	const char *wrong = NULL;

	if (h) {
		address_print(h->peer, sizeof(h->peer), rdma_get_peer_addr(n->id), sizeof(struct sockaddr_storage));
		status = rdma_request_check(&h->hello, n->data, n->len, &why);
	}
	if (status == RDMA_OK && (wrong = clash(l, h)) != NULL) {
		status = RDMA_REFUSE_OTHER;
		err_set(&why, -EPROTO, "%s", wrong);
	}
	if (status != RDMA_OK) {
		log_debug("rdma", "%s: request refused: %s", h ? h->peer : "?", why.msg);
		refuse(l, n->id, status, why.msg);
		free(h);
		return;
	}
	h->id = n->id;
	h->since_ns = now_ns();
	half_add(l, h);
	if (collect(l, h, set))
		stand_up(l, set);
}

/* -- events -- */

/* An event of a lane that was accepted: false if the set will not come to stand. */
static bool heed_standing(struct standing *w, const struct news *n)
{
	uint32_t lane = rdma_lane_of(w->conn, n->id);

	if (lane == w->conn->conn.lanes)
		return true;
	if (n->type == RDMA_CM_EVENT_ESTABLISHED)
		w->conn->lane[lane].established = true;
	return n->type == RDMA_CM_EVENT_ESTABLISHED || n->type == RDMA_CM_EVENT_ADDR_CHANGE;
}

/* Events of the listener's channel that are not requests: a peer that has left, or the device. */
static void heed(struct rdma_listener *l, const struct news *n)
{
	if (n->id == l->id) {
		l->removed = l->removed || n->type == RDMA_CM_EVENT_DEVICE_REMOVAL;
		return;
	}
	for (struct half *h = l->first; h; h = h->next) {
		if (h->id == n->id) {
			if (n->type != RDMA_CM_EVENT_ADDR_CHANGE)
				half_drop(l, h, RDMA_REFUSE_OTHER, "it left");
			return;
		}
	}
	/* was under way here when its id moved */
	for (struct standing *w = l->standing; w; w = w->next) {
		if (rdma_lane_of(w->conn, n->id) == w->conn->conn.lanes)
			continue;
		if (!heed_standing(w, n))
			standing_drop(l, w, "the peer left");
		return;
	}
}

static int take_news(struct rdma_listener *l, struct ft_error *err)
{
	struct news n;
	int r = 0;

	for (unsigned i = 0; i < NEWS_MAX && (r = rdma_next_news(l->fabric, l->events, &n)) == 0; i++) {
		if (n.type == RDMA_CM_EVENT_CONNECT_REQUEST)
			take_request(l, &n);
		else
			heed(l, &n);
	}
	if (r != 0 && r != -EAGAIN)
		return err_sys(err, r, "%s: cannot get events of the connection manager", l->base.address);
	if (l->removed)
		return err_set(err, -ENODEV, "%s: the RDMA device is gone", l->base.address);
	return 0;
}

/* What has become of an accepted set: 1 all lanes are established, 0 not yet, negative: it will not be. */
static int look_at(const struct rdma_listener *l, struct standing *w)
{
	struct news n;
	int r = 0;

	for (unsigned i = 0; i < NEWS_MAX && (r = rdma_next_news(l->fabric, w->conn->events, &n)) == 0; i++) {
		if (!heed_standing(w, &n))
			return -ECONNRESET;
	}
	if (r != 0 && r != -EAGAIN)
		return r;
	for (uint32_t i = 0; i < w->conn->conn.lanes; i++) {
		if (!w->conn->lane[i].established)
			return 0;
	}
	return 1;
}

/* The connection leaves the listener. */
static int give_out(struct rdma_listener *l, struct standing *w, struct tp_conn **out)
{
	struct rdma *s = w->conn;
	struct ft_error why = { 0 };

	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->events->fd, NULL);
	if (rdma_conn_stand(s, &why) != 0) {
		standing_drop(l, w, why.msg);
		return 0;
	}
	w->conn = NULL;
	standing_drop(l, w, NULL);
	*out = &s->conn;
	return 1;
}

static void look_at_standing(struct rdma_listener *l, struct tp_conn **out)
{
	struct standing *w = l->standing, *next;

	for (; w; w = next) {
		int r = look_at(l, w);

		next = w->next;
		if (r < 0)
			standing_drop(l, w, "the peer left");
		else if (r > 0 && give_out(l, w, out))
			return;
	}
}

/* drop_old - returns when the next one is due. */
static uint64_t drop_old(struct rdma_listener *l)
{
	uint64_t now = now_ns(), due = DEADLINE_NEVER;

	while (l->first && now - l->first->since_ns >= HALF_OPEN_NS)
		half_drop(l, l->first, RDMA_REFUSE_OTHER, "its set did not become whole in time");
	while (l->standing && now - l->standing->since_ns >= HALF_OPEN_NS)
		standing_drop(l, l->standing, "the peer did not say its last word in time");
	if (l->first)
		due = l->first->since_ns + HALF_OPEN_NS;
	if (l->standing && l->standing->since_ns + HALF_OPEN_NS < due)
		due = l->standing->since_ns + HALF_OPEN_NS;
	return due;
}

static int rdma_accept_conn(struct tp_listener *base, struct tp_conn **out, uint64_t deadline, int cancel_fd,
			    struct ft_error *err)
{
	struct rdma_listener *l = (struct rdma_listener *)base;

	for (;;) {
		bool last = now_ns() >= deadline; /* who asks without end does not keep us longer */
		uint64_t due;
		int r = take_news(l, err);

		if (r != 0)
			return r;
		look_at_standing(l, out);
		if (*out)
			return 0;
		due = drop_old(l);
		r = wait_fd(l->epoll_fd, POLLIN, cancel_fd, due < deadline ? due : deadline);
		if (r == -ECANCELED)
			return err_set(err, r, "%s: cancelled", base->address);
		if (r != 0 && r != -ETIMEDOUT)
			return err_sys(err, r, "poll");
		if (last || (r == -ETIMEDOUT && now_ns() >= deadline))
			return err_set(err, -ETIMEDOUT, "%s: nobody connected", base->address);
	}
}

static void listener_close(struct tp_listener *base)
{
	struct rdma_listener *l = (struct rdma_listener *)base;

	while (l->first)
		half_drop(l, l->first, RDMA_REFUSE_OTHER, "the listener closes");
	while (l->standing)
		standing_drop(l, l->standing, "the listener closes");
	if (l->id)
		l->fabric->destroy_id(l->id);
	if (l->events)
		l->fabric->destroy_event_channel(l->events);
	if (l->epoll_fd >= 0)
		close(l->epoll_fd);
	free(l);
}

static const struct tp_listener_ops listener_ops = { .accept = rdma_accept_conn, .close = listener_close };

/* -- listen -- */

static bool is_wildcard(const struct sockaddr_storage *sa)
{
	if (sa->ss_family == AF_INET)
		return ((const struct sockaddr_in *)sa)->sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

/* A new id for each try: one that could not be bound is of no use for another address. */
static int bind_one(struct rdma_listener *l, const struct addrinfo *ai)
{
	int yes = 1, no = 0, r;
	struct rdma_cm_id *id = NULL;
	struct sockaddr_storage sa = { .ss_family = AF_UNSPEC };

	if (ai->ai_addrlen > sizeof(sa))
		return -EAFNOSUPPORT;
	memcpy(&sa, ai->ai_addr, ai->ai_addrlen);
	r = l->fabric->create_id(l->events, &id, NULL);
	if (r != 0)
		return r;
	r = l->fabric->set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes));
	if (r == 0 && ai->ai_family == AF_INET6)
		r = l->fabric->set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &no, sizeof(no));
	if (r == 0)
		r = l->fabric->bind_addr(id, (struct sockaddr *)&sa);
	if (r == 0 && !id->verbs && !is_wildcard(&sa))
		r = -ENODEV; /* the kernel lets one listen on loopback addresses, where nobody ever gets through */
	if (r == 0)
		r = l->fabric->listen(id, (int)HALF_OPEN_MAX);
	if (r == 0)
		l->id = id;
	else
		l->fabric->destroy_id(id);
	return r;
}

/* As tcp: all addresses are one IPv6 id that takes IPv4 too, or an IPv4 one; of a name the first address that can be had. */
static int bind_any(struct rdma_listener *l, const struct addrinfo *list, bool all)
{
	int r = -EADDRNOTAVAIL;

	for (int pass = 0; pass < 2; pass++) {
		for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) {
			if (all && (ai->ai_family == AF_INET6) != (pass == 0))
				continue;
			r = bind_one(l, ai);
			/* the kernel's word for a port that somebody has on one address, when all of them are asked for */
			if (all && r == -EADDRNOTAVAIL)
				r = -EADDRINUSE;
			if (r == 0 || (all && r == -EADDRINUSE))
				return r;
		}
		if (!all)
			break;
	}
	return r;
}

static int cannot_listen(const char *rest, int code, struct ft_error *err)
{
	if (code == -ENODEV)
		return err_set(
			err, code,
			"cannot listen on %s: the address is on no RDMA device (rdma link); loopback addresses are on "
			"none, use the device's own address",
			rest);
	if (code == -EADDRNOTAVAIL)
		return err_set(
			err, code,
			"cannot listen on %s: this host does not have the address, or somebody listens at the port on "
			"all addresses",
			rest);
	return err_sys(err, code, "cannot listen on %s", rest);
}

static int listener_open(struct rdma_listener *l, const char *rest, const struct addrinfo *list, bool all,
			 struct ft_error *err)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int r = rdma_open_channel(l->fabric, &l->events, err);

	if (r != 0)
		return r;
	r = bind_any(l, list, all);
	if (r != 0)
		return cannot_listen(rest, r, err);
	l->epoll_fd = FT_FAULT("rdma/listener-epoll") ? faultpoint_errno(EMFILE) : epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->events->fd, &ev) != 0)
		return err_sys(err, -errno, "cannot set up a listener");
	address_print(l->base.address, sizeof(l->base.address), rdma_get_local_addr(l->id),
		      sizeof(struct sockaddr_storage));
	return 0;
}

int rdma_listen_uri(struct tp_listener **out, const char *rest, const struct tp_params *p, struct ft_error *err)
{
	struct rdma_listener *l;
	struct addrinfo *list = NULL;
	struct host_port name;
	int r;

	r = address_parse(&name, rest, err);
	if (r == 0)
		r = address_resolve(&list, &name, AI_PASSIVE, deadline_in_ms(20000), -1, err);
	if (r != 0)
		return r;
	l = FT_FAULT("rdma/listener") ? NULL : calloc(1, sizeof(*l));
	if (l) {
		l->base.ops = &listener_ops;
		l->base.params = *p;
		l->fabric = rdma_fabric();
		l->epoll_fd = -1;
		r = listener_open(l, rest, list, name.host[0] == '\0', err);
	} else {
		r = err_set(err, -ENOMEM, "no memory");
	}
	freeaddrinfo(list);
	if (r == 0)
		*out = &l->base;
	else if (l)
		listener_close(&l->base);
	return r;
}
