/* SPDX-License-Identifier: MIT */
/* summary.c - the figures of a stream.  Times are those of the side that recorded, so commit -> ack holds the way to
 * the other side and back on a primary, and nothing but the secondary's own work on a secondary. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "hist.h"
#include "words.h"

static struct {
	uint64_t connections, messages, writes, damaged, heartbeats;
	uint64_t message_bytes, write_bytes;
	uint64_t committed, acked, applied, data_pages, zero_pages, state_bytes;
	uint32_t commit_connection; /* of the last commit; only one connection at a time has epochs */
	uint64_t commit_before_ns;  /* of the last commit in this connection, 0 none */
	struct {
		uint64_t epoch, ns;
	} commit[FTW_EPOCH_CREDITS_MAX]; /* of this connection: not more may be without their applied */
} total;
static struct hist to_ack, to_applied, to_commit;
static bool ready;

static void begin(void)
{
	if (ready)
		return;
	hist_init(&to_ack);
	hist_init(&to_applied);
	hist_init(&to_commit);
	ready = true;
}

void summary_add_open(void)
{
	total.connections++;
}

void summary_add_damaged(void)
{
	total.damaged++;
}

void summary_add_write(const struct recording_entry *e)
{
	total.writes++;
	total.write_bytes += e->write_bytes;
}

static void add_commit(const struct recording_entry *e, uint64_t epoch, const struct commit *c)
{
	total.committed++;
	total.data_pages += c->nr_data_pages;
	total.zero_pages += c->nr_zero_pages;
	total.state_bytes += c->state_bytes;
	if (total.commit_connection != e->connection) {
		total.commit_before_ns = 0;
		memset(total.commit, 0, sizeof(total.commit));
	}
	total.commit_connection = e->connection;
	if (total.commit_before_ns)
		hist_add(&to_commit, e->time_ns - total.commit_before_ns);
	total.commit[epoch % FTW_EPOCH_CREDITS_MAX].epoch = epoch;
	total.commit[epoch % FTW_EPOCH_CREDITS_MAX].ns = total.commit_before_ns = e->time_ns;
}

/* add_answer - an ack or applied, if its commit was seen. */
static void add_answer(struct hist *h, const struct recording_entry *e, uint64_t epoch)
{
	const uint64_t i = epoch % FTW_EPOCH_CREDITS_MAX;

	if (total.commit[i].epoch == epoch && total.commit_connection == e->connection)
		hist_add(h, e->time_ns - total.commit[i].ns);
}

void summary_add_message(const struct recording_entry *e, const struct record *r)
{
	const struct record_head *head = &r->head;

	begin();
	total.messages++;
	total.message_bytes += e->payload_bytes;
	if (head->type == FTW_HEARTBEAT)
		total.heartbeats++;
	if (head->type == FTW_COMMIT)
		add_commit(e, head->epoch, &r->commit);
	if (head->type == FTW_ACK) {
		total.acked++;
		add_answer(&to_ack, e, head->epoch);
	}
	if (head->type == FTW_APPLIED) {
		total.applied++;
		add_answer(&to_applied, e, head->epoch);
	}
}

static void print_times(struct line *l, const char *words, const char *name, const struct hist *h)
{
	struct ft_dist d;
	char field[64];

	hist_read(h, &d);
	if (l->json) {
		snprintf(field, sizeof(field), "%s-count", name);
		line_only_json(l, field, d.count);
		snprintf(field, sizeof(field), "%s-p50-ns", name);
		line_only_json(l, field, d.p50);
		snprintf(field, sizeof(field), "%s-p99-ns", name);
		line_only_json(l, field, d.p99);
		snprintf(field, sizeof(field), "%s-max-ns", name);
		line_only_json(l, field, d.max);
	} else if (d.count) {
		printf("  %-18s %" PRIu64 " times: p50 %.3f ms, p99 %.3f ms, max %.3f ms\n", words, d.count,
		       (double)d.p50 / 1e6, (double)d.p99 / 1e6, (double)d.max / 1e6);
	}
}

void summary_print(bool json)
{
	struct line l = line_begin(json);

	begin();
	line_text(&l, "summary\n  %-18s", "stream");
	line_u64(&l, "connections", total.connections);
	line_u64(&l, "records", total.messages);
	line_u64(&l, "heartbeats", total.heartbeats);
	line_u64(&l, "writes", total.writes);
	line_u64(&l, "damaged", total.damaged);
	line_text(&l, "\n  %-18s", "epochs");
	line_u64(&l, "committed", total.committed);
	line_u64(&l, "acked", total.acked);
	line_u64(&l, "applied", total.applied);
	line_text(&l, "\n  %-18s", "pages");
	line_u64(&l, "data-pages", total.data_pages);
	line_u64(&l, "zero-pages", total.zero_pages);
	line_text(&l, "\n  %-18s", "octets");
	line_u64(&l, "record-bytes", total.message_bytes);
	line_u64(&l, "write-bytes", total.write_bytes);
	line_u64(&l, "state-bytes", total.state_bytes);
	line_text(&l, "\n");
	print_times(&l, "commit to commit", "commit", &to_commit);
	print_times(&l, "commit to ack", "ack", &to_ack);
	print_times(&l, "commit to applied", "applied", &to_applied);
	if (json)
		line_end(&l);
}
