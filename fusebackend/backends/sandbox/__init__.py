"""Backends whose files are reached by running commands: `BaseSandbox`, and what is built on it.

`base.py` makes the verbs, from the shell scripts in `scripts.py`, whose answers `script_answers.py` reads. `staged.py`
is for sandboxes with plain transports, and so for Docker, E2B and Modal.
"""
