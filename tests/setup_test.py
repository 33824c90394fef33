import collections
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from packaging.specifiers import SpecifierSet

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).parent.parent

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def plan(tmp_path, python, *settings):
  """Commands that `make test` would run for a Python version."""
  interpreter = tmp_path / "python"
  interpreter.write_text(f"#!/bin/sh\necho {python}\n")
  interpreter.chmod(0o755)
  return dry_run(tmp_path, f"PYTHON={interpreter}", *settings)


def dry_run(tmp_path, *settings):
  """`make --dry-run test` for an environment in `tmp_path`."""
  # Ignore the variables that these tests were started with.
  names = ("MAKEFLAGS", "MFLAGS", "PYTHON", "TENSORFLOW")
  environ = {k: v for k, v in os.environ.items() if k not in names}
  return subprocess.run(
    ["make", "--dry-run", "test", f"VENV={tmp_path}/venv", *settings],
    cwd=ROOT,
    env=environ,
    capture_output=True,
    text=True,
  )


@needs_make
@pytest.mark.parametrize("minor", range(9, 14))
def test_every_python_gets_a_supported_tensorflow(tmp_path, minor):
  requirements = (ROOT / "requirements.txt").read_text()
  required = SpecifierSet(
    re.search("^tensorflow([<>].*)$", requirements, re.M)[1]
  )
  planned = plan(tmp_path, f"3.{minor}").stdout
  assert re.search(r'"tensorflow==(.*)\.\*"', planned)[1] in required


@needs_make
def test_the_environment_remembers_what_it_was_made_with(tmp_path):
  planned = plan(tmp_path, "3.12", "TENSORFLOW=tensorflow-cpu").stdout
  (remember,) = re.findall(r"printf [^>]*>[^>]*made_with.mk", planned)
  (tmp_path / "venv").mkdir()
  subprocess.run(remember, shell=True, check=True)
  later = dry_run(tmp_path).stdout
  assert f"{tmp_path}/python -m venv" in later
  assert '"tensorflow-cpu==2.' in later


@needs_make
@pytest.mark.parametrize(
  ("python", "tensorflow", "cure"),
  [
    ("3.9", "2.21.0", "TENSORFLOW=tensorflow==2.20"),
    ("3.12", "2.15.1", "TENSORFLOW=tensorflow==2.21"),
    ("3.13", "2.19", "TENSORFLOW=tensorflow==2.21"),
    ("3.11", "2.14.1", "TENSORFLOW=tensorflow==2.21"),
    ("3.8", "2.15.1", "PYTHON=python3.11"),
    ("3.14", "2.21.0", "PYTHON=python3.11"),
  ],
)
def test_unsupported_pairs_are_refused_in_one_line(
  tmp_path, python, tensorflow, cure
):
  planned = plan(tmp_path, python, f"TENSORFLOW=tensorflow=={tensorflow}")
  assert planned.returncode != 0
  (line,) = planned.stderr.splitlines()
  assert cure in line


def demo_rows(name):
  lines = (ROOT / "demo" / name).read_text(encoding="utf-8").splitlines()
  assert lines[0] == "text\tlabel"
  return [line.split("\t") for line in lines[1:]]


@pytest.mark.unit
def test_demo_texts_are_distinct():
  rows = demo_rows("train.tsv") + demo_rows("dev.tsv")
  times = collections.Counter(text.lower() for text, _ in rows)
  assert [text for text, n in times.items() if n > 1] == []


@pytest.mark.unit
@pytest.mark.parametrize(("name", "each"), [("train.tsv", 75), ("dev.tsv", 25)])
def test_demo_labels_are_balanced(name, each):
  labels = collections.Counter(label for _, label in demo_rows(name))
  assert labels == dict.fromkeys(
    ["complaint", "praise", "question", "request"], each
  )
