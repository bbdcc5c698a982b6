/* SPDX-License-Identifier: MIT */
/* test_state.c - every pair of state and event: the table says what design and manual promise, and nothing else. */
#include <criterion/criterion.h>
#include <string.h>
#include "state.h"

static enum ft_role role_of(enum ft_state state)
{
	return state_facts(state)->role ? state_facts(state)->role : FT_ROLE_PRIMARY;
}

/* All changes that the table knows for a role, visited from every state with every event. */
#define FOR_EACH_CHANGE(role, from, event, change)                                                                     \
	for (enum ft_state from = 0; from < FT_STATE_COUNT; from++)                                                    \
		for (enum state_event event = 0; event < EV_COUNT; event++)                                            \
			for (const struct state_change *change = state_next(role, from, event); change; change = NULL)

Test(state, changes_stay_in_the_role)
{
	unsigned seen = 0;

	for (enum ft_role role = FT_ROLE_PRIMARY; role <= FT_ROLE_SECONDARY; role++) {
		FOR_EACH_CHANGE(role, from, event, change)
		{
			enum ft_role of = state_facts(from)->role;

			if (of && of != role)
				continue;
			cr_assert(!state_facts(change->next)->role || state_facts(change->next)->role == role,
				  "%s --%s--> %s leaves the role", ft_state_name(from), state_event_name(event),
				  ft_state_name(change->next));
			seen++;
		}
	}
	cr_assert_geq(seen, 30);
}

Test(state, held_output_is_let_out_only_where_the_table_says_so)
{
	FOR_EACH_CHANGE(FT_ROLE_PRIMARY, from, event, change)
	{
		bool held = state_facts(from)->output_held, still = state_facts(change->next)->output_held;

		if (role_of(from) != FT_ROLE_PRIMARY)
			continue;
		if (held && !still)
			cr_assert(change->actions & ACT_RELEASE_OUTPUT, "%s --%s-->: output would be held for ever",
				  ft_state_name(from), state_event_name(event));
		if (change->next == FT_STATE_SUSPECT || change->next == FT_STATE_FENCED ||
		    change->next == FT_STATE_PROTECTED)
			cr_assert(!(change->actions & ACT_RELEASE_OUTPUT), "%s --%s-->: output leaves",
				  ft_state_name(from), state_event_name(event));
	}
}

Test(state, a_lost_peer_never_releases_output_by_itself)
{
	const struct state_change *change = state_next(FT_ROLE_PRIMARY, FT_STATE_PROTECTED, EV_PEER_LOST_HELD);

	cr_assert_eq(change->next, FT_STATE_SUSPECT);
	cr_assert_eq(change->actions, ACT_NONE);
	cr_assert_null(state_next(FT_ROLE_PRIMARY, FT_STATE_PROTECTED, EV_SUSPECT_OVER));
	cr_assert_eq(state_next(FT_ROLE_PRIMARY, FT_STATE_SUSPECT, EV_SUSPECT_OVER)->next, FT_STATE_ALONE);
}

Test(state, fenced_is_final_and_stops_the_guest)
{
	FOR_EACH_CHANGE(FT_ROLE_PRIMARY, from, event, change)
	{
		cr_assert_neq(from, FT_STATE_FENCED, "FENCED --%s--> %s", state_event_name(event),
			      ft_state_name(change->next));
		if (change->next == FT_STATE_FENCED) {
			cr_assert(change->actions & ACT_STOP_GUEST);
			cr_assert(event == EV_PEER_ACTIVE || event == EV_LEASE_OVER);
		}
	}
	for (enum ft_state s = FT_STATE_CONNECTING; s <= FT_STATE_ALONE; s++) {
		cr_assert_eq(state_next(FT_ROLE_PRIMARY, s, EV_LEASE_OVER)->next, FT_STATE_FENCED);
		if (s != FT_STATE_SYNCING && s != FT_STATE_PROTECTED) /* connected: the peer cannot say so there */
			cr_assert_eq(state_next(FT_ROLE_PRIMARY, s, EV_PEER_ACTIVE)->next, FT_STATE_FENCED);
	}
}

Test(state, an_image_that_the_primary_left_behind_is_marked_stale)
{
	FOR_EACH_CHANGE(FT_ROLE_SECONDARY, from, event, change)
	{
		bool had = from == FT_STATE_STANDBY || from == FT_STATE_STANDBY_SUSPECT;
		bool has = state_facts(change->next)->complete_image;

		if (had && !has)
			cr_assert(change->actions & ACT_MARK_STALE, "%s --%s--> %s", ft_state_name(from),
				  state_event_name(event), ft_state_name(change->next));
		if (!had)
			cr_assert(!(change->actions & ACT_MARK_STALE));
	}
}

Test(state, promotion_ends_active_or_refused_or_where_it_began)
{
	unsigned ways = 0;

	FOR_EACH_CHANGE(FT_ROLE_SECONDARY, from, event, change)
	{
		if (from != FT_STATE_PROMOTING)
			continue;
		cr_assert(change->next == FT_STATE_ACTIVE || change->next == FT_STATE_REFUSED ||
			  (event == EV_PUT_OFF && change->next == FT_STATE_STANDBY_SUSPECT));
		ways++;
	}
	cr_assert_eq(ways, 3);
	cr_assert_null(state_next(FT_ROLE_SECONDARY, FT_STATE_ACTIVE, EV_HELLO_OK));
	cr_assert_eq(state_next(FT_ROLE_SECONDARY, FT_STATE_REFUSED, EV_FAILOVER)->next,
		     FT_STATE_PROMOTING); /* forced: it may be the only copy */
	cr_assert_null(state_next(FT_ROLE_SECONDARY, FT_STATE_REFUSED, EV_HELLO_OK));
}

Test(state, every_state_can_be_reached)
{
	for (enum ft_role role = FT_ROLE_PRIMARY; role <= FT_ROLE_SECONDARY; role++) {
		bool reached[FT_STATE_COUNT] = { [FT_STATE_IDLE] = true };

		for (unsigned i = 0; i < FT_STATE_COUNT; i++)
			FOR_EACH_CHANGE(role, from, event, change)
		reached[change->next] |= reached[from];
		for (enum ft_state s = 0; s < FT_STATE_COUNT; s++)
			if (state_facts(s)->role == role)
				cr_assert(reached[s], "%s is never reached", ft_state_name(s));
	}
}

Test(state, names)
{
	for (enum ft_state s = 0; s < FT_STATE_COUNT; s++)
		for (enum ft_state t = 0; t < s; t++)
			cr_assert_str_neq(ft_state_name(s), ft_state_name(t));
	for (enum state_event e = 0; e < EV_COUNT; e++)
		cr_assert_str_neq(state_event_name(e), "?");
	cr_assert_str_eq(ft_state_name(FT_STATE_COUNT), "?");
	cr_assert_str_eq(state_event_name(EV_COUNT), "?");
}
