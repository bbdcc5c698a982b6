/* SPDX-License-Identifier: MIT */
/* util.h - what the QEMU embedder's files share: error sentences, deadlines, lists of strings, socket and descriptor
 * helpers.  The embedder sees libft through ft.h only, so it has its own.  Any thread; no static state. */
#ifndef FT_QEMU_UTIL_H
#define FT_QEMU_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <ft/error.h>

#define QEMU_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define UTIL_NS_PER_MS UINT64_C(1000000)

/* fail - store @code (a negative errno) and the sentence; returns @code.  @err may be NULL.
 * fail_sys adds ": strerror(-code)"; fail_in puts "context: " in front of what is there and returns err->code. */
int fail(struct ft_error *err, int code, const char *fmt, ...) QEMU_PRINTF(3, 4);
int fail_sys(struct ft_error *err, int code, const char *fmt, ...) QEMU_PRINTF(3, 4);
int fail_in(struct ft_error *err, const char *fmt, ...) QEMU_PRINTF(2, 3);

/* Points of CLOCK_MONOTONIC in ns. */
uint64_t util_now_ns(void);
uint64_t util_deadline_ms(uint64_t ms);
/* For poll(): ms left, rounded up; 0 when over. */
int util_left_ms(uint64_t deadline);
void util_sleep_ms(unsigned ms);

/* A growing list of owned strings, NULL-terminated for exec.  A failed allocation is remembered in .oom, so that a
 * long construction needs one check at its end.  Zero-initialised is empty. */
struct strv {
	char **v;
	size_t n, room;
	bool oom;
};
void strv_add(struct strv *s, const char *str);
void strv_addf(struct strv *s, const char *fmt, ...) QEMU_PRINTF(2, 3);
void strv_free(struct strv *s);

/* Descriptors. */
void fd_close(int *fd); /* closes and sets to -1; harmless for -1 */
int fd_set_nonblock(int fd);
/* unix_connect - a connected stream socket (close-on-exec); retries until @deadline while nobody listens.  Negative errno. */
int unix_connect(const char *path, uint64_t deadline, struct ft_error *err);
int unix_listen(const char *path, struct ft_error *err);
/* fd_send, fd_receive - @len octets with one descriptor by SCM_RIGHTS.  fd_receive: the descriptor, -ETIMEDOUT,
 * -EPIPE when the other side closed, -EBADMSG when none came. */
int fd_send(int sock, int fd, const void *buf, size_t len);
int fd_receive(int sock, uint64_t deadline);

#endif
