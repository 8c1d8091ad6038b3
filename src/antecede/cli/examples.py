"""The groups of commands in ``antecede --help``, and the examples in the help of each command. A test parses every
example."""

PANELS = {
    "First steps": ("demo", "chat", "report", "lanes", "version", "help"),
    "Judge a trace": ("verify", "explain", "measure", "races", "plan", "import", "export", "sample"),
    "Compare protocols": ("play", "simulate", "explore", "orders", "sweep"),
    "Run servers": (
        "topology",
        "up",
        "serve",
        "send",
        "status",
        "acknowledge",
        "dead",
        "client",
        "credentials",
        "inspect",
        "objects",
        "backup",
        "restore",
        "unit",
    ),
}
"""The groups of commands in ``antecede --help``, in this sequence: each group's title, and the names of its
commands."""

FIRST_STEPS = (
    "First steps: `antecede demo` shows what order is. `antecede simulate --order none --trace run.jsonl` makes a "
    "trace, then `antecede report run.jsonl` judges the trace. `antecede COMMAND --help` shows examples of a command. "
)

EXAMPLES = {
    "acknowledge": ["antecede acknowledge shop.toml"],
    "backup": [
        "antecede backup shop.toml backups/monday",
        "antecede backup shop.toml backups/monday --data data",
    ],
    "chat": ["antecede chat", "antecede chat chat/chat.toml --name ann --server s1"],
    "client list": ["antecede client list shop.toml", "antecede client list shop.toml --away --json"],
    "client remove": ["antecede client remove shop.toml alice@s1"],
    "client unsubscribe": ["antecede client unsubscribe shop.toml alice@s1 news"],
    "credentials create": [
        "antecede credentials create shop.toml --client alice --client bob",
        "antecede credentials create shop.toml --operator night-shift --days 30",
    ],
    "credentials revoke": ["antecede credentials revoke shop.toml alice"],
    "credentials rotate": ["antecede credentials rotate shop.toml alice"],
    "credentials show": ["antecede credentials show shop.toml"],
    "dead bury": ["antecede dead bury shop.toml s1.5f9c8a.2"],
    "dead drop": ["antecede dead drop shop.toml alice@s1"],
    "dead list": ["antecede dead list shop.toml", "antecede dead list tcp://127.0.0.1:7101 --json"],
    "dead replay": ["antecede dead replay shop.toml s1.5f9c8a.2", "antecede dead replay shop.toml --all"],
    "dead show": ["antecede dead show shop.toml s1.5f9c8a.2"],
    "demo": ["antecede demo", "antecede demo --no-live"],
    "explain": [
        "antecede explain run.jsonl",
        "antecede explain data --message s1.5f9c8a.2 --svg why.svg",
        "antecede explain run.jsonl --order total",
    ],
    "explore": ["antecede explore --order pruned --processes 3 --messages 3"],
    "export": ["antecede export run.jsonl --to perfetto -o run.json", "antecede export run.jsonl --to mermaid"],
    "help": ["antecede help", "antecede help topology check"],
    "import": [
        "antecede import spans.json --to trace.jsonl",
        "antecede import app.log --preview --send sent --deliver received "
        "--pattern '(?P<process>\\w+) +(?P<kind>sent|received) (?P<message>\\S+)'",
    ],
    "inspect": [
        "antecede inspect data/s1",
        "antecede inspect data/s1 --records --first 20",
        "antecede inspect backups/monday --verify",
    ],
    "lanes demo": ["antecede lanes demo", "antecede lanes demo --on redis"],
    "measure": ["antecede measure run.jsonl", "antecede measure data --tables figures"],
    "objects call": ["antecede objects call examples/bank.toml anna deposit 10"],
    "objects conflicts": ["antecede objects conflicts examples/bank.py"],
    "objects simulate": ["antecede objects simulate"],
    "objects study": ["antecede objects study"],
    "orders": ["antecede orders", "antecede orders --json"],
    "plan": ["antecede plan run.jsonl", "antecede plan traffic.csv --order updates --write plan.toml"],
    "play": ["antecede play figure.txt --order none,fifo,matrix", "antecede play figure.txt --svg figure.svg"],
    "races": ["antecede races run.jsonl --assume fifo", "antecede races data --within 0.01 --first 5"],
    "report": ["antecede report run.jsonl -o report.html", "antecede report data --order fifo,causal,total"],
    "restore": [
        "antecede restore backups/monday restored",
        "antecede restore backups/monday restored --topology elsewhere.toml",
    ],
    "sample": ["antecede sample", "antecede sample chat"],
    "send": ['antecede send shop.toml orders Order \'{"item": "tea"}\''],
    "serve": ["antecede serve shop.toml --server s1 --data data/s1 --trace"],
    "simulate": [
        "antecede simulate --order pruned --processes 8 --messages 400",
        "antecede simulate --order none --messages 300 --multicast --trace run.jsonl",
        "antecede simulate --topology examples/snowflake.toml --messages 1000",
    ],
    "status": ["antecede status shop.toml", "antecede status shop.toml --watch 1"],
    "sweep": ["antecede sweep stamps --scale 0.1 --out results"],
    "topology apply": [
        "antecede topology apply new.toml --dry-run",
        "antecede topology apply new.toml",
        "antecede topology apply new.toml --data data",
    ],
    "topology abort": ["antecede topology abort shop.toml", "antecede topology abort --data data"],
    "topology history": ["antecede topology history shop.toml", "antecede topology history --data data"],
    "topology resolve": ["antecede topology resolve shop.toml --decision abandon"],
    "topology check": ["antecede topology check shop.toml", "antecede topology check shop.toml --classes"],
    "topology forget": ["antecede topology forget shop.toml A"],
    "topology make": ["antecede topology make bus --servers 48 -o bus.toml"],
    "topology show": ["antecede topology show examples/snowflake.toml --svg snowflake.svg"],
    "unit": [
        "antecede unit /etc/antecede/shop.toml -o /etc/systemd/system",
        "antecede unit /etc/antecede/shop.toml --server s1 --option=--trace --option=--metrics=9100",
    ],
    "up": ["antecede up examples/hello.toml", "antecede up shop.toml --data data --trace"],
    "verify": [
        "antecede verify run.jsonl",
        "antecede verify data --order fifo,causal,total --json",
        "antecede verify s3://bucket/run-17/ --master spark://host:7077",
    ],
    "version": ["antecede version", "antecede version --json"],
}
"""For each command: the command lines that its help shows as examples."""

ALWAYS_JSON = (
    "client remove",
    "client unsubscribe",
    "dead bury",
    "dead drop",
    "dead replay",
    "dead show",
    "topology forget",
)
"""Commands that always print JSON. They accept the option ``--json``, but it changes nothing."""
