"""An agent destroys files with its shell in four kinds of storage, while another one works; undo brings back just that.
Then three shells work on a branch each: one is merged, one in part, and one is refused, with both sides kept.

    mkdir -p /tmp/agent && python examples/undo_everything.py /tmp/agent /tmp/undo

It mounts /repo (a volume in SQLite), /src (a directory of this machine, with a git checkout), /memories (a LangGraph
store) and /artifacts, all kept in the second directory. `--memories URL` and `--artifacts URL` put those two elsewhere:
into PostgreSQL and a bucket, say. The agents are scripts: no tool of theirs makes any of the changes, bash does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import fusebackend
from fusebackend import Actor

FUSEBACKEND = (sys.executable, "-m", "fusebackend")

REPOSITORY = 'mkdir -p repo/lib && cd repo && for i in $(seq 12); do echo "print($i)" > lib/module$i.py; done'
CHECKOUT = """
cd src && git init -q -b main . && git config user.email agent@example.org && git config user.name agent
echo 'int main(void) { return 0; }' > main.c; echo '*.o' > .gitignore; git add . && git commit -qm one
echo object > main.o; mkdir notes; echo 'not committed yet' > notes/idea.txt
"""
MEMORIES = "for i in $(seq 10); do printf 'name: user\\nlikes: tea\\n' > memories/fact$i.md; done"
ARTIFACTS = "for i in 1 2 3; do head -c 100000 /dev/urandom > artifacts/build$i.bin; done"

DAMAGE = (
    "rm -rf repo/*",
    "git -C src clean -qfdx",
    "sed -i s/tea/coffee/ memories/*.md",
    "for each in artifacts/build*.bin; do > $each; done",
)
"""What the agent's shell runs, a tool call each."""


BRANCHES = {
    "port": """
        sed -i 's/print/log/' repo/lib/*.py
        git -C src mv main.c app.c && git -C src commit -qm 'Rename the program'
        sed -i s/tea/mate/ memories/fact1.md
        head -c 50000 /dev/urandom > artifacts/port.bin
    """,
    "tidy": "mkdir repo/docs; echo '# Modules' > repo/docs/index.md; rm -r artifacts/*.bin src/notes memories/fact?.md",
    "rival": "sed -i 's/print/echo/' repo/lib/module1.py; echo 'likes: coffee' > memories/fact1.md; rm src/main.c",
}
"""What the shell of each branch runs. `rival` changes files that `port` changes, too."""


def bash(script: str, cwd: Path) -> None:
    """Run a script as a shell tool does: in a session of its own."""
    subprocess.run(["bash", "-euc", script], cwd=cwd, check=True, start_new_session=True)


def tool_call(number: int, command: str, mount: Path) -> None:
    """Run a command as Claude Code does: with its hooks before and after it (`fusebackend hook claude-code`)."""
    told = {
        "session_id": "demo",
        "cwd": str(mount),
        "tool_name": "Bash",
        "tool_input": {"command": command},
        "tool_use_id": f"toolu_{number}",
    }
    for when in ("pre", "post"):
        hook = [*FUSEBACKEND, "hook", "run", when, "--agent", "cleaner"]
        subprocess.run(hook, input=json.dumps(told), text=True, check=True)
        if when == "pre":
            bash(command, mount)


class Colleague:
    """Another agent, which writes files in the same directories until it is stopped."""

    def __init__(self, mount: Path) -> None:
        self.written: dict[Path, str] = {}
        self._mount = mount
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Colleague:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        number = 0
        with fusebackend.connect(self._mount, actor=Actor(agent="colleague")) as files:
            while not self._stop.wait(0.05):
                number += 1
                for directory in ("colleague", "memories", "artifacts"):
                    text, path = f"{number}\n", f"/{directory}/colleague{number}.txt"
                    answer = files.write(path, text)
                    if answer.error is not None:
                        raise RuntimeError(answer.error)
                    self.written[self._mount / path[1:]] = text


def contents(mount: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and directory but the colleague's, with its mode and bytes; git's index has changing times in it."""
    found = {}
    for top in ("repo", "src", "memories", "artifacts"):
        for path in sorted((mount / top).rglob("*")):
            if "colleague" not in path.name and path.name != "index":
                data = path.read_bytes() if path.is_file() else b""
                found[str(path.relative_to(mount))] = (path.stat().st_mode, data)
    return found


def show(*words: str, cwd: Path) -> None:
    """Print a command and its output."""
    print(f"\n$ fusebackend {' '.join(words)}", flush=True)
    subprocess.run([*FUSEBACKEND, *words], cwd=cwd, check=True)


def read(top: Path, *paths: str) -> list[bytes | None]:
    """Return the bytes of files, None where there is none."""
    return [(top / path).read_bytes() if (top / path).exists() else None for path in paths]


def branch(mount: Path) -> None:
    """Let three shells work on three branches at once, and merge them."""
    with fusebackend.connect(mount) as files:
        for name in BRANCHES:
            files.create_branch(name)
    before = contents(mount)
    shells = [
        subprocess.Popen([*FUSEBACKEND, "shell", "--branch", name, "--", "bash", "-euc", script], cwd=mount)
        for name, script in BRANCHES.items()
    ]
    codes = [shell.wait() for shell in shells]
    if any(codes):
        raise RuntimeError("a shell has failed")
    if contents(mount) != before:
        raise RuntimeError("the branches have changed the mount")
    port, rival = (mount / ".fusebackend/branches" / name for name in ("port", "rival"))
    show("diff", "main..rival", "--stat", "--", "repo", "src", cwd=mount)
    show("branch", "merge", "port", cwd=mount)
    both = ("repo/lib/module1.py", "src/main.c", "src/app.c", "memories/fact1.md", "artifacts/port.bin")
    if read(mount, *both) != read(port, *both):
        raise RuntimeError("the merge has not made all changes")
    show("branch", "merge", "tidy", "--", "repo/docs", cwd=mount)
    if None in read(mount, "repo/docs/index.md", "artifacts/build1.bin", "src/notes/idea.txt", "memories/fact2.md"):
        raise RuntimeError("more or less than repo/docs was merged")
    before, ours = contents(mount), read(rival, *both)
    print("\n$ fusebackend branch merge rival", flush=True)
    refused = subprocess.run([*FUSEBACKEND, "branch", "merge", "rival"], cwd=mount)
    if refused.returncode == 0 or contents(mount) != before or read(rival, *both) != ours:
        raise RuntimeError("the merge of both sides' changes was not refused")


def work(mount: Path) -> None:
    for script in (REPOSITORY, CHECKOUT, MEMORIES, ARTIFACTS):
        bash(script, mount)
    before = contents(mount)
    with Colleague(mount) as colleague:
        for number, command in enumerate(DAMAGE, start=1):
            tool_call(number, command, mount)
        if contents(mount) == before:
            raise RuntimeError("nothing was damaged")
        with fusebackend.connect(mount) as files:
            calls = [each.call for each in files.log(by="cleaner")]
        show("log", "--by", "cleaner", cwd=mount)
        show("diff", calls[-1], "--stat", cwd=mount)
        began = time.monotonic()
        show("undo", *calls, cwd=mount)
        took_s = time.monotonic() - began
        if contents(mount) != before:
            raise RuntimeError("not everything is as it was before")
        branch(mount)
    lost = [path for path, text in colleague.written.items() if path.read_text() != text]
    if lost:
        raise RuntimeError(f"files of the colleague were changed: {lost}")
    print(f"\n{len(calls)} calls taken back in {took_s:.1f} s; {len(colleague.written)} files of the colleague are as "
          "it wrote them")  # fmt: skip


def main(arguments: list[str]) -> None:
    usage = "undo_everything.py MOUNTPOINT DIRECTORY [--memories URL] [--artifacts URL]"
    if not arguments:
        sys.exit(f"usage: {usage}")
    parser = argparse.ArgumentParser(usage=usage)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--memories")
    parser.add_argument("--artifacts")
    given = parser.parse_args(arguments)
    mount, kept = given.mountpoint.absolute(), given.directory.absolute()
    shutil.rmtree(kept, ignore_errors=True)
    for name in ("src", "artifacts"):
        (kept / name).mkdir(parents=True)
    routes = {
        "/repo/": f"sqlite:{kept}/repo.db",
        "/src/": f"dir:{kept}/src",
        "/memories/": given.memories or f"store+sqlite:{kept}/store.db?ns=memories",
        "/artifacts/": given.artifacts or f"dir:{kept}/artifacts",
    }
    words = [word for prefix, url in routes.items() for word in ("--route", f"{prefix}={url}")]
    os.environ.update(XDG_STATE_HOME=str(kept / "state"), XDG_DATA_HOME=str(kept / "data"))
    subprocess.run([*FUSEBACKEND, "mount", str(mount), "--default", f"sqlite:{kept}/default.db", *words], check=True)
    try:
        work(mount)
    finally:
        subprocess.run([*FUSEBACKEND, "umount", str(mount)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
