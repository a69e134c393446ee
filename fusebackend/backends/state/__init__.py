"""Files in an agent's state, `runtime.state["files"]`: `state:`.

backend.py       `StateBackend`, the agent's verbs
files.py         the dict as a tree of paths
"""
