import os
import pathlib
import re
import shutil
import subprocess

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).parent.parent

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def plan(tmp_path, python, *settings):
  """Commands that `make test` would run for a Python version."""
  interpreter = write_python(tmp_path, f"echo {python}")
  return make(tmp_path, "--dry-run", f"PYTHON={interpreter}", *settings)


def write_python(folder, script):
  path = folder / "python"
  path.write_text(f"#!/bin/sh\n{script}\n")
  path.chmod(0o755)
  return path


def make(tmp_path, *arguments):
  """`make test` for an environment in `tmp_path`."""
  # Ignore the variables that these tests were started with.
  names = ("MAKEFLAGS", "MFLAGS", "PYTHON", "TENSORFLOW")
  environ = {k: v for k, v in os.environ.items() if k not in names}
  return subprocess.run(
    ["make", "test", f"VENV={tmp_path}/venv", *arguments],
    cwd=ROOT,
    env=environ,
    capture_output=True,
    text=True,
  )


@needs_make
@pytest.mark.parametrize(
  ("tensorflow", "includes", "excludes"),
  [
    # Without a version, pip takes a pre-release where there is no release.
    ("tensorflow", "2.23.0", []),
    ("tensorflow==2.15", "2.15.1", ["2.15.0", "2.16.0"]),
    ("tensorflow[and-cuda]==2.21", "2.21.0", ["2.22.0"]),
    ("tf-nightly==2.23.0.dev20261026", "2.23.0.dev20261026", ["2.23.0"]),
    ("tensorflow==2.14", None, ["2.14.1", "2.15.1"]),
  ],
)
def test_pip_gets_the_release_that_is_asked_for(
  tmp_path, tensorflow, includes, excludes
):
  planned = plan(tmp_path, "3.13", f"TENSORFLOW={tensorflow}").stdout
  requirement = Requirement(
    re.search(r'pip install --no-compile "(t.*)" \|\|', planned)[1]
  )
  assert requirement.name == re.split(r"[=\[]", tensorflow)[0]
  if includes:
    assert includes in requirement.specifier
  assert not any(version in requirement.specifier for version in excludes)
  # Other packages serve as TensorFlow.
  has_stand_in = 'setup(name="tensorflow"' in planned
  assert has_stand_in == (requirement.name != "tensorflow")


@needs_make
@pytest.mark.parametrize("python", ["2.7", "3.8", ""])
def test_an_old_or_missing_python_is_refused_in_one_line(tmp_path, python):
  planned = plan(tmp_path, python)
  assert planned.returncode != 0
  (line,) = planned.stderr.splitlines()
  assert "is not Python 3.9 or newer; name one: PYTHON=python3.13" in line
  assert "uv venv --python 3.13 .venv-python" in line


@needs_make
def test_a_release_without_wheels_names_others(tmp_path):
  script = 'case "$*" in *print*) echo 3.13;; *pip*) exit 1;; esac'
  interpreter = write_python(tmp_path, script)
  (tmp_path / "venv" / "bin").mkdir(parents=True)
  write_python(tmp_path / "venv" / "bin", script)
  done = make(tmp_path, f"PYTHON={interpreter}", "TENSORFLOW=tensorflow==2.14")
  assert done.returncode != 0
  line = done.stderr.splitlines()[0]
  assert line.startswith("There is no tensorflow>=2.15.1,==2.14.* for Python")
  assert "TENSORFLOW=tensorflow, or another Python: PYTHON=python3.13" in line


@pytest.mark.unit
def test_workflows_run_the_jobs_of_ci_on_their_python():
  script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
  jobs = re.findall(r"(?m)^(\w+)\(\) \{\n  make PYTHON=python(\S+)", script)
  called = []
  for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"(?m)- job: (\w+)$|run: \.ci/run (\w+)$", text)
    pythons = re.findall(r'(?m)python(?:-version)?: "(.+)"$', text)
    assert len(names) == len(pythons)
    called += zip(map("".join, names), pythons)
  assert sorted(called) == sorted(jobs)
