/* SPDX-License-Identifier: MIT */
/* options.c - the settings of a session: one table that command lines, config files, the control socket and the manual
 * pages are made from.  The text of a default in the table is the default: ft_config_init_sized() parses it.
 * Constant data and pure functions on the caller's struct ft_config; any thread. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "crew.h"
#include "witness.h"

#define BOTH (FT_OPT_PRIMARY | FT_OPT_SECONDARY)
#define PRIMARY FT_OPT_PRIMARY
#define LIVE FT_OPT_LIVE

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)
#define HOUR_MS UINT64_C(3600000)

#define RDMA_BUDGET_CHUNKS 4u /* a budget of fewer chunks would be used up by one write and what it waits for */

/* clang-format off */
enum setting {
	NAME, PEER, LISTEN, IDENTITY, RECORD, RECORD_PAYLOAD, INTERVAL, LANES, HEARTBEAT, HEARTBEAT_MISSES,
	CONNECT_TIMEOUT, RECONNECT, SUSPECT, ON_LOSS, COMMIT_TIMEOUT, PAUSE_MAX, SYNC_ROUNDS, SYNC_PAUSE,
	STAGING_BYTES, AT_CAP, OUTPUT_CUT, OUTPUT_WAIT, OUTPUT_GAP, STATE_MAX, HUGE_PAGES, LOCK_MEMORY, CREDITS, RDMA_REGISTRATION, RDMA_CHUNK, RDMA_PIN_BUDGET,
	RDMA_SIGNAL_EVERY, RDMA_QUEUE_DEPTH, RDMA_ACK_TIMEOUT, RDMA_RETRIES,
	INTERVAL_MODE, INTERVAL_MIN, INTERVAL_MAX, TARGET_OUTPUT_DELAY, TARGET_SLOWDOWN, CAPTURE, SEND_AHEAD,
	PLACEMENT, EPOCHS_IN_FLIGHT, RING_BYTES, SKIP_SAME, CAPTURE_THREADS, APPLY_THREADS, DELTA, DELTA_CACHE, PAGE_CHECKS,
	RESYNC, STATE_FILE, JOIN, TLS, TLS_DIR, TLS_PSK_USER, TLS_PEER,
	WITNESS, LEASE, LEASE_DRIFT, WITNESS_LOSS, NR_SETTINGS
};

#define STRING(name, flags, value, help) { name, FT_OPT_STRING, flags, 0, 0, NULL, "", value, help }
#define UINT(name, flags, min, max, unit, value, help) { name, FT_OPT_UINT, flags, min, max, NULL, unit, value, help }
#define SIZE(name, flags, min, max, value, help) { name, FT_OPT_SIZE, flags, min, max, NULL, "octets", value, help }
#define BOOL(name, flags, value, help) { name, FT_OPT_BOOL, flags, 0, 1, NULL, "", value, help }
#define CHOICE(name, flags, choices, value, help) { name, FT_OPT_CHOICE, flags, 0, 0, choices, "", value, help }

static const struct ft_option options[NR_SETTINGS] = {
	[NAME] = STRING("name", BOTH, "vm", "name of the machine; the same on both sides"),
	[PEER] = STRING("peer", PRIMARY, "", "where the secondary listens: HOST:PORT, [ADDRESS]:PORT, rdma:HOST:PORT"),
	[LISTEN] = STRING("listen", FT_OPT_SECONDARY, "", "where to wait for the primary: ADDRESS:PORT, rdma:ADDRESS:PORT; port 0 takes a free one"),
	[IDENTITY] = STRING("identity", BOTH, "", "text that must agree on both sides: machine type, version, devices"),
	[RECORD] = STRING("record", BOTH, "", "file that gets the protocol stream, for ftdump(1)"),
	[RECORD_PAYLOAD] = BOOL("record-payload", BOTH, "off", "record the contents of pages too"),
	[INTERVAL] = UINT("interval", PRIMARY | LIVE, 1, HOUR_MS, "ms", "50",
			  "how long the guest runs between two checkpoints"),
	[LANES] = UINT("lanes", BOTH, 1, 8, "", "1", "data connections side by side"),
	[HEARTBEAT] = UINT("heartbeat", BOTH | LIVE, 5, 60000, "ms", "100", "how often each side says that it lives"),
	[HEARTBEAT_MISSES] = UINT("heartbeat-misses", BOTH | LIVE, 2, 1000, "", "10",
				  "that many heartbeats missing: the peer is lost"),
	[CONNECT_TIMEOUT] = UINT("connect-timeout", BOTH, 100, HOUR_MS, "ms", "5000",
				 "time for one attempt to connect, greeting included"),
	[RECONNECT] = UINT("reconnect", PRIMARY, 0, HOUR_MS, "ms", "1000",
			   "pause between attempts to connect; 0: one attempt only"),
	[SUSPECT] = UINT("suspect", PRIMARY | LIVE, 0, HOUR_MS, "ms", "500",
			 "how long output stays held after a loss before the guest goes on alone"),
	[ON_LOSS] = CHOICE("on-loss", PRIMARY | LIVE, "continue|hold", "continue",
			   "after a loss: continue unprotected, or hold output until the secondary is back"),
	[COMMIT_TIMEOUT] = UINT("commit-timeout", BOTH, 100, HOUR_MS, "ms", "5000",
				"how long the secondary may take for one epoch before it counts as lost"),
	[PAUSE_MAX] = UINT("pause-max", PRIMARY | LIVE, 10, HOUR_MS, "ms", "2000",
			   "a pause that would outlast it ends the protection, not the guest"),
	[SYNC_ROUNDS] = UINT("sync-rounds", PRIMARY, 1, 1000, "", "20", "most rounds of a full copy with the guest running"),
	[SYNC_PAUSE] = UINT("sync-pause", PRIMARY, 1, HOUR_MS, "ms", "50", "length to aim at for the last pause of a full copy"),
	[STAGING_BYTES] = SIZE("staging-bytes", PRIMARY, 16 * MIB, TIB, "256M", "memory for captured pages that are not yet sent"),
	[AT_CAP] = CHOICE("at-cap", PRIMARY | LIVE, "cut|slow|drop", "cut",
			  "when that memory runs short: cut the epoch early, slow the guest, or drop the protection"),
	[OUTPUT_CUT] = BOOL("output-cut", PRIMARY | LIVE, "on", "end the epoch when the guest has sent something that is held"),
	[OUTPUT_WAIT] = UINT("output-wait", PRIMARY | LIVE, 0, HOUR_MS, "ms", "0", "how long it may wait for more, to be sent with it"),
	[OUTPUT_GAP] = UINT("output-gap", PRIMARY | LIVE, 0, HOUR_MS, "ms", "20", "least time from such an end to the next"),
	[STATE_MAX] = SIZE("state-max", BOTH, 4 * KIB, 4 * GIB, "64M", "largest device state of one epoch"),
	[HUGE_PAGES] = BOOL("huge-pages", PRIMARY, "on", "ask for huge pages for staging memory"),
	[LOCK_MEMORY] = BOOL("lock-memory", BOTH, "off", "lock staging and receive memory into RAM"),
	/* fewer than 4 do not do: a receiver tells half of them at a time, heartbeats leave the other half, ack and applied need one each */
	[CREDITS] = UINT("credits", BOTH, 4, 1024, "", "8", "messages that may be on their way to this side on each lane"),
	[RDMA_REGISTRATION] = CHOICE("rdma-registration", BOTH, "chunks|whole|odp", "chunks",
				     "how the secondary's memory is registered: when written, all at once, or by the device"),
	[RDMA_CHUNK] = SIZE("rdma-chunk", BOTH | FT_OPT_POWER_OF_2, MIB, 256 * MIB, "1M", "octets that are registered at a time; a power of two"),
	[RDMA_PIN_BUDGET] = SIZE("rdma-pin-budget", BOTH, 0, 64 * TIB, "0", "most memory registered by chunks at a time; 0: no limit"),
	[RDMA_SIGNAL_EVERY] = UINT("rdma-signal-every", BOTH, 1, 8192, "", "64", "writes for which one completion is asked"),
	[RDMA_QUEUE_DEPTH] = UINT("rdma-queue-depth", BOTH, 4, 8192, "", "256", "work requests on their way on each lane"),
	[RDMA_ACK_TIMEOUT] = UINT("rdma-ack-timeout", BOTH, 1, 31, "", "17",
				  "n: after 4.096 us * 2^n without an answer a packet is sent again"),
	[RDMA_RETRIES] = UINT("rdma-retries", BOTH, 1, 6, "", "6", "times that a packet is sent again before the peer is lost"),
	[INTERVAL_MODE] = CHOICE("interval-mode", PRIMARY | LIVE, "fixed|output-delay|slowdown", "fixed",
				 "who says how long an epoch is: interval, or the target of that name"),
	[INTERVAL_MIN] = UINT("interval-min", PRIMARY | LIVE, 1, HOUR_MS, "ms", "5", "shortest interval that a target may choose"),
	[INTERVAL_MAX] = UINT("interval-max", PRIMARY | LIVE, 1, HOUR_MS, "ms", "1000", "longest interval that a target may choose"),
	[TARGET_OUTPUT_DELAY] = UINT("target-output-delay", PRIMARY | LIVE, 1, HOUR_MS, "ms", "50", "longest time that output should wait"),
	[TARGET_SLOWDOWN] = UINT("target-slowdown", PRIMARY | LIVE, 1, 500, "", "50",
				 "most of the guest's time that pauses should take, in tenths of a percent"),
	[CAPTURE] = CHOICE("capture", PRIMARY, "copy|cow|auto", "copy", "copy an epoch's pages in the pause, or each before the guest writes to it again; or as is cheaper now"),
	[SEND_AHEAD] = UINT("send-ahead", PRIMARY, 0, 64, "", "0", "how often in an epoch its dirty pages are sent while it runs; 0: never"),
	[PLACEMENT] = CHOICE("placement", PRIMARY, "mirror|slab", "slab", "where pages land on the secondary: each in its place of a receive image, or in a ring"),
	[EPOCHS_IN_FLIGHT] = UINT("epochs-in-flight", BOTH, 1, 8, "", "2", "epochs on their way that the secondary has not applied; placement slab"),
	[RING_BYTES] = SIZE("ring-bytes", FT_OPT_SECONDARY, 2 * MIB, TIB, "128M", "memory for pages that are not applied yet; placement slab"),
	[SKIP_SAME] = CHOICE("skip-same", PRIMARY, "off|on|auto", "auto", "do not send pages that the secondary has as they are; or as long as that is worth a look at each"),
	[CAPTURE_THREADS] = UINT("capture-threads", PRIMARY, 1, CREW_MAX, "", "1", "threads that copy an epoch's pages in the pause"),
	[APPLY_THREADS] = UINT("apply-threads", FT_OPT_SECONDARY, 1, CREW_MAX, "", "1", "threads that copy a committed epoch into the standby's memory"),
	[DELTA] = BOOL("delta", PRIMARY, "off", "send pages that differ little from what the secondary has as the difference; placement mirror"),
	[DELTA_CACHE] = SIZE("delta-cache", PRIMARY, MIB, TIB, "64M", "memory for contents of pages, to find the difference"),
	[RESYNC] = BOOL("resync", PRIMARY, "on", "after a lost connection send what was written since, not the whole machine, where the secondary has the rest"),
	[PAGE_CHECKS] = BOOL("page-checks", PRIMARY, "off", "send a check of each page, so that one that is damaged on the way is named"),
	[STATE_FILE] = STRING("state-file", BOTH, "", "file in which this side writes down whether the machine may run here"),
	[JOIN] = BOOL("join", FT_OPT_SECONDARY, "off", "become a secondary though the state file says that the machine ran here: that is given up"),
	[TLS] = CHOICE("tls", BOTH, "off|x509|psk", "off", "encrypt the connection and know the peer: by certificates, or by a key that both have; tcp"),
	[TLS_DIR] = STRING("tls-dir", BOTH, "", "folder of certificates (ca-cert.pem, server-cert.pem, client-cert.pem ...) or keys (keys.psk)"),
	[TLS_PSK_USER] = STRING("tls-psk-user", BOTH, "", "name of the key in keys.psk; on a secondary the only one that it takes"),
	[TLS_PEER] = STRING("tls-peer", BOTH, "", "names, of which the certificate of the other side must have one"),
	[WITNESS] = STRING("witness", BOTH, "none", "who is asked which side may run: none, or file:PATH on storage that both sides see"),
	[LEASE] = UINT("lease", BOTH, 100, HOUR_MS, "ms", "2000", "how long the right to run is good without a word from the witness"),
	[LEASE_DRIFT] = UINT("lease-drift", BOTH, 1, HOUR_MS / 4, "ms", "100", "by how much the clocks of the two hosts may differ in that time"),
	[WITNESS_LOSS] = CHOICE("witness-loss", PRIMARY, "safe|available", "safe",
				"when the witness cannot be asked for too long: stop the guest, or go on where the secondary answers"),
};

static const size_t field[NR_SETTINGS] = {
#define FIELD(f) offsetof(struct ft_config, f)
	[NAME] = FIELD(name),
	[PEER] = FIELD(peer),
	[LISTEN] = FIELD(listen),
	[IDENTITY] = FIELD(identity),
	[RECORD] = FIELD(record),
	[RECORD_PAYLOAD] = FIELD(record_payload),
	[INTERVAL] = FIELD(interval_ms),
	[LANES] = FIELD(lanes),
	[HEARTBEAT] = FIELD(heartbeat_ms),
	[HEARTBEAT_MISSES] = FIELD(heartbeat_misses),
	[CONNECT_TIMEOUT] = FIELD(connect_timeout_ms),
	[RECONNECT] = FIELD(reconnect_ms),
	[SUSPECT] = FIELD(suspect_ms),
	[ON_LOSS] = FIELD(on_loss),
	[COMMIT_TIMEOUT] = FIELD(commit_timeout_ms),
	[PAUSE_MAX] = FIELD(pause_max_ms),
	[SYNC_ROUNDS] = FIELD(sync_rounds_max),
	[SYNC_PAUSE] = FIELD(sync_pause_ms),
	[STAGING_BYTES] = FIELD(staging_bytes),
	[AT_CAP] = FIELD(at_cap),
	[OUTPUT_CUT] = FIELD(output_cut),
	[OUTPUT_WAIT] = FIELD(output_wait_ms),
	[OUTPUT_GAP] = FIELD(output_gap_ms),
	[STATE_MAX] = FIELD(state_max),
	[HUGE_PAGES] = FIELD(huge_pages),
	[LOCK_MEMORY] = FIELD(lock_memory),
	[CREDITS] = FIELD(credits),
	[RDMA_REGISTRATION] = FIELD(rdma_registration),
	[RDMA_CHUNK] = FIELD(rdma_chunk),
	[RDMA_PIN_BUDGET] = FIELD(rdma_pin_budget),
	[RDMA_SIGNAL_EVERY] = FIELD(rdma_signal_every),
	[RDMA_QUEUE_DEPTH] = FIELD(rdma_queue_depth),
	[RDMA_ACK_TIMEOUT] = FIELD(rdma_ack_timeout),
	[RDMA_RETRIES] = FIELD(rdma_retries),
	[INTERVAL_MODE] = FIELD(interval_mode),
	[INTERVAL_MIN] = FIELD(interval_min_ms),
	[INTERVAL_MAX] = FIELD(interval_max_ms),
	[TARGET_OUTPUT_DELAY] = FIELD(target_output_delay_ms),
	[TARGET_SLOWDOWN] = FIELD(target_slowdown),
	[CAPTURE] = FIELD(capture),
	[SEND_AHEAD] = FIELD(send_ahead),
	[PLACEMENT] = FIELD(placement),
	[EPOCHS_IN_FLIGHT] = FIELD(epochs_in_flight),
	[RING_BYTES] = FIELD(ring_bytes),
	[SKIP_SAME] = FIELD(skip_same),
	[CAPTURE_THREADS] = FIELD(capture_threads),
	[APPLY_THREADS] = FIELD(apply_threads),
	[DELTA] = FIELD(delta),
	[DELTA_CACHE] = FIELD(delta_cache_bytes),
	[PAGE_CHECKS] = FIELD(page_checks),
	[RESYNC] = FIELD(resync),
	[STATE_FILE] = FIELD(state_file),
	[JOIN] = FIELD(join),
	[TLS] = FIELD(tls),
	[TLS_DIR] = FIELD(tls_dir),
	[TLS_PSK_USER] = FIELD(tls_psk_user),
	[TLS_PEER] = FIELD(tls_peer),
	[WITNESS] = FIELD(witness),
	[LEASE] = FIELD(lease_ms),
	[LEASE_DRIFT] = FIELD(lease_drift_ms),
	[WITNESS_LOSS] = FIELD(witness_loss),
#undef FIELD
};
/* clang-format on */

_Static_assert(sizeof(enum ft_on_loss) == sizeof(uint32_t) && sizeof(enum ft_at_cap) == sizeof(uint32_t) &&
		       sizeof(enum ft_rdma_registration) == sizeof(uint32_t) &&
		       sizeof(enum ft_capture) == sizeof(uint32_t) && sizeof(enum ft_placement) == sizeof(uint32_t),
	       "a choice is kept as its number");
_Static_assert(sizeof(enum ft_interval_mode) == sizeof(uint32_t) && sizeof(enum ft_skip_same) == sizeof(uint32_t) &&
		       sizeof(enum ft_tls) == sizeof(uint32_t) && sizeof(enum ft_witness_loss) == sizeof(uint32_t),
	       "a choice is kept as its number");

const struct ft_option *ft_options(size_t *n)
{
	*n = NR_SETTINGS;
	return options;
}

const struct ft_option *options_find(const char *name)
{
	for (size_t i = 0; i < NR_SETTINGS; i++)
		if (strcmp(options[i].name, name) == 0)
			return &options[i];
	return NULL;
}

static void *field_of(struct ft_config *cfg, const struct ft_option *opt)
{
	return (char *)cfg + field[opt - options];
}

static const void *field_read(const struct ft_config *cfg, const struct ft_option *opt)
{
	return (const char *)cfg + field[opt - options];
}

/* Does the caller's struct have the field?  One of an older ft.h ends before it. */
static bool has_field(const struct ft_config *cfg, const struct ft_option *opt)
{
	size_t width = opt->type == FT_OPT_STRING ? sizeof(char *)
		       : opt->type == FT_OPT_SIZE ? sizeof(uint64_t)
						  : sizeof(uint32_t);

	return field[opt - options] + width <= cfg->struct_size;
}

/* The number that a field holds, whatever its width; not for strings. */
static uint64_t number_of(const struct ft_config *cfg, const struct ft_option *opt)
{
	if (opt->type == FT_OPT_SIZE)
		return *(const uint64_t *)field_read(cfg, opt);
	return *(const uint32_t *)field_read(cfg, opt);
}

/* ---- text to value ------------------------------------------------------------------------------ */

/* Decimal digits only: strtoull() would take signs, blanks and octal.  Returns what follows, NULL without digits or
 * beyond 64 bits. */
static const char *digits(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	if (*text < '0' || *text > '9')
		return NULL;
	for (; *text >= '0' && *text <= '9'; text++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*text - '0'), &v))
			return NULL;
	*out = v;
	return text;
}

static int parse_uint(const struct ft_option *opt, const char *text, uint64_t *out)
{
	const char *rest = digits(text, out);

	if (!rest)
		return -EINVAL;
	if (strcmp(opt->unit, "ms") == 0) {
		if (strcmp(rest, "s") == 0)
			return __builtin_mul_overflow(*out, 1000, out) ? -EINVAL : 0;
		if (strcmp(rest, "ms") == 0)
			return 0;
	}
	return *rest ? -EINVAL : 0;
}

static int parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *rest = digits(text, out), *unit;

	if (!rest)
		return -EINVAL;
	if (!*rest)
		return 0;
	unit = strchr(units, *rest);
	if (!unit || (rest[1] && strcmp(rest + 1, "iB") != 0))
		return -EINVAL;
	return __builtin_mul_overflow(*out, KIB << (10 * (unit - units)), out) ? -EINVAL : 0;
}

static int parse_bool(const char *text, uint64_t *out)
{
	static const char *const words[] = { "off", "on", "no", "yes", "false", "true", "0", "1" };

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(text, words[i]) == 0) {
			*out = i & 1;
			return 0;
		}
	return -EINVAL;
}

/* The word number @n of "a|b|c"; NULL behind the last. */
static const char *choice_at(const char *choices, uint64_t n, size_t *len)
{
	while (n--) {
		choices = strchr(choices, '|');
		if (!choices)
			return NULL;
		choices++;
	}
	*len = strcspn(choices, "|");
	return choices;
}

static int parse_choice(const struct ft_option *opt, const char *text, uint64_t *out)
{
	const char *word;
	size_t len;

	for (uint64_t i = 0; (word = choice_at(opt->choices, i, &len)); i++)
		if (strlen(text) == len && memcmp(word, text, len) == 0) {
			*out = i;
			return 0;
		}
	return -EINVAL;
}

static int parse_number(const struct ft_option *opt, const char *text, uint64_t *out)
{
	switch (opt->type) {
	case FT_OPT_UINT:
		return parse_uint(opt, text, out);
	case FT_OPT_SIZE:
		return parse_size(text, out);
	case FT_OPT_BOOL:
		return parse_bool(text, out);
	case FT_OPT_CHOICE:
		return parse_choice(opt, text, out);
	case FT_OPT_STRING:
		break;
	}
	return -EINVAL;
}

/* ---- value to text ------------------------------------------------------------------------------ */

static void print_size(char *buf, size_t size, uint64_t v)
{
	static const char *const units[] = { "", "K", "M", "G", "T" };
	unsigned u = 0;

	for (; v && v % KIB == 0 && u < 4; u++)
		v /= KIB;
	snprintf(buf, size, "%" PRIu64 "%s", v, units[u]);
}

static void print_number(const struct ft_option *opt, uint64_t v, char *buf, size_t size)
{
	const char *word;
	size_t len;

	switch (opt->type) {
	case FT_OPT_SIZE:
		print_size(buf, size, v);
		return;
	case FT_OPT_BOOL:
		snprintf(buf, size, "%s", v ? "on" : "off");
		return;
	case FT_OPT_CHOICE:
		word = choice_at(opt->choices, v, &len);
		snprintf(buf, size, "%.*s", word ? (int)len : 1, word ? word : "?");
		return;
	case FT_OPT_UINT:
	case FT_OPT_STRING:
		break;
	}
	snprintf(buf, size, "%" PRIu64, v);
}

/* ---- what is wrong, and what would be right ----------------------------------------------------- */

static int refuse_form(const struct ft_option *opt, const char *text, struct ft_error *err)
{
	switch (opt->type) {
	case FT_OPT_BOOL:
		return err_set(err, -EINVAL, "%s: '%.64s' is neither on nor off", opt->name, text);
	case FT_OPT_CHOICE:
		return err_set(err, -EINVAL, "%s: '%.64s' is not one of %s", opt->name, text, opt->choices);
	case FT_OPT_SIZE:
		return err_set(err, -EINVAL, "%s: '%.64s' is not a size such as 4096, 64K, 256M or 1G", opt->name,
			       text);
	case FT_OPT_UINT:
	case FT_OPT_STRING:
		break;
	}
	if (strcmp(opt->unit, "ms") == 0)
		return err_set(err, -EINVAL, "%s: '%.64s' is not a time such as 50, 50ms or 2s", opt->name, text);
	return err_set(err, -EINVAL, "%s: '%.64s' is not a number", opt->name, text);
}

static int check_range(const struct ft_option *opt, uint64_t v, struct ft_error *err)
{
	char is[32], min[32], max[32];
	const char *unit = opt->type == FT_OPT_UINT && opt->unit[0] ? " ms" : "";
	size_t len;

	if (opt->type == FT_OPT_CHOICE) {
		if (choice_at(opt->choices, v, &len))
			return 0;
		return err_set(err, -ERANGE, "%s: %" PRIu64 " stands for none of %s", opt->name, v, opt->choices);
	}
	if (v >= opt->min && v <= opt->max) {
		if (opt->flags & FT_OPT_POWER_OF_2 && v & (v - 1))
			return err_set(err, -EINVAL, "%s: %" PRIu64 " is not a power of two", opt->name, v);
		return 0;
	}
	if (opt->type == FT_OPT_BOOL)
		return err_set(err, -ERANGE, "%s: %" PRIu64 " is neither 0 nor 1", opt->name, v);
	print_number(opt, v, is, sizeof(is));
	print_number(opt, opt->min, min, sizeof(min));
	print_number(opt, opt->max, max, sizeof(max));
	return err_set(err, -ERANGE, "%s: %s%s is outside of %s to %s%s", opt->name, is, unit, min, max, unit);
}

/* A name becomes part of file names and of log lines. */
static int check_name(const char *text, struct ft_error *err)
{
	if (!*text)
		return err_set(err, -EINVAL, "name: a machine needs a name");
	if (strlen(text) >= FT_NAME_MAX)
		return err_set(err, -ERANGE, "name: longer than %u characters", FT_NAME_MAX - 1);
	if (*text == '.')
		return err_set(err, -EINVAL, "name: '%s' begins with a dot", text);
	for (const char *p = text; *p; p++)
		if (*p == '/' || (unsigned char)*p < ' ' || *p == 0x7f)
			return err_set(err, -EINVAL, "name: contains a slash or a control character");
	return 0;
}

static int check_string(const struct ft_option *opt, const char *text, struct ft_error *err)
{
	if (opt == &options[NAME])
		return check_name(text ? text : "", err);
	if (opt == &options[IDENTITY] && text && strlen(text) >= FT_IDENTITY_MAX)
		return err_set(err, -ERANGE, "identity: longer than %u octets", FT_IDENTITY_MAX - 1);
	if (opt == &options[STATE_FILE] && text && strlen(text) >= FT_STATE_FILE_MAX)
		return err_set(err, -ERANGE, "state-file: longer than %u octets", FT_STATE_FILE_MAX - 1);
	if (opt == &options[TLS_PSK_USER] && text && strlen(text) >= FT_NAME_MAX)
		return err_set(err, -ERANGE, "tls-psk-user: longer than %u characters", FT_NAME_MAX - 1);
	return 0;
}

/* ---- public ------------------------------------------------------------------------------------- */

static int set_string(struct ft_config *cfg, const struct ft_option *opt, const char *value, struct ft_error *err)
{
	int r = check_string(opt, value, err);

	if (r)
		return r;
	/* empty is "not set"; only the identity is a text in its own right */
	*(const char **)field_of(cfg, opt) = *value || opt == &options[IDENTITY] ? value : NULL;
	return 0;
}

int ft_config_set(struct ft_config *cfg, const char *name, const char *value, struct ft_error *err)
{
	const struct ft_option *opt = options_find(name);
	uint64_t v = 0;
	int r;

	if (!opt)
		return err_set(err, -ENOENT, "there is no setting '%.64s'", name);
	if (!has_field(cfg, opt))
		return err_set(err, -ENOENT, "%s: this program was built for an older libft, without it", opt->name);
	if (opt->type == FT_OPT_STRING)
		return set_string(cfg, opt, value, err);
	if (parse_number(opt, value, &v) < 0)
		return refuse_form(opt, value, err);
	r = check_range(opt, v, err);
	if (r)
		return r;
	if (opt->type == FT_OPT_SIZE)
		*(uint64_t *)field_of(cfg, opt) = v;
	else
		*(uint32_t *)field_of(cfg, opt) = (uint32_t)v;
	return 0;
}

int ft_config_get(const struct ft_config *cfg, const char *name, char *buf, size_t size)
{
	const struct ft_option *opt = options_find(name);
	const char *text;

	if (!opt || !has_field(cfg, opt))
		return -ENOENT;
	if (opt->type == FT_OPT_STRING) {
		text = *(const char *const *)field_read(cfg, opt);
		snprintf(buf, size, "%s", text ? text : "");
	} else {
		print_number(opt, number_of(cfg, opt), buf, size);
	}
	return 0;
}

void ft_config_init_sized(struct ft_config *cfg, size_t size, enum ft_role role)
{
	struct ft_config all = { .struct_size = size, .role = role };
	int r;

	for (size_t i = 0; i < NR_SETTINGS; i++) {
		r = ft_config_set(&all, options[i].name, options[i].value, NULL);
		(void)r; /* a default that its own range refuses: tests/unit/test_options.c */
	}
	memset(cfg, 0, size);
	memcpy(cfg, &all, size < sizeof(all) ? size : sizeof(all));
}

/* ---- inside the library ------------------------------------------------------------------------- */

static int check_fields(const struct ft_config *cfg, struct ft_error *err)
{
	int r = 0;

	for (size_t i = 0; i < NR_SETTINGS && !r; i++) {
		const struct ft_option *opt = &options[i];

		if (opt->type == FT_OPT_STRING)
			r = check_string(opt, *(const char *const *)field_read(cfg, opt), err);
		else
			r = check_range(opt, number_of(cfg, opt), err);
	}
	return r;
}

static bool is_empty(const char *text)
{
	return !text || !*text;
}

static int check_rdma(const struct ft_config *cfg, struct ft_error *err)
{
	char budget[32];

	print_size(budget, sizeof(budget), cfg->rdma_pin_budget);
	if (cfg->rdma_pin_budget && cfg->rdma_pin_budget < RDMA_BUDGET_CHUNKS * cfg->rdma_chunk)
		return err_set(err, -EINVAL, "rdma-pin-budget: %s is less than %u chunks of %" PRIu64 "M (rdma-chunk)",
			       budget, RDMA_BUDGET_CHUNKS, cfg->rdma_chunk / MIB);
	return 0;
}

static int check_tls(const struct ft_config *cfg, struct ft_error *err)
{
	if (cfg->tls == FT_TLS_OFF)
		return 0;
	if (is_empty(cfg->tls_dir))
		return err_set(err, -EINVAL, "tls-dir: TLS needs a folder with its certificates or keys");
	if (cfg->tls == FT_TLS_PSK && cfg->role == FT_ROLE_PRIMARY && is_empty(cfg->tls_psk_user))
		return err_set(err, -EINVAL, "tls-psk-user: a primary needs the name of its key in keys.psk");
	if (cfg->tls == FT_TLS_PSK && !is_empty(cfg->tls_peer))
		return err_set(err, -EINVAL,
			       "tls-peer: is about certificates (tls x509); with psk the key says who the peer is");
	return 0;
}

/* The holder counts the bound off its lease, and who waits for it adds it: what is left must be worth a lease, with three questions in it. */
static int check_lease(const struct ft_config *cfg, struct ft_error *err)
{
	if (!witness_is_none(cfg->witness) && !is_empty(cfg->state_file))
		return err_set(
			err, -EINVAL,
			"state-file: goes without a witness only: each of them has its own idea of the generation");
	if (!witness_is_none(cfg->witness) && cfg->lease_drift_ms * 4 > cfg->lease_ms)
		return err_set(err, -EINVAL, "lease-drift: %u ms is more than a quarter of the lease, %u ms",
			       cfg->lease_drift_ms, cfg->lease_ms);
	return witness_check(cfg->witness, err);
}

int options_check(const struct ft_config *cfg, struct ft_error *err)
{
	int r;

	if (cfg->struct_size != sizeof(*cfg))
		return err_set(err, -EINVAL, "struct ft_config of %zu octets: set it up with ft_config_init()",
			       cfg->struct_size);
	if (cfg->role != FT_ROLE_PRIMARY && cfg->role != FT_ROLE_SECONDARY)
		return err_set(err, -EINVAL, "role %d is neither primary nor secondary", (int)cfg->role);
	r = check_fields(cfg, err);
	if (r)
		return r;
	if (cfg->role == FT_ROLE_PRIMARY && is_empty(cfg->peer))
		return err_set(err, -EINVAL, "peer: a primary needs the address of its secondary, HOST:PORT");
	if (cfg->role == FT_ROLE_SECONDARY && is_empty(cfg->listen))
		return err_set(err, -EINVAL, "listen: a secondary needs an address to listen on, ADDRESS:PORT");
	if (cfg->join && is_empty(cfg->state_file))
		return err_set(err, -EINVAL, "join: there is nothing to give up, 'state-file' names no file");
	if (cfg->record_payload && is_empty(cfg->record))
		return err_set(err, -EINVAL, "record-payload: there is no recording, 'record' names no file");
	if (cfg->role == FT_ROLE_PRIMARY && cfg->sync_pause_ms > cfg->pause_max_ms)
		return err_set(err, -EINVAL, "sync-pause: %u ms is more than pause-max allows, %u ms",
			       cfg->sync_pause_ms, cfg->pause_max_ms);
	if (cfg->role == FT_ROLE_PRIMARY && cfg->interval_min_ms > cfg->interval_max_ms)
		return err_set(err, -EINVAL, "interval-min: %u ms is more than interval-max, %u ms",
			       cfg->interval_min_ms, cfg->interval_max_ms);
	if (cfg->role == FT_ROLE_PRIMARY && cfg->send_ahead && cfg->capture != FT_CAPTURE_COPY)
		return err_set(err, -EINVAL,
			       "send-ahead: with capture cow the pause copies nothing that could be sent before, and "
			       "auto may choose it");
	if (cfg->role == FT_ROLE_PRIMARY && cfg->delta && cfg->placement == FT_PLACEMENT_SLAB)
		return err_set(
			err, -EINVAL,
			"delta: goes with placement mirror only: pages in a ring have nothing that they could differ "
			"from");
	if (cfg->ring_bytes % FT_PAGE_SIZE)
		return err_set(err, -EINVAL, "ring-bytes: %llu is not a multiple of %u",
			       (unsigned long long)cfg->ring_bytes, FT_PAGE_SIZE);
	r = check_rdma(cfg, err);
	if (!r)
		r = check_tls(cfg, err);
	return r ? r : check_lease(cfg, err);
}

int options_set_live(struct ft_config *cfg, const char *name, const char *value, struct ft_error *err)
{
	const struct ft_option *opt = options_find(name);
	unsigned role = cfg->role == FT_ROLE_PRIMARY ? FT_OPT_PRIMARY : FT_OPT_SECONDARY;
	struct ft_config changed = *cfg;
	int r;

	if (opt && !(opt->flags & role))
		return err_set(err, -EPERM, "%s: a %s has no such setting", name,
			       role == FT_OPT_PRIMARY ? "primary" : "secondary");
	if (opt && !(opt->flags & FT_OPT_LIVE))
		return err_set(err, -EPERM, "%s: cannot be changed while running", name);
	r = ft_config_set(&changed, name, value, err);
	if (!r)
		r = options_check(&changed, err);
	if (!r)
		*cfg = changed;
	return r;
}
