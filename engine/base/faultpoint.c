/* SPDX-License-Identifier: MIT */
/* faultpoint.c - see faultpoint.h.  Any thread. */
#include "faultpoint.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* Every point of the library, one a line, sorted; tools/checks/fault-points compares with the sources. */
static const char *const names[] = {
	"address/lookup",
	"address/lookup-eventfd",
	"address/resolve",
	"bitmap/create",
	"command/get",
	"command/reply",
	"command/stats",
	"control/accept",
	"control/bind",
	"control/client",
	"control/directory",
	"control/eventfd",
	"control/listen",
	"control/open",
	"control/receive",
	"control/send",
	"control/socket",
	"copier/jobs",
	"cow/begin",
	"cow/create",
	"crew/create",
	"fault/create",
	"fault/eventfd",
	"fault/listener",
	"fault/queue",
	"greeting/create",
	"hello/regions",
	"link/buffer",
	"link/create",
	"log/sink",
	"loopback/connect",
	"loopback/copy",
	"loopback/eventfd",
	"loopback/item",
	"loopback/listen-eventfd",
	"loopback/listener",
	"loopback/pair",
	"output/open",
	"output/ring",
	"past/map",
	"pool/alloc",
	"pool/arena",
	"pool/create",
	"pool/map",
	"primary/create",
	"primary/plan",
	"primary/random",
	"primary/staging",
	"primary/state",
	"rdma/chunks",
	"rdma/create",
	"rdma/half",
	"rdma/lane",
	"rdma/listener",
	"rdma/listener-epoll",
	"rdma/own-chunks",
	"rdma/standing",
	"rdma/token",
	"rdma/wake-fd",
	"received/create",
	"recording/create",
	"recording/open",
	"recording/write",
	"region/table",
	"ring/create",
	"same/map",
	"same/secret",
	"secondary/create",
	"session/create",
	"session/eventfd",
	"session/text",
	"slab/create",
	"standby/create",
	"statefile/folder",
	"statefile/fsync",
	"statefile/open",
	"statefile/read",
	"statefile/rename",
	"statefile/write",
	"tcp/accept",
	"tcp/answer",
	"tcp/bind",
	"tcp/connect",
	"tcp/create",
	"tcp/credit-eventfd",
	"tcp/epoll",
	"tcp/epoll-wait",
	"tcp/half",
	"tcp/half-receive",
	"tcp/halt-eventfd",
	"tcp/lane-epoll",
	"tcp/listen-socket",
	"tcp/listener",
	"tcp/listener-epoll",
	"tcp/message",
	"tcp/preamble",
	"tcp/ready-eventfd",
	"tcp/receive",
	"tcp/send",
	"tcp/socket",
	"tcp/token",
	"thread/start",
	"transport/poll",
	NULL,
};

#define NR_NAMES (sizeof(names) / sizeof(names[0]) - 1)

static _Atomic uint64_t hits, target, hits_of[NR_NAMES];
static atomic_bool keep_failing;
static _Atomic(const char *) only_name;
static _Atomic(const char *) last_failed;

/* NR_NAMES: not in the list. */
static size_t find(const char *name)
{
	size_t low = 0, high = NR_NAMES;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(name, names[middle]);

		if (order == 0)
			return middle;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NR_NAMES;
}

bool faultpoint_hit(const char *name)
{
	const char *only = atomic_load(&only_name);
	uint64_t at = atomic_load(&target), n;
	size_t i = find(name);

	if (i < NR_NAMES)
		atomic_fetch_add(&hits_of[i], 1);
	if (only && strcmp(only, name) != 0)
		return false;
	n = atomic_fetch_add(&hits, 1) + 1;
	if (at == 0 || n < at || (n > at && !atomic_load(&keep_failing)))
		return false;
	atomic_store(&last_failed, name);
	return true;
}

void faultpoint_arm(uint64_t nth, bool persistent, const char *only)
{
	atomic_store(&target, 0);
	atomic_store(&hits, 0);
	for (size_t i = 0; i < NR_NAMES; i++)
		atomic_store(&hits_of[i], 0);
	atomic_store(&last_failed, NULL);
	atomic_store(&keep_failing, persistent);
	atomic_store(&only_name, only);
	atomic_store(&target, nth);
}

void faultpoint_disarm(void)
{
	atomic_store(&target, 0);
}

uint64_t faultpoint_hits(void)
{
	return atomic_load(&hits);
}

uint64_t faultpoint_hits_of(const char *name)
{
	size_t i = find(name);

	return i < NR_NAMES ? atomic_load(&hits_of[i]) : 0;
}

const char *faultpoint_failed(void)
{
	return atomic_load(&last_failed);
}

const char *const *faultpoint_names(void)
{
	return names;
}
