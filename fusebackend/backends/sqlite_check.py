"""`fusebackend.backends.sqlite_check`, as SEMANTICS.md calls it; it lives in `fusebackend.backends.sqlite.check`."""

import sys

from fusebackend.backends.sqlite.check import check, main

__all__ = ["check", "main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
