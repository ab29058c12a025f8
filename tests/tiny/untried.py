"""The flow pipelines of diffusers that have no tiny configuration yet."""

from __future__ import annotations

NAMES = """
AnyFlowFARPipeline BriaFibo2Pipeline ChromaInpaintPipeline Cosmos2_5_PredictBasePipeline
Cosmos2_5_TransferPipeline DreamLiteMobilePipeline DreamLitePipeline
EasyAnimateControlPipeline EasyAnimateInpaintPipeline HunyuanImageRefinerPipeline
HunyuanVideoFramepackPipeline HunyuanVideoImageToVideoPipeline JoyImageEditPlusPipeline
Kandinsky6SRPipeline LTX25ModularPipeline LTX2DFRPipeline LTX2VideoDiffusionDecodePipeline
LongCatAudioDiTPipeline LongCatImageEditPipeline OmniGenPipeline PRXPixelPipeline
RFD4ProteinaPipeline SanaWMLTX2Refiner SanaWMPipeline VisualClozeGenerationPipeline
"""
UNTRIED = tuple(NAMES.split())

# What is known of some of them beside their parts.
KNOWN = {
    "LTX2DFRPipeline": "an LTX-2.5 transformer; its call has sigmas and no number of steps",
    "ChromaInpaintPipeline": "its call reads `guidance_embeds`, an option its transformer lacks",
    "RFD4ProteinaPipeline": "it has two schedulers, whose steps ask for an `emit_mask`",
    "OmniGenPipeline": "reads pictures with torchvision",
}
