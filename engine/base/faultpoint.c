/* SPDX-License-Identifier: MIT */
/* faultpoint.c - see faultpoint.h.  Any thread. */
#include "faultpoint.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* Every point of the library, one a line; tools/checks/faultpoints compares with the sources. */
static const char *const names[] = {
	"bitmap/create",
	"pool/alloc",
	NULL,
};

static _Atomic uint64_t hits, target;
static atomic_bool keep_failing;
static _Atomic(const char *) only_name;
static _Atomic(const char *) last_failed;

bool faultpoint_hit(const char *name)
{
	const char *only = atomic_load(&only_name);
	uint64_t at = atomic_load(&target), n;

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

const char *faultpoint_failed(void)
{
	return atomic_load(&last_failed);
}

const char *const *faultpoint_names(void)
{
	return names;
}
