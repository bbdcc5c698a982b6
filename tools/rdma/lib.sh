# SPDX-License-Identifier: MIT
# shellcheck shell=dash
# lib.sh - what a command in a guest of tools/rdma/guest can call; a script of its own sources it: . "$RDMA_LIB"
# Addresses and so on are in the environment, see tools/rdma/guest --help.  Every wait has an end, in seconds.

uptime_s() { local up; read -r up _ </proc/uptime; echo "${up%%.*}"; }

# node_end STATUS: ends this guest at once, as after the command's end with that status.
node_end() {
	echo "$1" >/dev/vport0p2
	echo b >/proc/sysrq-trigger
	sleep 60
}

# node_kill [STATUS]: this guest is gone within the moment, without a goodbye to anybody, as when its power fails.
# tools/rdma/guest says so, and takes STATUS (0) for this guest's.
node_kill() { node_end "killed ${1:-0}"; }

# Addresses of IPv6 go when the link goes down.
net_up() {
	ip addr add "$ADDR/24" dev "$NET" 2>/dev/null
	ip link set "$NET" up
	ip addr add "$ADDR6/64" dev "$NET" 2>/dev/null
	return 0
}
# link_cut, link_mend: the wire is pulled and put back.  With two guests barriers still work: they have a wire of their own.
link_cut() { ip link set "$NET" down; }
link_mend() { net_up; }

# wait_peer [S]: until the other guest answers on the wire; 1 if it does not.
wait_peer() {
	local end
	end=$(($(uptime_s) + ${1:-30}))
	until ping -c 1 -W 1 "$PEER" >/dev/null 2>&1; do
		[ "$(uptime_s)" -lt $end ] || return 1
	done
}

# barrier NAME [TEXT [S]]: returns when the other guest is at the barrier of this name too, and prints the TEXT that it brought.
# 1 if it has not come within S (60).  With one guest it returns at once.  One barrier at a time in each guest.
barrier() {
	[ "$NODES" = 2 ] || return 0
	local end left
	export BARRIER_NAME="$1" BARRIER_TEXT="${2:-}" BARRIER_LEFT="${3:-60}"
	end=$(($(uptime_s) + BARRIER_LEFT))
	rm -f /tmp/.barrier
	while left=$((end - $(uptime_s))) && [ $left -gt 0 ]; do
		if [ "$NODE" = 1 ]; then
			nc -l -p 7001 -w $left -e /guest/meet 2>/dev/null
		else
			nc -w $left 10.9.9.1 7001 -e /guest/meet 2>/dev/null
		fi && break
		sleep 0.05
	done
	local name text tab
	tab=$(printf '\t')
	[ -s /tmp/.barrier ] || { echo "barrier $1: the other guest has not come" >&2; return 1; }
	IFS=$tab read -r name text </tmp/.barrier
	[ "$name" = "$1" ] || { echo "barrier $1: the other guest is at barrier $name" >&2; return 1; }
	[ -z "$text" ] || echo "$text"
}

# as_user KIB COMMAND [ARG]...: as nobody, who may lock KIB of memory.
as_user() (
	# shellcheck disable=SC3045 # busybox has it
	ulimit -l "$1" || exit
	shift
	exec su -p -s /bin/sh nobody -c 'exec "$@"' sh "$@"
)
