"""An agent that counts greetings and answers each."""

from antecede import Agent, Context, Notification


class Hello(Notification):
    name: str


class Greeting(Notification):
    text: str


class Greeter(Agent):
    greeted: int = 0

    def on_hello(self, hello: Hello, ctx: Context) -> None:
        self.greeted += 1
        ctx.reply(Greeting(text=f"Hello {hello.name}, you are number {self.greeted}."))
