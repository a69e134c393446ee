"""Backends that reach their files by running commands.

base.py               `BaseSandbox`: the verbs, made from `execute`, `upload_files` and `download_files`
scripts.py            its shell scripts; script_answers.py reads their output
staged.py             `StagedSandbox`, for sandboxes with plain transports
hosted.py             `E2BBackend` and `ModalBackend`
docker.py             `DockerBackend`; docker_container.py, docker_exec.py, docker_engine.py are parts of it
"""
