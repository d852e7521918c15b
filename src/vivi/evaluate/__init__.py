"""What the representation is worth: features of an encoder, and the tasks solved with them."""
