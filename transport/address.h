/* SPDX-License-Identifier: MIT */
/* address.h - "HOST:PORT" to the addresses it stands for, and back: for the transports that go over IP.  Private to this folder. */
#ifndef FT_TRANSPORT_ADDRESS_H
#define FT_TRANSPORT_ADDRESS_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "err.h"

#define HOST_MAX 256

struct host_port {
	char host[HOST_MAX]; /* "" for all addresses */
	char port[16];
};

/* address_parse - "HOST:PORT", "[v6%scope]:PORT", ":PORT", "*:PORT". */
int address_parse(struct host_port *out, const char *text, struct ft_error *err);
/* address_resolve - @flags: AI_PASSIVE to listen, or 0.  *@list is freed with freeaddrinfo(). */
int address_resolve(struct addrinfo **list, const struct host_port *name, int flags, uint64_t deadline, int cancel_fd,
		    struct ft_error *err);
/* address_print - numeric, "HOST:PORT" or "[v6%scope]:PORT". */
void address_print(char *out, size_t size, const struct sockaddr *sa, socklen_t len);
/* address_share - until when the next of @left addresses may be tried: an equal share of the time, so that one that swallows packets
 * does not use it up. */
uint64_t address_share(uint64_t deadline, unsigned left);

#endif
