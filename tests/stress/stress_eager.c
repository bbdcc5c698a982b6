/* SPDX-License-Identifier: MIT */
/* stress_eager.c - the engine over a transport whose writes are in place the moment they are posted, as a device of the rdma transport may
 * have it, and which believes that both sides keep to the protocol.  It stands between the engine and the in-process transport.
 *
 *   bite     without tp_settle() a page of a later round lands under the secondary's eyes, and the digest says so: else nothing is proved
 *   plain    guests with many rounds of full sync, epochs compared with the oracle; windows, prepared chunks and announced memory are watched
 *   losses   the same with connections that are cut, again and again: no window is opened before the last connection is closed
 *   forced   a failover while the primary lives: it cannot write after that
 *   between  a failover while the primary comes back: both wait for the end of the old connection
 *   slab     the same, but for bite, with slab placement, several epochs in flight and a ring that is shorter than an epoch: what is written too
 *            early lands on pages that are not moved, or applied, yet
 *
 * Watched at each write: it comes from memory that was announced, goes into an open window, and to chunks that were prepared.
 * The secondary takes its time with each message of a data lane, so that what comes too early is seen.
 * Wrapped: tp_listen tp_accept tp_connect tp_close tp_window_open tp_window_close tp_memory tp_prepare tp_write tp_completed
 * Wrapped: tp_wait_completed tp_send tp_settle tp_recv tp_info */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "pair.h"
#include "queue.h"
#include "thread.h"
#include "transport.h"

#ifdef FT_TSAN
#define UNDER_TSAN 1 /* it would see the race of "bite", which is there on purpose */
#else
#define UNDER_TSAN 0
#endif
#define CHUNK (UINT64_C(1) << 20)
#define CHUNKS_MAX 64u
#define CONNS_MAX 64u
#define URI "rdma:loopback:eager"

/* ---- the transport: what stands between ---- */

/* One end of a connection.  The primary's sends are counted, and what the secondary has done with them. */
struct end {
	struct tp_conn *conn; /* NULL: free */
	bool primary;
	const uint8_t *memory;
	uint64_t memory_len;
	uint64_t nr_sent, sent[TP_LANES_MAX], taken[TP_LANES_MAX], tickets[TP_LANES_MAX];
	uint32_t given; /* lane of the message that the engine has now */
	bool has_given;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct end end[CONNS_MAX];
	struct end *writer; /* the primary's present end */
	struct end *reader; /* the secondary's that opened the window last */
	uint8_t *
		image; /* its window, that of the ring or the image; stays known when it is closed, until the connection is */
	uint64_t image_len;
	uint32_t window;
	bool open;
	bool prepared[CHUNKS_MAX], written[CHUNKS_MAX];
	bool any_prepared; /* in this connection; the ring is not known when its first slab is taken */
	struct tp_params connect, listen;

	bool no_settle;    /* bite */
	uint64_t cut;      /* messages of the primary after which its connection is cut; 0: never */
	unsigned close_us; /* that tp_close() takes on the secondary */
	unsigned delay_us; /* before the secondary gets a message of a data lane */
	uint64_t writes, settles, waited, opened, prepares;
} e = { .lock = PTHREAD_MUTEX_INITIALIZER };

#define LOCKED_DIE(...)                                                                                                \
	do {                                                                                                           \
		pthread_mutex_unlock(&e.lock);                                                                         \
		DIE(__VA_ARGS__);                                                                                      \
	} while (0)

int __real_tp_listen(struct tp_listener **out, const char *uri, const struct tp_params *p, struct ft_error *err);
int __real_tp_accept(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int fd, struct ft_error *err);
int __real_tp_connect(struct tp_conn **out, const char *uri, const struct tp_params *p, uint64_t deadline, int fd,
		      struct ft_error *err);
void __real_tp_close(struct tp_conn *c);
int __real_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err);
int __real_tp_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err);
int __real_tp_recv(struct tp_conn *c, void *buf, size_t cap, uint32_t *lane, size_t *len, uint64_t deadline,
		   struct ft_error *err);

int __wrap_tp_listen(struct tp_listener **out, const char *uri, const struct tp_params *p, struct ft_error *err);
int __wrap_tp_accept(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int fd, struct ft_error *err);
int __wrap_tp_connect(struct tp_conn **out, const char *uri, const struct tp_params *p, uint64_t deadline, int fd,
		      struct ft_error *err);
void __wrap_tp_close(struct tp_conn *c);
int __wrap_tp_window_open(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err);
void __wrap_tp_window_close(struct tp_conn *c, uint32_t id);
int __wrap_tp_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err);
void __wrap_tp_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len);
int __wrap_tp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
		    unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err);
uint64_t __wrap_tp_completed(struct tp_conn *c, uint32_t lane);
int __wrap_tp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline,
			     struct ft_error *err);
int __wrap_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err);
int __wrap_tp_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err);
int __wrap_tp_recv(struct tp_conn *c, void *buf, size_t cap, uint32_t *lane, size_t *len, uint64_t deadline,
		   struct ft_error *err);
void __wrap_tp_info(struct tp_conn *c, struct tp_info *out);

static struct end *end_of(struct tp_conn *c)
{
	for (unsigned i = 0; i < CONNS_MAX; i++)
		if (e.end[i].conn == c)
			return &e.end[i];
	LOCKED_DIE("a connection that is not there any more");
}

static void end_new(struct tp_conn *c, bool primary)
{
	struct end *n;

	pthread_mutex_lock(&e.lock);
	n = end_of(NULL);
	*n = (struct end){ .conn = c, .primary = primary };
	if (primary)
		e.writer = n;
	pthread_mutex_unlock(&e.lock);
}

static const char *real_uri(const char *uri)
{
	CHECK(strncmp(uri, "rdma:", 5) == 0, "%s: an address without its scheme", uri);
	return uri + 5;
}

int __wrap_tp_listen(struct tp_listener **out, const char *uri, const struct tp_params *p, struct ft_error *err)
{
	e.listen = *p;
	return __real_tp_listen(out, real_uri(uri), p, err);
}

int __wrap_tp_accept(struct tp_listener *l, struct tp_conn **out, uint64_t deadline, int fd, struct ft_error *err)
{
	int r = __real_tp_accept(l, out, deadline, fd, err);

	if (r == 0)
		end_new(*out, false);
	return r;
}

int __wrap_tp_connect(struct tp_conn **out, const char *uri, const struct tp_params *p, uint64_t deadline, int fd,
		      struct ft_error *err)
{
	int r = __real_tp_connect(out, real_uri(uri), p, deadline, fd, err);

	e.connect = *p;
	if (r == 0)
		end_new(*out, true);
	return r;
}

/* From its return on nothing is written here any more. */
void __wrap_tp_close(struct tp_conn *c)
{
	struct timespec t;
	struct end *n;

	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	t = timespec_of_ns(n->primary ? 0 : e.close_us * UINT64_C(1000));
	pthread_mutex_unlock(&e.lock);
	nanosleep(&t, NULL);
	__real_tp_close(c);
	pthread_mutex_lock(&e.lock);
	if (n == e.reader) {
		e.reader = NULL;
		e.image = NULL;
		e.open = false;
	}
	if (n == e.writer)
		e.writer = NULL;
	n->conn = NULL;
	pthread_cond_broadcast(&e.cond);
	pthread_mutex_unlock(&e.lock);
}

int __wrap_tp_window_open(struct tp_conn *c, uint32_t id, void *base, uint64_t len, struct ft_error *err)
{
	struct end *n;

	(void)err;
	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	if (id > 1 || e.open || (e.reader && e.reader != n))
		LOCKED_DIE("window %u opened %s", id,
			   e.open ? "twice" : "while an older connection may still be written through");
	e.reader = n;
	e.image = base;
	e.image_len = len;
	e.window = id;
	e.open = true;
	e.opened++;
	pthread_mutex_unlock(&e.lock);
	return 0;
}

void __wrap_tp_window_close(struct tp_conn *c, uint32_t id)
{
	(void)id;
	pthread_mutex_lock(&e.lock);
	if (end_of(c) == e.reader)
		e.open = false;
	pthread_mutex_unlock(&e.lock);
}

int __wrap_tp_memory(struct tp_conn *c, void *base, uint64_t len, struct ft_error *err)
{
	struct end *n;

	(void)err;
	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	if (n->memory)
		LOCKED_DIE("memory is announced twice");
	n->memory = base;
	n->memory_len = len;
	memset(e.prepared, 0, sizeof(e.prepared)); /* keys are a connection's */
	e.any_prepared = false;
	pthread_mutex_unlock(&e.lock);
	return 0;
}

void __wrap_tp_prepare(struct tp_conn *c, uint32_t window, uint64_t offset, uint64_t len)
{
	pthread_mutex_lock(&e.lock);
	CHECK(window <= 1 && len && offset + len <= (uint64_t)CHUNKS_MAX * CHUNK, "prepared: %" PRIu64 " at %" PRIu64,
	      len, offset);
	if (e.image && offset + len > e.image_len)
		LOCKED_DIE("prepared beyond the window");
	if (end_of(c) == e.writer)
		for (uint64_t i = offset / CHUNK; i <= (offset + len - 1) / CHUNK; i++)
			e.prepared[i] = true;
	e.prepares++;
	e.any_prepared = true;
	pthread_mutex_unlock(&e.lock);
}

static void watch_write(const struct end *n, uint32_t window, uint64_t offset, const struct iovec *iov)
{
	const uint8_t *from = iov->iov_base;

	if (!n->memory || from < n->memory || iov->iov_len > n->memory_len - (uint64_t)(from - n->memory))
		LOCKED_DIE("a write from memory that was not announced");
	if (!e.open || window != e.window)
		LOCKED_DIE("a write at %" PRIu64 " while the secondary has its window closed", offset);
	if (offset > e.image_len || iov->iov_len > e.image_len - offset)
		LOCKED_DIE("a write beyond the window");
	for (uint64_t i = offset / CHUNK; i <= (offset + iov->iov_len - 1) / CHUNK; i++) {
		if (!e.prepared[i] && (e.any_prepared || window == 0))
			LOCKED_DIE("a write to chunk %" PRIu64 ", which was not prepared", i);
		e.written[i] = true;
	}
}

int __wrap_tp_write(struct tp_conn *c, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
		    unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	struct end *n;
	int r = __real_tp_settle(c, lane, deadline, err); /* only its fate */

	CHECK(nr_iov && (window == 1 || nr_iov == 1), "window %u, %u parts", window, nr_iov);
	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	*ticket = ++n->tickets[lane];
	/* once the secondary's end is closed, or before it is known, what is written goes nowhere */
	if (!r && e.reader && n == e.writer) {
		for (unsigned i = 0; i < nr_iov; offset += iov[i].iov_len, i++) {
			watch_write(n, window, offset, &iov[i]);
			memcpy(e.image + offset, iov[i].iov_base, iov[i].iov_len);
		}
		e.writes++;
	}
	pthread_mutex_unlock(&e.lock);
	return r;
}

uint64_t __wrap_tp_completed(struct tp_conn *c, uint32_t lane)
{
	uint64_t ticket;

	pthread_mutex_lock(&e.lock);
	ticket = end_of(c)->tickets[lane];
	pthread_mutex_unlock(&e.lock);
	return ticket;
}

int __wrap_tp_wait_completed(struct tp_conn *c, uint32_t lane, uint64_t ticket, uint64_t deadline, struct ft_error *err)
{
	CHECK(ticket <= __wrap_tp_completed(c, lane), "a ticket that was not given out");
	return __real_tp_settle(c, lane, deadline, err);
}

int __wrap_tp_send(struct tp_conn *c, uint32_t lane, const struct iovec *iov, unsigned nr_iov, uint64_t deadline,
		   struct ft_error *err)
{
	struct end *n;
	bool cut;
	int r;

	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	n->sent[lane]++; /* before the peer can have it */
	cut = n->primary && ++n->nr_sent == e.cut;
	pthread_mutex_unlock(&e.lock);
	if (cut)
		tp_cancel(c);
	r = __real_tp_send(c, lane, iov, nr_iov, deadline, err);
	if (r) {
		pthread_mutex_lock(&e.lock);
		n->sent[lane]--;
		pthread_mutex_unlock(&e.lock);
	}
	return r;
}

int __wrap_tp_settle(struct tp_conn *c, uint32_t lane, uint64_t deadline, struct ft_error *err)
{
	struct end *n;
	int r = __real_tp_settle(c, lane, deadline, err);

	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	e.settles++;
	if (!r && !e.no_settle && e.reader && e.reader->taken[lane] < n->sent[lane])
		e.waited++;
	while (!r && !e.no_settle && e.reader && e.reader->taken[lane] < n->sent[lane]) {
		uint64_t slice = deadline_in_ms(5);

		cond_wait_until(&e.cond, &e.lock, slice);
		pthread_mutex_unlock(&e.lock);
		r = __real_tp_settle(c, lane, deadline, err);
		CHECK(r || now_ns() < deadline, "tp_settle: the secondary does not come back");
		pthread_mutex_lock(&e.lock);
	}
	pthread_mutex_unlock(&e.lock);
	return r;
}

int __wrap_tp_recv(struct tp_conn *c, void *buf, size_t cap, uint32_t *lane, size_t *len, uint64_t deadline,
		   struct ft_error *err)
{
	struct timespec t;
	struct end *n;
	int r;

	pthread_mutex_lock(&e.lock);
	n = end_of(c);
	if (n->has_given)
		n->taken[n->given]++;
	n->has_given = false;
	pthread_cond_broadcast(&e.cond);
	t = timespec_of_ns(n->primary ? 0 : e.delay_us * UINT64_C(1000));
	pthread_mutex_unlock(&e.lock);
	r = __real_tp_recv(c, buf, cap, lane, len, deadline, err);
	if (r)
		return r;
	if (*lane && t.tv_nsec)
		nanosleep(&t, NULL);
	pthread_mutex_lock(&e.lock);
	n->given = *lane;
	n->has_given = true;
	pthread_mutex_unlock(&e.lock);
	return 0;
}

void __wrap_tp_info(struct tp_conn *c, struct tp_info *out)
{
	memset(out, 0, sizeof(*out));
	snprintf(out->device, sizeof(out->device), "eager0");
	snprintf(out->gid, sizeof(out->gid), "::1");
	snprintf(out->registration, sizeof(out->registration), "chunks");
	out->port = 1;
	out->mtu = 4096;
	out->lanes = tp_lanes(c);
	out->chunk_bytes = CHUNK;
	pthread_mutex_lock(&e.lock);
	out->registrations = e.prepares;
	pthread_mutex_unlock(&e.lock);
}

/* ---- the guests ---- */

static void reset(bool no_settle, unsigned delay_us, uint64_t cut)
{
	pthread_mutex_lock(&e.lock);
	for (unsigned i = 0; i < CONNS_MAX; i++)
		if (e.end[i].conn)
			LOCKED_DIE("a connection was not closed");
	e.no_settle = no_settle;
	e.delay_us = delay_us;
	e.cut = cut;
	e.writes = e.settles = e.waited = e.opened = e.prepares = 0;
	memset(e.written, 0, sizeof(e.written));
	pthread_mutex_unlock(&e.lock);
}

#define PATIENT "commit-timeout=20000,heartbeat-misses=200"
/* mirror: its receive image is written in place, and so must be at rest at times */
#define BUSY PATIENT ",placement=mirror,sync-pause=1,sync-rounds=30,pause-max=10000,staging-bytes=16M,suspect=20000"

static bool slab;

/* Rounds of the full sync come quickly one after the other, and hold the same few pages. */
static void busy_guest(struct pair_options *opt, const char *settings)
{
	static char text[300];

	pair_options_init(opt);
	opt->compare = true;
	opt->listen = URI;
	opt->primary = settings;
	opt->secondary = PATIENT;
	if (slab) {
		snprintf(text, sizeof(text), "%s,lanes=2,placement=slab,epochs-in-flight=4,credits=32", settings);
		opt->primary = text;
		opt->secondary = PATIENT ",epochs-in-flight=4,credits=32,ring-bytes=2M";
	}
	opt->sim.nr_regions = 1;
	opt->sim.region_bytes[0] = 32u << 20;
	opt->sim.nr_cpus = 2;
	opt->sim.span_pages = 1500; /* of each half: chunks 0 to 5 and 16 to 21 */
	opt->sim.prefill_pages = 3000;
	opt->sim.pattern = SIM_UNIFORM;
	opt->sim.rate = UNDER_TSAN ? 20000 : 200000;
	opt->sim.output_every = 0;
}

/* True if the secondary noticed; false if the guest wrote too little in this full sync. */
static bool bites(void)
{
	struct pair_options opt;
	struct ft_status st;
	bool noticed;
	struct pair p;

	reset(true, 3000, 0);
	busy_guest(&opt, BUSY);
	opt.secondary = PATIENT ",credits=32"; /* all of a round may be on its way when the next one begins */
	pair_open(&p, &opt);
	for (uint64_t deadline = deadline_in_ms(WAIT_MS);;) {
		ft_session_status(p.primary, &st);
		noticed = strstr(st.reason, "digest");
		if (noticed || st.state == FT_STATE_PROTECTED)
			break;
		CHECK(now_ns() < deadline, "neither protected nor refused: %s", st.reason);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	if (noticed)
		printf("bite: noticed: %s\n", st.reason);
	pair_close(&p);
	return noticed;
}

static void must_bite(void)
{
	for (int i = 0; i < 20; i++)
		if (bites())
			return;
	DIE("pages were written under the secondary's eyes, and nothing was noticed");
}

static void check_status(struct pair *p)
{
	struct ft_status a, b;

	ft_session_status(p->primary, &a);
	ft_session_status(p->secondary, &b);
	CHECK(strcmp(a.rdma_device, "eager0") == 0 && strcmp(b.rdma_registration, "chunks") == 0 && a.rdma_mtu == 4096,
	      "status: device '%s', registration '%s', MTU %u", a.rdma_device, b.rdma_registration, a.rdma_mtu);
	CHECK(a.rdma_lanes == 2 && a.rdma_chunk_bytes == CHUNK && a.rdma_registrations > 0, "status: %u lanes",
	      a.rdma_lanes);
}

static void check_params(void)
{
	CHECK(e.connect.credits == 16 && e.connect.lanes == 3 && e.connect.registration == TP_REGISTER_ODP &&
		      e.connect.chunk_bytes == 4u << 20 && e.connect.pin_budget == 64u << 20 &&
		      e.connect.signal_every == 7 && e.connect.sq_depth == 77 && e.connect.ack_timeout == 14 &&
		      e.connect.retry_count == 3,
	      "the settings do not reach tp_connect()");
	CHECK(e.listen.credits == 5 && e.listen.lanes == TP_LANES_MAX && e.listen.registration == TP_REGISTER_WHOLE &&
		      e.listen.pin_budget == 0,
	      "the settings do not reach tp_listen()");
}

static void run_plain(uint64_t epochs)
{
	struct pair_options opt;
	struct pair p;

	reset(false, 3000, 0);
	busy_guest(&opt, BUSY ",lanes=2,credits=16,rdma-registration=odp,rdma-chunk=4M,rdma-pin-budget=64M,"
			      "rdma-signal-every=7,rdma-queue-depth=77,rdma-ack-timeout=14,rdma-retries=3");
	opt.secondary = PATIENT ",credits=5,rdma-registration=whole";
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	check_status(&p);
	check_params();
	pthread_mutex_lock(&e.lock);
	e.delay_us = 0;
	pthread_mutex_unlock(&e.lock);
	pair_wait_applied(&p, epochs);
	pair_check_compared(&p);
	pthread_mutex_lock(&e.lock);
	if (!e.settles)
		LOCKED_DIE("%" PRIu64 " rounds were settled, %" PRIu64 " had to wait", e.settles, e.waited);
	for (unsigned i = 0; i < CHUNKS_MAX; i++)
		if (e.prepared[i] != e.written[i])
			LOCKED_DIE("chunk %u was prepared, though nothing but zeros is there", i);
	printf("plain: %" PRIu64 " epochs are what the oracle says, %" PRIu64 " writes; %" PRIu64
	       " rounds settled, %" PRIu64 " had to wait\n",
	       (uint64_t)atomic_load(&p.compared), e.writes, e.settles, e.waited);
	pthread_mutex_unlock(&e.lock);
	CHECK(atomic_load(&p.losses) == 0, "a connection was lost");
	pair_close(&p);
}

/* Longer than the ring are the full sync and, now and then, an epoch. */
static void run_slab(uint64_t epochs)
{
	struct pair_options opt;
	struct pair p;

	reset(false, 300, 0);
	busy_guest(&opt, BUSY ",interval=20");
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, epochs);
	pair_check_compared(&p);
	pthread_mutex_lock(&e.lock);
	printf("slab: %" PRIu64 " epochs are what the oracle says, %" PRIu64 " writes\n",
	       (uint64_t)atomic_load(&p.compared), e.writes);
	pthread_mutex_unlock(&e.lock);
	CHECK(atomic_load(&p.losses) == 0, "a connection was lost");
	pair_close(&p);
}

static void run_losses(uint64_t losses)
{
	struct pair_options opt;
	struct pair p;

	reset(false, 300, 300);
	busy_guest(&opt, BUSY);
	opt.sim.rate = 5000;
	pair_open(&p, &opt);
	while (atomic_load(&p.losses) < losses) {
		pair_wait_applied(&p, 3);
		pair_check_compared(&p);
	}
	printf("losses: %" PRIu64 " epochs over %" PRIu64 " connections\n", (uint64_t)atomic_load(&p.compared),
	       (uint64_t)atomic_load(&p.losses) + 1);
	pair_close(&p);
}

static void take_over(struct pair *p, const char *what)
{
	struct ft_failover_result res;
	struct ft_error err = { 0 };
	uint64_t writes, deadline = deadline_in_ms(10000);

	CHECK_OK(ft_session_failover(p->secondary, FT_FAILOVER_FORCE, &res, &err), err);
	pthread_mutex_lock(&e.lock);
	writes = e.writes;
	pthread_mutex_unlock(&e.lock);
	pair_check_promoted(p, &res);
	pair_wait(p->primary, STATE(FENCED));
	/* one that is being greeted has its window, but no answer, so it does not write, and is turned away: it knows that it lost before its
	 * connection is closed here */
	pthread_mutex_lock(&e.lock);
	while (e.reader && cond_wait_until(&e.cond, &e.lock, deadline) == 0)
		;
	if (e.reader || e.writes != writes)
		LOCKED_DIE("%s: the machine runs, and the primary could still write into the receive image: %" PRIu64
			   " writes, %" PRIu64 " when it began",
			   what, e.writes, writes);
	pthread_mutex_unlock(&e.lock);
	printf("%s: went on from epoch %" PRIu64 "\n", what, res.epoch);
}

static void run_forced(void)
{
	struct pair_options opt;
	struct pair p;

	reset(false, 0, 0);
	busy_guest(&opt, BUSY);
	opt.sim.rate = 20000;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait_applied(&p, 20);
	take_over(&p, "forced");
	pair_close(&p);
}

static void run_between(void)
{
	struct pair_options opt;
	struct pair p;

	reset(false, 0, 150);
	e.close_us = 50000;
	busy_guest(&opt, BUSY);
	opt.sim.rate = 5000;
	pair_open(&p, &opt);
	pair_wait_protected(&p);
	pair_wait(p.secondary, STATE(STANDBY_SUSPECT));
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL); /* the primary says hello again */
	take_over(&p, "between");
	pair_close(&p);
	e.close_us = 0;
}

int main(int argc, char **argv)
{
	uint64_t epochs = argc > 1 ? strtoull(argv[1], NULL, 10) : UNDER_TSAN ? 50 : 150;

	setvbuf(stdout, NULL, _IOLBF, 0);
	cond_init(&e.cond);
	if (!UNDER_TSAN)
		must_bite();
	run_plain(epochs);
	run_losses(UNDER_TSAN ? 2 : 6);
	for (int i = 0; i < (UNDER_TSAN ? 1 : 3); i++) {
		run_forced();
		run_between();
	}
	slab = true;
	run_slab(epochs);
	run_losses(UNDER_TSAN ? 2 : 6);
	run_forced();
	run_between();
	return 0;
}
