"""Flags declared as fields of dataclasses: type, default, help and range.

The settings class of a command is a frozen `CommandSettings`. Each of its
fields is a flag of the same name, declared by one of the functions below, or a
`group` of flags that several commands share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Callable, ClassVar, NamedTuple, TypeVar

from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError, english_list

# Ranges of numbers

# TensorFlow takes many counts as int32.
_MAX_INT = 2**31 - 1


class Range(NamedTuple):
  """Allowed values of a number; NaN and Inf never are."""

  low: float
  high: float = math.inf
  includes_low: bool = True  # whether `low` itself is allowed
  includes_high: bool = True
  excluded: float | None = None  # value between the bounds

  def __contains__(self, value: object) -> bool:
    # All comparisons with NaN are false.
    return (
      isinstance(value, Real)
      and -math.inf < value < math.inf
      and (self.low <= value if self.includes_low else self.low < value)
      and (value <= self.high if self.includes_high else value < self.high)
      and value != self.excluded
    )

  def __str__(self) -> str:
    """The range as words that follow "a number"; "" if it has no bounds."""
    if self.excluded is not None:  # more likely than a number that is too large
      return f"other than {self.excluded}"
    words = []
    has_low, has_high = self.low > -math.inf, self.high < math.inf
    if has_low and has_high and self.includes_low and self.includes_high:
      words.append(f"from {self.low} to {self.high}")
    else:
      if has_low:
        low = f"of {self.low} or more"
        words.append(low if self.includes_low else f"above {self.low}")
      if has_high:
        high = f"up to {self.high}"
        words.append(high if self.includes_high else f"below {self.high}")
    return ", ".join(words)

  def describe(self, kind: str) -> str:
    """The range with the kind of its numbers, such as "an integer"."""
    if not str(self):
      kind = kind.replace("number", "finite number")
    return f"{kind} {self}".rstrip()


FINITE = Range(-math.inf)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, includes_low=False)
FRACTION = Range(0, 1)
FRACTION_BELOW_1 = Range(0, 1, includes_high=False)
INTEGER = Range(-_MAX_INT - 1, _MAX_INT)
COUNT = Range(0, _MAX_INT)
AT_LEAST_1 = Range(1, _MAX_INT)
AT_LEAST_2 = Range(2, _MAX_INT)
COLUMN = INTEGER._replace(excluded=0)
# [CLS], a token and [SEP]; and arrays of one sequence that fit into memory.
SEQ_LENGTH = Range(3, 2**20)
# Threads or processes of one machine. TensorFlow crashes if it cannot start
# them; 0 is one per core.
PARALLEL = Range(0, 1024)
# File names give the number of shards five digits.
SHARDS = Range(0, 99999)


# Values that "auto" selects from, by flag.
AUTO_CHOICES = {
  "precision": ("float32", "bfloat16", "float16"),
  "xla": ("on", "off"),
}


def repeat_choices(choices: Mapping[str, str]) -> list[str]:
  """Flags that give another process the choices for "auto"."""
  # As a flag, "on" would compile evaluation and prediction on a GPU too.
  return [
    f"--{name}={value}"
    for name, value in choices.items()
    if (name, value) != ("xla", "on")
  ]


# Declarations

Settings = TypeVar("Settings", bound="CommandSettings")


class Group:
  """Base of a class of flags."""

  # Heading of the help for flags that name none, see `Flag`.
  SECTION: ClassVar[str]
  # What all flags need to have an effect, see `Flag`.
  NEEDS: ClassVar[str] = ""

  def check(self) -> None:
    """Refuses values that contradict each other; reads no files or devices."""

  def warnings(self) -> Iterator[str]:
    """Yields what is odd about the values."""
    return iter(())


class CommandSettings(Group):
  """Base of the settings class of a command."""

  EXAMPLE: ClassVar[str]  # a command line
  REQUIRED: ClassVar[Sequence[str]] = ()  # flags that must be given
  # Those of them that a model may bring, by its name or its folder, see
  # `initial_model.check`.
  BROUGHT_BY_MODEL: ClassVar[Sequence[str]] = ()
  REQUIRED_UNLESS: ClassVar[str | None] = None  # flag that replaces all
  # Words that are not flags are arguments, before, between and after flags.
  # Otherwise they are refused.
  TAKES_ARGUMENTS: ClassVar[bool] = False
  # Words after "--" are for another program.
  PASSES_ON_ARGUMENTS: ClassVar[bool] = False

  def completed(self: Settings) -> Settings:
    """The settings with those of the model's folder, for flags not given."""
    return self


@dataclasses.dataclass(frozen=True)
class Flag:
  """Declaration of a flag.

  Attributes:
    define: absl function that defines the flag, such as `flags.DEFINE_string`.
    default: value if the flag is not on the command line.
    help: one or two sentences: what the flag sets, its unit, special values.
    placeholder: word for the value in the help; None for a boolean flag.
    within: allowed values of a number, or of each number of a list.
    choices: allowed values of an enum.
    section: heading of the help, a key of `command_line.SECTIONS`. If None, the
      `SECTION` of the class.
    basic: list the flag under `--help` too, not only under `--helpfull`.
    name: name of the flag if it differs from the field's.
    short_name: one letter.
    alias: second name.
    is_output: whether it names a file or folder to write.
    kept: whether `model.json` keeps the value for later commands.
    needs: what the flag needs to have an effect: conditions on other flags,
      separated by commas, such as "do_train, not memory_gb" or "precision=int8
      or quantize=int8". Flags that the command lacks do not count.
  """

  define: Callable[..., Any]
  default: Any
  help: str
  placeholder: str | None = None
  within: Range | None = None
  choices: Sequence[str] | None = None
  section: str | None = None
  basic: bool = False
  name: str | None = None
  short_name: str | None = None
  alias: str | None = None
  is_output: bool = False
  kept: bool = False
  needs: str = ""

  def allows(self, value: Any) -> bool:
    """True if a value that is not from a command line may be the flag's."""
    if self.choices is not None:
      return value in self.choices
    kind = Integral if self.placeholder == "INTEGER" else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and value in self.within

  def without(self, *choices: str) -> Flag:
    """The flag with fewer choices."""
    left = [choice for choice in self.choices if choice not in choices]
    return dataclasses.replace(self, choices=left)

  @property
  def allowed(self) -> str:
    """The allowed values in words, of a flag with a number or with choices."""
    if self.choices is not None:
      return f"one of {', '.join(self.choices)}"
    is_integer = self.placeholder == "INTEGER"
    return self.within.describe("an integer" if is_integer else "a number")


class _IntegerList(flags.ArgumentParser):
  """Parser of integers that are separated by commas."""

  syntactic_help = "integers, separated by commas"

  def parse(self, argument: str | list[int]) -> list[int]:
    """Returns the integers; ValueError if an item is none."""
    if isinstance(argument, list):  # the default
      return argument
    try:
      return [int(item) for item in argument.split(",") if argument]
    except ValueError as error:
      raise ValueError(f"give {self.syntactic_help}") from error


# A function like `flags.DEFINE_list`.
_define_integers = functools.partial(
  flags.DEFINE, _IntegerList(), serializer=flags.CsvListSerializer(",")
)


def _declare(
  define: Callable[..., Any],
  placeholder: str | None,
  default: Any,
  help: str,
  within: Range | None = None,
  **attributes: Any,
) -> Any:
  """A field that is a flag; the arguments are attributes of `Flag`."""
  flag = Flag(define, default, help, placeholder, within, **attributes)
  if isinstance(default, list):  # dataclasses refuse mutable defaults
    default = tuple(default)
  return dataclasses.field(default=default, metadata={"flag": flag})


# Fields by the kind of flag, which take the arguments of `_declare` from
# `default` on. A number needs `within`.
text = functools.partial(_declare, flags.DEFINE_string, "TEXT")
path = functools.partial(_declare, flags.DEFINE_string, "PATH")
boolean = functools.partial(_declare, flags.DEFINE_bool, None)
integer = functools.partial(_declare, flags.DEFINE_integer, "INTEGER")
number = functools.partial(_declare, flags.DEFINE_float, "NUMBER")
# Separated by commas.
text_list = functools.partial(_declare, flags.DEFINE_list, "LIST")
integers = functools.partial(_declare, _define_integers, "LIST")
# One that can be given several times.
texts = functools.partial(_declare, flags.DEFINE_multi_string, "TEXT")


def choice(
  default: str | None, choices: Sequence[str], help: str, **attributes: Any
) -> Any:
  """A field with one of several strings."""
  attributes["choices"] = choices
  return _declare(flags.DEFINE_enum, "NAME", default, help, **attributes)


def group(settings: type, omit: Sequence[str] = (), **changes: Any) -> Any:
  """Flags that several commands share.

  Args:
    settings: class of the group.
    omit: fields that are not flags of this command; they keep their default.
    **changes: what this command declares differently, by field: attributes of
      `Flag` as a dict, or only the default.
  """
  declared = {}
  for field in dataclasses.fields(settings):
    if "flag" not in field.metadata or field.name in omit:
      continue
    change = changes.pop(field.name, {})
    if not isinstance(change, dict):
      change = {"default": change}
    flag = dataclasses.replace(field.metadata["flag"], **change)
    declared[field.name] = _of_class(flag, settings)
  if changes:
    raise TypeError(f"{settings.__name__} has no flag {', '.join(changes)}")
  return dataclasses.field(
    default_factory=lambda: settings(
      **{name: flag.default for name, flag in declared.items()}
    ),
    metadata={"flags": declared},
  )


def _of_class(flag: Flag, settings: type[Group]) -> Flag:
  """The flag with the section and the needs of its class."""
  needs = ", ".join(filter(None, [settings.NEEDS, flag.needs]))
  section = flag.section or settings.SECTION
  return dataclasses.replace(flag, section=section, needs=needs)


def declarations(settings: type) -> Iterator[tuple[str, Flag]]:
  """Yields the name and declaration of each flag of a settings class."""
  for field in dataclasses.fields(settings):
    if "flag" in field.metadata:
      flag = field.metadata["flag"]
      yield flag.name or field.name, _of_class(flag, settings)
    yield from field.metadata.get("flags", {}).items()


def declaration(settings: type, name: str) -> Flag:
  """Declaration of a flag of a settings class."""
  return dict(declarations(settings))[name]


def check_argument(name: str, value: Any, flag: Flag) -> None:
  """Refuses an argument of Python code that the flag would refuse."""
  if not flag.allows(value):
    raise InputError(f"{name}={value!r}: not allowed. Give {flag.allowed}")


def define(
  settings: type[CommandSettings],
  values: flags.FlagValues = flags.FLAGS,
  # Refuse missing and contradicting flags; not for another program with these
  # flags.
  required: bool = True,
) -> None:
  """Defines the flags of a settings class as flags of the command."""
  command = sys.argv[0]  # absl's name of the main module
  for name, flag in declarations(settings):
    others = {} if flag.choices is None else {"enum_values": flag.choices}
    flag.define(
      name,
      default=flag.default,
      help=flag.help,
      flag_values=values,
      short_name=flag.short_name,
      module_name=command,
      **others,
    )
    values.register_key_flag_for_module(command, values[name])
    if flag.alias:
      flags.DEFINE_alias(flag.alias, name, values, command)
  if "verbosity" in values:  # a flag of every program
    values["verbosity"].command = settings if required else CommandSettings
  if required and settings.REQUIRED:
    _require(settings, values)


def _require(settings: type[CommandSettings], values: flags.FlagValues) -> None:
  """Makes parsing fail if a flag is missing that nothing else replaces."""
  unless = settings.REQUIRED_UNLESS

  def check(found: Mapping[str, Any]) -> bool:
    missing = [name for name in names if found[name] in (None, "")]
    if not missing or (unless and found[unless]):
      return True
    raise flags.ValidationError(
      f"{english_list(f'--{name}' for name in missing)} must be given. For"
      f" example: {settings.EXAMPLE}"
    )

  names = [n for n in settings.REQUIRED if n not in settings.BROUGHT_BY_MODEL]
  known = [*names, unless] if unless else names
  flags.register_multi_flags_validator(known, check, flag_values=values)


def command_of(values: flags.FlagValues) -> type[CommandSettings]:
  """The class whose flags are defined; the base class for another program."""
  return getattr(values["verbosity"], "command", CommandSettings)


def check_values(
  settings: type[CommandSettings], values: flags.FlagValues = flags.FLAGS
) -> None:
  """Refuses values that their flag does not take, whatever the others are."""
  for name, flag in declarations(settings):
    value = values[name].value
    items = value if isinstance(value, list) else [value]
    if flag.within and not all(
      item in flag.within for item in items if item is not None
    ):
      kind = "an integer" if isinstance(value, int) else "a number"
      kind = "numbers" if isinstance(value, list) else kind
      raise InputError(
        f"{values[name].serialize()}: out of range. Give"
        f" {flag.within.describe(kind)}"
      )
    if any(isinstance(item, str) and "\0" in item for item in items):
      raise InputError(
        f"--{name}: contains a NUL character, which no name has. Remove it"
      )
    if value == "" and flag.is_output:
      raise InputError(f"--{name}=: names no file or folder. Give a path")


def groups(settings: CommandSettings) -> Iterator[Group]:
  """Yields the groups of flags of a command, and last its own flags."""
  for field in dataclasses.fields(settings):
    if "flags" in field.metadata:
      yield getattr(settings, field.name)
  yield settings


def from_flags(
  settings: type[Settings], values: flags.FlagValues = flags.FLAGS
) -> Settings:
  """Settings of a command from its parsed flags, checked."""
  check_values(settings, values)
  made = read_flags(settings, values).completed()
  for part in groups(made):
    part.check()
  return made


def warnings(
  settings: type[CommandSettings], values: flags.FlagValues = flags.FLAGS
) -> Iterator[str]:
  """Yields what is odd about parsed flags, such as one without effect."""
  made = from_flags(settings, values)
  for part in groups(made):
    yield from part.warnings()
  found, unused = values_of(made), {}
  # Given twice: a flag file is often shared by training and evaluation, which
  # then overrides the action.
  met = [name for name in found if values[name].present > 1]
  for name, flag in declarations(settings):
    if values[name].present and found[name] != flag.default:
      unmet = _unmet(flag.needs, found, met)
      unused.setdefault(unmet, []).append(f"--{name}")
  unused.pop(None, None)
  for unmet, names in unused.items():
    have = "have" if names[1:] else "has"
    yield f"{english_list(names)}: {have} no effect {unmet}"


def _unmet(
  needs: str,
  found: Mapping[str, Any],  # values of flags by name
  met: Sequence[str] = (),  # flags whose conditions are met with any value
) -> str | None:
  """First condition of `Flag.needs` that is not met, in words, or None."""
  for condition in filter(None, needs.split(", ")):
    terms = [
      re.fullmatch(r"(not )?([\w-]+)(=(.*))?", term).groups()
      for term in condition.split(" or ")
    ]
    terms = [term for term in terms if term[1] in found]
    if not terms or any(
      name in met or _is_met(found[name], wanted) != bool(negated)
      for negated, name, _, wanted in terms
    ):
      continue
    negated, name, value, _ = terms[0]
    return f"{'with' if negated else 'without'} --{name}{value or ''}"
  return None


def _is_met(value: Any, wanted: str | None) -> bool:
  """True if a flag has the value that is wanted, or is set at all."""
  return bool(value) if wanted is None else str(value).lower() == wanted


def read_flags(
  settings: type[Settings], values: flags.FlagValues = flags.FLAGS
) -> Settings:
  """Settings of a command from its parsed flags, unchecked."""
  own = dict(declarations(settings))
  found = {name: values[name].value for name in own}
  given = {name for name in own if values[name].present}
  for name, flag in own.items():
    if found[name] == "" and flag.placeholder == "PATH":  # as if not given
      found[name] = flag.default
      given.discard(name)
  # Fields that are not flags, in every class that has them.
  filled = {
    "given": frozenset(given),
    "command_line": tuple(
      argument
      for name in sorted(given)
      if name != "doctor"
      for argument in _arguments(values[name])
    ),
  }
  return fill(make(settings, **found), filled)


def _arguments(flag: flags.Flag) -> list[str]:
  """Arguments that give the value of a flag; several for one of `texts`."""
  if isinstance(flag, flags.MultiFlag):
    return [f"--{flag.name}={value}" for value in flag.value]
  return [flag.serialize()]


def fill(settings: Any, filled: Mapping[str, Any]) -> Any:
  """The settings with other values of fields, also in groups, by flag."""
  changed = {}
  for field in dataclasses.fields(settings):
    flag = field.metadata.get("flag")
    name = flag.name if flag and flag.name else field.name
    if "flags" in field.metadata:  # a group may have the name of a flag in it
      changed[field.name] = fill(getattr(settings, field.name), filled)
    elif name in filled:
      changed[field.name] = filled[name]
  return dataclasses.replace(settings, **changed)


def make(settings: type[Settings], **values: Any) -> Settings:
  """Creates settings without a command line.

  Args:
    settings: class of the command.
    **values: values of flags by name; other flags have their defaults.

  Raises:
    TypeError: the command has no such flag.
  """
  known = dict(declarations(settings))
  if unknown := [name for name in values if name not in known]:
    raise TypeError(f"{settings.__name__} has no flag {', '.join(unknown)}")
  return fill(settings(), values)


def values_of(settings: CommandSettings) -> dict[str, Any]:
  """Values of the flags of a command by name, from its settings."""
  found = {}
  for field in dataclasses.fields(settings):
    value = getattr(settings, field.name)
    if "flag" in field.metadata:
      found[field.metadata["flag"].name or field.name] = value
    for name in field.metadata.get("flags", {}):
      found[name] = getattr(value, name)
  return found


def kept_values(settings: CommandSettings) -> dict[str, Any]:
  """Values of the flags that `model.json` keeps, by name, if they are set."""
  values = values_of(settings)
  return {
    name: values[name]
    for name, flag in declarations(type(settings))
    if flag.kept
    and values[name] is not None
    # A default without effect, such as a language of one task, says nothing.
    and not (values[name] == flag.default and _unmet(flag.needs, values))
  }


def value_of(name: str, default: Any) -> Any:
  """Value of a flag, or default, for functions of the original that read it."""
  return flags.FLAGS[name].value if name in flags.FLAGS else default
