/* SPDX-License-Identifier: MIT */
/* fabric_fake_cm.c - the made-up fabric's connection manager.  As in librdmacm, what an event does to the id and its queue pair happens when the
 * event is got, not when it comes: the device is known from the got ADDR_RESOLVED on, the active queue pair can send from the
 * got ESTABLISHED on, the passive one from accept() on.  A side that leaves sends a goodbye; the other queue pair stays as it is until its
 * owner says goodbye as well, and only that answer makes DISCONNECTED come to the one that left first. */
#include "fabric_fake_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define HUSKS_MAX 256u /* old ones are looked through when an id goes */
#define REQUEST_DATA 56
#define ACCEPT_DATA 196
#define REJECT_DATA 148
#define NOBODY_LISTENS 8 /* IB_CM_REJ_INVALID_SERVICE_ID */
#define REFUSED 28       /* IB_CM_REJ_CONSUMER_DEFINED */
#define GAVE_UP 4        /* IB_CM_REJ_TIMEOUT */

static const char *event_name(int type)
{
	static const char *const names[] = { "ADDR_RESOLVED",   "ADDR_ERROR",       "ROUTE_RESOLVED", "ROUTE_ERROR",
					     "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR",  "UNREACHABLE",
					     "REJECTED",        "ESTABLISHED",      "DISCONNECTED",   "DEVICE_REMOVAL",
					     "MULTICAST_JOIN",  "MULTICAST_ERROR",  "ADDR_CHANGE",    "TIMEWAIT_EXIT" };

	return type >= 0 && (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "an unknown event";
}

static struct fake_id *of_id(struct rdma_cm_id *id)
{
	return (struct fake_id *)id;
}

static struct fake_channel *of_channel(struct rdma_event_channel *c)
{
	return (struct fake_channel *)c;
}

static struct fake_qp *qp_of(struct fake_id *id)
{
	return (struct fake_qp *)id->id.qp;
}

/* -- addresses -- */

static bool is_wildcard(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_loopback(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_unscoped(const struct sockaddr *a)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;

	return a->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) && six->sin6_scope_id == 0;
}

static uint16_t port_of(const struct sockaddr *a)
{
	return ntohs(a->sa_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port
					     : ((const struct sockaddr_in6 *)a)->sin6_port);
}

static void set_port(struct sockaddr *a, uint16_t port)
{
	if (a->sa_family == AF_INET)
		((struct sockaddr_in *)a)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)a)->sin6_port = htons(port);
}

static size_t size_of(const struct sockaddr *a)
{
	return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static bool known_family(const struct sockaddr *a)
{
	return a->sa_family == AF_INET || a->sa_family == AF_INET6;
}

/* The device with the address, or UINT_MAX. */
static unsigned device_at(const struct sockaddr *a)
{
	uint32_t last;

	if (a->sa_family == AF_INET) {
		last = ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr);
		if (last >> 8 != 0x0a0900)
			return UINT_MAX;
		last &= 0xff;
	} else {
		const uint8_t *o = ((const struct sockaddr_in6 *)a)->sin6_addr.s6_addr;
		static const uint8_t zeros[11];

		if (!(o[0] == 0xfd && o[1] == 0x09) && !(o[0] == 0xfe && o[1] == 0x80))
			return UINT_MAX;
		if (memcmp(o + 2, zeros, sizeof(zeros)) != 0 || o[13] || o[14])
			return UINT_MAX;
		last = o[15];
	}
	return last >= 1 && last <= fake.cfg.devices ? last - 1 : UINT_MAX;
}

static void address_of_device(unsigned device, struct sockaddr *like)
{
	if (like->sa_family == AF_INET) {
		((struct sockaddr_in *)like)->sin_addr.s_addr = htonl(0x0a090001 + device);
		return;
	}
	memset(&((struct sockaddr_in6 *)like)->sin6_addr, 0, 16);
	((struct sockaddr_in6 *)like)->sin6_addr.s6_addr[0] = 0xfd;
	((struct sockaddr_in6 *)like)->sin6_addr.s6_addr[1] = 0x09;
	((struct sockaddr_in6 *)like)->sin6_addr.s6_addr[15] = (uint8_t)(device + 1);
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
				  &((const struct sockaddr_in6 *)b)->sin6_addr);
}

/* Would a request for @dst come to an id bound to @a? */
static bool covers(const struct fake_id *id, const struct sockaddr *a, const struct sockaddr *dst)
{
	if (!is_wildcard(a))
		return same_address(a, dst);
	return a->sa_family == dst->sa_family || (a->sa_family == AF_INET6 && !id->v6only);
}

static bool overlap(const struct fake_id *ia, const struct sockaddr *a, const struct fake_id *ib,
		    const struct sockaddr *b)
{
	return is_wildcard(a) ? covers(ia, a, b) || (is_wildcard(b) && covers(ib, b, a)) : covers(ib, b, a);
}

static const struct fake_address_rule *rule_for(const struct sockaddr *a)
{
	char text[INET6_ADDRSTRLEN] = "";

	inet_ntop(a->sa_family,
		  a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
					  : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr,
		  text, sizeof(text));
	for (unsigned i = 0; i < fake.nr_address_rules; i++)
		if (strcmp(fake.address_rule[i].address, text) == 0)
			return &fake.address_rule[i];
	return NULL;
}

static void fill_gid(struct fake_id *id)
{
	struct sockaddr *src = &id->id.route.addr.src_addr;
	uint8_t *raw = id->id.route.addr.addr.ibaddr.sgid.raw;

	if (src->sa_family == AF_INET6) {
		memcpy(raw, &((struct sockaddr_in6 *)src)->sin6_addr, 16);
		return;
	}
	memset(raw, 0, 10);
	raw[10] = raw[11] = 0xff;
	memcpy(raw + 12, &((struct sockaddr_in *)src)->sin_addr, 4);
}

/* The user's view of an id learns its device. */
static void on_device(struct fake_id *id)
{
	id->id.verbs = &fake.device[id->device].context;
	id->id.port_num = 1;
	fill_gid(id);
}

/* -- channels and events -- */

static struct rdma_event_channel *create_event_channel(void)
{
	int r = fake_begin(FABRIC_CREATE_EVENT_CHANNEL), fd = r ? r : fake_eventfd();
	struct fake_channel *c;

	if (fd < 0)
		return fake_done_ptr(NULL, fd);
	c = fake_alloc(sizeof(*c));
	c->ch.fd = fd;
	TAILQ_INIT(&c->events);
	LIST_INSERT_HEAD(&fake.channels, c, link);
	fake.live.event_channels++;
	return fake_done_ptr(&c->ch, 0);
}

static void free_event(struct fake_event *e)
{
	free(e->data);
	free(e);
}

static void free_channel(struct fake_channel *c)
{
	struct fake_event *e;

	while ((e = TAILQ_FIRST(&c->events))) {
		TAILQ_REMOVE(&c->events, e, link);
		free_event(e);
	}
	LIST_REMOVE(c, link);
	close(c->ch.fd);
	free(c);
}

static void destroy_event_channel(struct rdma_event_channel *channel)
{
	struct fake_id *id;

	pthread_mutex_lock(&fake_lock);
	LIST_FOREACH(id, &fake.ids, link)
	if (id->id.channel == channel) {
		fake_violation("event channel destroyed while id %u uses it", id->number);
		id->id.channel = NULL;
	}
	free_channel(of_channel(channel));
	fake.live.event_channels--;
	fake_done(0);
}

static void queue_event(struct fake_event *e)
{
	struct fake_channel *c = of_channel(e->owner->id.channel);

	if (!c) {
		free_event(e);
		return;
	}
	if (TAILQ_EMPTY(&c->events))
		fake_raise(c->ch.fd);
	TAILQ_INSERT_TAIL(&c->events, e, link);
}

static struct fake_event *make_event(struct fake_id *owner, struct fake_id *about, int type, int status)
{
	struct fake_event *e = fake_alloc(sizeof(*e));

	e->owner = owner;
	e->about = about;
	e->ev.id = &about->id;
	e->ev.listen_id = owner != about ? &owner->id : NULL;
	e->ev.event = (enum rdma_cm_event_type)type;
	e->ev.status = status;
	return e;
}

static void set_data(struct fake_event *e, const struct fake_message *m)
{
	static const uint8_t room[] = { [RDMA_CM_EVENT_CONNECT_REQUEST] = REQUEST_DATA,
					[RDMA_CM_EVENT_ESTABLISHED] = ACCEPT_DATA,
					[RDMA_CM_EVENT_REJECTED] = REJECT_DATA };
	uint8_t len = m->len;

	if (!fake.cfg.iwarp && (size_t)e->ev.event < sizeof(room))
		len = m->type == RDMA_CM_EVENT_ESTABLISHED && e->about->passive ? 0 : room[e->ev.event];
	e->ev.param.conn = m->param;
	e->ev.param.conn.private_data = NULL;
	e->ev.param.conn.private_data_len = 0;
	if (len == 0)
		return;
	e->data = fake_alloc(len);
	memcpy(e->data, m->data, m->len < len ? m->len : len);
	e->ev.param.conn.private_data = e->data;
	e->ev.param.conn.private_data_len = len;
}

/* What getting the event does. */
static void take_effect(struct fake_event *e)
{
	struct fake_id *id = e->about;

	if (e->twice)
		return;
	switch ((int)e->ev.event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		id->state = ID_ADDR;
		on_device(id);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		id->state = ID_ROUTE;
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		e->owner->waiting--;
		fake.live.ids++;
		id->listener = NULL;
		id->id.channel = e->owner->id.channel;
		id->id.context = e->owner->id.context;
		on_device(id);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (!id->passive && id->state == ID_ACCEPTED) {
			id->state = ID_CONNECTED;
			if (qp_of(id) && id->id.qp->state == IBV_QPS_INIT)
				id->id.qp->state = IBV_QPS_RTS;
			if (id->peer)
				fake_cm_send(id->peer, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0, true);
		}
		break;
	case RDMA_CM_EVENT_REJECTED:
		if (qp_of(id))
			fake_qp_error(qp_of(id));
		break;
	default:
		break;
	}
}

static void drop_husk(struct fake_event *e)
{
	TAILQ_REMOVE(&fake.husks, e, link);
	fake.nr_husks--;
	free_event(e);
}

static int get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int r = fake_begin(FABRIC_GET_CM_EVENT);
	struct fake_channel *c = of_channel(channel);
	struct fake_event *e = TAILQ_FIRST(&c->events);

	if (r || !e)
		return fake_done(r ? r : -EAGAIN);
	TAILQ_REMOVE(&c->events, e, link);
	if (TAILQ_EMPTY(&c->events))
		fake_lower(c->ch.fd);
	e->out = true;
	e->owner->unacked++;
	fake.live.cm_events++;
	take_effect(e);
	*event = &e->ev;
	TAILQ_INSERT_TAIL(&fake.husks, e, link);
	fake.nr_husks++;
	while (fake.nr_husks > HUSKS_MAX && TAILQ_FIRST(&fake.husks)->acked)
		drop_husk(TAILQ_FIRST(&fake.husks));
	return fake_done(0);
}

/* The newest husk first: that is where those that are not acked yet are. */
static struct fake_event *find_husk(const struct rdma_cm_event *event)
{
	struct fake_event *e;

	TAILQ_FOREACH_REVERSE(e, &fake.husks, fake_events, link)
	if (&e->ev == event)
		return e;
	return NULL;
}

static int ack_cm_event(struct rdma_cm_event *event)
{
	int r = fake_begin(FABRIC_ACK_CM_EVENT);
	struct fake_event *e = find_husk(event);

	if (!e || e->acked) {
		fake_violation("an event was acked %s", e ? "twice" : "that was never got");
		return fake_done(-EINVAL);
	}
	e->acked = true;
	if (e->owner)
		e->owner->unacked--;
	fake.live.cm_events--;
	free(e->data);
	e->data = NULL;
	memset(&e->ev, 0xee, sizeof(e->ev)); /* a look at it from now on finds nonsense */
	return fake_done(r);
}

/* -- messages -- */

static void put_message(struct fake_id *to, struct fake_message *m)
{
	m->to = to;
	TAILQ_INSERT_TAIL(&fake.messages, m, link);
}

void fake_cm_send(struct fake_id *to, enum rdma_cm_event_type type, int status, const void *data, uint8_t len, bool far)
{
	struct fake_message *m = fake_alloc(sizeof(*m));

	m->type = type;
	m->status = status;
	m->far = far;
	m->len = len;
	if (len > 0)
		memcpy(m->data, data, len);
	put_message(to, m);
}

bool fake_message_ready(const struct fake_message *m)
{
	const struct fake_message *other;

	TAILQ_FOREACH(other, &fake.messages, link)
	{
		if (other == m)
			break;
		if (other->to == m->to && !other->timeout)
			return false;
	}
	return !m->far || fake.link == FABRIC_UP;
}

void fake_message_text(const struct fake_message *m, char *text, size_t size)
{
	if (m->request)
		snprintf(text, size, "id %u: its request arrives", m->to->number);
	else
		snprintf(text, size, "id %u: %s%s", m->to->number, event_name((int)m->type),
			 m->timeout ? " for want of an answer" : "");
}

static struct fake_id *find_listener(const struct sockaddr *dst)
{
	struct fake_id *id, *found = NULL;

	LIST_FOREACH(id, &fake.ids, link)
	{
		const struct sockaddr *a = &id->id.route.addr.src_addr;

		if (id->state != ID_LISTENING || port_of(a) != port_of(dst) || !covers(id, a, dst))
			continue;
		if (!found || is_wildcard(&found->id.route.addr.src_addr))
			found = id;
	}
	return found;
}

static struct fake_id *new_id(void)
{
	struct fake_id *id = fake_alloc(sizeof(*id));

	id->number = ++fake.next_id;
	id->device = UINT_MAX;
	id->id.ps = RDMA_PS_TCP;
	id->id.qp_type = IBV_QPT_RC;
	LIST_INSERT_HEAD(&fake.ids, id, link);
	return id;
}

/* A request comes to its listener: a new id, which the user does not know yet. */
static void request_arrives(struct fake_message *m)
{
	struct fake_id *active = m->to, *l = find_listener(&active->id.route.addr.dst_addr), *id;
	struct fake_event *e;

	if (device_at(&active->id.route.addr.dst_addr) == UINT_MAX) {
		fake_cm_send(active, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0, false);
		return;
	}
	if (!l || l->waiting >= l->backlog) {
		fake_cm_send(active, RDMA_CM_EVENT_REJECTED, l ? REFUSED : NOBODY_LISTENS, NULL, 0, true);
		return;
	}
	id = new_id();
	id->passive = true;
	id->state = ID_REQUESTED;
	id->device = device_at(&active->id.route.addr.dst_addr);
	id->id.route.addr.src_storage = active->id.route.addr.dst_storage;
	id->id.route.addr.dst_storage = active->id.route.addr.src_storage;
	id->peer = active;
	active->peer = id;
	id->had_peer = active->had_peer = true;
	id->param = m->param;
	id->listener = l;
	l->waiting++;
	e = make_event(l, id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	set_data(e, m);
	queue_event(e);
}

/* What the arrival of an event does, whether or not the user ever gets it. */
static void arrived(struct fake_id *id, const struct fake_message *m)
{
	switch ((int)m->type) {
	case RDMA_CM_EVENT_ESTABLISHED:
		if (id->passive && id->state == ID_ACCEPTED)
			id->state = ID_CONNECTED;
		if (!id->passive && id->state == ID_ASKED)
			id->state = ID_ACCEPTED;
		break;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
		/* of a connection that stands it is a word only, as in Linux: no queue pair is touched */
		if (id->state != ID_CONNECTED && (id->passive || id->state != ID_ACCEPTED))
			id->state = ID_OVER;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		id->state = ID_LEAVING;
		if (fake.cfg.timewait_exit)
			fake_cm_send(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL, 0, false);
		break;
	default:
		break;
	}
}

static const struct fake_cm_rule *changed(int type)
{
	for (unsigned i = 0; i < fake.nr_cm_rules; i++) {
		struct fake_cm_rule *r = &fake.cm_rule[i];

		if ((int)r->from != type || r->nth == 0 || --r->nth > 0)
			continue;
		fake.hits++;
		return r;
	}
	return NULL;
}

static void drop_timeouts(struct fake_id *id)
{
	struct fake_message *m, *next;

	for (m = TAILQ_FIRST(&fake.messages); m; m = next) {
		next = TAILQ_NEXT(m, link);
		if (m->to == id && m->timeout) {
			TAILQ_REMOVE(&fake.messages, m, link);
			free(m);
		}
	}
}

void fake_message_deliver(struct fake_message *m)
{
	const struct fake_cm_rule *rule;
	struct fake_event *e;
	unsigned times = 1;

	TAILQ_REMOVE(&fake.messages, m, link);
	if (m->request) {
		request_arrives(m);
		free(m);
		return;
	}
	rule = changed((int)m->type);
	if (rule && rule->to == FABRIC_CM_NEVER)
		times = 0;
	else if (rule && rule->to == FABRIC_CM_TWICE)
		times = 2;
	else if (rule) {
		m->type = (enum rdma_cm_event_type)rule->to;
		m->status = rule->status;
	}
	if (m->type == RDMA_CM_EVENT_DISCONNECTED)
		drop_timeouts(m->to);
	if (times > 0)
		arrived(m->to, m);
	for (unsigned i = 0; i < times; i++) {
		e = make_event(m->to, m->to, (int)m->type, m->status);
		e->twice = i > 0;
		set_data(e, m);
		queue_event(e);
	}
	free(m);
}

/* -- ids -- */

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context)
{
	int r = fake_begin(FABRIC_CREATE_ID);
	struct fake_id *id;

	*out = NULL;
	if (r)
		return fake_done(r);
	id = new_id();
	id->id.channel = channel;
	id->id.context = context;
	fake.live.ids++;
	*out = &id->id;
	return fake_done(0);
}

/* Nothing that is about @id comes to the user any more. */
static void drop_events(struct fake_id *id)
{
	struct fake_message *m, *next_m;
	struct fake_channel *c;
	struct fake_event *e, *next_e;

	for (m = TAILQ_FIRST(&fake.messages); m; m = next_m) {
		next_m = TAILQ_NEXT(m, link);
		if (m->to == id) {
			TAILQ_REMOVE(&fake.messages, m, link);
			free(m);
		}
	}
	LIST_FOREACH(c, &fake.channels, link)
	{
		bool had = !TAILQ_EMPTY(&c->events);

		for (e = TAILQ_FIRST(&c->events); e; e = next_e) {
			next_e = TAILQ_NEXT(e, link);
			if (e->owner == id || e->about == id) {
				TAILQ_REMOVE(&c->events, e, link);
				free_event(e);
			}
		}
		if (had && TAILQ_EMPTY(&c->events))
			fake_lower(c->ch.fd);
	}
	TAILQ_FOREACH(e, &fake.husks, link)
	{
		if (e->owner == id)
			e->owner = NULL;
		if (e->about == id)
			e->about = NULL;
	}
}

/* The other side learns that this one is gone, each state in its way. */
static void leave(struct fake_id *id)
{
	struct fake_id *peer = id->peer;

	if (!peer)
		return;
	switch (id->state) {
	case ID_REQUESTED:
		fake_cm_send(peer, RDMA_CM_EVENT_REJECTED, REFUSED, NULL, 0, true);
		break;
	case ID_ASKED:
		fake_cm_send(peer, RDMA_CM_EVENT_REJECTED, GAVE_UP, NULL, 0, true);
		break;
	case ID_ACCEPTED:
		fake_cm_send(peer, RDMA_CM_EVENT_REJECTED, id->passive ? GAVE_UP : REFUSED, NULL, 0, true);
		break;
	case ID_CONNECTED:
		if (!id->goodbye_sent)
			fake_cm_send(peer, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, true);
		break;
	case ID_LEAVING:
		if (peer->goodbye_sent && !id->goodbye_sent)
			fake_cm_send(peer, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, true);
		break;
	case ID_IDLE:
	case ID_BOUND:
	case ID_ADDR_ASKED:
	case ID_ADDR:
	case ID_ROUTE_ASKED:
	case ID_ROUTE:
	case ID_LISTENING:
	case ID_OVER:
		break;
	}
	peer->peer = NULL;
	id->peer = NULL;
}

static void free_id(struct fake_id *id)
{
	drop_events(id);
	LIST_REMOVE(id, link);
	free(id);
}

/* Requests that nobody took. */
static void refuse_waiting(struct fake_id *listener)
{
	struct fake_id *id, *next;

	for (id = LIST_FIRST(&fake.ids); id; id = next) {
		next = LIST_NEXT(id, link);
		if (id->listener == listener) {
			leave(id);
			free_id(id);
		}
	}
}

static int destroy_id(struct rdma_cm_id *user)
{
	int r = fake_begin(FABRIC_DESTROY_ID);
	struct fake_id *id = of_id(user);

	if (r)
		return fake_done(r);
	if (id->unacked)
		fake_violation("id %u destroyed with %u events that are not acked: librdmacm would wait for ever",
			       id->number, id->unacked);
	if (id->id.qp) {
		fake_violation("id %u destroyed with its queue pair", id->number);
		qp_of(id)->id = NULL;
	}
	refuse_waiting(id);
	leave(id);
	free_id(id);
	fake.live.ids--;
	return fake_done(0);
}

static int set_option(struct rdma_cm_id *user, int level, int optname, void *optval, size_t optlen)
{
	int r = fake_begin(FABRIC_SET_OPTION), on;
	struct fake_id *id = of_id(user);

	if (r)
		return fake_done(r);
	if (level != RDMA_OPTION_ID)
		return fake_done(-ENOSYS);
	if (optname == RDMA_OPTION_ID_ACK_TIMEOUT || optname == RDMA_OPTION_ID_TOS) {
		if (optlen != 1 || *(uint8_t *)optval > (optname == RDMA_OPTION_ID_TOS ? 255 : 31))
			return fake_done(-EINVAL);
		if (optname == RDMA_OPTION_ID_ACK_TIMEOUT)
			id->ack_timeout = *(uint8_t *)optval;
		return fake_done(0);
	}
	if ((optname != RDMA_OPTION_ID_REUSEADDR && optname != RDMA_OPTION_ID_AFONLY) || optlen != sizeof(on))
		return fake_done(-EINVAL);
	memcpy(&on, optval, sizeof(on));
	if (id->bound)
		return fake_done(-EINVAL);
	if (optname == RDMA_OPTION_ID_REUSEADDR)
		id->reuse = on != 0;
	else
		id->v6only = on != 0;
	return fake_done(0);
}

/* The id at whose address or port @a cannot be taken by @self, or NULL. */
static struct fake_id *in_the_way(const struct fake_id *self, const struct sockaddr *a)
{
	struct fake_id *id;

	LIST_FOREACH(id, &fake.ids, link)
	{
		const struct sockaddr *other = &id->id.route.addr.src_addr;

		if (id == self || !id->bound || port_of(other) != port_of(a) || !overlap(id, other, self, a))
			continue;
		if (!(id->reuse && self->reuse) || id->state == ID_LISTENING)
			return id;
	}
	return NULL;
}

static int bind_to(struct fake_id *id, const struct sockaddr *addr)
{
	struct sockaddr_storage s = { 0 };
	struct sockaddr *a = (struct sockaddr *)&s;

	memcpy(&s, addr, size_of(addr));
	if (is_unscoped(addr))
		return -EINVAL;
	if (!is_wildcard(addr) && !is_loopback(addr) && device_at(addr) == UINT_MAX)
		return -EADDRNOTAVAIL;
	while (port_of(addr) == 0) {
		set_port(a, fake.next_port++);
		if (!in_the_way(id, a))
			break;
	}
	if (in_the_way(id, a))
		return -EADDRINUSE;
	id->id.route.addr.src_storage = s;
	id->bound = true;
	id->state = ID_BOUND;
	if (!is_wildcard(addr) &&
	    !is_loopback(addr)) { /* Linux binds to a loopback address, and finds no device for it */
		id->device = device_at(addr);
		on_device(id);
	}
	return 0;
}

static int bind_addr(struct rdma_cm_id *user, struct sockaddr *addr)
{
	int r = fake_begin(FABRIC_BIND_ADDR);
	struct fake_id *id = of_id(user);

	if (r)
		return fake_done(r);
	if (id->state != ID_IDLE || !known_family(addr))
		return fake_done(-EINVAL);
	return fake_done(bind_to(id, addr));
}

static int listen_id(struct rdma_cm_id *user, int backlog)
{
	int r = fake_begin(FABRIC_LISTEN);
	struct fake_id *id = of_id(user);

	if (r)
		return fake_done(r);
	if (id->state != ID_BOUND)
		return fake_done(-EINVAL);
	if (in_the_way(id, &id->id.route.addr.src_addr))
		return fake_done(-EADDRINUSE);
	id->state = ID_LISTENING;
	id->backlog = backlog > 0 ? (unsigned)backlog : 1024;
	return fake_done(0);
}

static unsigned routed(unsigned device)
{
	for (unsigned i = 0; i < fake.nr_route_rules; i++) {
		if (fake.route_rule[i].nth == 0 || --fake.route_rule[i].nth > 0)
			continue;
		fake.hits++;
		device = fake.route_rule[i].device;
	}
	return device;
}

static int resolve_addr(struct rdma_cm_id *user, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	int r = fake_begin(FABRIC_RESOLVE_ADDR);
	const struct fake_address_rule *rule;
	struct fake_id *id = of_id(user);
	unsigned device;

	(void)timeout_ms;
	if (r)
		return fake_done(r);
	if ((id->state != ID_IDLE && id->state != ID_BOUND) || !known_family(dst) || is_wildcard(dst) ||
	    is_unscoped(dst))
		return fake_done(-EINVAL);
	rule = rule_for(dst);
	if (rule && rule->refused)
		return fake_done(-rule->refused);
	if (src && id->state == ID_IDLE && (r = bind_to(id, src)))
		return fake_done(r);
	memcpy(&id->id.route.addr.dst_storage, dst, size_of(dst));
	id->state = ID_ADDR_ASKED;
	if (rule && rule->status && rule->error == RDMA_CM_EVENT_ADDR_ERROR) {
		fake_cm_send(id, RDMA_CM_EVENT_ADDR_ERROR, rule->status, NULL, 0, false);
		return fake_done(0);
	}
	if (id->device == UINT_MAX) {
		device = device_at(dst);
		id->device = routed(device == UINT_MAX ? 0 : device);
	}
	if (!id->bound) {
		id->id.route.addr.src_addr.sa_family = dst->sa_family;
		address_of_device(id->device, &id->id.route.addr.src_addr);
		set_port(&id->id.route.addr.src_addr, fake.next_port++);
	}
	fake_cm_send(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0, false);
	return fake_done(0);
}

static int resolve_route(struct rdma_cm_id *user, int timeout_ms)
{
	int r = fake_begin(FABRIC_RESOLVE_ROUTE);
	const struct fake_address_rule *rule;
	struct fake_id *id = of_id(user);
	const struct sockaddr *dst = &id->id.route.addr.dst_addr;

	(void)timeout_ms;
	if (r)
		return fake_done(r);
	if (id->state != ID_ADDR) {
		fake_violation("resolve_route without a resolved address, id %u", id->number);
		return fake_done(-EINVAL);
	}
	if (is_loopback(dst)) /* as soft-RoCE does */
		return fake_done(-ENODEV);
	id->state = ID_ROUTE_ASKED;
	rule = rule_for(dst);
	if (rule && rule->status && rule->error == RDMA_CM_EVENT_ROUTE_ERROR)
		fake_cm_send(id, RDMA_CM_EVENT_ROUTE_ERROR, rule->status, NULL, 0, false);
	else
		fake_cm_send(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, false);
	return fake_done(0);
}

/* -- connecting -- */

static int check_data(const struct rdma_conn_param *p, uint8_t room)
{
	return p && p->private_data_len > room ? -EINVAL : 0;
}

static int connect_id(struct rdma_cm_id *user, struct rdma_conn_param *param)
{
	int r = fake_begin(FABRIC_CONNECT);
	struct fake_id *id = of_id(user);
	struct fake_message *m;

	if (!r)
		r = check_data(param, REQUEST_DATA);
	if (r)
		return fake_done(r);
	if (id->state != ID_ROUTE || !id->id.qp) {
		fake_violation("connect without a route or a queue pair, id %u", id->number);
		return fake_done(-EINVAL);
	}
	m = fake_alloc(sizeof(*m));
	m->request = m->far = true;
	m->param = *param;
	m->len = param->private_data_len;
	if (m->len > 0)
		memcpy(m->data, param->private_data, m->len);
	m->param.private_data = NULL;
	m->param.qp_num = id->id.qp->qp_num;
	id->param = m->param;
	id->state = ID_ASKED;
	put_message(id, m);
	return fake_done(0);
}

static int accept_id(struct rdma_cm_id *user, struct rdma_conn_param *param)
{
	int r = fake_begin(FABRIC_ACCEPT);
	struct fake_id *id = of_id(user);

	if (!r)
		r = check_data(param, ACCEPT_DATA);
	if (r)
		return fake_done(r);
	if ((id->state != ID_REQUESTED && !(id->state == ID_OVER && id->passive)) || !id->id.qp) {
		fake_violation("accept without a request or a queue pair, id %u", id->number);
		return fake_done(-EINVAL);
	}
	if (id->id.qp->state == IBV_QPS_INIT)
		id->id.qp->state = IBV_QPS_RTS;
	if (param && id->peer) /* each side says how patient the other is */
		id->peer->param.rnr_retry_count = param->rnr_retry_count;
	if (!id->peer || id->state == ID_OVER) {
		fake_cm_send(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0, false);
		return fake_done(0);
	}
	id->state = ID_ACCEPTED;
	fake_cm_send(id->peer, RDMA_CM_EVENT_ESTABLISHED, 0, param ? param->private_data : NULL,
		     param ? param->private_data_len : 0, true);
	return fake_done(0);
}

static int reject_id(struct rdma_cm_id *user, const void *private_data, uint8_t private_data_len)
{
	int r = fake_begin(FABRIC_REJECT);
	struct fake_id *id = of_id(user);

	if (!r && private_data_len > REJECT_DATA)
		r = -EINVAL;
	if (r)
		return fake_done(r);
	if (id->state != ID_REQUESTED && id->state != ID_OVER) {
		fake_violation("reject without a request, id %u", id->number);
		return fake_done(-EINVAL);
	}
	if (id->peer)
		fake_cm_send(id->peer, RDMA_CM_EVENT_REJECTED, REFUSED, private_data, private_data_len, true);
	id->state = ID_OVER;
	return fake_done(0);
}

/* DISCONNECTED for @id, when nobody is left to answer its goodbye. */
static void unanswered(struct fake_id *id)
{
	struct fake_message *m = fake_alloc(sizeof(*m));

	m->type = RDMA_CM_EVENT_DISCONNECTED;
	m->timeout = true;
	put_message(id, m);
}

static int disconnect_id(struct rdma_cm_id *user)
{
	int r = fake_begin(FABRIC_DISCONNECT);
	struct fake_id *id = of_id(user);

	if (r)
		return fake_done(r);
	if (!id->had_peer)
		return fake_done(-EINVAL);
	if (id->id.qp)
		fake_qp_error(qp_of(id));
	if (id->goodbye_sent || (id->state != ID_CONNECTED && id->state != ID_ACCEPTED && id->state != ID_LEAVING))
		return fake_done(0); /* said already, or nobody there to hear it */
	id->goodbye_sent = true;
	if (id->peer)
		fake_cm_send(id->peer, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, true);
	if (id->state != ID_LEAVING && !(id->peer && id->peer->goodbye_sent))
		unanswered(id);
	return fake_done(0);
}

static int migrate_id(struct rdma_cm_id *user, struct rdma_event_channel *channel)
{
	int r = fake_begin(FABRIC_MIGRATE_ID);
	struct fake_id *id = of_id(user);
	struct fake_channel *from = of_channel(id->id.channel);
	struct fake_event *e, *next;

	if (r)
		return fake_done(r);
	if (id->unacked)
		fake_violation("id %u migrated with %u events that are not acked: librdmacm would wait for ever",
			       id->number, id->unacked);
	id->id.channel = channel;
	for (e = TAILQ_FIRST(&from->events); e; e = next) {
		next = TAILQ_NEXT(e, link);
		if (e->owner != id)
			continue;
		TAILQ_REMOVE(&from->events, e, link);
		if (TAILQ_EMPTY(&from->events))
			fake_lower(from->ch.fd);
		queue_event(e);
	}
	return fake_done(0);
}

/* -- the rest -- */

void fake_cm_remove_device(unsigned device)
{
	struct fake_id *id;

	LIST_FOREACH(id, &fake.ids, link)
	{
		if (id->device != device || id->listener)
			continue;
		if (id->id.qp)
			fake_qp_error(qp_of(id));
		fake_cm_send(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, false);
	}
}

void fake_cm_free_all(void)
{
	struct fake_message *m;
	struct fake_channel *c;
	struct fake_event *e;
	struct fake_id *id;

	while ((m = TAILQ_FIRST(&fake.messages))) {
		TAILQ_REMOVE(&fake.messages, m, link);
		free(m);
	}
	while ((c = LIST_FIRST(&fake.channels)))
		free_channel(c);
	while ((e = TAILQ_FIRST(&fake.husks)))
		drop_husk(e);
	while ((id = LIST_FIRST(&fake.ids))) {
		LIST_REMOVE(id, link);
		free(id);
	}
}

const struct rdma_fabric fake_cm_table = {
	.create_event_channel = create_event_channel,
	.destroy_event_channel = destroy_event_channel,
	.get_cm_event = get_cm_event,
	.ack_cm_event = ack_cm_event,
	.create_id = create_id,
	.destroy_id = destroy_id,
	.set_option = set_option,
	.resolve_addr = resolve_addr,
	.resolve_route = resolve_route,
	.bind_addr = bind_addr,
	.listen = listen_id,
	.connect = connect_id,
	.accept = accept_id,
	.reject = reject_id,
	.disconnect = disconnect_id,
	.migrate_id = migrate_id,
};
