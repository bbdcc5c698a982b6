# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ft.bash - bash completion of all programs of ft.  It asks the program itself (--help-options, tab-separated lines), so
# there is no second list of options to keep.  _ft is the same for zsh.

# _ft_value_of LISTING COMMAND OPTION - what the value of an option is called; nothing for a flag.
_ft_value_of() {
	local listing=$1 command=$2 option=$3
	awk -F'\t' -v c="$command" -v o="$option" '
		$1 == "option" && ($2 == c || $2 == "-") && ("--" $3 == o || ($4 != "-" && "-" $4 == o)) && $5 != "-" {
			print $5; exit }' <<<"$listing"
}

_ft_words() { # LISTING COMMAND - the options that may stand there
	awk -F'\t' -v c="$2" '$1 == "option" && ($2 == c || $2 == "-") { print "--" $3 }' <<<"$1"
}

_ft_commands() { # LISTING
	awk -F'\t' '$1 == "command" { print $2 }' <<<"$1"
}

_ft_machines() {
	local dir f
	if [ "$(id -u)" = 0 ]; then dir=/run/ft; else dir=${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/ft}; fi
	dir=${FT_RUNTIME_DIR:-$dir}
	for f in "${dir:-/tmp/ft-$(id -u)}"/*.sock; do
		[ -S "$f" ] && basename "$f" .sock
	done
}

_ft_offer() { # CUR WORDS
	mapfile -t COMPREPLY < <(compgen -W "$2" -- "$1")
}

_ft_operand() { # PROGRAM COMMAND CUR
	case "${1##*/} $2" in
	"ftctl set" | "ftctl get") _ft_offer "$3" "$("$1" options 2>/dev/null | cut -d' ' -f1)" ;;
	"ftctl wait")
		_ft_offer "$3" "idle connecting syncing protected suspect alone fenced waiting standby-syncing standby
			standby-suspect promoting active refused"
		;;
	*) mapfile -t COMPREPLY < <(compgen -f -- "$3") ;;
	esac
}

_ft_complete() {
	local program=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local listing command="" value i
	COMPREPLY=()
	listing=$("$program" --help-options 2>/dev/null) || return 0

	# --option=value comes as three words
	if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
	for ((i = 1; i < COMP_CWORD; i++)); do
		[ "${COMP_WORDS[i]}" = -- ] && return 0 # a command line of another program
		if [ -z "$command" ] && _ft_commands "$listing" | grep -qxF -- "${COMP_WORDS[i]}"; then
			command=${COMP_WORDS[i]}
		fi
	done

	value=$(_ft_value_of "$listing" "${command:--}" "$prev")
	case $value in
	"") ;;
	*"|"*) _ft_offer "$cur" "${value//|/ }"; return 0 ;;
	FILE | PATH) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return 0 ;;
	NAME) _ft_offer "$cur" "$(_ft_machines)"; return 0 ;;
	*) return 0 ;;
	esac
	if [[ $cur == -* ]]; then
		_ft_offer "$cur" "$(_ft_words "$listing" "${command:--}")"
	elif [ -z "$command" ] && [ -n "$(_ft_commands "$listing")" ]; then
		_ft_offer "$cur" "$(_ft_commands "$listing")"
	else
		_ft_operand "$program" "$command" "$cur"
	fi
}

complete -o default -F _ft_complete ftctl ftqemu ftdump ftsim ftbench
