/* SPDX-License-Identifier: MIT */
/* cmdline_console.c - character devices: output that leaves the host by them has to go through ftqemu, so a socket of ours
 * takes their place and the user's destination is kept for console.c.
 * Pure functions of one thread, see cmdline.h; no state beside the walk's. */
#include "cmdline_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

static bool in_list(const struct strv *s, const char *str)
{
	size_t i;

	for (i = 0; i < s->n; i++)
		if (!strcmp(s->v[i], str))
			return true;
	return false;
}

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
	struct opts o = { 0 };
	char backend[32];
	size_t n = strcspn(spec, ",:");
	int rc = 0;

	*out = NULL;
	if (n >= sizeof(backend))
		return fail(err, -ENOTSUP, "%.60s: not a character device that ftqemu knows", spec);
	memcpy(backend, spec, n);
	backend[n] = '\0';
	if (!strncmp(spec, "file:", 5)) {
		opts_set(&o, "path", spec + 5);
	} else if (!strncmp(spec, "unix:", 5) || !strncmp(spec, "tcp:", 4)) {
		rc = legacy_socket(&o, spec + n + 1, spec[0] == 'u', err);
		strcpy(backend, "socket");
	} else if (goes_nowhere(backend)) {
		return 0;
	} else if (spec[n] == ':' || spec[0] == '{') {
		return fail(err, -ENOTSUP,
			    "%.60s: output to it cannot be held; use stdio, pty, file:, unix: or tcp:", spec);
	} else {
		rc = opts_parse(&o, spec, "backend", err);
		opts_unset(&o, "backend");
	}
	if (!rc)
		rc = check_destination(backend, &o, err);
	if (!rc && print_destination(out, backend, &o))
		rc = fail(err, -ENOMEM, "no memory");
	opts_free(&o);
	return rc;
}

/* Put a chardev socket of ours in the place of a destination.  Takes @destination. */
static int add_console(struct walk *w, const char *id, char *destination, bool mux)
{
	struct cmdline *out = w->out;
	struct cmdline_route *c = &out->console[out->nr_consoles];
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
	return c->id && c->socket ? 0 : cmdline_no_memory(w);
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
		return cmdline_pass(w, name, spec, NULL);
	return cmdline_unheld(w, name, spec, "this output does not go through ftqemu; start the guest by ftqemu");
}

/* -serial, -parallel, -debugcon, -monitor. */
int cmdline_on_serial(struct walk *w, const char *name, const char *arg, const char *why)
{
	char *destination = NULL, id[32];
	const char *spec = arg;
	bool mux = false;
	int rc;

	(void)why;
	if (!strncmp(arg, "chardev:", 8))
		return cmdline_pass(w, name, arg, NULL);
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
		return cmdline_pass(w, name, arg, NULL);
	if (mux && !strcmp(destination, "stdio")) { /* as QEMU: ^C goes to the guest then */
		free(destination);
		destination = strdup("stdio,signal=off");
		if (!destination)
			return cmdline_no_memory(w);
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

bool cmdline_is_own_socket(const struct walk *w, const char *path)
{
	size_t n = strlen(w->req->run_dir);

	return path && n && !strncmp(path, w->req->run_dir, n) && path[n] == '/';
}

int cmdline_on_chardev(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	const char *backend, *id;
	char *destination = NULL, *id_copy = NULL, *backend_copy = NULL;
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
	if (goes_nowhere(backend) || in_list(&w->control, id) || cmdline_is_own_socket(w, opts_get(&o, "path"))) {
		rc = !strcmp(backend, "stdio") ? fail(w->err, -ENOTSUP, "QMP on stdio: give it a socket of its own")
					       : cmdline_pass(w, name, arg, NULL);
		goto out;
	}
	if (w->req->running) {
		rc = cmdline_unheld(w, name, arg, "this output does not go through ftqemu; start the guest by ftqemu");
		goto out;
	}
	mux = opts_is_on(&o, "mux", false);
	id_copy = strdup(id);
	backend_copy = strdup(backend);
	opts_unset(&o, "mux");
	opts_unset(&o, "id");
	opts_unset(&o, "backend");
	rc = id_copy && backend_copy ? check_destination(backend_copy, &o, w->err) : cmdline_no_memory(w);
	if (rc) {
		fail_in(w->err, "-chardev");
		goto out;
	}
	if (print_destination(&destination, backend_copy, &o)) {
		rc = cmdline_no_memory(w);
		goto out;
	}
	rc = add_console(w, id_copy, destination, mux);
out:
	opts_free(&o);
	free(id_copy);
	free(backend_copy);
	return rc;
}

int cmdline_on_qmp(struct walk *w, const char *name, const char *arg, const char *why)
{
	(void)why;
	if (!strncmp(arg, "stdio", 5) && !w->req->running)
		return cmdline_refuse(
			w, name, arg,
			"stdio belongs to ftqemu here; give it a socket, such as unix:PATH,server=on,wait=off");
	return cmdline_pass(w, name, arg, NULL);
}
