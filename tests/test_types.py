"""`Any` switches the type checker off, so there are few of them, and fewer over time; and none that a user meets without a reason."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lerobot_nb

PACKAGE = Path(lerobot_nb.__file__).parent
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_modidx.py"]

# Names `Any` in each room. Lower a number when its room has become better; a higher one needs a good reason.
MOST = {"envs": 189, "policies": 72, "results": 2, "evaluation": 2, "training": 14, "top": 0}
SLACK = 10

# `Any` in the signature of a name that `import lerobot_nb` offers: why, and where.
PUBLIC = {
    "an environment of any library, or what it is made by": """
        EnvFactory.__call__.return EnvConfig.create_envs.return make_env.return add_envs_task.env
        LazyVectorEnv.__init__.factories LazyVectorEnv.reset.options LazyVectorEnv.reset.return LazyVectorEnv.step.return""",
    "batches, observations and actions of any library (NumPy, torch), as lerobot's users know these functions": """
        EnvConfig.get_env_processors.return make_env_pre_post_processors.return LiberoProcessor.__call__.return
        LiberoProcessor.state.robot_state ProcessorPipeline.__init__.steps ProcessorPipeline.__call__.return
        add_envs_task.observation add_envs_task.return preprocess_observation.observation preprocess_observation.return
        RemotePolicy.predict.batch RemotePolicy.predict.return""",
    "fields of a configuration that is known only at run time, and checks them itself": """
        EnvConfig.quick make_env_config.kwargs
        RemotePolicy.check_source.env_config RemotePolicy.check_env.env_config
        RemotePolicy.check_source.others RemotePolicy.wishes_of.others RemotePolicy.wishes_of.return
        record_demonstrations.policy_kwargs""",
    "JSON, as it is in a file or goes into one": """
        RemotePolicy.identity.return PolicyServer.metadata.return Training.log.return""",
}


def is_any(node: ast.AST) -> bool:
    """`Any`, or `typing.Any`."""
    return (isinstance(node, ast.Name) and node.id == "Any") or (
        isinstance(node, ast.Attribute) and node.attr == "Any"
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a tree, with those of annotations and types that are written as texts."""
    for node in ast.walk(tree):
        yield node
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value:
            try:
                yield from ast.walk(ast.parse(node.value, mode="eval"))
            except SyntaxError:  # prose
                continue


def n_any(tree: ast.AST) -> int:
    return sum(map(is_any, nodes(tree)))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_test_finds_any():
    """Or the tests below can't fail."""
    assert n_any(ast.parse("a: dict[str, Any]\nb: 'list[Any]'\nc: typing.Any")) == 3
    assert (
        n_any(ast.parse('"""Any of them."""\nfrom typing import Any\nx: object = "Any time"')) == 0
    )


def rooms() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in MODULES:
        parts = path.relative_to(PACKAGE).parts
        found[parts[0] if len(parts) > 1 else "top"] += n_any(parsed(path))
    return found


def test_any_becomes_rarer():
    found = rooms()
    more = {room: n for room, n in found.items() if n > MOST.get(room, 0)}
    assert not more, (
        f"more `Any` than before (allowed: {MOST}): use object, a TypedDict, a Protocol or a name of envs/types"
    )
    assert all(n <= found[room] + SLACK for room, n in MOST.items()), (
        f"fewer `Any` than MOST says; write into {Path(__file__).name}: MOST = { {room: found[room] for room in MOST} }"
    )


def signatures() -> Iterator[tuple[str, ast.AST]]:
    """("name" or "Class.name", annotation) of everything that `import lerobot_nb` offers: arguments,
    results, fields."""
    homes = {name: module for module, names in lerobot_nb._HOMES.items() for name in names}
    trees = {}
    for name, module in homes.items():
        path = PACKAGE.parent / Path(*module.split(".")).with_suffix(".py")
        tree = trees.setdefault(module, parsed(path))
        (node,) = (
            one
            for one in tree.body
            if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and one.name == name
        )
        if isinstance(node, ast.FunctionDef):
            yield from function_annotations(name, node)
            continue
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and (
                not inner.name.startswith("_") or inner.name in ("__init__", "__call__")
            ):
                yield from function_annotations(f"{name}.{inner.name}", inner)
            elif (
                isinstance(inner, ast.AnnAssign)
                and isinstance(inner.target, ast.Name)
                and not inner.target.id.startswith("_")
            ):
                yield f"{name}.{inner.target.id}", inner.annotation


def function_annotations(name: str, node: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    arguments = node.args
    for one in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if one is not None and one.annotation is not None:
            yield f"{name}.{one.arg}", one.annotation
    if node.returns is not None:
        yield f"{name}.return", node.returns


def test_what_users_call_says_its_types():
    found = dict(signatures())
    assert len(found) > 400
    loose = {name for name, annotation in found.items() if n_any(annotation)}
    listed = {name for names in PUBLIC.values() for name in names.split()}
    assert not loose - listed, (
        "`Any` in a public signature: narrow it, or give the reason in PUBLIC"
    )
    assert not listed - loose, "no `Any` there any more: take these out of PUBLIC"
