"""Text that is made from declarations, for `declared.py`: stubs, and parts of pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by scripts/declared.py -->", "<!-- end -->"


def formatted(stub: str) -> str:
    """Return a stub as ruff formats it, with the imports that it needs."""
    for asked in (["check", "--quiet", "--fix-only", "--select=I,F401,W"], ["format"]):
        ruff = [Path(sys.executable).with_name("ruff"), *asked, "--stdin-filename=made.pyi", "-"]
        stub = subprocess.run(ruff, input=stub, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return stub


def filled(page: str, lines: Iterable[str]) -> str:
    """Return a page of the documentation with its part that is made."""
    before, _, rest = (ROOT / page).read_text().partition(BEGIN)
    made = re.sub("\n{3,}", "\n\n", "\n".join(lines).strip("\n"))
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
