/* SPDX-License-Identifier: MIT */
/* stress_qemu_console.c - a guest that writes all the time, a session that cuts and releases, and consoles between them, each on
 * a thread of its own: every octet arrives, once, in order, and none before its epoch was released. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "console.h"

#define EPOCHS 400
#define FLIGHT 3 /* epochs cut and not yet released */

static int guest, client;
static atomic_bool stop;
static atomic_uint_fast64_t sent, received, released; /* lines of 8 octets */

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "FAIL %s\n", what);
	exit(1);
}

static void *write_on(void *arg)
{
	char text[16];
	uint64_t n;

	(void)arg;
	for (n = 0; !atomic_load(&stop); n++) {
		snprintf(text, sizeof(text), "%07llu\n", (unsigned long long)n % 10000000);
		must(send(guest, text, 8, MSG_NOSIGNAL) == 8, "the guest writes");
		atomic_store(&sent, n + 1);
		if (n % 64 == 0)
			usleep(200);
	}
	return NULL;
}

static void *read_on(void *arg)
{
	char text[9] = "", want[16];
	uint64_t n;

	(void)arg;
	for (n = 0; recv(client, text, 8, MSG_WAITALL) == 8; n++) {
		snprintf(want, sizeof(want), "%07llu\n", (unsigned long long)n % 10000000);
		must(!strcmp(text, want), "in order");
		must(n < atomic_load(&released), "not before its epoch was released");
		atomic_store(&received, n + 1);
	}
	return NULL;
}

int main(void)
{
	char dir[] = "/tmp/ft-stress-XXXXXX", path[64], out[64], destination[128];
	struct cmdline_route spec = { (char *)"c0", path, destination };
	struct consoles_config config = { .console = &spec, .nr = 1, .hold_bytes = 1 << 20 };
	uint64_t after_cut[EPOCHS + 1];
	struct ft_error err = { 0 };
	struct consoles *c;
	pthread_t w, r;
	int listener;

	must(mkdtemp(dir) != NULL, "directory");
	snprintf(path, sizeof(path), "%s/q", dir);
	snprintf(out, sizeof(out), "%s/o", dir);
	snprintf(destination, sizeof(destination), "socket,path=%s,server=on", out);
	listener = unix_listen(path, &err);
	must(listener >= 0, err.msg);
	must(consoles_open(&c, &config, &err) == 0, err.msg);
	guest = accept(listener, NULL, NULL);
	client = unix_connect(out, util_deadline_ms(10000), &err);
	must(client >= 0, err.msg);
	/* taken by the thread, or the first octets would find nobody */
	must(send(client, "x", 1, 0) == 1 && recv(guest, path, 1, 0) == 1, "input");
	consoles_cut(c, 0);
	pthread_create(&w, NULL, write_on, NULL);
	pthread_create(&r, NULL, read_on, NULL);
	for (uint64_t e = 1; e <= EPOCHS; e++) {
		usleep(1000);
		consoles_cut(c, e);
		after_cut[e] =
			atomic_load(&sent) + 1; /* the guest is not paused here: it may be a line ahead of its count */
		if (e <= FLIGHT)
			continue;
		atomic_store(&released, after_cut[e - FLIGHT]);
		consoles_release(c, e - FLIGHT);
	}
	atomic_store(&stop, true);
	pthread_join(w, NULL);
	atomic_store(&released, UINT64_MAX);
	consoles_release(c, UINT64_MAX);
	for (int i = 0; i < 5000 && atomic_load(&received) < atomic_load(&sent); i++)
		usleep(2000);
	must(atomic_load(&received) == atomic_load(&sent), "all arrived");
	must(atomic_load(&sent) > EPOCHS && after_cut[1] > 0, "there was something to see");
	consoles_close(c, 0);
	pthread_join(r, NULL);
	printf("%llu lines in %d epochs\n", (unsigned long long)atomic_load(&sent), EPOCHS);
	close(client);
	close(guest);
	close(listener);
	snprintf(path, sizeof(path), "%s/q", dir);
	unlink(path);
	rmdir(dir);
	return 0;
}
