"""`sluice doctor`: checks Redis, gateway, queue, units and host, and names the fix of each fault.

A check is a function that gets a `Machine` and returns findings. One family of checks is one
module; `ops.doctor.checks` lists them all.
"""
