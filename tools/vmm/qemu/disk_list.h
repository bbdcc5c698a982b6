/* SPDX-License-Identifier: MIT */
/* disk_list.h - the disks that a guest can write, as QEMU has them open: asked of QEMU, judged, and told in the identity.  Main thread. */
#ifndef FT_QEMU_DISK_LIST_H
#define FT_QEMU_DISK_LIST_H

#include <stdbool.h>
#include <stdint.h>
#include "disk_stream.h"
#include "qmp.h"

struct disk_info {
	char name[96];	 /* of the drive, else of its device, else of its node */
	char node[64];	 /* QEMU's node of the image */
	char format[16]; /* "raw", "qcow2" */
	char file[512];
	uint64_t size; /* as the guest sees it */
};

struct disk_list {
	struct disk_info disk[DISKS_MAX];
	uint64_t size[DISKS_MAX]; /* the same once more, in a row */
	uint64_t id[DISKS_MAX];	  /* of the file: another file, also of that name, has another */
	unsigned nr;
};

/* disk_list_read - what can be replicated.  Another writable disk is refused; with @unsafe it is left out, and @left_out gets a sentence
 * for each. */
int disk_list_read(struct disk_list *out, struct qmp *qmp, uint64_t deadline, bool unsafe, struct strv *left_out, struct ft_error *err);

/* disk_list_identity - @identity with a line for each disk, in a new string of at most @max octets; frees the old one. */
int disk_list_identity(const struct disk_list *list, char **identity, size_t max, struct ft_error *err);

#endif
