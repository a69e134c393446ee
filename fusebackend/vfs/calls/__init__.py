"""Calls into one volume.

executor.py  `RouteExecutor`: inline, or in threads under a deadline; `CircuitBreaker` fails calls while a route is down
request.py   the thread and user of the request that a task answers
"""
