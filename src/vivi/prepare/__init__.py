"""From video files to a corpus of shots and frames."""
