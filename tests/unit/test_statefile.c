/* SPDX-License-Identifier: MIT */
/* test_statefile.c - what is written down is read again, nothing else is believed, and the file is the old one or the new one whenever the process is
 * killed. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "faultpoint.h"
#include "session_help.h"
#include "statefile.h"

static char dir[64], path[128], beside[136];

static void make_folder(void)
{
	snprintf(dir, sizeof(dir), "/tmp/ft-statefile-XXXXXX");
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/web1.state", dir);
	snprintf(beside, sizeof(beside), "%s.new", path);
}

static void remove_folder(void)
{
	unlink(path);
	unlink(beside);
	rmdir(dir);
}

TestSuite(statefile, .init = make_folder, .fini = remove_folder);

static struct statefile make(enum statefile_word word, uint64_t generation)
{
	struct statefile f = { .word = word, .role = FT_ROLE_SECONDARY, .generation = generation, .epoch = 41 };

	snprintf(f.name, sizeof(f.name), "web 1 = \"x\"");
	for (unsigned i = 0; i < sizeof(f.session); i++)
		f.session[i] = (uint8_t)(i * 17);
	return f;
}

static bool same(const struct statefile *a, const struct statefile *b)
{
	return a->word == b->word && a->role == b->role && a->generation == b->generation && a->epoch == b->epoch &&
	       memcmp(a->session, b->session, sizeof(a->session)) == 0 && strcmp(a->name, b->name) == 0;
}

static void write_down(const struct statefile *f)
{
	struct ft_error err = { 0 };

	cr_assert_eq(statefile_write(path, f, &err), 0, "%s", err.msg);
}

static struct statefile read_again(void)
{
	struct ft_error err = { 0 };
	struct statefile f;

	cr_assert_eq(statefile_read(path, &f, &err), 0, "%s", err.msg);
	return f;
}

static size_t contents(char text[STATEFILE_MAX])
{
	FILE *f = fopen(path, "r");
	size_t n;

	cr_assert(f);
	n = fread(text, 1, STATEFILE_MAX, f);
	fclose(f);
	return n;
}

static void put(const char *text, size_t len)
{
	FILE *f = fopen(path, "w");

	cr_assert(f && fwrite(text, 1, len, f) == len && fclose(f) == 0);
}

/* What @path holds is refused, and left as it is. */
static void refuses(int code, const char *part)
{
	struct statefile f = make(SAYS_RUNNING, 1), nothing = { 0 };
	struct ft_error err = { 0 };

	fails(statefile_read(path, &f, &err), &err, code, part);
	cr_assert(same(&f, &nothing), "something of it was believed");
}

Test(statefile, says_what_was_written)
{
	struct statefile f, got;

	for (enum statefile_word w = SAYS_RUNNING; w < SAYS_COUNT; w++) {
		f = make(w, UINT64_MAX - w);
		f.role = w % 2 ? FT_ROLE_PRIMARY : FT_ROLE_SECONDARY;
		f.epoch = w % 3 ? UINT64_MAX : 0;
		write_down(&f);
		got = read_again();
		cr_expect(same(&f, &got), "%s", statefile_word_name(w));
		cr_expect_eq(access(beside, F_OK), -1);
	}
	memset(f.name, 'n', sizeof(f.name) - 1);
	write_down(&f);
	got = read_again();
	cr_expect(same(&f, &got), "of the longest name");
	cr_expect_str_eq(statefile_word_name(SAYS_COUNT), "?");
}

/* An operator reads it, and other programs may. */
Test(statefile, is_this_text)
{
	static const char want[] = "ft-state=1\nname=web 1 = \"x\"\nrole=secondary\nstate=standby\ngeneration=7\n"
				   "session=00112233445566778899aabbccddeeff\nepoch-at-least=41\nchecksum=";
	struct statefile f = make(SAYS_STANDBY, 7);
	char text[STATEFILE_MAX];
	struct stat st;
	size_t n;

	write_down(&f);
	n = contents(text);
	cr_assert_eq(n, sizeof(want) - 1 + 16 + 1);
	cr_assert_eq(memcmp(text, want, sizeof(want) - 1), 0, "%.*s", (int)n, text);
	cr_assert_eq(stat(path, &st), 0);
	cr_expect_eq(st.st_mode & 0777, 0600);
}

Test(statefile, none_is_nothing_known)
{
	struct statefile f = make(SAYS_FENCED, 3);
	struct ft_error err = { 0 };

	cr_assert_eq(statefile_read(path, &f, &err), 0);
	cr_expect_eq(f.word, SAYS_NOTHING);
	cr_expect_eq(f.generation, 0);
}

Test(statefile, with_any_octet_changed_is_refused)
{
	struct statefile f = make(SAYS_PROTECTED, 12);
	char text[STATEFILE_MAX];
	unsigned newer = 0;
	size_t n;

	write_down(&f);
	n = contents(text);
	for (size_t i = 0; i < n; i++)
		for (unsigned bit = 0; bit < 8; bit++) {
			struct ft_error err = { 0 };
			int r;

			text[i] = (char)(text[i] ^ 1 << bit);
			put(text, n);
			r = statefile_read(path, &f, &err);
			cr_assert(r == -EBADMSG || r == -EPROTONOSUPPORT, "octet %zu, bit %u: %d", i, bit, r);
			newer += r == -EPROTONOSUPPORT;
			text[i] = (char)(text[i] ^ 1 << bit);
		}
	cr_expect_eq(newer, 3); /* the version: 3, 5 and 9 */
}

Test(statefile, that_is_cut_or_longer_is_refused)
{
	struct statefile f = make(SAYS_STANDBY, 12);
	char text[2 * STATEFILE_MAX] = "";
	size_t n;

	write_down(&f);
	n = contents(text);
	for (size_t len = 0; len < n; len++) {
		put(text, len);
		refuses(-EBADMSG, "damaged, or not one of ft's");
	}
	for (size_t len = n + 1; len < sizeof(text); len += 13) {
		put(text, len);
		refuses(-EBADMSG, "damaged");
	}
}

Test(statefile, of_others_is_refused_with_what_to_do)
{
	static const char newer[] = "ft-state=2\nname=web1\nwhatever\n";

	put(newer, sizeof(newer) - 1);
	refuses(-EPROTONOSUPPORT, "of version 2, this program knows 1: use a newer one");
	put("root:x:0:0\n", 11);
	refuses(-EBADMSG, "find out which side runs it, then remove the file");
	unlink(path);
	cr_assert_eq(mkdir(path, 0700), 0);
	refuses(-EISDIR, "cannot be read");
	cr_assert_eq(rmdir(path), 0);
}

static void cannot_write(const char *where, int code, const char *part)
{
	struct statefile f = make(SAYS_RUNNING, 2);
	struct ft_error err = { 0 };

	fails(statefile_write(where, &f, &err), &err, code, part);
}

Test(statefile, that_cannot_be_written_is_told)
{
	struct statefile old = make(SAYS_STANDBY, 1), now;
	char where[192];

	write_down(&old);
	snprintf(where, sizeof(where), "%s/none/file", dir);
	cannot_write(where, -ENOENT, "its folder cannot be opened: No such file");
	snprintf(where, sizeof(where), "%s/file", path);
	cannot_write(where, -ENOTDIR, "its folder cannot be opened");
	cannot_write("/proc/ft.state", -ENOENT, "/proc/ft.state: cannot be written");
	cr_assert_eq(mkdir(beside, 0700), 0);
	cannot_write(path, -EISDIR, "cannot be written");
	cr_assert_eq(rmdir(beside), 0);
	now = read_again();
	cr_expect(same(&now, &old));
}

/* A file that may not grow behind its 20th octet: the first write is short, the next one fails, as on a disk that becomes full. */
Test(statefile, on_a_full_disk_stays_what_it_was)
{
	struct rlimit limit, few = { .rlim_cur = 20 };
	struct statefile old = make(SAYS_STANDBY, 1), f = make(SAYS_RUNNING, 2), now;
	struct ft_error err = { 0 };
	int r;

	write_down(&old);
	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	few.rlim_max = limit.rlim_max;
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &few), 0);
	r = statefile_write(path, &f, &err);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	fails(r, &err, -EFBIG, "cannot be written: File too large");
	now = read_again();
	cr_expect(same(&now, &old));
	cr_expect_eq(access(beside, F_OK), -1, "the file beside it was left");
	write_down(&f);
	now = read_again();
	cr_expect(same(&now, &f));
}

#ifdef FT_FAULT_POINTS
Test(statefile, each_step_that_fails_is_told)
{
	struct statefile old = make(SAYS_STANDBY, 1), f = make(SAYS_RUNNING, 2), now;
	unsigned failed = 0;

	for (uint64_t nth = 1;; nth++) {
		struct ft_error err = { 0 };
		int r;

		write_down(&old);
		faultpoint_arm(nth, false, NULL);
		r = statefile_write(path, &f, &err);
		faultpoint_disarm();
		now = read_again();
		if (!r)
			break;
		cr_expect(err.msg[0] && err.code == r, "%s", faultpoint_failed());
		cr_expect(same(&now, &old) || same(&now, &f), "%s: it is neither", faultpoint_failed());
		failed++;
	}
	cr_expect_eq(failed, 6); /* folder, open, write, fsync, rename, fsync of the folder */
	faultpoint_arm(1, false, "statefile/read");
	refuses(-EIO, "cannot be read");
	faultpoint_disarm();
}
#endif

/* ---- a process that is killed in it ---- */

/* A child that writes @f, stopped before its first step. */
static pid_t begin_child(const struct statefile *f)
{
	pid_t pid = fork();
	int status;

	cr_assert(pid >= 0);
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(statefile_write(path, f, NULL) ? 1 : 0);
	}
	cr_assert(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	cr_assert_eq(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
	return pid;
}

/* To the next border of a system call, its beginning or its end; false: it has ended in order. */
static bool step(pid_t pid)
{
	int status;

	cr_assert_eq(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	if (WIFSTOPPED(status))
		return true;
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", (unsigned)status);
	return false;
}

/* Kills it behind each border in turn; returns how many there were.  *@seen_old, *@seen_new: how often the file was which. */
static unsigned kill_everywhere(const struct statefile *old, unsigned *seen_old, unsigned *seen_new)
{
	struct statefile f = make(SAYS_RUNNING, 2), now, before = { 0 };

	if (old)
		before = *old;
	for (unsigned n = 0;; n++) {
		bool ended = false;
		pid_t pid;

		if (old)
			write_down(old);
		else
			unlink(path);
		pid = begin_child(&f);
		for (unsigned i = 0; i <= n && !ended; i++)
			ended = !step(pid);
		if (!ended) {
			kill(pid, SIGKILL);
			waitpid(pid, NULL, 0);
		}
		now = read_again();
		*seen_old += same(&now, &before);
		*seen_new += same(&now, &f);
		cr_assert(same(&now, &before) || same(&now, &f), "killed at border %u: it is neither", n);
		if (ended)
			return n;
	}
}

Test(statefile, killed_between_any_two_steps_is_the_old_or_the_new)
{
	struct statefile old = make(SAYS_STANDBY, 1);
	unsigned seen_old = 0, seen_new = 0, borders = kill_everywhere(&old, &seen_old, &seen_new);

	cr_expect_geq(borders, 12);
	cr_expect(seen_old >= 5 && seen_new >= 3, "%u borders, old %u times, new %u times", borders, seen_old,
		  seen_new);
	seen_old = seen_new = 0;
	kill_everywhere(NULL, &seen_old, &seen_new);
	cr_expect(seen_old >= 5 && seen_new >= 3, "without an old one: none %u times, new %u times", seen_old,
		  seen_new);
}

/* What a loss of power needs cannot be seen by killing a process: the contents are made stable before they get the name, and the name afterwards. */
Test(statefile, is_on_the_disk_before_it_has_its_name_and_when_it_is_said_so)
{
	enum { WRITTEN = 1, STABLE, NAMED, DONE } got = 0;
	struct statefile f = make(SAYS_RUNNING, 2);
	struct __ptrace_syscall_info info;
	uint64_t fd = UINT64_MAX, folder;
	pid_t pid = begin_child(&f);

	while (step(pid)) {
		cr_assert_gt(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info), 0);
		if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
			continue;
		if (info.entry.nr == SYS_write) {
			cr_assert(got == 0 || got == WRITTEN, "written when it was %u", got);
			fd = info.entry.args[0];
			got = WRITTEN;
		} else if (info.entry.nr == SYS_fsync && info.entry.args[0] == fd) {
			cr_assert_eq(got, WRITTEN);
			got = STABLE;
		} else if (info.entry.nr == SYS_renameat) {
			cr_assert_eq(got, STABLE, "it gets its name when it is %u", got);
			folder = info.entry.args[0];
			fd = UINT64_MAX;
			got = NAMED;
		} else if (info.entry.nr == SYS_fsync) {
			cr_assert(got == NAMED && info.entry.args[0] == folder);
			got = DONE;
		}
	}
	cr_assert_eq(got, DONE, "it said so when it was %u", got);
}
