/* SPDX-License-Identifier: MIT */
/* rdma_setup.c - how a connection over rdma comes about on the side that asks for it: each lane's id finds address, device and route, gets
 * its queue pair, and sends a request; the connection stands when the peer has accepted as many lanes as it takes.  Runs on the caller's
 * thread, up to the caller's deadline.  rdma_listen.c is the other side, docs/protocol-rdma.md says what both rely on.
 *
 * All lanes go through the same steps side by side, and all their events come on one channel.  From rdma_conn_create() on the connection
 * owns the channel, and each id once it is attached: what is left of a failed attempt goes with rdma_conn_destroy(). */
#include "rdma_setup.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>

#include "address.h"
#include "clock.h"
#include "faultpoint.h"
#include "log.h"

#define RESOLVE_MS 20000u /* the most that the kernel is given for an address or a route */
#define RNR_RETRIES 2u    /* a message never finds no receive: it has a credit */
#define REJ_NO_SERVICE 8  /* InfiniBand's reasons to reject, IBTA volume 1, 12.6.7.2 */
#define REJ_STALE 10
#define REJ_CONSUMER 28

/* -- shared with rdma_listen.c -- */

int rdma_next_news(const struct rdma_fabric *f, struct rdma_event_channel *channel, struct news *out)
{
	struct rdma_cm_event *e = NULL;
	const void *data;
	int r;

	do {
		r = f->get_cm_event(channel, &e);
	} while (r == -EINTR);
	if (r != 0)
		return r; /* nothing was got, so there is nothing to ack */
	memset(out, 0, sizeof(*out));
	out->id = e->id;
	out->type = e->event;
	out->status = e->status;
	data = e->param.conn.private_data;
	if (data) {
		out->len = e->param.conn.private_data_len < sizeof(out->data) ? e->param.conn.private_data_len
									      : (uint8_t)sizeof(out->data);
		memcpy(out->data, data, out->len);
	}
	f->ack_cm_event(e);
	return 0;
}

int rdma_open_channel(const struct rdma_fabric *f, struct rdma_event_channel **out, struct ft_error *err)
{
	int code;

	*out = f->create_event_channel();
	if (*out)
		return 0;
	code = errno ? -errno : -ENODEV;
	if (code == -EACCES)
		return err_set(err, code, "/dev/infiniband/rdma_cm may not be opened by this user");
	if (code == -ENODEV || code == -ENOENT || code == -EPERM || code == -ENXIO || code == -ENOSYS)
		return err_set(
			err, code,
			"this host has no RDMA device, or rdma_ucm is not loaded (modprobe rdma_ucm; rdma link); "
			"for soft-RoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE");
	return err_sys(err, code, "cannot open the connection manager of RDMA");
}

void rdma_set_ack_timeout(const struct rdma_fabric *f, struct rdma_cm_id *id, const struct tp_params *p)
{
	uint8_t value = (uint8_t)p->ack_timeout;
	int r = f->set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, sizeof(value));

	/* tuning: a kernel or a device that does not know it works all the same */
	if (r != 0)
		log_debug("rdma", "the ACK timeout cannot be set: %s", strerror(-r));
}

struct rdma_conn_param rdma_param_of(const struct rdma_hello *h, const struct tp_params *p)
{
	/* no RDMA READ and no atomics: nothing is asked for that iWARP has not */
	return (struct rdma_conn_param){ .private_data = h,
					 .private_data_len = sizeof(*h),
					 .responder_resources = 0,
					 .initiator_depth = 0,
					 .flow_control = 1,
					 .retry_count = (uint8_t)p->retry_count,
					 .rnr_retry_count = RNR_RETRIES };
}

int rdma_prepare(struct rdma *s, struct ibv_context *verbs, struct ft_error *err)
{
	int r = rdma_conn_prepare(s, verbs, err);
	const struct ibv_odp_caps *odp = &s->device.odp_caps;

	if (r == 0 &&
	    !((odp->general_caps & IBV_ODP_SUPPORT) && (odp->per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE)))
		s->limits.capabilities &= ~RDMA_CAP_ODP;
	return r;
}

uint32_t rdma_lane_of(const struct rdma *s, const struct rdma_cm_id *id)
{
	uint32_t i = 0;

	while (i < s->conn.lanes && s->lane[i].id != id)
		i++;
	return i;
}

/* -- connect -- */

enum step { STEP_NONE, STEP_ADDRESS, STEP_ROUTE, STEP_ACCEPTED, STEP_SURPLUS };

struct attempt {
	const struct rdma_fabric *fabric;
	const struct tp_params *params;
	const struct sockaddr *address;
	struct rdma *conn;
	struct rdma_event_channel *events; /* conn's */
	uint32_t lanes;                    /* asked for */
	struct {
		struct rdma_cm_id *id;
		bool attached; /* the id is conn's */
		enum step step;
	} lane[TP_LANES_MAX];
	uint8_t token[16];
	bool answered; /* a lane was accepted: agreed is filled in */
	struct rdma_limits agreed;
	uint64_t deadline;
	int cancel_fd;
};

static int cannot_resolve(int code, struct ft_error *err)
{
	if (code == -ENODEV || code == -EADDRNOTAVAIL)
		return err_set(err, code,
			       "no RDMA device of this host leads there (rdma link); loopback addresses are on none, "
			       "to reach this host use the device's own address");
	if (code == -ETIMEDOUT)
		return err_set(err, code, "nobody on the network answers for this address");
	return err_sys(err, code, "the address cannot be resolved");
}

static int cannot_route(int code, struct ft_error *err)
{
	if (code == -ENODEV)
		return cannot_resolve(code, err);
	return err_sys(err, code, "no route for RDMA leads there");
}

static int refused(const struct news *n, uint32_t lane, struct ft_error *err)
{
	if (n->status == REJ_NO_SERVICE || n->status == -ECONNREFUSED)
		return err_set(err, -ECONNREFUSED, "nobody listens at this port over RDMA");
	if (n->status == REJ_CONSUMER) /* also the kernel's word for a listener whose process has died */
		return err_set(
			err, -ECONNREFUSED,
			"lane %u is refused without a reason: what listens there is not ft, or has just ended, or is "
			"asked for more than it can take",
			lane);
	if (n->status == REJ_STALE)
		return err_set(err, -ECONNRESET, "the peer still knows an older connection of this device; try again");
	if (n->status < 0)
		return err_sys(err, n->status, "lane %u is refused", lane);
	return err_set(err, -ECONNREFUSED, "lane %u is refused by the peer's connection manager, reason %d", lane,
		       n->status);
}

static int heed_refusal(struct attempt *a, uint32_t lane, const struct news *n, struct ft_error *err)
{
	struct ft_error why;

	switch (rdma_refusal_read(n->data, n->len, &why)) {
	case RDMA_REFUSE_SURPLUS:
		if (lane < 2)
			return err_set(err, -EPROTO, "the peer refuses lane %u as one too many", lane);
		a->lane[lane].step = STEP_SURPLUS;
		return 0;
	case RDMA_OK:
		return refused(n, lane, err);
	case RDMA_REFUSE_VERSION:
	case RDMA_REFUSE_LANES:
	case RDMA_REFUSE_CAPABILITY:
	case RDMA_REFUSE_LIMIT:
	case RDMA_REFUSE_OTHER:
		break;
	}
	return err_set(err, why.code, "%s", why.msg);
}

static int heed_acceptance(struct attempt *a, uint32_t lane, const struct news *n, struct ft_error *err)
{
	int r = rdma_acceptance_take(&a->agreed, &a->conn->limits, a->token, lane, !a->answered, n->data, n->len, err);

	if (r == 0) {
		a->answered = true;
		a->lane[lane].step = STEP_ACCEPTED;
	}
	return r;
}

/* One event; those that say nothing of the attempt are passed over. */
static int heed(struct attempt *a, const struct news *n, struct ft_error *err)
{
	uint32_t lane = 0;
	int status = n->status < 0 ? n->status : -EIO;

	while (lane < a->lanes && a->lane[lane].id != n->id)
		lane++;
	if (lane == a->lanes)
		return 0;
	switch (n->type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		a->lane[lane].step = STEP_ADDRESS;
		return 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		a->lane[lane].step = STEP_ROUTE;
		return 0;
	case RDMA_CM_EVENT_ESTABLISHED:
		return heed_acceptance(a, lane, n, err);
	case RDMA_CM_EVENT_REJECTED:
		return heed_refusal(a, lane, n, err);
	case RDMA_CM_EVENT_ADDR_ERROR:
		return cannot_resolve(status, err);
	case RDMA_CM_EVENT_ROUTE_ERROR:
		return cannot_route(status, err);
	case RDMA_CM_EVENT_UNREACHABLE:
		return err_set(err, -EHOSTUNREACH, "the peer's host does not answer over RDMA");
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		return err_sys(err, status, "lane %u: the acceptance cannot be put to use", lane);
	case RDMA_CM_EVENT_DISCONNECTED:
		return err_set(err, -ECONNRESET, "the peer gave up lane %u while others were connected", lane);
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return err_set(err, -ENODEV, "the RDMA device is being removed");
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_MULTICAST_JOIN:
	case RDMA_CM_EVENT_MULTICAST_ERROR:
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	}
	return 0;
}

/* How many lanes have to get to STEP_ACCEPTED is known with the first acceptance; the answers for those above need not be awaited. */
static bool all_at(const struct attempt *a, enum step step)
{
	uint32_t lanes = step == STEP_ACCEPTED && a->answered ? a->agreed.lanes : a->lanes;

	for (uint32_t i = 0; i < lanes; i++) {
		if (a->lane[i].step != step)
			return false;
	}
	return true;
}

static int check_surplus(const struct attempt *a, struct ft_error *err)
{
	for (uint32_t i = 0; a->answered && i < a->agreed.lanes; i++) {
		if (a->lane[i].step == STEP_SURPLUS)
			return err_set(err, -EPROTO, "the peer takes %u lanes, and refuses lane %u as one too many",
				       a->agreed.lanes, i);
	}
	return 0;
}

static int out_of_time(enum step step, struct ft_error *err)
{
	switch (step) {
	case STEP_ADDRESS:
		return cannot_resolve(-ETIMEDOUT, err);
	case STEP_ROUTE:
		return cannot_route(-ETIMEDOUT, err);
	case STEP_ACCEPTED:
	case STEP_NONE:
	case STEP_SURPLUS:
		break;
	}
	return err_set(
		err, -ETIMEDOUT,
		"asked for a connection, but nobody accepts: the peer's host is not there, or its program is busy");
}

/* await - events, until all lanes are at @step. */
static int await(struct attempt *a, enum step step, struct ft_error *err)
{
	while (!all_at(a, step)) {
		struct news n;
		int r = rdma_next_news(a->fabric, a->events, &n);

		if (r == 0) {
			r = heed(a, &n, err);
			r = r == 0 ? check_surplus(a, err) : r;
			if (r != 0)
				return r;
			continue;
		}
		if (r != -EAGAIN)
			return err_sys(err, r, "cannot get events of the connection manager");
		r = wait_fd(a->events->fd, POLLIN, a->cancel_fd, a->deadline);
		if (r == -ECANCELED)
			return err_set(err, r, "cancelled");
		if (r == -ETIMEDOUT)
			return out_of_time(step, err);
		if (r != 0)
			return err_sys(err, r, "poll");
	}
	return 0;
}

static int ms_left(const struct attempt *a)
{
	int ms = deadline_poll_ms(a->deadline);

	return ms < 0 || ms > (int)RESOLVE_MS ? (int)RESOLVE_MS : ms > 0 ? ms : 1;
}

static int find_address(struct attempt *a, struct ft_error *err)
{
	struct sockaddr_storage to = { .ss_family = AF_UNSPEC };

	memcpy(&to, a->address,
	       a->address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	for (uint32_t i = 0; i < a->lanes; i++) {
		int r = a->fabric->create_id(a->events, &a->lane[i].id, NULL);

		if (r != 0)
			return err_sys(err, r, "lane %u: no id of the connection manager can be had", i);
		r = a->fabric->resolve_addr(a->lane[i].id, NULL, (struct sockaddr *)&to, ms_left(a));
		if (r != 0)
			return cannot_resolve(r, err);
	}
	return await(a, STEP_ADDRESS, err);
}

static int find_route(struct attempt *a, struct ft_error *err)
{
	for (uint32_t i = 0; i < a->lanes; i++) {
		int r;

		rdma_set_ack_timeout(a->fabric, a->lane[i].id, a->params);
		r = a->fabric->resolve_route(a->lane[i].id, ms_left(a));
		if (r != 0)
			return cannot_route(r, err);
	}
	return await(a, STEP_ROUTE, err);
}

static int attach_lanes(struct attempt *a, struct ft_error *err)
{
	int r = rdma_prepare(a->conn, a->lane[0].id->verbs, err);

	for (uint32_t i = 0; i < a->lanes && r == 0; i++) {
		a->lane[i].attached = true;
		r = rdma_lane_attach(a->conn, i, a->lane[i].id, err);
	}
	return r;
}

static int ask(struct attempt *a, struct ft_error *err)
{
	for (uint32_t i = 0; i < a->lanes; i++) {
		struct rdma_hello h;
		struct rdma_conn_param param = rdma_param_of(&h, a->params);
		int r;

		rdma_hello_fill(&h, &a->conn->limits, a->token, i);
		r = a->fabric->connect(a->lane[i].id, &param);
		if (r != 0)
			return err_sys(err, r, "lane %u: cannot ask for a connection", i);
	}
	return await(a, STEP_ACCEPTED, err);
}

/* What the peer did not take is dropped: queue pair and id; its receives come back flushed, and are passed over. */
static void keep_agreed(struct attempt *a)
{
	struct rdma *s = a->conn;

	s->limits = a->agreed;
	s->conn.lanes = a->agreed.lanes;
	for (uint32_t i = 0; i < s->conn.lanes; i++)
		s->lane[i].established = true;
	for (uint32_t i = s->conn.lanes; i < a->lanes; i++) {
		a->fabric->destroy_qp(s->lane[i].id);
		a->fabric->destroy_id(s->lane[i].id);
		s->lane[i].attached = false;
		s->lane[i].id = NULL;
	}
}

static int open_lanes(struct attempt *a, struct ft_error *err)
{
	int r = find_address(a, err);

	r = r == 0 ? find_route(a, err) : r;
	r = r == 0 ? attach_lanes(a, err) : r;
	r = r == 0 ? ask(a, err) : r;
	if (r != 0)
		return r;
	keep_agreed(a);
	return rdma_conn_stand(a->conn, err);
}

static void give_up(struct attempt *a)
{
	for (uint32_t i = 0; i < a->lanes; i++) {
		if (a->lane[i].id && !a->lane[i].attached)
			a->fabric->destroy_id(a->lane[i].id);
	}
	rdma_conn_destroy(a->conn);
}

static int try_lanes(struct attempt *a, const char *peer, struct ft_error *err)
{
	int r;

	if (FT_FAULT("rdma/token") || getrandom(a->token, sizeof(a->token), 0) != (ssize_t)sizeof(a->token))
		return err_set(err, -EIO, "the kernel gave no random number for a connection");
	r = rdma_open_channel(a->fabric, &a->events, err);
	if (r != 0)
		return r;
	r = rdma_conn_create(&a->conn, a->fabric, a->lanes, a->events, peer, err);
	if (r != 0)
		return r;
	a->conn->limits = rdma_limits_of(a->params);
	r = open_lanes(a, err);
	if (r != 0)
		give_up(a);
	return r;
}

static int try_address(struct tp_conn **out, const struct addrinfo *ai, const struct tp_params *p, uint64_t deadline,
		       int cancel_fd, struct ft_error *err)
{
	struct attempt a = { .fabric = rdma_fabric(),
			     .params = p,
			     .address = ai->ai_addr,
			     .lanes = p->lanes,
			     .deadline = deadline,
			     .cancel_fd = cancel_fd };
	char peer[TP_PEER_MAX];
	int r;

	address_print(peer, sizeof(peer), ai->ai_addr, ai->ai_addrlen);
	r = try_lanes(&a, peer, err);
	if (r != 0)
		err_prefix(err, "%s", peer);
	else
		*out = &a.conn->conn;
	return r;
}

int rdma_connect_uri(struct tp_conn **out, const char *rest, const struct tp_params *p, uint64_t deadline,
		     int cancel_fd, struct ft_error *err)
{
	struct addrinfo *list = NULL;
	struct host_port name;
	unsigned left = 0;
	int r;

	r = address_parse(&name, rest, err);
	if (r == 0 && strcmp(name.port, "0") == 0)
		r = err_set(err, -EINVAL, "'%s': port 0 cannot be connected to", rest);
	if (r == 0)
		r = address_resolve(&list, &name, 0, deadline, cancel_fd, err);
	if (r != 0)
		return r;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
		left++;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next, left--) {
		r = try_address(out, ai, p, address_share(deadline, left), cancel_fd, err);
		if (r == 0 || r == -ECANCELED || now_ns() >= deadline)
			break;
	}
	freeaddrinfo(list);
	return r;
}
