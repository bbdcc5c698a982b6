/* SPDX-License-Identifier: MIT */
/* client.c - finding the control socket and asking one question after the other; ft-control(7). */
#include "ftctl.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "runtime.h"

#define REPLY_MAX (4u << 20)
#define ANSWER_MS 10000u /* for what the process has to do besides the command itself */

uint64_t field_u64(const json_t *object, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(object, key));

	return v < 0 ? 0 : (uint64_t)v;
}

const char *field_text(const json_t *object, const char *key)
{
	const char *t = json_string_value(json_object_get(object, key));

	return t ? t : "";
}

/* ---- the line ----------------------------------------------------------------------------------- */

int client_open(const char *path, char *why, size_t size)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(a.sun_path)) {
		snprintf(why, size, "%s: longer than a socket's path can be", path);
		return -1;
	}
	memcpy(a.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	if (errno == ENOENT || errno == ECONNREFUSED)
		snprintf(why, size, "%s: no process serves it", path);
	else
		snprintf(why, size, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* ---- which socket ------------------------------------------------------------------------------- */

/* Does a process serve the machine @name?  One that was killed leaves its file behind. */
static bool is_served(const char *name)
{
	char path[512], why[768];
	struct ft_error err;
	int fd;

	if (runtime_socket(path, sizeof(path), name, &err))
		return false;
	fd = client_open(path, why, sizeof(why));
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* The machines of @dir that are served: how many, the first, and all for a message. */
static unsigned list_machines(const char *dir, char *first, size_t size, char *all, size_t all_size)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	unsigned n = 0;
	size_t used = 0;

	*all = '\0';
	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name);

		if (len <= 5 || strcmp(e->d_name + len - 5, ".sock"))
			continue;
		e->d_name[len - 5] = '\0';
		if (!is_served(e->d_name))
			continue;
		if (n++ == 0)
			snprintf(first, size, "%s", e->d_name);
		if (used < all_size)
			used += (size_t)snprintf(all + used, all_size - used, "%s%s", n > 1 ? ", " : "", e->d_name);
	}
	if (d)
		closedir(d);
	return n;
}

/* Neither socket nor name was given: the only one that is served. */
static bool only_socket(char *path, size_t size, int *status)
{
	char dir[256], first[256], all[512];
	struct ft_error err = { 0 };
	unsigned n;

	*status = EXIT_NO_PROCESS;
	if (runtime_directory(dir, sizeof(dir), &err)) {
		cli_error("%s", err.msg);
		return false;
	}
	n = list_machines(dir, first, sizeof(first), all, sizeof(all));
	if (n == 1 && runtime_socket(path, size, first, &err) == 0)
		return true;
	if (n > 1) {
		*status = EXIT_USAGE;
		cli_error("which machine? -n NAME says it; there is %s", all);
	} else {
		cli_error("no process serves a socket in %s (-s PATH names another)", dir);
	}
	return false;
}

bool client_socket(const struct args *args, char *path, size_t size, int *status)
{
	const char *given = args->socket ? args->socket : args->name ? NULL : getenv("FT_SOCKET");
	struct ft_error err = { 0 };

	if (given && *given)
		return (size_t)snprintf(path, size, "%s", given) < size;
	if (!args->name)
		return only_socket(path, size, status);
	if (runtime_socket(path, size, args->name, &err) == 0)
		return true;
	cli_error("%s", err.msg);
	*status = EXIT_USAGE;
	return false;
}

/* ---- asking ------------------------------------------------------------------------------------- */

static int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads up to a newline; the text, or NULL with a sentence in @why. */
static char *read_line(int fd, int64_t deadline, char *why, size_t size)
{
	char *line = malloc(REPLY_MAX);
	size_t len = 0;

	while (line && len < REPLY_MAX) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = deadline - clock_ms();
		ssize_t n;

		if (left <= 0 || poll(&p, 1, left > 60000 ? 60000 : (int)left) < 0) {
			if (left > 0 && errno == EINTR)
				continue;
			snprintf(why, size, "no answer from the process");
			break;
		}
		if (!p.revents)
			continue;
		n = recv(fd, line + len, REPLY_MAX - len, 0);
		if (n <= 0) {
			snprintf(why, size, "the process has gone");
			break;
		}
		len += (size_t)n;
		if (line[len - 1] == '\n') {
			line[len - 1] = '\0';
			return line;
		}
	}
	free(line);
	return NULL;
}

static bool send_request(int fd, json_t *request)
{
	char *text;
	size_t len;
	ssize_t n;

	json_object_set_new(request, "v", json_integer(1));
	text = json_dumps(request, JSON_COMPACT);
	json_decref(request);
	if (!text)
		return false;
	len = strlen(text);
	text[len++] = '\n'; /* in place of the terminator */
	n = send(fd, text, len, MSG_NOSIGNAL);
	free(text);
	return n == (ssize_t)len;
}

json_t *client_ask(int fd, json_t *request, uint32_t timeout_ms, char *why, size_t size)
{
	int64_t deadline = clock_ms() + ANSWER_MS + timeout_ms;
	json_t *reply;
	char *line;

	if (!send_request(fd, request)) {
		snprintf(why, size, "the process has gone");
		return NULL;
	}
	line = read_line(fd, deadline, why, size);
	if (!line)
		return NULL;
	reply = json_loads(line, 0, NULL);
	if (!reply)
		snprintf(why, size, "the process answered what is no JSON");
	free(line);
	return reply;
}

/* ---- exit status -------------------------------------------------------------------------------- */

static int status_of(const json_t *reply)
{
	static const struct {
		const char *code;
		int status;
	} table[] = {
		{ "bad-argument", EXIT_USAGE },
		{ "bad-request", EXIT_USAGE },
		{ "not-found", EXIT_USAGE },
		{ "unknown-command", EXIT_USAGE },
		{ "peer-alive", EXIT_PEER_ALIVE },
		{ "no-image", EXIT_NO_IMAGE },
		{ "not-secondary", EXIT_NOT_SECONDARY },
		{ "not-protected", EXIT_NOT_PROTECTED },
		{ "no-session", EXIT_NOT_PROTECTED },
		{ "timeout", EXIT_TIMEOUT },
		{ "busy", EXIT_BUSY },
		{ "not-granted", EXIT_NOT_GRANTED },
	};
	const char *code = field_text(reply, "code");

	if (json_is_true(json_object_get(reply, "ok")))
		return EXIT_OK;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (strcmp(code, table[i].code) == 0)
			return table[i].status;
	return EXIT_ERROR;
}

json_t *client_command(const struct args *args, json_t *request, uint32_t timeout_ms, int *status)
{
	char path[512], why[768] = "";
	json_t *reply = NULL;
	int fd;

	*status = EXIT_NO_PROCESS;
	if (!client_socket(args, path, sizeof(path), status)) {
		json_decref(request);
		return NULL;
	}
	fd = client_open(path, why, sizeof(why));
	if (fd >= 0)
		reply = client_ask(fd, request, timeout_ms, why, sizeof(why));
	else
		json_decref(request);
	if (fd >= 0)
		close(fd);
	if (reply)
		*status = status_of(reply);
	else
		cli_error("%s", why);
	return reply;
}
