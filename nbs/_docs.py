"""How a notebook becomes a page of the documentation (named in settings.ini; `make docs` puts this folder on the path).

Where this differs from nbdev's way:

- nbdev runs every cell that holds an import before it renders a page. Here pages show stored outputs, and a cell may drive a
  simulator; only the reference entries are made afresh, from the installed package.
- nbdev turns the first cell into the page's title and drops what else that cell says. Here the rest stays.
- An entry shows a wrapped signature, a table of the arguments, what is returned and raised, and, for a class, its methods.
- Names of the package in prose become links that work wherever the site is served.
"""

import ast
import dataclasses
import enum
import html
import inspect
import os
import re
import sys
import textwrap
import tokenize
import typing
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring
from execnb.nbio import mk_cell, read_nb
from nbdev.config import get_config
from nbdev.process import Processor
from nbdev.processors import _default_exp, _is_showdoc

FROM_THE_TOP = ("CONTRIBUTING.md", "CHANGELOG.md")  # files that become pages
WIDTH = 100  # characters of code that the text column shows; longer lines are wrapped


# --- names and where they are documented --------------------------------------------------------------------------------


def entries_of(module: str) -> set[str]:
    """The names of a module that have an entry on its page: those in `__all__`."""
    path = get_config().lib_path.parent / (module.replace(".", "/") + ".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@lru_cache
def pages() -> dict[str, str]:
    """Every documented name, short and in full, and the page and heading that it has; names that
    two modules share only in full.
    """
    index = import_module(f"{get_config().lib_path.name}._modidx").d["syms"]
    found, shared = {}, set()
    for module, names in index.items():
        entries = entries_of(module)
        for full, (address, _) in names.items():
            page, _, anchor = (
                address.removeprefix(get_config().doc_baseurl).lstrip("/").partition("#")
            )
            target = f"/{page.removesuffix('.html')}.ipynb#{anchor}"
            short = full.removeprefix(module + ".")
            if short.split(".")[0] not in entries or short.split(".")[-1].startswith("_"):
                continue
            found[full] = target
            if short in found and found[short] != target:
                shared.add(short)
            found[short] = target
        page = next(iter(names.values()))[0] if names else None
        if page:
            found[module] = (
                f"/{page.removeprefix(get_config().doc_baseurl).lstrip('/').partition('#')[0].removesuffix('.html')}.ipynb"
            )
    public = import_module(get_config().lib_path.name)._HOME_OF
    return {name: target for name, target in found.items() if name not in shared} | {
        name: found[f"{module}.{name}"]
        for name, module in public.items()
        if f"{module}.{name}" in found
    }


def link_names(text: str, own_page: str = "") -> str:
    """Markdown in which `Name`, `Name(…)` and `module.Name` are links to their entries, outside of
    code blocks, headings and existing links.
    """

    def link(match):
        name = match[1].split("(")[0]
        target = pages().get(name) or pages().get(
            name.removeprefix(get_config().lib_path.name + ".")
        )
        if target is None:
            return match[0]
        page, _, anchor = target.partition("#")
        return f"[`{match[1]}`]({f'#{anchor}' if page == own_page and anchor else target})"

    lines, fenced = [], False
    for line in text.split("\n"):
        if re.match(r"\s*(```|~~~|:::)", line):
            fenced = not fenced if not line.strip().startswith(":::") else fenced
        elif not fenced and not line.startswith(("#", "<", "    ")):
            parts = re.split(r"(\[[^\]]*\]\([^)]*\))", line)  # what is a link already stays
            line = "".join(
                part
                if number % 2
                else re.sub(r"(?<!`)`([A-Za-z_][\w.]*(?:\([^`]*\))?)`(?!`)", link, part)
                for number, part in enumerate(parts)
            )
        lines.append(line)
    return "\n".join(lines)


def described(words: str) -> str:
    """The description of a picture, as Quarto takes it: a "%" is read as part of an address."""
    return re.sub(r"\s*%", " percent", words)


def play_films(text: str) -> str:
    """A picture that links to a film (`[![words](poster.jpg)](film.mp4)`, which works anywhere) becomes a player.
    The words of a picture that stands alone describe it, and are no caption.
    """
    text = re.sub(
        r"^!\[([^\]\"]+)\]\(([^)\s]+)\)$",
        lambda found: f'![]({found[2]}){{fig-alt="{described(found[1])}"}}',
        text,
        flags=re.M,
    )
    player = (
        r'<video controls muted loop playsinline preload="metadata" style="width:100%" poster="\2" aria-label="\1">'
        r'<source src="\3" type="video/mp4"></video>'
    )
    return re.sub(
        r"^\[!\[([^\]\"]*)\]\(([^)\s]+)\)\]\(([^)\s]+\.mp4)\)$",
        f"```{{=html}}\n{player}\n```",
        text,
        flags=re.M,
    )


def without_magics(code: str) -> str:
    """A cell as a reader wants it: one that writes a module begins with the module's name, commands
    for a terminal stand without "!", and the formatter's marks are left out.
    """
    code = re.sub(r"\A%%writefile (\S+)\n", r"# \1\n", code)
    code = re.sub(r"^(?:%|# fmt: (?:off|on)$).*\n?", "", code, flags=re.M)
    return re.sub(r"^!", "", code, flags=re.M)


def with_whole_options(text: str) -> str:
    """`command --option` in prose and tables, so that a line never ends after the hyphens."""

    def whole(match):
        words = re.sub(
            r"(?<![\w-])(--?\w[\w-]*)",
            r'<span class="whole">\1</span>',
            html.escape(match[1], False),
        )
        return f"`<code>{words}</code>`{{=html}}"

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= bool(re.match(r"\s*(```|~~~)", line))
        if not fenced and not line.startswith(("#", "    ")):
            line = re.sub(r"(?<![`\[])`([^`]*(?<![\w-])--?[a-z][^`]*)`(?![`{\]])", whole, line)
        lines.append(line)
    return "\n".join(lines)


def link_outside(text: str, own_page: str) -> str:
    """Links to files beside the folder of notebooks: to their page where they have one, else to the
    repository.
    """

    def link(match):
        target = os.path.normpath(os.path.join(os.path.dirname(own_page.lstrip("/")), match[1]))
        if not target.startswith("../"):
            return match[0]
        name = target.removeprefix("../")
        return (
            f"](/{name.lower()})"
            if name in FROM_THE_TOP
            else f"]({get_config().git_url}/blob/{get_config().branch}/{name})"
        )

    return re.sub(r"\]\((\.\./[^)\s]+)\)", link, text)


# --- an entry of the reference ------------------------------------------------------------------------------------------


def kind_text(annotation: object) -> str:
    """An annotation as a reader wants it: without modules, and without what `Annotated` adds."""
    if annotation is inspect.Parameter.empty:
        return ""
    if typing.get_origin(annotation) is typing.Annotated:
        return kind_text(typing.get_args(annotation)[0])
    if annotation is type(None):
        return "None"
    if annotation is ...:
        return "…"
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    if type(annotation).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return " | ".join(map(kind_text, typing.get_args(annotation)))
    if typing.get_origin(annotation) is not None and typing.get_args(annotation):
        origin = typing.get_origin(annotation)
        inner = [
            f"[{', '.join(map(kind_text, one))}]" if isinstance(one, list) else kind_text(one)
            for one in typing.get_args(annotation)
        ]
        return f"{getattr(origin, '__name__', str(origin))}[{', '.join(inner)}]"
    if isinstance(annotation, type):
        return annotation.__name__
    return re.sub(
        r"\b(?:[a-z_]\w*\.)+", "", annotation if isinstance(annotation, str) else str(annotation)
    )


def default_text(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__name__
    text = repr(value)
    return "…" if "<" in text or len(text) > 60 else text


def signature_of(symbol: object) -> inspect.Signature | None:
    try:
        signature = inspect.signature(symbol)
    except (TypeError, ValueError):
        return None
    if isinstance(symbol, type) and (
        issubclass(symbol, (enum.Enum, tuple, BaseException))
        or symbol.__init__ is object.__init__
        or getattr(symbol, "_is_protocol", False)
    ):
        return None
    parameters = [
        one
        for one in signature.parameters.values()
        if one.name not in ("self", "cls") and not one.name.startswith("_")
    ]
    return signature.replace(parameters=parameters)


def signature_text(name: str, signature: inspect.Signature | None, is_class: bool = False) -> str:
    """`name(argument: kind = default, …) -> kind`, on one line where it fits, else an argument a
    line.
    """
    if signature is None:
        return f"class {name}" if is_class else name
    words, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            words.append("*")
        kind, default = kind_text(parameter.annotation), default_text(parameter.default)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        )
        words.append(
            prefix
            + parameter.name
            + (f": {kind}" if kind else "")
            + ((f" = {default}" if kind else f"={default}") if default else "")
        )
    result = kind_text(signature.return_annotation) if not is_class else ""
    end = f" -> {result}" if result else ""
    line = f"{'class ' if is_class else ''}{name}({', '.join(words)}){end}"
    if len(line) <= WIDTH:
        return line
    return (
        f"{'class ' if is_class else ''}{name}(\n"
        + "".join(f"    {word},\n" for word in words)
        + f"){end}"
    )


@lru_cache
def definitions(path: str) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The lines of a module, and the first and last line of each class, function and method."""
    text = Path(path).read_text(encoding="utf-8")
    places: dict[str, tuple[int, int]] = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                places[prefix + child.name] = (first, child.end_lineno)
                if isinstance(child, ast.ClassDef):
                    visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt):
                visit(child, prefix)

    visit(ast.parse(text), "")
    return text.splitlines(), places


def source_of(symbol: object) -> tuple[Path, int, list[str]] | None:
    """File, number of the first line, and lines of a definition of the package; else None."""
    symbol = inspect.unwrap(symbol)
    module = sys.modules.get(getattr(symbol, "__module__", None) or "")
    path = Path(getattr(module, "__file__", None) or ".").resolve()
    if not path.is_relative_to(get_config().lib_path.resolve()):
        return None
    lines, places = definitions(str(path))
    if getattr(symbol, "__qualname__", "") not in places:
        return None
    first, last = places[symbol.__qualname__]
    return path, first, lines[first - 1 : last]


def source_link(symbol: object) -> str:
    found = source_of(symbol)
    if found is None:
        return ""
    path, first, lines = found
    name = path.relative_to(get_config().lib_path.resolve().parent).as_posix()
    address = f"{get_config().git_url}/blob/{get_config().branch}/{name}#L{first}-L{first + len(lines) - 1}"
    return f"::: {{.source-line}}\n[source]({address})\n:::\n\n"


def comments_of(symbol: object) -> dict[str, str]:
    """Comments at the arguments of a function and at the fields of a class: behind them, or in lines of their own above."""
    found_source = source_of(symbol)
    if found_source is None:
        return {}
    lines = found_source[2]
    tree = ast.parse(textwrap.dedent("\n".join(lines))).body[0]
    if isinstance(tree, ast.ClassDef):
        places = [(one.target.id, one) for one in tree.body if isinstance(one, ast.AnnAssign)]
        init = next((one for one in tree.body if getattr(one, "name", "") == "__init__"), None)
        tree = init if not places else None
    else:
        places = []
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        asked = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
        places += [(one.arg, one) for one in asked]
    dedented = textwrap.dedent("\n".join(lines)).splitlines()
    comments = {
        token.start[0]: (token.string.lstrip("# ").strip(), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(iter([line + "\n" for line in dedented]).__next__)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for number, (name, node) in enumerate(places):
        end = places[number + 1][1].lineno if number + 1 < len(places) else node.end_lineno + 1
        behind = [
            text
            for line in range(node.lineno, max(end, node.lineno + 1))
            if line in comments
            for text, alone in [comments[line]]
            if not alone
        ]
        above, line = [], node.lineno - 1
        while line in comments and comments[line][1]:
            above.insert(0, comments[line][0])
            line -= 1
        if behind or above:
            found[name] = " ".join([*above, *behind])
    return found


def helps_of(annotated: object) -> dict[str, str]:
    """What `Annotated[…, Setting("…")]` says of arguments and fields."""
    return {
        name: extra.help
        for name, kind in inspect.get_annotations(inspect.unwrap(annotated)).items()
        for extra in getattr(kind, "__metadata__", ())
        if getattr(extra, "help", "")
    }


def meanings(symbol: object) -> dict[str, str]:
    """What each argument means: from the docstring, from the settings and fields of a configuration, from comments."""
    found: dict[str, str] = {}
    owner, _, name = getattr(symbol, "__qualname__", "").rpartition(".")
    home = vars(sys.modules.get(getattr(symbol, "__module__", None), ast)).get(owner)
    for base in home.__mro__[1:] if isinstance(home, type) else ():
        if name in vars(base) and base.__module__.startswith(get_config().lib_path.name):
            found = meanings(getattr(base, name)) | found  # what a base class says of them
    found |= comments_of(symbol)
    if isinstance(symbol, type) and dataclasses.is_dataclass(symbol):
        # a field that a subclass only gives another default keeps its meaning
        for owner in reversed([base for base in symbol.__mro__ if dataclasses.is_dataclass(base)]):
            found |= helps_of(owner)
        found |= {
            one.name: one.metadata["help"]
            for one in dataclasses.fields(symbol)
            if one.metadata.get("help")
        }
    elif inspect.isfunction(symbol):
        found |= helps_of(symbol)
    elif isinstance(symbol, type) and inspect.isfunction(symbol.__init__):
        found |= helps_of(symbol.__init__)
    for one in parse_docstring(inspect.getdoc(symbol) or "", DocstringStyle.NUMPYDOC).params:
        for name in re.split(r"\s*,\s*", one.arg_name):
            if one.description:
                found[name.lstrip("*")] = one.description
    return found


def cell_of_table(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip()).replace("|", "\\|")


class Entry:
    """Markdown for one public function or class; what `show_doc` returns."""

    def __init__(self, symbol: object, name: str | None = None, title_level: int = 3):
        self.symbol, self.level = symbol, title_level
        self.name = name or getattr(symbol, "__qualname__", None) or str(symbol)

    @cached_property
    def documentation(self):
        return parse_docstring(inspect.getdoc(self.symbol) or "", DocstringStyle.NUMPYDOC)

    def _repr_markdown_(self) -> str:
        return "\n".join(self.parts())

    def parts(self):
        is_class = isinstance(self.symbol, type)
        yield f"{'#' * self.level} {self.name}\n"
        yield source_link(self.symbol)
        signature = signature_of(self.symbol)
        yield f"```{{.python .signature}}\n{signature_text(self.name, signature, is_class)}\n```\n"
        said = self.documentation
        own = is_class and not (
            issubclass(self.symbol, enum.Enum) and "__doc__" not in vars(self.symbol)
        )
        if own or not is_class:
            yield (said.description or "") + "\n"
        yield from self.arguments(signature)
        if said.returns and (said.returns.description or said.many_returns):
            yield (
                "**Returns** "
                + "; ".join(
                    " ".join(
                        filter(
                            None,
                            [
                                f"`{one.return_name}`:"
                                if one.return_name and one.type_name
                                else "",
                                cell_of_table(one.description or ""),
                            ],
                        )
                    )
                    for one in said.many_returns
                )
                + "\n"
            )
        if said.raises:
            yield (
                "| Raises | |\n|:--|:--|\n"
                + "\n".join(
                    f"| `{one.type_name}` | {cell_of_table(one.description or '')} |"
                    for one in said.raises
                )
                + "\n"
            )
        if is_class and issubclass(self.symbol, enum.Enum):
            yield (
                "| Member | Value |\n|:--|:--|\n"
                + "\n".join(f"| `{one.name}` | `{one.value!r}` |" for one in self.symbol)
                + "\n"
            )
        elif is_class:
            yield from self.members()

    def arguments(self, signature):
        parameters = dict(signature.parameters) if signature is not None else {}
        told = meanings(self.symbol)
        named = {
            name.lstrip("*")
            for one in self.documentation.params
            for name in re.split(r"\s*,\s*", one.arg_name)
        }
        shown = [*parameters, *(name for name in named if name not in parameters)]
        rows = [(name, parameters.get(name)) for name in shown]
        if not any(told.get(name) for name in shown):
            return
        yield "::: {.arguments}\n\n| Argument | Kind | Default | Meaning |\n|:--|:--|:--|:--|"
        for name, parameter in rows:
            kind = (
                kind_text(parameter.annotation).replace(" | ", " or ")
                if parameter is not None
                else ""
            )  # a bar would end the cell
            default = (
                cell_of_table(default_text(parameter.default)) if parameter is not None else ""
            )
            # in HTML, since a name that something else has, too, would become a link to that
            yield f"| <code>{name}</code> | {f'`{kind}`' if kind else ''} | {f'`{default}`' if default else ''} | {cell_of_table(told.get(name, ''))} |"
        yield "\n:::\n"

    def members(self):
        for name, member in vars(self.symbol).items():
            if name.startswith("_"):
                continue
            if isinstance(member, (property, cached_property)):
                function = member.fget if isinstance(member, property) else member.func
                kind = kind_text(inspect.signature(function).return_annotation)
                text = cell_of_table(inspect.getdoc(function) or "")
                yield f"{'#' * (self.level + 1)} {self.name}.{name}\n\n{source_link(function)}```{{.python .signature}}\n{name}{f': {kind}' if kind else ''}          # property\n```\n\n{text}\n"
            elif inspect.isroutine(member) or isinstance(member, (classmethod, staticmethod)):
                function = getattr(self.symbol, name)
                if inspect.getdoc(function):
                    entry = Entry(function, f"{self.name}.{name}", self.level + 1)
                    yield entry._repr_markdown_()


# --- pages --------------------------------------------------------------------------------------------------------------


def module_with_types(name: str):
    """The module, together with the names that it imports for annotations only (`if
    TYPE_CHECKING:`): signatures show them.
    """
    module = import_module(name)
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        ):
            for statement in node.body:
                try:
                    exec(
                        compile(ast.Module([statement], []), module.__file__, "exec"), vars(module)
                    )
                except ModuleNotFoundError:
                    if not isinstance(statement, ast.ImportFrom):
                        raise
                    # of an extra that is not installed here: its classes are shown by name
                    names = [alias.asname or alias.name for alias in statement.names]
                    vars(module).update({name: type(name, (), {}) for name in names})
    return module


def shown(code: str, names: dict[str, object]) -> dict[str, object]:
    """The output of a `show_doc` cell: the entry of its last line."""
    *before, last = ast.parse(code).body
    exec(compile(ast.Module(before, []), "show_doc", "exec"), names)
    entry = eval(compile(ast.Expression(last.value), "show_doc", "eval"), names)
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {"text/markdown": entry._repr_markdown_()},
    }


class Page(Processor):
    """Puts the prose of the first cell back, runs the `show_doc` cells, and no others, in the names
    of the exported module, and makes the links.
    """

    names: dict[str, object] | None = None

    def begin(self):
        source = read_nb(self.nb.path_)
        self.page = (
            "/"
            + Path(self.nb.path_).resolve().relative_to(get_config().nbs_path.resolve()).as_posix()
        )
        first = next((cell.source for cell in source.cells if cell.cell_type == "markdown"), "")
        prose = "\n".join(
            line for line in first.splitlines() if not line.startswith(("# ", "> "))
        ).strip()
        # the raw cell is the title block that nbdev made
        if prose and self.nb.cells[0].cell_type == "raw":
            cell = mk_cell(prose, "markdown")
            cell.directives_ = {}
            self.nb.cells.insert(1, cell)
        module = _default_exp(source)
        if module:
            self.names = {
                **vars(module_with_types(f"{get_config().lib_path.name}.{module}")),
                "show_doc": Entry,
            }

    def __call__(self, cell):
        if self.names is not None and cell.get("source") and _is_showdoc(cell):
            cell["outputs"] = [shown(cell.source, self.names)]
        if cell["cell_type"] == "markdown":
            if cell.get("source") and not cell["source"].startswith("---\n"):
                text = link_outside(play_films(cell["source"]), self.page)
                cell["source"] = with_whole_options(link_names(text, self.page))
            return
        if cell.get("source"):
            cell["source"] = without_magics(cell["source"])
        cell["source"] = re.sub(
            r"^#\| fig-alt:.*$",
            lambda line: described(line[0]),
            cell.get("source") or "",
            flags=re.M,
        )
        for output in cell.get("outputs", []):
            data = output.get("data") or {}
            if "text/markdown" in data:
                text = data["text/markdown"]
                data["text/markdown"] = with_whole_options(link_names("".join(text), self.page))
            elif (
                "text/html" in data
            ):  # as part of the page: as an output it would bring scripts from elsewhere
                table = "".join(data["text/html"])
                output["data"] = {
                    "text/markdown": f'\n```{{=html}}\n<div class="table-scroll">{table}</div>\n```\n'
                }


def add_pages_from_the_top(folder: str | Path = "_proc") -> None:
    """CONTRIBUTING.md and CHANGELOG.md become pages; their links to notebooks lead to the pages of
    these.
    """
    for name in FROM_THE_TOP:
        path = Path(name)
        if path.exists():
            text = re.sub(r"\]\(nbs/([^)\s]+)\)", r"](\1)", path.read_text(encoding="utf-8"))
            text = re.sub(
                r"\]\((?!https?:|#|[\w/]+\.ipynb)([^)\s]+)\)",
                rf"]({get_config().git_url}/blob/{get_config().branch}/\1)",
                text,
            )
            (Path(folder) / name.lower()).write_text(text, encoding="utf-8")
