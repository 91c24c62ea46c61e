"""`sluice doctor`: checks settings, Redis, gateway, queue, units and host, and prints fixes.

A check is a function that takes a `Machine` and returns findings. The checks of one subject are one
module; `sluice.ops.doctor.checks` lists them all.
"""
