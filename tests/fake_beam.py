"""Stand-in for the part of Apache Beam that this project uses.

For tests where Beam is not installed: one thread, elements pickled between
steps, grouped values in another order than they came in.
"""

import collections
import glob
import os
import pickle
from types import ModuleType, SimpleNamespace


class Pipeline:
  """Collects steps by `|`; applies them in `run`."""

  def __init__(self, options):
    self.options = options
    self._steps = []

  def __or__(self, step):
    self._steps.append(step)
    return self

  def run(self):
    counters.clear()
    elements = []
    for step in self._steps:
      try:
        elements = pickle.loads(pickle.dumps([*step.apply(elements)]))
      except Exception as error:
        message = f"{error} [while running '{step.name}']"
        raise type(error)(message) from error
    return SimpleNamespace(
      wait_until_finish=lambda: None,
      metrics=lambda: SimpleNamespace(query=query_counters),
    )


class Step:
  """A function of all elements, named by `"name" >> step`."""

  def __init__(self, apply):
    self.apply = apply

  def __rrshift__(self, name):
    self.name = name
    return self


def group_by_key(elements):
  groups = collections.defaultdict(list)
  for key, value in reversed(elements):
    groups[key].append(value)
  return groups.items()


def par_do(do_fn):
  def apply(elements):
    do_fn.setup()
    for element in elements:
      yield from do_fn.process(element)

  return Step(apply)


# Counters by namespace and name.
counters = collections.Counter()


def counter(namespace, name):
  def inc(value):
    counters[namespace, name] += value

  return SimpleNamespace(inc=inc)


def query_counters():
  return {
    "counters": [
      SimpleNamespace(
        key=SimpleNamespace(
          metric=SimpleNamespace(namespace=namespace, name=name)
        ),
        result=value,
      )
      for (namespace, name), value in counters.items()
    ]
  }


# A file system known only to Beam: `far://name` is the local file `name`.
SCHEME = "far://"


def local(path):
  return path.removeprefix(SCHEME)


def match(patterns):
  return [
    SimpleNamespace(
      metadata_list=[
        SimpleNamespace(path=SCHEME + path, size_in_bytes=os.path.getsize(path))
        for path in glob.glob(local(pattern))
      ]
    )
    for pattern in patterns
  ]


def create_file(path, compression_type):
  return open(local(path), "wb")


def open_file(path, compression_type):
  return open(local(path), "rb")


def rename(sources, targets):
  for source, target in zip(sources, targets):
    os.replace(local(source), local(target))


def modules():
  """Modules to put into `sys.modules`, by name."""
  contents = {
    "apache_beam": {
      "Create": lambda items: Step(lambda _: items),
      "DoFn": object,
      "FlatMap": lambda function, *more: Step(
        lambda items: [made for item in items for made in function(item, *more)]
      ),
      "GroupByKey": lambda: Step(group_by_key),
      "Map": lambda function, *more: Step(
        lambda items: [function(item, *more) for item in items]
      ),
      "ParDo": par_do,
      "Pipeline": Pipeline,
      "Reshuffle": lambda: Step(reversed),
      "combiners": SimpleNamespace(ToList=lambda: Step(lambda items: [items])),
      "metrics": SimpleNamespace(Metrics=SimpleNamespace(counter=counter)),
    },
    "apache_beam.io": {},
    "apache_beam.io.filesystem": {
      "CompressionTypes": SimpleNamespace(UNCOMPRESSED="uncompressed")
    },
    "apache_beam.io.filesystems": {
      "FileSystems": SimpleNamespace(
        create=create_file,
        delete=lambda paths: [os.remove(local(path)) for path in paths],
        exists=lambda path: os.path.exists(local(path)),
        match=match,
        open=open_file,
        rename=rename,
      )
    },
    "apache_beam.options": {},
    "apache_beam.options.pipeline_options": {"PipelineOptions": list},
  }
  found = {}
  for name, names in contents.items():
    found[name] = ModuleType(name)
    vars(found[name]).update(names)
  return found
