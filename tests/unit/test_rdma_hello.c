/* SPDX-License-Identifier: MIT */
/* test_rdma_hello.c - what two sides of an rdma connection agree on, and what they make of a hello or a refusal that is not in order.
 * No fabric: octets in, octets and sentences out. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rdma_hello.h"

static const uint8_t token[16] = "0123456789abcdef";

static struct tp_params params(enum tp_registration how, uint32_t chunk_bytes)
{
	return (struct tp_params){
		.lanes = 5, .credits = 8, .registration = how, .chunk_bytes = chunk_bytes, .pin_budget = 1u << 30
	};
}

static struct rdma_hello request_of(const struct tp_params *p, uint32_t lane)
{
	struct rdma_limits l = rdma_limits_of(p);
	struct rdma_hello h;

	rdma_hello_fill(&h, &l, token, lane);
	return h;
}

/* -- agreeing -- */

#define CHUNKS TP_REGISTER_CHUNKS
#define WHOLE TP_REGISTER_WHOLE
#define ODP TP_REGISTER_ODP

struct row {
	enum tp_registration asks, accepts;
	bool asker_can, acceptor_can; /* on demand, by their devices */
	uint32_t agreed;
};
static const struct row rows[] = {
	{ CHUNKS, CHUNKS, true, true, RDMA_CAP_CHUNKS },
	{ CHUNKS, WHOLE, true, true, 0 },
	{ CHUNKS, ODP, true, true, RDMA_CAP_CHUNKS },
	{ WHOLE, CHUNKS, true, true, 0 },
	{ WHOLE, WHOLE, true, true, 0 },
	{ WHOLE, ODP, true, true, 0 },
	{ ODP, CHUNKS, true, true, RDMA_CAP_CHUNKS },
	{ ODP, WHOLE, true, true, 0 },
	{ ODP, ODP, true, true, RDMA_CAP_ODP },
	{ ODP, ODP, true, false, RDMA_CAP_CHUNKS },
	{ ODP, ODP, false, true, RDMA_CAP_CHUNKS },
	{ ODP, ODP, false, false, RDMA_CAP_CHUNKS },
	{ ODP, WHOLE, false, true, 0 },
	{ WHOLE, ODP, true, false, 0 },
};

/* As rdma_prepare() does. */
static struct rdma_limits wish(enum tp_registration how, bool can)
{
	struct tp_params p = params(how, 1u << 20);
	struct rdma_limits l = rdma_limits_of(&p);

	if (!can)
		l.capabilities &= ~RDMA_CAP_ODP;
	return l;
}

Test(agree, one_way_of_registering_is_left)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *r = &rows[i];
		struct rdma_limits asker = wish(r->asks, r->asker_can), acceptor = wish(r->accepts, r->acceptor_can);
		struct rdma_limits got;
		struct rdma_hello h, answer;
		struct ft_error err = { 0 };

		rdma_hello_fill(&h, &asker, token, 0);
		rdma_agree(&acceptor, &h);
		cr_assert_eq(acceptor.capabilities, r->agreed, "row %zu: %u", i, acceptor.capabilities);
		rdma_hello_fill(&answer, &acceptor, token, 0);
		cr_assert_eq(rdma_acceptance_take(&got, &asker, token, 0, true, &answer, sizeof(answer), &err), 0, "%s",
			     err.msg);
		cr_assert_eq(got.capabilities, r->agreed, "row %zu: both sides know the same", i);
	}
}

Test(agree, the_smaller_chunks_and_fewer_lanes_and_each_sides_own_credits_and_budget)
{
	struct tp_params ask = params(CHUNKS, 16u << 20), take = params(CHUNKS, 4u << 20);
	struct rdma_limits asked, got, l;
	struct rdma_hello h, answer;
	struct ft_error err = { 0 };

	for (int swap = 0; swap < 2; swap++) {
		ask.credits = 4;
		take.credits = 16;
		take.lanes = swap ? 9 : 3;
		take.pin_budget = 0;
		ask.chunk_bytes = swap ? 4u << 20 : 16u << 20;
		take.chunk_bytes = swap ? 16u << 20 : 4u << 20;
		asked = rdma_limits_of(&ask);
		l = rdma_limits_of(&take);
		rdma_hello_fill(&h, &asked, token, 0);
		rdma_agree(&l, &h);
		cr_assert_eq(l.lanes, swap ? 5 : 3);
		cr_assert_eq(l.chunk_shift, 22);
		cr_assert_eq(l.credits_ours, 16);
		cr_assert_eq(l.credits_peers, 4);
		cr_assert_eq(l.pin_budget_ours, 0);
		cr_assert_eq(l.pin_budget_peers, 1u << 30);
		rdma_hello_fill(&answer, &l, token, 0);
		cr_assert_eq(rdma_acceptance_take(&got, &asked, token, 0, true, &answer, sizeof(answer), &err), 0);
		cr_assert_eq(got.lanes, l.lanes);
		cr_assert_eq(got.chunk_shift, 22);
		cr_assert_eq(got.credits_ours, 4);
		cr_assert_eq(got.credits_peers, 16);
		cr_assert_eq(got.pin_budget_ours, 1u << 30);
		cr_assert_eq(got.pin_budget_peers, 0);
	}
}

Test(agree, chunks_of_every_size)
{
	for (unsigned shift = RDMA_CHUNK_SHIFT_MIN; shift <= RDMA_CHUNK_SHIFT_MAX; shift++) {
		struct tp_params p = params(CHUNKS, 1u << shift);

		cr_assert_eq(rdma_limits_of(&p).chunk_shift, shift);
	}
}

/* -- requests -- */

/* One octet, or two, of a hello set to what must not be there. */
struct bad {
	size_t at;
	uint8_t octet;
	enum rdma_status status;
	const char *says;
};
#define AT(field) offsetof(struct rdma_hello, field)

static const struct bad bad_requests[] = {
	{ AT(magic), 0, RDMA_REFUSE_OTHER, "not one of ft's" },
	{ AT(magic) + 7, 0, RDMA_REFUSE_OTHER, "not one of ft's" },
	{ AT(version) + 1, 2, RDMA_REFUSE_VERSION, "version 2 was asked for, this side speaks 1" },
	{ AT(version), 1, RDMA_REFUSE_VERSION, "version 257" },
	{ AT(lane) + 1, 5, RDMA_REFUSE_LANES, "lane 5 of 5 lanes" },
	{ AT(lane), 1, RDMA_REFUSE_LANES, "lane 256 of 5 lanes" },
	{ AT(lanes) + 1, 1, RDMA_REFUSE_LANES, "of 1 lanes" },
	{ AT(lanes) + 1, 10, RDMA_REFUSE_LANES, "of 10 lanes" },
	{ AT(status) + 1, 1, RDMA_REFUSE_OTHER, "status" },
	{ AT(capabilities), 0x80, RDMA_REFUSE_CAPABILITY, "0x80000000 are not known" },
	{ AT(capabilities) + 3, 7, RDMA_REFUSE_CAPABILITY, "0x4 are not known" },
	{ AT(credits), 0xff, RDMA_REFUSE_OTHER, "credits" },
	{ AT(credits) + 1, 0, RDMA_REFUSE_OTHER, "credits" },
	{ AT(chunk_shift), 19, RDMA_REFUSE_OTHER, "chunks" },
	{ AT(chunk_shift), 29, RDMA_REFUSE_OTHER, "chunks" },
	{ AT(reserved), 1, RDMA_REFUSE_OTHER, "reserved" },
};

Test(request, each_field_is_checked)
{
	struct tp_params p = params(CHUNKS, 1u << 20);
	struct rdma_hello good = request_of(&p, 0), h, copy;
	struct ft_error why = { 0 };

	cr_assert_eq(rdma_request_check(&copy, &good, sizeof(good), &why), RDMA_OK, "%s", why.msg);
	cr_assert_eq(memcmp(&copy, &good, sizeof(good)), 0);
	for (size_t i = 0; i < sizeof(bad_requests) / sizeof(bad_requests[0]); i++) {
		const struct bad *b = &bad_requests[i];

		h = good;
		((uint8_t *)&h)[b->at] = b->octet;
		cr_assert_eq(rdma_request_check(&copy, &h, sizeof(h), &why), b->status, "bad request %zu", i);
		cr_assert(strstr(why.msg, b->says), "bad request %zu: %s", i, why.msg);
		cr_assert_lt(why.code, 0);
	}
}

/* Behind a request InfiniBand puts zeros; what is cut off is none. */
Test(request, of_any_length)
{
	struct tp_params p = params(CHUNKS, 1u << 20);
	struct rdma_hello good = request_of(&p, 0), copy;
	uint8_t padded[56] = { 0 };
	struct ft_error why = { 0 };

	memcpy(padded, &good, sizeof(good));
	for (size_t len = 0; len <= sizeof(padded); len++)
		cr_assert_eq(rdma_request_check(&copy, padded, len, &why),
			     len < sizeof(good) ? RDMA_REFUSE_OTHER : RDMA_OK, "%zu octets", len);
}

Test(request, those_of_one_set_say_the_same)
{
	static const size_t same[] = { AT(lanes) + 1, AT(capabilities) + 3, AT(credits) + 1, AT(chunk_shift),
				       AT(pin_budget) + 7 };
	struct tp_params p = params(CHUNKS, 1u << 20);
	struct rdma_hello a = request_of(&p, 0), b = request_of(&p, 1), c;

	cr_assert(rdma_request_same_set(&a, &b));
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		c = b;
		((uint8_t *)&c)[same[i]] ^= 2;
		cr_assert_not(rdma_request_same_set(&a, &c), "octet %zu", same[i]);
	}
}

/* -- acceptances -- */

static const struct bad bad_acceptances[] = {
	{ AT(magic), 0, 0, "not ft" },
	{ AT(version) + 1, 9, 0, "the peer speaks version 9 of the transport, we speak 1" },
	{ AT(lane) + 1, 1, 0, "not of this request" },
	{ AT(token) + 3, 0, 0, "not of this request" },
	{ AT(lanes) + 1, 1, 0, "lanes" },
	{ AT(lanes) + 1, 6, 0, "lanes" },
	{ AT(lanes), 1, 0, "lanes" },
	{ AT(status) + 1, 1, 0, "status" },
	{ AT(capabilities) + 3, 2, 0, "not offered" },
	{ AT(capabilities) + 3, 3, 0, "not offered" },
	{ AT(capabilities), 1, 0, "not offered" },
	{ AT(credits), 0xff, 0, "credits" },
	{ AT(credits) + 1, 0, 0, "credits" },
	{ AT(chunk_shift), 23, 0, "larger than ours" },
	{ AT(chunk_shift), 19, 0, "chunks" },
	{ AT(reserved), 1, 0, "reserved" },
};

Test(acceptance, each_field_is_checked)
{
	struct tp_params p = params(CHUNKS, 4u << 20);
	struct rdma_limits asked = rdma_limits_of(&p), got;
	struct rdma_hello good, h;
	struct ft_error err = { 0 };

	rdma_hello_fill(&good, &asked, token, 0);
	for (size_t i = 0; i < sizeof(bad_acceptances) / sizeof(bad_acceptances[0]); i++) {
		const struct bad *b = &bad_acceptances[i];

		h = good;
		((uint8_t *)&h)[b->at] = b->octet;
		cr_assert_lt(rdma_acceptance_take(&got, &asked, token, 0, true, &h, sizeof(h), &err), 0,
			     "bad acceptance %zu", i);
		cr_assert(strstr(err.msg, b->says), "bad acceptance %zu: %s", i, err.msg);
	}
	for (size_t len = 0; len < sizeof(good); len++)
		cr_assert_lt(rdma_acceptance_take(&got, &asked, token, 0, true, &good, len, &err), 0, "%zu octets",
			     len);
}

/* Who asked for ODP or chunks may not be given both. */
Test(acceptance, two_ways_at_once_are_none)
{
	struct tp_params p = params(ODP, 1u << 20);
	struct rdma_limits asked = rdma_limits_of(&p), got;
	struct rdma_hello h;
	struct ft_error err = { 0 };

	rdma_hello_fill(&h, &asked, token, 0); /* both bits, as wished */
	cr_assert_eq(rdma_acceptance_take(&got, &asked, token, 0, true, &h, sizeof(h), &err), -EPROTO);
}

Test(acceptance, all_lanes_say_the_same)
{
	static const struct {
		size_t at;
		uint8_t octet;
	} other[] = { { AT(lanes) + 1, 4 },
		      { AT(capabilities) + 3, 0 },
		      { AT(credits) + 1, 9 },
		      { AT(chunk_shift), 21 },
		      { AT(pin_budget) + 7, 1 } };
	struct tp_params p = params(CHUNKS, 4u << 20);
	struct rdma_limits asked = rdma_limits_of(&p), got;
	struct rdma_hello first, h;
	struct ft_error err = { 0 };

	rdma_hello_fill(&first, &asked, token, 0);
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		cr_assert_eq(rdma_acceptance_take(&got, &asked, token, 0, true, &first, sizeof(first), &err), 0);
		rdma_hello_fill(&h, &asked, token, 1);
		cr_assert_eq(rdma_acceptance_take(&got, &asked, token, 1, false, &h, sizeof(h), &err), 0, "%s",
			     err.msg);
		((uint8_t *)&h)[other[i].at] = other[i].octet;
		cr_assert_eq(rdma_acceptance_take(&got, &asked, token, 1, false, &h, sizeof(h), &err), -EPROTO,
			     "row %zu", i);
		cr_assert(strstr(err.msg, "differ"), "%s", err.msg);
	}
}

/* -- refusals -- */

Test(refusal, the_reason_arrives)
{
	static const struct {
		enum rdma_status status;
		int code;
	} each[] = { { RDMA_REFUSE_VERSION, -EPROTONOSUPPORT }, { RDMA_REFUSE_LANES, -EPROTO },
		     { RDMA_REFUSE_SURPLUS, -EPROTO },          { RDMA_REFUSE_CAPABILITY, -EPROTONOSUPPORT },
		     { RDMA_REFUSE_LIMIT, -ENOBUFS },           { RDMA_REFUSE_OTHER, -EPROTO } };
	uint8_t padded[148] = { 0 };
	struct rdma_refusal r;
	struct ft_error why;

	for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		rdma_refusal_fill(&r, each[i].status, "RLIMIT_MEMLOCK is 8 MiB");
		memcpy(padded, &r, sizeof(r));
		cr_assert_eq(rdma_refusal_read(padded, sizeof(padded), &why), each[i].status);
		cr_assert_eq(why.code, each[i].code);
		cr_assert_str_eq(why.msg, "the peer refuses the connection: RLIMIT_MEMLOCK is 8 MiB");
	}
}

Test(refusal, is_cut_where_it_is_too_long)
{
	struct rdma_refusal r;
	struct ft_error why;
	char text[300], expected[400];

	memset(text, 'x', sizeof(text));
	text[299] = '\0';
	rdma_refusal_fill(&r, RDMA_REFUSE_OTHER, text);
	cr_assert_eq(r.len, sizeof(r.text));
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	snprintf(expected, sizeof(expected), "the peer refuses the connection: %.128s", text);
	cr_assert_str_eq(why.msg, expected);
}

/* No terminal, and no log, is told what to do by a peer. */
Test(refusal, prints_no_more_than_text)
{
	struct rdma_refusal r;
	struct ft_error why;

	rdma_refusal_fill(&r, RDMA_REFUSE_OTHER, "a\033[2Jb\n\x7f\xc2\x9b%s");
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	cr_assert_str_eq(why.msg, "the peer refuses the connection: a?[2Jb????%s");
	r.len = 255; /* more than there is */
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	cr_assert_lt(strlen(why.msg), 40 + sizeof(r.text));
	rdma_refusal_fill(&r, RDMA_REFUSE_OTHER, "");
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	cr_assert_str_eq(why.msg, "the peer refuses the connection: it gives no reason");
}

Test(refusal, of_others_and_of_other_versions)
{
	struct rdma_refusal r;
	struct ft_error why;

	rdma_refusal_fill(&r, RDMA_REFUSE_OTHER, "text");
	for (size_t len = 0; len < sizeof(r); len++)
		cr_assert_eq(rdma_refusal_read(&r, len, &why), RDMA_OK, "%zu octets are none", len);
	r.status = to_be16(99); /* a reason that this version does not know */
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	r.status = to_be16(0); /* refuses, and says that nothing is wrong */
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_OTHER);
	r.version = to_be16(3);
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_REFUSE_VERSION);
	cr_assert_eq(why.code, -EPROTONOSUPPORT);
	cr_assert_str_eq(why.msg, "the peer speaks version 3 of the transport, we speak 1");
	r.magic = to_be64(1);
	cr_assert_eq(rdma_refusal_read(&r, sizeof(r), &why), RDMA_OK);
}
