/* SPDX-License-Identifier: MIT */
/* fabric_fake.c - the made-up fabric's beginning and end, its faults and its accounts.  See fabric_fake.h, fabric_fake_private.h. */
#include "fabric_fake_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake fake;

static struct rdma_fabric table;

static const char *const call_names[FABRIC_CALLS] = {
	"create_event_channel",
	"get_cm_event",
	"ack_cm_event",
	"create_id",
	"destroy_id",
	"set_option",
	"resolve_addr",
	"resolve_route",
	"bind_addr",
	"listen",
	"connect",
	"accept",
	"reject",
	"disconnect",
	"migrate_id",
	"create_qp",
	"query_device",
	"query_port",
	"query_qp",
	"alloc_pd",
	"dealloc_pd",
	"reg_mr",
	"dereg_mr",
	"create_comp_channel",
	"destroy_comp_channel",
	"create_cq",
	"destroy_cq",
	"req_notify_cq",
	"get_cq_event",
	"poll_cq",
	"post_send",
	"post_recv",
};

const char *fabric_call_name(enum fabric_call call)
{
	return call_names[call];
}

void *fake_alloc(size_t n)
{
	void *p = calloc(1, n);

	CHECK(p, "no memory");
	return p;
}

/* -- begin and end -- */

void fabric_defaults(struct fabric_config *cfg)
{
	*cfg = (struct fabric_config){ .devices = 1,
				       .max_qp = 1024,
				       .max_qp_wr = 8192,
				       .max_sge = 32,
				       .max_cqe = 32767,
				       .max_mr = 65536,
				       .max_mr_size = UINT64_C(1) << 40,
				       .max_pinned = UINT64_MAX,
				       .max_msg_sz = 8u << 20,
				       .max_inline = 256,
				       .mtu = IBV_MTU_4096,
				       .timeout_us = 2000 };
}

static void make_table(void)
{
	table = fake_verbs_table;
	table.create_event_channel = fake_cm_table.create_event_channel;
	table.destroy_event_channel = fake_cm_table.destroy_event_channel;
	table.get_cm_event = fake_cm_table.get_cm_event;
	table.ack_cm_event = fake_cm_table.ack_cm_event;
	table.create_id = fake_cm_table.create_id;
	table.destroy_id = fake_cm_table.destroy_id;
	table.set_option = fake_cm_table.set_option;
	table.resolve_addr = fake_cm_table.resolve_addr;
	table.resolve_route = fake_cm_table.resolve_route;
	table.bind_addr = fake_cm_table.bind_addr;
	table.listen = fake_cm_table.listen;
	table.connect = fake_cm_table.connect;
	table.accept = fake_cm_table.accept;
	table.reject = fake_cm_table.reject;
	table.disconnect = fake_cm_table.disconnect;
	table.migrate_id = fake_cm_table.migrate_id;
}

static void make_devices(void)
{
	for (unsigned i = 0; i < fake.cfg.devices; i++) {
		struct fake_device *d = &fake.device[i];

		memset(d, 0, sizeof(*d));
		d->dev.node_type = fake.cfg.iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
		d->dev.transport_type = fake.cfg.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
		snprintf(d->dev.name, sizeof(d->dev.name), "fake%u", i);
		snprintf(d->dev.dev_name, sizeof(d->dev.dev_name), "uverbs%u", i);
		d->context.device = &d->dev;
		d->context.cmd_fd = d->context.async_fd = -1;
		d->context.num_comp_vectors = 1;
	}
}

static void make_todo(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&fake.todo, &attr);
	pthread_condattr_destroy(&attr);
}

void fabric_start(const struct fabric_config *cfg)
{
	pthread_mutex_lock(&fake_lock);
	if (cfg)
		fake.cfg = *cfg;
	else
		fabric_defaults(&fake.cfg);
	CHECK(fake.cfg.devices <= FAKE_DEVICES_MAX, "too many devices");
	CHECK(fake.cfg.max_sge <= FAKE_SGE_MAX, "too long gather lists");
	LIST_INIT(&fake.channels);
	LIST_INIT(&fake.ids);
	TAILQ_INIT(&fake.messages);
	TAILQ_INIT(&fake.husks);
	LIST_INIT(&fake.pds);
	LIST_INIT(&fake.comp_channels);
	LIST_INIT(&fake.cqs);
	TAILQ_INIT(&fake.qps);
	fake.mode = MODE_IMMEDIATE;
	fake.link = FABRIC_UP;
	fake.next_qp_num = 100;
	fake.next_port = 40000;
	make_todo();
	make_devices();
	make_table();
	pthread_mutex_unlock(&fake_lock);
	rdma_fabric_set(&table);
}

void fabric_stop(void)
{
	fake_step_thread_stop();
	pthread_mutex_lock(&fake_lock);
	fake_cm_free_all();
	fake_verbs_free_all();
	pthread_cond_destroy(&fake.todo);
	memset(&fake, 0, sizeof(fake));
	pthread_mutex_unlock(&fake_lock);
	rdma_fabric_set(NULL);
}

void fabric_reset(const struct fabric_config *cfg)
{
	fabric_stop();
	fabric_start(cfg);
}

struct fake_device *fake_device_of(const struct ibv_context *c)
{
	for (unsigned i = 0; i < fake.cfg.devices; i++)
		if (&fake.device[i].context == c)
			return &fake.device[i];
	return NULL;
}

/* -- an eventfd as a level -- */

int fake_eventfd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

void fake_raise(int fd)
{
	uint64_t one = 1;

	CHECK(write(fd, &one, sizeof(one)) == sizeof(one), "eventfd");
}

void fake_lower(int fd)
{
	uint64_t n;

	CHECK(read(fd, &n, sizeof(n)) == sizeof(n) || errno == EAGAIN, "eventfd");
}

/* -- calls and their faults -- */

bool fabric_fails_any(enum fabric_call call)
{
	switch (call) {
	case FABRIC_ACK_CM_EVENT:
	case FABRIC_DESTROY_ID:
	case FABRIC_DEALLOC_PD:
	case FABRIC_DEREG_MR:
	case FABRIC_DESTROY_COMP_CHANNEL:
	case FABRIC_DESTROY_CQ:
	case FABRIC_CALLS:
		return false;
	case FABRIC_CREATE_EVENT_CHANNEL:
	case FABRIC_GET_CM_EVENT:
	case FABRIC_CREATE_ID:
	case FABRIC_SET_OPTION:
	case FABRIC_RESOLVE_ADDR:
	case FABRIC_RESOLVE_ROUTE:
	case FABRIC_BIND_ADDR:
	case FABRIC_LISTEN:
	case FABRIC_CONNECT:
	case FABRIC_ACCEPT:
	case FABRIC_REJECT:
	case FABRIC_DISCONNECT:
	case FABRIC_MIGRATE_ID:
	case FABRIC_CREATE_QP:
	case FABRIC_QUERY_DEVICE:
	case FABRIC_QUERY_PORT:
	case FABRIC_QUERY_QP:
	case FABRIC_ALLOC_PD:
	case FABRIC_REG_MR:
	case FABRIC_CREATE_COMP_CHANNEL:
	case FABRIC_CREATE_CQ:
	case FABRIC_REQ_NOTIFY_CQ:
	case FABRIC_GET_CQ_EVENT:
	case FABRIC_POLL_CQ:
	case FABRIC_POST_SEND:
	case FABRIC_POST_RECV:
		return true;
	}
	return false;
}

static bool rule_counts(const struct fake_rule *r, enum fabric_call call)
{
	return r->times > 0 && (r->any ? fabric_fails_any(call) : r->call == call);
}

int fake_rule_hits(enum fabric_call call)
{
	int error = 0;

	fake.count[call]++;
	for (unsigned i = 0; i < fake.nr_rules; i++) {
		struct fake_rule *r = &fake.rule[i];

		if (!rule_counts(r, call))
			continue;
		if (r->nth > 1) {
			r->nth--;
			continue;
		}
		if (r->times != FABRIC_FOR_EVER)
			r->times--;
		error = -r->error;
		fake.hits++;
	}
	return error;
}

int fake_begin(enum fabric_call call)
{
	pthread_mutex_lock(&fake_lock);
	return fake_rule_hits(call);
}

int fake_done(int r)
{
	fake_steps_immediate();
	pthread_cond_signal(&fake.todo);
	pthread_mutex_unlock(&fake_lock);
	return r;
}

void *fake_done_ptr(void *p, int r)
{
	fake_done(0);
	if (r)
		errno = -r;
	return r ? NULL : p;
}

static void add_rule(struct fake_rule r)
{
	pthread_mutex_lock(&fake_lock);
	CHECK(fake.nr_rules < FAKE_RULES_MAX && r.nth > 0 && r.times > 0, "too many rules, or none");
	fake.rule[fake.nr_rules++] = r;
	pthread_mutex_unlock(&fake_lock);
}

void fabric_fail(enum fabric_call call, unsigned nth, int error, unsigned times)
{
	add_rule((struct fake_rule){ .call = call, .nth = nth, .error = error, .times = times });
}

void fabric_fail_any(unsigned nth, int error, unsigned times)
{
	add_rule((struct fake_rule){ .any = true, .nth = nth, .error = error, .times = times });
}

void fabric_fail_wr(enum fabric_wr wr, unsigned nth, enum ibv_wc_status status)
{
	pthread_mutex_lock(&fake_lock);
	CHECK(fake.nr_wr_rules < FAKE_RULES_MAX && nth > 0, "too many rules");
	fake.wr_rule[fake.nr_wr_rules++] = (struct fake_wr_rule){ wr, nth, status };
	pthread_mutex_unlock(&fake_lock);
}

enum ibv_wc_status fake_wr_fails(enum fabric_wr wr)
{
	for (unsigned i = 0; i < fake.nr_wr_rules; i++) {
		struct fake_wr_rule *r = &fake.wr_rule[i];

		if (r->wr != wr || r->nth == 0 || --r->nth > 0)
			continue;
		fake.hits++;
		return r->status;
	}
	return IBV_WC_SUCCESS;
}

void fabric_lose_recv(unsigned nth)
{
	pthread_mutex_lock(&fake_lock);
	fake.lose_recv = nth;
	pthread_mutex_unlock(&fake_lock);
}

unsigned fabric_hits(void)
{
	unsigned n;

	pthread_mutex_lock(&fake_lock);
	n = fake.hits;
	pthread_mutex_unlock(&fake_lock);
	return n;
}

uint64_t fabric_count(enum fabric_call call)
{
	uint64_t n;

	pthread_mutex_lock(&fake_lock);
	n = fake.count[call];
	pthread_mutex_unlock(&fake_lock);
	return n;
}

void fabric_link(enum fabric_link link)
{
	pthread_mutex_lock(&fake_lock);
	fake.link = link;
	fake_done(0);
}

void fabric_remove_device(unsigned device)
{
	pthread_mutex_lock(&fake_lock);
	CHECK(device < fake.cfg.devices, "no such device");
	fake.device[device].removed = true;
	fake_cm_remove_device(device);
	fake_done(0);
}

static struct fake_address_rule *address_rule(const char *address)
{
	struct fake_address_rule *r = NULL;

	for (unsigned i = 0; i < fake.nr_address_rules; i++)
		if (strcmp(fake.address_rule[i].address, address) == 0)
			r = &fake.address_rule[i];
	if (!r) {
		CHECK(fake.nr_address_rules < FAKE_RULES_MAX, "too many rules");
		r = &fake.address_rule[fake.nr_address_rules++];
		snprintf(r->address, sizeof(r->address), "%s", address);
	}
	return r;
}

void fabric_address(const char *address, enum rdma_cm_event_type error, int status)
{
	struct fake_address_rule *r;

	pthread_mutex_lock(&fake_lock);
	r = address_rule(address);
	r->error = error;
	r->status = status;
	pthread_mutex_unlock(&fake_lock);
}

void fabric_address_refused(const char *address, int error)
{
	pthread_mutex_lock(&fake_lock);
	address_rule(address)->refused = error;
	pthread_mutex_unlock(&fake_lock);
}

void fabric_route(unsigned nth, unsigned device)
{
	pthread_mutex_lock(&fake_lock);
	CHECK(fake.nr_route_rules < FAKE_RULES_MAX && device < fake.cfg.devices, "too many rules, or no such device");
	fake.route_rule[fake.nr_route_rules].nth = nth;
	fake.route_rule[fake.nr_route_rules++].device = device;
	pthread_mutex_unlock(&fake_lock);
}

void fabric_cm_change(enum rdma_cm_event_type from, unsigned nth, int to, int status)
{
	pthread_mutex_lock(&fake_lock);
	CHECK(fake.nr_cm_rules < FAKE_RULES_MAX && nth > 0, "too many rules");
	fake.cm_rule[fake.nr_cm_rules++] = (struct fake_cm_rule){ from, nth, to, status };
	pthread_mutex_unlock(&fake_lock);
}

void fabric_cm_send(int type, int status)
{
	struct fake_id *id;

	pthread_mutex_lock(&fake_lock);
	LIST_FOREACH(id, &fake.ids, link)
	if (id->state != ID_LISTENING)
		fake_cm_send(id, (enum rdma_cm_event_type)type, status, NULL, 0, false);
	fake_done(0);
}

/* -- accounts -- */

void fake_violation(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (fake.violations < FAKE_SENTENCES)
		vsnprintf(fake.sentence[fake.violations], sizeof(fake.sentence[0]), fmt, ap);
	va_end(ap);
	fake.violations++;
}

unsigned fabric_violations(const char **text)
{
	static _Thread_local char all[FAKE_SENTENCES * 200];
	unsigned n;
	size_t at = 0;

	all[0] = '\0';
	pthread_mutex_lock(&fake_lock);
	n = fake.violations;
	for (unsigned i = 0; i < n && i < FAKE_SENTENCES; i++)
		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i ? "\n" : "", fake.sentence[i]);
	pthread_mutex_unlock(&fake_lock);
	if (text)
		*text = all;
	return n;
}

void fabric_forget_violations(void)
{
	pthread_mutex_lock(&fake_lock);
	fake.violations = 0;
	pthread_mutex_unlock(&fake_lock);
}

void fabric_live(struct fabric_live *out)
{
	pthread_mutex_lock(&fake_lock);
	*out = fake.live;
	pthread_mutex_unlock(&fake_lock);
}

bool fabric_all_gone(void)
{
	struct fabric_live l;

	fabric_live(&l);
	return !l.pds && !l.mrs && !l.cqs && !l.qps && !l.event_channels && !l.comp_channels && !l.ids &&
	       !l.cm_events && !l.cq_events && !l.bytes && !l.pinned;
}

const char *fabric_live_text(void)
{
	static _Thread_local char text[256];
	struct fabric_live l;

	fabric_live(&l);
	snprintf(text, sizeof(text),
		 "pds %u mrs %u cqs %u qps %u event channels %u comp channels %u ids %u cm events %u cq events %u "
		 "bytes %llu pinned %llu",
		 l.pds, l.mrs, l.cqs, l.qps, l.event_channels, l.comp_channels, l.ids, l.cm_events, l.cq_events,
		 (unsigned long long)l.bytes, (unsigned long long)l.pinned);
	return text;
}

uint64_t fabric_registered(void)
{
	uint64_t n;

	pthread_mutex_lock(&fake_lock);
	n = fake.registered;
	pthread_mutex_unlock(&fake_lock);
	return n;
}
