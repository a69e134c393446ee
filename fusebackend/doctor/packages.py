"""Python packages of the extras."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from fusebackend.base.extras import EXTRA_OF
from fusebackend.doctor.finding import Finding, ok


def extras() -> Iterable[Finding]:
    """Say which extras are installed. A route that needs one that is missing says so itself."""
    missing = sorted({extra for module, extra in EXTRA_OF.items() if not _is_there(module)})
    have = sorted(set(EXTRA_OF.values()) - set(missing))
    lines = [f"installed: {', '.join(have) or 'none'}"]
    if missing:
        lines.append(f"not installed: {', '.join(missing)} (pip install 'fusebackend[NAME]')")
    return [ok("extras", "; ".join(lines))]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a package above it; one that was put into sys.modules as None
        return False
