/* SPDX-License-Identifier: MIT */
/* fuzz_recording.c - any octets as the file of a recorded stream.
 * The checksum of an entry would stop the fuzzer at its door, so the octets are tried as they are and then once more
 * with the checksums of entries put right. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "recording.h"
#include "wire.h"

#define FILE_HEAD 16u
#define ENTRY_HEAD 48u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void read_all(const uint8_t *data, size_t size)
{
	int fd = memfd_create("recording", MFD_CLOEXEC);
	struct recording_reader *reader;
	struct recording_entry e;
	struct ft_error err = { 0 };
	char path[64];

	check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (recording_open(&reader, path, &err) == 0) {
		while (recording_next(reader, &e, &err) > 0) {
			check(e.payload_bytes <= RECORDING_WRITE_MAX && recording_offset(reader) <= size);
			for (uint32_t i = 0; i < e.payload_bytes; i++)
				sink ^= e.payload[i];
		}
		recording_reader_close(reader);
	}
	close(fd);
}

static uint32_t crc(const uint8_t *p, size_t n)
{
	uint32_t c = ~0u;

	while (n--) {
		c ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			c = (c >> 1) ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

static void mend(uint8_t *data, size_t size)
{
	size_t at = FILE_HEAD;

	while (at <= size && size - at >= ENTRY_HEAD) {
		ft_be32 payload, sum;
		size_t len;

		memcpy(&payload, data + at + 40, sizeof(payload));
		len = from_be32(payload);
		if (len > size - at - ENTRY_HEAD)
			return;
		sum = to_be32(crc(data + at + 8, ENTRY_HEAD - 8 + len));
		memcpy(data + at + 4, &sum, sizeof(sum));
		at += ENTRY_HEAD + ((len + 7) & ~(size_t)7);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy;

	read_all(data, size);
	if (size < FILE_HEAD)
		return 0;
	copy = malloc(size);
	check(copy != NULL);
	memcpy(copy, data, size);
	mend(copy, size);
	read_all(copy, size);
	free(copy);
	return 0;
}
