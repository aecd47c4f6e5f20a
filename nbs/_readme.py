"""Options of nbconvert for README.md: `python -m nbconvert --config nbs/_readme.py nbs/index.ipynb` (`make readme`)."""
c = get_config()  # noqa: F821  (nbconvert provides it)
c.NbConvertApp.export_format = "markdown"
c.NbConvertApp.output_base = "README"
c.NbConvertApp.log_level = "WARN"
c.FilesWriter.build_directory = "."
c.RegexRemovePreprocessor.enabled = True
c.RegexRemovePreprocessor.patterns = [r"^#\| *hide"]
