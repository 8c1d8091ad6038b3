"""``antecede demo``: the example in ``examples/demo``."""

from functools import partial

from antecede.cli.shipped import register_example

register = partial(register_example, "demo", "demo_command")
