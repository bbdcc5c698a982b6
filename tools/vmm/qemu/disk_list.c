/* SPDX-License-Identifier: MIT */
/* disk_list.c - see disk_list.h. */
#include "disk_list.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

/* NULL: it can be replicated. */
static const char *why_not(const json_t *inserted, const struct disk_info *d)
{
	struct stat st;

	if (strcmp(d->format, "raw") && strcmp(d->format, "qcow2"))
		return "only raw and qcow2 images are replicated, without a filter above them";
	if (json_is_true(json_object_get(inserted, "encrypted")))
		return "the image is encrypted, and could not be written on the secondary without its secret";
	if (stat(d->file, &st))
		return "it is in no file of this host";
	if (!S_ISREG(st.st_mode))
		return "it is a device of the host, not a file";
	if (d->size == 0)
		return "it is empty";
	return NULL;
}

/* The number of its inode, and when that was made: numbers are used again.  No device, whose number may change with a restart. */
static uint64_t identity_of(const char *file)
{
	struct statx st;
	uint64_t made = 0;

	if (statx(AT_FDCWD, file, 0, STATX_INO | STATX_BTIME, &st))
		return 0;
	if (st.stx_mask & STATX_BTIME)
		made = (uint64_t)st.stx_btime.tv_sec * 1000000000 + st.stx_btime.tv_nsec;
	return st.stx_ino ^ made * UINT64_C(0x9e3779b97f4a7c15);
}

static int take(struct disk_list *out, const json_t *one, bool unsafe, struct strv *left_out, struct ft_error *err)
{
	const json_t *inserted = json_object_get(one, "inserted");
	struct disk_info *d = &out->disk[out->nr], info = { .size = 0 };
	const char *name = text_of(one, "device"), *why;

	if (!json_is_object(inserted) || json_is_true(json_object_get(inserted, "ro")))
		return 0;
	if (!*name)
		name = text_of(one, "qdev");
	if (!*name)
		name = text_of(inserted, "node-name");
	snprintf(info.name, sizeof(info.name), "%s", name);
	snprintf(info.node, sizeof(info.node), "%s", text_of(inserted, "node-name"));
	snprintf(info.format, sizeof(info.format), "%s", text_of(inserted, "drv"));
	snprintf(info.file, sizeof(info.file), "%s", text_of(inserted, "file"));
	info.size = (uint64_t)json_integer_value(json_object_get(json_object_get(inserted, "image"), "virtual-size"));
	why = out->nr < DISKS_MAX ? why_not(inserted, &info) : "there are more disks than ftqemu replicates";
	if (!why) {
		*d = info;
		out->id[out->nr] = identity_of(info.file);
		out->size[out->nr++] = info.size;
		return 0;
	}
	if (!unsafe)
		return fail(err, -ENOTSUP, "disk %s (%.200s): %s; make it readonly, or give --unsafe-output", info.name,
			    info.file, why);
	strv_addf(left_out, "disk %s (%s): %s", info.name, info.file, why);
	return 0;
}

int disk_list_read(struct disk_list *out, struct qmp *qmp, uint64_t deadline, bool unsafe, struct strv *left_out,
		   struct ft_error *err)
{
	json_t *list, *one;
	size_t i;
	int rc = qmp_call(qmp, "query-block", -1, deadline, &list, err, NULL);

	*out = (struct disk_list){ .nr = 0 };
	if (rc)
		return rc;
	json_array_foreach(list, i, one)
	{
		rc = take(out, one, unsafe, left_out, err);
		if (rc)
			break;
	}
	json_decref(list);
	return rc;
}

int disk_list_identity(const struct disk_list *list, char **identity, size_t max, struct ft_error *err)
{
	size_t used = strlen(*identity);
	char *text = realloc(*identity, max);

	if (!text)
		return fail(err, -ENOMEM, "no memory");
	*identity = text;
	for (unsigned i = 0; i < list->nr && used < max; i++)
		used += (size_t)snprintf(text + used, max - used, "disk %s: %" PRIu64 " octets\n", list->disk[i].name,
					 list->size[i]);
	return used < max
		       ? 0
		       : fail(err, -E2BIG, "the machine's description with its disks is longer than %zu octets", max);
}
