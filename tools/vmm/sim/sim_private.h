/* SPDX-License-Identifier: MIT */
/* sim_private.h - what sim.c and oracle.c share. */
#ifndef SIM_PRIVATE_H
#define SIM_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include "guest.h"
#include "track.h"

#define SIM_CUTS 4096u /* epochs whose border the oracle knows */

/* Where the vCPUs stood when an epoch was cut.  The engine counts epochs from 1 in each connection; the serial goes on. */
struct cut {
	uint64_t serial, epoch, side_key, side_made;
	struct guest_regs regs[SIM_CPUS_MAX];
};

struct runner { /* one vCPU's thread */
	struct sim *sim;
	struct guest_cpu *cpu; /* its own while it is in a burst, else guarded by sim->lock */
	pthread_t thread;
	uint64_t work, work_left; /* its own: of the computation behind each step */
	_Atomic uint64_t steps; /* copy of cpu->regs.steps, for sim_steps() */
	/* guarded by sim->lock */
	bool blocked; /* a message does not fit into the output queue */
	uint64_t budget;
	double tokens;
	uint64_t token_ns;
};

struct sim {
	struct sim_config cfg; /* constant */
	struct guest *guest;
	struct track *dirty, *present;
	uint64_t track_first[SIM_REGIONS_MAX + 1]; /* regions in the tracking's page space */
	struct ft_output *output;
	struct sim_client *client;
	char identity[512];

	pthread_mutex_t lock;
	pthread_cond_t work, parked;
	struct runner runner[SIM_CPUS_MAX];
	uint32_t nr_threads, nr_running;
	bool started, paused, quit; /* paused: by the engine */
	uint32_t stopped;	    /* by tests */
	uint64_t pages_per_epoch;   /* 0 once this side was promoted */
	uint64_t paused_at_ns, resumed_ns, longest_pause_ns;
	struct cut *cut; /* SIM_CUTS, by serial modulo */
	uint64_t serial; /* of the last cut */
	struct {
		uint64_t calls, at, times, delay_ns;
	} fault[SIM_OP_COUNT];

	struct { /* side.c */
		/* of a primary; guarded by lock */
		uint64_t key, draws;
		uint64_t made, read; /* octets that the guest has written; that the engine has got */
		uint64_t backlog;    /* what side_left() said last */
		bool cut;	     /* the full sync is over */
		/* of a secondary: ft-receive's, and kept_* guarded by lock */
		uint64_t in_key, in_bytes;
		bool in_epochs; /* one was committed since side_begin() */
		uint64_t epoch, kept_key, kept_bytes; /* committed */
		_Atomic bool busy;
	} side;

	_Atomic bool halt; /* leave the burst */
	_Atomic bool client_blocked;
	_Atomic uint64_t state_bytes, lose_every, lost;

	_Atomic(struct ft_session *) hook; /* to be told of writes beforehand; NULL: nobody */
	_Atomic uint64_t skip_every, writes_told;

	uint64_t reported; /* epoch thread */
	bool present_all, has_loaded; /* set by load_state, before the guest runs */
	uint64_t loaded_serial;
	struct guest_regs loaded[SIM_CPUS_MAX];

	pthread_mutex_t session_lock;
	struct ft_session *session; /* guarded by session_lock */
};

uint64_t clock_ns(void);
void sleep_ns(uint64_t ns);

/* sim.c: the engine's pause.  cpus_pause waits until every vCPU is parked. */
void cpus_pause(struct sim *s);
void cpus_resume(struct sim *s);
/* ops.c: the output queue's sink. */
size_t sim_emit(void *user, const void *buf, size_t len);
/* sim_op_enter - count the call, take the time that it is to take, say whether it is to fail. */
int sim_op_enter(struct sim *s, enum sim_op op, struct ft_error *err);

/* side.c: a full sync begins, the guest writes; then the ops; then: is just this committed? */
void side_start(struct sim *s);
void side_grow(struct sim *s);
int64_t side_read(void *user, uint64_t epoch, void *buf, size_t cap, struct ft_error *err);
uint64_t side_left(void *user);
int side_begin(void *user, struct ft_error *err);
int side_write(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err);
int side_commit(void *user, uint64_t epoch, struct ft_error *err);
int side_check(struct sim *s, uint64_t key, uint64_t bytes, struct ft_error *err);

#endif
