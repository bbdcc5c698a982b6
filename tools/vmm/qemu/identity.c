/* SPDX-License-Identifier: MIT */
/* identity.c - see identity.h.
 * Version, machine type, memory, processors with a hash of their features, accelerator, and every device: those of the
 * board and of the command line in the order of their creation, those with an id by name, PCI functions by address. */
#include "identity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
	char *s;
	size_t used, size;
};

static void put(struct text *t, const char *fmt, ...) QEMU_PRINTF(2, 3);
static void put(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->s + t->used, t->size - t->used, fmt, ap);
	va_end(ap);
	t->used = n < 0 || (size_t)n >= t->size - t->used ? t->size - 1 : t->used + (size_t)n;
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

static int put_version(struct qmp *q, uint64_t deadline, struct text *t, struct ft_error *err)
{
	json_t *v, *n;
	int rc = qmp_call(q, "query-version", -1, deadline, &v, err, NULL);

	if (rc)
		return rc;
	n = json_object_get(v, "qemu");
	put(t, "QEMU version: %" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT "%s\n",
	    json_integer_value(json_object_get(n, "major")), json_integer_value(json_object_get(n, "minor")),
	    json_integer_value(json_object_get(n, "micro")), text_of(v, "package"));
	json_decref(v);
	return 0;
}

static int put_machine(struct qmp *q, uint64_t deadline, struct text *t, struct ft_error *err)
{
	json_t *v;
	int rc = qmp_call(q, "qom-get", -1, deadline, &v, err, "{s:s, s:s}", "path", "/machine", "property", "type");

	if (rc)
		return rc;
	put(t, "machine type: %s\n", json_string_value(v) ? json_string_value(v) : "?");
	json_decref(v);
	rc = qmp_call(q, "query-memory-size-summary", -1, deadline, &v, err, NULL);
	if (rc)
		return rc;
	put(t, "memory: %" JSON_INTEGER_FORMAT " octets\n", json_integer_value(json_object_get(v, "base-memory")));
	json_decref(v);
	rc = qmp_call(q, "query-kvm", -1, deadline, &v, err, NULL);
	if (rc)
		return rc;
	put(t, "accelerator: %s\n", json_is_true(json_object_get(v, "enabled")) ? "kvm" : "tcg");
	json_decref(v);
	return 0;
}

static uint64_t hash(const char *s)
{
	uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * UINT64_C(1099511628211);
	return h;
}

/* The number, and of the first one all features (they cannot differ from one another). */
static int put_processors(struct qmp *q, uint64_t deadline, struct text *t, struct ft_error *err)
{
	json_t *cpus, *words;
	char *dump = NULL;
	int rc = qmp_call(q, "query-cpus-fast", -1, deadline, &cpus, err, NULL);

	if (rc)
		return rc;
	put(t, "processors: %zu\n", json_array_size(cpus));
	/* not every target has the property */
	if (!qmp_call(q, "qom-get", -1, deadline, &words, NULL, "{s:s, s:s}", "path",
		      text_of(json_array_get(cpus, 0), "qom-path"), "property", "feature-words")) {
		dump = json_dumps(words, JSON_COMPACT | JSON_SORT_KEYS);
		put(t, "processor features: %016" PRIx64 "\n", dump ? hash(dump) : 0);
		free(dump);
		json_decref(words);
	}
	json_decref(cpus);
	return 0;
}

struct part {
	const char *name, *type;
	long index; /* of "device[7]"; -1: it has a name of its own */
};

static int by_index(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* The devices in container @path: properties of the type "child<TYPE>". */
static int put_devices(struct qmp *q, uint64_t deadline, const char *path, bool named, struct text *t,
		       struct ft_error *err)
{
	static struct part none[1];
	struct part *part;
	size_t n = 0, i;
	json_t *list, *e;
	int rc = qmp_call(q, "qom-list", -1, deadline, &list, err, "{s:s}", "path", path);

	if (rc)
		return rc;
	part = calloc(json_array_size(list) + 1, sizeof(*part));
	if (!part)
		part = none;
	json_array_foreach(list, i, e)
	{
		const char *name = text_of(e, "name"), *type = text_of(e, "type");
		bool indexed = !strncmp(name, "device[", 7);

		if (part == none || strncmp(type, "child<", 6) || indexed == named)
			continue;
		part[n++] = (struct part){ name, type + 6, indexed ? strtol(name + 7, NULL, 10) : -1 };
	}
	qsort(part, n, sizeof(*part), by_index);
	for (i = 0; i < n; i++)
		put(t, "device %s: %.*s\n", part[i].name, (int)strcspn(part[i].type, ">"), part[i].type);
	if (part != none)
		free(part);
	json_decref(list);
	return part == none ? fail(err, -ENOMEM, "no memory") : 0;
}

static json_int_t number_of(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

static void put_bus(const json_t *bus, struct text *t)
{
	const json_t *devices = json_object_get(bus, "devices"), *dev, *id, *behind;
	size_t i;

	json_array_foreach(devices, i, dev)
	{
		id = json_object_get(dev, "id");
		put(t, "PCI %02x:%02x.%x: %04x:%04x %s\n", (unsigned)number_of(dev, "bus"),
		    (unsigned)number_of(dev, "slot"), (unsigned)number_of(dev, "function"),
		    (unsigned)number_of(id, "vendor"), (unsigned)number_of(id, "device"), text_of(dev, "qdev_id"));
		behind = json_object_get(dev, "pci_bridge");
		if (behind)
			put_bus(behind, t);
	}
}

static void put_pci(struct qmp *q, uint64_t deadline, struct text *t)
{
	json_t *buses, *bus;
	size_t i;

	/* a machine without PCI has no such thing */
	if (qmp_call(q, "query-pci", -1, deadline, &buses, NULL, NULL))
		return;
	json_array_foreach(buses, i, bus) put_bus(bus, t);
	json_decref(buses);
}

int identity_read(struct qmp *q, uint64_t deadline, size_t max, char **out, struct ft_error *err)
{
	struct text t = { .s = calloc(1, max), .size = max };
	int rc;

	*out = NULL;
	if (!t.s)
		return fail(err, -ENOMEM, "no memory");
	rc = put_version(q, deadline, &t, err);
	if (!rc)
		rc = put_machine(q, deadline, &t, err);
	if (!rc)
		rc = put_processors(q, deadline, &t, err);
	if (!rc)
		rc = put_devices(q, deadline, "/machine/unattached", false, &t, err);
	if (!rc)
		rc = put_devices(q, deadline, "/machine/peripheral-anon", false, &t, err);
	if (!rc)
		rc = put_devices(q, deadline, "/machine/peripheral", true, &t, err);
	if (!rc)
		put_pci(q, deadline, &t);
	if (!rc && t.used >= max - 1)
		rc = fail(err, -E2BIG, "the machine has so many devices that its description is longer than %zu octets",
			  max);
	if (rc) {
		free(t.s);
		return rc;
	}
	*out = t.s;
	return 0;
}

static void line_of(const char **at, char *buf, size_t size)
{
	size_t n = strcspn(*at, "\n");

	snprintf(buf, size, "%.*s", (int)(n < size ? n : size - 1), *at);
	*at += n + ((*at)[n] == '\n');
}

int identity_compare(const char *theirs, const char *ours, struct ft_error *err)
{
	char a[160], b[160];
	size_t key;

	while (*theirs || *ours) {
		line_of(&theirs, a, sizeof(a));
		line_of(&ours, b, sizeof(b));
		if (!strcmp(a, b))
			continue;
		key = strcspn(a, ":");
		if (a[0] && !strncmp(a, b, key + 1) && a[key])
			return fail(err, -EINVAL,
				    "the machines differ: %.*s is%s on the primary and%s on the secondary", (int)key, a,
				    a + key + 1, b + key + 1);
		return fail(err, -EINVAL, "the machines differ: the primary has \"%s\" where the secondary has \"%s\"",
			    a[0] ? a : "nothing more", b[0] ? b : "nothing more");
	}
	return 0;
}
