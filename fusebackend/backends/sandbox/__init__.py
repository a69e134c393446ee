"""Backends that reach their files by running commands.

base.py               `BaseSandbox`: the verbs, made from `execute` and a way to transfer bytes
scripts.py            its shell scripts, and what reads their output
hosted.py             `E2BBackend` and `ModalBackend`
docker.py             `DockerBackend` and its container
docker_exec.py        runs commands in it
"""
