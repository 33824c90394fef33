"""Devices: CPUs, GPUs, replicas, TPUs, and the Estimator that runs on them."""
