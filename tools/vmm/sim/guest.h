/* SPDX-License-Identifier: MIT */
/* guest.h - memory and vCPUs without threads: what one step does.
 *
 * A vCPU owns a slice of the pages.  Step number n of it draws from a counter-based generator (seed, vCPU, n), picks a page of the
 * slice and changes it as a function of the draw and of what the page held.  So the memory after any number of steps is determined by
 * these numbers alone; sim.c runs the steps in threads, oracle.c repeats them.  Private to the sim. */
#ifndef SIM_GUEST_H
#define SIM_GUEST_H

#include "sim.h"

/* All that a vCPU is, besides its memory: its part of the device state. */
struct guest_regs {
	uint64_t steps;	   /* done */
	uint64_t acc;	   /* mixes what was read */
	uint64_t position; /* of sequential and scatter */
	uint64_t sent;	   /* messages */
	uint64_t sent_hash;
};

struct guest_cpu {
	struct guest_regs regs;
	/* fixed by the configuration */
	uint64_t key, stride;
	uint64_t first, spacing, nr; /* pages first + i * spacing, i < nr, are its working set */
};

struct guest {
	struct sim_config cfg;
	uint8_t *region[SIM_REGIONS_MAX];
	uint64_t region_first[SIM_REGIONS_MAX + 1]; /* number of its first page; the last entry is the number of all pages */
	struct guest_cpu cpu[SIM_CPUS_MAX];
	void (*before_write)(void *user, uint32_t region, uint64_t index); /* NULL: nobody wants to know */
	void *user;
};

struct guest_page {
	uint32_t region;
	uint64_t index; /* in the region */
};

int guest_create(struct guest **out, const struct sim_config *cfg, struct ft_error *err);
void guest_destroy(struct guest *g); /* NULL is harmless */
uint64_t guest_pages(const struct guest *g);

struct guest_page guest_locate(const struct guest *g, uint64_t page);

/* guest_prefill - page @i of what is filled before the first step; false: there are no more. */
bool guest_prefill(struct guest *g, uint64_t i, struct guest_page *page);

/* guest_step - one step of @cpu; returns the page it wrote. */
struct guest_page guest_step(struct guest *g, struct guest_cpu *cpu);

/* guest_message_due - does the vCPU owe a message at this point?  guest_message makes it and counts it as sent. */
bool guest_message_due(const struct guest *g, const struct guest_cpu *cpu);
struct sim_message guest_message(const struct guest *g, const struct guest_cpu *cpu);
void guest_message_sent(struct guest_cpu *cpu, const struct sim_message *m);

/* guest_checksum - over all memory. */
uint64_t guest_checksum(const struct guest *g);
/* guest_compare - the first page in which they differ; false: none. */
bool guest_compare(const struct guest *a, const struct guest *b, struct guest_page *where, uint32_t *offset);

static inline uint64_t mix64(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

#endif
