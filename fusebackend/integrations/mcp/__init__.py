"""A mount as an MCP server: `fusebackend mcp`.

tools.py      verbs, the log, undo and branches as tools: a table of functions
server.py     the server: tools, files as resources, subscriptions
serving.py    over standard input and output, or over HTTP on loopback with a token
"""
