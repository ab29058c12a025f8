"""What made the small text-to-video model: clips, autoencoder, flow model, export."""
