"""Options of nbconvert for README.md: `python -m nbconvert --config nbs/_readme.py nbs/index.ipynb` (`make readme`)."""

import re

from nbconvert.preprocessors import Preprocessor


class LinksFromTheTop(Preprocessor):
    """README.md lies one folder above the notebook: `policies/base.ipynb` becomes `nbs/policies/base.ipynb`, `../LICENSE` becomes `LICENSE`."""

    def preprocess(self, notebook, resources):
        notebook.metadata.setdefault(
            "language_info", {"name": "python"}
        )  # for the colours of code; cleaned notebooks don't say it
        return super().preprocess(notebook, resources)

    def preprocess_cell(self, cell, resources, index):
        if cell.cell_type == "markdown":
            cell.source = re.sub(
                r"\]\((?!https?:|#|/)([^)\s]+)\)",
                lambda link: (
                    "](" + (link[1][3:] if link[1].startswith("../") else f"nbs/{link[1]}") + ")"
                ),
                cell.source,
            )
        return cell, resources


c = get_config()  # noqa: F821  (nbconvert provides it)
c.NbConvertApp.export_format = "markdown"
c.NbConvertApp.output_base = "README"
c.NbConvertApp.log_level = "WARN"
c.FilesWriter.build_directory = "."
c.MarkdownExporter.preprocessors = [LinksFromTheTop]
c.RegexRemovePreprocessor.enabled = True
c.RegexRemovePreprocessor.patterns = [r"^#\| *hide"]
