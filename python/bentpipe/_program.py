"""The protocol radius, and the experiments of the installed program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from typing import Any, Dict, Optional, Union

from . import _core
from ._errors import LabError


def radius(delay_s: Optional[float] = None, outage_s: float = 0.0) -> Dict[str, Any]:
    """How far the timers of today's protocols let them reach: the document of ``bentpipe radius --json``.

    delay_s: asks for a path with this one-way delay, in seconds; each protocol then has a ``verdict``.
    outage_s: the longest interruption of that path, in seconds.

    Times are in seconds, one way, and distances in kilometres; None is what never happens. ValueError for a time below
    zero.
    """
    document: Dict[str, Any] = json.loads(_core.radius(delay_s, outage_s))
    return document


def lab(
    name: str,
    *,
    seeds: Optional[int] = None,
    out: Union[None, str, os.PathLike[str]] = None,
    program: Optional[str] = None,
) -> Dict[str, Any]:
    """Runs an experiment in virtual time and returns the document of ``bentpipe lab run NAME --json``.

    It takes the installed program, as experiments need more of the project than this package has; minutes, as a rule.

    name: of an experiment, as ``bentpipe lab list`` has them.
    seeds: with how many each setting runs; by default the experiment's own number.
    out: a folder for its figures, tables and page. Without it they are not kept, though the document names them.
    program: the program's path; by default ``BENTPIPE`` of the environment, or ``bentpipe`` on the search path.

    LabError if there is no such program, or if it fails; KeyboardInterrupt ends it.
    """
    found = program or os.environ.get("BENTPIPE") or shutil.which("bentpipe")
    if found is None:
        raise LabError("cannot run an experiment: the program bentpipe is not installed; install it, or give program=")
    with tempfile.TemporaryDirectory(prefix="bentpipe-lab-") as scratch:
        command = [found, "lab", "run", name, "--json", "--out", os.fspath(out or scratch)]
        if seeds is not None:
            command += ["--seeds", str(seeds)]
        try:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        except OSError as error:
            raise LabError(f"cannot start {found}: {error}; give the program's path by program=") from error
    try:
        document: Dict[str, Any] = json.loads(ended.stdout)
    except json.JSONDecodeError as error:
        said = ended.stderr.strip() or f"its exit code is {ended.returncode}"
        raise LabError(f"the experiment {name} failed: {said}") from error
    return document
