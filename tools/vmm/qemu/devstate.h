/* SPDX-License-Identifier: MIT */
/* devstate.h - stopping a guest, taking its device state, letting it run: three ways behind one interface.
 *
 *   pipe      one round trip.  xen-save-devices-state into a pipe that holds one page: QEMU stops the guest and blocks with it
 *             stopped, the first octets say so; while it blocks, memory is captured; then the state is read
 *             and QEMU lets the guest run by itself.  Works only if the state is longer than the pipe.
 *   stopcont  stop, xen-save-devices-state into a memfd, cont.
 *   migrate   stop, migrate with x-ignore-shared into a memfd, cont.  Slower, but carries memory that is not shared: video RAM.
 *
 * The pipe is an anonymous one, handed to QEMU and opened by it as /proc/self/fd/N: unlike a FIFO such an open never
 * waits for a reader.  So if this process dies at any instant QEMU gets EPIPE and lets the guest run.
 * One thread at a time (the session's epoch thread); devstate_event() from wherever QMP events are delivered. */
#ifndef FT_QEMU_DEVSTATE_H
#define FT_QEMU_DEVSTATE_H

#include <stdbool.h>
#include <stddef.h>
#include "qmp.h"

struct devstate;

enum devstate_method { DEVSTATE_AUTO = 0, DEVSTATE_PIPE, DEVSTATE_STOPCONT, DEVSTATE_MIGRATE };
const char *devstate_method_name(enum devstate_method m);
/* -EINVAL: not one of "auto", "pipe", "stopcont", "migrate". */
int devstate_method_parse(const char *text, enum devstate_method *out);

/* Where the state goes: room for at least @want octets, then how many were put there. */
struct devstate_sink {
	void *(*buffer)(void *user, size_t want, size_t *cap); /* NULL: too much */
	void (*advance)(void *user, size_t len);
	void *user;
};

/* devstate_open - @method AUTO: found by devstate_choose().  @picture: video RAM matters.  @can_migrate: the standby understands
 * the stream of migrate. */
int devstate_open(struct devstate **out, struct qmp *qmp, enum devstate_method method, bool picture, bool can_migrate, struct ft_error *err);
void devstate_close(struct devstate *s);

/* devstate_keep_disks - migrate, in which QEMU lets go of its disks, is not fallen back to. */
void devstate_keep_disks(struct devstate *s);

/* devstate_event - every QMP event goes here. */
void devstate_event(struct devstate *s, const char *name, const json_t *data);
/* devstate_set_running - what query-status says, before events are seen. */
void devstate_set_running(struct devstate *s, bool running);
bool devstate_running(const struct devstate *s);

/* devstate_choose - try the ways on the guest as it is (one short pause each) and keep the first that works. */
int devstate_choose(struct devstate *s, struct ft_error *err);
enum devstate_method devstate_method(const struct devstate *s);

/* devstate_pause - when it returns 0 the guest stands still.  With AUTO a way that fails is left for the next one.
 * On failure call devstate_resume() all the same. */
int devstate_pause(struct devstate *s, struct ft_error *err);
/* devstate_save - may let the guest run at its end. */
int devstate_save(struct devstate *s, const struct devstate_sink *sink, struct ft_error *err);
/* devstate_resume - whatever came before, afterwards the guest runs if it ran before devstate_pause(). */
int devstate_resume(struct devstate *s, struct ft_error *err);

/* devdevstate_stop, devstate_cont - outside of a pause. */
int devstate_stop(struct devstate *s, struct ft_error *err);
int devstate_cont(struct devstate *s, struct ft_error *err);

/* devstate_load - feed @buf to a QEMU that waits with -incoming defer; it is then stopped with that state. */
int devstate_load(struct devstate *s, const void *buf, size_t len, struct ft_error *err);

#endif
