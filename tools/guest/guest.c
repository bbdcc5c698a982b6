/* SPDX-License-Identifier: MIT */
/* guest.c - what runs inside of the guest of the demo and of the tests.
 * Counts on the console, keeps a checksum in every page of a block of memory, rewrites pages at a set rate, sweeps all
 * of them all the time, and watches the kernel's log and clock.  Whoever reads the console can so tell whether a guest
 * that was moved to another host is still the same one, and whether its memory is whole.
 *
 * One thread, started by init in the initramfs; settings come from the kernel's command line:
 *   ft.mem=MIB      checked memory (64)                     ft.ws=MIB     part of it that is rewritten (16)
 *   ft.rate=PAGES   rewritten pages a second (1000)         ft.sweep=MS   aim for one sweep of all pages (2000)
 *   ft.period=MS    between two console lines (100)
 * Lines on the console, each begins with "ft-guest ":
 *   READY mem 64 ws 16 rate 1000 period 100 sweep 2000      once, when all pages are written
 *   C 231 steps 22871 errs 0 sweeps 11 klog 0 back 0 t 31.204
 *     C counts by one; steps: pages rewritten; errs: pages found wrong; sweeps: complete ones;
 *     klog: bad lines of the kernel's log; back: times the clock went backwards; t: the clock, s
 *   BAD page 17 ..., KLOG text, BACK ...                    the first of each kind, in words
 *   ECHO text                                               the answer to a line that was typed
 *
 * A page holds its number, the sequence number of its last writing, and words that follow from both; the sequence
 * number is also kept outside of the page, and the sum over all pages in a third place.  So a page that is old, but
 * whole, is found too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, WORDS = PAGE_BYTES / 8 - 3, TICK_NS = 2000000 };
#define NS_PER_S 1000000000ull

struct page {
	uint64_t no, seq, sum;
	uint64_t word[WORDS];
};

struct guest {
	struct page *pages;
	uint32_t *seq;  /* of each page, as it must be */
	uint64_t total; /* of mix(no, seq) over all pages */
	uint64_t nr_pages, nr_ws;
	uint64_t rate, period_ns, sweep_ns;

	uint64_t counter, steps, errs, sweeps, klog, back;
	uint64_t sweep_next, sweep_total; /* where the sweep is, and its sum so far */
	uint64_t sweep_writes;            /* change of the sum by rewriting pages that this sweep is past */
	uint64_t random;
	int kmsg;
};

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
{
	char line[512] = "ft-guest ";
	size_t head = strlen(line);
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(line + head, sizeof(line) - head - 1, fmt, ap);
	va_end(ap);
	size_t len = head + (n < 0 ? 0 : (size_t)n);
	if (len > sizeof(line) - 2)
		len = sizeof(line) - 2;
	line[len++] = '\n';
	/* one write for one line, so that lines are never mixed */
	for (size_t done = 0; done < len;) {
		ssize_t w = write(STDOUT_FILENO, line + done, len - done);
		if (w < 0 && errno != EINTR && errno != EAGAIN)
			exit(1);
		done += w > 0 ? (size_t)w : 0;
	}
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t mix(uint64_t no, uint64_t seq)
{
	uint64_t x = (no << 32 ^ seq) + 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Sum and weighted sum: finds a changed, and a moved, word.  Additions only: this runs in an emulated CPU. */
static uint64_t page_sum(const struct page *p)
{
	uint64_t a = 0, b = 0;

	for (unsigned i = 0; i < WORDS; i++) {
		a += p->word[i];
		b += a;
	}
	return (a ^ b << 1) + mix(p->no, p->seq);
}

static void page_fill(struct page *p, uint64_t no, uint64_t seq)
{
	uint64_t w = mix(no, seq), step = w | 1;

	p->no = no;
	p->seq = seq;
	for (unsigned i = 0; i < WORDS; i++, w += step)
		p->word[i] = w;
	p->sum = page_sum(p);
}

static bool page_good(const struct guest *g, uint64_t no)
{
	const struct page *p = &g->pages[no];

	return p->no == no && p->seq == g->seq[no] && p->sum == page_sum(p);
}

static void check(struct guest *g, uint64_t no, const char *when)
{
	if (page_good(g, no))
		return;
	const struct page *p = &g->pages[no];
	if (!g->errs++)
		say("BAD page %llu %s: no %llu seq %llu, must be %u, sum %016llx, must be %016llx",
		    (unsigned long long)no, when, (unsigned long long)p->no, (unsigned long long)p->seq, g->seq[no],
		    (unsigned long long)p->sum, (unsigned long long)page_sum(p));
}

static void rewrite(struct guest *g)
{
	g->random ^= g->random << 13;
	g->random ^= g->random >> 7;
	g->random ^= g->random << 17;
	uint64_t no = g->random % g->nr_ws;

	check(g, no, "before rewriting");
	uint64_t change = mix(no, g->seq[no] + 1) - mix(no, g->seq[no]);
	page_fill(&g->pages[no], no, ++g->seq[no]);
	g->total += change;
	if (no < g->sweep_next)
		g->sweep_writes += change;
	g->steps++;
}

/* A sweep visits each page once.  What it adds up must be the total, for the pages as they were when it passed. */
static void sweep_some(struct guest *g, uint64_t n)
{
	while (n--) {
		uint64_t no = g->sweep_next++;
		check(g, no, "in a sweep");
		g->sweep_total += mix(g->pages[no].no, g->pages[no].seq);
		if (g->sweep_next < g->nr_pages)
			continue;
		if (g->sweep_total + g->sweep_writes != g->total && !g->errs++)
			say("BAD total of sweep %llu", (unsigned long long)g->sweeps + 1);
		g->sweeps++;
		g->sweep_next = g->sweep_total = g->sweep_writes = 0;
	}
}

/* Lines of the kernel's log that no healthy guest has. */
static bool is_bad(const char *line)
{
	static const char *const bad[] = { "BUG:",
					   "kernel BUG",
					   "Oops",
					   "Kernel panic",
					   "WARNING: CPU",
					   "soft lockup",
					   "hard LOCKUP",
					   "detected stall",
					   "self-detected",
					   "rcu: INFO",
					   "blocked for more",
					   "Call Trace",
					   "general protection",
					   "double fault",
					   "Machine check",
					   "segfault at",
					   "Out of memory",
					   "unknown reason" };

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (strstr(line, bad[i]))
			return true;
	return false;
}

static void read_klog(struct guest *g)
{
	char rec[2048];

	for (;;) {
		ssize_t n = read(g->kmsg, rec, sizeof(rec) - 1);
		if (n < 0 && (errno == EPIPE || errno == EINTR)) /* EPIPE: overrun, goes on with the next */
			continue;
		if (n <= 0)
			return;
		rec[n] = 0;
		const char *text = strchr(rec, ';');
		if (text && is_bad(text) && !g->klog++)
			say("KLOG %.*s", (int)strcspn(text + 1, "\n"), text + 1);
	}
}

static void answer(void)
{
	static char line[256];
	static size_t len;
	char c;

	while (read(STDIN_FILENO, &c, 1) == 1) {
		if (c == '\n' || c == '\r') {
			say("ECHO %.*s", (int)len, line);
			len = 0;
		} else if (len < sizeof(line)) {
			line[len++] = c;
		}
	}
}

static void print_line(struct guest *g, uint64_t t)
{
	read_klog(g);
	say("C %llu steps %llu errs %llu sweeps %llu klog %llu back %llu t %llu.%03llu",
	    (unsigned long long)++g->counter, (unsigned long long)g->steps, (unsigned long long)g->errs,
	    (unsigned long long)g->sweeps, (unsigned long long)g->klog, (unsigned long long)g->back,
	    (unsigned long long)(t / NS_PER_S), (unsigned long long)(t % NS_PER_S / 1000000));
}

/* How many of @per_s things a second are due after @dt_ns; what is over stays in @rest.
 * At most 0.1 s of work at once: after a pause the guest goes on at its rate, it does not catch up. */
static uint64_t due(uint64_t per_s, uint64_t dt_ns, uint64_t *rest)
{
	*rest += per_s * (dt_ns < NS_PER_S / 10 ? dt_ns : NS_PER_S / 10);
	uint64_t n = *rest / NS_PER_S;
	*rest %= NS_PER_S;
	return n;
}

static void run(struct guest *g)
{
	const uint64_t sweep_rate = g->nr_pages * NS_PER_S / g->sweep_ns;
	uint64_t last = now_ns(), line_at = last, write_rest = 0, sweep_rest = 0;

	for (;;) {
		uint64_t t = now_ns();
		if (t < last) {
			if (!g->back++)
				say("BACK from %llu to %llu ns", (unsigned long long)last, (unsigned long long)t);
			last = line_at = t;
		}
		for (uint64_t n = due(g->rate, t - last, &write_rest); n; n--)
			rewrite(g);
		sweep_some(g, due(sweep_rate, t - last, &sweep_rest));
		last = t;
		answer();
		if (t >= line_at) {
			print_line(g, t);
			line_at += g->period_ns;
			if (line_at <= t)
				line_at = t + g->period_ns;
		}
		nanosleep(&(struct timespec){ .tv_nsec = TICK_NS }, NULL);
	}
}

/* setting - the number behind " NAME=" in the kernel's command line. */
static uint64_t setting(const char *cmdline, const char *name, uint64_t fallback, uint64_t min)
{
	char key[32];

	snprintf(key, sizeof(key), " ft.%s=", name);
	const char *at = strstr(cmdline, key);
	uint64_t v = at ? strtoull(at + strlen(key), NULL, 10) : fallback;
	return v < min ? min : v;
}

static void *take(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		say("FATAL no %llu octets of memory", (unsigned long long)bytes);
		exit(1);
	}
	return p;
}

int main(void)
{
	struct guest g = { .random = 88172645463325252ull };
	char cmdline[4096] = " ";
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, cmdline + 1, sizeof(cmdline) - 2) < 0) {
		say("FATAL /proc/cmdline: %s", strerror(errno));
		return 1;
	}
	close(fd);
	uint64_t mem = setting(cmdline, "mem", 64, 1), ws = setting(cmdline, "ws", 16, 1);
	uint64_t period = setting(cmdline, "period", 100, 1), sweep = setting(cmdline, "sweep", 2000, 100);
	if (mem < ws)
		mem = ws;
	g.rate = setting(cmdline, "rate", 1000, 0);
	g.period_ns = period * 1000000;
	g.sweep_ns = sweep * 1000000;
	g.nr_pages = (mem << 20) / PAGE_BYTES;
	g.nr_ws = (ws << 20) / PAGE_BYTES;
	g.kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (g.kmsg < 0) {
		say("FATAL /dev/kmsg: %s", strerror(errno));
		return 1;
	}
	fcntl(STDIN_FILENO, F_SETFL, O_RDWR | O_NONBLOCK);

	g.pages = take(g.nr_pages * PAGE_BYTES);
	g.seq = take(g.nr_pages * sizeof(*g.seq));
	for (uint64_t i = 0; i < g.nr_pages; i++) {
		page_fill(&g.pages[i], i, 0);
		g.total += mix(i, 0);
	}
	say("READY mem %llu ws %llu rate %llu period %llu sweep %llu", (unsigned long long)mem, (unsigned long long)ws,
	    (unsigned long long)g.rate, (unsigned long long)period, (unsigned long long)sweep);
	run(&g);
}
