"""From a corpus to batches on the device: which frames, decoded by threads, cropped and coloured together."""
