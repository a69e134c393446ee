"""One corpus for searches of every kind, and the patterns, globs and paths of the searches."""

from __future__ import annotations

LONG = "0123456789abcdef" * 300

PLAIN: dict[str, bytes] = {
    "/README.md": b"# Needle\n\nA needle in a haystack.\n",
    "/notes.txt": "needle\nnaïve café\n日本語のneedle\n\ttab\tneedle\n".encode(),
    "/empty.txt": b"",
    "/one line": b"no newline at the end: needle",
    "/src/main.py": b"import needle\n\n\ndef find(x):\n    return needle.find(x)  # [a-z]*\n",
    "/src/lib/deep/util.py": b"def util():\n    pass\n" * 30 + b"# foo_bar(baz); -> {x}\n",
    "/src/lib/long.txt": b"%s\nneedle %s end\n" % (LONG.encode(), LONG.encode()),
    "/data/log.txt": b"".join(b"line %05d of the log\n" % number for number in range(4000)),
    "/data/border.txt": b"." * 65533 + b"needle\n" + b"." * 65530 + b"needle\n",
    "/a b/c d.txt": b"spaces  and $pecial ^chars\\ \"quoted\" 'single'\n",
}
"""Text on which grep, ripgrep and backends of any kind agree: UTF-8, ordinary line ends, no hidden names."""

ODD: dict[str, bytes] = {
    "/.hidden/.secret.txt": b"needle in hiding\n",
    "/.gitignore": b"*.txt\n",
    "/data/binary.bin": b"needle\n\0\1\2",
    "/data/late.bin": b"needle\n" * 2000 + b"\0",
    "/data/latin1.txt": b"needle \xe9t\xe9\n",
    "/data/cut.txt": b"needle \xe6\x97",
    "/crlf.txt": b"needle one\r\nneedle two\r\n",
    "/feed.txt": "needle\x0cstill one\x0b line\u2028needle\x85\r end\n".encode(),
    "/bom.txt": b"\xef\xbb\xbfneedle\n",
    "/new\nline.txt": b"needle\n",
    "/\udcff.txt": b"needle of a name that is no text\n",
}
"""Files on which this package's rules differ from those of other programs."""

PATTERNS = (
    "needle", "n", "ne", "nee", "of the log", "absent", "日本語", "..........needle", "(", LONG, "needle.find",
    "-> {x}", "edle", "Needle", "import needle", "[a-z]*", "foo_bar(baz)", "  and", "\t", "naïve", "é", "日", "のneed",
    "line 03999", "\\", '"quoted"', "$pecial ^", "--help", "-e", "needle " + LONG, "f" + "0123456789abcdef" * 4,
    "needle in a haystack.",
)  # fmt: skip

ODD_PATTERNS = (
    "",
    "\r",
    "one\r",
    "\n",
    "needle\n",
    "\0",
    "\ud800",
    "\x0c",
    "\u2028needle",
    "\ufeff",
    "hiding",
    "\x85",
    "été",
)

GLOBS = (None, "*.txt", "*.py", "src/**/*.py", "/notes.txt", "**/*.txt", "{README.md,*.py}", "[nd]*", "data/*", "*.rs")
NAME_GLOBS = (None, "*.txt", "*.py", "*.rs", "*")
"""Globs that mean the same to `fnmatch` over the whole path."""

PATHS = (None, "/", "/src", "/src/lib", "/data", "/a b", "/notes.txt", "/data/log.txt", "/nowhere")

MAX_COUNTS = (0, 1, 3, 10, 4000, 100_000)
