/* SPDX-License-Identifier: MIT */
/* fake_qmp.c - see fake_qmp.h. */
#include "fake_qmp.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char greeting[] =
	"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": 2, \"major\": 7}}, \"capabilities\": []}}\r\n";

static void must(bool holds)
{
	if (!holds)
		abort();
}

void fake_qmp_say(struct fake_qmp *f, const char *text)
{
	size_t len = strlen(text);
	ssize_t n;

	while (len && (n = send(f->client, text, len, MSG_NOSIGNAL)) > 0) {
		text += n;
		len -= (size_t)n;
	}
}

static void say_json(struct fake_qmp *f, json_t *msg)
{
	char *text = json_dumps(msg, JSON_COMPACT), line[4096];

	must(text && snprintf(line, sizeof(line), "%s\r\n", text) < (int)sizeof(line));
	fake_qmp_say(f, line);
	free(text);
	json_decref(msg);
}

void fake_qmp_return(struct fake_qmp *f, json_t *id, json_t *value)
{
	say_json(f, json_pack("{s:o, s:O}", "return", value ? value : json_object(), "id", id));
}

void fake_qmp_error(struct fake_qmp *f, json_t *id, const char *desc)
{
	say_json(f, json_pack("{s:{s:s, s:s}, s:O}", "error", "class", "GenericError", "desc", desc, "id", id));
}

void fake_qmp_event(struct fake_qmp *f, const char *name)
{
	say_json(f, json_pack("{s:s, s:{s:i, s:i}, s:{s:s}}", "event", name, "timestamp", "seconds", 1, "microseconds",
			      2, "data", "of", name));
}

static bool serve_line(struct fake_qmp *f, const char *line, size_t len, int fd)
{
	json_t *msg = json_loadb(line, len, 0, NULL), *id = json_object_get(msg, "id");
	const char *cmd = json_string_value(json_object_get(msg, "execute"));
	bool go_on = true;

	must(cmd && id);
	if (!strcmp(cmd, "qmp_capabilities"))
		fake_qmp_return(f, id, NULL);
	else
		go_on = f->on_command(f, cmd, json_object_get(msg, "arguments"), id, fd);
	json_decref(msg);
	return go_on;
}

static ssize_t receive(struct fake_qmp *f, char *buf, size_t size, int *fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { buf, size };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	struct pollfd p[2] = { { .fd = f->client, .events = POLLIN }, { .fd = f->wake[0], .events = POLLIN } };
	struct cmsghdr *c;
	ssize_t n;

	poll(p, 2, -1);
	if (p[1].revents)
		return 0;
	n = recvmsg(f->client, &msg, MSG_CMSG_CLOEXEC);
	c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(c), sizeof(int));
	return n;
}

static void serve(struct fake_qmp *f)
{
	static char buf[65536];
	size_t used = 0;
	int fd = -1;
	ssize_t n;
	char *nl;

	fake_qmp_say(f, f->greeting ? f->greeting : greeting);
	while ((n = receive(f, buf + used, sizeof(buf) - used, &fd)) > 0) {
		used += (size_t)n;
		while ((nl = memchr(buf, '\n', used))) {
			if (!serve_line(f, buf, (size_t)(nl - buf), fd))
				return;
			fd = -1;
			used -= (size_t)(nl + 1 - buf);
			memmove(buf, nl + 1, used);
		}
	}
}

static void *run(void *arg)
{
	struct fake_qmp *f = arg;
	struct pollfd p[2] = { { .fd = f->listener, .events = POLLIN }, { .fd = f->wake[0], .events = POLLIN } };

	for (;;) {
		poll(p, 2, -1);
		if (p[1].revents)
			return NULL;
		f->client = accept(f->listener, NULL, NULL);
		must(f->client >= 0);
		serve(f);
		close(f->client);
		f->client = -1;
	}
}

void fake_qmp_start(struct fake_qmp *f)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(f->dir, sizeof(f->dir), "/tmp/ft-qmp-XXXXXX");
	must(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/qmp", f->dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	f->client = -1;
	must(!bind(f->listener, (struct sockaddr *)&a, sizeof(a)) && !listen(f->listener, 1) && !pipe(f->wake));
	must(!pthread_create(&f->thread, NULL, run, f));
}

void fake_qmp_stop(struct fake_qmp *f)
{
	must(write(f->wake[1], "x", 1) == 1);
	pthread_join(f->thread, NULL);
	close(f->listener);
	close(f->wake[0]);
	close(f->wake[1]);
	unlink(f->path);
	rmdir(f->dir);
}
