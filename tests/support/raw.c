/* SPDX-License-Identifier: MIT */
/* raw.c - see raw.h. */
#include "raw.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "check.h"
#include "clock.h"
#include "digest.h"
#include "pair.h"

#define SEND_MS 5000u

static bool by_slab(void)
{
	const char *settings = pair_common_settings();

	return settings && strstr(settings, "placement=slab");
}

void raw_connect(struct raw *r, const char *uri, uint32_t data_lanes)
{
	struct tp_params params = { .lanes = data_lanes + 1 };
	struct ft_error err = { 0 };
	struct tp_conn *conn;

	memset(r, 0, sizeof(*r));
	r->slab = by_slab();
	r->lanes = data_lanes;
	CHECK_OK(tp_connect(&conn, uri, &params, deadline_in_ms(WAIT_MS), -1, &err), err);
	CHECK_OK(link_create(&r->link, conn, NULL, &err), err);
}

struct tp_listener *raw_listen(char *uri, size_t size)
{
	struct tp_params params = { .lanes = TP_LANES_MAX };
	struct ft_error err = { 0 };
	struct tp_listener *l;

	CHECK_OK(tp_listen(&l, "127.0.0.1:0", &params, &err), err);
	snprintf(uri, size, "%s", tp_listener_address(l));
	return l;
}

void raw_accept(struct raw *r, struct tp_listener *l)
{
	struct ft_error err = { 0 };
	struct tp_conn *conn;

	memset(r, 0, sizeof(*r));
	r->slab = by_slab();
	CHECK_OK(tp_accept(l, &conn, deadline_in_ms(WAIT_MS), -1, &err), err);
	CHECK_OK(link_create(&r->link, conn, NULL, &err), err);
	r->lanes = r->link->lanes - 1;
}

void raw_close(struct raw *r)
{
	link_destroy(r->link);
	r->link = NULL;
}

bool raw_send(struct raw *r, uint32_t lane, size_t len)
{
	return link_end(r->link, lane, len, deadline_in_ms(SEND_MS), NULL) == 0;
}

static void keep_text(struct cursor *body, char *text)
{
	struct reason why;

	*text = '\0';
	if (consume_reason(body, &why, NULL) == 0)
		snprintf(text, FTW_REASON_MAX + 1, "%.*s", (int)why.reason_bytes, why.text);
}

static void note(struct raw *r, const struct record_head *head, struct cursor *body)
{
	struct slab_runs told;

	if (head->type == FTW_ROOM)
		CHECK(consume_room(body, &r->room, NULL) == 0, "room is not well-formed");
	if (head->type != FTW_NOTIFY_SLAB)
		return;
	CHECK(consume_slab_runs(body, RAW_PAGES, &told, NULL) == 0, "notify-slab is not well-formed");
	r->told_end = told.position + told.runs.nr_pages;
}

/* The next record that is no heartbeat. */
static bool receive(struct raw *r, struct record_head *head, struct cursor *body, uint64_t deadline)
{
	const void *msg;
	uint32_t lane;
	size_t len;

	do {
		if (link_receive(r->link, &lane, head, body, &msg, &len, deadline, NULL))
			return false;
	} while (head->type == FTW_HEARTBEAT);
	return true;
}

bool raw_receive(struct raw *r, struct record_head *head, char *text, uint32_t timeout_ms)
{
	uint64_t deadline = deadline_in_ms(timeout_ms);
	struct record_head behind;
	struct cursor body;

	if (!receive(r, head, &body, deadline))
		return false;
	note(r, head, &body);
	if (text && (head->type == FTW_REFUSE || head->type == FTW_BYE || head->type == FTW_ERROR))
		keep_text(&body, text);
	if (head->type == FTW_HELLO_ACK && r->slab && receive(r, &behind, &body, deadline))
		note(r, &behind, &body);
	return true;
}

void raw_expect(struct raw *r, uint32_t type, uint64_t epoch)
{
	char got[24], want[24], text[FTW_REASON_MAX + 1] = "";
	struct record_head head;

	CHECK(raw_receive(r, &head, text, WAIT_MS), "no %s of epoch %" PRIu64, record_name(type, want), epoch);
	CHECK(head.type == type && head.epoch == epoch, "%s of epoch %" PRIu64 " (%s) instead of %s of epoch %" PRIu64,
	      record_name(head.type, got), head.epoch, text, record_name(type, want), epoch);
}

/* ---- as a primary ---- */

bool raw_hello(struct raw *r, uint8_t session, uint32_t heartbeat_ms, uint32_t heartbeat_misses)
{
	struct hello h = {
		.version_min = FTW_VERSION_MIN,
		.version_max = FTW_VERSION_MAX,
		.placement = r->slab ? FTW_PLACEMENT_SLAB : FTW_PLACEMENT_MIRROR,
		.mode = FTW_MODE_CHECKPOINT,
		.capabilities_offered = r->offered,
		.nr_pages = RAW_PAGES,
		.state_max = 65536,
		.page_bytes = FT_PAGE_SIZE,
		.chunk_bytes = 1u << 20,
		.lanes = r->lanes,
		.heartbeat_ms = heartbeat_ms,
		.heartbeat_misses = heartbeat_misses,
		.identity = "",
		.name = "raw",
		.name_bytes = 3,
	};
	uint32_t seq;
	void *buf = link_begin(r->link, 0, &seq);

	memset(h.session, session, sizeof(h.session));
	return raw_send(r, 0, create_hello(buf, seq, &h));
}

bool raw_regions(struct raw *r)
{
	struct region_entry e = { .len_bytes = RAW_BYTES, .name = "ram", .name_bytes = 3 };
	uint32_t seq;
	void *buf = link_begin(r->link, 0, &seq);

	return raw_send(r, 0, create_regions(buf, seq, &e, 1));
}

void raw_greet(struct raw *r, uint8_t session)
{
	CHECK(raw_hello(r, session, 50, 100) && raw_regions(r), "hello cannot be sent");
	raw_expect(r, FTW_HELLO_ACK, 0);
}

uint64_t raw_base(struct raw *r, uint64_t connection, uint64_t base, uint64_t epoch)
{
	const struct base b = { .connection = connection, .base_connection = base, .base_epoch = epoch };
	uint32_t seq, lane;
	void *buf = link_begin(r->link, 0, &seq);
	struct record_head head;
	struct ft_error err = { 0 };
	struct cursor body;
	const void *msg;
	size_t len;

	CHECK(raw_send(r, 0, create_base(buf, seq, &b)), "base cannot be sent");
	do
		CHECK_OK(link_receive(r->link, &lane, &head, &body, &msg, &len, deadline_in_ms(WAIT_MS), &err), err);
	while (head.type == FTW_HEARTBEAT);
	CHECK(head.type == FTW_BASE_ACK && lane == 0, "record 0x%x instead of base-ack", head.type);
	CHECK_OK(consume_base_ack(&body, &epoch, &err), err);
	return epoch;
}

/* A page, all @fill, at page @at of a window. */
static bool write_page(struct raw *r, uint32_t lane, uint32_t window, uint64_t at, uint8_t fill, uint64_t *ticket)
{
	static uint8_t page[FT_PAGE_SIZE];
	struct iovec iov = { page, sizeof(page) };

	memset(page, fill, sizeof(page));
	return link_write(r->link, lane, window, at * FT_PAGE_SIZE, &iov, 1, ticket, deadline_in_ms(SEND_MS), NULL) ==
	       0;
}

static uint64_t digest_filled(uint64_t first, uint32_t nr, uint8_t fill)
{
	uint8_t page[FT_PAGE_SIZE];
	uint64_t digest = 0;

	memset(page, fill, sizeof(page));
	for (uint64_t i = first; i < first + nr; i++)
		digest += fill ? digest_page(page, i) : digest_zero(i);
	return digest;
}

static bool is_written(struct raw *r, uint32_t lane, uint64_t ticket)
{
	return !ticket || tp_wait_completed(r->link->conn, lane, ticket, deadline_in_ms(SEND_MS), NULL) == 0;
}

bool raw_slab(struct raw *r, uint32_t lane, uint64_t epoch, uint64_t position, uint64_t first, uint32_t nr,
	      uint8_t fill)
{
	uint64_t digest = digest_filled(first, nr, fill), ticket = 0;
	struct page_run run = { first, nr };
	uint32_t seq;
	void *buf;

	for (uint32_t i = 0; i < nr && r->room.slots; i++)
		if (!write_page(r, lane, FTW_WINDOW_RING, (position + i) % r->room.slots, fill, &ticket))
			return false;
	r->nr_data += nr;
	r->digest += digest;
	buf = link_begin(r->link, lane, &seq);
	return raw_send(r, lane, create_slab_runs(buf, epoch, seq, position, &run, 1, digest)) &&
	       is_written(r, lane, ticket);
}

bool raw_pages(struct raw *r, uint32_t lane, uint64_t epoch, uint64_t first, uint32_t nr, uint8_t fill)
{
	uint64_t digest = digest_filled(first, nr, fill), ticket = 0;
	struct page_run run = { first, nr };
	uint32_t seq;
	void *buf;

	if (fill && r->slab) {
		r->position += nr;
		return raw_slab(r, lane, epoch, r->position - nr, first, nr, fill);
	}
	for (uint32_t i = 0; i < nr && fill; i++)
		if (!write_page(r, lane, FTW_WINDOW_IMAGE, first + i, fill, &ticket))
			return false;
	*(fill ? &r->nr_data : &r->nr_zero) += nr;
	r->digest += digest;
	buf = link_begin(r->link, lane, &seq);
	return raw_send(r, lane,
			create_runs(buf, fill ? FTW_NOTIFY_WRITE : FTW_ZERO_PAGES, epoch, seq, &run, 1, digest)) &&
	       is_written(r, lane, ticket);
}

bool raw_state(struct raw *r, uint64_t epoch, const void *state, uint32_t len)
{
	uint32_t seq;
	void *buf = link_begin(r->link, 1, &seq);

	r->state_bytes = len;
	r->digest += digest_state(state, len);
	return raw_send(r, 1, create_device_state(buf, epoch, seq, len, 0, state, len));
}

bool raw_commit(struct raw *r, uint64_t epoch)
{
	struct commit c = { .nr_data_pages = r->nr_data,
			    .nr_zero_pages = r->nr_zero,
			    .state_bytes = r->state_bytes,
			    .digest = r->digest,
			    .lanes = r->lanes };
	uint32_t seq;
	void *buf;

	if (!c.state_bytes)
		c.digest += digest_state("", 0);
	for (uint32_t i = 0; i < c.lanes; i++)
		c.seq[i] = link_sent(r->link, i + 1);
	r->nr_data = r->nr_zero = r->state_bytes = r->digest = 0;
	buf = link_begin(r->link, 0, &seq);
	return raw_send(r, 0, create_commit(buf, epoch, seq, &c));
}

void raw_epoch(struct raw *r, uint64_t epoch, uint8_t fill)
{
	CHECK(raw_pages(r, 1, epoch, 1, 1, fill) && raw_state(r, epoch, &fill, 1) && raw_commit(r, epoch),
	      "epoch %" PRIu64 " cannot be sent", epoch);
	raw_expect(r, FTW_ACK, epoch);
	raw_expect(r, FTW_APPLIED, epoch);
}

/* ---- as a secondary ---- */

void raw_expect_hello(struct raw *r)
{
	raw_expect(r, FTW_HELLO, 0);
	raw_expect(r, FTW_REGIONS, 0);
}

static void open_window(struct raw *r)
{
	static uint8_t image[RAW_BYTES];
	struct ft_error err = { 0 };

	if (r->slab)
		CHECK_OK(tp_window_open(r->link->conn, FTW_WINDOW_RING, image, RAW_SLOTS * FT_PAGE_SIZE, &err), err);
	else
		CHECK_OK(tp_window_open(r->link->conn, FTW_WINDOW_IMAGE, image, sizeof(image), &err), err);
}

static struct hello_ack good_ack(const struct raw *r)
{
	return (struct hello_ack){ .version = FTW_VERSION_MAX,
				   .placement = r->slab ? FTW_PLACEMENT_SLAB : FTW_PLACEMENT_MIRROR,
				   .epoch_credits = r->slab ? 2 : 1,
				   .capabilities = r->offered,
				   .generation = 1,
				   .heartbeat_ms = 100,
				   .heartbeat_misses = 100 };
}

static bool send_ack(struct raw *r, const struct hello_ack *ack)
{
	uint32_t seq;
	void *buf;

	open_window(r);
	buf = link_begin(r->link, 0, &seq);
	return raw_send(r, 0, create_hello_ack(buf, seq, ack));
}

bool raw_hello_ack(struct raw *r, const struct hello_ack *given)
{
	struct hello_ack ack = good_ack(r);

	if (given)
		return send_ack(r, given);
	return send_ack(r, &ack) && (!r->slab || raw_room(r, RAW_SLOTS, 0));
}

void raw_hello_ack_with(struct raw *r, uint32_t heartbeat_ms, uint32_t heartbeat_misses)
{
	struct hello_ack ack = good_ack(r);

	ack.heartbeat_ms = heartbeat_ms;
	ack.heartbeat_misses = heartbeat_misses;
	CHECK(send_ack(r, &ack) && (!r->slab || raw_room(r, RAW_SLOTS, 0)), "the primary has gone");
}

bool raw_room(struct raw *r, uint64_t slots, uint64_t freed)
{
	const struct room room = { slots, freed };
	uint32_t seq;
	void *buf = link_begin(r->link, 0, &seq);

	return raw_send(r, 0, create_room(buf, seq, &room));
}

bool raw_mark(struct raw *r, uint32_t type, uint64_t epoch)
{
	uint32_t seq;
	void *buf = link_begin(r->link, 0, &seq);

	return raw_send(r, 0, create_epoch_mark(buf, type, epoch, seq));
}

uint64_t raw_await_commit(struct raw *r)
{
	char text[FTW_REASON_MAX + 1] = "";
	struct record_head head;

	do
		CHECK(raw_receive(r, &head, text, WAIT_MS), "the primary sends no commit: %s", text);
	while (head.type != FTW_COMMIT);
	return head.epoch;
}

/* ---- a machine ---- */

static int nothing(void *user, struct ft_error *err)
{
	(void)user, (void)err;
	return 0;
}

static int collect_dirty(void *user, struct ft_dirty *dirty, struct ft_error *err)
{
	(void)user, (void)err;
	return ft_dirty_add(dirty, 0, 1, 1);
}

static uint64_t estimate_dirty(void *user)
{
	struct raw_vm *vm = user;

	return atomic_load(&vm->estimate);
}

static int stop(void *user, struct ft_error *err)
{
	struct raw_vm *vm = user;

	(void)err;
	atomic_fetch_add(&vm->paused, 1);
	atomic_fetch_add(&vm->pauses, 1);
	return 0;
}

static int resume(void *user, struct ft_error *err)
{
	struct raw_vm *vm = user;

	(void)err;
	atomic_fetch_sub(&vm->paused, 1);
	return 0;
}

static int save_state(void *user, struct ft_state_sink *sink, struct ft_error *err)
{
	(void)user, (void)err;
	return ft_state_write(sink, "state", 5);
}

static void output_release(void *user, uint64_t epoch)
{
	struct raw_vm *vm = user;

	atomic_store(&vm->released, epoch);
}

static int check_identity(void *user, const char *identity, struct ft_error *err)
{
	struct raw_vm *vm = user;
	struct timespec t = timespec_of_ns(atomic_load(&vm->identity_delay_ms) * NS_PER_MS);

	(void)identity, (void)err;
	atomic_fetch_add(&vm->identity_checks, 1);
	nanosleep(&t, NULL);
	return 0;
}

static int load_state(void *user, const void *buf, size_t len, struct ft_error *err)
{
	struct raw_vm *vm = user;

	(void)buf, (void)len, (void)err;
	atomic_fetch_add(&vm->loads, 1);
	return 0;
}

static int activate(void *user, struct ft_error *err)
{
	struct raw_vm *vm = user;

	(void)err;
	atomic_fetch_add(&vm->activations, 1);
	return 0;
}

static const struct ft_vmm_ops vm_ops = {
	.struct_size = sizeof(vm_ops),
	.track_start = nothing,
	.collect_dirty = collect_dirty,
	.estimate_dirty = estimate_dirty,
	.pause = stop,
	.save_state = save_state,
	.resume = resume,
	.output_release = output_release,
	.check_identity = check_identity,
	.load_state = load_state,
	.activate = activate,
};

static void open_vm(struct raw_vm *vm, struct ft_config *cfg, const char *settings, uint8_t fill)
{
	struct ft_error err = { 0 };

	if (getenv("FT_TEST_LOG"))
		ft_log_set(pair_log_line, NULL, FT_LOG_DEBUG);
	memset(vm, 0, sizeof(*vm));
	vm->memory = mmap(NULL, RAW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(vm->memory != MAP_FAILED, "no memory");
	if (fill)
		memset(vm->memory, fill, RAW_BYTES);
	pair_settings(cfg, "state-max=64K");
	pair_settings(cfg, pair_common_settings());
	pair_settings(cfg, settings);
	cfg->name = "raw";
	CHECK_OK(ft_session_open(&vm->session, cfg, &vm_ops, vm, &err), err);
	CHECK_OK(ft_session_add_region(vm->session, "ram", vm->memory, RAW_BYTES, &err), err);
	CHECK_OK(ft_session_start(vm->session, &err), err);
}

void raw_vm_secondary(struct raw_vm *vm, const char *settings)
{
	struct ft_error err = { 0 };
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_SECONDARY);
	cfg.listen = "127.0.0.1:0";
	open_vm(vm, &cfg, settings, 0);
	CHECK_OK(ft_session_address(vm->session, vm->address, sizeof(vm->address)), err);
}

void raw_vm_primary_filled(struct raw_vm *vm, const char *uri, const char *settings, uint8_t fill)
{
	struct ft_config cfg;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	cfg.peer = uri;
	cfg.placement = FT_PLACEMENT_MIRROR;
	open_vm(vm, &cfg, settings, fill);
}

void raw_vm_primary(struct raw_vm *vm, const char *uri, const char *settings)
{
	raw_vm_primary_filled(vm, uri, settings, 0);
}

void raw_vm_close(struct raw_vm *vm)
{
	ft_session_close(vm->session);
	munmap(vm->memory, RAW_BYTES);
}
