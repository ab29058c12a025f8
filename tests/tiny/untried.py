"""The flow pipelines of diffusers that have no tiny configuration, with what they need."""

UNTRIED = {
    "Cosmos2_5_TransferPipeline": "torchvision, by which its control network resizes a mask",
    "OmniGenPipeline": "torchvision, by which it reads pictures",
}
