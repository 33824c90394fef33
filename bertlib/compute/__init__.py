"""Kernels behind `modeling.Compute`: its formula in less time or memory."""

from bertlib.compute.fast_compute import FastCompute as FastCompute
