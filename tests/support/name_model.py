"""A model of a tree of names: which changes must succeed, and what they leave. Its paths are relative, as `d/a`."""

from __future__ import annotations

import os


class File:
    """The contents of a file, shared by all its names and handles."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)

    def resize(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def write(self, offset: int, data: bytes) -> None:
        if data:
            self.resize(max(len(self.content), offset + len(data)))
            self.content[offset : offset + len(data)] = data


class Names(dict[str, "File | None"]):
    """Paths and their files; None is a directory. A method that changes something returns whether it must succeed."""

    def is_dir(self, name: str) -> bool:
        return name == "" or self.get(name, name) is None

    def can_hold(self, name: str) -> bool:
        return self.is_dir(name.rpartition("/")[0])

    def could_hold(self, name: str) -> bool:
        """Return whether the directories above exist or can be made."""
        return all(self.is_dir(path) or path not in self for path in self._above(name))

    def below(self, name: str) -> list[str]:
        return [path for path in self if path == name or path.startswith(name + "/")]

    def inside(self, name: str) -> set[str]:
        return {path for path in self if path.rpartition("/")[0] == name}

    def _above(self, name: str) -> list[str]:
        parts = name.split("/")[:-1]
        return ["/".join(parts[: end + 1]) for end in range(len(parts))]

    def _carry(self, old: str, new: str) -> None:
        moved = {path: self.pop(path) for path in self.below(old)}
        for path, node in moved.items():
            self[new + path[len(old) :]] = node

    # -- changes by processes ----------------------------------------------------------------------------------

    def write(self, name: str, flags: int, offset: int, data: bytes) -> bool:
        """Open with O_CREAT and these flags, write, and close."""
        wanted = self.can_hold(name) and (name not in self or not self.is_dir(name))
        if wanted:
            file = self._file(name)
            if flags & os.O_TRUNC:
                file.resize(0)
            file.write(len(file.content) if flags & os.O_APPEND else offset, data)
        return wanted

    def truncate(self, name: str, size: int) -> bool:
        file = self.get(name)
        if file is not None:
            file.resize(size)
        return file is not None

    def mkdir(self, name: str) -> bool:
        wanted = self.can_hold(name) and name not in self
        if wanted:
            self[name] = None
        return wanted

    def remove(self, name: str) -> bool:
        wanted = self.below(name) == [name]
        if wanted:
            del self[name]
        return wanted

    def rename(self, old: str, new: str) -> bool:
        wanted = old in self and self.can_hold(new)
        if wanted and old != new:
            if self.is_dir(old):
                free = new not in self or (self.is_dir(new) and self.below(new) == [new])
                wanted = free and not new.startswith(old + "/")
            else:
                wanted = new not in self or not self.is_dir(new)
        are_one_file = not self.is_dir(old) and self.get(old) is self.get(new)
        if wanted and old != new and not are_one_file:
            self.pop(new, None)
            self._carry(old, new)
        return wanted

    def link(self, old: str, new: str) -> bool:
        wanted = self.get(old) is not None and new not in self and self.can_hold(new)
        if wanted:
            self[new] = self[old]
        return wanted

    # -- changes by agents, which make directories above ---------------------------------------------------------

    def create(self, name: str, data: bytes) -> bool:
        return name not in self and self.upload(name, data)

    def upload(self, name: str, data: bytes) -> bool:
        wanted = self.could_hold(name) and (name not in self or not self.is_dir(name))
        if wanted:
            self._make_above(name)
            self._file(name).content[:] = data
        return wanted

    def delete(self, name: str) -> bool:
        gone = self.below(name)
        for path in gone:
            del self[path]
        return bool(gone)

    def move(self, old: str, new: str) -> bool:
        wanted = old in self and new not in self and self.could_hold(new) and not new.startswith(old + "/")
        if wanted:
            self._make_above(new)
            self._carry(old, new)
        return wanted

    def _make_above(self, name: str) -> None:
        for path in self._above(name):
            self.setdefault(path, None)

    def _file(self, name: str) -> File:
        file = self.setdefault(name, File())
        assert file is not None
        return file
