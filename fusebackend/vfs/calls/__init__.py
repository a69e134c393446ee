"""The way into one volume.

executor.py         `Offload`: inline, or in threads under a deadline
route_limits.py     how long, and how many at once
circuit_breaker.py  `Health`: is a route asked at all?
retry.py            a call whose connection was lost
request.py          whose request is being answered
route_guard.py      the agent face of a route, under the same limits
"""
