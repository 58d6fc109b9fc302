"""Devices: their names, the current one, and one honest error for whatever needs CUDA."""

from __future__ import annotations

import contextvars
import copy
import importlib.util
import pickle
import threading
from contextvars import ContextVar

import pytest

from fake_cuda import fake_cuda
from numbridge import Event, ScopedStream, Stream, synchronize
from numbridge.kernels import devices
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, ScopedDevice, device_count, get_device, get_devices, set_device
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, NumbridgeValueError


def test_a_device_equals_its_name():
    cpu, gpu = get_device("cpu"), Device("cuda", 1)
    assert cpu == "cpu" == str(cpu) == cpu.name
    assert gpu == "cuda:1" == str(gpu) == gpu.name
    assert cpu != gpu
    assert cpu != 0
    assert hash(gpu) == hash("cuda:1")
    assert {"cpu": 1}[cpu] == 1
    assert repr(gpu) == "Device('cuda:1')"


def test_kinds():
    assert (get_device("cpu").is_cpu, get_device("cpu").is_cuda, get_device("cpu").ordinal) == (True, False, 0)
    assert (Device("cuda", 1).is_cpu, Device("cuda", 1).is_cuda, Device("cuda", 1).ordinal) == (False, True, 1)


def test_a_device_is_a_value():
    device = Device("cuda", 1)
    with pytest.raises(AttributeError, match="a Device cannot be changed"):
        device.ordinal = 2
    assert copy.deepcopy(device) == pickle.loads(pickle.dumps(device)) == device


def test_what_there_is():
    assert get_devices() == ["cpu"]
    assert device_count() == 1
    assert get_device() == "cpu"
    assert get_device(get_device("cpu")) is get_device("cpu")
    synchronize()
    synchronize("cpu")


def test_the_current_device(monkeypatch):
    # What is set here is not what other tests find.
    monkeypatch.setattr(devices, "_current", ContextVar("current", default=None))
    assert set_device("cpu") == "cpu"
    with ScopedDevice("cpu") as device:
        assert device == get_device() == "cpu"
    other = Device("cpu", 7)
    monkeypatch.setattr(devices, "get_device", lambda name: other)
    scope = ScopedDevice("other")
    with scope, scope:
        assert get_device() is other
        seen = []
        thread = threading.Thread(target=lambda: seen.append(get_device()))
        thread.start()
        thread.join()
        assert seen == ["cpu"]
        assert seen[0].ordinal == 0
    assert get_device().ordinal == 0


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "cpu:0", "cuda:-1"])
def test_unknown_names(name):
    with pytest.raises(NumbridgeValueError, match=f"there is no device {name!r}; numbridge knows 'cpu'"):
        get_device(name)


def test_names_are_strings():
    with pytest.raises(NumbridgeTypeError, match="device is 3; it must be a Device, a name such as 'cpu', or None"):
        get_device(3)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda: get_device("cuda"), "device 'cuda'"),
        (lambda: get_device(Device("cuda", 1)), "device 'cuda:1'"),
        (lambda: set_device("cuda:0"), "device 'cuda:0'"),
        (lambda: ScopedDevice("cuda:0"), "device 'cuda:0'"),
        (lambda: synchronize("cuda:0"), "device 'cuda:0'"),
        (Stream, r"nb\.Stream"),
        (lambda: Event(enable_timing=True), r"nb\.Event"),
        (lambda: ScopedStream(7), r"nb\.Stream"),
    ],
)
def test_cuda_is_refused_honestly(use, what):
    with pytest.raises(DeviceError, match=rf"^{what} needs CUDA; missing here: .*pip install 'numbridge\[cuda13\]'"):
        use()


def test_the_cpu_has_no_streams():
    for refused in (lambda: Stream("cpu"), lambda: Event(get_device("cpu")), lambda: Stream("cpu", cuda_stream=None)):
        with pytest.raises(
            DeviceError, match=r"is CUDA's, and the device is 'cpu', where a launch is done when it returns"
        ):
            refused()


def test_no_stream_needs_no_cuda():
    with ScopedStream(None) as stream:
        assert stream is None


def test_the_error_says_what_is_missing(monkeypatch):
    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", no_library)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "missing here: the NVIDIA driver (libcuda.so.1), the CUDA toolkit wheels" in str(
        devices.cuda_unavailable("x")
    )
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "missing here: a CUDA device." in str(devices.cuda_unavailable("x"))


def _with_two_cuda_devices(driver):
    assert get_devices() == ["cpu", "cuda:0", "cuda:1"]
    assert (device_count(), get_device(), get_device("cuda")) == (3, "cuda:0", "cuda:0")
    with ScopedDevice("cuda:1"):
        assert get_device() == get_device("cuda") == "cuda:1"
    with ScopedDevice("cpu"):
        assert (get_device(), get_device("cuda")) == ("cpu", "cuda:0")
    with pytest.raises(DeviceError, match="there is no device 'cuda:2': this machine has cuda:0 to cuda:1"):
        get_device("cuda:2")
    synchronize()
    synchronize("cuda:1")
    synchronize("cpu")
    assert driver.calls == [("synchronize", 0), ("synchronize", 1), ("synchronize", 1)]


def test_devices_of_a_machine_with_cuda():
    with fake_cuda() as driver:
        # In a context in which no device was set
        contextvars.Context().run(_with_two_cuda_devices, driver)
    assert get_device() == "cpu"
