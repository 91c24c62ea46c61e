"""All files, users, groups and enabled units of a machine, for comparison."""

from __future__ import annotations

from dataclasses import dataclass

from tests.system.machine import Machine

#: Paths that change by themselves or do not concern the installer.
IGNORED = (
    *("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/root"),
    *("/var/log", "/var/lib/systemd", "/var/lib/redis", "/var/cache", "/etc/.updated"),
    *("/var/.updated", "/etc/machine-id", "/etc/resolv.conf"),
    # Backup copies that every change of users creates.
    *("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-"),
    *("/etc/subuid-", "/etc/subgid-"),
)
#: Directories whose file contents are compared, too.
CONTENT = "/etc /opt /usr/local /lib/systemd"


@dataclass(frozen=True)
class Listing:
    """One machine at one moment; each line is one fact."""

    facts: frozenset[str]

    def changes_until(self, later: Listing, *, except_below: tuple[str, ...] = ()) -> list[str]:
        """Added and removed facts, except below some directories."""
        came = [f"+ {fact}" for fact in later.facts - self.facts]
        went = [f"- {fact}" for fact in self.facts - later.facts]
        return sorted(
            change
            for change in (*came, *went)
            if not any(
                f"{change.split()[2]}/".startswith(f"{directory}/") for directory in except_below
            )
        )


def listing(machine: Machine) -> Listing:
    """Everything that an uninstallation should restore."""
    pruned = " -o ".join(f"-path {path}" for path in IGNORED)
    files = machine.run(
        rf"find / \( {pruned} \) -prune -o -printf 'file %p %y %#m %U:%G %l\n'", timeout_s=120
    )
    spared = " ".join(f"! -path {path}" for path in IGNORED)
    sums = machine.run(
        f"find {CONTENT} -type f {spared} -print0 | xargs -0 sha256sum | "
        r"sed -E 's/^(\S+)  (.*)$/content \2 \1/'",
        timeout_s=120,
    )
    people = machine.run("getent passwd | sed 's/^/user /'; getent group | sed 's/^/group /'")
    units = machine.run(
        "systemctl list-unit-files --no-legend --no-pager | awk '{print \"unit\", $1, $2}'; "
        "systemctl list-units --type=service,socket --state=active --no-legend --plain "
        "| grep -E 'redis|sluice' | awk '{print \"active\", $1}'",
        code=None,
    )
    facts = "".join(part.stdout for part in (files, sums, people, units)).splitlines()
    return Listing(frozenset(facts))
