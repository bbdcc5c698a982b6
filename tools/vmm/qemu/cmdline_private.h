/* SPDX-License-Identifier: MIT */
/* cmdline_private.h - the walk over the words of a command line, as the files cmdline*.c share it: the state of one pass,
 * the table's rules, and the handlers that stand in it.  Pure functions of one thread, as cmdline.h says. */
#ifndef FT_QEMU_CMDLINE_PRIVATE_H
#define FT_QEMU_CMDLINE_PRIVATE_H

#include "cmdline.h"

/* The state of one pass; handlers append to out. */
struct walk {
	const struct cmdline_request *req;
	struct cmdline *out;
	struct ft_error *err;
	/* from the pre-pass */
	bool nodefaults, nographic, has_serial, has_monitor, has_net, has_display, has_m, has_user_config,
		has_only_migratable;
	bool has_machine_type;
	struct strv control; /* ids of chardevs that carry somebody's QMP */
	/* so far */
	bool stdio_used;
	struct strv disk_files; /* of disks that are replicated */
	unsigned nr_serial;
};

struct rule {
	const char *name;
	int (*handle)(struct walk *w, const char *name, const char *arg, const char *why);
	bool has_arg;
	bool ok_running; /* a refusal that does not hold for a QEMU that runs already */
	const char *why; /* for cmdline_refuse() and cmdline_unheld() */
};

/* Handlers.  Each passes the option on, puts another in its place, or fails with the reason. */

/* cmdline_refuse.c: as it is; never; with --unsafe-output, and is written down. */
int cmdline_pass(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_refuse(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_unheld(struct walk *w, const char *name, const char *arg, const char *why);
/* cmdline_console.c: -serial, -parallel, -debugcon, -monitor; -chardev; -qmp. */
int cmdline_on_serial(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_chardev(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_qmp(struct walk *w, const char *name, const char *arg, const char *why);
bool cmdline_is_own_socket(const struct walk *w, const char *path);
/* cmdline_net.c: -netdev, -nic, -net. */
int cmdline_on_netdev(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_nic(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_net(struct walk *w, const char *name, const char *arg, const char *why);

/* cmdline_disk.c: -drive, -blockdev, -hda to -hdd. */
int cmdline_on_drive(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_blockdev(struct walk *w, const char *name, const char *arg, const char *why);
int cmdline_on_hd(struct walk *w, const char *name, const char *arg, const char *why);

/* cmdline_refuse.c: the rule of the option @word ("-m", "--m"); NULL: none, hence refused. */
const struct rule *cmdline_find_rule(const char *word);
int cmdline_no_memory(struct walk *w);

/* cmdline_rewrite.c: finds in the text of "-M help" the line of @type ("": the default one); *@real gets what it stands for. */
bool cmdline_resolve_machine(const char *machines, const char *type, char *real, size_t size);
/* cmdline_rewrite.c: before the main pass, whether QEMU's defaults may stand. */
int cmdline_check_defaults(struct walk *w);
/* cmdline_rewrite.c: after it, what the words leave unsaid, and what is ours on primary and standby. */
int cmdline_add(struct walk *w);

#endif
