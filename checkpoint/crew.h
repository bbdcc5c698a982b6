/* SPDX-License-Identifier: MIT */
/* crew.h - a few threads that share one thread's work for a moment: the copying of an epoch's pages, in the guest's pause (ft-epoch) or into the
 * standby image (ft-apply).  Between runs they sleep; in one they are awake and take parts as they are offered, and so does the owner in crew_wait().
 *
 * Owned by one thread, which alone calls begin, offer, wait and end; create and destroy come before and after, on any thread.
 * Must hold
 *   - a part is done once, by whoever comes first; which parts a thread gets, and in what order they are done, is nobody's to know;
 *   - the owner never waits for a thread that has not taken a part: one that wakes late, or never, costs nothing but its help;
 *   - what the owner wrote before it offered a part is seen by who does it; what a part wrote is seen by the owner after crew_wait(). */
#ifndef FT_CREW_H
#define FT_CREW_H

#include <stdint.h>
#include <ft/error.h>

#define CREW_MAX 16u

struct crew;

/* crew_create - @nr threads, the owner counted: 1 to CREW_MAX; of 1 there is none but the owner.  @name: of the others, at most 15 characters.
 * -ENOMEM, -EAGAIN: a thread could not be started; then none is left. */
int crew_create(struct crew **out, unsigned nr, const char *name, struct ft_error *err);
void crew_destroy(struct crew *c); /* between runs; NULL is harmless */

/* crew_begin - a run: the others wake up.  @part does part 0, 1 ... of @work. */
void crew_begin(struct crew *c, void (*part)(void *work, uint32_t part), void *work);
void crew_offer(struct crew *c, uint32_t nr); /* so many parts more may be done */
/* crew_wait - until all that was offered is done; the owner helps.  The next part is part 0 again; the others stay awake. */
void crew_wait(struct crew *c);
void crew_end(struct crew *c); /* crew_wait(), and the others go to sleep */

#endif
