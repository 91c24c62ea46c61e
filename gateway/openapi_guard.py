"""What OpenAPI says of keys: which requests want one, of which scope, and what they hear else."""

from __future__ import annotations

from typing import Any

from gateway.permissions import permission_for
from gateway.problems import MEDIA_TYPE, ProblemView

_SCHEME = "api_key"
_DESCRIPTION = (
    "`Authorization: Bearer sluice_…`. Needed beyond loopback, or always with AUTH=required; made "
    "with `sluice key create`."
)


def describe_guard(schema: dict[str, Any]) -> None:
    """Add to each operation what the guard in front of it asks for and answers."""
    components = schema.setdefault("components", {})
    components.setdefault("securitySchemes", {})[_SCHEME] = {
        "type": "http",
        "scheme": "bearer",
        "description": _DESCRIPTION,
    }
    problem = f"#/components/schemas/{ProblemView.__name__}"
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            permission = permission_for(method.upper(), path)
            if permission.public:
                continue
            # Either way: on loopback nobody needs one.
            operation["security"] = [{}, {_SCHEME: []}]
            between = " and " if permission.needs_all else " or "
            scopes = between.join(f"`{scope}`" for scope in sorted(permission.scopes))
            answers = {
                "401": "An API key is needed, or this one is not valid.",
                "403": f"The key has not the scope {scopes}." if scopes else "",
                "503": "Redis does not answer, so nobody can say whose key it is.",
            }
            for status, description in answers.items():
                if description:
                    operation["responses"].setdefault(
                        status,
                        {
                            "description": description,
                            "content": {MEDIA_TYPE: {"schema": {"$ref": problem}}},
                        },
                    )
