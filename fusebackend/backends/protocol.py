"""The agent face and its records under deepagents' name for this module; they live in `fusebackend.protocol`."""

from fusebackend.protocol.agent import *  # noqa: F403
from fusebackend.protocol.records import *  # noqa: F403
