/* SPDX-License-Identifier: MIT */
/* host.c - the processes that a real guest needs, and the folder with their sockets and consoles.
 * The *sweeper* is a process of its own session that only reads the numbers of those processes from a pipe: at its end, which comes with that of
 * the measuring process however it dies, it ends them and removes the folder.  So an interrupted run leaves nothing behind.
 * One thread. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "say.h"

#define END_S 10 /* an orderly end may take that long */

void words_add(struct words *w, const char *fmt, ...)
{
	size_t room = sizeof(w->text) - w->used;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(w->text + w->used, room, fmt, ap);
	va_end(ap);
	if (w->n == WORDS_MAX || n < 0 || (size_t)n >= room)
		abort(); /* the lists are ours, and short */
	w->w[w->n++] = w->text + w->used;
	w->used += (size_t)n + 1;
}

/* ---- processes ---- */

bool host_lives(pid_t pid)
{
	return kill(pid, 0) == 0;
}

unsigned host_children(pid_t pid, pid_t *out, unsigned max)
{
	char path[320];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		FILE *f;
		int child;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int)pid, e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
		while (f && n < max && fscanf(f, "%d", &child) == 1)
			out[n++] = child;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return n;
}

/* First with a word, which ftqemu passes on to its QEMU; what is left then, without. */
static void end_all(const pid_t *pid, unsigned n, bool are_ours)
{
	pid_t of[CHILDREN_MAX][4];
	unsigned nr[CHILDREN_MAX];
	bool some = true;

	for (unsigned i = 0; i < n; i++) {
		nr[i] = host_children(pid[i], of[i], 4);
		kill(pid[i], SIGTERM);
	}
	for (uint64_t end = mono_ns() + END_S * UINT64_C(1000000000); some && mono_ns() < end; sleep_ms(10)) {
		some = false;
		for (unsigned i = 0; i < n; i++)
			some |= are_ours ? waitpid(pid[i], NULL, WNOHANG) == 0 : host_lives(pid[i]);
	}
	for (unsigned i = 0; i < n && some; i++) {
		for (unsigned k = 0; k < nr[i]; k++)
			kill(of[i][k], SIGKILL);
		kill(pid[i], SIGKILL);
		if (are_ours)
			waitpid(pid[i], NULL, 0);
	}
}

static void remove_folder(const char *dir)
{
	DIR *d = opendir(dir);

	for (struct dirent *e; d && (e = readdir(d));)
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(dir);
}

static void sweep(const char *dir, int from)
{
	pid_t pid[CHILDREN_MAX];
	unsigned n = 0;

	setsid();
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	while (n < CHILDREN_MAX && read(from, &pid[n], sizeof(pid[n])) == (ssize_t)sizeof(pid[n]))
		n++;
	end_all(pid, n, false);
	remove_folder(dir);
	_exit(0);
}

int host_open(struct host *h, struct ft_error *err)
{
	const char *where = getenv("TMPDIR");
	int pair[2];
	pid_t pid;

	*h = (struct host){ .sweeper = -1 };
	snprintf(h->dir, sizeof(h->dir), "%.24s/ftbench-XXXXXX", where && strlen(where) <= 24 ? where : "/tmp");
	if (!mkdtemp(h->dir))
		return say(err, -errno, "%s: %s", h->dir, strerror(errno));
	if (pipe2(pair, O_CLOEXEC)) {
		rmdir(h->dir);
		return say(err, -errno, "pipe: %s", strerror(errno));
	}
	pid = fork();
	if (pid == 0) {
		close(pair[1]);
		sweep(h->dir, pair[0]);
	}
	close(pair[0]);
	h->sweeper = pair[1];
	if (pid > 0)
		return 0;
	host_close(h);
	return say(err, -EAGAIN, "fork: %s", strerror(errno));
}

static void become(struct host *h, const char *name, const struct words *w, const char *preload)
{
	char path[128];
	int fd;

	setsid();
	signal(SIGPIPE, SIG_DFL);
	fd = open("/dev/null", O_RDONLY);
	dup2(fd, STDIN_FILENO);
	snprintf(path, sizeof(path), "%s/%s.out", h->dir, name);
	dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
	snprintf(path, sizeof(path), "%s/%s.log", h->dir, name);
	dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
	if (preload)
		setenv("LD_PRELOAD", preload, 1);
	execvp(w->w[0], (char *const *)(uintptr_t)w->w);
	fprintf(stderr, "%s: %s\n", w->w[0], strerror(errno));
	_exit(127);
}

pid_t host_start(struct host *h, const char *name, const struct words *w, const char *preload, struct ft_error *err)
{
	pid_t pid;

	if (h->n == CHILDREN_MAX)
		return say(err, -E2BIG, "more than %u processes", CHILDREN_MAX);
	pid = fork();
	if (pid == 0)
		become(h, name, w, preload);
	if (pid < 0)
		return say(err, -errno, "fork: %s", strerror(errno));
	h->child[h->n++] = pid;
	if (write(h->sweeper, &pid, sizeof(pid)) != (ssize_t)sizeof(pid))
		return say(err, -EIO, "the sweeper has ended");
	return pid;
}

int host_wait(struct host *h, pid_t pid, uint64_t deadline_ns)
{
	int status = 0;
	pid_t r;

	while ((r = waitpid(pid, &status, WNOHANG)) == 0 && mono_ns() < deadline_ns)
		sleep_ms(5);
	if (r == 0)
		return -ETIMEDOUT;
	for (unsigned i = 0; i < h->n; i++)
		if (h->child[i] == pid)
			h->child[i] = h->child[--h->n];
	return r == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

const char *host_said(struct host *h, const char *name, char *buf, size_t size)
{
	char path[128];
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.log", h->dir, name);
	f = fopen(path, "re");
	if (f && (fseek(f, -(long)(size - 1), SEEK_END) == 0 || fseek(f, 0, SEEK_SET) == 0))
		n = fread(buf, 1, size - 1, f);
	if (f)
		fclose(f);
	while (n && buf[n - 1] == '\n')
		n--;
	buf[n] = '\0';
	return buf;
}

void host_close(struct host *h)
{
	if (h->sweeper < 0)
		return;
	end_all(h->child, h->n, true);
	remove_folder(h->dir);
	close(h->sweeper);
	*h = (struct host){ .sweeper = -1 };
}

/* ---- what there is ---- */

uint16_t host_free_port(void)
{
	uint16_t port = 0;
	int fd = limit_tcp_listen(&port);

	if (fd >= 0)
		close(fd);
	return port;
}

bool host_has(const char *program)
{
	const char *at = getenv("PATH");

	while (at && *at) {
		size_t n = strcspn(at, ":");
		char path[512];

		snprintf(path, sizeof(path), "%.*s/%s", (int)n, at, program);
		if (access(path, X_OK) == 0)
			return true;
		at += n + (at[n] == ':');
	}
	return false;
}
