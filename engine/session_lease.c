/* SPDX-License-Identifier: MIT */
/* session_lease.c - what a session of either role has to do with its lease (lease.h): whose it is, and what status says of it.  What a primary does
 * with it is in primary_lease.c, what a secondary does in failover.c.  Any thread. */
#include "session.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "digest.h"
#include "err.h"
#include "lease.h"

static struct {
	uint64_t random; /* of this process */
	const void *user;
} mark;
static pthread_mutex_t mark_lock = PTHREAD_MUTEX_INITIALIZER;

/* The machine's name in this process: of its VMM, so that a session that protects a promoted machine goes on with the lease that the promoted one has. */
static int name_self(const struct ft_session *s, char name[static WITNESS_NAME_MAX], struct ft_error *err)
{
	char host[31] = "";
	uint64_t id;

	gethostname(host, sizeof(host) - 1);
	for (char *c = host; *c; c++)
		if (!isgraph((unsigned char)*c))
			*c = '?';
	pthread_mutex_lock(&mark_lock);
	if (!mark.random && getrandom(&mark.random, sizeof(mark.random), 0) != sizeof(mark.random))
		mark.random = 0;
	mark.user = s->user;
	id = mark.random ? digest_state(&mark, sizeof(mark)) : 0;
	pthread_mutex_unlock(&mark_lock);
	if (!id)
		return err_set(err, -EIO, "the kernel gave no random number for the lease");
	snprintf(name, WITNESS_NAME_MAX, "%s:%ld:%016llx", host, (long)getpid(), (unsigned long long)id);
	return 0;
}

int session_lease_open(struct ft_session *s, const struct lease_options *callbacks, struct ft_error *err)
{
	struct lease_options opt = *callbacks;
	struct lease *l;
	int r;

	if (witness_is_none(s->witness))
		return 0;
	opt.witness = s->witness;
	opt.self.lease_ms = s->cfg.lease_ms;
	opt.self.drift_ms = s->cfg.lease_drift_ms;
	r = name_self(s, opt.self.name, err);
	if (!r)
		r = lease_open(&l, &opt, err);
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	s->lease = l;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

void session_lease_status(struct ft_session *s, struct ft_status *out)
{
	struct lease_status st;
	struct lease *l;

	pthread_mutex_lock(&s->lock);
	l = s->lease;
	pthread_mutex_unlock(&s->lock);
	if (!l)
		return;
	lease_status(l, &st);
	snprintf(out->witness, sizeof(out->witness), "%s", s->witness);
	snprintf(out->lease, sizeof(out->lease), "%s", lease_state_name(st.state));
	memcpy(out->lease_holder, st.view.record.holder, sizeof(out->lease_holder));
	out->lease_generation = st.view.record.generation;
	out->lease_left_ns = st.left_ns;
	memcpy(out->witness_trouble, st.trouble, sizeof(out->witness_trouble));
}

uint64_t session_generation(struct ft_session *s)
{
	uint64_t generation;

	pthread_mutex_lock(&s->lock);
	generation = s->generation;
	pthread_mutex_unlock(&s->lock);
	return generation;
}

void session_set_generation(struct ft_session *s, uint64_t generation)
{
	pthread_mutex_lock(&s->lock);
	s->generation = generation;
	pthread_mutex_unlock(&s->lock);
}
