/* SPDX-License-Identifier: MIT */
/* main.c - ftdump: words for a recorded stream (docs/man/ftdump.1.scd).
 * The file is read by checkpoint/recording.c and each record by checkpoint/codec.c: what ftdump cannot read, the
 * other side of a connection could not have read either. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "cli.h"
#include "words.h"

enum { EXIT_DAMAGED = 1 };

struct args {
	bool json, no_data, summary, records, one_epoch;
	uint64_t epoch;
};

struct connection {
	uint32_t number;
	uint64_t nr_pages;        /* from its hello */
	uint64_t epoch_committed; /* its last commit: writes belong to the epoch behind it, or a later one */
};

/* What is carried from entry to entry. */
struct dump {
	const struct args *args;
	uint64_t start_ns;
	bool started;
	int status;
	struct connection connection[16]; /* those with the latest numbers, each at its number's remainder */
};

static struct connection *connection_of(struct dump *d, const struct recording_entry *e)
{
	struct connection *c = &d->connection[e->connection % (sizeof(d->connection) / sizeof(d->connection[0]))];

	if (c->number != e->connection)
		*c = (struct connection){ .number = e->connection, .nr_pages = FTW_PAGES_MAX };
	return c;
}

static const char *direction_name(uint32_t direction)
{
	return direction == RECORDING_SENT ? "->" : direction == RECORDING_RECEIVED ? "<-" : "--";
}

static struct line begin(struct dump *d, const struct recording_entry *e)
{
	struct line l = line_begin(d->args->json);

	if (!d->started) {
		d->start_ns = e->time_ns;
		d->started = true;
	}
	if (l.json) {
		line_only_json(&l, "time-ns", e->time_ns);
		line_only_json(&l, "connection", e->connection);
		line_string(&l, "direction",
			    e->direction == RECORDING_SENT       ? "sent"
			    : e->direction == RECORDING_RECEIVED ? "received"
								 : "none");
		line_only_json(&l, "lane", e->lane);
	} else {
		printf("%13.6f %" PRIu32 " %s %" PRIu32, (double)(int64_t)(e->time_ns - d->start_ns) / 1e9,
		       e->connection, direction_name(e->direction), e->lane);
	}
	return l;
}

/* head - columns seq, epoch, name. */
static void head(struct line *l, const char *seq, uint64_t seq_value, const char *epoch, uint64_t epoch_value,
		 const char *name)
{
	line_only_json(l, "seq", seq_value);
	line_only_json(l, "epoch", epoch_value);
	if (l->json) {
		line_string(l, "name", name);
	} else {
		printf(" %7s %7s ", seq, epoch);
		line_column(l, name, 13);
	}
}

static bool wanted(const struct dump *d, uint64_t epoch)
{
	return !d->args->summary && (!d->args->one_epoch || d->args->epoch == epoch);
}

static void dump_write(struct dump *d, const struct recording_entry *e)
{
	const uint64_t epoch = connection_of(d, e)->epoch_committed + 1;
	char text[24];
	struct line l;

	summary_add_write(e);
	if (!wanted(d, epoch) || d->args->no_data)
		return;
	l = begin(d, e);
	snprintf(text, sizeof(text), "%" PRIu64, epoch);
	head(&l, "-", 0, text, epoch, "write");
	line_u64(&l, "window", e->window);
	line_u64(&l, e->window == FTW_WINDOW_RING ? "slot" : "page", e->offset / FTW_PAGE_BYTES);
	line_u64(&l, "pages", e->write_bytes / FTW_PAGE_BYTES);
	if (e->offset % FTW_PAGE_BYTES || e->write_bytes % FTW_PAGE_BYTES) {
		line_u64(&l, "offset", e->offset);
		line_u64(&l, "octets", e->write_bytes);
	}
	line_end(&l);
}

static void dump_mark(struct dump *d, const struct recording_entry *e)
{
	struct line l;

	if (e->kind == RECORDING_OPEN)
		summary_add_open();
	if (!wanted(d, 0))
		return;
	l = begin(d, e);
	head(&l, "-", 0, "-", 0, e->kind == RECORDING_OPEN ? "open" : "close");
	line_octets(&l, "text", text_printable(e->payload, e->payload_bytes) ? (const char *)e->payload : "",
		    e->payload_bytes);
	line_end(&l);
}

/* damaged - a record that the codec refuses: the stream goes on behind it, the exit status tells. */
static void damaged(struct dump *d, const struct recording_entry *e, const struct ft_error *err)
{
	struct line l;

	d->status = EXIT_DAMAGED;
	summary_add_damaged();
	if (d->args->summary) {
		cli_error("%s", err->msg);
		return;
	}
	l = begin(d, e);
	head(&l, "-", 0, "-", 0, "damaged");
	line_octets(&l, "reason", err->msg, strlen(err->msg));
	line_end(&l);
}

/* follow - what later lines need to know of this record. */
static void follow(struct connection *c, const struct record *r)
{
	if (r->head.type == FTW_HELLO)
		c->nr_pages = r->hello.nr_pages;
	if (r->head.type == FTW_COMMIT)
		c->epoch_committed = r->head.epoch;
}

static void dump_message(struct dump *d, const struct recording_entry *e)
{
	static struct record r; /* too large for a stack */
	struct connection *c = connection_of(d, e);
	char seq[16], epoch[24], name[24];
	struct ft_error err = { 0 };
	struct line l;

	if (record_decode(e->payload, e->payload_bytes, c->nr_pages, &r, &err)) {
		damaged(d, e, &err);
		return;
	}
	follow(c, &r);
	summary_add_message(e, &r);
	if (!wanted(d, r.head.epoch))
		return;
	l = begin(d, e);
	snprintf(seq, sizeof(seq), "%" PRIu32, r.head.seq);
	snprintf(epoch, sizeof(epoch), "%" PRIu64, r.head.epoch);
	head(&l, seq, r.head.seq, r.head.epoch ? epoch : "-", r.head.epoch, record_name(r.head.type, name));
	record_fields(&l, &r, !d->args->no_data);
	line_end(&l);
}

static int dump_file(struct dump *d, const char *path)
{
	struct recording_reader *reader;
	struct recording_entry e;
	struct ft_error err;
	int rc = recording_open(&reader, path, &err);

	if (rc) {
		cli_error("%s", err.msg);
		return EXIT_DAMAGED;
	}
	while ((rc = recording_next(reader, &e, &err)) > 0) {
		if (e.kind == RECORDING_MESSAGE)
			dump_message(d, &e);
		else if (e.kind == RECORDING_WRITE)
			dump_write(d, &e);
		else
			dump_mark(d, &e);
	}
	recording_reader_close(reader);
	summary_print(d->args->json);
	fflush(stdout);
	if (rc < 0) {
		cli_error("%s", err.msg);
		d->status = EXIT_DAMAGED;
	}
	return d->status;
}

static void print_types(void)
{
	size_t n;
	const struct record_type *t = record_types(&n);

	printf("%-14s %-10s %10s %10s  %-7s %-10s %s\n", "record", "type", "body min", "body max", "epoch", "from",
	       "lane");
	for (size_t i = 0; i < n; i++)
		printf("%-14s 0x%08" PRIx32 " %10" PRIu32 " %10" PRIu32 "  %-7s %-10s %s\n", t[i].name, t[i].type,
		       t[i].body_min, t[i].body_max,
		       t[i].epoch == RECORD_EPOCH_NONE   ? "0"
		       : t[i].epoch == RECORD_EPOCH_MUST ? "yes"
							 : "or 0",
		       t[i].from, t[i].lane);
}

static int run(void *user, int argc, char **argv)
{
	const struct args *args = user;
	struct dump d = { .args = args };

	if (args->records) {
		print_types();
		return 0;
	}
	if (argc != 1) {
		cli_error("one FILE is needed, or - for standard input; see --help");
		return CLI_USAGE;
	}
	return dump_file(&d, strcmp(argv[0], "-") == 0 ? "/dev/stdin" : argv[0]);
}

static int set_epoch(void *user, const struct cli_option *opt, const char *value, struct ft_error *err)
{
	struct args *args = user;

	args->one_epoch = true;
	return cli_set_u64(user, opt, value, err);
}

static const struct cli_option options[] = {
	CLI_FLAG(struct args, json, "json", 'j', "one JSON object a line"),
	CLI_OPT(struct args, epoch, "epoch", 'e', "N", "only records and writes of epoch N (0: those of none)",
		set_epoch),
	CLI_FLAG(struct args, no_data, "no-data", 'n', "no writes, no lists of pages"),
	CLI_FLAG(struct args, summary, "summary", 's', "only the figures of the whole stream"),
	CLI_FLAG(struct args, records, "records", 0, "print the record types of the protocol, read no file"),
	CLI_END
};

static const struct cli_command commands[] = { { .args = "FILE",
						 .help = "words for a recorded stream",
						 .options = options,
						 .min_args = 0,
						 .max_args = 1,
						 .run = run },
					       { 0 } };

static const struct cli_program program = {
	.name = "ftdump",
	.help = "words for a recorded stream (option \"record\" of ftqemu)",
	.more = "FILE is - for standard input.  Exit status: 0 the stream is whole, 1 it is damaged, 2 usage.",
	.commands = commands,
};

int main(int argc, char **argv)
{
	struct args args = { 0 };

	return cli_main(&program, argc, argv, &args);
}
