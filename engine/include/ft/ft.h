/* SPDX-License-Identifier: MIT */
/* ft.h - the public interface of libft: fault tolerance for a virtual machine by continuous
 * checkpoint replication.
 *
 * One session protects one machine (role primary) or keeps one standby (role secondary).  The library
 * owns the threads, the connection and the protocol; the embedding VMM owns the guest and is reached
 * only through struct ft_vmm_ops.  docs/architecture.md has the picture, docs/locking.md the threads.
 *
 * Rules for all of it:
 *  - Functions return 0 or a negative errno; with @err given, a sentence is in @err->msg.  @err may be NULL.
 *  - Unless it says otherwise a function may be called from any thread and does not block for longer
 *    than a short critical section.
 *  - Structs that begin with struct_size grow only at the end.  Set them up with their _init function.
 *  - The library prints nothing, installs no signal handler and never calls exit(). */
#ifndef FT_FT_H
#define FT_FT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ft/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FT_API __attribute__((visibility("default")))
#define FT_MUST __attribute__((warn_unused_result))

#define FT_PAGE_SIZE 4096u  /* the only page size of protocol version 1 */
#define FT_REGIONS_MAX 1024u /* regions of one machine */
#define FT_NAME_MAX 128u    /* longest name of a machine or a region, with its terminator */
#define FT_IDENTITY_MAX 16384u /* longest identity, with its terminator */
#define FT_STATE_FILE_MAX 256u /* longest path of a state file, with its terminator */

struct ft_session; /* opaque */

enum ft_role { FT_ROLE_PRIMARY = 1, FT_ROLE_SECONDARY = 2 };

/* The states of both roles; docs/architecture.md has the diagram, engine/state.c the table.
 * `guest` says what the machine on this side does, `output` what happens to what it sends. */
enum ft_state {
	/* primary */
	FT_STATE_IDLE = 0,   /* not started, or stopped: guest runs, output free, unprotected */
	FT_STATE_CONNECTING, /* looking for the secondary: guest runs, output free, unprotected */
	FT_STATE_SYNCING,    /* full copy under way: guest runs, output free until its last pause */
	FT_STATE_PROTECTED,  /* epochs commit: guest runs, output of epochs <= acked is out, the rest held */
	FT_STATE_SUSPECT,    /* peer lost: output held, we do not know whether the standby runs */
	FT_STATE_ALONE,	     /* going on without a standby: output free, unprotected, reconnecting */
	FT_STATE_FENCED,     /* the other side took over, or the lease is over: guest stopped, output dropped */
	/* secondary */
	FT_STATE_WAITING,	    /* listening, no complete image */
	FT_STATE_STANDBY_SYNCING,   /* a primary is connected, no complete image of it yet */
	FT_STATE_STANDBY,	    /* holds one committed epoch, receives the next */
	FT_STATE_STANDBY_SUSPECT,   /* holds one committed epoch, primary lost */
	FT_STATE_PROMOTING,	    /* failover under way */
	FT_STATE_ACTIVE,	    /* promoted: the machine runs here */
	FT_STATE_REFUSED,	    /* standby unusable (failed load, disk, memory); see the reason */
	FT_STATE_COUNT
};

/* ft_state_name - "protected", "standby-suspect" ...; a static string, "?" out of range. */
FT_API const char *ft_state_name(enum ft_state state);

/* ---- what the VMM gives ------------------------------------------------------------------------ */

/* Where collect_dirty() and collect_present() put pages.  Valid only during the callback. */
struct ft_dirty;

/* ft_dirty_add - pages [@first, @first + @nr) of region @region (index as ft_session_add_region() gave
 * it) are dirty; page 0 is the region's first 4 KiB.  Repeats are harmless.  Only inside a collect
 * callback, on its thread or on threads it waits for.  -ERANGE if outside of the region: nothing is added. */
FT_API int ft_dirty_add(struct ft_dirty *dirty, uint32_t region, uint64_t first, uint64_t nr);

/* Where save_state() puts the device state.  Valid only during the callback. */
struct ft_state_sink;

/* ft_state_buffer - room for at least @want more octets of device state, so that it can be read straight
 * into place.  *@cap gets the room there is.  NULL when the state would exceed the session's "state-max". */
FT_API void *ft_state_buffer(struct ft_state_sink *sink, size_t want, size_t *cap);
/* ft_state_advance - @len octets of what ft_state_buffer() gave are filled (@len <= *cap). */
FT_API void ft_state_advance(struct ft_state_sink *sink, size_t len);
/* ft_state_write - append a copy of @len octets.  -EFBIG beyond "state-max". */
FT_API FT_MUST int ft_state_write(struct ft_state_sink *sink, const void *buf, size_t len);

enum ft_event_type {
	FT_EVENT_STATE = 1, /* state changed */
	FT_EVENT_SYNC,	    /* progress of the full sync (both roles): sync_* are set */
	FT_EVENT_EPOCH,	    /* primary: epoch acknowledged; secondary: epoch applied */
};

struct ft_event {
	enum ft_event_type type;
	enum ft_state state, old_state;
	const char *reason; /* one sentence, "" if none; valid during the callback */
	uint64_t epoch;
	uint32_t sync_round;
	uint64_t sync_pages_done, sync_pages_total; /* the side stream in units of a page; total grows while the guest writes */
};

/* struct ft_vmm_ops - what the engine needs of a machine.
 *
 * Threads: callbacks marked [epoch] run on the session's epoch thread, [ship] on the primary's that sends, [accept] and [receive] on
 * a secondary's that accept connections and receive, [caller] on the thread that called the ft_ function named there.  Callbacks of one
 * session never run at the same time, but for side_read, output_release and on_event, which may run beside any other.
 * A callback may call ft_dirty_add, ft_state_* and ft_session_status, nothing else of this header,
 * unless it says more.  Each returns 0 or a negative errno with a sentence in @err (never NULL there).
 * "Bounded" means: has a time-out of the VMM's own, some seconds at most; the engine cannot cut it short. */
struct ft_vmm_ops {
	size_t struct_size;

	/* -- primary -- */

	/* [epoch] Begin dirty tracking; from now on collect_dirty reports each page written since.  Called
	 * once before every full sync, with the guest running; may be called again without track_stop. */
	int (*track_start)(void *user, struct ft_error *err);
	/* [epoch] Protection has ended; tracking may be switched off. */
	void (*track_stop)(void *user);

	/* [epoch] Report all pages that may hold something else than zeros (holes need not be reported).
	 * Optional: without it every page of every region counts as present. */
	int (*collect_present)(void *user, struct ft_dirty *dirty, struct ft_error *err);

	/* [epoch] Fetch and clear: report every page written since the last call (or track_start).  Also
	 * called with the guest running, during the full sync; a write that races with it may be reported
	 * now or next time, but must not be lost.  Pages written by untracked DMA must be reported always. */
	int (*collect_dirty)(void *user, struct ft_dirty *dirty, struct ft_error *err);

	/* [epoch] A guess of the number of pages collect_dirty would report, without clearing.  Optional;
	 * lets the engine cut an epoch before it outgrows the staging memory. */
	uint64_t (*estimate_dirty)(void *user);

	/* [epoch] Stop vCPUs and device DMA.  When it returns 0, memory does not change until resume (or,
	 * for a VMM that starts the guest again at the end of save_state, until save_state returns).  Bounded. */
	int (*pause)(void *user, struct ft_error *err);

	/* [epoch] Write the device state (everything but RAM) into @sink.  Called after collect_dirty with
	 * the guest paused and after the pages were captured, so it may let the guest run again at its end. */
	int (*save_state)(void *user, struct ft_state_sink *sink, struct ft_error *err);

	/* [epoch] The guest runs again.  Also called after a pause or save_state that failed: whatever
	 * happened, afterwards the guest must run.  Bounded. */
	int (*resume)(void *user, struct ft_error *err);

	/* [epoch] Optional.  Called with the guest paused: what the guest sent up to now belongs to
	 * @epoch, what it sends from now on to @epoch + 1.  The VMM holds it.  The first call (after
	 * a full sync) is where holding begins. */
	void (*output_cut)(void *user, uint64_t epoch);
	/* [any session thread] Optional.  Output of epochs <= @epoch may leave, in order.  UINT64_MAX:
	 * protection has ended, hold nothing any more. */
	void (*output_release)(void *user, uint64_t epoch);
	/* [epoch] Optional.  The other side took over: throw away what is held, hold everything to come;
	 * the guest was stopped. */
	void (*output_drop)(void *user);

	/* -- secondary -- */

	/* [accept] Optional.  The peer's identity (its ft_config.identity) is @identity; refuse it with a
	 * sentence that the other side prints.  Without it the two must be equal. */
	int (*check_identity)(void *user, const char *identity, struct ft_error *err);

	/* [caller of ft_session_failover] Regions hold the committed image; load the device state that belongs
	 * to it.  @buf is the library's and valid during the call. */
	int (*load_state)(void *user, const void *buf, size_t len, struct ft_error *err);
	/* [caller of ft_session_failover] Run. */
	int (*activate)(void *user, struct ft_error *err);

	/* -- both -- */

	/* [any session thread] Optional.  Must not block and must not call ft_session_* but _status and _cut. */
	void (*on_event)(void *user, const struct ft_event *event);

	/* [epoch] Optional, primary.  Stop the guest (@hold) for as long as the operator likes, or because the other side took
	 * over: also beyond the end of this process; or let it run again.  Epochs may be taken while it is held: then
	 * resume must not start it.  Without this op pause and resume serve. */
	int (*guest_hold)(void *user, bool hold, struct ft_error *err);

	/* -- side stream: octets of the VMM's own that are part of the epochs, as the writes of its disks (primary: the
	 * first two, secondary: the others; all or none of a side's).  Both sides have one, or none: else the secondary refuses the primary, since
	 * disks that are not replicated would be old when the standby is promoted.  The engine carries them in order, looks at none, and
	 * acknowledges an epoch only when side_commit() has returned for it, also if the epoch has no octets.
	 * A failover comes behind all of it: the connection is ended and a side_write() or side_commit() under way has returned, then
	 * load_state is called, and no side_ op from then on.  What it must find are the epochs for which side_commit() returned 0: these
	 * and no others are final.  What side_write() gave behind the last of them is void, as it is at side_begin().  (A failover that is
	 * forced onto an old image, while a full sync is under way, has the epochs of the connection before it.)
	 * The three of a secondary may take as long as the primary's "commit-timeout" and are not taken for a loss. -- */

	/* [ship] The next octets of the side stream into @buf, at most @cap (never less than 4096).  Returns how many, 0 if
	 * there are no more of this epoch now, or a negative errno, which ends the connection.  @epoch: what came before its
	 * cut (output_cut()), called with the guest running again until it returns 0.  0: a round of the full sync is under way, give what there is;
	 * called until it returns 0 or has given what side_left() said when the round began.  Runs beside callbacks of the epoch thread.
	 * Must not wait for the guest. */
	int64_t (*side_read)(void *user, uint64_t epoch, void *buf, size_t cap, struct ft_error *err);
	/* [epoch] Octets that should have been read before the last pause of a full sync.  Asked before each round and before that pause; a guest
	 * that writes faster than they are read does not put it off for ever: then the first epoch has the rest. */
	uint64_t (*side_left)(void *user);
	/* [receive] A connection, and with it a full sync, begins: what came in since the last side_commit() is void. */
	int (*side_begin)(void *user, struct ft_error *err);
	/* [receive] @len octets of @epoch, in the order in which side_read() gave them.  Pieces may be cut anywhere.
	 * An error refuses the epoch and ends the connection; the sentence goes to the primary. */
	int (*side_write)(void *user, uint64_t epoch, const void *buf, size_t len, struct ft_error *err);
	/* [receive] All of @epoch is here; when this returns 0 it is acknowledged, and a failover from now on must find
	 * it.  Bounded. */
	int (*side_commit)(void *user, uint64_t epoch, struct ft_error *err);

	/* [epoch] Optional, primary; "capture" cow needs it, auto uses it: then it may be called many times.  @on: with the guest paused, from its next step on until the same op says
	 * otherwise, ft_session_write_begin() is called before every write to guest memory, by vCPUs and devices alike; a VMM with
	 * writes that it does not see (DMA of a device passed through) leaves this op out.  A pause must not end between such a call
	 * and its write.  Not @on: with the guest running; when it returns nobody is inside of ft_session_write_begin() for this session.  Bounded. */
	int (*write_hook)(void *user, bool on, struct ft_error *err);

	/* [epoch] Optional, primary.  Can the machine be paused and asked at all?  Called in SUSPECT before each attempt to reach the secondary, with
	 * the guest running; negative: no attempt is made until output is about to go free, and status says why.  A secondary that takes a
	 * primary back gives up the last checkpoint for a full sync: a primary whose machine has ended must not ask for that.  Quick. */
	int (*ready)(void *user, struct ft_error *err);
};

/* ---- configuration ----------------------------------------------------------------------------- */

enum ft_on_loss {
	FT_ON_LOSS_CONTINUE = 0, /* guest first: after "suspect" ms without a word from the peer, ALONE */
	FT_ON_LOSS_HOLD,	 /* output stays held until the secondary is back or the operator says otherwise */
};
enum ft_at_cap {
	FT_AT_CAP_CUT = 0, /* cut the epoch when estimate_dirty nears the cap; slow the guest if that was late */
	FT_AT_CAP_SLOW,	   /* keep the interval; the pause lasts while staged pages are shipped */
	FT_AT_CAP_DROP,	   /* cut; where that was late, end the protection instead of slowing the guest, and protect it again later */
};

/* Who says how long an epoch is. */
enum ft_interval_mode {
	FT_INTERVAL_FIXED = 0,	  /* "interval" */
	FT_INTERVAL_OUTPUT_DELAY, /* as long as output then waits no longer than "target-output-delay" */
	FT_INTERVAL_SLOWDOWN,	  /* as short as pauses then take no more of the guest's time than "target-slowdown" */
};

/* How an epoch's pages are made safe. */
enum ft_capture {
	FT_CAPTURE_COPY = 0, /* copied while the guest is paused */
	FT_CAPTURE_COW,	     /* copied when it runs again, each before the guest writes to it; needs write_hook */
	FT_CAPTURE_AUTO,     /* what costs the guest less now; without write_hook the first */
};

/* Pages that were written, but are as the secondary has them. */
enum ft_skip_same {
	FT_SKIP_SAME_OFF = 0, /* are sent */
	FT_SKIP_SAME_ON,      /* are not: each page is looked at; costs 16 octets of memory for each page of the machine */
	FT_SKIP_SAME_AUTO,    /* as long as a sample says that it is worth it */
};

/* Where pages land on the secondary. */
enum ft_placement {
	FT_PLACEMENT_MIRROR = 0, /* in a receive image as large as the machine's memory: one epoch at a time */
	FT_PLACEMENT_SLAB,	 /* in a ring, one behind the other: long writes, several epochs on their way, memory for the ring only */
};

/* The witness could not be asked for so long that the lease is over. */
enum ft_witness_loss {
	FT_WITNESS_SAFE = 0,  /* the guest is stopped: FENCED */
	FT_WITNESS_AVAILABLE, /* it goes on, and so does its output where the secondary acknowledges it, until the witness says that another has the lease */
};

/* How a secondary's memory is registered with its rdma device. */
enum ft_rdma_registration {
	FT_RDMA_CHUNKS = 0, /* chunk by chunk, when first written; least recently used ones are given back within a budget */
	FT_RDMA_WHOLE,	    /* all of it at the greeting: it becomes resident and pinned */
	FT_RDMA_ODP,	    /* all of it, pinned by nobody: the device fetches pages; chunks where it cannot */
};

/* How both sides of a tcp connection prove who they are; then all of it is encrypted. */
enum ft_tls {
	FT_TLS_OFF = 0, /* not at all, and nothing is */
	FT_TLS_X509,	/* each has a certificate */
	FT_TLS_PSK,	/* both have the same key */
};

/* All times in ms, all sizes in octets.  The same settings by name, with range, default and meaning:
 * ft_options().  Strings are copied by ft_session_open(). */
struct ft_config {
	size_t struct_size;
	enum ft_role role;
	const char *name;     /* of the machine; "vm" */
	const char *peer;     /* primary: where the secondary listens, "HOST:PORT", "tcp:HOST:PORT", "[::1]:PORT", "rdma:HOST:PORT" */
	const char *listen;   /* secondary: same form; port 0 takes a free one, see ft_session_address() */
	const char *identity; /* what must agree on both sides (machine type, version, devices); "" */
	const char *record;   /* file that gets the protocol stream for ftdump; NULL: none */

	uint32_t interval_ms;	     /* live; from pause to pause; the guest runs for at least a quarter of it */
	uint32_t lanes;		     /* ordered data lanes of the connection */
	uint32_t heartbeat_ms;	     /* live */
	uint32_t heartbeat_misses;   /* live; that many intervals without a word: the peer is lost */
	uint32_t connect_timeout_ms; /* for one attempt, hello included */
	uint32_t reconnect_ms;	     /* pause between attempts; 0: never again */
	uint32_t suspect_ms;	     /* live; how long output stays held after a loss before ALONE */
	uint32_t commit_timeout_ms;  /* commit to ack, and (with 50 us a page more) ack to applied; then the peer is lost */
	uint32_t pause_max_ms;	     /* live; a pause that would outlast it ends the protection, not the guest */
	uint32_t sync_rounds_max;    /* live rounds of the full sync */
	uint32_t sync_pause_ms;	     /* aim for the last pause of the full sync */
	uint64_t staging_bytes;	     /* cap of the primary's staging memory */
	uint64_t state_max;	     /* cap of one device state */
	uint32_t record_payload;     /* 1: pages go into the recording too */
	uint32_t huge_pages;	     /* primary; 1: advise huge pages for staging memory */
	uint32_t lock_memory;	     /* 1: mlock staging and receive memory (RLIMIT_MEMLOCK is checked before the start) */
	enum ft_on_loss on_loss;     /* live */
	enum ft_at_cap at_cap;	     /* live */
	uint32_t output_cut;	     /* live; 1: output that is held ends the epoch, see ft_session_output() */
	uint32_t output_wait_ms;     /* live; how long it may wait for more of it */
	uint32_t output_gap_ms;	     /* live; least time from such an end to the next */

	/* of the connection: what the peer's settings say too is agreed on */
	uint64_t rdma_chunk;	     /* octets, a power of two; the smaller of both sides' */
	uint64_t rdma_pin_budget;    /* octets of the receive image that may be pinned at a time; 0: no limit */
	enum ft_rdma_registration rdma_registration;
	uint32_t credits;	     /* messages on their way on one lane and direction; all transports */
	uint32_t rdma_signal_every;  /* a completion is asked for at least every so many writes */
	uint32_t rdma_queue_depth;   /* work requests on their way on one lane */
	uint32_t rdma_ack_timeout;   /* 4.096 us * 2^n until a packet counts as lost */
	uint32_t rdma_retries;	     /* times that a packet is sent again */

	/* live; the interval that is found by itself, docs/decisions/014 */
	enum ft_interval_mode interval_mode;
	uint32_t interval_min_ms, interval_max_ms;
	uint32_t target_output_delay_ms;
	uint32_t target_slowdown; /* tenths of a percent */
	enum ft_capture capture;     /* primary */
	uint32_t send_ahead;	     /* how often in an epoch its dirty pages are sent while it runs; 0: never */
	enum ft_placement placement; /* primary; the secondary takes either */
	uint32_t epochs_in_flight;   /* shipped and not yet applied, with slab placement; the smaller of both sides' */
	uint64_t ring_bytes;	     /* secondary; of slab placement, whole pages; no more than twice the machine's memory is used */
	enum ft_skip_same skip_same; /* primary */
	uint32_t capture_threads;    /* primary; that copy pages in the pause, ft-epoch counted */
	uint32_t apply_threads;	     /* secondary; that copy a committed epoch into the machine's memory, ft-apply counted */
	uint32_t delta;		     /* primary; 1: pages that differ little from what the secondary has go as the difference; mirror placement */
	uint64_t delta_cache_bytes;  /* primary; contents that are kept to know it */
	uint32_t page_checks;	     /* primary; 1: send a check of each page, so that one that is damaged on the way can be named */
	uint32_t resync;	     /* primary; 1: after a lost connection send what was written since, not all, where the secondary has the rest */
	const char *state_file;	     /* what this side writes down, see ft_session_claim(); NULL: nothing */
	uint32_t join;		     /* secondary; 1: also where the state file says that the machine ran here, which is given up */
	enum ft_tls tls;	     /* tcp; the same on both sides */
	const char *tls_dir;	     /* of certificates or keys, with QEMU's names */
	const char *tls_psk_user;    /* psk; primary: its name; secondary: the only one that it takes, "": each that has a key */
	const char *tls_peer;	     /* x509: names, of which the peer's certificate must have one; "": primary: the host of `peer`; secondary: any */

	/* who may run, docs/decisions/022 */
	const char *witness;	     /* "none", "file:PATH"; the same on both sides */
	uint32_t lease_ms;	     /* how long a renewal is good */
	uint32_t lease_drift_ms;     /* by how much the two hosts' clocks may differ in that time */
	enum ft_witness_loss witness_loss; /* primary */
};

/* ft_config_init - defaults of @role.  (Through the _sized function: it writes no more than the caller's struct has.) */
FT_API void ft_config_init_sized(struct ft_config *cfg, size_t size, enum ft_role role);
static inline void ft_config_init(struct ft_config *cfg, enum ft_role role)
{
	ft_config_init_sized(cfg, sizeof(*cfg), role);
}

enum ft_option_type { FT_OPT_STRING, FT_OPT_UINT, FT_OPT_SIZE, FT_OPT_BOOL, FT_OPT_CHOICE };
enum { FT_OPT_PRIMARY = 1, FT_OPT_SECONDARY = 2, FT_OPT_LIVE = 4, FT_OPT_POWER_OF_2 = 8 };

/* One setting, for command lines, config files, manuals and completion.  All static strings. */
struct ft_option {
	const char *name; /* "interval", "staging-bytes" ... */
	enum ft_option_type type;
	unsigned flags;	     /* FT_OPT_*: who has it, whether ft_session_set() takes it, which values it takes */
	uint64_t min, max;   /* FT_OPT_UINT, FT_OPT_SIZE */
	const char *choices; /* FT_OPT_CHOICE: "continue|hold" */
	const char *unit;    /* "ms", "octets" or "" */
	const char *value;   /* default, as text */
	const char *help;    /* half a sentence */
};

/* ft_options - the table of all settings; *@n gets their number. */
FT_API const struct ft_option *ft_options(size_t *n);
/* ft_config_set - set @name from text (sizes take K, M, G).  String values are kept by pointer.
 * -ENOENT: no such setting; -EINVAL, -ERANGE: the sentence names what would be right. */
FT_API FT_MUST int ft_config_set(struct ft_config *cfg, const char *name, const char *value, struct ft_error *err);
/* ft_config_get - the setting as text into @buf; -ENOENT. */
FT_API int ft_config_get(const struct ft_config *cfg, const char *name, char *buf, size_t size);

/* ---- session ----------------------------------------------------------------------------------- */

/* ft_session_open - one end of the protection of one machine.
 * Copies what it needs from @cfg and @ops.  The session is the caller's; end it with ft_session_close().
 * Does not block.  Callbacks start only after ft_session_start().  On failure *@out is NULL. */
FT_API FT_MUST int ft_session_open(struct ft_session **out, const struct ft_config *cfg, const struct ft_vmm_ops *ops,
				   void *user, struct ft_error *err);

/* ft_session_add_region - guest RAM [@base, @base + @len), same name, order and length on both sides.
 * @len is a multiple of 4096, @base of 4096.  The memory stays the caller's, must stay mapped until
 * ft_session_remove_region() or ft_session_close(), and on a secondary is written by the engine until
 * promotion.  Before start, or on a running primary: there protection is renewed by a full sync.
 * Returns the region's index (>= 0), or -EINVAL, -EEXIST, -ENOSPC, -EBUSY. */
FT_API FT_MUST int ft_session_add_region(struct ft_session *s, const char *name, void *base, uint64_t len,
					 struct ft_error *err);
/* ft_session_remove_region - the reverse.  When it returns, the engine does not touch the memory any more;
 * blocks until the epoch under way has let go of it.  Not from a callback. */
FT_API FT_MUST int ft_session_remove_region(struct ft_session *s, uint32_t region, struct ft_error *err);

enum { FT_CLAIM_RUNNING = 1 }; /* the guest runs already, as it has all the time: the other side is not asked */

/* ft_session_claim - primary, before ft_session_start() and before the guest runs: may it run here?  With neither "witness" nor "state-file" it may.  With a witness the
 * lease is taken: -EBUSY: another side holds it and lives; blocks for "lease" and "lease-drift" where a holder did not give it back; the end of the session gives it back.  With a state file:
 * looks what it says; if the machine ran here before, asks the secondary, for about "suspect" and one "connect-timeout" at most;
 * raises the generation and writes it down.  ft_session_start() does it where it was not done.  Blocks.
 * -EOWNERDEAD: this side has lost the machine (it was fenced, it is a standby, or the other side says that it runs it): not before it has been a secondary.
 * -EBUSY: the other side has a checkpoint to go on from, or serves another primary.  -EHOSTUNREACH: it could not be asked, it may have an image, and "on-loss" says hold.
 * Others: the file cannot be read, is not to be believed, or cannot be written. */
FT_API FT_MUST int ft_session_claim(struct ft_session *s, unsigned flags, struct ft_error *err);

/* ft_session_start - make the threads and begin: a primary connects (and goes on trying), a secondary listens.
 * Checks memory limits first.  Once per session.  With "state-file" also as ft_session_claim() says; of a secondary -EPERM: the file says that the
 * machine ran here, and "join" is off. */
FT_API FT_MUST int ft_session_start(struct ft_session *s, struct ft_error *err);

/* ft_session_stop - end replication in an orderly way: the peer is told, the guest of a primary runs on
 * unprotected with its output free, an inactive secondary keeps its image and can still be promoted.
 * Blocks until the threads have ended, at most about "pause-max" + 2 s.  Harmless when repeated.
 * Not from a callback. */
FT_API void ft_session_stop(struct ft_session *s);

/* ft_session_close - stop, then free.  NULL is harmless.  Not from a callback. */
FT_API void ft_session_close(struct ft_session *s);

/* ft_session_address - where a secondary listens, into @buf: "HOST:PORT", "rdma:HOST:PORT", as a primary takes it.  After start. */
FT_API FT_MUST int ft_session_address(struct ft_session *s, char *buf, size_t size);

/* ft_session_wait - until the state is in @mask (bit 1u << FT_STATE_X) or @timeout_ms are over (-ETIMEDOUT).
 * Returns the state.  Not from a callback. */
FT_API FT_MUST int ft_session_wait(struct ft_session *s, uint32_t mask, uint32_t timeout_ms);

/* ft_session_checkpoint - primary: cut the running epoch now and wait until it is acknowledged.
 * *@epoch gets its number.  -ENOTCONN when not PROTECTED, -ETIMEDOUT.  Not from a callback. */
FT_API FT_MUST int ft_session_checkpoint(struct ft_session *s, uint32_t timeout_ms, uint64_t *epoch, struct ft_error *err);

/* ft_session_cut - primary: end the running epoch soon (output is waiting, say).  Any thread, also from
 * on_event; does not wait. */
FT_API void ft_session_cut(struct ft_session *s);

/* ft_session_output - primary: the guest has sent something that is held, in the epoch that runs now.  With "output-cut" the epoch ends
 * "output-wait" after the first such call, but not before "output-gap" is over since the last end of that kind; so an idle guest's answer
 * waits for one pause and one round trip, and not for the interval.  Any thread, also from a callback; cheap when repeated. */
FT_API void ft_session_output(struct ft_session *s);

/* ft_session_write_begin - primary: the caller will write to pages [@first, @first + @nr) of region @region, see write_hook.  [threads that write
 * guest memory]; never while the guest is paused.  While nothing is captured by copy on write it costs one load.  It may copy pages, and may
 * wait for staging memory: until ft-ship has sent some, the connection ends, or "pause-max" is over since the guest was resumed. */
FT_API void ft_session_write_begin(struct ft_session *s, uint32_t region, uint64_t first, uint64_t nr);

/* ft_session_set - change a setting marked FT_OPT_LIVE.  -EPERM: not changeable while running. */
FT_API FT_MUST int ft_session_set(struct ft_session *s, const char *name, const char *value, struct ft_error *err);

/* ft_session_get - a setting as it is now, as text into @buf; -ENOENT. */
FT_API FT_MUST int ft_session_get(struct ft_session *s, const char *name, char *buf, size_t size);

/* ft_session_pause_guest, ft_session_resume_guest - primary: stop the guest and keep it stopped, still protected: what it did
 * up to then is committed; let it run again.  Blocks until it has stopped, or runs, or @timeout_ms.  The end of the session lets
 * it run.  Not from a callback. */
FT_API FT_MUST int ft_session_pause_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err);
FT_API FT_MUST int ft_session_resume_guest(struct ft_session *s, uint32_t timeout_ms, struct ft_error *err);

enum { FT_FAILOVER_FORCE = 1 }; /* even though the primary seems alive: both may run, see ftctl(1) */

enum ft_failover_outcome {
	FT_FAILOVER_DONE = 0,	  /* the machine runs here, from .epoch */
	FT_FAILOVER_ALREADY,	  /* it did already */
	FT_FAILOVER_NOT_SECONDARY,/* this side is a primary */
	FT_FAILOVER_NO_IMAGE,	  /* nothing complete to run from: before or during the full sync */
	FT_FAILOVER_PEER_ALIVE,	  /* the primary is connected and sends heartbeats; needs FORCE */
	FT_FAILOVER_BUSY,	  /* another call is at it */
	FT_FAILOVER_FAILED,	  /* the VMM could not load or start; see the error; state REFUSED.  Or it could not be written down (without FORCE): nothing has changed */
	FT_FAILOVER_NOT_GRANTED,  /* by the witness: another holds the lease and lives, went on alone since, or it could not be asked; nothing has changed */
};

struct ft_failover_result {
	enum ft_failover_outcome outcome;
	uint64_t epoch; /* the committed epoch the machine goes on from */
	uint64_t stop_ns, apply_ns, load_ns, activate_ns, total_ns; /* phases; 0 if not reached */
};

/* ft_session_failover - promote this secondary.  Answers in every state; blocks until done.  With a witness the lease is taken first, which may take as
 * long as "lease" and "lease-drift"; FORCE is for a witness that cannot be asked, and for an old image, not against a holder that lives.  An apply under way
 * is finished first.  Returns 0 for DONE and ALREADY, else a negative errno with the reason in @err.
 * @res is always filled.  Not from a callback. */
FT_API FT_MUST int ft_session_failover(struct ft_session *s, unsigned flags, struct ft_failover_result *res,
				       struct ft_error *err);

/* ---- status and statistics --------------------------------------------------------------------- */

struct ft_status {
	enum ft_role role;
	enum ft_state state;
	bool is_protected;	/* primary: PROTECTED; secondary: STANDBY */
	char name[FT_NAME_MAX];
	char peer[128];		/* address of the other side, "" if none */
	char reason[FT_ERROR_MAX]; /* why the state is what it is */
	uint64_t state_age_ns;
	uint64_t generation;	/* rises with every promotion; with a witness, that has it, also with each start of a primary and when it goes on alone */
	uint64_t epoch_running, epoch_sent, epoch_acked, epoch_applied;
	uint32_t interval_ms;
	uint32_t sync_round;
	uint64_t sync_pages_done, sync_pages_total;
	uint32_t regions;	   /* how many */
	uint64_t guest_bytes;	   /* sum of the regions */
	uint64_t memory_bytes, memory_cap_bytes; /* staging or receive memory: in use, and its cap */
	bool guest_paused;
	char bottleneck[16]; /* the longest phase of the last epochs: "interval", "ship", "ack", "apply", "capture" ... */

	char transport[32]; /* "tcp", "rdma" ...: of the connection; without one, of the address that is set */
	/* Of a connection over rdma; empty and 0 otherwise. */
	char rdma_device[64], rdma_gid[48]; /* GID: the device's address */
	char rdma_registration[16];	    /* in use: "chunks", "whole", "odp" */
	uint32_t rdma_port, rdma_mtu;	    /* of the device; octets of a packet's payload */
	uint32_t rdma_lanes, rdma_credits;  /* as agreed; data lanes, messages on their way on each */
	uint64_t rdma_chunk_bytes;
	uint64_t rdma_pinned_bytes, rdma_pin_budget;	       /* registered on this side now; 0: no limit */
	uint64_t rdma_peer_pinned_bytes, rdma_peer_pin_budget; /* of the peer's image, as this side had it registered */
	uint64_t rdma_registrations, rdma_deregistrations;     /* of memory on this side, since the connection was made */
	uint64_t rdma_unpins;				       /* chunks that were given back for the budget */

	/* primary: the interval in use, and why it is that; empty and 0 before the first epoch */
	uint64_t interval_now_ns;
	uint64_t watermark_pages;  /* dirty pages at which an epoch ends; 0: no such limit */
	char interval_mode[16];	   /* "fixed", "output-delay", "slowdown" */
	char interval_reason[16];  /* "fixed", "start", "slowdown", "output-delay", "link", "apply", "idle", "min", "max" */
	char epoch_end[16];	   /* what has ended the last epoch: "interval", "output", "watermark", "busy", "cap", "operator" */
	char capture[8];	   /* primary: how the last epoch was captured: "copy", "cow" */
	char skip_same[8];	   /* primary: which pages are looked at, whether the secondary has them: "off", "sample", "on" */

	/* with "state-file", else empty: its path, what it says ("running", "standby" ...), and why the last write failed, "" if it did not */
	char state_file[FT_STATE_FILE_MAX];
	char state_file_says[16];
	char state_file_error[FT_ERROR_MAX];
	/* With a witness; empty and 0 without. */
	char witness[128];	   /* as it is set, cut at the end if it is long */
	char lease[8];		   /* "held"; "late": output waits; "over", "lost"; "none": it is not ours */
	char lease_holder[64];	   /* as the witness had it last; "" nobody */
	uint64_t lease_generation; /* likewise */
	uint64_t lease_left_ns;	   /* until it is late */
	char witness_trouble[FT_ERROR_MAX]; /* why it did not answer last; "" it did */
};
/* ft_session_status - as of now. */
FT_API void ft_session_status_sized(struct ft_session *s, struct ft_status *out, size_t size);
static inline void ft_session_status(struct ft_session *s, struct ft_status *out)
{
	ft_session_status_sized(s, out, sizeof(*out));
}

/* What is measured, each as a distribution over the epochs since the session was started. Times in ns. */
enum ft_metric {
	FT_METRIC_PAUSE = 0,	/* primary: from the call of pause to the return of resume, and its phases: */
	FT_METRIC_STOP, FT_METRIC_COLLECT, FT_METRIC_CAPTURE, FT_METRIC_SAVE, FT_METRIC_RESUME,
	FT_METRIC_SHIP,		/* primary: first write to commit sent */
	FT_METRIC_ACK,		/* primary: commit sent to ack */
	FT_METRIC_APPLIED,	/* primary: ack to applied */
	FT_METRIC_EPOCH,	/* primary: length, resume to resume */
	FT_METRIC_OUTPUT_DELAY,	/* primary: from the cut of an epoch to its release: the least any output waited */
	FT_METRIC_DIRTY_PAGES,	/* primary: pages that were dirty at the pause, zero pages included: without those that were sent ahead */
	FT_METRIC_ZERO_PAGES,	/* primary */
	FT_METRIC_STATE_BYTES,	/* device state of an epoch */
	FT_METRIC_BYTES,	/* primary: octets sent for an epoch */
	FT_METRIC_RECEIVE,	/* secondary: first record of an epoch to its commit */
	FT_METRIC_APPLY,	/* secondary: copy into the standby image */
	FT_METRIC_APPLY_PAGES,	/* secondary */
	FT_METRIC_WRITE_FAULT,	/* primary, "capture" cow: of each write that met a page still to be copied: until it was, waits included */
	FT_METRIC_COUNT
};
FT_API const char *ft_metric_name(enum ft_metric m); /* "pause", "output-delay" ...; "?" */
FT_API const char *ft_metric_unit(enum ft_metric m); /* "ns", "pages", "bytes" */

struct ft_dist {
	uint64_t count, min, max, p50, p99; /* p50 and p99 to within 1/64 of the value */
	double mean;
};

enum ft_counter {
	FT_COUNTER_EPOCHS = 0,	   /* committed */
	FT_COUNTER_BYTES_SENT, FT_COUNTER_BYTES_RECEIVED,
	FT_COUNTER_PAGES, FT_COUNTER_ZERO_PAGES,
	FT_COUNTER_CAP_CUTS,	   /* epochs cut early at the staging cap */
	FT_COUNTER_CAP_STALLS,	   /* pauses that lasted longer for want of staging memory */
	FT_COUNTER_EARLY_CUTS,	   /* epochs cut by ft_session_cut() */
	FT_COUNTER_OUTPUT_CUTS,	   /* epochs cut because output waited */
	FT_COUNTER_RECONNECTS, FT_COUNTER_LOSSES,
	FT_COUNTER_DUPLICATES,	   /* records that came twice */
	FT_COUNTER_REFUSALS,	   /* records or peers refused */
	FT_COUNTER_SIDE_BYTES,	   /* of the side stream: sent, or taken */
	FT_COUNTER_WATERMARK_CUTS, /* epochs cut early at the dirty pages that the controller allows */
	FT_COUNTER_CAP_DROPS,	   /* protections ended at the staging cap */
	FT_COUNTER_COW_FAULTS,	   /* pages that the guest's writers copied before they wrote */
	FT_COUNTER_AHEAD_PAGES,	   /* pages sent while their epoch ran */
	FT_COUNTER_AHEAD_AGAIN,	   /* of these, sent again in the pause as they were written again */
	FT_COUNTER_CAPTURE_SWITCHES, /* "capture" auto: changes from copying in the pause to copy on write and back */
	FT_COUNTER_SAME_PAGES,	   /* pages that were not sent: the secondary had them as they were; zero pages too */
	FT_COUNTER_SKIP_SWITCHES,  /* "skip-same" auto: changes from looking at a sample to all pages, and back */
	FT_COUNTER_DELTA_PAGES,	   /* pages that went as differences, */
	FT_COUNTER_DELTA_BYTES,	   /* and octets of these */
	FT_COUNTER_RESYNCS,	   /* connections that went on from what the secondary had, instead of a full copy */
	FT_COUNTER_COUNT
};
FT_API const char *ft_counter_name(enum ft_counter c);

struct ft_stats {
	struct ft_dist dist[FT_METRIC_COUNT];
	uint64_t counter[FT_COUNTER_COUNT];
};
FT_API void ft_session_stats(struct ft_session *s, struct ft_stats *out);

/* ---- output held by epoch: for VMMs that have no such queue of their own -------------------------
 * Usable without a session too, whatever makes the copies of a machine: it knows nothing but the numbers of epochs, which must rise from cut to
 * cut.  ft_output_write() holds into the epoch that runs, ft_output_cut(n) ends epoch n, ft_output_release(n) lets out all up to n.
 * docs/examples/hold.c is that and nothing else. */

struct ft_output;

/* ft_output_open - a queue for what a guest sends on one device.  @emit gets octets that may leave, in order,
 * on the thread that called ft_output_write() or ft_output_release(), with the queue's lock held: it must not
 * block.  It returns how many octets it took (the rest is offered again at the next ft_output_kick()).
 * Until the first ft_output_cut() everything passes at once.  @cap_bytes bounds what is held. */
FT_API FT_MUST int ft_output_open(struct ft_output **out, uint64_t cap_bytes,
				  size_t (*emit)(void *user, const void *buf, size_t len), void *user);
/* ft_output_open_packets - the same for packets, as the frames of a network card: each write is one, of 1 to FT_OUTPUT_PACKET_MAX octets
 * (else -EMSGSIZE), and @emit gets one whole packet a call, which it takes (returns its length) or not (0).  Each costs 4 octets of
 * @cap_bytes more. */
#define FT_OUTPUT_PACKET_MAX 69632u /* a frame of 64 KiB, as offloading makes them, and its heads */
FT_API FT_MUST int ft_output_open_packets(struct ft_output **out, uint64_t cap_bytes,
					  size_t (*emit)(void *user, const void *buf, size_t len), void *user);
FT_API void ft_output_close(struct ft_output *o);
/* ft_output_write - the guest sent @len octets, or one packet.  -ENOSPC at the cap: nothing was taken; cut an epoch and offer again, or drop it. */
FT_API FT_MUST int ft_output_write(struct ft_output *o, const void *buf, size_t len);
/* ft_output_room - octets that may be written before the cap. */
FT_API uint64_t ft_output_room(struct ft_output *o);
/* ft_output_cut - what was written since the last cut belongs to epoch @epoch.  The first cut begins the holding; what was written before it is let out.
 * With a session: call it from output_cut. */
FT_API void ft_output_cut(struct ft_output *o, uint64_t epoch);
/* ft_output_release - what belongs to epochs <= @epoch may leave; what is not cut yet may not.  UINT64_MAX: hold nothing any more, until the next
 * cut.  With a session: call it from output_release. */
FT_API void ft_output_release(struct ft_output *o, uint64_t epoch);
/* ft_output_drop - throw away what is held, and hold what comes; what was let out before may still be taken.  With a session: call it from output_drop. */
FT_API void ft_output_drop(struct ft_output *o);
FT_API void ft_output_kick(struct ft_output *o);		    /* the sink has room again */
FT_API uint64_t ft_output_held(struct ft_output *o);		    /* octets that may not leave yet */
FT_API uint64_t ft_output_pending(struct ft_output *o);		    /* octets that may leave but were not taken yet */

/* ---- control socket: JSON lines on a Unix socket, see ft-control(7) ------------------------------- */

struct ft_control;
struct json_t;

/* ft_control_command - a command the library does not know (or a VMM's own).  @args is the request object, the reply
 * object is put into *@reply (a new reference).  [control thread]; may block, other clients wait meanwhile.
 * -ENOSYS: unknown here too. */
typedef int ft_control_command(void *user, const char *cmd, const struct json_t *args, struct json_t **reply,
			       struct ft_error *err);

/* ft_control_open - serve @path (mode 0600; a dead socket there is replaced, a live one is -EADDRINUSE).
 * Starts one thread.  No session needs to be set yet. */
FT_API FT_MUST int ft_control_open(struct ft_control **out, const char *path, ft_control_command *extra, void *user,
				   struct ft_error *err);
/* ft_control_set_session - the session that commands are for; NULL: none.  When it returns no command is using the old one:
 * it waits for those under way, so call ft_session_stop() first, which ends them.  Also from within @extra. */
FT_API void ft_control_set_session(struct ft_control *c, struct ft_session *s);
/* ft_control_close - end the thread, remove the socket.  Waits for commands under way, as above.  NULL is harmless. */
FT_API void ft_control_close(struct ft_control *c);

/* ---- logging ------------------------------------------------------------------------------------ */

enum ft_log_level { FT_LOG_ERROR = 0, FT_LOG_WARN, FT_LOG_INFO, FT_LOG_DEBUG };
/* ft_log_set - where the library's log lines of at most @level go; NULL: nowhere (the default).  Process wide.
 * [any thread]; @fn must be thread-safe and must not call ft_. */
FT_API void ft_log_set(void (*fn)(void *user, enum ft_log_level level, const char *module, const char *msg), void *user,
		       enum ft_log_level level);

FT_API const char *ft_version(void);

#ifdef __cplusplus
}
#endif
#endif
