/* SPDX-License-Identifier: MIT */
/* state.h - stopping a guest, taking its device state, letting it run: three ways behind one interface.
 *
 *   pipe      one round trip.  xen-save-devices-state into a pipe that holds one page: QEMU stops the guest and blocks with it
 *             stopped, the first octets say so; while it blocks, memory is captured; then the state is read
 *             and QEMU lets the guest run by itself.  Works only if the state is longer than the pipe.
 *   stopcont  stop, xen-save-devices-state into a memfd, cont.
 *   migrate   stop, migrate with x-ignore-shared into a memfd, cont.  Slower, but carries memory that is not shared: video RAM.
 *
 * The pipe is an anonymous one, handed to QEMU and opened by it as /proc/self/fd/N: unlike a FIFO such an open never
 * waits for a reader.  So if this process dies at any instant QEMU gets EPIPE and lets the guest run.
 * One thread at a time (the session's epoch thread); state_event() from wherever QMP events are delivered. */
#ifndef FT_QEMU_STATE_H
#define FT_QEMU_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include "qmp.h"

struct state;

enum state_method { STATE_AUTO = 0, STATE_PIPE, STATE_STOPCONT, STATE_MIGRATE };
const char *state_method_name(enum state_method m);
/* -EINVAL: not one of "auto", "pipe", "stopcont", "migrate". */
int state_method_parse(const char *text, enum state_method *out);

/* Where the state goes: room for at least @want octets, then how many were put there. */
struct state_sink {
	void *(*buffer)(void *user, size_t want, size_t *cap); /* NULL: too much */
	void (*advance)(void *user, size_t len);
	void *user;
};

/* state_open - @method AUTO: found by state_choose().  @picture: video RAM matters.  @can_migrate: the standby understands
 * the stream of migrate. */
int state_open(struct state **out, struct qmp *qmp, enum state_method method, bool picture, bool can_migrate, struct ft_error *err);
void state_close(struct state *s);

/* state_event - every QMP event goes here. */
void state_event(struct state *s, const char *name, const json_t *data);
/* state_set_running - what query-status says, before events are seen. */
void state_set_running(struct state *s, bool running);
bool state_running(const struct state *s);

/* state_choose - try the ways on the guest as it is (one short pause each) and keep the first that works. */
int state_choose(struct state *s, struct ft_error *err);
enum state_method state_method(const struct state *s);

/* state_pause - when it returns 0 the guest stands still.  With AUTO a way that fails is left for the next one.
 * On failure call state_resume() all the same. */
int state_pause(struct state *s, struct ft_error *err);
/* state_save - may let the guest run at its end. */
int state_save(struct state *s, const struct state_sink *sink, struct ft_error *err);
/* state_resume - whatever came before, afterwards the guest runs if it ran before state_pause(). */
int state_resume(struct state *s, struct ft_error *err);

/* state_stop, state_cont - outside of a pause. */
int state_stop(struct state *s, struct ft_error *err);
int state_cont(struct state *s, struct ft_error *err);

/* state_load - feed @buf to a QEMU that waits with -incoming defer; it is then stopped with that state. */
int state_load(struct state *s, const void *buf, size_t len, struct ft_error *err);

#endif
