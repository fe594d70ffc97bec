"""How much of the host's memory is free for this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def free_host_memory() -> int:
    """Return the free bytes; the processes of a run divide them equally."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # torchrun sets it
    return min([_available(), *_left_in_groups()]) // processes


def _available() -> int:
    """Return what the system can give without swapping; all memory if it does not say."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":") for line in table.read_text().splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0])


def _left_in_groups() -> Iterator[int]:
    """Yield what the limits of a container or a job leave; cached pages of files count as free."""
    try:
        path = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
    except OSError:
        return
    own = CGROUPS / path.lstrip("/")
    for folder in (own, *own.parents):
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # no such group, or "max"
            continue
        counts = dict(line.split() for line in lines)
        yield limit - used + int(counts.get("inactive_file", 0))
