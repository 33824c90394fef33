"""Tests of the dtype selected by --precision=auto."""

import math

import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

from bertlib.compute import precision
from bertlib.io import processes

pytestmark = pytest.mark.unit


@pytest.fixture
def machine(monkeypatch):
  """Simulates a machine with given instruction sets or GPUs."""

  def make(features=(), *capabilities):
    monkeypatch.setattr(processes, "features", lambda: set(features))
    monkeypatch.setattr(
      tf.config, "list_physical_devices", lambda _: list(capabilities)
    )
    monkeypatch.setattr(
      tf.config.experimental,
      "get_device_details",
      lambda gpu: {"compute_capability": gpu} if gpu else {},
    )

  return make


@parametrize(
  "features, gpus, dtypes",
  (["avx512f"], [], ["float32"]),
  (["avx512_bf16"], [], ["float32", "bfloat16"]),
  (["amx_bf16"], [], ["float32", "bfloat16"]),
  (["bf16"], [], ["float32", "bfloat16"]),
  ([], [(9, 0)], ["float32", "bfloat16", "float16"]),
  ([], [(7, 5)], ["float32", "float16"]),
  (["amx_bf16"], [(6, 1)], ["float32"]),
  ([], [(9, 0), (7, 0)], ["float32", "float16"]),
  ([], [None], ["float32"]),
)
def test_dtypes_need_hardware_instructions(machine, features, gpus, dtypes):
  machine(features, *gpus)
  assert precision.supported_dtypes() == dtypes


@parametrize(
  "features, emulated",
  (["avx2"], ["bfloat16", "int8"]),
  (["avx2", "avx512_bf16"], ["int8"]),
  (["avx2", "avx_vnni"], ["bfloat16"]),
  (["avx2", "amx_int8", "amx_bf16"], []),
)
def test_a_precision_without_instructions_is_reported(
  machine, features, emulated, caplog
):
  machine(features)
  for name in ("float32", "bfloat16", "int8"):
    caplog.clear()
    precision.warn_if_emulated(name)
    assert (f"{name}: this device has no" in caplog.text) == (name in emulated)


@parametrize(
  "features, kind",
  ({"avx2", "fma"}, "AVX2"),
  ({"avx2", "avx512bw"}, "AVX2"),
  ({"avx2", "avx512_vnni"}, "VNNI"),
  ({"avx2", "avx_vnni"}, "VNNI"),
  ({"avx2", "avx512_vnni", "amx_int8"}, "AMX"),
  ({"asimd", "bf16"}, "other"),
  (set(), "other"),
)
def test_processors_are_of_a_kind(machine, features, kind):
  machine(features)
  assert processes.kind() == kind
  assert processes.has_exact_int8() == (kind in ("VNNI", "AMX"))


@parametrize(
  "line, expected",
  ("flags\t\t: fpu sse amx_bf16\nflags\t\t: fpu\n", {"fpu", "sse"}),
  ("Features\t: fp asimd bf16\n", {"asimd", "bf16"}),
  ("model name\t: unknown\n", set()),
)
def test_instruction_sets_are_read_from_linux(tmp_path, line, expected):
  path = tmp_path / "cpuinfo"
  path.write_text(line)
  assert expected <= processes.features(str(path))


def test_no_instruction_set_is_known_without_linux(tmp_path):
  assert processes.features(str(tmp_path / "none")) == set()


@parametrize(
  "rates, chosen",
  ({"float32": 1.0, "bfloat16": 1.4}, "float32"),
  ({"float32": 1.0, "bfloat16": 1.6}, "bfloat16"),
)
def test_fastest_dtype_is_selected(machine, monkeypatch, log, rates, chosen):
  machine(["amx_bf16"])
  monkeypatch.setattr(precision, "product_rates", lambda dtypes: rates)
  assert precision.fastest_dtype.__wrapped__() == chosen  # not cached
  (line,) = log
  assert chosen in line


@parametrize(
  "features, gpus, measures, chosen",
  ([], [], True, "float32"),
  (["amx_bf16"], [], False, "bfloat16"),
  ([], [(9, 0)], True, "bfloat16"),
  ([], [(7, 5)], True, "float16"),
  ([], [(6, 0)], True, "float32"),
)
def test_nothing_is_measured_if_instruction_sets_decide(
  machine, monkeypatch, features, gpus, measures, chosen
):
  machine(features, *gpus)
  monkeypatch.setattr(precision, "product_rates", None)
  assert precision.fastest_dtype.__wrapped__(measures) == chosen


@pytest.mark.graph
def test_product_rates_do_not_use_the_current_graph():
  with tf.Graph().as_default() as graph:
    rates = precision.product_rates(["float32", "bfloat16"], num_rounds=1)
  assert all(0.0 < rate < math.inf for rate in rates.values())
  assert graph.get_operations() == []
