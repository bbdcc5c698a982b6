/* SPDX-License-Identifier: MIT */
/* words.h - a record of a stream as a line, and the figures of a whole stream.  One thread. */
#ifndef FTDUMP_WORDS_H
#define FTDUMP_WORDS_H

#include <stdbool.h>
#include "codec.h"
#include "fields.h"
#include "recording.h"

/* A record, decoded. */
struct record {
	struct record_head head;
	union {
		struct hello hello;
		struct hello_ack hello_ack;
		struct {
			uint32_t count;
			struct region_entry entry[FTW_REGIONS_MAX];
		} regions;
		struct runs runs;
		struct slab_runs slab_runs;
		struct deltas deltas;
		struct page_checks checks;
		struct base base;
		uint64_t base_epoch;
		struct room room;
		struct device_state state;
		struct side_data side;
		struct commit commit;
		struct reason reason;
		struct heartbeat heartbeat;
		struct sync_progress progress;
	};
};

/* record_decode - head and body; 0, or -EPROTO with the codec's sentence.  @nr_pages: of the page space.  A type that
 * the codec does not know has a head only. */
int record_decode(const void *msg, size_t len, uint64_t nr_pages, struct record *out, struct ft_error *err);
/* record_fields - the fields of the body.  @runs: list pages. */
void record_fields(struct line *l, const struct record *r, bool runs);

/* summary_add_* - called for each entry in the order of the file; summary_print at the end. */
void summary_add_message(const struct recording_entry *e, const struct record *r);
void summary_add_write(const struct recording_entry *e);
void summary_add_open(void);
void summary_add_damaged(void);
void summary_print(bool json);

#endif
