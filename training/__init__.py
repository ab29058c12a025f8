"""What made the embedded model: data, autoencoder, flow model, export."""
