"""A mount as an MCP server: `fusebackend mcp`.

server.py     the server: tools (`integrations/tools.py`), files as resources, subscriptions
serving.py    over standard input and output, or over HTTP on loopback with a token
"""
