"""A LangGraph checkpoint database as a tree: every thread, its files now, and its files at each checkpoint.

    /<thread>/head/…                                  the files now
    /<thread>/history/<time>-<step>-<source>/…        the files at each checkpoint
    /<thread>/messages.jsonl  /<thread>/state.json    the conversation, and the rest of the state
    /<thread>/subgraphs/<namespace>/…                 the same for each namespace of sub-graphs, where there are any

The tables of SqliteSaver and PostgresSaver are read directly: neither the agent's code nor LangGraph is needed.
"""

from fusebackend.backends.threads.backend import ThreadsBackend

__all__ = ["ThreadsBackend"]
