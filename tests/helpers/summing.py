"""An agent that adds up what it gets, and replies with the sum."""

from antecede.engine import Agent, Context, Notification


class Add(Notification):
    amount: int


class Tell(Notification):
    pass


class Total(Notification):
    amount: int


class Sum(Agent):
    amount: int = 0

    def on_add(self, add: Add, ctx: Context) -> None:
        if add.amount < 0:
            raise ValueError("less than nothing")
        self.amount += add.amount

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Total(amount=self.amount))


class Named(Agent):
    """Cannot read the state of a sum."""

    amount: str = ""

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Total(amount=0))
