/* SPDX-License-Identifier: MIT */
/* qmp.h - client of QEMU's machine protocol on a Unix socket.
 *
 * Commands carry an id and have a deadline; a reply that comes after its command was given up is dropped, so a slow
 * QEMU cannot shift answers.  Events reach one callback, from within whichever function was reading.  QEMU may vanish
 * at any moment: every function then says so, at once and for ever after.
 * Any thread: the one that waits reads for all, the others queue on the lock until their own deadline. */
#ifndef FT_QEMU_QMP_H
#define FT_QEMU_QMP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <jansson.h>
#include "util.h"

struct qmp;

/* [any thread that uses the client, lock held: must not call qmp_ functions]  @data may be NULL. */
typedef void qmp_event_fn(void *user, const char *name, const json_t *data);

/* qmp_open - connect (retrying until @deadline while nobody listens), take the greeting, negotiate.
 * @alive is asked while retrying; false ends it (the process has died).  May be NULL. */
int qmp_open(struct qmp **out, const char *path, uint64_t deadline, bool (*alive)(void *user), qmp_event_fn *event,
	     void *user, struct ft_error *err);
void qmp_close(struct qmp *q);

/* qmp_fd - becomes readable when something may have arrived. */
int qmp_fd(const struct qmp *q);
/* qmp_replied_fd - readable from when any thread has read a reply until qmp_poll().  Who waits with qmp_poll() polls both: another
 * thread may have been quicker to read what made qmp_fd() readable. */
int qmp_replied_fd(const struct qmp *q);
/* qmp_peer - process that made the socket, 0 if unknown. */
pid_t qmp_peer(const struct qmp *q);

/* qmp_send - send @cmd with arguments packed by jansson's @fmt (NULL: none) and, if @fd >= 0, that descriptor.  @cmd must
 * be a literal.  *@id is what qmp_wait() and qmp_poll() take; it must be given to qmp_wait() or qmp_forget(). */
int qmp_send(struct qmp *q, const char *cmd, int fd, uint64_t *id, struct ft_error *err, const char *fmt, ...);
/* qmp_wait - the reply's "return" into *@ret (new reference; @ret may be NULL).  -ETIMEDOUT: the command is given up.
 * -EREMOTEIO: QEMU refused, its words in @err.  -EPIPE: QEMU is gone.  -EPROTO: not QMP. */
int qmp_wait(struct qmp *q, uint64_t id, uint64_t deadline, json_t **ret, struct ft_error *err);
/* qmp_poll - read what is there; true when qmp_wait() for @id would not block (reply, or QEMU gone). */
bool qmp_poll(struct qmp *q, uint64_t id);
void qmp_forget(struct qmp *q, uint64_t id);
/* qmp_call - send and wait. */
int qmp_call(struct qmp *q, const char *cmd, int fd, uint64_t deadline, json_t **ret, struct ft_error *err,
	     const char *fmt, ...);
/* qmp_wait_for - deliver events until @done says true. */
int qmp_wait_for(struct qmp *q, bool (*done)(void *user), void *user, uint64_t deadline, struct ft_error *err);
/* qmp_pump - deliver events that have arrived; does not wait, not even for the lock.  -EPIPE: QEMU is gone. */
int qmp_pump(struct qmp *q);

#endif
