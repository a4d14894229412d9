"""Run the cases of the VCube-PS paper's experiments.

Systems:

- `VCube-PS`: the cube.
- `VCube-PS, window 8`: the cube with several events per node and topic in flight, the default in
  production.
- `SRPT` or `SRPT-S`: one tree per topic over all nodes, with a random root.
- `SRPT-B`: one tree per topic over brokers.

Random choices depend on the seed and the size of a case, and are the same for all systems.
"""

from collections.abc import Iterator
from itertools import accumulate
from math import log
from random import Random
from statistics import fmean

from ensue.core.event import Event
from experiments.causal.model import TOPIC_NAME, UNIT_NS, Cost, Run
from experiments.causal.srpt import broker_plan, subscriber_plan
from experiments.experiment import Case, Row, row

__all__ = [
    "BINS",
    "answers",
    "churn",
    "run_answers",
    "run_brokers",
    "run_churn",
    "run_publishers",
    "run_queues",
    "run_single",
    "run_topics",
    "system",
]

CUBE, WINDOWED = "VCube-PS", "VCube-PS, window 8"
BINS = ((0, 0), (0, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 4096), (4096, 8192))
"""The groups of Table 1: above the first number, up to the second."""
BROKERED = 16
"""Nodes per broker in the experiments on churn."""


def system(name: str, count: int, subscribers: list[int], cost: Cost, seed: int) -> Run:
    """Return a simulation of a system."""
    run = Run(cost, seed)
    if name == CUBE:
        run.add_cube(count, subscribers)
    else:
        root = Random(f"root/{seed}").randrange(count)
        run.add_srpt(count, {TOPIC_NAME: subscriber_plan(count, root, subscribers)})
    return run


def run_single(case: Case) -> Iterator[Row]:
    """Figure 4: one subscriber publishes once."""
    count, share, seed = case["nodes"], case["subscribed"], case["seed"]
    random = Random(f"single/{count}/{share}/{seed}")
    subscribers = sorted(random.sample(range(count), max(2, round(count * share))))
    run = system(case["system"], count, subscribers, Cost(), seed)
    run.publish(random.choice(subscribers), 0)
    series = f"{case['system']}, {share:.0%} subscribed"
    yield row("4a", series, count, run.to_end())
    yield row("4b", series, count, run.copies)


def run_publishers(case: Case) -> Iterator[Row]:
    """Figure 5: some nodes publish once each, at random times from 0 to 1000 units."""
    count, share, seed = case["nodes"], case["publishing"], case["seed"]
    random = Random(f"publishers/{count}/{share}/{seed}")
    cost = Cost(copy=1, propagation=case["propagation"])
    run = system(case["system"], count, list(range(count)), cost, seed)
    for number in random.sample(range(count), max(1, round(count * share))):
        run.publish(number, random.uniform(0, 1000))
    figure = "5a" if case["propagation"] == 100 else "5b"
    yield row(figure, f"{case['system']}, {share:.0%} publish", count, run.to_end())


def run_queues(case: Case) -> Iterator[Row]:
    """Table 1: every node publishes once; measure the length of the queues."""
    count, seed = case["nodes"], case["seed"]
    random = Random(f"queues/{count}/{seed}")
    run = system(case["system"], count, list(range(count)), Cost(copy=1), seed)
    for number in range(count):
        run.publish(number, random.uniform(0, 1000))
    run.to_end()
    lengths = run.queues()
    for index, (low, high) in enumerate(BINS):
        among = sum(low < each <= high or (each == low == high) for each in lengths)
        yield row(f"Table 1, {count} nodes", case["system"], index, among)
    yield row("longest queue", case["system"], count, max(lengths))
    yield row("longest queue at its worst", case["system"], count, run.longest_queue())
    if case["system"] != CUBE:
        yield row("forward nothing", case["system"], count, run.leaves())
    yield row("middle queue", case["system"], count, sorted(lengths)[len(lengths) // 2])


def answers(count: int, first: int, wait: float, seed: int) -> Run:
    """Run `first` nodes that publish a question each, and all others, which answer once.

    A node answers after it has received every question and waited a random time, `wait` units on
    average.
    """
    random = Random(f"barriers/{count}/{first}/{wait}/{seed}")
    askers = random.sample(range(count), first)
    run = system(CUBE, count, list(range(count)), Cost(), seed)
    received = {f"p{number}": 0 for number in range(count)}
    asking = {f"p{number}" for number in askers}

    def react(name: str, event: Event) -> None:
        if event.publisher in asking and event.publisher_seq == 1 and name not in asking:
            received[name] += 1
            if received[name] == first:
                at_units = run.world.now_ns / UNIT_NS - 1000 + random.expovariate(1 / wait)
                run.publish(int(name[1:]), at_units)

    run.when_delivered(react)
    for number in askers:
        run.publish(number, 0)
    run.to_end()
    return run


def run_answers(case: Case) -> Iterator[Row]:
    """Figure 6: how many predecessors an event names, and how long it waits for them."""
    first = case["questions"]
    run = answers(case["nodes"], first, case["wait"], case["seed"])
    sizes, held = sorted(run.barriers.values()), run.held
    series = f"{first} question{'s' if first > 1 else ''}"
    for bound in (1, 2, 3, 5, 7, 10, 11, 15, 20, 30, 40):
        yield row("6", series, bound, sum(size < bound for size in sizes) / len(sizes))
    one = sum(size == first for size in sizes) / len(sizes)
    yield row("as many as questions", series, first, one)
    yield row("no delay", series, first, sum(each < 1e-9 for each in held) / len(held))
    yield row("less than 10 units", series, first, sum(each < 10 for each in held) / len(held))


def run_topics(case: Case) -> Iterator[Row]:
    """Figure 7: events over many topics, used evenly or by popularity.

    The events of a node are `apart` units apart on average. In the cube as published, the next
    event of a topic waits for all acknowledgements of the previous one; the other has a window.
    """
    count, topics, events, seed = case["nodes"], case["topics"], case["events"], case["seed"]
    random = Random(f"topics/{count}/{topics}/{events}/{case['law']}/{seed}")
    names = [f"t{number}" for number in range(topics)]
    nodes = list(range(count))
    run = Run(Cost(copy=1, propagation=case["propagation"]), seed)
    if case["system"] in (CUBE, WINDOWED):
        run.add_cube(count, nodes, names, published=case["system"] == CUBE)
    else:
        roots = Random(f"roots/{seed}")
        plans = {name: subscriber_plan(count, roots.randrange(count), nodes) for name in names}
        run.add_srpt(count, plans)
    power = 0.825 if case["law"] == "Zipf" else 0.0
    bounds = list(accumulate((rank + 1) ** -power for rank in range(topics)))
    at_units = [0.0] * count
    for index in range(events):
        node = index % count
        at_units[node] += random.expovariate(1 / case["apart"])
        run.publish(node, at_units[node], random.choices(names, cum_weights=bounds)[0])
    series = f"{case['system']}, {case['law']}"
    yield row("7", series, events, run.to_end())
    if case["system"] in (CUBE, WINDOWED):
        yield row("7 waited", series, events, run.waited())


def run_brokers(case: Case) -> Iterator[Row]:
    """Figure 9: the cube and both forms of SRPT."""
    count, brokers, seed = case["nodes"], case["brokers"], case["seed"]
    random = Random(f"brokers/{count}/{seed}")
    run = Run(Cost(), seed)
    nodes = list(range(count))
    if case["system"] == CUBE:
        run.add_cube(count, nodes)
    elif brokers:
        run.add_srpt(count, {TOPIC_NAME: broker_plan(count, brokers, 7 % brokers)})
    else:
        run.add_srpt(count, {TOPIC_NAME: subscriber_plan(count, 7, nodes)})
    at_units = 0.0
    for _ in range(case["events"]):
        at_units += random.expovariate(1 / 500)
        run.publish(random.randrange(count // 2, count), at_units)
    run.to_end()
    yield row("9", case["system"], brokers or count, fmean(run.latencies))


def churn(case: Case) -> tuple[Run, dict[int, float]]:
    """Prepare a run in which another node replaces each member that leaves.

    Every 500 units, one of the quarter of the members that joined first publishes. Return the run,
    not yet started, and the members at its end with the time when each joined: 0 for those that
    stay all the time.
    """
    count, members, seed = case["nodes"], case["members"], case["seed"]
    random = Random(f"churn/{count}/{members}/{case['replaced']}/{seed}")
    brokers = count // BROKERED if case["system"] == "SRPT-B" else 0
    # Brokers are the first nodes, in addition to all others.
    outside = list(range(brokers, brokers + count))
    random.shuffle(outside)
    inside = [outside.pop() for _ in range(members)]
    run = Run(Cost(copy=1), seed)
    if case["system"] == CUBE:
        run.add_cube(count, inside, fixed=False)
    elif brokers:
        plan = broker_plan(brokers + count, brokers, 7 % brokers, inside)
        run.add_srpt(brokers + count, {TOPIC_NAME: plan})
    else:
        run.add_srpt(count, {TOPIC_NAME: subscriber_plan(count, 7, inside)})
    since = dict.fromkeys(inside, 0.0)
    end_units = case["lasts"] * 1000.0
    events = [(index * 500.0, "publish") for index in range(int(end_units / 500))]
    at_units = random.expovariate(case["replaced"] / 1000) if case["replaced"] else end_units
    while at_units < end_units:
        events.append((at_units, "replace"))
        at_units += random.expovariate(case["replaced"] / 1000)
    for at_units, what in sorted(events):
        if what == "publish":
            longest = sorted(inside, key=since.__getitem__)[: max(1, len(inside) // 4)]
            run.publish(random.choice(longest), at_units)
        else:
            leaving = inside.pop(random.randrange(len(inside)))
            joining = outside.pop(random.randrange(len(outside)))
            run.change(leaving, at_units, joins=False)
            run.change(joining, at_units, joins=True)
            inside.append(joining)
            outside.append(leaving)
            since[joining] = at_units
    return run, {number: since[number] for number in inside}


def run_churn(case: Case) -> Iterator[Row]:
    """Figure 8: latency while members join and leave."""
    run, _ = churn(case)
    latency = run.to_end()
    if case["varies"] == "members":
        figure, at, series = "8a", case["members"], f"{case['system']}, {_stay(case)}"
    else:
        figure, at, series = "8b", case["replaced"], case["system"]
    yield row(figure, series, at, latency)
    yield row(f"{figure} forwarded", series, at, 100 * (1 - len(run.latencies) / run.copies))
    yield row(f"{figure} wait", series, at, max(run.waits()))


def _stay(case: Case) -> str:
    """Describe how long half of the members stay."""
    if not case["replaced"]:
        return "static"
    return f"{round(case['members'] * log(2) / case['replaced'] / 60)} min"
