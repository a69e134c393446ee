"""The control socket: every verb of a live mount for any program of the same user.

`wire` frames and checks messages, `verbs` is the table of what can be asked, `server` answers, `client` asks, and
`rendezvous` is where they meet. `docs/control-protocol.md` describes the wire for other languages.
"""
