# SPDX-License-Identifier: MIT
# shellcheck shell=dash
# lib.sh - what the scripts run_* of this folder share.  Each runs twice: on this host it starts itself anew in an emulated machine with
# soft RoCE (tools/rdma/guest), and what is behind that line runs in there, as root, with the functions of tools/rdma/lib.sh too.
# Every wait ends.  A test prints what it tried, and what fails ends the script with a sentence.

inside() { [ -n "${RDMA_LIB:-}" ]; }

# boot BUILD "PROGRAM..." [GUEST-OPTION]...: this script again, in a guest (or two) that has these programs of the build; does not return.
boot() {
	[ -d "$1" ] || { echo "usage: $0 BUILD" >&2; exit 2; }
	local build programs p path
	build=$(realpath "$1") programs=$2
	shift 2
	for p in $programs; do
		for path in tests tools/vmm/sim tools/ftctl tools/ftbench; do
			[ ! -x "$build/$path/$p" ] || set -- --file "$build/$path/$p:/bin/$p" "$@"
		done
	done
	set -- --file tests/rdma/lib.sh --file "$0" --env "LONG=${FT_RDMA_LONG:-}" "$@"
	exec tools/rdma/guest "$@" -- sh "$0"
}

# shellcheck source=tools/rdma/lib.sh disable=SC1091
! inside || . "$RDMA_LIB"

say() { echo "$(uptime_s) s: $*"; }

# fail WHY: ends the script; the ends of the files $logs are shown.
logs=
fail() {
	local f
	echo "FAIL: $1"
	for f in $logs; do
		echo "--- $f:"
		tail -n 15 "$f" | cut -c 1-400
	done
	exit 1
}

# run WHAT COMMAND [ARG]...: it must succeed; what it prints is shown.
run() {
	local what=$1
	say "$what"
	shift
	"$@" 2>&1 || fail "$what: '$*' ended with status $?"
}

# until_ WHAT S COMMAND [ARG]...: until it succeeds, or fail.
until_() {
	local what=$1 end
	end=$(($(uptime_s) + $2))
	shift 2
	until "$@"; do
		[ "$(uptime_s)" -lt $end ] || fail "$what has not come"
		sleep 0.1
	done
}

# ---- ftsim, controlled through sockets ----

# look SOCKET: its status as of now, for what follows.  To ask once for many fields: a program takes a tenth of a second to start here.
look() { ftctl --socket "$1" --json status >/tmp/look 2>/tmp/look.err || fail "no status at $1: $(cat /tmp/look.err)"; }
# seen NAME: a field of it; "" if it is not there.  No name stands there twice.
seen() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" /tmp/look; }
# expect NAME VALUE, expect_least NAME VALUE, expect_most NAME VALUE
expect() { [ "$(seen "$1")" = "$2" ] || fail "$1 is '$(seen "$1")', not '$2'"; }
expect_least() { [ "$(seen "$1")" -ge "$2" ] || fail "$1 is '$(seen "$1")', less than $2"; }
expect_most() { [ "$(seen "$1")" -le "$2" ] || fail "$1 is '$(seen "$1")', more than $2"; }

# field_is SOCKET NAME VALUE, field_least SOCKET NAME VALUE: now; for until_.
field_is() { ftctl --socket "$1" --json status >/tmp/look 2>/dev/null && [ "$(seen "$2")" = "$3" ]; }
field_least() { ftctl --socket "$1" --json status >/tmp/look 2>/dev/null && [ "$(seen "$2")" -ge "$3" ] 2>/dev/null; }

await_state() { until_ "state $2 of $1" "${3:-60}" field_is "$1" state "$2"; }

# The guest of both sides: options must be the same.  And patience for a slow emulated machine on a busy one.
guest="--size 12M --prefill 300 --rate 3000"
patience="--connect-timeout 20000 --commit-timeout 30000 --heartbeat-misses 60"
P=/tmp/primary.sock S=/tmp/secondary.sock

# start_secondary URI [OPTION]...: sets $secondary.
start_secondary() {
	local uri=$1
	shift
	rm -f /tmp/secondary.log $S # of the one before: it would be taken for the new one's
	# shellcheck disable=SC2086 # options
	ftsim secondary --listen "$uri" $guest $patience --state-max 1M --control $S -v "$@" >/tmp/secondary.log 2>&1 &
	secondary=$!
	logs=/tmp/secondary.log
	until_ "a secondary at $uri" 30 grep -q '^ftsim: listening on ' /tmp/secondary.log
}

# start_primary URI [OPTION]...: sets $primary.
start_primary() {
	local uri=$1
	shift
	rm -f /tmp/primary.log $P
	# shellcheck disable=SC2086 # options
	ftsim primary --secondary "$uri" $guest $patience --state-max 1M --staging-bytes 16M --interval 20 --pause-max 10000 \
		--reconnect 200 --control $P -v "$@" >/tmp/primary.log 2>&1 &
	primary=$!
	logs="$logs /tmp/primary.log"
	until_ "a primary" 30 test -S $P
}

# ended PID STATUS WHAT: waits, the exit status must be that.
ended() {
	local rc=0
	wait "$1" || rc=$?
	[ $rc = "$2" ] || fail "$3 ended with status $rc, not $2"
}
