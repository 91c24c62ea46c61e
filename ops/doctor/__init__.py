"""`sluice doctor`: looks at Redis, gateway, queue, units and host, and names the fix of each fault.

A check is a function of a `Box`, the machine as the doctor may see it, and answers with findings;
one family of checks is one file, all of them are listed in `ops.doctor.registry`.
"""
