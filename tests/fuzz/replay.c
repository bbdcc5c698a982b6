/* SPDX-License-Identifier: MIT */
/* replay.c - every file of a folder through a fuzz target, in every build: what the fuzzer once found stays found.
 *	replay_NAME FOLDER...
 * Fails if there is nothing to replay. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* replay_file - the octets are in memory of exactly their size, so that AddressSanitizer sees the end. */
static int replay_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = NULL;
	long size = -1;
	int ok = 0;

	if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0)
		data = malloc(size ? (size_t)size : 1);
	if (data && fread(data, 1, (size_t)size, f) == (size_t)size) {
		LLVMFuzzerTestOneInput(data, (size_t)size);
		ok = 1;
	} else {
		perror(path);
	}
	free(data);
	if (f)
		fclose(f);
	return ok ? 0 : -1;
}

/* replay_folder - how many files; -1 if one could not be read. */
static int replay_folder(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	char path[4096];
	int n = 0;

	if (!d) {
		perror(folder);
		return -1;
	}
	while (n >= 0 && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		n = replay_file(path) ? -1 : n + 1;
	}
	closedir(d);
	return n;
}

int main(int argc, char **argv)
{
	int total = 0;

	for (int i = 1; i < argc; i++) {
		int n = replay_folder(argv[i]);

		if (n < 0)
			return 1;
		total += n;
	}
	printf("%d files replayed\n", total);
	return total > 0 ? 0 : 1;
}
