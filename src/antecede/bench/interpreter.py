"""The description of the Python interpreter in the report of a benchmark. The build is important: a Python that was
built without optimizations is slower by a third."""

import platform
import sys
import sysconfig
from typing import Any


def interpreter() -> dict[str, Any]:
    """Return the version, the implementation and the build of this Python, and a line of text that contains all
    three."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimized = "--enable-optimizations" in arguments
    lto = "--with-lto" in arguments
    debug = bool(sysconfig.get_config_var("Py_DEBUG")) or hasattr(sys, "gettotalrefcount")
    name = f"{platform.python_implementation()} {platform.python_version()}"
    build = "a debug build" if debug else f"built {'with' if optimized else 'without'} optimizations"
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "optimized": optimized,
        "lto": lto,
        "debug": debug,
        "text": f"{name}, {build} ({platform.python_compiler()})",
    }
