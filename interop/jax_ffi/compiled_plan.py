"""Compiled: the handler of a plan, which is several calls that XLA sees as one.

A step is answered as if XLA had called it by itself: from a frame with the buffers of the plan that are the step's, and the
words of the step. So there is one road for both, and one explanation of what goes wrong.

Source of the layouts: `call_frame_layout`, `words_layout`. Importing this module imports Numba.
"""

from __future__ import annotations

import ctypes

from numba import types

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.compiled import (
    ATTRIBUTES,
    answer,
    args_array,
    args_size,
    array_data,
    array_size,
    array_type,
    attrs_array,
    attrs_size,
    attrs_types,
    buffer_at,
    copy_bytes,
    frame_extension,
    frame_known,
    is_answered,
    report,
    rets_array,
    rets_size,
)
from numbridge.kernels.native.memory import inlined, load_i32, load_i64, native, stack, store_i32, store_i64

EXPORTS = {"numbridge_xla_plan": ("handle", "int64(int64)")}

span_start, span_size = xla.XLA_FFI_ByteSpan.ptr.offset, xla.XLA_FFI_ByteSpan.len.offset
# What is made for a step: the frame, its two attributes, where these are, and where the buffers are.
_SPAN = (ctypes.sizeof(xla.XLA_FFI_CallFrame) + 15) & ~15
_ARRAY = _SPAN + ctypes.sizeof(xla.XLA_FFI_ByteSpan)
_ATTRIBUTES = _ARRAY + ctypes.sizeof(xla.XLA_FFI_Array)
_BUFFERS = _ATTRIBUTES + 8 * ATTRIBUTES


@inlined
def plan_of(frame):
    """Return the words of the plan that a frame asks for, or 0 if they are none or do not fit the frame."""
    if load_i64(frame, attrs_size) != ATTRIBUTES or load_i32(load_i64(frame, attrs_types), 4) != xla.ATTRIBUTE_ARRAY:
        return 0
    array = load_i64(load_i64(frame, attrs_array), 8)
    plan, count = load_i64(array, array_data), load_i64(array, array_size)
    if load_i32(array, array_type) != xla.CODE_INT64 or count < nb.PLAN_STEPS // 8:
        return 0
    if load_i64(plan, 0) != nb.PLAN_MAGIC or load_i64(plan, nb.PLAN_LENGTH) != count:
        return 0
    if load_i64(frame, args_size) != load_i64(plan, nb.PLAN_OPERANDS):
        return 0
    return plan if load_i64(frame, rets_size) == load_i64(plan, nb.PLAN_RESULTS) else 0


@inlined
def step_room(step):
    """Return how many bytes a step's frame takes."""
    return _BUFFERS + 8 * (load_i64(step, nb.STEP_ARGS) + load_i64(step, nb.STEP_RETS))


@inlined
def lay_out_step(frame, step, out):
    """Write the frame of one step of a plan."""
    arguments, results = load_i64(step, nb.STEP_ARGS), load_i64(step, nb.STEP_RETS)
    operands, outputs = load_i64(frame, args_array), load_i64(frame, rets_array)
    copy_bytes(out, frame, frame_known)
    for k in range(arguments + results):
        place = load_i64(step, nb.STEP_PLACES + 8 * k)
        store_i64(out, _BUFFERS + 8 * k, buffer_at(operands, place) if place >= 0 else buffer_at(outputs, -1 - place))
    store_i64(out, frame_extension, 0)
    store_i64(out, args_size, arguments)
    store_i64(out, args_array, out + _BUFFERS)
    store_i64(out, rets_size, results)
    store_i64(out, rets_array, out + _BUFFERS + 8 * arguments)
    names = load_i64(load_i64(load_i64(frame, attrs_array), 0), span_start)
    store_i64(out, _SPAN + span_start, names + load_i64(step, nb.STEP_NAME))
    store_i64(out, _SPAN + span_size, load_i64(step, nb.STEP_NAME_SIZE))
    store_i32(out, _ARRAY + array_type, types.int32(xla.CODE_INT64))
    store_i64(out, _ARRAY + array_size, load_i64(step, nb.STEP_WORD_COUNT))
    store_i64(out, _ARRAY + array_data, step + load_i64(step, nb.STEP_WORDS))
    store_i64(out, _ATTRIBUTES, out + _SPAN)
    store_i64(out, _ATTRIBUTES + 8, out + _ARRAY)
    store_i64(out, attrs_array, out + _ATTRIBUTES)


@native
def answer_step(frame, step):
    """Run one step on the CPU; return XLA's error, or 0."""
    out = stack(step_room(step))
    lay_out_step(frame, step, out)
    return answer(out)


@native
def handle(frame):
    """The handler: ``XLA_FFI_Error* handle(XLA_FFI_CallFrame*)``."""
    error = stack(8)
    if is_answered(frame, 0, error):
        return load_i64(error, 0)
    plan = plan_of(frame)
    if plan == 0:
        return report(frame, nb.WRONG_WORDS)
    step = plan + nb.PLAN_STEPS
    for _ in range(load_i64(plan, nb.PLAN_COUNT)):
        refused = answer_step(frame, step)
        if refused != 0:
            return refused
        step += load_i64(step, nb.STEP_SIZE)
    return 0
