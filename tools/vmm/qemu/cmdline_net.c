/* SPDX-License-Identifier: MIT */
/* cmdline_net.c - network cards: a Unix stream socket of ours takes the place of what the card is connected to, and the user's
 * destination is kept for uplink.h.
 *   -netdev TYPE,id=ID,...        -netdev stream,id=ID,... with our socket
 *   -nic TYPE,model=M,mac=A,...   the same, and -net nic,netdev=ID,model=M,macaddr=A
 * Pure functions of one thread, see cmdline.h; no state beside the walk's. */
#include "cmdline_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "opts.h"

/* What uplink.h knows, each with the keys that it knows of. */
static const struct uplink_kind {
	const char *type, *keys[12];
} kinds[] = {
	{ "tap", { "ifname", "script", "downscript" } },
	{ "stream", { "server", "addr.type", "addr.path", "addr.host", "addr.port" } },
	{ "dgram",
	  { "local.type", "local.path", "local.host", "local.port", "remote.type", "remote.path", "remote.host",
	    "remote.port" } },
};

static const struct uplink_kind *find_kind(const char *type)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].type, type))
			return &kinds[i];
	return NULL;
}

static bool knows(const struct uplink_kind *kind, const char *key)
{
	for (size_t i = 0; i < sizeof(kind->keys) / sizeof(kind->keys[0]) && kind->keys[i]; i++)
		if (!strcmp(kind->keys[i], key))
			return true;
	return false;
}

#define VHOST "vhost writes guest memory past QEMU, which is not seen; use the network without vhost"

static bool is_vhost(const char *type, const struct opts *o)
{
	return !strncmp(type, "vhost", 5) || opts_is_on(o, "vhost", false) || opts_get(o, "vhostfd") ||
	       opts_get(o, "vhostfds") || opts_is_on(o, "vhostforce", false);
}

static const char *why_not(const char *type)
{
	if (!strcmp(type, "user"))
		return "the connections of a user network end in QEMU and die with it; use tap, stream or dgram";
	if (!strcmp(type, "socket"))
		return "what the guest sends by it cannot be held; use stream or dgram, its successors";
	return "what the guest sends by it cannot be held; use tap, stream or dgram";
}

/* The destination in words: what is in @o beside the keys of others. */
static int print_destination(struct walk *w, const struct uplink_kind *kind, const char *name, struct opts *o,
			     char **out)
{
	char *text;

	*out = NULL;
	for (size_t i = 0; i < o->key.n; i++)
		if (!knows(kind, o->key.v[i]))
			return fail(w->err, -ENOTSUP, "-%s %s with %.60s=: ftqemu does not know this option of it",
				    name, kind->type, o->key.v[i]);
	text = opts_print(o, NULL);
	if (text && asprintf(out, "%s%s%s", kind->type, *text ? "," : "", text) < 0)
		*out = NULL;
	free(text);
	return *out ? 0 : cmdline_no_memory(w);
}

static int add_route(struct walk *w, const char *id, const char *destination)
{
	struct cmdline *out = w->out;
	char *socket = NULL, *path = NULL, *quoted_id = NULL;
	int rc;

	if (strchr(id, '/'))
		return fail(w->err, -EINVAL, "netdev id %.60s: no slash, please", id);
	if (asprintf(&socket, "%s/net-%s.sock", w->req->run_dir, id) < 0)
		return cmdline_no_memory(w);
	rc = cmdline_add_route(out->nic, &out->nr_nics, CMDLINE_NICS_MAX, id, socket, destination);
	path = opts_quote(socket);
	quoted_id = opts_quote(id);
	if (rc == -E2BIG)
		rc = fail(w->err, -ENOTSUP, "more than %d network cards", CMDLINE_NICS_MAX);
	else if (rc || !path || !quoted_id)
		rc = cmdline_no_memory(w);
	if (!rc) {
		strv_add(&out->argv, "-netdev");
		strv_addf(&out->argv, "stream,id=%s,server=on,addr.type=unix,addr.path=%s", quoted_id, path);
		strv_addf(&out->notes, "network %s goes through ftqemu to %s", id, destination);
	}
	free(socket);
	free(path);
	free(quoted_id);
	return rc;
}

/* Our own -netdev, or one that nobody holds. */
static int check_running(struct walk *w, const char *name, const char *arg, const struct opts *o)
{
	const char *id = opts_get(o, "id"), *path = opts_get(o, "addr.path");

	if (!id || !path || !cmdline_is_own_socket(w, path))
		return cmdline_unheld(w, name, arg,
				      "this network does not go through ftqemu; start the guest by ftqemu");
	w->out->own_nics++;
	return cmdline_pass(w, name, arg, NULL);
}

/* @id, of @type, with the rest of @o: takes its place. */
static int replace(struct walk *w, const char *name, const char *type, const char *id, struct opts *o)
{
	char *destination;
	int rc = print_destination(w, find_kind(type), name, o, &destination);

	if (!rc)
		rc = add_route(w, id, destination);
	free(destination);
	return rc;
}

int cmdline_on_netdev(struct walk *w, const char *name, const char *arg, const char *why)
{
	char *type = NULL, *id = NULL;
	struct opts o;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	type = strdup(opts_get(&o, "type") ? opts_get(&o, "type") : "");
	id = strdup(opts_get(&o, "id") ? opts_get(&o, "id") : "");
	if (!type || !id)
		rc = cmdline_no_memory(w);
	else if (is_vhost(type, &o))
		rc = cmdline_refuse(w, name, arg, VHOST);
	else if (w->req->running)
		rc = check_running(w, name, arg, &o);
	else if (!find_kind(type) || o.json)
		rc = cmdline_unheld(w, name, arg, o.json ? "JSON is not understood here" : why_not(type));
	else if (!*id)
		rc = fail(w->err, -EINVAL, "-netdev %.100s: without an id", arg);
	else {
		opts_unset(&o, "type");
		opts_unset(&o, "id");
		rc = replace(w, name, type, id, &o);
	}
	free(type);
	free(id);
	opts_free(&o);
	return rc;
}

/* The card of a -nic, as -net nic: what is not of the wire. */
static int add_card(struct walk *w, const char *id, struct opts *o)
{
	static const char *const keys[][2] = {
		{ "model", "model" }, { "mac", "macaddr" }, { "addr", "addr" }, { "vectors", "vectors" }
	};
	struct opts card = { 0 };
	char *text;

	opts_set(&card, "netdev", id);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *value = opts_get(o, keys[i][0]);

		if (value)
			opts_set(&card, keys[i][1], value);
		opts_unset(o, keys[i][0]);
	}
	text = opts_print(&card, NULL);
	opts_free(&card);
	if (!text)
		return cmdline_no_memory(w);
	strv_add(&w->out->argv, "-net");
	strv_addf(&w->out->argv, "nic,%s", text);
	free(text);
	return 0;
}

static int split_nic(struct walk *w, const char *type, struct opts *o)
{
	char id[32], *own = opts_get(o, "id") ? strdup(opts_get(o, "id")) : NULL;
	struct opts card = { 0 };
	int rc = 0;

	snprintf(id, sizeof(id), "ft-net%u", w->out->nr_nics);
	for (size_t i = 0; i < o->key.n; i++)
		opts_set(&card, o->key.v[i], o->value.v[i]);
	opts_unset(o, "type");
	opts_unset(o, "id");
	opts_unset(o, "model");
	opts_unset(o, "mac");
	opts_unset(o, "addr");
	opts_unset(o, "vectors");
	rc = replace(w, "nic", type, own ? own : id, o);
	if (!rc)
		rc = add_card(w, own ? own : id, &card);
	opts_free(&card);
	free(own);
	return rc;
}

int cmdline_on_nic(struct walk *w, const char *name, const char *arg, const char *why)
{
	struct opts o;
	char *type;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	type = strdup(opts_get(&o, "type") ? opts_get(&o, "type") : "user");
	if (!type)
		rc = cmdline_no_memory(w);
	else if (!strcmp(type, "none"))
		rc = cmdline_pass(w, name, arg, NULL);
	else if (is_vhost(type, &o))
		rc = cmdline_refuse(w, name, arg, VHOST);
	else if (w->req->running || !find_kind(type) || o.json)
		rc = cmdline_unheld(w, name, arg, why_not(type));
	else
		rc = split_nic(w, type, &o);
	free(type);
	opts_free(&o);
	return rc;
}

/* -net nic is a card; the rest of -net is the hub of old, which nobody holds. */
int cmdline_on_net(struct walk *w, const char *name, const char *arg, const char *why)
{
	const char *type;
	struct opts o;
	int rc;

	(void)why;
	rc = opts_parse(&o, arg, "type", w->err);
	if (rc)
		return rc;
	type = opts_get(&o, "type");
	if (!type || !strcmp(type, "none") || (!strcmp(type, "nic") && opts_get(&o, "netdev")))
		rc = cmdline_pass(w, name, arg, NULL);
	else if (is_vhost(type, &o))
		rc = cmdline_refuse(w, name, arg, VHOST);
	else
		rc = cmdline_unheld(
			w, name, arg,
			"what the guest sends by it is not held; use -nic or -netdev with tap, stream or dgram");
	opts_free(&o);
	return rc;
}
