/* SPDX-License-Identifier: MIT */
/* test_tools_common.c - human numbers, progress, log lines, runtime paths. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "human.h"
#include "logsink.h"
#include "progress.h"
#include "runtime.h"

static void expect_ns(uint64_t ns, const char *text)
{
	char b[HUMAN_MAX];

	cr_expect_str_eq(human_ns(b, ns), text, "%s, not %s", b, text);
}

static void expect_bytes(uint64_t n, const char *text)
{
	char b[HUMAN_MAX];

	cr_expect_str_eq(human_bytes(b, n), text, "%s, not %s", b, text);
}

Test(human, times_and_sizes)
{
	char b[HUMAN_MAX];

	expect_ns(0, "0 ns");
	expect_ns(999, "999 ns");
	expect_ns(41300, "41.3 us");
	expect_ns(2714000, "2.71 ms");
	expect_ns(870000000, "870 ms");
	expect_ns(3200000000, "3.20 s");
	expect_ns(UINT64_C(312000000000), "5 min 12 s");
	expect_ns(UINT64_C(7260) * 1000000000, "2 h 1 min");
	expect_ns(UINT64_C(90000) * 1000000000, "1 d 1 h");
	expect_ns(UINT64_MAX, "213503 d 23 h");
	expect_bytes(512, "512 B");
	expect_bytes(4096, "4.00 KiB");
	expect_bytes(1048064, "1.00 MiB");
	expect_bytes(256u << 20, "256 MiB");
	expect_bytes(UINT64_MAX, "16.0 EiB");
	cr_expect_str_eq(human_count(b, 0), "0");
	cr_expect_str_eq(human_count(b, 999), "999");
	cr_expect_str_eq(human_count(b, 1234567), "1,234,567");
	cr_expect_str_eq(human_count(b, UINT64_MAX), "18,446,744,073,709,551,615");
}

Test(human, parse)
{
	uint64_t v = 0;

	cr_expect_eq(human_parse_u64("18446744073709551615", &v), 0);
	cr_expect_eq(v, UINT64_MAX);
	cr_expect_neq(human_parse_u64("18446744073709551616", &v), 0);
	cr_expect_neq(human_parse_u64("", &v), 0);
	cr_expect_neq(human_parse_u64("1x", &v), 0);
	cr_expect_eq(human_parse_size("3G", &v), 0);
	cr_expect_eq(v, UINT64_C(3) << 30);
	cr_expect_eq(human_parse_size("3KiB", &v), 0);
	cr_expect_eq(v, 3072);
	cr_expect_neq(human_parse_size("3KB", &v), 0);
	cr_expect_neq(human_parse_size("16777216T", &v), 0);
}

/* ---- progress ----------------------------------------------------------------------------------- */

static size_t take(int fd, char *buf, size_t size)
{
	ssize_t n = read(fd, buf, size - 1);

	buf[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

Test(progress, lines_in_a_pipe)
{
	char text[4096];
	int fds[2], lines = 0;
	struct progress p = { .what = "full copy", .unit = "pages" };

	cr_assert_eq(pipe(fds), 0);
	p.fd = fds[1];
	progress_begin(&p);
	for (uint64_t i = 0; i <= 1000; i++)
		progress_step(&p, i, 1000);
	progress_end(&p, "done");
	close(fds[1]);
	take(fds[0], text, sizeof(text));
	for (char *c = text; *c; c++)
		lines += *c == '\n';
	cr_expect_eq(lines, 12, "%s", text);
	cr_expect(strstr(text, "full copy:  50%  500 of 1,000 pages"), "%s", text);
	cr_expect(strstr(text, "full copy: done after "), "%s", text);
	cr_expect_null(strchr(text, '\033'), "no terminal, no escapes");
	close(fds[0]);
}

Test(progress, quiet)
{
	char text[64];
	int fds[2];
	struct progress p = { .what = "x", .quiet = true };

	cr_assert_eq(pipe(fds), 0);
	p.fd = fds[1];
	progress_begin(&p);
	progress_step(&p, 1, 2);
	progress_end(&p, "done");
	close(fds[1]);
	cr_expect_eq(take(fds[0], text, sizeof(text)), 0);
	close(fds[0]);
}

Test(progress, bar_on_a_terminal)
{
	struct winsize ws = { .ws_row = 24, .ws_col = 70 };
	struct progress p = { .what = "copy" };
	char text[4096], *line;
	int master, slave;

	cr_assert_eq(openpty(&master, &slave, NULL, NULL, &ws), 0);
	p.fd = slave;
	progress_begin(&p);
	progress_step(&p, 5 << 20, 10 << 20);
	take(master, text, sizeof(text));
	line = strstr(text, "copy [####");
	cr_assert(line, "%s", text);
	cr_expect(strstr(line, "50%  5.00 MiB of 10.0 MiB"), "%s", line);
	cr_expect_lt(strlen(line), 70);
	for (int i = 0; i < 1000; i++)
		progress_step(&p, 6 << 20, 10 << 20);
	cr_assert_eq(fcntl(master, F_SETFL, O_NONBLOCK), 0);
	cr_expect_lt(take(master, text, sizeof(text)), 500, "drawn more often than ten times a second");
	progress_end(&p, "done");
	take(master, text, sizeof(text));
	cr_expect(strstr(text, "\r\033[Kcopy: done after"), "%s", text);
	close(slave);
	close(master);
}

/* ---- log lines ---------------------------------------------------------------------------------- */

static void read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY);

	cr_assert_geq(fd, 0);
	take(fd, buf, size);
	close(fd);
}

Test(logsink, file_and_reopen)
{
	char path[64], moved[80], text[4096];
	struct ft_error err = { 0 };
	enum ft_log_level level;

	snprintf(path, sizeof(path), "/tmp/ft-test-log-%d", (int)getpid());
	snprintf(moved, sizeof(moved), "%s.1", path);
	cr_expect_eq(logsink_level("info", &level), 0);
	cr_expect_eq(logsink_level("loud", &level), -EINVAL);
	cr_assert_eq(logsink_open(path, level, &err), 0, "%s", err.msg);
	log_info("engine", "from libft, %d", 7);
	log_debug("engine", "not this");
	logsink_line(FT_LOG_WARN, "main", "forged\n2020 error x: line");
	cr_assert_eq(rename(path, moved), 0);
	logsink_line(FT_LOG_INFO, "main", "to the old file");
	cr_assert_eq(logsink_reopen(&err), 0);
	logsink_line(FT_LOG_INFO, "main", "to the new file");
	logsink_close();
	log_info("engine", "nowhere");
	read_file(moved, text, sizeof(text));
	cr_expect(strstr(text, " info  engine: from libft, 7\n"), "%s", text);
	cr_expect(strstr(text, " warn  main: forged 2020 error x: line\n"), "%s", text);
	cr_expect(strstr(text, "to the old file"), "%s", text);
	cr_expect_null(strstr(text, "not this"));
	read_file(path, text, sizeof(text));
	cr_expect(strstr(text, " info  main: to the new file\n"), "%s", text);
	cr_expect_null(strstr(text, "nowhere"));
	unlink(path);
	unlink(moved);
	cr_expect_eq(logsink_open("/nonexistent/x", level, &err), -ENOENT);
	cr_expect(strstr(err.msg, "/nonexistent/x"), "%s", err.msg);
	logsink_close();
}

Test(logsink, journal)
{
	char path[] = "/tmp/ft-test-journal-XXXXXX", id[64], text[512];
	int fd = mkstemp(path), saved = dup(2);
	struct ft_error err = { 0 };
	struct stat st;

	cr_assert_eq(fstat(fd, &st), 0);
	snprintf(id, sizeof(id), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	dup2(fd, 2);
	setenv("JOURNAL_STREAM", id, 1);
	cr_assert_eq(logsink_open(NULL, FT_LOG_DEBUG, &err), 0);
	logsink_line(FT_LOG_ERROR, "main", "it broke");
	logsink_line(FT_LOG_DEBUG, "main", "detail");
	setenv("JOURNAL_STREAM", "1:1", 1); /* inherited, but stderr is another file now */
	cr_assert_eq(logsink_open(NULL, FT_LOG_DEBUG, &err), 0);
	logsink_line(FT_LOG_INFO, "main", "plain");
	logsink_close();
	dup2(saved, 2);
	close(saved);
	read_file(path, text, sizeof(text));
	cr_expect_eq(strncmp(text, "<3>main: it broke\n<7>main: detail\n2", 35), 0, "%s", text);
	cr_expect(strstr(text, " info  main: plain\n"), "%s", text);
	close(fd);
	unlink(path);
}

/* ---- runtime paths ------------------------------------------------------------------------------ */

Test(runtime, socket_of_a_name)
{
	char path[128], small[8];
	struct ft_error err = { 0 };

	setenv("XDG_RUNTIME_DIR", "/some/dir", 1);
	cr_assert_eq(runtime_socket(path, sizeof(path), "web1", &err), 0);
	cr_expect_str_eq(path, geteuid() == 0 ? "/run/ft/web1.sock" : "/some/dir/ft/web1.sock");
	cr_expect_eq(runtime_socket(small, sizeof(small), "web1", &err), -ENAMETOOLONG);
	unsetenv("XDG_RUNTIME_DIR");
	cr_assert_eq(runtime_socket(path, sizeof(path), "web1", &err), 0);
	cr_expect(strstr(path, geteuid() == 0 ? "/run/ft/" : "/tmp/ft-"), "%s", path);
	setenv("FT_RUNTIME_DIR", "/elsewhere", 1);
	cr_assert_eq(runtime_socket(path, sizeof(path), "web1", &err), 0);
	cr_expect_str_eq(path, "/elsewhere/web1.sock");
}

Test(runtime, make_directory)
{
	char path[] = "/tmp/ft-test-runtime-XXXXXX", sub[64];
	struct ft_error err = { 0 };
	struct stat st;

	cr_assert(mkdtemp(path));
	snprintf(sub, sizeof(sub), "%s/ft", path);
	setenv("FT_RUNTIME_DIR", sub, 1);
	cr_expect_eq(runtime_make_directory(&err), 0, "%s", err.msg);
	cr_assert_eq(stat(sub, &st), 0);
	cr_expect_eq(st.st_mode & 0777, 0700);
	cr_expect_eq(runtime_make_directory(&err), 0, "%s", err.msg);
	cr_assert_eq(chmod(sub, 0777), 0);
	cr_expect_eq(runtime_make_directory(&err), -EPERM);
	cr_expect(strstr(err.msg, "nobody else can write"), "%s", err.msg);
	rmdir(sub);
	cr_assert_eq(symlink("/tmp", sub), 0);
	cr_expect_eq(runtime_make_directory(&err), -EPERM);
	unlink(sub);
	rmdir(path);
}
