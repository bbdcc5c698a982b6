/* SPDX-License-Identifier: MIT */
/* test_transport_end.c - the contract of transport.h over each transport, as to how things end: each wait at its deadline, when it is cancelled,
 * closed or the peer dies; and a connection, with its last words heard and no descriptor left.  Both ends are those of support/duo.h. */
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "duo.h"
#include "fabric_fake.h"
#include "transport_ops.h"

/* -- waits -- */

enum wait { WAIT_RECV, WAIT_CREDIT, WAIT_ROOM, WAIT_COMPLETED, NR_WAITS };

struct waiter {
	struct tp_conn *c;
	enum wait wait;
	size_t bytes;
	uint64_t deadline;
	int result;
	_Atomic bool begun;
	struct ft_error err;
};

/* rdma writes need nobody at the other side, and there is always room: unless the wire takes nothing. */
static void still(const struct kind *k, bool on)
{
	if (k->rdma != NO_RDMA)
		fabric_link(on ? FABRIC_SILENT : FABRIC_UP);
}

static size_t much(const struct kind *k)
{
	return k->rdma == NO_RDMA ? sizeof(duo_octets) : 4096; /* a queue has 1024 places */
}

/* Fill what there is until it blocks for good. */
static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct iovec v = { duo_octets, w->bytes };
	uint32_t lane;
	size_t len;
	uint64_t ticket = 0;

	w->begun = true;
	switch (w->wait) {
	case WAIT_RECV:
		w->result = tp_recv(w->c, duo_buf, sizeof(duo_buf), &lane, &len, w->deadline, &w->err);
		break;
	case WAIT_CREDIT:
		while ((w->result = send_text(w->c, 1, "x", w->deadline, &w->err)) == 0)
			;
		break;
	case WAIT_ROOM:
		while ((w->result = tp_write(w->c, 1, 0, 0, &v, 1, NULL, w->deadline, &w->err)) == 0)
			;
		break;
	case WAIT_COMPLETED:
		while ((w->result = tp_write(w->c, 2, 0, 0, &v, 1, &ticket, w->deadline, &w->err)) == 0 &&
		       (w->result = tp_wait_completed(w->c, 2, ticket, w->deadline, &w->err)) == 0)
			;
		break;
	case NR_WAITS:
		break;
	}
	return NULL;
}

static void waiters_start(struct waiter *w, pthread_t *t, const struct duo *d, uint64_t deadline)
{
	for (int i = 0; i < NR_WAITS; i++) {
		w[i] = (struct waiter){ .c = d->a, .wait = (enum wait)i, .bytes = much(&d->k), .deadline = deadline };
		pthread_create(&t[i], NULL, wait_thread, &w[i]);
	}
	usleep(300000); /* all of them have come to where they wait; if not, the test is only weaker */
}

static void waiters_join(struct waiter *w, pthread_t *t)
{
	for (int i = 0; i < NR_WAITS; i++)
		pthread_join(t[i], NULL);
	(void)w;
}

EACH_KIND(waits, end_at_their_deadline)
{
	uint64_t deadline = deadline_in_ms(600), late;
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	struct duo d;

	duo_open(&d, k);
	still(k, true);
	waiters_start(w, t, &d, deadline);
	waiters_join(w, t);
	still(k, false);
	late = now_ns() - deadline;
	cr_assert(now_ns() >= deadline && late < LONG_MS / 2 * NS_PER_MS);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ETIMEDOUT, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	/* and the connection is fine: what was queued arrives, and so does what follows */
	for (bool end = false; !end;) {
		int r = recv_text(d.b, deadline_in_ms(300), &d.err);

		end = r == -ETIMEDOUT;
		cr_assert(r == 0 || end, "%s", d.err.msg);
	}
	cr_assert_eq(send_text(d.a, 0, "fine", soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(duo_buf, "fine");
	duo_close(&d);
}

EACH_KIND(waits, end_at_once_when_cancelled)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	still(k, true);
	waiters_start(w, t, &d, DEADLINE_NEVER);
	before = now_ns();
	tp_cancel(d.a);
	waiters_join(w, t);
	cr_assert(now_ns() - before < 5 * NS_PER_S);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ECANCELED, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECANCELED);
	cr_assert_eq(send_text(d.a, 0, "x", soon(), &d.err), -ECANCELED);
	cr_assert_eq(tp_write(d.a, 0, 0, 0, &(struct iovec){ duo_octets, 1 }, 1, NULL, soon(), &d.err), -ECANCELED);
	cr_assert_eq(tp_wait_completed(d.a, 1, 1, soon(), &d.err), -ECANCELED);
	duo_close(&d);
}

EACH_KIND(waits, end_when_the_connection_is_closed_under_them)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	still(k, true);
	waiters_start(w, t, &d, DEADLINE_NEVER);
	before = now_ns();
	tp_close(d.a); /* frees: under ASan a thread that is still inside would be found */
	d.a = NULL;
	cr_assert(now_ns() - before < 5 * NS_PER_S);
	waiters_join(w, t);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert_eq(w[i].result, -ECANCELED, "wait %d: %d %s", i, w[i].result, w[i].err.msg);
	duo_close(&d);
}

EACH_KIND(waits, end_when_the_peer_dies)
{
	struct waiter w[NR_WAITS];
	pthread_t t[NR_WAITS];
	uint64_t before;
	struct duo d;

	duo_open(&d, k);
	waiters_start(w, t, &d, DEADLINE_NEVER);
	before = now_ns();
	d.b->ops->sever(d.b);
	waiters_join(w, t);
	cr_assert(now_ns() - before < LONG_MS * NS_PER_MS / 2);
	for (int i = 0; i < NR_WAITS; i++)
		cr_assert(w[i].result == -ECONNRESET || w[i].result == -EPIPE, "wait %d: %d %s", i, w[i].result,
			  w[i].err.msg);
	cr_assert_eq(w[WAIT_RECV].result, -ECONNRESET, "%s", w[WAIT_RECV].err.msg);
	cr_assert_eq(recv_text(d.a, soon(), &d.err), -ECONNRESET, "%s", d.err.msg);
	duo_close(&d);
}

/* Each wait alone: nobody in tp_recv() helps the others. */
EACH_KIND(waits, each_alone_ends_when_the_peer_dies)
{
	for (int i = 0; i < NR_WAITS; i++) {
		struct waiter w = { .wait = (enum wait)i, .bytes = much(k), .deadline = deadline_in_ms(LONG_MS) };
		struct duo d;
		pthread_t t;

		duo_open(&d, k);
		w.c = d.a;
		pthread_create(&t, NULL, wait_thread, &w);
		usleep(150000);
		d.b->ops->sever(d.b);
		pthread_join(t, NULL);
		cr_assert(w.result == -ECONNRESET || w.result == -EPIPE, "wait %d: %d %s", i, w.result, w.err.msg);
		duo_close(&d);
	}
}

EACH_KIND(waits, accept_and_connect_end)
{
	int cancel = eventfd(0, EFD_CLOEXEC);
	struct tp_params p = { .lanes = 2 };
	struct tp_conn *c = (void *)1;
	uint64_t before = now_ns();
	struct duo d;

	duo_listen(&d, k, p);
	cr_assert_eq(tp_accept(d.l, &c, deadline_in_ms(100), -1, &d.err), -ETIMEDOUT, "%s", d.err.msg);
	cr_assert_null(c);
	cr_assert_eq(tp_connect(&c, d.uri, &d.pa, deadline_in_ms(100), -1, &d.err), -ETIMEDOUT, "%s", d.err.msg);
	cr_assert_null(c);
	event_raise(cancel);
	cr_assert_eq(tp_accept(d.l, &c, DEADLINE_NEVER, cancel, &d.err), -ECANCELED, "%s", d.err.msg);
	cr_assert_eq(tp_connect(&c, d.uri, &d.pa, DEADLINE_NEVER, cancel, &d.err), -ECANCELED, "%s", d.err.msg);
	cr_assert_null(c);
	cr_assert(now_ns() - before < LONG_MS * NS_PER_MS);
	/* those that gave up leave nothing behind that could be taken for a connection */
	duo_join(&d);
	cr_assert_eq(send_text(d.a, 0, "fresh", soon(), &d.err), 0);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(duo_buf, "fresh");
	close(cancel);
	duo_close(&d);
}

EACH_KIND(waits, nobody_listens)
{
	struct tp_params p = { .lanes = 2 };
	struct tp_conn *c;
	struct duo d;

	duo_listen(&d, k, p);
	tp_listener_close(d.l);
	d.l = NULL;
	cr_assert_eq(tp_connect(&c, d.uri, &d.pa, soon(), -1, &d.err), -ECONNREFUSED, "%s", d.err.msg);
	duo_close(&d);
}

/* -- the end -- */

EACH_KIND(end, last_words_are_heard)
{
	struct duo d;

	duo_open(&d, k);
	/* unread octets at the closing side must not cost the last words of the other */
	cr_assert_eq(send_text(d.b, 1, "unread", soon(), &d.err), 0);
	cr_assert_eq(tp_write(d.a, 1, 0, 5, &(struct iovec){ duo_octets, 100 }, 1, NULL, soon(), &d.err), 0);
	cr_assert_eq(send_text(d.a, 0, "refused, because", soon(), &d.err), 0);
	tp_close(d.a);
	d.a = NULL;
	usleep(20000);
	send_text(d.b, 1, "into the void", soon(), &d.err); /* may fail */
	send_text(d.b, 1, "into the void", soon(), &d.err);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
	cr_assert_str_eq(duo_buf, "refused, because");
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA, "%s", d.err.msg);
	cr_assert_eq(recv_text(d.b, soon(), &d.err), -ENODATA);
	while (send_text(d.b, 0, "x", soon(), &d.err) == 0)
		usleep(1000); /* a pump needs a moment to find out; else it fails at once */
	cr_assert_neq(d.err.code, -ETIMEDOUT, "%s", d.err.msg);
	duo_close(&d);
}

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

EACH_KIND(end, no_descriptor_is_left_after_200_connections)
{
	unsigned before, rounds = strstr(k->wrap, "reorder") || k->rdma == BY_LOT ? 40 : 200;
	struct duo d;

	duo_listen(&d, k, (struct tp_params){ .lanes = LANES });
	before = open_fds();
	for (unsigned i = 0; i < rounds; i++) {
		duo_join(&d);
		cr_assert_eq(send_text(d.a, 1, "x", soon(), &d.err), 0, "%s", d.err.msg);
		if (i % 2)
			cr_assert_eq(recv_text(d.b, soon(), &d.err), 0, "%s", d.err.msg);
		tp_close(i % 3 ? d.a : d.b);
		tp_close(i % 3 ? d.b : d.a);
	}
	cr_assert_eq(open_fds(), before);
	d.a = d.b = NULL;
	duo_close(&d);
}
