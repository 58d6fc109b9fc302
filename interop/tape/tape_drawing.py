"""What a tape has recorded, as a drawing: a graph in the language of GraphViz. Reads the tape's events and changes nothing."""

from __future__ import annotations

import ast
import json
from collections.abc import Container, Iterator, Mapping, Sequence

from numbridge.kernels.element_types.element_arguments import full_shape
from numbridge.kernels.errors import NumbridgeValueError
from numbridge.kernels.kernel import Kernel
from numbridge.tape.places import Place
from numbridge.tape.tape_events import CopyEvent, Event, FillEvent, FunctionEvent, LaunchEvent

__all__ = ["Scope", "drawn"]

# How many events had been recorded when a scope began, with its name, or ended, with None
Scope = tuple[int, str | None]

_DIRECTIONS = ("LR", "RL", "TB", "BT")
_REQUIRED, _OTHER = "#9bd39b", "#dddddd"


def drawn(
    events: Sequence[Event],
    scopes: Sequence[Scope],
    *,
    required: Container[Place],
    labels: Mapping[Place, str],
    only_written: bool,
    direction: str,
) -> str:
    """Return events, and the arrays that they read and wrote, as a graph.

    Parameters
    ----------
    events : sequence of Event
        In their order, which numbers them.
    scopes : sequence of Scope
        What stands together.
    required : container of Place
        Where arrays lie that require a gradient.
    labels : mapping of Place to str
        What arrays are called, in place of the parameter that they were first passed for.
    only_written : bool
        Whether to leave arrays out that nothing has written.
    direction : str
        Where the graph grows to, such as ``"LR"``.

    Raises
    ------
    NumbridgeValueError
        If there is no such direction.
    """
    if direction not in _DIRECTIONS:
        raise NumbridgeValueError(
            f"graph_direction is {direction!r}; it must be one of {', '.join(_DIRECTIONS)}, such as LR from left to right"
        )
    drawing = _Drawing(labels)
    for number, event in enumerate(events):
        drawing.add(number, event)
    shown = [place for place in drawing.arrays if not only_written or place in drawing.written]
    lines = [_node(drawing.arrays[place], place, drawing.names[place], place in required) for place in shown]
    lines += _grouped(drawing.nodes, scopes)
    lines += [f"{start} -> {end};" for start, end, place in drawing.edges if place in shown]
    return "\n".join(["digraph tape {", f"  rankdir={direction};", *(f"  {line}" for line in lines), "}", ""])


class _Drawing:
    def __init__(self, labels: Mapping[Place, str]) -> None:
        self._labels = labels
        self.arrays: dict[Place, str] = {}
        self.names: dict[Place, str] = {}
        self.written: set[Place] = set()
        self.nodes: list[str] = []
        self.edges: list[tuple[str, str, Place]] = []

    def add(self, number: int, event: Event) -> None:
        label = _quoted(f"{number + 1}: {_title(event)}")
        self.nodes.append(f"event{number} [shape=box, label={label}];")
        for place, name, is_read, is_written in _uses(event):
            array = self.arrays.setdefault(place, f"array{len(self.arrays)}")
            self.names.setdefault(place, self._labels.get(place, name))
            if is_read:
                self.edges.append((array, f"event{number}", place))
            if is_written:
                self.edges.append((f"event{number}", array, place))
                self.written.add(place)


def _title(event: Event) -> str:
    if isinstance(event, LaunchEvent):
        return f"{event.recipe.signature.kernel.name} {tuple(event.geometry.dims)}"
    if isinstance(event, FunctionEvent):
        return getattr(event.backward, "__name__", "function")
    return "copy" if isinstance(event, CopyEvent) else "fill" if isinstance(event, FillEvent) else "no gradient"


def _uses(event: Event) -> Iterator[tuple[Place, str, bool, bool]]:
    """Yield the places of an event, what they are called there, and whether it reads and writes them."""
    if isinstance(event, LaunchEvent):
        signature = event.recipe.signature
        read = _read(signature.kernel)
        at = {**dict(enumerate(event.at)), **dict(zip(event.recipe.active, event.places, strict=True))}
        for k, place in at.items():
            if place is not None:
                name, is_written = signature.names[k], k in signature.written
                yield place, name, name in read or not is_written, is_written
        return
    for k, place in enumerate(event.places):
        is_function, is_source = isinstance(event, FunctionEvent), isinstance(event, CopyEvent) and k == 0
        yield place, "array", is_function or is_source, not is_source


def _read(kernel: Kernel) -> set[str]:
    """Return the names of a kernel's source that are more than written to."""
    nodes = kernel.source.nodes
    added = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    only = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Attribute)
        or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and id(node) not in added)
    }
    return {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in only}


def _node(array: str, place: Place, name: str, is_required: bool) -> str:
    scalar = place.found.element or place.found.scalar
    kind = "" if scalar is None else scalar.name
    shape = place.found.shape if place.found.element is not None else full_shape(place.found)
    color = _REQUIRED if is_required else _OTHER
    label = _quoted(f"{name}\n{kind} {shape}")
    return f'{array} [shape=ellipse, style=filled, fillcolor="{color}", label={label}];'


def _grouped(nodes: Sequence[str], scopes: Sequence[Scope]) -> Iterator[str]:
    """Yield the nodes of events, those of each scope in a subgraph."""
    depth = 0
    for number in range(len(nodes) + 1):
        for k, (at, name) in enumerate(scopes):
            if at == number and name is not None:
                yield f"{'  ' * depth}subgraph cluster{k} {{ label={_quoted(name)};"
                depth += 1
            elif at == number and depth:
                depth -= 1
                yield f"{'  ' * depth}}}"
        if number < len(nodes):
            yield f"{'  ' * depth}{nodes[number]}"
    yield from ("  " * k + "}" for k in reversed(range(depth)))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
