"""What an encoder is for: answers about footage, and the encoder itself for others to use."""
