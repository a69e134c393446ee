"""Runs a program of `examples/` with a model that reads from a script: `scripted_example.py NAME SCRIPT ARGUMENTS…`.

SCRIPT is a JSON file, a list of turns: a text is an answer, a list holds calls of tools, each a mapping with the tool's
name under `tool`. `{memory}` in an answer stands for the memory in the system prompt. The argument `MODEL` becomes the
model itself.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from graphs import ScriptedModel, call, say, use
from langchain_core.messages import BaseMessage

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


class Remembering(ScriptedModel):
    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(messages, *args, **kwargs)
        found = re.search(r"<agent_memory>(.*?)</agent_memory>", str(messages[0].text), re.DOTALL)
        message = result.generations[0].message
        message.content = str(message.content).replace("{memory}", " ".join(found[1].split()) if found else "nothing")
        return result


def script(turns: list[Any]) -> list[Any]:
    messages = []
    for turn in turns:
        if isinstance(turn, str):
            messages.append(say(turn))
        else:
            messages.append(use(*[call(one.pop("tool"), **one) for one in turn]))
    return messages


if __name__ == "__main__":
    name, path, *arguments = sys.argv[1:]
    model = Remembering(script=script(json.loads(Path(path).read_text())))
    importlib.import_module(name).main([model if argument == "MODEL" else argument for argument in arguments])
