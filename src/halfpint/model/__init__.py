"""The network: ragged batches, embeddings, attention, blocks, the encoder and its heads."""
