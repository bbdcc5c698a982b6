/* SPDX-License-Identifier: MIT */
/* duo.c - see duo.h.  Without criterion: plain programs are linked with this library too. */
#include "duo.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "fabric_fake.h"
#include "tls_files.h"

const struct kind duo_kinds[] = {
	{ "", "127.0.0.1:0", NO_RDMA, TP_TLS_OFF },
	{ "", "tcp:[::1]:0", NO_RDMA, TP_TLS_OFF },
	{ "", "loopback:unit", NO_RDMA, TP_TLS_OFF },
	{ "fault(seed=7,delay=1)/", "127.0.0.1:0", NO_RDMA, TP_TLS_OFF },
	{ "fault(seed=9,reorder=1)/", "[::1]:0", NO_RDMA, TP_TLS_OFF },
	{ "fault(seed=11)/", "loopback:unit", NO_RDMA, TP_TLS_OFF },
	{ "", "rdma:10.9.0.1:0", AT_ONCE, TP_TLS_OFF },
	{ "", "rdma:[fd09::1]:0", BY_LOT, TP_TLS_OFF },
	{ "fault(seed=13,delay=1)/", "rdma:10.9.0.1:0", AT_ONCE, TP_TLS_OFF },
	{ "fault(seed=15,reorder=1)/", "rdma:10.9.0.1:0", BY_LOT, TP_TLS_OFF },
	{ "", "127.0.0.1:0", NO_RDMA, TP_TLS_X509 },
	{ "", "tcp:[::1]:0", NO_RDMA, TP_TLS_PSK },
	{ "fault(seed=17,reorder=1)/", "127.0.0.1:0", NO_RDMA, TP_TLS_PSK },
};

uint8_t duo_octets[TP_WRITE_MAX];
char duo_buf[TP_MESSAGE_MAX];

static void fabric_begin(const struct kind *k)
{
	static uint64_t seed = 1;

	if (k->rdma == NO_RDMA)
		return;
	fabric_start(NULL);
	if (k->rdma == BY_LOT)
		fabric_random(seed++, 200);
}

static void fabric_end(const struct kind *k)
{
	const char *text;

	if (k->rdma == NO_RDMA)
		return;
	CHECK(fabric_violations(&text) == 0, "%s", text);
	CHECK(fabric_all_gone(), "%s", fabric_live_text());
	fabric_stop();
}

void duo_listen(struct duo *d, const struct kind *k, struct tp_params p)
{
	char uri[96];

	memset(d, 0, sizeof(*d));
	d->k = *k;
	if (k->tls != TP_TLS_OFF) {
		tls_good_folder(tls_folder(d->folder, sizeof(d->folder)));
		tls_params(&p, k->tls, d->folder);
	}
	d->pa = p;
	fabric_begin(k);
	snprintf(uri, sizeof(uri), "%s%s", k->wrap, k->listen);
	CHECK_OK(tp_listen(&d->l, uri, &p, &d->err), d->err);
	snprintf(d->uri, sizeof(d->uri), "%s%s%s", k->wrap, k->rdma ? "rdma:" : "", tp_listener_address(d->l));
}

static void *connect_thread(void *arg)
{
	struct duo *d = arg;

	tp_connect(&d->a, d->uri, &d->pa, soon(), -1, &d->err);
	return NULL;
}

void duo_join(struct duo *d)
{
	pthread_t t;

	pthread_create(&t, NULL, connect_thread, d);
	CHECK_OK(tp_accept(d->l, &d->b, soon(), -1, &d->err), d->err);
	pthread_join(t, NULL);
	CHECK(d->a, "%s", d->err.msg);
}

void duo_open_window(struct duo *d, size_t len)
{
	d->window = calloc(1, WINDOW_BYTES);
	CHECK_OK(tp_window_open(d->b, 0, d->window, len, &d->err), d->err);
}

void duo_open_registered(struct duo *d, const struct kind *k, enum tp_registration registration)
{
	duo_listen(d, k, (struct tp_params){ .lanes = LANES, .registration = registration });
	duo_join(d);
	duo_open_window(d, WINDOW_BYTES);
}

void duo_open(struct duo *d, const struct kind *k)
{
	duo_open_registered(d, k, TP_REGISTER_WHOLE);
}

void duo_close(struct duo *d)
{
	tp_close(d->a);
	tp_close(d->b);
	tp_listener_close(d->l);
	free(d->window);
	if (d->folder[0])
		tls_folder_remove(d->folder);
	fabric_end(&d->k);
}

int send_text(struct tp_conn *c, uint32_t lane, const char *text, uint64_t deadline, struct ft_error *err)
{
	struct iovec v = { (void *)text, strlen(text) };

	return tp_send(c, lane, &v, 1, deadline, err);
}

int recv_text(struct tp_conn *c, uint64_t deadline, struct ft_error *err)
{
	uint32_t lane;
	size_t len;
	int r = tp_recv(c, duo_buf, sizeof(duo_buf), &lane, &len, deadline, err);

	if (r == 0 && len < sizeof(duo_buf))
		duo_buf[len] = '\0';
	return r;
}
