"""``python -m antecede`` is the ``antecede`` command."""

import signal
import sys
from contextlib import suppress

from antecede.crashes import guarded


def main() -> None:
    """Run the ``antecede`` command and end this process with the command's exit code. The exit code is 2 if the modules
    of the command cannot be imported."""
    code = guarded(_run)
    # The command has ended: Ctrl-C during Python's own shutdown would only print a traceback.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int:
    from antecede.cli import main

    return main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # ``python -m`` looks into the current folder first, where a file may have the name of a module that we need.
        sys.path.append(sys.path.pop(0))
    main()
