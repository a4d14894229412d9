"""The house rules, checked by machine.

A rule is a function from the root of a source tree to what it found there, one line for each
breach. Every rule is run over the package, and over a planted breach that it must find: a rule
that cannot go red is no rule.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Container, Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "ensue"

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100

LAYERS = (
    ("core",),
    ("protocols",),
    ("orders",),
    ("transports", "journal", "checkers"),
    ("store",),
    ("runtime", "simulation"),
    ("client", "server", "spark"),
    ("",),  # the root package, from which users import
    ("testing",),
    ("cli", "web"),
    ("__main__",),
)
"""From the bottom up, as in ARCHITECTURE.md. An import points to a lower layer or stays at home."""
LEVELS = {part: level for level, layer in enumerate(LAYERS) for part in layer}

IMPURE_MODULES = (
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "threading",
    "time",
    "uuid",
)
IMPURE_CALLS = ("hash", "id")
"""Their results differ from one process to the next."""

ORDER_BLIND = ("all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum")
"""Functions whose result does not depend on the order in which they are given things."""
ORDER_BOUND = ("enumerate", "iter", "list", "tuple")

ORDER_CLASSES = ("Total", "Causal", "Merged", "Deadline")
ORDER_NAMES = ("total", "causal", "causal-topic", "merged", "deadline", "none", "transactions")
ORDER_PROTOCOLS = ("total", "causal", "merged", "deadline", "content", "transactions", "unordered")
OF_ONE_ORDER = (
    "orders/",
    "core/order.py",
    "protocols/",
    "spark/merged_order.py",
    "testing/swarm/",
)
"""Where an order may be known: its own module, its value, its protocol, its pipeline, and the
programs that attack it."""
WITH_ITS_NODES = (
    *OF_ONE_ORDER,
    "simulation/deployments/",
    "simulation/world/corruption.py",
    "client/content/",
    "server/content_broker.py",
)
"""Where the class of a node may be known: also in the order's own client, server, deployment."""

INTERFACES = ("abc.ABC", "typing.Protocol")
RECORDS = ("msgspec.Struct", "ensue.protocols.interface.Frame")

PRAGMA = re.compile(r"\s*# (?:type: ignore|noqa|fmt: ).*$")
"""Comments for tools, which the formatter does not count either."""
UNWRAPPED = re.compile(r"^\s*\||\]\(|://")
"""Lines of Markdown that may be long: tables, links and URLs."""

MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp)/")

Rule = Callable[[Path], list[str]]


def modules(root: Path, under: str = "") -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((root / under).rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def breach(root: Path, path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(root)}:{line}: {what}"


def part_of(root: Path, path: Path) -> str:
    """The part of the architecture that a module belongs to: its name right under the root."""
    first = path.relative_to(root).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(root: Path, path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a module imports."""
    package = ("ensue", *path.relative_to(root).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            prefix = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def part_imported(root: Path, name: str) -> str | None:
    """The part of Ensue that a dotted name belongs to; None for everybody else's modules."""
    head, _, rest = name.partition(".")
    if head != "ensue":
        return None
    part = rest.partition(".")[0]
    known = part in LEVELS or (root / part).is_dir() or (root / f"{part}.py").is_file()
    return part if known else ""


def deferred(tree: ast.Module) -> set[int]:
    """The lines of imports that do not happen when the module is imported."""
    scopes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return {
        node.lineno
        for scope in scopes
        for node in ast.walk(scope)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


def imports_point_downwards(root: Path) -> list[str]:
    """Orders name what lies above them, and import it when they are asked for it: a registry."""
    found = []
    for path, tree in modules(root):
        part = part_of(root, path)
        if part not in LEVELS:
            found.append(breach(root, path, 1, f"{part!r} has no place in the layers"))
            continue
        excused = deferred(tree) if part == "orders" else ()
        for line, name in imports(root, path, tree):
            target = part_imported(root, name)
            if target is None or target == part or line in excused:
                continue
            if target not in LEVELS:
                found.append(breach(root, path, line, f"{target!r} has no place in the layers"))
            elif LEVELS[target] >= LEVELS[part] or (part == "checkers" and target != "core"):
                found.append(breach(root, path, line, f"{part or 'ensue'} may not import {name}"))
    return found


def transports_import_no_protocol(root: Path) -> list[str]:
    """Transports carry bytes and opaque frames: they know the interface of nodes and no more."""
    return [
        breach(root, path, line, f"a transport may not import {name}")
        for path, tree in modules(root, "transports")
        for line, name in imports(root, path, tree)
        if f"{name}.".startswith("ensue.protocols.")
        and not name.startswith("ensue.protocols.interface.")
    ]


def protocols_import_nothing_impure(root: Path) -> list[str]:
    return [
        breach(root, path, line, f"a protocol may not import {name}")
        for path, tree in modules(root, "protocols")
        for line, name in imports(root, path, tree)
        if name.partition(".")[0] in IMPURE_MODULES
    ]


def protocols_call_nothing_impure(root: Path) -> list[str]:
    return [
        breach(root, path, node.lineno, f"a protocol may not call {node.func.id}()")
        for path, tree in modules(root, "protocols")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IMPURE_CALLS
    ]


def is_set_type(annotation: ast.expr) -> bool:
    return re.match(r"(frozen)?set\b", ast.unparse(annotation)) is not None


def is_set(node: ast.expr, known: set[str]) -> bool:
    """Whether an expression is plainly a set: by its form, or because a known set is in it."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor
    ):
        return is_set(node.left, known) or is_set(node.right, known)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in known


def sets_in(scope: ast.AST) -> set[str]:
    """The names and attributes that are given a set, or declared as one, somewhere in a scope."""
    known: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and is_set(node.value, set()):
            known.update(ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            known.add(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and node.annotation and is_set_type(node.annotation):
            known.add(node.arg)
    return known


def iterated(scope: ast.AST) -> Iterator[ast.expr]:
    """What a scope goes through in a way that shows the order."""
    blind: set[ast.AST] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ORDER_BLIND:
                blind.update(node.args)
            elif node.func.id in ORDER_BOUND and node not in blind:
                yield from node.args[:1]
        elif isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and node not in blind:
            yield from (generator.iter for generator in node.generators)


def protocols_iterate_over_no_set(root: Path) -> list[str]:
    """As far as one can see without types: sets by form, by assignment and by annotation."""
    found: set[str] = set()
    for path, tree in modules(root, "protocols"):
        shared = {name for name in sets_in(tree) if name.startswith("self.")}
        scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        for scope in scopes:
            known = shared | sets_in(scope)
            for node in iterated(scope):
                if is_set(node, known):
                    what = f"the order of {ast.unparse(node)} is not defined: sort it"
                    found.add(breach(root, path, node.lineno, what))
    return sorted(found)


def dotted_module(root: Path, path: Path) -> str:
    parts = ("ensue", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def protocol_classes(root: Path) -> dict[str, tuple[Path, ast.ClassDef, list[str]]]:
    """Classes of protocols by dotted name, each with the dotted names of its bases."""
    found = {}
    for path, tree in modules(root, "protocols"):
        module = dotted_module(root, path)
        known = {name.rpartition(".")[2]: name for _, name in imports(root, path, tree)}
        nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        known.update((node.name, f"{module}.{node.name}") for node in nodes)
        for node in nodes:
            bases = []
            for base in node.bases:
                first, dot, rest = ast.unparse(base).partition("[")[0].partition(".")
                bases.append(f"{known.get(first, first)}{dot}{rest}")
            found[f"{module}.{node.name}"] = path, node, bases
    return found


def is_interface(name: str, classes: dict[str, tuple[Path, ast.ClassDef, list[str]]]) -> bool:
    """Whether a class is abstract, a record, or an exception."""
    if name not in classes:
        return False
    _, _, bases = classes[name]
    return any(
        base in INTERFACES or base.endswith(("Error", "Exception")) for base in bases
    ) or any(is_record(base, classes) for base in bases)


def is_record(name: str, classes: dict[str, tuple[Path, ast.ClassDef, list[str]]]) -> bool:
    if name in RECORDS:
        return True
    return name in classes and any(is_record(base, classes) for base in classes[name][2])


def protocols_inherit_interfaces_only(root: Path) -> list[str]:
    """No inheritance between protocol modules except from an abstract interface or a record.

    A class that is split over files by inheritance is still one class: own collaborators instead.
    """
    classes = protocol_classes(root)
    return [
        breach(root, path, node.lineno, f"{node.name} inherits from {base}: own it instead")
        for name, (path, node, bases) in classes.items()
        for base in bases
        if base.startswith("ensue.protocols.")
        and base.rpartition(".")[0] != name.rpartition(".")[0]
        and not is_interface(base, classes)
        and not is_record(base, classes)
    ]


def modules_are_short(root: Path) -> list[str]:
    found = []
    for path, _ in modules(root):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES_MAX:
            found.append(breach(root, path, lines, f"more than {MODULE_LINES_MAX} lines"))
    return found


def modules_are_nouns(root: Path) -> list[str]:
    return [
        breach(root, path, 1, "a module is a thing: name it by a noun")
        for path, _ in modules(root)
        for name in (path.parent.name if path.name == "__init__.py" else path.stem,)
        if name.endswith("ing") and name != "testing"
    ]


def named_orders(node: ast.AST) -> list[str]:
    """The names of orders that stand in an expression."""
    return [
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and each.value in ORDER_NAMES
    ]


def is_of_orders(*nodes: ast.AST) -> bool:
    """Whether expressions speak of orders by their own names, not of rules or columns."""
    return any(re.search("order(?!ed)|protocol", ast.unparse(node).lower()) for node in nodes)


def names_class(node: ast.AST, classes: Container[str]) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id in classes)
        or (isinstance(each, ast.Attribute) and each.attr in classes)
        for each in ast.walk(node)
    )


@cache
def node_classes() -> frozenset[str]:
    """The classes of nodes of one order: those in its protocol that return effects."""
    return frozenset(
        node.name
        for order in ORDER_PROTOCOLS
        for _, tree in modules(PACKAGE, f"protocols/{order}")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "take_effects"
    )


def node_switch(node: ast.AST) -> bool:
    """Whether code decides by the class of a node of one order, or lists such classes."""
    classes = node_classes()
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return names_class(kinds, classes)
        case ast.MatchClass(cls=cls):
            return names_class(cls, classes)
        case ast.Compare(comparators=others):
            return any(names_class(other, classes) for other in others)
        case ast.Assign(value=ast.Tuple(elts=listed)):
            return any(isinstance(each, ast.Name) and each.id in classes for each in listed)
        case _:
            return False


def order_switch(node: ast.AST) -> bool:
    """Whether a node decides by an order, or lists orders to decide by."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return names_class(kinds, ORDER_CLASSES)
        case ast.MatchClass(cls=cls):
            return names_class(cls, ORDER_CLASSES)
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            plain = [side for side in sides if not named_orders(side)]
            named = len(plain) < len(sides) and is_of_orders(*plain)
            return named or any(names_class(other, ORDER_CLASSES) for other in others)
        case ast.Assign(targets=targets, value=value):
            return len(named_orders(value)) > 1 and is_of_orders(*targets)
        case ast.AnnAssign(target=target, annotation=annotation, value=value):
            listed = named_orders(annotation) + (named_orders(value) if value else [])
            return len(listed) > 1 and is_of_orders(target)
        case ast.keyword(arg=str(arg), value=value):
            return len(named_orders(value)) > 1 and "order" in arg
        case ast.ClassDef(body=body):
            values = [each.value for each in body if isinstance(each, ast.Assign)]
            return sum(bool(named_orders(value)) for value in values) > 1
        case _:
            return False


def only_orders_switch_on_an_order(root: Path) -> list[str]:
    """A new order is one package: all others ask `ensue.orders`, and nodes by interfaces."""
    found = []
    for path, tree in modules(root):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(tree):
            line = getattr(node, "lineno", 1)
            if not name.startswith(OF_ONE_ORDER) and order_switch(node):
                found.append(breach(root, path, line, "ask ensue.orders instead of switching"))
            elif not name.startswith(WITH_ITS_NODES) and node_switch(node):
                found.append(breach(root, path, line, "ask the node by an interface"))
    return found


def functions_are_short(root: Path) -> list[str]:
    found = []
    for path, tree in modules(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    what = f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"
                    found.append(breach(root, path, node.lineno, what))
    return found


def packages_say_what_they_export(root: Path) -> list[str]:
    found = []
    for path, tree in modules(root):
        if path.name != "__init__.py":
            continue
        exports = any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            for node in tree.body
        ) or any(part_imported(root, name) is not None for _, name in imports(root, path, tree))
        declared = any(
            ast.unparse(target) == "__all__"
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
        if exports and not declared:
            found.append(breach(root, path, 1, "exports names without __all__"))
    return found


def comments(path: Path) -> Iterator[tuple[int, str]]:
    source = io.StringIO(path.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(source.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def ignored_types_name_the_error(root: Path) -> list[str]:
    return [
        breach(root, path, line, "type: ignore without a code")
        for path in sorted(root.rglob("*.py"))
        for line, comment in comments(path)
        if re.search(r"type:\s*ignore(?!\[[\w-]+)", comment)
    ]


def wrapped_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that can be wrapped: all code, and prose of Markdown."""
    is_code_block = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if path.suffix == ".py":
            yield number, PRAGMA.sub("", line)
        elif line.lstrip().startswith("```"):
            is_code_block = not is_code_block
        elif not is_code_block and not UNWRAPPED.search(line) and " " in line.strip():
            yield number, line


def lines_are_short(root: Path) -> list[str]:
    return [
        breach(root, path, number, f"{len(line)} columns, more than {COLUMNS_MAX}")
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.md")])
        for number, line in wrapped_lines(path)
        if len(line) > COLUMNS_MAX
    ]


def machine_paths(root: Path, paths: list[Path]) -> list[str]:
    """Places that exist on one machine only."""
    return [
        breach(root, path, number, line.strip())
        for path in paths
        if path.is_file()
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        )
        if MACHINE_PATH.search(line)
    ]


def source(*lines: str) -> str:
    return "\n".join(lines) + "\n"


LONG_FUNCTION = source("def long() -> None:", *["    pass"] * FUNCTION_LINES_MAX)

RED: list[tuple[Rule, str, str]] = [
    (imports_point_downwards, "core/event.py", "from ensue.protocols.interface import Node"),
    (imports_point_downwards, "protocols/interface.py", "from ensue.runtime import driver"),
    (imports_point_downwards, "protocols/interface.py", "import ensue.store"),
    (imports_point_downwards, "protocols/merge/node.py", "from ...simulation import world"),
    (imports_point_downwards, "checkers/total.py", "from ensue.protocols import core"),
    (imports_point_downwards, "checkers/total.py", "from ensue.simulation import world"),
    (imports_point_downwards, "client/bus.py", "from ensue import connect"),
    (imports_point_downwards, "client/bus.py", "def f():\n    from ensue.cli import main"),
    (imports_point_downwards, "helpers.py", ""),
    (
        transports_import_no_protocol,
        "transports/tcp/messages.py",
        "from ensue.protocols.total.config import SequencerConfig",
    ),
    (transports_import_no_protocol, "transports/memory.py", "from ensue.protocols import causal"),
    (transports_import_no_protocol, "transports/memory.py", "import ensue.protocols.total.frames"),
    (imports_point_downwards, "orders/total.py", "from ensue.simulation import run"),
    (imports_point_downwards, "checkers/total.py", "from ensue import orders"),
    (protocols_import_nothing_impure, "protocols/interface.py", "import time"),
    (protocols_import_nothing_impure, "protocols/merge/node.py", "from os.path import join"),
    (protocols_import_nothing_impure, "protocols/interface.py", "from random import Random"),
    (protocols_call_nothing_impure, "protocols/interface.py", "key = hash('topic')"),
    (protocols_call_nothing_impure, "protocols/interface.py", "def f(x):\n    return id(x)"),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        "def f():\n    for x in {1, 2}: g(x)",
    ),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        "def f(xs):\n    known = set(xs)\n    return [g(x) for x in known]",
    ),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        "def f(known: set[str], other):\n    return list(known - other)",
    ),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        source(
            "class A:",
            "    def __init__(self):",
            "        self.peers: set[str] = set()",
            "    def f(self):",
            "        for peer in self.peers: g(peer)",
        ),
    ),
    (
        protocols_inherit_interfaces_only,
        "protocols/merge/node.py",
        "from ensue.protocols.shared.link import Linked\nclass Node(Linked): ...",
    ),
    (
        protocols_inherit_interfaces_only,
        "protocols/merge/node.py",
        "from ..shared import link\nclass Node(link.Linked[str]): ...",
    ),
    (only_orders_switch_on_an_order, "client/bus.py", "a = isinstance(order, Total)"),
    (only_orders_switch_on_an_order, "client/bus.py", "a = isinstance(x, core.Causal | None)"),
    (only_orders_switch_on_an_order, "client/bus.py", "a = type(self.order) is Merged"),
    (only_orders_switch_on_an_order, "cli/sim.py", "a = scenario.order == 'deadline'"),
    (only_orders_switch_on_an_order, "cli/sim.py", "a = file.order in ('causal', 'total')"),
    (only_orders_switch_on_an_order, "simulation/run.py", "ORDERS = ('total', 'causal')"),
    (only_orders_switch_on_an_order, "simulation/run.py", "PROTOCOLS = {'total': 1, 'causal': 2}"),
    (only_orders_switch_on_an_order, "transports/tcp.py", "a = f(orders=('total', 'none'))"),
    (
        only_orders_switch_on_an_order,
        "simulation/run.py",
        "order: Literal['total', 'causal'] = 'total'",
    ),
    (
        only_orders_switch_on_an_order,
        "cli/check.py",
        "class Order(StrEnum):\n    TOTAL = 'total'\n    CAUSAL = 'causal'",
    ),
    (
        only_orders_switch_on_an_order,
        "client/bus.py",
        "match order:\n    case Deadline():\n        pass",
    ),
    (only_orders_switch_on_an_order, "client/bus.py", "a = isinstance(node, MergedPublisher)"),
    (
        only_orders_switch_on_an_order,
        "client/shared_node.py",
        "a = isinstance(driver.node, broker.DeadlineBroker | RegisteredBroker)",
    ),
    (
        only_orders_switch_on_an_order,
        "runtime/hub_remote.py",
        "KEEPS_NOTHING = (UnorderedPublisher, UnorderedSubscriber)",
    ),
    (only_orders_switch_on_an_order, "runtime/hub_remote.py", "a = type(node) is Subscriber"),
    (
        only_orders_switch_on_an_order,
        "client/reader.py",
        "match node:\n    case Subscriber():\n        pass",
    ),
    (modules_are_short, "core/event.py", source(*["pass"] * (MODULE_LINES_MAX + 1))),
    (modules_are_nouns, "client/running.py", ""),
    (modules_are_nouns, "spark/auditing/__init__.py", ""),
    (functions_are_short, "core/event.py", LONG_FUNCTION),
    (functions_are_short, "core/event.py", f"async {LONG_FUNCTION}"),
    (packages_say_what_they_export, "__init__.py", "from ensue.core.event import Event"),
    (packages_say_what_they_export, "client/__init__.py", "from .bus import Bus"),
    (packages_say_what_they_export, "client/__init__.py", "def connect(): ..."),
    (ignored_types_name_the_error, "core/event.py", "x: int = ''  # type: ignore"),
    (ignored_types_name_the_error, "core/event.py", "x: int = ''  # type: ignore[]"),
    (lines_are_short, "core/event.py", f"x = '{'y' * (COLUMNS_MAX - 5)}'"),
    (lines_are_short, "core/event.py", f"x = '{'y' * (COLUMNS_MAX - 5)}'  # noqa: E501"),
    (lines_are_short, "core/event.py", f"# {'word ' * 20}"),
    (lines_are_short, "docs/page.md", f"{'word ' * 20}words"),
    (lines_are_short, "docs/page.md", f"```sh\n{'word ' * 30}\n```\n{'word ' * 20}words"),
]

GREEN: list[tuple[Rule, str, str]] = [
    (
        imports_point_downwards,
        "core/event.py",
        "from ensue.core.errors import EnsueError\nimport msgspec",
    ),
    (
        imports_point_downwards,
        "protocols/merge/node.py",
        "from ensue.protocols.interface import Node",
    ),
    (imports_point_downwards, "protocols/merge/node.py", "from ..core import Node\nimport json"),
    (imports_point_downwards, "checkers/total.py", "from ensue.core.trace import Row"),
    (imports_point_downwards, "simulation/run.py", "from ensue import checkers"),
    (imports_point_downwards, "cli/main.py", "import ensue\nfrom ensue import connect"),
    (imports_point_downwards, "__init__.py", "from ensue.client import connect"),
    (
        transports_import_no_protocol,
        "transports/base.py",
        "from ensue.protocols.interface import Frame\nfrom ensue.core.lineage import Lineage",
    ),
    (transports_import_no_protocol, "runtime/hub.py", "from ensue.protocols.causal import frames"),
    (
        imports_point_downwards,
        "orders/total.py",
        source(
            "from ensue.protocols.interface import Node",
            "if TYPE_CHECKING:",
            "    from ensue.simulation.scenario import Scenario",
            "def draw():",
            "    from ensue.simulation.swarms import total",
        ),
    ),
    (protocols_import_nothing_impure, "runtime/driver.py", "import asyncio, time"),
    (protocols_import_nothing_impure, "protocols/interface.py", "import hashlib, timeit_free"),
    (
        protocols_call_nothing_impure,
        "protocols/interface.py",
        "def f(event):\n    return event.id()",
    ),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        source(
            "def f(xs):",
            "    known = set(xs)",
            "    for x in sorted(known): g(x)",
            "    return any(x > 1 for x in known), len(known), {x + 1 for x in known}",
        ),
    ),
    (
        protocols_iterate_over_no_set,
        "protocols/interface.py",
        "def f(xs):\n    known = set(xs)\n    return known\ndef g(known):\n    return list(known)",
    ),
    (
        protocols_inherit_interfaces_only,
        "protocols/merge/node.py",
        source(
            "from collections.abc import MutableMapping",
            "from typing import Generic",
            "from ensue.core.errors import EnsueError",
            "from ensue.protocols.interface import Frame",
            "class Queue(MutableMapping[str, T], Generic[T]): ...",
            "class Sorted(Queue[int]): ...",
            "class Full(EnsueError): ...",
            "class Ask(Frame, frozen=True, tag=1): ...",
        ),
    ),
    (protocols_inherit_interfaces_only, "runtime/x.py", "from a.b import C\nclass D(C): ..."),
    (only_orders_switch_on_an_order, "orders/total.py", "a = isinstance(order, Total)"),
    (only_orders_switch_on_an_order, "protocols/merged/x.py", "a = order == 'merged'"),
    (only_orders_switch_on_an_order, "protocols/total/x.py", "a = isinstance(x, Subscriber)"),
    (
        only_orders_switch_on_an_order,
        "simulation/deployments/total.py",
        "a = isinstance(node, Subscriber)",
    ),
    (only_orders_switch_on_an_order, "client/bus.py", "a = isinstance(node, LogReaderNode)"),
    (only_orders_switch_on_an_order, "client/bus.py", "def f(node: Subscriber) -> None: ..."),
    (only_orders_switch_on_an_order, "checkers/total.py", "a = 'causal' in rules"),
    (only_orders_switch_on_an_order, "client/bus.py", "def connect(order=Total()): ..."),
    (only_orders_switch_on_an_order, "cli/pub.py", "order: str = 'total'"),
    (only_orders_switch_on_an_order, "server/tls.py", "a = tls.clients != 'none'"),
    (modules_are_short, "core/event.py", source(*["pass"] * MODULE_LINES_MAX)),
    (modules_are_nouns, "testing.py", ""),
    (functions_are_short, "core/event.py", LONG_FUNCTION.removesuffix("    pass\n")),
    (packages_say_what_they_export, "client/__init__.py", '"""Only a docstring."""'),
    (
        packages_say_what_they_export,
        "__init__.py",
        'from ensue.core.event import Event\n__all__ = ["Event"]',
    ),
    (ignored_types_name_the_error, "core/event.py", "x: int = ''  # type: ignore[assignment]"),
    (ignored_types_name_the_error, "core/event.py", 'x = "# type: ignore"'),
    (lines_are_short, "core/event.py", f"x = '{'y' * (COLUMNS_MAX - 6)}'"),
    (lines_are_short, "core/event.py", f"x = '{'ü' * (COLUMNS_MAX - 6)}'  # noqa: RUF001"),
    (
        lines_are_short,
        "docs/page.md",
        source(
            f"| {'cell ' * 30}|",
            f"[{'words ' * 30}](page.md)",
            f"{'word ' * 20}<https://example.org>",
            f"```sh\n{'word ' * 30}\n```",
            "y" * 200,
        ),
    ),
]

RULES = list(dict.fromkeys(rule for rule, _, _ in RED))


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert rule(PACKAGE) == []


@pytest.mark.parametrize(("rule", "name", "text"), RED)
def test_the_rule_finds_a_planted_breach(tmp_path: Path, rule: Rule, name: str, text: str) -> None:
    plant(tmp_path, name, text)
    (found,) = rule(tmp_path)
    assert found.startswith(f"{name}:")


@pytest.mark.parametrize(("rule", "name", "text"), GREEN)
def test_the_rule_lets_good_code_pass(tmp_path: Path, rule: Rule, name: str, text: str) -> None:
    plant(tmp_path, name, text)
    assert rule(tmp_path) == []


def test_protocols_inherit_interfaces_records_and_errors_of_other_modules(tmp_path: Path) -> None:
    bases = source(
        "import msgspec",
        "from abc import ABC",
        "from typing import Protocol",
        "class Queue(ABC): ...",
        "class Sink(Protocol[T]): ...",
        "class Counts(msgspec.Struct): ...",
        "class MoreCounts(Counts): ...",
        "class Full(Exception): ...",
        "class Sorted(Queue): ...",
        "class Plain: ...",
    )
    plant(tmp_path, "protocols/shared/bases.py", bases)
    for base, allowed in {
        "Queue": True,
        "Sink[str]": True,
        "Counts": True,
        "MoreCounts": True,
        "Full": True,
        "Sorted": False,
        "Plain": False,
    }.items():
        plant(
            tmp_path,
            "protocols/merge/node.py",
            f"from ensue.protocols.shared.bases import {base.partition('[')[0]}\n"
            f"class Node({base}): ...\n",
        )
        assert (not protocols_inherit_interfaces_only(tmp_path)) == allowed, base


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_does_not_mind_an_empty_tree(tmp_path: Path, rule: Rule) -> None:
    assert rule(tmp_path) == []


@pytest.mark.parametrize(
    "folder", ["src", "tests", "experiments", "benchmarks", "examples", "fuzz", "docs"]
)
def test_lines_of_the_project_are_short(folder: str) -> None:
    assert lines_are_short(PROJECT / folder) == []


def test_prose_at_the_root_of_the_project_is_wrapped() -> None:
    long = [
        breach(PROJECT, page, number, f"{len(line)} columns, more than {COLUMNS_MAX}")
        for page in sorted(PROJECT.glob("*.md"))
        for number, line in wrapped_lines(page)
        if len(line) > COLUMNS_MAX
    ]
    assert long == []


def test_tests_name_the_errors_of_types_they_ignore() -> None:
    assert ignored_types_name_the_error(PROJECT / "tests") == []


def test_tracked_files_name_no_place_of_one_machine() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout: nothing is tracked")
    names = filter(None, listing.stdout.split("\0"))
    assert machine_paths(PROJECT, [PROJECT / name for name in names]) == []


@pytest.mark.parametrize("place", ["work", "tmp"])
def test_a_planted_machine_path_is_found(tmp_path: Path, place: str) -> None:
    slash = "/"
    plant(tmp_path, "bad.md", f"good\nsee {slash}{place}{slash}notes\n")
    plant(tmp_path, "good.md", f"see docs{slash}{place}{slash}notes, or https://x.y/{place}/z\n")
    paths = [tmp_path / "bad.md", tmp_path / "good.md", tmp_path / "deleted.md"]
    (found,) = machine_paths(tmp_path, paths)
    assert found.startswith("bad.md:2:")
