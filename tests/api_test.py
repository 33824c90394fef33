"""Calls written for google-research/bert bind to this project's functions.

`golden/api.json` lists the public names of the original's eight modules, and
the underscored ones that other code calls.
"""

import functools
import importlib
import inspect
import json

import commands
import pytest
import reference_data
from absl import flags
from absl.testing import flagsaver

pytestmark = pytest.mark.unit


def names_of(api):
  """Flattens api.json: the entry of every name."""
  found = {}
  for module, parts in api.items():
    for function, parameters in parts.get("functions", {}).items():
      found[f"{module}.{function}"] = parameters
    for cls, methods in parts.get("classes", {}).items():
      for method, parameters in methods.items():
        found[f"{module}.{cls}.{method}"] = parameters
    for flag, description in parts.get("flags", {}).items():
      found[f"{module}.--{flag}"] = description
  return found


with open(reference_data.golden("api.json"), encoding="utf-8") as file:
  api = json.load(file)
ORIGINAL = names_of(api["f39e881"]) | names_of(
  api["changed_or_added_in_last_version"]
)


@functools.cache
def defined_flags(script):
  with commands.in_process(importlib.import_module(script)):
    return {name: flags.FLAGS[name] for name in flags.FLAGS}


def test_names_bind_as_in_the_original():
  differences = {}
  for name, expected in ORIGINAL.items():
    module, *path = name.split(".")
    if path[0].startswith("--"):
      found = flag_difference(defined_flags(module), path[0][2:], expected)
    else:
      found = difference(importlib.import_module(module), path, expected)
    if found:
      differences[name] = found
  assert differences == {}


@pytest.mark.parametrize(
  "script", [name for name, parts in api["f39e881"].items() if parts["flags"]]
)
def test_flags_required_by_the_original_are_sufficient(script):
  required = [
    f"--{name}=a"
    for name, description in api["f39e881"][script]["flags"].items()
    if description.get("required")
  ]
  module = importlib.import_module(script)
  with commands.in_process(module), flagsaver.flagsaver():
    flags.FLAGS([script, *required])


def difference(module, path, expected):
  """Reason why calls of the original do not bind; None if they do."""
  value = module
  for part in path:
    if part in ("__init__", "fields"):
      break
    if not hasattr(value, part):
      return f"{value.__name__} has no {part}"
    owner, value = value, getattr(value, part)
  if path[-1] == "fields":
    same = list(value._fields[: len(expected)]) == expected
    return None if same else f"fields {value._fields}, not {expected}"
  if path[-1] == "__init__":
    expected = expected[1:]  # a class is called without `self`
  elif path[-1] in ("__str__", "__repr__"):
    own = owner.__repr__ is not object.__repr__
    return None if own or value is not object.__str__ else "shows an address"
  elif inspect.isclass(owner):
    value = getattr(value, "__func__", value)  # class methods with `cls`
  signature = inspect.signature(value)
  for wanted, parameter in zip(expected, signature.parameters.values()):
    default = eval(wanted.get("default", "None"), vars(module))
    # An argument that the original requires may have a default here.
    default_differs = "default" in wanted and (
      parameter.default is not default and parameter.default != default
    )
    if (
      default_differs
      or parameter.name != wanted["name"]
      or parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD
    ):
      return f"{parameter} instead of {wanted}"
  try:
    signature.bind(*expected)
  except TypeError as error:
    return str(error)
  return None


# Parser of each flag type.
PARSERS = {
  "bool": flags.BooleanParser,
  "integer": flags.IntegerParser,
  "float": flags.FloatParser,
}


def flag_difference(defined, name, expected):
  """Reason why a flag of the original does not work; None if it does."""
  if name not in defined:
    return f"no flag --{name}"
  flag = defined[name]
  if flag.default != expected["default"]:
    return f"default {flag.default!r}, not {expected['default']!r}"
  parser = type(flag.parser)
  if expected["type"] == "string":
    is_same = parser in (flags.ArgumentParser, flags.EnumParser)
  else:
    is_same = issubclass(parser, PARSERS[expected["type"]])
  if not is_same:
    return f"values are read by {parser.__name__}, not as {expected['type']}"
  return None
