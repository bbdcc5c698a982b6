/* SPDX-License-Identifier: MIT */
/* disk_nbd.h - client of one NBD export on a Unix socket, with libnbd: QEMU's own export of a disk (read), qemu-nbd's of an image (written).
 * Each call has a deadline of its own; one that passes it, or fails, leaves a connection that is good for nothing but disk_nbd_close().
 * One thread at a time. */
#ifndef FT_QEMU_DISK_NBD_H
#define FT_QEMU_DISK_NBD_H

#include <stdbool.h>
#include <stdint.h>
#include "util.h"

struct disk_nbd;

/* disk_nbd_open - @size: what it has to have. */
int disk_nbd_open(struct disk_nbd **out, const char *path, const char *export, uint64_t size, struct ft_error *err);
void disk_nbd_close(struct disk_nbd *d);

/* disk_nbd_look - what is at [@offset, @offset + *@len)?  Zeros: *@zero, and *@len may become shorter.  Else *@len becomes at most
 * @read_max and that many octets are put into @buf.  A *@len that is made shorter is a multiple of @unit. */
int disk_nbd_look(struct disk_nbd *d, uint64_t offset, uint32_t *len, uint32_t unit, uint32_t read_max, void *buf, bool *zero,
		  struct ft_error *err);
int disk_nbd_write(struct disk_nbd *d, uint64_t offset, const void *buf, size_t len, struct ft_error *err);
int disk_nbd_zero(struct disk_nbd *d, uint64_t offset, uint32_t len, struct ft_error *err);
int disk_nbd_flush(struct disk_nbd *d, struct ft_error *err);

#endif
