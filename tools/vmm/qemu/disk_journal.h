/* SPDX-License-Identifier: MIT */
/* disk_journal.h - the secondary's side of the disks: what comes in is written to a file, and applied to the images when its epoch was committed.
 *
 * The file: a head of 4096 octets, then the stream of disk_stream.h as it came, with a COMMIT record at the end of each epoch.  The head says up to
 * where the images have it, in two copies that are written by turns, so that one is always whole.  What the images have is given
 * back to the file system, and the file begins anew when they have all.
 *
 *  J1  A record is applied only behind which, in the file, a COMMIT with the right digest stands.
 *  J2  "applied up to P" is written after the images were flushed, and is stable before the file lets go of what is before P.
 *  J3  What is applied is applied in the order of the stream; again from P after a crash, which comes to the same.
 *  J4  Until the first commit in this process there is no image to go back to: what comes in goes to the images at once, and the head says
 *      "incomplete" before the first of it; that is taken back after the flush of that commit.
 *  J5  What is applied is stable in the file before any of it goes to the images: else they could be, after the power went, something in between.
 *
 * journal_begin(), journal_write(), journal_commit(): one thread at a time; the images are written by a thread of the journal, or, J4, by theirs. */
#ifndef FT_QEMU_DISK_JOURNAL_H
#define FT_QEMU_DISK_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>
#include "disk_stream.h"
#include "util.h"

/* In the sentence that refuses the changes of a copy that is not here; the primary's ftqemu looks for it. */
#define JOURNAL_NO_BASE "the secondary does not have this copy of the disks"

struct journal;

struct journal_config {
	const char *path;
	const uint64_t *size;
	const uint64_t *id; /* of each image: another one has another; NULL: nothing is known of them */
	unsigned nr;
	uint64_t cap_bytes; /* committed and not applied: when it is more, what comes in waits */
	bool durable;	    /* commits are stable when they return */
	/* [journal's thread; with J4 that of journal_write(); before that of journal_open()] The images. */
	int (*write)(void *user, unsigned disk, uint64_t offset, const void *buf, size_t len, struct ft_error *err);
	int (*zero)(void *user, unsigned disk, uint64_t offset, uint32_t len, struct ft_error *err);
	int (*flush)(void *user, struct ft_error *err); /* all of them */
	void *user;
};

/* journal_open - what is left in the file is applied first; *@replayed gets the octets of it.  -EEXIST: what is there is no journal of these
 * images, and has something to apply, or is no journal at all. */
int journal_open(struct journal **out, const struct journal_config *config, uint64_t *replayed, struct ft_error *err);

int journal_begin(struct journal *j, struct ft_error *err);
int journal_write(struct journal *j, const void *buf, size_t len, struct ft_error *err);
int journal_commit(struct journal *j, uint64_t epoch, struct ft_error *err);

/* journal_halt, journal_again - nothing is applied in between: the images may be opened anew, also after they failed. */
void journal_halt(struct journal *j);
int journal_again(struct journal *j, struct ft_error *err);

/* journal_finish - apply what is committed, forget the rest; the file is removed unless the images are incomplete.  Afterwards only
 * journal_close(). */
int journal_finish(struct journal *j, struct ft_error *err);
/* journal_close - stop at once, as a crash does; the file stays for the next start.  NULL is harmless. */
void journal_close(struct journal *j);

/* journal_look - what a file that nobody uses says about these images; nothing, if it is not there or is of others.  Of @config: path, size, id, nr. */
struct journal_look {
	bool is_incomplete; /* a first copy did not come to its end: the images are nothing */
	uint64_t bytes;	    /* that the images lack */
};
void journal_look(const struct journal_config *config, struct journal_look *out);

uint64_t journal_bytes(struct journal *j); /* that the images do not have yet */
bool journal_has_failed(struct journal *j); /* nothing is applied any more, until journal_halt() and journal_again() */

#endif
