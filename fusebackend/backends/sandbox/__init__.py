"""Backends that reach their files by running commands.

base.py               `BaseSandbox`: the verbs, made from `execute` and a way to transfer bytes
scripts.py            its shell scripts; script_answers.py reads their output
hosted.py             `E2BBackend` and `ModalBackend`
docker.py             `DockerBackend`; docker_container.py, docker_exec.py, docker_engine.py are parts of it
"""
