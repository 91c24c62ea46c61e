"""Keys, fields and other literals that gateway, worker and third parties agree on.

Names that are only written are plain string constants, grouped in classes. Names that are also
parsed from outside (a status, a task, a scope) are enums.
"""

from __future__ import annotations

from enum import Enum


def members_of(names: type) -> dict[str, str]:
    """The constants of a class of names, or the members of an enum: values by name."""
    if issubclass(names, Enum):
        return {member.name: member.value for member in names}
    return {name: value for name, value in vars(names).items() if name.isupper()}


def values_of(names: type) -> tuple[str, ...]:
    """The values of a class of names, in the order of their definition."""
    return tuple(members_of(names).values())
