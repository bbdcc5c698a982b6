/* SPDX-License-Identifier: MIT */
/* test_session_resync.c - after a lost connection (resync): only what was written since is sent, also from ALONE, also when it is lost again in the middle, and the
 * image is what the oracle says each time; all is sent where it is off, or where the secondary is another one. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>
#include "codec.h"
#include "raw.h"
#include "session_help.h"

#define MACHINE_PAGES ((UINT64_C(16) << 20) / FT_PAGE_SIZE)

static void open_larger_guest(struct pair *p, const char *settings, uint64_t rate, uint64_t pages)
{
	struct pair_options opt;

	pair_options_init(&opt);
	opt.primary = settings;
	opt.compare = true;
	opt.use_proxy = true;
	opt.sim.region_bytes[0] = pages * FT_PAGE_SIZE;
	opt.sim.prefill_pages = pages;
	opt.sim.nr_cpus = 1;
	opt.sim.rate = rate;
	pair_open(p, &opt);
	pair_wait_protected(p);
	pair_wait_applied(p, 3);
}

static void open_guest(struct pair *p, const char *settings, uint64_t rate)
{
	open_larger_guest(p, settings, rate, MACHINE_PAGES);
}

static uint64_t told(struct pair *p)
{
	return counted(p->primary, FT_COUNTER_PAGES) + counted(p->primary, FT_COUNTER_ZERO_PAGES) +
	       counted(p->primary, FT_COUNTER_DELTA_PAGES);
}

/* Pages that were told from a loss on until the machine was protected again; @away: the state that the primary is in meanwhile. */
static uint64_t lose(struct pair *p, uint32_t away)
{
	uint64_t before;

	proxy_set_mode(p->proxy, PROXY_REFUSE);
	pair_wait(p->primary, away);
	before = told(p);
	proxy_set_mode(p->proxy, PROXY_PASS);
	pair_wait_protected(p);
	before = told(p) - before;
	pair_wait_applied(p, 3);
	pair_check_compared(p);
	return before;
}

static void little_is_sent(const char *settings, uint32_t away)
{
	uint64_t sent;
	struct pair p;

	open_guest(&p, settings, 200);
	for (uint64_t n = 1; n <= 3; n++) {
		sent = lose(&p, away);
		cr_expect_eq(counted(p.primary, FT_COUNTER_RESYNCS), n);
		cr_expect_lt(sent, MACHINE_PAGES / 4, "%" PRIu64 " pages were sent", sent);
	}
	pair_close(&p);
}

Test(resync, what_was_written_since, .timeout = 120)
{
	little_is_sent("interval=10,suspect=60000", STATE(SUSPECT));
}

Test(resync, to_an_image, .timeout = 120)
{
	little_is_sent("interval=10,suspect=60000,placement=mirror,delta=on", STATE(SUSPECT));
}

Test(resync, also_when_it_went_on_alone, .timeout = 120)
{
	little_is_sent("interval=10,suspect=50", STATE(ALONE));
}

Test(resync, with_pages_sent_ahead, .timeout = 120)
{
	little_is_sent("interval=50,suspect=60000,send-ahead=8,output-cut=off", STATE(SUSPECT));
}

/* Lost again, and again, at whatever moment, also while what is owed is sent. */
static void losses(const char *settings)
{
	struct pair p;

	open_guest(&p, settings, 5000);
	for (unsigned i = 0; i < 40; i++) {
		proxy_set_mode(p.proxy, PROXY_REFUSE);
		sleep_ms(i * 7 % 13);
		proxy_set_mode(p.proxy, PROXY_PASS);
		sleep_ms(i * 11 % 61);
		pair_check_compared(&p);
	}
	pair_wait_protected(&p);
	pair_wait_applied(&p, 3);
	pair_check_compared(&p);
	cr_expect_gt(counted(p.primary, FT_COUNTER_RESYNCS), 3);
	pair_close(&p);
}

Test(resync, lost_again_and_again, .timeout = 120)
{
	losses("interval=5,suspect=20,skip-same=off");
}

Test(resync, lost_again_and_again_with_pages_sent_ahead, .timeout = 120)
{
	losses("interval=20,suspect=20,skip-same=on,send-ahead=5,output-cut=off");
}

Test(resync, lost_again_and_again_to_an_image, .timeout = 120)
{
	losses("interval=5,suspect=20,placement=mirror,delta=on,sync-pause=1");
}

/* False: it was protected before. */
static bool wait_round(struct pair *p, uint32_t round)
{
	struct ft_status st;

	do {
		sleep_ms(1);
		ft_session_status(p->primary, &st);
		if (st.state == FT_STATE_PROTECTED)
			return false;
	} while (st.state != FT_STATE_SYNCING || st.sync_round < round);
	return true;
}

/* What was written during the round before is known to nobody but the set that is being sent just now. */
Test(resync, lost_in_a_later_round, .timeout = 120)
{
	unsigned hit = 0;
	struct pair p;

	open_larger_guest(&p, "interval=10,suspect=60000,skip-same=off,staging-bytes=16M,sync-pause=1", 20000,
			  3 * MACHINE_PAGES);
	for (unsigned i = 0; i < 20 && hit < 3; i++) {
		proxy_set_mode(p.proxy, PROXY_REFUSE);
		pair_wait(p.primary, STATE(SUSPECT));
		proxy_set_rate(p.proxy, 8000000);
		proxy_set_mode(p.proxy, PROXY_PASS);
		if (wait_round(&p, 2)) {
			hit++;
			sleep_ms(50);
			proxy_set_mode(p.proxy, PROXY_REFUSE);
			pair_wait(p.primary, STATE(CONNECTING) | STATE(SUSPECT));
			proxy_set_mode(p.proxy, PROXY_PASS);
		}
		proxy_set_rate(p.proxy, 0);
		pair_wait_protected(&p);
		pair_wait_applied(&p, 3);
		pair_check_compared(&p);
	}
	cr_expect_gt(hit, 0, "no full round was ever followed by another one");
	pair_close(&p);
}

Test(resync, off_is_off, .timeout = 120)
{
	struct pair p;

	open_guest(&p, "interval=10,suspect=60000,resync=off", 200);
	cr_expect_geq(lose(&p, STATE(SUSPECT)), MACHINE_PAGES);
	cr_expect_eq(counted(p.primary, FT_COUNTER_RESYNCS), 0);
	pair_close(&p);
}

/* ---- what the two say to each other, and what they must not ---- */

static uint64_t greet_with_base(struct raw *r, struct raw_vm *vm, uint8_t session, uint64_t connection, uint64_t base,
				uint64_t epoch)
{
	raw_connect(r, vm->address, 1);
	r->offered = FTW_CAP_RESYNC;
	raw_greet(r, session);
	return raw_base(r, connection, base, epoch);
}

/* Epoch 1: @page holds @fill, and nothing else is told. */
static void one_page(struct raw *r, uint64_t page, uint8_t fill)
{
	cr_assert(raw_pages(r, 1, 1, page, 1, fill) && raw_commit(r, 1));
	raw_expect(r, FTW_ACK, 1);
	raw_expect(r, FTW_APPLIED, 1);
	raw_close(r);
}

static uint8_t octet_of(const struct raw_vm *vm, uint64_t page)
{
	return vm->memory[page * FT_PAGE_SIZE + 7];
}

/* By session and connection, not by the epoch's number: behind an address that moves there may be a standby that was ours before. */
Test(resync, the_image_must_be_that_of_the_base, .timeout = 120)
{
	struct raw_vm vm;
	struct raw r;

	raw_vm_secondary(&vm, NULL);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 1, 0, 0), 0);
	one_page(&r, 1, 0x11);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 2, 1, 1), 1);
	one_page(&r, 5, 0x55);
	cr_expect(octet_of(&vm, 1) == 0x11 && octet_of(&vm, 5) == 0x55, "the image was not kept");
	cr_assert_eq(greet_with_base(&r, &vm, 1, 3, 2, 2), 0); /* of which it has 1 only */
	raw_close(&r);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 4, 1, 1), 0); /* it is of connection 2 */
	raw_close(&r);
	cr_assert_eq(greet_with_base(&r, &vm, 2, 5, 2, 1), 0); /* of another session */
	raw_close(&r);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 6, 2, 1), 1); /* neither of them has changed it */
	raw_close(&r);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 7, 6, 1), 0);
	one_page(&r, 9, 0x99);
	cr_expect(octet_of(&vm, 1) == 0 && octet_of(&vm, 5) == 0 && octet_of(&vm, 9) == 0x99,
		  "it was not the whole machine");
	raw_connect(&r, vm.address, 1); /* one that knows nothing of this: what it makes is nobody's base */
	raw_greet(&r, 1);
	one_page(&r, 3, 0x33);
	cr_assert_eq(greet_with_base(&r, &vm, 1, 8, 7, 1), 0);
	raw_close(&r);
	raw_vm_close(&vm);
}

static void expect_error(struct raw *r, const char *part)
{
	char text[FTW_REASON_MAX + 1] = "";
	struct record_head head = { 0 };

	while (head.type != FTW_ERROR)
		cr_assert(raw_receive(r, &head, text, 5000), "no error came, '%s' was expected", part);
	cr_expect(strstr(text, part), "'%s' is not in '%s'", part, text);
	raw_close(r);
}

Test(resync, out_of_place, .timeout = 120)
{
	const struct base again = { .connection = 2 };
	struct raw_vm vm;
	struct raw r;
	uint32_t seq;
	void *buf;

	raw_vm_secondary(&vm, NULL);
	greet_with_base(&r, &vm, 1, 1, 0, 0);
	buf = link_begin(r.link, 0, &seq);
	raw_send(&r, 0, create_base(buf, seq, &again));
	expect_error(&r, "base: a second one");
	raw_connect(&r, vm.address, 1);
	raw_greet(&r, 1);
	buf = link_begin(r.link, 0, &seq);
	raw_send(&r, 0, create_base(buf, seq, &again));
	expect_error(&r, "base, and hello offered no resync");
	raw_connect(&r, vm.address, 1);
	r.offered = FTW_CAP_RESYNC;
	raw_greet(&r, 1);
	raw_pages(&r, 1, 1, 9, 1, 0);
	expect_error(&r, "zero-pages before base");
	raw_vm_close(&vm);
}

/* A secondary says that it has what it cannot have. */
static void base_ack(uint64_t epoch, uint64_t caps, const char *part)
{
	struct tp_listener *l;
	struct raw_vm vm;
	struct raw r;
	char uri[64];
	uint32_t seq;
	void *buf;

	l = raw_listen(uri, sizeof(uri));
	raw_vm_primary(&vm, uri, NULL);
	raw_accept(&r, l);
	raw_expect_hello(&r);
	r.offered = caps;
	raw_hello_ack(&r, NULL);
	if (caps)
		raw_expect(&r, FTW_BASE, 0);
	buf = link_begin(r.link, 0, &seq);
	raw_send(&r, 0, create_base_ack(buf, seq, epoch));
	expect_error(&r, part);
	raw_vm_close(&vm);
	tp_listener_close(l);
}

Test(resync, a_secondary_is_not_believed, .timeout = 120)
{
	base_ack(3, FTW_CAP_RESYNC, "base-ack: epoch 3, of those that were sent it can have 0 to 0");
	base_ack(0, 0, "base-ack, and no base was named");
}
