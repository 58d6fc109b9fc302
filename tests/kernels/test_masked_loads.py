"""What loads under a condition give where their element is stored to afterwards: what was there before, also in vectors."""

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.compilation.masked_loads import has_moved_load

N = 67


@nb.kernel
def taken(flags, a, b):
    i = nb.tid()
    if flags[i] != 0:
        v = a[i]
        a[i] = 0.0
    else:
        v = 1.0
    b[i] = v


@nb.kernel
def exchanged(flags, a, b):
    i = nb.tid()
    v = b[i]
    if flags[i] != 0:
        v, a[i] = a[i], v
    b[i] = v


@nb.func
def take_all(flags, a, b, n):
    for i in range(n):
        v = 1.0
        if flags[i] != 0:
            v = a[i]
            a[i] = 0.0
        b[i] = v


@nb.kernel
def in_a_function(flags, a, b):
    nb.tid()
    take_all(flags, a, b, a.shape[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("kernel", [taken, exchanged, in_a_function], ids=lambda kernel: kernel.name)
def test_stores_come_after_the_loads_before_them(kernel, dtype):
    flags = np.arange(N) % 3 == 0
    a, b = np.full(N, 5, dtype), np.full(N, 7, dtype)
    nb.launch(kernel, 1 if kernel is in_a_function else N, [flags.astype(np.int32), a, b])
    left = 7 if kernel is exchanged else 0
    np.testing.assert_array_equal(a, np.where(flags, left, 5))
    np.testing.assert_array_equal(b, np.where(flags, 5, 7 if kernel is exchanged else 1))


@nb.kernel
def by_two_conditions(x, flags, y):
    i = nb.tid()
    if flags[i] != 0 and i < 2:
        y[i] = x[i] * 3.0
    else:
        y[i] = x[i] * 2.0


def test_gradients_behind_two_conditions():
    x, y = nb.ones(N, device="cpu", requires_grad=True), nb.zeros(N, device="cpu", requires_grad=True)
    flags = np.ones(N, np.int32)
    flags[[1, 5]] = 0
    with nb.Tape() as tape:
        nb.launch(by_two_conditions, N, [x, flags, y])
    tape.backward(grads={y: nb.ones(N, device="cpu")})
    assert x.grad.list() == [3.0] + [2.0] * (N - 1)


FUNCTION = """
define void @f(ptr %a, ptr %b, i64 %n) {{
entry:
  store float 0.0, ptr %a
vector.body:
  %at = getelementptr i8, ptr %a, i64 %k
  %beside = getelementptr float, ptr %at, i64 2
  %there = getelementptr i8, ptr %b, i64 %k
  %either = phi ptr [ %at, %x ], [ %there, %y ]
  %many_at = getelementptr [3 x float], ptr %at, <4 x i64> %ks
  %many_there = getelementptr inbounds nuw i8, ptr %there, <4 x i64> %ks
  %beside_many = getelementptr inbounds nuw i8, <4 x ptr> %many_at, i64 4
  %spread = shufflevector <4 x ptr> %only, <4 x ptr> poison, <4 x i32> zeroinitializer
  {before}
  %load = tail call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 {address}, <4 x i1> %m, <4 x float> {otherwise})
  {after}
}}
"""
MASKED = "tail call void @llvm.masked.store.v4f32.p0(<4 x float> zeroinitializer, ptr align 4 {0}, <4 x i1> %m), !alias.scope !9"


SCATTER = "tail call void @llvm.masked.scatter.v4f32.v4p0(<4 x float> %v, <4 x ptr> align 4 {0}, <4 x i1> %m)"
SET = "call void @llvm.memset.p0.i64(ptr noundef nonnull align 64 dereferenceable(256) {0}, i8 0, i64 256, i1 false)"
COPY = "call void @llvm.memcpy.p0.p0.i64(ptr captures(none) align 4 {0}, ptr noundef align 4 {1}, i64 256, i1 false)"


@pytest.mark.parametrize(
    ("before", "address", "otherwise", "is_moved"),
    [
        (MASKED.format("%at"), "%at", "%other", True),
        (MASKED.format("%beside"), "%at", "splat (float 1.000000e+00)", True),
        (MASKED.format("%at"), "%at", "zeroinitializer", True),
        (MASKED.format("%at"), "%at", "poison", False),
        (MASKED.format("%there"), "%at", "%other", False),
        (MASKED.format("%either"), "%at", "%other", True),
        (MASKED.format("%there"), "%either", "%other", True),
        ("store <4 x float> %v, ptr %beside, align 4", "%at", "%other", True),
        ("store <4 x float> %v, ptr %there, align 4", "%at", "%other", False),
        (SCATTER.format("%many_at"), "%at", "%other", True),
        (SCATTER.format("%beside_many"), "%at", "%other", True),
        (SCATTER.format("%spread"), "%at", "%other", True),
        (SCATTER.format("%many_there"), "%at", "%other", False),
        (SET.format("%at"), "%at", "%other", True),
        (SET.format("%there"), "%at", "%other", False),
        (COPY.format("%there", "%c"), "%at", "%other", False),
        (COPY.format("%at", "%there"), "%at", "%other", True),
        ("store <4 x float> %v, ptr getelementptr (i8, ptr @c, i64 4), align 4", "%at", "%other", True),
        ("%one = extractelement <4 x ptr> %beside_many, i64 2\n  store float 0.0, ptr %one", "%at", "%other", True),
        ("%one = extractelement <4 x ptr> %many_there, i64 2\n  store float 0.0, ptr %one", "%at", "%other", False),
        ("%one = extractelement <4 x ptr> %spread, i64 2\n  store float 0.0, ptr %one", "%at", "%other", True),
        (COPY.format("%c", "%at"), "%at", "%other", False),
        ("%r = call i32 @something(ptr %there)", "%at", "%other", False),
        ("%r = call i32 @llvm.smax.i32(i32 %p, i32 %q)", "%at", "%other", False),
    ],
)
def test_which_loads_may_have_been_moved(before, address, otherwise, is_moved):
    given = {"address": address, "otherwise": otherwise}
    assert has_moved_load(FUNCTION.format(before=before, after="", **given)) == is_moved
    assert not has_moved_load(FUNCTION.format(before="", after=before, **given))
