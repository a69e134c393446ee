"""`PgSnapshot`: which transactions were over at a moment, as PostgreSQL's `pg_snapshot` has it.

Transactions get ascending numbers when they first write, and end in any order. So a number alone is no position in the
order of commits: those below `xmin` were over, those from `xmax` on had not begun, and those in `running` were under
way. What has become visible since is exactly what has a number from `xmax` on, or one in `running`.
"""

from __future__ import annotations

from typing import NamedTuple


class PgSnapshot(NamedTuple):
    """See the module's docstring."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """The value of a `pg_snapshot` such as `10:20:10,14`. ValueError if it is none."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether the transaction was over, as `pg_visible_in_snapshot`."""
        return xid < self.xmax and xid not in self.running

    def covers(self, other: PgSnapshot) -> bool:
        """Whether every transaction that was over in `other` was over here."""
        return self.xmax >= other.xmax and not any(other.sees(xid) for xid in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"
