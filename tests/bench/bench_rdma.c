/* SPDX-License-Identifier: MIT */
/* bench_rdma.c - what a connection carries, in the way that the engine uses it: pages are written into the peer's window, and behind every
 * batch of them goes a message that tells which (notify-write).  Two ends over tp_*, so any transport: over rdma in a guest of
 * tools/rdma/guest (tests/rdma/bench), over tcp and loopback anywhere.
 *
 * The driving end measures; the serving end counts what it is told, answers when asked, and looks at the end whether each page that was
 * told is there and no other was touched.  They may be two threads of one process, two processes, or on two machines.
 *
 * A case is a way of writing: octets in one run, layout, pages in a batch, credit window, pin budget of the serving side.  All cases are measured once, then
 * all again, and so on: medians and quartiles are of these repetitions.  Throughput is up to the answer to the last message, MiB/s as
 * perftest counts.  CPU is that of both ends' processes by getrusage(), and of the whole machine or machines by /proc/stat:
 * soft-RoCE works in the kernel's threads, which no process is charged for. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "figures.h"
#include "rng.h"
#include "transport.h"

#define PAGE 4096u
#define MEMORY (64u << 20)
#define PAGES (MEMORY / PAGE)
#define LANE 1u
#define REPS_MAX 64u
#define CASES_MAX 96u
#define ROUNDS_MAX 20000u
#define WAIT_MS 60000u   /* no wait is longer: something is stuck */
#define NOTIFY_ENTRY 16u /* octets of a notify-write for each of its runs, as in checkpoint/record.h */
#define UNTOUCHED UINT64_C(0xffffffffffffffff)

static unsigned reps = 5, ms = 700;
static bool json;

static uint64_t soon(void)
{
	return deadline_in_ms(WAIT_MS);
}

/* -- memory: page n has the same octets wherever it is, and no other page has them -- */

static uint64_t word_of(uint32_t page, uint32_t i)
{
	return (uint64_t)(page + 1) << 32 | i;
}

static void page_fill(uint64_t *at, uint32_t page)
{
	for (uint32_t i = 0; i < PAGE / 8; i++)
		at[i] = word_of(page, i);
}

static bool page_is(const uint64_t *at, uint32_t page)
{
	for (uint32_t i = 0; i < PAGE / 8; i++)
		if (at[i] != word_of(page, i))
			return false;
	return true;
}

static bool page_untouched(const uint64_t *at)
{
	for (uint32_t i = 0; i < PAGE / 8; i++)
		if (at[i] != UNTOUCHED)
			return false;
	return true;
}

static uint8_t *map(void)
{
	uint8_t *p = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED, "%u octets: %s", MEMORY, strerror(errno));
	memset(p, 0xff, MEMORY);
	return p;
}

/* -- processor time -- */

static double cpu_of_process(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Of all processors, in s: all but idle, iowait and stolen. */
static double cpu_of_machine(void)
{
	unsigned long long v[7] = { 0 };
	FILE *f = fopen("/proc/stat", "re");
	int n = f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6])
		  : 0;

	if (f)
		fclose(f);
	return n == 7 ? (double)(v[0] + v[1] + v[2] + v[5] + v[6]) / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* -- what the two ends say to one another: the same program, so words as they are in memory -- */

struct settings {
	uint32_t credits, budget_percent; /* of MEMORY; 0: no limit */
};

enum op { OP_BEGIN = 1, OP_NOTIFY, OP_USAGE, OP_CHECK, OP_NEXT, OP_END };

struct word {
	uint32_t op, answer;
	uint64_t seq, pages;
	struct settings next;
};

struct told {
	uint64_t seq, pages;       /* of notify-writes since OP_BEGIN */
	uint64_t right, untouched; /* OP_CHECK: pages */
	double process, machine;   /* s */
	uint64_t pid;
	char boot[40]; /* which machine */
};

static struct tp_params params_of(const struct settings *s)
{
	return (struct tp_params){ .lanes = LANE + 1,
				   .credits = s->credits,
				   .pin_budget = (uint64_t)MEMORY * s->budget_percent / 100 };
}

/* -- the serving end -- */

struct server {
	const char *uri;
	char address[256]; /* with the port as taken */
	struct tp_listener *listener;
	struct tp_conn *conn;
	uint8_t *window;
	uint64_t seq, pages;
	bool over;
};

static void server_listen(struct server *s, const struct settings *settings)
{
	struct tp_params p = params_of(settings);
	struct ft_error err;

	tp_listener_close(s->listener);
	s->listener = NULL;
	CHECK_OK(tp_listen(&s->listener, s->address, &p, &err), err);
	/* a port that was free is from now on that one */
	if (strncmp(s->uri, "loopback:", 9) != 0)
		snprintf(s->address, sizeof(s->address), "%.*s:%s", (int)strcspn(s->uri, ":"), s->uri,
			 tp_listener_address(s->listener));
}

static void server_start(struct server *s, const char *uri)
{
	*s = (struct server){ .uri = uri, .window = map() };
	snprintf(s->address, sizeof(s->address), "%s", uri);
	server_listen(s, &(struct settings){ .credits = 8 });
}

static void read_boot_id(char *to, size_t size)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!f || !fgets(to, (int)size, f))
		to[0] = '\0';
	if (f)
		fclose(f);
}

static void look_at_window(const struct server *s, struct told *t)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		const uint64_t *at = (const uint64_t *)(s->window + (size_t)i * PAGE);

		t->right += page_is(at, i);
		t->untouched += page_untouched(at);
	}
}

static void server_answer(struct server *s, uint32_t lane, enum op op)
{
	struct told t = { .seq = s->seq, .pages = s->pages };
	struct iovec v = { &t, sizeof(t) };
	struct ft_error err;

	if (op == OP_CHECK)
		look_at_window(s, &t);
	if (op != OP_NOTIFY) { /* those are timed */
		read_boot_id(t.boot, sizeof(t.boot));
		t.process = cpu_of_process();
		t.machine = cpu_of_machine();
		t.pid = (uint64_t)getpid();
	}
	CHECK_OK(tp_send(s->conn, lane, &v, 1, soon(), &err), err);
}

static void server_heard(struct server *s, uint32_t lane, const struct word *w)
{
	switch ((enum op)w->op) {
	case OP_BEGIN:
		memset(s->window, 0xff, MEMORY);
		s->seq = s->pages = 0;
		break;
	case OP_NOTIFY:
		CHECK(w->seq == s->seq + 1, "notify-write %llu behind %llu", (unsigned long long)w->seq,
		      (unsigned long long)s->seq);
		s->seq++;
		s->pages += w->pages;
		break;
	case OP_NEXT:
		server_listen(s, &w->next);
		break;
	case OP_END:
		s->over = true;
		break;
	case OP_USAGE:
	case OP_CHECK:
		break;
	}
	if (w->answer)
		server_answer(s, lane, (enum op)w->op);
}

/* One connection. */
static void server_run(struct server *s)
{
	static uint8_t in[TP_MESSAGE_MAX];
	struct ft_error err;
	uint32_t lane;
	size_t len;
	int r;

	CHECK_OK(tp_accept(s->listener, &s->conn, soon(), -1, &err), err);
	CHECK_OK(tp_window_open(s->conn, 0, s->window, MEMORY, &err), err);
	while ((r = tp_recv(s->conn, in, sizeof(in), &lane, &len, soon(), &err)) == 0) {
		struct word w;

		CHECK(len >= sizeof(w), "a message of %zu octets", len);
		memcpy(&w, in, sizeof(w));
		server_heard(s, lane, &w);
	}
	CHECK(r == -ENODATA, "%s", err.msg);
	tp_close(s->conn);
}

static void *server_thread(void *arg)
{
	struct server *s = arg;

	while (!s->over)
		server_run(s);
	tp_listener_close(s->listener);
	munmap(s->window, MEMORY);
	return NULL;
}

/* -- cases -- */

enum layout {
	LAYOUT_RANDOM, /* each run anywhere */
	LAYOUT_SORTED, /* those of one batch in rising order, as a checkpoint has them */
	LAYOUT_ORDER,  /* one behind the other through all memory */
};
static const char *const layout_names[] = { "random", "sorted", "order" };

struct kase {
	const char *set;
	uint32_t run;   /* octets of one write; 0: none, a message and its answer */
	uint32_t batch; /* pages from one message to the next */
	enum layout layout;
	bool rounds; /* each message is answered, and that is timed */
	struct settings settings;

	/* results, by repetition; or of rounds, in us */
	unsigned n;
	double rate[REPS_MAX], process[REPS_MAX], machine[REPS_MAX], p99[REPS_MAX]; /* MiB/s or us; s/GiB */
	uint64_t unpins;
};

static struct kase kase[CASES_MAX];
static unsigned nr_cases;

static void add(struct kase k)
{
	CHECK(nr_cases < CASES_MAX, "too many cases");
	if (k.batch * PAGE < k.run)
		k.batch = k.run / PAGE;
	if (!k.settings.credits)
		k.settings.credits = 8;
	kase[nr_cases++] = k;
}

static const uint32_t batches[] = { 1, 64, 512, 2048 };

static void add_writes(void)
{
	static const uint32_t runs[] = { 4096, 65536, 1 << 20, 4 << 20 };

	for (unsigned r = 0; r < 4; r++)
		for (unsigned b = 0; b < 4; b++)
			if (b == 3 || batches[b + 1] * PAGE > runs[r]) /* no batch is less than one run */
				add((struct kase){ .set = "writes", .run = runs[r], .batch = batches[b] });
}

static void add_credits(void)
{
	for (uint32_t credits = 1; credits <= 8; credits *= 2)
		for (unsigned b = 0; b < 4; b++)
			add((struct kase){
				.set = "credits", .run = PAGE, .batch = batches[b], .settings.credits = credits });
}

static void add_rounds(void)
{
	add((struct kase){ .set = "rounds", .rounds = true });
	add((struct kase){ .set = "rounds", .rounds = true, .run = PAGE, .batch = 1 });
}

static void add_budget(void)
{
	static const uint32_t percent[] = { 0, 100, 50, 10 };

	for (unsigned p = 0; p < 4; p++)
		for (enum layout l = LAYOUT_RANDOM; l <= LAYOUT_ORDER; l++)
			add((struct kase){ .set = "budget",
					   .run = PAGE,
					   .batch = 512,
					   .layout = l,
					   .settings.budget_percent = percent[p] });
}

/* As the engine writes: a piece of pages in rising order, told. */
static void add_cpu(void)
{
	add((struct kase){ .set = "cpu", .run = PAGE, .batch = 256, .layout = LAYOUT_SORTED });
	add((struct kase){ .set = "cpu", .run = 65536, .batch = 256 });
	add((struct kase){ .set = "cpu", .run = 1 << 20, .batch = 256 });
}

static bool add_set(const char *name)
{
	static const struct {
		const char *name;
		void (*add)(void);
	} sets[] = { { "writes", add_writes },
		     { "credits", add_credits },
		     { "rounds", add_rounds },
		     { "budget", add_budget },
		     { "cpu", add_cpu } };

	for (unsigned i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
		if (strcmp(sets[i].name, name) == 0) {
			sets[i].add();
			return true;
		}
	return false;
}

/* RUN:BATCH */
static bool add_point(const char *text)
{
	struct kase k = { .set = "point" };
	int end = 0;

	if (sscanf(text, "%u:%u%n", &k.run, &k.batch, &end) != 2 || text[end] || k.run % PAGE || k.run < PAGE ||
	    k.run > TP_WRITE_MAX || MEMORY % k.run || !k.batch || k.batch > 2048)
		return false;
	add(k);
	return true;
}

/* -- the driving end -- */

struct driver {
	char address[256];
	struct settings settings;
	struct tp_conn *conn;
	struct tp_info info;
	char name[32]; /* of the transport */
	uint8_t *source;
	uint32_t *order;     /* run i of the source goes to run order[i] of the window */
	uint32_t run, batch; /* of that order */
	enum layout layout;
	uint32_t next; /* run */
	uint64_t seq, ticket;
	bool wrote[PAGES];
	uint8_t filler[NOTIFY_ENTRY * 2048];
	bool same_process, same_machine;
};

static void hear(struct driver *d, struct told *t)
{
	static uint8_t in[TP_MESSAGE_MAX];
	struct ft_error err;
	uint32_t lane;
	size_t len;

	CHECK_OK(tp_recv(d->conn, in, sizeof(in), &lane, &len, soon(), &err), err);
	CHECK(len == sizeof(*t), "an answer of %zu octets", len);
	memcpy(t, in, sizeof(*t));
}

static void say(struct driver *d, uint32_t lane, const struct word *w, size_t runs)
{
	struct iovec v[2] = { { (void *)w, sizeof(*w) }, { d->filler, runs * NOTIFY_ENTRY } };
	struct ft_error err;

	CHECK_OK(tp_send(d->conn, lane, v, runs ? 2 : 1, soon(), &err), err);
}

static struct told ask(struct driver *d, enum op op, const struct settings *next)
{
	struct word w = { .op = op, .answer = 1 };
	struct told t;

	if (next)
		w.next = *next;
	say(d, 0, &w, 0);
	hear(d, &t);
	return t;
}

static void write_at(struct driver *d, size_t from, size_t to, size_t len)
{
	struct iovec v = { d->source + from, len };
	struct ft_error err;

	CHECK_OK(tp_write(d->conn, LANE, 0, to, &v, 1, &d->ticket, soon(), &err), err);
}

static void notify(struct driver *d, uint64_t pages, size_t runs, bool answer)
{
	say(d, LANE, &(struct word){ .op = OP_NOTIFY, .answer = answer, .seq = ++d->seq, .pages = pages }, runs);
}

static void wait_completed(struct driver *d)
{
	struct ft_error err;

	if (d->ticket)
		CHECK_OK(tp_wait_completed(d->conn, LANE, d->ticket, soon(), &err), err);
	d->ticket = 0;
}

/* Registration is not what is measured, but where a budget makes it so. */
static void warm_up(struct driver *d)
{
	struct told t;

	ask(d, OP_BEGIN, NULL);
	d->seq = 0;
	tp_prepare(d->conn, 0, 0, MEMORY);
	for (size_t at = 0; at < MEMORY; at += 1 << 20)
		write_at(d, at, at, PAGE);
	notify(d, MEMORY >> 20, 1, true);
	hear(d, &t);
	wait_completed(d);
}

/* The other end may not have begun to listen. */
static void connect_to(struct driver *d)
{
	struct tp_params p = params_of(&d->settings);
	uint64_t until = deadline_in_ms(10000);
	struct ft_error err;
	char boot[sizeof(((struct told *)0)->boot)];
	struct told t;

	while (tp_connect(&d->conn, d->address, &p, soon(), -1, &err)) {
		CHECK(now_ns() < until, "%s: %s", d->address, err.msg);
		usleep(20000);
	}
	CHECK_OK(tp_memory(d->conn, d->source, MEMORY, &err), err);
	warm_up(d);
	tp_info(d->conn, &d->info);
	snprintf(d->name, sizeof(d->name), "%s", tp_name(d->conn));
	t = ask(d, OP_BEGIN, NULL);
	read_boot_id(boot, sizeof(boot));
	d->same_machine = strcmp(boot, t.boot) == 0;
	d->same_process = d->same_machine && t.pid == (uint64_t)getpid();
}

static void use_settings(struct driver *d, const struct settings *s)
{
	if (memcmp(s, &d->settings, sizeof(*s)) == 0)
		return;
	ask(d, OP_NEXT, s);
	tp_close(d->conn);
	d->settings = *s;
	connect_to(d);
}

static int compare_runs(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void shuffle(uint32_t *v, uint32_t n)
{
	struct rng rng = { .state = 1 };

	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)rng_range(&rng, 0, i), swap = v[i];

		v[i] = v[j];
		v[j] = swap;
	}
}

static uint32_t runs_of_batch(const struct kase *k)
{
	return k->run ? k->batch / (k->run / PAGE) : 0;
}

/* What is written is taken from memory as it lies there, as from the staging slabs, and goes to where its pages belong. */
static void lay_out(struct driver *d, const struct kase *k)
{
	uint32_t n = k->run ? MEMORY / k->run : 0, pages = k->run / PAGE, sorted = runs_of_batch(k);

	if (!n || (d->run == k->run && d->layout == k->layout && (d->batch == k->batch || k->layout != LAYOUT_SORTED)))
		return;
	for (uint32_t i = 0; i < n; i++)
		d->order[i] = i;
	if (k->layout != LAYOUT_ORDER)
		shuffle(d->order, n);
	for (uint32_t i = 0; k->layout == LAYOUT_SORTED && i < n; i += sorted)
		qsort(d->order + i, n - i < sorted ? n - i : sorted, sizeof(d->order[0]), compare_runs);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < pages; j++)
			page_fill((uint64_t *)(d->source + (size_t)i * k->run + (size_t)j * PAGE),
				  d->order[i] * pages + j);
	d->run = k->run;
	d->batch = k->batch;
	d->layout = k->layout;
	d->next = 0;
}

static void write_run(struct driver *d)
{
	uint32_t i = d->next, pages = d->run / PAGE, first = d->order[i] * pages;

	write_at(d, (size_t)i * d->run, (size_t)first * PAGE, d->run);
	memset(d->wrote + first, true, pages);
	d->next = i + 1 == MEMORY / d->run ? 0 : i + 1;
}

/* A batch, or what time allows of it; true: time is over. */
static bool write_batch(struct driver *d, const struct kase *k, uint64_t until)
{
	uint32_t n = 0, runs = runs_of_batch(k);
	bool late = false;

	while (n < runs && !late) {
		write_run(d);
		n++;
		late = now_ns() >= until;
	}
	notify(d, (uint64_t)n * (k->run / PAGE), n, late);
	return late;
}

struct usage {
	double process, machine;
};

static struct usage usage_since(const struct driver *d, struct usage own, struct told then, struct told now)
{
	struct usage u = { cpu_of_process() - own.process, cpu_of_machine() - own.machine };

	if (!d->same_process)
		u.process += now.process - then.process;
	if (!d->same_machine)
		u.machine += now.machine - then.machine;
	return u;
}

/* Each page that was told came, and no other. */
static void check_window(struct driver *d)
{
	struct told t = ask(d, OP_CHECK, NULL);
	uint64_t wrote = 0;

	for (uint32_t i = 0; i < PAGES; i++)
		wrote += d->wrote[i];
	CHECK(t.right == wrote && t.untouched == PAGES - wrote,
	      "%llu pages were written: %llu are right, %llu untouched of %u", (unsigned long long)wrote,
	      (unsigned long long)t.right, (unsigned long long)t.untouched, PAGES);
}

static struct told begin(struct driver *d)
{
	memset(d->wrote, 0, sizeof(d->wrote));
	d->seq = 0;
	return ask(d, OP_BEGIN, NULL);
}

static void run_writes(struct driver *d, struct kase *k)
{
	struct told before = begin(d), after;
	struct usage own = { cpu_of_process(), cpu_of_machine() }, used;
	uint64_t start = now_ns(), until = start + ms * NS_PER_MS, took;
	double gib;

	while (!write_batch(d, k, until))
		;
	hear(d, &after);
	took = now_ns() - start;
	wait_completed(d);
	gib = (double)after.pages * PAGE / (1 << 30);
	used = usage_since(d, own, before, ask(d, OP_USAGE, NULL));
	k->rate[k->n] = gib * 1024 / ((double)took / 1e9);
	k->process[k->n] = used.process / gib;
	k->machine[k->n] = used.machine / gib;
}

static void run_rounds(struct driver *d, struct kase *k)
{
	static double us[ROUNDS_MAX];
	uint64_t until = now_ns() + ms * NS_PER_MS, t;
	struct told answer;
	unsigned n = 0;

	begin(d);
	do {
		t = now_ns();
		if (k->run)
			write_run(d);
		notify(d, k->run / PAGE, k->run ? 1 : 0, true);
		hear(d, &answer);
		us[n++] = (double)(now_ns() - t) / 1e3;
	} while (n < ROUNDS_MAX && now_ns() < until);
	CHECK(answer.seq == n, "%llu of %u", (unsigned long long)answer.seq, n);
	k->rate[k->n] = figure_of(us, n).median;
	k->p99[k->n] = figure_share(us, n, 0.99);
}

static void run_case(struct driver *d, struct kase *k)
{
	struct tp_info before, after;

	use_settings(d, &k->settings);
	lay_out(d, k);
	tp_info(d->conn, &before);
	k->rounds ? run_rounds(d, k) : run_writes(d, k);
	tp_info(d->conn, &after);
	k->unpins += after.unpins - before.unpins;
	if (!k->n++)
		check_window(d);
}

/* Chunks that come and go are rdma's alone. */
static bool applies(const struct driver *d, const struct kase *k)
{
	return !k->settings.budget_percent || strcmp(d->info.registration, "chunks") == 0;
}

static void drive(struct driver *d, const char *uri)
{
	snprintf(d->address, sizeof(d->address), "%s", uri);
	d->settings = (struct settings){ .credits = 8 };
	d->source = map();
	d->order = calloc(PAGES, sizeof(*d->order));
	CHECK(d->order, "no memory");
	connect_to(d);
	for (unsigned r = 0; r < reps; r++)
		for (unsigned i = 0; i < nr_cases; i++)
			if (applies(d, &kase[i]))
				run_case(d, &kase[i]);
}

static void drive_end(struct driver *d)
{
	ask(d, OP_END, NULL);
	tp_close(d->conn);
	munmap(d->source, MEMORY);
	free(d->order);
}

/* -- telling -- */

static void print_case(const struct kase *k, bool first, struct kase copy)
{
	struct figure rate = figure_of(copy.rate, k->n), process = figure_of(copy.process, k->n),
		      machine = figure_of(copy.machine, k->n), p99 = figure_of(copy.p99, k->n);

	if (!json && k->rounds)
		printf("%-8s %7u                                          %8.1f us (%.1f to %.1f), 99 %%: %.1f\n",
		       k->set, k->run, rate.median, rate.q1, rate.q3, p99.median);
	else if (!json)
		printf("%-8s %7u %6s %5u %7u %6u %8.1f MiB/s (%.1f to %.1f)  %6.2f %6.2f  %llu\n", k->set, k->run,
		       layout_names[k->layout], k->batch, k->settings.credits, k->settings.budget_percent, rate.median,
		       rate.q1, rate.q3, process.median, machine.median, (unsigned long long)k->unpins);
	if (!json)
		return;
	printf("%s\n  {\"set\": \"%s\", \"run\": %u, \"layout\": \"%s\", \"batch\": %u, \"credits\": %u, \"budget\": "
	       "%u, "
	       "\"unit\": \"%s\", ",
	       first ? "" : ",", k->set, k->run, layout_names[k->layout], k->batch, k->settings.credits,
	       k->settings.budget_percent, k->rounds ? "us" : "MiB/s");
	figure_json(stdout, "value", rate);
	if (k->rounds) {
		printf(", ");
		figure_json(stdout, "p99", p99);
	} else {
		printf(", \"unpins\": %llu, ", (unsigned long long)k->unpins);
		figure_json(stdout, "process_s_gib", process);
		printf(", ");
		figure_json(stdout, "machine_s_gib", machine);
	}
	printf("}");
}

static void print(const struct driver *d)
{
	double load = 0;
	bool first = true;

	getloadavg(&load, 1);
	if (json)
		printf("{\"bench\": \"rdma\", \"transport\": \"%s\", \"device\": \"%s\", \"mtu\": %u, "
		       "\"registration\": \"%s\", "
		       "\"repetitions\": %u, \"ms\": %u, \"load\": %.2f, \"rows\": [",
		       d->name, d->info.device, d->info.mtu, d->info.registration, reps, ms, load);
	else
		printf("%s %s, %u repetitions of %u ms, load %.2f; CPU in s/GiB\n%-8s %7s %6s %5s %7s %6s %8s %24s %6s "
		       "%6s  unpins\n",
		       d->name, d->info.device, reps, ms, load, "set", "run", "layout", "batch", "credits", "budget",
		       "median", "(quartiles)", "procs", "all");
	for (unsigned i = 0; i < nr_cases; i++) {
		if (kase[i].n)
			print_case(&kase[i], first, kase[i]);
		first = first && !kase[i].n;
	}
	printf(json ? "\n]}\n" : "\n");
}

/* -- one process, or two -- */

static int serve(const char *uri)
{
	static struct server s;

	server_start(&s, uri);
	server_thread(&s);
	return 0;
}

static int drive_peer(const char *uri)
{
	static struct driver d;

	drive(&d, uri);
	drive_end(&d);
	print(&d);
	return 0;
}

static void both(const char *uri)
{
	static struct server s;
	static struct driver d;
	pthread_t t;

	d = (struct driver){ 0 };
	for (unsigned i = 0; i < nr_cases; i++)
		kase[i].n = 0, kase[i].unpins = 0;
	server_start(&s, uri);
	CHECK(pthread_create(&t, NULL, server_thread, &s) == 0, "no thread");
	drive(&d, s.address);
	drive_end(&d);
	pthread_join(t, NULL);
	print(&d);
}

static const char usage[] =
	"usage: bench_rdma [options] [URI]...      both ends in this process, on each of them (tcp:127.0.0.1:0, "
	"loopback:bench)\n"
	"       bench_rdma [options] serve URI     the receiving end, for one driver\n"
	"       bench_rdma [options] drive URI     the sending end\n"
	"  --set NAME         writes (runs by pages to a message), credits (by pages to a message), rounds (message "
	"and answer),\n"
	"                     budget (of pinned memory), cpu; may be repeated; all\n"
	"  --point RUN:PAGES  instead: runs of RUN octets anywhere, a message behind so many pages; may be repeated\n"
	"  --reps N           repetitions of each case (5)\n"
	"  --ms N             how long each lasts (700)\n"
	"  --quick            --reps 1 --ms 20\n"
	"  --json             machine-readable\n"
	"MiB/s; CPU of both processes, and of the machine's processors, in s/GiB.\n";

static int wrong(const char *what)
{
	fprintf(stderr, "bench_rdma: %s\n%s", what, usage);
	return 2;
}

static bool number(const char *text, unsigned min, unsigned max, unsigned *out)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (end == text || *end || n < min || n > max)
		return false;
	*out = (unsigned)n;
	return true;
}

static int take_option(int c)
{
	switch (c) {
	case 's':
		return add_set(optarg) ? 0 : wrong("no such set");
	case 'p':
		return add_point(optarg) ? 0
					 : wrong("--point RUN:PAGES: whole pages that divide 64 MiB, at most 4 MiB");
	case 'r':
		return number(optarg, 1, REPS_MAX, &reps) ? 0 : wrong("--reps 1 to 64");
	case 'm':
		return number(optarg, 1, 600000, &ms) ? 0 : wrong("--ms 1 to 600000");
	case 'q':
		reps = 1;
		ms = 20;
		return 0;
	case 'j':
		json = true;
		return 0;
	case 'h':
		fputs(usage, stdout);
		exit(0);
	default:
		return wrong("wrong option");
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "set", required_argument, NULL, 's' },  { "point", required_argument, NULL, 'p' },
		{ "reps", required_argument, NULL, 'r' }, { "ms", required_argument, NULL, 'm' },
		{ "quick", no_argument, NULL, 'q' },      { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },       { 0 },
	};
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		r = take_option(c);
		if (r)
			return r;
	}
	if (!nr_cases) {
		add_writes();
		add_credits();
		add_rounds();
		add_budget();
		add_cpu();
	}
	if (argc - optind == 2 && strcmp(argv[optind], "serve") == 0)
		return serve(argv[optind + 1]);
	if (argc - optind == 2 && strcmp(argv[optind], "drive") == 0)
		return drive_peer(argv[optind + 1]);
	if (optind == argc) {
		both("tcp:127.0.0.1:0");
		both("loopback:bench");
	}
	for (; optind < argc; optind++)
		both(argv[optind]);
	return 0;
}
