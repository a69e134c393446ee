"""`CompositeBackend` under the name that deepagents gives this module; it lives in `fusebackend.composite`."""

from fusebackend.composite import CompositeBackend

__all__ = ["CompositeBackend"]
