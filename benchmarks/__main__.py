"""``./run bench NAME OPTIONS``: run one benchmark. The exit code is 2 if an option is wrong or a program is missing."""

import os
import sys
from importlib import import_module

from antecede.errors import AntecedeError
from benchmarks.common import NAMES, root


def main(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name not in NAMES:
        print(f"usage: ./run bench NAME [--help] [--json] [OPTIONS]\nNAME: {', '.join(NAMES)}", file=sys.stderr)
        print(f"What each measures: {root}/benchmarks/README.md", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    try:
        return int(import_module(f"benchmarks.{name}").main(rest))
    except (AntecedeError, ModuleNotFoundError) as error:
        print(f"./run bench {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
