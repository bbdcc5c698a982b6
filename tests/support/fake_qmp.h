/* SPDX-License-Identifier: MIT */
/* fake_qmp.h - a QMP server that does what a test wants: one thread, one client at a time, on a socket in a directory of
 * its own. */
#ifndef FT_TESTS_FAKE_QMP_H
#define FT_TESTS_FAKE_QMP_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>

struct fake_qmp {
	char dir[64], path[96];
	const char *greeting; /* NULL: the usual one; "": none */
	/* [server thread] A command came, with @fd or -1 (the callee's).  false: close the connection. */
	bool (*on_command)(struct fake_qmp *f, const char *cmd, json_t *args, json_t *id, int fd);
	void *user;

	int listener, client, wake[2];
	pthread_t thread;
};

void fake_qmp_start(struct fake_qmp *f);
void fake_qmp_stop(struct fake_qmp *f);
/* Words on the wire, as they are. */
void fake_qmp_say(struct fake_qmp *f, const char *text);
/* {"return": @value} (stolen; NULL: {}) for @id. */
void fake_qmp_return(struct fake_qmp *f, json_t *id, json_t *value);
void fake_qmp_error(struct fake_qmp *f, json_t *id, const char *desc);
void fake_qmp_event(struct fake_qmp *f, const char *name);

#endif
