"""vivi report: the tables and figures of the paper, from result files, as one page and as files."""
