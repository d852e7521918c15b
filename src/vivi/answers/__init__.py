"""From an encoder to answers: embeddings of footage, and what they are good for."""
