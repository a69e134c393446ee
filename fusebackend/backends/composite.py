"""`CompositeBackend` under the name that deepagents gives this module; it lives in `fusebackend.composite.backend`."""

from fusebackend.composite.backend import CompositeBackend

__all__ = ["CompositeBackend"]
