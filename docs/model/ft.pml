/* SPDX-License-Identifier: MIT */
/* ft.pml - who may run: commit, acknowledgement, lease and failover of two nodes and a witness.  docs/decisions/021 is what it is of.
 *
 *   primary --- commit(n), ack(n) --- secondary      one link, which may be cut, once, at any moment; what is on its way may be lost then
 *       \                              /
 *        +--------- witness ----------+             keeps holder, generation, and whether the holder was heard of
 *
 * Time is ticks of two clocks: the primary's may fall behind the secondary's by DRIFT.  Who is stopped takes no step, for as long as you like.
 *
 * Checked by tools/checks/model, over every order of steps: one side lets output out; what is let out is acknowledged, or the standby knows that it has not
 * the last word; nobody is stuck in the middle of a step.  And each guard below that is taken away breaks one of these. */

#ifdef NO_ACK /* output leaves when its epoch ends */
#define WAITS_FOR_ACK false
#else
#define WAITS_FOR_ACK true
#endif
#if defined(NO_LEASE) /* the primary does not look at its lease */
#define LEASE_HELD true
#elif defined(NO_DRIFT) /* it takes its clock for the secondary's */
#define LEASE_HELD (since_renewal < LEASE)
#else
#define LEASE_HELD (since_renewal + DRIFT < LEASE)
#endif
#ifdef NO_SILENCE /* the secondary does not wait until the lease is over */
#define LEASE_OVER true
#else
#define LEASE_OVER (!heard && silent_for >= LEASE)
#endif
#ifdef NO_GENERATION /* going on alone is not written down */
#define GOES_ALONE skip
#else
#define GOES_ALONE generation++
#endif

#define LEASE 4 /* ticks */
#define DRIFT 1
#define EPOCHS 3

mtype = { COMMIT, ACK };
mtype = { PRIMARY, SECONDARY };

chan to_secondary = [2] of { mtype, byte };
chan to_primary = [2] of { mtype, byte };
bool connected = true, primary_lives = true;

/* the witness */
mtype holder = PRIMARY;
byte generation = 1;
bool heard = true; /* of the holder, since the secondary looked last */

/* clocks */
byte since_renewal = 0; /* the primary's: since it sent the renewal that was granted last */
byte silent_for = 0;	/* the secondary's: since it looked, and heard nothing */
byte behind = 0;

/* the primary */
byte epoch = 1; /* that its guest is in */
byte out = 0;	/* last one whose output has left */
bool alone = false, fenced = false;

/* the secondary */
byte committed = 0;
byte image_generation = 0; /* in which that was */
bool runs = false;	   /* it was promoted */

inline let_out(n)
{
	assert(!runs);
	out = n
}

active proctype primary()
{
	byte n;
end:	do
	:: atomic { primary_lives && !fenced && !alone && connected && epoch < EPOCHS && nfull(to_secondary) ->
		to_secondary!COMMIT(epoch);
		epoch++ }
	:: atomic { primary_lives && !fenced && nempty(to_primary) && LEASE_HELD ->
		to_primary?ACK(n);
		assert(n < epoch);
		if
		:: n > out -> let_out(n)
		:: else
		fi }
	:: atomic { !WAITS_FOR_ACK && primary_lives && !fenced && !alone && out + 1 < epoch && LEASE_HELD ->
		n = out + 1;
		let_out(n) }
	/* also when it is late: the witness knows whether it is the primary's still */
	:: atomic { primary_lives && !fenced && holder == PRIMARY && since_renewal > 0 ->
		heard = true;
		since_renewal = 0 }
	/* without the secondary: the witness knows it before output is free */
	:: atomic { primary_lives && !fenced && !alone && !connected ->
		if
		:: holder == PRIMARY ->
			GOES_ALONE;
			alone = true;
			heard = true;
			since_renewal = 0
		:: else -> fenced = true
		fi }
	:: atomic { primary_lives && !fenced && alone && LEASE_HELD && out < EPOCHS -> let_out(EPOCHS) }
	:: atomic { primary_lives && !fenced && !(LEASE_HELD) -> fenced = true }
	:: !primary_lives || fenced -> break
	od
}

active proctype secondary()
{
	byte n;
end:	do
	:: atomic { !runs && connected && nempty(to_secondary) && nfull(to_primary) ->
		to_secondary?COMMIT(n);
		committed = n;
		image_generation = generation;
		to_primary!ACK(n) }
	:: atomic { !runs && !connected && committed > 0 && heard ->
		heard = false;
		silent_for = 0 }
	:: atomic { !runs && !connected && committed > 0 && LEASE_OVER ->
		if
		:: generation == image_generation ->
			holder = SECONDARY;
			generation++;
			assert(out <= committed);
			runs = true
		:: else -> break /* the other went on alone: only the operator may say so */
		fi }
	:: runs -> break
	od
}

active proctype time()
{
end:	do
	:: atomic { since_renewal < LEASE || silent_for < LEASE ->
		if
		:: since_renewal = (since_renewal < LEASE -> since_renewal + 1 : LEASE);
		   silent_for = (silent_for < LEASE -> silent_for + 1 : LEASE)
		:: behind < DRIFT -> behind++; silent_for = (silent_for < LEASE -> silent_for + 1 : LEASE)
		:: behind > 0 -> behind--; since_renewal = (since_renewal < LEASE -> since_renewal + 1 : LEASE)
		fi }
	od
}

active proctype fate()
{
	mtype kind;
	byte n;
end:	do
	:: atomic { connected ->
		connected = false;
		do
		:: len(to_secondary) > 0 -> to_secondary?kind,n
		:: len(to_secondary) == 0 -> break
		od;
		if
		:: do
		   :: len(to_primary) > 0 -> to_primary?kind,n
		   :: len(to_primary) == 0 -> break
		   od
		:: skip /* what had come already is there still */
		fi }
	:: primary_lives -> primary_lives = false
	:: !connected || !primary_lives -> break
	od
}
