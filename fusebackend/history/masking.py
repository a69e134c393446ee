"""`masked`: a command without its secrets, before the history keeps it.

These are replaced by `***`: passwords and secret parameters in URLs and DSNs (`protocol/scheme.py`); values of options,
variables and headers with a name that speaks of a secret (`--token x`, `API_KEY=x`, `Authorization: Bearer x`, `-p x`
and `-px` of programs that take a password so, `-u user:x` of curl); JSON members of such names; tokens that are known
by their beginning, and PEM keys.

When in doubt it hides too much. It cannot know every secret: `[log] commands = "none"` keeps the name of the program
alone.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Final, Literal, TypeAlias

from fusebackend.base.settings import Setting, Table
from fusebackend.protocol.scheme import mask

Commands: TypeAlias = Literal["masked", "full", "none"]
"""How the history keeps commands."""


class LogOptions(Table, frozen=True):
    """What a history keeps of calls: `[log]` of the TOML file."""

    commands: Annotated[
        Commands, Setting("Commands without their secrets; in full; or the names of their programs alone.")
    ] = "masked"


STARS: Final = "***"

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"';&|]+)"""
_NAME = (
    r"[\w.-]*(?:pass(?:w(?:or)?d|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|cred|auth)[\w.-]*"
)

_OTHER_P: Final = (
    r"cp|mkdir|install|touch|rsync|scp|ssh|sftp|tar|patch|git|python[\d.]*|pytest|node|perl|ps|lsof|nc|docker|podman|make"
    r"|tree|read|declare|export|trap|umask|type|command|time|pgrep|psql|pg_\w+|cargo|go|npm|uv|ruff|fusebackend"
)
"""Programs that mean something else by `-p`."""

_RULES: Final = tuple(
    (needed, re.compile(pattern, flags), replacement)
    for needed, pattern, flags, replacement in (
        # -----BEGIN … KEY----- to its end, or to that of the text.
        ("-----BEGIN", r"-----BEGIN [A-Z ]*KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.DOTALL, STARS),
        # Headers: to the end of the quotes or of the line.
        (":", r"((?:proxy-)?authorization|cookie|set-cookie|x-[\w-]*(?:token|key|auth|secret)[\w-]*)(\s*:\s*)[^\"'\n]+",
         re.IGNORECASE, rf"\1\2{STARS}"),
        ("", rf"\b(bearer|basic)(\s+)(?!{re.escape(STARS)})[\w.+/=~-]{{6,}}", re.IGNORECASE, rf"\1\2{STARS}"),
        # JSON members, and those of a Python dict.
        (":", rf"""(["']{_NAME}["']\s*:\s*)(["'])(?:(?!\2).)*\2?""", re.IGNORECASE, rf"\1\2{STARS}\2"),
        # --token x, --token=x; NAME=x.
        ("-", rf"((?:^|\s)--?{_NAME})(\s+|=)(?!-){_VALUE}", re.IGNORECASE, rf"\1\2{STARS}"),
        ("=", rf"((?:^|[\s;&|(\"'])(?:export\s+)?{_NAME}\s*=\s*){_VALUE}", re.IGNORECASE, rf"\1{STARS}"),
        # -p x and -px of programs with such an option; -u user:x of curl and wget.
        ("-", rf"(\b(?:mysql\w*|mariadb\w*|sshpass|smbclient|ldap\w+|mongo\w*|redis-cli|docker\s+login"
         rf"|podman\s+login)\b[^;&|\n]*?\s)(-[pwa])(\s*)(?!\s)(?!-){_VALUE}", re.IGNORECASE, rf"\1\2\3{STARS}"),
        ("-p", rf"((?:^|[;&|(])\s*(?!(?:sudo\s+)?(?:{_OTHER_P})\b)(?:[^;&|(\n]*?\s)?-p)(\s+)"
         rf"(?!-|\d+(?::\d+)*(?:\s|$)|[./~]){_VALUE}", 0, rf"\1\2{STARS}"),
        ("curl", r"(\bcurl\b[^;&|\n]*?\s(?:-u\s*|--user[ =])[\"']?[^\s:\"']+:)[^\s\"']+", 0, rf"\1{STARS}"),
        # Tokens by their beginning: GitHub, GitLab, OpenAI and Anthropic, Slack, AWS, Google, npm, PyPI, Hugging Face,
        # Stripe, and JSON Web Tokens.
        ("", r"\b(?:gh[pousr]_|github_pat_|glpat-|sk-(?:ant-|proj-)?|xox[abeoprs]-|xapp-|AKIA|ASIA|AIza|ya29\.|npm_"
         r"|pypi-|hf_|[rs]k_(?:live|test)_|whsec_|lsv2_|dckr_pat_|shpat_|SG\.)[\w.-]{8,}", 0, STARS),
        # A URL that was cut in its password. Digits are a port.
        ("//", r"(//[^/:@\s]+):(?!\d*\Z)[^\s@/]*\Z", 0, rf"\1:{STARS}"),
        ("eyJ", r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", 0, STARS),
    )
)  # fmt: skip
"""Each with what a text has for sure that it fits: most commands have nothing of it, and all patterns take 90 us."""

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


def masked(text: str) -> str:
    """Return a command without secrets."""
    for needed, pattern, replacement in _RULES:
        if needed in text:
            text = pattern.sub(replacement, text)
    return mask(text)


def kept(text: str, how: Commands) -> str:
    """Return a command as the history keeps it: a line."""
    if how == "masked":
        text = masked(text)
    elif how == "none":
        text = program(text)
    return " ".join(text.split())


def program(text: str) -> str:
    """Return the name of a command's program, without variables set for it."""
    words = text.split()
    first = next((word for word in words if not _ASSIGNED.match(word)), "")
    return masked(os.path.basename(first.strip("\"'();&|:")))
