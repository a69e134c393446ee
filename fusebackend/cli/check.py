"""`fusebackend check`: check the storage of a volume, repair it, and make it smaller. The fsck of `sqlite:` volumes.

Exit status, as of fsck(8): 0 nothing is wrong, 1 all that was wrong has been mended, 4 something is still wrong, 8 the
volume could not be looked at.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from fusebackend import urls
from fusebackend.cli.progress import progress
from fusebackend.cli.show import Complaints, Failed, Output, json_option
from fusebackend.cli.target import complete_volume

if TYPE_CHECKING:
    from fusebackend.backends.sqlite.check import Repair

CLEAN, MENDED, LEFT, FAILED = 0, 1, 4, 8


@click.command()
@click.argument("url", shell_complete=complete_volume)
@click.option("--repair", is_flag=True, help="Repair damage. No other process may have the volume open.")
@click.option("--compact", is_flag=True, help="Give free space back to the disk. No process may have the volume open.")
@json_option("an object {url, problems, left, rescued, status, bytes}; problems and left are arrays of lines.")
def check(url: str, repair: bool, compact: bool, output: Output) -> None:
    """Check the file of a volume: URL is sqlite:PATH, or just the PATH of such a file.

    Each problem is one line. A volume that is mounted is checked as of its last flush; it can be mended when it is
    unmounted. Files with data that have lost their names are put into /lost+found.

    With --compact a sound volume is made as small as it can be, which takes as much room as the file beside it, and
    once more for temporary files ($SQLITE_TMPDIR, else /var/tmp). A kill leaves the old file or the new one.

    The exit status is that of fsck: 0 nothing is wrong, 1 all of it has been mended, 4 something is still wrong, 8 the
    volume could not be looked at.
    """
    complaints = Complaints(exit_code=FAILED)
    status = CLEAN
    with complaints:
        with progress("checking", quiet=output.json):
            verdict = _judge(url, repair, compact)
        if verdict.found:
            status = LEFT if verdict.left else MENDED
        output.document(
            {
                "url": urls.mask(url),
                "problems": verdict.found,
                "left": verdict.left,
                "rescued": verdict.rescued,
                "status": status,
                "bytes": verdict.sizes,
            }
        )
        _show(output, verdict, repair, compact)
    complaints.finish(status)


def _judge(text: str, repair: bool, compact: bool) -> Repair:
    if os.path.isdir(text):
        raise Failed(f"'{text}' is a directory: only the file of a 'sqlite:' volume can be checked")
    try:
        url = urls.for_path("sqlite", os.path.abspath(text)) if os.path.isfile(text) else urls.parse(text)
    except urls.UrlError as error:
        if ":" not in text:
            raise Failed(f"there is no file '{text}'; write the path of a volume's file, or sqlite:PATH") from None
        raise Failed(str(error)) from None
    if url.scheme != "sqlite":
        raise Failed(f"'{url.masked}': only the file of a 'sqlite:' volume can be checked")
    from fusebackend.backends.sqlite import check as sqlite_check

    if repair:
        verdict = sqlite_check.repair(url.rest)
    else:
        found = sqlite_check.check(url.rest)
        verdict = sqlite_check.Repair(found, found)
    if compact and not verdict.left:
        verdict = verdict._replace(sizes=sqlite_check.compact(url.rest))
    return verdict


def _show(output: Output, verdict: Repair, repair: bool, compact: bool) -> None:
    output.lines(verdict.found or ["the volume is sound"])
    if verdict.sizes is not None:
        before, after = verdict.sizes
        output.line(f"the file had {before} bytes, and has {after} now")
    if not verdict.found:
        return
    if not repair:
        output.note(
            "--repair mends what can be mended; --compact needs a sound volume"
            if compact
            else "--repair mends what can be mended"
        )
        return
    output.lines(line for line in verdict.left if line not in verdict.found)
    if verdict.left:
        output.note(f"still wrong: {len(verdict.left)}; a copy from before is better than what is left here")
    else:
        output.note("all of it has been mended")
    if verdict.rescued:
        output.note(f"put into /lost+found: {verdict.rescued}")
