"""Rules of the layout: what imports what, and what stays small."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import commands
import pytest

ROOT = Path(commands.ROOT)

# The libraries of google-research/bert, which import nothing of this project.
LIBRARIES = ("modeling", "optimization", "tokenization")

# Folders of bertlib/; each imports only from those before it.
ORDER = (
  "cli",
  "io",
  "settings",
  "compat",
  "compute",
  "data",
  "task",
  "checkpoints",
  "hardware",
  "export",
  "exchange",
  "training",
  "reporting",
  "tasks",
)

# Names that modules have in programs, which this project does not use itself.
ALIASES = ("bertlib.errors", "bertlib.estimator_api", "bertlib.tensorflow_1")

# Importing these does not import TensorFlow.
WITHOUT_TENSORFLOW = (
  "create_pretraining_data",
  "create_vocab",
  "download_model",
  "predict",
  "report",
  "squad_metrics",
  "tokenization",
  "bertlib.cli.app",
  "bertlib.cli.steps",
  "bertlib.exchange.initial_model",
  "bertlib.io.model_files",
  "bertlib.io.processes",
  "bertlib.data.beir",
  "bertlib.tasks.classification.classification",
  "bertlib.tasks.classification.own_tables",
  "bertlib.data.text_groups",
  "bertlib.tasks.embeddings.embedding_predictor",
  "bertlib.tasks.embeddings.embedding_records",
  "bertlib.tasks.ner.ner_files",
  "bertlib.tasks.pretraining.pretraining_blocks",
  "bertlib.tasks.pretraining.pretraining_instances",
  "bertlib.tasks.squad.squad_files",
  "bertlib.tasks.squad.squad_windows",
  "bertlib.data.tf_records",
  "bertlib.data.workers",
  "bertlib.data.nearest_neighbors",
  "bertlib.tasks.embeddings.embedding_evaluation",
  "bertlib.tasks.classification.classification_decoding",
  "bertlib.tasks.classification.classification_report",
  "bertlib.tasks.ner.ner_decoding",
  "bertlib.tasks.squad.squad_decoding",
  "bertlib.tasks.ner.ner_report",
  "bertlib.tasks.ranking.ranking_predictor",
  "bertlib.tasks.ranking.ranking_records",
  "bertlib.tasks.pretraining.fill_mask",
  "bertlib.tasks.squad.squad_report",
  "bertlib.export.onnx_model",
  "bertlib.task.task_record",
  "bertlib.reporting.html_report",
  "bertlib.reporting.receipts",
  "bertlib.reporting.search_report",
)

MAX_LINES = {"modeling": 1300}

# Parses flags.
PARSES_FLAGS = (
  "bertlib.cli.app",
  "bertlib.cli.command_line",
  "bertlib.cli.option",
)

# May look for the scheme of a path: the module of files, and a library of the
# original, which works without this project.
KNOWS_SCHEMES = ("bertlib.io.files", "tokenization")

# Know the marks of WordPiece: its library, and the writers of its own formats.
KNOWS_WORDPIECE = (
  "tokenization",
  "create_vocab",
  "bertlib.export.tf_tokenizer",
  "bertlib.export.gguf_file",
  "bertlib.export.tokenizer_files",
  "bertlib.exchange.huggingface_tokenizer",
)
WORDPIECE_MARK = re.compile(r" *(##|\\?\[(CLS|SEP|PAD|MASK|UNK)\\?\]) *")

# Functions in which a command may read its flags.
READS_FLAGS = ("main", "define_flags", "from_flags")

MODULES = {
  ".".join(path.relative_to(ROOT).with_suffix("").parts): path
  for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("bertlib/**/[!_]*.py")])
}
COMMANDS = {
  name for name in MODULES if "." not in name and name not in LIBRARIES
}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)

pytestmark = pytest.mark.unit


@functools.cache
def parse(module):
  return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def modules_of(statement):
  """Names of the modules that an import statement imports."""
  if isinstance(statement, ast.Import):
    return {alias.name for alias in statement.names}
  module = statement.module
  if statement.level:  # in the package that can be installed alone
    module = ".".join(filter(None, ["bertlib.compat", module]))
  found = {f"{module}.{alias.name}" for alias in statement.names}
  return {
    name if name in MODULES else name.rpartition(".")[0] for name in found
  }


def own_modules_of(tree):
  """The modules of the project that are imported anywhere in a tree."""
  statements = (n for n in ast.walk(tree) if isinstance(n, IMPORTS))
  return {m for n in statements for m in modules_of(n) if m in MODULES}


@functools.cache
def own_imports_of(module):
  return own_modules_of(parse(module)) | {
    node.args[0].value
    for node in ast.walk(parse(module))
    if isinstance(node, ast.Call)
    and ast.unparse(node.func) == "lazy_module.load"
  }


def rank(module):
  """Rank of a module in the order: libraries, bertlib/, aliases, commands."""
  if module in LIBRARIES:
    return -1
  if module in COMMANDS or module in ALIASES:
    return len(ORDER) + (module in COMMANDS)
  return ORDER.index(module.split(".")[1])


def test_the_diagram_for_contributors_has_the_order():
  page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
  drawn = re.findall(r'^  --> (\w+)\["\1: ', page, re.M)
  assert [*reversed(drawn)] == [*ORDER]


def test_modules_import_only_modules_of_lower_rank():
  for module in MODULES:
    higher = {n for n in own_imports_of(module) if rank(n) > rank(module)}
    assert not higher, module


def test_libraries_of_the_original_import_no_module_of_this_project():
  assert not any(map(own_imports_of, LIBRARIES))


def test_imports_have_no_cycles():
  imports = {module: own_imports_of(module) for module in MODULES}
  # Raises an error if there is one.
  list(graphlib.TopologicalSorter(imports).static_order())


def test_modules_of_the_project_are_imported_at_the_top():
  for module in MODULES:
    nodes = ast.walk(parse(module))
    hidden = [own_modules_of(n) for n in nodes if isinstance(n, FUNCTIONS)]
    assert not any(hidden), module


def bound_names(nodes):
  """Names bound by nodes, outside of functions and classes."""
  for node in nodes:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
      yield node.name
    elif isinstance(node, IMPORTS):
      yield from ((a.asname or a.name).split(".")[0] for a in node.names)
    else:
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
      if isinstance(node, (ast.arg, ast.ExceptHandler)):
        yield node.arg if isinstance(node, ast.arg) else node.name
      yield from bound_names(ast.iter_child_nodes(node))


@functools.cache
def names_of(module):
  """Names defined in a module."""
  return frozenset(bound_names(parse(module).body))


def missing_names(node, modules):
  """Names of the project's modules that a node uses and that are not there.

  Args:
    node: part of a module.
    modules: the project's modules by the name that they have there.
  """
  if isinstance(node, FUNCTIONS):  # whose own names may hide those of modules
    own = {*bound_names([node.args]), *bound_names(node.body)}
    modules = {name: of for name, of in modules.items() if name not in own}
  elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
    module = modules.get(node.value.id)
    if module and node.attr not in names_of(module):
      yield f"{module}.{node.attr}"
  elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
    for alias in node.names:
      if alias.name not in names_of(node.module):
        yield f"{node.module}.{alias.name}"
  for child in ast.iter_child_nodes(node):
    yield from missing_names(child, modules)


def test_names_of_other_modules_exist():
  special = {"__doc__", "__file__", "__name__"}
  for module in MODULES:
    modules = {
      alias.asname or alias.name: name
      for node in ast.walk(parse(module))
      if isinstance(node, IMPORTS)
      for alias in node.names
      for name in (alias.name, f"{getattr(node, 'module', None)}.{alias.name}")
      if name in MODULES
    }
    missing = {*missing_names(parse(module), modules)}
    missing = {n for n in missing if n.rpartition(".")[2] not in special}
    assert not missing, module


def test_only_the_tokenizer_of_wordpiece_and_its_writers_know_its_marks():
  for module in MODULES.keys() - {*KNOWS_WORDPIECE}:
    nodes = ast.walk(parse(module))
    values = [str(n.value) for n in nodes if isinstance(n, ast.Constant)]
    assert not [*filter(WORDPIECE_MARK.fullmatch, values)], module


def test_modules_are_not_too_long():
  for module, path in MODULES.items():
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES.get(module, 1000), module


def flag_reads(node, function=None):
  """Lines that use FLAGS outside of the functions in `READS_FLAGS`."""
  if isinstance(node, FUNCTIONS):
    function = function or node.name
  is_flags = (isinstance(node, ast.Name) and node.id == "FLAGS") or (
    isinstance(node, ast.Attribute) and node.attr == "FLAGS"
  )
  if is_flags and function and function not in READS_FLAGS:
    yield node.lineno
  for child in ast.iter_child_nodes(node):
    yield from flag_reads(child, function)


def test_flags_are_read_only_by_main_and_settings():
  for module in MODULES.keys() - {*PARSES_FLAGS}:
    if not module.startswith("bertlib.settings."):
      assert not [*flag_reads(parse(module))], module


def test_importing_a_module_does_not_define_flags():
  for module in MODULES:
    calls = [
      ast.unparse(node.func)
      for statement in parse(module).body
      if isinstance(statement, ast.Expr)
      for node in ast.walk(statement)
      if isinstance(node, ast.Call)
    ]
    assert not [name for name in calls if "define" in name.lower()], module


def test_only_one_module_recognizes_remote_paths():
  for module in MODULES.keys() - {*KNOWS_SCHEMES}:
    nodes = ast.walk(parse(module))
    values = [n.value for n in nodes if isinstance(n, ast.Constant)]
    assert "://" not in values, module


def test_json_is_written_by_one_module():
  for module in MODULES.keys() - {"bertlib.io.files"}:
    nodes = [*ast.walk(parse(module))]
    names = {
      name
      for node in nodes
      for name in (getattr(node, "attr", None), getattr(node, "name", None))
    }
    dumps = [
      node
      for node in nodes
      if isinstance(node, ast.Attribute)
      and node.attr in ("dump", "dumps")
      and getattr(node.value, "id", None) == "json"
    ]
    # Others may show JSON in a message.
    assert not dumps or "atomic_write" not in names, module


@pytest.mark.process
def test_modules_for_workers_do_not_import_tensorflow():
  lines = ["import sys"]
  for module in WITHOUT_TENSORFLOW:
    lines.append(f"import {module}")
    lines.append(f"assert 'tensorflow' not in sys.modules, {module!r}")
  done = commands.run_code("\n".join(lines))
  assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_data_making_needs_no_numpy():
  code = "import sys, create_pretraining_data; print('numpy' in sys.modules)"
  assert commands.run_code(code).stdout == "False\n"


# What a model in another engine is predicted with.
PREDICTS = (
  "bertlib.export.onnx_model",
  "bertlib.tasks.classification.classification_decoding",
  "bertlib.tasks.embeddings.embedding_predictor",
  "bertlib.tasks.ner.ner_decoding",
  "bertlib.tasks.pretraining.fill_mask",
  "bertlib.tasks.ranking.ranking_predictor",
  "bertlib.tasks.squad.squad_decoding",
)


@pytest.mark.process
def test_prediction_in_another_engine_imports_numpy_alone():
  """Beside the engine, and absl, which has a stand-in."""
  code = f"""
import importlib, sys
before = set(sys.modules)
for module in {PREDICTS}:
  importlib.import_module(module)
packages = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(*sorted(packages - sys.stdlib_module_names))
"""
  done = commands.run_code(code)
  assert set(done.stdout.split()) - {"absl", "__mp_main__"} == {
    *("bertlib", "numpy", "tokenization")
  }, done.stderr


GENERATORS = ("RandomState", "default_rng", "Random")


def shared_draws(path):
  """Names of a module's random generators that its functions draw from."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  generators = {
    target.id
    for node in tree.body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    if ast.unparse(node.value.func).rpartition(".")[2] in GENERATORS
    for target in node.targets
  }
  functions = (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS))
  used = {
    node.id
    for function in functions
    for node in ast.walk(function)
    if isinstance(node, ast.Name)
  }
  return generators & used


def test_tests_do_not_share_a_generator():
  """Else the numbers of a test depend on the tests before it."""
  for path in ROOT.glob("tests/**/*.py"):
    assert not shared_draws(path), path
