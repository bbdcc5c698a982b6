/* SPDX-License-Identifier: MIT */
/* statefile.h - the small file in which one side of a protected machine writes down what it is, so that it is still known after a crash.
 * Text, a key and a value on each line, in this order and no other; a file that is not octet for octet what statefile_write() would have made
 * of its contents is not believed.  What the words mean for who may run: written.h, docs/failover.md.
 * No state of its own: any thread, one at a time for each path.  Waits for the disk; never on the way of an epoch. */
#ifndef FT_STATEFILE_H
#define FT_STATEFILE_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/ft.h>

#define STATEFILE_VERSION 1u
#define STATEFILE_MAX 512u /* octets of a whole file; a longer one is not ours */

enum statefile_word {
	SAYS_NOTHING = 0, /* there is no file */
	SAYS_RUNNING,	  /* the guest runs here; nobody else has an image of this generation */
	SAYS_PROTECTED,	  /* the guest runs here; a secondary may have an image of this generation */
	SAYS_STOPPED,	  /* it ran here to the end of the session, and the secondary was told */
	SAYS_FENCED,	  /* the other side runs it, or a later generation of it: not here */
	SAYS_JOINED,	  /* what was here was given up, to become a secondary */
	SAYS_STANDBY,	  /* an image was committed here */
	SAYS_PROMOTING,	  /* it is about to run here */
	SAYS_REFUSED,	  /* a promotion failed: it does not run here */
	SAYS_COUNT
};

struct statefile {
	enum statefile_word word;
	enum ft_role role; /* of the session that wrote it */
	uint64_t generation;
	uint8_t session[16]; /* of that generation's primary; zeros: none yet */
	uint64_t epoch;	     /* the last one that was committed or acknowledged; see statefile_epoch_exact() */
	char name[FT_NAME_MAX];
};

const char *statefile_word_name(enum statefile_word word); /* "running" ...; "?" */

/* statefile_epoch_exact - is .epoch the last one?  Else there may have been later ones: it is not written at each commit. */
bool statefile_epoch_exact(enum statefile_word word);

/* statefile_read - *@out gets what @path says; no file there is SAYS_NOTHING and 0.  -EBADMSG: damaged, or not a state file; -EPROTONOSUPPORT: of a
 * newer version; else what the system said.  Nothing is changed. */
int statefile_read(const char *path, struct statefile *out, struct ft_error *err);

/* statefile_write - replace @path as a whole and for good: when this returns 0, the new contents are on the disk; when it fails, or the process or the
 * host ends in it, the file is the old one or the new one.  A file beside it, PATH.new, may be left behind. */
int statefile_write(const char *path, const struct statefile *f, struct ft_error *err);

#endif
