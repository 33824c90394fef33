"""TPU discovery."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import tensorflow.compat.v1 as tf

from bertlib.cli.errors import InputError
from bertlib.io.files import is_remote
from bertlib.settings.common import DeviceSettings


def find_cluster(flags: DeviceSettings, files: Mapping[str, str | None]):
  """Finds a TPU that answers and can read `files`; None for a `master`."""
  tpu_name, master = flags.tpu_name, flags.master
  named = tpu_name or master
  if not named:
    raise InputError(
      "--use_tpu: no TPU is named. Give --tpu_name=NAME or"
      " --tpu_name=grpc://HOST:PORT, or --tpu_name=local on a TPU VM"
    )
  # `files` are the paths that the TPU reads and writes, by flag.
  for flag, path in files.items():
    if path and not is_remote(path) and not _is_local(named):
      raise InputError(
        f"--{flag}={path}: is on this machine, where the TPU {named} cannot"
        " read it. Give a path in Cloud Storage, gs://BUCKET/..."
      )
  if not tpu_name:
    _check_answers(master)
    return None
  try:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu_name, zone=flags.tpu_zone, project=flags.gcp_project
    )
    address = cluster.master()
  except Exception as error:  # network, missing library, credentials, ...
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"--tpu_name={tpu_name}: its address was not found in Google Cloud"
      f" ({reason}). Outside Google Cloud, or without google-api-python-client"
      " and credentials, give the address, grpc://HOST:PORT"
    ) from error
  _check_answers(address)
  return cluster


def _is_local(named: str) -> bool:
  """True if a TPU, by name or address, is in this machine."""
  hosts = ("localhost", "127.0.0.1", "::1")
  try:
    return named == "local" or urlsplit(named).hostname in hosts
  except ValueError:  # an address such as grpc://[::1
    return False


def _check_answers(address: str) -> None:
  """Raises InputError if no TPU answers at an address or in this machine."""
  if address in ("", "local"):
    with tf.Session("", graph=tf.Graph()) as session:
      if any(d.device_type == "TPU" for d in session.list_devices()):
        return
    raise InputError(
      "--tpu_name=local: TensorFlow finds no TPU in this machine. Run this on a"
      " TPU VM, with the TensorFlow build for TPUs"
    )
  if not address.startswith("grpc://"):
    return
  try:
    url = urlsplit(address)
    socket.create_connection((url.hostname, url.port), timeout=5).close()
  except (OSError, ValueError, TypeError) as error:
    raise InputError(
      f"{address}: no TPU answers there ({error}). Check that the TPU is"
      " running, that the address has the form grpc://HOST:PORT, and that this"
      " machine may connect to it"
    ) from error
