/* SPDX-License-Identifier: MIT */
/* link.c - see link.h. */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "faultpoint.h"

#define STOP_SLICE_MS 50 /* how often a greeting looks whether the session is to end */

_Static_assert((int)FT_RDMA_CHUNKS == TP_REGISTER_CHUNKS && (int)FT_RDMA_WHOLE == TP_REGISTER_WHOLE &&
		       (int)FT_RDMA_ODP == TP_REGISTER_ODP && (int)FT_TLS_OFF == TP_TLS_OFF &&
		       (int)FT_TLS_X509 == TP_TLS_X509 && (int)FT_TLS_PSK == TP_TLS_PSK,
	       "the transport's numbers are those of ft.h");

struct tp_params link_params(const struct ft_config *cfg, uint32_t lanes)
{
	return (struct tp_params){
		.lanes = lanes,
		.credits = cfg->credits,
		.registration = (enum tp_registration)cfg->rdma_registration,
		.chunk_bytes = (uint32_t)cfg->rdma_chunk,
		.pin_budget = cfg->rdma_pin_budget,
		.signal_every = cfg->rdma_signal_every,
		.sq_depth = cfg->rdma_queue_depth,
		.ack_timeout = cfg->rdma_ack_timeout,
		.retry_count = cfg->rdma_retries,
		.tls = (enum tp_tls)cfg->tls,
		.tls_dir = cfg->tls_dir,
		.tls_psk_user = cfg->tls_psk_user,
		.tls_peer = cfg->tls_peer,
	};
}

int link_create(struct link **out, struct tp_conn *conn, struct recording *recording, struct ft_error *err)
{
	struct link *l = FT_FAULT("link/create") ? NULL : calloc(1, sizeof(*l));

	*out = NULL;
	if (l) {
		l->conn = conn;
		l->recording = recording;
		l->lanes = tp_lanes(conn);
		l->in = FT_FAULT("link/buffer") ? NULL : malloc(TP_MESSAGE_MAX);
		l->lane = calloc(l->lanes, sizeof(*l->lane));
	}
	if (!l || !l->in || !l->lane) {
		if (l) {
			free(l->in);
			free(l->lane);
		}
		free(l);
		tp_close(conn);
		return err_set(err, -ENOMEM, "no memory for a connection");
	}
	for (uint32_t i = 0; i < l->lanes; i++)
		pthread_mutex_init(&l->lane[i].lock, NULL);
	/* A side that has consumed all tells at least half of its window; the other half is room for ack, applied and a last word. */
	l->reserve = tp_credits(conn, 0) / 2;
	l->connection = recording_begin(recording, tp_peer(conn));
	*out = l;
	return 0;
}

void link_destroy(struct link *l)
{
	if (!l)
		return;
	tp_close(l->conn);
	recording_end(l->recording, l->connection, "");
	for (uint32_t i = 0; i < l->lanes; i++)
		pthread_mutex_destroy(&l->lane[i].lock);
	free(l->lane);
	free(l->in);
	free(l);
}

static void count(struct stats *stats, enum ft_counter c, uint64_t *counted, uint64_t now)
{
	stats_count(stats, c, now - *counted);
	*counted = now;
}

void link_count(struct link *l, struct stats *stats)
{
	struct tp_stats st;

	tp_stats(l->conn, &st);
	count(stats, FT_COUNTER_BYTES_SENT, &l->counted_out, st.bytes_sent);
	count(stats, FT_COUNTER_BYTES_RECEIVED, &l->counted_in, st.bytes_received);
	count(stats, FT_COUNTER_DUPLICATES, &l->counted_twice, atomic_load(&l->duplicates));
}

void link_status(struct link *l, struct ft_status *out)
{
	struct tp_info info;

	tp_info(l->conn, &info);
	snprintf(out->transport, sizeof(out->transport), "%s", tp_name(l->conn));
	snprintf(out->rdma_device, sizeof(out->rdma_device), "%s", info.device);
	snprintf(out->rdma_gid, sizeof(out->rdma_gid), "%s", info.gid);
	snprintf(out->rdma_registration, sizeof(out->rdma_registration), "%s", info.registration);
	out->rdma_port = info.port;
	out->rdma_mtu = info.mtu;
	out->rdma_lanes = info.lanes ? info.lanes - 1 : 0;
	out->rdma_credits = info.credits;
	out->rdma_chunk_bytes = info.chunk_bytes;
	out->rdma_pinned_bytes = info.pinned_bytes;
	out->rdma_pin_budget = info.pin_budget;
	out->rdma_peer_pinned_bytes = info.peer_pinned_bytes;
	out->rdma_peer_pin_budget = info.peer_pin_budget;
	out->rdma_registrations = info.registrations;
	out->rdma_deregistrations = info.deregistrations;
	out->rdma_unpins = info.unpins;
}

void *link_begin(struct link *l, uint32_t lane, uint32_t *seq)
{
	struct link_lane *n = &l->lane[lane];

	pthread_mutex_lock(&n->lock);
	*seq = n->sent + 1;
	return n->buf;
}

int link_end(struct link *l, uint32_t lane, size_t len, uint64_t deadline, struct ft_error *err)
{
	struct link_lane *n = &l->lane[lane];
	struct iovec iov = { .iov_base = n->buf, .iov_len = len };
	int r;

	if (n->over) {
		pthread_mutex_unlock(&n->lock);
		return err_set(err, -ESHUTDOWN, "the last word was sent");
	}
	/* before it is sent: the answer may be received before tp_send() is back, and must stand behind it.  Of those that could not be sent, which
	 * all have the same number, only the first */
	if (!n->failed)
		recording_message(l->recording, l->connection, RECORDING_SENT, lane, n->buf, len);
	r = tp_send(l->conn, lane, &iov, 1, deadline, err);
	if (n->failed && r == 0)
		recording_message(l->recording, l->connection, RECORDING_SENT, lane, n->buf, len);
	n->failed = r != 0;
	if (r == 0)
		n->sent++;
	pthread_mutex_unlock(&n->lock);
	return r;
}

void link_drop(struct link *l, uint32_t lane)
{
	pthread_mutex_unlock(&l->lane[lane].lock);
}

uint32_t link_sent(struct link *l, uint32_t lane)
{
	struct link_lane *n = &l->lane[lane];
	uint32_t sent;

	pthread_mutex_lock(&n->lock);
	sent = n->sent;
	pthread_mutex_unlock(&n->lock);
	return sent;
}

int link_write(struct link *l, uint32_t lane, uint32_t window, uint64_t offset, const struct iovec *iov,
	       unsigned nr_iov, uint64_t *ticket, uint64_t deadline, struct ft_error *err)
{
	recording_write(l->recording, l->connection, RECORDING_SENT, lane, window, offset, iov, nr_iov);
	return tp_write(l->conn, lane, window, offset, iov, nr_iov, ticket, deadline, err);
}

/* Nothing could be sent for so long that a reason, if there was one, was heard. */
static bool heard_out(struct link *l)
{
	uint64_t since = atomic_load(&l->cut_off_ns);

	return since && now_ns() >= since + LINK_HEAR_MS * NS_PER_MS;
}

bool link_hear_first(struct link *l, int r)
{
	uint64_t never = 0;

	if (r != -EPIPE && r != -ECONNRESET)
		return false;
	atomic_compare_exchange_strong(&l->cut_off_ns, &never, now_ns());
	return !heard_out(l);
}

/* -EALREADY: a repetition, to be dropped. */
static int check_seq(struct link *l, uint32_t lane, const struct record_head *head, struct ft_error *err)
{
	struct link_lane *n = &l->lane[lane];
	char name[24];

	if ((int32_t)(head->seq - n->received) <= 0) { /* the numbers wrap */
		atomic_fetch_add_explicit(&l->duplicates, 1, memory_order_relaxed);
		return -EALREADY;
	}
	if (head->seq != n->received + 1)
		return err_set(err, -EPROTO,
			       "%s of epoch %llu on lane %u has number %u, expected %u: records were lost",
			       record_name(head->type, name), (unsigned long long)head->epoch, lane, head->seq,
			       n->received + 1);
	n->received = head->seq;
	return 0;
}

int link_receive(struct link *l, uint32_t *lane, struct record_head *head, struct cursor *body, const void **msg,
		 size_t *len, uint64_t deadline, struct ft_error *err)
{
	int r;

	do {
		r = tp_recv(l->conn, l->in, TP_MESSAGE_MAX, lane, len, deadline, err);
		if (r == 0) {
			recording_message(l->recording, l->connection, RECORDING_RECEIVED, *lane, l->in, *len);
			r = consume_head(l->in, *len, head, body, err);
		}
		if (r == 0)
			r = check_seq(l, *lane, head, err);
	} while (r == -EALREADY);
	*msg = l->in;
	return r;
}

int link_receive_greeting(struct link *l, int stop_fd, uint32_t *lane, struct record_head *head, struct cursor *body,
			  uint64_t deadline, struct ft_error *err)
{
	struct pollfd stop = { .fd = stop_fd, .events = POLLIN };
	const void *msg;
	size_t len;

	for (;;) {
		uint64_t slice = deadline_in_ms(STOP_SLICE_MS);
		int r = link_receive(l, lane, head, body, &msg, &len, slice < deadline ? slice : deadline, err);

		if (r != -ETIMEDOUT || now_ns() >= deadline)
			return r;
		if (poll(&stop, 1, 0) > 0)
			return err_set(err, -ECANCELED, "stopped");
		err_clear(err);
	}
}

/* Lane 0's buffer, or NULL if what is to be sent is to be left out. */
static void *begin_spare(struct link *l, uint32_t *seq)
{
	struct link_lane *n = &l->lane[0];

	if (pthread_mutex_trylock(&n->lock))
		return NULL;
	*seq = n->sent + 1;
	if (!n->over && tp_credits(l->conn, 0) > l->reserve)
		return n->buf;
	pthread_mutex_unlock(&n->lock);
	return NULL;
}

int link_send_heartbeat(struct link *l, uint64_t echo_ns, uint64_t deadline, struct ft_error *err)
{
	struct heartbeat h = { .time_ns = now_ns(), .echo_ns = echo_ns };
	uint32_t seq;
	void *buf;

	if (heard_out(l))
		return err_set(err, -EPIPE, "the peer has closed, and does not say why");
	buf = begin_spare(l, &seq);
	return buf ? link_end(l, 0, create_heartbeat(buf, seq, &h), deadline, err) : -EAGAIN;
}

int link_send_working(struct link *l, uint64_t epoch, uint64_t deadline, struct ft_error *err)
{
	uint32_t seq;
	void *buf = begin_spare(l, &seq);

	return buf ? link_end(l, 0, create_epoch_mark(buf, FTW_WORKING, epoch, seq), deadline, err) : -EAGAIN;
}

int link_send_room(struct link *l, const struct room *room, uint64_t deadline, struct ft_error *err)
{
	uint32_t seq;
	void *buf = begin_spare(l, &seq);

	return buf ? link_end(l, 0, create_room(buf, seq, room), deadline, err) : -EAGAIN;
}

int link_send_first_room(struct link *l, const struct room *room, uint64_t deadline, struct ft_error *err)
{
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);

	return link_end(l, 0, create_room(buf, seq, room), deadline, err);
}

int link_send_progress(struct link *l, uint64_t epoch, const struct sync_progress *p, uint64_t deadline,
		       struct ft_error *err)
{
	uint32_t seq;
	void *buf = begin_spare(l, &seq);

	return buf ? link_end(l, 0, create_sync_progress(buf, epoch, seq, p), deadline, err) : -EAGAIN;
}

int link_send_mark(struct link *l, uint32_t type, uint64_t epoch, uint64_t deadline, struct ft_error *err)
{
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);

	return link_end(l, 0, create_epoch_mark(buf, type, epoch, seq), deadline, err);
}

int link_send_reason(struct link *l, uint32_t type, uint32_t code, const char *text, uint64_t deadline)
{
	struct link_lane *n = &l->lane[0];
	uint32_t seq;
	void *buf = link_begin(l, 0, &seq);
	struct iovec iov = { .iov_base = buf };
	int r = -ESHUTDOWN;

	if (!n->over) {
		iov.iov_len = create_reason(buf, type, 0, seq, code, text);
		recording_message(l->recording, l->connection, RECORDING_SENT, 0, buf, iov.iov_len);
		r = tp_send(l->conn, 0, &iov, 1, deadline, NULL);
	}
	n->over = true;
	n->sent += r == 0;
	pthread_mutex_unlock(&n->lock);
	return r;
}
