/* SPDX-License-Identifier: MIT */
/* cmdline.c - see cmdline.h.
 * The table of options gives each its arity and what is done with it; an option that is not in the table is refused,
 * since nobody has thought about it.  struct walk is the state of one pass over the words; handlers append to the new
 * command line.  One pre-pass finds what later words say about earlier ones (-nodefaults, -nographic, QMP chardevs). */
#include "cmdline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

#define DEFAULT_RAM (UINT64_C(128) << 20)
#define RAM_STEP 8192u /* QEMU rounds -m up to this */

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
	unsigned nr_serial;
};

struct rule {
	const char *name;
	int (*handle)(struct walk *w, const char *name, const char *arg, const char *why);
	bool has_arg;
	bool ok_running; /* a refusal that does not hold for a QEMU that runs already */
	const char *why; /* for refuse() and unheld() */
};

/* ---- what handlers share ------------------------------------------------------------------------ */

static int pass(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	strv_addf(&w->out->argv, "-%s", name);
	if (arg)
		strv_add(&w->out->argv, arg);
	return 0;
}

static int refuse(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (arg)
		return fail(w->err, -ENOTSUP, "-%s %.120s: %s", name, arg, why);
	return fail(w->err, -ENOTSUP, "-%s: %s", name, why);
}

/* Passes with --unsafe-output, and is written down. */
static int unheld(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (!w->req->unsafe_output)
		return fail(w->err, -ENOTSUP, "-%s%s%.120s: %s, or give --unsafe-output", name, arg ? " " : "",
			    arg ? arg : "", why);
	strv_addf(&w->out->unheld, "-%s%s%s", name, arg ? " " : "", arg ? arg : "");
	return pass(w, name, arg, NULL);
}

static int out_of_memory(struct walk *w)
{
	return fail(w->err, -ENOMEM, "no memory for the command line");
}

static bool in_list(const struct strv *s, const char *str)
{
	size_t i;

	for (i = 0; i < s->n; i++)
		if (!strcmp(s->v[i], str))
			return true;
	return false;
}

/* @pattern is a whole name, or begins one: "vfio-*". */
static bool matches(const char *name, const char *pattern)
{
	size_t n = strlen(pattern);

	return pattern[n - 1] == '*' ? !strncmp(name, pattern, n - 1) : !strcmp(name, pattern);
}

/* ---- character devices -------------------------------------------------------------------------- */

/* "unix:PATH,server,nowait" and "tcp:HOST:PORT,..." to the syntax of -chardev. */
static int legacy_socket(struct opts *o, const char *rest, bool is_unix, struct ft_error *err)
{
	char *address, *colon;
	int rc;

	rc = opts_parse(o, rest, is_unix ? "path" : "address", err);
	if (rc || is_unix)
		return rc;
	address = strdup(opts_get(o, "address") ? opts_get(o, "address") : "");
	colon = address ? strrchr(address, ':') : NULL;
	if (!colon) {
		free(address);
		return fail(err, -EINVAL, "tcp:%.100s: wants HOST:PORT", rest);
	}
	*colon = '\0';
	opts_unset(o, "address");
	opts_set(o, "host", address);
	opts_set(o, "port", colon + 1);
	free(address);
	return 0;
}

static int print_destination(char **out, const char *backend, struct opts *o)
{
	char *rest = opts_print(o, NULL);

	*out = NULL;
	if (rest && asprintf(out, "%s%s%s", backend, *rest ? "," : "", rest) < 0)
		*out = NULL;
	free(rest);
	opts_free(o);
	return *out ? 0 : -ENOMEM;
}

/* The destinations that console.c knows; @backend and @o as in -chardev. */
static int check_destination(const char *backend, const struct opts *o, struct ft_error *err)
{
	static const char *const bad[] = { "telnet", "tn3270", "websocket", "tls-creds", "fd", "abstract", NULL };
	int i;

	if (opts_get(o, "logfile"))
		return fail(err, -ENOTSUP,
			    "logfile= of a character device would be written before the output may leave; drop it");
	if (!strcmp(backend, "stdio") || !strcmp(backend, "pty"))
		return 0;
	if (!strcmp(backend, "file"))
		return opts_get(o, "path") ? 0 : fail(err, -EINVAL, "file: wants a path");
	if (strcmp(backend, "socket"))
		return fail(err, -ENOTSUP,
			    "%.60s: output to it cannot be held; use stdio, pty, file, or a unix or tcp socket",
			    backend);
	for (i = 0; bad[i]; i++)
		if (opts_is_on(o, bad[i], false) || (i == 3 && opts_get(o, bad[i])) || (i == 4 && opts_get(o, bad[i])))
			return fail(err, -ENOTSUP, "socket with %s=: cannot be held; use a plain unix or tcp socket",
				    bad[i]);
	if (!opts_get(o, "path") && !(opts_get(o, "port") && opts_get(o, "host")))
		return fail(err, -EINVAL, "socket: wants path=, or host= and port=");
	return 0;
}

/* Left to QEMU: nothing of it leaves the host. */
static bool goes_nowhere(const char *backend)
{
	static const char *const nowhere[] = { "null",   "none",    "vc",      "ringbuf",
					       "memory", "testdev", "msmouse", "wctablet" };
	size_t i;

	for (i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++)
		if (!strcmp(backend, nowhere[i]))
			return true;
	return false;
}

int cmdline_destination(const char *spec, char **out, struct ft_error *err)
{
	static const char legacy_file[] = "file:", legacy_unix[] = "unix:", legacy_tcp[] = "tcp:";
	struct opts o = { 0 };
	char backend[32];
	size_t n;
	int rc;

	*out = NULL;
	if (!strncmp(spec, legacy_file, 5)) {
		opts_set(&o, "path", spec + 5);
		return print_destination(out, "file", &o) ? fail(err, -ENOMEM, "no memory") : 0;
	}
	if (!strncmp(spec, legacy_unix, 5) || !strncmp(spec, legacy_tcp, 4)) {
		bool is_unix = spec[0] == 'u';

		rc = legacy_socket(&o, spec + (is_unix ? 5 : 4), is_unix, err);
		if (!rc)
			rc = check_destination("socket", &o, err);
		if (!rc && print_destination(out, "socket", &o))
			return fail(err, -ENOMEM, "no memory");
		opts_free(&o);
		return rc;
	}
	n = strcspn(spec, ",:");
	if (n >= sizeof(backend))
		return fail(err, -ENOTSUP, "%.60s: not a character device that ftqemu knows", spec);
	memcpy(backend, spec, n);
	backend[n] = '\0';
	if (goes_nowhere(backend))
		return 0;
	if (spec[n] == ':' || spec[0] == '{')
		return fail(err, -ENOTSUP,
			    "%.60s: output to it cannot be held; use stdio, pty, file:, unix: or tcp:", spec);
	rc = opts_parse(&o, spec, "backend", err);
	opts_unset(&o, "backend");
	if (!rc)
		rc = check_destination(backend, &o, err);
	if (!rc && print_destination(out, backend, &o))
		return fail(err, -ENOMEM, "no memory");
	opts_free(&o);
	return rc;
}

/* Put a chardev socket of ours in the place of a destination.  Takes @destination. */
static int add_console(struct walk *w, const char *id, char *destination, bool mux)
{
	struct cmdline *out = w->out;
	struct cmdline_console *c = &out->console[out->nr_consoles];
	char *quoted = NULL, *quoted_id = NULL;
	bool is_stdio = !strncmp(destination, "stdio", 5);

	if (out->nr_consoles == CMDLINE_CONSOLES_MAX) {
		free(destination);
		return fail(w->err, -ENOTSUP, "more than %d character devices", CMDLINE_CONSOLES_MAX);
	}
	c->destination = destination;
	out->nr_consoles++;
	if (is_stdio && w->stdio_used)
		return fail(w->err, -EINVAL, "stdio is used by two character devices; use mon:stdio to share it");
	w->stdio_used |= is_stdio;
	if (strchr(id, '/'))
		return fail(w->err, -EINVAL, "chardev id %.60s: no slash, please", id);
	c->id = strdup(id);
	if (asprintf(&c->socket, "%s/con-%s.sock", w->req->run_dir, id) < 0)
		c->socket = NULL;
	quoted = c->socket ? opts_quote(c->socket) : NULL;
	quoted_id = opts_quote(id);
	if (c->id && quoted && quoted_id) {
		strv_add(&out->argv, "-chardev");
		strv_addf(&out->argv, "socket,id=%s,path=%s,server=on,wait=off%s", quoted_id, quoted,
			  mux ? ",mux=on" : "");
		strv_addf(&out->notes, "character device %s goes through ftqemu to %s", id, destination);
	}
	free(quoted);
	free(quoted_id);
	return c->id && c->socket ? 0 : out_of_memory(w);
}

/* In a QEMU that runs already: fine if nothing leaves the host by it. */
static int check_running_chardev(struct walk *w, const char *name, const char *spec)
{
	struct ft_error why;
	char *destination = NULL;
	int rc = cmdline_destination(spec, &destination, &why);
	bool leaves = rc || destination;

	free(destination);
	if (!leaves || !strncmp(spec, "chardev:", 8))
		return pass(w, name, spec, NULL);
	return unheld(w, name, spec, "this output does not go through ftqemu; start the guest by ftqemu");
}

/* -serial, -parallel, -debugcon, -monitor. */
static int on_serial(struct walk *w, const char *name, const char *arg, const char *why)
{
	char *destination = NULL, id[32];
	const char *spec = arg;
	bool mux = false;
	int rc;

	(void)why;
	if (!strncmp(arg, "chardev:", 8))
		return pass(w, name, arg, NULL);
	if (w->req->running)
		return check_running_chardev(w, name, arg);
	if (!strncmp(spec, "mon:", 4)) {
		mux = true;
		spec += 4;
	}
	rc = cmdline_destination(spec, &destination, w->err);
	if (rc) {
		fail_in(w->err, "-%s", name);
		return rc;
	}
	if (!destination)
		return pass(w, name, arg, NULL);
	if (mux && !strcmp(destination, "stdio")) { /* as QEMU: ^C goes to the guest then */
		free(destination);
		destination = strdup("stdio,signal=off");
		if (!destination)
			return out_of_memory(w);
	}
	snprintf(id, sizeof(id), "ft-%.16s%u", name, w->nr_serial++);
	rc = add_console(w, id, destination, mux);
	if (rc)
		return rc;
	if (strcmp(name, "monitor")) {
		strv_addf(&w->out->argv, "-%s", name);
		strv_addf(&w->out->argv, "chardev:%s", id);
	}
	if (mux || !strcmp(name, "monitor")) {
		strv_add(&w->out->argv, "-mon");
		strv_addf(&w->out->argv, "chardev=%s,mode=readline", id);
	}
	return 0;
}

static bool is_own_socket(const struct walk *w, const char *path)
{
	size_t n = strlen(w->req->run_dir);

	return path && n && !strncmp(path, w->req->run_dir, n) && path[n] == '/';
}

static int on_chardev(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *backend, *id;
	char *spec = NULL, *destination = NULL, *id_copy = NULL, *backend_copy = NULL;
	bool mux;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "backend", w->err);
	if (rc)
		return rc;
	backend = opts_get(&o, "backend");
	id = opts_get(&o, "id");
	if (o.json || !backend || !id) {
		rc = fail(w->err, -EINVAL, "-chardev %.100s: wants a backend and an id", arg);
		goto out;
	}
	if (goes_nowhere(backend) || in_list(&w->control, id) || is_own_socket(w, opts_get(&o, "path"))) {
		rc = !strcmp(backend, "stdio") ? fail(w->err, -ENOTSUP, "QMP on stdio: give it a socket of its own")
					       : pass(w, name, arg, NULL);
		goto out;
	}
	if (w->req->running) {
		rc = unheld(w, name, arg, "this output does not go through ftqemu; start the guest by ftqemu");
		goto out;
	}
	mux = opts_is_on(&o, "mux", false);
	id_copy = strdup(id);
	backend_copy = strdup(backend);
	opts_unset(&o, "mux");
	opts_unset(&o, "id");
	opts_unset(&o, "backend");
	rc = id_copy && backend_copy ? check_destination(backend_copy, &o, w->err) : out_of_memory(w);
	if (rc) {
		fail_in(w->err, "-chardev");
		goto out;
	}
	if (print_destination(&destination, backend_copy, &o)) {
		rc = out_of_memory(w);
		goto out;
	}
	rc = add_console(w, id_copy, destination, mux);
out:
	opts_free(&o);
	free(spec);
	free(id_copy);
	free(backend_copy);
	return rc;
}

static int on_qmp(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	if (!strncmp(arg, "stdio", 5) && !w->req->running)
		return refuse(w, name, arg,
			      "stdio belongs to ftqemu here; give it a socket, such as unix:PATH,server=on,wait=off");
	return pass(w, name, arg, NULL);
}

/* ---- memory ------------------------------------------------------------------------------------- */

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
		rc = refuse(w, name, arg, "memory that is plugged in later cannot be protected; give the size alone");
	else if (!size || opts_size(size, UINT64_C(1) << 20, &n))
		rc = fail(w->err, -EINVAL, "-m %.100s: not a size", arg);
	else if (n == 0 || n > (UINT64_C(1) << 46))
		rc = fail(w->err, -ERANGE, "-m %.100s: between 8K and 64T", arg);
	else
		w->out->ram_bytes = (n + RAM_STEP - 1) / RAM_STEP * RAM_STEP;
	opts_free(&o);
	return rc ? rc : pass(w, name, arg, NULL);
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
		rc = refuse(w, name, arg,
			    "memory of several NUMA nodes is not supported; drop -numa with memdev= or mem=");
	opts_free(&o);
	return rc ? rc : pass(w, name, arg, NULL);
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

static int on_object(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *type;
	int rc;

	rc = opts_parse(&o, arg, "qom-type", w->err);
	if (rc)
		return rc;
	type = opts_get(&o, "qom-type");
	why = find_reason(refused_objects, sizeof(refused_objects) / sizeof(refused_objects[0]), type);
	if (!type)
		rc = fail(w->err, -EINVAL, "-object %.100s: without a type", arg);
	else if (why &&
		 !(w->req->running && !strncmp(type, "memory-backend-", 15))) /* judged by what QEMU says about it */
		rc = refuse(w, name, arg, why);
	opts_free(&o);
	return rc ? rc : pass(w, name, arg, NULL);
}

/* ---- machine ------------------------------------------------------------------------------------ */

/* Finds in the text of "-M help" the line of @type ("": the default one); *@real gets what it stands for. */
static bool resolve(const char *machines, const char *type, char *real, size_t size)
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
	return rc ? rc : pass(w, name, arg, NULL);
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
		rc = refuse(w, name, arg, "there is no machine to protect");
	else if (opts_get(&o, "memory-backend") && !w->req->running)
		rc = refuse(w, name, arg, "ftqemu supplies the guest's memory itself; drop memory-backend=");
	else if (opts_is_on(&o, "nvdimm", false))
		rc = refuse(w, name, arg, "memory of an NVDIMM is not replicated; drop nvdimm=on");
	else if (opts_get(&o, "memory-encryption") || opts_get(&o, "confidential-guest-support"))
		rc = refuse(w, name, arg, "encrypted guests cannot be read, hence not be replicated");
	else if (accel)
		rc = check_accel(w, accel);
	if (rc)
		goto out;
	if (type && w->req->machines && resolve(w->req->machines, type, real, sizeof(real)) && strcmp(type, real)) {
		strv_addf(&w->out->notes, "machine %s is written as %s, so that both sides mean the same", type, real);
		opts_set(&o, "type", real);
	}
	text = opts_print(&o, "type");
	rc = text && !o.value.oom ? pass(w, name, text, NULL) : out_of_memory(w);
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
			return 0; /* added once, below */
	}
	return pass(w, name, arg, NULL);
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
	return pass(w, name, arg, NULL);
}

/* ---- devices ------------------------------------------------------------------------------------ */

static int on_device(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *driver;
	int rc;

	rc = opts_parse(&o, arg, "driver", w->err);
	if (rc)
		return rc;
	driver = opts_get(&o, "driver");
	why = find_reason(refused_devices, sizeof(refused_devices) / sizeof(refused_devices[0]), driver);
	if (!driver)
		rc = fail(w->err, -EINVAL, "-device %.100s: without a driver", arg);
	else if (why)
		rc = refuse(w, name, arg, why);
	opts_free(&o);
	return rc ? rc : pass(w, name, arg, NULL);
}

static int on_drive(struct walk *w, const char *name, const char *arg, const char *why)
{
	static const char hint[] = "what the guest writes to this disk is not held or replicated; add readonly=on";
	struct opts o;
	const char *media;
	bool harmless;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "file", w->err);
	if (rc)
		return rc;
	media = opts_get(&o, "media");
	harmless = opts_is_on(&o, "readonly", false) || opts_is_on(&o, "read-only", false) ||
		   (media && !strcmp(media, "cdrom")) ||
		   (!opts_get(&o, "file") && !opts_get(&o, "file.driver") && !opts_get(&o, "driver") &&
		    !opts_get(&o, "file.filename"));
	if (opts_is_on(&o, "snapshot", false))
		harmless = false;
	opts_free(&o);
	return harmless ? pass(w, name, arg, NULL) : unheld(w, name, arg, hint);
}

static int on_blockdev(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *driver;
	bool harmless;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "driver", w->err);
	if (rc)
		return rc;
	driver = opts_get(&o, "driver");
	harmless = opts_is_on(&o, "read-only", false) ||
		   (driver && (!strcmp(driver, "null-co") || !strcmp(driver, "null-aio")));
	opts_free(&o);
	return harmless ? pass(w, name, arg, NULL)
			: unheld(w, name, arg,
				 "what the guest writes to this disk is not held or replicated; add read-only=on");
}

static int on_net(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *type;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	type = opts_get(&o, "type");
	if (!type || !strcmp(type, "none"))
		rc = pass(w, name, arg, NULL);
	else if (!strncmp(type, "vhost", 5) || opts_is_on(&o, "vhost", false) || opts_get(&o, "vhostfd") ||
		 opts_get(&o, "vhostfds") || opts_is_on(&o, "vhostforce", false))
		rc = refuse(w, name, arg,
			    "vhost writes guest memory past QEMU, which is not seen; use the network without vhost");
	else
		rc = unheld(w, name, arg, "what the guest sends by it is not held yet; use -nic none");
	opts_free(&o);
	return rc;
}

static int on_display(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (arg && !strcmp(arg, "none"))
		return pass(w, name, arg, NULL);
	w->out->has_picture = true;
	return unheld(w, name, arg, why);
}

static int on_audio(struct walk *w, const char *name, const char *arg, const char *why)
{
	if (!strncmp(arg, "none", 4) || !strncmp(arg, "driver=none", 11))
		return pass(w, name, arg, NULL);
	return unheld(w, name, arg, why);
}

static int on_gdb(struct walk *w, const char *name, const char *arg, const char *why)
{
	return !strcmp(arg, "none") ? pass(w, name, arg, NULL) : refuse(w, name, arg, why);
}

/* Options that only the pre-pass looks at; ours come at the end. */
static int drop_it(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	return w->req->running ? pass(w, name, arg, NULL) : 0;
}

/* ---- the table ---------------------------------------------------------------------------------- */

#define DISK "what the guest writes to this disk is not held or replicated; use -drive file=...,readonly=on"
#define PICTURE "what the guest draws is seen before it may leave; use -display none"

static const struct rule rules[] = {
	/* refused */
	{ "daemonize", refuse, false, true, "ftqemu needs its child; run ftqemu itself in the background" },
	{ "incoming", refuse, true, true, "ftqemu says itself where the state comes from" },
	{ "S", refuse, false, true, "ftqemu starts the guest itself; drop it" },
	{ "s", refuse, false, false, "a debugger stops the guest behind ftqemu's back; drop it" },
	{ "gdb", on_gdb, true, false, "a debugger stops the guest behind ftqemu's back; drop it" },
	{ "preconfig", refuse, false, true, "ftqemu has to see the whole machine; drop it" },
	{ "readconfig", refuse, true, false, "options in a file cannot be checked; write them on the command line" },
	{ "set", refuse, true, false, "it changes options after they were checked; write the value where it belongs" },
	{ "loadvm", refuse, true, false, "the standby cannot start from a snapshot; load it after the start or boot" },
	{ "mem-path", refuse, true, false, "ftqemu supplies the guest's memory itself; drop it" },
	{ "chroot", refuse, true, false, "QEMU would not find the descriptors it is given; drop it" },
	{ "snapshot", unheld, false, false, "the temporary disks of -snapshot stay on this host; use readonly=on" },
	{ "xen-domid", refuse, true, false, "Xen keeps guest memory out of sight" },
	{ "xen-attach", refuse, false, false, "Xen keeps guest memory out of sight" },
	{ "xen-domid-restrict", refuse, false, false, "Xen keeps guest memory out of sight" },
	{ "fsdev", refuse, true, false, "files of the host are written unheld and its state cannot move; drop it" },
	{ "virtfs", refuse, true, false, "files of the host are written unheld and its state cannot move; drop it" },
	{ "tpmdev", refuse, true, false, "state of a TPM is outside of QEMU and not replicated; drop it" },
	{ "dump-vmstate", refuse, true, false, "QEMU would write a file and end" },
	{ "qtest", refuse, true, false, "a test protocol drives the machine behind ftqemu's back" },
	/* disks, network, pictures, sound */
	{ "hda", unheld, true, false, DISK },
	{ "hdb", unheld, true, false, DISK },
	{ "hdc", unheld, true, false, DISK },
	{ "hdd", unheld, true, false, DISK },
	{ "fda", unheld, true, false, DISK },
	{ "fdb", unheld, true, false, DISK },
	{ "mtdblock", unheld, true, false, DISK },
	{ "sd", unheld, true, false, DISK },
	{ "pflash", unheld, true, false,
	  "what the guest writes to this flash is not held or replicated; use -drive if=pflash,readonly=on" },
	{ "drive", on_drive, true, false, NULL },
	{ "blockdev", on_blockdev, true, false, NULL },
	{ "net", on_net, true, false, NULL },
	{ "nic", on_net, true, false, NULL },
	{ "netdev", on_net, true, false, NULL },
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
	{ "serial", on_serial, true, false, NULL },
	{ "parallel", on_serial, true, false, NULL },
	{ "debugcon", on_serial, true, false, NULL },
	{ "monitor", on_serial, true, false, NULL },
	{ "chardev", on_chardev, true, false, NULL },
	{ "qmp", on_qmp, true, false, NULL },
	{ "qmp-pretty", on_qmp, true, false, NULL },
	{ "nographic", drop_it, false, false, NULL },
	{ "no-user-config", drop_it, false, false, NULL },
	{ "only-migratable", drop_it, false, false, NULL },
	/* nothing to do with protection */
	{ "add-fd", pass, true, false, NULL },
	{ "action", pass, true, false, NULL },
	{ "acpitable", pass, true, false, NULL },
	{ "append", pass, true, false, NULL },
	{ "async-teardown", pass, false, false, NULL },
	{ "bios", pass, true, false, NULL },
	{ "boot", pass, true, false, NULL },
	{ "cdrom", pass, true, false, NULL },
	{ "compat", pass, true, false, NULL },
	{ "cpu", pass, true, false, NULL },
	{ "d", pass, true, false, NULL },
	{ "D", pass, true, false, NULL },
	{ "dfilter", pass, true, false, NULL },
	{ "dtb", pass, true, false, NULL },
	{ "echr", pass, true, false, NULL },
	{ "enable-kvm", pass, false, false, NULL },
	{ "enable-sync-profile", pass, false, false, NULL },
	{ "full-screen", pass, false, false, NULL },
	{ "fw_cfg", pass, true, false, NULL },
	{ "icount", pass, true, false, NULL },
	{ "initrd", pass, true, false, NULL },
	{ "iscsi", pass, true, false, NULL },
	{ "k", pass, true, false, NULL },
	{ "kernel", pass, true, false, NULL },
	{ "L", pass, true, false, NULL },
	{ "mem-prealloc", pass, false, false, NULL },
	{ "mon", pass, true, false, NULL },
	{ "msg", pass, true, false, NULL },
	{ "no-acpi", pass, false, false, NULL },
	{ "no-fd-bootchk", pass, false, false, NULL },
	{ "no-hpet", pass, false, false, NULL },
	{ "no-reboot", pass, false, false, NULL },
	{ "no-shutdown", pass, false, false, NULL },
	{ "nodefaults", pass, false, false, NULL },
	{ "option-rom", pass, true, false, NULL },
	{ "overcommit", pass, true, false, NULL },
	{ "pidfile", pass, true, false, NULL },
	{ "plugin", pass, true, false, NULL },
	{ "portrait", pass, false, false, NULL },
	{ "rotate", pass, true, false, NULL },
	{ "rtc", pass, true, false, NULL },
	{ "runas", pass, true, false, NULL },
	{ "sandbox", pass, true, false, NULL },
	{ "seed", pass, true, false, NULL },
	{ "singlestep", pass, false, false, NULL },
	{ "smbios", pass, true, false, NULL },
	{ "smp", pass, true, false, NULL },
	{ "trace", pass, true, false, NULL },
	{ "usb", pass, false, false, NULL },
	{ "usbdevice", pass, true, false, NULL },
	{ "uuid", pass, true, false, NULL },
	{ "vga", pass, true, false, NULL },
	{ "watchdog-action", pass, true, false, NULL },
	{ "win2k-hack", pass, false, false, NULL },
};

static const struct rule *find_rule(const char *word)
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

/* ---- the passes --------------------------------------------------------------------------------- */

/* What -mon says about chardevs: those in control mode are somebody's QMP and stay as they are. */
static void note_monitor(struct walk *w, const char *arg)
{
	struct opts o;
	const char *mode, *id;

	w->has_monitor = true;
	if (opts_parse(&o, arg, "chardev", NULL))
		return;
	mode = opts_get(&o, "mode");
	id = opts_get(&o, "chardev");
	if (mode && id && !strcmp(mode, "control"))
		strv_add(&w->control, id);
	opts_free(&o);
}

static bool names_type(const char *arg)
{
	struct opts o;
	bool named;

	if (opts_parse(&o, arg, "type", NULL))
		return false;
	named = opts_get(&o, "type");
	opts_free(&o);
	return named;
}

static void note_word(struct walk *w, const char *name, const char *arg)
{
	if (!strcmp(name, "nodefaults"))
		w->nodefaults = true;
	else if (!strcmp(name, "nographic"))
		w->nographic = true;
	else if (!strcmp(name, "serial") || (!strcmp(name, "device") && !strncmp(arg, "isa-serial", 10)))
		w->has_serial = true;
	else if (!strcmp(name, "monitor") || !strcmp(name, "qmp") || !strcmp(name, "qmp-pretty"))
		w->has_monitor = true;
	else if (!strcmp(name, "net") || !strcmp(name, "nic") || !strcmp(name, "netdev"))
		w->has_net = true;
	else if (!strcmp(name, "display") || !strcmp(name, "vnc") || !strcmp(name, "spice") ||
		 !strcmp(name, "curses") || !strcmp(name, "sdl"))
		w->has_display = true;
	else if (!strcmp(name, "m"))
		w->has_m = true;
	else if (!strcmp(name, "no-user-config"))
		w->has_user_config = true;
	else if (!strcmp(name, "only-migratable"))
		w->has_only_migratable = true;
	else if (!strcmp(name, "mon"))
		note_monitor(w, arg);
	else if (!strcmp(name, "machine") || !strcmp(name, "M"))
		w->has_machine_type |= names_type(arg);
}

/* Calls @each for every option; words are checked for being options that we know. */
static int for_each(struct walk *w, int (*each)(struct walk *w, const struct rule *rule, const char *arg))
{
	char *const *argv = w->req->argv;
	const struct rule *rule;
	const char *arg;
	int rc = 0, i;

	for (i = 1; !rc && argv[i]; i++) {
		rule = find_rule(argv[i]);
		if (!rule && argv[i][0] != '-')
			return fail(
				w->err, -ENOTSUP,
				"%.120s: a disk given without an option is writable; use -drive file=...,readonly=on",
				argv[i]);
		if (!rule)
			return fail(
				w->err, -ENOTSUP,
				"%.120s: ftqemu does not know this option and cannot tell what it does to protection",
				argv[i]);
		arg = NULL;
		if (rule->has_arg) {
			arg = argv[i + 1];
			if (!arg)
				return fail(w->err, -EINVAL, "-%s: wants an argument", rule->name);
			i++;
		}
		rc = each(w, rule, arg);
	}
	return rc;
}

static int pre_pass(struct walk *w, const struct rule *rule, const char *arg)
{
	note_word(w, rule->name, arg);
	return 0;
}

static int main_pass(struct walk *w, const struct rule *rule, const char *arg)
{
	if (w->req->running && rule->ok_running)
		return pass(w, rule->name, arg, NULL);
	return rule->handle(w, rule->name, arg, rule->why);
}

/* What QEMU does for -nographic beside "no window": the serial port and the monitor on stdio. */
static int expand_nographic(struct walk *w)
{
	int rc = 0;

	if (!w->nographic || w->nodefaults)
		return 0;
	if (!w->has_serial && !w->has_monitor)
		return on_serial(w, "serial", "mon:stdio", NULL);
	if (!w->has_serial)
		rc = on_serial(w, "serial", "stdio", NULL);
	if (!rc && !w->has_monitor)
		rc = on_serial(w, "monitor", "stdio", NULL);
	return rc;
}

static int check_defaults(struct walk *w)
{
	if (w->nodefaults || w->has_net)
		return 0;
	if (!w->req->unsafe_output)
		return fail(w->err, -ENOTSUP,
			    "QEMU adds a network card by default, and what the guest sends by it is not held yet; "
			    "add -nic none, or give --unsafe-output");
	strv_add(&w->out->unheld, "the default network card");
	return 0;
}

static int add_default_machine(struct walk *w)
{
	char real[128];

	if (w->has_machine_type || !w->req->machines || !resolve(w->req->machines, "", real, sizeof(real)))
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
		return out_of_memory(w);
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

int cmdline_rewrite(struct cmdline *out, const struct cmdline_request *req, struct ft_error *err)
{
	struct walk w = { .req = req, .out = out, .err = err };
	int rc;

	*out = (struct cmdline){ 0 };
	if (!req->argv[0])
		return fail(err, -EINVAL, "no QEMU command line; give it behind --");
	strv_add(&out->argv, req->argv[0]);
	rc = for_each(&w, pre_pass);
	if (!rc)
		rc = check_defaults(&w);
	if (!rc)
		rc = for_each(&w, main_pass);
	if (!rc && !req->running) {
		rc = expand_nographic(&w);
		if (!rc)
			rc = add_default_machine(&w);
		if (!rc)
			rc = add_own(&w);
	}
	if (!rc && (out->argv.oom || out->notes.oom || out->unheld.oom || w.control.oom))
		rc = out_of_memory(&w);
	strv_free(&w.control);
	return rc;
}

void cmdline_free(struct cmdline *c)
{
	unsigned i;

	strv_free(&c->argv);
	strv_free(&c->notes);
	strv_free(&c->unheld);
	for (i = 0; i < c->nr_consoles; i++) {
		free(c->console[i].id);
		free(c->console[i].socket);
		free(c->console[i].destination);
	}
	free(c->name);
	*c = (struct cmdline){ 0 };
}

/* In single quotes where a shell would see anything but letters. */
static size_t quote(char *to, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=@+%";
	char *start = to;

	if (*word && strspn(word, plain) == strlen(word))
		return (size_t)(stpcpy(to, word) - start);
	*to++ = '\'';
	for (; *word; word++) {
		if (*word == '\'')
			to = stpcpy(to, "'\\''");
		else
			*to++ = *word;
	}
	*to++ = '\'';
	*to = '\0';
	return (size_t)(to - start);
}

char *cmdline_shell(char *const *argv)
{
	size_t size = 1, i;
	char *out, *to;

	for (i = 0; argv[i]; i++)
		size += strlen(argv[i]) * 4 + 3;
	out = malloc(size);
	if (!out)
		return NULL;
	to = out;
	*to = '\0';
	for (i = 0; argv[i]; i++) {
		if (i)
			*to++ = ' ';
		to += quote(to, argv[i]);
	}
	return out;
}
