/* SPDX-License-Identifier: MIT */
/* raw.h - one side of the protocol, record by record, for tests that say the wrong thing or the right one at the wrong time.
 * The machine is one region "ram" of RAW_PAGES pages with an empty identity.  One thread at a time.  Whatever fails in here
 * that a test did not ask for ends the program. */
#ifndef TEST_RAW_H
#define TEST_RAW_H

#include <ft/ft.h>
#include "link.h"

#define RAW_PAGES 8192u
#define RAW_BYTES ((uint64_t)RAW_PAGES * FT_PAGE_SIZE)
#define RAW_SLOTS ((uint64_t)FTW_RING_SLOTS_MIN) /* of our own ring, as a secondary */

struct raw {
	struct link *link;
	uint32_t lanes; /* data lanes */
	bool slab;	/* placement: of pair_common_settings(), else mirror; may be changed behind raw_connect() or raw_accept() */
	uint64_t offered;  /* capabilities: of our hello as a primary, in use of our hello-ack as a secondary */
	uint64_t position; /* in the ring, of the next page that raw_pages() writes */
	struct room room;  /* the last that came */
	uint64_t told_end; /* behind the last position of which we were told */
	/* of the epoch under way, for its commit */
	uint64_t nr_data, nr_zero, state_bytes, digest;
};

void raw_connect(struct raw *r, const char *uri, uint32_t data_lanes);
struct tp_listener *raw_listen(char *uri, size_t size);
void raw_accept(struct raw *r, struct tp_listener *l);
void raw_close(struct raw *r);

/* raw_send - a record that create_X made in the buffer of link_begin(): false if the peer has ended the connection. */
bool raw_send(struct raw *r, uint32_t lane, size_t len);
/* raw_receive - the next record that is no heartbeat; false: the connection is over, or nothing came within @timeout_ms.
 * Of refuse, bye and error the text is put into @text (may be NULL; FTW_REASON_MAX + 1 octets).  The first room is taken with its hello-ack. */
bool raw_receive(struct raw *r, struct record_head *head, char *text, uint32_t timeout_ms);
void raw_expect(struct raw *r, uint32_t type, uint64_t epoch);

/* -- as a primary -- */
bool raw_hello(struct raw *r, uint8_t session, uint32_t heartbeat_ms, uint32_t heartbeat_misses);
bool raw_regions(struct raw *r);
void raw_greet(struct raw *r, uint8_t session); /* both, and the hello-ack */
/* raw_base - behind the greeting with FTW_CAP_RESYNC offered: the epoch that base-ack says. */
uint64_t raw_base(struct raw *r, uint64_t connection, uint64_t base, uint64_t epoch);
/* Pages [@first, @first + @nr), all octets @fill, as data or (fill 0) told as zeros. */
bool raw_pages(struct raw *r, uint32_t lane, uint64_t epoch, uint64_t first, uint32_t nr, uint8_t fill);
/* raw_slab - the same at @position of the ring, wherever that is, and whatever the placement. */
bool raw_slab(struct raw *r, uint32_t lane, uint64_t epoch, uint64_t position, uint64_t first, uint32_t nr, uint8_t fill);
bool raw_state(struct raw *r, uint64_t epoch, const void *buf, uint32_t len);
bool raw_commit(struct raw *r, uint64_t epoch);
/* One whole epoch, up to applied: page 1 holds @fill. */
void raw_epoch(struct raw *r, uint64_t epoch, uint8_t fill);

/* -- as a secondary -- */
void raw_expect_hello(struct raw *r);
/* @ack NULL: a good one, of the placement, with slab for two epochs and with the first room behind it.  Else there is no room. */
bool raw_hello_ack(struct raw *r, const struct hello_ack *ack);
void raw_hello_ack_with(struct raw *r, uint32_t heartbeat_ms, uint32_t heartbeat_misses); /* a good one, but for that */
bool raw_room(struct raw *r, uint64_t slots, uint64_t freed);
bool raw_mark(struct raw *r, uint32_t type, uint64_t epoch);
/* raw_await_commit - read records until a commit comes; its epoch. */
uint64_t raw_await_commit(struct raw *r);

/* -- a machine without anything in it, for a session -- */
struct raw_vm {
	uint8_t *memory;
	struct ft_session *session;
	char address[128];
	/* written by callbacks */
	atomic_int paused; /* pauses less resumes */
	atomic_uint pauses, loads, activations;
	atomic_uint_fast64_t released; /* the newest epoch, UINT64_MAX: all */
	atomic_uint identity_delay_ms;
	atomic_uint identity_checks;
	atomic_uint_fast64_t estimate; /* what estimate_dirty says */
};
void raw_vm_secondary(struct raw_vm *vm, const char *settings);
void raw_vm_primary(struct raw_vm *vm, const char *uri, const char *settings); /* placement as raw.slab, if @settings do not say otherwise */
void raw_vm_primary_filled(struct raw_vm *vm, const char *uri, const char *settings, uint8_t fill); /* all its memory is @fill */
void raw_vm_close(struct raw_vm *vm);

#endif
