"""Names of TensorFlow that a script uses and that do not exist here.

A script stops where it reaches such a name, which may be after its training.
"""

from __future__ import annotations

import ast
import importlib
import logging
import re
import sys
import types
import warnings
from pathlib import Path

PAGE = "docs/how_to/tensorflow_1_scripts.md of bert-estimator"
_PACKAGE = Path(__file__).resolve().parents[1]
# In conditions of code for several versions of TensorFlow or Python.
_ASKS = re.compile(r"hasattr|version|\b(is_?)?(tf|py)_?[123]", re.I)
_NAMESPACES = types.ModuleType, types.SimpleNamespace, type


def unresolved_names(script: Path, is_changed: bool = True) -> list[str]:
  """Lines "FILE:LINE: NAME" of names that a script will not find.

  Files beside it that it imports are read, too. Code in `try`, and behind
  `hasattr` or a check of versions, is left out. Not `is_changed`: `import
  tensorflow as tf` stands for an import of `tensorflow_1`.
  """
  found: dict[str, str] = {}
  files = [script.resolve()]
  folders = {files[0].parent, Path.cwd()} - {_PACKAGE.parent}
  for path in files:  # which grows
    try:
      imported, missing = _scan(path, folders, is_changed)
    except Exception:
      continue  # a file that Python cannot read or import either
    files += [file for file in dict.fromkeys(imported) if file not in files]
    for name, line in missing.items():
      found.setdefault(name, f"{path}:{line}: {name}")
  return [*found.values()]


def warn_of_main() -> None:
  """Warns of unresolved names of the script that this process runs."""
  script = getattr(sys.modules["__main__"], "__file__", None)
  if not script or _PACKAGE in Path(script).resolve().parents:
    return
  if names := unresolved_names(Path(script)):
    logging.getLogger(__name__).warning(
      "%s: stops where it reaches these names, which do not exist. %s says what"
      " there is instead.\n  %s",
      script,
      PAGE,
      "\n  ".join(names),
    )


def main() -> None:
  """Lists the unresolved names of the script that is the only argument."""
  if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
    program = sys.modules["__main__"].__spec__.name
    sys.exit(f"Usage: python -m {program} SCRIPT.py")
  names = unresolved_names(Path(sys.argv[1]), is_changed=False)
  print("\n".join(names) or "All names of TensorFlow were found.")
  sys.exit(bool(names))


def _scan(path, folders, is_changed):
  """Files of folders that a file imports, and its missing names by line."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of the compiler
    nodes = [*_certain_nodes(ast.parse(path.read_bytes()))]
  files, missing, modules = [], {}, {}
  for node in nodes:
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
      continue
    level = getattr(node, "level", 0)
    for alias in node.names:
      module = getattr(node, "module", None)
      target = f"{module}.{alias.name}" if module else alias.name
      target = target.removesuffix(".*")
      file = _file(target, [path.parents[level - 1]] if level else folders)
      if file:
        files.append(file)
      elif target.split(".")[0] == "tensorflow" or "tensorflow_1" in target:
        bound = alias.asname or alias.name
        if bound == "tf" and not is_changed:
          target = "tensorflow_1"
        try:
          modules[bound] = _load(target)
        except (AttributeError, ImportError):
          missing.setdefault(target, node.lineno)
  for node in nodes:  # names that are also of something else
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
      modules.pop(node.id, None)
    elif isinstance(node, (ast.arg, ast.FunctionDef)):
      modules.pop(getattr(node, "arg", None) or node.name, None)
  attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
  for node in attributes:
    value = _value(node.value, modules)
    if isinstance(value, _NAMESPACES) and not hasattr(value, node.attr):
      missing.setdefault(ast.unparse(node), node.lineno)
  for node in attributes:  # that the script sets
    if isinstance(node.ctx, ast.Store):
      missing.pop(ast.unparse(node), None)
  return files, missing


def _certain_nodes(tree):
  """Nodes of a tree, but for code that depends on versions."""
  waiting = [tree]
  while waiting:
    node = waiting.pop()
    asks = getattr(node, "test", node if isinstance(node, ast.BoolOp) else None)
    if isinstance(node, ast.Try) or (asks and _ASKS.search(ast.unparse(asks))):
      continue
    yield node
    waiting += [*ast.iter_child_nodes(node)][::-1]


def _file(target, folders):
  """File of a module, or of the module that a name is imported from."""
  *package, name = target.split(".")
  for folder in folders:
    module = folder.joinpath(*package)
    for path in (module / name, *([module] if package else [])):
      for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
          return file
  return None


def _load(target):
  """A module, or a name of a module."""
  if target.endswith("tensorflow_1"):
    return importlib.import_module(".tensorflow_1", __package__)
  try:
    return importlib.import_module(target)
  except ImportError:
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _value(node, modules):
  """The module or class that a chain of attributes names, as far as known."""
  if isinstance(node, ast.Name):
    return modules.get(node.id)
  if isinstance(node, ast.Attribute):
    value = _value(node.value, modules)
    if isinstance(value, _NAMESPACES):
      return getattr(value, node.attr, None)
  return None
