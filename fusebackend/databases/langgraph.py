"""LangGraph's stores and checkpointers: their classes, their databases, their errors; and the state of a running graph.

LangGraph is never imported where nothing else has imported it.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from fusebackend.databases.dsn import LIBPQ_WORDS


def loaded_class(module: str, name: str) -> Any:
    """A class, None where nothing has imported its module: no object can be of it then."""
    return getattr(sys.modules.get(module), name, None)


def sqlite_path(connection: Any) -> str:
    """The file of an SQLite connection; empty for a database in memory."""
    return next((row[2] or "" for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")


def dsn_of(connection: Any) -> str:
    """The DSN that a connection of psycopg, or a pool, was made with."""
    from psycopg.conninfo import make_conninfo

    if hasattr(connection, "getconn"):  # a pool
        words = {
            name: value
            for name, value in dict(connection.kwargs or {}).items()
            if name in ("host", "hostaddr", "dbname", *LIBPQ_WORDS)
        }
        return str(make_conninfo(connection.conninfo, **words))
    info = connection.info
    return str(make_conninfo(**{**info.get_parameters(), "password": info.password or None}))


@contextlib.contextmanager
def translate_errors(noun: str) -> Iterator[None]:
    """Raise any error of an object that `noun` names, which may be of any library, as an `OSError` with its message."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, f"{noun} can't do this: {error}") from error
    except Exception as error:
        raise OSError(errno.EIO, f"{noun} failed: {type(error).__name__}: {error}") from error


# -- the graph that is running here ------------------------------------------------------------------------------
#
# The state of the LangGraph graph that is running here, as a backend's runtime has it.
#
# `GRAPH_STATE` is a mapping over the channels of that graph, whichever it is: reading asks LangGraph for the state with
# this node's own writes in it, and `state["files"] = files` sends what differs from it, a deleted path as None. That is
# how deepagents 0.7 keeps files, so its reducer, or any that merges updates the same way, makes both see the same.
#
# `GraphRuntime` is a runtime around it, for the backend factories of the seeds (`lambda rt: StoreBackend(rt)`).
# `LateRuntime` is the one of a backend that was given none.
#
# LangGraph is used only if it is imported already: else no graph runs.

READ_KEY, SEND_KEY = "__pregel_read", "__pregel_send"
"""Where a node finds LangGraph's functions in its config (`CONFIG_KEY_READ` and `CONFIG_KEY_SEND`); a test holds the
values to LangGraph's own, which are in a private module."""

FILES = "files"
"""The key of the state that files are under, in the seeds and in deepagents."""

NOT_MERGING = (
    f"'{FILES}' in the graph's state does not merge updates, so files are lost: give it a reducer that does, as "
    "deepagents' FilesystemState has"
)

NOT_TEXT = "Names in a graph's state must be UTF-8: its checkpoints hold nothing else"


class GraphStateError(OSError):
    """The state can't be read or written; the text says how to mend it."""

    def __init__(self, text: str, number: int = errno.ENOTCONN) -> None:
        super().__init__(number, text)


def graph_config() -> Mapping[str, Any] | None:
    """The `configurable` of the node that runs in this context; None outside of a graph."""
    if "langgraph" not in sys.modules:
        return None
    from langgraph.config import get_config

    try:
        configurable: Mapping[str, Any] = get_config().get("configurable") or {}
    except RuntimeError:  # LangGraph's word for: no graph
        return None
    return configurable if READ_KEY in configurable and SEND_KEY in configurable else None


def files_channel_here() -> bool:
    """True inside of a running graph with a key for files in its state."""
    try:
        GRAPH_STATE[FILES]
    except GraphStateError:
        return False
    return True


class GraphState(MutableMapping[str, Any]):
    """See the comment above. There is one, for it holds nothing itself.

    Raises:
        GraphStateError: no graph is running here, its state has no files, or an update did not arrive.
        KeyError: the graph's state has no such key; any but the files.
    """

    def __getitem__(self, key: str) -> Any:
        read = self._config()[READ_KEY]
        from langgraph.errors import InvalidUpdateError

        try:
            value = read(key, True)  # True: with the updates that this node has sent
        except KeyError:
            if key != FILES:
                raise
            raise GraphStateError(f"The state of the graph that is running here has no '{FILES}'") from None
        except InvalidUpdateError:
            raise GraphStateError(NOT_MERGING, errno.EIO) from None
        return {} if value is None and key == FILES else value

    def __setitem__(self, key: str, value: Any) -> None:
        """Send `files`, the whole of them as they should be now; of these only what has changed."""
        if key != FILES:
            raise KeyError(f"only '{FILES}' can be written to a graph's state from here, not '{key}'")
        before = self[FILES]
        update = {path: record for path, record in value.items() if before.get(path) is not record}
        update |= {path: None for path in before if path not in value}
        if not update:
            return
        try:
            "".join(map(str, update)).encode()
        except UnicodeEncodeError:
            raise GraphStateError(NOT_TEXT, errno.EILSEQ) from None
        self._config()[SEND_KEY]([(FILES, update)])
        if self[FILES].keys() != value.keys():
            raise GraphStateError(NOT_MERGING, errno.EIO)

    def __delitem__(self, key: str) -> None:
        raise KeyError(f"a graph's state keeps its key '{key}'")

    def __iter__(self) -> Iterator[str]:
        return iter((FILES,))

    def __len__(self) -> int:
        return 1

    @staticmethod
    def _config() -> Mapping[str, Any]:
        config = graph_config()
        if config is None:
            raise GraphStateError(
                "These files are in the state of a LangGraph graph, and no graph is running here. Give files to a run "
                "as agent.invoke({'messages': […], 'files': {…}}); mount a thread as threads+sqlite:PATH"
            )
        return config


GRAPH_STATE = GraphState()


def graph_runtime() -> Any:
    """LangGraph's own runtime of the graph that runs here; None outside of one."""
    if "langgraph" not in sys.modules:
        return None
    from langgraph.runtime import get_runtime

    try:
        return get_runtime()
    except (RuntimeError, KeyError):  # no graph is running
        return None


class GraphRuntime:
    """The runtime of the node that runs here, with the attributes the seeds' factories use."""

    state = GRAPH_STATE

    @property
    def store(self) -> Any:
        """The graph's store, None when it was compiled without one."""
        return getattr(self._runtime(), "store", None)

    @property
    def context(self) -> Any:
        return getattr(self._runtime(), "context", None)

    @property
    def config(self) -> Any:
        from langgraph.config import get_config

        return get_config()

    @staticmethod
    def _runtime() -> Any:
        GraphState._config()
        return graph_runtime()


class LateRuntime:
    """A runtime with a state that is found at its first use, and is the same from then on.

    Inside of a running graph with files in its state it is that graph's, so that a backend may be made anywhere and
    used in every thread of the graph; outside of one it then is an error. Elsewhere it is a dict of its own, in this
    process; so a backend that was mounted, or filled, before an agent ran stays the same for that agent.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._state: MutableMapping[str, Any] | None = GRAPH_STATE if files_channel_here() else None

    @property
    def settled(self) -> bool:
        """True once the state is found."""
        return self._state is not None

    @property
    def state(self) -> MutableMapping[str, Any]:
        if self._state is None:
            found = GRAPH_STATE if files_channel_here() else {FILES: {}}
            with self._guard:
                if self._state is None:
                    self._state = found
        return self._state
