/* SPDX-License-Identifier: MIT */
/* stress_control.c - clients send all kinds of commands while the session behind the socket is changed and taken away.
 * After ft_control_set_session() has returned nobody may touch the old one: the fake counts such uses.  Also leaves
 * clients half-way, and closes with commands under way. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "control.h"
#include "fake_session.h"

enum { CLIENTS = 4, ROUNDS = 150 };

static char dir[] = "/tmp/ft-stress-control-XXXXXX", path[64];
static atomic_bool enough;
static atomic_uint answers, failures;

static const char *const lines[] = {
	"{\"cmd\":\"status\"}\n",
	"{\"cmd\":\"stats\"}\n",
	"{\"cmd\":\"set\",\"name\":\"interval\",\"value\":20}\n",
	"{\"cmd\":\"get\"}\n",
	"{\"cmd\":\"checkpoint\",\"timeout_ms\":5}\n",
	"{\"cmd\":\"pause\"}\n",
	"{\"cmd\":\"resume\"}\n",
	"{\"cmd\":\"wait\",\"states\":\"fenced\",\"timeout_ms\":20}\n",
	"{\"cmd\":\"ping\"}\n",
	"nonsense\n",
	"{\"cmd\":\"wait\",\"states\":\"fenced\",\"timeout_ms\":600000}\n",
};
enum { LINES = sizeof(lines) / sizeof(lines[0]) };

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval t = { .tv_sec = 60 };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Reads to the end of one line; -1 if the connection ended, which only closing the control may do. */
static int hear(int fd)
{
	char buf[4096];
	ssize_t n;

	do {
		n = recv(fd, buf, sizeof(buf), 0);
		if (n <= 0)
			return n < 0 && errno == EAGAIN ? 1 : -1;
	} while (buf[n - 1] != '\n');
	atomic_fetch_add(&answers, 1);
	return 0;
}

static void *client(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	while (!atomic_load(&enough)) {
		int fd = dial(), r = fd < 0 ? -1 : 0;

		for (int i = 0; i < 20 && r == 0; i++) {
			const char *line = lines[(unsigned)rand_r(&seed) % LINES];

			if (send(fd, line, strlen(line), MSG_NOSIGNAL) < 0 || rand_r(&seed) % 16 == 0)
				break; /* leaves without waiting for the answer */
			r = hear(fd);
		}
		if (r > 0)
			atomic_fetch_add(&failures, 1);
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static int change_sessions(struct ft_control *c)
{
	struct fake_session *f;
	unsigned late = 0;

	for (int i = 0; i < ROUNDS; i++) {
		f = calloc(1, sizeof(*f));
		if (!f)
			return 1;
		fake_init(f, FT_ROLE_PRIMARY, FT_STATE_PROTECTED);
		fake_hold_checkpoint(f, i % 2);
		ft_control_set_session(c, fake_handle(f));
		usleep(2000);
		ft_control_set_session(c, NULL);
		fake_retire(f);
		late += atomic_load(&f->late_uses);
		fake_destroy(f);
		free(f); /* the sanitizers see what the counter does not */
	}
	return late ? fprintf(stderr, "%u uses of a session that was taken away\n", late) : 0;
}

int main(void)
{
	struct ft_control *c;
	struct ft_error err = { 0 };
	pthread_t t[CLIENTS];
	int bad;

	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/s", dir);
	if (control_open(&c, path, &fake_ops, NULL, NULL, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		return 1;
	}
	for (uintptr_t i = 0; i < CLIENTS; i++)
		pthread_create(&t[i], NULL, client, (void *)(i + 1));
	bad = change_sessions(c);
	ft_control_close(c);
	atomic_store(&enough, true);
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(t[i], NULL);
	rmdir(dir);
	printf("%d sessions, %u answers\n", ROUNDS, atomic_load(&answers));
	if (atomic_load(&failures))
		fprintf(stderr, "%u commands had no answer\n", atomic_load(&failures));
	return bad || atomic_load(&failures) || atomic_load(&answers) < ROUNDS;
}
