/* SPDX-License-Identifier: MIT */
/* uplink.h - the outside of a network card: frames to and from a tap device, datagrams of a Unix or UDP socket, or a stream socket with
 * the framing of QEMU's (four octets of length, most significant first).  As on any wire, what nobody is there to take is lost.
 * Never blocks, but for a tap's scripts.  uplink_send(), uplink_plug(), uplink_lost() may be called from any thread beside the others; the rest
 * by one thread. */
#ifndef FT_QEMU_UPLINK_H
#define FT_QEMU_UPLINK_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include "util.h"

#define UPLINK_FRAME_MAX 69632u /* 64 KiB, as offloading makes them, and heads; FT_OUTPUT_PACKET_MAX */

struct uplink;

/* uplink_open - @destination as cmdline_net.c wrote it ("tap,ifname=tap0").  A tap device gets its script run, as by QEMU.
 * @said: gets what the user has to know ("tap0"), or "". */
int uplink_open(struct uplink **out, const char *destination, char *said, size_t size, struct ft_error *err);
void uplink_close(struct uplink *u);

/* uplink_plug - while it is not plugged in, as at first, a stream is connected to nobody: a standby's would push out that of the primary. */
void uplink_plug(struct uplink *u, bool in);
/* uplink_send - one frame to the outside.  False: there is no room now, offer it again when uplink_handle() says. */
bool uplink_send(struct uplink *u, const void *frame, size_t len);
/* uplink_poll - add what to wait for at @p (room for 2); returns how many were added.  @input: frames are wanted.  *@timeout_ms (-1: none)
 * is lowered to when uplink_handle() wants to be called at the latest. */
int uplink_poll(struct uplink *u, struct pollfd *p, bool input, int *timeout_ms);
/* uplink_handle - after poll(): accepts, connects again, sends the rest of a frame.  True: there is room again. */
bool uplink_handle(struct uplink *u, const struct pollfd *p, int n);
/* uplink_receive - the next frame from the outside into @buf (UPLINK_FRAME_MAX octets); 0: there is none now. */
size_t uplink_receive(struct uplink *u, void *buf);
bool uplink_gone(struct uplink *u); /* true once, after the tap device was deleted: what is sent is lost from then on */
uint64_t uplink_lost(struct uplink *u); /* frames that nobody was there to take */

#endif
