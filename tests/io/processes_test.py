"""Tests of counting the cores that a process may use."""

import os

import commands
import pytest
from parametrize import parametrize

from bertlib.io import processes

pytestmark = pytest.mark.unit

V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@parametrize(
  "files, quotas",
  ({"cpu.max": "150000 100000"}, [1.5]),
  ({"cpu.max": "max 100000"}, []),
  ({V1[0]: "300000", V1[1]: "100000"}, [3]),
  ({V1[0]: "-1", V1[1]: "100000"}, []),
  ({}, []),
)
def test_quotas_are_those_of_the_container(files, quotas, tmp_path):
  (tmp_path / "cpu").mkdir()
  for name, text in files.items():
    (tmp_path / name).write_text(f"{text}\n")
  assert [*processes._quotas(str(tmp_path))] == quotas


@pytest.mark.parametrize(
  ("cores", "quotas", "expected"),
  [(8, [], 8), (8, [2.5], 3), (2, [64.0], 2), (8, [4.0, 0.5], 1)],
)
def test_cores_are_at_most_the_quota(cores, quotas, expected, monkeypatch):
  monkeypatch.setattr(
    os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
  )
  monkeypatch.setattr(processes, "_quotas", lambda: quotas)
  assert processes.usable_cores() == expected


def test_without_affinities_all_cores_count(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.setattr(os, "cpu_count", lambda: 3)
  monkeypatch.setattr(processes, "_quotas", lambda: [])
  assert processes.usable_cores() == processes.num_threads() == 3


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_on_one_core_counts_one():
  code = (
    "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    "from bertlib.io import processes\n"
    "print(processes.usable_cores(), processes.num_threads())\n"
    "assert 'tensorflow' not in sys.modules"
  )
  assert commands.run_code(code).stdout == "1 1\n"
