/* SPDX-License-Identifier: MIT */
/* disk_standby.h - the secondary's disks: the journal, and a qemu-nbd for each image that the journal is applied through.  The standby's QEMU has the images
 * open too, inactive as in a migration, and reads them anew when it is made to run: by then qemu-nbd has ended.
 * Functions of the side stream: the session's threads, one at a time.  The rest: main thread, disk_standby_finish() also the one that fails over. */
#ifndef FT_QEMU_DISK_STANDBY_H
#define FT_QEMU_DISK_STANDBY_H

#include "disk_journal.h"
#include "disk_list.h"

struct disk_standby;

struct disk_standby_config {
	const struct disk_list *list; /* must stay */
	const char *run_dir;
	const char *journal; /* NULL: beside the first image */
	bool durable;
};

/* disk_standby_look - is there a journal that these images would need, and what does it say?  Of @config: list, journal. */
struct disk_standby_look {
	char path[520];
	struct journal_look journal;
};
void disk_standby_look(const struct disk_standby_config *config, struct disk_standby_look *out);

/* disk_standby_open - qemu-nbd is started, what a journal still has is applied.  @said: gets what the user has to know, or "". */
int disk_standby_open(struct disk_standby **out, const struct disk_standby_config *config, char *said, size_t size, struct ft_error *err);
int disk_standby_begin(struct disk_standby *d, struct ft_error *err);
int disk_standby_write(struct disk_standby *d, const void *buf, size_t len, struct ft_error *err);
int disk_standby_commit(struct disk_standby *d, uint64_t epoch, struct ft_error *err);
uint64_t disk_standby_bytes(struct disk_standby *d); /* of the journal, not yet in the images */

/* disk_standby_finish - the images get all that was committed, and are let go of.  Once more is harmless. */
int disk_standby_finish(struct disk_standby *d, struct ft_error *err);
void disk_standby_close(struct disk_standby *d); /* NULL is harmless */

#endif
