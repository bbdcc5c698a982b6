/* SPDX-License-Identifier: MIT */
/* runtime.h - where a process of ft keeps its control socket, so that ftctl finds it by the machine's name. */
#ifndef FT_TOOLS_RUNTIME_H
#define FT_TOOLS_RUNTIME_H

#include <stddef.h>
#include <ft/error.h>

/* runtime_socket - the control socket of machine @name into @path: $FT_RUNTIME_DIR/NAME.sock, else /run/ft/NAME.sock for root,
 * $XDG_RUNTIME_DIR/ft/NAME.sock, else /tmp/ft-UID/NAME.sock.  -ENAMETOOLONG. */
int runtime_socket(char *path, size_t size, const char *name, struct ft_error *err);

/* runtime_directory - the folder of such sockets. */
int runtime_directory(char *path, size_t size, struct ft_error *err);

/* runtime_make_directory - make the folder (mode 0700) if it is not there; refuses one that belongs to another user. */
int runtime_make_directory(struct ft_error *err);

#endif
