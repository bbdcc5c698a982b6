/* SPDX-License-Identifier: MIT */
/* check.h - for plain test programs: say what was expected and end with status 1. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DIE(...)                                                                                                       \
	do {                                                                                                           \
		fflush(stdout);                                                                                        \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                        \
		fprintf(stderr, __VA_ARGS__);                                                                          \
		fputc('\n', stderr);                                                                                   \
		_exit(1); /* threads are running: no destructors, and no leak report beside the real failure */        \
	} while (0)

#define CHECK(cond, ...)                                                                                               \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			DIE(__VA_ARGS__);                                                                              \
	} while (0)

/* CHECK_OK - @call gives 0 or more; else the sentence in @err is told. */
#define CHECK_OK(call, err)                                                                                            \
	do {                                                                                                           \
		int check_ret_ = (call);                                                                               \
		if (check_ret_ < 0)                                                                                    \
			DIE("%s: %d: %s", #call, check_ret_, (err).msg);                                               \
	} while (0)

#endif
