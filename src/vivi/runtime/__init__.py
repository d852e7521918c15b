"""What every other package may use: errors, files, progress, processes, threads, the console."""
