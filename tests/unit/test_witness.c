/* SPDX-License-Identifier: MIT */
/* test_witness.c - the witness that is a file: every answer, takers at once, a holder that was stopped, a file that is damaged, locked, slow, not to be had.
 * The clock by which silence is counted is the test's: it stands still unless it is moved, but where processes are stopped.
 * Wrapped: boot_now_ns fsync pread */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clock.h"
#include "fake_witness.h"
#include "session_help.h"

#define LEASE_MS 300u
#define DRIFT_MS 40u
#define RECORD_BYTES 183

/* ---- what stands between ---- */

static atomic_bool hung;         /* fsync does not return */
static _Atomic unsigned slow_ms; /* of each pread */

uint64_t __wrap_boot_now_ns(void);
uint64_t __wrap_boot_now_ns(void)
{
	return fake_clock_ns();
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	while (atomic_load(&hung))
		sleep_ms(1);
	return __real_fsync(fd);
}

ssize_t __real_pread(int fd, void *buf, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t at)
{
	sleep_ms(atomic_load(&slow_ms));
	return __real_pread(fd, buf, len, at);
}

/* ---- a file, and who looks at it ---- */

static char dir[64], path[80];

static void make_dir(void)
{
	strcpy(dir, "/tmp/test-witness-XXXXXX");
	cr_assert(mkdtemp(dir), "%s: %s", dir, strerror(errno));
	cr_assert_eq(chmod(dir, 0755), 0);
	snprintf(path, sizeof(path), "%s/w", dir);
}

static void drop_dir(void)
{
	unlink(path);
	cr_assert_eq(rmdir(dir), 0, "%s: %s", dir, strerror(errno));
}

static struct witness *open_at(const char *where, const char *name)
{
	struct witness_self self = { .lease_ms = LEASE_MS, .drift_ms = DRIFT_MS };
	struct ft_error err = { 0 };
	struct witness *w;
	char text[128];

	snprintf(self.name, sizeof(self.name), "%s", name);
	snprintf(text, sizeof(text), "file:%s", where);
	cr_assert_eq(witness_check(text, &err), 0, "%s", err.msg);
	cr_assert_eq(witness_open(&w, text, &self, &err), 0, "%s", err.msg);
	return w;
}

static struct witness *open_named(const char *name)
{
	return open_at(path, name);
}

static enum witness_answer ask_in(struct witness *w, enum witness_what what, uint64_t generation, unsigned ms,
				  struct witness_view *view, struct ft_error *err)
{
	const struct witness_question q = { .what = what, .generation = generation };

	memset(err, 0, sizeof(*err));
	return witness_ask(w, &q, deadline_in_ms(ms), view, err);
}

static void yes(struct witness *w, enum witness_what what, uint64_t expected, const char *holder, uint64_t generation)
{
	struct witness_view view;
	struct ft_error err;

	cr_assert_eq(ask_in(w, what, expected, WAIT_MS, &view, &err), WITNESS_YES, "%s", err.msg);
	cr_assert_str_eq(view.record.holder, holder);
	cr_assert_eq(view.record.generation, generation);
}

static void no(struct witness *w, enum witness_what what, uint64_t expected, int code, const char *part)
{
	struct witness_view view;
	struct ft_error err;

	cr_assert_eq(ask_in(w, what, expected, WAIT_MS, &view, &err), WITNESS_NO, "%s", err.msg);
	cr_assert_eq(err.code, code, "%s", err.msg);
	cr_assert(strstr(err.msg, part), "'%s' is not in '%s'", part, err.msg);
}

static void unknown(struct witness *w, enum witness_what what, unsigned ms, int code, const char *part)
{
	struct witness_view view;
	struct ft_error err;

	cr_assert_eq(ask_in(w, what, 0, ms, &view, &err), WITNESS_UNKNOWN, "%s", err.msg);
	cr_assert_eq(err.code, code, "%d: %s", err.code, err.msg);
	cr_assert(strstr(err.msg, part), "'%s' is not in '%s'", part, err.msg);
}

static size_t content(char *buf, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, buf, size);

	cr_assert(fd >= 0 && n >= 0, "%s: %s", path, strerror(errno));
	close(fd);
	return (size_t)n;
}

static void put(const char *buf, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	cr_assert(fd >= 0 && write(fd, buf, len) == (ssize_t)len, "%s: %s", path, strerror(errno));
	close(fd);
}

/* ---- answers ---- */

Test(witness, texts)
{
	struct ft_error err = { 0 };

	cr_assert_eq(witness_check("none", &err), 0);
	cr_assert_eq(witness_check(NULL, &err), 0);
	cr_assert(witness_is_none("none") && witness_is_none("") && !witness_is_none("file:none"));
	fails(witness_check("file:", &err), &err, -EINVAL, "neither none nor file:PATH");
	fails(witness_check("/tmp/w", &err), &err, -EINVAL, "'/tmp/w' is neither none nor file:PATH");
	fails(witness_check("etcd:http://x", &err), &err, -EINVAL, "etcd is not there yet");
}

Test(witness, every_answer)
{
	struct witness *a, *b;
	struct witness_view view;
	struct ft_error err;
	char buf[512];

	make_dir();
	a = open_named("host-a:1:x");
	b = open_named("host-b:2:y");
	cr_assert_eq(ask_in(a, WITNESS_LOOK, 0, WAIT_MS, &view, &err), WITNESS_YES, "%s", err.msg);
	cr_assert_eq(view.silent_ns, 0);
	yes(a, WITNESS_LOOK, 0, "", 0);
	cr_assert_eq(content(buf, sizeof(buf)), 0, "a look has written");
	no(a, WITNESS_RENEW, 0, -EOWNERDEAD, "nobody holds the lease, of generation 0");
	no(a, WITNESS_RAISE, 0, -EOWNERDEAD, "nobody");
	no(a, WITNESS_GIVE_BACK, 0, -EOWNERDEAD, "nobody");
	no(a, WITNESS_TAKE, 1, -ESTALE, "generation 0 and not 1");
	yes(a, WITNESS_TAKE, 0, "host-a:1:x", 1);
	cr_assert_eq(content(buf, sizeof(buf)), RECORD_BYTES);
	yes(a, WITNESS_TAKE, 7, "host-a:1:x", 1); /* it is ours: there is nothing to be expected */
	yes(a, WITNESS_RENEW, 0, "host-a:1:x", 1);
	yes(a, WITNESS_RAISE, 0, "host-a:1:x", 2);
	yes(b, WITNESS_LOOK, 0, "host-a:1:x", 2);
	no(b, WITNESS_RENEW, 0, -EOWNERDEAD, "host-a:1:x holds the lease, of generation 2");
	no(b, WITNESS_RAISE, 0, -EOWNERDEAD, "host-a:1:x");
	no(b, WITNESS_GIVE_BACK, 0, -EOWNERDEAD, "host-a:1:x");
	no(b, WITNESS_TAKE, 1, -ESTALE, "generation 2 and not 1: host-a:1:x went on");
	no(b, WITNESS_TAKE, 2, -EBUSY, "host-a:1:x holds the lease (generation 2), silent for 0 of 340 ms");
	yes(a, WITNESS_GIVE_BACK, 0, "", 2);
	yes(b, WITNESS_TAKE, 2, "host-b:2:y", 3);
	no(a, WITNESS_RENEW, 0, -EOWNERDEAD, "host-b:2:y");
	witness_close(a);
	witness_close(b);
	drop_dir();
}

Test(witness, a_silent_holder_is_waited_for)
{
	struct witness *a, *b;

	make_dir();
	a = open_named("a");
	b = open_named("b");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	fake_clock_advance(3600000); /* b has not looked: it knows nothing of it */
	no(b, WITNESS_TAKE, 0, -EBUSY, "silent for 0 of 340 ms");
	fake_clock_advance(LEASE_MS + DRIFT_MS - 1);
	no(b, WITNESS_TAKE, 0, -EBUSY, "silent for 339 of 340 ms");
	yes(a, WITNESS_RENEW, 0, "a", 1);
	fake_clock_advance(1);
	no(b, WITNESS_TAKE, 0, -EBUSY, "silent for 0 of 340 ms");
	fake_clock_advance(LEASE_MS + DRIFT_MS);
	yes(b, WITNESS_TAKE, 1, "b", 2);
	no(a, WITNESS_RENEW, 0, -EOWNERDEAD, "b holds the lease");
	witness_close(a);
	witness_close(b);
	drop_dir();
}

/* ---- processes ---- */

struct shared {
	pthread_barrier_t barrier;
	_Atomic uint64_t yes, no, other;
	_Atomic uint64_t renewing_ns,
		renewed; /* when the last renewal that was granted was asked for, by the real clock; how many */
	atomic_int refused;
};

static struct shared *share(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	cr_assert(s != MAP_FAILED);
	return s;
}

#define TAKERS 4
#define ROUNDS 100

static void taker(struct shared *s, unsigned nr)
{
	char name[8];
	struct witness *w;

	snprintf(name, sizeof(name), "t%u", nr);
	w = open_named(name);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct witness_view view;
		struct ft_error err;
		enum witness_answer answer;

		pthread_barrier_wait(&s->barrier);
		answer = ask_in(w, WITNESS_TAKE, i, WAIT_MS, &view, &err);
		pthread_barrier_wait(&s->barrier);
		if (answer == WITNESS_YES)
			answer = ask_in(w, WITNESS_GIVE_BACK, 0, WAIT_MS, &view, &err) == WITNESS_YES ? WITNESS_YES
												      : WITNESS_UNKNOWN;
		atomic_fetch_add(answer == WITNESS_YES ? &s->yes : answer == WITNESS_NO ? &s->no : &s->other, 1);
	}
	witness_close(w);
	_exit(0);
}

Test(witness, one_of_several_takers_wins, .timeout = 120)
{
	struct shared *s = share();
	pthread_barrierattr_t attr;
	pid_t pid[TAKERS];
	int status;

	make_dir();
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&s->barrier, &attr, TAKERS);
	for (unsigned i = 0; i < TAKERS; i++) {
		pid[i] = fork();
		cr_assert_geq(pid[i], 0);
		if (pid[i] == 0)
			taker(s, i);
	}
	for (unsigned i = 0; i < TAKERS; i++) {
		cr_assert_eq(waitpid(pid[i], &status, 0), pid[i]);
		cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	cr_assert_eq(atomic_load(&s->yes), ROUNDS);
	cr_assert_eq(atomic_load(&s->no), ROUNDS * (TAKERS - 1));
	cr_assert_eq(atomic_load(&s->other), 0);
	drop_dir();
}

/* Renews until it is told that it may not. */
static void holder(struct shared *s)
{
	struct witness *w;
	struct witness_view view;
	struct ft_error err;
	enum witness_answer answer;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left stopped by a test that fails */
	w = open_named("holder");
	answer = ask_in(w, WITNESS_TAKE, 0, WAIT_MS, &view, &err);

	while (answer != WITNESS_NO) {
		uint64_t asked = now_ns();

		answer = ask_in(w, WITNESS_RENEW, 0, WAIT_MS, &view, &err);
		if (answer == WITNESS_YES) {
			atomic_store(&s->renewing_ns, asked);
			atomic_fetch_add(&s->renewed, 1);
		}
		sleep_ms(5);
	}
	atomic_store(&s->refused, -err.code);
	_exit(0);
}

/* A holder that is stopped is taken from when its lease is over by any clock, and finds out when it goes on. */
Test(witness, a_holder_that_was_stopped, .timeout = 120)
{
	struct shared *s = share();
	uint64_t deadline = deadline_in_ms(WAIT_MS), refusals = 0;
	enum witness_answer answer = WITNESS_NO;
	struct witness_view view;
	struct ft_error err;
	struct witness *w;
	pid_t pid;
	int status;

	make_dir();
	fake_clock_run();
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		holder(s);
	while (!atomic_load(&s->renewed)) {
		cr_assert(now_ns() < deadline);
		sleep_ms(1);
	}
	w = open_named("taker");
	for (unsigned i = 0; i < 3; i++, sleep_ms(20)) {
		cr_assert_neq(ask_in(w, WITNESS_TAKE, 0, WAIT_MS, &view, &err), WITNESS_YES,
			      "taken from one that lives");
	}
	cr_assert_eq(kill(pid, SIGSTOP), 0);
	for (; answer != WITNESS_YES; sleep_ms(1)) {
		cr_assert(now_ns() < deadline);
		answer = ask_in(w, WITNESS_TAKE, 0, 100, &view, &err);
		if (answer == WITNESS_UNKNOWN) { /* it was stopped with the lock in its hands */
			kill(pid, SIGCONT);
			sleep_ms(10);
			kill(pid, SIGSTOP);
		}
		refusals += answer == WITNESS_NO;
	}
	cr_assert_gt(refusals, 0);
	cr_assert_geq(now_ns(), atomic_load(&s->renewing_ns) + (LEASE_MS + DRIFT_MS) * NS_PER_MS);
	cr_assert_eq(kill(pid, SIGCONT), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(atomic_load(&s->refused), EOWNERDEAD);
	witness_close(w);
	drop_dir();
}

/* ---- the file ---- */

Test(witness, damage_is_found_and_left_as_it_is, .timeout = 120)
{
	char good[512], bad[512], now[512];
	struct witness *a, *b;

	make_dir();
	a = open_named("a");
	b = open_named("b");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	cr_assert_eq(content(good, sizeof(good)), RECORD_BYTES);
	for (unsigned i = 0; i < RECORD_BYTES; i++) {
		memcpy(bad, good, RECORD_BYTES);
		bad[i] ^= (char)(1u << i % 8);
		put(bad, RECORD_BYTES);
		unknown(a, WITNESS_RENEW, WAIT_MS, -EBADMSG, "torn, or not a witness's");
		unknown(b, WITNESS_TAKE, WAIT_MS, -EBADMSG, "torn, or not a witness's");
		cr_assert(content(now, sizeof(now)) == RECORD_BYTES && memcmp(now, bad, RECORD_BYTES) == 0);
	}
	for (unsigned len = 1; len < RECORD_BYTES; len++) {
		put(good, len);
		unknown(b, WITNESS_TAKE, WAIT_MS, -EBADMSG, "torn, or not a witness's");
		cr_assert_eq(content(now, sizeof(now)), len);
	}
	good[RECORD_BYTES] = '\n';
	put(good, RECORD_BYTES + 1);
	unknown(b, WITNESS_TAKE, WAIT_MS, -EBADMSG, "torn, or not a witness's");
	put(good, RECORD_BYTES);
	yes(a, WITNESS_RENEW, 0, "a", 1);
	witness_close(a);
	witness_close(b);
	drop_dir();
}

Test(witness, full_disk)
{
	const struct rlimit small = { .rlim_cur = RECORD_BYTES / 2, .rlim_max = RLIM_INFINITY },
			    none = { RLIM_INFINITY, RLIM_INFINITY };
	struct witness *a;
	char buf[512];

	make_dir();
	signal(SIGXFSZ, SIG_IGN);
	a = open_named("a");
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	unknown(a, WITNESS_TAKE, WAIT_MS, -ENOSPC, "write: No space left");
	cr_assert_eq(content(buf, sizeof(buf)), 0, "half a record is left");
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	yes(a, WITNESS_TAKE, 0, "a", 1);
	witness_close(a);
	drop_dir();
}

Test(witness, file_that_is_not_to_be_had)
{
	char there[128];
	struct witness *w;

	make_dir();
	snprintf(there, sizeof(there), "%s/missing/w", dir);
	w = open_at(there, "a");
	unknown(w, WITNESS_LOOK, WAIT_MS, -ENOENT, "No such file or directory");
	witness_close(w);
	w = open_at(dir, "a");
	unknown(w, WITNESS_LOOK, WAIT_MS, -EISDIR, "Is a directory");
	witness_close(w);
	w = open_at("/dev/null", "a");
	unknown(w, WITNESS_TAKE, WAIT_MS, -EINVAL, "not a file");
	witness_close(w);
	put("", 0);
	cr_assert_eq(chmod(path, 0), 0);
	cr_assert(geteuid() != 0 || seteuid(65534) == 0);
	w = open_named("a");
	unknown(w, WITNESS_TAKE, WAIT_MS, -EACCES, "Permission denied");
	witness_close(w);
	cr_assert(getuid() != 0 || seteuid(0) == 0);
	drop_dir();
}

/* Who looks at another file than the other side is not asked any more. */
Test(witness, file_that_was_replaced)
{
	struct witness *a;
	char buf[512];
	size_t len;

	make_dir();
	a = open_named("a");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	len = content(buf, sizeof(buf));
	cr_assert_eq(unlink(path), 0);
	unknown(a, WITNESS_RENEW, WAIT_MS, -ENOENT, "No such file");
	put(buf, len);
	unknown(a, WITNESS_RENEW, WAIT_MS, -ESTALE, "another file is there");
	witness_close(a);
	drop_dir();
}

/* ---- time ---- */

Test(witness, locked_for_too_long)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct witness *a;
	uint64_t begun;
	int fd;

	make_dir();
	a = open_named("a");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	fd = open(path, O_RDWR);
	cr_assert_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
	begun = now_ns();
	unknown(a, WITNESS_RENEW, 50, -ETIMEDOUT, "locked by another for");
	unknown(a, WITNESS_LOOK, 50, -ETIMEDOUT, "locked by another for");
	cr_assert_lt(now_ns() - begun, WAIT_MS * NS_PER_MS);
	close(fd);
	yes(a, WITNESS_RENEW, 0, "a", 1);
	witness_close(a);
	drop_dir();
}

Test(witness, storage_that_hangs)
{
	struct witness *a, *b;

	make_dir();
	a = open_named("a");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	atomic_store(&hung, true);
	unknown(a, WITNESS_RAISE, 50, -ETIMEDOUT, "has not answered for");
	unknown(a, WITNESS_RENEW, 50, -ETIMEDOUT, "has not answered for");
	unknown(a, WITNESS_LOOK, 50, -ETIMEDOUT, "has not answered for");
	atomic_store(&hung, false);
	yes(a, WITNESS_RENEW, 0, "a", 2); /* what had no answer has happened */
	atomic_store(&hung, true);
	unknown(a, WITNESS_RENEW, 50, -ETIMEDOUT, "has not answered for");
	witness_close(a); /* does not wait for it for ever */
	atomic_store(&hung, false);
	b = open_named("b");
	no(b, WITNESS_TAKE, 0, -EBUSY, "a holds the lease"); /* and the lock was let go of */
	witness_close(b);
	drop_dir();
}

/* An answer that would come too late is not even written. */
Test(witness, slow_storage_writes_nothing_after_the_deadline)
{
	char before[512], after[512];
	struct witness *a;

	make_dir();
	a = open_named("a");
	yes(a, WITNESS_TAKE, 0, "a", 1);
	content(before, sizeof(before));
	atomic_store(&slow_ms, 150);
	unknown(a, WITNESS_RENEW, 50, -ETIMEDOUT, "has not answered for");
	atomic_store(&slow_ms, 0);
	yes(a, WITNESS_LOOK, 0, "a", 1);
	content(after, sizeof(after));
	cr_assert_eq(memcmp(before, after, RECORD_BYTES), 0);
	yes(a, WITNESS_RENEW, 0, "a", 1);
	witness_close(a);
	drop_dir();
}
