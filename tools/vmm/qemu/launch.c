/* SPDX-License-Identifier: MIT */
/* launch.c - see launch.h. */
#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "qmp.h"

#define SHIM_MS 10000
#define RUN_DIRS_MAX 100 /* of one name */
#define CAPTURE_MAX (1u << 20)

/* ---- run directory ------------------------------------------------------------------------------ */

static int make_private(const char *dir, struct ft_error *err)
{
	struct stat st;

	if (mkdir(dir, 0700) && errno != EEXIST)
		return fail_sys(err, -errno, "run directory %s", dir);
	if (lstat(dir, &st))
		return fail_sys(err, -errno, "run directory %s", dir);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)
		return fail(err, -EPERM, "run directory %s: must be a directory of ours with mode 0700", dir);
	return 0;
}

static void sweep(const char *dir)
{
	char path[512];
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.' || !strcmp(e->d_name, "lock"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		unlink(path);
	}
	if (d)
		closedir(d);
}

/* -EBUSY: in use. */
static int take_dir(const char *dir, int *lock, struct ft_error *err)
{
	char path[512];
	int rc = make_private(dir, err);

	if (rc)
		return rc;
	snprintf(path, sizeof(path), "%s/lock", dir);
	*lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (*lock < 0)
		return fail_sys(err, -errno, "%s", path);
	if (flock(*lock, LOCK_EX | LOCK_NB)) {
		fd_close(lock);
		return fail(err, -EBUSY, "run directory %s is in use", dir);
	}
	sweep(dir);
	return 0;
}

int run_dir_make(const char *base, const char *name, char *out, size_t size, int *lock, struct ft_error *err)
{
	int rc = -EBUSY, n;

	*lock = -1;
	if (!name[0] || name[0] == '.' || strchr(name, '/'))
		return fail(err, -EINVAL,
			    "machine name \"%s\": neither empty nor with a slash or a dot in front, please", name);
	for (n = 1; rc == -EBUSY && n <= RUN_DIRS_MAX; n++) {
		int used = n == 1 ? snprintf(out, size, "%s/%s", base, name)
				  : snprintf(out, size, "%s/%s.%d", base, name, n);

		if (used >= (int)size)
			return fail(err, -ENAMETOOLONG, "machine name \"%.40s...\" is too long", name);
		rc = take_dir(out, lock, err);
	}
	return rc;
}

void run_dir_remove(const char *dir)
{
	char path[512];

	sweep(dir);
	snprintf(path, sizeof(path), "%s/lock", dir);
	unlink(path);
	rmdir(dir);
}

/* ---- QEMU --------------------------------------------------------------------------------------- */

static void keep_on_exec(int fd)
{
	if (fd >= 0)
		fcntl(fd, F_SETFD, 0);
}

/* In the child; returns only on failure, with errno. */
static void become_qemu(const struct launch *l, int log, int shim)
{
	char number[16];
	sigset_t none;
	int null = open("/dev/null", O_RDWR);

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
		return;
	keep_on_exec(l->ram_fd);
	keep_on_exec(l->lock_fd);
	keep_on_exec(shim);
	snprintf(number, sizeof(number), "%d", shim);
	setenv("FT_SHIM_FD", number, 1);
	if (l->preload)
		setenv("LD_PRELOAD", l->preload, 1);
	execvp(l->argv[0], l->argv);
}

static pid_t spawn(const struct launch *l, int log, int shim, int report)
{
	pid_t pid = fork();
	int why;

	if (pid)
		return pid;
	become_qemu(l, log, shim);
	why = errno;
	if (write(report, &why, sizeof(why)) < 0)
		_exit(126);
	_exit(127);
}

int launch_qemu(const struct launch *l, pid_t *pid, int *pidfd, int *uffd, struct ft_error *err)
{
	int report[2] = { -1, -1 }, shim[2] = { -1, -1 }, log, why = 0, rc = 0;

	*pid = 0;
	*pidfd = *uffd = -1;
	log = open(l->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0)
		return fail_sys(err, -errno, "log of QEMU %s", l->log);
	if (pipe2(report, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, shim)) {
		rc = fail_sys(err, -errno, "pipe");
		goto out;
	}
	*pid = spawn(l, log, shim[1], report[1]);
	if (*pid < 0) {
		rc = fail_sys(err, -errno, "fork");
		goto out;
	}
	fd_close(&report[1]);
	fd_close(&shim[1]);
	*pidfd = (int)syscall(SYS_pidfd_open, *pid, 0);
	if (read(report[0], &why, sizeof(why)) == sizeof(why)) {
		waitpid(*pid, NULL, 0);
		*pid = 0;
		fd_close(pidfd);
		rc = fail_sys(err, -why, "%s", l->argv[0]);
		goto out;
	}
	if (*pidfd < 0)
		rc = fail_sys(err, -errno, "pidfd");
	/* the socket closes when QEMU ends, or when the shim could not do its work: both are told by what comes next */
	*uffd = fd_receive(shim[0], util_deadline_ms(SHIM_MS));
	if (*uffd < 0)
		*uffd = -1;
out:
	fd_close(&log);
	fd_close(&report[0]);
	fd_close(&report[1]);
	fd_close(&shim[0]);
	fd_close(&shim[1]);
	return rc;
}

char *launch_capture(char *const *argv)
{
	char *text = malloc(CAPTURE_MAX);
	size_t used = 0;
	int fd[2];
	ssize_t n;
	pid_t pid;

	if (!text || pipe2(fd, O_CLOEXEC)) {
		free(text);
		return NULL;
	}
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		if (null >= 0 && dup2(null, 0) == 0 && dup2(fd[1], 1) == 1 && dup2(fd[1], 2) == 2)
			execvp(argv[0], argv);
		_exit(127);
	}
	fd_close(&fd[1]);
	while (pid > 0 && used < CAPTURE_MAX - 1 && (n = read(fd[0], text + used, CAPTURE_MAX - 1 - used)) != 0) {
		if (n < 0 && errno != EINTR)
			break;
		used += n > 0 ? (size_t)n : 0;
	}
	fd_close(&fd[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	text[used] = '\0';
	return text;
}

void launch_last_words(const char *log, char *buf, size_t size)
{
	bool has_complaint = false, complaint;
	char text[2048], *line, *save = NULL;
	int fd = open(log, O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;
	off_t end;

	buf[0] = '\0';
	if (fd < 0)
		return;
	end = lseek(fd, 0, SEEK_END);
	n = pread(fd, text, sizeof(text) - 1, end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0);
	close(fd);
	if (n <= 0)
		return;
	text[n] = '\0';
	/* its complaints begin with its name; what follows may be advice */
	for (line = strtok_r(text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
		complaint = strncmp(line, "qemu", 4) == 0;
		if (complaint || !has_complaint)
			snprintf(buf, size, "%s", line);
		has_complaint |= complaint;
	}
}

/* ---- guard -------------------------------------------------------------------------------------- */

bool launch_was_paused(const char *status)
{
	static const char *const ours[] = { "paused", "save-vm", "finish-migrate", "postmigrate" };
	size_t i;

	for (i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strcmp(status, ours[i]))
			return true;
	return false;
}

static bool is_there(void *user)
{
	return kill(*(pid_t *)user, 0) == 0;
}

/* The guest of the dead was paused by it, and nobody else will let it run. */
static void let_run(const char *qmp_path, pid_t pid)
{
	uint64_t deadline = util_deadline_ms(10000);
	const char *status;
	json_t *ret = NULL;
	struct qmp *q;

	if (qmp_open(&q, qmp_path, deadline, is_there, NULL, &pid, NULL))
		return;
	if (!qmp_call(q, "query-status", -1, deadline, &ret, NULL, NULL)) {
		status = json_string_value(json_object_get(ret, "status"));
		if (status && launch_was_paused(status))
			qmp_call(q, "cont", -1, deadline, NULL, NULL, NULL);
	}
	json_decref(ret);
	qmp_close(q);
}

static void guard(const char *qmp_path, pid_t pid, int leash)
{
	bool armed = false;
	char what;
	ssize_t n;

	while ((n = read(leash, &what, 1)) != 0)
		if (n == 1)
			armed = what == 'a';
	if (armed)
		let_run(qmp_path, pid);
}

int guard_start(const char *qmp_path, pid_t qemu, int *fd, struct ft_error *err)
{
	int leash[2];
	sigset_t none;
	pid_t pid;

	*fd = -1;
	if (pipe2(leash, O_CLOEXEC))
		return fail_sys(err, -errno, "pipe");
	pid = fork();
	if (pid < 0) {
		close(leash[0]);
		close(leash[1]);
		return fail_sys(err, -errno, "fork");
	}
	if (pid == 0) {
		/* twice, so that nobody has to wait for it */
		if (fork())
			_exit(0);
		setsid();
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		prctl(PR_SET_NAME, "ft-guard");
		dup2(leash[0], 0);
		/* nothing of the dead may be held: its sockets are how others see that it died */
		syscall(SYS_close_range, 1, ~0u, 0);
		guard(qmp_path, qemu, 0);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	close(leash[0]);
	*fd = leash[1];
	return 0;
}

void guard_arm(int fd, bool armed)
{
	/* a guard that was killed is missed only if we die too */
	if (fd >= 0 && write(fd, armed ? "a" : "d", 1) < 0)
		return;
}
