/* SPDX-License-Identifier: MIT */
/* rdma_hello.c - see rdma_hello.h.  Must hold: nothing of the peer's is used before it was checked, and nothing of its text is printed
 * that could do more than be read. */
#include "rdma_hello.h"

#include <errno.h>
#include <string.h>

/* Of TP_REGISTER_ODP both bits: what is left when one side's device cannot is chunks. */
static uint32_t wished(enum tp_registration how)
{
	switch (how) {
	case TP_REGISTER_CHUNKS:
		return RDMA_CAP_CHUNKS;
	case TP_REGISTER_WHOLE:
		return 0;
	case TP_REGISTER_ODP:
		return RDMA_CAP_CHUNKS | RDMA_CAP_ODP;
	}
	return RDMA_CAP_CHUNKS;
}

static uint32_t shift_of(uint32_t chunk_bytes)
{
	uint32_t shift = RDMA_CHUNK_SHIFT_MIN;

	while (shift < RDMA_CHUNK_SHIFT_MAX && UINT32_C(1) << shift < chunk_bytes)
		shift++;
	return shift;
}

struct rdma_limits rdma_limits_of(const struct tp_params *p)
{
	return (struct rdma_limits){ .lanes = p->lanes,
				     .credits_ours = p->credits,
				     .capabilities = wished(p->registration),
				     .chunk_shift = shift_of(p->chunk_bytes),
				     .pin_budget_ours = p->pin_budget,
				     .signal_every = p->signal_every,
				     .sq_depth = p->sq_depth };
}

/* Only one way of registering is left: on demand before chunks before whole.  Who wants whole wishes for neither bit, and so has its way. */
static uint32_t one_way(uint32_t both)
{
	return both & RDMA_CAP_ODP ? RDMA_CAP_ODP : both & RDMA_CAP_CHUNKS;
}

void rdma_agree(struct rdma_limits *l, const struct rdma_hello *request)
{
	uint32_t lanes = from_be16(request->lanes);

	l->lanes = lanes < l->lanes ? lanes : l->lanes;
	l->capabilities = one_way(l->capabilities & from_be32(request->capabilities));
	l->chunk_shift = request->chunk_shift < l->chunk_shift ? request->chunk_shift : l->chunk_shift;
	l->credits_peers = from_be16(request->credits);
	l->pin_budget_peers = from_be64(request->pin_budget);
}

void rdma_hello_fill(struct rdma_hello *h, const struct rdma_limits *l, const uint8_t token[16], uint32_t lane)
{
	memset(h, 0, sizeof(*h));
	h->magic = to_be64(RDMA_MAGIC);
	h->version = to_be16(RDMA_VERSION);
	h->lane = to_be16((uint16_t)lane);
	h->lanes = to_be16((uint16_t)l->lanes);
	h->status = to_be16(RDMA_OK);
	memcpy(h->token, token, sizeof(h->token));
	h->capabilities = to_be32(l->capabilities);
	h->credits = to_be16((uint16_t)l->credits_ours);
	h->chunk_shift = (uint8_t)l->chunk_shift;
	h->pin_budget = to_be64(l->pin_budget_ours);
}

/* What holds for a hello of either direction; the device may have put zeros behind it. */
static const char *out_of_range(const struct rdma_hello *h)
{
	uint16_t credits = from_be16(h->credits);

	if (from_be16(h->status) != RDMA_OK || h->reserved != 0)
		return "status or reserved field is not 0";
	if (credits == 0 || credits > TP_CREDITS_MAX)
		return "credits are out of range";
	if (h->chunk_shift < RDMA_CHUNK_SHIFT_MIN || h->chunk_shift > RDMA_CHUNK_SHIFT_MAX)
		return "the size of chunks is out of range";
	return NULL;
}

static enum rdma_status refuse(enum rdma_status status, int code, struct ft_error *why, const char *text)
{
	err_set(why, code, "%s", text);
	return status;
}

enum rdma_status rdma_request_check(struct rdma_hello *h, const void *data, size_t len, struct ft_error *why)
{
	uint32_t lanes, unknown;
	const char *wrong;

	memset(h, 0, sizeof(*h));
	if (len >= sizeof(*h))
		memcpy(h, data, sizeof(*h));
	if (from_be64(h->magic) != RDMA_MAGIC)
		return refuse(RDMA_REFUSE_OTHER, -EPROTO, why, "ft listens here, and the request is not one of ft's");
	if (from_be16(h->version) != RDMA_VERSION) {
		err_set(why, -EPROTONOSUPPORT, "version %u was asked for, this side speaks %u", from_be16(h->version),
			RDMA_VERSION);
		return RDMA_REFUSE_VERSION;
	}
	lanes = from_be16(h->lanes);
	if (lanes < 2 || lanes > TP_LANES_MAX || from_be16(h->lane) >= lanes) {
		err_set(why, -EPROTO, "lane %u of %u lanes, 2 to %u can be had", from_be16(h->lane), lanes,
			TP_LANES_MAX);
		return RDMA_REFUSE_LANES;
	}
	unknown = from_be32(h->capabilities) & ~RDMA_CAPS_KNOWN;
	if (unknown) {
		err_set(why, -EPROTONOSUPPORT, "capabilities 0x%x are not known here", unknown);
		return RDMA_REFUSE_CAPABILITY;
	}
	wrong = out_of_range(h);
	return wrong ? refuse(RDMA_REFUSE_OTHER, -EPROTO, why, wrong) : RDMA_OK;
}

bool rdma_request_same_set(const struct rdma_hello *a, const struct rdma_hello *b)
{
	return a->lanes.be == b->lanes.be && a->capabilities.be == b->capabilities.be &&
	       a->credits.be == b->credits.be && a->chunk_shift == b->chunk_shift &&
	       a->pin_budget.be == b->pin_budget.be;
}

/* May the other side have made @agreed of what was @asked for? */
static bool may_agree(uint32_t agreed, uint32_t asked)
{
	return (agreed & ~asked) == 0 && agreed == one_way(agreed);
}

static int take(struct rdma_limits *l, const struct rdma_limits *asked, const struct rdma_hello *h, bool first,
		struct ft_error *err)
{
	struct rdma_limits got = *asked;

	got.lanes = from_be16(h->lanes);
	got.capabilities = from_be32(h->capabilities);
	got.chunk_shift = h->chunk_shift;
	got.credits_peers = from_be16(h->credits);
	got.pin_budget_peers = from_be64(h->pin_budget);
	if (!first &&
	    (got.lanes != l->lanes || got.capabilities != l->capabilities || got.chunk_shift != l->chunk_shift ||
	     got.credits_peers != l->credits_peers || got.pin_budget_peers != l->pin_budget_peers))
		return err_set(err, -EPROTO, "the acceptances of lane %u and of those before differ",
			       from_be16(h->lane));
	*l = got;
	return 0;
}

int rdma_acceptance_take(struct rdma_limits *l, const struct rdma_limits *asked, const uint8_t token[16], uint32_t lane,
			 bool first, const void *data, size_t len, struct ft_error *err)
{
	struct rdma_hello h = { .status = { 0 } };
	const char *wrong = NULL;
	uint32_t lanes;

	if (len >= sizeof(h))
		memcpy(&h, data, sizeof(h));
	if (from_be64(h.magic) != RDMA_MAGIC)
		return err_set(err, -EPROTO, "what answers there is not ft");
	if (from_be16(h.version) != RDMA_VERSION)
		return err_set(err, -EPROTONOSUPPORT, "the peer speaks version %u of the transport, we speak %u",
			       from_be16(h.version), RDMA_VERSION);
	lanes = from_be16(h.lanes);
	if (memcmp(h.token, token, sizeof(h.token)) != 0 || from_be16(h.lane) != lane)
		wrong = "it is not of this request";
	else if (lanes < 2 || lanes > asked->lanes || lane >= lanes)
		wrong = "lanes are out of range";
	else if (!may_agree(from_be32(h.capabilities), asked->capabilities))
		wrong = "its capabilities were not offered";
	else if (h.chunk_shift > asked->chunk_shift)
		wrong = "its chunks are larger than ours";
	else
		wrong = out_of_range(&h);
	if (wrong)
		return err_set(err, -EPROTO, "the acceptance of lane %u is not in order: %s", lane, wrong);
	return take(l, asked, &h, first, err);
}

void rdma_refusal_fill(struct rdma_refusal *r, enum rdma_status status, const char *text)
{
	size_t len = strnlen(text, sizeof(r->text));

	memset(r, 0, sizeof(*r));
	r->magic = to_be64(RDMA_MAGIC);
	r->version = to_be16(RDMA_VERSION);
	r->status = to_be16((uint16_t)status);
	r->lanes = to_be16(TP_LANES_MAX);
	r->len = (uint8_t)len;
	memcpy(r->text, text, len);
}

static int code_of(enum rdma_status status)
{
	switch (status) {
	case RDMA_REFUSE_VERSION:
	case RDMA_REFUSE_CAPABILITY:
		return -EPROTONOSUPPORT;
	case RDMA_REFUSE_LIMIT:
		return -ENOBUFS;
	case RDMA_OK:
	case RDMA_REFUSE_LANES:
	case RDMA_REFUSE_SURPLUS:
	case RDMA_REFUSE_OTHER:
		break;
	}
	return -EPROTO;
}

/* A later version may have more reasons than we know. */
static enum rdma_status status_of(const struct rdma_refusal *r)
{
	uint16_t status = from_be16(r->status);

	if (from_be16(r->version) != RDMA_VERSION)
		return RDMA_REFUSE_VERSION;
	return status > RDMA_OK && status < RDMA_REFUSE_OTHER ? (enum rdma_status)status : RDMA_REFUSE_OTHER;
}

enum rdma_status rdma_refusal_read(const void *data, size_t len, struct ft_error *why)
{
	struct rdma_refusal r;
	char text[sizeof(r.text) + 1];
	enum rdma_status status;
	size_t n;

	if (len < sizeof(r))
		return RDMA_OK;
	memcpy(&r, data, sizeof(r));
	if (from_be64(r.magic) != RDMA_MAGIC)
		return RDMA_OK;
	status = status_of(&r);
	n = r.len < sizeof(r.text) ? r.len : sizeof(r.text);
	for (size_t i = 0; i < n; i++)
		text[i] = r.text[i] >= ' ' && r.text[i] <= '~' ? r.text[i] : '?';
	text[n] = '\0';
	if (from_be16(r.version) != RDMA_VERSION)
		err_set(why, code_of(status), "the peer speaks version %u of the transport, we speak %u",
			from_be16(r.version), RDMA_VERSION);
	else
		err_set(why, code_of(status), "the peer refuses the connection: %s", n ? text : "it gives no reason");
	return status;
}
