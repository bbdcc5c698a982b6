/* SPDX-License-Identifier: MIT */
/* track.h - the sim's dirty tracking, what a hypervisor's dirty log is to a real VMM: one bit a page, and above each
 * 64 words one bit a word, so that collecting follows the dirty pages and not the size of the guest.
 * Any thread marks; one thread at a time collects, also while others mark. */
#ifndef SIM_TRACK_H
#define SIM_TRACK_H

#include <stdbool.h>
#include <stdint.h>

struct track;

int track_create(struct track **out, uint64_t nr_pages);
void track_destroy(struct track *t); /* NULL is harmless */

/* track_mark - after the write to the page; true if it was clean. */
bool track_mark(struct track *t, uint64_t page);
bool track_test(const struct track *t, uint64_t page);
uint64_t track_count(const struct track *t);

/* track_take - fetch and clear: @run gets each run of pages.  Stops at the first value that is not 0, and returns it; the runs after it are lost. */
int track_take(struct track *t, int (*run)(void *user, uint64_t first, uint64_t nr), void *user);
/* track_each - the same without clearing. */
int track_each(struct track *t, int (*run)(void *user, uint64_t first, uint64_t nr), void *user);

#endif
