"""How a notebook becomes a page of the documentation (named in settings.ini; `make docs` puts this folder on the path).

Two things differ from nbdev's way. It runs every cell that holds an import before it renders a page; here pages show stored
outputs, and a cell may drive a simulator, so only the signatures are made afresh, from the installed package. And it turns the
first cell into the page's title and drops what else that cell says; here the rest stays.
"""
import ast
from importlib import import_module
from pathlib import Path

from execnb.nbio import mk_cell, read_nb
from execnb.shell import CaptureShell
from nbdev.config import get_config
from nbdev.process import Processor
from nbdev.processors import _default_exp, _is_showdoc


def module_with_types(name: str):
    """The module, together with the names that it imports for annotations only (`if TYPE_CHECKING:`): signatures show them."""
    module = import_module(name)
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), vars(module))
    return module


class Page(Processor):
    """Puts the prose of the first cell back, and runs the `show_doc` cells, and no others, in the names of the exported module."""
    shell = None

    def begin(self):
        source = read_nb(self.nb.path_)
        first = next((cell.source for cell in source.cells if cell.cell_type == "markdown"), "")
        prose = "\n".join(line for line in first.splitlines() if not line.startswith(("# ", "> "))).strip()
        if prose and self.nb.cells[0].cell_type == "raw":                 # the raw cell is the title block that nbdev made
            cell = mk_cell(prose, "markdown")
            cell.directives_ = {}
            self.nb.cells.insert(1, cell)
        module = _default_exp(source)
        if module:
            self.shell = CaptureShell()
            self.shell.user_ns.update(vars(module_with_types(f"{get_config().lib_path.name}.{module}")))
            self.shell.run_cell("from nbdev.showdoc import show_doc")

    def __call__(self, cell):
        if self.shell is not None and cell.get("source") and _is_showdoc(cell):
            self.shell.cell(cell)
            if self.shell.exc:
                raise RuntimeError(f"this cell failed: {cell.source}") from self.shell.exc
