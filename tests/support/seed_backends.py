"""The zoo of foreign backends: the seeds' in-memory example, shapes of deepagents 0.7, and of text alone.

Those that need deepagents itself are in `their_backends.py`. `SeedInMemoryBackend` is the code of the Korean seed
(custom backends) with `deepagents` replaced by `fusebackend` and its comments left out; nothing else is changed, its
departures from the protocol included.
"""

import fnmatch
import os
from dataclasses import dataclass
from datetime import datetime, timezone

from fusebackend.backends.protocol import (
    BackendProtocol,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GrepMatch,
    WriteResult,
)


class SeedInMemoryBackend(BackendProtocol):
    def __init__(self):
        self._files: dict[str, str] = {}
        self._metadata: dict[str, dict] = {}

    def _get_timestamp(self) -> str:
        return datetime.now(timezone.utc).isoformat()  # noqa: UP017 - verbatim

    def ls_info(self, path: str) -> list[FileInfo]:
        if not path.endswith("/"):
            path = path + "/"

        infos: list[FileInfo] = []
        seen_dirs: set[str] = set()

        for file_path in self._files:
            if not file_path.startswith(path):
                continue

            relative = file_path[len(path) :]

            if "/" in relative:
                subdir = relative.split("/")[0]
                dir_path = path + subdir + "/"
                if dir_path not in seen_dirs:
                    seen_dirs.add(dir_path)
                    infos.append(
                        {
                            "path": dir_path,
                            "is_dir": True,
                            "size": 0,
                            "modified_at": "",
                        }
                    )
            else:
                meta = self._metadata.get(file_path, {})
                infos.append(
                    {
                        "path": file_path,
                        "is_dir": False,
                        "size": len(self._files[file_path]),
                        "modified_at": meta.get("modified_at", ""),
                    }
                )

        return sorted(infos, key=lambda x: x["path"])

    def read(
        self,
        file_path: str,
        offset: int = 0,
        limit: int = 2000,
    ) -> str:
        if file_path not in self._files:
            return f"Error: File '{file_path}' not found"

        content = self._files[file_path]
        lines = content.splitlines()

        selected = lines[offset : offset + limit]

        result_lines = []
        for i, line in enumerate(selected, start=offset + 1):
            result_lines.append(f"{i:6}\t{line}")

        return "\n".join(result_lines)

    def write(
        self,
        file_path: str,
        content: str,
    ) -> WriteResult:
        if file_path in self._files:
            return WriteResult(error=f"Cannot write to {file_path} because it already exists.")

        self._files[file_path] = content
        self._metadata[file_path] = {
            "created_at": self._get_timestamp(),
            "modified_at": self._get_timestamp(),
        }

        return WriteResult(path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
    ) -> EditResult:
        if file_path not in self._files:
            return EditResult(error=f"Error: File '{file_path}' not found")

        content = self._files[file_path]

        count = content.count(old_string)

        if count == 0:
            return EditResult(error=f"old_string not found in {file_path}")

        if count > 1 and not replace_all:
            return EditResult(error=f"old_string found {count} times. Use replace_all=True or provide more context.")

        if replace_all:
            new_content = content.replace(old_string, new_string)
            occurrences = count
        else:
            new_content = content.replace(old_string, new_string, 1)
            occurrences = 1

        self._files[file_path] = new_content
        self._metadata[file_path]["modified_at"] = self._get_timestamp()

        return EditResult(path=file_path, occurrences=occurrences)

    def grep_raw(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
    ) -> list[GrepMatch] | str:
        matches: list[GrepMatch] = []
        search_path = path or "/"

        for file_path, content in self._files.items():
            if not file_path.startswith(search_path):
                continue

            if glob and not fnmatch.fnmatch(file_path, glob):
                continue

            for i, line in enumerate(content.splitlines(), start=1):
                if pattern in line:
                    matches.append(
                        {
                            "path": file_path,
                            "line": i,
                            "text": line,
                        }
                    )

        return matches

    def glob_info(
        self,
        pattern: str,
        path: str = "/",
    ) -> list[FileInfo]:
        infos: list[FileInfo] = []

        for file_path in self._files:
            if not file_path.startswith(path):
                continue

            if fnmatch.fnmatch(file_path, pattern):
                meta = self._metadata.get(file_path, {})
                infos.append(
                    {
                        "path": file_path,
                        "is_dir": False,
                        "size": len(self._files[file_path]),
                        "modified_at": meta.get("modified_at", ""),
                    }
                )

        return infos

    def upload_files(
        self,
        files: list[tuple[str, bytes]],
    ) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            try:
                self._files[path] = content.decode("utf-8")
                self._metadata[path] = {
                    "created_at": self._get_timestamp(),
                    "modified_at": self._get_timestamp(),
                }
                responses.append(FileUploadResponse(path=path, error=None))
            except Exception as e:
                responses.append(FileUploadResponse(path=path, error=str(e)))
        return responses

    def download_files(
        self,
        paths: list[str],
    ) -> list[FileDownloadResponse]:
        responses = []
        for path in paths:
            if path in self._files:
                content = self._files[path].encode("utf-8")
                responses.append(
                    FileDownloadResponse(
                        path=path,
                        content=content,
                        error=None,
                    )
                )
            else:
                responses.append(
                    FileDownloadResponse(
                        path=path,
                        content=None,
                        error="file_not_found",
                    )
                )
        return responses


class SeedS3Backend(BackendProtocol):
    """The sample of the seeds (*custom backends*, Korean), with `read`, `write` and `ls_info` alone. Its root can only
    be listed with a prefix: without one it lists keys below `/`."""

    def __init__(self, bucket: str, prefix: str = "", region: str = "us-east-1"):
        import boto3

        self._bucket = bucket
        self._prefix = prefix.rstrip("/")
        self._client = boto3.client("s3", region_name=region)

    def _to_s3_key(self, path: str) -> str:
        if path.startswith("/"):
            path = path[1:]
        if self._prefix:
            return f"{self._prefix}/{path}"
        return path

    def _from_s3_key(self, key: str) -> str:
        if self._prefix and key.startswith(self._prefix + "/"):
            key = key[len(self._prefix) + 1 :]
        return "/" + key

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        key = self._to_s3_key(file_path)

        try:
            response = self._client.get_object(Bucket=self._bucket, Key=key)
            content = response["Body"].read().decode("utf-8")

            lines = content.splitlines()
            selected = lines[offset : offset + limit]

            result_lines = []
            for i, line in enumerate(selected, start=offset + 1):
                result_lines.append(f"{i:6}\t{line}")
            return "\n".join(result_lines)

        except self._client.exceptions.NoSuchKey:
            return f"Error: File '{file_path}' not found"

    def write(self, file_path: str, content: str) -> WriteResult:
        key = self._to_s3_key(file_path)

        try:
            self._client.head_object(Bucket=self._bucket, Key=key)
            return WriteResult(error=f"Cannot write to {file_path} because it already exists.")
        except self._client.exceptions.ClientError:
            pass

        self._client.put_object(Bucket=self._bucket, Key=key, Body=content.encode("utf-8"))

        return WriteResult(path=file_path)

    def ls_info(self, path: str) -> list[FileInfo]:
        prefix = self._to_s3_key(path)
        if not prefix.endswith("/"):
            prefix = prefix + "/"

        paginator = self._client.get_paginator("list_objects_v2")
        infos: list[FileInfo] = []
        seen_dirs: set[str] = set()

        for page in paginator.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/"):
            for common_prefix in page.get("CommonPrefixes", []):
                dir_path = self._from_s3_key(common_prefix["Prefix"])
                if dir_path not in seen_dirs:
                    seen_dirs.add(dir_path)
                    infos.append({"path": dir_path, "is_dir": True, "size": 0})

            for obj in page.get("Contents", []):
                file_path = self._from_s3_key(obj["Key"])
                if file_path.endswith("/"):
                    continue
                infos.append(
                    {
                        "path": file_path,
                        "is_dir": False,
                        "size": obj["Size"],
                        "modified_at": obj["LastModified"].isoformat(),
                    }
                )

        return sorted(infos, key=lambda x: x["path"])


def sample_in_s3() -> SeedS3Backend:
    """Make the sample for `python:seed_backends:sample_in_s3`; the bucket is in the environment."""
    return SeedS3Backend(bucket=os.environ["SAMPLE_BUCKET"], prefix="agent")


@dataclass
class Answer:
    """A record with the attributes of deepagents 0.7, of another class."""

    error: str | None = None
    path: str | None = None
    entries: list | None = None
    matches: list | None = None
    file_data: dict | None = None
    content: bytes | None = None
    occurrences: int | None = None
    truncated: bool = False
    start_line: int | None = None
    end_line: int | None = None
    total_lines: int | None = None
    next_offset: int | None = None
    no_lines_requested: bool = False


def entries_below(files, path, info_of):
    """List a directory of a dict of paths: `info_of` tells more of a file."""
    base = path.rstrip("/") + "/"
    found = {}
    for name in files:
        if name.startswith(base):
            child, slash, _ = name[len(base) :].partition("/")
            found[base + child + slash] = {"path": base + child + slash, "is_dir": bool(slash)}
            if not slash:
                found[name].update(info_of(name))
    return [found[path] for path in sorted(found)]


class Deleting:
    """The verb `delete` over `files`, a dict of paths."""

    def _delete(self, file_path):
        gone = [name for name in self.files if name == file_path or name.startswith(file_path + "/")]
        for name in gone:
            del self.files[name]
        return Answer(path=file_path) if gone else Answer(error=f"Error: File '{file_path}' not found")


class DuckBackend(Deleting):
    """A backend with the verbs of deepagents 0.7 and no base class: no `move`, sizes in bytes, binary files."""

    def __init__(self, can_delete: bool = True, exact_sizes: bool = True):
        self.exact_sizes = exact_sizes
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self.clock = 0
        self.times: dict[str, str] = {}
        if not can_delete:
            self.delete = None

    def _called(self, verb):
        self.calls.append(verb)
        if verb in self.failing:
            raise ConnectionError(f"the {verb} line is cut")

    def put(self, path: str, data: bytes) -> None:
        self.clock += 1
        self.files[path] = data
        self.times[path] = f"2026-01-01T00:{self.clock // 60:02}:{self.clock % 60:02}+00:00"

    def ls(self, path):
        self._called("ls")
        entries = entries_below(
            self.files, path, lambda name: {"size": len(self.files[name]), "modified_at": self.times[name]}
        )
        if not entries and path != "/":
            return Answer(error=f"Path '{path}': path_not_found")
        return Answer(entries=entries)

    def read(self, file_path, offset=0, limit=2000):
        self._called("read")
        if file_path not in self.files:
            return Answer(error=f"File '{file_path}' not found")
        lines = self.files[file_path].decode().splitlines(keepends=True)
        chosen = lines[offset : offset + limit]
        data = {"content": "".join(chosen), "encoding": "utf-8"}
        return Answer(file_data=data, start_line=offset + 1, end_line=offset + len(chosen), total_lines=len(lines))

    def write(self, file_path, content):
        self._called("write")
        self.put(file_path, content.encode())
        return Answer(path=file_path)

    def edit(self, file_path, old_string, new_string, replace_all=False):
        self._called("edit")
        if file_path not in self.files:
            return Answer(error=f"Error: File '{file_path}' not found")
        text = self.files[file_path].decode()
        if old_string not in text:
            return Answer(error=f"Error: String not found in file: '{old_string}'")
        self.put(file_path, text.replace(old_string, new_string).encode())
        return Answer(path=file_path, occurrences=text.count(old_string))

    def grep(self, pattern, path=None, glob=None):
        self._called("grep")
        matches = []
        for name in sorted(self.files):
            if name.startswith((path or "/").rstrip("/") + "/"):
                for number, line in enumerate(self.files[name].decode("utf-8", "replace").split("\n"), start=1):
                    if pattern in line and (glob is None or fnmatch.fnmatch(name, glob)):
                        matches.append({"path": name, "line": number, "text": line})
        return Answer(matches=matches)

    def glob(self, pattern, path=None):
        self._called("glob")
        found = [name for name in self.files if fnmatch.fnmatch(name, "/" + pattern) or fnmatch.fnmatch(name, pattern)]
        return Answer(matches=[{"path": name, "size": len(self.files[name])} for name in found])

    def delete(self, file_path):
        self._called("delete")
        return self._delete(file_path)

    def upload_files(self, files):
        self._called("upload_files")
        for path, data in files:
            self.put(path, data)
        return [Answer(path=path) for path, _ in files]

    def download_files(self, paths):
        self._called("download_files")
        return [
            Answer(path=path, content=self.files[path])
            if path in self.files
            else Answer(path=path, error="file_not_found")
            for path in paths
        ]


class TextBackend(Deleting):
    """Text files in a dict, `files`, with the seeds' least: `ls_info`, `read` and `write`; more verbs one at a time.
    A caller can't get more information than the verbs return.

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

    def ls_info(self, path):
        return entries_below(self.files, path, self._size_of)

    def _size_of(self, name):
        content = self.files[name]
        return {"size": len(content.encode() if self.sizes == "bytes" else content)} if self.sizes else {}

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> object:
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


def make_text() -> TextBackend:
    """Make one for `python:seed_backends:make_text`: the three verbs, and a file with line ends that `read` hides."""
    backend = TextBackend()
    backend.files["/mixed.txt"] = "one\r\ntwo\n"
    return backend


def make_editing() -> TextBackend:
    """Make a backend for `python:seed_backends:make_editing`: it has `edit` too."""
    return TextBackend(("edit",))
