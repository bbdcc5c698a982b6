/* SPDX-License-Identifier: MIT */
/* cmdline_disk.c - disks: those the guest cannot write pass, raw and qcow2 images in files of this host are replicated, the others
 * are refused with what speaks against them.
 * Pure functions of one thread, see cmdline.h; no state beside the walk's.  What words cannot tell (that the file is a file, the size,
 * that nobody else writes it) is asked of QEMU when it has opened the disk. */
#include "cmdline_private.h"

#include <errno.h>
#include <string.h>
#include "opts.h"

#define NOT_REPLICATED "ftqemu replicates raw and qcow2 images in files of this host; use one, or readonly=on"

/* NULL: @file is the name of a file of this host, as far as its name can tell. */
static const char *why_not_file(const char *file)
{
	size_t protocol = strcspn(file, ":/");

	if (!*file)
		return "it names no file";
	if (!strncmp(file, "json:", 5))
		return "JSON in a file's name is not understood here; write it as -blockdev";
	if (file[protocol] == ':' && strncmp(file, "file:", 5) != 0)
		return "it is no file of this host, and what the guest writes to it is not held; " NOT_REPLICATED;
	if (!strncmp(file, "/dev/", 5))
		return "a device of the host is not replicated; use an image in a file, or readonly=on";
	return NULL;
}

static const char *without_protocol(const char *file)
{
	return strncmp(file, "file:", 5) ? file : file + 5;
}

/* @file becomes one of the disks that are replicated, once. */
static int take_file(struct walk *w, const char *name, const char *arg, const char *file)
{
	const char *why = why_not_file(file);

	if (why)
		return cmdline_unheld(w, name, arg, why);
	file = without_protocol(file);
	for (size_t i = 0; i < w->disk_files.n; i++)
		if (!strcmp(w->disk_files.v[i], file))
			return cmdline_refuse(
				w, name, arg,
				"another disk of this machine is in the same file, and would write over it");
	strv_add(&w->disk_files, file);
	return cmdline_pass(w, name, arg, NULL);
}

static bool is_one_of(const char *word, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(word, *list))
			return true;
	return false;
}

static const char *why_not_interface(const char *interface)
{
	static const char *const fine[] = { "none", "ide", "scsi", "virtio", NULL };

	if (!interface || is_one_of(interface, fine))
		return NULL;
	if (!strcmp(interface, "pflash"))
		return "what the guest writes to this flash is not held or replicated; add readonly=on";
	return "what the guest writes to such a disk is not held or replicated; use if=virtio, ide, scsi or none, or "
	       "readonly=on";
}

static bool is_read_only(const struct opts *o)
{
	const char *media = opts_get(o, "media");

	return opts_is_on(o, "readonly", false) || opts_is_on(o, "read-only", false) ||
	       (media && !strcmp(media, "cdrom"));
}

static int on_writable_drive(struct walk *w, const char *name, const char *arg, const struct opts *o)
{
	static const char *const formats[] = { "raw", "qcow2", NULL };
	const char *file = opts_get(o, "file"), *format = opts_get(o, "format"), *driver = opts_get(o, "file.driver"),
		   *why;

	file = file ? file : opts_get(o, "file.filename");
	format = format ? format : opts_get(o, "driver");
	if (!file && !format && !driver)
		return cmdline_pass(w, name, arg, NULL); /* a drive without a medium */
	why = why_not_interface(opts_get(o, "if"));
	if (why)
		return cmdline_unheld(w, name, arg, why);
	if (o->json || !file || (format && !is_one_of(format, formats)) || (driver && strcmp(driver, "file") != 0))
		return cmdline_unheld(w, name, arg, "what the guest writes to this disk is not held: " NOT_REPLICATED);
	return take_file(w, name, arg, file);
}

int cmdline_on_drive(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "file", w->err);
	if (rc)
		return rc;
	if (opts_is_on(&o, "snapshot", false))
		rc = cmdline_unheld(
			w, name, arg,
			"what the guest writes goes to a temporary file, which stays on this host; drop snapshot=on");
	else if (is_read_only(&o))
		rc = cmdline_pass(w, name, arg, NULL);
	else
		rc = on_writable_drive(w, name, arg, &o);
	opts_free(&o);
	return rc;
}

/* A node of the block layer: an image, or the file that it is in, whose name may stand in either. */
static int on_node(struct walk *w, const char *name, const char *arg, const struct opts *o)
{
	static const char *const harmless[] = { "null-co", "null-aio", NULL }, *const formats[] = { "raw", "qcow2",
												    NULL };
	const char *driver = opts_get(o, "driver"), *file = opts_get(o, "filename"),
		   *below = opts_get(o, "file.driver");

	driver = driver ? driver : "";
	if (is_one_of(driver, harmless))
		return cmdline_pass(w, name, arg, NULL);
	if (!strcmp(driver, "file") && file)
		return take_file(w, name, arg, file);
	if (is_one_of(driver, formats) && opts_get(o, "file"))
		return cmdline_pass(w, name, arg, NULL); /* its file is a node of its own */
	file = opts_get(o, "file.filename");
	if (is_one_of(driver, formats) && file && below && !strcmp(below, "file"))
		return take_file(w, name, arg, file);
	if (is_one_of(driver, formats) && o->json)
		return cmdline_unheld(
			w, name, arg,
			"JSON inside of JSON is not understood here; give the file a -blockdev of its own");
	return cmdline_unheld(w, name, arg,
			      "what the guest writes to this disk is not held: ftqemu replicates drivers raw and qcow2 "
			      "over file; add "
			      "read-only=on");
}

int cmdline_on_blockdev(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "driver", w->err);
	if (rc)
		return rc;
	rc = opts_is_on(&o, "read-only", false) ? cmdline_pass(w, name, arg, NULL) : on_node(w, name, arg, &o);
	opts_free(&o);
	return rc;
}

int cmdline_on_hd(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	return take_file(w, name, arg, arg);
}
