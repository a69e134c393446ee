"""The shell scripts that `BaseSandbox` runs, and `Script`, which puts them and their arguments together.

They are for a POSIX `sh` with the usual tools, GNU's or busybox's: base64, cat, chmod, chown, find, grep, ln, mkdir,
mv, readlink, rm, rmdir, sha256sum, sleep, stat. Names are any bytes: an argument is quoted, or spelled in octal where
it is no plain text, and is never read as an option, for paths are absolute and patterns follow `-e`.

A script answers with a line that says how it went, one of the keys of `answers.ERRNO` or `! ` and the words of the tool
that failed, and what was asked for after it. Temporary files are named `.fusebackend-…~`.
"""

from __future__ import annotations

import calendar
import errno
import re
import secrets
import stat
from collections.abc import Iterator
from typing import NamedTuple

from fusebackend.base.errors import errno_of, oserror
from fusebackend.base.lines import split_lines
from fusebackend.protocol import FileInfo
from fusebackend.text import iso_time

SETTINGS = "LC_ALL=C; TZ=UTC0; export LC_ALL TZ\n"
"""Settings of scripts, which commands of agents do not have: bytes are bytes, and times are UTC."""

_SOURCE = r"""
fb_stat='//%f %s %y//%n'

# Why there is nothing at a path: n (no such file), t (a file is used as a directory), x (it may not be looked at).
# With a second argument, x also where nothing may be made.
fb_why() {
  fb_q=$1
  while :; do
    fb_q=${fb_q%/*}
    if [ -d "$fb_q/" ]; then
      if [ ! -x "$fb_q/" ]; then echo x; elif [ -n "${2-}" ] && [ ! -w "$fb_q/" ]; then echo x; else echo n; fi
      return
    fi
    if [ -e "$fb_q" ]; then echo t; return; fi
    if [ -z "$fb_q" ]; then echo n; return; fi
  done
}

# Paths of which the files are somebody else's.
fb_others=
fb_other() { for fb_a do fb_others="$fb_others$fb_a
"; done; }

# find from here, to a depth (empty: any), with what is to be done there. What is somebody else's is left out by its
# name: to ask what it is may take as long as its owner takes to answer.
fb_seek() {
  fb_deep=$1
  shift
  if [ -n "$fb_others" ]; then
    fb_at=$(pwd -P)
    [ "$fb_at" != / ] || fb_at=
    while IFS= read -r fb_x; do
      case $fb_x in "$fb_at"/*) set -- -path ".//.${fb_x#"$fb_at"}" -prune -o "$@" ;; esac
    done <<.
$fb_others
.
  fi
  find .//. ${fb_deep:+-maxdepth "$fb_deep"} "$@"
}

# What a directory holds. Links are told as what they lead to, and as themselves where they lead nowhere.
fb_ls() {
  if [ -d "$1/" ]; then
    { [ -r "$1/" ] && cd "$1/"; } || { echo x; return; }
    echo ok
    fb_seek '' ! -name . -prune -type l -exec sh -c '
      fb_stat=$0
      stat -L -c "$fb_stat" "$@" && exit
      for fb_f do shift; [ -e "$fb_f" ] || set -- "$@" "$fb_f"; done
      [ $# -eq 0 ] || stat -c "$fb_stat" "$@"' "$fb_stat" {} + -o ! -name . -prune -exec stat -c "$fb_stat" {} +
  elif [ -e "$1" ]; then echo t
  else fb_why "$1"; fi
}

# Marker, limit, paths: a code for each, f for those whose bytes follow and b for larger files; then for the former
# what stat says, the bytes of all, the marker, and, where they are several, what stat says now.
fb_cat() {
  fb_mark=$1 fb_max=$2 fb_codes=
  shift 2
  for fb_f do
    shift
    if [ -d "$fb_f" ]; then fb_c=d
    elif [ -f "$fb_f" ]; then if [ -r "$fb_f" ]; then fb_c=f; set -- "$@" "$fb_f"; else fb_c=x; fi
    elif [ -e "$fb_f" ]; then fb_c=i
    else fb_c=$(fb_why "$fb_f"); fi
    fb_codes="$fb_codes $fb_c"
  done
  fb_stats=
  if [ $# -gt 0 ]; then
    fb_rest=$(stat -L -c '%i %s %y' "$@")
    fb_kinds=$fb_codes fb_codes=
    for fb_c in $fb_kinds; do
      if [ "$fb_c" = f ]; then
        fb_f=$1 fb_line=${fb_rest%%
*}
        fb_rest=${fb_rest#*
}
        shift
        fb_s=${fb_line#* }
        fb_s=${fb_s%% *}
        if [ "${fb_s:-0}" -le "$fb_max" ]; then
          set -- "$@" "$fb_f"
          fb_stats="$fb_stats$fb_line
"
        else fb_c=b; fi
      fi
      fb_codes="$fb_codes $fb_c"
    done
  fi
  echo "$fb_codes"
  printf '%s\n' "$fb_stats"
  [ $# -eq 0 ] || cat "$@"
  printf '\n%s\n' "$fb_mark"
  [ $# -lt 2 ] || stat -L -c '%i %s %y' "$@"
}

fb_there() { [ -e "$1" ] || [ -L "$1" ]; }

# The directory of a path is made, or it is said why not.
fb_parents() {
  fb_d=${1%/*}/
  [ -d "$fb_d" ] && return
  fb_m=$(mkdir -p "$fb_d" 2>&1) && return
  fb_c=$(fb_why "$1" w)
  [ "$fb_c" != n ] || fb_c="! $fb_m"
  echo "$fb_c"
  return 1
}

# Scripts that replace files of one directory do it one after the other. A lock that one script has held for ten seconds
# was left by a kill, and is removed. A lock that can't be made and is not there has just been released. If that is so
# twenty times in a row there can be none (a full or read-only file system), and the change itself will fail.
fb_lock() {
  fb_l=$1/.fusebackend-lock~ fb_n=0 fb_absent=0 fb_held=
  until mkdir "$fb_l" 2>/dev/null; do
    if fb_now=$(stat -c '%i %z' "$fb_l" 2>/dev/null); then
      [ "$fb_now" = "$fb_held" ] || fb_n=0 fb_absent=0 fb_held=$fb_now
      fb_n=$((fb_n + 1))
      if [ $fb_n -gt 100 ]; then rmdir "$fb_l"; fb_n=0; fi
      sleep 0.1 || sleep 1
    else
      fb_absent=$((fb_absent + 1))
      if [ $fb_absent -gt 20 ]; then fb_l=; return; fi
    fi
  done
}

# Is a path one that can be replaced? A link is followed, so fb_p is where it leads.
fb_replaceable() {
  fb_p=$1
  if [ -d "$fb_p" ]; then echo d; return 1; fi
  if [ -L "$fb_p" ]; then
    fb_p=$(readlink -f "$fb_p" && echo .) && fb_p=${fb_p%??} || { echo n; return 1; }
  fi
  if [ -e "$fb_p" ] && [ ! -f "$fb_p" ]; then echo i; return 1; fi
}

# Before files are sent to be new ones, or over others: what is in the way of each, or ok, with its directory made.
fb_prepare() {
  fb_h=$1
  shift
  for fb_a do
    if [ "$fb_h" = new ] && fb_there "$fb_a"; then echo e; continue; fi
    fb_replaceable "$fb_a" && fb_parents "$fb_a" && fb_parents "$fb_p" && echo ok
  done
}

# Which paths are there: after a command (`server/carrying.py`).
fb_arrived() {
  for fb_a do if [ -e "$fb_a" ]; then echo ok; else echo m; fi; done
}

# Where paths lead, each with a NUL at its end: `=` where no link is on the way down from a directory, else the path
# from there on, or `!` where that can't be told.
fb_real() {
  fb_d=${1%/}
  fb_t=$(readlink -f "$1" && echo .) && fb_t=${fb_t%??} && fb_t=${fb_t%/}
  shift
  for fb_a do
    fb_p=$fb_a
    while [ ! -L "$fb_p" ] && [ "$fb_p" != "$fb_d" ] && [ -n "$fb_p" ]; do fb_p=${fb_p%/*}; done
    if [ "$fb_p" = "$fb_d" ] || [ -z "$fb_p" ]; then printf '=\0'; continue; fi
    fb_p=$(readlink -f "$fb_a" && echo .) && fb_p=${fb_p%??}
    case $fb_p in "$fb_t" | "$fb_t"/*) printf '%s\0' "${fb_p#"$fb_t"}" ;; *) printf '!\0' ;; esac
  done
}

# A name for the file to come, beside it, or elsewhere where only the file itself may be written.
fb_temporary() {
  fb_d=${fb_p%/*}
  fb_t=$fb_d/.fusebackend-$1~
  [ -w "$fb_d/" ] && return
  if [ -f "$fb_p" ] && [ -w "$fb_p" ]; then fb_t=${TMPDIR:-/tmp}/.fusebackend-$1~; return; fi
  echo x
  return 1
}

# How (new, over, or the sha256 that is to be replaced), path, number, and where the bytes are if they have been sent;
# else they come as base64. A new file appears at once and whole, and replaces nothing.
fb_put() {
  fb_h=$1 fb_p=$2 fb_t=${4-}
  if [ "$fb_h" = new ]; then
    if fb_there "$fb_p"; then fb_drop; echo e; return; fi
  else
    fb_replaceable "$2" || { fb_drop; return; }
  fi
  fb_parents "$fb_p" || { fb_drop; return; }
  if [ -z "$fb_t" ]; then
    fb_temporary "$3" || return
    # busybox's complains of a full disk and says that all is well.
    fb_m=$(base64 -d 2>&1 >"$fb_t") && [ -z "$fb_m" ] || { fb_drop; echo "! $fb_m"; return; }
  elif [ ! -e "$fb_t" ]; then
    echo m
    return
  fi
  if [ "$fb_h" = new ]; then fb_link
  elif [ "$fb_h" = over ] && [ ! -e "$fb_p" ]; then fb_replace
  else fb_lock "${fb_p%/*}"; fb_replace; [ -z "$fb_l" ] || rmdir "$fb_l"; fi
  fb_drop
}

fb_drop() { [ -z "$fb_t" ] || rm -f "$fb_t"; fb_t=; }

fb_link() {
  if ln -T "$fb_t" "$fb_p" 2>/dev/null; then echo ok; return; fi
  if fb_there "$fb_p"; then echo e; return; fi
  # No hard links here, or no -T: the name is taken first, and filled after that.
  if fb_m=$( (set -C; cat "$fb_t" >"$fb_p") 2>&1); then echo ok
  elif [ ! -w "${fb_p%/*}/" ]; then echo x
  else echo "! $fb_m"; fi
}

fb_replace() {
  if [ "$fb_h" != over ]; then
    fb_now=$(sha256sum <"$fb_p") || { echo c; return; }
    [ "${fb_now%% *}" = "$fb_h" ] || { echo c; return; }
  fi
  if [ -e "$fb_p" ]; then
    set -- $(stat -c '%a %u:%g' "$fb_p" "$fb_t")
    [ "${2-}" = "${4-}" ] || chown "$2" "$fb_t"
    [ "${1-}" = "${3-}" ] && [ "${2-}" = "${4-}" ] || chmod "$1" "$fb_t"
  fi
  case $fb_t in
    "${fb_p%/*}"/*) fb_m=$(mv -f "$fb_t" "$fb_p" 2>&1 </dev/null) && { fb_t=; echo ok; return; } ;;
  esac
  # A file that something is mounted on, or in a directory that is not ours, can only be written itself.
  if fb_m=$( (cat "$fb_t" >"$fb_p") 2>&1); then echo ok; else echo "! $fb_m"; fi
}

fb_rm() {
  fb_there "$1" || { fb_why "$1"; return; }
  fb_m=$(rm -rf "$1" 2>&1 </dev/null)
  if ! fb_there "$1"; then echo ok
  elif [ ! -w "${1%/*}/" ]; then echo x
  else echo "! $fb_m"; fi
}

# A name that is free is taken before anything is moved to it, so nothing is ever replaced.
fb_mv() {
  fb_there "$1" || { fb_why "$1"; return; }
  if fb_there "$2"; then echo e; return; fi
  fb_parents "$2" || return
  if [ -d "$1" ] && [ ! -L "$1" ]; then
    mkdir "$2" 2>/dev/null || { fb_there "$2" && echo e || echo x; return; }
    if fb_m=$(mv -fT "$1" "$2" 2>&1 </dev/null); then echo ok; return; fi
    rmdir "$2" 2>/dev/null
    case $fb_m in *[Uu]sage* | *option*) fb_m=$(mv "$1" "$2" 2>&1 </dev/null) && { echo ok; return; } ;; esac
  else
    (set -C; : >"$2") 2>/dev/null || { fb_there "$2" && echo e || echo x; return; }
    if fb_m=$(mv -f "$1" "$2" 2>&1 </dev/null); then echo ok; return; fi
    rm -f "$2"
  fi
  if fb_there "$1" && [ ! -w "${1%/*}/" ]; then echo x; else echo "! $fb_m"; fi
}

# Stand in a directory, and from there in one below it that no link leads to. Else: f (a file), or why not.
fb_enter() {
  if [ ! -d "$1/" ]; then
    if [ -f "$1" ]; then echo f; stat -L -c '//%f %s %y//.//./' "$1"
    elif [ -e "$1" ]; then echo i
    else fb_why "$1"; fi
    return 1
  fi
  cd "$1/" 2>/dev/null || { echo x; return 1; }
  shift
  echo ok
  for fb_s do
    { [ ! -L "./$fb_s" ] && [ -d "./$fb_s" ] && cd "./$fb_s" 2>/dev/null; } || { echo; echo //end; return 1; }
  done
}

# fb_seek for searches. The kernel's own file systems are left out where the search comes from above. An `-exec … +`
# must not be in parentheses: busybox would not run it in the end.
fb_walk() {
  fb_depth=$1
  shift
  [ "$(pwd -P)" != / ] || set -- \( -path .//./proc -o -path .//./sys -o -path .//./dev \) -prune -o "$@"
  fb_seek "$fb_depth" "$@"
}

# The last line of a search: //end, and whether something could not be looked into. For that is looked only after a
# failure, which a file that vanishes is too. Status of the search, depth, and what find is to look at.
fb_end() {
  fb_u=
  if [ "$1" -ne 0 ]; then
    shift
    fb_u=$(fb_walk "$@" -exec sh -c '
      for fb_f do
        [ ! -e "$fb_f" ] || { [ -r "$fb_f" ] && { [ ! -d "$fb_f" ] || [ -x "$fb_f" ]; }; } || { echo u; exit; }
      done' sh {} +)
  fi
  printf '\n//end%.1s\n' "$fb_u"
}

# Depth, where to begin: the regular files there.
fb_find() {
  fb_depth=$1
  shift
  fb_enter "$@" || return
  fb_walk "$fb_depth" -type f -exec stat -c "$fb_stat" {} +
  fb_end $? "$fb_depth" -type d
}

# Depth, limit in units of 512 bytes, literal, where to begin: the files that hold the literal, and what
# stat says of those that are too large to be looked into.
fb_grep() {
  fb_depth=$1 fb_max=$2 fb_literal=$3
  shift 3
  fb_enter "$@" || return
  fb_walk "$fb_depth" -type f -size +"$fb_max" -exec stat -c "$fb_stat" {} + -o -type f \
    -exec sh -c 'grep -lsFe "$0" "$@"; [ $? -lt 2 ]' "$fb_literal" {} +
  fb_end $? "$fb_depth" ! -type l
}
"""

LIBRARY = re.sub(r"(?m)^#.*\n|^\n", "", _SOURCE)
"""Without comments: it goes before each script where the shell does not stay."""

_PLAIN = re.compile(r"[ -~\t\n\u00a0-\ud7ff\ue000-\U0010ffff]*")


class Script:
    """A script that uses the library. `text` is the shell's input after it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._spelled = 0

    def call(self, function: str, *arguments: str, stdin: str | None = None) -> Script:
        """Add a call. `stdin` is lines of text, without one that is `.`."""
        words = " ".join([function, *map(self._word, arguments)])
        self._lines.append(words if stdin is None else f"{words} <<'.'\n{stdin}\n.")
        return self

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def _word(self, argument: str) -> str:
        """An argument as a word of the shell. Surrogates stand for the bytes of `surrogateescape`."""
        if _PLAIN.fullmatch(argument):
            return "'" + argument.replace("'", "'\\''") + "'"
        # The shell cuts off newlines at the end of a command's output, so a full stop follows them.
        octal = "".join(f"\\{byte:03o}" for byte in argument.encode("utf-8", "surrogateescape"))
        self._spelled += 1
        name = f"fb_spelled{self._spelled}"
        self._lines.append(f"{name}=$(printf '{octal}.'); {name}=${{{name}%.}}")
        return f'"${name}"'


def nonce() -> str:
    """Return sixteen random digits."""
    return secrets.token_hex(8)


# -- script answers --------------------------------------------------------------------------------------------------
#
# Parsers of the scripts' answers: entries, files and codes. Pure functions over bytes.
#
# An entry is printed as `//MODE SIZE TIME//.//./PATH`. No path that find prints holds two slashes but for those it
# begins with, so any name can be parsed, newlines included.

ERRNO = {
    "n": errno.ENOENT,
    "t": errno.ENOTDIR,
    "x": errno.EACCES,
    "d": errno.EISDIR,
    "e": errno.EEXIST,
    "i": errno.EINVAL,  # a FIFO, socket or device
    "c": errno.ESTALE,  # it is not what was to be replaced
    "m": errno.ENXIO,  # the sent file is not there
    "b": errno.EFBIG,
}
"""The codes of the scripts."""

TEMPORARY = re.compile(rb"\.fusebackend-(?:[0-9a-f]+(?:-[0-9]+)?|lock)~")
"""Temporary files of the scripts; no listing shows it."""

_ENTRY = re.compile(rb"(?:\A|(?<=\n))(?://([0-9a-f]+) ([0-9]+) ([^/]*)//)?\.//\./|\n//end(u?)\n\Z")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


class Entry(NamedTuple):
    """A file or directory as find and stat tell of it; `mode` is 0 where only find did."""

    path: bytes  # relative to where the search began
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


def info_of(path: str, entry: Entry) -> FileInfo:
    """The record of an entry. Directories have size 0 in every backend."""
    return FileInfo(
        path=path + "/" if entry.is_dir else path,
        is_dir=entry.is_dir,
        size=0 if entry.is_dir else entry.size,
        modified_at=iso_time(entry.mtime_ns),
    )


class Found(NamedTuple):
    """The result of a search: all, if it came to its end; if not, it was cut short."""

    entries: list[Entry]
    ended: bool
    unreadable: bool


def status_of(answer: bytes) -> tuple[str, bytes]:
    """The first line of an answer, and the rest."""
    line, _, rest = answer.partition(b"\n")
    return line.decode("utf-8", "replace"), rest


def failure(status: str) -> OSError:
    """Return the error for a status other than `ok`. A tool's message ends with the system's own words for an errno."""
    if status == "c":
        return OSError(errno.ESTALE, "Somebody else has changed the file meanwhile; read it again")
    if status in ERRNO:
        return oserror(ERRNO[status])
    message = status.removeprefix("!").strip() or "The sandbox gave no reason"
    words = message.rpartition(": ")[2]
    return OSError(errno_of(words), words if errno_of(words) != errno.EIO else message)


END = b"\n//end\n"
"""The line after the last entry of a search."""


def entries_of(listing: bytes) -> Found:
    """The entries of a listing. Where it has no end, its last entry may be cut and is left out."""
    entries: list[Entry] = []
    ended = unreadable = False
    marks = list(_ENTRY.finditer(listing))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if mark[4] is not None:
            ended, unreadable = True, bool(mark[4])
            break
        if following is None:
            break
        entries.append(_entry(listing[mark.end() : following.start() - 1], mark))
    kept = [entry for entry in entries if not any(map(TEMPORARY.fullmatch, entry.path.split(b"/")))]
    return Found(kept, ended, unreadable)


def _entry(path: bytes, mark: re.Match[bytes]) -> Entry:
    if mark[1] is None:
        return Entry(path)
    return Entry(path, int(mark[1], 16), int(mark[2]), time_ns(mark[3].decode("ascii", "replace")))


def time_ns(text: str) -> int:
    """A time as stat's `%y` shows it, in UTC, in nanoseconds since the epoch; 0 for a malformed one."""
    found = _TIME.match(text)
    if found is None:
        return 0
    seconds = calendar.timegm(tuple(map(int, found.groups()[:6])))
    return seconds * 10**9 + int((found[7] or "").ljust(9, "0"))


class Piece(NamedTuple):
    """One file of an answer to `fb_cat`: its bytes, or a code."""

    code: str
    data: bytes = b""
    mtime_ns: int = 0


def pieces_of(answer: bytes, mark: str) -> list[Piece] | None:
    """The files of an answer to `fb_cat`; None where they changed meanwhile, and so can't be separated."""
    first, _, rest = answer.partition(b"\n")
    codes = first.decode("ascii", "replace").split()
    count = codes.count("f")
    *before, rest = rest.split(b"\n", count)
    if len(before) < count or any(len(line.split()) < 4 for line in before):
        return None
    content, marked, after = rest.rpartition(f"\n{mark}\n".encode())
    if not marked or not content.startswith(b"\n"):
        return None
    content = content[1:]
    sizes = [int(line.split()[1]) for line in before]
    if count == 1:
        sizes = [len(content)]  # there is nothing to tell apart; and a file of /proc has no size, and yet bytes
    elif before != split_lines(after) or sum(sizes) != len(content):
        return None
    return list(_cut(codes, sizes, before, content))


def _cut(codes: list[str], sizes: list[int], stats: list[bytes], content: bytes) -> Iterator[Piece]:
    position = index = 0
    for code in codes:
        if code != "f":
            yield Piece(code)
            continue
        modified = stats[index].split(b" ", 2)[2].decode("ascii", "replace")
        yield Piece(code, content[position : position + sizes[index]], time_ns(modified))
        position += sizes[index]
        index += 1
