/* SPDX-License-Identifier: MIT */
/* stress_hostile.c - peers that make valid records and send them at the wrong time, on the wrong lane, of the wrong epoch.
 * Every record type of docs/protocol.md, on every lane, of several epochs, at every stage of a connection, once against a secondary and once
 * against a primary.  What is not allowed ends the connection with a reason on both sides; the standby image is that of the
 * last acknowledged epoch, the guest of a primary runs, and the next peer is served.  Under the sanitizers: and nothing else happens.
 * All of that with placement mirror; with slab, where two epochs may be under way, what has to do with it, and some of the rest.
 *
 * stress_hostile [--every N]     each N-th of those records */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "digest.h"
#include "pair.h"
#include "raw.h"

#define LANES 2u
#define NR(array) (sizeof(array) / sizeof((array)[0]))
#define UNKNOWN 0x77u
#define UNKNOWN_OPTIONAL (FTW_OPTIONAL | 0x77u)

static const uint32_t types[] = { FTW_HELLO,      FTW_HELLO_ACK,    FTW_REFUSE, FTW_REGIONS,       FTW_NOTIFY_WRITE,
				  FTW_ZERO_PAGES, FTW_DEVICE_STATE, FTW_COMMIT, FTW_ACK,           FTW_APPLIED,
				  FTW_HEARTBEAT,  FTW_BYE,          FTW_ERROR,  FTW_SYNC_PROGRESS, FTW_SIDE_DATA,
				  FTW_WORKING,    FTW_NOTIFY_SLAB,  FTW_ROOM,   FTW_NOTIFY_DELTA,  FTW_PAGE_CHECKS,
				  FTW_BASE,       FTW_BASE_ACK,     UNKNOWN,    UNKNOWN_OPTIONAL };
static const uint64_t epochs[] = { 0, 1, 2, 3, 4, UINT64_MAX };
static bool slab; /* placement */

/* A well-formed record of any type; what it says is what would be right in epoch @epoch, as far as there is such a thing. */
static size_t make(struct raw *r, void *buf, uint32_t type, uint32_t seq, uint64_t epoch)
{
	/* the session of the good primary before, whose connection may not be over yet: another one would be told so */
	const struct hello hello = { .session = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 },
				     .version_min = 1,
				     .version_max = 1,
				     .placement = slab ? FTW_PLACEMENT_SLAB : FTW_PLACEMENT_MIRROR,
				     .mode = 1,
				     .nr_pages = RAW_PAGES,
				     .state_max = 65536,
				     .page_bytes = FT_PAGE_SIZE,
				     .chunk_bytes = 1u << 20,
				     .lanes = LANES,
				     .heartbeat_ms = 50,
				     .heartbeat_misses = 100,
				     .identity = "",
				     .name = "" };
	const struct hello_ack ack = { .version = 1,
				       .placement = hello.placement,
				       .epoch_credits = slab ? 2 : 1,
				       .heartbeat_ms = 50,
				       .heartbeat_misses = 100 };
	const struct room room = { RAW_SLOTS, 0 };
	const struct region_entry region = { .len_bytes = RAW_BYTES, .name = "ram", .name_bytes = 3 };
	const struct page_run run = { 5, 1 };
	const struct heartbeat beat = { 1, 0 };
	static const uint8_t zeros[FT_PAGE_SIZE], delta[16] = { [7] = 11 }; /* its number, no lines */
	const struct sync_progress progress = { 1, 2, 3 };
	struct commit commit = { .digest = digest_state("", 0), .lanes = LANES };

	switch (type) {
	case FTW_HELLO:
		return create_hello(buf, seq, &hello);
	case FTW_HELLO_ACK:
		return create_hello_ack(buf, seq, &ack);
	case FTW_REGIONS:
		return create_regions(buf, seq, &region, 1);
	case FTW_NOTIFY_WRITE:
	case FTW_ZERO_PAGES:
		return create_runs(buf, type, epoch, seq, &run, 1, digest_zero(5));
	case FTW_NOTIFY_SLAB: /* likewise not the digest of what lies there */
		return create_slab_runs(buf, epoch, seq, r->position, &run, 1, digest_zero(5));
	case FTW_ROOM:
		return create_room(buf, seq, &room);
	case FTW_DEVICE_STATE:
		return create_device_state(buf, epoch, seq, 1, 0, "x", 1);
	case FTW_COMMIT:
		for (uint32_t i = 0; i < LANES; i++)
			commit.seq[i] = link_sent(r->link, i + 1);
		return create_commit(buf, epoch, seq, &commit);
	case FTW_SIDE_DATA: /* hello names no side stream: never right */
		return create_side_data(buf, epoch, seq, 0, 1);
	case FTW_NOTIFY_DELTA: /* nor deltas; of a page of zeros, to which nothing changes */
		return create_deltas(buf, epoch, seq, delta, sizeof(delta), 1, digest_page(zeros, delta[7]));
	case FTW_BASE: /* nor that of a resync */
		return create_base(buf, seq, &(const struct base){ .connection = 1 });
	case FTW_BASE_ACK:
		return create_base_ack(buf, seq, 0);
	case FTW_PAGE_CHECKS: /* nor these */
		return create_page_checks(buf, epoch, seq, &(const uint64_t){ 1 }, 1);
	case FTW_ACK:
	case FTW_APPLIED:
	case FTW_WORKING:
		return create_epoch_mark(buf, type, epoch, seq);
	case FTW_HEARTBEAT:
		return create_heartbeat(buf, seq, &beat);
	case FTW_SYNC_PROGRESS:
		return create_sync_progress(buf, epoch, seq, &progress);
	case FTW_REFUSE:
	case FTW_BYE:
	case FTW_ERROR:
		return create_reason(buf, type, epoch, seq, FTW_CODE_NONE, "as the test says");
	default: {
		const struct ftw_record head = { .type = to_be32(type), .epoch = to_be64(epoch), .seq = to_be32(seq) };

		memcpy(buf, &head, sizeof(head));
		return sizeof(head);
	}
	}
}

static bool send_one(struct raw *r, uint32_t type, uint32_t lane, uint64_t epoch)
{
	static uint8_t made[FTW_RECORD_MAX];
	struct ftw_record *head = (struct ftw_record *)(void *)made;
	size_t len = make(r, made, type, 0, epoch);
	uint32_t seq;
	void *buf = link_begin(r->link, lane, &seq); /* only now: a commit looks at the lanes */

	head->seq = to_be32(seq);
	memcpy(buf, made, len);
	return raw_send(r, lane, len);
}

/* The peer must end the connection, and say why if @with_reason. */
static void expect_end(struct raw *r, const char *what, bool with_reason)
{
	char text[FTW_REASON_MAX + 1] = "";
	uint64_t deadline = deadline_in_ms(WAIT_MS);
	struct record_head head;
	bool said = false;

	while (raw_receive(r, &head, text, 5000)) {
		if (head.type == FTW_REFUSE || head.type == FTW_ERROR)
			said = text[0] != '\0';
		CHECK(now_ns() < deadline, "%s: the connection goes on", what);
	}
	CHECK(now_ns() < deadline, "%s: the connection was not ended", what);
	CHECK(said || !with_reason, "%s: ended without a reason", what);
}

/* ---- against a secondary ---- */

enum stage { CONNECTED, GREETED, ACCEPTED, IN_EPOCH, COMMIT_EARLY, COMMITTED, STAGES };
static const char *const stage_names[] = { "before hello", "behind hello",           "behind hello-ack",
					   "in epoch 1",   "behind an early commit", "behind applied(1)" };

static bool go_to(struct raw *r, enum stage stage)
{
	struct commit c = { .nr_zero_pages = 1, .digest = digest_zero(9), .lanes = LANES, .seq = { 50, 0 } };
	uint32_t seq;
	void *buf;

	if (stage == CONNECTED)
		return true;
	if (stage == GREETED)
		return raw_hello(r, 1, 50, 100);
	raw_greet(r, 1);
	if (stage == ACCEPTED)
		return true;
	if (stage == COMMITTED) {
		raw_epoch(r, 1, 0x33);
		return true;
	}
	if (!raw_pages(r, 1, 1, 9, 1, 0x44))
		return false;
	if (stage == IN_EPOCH)
		return true;
	buf = link_begin(r->link, 0, &seq);
	return raw_send(r, 0, create_commit(buf, 1, seq, &c));
}

/* Of the epochs under way is @epoch one of which pages may come on @lane? */
static bool may_tell(enum stage stage, uint32_t lane, uint64_t epoch)
{
	uint64_t next = stage == COMMITTED ? 2 : 1;

	if (stage < ACCEPTED || lane == 0)
		return false;
	if (stage == COMMIT_EARLY) /* epoch 1 has ended on lane 2, and has not on lane 1 */
		return epoch == (lane == 1 ? 1 : 2) && (epoch == 1 || slab);
	return epoch == next || (slab && epoch == next + 1);
}

/* What may be sent there, so that the connection goes on. */
static bool allowed_to_secondary(enum stage stage, uint32_t type, uint32_t lane, uint64_t epoch)
{
	switch (type) {
	case FTW_HELLO:
		return stage == CONNECTED && lane == 0;
	case FTW_REGIONS:
		return stage == GREETED && lane == 0;
	case FTW_HEARTBEAT:
	case FTW_SYNC_PROGRESS:
		return stage >= ACCEPTED && lane == 0;
	case UNKNOWN_OPTIONAL:
		return stage >= ACCEPTED;
	case FTW_ZERO_PAGES:
		return may_tell(stage, lane, epoch);
	case FTW_DEVICE_STATE:
		return lane == 1 && may_tell(stage, lane, epoch);
	case FTW_COMMIT: /* an epoch without a page */
		return (stage == ACCEPTED || stage == COMMITTED) && lane == 0 && epoch == (stage == COMMITTED ? 2 : 1);
	default:
		return false;
	}
}

static bool is_last_word(uint32_t type)
{
	return type == FTW_BYE || type == FTW_ERROR || type == FTW_REFUSE;
}

/* create_X asserts what is fixed about a type. */
static bool can_be_made(uint32_t type, uint64_t epoch)
{
	const struct record_type *t = record_type_find(type);

	return !t || t->epoch == RECORD_EPOCH_ANY || (t->epoch == RECORD_EPOCH_NONE) == (epoch == 0);
}

static void check_image(const struct raw_vm *vm, uint8_t page_1, const char *what)
{
	for (uint64_t i = 0; i < 16 * FT_PAGE_SIZE; i++)
		CHECK(vm->memory[i] == (i / FT_PAGE_SIZE == 1 ? page_1 : 0),
		      "%s: octet %" PRIu64 " of the standby image is 0x%02x", what, i, vm->memory[i]);
}

static void connect_to(struct raw *r, const struct raw_vm *vm)
{
	raw_connect(r, vm->address, LANES);
	r->slab = slab;
}

static void try_secondary(struct raw_vm *vm, enum stage stage, uint32_t type, uint32_t lane, uint64_t epoch)
{
	bool allowed = allowed_to_secondary(stage, type, lane, epoch);
	struct record_head head;
	char what[160], name[24];
	struct ft_status st;
	struct raw r;

	snprintf(what, sizeof(what), "%sto a secondary %s: %s of epoch %" PRIu64 " on lane %u", slab ? "slab, " : "",
		 stage_names[stage], record_name(type, name), epoch, lane);
	connect_to(&r, vm);
	CHECK(go_to(&r, stage), "%s: not even so far", what);
	send_one(&r, type, lane, epoch);
	if (allowed) {
		bool commit = type == FTW_COMMIT;

		if (stage >= ACCEPTED && !commit) { /* alive: a thing that is answered */
			send_one(&r, UNKNOWN, 0, 0);
			expect_end(&r, what, true);
		} else if (commit) {
			raw_expect(&r, FTW_ACK, epoch);
			raw_expect(&r, FTW_APPLIED, epoch);
		} else if (type == FTW_REGIONS) {
			raw_expect(&r, FTW_HELLO_ACK, 0);
		} else {
			CHECK(!raw_receive(&r, &head, NULL, 5) || head.type == FTW_HEARTBEAT, "%s: answered", what);
		}
	} else {
		expect_end(&r, what, !(is_last_word(type) && lane == 0 && stage >= ACCEPTED && type != FTW_REFUSE));
		pair_wait(vm->session, STATE(WAITING) | STATE(STANDBY_SUSPECT));
		ft_session_status(vm->session, &st);
		CHECK(stage < ACCEPTED || st.reason[0], "%s: no reason", what);
	}
	raw_close(&r);
	pair_wait(vm->session, STATE(WAITING) | STATE(STANDBY_SUSPECT));
	if (!(allowed && type == FTW_COMMIT))
		check_image(vm, stage == COMMITTED ? 0x33 : 0x11, what);
}

/* Is it one of each @every of all, or with slab of what that is about, and of some of the rest? */
static bool is_due(uint32_t type, uint64_t epoch, unsigned every, unsigned n)
{
	if (epoch == 4 && !slab)
		return false; /* for what is behind the two that may be under way */
	switch (type) {
	case FTW_NOTIFY_WRITE:
	case FTW_NOTIFY_SLAB:
	case FTW_ZERO_PAGES:
	case FTW_COMMIT:
	case FTW_ACK:
	case FTW_APPLIED:
	case FTW_ROOM:
		return n % every == 0;
	default:
		return n % (slab ? every * 7 : every) == 0;
	}
}

static void against_secondary(unsigned every)
{
	struct raw_vm vm;
	unsigned tried = 0, n = 0;

	raw_vm_secondary(&vm, slab ? "ring-bytes=2M,epochs-in-flight=2" : NULL);
	for (unsigned stage = 0; stage < STAGES; stage++)
		for (unsigned t = 0; t < NR(types); t++)
			for (uint32_t lane = 0; lane <= LANES; lane++)
				for (unsigned e = 0; e < NR(epochs); e++) {
					struct raw r;

					if (!can_be_made(types[t], epochs[e]) ||
					    !is_due(types[t], epochs[e], every, n++))
						continue;
					connect_to(&r, &vm); /* a good primary before each bad one */
					raw_greet(&r, 1);
					raw_epoch(&r, 1, 0x11);
					raw_close(&r);
					try_secondary(&vm, (enum stage)stage, types[t], lane, epochs[e]);
					tried++;
				}
	printf("%u records, ", tried);
	raw_vm_close(&vm);
}

/* Optional records that nobody knows are counted on their lane, also by the commit. */
static void optional_on_data_lanes(void)
{
	struct raw_vm vm;
	struct raw r;

	raw_vm_secondary(&vm, NULL);
	raw_connect(&r, vm.address, LANES);
	raw_greet(&r, 1);
	for (uint64_t epoch = 1; epoch <= 3; epoch++) {
		for (uint32_t lane = 0; lane <= LANES; lane++)
			CHECK(send_one(&r, UNKNOWN_OPTIONAL, lane, epoch), "the secondary has gone");
		CHECK(raw_pages(&r, 2, epoch, 3, 1, (uint8_t)epoch) && send_one(&r, UNKNOWN_OPTIONAL, 2, 0),
		      "the secondary has gone");
		raw_epoch(&r, epoch, (uint8_t)epoch);
	}
	raw_close(&r);
	raw_vm_close(&vm);
}

/* ---- against a primary ---- */

enum primary_stage { P_HELLO, P_ACCEPTED, P_COMMITTED, P_ACKED, P_APPLIED, P_STAGES };
static const char *const primary_stage_names[] = { "behind hello", "behind hello-ack", "behind commit(1)",
						   "behind ack(1)", "behind applied(1)" };

static bool allowed_to_primary(enum primary_stage stage, uint32_t type, uint32_t lane, uint64_t epoch)
{
	switch (type) {
	case FTW_HELLO_ACK:
		return stage == P_HELLO && lane == 0;
	case FTW_HEARTBEAT:
	case FTW_WORKING:
	case UNKNOWN_OPTIONAL:
		return stage > P_HELLO && lane == 0;
	case FTW_ROOM: /* it says nothing new */
		return slab && stage > P_HELLO && lane == 0;
	case FTW_ACK: /* behind hello-ack and applied(1), and with slab behind ack(1), the next commit may be out already */
		return lane == 0 && epoch == (stage >= P_ACKED ? 2 : 1) && (stage != P_ACKED || slab) &&
		       stage != P_HELLO;
	case FTW_APPLIED:
		return lane == 0 && epoch == 1 && stage == P_ACKED;
	default:
		return false;
	}
}

static void try_primary(struct raw_vm *vm, struct tp_listener *l, enum primary_stage stage, uint32_t type,
			uint32_t lane, uint64_t epoch)
{
	bool allowed = allowed_to_primary(stage, type, lane, epoch);
	char what[160], name[24];
	struct ft_status st;
	struct raw r;
	uint64_t deadline;

	snprintf(what, sizeof(what), "%sto a primary %s: %s of epoch %" PRIu64 " on lane %u", slab ? "slab, " : "",
		 primary_stage_names[stage], record_name(type, name), epoch, lane);
	raw_accept(&r, l);
	r.slab = slab;
	raw_expect_hello(&r);
	if (stage > P_HELLO)
		raw_hello_ack(&r, NULL);
	if (stage > P_ACCEPTED)
		CHECK(raw_await_commit(&r) == 1, "%s: no commit", what);
	if (stage > P_COMMITTED)
		CHECK(raw_mark(&r, FTW_ACK, 1), "%s: ack", what);
	if (stage > P_ACKED)
		CHECK(raw_mark(&r, FTW_APPLIED, 1), "%s: applied", what);
	send_one(&r, type, lane, epoch);
	if (!allowed) {
		expect_end(&r, what, stage > P_HELLO && !(is_last_word(type) && lane == 0 && type != FTW_REFUSE));
		ft_session_status(vm->session, &st);
		for (deadline = deadline_in_ms(WAIT_MS); st.is_protected || !st.reason[0];
		     ft_session_status(vm->session, &st))
			CHECK(now_ns() < deadline, "%s: %s, reason '%s'", what, ft_state_name(st.state), st.reason);
	}
	raw_close(&r);
	for (deadline = deadline_in_ms(WAIT_MS); atomic_load(&vm->paused);)
		CHECK(now_ns() < deadline, "%s: the guest stays paused", what);
}

static void against_primary(unsigned every)
{
	struct tp_listener *l;
	struct raw_vm vm;
	unsigned tried = 0, n = 0;
	char uri[128];

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri,
		       slab ? "interval=5,reconnect=1,suspect=10s,lanes=2,placement=slab"
			    : "interval=5,reconnect=1,suspect=10s,lanes=2");
	for (unsigned stage = 0; stage < P_STAGES; stage++)
		for (unsigned t = 0; t < NR(types); t++)
			for (uint32_t lane = 0; lane <= LANES; lane++)
				for (unsigned e = 0; e < NR(epochs); e++) {
					if (!can_be_made(types[t], epochs[e]) ||
					    !is_due(types[t], epochs[e], every, n++))
						continue;
					try_primary(&vm, l, (enum primary_stage)stage, types[t], lane, epochs[e]);
					tried++;
				}
	printf("%u records, ", tried);
	tp_listener_close(l);
	raw_vm_close(&vm);
}

static void both(unsigned every)
{
	uint64_t begun = now_ns();

	printf("%s: secondary: ", slab ? "slab" : "mirror");
	fflush(stdout);
	against_secondary(every);
	printf("%" PRIu64 " ms; primary: ", (now_ns() - begun) / NS_PER_MS);
	fflush(stdout);
	begun = now_ns();
	against_primary(every);
	printf("%" PRIu64 " ms\n", (now_ns() - begun) / NS_PER_MS);
}

int main(int argc, char **argv)
{
	unsigned every = argc == 3 && strcmp(argv[1], "--every") == 0 ? (unsigned)atoi(argv[2]) : 1;

	CHECK(every > 0 && (argc == 1 || argc == 3), "usage: stress_hostile [--every N]");
	optional_on_data_lanes();
	both(every);
	slab = true;
	both(every);
	return 0;
}
