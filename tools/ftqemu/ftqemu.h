/* SPDX-License-Identifier: MIT */
/* ftqemu.h - what the subcommands of ftqemu share. */
#ifndef FT_FTQEMU_H
#define FT_FTQEMU_H

#include <stdbool.h>
#include <stdint.h>
#include <ft/ft.h>
#include "machine.h"

/* Exit statuses; the man page has them too.  A QEMU that ended while it was ours to watch gives its own status. */
enum {
	EXIT_REFUSED = 3, /* cannot be protected, or not set up: the reason was told, no guest was started */
	EXIT_SESSION = 4, /* the session could not be started or the other side cannot be listened for */
	EXIT_STANDBY = 5, /* the standby's QEMU ended while it waited */
	EXIT_ROLE = 6,	  /* by what is written down, or what the other side says, the guest may not run here: it was not started */
};

struct args {
	struct ft_config cfg;
	const char *name, *control, *console, *method, *log, *qemu_log, *shim;
	const char *qmp, *then_secondary;
	uint64_t pid, hold_bytes, net_hold_bytes, disk_hold_bytes;
	const char *disk_journal;
	enum nics_at_cap net_at_cap;
	bool unsafe_output, verbose, disk_durability;
	enum devstate_method state_method;
};

enum role { ROLE_PRIMARY, ROLE_SECONDARY, ROLE_ATTACH };

/* run_machine - from the start of QEMU (or taking over a running one) to its end; the exit status. */
int run_machine(const struct args *args, enum role role, char **qemu);

#endif
