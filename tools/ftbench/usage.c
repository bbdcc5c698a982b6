/* SPDX-License-Identifier: MIT */
/* usage.c - processor time of the engine's threads (their names begin with "ft-") and memory of this process, from /proc. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "bench.h"

uint64_t mono_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static bool read_line(const char *of, const char *task, const char *file, char *buf, int size)
{
	char path[384];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "/proc/%s/task/%s/%s", of, task, file);
	f = fopen(path, "re");
	ok = f && fgets(buf, size, f);
	if (f)
		fclose(f);
	return ok;
}

static bool is_of_secondary(const char *comm)
{
	return !strncmp(comm, "ft-receive", 10) || !strncmp(comm, "ft-apply", 8) || !strncmp(comm, "ft-accept", 9);
}

static bool read_cpu(const char *of, const char *task, uint64_t *ns)
{
	char stat[128];

	return read_line(of, task, "schedstat", stat, sizeof(stat)) && sscanf(stat, "%" SCNu64, ns) == 1;
}

static void add_thread(struct usage *u, const char *task)
{
	char comm[64];
	uint64_t ns;

	if (!read_line("self", task, "comm", comm, sizeof(comm)) || strncmp(comm, "ft-", 3) != 0 ||
	    !read_cpu("self", task, &ns))
		return;
	*(is_of_secondary(comm) ? &u->cpu_secondary_ns : &u->cpu_primary_ns) += ns;
}

static void read_memory(struct usage *u)
{
	FILE *f = fopen("/proc/self/status", "re");
	uint64_t kib, locked = 0, pinned = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
			u->rss_bytes = kib * 1024;
		if (sscanf(line, "VmLck: %" SCNu64, &kib) == 1)
			locked = kib * 1024;
		if (sscanf(line, "VmPin: %" SCNu64, &kib) == 1)
			pinned = kib * 1024;
	}
	u->pinned_bytes = locked + pinned;
	if (f)
		fclose(f);
}

uint64_t usage_resident(void)
{
	struct usage u = { 0 };

	read_memory(&u);
	return u.rss_bytes;
}

void usage_read(struct usage *u)
{
	DIR *d = opendir("/proc/self/task");

	*u = (struct usage){ 0 };
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.')
			add_thread(u, e->d_name);
	if (d)
		closedir(d);
	read_memory(u);
}

static uint64_t proportional_bytes(pid_t pid)
{
	char path[64], line[256];
	uint64_t kib, sum = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Pss: %" SCNu64, &kib) == 1)
			sum = kib * 1024;
	if (f)
		fclose(f);
	return sum;
}

void usage_of(pid_t pid, struct usage *u)
{
	char of[16], path[64];
	pid_t child[16];
	unsigned n = host_children(pid, child, 16);
	uint64_t ns;
	DIR *d;

	*u = (struct usage){ 0 };
	snprintf(of, sizeof(of), "%d", (int)pid);
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.' && read_cpu(of, e->d_name, &ns))
			u->cpu_primary_ns += ns;
	if (d)
		closedir(d);
	u->rss_bytes = proportional_bytes(pid);
	for (unsigned i = 0; i < n; i++)
		u->rss_bytes += proportional_bytes(child[i]);
}
