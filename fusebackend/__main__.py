"""`python -m fusebackend` is the `fusebackend` command."""

from fusebackend.cli.main import main

main(prog_name="fusebackend")
