"""`fusebackend threads du` and `fusebackend threads prune`: what takes the space in a checkpoint database, and how to
have it back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

import click

from fusebackend import urls
from fusebackend.backends.threads.backend import database_of
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.backends.threads.prune import Keep, media_in, prune, weighed, with_media
from fusebackend.cli.progress import progress
from fusebackend.cli.show import Complaints, Failed, Output, aligned, confirm_loss, json_option
from fusebackend.cli.space import size_text
from fusebackend.protocol import PrunedThread
from fusebackend.trees.refs import time_ns


@click.group()
def threads() -> None:
    """Show what takes the space in a checkpoint database of LangGraph, and prune its threads.

    DATABASE is threads+sqlite:PATH, threads+postgres:DSN, or just the PATH of an SQLite file. It may be mounted, and
    agents may run.
    """


@threads.command()
@click.argument("database")
@click.argument("names", nargs=-1, metavar="[THREAD]...")
@click.option("--by", type=click.Choice(["channel", "step", "namespace"]), help="Take each thread apart.")
@click.option(
    "--blobs",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Count the media that deepagents keeps in this directory 'blobs' as well.",
)
@json_option(
    "an array of {thread, name, bytes}; name is null without --by, and thread for a medium that no message names."
)
def du(database: str, names: Sequence[str], by: str | None, blobs: str | None, output: Output) -> None:
    """Show the bytes of threads, the largest first: checkpoints, writes, and values that are kept beside them.

    In SQLite a checkpoint has the values of all its channels and is not taken apart: with --by channel these are
    '(checkpoints)'. In PostgreSQL a value beside the checkpoints may be of many steps: with --by step these are
    '(blobs)'.

    Media that several threads name count for each. What no message names is listed at the end: the thread was pruned,
    or a run is about to name it. It is never deleted here.
    """
    unnamed: dict[str, int] = {}
    with closing(_opened(database)) as opened:
        sizes = weighed(opened, names, by)
        if blobs is not None:
            sizes, unnamed = with_media(opened, sizes, by, media_in(blobs))
    if missing := set(names) - {one.thread for one in sizes}:
        raise Failed(f"there is no thread '{sorted(missing)[0]}'")
    left = [{"thread": None, "name": digest, "bytes": size} for digest, size in unnamed.items()]
    output.document([asdict(one) for one in sizes] + left)
    shown = [[size_text(one.bytes), output.told(one.thread), output.told(one.name or "")] for one in sizes]
    shown += [[size_text(size), "(no message)", digest] for digest, size in unnamed.items()]
    output.lines(aligned(shown))


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """In ns since 1970."""
    return None if value is None else time_ns(value)


@threads.command("prune")
@click.argument("database")
@click.argument("names", nargs=-1, metavar="[THREAD]...")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N checkpoints of each thread.")
@click.option(
    "--older", callback=_time, metavar="TIME", help="Delete what is older, such as 30d; the newest one stays."
)
@click.option("--keep-step", multiple=True, metavar="ID", help="Keep the checkpoint of this id, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Delete nothing; print what would go.")
@click.option("--vacuum", is_flag=True, help="Give the space back to the disk. Nobody can write meanwhile.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("an array of {thread, checkpoints, bytes, kept, links, held_bytes}.")
def prune_threads(
    database: str,
    names: Sequence[str],
    keep: int | None,
    older: int | None,
    keep_step: Sequence[str],
    dry_run: bool,
    vacuum: bool,
    yes: bool,
    output: Output,
) -> None:
    """Delete checkpoints of threads, of all threads where none is named, while agents run.

    What is kept reads as before: with the checkpoints that its values follow from (links), those of its sub-graphs, and
    all that waits for an answer. Whatever is younger than ten minutes stays. A link has some channels: the others
    are an error in history/, LangGraph finds nothing there, and its metadata names them. Do not go on from one.

    The space goes back to the database, and to the disk with --vacuum only: that takes as much room as the database
    beside it. What is deleted can't be had back, so on a terminal it asks first; elsewhere it needs --yes. After a kill
    the same command goes on.
    """
    if (keep is None) == (older is None):
        raise click.UsageError("give one of --keep and --older")
    chosen = Keep(keep or 1, older, frozenset(keep_step))
    complaints = Complaints()
    with closing(_opened(database)) as opened:
        wanted = names or [thread for thread, _ in opened.threads()]
        found = _each(opened, wanted, chosen, complaints, output.json, dry_run=True)
        if not dry_run:
            confirm_loss("what is pruned", f"Delete {_words(found)}", yes)
            found = _each(opened, [one.thread for one in found], chosen, complaints, output.json, dry_run=False)
            if vacuum:
                with progress("compacting", quiet=output.json):
                    opened.vacuum()
    output.document([asdict(one) for one in found])
    output.line(f"{'would delete' if dry_run else 'deleted'} {_words(found)}")
    if not vacuum and any(one.bytes for one in found):
        output.note("the space goes back to the database; to the disk only with --vacuum")
    complaints.finish()


def _each(
    opened: SaverTables, names: Sequence[str], keep: Keep, complaints: Complaints, quiet: bool, *, dry_run: bool
) -> list[PrunedThread]:
    """Prune each thread that can be read."""
    found = []
    with progress("reading" if dry_run else "pruning", quiet=quiet):
        for name in names:
            with complaints:
                found.append(prune(opened, name, keep, dry_run=dry_run))
    return found


def _words(found: Sequence[PrunedThread]) -> str:
    return (
        f"{sum(one.checkpoints for one in found):,} checkpoints, {size_text(sum(one.bytes for one in found))}; "
        f"{sum(one.kept for one in found):,} stay, and {sum(one.links for one in found):,} with "
        f"{size_text(sum(one.held_bytes for one in found))} that these follow from"
    )


def _opened(text: str) -> SaverTables:
    """The database of a URL, or of a path."""
    return database_of(urls.parse(text if text.startswith("threads+") else f"threads+sqlite:{text}"))
