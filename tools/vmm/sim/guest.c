/* SPDX-License-Identifier: MIT */
/* guest.c - see guest.h.
 * The functions that touch guest memory work in plain words and are kept out of ThreadSanitizer's sight: a guest that runs
 * while the engine copies its pages is not a race of the program, just as a real vCPU is not.  That is also why they call no memset
 * or memcpy, which ThreadSanitizer watches wherever they are called from. */
#include "guest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "say.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)
#define PAGE_WORDS (FT_PAGE_SIZE / 8u)
#define MIXED_STRETCH 32u /* steps of one pattern in SIM_MIXED */
#define GUEST_CODE __attribute__((no_sanitize("thread")))

typedef volatile uint64_t guest_word;

/* ---- memory ---- */

static int map_regions(struct guest *g, struct ft_error *err)
{
	uint64_t first = 0;

	for (uint32_t i = 0; i < g->cfg.nr_regions; i++) {
		uint64_t len = g->cfg.region_bytes[i];
		void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (mem == MAP_FAILED)
			return say(err, -errno, "region %u: mmap of %llu octets: %s", i, (unsigned long long)len,
				   strerror(errno));
		/* one sparse write must cost 4 KiB, not 2 MiB, or a guest of 16 GiB does not fit where it is tested */
		madvise(mem, len, MADV_NOHUGEPAGE);
		g->region[i] = mem;
		g->region_first[i] = first;
		first += len / FT_PAGE_SIZE;
		g->region_first[i + 1] = first;
	}
	return 0;
}

/* An odd stride near the golden section of @nr visits all of a power of two; for other numbers the next coprime one. */
static uint64_t scatter_stride(uint64_t nr)
{
	uint64_t s = (uint64_t)((double)nr * 0.6180339887) | 1;

	for (;; s += 2) {
		uint64_t a = s, b = nr;

		while (b) {
			uint64_t t = a % b;

			a = b;
			b = t;
		}
		if (a == 1)
			return s;
	}
}

static void divide_slices(struct guest *g)
{
	uint64_t pages = guest_pages(g), set = g->cfg.working_set_pages, n = g->cfg.nr_cpus;

	if (!set || set > pages)
		set = pages;
	for (uint32_t i = 0; i < n; i++) {
		struct guest_cpu *c = &g->cpu[i];
		uint64_t span = pages * (i + 1) / n - pages * i / n;

		if (g->cfg.span_pages && g->cfg.span_pages < span)
			span = g->cfg.span_pages;
		c->first = pages * i / n;
		c->nr = set * (i + 1) / n - set * i / n;
		if (c->nr == 0)
			c->nr = 1;
		if (c->nr > span)
			c->nr = span;
		c->spacing = span / c->nr;
		c->key = mix64(g->cfg.seed + GOLDEN * (i + 1));
		c->regs.acc = c->key;
		c->stride = scatter_stride(c->nr);
	}
}

static int check_config(const struct sim_config *cfg, struct ft_error *err)
{
	uint64_t pages = 0;

	if (cfg->nr_regions < 1 || cfg->nr_regions > SIM_REGIONS_MAX)
		return say(err, -EINVAL, "%u regions; it may be 1 to %u", cfg->nr_regions, SIM_REGIONS_MAX);
	if (cfg->nr_cpus < 1 || cfg->nr_cpus > SIM_CPUS_MAX)
		return say(err, -EINVAL, "%u vCPUs; it may be 1 to %u", cfg->nr_cpus, SIM_CPUS_MAX);
	if ((unsigned)cfg->pattern >= SIM_PATTERN_COUNT)
		return say(err, -EINVAL, "pattern %u is not known", (unsigned)cfg->pattern);
	for (uint32_t i = 0; i < cfg->nr_regions; i++) {
		if (!cfg->region_bytes[i] || cfg->region_bytes[i] % FT_PAGE_SIZE)
			return say(err, -EINVAL, "region %u has %llu octets, not a multiple of %u", i,
				   (unsigned long long)cfg->region_bytes[i], FT_PAGE_SIZE);
		pages += cfg->region_bytes[i] / FT_PAGE_SIZE;
	}
	if (pages < cfg->nr_cpus)
		return say(err, -EINVAL, "fewer pages than vCPUs");
	return 0;
}

int guest_create(struct guest **out, const struct sim_config *cfg, struct ft_error *err)
{
	struct guest *g;
	int ret;

	*out = NULL;
	ret = check_config(cfg, err);
	if (ret)
		return ret;
	g = calloc(1, sizeof(*g));
	if (!g)
		return say(err, -ENOMEM, "no memory");
	g->cfg = *cfg;
	ret = map_regions(g, err);
	if (ret) {
		guest_destroy(g);
		return ret;
	}
	divide_slices(g);
	*out = g;
	return 0;
}

void guest_destroy(struct guest *g)
{
	if (!g)
		return;
	for (uint32_t i = 0; i < g->cfg.nr_regions; i++)
		if (g->region[i])
			munmap(g->region[i], g->cfg.region_bytes[i]);
	free(g);
}

uint64_t guest_pages(const struct guest *g)
{
	return g->region_first[g->cfg.nr_regions];
}

struct guest_page guest_locate(const struct guest *g, uint64_t page)
{
	uint32_t r = 0;

	while (page >= g->region_first[r + 1])
		r++;
	return (struct guest_page){ .region = r, .index = page - g->region_first[r] };
}

static guest_word *words_of(const struct guest *g, struct guest_page p)
{
	return (guest_word *)(void *)(g->region[p.region] + p.index * FT_PAGE_SIZE);
}

/* ---- what a step writes ---- */

GUEST_CODE static void fill_words(guest_word *w, unsigned nr, uint64_t x)
{
	for (unsigned i = 0; i < nr; i++)
		w[i] = x + i * GOLDEN;
}

GUEST_CODE static void clear_words(guest_word *w, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		w[i] = 0;
}

GUEST_CODE static uint64_t read_word(const guest_word *w)
{
	return *w;
}

/* What rewriting a page leaves there: a function of its number alone. */
static uint64_t page_constant(const struct guest *g, const struct guest_cpu *cpu, uint64_t i)
{
	return mix64(g->cfg.seed ^ (cpu->first + i * cpu->spacing)) | 1;
}

static enum sim_pattern pattern_of_step(const struct guest *g, const struct guest_cpu *cpu)
{
	if (g->cfg.pattern != SIM_MIXED)
		return g->cfg.pattern;
	return (enum sim_pattern)(mix64(cpu->key ^ (cpu->regs.steps / MIXED_STRETCH)) % SIM_MIXED);
}

static uint64_t pick(struct guest_cpu *cpu, enum sim_pattern pattern, uint64_t draw)
{
	uint64_t hot = cpu->nr / 16 ? cpu->nr / 16 : 1;

	switch (pattern) {
	case SIM_HOT:
		return (draw >> 48) % 10 ? draw % hot : draw % cpu->nr;
	case SIM_SEQUENTIAL:
		return cpu->regs.position = (cpu->regs.position + 1) % cpu->nr;
	case SIM_SCATTER:
		return cpu->regs.position = (cpu->regs.position + cpu->stride) % cpu->nr;
	case SIM_UNIFORM:
	case SIM_SPARSE:
	case SIM_ZERO:
	case SIM_REWRITE:
	case SIM_FLIP:
	case SIM_MIXED:
	case SIM_PATTERN_COUNT:
		break;
	}
	return draw % cpu->nr;
}

static void write_page(const struct guest *g, const struct guest_cpu *cpu, enum sim_pattern pattern, uint64_t i,
		       guest_word *w, uint64_t draw)
{
	unsigned at = 0;

	switch (pattern) {
	case SIM_SPARSE:
		at = (unsigned)(draw >> 40) % (PAGE_WORDS / 8) * 8;
		fill_words(w + at, 8, draw ^ read_word(w + at));
		return;
	case SIM_SCATTER:
		fill_words(w, 8, draw);
		return;
	case SIM_ZERO:
		if (draw >> 63)
			clear_words(w, PAGE_WORDS);
		else
			fill_words(w, PAGE_WORDS, draw);
		return;
	case SIM_REWRITE:
		fill_words(w, PAGE_WORDS, page_constant(g, cpu, i));
		return;
	case SIM_FLIP:
		if (draw % 3)
			fill_words(w, PAGE_WORDS, page_constant(g, cpu, i) + draw % 3);
		else
			clear_words(w, PAGE_WORDS);
		return;
	case SIM_UNIFORM:
	case SIM_HOT:
	case SIM_SEQUENTIAL:
	case SIM_MIXED:
	case SIM_PATTERN_COUNT:
		break;
	}
	fill_words(w, PAGE_WORDS, cpu->regs.acc ^ draw);
}

struct guest_page guest_step(struct guest *g, struct guest_cpu *cpu)
{
	uint64_t draw = mix64(cpu->key + (cpu->regs.steps + 1) * GOLDEN);
	enum sim_pattern pattern = pattern_of_step(g, cpu);
	uint64_t i = pick(cpu, pattern, draw);
	struct guest_page page = guest_locate(g, cpu->first + i * cpu->spacing);
	guest_word *w = words_of(g, page);

	if (g->before_write)
		g->before_write(g->user, page.region, page.index);
	cpu->regs.acc = mix64(cpu->regs.acc ^ read_word(w) ^ draw);
	write_page(g, cpu, pattern, i, w, mix64(draw));
	cpu->regs.steps++;
	return page;
}

bool guest_prefill(struct guest *g, uint64_t i, struct guest_page *page)
{
	struct guest_cpu *cpu = &g->cpu[i % g->cfg.nr_cpus];
	uint64_t k = i / g->cfg.nr_cpus;

	if (i >= g->cfg.prefill_pages || k >= cpu->nr)
		return false;
	*page = guest_locate(g, cpu->first + k * cpu->spacing);
	fill_words(words_of(g, *page), PAGE_WORDS, page_constant(g, cpu, k));
	return true;
}

/* ---- messages ---- */

bool guest_message_due(const struct guest *g, const struct guest_cpu *cpu)
{
	return g->cfg.output_every && cpu->regs.sent < cpu->regs.steps / g->cfg.output_every;
}

struct sim_message guest_message(const struct guest *g, const struct guest_cpu *cpu)
{
	return (struct sim_message){
		.magic = SIM_MESSAGE_MAGIC,
		.cpu = (uint64_t)(cpu - g->cpu),
		.number = cpu->regs.sent + 1,
		.hash = mix64(cpu->regs.acc + cpu->regs.steps),
	};
}

void guest_message_sent(struct guest_cpu *cpu, const struct sim_message *m)
{
	cpu->regs.sent = m->number;
	cpu->regs.sent_hash = m->hash;
}

/* ---- comparing ---- */

uint64_t guest_checksum(const struct guest *g)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < g->cfg.nr_regions; r++) {
		const guest_word *w = (const guest_word *)(const void *)g->region[r];

		for (uint64_t i = 0; i < g->cfg.region_bytes[r] / 8; i++)
			sum = (sum ^ read_word(w + i)) * GOLDEN + (sum >> 29);
	}
	return sum;
}

static uint32_t first_difference(const uint8_t *a, const uint8_t *b)
{
	uint32_t i = 0;

	while (i < FT_PAGE_SIZE - 1 && a[i] == b[i])
		i++;
	return i;
}

bool guest_compare(const struct guest *a, const struct guest *b, struct guest_page *where, uint32_t *offset)
{
	for (uint32_t r = 0; r < a->cfg.nr_regions; r++) {
		if (memcmp(a->region[r], b->region[r], a->cfg.region_bytes[r]) == 0)
			continue;
		for (uint64_t p = 0;; p++) {
			const uint8_t *pa = a->region[r] + p * FT_PAGE_SIZE, *pb = b->region[r] + p * FT_PAGE_SIZE;

			if (memcmp(pa, pb, FT_PAGE_SIZE)) {
				*where = (struct guest_page){ .region = r, .index = p };
				*offset = first_difference(pa, pb);
				return true;
			}
		}
	}
	return false;
}
