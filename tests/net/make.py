"""Keep the data of runs, pairs and histories that have none: `python -m tests.net.make`. What is there stays."""

from tests.net.sources import computed, histories, keep, kept, pairs, stored_runs


def make() -> None:
    new = {*stored_runs(), *pairs(), *histories()} - kept().keys()
    for name, tables in computed(new).items() if new else ():
        keep(name, tables)
        print(name)


if __name__ == "__main__":
    make()
