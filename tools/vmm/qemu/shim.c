/* SPDX-License-Identifier: MIT */
/* shim.c - all of ft that runs inside of QEMU: one userfaultfd() call, since such a descriptor belongs to the memory of
 * the process that makes it.  What is done with it is done by ftqemu.
 *
 * QEMU loads it by its own option -plugin, or the loader by LD_PRELOAD; either way the constructor does the work.  The
 * descriptor stays open in QEMU, so that an ftqemu that comes later finds it, and a copy goes through the socket whose
 * number is in FT_SHIM_FD, so that fetching it needs no ptrace permission.
 * Without privileges UFFD_USER_MODE_ONLY is enough: asynchronous write faults are resolved by the kernel
 * also when the kernel itself is the writer. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/userfaultfd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

#define SHIM_API __attribute__((visibility("default")))

static int uffd = -1;

static int make(void)
{
	int fd, dev;

	fd = (int)syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0)
		return fd;
	dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (dev >= 0) {
		fd = ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
		close(dev);
		if (fd >= 0)
			return fd;
	}
	return (int)syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
}

static void hand_over(int sock)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)"u", 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &uffd, sizeof(int));
	if (sendmsg(sock, &msg, MSG_NOSIGNAL) != 1)
		fprintf(stderr, "ft shim: the descriptor could not be handed over: %s\n", strerror(errno));
	close(sock);
}

__attribute__((constructor)) static void start(void)
{
	const char *sock = getenv("FT_SHIM_FD");

	if (uffd >= 0)
		return;
	/* not for programs that QEMU starts */
	unsetenv("LD_PRELOAD");
	unsetenv("FT_SHIM_FD");
	uffd = make();
	if (uffd < 0)
		fprintf(stderr, "ft shim: userfaultfd: %s\n", strerror(errno));
	else if (sock)
		hand_over(atoi(sock));
}

/* QEMU's plugin interface: it wants these two names; version 1 is understood by all QEMU since 4.2. */
SHIM_API extern const int qemu_plugin_version;
SHIM_API int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv);

const int qemu_plugin_version = 1;

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)id;
	(void)info;
	(void)argc;
	(void)argv;
	return uffd < 0;
}
