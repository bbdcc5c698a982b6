/* SPDX-License-Identifier: MIT */
/* oracle.c - the memory as it must be, made again by replaying the vCPUs' steps in memory of its own.
 * It takes from the primary only how many steps each vCPU had made at an epoch's border; the dirty tracking has no part in it. */
#include "sim.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "guest.h"
#include "say.h"
#include "sim_private.h"

struct sim_oracle {
	struct sim *primary;
	struct guest *shadow;
};

static void prefill(struct guest *g)
{
	struct guest_page page;

	for (uint64_t i = 0; guest_prefill(g, i, &page); i++)
		;
}

static int begin_shadow(struct guest **out, const struct sim_config *cfg, struct ft_error *err)
{
	int ret = guest_create(out, cfg, err);

	if (!ret)
		prefill(*out);
	return ret;
}

static bool is_behind(const struct guest *g, const struct guest_regs *regs)
{
	for (uint32_t i = 0; i < g->cfg.nr_cpus; i++)
		if (regs[i].steps < g->cpu[i].regs.steps)
			return true;
	return false;
}

/* Steps the shadow to @regs; the registers must come out the same, or the guest itself did not do what its steps say. */
static int replay(struct guest *g, const struct guest_regs *regs, struct ft_error *err)
{
	for (uint32_t i = 0; i < g->cfg.nr_cpus; i++) {
		struct guest_cpu *cpu = &g->cpu[i];

		while (cpu->regs.steps < regs[i].steps)
			guest_step(g, cpu);
		if (cpu->regs.acc != regs[i].acc || cpu->regs.position != regs[i].position)
			return say(err, -EBADMSG,
				   "vCPU %u: its registers are not those of %llu steps: what it read was wrong", i,
				   (unsigned long long)regs[i].steps);
	}
	return 0;
}

/* Nothing says that a page that differs is a later or earlier one; the first difference says enough. */
static int compare(const struct guest *shadow, const struct guest *image, const char *what, struct ft_error *err)
{
	struct guest_page p;
	uint32_t at;

	if (!guest_compare(shadow, image, &p, &at))
		return 0;
	return say(err, -EBADMSG, "%s: region %u page %llu octet %u is 0x%02x, must be 0x%02x", what, p.region,
		   (unsigned long long)p.index, at, image->region[p.region][p.index * FT_PAGE_SIZE + at],
		   shadow->region[p.region][p.index * FT_PAGE_SIZE + at]);
}

int sim_oracle_create(struct sim_oracle **out, struct sim *primary, struct ft_error *err)
{
	struct sim_oracle *o = calloc(1, sizeof(*o));
	int ret;

	*out = NULL;
	if (!o)
		return say(err, -ENOMEM, "no memory");
	o->primary = primary;
	ret = begin_shadow(&o->shadow, &primary->cfg, err);
	if (ret) {
		free(o);
		return ret;
	}
	*out = o;
	return 0;
}

void sim_oracle_destroy(struct sim_oracle *o)
{
	if (!o)
		return;
	guest_destroy(o->shadow);
	free(o);
}

/* The newest cut of that epoch: the engine begins at 1 again with each connection. */
static int find_cut(struct sim *primary, uint64_t epoch, struct cut *out, struct ft_error *err)
{
	uint64_t serial, last;
	bool found = false;

	pthread_mutex_lock(&primary->lock);
	last = primary->serial > SIM_CUTS ? primary->serial - SIM_CUTS : 0;
	for (serial = primary->serial; serial > last && !found; serial--) {
		*out = primary->cut[serial % SIM_CUTS];
		found = out->serial == serial && out->epoch == epoch;
	}
	pthread_mutex_unlock(&primary->lock);
	return found ? 0 : say(err, -ENODATA, "epoch %llu was never cut, or too long ago", (unsigned long long)epoch);
}

int sim_oracle_compare(struct sim_oracle *o, uint64_t epoch, struct sim *image, struct ft_error *err)
{
	char what[32];
	struct cut c;
	int ret = find_cut(o->primary, epoch, &c, err);

	if (ret)
		return ret;
	if (is_behind(o->shadow, c.regs)) { /* an epoch from before: begin again */
		guest_destroy(o->shadow);
		ret = begin_shadow(&o->shadow, &o->primary->cfg, err);
	}
	if (!ret)
		ret = replay(o->shadow, c.regs, err);
	if (ret)
		return ret;
	ret = side_check(image, c.side_key, c.side_made, err);
	if (ret)
		return ret;
	snprintf(what, sizeof(what), "epoch %llu", (unsigned long long)epoch);
	return compare(o->shadow, image->guest, what, err);
}

int sim_verify(struct sim *s, uint64_t *steps, uint64_t *pages, struct ft_error *err)
{
	struct guest_regs regs[SIM_CPUS_MAX];
	struct guest *shadow = NULL;
	int ret;

	sim_stop(s);
	for (uint32_t i = 0; i < s->cfg.nr_cpus; i++)
		regs[i] = s->guest->cpu[i].regs;
	ret = begin_shadow(&shadow, &s->cfg, err);
	if (!ret)
		ret = replay(shadow, regs, err);
	if (!ret)
		ret = compare(shadow, s->guest, "memory", err);
	guest_destroy(shadow);
	sim_continue(s);
	if (steps)
		*steps = sim_steps(s);
	if (pages)
		*pages = sim_pages(s);
	return ret;
}

int sim_same_state(struct sim *primary, struct sim *standby, uint64_t *epoch, struct ft_error *err)
{
	struct cut c;

	*epoch = 0;
	if (!standby->has_loaded)
		return say(err, -ENODATA, "no state was loaded");
	pthread_mutex_lock(&primary->lock);
	c = primary->cut[standby->loaded_serial % SIM_CUTS];
	pthread_mutex_unlock(&primary->lock);
	if (c.serial != standby->loaded_serial)
		return say(err, -ENODATA,
			   "the state that was loaded is of cut %llu, which the primary did not make, or too long ago",
			   (unsigned long long)standby->loaded_serial);
	*epoch = c.epoch;
	for (uint32_t i = 0; i < primary->cfg.nr_cpus; i++)
		if (memcmp(&c.regs[i], &standby->loaded[i], sizeof(c.regs[i])))
			return say(err, -EBADMSG, "vCPU %u went on from step %llu; epoch %llu ended at %llu", i,
				   (unsigned long long)standby->loaded[i].steps, (unsigned long long)c.epoch,
				   (unsigned long long)c.regs[i].steps);
	return 0;
}

int sim_check_promise(struct sim_client *client, struct sim *standby, struct ft_error *err)
{
	struct sim_client_stats st;

	sim_client_stats(client, &st);
	if (st.damaged || st.gaps)
		return say(err, -EBADMSG, "the client got %llu damaged messages and saw %llu gaps",
			   (unsigned long long)st.damaged, (unsigned long long)st.gaps);
	for (uint32_t i = 0; i < standby->cfg.nr_cpus; i++) {
		const struct guest_regs *regs = &standby->loaded[i];

		if (st.last[i] > regs->sent)
			return say(err, -EBADMSG, "the client got message %llu of vCPU %u, the standby knows of %llu",
				   (unsigned long long)st.last[i], i, (unsigned long long)regs->sent);
		if (st.last[i] && st.last[i] == regs->sent && st.last_hash[i] != regs->sent_hash)
			return say(err, -EBADMSG,
				   "message %llu of vCPU %u was sent by another state than the standby's",
				   (unsigned long long)st.last[i], i);
	}
	return 0;
}
