"""The report: one self-contained HTML page from the committed result files."""
