/* SPDX-License-Identifier: MIT */
/* progress.c - see progress.h. */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "human.h"

#define DRAW_NS 100000000u
#define BAR_MAX 40

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void progress_begin(struct progress *p)
{
	p->is_terminal = isatty(p->fd);
	p->is_shown = false;
	p->began_ns = clock_ns();
	p->shown_ns = 0;
	p->tenth = -1;
}

static const char *amount(const struct progress *p, char buf[static HUMAN_MAX], uint64_t n)
{
	return p->unit ? human_count(buf, n) : human_bytes(buf, n);
}

static void tell(const struct progress *p, char *text, size_t size, uint64_t done, uint64_t total)
{
	char a[HUMAN_MAX], b[HUMAN_MAX], t[HUMAN_MAX];
	uint64_t percent = total ? (uint64_t)((double)done * 100 / (double)total) : 0;

	snprintf(text, size, "%3u%%  %s of %s%s%s  %s", (unsigned)percent, amount(p, a, done), amount(p, b, total),
		 p->unit ? " " : "", p->unit ? p->unit : "", human_ns(t, clock_ns() - p->began_ns));
}

static void draw_bar(struct progress *p, uint64_t done, uint64_t total)
{
	char text[160], bar[BAR_MAX + 1];
	int width, full, room;

	tell(p, text, sizeof(text), done, total);
	width = cli_width(p->fd);
	room = width - (int)strlen(text) - (int)strlen(p->what) - 6;
	if (room > BAR_MAX)
		room = BAR_MAX;
	if (room < 10) {
		dprintf(p->fd, "\r\033[K%.*s", width - 1, text);
		return;
	}
	full = total ? (int)((double)done * room / (double)total) : 0;
	memset(bar, ' ', sizeof(bar));
	memset(bar, '#', (size_t)(full < room ? full : room));
	bar[room] = '\0';
	dprintf(p->fd, "\r\033[K%s [%s] %s", p->what, bar, text);
}

void progress_step(struct progress *p, uint64_t done, uint64_t total)
{
	uint64_t now = clock_ns();
	char text[160];
	int tenth;

	if (p->quiet)
		return;
	if (done > total)
		total = done;
	if (p->is_terminal) {
		if (p->is_shown && now - p->shown_ns < DRAW_NS && done < total)
			return;
		draw_bar(p, done, total);
	} else {
		tenth = total ? (int)((double)done * 10 / (double)total) : 0;
		if (tenth <= p->tenth)
			return; /* a total that grows takes it back: not worth a line */
		p->tenth = tenth;
		tell(p, text, sizeof(text), done, total);
		dprintf(p->fd, "%s: %s\n", p->what, text);
	}
	p->is_shown = true;
	p->shown_ns = now;
}

void progress_end(struct progress *p, const char *verdict)
{
	char t[HUMAN_MAX];

	if (p->quiet)
		return;
	dprintf(p->fd, "%s%s: %s after %s\n", p->is_terminal && p->is_shown ? "\r\033[K" : "", p->what, verdict,
		human_ns(t, clock_ns() - p->began_ns));
}
