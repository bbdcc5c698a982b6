/* SPDX-License-Identifier: MIT */
/* cmdline_rewrite.c - what a command line gets beside the user's own words: defaults of QEMU that are written out or refused,
 * and what ftqemu adds for primary and standby (memory, QMP, shim, the state in which QEMU waits).
 * Pure functions of one thread, see cmdline.h.  All that is added is written down in the notes. */
#include "cmdline_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

#define DEFAULT_RAM (UINT64_C(128) << 20)

bool cmdline_resolve_machine(const char *machines, const char *type, char *real, size_t size)
{
	static const char alias_of[] = "(alias of ";
	const char *line, *next, *alias, *mark;
	size_t n;

	for (line = machines; line && *line; line = next) {
		next = strchr(line, '\n');
		next = next ? next + 1 : line + strlen(line);
		n = strcspn(line, " \n");
		mark = memmem(line, (size_t)(next - line), "(default)", 9);
		if (*type ? n != strlen(type) || strncmp(line, type, n) : !mark)
			continue;
		alias = memmem(line, (size_t)(next - line), alias_of, sizeof(alias_of) - 1);
		if (alias) {
			line = alias + sizeof(alias_of) - 1;
			n = strcspn(line, ") \n");
		}
		if (n == 0 || n >= size)
			return false;
		memcpy(real, line, n);
		real[n] = '\0';
		return true;
	}
	return false;
}

/* What QEMU does for -nographic beside "no window": the serial port and the monitor on stdio. */
static int expand_nographic(struct walk *w)
{
	int rc = 0;

	if (!w->nographic || w->nodefaults)
		return 0;
	if (!w->has_serial && !w->has_monitor)
		return cmdline_on_serial(w, "serial", "mon:stdio", NULL);
	if (!w->has_serial)
		rc = cmdline_on_serial(w, "serial", "stdio", NULL);
	if (!rc && !w->has_monitor)
		rc = cmdline_on_serial(w, "monitor", "stdio", NULL);
	return rc;
}

int cmdline_check_defaults(struct walk *w)
{
	if (w->nodefaults || w->has_net)
		return 0;
	if (!w->req->unsafe_output)
		return fail(w->err, -ENOTSUP,
			    "QEMU adds a network card by default, and what the guest sends by it is not held; "
			    "say -nic tap,... or -nic none, or give --unsafe-output");
	strv_add(&w->out->unheld, "the default network card");
	return 0;
}

static int add_default_machine(struct walk *w)
{
	char real[128];

	if (w->has_machine_type || !w->req->machines ||
	    !cmdline_resolve_machine(w->req->machines, "", real, sizeof(real)))
		return 0;
	strv_add(&w->out->argv, "-machine");
	strv_addf(&w->out->argv, "type=%s", real);
	strv_addf(&w->out->notes, "machine %s (QEMU's default) is written out, so that both sides mean the same", real);
	return 0;
}

static void add_flag(struct walk *w, const char *flag, const char *arg, const char *note)
{
	strv_add(&w->out->argv, flag);
	if (arg)
		strv_add(&w->out->argv, arg);
	if (note)
		strv_add(&w->out->notes, note);
}

static int add_own(struct walk *w)
{
	const struct cmdline_request *req = w->req;
	struct cmdline *out = w->out;
	char *dir = opts_quote(req->run_dir), *shim = opts_quote(req->shim);

	if (!dir || !shim) {
		free(dir);
		free(shim);
		return cmdline_no_memory(w);
	}
	if (!w->has_m) {
		out->ram_bytes = DEFAULT_RAM;
		add_flag(w, "-m", "128M", "-m 128M, QEMU's default, is written out");
	}
	add_flag(w, "-no-user-config", NULL,
		 w->has_user_config ? NULL : "-no-user-config: options in files cannot be checked");
	add_flag(w, "-only-migratable", NULL,
		 w->has_only_migratable ? NULL : "-only-migratable: a device without state is refused by QEMU");
	if (!w->has_display)
		add_flag(w, "-display", "none", w->nographic ? NULL : "-display none: what is drawn could not be held");
	strv_add(&out->argv, "-object");
	strv_addf(&out->argv, "memory-backend-file,id=ft-ram,mem-path=/proc/self/fd/%d,size=%llu,share=on", req->ram_fd,
		  (unsigned long long)out->ram_bytes);
	add_flag(w, "-machine", "memory-backend=ft-ram,suppress-vmdesc=on", NULL);
	strv_addf(&out->notes, "the guest's memory (%llu MiB) is a memfd that ftqemu shares with QEMU",
		  (unsigned long long)(out->ram_bytes >> 20));
	add_flag(w, "-global", "migration.send-configuration=off",
		 "saved state is written bare, so that either way of saving loads on the standby");
	out->bare_stream = true;
	strv_add(&out->argv, "-chardev");
	strv_addf(&out->argv, "socket,id=ft-qmp,path=%s/qmp.sock,server=on,wait=off", dir);
	add_flag(w, "-mon", "chardev=ft-qmp,mode=control", NULL);
	strv_addf(&out->notes, "a QMP socket of ftqemu's own: %s/qmp.sock", req->run_dir);
	if (req->has_plugins) {
		strv_add(&out->argv, "-plugin");
		strv_addf(&out->argv, "file=%s", shim);
	}
	strv_addf(&out->notes, "the shim %s, by %s, makes one userfaultfd in QEMU", req->shim,
		  req->has_plugins ? "-plugin" : "LD_PRELOAD");
	add_flag(w, "-S", NULL, "-S: the guest starts when all is in place");
	if (req->is_secondary)
		add_flag(w, "-incoming", "defer", "-incoming defer: the machine waits for the saved state");
	free(dir);
	free(shim);
	return 0;
}

int cmdline_add(struct walk *w)
{
	int rc = expand_nographic(w);

	if (!rc)
		rc = add_default_machine(w);
	return rc ? rc : add_own(w);
}
