"""Random numbers for the length of waits, so that many clients do not ask at once.

From a generator of its own: the state of the module `random` belongs to the program, which may have seeded it, and
background threads would move it.
"""

from __future__ import annotations

import random

between = random.Random().uniform
"""`between(low, high)` returns a random number from `low` to `high`. Any thread."""
