"""The cases of the VCube-PS paper's experiments, played.

Systems are `VCube-PS`, the cube; `VCube-PS, window 8`, the same with several events of a node and topic under way, as it is by default in production; `SRPT` or `SRPT-S`, one tree a topic over all nodes, rooted anywhere; and `SRPT-B`, the same over brokers. Whatever is drawn is drawn
from the seed and the size of a case, the same for all systems.
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
    "play_answers",
    "play_brokers",
    "play_churn",
    "play_publishers",
    "play_queues",
    "play_single",
    "play_topics",
    "system",
]

CUBE, WINDOWED = "VCube-PS", "VCube-PS, window 8"
BINS = ((0, 0), (0, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 4096), (4096, 8192))
"""The groups of Table 1: more than the first, up to the second."""
BROKERED = 16
"""With members that come and go, a broker for every so many nodes."""


def system(name: str, count: int, subscribers: list[int], cost: Cost, seed: int) -> Run:
    """Return a world with a system in it."""
    run = Run(cost, seed)
    if name == CUBE:
        run.add_cube(count, subscribers)
    else:
        root = Random(f"root/{seed}").randrange(count)
        run.add_srpt(count, {TOPIC_NAME: subscriber_plan(count, root, subscribers)})
    return run


def play_single(case: Case) -> Iterator[Row]:
    """Figure 4: let one subscriber publish once."""
    count, share, seed = case["nodes"], case["subscribed"], case["seed"]
    random = Random(f"single/{count}/{share}/{seed}")
    subscribers = sorted(random.sample(range(count), max(2, round(count * share))))
    run = system(case["system"], count, subscribers, Cost(), seed)
    run.publish(random.choice(subscribers), 0)
    series = f"{case['system']}, {share:.0%} subscribed"
    yield row("4a", series, count, run.go())
    yield row("4b", series, count, run.copies)


def play_publishers(case: Case) -> Iterator[Row]:
    """Figure 5: let some of the nodes publish once each, at any time from 0 to 1000 units."""
    count, share, seed = case["nodes"], case["publishing"], case["seed"]
    random = Random(f"publishers/{count}/{share}/{seed}")
    cost = Cost(copy=1, propagation=case["propagation"])
    run = system(case["system"], count, list(range(count)), cost, seed)
    for number in random.sample(range(count), max(1, round(count * share))):
        run.publish(number, random.uniform(0, 1000))
    figure = "5a" if case["propagation"] == 100 else "5b"
    yield row(figure, f"{case['system']}, {share:.0%} publish", count, run.go())


def play_queues(case: Case) -> Iterator[Row]:
    """Table 1: let every node publish once, and look how long the queues were."""
    count, seed = case["nodes"], case["seed"]
    random = Random(f"queues/{count}/{seed}")
    run = system(case["system"], count, list(range(count)), Cost(copy=1), seed)
    for number in range(count):
        run.publish(number, random.uniform(0, 1000))
    run.go()
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
    """Let `first` nodes publish, and every other node answer once it has heard all of those, after a wait that is drawn, `wait` units on average."""
    random = Random(f"barriers/{count}/{first}/{wait}/{seed}")
    askers = random.sample(range(count), first)
    run = system(CUBE, count, list(range(count)), Cost(), seed)
    heard = {f"p{number}": 0 for number in range(count)}
    asking = {f"p{number}" for number in askers}

    def react(name: str, event: Event) -> None:
        if event.publisher in asking and event.publisher_seq == 1 and name not in asking:
            heard[name] += 1
            if heard[name] == first:
                at_units = run.world.now_ns / UNIT_NS - 1000 + random.expovariate(1 / wait)
                run.publish(int(name[1:]), at_units)

    run.when_delivered(react)
    for number in askers:
        run.publish(number, 0)
    run.go()
    return run


def play_answers(case: Case) -> Iterator[Row]:
    """Figure 6: how many predecessors events name, and how long they wait for them."""
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


def play_topics(case: Case) -> Iterator[Row]:
    """Figure 7: events spread over many topics, evenly or by popularity; those of a node are so many units apart on average.

    The cube is as published, where a topic's next event waits for all acknowledgements of the one before, or has a window.
    """
    count, topics, events, seed = case["nodes"], case["topics"], case["events"], case["seed"]
    random = Random(f"topics/{count}/{topics}/{events}/{case['law']}/{seed}")
    names = [f"t{number}" for number in range(topics)]
    everybody = list(range(count))
    run = Run(Cost(copy=1, propagation=case["propagation"]), seed)
    if case["system"] in (CUBE, WINDOWED):
        run.add_cube(count, everybody, names, published=case["system"] == CUBE)
    else:
        roots = Random(f"roots/{seed}")
        plans = {name: subscriber_plan(count, roots.randrange(count), everybody) for name in names}
        run.add_srpt(count, plans)
    power = 0.825 if case["law"] == "Zipf" else 0.0
    bounds = list(accumulate((rank + 1) ** -power for rank in range(topics)))
    at_units = [0.0] * count
    for index in range(events):
        node = index % count
        at_units[node] += random.expovariate(1 / case["apart"])
        run.publish(node, at_units[node], random.choices(names, cum_weights=bounds)[0])
    series = f"{case['system']}, {case['law']}"
    yield row("7", series, events, run.go())
    if case["system"] in (CUBE, WINDOWED):
        yield row("7 waited", series, events, run.waited())


def play_brokers(case: Case) -> Iterator[Row]:
    """Figure 9: the cube beside both forms of SRPT."""
    count, brokers, seed = case["nodes"], case["brokers"], case["seed"]
    random = Random(f"brokers/{count}/{seed}")
    run = Run(Cost(), seed)
    everybody = list(range(count))
    if case["system"] == CUBE:
        run.add_cube(count, everybody)
    elif brokers:
        run.add_srpt(count, {TOPIC_NAME: broker_plan(count, brokers, 7 % brokers)})
    else:
        run.add_srpt(count, {TOPIC_NAME: subscriber_plan(count, 7, everybody)})
    at_units = 0.0
    for _ in range(case["events"]):
        at_units += random.expovariate(1 / 500)
        run.publish(random.randrange(count // 2, count), at_units)
    run.go()
    yield row("9", case["system"], brokers or count, fmean(run.latencies))


def churn(case: Case) -> tuple[Run, dict[int, float]]:
    """Let members come and go, each that goes for one that comes, while one of the quarter that came first publishes every 500 units.

    Return the run, about to begin, and who will be a member at its end, with when it came: 0 for those who stay all the time.
    """
    count, members, seed = case["nodes"], case["members"], case["seed"]
    random = Random(f"churn/{count}/{members}/{case['replaced']}/{seed}")
    brokers = count // BROKERED if case["system"] == "SRPT-B" else 0
    # Brokers are the first nodes, and come on top of all others.
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
            goes = inside.pop(random.randrange(len(inside)))
            comes = outside.pop(random.randrange(len(outside)))
            run.change(goes, at_units, joins=False)
            run.change(comes, at_units, joins=True)
            inside.append(comes)
            outside.append(goes)
            since[comes] = at_units
    return run, {number: since[number] for number in inside}


def play_churn(case: Case) -> Iterator[Row]:
    """Figure 8: latency while members come and go."""
    run, _ = churn(case)
    latency = run.go()
    if case["varies"] == "members":
        figure, at, series = "8a", case["members"], f"{case['system']}, {_stay(case)}"
    else:
        figure, at, series = "8b", case["replaced"], case["system"]
    yield row(figure, series, at, latency)
    yield row(f"{figure} forwarded", series, at, 100 * (1 - len(run.latencies) / run.copies))
    yield row(f"{figure} wait", series, at, max(run.waits()))


def _stay(case: Case) -> str:
    """Return how long half of the members stay, in words."""
    if not case["replaced"]:
        return "static"
    return f"{round(case['members'] * log(2) / case['replaced'] / 60)} min"
