/* SPDX-License-Identifier: MIT */
/* sim.h - a guest that is memory and seeded writer threads: the embedder of libft for tests, benchmarks and ftsim.
 *
 * It knows libft through ft/ft.h only, as any VMM would.  Each vCPU owns a slice of the memory and is a pure function of
 * the configuration and of the number of steps it has made (guest.h), so that
 *  - the device state is small: the steps of each vCPU, and the standby goes on from exactly there;
 *  - the octets of the memory at any epoch border can be made again by replaying the steps (oracle): the dirty
 *    tracking that the engine is fed from has no part in that, and a page that tracking lost is found.
 *
 * Threads: everything below may be called from any thread unless it says otherwise; sim_create, sim_destroy and
 * sim_attach from one.  Functions return 0 or a negative errno with a sentence in @err, as in ft.h. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ft/ft.h>

#define SIM_CPUS_MAX 16u
#define SIM_REGIONS_MAX 8u

struct sim;
struct sim_client;

enum sim_pattern {
	SIM_UNIFORM = 0, /* whole pages anywhere in the working set */
	SIM_HOT,	 /* nine of ten steps in a sixteenth of it */
	SIM_SEQUENTIAL,	 /* whole pages, one after another, round and round */
	SIM_SPARSE,	 /* 64 octets somewhere in a page */
	SIM_ZERO,	 /* every other step clears a page */
	SIM_REWRITE,	 /* writes what is there already: dirty, but not different */
	SIM_SCATTER,	 /* 64 octets, each page of the working set once before any twice, in scattered order */
	SIM_FLIP,	 /* one of three contents of a page, one of them zeros: often one that it had before, or has */
	SIM_MIXED,	 /* all of them in turn, drawn by the seed */
	SIM_PATTERN_COUNT
};
const char *sim_pattern_name(enum sim_pattern p);	      /* "uniform" ...; "?" */
int sim_pattern_of(const char *name, enum sim_pattern *out); /* -EINVAL */

struct sim_config {
	uint64_t region_bytes[SIM_REGIONS_MAX]; /* multiples of 4096 */
	uint32_t nr_regions, nr_cpus;
	enum sim_pattern pattern;
	uint64_t seed;
	uint64_t rate;		    /* pages a second of the whole guest; 0: as fast as it goes */
	uint64_t work_per_step;	    /* turns of computation behind each step, so that a busy guest writes at some pace; see sim_work_rate() */
	uint64_t pages_per_epoch;   /* if not 0: exactly that many steps from resume to pause, which waits for them */
	uint64_t working_set_pages; /* the pages that are written, spread evenly over the span; 0: all of it */
	uint64_t span_pages;	    /* of each vCPU's part of the memory, from its beginning; 0: all of it */
	uint64_t prefill_pages;	    /* of the working set, filled before the first step */
	uint64_t state_bytes;	    /* size of the device state; what is needed at least if that is more */
	uint64_t output_every;	    /* each vCPU sends a message every so many steps; 0: never */
	uint64_t side_max_bytes;    /* of the side stream in one epoch; the first copy of it is as long; 0: there is no side stream */
	uint64_t side_chase;	    /* in a full sync the guest writes that many octets of it for each 100 that are read; 100: it never gets less */
	uint64_t output_cap_bytes;  /* of held output */
	bool checksum;		    /* the state carries a checksum of the whole memory: small guests only */
	int client_fd;		    /* output goes there as well (non-blocking), -1: to sim_client() only */
	void (*on_event)(void *user, const struct ft_event *event); /* after the sim has seen it; may be NULL */
	void *on_event_user;
};

/* sim_config_init - 16 MiB in one region, 2 vCPUs, mixed, 20,000 pages/s. */
void sim_config_init(struct sim_config *cfg);

/* sim_work_rate - turns of computation that one vCPU makes in a second on this machine, measured now (some ms). */
uint64_t sim_work_rate(void);

/* sim_create - memory and vCPUs, not running.  @standby: memory stays empty until a state is loaded. */
FT_MUST int sim_create(struct sim **out, const struct sim_config *cfg, bool standby, struct ft_error *err);
/* sim_destroy - stop the vCPUs and free.  The session must be closed.  NULL is harmless. */
void sim_destroy(struct sim *s);

/* What a session needs: ops with the sim as user, and an identity that fits the same configuration only. */
const struct ft_vmm_ops *sim_ops(void); /* without a side stream */
const struct ft_vmm_ops *sim_ops_of(const struct sim *s);
const char *sim_identity(const struct sim *s);
/* sim_attach - add the regions to @session and cut its epochs when output is full; NULL: forget the session (before it is closed). */
FT_MUST int sim_attach(struct sim *s, struct ft_session *session, struct ft_error *err);

/* sim_start - the vCPUs run.  (A standby is started by its activate op.) */
FT_MUST int sim_start(struct sim *s, struct ft_error *err);
/* sim_stop, sim_continue - the test's own pause, counted apart from the engine's: both must let it run. */
void sim_stop(struct sim *s);
void sim_continue(struct sim *s);

/* -- looking -- */
bool sim_is_paused(struct sim *s);	 /* by the engine */
uint64_t sim_steps(struct sim *s);	 /* of all vCPUs; grows while the guest runs */
uint64_t sim_longest_pause_ns(struct sim *s); /* by the engine, the present one included; since the last sim_forget_pauses() */
void sim_forget_pauses(struct sim *s);
uint64_t sim_resumed_ns(struct sim *s);	 /* CLOCK_MONOTONIC: when the engine let the guest go last */
uint64_t sim_pages(const struct sim *s);
uint64_t sim_side_backlog(struct sim *s); /* octets of the side stream that were left when the engine asked last: before the last pause of a full sync */
void *sim_memory(const struct sim *s, uint32_t region);
const struct sim_config *sim_get_config(const struct sim *s);
/* sim_wait_steps - until the guest has made @more steps from now; -ETIMEDOUT. */
FT_MUST int sim_wait_steps(struct sim *s, uint64_t more, uint32_t timeout_ms);

/* -- faults on demand -- */
enum sim_op {
	SIM_OP_TRACK_START = 0, SIM_OP_COLLECT_PRESENT, SIM_OP_COLLECT_DIRTY, SIM_OP_PAUSE, SIM_OP_SAVE_STATE,
	SIM_OP_RESUME, SIM_OP_LOAD_STATE, SIM_OP_ACTIVATE, SIM_OP_SIDE_READ, SIM_OP_SIDE_BEGIN, SIM_OP_SIDE_WRITE, SIM_OP_SIDE_COMMIT,
	SIM_OP_READY, SIM_OP_COUNT
};
const char *sim_op_name(enum sim_op op);
uint64_t sim_op_calls(struct sim *s, enum sim_op op);
/* sim_fail_op - @times calls from the @nth one (1: the next) fail with -EIO.  A pause that fails leaves the guest stopped, a
 * resume that fails lets it run: what the engine must be ready for.  @times 0: no more failures. */
void sim_fail_op(struct sim *s, enum sim_op op, uint64_t nth, uint64_t times);
void sim_delay_op(struct sim *s, enum sim_op op, uint32_t ms); /* every call takes that long; 0: none */
void sim_set_state_bytes(struct sim *s, uint64_t bytes);
/* sim_lose_dirty - dirty tracking forgets one page in @every; 0: none.  Proves that the oracle bites. */
void sim_lose_dirty(struct sim *s, uint64_t every);
uint64_t sim_lost_dirty(struct sim *s);
/* sim_skip_hook - one write in @every is not told beforehand; 0: none. */
void sim_skip_hook(struct sim *s, uint64_t every);

/* -- oracle: what the memory must hold -- */
struct sim_oracle;
/* sim_oracle_create - of @primary, which must outlive it. One thread at a time may use an oracle. */
FT_MUST int sim_oracle_create(struct sim_oracle **out, struct sim *primary, struct ft_error *err);
void sim_oracle_destroy(struct sim_oracle *o);
/* sim_oracle_compare - is @image (a sim of the same configuration, its memory at rest) exactly what the primary was when it last
 * cut an epoch of that number?  (The engine counts from 1 again with each connection.)
 * -EBADMSG: no, and @err names the first difference; -ENODATA: the primary never cut that epoch, or too long ago. */
FT_MUST int sim_oracle_compare(struct sim_oracle *o, uint64_t epoch, struct sim *image, struct ft_error *err);
/* sim_verify - is the memory of @s what its vCPUs' steps say?  Replays from the beginning, needs no other side.  The guest
 * is stopped meanwhile.  @steps, @pages: how much was checked; may be NULL. */
FT_MUST int sim_verify(struct sim *s, uint64_t *steps, uint64_t *pages, struct ft_error *err);
/* sim_same_state - did @standby, into which a state was loaded, go on exactly from an epoch of @primary?  *@epoch: which one. */
FT_MUST int sim_same_state(struct sim *primary, struct sim *standby, uint64_t *epoch, struct ft_error *err);

/* -- the client that gets the output: client.c -- */
#define SIM_MESSAGE_MAGIC UINT64_C(0x73696d2d6d736731)
struct sim_message {
	uint64_t magic;
	uint64_t cpu, number; /* numbered from 1 for each vCPU */
	uint64_t hash;	      /* of the vCPU's state when it was sent */
	uint64_t sent_ns;     /* CLOCK_MONOTONIC */
};
struct sim_delivery {
	struct sim_message message;
	uint64_t time_ns;
};
struct sim_client_stats {
	uint64_t delivered, gaps, damaged;
	uint64_t delay_min_ns, delay_max_ns, delay_sum_ns;
	uint64_t last[SIM_CPUS_MAX];	  /* number of the last message of each vCPU */
	uint64_t last_hash[SIM_CPUS_MAX]; /* and its hash */
};
int sim_client_create(struct sim_client **out);
void sim_client_destroy(struct sim_client *c);
/* sim_client_feed - octets as they come; messages may be cut anywhere. */
void sim_client_feed(struct sim_client *c, const void *buf, size_t len);
void sim_client_stats(struct sim_client *c, struct sim_client_stats *out);
/* sim_client_log - the last deliveries, oldest first; returns how many were put into @out. */
size_t sim_client_log(struct sim_client *c, struct sim_delivery *out, size_t max);

struct sim_client *sim_get_client(struct sim *s);
/* sim_client_block - the client takes nothing until it is let go. */
void sim_client_block(struct sim *s, bool blocked);
uint64_t sim_output_held(struct sim *s);
/* sim_check_promise - was everything that @client got sent by a vCPU in a state that @standby (after failover) has
 * been through?  -EBADMSG with the first message that it does not know. */
FT_MUST int sim_check_promise(struct sim_client *client, struct sim *standby, struct ft_error *err);

#endif
