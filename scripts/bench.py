"""Run a benchmark: `scripts/bench --WORD OPTIONS`, and `--help` after a word for its options.

Without a word it is `--mount`. `--all` runs all comparisons with other mounts in turn, those that take the options.
Never part of a test: numbers are not promises.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from driver import REGISTERED, Benchmark, Run

COMPARISONS = ("mount", "large", "parallel", "growth")

for module in (
    "bench_mount", "bench_comparisons", "bench_agent", "bench_trees", "bench_routes", "bench_postgres", "bench_hosts",
    "bench_many_hosts", "bench_s3",
):  # fmt: skip
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        print(f"without {module}: {error} (scripts/bootstrap --bench)", file=sys.stderr)


def main(words: Sequence[str]) -> None:
    """Run the benchmarks that the words of a command line name; a wrong word ends it before anything is measured."""
    named = [REGISTERED[word[2:]] for word in words if word[2:] in REGISTERED and word.startswith("--")]
    options = [word for word in words if word != "--all" and not (word[2:] in REGISTERED and word.startswith("--"))]
    if not named and {"-h", "--help"} & set(options):
        print(__doc__)
        print(*(f"  --{each.name:12} {each.about}" for each in REGISTERED.values()), sep="\n")
        return
    everything = "--all" in words and not named
    chosen = named or [REGISTERED[name] for name in (COMPARISONS if everything else COMPARISONS[:1])]
    for each, run in runs(chosen, options, everything=everything):
        each.run(run)


def runs(chosen: Sequence[Benchmark], options: Sequence[str], *, everything: bool) -> list[tuple[Benchmark, Run]]:
    """Parse the options for each benchmark. Of all comparisons those run that take these options."""
    found, unknown = [], []
    for each in chosen:
        run, rest = each.parse(["--peers", "all", *options] if everything and each.name == "mount" else options)
        if rest:
            unknown.append((each, rest))
        else:
            found.append((each, run))
    if unknown and not (everything and found):
        each, rest = unknown[0]
        each.parser().error(f"unrecognized: {' '.join(rest)}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
