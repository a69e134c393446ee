"""Files in an agent's state, `runtime.state["files"]`: `state:`."""
