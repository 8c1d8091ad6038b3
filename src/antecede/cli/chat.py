"""``antecede chat``: the example in ``examples/chat``."""

from functools import partial

from antecede.cli.shipped import register_example

register = partial(register_example, "chat/terminal", "chat_command")
