/* SPDX-License-Identifier: MIT */
/* recording.h - the file that --record writes and ftdump reads: every message and write of one side, with time.
 * docs/protocol.md "Recorded streams" has the layout.  Thread-safe.  A full disk ends the recording with one
 * log line, never the protection. */
#ifndef FT_RECORDING_H
#define FT_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <ft/error.h>

struct recording;

enum recording_kind { RECORDING_MESSAGE = 1, RECORDING_WRITE = 2, RECORDING_OPEN = 3, RECORDING_CLOSE = 4 };
enum recording_direction { RECORDING_SENT = 1, RECORDING_RECEIVED = 2 };

struct recording_entry {
	uint32_t kind, direction, lane;
	uint32_t connection; /* from 1, in the order of their open */
	uint64_t time_ns;
	uint32_t window; /* writes */
	uint64_t offset;
	uint32_t write_bytes;   /* writes: octets on the wire, also when the payload was not recorded */
	uint32_t payload_bytes; /* octets of @payload that are in the file */
	const uint8_t *payload; /* message, pages, or text of open/close */
};

#define RECORDING_IOV_MAX 64u
#define RECORDING_MESSAGE_MAX 65536u
#define RECORDING_WRITE_MAX (4u << 20)
#define RECORDING_TEXT_MAX 512u

/* recording_create - a new file of mode 0600 (with @payload it holds guest memory); an old one is emptied.
 * A pipe is never waited for: a reader that is too slow ends the recording. */
int recording_create(struct recording **out, const char *path, bool payload, struct ft_error *err);
/* A session may have several connections at a time (one that is served, others that are turned away), so each entry says
 * of which it is.  recording_begin() writes the open entry and returns the connection's number; recording_end() the close
 * entry.  With @r NULL all of these do nothing.
 * Record what is sent before it is handed to the transport, and what is received before it is acted upon, both with the
 * lane's order kept; so an answer never stands in front of its question. */
uint32_t recording_begin(struct recording *r, const char *text);
void recording_end(struct recording *r, uint32_t connection, const char *text);
void recording_message(struct recording *r, uint32_t connection, uint32_t direction, uint32_t lane, const void *msg, size_t len);
void recording_write(struct recording *r, uint32_t connection, uint32_t direction, uint32_t lane, uint32_t window, uint64_t offset,
		     const struct iovec *iov, unsigned nr_iov);
void recording_close(struct recording *r); /* NULL is harmless */

struct recording_reader;
int recording_open(struct recording_reader **out, const char *path, struct ft_error *err);
/* 1: an entry, valid until the next call; 0: end; -EPROTO: damaged, with the offset in the sentence; -ENODATA: cut off in an entry. */
int recording_next(struct recording_reader *r, struct recording_entry *out, struct ft_error *err);
bool recording_has_payload(const struct recording_reader *r);
uint64_t recording_offset(const struct recording_reader *r); /* of the entry that comes next */
void recording_reader_close(struct recording_reader *r); /* NULL is harmless */

#endif
