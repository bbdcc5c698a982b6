/* SPDX-License-Identifier: MIT */
/* fuzz_nbd.c - any octets as what QEMU's mirror says to the NBD end of a disk.  What is taken lies within the disk. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "nbd_server.h"

#define SIZE (UINT64_C(1) << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t seen;

static void check(bool ok)
{
	if (!ok)
		abort();
}

static int on_write(void *user, uint64_t offset, const void *buf, uint32_t len)
{
	(void)user;
	check(len && offset < SIZE && len <= SIZE - offset);
	for (uint32_t i = 0; i < len; i++)
		seen ^= ((const uint8_t *)buf)[i];
	return offset & 1 ? -1 : 0;
}

static int on_zero(void *user, uint64_t offset, uint32_t len)
{
	(void)user;
	check(len && offset < SIZE && len <= SIZE - offset);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct nbd_export export = { .name = "d", .size = SIZE, .write = on_write, .zero = on_zero };
	struct ft_error why = { 0 };
	int in = memfd_create("in", MFD_CLOEXEC), out = open("/dev/null", O_WRONLY | O_CLOEXEC);

	check(in >= 0 && out >= 0 && write(in, data, size) == (ssize_t)size && lseek(in, 0, SEEK_SET) == 0);
	(void)!nbd_serve(in, out, &export, &why);
	close(in);
	close(out);
	return 0;
}
