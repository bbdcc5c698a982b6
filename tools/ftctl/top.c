/* SPDX-License-Identifier: MIT */
/* top.c - `ftctl top`: status and rates, again and again.  On a terminal it takes the alternate screen, follows its size,
 * ends with q, and gives the terminal back whatever ends it (also ^C, ^Z, SIGTERM); in a pipe it prints a line each
 * time, with --json an object.  A process that has gone is waited for on a terminal, and ends it in a pipe. */
#include "ftctl.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <sys/ioctl.h>

#include "cli.h"
#include "human.h"

static volatile sig_atomic_t got_end, got_stop, got_size;

/* One look at the process, and what the rates are computed from. */
struct sample {
	json_t *status, *stats; /* data of the replies; NULL: the process did not answer */
	uint64_t at_ns, epochs, bytes;
	char why[256];
};

struct top {
	const struct args *args;
	char path[512];
	int fd; /* -1: not connected */
	bool is_screen;
	struct termios saved;
	sigset_t unblocked; /* signals come only inside of ppoll(): nothing is lost between a test and a wait */
	uint64_t epochs, bytes, at_ns; /* of the sample before */
	double epochs_per_s, bytes_per_s;
	unsigned lines;
};

/* ---- terminal ----------------------------------------------------------------------------------- */

static void on_signal(int sig)
{
	if (sig == SIGTSTP)
		got_stop = 1;
	else if (sig == SIGWINCH)
		got_size = 1;
	else
		got_end = sig;
}

static void catch_signals(struct top *t)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH };
	struct sigaction sa = { .sa_handler = on_signal };
	sigset_t blocked;

	sigemptyset(&blocked);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		sigaction(signals[i], &sa, NULL);
		sigaddset(&blocked, signals[i]);
	}
	sigprocmask(SIG_BLOCK, &blocked, &t->unblocked);
}

static void put(const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(STDOUT_FILENO, text, len);

		if (n < 0 && errno != EINTR)
			return;
		text += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
}

static void screen_enter(struct top *t)
{
	static const char enter[] = "\033[?1049h\033[?25l"; /* alternate screen, no cursor */
	struct termios raw = t->saved;

	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
	put(enter, sizeof(enter) - 1);
}

static void screen_leave(struct top *t)
{
	static const char leave[] = "\033[?25h\033[?1049l";

	put(leave, sizeof(leave) - 1);
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &t->saved);
}

/* ^Z: the shell gets its screen back first; after `fg` we take ours again. */
static void stop_and_go_on(struct top *t)
{
	got_stop = 0;
	screen_leave(t);
	raise(SIGSTOP);
	screen_enter(t);
}

/* The text, cut to the window: a line that wraps would scroll the rest away. */
static void draw(const char *text)
{
	struct winsize ws = { .ws_row = 24, .ws_col = 80 };
	char *out = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&out, &size);

	if (!f)
		return;
	ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws);
	fputs("\033[H", f);
	for (int row = 1; *text && row < ws.ws_row; row++) {
		int len = (int)strcspn(text, "\n");

		fprintf(f, "%.*s\033[K\r\n", len < ws.ws_col ? len : ws.ws_col, text);
		text += len + (text[len] == '\n');
	}
	fputs("\033[J", f);
	fclose(f);
	put(out, size);
	free(out);
}

/* ---- looking ------------------------------------------------------------------------------------ */

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static json_t *ask(struct top *t, const char *cmd, struct sample *s)
{
	json_t *reply, *data = NULL;

	if (t->fd < 0)
		t->fd = client_open(t->path, s->why, sizeof(s->why));
	if (t->fd < 0)
		return NULL;
	reply = client_ask(t->fd, json_pack("{s:s}", "cmd", cmd), 0, s->why, sizeof(s->why));
	if (!reply) {
		close(t->fd);
		t->fd = -1;
	} else if (json_is_true(json_object_get(reply, "ok"))) {
		data = json_incref(json_object_get(reply, "data"));
	} else {
		snprintf(s->why, sizeof(s->why), "%s", field_text(reply, "error"));
	}
	json_decref(reply);
	return data;
}

static void look(struct top *t, struct sample *s)
{
	const json_t *counter;

	memset(s, 0, sizeof(*s));
	s->status = ask(t, "status", s);
	s->stats = s->status ? ask(t, "stats", s) : NULL;
	s->at_ns = clock_ns();
	if (!s->stats)
		return;
	counter = json_object_get(s->stats, "counter");
	s->epochs = field_u64(counter, "epochs");
	s->bytes = field_u64(counter, "bytes-sent") + field_u64(counter, "bytes-received");
	t->epochs_per_s = t->bytes_per_s = 0;
	if (t->at_ns && s->epochs >= t->epochs && s->bytes >= t->bytes && s->at_ns > t->at_ns) {
		double seconds = (double)(s->at_ns - t->at_ns) / 1e9;

		t->epochs_per_s = (double)(s->epochs - t->epochs) / seconds;
		t->bytes_per_s = (double)(s->bytes - t->bytes) / seconds;
	}
	t->epochs = s->epochs;
	t->bytes = s->bytes;
	t->at_ns = s->at_ns;
}

static void sample_free(struct sample *s)
{
	json_decref(s->status);
	json_decref(s->stats);
}

/* ---- showing ------------------------------------------------------------------------------------ */

static void show_screen(struct top *t, const struct sample *s)
{
	char *text = NULL, bytes[HUMAN_MAX];
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return;
	if (!s->status) {
		fprintf(f, "%s\n", s->why);
	} else {
		report_status(f, s->status, s->stats);
		fprintf(f, "  %-12s %.1f epochs/s, %s/s\n\n", "rate", t->epochs_per_s,
			human_bytes(bytes, (uint64_t)t->bytes_per_s));
		report_stats(f, s->stats);
	}
	fclose(f);
	draw(text);
	free(text);
}

static void show_line(struct top *t, const struct sample *s)
{
	const json_t *dist = json_object_get(s->stats, "dist");
	const char *phase = strcmp(field_text(s->status, "role"), "secondary") ? "pause" : "apply";
	const json_t *d = json_object_get(dist, phase);
	char p50[HUMAN_MAX], p99[HUMAN_MAX], rate[HUMAN_MAX], interval[HUMAN_MAX];

	if (t->lines++ % 20 == 0)
		printf("%-16s %-15s %12s %9s %10s %-12s %12s %12s %12s %s\n", "machine", "state", "epoch", "epochs/s",
		       "interval", "because", "pause p50", "pause p99", "bytes/s", "bottleneck");
	printf("%-16s %-15s %12" PRIu64 " %9.1f %10s %-12s %12s %12s %12s %s\n", field_text(s->status, "name"),
	       field_text(s->status, "state"), field_u64(s->status, "epoch_acked"), t->epochs_per_s,
	       human_ns(interval, field_u64(s->status, "interval_now_ns")), field_text(s->status, "interval_reason"),
	       human_ns(p50, field_u64(d, "p50")), human_ns(p99, field_u64(d, "p99")),
	       human_bytes(rate, (uint64_t)t->bytes_per_s), field_text(s->status, "bottleneck"));
	fflush(stdout);
}

static void show_json(const struct sample *s)
{
	json_t *both = json_pack("{s:O,s:O}", "status", s->status, "stats", s->stats);

	json_dumpf(both, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(both);
}

/* ---- the loop ----------------------------------------------------------------------------------- */

/* Until the next look is due; true: the user wants out. */
static bool rest(struct top *t, uint64_t until_ns)
{
	struct pollfd p = { .fd = t->is_screen ? STDIN_FILENO : -1, .events = POLLIN };
	uint64_t now;

	while (!got_end && (now = clock_ns()) < until_ns) {
		struct timespec wait = { .tv_sec = (time_t)((until_ns - now) / 1000000000u),
					 .tv_nsec = (long)((until_ns - now) % 1000000000u) };
		int r = ppoll(&p, 1, &wait, &t->unblocked);
		char key = 0;

		if (r > 0 && read(STDIN_FILENO, &key, 1) <= 0)
			return true; /* the terminal has gone */
		if (key == 'q' || key == 'Q')
			return true;
		if (got_stop && t->is_screen)
			stop_and_go_on(t);
		if (got_size || key == ' ') {
			got_size = 0;
			return false; /* draw again now */
		}
	}
	return got_end;
}

static int loop(struct top *t)
{
	const struct args *args = t->args;
	struct sample s;
	uint32_t n = 0;
	bool there;

	for (;;) {
		uint64_t next_ns = clock_ns() + (uint64_t)args->delay_ms * 1000000u;

		look(t, &s);
		there = s.stats;
		if (t->is_screen)
			show_screen(t, &s);
		else if (!there)
			cli_error("%s", s.why);
		else if (args->json)
			show_json(&s);
		else
			show_line(t, &s);
		sample_free(&s);
		if (!there && !t->is_screen)
			return EXIT_NO_PROCESS;
		if (++n == args->count || rest(t, next_ns))
			return EXIT_OK;
	}
}

int top_run(const struct args *args)
{
	struct top t = { .args = args, .fd = -1 };
	int status = EXIT_NO_PROCESS;

	if (!client_socket(args, t.path, sizeof(t.path), &status))
		return status;
	t.is_screen = !args->json && isatty(STDOUT_FILENO) && tcgetattr(STDIN_FILENO, &t.saved) == 0;
	catch_signals(&t);
	if (t.is_screen)
		screen_enter(&t);
	status = loop(&t);
	if (t.is_screen)
		screen_leave(&t);
	if (t.fd >= 0)
		close(t.fd);
	return got_end ? 128 + got_end : status;
}
