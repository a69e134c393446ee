"""Bridges to other packages, each an optional extra that is imported when it is used.

anthropic_memory.py  Anthropic's memory tool over any backend
approving.py         `approving`: approvals as interrupts of a LangGraph graph
deepagents.py        `export` and `adopt`: backends for deepagents, and from there
exported.py          `Exported`, the one module that imports deepagents
mcp.py               a mount as an MCP server
fsspec_filesystem.py `fusebackend://` of fsspec: the files of a mount for pandas, pyarrow, dask
memory_files.py      `fusebackend.memory`: files that an agent is given at the start
openai_agents.py     OpenAI's Agents SDK over any backend: patches, commands, verbs
texts.py             `Texts`: changes of text files that lose no others
tools.py             verbs, the log, undo and branches as tools for models: a table of functions
"""
