"""Files in an agent's state, `runtime.state["files"]`: `state:`.

backend.py   `StateBackend`: the agent's verbs, over the dict as a tree of paths
"""
