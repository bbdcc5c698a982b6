/* SPDX-License-Identifier: MIT */
/* address.c - see address.h.  Runs on the caller's thread; a name (not a numeric address) is looked up on a thread of its own, since
 * getaddrinfo() knows no deadline.  That thread may outlive the one who asked. */
#include "address.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "faultpoint.h"
#include "thread.h"
#include "transport_ops.h"

int address_parse(struct host_port *out, const char *text, struct ft_error *err)
{
	const char *colon = strrchr(text, ':'), *host = text;
	size_t len;
	char *end;
	long port;

	if (!colon)
		return err_set(err, -EINVAL, "'%s': HOST:PORT is expected", text);
	len = (size_t)(colon - text);
	if (len > 0 && text[0] == '[') {
		if (text[len - 1] != ']')
			return err_set(err, -EINVAL, "'%s': ']' is missing", text);
		host++;
		len -= 2;
	} else if (memchr(text, ':', len)) {
		return err_set(err, -EINVAL, "'%s': an IPv6 address is written [ADDRESS]:PORT", text);
	}
	if (len >= sizeof(out->host))
		return err_set(err, -ENAMETOOLONG, "host name of %zu octets", len);
	memcpy(out->host, host, len);
	out->host[len] = '\0';
	if (strcmp(out->host, "*") == 0)
		out->host[0] = '\0';
	errno = 0;
	port = strtol(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || errno != 0 || port > 65535)
		return err_set(err, -EINVAL, "'%s': port '%s' is not a number from 0 to 65535", text, colon + 1);
	snprintf(out->port, sizeof(out->port), "%u", (unsigned)port & 0xffffu);
	return 0;
}

/* One look-up; the thread may outlive the one who asked. */
struct lookup {
	struct host_port name;
	_Atomic int refs;
	int done_fd;
	_Atomic bool
		done; /* release and acquire: the answer is complete.  done_fd only wakes, poll() orders no memory */
	int gai, gai_errno;
	struct addrinfo *list;
};

static void lookup_put(struct lookup *q)
{
	if (atomic_fetch_sub(&q->refs, 1) != 1)
		return;
	if (q->list)
		freeaddrinfo(q->list);
	if (q->done_fd >= 0)
		close(q->done_fd);
	free(q);
}

static void ask(struct lookup *q, int flags)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV };

	q->gai = FT_FAULT("address/resolve")
			 ? EAI_MEMORY
			 : getaddrinfo(q->name.host[0] ? q->name.host : NULL, q->name.port, &hints, &q->list);
	q->gai_errno = errno;
}

static void *ask_thread(void *arg)
{
	struct lookup *q = arg;

	ask(q, AI_ADDRCONFIG);
	atomic_store_explicit(&q->done, true, memory_order_release);
	event_raise(q->done_fd);
	lookup_put(q);
	return NULL;
}

static int ask_aside(struct lookup *q, uint64_t deadline, int cancel_fd, struct ft_error *err)
{
	pthread_t t;
	int r;

	q->done_fd =
		FT_FAULT("address/lookup-eventfd") ? faultpoint_errno(EMFILE) : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->done_fd < 0)
		return err_sys(err, -errno, "eventfd");
	atomic_fetch_add(&q->refs, 1);
	r = thread_start(&t, "ft-lookup", ask_thread, q);
	if (r != 0) {
		lookup_put(q);
		return err_sys(err, r, "cannot start a thread");
	}
	pthread_detach(t);
	r = wait_fd(q->done_fd, POLLIN, cancel_fd, deadline);
	if (r == 0 && !atomic_load_explicit(&q->done, memory_order_acquire))
		r = -EIO; /* cannot be: it was raised behind the store */
	return r == 0 ? 0
		      : err_set(err, r, "%s: the look-up of the name %s", q->name.host,
				r == -ECANCELED ? "was cancelled" : "takes too long");
}

int address_resolve(struct addrinfo **list, const struct host_port *name, int flags, uint64_t deadline, int cancel_fd,
		    struct ft_error *err)
{
	struct lookup *q = FT_FAULT("address/lookup") ? NULL : calloc(1, sizeof(*q));
	int r = 0;

	if (!q)
		return err_set(err, -ENOMEM, "no memory");
	q->name = *name;
	q->refs = 1;
	q->done_fd = -1;
	ask(q, flags | AI_NUMERICHOST);
	if (q->gai == EAI_NONAME)
		r = ask_aside(q, deadline, cancel_fd, err);
	if (r == 0 && q->gai == EAI_SYSTEM)
		r = err_sys(err, -q->gai_errno, "%s", name->host);
	else if (r == 0 && q->gai != 0)
		r = err_set(err, -EADDRNOTAVAIL, "%s: %s", name->host, gai_strerror(q->gai));
	if (r == 0) {
		*list = q->list;
		q->list = NULL;
	}
	lookup_put(q);
	return r;
}

void address_print(char *out, size_t size, const struct sockaddr *sa, socklen_t len)
{
	char host[HOST_MAX], port[16];

	if (getnameinfo(sa, len, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		snprintf(out, size, "unknown");
	else
		snprintf(out, size, strchr(host, ':') ? "[%.100s]:%s" : "%.100s:%s", host, port);
}

uint64_t address_share(uint64_t deadline, unsigned left)
{
	uint64_t now = now_ns();

	if (left <= 1 || deadline <= now)
		return deadline;
	if (deadline == DEADLINE_NEVER)
		return now + 20 * NS_PER_S;
	return now + (deadline - now) / left;
}
