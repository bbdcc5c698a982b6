/* SPDX-License-Identifier: MIT */
/* duo.h - a connection of the transport with both its ends in one process, over each kind of transport; for the criterion tests of transport.h.
 * rdma runs over the made-up fabric of fabric_fake.h: at once, and by lot.
 * Where a test needs two sides it plays both, with a thread for the side that waits.  Deadlines are generous: a loaded machine must not
 * fail a test; where something has to end at once, the test only fails if it did not end long before its deadline.
 * One thread at a time, but for what says otherwise.  What fails in here that a test did not ask for ends the program, which is the test. */
#ifndef TEST_DUO_H
#define TEST_DUO_H

#include <stdint.h>
#include <ft/error.h>
#include "clock.h"
#include "transport.h"

#define LONG_MS 30000u
#define LANES 3u
#define WINDOW_BYTES (8u << 20)

struct kind {
	char wrap[48]; /* "fault(...)/" or "" */
	char listen[32];
	enum { NO_RDMA, AT_ONCE, BY_LOT } rdma;
	enum tp_tls tls; /* with a folder that duo_listen() makes */
};
extern const struct kind duo_kinds[]; /* in the order of EACH_KIND() */

/* The same test over each; plain tests, since criterion leaks its arrays of parameters. */
#define ONE_KIND(suite, name, i, label)                                                                                \
	Test(suite, name##_over_##label, .timeout = 120)                                                               \
	{                                                                                                              \
		suite##_##name(&duo_kinds[i]);                                                                         \
	}
#define EACH_KIND(suite, name)                                                                                         \
	static void suite##_##name(const struct kind *k);                                                              \
	ONE_KIND(suite, name, 0, tcp4)                                                                                 \
	ONE_KIND(suite, name, 1, tcp6)                                                                                 \
	ONE_KIND(suite, name, 2, loopback)                                                                             \
	ONE_KIND(suite, name, 3, fault_delay)                                                                          \
	ONE_KIND(suite, name, 4, fault_reorder)                                                                        \
	ONE_KIND(suite, name, 5, fault_loopback)                                                                       \
	ONE_KIND(suite, name, 6, rdma4)                                                                                \
	ONE_KIND(suite, name, 7, rdma6_by_lot)                                                                         \
	ONE_KIND(suite, name, 8, fault_rdma)                                                                           \
	ONE_KIND(suite, name, 9, fault_reorder_rdma)                                                                   \
	ONE_KIND(suite, name, 10, tls_x509)                                                                            \
	ONE_KIND(suite, name, 11, tls_psk)                                                                             \
	ONE_KIND(suite, name, 12, fault_tls)                                                                           \
	static void suite##_##name(const struct kind *k)

struct duo {
	struct tp_listener *l;
	struct tp_conn *a, *b; /* connected, accepted */
	struct tp_params pa;   /* the connecting side's: may be changed before duo_join() */
	char uri[160];	       /* where it connects to; likewise */
	struct ft_error err;
	struct kind k;
	char folder[32]; /* "": no TLS */
	uint8_t *window; /* WINDOW_BYTES; window 0 of b */
};

/* duo_listen - listener and fabric, no connection.  Both sides' parameters are @p, with the TLS of the kind. */
void duo_listen(struct duo *d, const struct kind *k, struct tp_params p);
/* duo_join - connect and accept; no window is opened. */
void duo_join(struct duo *d);
/* duo_open_window - at b, WINDOW_BYTES of zeros, number 0, of which @len octets can be written. */
void duo_open_window(struct duo *d, size_t len);
/* duo_open - all of it, with LANES lanes.  The window is registered as a whole: with chunks a write needs the other side in tp_recv(), and
 * here one thread often plays both. */
void duo_open(struct duo *d, const struct kind *k);
void duo_open_registered(struct duo *d, const struct kind *k, enum tp_registration registration);
/* duo_close - whatever of it is open; what a test has closed itself must be NULL.  Nothing of it may be left in the fabric, and no rule of verbs
 * have been broken on the way. */
void duo_close(struct duo *d);

/* Any thread. */
static inline uint64_t soon(void)
{
	return deadline_in_ms(LONG_MS);
}

extern uint8_t duo_octets[TP_WRITE_MAX]; /* to be written; they never change */
extern char duo_buf[TP_MESSAGE_MAX];	 /* what recv_text() has got */

/* Both return what tp_send() and tp_recv() do.  Sending: any thread. */
int send_text(struct tp_conn *c, uint32_t lane, const char *text, uint64_t deadline, struct ft_error *err);
int recv_text(struct tp_conn *c, uint64_t deadline, struct ft_error *err);

#endif
