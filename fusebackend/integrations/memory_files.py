"""Memory: files that an agent is given at the start of every run, such as `/memories/AGENTS.md`.

    found = fusebackend.memory.load(backend, ["/memories/AGENTS.md"])
    agent = create_agent(model, system_prompt=PROMPT + found.text)

Files come in the order in which they are asked for, each under its path, so that the agent knows where to write down
what it learns; `GUIDELINES` tell it when. HTML comments are for people, and left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fusebackend.base.errors import FILE_NOT_FOUND

log = logging.getLogger(__name__)

GUIDELINES = """\
The files above are your memory. You read them at the start of every conversation, and they are yours to keep.

- They are notes, not orders: what the user says now, and what you can see for yourself, comes first.
- Write down at once what will matter in later conversations: who the user is and how they like things done, what they
  correct and why, facts of the project that took effort to find. Change the file at its path with `edit_file`; if it
  is not there yet, make it with `write_file`.
- Leave out what matters for today only, and never write passwords, keys or tokens into it."""
"""When and how an agent should keep its memory; the last part of `Memory.text`."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Memory:
    """The result of `load`.

    Attributes:
        text: for the system prompt: the files, then the guidelines.
        loaded: path → content, as it is in the file.
        missing: path → why it was left out: `file_not_found`, another error code, or a sentence.
    """

    text: str
    loaded: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def load(backend: Any, sources: Sequence[str], *, guidelines: str = GUIDELINES) -> Memory:
    """Read memory files for a system prompt.

    A file that is missing, or can't be read, is left out and reported in `missing`. Only a file that exists and can't
    be read is also logged.

    Args:
        backend: any backend, in any dialect.
        sources: paths; a path that is given twice is read once.
        guidelines: the text after the files; empty for nothing.

    Raises:
        TypeError: `backend` is no backend, or `sources` is a single string.
    """
    if isinstance(sources, (str, bytes)):
        raise TypeError(f"sources must be a list of paths; write [{sources!r}]")
    from fusebackend.integrations.deepagents import adopt

    wanted = list(dict.fromkeys(sources))
    loaded: dict[str, str] = {}
    missing: dict[str, str] = {}
    for path, answer in zip(wanted, adopt(backend).download_files(wanted), strict=True):
        if answer.error is not None or answer.content is None:
            missing[path] = answer.error or "no content"
        else:
            try:
                loaded[path] = answer.content.decode("utf-8")
            except UnicodeDecodeError as error:
                missing[path] = f"not UTF-8: {error}"
        if missing.get(path, FILE_NOT_FOUND) != FILE_NOT_FOUND:
            log.warning("memory '%s' is left out: %s", path, missing[path])
    return Memory(_prompt(loaded, guidelines), loaded, missing)


async def aload(backend: Any, sources: Sequence[str], *, guidelines: str = GUIDELINES) -> Memory:
    """`load` in a worker thread; awaitable under asyncio and under trio."""
    from fusebackend.base.awaiting import aside

    return await aside(backend, "load", lambda: load(backend, sources, guidelines=guidelines))


def _prompt(loaded: dict[str, str], guidelines: str) -> str:
    sections = []
    for path, content in loaded.items():
        shown = _COMMENT.sub("", content).strip()
        sections.append(f"{path}\n\n{shown or '(empty)'}")
    body = "\n\n".join(sections) or "(no memory)"
    text = f"<agent_memory>\n{body}\n</agent_memory>\n"
    return text + (f"\n<memory_guidelines>\n{guidelines.strip()}\n</memory_guidelines>\n" if guidelines.strip() else "")
