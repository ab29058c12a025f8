"""Train the flow transformer in resumable chunks.

    python -m training.flow --minutes 5 --total 15  # three times

Every few minutes and at its end a chunk leaves `flow.pt` in the work folder, from which the next
goes on. Over the second half of the total the learning rate falls to zero; the export is of the
averaged weights.
"""

import argparse
import copy
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from torch import Tensor

from training.config import SIZE, TOKENS, TRANSFORMER, WORK
from training.corpus import Corpus, load_bank, make_corpus, pictures_of
from training.text import embed, load_text, package_folder, token_ids

RATE, WARM_UP, DECAY_FROM = 1e-3, 400, 0.5
NOISY = 0.4  # mean of the logit of t: where things go is settled near t = 1
EMA = 0.9995
SAVE_EVERY = 150.0  # seconds
WEIGHED = ("model", "average", "optimizer")  # of the state: saved as tensors, never as objects
DROPPED = 0.1  # share of captions left out, for guidance


class Examples(NamedTuple):
    """What the model is trained on: packed latents, and every caption's states and pool."""

    latents: Tensor  # (scenes, 64, 64)
    states: Tensor  # (scenes, captions, TOKENS, width)
    pooled: Tensor  # (scenes, captions, width)
    empty: tuple[Tensor, Tensor]


def main() -> None:
    """Prepare the examples, load or make the model, train one chunk and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="of this chunk, at most")
    parser.add_argument("--total", type=float, default=15, help="minutes of all chunks")
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--scenes", type=int, default=400_000)
    parser.add_argument("--pictures", type=Path, default=WORK / "emoji.npz")
    parser.add_argument("--text", type=Path, default=None, help="MiniLM's folder")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass fails at these sizes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    examples = load_examples(options, device)
    state = resume(options.out / "flow.pt", device)
    torch.manual_seed(1000 + state["step"])
    train(state, examples, options)
    save(state, options.out)


def load_examples(options: argparse.Namespace, device: str) -> Examples:
    """Latents of all scenes and embeddings of all captions, on the device, in about a minute."""
    started = time.monotonic()
    bank = load_bank(options.pictures, device)
    corpus = make_corpus(options.scenes, seed=2, bank=bank)
    print(f"{options.scenes} scenes after {time.monotonic() - started:.0f} s", flush=True)
    tokenizer, encoder = load_text(options.text or package_folder())
    texts = [text for captions in corpus.captions for text in captions]
    with ThreadPoolExecutor(1) as beside:  # tokens on the CPU while the device draws
        ids = beside.submit(token_ids, tokenizer, texts)
        vae = AutoencoderKL.from_pretrained(options.out / "vae").to(device).eval()
        latents = encode(corpus, bank, vae)
        print(f"latents after {time.monotonic() - started:.0f} s", flush=True)
    encoder = encoder.to(device, torch.float32)
    states, pooled = embed(encoder, ids.result())
    examples = Examples(
        latents,
        states.reshape(len(latents), -1, TOKENS, states.shape[-1]),
        pooled.reshape(len(latents), -1, pooled.shape[-1]),
        embed(encoder, token_ids(tokenizer, [""])),
    )
    print(f"{len(latents)} examples in {time.monotonic() - started:.0f} s; e.g. {texts[:4]}")
    return examples


@torch.no_grad()
def encode(corpus: Corpus, bank: Any, vae: Any, batch: int = 512) -> Tensor:
    """Scaled latents of every scene, packed as FluxPipeline packs them."""
    packed = []
    for chosen in torch.arange(len(corpus.captions)).split(batch):
        with torch.autocast(vae.device.type, torch.bfloat16):
            latents = vae.encode(pictures_of(corpus.arrays, chosen, bank)).latent_dist.mode()
        latents = (latents.float() - vae.config.shift_factor) * vae.config.scaling_factor
        packed.append(FluxPipeline._pack_latents(latents, *latents.shape).bfloat16())
    return torch.cat(packed)


def resume(path: Path, device: str) -> dict[str, Any]:
    """The training state: model, average, optimizer, steps and seconds done, loss curve."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(**TRANSFORMER).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    for layer in (model.proj_out, model.norm_out.linear):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    for block in (*model.transformer_blocks, *model.single_transformer_blocks):
        for name in ("norm1", "norm1_context", "norm"):
            if hasattr(block, name):  # modulation starts at nothing, as in DiT
                torch.nn.init.zeros_(getattr(block, name).linear.weight)
                torch.nn.init.zeros_(getattr(block, name).linear.bias)
    optimizer = torch.optim.AdamW(
        model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=device == "cuda"
    )
    average = copy.deepcopy(model).requires_grad_(False)
    state: dict[str, Any] = {"model": model, "average": average, "optimizer": optimizer}
    state |= {"step": 0, "seconds": 0.0, "curve": []}
    if path.exists():
        kept = torch.load(path, map_location=device, weights_only=True)
        for name in WEIGHED:
            state[name].load_state_dict(kept.pop(name))
        state |= kept
    return state


def save(state: dict[str, Any], out: Path) -> None:
    """The state to go on from, the averaged weights and the loss curve."""
    weights = {name: state[name].state_dict() for name in WEIGHED}
    torch.save(state | weights, out / "flow.part")
    (out / "flow.part").replace(out / "flow.pt")
    state["average"].save_pretrained(out / "transformer")
    (out / "flow.jsonl").write_text("".join(json.dumps(r) + "\n" for r in state["curve"]))


def train(state: dict[str, Any], examples: Examples, options: argparse.Namespace) -> None:
    """One chunk; the clock runs while steps are made, not while the model compiles."""
    device = examples.latents.device.type
    run = torch.compile(state["model"]) if device == "cuda" else state["model"]
    total = options.total * 60
    end = min(total, state["seconds"] + options.minutes * 60)
    clock, saved, recent = Clock(state["seconds"]), state["seconds"], []
    flow_loss(run, draw(examples, options.batch)).item()  # compiles
    clock.restart()
    while state["seconds"] < end:
        loss = flow_loss(run, draw(examples, options.batch))
        update(state, loss, rate_at(state["step"], state["seconds"] / total))
        recent.append(loss.detach())
        state["seconds"] = clock.read()
        if state["step"] % 200 == 0:
            record = {"step": state["step"], "seconds": round(state["seconds"], 1)}
            state["curve"].append({**record, "loss": torch.stack(recent).mean().item()})
            recent = []
            if state["step"] % 1000 == 0:
                print(json.dumps(state["curve"][-1]), flush=True)
        if state["seconds"] - saved > SAVE_EVERY:
            save(state, options.out)
            saved = state["seconds"]
            clock.restart()


class Clock:
    """Seconds of training: those since the last restart, added to those counted before it."""

    def __init__(self, counted: float) -> None:
        self.counted, self.started = counted, time.monotonic()

    def read(self) -> float:
        """Seconds counted until now."""
        now = time.monotonic()
        self.counted, self.started = self.counted + now - self.started, now
        return self.counted

    def restart(self) -> None:
        """Leave out what passed since the last reading."""
        self.started = time.monotonic()


def update(state: dict[str, Any], loss: Tensor, rate: float) -> None:
    """One step of the optimizer and of the average."""
    model, average, optimizer = state["model"], state["average"], state["optimizer"]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    decay = min(EMA, (state["step"] + 1) / (state["step"] + 10))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
    state["step"] += 1


def rate_at(step: int, done: float) -> float:
    """Warm-up, then constant, then linear to zero over the last part of the total."""
    return RATE * min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.0, (1 - done) / (1 - DECAY_FROM)))


def draw(examples: Examples, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """A batch: latents with one of their captions, some of them left out."""
    latents, states, pooled, empty = examples
    chosen = torch.randint(len(latents), (count,), device=latents.device)
    which = torch.randint(states.shape[1], (count,), device=latents.device)
    dropped = torch.rand(count, device=latents.device) < DROPPED
    text = torch.where(dropped[:, None, None], empty[0], states[chosen, which])
    pool = torch.where(dropped[:, None], empty[1], pooled[chosen, which])
    return latents[chosen].float(), text, pool


@cache
def position_ids(device: str) -> dict[str, Tensor]:
    """Positions of the latents and of the tokens, as the pipeline gives them."""
    side, kind = SIZE // 16, torch.float32
    ids = FluxPipeline._prepare_latent_image_ids(1, side, side, device, kind)
    return {"img_ids": ids, "txt_ids": torch.zeros(TOKENS, 3, device=device)}


def flow_loss(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Squared error of the velocity noise - data at logit-normal times."""
    data, states, pooled = batch
    device = data.device.type
    noise = torch.randn_like(data)
    t = torch.sigmoid(NOISY + torch.randn(len(data), device=device))
    x = torch.lerp(data, noise, t[:, None, None])
    with torch.autocast(device, torch.bfloat16):
        v = model(
            hidden_states=x,
            timestep=t,
            encoder_hidden_states=states.float(),
            pooled_projections=pooled.float(),
            **position_ids(device),
            return_dict=False,
        )[0]
    return (v.float() - (noise - data)).square().mean()


if __name__ == "__main__":
    main()
