"""`fusebackend check`: check the storage of a volume, and repair it. The fsck of `sqlite:` volumes.

Exit status, as of fsck(8): 0 nothing is wrong, 1 all that was wrong has been mended, 4 something is still wrong, 8 the
volume could not be looked at.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from fusebackend.cli.progress import waiting
from fusebackend.cli.show import Complaints, Failed, Output, json_option, note
from fusebackend.cli.target import complete_volume
from fusebackend.urls import opening as urls

CLEAN, MENDED, LEFT, FAILED = 0, 1, 4, 8


class Verdict(NamedTuple):
    """The damage that was `found`, the damage that is `left`, and the number of files put into `/lost+found`."""

    found: list[str]
    left: list[str]
    rescued: int = 0

    @property
    def status(self) -> int:
        if self.left:
            return LEFT
        return MENDED if self.found else CLEAN


@click.command()
@click.argument("url", shell_complete=complete_volume)
@click.option("--repair", is_flag=True, help="Repair damage. No other process may have the volume open.")
@json_option("an object {url, problems, left, rescued, status}; problems and left are arrays of lines.")
def check(url: str, repair: bool, as_json: bool) -> None:
    """Check the file of a volume: URL is sqlite:PATH, or just the PATH of such a file.

    Each problem is one line. A volume that is mounted is checked as of its last flush; it can be mended when it is
    unmounted. Files with data that have lost their names are put into /lost+found.

    The exit status is that of fsck: 0 nothing is wrong, 1 all of it has been mended, 4 something is still wrong, 8 the
    volume could not be looked at.
    """
    complaints = Complaints(exit_code=FAILED)
    verdict = None
    with complaints, waiting("checking", quiet=as_json):
        verdict = _judge(url, repair)
    if verdict is not None:
        output = Output()
        if as_json:
            output.document(
                {
                    "url": urls.mask(url),
                    "problems": verdict.found,
                    "left": verdict.left,
                    "rescued": verdict.rescued,
                    "status": verdict.status,
                }
            )
        else:
            _show(output, verdict, repair)
    complaints.finish(verdict.status if verdict is not None else CLEAN)


def _judge(text: str, repair: bool) -> Verdict:
    try:
        url = urls.for_path("sqlite", os.path.abspath(text)) if os.path.isfile(text) else urls.parse(text)
    except urls.UrlError as error:
        if ":" not in text:
            raise Failed(f"there is no file '{text}'; write the path of a volume's file, or sqlite:PATH") from None
        raise Failed(str(error)) from None
    if url.scheme != "sqlite":
        raise Failed(f"'{url.masked}': only the file of a 'sqlite:' volume can be checked")
    if repair:
        from fusebackend.backends.sqlite import repair as sqlite_repair

        return Verdict(*sqlite_repair.repair(url.rest))
    from fusebackend.backends.sqlite import check as sqlite_check

    found = sqlite_check.check(url.rest)
    return Verdict(found, found)


def _show(output: Output, verdict: Verdict, repair: bool) -> None:
    for line in verdict.found:
        output.line(line)
    if not verdict.found:
        output.line("the volume is sound")
        return
    if not repair:
        note("--repair mends what can be mended")
        return
    new = [line for line in verdict.left if line not in verdict.found]
    for line in new:
        output.line(line)
    if verdict.left:
        note(f"still wrong: {len(verdict.left)}; a copy from before is better than what is left here")
    else:
        note("all of it has been mended")
    if verdict.rescued:
        note(f"put into /lost+found: {verdict.rescued}")
