"""A page that shows a corpus."""
