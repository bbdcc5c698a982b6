/* SPDX-License-Identifier: MIT */
/* fake_witness.h - a made-up witness in this process, and a made-up clock: a test that has "Wrapped: witness_open boot_now_ns" in its head comment, and
 * FAKE_WITNESS_WRAPS in its text, gets both in place of the real ones.  Sides are numbered in the order in which they open it.  Any thread. */
#ifndef TEST_FAKE_WITNESS_H
#define TEST_FAKE_WITNESS_H

#include "witness.h"

#define FAKE_SIDES 8u

enum fake_mode {
	FAKE_ANSWERS = 0,
	FAKE_SILENT,  /* not known, at once */
	FAKE_MUTE,    /* done, and not known: the answer is lost */
};

/* fake_witness_reset - nobody has it, all answer, the clock stands at some time. */
void fake_witness_reset(void);
void fake_witness_mode(unsigned side, enum fake_mode mode);
/* fake_witness_takes - each question of that side takes so long, by the made-up clock. */
void fake_witness_takes(unsigned side, uint64_t ms);
struct witness_record fake_witness_record(void);
void fake_witness_set(const struct witness_record *record); /* as somebody else would */
uint64_t fake_witness_asked(unsigned side, enum witness_what what);
const char *fake_witness_name(unsigned side); /* of who opened it; "" nobody */

void fake_clock_advance(uint64_t ms);
void fake_clock_run(void); /* from now on it runs as the real one does */
uint64_t fake_clock_ns(void);

int fake_witness_open(struct witness **out, const char *text, const struct witness_self *self, struct ft_error *err);

#define FAKE_WITNESS_WRAPS                                                                                             \
	int __wrap_witness_open(struct witness **out, const char *text, const struct witness_self *self,               \
				struct ft_error *err);                                                                 \
	int __wrap_witness_open(struct witness **out, const char *text, const struct witness_self *self,               \
				struct ft_error *err)                                                                  \
	{                                                                                                              \
		return fake_witness_open(out, text, self, err);                                                        \
	}                                                                                                              \
	uint64_t __wrap_boot_now_ns(void);                                                                             \
	uint64_t __wrap_boot_now_ns(void)                                                                              \
	{                                                                                                              \
		return fake_clock_ns();                                                                                \
	}

#endif
