/* SPDX-License-Identifier: MIT */
/* cmdline_refuse.c - what cannot be protected and why.
 * The table of options gives each its arity and what is done with it; an option that is not in the table is refused,
 * since nobody has thought about it.  The handlers here judge memory, machine and devices by their
 * options; those of character devices are in cmdline_console.c, of network cards in cmdline_net.c, of disks in cmdline_disk.c.
 * Pure functions of one thread, see cmdline.h.  Every refusal says the reason and what to do. */
#include "cmdline_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

#define RAM_STEP 8192u /* QEMU rounds -m up to this */

/* ---- what handlers share ------------------------------------------------------------------------ */

int cmdline_pass(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	strv_addf(&w->out->argv, "-%s", name);
	if (arg)
		strv_add(&w->out->argv, arg);
	return 0;
}

int cmdline_refuse(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (arg)
		return fail(w->err, -ENOTSUP, "-%s %.120s: %s", name, arg, why);
	return fail(w->err, -ENOTSUP, "-%s: %s", name, why);
}

/* Passes with --unsafe-output, and is written down. */
int cmdline_unheld(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (!w->req->unsafe_output)
		return fail(w->err, -ENOTSUP, "-%s%s%.120s: %s, or give --unsafe-output", name, arg ? " " : "",
			    arg ? arg : "", why);
	strv_addf(&w->out->unheld, "-%s%s%s", name, arg ? " " : "", arg ? arg : "");
	return cmdline_pass(w, name, arg, NULL);
}

int cmdline_no_memory(struct walk *w)
{
	return fail(w->err, -ENOMEM, "no memory for the command line");
}

/* @pattern is a whole name, or begins one: "vfio-*". */
static bool matches(const char *name, const char *pattern)
{
	size_t n = strlen(pattern);

	return pattern[n - 1] == '*' ? !strncmp(name, pattern, n - 1) : !strcmp(name, pattern);
}

/* ---- memory, objects, devices ------------------------------------------------------------------- */

static int on_m(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *size;
	uint64_t n = 0;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "size", w->err);
	if (rc)
		return rc;
	size = opts_get(&o, "size");
	if (opts_get(&o, "maxmem") || opts_get(&o, "slots"))
		rc = cmdline_refuse(w, name, arg,
				    "memory that is plugged in later cannot be protected; give the size alone");
	else if (!size || opts_size(size, UINT64_C(1) << 20, &n))
		rc = fail(w->err, -EINVAL, "-m %.100s: not a size", arg);
	else if (n == 0 || n > (UINT64_C(1) << 46))
		rc = fail(w->err, -ERANGE, "-m %.100s: between 8K and 64T", arg);
	else
		w->out->ram_bytes = (n + RAM_STEP - 1) / RAM_STEP * RAM_STEP;
	opts_free(&o);
	return rc ? rc : cmdline_pass(w, name, arg, NULL);
}

static int on_numa(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	if (o.json || opts_get(&o, "memdev") || opts_get(&o, "mem"))
		rc = cmdline_refuse(w, name, arg,
				    "memory of several NUMA nodes is not supported; drop -numa with memdev= or mem=");
	opts_free(&o);
	return rc ? rc : cmdline_pass(w, name, arg, NULL);
}

#define BEHIND_BACK "it writes guest memory past QEMU, which is not seen"
#define ENCRYPTED "encrypted guests cannot be read, hence not be replicated"
#define PLUGGED_IN "memory that is plugged in later cannot be protected; drop it"
#define OF_HOST "a device of the host cannot move to the standby; drop it"
#define DISK_OF_HOST "a disk of the host cannot move to the standby; use an emulated disk"

/* By the first match. */
struct reason {
	const char *pattern, *why;
};

static const struct reason refused_objects[] = {
	{ "memory-backend-*",
	  "ftqemu supplies the guest's memory itself, or its replica would miss pages; drop the memory backend" },
	{ "sev-guest", ENCRYPTED },
	{ "tdx-guest", ENCRYPTED },
	{ "s390-pv-guest", ENCRYPTED },
	{ "colo-compare", "COLO of QEMU and ftqemu exclude each other" },
	{ "filter-*", "network filters keep state that is not replicated" },
	{ "vfio-*", BEHIND_BACK },
	{ "vhost-*", BEHIND_BACK },
	{ "cryptodev-vhost*", BEHIND_BACK },
	{ "x-*", "its state is not replicated" },
};

static const struct reason refused_devices[] = {
	{ "vfio-*", "a device of the host writes guest memory past QEMU, which is not seen; use an emulated device" },
	{ "x-vfio-*", "a device of the host writes guest memory past QEMU, which is not seen; use an emulated device" },
	{ "pvrdma", "a device of the host writes guest memory past QEMU, which is not seen; drop it" },
	{ "vhost-*", "another process or the kernel writes guest memory past QEMU, which is not seen; use the device "
		     "without vhost" },
	{ "ivshmem-*", "memory shared with others is not seen; drop it" },
	{ "virtio-balloon*",
	  "pages that the balloon gives back change without being seen; drop it, and free page reporting with it" },
	{ "virtio-mem*", PLUGGED_IN },
	{ "pc-dimm", "memory beside the machine's own is not replicated; give it all with -m" },
	{ "nvdimm", "memory of an NVDIMM is not replicated; drop it" },
	{ "virtio-pmem*", "its memory is not replicated; drop it" },
	{ "virtio-9p*", "files of the host are written unheld and its state cannot move; drop it" },
	{ "tpm-*", "state of a TPM is outside of QEMU and not replicated; drop it" },
	{ "x-pci-proxy-dev", "its state is in another process; drop it" },
	{ "scsi-block", DISK_OF_HOST },
	{ "scsi-generic", DISK_OF_HOST },
	{ "usb-host", OF_HOST },
	{ "usb-redir", OF_HOST },
	{ "u2f-passthru", OF_HOST },
	{ "ccid-card-passthru", OF_HOST },
};

static const char *find_reason(const struct reason *list, size_t n, const char *name)
{
	for (size_t i = 0; name && i < n; i++)
		if (matches(name, list[i].pattern))
			return list[i].why;
	return NULL;
}

/* Things of which each is named by one key. */
struct kind {
	const char *key, *what;
	const struct reason *refused;
	size_t nr_refused;
};

static const struct kind objects = { "qom-type", "type", refused_objects,
				     sizeof(refused_objects) / sizeof(refused_objects[0]) };
static const struct kind devices = { "driver", "driver", refused_devices,
				     sizeof(refused_devices) / sizeof(refused_devices[0]) };

/* @excused: the pattern of names that are fine all the same, or NULL. */
static int check_kind(struct walk *w, const char *name, const char *arg, const struct kind *kind, const char *excused)
{
	struct opts o;
	const char *is, *why;
	int rc;

	rc = opts_parse(&o, arg, kind->key, w->err);
	if (rc)
		return rc;
	is = opts_get(&o, kind->key);
	why = find_reason(kind->refused, kind->nr_refused, is);
	if (!is)
		rc = fail(w->err, -EINVAL, "-%s %.100s: without a %s", name, arg, kind->what);
	else if (why && !(excused && matches(is, excused)))
		rc = cmdline_refuse(w, name, arg, why);
	opts_free(&o);
	return rc ? rc : cmdline_pass(w, name, arg, NULL);
}

static int on_object(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	/* memory that is there already is judged by what QEMU says about it */
	return check_kind(w, name, arg, &objects, w->req->running ? "memory-backend-*" : NULL);
}

static int on_device(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	return check_kind(w, name, arg, &devices, NULL);
}

/* ---- machine ------------------------------------------------------------------------------------ */

static int check_accel(struct walk *w, const char *accel)
{
	const char *at = accel;
	size_t n;

	for (; *at; at += n + (at[n] == ':')) {
		n = strcspn(at, ":,");
		if (!(n == 3 && (!strncmp(at, "tcg", 3) || !strncmp(at, "kvm", 3))))
			return fail(w->err, -ENOTSUP,
				    "accelerator %.*s: only tcg and kvm keep guest memory where its writes are seen",
				    (int)(n > 60 ? 60 : n), at);
		if (at[n] == ',')
			break;
	}
	return 0;
}

static int on_accel(struct walk *w, const char *name, const char *arg, const char *why)
{
	int rc = check_accel(w, arg);

	(void)why;
	return rc ? rc : cmdline_pass(w, name, arg, NULL);
}

static int on_machine(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *type, *accel;
	char real[128], *text;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	type = opts_get(&o, "type");
	accel = opts_get(&o, "accel");
	if (o.json)
		rc = fail(w->err, -EINVAL, "-machine %.100s: JSON is not understood here", arg);
	else if (type && !strcmp(type, "none"))
		rc = cmdline_refuse(w, name, arg, "there is no machine to protect");
	else if (opts_get(&o, "memory-backend") && !w->req->running)
		rc = cmdline_refuse(w, name, arg, "ftqemu supplies the guest's memory itself; drop memory-backend=");
	else if (opts_is_on(&o, "nvdimm", false))
		rc = cmdline_refuse(w, name, arg, "memory of an NVDIMM is not replicated; drop nvdimm=on");
	else if (opts_get(&o, "memory-encryption") || opts_get(&o, "confidential-guest-support"))
		rc = cmdline_refuse(w, name, arg, "encrypted guests cannot be read, hence not be replicated");
	else if (accel)
		rc = check_accel(w, accel);
	if (rc)
		goto out;
	if (type && w->req->machines && cmdline_resolve_machine(w->req->machines, type, real, sizeof(real)) &&
	    strcmp(type, real)) {
		strv_addf(&w->out->notes, "machine %s is written as %s, so that both sides mean the same", type, real);
		opts_set(&o, "type", real);
	}
	text = opts_print(&o, "type");
	rc = text && !o.value.oom ? cmdline_pass(w, name, text, NULL) : cmdline_no_memory(w);
	free(text);
out:
	opts_free(&o);
	return rc;
}

static int on_global(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	if (!strcmp(arg, "migration.send-configuration=off") ||
	    !strcmp(arg, "driver=migration,property=send-configuration,value=off")) {
		w->out->bare_stream = true;
		if (!w->req->running)
			return 0; /* added once, in cmdline_rewrite.c */
	}
	return cmdline_pass(w, name, arg, NULL);
}

static int on_name(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	int rc = opts_parse(&o, arg, "guest", w->err);

	(void)why;
	if (rc)
		return rc;
	if (opts_get(&o, "guest")) {
		free(w->out->name);
		w->out->name = strdup(opts_get(&o, "guest"));
	}
	opts_free(&o);
	return cmdline_pass(w, name, arg, NULL);
}

/* ---- pictures -------------------------------------------------------------------------- */

static int on_display(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (arg && !strcmp(arg, "none"))
		return cmdline_pass(w, name, arg, NULL);
	w->out->has_picture = true;
	return cmdline_unheld(w, name, arg, why);
}

static int on_audio(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (!strncmp(arg, "none", 4) || !strncmp(arg, "driver=none", 11))
		return cmdline_pass(w, name, arg, NULL);
	return cmdline_unheld(w, name, arg, why);
}

static int on_gdb(struct walk *w, const char *name, const char *arg, const char *why)
{
	return !strcmp(arg, "none") ? cmdline_pass(w, name, arg, NULL) : cmdline_refuse(w, name, arg, why);
}

/* Options that only the pre-pass looks at; ours come at the end. */
static int drop_it(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	return w->req->running ? cmdline_pass(w, name, arg, NULL) : 0;
}

/* ---- the table ---------------------------------------------------------------------------------- */

#define DISK "what the guest writes to this disk is not held or replicated; use a hard disk (-drive), or readonly=on"
#define PICTURE "what the guest draws is seen before it may leave; use -display none"

static const struct rule rules[] = {
	/* refused */
	{ "daemonize", cmdline_refuse, false, true, "ftqemu needs its child; run ftqemu itself in the background" },
	{ "incoming", cmdline_refuse, true, true, "ftqemu says itself where the state comes from" },
	{ "S", cmdline_refuse, false, true, "ftqemu starts the guest itself; drop it" },
	{ "s", cmdline_refuse, false, false, "a debugger stops the guest behind ftqemu's back; drop it" },
	{ "gdb", on_gdb, true, false, "a debugger stops the guest behind ftqemu's back; drop it" },
	{ "preconfig", cmdline_refuse, false, true, "ftqemu has to see the whole machine; drop it" },
	{ "readconfig", cmdline_refuse, true, false,
	  "options in a file cannot be checked; write them on the command line" },
	{ "set", cmdline_refuse, true, false,
	  "it changes options after they were checked; write the value where it belongs" },
	{ "loadvm", cmdline_refuse, true, false,
	  "the standby cannot start from a snapshot; load it after the start or boot" },
	{ "mem-path", cmdline_refuse, true, false, "ftqemu supplies the guest's memory itself; drop it" },
	{ "chroot", cmdline_refuse, true, false, "QEMU would not find the descriptors it is given; drop it" },
	{ "snapshot", cmdline_unheld, false, false,
	  "the temporary disks of -snapshot stay on this host; use readonly=on" },
	{ "xen-domid", cmdline_refuse, true, false, "Xen keeps guest memory out of sight" },
	{ "xen-attach", cmdline_refuse, false, false, "Xen keeps guest memory out of sight" },
	{ "xen-domid-restrict", cmdline_refuse, false, false, "Xen keeps guest memory out of sight" },
	{ "fsdev", cmdline_refuse, true, false,
	  "files of the host are written unheld and its state cannot move; drop it" },
	{ "virtfs", cmdline_refuse, true, false,
	  "files of the host are written unheld and its state cannot move; drop it" },
	{ "tpmdev", cmdline_refuse, true, false, "state of a TPM is outside of QEMU and not replicated; drop it" },
	{ "dump-vmstate", cmdline_refuse, true, false, "QEMU would write a file and end" },
	{ "qtest", cmdline_refuse, true, false, "a test protocol drives the machine behind ftqemu's back" },
	/* disks, network, pictures, sound */
	{ "hda", cmdline_on_hd, true, false, NULL },
	{ "hdb", cmdline_on_hd, true, false, NULL },
	{ "hdc", cmdline_on_hd, true, false, NULL },
	{ "hdd", cmdline_on_hd, true, false, NULL },
	{ "fda", cmdline_unheld, true, false, DISK },
	{ "fdb", cmdline_unheld, true, false, DISK },
	{ "mtdblock", cmdline_unheld, true, false, DISK },
	{ "sd", cmdline_unheld, true, false, DISK },
	{ "pflash", cmdline_unheld, true, false,
	  "what the guest writes to this flash is not held or replicated; use -drive if=pflash,readonly=on" },
	{ "drive", cmdline_on_drive, true, false, NULL },
	{ "blockdev", cmdline_on_blockdev, true, false, NULL },
	{ "net", cmdline_on_net, true, false, NULL },
	{ "nic", cmdline_on_nic, true, false, NULL },
	{ "netdev", cmdline_on_netdev, true, false, NULL },
	{ "display", on_display, true, false, PICTURE },
	{ "vnc", on_display, true, false, PICTURE },
	{ "spice", on_display, true, false, PICTURE },
	{ "curses", on_display, false, false, PICTURE },
	{ "sdl", on_display, false, false, PICTURE },
	{ "audiodev", on_audio, true, false, "sound is heard before it may leave; use driver none" },
	{ "audio", on_audio, true, false, "sound is heard before it may leave; use driver none" },
	/* looked at */
	{ "machine", on_machine, true, false, NULL },
	{ "M", on_machine, true, false, NULL },
	{ "accel", on_accel, true, false, NULL },
	{ "m", on_m, true, false, NULL },
	{ "numa", on_numa, true, false, NULL },
	{ "object", on_object, true, false, NULL },
	{ "device", on_device, true, false, NULL },
	{ "global", on_global, true, false, NULL },
	{ "name", on_name, true, false, NULL },
	{ "serial", cmdline_on_serial, true, false, NULL },
	{ "parallel", cmdline_on_serial, true, false, NULL },
	{ "debugcon", cmdline_on_serial, true, false, NULL },
	{ "monitor", cmdline_on_serial, true, false, NULL },
	{ "chardev", cmdline_on_chardev, true, false, NULL },
	{ "qmp", cmdline_on_qmp, true, false, NULL },
	{ "qmp-pretty", cmdline_on_qmp, true, false, NULL },
	{ "nographic", drop_it, false, false, NULL },
	{ "no-user-config", drop_it, false, false, NULL },
	{ "only-migratable", drop_it, false, false, NULL },
	/* nothing to do with protection */
	{ "add-fd", cmdline_pass, true, false, NULL },
	{ "action", cmdline_pass, true, false, NULL },
	{ "acpitable", cmdline_pass, true, false, NULL },
	{ "append", cmdline_pass, true, false, NULL },
	{ "async-teardown", cmdline_pass, false, false, NULL },
	{ "bios", cmdline_pass, true, false, NULL },
	{ "boot", cmdline_pass, true, false, NULL },
	{ "cdrom", cmdline_pass, true, false, NULL },
	{ "compat", cmdline_pass, true, false, NULL },
	{ "cpu", cmdline_pass, true, false, NULL },
	{ "d", cmdline_pass, true, false, NULL },
	{ "D", cmdline_pass, true, false, NULL },
	{ "dfilter", cmdline_pass, true, false, NULL },
	{ "dtb", cmdline_pass, true, false, NULL },
	{ "echr", cmdline_pass, true, false, NULL },
	{ "enable-kvm", cmdline_pass, false, false, NULL },
	{ "enable-sync-profile", cmdline_pass, false, false, NULL },
	{ "full-screen", cmdline_pass, false, false, NULL },
	{ "fw_cfg", cmdline_pass, true, false, NULL },
	{ "icount", cmdline_pass, true, false, NULL },
	{ "initrd", cmdline_pass, true, false, NULL },
	{ "iscsi", cmdline_pass, true, false, NULL },
	{ "k", cmdline_pass, true, false, NULL },
	{ "kernel", cmdline_pass, true, false, NULL },
	{ "L", cmdline_pass, true, false, NULL },
	{ "mem-prealloc", cmdline_pass, false, false, NULL },
	{ "mon", cmdline_pass, true, false, NULL },
	{ "msg", cmdline_pass, true, false, NULL },
	{ "no-acpi", cmdline_pass, false, false, NULL },
	{ "no-fd-bootchk", cmdline_pass, false, false, NULL },
	{ "no-hpet", cmdline_pass, false, false, NULL },
	{ "no-reboot", cmdline_pass, false, false, NULL },
	{ "no-shutdown", cmdline_pass, false, false, NULL },
	{ "nodefaults", cmdline_pass, false, false, NULL },
	{ "option-rom", cmdline_pass, true, false, NULL },
	{ "overcommit", cmdline_pass, true, false, NULL },
	{ "pidfile", cmdline_pass, true, false, NULL },
	{ "plugin", cmdline_pass, true, false, NULL },
	{ "portrait", cmdline_pass, false, false, NULL },
	{ "rotate", cmdline_pass, true, false, NULL },
	{ "rtc", cmdline_pass, true, false, NULL },
	{ "runas", cmdline_pass, true, false, NULL },
	{ "sandbox", cmdline_pass, true, false, NULL },
	{ "seed", cmdline_pass, true, false, NULL },
	{ "singlestep", cmdline_pass, false, false, NULL },
	{ "smbios", cmdline_pass, true, false, NULL },
	{ "smp", cmdline_pass, true, false, NULL },
	{ "trace", cmdline_pass, true, false, NULL },
	{ "usb", cmdline_pass, false, false, NULL },
	{ "usbdevice", cmdline_pass, true, false, NULL },
	{ "uuid", cmdline_pass, true, false, NULL },
	{ "vga", cmdline_pass, true, false, NULL },
	{ "watchdog-action", cmdline_pass, true, false, NULL },
	{ "win2k-hack", cmdline_pass, false, false, NULL },
};

const struct rule *cmdline_find_rule(const char *word)
{
	size_t i;

	if (word[0] != '-' || !word[1])
		return NULL;
	word += word[1] == '-' ? 2 : 1;
	for (i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (!strcmp(rules[i].name, word))
			return &rules[i];
	return NULL;
}
