"""Backends with the seeds' least: `ls_info`, `read` and `write`. `TextBackend` may have more, one verb at a time."""

from __future__ import annotations

from typing import Any

from seed_backends import Answer


class TextBackend:
    """Text files in a dict, `files`. A caller can't get more information than the verbs return.

    Args:
        verbs: of `edit` and `delete`, those it has.
        reads: `numbered` lines like the seeds, `records` with windows like deepagents (CRLF is read as LF), or `plain`
            text.
        sizes: the unit of the sizes in a listing: `bytes`, `characters`, or None for no sizes.
        replaces: whether `write` replaces an existing file.
        page: the most lines that one `read` returns.
    """

    def __init__(
        self,
        verbs: tuple[str, ...] = (),
        reads: str = "numbered",
        sizes: str | None = "bytes",
        replaces: bool = False,
        page: int = 1 << 40,
    ) -> None:
        self.files: dict[str, str] = {}
        self.reads, self.sizes, self.replaces, self.page = reads, sizes, replaces, page
        for verb in verbs:
            setattr(self, verb, getattr(self, "_" + verb))

    def ls_info(self, path: str) -> list[dict[str, Any]]:
        base = path.rstrip("/") + "/"
        found: dict[str, dict[str, Any]] = {}
        for name, content in self.files.items():
            if name.startswith(base):
                child, slash, _ = name[len(base) :].partition("/")
                info: dict[str, Any] = {"path": base + child + slash, "is_dir": bool(slash)}
                if not slash and self.sizes:
                    info["size"] = len(content.encode() if self.sizes == "bytes" else content)
                found[info["path"]] = info
        return [found[path] for path in sorted(found)]

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        if file_path not in self.files:
            missing = f"Error: File '{file_path}' not found"
            return Answer(error=missing) if self.reads == "records" else missing
        content = self.files[file_path]
        if self.reads == "plain":
            return content
        lines = content.splitlines(keepends=True)
        chosen = lines[offset : offset + min(limit, self.page)]
        if self.reads == "numbered":
            ends = (line.splitlines()[0] for line in chosen)
            return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(ends, start=offset + 1))
        if not chosen:
            return Answer(file_data={"content": content, "encoding": "utf-8"})
        end = offset + len(chosen)
        return Answer(
            file_data={"content": "".join(chosen).replace("\r\n", "\n").replace("\r", "\n"), "encoding": "utf-8"},
            start_line=offset + 1,
            end_line=end,
            total_lines=len(lines),
            next_offset=end if end < len(lines) else None,
        )

    def write(self, file_path: str, content: str) -> Answer:
        if file_path in self.files and not self.replaces:
            return Answer(error=f"Cannot write to {file_path} because it already exists.")
        self.files[file_path] = content
        return Answer(path=file_path)

    def _edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Answer:
        if file_path not in self.files:
            return Answer(error=f"Error: File '{file_path}' not found")
        content = self.files[file_path]
        if not old_string or content.count(old_string) != 1:
            return Answer(error=f"old_string not found in {file_path}")
        self.files[file_path] = content.replace(old_string, new_string)
        return Answer(path=file_path, occurrences=1)

    def _delete(self, file_path: str) -> Answer:
        gone = [name for name in self.files if name == file_path or name.startswith(file_path + "/")]
        for name in gone:
            del self.files[name]
        return Answer(path=file_path) if gone else Answer(error=f"Error: File '{file_path}' not found")


def make() -> TextBackend:
    """Make a backend for `python:text_backends:make`: the three verbs, and a file with line ends that `read` hides."""
    backend = TextBackend()
    backend.files["/mixed.txt"] = "one\r\ntwo\n"
    return backend


def make_editing() -> TextBackend:
    """Make a backend for `python:text_backends:make_editing`: it has `edit` too."""
    return TextBackend(("edit",))
