/* SPDX-License-Identifier: MIT */
/* cmdline.h - the user's QEMU command line: what of it cannot be protected, and what it becomes.
 *
 * A pure function: strings in, strings out, no file is opened and nothing is run.  It refuses, before the guest starts,
 * what replication would get wrong without a word (memory that others write, devices without state, output that nobody
 * holds), each with the reason and what to do.  What it cannot see from the words alone (devices that QEMU itself calls
 * unmigratable) is asked of QEMU later, by machine_setup.c, before the first instruction of the guest. */
#ifndef FT_QEMU_CMDLINE_H
#define FT_QEMU_CMDLINE_H

#include <stdbool.h>
#include <stdint.h>
#include "util.h"

#define CMDLINE_CONSOLES_MAX 16
#define CMDLINE_NICS_MAX 8

/* One character device, or one network card, that goes through us. */
struct cmdline_route {
	char *id;	   /* of QEMU's chardev or netdev */
	char *socket;	   /* path of its socket in the run directory */
	char *destination; /* where the user wanted it, in the syntax of -chardev or -netdev without id: "file,path=log" */
};

struct cmdline_request {
	char *const *argv;    /* NULL-terminated; argv[0] is the program */
	const char *machines; /* what "-M help" prints, to give a moving alias its version; NULL: aliases stay */
	const char *run_dir;  /* where the sockets go; absolute */
	const char *shim;     /* path of the shim */
	bool has_plugins;     /* QEMU knows -plugin; else the shim comes by LD_PRELOAD, which is not in argv */
	int ram_fd;	      /* the guest's RAM, as QEMU will inherit it */
	bool is_secondary;
	bool unsafe_output;   /* let writable disks, network cards, pictures pass unheld */
	bool running;	      /* it runs already (attach): check only; what ftqemu itself adds is fine */
};

struct cmdline {
	struct strv argv;  /* what to run */
	struct strv notes; /* what was added or changed, a sentence each */
	struct strv unheld; /* with unsafe_output: what leaves the host unheld, a sentence each */
	struct cmdline_route console[CMDLINE_CONSOLES_MAX];
	unsigned nr_consoles;
	struct cmdline_route nic[CMDLINE_NICS_MAX];
	unsigned nr_nics;
	unsigned own_nics; /* of a running machine: network cards that an ftqemu gave a socket; where to is not in argv */
	uint64_t ram_bytes;
	char *name;	   /* of -name, or NULL */
	bool has_picture;  /* somebody looks at a screen: video RAM must be carried */
	bool bare_stream;  /* migration.send-configuration=off: xen-save and migrate streams both load on the standby */
};

/* cmdline_rewrite - 0, or -EINVAL, -ENOTSUP with the reason.  *@out is always valid for cmdline_free(). */
int cmdline_rewrite(struct cmdline *out, const struct cmdline_request *req, struct ft_error *err);
void cmdline_free(struct cmdline *c);

/* cmdline_destination - @spec, in the syntax of -serial or -chardev, as a destination that console.c can serve.
 * *@out is the caller's to free; NULL when the device is left to QEMU (null, none, vc, ringbuf). -ENOTSUP. */
int cmdline_destination(const char *spec, char **out, struct ft_error *err);

/* cmdline_add_route - append to @list of *@nr, which has room for @max; takes copies.  -ENOMEM, -E2BIG. */
int cmdline_add_route(struct cmdline_route *list, unsigned *nr, unsigned max, const char *id, const char *socket,
		      const char *destination);

/* cmdline_shell - @argv as one line for a shell; the caller frees it. */
char *cmdline_shell(char *const *argv);

#endif
