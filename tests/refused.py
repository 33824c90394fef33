"""Asserts that input is refused."""

import re

import pytest

from bertlib.cli.errors import InputError


def refusal(action, *arguments, **options):
  """The message of the InputError that an action raises, one line."""
  with pytest.raises(InputError) as refused:
    action(*arguments, **options)
  message = str(refused.value)
  assert "\n" not in message
  return message


def assert_refused(pattern, action, *arguments, **options):
  """Asserts that an action raises an InputError that has a pattern."""
  message = refusal(action, *arguments, **options)
  assert re.search(pattern, message), message
