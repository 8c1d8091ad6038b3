"""``python -m antecede`` is the ``antecede`` command."""

import sys

from antecede.crashes import guarded


def main() -> None:
    """Run the command line and exit, also if its modules cannot be imported."""
    sys.exit(guarded(_run))


def _run() -> int:
    from antecede.cli import main

    return main()


if __name__ == "__main__":
    main()
