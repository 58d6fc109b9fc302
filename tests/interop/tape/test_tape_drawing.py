"""Tape.visualize: what was recorded, as a graph in GraphViz's language."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def grow(y: nb.array[float], weights: nb.array[float]):
    i = nb.tid()
    y[i] += weights[i]


def recorded() -> tuple[nb.Tape, nb.Array, nb.Array]:
    x, y = nb.ones(3, requires_grad=True), nb.zeros(3)
    weights = np.ones(3, np.float32)
    tape = nb.Tape()
    with tape:
        with nb.ScopedTimer("a first step", print=False):
            nb.launch(square, 3, [x], [y])
        tape.record_scope_begin("nothing")
        tape.record_scope_end()
        tape.record_scope_begin('the "second"')
        with nb.ScopedTimer("not drawn", print=False, skip_tape=True):
            nb.launch(grow, 3, [y, weights])
        z = y.clone()
        tape.record_scope_end()
    return tape, x, z


def test_launches_arrays_and_scopes_are_drawn(tmp_path):
    tape, _, _ = recorded()
    text = tape.visualize(tmp_path / "tape.dot")
    assert text == (tmp_path / "tape.dot").read_text()
    assert (
        text
        == r"""digraph tape {
  rankdir=LR;
  array0 [shape=ellipse, style=filled, fillcolor="#9bd39b", label="x\nfloat32 (3,)"];
  array1 [shape=ellipse, style=filled, fillcolor="#dddddd", label="y\nfloat32 (3,)"];
  array2 [shape=ellipse, style=filled, fillcolor="#dddddd", label="weights\nfloat32 (3,)"];
  array3 [shape=ellipse, style=filled, fillcolor="#dddddd", label="array\nfloat32 (3,)"];
  subgraph cluster0 { label="a first step";
    event0 [shape=box, label="1: square (3,)"];
  }
  subgraph cluster2 { label="the \"second\"";
    event1 [shape=box, label="2: grow (3,)"];
    event2 [shape=box, label="3: copy"];
  }
  array0 -> event0;
  event0 -> array1;
  array1 -> event1;
  event1 -> array1;
  array2 -> event1;
  array1 -> event2;
  event2 -> array3;
}
"""
    )


def test_what_is_drawn_can_be_chosen():
    tape, x, z = recorded()
    text = tape.visualize(
        hide_readonly_arrays=True, array_labels={z: "the end"}, ignore_graph_scopes=True, graph_direction="TB"
    )
    assert "rankdir=TB;" in text and "subgraph" not in text
    assert re.findall(r'array\d .*label="(.*)\\n', text) == ["y", "the end"]
    assert "array0" not in text and "array2" not in text
    assert 'label="the start\\n' in tape.visualize(array_labels=[(x, "the start")])


def test_other_events_and_elements():
    x, y = nb.ones(2, nb.vec3, requires_grad=True), nb.zeros(2, nb.vec3)

    def my_step():
        pass

    with nb.Tape() as tape:
        tape.record_func(my_step, [x, y])
        y.zero_()
    text = tape.visualize()
    assert re.findall(r'event\d .*label="(.*)"', text) == ["1: my_step", "2: fill"]
    assert r'label="array\nvec3 (2,)"' in text
    assert re.findall(r"(\w+ -> \w+);", text) == [
        *("array0 -> event0", "event0 -> array0", "array1 -> event0", "event0 -> array1"),
        "event1 -> array1",
    ]


def test_a_tape_that_is_used_up_cannot_be_drawn():
    x, y, z = nb.ones(3, requires_grad=True), nb.zeros(3), nb.zeros(3)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    tape.backward(grads={z: np.ones(3)}, retain_graph=True)
    assert "event1" in tape.visualize()
    tape.backward(grads={z: np.ones(3)})
    with pytest.raises(nb.NumbridgeError, match="visualize: backward has used the tape up; call it before"):
        tape.visualize()


def test_what_cannot_be_drawn_is_refused():
    tape = nb.Tape()
    assert tape.visualize() == "digraph tape {\n  rankdir=LR;\n}\n"
    with pytest.raises(nb.NumbridgeValueError, match="graph_direction is 'up'; it must be one of LR, RL, TB, BT"):
        tape.visualize(graph_direction="up")
    with pytest.raises(nb.NumbridgeError, match="record_scope_end: no scope has begun"):
        tape.record_scope_end()
    with pytest.raises(nb.NumbridgeTypeError, match="scope_name is 3; it must be a string"):
        tape.record_scope_begin(3)


def test_scopes_that_stay_open_and_empty_ones():
    tape = nb.Tape()
    tape.record_scope_begin("outer")
    tape.record_scope_begin("inner")
    tape.record_scope_end(remove_scope_if_empty=False)
    text = tape.visualize()
    assert text.count("{") == text.count("}") == 3 and "inner" in text
    with tape, nb.ScopedTimer("reset within", print=False):
        tape.reset()
    assert tape.visualize().count("{") == 1
